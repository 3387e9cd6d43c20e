"""Products of a matrix's blocks of columns with vectors, each block's by itself: what checksums of an LU take.

The matrix is read once for all vectors.  Its entries are widened as they are read, or rounded first to what the update
of a low precision was given.
"""

from __future__ import annotations

import numpy as np
from numba.core import types

from mxpeak.kernels.host.cast import FORMAT, round_row
from mxpeak.kernels.host.jit import INT, MATRIX, MATRIX32, VECTOR, inner, jit
from mxpeak.kernels.host.native import float_of, row
from mxpeak.kernels.host.operands import rounded_bf16
from mxpeak.kernels.host.rows import part_of
from mxpeak.kernels.host.triangle import add_four_dots, ask_for_four, dot
from mxpeak.precision import PRECISIONS

#: Columns of four rows that stay in the first cache between two looks at them.
PIECE = 512
#: The significand bits of the format that is rounded to on the way.
BF16 = PRECISIONS["bf16"].p

VECTOR32 = types.float32[::1]
_TWICE = (VECTOR, VECTOR, INT)


@jit(INT, INT, MATRIX, MATRIX, MATRIX, *_TWICE, also=(INT, INT, MATRIX, MATRIX, MATRIX32, *_TWICE))
def add_block_products(tid, threads, Y, Z, A, u, v, nb):
    """y_ki += Σ a_ij u_j and z_ki += Σ a_ij v_j over block k of the columns, a thread some rows."""
    m, n = A.shape
    r0, r1 = part_of(tid, threads, m)
    fours = r0 + (r1 - r0) // 4 * 4
    for i in range(r0, fours, 4):
        ask_for_four(A, i + 4, r1)
        for c0 in range(0, n, nb):
            c1, k = min(c0 + nb, n), c0 // nb
            add_four_dots(Y[k], Z[k], A, i, c0, c1, u[c0:c1], v[c0:c1])
    for i in range(fours, r1):
        for c0 in range(0, n, nb):
            c1, k = min(c0 + nb, n), c0 // nb
            Y[k, i] += dot(row(A, i, c0, c1), u[c0:c1])
            Z[k, i] += dot(row(A, i, c0, c1), v[c0:c1])


@inner(inline=True)
def _as_bf16(x):
    return float_of(np.uint32(np.uint32(rounded_bf16(x)) << np.uint32(16)))


@inner()
def _wide_dot(a, u, rounded, low):
    """Σ a_j u_j in fp64, of the rounded a_j if `low`."""
    total = 0.0
    for j in range(a.shape[0]):
        a_j = a[j]
        if low:
            a_j = _as_bf16(a[j]) if rounded is None else rounded[j]
        total += np.float64(a_j) * u[j]
    return total


@inner(fastmath={"contract", "reassoc"})
def _add_operand_dots(x, y, z, A, i, rows, c0, c1, u, v, w, wide, low):
    """x[i : i+4] += four rows A[i : i+4, c0:c1], rounded, times u; y and z += the same, not rounded, times v, and w.

    low: the rounded rows; None: they are rounded to bf16 here.  Of the four only so many `rows` count.  Sums beyond
    fp32, as of a flipped exponent, are taken anew with u, v and w as they were in fp64: `wide`.
    """
    last = i + rows - 1
    a, b = row(A, i, c0, c1), row(A, min(i + 1, last), c0, c1)
    c, d = row(A, min(i + 2, last), c0, c1), row(A, min(i + 3, last), c0, c1)
    x0, x1, x2, x3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    y0, y1, y2, y3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    z0, z1, z2, z3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    for j in range(a.shape[0]):
        if low is None:
            x0 += _as_bf16(a[j]) * u[j]
            x1 += _as_bf16(b[j]) * u[j]
            x2 += _as_bf16(c[j]) * u[j]
            x3 += _as_bf16(d[j]) * u[j]
        else:
            x0 += low[0, j] * u[j]
            x1 += low[1, j] * u[j]
            x2 += low[2, j] * u[j]
            x3 += low[3, j] * u[j]
        y0 += a[j] * v[j]
        y1 += b[j] * v[j]
        y2 += c[j] * v[j]
        y3 += d[j] * v[j]
        z0 += a[j] * w[j]
        z1 += b[j] * w[j]
        z2 += c[j] * w[j]
        z3 += d[j] * w[j]
    xs, ys, zs = (x0, x1, x2, x3), (y0, y1, y2, y3), (z0, z1, z2, z3)
    for r in range(rows):
        rounded = None if low is None else low[r]
        x[i + r] += xs[r] if np.isfinite(xs[r]) else _wide_dot(row(A, i + r, c0, c1), wide[0], rounded, True)
        y[i + r] += ys[r] if np.isfinite(ys[r]) else _wide_dot(row(A, i + r, c0, c1), wide[1], rounded, False)
        z[i + r] += zs[r] if np.isfinite(zs[r]) else _wide_dot(row(A, i + r, c0, c1), wide[2], rounded, False)


@jit(INT, INT, *(MATRIX,) * 3, MATRIX32, *(VECTOR32,) * 3, MATRIX, INT, *FORMAT, allocates=True, later=True)
def add_operand_products(tid, threads, X, Y, Z, A, u, v, w, wide, nb, p, largest, smallest, beyond):
    """x_ki += Σ ã_ij u_j, ã being a rounded; and y_ki, z_ki by v and w, as `add_block_products` has them.

    The rows of `wide` are u, v and w in fp64.
    """
    m, n = A.shape
    low = np.empty((4, PIECE), np.float32)
    r0, r1 = part_of(tid, threads, m)
    for i in range(r0, r1, 4):
        rows = min(4, r1 - i)
        ask_for_four(A, i + 4, r1)
        for begin in range(0, n, nb):
            k, end = begin // nb, min(begin + nb, n)
            for c0 in range(begin, end, PIECE):
                c1 = min(c0 + PIECE, end)
                vectors = u[c0:c1], v[c0:c1], w[c0:c1], wide[:, c0:c1]
                if p == BF16:
                    _add_operand_dots(X[k], Y[k], Z[k], A, i, rows, c0, c1, *vectors, None)
                else:
                    for r in range(rows):
                        round_row(row(A, i + r, c0, c1), low[r], p, largest, smallest, beyond)
                    _add_operand_dots(X[k], Y[k], Z[k], A, i, rows, c0, c1, *vectors, low)
