"""Sparse kernels of the host: formats, sweeps, products and vectors."""
