"""HPCG: conjugate gradients with multigrid on a sparse matrix."""
