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
#: Both forms of the torch backend: torch's own operations, and Triton's kernels. The CPU interprets the latter in
#: milliseconds per program, so that sizes are small, but more than one tile. TEST_DEVICE=cuda tests both on a GPU.
#: Without PyTorch, only the other backends are tested.
TORCH = {"torch": False, "torch with Triton": True} if find_spec("torch") else {}
#: The other backends are compared with the reference, and the reference with definitions. The host with 3 threads does
#: not use the processor's matrix engine for 16-bit operands; the host with 1 thread uses it if there is one.
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
        """The precisions for which this host's processor has a matrix engine."""
        return {engine.precision for engine in getattr(self.kernels, "engines", ())}

    @property
    def on_gpu(self) -> bool:
        """Whether its tensors are on a GPU."""
        return self.on_torch and ON_GPU

    @property
    def interpreted(self) -> bool:
        """Whether Triton's interpreter runs its kernels; tests then use few and small cases."""
        return TORCH.get(self.name, False) and not ON_GPU

    def array(self, values: Any) -> Any:
        """Convert a NumPy array to the backend's with the same strides, without a copy unless it goes to a GPU."""
        if not self.on_torch:
            return values
        from tests.support.torch_devices import tensor

        return tensor(values)

    def numpy(self, array: Any) -> Any:
        """Convert the backend's array to NumPy's, without a copy unless it is on a GPU."""
        if not self.on_torch:
            return array
        from tests.support import torch_devices

        return torch_devices.array(array)


@cache
def backend_named(name: str) -> Backend:
    """Return one of BACKENDS."""
    if name == "reference":
        return Backend(name, ReferenceKernels())
    host = HostKernels(1, poison=True) if "3 threads" not in name else HostKernels(3, poison=True, engines=())
    if name not in TORCH:
        return Backend(name, host)
    from mxpeak.kernels.torch.kernels import TorchKernels
    from tests.support.torch_devices import torch_device

    return Backend(name, TorchKernels(torch_device(triton=TORCH[name]), host))


def each(backend: Backend, monkeypatch: pytest.MonkeyPatch, choice: str, *values: str) -> Iterator[str]:
    """Set an attribute of the torch backend to each of these values, which give equal results; keep other backends."""
    for value in values if backend.on_torch else ("",):
        if value:
            monkeypatch.setattr(backend.kernels, choice, value)
        yield value


def sizes(backend: Backend, *of_all: Any, interpreted: Any = ()) -> tuple[Any, ...]:
    """Return the sizes to test; only `interpreted` for Triton's interpreter, which needs milliseconds per tile."""
    return interpreted if backend.interpreted and interpreted else of_all


def narrow(init: Any, width: int) -> Any:
    """Return a constructor of dense kernels on torch with panels of this width."""
    return lambda self, device, **options: init(self, device, width, **options)
