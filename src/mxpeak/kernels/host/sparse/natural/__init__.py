"""Gauss–Seidel in the natural order: two storage formats, the choice between them, and the schedule over threads."""
