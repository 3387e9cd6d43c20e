"""Run kernels on any torch device: library calls, and Triton kernels for operations that the libraries lack."""
