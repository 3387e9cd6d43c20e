"""What norms are checked against: the sums of `norm_pass` once more, in doubled precision and without its shortcuts.

Every number is an unevaluated sum of two fp64 numbers, high + low.  Sums and products of two fp64 numbers are split
into what is rounded and what is rounded off, without error (Knuth; Dekker 1971; Ogita, Rump and Oishi 2005):

    s = x + y,  t = s - x,  rest = (x - (s - t)) + (y - t)               x + y = s + rest
    p = x·x,    x = h + l (26 bits each),  rest = ((h·h - p) + 2·h·l) + l·l       x·x = p + rest

so that sums of n terms are right to about (n·2^-53)² of their value.  A modulus is the root of |z|², corrected by a
step of Newton's method.  Squares must stay within fp64's range, as those of generated entries do.  Nothing here may be
reassociated or contracted, so these functions are compiled without fast-math.
"""

from __future__ import annotations

import math

import numpy as np

from mxpeak.kernels.host.engine.jit import inner, jit
from mxpeak.kernels.host.engine.vector_ir import bits_of, float_of, vector_at
from mxpeak.kernels.host.norms.partition import LINE0, POSITION0, TURNED, chunks, cut, reach, segment
from mxpeak.kernels.host.norms.segments import SEGMENT

#: Partial sums along a line that are kept side by side, so that they go by vectors.
LANES = 256
#: Columns that are summed at a time, so that little memory is taken for it.
COLUMNS = 2**14
#: Cuts an fp64 number into halves of 26 bits.
HALVES = 2.0**27 + 1.0
#: Kinds of entries: one form of the code is for all types, for it takes a second to compile and is used now and then.
COMPLEX128, COMPLEX64, FP64, FP32, BITS = range(5)
KINDS = {np.dtype(name): kind for kind, name in enumerate(("complex128", "complex64", "float64", "float32"))}
#: An entry of each: what `segment` and `vector_at` know a type by.
Z, C, D, S, H = (np.zeros(1, name) for name in ("complex128", "complex64", "float64", "float32", "uint16"))


@inner()
def _squared(x):
    """x·x as p + rest."""
    p, c = x * x, HALVES * x
    h = c - (c - x)
    l = x - h
    return p, ((h * h - p) + 2.0 * h * l) + l * l


@inner()
def _modulus(re, im):
    """|z| and |z|², each as high and low."""
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
    for j in range(z.shape[0]):
        x[j], y[j], q[j], r[j] = _modulus(np.float64(z[j].real), np.float64(z[j].imag))


@inner()
def _of_real(a, x, y, q, r):
    for j in range(a.shape[0]):
        x[j], y[j] = abs(np.float64(a[j])), 0.0
        q[j], r[j] = _squared(x[j])


@inner()
def _of_bits(a, values, x, y, q, r):
    for j in range(a.shape[0]):
        x[j], y[j] = values[a[j]], 0.0
        q[j], r[j] = _squared(x[j])


@inner()
def _expand(kind, tile, line, s, e, buffer, values, x, y, q, r):
    """x_j + y_j = |a_j| and q_j + r_j = |a_j|² of a segment; `values` are those of 16-bit entries, by their bits."""
    if kind == COMPLEX128:
        _of_complex(vector_at(segment(tile, line, s, e, Z, buffer), e - s, Z), x, y, q, r)
    elif kind == COMPLEX64:
        _of_complex(vector_at(segment(tile, line, s, e, C, buffer), e - s, C), x, y, q, r)
    elif kind == FP64:
        _of_real(vector_at(segment(tile, line, s, e, D, buffer), e - s, D), x, y, q, r)
    elif kind == FP32:
        _of_real(vector_at(segment(tile, line, s, e, S, buffer), e - s, S), x, y, q, r)
    else:
        _of_bits(vector_at(segment(tile, line, s, e, H, buffer), e - s, H), values, x, y, q, r)


@inner()
def _add(x, y, high, low):
    """high_j + low_j += x_j + y_j."""
    for j in range(x.shape[0]):
        s = high[j] + x[j]
        t = s - high[j]
        low[j] += ((high[j] - (s - t)) + (x[j] - t)) + y[j]
        high[j] = s


@inner()
def _add_along(x, y, lanes):
    """The same, into sums that stand side by side."""
    for j in range(0, x.shape[0], LANES):
        count = min(LANES, x.shape[0] - j)
        _add(x[j : j + count], y[j : j + count], lanes[0, :count], lanes[1, :count])


@inner()
def _largest(x):
    top = np.int64(0)
    for j in range(x.shape[0]):
        top = max(top, np.int64(bits_of(x[j])))
    return float_of(np.uint64(top))


@jit(allocates=True)
def extended_pass(tid, threads, kind, tiles, buffers, values, by_row, by_column, tops, squares, counts):
    """Thread tid's chunks of all tiles (see `norm_pass`), into this thread's copies.

    buffers             bytes, a line of them for each thread
    by_row, by_column   Σ|a_ij|, high and low
    tops, counts        the largest |a_ij|, and how many entries were read
    squares             Σ|a_ij|², high and low, in lanes to be added up
    """
    number, buffer = 0, np.int64(buffers.ctypes.data) + tid * buffers.shape[1]
    work, lanes = np.empty((4, SEGMENT)), np.empty((2, LANES))
    for t in range(tiles.shape[0]):
        tile = tiles[t]
        turned = tile[TURNED] != 0
        by_line, by_position = (by_column[tid], by_row[tid]) if turned else (by_row[tid], by_column[tid])
        for c in range((tid - number) % threads, chunks(tile), threads):
            line0, line1, begin, end = cut(tile, c)
            for line in range(line0, line1):
                low, high = reach(tile, line, begin, end)
                lanes[:] = 0.0
                for s in range(low, high, SEGMENT):
                    e = min(high, s + SEGMENT)
                    count, at = e - s, tile[POSITION0] + s
                    x, y, q, r = work[0, :count], work[1, :count], work[2, :count], work[3, :count]
                    _expand(kind, tile, line, s, e, buffer, values, x, y, q, r)
                    tops[tid], counts[tid] = max(tops[tid], _largest(x)), counts[tid] + count
                    _add(x, y, by_position[0, at : at + count], by_position[1, at : at + count])
                    _add_along(x, y, lanes)
                    _add_along(q, r, squares[tid])
                at = tile[LINE0] + line
                for lane in range(LANES):
                    _add(
                        lanes[0, lane : lane + 1],
                        lanes[1, lane : lane + 1],
                        by_line[0, at : at + 1],
                        by_line[1, at : at + 1],
                    )
        number += chunks(tile)


def values_of(dtype):
    """The absolute values of all 16-bit numbers of a type, by their bits; nothing for wider types."""
    if dtype.itemsize > 2:
        return np.zeros(0)
    with np.errstate(all="ignore"):  # some of them are NaN
        return np.abs(np.arange(2**16, dtype=np.uint16).view(dtype).astype(np.float64))


def paired_sum(terms):
    """The sum of all rows of matrices, high and low."""
    total = np.empty((2, terms[0].shape[1]))
    for j in range(0, total.shape[1], COLUMNS):
        total[:, j : j + COLUMNS] = _sum_by_halves([term[:, j : j + COLUMNS] for term in terms])
    return total


def _sum_by_halves(terms):
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
