"""Where tensors live: one device, its two queues of work, its clock and its memory.

Work is begun in order and goes on in the background.  What is begun in the side stream may run at the same time as what
is begun after it: the critical path of an LU then hides under its update.
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

# Products and sums are contracted to FMAs unless a kernel asks otherwise; said aloud, for Triton warns where it is not.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import torch

#: The type of each precision that tensors have; tf32 is a way to multiply fp32 numbers.
TYPES: dict[str, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
}
#: A line of the device's memory in bytes, and the distances at which rows of a matrix, or of an operand, would fall
#: into the same channels of memory or the same sets of a cache.
LINE, FAR, NEAR = 128, 4096, 1024
#: The compute capabilities of NVIDIA's chips whose products in fp64 are as quick as those in fp32: A100, H100 and H200.
FAST_FP64 = ((8, 0), (9, 0))
#: CUDA and ROCm devices are both called cuda by torch.
GPU = "cuda"


@dataclass(slots=True, eq=False)
class Device:
    """A device that kernels compute on.

    triton    whether Triton kernels do what libraries lack; otherwise forms made of torch's own operations
    poison    whether new tensors are filled with NaN (tests)
    lag       how many steps of a computation may be under way at a time (`spans.Stopwatch`)
    """

    where: torch.device
    triton: bool
    poison: bool = False
    lag: int = 2
    _side: Any = field(default=None, repr=False)
    _main: Any = field(default=None, repr=False)

    def has(self, x: torch.Tensor) -> bool:
        """Whether a tensor is in its memory."""
        return bool(x.device == self.where)

    @property
    def is_gpu(self) -> bool:
        """Whether work goes on in the background."""
        return str(self.where.type) == GPU

    @property
    def chip(self) -> Any:
        """What torch knows of a GPU."""
        return torch.cuda.get_device_properties(self.where)

    def multiplies(self, precision: str) -> bool:
        """Whether a GPU's matrix units take numbers of this format, and there is a product that uses them."""
        if not self.is_gpu or (precision == "fp8" and not self.triton):
            return False
        if torch.version.hip is not None:
            # Before gfx950, AMD's FP8 is another format; and its library multiplies FP32 numbers in full only.
            return precision in ("fp16", "bf16") or (precision == "fp8" and "gfx95" in str(self.chip.gcnArchName))
        least = {"fp16": (7, 0), "bf16": (8, 0), "tf32": (8, 0), "fp8": (8, 9)}[precision]
        return (int(self.chip.major), int(self.chip.minor)) >= least

    @property
    def has_fast_fp64(self) -> bool:
        """Whether its products in fp64 are as quick as those in fp32; so they are on AMD's MI200 and MI300."""
        if not self.is_gpu:
            return False
        if torch.version.hip is not None:
            return str(self.chip.gcnArchName).startswith(("gfx90a", "gfx94"))
        return (int(self.chip.major), int(self.chip.minor)) in FAST_FP64

    # --- the order of work

    def wait(self) -> None:
        """Return once everything that was begun has ended."""
        if self.is_gpu:
            torch.cuda.synchronize(self.where)

    @contextmanager
    def side_stream(self, begun: Any = None) -> Iterator[None]:
        """What is begun inside runs together with what is begun outside later.

        It begins after the mark `begun` (None: after all that was begun before), and after what was begun inside.
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
        """Within the side stream: what is begun inside is begun outside of it."""
        if self._main is None:
            yield
            return
        with torch.cuda.stream(self._main):
            yield

    def join(self) -> None:
        """What is begun from here on begins after all that was begun in the side stream."""
        if self._side is not None:
            torch.cuda.current_stream(self.where).wait_stream(self._side)

    # --- its clock

    def mark(self) -> Any:
        """Now, in the order of the work."""
        if not self.is_gpu:
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.where))
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        """The time between two marks, once the later one is past."""
        if not self.is_gpu:
            return float(end - begin)
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    @property
    def bus(self) -> str:
        """A GPU's address on the PCI bus."""
        return _bus(self.chip)

    # --- its memory

    def memory(self) -> tuple[int, int]:
        """Bytes that a GPU has, and those that could be had now; of the host's others know."""
        if not self.is_gpu:
            return 2**63, 2**63
        free, total = torch.cuda.mem_get_info(self.where)
        cached = torch.cuda.memory_reserved(self.where) - torch.cuda.memory_allocated(self.where)
        return int(total), int(free + cached)

    # --- tensors

    def empty(self, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """A new tensor, uninitialised; full of NaN where poisoned, of ones in a rehearsal: nobody stops for these."""
        made = torch.empty(shape, dtype=dtype, device=self.where)
        if compile_ahead.is_rehearsing():
            made.fill_(1)
        elif self.poison and dtype.is_floating_point:
            made.view(torch.uint8).fill_(0xFF)  # NaN in every format
        return made

    def zeros(self, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """A new tensor of zeros."""
        return torch.zeros(shape, dtype=dtype, device=self.where)

    def tensor(self, values: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A few numbers, or a NumPy array, as a tensor here."""
        return torch.as_tensor(values, dtype=dtype).to(self.where)


def count() -> int:
    """How many GPUs torch can use."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def buses() -> list[str]:
    """Return the addresses on the PCI bus of the GPUs that torch can use, without opening them."""
    return [_bus(torch.cuda.get_device_properties(index)) for index in range(count())]


def _bus(chip: Any) -> str:
    return f"{chip.pci_domain_id:04x}:{chip.pci_bus_id:02x}:{chip.pci_device_id:02x}.0"


def open_device(name: str, number: int = 0) -> Device:
    """The device called `name`: cpu, cuda (of several, that of this number), cuda:0 …

    A machine without it, or a driver that does not fit, is an error that says what is there.
    """
    if name == "cpu":
        return Device(torch.device("cpu"), triton=False)
    found = count()
    if not found:
        raise ResourceError(f"device {name} is not available: {_why_none()}, or use the device cpu")
    index = number % found if name == GPU else int(name.split(":")[1])
    if index >= found:
        there = "cuda:0" if found == 1 else f"cuda:0 to cuda:{found - 1}"
        raise ResourceError(
            f"device {name} does not exist, because this machine has {found} GPU{'s' * (found > 1)}; use {there}"
        )
    where = torch.device(GPU, index)
    torch.cuda.set_device(where)
    return Device(where, triton=find_spec("triton") is not None)


def name_of(name: str) -> str:
    """What the GPU called `name` is called by its vendor, without opening it; the first one of several."""
    index = 0 if name == GPU else int(name.split(":")[1])
    return str(torch.cuda.get_device_properties(index).name) if index < count() else ""


def _why_none() -> str:
    """Why torch sees no GPU."""
    if torch.version.cuda is None and torch.version.hip is None:
        return (
            f"torch {torch.__version__} is a build for CPUs only; run {install_command('gpu')} to install a "
            "build for CUDA or ROCm"
        )
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:  # a driver that is missing, or too old for this torch
        return " ".join(str(error).split())
    return "torch finds no GPU; check CUDA_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES"
