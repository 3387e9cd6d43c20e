"""Tiles cut for threads: chunks of lines, pieces of each, what of a line lies inside a band, and where its entries are.

A tile is a row of a table, and a number of lines, each contiguous if it can be: rows of a row-major tile, columns of a
column-major one.
"""

from __future__ import annotations

from mxpeak.kernels.host.engine.jit import inner
from mxpeak.kernels.host.engine.vector_ir import vector_at

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
