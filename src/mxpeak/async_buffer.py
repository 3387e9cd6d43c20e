"""A buffer that a device still uses, and the event that marks its completion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol


class DeviceEvent(Protocol):
    """A recorded point in the work queue of a device, such as a CUDA event."""

    def query(self) -> bool:
        """Return whether the device has reached the event."""

    def synchronize(self) -> None:
        """Wait until the device has reached the event."""


@dataclass(frozen=True, slots=True)
class AsyncBuffer:
    """The memory of a message that a device may still use. The message is complete after the event `ready`.

    form    function that converts the memory to the form that message passing uses
    """

    memory: Any
    ready: DeviceEvent
    form: Callable[[Any], Any] = lambda memory: memory

    def __getitem__(self, part: slice) -> AsyncBuffer:
        """Return a slice of the buffer with the same event."""
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
        """Wait for the event, and return the memory in the form that message passing uses."""
        self.ready.synchronize()
        return self.form(self.memory)


def fulfilled(memory: Any) -> Any:
    """Return the memory of a message; if the memory is an AsyncBuffer, first wait for its event."""
    return memory.fulfilled() if isinstance(memory, AsyncBuffer) else memory
