"""Block L S L^T factorization of a symmetric indefinite matrix on a P×Q grid, of the lower triangle of A.

S is a diagonal matrix of signs. Each diagonal block is factored by eigenvalues,

    A11 = Q Λ Q^T,    L11 = Q |Λ|^(1/2),    S1 = sign(Λ),    L11^-1 = |Λ|^(-1/2) Q^T

so that every order of pivots inside a block is possible. There are no pivots between blocks. A random butterfly
transformation before the factorization makes a singular diagonal block improbable (Baboulin, Becker, Bosilca, Danalis,
Dongarra, "An efficient distributed randomized algorithm for solving large dense symmetric indefinite linear systems",
Parallel Computing 40, 2014). Growth is possible. It is measured, and large growth ends the factorization.
"""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

from mxpeak.comm.collectives import allreduce_scalars
from mxpeak.distributed.dense import DistMatrix
from mxpeak.distributed.spaces import max_abs
from mxpeak.kernels.contract import Kernels, Matrix, Vector
from mxpeak.layout.lu_schedule import LuEvent
from mxpeak.solvers.symmetric_elimination import SymmetricElimination, SymmetricPanel
from mxpeak.spans import Spans

#: Largest order of a block that is factored by its eigenvalues. Larger blocks are cut into halves, because eigenvalues
#: take about 20 times as long as a product.
EIGEN_ORDER = 64


class BlockLDL(NamedTuple):
    """The result of a factorization.

    breakdown   0, or the column, counted from 1, of the first diagonal block that is singular or too large
    signs       the diagonal of S, on every rank
    largest     max_i Σ_j l_ij², which is the largest entry of |L||L^T|
    """

    breakdown: int
    signs: Vector
    largest: float


def factorize(A: DistMatrix, limit: float, kernels: Kernels, spans: Spans) -> BlockLDL:
    """Factor the lower triangle of A in place.

    L replaces the blocks below the diagonal, and L_kk^-1 the diagonal blocks. Other entries are undefined. The backward
    error satisfies |ΔA| <= c·N·u·|L||L^T|. The factorization takes 1/3 N³ flops. It ends after the first diagonal block
    that is singular, or if an entry of |L||L^T| in a diagonal block exceeds `limit`. Collective over the grid.
    """
    elimination = _BlockLDL(A, limit, kernels, spans)
    breakdown = elimination.factorize()
    return BlockLDL(breakdown, elimination.signs, inf if breakdown else elimination.largest())


class _BlockLDL(SymmetricElimination):
    """The elimination with diagonal blocks A11 = L11 S1 L11^T; D is -L11^-T S1.

    signs     the diagonal of S
    squares   Σ_j l_ij² of this rank's rows, over the columns j of this rank
    """

    signed = True

    def __init__(self, A: DistMatrix, limit: float, kernels: Kernels, spans: Spans):
        super().__init__(A, A.precision, kernels, spans)
        self._limit = limit
        self.signs: Vector = kernels.xp.zeros(A.rows.n)
        self._squares: Vector = kernels.xp.zeros(A.rows.local_size)

    def factor_block(self, A11: Matrix, to: SymmetricPanel) -> None:
        """Factor the diagonal block, and write D, the signs and whether the block broke down."""
        xp, step = self.kernels.xp, to.step
        with self.spans("factor", flops=9.0 * step.jb**3):
            lower = xp.astype(xp.tril(A11), xp.float64)
            block = factored(lower + xp.tril(lower, k=-1).T, xp)
            squares = xp.sum(block.L * block.L, axis=1)
            stable = xp.all(xp.isfinite(block.inverse)) & (xp.max(squares) <= self._limit)
            self._squares[self.A.rows.local_range(step.j0, step.j1)] += squares
            A11[...] = block.inverse
            to.D[...] = -block.inverse.T * block.signs
            to.D_tail[:-1] = block.signs
            to.D_tail[-1:] = 0.0 if bool(stable) else 1.0

    def divide(self, A21: Matrix, to: SymmetricPanel) -> None:
        """Compute L21 = A21 L11^-T S1 = 0 - A21 D."""
        to.L[...] = 0.0
        self.kernels.subtract_product(to.L, A21, to.D)
        self.kernels.copy(to.L, A21)
        rows = slice(self.A.rows.local_start(to.step.j1), None)
        self._squares[rows] += self.kernels.xp.sum(to.L * to.L, axis=1)

    def await_panel(self, event: LuEvent) -> None:
        """Wait for a panel, and keep its signs."""
        super().await_panel(event)
        step = self.steps[event.k]
        self.signs[step.j0 : step.j1] = self.panels[event.k].signs

    def largest(self) -> float:
        """Return max_i Σ_j l_ij² over all ranks. Collective."""
        grid = self.A.grid
        grid.row.allreduce(self._squares, "sum")
        return allreduce_scalars(grid.all, [max_abs(self.kernels, self._squares)], "max", self.kernels.xp)[0]


class FactoredBlock(NamedTuple):
    """The factorization A = L S L^T of one block, and L^-1."""

    L: Matrix
    inverse: Matrix
    signs: Vector


def factored(A: Matrix, xp: Any) -> FactoredBlock:
    """Factor a symmetric block. The inverse contains inf or NaN if a part of the block is singular."""
    n = A.shape[0]
    if n > EIGEN_ORDER:
        return _factored_in_halves(A, n // 2, xp)
    if not bool(xp.all(xp.isfinite(A))):  # for which libraries raise errors
        return FactoredBlock(A, A * inf, xp.ones(n))
    eigenvalues, Q = xp.linalg.eigh(A)
    sizes = xp.sqrt(xp.abs(eigenvalues))
    ones = xp.ones_like(sizes)
    return FactoredBlock(Q * sizes, (Q / sizes).T, xp.where(eigenvalues < 0.0, -ones, ones))


def _factored_in_halves(A: Matrix, m: int, xp: Any) -> FactoredBlock:
    """Factor the first m rows and columns, and then the rest after their elimination."""
    first = factored(A[:m, :m], xp)
    L21 = (A[m:, :m] @ first.inverse.T) * first.signs
    second = factored(A[m:, m:] - (L21 * first.signs) @ L21.T, xp)
    corner = xp.zeros((m, A.shape[0] - m))
    return FactoredBlock(
        xp.concat([xp.concat([first.L, corner], axis=1), xp.concat([L21, second.L], axis=1)]),
        xp.concat(
            [
                xp.concat([first.inverse, corner], axis=1),
                xp.concat([-(second.inverse @ L21) @ first.inverse, second.inverse], axis=1),
            ]
        ),
        xp.concat([first.signs, second.signs]),
    )
