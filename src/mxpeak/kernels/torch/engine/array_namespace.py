"""torch as an array namespace whose new arrays lie on one device, and are fp64 where no type is named."""

from __future__ import annotations

from functools import partial
from typing import Any

import array_api_compat.torch as compat
import numpy as np
import torch

#: What makes new arrays, and those of them whose type no number tells.
MAKERS = ("arange", "empty", "eye", "linspace", "ones", "zeros")
FLOATING = ("empty", "eye", "linspace", "ones", "zeros")
#: Powers of two that bring every fp64 number to zero or beyond the range, and the largest that is a number itself.
FARTHEST, LARGEST = 2200, 1022


class Namespace:
    """The array API's functions on torch's tensors: `array_api_compat.torch`, with NumPy's defaults and a device."""

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
        """Numbers, an array or a tensor as a tensor on the device; Python's floats become fp64."""
        known = values if isinstance(values, torch.Tensor) else np.asarray(values)
        made: torch.Tensor = compat.asarray(known, dtype=dtype, device=self._device, copy=copy)
        return made

    def full(self, shape: Any, value: complex, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A new tensor, each entry of which is `value`; a Python float's type is fp64."""
        made: torch.Tensor = compat.full(shape, value, dtype=dtype or self.asarray(value).dtype, device=self._device)
        return made

    @staticmethod
    def ldexp(x: torch.Tensor, exponents: int | torch.Tensor) -> torch.Tensor:
        """x_i · 2^e_i in fp64, rounded once, whole numbers of any size: torch's own is neither.

        A power may be no number of its own: then in three factors, the largest last.  Where one before it rounds, what
        comes of the last is zero anyway.
        """
        if isinstance(exponents, int) and abs(exponents) <= LARGEST:
            return x * 2.0**exponents
        left = torch.as_tensor(exponents, dtype=torch.int64, device=x.device).clamp(-FARTHEST, FARTHEST)
        factors = []
        for _ in range(3):
            k = left.clamp(-LARGEST, LARGEST)
            factors.append(((k + 1023) << 52).view(torch.float64))
            left = left - k
        return x * factors[2] * factors[1] * factors[0]
