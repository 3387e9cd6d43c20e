"""An LU that is kept on its way: between two steps, when nothing is under way, somebody may copy the matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

#: What a factorization knows besides the matrix: numbers by name, the largest of all ranks' count.
Notes = Mapping[str, Sequence[float]]


class Keeper(Protocol):
    """Who keeps a factorization.

    first   the step to begin with: the matrix is as it was after those before
    notes   what was noted by then
    """

    first: int
    notes: Notes

    def due(self, step: int, count: int) -> bool:
        """Whether the matrix shall be kept after this step of `count`.  Collective over the grid."""

    def keep(self, done: int, notes: Notes) -> None:
        """Keep the matrix after so many steps, and these notes; it may be changed once this has returned."""


class Nobody:
    """Nothing is kept, and all steps are to be done."""

    def __init__(self) -> None:
        self.first = 0
        self.notes: Notes = {}

    def due(self, step: int, count: int) -> bool:
        """Never."""
        return False

    def keep(self, done: int, notes: Notes) -> None:
        """Nothing."""


NOBODY = Nobody()
