"""Devices, messages, graphs and compilation for the kernels of torch."""
