"""The diagonal block of an LU without pivoting, in compiled code: strips of columns, and products between them."""

from __future__ import annotations

from mxpeak.kernels.host.engine.jit import INT, INTEGERS, MATRIX, MATRIX32, inner, jit
from mxpeak.kernels.host.engine.vector_ir import address_of, column, gemm_at, trsm_at

#: Columns of a strip: wide enough for its products to be BLAS, narrow enough for its own work to be little.
STRIP = 16


@inner(fastmath={"contract"})
def _factor_strip(D, j0, j1, singular):
    """Columns j0:j1, right-looking, all rows below; notes the first zero pivot."""
    n = D.shape[0]
    for j in range(j0, j1):
        pivot = D[j, j]
        if pivot == 0.0:
            if singular[0] == 0:
                singular[0] = j + 1
            pivot = D.dtype.type(1)  # the column stays as it is; the caller hears of it
        reciprocal = D.dtype.type(1) / pivot
        l_j = column(D, j, j + 1, n)
        for r in range(l_j.shape[0]):
            l_j[r] *= reciprocal
        for c in range(j + 1, j1):
            a_c, u = column(D, c, j + 1, n), D[j, c]
            for r in range(l_j.shape[0]):
                a_c[r] -= l_j[r] * u


@jit(MATRIX, INTEGERS, INT, INT, also=(MATRIX32, INTEGERS, INT, INT))
def factor_block(D, singular, gemm, trsm):
    """D = L U in place, D column-major; singular[0] = 1 + the first column with a zero pivot, if there is one."""
    n, ld = D.shape[0], D.strides[1] // D.itemsize
    one, minus_one = D.dtype.type(1), D.dtype.type(-1)
    for j0 in range(0, n, STRIP):
        j1 = min(j0 + STRIP, n)
        _factor_strip(D, j0, j1, singular)
        if j1 < n:
            trsm_at(trsm, j1 - j0, n - j1, one, address_of(D, j0, j0), ld, address_of(D, j0, j1), ld)
            gemm_at(
                gemm,
                n - j1,
                n - j1,
                j1 - j0,
                minus_one,
                address_of(D, j1, j0),
                ld,
                address_of(D, j0, j1),
                ld,
                address_of(D, j1, j1),
                ld,
            )
