"""The Triton kernels, each with the signatures that it is compiled with."""
