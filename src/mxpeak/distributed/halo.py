"""The halo of a sparse matrix: the columns of other ranks that its rows use, and their exchange."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from mxpeak.comm.base import Arrival, Communicator, Envelope, Request, Steps, Task, all_of
from mxpeak.distributed.rows import Array, Block
from mxpeak.distributed.spaces import zeros
from mxpeak.kernels.contract.sparse import Indices, Order, Rows, SparseKernels, Vector


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A rank to talk to: how many rows it needs; where in the halo the entries begin that it sends, and how many."""

    rank: int
    count: int
    offset: int
    received: int


class Exchange:
    """The halo of vectors of one type; `rows` are those that the neighbours need, one neighbour after the other."""

    def __init__(
        self, kernels: SparseKernels, comm: Communicator, neighbours: Sequence[Neighbour], rows: Indices, precision: str
    ):
        self._kernels, self._comm, self._neighbours, self._rows = kernels, comm, neighbours, rows
        self._buffer = zeros(kernels, sum(one.count for one in neighbours), precision)
        self._came = zeros(kernels, sum(one.received for one in neighbours), precision)
        self._repeated = comm.repeated(list(self._sends()), list(self._receives(self._came))) if neighbours else None

    def begin(self, own: Vector, halo: Vector) -> Request | None:
        """Send what others need of x, and receive its halo; None where there is nobody.  Collective."""
        if not self._neighbours:
            return None
        self._kernels.gather(own, self._rows, self._buffer)
        if self._repeated is not None:
            self._repeated.start()
            return Arrival(self._repeated, partial(halo.__setitem__, ..., self._came))
        travel = Task(self._travel(halo))
        travel.test()  # what is only posted begins now, before the product that hides it
        return travel

    def _travel(self, halo: Vector) -> Steps:
        requests = [self._comm.irecv(buffer, rank) for buffer, rank in self._receives(halo)]
        requests += [self._comm.isend(buffer, rank) for buffer, rank in self._sends()]
        yield from all_of(requests)

    def _receives(self, halo: Vector) -> Iterator[Envelope]:
        for one in self._neighbours:
            yield halo[one.offset : one.offset + one.received], one.rank

    def _sends(self) -> Iterator[Envelope]:
        at = 0
        for one in self._neighbours:
            yield self._buffer[at : at + one.count], one.rank
            at += one.count


@dataclass(frozen=True, slots=True)
class Partner:
    """A rank to talk to: which rows it needs, by their numbers here; where in the halo its entries begin, how many."""

    rank: int
    rows: Array
    offset: int
    received: int


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
