"""A matrix of one's own over many ranks: its order, its blocks on their grid, and where its entries come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from mxpeak.comm.base import Communicator
from mxpeak.comm.grid import Grid
from mxpeak.configs.grid import squarest
from mxpeak.distributed.tiles import CyclicMatrix
from mxpeak.errors import UsageError
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.grid import ProcessGrid
from mxpeak.library.agreement import agreed
from mxpeak.library.communicators import communicator
from mxpeak.library.dense.memory import check_memory
from mxpeak.library.dense.redistribution import by_rows, pieces_of, redistributed, rows_here, starts_of, type_of
from mxpeak.library.dense.sources import InFile, InMemory, Made, Source
from mxpeak.library.dense.types import Array
from mxpeak.library.grids import InBlocks, grid_of
from mxpeak.runtime.nodes import raise_first

#: Blocks of the benchmarks' default size, and smaller ones where a process row or column would have fewer than this.
LARGEST_NB, STEP_NB, BLOCKS = 192, 16, 8


class DistributedMatrix(InBlocks):
    """An n×n matrix in blocks on a P×Q grid of ranks, for `solve`, `lu_factor` and norms.

    Use the class methods `from_function`, `from_rows`, `from_root`, `from_pieces`, `from_file` and `from_blocks`. All
    ranks call them with the same arguments, under mpiexec, srun or torchrun; without a launcher there is one rank.

    Examples
    --------
    >>> import mxpeak as mx
    >>> A = mx.DistributedMatrix.from_function(lambda i, j: 1.0 / (1.0 + abs(i - j)), 50)
    >>> A.shape
    (50, 50)
    """

    def __init__(self, n: int, nb: int, grid: Grid, source: Source, starts: Sequence[int] = ()):
        self.n, self.nb, self.grid, self.source = n, nb, grid, source
        self._starts = starts or [n * rank // grid.all.size for rank in range(grid.all.size + 1)]

    @classmethod
    def from_function(
        cls,
        fn: Callable[[Any, Any], Any],
        n: int,
        *,
        nb: int | None = None,
        comm: Any = "world",
        grid: tuple[int, int] | None = None,
    ) -> DistributedMatrix:
        """The matrix a_ij = fn(i, j), 0 <= i, j < n: every rank makes its own blocks, and no rank holds A.

        fn takes index arrays of shapes (m, 1) and (1, k) and gives m×k numbers, all complex where fn(0, 0) is.  It is
        called again for every residual, so what it gives must depend on i and j alone.  Collective.
        """
        ranks = communicator(comm)
        source = agreed(ranks, lambda: _made(fn), lambda made: f"fn(0, 0) of {made.dtype}")
        return cls(*placed(ranks, n, nb, grid, _parts(source.dtype)), source)

    @classmethod
    def from_rows(
        cls, local_rows: Any, *, nb: int | None = None, comm: Any = "world", grid: tuple[int, int] | None = None
    ) -> DistributedMatrix:
        """The matrix whose rows lie with the ranks, in their order: each gives an array of some rows, or of none.

        They are copied to where their blocks belong, 8·n² bytes over all ranks, and kept in fp64; complex ones in
        complex128, 16·n² bytes.  Collective.
        """
        ranks = communicator(comm)
        return cls._redistributed(ranks, agreed(ranks, lambda: rows_here(local_rows, "local_rows")), nb, grid)

    @classmethod
    def from_root(
        cls, A: Any, *, nb: int | None = None, comm: Any = "world", grid: tuple[int, int] | None = None
    ) -> DistributedMatrix:
        """The matrix of an array that rank 0 has; the others give None, and get their blocks.  Collective."""
        ranks = communicator(comm)
        rows = agreed(ranks, lambda: _roots(A, ranks.rank))
        n = ranks.bcast_object(rows.shape[1])
        return cls._redistributed(ranks, rows if ranks.rank == 0 else np.empty((0, n)), nb, grid)

    @classmethod
    def from_pieces(
        cls,
        pieces: Mapping[tuple[int, int], Any],
        n: int,
        *,
        nb: int | None = None,
        comm: Any = "world",
        grid: tuple[int, int] | None = None,
    ) -> DistributedMatrix:
        """The n×n matrix whose ranks give some rectangles of it each: (row, column) of the first entry, and an array.

        All ranks together give every entry once.  Copied to where their blocks belong, as rows are.  Collective.
        """
        ranks = communicator(comm)
        mine = agreed(ranks, lambda: _pieces(pieces))
        dtype = type_of(ranks, mine.values())
        order, size, process = placed(ranks, n, nb, grid, _parts(dtype))
        found = pieces_of(ranks, order, mine)
        check_memory(ranks, order, size, (process.P, process.Q), held=True, parts=_parts(dtype))
        part = redistributed(process, order, size, list(mine.values()), found, dtype)
        return cls(order, size, process, InMemory(part, dtype))

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        *,
        dataset: str | None = None,
        nb: int | None = None,
        comm: Any = "world",
        grid: tuple[int, int] | None = None,
    ) -> DistributedMatrix:
        """The matrix in a file that all ranks see: each reads its own blocks.

        NumPy's .npy, mapped; HDF5's .h5 or .hdf5, by h5py; .zarr, by zarr.  `dataset` says which one of several.
        Blocks are read again for every residual: leave the file as it is.  Collective.
        """
        ranks = communicator(comm)
        source = agreed(ranks, lambda: InFile.opened(Path(path), dataset), lambda made: f"a file of {made.dtype}")
        return cls(*placed(ranks, source.n, nb, grid, _parts(source.dtype)), source)

    @classmethod
    def from_blocks(cls, blocks: CyclicMatrix) -> DistributedMatrix:
        """The matrix in ScaLAPACK's local arrays: `from_blocks(mxpeak.from_scalapack(local, desc, grid=…, comm=…))`.

        Square blocks from process (0, 0) on.  They are used where they lie, and never written to: leave them as they
        are while you solve with A or its factors.  Collective.
        """
        if not isinstance(blocks, CyclicMatrix):
            raise UsageError(f"from_blocks takes what mxpeak.from_scalapack gives, not {type(blocks).__name__}")
        grid = blocks.grid
        n, nb = agreed(grid.all, lambda: _square_blocks(blocks), lambda made: f"n = {made[0]}, nb = {made[1]}")
        local = agreed(grid.all, lambda: rows_here(blocks.local, "local"))
        source = InMemory(local, type_of(grid.all, [local]))
        parts = _parts(source.dtype)
        check_memory(grid.all, n, nb, (grid.P, grid.Q), held=True, there=source.held, parts=parts)
        return cls(n, nb, grid, source)

    @classmethod
    def _redistributed(
        cls, comm: Communicator, rows: Array, nb: int | None, grid: tuple[int, int] | None
    ) -> DistributedMatrix:
        starts, dtype = starts_of(comm, rows), type_of(comm, [rows])
        n, nb, process = placed(comm, starts[-1], nb, grid, _parts(dtype))
        check_memory(comm, n, nb, (process.P, process.Q), held=True, parts=_parts(dtype))
        return cls(
            n, nb, process, InMemory(redistributed(process, n, nb, [rows], by_rows(starts), dtype), dtype), starts
        )

    def blocks(self) -> CyclicMatrix:
        """A's entries in memory, for `mxpeak.norm`, `norms` and the like.  Collective.

        Where they are not held they are made, 8·n²/(P·Q) bytes a rank, of complex numbers twice that.
        """
        grid = self.grid
        rows, cols = BlockCyclic(self.n, self.nb, grid.p, grid.P), BlockCyclic(self.n, self.nb, grid.q, grid.Q)
        if isinstance(self.source, InMemory):
            return CyclicMatrix(grid, rows, cols, np.asarray(self.source.part, self.dtype))
        part = self.source(rows, cols, slice(0, rows.local_size))
        raise_first(self.comm, self.source.mistake())
        return CyclicMatrix(grid, rows, cols, part)

    @property
    def own_rows(self) -> range:
        """The rows that this rank has given to from_rows or from_root, else an even share, in order of ranks."""
        return range(*self._starts[self.comm.rank : self.comm.rank + 2])

    @property
    def comm(self) -> Communicator:
        """The ranks of the grid."""
        return self.grid.all

    @property
    def shape(self) -> tuple[int, int]:
        """(n, n)."""
        return self.n, self.n

    @property
    def dtype(self) -> np.dtype[Any]:
        """float64, or complex128, whatever the entries are made of."""
        return self.source.dtype

    @property
    def parts(self) -> int:
        """How many real numbers an entry has."""
        return _parts(self.dtype)

    def __repr__(self) -> str:
        return f"DistributedMatrix({self.n}x{self.n}, nb={self.nb}, grid={self.grid.P}x{self.grid.Q})"


def _made(fn: Any) -> Made:
    if not callable(fn):
        raise UsageError(f"fn = {fn!r} is not a function of (i, j); for an array: from_root, or mxpeak.solve(A, b)")
    return Made(fn)


def _parts(dtype: np.dtype[Any]) -> int:
    return 2 if dtype.kind == "c" else 1


def _square_blocks(A: CyclicMatrix) -> tuple[int, int]:
    """Order and block size."""
    rows, cols, grid = A.rows, A.cols, A.grid
    if rows.n != cols.n or rows.n < 1:
        raise UsageError(f"A has shape {A.shape}; a system has a square matrix that is not empty")
    if rows.nb != cols.nb:
        raise UsageError(f"blocks are {rows.nb}x{cols.nb}; LU takes square ones: distribute A with MB = NB")
    if (rows.p, cols.p) != (grid.p, grid.q):
        raise UsageError("the first block lies with another process; LU begins at (0, 0): RSRC = CSRC = 0")
    return rows.n, rows.nb


def _pieces(given: Any) -> dict[tuple[int, int], Array]:
    """This rank's rectangles, by where they begin."""
    if not isinstance(given, Mapping) or not all(isinstance(at, tuple) and len(at) == 2 for at in given):
        raise UsageError("pieces: give a dictionary {(row, column): array, …} of where each begins, or {} for none")
    return {at: rows_here(A, f"A[{at[0]}:, {at[1]}:]") for at, A in given.items()}


def _roots(A: Any, rank: int) -> Array:
    """A on rank 0, nothing elsewhere."""
    if rank == 0 and A is None:
        raise UsageError("from_root takes A from this rank: give it here, and None on the others")
    if rank == 0:
        return rows_here(A, "A")
    if A is not None:
        raise UsageError("from_root takes A from rank 0: give None here, or rows of every rank to from_rows")
    return np.empty((0, 0))


def placed(
    comm: Communicator, n: Any, nb: int | None, grid: tuple[int, int] | None, parts: int
) -> tuple[int, int, Grid]:
    """Order, block size and grid, checked and alike on all ranks.  Collective."""

    def settle() -> tuple[int, int, ProcessGrid]:
        shape = _shape(grid, comm.size)
        order = _positive(n, "n")
        size = block_size(order, max(shape.P, shape.Q), parts) if nb is None else _positive(nb, "nb")
        return order, size, shape

    order, size, shape = agreed(
        comm, settle, lambda made: f"n = {made[0]}, nb = {made[1]}, grid = {made[2].P}x{made[2].Q}"
    )
    return order, size, grid_of(shape, comm)


def _shape(grid: Any, ranks: int) -> ProcessGrid:
    if grid is None:
        return ProcessGrid(*squarest(ranks))
    if not isinstance(grid, tuple | list) or len(grid) != 2:
        raise UsageError(f"grid = {grid!r}: give two numbers (P, Q) with P*Q = {ranks}")
    P, Q = (_positive(side, "grid") for side in grid)
    if ranks != P * Q:
        best = squarest(ranks)
        raise UsageError(f"grid {P}x{Q} takes {P}*{Q} = {P * Q} ranks, but there are {ranks}; give grid={best}")
    return ProcessGrid(P, Q)


def _positive(value: Any, name: str) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise UsageError(f"{name} = {value!r}: give an integer of 1 or more")
    return int(value)


def block_size(n: int, side: int, parts: int) -> int:
    """At most the benchmarks' block size, of real numbers, and some blocks for every process row and column."""
    return min(LARGEST_NB, max(STEP_NB, parts * n // (BLOCKS * side) // STEP_NB * STEP_NB)) // parts
