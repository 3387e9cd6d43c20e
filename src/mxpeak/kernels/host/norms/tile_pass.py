"""One pass over the tiles of a matrix: the largest |a_ij|, sums of |a_ij| by row and by column, the sum of squares.

Four lines go together; a line that is missing is a line of zeros.  Sums are fp64 and blocked: a segment along a line, a
chunk of lines across.
"""

from __future__ import annotations

import numpy as np

from mxpeak.kernels.host.engine.jit import ONE, inner, jit
from mxpeak.kernels.host.engine.vector_ir import piece, vector_at
from mxpeak.kernels.host.norms.partition import (
    ADDRESS,
    AHEAD,
    BACK,
    ENDLESS,
    LINE0,
    LINE_STRIDE,
    POSITION0,
    STRIDE,
    TURNED,
    chunks,
    cut,
    reach,
    segment,
)
from mxpeak.kernels.host.norms.segments import ACROSS, ALONG, MAX, SEGMENT, SQUARES, four_lines, one_line

#: Entries of a line by itself that are worked on at a time; it fits into a buffer of four segments.
LONG = 4 * SEGMENT
#: The results of a thread: the bits of the largest, alone in a cache line; the three sums of squares in another.
APART = 8


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


@inner(inline=True)
def _one_stretch(want, tile, line, begin, end, sample, buffer, waste, tops, squares):
    """Entries begin … end-1 of one line, where no sums across are wanted."""
    total = 0.0
    for s in range(begin, end, LONG):
        e = min(end, s + LONG)
        a = vector_at(segment(tile, line, s, e, sample, buffer), e - s, sample)
        total += one_line(want, a, waste, tops, squares)
    return total


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
    """Return the union of all bits, read as four streams.

    One stream waits where the processor's prefetching stops, at the end of each page; four seldom wait together.
    """
    seen, quarter = np.uint64(0), words.shape[0] // 4
    a, b = piece(words, 0, quarter), piece(words, quarter, quarter)
    c, d = piece(words, 2 * quarter, quarter), piece(words, 3 * quarter, quarter)
    for j in range(quarter):
        seen |= (a[j] | b[j]) | (c[j] | d[j])
    for j in range(4 * quarter, words.shape[0]):
        seen |= words[j]
    return seen


@jit()
def read_all(tid, threads, tiles, seen):
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
