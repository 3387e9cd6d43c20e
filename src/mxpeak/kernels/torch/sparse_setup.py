"""How sparse matrices come onto a device: the host makes rows, orders and chunks, and keeps none of what it stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mxpeak.kernels.contract.sparse import Order, Rows
from mxpeak.kernels.host.sparse import HostSparse
from mxpeak.kernels.host.sparse_native import LANES
from mxpeak.kernels.torch.device import TYPES, Device
from mxpeak.kernels.torch.replay import GraphRecorder, Replay
from mxpeak.kernels.torch.sparse_matrix import Tensor, TorchMatrix, entries_of, narrowed, pattern_of
from mxpeak.layout.stencil import Box


class SparseSetup:
    """All that happens before a solve: rows and orders stay NumPy's, all that solves touch is the device's."""

    def __init__(self, device: Device, host: HostSparse):
        self.device, self._host, self.threads = device, host, host.threads
        self._recorder = GraphRecorder(device) if device.is_gpu else None

    def stencil_rows(self, box: Box, weights: Sequence[float]) -> Rows:
        """See `kernels.sparse_contract`."""
        return self._host.stencil_rows(box, weights)

    def rows_of(self, indptr: Any, indices: Any, data: Any, n: int, halo: int) -> Rows:
        """See `kernels.sparse_contract`."""
        return self._host.rows_of(indptr, indices, data, n, halo)

    def check(self, rows: Rows) -> tuple[str, int]:
        """See `kernels.sparse_contract`."""
        return self._host.check(rows)

    def is_symmetric_pattern(self, rows: Rows) -> bool:
        """See `kernels.sparse_contract`."""
        return self._host.is_symmetric_pattern(rows)

    def with_symmetric_pattern(self, rows: Rows) -> Rows:
        """See `kernels.sparse_contract`."""
        return self._host.with_symmetric_pattern(rows)

    def order(self, rows: Rows, kind: str) -> Order:
        """See `kernels.sparse_contract`."""
        return self._host.order(rows, kind)

    def rounding(self, rows: Rows, precision: str) -> float:
        """See `kernels.sparse_contract`."""
        return self._host.rounding(rows, precision)

    def store(
        self, rows: Rows, order: Order, values: str, vectors: str, storage: str, like: TorchMatrix | None = None
    ) -> TorchMatrix:
        """See `kernels.sparse_contract`."""
        device = self.device
        if like is not None and (like.storage != storage or like.values not in (values, "fp64")):
            like = None
        stored = self._host.store(
            rows, order, values, vectors, storage, like=None if like is None else like.for_host(values)
        )
        if like is None:
            pattern, entries = pattern_of(device, stored.pattern, order), entries_of(device, stored)
        else:
            pattern = like.pattern
            entries = like.entries if like.values == values else narrowed(like.entries, values)
        return TorchMatrix(
            rows.n, rows.halo, stored.nnz, values, vectors, pattern, entries, device.tensor(stored.diagonal),
            device.tensor(stored.outside), Replay(self._recorder),
        )  # fmt: skip

    def row_sums(self, rows: Rows, order: Order) -> Tensor:
        """See `kernels.sparse_contract`."""
        return self.device.tensor(self._host.row_sums(rows, order))

    def indices(self, values: Sequence[int]) -> Tensor:
        """See `kernels.sparse_contract`."""
        return self.device.tensor(self._host.indices(values))

    def reordered(self, order: Order, numbers: Tensor) -> Tensor:
        """See `kernels.sparse_contract`."""
        return self.device.tensor(self._host.reordered(order, numbers.cpu().numpy()))

    def coarse_rows(self, order: Order, coarse: Order, box: Box) -> Tensor:
        """See `kernels.sparse_contract`."""
        return self.device.tensor(self._host.coarse_rows(order, coarse, box))

    def operand(self, A: TorchMatrix) -> Tensor:
        """See `kernels.sparse_contract`."""
        return self.device.zeros(A.n + A.halo + LANES, dtype=TYPES[A.vectors])

    def vector(self, n: int, precision: str) -> Tensor:
        """See `kernels.sparse_contract`."""
        return self.device.zeros(n, dtype=TYPES[precision])
