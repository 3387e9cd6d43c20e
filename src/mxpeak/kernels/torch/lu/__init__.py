"""LU factorization kernels on torch devices."""
