"""Compute the sums of `norm_pass` in double-double arithmetic, to check norms.

Every number is an unevaluated sum of two fp64 numbers, high + low. Sums and products of two fp64 numbers are split
into the rounded result and the rounding error, which is exact (Knuth; Dekker 1971; Ogita, Rump and Oishi 2005):

    s = x + y,  t = s - x,  rest = (x - (s - t)) + (y - t)               x + y = s + rest
    p = x·x,    x = h + l (26 bits each),  rest = ((h·h - p) + 2·h·l) + l·l       x·x = p + rest

The relative error of a sum of n terms is about (n·2^-53)². A modulus is the square root of |z|², corrected by one step
of Newton's method. Squares must stay within the range of fp64, which is true for generated entries. These functions
omit the optimizations of `norm_pass`. They are compiled without fast-math, because their operations must not be
reassociated or contracted.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from mxpeak.kernels.host.engine.jit import inner, jit
from mxpeak.kernels.host.engine.vector_ir import bits_of, float_of, vector_at
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
from mxpeak.kernels.host.norms.segments import SEGMENT

#: Interleaved partial sums along a line, which allow the loop to vectorize.
LANES = 256
#: Columns that are summed at a time, which limits the workspace.
COLUMNS = 2**14
#: The factor that splits an fp64 number into halves of 26 bits.
HALVES = 2.0**27 + 1.0
#: Codes of the entry types. All types share one compiled function, because each version takes a second to compile.
COMPLEX128, COMPLEX64, FP64, FP32, BITS = range(5)
KINDS = {np.dtype(name): kind for kind, name in enumerate(("complex128", "complex64", "float64", "float32"))}
#: A one-element array of each type, from which `segment` derives the type.
Z, C, D, S, H = (np.zeros(1, name) for name in ("complex128", "complex64", "float64", "float32", "uint16"))


class ExtendedSums(NamedTuple):
    """The results of `extended_pass`, one copy per thread. Each sum consists of a high and a low fp64 number.

    by_row, by_column   Σ|a_ij|, high and low
    tops, counts        the largest |a_ij|, and the number of entries read
    squares             Σ|a_ij|², high and low, in interleaved partial sums
    """

    by_row: np.ndarray
    by_column: np.ndarray
    tops: np.ndarray
    squares: np.ndarray
    counts: np.ndarray


@inner()
def _squared(x):
    """Return x·x as (p, rest), where p is the rounded square and `rest` is its rounding error."""
    p, c = x * x, HALVES * x
    h = c - (c - x)
    l = x - h
    return p, ((h * h - p) + 2.0 * h * l) + l * l


@inner()
def _modulus(re, im):
    """Return |z| and |z|², each as high and low, for z = re + i·im."""
    p, p_rest = _squared(re)
    q, q_rest = _squared(im)
    s = p + q
    t = s - p
    rest = ((p - (s - t)) + (q - t)) + (p_rest + q_rest)
    root = math.sqrt(s)
    again, again_rest = _squared(root)
    correction = (((s - again) - again_rest) + rest) / max(root + root, 2.0**-1000)
    x = root + correction
    return x, correction - (x - root), s, rest


@inner()
def _of_complex(z, x, y, q, r):
    """Store |z_j| as x_j + y_j, and |z_j|² as q_j + r_j, for complex entries z_j."""
    for j in range(z.shape[0]):
        x[j], y[j], q[j], r[j] = _modulus(np.float64(z[j].real), np.float64(z[j].imag))


@inner()
def _of_real(a, x, y, q, r):
    """Store |a_j| as x_j + y_j, and |a_j|² as q_j + r_j, for real entries a_j."""
    for j in range(a.shape[0]):
        x[j], y[j] = abs(np.float64(a[j])), 0.0
        q[j], r[j] = _squared(x[j])


@inner()
def _of_bits(a, values, x, y, q, r):
    """Store |a_j| as x_j + y_j, and |a_j|² as q_j + r_j, for 16-bit entries a_j.

    The table `values` contains |a| for each bit pattern a.
    """
    for j in range(a.shape[0]):
        x[j], y[j] = values[a[j]], 0.0
        q[j], r[j] = _squared(x[j])


@inner()
def _expand(kind, position, begin, end, values, parts):
    """Store |a_j| as x_j + y_j, and |a_j|² as q_j + r_j, for entries begin:end of a line.

    position   the tile, the line, and the address of the thread's buffer
    parts      the arrays x, y, q and r
    """
    (tile, line, buffer), (x, y, q, r), count = position, parts, end - begin
    if kind == COMPLEX128:
        _of_complex(vector_at(segment(TileReader(tile, Z, buffer), line, begin, end, 0), count, Z), x, y, q, r)
    elif kind == COMPLEX64:
        _of_complex(vector_at(segment(TileReader(tile, C, buffer), line, begin, end, 0), count, C), x, y, q, r)
    elif kind == FP64:
        _of_real(vector_at(segment(TileReader(tile, D, buffer), line, begin, end, 0), count, D), x, y, q, r)
    elif kind == FP32:
        _of_real(vector_at(segment(TileReader(tile, S, buffer), line, begin, end, 0), count, S), x, y, q, r)
    else:
        _of_bits(vector_at(segment(TileReader(tile, H, buffer), line, begin, end, 0), count, H), values, x, y, q, r)


@inner()
def _add(x, y, high, low):
    """Add the double-double numbers x_j + y_j to high_j + low_j, in place."""
    for j in range(x.shape[0]):
        s = high[j] + x[j]
        t = s - high[j]
        low[j] += ((high[j] - (s - t)) + (x[j] - t)) + y[j]
        high[j] = s


@inner()
def _add_along(x, y, lanes):
    """Add the double-double numbers x_j + y_j of a segment to interleaved partial sums."""
    for j in range(0, x.shape[0], LANES):
        count = min(LANES, x.shape[0] - j)
        _add(x[j : j + count], y[j : j + count], lanes[0, :count], lanes[1, :count])


@inner()
def _largest(x):
    """Return max x_j, or NaN if any x_j is NaN."""
    top = np.int64(0)
    for j in range(x.shape[0]):
        top = max(top, np.int64(bits_of(x[j])))
    return float_of(np.uint64(top))


@jit(allocates=True)
def extended_pass(tid, threads, kind, table, buffers, values, sums):
    """Add the entries in thread tid's chunks of all tiles to this thread's `ExtendedSums`; `buffers` are bytes."""
    number, buffer, squares = 0, buffer_of(buffers, tid), sums.squares[tid]
    work, lanes = np.empty((4, SEGMENT)), np.empty((2, LANES))
    for t in range(table.shape[0]):
        tile = table[t]
        turned = tile[TURNED] != 0
        by_row, by_column = sums.by_row[tid], sums.by_column[tid]
        by_line, by_position = (by_column, by_row) if turned else (by_row, by_column)
        for c in range((tid - number) % threads, chunks(tile), threads):
            line0, line1, begin, end = cut(tile, c)
            for line in range(line0, line1):
                low, high = reach(tile, line, begin, end)
                lanes[:] = 0.0
                for s in range(low, high, SEGMENT):
                    e = min(high, s + SEGMENT)
                    count, at = e - s, tile[POSITION0] + s
                    x, y, q, r = work[0, :count], work[1, :count], work[2, :count], work[3, :count]
                    _expand(kind, (tile, line, buffer), s, e, values, (x, y, q, r))
                    sums.tops[tid], sums.counts[tid] = max(sums.tops[tid], _largest(x)), sums.counts[tid] + count
                    _add(x, y, by_position[0, at : at + count], by_position[1, at : at + count])
                    _add_along(x, y, lanes)
                    _add_along(q, r, squares)
                at = tile[LINE0] + line
                for lane in range(LANES):
                    high_of_lane, low_of_lane = lanes[0, lane : lane + 1], lanes[1, lane : lane + 1]
                    _add(high_of_lane, low_of_lane, by_line[0, at : at + 1], by_line[1, at : at + 1])
        number += chunks(tile)


def values_of(dtype):
    """Return the absolute values of all numbers of a 16-bit type, indexed by their bits.

    For wider types, the array is empty.
    """
    if dtype.itemsize > 2:
        return np.zeros(0)
    with np.errstate(all="ignore"):  # some of the values are NaN
        return np.abs(np.arange(2**16, dtype=np.uint16).view(dtype).astype(np.float64))


def paired_sum(terms):
    """Return the sum of all rows of all matrices in `terms`, as two rows: high and low."""
    total = np.empty((2, terms[0].shape[1]))
    for j in range(0, total.shape[1], COLUMNS):
        total[:, j : j + COLUMNS] = _sum_by_halves([term[:, j : j + COLUMNS] for term in terms])
    return total


def _sum_by_halves(terms):
    """Return the sum of all rows of all matrices in `terms`, as two rows: high and low.

    The function adds the second half of the rows to the first half until one row remains.
    """
    high = np.concatenate([np.zeros((1, terms[0].shape[1])), *terms])
    low = np.zeros_like(high)
    while len(high) > 1:
        half = len(high) // 2
        x, y, odd = high[:half], high[half : 2 * half], slice(2 * half, None)
        s = x + y
        t = s - x
        rest = (x - (s - t)) + (y - t)
        low = np.concatenate([low[:half] + low[half : 2 * half] + rest, low[odd]])
        high = np.concatenate([s, high[odd]])
    total = high[0] + low[0]
    return np.stack([total, low[0] - (total - high[0])])
