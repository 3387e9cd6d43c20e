"""The Cholesky factor of a symmetric positive definite matrix on a process grid, from one triangle.

    D A D + c·u·diag(D A D) = L L^T,    A^-1 = D L^-T L^-1 D

D is a diagonal matrix of powers of two. The shift is zero, except if the operands of the updates have a 16-bit format
with the roundoff u (see `symmetric_factors`).
"""

from __future__ import annotations

from mxpeak.comm.collectives import allreduce_scalar
from mxpeak.distributed.dense import DistMatrix, gathered, part_of
from mxpeak.kernels.contract import Kernels, Matrix, Vector
from mxpeak.solvers.cholesky import factorize
from mxpeak.solvers.grid_factors import GridFactors, GridMatrix
from mxpeak.solvers.lu.triangular import FactoredCholesky
from mxpeak.solvers.scaling import Balance
from mxpeak.solvers.symmetric_factors import CHOLESKY
from mxpeak.spans import Spans


class GridCholesky(GridFactors):
    """The Cholesky factor of a matrix on a grid. The constructor and all methods are collective over the grid."""

    name = CHOLESKY

    def __init__(
        self, matrix: GridMatrix, L: DistMatrix, precision: str, kernels: Kernels, spans: Spans, *, shift: float = 0.0
    ):
        """Factor the copy of A in L, scaled if necessary, after the multiplication of the diagonal by 1 + shift.

        If a leading minor is not positive, `singular` is its order.
        """
        super().__init__(matrix, L, precision, kernels)
        self._scale(spans, scale=True)
        A_max = self._max_abs()
        with spans("factor"):
            if shift:
                for _, block in L.diagonal_blocks():
                    block[...] = block + shift * kernels.xp.tril(kernels.xp.triu(block))
            self.singular = factorize(L, precision, kernels, spans)
        self._solver = FactoredCholesky(L, kernels)
        largest = allreduce_scalar(L.grid.all, self._pivot_sizes()[1], "max", kernels.xp)
        self._growth = largest / A_max if A_max else 1.0

    def _pivot_sizes(self) -> tuple[float, float]:
        """Return the smallest and the largest l_kk² on this rank; inf and 0 if it has none."""
        least, largest = super()._pivot_sizes()
        return least * least, largest * largest  # the power of a Python float raises an error if it overflows

    def _balanced(self) -> Balance:
        """Scale the copy of A by powers of two, so that its diagonal entries are in (1/4, 1]."""
        xp, kernels, L = self.xp, self.kernels, self.LU
        scales = xp.zeros(self.n)
        kernels.reciprocal_powers(scales, xp.sqrt(xp.abs(self._diagonal())))
        D = Balance(part_of(scales, L.rows, xp), part_of(scales, L.cols, xp))
        kernels.scale_rows_columns(L.local, D.R, D.C)
        return D

    def _abs_sums(self) -> tuple[Vector, Vector]:
        xp, L = self.xp, self.LU
        by_row, by_column = xp.zeros(L.rows.local_size), xp.zeros(L.cols.local_size)
        self.kernels.abs_sums(L.local, by_row, by_column)
        size = xp.abs(self._diagonal())  # it is in the sums of its row and of its column; their sum may overflow
        below = gathered(by_column, L.cols, L.grid.all, xp) - xp.where(xp.isfinite(size), size, xp.zeros_like(size))
        sums = gathered(by_row, L.rows, L.grid.all, xp) + below
        return part_of(sums, L.rows, xp), part_of(sums, L.cols, xp)

    def _diagonal(self) -> Vector:
        """Return the diagonal of the copy of A on every rank, in fp64."""
        diagonal = self.xp.zeros(self.n)
        for step, block in self.LU.diagonal_blocks():
            diagonal[step.j0 : step.j1] = self.xp.linalg.diagonal(block)
        self.LU.grid.all.allreduce(diagonal, "sum")
        return diagonal

    def solve(self, B: Matrix) -> Matrix:
        """Return A_s^-1 B; B is distributed like the rows of A, and the result like the columns."""
        return part_of(self.gathered(self._solver.solve(B), over_rows=True), self.LU.cols, self.xp)

    def solve_transposed(self, B: Matrix) -> Matrix:
        """Return A_s^-1 B; B is distributed like the columns of A, and the result like the rows."""
        return self._solver.solve(part_of(self.gathered(B), self.LU.rows, self.xp))
