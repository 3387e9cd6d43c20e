"""Implement `kernels.contract.sparse` on the tensors of a device.

With Triton, one kernel replaces several passes of torch operations. The modules `plain` and `triton.sparse` have the
same functions on matrices, and `vectors` and `triton.vectors` have the same functions on vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from mxpeak.errors import ResourceError
from mxpeak.kernels.contract.norms import Tile
from mxpeak.kernels.contract.sparse import Part
from mxpeak.kernels.host.sparse.chunk_format import BOTH, LOWER, UPPER
from mxpeak.kernels.host.sparse.slot_sums import LANES
from mxpeak.kernels.torch.engine.device import TYPES, Device
from mxpeak.kernels.torch.lu.blas import fp32_products
from mxpeak.kernels.torch.norms.norms import TorchNorms
from mxpeak.kernels.torch.sparse import plain
from mxpeak.kernels.torch.sparse import vectors as sparse_vectors
from mxpeak.kernels.torch.sparse.matrix import ResidualTask, SweepTask, Tensor, TorchMatrix
from mxpeak.kernels.torch.sparse.setup import TorchSparseSetup
from mxpeak.kernels.torch.sparse.steps import coarse_of
from mxpeak.layout.index_map import consecutive

if TYPE_CHECKING:
    from mxpeak.kernels.host.sparse.sparse import HostSparse

#: The stride of the vectors of a basis is a multiple of this number, so that each vector is aligned for vector loads.
APART = 64
#: Numbers per line in `read_values`.
READ = 4096


class TorchSparse(TorchSparseSetup):
    """The sparse operations of a device; the operations are queued, and only those that return a float wait."""

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
            reason = ". ".join(str(error).split(". ")[:2])
            raise ResourceError(
                f"{self.device.where} has no free memory left: {reason}; use a smaller restart, or use "
                'device="cpu" to solve on the host'
            ) from error

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

    def basis(self, n: int, count: int, precision: str) -> Tensor:
        stride = -(-n // APART) * APART + APART  # rarely a multiple of the period of the memory channels
        return self.device.zeros(count, stride, dtype=TYPES[precision])[:, :n]

    def project(self, Q: Tensor, k: int, w: Tensor) -> Tensor:
        return self._vectors.project(self.device, Q[:k], w)

    def subtract_and_project(self, Q: Tensor, k: int, w: Tensor, h: Tensor) -> Tensor:
        return self._vectors.subtract_and_project(self.device, Q[:k], w, h)

    def subtract_and_square(self, Q: Tensor, k: int, w: Tensor, h: Tensor) -> float:
        return float(self._vectors.subtract_and_square(self.device, Q[:k], w, h))

    def combine(self, Q: Tensor, y: Sequence[float] | Tensor, out: Tensor) -> None:
        narrow = Q.dtype.itemsize == 2
        factors = self.device.tensor(y, dtype=torch.float64 if narrow else Q.dtype)
        if narrow:  # torch would round the factors and the sums as well
            self._vectors.subtract(self.device, Q[: len(factors)], out.zero_(), -factors)
        else:
            out.copy_(torch.mv(Q[: len(factors)].t(), factors))

    def sweep_from_zero(
        self, A: TorchMatrix, b: Tensor, x: Tensor, *, keep: Tensor | None = None, part: Part = Part.ALL
    ) -> None:
        self._replay_sweep(A, SweepTask(A.pattern.from_zero[part], b, x, keep, LOWER))

    def sweep_forward(
        self, A: TorchMatrix, b: Tensor, x: Tensor, *, keep: Tensor | None = None, part: Part = Part.ALL
    ) -> None:
        if part != Part.BOUNDARY:
            self._replay_sweep(A, SweepTask(A.pattern.steps[Part.INTERIOR], b, x, keep, BOTH))
        if part != Part.INTERIOR and A.halo_nnz:
            self._replay_sweep(A, SweepTask(A.pattern.steps[Part.BOUNDARY], b, x, keep, BOTH), meets_halo=True)

    def sweep_backward(self, A: TorchMatrix, keep: Tensor, x: Tensor, *, part: Part = Part.ALL) -> None:
        self._replay_sweep(A, SweepTask(A.pattern.steps[part], keep, x, None, UPPER))

    def _replay_sweep(self, A: TorchMatrix, task: SweepTask, *, meets_halo: bool = False) -> None:
        """Run the steps of a sweep, or replay their graph; the sweep includes H x if `meets_halo`."""
        steps, b, x, keep, parts = task
        if steps.count:
            key = ("sweep", id(steps), meets_halo, parts, *_addresses(b, x, keep))
            A.replay(key, partial(self._sweep, A, task, meets_halo))

    def _sweep(self, A: TorchMatrix, task: SweepTask, meets_halo: bool) -> None:
        """Run the steps of a sweep; if `meets_halo`, compute H x first and include it."""
        Hx = None
        if meets_halo:
            if A.Hx is None:
                A.Hx = torch.zeros_like(A.diagonal)
            Hx = A.Hx
            self._sums.halo_product(self.device, A, task.x[A.n :], A.pattern.surface, Hx, keep=False, factor=1.0)
        self._sums.sweep(self.device, A, task, Hx)

    def matvec(self, y: Tensor, A: TorchMatrix, x: Tensor, *, part: Part = Part.ALL) -> None:
        if A.n and (A.halo_nnz or part != Part.BOUNDARY):
            A.replay(("matvec", part, *_addresses(x, y)), partial(self._matvec, y, A, x, part))

    def _matvec(self, y: Tensor, A: TorchMatrix, x: Tensor, part: Part) -> None:
        """Compute y = (L + D + U) x, add H x to y, or both, depending on `part`."""
        if part != Part.BOUNDARY:
            self._sums.multiply(self.device, A, x, y)
        if part != Part.INTERIOR and A.halo_nnz:
            self._sums.halo_product(self.device, A, x[A.n :], A.pattern.surface, y, keep=True, factor=1.0)

    def residual_at(
        self,
        A: TorchMatrix,
        b: Tensor,
        x: Tensor,
        rows: Tensor,
        r: Tensor,
        *,
        swept: bool = False,
        keep: Tensor | None = None,
        part: Part = Part.ALL,
    ) -> None:
        coarse = coarse_of(self.device, A, rows)
        parts = LOWER if keep is not None else UPPER if swept else BOTH
        if rows.numel() and (coarse.surface.numbers.numel() or part != Part.BOUNDARY):
            key = ("residual", id(coarse), parts, part, *_addresses(None if swept else b, x, keep, r))
            A.replay(key, partial(self._residual, A, ResidualTask(coarse, b, x, keep, r, parts), part))

    def _residual(self, A: TorchMatrix, task: ResidualTask, part: Part) -> None:
        """Compute a residual without H x, subtract H x from it, or both, depending on `part`."""
        surface = task.coarse.surface
        if part != Part.BOUNDARY:
            self._sums.residual(self.device, A, task)
        if part != Part.INTERIOR and surface.numbers.numel():
            self._sums.halo_product(self.device, A, task.x[A.n :], surface, task.r, keep=True, factor=-1.0)

    def read_values(self, A: TorchMatrix) -> int:
        words = A.entries.view(torch.float64)  # a slot of the narrowest values has eight words
        whole = words.numel() // READ * READ
        lines = words[:whole].view(-1, READ), words[whole:].view(1, -1)
        self._norms.read_all(
            [Tile(part, consecutive(part.shape[0]), consecutive(part.shape[1]), 0, 0) for part in lines if part.numel()]
        )
        return int(words.numel() * words.element_size())


def _forms(device: Device) -> tuple[Any, Any]:
    """Return the modules with matrix functions and with vector functions for this device."""
    if device.triton:
        from mxpeak.kernels.torch.triton import sparse, vectors

        return sparse, vectors
    return plain, sparse_vectors


def _addresses(*vectors: Tensor | None) -> tuple[int | None, ...]:
    """Return the addresses of vectors for the key of a graph, which depends only on these and on the matrix."""
    return tuple(None if vector is None else vector.data_ptr() for vector in vectors)
