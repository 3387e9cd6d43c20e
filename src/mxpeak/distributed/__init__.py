"""Matrices and vectors that are distributed over ranks, from the perspective of one rank."""
