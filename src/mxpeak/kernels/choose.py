"""Which backend computes, and on which device."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxpeak.configs.run import BACKENDS
from mxpeak.errors import ResourceError, UsageError
from mxpeak.installation import install_command
from mxpeak.kernels.contract import DenseKernels, Kernels, NormKernels, SparseKernels

if TYPE_CHECKING:
    from mxpeak.kernels.host.sparse.sparse import HostSparse

#: The name of the device when each rank uses one GPU of its node.
GPUS = "cuda"
#: Where drivers of NVIDIA's and AMD's GPUs show themselves.
DRIVERS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd", "/proc/driver/nvidia")


def resolve(name: str, device: str) -> tuple[str, str]:
    """The kernels and the device that are meant where either is `auto`; decided before any timing.

    The device is a GPU where there is one that torch can use; the kernels are those that are fastest there.
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
    """Whether a GPU's driver is there."""
    return any(Path(path).exists() for path in DRIVERS)


@cache
def has_gpu() -> bool:
    """Whether there is a GPU that torch can use; where no driver is, torch is not even imported."""
    if not gpu_driver() or find_spec("torch") is None:
        return False
    from mxpeak.kernels.torch.engine.device import count

    return count() > 0


def gpu_count(device: str) -> int:
    """How many GPUs the ranks of a host may take: all for `cuda`, one for `cuda:N`."""
    open_device(device)  # says why, where there is none
    from mxpeak.kernels.torch.engine.device import count

    return count() if device == GPUS else 1


def gpu_buses(device: str) -> list[str]:
    """Return the PCI addresses of the GPUs that ranks choose from; none if there are none, or one is named."""
    if device != GPUS or not has_gpu():
        return []
    from mxpeak.kernels.torch.engine.device import buses

    return buses()


def open_device(device: str, number: int = 0) -> Any:
    """The torch device called cpu, cuda or cuda:N; of several GPUs that of this number."""
    if find_spec("torch") is None:
        what, instead = (
            (f"device {device}", "--device cpu") if device != "cpu" else ("--kernels torch", "--kernels host")
        )
        raise ResourceError(f"{what} needs PyTorch, which is not installed; run {install_command('gpu')}, or {instead}")
    from mxpeak.kernels.torch.engine import device as devices

    return devices.open_device(device, number)


def chip_name(device: str) -> str:
    """What a GPU is called; empty where there is none, of which others speak.

    It is not opened: each rank opens its own, and some systems let only one process open a GPU.
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
) -> Kernels:
    """The backend `name` on `device`, both as `resolve` gives them.

    `threads` of the host compute, thread t on core cores[t] if there are any, `alone` if no other rank does.
    `number`: which of several GPUs.
    `native`: the precisions that are multiplied by the processor's matrix instructions; None: all that it supports.
    `panels`: whether a device will leave panels to the host, so that what factors them is compiled now.
    """
    if name == "reference":
        from mxpeak.kernels.reference.kernels import ReferenceKernels

        return ReferenceKernels()
    if name == "host":
        from mxpeak.kernels.host.engine.matrix_engines import chosen
        from mxpeak.kernels.host.kernels import HostKernels

        units = [unit for unit in chosen() if native is None or unit.precision in native]
        return HostKernels(threads, cores, alone=alone, units=units)
    where = open_device(device, number)
    from mxpeak.kernels.host.lu.cpu_assist import HostPanelService
    from mxpeak.kernels.torch.kernels import TorchKernels

    return TorchKernels(where, HostPanelService(threads, cores, alone=alone, panels=panels))


def dense(device: Any) -> DenseKernels:
    """The dense kernels of a `kernels.torch.device.Device`, or of the host (None) on BLAS's own threads."""
    if device is None:
        from mxpeak.kernels.host.dense.dense import HostDense

        return HostDense()
    from mxpeak.kernels.torch.dense.dense import TorchDense

    return TorchDense(device)


def sparse(device: Any, threads: int, *, own: bool = False) -> SparseKernels:
    """The sparse kernels of a `kernels.torch.device.Device`, or of the host (None) on threads that callers share.

    own     on threads of the caller's own: for callers that compute at the same time
    """
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
def host_norms(threads: int) -> NormKernels:
    """The norm kernels on so many threads of the host."""
    from mxpeak.kernels.host.engine.team import Team
    from mxpeak.kernels.host.norms.norms import HostNorms

    return HostNorms(Team(threads))


def device_norms(devices: Sequence[Any]) -> NormKernels:
    """The norm kernels of torch devices: of several, each goes over the tiles on it, and vectors lie on the first."""
    from mxpeak.kernels.torch.norms.devices import SeveralNorms
    from mxpeak.kernels.torch.norms.norms import TorchNorms

    return TorchNorms(devices[0]) if len(devices) == 1 else SeveralNorms(devices)


def device_failure(error: BaseException) -> str | None:
    """What happened to a device, if that is what an error tells: it ran out of memory, or is gone."""
    text = " ".join(str(error).split())
    if type(error).__name__ == "OutOfMemoryError":
        return f"the device ran out of memory: {text}; use a smaller problem, or a smaller --mem"
    if isinstance(error, RuntimeError) and re.search(r"\b(CUDA|HIP|NCCL|RCCL|CUBLAS|cuBLAS|CUSOLVER|cusolver)\b", text):
        return f"the device failed: {text}; see the system's log (dmesg) and nvidia-smi or rocm-smi, and run again"
    return None
