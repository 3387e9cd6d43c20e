"""What a run needs before it computes: ranks, cores, threads, memory, compiled kernels."""
