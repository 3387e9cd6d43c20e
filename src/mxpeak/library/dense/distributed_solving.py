"""solve and lu_factor for distributed matrices: LU with partial pivoting on the grid, refinement with A itself.

The factors are fp64's: panels with pivoting are factored in no other precision.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import inf, isfinite
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from mxpeak.comm.base import Communicator
from mxpeak.configs.run import PlaceConfig
from mxpeak.distributed.given import GivenMatrix
from mxpeak.distributed.matrix import dist_matrix
from mxpeak.errors import Outcome, UsageError
from mxpeak.kernels.contract import Kernels
from mxpeak.kernels.host import blas
from mxpeak.library.dense.agreement import agreed
from mxpeak.library.dense.distributed import DistributedMatrix
from mxpeak.library.dense.distributed_info import DistributedInfo
from mxpeak.library.dense.factoring import DOUBT
from mxpeak.library.dense.inputs import columns, right_hand_side
from mxpeak.library.dense.refinement import PLAIN_LU, RESTART
from mxpeak.library.dense.room import bytes_a_rank, check_room
from mxpeak.library.dense.sources import check_real, owned
from mxpeak.library.dense.types import Array
from mxpeak.library.inputs import check_finite
from mxpeak.library.outcomes import SingularMatrixError, warned
from mxpeak.runtime.nodes import raise_first
from mxpeak.runtime.placement import bind_to_cores, load_kernels
from mxpeak.solvers.krylov import Solve
from mxpeak.solvers.pivoted_lu import PivotedLuOptions
from mxpeak.solvers.pivoted_system import PivotedFactors, solve_all
from mxpeak.solvers.refine import U
from mxpeak.spans import Spans

#: The phases that `info.times` tells.
PHASES = ("make", "equilibrate", "factor", "refine")


def factored(A: DistributedMatrix, precision: str = "auto", device: str = "auto") -> DistributedFactors:
    """`lu_factor` of a distributed matrix.  Collective over its ranks."""
    agreed(A.comm, lambda: _asked(precision, device), lambda asked: f"precision and device {asked}")
    size_bytes = _check_memory(A)
    spans = Spans()
    with computing(A.comm) as kernels:
        given = GivenMatrix(A.grid, A.n, A.nb, A.source, kernels)
        LU = dist_matrix(A.grid, A.n, A.n, A.nb, kernels)
        with spans("make"):
            given.store(LU)
        raise_first(A.comm, A.source.mistake())
        factors = PivotedFactors(given, LU, PivotedLuOptions(), kernels, spans)
    if factors.singular:
        raise SingularMatrixError(
            f"A is singular: pivot {factors.singular} of {A.n} is exactly zero; "
            "look for rows or columns that depend on each other"
        )
    return DistributedFactors(A, factors, spans, size_bytes)


class DistributedFactors:
    """A distributed matrix and its factors.  All methods are collective over its ranks."""

    precision = "fp64"

    def __init__(self, A: DistributedMatrix, factors: PivotedFactors, spans: Spans, size_bytes: int):
        self.A = A
        self._factors, self._spans, self._bytes = factors, spans, size_bytes

    def __repr__(self) -> str:
        return f"DistributedFactors({self.A!r}, precision='fp64')"

    def condition(self) -> float:
        """Estimate of the one-norm condition number of A, as scaled; by four to six solves when first asked for."""
        with computing(self.A.comm):
            return self._factors.condition()

    def solve(self, b: Any) -> tuple[Array, DistributedInfo]:
        """Solve A x = b, b (n,) or (n, k), the same on all ranks, or a function of row indices; x the same on all."""
        return warned(*self.solve_quietly(b))

    def solve_quietly(self, b: Any) -> tuple[Array, DistributedInfo]:
        """The same without a warning."""
        A, comm = self.A, self.A.comm
        B = agreed(comm, lambda: _block(b, A.n), lambda made: f"b of shape {made.shape}, checksum {_checksum(made)}")
        spans, self._spans = self._spans, Spans()  # the factorization's time belongs to the first solve
        with computing(comm), spans("refine"):
            X, done, doubtful = self._refined(np.reshape(B, (A.n, -1)))
        raise_first(comm, A.source.mistake())
        return X.reshape(B.shape), self._info(done, doubtful, X.shape[1], spans)

    def _refined(self, B: Array) -> tuple[Array, Solve, bool]:
        """X, how the worst column went, and whether A may be singular to working precision."""
        factors, enough = self._factors, max(4.0 / self.A.n, PLAIN_LU)
        mine = owned(factors.given.rows)
        found = solve_all(factors, [np.ascontiguousarray(b) for b in B[mine].T], enough, RESTART)
        worst = max(found, key=lambda one: one.done.residual if isfinite(one.done.residual) else inf)
        correction = factors.unknowns.max_abs(factors.solve(worst.r))
        small = correction <= DOUBT * factors.unknowns.max_abs(worst.x)
        done = replace(worst.done, steps=max(one.done.steps for one in found))
        X = np.stack([factors.gathered(one.x) for one in found], axis=1)
        return X, done, not (small and factors.pivots_from(DOUBT))

    def _info(self, done: Solve, doubtful: bool, rhs: int, spans: Spans) -> DistributedInfo:
        A, factors = self.A, self._factors
        condition = self.condition() if doubtful else None
        singular = condition is not None and condition * U >= 1.0
        return DistributedInfo(
            outcome=done.outcome,
            n=A.n,
            rhs=rhs,
            iterations=done.steps,
            backward_error=done.residual if isfinite(done.residual) else inf,
            condition=condition,
            growth=factors.growth,
            scaled=factors.scaled,
            ill_conditioned=singular,
            message=_note(condition, done.outcome) if singular and condition is not None else "",
            grid=(A.grid.P, A.grid.Q),
            nb=A.nb,
            bytes_a_rank=self._bytes,
            times={name: spans.phases[name].time_s for name in PHASES if name in spans.phases},
            history=tuple(done.history),
        )


# --- what is asked for


def _check_memory(A: DistributedMatrix) -> int:
    """The bytes of a rank, if every node has room for its ranks'; what A's ranks hold already is there.  Collective."""
    P, Q, held = A.grid.P, A.grid.Q, A.source.holds
    size_bytes = bytes_a_rank(A.n, A.nb, P, Q, held=held)
    check_room(A.comm, A.n, A.nb, (P, Q), held=held, there=A.source.held)
    return size_bytes


def _asked(precision: str, device: str) -> tuple[str, str]:
    if precision not in ("auto", "fp64"):
        raise UsageError(
            f'precision = {precision!r}: LU with pivoting over several ranks is in fp64; say precision="fp64" '
            "or leave it out (other precisions on one process: mxpeak.solve of an array)"
        )
    if device not in ("auto", "cpu"):
        raise UsageError(f'device = {device!r}: distributed systems are solved on the CPU; say device="cpu"')
    return precision, device


def _block(b: Any, n: int) -> Array:
    """b's numbers in fp64, finite; those of a function for all rows."""
    one = right_hand_side(b(np.arange(n)) if callable(b) else b, n)
    check_real(one.dtype, "b")
    B = np.array(one.on(None, np.dtype(np.float64)))
    check_finite(B, "b", np)
    assert columns(one) >= 1
    return B


def _checksum(B: Array) -> str:
    return f"{zlib.crc32(B.tobytes()):08x}"


def _note(condition: float, outcome: Outcome) -> str:
    small = "the residual is small, but " if outcome is Outcome.SOLVED else ""
    return (
        f"A is numerically singular: condition {condition:.1e} >= 1/u = {1 / U:.1e}; {small}x may have no correct "
        "digit; look for rows or columns that depend on each other"
    )


# --- where it computes

_kernels: WeakKeyDictionary[Any, Kernels] = WeakKeyDictionary()


@contextmanager
def computing(comm: Communicator) -> Iterator[Kernels]:
    """The host's kernels for these ranks, made once, while BLAS has one thread: theirs call it.  Collective."""
    with blas.one_thread():
        if comm not in _kernels:
            placement = bind_to_cores(comm, None)
            placement.release()
            config = PlaceConfig(device="cpu", kernels="host")
            _kernels[comm] = load_kernels(config, replace(placement, cores=[]), comm)[0]
        yield _kernels[comm]
