"""Diagnostics that a dense solve returns with x, and the texts of its notes."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite, isnan
from typing import Any

import numpy as np

from mxpeak.errors import Outcome
from mxpeak.library.dense.factoring import Estimates
from mxpeak.library.dense.row_errors import row_error_of
from mxpeak.library.dense.types import roundoff
from mxpeak.library.outcomes import Info

#: Where one more correction would move x by more of its size, x is warned of: its error may be several times that.
LOST = 2.0**-4
#: How notes end that say why a lower precision did not do.
AGAIN = "A was factored again in fp64"


def note_of_breakdown(precision: str, why: str) -> str:
    """Why A was factored again: there are no factors to refine with."""
    return f"the LU in {precision} broke down: {why}; {AGAIN}"


def note_of_coarseness(precision: str, steps: int, eta: float, factors: str) -> str:
    """Why A was factored again: refinement did not get there; `factors` tells of these."""
    took = f"{steps} step{'' if steps == 1 else 's'}"
    return f"the LU in {precision} was too coarse: after {took} the backward error was {eta:.1e} ({factors}); {AGAIN}"


def note_of_uneven_rows(precision: str, steps: int, omega: float) -> str:
    """Why A was factored again: some equations were not solved as well as plain LU solves them."""
    took = f"{steps} step{'' if steps == 1 else 's'}"
    return (
        f"the LU in {precision} was too coarse for some rows: after {took} the row-wise backward error was "
        f"{omega:.1e} n·u; {AGAIN}"
    )


def note_of_underflow(dtype: np.dtype[Any]) -> str:
    """Why x may have no correct digit where it is rounded to subnormal numbers."""
    return (
        f"x underflows: its largest entry is below the least normal number of {dtype}, {np.finfo(dtype).tiny:.1e}, and "
        "may have no correct digit; multiply b by a power of two"
    )


def note_of_doubt(condition: float, precision: str = "fp32") -> str:
    """Why A was factored again: by such factors this condition looks as an infinite one does."""
    seen = f"the condition of A is {condition:.1e} or more" if isfinite(condition) else "A may be singular"
    return f"by its LU in {precision} {seen}; {AGAIN}"


def note_of_columns(moved: float) -> str:
    """Why x may have no correct digit although the scaled system is solved well."""
    how = f"move it by {moved:.1g} times that" if isfinite(moved) else "overflow"
    return (
        f"the columns of A differ so much in size that x may have no correct digit where it is largest: one more "
        f"correction would {how}; use units of the unknowns that give columns of similar size"
    )


def note_of_singularity(condition: float, dtype: np.dtype[Any], outcome: Outcome) -> str:
    """Why x may have no correct digit where the condition is beyond what the type can tell."""
    small = "the residual is small, but " if outcome is Outcome.SOLVED else ""
    wider = "a type with more digits, " if dtype.name in ("float32", "complex64") else ""
    return (
        f"A is numerically singular: condition {condition:.1e} >= 1/u = {1 / roundoff(dtype):.1e}; "
        f"{small}x may have no correct digit; look for rows or columns that depend on each other, or use {wider}"
        "regularization or least squares (numpy.linalg.lstsq)"
    )


def line_of_error(eta: float, n: int, u: float) -> str:
    """The backward error, as every info prints it."""
    return f"  backward error  {eta * n * u:.1e}  ({eta:.1e} n·u)"


def line_of_row_error(omega: float, n: int, u: float) -> str:
    """The row-wise backward error, as every info prints it."""
    if isnan(omega):
        return "  row-wise error  unknown, because A, b or x was changed after the solve"
    return f"  row-wise error  {omega * n * u:.1e}  ({omega:.1e} n·u)"


def line_of_times(times: dict[str, float]) -> str:
    """Seconds by phase, as every info prints them."""
    return "  time            " + ", ".join(f"{name} {time_s:.3g} s" for name, time_s in times.items())


def doubt(*, singular: bool) -> str:
    """What is added to "solved" where x may have no correct digit."""
    return ", but numerically singular" if singular else ", but x may have no correct digit"


@dataclass(frozen=True, kw_only=True)
class SolveInfo(Info):
    """Diagnostics of a dense solve.

    An info has no truth value. Test `info.solved`.

    Attributes
    ----------
    outcome : Outcome
        How the solve ended.
    solved : bool
        Whether x is as accurate as a stable solver in the input's type makes it.
    converged : bool
        The same as `solved`.
    n : int
        Order of A.
    rhs : int
        Number of right-hand sides.
    precision : str
        Precision of the factors at the end.
    why : str
        Reason for this precision, such as "quickest at this order".
    emulated : bool
        Whether operands were rounded to the precision in software. The speed is then that of fp32.
    iterations : int
        Refinement steps of the right-hand side that needed most. A step is one correction or one GMRES iteration.
    backward_error : float
        ||b - A x|| / ((||A||·||x|| + ||b||)·n·u) in the infinity norm of the worst right-hand side. If more than 8
        right-hand sides need no refinement, the value is about their root mean square.
    componentwise_error : float
        max_i |b - A x|_i / ((|A||x| + |b|)_i·n·u) of the worst right-hand side. mxpeak computes the value when you
        first read it.
    condition : float
        Estimate of the one-norm condition number of A after scaling. mxpeak computes the value when you first read it.
    growth : float
        Pivot growth max |u_ij| / max |a_ij| after scaling. mxpeak computes the value when you first read it.
    scaled : bool
        Whether rows and columns were scaled before the factorization.
    fallback : bool
        Whether the requested precision failed and A was factored again in fp64.
    ill_conditioned : bool
        Whether x may have no correct digit, although the backward error is small. Possible reasons are a singular A,
        columns of very different sizes, and an underflow of x.
    message : str
        Notes and advice, one per line. The text is empty if there are none.
    u : float
        Unit roundoff of the type of x.
    times : dict of str to float
        Seconds per phase: solve, or equilibrate, factor, deflate and refine. The phase estimate appears after you read
        `condition` or `growth`.
    history : tuple of float
        Largest backward error at the start and after each step, of the scaled system if A was scaled.

    Notes
    -----
    This object refers to the factors until you read `condition` or `growth`. This object refers to A, b and x until you
    read `componentwise_error`.
    """

    outcome: Outcome = Outcome.SOLVED
    n: int
    rhs: int
    precision: str
    emulated: bool = False
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
    _estimates: Estimates = field(repr=False, compare=False)
    _row_error: Estimates | tuple[Any, ...] = field(repr=False, compare=False)  # or the arguments of `row_error_of`

    @classmethod
    def of(cls, facts: dict[str, Any]) -> SolveInfo:
        """Return cls(**facts) without the 2 µs that a frozen dataclass needs to set its fields."""
        info = object.__new__(cls)
        info.__dict__.update(facts)
        return info

    @property
    def condition(self) -> float:
        """Return an estimate of the one-norm condition number of A after scaling.

        Higham's method computes the estimate with a few solves. The estimate is rarely too small by a factor of 3.
        """
        return self._estimated()[0]

    @property
    def growth(self) -> float:
        """Return the pivot growth max |u_ij| / max |a_ij|, after scaling."""
        return self._estimated()[1]

    @property
    def componentwise_error(self) -> float:
        """Return the largest row-wise backward error, in units of n·u.

        The value is NaN if A, b or x was changed after the solve.
        """
        if isinstance(self._row_error, tuple):
            self.__dict__["_row_error"] = row_error_of(*self._row_error)
        assert isinstance(self._row_error, Estimates)
        return self._row_error.values()[0]

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields with the row-wise error as a number, because A is not pickled."""
        return self.__dict__ | {"_row_error": Estimates.known((self.componentwise_error,))}

    def _estimated(self) -> tuple[float, ...]:
        values = self._estimates.values()
        self.times["estimate"] = self._estimates.time_s
        return values

    @property
    def solved(self) -> bool:
        """Return whether x is as accurate as a stable solver in the input's type makes it."""
        return self.outcome is Outcome.SOLVED

    def __str__(self) -> str:
        verdict = "solved" if self.solved else "NOT SOLVED"
        if self.solved and self.ill_conditioned:
            verdict += doubt(singular=self.condition * self.u >= 1.0)
        sides = "" if self.rhs == 1 else f", {self.rhs} right-hand sides"
        emulated = " (emulated)" if self.emulated else ""
        emulated += ", after a coarser one failed" if self.fallback else ""
        steps = f"{self.iterations} refinement step{'' if self.iterations == 1 else 's'}"
        why = f" ({self.precision}: {self.why})" if self.why and not self.fallback else ""
        lines = [
            f"{verdict}: n = {self.n}{sides}, LU in {self.precision}{emulated}, {steps}{why}",
            line_of_error(self.backward_error, self.n, self.u),
            line_of_row_error(self.componentwise_error, self.n, self.u),
            f"  condition       {self.condition:.2e} (estimate)",
            f"  growth          {self.growth:.2e}",
            line_of_times(self.times),
        ]
        return self._told(lines)
