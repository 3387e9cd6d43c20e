"""Rehearse a use of sparse kernels for a GPU that need not be present:  python -m tests.triton.rehearse

Tensors are in host memory, which Triton treats like that of a GPU as long as no kernel is launched.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import torch
import triton
from triton.backends.compiler import GPUTarget

from mxpeak.kernels.torch.engine import compile_ahead
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.sparse.sparse import TorchSparse

if TYPE_CHECKING:
    from mxpeak.kernels.host.sparse.sparse import HostSparse


class H100:
    """A driver with the functions that Triton calls before a launch."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def no_host() -> HostSparse:
    """Fail, because no operation here uses the host kernels."""
    raise AssertionError


def use() -> None:
    """Compute dot products, a difference and projections with bases of two sizes."""
    kernels = TorchSparse(Device(torch.device("cpu"), triton=True), 1, no_host)
    x, y = torch.ones(128, dtype=torch.float64), torch.ones(128, dtype=torch.float64)
    kernels.dot(x, y)
    kernels.subtract_from(x, y)
    for most in (8, 16):
        kernels.project(kernels.basis(128, most, "fp64"), most, x)


def compiled(work: Any) -> list[str]:
    """Return the kernels that Triton compiles during a function."""
    names: list[str] = []

    def hear(*, fn: Any, **report: Any) -> None:
        names.append(fn.name)

    triton.knobs.runtime.jit_post_compile_hook = hear
    try:
        work()
    finally:
        triton.knobs.runtime.jit_post_compile_hook = None
    return sorted(names)


def failing(*args: Any, **options: Any) -> None:
    """Raise an error instead of Triton's compiler."""
    raise RuntimeError("no compiler today")


def unresolved() -> int:
    """Return the forms for which kernels wait."""
    from mxpeak.kernels.torch.triton import vectors

    kernels = (vectors.dot_kernel, vectors.subtract_kernel, vectors.basis_kernel)
    return sum(len(forms[0]) for kernel in kernels for forms in kernel.device_caches.values())


def again() -> None:
    """Rehearse the same launches under another name, so that they can be counted separately."""
    with compile_ahead.rehearsal():
        use()


if __name__ == "__main__":
    triton.runtime.driver.set_active(H100())
    report: dict[str, Any] = {}
    real = triton.compiler.compile
    triton.compiler.compile = failing
    compile_ahead.rehearse(use, [])
    report["left behind by a compiler that fails"] = unresolved()
    triton.compiler.compile = real
    report["ahead"] = compiled(lambda: compile_ahead.rehearse(use, []))
    report["after it"] = compiled(again)
    json.dump(report, sys.stdout)
