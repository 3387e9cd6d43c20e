"""How a solve of one's own system ends, in the ways that NumPy's and SciPy's users ask it."""

from __future__ import annotations

import html
import warnings
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np
from scipy.linalg import LinAlgWarning

from mxpeak.errors import Outcome, SingularError


class SingularMatrixError(SingularError, np.linalg.LinAlgError):
    """The matrix has no inverse: a pivot is exactly zero, or a row or column holds nothing but zeros."""


class IllConditionedWarning(LinAlgWarning):  # type: ignore[misc]
    """A system was solved, but x may have no correct digit: A is singular to working precision, or badly scaled."""


class NotSolvedWarning(LinAlgWarning):  # type: ignore[misc]
    """A direct solver returned an x that is not finite, or less accurate than a stable solver makes it."""


#: Looked up once: to look up a member takes a hundredth of the time of a small solve.
SOLVED = Outcome.SOLVED

AnyInfo = TypeVar("AnyInfo", bound="Warned")


class Warned(Protocol):
    """An info of which `warned` can read whether the user must be warned."""

    @property
    def outcome(self) -> Outcome:
        """How the solve ended."""

    @property
    def ill_conditioned(self) -> bool:
        """Whether x may have no correct digit."""

    @property
    def message(self) -> str:
        """What happened; the last line says why."""


def warned(x: Any, info: AnyInfo) -> tuple[Any, AnyInfo]:
    """Return x and info; warn, at the caller's caller, of a solution that is not solved or may have no correct digit.

    An iteration that did not reach its tolerance is reported by its info alone, as SciPy does.
    """
    if info.ill_conditioned and info.outcome is not Outcome.NOT_FINITE:
        warnings.warn(info.message.splitlines()[-1], IllConditionedWarning, stacklevel=3)
    elif info.outcome is not SOLVED and info.outcome is not Outcome.UNREACHED:
        why = info.message.splitlines()[-1:] or [str(info.outcome)]
        warnings.warn(f"not solved: {why[0]}", NotSolvedWarning, stacklevel=3)
    return x, info


class Info:
    """What the solvers' infos share: how they end, and that they are shown in notebooks, and are no truth value."""

    __slots__ = ()
    outcome: Outcome
    scaled: bool
    message: str

    @property
    def converged(self) -> bool:
        """Whether x is as accurate as was asked for."""
        return self.outcome is Outcome.SOLVED

    def _told(self, lines: list[str]) -> str:
        """The lines of a solver, and what all of them may have to add."""
        scaled = ["rows and columns were scaled by powers of two"] if self.scaled else []
        failed = [] if self.converged else [str(self.outcome)]
        return "\n".join([*lines, *(f"  {line}" for line in (*scaled, *failed, *self.message.splitlines()))])

    def __bool__(self) -> NoReturn:
        """SciPy's info is 0, so false, where all went well: what is meant here has to be said."""
        raise TypeError("an info is neither true nor false; ask info.converged")

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"
