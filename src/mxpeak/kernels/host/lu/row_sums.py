"""Compute several weighted sums of every row in one pass over a matrix, for the checksums of an LU.

Entries are converted to fp64 as they are read, or first rounded to the precision of the update's operands.
"""

from __future__ import annotations

import numpy as np
from numba import types

from mxpeak.kernels.host.engine.jit import INT, MATRIX, MATRIX32, ONE, VECTOR, ZERO, by_type, inner, jit
from mxpeak.kernels.host.engine.vector_ir import float_of, row
from mxpeak.kernels.host.lu.cast import FORMAT, round_row
from mxpeak.kernels.host.lu.operands import rounded_bf16
from mxpeak.kernels.host.lu.row_moves import part_of
from mxpeak.kernels.host.lu.triangle import add_four_dots, dot, prefetch_four
from mxpeak.precision import PRECISIONS

#: Columns that are summed at a time: four vectors of this length in fp32 take 32 KiB. With 512 columns, rows of 20 KB
#: from memory took 10 % longer (Emerald Rapids, 48 KiB of first-level cache).
PIECE = 2048
#: The part of a matrix that is summed: all of it, or a triangle, with the diagonal block as the last (LOWER) or first
#: (UPPER) columns.
ALL, LOWER, UPPER = range(3)
PARTS = {"all": ALL, "lower": LOWER, "upper": UPPER}
#: The significand bits of the format to which entries are rounded as they are read.
BF16 = PRECISIONS["bf16"].p

_VECTORS32 = types.float32[:, ::1]
_TWICE = (VECTOR, VECTOR)


@jit(INT, INT, *_TWICE, MATRIX, *_TWICE, also=(INT, INT, *_TWICE, MATRIX32, *_TWICE), later=True)
def add_two_matvecs(tid, threads, y, z, A, u, v):
    """Compute y += A u and z += A v for this thread's rows of A, in one pass over A."""
    m, n = A.shape
    r0, r1 = part_of(tid, threads, m)
    fours = r0 + (r1 - r0) // 4 * 4
    for i in range(r0, fours, 4):
        prefetch_four(A, i + 4, r1)
        add_four_dots(y, z, A, i, ZERO, n, u, v)
    for i in range(fours, r1):
        y[i] += dot(row(A, i, 0, n), u)
        z[i] += dot(row(A, i, 0, n), v)


@inner()
def _four_rows(A, i, rows, c0, c1):
    """Return columns c0:c1 of four rows that start with row i, as four vectors.

    If fewer than four rows remain, the last row is repeated.
    """
    last = i + rows - 1
    second, third, fourth = min(i + 1, last), min(i + 2, last), min(i + 3, last)
    return row(A, i, c0, c1), row(A, second, c0, c1), row(A, third, c0, c1), row(A, fourth, c0, c1)


@inner(fastmath={"contract", "reassoc"})
def _add_stored(sums, A, i, rows, c0, c1, u, w, q):
    """Compute a u, a w and a² q for each row a of A[i : i+rows, c0:c1] in fp64, and add these numbers to `sums`.

    There are at most four rows. a² contains the squares of the entries.
    """
    a, b, c, d = _four_rows(A, i, rows, c0, c1)
    x0, x1, x2, x3 = 0.0, 0.0, 0.0, 0.0
    y0, y1, y2, y3 = 0.0, 0.0, 0.0, 0.0
    s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
    for j in range(a.shape[0]):
        a_j, b_j, c_j, d_j = np.float64(a[j]), np.float64(b[j]), np.float64(c[j]), np.float64(d[j])
        x0 += a_j * u[j]
        x1 += b_j * u[j]
        x2 += c_j * u[j]
        x3 += d_j * u[j]
        y0 += a_j * w[j]
        y1 += b_j * w[j]
        y2 += c_j * w[j]
        y3 += d_j * w[j]
        s0 += a_j * a_j * q[j]
        s1 += b_j * b_j * q[j]
        s2 += c_j * c_j * q[j]
        s3 += d_j * d_j * q[j]
    xs, ys, squares = (x0, x1, x2, x3), (y0, y1, y2, y3), (s0, s1, s2, s3)
    for r in range(rows):
        sums[0, i + r] += xs[r]
        sums[1, i + r] += ys[r]
        sums[2, i + r] += squares[r]


@inner(inline=True)
def _as_bf16(x):
    """Round an fp32 number to bf16, and return it as fp32."""
    return float_of(np.uint32(np.uint32(rounded_bf16(x)) << np.uint32(16)))


@inner()
def _wide_sums(a, low, vectors):
    """Return the three weighted sums of row `a` in fp64: those of a or `low`, of a, and of the squares of a.

    `low` is the rounded row, or None to round the row to bf16 here. `vectors` contains the weights.
    """
    x, y, s = 0.0, 0.0, 0.0
    single = len(vectors) == 1
    for j in range(a.shape[0]):
        a_j, low_j = np.float64(a[j]), np.float64(_as_bf16(a[j]) if low is None else low[j])
        u = vectors[0, j]
        if u != 0.0:  # a number beyond the range of the format may have become infinite
            x += low_j * u
        if single:
            y += a_j * u
            s += a_j * a_j
        else:
            x += a_j * vectors[1, j]
            y += a_j * vectors[2, j]
            s += a_j * a_j * vectors[3, j]
    return x, y, s


@inner()
def _add_up(sums, A, i, rows, c0, c1, partial, wide, low):
    """Add the partial sums of up to four rows to `sums`.

    Sums beyond the range of fp32, for example after a bit flip, are recomputed in fp64.
    """
    xs, ys, squares = partial
    for r in range(rows):
        x, y, s = np.float64(xs[r]), np.float64(ys[r]), np.float64(squares[r])
        if not (np.isfinite(x) and np.isfinite(y) and np.isfinite(s)):
            x, y, s = _wide_sums(row(A, i + r, c0, c1), None if low is None else low[r], wide[:, c0:c1])
        sums[0, i + r] += x
        sums[1, i + r] += y
        sums[2, i + r] += s


@inner(fastmath={"contract", "reassoc"})
def _add_rounded(sums, A, i, rows, c0, c1, weights, low, only):
    """Compute ã u + a v, a w and a² q for each row a of A[i : i+rows, c0:c1] in fp32, and add them to `sums`.

    There are at most four rows; ã is the row a, rounded.

    weights   the vectors u, v, w and q in fp32 and in fp64; if `only` is given, w alone, with u = w, v = 0 and q = 1
    low       the rounded rows, or None to round them to bf16 here
    """
    vectors, wide = weights
    a, b, c, d = _four_rows(A, i, rows, c0, c1)
    if only is None:
        u, v, w, q = row(vectors, 0, c0, c1), row(vectors, 1, c0, c1), row(vectors, 2, c0, c1), row(vectors, 3, c0, c1)
    else:
        u = w = row(vectors, 0, c0, c1)
    x0, x1, x2, x3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    y0, y1, y2, y3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    s0, s1, s2, s3 = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
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
        if only is None:
            x0 += a[j] * v[j]
            x1 += b[j] * v[j]
            x2 += c[j] * v[j]
            x3 += d[j] * v[j]
        y0 += a[j] * w[j]
        y1 += b[j] * w[j]
        y2 += c[j] * w[j]
        y3 += d[j] * w[j]
        if only is None:
            s0 += a[j] * a[j] * q[j]
            s1 += b[j] * b[j] * q[j]
            s2 += c[j] * c[j] * q[j]
            s3 += d[j] * d[j] * q[j]
        else:
            s0 += a[j] * a[j]
            s1 += b[j] * b[j]
            s2 += c[j] * c[j]
            s3 += d[j] * d[j]
    partial = (x0, x1, x2, x3), (y0, y1, y2, y3), (s0, s1, s2, s3)
    _add_up(sums, A, i, rows, c0, c1, partial, wide, low)


@by_type
def _add_columns(sums, A, i, rows, c0, c1, how):
    """Add the weighted sums of columns c0:c1 of up to four rows, which start with row i, to `sums`.

    For sums of stored entries, `how` is (vectors,) with the rows u, w and q. For sums of rounded entries, `how` is
    (vectors in fp32, vectors in fp64, workspace for four rows, format).
    """

    def stored(sums, A, i, rows, c0, c1, how):
        vectors = how[0]
        for first in range(c0, c1, PIECE):
            last = min(first + PIECE, c1)
            u, w, q = row(vectors, 0, first, last), row(vectors, 1, first, last), row(vectors, 2, first, last)
            _add_stored(sums, A, i, rows, first, last, u, w, q)

    def rounded(sums, A, i, rows, c0, c1, how):
        vectors, wide, low, to = how
        for first in range(c0, c1, PIECE):
            last = min(first + PIECE, c1)
            if len(vectors) == 1:
                _add_rounded(sums, A, i, rows, first, last, (vectors, wide), None, ONE)
            elif to.p == BF16:
                _add_rounded(sums, A, i, rows, first, last, (vectors, wide), None, None)
            else:
                for r in range(rows):
                    round_row(row(A, i + r, first, last), low[r], to)
                _add_rounded(sums, A, i, rows, first, last, (vectors, wide), low, None)

    return stored if len(how) == 1 else rounded


@inner()
def _add_rows(tid, threads, sums, A, part, how):
    """Add the weighted sums of this thread's rows of A to `sums`, four rows at a time.

    If the edge of a triangle cuts four rows, the columns at the edge are summed row by row. Each thread adds a range
    of rows. For a triangle, a thread adds every threads-th group of four rows, because rows differ in length.
    """
    m, n = A.shape
    r0, r1 = part_of(tid, threads, m) if part == ALL else (4 * tid, m)
    turn = 4 if part == ALL else 4 * threads
    for i in range(r0, r1, turn):
        last = min(i + 4, r1) - 1
        prefetch_four(A, i + turn, r1)
        if part == UPPER:
            block_sums = sums[3:]
            for r in range(i, last):
                _add_columns(block_sums, A, r, ONE, r, last, how)
            _add_columns(block_sums, A, i, last - i + 1, last, m, how)
        c0, c1 = m if part == UPPER else ZERO, n - m + i if part == LOWER else n
        _add_columns(sums, A, i, last - i + 1, c0, c1, how)
        if part == LOWER:
            for r in range(i + 1, last + 1):
                _add_columns(sums, A, r, ONE, c1, c1 + r - i, how)


@jit(INT, INT, MATRIX, MATRIX, MATRIX, INT, also=(INT, INT, MATRIX, MATRIX32, MATRIX, INT), later=True)
def add_stored_sums(tid, threads, sums, A, vectors, part):
    """Add A u, A w and (A∘A) q to the rows of `sums`, for this thread's rows of A.

    u, w and q are the rows of `vectors`. `part` selects all of A or a triangle.
    """
    _add_rows(tid, threads, sums, A, part, (vectors,))


@jit(INT, INT, MATRIX, MATRIX32, _VECTORS32, MATRIX, FORMAT, INT, allocates=True, later=True)
def add_rounded_sums(tid, threads, sums, A, vectors, wide, to, part):
    """Add Ã u + A v, A w and (A∘A) q to the rows of `sums`, where Ã is A rounded to the format `to`.

    u, v, w and q are rows of `vectors` in fp32 and of `wide` in fp64. For bf16, `vectors` may have a single row w: the
    four vectors are then w, 0, w and 1. Each thread adds the sums of its rows of A.
    """
    low = np.empty((4, PIECE), np.float32)
    _add_rows(tid, threads, sums, A, part, (vectors, wide, low, to))
