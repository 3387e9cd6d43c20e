"""Triangles of FP32 (or FP64) matrices applied to FP64 vectors, in FP64: each entry is widened as it is read."""

from __future__ import annotations

import numpy as np

from mxpeak.kernels.host.engine.jit import FLAG, INT, INTEGERS, MATRIX, MATRIX32, VECTOR, ZERO, inner, jit
from mxpeak.kernels.host.engine.vector_ir import address_of, prefetch_read, row
from mxpeak.kernels.host.lu.row_moves import part_of

#: Rows up to so many bytes are asked for before their turn: the processor itself goes on along a row, but not to the
#: next one, a page further.  10000×512 of a 10000×10000 matrix in fp32: 5.0 GB/s a core row by row, 7.6 four rows at a
#: time, 9.0 when the next four are asked for as well; whole rows four at a time 10.9, and 10.0 when asked for.
SHORT = 4096
#: Rows of a triangle that a thread takes at a time: they differ in length, so all threads take some everywhere.
TURN = 16

PLAIN, ABSOLUTE, SQUARED = range(3)
FORMS = {"plain": PLAIN, "absolute": ABSOLUTE, "squared": SQUARED}


@inner(fastmath={"contract", "reassoc"})
def dot(a, x):
    """Σ a_j x_j in fp64."""
    total = 0.0
    for j in range(a.shape[0]):
        total += np.float64(a[j]) * x[j]
    return total


@inner(fastmath={"contract", "reassoc"}, inline=True)
def add_four_dots(y, z, A, i, c0, c1, u, v):
    """y[i : i+4] += four rows A[i : i+4, c0:c1] times u, and z[i : i+4] += the same times v, unless that is None.

    More rows than one are on their way from memory.
    """
    a, b, c, d = row(A, i, c0, c1), row(A, i + 1, c0, c1), row(A, i + 2, c0, c1), row(A, i + 3, c0, c1)
    s, t, p, q = 0.0, 0.0, 0.0, 0.0
    e, f, g, h = 0.0, 0.0, 0.0, 0.0
    for j in range(a.shape[0]):
        s += np.float64(a[j]) * u[j]
        t += np.float64(b[j]) * u[j]
        p += np.float64(c[j]) * u[j]
        q += np.float64(d[j]) * u[j]
        if v is not None:
            e += np.float64(a[j]) * v[j]
            f += np.float64(b[j]) * v[j]
            g += np.float64(c[j]) * v[j]
            h += np.float64(d[j]) * v[j]
    y[i] += s
    y[i + 1] += t
    y[i + 2] += p
    y[i + 3] += q
    if v is not None:
        z[i] += e
        z[i + 1] += f
        z[i + 2] += g
        z[i + 3] += h


@inner(fastmath={"contract", "reassoc"})
def _dot_squared(a, x):
    total = 0.0
    for j in range(a.shape[0]):
        value = np.float64(a[j])
        total += value * value * x[j]
    return total


@inner(fastmath={"contract", "reassoc"})
def _dot_absolute(a, x):
    total = 0.0
    for j in range(a.shape[0]):
        total += abs(np.float64(a[j])) * x[j]
    return total


@inner(fastmath={"contract"})
def _add(y, factor, a):
    for j in range(a.shape[0]):
        y[j] += factor * np.float64(a[j])


@jit(MATRIX, VECTOR, FLAG, also=(MATRIX32, VECTOR, FLAG))
def solve_upper(U, x, transposed):
    """x = U^-1 x, by rows from the last; or x = U^-T x, by columns of U^T, which are rows of U."""
    n = x.shape[0]
    for k in range(n):
        i = k if transposed else n - 1 - k
        right = row(U, i, i + 1, n)
        if transposed:
            x[i] /= np.float64(U[i, i])
            _add(x[i + 1 :], -x[i], right)
        else:
            x[i] = (x[i] - dot(right, x[i + 1 :])) / np.float64(U[i, i])


@jit(MATRIX, VECTOR, FLAG, also=(MATRIX32, VECTOR, FLAG))
def solve_lower(L, x, transposed):
    """x = L^-1 x with L's unit lower triangle, by rows; or x = L^-T x, by columns of L^T from the last."""
    n = x.shape[0]
    for k in range(n):
        i = n - 1 - k if transposed else k
        left = row(L, i, 0, i)
        if transposed:
            _add(x[:i], -x[i], left)
        else:
            x[i] -= dot(left, x)


@inner()
def ask_for_four(A, i, end):
    """Have four rows from i on come from memory, where rows are short and there are four before the end."""
    n = A.shape[1]
    if n * A.itemsize <= SHORT and i + 4 <= end:
        for j in range(0, n, 64 // A.itemsize):
            for k in range(4):
                prefetch_read(address_of(A, i + k, j))


@jit(INT, INT, VECTOR, MATRIX, VECTOR, FLAG, also=(INT, INT, VECTOR, MATRIX32, VECTOR, FLAG))
def add_matvec(tid, threads, y, A, x, transposed):
    """y += A x, a thread some rows; or y += A^T x, a thread some columns of A."""
    m, n = A.shape
    if transposed:
        c0, c1 = part_of(tid, threads, n)
        for i in range(m):
            _add(y[c0:c1], x[i], row(A, i, c0, c1))
    else:
        r0, r1 = part_of(tid, threads, m)
        fours = r0 + (r1 - r0) // 4 * 4
        for i in range(r0, fours, 4):
            ask_for_four(A, i + 4, r1)
            add_four_dots(y, None, A, i, ZERO, n, x, None)
        for i in range(fours, r1):
            y[i] += dot(row(A, i, 0, n), x)


@inner()
def _columns_before(ig, nb, q, Q):
    """How many of the global columns before ig process column q owns."""
    blocks, ragged = ig // nb, ig % nb
    rounds, extra = blocks // Q, blocks % Q
    return rounds * nb + (nb if q < extra else ragged if q == extra else 0)


@jit(
    INT,
    INT,
    VECTOR,
    MATRIX,
    VECTOR,
    INTEGERS,
    FLAG,
    INT,
    also=(INT, INT, VECTOR, MATRIX32, VECTOR, INTEGERS, FLAG, INT),
)
def add_triangle_matvec(tid, threads, y, A, x, distribution, lower, form):
    """y += T x, |T| x or (T∘T) x, T the part of A strictly below the diagonal, or the part from it on.

    distribution: NB, p, P of the rows, and of the columns
    """
    nb, p, P = distribution[0], distribution[1], distribution[2]
    cnb, q, Q = distribution[3], distribution[4], distribution[5]
    m = A.shape[0]
    for first in range(tid * TURN, m, threads * TURN):
        for il in range(first, min(first + TURN, m)):
            split = min(_columns_before((il // nb * P + p) * nb + il % nb, cnb, q, Q), A.shape[1])
            c0, c1 = (0, split) if lower else (split, A.shape[1])
            a = row(A, il, c0, c1)
            if form == PLAIN:
                y[il] += dot(a, x[c0:c1])
            elif form == ABSOLUTE:
                y[il] += _dot_absolute(a, x[c0:c1])
            else:
                y[il] += _dot_squared(a, x[c0:c1])


@inner()
def _greater(best, value):
    """The greater of both, NaN if one of them is."""
    return value if value > best or value != value else best


@jit(INT, INT, VECTOR, MATRIX, INTEGERS, also=(INT, INT, VECTOR, MATRIX32, INTEGERS))
def max_abs_upper(tid, threads, best, A, distribution):
    """best[tid] = max |a_ij| over j >= i in this thread's rows."""
    nb, p, P = distribution[0], distribution[1], distribution[2]
    cnb, q, Q = distribution[3], distribution[4], distribution[5]
    r0, r1 = part_of(tid, threads, A.shape[0])
    found = 0.0
    for il in range(r0, r1):
        split = min(_columns_before((il // nb * P + p) * nb + il % nb, cnb, q, Q), A.shape[1])
        for j in range(split, A.shape[1]):
            found = _greater(found, abs(np.float64(A[il, j])))
    best[tid] = found


@jit(INT, INT, MATRIX, VECTOR, also=(INT, INT, MATRIX32, VECTOR))
def row_max(tid, threads, A, by_row):
    """by_row_i = max_j |a_ij|."""
    r0, r1 = part_of(tid, threads, A.shape[0])
    for i in range(r0, r1):
        a, found = row(A, i, 0, A.shape[1]), 0.0
        for j in range(a.shape[0]):
            found = _greater(found, abs(np.float64(a[j])))
        by_row[i] = found


@jit(INT, INT, MATRIX, VECTOR, also=(INT, INT, MATRIX32, VECTOR))
def column_max(tid, threads, A, by_column):
    """by_column_j = max_i |a_ij|, a thread some columns."""
    c0, c1 = part_of(tid, threads, A.shape[1])
    by_column[c0:c1] = 0.0
    for i in range(A.shape[0]):
        a = row(A, i, c0, c1)
        for j in range(a.shape[0]):
            by_column[c0 + j] = _greater(by_column[c0 + j], abs(np.float64(a[j])))


@jit(INT, INT, MATRIX, VECTOR, VECTOR, also=(INT, INT, MATRIX32, VECTOR, VECTOR))
def scale_rows_columns(tid, threads, A, by_row, by_column):
    """a_ij = by_row_i · a_ij · by_column_j."""
    r0, r1 = part_of(tid, threads, A.shape[0])
    for i in range(r0, r1):
        a = row(A, i, 0, A.shape[1])
        for j in range(a.shape[0]):
            a[j] = np.float64(a[j]) * by_row[i] * by_column[j]


@inner(fastmath={"contract", "reassoc"})
def _abs_sum(a):
    """Σ |a_i|; reassociation lets it vectorize, and only tightens the bound n·u."""
    total = 0.0
    for i in range(a.shape[0]):
        total += abs(a[i])
    return total


@jit(INT, INT, MATRIX, VECTOR, MATRIX, also=(INT, INT, MATRIX32, VECTOR, MATRIX))
def abs_sums(tid, threads, A, by_row, by_column):
    """by_row[i] = Σ_j |a_ij|, and by_column[tid, j] the part of Σ_i |a_ij| that thread tid's rows make."""
    m, n = A.shape
    mine = row(by_column, tid, 0, n)
    for j in range(n):
        mine[j] = 0.0
    for i in range(m * tid // threads, m * (tid + 1) // threads):
        a = row(A, i, 0, n)
        by_row[i] = _abs_sum(a)
        for j in range(n):
            mine[j] += abs(a[j])
