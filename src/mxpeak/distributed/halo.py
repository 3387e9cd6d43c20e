"""Exchange the halo of a rank: the entries of a vector that its rows use and other ranks own.

The halo is sorted by column, and therefore by owner, so that each owner sends one contiguous piece of the halo. Each
rank sends the owners the numbers of the rows that it needs. A rank may have to send entries to a rank from which it
receives no entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

from mxpeak.comm.base import Arrival, Communicator, Envelope, Request, Steps, Task, all_of
from mxpeak.distributed.rows import Array, RowBlock
from mxpeak.distributed.spaces import zeros
from mxpeak.kernels.contract.sparse import Order, Rows, SparseKernels, Vector
from mxpeak.layout.stencil import Box


@dataclass(frozen=True, slots=True)
class Partner:
    """A rank that exchanges halo entries with this rank.

    rows               this rank's rows that the partner needs
    offset, received   the position and the number of the partner's entries in this rank's halo
    """

    rank: int
    rows: Array
    offset: int
    received: int


class Exchange:
    """The halo exchange for vectors of one precision, with rows ordered by `order`."""

    def __init__(
        self, kernels: SparseKernels, comm: Communicator, partners: Sequence[Partner], order: Order, precision: str
    ):
        rows = np.concatenate([np.empty(0, np.int64), *(partner.rows for partner in partners)])
        self._kernels, self._comm, self._partners = kernels, comm, partners
        self._rows = kernels.xp.asarray(order.old_to_new[rows])
        self._buffer = zeros(kernels, rows.size, precision)
        self._received = zeros(kernels, sum(partner.received for partner in partners), precision)
        messages = list(self._sends()), list(self._receives(self._received))
        self._repeated = comm.repeated(*messages) if partners else None

    def begin(self, own: Vector, halo: Vector) -> Request | None:
        """Start to send entries of `own` to the other ranks and to receive `halo` from them. Collective.

        Return the pending exchange, or None if there are no neighbors.
        """
        if not self._partners:
            return None
        self._kernels.gather(own, self._rows, self._buffer)
        if self._repeated is not None:
            self._repeated.start()
            return Arrival(self._repeated, partial(halo.__setitem__, ..., self._received))
        travel = Task(self._travel(halo))
        travel.test()  # start the messages before the product that hides them
        return travel

    def complete(self, own: Vector, halo: Vector) -> None:
        """Exchange entries of `own` for `halo`, and wait until the exchange is complete. Collective."""
        travel = self.begin(own, halo)
        if travel is not None:
            travel.wait()

    def _travel(self, halo: Vector) -> Steps:
        requests = [self._comm.irecv(buffer, rank) for buffer, rank in self._receives(halo)]
        requests += [self._comm.isend(buffer, rank) for buffer, rank in self._sends()]
        yield from all_of(requests)

    def _sent_as(self, numbers: Vector) -> Vector:
        """Return numbers of 16 bits as integers, because MPI has no types for them, and other numbers unchanged."""
        return numbers.view(self._kernels.xp.int16) if numbers.itemsize == 2 else numbers

    def _receives(self, halo: Vector) -> Iterator[Envelope]:
        for partner in self._partners:
            yield self._sent_as(halo[partner.offset : partner.offset + partner.received]), partner.rank

    def _sends(self) -> Iterator[Envelope]:
        at = 0
        for partner in self._partners:
            yield self._sent_as(self._buffer[at : at + partner.rows.size]), partner.rank
            at += partner.rows.size


def localized(kernels: SparseKernels, comm: Communicator, block: RowBlock) -> tuple[Rows, list[Partner]]:
    """Convert a row block to local column numbers and a symmetric local pattern. Collective.

    Return the converted rows, and the partners of this rank.
    """
    columns, halo = numbered(block)
    rows = kernels.rows_of(block.indptr, columns, block.data, block.n, halo.size)
    if not kernels.is_symmetric_pattern(rows):  # colors and sweep orders need a symmetric pattern
        rows = kernels.with_symmetric_pattern(rows)
    return rows, partners(comm, block.starts, halo)


def numbered(block: RowBlock) -> tuple[Array, Array]:
    """Return the local numbers of the columns, own rows first and then the halo, and the global columns of the halo."""
    first, n = block.first, block.n
    outside = (block.columns < first) | (block.columns >= first + n)
    halo = np.unique(block.columns[outside])
    columns = block.columns - first
    columns[outside] = n + np.searchsorted(halo, block.columns[outside])
    return columns, halo


def partners(comm: Communicator, starts: Sequence[int], halo: Array) -> list[Partner]:
    """Return the ranks that own columns of the halo or that need rows of this rank. Collective."""
    bounds = np.searchsorted(halo, starts).tolist()
    needs = {rank: bounds[rank + 1] - bounds[rank] for rank in range(comm.size) if bounds[rank + 1] > bounds[rank]}
    needs_of_all = comm.bcast_object(comm.gather_objects(needs))
    counts = {rank: of_rank[comm.rank] for rank, of_rank in enumerate(needs_of_all) if comm.rank in of_rank}
    requested = {rank: np.empty(count, np.int64) for rank, count in counts.items()}
    requests = [comm.irecv(numbers, rank) for rank, numbers in requested.items()]
    requests += [comm.isend(halo[bounds[rank] : bounds[rank + 1]], rank) for rank in needs]
    Task(all_of(requests)).wait()
    no_rows = np.full(0, starts[comm.rank], np.int64)
    return [
        Partner(rank, requested.get(rank, no_rows) - starts[comm.rank], bounds[rank], needs.get(rank, 0))
        for rank in sorted({*requested, *needs})
    ]


def box_partners(box: Box) -> list[Partner]:
    """Return the neighbors of a box as the partners of its halo exchange."""
    return [
        Partner(part.rank, np.array(_points(box, part.first, part.shape), np.int64), part.recv_offset, part.count)
        for part in box.neighbors()
    ]


def _points(box: Box, first: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Return the rows of the points in a part of a box, with x fastest."""
    ranges = [range(at, at + size) for at, size in zip(first, shape)]
    return [(z * box.ny + y) * box.nx + x for z, y, x in product(*reversed(ranges))]
