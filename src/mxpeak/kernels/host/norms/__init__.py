"""Norm kernels of the host."""
