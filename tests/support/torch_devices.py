"""Select the device of the torch backend, the CPU or a GPU by TEST_DEVICE=cuda, and convert arrays for it.

On the CPU, a tensor shares an array's memory. A GPU gets a copy with the array's strides and alignment, between NaN.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch

from mxpeak.kernels.torch.engine.device import GPU, Device
from mxpeak.kernels.torch.engine.tensors import array_of, tensor_of

ON_GPU = os.environ.get("TEST_DEVICE") == GPU
WHERE = torch.device(GPU, 0) if ON_GPU else torch.device("cpu")
#: The forms of every kernel: without and with Triton, which a CPU interprets.
FORMS = {"torch's operations": False, "Triton's kernels": True}
#: Bytes of NaN on either side of a copy; a multiple of every alignment that kernels check.
MARGIN = 1024


def torch_device(triton: bool = False) -> Device:
    """Return the tested device, which fills new tensors with NaN."""
    if triton and not ON_GPU:
        from tests.support.interpreter import hasten

        hasten()
    return Device(WHERE, triton=triton, poison=True)


def tensor(A: Any) -> torch.Tensor:
    """Return an array as a tensor on the device."""
    return tensor_of(A) if WHERE.type == "cpu" else Copy(A).tensor


def array(x: Any) -> Any:
    """Return a tensor as an array, which shares its memory on the CPU; return an array without a change."""
    return array_of(x.cpu()) if isinstance(x, torch.Tensor) else x


def array_like(x: torch.Tensor) -> Any:
    """Return a tensor as an array with the tensor's strides."""
    if x.is_contiguous() or WHERE.type == "cpu":
        return array(x)
    room = array(x.as_strided((extent(x),), (1,)))
    return np.lib.stride_tricks.as_strided(room, x.shape, [stride * room.itemsize for stride in x.stride()])


def extent(x: torch.Tensor) -> int:
    """Return the number of entries of memory that a tensor spans."""
    return 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride())) if x.numel() else 0


class Copy:
    """A copy of an array on the device, between NaN."""

    def __init__(self, A: Any):
        here = tensor_of(A)
        size, margin = extent(here), MARGIN // here.itemsize
        first = margin + A.ctypes.data % MARGIN // here.itemsize
        self._array, self._end = A, first + size
        fill = torch.nan if here.is_floating_point() or here.is_complex() else 0
        self.room = torch.full((self._end + margin,), fill, dtype=here.dtype, device=WHERE)
        self.room[first : self._end] = here.as_strided((size,), (1,)).to(WHERE)
        self.tensor = self.room[first:].as_strided(here.shape, here.stride())
        self._before = self.room[:first]

    def bring_back(self) -> None:
        """Copy the result to the array, and check that the memory around it is unchanged."""
        assert self._before.isnan().all()
        assert self.room[self._end :].isnan().all()
        self._array[...] = array(self.tensor)
