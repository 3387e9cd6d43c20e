"""Compute sums and maxima of segments of one or four lines: max |a_j|, Σ |a_j| along and across lines, and Σ |a_j|².

Four lines are processed together, so that the sums across lines are loaded and stored once per four entries.

Squares are added to three sums (Blue 1978; Anderson 2017): one of unscaled numbers, one of large numbers scaled down
and one of small numbers scaled up. Each sum can be added over threads and ranks, and none overflows or underflows. If
the sum or the largest part of a segment indicates that its squares might overflow or underflow, the segment is read
again from the cache with scaling.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from mxpeak.kernels.contract.norms import DOWN, LARGE, SMALL, UP
from mxpeak.kernels.host.engine.jit import inner
from mxpeak.kernels.host.engine.vector_ir import float_of, piece
from mxpeak.kernels.host.norms.magnitude import (
    key,
    largest_part,
    least_key,
    magnitude,
    magnitude_may_overflow,
    of_key,
    ordered,
    safe_magnitude,
    scaled_square,
    square,
    square_may_overflow,
)

#: Entries of a line that are processed at a time: four lines of this length, and their sums, fit into the L1 cache.
SEGMENT = 1024
#: Flags that select the results of a pass. For a row-major tile, ALONG selects the sums by row. The flags are int64,
#: so that Numba compiles one version.
MAX, SQUARES, ALONG, ACROSS = (np.int64(2**bit) for bit in range(4))
ROWS, COLUMNS = ALONG, ACROSS
#: Sums of squares between these bounds need no scaling.
MIN_SUM, MAX_SUM = SMALL**2, LARGE**2

#: Sums may be reassociated. The flags nnan and ninf are omitted, because NaN and Inf have to propagate.
_FAST = {"reassoc", "contract"}


class Accumulators(NamedTuple):
    """The results of one thread, and workspace for sums that are discarded.

    tops        the bits of the largest entry so far
    squares     the three sums of squares
    waste       workspace of fp64 numbers, at least one segment
    """

    tops: np.ndarray
    squares: np.ndarray
    waste: np.ndarray


@inner()
def _largest(a):
    """Return max |a_j| over a segment, or NaN if any a_j is NaN."""
    top = least_key(a[0])
    for j in range(a.shape[0]):
        top = max(top, key(a[j]))
    return of_key(top, a[0])


@inner(fastmath=_FAST)
def _squares(a):
    """Return the sum of squares Σ |a_j|² of a segment."""
    total = 0.0
    for j in range(a.shape[0]):
        total += square(a[j])
    return total


@inner(fastmath=_FAST)
def _sum(a):
    """Return the sum Σ |a_j| of a segment."""
    total = 0.0
    for j in range(a.shape[0]):
        total += magnitude(a[j])
    return total


@inner()
def _largest_four(a, b, c, d):
    """Return the largest absolute value in four segments, or NaN if any entry is NaN."""
    top = least_key(a[0])
    for j in range(a.shape[0]):
        top = max(top, max(max(key(a[j]), key(b[j])), max(key(c[j]), key(d[j]))))
    return of_key(top, a[0])


@inner(fastmath=_FAST)
def _squares_four(a, b, c, d):
    """Return the sum of the squares of all entries of four segments."""
    s0 = s1 = s2 = s3 = 0.0
    for j in range(a.shape[0]):
        s0 += square(a[j])
        s1 += square(b[j])
        s2 += square(c[j])
        s3 += square(d[j])
    return (s0 + s1) + (s2 + s3)


@inner(fastmath=_FAST)
def _add_four(a, b, c, d, across):
    """Add the absolute values of the entries of four segments to `across`, the sums across lines."""
    for j in range(a.shape[0]):
        across[j] += (magnitude(a[j]) + magnitude(b[j])) + (magnitude(c[j]) + magnitude(d[j]))


@inner(fastmath=_FAST)
def _sum_four(a, b, c, d, across):
    """Return the four sums of absolute values along segments, and add the absolute values to `across`.

    If `across` is None, only the sums along the segments are computed.
    """
    s0 = s1 = s2 = s3 = 0.0
    for j in range(a.shape[0]):
        x0, x1, x2, x3 = magnitude(a[j]), magnitude(b[j]), magnitude(c[j]), magnitude(d[j])
        s0 += x0
        s1 += x1
        s2 += x2
        s3 += x3
        if across is not None:
            across[j] += (x0 + x1) + (x2 + x3)
    return s0, s1, s2, s3


@inner(fastmath=_FAST)
def _all_four(a, b, c, d, across):
    """Return the four sums Σ |x| along segments, max |x| and Σ |x|² over all four, and add |x| to `across`."""
    s0 = s1 = s2 = s3 = q0 = q1 = 0.0
    top = least_key(a[0])
    for j in range(a.shape[0]):
        x0, x1, x2, x3 = magnitude(a[j]), magnitude(b[j]), magnitude(c[j]), magnitude(d[j])
        top = max(top, max(max(key(a[j]), key(b[j])), max(key(c[j]), key(d[j]))))
        s0 += x0
        s1 += x1
        s2 += x2
        s3 += x3
        q0 += square(a[j]) + square(b[j])
        q1 += square(c[j]) + square(d[j])
        across[j] += (x0 + x1) + (x2 + x3)
    return s0, s1, s2, s3, of_key(top, a[0]), q0 + q1


@inner()
def _peak(a):
    """Return the largest absolute value of a real or imaginary part, or NaN if any part is NaN."""
    top = np.int64(0)
    for j in range(a.shape[0]):
        top = max(top, largest_part(a[j]))
    return float_of(np.uint64(top))


@inner()
def _safe(a, across):
    """Return Σ |a_j| and max |a_j| without overflow of squares, and add |a_j| to across_j."""
    total, top = 0.0, np.int64(0)
    for j in range(a.shape[0]):
        x = safe_magnitude(a[j])
        total += x
        top = max(top, ordered(x))
        across[j] += x
    return total, float_of(np.uint64(top))


@inner()
def _add_squares(a, total, squares):
    """Add Σ |a_j|² of a segment to Blue's three accumulators, `squares`.

    `total` is Σ |a_j|² without scaling. If it may have lost accuracy by overflow or underflow, the sum is computed
    again with scaling and added to the accumulator for its size.
    """
    if not square_may_overflow(a[0]) or MIN_SUM <= total <= MAX_SUM:
        squares[0] += total
        return
    peak = _peak(a)
    if peak == 0.0 or not peak < np.inf:
        squares[0] += peak
        return
    e = math.frexp(peak)[1]
    e += e & 1  # peak <= 2^e
    factor, small = math.ldexp(1.0, -e // 2), 0.0
    for j in range(a.shape[0]):
        small += scaled_square(a[j], factor)
    if peak > LARGE:
        squares[1] += small * (math.ldexp(1.0, e // 2) * DOWN * math.ldexp(1.0, e // 2)) ** 2
    elif peak < SMALL:
        squares[2] += small * (math.ldexp(1.0, e // 2) * UP * math.ldexp(1.0, e // 2)) ** 2
    else:
        squares[0] += small * math.ldexp(1.0, e) ** 2


@inner()
def _raise_to(tops, x):
    """Set tops[0] to the larger of tops[0] and x. Both are compared as the bits of fp64 numbers."""
    tops[0] = max(tops[0], ordered(x))


@inner()
def one_line(want, a, results):
    """Return Σ |a_j| of a segment, and update the largest entry and the sums of squares in `results`.

    Only the results in `want` are computed; without ALONG, the function returns 0.
    """
    if want & MAX:
        top = _largest(a)
        if magnitude_may_overflow(a[0]) and not (SMALL <= top <= LARGE):
            top = _safe(a, results.waste)[1]
        _raise_to(results.tops, top)
    if want & SQUARES:
        _add_squares(a, _squares(a), results.squares)
    if not want & ALONG:
        return 0.0
    total = _sum(a)
    if magnitude_may_overflow(a[0]) and not (SMALL <= total <= LARGE):
        total = _safe(a, results.waste)[0]
    return total


@inner()
def _four_apart(want, a, b, c, d, results):
    """Return the sums along four segments, and update the maximum and the squares in `results`.

    Sums across lines are not computed. Without ALONG in `want`, the function returns zeros.
    """
    if want & MAX:
        top = _largest_four(a, b, c, d)
        if magnitude_may_overflow(a[0]) and not (SMALL <= top <= LARGE):
            for x in (a, b, c, d):
                one_line(MAX, x, results)
        else:
            _raise_to(results.tops, top)
    if want & SQUARES:
        _add_squares_of_four(_squares_four(a, b, c, d), a, b, c, d, results.squares)
    if not want & ALONG:
        return 0.0, 0.0, 0.0, 0.0
    s0, s1, s2, s3 = _sum_four(a, b, c, d, None)
    if magnitude_may_overflow(a[0]) and not (SMALL <= s0 + s1 + s2 + s3 <= LARGE):
        s0, s1 = one_line(ALONG, a, results), one_line(ALONG, b, results)
        s2, s3 = one_line(ALONG, c, results), one_line(ALONG, d, results)
    return s0, s1, s2, s3


@inner()
def _add_squares_of_four(total, a, b, c, d, squares):
    """Add the sum of |x|² over four segments to Blue's three accumulators, `squares`.

    `total` is this sum without scaling. If it may have lost accuracy by overflow or underflow, `_add_squares` adds
    each segment individually with scaling.
    """
    if not square_may_overflow(a[0]) or MIN_SUM <= total <= MAX_SUM:
        squares[0] += total
    else:
        for x in (a, b, c, d):
            _add_squares(x, _squares(x), squares)


@inner()
def _four_fast(want, a, b, c, d, across):
    """Return the sums along four segments, the largest entry and the sum of squares, and update `across`.

    Results that are not in `want` may be zero. Squares are not scaled.
    """
    if want & (MAX | SQUARES):
        return _all_four(a, b, c, d, across)
    if want & ALONG:
        s0, s1, s2, s3 = _sum_four(a, b, c, d, across)
        return s0, s1, s2, s3, 0.0, 0.0
    _add_four(a, b, c, d, across)
    return 0.0, 0.0, 0.0, 0.0, 0.0, 0.0


@inner()
def four_lines(want, a, b, c, d, across, results):
    """Return the sums along four segments, and update `results` and the sums across lines, `across`.

    Without ALONG in `want`, the function may return zeros. Without ACROSS, `across` does not change.
    """
    if not want & ACROSS:
        return _four_apart(want, a, b, c, d, results)
    if magnitude_may_overflow(a[0]):  # check the range before anything is added
        waste = piece(results.waste, 0, a.shape[0])
        waste[:] = 0.0
        s0, s1, s2, s3, top, total = _four_fast(want, a, b, c, d, waste)
        if not (SMALL <= _sum(waste) <= LARGE):
            return _four_safely(want, a, b, c, d, across, results)
        for j in range(a.shape[0]):
            across[j] += waste[j]
    else:
        s0, s1, s2, s3, top, total = _four_fast(want, a, b, c, d, across)
    if want & MAX:
        _raise_to(results.tops, top)
    if want & SQUARES:
        _add_squares_of_four(total, a, b, c, d, results.squares)
    return s0, s1, s2, s3


@inner()
def _four_safely(want, a, b, c, d, across, results):
    """Compute the results of `four_lines` for segments in which |x|² may be outside the range of fp64."""
    if _peak(a) == _peak(b) == _peak(c) == _peak(d) == 0.0:
        return 0.0, 0.0, 0.0, 0.0
    s0, top0 = _safe(a, across)
    s1, top1 = _safe(b, across)
    s2, top2 = _safe(c, across)
    s3, top3 = _safe(d, across)
    for x, top in ((a, top0), (b, top1), (c, top2), (d, top3)):
        if want & MAX:
            _raise_to(results.tops, top)
        if want & SQUARES:
            _add_squares(x, _squares(x), results.squares)
    return s0, s1, s2, s3
