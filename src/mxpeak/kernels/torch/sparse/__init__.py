"""Sparse kernels on torch devices."""
