"""Errors, warnings and common properties of the solvers, in the types that NumPy and SciPy users expect."""

from __future__ import annotations

import html
import warnings
from typing import Any, NoReturn, TypeVar

import numpy as np
from scipy.linalg import LinAlgWarning

from mxpeak.errors import ExitCode, MxpeakError, Outcome, SingularError


class SingularMatrixError(SingularError, np.linalg.LinAlgError):
    """An error caused by a matrix that has no inverse.

    A pivot is exactly zero, or a row or column contains only zeros. SingularMatrixError is also a subclass of
    numpy.linalg.LinAlgError.
    """


class NotPositiveDefiniteError(MxpeakError, np.linalg.LinAlgError):
    """An error caused by a matrix that is not positive definite, although the caller assumed that it is.

    The message contains the order of the first leading minor that is not positive. NotPositiveDefiniteError is also a
    subclass of numpy.linalg.LinAlgError.
    """

    exit_code = ExitCode.FAILED


class IllConditionedWarning(LinAlgWarning):  # type: ignore[misc]
    """A warning that x may have no correct digits.

    Possible causes are a matrix that is singular to working precision, a badly scaled matrix, and underflow in x.
    IllConditionedWarning is a subclass of scipy.linalg.LinAlgWarning.
    """


class NotSolvedWarning(LinAlgWarning):  # type: ignore[misc]
    """A warning that x is not finite, or that x is less accurate than the result of a stable solver.

    NotSolvedWarning is a subclass of scipy.linalg.LinAlgWarning. If an iterative solver does not reach its tolerance,
    mxpeak does not issue this warning.
    """


#: Cached, because the lookup of the member takes 1 % of the time of a small solve.
SOLVED = Outcome.SOLVED

#: The text that all entries of A were scaled by the same factor.
SCALED_BY_ONE_FACTOR = "A was scaled by a power of two"

AnyInfo = TypeVar("AnyInfo", bound="Info")


def warned(x: Any, info: AnyInfo) -> tuple[Any, AnyInfo]:
    """Return x and info, and issue a warning if x is not accurate or may have no correct digits.

    The warning refers to the line that called the public function. As in SciPy, an iterative solver that does not
    reach its tolerance issues no warning.
    """
    if info.ill_conditioned and info.outcome is not Outcome.NOT_FINITE:
        warnings.warn(info.message.splitlines()[-1], IllConditionedWarning, stacklevel=3)
    elif info.outcome is not SOLVED and info.outcome is not Outcome.UNREACHED:
        reason = info.message.splitlines()[-1:] or [str(info.outcome)]
        warnings.warn(f"not solved: {reason[0]}", NotSolvedWarning, stacklevel=3)
    return x, info


class Info:
    """Base class of the diagnostics that solvers return with x.

    An info object has no truth value, because SciPy solvers return info = 0 for success. Notebooks display info objects
    as text.

    Attributes
    ----------
    outcome : Outcome
        Outcome of the solve.
    converged : bool
        Whether x has the required accuracy.
    scaled : bool
        Whether mxpeak scaled A by powers of two: its rows and columns, or an operator and a least-squares matrix as a
        whole.
    ill_conditioned : bool
        Whether x may have no correct digits.
    message : str
        Notes and advice, one per line, or an empty string.
    times : dict of str to float
        Time in seconds of each phase.
    """

    __slots__ = ()
    outcome: Outcome
    scaled: bool
    ill_conditioned: bool
    message: str
    times: dict[str, float]

    @property
    def converged(self) -> bool:
        """Return whether x has the requested accuracy."""
        return self.outcome is Outcome.SOLVED

    def _as_text(self, lines: list[str]) -> str:
        """Return the lines of a solver's diagnostics as text, followed by scaling, outcome and message."""
        scaled = [self._scaling_as_text()] if self.scaled else []
        notes = [*scaled, *self._outcome_as_text().splitlines(), *self.message.splitlines()]
        return "\n".join([*lines, *(f"  {line}" for line in notes)])

    def _outcome_as_text(self) -> str:
        """Return the text of the outcome, or an empty text after a success."""
        return "" if self.converged else str(self.outcome)

    def _scaling_as_text(self) -> str:
        """Return the text that A was scaled."""
        return "rows and columns were scaled by powers of two"

    def _times_as_text(self) -> str:
        """Return the time of each phase as text, or an empty string if nothing was computed."""
        return ", ".join(f"{name} {time_s:.3g} s" for name, time_s in self.times.items())

    def __bool__(self) -> NoReturn:
        """Raise a TypeError, because SciPy returns info = 0 for success and a truth value would be ambiguous."""
        raise TypeError("an info object has no truth value; use info.converged")

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"
