"""Compute the largest |a_ij|, the sums by row and by column, and the sum of squares in one pass over the tiles.

Four lines are processed together, and missing lines are replaced by zeros. Sums are in fp64 and blocked: by segments
along lines, and by chunks of lines across.
"""

from __future__ import annotations

import numpy as np

from mxpeak.kernels.host.engine.jit import ONE, ZERO, inner, jit
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
    TileReader,
    buffer_of,
    chunks,
    cut,
    reach,
    segment,
)
from mxpeak.kernels.host.norms.segments import ACROSS, ALONG, MAX, SEGMENT, SQUARES, Accumulators, four_lines, one_line

#: Entries of a single line that are processed at a time; they fit into a buffer of four segments.
LONG = 4 * SEGMENT
#: Distance between the words of two threads, so that each thread writes to its own cache line.
APART = 8


#: Positions of a thread's results: three sums of squares and, in another cache line, the bits of the largest entry.
SQUARES_AT, TOP_AT, RESULTS = 0, 8, 16


@inner()
def _sum_four(want, reader, line, count, begin, end, origin, across, results):
    """Return the sums along entries begin:end of up to four lines, and add the entries to the sums across lines.

    `across` is the address of the sums across lines, from entry `origin` on.
    """
    s0 = s1 = s2 = s3 = 0.0
    sample, zeros = reader.sample, reader.buffer + 4 * SEGMENT * reader.sample.itemsize
    for s in range(begin, end, SEGMENT):
        e = min(end, s + SEGMENT)
        a = vector_at(segment(reader, line, s, e, 0), e - s, sample)
        b = vector_at(segment(reader, line + 1, s, e, 1) if count > 1 else zeros, e - s, sample)
        c = vector_at(segment(reader, line + 2, s, e, 2) if count > 2 else zeros, e - s, sample)
        d = vector_at(segment(reader, line + 3, s, e, 3) if count > 3 else zeros, e - s, sample)
        to = vector_at(across + (s - origin) * 8, e - s, np.float64)
        t0, t1, t2, t3 = four_lines(want, a, b, c, d, to, results)
        s0, s1, s2, s3 = s0 + t0, s1 + t1, s2 + t2, s3 + t3
    return s0, s1, s2, s3


@inner(allocates=True)
def _chunk_by_four(want, reader, line0, line1, begin, end, across, along_out, results):
    """Add entries begin:end of lines line0:line1 to all results, processing four lines at a time.

    Entries inside the band that only some of the four lines have are processed line by line.
    """
    lows, highs, sums = np.empty(4, np.int64), np.empty(4, np.int64), np.empty(4)
    for line in range(line0, line1, 4):
        count = min(4, line1 - line)
        low, high = begin, end
        for k in range(count):
            lows[k], highs[k] = reach(reader.tile, line + k, begin, end)
            low, high = max(low, lows[k]), min(high, highs[k])
        if low >= high:  # no common range
            low = high = end
        sums[0], sums[1], sums[2], sums[3] = _sum_four(want, reader, line, count, low, high, begin, across, results)
        for k in range(count):
            for first, last in ((lows[k], min(low, highs[k])), (max(high, lows[k]), highs[k])):
                if first < last:
                    sums[k] += _sum_four(want, reader, line + k, ONE, first, last, begin, across, results)[0]
            if want & ALONG:
                along_out[reader.tile[LINE0] + line + k] += sums[k]


@inner()
def _chunk_along(want, reader, line0, line1, begin, end, along_out, results):
    """Add entries begin:end of lines line0:line1 to the results, without sums across lines."""
    for line in range(line0, line1):
        (low, high), total = reach(reader.tile, line, begin, end), 0.0
        for s in range(low, high, LONG):
            e = min(high, s + LONG)
            total += one_line(want, vector_at(segment(reader, line, s, e, 0), e - s, reader.sample), results)
        if want & ALONG:
            along_out[reader.tile[LINE0] + line] += total


@jit(allocates=True)
def norm_pass(tid, threads, want, table, buffers, across, by_row, by_column, results):
    """Add the entries in thread tid's chunks of all tiles to the sums and results that `want` selects.

    buffers         see `TileReader`
    across          one buffer per thread, for the sums across one chunk
    by_row, -column sums to add to; one copy for all threads, or one per thread
    results         one row per thread, with three sums of squares and the bits of the largest entry
    """
    number, across = 0, across[tid]
    squares = results[tid, SQUARES_AT : SQUARES_AT + 3]
    own = Accumulators(results[tid].view(np.int64)[TOP_AT:], squares, np.empty(LONG))
    for t in range(table.shape[0]):
        tile = table[t]
        reader = TileReader(tile, buffers[tid], buffer_of(buffers, tid))
        turned = tile[TURNED] != 0
        swapped = (want & ALONG) << 1 | (want & ACROSS) >> 1 if turned else want & (ALONG | ACROSS)
        by_kind = want & (MAX | SQUARES) | swapped
        by_line = by_column[tid % by_column.shape[0]] if turned else by_row[tid % by_row.shape[0]]
        by_position = by_row[tid % by_row.shape[0]] if turned else by_column[tid % by_column.shape[0]]
        for c in range((tid - number) % threads, chunks(tile), threads):
            line0, line1, begin, end = cut(tile, c)
            if not by_kind & ACROSS and tile[BACK] >= ENDLESS and tile[AHEAD] >= ENDLESS:
                _chunk_along(by_kind, reader, line0, line1, begin, end, by_line, own)
                continue
            # All entries that are read from these lines are between the start of the first line and the end of the
            # last line.
            begin, end = reach(tile, line0, begin, end)[0], reach(tile, line1 - 1, begin, end)[1]
            length = max(ZERO, end - begin) if by_kind & ACROSS else ZERO
            across[:length] = 0.0
            address = np.int64(across.ctypes.data)
            _chunk_by_four(by_kind, reader, line0, line1, begin, end, address, by_line, own)
            position = tile[POSITION0] + begin
            for j in range(length):
                by_position[position + j] += across[j]
        number += chunks(tile)


@inner()
def _read(words):
    """Return the bitwise OR of all words, read as four streams.

    A single stream stalls at the end of each page, where hardware prefetching stops. Four streams rarely stall
    together.
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
def read_all(tid, threads, table, seen):
    """Read every byte of thread tid's chunks of all tiles, including the gaps between strided entries.

    The bitwise OR of all words read is stored in `seen`, so that the compiler does not remove the reads.
    """
    number = 0
    for t in range(table.shape[0]):
        tile = table[t]
        for c in range((tid - number) % threads, chunks(tile), threads):
            line0, line1, begin, end = cut(tile, c)
            for line in range(line0, line1):
                lowest = begin if tile[STRIDE] > 0 else end - 1
                address = tile[ADDRESS] + line * tile[LINE_STRIDE] + lowest * tile[STRIDE]
                words = vector_at(address, (end - begin) * abs(tile[STRIDE]) // 8, np.uint64)
                seen[tid * APART] |= _read(words)
        number += chunks(tile)
