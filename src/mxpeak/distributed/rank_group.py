"""The ranks that share a sparse system; a serial solve uses a group of one rank.

Each rank has consecutive rows of A in local columns: its own unknowns first, then its halo. A group of one rank has
all rows and no halo, so its methods send no messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sparse

from mxpeak.comm.base import Communicator, Task, all_of
from mxpeak.comm.collectives import allreduce_scalar, run_on_root, validate_on_all
from mxpeak.comm.transports.solo import Solo
from mxpeak.distributed.csr import Csr, stacked
from mxpeak.distributed.halo import Exchange, Partner
from mxpeak.distributed.rows import Array
from mxpeak.kernels.contract.sparse import Order, SparseKernels

T = TypeVar("T")

#: Seconds that a rank waits for the others after a function of the user has raised an error.
PATIENCE_S = 10.0
#: The same for the first call of a function, whose duration is unknown.
FIRST_PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class RankGroup:
    """The ranks of a system. All methods except `exchange` are collective.

    starts    the first row of each rank, and n; empty for one process with all rows
    partners  the ranks that this rank exchanges halo entries with
    """

    comm: Communicator
    starts: tuple[int, ...] = ()
    partners: tuple[Partner, ...] = ()

    @property
    def is_serial(self) -> bool:
        """Return whether the group has one rank."""
        return self.comm.size == 1

    @property
    def first(self) -> int:
        """Return the first row of this rank."""
        return self.starts[self.comm.rank] if self.starts else 0

    @property
    def halo(self) -> int:
        """Return the number of halo columns of this rank."""
        return sum(partner.received for partner in self.partners)

    def sum(self, value: float) -> float:
        """Return the sum of `value` over all ranks."""
        return value if self.is_serial else allreduce_scalar(self.comm, value, "sum")

    def largest(self, value: float) -> float:
        """Return the maximum of `value` over all ranks, or NaN if any value is NaN."""
        return value if self.is_serial else allreduce_scalar(self.comm, value, "max")

    def all(self, holds: Any) -> bool:
        """Return whether a condition is true on every rank."""
        return bool(holds) if self.is_serial else self.comm.agree(bool(holds))

    def max_abs(self, v: Any, xp: Any) -> float:
        """Return max |v_i| over all ranks: NaN if v contains NaN, and 0 for a vector without entries."""
        return self.largest(float(xp.max(xp.abs(v))) if len(v) else 0.0)

    def norm(self, v: Any, xp: Any) -> float:
        """Return ||v||_2 over all ranks, computed from squares that may overflow."""
        own = float(xp.linalg.norm(v))
        return own if self.is_serial else sqrt(self.sum(own * own))

    def collectively(self, work: Callable[[], T]) -> T:
        """Run `work` and return its result; if a rank fails, raise its error on all ranks.

        `work` must not communicate.
        """
        return validate_on_all(self.comm, work)

    def shared(self, function: Callable[[Any], T]) -> Callable[[Any], T]:
        """Return a collective function that calls the function of a user, and raises the error of a rank on all ranks.

        The function may communicate if it raises on all ranks. If it raises on one rank only, other ranks may wait for
        this rank inside of the function. Therefore, after PATIENCE_S and twice the time of the slowest earlier call,
        the error is raised on this rank only. In the first call, this limit is FIRST_PATIENCE_S.
        """
        slowest_s: float | None = None

        def call(x: Any) -> T:
            nonlocal slowest_s
            begin_s = perf_counter()
            limit_s = FIRST_PATIENCE_S if slowest_s is None else PATIENCE_S + 2.0 * slowest_s
            result = validate_on_all(self.comm, lambda: function(x), limit_s=limit_s)
            slowest_s = max(slowest_s or 0.0, perf_counter() - begin_s)
            return result

        return call

    def on_root(self, work: Callable[[], T]) -> T:
        """Run `work` on rank 0 and return its result on all ranks."""
        return run_on_root(self.comm, work)

    def add_up(self, v: Any) -> None:
        """Add v over the ranks, and overwrite v with the sum; every rank stores all entries of v."""
        total = np.asarray(v, dtype=np.float64)
        self.comm.allreduce(total, "sum")
        v[:] = total

    def exchange(self, kernels: SparseKernels, order: Order, precision: str) -> Exchange:
        """Return the halo exchange of vectors whose rows are in `order`."""
        return Exchange(kernels, self.comm, self.partners, order, precision)

    def with_halo(self, own: Array) -> Array:
        """Return values for all local columns, given this rank's values for its own rows."""
        if self.is_serial:
            return own
        full = np.empty(own.size + self.halo, own.dtype)
        full[: own.size] = own
        sent = [np.ascontiguousarray(own[partner.rows]) for partner in self.partners]
        self._send_and_receive(sent, [full[own.size + p.offset :][: p.received] for p in self.partners])
        return full

    def combined(self, columns: Array, combine: np.ufunc) -> Array:
        """Combine the values that different ranks have for the same column, and return the values of all local
        columns.
        """
        if self.is_serial:
            return columns
        n = columns.size - self.halo
        own = columns[:n].copy()
        sent = [np.ascontiguousarray(columns[n + p.offset :][: p.received]) for p in self.partners]
        received = [np.empty(partner.rows.size, columns.dtype) for partner in self.partners]
        self._send_and_receive(sent, received)
        for partner, values in zip(self.partners, received):
            own[partner.rows] = combine(own[partner.rows], values)  # no partner lists a row twice
        return self.with_halo(own)

    def rows_with_halo(self, P: Csr) -> Csr:
        """Return rows of P for all local columns, given the rows of P for this rank's own unknowns."""
        n, lengths = P.shape[0], self.with_halo(np.diff(P.indptr))
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        sent = [P[partner.rows] for partner in self.partners]
        spans = [slice(indptr[n + p.offset], indptr[n + p.offset + p.received]) for p in self.partners]
        columns, data = np.empty(indptr[-1], P.indices.dtype), np.empty(indptr[-1], P.dtype)
        for whole, name in ((columns, "indices"), (data, "data")):
            whole[: P.nnz] = getattr(P, name)
            self._send_and_receive([getattr(rows, name) for rows in sent], [whole[span] for span in spans])
        return type(P)((data, columns, indptr), shape=(lengths.size, P.shape[1]))

    def in_global_columns(self, A: Csr) -> Csr:
        """Return this rank's rows with the column numbers of the global matrix."""
        if self.is_serial:
            return A
        columns = self.with_halo(np.arange(self.first, self.first + A.shape[0]))
        return sparse.csr_array((A.data, columns[A.indices], A.indptr), shape=(A.shape[0], self.starts[-1]))

    def gathered(self, A: Csr) -> list[Csr]:
        """Return the rows of all ranks on rank 0, as one matrix per rank, and an empty list on the other ranks."""
        return [A] if self.is_serial else self.comm.gather_objects(self.in_global_columns(A)) or []

    def on_all_rows(self, A: Csr, work: Callable[[Csr], T]) -> T:
        """Gather the whole matrix on rank 0, run `work` there, and return its result on all ranks."""
        parts = self.gathered(A)
        return self.on_root(lambda: work(stacked(parts)))

    def _send_and_receive(self, sent: Sequence[Array], received: Sequence[Array]) -> None:
        """Send one message to each partner and receive one from each; skip empty messages."""
        requests = [self.comm.irecv(v, partner.rank) for partner, v in zip(self.partners, received) if v.size]
        requests += [self.comm.isend(v, partner.rank) for partner, v in zip(self.partners, sent) if v.size]
        Task(all_of(requests)).wait()


#: The group of a process that stores the whole system.
SERIAL = RankGroup(Solo())
