"""Code shared by MINRES and BiCGStab: a system A x = b with M^-1, and the history of one run of a recurrence.

A recurrence updates r without a product b - A x. Because of rounding, its r drifts away from b - A x, and the caller
compares both when the recurrence ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

Vector = Any
#: A real or complex number.
Scalar = Any


class SystemForRecurrences(Protocol):
    """A system A x = b with M^-1, and its vectors as arrays. All methods are collective.

    u      the unit roundoff of M^-1
    size   a lower bound of ||A M^-1||, which MINRES increases; 0 at first
    """

    u: float
    size: float

    def residual_vector(self) -> Vector:
        """Return r = b - A x as a new vector."""

    def multiply(self, v: Vector) -> Vector:
        """Return A v as a new vector."""

    def precondition(self, r: Vector) -> Vector:
        """Return M^-1 r as a new vector."""

    def dot(self, u: Vector, v: Vector) -> Scalar:
        """Return uᴴv."""

    def norm(self, u: Vector) -> float:
        """Return ||u||_2."""

    def advance(self, d: Vector, estimate: float | None = None) -> None:
        """Compute x = x + d for the correction d of one step.

        If the residuals of a method may grow, `estimate` is the new ||r||, and the x with the smallest one is kept.
        """


@dataclass(slots=True)
class Recurrence:
    """The history of a recurrence.

    estimates  ||r|| of the recurrence after each step
    broken     the formula of the product that ended the recurrence, or an empty string
    product    the value of this product
    """

    estimates: list[float] = field(default_factory=list)
    broken: str = ""
    product: float = 0.0

    @property
    def steps(self) -> int:
        """Return the number of steps."""
        return len(self.estimates)
