"""The L S L^T factors of a symmetric indefinite matrix on a process grid, from one triangle.

    U^T (D A D) U = L S L^T - V Δ V^T

D is a diagonal matrix of powers of two, U a random butterfly, S a diagonal matrix of signs, and Δ a small one (see
`block_ldl`).
"""

from __future__ import annotations

from math import inf, isfinite
from typing import Any

from mxpeak.distributed.dense import DistMatrix, gathered, part_of
from mxpeak.distributed.symmetric import fill_upper
from mxpeak.kernels.contract import Kernels, Matrix, Vector
from mxpeak.precision import PRECISIONS
from mxpeak.solvers.block_ldl import eigh, factorize
from mxpeak.solvers.butterfly import ButterflyPair
from mxpeak.solvers.factorization import convergence
from mxpeak.solvers.grid_factors import GridFactors, GridMatrix
from mxpeak.solvers.lu.triangular import FactoredBlockLDL
from mxpeak.solvers.refine import RefinedColumns, U
from mxpeak.solvers.scaling import Balance, spread
from mxpeak.solvers.symmetric_factors import BALANCED, LDL, SWEEPS
from mxpeak.spans import Spans

#: Depth of the random butterfly, and the seed of its random numbers.
DEPTH, SEED = 2, 1
#: The factorization ends if growth·u exceeds this value, because the error of L S L^T is then too large.
LARGEST_ERROR = 2.0**-6


class GridLDL(GridFactors):
    """The L S L^T factors of a matrix on a grid. The constructor and all methods are collective over the grid."""

    name = LDL
    stable = False
    _converges: bool | None = None
    _replaced: tuple[Matrix, Matrix, Matrix] | None = None

    def __init__(self, matrix: GridMatrix, L: DistMatrix, precision: str, kernels: Kernels, spans: Spans):
        """Factor the copy of A in L, scaled if necessary.

        If a diagonal block is singular, or if entries grow too much, `singular` is the column, counted from 1.
        """
        super().__init__(matrix, L, precision, kernels)
        with spans("equilibrate"):
            fill_upper(L, kernels)
        self._scale(spans, scale=True)
        self.singular, self._growth = 1, inf
        if not isfinite(self.A_inf) or not (A_max := self._max_abs()):
            return
        self._butterfly = ButterflyPair(L, DEPTH, SEED, kernels, symmetric=True)
        with spans("factor"):
            self._butterfly.transform(L)
            result = factorize(L, A_max, LARGEST_ERROR / PRECISIONS[precision].u, kernels, spans)
            self.singular, self._growth = result.breakdown, result.largest / A_max
            self._solver = FactoredBlockLDL(L, kernels, part_of(result.signs, L.cols, self.xp))
            if not self.singular and len(result.Δ):
                self._replaced = self._without_replaced(result.V, result.Δ)

    def _without_replaced(self, V: Matrix, Δ: Vector) -> tuple[Matrix, Matrix, Matrix]:
        """Return V, Z = M^-1 V and C^-1, with M = L S L^T and C = Δ^-1 - V^T Z, so that A_s^-1 = M^-1 + Z C^-1 Z^T."""
        xp, Z = self.xp, self._solver.solve(V)
        C = self._sum_over_rows(V.T @ Z)
        C = xp.eye(len(Δ)) / Δ - (C + C.T) / 2.0
        eigenvalues, Q = eigh(C, xp)
        return V, Z, (Q / eigenvalues) @ Q.T

    @property
    def usable(self) -> bool:
        """Return whether A is well within the range of the stored type, and growth allows refinement."""
        return super().usable and self.growth * PRECISIONS[self.precision].u <= LARGEST_ERROR

    @property
    def usable_for_gmres(self) -> bool:
        """Return whether refinement converges for a random right-hand side; if not, LU takes less time than GMRES."""
        return self._converges is not False

    def _balanced(self) -> Balance:
        """Scale the copy of A by powers of two in sweeps, each of which brings the largest entry of a row closer to 1.

        See `symmetric_factors.symmetric_scales`.
        """
        xp, kernels, L = self.xp, self.kernels, self.LU
        D = Balance(xp.ones(L.rows.local_size), xp.ones(L.cols.local_size))
        for _ in range(SWEEPS):
            largest = xp.zeros(L.rows.local_size)
            kernels.row_max(L.local, largest)
            L.grid.row.allreduce(largest, "max")
            everywhere, scales = gathered(largest, L.rows, L.grid.column, xp), xp.zeros(self.n)
            kernels.reciprocal_powers(scales, xp.sqrt(everywhere))
            step = Balance(part_of(scales, L.rows, xp), part_of(scales, L.cols, xp))
            kernels.scale_rows_columns(L.local, step.R, step.C)
            D = Balance(D.R * step.R, D.C * step.C)
            if spread(everywhere, xp) <= BALANCED:
                break
        return D

    def is_doubtful(self, equations: Any, columns: RefinedColumns, enough: float) -> bool:
        """Return whether refinement fails for a random right-hand side, or fp64 factors show that A is singular.

        Because of growth, a small condition number of coarser factors does not show that A is regular.
        """
        if self._converges is None:
            self._converges = convergence(self, self.equations(scaled=True)).steps < inf
        return not self._converges or (self.precision == "fp64" and self.singular_to(U))

    def solve(self, B: Matrix) -> Matrix:
        """Return A_s^-1 B; B is distributed like the rows of A, and the result like the columns."""
        return part_of(self.gathered(self._solve(B), over_rows=True), self.LU.cols, self.xp)

    def solve_transposed(self, B: Matrix) -> Matrix:
        """Return A_s^-1 B; B is distributed like the columns of A, and the result like the rows."""
        return self._solve(part_of(self.gathered(B), self.LU.rows, self.xp))

    def _solve(self, B: Matrix) -> Matrix:
        """Return A_s^-1 B over the rows, for B over the rows."""
        Y = self._solver.solve(self._butterfly.left(B))
        if self._replaced is not None:
            V, Z, C_inverse = self._replaced
            Y = Y + Z @ (C_inverse @ self._sum_over_rows(V.T @ Y))
        return self._butterfly.left_transposed(Y)

    def _sum_over_rows(self, W: Matrix) -> Matrix:
        """Return the sum of the products over the rows of all ranks."""
        self.LU.grid.column.allreduce(W, "sum")
        return W
