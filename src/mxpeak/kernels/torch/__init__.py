"""Any device that torch knows: library calls, and Triton kernels for what libraries lack."""
