"""Smoothed aggregation over ranks: the finest level is cut as A is, the coarser ones are gathered, alike on all ranks.

    T    z_i in row i and the column of its aggregate, which lies on one rank; each column is scaled to norm 1
    P    (I - ω D^-1 A) T, ω = 4/3 over the spectral radius of D^-1 A        (Vaněk, Mandel and Brezina 1996)
    C    P^T A P, the sum of what the ranks have of it: the coarser matrix

z is smooth: what Jacobi sweeps on A z = 0 leave of a constant x.  PyAMG finds the aggregates and the levels below C.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import scipy.sparse as sparse

from mxpeak.kernels.host.blas import one_thread
from mxpeak.library.inputs import Array
from mxpeak.library.sparse.amg import COARSEST, Factor, Grid, fp64, unfit
from mxpeak.library.sparse.everybody import Everybody
from mxpeak.library.sparse.inputs import Csr, rows_of_entries
from mxpeak.library.sparse.scaling import Scaling, largest_exponent
from mxpeak.library.sparse.sharing import Coupling, SharedGrid, overlapping
from mxpeak.runtime.nodes import by_root

#: Neighbours may share an aggregate where |a_ij| is at least this times the root of a_ii a_jj.
STRONG = 0.02
#: Jacobi sweeps that make z smooth, and their weight; steps that estimate a spectral radius, and what they may miss.
SWEEPS, DAMPING, STEPS, MISSED = 10, 2 / 3, 15, 1.1
#: ω times the spectral radius.
OMEGA = 4 / 3
#: Rows of C that every rank may have to hold.
MOST_GATHERED = 2_000_000


@dataclass(frozen=True, slots=True)
class Aggregates:
    """The aggregate of each of this rank's unknowns, by its number among all, or -1; `mine` and `all` count them."""

    of: Array
    first: int
    mine: int
    all: int


def aggregated(A: Csr, A_s: Csr, scaling: Scaling, everybody: Everybody) -> tuple[list[SharedGrid | Grid], str]:
    """The levels of A_s = D_r A D_c, this rank's part of the finest first; or none, and why.  Collective.

    All is done with B = 2^k A, near 1, which is symmetric where A is; P becomes D_c^-1 P, and R = 2^k P^T D_r^-1.
    """
    k = -int(everybody.largest(largest_exponent(A.data, 0, np)))
    B = sparse.csr_array((np.ldexp(A.data, k), A.indices, A.indptr), shape=A.shape)
    found, n = _aggregates(B, everybody), everybody.sum(A.shape[0])
    if not 0 < found.all <= min(n / 2, MOST_GATHERED):
        return [], f"smoothed aggregation has {found.all} aggregates of {n:.0f} unknowns"
    with np.errstate(all="ignore"):
        z = _smooth(B, everybody)
        norms = np.sqrt(np.bincount(found.of[found.of >= 0] - found.first, z[found.of >= 0] ** 2, found.mine))
        if not everybody.all(np.isfinite(z).all() and norms.all()):
            return [], "smoothed aggregation found no smooth vector"
        P = _prolongation(B, found, z, norms, everybody)
        part = sparse.coo_array(P.T @ (B @ everybody.rows_with_halo(P)))
    told = everybody.comm.gather_objects((part.coords, part.data, norms))
    coarse, problem = by_root(everybody.comm, lambda: _levels(told or [], found.all))
    return ([_finest(A_s, P, k, scaling, everybody), *coarse] if not problem else []), problem


def _finest(A: Csr, P: Csr, k: int, scaling: Scaling, everybody: Everybody) -> SharedGrid:
    """The finest level in the scales of A.  Collective."""
    R = sparse.csr_array(P.T)
    own = scaling.columns[: A.shape[0]] if scaling.active else 0
    R.data = Factor(1.0, k - scaling.rows).entries(R.data, R.indices)
    P.data = Factor(1.0, -own).entries(P.data, rows_of_entries(P))
    return SharedGrid(A, Coupling(P), Coupling(R), overlapping(A, everybody), everybody)


def _aggregates(A: Csr, everybody: Everybody) -> Aggregates:
    """Unknowns that are strongly connected within this rank, together.  Collective."""
    of, mine = everybody.alike(lambda: _of_block(sparse.csr_matrix(A[:, : A.shape[0]])))
    counts = everybody.comm.bcast_object(everybody.comm.gather_objects(mine))
    first = list(accumulate(counts, initial=0))[everybody.comm.rank]
    return Aggregates(np.where(of >= 0, of + first, -1), first, mine, sum(counts))


def _of_block(block: Any) -> tuple[Array, int]:
    """The aggregate of each row of a square matrix, -1 where there is none, and how many there are."""
    from pyamg.aggregation import standard_aggregation
    from pyamg.strength import symmetric_strength_of_connection

    of = np.full(block.shape[0], -1, np.int64)
    if block.shape[0]:
        belongs = standard_aggregation(symmetric_strength_of_connection(block, theta=STRONG))[0].tocoo()
        of[belongs.row] = belongs.col
    return of, int(of.max(initial=-1)) + 1


def _smooth(A: Csr, everybody: Everybody) -> Array:
    """A vector that sweeps hardly change, from ones.  Collective."""
    z, diagonal = np.ones(A.shape[0]), A.diagonal()
    for _ in range(SWEEPS):
        z -= DAMPING * (A @ everybody.with_halo(z)) / diagonal
    return z


def _prolongation(A: Csr, found: Aggregates, z: Array, norms: Array, everybody: Everybody) -> Csr:
    """This rank's rows of P, in the columns of all aggregates.  Collective."""
    n, diagonal, belongs = A.shape[0], A.diagonal(), found.of >= 0
    values = np.zeros(n)
    values[belongs] = z[belongs] / norms[found.of[belongs] - found.first]
    T = _tentative(everybody.with_halo(values), everybody.with_halo(found.of), found.all)
    omega = OMEGA / _radius(A, diagonal, everybody)
    P = T[:n] - sparse.diags_array(omega / diagonal) @ (A @ T)
    return sparse.csr_array(P)


def _tentative(values: Array, of: Array, columns: int) -> Csr:
    there = np.flatnonzero(of >= 0)
    return sparse.coo_array((values[there], (there, of[there])), shape=(of.size, columns)).tocsr()


def _radius(A: Csr, diagonal: Array, everybody: Everybody) -> float:
    """The spectral radius of D^-1 A, about, and seldom too small: by power iteration.  Collective."""
    v = np.random.default_rng(everybody.comm.rank).uniform(-1.0, 1.0, A.shape[0])
    size = 1.0
    for _ in range(STEPS):
        v = A @ everybody.with_halo(v / everybody.norm(v, np)) / diagonal
        size = everybody.norm(v, np)
    return MISSED * size


def _levels(told: Sequence[tuple[Any, Array, Array]], n: int) -> tuple[list[Grid], str]:
    """C and the levels below it, from every rank's part of C and of T^T z; or none, and why."""
    i, j = (np.concatenate([coords[axis] for coords, _, _ in told]) for axis in (0, 1))
    C = sparse.coo_array((np.concatenate([data for _, data, _ in told]), (i, j)), shape=(n, n)).tocsr()
    try:
        grids = [Grid(C)] if n <= COARSEST else _below(C, np.concatenate([norms for _, _, norms in told]))
    except (ValueError, ArithmeticError, IndexError, RuntimeError, np.linalg.LinAlgError) as error:
        return [], f"PyAMG made no hierarchy: {error}"
    problem = next((f"level {depth} {bad}" for depth, grid in enumerate(grids, 2) if (bad := unfit(grid))), "")
    return grids, problem


def _below(C: Csr, z: Array) -> list[Grid]:
    """C and PyAMG's levels of it, which keep z."""
    import pyamg

    with one_thread(), warnings.catch_warnings(), np.errstate(all="ignore"):  # the other cores are other ranks'
        warnings.simplefilter("ignore")
        made = pyamg.smoothed_aggregation_solver(
            sparse.csr_matrix(C),
            B=z[:, None],
            strength=("symmetric", {"theta": STRONG}),
            smooth=("jacobi", {"omega": OMEGA, "weighting": "local"}),  # sums of rows: no spectral radius to estimate
            improve_candidates=None,
            max_coarse=COARSEST,
        )
    grids = [Grid(*(fp64(getattr(level, name, None)) for name in "APR")) for level in made.levels]
    return [*grids[:-1], Grid(grids[-1].A)]
