"""Levels of multigrid whose rows lie with ranks: found on rank 0 from the rows of all, and dealt out.

Ruge and Stüben's coarse points depend on all rows before them, so where the ranks cut the matrix would cost steps.  As
long as one rank has room for all rows it therefore makes the hierarchy of one process.  Each level's rows, and those
of P and R, go to their ranks; levels of few rows go to all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sparse

from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import run_on_root
from mxpeak.distributed.halo import Partner, numbered, partners
from mxpeak.distributed.rows import Block, distribute
from mxpeak.kernels.contract.sparse import SparseKernels
from mxpeak.library.inputs import Array
from mxpeak.library.sparse.amg import COMPLEXITY, Grid, complexity, hierarchy
from mxpeak.library.sparse.gather import MOST_GATHERED, named, no_room, stacked
from mxpeak.library.sparse.inputs import Csr, rows_of_entries
from mxpeak.library.sparse.rank_group import RankGroup
from mxpeak.library.sparse.scaling import Scaling
from mxpeak.runtime.nodes import nodes_of

#: Rows from which on aggregation takes less time than Ruge and Stüben's levels, in one process too, unless many
#: connections are weak or units differ: then it takes many steps.  What those levels take of rank 0's memory an entry.
EVEN, BYTES_AN_ENTRY = 200_000, 128
#: A connection is weak below this share of the largest of its row; many are more than this share of all.
WEAK, MANY_WEAK = 0.25, 0.05
#: Levels of fewer rows are not worth their messages: every rank has them as a whole.
LEAST_SHARED = 10_000


@dataclass(frozen=True, slots=True)
class Coupling:
    """A rank's rows of P or R in columns of its own: first its unknowns of the other level, then those of `partners`.

    Without partners the other level is whole on every rank: P has all its columns, R all its rows.
    """

    T: Csr
    partners: tuple[Partner, ...] = ()


@dataclass(frozen=True, slots=True)
class Overlap:
    """A rank's rows and those of its halo as one square matrix, in the sequence of the whole.

    before   rows of the halo that precede the rank's own
    colours  of all these rows, in which sweeps take them; None: to be found
    """

    A: Csr
    before: int
    colours: Array | None = None


@dataclass(frozen=True, slots=True)
class SharedGrid:
    """One level of a hierarchy whose rows lie with ranks: this rank's part, in columns of its own."""

    A: Csr
    P: Coupling
    R: Coupling
    overlap: Overlap
    everybody: RankGroup


@dataclass(frozen=True, slots=True)
class _Whole:
    """A level on rank 0, and the colour of each row."""

    A: Csr
    P: Csr
    R: Csr
    colours: Array


def shared_hierarchy(kernels: SparseKernels, A: Csr, A_s: Csr, scaling: Scaling) -> tuple[list[SharedGrid | Grid], str]:
    """One process's levels of A below A_s = D_r A D_c, over the ranks; or none and why there are none.  Collective."""
    everybody = scaling.everybody
    comm, starts = everybody.comm, everybody.starts
    if problem := unwanted(A, scaling) or _no_room(everybody, int(everybody.sum(A.nnz))):
        return [], problem
    rows = [comm.gather_objects(named(M, everybody)) for M in ((A, A_s) if scaling.active else (A,))]
    scales = comm.gather_objects((scaling.rows, scaling.columns[: A.shape[0]]) if scaling.active else None)
    levels: list[_Whole] = []

    def make() -> tuple[list[Sequence[int]], list[Grid], str]:
        whole = [stacked(parts or [], starts[-1]) for parts in rows]
        grids, problem = hierarchy(whole[0], whole[-1], _joined(scales or []))
        if problem or complexity(grids) > COMPLEXITY:
            return [], [], problem or f"PyAMG's levels have {complexity(grids):.1f} times the entries of A"
        if len(grids) == 1:  # small enough to be solved as it is
            same = sparse.eye_array(starts[-1], format="csr")
            grids = [Grid(grids[0].A, same, same), grids[0]]
        few = _shared(grids)
        levels.extend(_Whole(grid.A, grid.P, grid.R, _colours(kernels, grid.A)) for grid in grids[:few])
        return [starts, *(_cut(grid.A, comm.size) for grid in grids[1:few])], grids[few:], ""

    firsts, coarse, problem = run_on_root(comm, make)
    found = [_dealt(comm, levels[depth] if levels else None, firsts[depth:][:2]) for depth in range(len(firsts))]
    if found:
        found[0] = replace(found[0], A=A_s)
    return [*found, *coarse], problem


def _shared(grids: Sequence[Grid]) -> int:
    """How many levels are shared: the finest one, and those below that have rows enough; never the coarsest."""
    below = enumerate(grids[1:], 1)
    return next(depth for depth, grid in below if not worth_sharing(grid.A.shape[0]) or grid.P is None)


def worth_sharing(n: int) -> bool:
    """Whether a coarser level of n rows is cut for the ranks."""
    return n >= LEAST_SHARED


def unwanted(A: Csr, scaling: Scaling) -> str:
    """Why Ruge and Stüben's levels of A take longer than aggregation, if they do.  Collective."""
    everybody = scaling.everybody
    n = int(everybody.sum(A.shape[0]))
    gathered = everybody.alone or n <= MOST_GATHERED
    if n <= EVEN or (gathered and (scaling.active or weak_share(A, everybody) > MANY_WEAK)):
        return ""
    return f"{n} rows are too many to build levels on one rank"


def _no_room(everybody: RankGroup, nnz: int) -> str:
    """Why rank 0 cannot make the levels of all ranks' rows, if it cannot.  Collective."""
    here = nodes_of(everybody.comm, None).max_ranks
    return no_room(everybody, nnz, BYTES_AN_ENTRY * nnz, f"levels of {nnz} entries", here)


def weak_share(A: Csr, everybody: RankGroup) -> float:
    """The share of entries beside the diagonal that are small for their row.  Collective."""
    i = rows_of_entries(A)
    beside = A.indices != i
    size, lines = np.abs(A.data[beside]), i[beside]
    largest = np.zeros(A.shape[0])
    np.maximum.at(largest, lines, size)
    weak = float(np.count_nonzero(size < WEAK * largest[lines]))
    return everybody.sum(weak) / max(everybody.sum(float(size.size)), 1.0)


def _joined(scales: Sequence[Any]) -> Scaling:
    """The scaling of all rows, as one process would have it."""
    if scales[0] is None:
        return Scaling()
    rows, columns = (np.concatenate([part[axis] for part in scales]) for axis in (0, 1))
    return Scaling(rows, columns)


def _colours(kernels: SparseKernels, A: Csr) -> Array:
    """Of every row, as one process would sweep over them."""
    rows = kernels.rows_of(A.indptr, A.indices, A.data, A.shape[0], 0)
    if not kernels.is_symmetric_pattern(rows):
        rows = kernels.with_symmetric_pattern(rows)
    order = kernels.order(rows, "greedy")
    found = np.empty(A.shape[0], np.int32)
    found[order.new_to_old] = np.repeat(np.arange(order.groups, dtype=np.int32), np.diff(order.starts))
    return found


def _cut(A: Csr, ranks: int) -> list[int]:
    """The first row of every rank, and n: about as many entries each."""
    shares = np.searchsorted(A.indptr, int(A.indptr[-1]) * np.arange(1, ranks) / ranks)
    return [0, *(int(row) for row in shares), A.shape[0]]


# --- from rank 0 to all -------------------------------------------------------------------------------------------


def _dealt(comm: Communicator, whole: _Whole | None, firsts: Sequence[Sequence[int]]) -> SharedGrid:
    """This rank's part of a level; `firsts` are the ranks' first rows of it, and of the next, if it is shared.

    Collective.
    """
    starts, *coarse = firsts
    A, with_whom = local_columns(comm, distribute(comm, whole and whole.A, starts), starts)
    everybody = RankGroup(comm, tuple(starts), with_whom)
    painted = comm.bcast_object(whole and whole.colours)
    mine = painted[starts[comm.rank] : starts[comm.rank + 1]]
    rows_of_P = distribute(comm, whole and whole.P, starts)
    if coarse:
        P = Coupling(*local_columns(comm, rows_of_P, coarse[0]))
        R = Coupling(*local_columns(comm, distribute(comm, whole and whole.R, coarse[0]), starts))
    else:
        P = Coupling(_csr(rows_of_P, comm.bcast_object(whole and whole.P.shape[1])))
        columns = distribute(comm, whole and sparse.csr_array(whole.R.T), starts)
        R = Coupling(sparse.csr_array(_csr(columns, P.T.shape[1]).T))
    return SharedGrid(A, P, R, overlapping(A, everybody, everybody.with_halo(mine)), everybody)


def local_columns(comm: Communicator, rows: Block, starts: Sequence[int]) -> tuple[Csr, tuple[Partner, ...]]:
    """Rows of a matrix whose columns are cut at `starts`, in this rank's columns, and whom it shares them with."""
    n = starts[comm.rank + 1] - starts[comm.rank]
    columns, halo = numbered(Block(list(starts), comm.rank, rows.indptr, rows.columns, rows.data))
    A = sparse.csr_array((rows.data, columns.astype(np.int32), rows.indptr), shape=(rows.n, n + halo.size))
    A.sort_indices()
    return A, tuple(partners(comm, starts, halo))


def _csr(rows: Block, columns: int) -> Csr:
    return sparse.csr_array((rows.data, rows.columns.astype(np.int32), rows.indptr), shape=(rows.n, columns))


def overlapping(A: Csr, everybody: RankGroup, colours: Array | None = None) -> Overlap:
    """The rows of A and of its halo, without columns beyond; `colours` has one for each column of A.  Collective."""
    n, first = A.shape[0], everybody.first
    columns = everybody.with_halo(np.arange(first, first + n))
    sequence = np.argsort(columns, kind="stable")
    ascending, before = columns[sequence], int(np.count_nonzero(columns[n:] < first))
    theirs = everybody.rows_with_halo(named(A, everybody))[n:]
    at = np.minimum(np.searchsorted(ascending, theirs.indices), columns.size - 1)
    kept = ascending[at] == theirs.indices
    indptr = np.concatenate([[0], np.cumsum(kept)])[theirs.indptr]
    halo = sparse.csr_array((theirs.data[kept], at[kept], indptr), shape=(columns.size - n, columns.size))
    place = np.argsort(sequence)  # its inverse: only rows of the halo are looked up
    own = sparse.csr_array((A.data, place[A.indices], A.indptr), shape=(n, columns.size))
    square = sparse.vstack([halo[:before], own, halo[before:]], format="csr")
    square.sort_indices()
    return Overlap(square, before, None if colours is None else colours[sequence])
