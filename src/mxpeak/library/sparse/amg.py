"""Algebraic multigrid: PyAMG's hierarchy (Ruge and Stüben's), with its levels smoothed and coupled by our kernels.

    x   = (D + L)^-1 b            one coloured sweep from zero
    r   = R (b - A x)             solved on the coarser level: x_coarse
    x  += P x_coarse
    x   = a sweep from x

The coarsest level is solved by its inverse.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sparse

from mxpeak.distributed.spaces import vector_type, zeros
from mxpeak.distributed.sparse import SparseMatrix
from mxpeak.kernels.contract.sparse import Order, SparseKernels, Vector
from mxpeak.kernels.host.engine.blas import one_thread
from mxpeak.library.inputs import Array
from mxpeak.library.sparse.formats import narrowest
from mxpeak.library.sparse.inputs import Csr, rows_of_entries
from mxpeak.library.sparse.preconditioners import MatrixBuilder, Multigrid, one_group
from mxpeak.library.sparse.scaling import Scaling, largest_exponent
from mxpeak.spans import Spans

#: Rows up to which a level is the coarsest, and up to which that is solved by its inverse and not smoothed.
COARSEST, DENSE = 200, 2000
#: `auto` rejects a hierarchy whose matrices have more entries in all than so many times those of A.
COMPLEXITY = 4.0
#: Powers of two over which the scales of rows or columns may spread: PyAMG works with the unscaled matrix.
MOST_RANGE = 40
#: Rows whose sum is by so much smaller than that of absolute values, in the mean, have constants for smooth vectors.
CONSTANT = 0.25
#: Symmetric sweeps that make a vector smooth.
SMOOTHING = 10


@dataclass(frozen=True, slots=True)
class Grid:
    """One level of a hierarchy from PyAMG: its matrix, and P and R that lead to the next; None on the coarsest."""

    A: Csr
    P: Csr = None
    R: Csr = None


def hierarchy(A: Csr, A_s: Csr, scaling: Scaling, coarsest: int = COARSEST) -> tuple[list[Grid], str]:
    """The levels of A below A_s = D_r A D_c, the finest first, or none and why there are none.

    PyAMG gets B = W A_s Z with its largest entry near 1, since it takes numbers below 1e-15 for zeros.  Its P and R
    become Z P and R W.
    """
    if A.shape[0] <= coarsest:
        return [Grid(A_s)], ""
    import pyamg

    rows, columns, near_one = _for_pyamg(A, A_s, scaling)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            made = pyamg.ruge_stuben_solver(near_one, max_coarse=coarsest)
        except (ValueError, ArithmeticError, IndexError, RuntimeError, np.linalg.LinAlgError) as error:
            return [], f"PyAMG built no hierarchy: {error}"
    if len(made.levels) == 1:
        return [], "PyAMG found no coarser level"
    grids = [Grid(*(fp64(getattr(level, name, None)) for name in "APR")) for level in made.levels]
    grids[-1] = Grid(grids[-1].A)
    P, R = grids[0].P, grids[0].R
    with np.errstate(over="ignore"):
        P.data = columns.entries(P.data, rows_of_entries(P))
        R.data = rows.entries(R.data, R.indices)
    grids[0] = Grid(A_s, P, R)
    for depth, grid in enumerate(grids, start=1):
        if bad := unfit(grid):
            return [], f"PyAMG's level {depth} {bad}"
    return grids, ""


@dataclass(frozen=True, slots=True)
class Factor:
    """A diagonal matrix, factor_i · 2^exponent_i: either part may be one number for all i."""

    factor: Any
    exponent: Any

    def entries(self, data: Array, lines: Array) -> Array:
        """Entries of a matrix whose rows or columns, told by `lines`, are multiplied."""
        factor, exponent = (part[lines] if np.ndim(part) else part for part in (self.factor, self.exponent))
        return np.asarray(np.ldexp(data * factor, exponent))


def _for_pyamg(A: Csr, A_s: Csr, scaling: Scaling) -> tuple[Factor, Factor, Csr]:
    """W, Z and W A_s Z, of which PyAMG makes levels.

    Interpolation by Ruge and Stüben is right for matrices whose rows sum to about zero.  If those of A do not, since
    units were mixed, smooth vectors of A_s take the place of constants: what some sweeps on A_s z = 0 leave (Brezina
    et al. 2006), and likewise of its transpose for W.
    """
    k = -largest_exponent(A.data, 0, np)
    unscaled = sparse.csr_matrix((np.ldexp(A.data, k), A.indices, A.indptr), shape=A.shape)
    if not scaling.active:
        return Factor(1.0, k), Factor(1.0, 0), unscaled
    as_given = Factor(1.0, k - scaling.rows), Factor(1.0, -scaling.columns), unscaled
    if _row_sums(unscaled) <= CONSTANT:
        return as_given
    z, w = _smooth(A_s), _smooth(A_s.T.tocsr())
    if z is not None and w is not None:
        i = rows_of_entries(A_s)
        adapted = sparse.csr_matrix((w[i] * A_s.data * z[A_s.indices], A_s.indices, A_s.indptr), shape=A.shape)
        if _row_sums(adapted) < _row_sums(unscaled):
            k = -largest_exponent(adapted.data, 0, np)
            adapted.data = np.ldexp(adapted.data, k)
            return Factor(w, k), Factor(z, 0), adapted
    return as_given


def _smooth(A: Csr) -> Array | None:
    """A positive vector near those that sweeps hardly change; none where sweeps leave no positive one."""
    from pyamg.relaxation.relaxation import gauss_seidel

    z = np.ones(A.shape[0])
    with np.errstate(all="ignore"):
        gauss_seidel(sparse.csr_matrix(A), z, np.zeros_like(z), iterations=SMOOTHING, sweep="symmetric")
    return z if np.isfinite(z).all() and (z > 0).all() else None


def _row_sums(A: Csr) -> float:
    """The mean of |Σ_j a_ij| / Σ_j |a_ij|, over all rows."""
    with np.errstate(all="ignore"):
        return float(np.nanmean(np.abs(A.sum(axis=1)) / abs(A).sum(axis=1)))


def for_pyamg(A: Csr) -> Any:
    """A as PyAMG takes it, which knows indices of 32 bits only: SciPy 1.13 has some of 64 where those would do."""
    M = sparse.csr_matrix(A)
    if M.nnz < 2**31:
        M.indices, M.indptr = M.indices.astype(np.int32, copy=False), M.indptr.astype(np.int32, copy=False)
    return M


def fp64(T: Any) -> Csr:
    """A matrix of PyAMG's as the kernels take it."""
    if T is None:
        return None
    T = sparse.csr_array(T).astype(np.float64, copy=False)
    T.sum_duplicates()
    return T


def unfit(grid: Grid) -> str:
    """What keeps a level from being smoothed or solved."""
    if not all(np.isfinite(T.data).all() for T in (grid.A, grid.P, grid.R) if T is not None):
        return "has entries that are not finite"
    smoothed = grid.P is not None or grid.A.shape[0] > DENSE
    if smoothed and not grid.A.diagonal().all():
        return "has zeros on its diagonal"
    return ""


def complexity(grids: list[Grid]) -> float:
    """Entries of all levels over those of the finest."""
    return float(sum(grid.A.nnz for grid in grids) / grids[0].A.nnz)


class Transfer:
    """y += T x, T rectangular: to the kernels its columns are all those of another rank."""

    def __init__(self, kernels: SparseKernels, T: Csr, rows: Order, columns: Order, vectors: str):
        n, halo = T.shape
        T = T[rows.new_to_old]
        numbered = columns.old_to_new[T.indices].astype(np.int64) + n
        self._kernels = kernels
        own = kernels.rows_of(T.indptr, numbered, T.data, n, halo)
        self._T = kernels.store(own, one_group(n), vectors, vectors, "sell")
        self._x = kernels.halo_vector(self._T)
        #: The vector x.
        self.x = self._x[n : n + halo]
        self.nnz, self.bytes = int(T.nnz), self._T.bytes + int(self._x.nbytes)

    def add_to(self, y: Vector) -> None:
        """y += T x."""
        self._kernels.matvec(y, self._T, self._x, halo=True)


class AmgLevel:
    """A level with a coarser one below."""

    def __init__(self, workshop: MatrixBuilder, A: SparseMatrix, P: Transfer, R: Transfer, coarser: Any):
        self._spans = workshop.spans
        self.A, self._P, self._R, self.coarser = A, P, R, coarser
        self.x, self.r = A.halo_vector(), zeros(workshop.kernels, coarser.A.n, A.A.vectors)
        self._everywhere = workshop.points(A.n, lambda: np.arange(A.n, dtype=np.int32))

    def presmooth(self, b: Vector) -> None:
        """x = (D + L)^-1 b."""
        self.A.relax_from_zero(b, self.x)

    def restrict(self, b: Vector) -> None:
        """r = R (b - A x)."""
        self.A.residual_at(b, self.x, self._everywhere, self._R.x, swept=True)
        with self._spans("restriction", flops=2.0 * self._R.nnz, bytes=float(self._R.bytes)):
            self.r[:] = 0.0
            self._R.add_to(self.r)

    def correct(self, coarse: Any) -> None:
        """x += P x_coarse."""
        with self._spans("prolongation", flops=2.0 * self._P.nnz, bytes=float(self._P.bytes)):
            self._P.x[:] = coarse.A.own(coarse.x)
            self._P.add_to(self.A.own(self.x))

    def postsmooth(self, b: Vector) -> None:
        """A sweep from x."""
        self.A.relax(b, self.x)


class Coarsest:
    """The last level: solved by its (pseudo-)inverse, or smoothed once where it is too large for one."""

    coarser = r = None

    def __init__(self, A: SparseMatrix, inverse: Any, spans: Spans):
        self.A, self.x, self._inverse, self._spans = A, A.halo_vector(), inverse, spans

    def presmooth(self, b: Vector) -> None:
        """x = A^-1 b."""
        if self._inverse is None:
            self.A.relax_from_zero(b, self.x)
            return
        with self._spans("coarsest"):
            self.A.own(self.x)[:] = self._inverse @ b


def amg_multigrid(workshop: MatrixBuilder, A: SparseMatrix, order: Order, grids: Sequence[Grid]) -> Multigrid:
    """A cycle on these levels, the finest of which is stored as A already."""
    level, total = chain(workshop, A, order, grids)
    return Multigrid(level, len(grids), total)


def chain(workshop: MatrixBuilder, A: SparseMatrix, order: Order, grids: Sequence[Grid]) -> tuple[Any, int]:
    """These levels, one above the other, the finest of which is stored as A already, and the bytes of all the rest."""
    kernels, vectors = workshop.kernels, A.A.vectors
    matrices, orders = [A], [order]
    for grid in grids[1:]:
        B, coarse_order = stored(workshop, grid, vectors)
        matrices.append(B)
        orders.append(coarse_order)
    inverse = _inverse(kernels, grids[-1].A, orders[-1], vectors)
    level: Any = Coarsest(matrices[-1], inverse, workshop.spans)
    total = sum(B.A.bytes for B in matrices[1:]) + (0 if inverse is None else int(inverse.nbytes))
    for depth in reversed(range(len(grids) - 1)):
        P = Transfer(kernels, grids[depth].P, orders[depth], orders[depth + 1], vectors)
        R = Transfer(kernels, grids[depth].R, orders[depth + 1], orders[depth], vectors)
        level = AmgLevel(workshop, matrices[depth], P, R, level)
        total += P.bytes + R.bytes
    return level, total


def stored(workshop: MatrixBuilder, grid: Grid, vectors: str) -> tuple[SparseMatrix, Order]:
    """A coarse level's matrix: in a format that rounds it to less than fp32 does, its smooth part would be lost."""
    kernels, n = workshop.kernels, grid.A.shape[0]
    rows = kernels.rows_of(grid.A.indptr, grid.A.indices, grid.A.data, n, 0)
    order = one_group(n)
    if grid.P is not None or n > DENSE:
        rows, order = workshop.ordered(rows)
    return workshop.store(rows, order, narrowest(kernels, rows) or vectors, vectors, brief=True), order


def _inverse(kernels: SparseKernels, A: Csr, order: Order, vectors: str) -> Any:
    """The coarsest matrix's inverse, in its order; a pseudo-inverse, since of a Neumann problem it is singular."""
    if A.shape[0] > DENSE:
        return None
    with one_thread() if A.shape[0] <= COARSEST else nullcontext():
        inverse = np.linalg.pinv(A.toarray())
    inverse = inverse[np.ix_(order.new_to_old, order.new_to_old)]
    return kernels.xp.asarray(np.ascontiguousarray(inverse), dtype=vector_type(kernels, vectors))
