"""Divide tiles among threads in chunks and pieces of lines, and compute ranges inside a band and entry addresses.

A tile is described by one row of a table. It consists of lines, contiguous if possible: the rows of a row-major tile
or the columns of a column-major tile.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mxpeak.kernels.host.engine.jit import inner
from mxpeak.kernels.host.engine.vector_ir import vector_at
from mxpeak.kernels.host.norms.segments import SEGMENT

#: The columns of the table of tiles. Strides are in bytes; TURNED is 1 if columns are the lines.
ADDRESS, LINES, LENGTH, LINE_STRIDE, STRIDE, LINE0, POSITION0, TURNED = range(8)
LINE_FIRST, LINE_NB, LINE_JUMP, FIRST, NB, JUMP, BACK, AHEAD, CHUNK, PIECE, TABLE = range(8, 19)
#: The distance from the diagonal that means a band without an edge.
ENDLESS = 2**62


class TileReader(NamedTuple):
    """The data with which a thread reads one tile: its row of the table, a sample of the entry type, and buffers.

    `buffer` is the address of five buffers, each as long as one segment. The last buffer is filled with zeros.
    """

    tile: np.ndarray
    sample: np.ndarray
    buffer: int


@inner()
def buffer_of(buffers, tid):
    """Return the address of thread tid's buffers."""
    return np.int64(buffers.ctypes.data) + tid * buffers.shape[1] * buffers.itemsize


@inner()
def chunks(tile):
    """Return the number of chunks into which a tile is divided."""
    return -(-tile[LINES] // tile[CHUNK]) * -(-tile[LENGTH] // tile[PIECE])


@inner()
def cut(tile, c):
    """Return chunk c of a tile as (line0, line1, begin, end): entries begin:end of lines line0:line1."""
    pieces = -(-tile[LENGTH] // tile[PIECE])
    line0, begin = c // pieces * tile[CHUNK], c % pieces * tile[PIECE]
    return line0, min(tile[LINES], line0 + tile[CHUNK]), begin, min(tile[LENGTH], begin + tile[PIECE])


@inner()
def _before(tile, index):
    """Return how many entries of a line have a global index smaller than `index`."""
    t = index - tile[FIRST]
    if tile[NB] >= tile[LENGTH]:  # one block: skip the division
        return min(max(t, 0), tile[LENGTH])
    rounds = t // tile[JUMP]
    return min(max(rounds * tile[NB] + min(t - rounds * tile[JUMP], tile[NB]), 0), tile[LENGTH])


@inner()
def reach(tile, line, begin, end):
    """Return the part of entries begin:end of a line that is inside the band, as (low, high)."""
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
def segment(reader, line, begin, end, slot):
    """Return the address of entries begin:end of a line, which are contiguous at this address.

    Entries with a stride are copied to buffer `slot`, and the function returns the address of this buffer.
    """
    tile, sample = reader.tile, reader.sample
    address = tile[ADDRESS] + line * tile[LINE_STRIDE] + begin * tile[STRIDE]
    if tile[STRIDE] == sample.itemsize:
        return address
    buffer = reader.buffer + slot * SEGMENT * sample.itemsize
    copied = vector_at(buffer, end - begin, sample)
    for j in range(end - begin):
        copied[j] = vector_at(address + j * tile[STRIDE], 1, sample)[0]
    return buffer
