"""Compute reproducible sums: each entry is split into pieces that fp64 adds without rounding, in any order.

For at most N entries with |x| <= 1, let σ = 1.5·2^k with 2^k >= 2·N. Then q = (σ + x) - σ is x rounded to a multiple
of 2^(k-52). The sum of N such numbers q is exact. The difference x - q is also exact and is added to the next, finer
fold (Rump 2009; Demmel and Nguyen 2013). The sums are bitwise independent of threads, tiles and ranks. These functions
are compiled without fast-math, because their operations must not be reassociated or contracted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types

from mxpeak.kernels.host.engine.jit import by_type, inner, jit
from mxpeak.kernels.host.engine.vector_ir import vector_at
from mxpeak.kernels.host.norms.magnitude import ordered, safe_magnitude, scaled, scaled_square
from mxpeak.kernels.host.norms.partition import (
    LINE0,
    POSITION0,
    TURNED,
    TileReader,
    buffer_of,
    chunks,
    cut,
    reach,
    segment,
)
from mxpeak.kernels.host.norms.segments import COLUMNS, ROWS, SEGMENT, SQUARES

#: Interleaved partial sums along a line, which allow the loop to vectorize.
LANES = 64


class Folds(NamedTuple):
    """The constants σ of the folds, the scale factors of the rows and columns, and each thread's sums by fold."""

    sigmas: Any
    row_factors: Any
    column_factors: Any
    by_row: Any
    by_column: Any


@inner()
def _largest_across(a, tops):
    """Raise tops_j to |a_j| if it is smaller. Both are compared as the bits of fp64 numbers."""
    for j in range(a.shape[0]):
        tops[j] = max(tops[j], ordered(safe_magnitude(a[j])))


@inner()
def _largest_along(a):
    """Return max |a_j| as the bits of an fp64 number."""
    top = np.int64(0)
    for j in range(a.shape[0]):
        top = max(top, ordered(safe_magnitude(a[j])))
    return top


@jit()
def maxima(tid, threads, want, table, buffers, by_row, by_column):
    """Store max_j |a_ij| per row and max_i |a_ij| per column in this thread's copies, as the bits of fp64 numbers."""
    number = 0
    for t in range(table.shape[0]):
        tile = table[t]
        reader = TileReader(tile, buffers[tid], buffer_of(buffers, tid))
        row_lines = tile[TURNED] == 0
        by_line, by_position = (by_row[tid], by_column[tid]) if row_lines else (by_column[tid], by_row[tid])
        along, across = (want & ROWS, want & COLUMNS) if row_lines else (want & COLUMNS, want & ROWS)
        for c in range((tid - number) % threads, chunks(tile), threads):
            line0, line1, begin, end = cut(tile, c)
            for line in range(line0, line1):
                low, high = reach(tile, line, begin, end)
                for s in range(low, high, SEGMENT):
                    e = min(high, s + SEGMENT)
                    a = vector_at(segment(reader, line, s, e, 0), e - s, buffers)
                    if along:
                        at = tile[LINE0] + line
                        by_line[at] = max(by_line[at], _largest_along(a))
                    if across:
                        at = tile[POSITION0] + s
                        _largest_across(a, by_position[at : at + a.shape[0]])
        number += chunks(tile)


@by_type
def _factor(f, j):
    """Return f_j if f is an array, otherwise f itself, which then applies to all entries."""
    return (lambda f, j: f[j]) if isinstance(f, types.Array) else lambda f, j: f


@inner()
def _scale(a, squared, f, values):
    """Store values_j = |f_j·f_j·a_j|, or the square of this number if `squared`."""
    if squared:
        for j in range(a.shape[0]):
            values[j] = scaled_square(a[j], _factor(f, j))
    else:
        for j in range(a.shape[0]):
            values[j] = scaled(a[j], _factor(f, j))


@inner()
def fold(values, sigma, sums):
    """Split q_j = (σ + values_j) - σ off each value: add q_j to sums_j, and subtract q_j from values_j."""
    for j in range(values.shape[0]):
        q = (sigma + values[j]) - sigma
        sums[j] += q
        values[j] -= q


@inner()
def _fold_along(values, sigmas, lanes, sums, at):
    """Add all values to one sum with several folds: the part of fold k goes to sums[k, at]."""
    for k in range(sigmas.shape[0]):
        lanes[:] = 0.0
        for j in range(0, values.shape[0], LANES):
            part = values[j : j + LANES]
            fold(part, sigmas[k], lanes[: part.shape[0]])
        for i in range(LANES):
            sums[k, at] += lanes[i]


@jit(allocates=True)
def folded_sums(tid, threads, want, table, buffers, folds):
    """Add the sums of the scaled entries to this thread's copies, by fold.

    If `want` contains SQUARES, the squares of the scaled entries are summed instead.
    """
    sigmas, row_factors, column_factors, by_row, by_column = folds
    number, squared, lanes, values = 0, want & SQUARES != 0, np.zeros(LANES), np.zeros(SEGMENT)
    for t in range(table.shape[0]):
        tile = table[t]
        reader = TileReader(tile, buffers[tid], buffer_of(buffers, tid))
        row_lines = tile[TURNED] == 0
        by_line, by_position = (by_row[tid], by_column[tid]) if row_lines else (by_column[tid], by_row[tid])
        line_factors, position_factors = (row_factors, column_factors) if row_lines else (column_factors, row_factors)
        along, across = (want & ROWS, want & COLUMNS) if row_lines else (want & COLUMNS, want & ROWS)
        for c in range((tid - number) % threads, chunks(tile), threads):
            line0, line1, begin, end = cut(tile, c)
            for line in range(line0, line1):
                low, high = reach(tile, line, begin, end)
                for s in range(low, high, SEGMENT):
                    e = min(high, s + SEGMENT)
                    a = vector_at(segment(reader, line, s, e, 0), e - s, buffers)
                    scaled_values = values[: a.shape[0]]
                    if along:
                        _scale(a, squared, line_factors[tile[LINE0] + line], scaled_values)
                        _fold_along(scaled_values, sigmas, lanes, by_line, tile[LINE0] + line)
                    if across:
                        at = tile[POSITION0] + s
                        _scale(a, squared, position_factors[at : at + a.shape[0]], scaled_values)
                        for k in range(sigmas.shape[0]):
                            fold(scaled_values, sigmas[k], by_position[k, at : at + a.shape[0]])
        number += chunks(tile)
