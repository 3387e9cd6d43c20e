"""Block L S L^T factorization of a symmetric indefinite matrix on a P×Q grid, of the lower triangle of A.

S is a diagonal matrix of signs. Each diagonal block is factored by eigenvalues,

    A11 = Q Λ Q^T,    L11 = Q |Λ|^(1/2),    S1 = sign(Λ),    L11^-1 = |Λ|^(-1/2) Q^T

so that every order of pivots inside a block is possible. There are no pivots between blocks. A random butterfly
transformation before the factorization makes a singular diagonal block improbable (Baboulin et al., "An efficient
distributed randomized algorithm for solving large dense symmetric indefinite linear systems", Parallel Computing 40,
2014). Small eigenvalues still cause growth. Each block may therefore have a few replaced eigenvalues:

    L S L^T = A + V Δ V^T

The columns of V are their eigenvectors, with zeros outside the block. The inverse of A follows from the identity of
Sherman, Morrison and Woodbury. Growth is measured, and large growth ends the factorization.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import accumulate
from math import inf, nan
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
EIGEN_ORDER = 192
#: Eigenvalues below the largest entry of A divided by SMALL are replaced by the largest entry. Each one takes a solve.
#: Measured for Gaussian matrices with n = 3000 in fp32: a step of refinement divides the error by 50 to 100 without
#: replaced eigenvalues, by 150 with three (SMALL = 100), and by 500 with 10 to 15 (SMALL = 30).
SMALL = 100.0
#: A block of this order may have one replaced eigenvalue. If it has more small ones, A is ill-conditioned. Its rows are
#: then usually small in the directions of these eigenvectors, and no eigenvalue is replaced.
ORDER_PER_REPLACED = 48


class BlockLDL(NamedTuple):
    """The result of a factorization.

    breakdown   0, or the column, counted from 1, of the first diagonal block that is singular or too large
    signs       the diagonal of S, on every rank
    largest     max_i Σ_j l_ij², which is the largest entry of |L||L^T|
    V, Δ        the replaced eigenvalues: this rank's rows of V, and the diagonal of Δ
    """

    breakdown: int
    signs: Vector
    largest: float
    V: Matrix
    Δ: Vector


def factorize(A: DistMatrix, A_max: float, limit: float, kernels: Kernels, spans: Spans) -> BlockLDL:
    """Factor the lower triangle of A in place.

    L replaces the blocks below the diagonal, and L_kk^-1 the diagonal blocks. Other entries are undefined. The backward
    error satisfies |ΔA| <= c·N·u·|L||L^T|. The factorization takes 1/3 N³ flops. It ends after the first diagonal block
    that is singular, or if an entry of |L||L^T| in a diagonal block exceeds `limit` times A_max, the largest entry of
    A. Collective over the grid.
    """
    elimination = _BlockLDL(A, A_max, limit, kernels, spans)
    breakdown = elimination.factorize()
    if breakdown:
        return BlockLDL(
            breakdown, elimination.signs, inf, kernels.xp.zeros((A.rows.local_size, 0)), kernels.xp.zeros(0)
        )
    return BlockLDL(0, elimination.signs, elimination.largest(), *elimination.replaced())


class _BlockLDL(SymmetricElimination):
    """The elimination with diagonal blocks A11 = L11 S1 L11^T; D is -L11^-T S1."""

    signed = True

    def __init__(self, A: DistMatrix, A_max: float, limit: float, kernels: Kernels, spans: Spans):
        super().__init__(A, A.precision, kernels, spans)
        self._A_max, self._limit = A_max, limit * A_max
        self.signs: Vector = kernels.xp.zeros(A.rows.n)
        # Σ_j l_ij² of this rank's rows, over the columns j of this rank
        self._squares: Vector = kernels.xp.zeros(A.rows.local_size)
        self._replaced: dict[int, tuple[Matrix, Vector]] = {}  # V and Δ by step, of this rank's blocks

    def factor_block(self, A11: Matrix, to: SymmetricPanel) -> None:
        """Factor the diagonal block, and write D, the signs and whether the block broke down."""
        xp, step = self.kernels.xp, to.step
        with self.spans("factor", flops=9.0 * step.jb**3):
            lower = xp.astype(xp.tril(A11), xp.float64)
            A_max = 0.0 if step.j1 == self.A.rows.n else self._A_max  # the last block causes no growth
            block = factor_diagonal_block(lower + xp.tril(lower, k=-1).T, A_max, xp)
            squares = xp.sum(block.L * block.L, axis=1)
            stable = _is_finite(block.inverse, xp) and bool(xp.max(squares) <= self._limit)
            self._squares[self.A.rows.local_range(step.j0, step.j1)] += squares
            A11[...] = block.inverse
            to.D[...] = -block.inverse.T * block.signs
            to.D_tail[:-1] = block.signs
            to.D_tail[-1:] = 0.0 if stable else 1.0
            if len(block.Δ):
                self._replaced[step.k] = block.V, block.Δ

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

    def replaced(self) -> tuple[Matrix, Vector]:
        """Return this rank's rows of V, and the diagonal of Δ. Collective."""
        A, xp, grid = self.A, self.kernels.xp, self.A.grid
        counts = xp.zeros(len(self.steps))
        for k, (_, Δ) in self._replaced.items():
            counts[k] = len(Δ)
        grid.all.allreduce(counts, "sum")
        ends = list(accumulate(map(int, counts.tolist()), initial=0))
        V, all_Δ = xp.zeros((A.rows.local_size, ends[-1])), xp.zeros(ends[-1])
        for k, (of_block, Δ) in self._replaced.items():
            V[A.rows.local_range(self.steps[k].j0, self.steps[k].j1), ends[k] : ends[k + 1]] = of_block
            all_Δ[ends[k] : ends[k + 1]] = Δ
        if ends[-1]:
            grid.row.allreduce(V, "sum")
            grid.all.allreduce(all_Δ, "sum")
        return V, all_Δ


class FactoredBlock(NamedTuple):
    """The factorization L S L^T = A + V Δ V^T of one block, and L^-1."""

    L: Matrix
    inverse: Matrix
    signs: Vector
    V: Matrix
    Δ: Vector


def factor_diagonal_block(A: Matrix, A_max: float, xp: Any) -> FactoredBlock:
    """Factor a symmetric block, and replace a few eigenvalues that are small compared with A_max.

    The inverse contains inf if a part of the block is singular or not finite.
    """
    n = A.shape[0]
    if n > EIGEN_ORDER:
        return _factor_in_halves(A, n // 2, A_max, xp)
    eigenvalues, Q = eigh(A, xp)
    if not _is_finite(eigenvalues, xp):
        return _broken(n, xp)
    ones = xp.ones_like(eigenvalues)
    signs = xp.where(eigenvalues < 0.0, -ones, ones)
    small = xp.abs(eigenvalues) < A_max / SMALL
    if int(xp.count_nonzero(small)) > max(1, n // ORDER_PER_REPLACED):
        small = xp.zeros_like(small)
    used = xp.where(small, A_max * signs, eigenvalues)
    sizes = xp.sqrt(xp.abs(used))
    return FactoredBlock(Q * sizes, xp.divide(Q, sizes).T, signs, Q[:, small], (used - eigenvalues)[small])


def eigh(A: Matrix, xp: Any) -> tuple[Vector, Matrix]:
    """Return the eigenvalues and eigenvectors of a symmetric A, or NaN if they cannot be computed.

    An error on one rank would leave the other ranks waiting.
    """
    if _is_finite(A, xp):  # for NaN or infinity, libraries raise errors or do not return
        with suppress(ValueError, RuntimeError):  # the types of LinAlgError in NumPy and in torch
            eigenvalues, Q = xp.linalg.eigh(A)
            return eigenvalues, Q
    n = A.shape[0]
    return xp.full(n, nan), xp.full((n, n), nan)


def _factor_in_halves(A: Matrix, m: int, A_max: float, xp: Any) -> FactoredBlock:
    """Factor the first m rows and columns, and then the rest after their elimination."""
    first = factor_diagonal_block(A[:m, :m], A_max, xp)
    if not _is_finite(first.inverse, xp):
        return _broken(A.shape[0], xp)
    L21 = (A[m:, :m] @ first.inverse.T) * first.signs
    second = factor_diagonal_block(A[m:, m:] - (L21 * first.signs) @ L21.T, A_max, xp)
    if not _is_finite(second.inverse, xp):
        return _broken(A.shape[0], xp)
    return FactoredBlock(
        _blocks(first.L, L21, second.L, xp),
        _blocks(first.inverse, -(second.inverse @ L21) @ first.inverse, second.inverse, xp),
        xp.concat([first.signs, second.signs]),
        _blocks(first.V, xp.zeros((A.shape[0] - m, first.V.shape[1])), second.V, xp),
        xp.concat([first.Δ, second.Δ]),
    )


def _is_finite(A: Matrix, xp: Any) -> bool:
    return bool(xp.all(xp.isfinite(A)))


def _broken(n: int, xp: Any) -> FactoredBlock:
    """Return the result for a block of order n that is singular or not finite."""
    return FactoredBlock(xp.eye(n), xp.full((n, n), inf), xp.ones(n), xp.zeros((n, 0)), xp.zeros(0))


def _blocks(A11: Matrix, A21: Matrix, A22: Matrix, xp: Any) -> Matrix:
    """Return the block lower triangular matrix with these blocks."""
    A12 = xp.zeros((A11.shape[0], A22.shape[1]))
    return xp.concat([xp.concat([A11, A12], axis=1), xp.concat([A21, A22], axis=1)])
