"""Checkpoints of an LU: between two steps, when no work is under way, a keeper may copy the matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

#: The state of a factorization without the matrix: numbers by name. The maximum over the ranks is used.
Notes = Mapping[str, Sequence[float]]


class Checkpointer(Protocol):
    """Copies the matrix of a factorization between its steps.

    first   the step to begin with: the matrix is as it was after those before
    notes   the state after those steps
    """

    first: int
    notes: Notes

    def due(self, step: int, count: int) -> bool:
        """Return whether the matrix shall be copied after this step of `count`.  Collective over the grid."""

    def keep(self, done: int, notes: Notes) -> None:
        """Copy the matrix after `done` steps, with these notes; it may be changed when this has returned."""


class Nobody:
    """A keeper that copies nothing, and begins with the first step."""

    def __init__(self) -> None:
        self.first = 0
        self.notes: Notes = {}

    def due(self, step: int, count: int) -> bool:
        """Return False."""
        return False

    def keep(self, done: int, notes: Notes) -> None:
        """Do nothing."""


NO_CHECKPOINTS = Nobody()
