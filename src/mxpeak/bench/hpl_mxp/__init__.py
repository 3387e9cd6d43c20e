"""HPL-MxP: LU without pivoting in mixed precision, refined to FP64."""
