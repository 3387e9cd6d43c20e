"""Compute data distributions and orders of operations with integers, without arrays or communication."""
