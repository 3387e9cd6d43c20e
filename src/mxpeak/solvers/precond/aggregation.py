"""Smoothed aggregation on distributed levels; when few rows remain, all ranks gather them.

    T    z_i in row i and the column of its aggregate, which is on one rank; each column is scaled to norm 1
    P    (I - ω D^-1 A) T, ω = 4/3, D the sums of |a_ij| over j          (Vaněk, Mandel and Brezina 1996)
    C    P^T A P, the sum of the parts of all ranks: the coarser matrix, with an aggregate's row on its rank

z is a smooth vector. On the finest level, z is computed by Jacobi sweeps on A z = 0 from a vector of ones; on coarser
levels, z contains the norms of T's columns. With this D, the spectral radius of D^-1 A is at most 1 and need not be
estimated. PyAMG computes the aggregates, and the levels below the gathered rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import scipy.sparse as sparse

from mxpeak.distributed.csr import Csr, rows_of_entries
from mxpeak.distributed.rank_group import RankGroup
from mxpeak.distributed.rows import Array, RowBlock, at_their_owners
from mxpeak.kernels.arrays import xp
from mxpeak.runtime.host_modes import one_thread
from mxpeak.solvers.precond.equilibration import Equilibration, largest_exponent
from mxpeak.solvers.precond.levels import (
    COARSEST,
    Coupling,
    DiagonalFactor,
    LevelMatrices,
    for_pyamg,
    from_pyamg,
    local_columns,
    scale_couplings,
    worth_sharing,
)
from mxpeak.solvers.precond.schwarz import overlapping

#: Neighbors may share an aggregate if |a_ij| is at least this value times the root of a_ii a_jj.
STRONG = 0.02
#: Number of Jacobi sweeps that make z smooth, and their weight.
SWEEPS, DAMPING = 10, 2 / 3
#: Weight of the step that makes P smooth.
OMEGA = 4 / 3
#: Smallest mean number of rows per rank of a distributed C, because aggregates end at the borders of ranks.
MIN_ROWS_PER_RANK = 1000
#: Largest number of rows of C that every rank gathers.
MAX_GATHERED = 2_000_000

Levels = list[LevelMatrices]


@dataclass(frozen=True, slots=True)
class Aggregates:
    """The aggregates of the unknowns of this rank.

    numbers   the aggregate of each unknown, or -1 if the unknown has no aggregate
    starts    rank r owns the aggregates starts[r] to starts[r+1] - 1
    """

    numbers: Array
    first: int
    count: int
    starts: tuple[int, ...]

    @property
    def total(self) -> int:
        """Return the number of aggregates of all ranks."""
        return self.starts[-1]


@dataclass(frozen=True, slots=True)
class _FineLevel:
    """The rows of this rank in one level, with its smooth vector and its aggregates."""

    A: Csr
    z: Array
    group: RankGroup
    aggregates: Aggregates

    @property
    def problem(self) -> str:
        """Return the reason why there is no coarser level, the same on all ranks, or an empty string."""
        n, total = self.group.starts[-1], self.aggregates.total
        return "" if 0 < total <= n / 2 else f"smoothed aggregation formed {total} aggregates from {n} unknowns"

    @property
    def norms(self) -> Array:
        """Return ||z|| over each aggregate of this rank."""
        numbers = self.aggregates.numbers
        inside = numbers >= 0
        return np.sqrt(np.bincount(numbers[inside] - self.aggregates.first, self.z[inside] ** 2, self.aggregates.count))

    def has_a_smooth_vector(self) -> bool:
        """Return whether z is finite, and nonzero on every aggregate. Collective."""
        return self.group.all(np.isfinite(self.z).all() and self.norms.all())


def aggregated(A: Csr, A_s: Csr, scaling: Equilibration) -> tuple[Levels, str]:
    """Build the levels of A_s = D_r A D_c and return this rank's part, or no levels and the reason. Collective.

    All levels use B = 2^k A, with entries near 1, which is symmetric if A is symmetric; P becomes D_c^-1 P, and R =
    2^k P^T D_r^-1.
    """
    group = scaling.group
    k = -int(group.largest(largest_exponent(A.data, 0, xp)))
    B = sparse.csr_array((np.ldexp(A.data, k), A.indices, A.indptr), shape=A.shape)
    own = scaling.columns[: A.shape[0]] if scaling.active else 0
    group = group if group.starts else RankGroup(group.comm, (0, A.shape[0]))
    with np.errstate(all="ignore"):
        finest = _FineLevel(B, smooth(B, group), group, _aggregates(B, group))
        if finest.problem:
            return [], finest.problem
        return _levels(A_s, finest, DiagonalFactor(1.0, -own), DiagonalFactor(1.0, k - scaling.rows))


def _levels(
    A_s: Csr, level: _FineLevel, P_rows: DiagonalFactor, R_columns: DiagonalFactor, depth: int = 1
) -> tuple[Levels, str]:
    """Build level `depth`, with the matrix A_s, and the levels below it. Collective.

    Return the levels, or no levels and the reason.
    """
    A, group, aggregates, comm = level.A, level.group, level.aggregates, level.group.comm
    if not level.has_a_smooth_vector():
        return [], "smoothed aggregation found no smooth vector"
    norms = level.norms
    P = _prolongation(A, aggregates, level.z, norms, group)
    R = sparse.csr_array(P.T)
    C = _at_owners(R @ (A @ group.rows_with_halo(P)), aggregates.starts, group)
    scale_couplings(P, R, P_rows, R_columns)
    below = _distributed_coarse(C, norms, aggregates.starts, group)
    if below is not None:
        shape = aggregates.total, group.starts[-1]
        R = sparse.csr_array((R.data, R.indices.astype(np.int64) + group.first, R.indptr), shape=shape)
        R = _at_owners(R, aggregates.starts, group)
        to_coarse = Coupling(*local_columns(comm, _block(P, group), aggregates.starts))
        to_fine = Coupling(*local_columns(comm, _block(R, below.group), group.starts))
        coarser, problem = _levels(below.A, below, DiagonalFactor(1.0, 0), DiagonalFactor(1.0, 0), depth + 1)
    elif aggregates.total <= MAX_GATHERED:
        parts = comm.gather_objects((C, norms))
        to_coarse, to_fine = Coupling(P), Coupling(R)
        coarser, problem = group.on_root(lambda: _gathered_levels(parts or [], depth + 1))
    else:
        count = aggregates.total
        return [], f"smoothed aggregation formed {count} aggregates, too many for every rank to store the level"
    if problem:
        return [], problem
    overlap = None if group.is_serial else overlapping(A_s, group)
    return [LevelMatrices(A_s, to_coarse, to_fine, group, overlap), *coarser], ""


def _distributed_coarse(C: Csr, z: Array, starts: tuple[int, ...], group: RankGroup) -> _FineLevel | None:
    """Return the next level, distributed over the ranks, or None if it is too small or has a defect. Collective."""
    comm = group.comm
    if not worth_sharing(starts[-1]) or starts[-1] < MIN_ROWS_PER_RANK * comm.size:
        return None
    A, partners = local_columns(comm, _block(C, RankGroup(comm, starts)), starts)
    of_level = RankGroup(comm, starts, partners)
    if not of_level.all(np.isfinite(A.data).all() and A.diagonal().all()):
        return None
    level = _FineLevel(A, z, of_level, _aggregates(A, of_level))
    return None if level.problem or not level.has_a_smooth_vector() else level


def _block(rows: Csr, group: RankGroup) -> RowBlock:
    """Convert this rank's rows, which have global column indices, to a row block."""
    return RowBlock(list(group.starts), group.comm.rank, rows.indptr, rows.indices.astype(np.int64), rows.data)


def _at_owners(part: Csr, starts: Sequence[int], group: RankGroup) -> Csr:
    """Add the contributions of all ranks to a matrix, and return this rank's rows of the sum. Collective.

    The contribution `part` of each rank has all rows.
    """
    comm = group.comm
    first, last = starts[comm.rank], starts[comm.rank + 1]
    part.sort_indices()
    own, i = part[first:last], rows_of_entries(part)
    away = np.concatenate([np.arange(part.indptr[first]), np.arange(part.indptr[last], part.nnz)])
    rows, columns, values = at_their_owners(comm, starts, i[away], part.indices[away], part.data[away])
    positions = rows.astype(np.int64) - first, columns.astype(np.int64)
    return sparse.csr_array(own + sparse.coo_array((values, positions), shape=own.shape).tocsr())


def _aggregates(A: Csr, group: RankGroup) -> Aggregates:
    """Group unknowns that are strongly connected within this rank, and return the aggregates. Collective."""
    numbers, count = group.collectively(lambda: _aggregates_of_block(for_pyamg(A[:, : A.shape[0]])))
    counts = group.comm.bcast_object(group.comm.gather_objects(count))
    starts = tuple(accumulate(counts, initial=0))
    first = starts[group.comm.rank]
    return Aggregates(np.where(numbers >= 0, numbers + first, -1), first, count, starts)


def _aggregates_of_block(block: Any) -> tuple[Array, int]:
    """Return the aggregate of each row of a square matrix, or -1, and the number of aggregates."""
    from pyamg.aggregation import standard_aggregation
    from pyamg.strength import symmetric_strength_of_connection

    numbers = np.full(block.shape[0], -1, np.int64)
    if block.shape[0]:
        belongs = standard_aggregation(symmetric_strength_of_connection(block, theta=STRONG))[0].tocoo()
        numbers[belongs.row] = belongs.col
    return numbers, int(numbers.max(initial=-1)) + 1


def smooth(A: Csr, group: RankGroup) -> Array:
    """Return a smooth vector z, computed by Jacobi sweeps on A z = 0 from a vector of ones. Collective."""
    z, diagonal = np.ones(A.shape[0]), A.diagonal()
    for _ in range(SWEEPS):
        z -= DAMPING * (A @ group.with_halo(z)) / diagonal
    return z


def _prolongation(A: Csr, aggregates: Aggregates, z: Array, norms: Array, group: RankGroup) -> Csr:
    """Return the rows of P on this rank, with columns for all aggregates. Collective."""
    belongs, i = aggregates.numbers >= 0, rows_of_entries(A)
    values = np.zeros(A.shape[0])
    values[belongs] = z[belongs] / norms[aggregates.numbers[belongs] - aggregates.first]
    T = _tentative(group.with_halo(values), group.with_halo(aggregates.numbers), aggregates.total)
    weight = OMEGA / np.copysign(abs(A) @ np.ones(A.shape[1]), A.diagonal())
    step = sparse.csr_array(((A.indices == i) - weight[i] * A.data, A.indices, A.indptr), shape=A.shape)
    return sparse.csr_array(step @ T)


def _tentative(values: Array, numbers: Array, columns: int) -> Csr:
    """Return the rows of the tentative prolongation, with one value per row at the number of its aggregate."""
    inside = numbers >= 0
    indptr = np.concatenate([[0], np.cumsum(inside)])
    return sparse.csr_array((values[inside], numbers[inside], indptr), shape=(numbers.size, columns))


def _gathered_levels(parts: Sequence[tuple[Csr, Array]], depth: int) -> tuple[Levels, str]:
    """Build level `depth`, whose matrix C consists of these parts, and the levels below it.

    Return the levels, or no levels and the reason.
    """
    C = sparse.csr_array(sparse.vstack([rows for rows, _ in parts], format="csr"))
    try:
        levels = [LevelMatrices(C)] if C.shape[0] <= COARSEST else _by_pyamg(C, np.concatenate([z for _, z in parts]))
    except (ValueError, ArithmeticError, IndexError, RuntimeError, np.linalg.LinAlgError) as error:
        return [], f"PyAMG built no hierarchy: {error}"
    return levels, next((f"level {k} {level.defect}" for k, level in enumerate(levels, depth) if level.defect), "")


def _by_pyamg(C: Csr, z: Array) -> Levels:
    """Build the levels below C with PyAMG, and return them; the prolongation preserves z."""
    import pyamg

    with one_thread(), warnings.catch_warnings(), np.errstate(all="ignore"):  # the other cores belong to other ranks
        warnings.simplefilter("ignore")
        solver = pyamg.smoothed_aggregation_solver(
            for_pyamg(C),
            B=z[:, None],
            strength=("symmetric", {"theta": STRONG}),
            smooth=("jacobi", {"omega": OMEGA, "weighting": "local"}),
            improve_candidates=None,
            max_coarse=COARSEST,
        )
    return from_pyamg(solver.levels)
