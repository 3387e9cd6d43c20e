"""Multigrid cycle, the preconditioner of HPG-MxP and HPCG (Kashi et al., §2, figure 1).

    x   smoothed once from zero          A x ≈ b on this level
    r   (b - A x) at the coarser points  restriction by injection
    x   += the coarser level's x         prolongation, its transpose
    x   smoothed once more

The coarsest level is smoothed only once.
"""

from __future__ import annotations

from typing import Any, Protocol

Vector = Any


class Level(Protocol):
    """A multigrid level: its matrix, its smoother, and its transfers to the next coarser level."""

    @property
    def x(self) -> Vector:
        """Return the correction of the last cycle."""

    @property
    def r(self) -> Vector:
        """Return the residual at the points of the coarser level."""

    @property
    def coarser(self) -> Any:
        """Return the next coarser level, or None."""

    def presmooth(self, b: Vector) -> None:
        """Compute x by a sweep on A x = b from zero."""

    def restrict(self, b: Vector) -> None:
        """Compute r = (b - A x) at the coarser points."""

    def correct(self, coarse: Any) -> None:
        """Add the coarser level's correction to x (prolongation)."""

    def postsmooth(self, b: Vector) -> None:
        """Improve x by another sweep, which starts from the current x."""


def cycle(level: Level, b: Vector) -> Vector:
    """Run one cycle and return x ≈ A^-1 b in a vector that the next cycle overwrites. Collective."""
    level.presmooth(b)
    if level.coarser is not None:
        level.restrict(b)
        cycle(level.coarser, level.r)
        level.correct(level.coarser)
        level.postsmooth(b)
    return level.x
