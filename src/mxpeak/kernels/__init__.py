"""Kernels: the same operations in every backend. `contract` defines what each operation computes and overwrites."""
