"""torch as an array namespace whose new arrays lie on one device."""

from __future__ import annotations

from functools import partial
from typing import Any

import array_api_compat.torch as compat
import torch

#: What makes arrays out of nothing, or of Python's numbers.
MAKERS = ("arange", "asarray", "empty", "eye", "full", "linspace", "ones", "zeros")


class Namespace:
    """The array API's functions on torch's tensors: `array_api_compat.torch`, with a device of its own for new ones."""

    def __init__(self, device: torch.device):
        self._device = device

    def __getattr__(self, name: str) -> Any:
        function = getattr(compat, name)
        if name in MAKERS:
            function = partial(function, device=self._device)
        setattr(self, name, function)
        return function
