"""solve and lu_factor for distributed matrices: LU with partial pivoting on the grid, refinement with A itself.

The factors are in fp32 where that pays, and on request made with products of fewer bits.  Where they break down, or do
not lead to the accuracy of fp64, A is factored again in fp64, and `info` says so.
"""

from __future__ import annotations

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
from mxpeak.errors import MxpeakError, Outcome, UsageError
from mxpeak.kernels.contract import Kernels
from mxpeak.kernels.host import blas
from mxpeak.library.agreement import agreed, check_alike
from mxpeak.library.dense.distributed import DistributedMatrix
from mxpeak.library.dense.distributed_info import DistributedInfo
from mxpeak.library.dense.factoring import DOUBT, coarse, most_condition
from mxpeak.library.dense.info import LOST, note_of_breakdown, note_of_coarseness, note_of_columns, note_of_doubt
from mxpeak.library.dense.memory import bytes_a_rank, check_memory, check_sides
from mxpeak.library.dense.real_form import RealForm, real_columns, real_sides, solutions
from mxpeak.library.dense.refinement import ORDERS_PER_SIDE, ORDERS_PER_STEP, PLAIN_LU, RESTART
from mxpeak.library.dense.sides import right_hand_sides
from mxpeak.library.dense.sources import owned
from mxpeak.library.dense.types import Array
from mxpeak.library.inputs import read
from mxpeak.library.outcomes import SingularMatrixError, warned
from mxpeak.precision import PRECISIONS, stored_as
from mxpeak.runtime.nodes import combined, raise_first
from mxpeak.runtime.placement import bind_to_cores, load_kernels
from mxpeak.solvers.condition import PROBED
from mxpeak.solvers.krylov import Solve
from mxpeak.solvers.pivoted_lu import PivotedLuOptions
from mxpeak.solvers.pivoted_system import Operator, PivotedFactors, Transposed, rounded, solve_all
from mxpeak.solvers.refine import MOST_STEPS, U
from mxpeak.spans import Spans

#: Below this order an fp64 LU is so quick that refining an fp32 one would not pay.
FP32_FROM = 1000
#: What refinement of fp32 factors aims at: it is less than plain LU mostly has, and takes a step more than PLAIN_LU.
REFINED = 2.0**-10
#: Unit roundoff of fp32.
U_32 = 2.0**-24
#: The phases that `info.times` tells.
PHASES = ("make", "equilibrate", "factor", "refine")


def factored(A: DistributedMatrix, precision: str = "auto", device: str = "auto", b: Any = None) -> DistributedFactors:
    """`lu_factor` of a distributed matrix, to solve for b, if that is known.  Collective over its ranks."""
    chosen = _chosen(A, precision, device, b)
    size_bytes, spans = _check_memory(A), Spans()
    notes: tuple[str, ...] = ()
    factors = _factors_in(chosen, A, spans)
    if chosen != "fp64" and not factors.usable:
        why = f"pivot {_pivot(factors, A)} is zero" if factors.singular else f"||A||_inf is {factors.A_inf:.1e}"
        notes = (note_of_breakdown(chosen, why),)
        del factors  # whose memory the next ones take
        factors = _factors_in("fp64", A, spans)
    # Where fp64 may be had for the asking, GMRES must not cost more than its LU would.
    most = MOST_STEPS if precision != "auto" else min(MOST_STEPS, max(1, A.parts * A.n // ORDERS_PER_STEP))
    return DistributedFactors(A, factors, spans, size_bytes, notes, most)


def _factors_in(precision: str, A: DistributedMatrix, spans: Spans) -> PivotedFactors:
    """A = L U with partial pivoting in a precision; raises where fp64 finds A singular.  Collective."""
    with computing(A.comm) as kernels:
        strips = RealForm(A.source) if A.parts == 2 else A.source
        given = GivenMatrix(A.grid, A.parts * A.n, A.parts * A.nb, strips, kernels)
        LU = dist_matrix(A.grid, given.n, given.n, given.nb, kernels, stored_as(precision))
        with spans("make"), np.errstate(over="ignore"):  # beyond fp32's range: inf, which is found below
            given.store(LU)
        raise_first(A.comm, A.source.mistake())
        factors = PivotedFactors(given, LU, PivotedLuOptions(operands=precision), kernels, spans)
    if factors.singular and precision == "fp64":
        raise SingularMatrixError(
            f"A is singular: pivot {_pivot(factors, A)} of {A.n} is exactly zero; "
            "look for rows or columns that depend on each other"
        )
    if not (isfinite(factors.A_inf) and isfinite(factors.A_one)) and precision == "fp64":
        raise UsageError(
            "sums of rows or columns of A exceed the largest number of fp64, 1.8e308, so no error can be told; divide "
            "A and b by a power of two, such as 2.0**64"
        )
    return factors


class DistributedFactors:
    """A distributed matrix and its factors.  All methods are collective over its ranks."""

    def __init__(
        self,
        A: DistributedMatrix,
        factors: PivotedFactors,
        spans: Spans,
        size_bytes: int,
        notes: tuple[str, ...],
        most: int,
    ):
        self.A = A
        self._most = most  # steps of GMRES
        self.precision = factors.precision
        self._failed: MxpeakError | None = None
        self._factors, self._spans, self._bytes, self._notes = factors, spans, size_bytes, notes

    def __repr__(self) -> str:
        return f"DistributedFactors({self.A!r}, precision={self.precision!r})"

    def condition(self) -> float:
        """Estimate of the one-norm condition number of A, as scaled; by four to six solves when first asked for.

        Factors in fp32 cannot tell one above 1/u_32 = 1.7e7 from an infinite one.
        """
        self._check_there()
        with computing(self.A.comm):
            return self._factors.condition()

    def solve(self, b: Any, *, transposed: bool = False, local: bool = False) -> tuple[Array, DistributedInfo]:
        """Solve A x = b, or A^T x = b if `transposed`: b (n,) or (n, k), the same on all ranks, or a function of rows.

        x is the same on all ranks too; with `local` b and x are this rank's rows alone, A.own_rows.
        """
        return warned(*self.solve_quietly(b, transposed=transposed, local=local))

    def solve_quietly(self, b: Any, *, transposed: bool = False, local: bool = False) -> tuple[Array, DistributedInfo]:
        """The same without a warning."""
        self._check_there()
        A, comm = self.A, self.A.comm
        check_alike(comm, f"transposed={bool(transposed)}, local={bool(local)}")
        B = right_hand_sides(A, b, local=local)
        sides = real_sides(np.reshape(B, (A.n, -1)), A.dtype, transposed=transposed)
        check_sides(comm, A.n, B.size // A.n, sides.size // B.size, A.parts)
        spans, self._spans = self._spans, Spans()  # the factorization's time belongs to the first solve
        X, done, doubtful, moved = self._refined(sides, transposed, spans)
        if self.precision != "fp64" and (note := self._too_coarse(done, doubtful)):
            self._factor_again(note, spans)
            X, done, doubtful, moved = self._refined(sides, transposed, spans)
        X = solutions(X, A.dtype, B.dtype, transposed=transposed)
        rows = slice(A.own_rows.start, A.own_rows.stop) if local else slice(None)
        return X.reshape(B.shape)[rows], self._info(done, doubtful, moved, X.shape[1], spans)

    def _too_coarse(self, done: Solve, doubtful: bool) -> str:
        """Why factors coarser than fp64's do not do; empty: they do."""
        if done.outcome is not Outcome.SOLVED:
            eta = self.A.parts * done.residual  # in units of n·u
            return note_of_coarseness(self.precision, done.steps, eta, f"growth {self._factors.growth:.1e}")
        if coarse(self.precision) and not (seen := self._seen()) <= most_condition(self.precision):
            return note_of_doubt(seen, self.precision)
        # Such factors cannot tell a condition of 1/u_32 from an infinite one: fp64 has to say what A is.
        if doubtful and (condition := self.condition()) * U_32 >= 1.0:
            return note_of_doubt(condition, self.precision)
        return ""

    def _seen(self) -> float:
        with computing(self.A.comm):
            return self._factors.seen_by_gmres(RESTART, self._most)

    def _factor_again(self, note: str, spans: Spans) -> None:
        """Factors in fp64 instead of those in fp32; where there are none, every later call says why."""
        del self._factors  # whose memory the next ones take
        try:
            self._factors = _factors_in("fp64", self.A, spans)
        except MxpeakError as error:
            self._failed = error
            raise
        self.precision = "fp64"
        self._notes += (note,)

    def _check_there(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _refined(self, B: Array, transposed: bool, spans: Spans) -> tuple[Array, Solve, bool, float]:
        """X, how the worst column went, whether A may be singular to working precision, and how far x may be off.

        That is by how much of its size one more correction may move the worst x, where columns were scaled.
        """
        with computing(self.A.comm), spans("refine"):
            found = self._solved(B, transposed)
        raise_first(self.A.comm, self.A.source.mistake())
        return found

    def _solved(self, B: Array, transposed: bool) -> tuple[Array, Solve, bool, float]:
        factors = self._factors
        system: Operator = Transposed(factors) if transposed else factors
        given = factors.given
        enough = max(4.0 / given.n, PLAIN_LU if self.precision == "fp64" else REFINED)
        mine = owned(given.cols if transposed else given.rows)
        sides = np.ascontiguousarray(B[mine])
        found = solve_all(system, sides, enough, RESTART, self._most)
        residuals = [done.residual if isfinite(done.residual) else inf for done in found.done]
        k = residuals.index(max(residuals))
        b, x, r = (np.ascontiguousarray(V[:, k]) for V in (sides, found.X, found.R))
        correction, size = system.unknowns.max_abs(system.solve(r)), system.unknowns.max_abs(x)
        moved = 0.0
        if factors.scaled and size:
            roundings = rounded(system, b, x, r, transposed)
            moved = float(np.max(system.unknowns.max_abs_of_each(system.solve(roundings)))) / size
        done = replace(found.done[k], steps=max(done.steps for done in found.done))
        X = factors.gathered(found.X, over_rows=transposed)
        # Where A is singular and b fits to it, neither residual nor correction shows that x may be anything.
        hidden = self.precision == "fp32" and not factors.probed() * U_32 <= PROBED
        return X, done, hidden or not (correction <= DOUBT * size and factors.pivots_from(DOUBT)), moved

    def _info(self, done: Solve, doubtful: bool, moved: float, rhs: int, spans: Spans) -> DistributedInfo:
        A, factors = self.A, self._factors
        with computing(A.comm) as kernels:
            emulated = kernels.emulates(self.precision)
        condition = self.condition() if doubtful else None
        singular = condition is not None and condition * U >= 1.0
        notes = self._notes
        lost = not singular and not moved <= LOST
        if singular and condition is not None:
            notes += (_note(condition, done.outcome),)
        elif lost:
            notes += (note_of_columns(moved),)
        return DistributedInfo(
            outcome=done.outcome,
            n=A.n,
            rhs=rhs,
            iterations=done.steps,
            backward_error=A.parts * done.residual if isfinite(done.residual) else inf,  # in units of n·u
            condition=condition,
            growth=factors.growth,
            scaled=factors.scaled,
            ill_conditioned=singular or lost,
            message="\n".join(notes),
            precision=self.precision,
            emulated=emulated,
            fallback=bool(self._notes),
            grid=(A.grid.P, A.grid.Q),
            nb=A.nb,
            bytes_a_rank=self._bytes,
            times={name: spans.phases[name].time_s for name in PHASES if name in spans.phases},
            history=tuple(A.parts * eta for eta in done.history),
        )


# --- what is asked for


def _check_memory(A: DistributedMatrix) -> int:
    """The bytes of a rank, if every node has room for its ranks'; what A's ranks hold already is there.  Collective."""
    P, Q, held = A.grid.P, A.grid.Q, A.source.holds
    size_bytes = bytes_a_rank(A.n, A.nb, P, Q, held=held, parts=A.parts)
    check_memory(A.comm, A.n, A.nb, (P, Q), held=held, there=A.source.held, parts=A.parts)
    return size_bytes


def _chosen(A: DistributedMatrix, precision: str, device: str, b: Any) -> str:
    """The precision of the factors; auto: fp32 where its LU saves more than refining that many sides costs.

    Collective: ranks that give rows of b of their own may have real numbers and complex ones.
    """
    mine = agreed(A.comm, lambda: _sides(A, precision, device, b), lambda _: f"precision={precision!r}")
    if precision != "auto":
        return precision
    n, sides = A.parts * A.n, int(combined(A.comm, [float(mine)], "max")[0])
    return "fp32" if n >= FP32_FROM and sides * ORDERS_PER_SIDE <= n else "fp64"


def _sides(A: DistributedMatrix, precision: str, device: str, b: Any) -> int:
    """How many right-hand sides the real system has; stops at a precision or device that is not there."""
    if precision != "auto" and (not isinstance(precision, str) or precision not in PRECISIONS):
        raise UsageError(f"unknown precision {precision!r}; choose one of auto, {', '.join(PRECISIONS)}")
    if device not in ("auto", "cpu"):
        raise UsageError(f'device = {device!r}: distributed systems are solved on the CPU; say device="cpu"')
    try:
        one = read(b, "b")
    except UsageError:  # none, a function, or what will be refused
        return 1
    return real_columns(one.shape[1] if len(one.shape) == 2 else 1, A.dtype, one.dtype)


def _pivot(factors: PivotedFactors, A: DistributedMatrix) -> int:
    """1 + the column of A that had no pivot."""
    return -(-factors.singular // A.parts)


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
