"""Detect flipped bits in factorizations and iterative solves (algorithm-based fault tolerance)."""
