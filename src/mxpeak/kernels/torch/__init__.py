"""Run kernels on any torch device: library calls, and Triton kernels where libraries have none."""
