"""HPL-MxP: LU without pivoting in mixed precision, refined to fp64."""
