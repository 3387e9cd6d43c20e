"""Store and generate the matrix of the norms benchmark, and compute its memory."""

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

#: Offset of the seed of the imaginary parts, larger than any seed of a user.
IMAGINARY = 2**31
#: Approximate bytes of the Python objects of a tile.
TILE_BYTES = 600


@dataclass(frozen=True, slots=True, repr=False)
class StoredMatrix(BlockCyclicMatrix):
    """A block-cyclic matrix that each rank stores as one tile, or as one tile per block."""

    tiles: Sequence[Tile]


def empty_matrix(case: NormsCase, grid: Grid, kernels: NormKernels) -> StoredMatrix:
    """Allocate the matrix of a case in its storage layout, without initializing the entries."""
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
    """Fill A by block rows: a_ij is number 1 + i + j·m of HPL's generator, in [-1/2, 1/2], rounded to the type of A.

    The imaginary part uses another seed. a_ij depends only on m, the seed, i and j.
    """
    m, count = case.m, -(-case.m // case.nb)
    seeds = (case.seed, case.seed + IMAGINARY) if case.complex else (case.seed,)
    parts = [kernels.matrix(min(case.nb, m), A.cols.local_size) for _ in seeds]
    spans.start(f"generating {m}x{case.n} {case.dtype}", float(A.rows.local_size))
    for step, (il0, height) in enumerate(_blocks(A.rows), start=1):
        block_row = BlockCyclic(m, case.nb, A.rows.to_global(il0) // case.nb, count)  # one process row per block row
        for seed, part in zip(seeds, parts):
            entries = Entries("lcg", m, seed=seed, scale=-1.0, shift=0.5)
            kernels.generate(part[:height], block_row, A.cols, entries)
        for jl0, target in _block_row(A, il0, height):
            real, *imaginary = (part[:height, jl0 : jl0 + target.shape[1]] for part in parts)
            kernels.norms.set_parts(target, real, imaginary[0] if imaginary else None)
        spans.step(step, -(-A.rows.local_size // case.nb), float(il0 + height))
    spans.finish()


def strips(A: StoredMatrix, count: int) -> list[Sequence[Tile]]:
    """Split the tiles of A into at most `count` parts. If A has only one tile, split its rows."""
    if len(A.tiles) != 1:
        size = max(1, -(-len(A.tiles) // count))
        return [A.tiles[k : k + size] for k in range(0, len(A.tiles), size)]
    (tile,) = A.tiles
    rows, height = tile.A.shape[0], max(1, -(-tile.A.shape[0] // (count * A.rows.nb))) * A.rows.nb
    parts: list[Sequence[Tile]] = []
    for il0 in range(0, rows, height):
        size = min(height, rows - il0)
        rows_here = IndexMap(size, tile.rows.to_global(il0), tile.rows.nb, tile.rows.jump)  # il0 starts a block
        parts.append([Tile(tile.A[il0 : il0 + size], rows_here, tile.cols, il0, 0)])
    return parts


def leading(A: StoredMatrix, share: float, *, by_columns: bool) -> Sequence[Tile]:
    """Return views of the leading rows or columns of each tile that contain this share of the tile's bytes."""
    return A.tiles if share >= 1.0 else [_leading(tile, share, by_columns=by_columns) for tile in A.tiles]


def _leading(tile: Tile, share: float, *, by_columns: bool) -> Tile:
    m, n = tile.A.shape
    rows, columns = (m, max(1, ceil(share * n))) if by_columns else (max(1, ceil(share * m)), n)
    part = tile.A[:rows, :columns]
    return Tile(part, consecutive(part.shape[0]), consecutive(part.shape[1]), 0, 0)


def footprint(case: NormsCase, *, square: bool, threads: int) -> Footprint:
    """Return a function that computes the bytes of a case over all ranks, with the largest local part r×c on each.

      matrix       itemsize·r·c, and the Python objects of each tile
      block row    8·NB·c, twice if complex         (in fp64, during generation)
      vectors      8·(4·T·(r + c) + 8·(m + n))      (row and column sums of T threads, high and low; full vectors)

    If `square`, m is equal to n.
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
    """Return the first local index and the size of each local block."""
    return [(il0, min(part.nb, part.local_size - il0)) for il0 in range(0, part.local_size, part.nb)]


def _block_row(A: StoredMatrix, il0: int, height: int) -> list[tuple[int, Matrix]]:
    """Return the stored pieces of a local block row of A: the first column and a view of each piece."""
    if len(A.tiles) == 1:
        return [(0, A.tiles[0].A[il0 : il0 + height])]
    across = len(_blocks(A.cols))
    first = il0 // A.rows.nb * across
    return [(tile.col0, tile.A) for tile in A.tiles[first : first + across]]
