"""Build sparse matrices on a device: rows, orders and chunks.

The rows of a user's matrix are in host memory. The host orders these rows, and the device packs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mxpeak.kernels.contract.sparse import Order, Rows
from mxpeak.kernels.host.sparse.slot_sums import LANES
from mxpeak.kernels.torch.engine.array_namespace import Namespace
from mxpeak.kernels.torch.engine.cuda_graphs import GraphRecorder, Replay
from mxpeak.kernels.torch.engine.device import TYPES, Device
from mxpeak.kernels.torch.sparse import chunk_format
from mxpeak.kernels.torch.sparse import rows as sparse_rows
from mxpeak.kernels.torch.sparse.chunk_format import DeviceRows
from mxpeak.kernels.torch.sparse.matrix import PIECE, Tensor, TorchMatrix, narrowed
from mxpeak.kernels.torch.sparse.steps import pattern_of
from mxpeak.layout.stencil import Box
from mxpeak.precision import PRECISIONS

if TYPE_CHECKING:
    from mxpeak.kernels.host.sparse.sparse import HostSparse


class TorchSparseSetup:
    """The sparse operations before a solve; host kernels are created only for the rows of a user's matrix."""

    parts = 1
    chunk_rows = LANES

    def __init__(self, device: Device, threads: int, host: Callable[[], HostSparse]):
        self.device, self.threads, self._make_host = device, threads, host
        self.xp = Namespace(device.where)
        self._recorder = GraphRecorder(device) if device.is_gpu else None

    @cached_property
    def _host(self) -> HostSparse:
        """Return the host's kernels, which the first access creates."""
        return self._make_host()

    @property
    def stopwatch(self) -> Device:
        return self.device

    def stencil_rows(self, box: Box, weights: Sequence[float]) -> Rows:
        return sparse_rows.stencil_rows(self.device, box, weights)

    def rows_of(self, indptr: Any, indices: Any, data: Any, n: int, halo: int) -> Rows:
        return self._host.rows_of(indptr, indices, data, n, halo)

    def on_host(self, rows: Rows) -> Rows:
        if isinstance(rows.indptr, np.ndarray):
            return rows
        return Rows(rows.n, rows.halo, *(part.cpu().numpy() for part in (rows.indptr, rows.indices, rows.data)))

    def is_symmetric_pattern(self, rows: Rows) -> bool:
        return self._host.is_symmetric_pattern(self.on_host(rows))

    def with_symmetric_pattern(self, rows: Rows) -> Rows:
        return self._host.with_symmetric_pattern(self.on_host(rows))

    def order(self, rows: Rows, kind: str) -> Order:
        if isinstance(rows.indptr, np.ndarray):
            return self._host.order(rows, kind)
        return sparse_rows.order(self.device, rows, kind)

    def rounding(self, rows: Rows, precision: str) -> float:
        worst = self.device.zeros(1)
        data = self._here(rows.data)
        for k in range(0, len(data), PIECE):
            a = data[k : k + PIECE]
            error = (narrowed(a, precision).to(a.dtype) - a).abs() / a.abs()
            error = torch.where(a == 0.0, 0.0, error.nan_to_num(nan=torch.inf, posinf=torch.inf))
            worst = torch.maximum(worst, error.max())
        return float(worst)

    def store(
        self, rows: Rows, order: Order, values: str, vectors: str, storage: str, like: TorchMatrix | None = None
    ) -> TorchMatrix:
        device, nnz, real = self.device, len(rows.indices), TYPES[PRECISIONS[vectors].accumulate]
        here = self._ordered(rows, order)
        halo_rows, halo_first, halo, halo_entries = chunk_format.halo_of(here, real)
        if like is not None and like.storage == storage and like.values in (values, "fp64"):
            pattern, entries = like.pattern, narrowed(like.entries, values)
        else:
            packed = chunk_format.packed(here, order.starts, storage, values)
            pattern, entries = pattern_of(device, storage, here, packed, halo_rows, halo_first, halo), packed.entries
        diagonal = chunk_format.diagonal_of(here, real)
        replay = Replay(self._recorder)
        return TorchMatrix(rows.n, rows.halo, nnz, values, vectors, pattern, entries, diagonal, halo_entries, replay)

    def row_sums(self, rows: Rows, order: Order) -> Tensor:
        if isinstance(rows.indptr, np.ndarray):
            return self.device.tensor(self._host.row_sums(rows, order))
        sums = torch.segment_reduce(rows.data, "sum", lengths=rows.indptr.diff(), axis=0, unsafe=True)
        return sums[order.new_to_old]

    def _here(self, array: Any) -> Tensor:
        """Convert an array or a tensor to a tensor on the device.

        Read-only arrays are copied, because torch requires writable arrays.
        """
        return self.device.tensor(np.require(array, requirements="W") if isinstance(array, np.ndarray) else array)

    def _ordered(self, rows: Rows, order: Order) -> DeviceRows:
        """Copy the rows to the device, and return them in the new order."""
        parts = (self._here(part) for part in (rows.indptr, rows.indices, rows.data))
        new_to_old, old_to_new = self._here(order.new_to_old), self._here(order.old_to_new)
        return DeviceRows(Rows(rows.n, rows.halo, *parts), Order(new_to_old, old_to_new, order.starts, order.kind))
