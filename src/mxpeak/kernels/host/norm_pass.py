"""One pass over the tiles of a matrix: the largest |a_ij|, sums of |a_ij| by row and by column, the sum of squares.

A tile is a number of lines, each contiguous if it can be: rows of a row-major tile, columns of a column-major one.
Four lines go together, so that the sums across lines are loaded and stored once for four entries; a line that is
missing is a line of zeros.  Sums are fp64 and blocked: a segment along a line, a chunk of lines across.

Squares are kept in three sums (Blue 1978; Anderson 2017): of numbers as they are, of large ones scaled down and of
small ones scaled up.  Each of them can be added over threads and ranks; together they neither over- nor underflow.  A
segment whose squares might is found by its sum, or by its largest part, and is read once more, from the cache, scaled.
"""

from __future__ import annotations

import math

import numpy as np

from mxpeak.kernels.contract.norms import DOWN, LARGE, SMALL, UP
from mxpeak.kernels.host.jit import ONE, inner, jit
from mxpeak.kernels.host.magnitude import (
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
from mxpeak.kernels.host.native import float_of, piece, vector_at

#: Entries of a line that are worked on at a time: four lines of them, and their sums, stay in the first cache.
SEGMENT = 1024
#: The same of a line by itself; it fits into a buffer of four segments.
LONG = 4 * SEGMENT
#: Flags of what a pass computes.  Of a tile that lies by rows, ALONG is the sums by row.  They are int64, so that Numba
#: compiles one form.
MAX, SQUARES, ALONG, ACROSS = (np.int64(2**bit) for bit in range(4))
ROWS, COLUMNS = ALONG, ACROSS
#: The columns of the table of tiles; strides are in bytes, and `turned` says that lines are columns.
(
    ADDRESS,
    LINES,
    LENGTH,
    LINE_STRIDE,
    STRIDE,
    LINE0,
    POSITION0,
    TURNED,
    LINE_FIRST,
    LINE_NB,
    LINE_JUMP,
    FIRST,
    NB,
    JUMP,
    BACK,
    AHEAD,
    CHUNK,
    PIECE,
) = range(18)
ENTRIES_OF_TABLE = 18
#: A band edge beyond which there is none.
ENDLESS = 2**62
#: Sums of squares between these are right as they are.
LEAST_SUM, MOST_SUM = SMALL**2, LARGE**2
#: The results of a thread: the bits of the largest, alone in a cache line; the three sums of squares in another.
APART = 8

#: Sums may be taken in any order.  Not nnan and ninf: NaN and Inf have to come through.
_FAST = {"reassoc", "contract"}


# --- one segment of one line, or of four ------------------------------------------------------------------------


@inner()
def _largest(a):
    top = least_key(a[0])
    for j in range(a.shape[0]):
        top = max(top, key(a[j]))
    return of_key(top, a[0])


@inner(fastmath=_FAST)
def _squares(a):
    total = 0.0
    for j in range(a.shape[0]):
        total += square(a[j])
    return total


@inner(fastmath=_FAST)
def _sum(a):
    total = 0.0
    for j in range(a.shape[0]):
        total += magnitude(a[j])
    return total


@inner()
def _largest_four(a, b, c, d):
    top = least_key(a[0])
    for j in range(a.shape[0]):
        top = max(top, max(max(key(a[j]), key(b[j])), max(key(c[j]), key(d[j]))))
    return of_key(top, a[0])


@inner(fastmath=_FAST)
def _squares_four(a, b, c, d):
    s0 = s1 = s2 = s3 = 0.0
    for j in range(a.shape[0]):
        s0 += square(a[j])
        s1 += square(b[j])
        s2 += square(c[j])
        s3 += square(d[j])
    return (s0 + s1) + (s2 + s3)


@inner(fastmath=_FAST)
def _along_four(a, b, c, d):
    s0 = s1 = s2 = s3 = 0.0
    for j in range(a.shape[0]):
        s0 += magnitude(a[j])
        s1 += magnitude(b[j])
        s2 += magnitude(c[j])
        s3 += magnitude(d[j])
    return s0, s1, s2, s3


@inner(fastmath=_FAST)
def _add_four(a, b, c, d, across):
    for j in range(a.shape[0]):
        across[j] += (magnitude(a[j]) + magnitude(b[j])) + (magnitude(c[j]) + magnitude(d[j]))


@inner(fastmath=_FAST)
def _sum_four(a, b, c, d, across):
    """Sums along the lines, returned, and across them."""
    s0 = s1 = s2 = s3 = 0.0
    for j in range(a.shape[0]):
        x0, x1, x2, x3 = magnitude(a[j]), magnitude(b[j]), magnitude(c[j]), magnitude(d[j])
        s0 += x0
        s1 += x1
        s2 += x2
        s3 += x3
        across[j] += (x0 + x1) + (x2 + x3)
    return s0, s1, s2, s3


@inner(fastmath=_FAST)
def _all_four(a, b, c, d, across):
    """Sums along the lines and across them; the largest, and the sum of squares."""
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


# --- the same where fp64's range is too small -------------------------------------------------------------------


@inner()
def _peak(a):
    """The largest real or imaginary part, NaN if there is one."""
    top = np.int64(0)
    for j in range(a.shape[0]):
        top = max(top, largest_part(a[j]))
    return float_of(np.uint64(top))


@inner()
def _safe(a, across):
    """Σ |a| and max |a|, and across += |a|."""
    total, top = 0.0, np.int64(0)
    for j in range(a.shape[0]):
        x = safe_magnitude(a[j])
        total += x
        top = max(top, ordered(x))
        across[j] += x
    return total, float_of(np.uint64(top))


@inner()
def _add_squares(a, total, squares):
    """Book the squares of a segment, of which `total` is the plain sum."""
    if not square_may_overflow(a[0]) or LEAST_SUM <= total <= MOST_SUM:
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


# --- a group of up to four lines --------------------------------------------------------------------------------


@inner()
def _raise_to(tops, x):
    tops[0] = max(tops[0], ordered(x))


@inner()
def one_line(want, a, waste, tops, squares):
    """The sum along a segment; the largest and the squares booked."""
    if want & MAX:
        top = _largest(a)
        if magnitude_may_overflow(a[0]) and not (SMALL <= top <= LARGE):
            top = _safe(a, waste)[1]
        _raise_to(tops, top)
    if want & SQUARES:
        _add_squares(a, _squares(a), squares)
    if not want & ALONG:
        return 0.0
    total = _sum(a)
    if magnitude_may_overflow(a[0]) and not (SMALL <= total <= LARGE):
        total = _safe(a, waste)[0]
    return total


@inner()
def _four_apart(want, a, b, c, d, waste, tops, squares):
    """Four lines without sums across: the sums along them; the largest and the squares booked."""
    if want & MAX:
        top = _largest_four(a, b, c, d)
        if magnitude_may_overflow(a[0]) and not (SMALL <= top <= LARGE):
            for x in (a, b, c, d):
                one_line(MAX, x, waste, tops, squares)
        else:
            _raise_to(tops, top)
    if want & SQUARES:
        _book_squares(_squares_four(a, b, c, d), a, b, c, d, squares)
    if not want & ALONG:
        return 0.0, 0.0, 0.0, 0.0
    s0, s1, s2, s3 = _along_four(a, b, c, d)
    if magnitude_may_overflow(a[0]) and not (SMALL <= s0 + s1 + s2 + s3 <= LARGE):
        s0, s1 = one_line(ALONG, a, waste, tops, squares), one_line(ALONG, b, waste, tops, squares)
        s2, s3 = one_line(ALONG, c, waste, tops, squares), one_line(ALONG, d, waste, tops, squares)
    return s0, s1, s2, s3


@inner()
def _book_squares(total, a, b, c, d, squares):
    """The squares of four segments, of which `total` is the plain sum."""
    if not square_may_overflow(a[0]) or LEAST_SUM <= total <= MOST_SUM:
        squares[0] += total
    else:
        for x in (a, b, c, d):
            _add_squares(x, _squares(x), squares)


@inner()
def _four_fast(want, a, b, c, d, across):
    """Sums across; along too, the largest and the sum of squares, where wanted."""
    if want & (MAX | SQUARES):
        return _all_four(a, b, c, d, across)
    if want & ALONG:
        s0, s1, s2, s3 = _sum_four(a, b, c, d, across)
        return s0, s1, s2, s3, 0.0, 0.0
    _add_four(a, b, c, d, across)
    return 0.0, 0.0, 0.0, 0.0, 0.0, 0.0


@inner()
def four_lines(want, a, b, c, d, across, waste, tops, squares):
    """Sums across, and along, returned, where wanted; the largest and the squares booked."""
    if not want & ACROSS:
        return _four_apart(want, a, b, c, d, waste, tops, squares)
    if magnitude_may_overflow(a[0]):  # find out before anything is added
        waste[:] = 0.0
        s0, s1, s2, s3, top, total = _four_fast(want, a, b, c, d, waste)
        if not (SMALL <= _sum(waste) <= LARGE):
            return _four_safely(want, a, b, c, d, across, tops, squares)
        for j in range(a.shape[0]):
            across[j] += waste[j]
    else:
        s0, s1, s2, s3, top, total = _four_fast(want, a, b, c, d, across)
    if want & MAX:
        _raise_to(tops, top)
    if want & SQUARES:
        _book_squares(total, a, b, c, d, squares)
    return s0, s1, s2, s3


@inner()
def _four_safely(want, a, b, c, d, across, tops, squares):
    """The same where |x|² may leave fp64's range."""
    if _peak(a) == _peak(b) == _peak(c) == _peak(d) == 0.0:
        return 0.0, 0.0, 0.0, 0.0
    s0, top0 = _safe(a, across)
    s1, top1 = _safe(b, across)
    s2, top2 = _safe(c, across)
    s3, top3 = _safe(d, across)
    for x, top in ((a, top0), (b, top1), (c, top2), (d, top3)):
        if want & MAX:
            _raise_to(tops, top)
        if want & SQUARES:
            _add_squares(x, _squares(x), squares)
    return s0, s1, s2, s3


@inner()
def segment(tile, line, begin, end, sample, buffer):
    """The address of entries begin … end-1 of a line: as they lie, or, where they lie apart, copied to `buffer`."""
    address = tile[ADDRESS] + line * tile[LINE_STRIDE] + begin * tile[STRIDE]
    if tile[STRIDE] == sample.itemsize:
        return address
    copied = vector_at(buffer, end - begin, sample)
    for j in range(end - begin):
        copied[j] = vector_at(address + j * tile[STRIDE], 1, sample)[0]
    return buffer


@inner()
def _four_stretches(want, tile, line, count, begin, end, origin, sample, buffer, across, waste, tops, squares):
    """Entries begin … end-1 of `count` <= 4 lines; those that are missing are zeros.  `origin` is at across[0]."""
    s0 = s1 = s2 = s3 = 0.0
    size = SEGMENT * sample.itemsize
    for s in range(begin, end, SEGMENT):
        e = min(end, s + SEGMENT)
        zeros = buffer + 4 * size
        a0 = segment(tile, line, s, e, sample, buffer)
        b0 = segment(tile, line + 1, s, e, sample, buffer + size) if count > 1 else zeros
        c0 = segment(tile, line + 2, s, e, sample, buffer + 2 * size) if count > 2 else zeros
        d0 = segment(tile, line + 3, s, e, sample, buffer + 3 * size) if count > 3 else zeros
        a, b = vector_at(a0, e - s, sample), vector_at(b0, e - s, sample)
        c, d = vector_at(c0, e - s, sample), vector_at(d0, e - s, sample)
        to = vector_at(across + (s - origin) * 8, e - s, np.float64)
        t0, t1, t2, t3 = four_lines(want, a, b, c, d, to, piece(waste, 0, e - s), tops, squares)
        s0, s1, s2, s3 = s0 + t0, s1 + t1, s2 + t2, s3 + t3
    return s0, s1, s2, s3


@inner()
def _one_stretch(want, tile, line, begin, end, sample, buffer, waste, tops, squares):
    """Entries begin … end-1 of one line, where no sums across are wanted."""
    total = 0.0
    for s in range(begin, end, LONG):
        e = min(end, s + LONG)
        a = vector_at(segment(tile, line, s, e, sample, buffer), e - s, sample)
        total += one_line(want, a, waste, tops, squares)
    return total


# --- tiles ------------------------------------------------------------------------------------------------------


@inner()
def chunks(tile):
    """Into how many chunks a tile is cut."""
    return -(-tile[LINES] // tile[CHUNK]) * -(-tile[LENGTH] // tile[PIECE])


@inner()
def cut(tile, c):
    """Chunk c: its lines, and its entries of each."""
    pieces = -(-tile[LENGTH] // tile[PIECE])
    line0, begin = c // pieces * tile[CHUNK], c % pieces * tile[PIECE]
    return line0, min(tile[LINES], line0 + tile[CHUNK]), begin, min(tile[LENGTH], begin + tile[PIECE])


@inner()
def _before(tile, index):
    """How many of a line's entries have a global index less than this one."""
    t = index - tile[FIRST]
    if tile[NB] >= tile[LENGTH]:  # one block, and no division
        return min(max(t, 0), tile[LENGTH])
    rounds = t // tile[JUMP]
    return min(max(rounds * tile[NB] + min(t - rounds * tile[JUMP], tile[NB]), 0), tile[LENGTH])


@inner()
def reach(tile, line, begin, end):
    """The part of begin:end of a line that lies inside the band."""
    low, high = begin, end
    if tile[BACK] < ENDLESS or tile[AHEAD] < ENDLESS:
        g = tile[LINE_FIRST] + line
        if tile[LINE_NB] < tile[LINES]:
            g += line // tile[LINE_NB] * (tile[LINE_JUMP] - tile[LINE_NB])
        if tile[BACK] < ENDLESS:
            low = max(begin, _before(tile, g - tile[BACK]))
        if tile[AHEAD] < ENDLESS:
            high = min(end, _before(tile, g + tile[AHEAD] + 1))
    return low, max(low, high)


@inner(allocates=True)
def _chunk_by_four(want, tile, line0, line1, begin, end, sample, buffer, across, along_out, waste, tops, squares):
    """Lines line0 … line1-1 of a tile, their entries begin … end-1, four lines together in what all four have."""
    lows, highs, sums = np.empty(4, np.int64), np.empty(4, np.int64), np.empty(4)
    for line in range(line0, line1, 4):
        count = min(4, line1 - line)
        low, high = begin, end
        for k in range(count):
            lows[k], highs[k] = reach(tile, line + k, begin, end)
            low, high = max(low, lows[k]), min(high, highs[k])
        if low >= high:  # they have nothing in common
            low = high = end
        sums[0], sums[1], sums[2], sums[3] = _four_stretches(
            want, tile, line, count, low, high, begin, sample, buffer, across, waste, tops, squares
        )
        for k in range(count):
            if lows[k] < min(low, highs[k]):
                sums[k] += _four_stretches(
                    want,
                    tile,
                    line + k,
                    ONE,
                    lows[k],
                    min(low, highs[k]),
                    begin,
                    sample,
                    buffer,
                    across,
                    waste,
                    tops,
                    squares,
                )[0]
            if max(high, lows[k]) < highs[k]:
                sums[k] += _four_stretches(
                    want,
                    tile,
                    line + k,
                    ONE,
                    max(high, lows[k]),
                    highs[k],
                    begin,
                    sample,
                    buffer,
                    across,
                    waste,
                    tops,
                    squares,
                )[0]
            if want & ALONG:
                along_out[tile[LINE0] + line + k] += sums[k]


@inner()
def _chunk_along(want, tile, line0, line1, begin, end, sample, buffer, along_out, waste, tops, squares):
    """The same of whole lines where no sums across are wanted: one by one."""
    for line in range(line0, line1):
        low, high = reach(tile, line, begin, end)
        total = _one_stretch(want, tile, line, low, high, sample, buffer, waste, tops, squares)
        if want & ALONG:
            along_out[tile[LINE0] + line] += total


@jit(allocates=True)
def norm_pass(tid, threads, want, sample, tiles, buffers, across, by_row, by_column, tops, squares):
    """Thread tid's chunks of all tiles.

    sample          an array of the entries' type
    buffers         for each thread five segments of that type, the last one of zeros
    across          for each thread a buffer for the sums across one chunk
    by_row, -column sums, += ; one copy for all threads, or one for each
    tops, squares   for each thread the bits of the largest so far, and the three sums of squares
    """
    number = 0
    mine, buffer = across[tid], np.int64(buffers.ctypes.data) + tid * buffers.shape[1] * sample.itemsize
    mine_at = np.int64(mine.ctypes.data)
    tops, squares, waste = tops[tid * APART :], squares[tid], np.empty(LONG)
    for t in range(tiles.shape[0]):
        tile = tiles[t]
        turned = tile[TURNED] != 0
        swapped = (want & ALONG) << 1 | (want & ACROSS) >> 1 if turned else want & (ALONG | ACROSS)
        asked = want & (MAX | SQUARES) | swapped
        by_line = by_column[tid % by_column.shape[0]] if turned else by_row[tid % by_row.shape[0]]
        by_position = by_row[tid % by_row.shape[0]] if turned else by_column[tid % by_column.shape[0]]
        for c in range((tid - number) % threads, chunks(tile), threads):
            line0, line1, begin, end = cut(tile, c)
            if not asked & ACROSS and tile[BACK] >= ENDLESS and tile[AHEAD] >= ENDLESS:
                _chunk_along(asked, tile, line0, line1, begin, end, sample, buffer, by_line, waste, tops, squares)
                continue
            # All that is read of these lines lies between the start of the first one and the end of the last one.
            begin, end = reach(tile, line0, begin, end)[0], reach(tile, line1 - 1, begin, end)[1]
            length = max(0, end - begin) if asked & ACROSS else 0
            mine[:length] = 0.0
            _chunk_by_four(
                asked, tile, line0, line1, begin, end, sample, buffer, mine_at, by_line, waste, tops, squares
            )
            position = tile[POSITION0] + begin
            for j in range(length):
                by_position[position + j] += mine[j]
        number += chunks(tile)


@inner()
def _read(words):
    """The union of all bits: as little as can be done with them."""
    seen = np.uint64(0)
    for j in range(words.shape[0]):
        seen |= words[j]
    return seen


@jit()
def read_all(tid, threads, sample, tiles, seen):
    """Read every byte of thread tid's chunks of all tiles; of entries that lie apart, also what lies between."""
    number = 0
    for t in range(tiles.shape[0]):
        tile = tiles[t]
        for c in range((tid - number) % threads, chunks(tile), threads):
            line0, line1, begin, end = cut(tile, c)
            for line in range(line0, line1):
                lowest = begin if tile[STRIDE] > 0 else end - 1
                address = tile[ADDRESS] + line * tile[LINE_STRIDE] + lowest * tile[STRIDE]
                words = vector_at(address, (end - begin) * abs(tile[STRIDE]) // 8, np.uint64)
                seen[tid * APART] |= _read(words)
        number += chunks(tile)
