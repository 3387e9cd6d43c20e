"""Errors, warnings and common properties of the solvers, in the types that NumPy and SciPy users expect."""

from __future__ import annotations

import html
import warnings
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np
from scipy.linalg import LinAlgWarning

from mxpeak.errors import Outcome, SingularError


class SingularMatrixError(SingularError, np.linalg.LinAlgError):
    """An error for a matrix without an inverse.

    A pivot is exactly zero, or a row or column contains only zeros. The error is also a numpy.linalg.LinAlgError.
    """


class IllConditionedWarning(LinAlgWarning):  # type: ignore[misc]
    """A warning that x may have no correct digit.

    A is singular to working precision, A is badly scaled, or x underflows. The warning is also a
    scipy.linalg.LinAlgWarning.
    """


class NotSolvedWarning(LinAlgWarning):  # type: ignore[misc]
    """A warning that x is not finite, or less accurate than with a stable solver.

    The warning is also a scipy.linalg.LinAlgWarning. An iteration that misses its tolerance gives no warning.
    """


#: Looked up once: to look up a member takes a hundredth of the time of a small solve.
SOLVED = Outcome.SOLVED

AnyInfo = TypeVar("AnyInfo", bound="Warned")


class Warned(Protocol):
    """The attributes of an info that decide about warnings.

    Attributes
    ----------
    outcome : Outcome
        How the solve ended.
    ill_conditioned : bool
        Whether x may have no correct digit.
    message : str
        Notes and advice, one per line.
    """

    @property
    def outcome(self) -> Outcome:
        """Return how the solve ended."""

    @property
    def ill_conditioned(self) -> bool:
        """Return whether x may have no correct digit."""

    @property
    def message(self) -> str:
        """Return notes and advice; the last line gives the reason for a warning."""


def warned(x: Any, info: AnyInfo) -> tuple[Any, AnyInfo]:
    """Return x and info, and issue a warning if x is not solved or may have no correct digit.

    The warning refers to the caller of the public function. As in SciPy, an iteration that misses its tolerance only
    sets the info.
    """
    if info.ill_conditioned and info.outcome is not Outcome.NOT_FINITE:
        warnings.warn(info.message.splitlines()[-1], IllConditionedWarning, stacklevel=3)
    elif info.outcome is not SOLVED and info.outcome is not Outcome.UNREACHED:
        why = info.message.splitlines()[-1:] or [str(info.outcome)]
        warnings.warn(f"not solved: {why[0]}", NotSolvedWarning, stacklevel=3)
    return x, info


class Info:
    """Common attributes of the infos that solvers return.

    An info has no truth value, because SciPy's info is 0 for a success. Notebooks show an info as text.

    Attributes
    ----------
    outcome : Outcome
        How the solve ended.
    converged : bool
        Whether x is as accurate as requested.
    scaled : bool
        Whether rows and columns were scaled by powers of two.
    message : str
        Notes and advice, one per line.
    """

    __slots__ = ()
    outcome: Outcome
    scaled: bool
    message: str

    @property
    def converged(self) -> bool:
        """Return whether x is as accurate as requested."""
        return self.outcome is Outcome.SOLVED

    def _told(self, lines: list[str]) -> str:
        """Return the lines of a solver and the lines that all infos share, as one text."""
        scaled = ["rows and columns were scaled by powers of two"] if self.scaled else []
        failed = [] if self.converged else [str(self.outcome)]
        return "\n".join([*lines, *(f"  {line}" for line in (*scaled, *failed, *self.message.splitlines()))])

    def __bool__(self) -> NoReturn:
        """Raise a TypeError, because SciPy's info is 0 for a success and a truth value would be ambiguous."""
        raise TypeError("an info is neither true nor false; ask info.converged")

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"
