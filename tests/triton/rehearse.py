"""Rehearse a use of sparse kernels for a GPU that need not be there:  python -m tests.triton.rehearse

Tensors are the CPU's, which Triton takes as it takes a GPU's as long as nothing is launched.
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
    """What Triton asks of a driver before it launches."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def no_host() -> HostSparse:
    """Nothing here is left to the host."""
    raise AssertionError


def use() -> None:
    """Dot products, differences and a basis of two sizes."""
    kernels = TorchSparse(Device(torch.device("cpu"), triton=True), 1, no_host)
    x, y = torch.ones(128, dtype=torch.float64), torch.ones(128, dtype=torch.float64)
    kernels.dot(x, y)
    kernels.subtract_from(x, y)
    for most in (8, 16):
        kernels.project(kernels.basis(128, most, "fp64"), most, x)


def compiled(work: Any) -> list[str]:
    """The kernels that Triton compiles during some work."""
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
    """In place of Triton's compiler."""
    raise RuntimeError("no compiler today")


def unresolved() -> int:
    """Forms that kernels wait for."""
    from mxpeak.kernels.torch.triton import vectors

    kernels = (vectors.dot_kernel, vectors.subtract_kernel, vectors.basis_kernel)
    return sum(len(forms[0]) for kernel in kernels for forms in kernel.device_caches.values())


def again() -> None:
    """The use's launches, told apart from those of a rehearsal by whoever counts."""
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
