"""Factor a diagonal block without pivoting: strips of columns in compiled code, products between strips by BLAS."""

from __future__ import annotations

from mxpeak.kernels.host.engine.jit import INT, INTEGERS, MATRIX, MATRIX32, inner, jit
from mxpeak.kernels.host.engine.vector_ir import column, column_block, gemm_at, trsm_at

#: Columns of a strip: wide enough for fast BLAS products, and narrow enough that factoring the strip takes little
#: time.
STRIP = 16


@inner(fastmath={"contract"})
def _factor_strip(D, j0, j1, singular):
    """Factor columns j0:j1 in rows j0 and below, right-looking without pivoting.

    singular[0] becomes 1 + the index of the first zero pivot, unless it is already set.
    """
    n = D.shape[0]
    for j in range(j0, j1):
        pivot = D[j, j]
        if pivot == 0.0:
            if singular[0] == 0:
                singular[0] = j + 1
            pivot = D.dtype.type(1)  # the column is unchanged; the caller reads `singular`
        reciprocal = D.dtype.type(1) / pivot
        l_j = column(D, j, j + 1, n)
        for r in range(l_j.shape[0]):
            l_j[r] *= reciprocal
        for c in range(j + 1, j1):
            a_c, u = column(D, c, j + 1, n), D[j, c]
            for r in range(l_j.shape[0]):
                a_c[r] -= l_j[r] * u


@jit(MATRIX, INTEGERS, INT, INT, also=(MATRIX32, INTEGERS, INT, INT), later=True)
def factor_block(D, singular, gemm, trsm):
    """Factor a column-major block D = L U in place, without pivoting.

    singular[0] becomes 1 + the index of the first column with a zero pivot, and does not change if all pivots are
    nonzero. `gemm` and `trsm` are the addresses of the BLAS routines.
    """
    n, one, minus_one = D.shape[0], D.dtype.type(1), D.dtype.type(-1)
    for j0 in range(0, n, STRIP):
        j1 = min(j0 + STRIP, n)
        _factor_strip(D, j0, j1, singular)
        if j1 < n:
            L21, U12 = column_block(D, j1, j0), column_block(D, j0, j1)
            trsm_at(trsm, one, (j1 - j0, n - j1), column_block(D, j0, j0), U12)
            gemm_at(gemm, minus_one, (n - j1, n - j1, j1 - j0), L21, U12, column_block(D, j1, j1))
