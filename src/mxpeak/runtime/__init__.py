"""Prepare a run before it computes: ranks, cores, threads, memory and compiled kernels."""
