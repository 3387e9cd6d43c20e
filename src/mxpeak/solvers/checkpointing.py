"""Checkpoints of an LU between two of its steps, when no work is pending."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

#: The state of a factorization without the matrix: numbers by name.  The maximum over the ranks is used.
Notes = Mapping[str, Sequence[float]]


class Checkpointer(Protocol):
    """Copies the matrix of a factorization between its steps.

    first   the first step to run: the matrix is in the state after the steps before it
    notes   the state after those steps
    """

    first: int
    notes: Notes

    def due(self, step: int, count: int) -> bool:
        """Return whether to copy the matrix after this step of `count`.  Collective."""

    def keep(self, done: int, notes: Notes) -> None:
        """Copy the matrix after `done` steps, with these notes; the matrix may change after the return."""


class NoCheckpoints:
    """A checkpointer that copies nothing and starts with the first step."""

    def __init__(self) -> None:
        self.first = 0
        self.notes: Notes = {}

    def due(self, step: int, count: int) -> bool:
        """Return False."""
        return False

    def keep(self, done: int, notes: Notes) -> None:
        """Do nothing."""


NO_CHECKPOINTS = NoCheckpoints()
