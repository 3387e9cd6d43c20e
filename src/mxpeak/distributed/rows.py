"""Any sparse matrix over the ranks: consecutive rows each, and a halo that is read off their columns.

Rank k owns rows starts[k] … starts[k+1]-1, so many that all ranks have about as many entries.  The columns of others
that its rows meet are its halo, ascending, so by owner: what one rank sends is one piece of it.  Every rank tells the
owners which of their rows it needs; one may have to send to another from which it needs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mxpeak.comm.base import Communicator, Task, all_of

Array = np.ndarray[Any, np.dtype[Any]]
#: Of entries on the way to their owners, apart from the messages of a solve.
TAG = 7400


@dataclass(frozen=True, slots=True)
class Block:
    """One rank's rows of a matrix, compressed, with the columns of the whole; `starts` has every rank's first row."""

    starts: list[int]
    rank: int
    indptr: Array
    columns: Array
    data: Array

    @property
    def first(self) -> int:
        """The rank's first row."""
        return self.starts[self.rank]

    @property
    def n(self) -> int:
        """How many it has."""
        return self.starts[self.rank + 1] - self.first

    @property
    def arrays(self) -> tuple[Array, Array, Array]:
        """What travels, in this order."""
        return self.indptr, self.columns, self.data


def cuts(indptr: Array, ranks: int) -> list[int]:
    """The first row of every rank, and n: about as many entries each, and one row at least."""
    n, nnz = len(indptr) - 1, int(indptr[-1])
    starts = [0]
    for k, at in enumerate(np.searchsorted(indptr, nnz * np.arange(1, ranks) / ranks), 1):
        starts.append(min(max(int(at), starts[-1] + 1), n - ranks + k))
    return [*starts, n]


def distribute(comm: Communicator, whole: Any, starts: Sequence[int] | None = None) -> Block:
    """The rows of `whole`, compressed rows on rank 0 and None elsewhere, over the ranks.  Collective over comm.

    starts   every rank's first row, and n, on rank 0; None: about as many entries each
    """
    plan: tuple[list[int], list[int]] | None = None
    if comm.rank == 0:
        cut = list(starts or cuts(whole.indptr, comm.size))
        plan = cut, [int(whole.indptr[row]) for row in cut]
    cut, firsts = comm.bcast_object(plan)
    if comm.rank == 0:
        for rank in range(1, comm.size):  # one at a time: all together would be a second copy of the columns
            block = _part(whole, cut, firsts, rank)
            Task(all_of([comm.isend(one, rank) for one in block.arrays])).wait()
        return _part(whole, cut, firsts, 0)
    n, nnz = cut[comm.rank + 1] - cut[comm.rank], firsts[comm.rank + 1] - firsts[comm.rank]
    mine = Block(cut, comm.rank, np.empty(n + 1, np.int64), np.empty(nnz, np.int64), np.empty(nnz))
    Task(all_of([comm.irecv(buffer, 0) for buffer in mine.arrays])).wait()
    return mine


def _part(whole: Any, starts: list[int], firsts: list[int], rank: int) -> Block:
    """One rank's rows; its entries are those from firsts[rank] on."""
    rows, entries = slice(starts[rank], starts[rank + 1] + 1), slice(firsts[rank], firsts[rank + 1])
    indptr = whole.indptr[rows].astype(np.int64) - firsts[rank]
    return Block(starts, rank, indptr, whole.indices[entries].astype(np.int64), whole.data[entries])


def at_their_owners(comm: Communicator, starts: Sequence[int], rows: Array, columns: Array, values: Array) -> Array:
    """Rows, columns and values of all entries in this rank's rows, from whichever ranks have them.  Collective.

    All three are fp64, which knows whole numbers up to 2^53.
    """
    owner = np.searchsorted(starts, rows, side="right") - 1
    by_owner = np.argsort(owner, kind="stable")
    mine = np.stack([rows, columns, values])[:, by_owner].astype(np.float64)
    ends = np.searchsorted(owner[by_owner], np.arange(comm.size + 1))
    counts = comm.bcast_object(comm.gather_objects(np.diff(ends).tolist()))
    came = [np.empty((3, sent[comm.rank])) for sent in counts]
    parts = [np.ascontiguousarray(mine[:, ends[rank] : ends[rank + 1]]) for rank in range(comm.size)]
    came[comm.rank] = parts[comm.rank]
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    requests = [comm.irecv(came[rank], rank, TAG) for rank in others if came[rank].size]
    requests += [comm.isend(parts[rank], rank, TAG) for rank in others if parts[rank].size]
    Task(all_of(requests)).wait()
    return np.concatenate(came, axis=1)
