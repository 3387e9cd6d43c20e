"""The system of HPL-MxP for refinement: A is generated again for every product, and M^-1 = U^-1 L^-1.

If A was transformed to S A T before the LU, or its rows were permuted by pivoting, M^-1 = T U^-1 L^-1 S.
"""

from __future__ import annotations

from collections.abc import Sequence

from mxpeak.distributed.dense import DistMatrix
from mxpeak.distributed.sources import GeneratedSystem
from mxpeak.distributed.spaces import DistSpace
from mxpeak.kernels.contract import Kernels, Vector
from mxpeak.solvers.lu.triangular import Factored
from mxpeak.solvers.transformations import Transformation, preconditioned, preconditioned_transposed
from mxpeak.spans import Spans


class MxpSystem:
    """`refine.SystemForRefinement` for a generated matrix and its factors on a P×Q grid."""

    def __init__(
        self,
        system: GeneratedSystem,
        factors: DistMatrix,
        A_inf: float,
        kernels: Kernels,
        spans: Spans,
        transformations: Sequence[Transformation] = (),
    ):
        self._system, self._factors, self._kernels, self.spans = system, Factored(factors, kernels), kernels, spans
        self._transformations = transformations
        grid = system.grid
        self.n, self.b = system.n, system.b
        self.unknowns = DistSpace(kernels, grid.all, system.cols.local_size, counts=grid.p == 0)
        self.equations = DistSpace(kernels, grid.all, system.rows.local_size, counts=grid.q == 0)
        self.A_inf = A_inf
        self.b_inf = self.equations.max_abs(self.b)

    def multiply(self, v: Vector) -> Vector:
        """Return A v, distributed like the rows of A."""
        with self.spans("matvec", flops=2.0 * self._system.rows.local_size * self._system.cols.local_size):
            return self._system.multiply(v)

    def residual(self, x: Vector) -> Vector:
        """Return b - A x, distributed like the rows of A."""
        return self.b - self.multiply(x)

    def precondition(self, r: Vector) -> Vector:
        """Return T U^-1 L^-1 S r, distributed like the columns of A."""
        with self.spans("ptrsv", flops=2.0 * self._system.rows.local_size * self._system.cols.local_size):
            return preconditioned(self._factors.solve, r, self._transformations)

    def precondition_transposed(self, c: Vector) -> Vector:
        """Return S^T L^-T U^-T T^T c, distributed like the rows of A, for c distributed like the columns."""
        return preconditioned_transposed(self._factors.solve_transposed, c, self._transformations)

    def indices(self) -> Vector:
        """Return the global indices of this rank's entries of a vector over the columns."""
        cols = self._system.cols
        return cols.to_global(self._kernels.xp.arange(cols.local_size))
