"""HPL: LU with partial pivoting in fp64."""
