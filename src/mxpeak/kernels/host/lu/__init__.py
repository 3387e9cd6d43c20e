"""LU factorization kernels of the host: panels, row moves, triangles and products of low precision."""
