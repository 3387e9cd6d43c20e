"""Gauss-Seidel in the natural order: its two storage formats, its schedule over threads, and the choice of one."""
