"""Checks that detect flipped bits in factorizations and iterative solves."""
