"""How a solve of one's own system ends, in the ways that NumPy's and SciPy's users ask it."""

from __future__ import annotations

import html
import warnings
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np

from mxpeak.errors import Outcome, SingularError


class SingularMatrixError(SingularError, np.linalg.LinAlgError):
    """The matrix has no inverse: a pivot is exactly zero, or a row or column holds nothing but zeros."""


class IllConditionedWarning(RuntimeWarning):
    """A system was solved, but x may have no correct digit: A is singular to working precision, or badly scaled."""


AnyInfo = TypeVar("AnyInfo", bound="Warned")


class Warned(Protocol):
    """An info that may have something to warn of."""

    @property
    def ill_conditioned(self) -> bool:
        """Whether x may have no correct digit."""

    @property
    def message(self) -> str:
        """What happened; the last line says why."""


def warned(x: Any, info: AnyInfo) -> tuple[Any, AnyInfo]:
    """x and info; warns, in the name of our caller's caller, of a solution that may have no correct digit."""
    if info.ill_conditioned:
        warnings.warn(info.message.splitlines()[-1], IllConditionedWarning, stacklevel=3)
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
