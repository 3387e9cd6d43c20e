"""The matrix whose norms are measured: how a grid stores it, how it is generated, what memory it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from mxpeak.bench.norms.config import NormsCase
from mxpeak.comm.grid import Grid
from mxpeak.distributed.tiles import BlockCyclicMatrix
from mxpeak.kernels.contract import Kernels, Matrix
from mxpeak.kernels.contract.norms import NormKernels, Tile
from mxpeak.layout.block_cyclic import BlockCyclic, numroc
from mxpeak.layout.entries import Entries
from mxpeak.layout.index_map import IndexMap, block_cyclic, consecutive
from mxpeak.perf.counts import FP64_BYTES, Footprint
from mxpeak.spans import Spans

#: By how much the seed of the imaginary parts is above that of the real ones: no seed that can be asked for.
IMAGINARY = 2**31
#: About what Python keeps of a tile: its array, and where it lies.
TILE_BYTES = 600


@dataclass(frozen=True, slots=True, repr=False)
class StoredMatrix(BlockCyclicMatrix):
    """One whose part of a rank is one tile, or each of its blocks is one."""

    tiles: Sequence[Tile]


def empty_matrix(case: NormsCase, grid: Grid, kernels: NormKernels) -> StoredMatrix:
    """The matrix of a case, uninitialised, in its layout."""
    rows, cols = BlockCyclic(case.m, case.nb, grid.p, grid.P), BlockCyclic(case.n, case.nb, grid.q, grid.Q)
    if case.layout != "tiles":
        local = kernels.empty(rows.local_size, cols.local_size, case.dtype, case.layout)
        return StoredMatrix(grid, rows, cols, [Tile(local, block_cyclic(rows), block_cyclic(cols), 0, 0)])
    tiles = []
    for il0, height in _blocks(rows):
        for jl0, width in _blocks(cols):
            down, right = consecutive(height, rows.to_global(il0)), consecutive(width, cols.to_global(jl0))
            tiles.append(Tile(kernels.empty(height, width, case.dtype, "C"), down, right, il0, jl0))
    return StoredMatrix(grid, rows, cols, tiles)


def generate(A: StoredMatrix, case: NormsCase, kernels: Kernels, spans: Spans) -> None:
    """Fill A, a block row at a time: a_ij is draw 1 + i + j·m of HPL's generator, in [-1/2, 1/2], rounded to its type.

    The imaginary part is that of another seed.  So a_ij depends on m, the seed, i and j alone.
    """
    m, count = case.m, -(-case.m // case.nb)
    seeds = (case.seed, case.seed + IMAGINARY) if case.complex else (case.seed,)
    parts = [kernels.matrix(min(case.nb, m), A.cols.local_size) for _ in seeds]
    spans.start(f"generating {m}x{case.n} {case.dtype}", float(A.rows.local_size))
    for step, (il0, height) in enumerate(_blocks(A.rows), start=1):
        block_row = BlockCyclic(
            m, case.nb, A.rows.to_global(il0) // case.nb, count
        )  # distributed to as many as there are
        for seed, part in zip(seeds, parts):
            entries = Entries("lcg", m, seed=seed, scale=-1.0, shift=0.5)
            kernels.generate(part[:height], block_row, A.cols, entries)
        for jl0, target in _block_row(A, il0, height):
            real, *imaginary = (part[:height, jl0 : jl0 + target.shape[1]] for part in parts)
            kernels.norms.set_parts(target, real, imaginary[0] if imaginary else None)
        spans.step(step, -(-A.rows.local_size // case.nb), float(il0 + height))
    spans.finish()


def strips(A: StoredMatrix, count: int) -> list[Sequence[Tile]]:
    """A's tiles in at most so many parts: a single tile is cut between rows."""
    if len(A.tiles) != 1:
        size = max(1, -(-len(A.tiles) // count))
        return [A.tiles[k : k + size] for k in range(0, len(A.tiles), size)]
    (tile,) = A.tiles
    rows, height = tile.A.shape[0], max(1, -(-tile.A.shape[0] // (count * A.rows.nb))) * A.rows.nb
    found: list[Sequence[Tile]] = []
    for il0 in range(0, rows, height):
        size = min(height, rows - il0)
        rows_here = IndexMap(
            size, tile.rows.to_global(il0), tile.rows.nb, tile.rows.jump
        )  # il0 is the first of a block
        found.append([Tile(tile.A[il0 : il0 + size], rows_here, tile.cols, il0, 0)])
    return found


def leading(A: StoredMatrix, share: float, *, by_columns: bool) -> Sequence[Tile]:
    """Return the first rows of each tile, or its first columns, with this share of its bytes."""
    return A.tiles if share >= 1.0 else [_leading(tile, share, by_columns=by_columns) for tile in A.tiles]


def _leading(tile: Tile, share: float, *, by_columns: bool) -> Tile:
    m, n = tile.A.shape
    rows, columns = (m, max(1, ceil(share * n))) if by_columns else (max(1, ceil(share * m)), n)
    part = tile.A[:rows, :columns]
    return Tile(part, consecutive(part.shape[0]), consecutive(part.shape[1]), 0, 0)


def footprint(case: NormsCase, *, square: bool, threads: int) -> Footprint:
    """The bytes that a case takes over all ranks, each counted as the one that owns most; `square`: m grows with n.

    With r×c the largest local part, every rank holds
      the matrix   itemsize·r·c, and of each tile what Python keeps,
      a block row  8·NB·c, twice if complex         (in fp64, while it is generated),
      vectors      8·(4·T·(r + c) + 8·(m + n))      (sums by row and by column of T threads, high and low; whole ones).
    """
    parts = 2 if case.complex else 1

    def count(n: int, nb: int, P: int, Q: int) -> dict[str, int]:
        m = n if square else case.m
        r, c = numroc(m, nb, 0, P), numroc(n, nb, 0, Q)
        tiles = -(-r // nb) * -(-c // nb) if case.layout == "tiles" else 1
        matrix = P * Q * (case.itemsize * r * c + TILE_BYTES * tiles)
        buffers = P * Q * FP64_BYTES * (parts * min(nb, m) * c + 4 * threads * (r + c) + 8 * (m + n))
        return {"matrix": matrix, "buffers": buffers, "total": matrix + buffers}

    return count


def _blocks(part: BlockCyclic) -> list[tuple[int, int]]:
    """The first local index of each own block, and its size."""
    return [(il0, min(part.nb, part.local_size - il0)) for il0 in range(0, part.local_size, part.nb)]


def _block_row(A: StoredMatrix, il0: int, height: int) -> list[tuple[int, Matrix]]:
    """A's local rows il0 … il0+height-1, a block row, as they are stored: first column and view of each piece."""
    if len(A.tiles) == 1:
        return [(0, A.tiles[0].A[il0 : il0 + height])]
    across = len(_blocks(A.cols))
    first = il0 // A.rows.nb * across
    return [(tile.col0, tile.A) for tile in A.tiles[first : first + across]]
