"""LU factorization kernels of the host: panels, row moves, triangular solves and products in low precision."""
