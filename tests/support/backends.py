"""Provide the backends on which every kernel is tested, and convert arrays for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest

from mxpeak.kernels.contract import Kernels
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.kernels.reference.kernels import ReferenceKernels

ON_GPU = os.environ.get("TEST_DEVICE") == "cuda"
#: What `torch` has for an operation in both forms: torch's own operations, and Triton's kernels, which the CPU
#: interprets (milliseconds a program: sizes are small, but more than a tile).  TEST_DEVICE=cuda tests both on a GPU.
#: Without PyTorch, only the other backends are tested.
TORCH = {"torch": False, "torch with Triton": True} if find_spec("torch") else {}
#: The reference is what the others are compared with; it is held by definitions itself.  The host with 3 threads does
#: without the processor's own products of 16-bit operands, the one with 1 thread has them where there are any.
BACKENDS = ("reference", "host", "host with 3 threads", *TORCH)


@dataclass(frozen=True)
class Backend:
    """A backend whose new arrays are full of NaN: `kernels`, `kernels.norms`, `kernels.sparse`."""

    name: str
    kernels: Kernels

    @property
    def on_torch(self) -> bool:
        """Whether its arrays are tensors."""
        return self.name in TORCH

    @property
    def native(self) -> set[str]:
        """The precisions that this host's processor multiplies by itself."""
        return {engine.precision for engine in getattr(self.kernels, "engines", ())}

    @property
    def on_gpu(self) -> bool:
        """Whether its tensors lie on a GPU."""
        return self.on_torch and ON_GPU

    @property
    def interpreted(self) -> bool:
        """Whether Triton's interpreter runs its kernels: then cases are few and small."""
        return TORCH.get(self.name, False) and not ON_GPU

    def array(self, values: Any) -> Any:
        """A NumPy array as the backend's, with its strides; of the same memory unless that is a GPU's."""
        if not self.on_torch:
            return values
        from tests.support.torch_devices import tensor

        return tensor(values)

    def numpy(self, array: Any) -> Any:
        """The backend's array as NumPy's; of the same memory unless that is a GPU's."""
        if not self.on_torch:
            return array
        from tests.support import torch_devices

        return torch_devices.array(array)


@cache
def backend_named(name: str) -> Backend:
    """One of BACKENDS."""
    if name == "reference":
        return Backend(name, ReferenceKernels())
    host = HostKernels(1, poison=True) if "3 threads" not in name else HostKernels(3, poison=True, engines=())
    if name not in TORCH:
        return Backend(name, host)
    from mxpeak.kernels.torch.kernels import TorchKernels
    from tests.support.torch_devices import torch_device

    return Backend(name, TorchKernels(torch_device(triton=TORCH[name]), host))


def each(backend: Backend, monkeypatch: pytest.MonkeyPatch, choice: str, *values: str) -> Iterator[str]:
    """Torch with each of these choices of equal results in turn; the others as they are."""
    for value in values if backend.on_torch else ("",):
        if value:
            monkeypatch.setattr(backend.kernels, choice, value)
        yield value


def sizes(backend: Backend, *of_all: Any, interpreted: Any = ()) -> tuple[Any, ...]:
    """The sizes to be tested; of Triton's interpreter, which takes milliseconds a tile, only the chosen ones."""
    return interpreted if backend.interpreted and interpreted else of_all


def narrow(init: Any, width: int) -> Any:
    """Return a constructor of dense kernels on torch with panels of this width."""
    return lambda self, device, **options: init(self, device, width, **options)
