"""Matrices for norms: one array, block-cyclic parts, or tiles at any addresses.

No entry is copied: a tile is an array with any strides (SLATE, Parallel Norms Performance Report, §2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from mxpeak.comm.base import Communicator, Transport
from mxpeak.comm.grid import Grid
from mxpeak.comm.transports.solo import Solo
from mxpeak.distributed.dense import DistMatrix
from mxpeak.errors import UsageError
from mxpeak.kernels.contract import Matrix, Vector
from mxpeak.kernels.contract.norms import Tile
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.index_map import IndexMap, block_cyclic, consecutive
from mxpeak.layout.structure import WHOLE, Band


@dataclass(frozen=True, slots=True, repr=False)
class TileMatrix:
    """An m×n matrix whose tiles may be on any rank. Row and column sums are therefore added over all ranks.

    A tile may be at any address: block row I has heights[I] rows, block column J has widths[J] columns, and tiles[I,
    J] is an array of that shape. Only the band `stored` of the matrix may be read.
    """

    tiles: Sequence[Tile]
    row_map: IndexMap
    column_map: IndexMap
    comm: Communicator
    stored: Band = WHOLE

    def __repr__(self) -> str:
        m, n = self.shape
        return f"TileMatrix({m}x{n}, {len(self.tiles)} of its tiles here)"

    @property
    def shape(self) -> tuple[int, int]:
        """Return the numbers of rows and columns of the whole matrix."""
        return self.row_map.size, self.column_map.size

    @property
    def T(self) -> TileMatrix:
        """Return the transposed matrix as a view."""
        return TileMatrix(
            [tile.T for tile in self.tiles], self.column_map, self.row_map, self.comm, self.stored.transposed
        )

    def mapped(self, change: Callable[[Matrix], Matrix]) -> TileMatrix:
        """Return the matrix in which each array is replaced by change(array)."""
        return replace(self, tiles=[replace(tile, A=change(tile.A)) for tile in self.tiles])

    def with_transport(self, transport: Transport) -> TileMatrix:
        """Return the matrix with another transport for messages between its ranks."""
        return replace(self, comm=self.comm.with_transport(transport))

    def sum_rows(self, by_row: Vector) -> None:
        """Complete the row sums: overwrite `by_row` with its sum over all ranks. Collective."""
        self.comm.allreduce(by_row, "sum")

    def sum_columns(self, by_column: Vector) -> None:
        """Complete the column sums: overwrite `by_column` with its sum over all ranks. Collective."""
        self.comm.allreduce(by_column, "sum")


@dataclass(frozen=True, slots=True, repr=False)
class BlockCyclicMatrix:
    """A matrix distributed block-cyclically, with rows over process rows and columns over process columns.

    As in ScaLAPACK, blocks may be rectangular.
    """

    grid: Grid
    rows: BlockCyclic
    cols: BlockCyclic

    def __repr__(self) -> str:
        m, n = self.shape
        return f"{type(self).__name__}({m}x{n} on {self.grid.P}x{self.grid.Q} ranks)"

    @property
    def shape(self) -> tuple[int, int]:
        """Return the numbers of rows and columns of the whole matrix."""
        return self.rows.n, self.cols.n

    @property
    def row_map(self) -> IndexMap:
        """Return the global indices of the local rows."""
        return block_cyclic(self.rows)

    @property
    def column_map(self) -> IndexMap:
        """Return the global indices of the local columns."""
        return block_cyclic(self.cols)

    @property
    def comm(self) -> Communicator:
        """Return the communicator of all ranks of the grid."""
        return self.grid.all

    def sum_rows(self, by_row: Vector) -> None:
        """Complete the row sums: overwrite `by_row` with its sum over the process row. Collective."""
        self.grid.row.allreduce(by_row, "sum")

    def sum_columns(self, by_column: Vector) -> None:
        """Complete the column sums: overwrite `by_column` with its sum over the process column. Collective."""
        self.grid.column.allreduce(by_column, "sum")


@dataclass(frozen=True, slots=True, repr=False)
class CyclicMatrix(BlockCyclicMatrix):
    """A block-cyclic matrix whose local part is a single array with any strides."""

    local: Matrix

    @property
    def tiles(self) -> Sequence[Tile]:
        """Return the local array as one tile, which may consist of many blocks."""
        return [Tile(self.local, self.row_map, self.column_map, 0, 0)]

    @property
    def T(self) -> CyclicMatrix:
        """Return the transposed matrix on the transposed grid as a view."""
        return CyclicMatrix(self.grid.transposed, self.cols, self.rows, self.local.T)

    def mapped(self, change: Callable[[Matrix], Matrix]) -> CyclicMatrix:
        """Return the matrix in which the local array is replaced by change(array)."""
        return replace(self, local=change(self.local))

    def with_transport(self, transport: Transport) -> CyclicMatrix:
        """Return the matrix with another transport for messages between its ranks."""
        g = self.grid
        everyone, row, column = (comm.with_transport(transport) for comm in (g.all, g.row, g.column))
        return replace(self, grid=replace(g, all=everyone, row=row, column=column))


def whole(A: Matrix) -> TileMatrix:
    """Return a tile matrix that consists of one array on this process."""
    rows, columns = consecutive(A.shape[0]), consecutive(A.shape[1])
    return TileMatrix([Tile(A, rows, columns, 0, 0)], rows, columns, Solo())


def cyclic(A: DistMatrix) -> CyclicMatrix:
    """Return a distributed matrix of the benchmarks as a matrix that the norms can read."""
    return CyclicMatrix(A.grid, A.rows, A.cols, A.local)


def tile_matrix(
    tiles: Mapping[tuple[int, int], Matrix], heights: Sequence[int], widths: Sequence[int], comm: Communicator
) -> TileMatrix:
    """Return a tile matrix with the given tiles[I, J] on this rank; see `TileMatrix`."""
    downs, rights = [0, *accumulate(heights)], [0, *accumulate(widths)]
    local = []
    for (I, J), A in tiles.items():
        if not (0 <= I < len(heights) and 0 <= J < len(widths)):
            raise UsageError(
                f"tile ({I}, {J}) does not exist, because the matrix has {len(heights)}x{len(widths)} tiles; "
                f"use indices from (0, 0) to ({len(heights) - 1}, {len(widths) - 1})"
            )
        if tuple(A.shape) != (heights[I], widths[J]):
            raise UsageError(
                f"tile ({I}, {J}) has shape {tuple(A.shape)}, but block row {I} has {heights[I]} rows and "
                f"block column {J} has {widths[J]} columns; use a tile of shape ({heights[I]}, {widths[J]})"
            )
        rows, cols = consecutive(heights[I], downs[I]), consecutive(widths[J], rights[J])
        local.append(Tile(A, rows, cols, downs[I], rights[J]))
    return TileMatrix(local, consecutive(downs[-1]), consecutive(rights[-1]), comm)


#: The entries of a ScaLAPACK array descriptor, in their order.
DESCRIPTOR = ("DTYPE", "CTXT", "M", "N", "MB", "NB", "RSRC", "CSRC", "LLD")


def scalapack_parts(desc: Sequence[int], grid: Grid) -> tuple[BlockCyclic, BlockCyclic, int]:
    """Return this rank's distributions of rows and columns for a descriptor, and the leading dimension of its array.

    Raise a UsageError if the descriptor is not valid.
    """
    if len(desc) != len(DESCRIPTOR) or desc[0] != 1:
        raise UsageError(
            f"{list(desc)} is not a descriptor of a dense matrix; use the {len(DESCRIPTOR)} integers "
            f"{', '.join(DESCRIPTOR)}, with DTYPE = 1"
        )
    _, _, m, n, mb, nb, rsrc, csrc, lld = map(int, desc)
    if m < 0 or n < 0 or mb < 1 or nb < 1 or not 0 <= rsrc < grid.P or not 0 <= csrc < grid.Q:
        raise UsageError(
            f"descriptor M={m} N={n} MB={mb} NB={nb} RSRC={rsrc} CSRC={csrc} is not valid; use sizes of 0 "
            f"or more, block sizes of 1 or more and a source process on the {grid.P}x{grid.Q} grid"
        )
    rows = BlockCyclic(m, mb, (grid.p - rsrc) % grid.P, grid.P)
    cols = BlockCyclic(n, nb, (grid.q - csrc) % grid.Q, grid.Q)
    if lld < max(1, rows.local_size):
        raise UsageError(
            f"LLD = {lld} is too small, because process ({grid.p}, {grid.q}) has {rows.local_size} local rows; "
            f"use LLD = {max(1, rows.local_size)} or more"
        )
    return rows, cols, lld
