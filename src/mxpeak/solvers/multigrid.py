"""One cycle of multigrid, the preconditioner of HPG-MxP and HPCG (Kashi et al., §2, figure 1).

    x   smoothed once from zero          A x ≈ b on this level
    r   (b - A x) at the coarser points  restriction by injection
    x   += the coarser level's x         prolongation, its transpose
    x   smoothed once more

The coarsest level is smoothed once and no more.
"""

from __future__ import annotations

from typing import Any, Protocol

Vector = Any


class Level(Protocol):
    """One level: its matrix, its smoother, and how it meets the next coarser one."""

    @property
    def x(self) -> Vector:
        """The correction that a cycle leaves."""

    @property
    def r(self) -> Vector:
        """The residual at the coarser level's points."""

    @property
    def coarser(self) -> Any:
        """The next level, or None."""

    def presmooth(self, b: Vector) -> None:
        """x = a sweep on A x = b from zero."""

    def restrict(self, b: Vector) -> None:
        """r = (b - A x) at the coarser points."""

    def correct(self, coarse: Any) -> None:
        """x += the coarser x."""

    def postsmooth(self, b: Vector) -> None:
        """x = a sweep from x."""


def cycle(level: Level, b: Vector) -> Vector:
    """x ≈ A^-1 b, in a vector that the next cycle overwrites.  Collective."""
    level.presmooth(b)
    if level.coarser is not None:
        level.restrict(b)
        cycle(level.coarser, level.r)
        level.correct(level.coarser)
        level.postsmooth(b)
    return level.x
