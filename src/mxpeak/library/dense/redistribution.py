"""Send rows and rectangular pieces from any rank to the ranks that own the blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from mxpeak.comm.base import Communicator, Task, all_of
from mxpeak.comm.collectives import validate_on_all
from mxpeak.comm.grid import Grid
from mxpeak.errors import UsageError
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.grid import ProcessGrid
from mxpeak.library.dense.matrix_source import owned, wide_type
from mxpeak.library.inputs import check_finite, read
from mxpeak.library.types import Array

TAG = 7300


def rows_here(values: Any, name: str) -> Array:
    """Return this rank's rows as an array; raise a UsageError unless they are numeric, finite and two-dimensional."""
    A = read(values, name)
    if len(A.shape) != 2:
        raise UsageError(f"{name} has shape {A.shape}; use shape (m, n) for m rows, or (0, n) on a rank without rows")
    wide_type(A.dtype, name)
    rows = A.on(None)
    check_finite(rows, name, np)
    return np.asarray(rows)


def type_of(comm: Communicator, arrays: Iterable[Array]) -> np.dtype[Any]:
    """Return complex128 if the arrays of any rank are complex, otherwise float64. Collective."""
    here = np.result_type(np.float64, *(values.dtype for values in arrays)).kind
    kinds = comm.bcast_object(comm.gather_objects(here))
    return np.dtype(np.complex128 if "c" in kinds else np.float64)


def starts_of(comm: Communicator, rows: Array) -> tuple[int, ...]:
    """Return the first row of each rank, followed by n; raise a UsageError for a matrix that is not square or empty."""
    validate_on_all(comm, lambda: rows, lambda rows: f"rows of {rows.shape[1]} entries")
    counts = comm.bcast_object(comm.gather_objects(rows.shape[0]))
    n, total = rows.shape[1], sum(counts)
    if total == n == 0:
        raise UsageError(
            "A is 0x0, but a DistributedMatrix needs at least one row; use an array on one process, for which solve "
            "returns an empty x"
        )
    if total != n:
        each = " + ".join(map(str, counts)) + f" = {total}" if comm.size > 1 else str(total)
        raise UsageError(
            f"the ranks have {each} rows of {n} entries, but A must be square; pass each row of A exactly "
            "once, in rank order"
        )
    return 0, *accumulate(counts)


class MatrixPiece(NamedTuple):
    """A rectangular piece of A: the rank that stores it, its first row and column, and its shape."""

    rank: int
    row: int
    col: int
    shape: tuple[int, int]


def by_rows(starts: Sequence[int]) -> list[MatrixPiece]:
    """Return one piece per rank, in which rank k has the rows from starts[k] to starts[k+1] - 1."""
    n = starts[-1]
    return [MatrixPiece(rank, first, 0, (last - first, n)) for rank, (first, last) in enumerate(pairwise(starts))]


def pieces_of(comm: Communicator, n: int, own_pieces: Mapping[tuple[int, int], Array]) -> list[MatrixPiece]:
    """Gather the pieces of all ranks, in rank order; raise a UsageError unless every entry is in one piece.

    Collective.
    """
    here = [MatrixPiece(comm.rank, row, col, values.shape) for (row, col), values in own_pieces.items()]
    pieces = [piece for part in comm.bcast_object(comm.gather_objects(here)) for piece in part]
    _check_every_entry_once(n, pieces)
    return pieces


def _check_every_entry_once(n: int, pieces: Sequence[MatrixPiece]) -> None:
    """Raise a UsageError unless the pieces contain every entry of the n×n matrix exactly once.

    The entries are counted in the rectangles that the edges of all pieces form.
    """
    rows = np.unique([0, n, *(edge for row, _, (m, _) in _places(pieces) for edge in (row, row + m))])
    cols = np.unique([0, n, *(edge for _, col, (_, k) in _places(pieces) for edge in (col, col + k))])
    if min(rows[0], cols[0]) < 0 or max(rows[-1], cols[-1]) > n:
        raise UsageError(
            f"the pieces reach from row {rows[0]} to {rows[-1]} and from column {cols[0]} to {cols[-1]}, but A "
            f"is {n}x{n}; use pieces inside A"
        )
    times = np.zeros((len(rows) - 1, len(cols) - 1), np.int32)
    for row, col, (m, k) in _places(pieces):
        top, bottom = np.searchsorted(rows, (row, row + m))
        first, last = np.searchsorted(cols, (col, col + k))
        times[top:bottom, first:last] += 1
    if (times != 1).any():
        i, j = np.argwhere(times != 1)[0]
        raise UsageError(
            f"A[{rows[i]}, {cols[j]}] is in {times[i, j]} pieces; pass each entry of A in exactly one piece"
        )


def _places(pieces: Sequence[MatrixPiece]) -> Iterator[tuple[int, int, tuple[int, int]]]:
    return ((row, col, shape) for _, row, col, shape in pieces)


def redistributed(
    grid: Grid, n: int, nb: int, values: Sequence[Array], pieces: Sequence[MatrixPiece], dtype: np.dtype[Any]
) -> Array:
    """Send the entries to the ranks that own them, and return this rank's blocks. Collective over the grid.

    `values` contains the arrays of this rank's pieces, in the order of `pieces`. Each pair of ranks exchanges at most
    one message, one pair after the other. In addition to the blocks, a rank needs memory for two messages.
    """
    comm, shape = grid.all, ProcessGrid(grid.P, grid.Q)
    here = [piece for piece in pieces if piece.rank == comm.rank]
    layouts = _layouts(n, nb, shape, comm.rank)
    part = np.empty((layouts[0].local_size, layouts[1].local_size), dtype)
    for shift in range(comm.size):
        to, source = (comm.rank + shift) % comm.size, (comm.rank - shift) % comm.size
        message = _packed(here, values, *_layouts(n, nb, shape, to), dtype)
        targets = [
            part[layouts[0].local_range(row, row + m), layouts[1].local_range(col, col + k)]
            for rank, row, col, (m, k) in pieces
            if rank == source
        ]
        if shift:
            message = _exchanged(comm, message, to, np.empty(sum(target.size for target in targets), dtype), source)
        _unpack(message, targets)
    return part


def _layouts(n: int, nb: int, shape: ProcessGrid, rank: int) -> tuple[BlockCyclic, BlockCyclic]:
    """Return the row layout and the column layout of the blocks that a rank owns."""
    p, q = shape.coords(rank)
    return BlockCyclic(n, nb, p, shape.P), BlockCyclic(n, nb, q, shape.Q)


def _packed(
    here: Sequence[MatrixPiece], values: Sequence[Array], rows: BlockCyclic, cols: BlockCyclic, dtype: np.dtype[Any]
) -> Array:
    """Copy the entries of this rank's pieces that are in the given rows and columns into one contiguous array."""
    packed = [np.empty(0, dtype)]
    for (_, row, col, (m, k)), A in zip(here, values):
        i, j = owned(rows)[rows.local_range(row, row + m)], owned(cols)[cols.local_range(col, col + k)]
        packed.append(A[np.ix_(i - row, j - col)].astype(dtype, copy=False).ravel())
    return packed[1] if len(packed) == 2 else np.concatenate(packed)


def _exchanged(comm: Communicator, message: Array, to: int, theirs: Array, source: int) -> Array:
    """Send `message` to rank `to`, receive a message from rank `source` into `theirs`, and return `theirs`.

    Complex numbers are sent as pairs of fp64 numbers.
    """
    requests = [comm.irecv(theirs.view(np.float64), source, TAG)] if theirs.size else []
    requests += [comm.isend(message.view(np.float64), to, TAG)] if message.size else []
    Task(all_of(requests)).wait()
    return theirs


def _unpack(message: Array, targets: Sequence[Array]) -> None:
    done = 0
    for target in targets:
        target[:] = message[done : done + target.size].reshape(target.shape)
        done += target.size
