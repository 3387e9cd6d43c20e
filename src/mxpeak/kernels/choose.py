"""Choose the backend that computes, and the device on which it runs."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mxpeak.configs.run import BACKENDS
from mxpeak.errors import ResourceError, UsageError
from mxpeak.installation import install_command
from mxpeak.kernels.contract import DenseKernels, Kernels, NormKernels, SparseKernels
from mxpeak.kernels.contract.lu import EmulatedProducts

if TYPE_CHECKING:
    from mxpeak.kernels.host.sparse.sparse import HostSparse
    from mxpeak.kernels.synchronous import Synchronous

AnyHost = TypeVar("AnyHost", bound="Synchronous")

#: The name of the device when each rank uses one GPU of its node.
GPUS = "cuda"
#: Files that exist if a driver of NVIDIA or AMD GPUs is loaded.
DRIVERS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd", "/proc/driver/nvidia")


def resolve(name: str, device: str) -> tuple[str, str]:
    """Resolve `auto` kernels and an `auto` device to names, before any timing starts.

    For an `auto` device, the result is a GPU if torch can use one. For `auto` kernels, the result is the fastest
    backend for the device.
    """
    if name not in BACKENDS:
        raise UsageError(f"unknown kernels {name!r}; use one of {', '.join(BACKENDS)}")
    if device == "auto":
        device = "cuda" if name in ("auto", "torch") and has_gpu() else "cpu"
    if name == "auto":
        name = "host" if device == "cpu" else "torch"
    if name != "torch" and device != "cpu":
        raise UsageError(f"--kernels {name} supports only the CPU, not --device {device}; use --kernels torch")
    return name, device


def gpu_driver() -> bool:
    """Return whether a GPU driver is loaded on this host."""
    return any(Path(path).exists() for path in DRIVERS)


@cache
def has_gpu() -> bool:
    """Return whether torch can use a GPU. If no GPU driver is loaded, torch is not imported."""
    if not gpu_driver() or find_spec("torch") is None:
        return False
    from mxpeak.kernels.torch.engine.device import count

    return count() > 0


def gpu_count(device: str) -> int:
    """Return the number of GPUs that the ranks of a host may use: all GPUs for `cuda`, one for `cuda:N`.

    The function opens the device, and raises an error if it does not exist.
    """
    open_device(device)  # raises an error with the reason if there is none
    from mxpeak.kernels.torch.engine.device import count

    return count() if device == GPUS else 1


def gpu_buses(device: str) -> list[str]:
    """Return the PCI addresses of the GPUs that ranks can choose from.

    The list is empty if the host has no GPUs, or if `device` names one GPU.
    """
    if device != GPUS or not has_gpu():
        return []
    from mxpeak.kernels.torch.engine.device import buses

    return buses()


def open_device(device: str, number: int = 0) -> Any:
    """Open the torch device cpu, cuda or cuda:N; `number` selects one of several GPUs.

    The function raises ResourceError if PyTorch is not installed.
    """
    if find_spec("torch") is None:
        what, instead = (
            (f"device {device}", "--device cpu") if device != "cpu" else ("--kernels torch", "--kernels host")
        )
        raise ResourceError(f"{what} needs PyTorch, which is not installed; run {install_command('gpu')}, or {instead}")
    from mxpeak.kernels.torch.engine import device as devices

    return devices.open_device(device, number)


def chip_name(device: str) -> str:
    """Return the name of the GPU, or "" if torch can use none, without opening the GPU.

    Each rank opens its own GPU later, and some systems let only one process open a GPU.
    """
    if not has_gpu():
        return ""
    from mxpeak.kernels.torch.engine.device import name_of

    return name_of(device)


def choose(
    name: str,
    device: str,
    threads: int,
    cores: Sequence[int] = (),
    number: int = 0,
    native: Collection[str] | None = None,
    *,
    alone: bool = False,
    panels: bool = False,
    emulated: bool = False,
) -> Kernels:
    """Create the backend `name` on `device`. Both are names that `resolve` returned.

    threads   threads on the host; thread t runs on core cores[t] if cores are given
    alone     whether no other rank uses these cores
    number    index of the GPU if there are several
    native    precisions that use the processor's matrix instructions; None: all precisions that these support
    panels    whether to compile the host's panel kernels now, because the host factors the panels of a device
    emulated  whether products of fp64 matrices are emulated
    """
    if name == "reference":
        from mxpeak.kernels.reference.kernels import ReferenceKernels

        return _emulating(ReferenceKernels()) if emulated else ReferenceKernels()
    if name == "host":
        from mxpeak.kernels.host.engine.matrix_engines import chosen
        from mxpeak.kernels.host.kernels import HostKernels

        engines = [engine for engine in chosen() if native is None or engine.precision in native]
        kernels = HostKernels(threads, cores, alone=alone, engines=engines)
        return _emulating(kernels) if emulated else kernels
    where = open_device(device, number)
    from mxpeak.kernels.host.lu.cpu_assist import HostPanelService
    from mxpeak.kernels.torch.kernels import TorchKernels
    from mxpeak.kernels.torch.lu.emulated_products import emulated_products

    host = HostPanelService(threads, cores, alone=alone, panels=panels)
    return TorchKernels(where, host, emulated_products(where) if emulated else None)


def _emulating(kernels: AnyHost) -> AnyHost:
    """Return the kernels with emulated products of fp64 matrices."""
    from mxpeak.kernels.residue_products import ResidueProducts

    kernels.emulation = ResidueProducts(kernels.subtract_emulated_product)
    return kernels


def select_blas(kernels: str, blas: str) -> None:
    """Select the BLAS library of the host kernels, also for the panels that the host factors for a device."""
    if kernels == "reference":
        if blas != "scipy":
            raise UsageError(f"--kernels reference computes without BLAS; remove --blas {blas}, or use --kernels host")
        return
    from mxpeak.kernels.host.engine.blas import select

    select(blas)


def dense(device: Any, *, emulated: bool = False) -> DenseKernels:
    """Return the dense kernels of a `kernels.torch.engine.device.Device`, or those of the host if `device` is None.

    The dense kernels of the host use BLAS's threads. If `emulated`, products of fp64 matrices in an LU are emulated.
    """
    if device is None:
        from mxpeak.kernels.host.dense.dense import HostDense

        return HostDense(_host_emulation() if emulated else None)
    from mxpeak.kernels.torch.dense.dense import TorchDense
    from mxpeak.kernels.torch.lu.emulated_products import emulated_products

    if device.without_fp64 is not None:
        from mxpeak.kernels.torch.dense.without_fp64 import DenseWithoutFp64

        return DenseWithoutFp64(device)
    return TorchDense(device, emulation=emulated_products(device) if emulated else None)


def _host_emulation() -> EmulatedProducts | None:
    """Return the host's emulated products on as many threads as BLAS has, with their own counts and memory."""
    from mxpeak.kernels.host.engine.blas import one_thread, own_threads
    from mxpeak.kernels.host.kernels import HostKernels

    with one_thread():
        return _emulating(HostKernels(own_threads(), engines=())).emulation


def sparse(device: Any, threads: int, *, own: bool = False, parts: int = 1) -> SparseKernels:
    """Return the sparse kernels of a `kernels.torch.engine.device.Device`, or those of the host if `device` is None.

    own     whether the kernels get their own threads, because several callers compute at the same time
    parts   real values per number: 1, or 2 for the complex kernels, which only the host has
    """
    if parts == 2:
        assert device is None, "complex kernels compute on the host"
        return (_host_complex_sparse.__wrapped__ if own else _host_complex_sparse)(threads)
    make = _host_sparse.__wrapped__ if own else _host_sparse
    if device is None:
        return make(threads)
    from mxpeak.kernels.torch.sparse.sparse import TorchSparse

    return TorchSparse(device, threads, partial(make, threads))


@cache
def _host_sparse(threads: int) -> HostSparse:
    from mxpeak.kernels.host.engine.team import Team
    from mxpeak.kernels.host.sparse.sparse import HostSparse

    return HostSparse(Team(threads))


@cache
def _host_complex_sparse(threads: int) -> SparseKernels:
    from mxpeak.kernels.host.engine.team import Team
    from mxpeak.kernels.host.sparse.complex_sparse import HostComplexSparse

    return HostComplexSparse(Team(threads))


@cache
def host_norms(threads: int) -> NormKernels:
    """Return the host's norm kernels, which run on `threads` threads."""
    from mxpeak.kernels.host.engine.team import Team
    from mxpeak.kernels.host.norms.norms import HostNorms

    return HostNorms(Team(threads))


def device_norms(devices: Sequence[Any]) -> NormKernels:
    """Return norm kernels that run on several torch devices.

    Each device reads the tiles in its own memory. The vectors are in the memory of the first device.
    """
    from mxpeak.kernels.torch.norms.norms import TorchNorms

    return TorchNorms(*devices)


def device_failure(error: BaseException) -> str | None:
    """Return an error message if `error` means that a device ran out of memory or failed, otherwise None."""
    text = " ".join(str(error).split())
    if type(error).__name__ == "OutOfMemoryError":
        return f"the device ran out of memory: {text}; use a smaller problem, or a smaller --mem"
    if isinstance(error, RuntimeError) and re.search(r"\b(CUDA|HIP|NCCL|RCCL|CUBLAS|cuBLAS|CUSOLVER|cusolver)\b", text):
        return f"the device failed: {text}; see the system's log (dmesg) and nvidia-smi or rocm-smi, and run again"
    return None


def can_emulate_fp64(device: Any) -> bool:
    """Return whether products of fp64 matrices can be emulated on a `kernels.torch.engine.device.Device`."""
    from mxpeak.kernels.torch.lu.emulated_products import emulated_products

    try:
        emulated_products(device)
    except ResourceError:
        return False
    return True
