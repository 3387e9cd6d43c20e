"""A X = B by Gaussian elimination with partial pivoting of [A B] by rows; X is checked.

    P [A B] = L [U L^-1 P B],    X = U^-1 (L^-1 P B)

BLAS's LU of order 100 runs at a tenth of its products: it calls them for blocks of which most of the time goes to
calling and packing.  Here panels of eight columns, a cache line a row, are eliminated line by line on one core, and the
rows below take eight products at once, B's columns like A's.  Where [A B] outgrows the caches, that is done within
blocks of 64 columns, and BLAS takes what a block leaves to the columns right of it, with all its threads.  A is brought
to a multiple of eight by rows of the unit matrix.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import from_dtype, types

from mxpeak.kernels.host.dense.small_lu_check import ends, largest_of, residual_of_all, residual_of_each, sizes_of, sums
from mxpeak.kernels.host.dense.small_lu_simd import (
    LINE,
    RANK,
    TILE,
    VECTOR,
    eliminate_lines,
    place_of_largest,
    products,
    solve_lower,
    solve_upper,
)
from mxpeak.kernels.host.engine.jit import FLAG, ZERO, forms, inner, jit
from mxpeak.kernels.host.engine.vector_ir import address_of, gemm_at, piece, row

#: What `solve` tells, before its room for sizes: see there.
TOLD = 12
#: Entries of one side of a square that is transposed.
SQUARE = 8
#: Columns of a block, which leaves the rest to BLAS in one product.
BLOCK = 64
#: So many columns right of U, that of the probe and the padding among them, are worth a product by BLAS in the
#: substitution, too.
MANY = 32
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


def work_size(n: int, sides: int, each: int) -> int:
    """Entries of the memory that `solve` works on, up to `each` sides with a residual each."""
    rows, columns = padded(n, sides)
    return rows * columns + LINE + n + rows + n * (2 * RANK if sides <= each + 1 else 1)


def facts_of(n: int, sides: int) -> int:
    """What `solve` tells, and sizes that it works on, in fp64."""
    return TOLD + 2 * max(n, sides) + sides


def _size(z):
    """|z|, of a complex number |Re z| + |Im z|: by this pivots are chosen, as in LAPACK."""


@forms(_size)
def _size_of(z):
    return (lambda z: abs(z.real) + abs(z.imag)) if isinstance(z, types.Complex) else (lambda z: abs(z))


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
def _update(W, first, end, c0, begin, stop):
    """Rows first to end -= their entries of columns c0 to c0 + 7, times rows c0 to c0 + 7; from `begin` to `stop`."""
    step, width = W.strides[0], WIDTH // W.itemsize
    l = address_of(W, first, c0), step, np.int64(W.itemsize)
    for at in range(begin, stop, width):
        c, u = address_of(W, first, at), address_of(W, c0, at)
        products(W, (c, step), l, (u, step), end - first, min(width, stop - at))


@inner()
def _lower(W, n, c0, begin, stop):
    """Rows from c0 on, columns `begin` to `stop`, as L's columns c0 to c0 + 7 leave them."""
    triangle, rows = address_of(W, c0, c0), address_of(W, c0, begin)
    solve_lower(W, triangle, ZERO, rows, W.strides[0], stop - begin)
    _update(W, c0 + RANK, n, c0, begin, stop)


@inner()
def _by_blas(gemm, W, rows, by, columns):
    """W[rows, columns] -= W[rows, by] W[by, columns] by the xGEMM at an address; to BLAS they are transposed."""
    (i0, i1), (p0, p1), (j0, j1) = rows, by, columns
    ld, minus = W.shape[1], W.dtype.type(-1)
    c, l, u = address_of(W, i0, j0), address_of(W, i0, p0), address_of(W, p0, j0)
    if i1 > i0 and p1 > p0 and j1 > j0:
        gemm_at(gemm, j1 - j0, i1 - i0, p1 - p0, minus, u, ld, l, ld, c, ld)


@inner()
def _eliminate(W, n, columns, pivots, inverses, gemm):
    """[A B] becomes L without its diagonal, U, and L^-1 P B; inverses_c = 1 / u_cc; whether no pivot is zero.

    gemm   the address of the xGEMM that takes what a block leaves to the columns right of it; 0: there is one block
    """
    m = len(W)
    block = BLOCK if gemm else m
    for b0 in range(0, n, block):
        b1 = min(b0 + block, m)
        own = b1 if gemm else columns
        for c0 in range(b0, min(b1, n), RANK):
            if not _panel(W, n, c0, columns, pivots, inverses):
                return False
            _lower(W, n, c0, c0 + RANK, own)
        if gemm:
            for c0 in range(b0, b1, RANK):
                _lower(W, b1, c0, b1, columns)
            _by_blas(gemm, W, (b1, n), (b0, b1), (b1, columns))
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
        products(W, c, l, u, np.int64(RANK), columns - m)


@inner()
def _substitute(W, columns, inverses, gemm):
    """The columns right of U become U^-1 times themselves; where they are many, by blocks if there is a GEMM."""
    m = len(W)
    by_blocks = gemm != 0 and columns - m >= MANY
    block = BLOCK if by_blocks else m
    for b0 in range((m - 1) // block * block, -1, -block):
        b1 = min(b0 + block, m)
        if by_blocks:
            _by_blas(gemm, W, (b0, b1), (b1, m), (m, columns))
        for c0 in range(b1 - RANK, b0 - 1, -RANK):
            _by_others(W, c0, c0 + RANK, b1, columns)
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
    _substitute(W, columns, inverses, ZERO)


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


def _signature(number):
    matrix, vector = types.Array(number, 2, "C", readonly=True), types.Array(number, 1, "C", readonly=True)
    own = number[:, ::1], number[::1], types.int32[::1], types.float64[::1]
    return FLAG, types.int64, types.float64, types.int64, matrix, matrix, vector, vector, *own


@cache
def solver(dtype):
    """`solve` of this type of numbers, compiled or read from disk when first asked for."""
    return jit(*_signature(from_dtype(dtype)), allocates=True)(solve)


def solve(by_columns, each, enough, gemm, R, B, s, t, X, space, pivots, facts):
    """X = A^-1 B, A being R or, `by_columns`, R^T; s and t: random numbers, n for a probe and one for each side.

    Up to `each` sides have a residual each; of more a random combination has.  gemm: the address of the xGEMM that
    takes the products of a large [A B], or 0.
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
    facts[1], facts[2] = sums(R, down, largest)
    facts[3], facts[4] = ends(down)
    facts[5] = largest_of(largest)
    _fill(W, by_columns, R, B, s)
    facts[0] = before
    if not _eliminate(W, n, used, pivots, inverses, gemm):
        facts[0] = -1
        return
    _substitute(W, used, inverses, gemm)
    for i in range(n):
        for j in range(k):
            X[i, j] = W[i, m + j]
        x[i] = W[i, m + k]
    facts[10] = largest_of(x)
    sizes_of(X, B, of_x, of_b, facts)
    A_inf = facts[4] if by_columns else facts[2]
    if k > each:
        facts[6] = residual_of_all(by_columns, R, A_inf, X, B, of_x, of_b, t, x, r)
        return
    facts[6] = residual_of_each(by_columns, R, A_inf, X, B, sizes, x, r, C, W, gemm)
    if facts[6] <= enough or facts[6] == np.inf:
        return
    _solve_again(W, n, used, pivots, inverses)
    for i in range(n):
        for j in range(k):
            X[i, j] += W[i, m + j]
    sizes_of(X, B, of_x, of_b, facts)
    facts[11] = residual_of_each(by_columns, R, A_inf, X, B, sizes, x, r, C, W, gemm)
