"""Norm kernels on torch devices."""
