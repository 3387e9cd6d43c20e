"""Solve many small systems A X = B by Gaussian elimination with partial pivoting, one system per lane of a vector.

    P_j ... P_1 a_j = L U,  column by column;   X = U^-1 (L^-1 P B);   R = B - A X

A library's LU of order 10 takes more time for its calls than for its arithmetic. Here, the numbers a_ij of 4 to 16
systems are adjacent, so every operation of the elimination is one vector instruction, whatever the order is. The
elimination is left-looking: it applies all earlier panels of four columns to the next four columns, which stay in the
first-level cache. Only row swaps differ between the lanes. They do not change earlier panels, so a panel is applied to
a later column by its swaps and then its subtractions, as in LINPACK.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import from_dtype, types

from mxpeak.kernels.host.dense.small_lu_simd import VECTOR
from mxpeak.kernels.host.dense.stacked_lu_simd import (
    PANEL,
    add_sizes,
    ends,
    invert,
    load_columns,
    multiply,
    places_of_largest,
    subtract_from_one,
    subtract_panel_from_all,
    subtract_panel_from_one,
    swap_rows,
)
from mxpeak.kernels.host.engine.jit import ONE, ZERO, inner, jit
from mxpeak.kernels.host.engine.vector_ir import address_of, row

#: Number of diagnostics per system that `solve_and_check` stores in `facts`.
DIAGNOSTICS = 8


def lanes_of(dtype: np.dtype) -> int:
    """Return the number of systems that are solved together."""
    return VECTOR // dtype.itemsize


def work_size(n: int, k: int, lanes: int) -> int:
    """Return the number of elements in the workspace of `solve_and_check`, with one vector for its alignment.

    A column has an odd number of vectors. Otherwise, the same row of several columns could be multiples of 4 KB apart,
    and the processor would delay each load until it had compared the addresses of the stores before.
    """
    matrices, sums_and_norms = (2 * (n + k) + 1) * (n | 1), 3 * (n | 1) + 5 + 3 * k + 1
    return (matrices + sums_and_norms + 1) * lanes


@inner()
def _subtract(L, l, U, u, C, c, depth, columns, rows):
    """Subtract products of `depth` columns of L and factors in U from some columns of C.

    l, u, c   the column and the position of the first number of L, of U and of C
    columns   the number of target columns
    rows      the number of vectors of a column
    """
    steps, q = (np.int64(L.strides[0]), np.int64(C.strides[0])), 0
    (l_j, l_i), (u_j, u_i), (c_j, c_i) = l, u, c
    lanes, at = VECTOR // L.itemsize, address_of(L, l_j, l_i)
    if depth == PANEL:
        while q + PANEL <= columns:
            subtract_panel_from_all(L, at, address_of(U, u_j + q, u_i), address_of(C, c_j + q, c_i), steps, rows)
            q += PANEL
        while q < columns:
            subtract_panel_from_one(L, at, address_of(U, u_j + q, u_i), address_of(C, c_j + q, c_i), steps, rows)
            q += 1
        return
    for q in range(columns):
        for p in range(depth):
            factor = address_of(U, u_j + q, u_i + p * lanes)
            subtract_from_one(L, at + p * steps[0], factor, address_of(C, c_j + q, c_i), steps, rows)


@inner()
def _swap(W, c, begin, end, places):
    """Swap row c with the pivot row of each lane in columns begin:end."""
    lanes = VECTOR // W.itemsize
    at = places.ctypes.data + c * lanes * places.itemsize
    swap_rows(W, address_of(W, begin, c * lanes), at, np.int64(W.strides[0]), end - begin)


@inner()
def _apply_panel(W, n, c0, begin, end, places):
    """Apply the steps of the panel that begins with column c0 to columns begin:end."""
    lanes, c1 = VECTOR // W.itemsize, min(c0 + PANEL, n)
    for c in range(c0, c1):
        _swap(W, c, begin, end, places)
    for c in range(c0, c1 - 1):
        below = (c + 1) * lanes
        _subtract(W, (c, below), W, (begin, c * lanes), W, (begin, below), ONE, end - begin, c1 - c - 1)
    below = c1 * lanes
    _subtract(W, (c0, below), W, (begin, c0 * lanes), W, (begin, below), c1 - c0, end - begin, n - c1)


@inner()
def _factor_panel(W, n, c0, end, inverses, places):
    """Factor the panel that begins with column c0, and apply its steps up to column end."""
    lanes = VECTOR // W.itemsize
    for c in range(c0, min(end, n)):
        diagonal, inverse, below = address_of(W, c, c * lanes), inverses.ctypes.data + c * VECTOR, (c + 1) * lanes
        places_of_largest(W, diagonal, n - c, places.ctypes.data + c * lanes * places.itemsize)
        _swap(W, c, c0, end, places)
        invert(W, diagonal, inverse)
        multiply(W, diagonal + VECTOR, inverse, n - c - 1)
        _subtract(W, (c, below), W, (c + 1, c * lanes), W, (c + 1, below), ONE, end - c - 1, n - c - 1)


@inner()
def _eliminate(W, n, inverses, places):
    """Overwrite [A B] with L without its diagonal, U, and L^-1 P B; store 1 / u_cc and the pivots of each lane.

    A pivot of zero makes its lane infinite.
    """
    for j0 in range(0, len(W), PANEL):
        j1 = min(j0 + PANEL, len(W))
        for c0 in range(0, min(j0, n), PANEL):
            _apply_panel(W, n, c0, j0, j1, places)
        _factor_panel(W, n, j0, j1, inverses, places)


@inner()
def _substitute(W, n, inverses):
    """Multiply the columns right of U by U^-1, in place."""
    lanes, sides = VECTOR // W.itemsize, len(W) - n
    for c in range(n - 1, -1, -1):
        for j in range(n, len(W)):
            multiply(W, address_of(W, j, c * lanes), inverses.ctypes.data + c * VECTOR, ONE)
        _subtract(W, (c, ZERO), W, (n, c * lanes), W, (n, ZERO), ONE, sides, c)


@inner()
def _load(S, first, count, P, W, at):
    """Store the columns of `count` systems from number `first` on as columns of P and W from column `at` on."""
    _, n, columns = S.shape
    across, down, right = S.strides
    source = S.ctypes.data + first * across
    targets = address_of(P, at, ZERO), address_of(W, at, ZERO)
    load_columns(P, source, (across, down, right), count, (n, columns), targets, np.int64(P.strides[0]))


@inner()
def _worst_error(lane, norms, k, A_inf):
    """Return the largest ||r|| / (||A||·||x|| + ||b||) of a lane's right-hand sides, or NaN if one is not finite.

    `norms` contains ||b||, ||x|| and ||r|| of each right-hand side.
    """
    worst = 0.0
    for q in range(k):
        b, x, r = np.float64(norms[q, lane]), np.float64(norms[k + q, lane]), np.float64(norms[2 * k + q, lane])
        scale = x + b / A_inf  # of the size of x, because ||A||·||x|| may overflow
        error = r if scale == 0 else r / A_inf / scale if scale < np.inf else np.nan
        if error != error:
            return error
        worst = max(worst, error)
    return worst


@inner()
def _store_facts(facts, first, count, sums, norms, k):
    """Store the diagnostics of `count` lanes as those of the systems from `first` on."""
    for lane in range(count):
        at = first + lane
        for t in range(4):
            facts[t, at] = sums[t, lane]
        facts[4, at] = _worst_error(lane, norms, k, facts[1, at])
        facts[5, at] = sums[4, lane]
        low, high = np.inf, 0.0
        for q in range(k):
            b = np.float64(norms[q, lane])
            low, high = min(low, b) if b > 0 else low, max(high, b)
        facts[6, at], facts[7, at] = low if high > 0 else 1.0, high


@inner()
def _solve_group(systems, s, X, facts, P, W, columns, sums, norms, places):
    """Solve and check systems first:first+count, one per lane.

    systems    (A, B, first, count)
    P, W       [A B], whose B becomes the residual, and [A B s], whose B and s become X and z
    columns    three columns: the row sums, the column sums and 1 / u_cc
    sums       receive the ends of both sums, and |z|
    norms      receive ||b||, ||x|| and ||r|| of each right-hand side
    """
    (A, B, first, count), (_, n, k) = systems, X.shape
    lanes, rows = VECTOR // X.itemsize, np.int64(n)
    _load(A, first, count, P, W, ZERO)
    _load(B, first, count, P, W, rows)
    probe, of_rows = row(W, n + k, ZERO, n * lanes), row(columns, ZERO, ZERO, n * lanes)
    for i in range(n):
        for lane in range(lanes):
            probe[i * lanes + lane], of_rows[i * lanes + lane] = s[i], 0
    by_row, by_column = address_of(columns, ZERO, ZERO), address_of(columns, ONE, ZERO)
    inverses = row(columns, 2, ZERO, n * lanes)
    for c in range(n):
        add_sizes(P, address_of(P, c, ZERO), by_row, by_column + c * VECTOR, rows)
    ends(P, by_row, address_of(sums, ZERO, ZERO), address_of(sums, ONE, ZERO), rows)
    ends(P, by_column, address_of(sums, 2, ZERO), address_of(sums, 3, ZERO), rows)
    _eliminate(W, n, inverses, places)
    _substitute(W, n, inverses)
    smallest = address_of(norms, 3 * k, ZERO)  # not used
    ends(P, address_of(W, n + k, ZERO), smallest, address_of(sums, 4, ZERO), rows)
    for q in range(k):
        ends(P, address_of(P, n + q, ZERO), smallest, address_of(norms, q, ZERO), rows)
        ends(P, address_of(W, n + q, ZERO), smallest, address_of(norms, k + q, ZERO), rows)
    for c in range(0, n, PANEL):
        _subtract(P, (c, ZERO), W, (rows, c * lanes), P, (rows, ZERO), min(PANEL, n - c), k, rows)
    for q in range(k):
        ends(P, address_of(P, n + q, ZERO), smallest, address_of(norms, 2 * k + q, ZERO), rows)
        x = row(W, n + q, ZERO, n * lanes)
        for lane in range(count):
            for i in range(n):
                X[first + lane, i, q] = x[i * lanes + lane]
    _store_facts(facts, first, count, sums, norms, k)


@cache
def solver(dtype):
    """Return `solve_and_check` for a real type, compiled or loaded from disk at the first call for this type."""
    number = from_dtype(dtype)
    stack = types.Array(number, 3, "A", readonly=True)
    vector = types.Array(number, 1, "C", readonly=True)
    facts = types.Array(types.float64, 2, "A")
    return jit(stack, stack, vector, number[:, :, ::1], facts, number[::1], types.int32[::1], allocates=True)(
        solve_and_check
    )


def solve_and_check(A, B, s, X, facts, space, places):
    """Solve A X = B for stacks A (systems, n, n) and B (systems, n, k), and store diagnostics in `facts`.

    s contains n random numbers for a probe. `space` has `work_size` elements, and `places` has n elements per lane. The
    rows of `facts` contain, for each system, NaN if the value is not finite, otherwise

    0, 1     the smallest and the largest Σ_j |a_ij|
    2, 3     the smallest and the largest Σ_i |a_ij|
    4        the largest ||b - A x|| / (||A||·||x|| + ||b||)
    5        the largest |z| of z = A^-1 s
    6, 7     the smallest and the largest max |b| over the nonzero right-hand sides; 1 and 0 if all are zero
    """
    systems, n, k = B.shape
    lanes = VECTOR // X.itemsize
    size, at = (n | 1) * lanes, -(space.ctypes.data // X.itemsize) % lanes
    P = space[at : at + (n + k) * size].reshape(n + k, size)
    at += P.size
    W = space[at : at + (n + k + 1) * size].reshape(n + k + 1, size)
    at += W.size
    columns = space[at : at + 3 * size].reshape(3, size)
    at += columns.size
    sums = space[at : at + 5 * lanes].reshape(5, lanes)
    at += sums.size
    norms = space[at : at + (3 * k + 1) * lanes].reshape(3 * k + 1, lanes)
    for first in range(0, systems, lanes):
        group = A, B, first, min(lanes, systems - first)
        _solve_group(group, s, X, facts, P, W, columns, sums, norms, places)
