"""Interface for checkpoints of an LU between two steps, when no operation is pending."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

#: The state of a factorization in addition to the matrix: numbers by name. The maximum over the ranks is used.
Notes = Mapping[str, Sequence[float]]


class Checkpointer(Protocol):
    """Saves a factorization between steps, and restarts it.

    first_step   the first step to run: the matrix is in the state after the previous steps
    notes        the state after those steps
    """

    first_step: int
    notes: Notes

    def is_due(self, step: int, count: int) -> bool:
        """Return whether to save the matrix after this step of `count`. Collective."""

    def save(self, done: int, notes: Notes) -> None:
        """Save the matrix after `done` steps, together with the notes; the caller may change the matrix afterwards."""


class NoCheckpoints:
    """A checkpointer that saves nothing; the factorization starts with its first step."""

    def __init__(self) -> None:
        self.first_step = 0
        self.notes: Notes = {}

    def is_due(self, step: int, count: int) -> bool:
        """Return False, because nothing is ever saved."""
        return False

    def save(self, done: int, notes: Notes) -> None:
        """Do nothing."""


NO_CHECKPOINTS = NoCheckpoints()
