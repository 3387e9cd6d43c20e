"""Rows that lie with their ranks, dealt out to the ranks of the blocks that they are part of."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from mxpeak.comm.base import Communicator, Task, all_of
from mxpeak.comm.grid import Grid
from mxpeak.errors import UsageError
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.grid import ProcessGrid
from mxpeak.library.agreement import agreed
from mxpeak.library.dense.sources import check_real, owned
from mxpeak.library.dense.types import Array
from mxpeak.library.inputs import check_finite, read

TAG = 7300


def rows_here(values: Any, name: str) -> Array:
    """This rank's rows: real, finite, of two dimensions."""
    A = read(values, name)
    check_real(A.dtype, name)
    if len(A.shape) != 2:
        raise UsageError(f"{name} has shape {A.shape}; give rows as (m, n), none as an array of shape (0, n)")
    rows = A.on(None)
    check_finite(rows, name, np)
    return np.asarray(rows)


def starts_of(comm: Communicator, rows: Array) -> tuple[int, ...]:
    """Every rank's first row, and n; all rows are there, and equally long.  Collective."""
    agreed(comm, lambda: rows, lambda made: f"rows of {made.shape[1]} entries")
    counts = comm.bcast_object(comm.gather_objects(rows.shape[0]))
    n, total = rows.shape[1], sum(counts)
    if total != n or n == 0:
        each = " + ".join(map(str, counts)) + f" = {total}" if comm.size > 1 else str(total)
        raise UsageError(
            f"the ranks have {each} rows of {n} entries; A is square and not empty: every row once, in order of ranks"
        )
    return 0, *accumulate(counts)


def dealt(grid: Grid, n: int, nb: int, rows: Array, starts: Sequence[int]) -> Array:
    """This rank's blocks of the matrix, in fp64, rank k having its rows from starts[k] on.

    Each pair of ranks exchanges at most one message, one after the other: beside the blocks, a rank needs memory for
    one of them.  Collective over the grid.
    """
    comm, shape = grid.all, ProcessGrid(grid.P, grid.Q)
    mine = BlockCyclic(n, nb, grid.p, grid.P)
    part = np.empty((mine.local_size, BlockCyclic(n, nb, grid.q, grid.Q).local_size))
    for shift in range(comm.size):
        to, source = (comm.rank + shift) % comm.size, (comm.rank - shift) % comm.size
        p, q = shape.coords(to)
        theirs, first = BlockCyclic(n, nb, p, grid.P), starts[comm.rank]
        which = owned(theirs)[theirs.local_range(first, starts[comm.rank + 1])] - first
        message = rows[np.ix_(which, owned(BlockCyclic(n, nb, q, grid.Q)))].astype(np.float64)
        place = part[mine.local_range(starts[source], starts[source + 1])]
        if shift == 0:
            place[:] = message
            continue
        requests = [comm.irecv(place, source, TAG)] if place.size else []
        requests += [comm.isend(message, to, TAG)] if message.size else []
        Task(all_of(requests)).wait()
    return part
