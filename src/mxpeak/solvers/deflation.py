"""Remove one small singular value from low-precision factors (deflation).

Deflation is for matrices with a condition number far above 1/u. The reciprocal of the last pivot u_nn is an entry of
the inverse, so one small singular value appears in this pivot. If the last pivot is replaced by a larger one, the
factors are those of a well-conditioned matrix A' that differs from A_s in one entry. Refinement then uses A' (Chan
1984, "Deflated decomposition of solutions of nearly singular systems"; Sherman and Morrison 1950):

    A' = A_s + τ e_i e_j^T,    A' z = e_i,    A_s^-1 = (I + ρ z e_j^T) A'^-1,    ρ = τ / (1 - τ z_j)

Computing z takes a few residuals and solves, but saves the n³/3 flops of an LU in fp64.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from math import inf
from typing import Any

from mxpeak.kernels.contract import Vector
from mxpeak.kernels.contract.dense import Block
from mxpeak.solvers.accuracy import plain_lu
from mxpeak.solvers.array_factors import ArrayEquations, ArrayFactors
from mxpeak.solvers.condition import PROBED
from mxpeak.solvers.factorization import Factorization
from mxpeak.solvers.refine import Columns, refine_columns


class DeflatedFactors(Factorization):
    """Factors of A' that solve systems with A_s, or with A' while rho is zero.

    inner        factors of A' = A_s + tau e_i e_j^T
    z, rho       A'^-1 e_i in the type of A, and tau / (1 - tau z_j)
    """

    def __init__(self, inner: ArrayFactors, i: int, j: int, tau: Any, z: Block, rho: Any = 0.0):
        self.inner, self.i, self.j, self.tau, self.z, self.rho = inner, i, j, tau, z, rho
        self.kernels, self.n, self.dtype, self.precision = inner.kernels, inner.n, inner.dtype, inner.precision
        self.A_inf, self.A_one, self.singular, self.scaled = inner.A_inf, inner.A_one, inner.singular, inner.scaled
        self.matrix, self.lu, self.emulated = inner.matrix, inner.lu, inner.emulated

    @property
    def growth(self) -> float:
        """Return the pivot growth of the factors of A'."""
        return self.inner.growth

    @property
    def pivots_balanced(self) -> bool:
        """Return whether the pivots of A' show no sign of singularity."""
        return self.inner.pivots_balanced

    @property
    def row_indices(self) -> Vector:
        """Return the indices of all rows."""
        return self.inner.row_indices

    @property
    def may_hide_singularity(self) -> bool:
        """Return False, because `deflated` has examined the factors."""
        return False

    @property
    def usable_for_gmres(self) -> bool:
        """Return True: A_s with these factors is A' with its own factors, which `deflated` has examined."""
        return True

    def computing(self) -> AbstractContextManager[Any]:
        """Return the context in which the kernels compute."""
        return self.inner.computing()

    def random(self) -> Vector:
        """Return random numbers of either sign, with absolute values of 1 to 2."""
        return self.inner.random()

    def equations(self, *, scaled: bool) -> ArrayEquations:
        """Return A X = B, or A_s Y = B_s."""
        return ArrayEquations(self, scaled=scaled)

    def is_doubtful(self, equations: Any, columns: Columns, enough: float) -> bool:
        """Return whether A may be singular to working precision after refinement."""
        return self.inner.is_doubtful(equations, columns, enough)

    def solve(self, B: Block) -> Block:
        """Return (I + ρ z e_j^T) A'^-1 B in the type of z, because ρ z may be large relative to A'^-1 B."""
        Y = self.inner.solve(self._narrow(B))
        return Y + (self.z if B.ndim == 2 else self.z[:, 0]) * (self.rho * Y[self.j])

    def solve_transposed(self, B: Block) -> Block:
        """Return A'^-T (I + ρ e_j z^T) B."""
        C = self.xp.asarray(B, dtype=self.z.dtype, copy=True)
        C[self.j] += self.rho * self.xp.sum((self.z if B.ndim == 2 else self.z[:, 0]) * C, axis=0)
        return self.inner.solve_transposed(self._narrow(C))

    def transposed(self) -> DeflatedFactors | None:
        """Return the factors of A_s^T with their own z, or None if z is less accurate than plain LU."""
        with self.computing():
            return _with_z(DeflatedFactors(self.inner.transposed(), self.j, self.i, self.tau, self.z))

    def _narrow(self, B: Block) -> Block:
        return self.xp.astype(B, self.dtype, copy=False)


class _DeflatedEquations(ArrayEquations):
    """The equations A' Y = B."""

    def residual(self, B: Block, X: Block) -> Block:
        """Return B - A_s X - τ e_i x_j."""
        R = ArrayEquations.residual(self, B, X)
        R[self._factors.i] -= self._factors.tau * X[self._factors.j]
        return R


def deflated(factors: ArrayFactors) -> DeflatedFactors | None:
    """Replace the last pivot and return factors of A_s, or None if these factors are not safe.

    The factors are safe if A' is not ill-conditioned for their precision, z is as accurate as plain LU, and their
    estimate of the condition number of A_s is well below 1/u of A's type. Otherwise, fp64 factors must decide whether
    A is singular.
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
        found = _with_z(DeflatedFactors(inner, i, j, tau, xp.zeros((n, 1), dtype=matrix.A.dtype)))
        return found if found is not None and found.probe * matrix.u <= PROBED else None


def _with_z(factors: DeflatedFactors) -> DeflatedFactors | None:
    """Return the factors of A' with z and ρ added, or None if z is less accurate than plain LU."""
    xp, n, matrix = factors.xp, factors.n, factors.matrix
    e = xp.zeros((n, 1), dtype=matrix.A.dtype)
    e[factors.i] = 1.0
    equations = _DeflatedEquations(factors, scaled=True)
    columns = refine_columns(equations, e, equations.solve(e), 1.0 / n)
    if not columns.etas[0] <= plain_lu(n, is_complex=matrix.is_complex):
        return None
    pivot = 1.0 - factors.tau * columns.X[factors.j, 0].item()
    rho = factors.tau / pivot if pivot else inf
    return DeflatedFactors(factors.inner, factors.i, factors.j, factors.tau, columns.X, rho)
