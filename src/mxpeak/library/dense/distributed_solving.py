"""solve and lu_factor for distributed matrices: LU with partial pivoting on the grid, refinement with A itself.

The factors are in fp32 where that pays, and on request made with products of fewer bits.  Where they break down, or do
not lead to the accuracy of fp64, A is factored again in fp64, and `info` says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import allreduce_scalar, allreduce_scalars, raise_first_error, validate_on_all
from mxpeak.configs.run import PlaceConfig
from mxpeak.distributed.dense import dist_matrix
from mxpeak.distributed.sources import UserMatrix
from mxpeak.errors import MxpeakError, Outcome, UsageError
from mxpeak.kernels import choose
from mxpeak.kernels.contract import Kernels
from mxpeak.kernels.host.engine import blas
from mxpeak.library.dense.distributed import DistributedMatrix
from mxpeak.library.dense.distributed_info import DistributedInfo
from mxpeak.library.dense.factoring import DOUBT, TINY, coarse, most_condition
from mxpeak.library.dense.info import (
    LOST,
    note_of_breakdown,
    note_of_coarseness,
    note_of_columns,
    note_of_doubt,
    note_of_underflow,
    note_of_uneven_rows,
)
from mxpeak.library.dense.inputs import form_of
from mxpeak.library.dense.matrix_source import owned
from mxpeak.library.dense.memory import bytes_a_rank, check_memory, check_sides
from mxpeak.library.dense.range_scaling import centred, loses, restored
from mxpeak.library.dense.real_form import Magnitudes, RealForm, moduli, real_columns, real_sides, solutions
from mxpeak.library.dense.refinement import PLAIN_LU, RESTART
from mxpeak.library.dense.right_hand_sides import right_hand_sides
from mxpeak.library.dense.row_errors import plain_lu_by_rows, row_errors
from mxpeak.library.inputs import read
from mxpeak.library.outcomes import SingularMatrixError, warned
from mxpeak.library.policy import check_precision, choose_precision, max_gmres_steps
from mxpeak.library.types import Array
from mxpeak.precision import stored_as
from mxpeak.runtime.placement import bind_to_cores, load_kernels
from mxpeak.solvers.condition import PROBED
from mxpeak.solvers.krylov import Solve
from mxpeak.solvers.lu.pivoted_lu import PivotedLuOptions
from mxpeak.solvers.pivoted_system import Operator, PivotedFactors, Transposed, refine_rows, rounded, solve_all
from mxpeak.solvers.refine import U
from mxpeak.solvers.residual import backward_error
from mxpeak.spans import Spans

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
    most = max(1, max_gmres_steps(A.parts * A.n, precision))
    return DistributedFactors(A, factors, spans, size_bytes, notes, most)


def _factors_in(precision: str, A: DistributedMatrix, spans: Spans) -> PivotedFactors:
    """A = L U with partial pivoting in a precision; raises where fp64 finds A singular.  Collective.

    Where scaling makes entries, and so a pivot, underflow, A is factored as it is.
    """
    factors = _made(precision, A, spans, scale=True)
    if precision == "fp64" and factors.singular and factors.scaled:
        plain = _made(precision, A, spans, scale=False)
        factors = plain if not plain.singular else factors
    if factors.singular and precision == "fp64":
        with computing(A.comm):
            least = factors.least_size()
        zero = (
            "exactly zero"
            if least >= TINY
            else f"zero, exactly or by underflow, because some numbers are as small as {least:.1e}"
        )
        raise SingularMatrixError(
            f"A is singular: pivot {_pivot(factors, A)} of {A.n} is {zero}; check A for linearly dependent "
            "rows or columns"
        )
    if not (isfinite(factors.A_inf) and isfinite(factors.A_one)) and precision == "fp64":
        raise UsageError(
            "row or column sums of A exceed 1.8e308, the largest fp64 number, so mxpeak cannot compute the "
            "error; divide A and b by a power of two, such as 2.0**64"
        )
    return factors


def _made(precision: str, A: DistributedMatrix, spans: Spans, *, scale: bool) -> PivotedFactors:
    """The factors, of A scaled if that is needed and allowed.  Collective."""
    with computing(A.comm) as kernels:
        strips = RealForm(A.source) if A.parts == 2 else A.source
        given = UserMatrix(A.grid, A.parts * A.n, A.parts * A.nb, strips, kernels)
        LU = dist_matrix(A.grid, given.n, given.n, given.nb, kernels, stored_as(precision))
        with spans("make"), np.errstate(over="ignore"):  # beyond fp32's range: inf, which is found below
            given.store(LU)
        raise_first_error(A.comm, A.source.mistake())
        return PivotedFactors(given, LU, PivotedLuOptions(operands=precision), kernels, spans, scale=scale)


@dataclass(frozen=True, slots=True)
class Refined:
    """X of the real system, whole, and how the worst column was solved.

    doubtful    A may be singular to working precision
    moved       by how much of its size one more correction may move the worst x, where columns were scaled
    rows        the worst row-wise backward error, in roundings of order n: those of A, not of its real form
    underflows  whether an x has lost all digits when it was rounded to subnormal numbers
    """

    X: Array
    done: Solve
    doubtful: bool
    moved: float
    rows: float
    underflows: bool


class DistributedFactors:
    """The LU factors of a distributed matrix, returned by `lu_factor`.

    All ranks must call the methods, and read `condition`, at the same point in the program.

    Attributes
    ----------
    A : DistributedMatrix
        Distributed matrix from which mxpeak computed the factors.
    precision : str
        Precision of the factors. The value changes to "fp64" if `solve` factors A again.
    condition : float
        Estimated one-norm condition number of A, after any scaling.
    """

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

    @property
    def condition(self) -> float:
        """Return the estimated one-norm condition number of A, after any scaling.

        The first access takes as long as four to six solves. All ranks must read this property at the same point in the
        program. If the condition number exceeds 1/u = 1.7e7, fp32 factors cannot distinguish it from infinity.
        """
        self._check_there()
        with computing(self.A.comm):
            return self._factors.condition()

    def solve(self, b: Any, *, transposed: bool | str = False, local: bool = False) -> tuple[Array, DistributedInfo]:
        """Solve A x = b with these factors.

        If the factors are not accurate enough, `solve` factors A again in fp64 and keeps the new factors. All ranks
        must call this method.

        Parameters
        ----------
        b : array_like or callable
            Right-hand side of shape (n,), or k right-hand sides as an array of shape (n, k). Unless `local` is True,
            all ranks must pass the same values. You can also pass a function that returns the values for an array of
            row indices.
        transposed : bool or {"N", "T", "H"}, default False
            Use True or "T" to solve A^T x = b, or "H" to solve A^H x = b.
        local : bool, default False
            If True, b and x contain only the rows `A.own_rows` of this rank.

        Returns
        -------
        x : ndarray
            Solution in float64 or complex128, the same on all ranks. If `local` is True, x contains only the rows of
            this rank.
        info : DistributedInfo
            Diagnostics of the solve: outcome, backward errors, precision, iterations, condition number and times.

        Raises
        ------
        UsageError
            An argument is invalid, or it is not the same on all ranks.
        SingularMatrixError
            A pivot of the fp64 factors is exactly zero.
        ResourceError
            There is not enough memory.

        Warns
        -----
        IllConditionedWarning
            The solution x may have no correct digits, for example because A is singular to working precision.
        NotSolvedWarning
            The solution x is not finite, or it is less accurate than the result of a plain LU factorization.

        Examples
        --------
        >>> import mxpeak as mx
        >>> A = mx.DistributedMatrix.from_function(lambda i, j: 2.0 * (i == j), 4)
        >>> x, info = mx.lu_factor(A).solve(lambda i: 2.0 * i)
        >>> x
        array([0., 1., 2., 3.])
        """
        return warned(*self.solve_quietly(b, transposed=transposed, local=local))

    def solve_quietly(
        self, b: Any, *, transposed: bool | str = False, local: bool = False
    ) -> tuple[Array, DistributedInfo]:
        """Solve A x = b in the same way as `solve`, but without warnings.

        Parameters
        ----------
        b : array_like or callable
            Right-hand side of shape (n,), or k right-hand sides as an array of shape (n, k). Unless `local` is True,
            all ranks must pass the same values. You can also pass a function that returns the values for an array of
            row indices.
        transposed : bool or {"N", "T", "H"}, default False
            Use True or "T" to solve A^T x = b, or "H" to solve A^H x = b.
        local : bool, default False
            If True, b and x contain only the rows `A.own_rows` of this rank.

        Returns
        -------
        x : ndarray
            Solution in float64 or complex128, the same on all ranks. If `local` is True, x contains only the rows of
            this rank.
        info : DistributedInfo
            Diagnostics of the solve: outcome, backward errors, precision, iterations, condition number and times.

        Raises
        ------
        UsageError
            An argument is invalid, or it is not the same on all ranks.
        SingularMatrixError
            A pivot of the fp64 factors is exactly zero.
        ResourceError
            There is not enough memory.
        """
        self._check_there()
        A, comm = self.A, self.A.comm
        form = validate_on_all(
            comm, lambda: form_of(transposed), lambda made: f'transposed="{made}", local={bool(local)}'
        )
        B = right_hand_sides(A, b, local=local)
        sides = real_sides(np.reshape(B, (A.n, -1)), A.dtype, conjugated=form == "T")
        rows = slice(A.own_rows.start, A.own_rows.stop) if local else slice(None)
        if not B.size:
            return B[rows], self._info(_nothing(B), 0, Spans())
        check_sides(comm, A.n, B.size // A.n, sides.size // B.size, A.parts)
        spans, self._spans = self._spans, Spans()  # the factorization's time belongs to the first solve
        found = self._refined(sides, form != "N", spans)
        if self.precision != "fp64" and (note := self._too_coarse(found)):
            self._factor_again(note, spans)
            found = self._refined(sides, form != "N", spans)
        X = solutions(found.X, A.dtype, B.dtype, conjugated=form == "T")
        return X.reshape(B.shape)[rows], self._info(found, X.shape[1], spans)

    def _too_coarse(self, found: Refined) -> str:
        """Why factors coarser than fp64's do not do; empty: they do."""
        done = found.done
        if done.outcome is not Outcome.SOLVED:
            eta = self.A.parts * done.residual  # in units of n·u
            return note_of_coarseness(self.precision, done.steps, eta, f"growth {self._factors.growth:.1e}")
        if not found.rows <= self._enough_by_rows():
            return note_of_uneven_rows(self.precision, done.steps, found.rows)
        if coarse(self.precision) and not (seen := self._seen()) <= most_condition(self.precision):
            return note_of_doubt(seen, self.precision)
        # Such factors cannot tell a condition of 1/u_32 from an infinite one: fp64 has to say what A is.
        if found.doubtful and (condition := self.condition) * U_32 >= 1.0:
            return note_of_doubt(condition, self.precision)
        return ""

    def _enough_by_rows(self) -> float:
        return plain_lu_by_rows(self.A.n, is_complex=self.A.parts == 2)

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

    def _refined(self, B: Array, transposed: bool, spans: Spans) -> Refined:
        """Solve the real system of A or A^T for all columns of B."""
        with computing(self.A.comm) as kernels, spans("refine"):
            scales, of_host = self._factors.scales(transposed=transposed), choose.dense(None)
            sides, powers = centred(of_host, B, B.dtype, scales)
            found = self._solved(kernels, sides, powers, transposed)
            if found.done.outcome is Outcome.NOT_FINITE:
                sides, powers = centred(of_host, B, B.dtype, scales, lower=True)
                found = self._solved(kernels, sides, powers, transposed)
            if loses(of_host, B, sides, powers):  # an entry of b may be another one altogether
                found = replace(found, rows=max(found.rows, 1.0 / (self.A.n * U)))
        raise_first_error(self.A.comm, self.A.source.mistake())
        return found

    def _solved(self, kernels: Kernels, B: Array, powers: Array, transposed: bool) -> Refined:
        """Solve for 2^powers times the right-hand sides, and bring the solutions back."""
        factors = self._factors
        system: Operator = Transposed(factors) if transposed else factors
        given = factors.given
        enough = max(4.0 / given.n, PLAIN_LU if self.precision == "fp64" else REFINED)
        sides = np.ascontiguousarray(B[owned(given.cols if transposed else given.rows)])
        found = solve_all(system, sides, enough, RESTART, self._most)
        X, R = found.X, found.R

        def omegas(X: Array, R: Array, which: Array) -> Array:
            return self._row_errors(kernels, X, R, sides[:, which], transposed)

        every = np.arange(sides.shape[1])
        rows = omegas(X, R, every)
        more = 0
        if self.precision != "fp64" and all(done.outcome is Outcome.SOLVED for done in found.done):
            more = refine_rows(system, sides, X, R, rows, self._enough_by_rows(), omegas)
        x_infs, b_infs = system.unknowns.max_abs_of_each(X), system.equations.max_abs_of_each(sides)
        of_X = restored(choose.dense(None), X, -powers)
        Y = restored(choose.dense(None), of_X, powers)  # Y includes the rounding error of of_X
        with np.errstate(invalid="ignore"):
            change = np.array(system.unknowns.max_abs_of_each(Y - X))
        of_Y = R
        if rounds := bool((change > 0.0).any()):
            of_Y = sides - system.multiply(Y)
            rows = omegas(Y, of_Y, every)
        dones = found.done
        if more or rounds:
            r_infs, y_infs = system.equations.max_abs_of_each(of_Y), system.unknowns.max_abs_of_each(Y)
            norms = zip(r_infs, y_infs, b_infs)
            etas = [backward_error(r, system.A_inf, y, b, given.n, U) for r, y, b in norms]
            dones = [replace(done, residual=eta, steps=done.steps + more) for done, eta in zip(dones, etas)]
        within = np.isfinite(system.unknowns.max_abs_of_each(of_X))
        beyond = not within.all()
        residuals = [done.residual if isfinite(done.residual) else inf for done in dones]
        k = residuals.index(max(residuals))
        b, x, r = (np.ascontiguousarray(V[:, k]) for V in (sides, X, R))
        correction, size = system.unknowns.max_abs(system.solve(r)), x_infs[k]
        moved = 0.0
        if factors.scaled and size:
            roundings = rounded(system, b, x, r, transposed)
            moved = float(np.max(system.unknowns.max_abs_of_each(system.solve(roundings)))) / size
        done = replace(dones[k], steps=max(one.steps for one in dones))
        if beyond:
            done = replace(done, outcome=Outcome.NOT_FINITE, residual=inf)
        # Where A is singular and b fits to it, neither residual nor correction shows that x may be anything.
        hidden = self.precision == "fp32" and not factors.probed() * U_32 <= PROBED
        return Refined(
            X=factors.gathered(of_X, over_rows=transposed),
            done=done,
            doubtful=hidden or not (correction <= DOUBT * size and factors.pivots_from(DOUBT)),
            moved=moved,
            rows=inf if beyond else float(rows.max()),
            underflows=bool((within & (change > LOST * np.array(x_infs))).any()),
        )

    def _row_errors(self, kernels: Kernels, X: Array, R: Array, B: Array, transposed: bool) -> Array:
        """The row-wise backward error of each column, in n·u; one product with |A|.  Collective."""
        A = self.A
        sizes = UserMatrix(A.grid, A.n, A.nb, Magnitudes(A.source), kernels)
        x, r, b = (moduli(V, A.dtype) for V in (X, R, B))
        D = (sizes.multiply_transposed if transposed else sizes.multiply)(x) + b
        with np.errstate(all="ignore"):
            mine = row_errors(kernels.xp, r, D, A.n, U) if len(r) else np.zeros(r.shape[1])
        return np.array(allreduce_scalars(A.comm, mine.tolist(), "max", kernels.xp))

    def _info(self, found: Refined, rhs: int, spans: Spans) -> DistributedInfo:
        A, factors, done = self.A, self._factors, found.done
        with computing(A.comm) as kernels:
            emulated = kernels.emulates(self.precision)
        condition = self.condition if found.doubtful else None
        singular = condition is not None and condition * U >= 1.0
        notes = self._notes
        lost = not singular and not found.moved <= LOST
        if singular and condition is not None:
            notes += (_note(condition, done.outcome),)
        elif lost:
            notes += (note_of_columns(found.moved),)
        if found.underflows:
            notes += (note_of_underflow(np.dtype(np.float64)),)
        return DistributedInfo(
            outcome=done.outcome,
            n=A.n,
            rhs=rhs,
            iterations=done.steps,
            backward_error=A.parts * done.residual if isfinite(done.residual) else inf,  # in units of n·u
            componentwise_error=found.rows,
            condition=condition,
            growth=factors.growth,
            scaled=factors.scaled,
            ill_conditioned=singular or lost or found.underflows,
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


def _nothing(B: Array) -> Refined:
    """How the solve of no right-hand sides went."""
    done = Solve(Outcome.SOLVED, steps=0, residual=0.0, history=[])
    return Refined(B, done, doubtful=False, moved=0.0, rows=0.0, underflows=False)


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
    mine = validate_on_all(A.comm, lambda: _sides(A, precision, device, b), lambda _: f"precision={precision!r}")
    if precision != "auto":
        return precision
    n, sides = A.parts * A.n, int(allreduce_scalar(A.comm, float(mine), "max"))
    return choose_precision(n, np.dtype(np.float64), "auto", sides, engine="ranks").name


def _sides(A: DistributedMatrix, precision: str, device: str, b: Any) -> int:
    """How many right-hand sides the real system has; stops at a precision or device that is not there."""
    check_precision(precision)
    if device not in ("auto", "cpu"):
        raise UsageError(
            f"device = {device!r} is not supported, because mxpeak solves distributed systems on the CPU; use "
            'device="cpu"'
        )
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
        f"A is numerically singular: condition {condition:.1e} >= 1/u = {1 / U:.1e}; {small}x may have no "
        "correct digit; check A for linearly dependent rows or columns"
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
