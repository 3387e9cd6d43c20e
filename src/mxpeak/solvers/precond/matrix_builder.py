"""Store the matrices of a preconditioner and order their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mxpeak.distributed.rank_group import SERIAL, RankGroup
from mxpeak.distributed.rows import Array
from mxpeak.distributed.sparse import SparseMatrix
from mxpeak.errors import ResourceError
from mxpeak.kernels.contract.sparse import Indices, Order, Rows, SparseKernels, Stored, natural_kind
from mxpeak.perf.host import available_memory_bytes
from mxpeak.records import size_text
from mxpeak.spans import Spans

#: Bytes per entry while a pattern is completed to a symmetric one, and bytes of an explicit column index.
FILLING_BYTES, COLUMN_BYTES = 48, 4


class MatrixBuilder:
    """Stores matrices and orders their rows for one choice of kernels, smoother and storage."""

    def __init__(self, kernels: SparseKernels, smoother: str, storage: str, spans: Spans):
        self.kernels, self.spans = kernels, spans
        self.storage = "rows" if (storage, smoother, kernels.device) == ("auto", "natural", None) else storage
        natural = natural_kind(self.storage, on_device=kernels.device is not None)
        self._kind = "greedy" if smoother == "coloured" else natural
        self._points: dict[int, Indices] = {}

    def points(self, n: int, make: Callable[[], Indices]) -> Indices:
        """Return the rows at which a level of n rows restricts residuals; `make` computes these rows on first use.

        All calls for the same n return the same array, because kernels use its identity as a cache key.
        """
        if n not in self._points:
            self._points[n] = self.kernels.xp.asarray(make())
        return self._points[n]

    def ordered(self, rows: Rows, colours: Array | None = None) -> tuple[Rows, Order]:
        """Complete the rows to a symmetric pattern, and return the rows and their order for sweeps.

        If `colours` is given, it may determine the order.
        """
        if not self.kernels.is_symmetric_pattern(rows):
            _check_filling(rows.indices.size)
            rows = self.kernels.with_symmetric_pattern(rows)
        if colours is None or self._kind != "greedy":
            return rows, self.kernels.order(rows, self._kind)
        new_to_old = np.argsort(colours, kind="stable").astype(np.int32)
        old_to_new = np.empty_like(new_to_old)
        old_to_new[new_to_old] = np.arange(new_to_old.size, dtype=np.int32)
        starts = np.concatenate([[0], np.cumsum(np.unique(colours, return_counts=True)[1])]).astype(np.int64)
        return rows, Order(new_to_old, old_to_new, starts, self._kind)

    def store(
        self,
        rows: Rows,
        order: Order,
        values: str,
        vectors: str,
        like: Stored | None = None,
        *,
        brief: bool = False,
        group: RankGroup = SERIAL,
    ) -> SparseMatrix:
        """Store a matrix and return it; if `brief`, `auto` selects the storage that is fastest to build."""
        A = self.kernels.store(rows, order, values, vectors, like.storage if like else self._storage(brief), like)
        if like is None and self.storage == "auto" and A.storage == "packed" and A.lower + A.upper > rows.indices.size:
            sliced = self.kernels.store(rows, order, values, vectors, "sell")  # the packed format found almost no runs
            A = sliced if sliced.bytes < A.bytes else A
        return SparseMatrix(self.kernels, A, group.exchange(self.kernels, order, vectors), self.spans)

    def check_memory(
        self, rows: Rows, order: Order | None, value_bytes: Sequence[int], basis: int, *, brief: bool = False
    ) -> None:
        """Raise an error if the matrix and the basis exceed the free memory.

        value_bytes   bytes per value in each form of the matrix
        order         the order of the rows; None assumes the best one, which groups rows of similar length

        The matrix is stored in chunks that are as wide as their longest row. The estimate excludes packed columns,
        which usually take a few bytes per chunk.
        """
        lengths = np.diff(rows.indptr)
        column = 0 if self._storage(brief) == "packed" else COLUMN_BYTES
        matrix = self._slots(lengths, order) * sum(size + column for size in value_bytes)
        for free, need, where in self._memories(matrix, basis):
            if free is not None and need > free:
                self._refuse(lengths, matrix, basis, f"{size_text(free)} of {where}")

    def _memories(self, matrix: int, basis: int) -> list[tuple[int | None, int, str]]:
        """Return the free bytes, the needed bytes and the name of each memory that the matrix and the basis use.

        A matrix for a device is built in the host's memory first.
        """
        host, device = available_memory_bytes(), self.kernels.device
        if device is None:
            return [(host, matrix + basis, "memory")]
        _, free = device.memory()
        return [(host, matrix, "the host's memory"), (free, matrix + basis, f"the memory of {device.where}")]

    def _refuse(self, lengths: Array, matrix: int, basis: int, free: str) -> None:
        use = "use scipy.sparse.linalg.gmres, which stores each entry individually"
        instead = f'use storage="auto", or {use}' if self.storage == "ell" else use
        raise ResourceError(
            f"the longest row of A has {lengths.max()} entries (mean {lengths.mean():.3g}), so storage in "
            f"groups of {self.kernels.chunk_rows} rows needs about {size_text(matrix)} and the basis "
            f"{size_text(basis)}, but only {free} is free; "
            f"{'use a smaller restart' if basis > matrix else instead}"
        )

    def _slots(self, lengths: Array, order: Order | None) -> int:
        """Return the number of stored values, including the zeros that pad short rows."""
        if self.storage == "rows":
            return int(lengths.sum())
        chunk = self.kernels.chunk_rows
        if order is None:
            return chunk * int(-np.sort(-lengths)[::chunk].sum())
        step = lengths.size if self.storage == "ell" else chunk
        firsts = np.concatenate([np.arange(a, b, step) for a, b in zip(order.starts, order.starts[1:])])
        sizes = np.maximum(np.diff(firsts, append=lengths.size), chunk)
        return int(sizes @ np.maximum.reduceat(lengths[order.new_to_old], firsts))

    def _storage(self, brief: bool) -> str:
        tried = "sell" if brief else "packed"
        return tried if self.storage == "auto" else self.storage


def _check_filling(nnz: int) -> None:
    """Raise an error if completing a symmetric pattern needs more memory than is free."""
    need, free = FILLING_BYTES * nnz, available_memory_bytes()
    if free is not None and need > free:
        raise ResourceError(
            f"sweeps need a symmetric pattern, and completing the pattern of {nnz} entries needs about "
            f'{size_text(need)}, but only {size_text(free)} of memory is free; use preconditioner="jacobi", '
            "which needs no such pattern"
        )


def one_group(n: int) -> Order:
    """Return the order that keeps the rows in sequence as one group, for a matrix that is not used in sweeps."""
    rows = np.arange(n, dtype=np.int32)
    return Order(new_to_old=rows, old_to_new=rows, starts=np.array([0, n], np.int64), kind="none")
