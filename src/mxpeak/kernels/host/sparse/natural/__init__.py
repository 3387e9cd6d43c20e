"""Gauss–Seidel in the natural order: two storage formats, their autotuning, and the schedule over threads."""
