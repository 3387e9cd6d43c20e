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
    TILE,
    VECTOR,
    eliminate_lines,
    place_of_largest,
    solve_lower,
    solve_upper,
    subtract_product,
    subtract_products,
)
from mxpeak.kernels.host.jit import FLAG, ZERO, forms, inner, jit
from mxpeak.kernels.host.magnitude import ordered
from mxpeak.kernels.host.native import address_of, float_of, piece, row

#: What `solve` tells, before its room for sizes: see there.
TOLD = 12
#: Entries of one side of a square that is transposed.
SQUARE = 8
#: Squares below this may have lost digits, or lack those of an equal part.
LEAST_WEIGHT = 2.0**-900
#: Bytes of a row that are updated before the next rows are: eight such rows stay in the first-level cache.  Where a
#: row's factors stay in registers it is taken whole.
WIDTH = 1 << 20 if TILE.held else 2304


def padded(n: int, sides: int) -> tuple[int, int]:
    """The rows and columns of [A B] as it is worked on: multiples of eight, of columns an odd one.

    Eight rows at a multiple of 4 KB would take turns in the same few places of a cache.
    """
    rows = (n + RANK - 1) // RANK
    return rows * RANK, (rows + (sides + RANK - 1) // RANK | 1) * RANK


_padded = inner()(padded)


def room(n: int, sides: int, each: int) -> int:
    """Entries of the memory that `solve` works on, up to `each` sides with a residual each."""
    rows, columns = padded(n, sides)
    return rows * columns + LINE + n + rows + n * (2 * RANK if sides <= each + 1 else 1)


def facts_of(n: int, sides: int) -> int:
    """What `solve` tells, and sizes that it works on, in fp64."""
    return TOLD + 2 * max(n, sides) + sides


def _size(z):
    """|z|, of a complex number |Re z| + |Im z|: by this pivots are chosen, as in LAPACK."""


def _length(z):
    """|z| in fp64, 0 or inf where squares leave the range: as no entry does by which a balanced matrix is judged."""


def _modulus(z):
    """|z| in fp64, sqrt(a² + b²) without squares that leave the range."""


def _weight(z):
    """What |z| is compared by, in fp64: of a complex number its square."""


def _of_weight(weight, z):
    """The |z| of a weight."""


def _tells(weight, z):
    """Whether the largest weight is that of the largest |z|: squares have not left the range of fp64."""


@forms(_weight)
def _weight_of(z):
    def of_complex(z):
        a, b = np.float64(z.real), np.float64(z.imag)
        return a * a + b * b

    return of_complex if isinstance(z, types.Complex) else lambda z: np.float64(abs(z))


@forms(_of_weight)
def _size_of_weight(weight, z):
    return (lambda weight, z: np.sqrt(weight)) if isinstance(z, types.Complex) else lambda weight, z: weight


@forms(_tells)
def _weight_tells(weight, z):
    return (lambda weight, z: LEAST_WEIGHT < weight < np.inf) if z == types.complex128 else lambda weight, z: True


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
    step = W.strides[0]
    pivot = c0 + place_of_largest(W, address_of(W, c0, c0), step, n - c0)
    for c in range(c0, min(c0 + RANK, n)):
        if not _size(W[pivot, c]) > 0:
            return False
        pivots[c] = pivot
        if pivot != c:
            _swap(W, c, pivot, 0, columns)
        reciprocal, top = 1 / W[c, c], address_of(W, c, c0)
        inverses[c] = reciprocal
        pivot = c + 1 + eliminate_lines(W, address_of(W, c + 1, c0), step, n - c - 1, top, c - c0, reciprocal)
    return True


@inner()
def _products(W, c, l, u, rows, count):
    """`subtract_products`, made machine code once for all who take products."""
    subtract_products(W, c, l, u, rows, count)


@inner()
def _update(W, first, end, c0, begin, stop):
    """Rows first to end -= their entries of columns c0 to c0 + 7, times rows c0 to c0 + 7; from `begin` to `stop`."""
    step, width = W.strides[0], WIDTH // W.itemsize
    l = address_of(W, first, c0), step, np.int64(W.itemsize)
    for at in range(begin, stop, width):
        c, u = address_of(W, first, at), address_of(W, c0, at)
        _products(W, (c, step), l, (u, step), end - first, min(width, stop - at))


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
def _by_others(W, c0, begin, end, columns):
    """Rows c0 to c0 + 7 right of U -= their entries of columns `begin` to `end`, times rows `begin` to `end` there.

    All that is read of L or U for eight rows lies side by side: right-looking it would be a cache line a row.
    """
    m, step, each = len(W), W.strides[0], np.int64(W.itemsize)
    c = address_of(W, c0, m), step
    for p in range(begin, end, RANK):
        l, u = (address_of(W, c0, p), step, each), (address_of(W, p, m), step)
        _products(W, c, l, u, np.int64(RANK), columns - m)


@inner()
def _substitute(W, columns, inverses):
    """The columns right of U become U^-1 times themselves."""
    m = len(W)
    for c0 in range(m - RANK, -1, -RANK):
        _by_others(W, c0, c0 + RANK, m, columns)
        diagonal = inverses.ctypes.data + c0 * inverses.itemsize
        solve_upper(W, address_of(W, c0, c0), diagonal, address_of(W, c0, m), W.strides[0], columns - m)


@inner()
def _solve_again(W, n, columns, pivots, inverses):
    """The columns right of U become A^-1 times themselves, by the factors."""
    m = len(W)
    for c in range(n):
        _swap(W, c, pivots[c], m, columns)
    for c0 in range(0, m, RANK):
        _by_others(W, c0, ZERO, c0, columns)
        solve_lower(W, address_of(W, c0, c0), ZERO, address_of(W, c0, m), W.strides[0], columns - m)
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
        for i0 in range(0, n, SQUARE):
            for j in range(n):
                for i in range(i0, min(i0 + SQUARE, n)):
                    W[i, j] = R[j, i]


@inner(fastmath={"contract", "reassoc"})
def _dot(a, x):
    total = a[0] * x[0]
    for j in range(1, len(a)):
        total += a[j] * x[j]
    return total


@inner(fastmath={"contract"})
def _subtract(y, a, x):
    """y -= a x."""
    for j in range(len(a)):
        y[j] -= a[j] * x


@inner()
def _times(by_columns, R, x, y):
    """y -= A x."""
    n = len(R)
    for i in range(n):
        r = row(R, i, 0, n)
        if by_columns:
            _subtract(y, r, x[i])
        else:
            y[i] -= _dot(r, x)


@inner()
def _times_block(by_columns, R, W, C):
    """C -= A X, X being the columns of W right of U, as many as a row of C has; R is read as it lies, once."""
    n, m, each = len(R), len(W), np.int64(R.itemsize)
    down, right = (each, R.strides[0]) if by_columns else (R.strides[0], each)
    together, first = n if by_columns else RANK, address_of(R, 0, 0)
    for i in range(0, n, together):
        c, l, rows = address_of(C, i, 0), first + i * down, min(together, n - i)
        for p in range(0, n - n % RANK, RANK):
            u = address_of(W, p, m), W.strides[0]
            _products(W, (c, C.strides[0]), (l + p * right, down, right), u, rows, C.shape[1])
        for p in range(n - n % RANK, n):
            u = address_of(W, p, m), W.strides[0]
            subtract_product(W, (c, C.strides[0]), (l + p * right, down, right), u, rows, C.shape[1])


@inner()
def _largest(x):
    """max |x_i|, inf where one is NaN."""
    top = np.int64(0)
    for i in range(len(x)):
        top = max(top, ordered(_weight(x[i])))
    weight = float_of(np.uint64(top))
    if _tells(weight, x[0]):
        found = _of_weight(weight, x[0])
        return found if found == found else np.inf
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
def _residual_of_each(by_columns, R, A_inf, X, B, sizes, x, r, C, W):
    """The worst ||b - A x|| / (||A||·||x|| + ||b||); the residuals go to W's columns right of U.

    `sizes` are those of each x and b, and room for those of the residuals.  C and r are the same memory.
    """
    of_x, of_b, of_r = sizes
    m, (n, k) = len(W), X.shape
    if k == 1:
        for i in range(n):
            x[i], r[i] = X[i, 0], B[i, 0]
        _times(by_columns, R, x, r)
        for i in range(n):
            W[i, m] = r[i]
        return _over(_largest(piece(r, 0, n)), A_inf, of_x[0] + of_b[0] / A_inf)
    for i in range(n):
        for j in range(C.shape[1]):
            C[i, j] = B[i, j] if j < k else 0
        for j in range(k):
            W[i, m + j] = X[i, j]
    _times_block(by_columns, R, W, C)
    for i in range(n):
        for j in range(k):
            W[i, m + j] = C[i, j]
    if not _largest_of_each(C, of_r):
        return np.inf
    worst = 0.0
    for j in range(k):
        worst = max(worst, _over(of_r[j], A_inf, of_x[j] + of_b[j] / A_inf))
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
    _times(by_columns, R, x, r)
    return _over(_largest(piece(r, 0, len(X))), A_inf, 1.5 * np.sqrt(k))


@inner()
def _largest_of_each(X, largest):
    """max_i |x_ij| of as many columns, of which NaN is none; whether there is no NaN."""
    n, k, total = len(X), len(largest), 0.0
    largest[:] = 0.0
    for i in range(n):
        x = row(X, i, 0, k)
        for j in range(k):
            weight = _weight(x[j])
            total += weight
            largest[j] = weight if weight > largest[j] else largest[j]
    for j in range(k):
        if _tells(largest[j], X[0, j]):
            largest[j] = _of_weight(largest[j], X[0, j])
            continue
        largest[j] = 0.0
        for i in range(n):
            size = _modulus(X[i, j])
            largest[j] = size if size > largest[j] else largest[j]
    return total == total


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
    m, columns = _padded(n, k + 1)
    width = min(RANK, VECTOR // X.itemsize)
    beside = (k + width) // width * width
    used = m + beside
    before = -(space.ctypes.data // X.itemsize) % (LINE // X.itemsize)
    W = space[before : before + m * columns].reshape(m, columns)
    rest = before + m * columns
    x, inverses = piece(space, rest, n), piece(space, rest + n, m)
    rest += n + m
    beside = beside if k <= each else 1
    r, C = piece(space, rest, n), space[rest : rest + n * beside].reshape(n, beside)
    down, largest = piece(facts, TOLD, n), piece(facts, TOLD + n, n)
    of_x, of_b, of_r = piece(facts, TOLD, k), piece(facts, TOLD + k, k), piece(facts, TOLD + 2 * k, k)
    sizes = of_x, of_b, of_r
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
    facts[10] = _largest(x)
    _sizes(X, B, of_x, of_b, facts)
    A_inf = facts[4] if by_columns else facts[2]
    if k > each:
        facts[6] = _residual_of_all(by_columns, R, A_inf, X, B, of_x, of_b, t, x, r)
        return
    facts[6] = _residual_of_each(by_columns, R, A_inf, X, B, sizes, x, r, C, W)
    if facts[6] <= enough or facts[6] == np.inf:
        return
    _solve_again(W, n, used, pivots, inverses)
    for i in range(n):
        for j in range(k):
            X[i, j] += W[i, m + j]
    _sizes(X, B, of_x, of_b, facts)
    facts[11] = _residual_of_each(by_columns, R, A_inf, X, B, sizes, x, r, C, W)
