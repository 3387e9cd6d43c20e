"""HPL: LU with partial pivoting in FP64."""
