"""Describe tiles in a table that compiled code reads, and choose the chunks that are distributed to threads."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from mxpeak.kernels.contract.norms import Tile
from mxpeak.kernels.host.norms import partition
from mxpeak.kernels.host.norms.segments import COLUMNS, MAX, ROWS, SEGMENT, SQUARES
from mxpeak.layout.structure import WHOLE, Band

Array = np.ndarray[Any, np.dtype[Any]]

#: The entry types, and the types that represent them in compiled code.
COMPILED_TYPES = {np.dtype(name): np.dtype(name) for name in ("float64", "float32", "complex128", "complex64")} | {
    np.dtype(ml_dtypes.bfloat16): np.dtype(np.int16),
    np.dtype(np.float16): np.dtype(np.uint16),
}
WANTS = {"max": MAX, "squares": SQUARES, "rows": ROWS, "columns": COLUMNS}
#: Lines per chunk, the smallest number of chunks per thread, and entries of a piece if there are too few lines.
LINES, CHUNKS, PIECE = 128, 4, 2**16
#: The smallest number of entries of a piece, and the length below which a line is short.
MIN_PIECE, SHORT = 4096, 64
#: The size in bytes below which one thread is faster than several threads that must first be woken.
SERIAL_BELOW = 2**18


class PassJob:
    """The tiles of one pass as a table for compiled code, and the best number of threads for the pass."""

    def __init__(self, tiles: Sequence[Tile], band: Band, wants: Collection[str], threads: int):
        self.want = int(sum(WANTS[name] for name in wants))
        # The table holds addresses only, so the views keep the arrays alive.
        self._arrays = [tile.A.view(COMPILED_TYPES[tile.A.dtype]) for tile in tiles]
        self.threads = threads if sum(_bytes_in(band, array) for array in self._arrays) > SERIAL_BELOW else 1
        entries = [_entry(tile, A, band, self.want, self.threads) for tile, A in zip(tiles, self._arrays)]
        self._table = np.array(entries, np.int64).reshape(-1, partition.TABLE)

    @property
    def tiles(self) -> tuple[Array, Array]:
        """Return the table of tiles, and new buffers into which threads copy strided entries."""
        dtype = self._arrays[0].dtype if self._arrays else np.float64
        return self._table, np.zeros((self.threads, 5 * SEGMENT), dtype)

    @property
    def width(self) -> int:
        """Return the number of entries in the longest piece of a line, at least one segment."""
        return max(SEGMENT, int(self._table[:, partition.PIECE].max(initial=0)))

    def rows(self, rows: int) -> tuple[int, int]:
        """Return the shape (copies, rows) of the array for sums by row, or (1, 0) if they are not wanted."""
        return (self._copies(turned=False), rows) if self.want & ROWS else (1, 0)

    def columns(self, columns: int) -> tuple[int, int]:
        """Return the shape (copies, columns) of the array for sums by column, or (1, 0) if they are not wanted."""
        return (self._copies(turned=True), columns) if self.want & COLUMNS else (1, 0)

    def _copies(self, *, turned: bool) -> int:
        """Return the number of copies of the sums by row, or by column if `turned`.

        There is one copy per thread, or a single copy if no two threads add to the same sum.
        """
        if len(self._table) != 1:
            return self.threads
        along = bool(self._table[0, partition.TURNED]) == turned
        whole, cut = (partition.LENGTH, partition.PIECE) if along else (partition.LINES, partition.CHUNK)
        return 1 if self._table[0, whole] <= self._table[0, cut] else self.threads


def _bytes_in(band: Band, A: Array) -> int:
    """Return an estimate of the number of bytes of a tile that are inside the band."""
    width = max(0, min(band.below + band.above + 1, *A.shape))
    return min(max(A.shape) * width * A.itemsize, A.nbytes)


def _entry(tile: Tile, A: Array, band: Band, want: int, threads: int) -> tuple[int, ...]:
    """Return the row of the table that describes a tile, from column `partition.ADDRESS` to `partition.PIECE`."""
    (m, n), (down, right) = A.shape, A.strides
    turned = _turned(m, n, down, right, A.itemsize)
    lines, length, line_stride, stride = (n, m, right, down) if turned else (m, n, down, right)
    line0, position0 = (tile.col0, tile.row0) if turned else (tile.row0, tile.col0)
    line_map, position_map = (tile.cols, tile.rows) if turned else (tile.rows, tile.cols)
    back, ahead = (band.above, band.below) if turned else (band.below, band.above)
    no_gaps = A.flags.c_contiguous or A.flags.f_contiguous
    if not want & (ROWS | COLUMNS) and band == WHOLE and no_gaps:
        lines, length, stride = 1, A.size, A.itemsize  # the norms do not depend on the division into lines
    few = lines < CHUNKS * threads * 4
    chunk = max(1, lines) if few else max(4, min(LINES, -(-lines // (CHUNKS * threads))))
    piece = max(MIN_PIECE, PIECE // max(1, lines)) if few else max(1, length)
    maps = [number for index in (line_map, position_map) for number in (index.first, index.nb, index.jump)]
    addresses = A.ctypes.data, lines, length, line_stride, stride, line0, position0, turned
    return (*addresses, *maps, back, ahead, chunk, piece)


def _turned(m: int, n: int, down: int, right: int, itemsize: int) -> bool:
    """Return whether the columns of an m×n tile are its lines.

    If rows and columns are both contiguous, the longer ones are the lines. If neither are, the lines have the smaller
    stride. Otherwise, the contiguous ones are the lines unless they are short, because short contiguous lines cost
    more than long strided lines.
    """
    by_rows, by_columns = right == itemsize, down == itemsize
    if by_rows == by_columns:
        return m > n if by_rows else abs(down) < abs(right)
    return (by_columns and not m < SHORT < n) or (by_rows and n < SHORT < m)
