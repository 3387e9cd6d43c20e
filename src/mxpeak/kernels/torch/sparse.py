"""The sparse kernels of torch devices: `kernels.sparse_contract` on tensors.

What takes several passes by torch's operations is one Triton kernel where there is Triton: two modules with the same
functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from mxpeak.kernels.contract.norms import Tile
from mxpeak.kernels.host.sparse import HostSparse
from mxpeak.kernels.host.sparse_sweep import BOTH, LOWER, UPPER
from mxpeak.kernels.torch import sparse_plain, sparse_vectors
from mxpeak.kernels.torch.device import TYPES, Device
from mxpeak.kernels.torch.norms import TorchNorms
from mxpeak.kernels.torch.sparse_matrix import Coarse, Steps, Tensor, TorchMatrix, coarse_of
from mxpeak.kernels.torch.sparse_setup import SparseSetup
from mxpeak.layout.index_map import consecutive

#: Entries of a vector of a basis are a multiple of so many apart, so that each begins with whole vector loads.
APART = 64
#: Numbers of a line as the values are read for nothing.
READ = 4096


class TorchSparse(SparseSetup):
    """Operations begin here and go on in the background; one that returns a float waits for it."""

    def __init__(self, device: Device, host: HostSparse):
        super().__init__(device, host)
        self._sums, self._vectors = _forms(device)
        self._norms = TorchNorms(device)

    # --- vectors

    def own(self, A: TorchMatrix, x: Tensor) -> Tensor:
        """See `kernels.sparse_contract`."""
        return x[: A.n]

    def halo(self, A: TorchMatrix, x: Tensor) -> Tensor:
        """See `kernels.sparse_contract`."""
        return x[A.n : A.n + A.halo]

    def assign(self, x: Tensor, values: Any) -> None:
        """See `kernels.sparse_contract`."""
        if isinstance(values, (int, float)):
            x.fill_(values)
        else:
            x.copy_(values if isinstance(values, torch.Tensor) else torch.from_numpy(np.array(values)))

    def take(self, x: Tensor, places: Tensor, out: Tensor) -> None:
        """See `kernels.sparse_contract`."""
        torch.index_select(x, 0, places, out=out)

    def add_at(self, x: Tensor, places: Tensor, y: Tensor) -> None:
        """See `kernels.sparse_contract`."""
        self._vectors.add_at(self.device, x, places, y)

    def dot(self, x: Tensor, y: Tensor) -> float:
        """See `kernels.sparse_contract`."""
        return float(self._vectors.dot(self.device, x, y))

    def scaled(self, x: Tensor, factor: float, out: Tensor) -> None:
        """See `kernels.sparse_contract`."""
        if out.dtype.itemsize > x.dtype.itemsize:
            torch.mul(out.copy_(x), factor, out=out)
        else:
            torch.mul(x, factor, out=out)

    def add_scaled(self, y: Tensor, factor: float, x: Tensor) -> None:
        """See `kernels.sparse_contract`."""
        y.add_(x, alpha=factor)

    def scale_and_add(self, y: Tensor, factor: float, x: Tensor) -> None:
        """See `kernels.sparse_contract`."""
        torch.add(x, y, alpha=factor, out=y)

    def subtract_from(self, b: Tensor, y: Tensor) -> float:
        """See `kernels.sparse_contract`."""
        return float(self._vectors.subtract_from(self.device, b, y))

    def distance(self, x: Tensor, value: float) -> float:
        """See `kernels.sparse_contract`."""
        return float((x - value).abs().max()) if x.numel() else 0.0

    # --- bases

    def basis(self, n: int, most: int, precision: str) -> Tensor:
        """See `kernels.sparse_contract`."""
        room = -(-n // APART) * APART + APART  # rarely a multiple of what memory channels repeat after
        return self.device.zeros(most, room, dtype=TYPES[precision])[:, :n]

    def member(self, Q: Tensor, k: int) -> Tensor:
        """See `kernels.sparse_contract`."""
        return Q[k]

    def project(self, Q: Tensor, k: int, w: Tensor) -> Tensor:
        """See `kernels.sparse_contract`."""
        found: Tensor = self._vectors.project(self.device, Q[:k], w)
        return found

    def subtract_and_project(self, Q: Tensor, k: int, w: Tensor, h: Tensor) -> Tensor:
        """See `kernels.sparse_contract`."""
        found: Tensor = self._vectors.subtract_and_project(self.device, Q[:k], w, h)
        return found

    def subtract_and_square(self, Q: Tensor, k: int, w: Tensor, h: Tensor) -> float:
        """See `kernels.sparse_contract`."""
        return float(self._vectors.subtract_and_square(self.device, Q[:k], w, h))

    def combine(self, Q: Tensor, y: Sequence[float] | Tensor, out: Tensor) -> None:
        """See `kernels.sparse_contract`."""
        factors = self.device.tensor(y, dtype=Q.dtype)
        out.copy_(torch.mv(Q[: len(factors)].t(), factors))

    # --- the matrix

    def relax(
        self, A: TorchMatrix, b: Tensor, x: Tensor, *, late: bool | None = None, from_zero: bool = False,
        backward: bool = False, keep: Tensor | None = None,
    ) -> None:  # fmt: skip
        """See `kernels.sparse_contract`."""
        pattern, kept_for_b = A.pattern, backward and keep is not None
        halves: list[tuple[Steps, bool]]
        if from_zero or not A.foreign:  # nothing to wait for: the early half is all of it
            halves = [] if late else [(pattern.every, False)]
        elif backward:  # no row can be early: its late neighbours come first
            halves = [] if late is False else [(pattern.every, not kept_for_b)]
        else:
            both = [(pattern.early, False), (pattern.late, True)]
            halves = both if late is None else [both[late]]
        parts = UPPER if kept_for_b else LOWER if from_zero else BOTH
        given, kept = (keep, None) if kept_for_b else (b, keep)
        for steps, meets_halo in halves:
            if steps.count:
                key = ("relax", id(steps), meets_halo, parts, backward, *_addresses(given, x, kept))
                A.replay(key, partial(self._sweep, A, steps, given, x, kept, parts, meets_halo, backward))

    def _sweep(
        self, A: TorchMatrix, steps: Steps, b: Tensor, x: Tensor, keep: Tensor | None, parts: int, meets_halo: bool,
        backward: bool,
    ) -> None:  # fmt: skip
        """The groups of some steps, one after the other."""
        from_outside = None
        if meets_halo:
            if A.from_outside is None:
                A.from_outside = torch.zeros_like(A.diagonal)
            from_outside = A.from_outside
            self._sums.outside(self.device, A, self.halo(A, x), A.pattern.surface, from_outside, keep=False, factor=1.0)
        self._sums.sweep(self.device, A, steps, b, from_outside, x, keep, parts, backward=backward)

    def multiply(self, A: TorchMatrix, x: Tensor, y: Tensor, *, outside: bool | None = None) -> None:
        """See `kernels.sparse_contract`."""
        if A.n and (A.foreign or outside is not True):
            A.replay(("multiply", outside, *_addresses(x, y)), partial(self._multiply, A, x, y, outside))

    def _multiply(self, A: TorchMatrix, x: Tensor, y: Tensor, outside: bool | None) -> None:
        if outside is not True:
            self._sums.multiply(self.device, A, x, y)
        if outside is not False and A.foreign:
            self._sums.outside(self.device, A, self.halo(A, x), A.pattern.surface, y, keep=True, factor=1.0)

    def residual_at(
        self, A: TorchMatrix, b: Tensor, x: Tensor, rows: Tensor, r: Tensor, *, swept: bool,
        outside: bool | None = None,
    ) -> None:  # fmt: skip
        """See `kernels.sparse_contract`."""
        coarse = coarse_of(self.device, A, rows)
        if rows.numel() and (coarse.surface.numbers.numel() or outside is not True):
            key = ("residual", id(coarse), swept, outside, *_addresses(None if swept else b, x, r))
            A.replay(key, partial(self._residual, A, coarse, b, x, r, UPPER if swept else BOTH, outside))

    def _residual(
        self, A: TorchMatrix, coarse: Coarse, b: Tensor, x: Tensor, r: Tensor, parts: int, outside: bool | None
    ) -> None:
        if outside is not True:
            self._sums.residual(self.device, A, coarse, b, x, r, parts)
        if outside is not False and coarse.surface.numbers.numel():
            self._sums.outside(self.device, A, self.halo(A, x), coarse.surface, r, keep=True, factor=-1.0)

    def read_all(self, A: TorchMatrix) -> int:
        """See `kernels.sparse_contract`."""
        words = A.entries.view(torch.float64)  # a slot of the narrowest values is eight of them
        whole = words.numel() // READ * READ
        lines = words[:whole].view(-1, READ), words[whole:].view(1, -1)
        self._norms.read_all(
            [Tile(part, consecutive(part.shape[0]), consecutive(part.shape[1]), 0, 0) for part in lines if part.numel()]
        )
        return int(words.numel() * words.element_size())


def _forms(device: Device) -> tuple[Any, Any]:
    """The functions on matrices and those on vectors that this device takes."""
    if device.triton:
        from mxpeak.kernels.torch.triton import sparse, vectors

        return sparse, vectors
    return sparse_plain, sparse_vectors


def _addresses(*vectors: Tensor | None) -> tuple[int | None, ...]:
    """Where vectors begin: with the matrix, all that a graph depends on."""
    return tuple(None if one is None else one.data_ptr() for one in vectors)
