"""A X = B of small order on one core, and a check of X: Gaussian elimination with partial pivoting of [A B] by rows.

    P [A B] = L [U L^-1 P B],    X = U^-1 (L^-1 P B)

BLAS's LU of order 100 runs at a tenth of its products: it calls them for blocks of which most of the time goes to
calling and packing.  Here panels of eight columns, a cache line a row, are eliminated line by line, and the rows below
take eight products at once, B's columns like A's.  A is brought to a multiple of eight by rows of the unit matrix.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import from_dtype, types

from mxpeak.kernels.host.elimination_native import (
    LINE,
    RANK,
    VECTOR,
    eliminate_lines,
    place_of_largest,
    solve_lower,
    solve_upper,
    subtract_products,
)
from mxpeak.kernels.host.jit import FLAG, ONE, ZERO, forms, inner, jit
from mxpeak.kernels.host.native import address_of, piece, row

#: What `solve` tells, before its room for sizes: see there.
TOLD = 12
#: Entries of one side of a tile that is transposed.
TILE = 8


def padded(n: int, sides: int) -> tuple[int, int]:
    """The rows and columns of [A B] as it is worked on: multiples of eight."""
    rows = -(-n // RANK) * RANK
    return rows, rows + -(-sides // RANK) * RANK


def room(n: int, sides: int, each: int) -> int:
    """Entries of the memory that `solve` works on, up to `each` sides with a residual each."""
    rows, columns = padded(n, sides)
    return rows * columns + LINE + 2 * n * min(sides, each) + rows


def facts_of(n: int, sides: int) -> int:
    """What `solve` tells, and sizes that it works on, in fp64."""
    return TOLD + 2 * max(n, sides)


def _size(z):
    """|z|, of a complex number |Re z| + |Im z|: by this pivots are chosen, as in LAPACK."""


def _length(z):
    """|z| in fp64, 0 or inf where squares leave the range: as no entry does by which a balanced matrix is judged."""


def _modulus(z):
    """|z| in fp64, sqrt(a² + b²) without squares that leave the range."""


@forms(_size)
def _size_of(z):
    return (lambda z: abs(z.real) + abs(z.imag)) if isinstance(z, types.Complex) else (lambda z: abs(z))


@forms(_length)
def _length_of(z):
    def of_complex(z):
        a, b = np.float64(z.real), np.float64(z.imag)
        return np.sqrt(a * a + b * b)

    return of_complex if isinstance(z, types.Complex) else lambda z: np.float64(abs(z))


@forms(_modulus)
def _modulus_of(z):
    def of_wide(z):
        a, b = np.float64(abs(z.real)), np.float64(abs(z.imag))
        least, most = (a, b) if a < b else (b, a)
        ratio = least / (most if most > 0 else 1.0)
        return most * np.sqrt(1.0 + ratio * ratio)

    return of_wide if z == types.complex128 else lambda z: _length(z)  # fp64 holds the squares of others


@inner()
def _swap(W, i, j, begin, end):
    a, b = row(W, i, begin, end), row(W, j, begin, end)
    for c in range(end - begin):
        a[c], b[c] = b[c], a[c]


@inner()
def _panel(W, n, c0, columns, pivots, inverses):
    """L and U of columns c0 to c0 + 7, rows swapped in so many columns; whether no pivot is zero."""
    for c in range(c0, min(c0 + RANK, n)):
        pivot = c + place_of_largest(W, address_of(W, c, c), W.strides[0], n - c)
        if not _size(W[pivot, c]) > 0:
            return False
        pivots[c] = pivot
        if pivot != c:
            _swap(W, c, pivot, 0, columns)
        reciprocal, top = 1 / W[c, c], address_of(W, c, c0)
        inverses[c] = reciprocal
        eliminate_lines(W, address_of(W, c + 1, c0), W.strides[0], n - c - 1, top, c - c0, reciprocal)
    return True


@inner()
def _update(W, first, end, c0, begin, stop):
    """Rows first to end -= their entries of columns c0 to c0 + 7, times rows c0 to c0 + 7; from `begin` to `stop`."""
    u, step, count = address_of(W, c0, begin), W.strides[0], stop - begin
    for i in range(first, end, 2):
        k = min(i + 1, end - 1)
        rows = address_of(W, i, begin), address_of(W, k, begin)
        subtract_products(W, rows, (address_of(W, i, c0), address_of(W, k, c0)), u, step, count)


@inner()
def _lower(W, n, c0, begin, stop):
    """Rows from c0 on, columns `begin` to `stop`, as L's columns c0 to c0 + 7 leave them."""
    triangle, rows = address_of(W, c0, c0), address_of(W, c0, begin)
    solve_lower(W, triangle, ZERO, rows, W.strides[0], stop - begin)
    _update(W, c0 + RANK, n, c0, begin, stop)


@inner()
def _eliminate(W, n, columns, pivots, inverses):
    """[A B] becomes L without its diagonal, U, and L^-1 P B; inverses_c = 1 / u_cc; whether no pivot is zero."""
    for c0 in range(0, n, RANK):
        if not _panel(W, n, c0, columns, pivots, inverses):
            return False
        _lower(W, n, c0, c0 + RANK, columns)
    return True


@inner()
def _substitute(W, columns, inverses):
    """The columns right of U become U^-1 times themselves."""
    m = len(W)
    for c0 in range(m - RANK, -1, -RANK):
        diagonal = inverses.ctypes.data + c0 * inverses.itemsize
        solve_upper(W, address_of(W, c0, c0), diagonal, address_of(W, c0, m), W.strides[0], columns - m)
        _update(W, 0, c0, c0, m, columns)


@inner()
def _solve_again(W, n, columns, pivots, inverses):
    """The columns right of U become A^-1 times themselves, by the factors."""
    m = len(W)
    for c in range(n):
        _swap(W, c, pivots[c], m, columns)
    for c0 in range(0, n, RANK):
        _lower(W, n, c0, m, columns)
    _substitute(W, columns, inverses)


@inner()
def _wider(low, high, value):
    """The least and the largest with one more number; inf for NaN."""
    if not value <= high:
        high = value if value == value else np.inf
    return min(low, value), high


@inner(fastmath={"reassoc", "contract"})
def _sums_of_four(a, b, c, d, down, largest):
    """Sums of four rows' sizes; what they add to those down the columns and to the largest of these."""
    s0 = s1 = s2 = s3 = 0.0
    for j in range(len(a)):
        x0, x1, x2, x3 = _length(a[j]), _length(b[j]), _length(c[j]), _length(d[j])
        s0 += x0
        s1 += x1
        s2 += x2
        s3 += x3
        down[j] += (x0 + x1) + (x2 + x3)
        y0, y1 = x0 if x0 > x1 else x1, x2 if x2 > x3 else x3
        y0 = y0 if y0 > y1 else y1
        largest[j] = y0 if y0 > largest[j] else largest[j]
    return s0, s1, s2, s3


@inner()
def _sums(R, down, largest):
    """Least and largest Σ_j |r_ij|; down_j = Σ_i |r_ij|, largest_j = max_i |r_ij|.

    Four rows go together, so that what goes down the columns is loaded and stored once for them.
    """
    n = len(R)
    low, high = np.inf, 0.0
    for j in range(n):
        down[j] = largest[j] = 0.0
    whole = n - n % 4
    for i in range(0, whole, 4):
        a, b, c, d = row(R, i, 0, n), row(R, i + 1, 0, n), row(R, i + 2, 0, n), row(R, i + 3, 0, n)
        for total in _sums_of_four(a, b, c, d, down, largest):
            low, high = _wider(low, high, total)
    for i in range(whole, n):
        r, total = row(R, i, 0, n), 0.0
        for j in range(n):
            size = _length(r[j])
            total += size
            down[j] += size
            largest[j] = size if size > largest[j] else largest[j]
        low, high = _wider(low, high, total)
    return low, high


@inner()
def _ends(x):
    """The least and the largest of numbers not below zero, inf where one is NaN."""
    low, high = np.inf, 0.0
    for i in range(len(x)):
        low, high = _wider(low, high, x[i])
    return low, high


@inner()
def _fill(W, by_columns, R, B, s):
    """W = [A B s], bordered by the unit matrix and by zeros."""
    n, k = B.shape
    m, columns = W.shape
    for i in range(m):
        w = row(W, i, n if i < n else 0, columns)
        for j in range(len(w)):
            w[j] = 0
        if i >= n:
            w[i] = 1
            continue
        for j in range(k):
            W[i, m + j] = B[i, j]
        W[i, m + k] = s[i]
        if not by_columns:
            to, a = row(W, i, 0, n), row(R, i, 0, n)
            for j in range(n):
                to[j] = a[j]
    if by_columns:
        for i0 in range(0, n, TILE):
            for j in range(n):
                for i in range(i0, min(i0 + TILE, n)):
                    W[i, j] = R[j, i]


@inner(fastmath={"contract", "reassoc"})
def _dot(a, x):
    total = a[0] * x[0]
    for j in range(1, len(a)):
        total += a[j] * x[j]
    return total


@inner(fastmath={"contract", "reassoc"})
def _four_dots(r, a, b, c, d):
    s0 = s1 = s2 = s3 = r[0] * 0
    for j in range(len(r)):
        s0 += r[j] * a[j]
        s1 += r[j] * b[j]
        s2 += r[j] * c[j]
        s3 += r[j] * d[j]
    return s0, s1, s2, s3


@inner(fastmath={"contract"})
def _subtract(y, a, x):
    """y -= a x."""
    for j in range(len(a)):
        y[j] -= a[j] * x


@inner()
def _times(by_columns, R, x, y, count):
    """y -= A x for so many vectors, one behind the other; each row of R is read once."""
    n = len(R)
    for i in range(n):
        r = row(R, i, 0, n)
        together = 0 if by_columns else count // 4 * 4
        for k in range(0, together, 4):
            at = k * n, (k + 1) * n, (k + 2) * n, (k + 3) * n
            found = _four_dots(r, piece(x, at[0], n), piece(x, at[1], n), piece(x, at[2], n), piece(x, at[3], n))
            for q in range(4):
                y[at[q] + i] -= found[q]
        for k in range(together, count):
            if by_columns:
                _subtract(piece(y, k * n, n), r, x[k * n + i])
            else:
                y[k * n + i] -= _dot(r, piece(x, k * n, n))


@inner()
def _largest(x):
    """max |x_i|, inf where one is NaN."""
    found = 0.0
    for i in range(len(x)):
        size = _modulus(x[i])
        if not size <= found:
            found = size if size == size else np.inf
    return found


@inner()
def _over(r_inf, A_inf, scale):
    """r_inf / (A_inf·scale) without overflow; r_inf itself for a system of zeros."""
    return r_inf / A_inf / scale if scale else r_inf


@inner()
def _residual_of_each(by_columns, R, A_inf, X, B, of_x, of_b, x, r, W):
    """The worst ||b - A x|| / (||A||·||x|| + ||b||); the residuals go to W's columns right of U."""
    worst, m = 0.0, len(W)
    n, k = X.shape
    for i in range(n):
        for j in range(k):
            x[j * n + i], r[j * n + i] = X[i, j], B[i, j]
    _times(by_columns, R, x, r, k)
    for j in range(k):
        for i in range(n):
            W[i, m + j] = r[j * n + i]
        worst = max(worst, _over(_largest(piece(r, j * n, n)), A_inf, of_x[j] + of_b[j] / A_inf))
    return worst


@inner(fastmath={"contract", "reassoc"})
def _combined(v, weights):
    """Σ_j v_j w_j, w real."""
    total = 0.0 * v[0]
    for j in range(len(v)):
        total += v[j] * weights[j]
    return total


@inner()
def _residual_of_all(by_columns, R, A_inf, X, B, of_x, of_b, t, x, r):
    """The same of a combination of the columns by t, each over its own scale."""
    k = X.shape[1]
    for j in range(k):
        scale = of_x[j] + of_b[j] / A_inf
        of_x[j] = t[j].real / scale if scale > 0 else 0.0
    for i in range(len(X)):
        x[i], r[i] = _combined(row(X, i, 0, k), of_x), _combined(row(B, i, 0, k), of_x)
    _times(by_columns, R, x, r, ONE)
    return _over(_largest(piece(r, 0, len(X))), A_inf, 1.5 * np.sqrt(k))


@inner()
def _largest_of_each(X, largest):
    """max_i |x_ij|, of which NaN is none."""
    n, k = X.shape
    largest[:] = 0.0
    for i in range(n):
        x = row(X, i, 0, k)
        for j in range(k):
            size = _modulus(x[j])
            largest[j] = size if size > largest[j] else largest[j]


@inner()
def _sizes(X, B, of_x, of_b, facts):
    """The largest |x| and |b| of each column; of all x, and the least and the largest of b's columns but zeros."""
    k = X.shape[1]
    _largest_of_each(X, of_x)
    _largest_of_each(B, of_b)
    facts[7], facts[8], facts[9] = 0.0, np.inf, 0.0
    for j in range(k):
        facts[7] = max(facts[7], of_x[j])
        facts[8] = min(facts[8], of_b[j] if of_b[j] else np.inf)
        facts[9] = max(facts[9], of_b[j])


def _signature(number):
    matrix, vector = types.Array(number, 2, "C", readonly=True), types.Array(number, 1, "C", readonly=True)
    own = number[:, ::1], number[::1], types.int32[::1], types.float64[::1]
    return FLAG, types.int64, types.float64, matrix, matrix, vector, vector, *own


@cache
def solver(dtype):
    """`solve` of this type of numbers, compiled or read from disk when first asked for."""
    return jit(*_signature(from_dtype(dtype)), allocates=True)(solve)


def solve(by_columns, each, enough, R, B, s, t, X, space, pivots, facts):
    """X = A^-1 B, A being R or, `by_columns`, R^T; s and t: random numbers, n for a probe and one for each side.

    Up to `each` sides have a residual each; of more a random combination has.
    W, `padded` rows and columns of `space` from facts[0] on, holds L and U; pivots count from 0.
    facts: 0 that place, negative where a pivot is zero; 1, 2 the least and the largest Σ_j |r_ij|; 3 and 4 the same of
    Σ_i |r_ij|; 5 max |r_ij|; 6 the worst backward error times n·u, 11 that after a correction, which `each` sides
    at most get where it is more than `enough`, else below zero; 7 the largest |x|; 8 and 9 the least and the largest
    of the right-hand sides' largest |b|, those of zeros left out; 10 the largest |z| of z = A^-1 s.
    """
    n, k = B.shape
    m = (n + RANK - 1) // RANK * RANK
    columns = m + (k + RANK) // RANK * RANK
    width = min(RANK, VECTOR // X.itemsize)
    used = m + (k + width) // width * width
    lanes = LINE // X.itemsize
    before = -(space.ctypes.data // X.itemsize) % lanes
    W = space[before : before + m * columns].reshape(m, columns)
    rest = before + m * columns
    apart = n * min(k + 1, each)
    x, r, inverses = piece(space, rest, apart), piece(space, rest + apart, apart), piece(space, rest + 2 * apart, m)
    down, largest = piece(facts, TOLD, n), piece(facts, TOLD + n, n)
    of_x, of_b = piece(facts, TOLD, k), piece(facts, TOLD + k, k)
    inverses[n:] = 1
    facts[11] = -1
    facts[1], facts[2] = _sums(R, down, largest)
    facts[3], facts[4] = _ends(down)
    facts[5] = _largest(largest)
    _fill(W, by_columns, R, B, s)
    facts[0] = before
    if not _eliminate(W, n, used, pivots, inverses):
        facts[0] = -1
        return
    _substitute(W, used, inverses)
    for i in range(n):
        for j in range(k):
            X[i, j] = W[i, m + j]
        x[i] = W[i, m + k]
    facts[10] = _largest(piece(x, 0, n))
    _sizes(X, B, of_x, of_b, facts)
    A_inf = facts[4] if by_columns else facts[2]
    if k > each:
        facts[6] = _residual_of_all(by_columns, R, A_inf, X, B, of_x, of_b, t, x, r)
        return
    facts[6] = _residual_of_each(by_columns, R, A_inf, X, B, of_x, of_b, x, r, W)
    if facts[6] <= enough or facts[6] == np.inf:
        return
    _solve_again(W, n, used, pivots, inverses)
    for i in range(n):
        for j in range(k):
            X[i, j] += W[i, m + j]
    _sizes(X, B, of_x, of_b, facts)
    facts[11] = _residual_of_each(by_columns, R, A_inf, X, B, of_x, of_b, x, r, W)
