"""Kernels: the same operations in every backend. `contract` defines their results and overwritten arguments."""
