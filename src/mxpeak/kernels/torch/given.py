"""What a user hands in as a tensor: its device, and the same numbers as an array of the same memory."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

import ml_dtypes
import numpy as np
import torch

from mxpeak.kernels.torch.device import GPU, Device, open_device


def device_named(name: str) -> Device:
    """The GPU called cuda (torch's current one), or cuda:N; the current one stays what it is."""
    if not torch.cuda.is_available():
        return open_device(name)  # says why there is none
    current = torch.cuda.current_device()
    with torch.cuda.device(current):
        opened = open_device(f"{GPU}:{current}" if name == GPU else name)
    return device_at(str(opened.where))


@cache
def device_at(place: str) -> Device:
    """The device called cpu, cuda:0 … on which tensors lie, made once."""
    where = torch.device(place)
    return Device(where, triton=where.type == GPU and find_spec("triton") is not None)


def plain(A: torch.Tensor) -> torch.Tensor:
    """The numbers as they lie in memory: no gradient asked for, and nothing to be conjugated or negated on reading.

    A conjugate view is conjugated back, which costs nothing: only absolute values are taken of such entries.
    """
    A = A.detach().resolve_neg()
    return A.conj() if A.is_conj() else A


def array_of(A: torch.Tensor) -> Any:
    """A tensor on the CPU as an array of the same memory."""
    if A.dtype == torch.bfloat16:
        return A.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return A.numpy()


def tensor_of(A: Any) -> torch.Tensor:
    """An array as a tensor, of the same memory where torch can have it: not with negative strides."""
    A = A if all(stride >= 0 for stride in A.strides) and A.flags.writeable else np.array(A)
    if A.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(A.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(A)
