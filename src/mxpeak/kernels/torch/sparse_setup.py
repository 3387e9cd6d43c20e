"""How sparse matrices come onto a device: the host makes rows, orders and chunks, and keeps none of what it stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mxpeak.kernels.contract.sparse import Order, Rows
from mxpeak.kernels.host.sparse import HostSparse
from mxpeak.kernels.host.sparse_matrix import Pattern
from mxpeak.kernels.torch.device import Device
from mxpeak.kernels.torch.namespace import Namespace
from mxpeak.kernels.torch.replay import GraphRecorder, Replay
from mxpeak.kernels.torch.sparse_matrix import Tensor, TorchMatrix, entries_of, narrowed, pattern_of
from mxpeak.layout.stencil import Box


class SparseSetup:
    """All that happens before a solve: rows and orders stay NumPy's, all that solves touch is the device's."""

    chunk_rows = HostSparse.chunk_rows

    def __init__(self, device: Device, host: HostSparse):
        self.device, self._host, self.threads = device, host, host.threads
        self.xp = Namespace(device.where)
        self._recorder = GraphRecorder(device) if device.is_gpu else None

    @property
    def stopwatch(self) -> Device:
        return self.device

    def stencil_rows(self, box: Box, weights: Sequence[float]) -> Rows:
        return self._host.stencil_rows(box, weights)

    def rows_of(self, indptr: Any, indices: Any, data: Any, n: int, halo: int) -> Rows:
        return self._host.rows_of(indptr, indices, data, n, halo)

    def is_symmetric_pattern(self, rows: Rows) -> bool:
        return self._host.is_symmetric_pattern(rows)

    def with_symmetric_pattern(self, rows: Rows) -> Rows:
        return self._host.with_symmetric_pattern(rows)

    def order(self, rows: Rows, kind: str) -> Order:
        return self._host.order(rows, kind)

    def rounding(self, rows: Rows, precision: str) -> float:
        return self._host.rounding(rows, precision)

    def store(
        self, rows: Rows, order: Order, values: str, vectors: str, storage: str, like: TorchMatrix | None = None
    ) -> TorchMatrix:
        device = self.device
        if like is not None and (like.storage != storage or like.values not in (values, "fp64")):
            like = None
        stored = self._host.store(
            rows, order, values, vectors, storage, like=None if like is None else like.for_host(values)
        )
        if like is None:
            assert isinstance(stored.pattern, Pattern), f"a device has no storage by {storage}"
            pattern, entries = pattern_of(device, stored.pattern, order), entries_of(device, stored)
        else:
            pattern = like.pattern
            entries = like.entries if like.values == values else narrowed(like.entries, values)
        return TorchMatrix(
            rows.n,
            rows.halo,
            stored.nnz,
            values,
            vectors,
            pattern,
            entries,
            device.tensor(stored.diagonal),
            device.tensor(stored.halo_entries),
            Replay(self._recorder),
        )

    def row_sums(self, rows: Rows, order: Order) -> Tensor:
        return self.device.tensor(self._host.row_sums(rows, order))
