"""Provide devices, messages, CUDA graphs and ahead-of-time compilation for the torch kernels."""
