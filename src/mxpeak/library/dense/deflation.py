"""A single small singular value taken out of coarse factors, so that they do where the condition is far beyond 1/u.

1/u_nn is an entry of the inverse: one small singular value shows in the last pivot.  With a larger pivot in its place
the factors are those of a matrix that differs from A_s in one entry and is well conditioned, and that one is refined
(Chan 1984, "Deflated decomposition of solutions of nearly singular systems"; Sherman and Morrison 1950):

    A' = A_s + τ e_i e_j^T,    A' z = e_i,    A_s^-1 = (I + ρ z e_j^T) A'^-1,    ρ = τ / (1 - τ z_j)

z costs a few residuals and solves, n³/3 flops in fp64 are saved.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from mxpeak.kernels.contract import Matrix
from mxpeak.kernels.contract.dense import Block
from mxpeak.library.dense.factoring import Factors
from mxpeak.library.dense.refinement import Equations, classical, plain_lu
from mxpeak.solvers.condition import PROBED


@dataclass(frozen=True)
class Deflated(Factors):
    """The factors of A', and what makes A_s^-1 of A'^-1; of A' itself where rho is zero.

    i, j, tau    A' = A_s + tau e_i e_j^T
    z, rho       A'^-1 e_i in the input's type, and tau / (1 - tau z_j)
    """

    i: int
    j: int
    tau: Any
    z: Block
    rho: Any = 0.0

    @property
    def hide_singularity(self) -> bool:
        """No: `deflated` has looked."""
        return False

    @property
    def fit(self) -> bool:
        """Yes: A_s preconditioned with them is A' with its own factors, and `deflated` has looked at those."""
        return True

    def _solve(self, B: Block, *, transposed: bool = False) -> Block:
        """(I + ρ z e_j^T) A'^-1 B in z's type, for ρ z may be large beside that; or A'^-T (I + ρ e_j z^T) B."""
        if not transposed:
            Y = super()._solve(self._narrow(B))
            return Y + self.z * (self.rho * Y[self.j])
        C = self.kernels.xp.asarray(B, dtype=self.z.dtype, copy=True)
        C[self.j] += self.rho * self.kernels.xp.sum(self.z * C, axis=0)
        return super()._solve(self._narrow(C), transposed=True)

    def _narrow(self, B: Block) -> Block:
        return self.kernels.xp.astype(B, self.lu.LU.dtype, copy=False)

    def of_transpose(self, A: Matrix) -> Deflated | None:
        """The same for A_s^T, which has a z of its own; None where that lacks the accuracy of plain LU."""
        with self.kernels.computing(), np.errstate(all="ignore"):
            flipped = super().of_transpose(A)
            assert isinstance(flipped, Deflated)
            return _with_z(replace(flipped, i=self.j, j=self.i, rho=0.0), A.T)


@dataclass(frozen=True, slots=True)
class OneEntryMore(Equations):
    """A' Y = B."""

    i: int
    j: int
    tau: Any

    def residual(self, Y: Block) -> Block:
        """B - A_s Y - τ e_i y_j."""
        R = Equations.residual(self, Y)
        R[self.i] -= self.tau * Y[self.j]
        return R


def deflated(factors: Factors, A: Matrix, u: float) -> Deflated | None:
    """Factors of A_s^-1 from those of A_s, whose last pivot is overwritten; None where that does not make them sure.

    They are where A' is not ill-conditioned for their precision, z has the accuracy of plain LU, and the condition of
    A_s, as they then show it, stays well below 1/u of the input's type: beyond, fp64 has to say whether A is singular.
    """
    kernels, LU, n = factors.kernels, factors.lu.LU, len(A)
    with kernels.computing(), np.errstate(all="ignore"):
        last = LU[-1, -1].item()
        LU[-1, -1] = last / abs(last) * float(kernels.xp.max(abs(LU.diagonal())))
        tau = LU[-1, -1].item() - last
        row = kernels.last_row(factors.lu)
        i, j = (row, n - 1) if factors.lu.transposed != factors.by_rows else (n - 1, row)
        z = kernels.xp.zeros((n, 1), dtype=A.dtype)
        facts = {name: getattr(factors, name) for name in Factors.__dataclass_fields__}
        raised = Deflated(**facts, i=i, j=j, tau=tau, z=z)
        if raised.singular_to(2.0**-24):
            return None
        made = _with_z(raised, A)
        return made if made is not None and made.probed * u <= PROBED else None


def _with_z(raised: Deflated, A: Matrix) -> Deflated | None:
    """With z, refined, and ρ; None where z lacks the accuracy of plain LU."""
    kernels, n = raised.kernels, len(A)
    e = kernels.xp.zeros((n, 1), dtype=A.dtype)
    e[raised.i] = 1.0
    u = float(kernels.xp.finfo(A.dtype).eps) / 2
    equations = OneEntryMore(kernels, A, raised, e, np.ones(1), u, raised.i, raised.j, raised.tau)
    z, _, (eta,), _, _ = classical(equations, 1.0 / n)
    if not eta <= plain_lu(n, is_complex=kernels.xp.isdtype(A.dtype, "complex floating")):
        return None
    pivot = 1.0 - raised.tau * z[raised.j, 0].item()
    return replace(raised, z=z, rho=raised.tau / pivot if pivot else inf)
