"""Compilation, vector instructions, threads, BLAS and LAPACK for the kernels of the host."""
