"""A ≈ L U by SciPy's SuperLU: complete, in fp32 where the inner iteration is, with numbers below its range as zeros.

The order is one of least degree in the pattern of A + A^T (Liu 1985), and the diagonal is the pivot unless it is below
PIVOT times the largest of its column: what fills up is then known beforehand, and is least.  If the diagonal of A has
zeros or weak entries, rows are permuted first so that large entries are there.  GMRES and residuals in fp64 correct
what fp32 and small pivots cost.  SuperLU factors and solves on one thread.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from math import log2, sqrt
from typing import Any

import numpy as np
import scipy.sparse as sparse
from scipy.sparse import csgraph, linalg

from mxpeak.distributed.spaces import vector_type
from mxpeak.distributed.sparse import SparseMatrix
from mxpeak.kernels.contract.sparse import SparseKernels, Vector
from mxpeak.kernels.host.engine.subnormals import flushed
from mxpeak.library.inputs import Array, on_host
from mxpeak.library.outcomes import SingularMatrixError
from mxpeak.library.sparse.gather import pattern
from mxpeak.library.sparse.inputs import Csr
from mxpeak.library.sparse.transversal import WEAK, rows_to_diagonal, weak_diagonal
from mxpeak.perf.host import available_memory_bytes
from mxpeak.records import size_text
from mxpeak.spans import Spans

#: A diagonal entry is the pivot down to this share of the largest in its column.
PIVOT = WEAK
#: Columns that SuperLU updates at a time: a fifth less time than with its own 10 or 20 where columns are short.
PANEL = 4
#: Bytes of an entry of L or U, with its index and the copies that are made while they grow.
ENTRY_BYTES = 24
#: The measured fill of L and U is at most FILL_OF_WIDTH * width^2 and FILL_OF_ALL * n^2.
#: Meshes in three dimensions set the first factor, random graphs the second.
FILL_OF_WIDTH, FILL_OF_ALL = 100.0, 0.3
#: A row with more than DENSE_ROW * sqrt(n) entries is dense (as in AMD); the measured width ignores dense rows.
DENSE_ROW = 10.0


@dataclass(frozen=True, slots=True)
class Factors:
    """L U = A[rows], in a format; `lu` is None where another rank has them, `rows` None for all rows in sequence."""

    lu: Any
    vectors: str
    rows: Array | None = None

    @property
    def bytes(self) -> int:
        """Of both; 0 where another rank has them."""
        entry = (4 if self.vectors == "fp32" else 8) + 4
        return 0 if self.lu is None else int(self.lu.nnz * entry)

    def solve(self, r: Vector) -> Vector:
        """Return U^-1 L^-1 r[rows], of an array."""
        return self._both(r if self.rows is None else r[self.rows], "N")

    def solve_transposed(self, r: Vector) -> Vector:
        """Return the solution of A^T z = r by the factors."""
        z = self._both(r, "T")
        if self.rows is None:
            return z
        unpermuted = np.empty_like(z)
        unpermuted[self.rows] = z
        return unpermuted

    def _both(self, r: Vector, which: str) -> Vector:
        low = self.vectors == "fp32"
        with flushed() if low else nullcontext(), np.errstate(all="ignore"):
            return self.lu.solve(np.ascontiguousarray(r, dtype=np.float32 if low else np.float64), which)


def factored(A: Csr, vectors: str, entries: float | None = None) -> tuple[Factors | None, str]:
    """Return the factors of A, or None and why there are none; raise if a pivot is exactly zero in fp64 too.

    Of factors in fp32 with such a pivot those in fp64 are returned.  `entries` is about how many they have.
    """
    need, free = ENTRY_BYTES * (fill(A.shape[0], A.nnz) if entries is None else entries), available_memory_bytes()
    if free is not None and need > free:
        return None, f"factors may take {size_text(int(need))}, but {size_text(free)} of memory is free"
    rows = rows_to_diagonal(A) if weak_diagonal(A) else None
    columns = sparse.csc_array(A if rows is None else A[rows])
    for which in dict.fromkeys((vectors, "fp64")):
        try:
            return Factors(_superlu(columns, which), which, rows), ""
        except (RuntimeError, MemoryError, ValueError) as error:
            problem = str(error) or type(error).__name__
            if "singular" not in problem:
                return None, f"SuperLU found no factors: {problem}"
    raise SingularMatrixError(
        "A is singular: a pivot of its LU is exactly zero; check how A was built, or use "
        'preconditioner="sgs", "amg" or "none" if A x = b has a solution'
    )


def _superlu(columns: Any, vectors: str) -> Any:
    low = vectors == "fp32"
    with flushed() if low else nullcontext(), np.errstate(over="ignore"):
        return linalg.splu(
            columns.astype(np.float32 if low else np.float64),
            permc_spec="MMD_AT_PLUS_A",
            diag_pivot_thresh=PIVOT,
            panel_size=PANEL,
            options={"SymmetricMode": True},
        )


def fill(n: int, nnz: int) -> float:
    """About how many entries L and U have in all, of matrices of long and narrow graphs: seldom more."""
    return nnz * max(1.0, log2(n))


def fill_of_any(A: Csr) -> float:
    """Return a bound of the entries that L and U of any A have, up to a small factor."""
    n, lengths = A.shape[0], np.diff(A.indptr)
    dense = lengths > DENSE_ROW * np.sqrt(n)
    within = width(A[~dense][:, ~dense]) if dense.any() and not dense.all() else width(A)
    graph = min(FILL_OF_WIDTH * within**2, FILL_OF_ALL * n * n)
    return float(min(fill(n, A.nnz) + graph + 2.0 * n * np.count_nonzero(dense), float(n) * n))


def work_of(n: int, nnz: int, entries: float) -> float:
    """Return an estimate of the operations of a factorization; most of its entries lie in one dense block."""
    in_block = max(entries - fill(n, nnz), 0.0)
    return 2.0 / 3.0 * in_block * sqrt(in_block) + 10.0 * entries


def width(A: Csr) -> float:
    """Return the rows per level when levels are counted from one end of the graph of A, or of its largest part.

    About as many rows cut the graph in two.
    """
    graph = pattern(A)
    found, reached = _rows_a_level(graph, 0)
    if reached < A.shape[0]:  # an entry leads one way only, or the first row is apart from most others
        graph = sparse.csr_array(graph + graph.T)
        _, part = csgraph.connected_components(graph, directed=False)
        largest = int(np.argmax(np.bincount(part)))
        found, _ = _rows_a_level(graph, int(np.argmax(part == largest)))
    return found


def _rows_a_level(graph: Any, start: int) -> tuple[float, int]:
    """Return the rows per level of the part of a graph that contains a row, and how many rows it has."""
    last, reached = start, 0
    for _ in range(2):  # from any row to one far from it, and back to one farther
        order, before = csgraph.breadth_first_order(graph, last, directed=True)
        last, reached = int(order[-1]), len(order)
    levels, row = 1, last
    while before[row] >= 0:
        row, levels = int(before[row]), levels + 1
    return reached / levels, reached


class Solved:
    """x = U^-1 L^-1 r."""

    def __init__(self, kernels: SparseKernels, A: SparseMatrix, factors: Factors, spans: Spans):
        self._kernels, self._A, self._spans = kernels, A, spans
        self.factors = factors
        self._x = A.halo_vector()
        self.bytes = int(self._x.nbytes + factors.bytes)

    def __call__(self, r: Vector) -> Vector:
        """Both triangles."""
        xp = self._kernels.xp
        with self._spans("factors"), np.errstate(all="ignore"):
            z = self.factors.solve(on_host(r))
            self._A.own(self._x)[:] = xp.asarray(z, dtype=vector_type(self._kernels, self._A.A.vectors))
        return self._x
