"""Solve A X = B by Gaussian elimination with partial pivoting on a row-major [A B], and check X.

    P [A B] = L [U L^-1 P B],    X = U^-1 (L^-1 P B)

BLAS's LU of order 100 reaches 10 % of the speed of its products, because most of the time is spent on calls and
packing for small blocks. Here, one core eliminates panels of eight columns, one cache line per row, and subtracts
eight products together from each entry of the rows below. The columns of B are eliminated together with those of A. If
[A B] exceeds the caches, the elimination works on blocks of 64 columns, and BLAS updates the columns to the right of a
block with all its threads. A is padded to a multiple of eight by rows of the unit matrix.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import from_dtype, types

from mxpeak.kernels.host.dense.small_lu_check import (
    CheckedSystem,
    add_correction,
    ends,
    largest_of,
    residual_of_all,
    residual_of_each,
    sizes_of,
    store_solution,
    sums,
)
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
from mxpeak.kernels.host.engine.jit import FLAG, ZERO, by_type, inner, jit
from mxpeak.kernels.host.engine.vector_ir import address_of, gemm_at, piece, row, row_block

#: The number of diagnostics that `solve_and_check` stores in `facts`, before its workspace for norms.
DIAGNOSTICS = 12
#: Order of the square blocks in which A is transposed.
SQUARE = 8
#: Number of columns of a block. BLAS updates the columns to the right of a block in one product.
BLOCK = 64
#: The number of columns right of U, including the probe and the padding, from which substitution also uses BLAS
#: products.
MANY = 32
#: Bytes of a row that are updated before the next rows: eight such rows stay in the first-level cache. If the
#: multipliers of a row stay in registers, the complete row is updated.
WIDTH = 1 << 20 if TILE.held else 2304


def padded(n: int, sides: int) -> tuple[int, int]:
    """Return the numbers of rows and columns of [A B] after padding: a multiple and an odd multiple of eight.

    With an even multiple, the distance of the rows could be a multiple of 4 KB. Eight such rows would compete for the
    same cache sets.
    """
    rows = (n + RANK - 1) // RANK
    return rows * RANK, (rows + (sides + RANK - 1) // RANK | 1) * RANK


_padded = inner()(padded)


def work_size(n: int, sides: int, each: int) -> int:
    """Return the number of elements in the workspace of `solve_and_check`.

    The residuals of up to `each` right-hand sides are computed individually and need workspace per right-hand side.
    """
    rows, columns = padded(n, sides)
    return rows * columns + LINE + n + rows + n * (2 * RANK if sides <= each + 1 else 1)


def facts_of(n: int, sides: int) -> int:
    """Return the length of `facts`, which contains the diagnostics and fp64 workspace for norms."""
    return DIAGNOSTICS + 2 * max(n, sides) + sides


@by_type
def _size(z):
    """Return the value by which pivots are chosen, as in LAPACK: |z|, or |Re z| + |Im z| for complex numbers."""
    return (lambda z: abs(z.real) + abs(z.imag)) if isinstance(z, types.Complex) else (lambda z: abs(z))


@inner()
def _swap(W, i, j, begin, end):
    """Swap rows i and j of W in columns begin:end."""
    a, b = row(W, i, begin, end), row(W, j, begin, end)
    for c in range(end - begin):
        a[c], b[c] = b[c], a[c]


@inner()
def _panel(W, n, c0, columns, pivots, inverses):
    """Factor columns c0 to c0 + 7 of W, and return whether all pivots are nonzero.

    Rows are swapped in the first `columns` columns. The function also stores the pivots and their reciprocals.
    """
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
    """Subtract the product of eight columns of L and eight rows of U from rows first:end, in columns begin:stop.

    The factors are columns c0 to c0 + 7 of L, and rows c0 to c0 + 7 of U.
    """
    step, width = W.strides[0], WIDTH // W.itemsize
    l = address_of(W, first, c0), step, np.int64(W.itemsize)
    for at in range(begin, stop, width):
        c, u = address_of(W, first, at), address_of(W, c0, at)
        products(W, (c, step), l, (u, step), end - first, min(width, stop - at))


@inner()
def _lower(W, n, c0, begin, stop):
    """Eliminate with columns c0 to c0 + 7 of L in columns begin:stop.

    The function solves with the unit lower triangle of these columns for rows c0 to c0 + 7, and then updates rows c0 +
    8 to n - 1.
    """
    triangle, rows = address_of(W, c0, c0), address_of(W, c0, begin)
    solve_lower(W, triangle, ZERO, rows, W.strides[0], stop - begin)
    _update(W, c0 + RANK, n, c0, begin, stop)


@inner()
def _by_blas(gemm, W, rows, by, columns):
    """Compute W[rows, columns] -= W[rows, by] W[by, columns] by the xGEMM at the address `gemm`.

    `rows`, `by` and `columns` are pairs (begin, end). BLAS reads the transposes, because W is row-major.
    """
    (i0, i1), (p0, p1), (j0, j1) = rows, by, columns
    if i1 > i0 and p1 > p0 and j1 > j0:
        L, U, C = row_block(W, i0, p0), row_block(W, p0, j0), row_block(W, i0, j0)
        gemm_at(gemm, W.dtype.type(-1), (j1 - j0, i1 - i0, p1 - p0), U, L, C)


@inner()
def _eliminate(W, n, columns, pivots, inverses, gemm):
    """Overwrite [A B] with L without its diagonal, U, and L^-1 P B, and return whether all pivots are nonzero.

    inverses   receive 1 / u_cc
    gemm       the address of the xGEMM that updates the columns right of a block, or 0 for a single block
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
def _subtract_solved(W, c0, begin, end, columns):
    """Compute W[c0:c0+8, m:] -= W[c0:c0+8, begin:end] W[begin:end, m:], where m is the number of rows of W.

    The columns from m on are right-hand sides, and their rows begin:end contain solved unknowns. The update reads
    adjacent entries of L or U in each of eight rows. A right-looking update would read one cache line per row.
    """
    m, step, each = len(W), W.strides[0], np.int64(W.itemsize)
    c = address_of(W, c0, m), step
    for p in range(begin, end, RANK):
        l, u = (address_of(W, c0, p), step, each), (address_of(W, p, m), step)
        products(W, c, l, u, np.int64(RANK), columns - m)


@inner()
def _substitute(W, columns, inverses, gemm):
    """Multiply the columns right of U by U^-1, in place.

    If `gemm` is nonzero and there are many columns, the substitution works on blocks and uses BLAS.
    """
    m = len(W)
    by_blocks = gemm != 0 and columns - m >= MANY
    block = BLOCK if by_blocks else m
    for b0 in range((m - 1) // block * block, -1, -block):
        b1 = min(b0 + block, m)
        if by_blocks:
            _by_blas(gemm, W, (b0, b1), (b1, m), (m, columns))
        for c0 in range(b1 - RANK, b0 - 1, -RANK):
            _subtract_solved(W, c0, c0 + RANK, b1, columns)
            diagonal = inverses.ctypes.data + c0 * inverses.itemsize
            solve_upper(W, address_of(W, c0, c0), diagonal, address_of(W, c0, m), W.strides[0], columns - m)


@inner()
def _solve_again(W, n, columns, pivots, inverses):
    """Multiply the columns right of U by A^-1 in place, using the pivots and the factors in W."""
    m = len(W)
    for c in range(n):
        _swap(W, c, pivots[c], m, columns)
    for c0 in range(0, m, RANK):
        _subtract_solved(W, c0, ZERO, c0, columns)
        solve_lower(W, address_of(W, c0, c0), ZERO, address_of(W, c0, m), W.strides[0], columns - m)
    _substitute(W, columns, inverses, ZERO)


@inner()
def _fill(W, by_columns, R, B, s):
    """Fill W with [A B s], and pad it with rows of the unit matrix and with zeros.

    A is R, or R^T if `by_columns`.
    """
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


@cache
def solver(dtype):
    """Return `solve_and_check` for a type of numbers, compiled or loaded from disk at the first call for this type."""
    number = from_dtype(dtype)
    matrix, vector = types.Array(number, 2, "C", readonly=True), types.Array(number, 1, "C", readonly=True)
    options = types.Tuple((FLAG, types.int64, types.float64, types.int64))
    own = number[:, ::1], number[::1], types.int32[::1], types.float64[::1]
    return jit(options, matrix, matrix, vector, vector, *own, allocates=True)(solve_and_check)


def solve_and_check(options, R, B, s, t, X, space, pivots, facts):
    """Solve A X = B, check X, and store diagnostics in `facts`. A is R, or R^T if `by_columns`.

    `options` is the plain tuple (by_columns, each, enough, gemm), because Numba needs 10 µs to read a named tuple from
    Python. s and t are random numbers: n for a probe, and one per column of B. Up to `each` right-hand sides are
    checked by individual residuals. A larger number is checked by the residual of one random combination. `gemm` is
    the address of the xGEMM for the products of a large [A B], or 0. W, the padded [A B], contains L and U and begins
    at entry facts[0] of `space`; its shape is given by `padded`. Pivots count from 0. The entries of `facts` are

    0        the offset of W in `space`, negative if a pivot is zero
    1, 2     the smallest and the largest Σ_j |r_ij|
    3, 4     the smallest and the largest Σ_i |r_ij|
    5        max |r_ij|
    6        the largest ||b - A x|| / (||A||·||x|| + ||b||)
    7        the largest |x|
    8, 9     the smallest and the largest max |b| over the nonzero right-hand sides
    10       the largest |z| of z = A^-1 s
    11       number 6 after a correction of X, which at most `each` right-hand sides receive if number 6 exceeds
             `enough`; negative without a correction
    """
    (by_columns, each, enough, gemm), (n, k) = options, B.shape
    m, columns = _padded(n, k + 1)
    width = min(RANK, VECTOR // X.itemsize)
    right = (k + width) // width * width
    used = m + right
    before = -(space.ctypes.data // X.itemsize) % (LINE // X.itemsize)
    W = space[before : before + m * columns].reshape(m, columns)
    rest = before + m * columns
    x, inverses = piece(space, rest, n), piece(space, rest + n, m)
    rest += n + m
    right = right if k <= each else 1
    r, C = piece(space, rest, n), space[rest : rest + n * right].reshape(n, right)
    down, largest = piece(facts, DIAGNOSTICS, n), piece(facts, DIAGNOSTICS + n, n)
    norms = piece(facts, DIAGNOSTICS, 3 * k)
    of_x, of_b, of_r = piece(norms, 0, k), piece(norms, k, k), piece(norms, 2 * k, k)
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
    store_solution(W, m, X, x)
    facts[10] = largest_of(x)
    sizes_of(X, B, of_x, of_b, facts)
    system = CheckedSystem(by_columns, R, X, B, facts[4] if by_columns else facts[2], gemm)
    if k > each:
        facts[6] = residual_of_all(system, of_x, of_b, t, x, r)
        return
    facts[6] = residual_of_each(system, sizes, x, r, C, W)
    if facts[6] <= enough or facts[6] == np.inf:
        return
    _solve_again(W, n, used, pivots, inverses)
    add_correction(W, m, X)
    sizes_of(X, B, of_x, of_b, facts)
    facts[11] = residual_of_each(system, sizes, x, r, C, W)
