"""Distribute a dense matrix over a P×Q grid of ranks, from a function, rows, pieces, a file or ScaLAPACK blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import raise_first_error, validate_on_all
from mxpeak.comm.grid import Grid
from mxpeak.configs.grid import squarest
from mxpeak.distributed.sources import OwnRowsProduct
from mxpeak.distributed.tiles import CyclicMatrix
from mxpeak.errors import UsageError
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.grid import ProcessGrid
from mxpeak.library.communicators import BlockDistributed, communicator, grid_of
from mxpeak.library.dense.matrix_source import FunctionSource, InFile, InMemory, Source, wide_type
from mxpeak.library.dense.memory import check_memory
from mxpeak.library.dense.redistribution import by_rows, pieces_of, redistributed, rows_here, starts_of, type_of
from mxpeak.library.types import Array

#: Upper limit and granularity of the default block size, and the minimum number of blocks per process row or column.
LARGEST_NB, STEP_NB, BLOCKS = 192, 16, 8


class DistributedMatrix(BlockDistributed):
    """An n×n matrix that is distributed in blocks over a P×Q grid of ranks.

    Create a distributed matrix with `from_function`, `from_rows`, `from_root`, `from_pieces`, `from_file` or
    `from_blocks`. All ranks must call the same method with the same options. You can then pass the matrix to `solve`,
    `lu_factor` and the norm functions. Start the ranks with mpiexec, srun or torchrun. Without a launcher, there is
    only one rank.

    Attributes
    ----------
    n : int
        Order of the matrix.
    nb : int
        Block size of the block-cyclic distribution.
    grid : Grid
        Process grid of the ranks that share the matrix.
    source : Source
        Source of the entries, which is a function, a file or memory.
    shape : tuple of int
        Shape of the matrix, (n, n).
    dtype : numpy.dtype
        Data type of the entries, float64 or complex128.
    parts : int
        Number of real values per entry: 1 for real entries, or 2 for complex entries.
    comm : Communicator
        Communicator of all ranks in the process grid.
    own_rows : range
        Range of the rows that this rank owns. With `local=True`, each rank passes these rows of b and receives these
        rows of x.

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
        """Create the n×n matrix with the entries a_ij = fn(i, j), for 0 <= i, j < n.

        Each rank computes only the blocks that it owns. All ranks must call this method.

        Parameters
        ----------
        fn : callable
            Function that receives index arrays of shapes (m, 1) and (1, k) and returns the m×k entries. The entries
            must depend only on their indices, because mxpeak calls the function again for every residual. If any entry
            is complex, fn(0, 0) must also be complex.
        n : int
            Order of the matrix.
        nb : int, optional
            Block size of the block-cyclic distribution. By default, mxpeak chooses the block size from n and the grid.
        comm : communicator, "world" or None, default "world"
            mpi4py communicator of the ranks that share the matrix. Use "world" for all ranks that the launcher started,
            or None for this process only.
        grid : tuple of int, optional
            Numbers of rows and columns of the process grid, (P, Q). By default, mxpeak chooses the grid that is closest
            to a square.

        Returns
        -------
        DistributedMatrix
            Distributed matrix that computes its entries on demand.

        Raises
        ------
        UsageError
            An argument is invalid, or it is not the same on all ranks.

        Examples
        --------
        >>> import mxpeak as mx, numpy as np
        >>> A = mx.DistributedMatrix.from_function(lambda i, j: 2.0 * (i == j), 4)
        >>> mx.solve(A, np.ones(4))[0]
        array([0.5, 0.5, 0.5, 0.5])
        """
        ranks = communicator(comm)
        source = validate_on_all(ranks, lambda: _function_source(fn), lambda it: f"fn(0, 0) of {it.dtype}")
        return cls(*placed(ranks, n, nb, grid, _parts(source.dtype)), source)

    @classmethod
    def from_rows(
        cls, local_rows: Any, *, nb: int | None = None, comm: Any = "world", grid: tuple[int, int] | None = None
    ) -> DistributedMatrix:
        """Create a matrix from consecutive rows on each rank, in rank order.

        Each rank sends its entries to the ranks that own the blocks. The owners store the entries in float64 or
        complex128, which takes 8·n² or 16·n² bytes in total. All ranks must call this method.

        Parameters
        ----------
        local_rows : array_like or tensor
            Rows of this rank, as an array of shape (m, n). The number of rows m can be 0.
        nb : int, optional
            Block size of the block-cyclic distribution. By default, mxpeak chooses the block size from n and the grid.
        comm : communicator, "world" or None, default "world"
            mpi4py communicator of the ranks that share the matrix. Use "world" for all ranks that the launcher started,
            or None for this process only.
        grid : tuple of int, optional
            Numbers of rows and columns of the process grid, (P, Q). By default, mxpeak chooses the grid that is closest
            to a square.

        Returns
        -------
        DistributedMatrix
            Distributed matrix with its entries in the memory of the ranks.

        Raises
        ------
        UsageError
            An argument is invalid, or the rows of all ranks together do not form a square matrix.
        ResourceError
            There is not enough memory.

        Examples
        --------
        >>> import mxpeak as mx, numpy as np
        >>> mx.DistributedMatrix.from_rows(np.eye(4)).own_rows
        range(0, 4)
        """
        ranks = communicator(comm)
        return cls._redistributed(ranks, validate_on_all(ranks, lambda: rows_here(local_rows, "local_rows")), nb, grid)

    @classmethod
    def from_root(
        cls, A: Any, *, nb: int | None = None, comm: Any = "world", grid: tuple[int, int] | None = None
    ) -> DistributedMatrix:
        """Create a matrix from an array on rank 0.

        Rank 0 sends the blocks to the ranks that own them. All ranks must call this method.

        Parameters
        ----------
        A : array_like, tensor or None
            Square matrix on rank 0; None on the other ranks.
        nb : int, optional
            Block size of the block-cyclic distribution. By default, mxpeak chooses the block size from n and the grid.
        comm : communicator, "world" or None, default "world"
            mpi4py communicator of the ranks that share the matrix. Use "world" for all ranks that the launcher started,
            or None for this process only.
        grid : tuple of int, optional
            Numbers of rows and columns of the process grid, (P, Q). By default, mxpeak chooses the grid that is closest
            to a square.

        Returns
        -------
        DistributedMatrix
            Distributed matrix with its entries in the memory of the ranks.

        Raises
        ------
        UsageError
            An argument is invalid, or A is not square.
        ResourceError
            There is not enough memory.

        Examples
        --------
        >>> import mxpeak as mx, numpy as np
        >>> mx.DistributedMatrix.from_root(np.eye(4)).shape
        (4, 4)
        """
        ranks = communicator(comm)
        rows = validate_on_all(ranks, lambda: _roots(A, ranks.rank))
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
        """Create a matrix from rectangular pieces, which can be on any rank.

        Each rank sends its entries to the ranks that own the blocks. The owners store the entries in float64 or
        complex128. All ranks must call this method.

        Parameters
        ----------
        pieces : dict
            Pieces of this rank, as a dictionary {(row, column): array}. Each key is the position of the first entry of
            a piece. The pieces of all ranks together must contain every entry exactly once. A rank without pieces must
            pass an empty dictionary.
        n : int
            Order of the matrix.
        nb : int, optional
            Block size of the block-cyclic distribution. By default, mxpeak chooses the block size from n and the grid.
        comm : communicator, "world" or None, default "world"
            mpi4py communicator of the ranks that share the matrix. Use "world" for all ranks that the launcher started,
            or None for this process only.
        grid : tuple of int, optional
            Numbers of rows and columns of the process grid, (P, Q). By default, mxpeak chooses the grid that is closest
            to a square.

        Returns
        -------
        DistributedMatrix
            Distributed matrix with its entries in the memory of the ranks.

        Raises
        ------
        UsageError
            An argument is invalid, or the pieces do not contain every entry exactly once.
        ResourceError
            There is not enough memory.

        Examples
        --------
        >>> import mxpeak as mx, numpy as np
        >>> mx.DistributedMatrix.from_pieces({(0, 0): np.ones((2, 4)), (2, 0): np.eye(2, 4)}, 4).shape
        (4, 4)
        """
        ranks = communicator(comm)
        own_pieces = validate_on_all(ranks, lambda: _pieces(pieces))
        dtype = type_of(ranks, own_pieces.values())
        order, size, process = placed(ranks, n, nb, grid, _parts(dtype))
        all_pieces = pieces_of(ranks, order, own_pieces)
        check_memory(ranks, order, size, (process.P, process.Q), held=True, parts=_parts(dtype))
        part = redistributed(process, order, size, list(own_pieces.values()), all_pieces, dtype)
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
        """Create a matrix from a file that all ranks can read.

        Each rank reads only the blocks that it owns. Do not change the file while you use the matrix, because mxpeak
        reads the blocks again for every residual. All ranks must call this method.

        Parameters
        ----------
        path : str or Path
            Path of a NumPy file (.npy), an HDF5 file (.h5 or .hdf5, requires h5py) or a Zarr store (.zarr, requires
            zarr).
        dataset : str, optional
            Path of the dataset in the file, such as "run1/A". You must specify it if the file contains several
            matrices.
        nb : int, optional
            Block size of the block-cyclic distribution. By default, mxpeak chooses the block size from n and the grid.
        comm : communicator, "world" or None, default "world"
            mpi4py communicator of the ranks that share the matrix. Use "world" for all ranks that the launcher started,
            or None for this process only.
        grid : tuple of int, optional
            Numbers of rows and columns of the process grid, (P, Q). By default, mxpeak chooses the grid that is closest
            to a square.

        Returns
        -------
        DistributedMatrix
            Distributed matrix that reads its entries on demand.

        Raises
        ------
        UsageError
            mxpeak cannot read the file, the matrix is not square, or an argument is invalid.

        Examples
        --------
        >>> import mxpeak as mx, numpy as np, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "A.npy")
        >>> np.save(path, np.eye(4))
        >>> mx.DistributedMatrix.from_file(path).shape
        (4, 4)
        """
        ranks = communicator(comm)
        source = validate_on_all(ranks, lambda: InFile.opened(Path(path), dataset), lambda it: f"a file of {it.dtype}")
        return cls(*placed(ranks, source.n, nb, grid, _parts(source.dtype)), source)

    @classmethod
    def from_blocks(cls, blocks: CyclicMatrix) -> DistributedMatrix:
        """Create a matrix from a ScaLAPACK matrix without copying its local arrays.

        mxpeak reads your arrays but never writes to them. Do not change the arrays while you use the matrix or its
        factors. All ranks must call this method.

        Parameters
        ----------
        blocks : CyclicMatrix
            Matrix returned by `mxpeak.from_scalapack(local, desc, grid=..., comm=...)`. The blocks must be square, and
            the first block must be on process (0, 0).

        Returns
        -------
        DistributedMatrix
            Distributed matrix that uses your arrays directly.

        Raises
        ------
        UsageError
            The matrix or its blocks are not square, or the first block is not on process (0, 0).
        ResourceError
            There is not enough memory.

        Examples
        --------
        >>> import mxpeak as mx, numpy as np
        >>> M = mx.from_scalapack(np.asfortranarray(np.eye(4)), [1, 0, 4, 4, 2, 2, 0, 0, 4])
        >>> mx.DistributedMatrix.from_blocks(M)
        DistributedMatrix(4x4, nb=2, grid=1x1)
        """
        if not isinstance(blocks, CyclicMatrix):
            raise UsageError(
                f"blocks is of type {type(blocks).__name__}, but from_blocks needs a CyclicMatrix; use "
                "mxpeak.from_scalapack to create one"
            )
        grid = blocks.grid
        n, nb = validate_on_all(grid.all, lambda: _square_blocks(blocks), lambda it: f"n = {it[0]}, nb = {it[1]}")
        local = validate_on_all(grid.all, lambda: rows_here(blocks.local, "local"))
        source = InMemory(local, type_of(grid.all, [local]))
        parts = _parts(source.dtype)
        check_memory(grid.all, n, nb, (grid.P, grid.Q), held=True, in_use=source.held, parts=parts)
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
        """Return the matrix in the form that the norm functions use, with all entries in memory.

        If the matrix does not store its entries, each rank computes or reads its own part. This part takes 8·n²/(P·Q)
        bytes for real entries, or twice as many for complex entries. All ranks must call this method.

        Returns
        -------
        CyclicMatrix
            Matrix with the entries of this rank in a local array.
        """
        grid = self.grid
        rows, cols = BlockCyclic(self.n, self.nb, grid.p, grid.P), BlockCyclic(self.n, self.nb, grid.q, grid.Q)
        if isinstance(self.source, InMemory):
            return CyclicMatrix(grid, rows, cols, np.asarray(self.source.part, self.dtype))
        part = self.source(rows, cols, slice(0, rows.local_size))
        raise_first_error(self.comm, self.source.mistake())
        return CyclicMatrix(grid, rows, cols, part)

    def multiply(self, x: Array) -> Array:
        """Return this rank's own rows of A x, for its own rows of x.

        All ranks must call this method.

        Parameters
        ----------
        x : ndarray
            The rows `own_rows` of x, as an array of shape (m,).

        Returns
        -------
        ndarray
            The rows `own_rows` of A x.

        Raises
        ------
        UsageError
            x has another shape or is not numeric, or it is complex on some ranks only.
        """

        def checked() -> Array:
            values, rows = np.asarray(x), self.own_rows
            if values.shape != (len(rows),):
                raise UsageError(
                    f"this rank has rows {rows.start} to {rows.stop} of A, but x has shape {values.shape}; use shape "
                    f"({len(rows)},)"
                )
            return values.astype(np.result_type(wide_type(values.dtype, "x"), self.dtype))

        rows_of_x = validate_on_all(self.comm, checked, lambda rows: f"x of {rows.dtype}")
        grid = self.grid
        cut = BlockCyclic(self.n, self.nb, grid.p, grid.P), BlockCyclic(self.n, self.nb, grid.q, grid.Q)
        product = OwnRowsProduct(grid, cut, self.source, self._starts, np)(rows_of_x)
        raise_first_error(self.comm, self.source.mistake())
        return np.asarray(product)

    @property
    def starts(self) -> Sequence[int]:
        """Return the first own row of each rank, and n."""
        return self._starts

    @property
    def own_rows(self) -> range:
        """Return the range of the rows that this rank owns.

        With `local=True`, each rank passes these rows of b to `solve` and receives these rows of x. If you create the
        matrix with `from_rows` or `from_root`, a rank owns the rows that it passed. Otherwise, the rows are divided
        equally among the ranks, in rank order.
        """
        return range(*self._starts[self.comm.rank : self.comm.rank + 2])

    @property
    def comm(self) -> Communicator:
        """Return the communicator of all ranks in the process grid."""
        return self.grid.all

    @property
    def shape(self) -> tuple[int, int]:
        """Return the shape of the matrix, (n, n)."""
        return self.n, self.n

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the data type of the entries, float64 or complex128."""
        return self.source.dtype

    @property
    def parts(self) -> int:
        """Return the number of real values per entry: 1 for real entries, or 2 for complex entries."""
        return _parts(self.dtype)

    def __repr__(self) -> str:
        return f"DistributedMatrix({self.n}x{self.n}, nb={self.nb}, grid={self.grid.P}x{self.grid.Q})"


def _function_source(fn: Any) -> FunctionSource:
    if not callable(fn):
        raise UsageError(f"fn = {fn!r} is not a function of (i, j); use from_root or mxpeak.solve(A, b) for an array")
    return FunctionSource(fn)


def _parts(dtype: np.dtype[Any]) -> int:
    return 2 if dtype.kind == "c" else 1


def _square_blocks(A: CyclicMatrix) -> tuple[int, int]:
    """Return the order and block size of A; raise a UsageError if A or its blocks are not square."""
    rows, cols, grid = A.rows, A.cols, A.grid
    if rows.n != cols.n or rows.n < 1:
        raise UsageError(f"A has shape {A.shape}, but a system needs a nonempty square matrix; use a square A")
    if rows.nb != cols.nb:
        raise UsageError(f"the blocks of A are {rows.nb}x{cols.nb}, but LU needs square blocks; use MB = NB")
    if (rows.p, cols.p) != (grid.p, grid.q):
        raise UsageError("the first block of A is not on process (0, 0); use RSRC = CSRC = 0")
    return rows.n, rows.nb


def _pieces(given: Any) -> dict[tuple[int, int], Array]:
    """Check the pieces of this rank, and return them keyed by the row and column of their first entry."""
    if not isinstance(given, Mapping) or not all(map(_is_position, given)):
        raise UsageError(
            "pieces: use a dictionary {(row, column): array, …} with the first row and column of each "
            "piece, or {} for none"
        )
    return {at: rows_here(A, f"A[{at[0]}:, {at[1]}:]") for at, A in given.items()}


def _is_position(at: Any) -> bool:
    """Return whether a key consists of two integers."""
    return isinstance(at, tuple) and len(at) == 2 and all(isinstance(index, Integral) for index in at)


def _roots(A: Any, rank: int) -> Array:
    """Check the argument A of `from_root`; return A on rank 0, and an empty array on the other ranks."""
    if rank == 0 and A is None:
        raise UsageError("from_root reads A from this rank, but A is None; pass A on this rank and None on the others")
    if rank == 0:
        return rows_here(A, "A")
    if A is not None:
        raise UsageError(
            "from_root reads A only from rank 0; pass None on this rank, or use from_rows with the rows of each rank"
        )
    return np.empty((0, 0))


def placed(
    comm: Communicator, n: Any, nb: int | None, grid: tuple[int, int] | None, parts: int
) -> tuple[int, int, Grid]:
    """Return the order, the block size and the process grid, after checks that they are valid and equal on all ranks.

    Collective.
    """

    def settle() -> tuple[int, int, ProcessGrid]:
        shape = _shape(grid, comm.size)
        order = _positive(n, "n")
        size = block_size(order, max(shape.P, shape.Q), parts) if nb is None else _positive(nb, "nb")
        return order, size, shape

    order, size, shape = validate_on_all(
        comm, settle, lambda it: f"n = {it[0]}, nb = {it[1]}, grid = {it[2].P}x{it[2].Q}"
    )
    return order, size, grid_of(shape, comm)


def _shape(grid: Any, ranks: int) -> ProcessGrid:
    if grid is None:
        return ProcessGrid(*squarest(ranks))
    if not isinstance(grid, tuple | list) or len(grid) != 2:
        raise UsageError(f"grid = {grid!r} is not valid; use two integers (P, Q) with P*Q = {ranks}")
    P, Q = (_positive(side, "grid") for side in grid)
    if ranks != P * Q:
        best = squarest(ranks)
        raise UsageError(f"grid {P}x{Q} needs {P}*{Q} = {P * Q} ranks, but there are {ranks}; use grid={best}")
    return ProcessGrid(P, Q)


def _positive(value: Any, name: str) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise UsageError(f"{name} = {value!r} is not a positive integer; use an integer of 1 or more")
    return int(value)


def block_size(n: int, side: int, parts: int) -> int:
    """Return the default block size: at most LARGEST_NB, with at least BLOCKS blocks per process row or column.

    For complex entries, the limits apply to the order of the real form.
    """
    return min(LARGEST_NB, max(STEP_NB, parts * n // (BLOCKS * side) // STEP_NB * STEP_NB)) // parts
