"""Convert arrays and tensors of users to tensors on their device, and back."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import from_dlpack as from_dlpack  # for modules that convert arrays of other libraries

from mxpeak.kernels.torch.engine.device import GPU, MPS, Device, open_device


def device_named(name: str) -> Device:
    """Open the GPU called cuda (torch's current GPU), cuda:N or mps, without changing the current GPU."""
    if name.partition(":")[0] == MPS:
        return _mps()
    if not torch.cuda.is_available():
        return open_device(name)  # raises with the reason
    current = torch.cuda.current_device()
    with torch.cuda.device(current):
        opened = open_device(f"{GPU}:{current}" if name == GPU else name)
    return device_at(str(opened.where))


@cache
def _mps() -> Device:
    return open_device(MPS)


@cache
def device_at(name: str) -> Device:
    """Return the device with this name; further calls return the same object."""
    where = torch.device(name)
    return Device(where, triton=where.type == GPU and find_spec("triton") is not None)


def strips(shape: Sequence[int], entries: int) -> Iterator[slice]:
    """Divide the rows of a matrix into strips of at most `entries` entries, and yield them as slices."""
    rows, columns = shape
    height = max(1, entries // max(columns, 1))
    for begin in range(0, rows, height):
        yield slice(begin, min(begin + height, rows))


def on_device(values: Any, device: Device, dtype: np.dtype[Any]) -> torch.Tensor:
    """Convert an array or a tensor to a tensor of this NumPy type on a device, without a copy if possible."""
    A = values.detach() if isinstance(values, torch.Tensor) else tensor_of(np.require(values, dtype, "A"))
    if A.device.type == MPS:  # MPS cannot convert to fp64
        A = A.cpu()
    return A.to(device=device.where, dtype=torch_type(dtype)).resolve_conj().resolve_neg()


def torch_type(dtype: np.dtype[Any]) -> torch.dtype:
    """Return the torch type with the name of a NumPy type."""
    named: torch.dtype = getattr(torch, dtype.name)
    return named


def array_of(A: torch.Tensor) -> Any:
    """Convert a tensor to a NumPy array, which shares the memory of the tensor if the tensor is on the CPU."""
    A = A.detach().cpu().resolve_conj().resolve_neg()
    if A.dtype == torch.bfloat16:
        return A.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return A.numpy()


def tensor_of(A: Any) -> torch.Tensor:
    """Convert an array to a tensor over the same memory, or to a copy if torch cannot represent the array.

    torch supports neither negative strides nor a foreign byte order. Inputs are never written to, so torch's warning
    about read-only arrays is suppressed.
    """
    if any(stride < 0 for stride in A.strides) or not A.dtype.isnative:
        A = np.array(A, A.dtype.newbyteorder("="))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        if A.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(A.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(A)
