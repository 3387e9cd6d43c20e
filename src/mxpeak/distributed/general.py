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
from mxpeak.distributed.sparse import Exchange, Level, Neighbour, SparseMatrix
from mxpeak.distributed.stencil import Form, Hierarchy, StencilProblem, value_format
from mxpeak.kernels.contract.sparse import Order, Rows, SparseKernels
from mxpeak.spans import Spans

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


@dataclass(frozen=True, slots=True)
class Partner:
    """A rank to talk to: which rows it needs, by their numbers here; where in the halo its entries begin, how many."""

    rank: int
    rows: Array
    offset: int
    received: int


# --- distribution -----------------------------------------------------------------------------------------------


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


# --- the halo ---------------------------------------------------------------------------------------------------


def localised(kernels: SparseKernels, comm: Communicator, block: Block) -> tuple[Rows, list[Partner]]:
    """The rows in local columns and the halo's, with a locally symmetric pattern; whom to talk to.  Collective."""
    columns, halo = numbered(block)
    rows = kernels.rows_of(block.indptr, columns, block.data, block.n, halo.size)
    if not kernels.is_symmetric_pattern(rows):  # without one, colours and the order of sweeps would be wrong
        rows = kernels.with_symmetric_pattern(rows)
    return rows, partners(comm, block.starts, halo)


def numbered(block: Block) -> tuple[Array, Array]:
    """The columns as this rank counts them: n own ones, then its halo; and which columns of the whole that is."""
    first, n = block.first, block.n
    outside = (block.columns < first) | (block.columns >= first + n)
    halo = np.unique(block.columns[outside])
    columns = block.columns - first
    columns[outside] = n + np.searchsorted(halo, block.columns[outside])
    return columns, halo


def partners(comm: Communicator, starts: Sequence[int], halo: Array) -> list[Partner]:
    """Everybody whose rows this rank needs, `halo` of them, or who needs some of its.  Collective over comm."""
    bounds = np.searchsorted(halo, starts).tolist()
    needs = {rank: bounds[rank + 1] - bounds[rank] for rank in range(comm.size) if bounds[rank + 1] > bounds[rank]}
    everybodys = comm.bcast_object(comm.gather_objects(needs))
    asked = {rank: np.empty(one[comm.rank], np.int64) for rank, one in enumerate(everybodys) if comm.rank in one}
    requests = [comm.irecv(numbers, rank) for rank, numbers in asked.items()]
    requests += [comm.isend(halo[bounds[rank] : bounds[rank + 1]], rank) for rank in needs]
    Task(all_of(requests)).wait()
    nothing = np.empty(0, np.int64)
    return [
        Partner(rank, asked[rank] - starts[comm.rank] if rank in asked else nothing, bounds[rank], needs.get(rank, 0))
        for rank in sorted({*asked, *needs})
    ]


def exchange(
    kernels: SparseKernels, comm: Communicator, partners: Sequence[Partner], order: Order, precision: str
) -> Exchange:
    """The halo of vectors in an order of the rows."""
    neighbours = [Neighbour(one.rank, one.rows.size, one.offset, one.received) for one in partners]
    rows = np.concatenate([np.empty(0, np.int64), *(one.rows for one in partners)])
    return Exchange(kernels, comm, neighbours, kernels.xp.asarray(order.old_to_new[rows]), precision)


# --- the matrix -------------------------------------------------------------------------------------------------


def make_general(
    kernels: SparseKernels, comm: Communicator, block: Block, forms: Sequence[Form], order: str, spans: Spans
) -> StencilProblem:
    """The matrix in every form, as hierarchies of one level: a cycle is one sweep from zero.  Collective over comm."""
    clock = kernels.stopwatch
    begin = clock.mark()
    rows, partners = localised(kernels, comm, block)
    generated = clock.mark()
    ordered = kernels.order(rows, order)
    found: list[Hierarchy] = []
    for form in forms:
        values, exact = value_format(kernels, comm, rows, form.values[0], form.tolerance)
        vectors = form.vectors_of(values)
        same = next((one.top.A.A for one in found if one.top.A.A.storage == form.storage), None)
        stored = kernels.store(rows, ordered, values, vectors, form.storage, like=same)
        top = outer = SparseMatrix(kernels, stored, exchange(kernels, comm, partners, ordered, vectors), spans)
        if form.mixed:  # residuals are those of the matrix itself
            like = stored if exact else same
            stored = kernels.store(rows, ordered, values if exact else "fp64", "fp64", form.storage, like=like)
            outer = SparseMatrix(kernels, stored, exchange(kernels, comm, partners, ordered, "fp64"), spans)
        found.append(Hierarchy(Level(top, top.halo_vector()), outer))
    b, setup_bytes = kernels.row_sums(rows, ordered), int(rows.indptr[-1]) * 12 + rows.n * 8
    generate_s, optimize_s = clock.seconds(begin, generated), clock.seconds(generated, clock.mark())
    return StencilProblem(found, b, generate_s, optimize_s, [ordered.colours], setup_bytes)
