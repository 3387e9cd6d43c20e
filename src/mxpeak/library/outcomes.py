"""How a solve of one's own system ends, in the ways that NumPy's and SciPy's users ask it."""

from __future__ import annotations

import html
from typing import NoReturn

import numpy as np

from mxpeak.errors import SingularError


class SingularMatrixError(SingularError, np.linalg.LinAlgError):
    """The matrix has no inverse: a pivot is exactly zero, or a row or column holds nothing but zeros."""


class IllConditionedWarning(RuntimeWarning):
    """A system was solved whose matrix is singular to working precision: x may have no correct digit."""


class Info:
    """What the solvers' infos share: they are shown in notebooks, and are no truth value."""

    __slots__ = ()

    def __bool__(self) -> NoReturn:
        """SciPy's info is 0, so false, where all went well: what is meant here has to be said."""
        raise TypeError("an info is neither true nor false; ask info.converged")

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"
