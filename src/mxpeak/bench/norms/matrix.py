"""Store and generate the matrix of the norms benchmark, and compute its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from math import ceil

from mxpeak.bench.norms.config import NormsCase
from mxpeak.comm.grid import Grid
from mxpeak.distributed.tiles import BlockCyclicMatrix, TileMatrix
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

    @property
    def T(self) -> StoredMatrix:
        """Return the transposed matrix on the transposed grid as a view."""
        return StoredMatrix(self.grid.transposed, self.cols, self.rows, [tile.T for tile in self.tiles])


#: A matrix with blocks of equal size, or with tiles of several sizes.
NormsMatrix = StoredMatrix | TileMatrix


def empty_matrix(case: NormsCase, grid: Grid, devices: Sequence[NormKernels]) -> NormsMatrix:
    """Allocate the matrix of a case in its storage layout, without initializing the entries.

    `devices` contains the kernels of each device of this rank. Block columns alternate between the devices.
    """
    rows, cols = BlockCyclic(case.m, case.nb, grid.p, grid.P), BlockCyclic(case.n, case.nb, grid.q, grid.Q)
    if case.layout != "tiles":
        local = devices[0].empty(rows.local_size, cols.local_size, case.dtype, case.layout)
        return StoredMatrix(grid, rows, cols, [Tile(local, block_cyclic(rows), block_cyclic(cols), 0, 0)])
    tiles = []
    if case.tiles is not None:
        for row0, height in cut(case.m, case.tiles)[grid.p :: grid.P]:
            for J, (col0, width) in enumerate(cut(case.n, case.tiles)[grid.q :: grid.Q]):
                A = devices[J % len(devices)].empty(height, width, case.dtype, "C")
                tiles.append(Tile(A, consecutive(height, row0), consecutive(width, col0), row0, col0))
        return TileMatrix(tiles, consecutive(case.m), consecutive(case.n), grid.all)
    for il0, height in _blocks(rows):
        for J, (jl0, width) in enumerate(_blocks(cols)):
            down, right = consecutive(height, rows.to_global(il0)), consecutive(width, cols.to_global(jl0))
            A = devices[J % len(devices)].empty(height, width, case.dtype, "C")
            tiles.append(Tile(A, down, right, il0, jl0))
    return StoredMatrix(grid, rows, cols, tiles)


def cut(size: int, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first index and the length of each block of `size` indices. The lengths `sizes` repeat."""
    blocks: list[tuple[int, int]] = []
    first = 0
    for length in cycle(sizes):
        if first >= size:
            return blocks
        blocks.append((first, min(length, size - first)))
        first += length
    return blocks


def generate(A: NormsMatrix, case: NormsCase, kernels: Kernels, spans: Spans) -> None:
    """Fill A: a_ij is number 1 + i + j·m of HPL's generator, in [-1/2, 1/2], rounded to the type of A.

    The imaginary part uses another seed. a_ij depends only on m, the seed, i and j.
    """
    seeds = (case.seed, case.seed + IMAGINARY) if case.complex else (case.seed,)
    if isinstance(A, TileMatrix):
        _generate_tiles(A, case, seeds, kernels, spans)
    else:
        _generate_block_rows(A, case, seeds, kernels, spans)


def _generate_tiles(A: TileMatrix, case: NormsCase, seeds: Sequence[int], kernels: Kernels, spans: Spans) -> None:
    """Fill each tile of A. The tile at (down, right) begins with number 1 + down + right·m of the generator."""
    parts = [kernels.matrix(min(max(case.tiles or ()), case.m), min(max(case.tiles or ()), case.n)) for _ in seeds]
    spans.start(f"generating {case.m}x{case.n} {case.dtype}", float(len(A.tiles)))
    for step, tile in enumerate(A.tiles, start=1):
        (height, width), first = tile.A.shape, 1 + tile.row0 + tile.col0 * case.m
        rows, cols = BlockCyclic(height, height, 0, 1), BlockCyclic(width, width, 0, 1)
        for seed, part in zip(seeds, parts):
            entries = Entries("lcg", case.m, seed=seed, first=first, scale=-1.0, shift=0.5)
            kernels.generate(part[:height, :width], rows, cols, entries)
        real, *imaginary = (part[:height, :width] for part in parts)
        kernels.norms.set_parts(tile.A, real, imaginary[0] if imaginary else None)
        spans.step(step, len(A.tiles), float(step))
    spans.finish()


def _generate_block_rows(
    A: StoredMatrix, case: NormsCase, seeds: Sequence[int], kernels: Kernels, spans: Spans
) -> None:
    """Fill each block row of A."""
    m, count = case.m, -(-case.m // case.nb)
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


def strips(A: NormsMatrix, count: int) -> list[Sequence[Tile]]:
    """Split the tiles of A into at most `count` parts. If A has only one tile, split its rows."""
    if len(A.tiles) != 1:
        size = max(1, -(-len(A.tiles) // count))
        return [A.tiles[k : k + size] for k in range(0, len(A.tiles), size)]
    (tile,) = A.tiles
    rows, nb = tile.A.shape[0], tile.rows.nb
    height = max(1, -(-rows // (count * nb))) * nb
    parts: list[Sequence[Tile]] = []
    for il0 in range(0, rows, height):
        size = min(height, rows - il0)
        rows_here = IndexMap(size, tile.rows.to_global(il0), tile.rows.nb, tile.rows.jump)  # il0 starts a block
        parts.append([Tile(tile.A[il0 : il0 + size], rows_here, tile.cols, il0, 0)])
    return parts


def leading(A: NormsMatrix, share: float, *, by_columns: bool) -> Sequence[Tile]:
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
      block row    8·NB·c, twice if complex         (in fp64, during generation; one tile if tiles have several sizes)
      vectors      8·(4·T·(r + c) + 8·(m + n))      (row and column sums of T threads, high and low; full vectors)

    If `square`, m is equal to n.
    """
    parts = 2 if case.complex else 1

    def count(n: int, nb: int, P: int, Q: int) -> dict[str, int]:
        m = n if square else case.m
        r, c = numroc(m, nb, 0, P), numroc(n, nb, 0, Q)
        tiles = -(-r // nb) * -(-c // nb) if case.layout == "tiles" else 1
        generated, sums = min(nb, m) * c, r + c
        if case.tiles is not None:
            (r, downs), (c, rights) = _largest_part(m, case.tiles, P), _largest_part(n, case.tiles, Q)
            tiles, generated, sums = downs * rights, min(max(case.tiles), m) * min(max(case.tiles), n), m + n
        matrix = P * Q * (case.itemsize * r * c + TILE_BYTES * tiles)
        buffers = P * Q * FP64_BYTES * (parts * generated + 4 * threads * sums + 8 * (m + n))
        return {"matrix": matrix, "buffers": buffers, "total": matrix + buffers}

    return count


def _largest_part(size: int, sizes: Sequence[int], P: int) -> tuple[int, int]:
    """Return the largest number of indices of a process, and the largest number of its blocks."""
    lengths = [length for _, length in cut(size, sizes)]
    return max(sum(lengths[p::P]) for p in range(P)), -(-len(lengths) // P)


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
