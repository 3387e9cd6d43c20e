"""Distribute any sparse matrix over the ranks, in consecutive rows.

Rank k owns rows starts[k] … starts[k+1]-1, chosen so that all ranks have about the same number of entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mxpeak.comm.base import Communicator, Task, all_of

Array = np.ndarray[Any, np.dtype[Any]]
#: Tag of the messages that send entries to their owners, different from the tags of a solve.
TAG = 7400


@dataclass(frozen=True, slots=True)
class RowBlock:
    """The compressed rows of one rank, with global column numbers; `starts` has the first row of each rank, and n."""

    starts: list[int]
    rank: int
    indptr: Array
    columns: Array
    data: Array

    @property
    def first(self) -> int:
        """Return the first row of the rank."""
        return self.starts[self.rank]

    @property
    def n(self) -> int:
        """Return the number of rows of the rank."""
        return self.starts[self.rank + 1] - self.first

    @property
    def arrays(self) -> tuple[Array, Array, Array]:
        """Return the three CSR arrays in the order in which they are sent."""
        return self.indptr, self.columns, self.data


def cuts(indptr: Array, ranks: int) -> list[int]:
    """Return the first row of each rank, and n.

    Each rank gets at least one row and about the same number of entries.
    """
    n, nnz = len(indptr) - 1, int(indptr[-1])
    starts = [0]
    for k, at in enumerate(np.searchsorted(indptr, nnz * np.arange(1, ranks) / ranks), 1):
        starts.append(min(max(int(at), starts[-1] + 1), n - ranks + k))
    return [*starts, n]


def distribute(comm: Communicator, whole: Any, starts: Sequence[int] | None = None) -> RowBlock:
    """Distribute the rows of `whole`, which is a matrix on rank 0 and None on the other ranks. Collective.

    starts   the first row of each rank, and n, on rank 0; None selects about equal numbers of entries
    """
    plan: tuple[list[int], list[int]] | None = None
    if comm.rank == 0:
        cut = list(starts or cuts(whole.indptr, comm.size))
        plan = cut, [int(whole.indptr[row]) for row in cut]
    cut, firsts = comm.bcast_object(plan)
    if comm.rank == 0:
        for rank in range(1, comm.size):  # send to one rank at a time, because all parts together copy all columns
            block = _part(whole, cut, firsts, rank)
            Task(all_of([comm.isend(part, rank) for part in block.arrays])).wait()
        return _part(whole, cut, firsts, 0)
    n, nnz = cut[comm.rank + 1] - cut[comm.rank], firsts[comm.rank + 1] - firsts[comm.rank]
    block = RowBlock(cut, comm.rank, np.empty(n + 1, np.int64), np.empty(nnz, np.int64), np.empty(nnz))
    Task(all_of([comm.irecv(buffer, 0) for buffer in block.arrays])).wait()
    return block


def _part(whole: Any, starts: list[int], firsts: list[int], rank: int) -> RowBlock:
    """Return the row block of one rank; firsts[rank] is the index of its first entry in the whole matrix."""
    rows, entries = slice(starts[rank], starts[rank + 1] + 1), slice(firsts[rank], firsts[rank + 1])
    indptr = whole.indptr[rows].astype(np.int64) - firsts[rank]
    return RowBlock(starts, rank, indptr, whole.indices[entries].astype(np.int64), whole.data[entries])


def at_their_owners(comm: Communicator, starts: Sequence[int], rows: Array, columns: Array, values: Array) -> Array:
    """Send all entries to the owners of their rows; return the rows, columns and values of this rank's entries.

    All three arrays are fp64, which represents integers up to 2^53. Collective.
    """
    owner = np.searchsorted(starts, rows, side="right") - 1
    by_owner = np.argsort(owner, kind="stable")
    entries = np.stack([rows, columns, values])[:, by_owner].astype(np.float64)
    ends = np.searchsorted(owner[by_owner], np.arange(comm.size + 1))
    counts = comm.bcast_object(comm.gather_objects(np.diff(ends).tolist()))
    received = [np.empty((3, sent[comm.rank])) for sent in counts]
    parts = [np.ascontiguousarray(entries[:, ends[rank] : ends[rank + 1]]) for rank in range(comm.size)]
    received[comm.rank] = parts[comm.rank]
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    requests = [comm.irecv(received[rank], rank, TAG) for rank in others if received[rank].size]
    requests += [comm.isend(parts[rank], rank, TAG) for rank in others if parts[rank].size]
    Task(all_of(requests)).wait()
    return np.concatenate(received, axis=1)
