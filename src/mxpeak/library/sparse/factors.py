"""A ≈ L U by SciPy's SuperLU: complete, in fp32 where the inner iteration is, with numbers below its range as zeros.

The order is one of least degree in the pattern of A + A^T (Liu 1985), and the diagonal is the pivot unless it is below
PIVOT times the largest of its column: what fills up is then known beforehand, and is least.  GMRES and residuals in
fp64 mend what fp32 and small pivots cost.  SuperLU factors and solves on one thread.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from math import log2
from typing import Any

import numpy as np
import scipy.sparse as sparse
from scipy.sparse import csgraph, linalg

from mxpeak.distributed.sparse import SparseMatrix, vector_type
from mxpeak.kernels.contract.sparse import SparseKernels, Vector
from mxpeak.kernels.host.subnormals import flushed
from mxpeak.library.inputs import on_host
from mxpeak.library.sparse.gathering import pattern
from mxpeak.library.sparse.inputs import Csr
from mxpeak.perf.host import available_memory_bytes
from mxpeak.records import size_text
from mxpeak.spans import Spans

#: A diagonal entry is the pivot down to this share of the largest in its column.
PIVOT = 0.01
#: Columns that SuperLU updates at a time: a fifth less time than with its own 10 or 20 where columns are short.
PANEL = 4
#: Bytes of an entry of L or U, with its index and the copies that are made while they grow.
ENTRY_BYTES = 24


@dataclass(frozen=True, slots=True)
class Factors:
    """L U = A, in the format that vectors had when it was made; `lu` is None where another rank has them."""

    lu: Any
    vectors: str

    @property
    def bytes(self) -> int:
        """Of both; 0 where another rank has them."""
        entry = (4 if self.vectors == "fp32" else 8) + 4
        return 0 if self.lu is None else int(self.lu.nnz * entry)

    def solve(self, r: Vector) -> Vector:
        """U^-1 L^-1 r, of an array."""
        low = self.vectors == "fp32"
        with flushed() if low else nullcontext(), np.errstate(all="ignore"):
            return self.lu.solve(np.ascontiguousarray(r, dtype=np.float32 if low else np.float64))


def factored(A: Csr, vectors: str) -> tuple[Factors | None, str]:
    """The factors of A, or None and why there are none."""
    need, free = ENTRY_BYTES * fill(A.shape[0], A.nnz), available_memory_bytes()
    if free is not None and need > free:
        return None, f"factors may take {size_text(int(need))}, but {size_text(free)} of memory is free"
    low = vectors == "fp32"
    with flushed() if low else nullcontext(), np.errstate(over="ignore"):
        columns = sparse.csc_array(A).astype(np.float32 if low else np.float64)
        try:
            lu = linalg.splu(
                columns,
                permc_spec="MMD_AT_PLUS_A",
                diag_pivot_thresh=PIVOT,
                panel_size=PANEL,
                options={"SymmetricMode": True},
            )
        except (RuntimeError, MemoryError, ValueError) as error:
            return None, f"SuperLU found no factors: {str(error) or type(error).__name__}"
    return Factors(lu, vectors), ""


def fill(n: int, nnz: int) -> float:
    """About how many entries L and U have in all, of matrices of long and narrow graphs: seldom more."""
    return nnz * max(1.0, log2(n))


def width(A: Csr) -> float:
    """Rows a level when levels are counted from one end of the graph of A: about the rows that cut it in two."""
    graph, last, reached = pattern(A), 0, 0
    for _ in range(2):  # from any row to one far from it, and back to one farther
        order, before = csgraph.breadth_first_order(graph, last, directed=True)
        last, reached = int(order[-1]), len(order)
    levels, row = 1, last
    while before[row] >= 0:
        row, levels = int(before[row]), levels + 1
    return reached / levels


class Solved:
    """x = U^-1 L^-1 r."""

    def __init__(self, kernels: SparseKernels, A: SparseMatrix, factors: Factors, spans: Spans):
        self._kernels, self._A, self._spans = kernels, A, spans
        self._factors = factors
        self._x = A.halo_vector()
        self.bytes = int(self._x.nbytes + factors.bytes)

    def __call__(self, r: Vector) -> Vector:
        """Both triangles."""
        xp = self._kernels.xp
        with self._spans("factors"), np.errstate(all="ignore"):
            z = self._factors.solve(on_host(r))
            self._A.own(self._x)[:] = xp.asarray(z, dtype=vector_type(self._kernels, self._A.A.vectors))
        return self._x
