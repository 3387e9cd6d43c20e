"""Diagnostics that a dense solve returns with x, and the texts of its notes."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite, isnan
from typing import Any

import numpy as np

from mxpeak.errors import Outcome
from mxpeak.library.dense.factoring import Estimates
from mxpeak.library.dense.row_errors import row_error_of
from mxpeak.library.outcomes import Info
from mxpeak.library.types import roundoff

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
        f"A is numerically singular: condition {condition:.1e} >= 1/u = {1 / roundoff(dtype):.1e}; {small}x "
        "may have no correct digit; check A for linearly dependent rows or columns, or use "
        f"{wider}regularization or least squares (numpy.linalg.lstsq)"
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
    """Diagnostics for the solution of a dense system.

    Use `info.solved` in conditions, because an info object has no truth value.

    Attributes
    ----------
    outcome : Outcome
        Outcome of the solve.
    solved : bool
        Whether x is as accurate as the result of a stable solver in the precision of the input.
    converged : bool
        Alias for `solved`.
    n : int
        Order of the matrix A.
    rhs : int
        Number of right-hand sides.
    precision : str
        Precision of the factors after the solve.
    why : str
        Reason for the choice of this precision, such as "fastest at this order".
    emulated : bool
        Whether mxpeak rounded the operands of matrix products to this precision in software. If so, the speed is that
        of fp32, not of the emulated format.
    iterations : int
        Largest number of refinement steps for any right-hand side. One step is one correction or one GMRES iteration.
    backward_error : float
        Normwise backward error ||b - A x|| / ((||A||·||x|| + ||b||)·n·u) of the worst right-hand side, in the infinity
        norm. If more than 8 right-hand sides need no refinement, the value is about the root mean square of their
        errors.
    componentwise_error : float
        Row-wise backward error max_i |b - A x|_i / ((|A||x| + |b|)_i·n·u) of the worst right-hand side. mxpeak computes
        the value when you first read this attribute.
    condition : float
        Estimated one-norm condition number of A, after any scaling. mxpeak computes the value when you first read this
        attribute.
    growth : float
        Pivot growth factor max |u_ij| / max |a_ij|, after any scaling. mxpeak computes the value when you first read
        this attribute.
    scaled : bool
        Whether mxpeak scaled the rows and columns of A before the factorization.
    fallback : bool
        Whether the first factorization failed, so that mxpeak factored A again in fp64.
    ill_conditioned : bool
        Whether x may have no correct digits despite a small backward error. Possible causes are a singular matrix,
        columns of very different magnitudes, and underflow in x.
    message : str
        Notes and advice, one per line, or an empty string.
    u : float
        Unit roundoff of the data type of x.
    times : dict of str to float
        Time of each phase, in seconds. The possible phases are "solve", "equilibrate", "factor", "deflate" and
        "refine". If you read `condition` or `growth`, mxpeak adds the phase "estimate".
    history : tuple of float
        Largest backward error at the start and after each step. If mxpeak scaled A, these are the errors of the scaled
        system.

    Notes
    -----
    This object keeps the factors in memory until you read `condition` or `growth`. It keeps A, b and x in memory until
    you read `componentwise_error`.
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
        """Return cls(**facts), but bypass the dataclass constructor, which takes 2 µs longer."""
        info = object.__new__(cls)
        info.__dict__.update(facts)
        return info

    @property
    def condition(self) -> float:
        """Return the estimated one-norm condition number of A, after any scaling.

        mxpeak uses Higham's method, which needs only a few solves. The estimate is rarely too small by more than a
        factor of 3.
        """
        return self._estimated()[0]

    @property
    def growth(self) -> float:
        """Return the pivot growth factor max |u_ij| / max |a_ij|, after any scaling."""
        return self._estimated()[1]

    @property
    def componentwise_error(self) -> float:
        """Return the largest row-wise backward error, in units of n·u.

        The value is NaN if A, b or x changed after the solve.
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
        """Return whether x is as accurate as the result of a stable solver in the precision of the input."""
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
