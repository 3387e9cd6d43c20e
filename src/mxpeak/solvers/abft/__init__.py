"""Checks that find flipped bits in factorizations and iterative solves."""
