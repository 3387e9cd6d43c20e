"""Sweeps over rows that ranks share, and a cycle of multigrid on such levels, above levels that each rank has whole.

    S   (D + L)^-1, or with a backward sweep, over a rank's rows and those of its halo, of which its own are kept
    x   = S b
    r   = R (b - A x)             solved on the coarser level: x_coarse
    x  += P x_coarse
    x  += S (b - A x)

Rows of the halo are swept by their owner and by those that need them: restricted additive Schwarz (Cai and Sarkis
1999).  With colours that are the same on all ranks, it is nearly the sweep of one process, for two messages a sweep.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mxpeak.distributed import halo
from mxpeak.distributed.halo import Exchange
from mxpeak.distributed.spaces import zeros
from mxpeak.distributed.sparse import SparseMatrix
from mxpeak.kernels.contract.sparse import Order, SparseKernels, Vector
from mxpeak.library.sparse.amg import Grid, Transfer, chain, stored
from mxpeak.library.sparse.distributed_amg import Coupling, Overlap, SharedGrid
from mxpeak.library.sparse.formats import narrowest
from mxpeak.library.sparse.preconditioners import MatrixBuilder, Multigrid, one_group
from mxpeak.library.sparse.rank_group import RankGroup


class OverlappingSweep:
    """x = S b; `symmetric`: forward and backward."""

    def __init__(
        self,
        workshop: MatrixBuilder,
        overlap: Overlap,
        everybody: RankGroup,
        A: SparseMatrix,
        *,
        symmetric: bool = False,
    ):
        kernels, n, vectors = workshop.kernels, A.n, A.A.vectors
        E, before, width = overlap.A, overlap.before, overlap.A.shape[0]
        self._own, self._before = slice(before, before + n), before
        whole = kernels.rows_of(E.indptr, E.indices, E.data, width, 0)
        rows, self.order = workshop.ordered(whole, overlap.colours)
        self._kernels, self._n = kernels, n
        self._E = workshop.store(rows, self.order, A.A.values, vectors, brief=True)
        self._exchange = everybody.exchange(kernels, one_group(n), vectors)
        at = np.concatenate([np.arange(n, n + before), np.arange(n), np.arange(n + before, width)])
        self._in_place = self.order.kind == "natural"
        self._there = kernels.xp.asarray(at[self.order.new_to_old].astype(np.int32))
        self._back = kernels.xp.asarray(self.order.old_to_new[self._own].astype(np.int32))
        self._b, self._b_swept = zeros(kernels, width, vectors), zeros(kernels, width, vectors)
        self._x = self._E.halo_vector()
        self._keep = zeros(kernels, width, vectors) if symmetric else None
        own = [v.nbytes for v in (self._b, self._b_swept, self._x, self._keep) if v is not None]
        self.bytes = int(self._E.A.bytes + sum(own))

    def __call__(self, b: Vector, x: Vector) -> None:
        """Sweep from zero.  Collective."""
        self._gather(b)
        self._E.relax_from_zero(self._b_swept, self._x, self._keep)
        if self._keep is not None:
            self._E.relax_backward(self._b_swept, self._x, self._keep)
        if self._in_place:
            x[:] = self._x[self._own]
        else:
            self._kernels.gather(self._x, self._back, x)

    def _gather(self, b: Vector) -> None:
        """The right-hand side of all rows that are swept, in their sequence.  Collective."""
        if self._in_place:
            halo, swept, before = self._b[self._n :], self._b_swept, self._before
            swept[self._own] = b
            received(self._exchange, swept[self._own], halo)
            swept[:before], swept[before + self._n :] = halo[:before], halo[before:]
            return
        self._b[: self._n] = b
        received(self._exchange, self._b[: self._n], self._b[self._n :])
        self._kernels.gather(self._b, self._there, self._b_swept)


class SharedSweep:
    """S r, forward and backward, as a preconditioner of a matrix whose rows are stored as they stand."""

    def __init__(self, workshop: MatrixBuilder, overlap: Overlap, everybody: RankGroup, A: SparseMatrix):
        self._sweep = OverlappingSweep(workshop, overlap, everybody, A, symmetric=True)
        self._A, self._x, self.order = A, A.halo_vector(), self._sweep.order
        self.bytes = self._sweep.bytes + int(self._x.nbytes)

    def __call__(self, r: Vector) -> Vector:
        """S r.  Collective."""
        self._sweep(r, self._A.own(self._x))
        return self._x


def received(exchange: Exchange, own: Vector, halo: Vector) -> None:
    """Fill the halo of a vector with what others have of it.  Collective."""
    travel = exchange.begin(own, halo)
    if travel is not None:
        travel.wait()


class SharedTransfer(Transfer):
    """y += T x, where a rank has some of x's numbers and gets the others that its rows meet."""

    def __init__(
        self, kernels: SparseKernels, side: Coupling, orders: tuple[Order, Order], vectors: str, of: RankGroup
    ):
        super().__init__(kernels, side.T, *orders, vectors)
        self._own = side.T.shape[1] - sum(one.received for one in side.partners)
        self._exchange = halo.exchange(kernels, of.comm, side.partners, one_group(self._own), vectors)

    def take(self, v: Vector) -> None:
        """Let x be v.  Collective."""
        self.x[: self._own] = v
        received(self._exchange, self.x[: self._own], self.x[self._own :])


class SharedLevel:
    """A level whose rows lie with ranks; `order` is that of the next coarser one, None where that is shared too."""

    def __init__(self, workshop: MatrixBuilder, A: SparseMatrix, grid: SharedGrid, coarser: Any, order: Order | None):
        kernels, vectors, n, everybody = workshop.kernels, A.A.vectors, A.n, grid.everybody
        self._kernels, self._spans, self._everybody, self._gathered = kernels, workshop.spans, everybody, order
        self.A, self.coarser, self.x = A, coarser, A.halo_vector()
        self.r, self._rest = zeros(kernels, coarser.A.n, vectors), zeros(kernels, n, vectors)
        self._sweep = OverlappingSweep(workshop, grid.overlap, everybody, A)
        self.order = self._sweep.order
        mine, theirs, beyond = one_group(n), order or one_group(grid.P.T.shape[1]), one_group(grid.R.T.shape[1])
        self._P = SharedTransfer(kernels, grid.P, (mine, theirs), vectors, everybody)
        self._R = SharedTransfer(kernels, grid.R, (order or one_group(coarser.A.n), beyond), vectors, everybody)
        self.bytes = self._sweep.bytes + self._P.bytes + self._R.bytes

    def presmooth(self, b: Vector) -> None:
        """x = S b."""
        self._sweep(b, self.A.own(self.x))

    def restrict(self, b: Vector) -> None:
        """r = R (b - A x).  Collective."""
        self._residual(b)
        with self._spans("restriction", flops=2.0 * self._R.nnz, bytes=float(self._R.bytes)):
            self._R.take(self._rest)
            self.r[:] = 0.0
            self._R.add_to(self.r)
            if self._gathered is not None:  # every rank has a part of each number
                self._everybody.add_up(self.r)

    def correct(self, coarse: Any) -> None:
        """x += P x_coarse.  Collective."""
        with self._spans("prolongation", flops=2.0 * self._P.nnz, bytes=float(self._P.bytes)):
            self._P.take(coarse.A.own(coarse.x))
            self._P.add_to(self.A.own(self.x))

    def postsmooth(self, b: Vector) -> None:
        """x += S (b - A x).  Collective."""
        self._residual(b)
        self._sweep(self._rest, self._rest)
        self._kernels.add_scaled(self.A.own(self.x), 1.0, self._rest)

    def _residual(self, b: Vector) -> None:
        """b - A x.  Collective."""
        self.A.multiply(self.x, self._rest)
        self._kernels.subtract_from(self._rest, b)


def shared_multigrid(workshop: MatrixBuilder, A: SparseMatrix, grids: Sequence[SharedGrid | Grid]) -> Multigrid:
    """A cycle on these levels, the finest of which is stored as A already, in the sequence in which it stands."""
    vectors = A.A.vectors
    shared = [grid for grid in grids if isinstance(grid, SharedGrid)]
    whole = [grid for grid in grids if isinstance(grid, Grid)]
    B, order = stored(workshop, whole[0], vectors)
    level, total = chain(workshop, B, order, whole)
    total += B.A.bytes
    gathered: Order | None = order
    for depth in reversed(range(len(shared))):
        M = _rows_of(workshop, shared[depth], vectors) if depth else A
        level = SharedLevel(workshop, M, shared[depth], level, gathered)
        total, gathered = total + level.bytes + (M.A.bytes if depth else 0), None
    return Multigrid(level, len(grids), total, level.order)


def _rows_of(workshop: MatrixBuilder, grid: SharedGrid, vectors: str) -> SparseMatrix:
    """A coarser level's rows as they stand."""
    kernels, (n, width) = workshop.kernels, grid.A.shape
    rows = kernels.rows_of(grid.A.indptr, grid.A.indices, grid.A.data, n, width - n)
    values = narrowest(kernels, rows) or vectors
    return workshop.store(rows, one_group(n), values, vectors, brief=True, everybody=grid.everybody)
