"""Describe tiles in a table of integers for norm kernels, and choose the blocks that the kernels read.

A tile is a set of lines: the rows of a row-major tile, or the columns of a column-major tile. Lines are therefore
contiguous if possible. A program reads a strip of lines in steps of R lines by C positions. It stores partial sums per
line and per position in slots. Partial sums of the same line (or position) have different slots, so the sum of the
slots is bitwise reproducible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import torch

from mxpeak.kernels.contract.norms import Tile
from mxpeak.layout.index_map import IndexMap
from mxpeak.layout.structure import WHOLE, Band

#: Number of columns of the table: `LinePiece.row` fills them, and `triton/norm_blocks.py` names them for the kernels.
COLUMNS = 17
#: Tiles per launch: the device processes them while the host builds the next table.
BATCH = 512
#: Bytes per vector load, threads per program, threads along a line, and bytes of a line in a block.
VECTOR, THREADS, LANES, WIDTH = 16, 128, 32, 1024
#: Vector loads per thread and step: MANY for kernels that keep little data per entry, and FEW for those that keep much.
MANY, FEW = 4, 2
MAX_POSITIONS = 256
#: Warps per program; an AMD warp has 64 threads.
WARPS = THREADS // (64 if torch.version.hip else 32)
#: Number of programs that fill a large device, and maximum number of lines per program.
PROGRAMS, MAX_LINES = 4096, 1024
#: Width of an unlimited band; sums with this width still fit in 64 bits.
FAR = 2**61


@dataclass(frozen=True, slots=True)
class Block:
    """The shape of the block of entries that a program reads per step: U·BL lines by K·BP positions.

    The lanes of a warp are along BP, and warps are along BL. Each thread has U lines and K positions per line.
    """

    U: int
    K: int
    BL: int
    BP: int

    @property
    def lines(self) -> int:
        """Return R = U·BL, the number of lines of the block."""
        return self.U * self.BL

    @property
    def positions(self) -> int:
        """Return C = K·BP, the number of positions per line of the block."""
        return self.K * self.BP


@dataclass(frozen=True, slots=True)
class LinePiece:
    """A tile as a set of lines; if `turned`, the lines are the tile's columns."""

    A: torch.Tensor
    turned: bool
    line0: int
    position0: int
    line_map: IndexMap
    position_map: IndexMap
    line_stride: int
    stride: int
    band: Band  # the band, with the lines as rows

    @property
    def kind(self) -> tuple[bool, bool, bool]:
        """Return whether the piece is turned, its lines are contiguous, and they are aligned for vector loads."""
        step = self.line_stride * self.A.element_size()
        aligned = self.A.data_ptr() % VECTOR == 0 and (step % VECTOR == 0 or self.line_map.size == 1)
        return self.turned, self.stride == 1, self.stride == 1 and aligned

    def row(self, line_slot: int, position_slot: int) -> tuple[int, ...]:
        """Return the piece's row of the table, with strides counted in real numbers."""
        line, position, parts = self.line_map, self.position_map, 2 if self.A.is_complex() else 1
        return (
            self.A.data_ptr(),
            line.size,
            position.size,
            parts * self.line_stride,
            parts * self.stride,
            self.line0,
            self.position0,
            line_slot,
            position_slot,
            line.first,
            line.nb,
            line.jump,
            position.first,
            position.nb,
            position.jump,
            min(self.band.below, FAR),
            min(self.band.above, FAR),
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """Pieces of one kind that one launch processes.

    strip            lines per program
    strips, wide     programs down and across the largest piece, as far as they can contain entries of the band
    by_line          first line, last line + 1 and number of slots of the sums along lines
    by_position      first position, last position + 1 and number of slots of the sums across lines
    """

    pieces: list[LinePiece]
    rows: list[tuple[int, ...]]
    block: Block
    turned: bool
    unit: bool
    aligned: bool
    banded: bool
    strip: int
    strips: int
    wide: int
    deep: int
    by_line: tuple[int, int, int]
    by_position: tuple[int, int, int]


def batches(tiles: Sequence[Tile], band: Band, loads: int) -> Iterator[Batch]:
    """Group the tiles that overlap the band by kind, and yield one batch per launch, in order of rows and columns."""
    pieces = [
        as_lines(tile, band) for tile in sorted(tiles, key=lambda tile: (tile.row0, tile.col0)) if meets(tile, band)
    ]
    for kind, same in groupby(sorted(pieces, key=lambda piece: piece.kind), key=lambda piece: piece.kind):
        group = list(same)
        for k in range(0, len(group), BATCH):
            yield batch(group[k : k + BATCH], kind, band != WHOLE, loads)


def meets(tile: Tile, band: Band) -> bool:
    """Return whether a tile may have an entry in the band, by comparing its corners with the edges of the band."""
    (m, n), rows, cols = tile.A.shape, tile.rows, tile.cols
    if not m or not n:
        return False
    left, right = cols.first - rows.to_global(m - 1), cols.to_global(n - 1) - rows.first
    return bool(right >= -band.below and left <= band.above)


def as_lines(tile: Tile, band: Band) -> LinePiece:
    """Describe a tile by lines along its smaller stride or, if both strides are equal, along its longer side."""
    (m, n), (down, right) = tile.A.shape, tile.A.stride()
    apart = (right if n > 1 else FAR, down if m > 1 else FAR)  # the stride of a single entry has no meaning
    turned = apart[1] < apart[0] if apart[0] != apart[1] else m > n
    if turned:
        return LinePiece(
            tile.A, True, tile.col0, tile.row0, tile.cols, tile.rows, right, down if m > 1 else 1, band.transposed
        )
    return LinePiece(tile.A, False, tile.row0, tile.col0, tile.rows, tile.cols, down, right if n > 1 else 1, band)


def batch(pieces: list[LinePiece], kind: tuple[bool, bool, bool], banded: bool, loads: int) -> Batch:
    """Return a batch that divides pieces of one kind among programs, with separate slots for their partial sums."""
    turned, unit, aligned = kind
    max_lines, longest = (max(size) for size in zip(*((p.line_map.size, p.position_map.size) for p in pieces)))
    block = block_of(pieces[0].A, max_lines, longest, aligned, loads)
    C, strip = block.positions, strip_of(pieces, block)
    wide = max(_reached(p.position_map, C, p.line_map, strip, p.band) for p in pieces)
    deep = max(_reached(p.line_map, strip, p.position_map, C, p.band) for p in pieces)
    line_slots = slots([(p.line0, p.line_map.size) for p in pieces])
    position_slots = slots([(p.position0, p.position_map.size) for p in pieces])
    rows = [p.row(line * wide, position * deep) for p, line, position in zip(pieces, line_slots, position_slots)]
    lines = min(p.line0 for p in pieces), max(p.line0 + p.line_map.size for p in pieces)
    positions = min(p.position0 for p in pieces), max(p.position0 + p.position_map.size for p in pieces)
    return Batch(
        pieces,
        rows,
        block,
        turned,
        unit,
        aligned,
        banded,
        strip,
        -(-max_lines // strip),
        wide,
        deep,
        (*lines, wide * (max(line_slots) + 1)),
        (*positions, deep * (max(position_slots) + 1)),
    )


def block_of(A: torch.Tensor, lines: int, length: int, aligned: bool, loads: int) -> Block:
    """Return the block that a kernel reads per step, for this number and length of lines."""
    size = A.element_size()
    vector = max(1, VECTOR // size) if aligned else 1
    entries = THREADS * loads * VECTOR // size
    longest = _power(max(length, vector))  # Triton compiles no aligned load shorter than a vector
    C = min(WIDTH // size, MAX_POSITIONS, longest)
    R = min(entries // C, _power(lines))
    C = min(entries // R, longest)
    BP = min(LANES * vector, C)
    BL = min(R, max(1, THREADS * vector // BP))
    return Block(R // BL, C // BP, BL, BP)


def strip_of(pieces: Sequence[LinePiece], block: Block) -> int:
    """Return the number of lines per program, a multiple of the block's number of lines."""
    entries = sum(p.line_map.size * p.position_map.size for p in pieces)
    wanted = min(MAX_LINES, entries // (PROGRAMS * block.positions))
    return max(1, wanted // block.lines) * block.lines


def slots(spans: Sequence[tuple[int, int]]) -> list[int]:
    """Return a slot number for each (first, size) span; spans that overlap have different slots."""
    once = sorted(set(spans))
    if any(first + size > following for (first, size), (following, _) in pairwise(once)):
        return list(range(len(spans)))
    used: dict[int, int] = {}
    slot_of_each = []
    for first, _ in spans:
        slot_of_each.append(used.get(first, 0))
        used[first] = slot_of_each[-1] + 1
    return slot_of_each


def _reached(these: IndexMap, size: int, others: IndexMap, count: int, band: Band) -> int:
    """Return the maximum number of blocks of `size` indices in `these` that can have entries in the band.

    The maximum is taken over all ranges of `count` consecutive indices in `others`.
    """
    blocks = -(-these.size // size)
    return min(blocks, (_span(others, count) + max(0, band.below + band.above)) // size + 2)


def _span(index_map: IndexMap, count: int) -> int:
    """Return an upper bound of the number of global indices that `count` consecutive local indices span."""
    return count + -(-count // index_map.nb) * (index_map.jump - index_map.nb)


def _power(size: int) -> int:
    """Return the smallest power of two that is at least `size`."""
    return 1 << (size - 1).bit_length()
