"""Solve with the triangle of a panel's diagonal block for many right-hand sides, by a matrix engine and inverses.

X = B T^-1 is computed by blocks of 64 columns. For an upper T:

    X_j = (B_j - Σ_(i<j) X_i T_ij) T_jj^-1                the inverses computed in fp64

The matrix engine computes the sums with 16-bit operands, to which it rounds X_i and T_ij. An LU with blocks of 64
rounds in the same way in its trailing updates, so the error bound of the LU does not change.

B_j T_jj^-1 has an error of u·|X_j||T_jj||T_jj^-1||T_jj|, compared with u·|X_j||T_jj| for substitution. The first error
can be much larger if T_jj is ill-conditioned, for example after a small pivot in an LU without pivoting. The caller
then substitutes.
"""

from __future__ import annotations

import math

import numpy as np
from numba import types

from mxpeak.kernels.host.engine.jit import FLAG, INT, MATRIX32, VECTOR, ZERO, inner, jit
from mxpeak.kernels.host.engine.matrix_engines import COLUMNS, DEPTH, ROWS, begin, end
from mxpeak.kernels.host.engine.vector_ir import gemm_at, row, row_block
from mxpeak.kernels.host.lu.operands import (
    ENGINE,
    PAIRS,
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
from mxpeak.kernels.host.lu.triangle import add, dot_squared

#: The order of the inverted diagonal blocks.
BLOCK = 64
#: The largest growth of variances for which inverses are used with operands in fp32; a wider u multiplies it by the
#: square of the ratio. A well-scaled block of HPL-MxP has a growth below 2, and the variance of a sum of 64 products is
#: ten times the variance of one rounding.
MAX_GROWTH = 16.0
#: Right-hand sides that are solved together. With the columns of a block, they fit into the second-level cache.
CHUNK = 384


@inner()
def _add_squared(upper, T, j0, x, y):
    """Add (T_jj∘T_jj) x to y for the diagonal block T_jj at index j0 of an upper or unit lower triangle T."""
    size = x.shape[0]
    for i in range(size):
        first, last = (i, size) if upper else (0, i)
        a = row(T, j0 + i, j0 + first, j0 + last)
        total = 0.0 if upper else x[i]
        for k in range(a.shape[0]):
            total += np.float64(a[k]) * np.float64(a[k]) * x[first + k]
        y[i] += total


@inner()
def _growth(upper, T, j0, W, sums):
    """Return the factor by which an inverse W of T_jj increases the variance of rounding errors.

    The factor compares T_jj W T_jj with T_jj. It is max_i z_i / t_i with t = (T_jj∘T_jj) e and
    z = (T_jj∘T_jj) (W∘W) t, where e is the vector of ones. `sums` is workspace for t, (W∘W) t and z.
    """
    size, worst = W.shape[0], 0.0
    sums[:] = 0.0
    t, inner_sums, z = sums[0, :size], sums[1, :size], sums[2, :size]
    z[:] = 1.0
    _add_squared(upper, T, j0, z, t)
    z[:] = 0.0
    for i in range(size):
        inner_sums[i] = dot_squared(row(W, i, 0, size), t)
    _add_squared(upper, T, j0, inner_sums, z)
    for i in range(size):
        growth = z[i] / t[i]
        if growth > worst or growth != growth:
            worst = growth
    return worst


@inner()
def _invert(upper, T, j0, W):
    """Compute W = T_jj^-1 by rows, where T_jj is the diagonal block at index j0 of T.

    w_i = (e_i - Σ t_ik w_k) / t_ii. In an upper triangle, the last row is computed first.
    """
    size = W.shape[0]
    W[:] = 0.0
    for step in range(size):
        i = size - 1 - step if upper else step
        w_i = row(W, i, 0, size)
        w_i[i] = 1.0
        for k in range(i + 1 if upper else 0, size if upper else i):
            first, last = (k, size) if upper else (0, k + 1)
            add(row(W, i, first, last), -np.float64(T[j0 + i, j0 + k]), row(W, k, first, last))
        if upper:
            for c in range(i, size):
                w_i[c] /= np.float64(T[j0 + i, j0 + i])


@jit(INT, INT, FLAG, MATRIX32, VECTOR, allocates=True, later=True)
def invert_blocks(tid, threads, upper, T, growth):
    """Invert this thread's diagonal blocks of an upper or a unit lower triangle T, in place.

    growth[tid] becomes the largest factor by which an inverse increases the variance of rounding errors, or NaN.
    """
    n, worst = T.shape[0], 0.0
    inverse, sums = np.empty((BLOCK, BLOCK)), np.empty((3, BLOCK))
    for j0 in range(tid * BLOCK, n, threads * BLOCK):
        size = min(BLOCK, n - j0)
        W = inverse[:size, :size]
        _invert(upper, T, j0, W)
        block_growth = _growth(upper, T, j0, W, sums)
        if block_growth > worst or block_growth != block_growth:
            worst = block_growth
        T[j0 : j0 + size, j0 : j0 + size] = W
    growth[tid] = worst


def rows_of_X(threads: int, n: int) -> np.ndarray:
    """Return one buffer per thread in which a chunk of X is stored as a left operand."""
    stride = left_stride(n)
    return aligned(threads * (CHUNK + ROWS) * stride, np.dtype(np.int32)).reshape(threads, CHUNK + ROWS, stride)


def strips_of_X(threads: int, n: int) -> np.ndarray:
    """Return one buffer per thread in which a chunk of X is stored as a right operand."""
    shape = threads, CHUNK // COLUMNS, pairs_along(n), COLUMNS
    return aligned(math.prod(shape), np.dtype(np.int32)).reshape(shape)


@inner()
def _move_out(source, target):
    """Copy `source` to `target`, and then set `source` to zero, because a product is added to it afterwards."""
    for c in range(source.shape[0]):
        target[c], source[c] = source[c], source.dtype.type(0)


@inner()
def _multiply(right, B, at, count, k, size, W, copy, gemm):
    """Compute B_k = B_k W_kk for `count` rows of B, or B_k = W_kk B_k for `count` columns unless `right`.

    W_kk is the inverted diagonal block at index k. BLAS computes the transposed product.
    """
    i, j, rows, columns = (at, k, count, size) if right else (k, at, size, count)
    for r in range(rows):
        _move_out(row(B, i + r, j, j + columns), row(copy, r, 0, columns))
    W_kk, C = row_block(W, k, k), row_block(copy, 0, 0)
    first, second = (W_kk, C) if right else (C, W_kk)
    gemm_at(gemm, W.dtype.type(1), (columns, rows, size), first, second, row_block(B, i, j))


@jit(INT, INT, ENGINE, FLAG, MATRIX32, MATRIX32, STRIPS, types.int32[:, :, ::1], INT, allocates=True, later=True)
def solve_right_rounded(tid, threads, engine, fp16, B, W, T_strips, X_rows, gemm):
    """Compute B = B T^-1 in place for this thread's rows of B, with products by the matrix engine.

    T_strips is T as a right operand, and X_rows[tid] is a buffer for X as a left operand.
    """
    n, X_low = W.shape[0], X_rows[tid]
    copy = np.empty((CHUNK, BLOCK), np.float32)
    r0, r1 = part_of(tid, threads, B.shape[0])
    begin(engine.code, np.int64(engine.config.ctypes.data))
    for i in range(r0, r1, CHUNK):
        rows = min(CHUNK, r1 - i)
        for j0 in range(0, n, BLOCK):
            size = min(BLOCK, n - j0)
            B_j, s0 = B[i : i + rows, j0 : j0 + size], j0 // COLUMNS
            if j0 > 0:
                strips, depths, T = T_strips[s0 : s0 + BLOCK // COLUMNS], j0 // DEPTH, tiles_of(engine, tid)
                subtract_tiles(engine, B_j, X_low, strips, ZERO, depths, (ZERO, rows), (ZERO, strips.shape[0]), T)
            _multiply(True, B, i, rows, j0, size, W, copy, gemm)
            round_rows(B_j, X_low[:, j0 // 2 : (j0 + BLOCK) // 2], ZERO, rows, fp16)
    end(engine.code)


@jit(INT, INT, ENGINE, FLAG, MATRIX32, MATRIX32, PAIRS, types.int32[:, :, :, ::1], INT, allocates=True, later=True)
def solve_left_rounded(tid, threads, engine, fp16, B, W, T_rows, X_strips, gemm):
    """Compute B = T^-1 B in place for this thread's columns of B, with products by the matrix engine.

    T_rows is T as a left operand, and X_strips[tid] is a buffer for X as a right operand.
    """
    n, X_low = W.shape[0], X_strips[tid]
    copy = np.empty((BLOCK, CHUNK), np.float32)
    c0, c1 = part_of(tid, threads, B.shape[1])
    begin(engine.code, np.int64(engine.config.ctypes.data))
    for j in range(c0, c1, CHUNK):
        columns = min(CHUNK, c1 - j)
        s1 = -(-columns // COLUMNS)
        for i0 in range(0, n, BLOCK):
            size = min(BLOCK, n - i0)
            B_i = B[i0 : i0 + size, j : j + columns]
            if i0 > 0:
                T = tiles_of(engine, tid)
                subtract_tiles(engine, B_i, T_rows[i0:], X_low, ZERO, i0 // DEPTH, (ZERO, size), (ZERO, s1), T)
            _multiply(False, B, j, columns, i0, size, W, copy, gemm)
            round_strips(B_i, X_low, i0 // 2, ZERO, s1, fp16)
    end(engine.code)


#: The entry points of solves with inverses.
ENTRIES = (invert_blocks, solve_right_rounded, solve_left_rounded)
