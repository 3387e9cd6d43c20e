"""Define the Triton kernels, each with the signatures for which it is compiled."""
