"""A buffer that a device still uses, and the event that marks its completion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol


class DeviceEvent(Protocol):
    """A point in the work queue of a device, as in CUDA."""

    def query(self) -> bool:
        """Return whether the event has occurred."""

    def synchronize(self) -> None:
        """Wait for the event."""


@dataclass(frozen=True, slots=True)
class AsyncBuffer:
    """The memory of a message, with the form that message passing may use after the event `ready`."""

    memory: Any
    ready: DeviceEvent
    form: Callable[[Any], Any] = lambda memory: memory

    def __getitem__(self, part: slice) -> AsyncBuffer:
        """Return a part of the buffer with the same event."""
        return replace(self, memory=self.memory[part])

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the memory."""
        return tuple(self.memory.shape)

    @property
    def nbytes(self) -> int:
        """Return the size of the memory in bytes."""
        return int(self.memory.nbytes)

    def fulfilled(self) -> Any:
        """Wait for the event, and return the memory for message passing."""
        self.ready.synchronize()
        return self.form(self.memory)


def fulfilled(memory: Any) -> Any:
    """Wait for the event of a message's memory if there is one, and return the memory."""
    return memory.fulfilled() if isinstance(memory, AsyncBuffer) else memory
