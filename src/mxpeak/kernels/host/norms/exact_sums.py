"""Sums that come out the same whatever the order: each entry cut into pieces that fp64 adds without rounding.

With every |x| <= 1 and at most N of them, let σ = 1.5·2^k with 2^k >= 2·N.  Then q = (σ + x) - σ is x rounded to a
multiple of 2^(k-52), N of them sum up exactly, and x - q is exact, too: it goes on to the next, finer fold (Rump 2009;
Demmel, Nguyen 2013).  Not a bit of such sums depends on threads, tiles or ranks.  Nothing here may be reassociated or
contracted, so these functions are compiled without fast-math.
"""

from __future__ import annotations

import numpy as np

from mxpeak.kernels.host.engine.jit import inner, jit
from mxpeak.kernels.host.engine.vector_ir import vector_at
from mxpeak.kernels.host.norms.magnitude import ordered, safe_magnitude, scaled, scaled_square
from mxpeak.kernels.host.norms.partition import LINE0, POSITION0, TURNED, chunks, cut, reach, segment
from mxpeak.kernels.host.norms.segments import COLUMNS, ROWS, SEGMENT

#: Partial sums along a line that are kept side by side, so that they go by vectors.
LANES = 64


@inner()
def _largest_across(a, tops):
    for j in range(a.shape[0]):
        tops[j] = max(tops[j], ordered(safe_magnitude(a[j])))


@inner()
def _largest_along(a):
    top = np.int64(0)
    for j in range(a.shape[0]):
        top = max(top, ordered(safe_magnitude(a[j])))
    return top


@jit()
def maxima(tid, threads, want, sample, tiles, buffers, by_row, by_column):
    """max_j |a_ij| and max_i |a_ij| as the bits of fp64 numbers, into this thread's copy."""
    number, buffer = 0, np.int64(buffers.ctypes.data) + tid * buffers.shape[1] * sample.itemsize
    for t in range(tiles.shape[0]):
        tile = tiles[t]
        row_lines = tile[TURNED] == 0
        by_line, by_position = (by_row[tid], by_column[tid]) if row_lines else (by_column[tid], by_row[tid])
        along, across = (want & ROWS, want & COLUMNS) if row_lines else (want & COLUMNS, want & ROWS)
        for c in range((tid - number) % threads, chunks(tile), threads):
            line0, line1, begin, end = cut(tile, c)
            for line in range(line0, line1):
                low, high = reach(tile, line, begin, end)
                for s in range(low, high, SEGMENT):
                    e = min(high, s + SEGMENT)
                    a = vector_at(segment(tile, line, s, e, sample, buffer), e - s, sample)
                    if along:
                        at = tile[LINE0] + line
                        by_line[at] = max(by_line[at], _largest_along(a))
                    if across:
                        at = tile[POSITION0] + s
                        _largest_across(a, by_position[at : at + a.shape[0]])
        number += chunks(tile)


@inner()
def _values_across(a, squared, factors, values):
    """values_j = |f_j·f_j·a_j|, or its square."""
    if squared:
        for j in range(a.shape[0]):
            values[j] = scaled_square(a[j], factors[j])
    else:
        for j in range(a.shape[0]):
            values[j] = scaled(a[j], factors[j])


@inner()
def _values_along(a, squared, factor, values):
    """values_j = |f·f·a_j|, or its square."""
    if squared:
        for j in range(a.shape[0]):
            values[j] = scaled_square(a[j], factor)
    else:
        for j in range(a.shape[0]):
            values[j] = scaled(a[j], factor)


@inner()
def fold(values, sigma, sums):
    """sums_j += q_j and values_j -= q_j, with q_j = (σ + values_j) - σ."""
    for j in range(values.shape[0]):
        q = (sigma + values[j]) - sigma
        sums[j] += q
        values[j] -= q


@inner()
def _fold_along(values, sigmas, lanes, sums, at):
    """The same where all values belong to one sum, the one at `at`."""
    for k in range(sigmas.shape[0]):
        lanes[:] = 0.0
        for j in range(0, values.shape[0], LANES):
            part = values[j : j + LANES]
            fold(part, sigmas[k], lanes[: part.shape[0]])
        for i in range(LANES):
            sums[k, at] += lanes[i]


@jit(allocates=True)
def folded_sums(
    tid, threads, want, squared, sample, tiles, buffers, sigmas, row_factors, column_factors, by_row, by_column
):
    """Σ_j and Σ_i of the scaled entries, or of their squares, fold by fold, into this thread's copy."""
    number, buffer = 0, np.int64(buffers.ctypes.data) + tid * buffers.shape[1] * sample.itemsize
    lanes, values = np.zeros(LANES), np.zeros(SEGMENT)
    for t in range(tiles.shape[0]):
        tile = tiles[t]
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
                    a = vector_at(segment(tile, line, s, e, sample, buffer), e - s, sample)
                    mine = values[: a.shape[0]]
                    if along:
                        _values_along(a, squared, line_factors[tile[LINE0] + line], mine)
                        _fold_along(mine, sigmas, lanes, by_line, tile[LINE0] + line)
                    if across:
                        at = tile[POSITION0] + s
                        _values_across(a, squared, position_factors[at : at + a.shape[0]], mine)
                        for k in range(sigmas.shape[0]):
                            fold(mine, sigmas[k], by_position[k, at : at + a.shape[0]])
        number += chunks(tile)
