"""Who shares a system: ranks with consecutive rows of A each, and what they know of each other's numbers.

A rank holds its rows in columns of its own: first those of its own unknowns, then its halo, the columns of others that
its rows meet.  A process alone has all rows and no halo; then nothing below is sent, and each number is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, TypeVar

import numpy as np

from mxpeak.comm.base import Communicator, Task, all_of
from mxpeak.comm.collectives import allreduce_scalar, validate_on_all
from mxpeak.comm.transports.solo import Solo
from mxpeak.distributed import halo
from mxpeak.distributed.halo import Exchange, Partner
from mxpeak.kernels.contract.sparse import Order, SparseKernels
from mxpeak.library.inputs import Array

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RankGroup:
    """The ranks of a system; all methods are collective, save `exchange`.

    starts    every rank's first row, and n; nothing where one process has all rows
    partners  whom this rank sends to or receives from
    """

    comm: Communicator
    starts: tuple[int, ...] = ()
    partners: tuple[Partner, ...] = ()

    @property
    def alone(self) -> bool:
        """Whether there is nobody else."""
        return self.comm.size == 1

    @property
    def first(self) -> int:
        """This rank's first row."""
        return self.starts[self.comm.rank] if self.starts else 0

    def sum(self, value: float) -> float:
        """Over all ranks."""
        return value if self.alone else allreduce_scalar(self.comm, value, "sum")

    def largest(self, value: float) -> float:
        """Of all ranks, NaN if there is one."""
        return value if self.alone else allreduce_scalar(self.comm, value, "max")

    def all(self, holds: Any) -> bool:
        """Whether something holds on every rank."""
        return bool(holds) if self.alone else self.comm.agree(bool(holds))

    def max_abs(self, v: Any, xp: Any) -> float:
        """max |v_i|, NaN if there is one; 0 of a vector without entries."""
        return self.largest(float(xp.max(xp.abs(v))) if len(v) else 0.0)

    def norm(self, v: Any, xp: Any) -> float:
        """||v||_2, whose square may overflow."""
        own = float(xp.linalg.norm(v))
        return own if self.alone else sqrt(self.sum(own * own))

    def alike(self, work: Callable[[], T]) -> T:
        """What `work` returns, itself without communication; an error of one rank is raised on all, with its number."""
        return validate_on_all(self.comm, work)

    def add_up(self, v: Any) -> None:
        """A vector that all ranks have, replaced by the sum of theirs."""
        total = np.asarray(v, dtype=np.float64)
        self.comm.allreduce(total, "sum")
        v[:] = total

    def exchange(self, kernels: SparseKernels, order: Order, precision: str) -> Exchange:
        """The halo of vectors in an order of this rank's rows."""
        return halo.exchange(kernels, self.comm, self.partners, order, precision)

    def with_halo(self, own: Array) -> Array:
        """A value for each column of this rank, from one for each row."""
        if self.alone:
            return own
        full = np.empty(own.size + self.halo, own.dtype)
        full[: own.size] = own
        sent = [np.ascontiguousarray(own[one.rows]) for one in self.partners]
        self._travel(sent, [full[own.size + one.offset :][: one.received] for one in self.partners])
        return full

    def gathered(self, columns: Array, combine: np.ufunc) -> Array:
        """A value for each column of this rank, combined of the values that all ranks have for it."""
        if self.alone:
            return columns
        n = columns.size - self.halo
        own = columns[:n].copy()
        sent = [np.ascontiguousarray(columns[n + one.offset :][: one.received]) for one in self.partners]
        came = [np.empty(one.rows.size, columns.dtype) for one in self.partners]
        self._travel(sent, came)
        for one, values in zip(self.partners, came):
            own[one.rows] = combine(own[one.rows], values)  # no partner names a row twice
        return self.with_halo(own)

    def rows_with_halo(self, P: Any) -> Any:
        """A row for each column of this rank, from this rank's rows of a sparse matrix."""
        n, lengths = P.shape[0], self.with_halo(np.diff(P.indptr))
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        sent = [P[one.rows] for one in self.partners]
        spans = [slice(indptr[n + one.offset], indptr[n + one.offset + one.received]) for one in self.partners]
        columns, data = np.empty(indptr[-1], P.indices.dtype), np.empty(indptr[-1])
        for whole, name in ((columns, "indices"), (data, "data")):
            whole[: P.nnz] = getattr(P, name)
            self._travel([getattr(rows, name) for rows in sent], [whole[span] for span in spans])
        return type(P)((data, columns, indptr), shape=(lengths.size, P.shape[1]))

    @property
    def halo(self) -> int:
        """How many columns of others this rank's rows meet."""
        return sum(one.received for one in self.partners)

    def _travel(self, sent: Sequence[Array], received: Sequence[Array]) -> None:
        """One message to each partner, and one from each; those without content are not sent."""
        requests = [self.comm.irecv(v, one.rank) for one, v in zip(self.partners, received) if v.size]
        requests += [self.comm.isend(v, one.rank) for one, v in zip(self.partners, sent) if v.size]
        Task(all_of(requests)).wait()


#: A process that has the whole system.
SERIAL = RankGroup(Solo())
