"""The sparse kernels of torch devices: `kernels.contract.sparse` on tensors.

What takes several passes by torch's operations is one Triton kernel where there is Triton: two modules with the same
functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from mxpeak.errors import ResourceError
from mxpeak.kernels.contract.norms import Tile
from mxpeak.kernels.host.sparse.gs_colored import BOTH, LOWER, UPPER, parts_of_sweep
from mxpeak.kernels.host.sparse.slot_sums import LANES
from mxpeak.kernels.torch.engine.device import TYPES, Device
from mxpeak.kernels.torch.lu.blas import fp32_products
from mxpeak.kernels.torch.norms.norms import TorchNorms
from mxpeak.kernels.torch.sparse import plain
from mxpeak.kernels.torch.sparse import vectors as sparse_vectors
from mxpeak.kernels.torch.sparse.matrix import Coarse, Steps, Tensor, TorchMatrix
from mxpeak.kernels.torch.sparse.setup import SparseSetup
from mxpeak.kernels.torch.sparse.steps import coarse_of
from mxpeak.layout.index_map import consecutive

if TYPE_CHECKING:
    from mxpeak.kernels.host.sparse.sparse import HostSparse

#: Entries of a vector of a basis are a multiple of so many apart, so that each begins with whole vector loads.
APART = 64
#: Numbers of a line as the values are read for nothing.
READ = 4096


class TorchSparse(SparseSetup):
    """Operations begin here and go on in the background; one that returns a float waits for it."""

    def __init__(self, device: Device, threads: int, host: Callable[[], HostSparse]):
        super().__init__(device, threads, host)
        self._sums, self._vectors = _forms(device)
        self._norms = TorchNorms(device)

    @contextmanager
    def computing(self) -> Iterator[None]:
        here = torch.cuda.device(self.device.where) if self.device.is_gpu else nullcontext()
        try:
            with fp32_products("ieee"), here:
                yield
        except torch.OutOfMemoryError as error:
            said = ". ".join(str(error).split(". ")[:2])
            raise ResourceError(
                f"{self.device.where} has no free memory left: {said}; use a smaller restart, or use "
                'device="cpu" to solve on the host'
            ) from error

    # --- vectors

    def halo_vector(self, A: TorchMatrix) -> Tensor:
        return self.device.zeros(A.n + A.halo + LANES, dtype=TYPES[A.vectors])

    def gather(self, x: Tensor, rows: Tensor, out: Tensor) -> None:
        torch.index_select(x, 0, rows, out=out)

    def scatter_add(self, x: Tensor, rows: Tensor, y: Tensor) -> None:
        self._vectors.scatter_add(self.device, x, rows, y)

    def dot(self, x: Tensor, y: Tensor) -> float:
        return float(self._vectors.dot(self.device, x, y))

    def scale(self, y: Tensor, factor: float, x: Tensor) -> None:
        if y.dtype.itemsize > x.dtype.itemsize:
            torch.mul(y.copy_(x), factor, out=y)
        else:
            torch.mul(x, factor, out=y)

    def add_scaled(self, y: Tensor, factor: float, x: Tensor) -> None:
        y.add_(x, alpha=factor)

    def scale_and_add(self, y: Tensor, factor: float, x: Tensor) -> None:
        torch.add(x, y, alpha=factor, out=y)

    def subtract_from(self, y: Tensor, b: Tensor) -> float:
        return float(self._vectors.subtract_from(self.device, y, b))

    # --- bases

    def basis(self, n: int, most: int, precision: str) -> Tensor:
        apart = -(-n // APART) * APART + APART  # rarely a multiple of what memory channels repeat after
        return self.device.zeros(most, apart, dtype=TYPES[precision])[:, :n]

    def project(self, Q: Tensor, k: int, w: Tensor) -> Tensor:
        found: Tensor = self._vectors.project(self.device, Q[:k], w)
        return found

    def subtract_and_project(self, Q: Tensor, k: int, w: Tensor, h: Tensor) -> Tensor:
        found: Tensor = self._vectors.subtract_and_project(self.device, Q[:k], w, h)
        return found

    def subtract_and_square(self, Q: Tensor, k: int, w: Tensor, h: Tensor) -> float:
        return float(self._vectors.subtract_and_square(self.device, Q[:k], w, h))

    def combine(self, Q: Tensor, y: Sequence[float] | Tensor, out: Tensor) -> None:
        factors = self.device.tensor(y, dtype=Q.dtype)
        out.copy_(torch.mv(Q[: len(factors)].t(), factors))

    # --- the matrix

    def relax(
        self,
        A: TorchMatrix,
        b: Tensor,
        x: Tensor,
        *,
        halo: bool | None = None,
        from_zero: bool = False,
        backward: bool = False,
        keep: Tensor | None = None,
    ) -> None:
        pattern, kept_for_b = A.pattern, backward and keep is not None
        beside = A.halo_nnz > 0
        halves = parts_of_sweep(pattern, halo, beside=beside, from_zero=from_zero, backward=backward, keep=keep)
        parts = UPPER if kept_for_b else LOWER if from_zero else BOTH
        right_side, kept = (keep, None) if kept_for_b else (b, keep)
        for steps, meets_halo in halves:
            if steps.count:
                key = ("relax", id(steps), meets_halo, parts, backward, *_addresses(right_side, x, kept))
                work = partial(self._sweep, A, steps, right_side, x, kept, parts, meets_halo, backward)
                A.replay(key, work)

    def _sweep(
        self,
        A: TorchMatrix,
        steps: Steps,
        b: Tensor,
        x: Tensor,
        keep: Tensor | None,
        parts: int,
        meets_halo: bool,
        backward: bool,
    ) -> None:
        """The groups of some steps, one after the other."""
        Hx = None
        if meets_halo:
            if A.Hx is None:
                A.Hx = torch.zeros_like(A.diagonal)
            Hx = A.Hx
            self._sums.halo_product(self.device, A, x[A.n :], A.pattern.surface, Hx, keep=False, factor=1.0)
        self._sums.sweep(self.device, A, steps, b, Hx, x, keep, parts, backward=backward)

    def matvec(self, y: Tensor, A: TorchMatrix, x: Tensor, *, halo: bool | None = None) -> None:
        if A.n and (A.halo_nnz or halo is not True):
            A.replay(("matvec", halo, *_addresses(x, y)), partial(self._matvec, y, A, x, halo))

    def _matvec(self, y: Tensor, A: TorchMatrix, x: Tensor, halo: bool | None) -> None:
        if halo is not True:
            self._sums.multiply(self.device, A, x, y)
        if halo is not False and A.halo_nnz:
            self._sums.halo_product(self.device, A, x[A.n :], A.pattern.surface, y, keep=True, factor=1.0)

    def residual_at(
        self,
        A: TorchMatrix,
        b: Tensor,
        x: Tensor,
        rows: Tensor,
        r: Tensor,
        *,
        halo: bool | None = None,
        swept: bool = False,
        keep: Tensor | None = None,
    ) -> None:
        coarse = coarse_of(self.device, A, rows)
        parts = LOWER if keep is not None else UPPER if swept else BOTH
        if rows.numel() and (coarse.surface.numbers.numel() or halo is not True):
            key = ("residual", id(coarse), parts, halo, *_addresses(None if swept else b, x, keep, r))
            A.replay(key, partial(self._residual, A, coarse, b, x, keep, r, parts, halo))

    def _residual(
        self,
        A: TorchMatrix,
        coarse: Coarse,
        b: Tensor,
        x: Tensor,
        keep: Tensor | None,
        r: Tensor,
        parts: int,
        halo: bool | None,
    ) -> None:
        if halo is not True:
            self._sums.residual(self.device, A, coarse, b, x, keep, r, parts)
        if halo is not False and coarse.surface.numbers.numel():
            self._sums.halo_product(self.device, A, x[A.n :], coarse.surface, r, keep=True, factor=-1.0)

    def read_values(self, A: TorchMatrix) -> int:
        words = A.entries.view(torch.float64)  # a slot of the narrowest values is eight of them
        whole = words.numel() // READ * READ
        lines = words[:whole].view(-1, READ), words[whole:].view(1, -1)
        self._norms.read_all(
            [Tile(part, consecutive(part.shape[0]), consecutive(part.shape[1]), 0, 0) for part in lines if part.numel()]
        )
        return int(words.numel() * words.element_size())


def _forms(device: Device) -> tuple[Any, Any]:
    """The functions on matrices and those on vectors that this device runs."""
    if device.triton:
        from mxpeak.kernels.torch.triton import sparse, vectors

        return sparse, vectors
    return plain, sparse_vectors


def _addresses(*vectors: Tensor | None) -> tuple[int | None, ...]:
    """Where vectors begin: with the matrix, all that a graph depends on."""
    return tuple(None if one is None else one.data_ptr() for one in vectors)
