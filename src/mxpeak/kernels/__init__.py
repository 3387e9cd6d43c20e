"""Kernels: the same operations in every backend. `contract` defines their results and the arguments they overwrite."""
