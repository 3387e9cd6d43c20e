"""The row-wise (componentwise) backward error: how well each equation is solved, at any scale of its entries.

    omega = max_i |b - A x|_i / (|A||x| + |b|)_i

It is the smallest relative change of the entries of A and b of which x is the exact solution (Oettli, Prager 1964), and
unlike the normwise error it does not depend on the scale of rows.
"""

from __future__ import annotations

from math import inf, nan, sqrt
from typing import Any

import numpy as np

from mxpeak.kernels import choose
from mxpeak.kernels.contract import DenseKernels, Matrix
from mxpeak.kernels.contract.dense import Block
from mxpeak.library.dense.factoring import Estimates
from mxpeak.library.dense.inputs import by_rows, lies_well
from mxpeak.library.types import Array
from mxpeak.solvers.residual import backward_error

#: The row-wise backward error of plain LU is seldom above this or above 16/n, whichever is larger.
ROWWISE_LU = 2.0**-4
#: Entries of |A| that are formed at a time, on the host and on a device.
STRIP, DEVICE_STRIP = 1 << 17, 1 << 24
#: An eta larger than this many times the recorded one plus one rounding, n·u, is that of other numbers.
CHANGED = 16.0


def plain_lu_by_rows(n: int, *, is_complex: bool) -> float:
    """The row-wise backward error that plain LU seldom exceeds, in n·u: max(16/n, 1/16).

    Measured with n = 200 to 2000: 2 to 80 roundings, u, for dense matrices, up to 500 for sparse ones.  Of complex
    systems 2·sqrt(2) times that, as a product of complex numbers is rounded (Higham 2002, 3.6).
    """
    return max(16.0 / n, ROWWISE_LU) * (2.0 * sqrt(2.0) if is_complex else 1.0)


def sizes_of_terms(kernels: DenseKernels, A: Matrix, X: Block, B: Block) -> Block:
    """Return |A||X| + |B|, the sizes of what a residual is the sum of; one pass over A."""
    xp, rows, n = kernels.xp, by_rows(A), A.shape[1]
    D, Y = -xp.abs(B), xp.abs(X)
    height = max(1, (STRIP if kernels.device is None else DEVICE_STRIP) // n)
    for i in range(0, n, height):
        part = slice(i, i + height)
        if rows:
            D[part] = kernels.residual(D[part], xp.abs(A[part]), Y)
        else:
            D = kernels.residual(D, xp.abs(A[:, part]), Y[part])
    return -D


def row_errors(xp: Any, R: Block, D: Block, n: int, u: float) -> Array:
    """Return max_i |r_ij| / d_ij / (n·u) of each column, inf where one is not finite; n is the order of the system.

    Residuals of no more than n + 1 roundings of subnormal numbers count as zero.
    """
    known = xp.finfo(R.dtype)
    floor = (n + 1) * float(known.smallest_normal) * float(known.eps)
    sizes = xp.abs(R)
    zero = sizes <= floor
    errors = xp.where(zero, xp.zeros_like(sizes), sizes) / xp.where(zero, xp.ones_like(D), D)
    found = np.array(xp.max(errors, axis=0).tolist()) / (n * u)
    return np.where(np.isnan(found), inf, found)


def row_error_of(A: Matrix, X: Block, B: Block, eta: float, backend: DenseKernels | None = None) -> Estimates:
    """Return the worst row-wise error of A X = B, to be computed when first asked for, by the host if not by a backend.

    eta   the normwise error: where it is not found again, A, X or B was changed, and the row-wise error is NaN
    """

    def make() -> tuple[float]:
        if not eta < inf:
            return (inf,)
        kernels = backend or choose.dense(None)
        xp = kernels.xp
        M, n = A if lies_well(A) else xp.asarray(A, copy=True), len(A)
        x, b = xp.reshape(X, (n, -1)), xp.reshape(B, (n, -1))
        u = float(xp.finfo(x.dtype).eps) / 2
        with kernels.computing(), np.errstate(all="ignore"):
            R = kernels.residual(b, M, x)
            A_inf = float(xp.max(sizes_of_terms(kernels, M, xp.ones_like(x[:, :1]), xp.zeros_like(x[:, :1]))))
            norms = (xp.max(xp.abs(V), axis=0).tolist() for V in (R, x, b))
            now = max(backward_error(r, A_inf, of_x, of_b, n, u) for r, of_x, of_b in zip(*norms))
            if not now <= CHANGED * (eta + 1.0):
                return (nan,)
            return (float(row_errors(xp, R, sizes_of_terms(kernels, M, x, b), n, u).max()),)

    return Estimates(make)
