"""Multiply and solve with fp32 or fp64 triangles and fp64 vectors. All arithmetic is in fp64."""

from __future__ import annotations

import numpy as np

from mxpeak.kernels.host.engine.jit import FLAG, INT, INTEGERS, MATRIX, MATRIX32, VECTOR, ZERO, inner, jit
from mxpeak.kernels.host.engine.vector_ir import address_of, prefetch_read, row
from mxpeak.kernels.host.lu.row_moves import part_of

#: Rows of at most this number of bytes are prefetched. The processor itself prefetches along a row, but not the next
#: row, which is in another page. A core reads a 10000×10000 fp32 matrix at these rates in GB/s:
#:
#:     rows                   one by one   four at a time   four, with prefetch
#:     512 columns of each    5.0          7.6              9.0
#:     complete                            10.9             10.0
SHORT = 4096
#: Consecutive rows of a triangle per thread. Groups of rows are assigned round-robin because rows differ in length.
TURN = 16

PLAIN, ABSOLUTE, SQUARED = range(3)
FORMS = {"plain": PLAIN, "absolute": ABSOLUTE, "squared": SQUARED}


@inner(fastmath={"contract", "reassoc"})
def dot(a, x):
    """Return the dot product Σ a_j x_j in fp64."""
    total = 0.0
    for j in range(a.shape[0]):
        total += np.float64(a[j]) * x[j]
    return total


@inner(fastmath={"contract", "reassoc"}, inline=True)
def add_four_dots(y, z, A, i, c0, c1, u, v):
    """Add A[i : i+4, c0:c1] u to y[i : i+4] and, unless v is None, A[i : i+4, c0:c1] v to z[i : i+4].

    Four rows at a time keep more memory accesses in flight than one row.
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
def dot_squared(a, x):
    """Return Σ a_j² x_j in fp64."""
    total = 0.0
    for j in range(a.shape[0]):
        value = np.float64(a[j])
        total += value * value * x[j]
    return total


@inner(fastmath={"contract", "reassoc"})
def _dot_absolute(a, x):
    """Return Σ |a_j| x_j in fp64."""
    total = 0.0
    for j in range(a.shape[0]):
        total += abs(np.float64(a[j])) * x[j]
    return total


@inner(fastmath={"contract"})
def add(y, factor, a):
    """Add factor·a to the vector y, in fp64."""
    for j in range(a.shape[0]):
        y[j] += factor * np.float64(a[j])


@jit(MATRIX, VECTOR, FLAG, also=(MATRIX32, VECTOR, FLAG), later=True)
def solve_upper(U, x, transposed):
    """Compute x = U^-1 x, or x = U^-T x if `transposed`, in place.

    The first form is computed by rows from the last. The second form is computed by columns of U^T, which are rows of
    U.
    """
    n = x.shape[0]
    for k in range(n):
        i = k if transposed else n - 1 - k
        right = row(U, i, i + 1, n)
        if transposed:
            x[i] /= np.float64(U[i, i])
            add(x[i + 1 :], -x[i], right)
        else:
            x[i] = (x[i] - dot(right, x[i + 1 :])) / np.float64(U[i, i])


@jit(MATRIX, VECTOR, FLAG, also=(MATRIX32, VECTOR, FLAG), later=True)
def solve_lower(L, x, transposed):
    """Compute x = L^-1 x, or x = L^-T x if `transposed`, in place, where L is unit lower.

    The first form is computed by rows. The second form is computed by columns of L^T from the last.
    """
    n = x.shape[0]
    for k in range(n):
        i = n - 1 - k if transposed else k
        left = row(L, i, 0, i)
        if transposed:
            add(x[:i], -x[i], left)
        else:
            x[i] -= dot(left, x)


@inner()
def prefetch_four(A, i, end):
    """Prefetch rows i to i + 3 of A if rows are short and all four rows are before row `end`."""
    n = A.shape[1]
    if n * A.itemsize <= SHORT and i + 4 <= end:
        for j in range(0, n, 64 // A.itemsize):
            for k in range(4):
                prefetch_read(address_of(A, i + k, j))


@jit(INT, INT, VECTOR, MATRIX, VECTOR, FLAG, also=(INT, INT, VECTOR, MATRIX32, VECTOR, FLAG), later=True)
def add_matvec(tid, threads, y, A, x, transposed):
    """Compute y += A x for this thread's rows of A, or y += A^T x for its columns if `transposed`."""
    m, n = A.shape
    if transposed:
        c0, c1 = part_of(tid, threads, n)
        for i in range(m):
            add(y[c0:c1], x[i], row(A, i, c0, c1))
    else:
        r0, r1 = part_of(tid, threads, m)
        fours = r0 + (r1 - r0) // 4 * 4
        for i in range(r0, fours, 4):
            prefetch_four(A, i + 4, r1)
            add_four_dots(y, None, A, i, ZERO, n, x, None)
        for i in range(fours, r1):
            y[i] += dot(row(A, i, 0, n), x)


@inner()
def _columns_before(ig, nb, q, Q):
    """Return how many global columns before column ig are on process column q of Q, for blocks of nb columns."""
    blocks, ragged = ig // nb, ig % nb
    rounds, extra = blocks // Q, blocks % Q
    return rounds * nb + (nb if q < extra else ragged if q == extra else 0)


_TRIANGLE = VECTOR, INTEGERS, FLAG, INT


@jit(INT, INT, VECTOR, MATRIX, *_TRIANGLE, also=(INT, INT, VECTOR, MATRIX32, *_TRIANGLE), later=True)
def add_triangle_matvec(tid, threads, y, A, x, distribution, lower, form):
    """Compute y += T x, |T| x or (T∘T) x for this thread's rows, depending on `form`.

    T is the part of A strictly below the diagonal if `lower`, otherwise the part on and above the diagonal.
    `distribution` contains NB, p, P of the rows and of the columns.
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
                y[il] += dot_squared(a, x[c0:c1])


@inner()
def _greater(best, value):
    """Return the larger of two values, or NaN if one of them is NaN."""
    return value if value > best or value != value else best


@jit(INT, INT, VECTOR, MATRIX, INTEGERS, also=(INT, INT, VECTOR, MATRIX32, INTEGERS), later=True)
def max_abs_upper(tid, threads, best, A, distribution):
    """Write max |a_ij| over all j >= i in this thread's rows of A to best[tid].

    `distribution` contains NB, p, P of the rows and of the columns, from which the global indices i and j follow.
    """
    nb, p, P = distribution[0], distribution[1], distribution[2]
    cnb, q, Q = distribution[3], distribution[4], distribution[5]
    r0, r1 = part_of(tid, threads, A.shape[0])
    largest = 0.0
    for il in range(r0, r1):
        split = min(_columns_before((il // nb * P + p) * nb + il % nb, cnb, q, Q), A.shape[1])
        for j in range(split, A.shape[1]):
            largest = _greater(largest, abs(np.float64(A[il, j])))
    best[tid] = largest


@jit(INT, INT, MATRIX, VECTOR, also=(INT, INT, MATRIX32, VECTOR), later=True)
def row_max(tid, threads, A, by_row):
    """Compute by_row_i = max_j |a_ij| for this thread's rows of A."""
    r0, r1 = part_of(tid, threads, A.shape[0])
    for i in range(r0, r1):
        a, largest = row(A, i, 0, A.shape[1]), 0.0
        for j in range(a.shape[0]):
            largest = _greater(largest, abs(np.float64(a[j])))
        by_row[i] = largest


@jit(INT, INT, MATRIX, VECTOR, also=(INT, INT, MATRIX32, VECTOR), later=True)
def column_max(tid, threads, A, by_column):
    """Compute by_column_j = max_i |a_ij| for this thread's columns of A."""
    c0, c1 = part_of(tid, threads, A.shape[1])
    by_column[c0:c1] = 0.0
    for i in range(A.shape[0]):
        a = row(A, i, c0, c1)
        for j in range(a.shape[0]):
            by_column[c0 + j] = _greater(by_column[c0 + j], abs(np.float64(a[j])))


@jit(INT, INT, MATRIX, VECTOR, VECTOR, also=(INT, INT, MATRIX32, VECTOR, VECTOR), later=True)
def scale_rows_columns(tid, threads, A, by_row, by_column):
    """Compute a_ij = by_row_i · a_ij · by_column_j in place, for this thread's rows of A."""
    r0, r1 = part_of(tid, threads, A.shape[0])
    for i in range(r0, r1):
        a = row(A, i, 0, A.shape[1])
        for j in range(a.shape[0]):
            a[j] = np.float64(a[j]) * by_row[i] * by_column[j]


@jit(INT, INT, MATRIX, MATRIX, VECTOR, VECTOR, also=(INT, INT, MATRIX32, MATRIX32, VECTOR, VECTOR), later=True)
def combine_rows(tid, threads, X, Y, r, s):
    """Compute x_ij, y_ij = r_i·(x_ij + y_ij), s_i·(x_ij - y_ij) in place, for this thread's columns."""
    c0, c1 = part_of(tid, threads, X.shape[1])
    for i in range(X.shape[0]):
        x, y = row(X, i, c0, c1), row(Y, i, c0, c1)
        for j in range(x.shape[0]):
            a, b = np.float64(x[j]), np.float64(y[j])
            x[j], y[j] = r[i] * (a + b), s[i] * (a - b)


@jit(INT, INT, MATRIX, MATRIX, VECTOR, VECTOR, also=(INT, INT, MATRIX32, MATRIX32, VECTOR, VECTOR), later=True)
def combine_columns(tid, threads, X, Y, r, s):
    """Compute x_ij, y_ij = r_j·(x_ij + y_ij), s_j·(x_ij - y_ij) in place, for this thread's rows."""
    r0, r1 = part_of(tid, threads, X.shape[0])
    for i in range(r0, r1):
        x, y = row(X, i, 0, X.shape[1]), row(Y, i, 0, X.shape[1])
        for j in range(x.shape[0]):
            a, b = np.float64(x[j]), np.float64(y[j])
            x[j], y[j] = r[j] * (a + b), s[j] * (a - b)


@inner(fastmath={"contract", "reassoc"})
def _abs_sum(a):
    """Return Σ |a_i|. Reassociation lets the loop vectorize, and the error bound n·u still holds."""
    total = 0.0
    for i in range(a.shape[0]):
        total += abs(a[i])
    return total


@jit(INT, INT, MATRIX, VECTOR, MATRIX, also=(INT, INT, MATRIX32, VECTOR, MATRIX), later=True)
def abs_sums(tid, threads, A, by_row, by_column):
    """Compute the row sums by_row[i] = Σ_j |a_ij| and the column sums by_column[tid, j] = Σ_i |a_ij|.

    Both are computed over the rows of thread `tid`.
    """
    m, n = A.shape
    own = row(by_column, tid, 0, n)
    for j in range(n):
        own[j] = 0.0
    for i in range(m * tid // threads, m * (tid + 1) // threads):
        a = row(A, i, 0, n)
        by_row[i] = _abs_sum(a)
        for j in range(n):
            own[j] += abs(a[j])
