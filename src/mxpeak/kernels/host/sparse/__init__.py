"""Sparse kernels of the host: storage formats, Gauss–Seidel sweeps, products and vector operations."""
