"""Build the levels of Ruge and Stüben's multigrid with PyAMG, for one process or distributed over ranks.

Each coarse point of Ruge and Stüben's method depends on all previous rows, so a partition of the matrix among the
ranks would increase the number of steps. If rank 0 has enough memory for all rows, it builds the levels for the whole
matrix and distributes the rows of A, P and R. Every rank receives all rows of the small levels.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sparse

from mxpeak.comm.base import Communicator
from mxpeak.distributed.csr import Csr, rows_of_entries, stacked
from mxpeak.distributed.rank_group import RankGroup
from mxpeak.distributed.rows import Array, RowBlock, distribute
from mxpeak.kernels.arrays import xp
from mxpeak.kernels.contract.sparse import SparseKernels
from mxpeak.runtime.nodes import nodes_of
from mxpeak.solvers.precond.equilibration import Equilibration, largest_exponent
from mxpeak.solvers.precond.factors import MAX_GATHERED, no_room
from mxpeak.solvers.precond.levels import (
    COARSEST,
    Coupling,
    DiagonalFactor,
    LevelMatrices,
    complexity,
    from_pyamg,
    local_columns,
    scale_couplings,
    worth_sharing,
)
from mxpeak.solvers.precond.schwarz import overlapping

#: `auto` rejects levels whose matrices together have more than this many times the entries of A.
COMPLEXITY = 4.0
#: Constants are smooth if the mean of |row sum| / (sum of absolute values) is smaller than this value.
CONSTANT = 0.25
#: Number of symmetric sweeps that make a vector smooth.
SMOOTHING = 10
#: Aggregation takes less time than Ruge and Stüben's levels if there are more than EVEN rows, also on one process. It
#: needs many more steps if many connections are weak, or if the unknowns have different units. BYTES_PER_ENTRY is the
#: memory of rank 0 for the levels.
EVEN, BYTES_PER_ENTRY = 200_000, 128
#: A connection is weak if it is smaller than WEAK times the largest one in its row. MANY_WEAK is the largest fraction
#: of weak connections for which aggregation is used.
WEAK, MANY_WEAK = 0.25, 0.05

Levels = list[LevelMatrices]


def ruge_stuben(kernels: SparseKernels, A: Csr, A_s: Csr, scaling: Equilibration) -> tuple[Levels, str]:
    """Return the levels of A below A_s = D_r A D_c, or no levels and the reason. Collective."""
    group = scaling.group
    if group.is_serial:
        return ruge_stuben_of_all_rows(A, A_s, scaling)
    nnz = int(group.sum(A.nnz))
    fullest = nodes_of(group.comm, None).max_ranks
    if problem := no_room(group, nnz, BYTES_PER_ENTRY * nnz, f"levels of {nnz} entries", fullest):
        return [], problem
    comm, starts = group.comm, group.starts
    parts = [group.gathered(M) for M in ((A, A_s) if scaling.active else (A,))]
    scales = comm.gather_objects((scaling.rows, scaling.columns[: A.shape[0]]) if scaling.active else None)
    shared: list[_WholeLevel] = []

    def build() -> tuple[list[Sequence[int]], Levels, str]:
        whole = [stacked(of_ranks) for of_ranks in parts]
        levels, problem = ruge_stuben_of_all_rows(whole[0], whole[-1], _scaling_of_all_rows(scales or []))
        if problem or complexity(levels) > COMPLEXITY:
            return [], [], problem or too_complex(levels)
        if len(levels) == 1:  # a distributed level needs a coarser one
            same = Coupling(sparse.eye_array(starts[-1], format="csr"))
            levels = [LevelMatrices(levels[0].A, same, same), levels[0]]
        count = _shared_levels(levels)
        shared.extend(_WholeLevel(level, _colours(kernels, level.A)) for level in levels[:count])
        return [starts, *(_equal_cuts(level.A, comm.size) for level in levels[1:count])], levels[count:], ""

    firsts, coarse, problem = group.on_root(build)
    fine = [_distributed(comm, shared[depth] if shared else None, firsts[depth:][:2]) for depth in range(len(firsts))]
    if fine:
        fine[0] = replace(fine[0], A=A_s)
    return [*fine, *coarse], problem


def ruge_stuben_of_all_rows(A: Csr, A_s: Csr, scaling: Equilibration, coarsest: int = COARSEST) -> tuple[Levels, str]:
    """Return the levels of a whole matrix A below A_s = D_r A D_c, the finest first, or no levels and the reason.

    PyAMG receives B = W A_s Z with its largest entry near 1, because it treats numbers below 1e-15 as zeros. Its P and
    R become Z P and R W.
    """
    if A.shape[0] <= coarsest:
        return [LevelMatrices(A_s)], ""
    import pyamg

    W, Z, near_one = _for_pyamg(A, A_s, scaling)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            solver = pyamg.ruge_stuben_solver(near_one, max_coarse=coarsest)
        except (ValueError, ArithmeticError, IndexError, RuntimeError, np.linalg.LinAlgError) as error:
            return [], f"PyAMG built no hierarchy: {error}"
    if len(solver.levels) == 1:
        return [], "PyAMG found no coarser level"
    first, *coarser = from_pyamg(solver.levels)
    assert first.P is not None
    assert first.R is not None
    scale_couplings(first.P.T, first.R.T, Z, W)
    levels = [replace(first, A=A_s), *coarser]
    problem = next(
        (f"PyAMG's level {depth} {level.defect}" for depth, level in enumerate(levels, 1) if level.defect), ""
    )
    return ([], problem) if problem else (levels, "")


def too_complex(levels: Sequence[LevelMatrices]) -> str:
    """Return the reason for rejecting levels with too many entries, or an empty string."""
    return f"PyAMG's levels have {complexity(levels):.1f} times the entries of A"


def aggregation_is_faster(A: Csr, scaling: Equilibration) -> bool:
    """Return whether aggregation takes less time than Ruge and Stüben's levels of A. Collective."""
    group = scaling.group
    n = int(group.sum(A.shape[0]))
    gathered = group.is_serial or n <= MAX_GATHERED
    return n > EVEN and not (gathered and (scaling.active or weak_share(A, group) > MANY_WEAK))


def weak_share(A: Csr, group: RankGroup) -> float:
    """Return the fraction of off-diagonal entries that are small for their row. Collective."""
    i = rows_of_entries(A)
    off_diagonal = A.indices != i
    size, lines = np.abs(A.data[off_diagonal]), i[off_diagonal]
    largest = np.zeros(A.shape[0])
    np.maximum.at(largest, lines, size)
    weak = float(np.count_nonzero(size < WEAK * largest[lines]))
    return group.sum(weak) / max(group.sum(float(size.size)), 1.0)


def _for_pyamg(A: Csr, A_s: Csr, scaling: Equilibration) -> tuple[DiagonalFactor, DiagonalFactor, Csr]:
    """Return W, Z and W A_s Z.

    Interpolation by Ruge and Stüben requires that rows sum to about zero. If the rows of A do not, because of mixed
    units, smooth vectors replace the constants (Brezina et al. 2006). Z is then computed by sweeps on A_s z = 0, and W
    by sweeps on the transposed system.
    """
    k = -largest_exponent(A.data, 0, xp)
    unscaled = sparse.csr_matrix((np.ldexp(A.data, k), A.indices, A.indptr), shape=A.shape)
    if not scaling.active:
        return DiagonalFactor(1.0, k), DiagonalFactor(1.0, 0), unscaled
    as_given = DiagonalFactor(1.0, k - scaling.rows), DiagonalFactor(1.0, -scaling.columns), unscaled
    if _row_sums(unscaled) <= CONSTANT:
        return as_given
    z, w = _smooth(A_s), _smooth(A_s.T.tocsr())
    if z is not None and w is not None:
        i = rows_of_entries(A_s)
        adapted = sparse.csr_matrix((w[i] * A_s.data * z[A_s.indices], A_s.indices, A_s.indptr), shape=A.shape)
        if _row_sums(adapted) < _row_sums(unscaled):
            k = -largest_exponent(adapted.data, 0, xp)
            adapted.data = np.ldexp(adapted.data, k)
            return DiagonalFactor(w, k), DiagonalFactor(z, 0), adapted
    return as_given


def _smooth(A: Csr) -> Array | None:
    """Return a smooth vector z, computed by sweeps on A z = 0, or None if an entry of z is not positive."""
    from pyamg.relaxation.relaxation import gauss_seidel

    z = np.ones(A.shape[0])
    with np.errstate(all="ignore"):
        gauss_seidel(sparse.csr_matrix(A), z, np.zeros_like(z), iterations=SMOOTHING, sweep="symmetric")
    return z if np.isfinite(z).all() and (z > 0).all() else None


def _row_sums(A: Csr) -> float:
    """Return the mean of |Σ_j a_ij| / Σ_j |a_ij| over all rows, which is about 0 if the rows sum to zero."""
    with np.errstate(all="ignore"):
        return float(np.nanmean(np.abs(A.sum(axis=1)) / abs(A).sum(axis=1)))


@dataclass(frozen=True, slots=True)
class _WholeLevel:
    """A level on rank 0 with the color of each row."""

    level: LevelMatrices
    colours: Array


def _shared_levels(levels: Sequence[LevelMatrices]) -> int:
    """Return the number of distributed levels: the finest and those with enough rows, but not the coarsest."""
    below = enumerate(levels[1:], 1)
    return next(depth for depth, level in below if not worth_sharing(level.n) or level.P is None)


def _scaling_of_all_rows(scales: Sequence[Any]) -> Equilibration:
    """Combine the scales of all ranks to the scaling of all rows."""
    if scales[0] is None:
        return Equilibration()
    rows, columns = (np.concatenate([part[axis] for part in scales]) for axis in (0, 1))
    return Equilibration(rows, columns)


def _colours(kernels: SparseKernels, A: Csr) -> Array:
    """Return the color of each row in the sweeps of one process."""
    rows = kernels.rows_of(A.indptr, A.indices, A.data, A.shape[0], 0)
    if not kernels.is_symmetric_pattern(rows):
        rows = kernels.with_symmetric_pattern(rows)
    order = kernels.order(rows, "greedy")
    colours = np.empty(A.shape[0], np.int32)
    colours[order.new_to_old] = np.repeat(np.arange(order.groups, dtype=np.int32), np.diff(order.starts))
    return colours


def _equal_cuts(A: Csr, ranks: int) -> list[int]:
    """Return the first row of each rank, followed by n, so that all ranks have about the same number of entries."""
    shares = np.searchsorted(A.indptr, int(A.indptr[-1]) * np.arange(1, ranks) / ranks)
    return [0, *(int(row) for row in shares), A.shape[0]]


def _distributed(comm: Communicator, whole: _WholeLevel | None, firsts: Sequence[Sequence[int]]) -> LevelMatrices:
    """Distribute a level that rank 0 stores, and return the part of this rank. Collective.

    firsts   the first rows of the ranks in this level, and in the next level if that is also distributed
    """
    starts, *coarse = firsts
    A_whole = P_whole = R_whole = None
    if whole is not None:
        level = whole.level
        assert level.P is not None
        assert level.R is not None
        A_whole, P_whole, R_whole = level.A, level.P.T, level.R.T
    A, halo_partners = local_columns(comm, distribute(comm, A_whole, starts), starts)
    group = RankGroup(comm, tuple(starts), halo_partners)
    colours = comm.bcast_object(whole and whole.colours)[starts[comm.rank] : starts[comm.rank + 1]]
    rows_of_P = distribute(comm, P_whole, starts)
    if coarse:
        P = Coupling(*local_columns(comm, rows_of_P, coarse[0]))
        R = Coupling(*local_columns(comm, distribute(comm, R_whole, coarse[0]), starts))
    else:
        P = Coupling(_csr(rows_of_P, comm.bcast_object(None if P_whole is None else P_whole.shape[1])))
        columns = distribute(comm, None if R_whole is None else sparse.csr_array(R_whole.T), starts)
        R = Coupling(sparse.csr_array(_csr(columns, P.T.shape[1]).T))
    return LevelMatrices(A, P, R, group, overlapping(A, group, group.with_halo(colours)))


def _csr(rows: RowBlock, columns: int) -> Csr:
    return sparse.csr_array((rows.data, rows.columns.astype(np.int32), rows.indptr), shape=(rows.n, columns))
