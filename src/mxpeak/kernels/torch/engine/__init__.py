"""Provide devices, messages, graphs and compilation for the torch kernels."""
