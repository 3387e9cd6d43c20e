"""LU factorization without pivoting (HPL-MxP) and with partial pivoting (HPL)."""
