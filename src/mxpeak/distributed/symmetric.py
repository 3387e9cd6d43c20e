"""Symmetric matrices on a process grid of which one triangle is used, and a test whether a matrix is Hermitian."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

from mxpeak.comm.base import Task, all_of
from mxpeak.comm.collectives import allreduce_scalars
from mxpeak.comm.grid import Grid
from mxpeak.distributed.dense import DistMatrix, gathered, part_of
from mxpeak.distributed.sources import Strips, add_product, whole_blocks
from mxpeak.kernels.contract import Kernels, Matrix, Vector
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.lu_schedule import LuStep, lu_steps

TAG = 7800  # a multiple of FAMILY
#: Largest number of rows of a tile. The second product with a low tile reads it from the cache, and its diagonal part,
#: of which both triangles are multiplied, is small.
HEIGHT = 64
#: Odd factors of a multiplicative hash of 64-bit words.
FACTORS = 0x2545F4914F6CDD1D, 0x369DEA0F31A53F85


class TriangleTile(NamedTuple):
    """The entries T of a lower triangle in these local rows and columns; `diagonal` marks a lower triangle T."""

    rows: slice
    columns: slice
    T: Matrix
    diagonal: bool


class SymmetricMatrix:
    """A symmetric n×n matrix in NB×NB blocks on a grid, of which one triangle of a `Strips` function is used.

    grid, rows, cols   the distribution of the lower triangle. If the upper triangle is read, its transpose is the lower
                       triangle, and the process grid is transposed.
    """

    def __init__(self, grid: Grid, n: int, nb: int, strips: Strips, kernels: Kernels, *, lower: bool):
        self._down, self._right = BlockCyclic(n, nb, grid.p, grid.P), BlockCyclic(n, nb, grid.q, grid.Q)
        self._strips, self._kernels, self._lower = strips, kernels, lower
        self.grid, self.n, self.nb = grid if lower else grid.transposed, n, nb
        self.rows, self.cols = (self._down, self._right) if lower else (self._right, self._down)

    def store(self, A: DistMatrix) -> None:
        """Store the lower triangle in A, and zeros above the diagonal."""
        A.local[...] = 0.0
        for tile in self._tiles():
            A.local[tile.rows, tile.columns] = tile.T

    def multiply(self, x: Vector) -> Vector:
        """Return A x in fp64, distributed like the rows of A, for x distributed like the columns. Collective.

        x is one vector, or several vectors as columns. Every strip is computed or read once; the values in the other
        triangle are not used.
        """
        xp = self._kernels.xp
        return part_of(self._product(gathered(x, self.cols, self.grid.row, xp)), self.rows, xp)

    def multiply_transposed(self, x: Vector) -> Vector:
        """Return A x, distributed like the columns of A, for x distributed like the rows. Collective."""
        xp = self._kernels.xp
        return part_of(self._product(gathered(x, self.rows, self.grid.column, xp)), self.cols, xp)

    def _product(self, x: Vector) -> Vector:
        """Return A x for x, both complete on every rank; the products with T and T^T of all tiles T are added."""
        xp, kernels = self._kernels.xp, self._kernels
        over_rows, over_columns = part_of(x, self.rows, xp), part_of(x, self.cols, xp)
        y, z = xp.zeros_like(over_rows), xp.zeros_like(over_columns)
        for rows, columns, T, diagonal in self._tiles():
            if diagonal:
                add_product(kernels, y[rows], T + xp.tril(T, k=-1).T, over_columns[columns])
            else:
                add_product(kernels, y[rows], T, over_columns[columns])
                add_product(kernels, z[columns], T, over_rows[rows], transposed=True)
        product = xp.zeros_like(x)
        for part, layout in ((y, self.rows), (z, self.cols)):
            for local, everywhere in layout.blocks():
                product[everywhere] += part[local]
        self.grid.all.allreduce(product, "sum")
        return product

    def _tiles(self) -> Iterator[TriangleTile]:
        """Yield the tiles of this rank: the diagonal part of some rows of the source, and the part next to it."""
        xp, down, right = self._kernels.xp, self._down, self._right
        for local in whole_blocks(down, right):
            strip = self._strips(down, right, local)
            for block in _rows_of_tiles(local, self.nb):
                S, i0 = strip[block.start - local.start : block.stop - local.start], down.to_global(block.start)
                corner = right.local_range(i0, i0 + len(S))
                outside = slice(0, corner.start) if self._lower else slice(corner.stop, right.local_size)
                if outside.start < outside.stop:
                    yield self._tile(block, outside, S[:, outside], diagonal=False)
                if corner.start < corner.stop:
                    half = xp.tril(S[:, corner]) if self._lower else xp.triu(S[:, corner])
                    yield self._tile(block, corner, half, diagonal=True)

    def _tile(self, down: slice, right: slice, S: Matrix, *, diagonal: bool) -> TriangleTile:
        """Return a tile of the lower triangle, which is the transpose of S if the upper triangle is read."""
        return TriangleTile(down, right, S, diagonal) if self._lower else TriangleTile(right, down, S.T, diagonal)


def _rows_of_tiles(local: slice, nb: int) -> Iterator[slice]:
    """Yield slices of at most HEIGHT rows of one block, for local rows that consist of whole blocks."""
    for begin in range(local.start, local.stop, nb):
        end = min(begin + nb, local.stop)
        yield from (slice(first, min(first + HEIGHT, end)) for first in range(begin, end, HEIGHT))


def fill_upper(A: DistMatrix, kernels: Kernels) -> None:
    """Store the transpose of the lower triangle of a square A in its upper triangle. Collective.

    For each block row, each pair of ranks exchanges at most one message, one pair after the other.
    """
    grid, comm, steps = A.grid, A.grid.all, lu_steps(A.rows.n, A.nb, A.grid.P, A.grid.Q)
    places = comm.bcast_object(comm.gather_objects((grid.p, grid.q)))
    here = grid.p, grid.q

    def blocks(row: LuStep, source: tuple[int, int], target: tuple[int, int]) -> list[tuple[slice, slice]]:
        """Return the rows and columns of the blocks of a row that one rank sends to another."""
        if (source[0], target[1]) != (row.p, row.q):
            return []
        sent = [column for column in steps[: row.k] if (column.q, column.p) == (source[1], target[0])]
        return [(slice(row.j0, row.j1), slice(column.j0, column.j1)) for column in sent]

    for _, block in A.diagonal_blocks():
        block[...] = block + kernels.xp.tril(block, k=-1).T
    for row, shift in product(steps, range(comm.size)):
        to, source = (comm.rank + shift) % comm.size, (comm.rank - shift) % comm.size
        going, coming = blocks(row, here, places[to]), blocks(row, places[source], here)
        if not shift:
            for i, j in going:
                kernels.copy(A[i, j].T, A[j, i])
            continue
        messages = [kernels.buffer(sum(_size(block) for block in pieces), A.precision) for pieces in (going, coming)]
        for (i, j), piece in _pieces(messages[0], going):
            kernels.copy(A[i, j], piece)
        requests = [comm.irecv(messages[1], source, TAG)] if coming else []
        requests += [comm.isend(messages[0], to, TAG)] if going else []
        Task(all_of(requests)).wait()
        for (i, j), piece in _pieces(messages[1], coming):
            kernels.copy(piece.T, A[j, i])


def _size(block: tuple[slice, slice]) -> int:
    return int((block[0].stop - block[0].start) * (block[1].stop - block[1].start))


def _pieces(message: Vector, blocks: list[tuple[slice, slice]]) -> Iterator[tuple[tuple[slice, slice], Matrix]]:
    """Yield each block with its part of a message, as a matrix."""
    begin = 0
    for block in blocks:
        shape, end = tuple(of.stop - of.start for of in block), begin + _size(block)
        yield block, message[begin:end].reshape(shape)
        begin = end


def is_hermitian(grid: Grid, cut: tuple[BlockCyclic, BlockCyclic], strips: Strips, xp: Any) -> bool:
    """Return whether a real or complex matrix is exactly Hermitian and has a positive diagonal. Collective.

    The sum of a hash of a_ij over i > j, minus that of the hash of conj(a_ji), is zero modulo 2^64 if A is Hermitian,
    and otherwise with a probability below 2^-40. Each rank reads its entries once, and sends three numbers.
    """
    rows, cols = cut
    i, j = (_indices(layout, xp) for layout in cut)
    total, wrong = 0, 0
    for local in whole_blocks(rows, cols):
        A, down = strips(rows, cols, local), i[local]
        diagonal = A[down[:, None] == j]
        wrong += int(xp.count_nonzero((xp.real(diagonal) > 0.0) & (xp.imag(diagonal) == 0.0))) - len(diagonal)
        below, above = (xp.where(inside, A, 0.0) for inside in (down[:, None] > j, down[:, None] < j))
        total += _hash(below, down, j, xp) - _hash(xp.conj(above).T, j, down, xp)
    high, low = divmod(total % 2**64, 2**32)
    high, low, wrong = map(int, allreduce_scalars(grid.all, [float(high), float(low), float(wrong)], "sum"))
    return (high * 2**32 + low) % 2**64 == 0 and wrong == 0


def _indices(layout: BlockCyclic, xp: Any) -> Any:
    """Return the global indices that this rank owns in a distribution."""
    return layout.to_global(xp.arange(layout.local_size))


def _hash(A: Matrix, i: Vector, j: Vector, xp: Any) -> int:
    """Return Σ r(i)·c(j)·h(a_ij) modulo 2^64, with odd pseudo-random numbers r and c, and a hash h of the bits."""
    r, c = (_mixed((k + 1) * factor) | 1 for k, factor in zip((i, j), FACTORS))
    total = 0
    for part, factor in zip((xp.real, xp.imag), FACTORS):
        words = _mixed(xp.astype(part(A) + 0.0, xp.float64).view(xp.int64))  # adding 0 makes -0 equal to 0
        total += int(r @ (words @ c)) * factor
    return total


def _mixed(words: Any) -> Any:
    """Return a hash of 64-bit words, in which high bits also change low bits."""
    words = words * FACTORS[0]
    return words ^ (words >> 32)
