"""Convert tensors to messages: arrays over the same memory, device memory, or copies in pinned host memory.

MPI supports neither streams nor bf16. Therefore, MPI receives an `AsyncBuffer` with an event. When the event has
occurred, the data to be sent is complete, or the memory to be overwritten is free. Formats that NumPy lacks are sent
as bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mxpeak.async_buffer import AsyncBuffer
from mxpeak.errors import UsageError
from mxpeak.kernels.torch.engine.device import Device

#: Types that NumPy and MPI support; all others are sent as bytes.
SENDABLE = (torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.uint8)

#: Entries of the buffer for testing device messages: odd, and more than one packet.
TEST_SIZE = 100_003


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return a one-dimensional view of a contiguous tensor; types that NumPy lacks are viewed as bytes."""
    line = tensor.view(-1) if tensor.is_contiguous() else tensor.t().view(-1)
    return line if line.dtype in SENDABLE else line.view(torch.uint8)


def _doubles(tensor: torch.Tensor) -> torch.Tensor:
    """Return a one-dimensional view of an fp64 tensor; raise UsageError for other types, which reductions reject."""
    if tensor.dtype != torch.float64:
        raise UsageError(
            f"reductions over ranks need fp64, but the tensor has the type {tensor.dtype}; use tensor.double()"
        )
    return flat(tensor)


class HostTensors:
    """Tensors in host memory, exchanged as NumPy arrays over the same memory."""

    name = "host memory"

    def outgoing(self, buffer: Any) -> Any:
        """Return a NumPy array over the tensor's memory, from which MPI sends."""
        return flat(buffer).numpy() if isinstance(buffer, torch.Tensor) else buffer

    def incoming(self, buffer: Any) -> tuple[Any, None]:
        """Return a NumPy array over the tensor's memory, into which MPI receives, and None because no copy follows."""
        return self.outgoing(buffer), None

    def numbers(self, buffer: Any) -> tuple[Any, None]:
        """Return a NumPy array over the memory of an fp64 tensor that MPI reduces, and None because no copy follows."""
        return (_doubles(buffer).numpy() if isinstance(buffer, torch.Tensor) else buffer), None


class StagedTensors:
    """Tensors on a GPU, exchanged through pinned host memory.

    Copies have their own stream. They wait for the work that was in the current stream when the message was started. A
    message therefore never reads unfinished data, and never waits for later work. After a message has arrived, every
    stream may read it. torch caches freed pinned memory by size and reuses the memory after the copies from it have
    finished.
    """

    name = "pinned host memory"

    def __init__(self, device: Device):
        self._where = device.where
        self._copies = torch.cuda.Stream(device.where)

    def outgoing(self, buffer: Any) -> Any:
        """Start to copy the tensor to pinned memory, and return the copy as an asynchronous buffer."""
        return self._copy(flat(buffer)) if self._carries(buffer) else buffer

    def incoming(self, buffer: Any) -> tuple[Any, Callable[[], None] | None]:
        """Return pinned memory for a message, and a function that copies the received message to the tensor."""
        if not self._carries(buffer):
            return buffer, None
        begun = torch.cuda.current_stream(self._where).record_event()  # earlier work may still read the buffer
        pinned = _pinned(flat(buffer))

        def land() -> None:
            self._copies.wait_event(begun)
            self._up(pinned, flat(buffer))

        return pinned.numpy(), land

    def numbers(self, buffer: Any) -> tuple[Any, Callable[[], None] | None]:
        """Return a pinned copy of the tensor, and a function that copies the reduced vector back to the tensor."""
        if not self._carries(buffer):
            return buffer, None
        line = _doubles(buffer)
        numbers = self._copy(line).fulfilled()
        return numbers, lambda: self._up(torch.from_numpy(numbers), line)

    def _carries(self, buffer: Any) -> bool:
        return isinstance(buffer, torch.Tensor) and buffer.is_cuda

    def _copy(self, line: torch.Tensor) -> AsyncBuffer:
        pinned = _pinned(line)
        self._copies.wait_stream(torch.cuda.current_stream(self._where))
        with torch.cuda.stream(self._copies):
            pinned.copy_(line, non_blocking=True)
        return AsyncBuffer(pinned, self._copies.record_event(), lambda memory: memory.numpy())

    def _up(self, pinned: torch.Tensor, line: torch.Tensor) -> None:
        with torch.cuda.stream(self._copies):
            line.copy_(pinned, non_blocking=True)
        self._copies.synchronize()


def _pinned(line: torch.Tensor) -> torch.Tensor:
    return torch.empty(line.shape, dtype=line.dtype, pin_memory=True)


class DirectTensors:
    """Tensors on a GPU, exchanged in place by a GPU-aware MPI.

    A tensor is passed to MPI only after all earlier work in the current stream has finished.
    """

    name = "device memory"

    def __init__(self, device: Device):
        self._device = device
        self._staged = StagedTensors(device)
        self.kind = "hip" if torch.version.hip else "cuda"
        self.device_id = str(torch.cuda.get_device_properties(device.where).uuid)

    def outgoing(self, buffer: Any) -> Any:
        """Return the tensor's memory as an asynchronous buffer, which MPI sends after earlier work has finished."""
        if not isinstance(buffer, torch.Tensor):
            return buffer
        return AsyncBuffer(flat(buffer), torch.cuda.current_stream(self._device.where).record_event())

    def incoming(self, buffer: Any) -> tuple[Any, None]:
        """Return the tensor's memory as an asynchronous buffer for a message, and None because no copy follows."""
        return self.outgoing(buffer), None

    def numbers(self, buffer: Any) -> tuple[Any, Callable[[], None] | None]:
        """Return a pinned copy of the tensor, and a function that copies the reduced vector back to the tensor.

        The reduction is done on the host, because reduced vectors are short and the reduction must propagate NaN.
        """
        return self._staged.numbers(buffer)

    def staged(self) -> StagedTensors:
        """Return the transport through pinned host memory."""
        return self._staged

    def pattern(self, number: int) -> torch.Tensor:
        """Return the bytes number, number + 7, number + 14, … (modulo 256), as the message of a transport test."""
        return (torch.arange(TEST_SIZE, device=self._device.where) * 7 + number).to(torch.uint8)

    def blank(self) -> torch.Tensor:
        """Return a receive buffer of zero bytes for a transport test."""
        return torch.zeros(TEST_SIZE, dtype=torch.uint8, device=self._device.where)

    def equal(self, a: torch.Tensor, b: torch.Tensor) -> bool:
        """Return whether two tensors are bitwise equal."""
        return bool(torch.equal(a, b))


def tensor_transport(device: Device) -> HostTensors | DirectTensors:
    """Return the transport of a device's tensors; messages in GPU memory must be tested before use."""
    return DirectTensors(device) if device.is_gpu else HostTensors()
