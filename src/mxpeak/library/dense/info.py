"""Diagnostics that a dense solve returns together with x, and the text of its notes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf, isfinite, isnan
from typing import Any

import numpy as np

from mxpeak.errors import Outcome
from mxpeak.kernels import choose
from mxpeak.library.outcomes import Info
from mxpeak.library.types import roundoff
from mxpeak.records import size_text
from mxpeak.solvers.array_factors import row_error_if_unchanged
from mxpeak.solvers.factorization import Factorization, coarser_than_fp32, largest_useful_condition
from mxpeak.solvers.forward_error import ErrorBound
from mxpeak.solvers.refine import Solution

#: The end of each note about a repeated factorization in fp64.
AGAIN = "A was factored again in fp64"
#: The end of a note about an LU after LDL^T factors over ranks failed.
BY_LU = "LU factored the whole matrix"
#: Reasons for the precision of factors after a fallback.
COARSER_FAILED, LDL_FAILED = "coarser ones failed", "LDL^T factors failed"


def note_of_breakdown(precision: str, reason: str, name: str = "LU", again: str = AGAIN) -> str:
    """Return the note that the factorization in this precision broke down for this reason."""
    return f"the {name} in {precision} broke down: {reason}; {again}"


def note_of_doubt(condition: float, precision: str = "fp32", name: str = "LU", again: str = AGAIN) -> str:
    """Return the note that the factors in this precision cannot distinguish the condition number from infinity."""
    seen = f"the condition of A is {condition:.1e} or more" if isfinite(condition) else "A may be singular"
    return f"the {name} in {precision} indicates that {seen}; {again}"


def note_of_low_accuracy(
    factors: Factorization, solution: Solution, gmres_steps: int, *, parts: int = 1, again: str = AGAIN
) -> str:
    """Return a note that explains why the factors are not accurate enough, or "" if they are.

    `parts` is the number of real values per entry if the factors are those of the real form of a complex matrix.
    """
    precision, name = factors.precision, factors.name
    took = f"after {solution.steps} step{'' if solution.steps == 1 else 's'}"
    if solution.outcome is not Outcome.SOLVED and not solution.beyond_range:
        facts = f"condition {factors.condition:.1e}, growth {factors.growth:.1e}"
        eta = f"the backward error was {parts * solution.eta:.1e}"
        return f"the {name} in {precision} was too coarse: {took} {eta} ({facts}); {again}"
    if not solution.even_rows:
        omega = inf if solution.rows is None else solution.rows
        eta = f"the row-wise backward error was {omega:.1e} n·u"
        return f"the {name} in {precision} was too coarse for some rows: {took} {eta}; {again}"
    if coarser_than_fp32(precision):
        condition = factors.condition_by_gmres(gmres_steps)
        if not condition <= largest_useful_condition(precision):
            return note_of_doubt(condition, precision, name, again)
    return ""


def note_of_growth(growth: float) -> str:
    """Return the note that x is not accurate because of pivot growth, which a QR factorization does not have."""
    size = f"by a factor of {growth:.1e}" if isfinite(growth) else "beyond the range of fp64"
    return f"the pivots grew {size}, which amplifies rounding errors; use mxpeak.lstsq, which computes a QR instead"


def note_of_underflow(dtype: np.dtype[Any]) -> str:
    """Return the note that x underflowed to subnormal numbers of this type."""
    return (
        f"x underflows: its largest entry is below the least normal number of {dtype}, {np.finfo(dtype).tiny:.1e}, and "
        "may have no correct digit; multiply b by a power of two"
    )


def note_of_columns(moved: float) -> str:
    """Return the note that x may have no correct digits because the columns of A differ too much in size.

    `moved` is the relative change of x by one more correction.
    """
    how = f"move it by {moved:.1g} times that" if isfinite(moved) else "overflow"
    return (
        f"the columns of A differ so much in size that x may have no correct digit where it is largest: one more "
        f"correction would {how}; use units of the unknowns that give columns of similar size"
    )


def note_of_rows(omega: float) -> str:
    """Return the note that the row-wise backward error `omega`, in n·u, is larger than that of a plain LU."""
    return (
        f"the row-wise backward error, {omega:.1e} n·u, is larger than that of a plain LU: entries of x that are small "
        "relative to the others may have no correct digit; use units that give rows and columns of similar size"
    )


def note_of_singularity(condition: float, dtype: np.dtype[Any], outcome: Outcome) -> str:
    """Return the note that A is numerically singular, because its condition number is 1/u or more."""
    small = "the residual is small, but " if outcome is Outcome.SOLVED else ""
    wider = "a type with more digits, " if dtype.name in ("float32", "complex64") else ""
    return (
        f"A is numerically singular: condition {condition:.1e} >= 1/u = {1 / roundoff(dtype):.1e}; {small}x "
        "may have no correct digit; check A for linearly dependent rows or columns, or use "
        f"{wider}regularization or least squares (mxpeak.lstsq)"
    )


def bound_text(bound: ErrorBound) -> str:
    """Return the text of the normwise and the componentwise forward error bound."""
    if isnan(bound.normwise):
        return "unknown, because A, b or x was changed after the solve"
    normwise, componentwise = ("unbounded" if value == inf else f"<= {value:.1e}" for value in bound)
    return f"{normwise}  (componentwise {componentwise})"


class Estimates:
    """Numbers that `compute` calculates on first use.

    The data that `compute` refers to, such as factors, is then released. Pickling calls `compute` first, so that only
    numbers are stored. `time_s` is the time that `compute` took.
    """

    __slots__ = ("_compute", "_values", "time_s")

    def __init__(self, compute: Callable[[], tuple[Any, ...]]):
        self._compute: Callable[[], tuple[Any, ...]] | None = compute
        self._values: tuple[Any, ...] = ()
        self.time_s = 0.0

    @classmethod
    def from_values(cls, values: tuple[Any, ...], time_s: float = 0.0) -> Estimates:
        """Return an `Estimates` object that stores these values and computes nothing."""
        estimates = cls(lambda: values)
        estimates._values, estimates._compute, estimates.time_s = values, None, time_s
        return estimates

    def __reduce__(self) -> tuple[Any, ...]:
        return Estimates.from_values, (self.values(), self.time_s)

    def values(self) -> tuple[Any, ...]:
        """Return the values, such as condition number and growth. Compute the values on first use."""
        if self._compute is not None:
            begin = time.perf_counter()
            self._values, self._compute = self._compute(), None
            self.time_s = time.perf_counter() - begin
        return self._values


@dataclass(frozen=True, kw_only=True)
class SolveInfo(Info):
    """Diagnostics for the solution of a dense system, of a stack of systems, or of a distributed system.

    For a stack, the values are those of the worst system. For a distributed system, all attributes except `times`
    have the same values on every rank. The errors and the condition number of a complex distributed system are those
    of the equivalent real system, which are at most twice as large. Use `info.solved` in conditions, because an info
    object has no truth value.

    Attributes
    ----------
    outcome : Outcome
        Outcome of the solve. If some systems of a stack were not solved, this is the outcome of the first of them.
    solved : bool
        Whether x is as accurate as the result of a stable solver in the precision of the input.
    converged : bool
        Alias for `solved`.
    n : int
        Order of the matrix A.
    rhs : int
        Number of right-hand sides.
    factorization : {"LU", "Cholesky", "LDL^T"}
        Factorization that the solve used.
    precision : str
        Precision of the factors after the solve. On several ranks, formats narrower than fp32 apply only to the
        operands of matrix products.
    lagged : bool
        Whether the factors are those of an earlier matrix, used as a preconditioner (`Solver.update`). The growth
        factor is then None.
    fp64 : {"native", "emulated", "unknown"}
        Arithmetic of the matrix products in fp64 factors. It is "emulated" if a product of the factorization was
        computed with integers, as requested by `fp64="emulated"`. It is "unknown" if a variable such as
        CUBLAS_EMULATE_DOUBLE_PRECISION requests emulation from the library of a GPU.
    why : str
        Reason for the choice of this precision, such as "fastest at this order", or an empty string. After a
        fallback, `message` contains the details.
    emulated : bool
        Whether mxpeak rounded the operands of matrix products to this precision in software. If so, the speed is that
        of fp32, not of the emulated format.
    iterations : int
        Largest number of refinement steps for any right-hand side. One step is one correction or one GMRES iteration.
    backward_error : float
        Normwise backward error ||b - A x|| / ((||A||·||x|| + ||b||)·n·u) of the worst right-hand side, in the infinity
        norm. If more than 8 right-hand sides need no refinement, the value is about the root mean square of their
        errors. If mxpeak scaled A, the value can be the error of the scaled system, which is larger.
    componentwise_error : float
        Row-wise backward error max_i |b - A x|_i / ((|A||x| + |b|)_i·n·u) of the worst right-hand side. mxpeak computes
        the value when you first read this attribute.
    error_bound : ErrorBound or None
        Normwise and componentwise bound of the relative forward error of x, as LAPACK's gesvx computes them. The values
        are those of the worst right-hand side. mxpeak computes the bounds when you first read this attribute, because
        they take about ten solves with the factors. A bound of inf means that x may have no correct digit. For a
        distributed system, the value is None.
    condition : float or None
        Estimate of numpy.linalg.cond(A, 1) for the matrix of the system, without any scaling. mxpeak computes the value
        when you first read this attribute. For a stack, this is the largest value of all systems. For a distributed
        system, the value is None if the pivots and corrections gave no reason to compute an estimate.
        `DistributedFactors.condition` is available in every case.
    growth : float or None
        Pivot growth factor max |u_ij| / max |a_ij|, after any scaling. For Cholesky and LDL^T factors, u_ij are the
        entries of the diagonal blocks D, with d_ii = l_ii^2 for Cholesky. For LDL^T factors on several ranks, the value
        is max_i (|L||D||L^T|)_ii / max |a_ij|. A stack has the largest value of its
        individually solved systems, or None if there are no such systems. mxpeak computes the value when you first read
        this attribute.
    scaled : bool
        Whether mxpeak scaled the rows and columns of A, or of a matrix in the stack, before the factorization.
    fallback : bool
        Whether the first factorization failed, so that mxpeak factored A again in fp64, or by LU instead of LDL^T.
    ill_conditioned : bool
        Whether x may have no correct digits despite a small backward error. Possible causes are a singular matrix,
        columns of very different magnitudes, and underflow in x.
    message : str
        Notes and advice, one per line, or an empty string.
    u : float
        Unit roundoff of the data type of x.
    times : dict of str to float
        Time of each phase, in seconds. The possible phases are "solve", "make", "equilibrate", "factor", "deflate" and
        "refine". A stack has one phase for its joint solve and one for the individual solves. Reading `condition` or
        `growth` adds the phase "estimate". For a distributed system, these are the times of this rank.
    history : tuple of float
        Largest backward error at the start and after each step; empty for a stack. If mxpeak scaled A, these are the
        errors of the scaled system.
    systems : int or None
        Number of systems in the stack, or None for a single system.
    individual : dict of tuple of int to SolveInfo or None
        Diagnostics of the individually solved systems of a stack, keyed by their indices in the stack, or None for a
        single system.
    grid : tuple of int or None
        Rows and columns of the process grid, (P, Q), of a distributed system.
    nb : int
        Block size of the block-cyclic distribution of a distributed system.
    bytes_a_rank : int
        Planned memory of a distributed system in bytes, on the rank that needs the most memory. The value includes the
        fp64 factors, panels, vectors and stored entries of A.

    Notes
    -----
    On a single process, this object keeps the factors in memory until you read `condition` and `error_bound`. It keeps
    A, b and x in memory until you read `componentwise_error`. Values that depend on A are NaN if A, b or x changed
    after the solve.
    """

    outcome: Outcome = Outcome.SOLVED
    n: int
    rhs: int
    factorization: str = "LU"
    precision: str
    lagged: bool = False
    emulated: bool = False
    fp64: str = "native"
    iterations: int
    backward_error: float
    scaled: bool = False
    fallback: bool = False
    ill_conditioned: bool = False
    message: str = ""
    why: str = ""
    u: float
    times: dict[str, float] = field(repr=False)
    history: tuple[float, ...] = field(repr=False)
    systems: int | None = None
    individual: dict[tuple[int, ...], SolveInfo] | None = field(default=None, repr=False)
    grid: tuple[int, int] | None = None
    nb: int = 0
    bytes_a_rank: int = 0
    _estimates: Estimates = field(repr=False, compare=False)
    _row_error: Estimates | tuple[Any, ...] = field(repr=False, compare=False)  # or A, X, B, eta and a backend
    _bounds: Estimates | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, facts: dict[str, Any]) -> SolveInfo:
        """Create the object from `facts` without calling the dataclass constructor, which takes 2 µs longer."""
        info = object.__new__(cls)
        info.__dict__.update(facts)
        return info

    @property
    def condition(self) -> Any:
        """Return the estimated one-norm condition number of A, without any scaling, or None.

        mxpeak uses Higham's method, which needs only a few solves. The estimate is rarely too small by more than a
        factor of 3.
        """
        return self._estimated()[0]

    @property
    def growth(self) -> Any:
        """Return the pivot growth factor max |u_ij| / max |a_ij|, after any scaling, or None."""
        return self._estimated()[1]

    @property
    def componentwise_error(self) -> float:
        """Return the largest row-wise backward error, in units of n·u.

        The value is NaN if A, b or x changed after the solve.
        """
        if isinstance(self._row_error, tuple):
            A, X, B, eta, *backend = self._row_error
            kernels = backend[0] if backend else choose.dense(None)
            worst = row_error_if_unchanged(kernels, A, X, B, eta) if eta < inf else inf
            self.__dict__["_row_error"] = Estimates.from_values((worst,))
        assert isinstance(self._row_error, Estimates)
        error: float = self._row_error.values()[0]
        return error

    @property
    def error_bound(self) -> ErrorBound | None:
        """Return bounds of the relative forward error of x, or None for a distributed system.

        The bounds contain n + 1 times the rounding error of each product, and are rarely below the error. mxpeak
        computes the bounds when you first read this attribute.
        """
        return None if self._bounds is None else ErrorBound(*self._bounds.values())

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields for pickling, with the row-wise error as a number, because A is not pickled."""
        self._estimates.values()  # the estimates of a stack add a phase to the times of single systems
        return self.__dict__ | {"_row_error": Estimates.from_values((self.componentwise_error,))}

    def _estimated(self) -> tuple[Any, ...]:
        values = self._estimates.values()
        if self._estimates.time_s:
            self.times["estimate"] = self._estimates.time_s
        return values

    @property
    def solved(self) -> bool:
        """Return whether x is as accurate as the result of a stable solver in the precision of the input."""
        return self.outcome is Outcome.SOLVED

    def __str__(self) -> str:
        verdict = "solved" if self.solved else "NOT SOLVED"
        if self.solved and self.ill_conditioned and self.systems is not None:
            verdict += ", but some x may have no correct digit"
        elif self.solved and self.ill_conditioned:
            singular = "numerically singular" in self.message
            verdict += ", but numerically singular" if singular else ", but x may have no correct digit"
        worst = "" if self.systems is None else ", the worst"
        omega, unit = self.componentwise_error, self.n * self.u
        row_wise = f"{omega * unit:.1e}  ({omega:.1e} n·u){worst}"
        if isnan(omega):
            row_wise = f"unknown, because A, b or x was changed after the solve{worst}"
        lines = [
            f"{verdict}: {self._headline()}",
            f"  backward error  {self.backward_error * unit:.1e}  ({self.backward_error:.1e} n·u){worst}",
            f"  row-wise error  {row_wise}",
        ]
        if self.systems is None and (bound := self.error_bound) is not None:
            lines.append(f"  forward error   {bound_text(bound)}")
        if self.individual is not None:
            lines.append(f"  individually    {len(self.individual)}")
        else:
            if self.condition is not None:
                lines.append(f"  condition       {self.condition:.2e} (estimate)")
            if self.growth is not None:
                lines.append(f"  growth          {self.growth:.2e}")
        if self.grid is not None:
            lines.append(f"  memory          {size_text(self.bytes_a_rank)} per rank")
        if times := self._times_as_text():
            lines.append(f"  time            {times}")
        return self._as_text(lines)

    def _outcome_as_text(self) -> str:
        """Return an empty text, because the message contains the reason."""
        return ""

    def _headline(self) -> str:
        """Return the first line of the summary: sizes, precision, fallback and number of refinement steps."""
        if self.systems is not None:
            rhs = "" if self.rhs == 1 else f" with {self.rhs} right-hand sides each"
            return f"{self.systems} systems, n = {self.n}{rhs}"
        rhs = "" if self.rhs == 1 else f", {self.rhs} right-hand sides"
        steps = f"{self.iterations} refinement step{'' if self.iterations == 1 else 's'}"
        emulated = " (emulated)" if self.emulated or self.fp64 == "emulated" else ""
        failed = "LDL^T factors" if self.why == LDL_FAILED else "a coarser one"
        again = f", after {failed} failed" if self.fallback else ""
        if self.lagged and self.why != "given":  # `refine` cannot detect the matrix of the user's factors
            again = " of an earlier matrix"
        ranks = ""
        if self.grid is not None:
            ranks = f"{',' if self.fallback else ''} on {self.grid[0]}x{self.grid[1]} ranks, NB = {self.nb}"
        why = f" ({self.precision}: {self.why})" if self.why and not self.fallback else ""
        return f"n = {self.n}{rhs}, {self.factorization} in {self.precision}{emulated}{again}{ranks}, {steps}{why}"
