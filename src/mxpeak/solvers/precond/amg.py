"""Algebraic multigrid: PyAMG or aggregation builds the levels, and mxpeak's kernels apply the cycle.

    x   = S b                     one sweep from zero
    r   = R (b - A x)             solved on the coarser level: x_coarse
    x  += P x_coarse
    x   = a sweep from x          for overlapping sweeps x += S (b - A x)

On one process, S = (D + L)^-1 is a colored Gauss–Seidel sweep. On a level that is distributed over ranks, S is an
overlapping sweep. On the coarser levels, every rank stores the whole level. The coarsest level is solved by its
inverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import numpy as np

from mxpeak.comm.base import Communicator
from mxpeak.distributed.csr import Csr
from mxpeak.distributed.halo import Exchange
from mxpeak.distributed.rank_group import RankGroup
from mxpeak.distributed.spaces import vector_type, zeros
from mxpeak.distributed.sparse import SparseMatrix
from mxpeak.kernels.contract.sparse import Order, Part, SparseKernels, Vector
from mxpeak.runtime.host_modes import one_thread
from mxpeak.solvers.precond.aggregation import aggregated
from mxpeak.solvers.precond.equilibration import Equilibration
from mxpeak.solvers.precond.formats import narrowest
from mxpeak.solvers.precond.geometric import Multigrid
from mxpeak.solvers.precond.levels import COARSEST, Coupling, LevelMatrices, complexity
from mxpeak.solvers.precond.matrix_builder import MatrixBuilder, one_group
from mxpeak.solvers.precond.ruge_stuben import COMPLEXITY, Levels, aggregation_is_faster, ruge_stuben, too_complex
from mxpeak.solvers.precond.schwarz import Overlap, OverlappingSweep
from mxpeak.spans import Spans

#: Largest spread of the row or column scales in powers of two, because PyAMG uses the unscaled matrix.
MAX_RANGE = 40


def amg_levels(
    kernels: SparseKernels, A: Csr, A_s: Csr, scaling: Equilibration, *, automatic: bool
) -> tuple[Levels, str]:
    """Build the levels of A below A_s = D_r A D_c by the fastest method that works, or return why all methods failed.

    `automatic` rejects levels with too many entries even on one process. Collective.
    """
    serial = scaling.group.is_serial
    if scaling.active and scaling.range > MAX_RANGE:
        return [], f"the scales of its rows or columns spread over 2^{scaling.range}, too far for algebraic multigrid"
    prefer_aggregation = aggregation_is_faster(A, scaling)
    levels, problem = list[LevelMatrices](), "no method suits it"
    if prefer_aggregation:
        levels, problem = aggregated(A, A_s, scaling)
    if problem and (serial or not prefer_aggregation):
        levels, problem = ruge_stuben(kernels, A, A_s, scaling)
    if problem and not serial and not prefer_aggregation:
        levels, problem = aggregated(A, A_s, scaling)
    if serial and automatic and levels and complexity(levels) > COMPLEXITY:
        problem = too_complex(levels)
    return ([], problem) if problem else (levels, "")


class Transfer:
    """A rectangular matrix T that computes y += T x; the kernels treat all its columns as halo columns.

    own   this rank's part of x, which the caller fills before `receive`
    """

    def __init__(
        self, kernels: SparseKernels, coupling: Coupling, rows: Order, columns: Order, vectors: str, comm: Communicator
    ):
        n, width = coupling.T.shape
        T = coupling.T[rows.new_to_old]
        if width != columns.old_to_new.size:  # with columns of other ranks, which are stored in their original order
            columns = one_group(width)
        numbered = columns.old_to_new[T.indices].astype(np.int64) + n
        self._kernels = kernels
        self._T = kernels.store(
            kernels.rows_of(T.indptr, numbered, T.data, n, width), one_group(n), vectors, vectors, "sell"
        )
        self._x = kernels.halo_vector(self._T)
        self.own, self._halo = self._x[n : n + coupling.own], self._x[n + coupling.own : n + width]
        self._exchange = Exchange(kernels, comm, coupling.partners, one_group(coupling.own), vectors)
        self.nnz, self.bytes = int(T.nnz), self._T.bytes + int(self._x.nbytes)

    def receive(self) -> None:
        """Receive the entries of x that other ranks own. Collective."""
        self._exchange.complete(self.own, self._halo)

    def add_to(self, y: Vector) -> None:
        """Compute y += T x after `receive`."""
        self._kernels.matvec(y, self._T, self._x, part=Part.BOUNDARY)


class Smoother(Protocol):
    """Interface for the sweeps on a level, and for the residual after the first sweep."""

    @property
    def order(self) -> Order | None:
        """Return the order of the sweeps, or None if it is the order of the matrix."""

    @property
    def bytes(self) -> int:
        """Return the memory of the smoother in bytes."""

    def presmooth(self, b: Vector, x: Vector) -> None:
        """Compute x = S b, one sweep from zero. Collective."""

    def residual(self, b: Vector, x: Vector, r: Vector) -> None:
        """Compute r = b - A x after `presmooth`. Collective."""

    def postsmooth(self, b: Vector, x: Vector) -> None:
        """Improve x by another sweep, which starts from the current x. Collective."""


class GaussSeidel:
    """Forward Gauss–Seidel sweeps on a level that this rank stores completely."""

    order, bytes = None, 0

    def __init__(self, builder: MatrixBuilder, A: SparseMatrix):
        self._A, self._rows = A, builder.points(A.n, lambda: np.arange(A.n, dtype=np.int32))

    def presmooth(self, b: Vector, x: Vector) -> None:
        """Compute x = (D + L)^-1 b."""
        self._A.relax_from_zero(b, x)

    def residual(self, b: Vector, x: Vector, r: Vector) -> None:
        """Compute r = b - A x, which is -U x after a sweep from zero."""
        self._A.residual_at(b, x, self._rows, r, swept=True)

    def postsmooth(self, b: Vector, x: Vector) -> None:
        """Improve x by a forward sweep, which starts from the current x."""
        self._A.relax(b, x)


class SymmetricGaussSeidel:
    """Forward and backward Gauss–Seidel sweeps on a level that this rank stores completely."""

    order = None

    def __init__(self, builder: MatrixBuilder, A: SparseMatrix):
        self._A, self._rows = A, builder.points(A.n, lambda: np.arange(A.n, dtype=np.int32))
        self._keep = zeros(builder.kernels, A.n, A.A.vectors)
        self.bytes = int(self._keep.nbytes)

    def presmooth(self, b: Vector, x: Vector) -> None:
        """Compute x = (D + U)^-1 D (D + L)^-1 b."""
        self._A.relax_from_zero(b, x, self._keep)
        self._A.relax_backward(b, x, self._keep)

    def residual(self, b: Vector, x: Vector, r: Vector) -> None:
        """Compute r = b - A x, of which the backward sweep has left b - keep - L x."""
        self._A.residual_at(b, x, self._rows, r, keep=self._keep)

    def postsmooth(self, b: Vector, x: Vector) -> None:
        """Improve x by a forward and a backward sweep, which start from the current x."""
        self._A.relax(b, x, self._keep)
        self._A.relax_backward(b, x, self._keep)


class Schwarz:
    """Overlapping sweeps on a level whose rows are distributed."""

    def __init__(self, builder: MatrixBuilder, A: SparseMatrix, group: RankGroup, overlap: Overlap):
        self._kernels, self._A = builder.kernels, A
        self._r, self._sweep = zeros(builder.kernels, A.n, A.A.vectors), OverlappingSweep(builder, overlap, group, A)
        self.order, self.bytes = self._sweep.order, self._sweep.bytes

    def presmooth(self, b: Vector, x: Vector) -> None:
        """Compute x = S b, one overlapping sweep from zero. Collective."""
        self._sweep(b, self._A.own(x))

    def residual(self, b: Vector, x: Vector, r: Vector) -> None:
        """Compute r = b - A x. Collective."""
        self._A.multiply(x, r)
        self._kernels.subtract_from(r, b)

    def postsmooth(self, b: Vector, x: Vector) -> None:
        """Improve x by another overlapping sweep, x += S (b - A x). Collective."""
        self.residual(b, x, self._r)
        self._sweep(self._r, self._r)
        self._kernels.add_scaled(self._A.own(x), 1.0, self._r)


class AmgLevel:
    """A level of the cycle, except the coarsest.

    group   the ranks whose parts of the coarser residual are added up; None if no sum over ranks is needed
    """

    def __init__(
        self,
        builder: MatrixBuilder,
        A: SparseMatrix,
        smoother: Smoother,
        transfers: tuple[Transfer, Transfer],
        coarser: Any,
        group: RankGroup | None,
    ):
        kernels, self._spans = builder.kernels, builder.spans
        self.A, self.coarser, self._smoother, self._group = A, coarser, smoother, group
        self._P, self._R = transfers
        self.x, self.r = A.halo_vector(), zeros(kernels, coarser.A.n, A.A.vectors)

    def presmooth(self, b: Vector) -> None:
        """Compute x = S b, one sweep from zero. Collective."""
        self._smoother.presmooth(b, self.x)

    def restrict(self, b: Vector) -> None:
        """Compute r = R (b - A x), the residual on the coarser level. Collective."""
        self._smoother.residual(b, self.x, self._R.own)
        with self._spans("restriction", flops=2.0 * self._R.nnz, bytes=float(self._R.bytes)):
            self._R.receive()
            self.r[:] = 0.0
            self._R.add_to(self.r)
            if self._group is not None:
                self._group.add_up(self.r)

    def correct(self, coarse: Any) -> None:
        """Add P x_coarse, the correction of the coarser level, to x. Collective."""
        with self._spans("prolongation", flops=2.0 * self._P.nnz, bytes=float(self._P.bytes)):
            self._P.own[:] = coarse.A.own(coarse.x)
            self._P.receive()
            self._P.add_to(self.A.own(self.x))

    def postsmooth(self, b: Vector) -> None:
        """Improve x by another sweep, which starts from the current x. Collective."""
        self._smoother.postsmooth(b, self.x)


class Coarsest:
    """The last level, solved by its (pseudo-)inverse, or by one sweep if it is too large for an inverse."""

    coarser = r = None

    def __init__(self, A: SparseMatrix, inverse: Any, spans: Spans):
        self.A, self.x, self._inverse, self._spans = A, A.halo_vector(), inverse, spans

    def presmooth(self, b: Vector) -> None:
        """Compute x = A^-1 b with the stored inverse, or by one sweep if there is no inverse."""
        if self._inverse is None:
            self.A.relax_from_zero(b, self.x)
            return
        with self._spans("coarsest"):
            self.A.own(self.x)[:] = self._inverse @ b


def amg_multigrid(
    builder: MatrixBuilder, A: SparseMatrix, order: Order, levels: Sequence[LevelMatrices], *, symmetric: bool = False
) -> Multigrid:
    """Return the multigrid cycle on these levels; A is the stored matrix of the finest level.

    If `symmetric`, each sweep is a forward and a backward one, so that the cycle is symmetric on one process.
    """
    kernels, vectors = builder.kernels, A.A.vectors
    stored = [(A, order), *(_stored(builder, level, vectors) for level in levels[1:])]
    inverse = _inverse(kernels, levels[-1], stored[-1][1], vectors)
    top: Any = Coarsest(stored[-1][0], inverse, builder.spans)
    total = sum(B.A.bytes for B, _ in stored[1:]) + (0 if inverse is None else int(inverse.nbytes))
    sweep_order: Order | None = None
    for depth in reversed(range(len(levels) - 1)):
        level, (B, rows), (_, coarse_rows) = levels[depth], stored[depth], stored[depth + 1]
        assert level.P is not None
        assert level.R is not None
        smoother: Smoother = SymmetricGaussSeidel(builder, B) if symmetric else GaussSeidel(builder, B)
        if level.overlap is not None:
            smoother = Schwarz(builder, B, level.group, level.overlap)
        P = Transfer(kernels, level.P, rows, coarse_rows, vectors, level.group.comm)
        R = Transfer(kernels, level.R, coarse_rows, rows, vectors, level.group.comm)
        partial_sums = level.overlap is not None and levels[depth + 1].overlap is None
        top = AmgLevel(builder, B, smoother, (P, R), top, level.group if partial_sums else None)
        total, sweep_order = total + smoother.bytes + P.bytes + R.bytes, smoother.order
    return Multigrid(top, len(levels), total, sweep_order)


def _stored(builder: MatrixBuilder, level: LevelMatrices, vectors: str) -> tuple[SparseMatrix, Order]:
    """Store the matrix of a coarser level, and return it with the order of its rows.

    Values are stored exactly in a narrow format, or otherwise in the format of the vectors, because coarser rounding
    would remove the smooth part of the matrix.
    """
    kernels, (n, width) = builder.kernels, level.A.shape
    rows = kernels.rows_of(level.A.indptr, level.A.indices, level.A.data, n, width - n)
    order = one_group(n)
    if level.overlap is None and not level.has_inverse:
        rows, order = builder.ordered(rows)
    values = narrowest(kernels, rows) or vectors
    return builder.store(rows, order, values, vectors, brief=True, group=level.group), order


def _inverse(kernels: SparseKernels, level: LevelMatrices, order: Order, vectors: str) -> Any:
    """Return the pseudo-inverse of the coarsest matrix in its order; the matrix may be singular."""
    if not level.has_inverse:
        return None
    with one_thread() if level.n <= COARSEST else nullcontext():
        inverse = np.linalg.pinv(level.A.toarray())
    inverse = inverse[np.ix_(order.new_to_old, order.new_to_old)]
    return kernels.xp.asarray(np.ascontiguousarray(inverse), dtype=vector_type(kernels, vectors))
