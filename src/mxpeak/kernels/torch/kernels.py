"""Implement `kernels.contract.Kernels` on the tensors of one torch device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from importlib import metadata
from typing import Any

import torch

from mxpeak.kernels.contract.dense import DenseKernels
from mxpeak.kernels.contract.lu import EmulatedProducts
from mxpeak.kernels.contract.norms import NormKernels
from mxpeak.kernels.contract.sparse import SparseKernels
from mxpeak.kernels.torch.dense.generated import TorchGenerated
from mxpeak.kernels.torch.engine import compile_ahead
from mxpeak.kernels.torch.engine.array_namespace import Namespace
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.lu.lu import TorchLu
from mxpeak.kernels.torch.lu.panel import Host


class TorchKernels(TorchLu, TorchGenerated):
    """The kernels of a torch device: library products and solves, and mxpeak's own kernels for everything else."""

    name = "torch"
    background = True

    def __init__(self, device: Device, host: Host, emulation: EmulatedProducts | None = None):
        super().__init__(device, host, emulation)
        self.xp = Namespace(device.where)
        if not device.is_gpu:
            torch.set_num_threads(host.threads)

    @cached_property
    def dense(self) -> DenseKernels:
        from mxpeak.kernels.torch.dense.dense import TorchDense

        return TorchDense(self.device, emulation=self.emulation)

    @cached_property
    def norms(self) -> NormKernels:
        from mxpeak.kernels.torch.norms.norms import TorchNorms

        return TorchNorms(self.device)

    @cached_property
    def sparse(self) -> SparseKernels:
        from mxpeak.kernels.torch.sparse.sparse import TorchSparse

        return TorchSparse(self.device, self.threads, lambda: self.host.sparse)

    @property
    def stopwatch(self) -> Device:
        return self.device

    def wait(self) -> None:
        self.device.wait()

    def side_stream(self, begun: Any = None) -> AbstractContextManager[None]:
        return self.device.side_stream(begun)

    def main_stream(self) -> AbstractContextManager[None]:
        return self.device.main_stream()

    def join(self) -> None:
        self.device.join()

    def rehearse(self, use: Callable[[], None], cores: Sequence[int]) -> None:
        if self.device.is_gpu and self.device.triton:
            compile_ahead.rehearse(use, cores)

    def facts(self) -> dict[str, Any]:
        facts = {"kernels": self.name, "torch": str(torch.__version__)}
        if self.device.triton:
            from mxpeak.kernels.torch.triton.cast import VERSION

            facts["triton"] = VERSION
        if not self.device.is_gpu:
            return facts | {"blas": None}
        platform = {"hip": torch.version.hip} if torch.version.hip else {"cuda": torch.version.cuda}
        return facts | platform | {"blas": _library_version()}

    def device_facts(self) -> dict[str, Any]:
        if not self.device.is_gpu:
            return {"device": str(self.device.where)}
        chip = self.device.chip
        return {
            "device": str(self.device.where),
            "device_bus": self.device.bus,
            "device_name": chip.name,
            "device_architecture": self.device.architecture,
            "device_multiprocessors": chip.multi_processor_count,
            "device_memory_bytes": chip.total_memory,
        }

    @property
    def transport(self) -> Any:
        from mxpeak.kernels.torch.engine.messages import tensor_transport

        return tensor_transport(self.device)


def _library_version() -> str:
    """Return the name and version of the BLAS that torch uses."""
    if torch.version.hip is not None:
        return f"rocBLAS of ROCm {torch.version.hip}"
    for package in ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12"):
        try:
            return f"cuBLAS {metadata.version(package)}"
        except metadata.PackageNotFoundError:
            continue
    return f"cuBLAS of CUDA {torch.version.cuda}"
