"""Tensors from outside: the device that they lie on, and arrays of the same memory."""

from __future__ import annotations

import warnings
from functools import cache
from importlib.util import find_spec
from typing import Any

import ml_dtypes
import numpy as np
import torch

from mxpeak.kernels.torch.engine.device import GPU, Device, open_device


def device_named(name: str) -> Device:
    """The GPU called cuda (torch's current one), or cuda:N; the current one stays what it is."""
    if not torch.cuda.is_available():
        return open_device(name)  # says why there is none
    current = torch.cuda.current_device()
    with torch.cuda.device(current):
        opened = open_device(f"{GPU}:{current}" if name == GPU else name)
    return device_at(str(opened.where))


@cache
def device_at(name: str) -> Device:
    """The device called cpu, cuda:0 … on which tensors lie, opened once."""
    where = torch.device(name)
    return Device(where, triton=where.type == GPU and find_spec("triton") is not None)


def plain(A: torch.Tensor) -> torch.Tensor:
    """The absolute values as they lie in memory: without gradient, and nothing to conjugate or negate on reading.

    A conjugate view is conjugated back, which costs nothing: only absolute values are taken of such entries.
    """
    A = A.detach().resolve_neg()
    return A.conj() if A.is_conj() else A


def on_device(values: Any, device: Device, dtype: np.dtype[Any]) -> torch.Tensor:
    """An array or a tensor as a tensor on a device, of the type that NumPy calls so; copied only where it must be."""
    A = values.detach() if isinstance(values, torch.Tensor) else tensor_of(np.require(values, dtype, "A"))
    return A.to(device=device.where, dtype=torch_type(dtype)).resolve_conj().resolve_neg()


def torch_type(dtype: np.dtype[Any]) -> torch.dtype:
    """The type of this name."""
    found: torch.dtype = getattr(torch, dtype.name)
    return found


def array_of(A: torch.Tensor) -> Any:
    """A tensor as an array: on the CPU of the same memory, from a GPU a copy."""
    A = A.detach().cpu().resolve_conj().resolve_neg()
    if A.dtype == torch.bfloat16:
        return A.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return A.numpy()


def tensor_of(A: Any) -> torch.Tensor:
    """An array as a tensor, of the same memory where torch can have it: not with negative strides or foreign bytes.

    Nothing here writes to an input, so torch need not warn of arrays that are read-only.
    """
    if any(stride < 0 for stride in A.strides) or not A.dtype.isnative:
        A = np.array(A, A.dtype.newbyteorder("="))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        if A.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(A.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(A)
