"""Manage one device: its tensors, its two streams, its clock and its memory.

Work is asynchronous and ordered within a stream. Work in the side stream may overlap work that is started later in the
main stream; this hides the critical path of an LU behind its update.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from time import perf_counter
from typing import Any

from mxpeak.errors import ResourceError
from mxpeak.installation import install_command
from mxpeak.kernels.torch.engine import compile_ahead

# Products and sums are contracted to FMAs unless a kernel disables this. The variable is set explicitly, because
# Triton prints a warning if it is missing.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import torch

#: The torch type of each precision; tf32 is a way to multiply fp32 numbers.
TYPES: dict[str, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
}
#: Size of a cache line in bytes, and the row strides at which rows of a matrix, or of an operand, would map to the
#: same memory channels or cache sets.
LINE, FAR, NEAR = 128, 4096, 1024
#: Compute capabilities of NVIDIA GPUs whose fp64 products are as fast as fp32: A100, H100 and H200.
FAST_FP64 = ((8, 0), (9, 0))
#: torch calls both CUDA and ROCm devices cuda, and Apple's GPUs, which have no fp64, mps.
GPU, MPS = "cuda", "mps"


@dataclass(slots=True, eq=False)
class Device:
    """A CPU or GPU that kernels compute on.

    triton        whether Triton kernels are available; otherwise torch operations replace them
    poison        whether new tensors are filled with NaN, for tests
    lag           the number of steps of a computation that may be in flight (`spans.Stopwatch`)
    without_fp64  an accelerator without fp64 that helps this CPU; None if there is none
    """

    where: torch.device
    triton: bool
    poison: bool = False
    lag: int = 2
    without_fp64: torch.device | None = None
    _side: Any = field(default=None, repr=False)
    _main: Any = field(default=None, repr=False)

    def has(self, x: torch.Tensor) -> bool:
        """Return whether a tensor is in this device's memory."""
        return bool(x.device == self.where)

    @property
    def is_gpu(self) -> bool:
        """Return whether the device is a GPU. Work on a GPU is asynchronous."""
        return str(self.where.type) == GPU

    @property
    def chip(self) -> Any:
        """Return torch's properties of the GPU."""
        return torch.cuda.get_device_properties(self.where)

    @property
    def architecture(self) -> str:
        """Return the architecture of the GPU, such as sm_90 or gfx942, or an empty string for the host."""
        if not self.is_gpu:
            return ""
        return str(self.chip.gcnArchName) if torch.version.hip else f"sm_{self.chip.major}{self.chip.minor}"

    def multiplies(self, precision: str) -> bool:
        """Return whether the GPU has matrix units for this precision, and a product that uses them is available."""
        if not self.is_gpu or (precision == "fp8" and not self.triton):
            return False
        if torch.version.hip is not None:
            # Before gfx950, AMD's FP8 is a different format, and its library has no TF32.
            return precision in ("fp16", "bf16") or (precision == "fp8" and "gfx95" in str(self.chip.gcnArchName))
        least = {"fp16": (7, 0), "bf16": (8, 0), "tf32": (8, 0), "fp8": (8, 9)}[precision]
        return (int(self.chip.major), int(self.chip.minor)) >= least

    @property
    def has_fast_fp64(self) -> bool:
        """Return whether fp64 products are as fast as fp32 products; this includes AMD's MI200 and MI300."""
        if not self.is_gpu:
            return False
        if torch.version.hip is not None:
            return str(self.chip.gcnArchName).startswith(("gfx90a", "gfx94"))
        return (int(self.chip.major), int(self.chip.minor)) in FAST_FP64

    def wait(self) -> None:
        """Wait until all work that was started on the device has finished."""
        if self.is_gpu:
            torch.cuda.synchronize(self.where)

    @contextmanager
    def side_stream(self, begun: Any = None) -> Iterator[None]:
        """Return a context that starts its work in the side stream, where it overlaps later work of the main stream.

        The work starts after the time stamp `begun`, or after all work started so far if `begun` is None. It also
        starts after earlier work in the side stream.
        """
        if not self.is_gpu:
            yield
            return
        if self._side is None:
            self._side = torch.cuda.Stream(self.where, priority=-1)
        self._side.wait_event(self.mark() if begun is None else begun)
        self._main = torch.cuda.current_stream(self.where)
        try:
            with torch.cuda.stream(self._side):
                yield
        finally:
            self._main = None

    @contextmanager
    def main_stream(self) -> Iterator[None]:
        """Return a context that starts its work in the main stream, for use inside a `side_stream` context."""
        if self._main is None:
            yield
            return
        with torch.cuda.stream(self._main):
            yield

    def join(self) -> None:
        """Make later work in the current stream wait for all work in the side stream."""
        if self._side is not None:
            torch.cuda.current_stream(self.where).wait_stream(self._side)

    def mark(self) -> Any:
        """Return a time stamp: the current time on a CPU, or an event recorded in the current stream of a GPU."""
        if not self.is_gpu:
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.where))
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the time between two time stamps, in seconds, after waiting for the later one."""
        if not self.is_gpu:
            return float(end - begin)
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    @property
    def bus(self) -> str:
        """Return the GPU's address on the PCI bus."""
        return _bus(self.chip)

    def memory(self) -> tuple[int, int]:
        """Return the total and the available memory of the GPU in bytes; on a CPU, return 2^63 for both."""
        if not self.is_gpu:
            return 2**63, 2**63
        free, total = torch.cuda.mem_get_info(self.where)
        cached = torch.cuda.memory_reserved(self.where) - torch.cuda.memory_allocated(self.where)
        return int(total), int(free + cached)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """Return an uninitialized tensor, filled with NaN if `poison` is set.

        During a rehearsal, the tensor is filled with ones, so that no loop stops early.
        """
        tensor = torch.empty(shape, dtype=dtype, device=self.where)
        if compile_ahead.is_rehearsing():
            tensor.fill_(1)
        elif self.poison and dtype.is_floating_point:
            tensor.view(torch.uint8).fill_(0xFF)  # NaN in every format
        return tensor

    def zeros(self, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """Return a new tensor of zeros."""
        return torch.zeros(shape, dtype=dtype, device=self.where)

    def tensor(self, values: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Convert numbers or a NumPy array to a tensor on this device."""
        return torch.as_tensor(values, dtype=dtype).to(self.where)


def count() -> int:
    """Return the number of GPUs that torch can use."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def buses() -> list[str]:
    """Return the PCI bus addresses of the GPUs that torch can use, without opening the GPUs."""
    return [_bus(torch.cuda.get_device_properties(index)) for index in range(count())]


def _bus(chip: Any) -> str:
    return f"{chip.pci_domain_id:04x}:{chip.pci_bus_id:02x}:{chip.pci_device_id:02x}.0"


def open_device(name: str, number: int = 0) -> Device:
    """Open the device called `name` (cpu, mps, cuda or cuda:N); a GPU of CUDA also becomes torch's current GPU.

    The name cuda selects the GPU `number` modulo the number of GPUs. Raises ResourceError with the available devices
    if there is no device with this name or its driver is not compatible.
    """
    if name == "cpu":
        return Device(torch.device("cpu"), triton=False)
    if name == MPS:
        if not torch.backends.mps.is_available():
            raise ResourceError("device mps is not available: torch finds no GPU of Apple; use the device cpu")
        return Device(torch.device("cpu"), triton=False, without_fp64=torch.device(MPS, 0))
    gpus = count()
    if not gpus:
        raise ResourceError(f"device {name} is not available: {_why_none()}, or use the device cpu")
    index = number % gpus if name == GPU else int(name.split(":")[1])
    if index >= gpus:
        there = "cuda:0" if gpus == 1 else f"cuda:0 to cuda:{gpus - 1}"
        raise ResourceError(
            f"device {name} does not exist, because this machine has {gpus} GPU{'s' * (gpus > 1)}; use {there}"
        )
    where = torch.device(GPU, index)
    torch.cuda.set_device(where)
    return Device(where, triton=find_spec("triton") is not None)


def name_of(name: str) -> str:
    """Return the vendor's name of the GPU `name` without opening it, or an empty string if there is no such GPU.

    The name `cuda` means the first GPU.
    """
    index = 0 if name == GPU else int(name.split(":")[1])
    return str(torch.cuda.get_device_properties(index).name) if index < count() else ""


def _why_none() -> str:
    """Return the reason why torch finds no GPU."""
    if torch.version.cuda is None and torch.version.hip is None:
        return (
            f"torch {torch.__version__} is a build for CPUs only; run {install_command('gpu')} to install a "
            "build for CUDA or ROCm"
        )
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:  # the driver is missing, or too old for this torch
        return " ".join(str(error).split())
    return "torch finds no GPU; check CUDA_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES"
