"""Factor A = L U completely with SciPy's SuperLU, or LAPACK if A is a band, on rank 0 for all ranks.

fp32 factors treat numbers below the range as zeros. The columns are in a minimum-degree order of the pattern of A +
A^T (Liu 1985). The diagonal entry is the pivot unless it is below PIVOT times the largest entry of its column.
Therefore, the fill-in is small and can be estimated. If the diagonal of A has zeros or weak entries, rows are first
permuted to bring large entries to the diagonal. GMRES with fp64 residuals corrects the error of fp32 and of small
pivots. SuperLU uses one thread.

If there are several ranks, they send their rows to rank 0, which factors the whole matrix in the same way as one
process. For a solve, the ranks send r to rank 0 and receive x. The factors, and therefore the steps of GMRES, do not
depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import inf, log2, sqrt
from typing import Any

import numpy as np
import scipy.sparse as sparse
from scipy.sparse import csgraph, linalg

from mxpeak.comm.base import Task, all_of
from mxpeak.distributed.csr import Csr, pattern, stacked
from mxpeak.distributed.rank_group import SERIAL, RankGroup
from mxpeak.distributed.rows import Array
from mxpeak.distributed.spaces import vector_type
from mxpeak.distributed.sparse import SparseMatrix
from mxpeak.errors import SingularError
from mxpeak.kernels.contract.sparse import SparseKernels, Vector
from mxpeak.perf.host import available_memory_bytes
from mxpeak.records import size_text
from mxpeak.runtime.host_modes import flushed
from mxpeak.runtime.memory import MARGIN
from mxpeak.solvers.precond.band import BandFactors, fills_band
from mxpeak.solvers.precond.equilibration import host_array
from mxpeak.solvers.precond.transversal import WEAK, rows_to_diagonal, weak_diagonal
from mxpeak.spans import Spans

#: Smallest size of a diagonal pivot, relative to the largest entry of its column.
PIVOT = WEAK
#: Number of columns that SuperLU updates together; takes 20 % less time than the default (10 or 20) if columns are
#: short.
PANEL = 4
#: Bytes per entry of L or U, with its index and the copies made while they grow.
ENTRY_BYTES = 24
#: The measured fill of L and U is at most FILL_OF_WIDTH * width^2 and FILL_OF_ALL * n^2. Three-dimensional meshes
#: determine the first factor, and random graphs the second.
FILL_OF_WIDTH, FILL_OF_ALL = 100.0, 0.3
#: In two-dimensional and three-dimensional meshes, the largest level of a breadth-first search has at most OF_MEAN
#: times as many rows as the mean level. If it has more than HIDDEN times as many, the mean level is not representative
#: of the graph.
OF_MEAN, HIDDEN = 2.25, 6.0
#: A row with more than DENSE_ROW * sqrt(n) entries is dense (as in AMD); the measured width ignores dense rows.
DENSE_ROW = 10.0
#: The types of factors: of real numbers, and of complex numbers, which have two parts.
_TYPES: dict[int, dict[str, np.dtype[Any]]] = {
    1: {"fp64": np.dtype(np.float64), "fp32": np.dtype(np.float32)},
    2: {"fp64": np.dtype(np.complex128), "fp32": np.dtype(np.complex64)},
}
#: Number of rows that rank 0 gathers unless the user requests factors, and bytes per entry as received, stacked and
#: sorted.
MAX_GATHERED, GATHERED_BYTES = 2_000_000, 48


@dataclass(frozen=True, slots=True)
class SparseFactors:
    """The factors L U = A[rows].

    `lu` is None if another rank stores the factors, and `rows` is None if no row is permuted. Each number has one real
    part, or two parts if it is complex.
    """

    lu: Any
    vectors: str
    rows: Array | None = None
    parts: int = 1

    @property
    def bytes(self) -> int:
        """Return the size of L and U on this rank in bytes."""
        return 0 if self.lu is None else int(self.lu.nnz * (self._type.itemsize + 4))

    def solve(self, r: Vector) -> Vector:
        """Return U^-1 L^-1 r[rows]."""
        return self._substitute(r if self.rows is None else r[self.rows], "N")

    def solve_transposed(self, r: Vector) -> Vector:
        """Return the solution of A^H z = r, computed with the factors."""
        z = self._substitute(r, "H")
        if self.rows is None:
            return z
        unpermuted = np.empty_like(z)
        unpermuted[self.rows] = z
        return unpermuted

    def _substitute(self, r: Vector, trans: str) -> Vector:
        low = self.vectors == "fp32"
        with flushed() if low else nullcontext(), np.errstate(all="ignore"):
            return self.lu.solve(np.ascontiguousarray(r, dtype=self._type), trans)

    @property
    def _type(self) -> np.dtype[Any]:
        """Return the type of the factors."""
        return _TYPES[self.parts][self.vectors]


def factored(
    A: Csr, vectors: str, group: RankGroup = SERIAL, entries: float | None = None
) -> tuple[SparseFactors | None, str]:
    """Factor A on rank 0 and return the factors, or None and the reason. Collective.

    Raise an error if A is singular. If a pivot of fp32 factors is exactly zero, A is factored in fp64. `entries` is an
    estimate of the number of entries of the factors.
    """
    if not group.is_serial:
        n, nnz = group.starts[-1], int(group.sum(A.nnz))
        need = _parts(A) * (ENTRY_BYTES * (fill(n, nnz) if entries is None else entries) + GATHERED_BYTES * nnz)
        if problem := no_room(group, nnz, need, f"factors of {nnz} entries"):
            return None, problem
    parts, factors = group.gathered(A), SparseFactors(None, vectors, parts=_parts(A))

    def factor() -> tuple[str, str]:
        nonlocal factors
        try:
            on_root, problem = _factored(stacked(parts), vectors, entries)
        except MemoryError:
            return vectors, "rank 0 has too little memory for all rows"
        factors = on_root or factors
        return factors.vectors, problem

    precision, problem = group.on_root(factor)
    return (None if problem else replace(factors, vectors=precision)), problem


def _factored(A: Csr, vectors: str, entries: float | None) -> tuple[SparseFactors | None, str]:
    """Factor the whole matrix on this process, and return the factors, or None and the reason.

    Raise a SingularError if a pivot of the fp64 factors is exactly zero.
    """
    entries = fill(A.shape[0], A.nnz) if entries is None else entries
    need, free = _parts(A) * ENTRY_BYTES * entries, available_memory_bytes()
    if free is not None and need > free:
        return None, f"factors may take {size_text(int(need))}, but {size_text(free)} of memory is free"
    rows, columns = None, None
    if not fills_band(A):
        rows = rows_to_diagonal(A) if weak_diagonal(A) else None
        columns = sparse.csc_array(A if rows is None else A[rows])
    for precision in dict.fromkeys((vectors, "fp64")):
        try:
            lu = _band(A, precision) if columns is None else _superlu(columns, precision)
            return SparseFactors(lu, precision, rows, _parts(A)), ""
        except (RuntimeError, MemoryError, ValueError) as error:
            problem = str(error) or type(error).__name__
            if "singular" not in problem:
                return None, f"SuperLU found no factors: {problem}"
    raise SingularError(
        "A is singular: a pivot of its LU is exactly zero; check how A was built, or use "
        'preconditioner="sgs", "amg" or "none" if A x = b has a solution'
    )


def _parts(A: Csr) -> int:
    """Return the number of real values per entry: 2 if A is complex."""
    return 2 if A.dtype.kind == "c" else 1


def _band(A: Csr, precision: str) -> BandFactors:
    with _range_of(precision):
        return BandFactors(A, _TYPES[_parts(A)][precision])


@contextmanager
def _range_of(precision: str) -> Iterator[None]:
    """Flush subnormal numbers of fp32 to zero, and permit overflow."""
    with flushed() if precision == "fp32" else nullcontext(), np.errstate(over="ignore"):
        yield


def _superlu(columns: Any, precision: str) -> Any:
    with _range_of(precision):
        return linalg.splu(
            columns.astype(_TYPES[_parts(columns)][precision]),
            permc_spec="MMD_AT_PLUS_A",
            diag_pivot_thresh=PIVOT,
            panel_size=PANEL,
            options={"SymmetricMode": True},
        )


def no_room(group: RankGroup, nnz: int, need: float, what: str, ranks: int = 1) -> str:
    """Return the reason why `what` does not fit in the memory of rank 0, or an empty string if it fits. Collective.

    `ranks` is the number of ranks that share this memory.
    """
    if nnz > np.iinfo(np.int32).max:
        return f"{what}: {nnz} entries are more than one rank's 32-bit indices count"
    room = group.comm.bcast_object(int(MARGIN * (available_memory_bytes() or 2**63)) // ranks)
    return f"{what} take about {size_text(int(need))} on rank 0, which has {size_text(room)}" if need > room else ""


def no_room_for_rows(group: RankGroup, nnz: int, copies: int = 1) -> str:
    """Return the reason why rank 0 cannot gather all rows, or an empty string if it can. Collective."""
    if group.is_serial:
        return ""
    problem = no_room(group, nnz, copies * GATHERED_BYTES * nnz, "all rows")
    if (n := group.starts[-1]) > MAX_GATHERED:
        problem = f'{n} rows exceed the {MAX_GATHERED} that rank 0 gathers without preconditioner="lu"'
    return problem


def fill(n: int, nnz: int) -> float:
    """Return an estimate of the number of entries in L and U for a matrix with a long and narrow graph."""
    return nnz * max(1.0, log2(n))


def estimated_fill(A: Csr, group: RankGroup) -> tuple[float, str]:
    """Return a bound of the number of entries in L and U, or infinity and the reason why it is unknown. Collective."""
    if problem := no_room_for_rows(group, int(group.sum(A.nnz))):
        return inf, problem
    return group.on_all_rows(A if group.is_serial else pattern(A), fill_of_any), ""


def fill_of_any(A: Csr) -> float:
    """Return an upper bound, up to a small factor, on the number of entries in L and U for any A."""
    n, lengths = A.shape[0], np.diff(A.indptr)
    dense = lengths > DENSE_ROW * np.sqrt(n)
    within = separator(A[~dense][:, ~dense] if dense.any() and not dense.all() else A)
    graph = min(FILL_OF_WIDTH * within**2, FILL_OF_ALL * n * n)
    return float(min(fill(n, A.nnz) + graph + 2.0 * n * np.count_nonzero(dense), float(n) * n))


def work_of(n: int, nnz: int, entries: float) -> float:
    """Estimate the operations of a factorization, assuming that most entries of the factors are in one dense block."""
    in_block = max(entries - fill(n, nnz), 0.0)
    return 2.0 / 3.0 * in_block * sqrt(in_block) + 10.0 * entries


def width(A: Csr) -> float:
    """Return the mean number of rows per level of a breadth-first search in the largest part of the graph of A.

    If about as many rows are removed, the graph falls into two parts.
    """
    graph = pattern(A)
    rows_per_level, reached = _rows_per_level(graph, 0)
    if reached < A.shape[0]:  # the graph has one-way entries, or the first row is not in the largest part
        graph = sparse.csr_array(graph + graph.T)
        _, part = csgraph.connected_components(graph, directed=False)
        largest = int(np.argmax(np.bincount(part)))
        rows_per_level, _ = _rows_per_level(graph, int(np.argmax(part == largest)))
    return rows_per_level


def separator(A: Csr, limit: float = inf) -> float:
    """Return an estimate of the number of rows whose removal divides any part of the graph of A.

    The estimate is `width`, unless the largest level is much larger than the mean level, for example because of a long
    chain or another part of the graph. The largest level is not examined if the mean exceeds `limit`.
    """
    rows = width(A)
    if rows > limit:
        return rows
    largest = largest_level(A)
    return largest / OF_MEAN if largest > HIDDEN * rows else rows


def largest_level(A: Csr) -> int:
    """Return the largest number of rows at the same distance from the first row of their part of the graph of A."""
    n, graph = A.shape[0], pattern(A)
    graph = sparse.csr_array(graph + graph.T)
    _, part = csgraph.connected_components(graph, directed=False)
    _, first = np.unique(part, return_index=True)
    indptr, indices = np.append(graph.indptr, graph.nnz + first.size), np.append(graph.indices, first)
    rooted = sparse.csr_array(
        (np.ones(indices.size), indices, indptr), shape=(n + 1, n + 1)
    )  # row n leads to all parts
    order, before = csgraph.breadth_first_order(rooted, n, directed=True)
    position = np.empty(n + 1, np.int64)
    position[order] = np.arange(n + 1)
    parents, ends = position[before[order[1:]]], [0, 1]  # parents ascend
    while ends[-1] <= n:
        ends.append(1 + int(np.searchsorted(parents, ends[-1])))
    distance = np.repeat(np.arange(len(ends) - 1), np.diff(ends))[1:]
    _, rows = np.unique((n + 1) * part[order[1:]].astype(np.int64) + distance, return_counts=True)
    return int(rows.max())


def _rows_per_level(graph: Any, start: int) -> tuple[float, int]:
    """Return the mean number of rows per level in the part of a graph that contains `start`, and its number of rows."""
    last, reached = start, 0
    for _ in range(2):  # start at any row, and then at the most distant row that was found
        order, before = csgraph.breadth_first_order(graph, last, directed=True)
        last, reached = int(order[-1]), len(order)
    levels, row, parent = 1, last, memoryview(before)
    while parent[row] >= 0:
        row, levels = parent[row], levels + 1
    return reached / levels, reached


def refined(A: Csr, factors: SparseFactors, B: Array, solves: int) -> Array:
    """Return X = M^-1 B, refined by X = X + M^-1 (B - A X), after this number of solves with all columns of B together.

    Each solve reads the factors once, and each product reads A once. Residuals are in fp64.
    """
    X, R = np.zeros_like(B), B
    with np.errstate(all="ignore"):
        for _ in range(solves):
            X += factors.solve(R)
            R = B - A @ X
    return X


class CompleteFactors:
    """The preconditioner x = U^-1 L^-1 r, solved by rank 0 for all ranks."""

    def __init__(self, kernels: SparseKernels, A: SparseMatrix, factors: SparseFactors, group: RankGroup, spans: Spans):
        self._kernels, self._A, self._group, self._spans = kernels, A, group, spans
        self.factors, self._x = factors, A.halo_vector()
        n = group.starts[-1] if group.comm.rank == 0 and not group.is_serial else 0
        self._whole = kernels.xp.zeros(n, dtype=vector_type(kernels, A.A.vectors))
        self.bytes = int(self._x.nbytes + self._whole.nbytes + factors.bytes)

    def __call__(self, r: Vector) -> Vector:
        """Return U^-1 L^-1 r. Collective."""
        own = self._A.own(self._x)
        with self._spans("factors"), np.errstate(all="ignore"):
            if self._group.is_serial:
                z = self.factors.solve(host_array(r))
                own[:] = self._kernels.xp.asarray(z, dtype=vector_type(self._kernels, self._A.A.vectors))
            else:
                self._solve_on_root(r, own)
        return self._x

    def _solve_on_root(self, r: Vector, own: Vector) -> None:
        """Gather r on rank 0, solve there, and send each rank its part of x."""
        comm = self._group.comm
        if comm.rank:
            messages = [comm.isend(r, 0), comm.irecv(own, 0)] if own.size else []
            Task(all_of(messages)).wait()
            return
        parts = np.split(self._whole, self._group.starts[1:-1])
        parts[0][:] = r
        others = [(part, rank) for rank, part in enumerate(parts) if rank and part.size]
        Task(all_of([comm.irecv(part, rank) for part, rank in others])).wait()
        self._whole[:] = self.factors.solve(self._whole)
        own[:] = parts[0]
        Task(all_of([comm.isend(part, rank) for part, rank in others])).wait()
