"""Remove one small singular value from low-precision factors (deflation).

Deflation is for matrices with a condition number far above 1/u. The reciprocal of the last pivot u_nn is an entry of
the inverse, so one small singular value appears in this pivot. If the last pivot is replaced by a larger one, the
factors are those of a well-conditioned matrix A' that differs from A_s in one entry. Refinement then uses A' (Chan
1984, "Deflated decomposition of solutions of nearly singular systems"; Sherman and Morrison 1950):

    A' = A_s + τ e_i e_j^T,    A' z = e_i,    A_s^-1 = (I + ρ z e_j^T) A'^-1,    ρ = τ / (1 - τ z_j)

Computing z takes a few residuals and solves, but saves the n³/3 flops of an LU in fp64.
"""

from __future__ import annotations

from math import inf
from typing import Any

from mxpeak.kernels.contract.dense import Block
from mxpeak.solvers.accuracy import plain_lu
from mxpeak.solvers.array_factors import ArrayEquations, ArrayFactors
from mxpeak.solvers.condition import PROBED
from mxpeak.solvers.refine import refine_columns


class DeflatedFactors(ArrayFactors):
    """Factors of A' = A_s + tau e_i e_j^T that solve systems with A_s, or with A' until rho is set.

    z, rho       A'^-1 e_i in the type of A, and tau / (1 - tau z_j)
    """

    may_hide_singularity = False  # `deflated` has examined the factors of A'
    usable_for_gmres = True
    may_lag = False

    def __init__(self, inner: ArrayFactors, i: int, j: int, tau: Any, z: Block, rho: Any = 0.0):
        super().__init__(inner.matrix, inner.lu, inner.precision, emulated=inner.emulated)
        self.i, self.j, self.tau, self.z, self.rho = i, j, tau, z, rho

    def solve(self, B: Block) -> Block:
        """Return (I + ρ z e_j^T) A'^-1 B in the type of z, because ρ z may be large relative to A'^-1 B."""
        Y = super().solve(self._narrow(B))
        return Y + (self.z if B.ndim == 2 else self.z[:, 0]) * (self.rho * Y[self.j])

    def solve_transposed(self, B: Block) -> Block:
        """Return A'^-T (I + ρ e_j z^T) B."""
        C = self.xp.asarray(B, dtype=self.z.dtype, copy=True)
        C[self.j] += self.rho * self.xp.sum((self.z if B.ndim == 2 else self.z[:, 0]) * C, axis=0)
        return super().solve_transposed(self._narrow(C))

    def transposed(self) -> DeflatedFactors | None:
        """Return the factors of A_s^T with their own z, or None if z is less accurate than plain LU."""
        with self.computing():
            inner = ArrayFactors(self.matrix.transposed(), self.lu, self.precision, emulated=self.emulated)
            return _with_z(DeflatedFactors(inner, self.j, self.i, self.tau, self.z))

    def _narrow(self, B: Block) -> Block:
        return self.xp.astype(B, self.dtype, copy=False)


class _DeflatedEquations(ArrayEquations):
    """The equations A' Y = B with the deflated matrix A' = A_s + τ e_i e_j^T."""

    _factors: DeflatedFactors

    def residual(self, B: Block, X: Block) -> Block:
        """Return B - A_s X - τ e_i x_j."""
        R = ArrayEquations.residual(self, B, X)
        R[self._factors.i] -= self._factors.tau * X[self._factors.j]
        return R


def deflated(factors: ArrayFactors) -> DeflatedFactors | None:
    """Replace the last pivot and return factors of A_s, or None if these factors are not safe.

    The factors are safe if A' is not ill-conditioned for their precision, and z is as accurate as plain LU. Their
    estimate of the condition number of A_s must also be well below 1/u of A's type. Otherwise, fp64 factors must
    decide whether A is singular.
    """
    kernels, xp, LU, n, matrix = factors.kernels, factors.xp, factors.lu.LU, factors.n, factors.matrix
    with kernels.computing():
        last = LU[-1, -1].item()
        LU[-1, -1] = last / abs(last) * float(xp.max(abs(LU.diagonal())))
        tau = LU[-1, -1].item() - last
        row = kernels.last_row(factors.lu)
        i, j = (row, n - 1) if factors.lu.transposed != matrix.W_is_A else (n - 1, row)
        inner = ArrayFactors(matrix, factors.lu, factors.precision, emulated=factors.emulated)
        if inner.singular_to(2.0**-24):
            return None
        safe = _with_z(DeflatedFactors(inner, i, j, tau, xp.zeros((n, 1), dtype=matrix.A.dtype)))
        return safe if safe is not None and safe.probe * matrix.u <= PROBED else None


def _with_z(factors: DeflatedFactors) -> DeflatedFactors | None:
    """Compute z and ρ, and return factors of A' that contain both, or None if z is less accurate than plain LU."""
    xp, n, matrix = factors.xp, factors.n, factors.matrix
    e = xp.zeros((n, 1), dtype=matrix.A.dtype)
    e[factors.i] = 1.0
    equations = _DeflatedEquations(factors, scaled=True)
    columns = refine_columns(equations, e, equations.solve(e), 1.0 / n)
    if not columns.etas[0] <= plain_lu(n, is_complex=matrix.is_complex):
        return None
    pivot = 1.0 - factors.tau * columns.X[factors.j, 0].item()
    rho = factors.tau / pivot if pivot else inf
    return DeflatedFactors(factors, factors.i, factors.j, factors.tau, columns.X, rho)
