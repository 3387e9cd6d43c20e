"""Solve A X = B by the Cholesky factorization of a row-major [A B], of which one triangle of A is read, and check X.

    A = R^H R,    [R Y] = R^-H [A B],    X = R^-1 Y

One core factors eight rows at a time, eliminates with them in the columns on their right, and subtracts eight products
together from each entry of the upper triangle below. A is padded to a multiple of eight by rows of the unit matrix. The
strictly lower triangle of each diagonal block stores L_ii of the factorization L_ii D L_ii^H of this block.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import from_dtype, types

from mxpeak.kernels.host.dense.small_lu import padded
from mxpeak.kernels.host.dense.small_lu_check import (
    add_correction,
    ends,
    largest_of,
    residual_by_triangle,
    sizes_of,
    store_solution,
    sums_of_triangle,
)
from mxpeak.kernels.host.dense.small_lu_simd import LINE, RANK, VECTOR, products, solve_lower, solve_upper
from mxpeak.kernels.host.engine.jit import FLAG, ZERO, by_type, inner, jit
from mxpeak.kernels.host.engine.vector_ir import address_of, piece, row

#: The number of diagnostics that `solve_and_check` stores in `facts`, before its workspace for norms.
DIAGNOSTICS = 12


_padded = inner()(padded)


def work_size(n: int, sides: int) -> int:
    """Return the number of elements in the workspace: [A B], conjugates of eight rows, and three vectors."""
    rows, columns = padded(n, sides)
    return (rows + RANK) * columns + LINE + 2 * n + rows


def facts_of(n: int, sides: int) -> int:
    """Return the length of `facts`, which contains the diagnostics and fp64 workspace for norms."""
    return DIAGNOSTICS + max(n, 2 * sides)


@by_type
def _conjugate(z):
    """Return the conjugate of z."""
    return (lambda z: z.conjugate()) if isinstance(z, types.Complex) else (lambda z: z)


@by_type
def _multipliers(W, c0, conjugates):
    """Return the address of the conjugates of rows c0 to c0 + 7 of W, and the distance of their rows.

    Rows of complex numbers are conjugated in `conjugates`, right of the diagonal block.
    """

    def copied(W, c0, conjugates):
        m = len(W)
        for p in range(RANK):
            to, r = row(conjugates, p, 0, m), row(W, c0 + p, 0, m)
            for j in range(c0 + RANK, m):
                to[j] = r[j].conjugate()
        return address_of(conjugates, 0, 0), conjugates.strides[0]

    is_complex = isinstance(W.dtype, types.Complex)
    return copied if is_complex else lambda W, c0, conjugates: (address_of(W, c0, 0), W.strides[0])


@inner()
def _diagonal(W, c0, inverses):
    """Factor the diagonal block at c0, and return the number of the first pivot that is not positive, or 8.

    The upper triangle becomes R, the strictly lower one L with L D L^H = R^H R, and `inverses` receive 1 / r_cc.
    """
    for p in range(RANK):
        top = row(W, c0 + p, c0, c0 + RANK)
        pivot = top[p].real
        if not 0 < pivot < np.inf:
            return p
        for q in range(p + 1, RANK):
            below = row(W, c0 + q, c0, c0 + RANK)
            l = _conjugate(top[q]) / pivot
            for j in range(q, RANK):
                below[j] -= l * top[j]
            below[p] = l
        inverse = 1 / np.sqrt(pivot)
        inverses[c0 + p] = inverse
        top[p] = pivot * inverse
        for q in range(p + 1, RANK):
            top[q] *= inverse
    return RANK


@inner()
def _lower(W, c0, begin, stop, inverses, conjugates):
    """Eliminate with rows c0 to c0 + 7 of R in columns begin:stop, on the right of the diagonal of A.

    The function multiplies these rows by R_00^-H, where R_00 is their diagonal block, and then updates the rows below.
    """
    m, step, each = len(W), W.strides[0], np.int64(W.itemsize)
    solve_lower(W, address_of(W, c0, c0), ZERO, address_of(W, c0, begin), step, stop - begin)
    for p in range(c0, c0 + RANK):
        r, inverse = row(W, p, begin, stop), inverses[p].real
        for j in range(stop - begin):
            r[j] *= inverse
    first, l_step = _multipliers(W, c0, conjugates)
    for i in range(c0 + RANK, m, RANK):
        j = max(i, begin)
        l = first + i * each, each, l_step
        products(W, (address_of(W, i, j), step), l, (address_of(W, c0, j), step), np.int64(RANK), stop - j)


@inner()
def _upper(W, stop, inverses):
    """Multiply the columns m:stop by R^-1 in place, where m is the number of rows."""
    m, step, each = len(W), W.strides[0], np.int64(W.itemsize)
    for c0 in range(m - RANK, -1, -RANK):
        for p in range(c0 + RANK, m, RANK):
            l, u = (address_of(W, c0, p), step, each), (address_of(W, p, m), step)
            products(W, (address_of(W, c0, m), step), l, u, np.int64(RANK), stop - m)
        diagonal = inverses.ctypes.data + c0 * inverses.itemsize
        solve_upper(W, address_of(W, c0, c0), diagonal, address_of(W, c0, m), step, stop - m)


@inner()
def _fill(W, lower, conj, T, B, s):
    """Fill W with the upper triangle of A and [B s], and pad it with rows of the unit matrix and with zeros.

    A is the Hermitian matrix of a triangle of T, or its conjugate if `conj`.
    """
    n, k = B.shape
    m, columns = W.shape
    for i in range(m):
        first = i // RANK * RANK
        w = row(W, i, 0, columns)
        for j in range(first, columns):
            w[j] = 0
        if i >= n:
            w[i] = 1
            continue
        for j in range(k):
            w[m + j] = B[i, j]
        w[m + k] = s[i]
        t = row(T, i, 0, n)
        w[i] = t[i].real
        if lower:
            continue
        for j in range(i + 1, n):
            w[j] = _conjugate(t[j]) if conj else t[j]
    if not lower:
        return
    for j0 in range(0, n, RANK):
        for i in range(n):
            for j in range(max(j0, i + 1), min(j0 + RANK, n)):
                W[i, j] = T[j, i] if conj else _conjugate(T[j, i])


@cache
def solver(dtype):
    """Return `solve_and_check` for a type of numbers, compiled or loaded from disk at the first call for this type."""
    number = from_dtype(dtype)
    matrix, vector = types.Array(number, 2, "C", readonly=True), types.Array(number, 1, "C", readonly=True)
    options = types.Tuple((FLAG, FLAG, types.float64))
    own = number[:, ::1], number[::1], types.float64[::1]
    return jit(options, matrix, matrix, vector, *own, allocates=True)(solve_and_check)


def solve_and_check(options, T, B, s, X, space, facts):
    """Solve A X = B, check X, and store diagnostics in `facts`.

    `options` is the plain tuple (lower, conj, enough), because Numba needs 10 µs to read a named tuple from Python. A
    is the Hermitian matrix whose lower or upper triangle is that of T, or its conjugate if `conj`. s contains n random
    numbers for a probe. W, the padded [A B], contains R and begins at entry facts[0] of `space`; its shape is given by
    `padded`. The entries of `facts` are

    0        the offset of W in `space`, or -c if the leading minor of order c is not positive
    1, 2     the smallest and the largest Σ_j |a_ij|
    6        the largest ||b - A x|| / (||A||·||x|| + ||b||)
    7        the largest |x|
    8, 9     the smallest and the largest max |b| over the nonzero right-hand sides
    10       the largest |z| of z = A^-1 s
    11       number 6 after a correction of X, if number 6 exceeds `enough`; negative without a correction
    """
    (lower, conj, enough), (n, k) = options, B.shape
    m, columns = _padded(n, k + 1)
    width = min(RANK, VECTOR // X.itemsize)
    used = m + (k + width) // width * width
    before = -(space.ctypes.data // X.itemsize) % (LINE // X.itemsize)
    W = space[before : before + m * columns].reshape(m, columns)
    rest = before + m * columns
    conjugates = space[rest : rest + RANK * columns].reshape(RANK, columns)
    rest += RANK * columns
    x, r, inverses = piece(space, rest, n), piece(space, rest + n, n), piece(space, rest + 2 * n, m)
    norms = piece(facts, DIAGNOSTICS, n)
    of_x, of_b = piece(facts, DIAGNOSTICS, k), piece(facts, DIAGNOSTICS + k, k)
    facts[11] = -1
    sums_of_triangle(lower, T, norms)
    facts[1], facts[2] = ends(norms)
    _fill(W, lower, conj, T, B, s)
    facts[0] = before
    for c0 in range(0, m, RANK):
        c = _diagonal(W, c0, inverses)
        if c < RANK:
            facts[0] = -(c0 + c + 1)
            return
        _lower(W, c0, c0 + RANK, used, inverses, conjugates)
    _upper(W, used, inverses)
    store_solution(W, m, X, x)
    facts[10] = largest_of(x)
    sizes_of(X, B, of_x, of_b, facts)
    system = lower, conj, T, X, B, facts[2]
    facts[6] = residual_by_triangle(system, of_x, of_b, x, r, W)
    if facts[6] <= enough or facts[6] == np.inf:
        return
    for c0 in range(0, m, RANK):
        _lower(W, c0, m, used, inverses, conjugates)
    _upper(W, used, inverses)
    add_correction(W, m, X)
    sizes_of(X, B, of_x, of_b, facts)
    facts[11] = residual_by_triangle(system, of_x, of_b, x, r, W)
