"""Adapt torch to the array API: new arrays are on one device and default to fp64."""

from __future__ import annotations

from functools import partial
from typing import Any

import array_api_compat.torch as compat
import numpy as np
import torch

#: Functions that make new arrays, and those that return fp64 unless a type is given.
MAKERS = ("arange", "empty", "eye", "linspace", "ones", "zeros")
FLOATING = ("empty", "eye", "linspace", "ones", "zeros")
#: The exponent beyond which 2^e scales every fp64 number to zero or infinity, and the largest |e| for which 2^e and
#: 2^-e are normal numbers.
FARTHEST, LARGEST = 2200, 1022


class Namespace:
    """The array API on torch tensors: `array_api_compat.torch` with NumPy's defaults on one device."""

    def __init__(self, device: torch.device):
        self._device = device

    def __getattr__(self, name: str) -> Any:
        function = getattr(compat, name)
        if name in MAKERS:
            function = partial(function, device=self._device)
        if name in FLOATING:
            function = partial(function, dtype=torch.float64)
        setattr(self, name, function)
        return function

    def asarray(self, values: Any, *, dtype: torch.dtype | None = None, copy: bool | None = None) -> torch.Tensor:
        """Convert numbers, an array or a tensor to a tensor on the device; Python floats become fp64."""
        array = values if isinstance(values, torch.Tensor) else np.asarray(values)
        tensor: torch.Tensor = compat.asarray(array, dtype=dtype, device=self._device, copy=copy)
        return tensor

    def full(self, shape: Any, value: complex, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return a new tensor filled with `value`; a Python float becomes fp64."""
        tensor: torch.Tensor = compat.full(shape, value, dtype=dtype or self.asarray(value).dtype, device=self._device)
        return tensor

    @staticmethod
    def ldexp(x: torch.Tensor, exponents: int | torch.Tensor) -> torch.Tensor:
        """Return x_i · 2^e_i in fp64, rounded once, for integers e_i of any size.

        torch.ldexp rounds twice and limits e. If 2^e is not finite, x is multiplied by three factors, the largest one
        last. If an earlier factor rounds, the final result is zero anyway.
        """
        if isinstance(exponents, int) and abs(exponents) <= LARGEST:
            return x * 2.0**exponents
        remaining = torch.as_tensor(exponents, dtype=torch.int64, device=x.device).clamp(-FARTHEST, FARTHEST)
        factors = []
        for _ in range(3):
            k = remaining.clamp(-LARGEST, LARGEST)
            factors.append(((k + 1023) << 52).view(torch.float64))
            remaining = remaining - k
        return x * factors[2] * factors[1] * factors[0]
