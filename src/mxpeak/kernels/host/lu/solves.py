"""Solves with the triangle of a panel's block for many right-hand sides: products, and 64×64 inverses on its diagonal.

BLAS's own solves in fp32 run at a fifth to a half of its products.  X = B T^-1 by blocks of 64 columns, T upper:

    X_j = (B_j - Σ_(i<j) X_i T_ij) T_jj^-1                the inverses made in fp64

The sums are products: BLAS's, taken in halves of halves, or the unit's for operands of 16 bits, which round X_i and
T_ij.  An LU with blocks of 64 does the same in its trailing updates, so the bound of the LU is as before.

B_j T_jj^-1 errs by u·|X_j||T_jj||T_jj^-1||T_jj| and not by u·|X_j||T_jj|, as substitution does.  Where T_jj is so badly
conditioned that this is much more (after a small pivot, without pivoting), whoever calls takes BLAS's solves instead.
"""

from __future__ import annotations

import math

import numpy as np
from numba import types

from mxpeak.kernels.host.engine.jit import FLAG, INT, MATRIX32, VECTOR, ZERO, inner, jit
from mxpeak.kernels.host.engine.matrix_engines import COLUMNS, DEPTH, ROWS, begin, end
from mxpeak.kernels.host.engine.vector_ir import address_of, gemm_at, row
from mxpeak.kernels.host.lu.operands import (
    CONFIG,
    PAIRS,
    SCRATCH,
    STRIPS,
    aligned,
    left_stride,
    pairs_along,
    round_rows,
    round_strips,
    subtract_tiles,
    tiles_of,
)
from mxpeak.kernels.host.lu.row_moves import part_of
from mxpeak.kernels.host.lu.triangle import dot

#: The order of the blocks that are inverted.
BLOCK = 64
#: The most growth of variances with which inverses are taken.  A well scaled block has less than 2; and sums of 64
#: products in fp32 have ten times the variance of one rounding by themselves.
MOST_GROWTH = 16.0
#: Right-hand sides that are solved for at once: with a block's columns they stay in the second cache.
CHUNK = 384


@inner()
def _add_squared(upper, T, j0, x, y):
    """y += (T_jj∘T_jj) x for a block of an upper triangle, or of a unit lower one."""
    size = x.shape[0]
    for i in range(size):
        first, last = (i, size) if upper else (0, i)
        a = row(T, j0 + i, j0 + first, j0 + last)
        total = 0.0 if upper else x[i]
        for k in range(a.shape[0]):
            total += np.float64(a[k]) * np.float64(a[k]) * x[first + k]
        y[i] += total


@inner()
def _growth(upper, T, j0, W_columns, sums):
    """How much larger the rounding of an inverse W makes the variance of T_jj W T_jj's entries than that of T_jj's.

    max_i z_i / t_i with t = (T∘T) e, z = (T∘T) (W∘W) t.  `sums` takes t, (W∘W) t and z.
    """
    size, worst = W_columns.shape[0], 0.0
    sums[:] = 0.0
    t, inner_sums, z = sums[0, :size], sums[1, :size], sums[2, :size]
    z[:] = 1.0
    _add_squared(upper, T, j0, z, t)
    z[:] = 0.0
    for k in range(size):
        for i in range(size):
            inner_sums[i] += W_columns[k, i] * W_columns[k, i] * t[k]
    _add_squared(upper, T, j0, inner_sums, z)
    for i in range(size):
        growth = z[i] / t[i]
        if growth > worst or growth != growth:
            worst = growth
    return worst


@jit(FLAG, MATRIX32, VECTOR, allocates=True, later=True)
def invert_blocks(upper, T, growth):
    """The diagonal blocks of an upper triangle, or of a unit lower one, as inverses, in place.

    growth: one number, overwritten by the most that the inverses make of the variance of rounding errors, or NaN.
    """
    n = T.shape[0]
    columns = np.empty((BLOCK, BLOCK))  # of the inverse, each in a row
    sums = np.empty((3, BLOCK))
    growth[0] = 0.0
    for j0 in range(0, n, BLOCK):
        size = min(BLOCK, n - j0)
        columns[:] = 0.0
        for c in range(size):
            # Of an upper triangle from row c up, of a lower one from row c down.
            for step in range(c + 1 if upper else size - c):
                r = c - step if upper else c + step
                first, last = (r + 1, c + 1) if upper else (c, r)
                total = -dot(row(T, j0 + r, j0 + first, j0 + last), columns[c, first:last])
                if r == c:
                    total += 1.0
                columns[c, r] = total / np.float64(T[j0 + r, j0 + r]) if upper else total
        of_block = _growth(upper, T, j0, columns[:size], sums)
        if of_block > growth[0] or of_block != of_block:
            growth[0] = of_block
        for r in range(size):
            for c in range(size):
                T[j0 + r, j0 + c] = columns[c, r]


def rows_of_X(threads: int, n: int) -> np.ndarray:
    """Where each thread's chunk of X lies as a left operand."""
    stride = left_stride(n)
    return aligned(threads * (CHUNK + ROWS) * stride, np.dtype(np.int32)).reshape(threads, CHUNK + ROWS, stride)


def strips_of_X(threads: int, n: int) -> np.ndarray:
    """Where each thread's chunk of X lies as a right operand."""
    shape = threads, CHUNK // COLUMNS, pairs_along(n), COLUMNS
    return aligned(math.prod(shape), np.dtype(np.int32)).reshape(shape)


@inner()
def _take_out(source, target):
    """target = source, and source = 0: the product is added to it."""
    for c in range(source.shape[0]):
        target[c], source[c] = source[c], np.float32(0)


@inner()
def _multiply_right(B, i, rows, j0, size, W, copy, gemm):
    """B_j = B_j W_jj for some rows of B; BLAS sees the transposes."""
    for r in range(rows):
        _take_out(row(B, i + r, j0, j0 + size), row(copy, r, 0, size))
    one, ldw, ldb = np.float32(1), W.strides[0] // 4, B.strides[0] // 4
    W_jj = address_of(W, j0, j0)
    gemm_at(gemm, size, rows, size, one, W_jj, ldw, address_of(copy, 0, 0), BLOCK, address_of(B, i, j0), ldb)


@inner()
def _multiply_left(B, i0, size, j, columns, W, copy, gemm):
    """B_i = W_ii B_i for some columns of B."""
    for r in range(size):
        _take_out(row(B, i0 + r, j, j + columns), row(copy, r, 0, columns))
    one, ldw, ldb = np.float32(1), W.strides[0] // 4, B.strides[0] // 4
    W_ii = address_of(W, i0, i0)
    gemm_at(gemm, columns, size, size, one, address_of(copy, 0, 0), CHUNK, W_ii, ldw, address_of(B, i0, j), ldb)


@jit(INT, INT, MATRIX32, MATRIX32, INT, allocates=True, later=True)
def solve_right(tid, threads, B, W, gemm):
    """B = B T^-1 in place, T upper, W = T by rows with its blocks inverted; a thread some rows."""
    n, minus_one = W.shape[0], np.float32(-1)
    ldw, ldb = W.strides[0] // 4, B.strides[0] // 4
    copy = np.empty((CHUNK, BLOCK), np.float32)
    r0, r1 = part_of(tid, threads, B.shape[0])
    for i in range(r0, r1, CHUNK):
        rows = min(CHUNK, r1 - i)
        for j0 in range(0, n, BLOCK):
            _multiply_right(B, i, rows, j0, min(BLOCK, n - j0), W, copy, gemm)
            done = j0 // BLOCK + 1
            turn, t = (done & -done) * BLOCK, done * BLOCK  # 1, 2, 1, 4, 1, 2, 1, 8 ... blocks change as many
            if t < n:
                t0, t1 = t - turn, min(t + turn, n)
                X1, T12, B2 = address_of(B, i, t0), address_of(W, t0, t), address_of(B, i, t)
                gemm_at(gemm, t1 - t, rows, turn, minus_one, T12, ldw, X1, ldb, B2, ldb)


@jit(INT, INT, MATRIX32, MATRIX32, INT, allocates=True, later=True)
def solve_left(tid, threads, B, W, gemm):
    """B = T^-1 B in place, T unit lower, W = T by rows with its blocks inverted; a thread some columns."""
    n, minus_one = W.shape[0], np.float32(-1)
    ldw, ldb = W.strides[0] // 4, B.strides[0] // 4
    copy = np.empty((BLOCK, CHUNK), np.float32)
    c0, c1 = part_of(tid, threads, B.shape[1])
    for j in range(c0, c1, CHUNK):
        columns = min(CHUNK, c1 - j)
        for i0 in range(0, n, BLOCK):
            _multiply_left(B, i0, min(BLOCK, n - i0), j, columns, W, copy, gemm)
            done = i0 // BLOCK + 1
            turn, t = (done & -done) * BLOCK, done * BLOCK
            if t < n:
                t0, t1 = t - turn, min(t + turn, n)
                X1, T21, B2 = address_of(B, t0, j), address_of(W, t, t0), address_of(B, t, j)
                gemm_at(gemm, columns, t1 - t, turn, minus_one, X1, ldb, T21, ldw, B2, ldb)


@jit(
    INT, INT, INT, INT, FLAG, MATRIX32, MATRIX32, STRIPS, types.int32[:, :, ::1], SCRATCH, CONFIG, INT,
    allocates=True, later=True,
)  # fmt: skip
def solve_right_rounded(tid, threads, unit, unit_rows, fp16, B, W, T_strips, X_rows, scratch, config, gemm):
    """As `solve_right`, sums by the unit: T_strips is T as a right operand, X_rows[tid] takes X as a left one."""
    n, X_low = W.shape[0], X_rows[tid]
    copy = np.empty((CHUNK, BLOCK), np.float32)
    r0, r1 = part_of(tid, threads, B.shape[0])
    begin(unit, np.int64(config.ctypes.data))
    for i in range(r0, r1, CHUNK):
        rows = min(CHUNK, r1 - i)
        for j0 in range(0, n, BLOCK):
            size = min(BLOCK, n - j0)
            B_j, s0 = B[i : i + rows, j0 : j0 + size], j0 // COLUMNS
            if j0 > 0:
                strips, depths = T_strips[s0 : s0 + BLOCK // COLUMNS], j0 // DEPTH
                T = tiles_of(scratch, tid)
                subtract_tiles(unit, unit_rows, B_j, X_low, strips, ZERO, depths, ZERO, rows, ZERO, strips.shape[0], T)
            _multiply_right(B, i, rows, j0, size, W, copy, gemm)
            round_rows(B_j, X_low[:, j0 // 2 : (j0 + BLOCK) // 2], ZERO, rows, fp16)
    end(unit)


@jit(
    INT, INT, INT, INT, FLAG, MATRIX32, MATRIX32, PAIRS, types.int32[:, :, :, ::1], SCRATCH, CONFIG, INT,
    allocates=True, later=True,
)  # fmt: skip
def solve_left_rounded(tid, threads, unit, unit_rows, fp16, B, W, T_rows, X_strips, scratch, config, gemm):
    """As `solve_left`, sums by the unit: T_rows is T as a left operand, X_strips[tid] takes X as a right one."""
    n, X_low = W.shape[0], X_strips[tid]
    copy = np.empty((BLOCK, CHUNK), np.float32)
    c0, c1 = part_of(tid, threads, B.shape[1])
    begin(unit, np.int64(config.ctypes.data))
    for j in range(c0, c1, CHUNK):
        columns = min(CHUNK, c1 - j)
        s1 = -(-columns // COLUMNS)
        for i0 in range(0, n, BLOCK):
            size = min(BLOCK, n - i0)
            B_i = B[i0 : i0 + size, j : j + columns]
            if i0 > 0:
                T = tiles_of(scratch, tid)
                subtract_tiles(unit, unit_rows, B_i, T_rows[i0:], X_low, ZERO, i0 // DEPTH, ZERO, size, ZERO, s1, T)
            _multiply_left(B, i0, size, j, columns, W, copy, gemm)
            round_strips(B_i, X_low, i0 // 2, ZERO, s1, fp16)
    end(unit)


#: What is called where solves with fp32 triangles are not BLAS's, and what besides where a unit multiplies.
BY_INVERSES = (invert_blocks, solve_right, solve_left)
BY_UNITS = (solve_right_rounded, solve_left_rounded)
