"""Call sparse kernels of any backend with NumPy's arrays."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from mxpeak.kernels.host.engine.team import Team
from mxpeak.kernels.host.sparse.slot_sums import SUCCESSIVE
from mxpeak.kernels.host.sparse.sparse import HostSparse
from tests.support import backends
from tests.support.backends import TORCH, backend_named

#: The host with SUCCESSIVE rows in slices, instead of its own choice.
SLICES = "host in slices"
#: All kernels that are compared with the reference.
BACKENDS = (*backends.BACKENDS[1:], SLICES)


@cache
def sparse_kernels(name: str) -> Any:
    """Return the kernels of `reference` or of one of BACKENDS."""
    if name == SLICES:
        return HostSparse(Team(2), rows_at_a_time=SUCCESSIVE)
    kernels: Any = backend_named(name).kernels.sparse
    if isinstance(kernels, HostSparse):
        return HostSparse(Team(kernels.threads), rows_at_a_time=1)
    return OnArrays(kernels) if name in TORCH else kernels


class OnArrays:
    """Call kernels of tensors with arrays, which share the tensors' memory or are copied to a GPU and back."""

    def __init__(self, kernels: Any):
        self.kernels = kernels
        self._rows: list[tuple[Any, Any]] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.kernels, name)
        if not callable(method) or name in ("rows_of", "stencil_rows", "is_symmetric_pattern", "order"):
            return method

        def call(*args: Any, **named: Any) -> Any:
            sent: list[tuple[Any, Any]] = []
            tensors = [self._tensor(value, sent) for value in args]
            result = method(*tensors, **{key: self._tensor(value, sent) for key, value in named.items()})
            for _, copy in sent:
                copy.bring_back()
            return self._array(result)

        return call

    def _tensor(self, value: Any, sent: list[tuple[Any, Any]]) -> Any:
        """Return one tensor for each array of row numbers, because matrices compare these by identity."""
        from tests.support.torch_devices import ON_GPU, Copy, tensor

        if not isinstance(value, np.ndarray):
            return value
        if value.dtype.kind == "i":
            for array, rows in self._rows:
                if array is value:
                    return rows
            self._rows.append((value, tensor(value)))
            return self._rows[-1][1]
        if not ON_GPU:
            return tensor(value)
        for array, copy in sent:
            if array is value:  # an array that is passed twice becomes one tensor
                return copy.tensor
        sent.append((value, Copy(value)))
        return sent[-1][1].tensor

    def _array(self, result: Any) -> Any:
        import torch

        from tests.support.torch_devices import array_like

        return array_like(result) if isinstance(result, torch.Tensor) else result


#: Parametrize a test by all of BACKENDS.
every_backend = pytest.mark.parametrize("kernels", [sparse_kernels(name) for name in BACKENDS], ids=BACKENDS)
#: The host's kernels, which create rows and orders also for the torch backend.
HOSTS = [sparse_kernels(name) for name in BACKENDS[:2]]
every_host = pytest.mark.parametrize("host", HOSTS, ids=BACKENDS[:2])


def interpreted(kernels: Any) -> bool:
    """Return whether Triton's interpreter runs these kernels, in milliseconds per program."""
    return any(kernels is sparse_kernels(name) and backend_named(name).interpreted for name in TORCH)
