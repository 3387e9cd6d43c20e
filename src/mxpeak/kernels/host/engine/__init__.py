"""Compilation, vector instructions, threads, BLAS and LAPACK for the host kernels."""
