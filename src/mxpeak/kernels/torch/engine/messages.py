"""How tensors become messages: as arrays over the same memory, as device memory, or staged through host memory.

Message passing knows neither streams nor bf16.  So what it gets is promised with an event: by then what it reads has
been computed, and what it writes nobody reads any more.  Formats that NumPy lacks travel as bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mxpeak.async_buffer import AsyncBuffer
from mxpeak.errors import UsageError
from mxpeak.kernels.torch.engine.device import Device

#: Types that NumPy and MPI know; all others travel as bytes.
KNOWN = (torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.uint8)

#: Entries of the buffer that a device's messages are tested with: more than one packet, and odd.
TEST_SIZE = 100_003


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor, by rows or by columns, as one vector of a type that NumPy knows."""
    line = tensor.view(-1) if tensor.is_contiguous() else tensor.t().view(-1)
    return line if line.dtype in KNOWN else line.view(torch.uint8)


def _doubles(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of fp64 numbers; those of other formats are not combined by message passing."""
    if tensor.dtype != torch.float64:
        raise UsageError(
            f"reductions over ranks need fp64, but the tensor has the type {tensor.dtype}; use tensor.double()"
        )
    return flat(tensor)


class HostTensors:
    """Tensors in host memory: NumPy arrays that share it."""

    name = "host memory"

    def outgoing(self, buffer: Any) -> Any:
        """An array over the tensor's memory."""
        return flat(buffer).numpy() if isinstance(buffer, torch.Tensor) else buffer

    def incoming(self, buffer: Any) -> tuple[Any, None]:
        """An array over the tensor's memory."""
        return self.outgoing(buffer), None

    def numbers(self, buffer: Any) -> tuple[Any, None]:
        """An array over the tensor's memory."""
        return (_doubles(buffer).numpy() if isinstance(buffer, torch.Tensor) else buffer), None


class StagedTensors:
    """Tensors on a GPU, through pinned host memory.

    Copies go over a stream of their own, behind all that had been begun on the current one when the message was: so a
    message neither overtakes the work that makes it nor waits for work begun later, and once it is here, every stream
    may read it.  torch keeps freed pinned memory by size and hands it out again when the copies from it have ended.
    """

    name = "pinned host memory"

    def __init__(self, device: Device):
        self._where = device.where
        self._copies = torch.cuda.Stream(device.where)

    def outgoing(self, buffer: Any) -> Any:
        """A copy in pinned memory, promised."""
        return self._copy(flat(buffer)) if self._carries(buffer) else buffer

    def incoming(self, buffer: Any) -> tuple[Any, Callable[[], None] | None]:
        """Pinned memory, to be copied to the device."""
        if not self._carries(buffer):
            return buffer, None
        begun = torch.cuda.current_stream(self._where).record_event()  # it may still be read by what was begun before
        pinned = _pinned(flat(buffer))

        def land() -> None:
            self._copies.wait_event(begun)
            self._up(pinned, flat(buffer))

        return pinned.numpy(), land

    def numbers(self, buffer: Any) -> tuple[Any, Callable[[], None] | None]:
        """A copy in pinned memory, to be copied back: vectors that are summed over ranks are short."""
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
    """Tensors on a GPU, in whose memory message passing reads and writes: MPI that is GPU-aware.

    It is told of a tensor once all that had been begun on the current stream has ended.
    """

    name = "device memory"

    def __init__(self, device: Device):
        self._device = device
        self._staged = StagedTensors(device)
        self.kind = "hip" if torch.version.hip else "cuda"
        self.device_id = str(torch.cuda.get_device_properties(device.where).uuid)

    def outgoing(self, buffer: Any) -> Any:
        """The tensor's own memory, promised."""
        if not isinstance(buffer, torch.Tensor):
            return buffer
        return AsyncBuffer(flat(buffer), torch.cuda.current_stream(self._device.where).record_event())

    def incoming(self, buffer: Any) -> tuple[Any, None]:
        """The tensor's own memory, promised."""
        return self.outgoing(buffer), None

    def numbers(self, buffer: Any) -> tuple[Any, Callable[[], None] | None]:
        """A copy on the host: vectors that are summed over ranks are short, and NaN must win over numbers."""
        return self._staged.numbers(buffer)

    def staged(self) -> StagedTensors:
        """The same through pinned host memory."""
        return self._staged

    def known(self, number: int) -> torch.Tensor:
        """Odd bytes: number, number + 7, number + 14, …"""
        return (torch.arange(TEST_SIZE, device=self._device.where) * 7 + number).to(torch.uint8)

    def unknown(self) -> torch.Tensor:
        """Bytes of zero."""
        return torch.zeros(TEST_SIZE, dtype=torch.uint8, device=self._device.where)

    def equal(self, a: torch.Tensor, b: torch.Tensor) -> bool:
        """Byte by byte."""
        return bool(torch.equal(a, b))


def tensor_transport(device: Device) -> HostTensors | DirectTensors:
    """What carries this device's tensors: a GPU's by its own memory, which is to be tested before it is relied on."""
    return DirectTensors(device) if device.is_gpu else HostTensors()
