"""Cholesky factorization A = L L^T on a P×Q grid, of the lower triangle of A."""

from __future__ import annotations

from mxpeak.distributed.dense import DistMatrix
from mxpeak.kernels.contract import Kernels, Matrix
from mxpeak.solvers.symmetric_elimination import SymmetricElimination, SymmetricPanel
from mxpeak.spans import Spans


def factorize(A: DistMatrix, precision: str, kernels: Kernels, spans: Spans) -> int:
    """Factor the lower triangle of A in place; return 0, or the order of the first leading minor that is not positive.

    L replaces the blocks below the diagonal, and L_kk^T the upper triangles of the diagonal blocks A_kk. Other entries
    are undefined. `precision` is that of the operands of updates. If it is that of A, the backward error satisfies
    |ΔA| <= N·u·|L||L^T|; otherwise, 2·u·|L||L^T| with the u of the operands is added. The factorization takes 1/3 N³
    flops. It ends after the first diagonal block that is not positive definite. Collective over the grid.
    """
    return _Cholesky(A, precision, kernels, spans).factorize()


class _Cholesky(SymmetricElimination):
    """The elimination with diagonal blocks A11 = L11 L11^T; D is L11^T in its upper triangle."""

    def factor_block(self, A11: Matrix, to: SymmetricPanel) -> None:
        """Factor the diagonal block, and record its first pivot that is not positive, counted from 1, in the message.

        An LU without pivoting gives D = (L11 S^-1) (S L11^T) with a diagonal matrix S, whose squares are the pivots.
        """
        xp, D = self.kernels.xp, to.D
        with self.spans("factor", flops=to.step.jb**3 / 3.0):
            lower = xp.tril(A11)
            self.kernels.copy(lower + xp.tril(lower, k=-1).T, D)
            self.kernels.factor_block(D, xp.zeros(1))
            pivots = xp.linalg.diagonal(D)
            positive = pivots > 0.0
            S = xp.sqrt(xp.where(positive, pivots, xp.ones_like(pivots)))
            D[...] = D / S[:, None]
            self.kernels.copy(D, A11)
            to.D_tail[-1:] = 0.0 if bool(xp.all(positive)) else 1.0 + float(xp.argmin(xp.astype(positive, xp.int8)))

    def divide(self, A21: Matrix, to: SymmetricPanel) -> None:
        """Compute L21 = A21 L11^-T."""
        self.kernels.solve_right_upper(A21, to.D, self.A.precision)
        self.kernels.copy(A21, to.L)
