"""Smoothed aggregation; over ranks levels are cut as A is, until few rows are left, which are gathered on all ranks.

    T    z_i in row i and the column of its aggregate, which lies on one rank; each column is scaled to norm 1
    P    (I - ω D^-1 A) T, ω = 4/3, D the sums of |a_ij| over j          (Vaněk, Mandel and Brezina 1996)
    C    P^T A P, the sum of what the ranks have of it: the coarser matrix, an aggregate's row on its rank

z is smooth: what Jacobi sweeps on A z = 0 leave of a constant x; below, the norms of T's columns.  With these D no
spectral radius has to be estimated: that of D^-1 A is 1 at most.  PyAMG finds the aggregates, and the levels below
the rows that are gathered.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import scipy.sparse as sparse

from mxpeak.comm.collectives import run_on_root
from mxpeak.distributed.rows import Block, at_their_owners
from mxpeak.kernels.host.engine.blas import one_thread
from mxpeak.library.inputs import Array
from mxpeak.library.sparse.amg import COARSEST, Factor, Grid, for_pyamg, fp64, unfit
from mxpeak.library.sparse.distributed_amg import Coupling, SharedGrid, local_columns, overlapping, worth_sharing
from mxpeak.library.sparse.inputs import Csr, rows_of_entries
from mxpeak.library.sparse.rank_group import RankGroup
from mxpeak.library.sparse.scaling import Scaling, largest_exponent

#: Neighbours may share an aggregate where |a_ij| is at least this times the root of a_ii a_jj.
STRONG = 0.02
#: Jacobi sweeps that make z smooth, and their weight.
SWEEPS, DAMPING = 10, 2 / 3
#: The weight of the step that makes P smooth.
OMEGA = 4 / 3
#: Rows a rank, in the mean, that C has at least if it is cut: aggregates end at the borders of ranks.
LEAST_OF_RANK = 1000
#: Rows of C that every rank may have to hold.
MOST_GATHERED = 2_000_000

Levels = list[SharedGrid | Grid]


@dataclass(frozen=True, slots=True)
class Aggregates:
    """The aggregate of each of this rank's unknowns, by its number among all, or -1; rank r's are starts[r] and on."""

    of: Array
    first: int
    mine: int
    starts: tuple[int, ...]

    @property
    def all(self) -> int:
        """How many all ranks have."""
        return self.starts[-1]


@dataclass(frozen=True, slots=True)
class _Shared:
    """A level whose rows lie with ranks: this rank's, the smooth vector, and their aggregates."""

    A: Csr
    z: Array
    everybody: RankGroup
    found: Aggregates

    @property
    def problem(self) -> str:
        """Why there is no level below; the same on all ranks."""
        n, found = self.everybody.starts[-1], self.found.all
        return "" if 0 < found <= n / 2 else f"smoothed aggregation formed {found} aggregates from {n} unknowns"

    @property
    def norms(self) -> Array:
        """||z|| over each of this rank's aggregates."""
        of = self.found.of
        return np.sqrt(np.bincount(of[of >= 0] - self.found.first, self.z[of >= 0] ** 2, self.found.mine))

    def has_a_smooth_vector(self) -> bool:
        """Whether z is finite, and not zero on any rank's aggregates.  Collective."""
        return self.everybody.all(np.isfinite(self.z).all() and self.norms.all())


def aggregated(A: Csr, A_s: Csr, scaling: Scaling, everybody: RankGroup) -> tuple[Levels, str]:
    """The levels of A_s = D_r A D_c, of ranks this one's part of each; or none, and why.  Collective.

    All is done with B = 2^k A, near 1, which is symmetric where A is; P becomes D_c^-1 P, and R = 2^k P^T D_r^-1.
    """
    k = -int(everybody.largest(largest_exponent(A.data, 0, np)))
    B = sparse.csr_array((np.ldexp(A.data, k), A.indices, A.indptr), shape=A.shape)
    own = scaling.columns[: A.shape[0]] if scaling.active else 0
    everybody = everybody if everybody.starts else RankGroup(everybody.comm, (0, A.shape[0]))
    with np.errstate(all="ignore"):
        finest = _Shared(B, _smooth(B, everybody), everybody, _aggregates(B, everybody))
        problem = finest.problem
        return ([], problem) if problem else _levels(A_s, finest, Factor(1.0, -own), Factor(1.0, k - scaling.rows))


def _levels(A_s: Csr, level: _Shared, of_rows: Factor, of_columns: Factor, depth: int = 1) -> tuple[Levels, str]:
    """This level, the depth-th, of the matrix A_s, and those below; or none, and why.

    P gets its rows multiplied, R its columns.  Collective.
    """
    A, everybody, found, comm = level.A, level.everybody, level.found, level.everybody.comm
    grids: Sequence[SharedGrid | Grid]
    if not level.has_a_smooth_vector():
        return [], "smoothed aggregation found no smooth vector"
    norms = level.norms
    P = _prolongation(A, found, level.z, norms, everybody)
    R = sparse.csr_array(P.T)
    C = _at_owners(R @ (A @ everybody.rows_with_halo(P)), found.starts, everybody)
    R.data = of_columns.entries(R.data, R.indices)
    P.data = of_rows.entries(P.data, rows_of_entries(P))
    below = _below(C, norms, found.starts, everybody)
    if below is not None:
        shape = found.all, everybody.starts[-1]
        R = sparse.csr_array((R.data, R.indices.astype(np.int64) + everybody.first, R.indptr), shape=shape)
        R = _at_owners(R, found.starts, everybody)
        to_below = Coupling(*local_columns(comm, _block(P, everybody), found.starts))
        to_here = Coupling(*local_columns(comm, _block(R, below.everybody), everybody.starts))
        grids, problem = _levels(below.A, below, Factor(1.0, 0), Factor(1.0, 0), depth + 1)
    elif found.all <= MOST_GATHERED:
        told = comm.gather_objects((C, norms))
        to_below, to_here = Coupling(P), Coupling(R)
        grids, problem = run_on_root(comm, lambda: _whole(told or [], depth + 1))
    else:
        return [], f"smoothed aggregation formed {found.all} aggregates, too many for every rank to store the level"
    if problem:
        return [], problem
    if everybody.alone:
        return [Grid(A_s, to_below.T, to_here.T), *grids], ""
    return [SharedGrid(A_s, to_below, to_here, overlapping(A_s, everybody), everybody), *grids], ""


def _below(C: Csr, z: Array, starts: tuple[int, ...], everybody: RankGroup) -> _Shared | None:
    """The next level, if its rows are worth being cut for the ranks, and have aggregates and a smooth vector there.

    Collective.
    """
    comm = everybody.comm
    if not worth_sharing(starts[-1]) or starts[-1] < LEAST_OF_RANK * comm.size:
        return None
    A, partners = local_columns(comm, _block(C, RankGroup(comm, starts)), starts)
    of_level = RankGroup(comm, starts, partners)
    if not of_level.all(np.isfinite(A.data).all() and A.diagonal().all()):
        return None
    level = _Shared(A, z, of_level, _aggregates(A, of_level))
    return None if level.problem or not level.has_a_smooth_vector() else level


def _block(rows: Csr, everybody: RankGroup) -> Block:
    """This rank's rows of a matrix, in the columns of the whole."""
    rank = everybody.comm.rank
    return Block(list(everybody.starts), rank, rows.indptr, rows.indices.astype(np.int64), rows.data)


def _at_owners(part: Csr, starts: Sequence[int], everybody: RankGroup) -> Csr:
    """This rank's rows of the sum of all ranks' parts, each of which has all rows.  Collective."""
    comm = everybody.comm
    first, last = starts[comm.rank], starts[comm.rank + 1]
    part.sort_indices()
    own, i = part[first:last], rows_of_entries(part)
    away = np.concatenate([np.arange(part.indptr[first]), np.arange(part.indptr[last], part.nnz)])
    rows, columns, values = at_their_owners(comm, starts, i[away], part.indices[away], part.data[away])
    where = rows.astype(np.int64) - first, columns.astype(np.int64)
    return sparse.csr_array(own + sparse.coo_array((values, where), shape=own.shape).tocsr())


def _aggregates(A: Csr, everybody: RankGroup) -> Aggregates:
    """Unknowns that are strongly connected within this rank, together.  Collective."""
    of, mine = everybody.alike(lambda: _of_block(for_pyamg(A[:, : A.shape[0]])))
    counts = everybody.comm.bcast_object(everybody.comm.gather_objects(mine))
    starts = tuple(accumulate(counts, initial=0))
    first = starts[everybody.comm.rank]
    return Aggregates(np.where(of >= 0, of + first, -1), first, mine, starts)


def _of_block(block: Any) -> tuple[Array, int]:
    """The aggregate of each row of a square matrix, -1 where there is none, and how many there are."""
    from pyamg.aggregation import standard_aggregation
    from pyamg.strength import symmetric_strength_of_connection

    of = np.full(block.shape[0], -1, np.int64)
    if block.shape[0]:
        belongs = standard_aggregation(symmetric_strength_of_connection(block, theta=STRONG))[0].tocoo()
        of[belongs.row] = belongs.col
    return of, int(of.max(initial=-1)) + 1


def _smooth(A: Csr, everybody: RankGroup) -> Array:
    """A vector that sweeps hardly change, from ones.  Collective."""
    z, diagonal = np.ones(A.shape[0]), A.diagonal()
    for _ in range(SWEEPS):
        z -= DAMPING * (A @ everybody.with_halo(z)) / diagonal
    return z


def _prolongation(A: Csr, found: Aggregates, z: Array, norms: Array, everybody: RankGroup) -> Csr:
    """This rank's rows of P, in the columns of all aggregates.  Collective."""
    belongs, i = found.of >= 0, rows_of_entries(A)
    values = np.zeros(A.shape[0])
    values[belongs] = z[belongs] / norms[found.of[belongs] - found.first]
    T = _tentative(everybody.with_halo(values), everybody.with_halo(found.of), found.all)
    weight = OMEGA / np.copysign(abs(A) @ np.ones(A.shape[1]), A.diagonal())
    step = sparse.csr_array(((A.indices == i) - weight[i] * A.data, A.indices, A.indptr), shape=A.shape)
    return sparse.csr_array(step @ T)


def _tentative(values: Array, of: Array, columns: int) -> Csr:
    there = of >= 0
    indptr = np.concatenate([[0], np.cumsum(there)])
    return sparse.csr_array((values[there], of[there], indptr), shape=(of.size, columns))


def _whole(told: Sequence[tuple[Csr, Array]], depth: int) -> tuple[list[Grid], str]:
    """C, level `depth`, and the levels below it, from every rank's rows of C and of T^T z; or none, and why."""
    C = sparse.csr_array(sparse.vstack([rows for rows, _ in told], format="csr"))
    try:
        grids = [Grid(C)] if C.shape[0] <= COARSEST else _by_pyamg(C, np.concatenate([norms for _, norms in told]))
    except (ValueError, ArithmeticError, IndexError, RuntimeError, np.linalg.LinAlgError) as error:
        return [], f"PyAMG built no hierarchy: {error}"
    problem = next((f"level {k} {bad}" for k, grid in enumerate(grids, depth) if (bad := unfit(grid))), "")
    return grids, problem


def _by_pyamg(C: Csr, z: Array) -> list[Grid]:
    """C and PyAMG's levels of it, which keep z."""
    import pyamg

    with one_thread(), warnings.catch_warnings(), np.errstate(all="ignore"):  # the other cores are other ranks'
        warnings.simplefilter("ignore")
        made = pyamg.smoothed_aggregation_solver(
            for_pyamg(C),
            B=z[:, None],
            strength=("symmetric", {"theta": STRONG}),
            smooth=("jacobi", {"omega": OMEGA, "weighting": "local"}),
            improve_candidates=None,
            max_coarse=COARSEST,
        )
    grids = [Grid(*(fp64(getattr(level, name, None)) for name in "APR")) for level in made.levels]
    return [*grids[:-1], Grid(grids[-1].A)]
