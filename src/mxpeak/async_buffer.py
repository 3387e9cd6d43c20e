"""Memory that is promised: what a device still works on, with the event that says when it is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol


class Event(Protocol):
    """A mark in a device's work, as CUDA has them."""

    def query(self) -> bool:
        """Whether it is past."""

    def synchronize(self) -> None:
        """Return once it is past."""


@dataclass(frozen=True, slots=True)
class AsyncBuffer:
    """A message's memory, which message passing may have once `ready` is past, as `form` of it."""

    memory: Any
    ready: Event
    form: Callable[[Any], Any] = lambda memory: memory

    def __getitem__(self, part: slice) -> AsyncBuffer:
        """A part of it, promised with the whole."""
        return replace(self, memory=self.memory[part])

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the memory."""
        return tuple(self.memory.shape)

    @property
    def nbytes(self) -> int:
        """Of the memory."""
        return int(self.memory.nbytes)

    def fulfilled(self) -> Any:
        """What message passing gets, once it is there."""
        self.ready.synchronize()
        return self.form(self.memory)


def fulfilled(memory: Any) -> Any:
    """A message's memory, waited for if it is promised."""
    return memory.fulfilled() if isinstance(memory, AsyncBuffer) else memory
