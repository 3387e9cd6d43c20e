"""Factors of a user's matrix on a process grid, those of an LU, and the systems A X = B and A^T X = B.

    P (R A C) = L U,    M^-1 = C U^-1 L^-1 P R

R and C are powers of two. A is scaled only if the range or the spread of its rows and columns requires it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from math import inf, isfinite
from typing import Any, NamedTuple

from mxpeak.comm.collectives import allreduce_scalar, allreduce_scalars
from mxpeak.distributed.dense import DistMatrix, gathered
from mxpeak.distributed.sources import UserMatrix
from mxpeak.distributed.spaces import DistSpace, max_abs
from mxpeak.distributed.symmetric import SymmetricMatrix
from mxpeak.kernels.arrays import PROBE_SEED
from mxpeak.kernels.contract import Kernels, Matrix, Vector
from mxpeak.layout.row_moves import RowOrder
from mxpeak.precision import PRECISIONS
from mxpeak.solvers.accuracy import row_errors
from mxpeak.solvers.condition import PROBED, Reductions, inverse_one_norm, reductions_over
from mxpeak.solvers.factorization import DOUBT, Factorization, hints_at_singularity
from mxpeak.solvers.lu.pivoted_lu import PivotedLuOptions, factorize
from mxpeak.solvers.lu.triangular import Factored
from mxpeak.solvers.refine import Equations, RefinedColumns, U, columns_of
from mxpeak.solvers.scaling import Balance, balance, balanced
from mxpeak.solvers.transformations import Pivoting
from mxpeak.spans import Spans

#: Matrices with a smaller norm lose digits in fp32, whose smallest normal number is 2^-126.
LEAST32 = 2.0**-60
#: The golden ratio, whose multiples determine the sizes of the random numbers.
GOLDEN = 0.6180339887498949


class GridMatrix(NamedTuple):
    """A user's matrix in real form, and the data for the row-wise errors of the original matrix.

    A           the user's matrix, or its real form if it is complex
    sizes       the matrix of the absolute values |a_ij| of the user's matrix
    moduli      maps a vector of the real form to the absolute values of the corresponding user's vector
    """

    A: UserMatrix | SymmetricMatrix
    sizes: UserMatrix | SymmetricMatrix
    moduli: Callable[[Matrix], Matrix]


class GridFactors(Factorization):
    """The factors of a matrix on a grid: LU, Cholesky or L S L^T. All methods are collective over the grid.

    LU          contains a copy of A, which is overwritten with its factors
    norms       ||A||_inf and ||A||_1 of the unscaled A
    """

    dtype: Any
    _growth: float

    def __init__(self, matrix: GridMatrix, LU: DistMatrix, precision: str, kernels: Kernels):
        A, grid = matrix.A, matrix.A.grid
        self.matrix, self.LU, self.precision, self.kernels, self.n = matrix, LU, precision, kernels, A.n
        self.dtype = kernels.xp.float64
        self.over_columns = DistSpace(kernels, grid.all, A.cols.local_size, counts=grid.p == 0)
        self.over_rows = DistSpace(kernels, grid.all, A.rows.local_size, counts=grid.q == 0)
        self.balance: Balance | None = None

    def _scale(self, spans: Spans, *, scale: bool) -> None:
        """Compute the norms of A. If `scale`, scale the copy of A if necessary."""
        with spans("equilibrate"):
            sums = self._abs_sums()
            self.norms = self.A_inf, self.A_one = self._largest(*sums)
            if scale and (PRECISIONS[self.precision].bytes < 4 or not self._well_balanced(*sums)):
                self.balance = self._balanced()
                self.A_inf, self.A_one = self._largest(*self._abs_sums())
        self.scaled = self.balance is not None

    @abstractmethod
    def _balanced(self) -> Balance:
        """Scale the copy of A by powers of two, and return them."""

    def _abs_sums(self) -> tuple[Vector, Vector]:
        """Return Σ_j |a_ij| over the rows and Σ_i |a_ij| over the columns of the copy of A."""
        xp, A = self.xp, self.matrix.A
        by_row, by_column = xp.zeros(A.rows.local_size), xp.zeros(A.cols.local_size)
        self.kernels.abs_sums(self.LU.local, by_row, by_column)
        A.grid.row.allreduce(by_row, "sum")
        A.grid.column.allreduce(by_column, "sum")
        return by_row, by_column

    def _max_abs(self) -> float:
        """Return the largest absolute entry of the copy of A."""
        by_row = self.xp.zeros(self.matrix.A.rows.local_size)
        self.kernels.row_max(self.LU.local, by_row)
        return allreduce_scalar(self.matrix.A.grid.all, max_abs(self.kernels, by_row), "max", self.xp)

    @property
    def growth(self) -> float:
        """Return the largest entry of U, or the largest pivot, relative to the largest entry of A_s."""
        return self._growth

    @property
    def row_indices(self) -> Vector:
        """Return the global indices of this rank's rows."""
        rows = self.matrix.A.rows
        return rows.to_global(self.xp.arange(rows.local_size))

    @property
    def reductions(self) -> tuple[Reductions, Reductions]:
        """Return the reductions over the ranks of the rows and of the columns."""
        return reductions_over(self.over_rows), reductions_over(self.over_columns)

    def unscaled_condition(self) -> float:
        """Return ||A||_1·||A^-1||_1 of A itself, with an estimate of ||A^-1||_1. Collective."""
        if self.balance is None or self.singular:
            return self.condition
        if self.condition_of_A is None:
            solve, solve_transposed = (self.equations(scaled=False, transposed=form).solve for form in (False, True))
            X, Y = self.reductions
            norm = inverse_one_norm(solve, solve_transposed, self.row_indices, self.n, self.dtype, self.xp, X=X, Y=Y)
            self.condition_of_A = max(1.0, self.norms[1] * norm)
        return self.condition_of_A

    @property
    def usable(self) -> bool:
        """Return whether all columns have a pivot, and A is well within the range of the stored type."""
        return not self.singular and self.in_range

    @property
    def in_range(self) -> bool:
        """Return whether A is well within the range of the stored type."""
        A_inf = self.norms[0]
        return isfinite(A_inf) and (self.LU.precision == "fp64" or A_inf > LEAST32)

    @property
    def usable_for_gmres(self) -> bool:
        """Return True, because trying GMRES costs less than estimating the condition number."""
        return True

    def _largest(self, *sums: Vector) -> list[float]:
        """Return the largest absolute entry of each vector over all ranks."""
        return allreduce_scalars(self.matrix.A.grid.all, [max_abs(self.kernels, v) for v in sums], "max", self.xp)

    def _well_balanced(self, *sums: Vector) -> bool:
        """Return whether the sums of rows and columns of all ranks differ so little that A needs no scaling."""
        negated: list[float] = []
        for v in sums:
            negated += [-float(self.xp.min(v)) if len(v) else -inf, max_abs(self.kernels, v)]
        of_rows_low, of_rows_high, low, high = allreduce_scalars(self.matrix.A.grid.all, negated, "max", self.xp)
        return bool(balanced((-of_rows_low, of_rows_high), (-low, high)))

    def random(self) -> Vector:
        """Return ±(1 + frac(i·φ)) for the rows i of this rank, with random signs and the golden ratio φ."""
        xp, rows = self.xp, self.matrix.A.rows
        z = xp.zeros(rows.local_size)
        self.kernels.signs(z, rows, PROBE_SEED)
        turns = xp.astype(self.row_indices, xp.float64) * GOLDEN
        return z * (1.0 + turns - xp.floor(turns))

    @property
    def pivots_balanced(self) -> bool:
        """Return whether the smallest pivot is not much smaller than the largest."""
        A, (least, largest) = self.matrix.A, self._pivot_sizes()
        minus_least, largest = allreduce_scalars(A.grid.all, [-least, largest], "max", self.xp)
        return -minus_least >= DOUBT * largest

    def _pivot_sizes(self) -> tuple[float, float]:
        """Return the smallest and the largest |u_kk| on this rank; inf and 0 if it has none."""
        xp, least, largest = self.xp, inf, 0.0
        for _, block in self.LU.diagonal_blocks():
            size = xp.abs(xp.linalg.diagonal(block))
            least, largest = min(least, float(xp.min(size))), max(largest, float(xp.max(size)))
        return least, largest

    def is_doubtful(self, equations: Any, columns: RefinedColumns, enough: float) -> bool:
        """Return whether A may be singular to working precision after refinement."""
        hidden = self.precision == "fp32" and not self.probe * PRECISIONS["fp32"].u <= PROBED / 2.0
        return hidden or hints_at_singularity(self, equations, columns)

    def equations(self, *, scaled: bool, transposed: bool = False) -> GridEquations:
        """Return the equations A X = B, A^T X = B, or A_s Y = B_s."""
        return GridEquations(self, scaled=scaled, transposed=transposed)

    def scales(self, *, transposed: bool) -> Vector | None:
        """Return the global vector R, or C if the system is transposed; return None if A is not scaled."""
        if self.balance is None:
            return None
        return self.gathered(self.balance.C if transposed else self.balance.R, over_rows=not transposed)

    def gathered(self, x: Matrix, *, over_rows: bool = False) -> Matrix:
        """Return the global vector for a vector distributed over the columns, or over the rows if `over_rows`."""
        A = self.matrix.A
        return gathered(x, *((A.rows, A.grid.column) if over_rows else (A.cols, A.grid.row)), self.xp)


class GridLU(GridFactors):
    """The LU factors of a matrix on a grid, with partial pivoting. The constructor is collective over the grid."""

    def __init__(
        self, matrix: GridMatrix, LU: DistMatrix, precision: str, kernels: Kernels, spans: Spans, *, scale: bool = True
    ):
        """Factor the copy of A in LU, scaled if necessary and if `scale` is True."""
        super().__init__(matrix, LU, precision, kernels)
        A, grid, xp = matrix.A, matrix.A.grid, kernels.xp
        self._scale(spans, scale=scale)
        A_max, order = self._max_abs(), RowOrder(A.n)
        with spans("factor"):
            self.singular = factorize(LU, PivotedLuOptions(operands=precision), kernels, spans, order=order)
        self._pivoting = Pivoting(order, A.rows, grid.column, xp)
        self._solver = Factored(LU, kernels)
        largest = allreduce_scalar(grid.all, kernels.max_abs_upper(LU.local, A.rows, A.cols), "max", xp)
        self._growth = largest / A_max if A_max else 1.0

    def _balanced(self) -> Balance:
        return balance(self.LU, self.kernels)

    def least_size(self) -> float:
        """Return the smallest nonzero |lu_ij| over all ranks, but at most 1."""
        xp, least = self.xp, 1.0
        for row in self.LU.local:
            sizes = xp.abs(row)
            if len(sizes):
                least = min(least, float(xp.min(xp.where(sizes > 0.0, sizes, 1.0))))
        return -allreduce_scalar(self.matrix.A.grid.all, -least, "max", xp)

    def solve(self, B: Matrix) -> Matrix:
        """Return A_s^-1 B = U^-1 L^-1 P B; B is distributed like the rows of A, and the result like the columns."""
        return self._solver.solve(self._pivoting.left(B))

    def solve_transposed(self, B: Matrix) -> Matrix:
        """Return A_s^-T B = P^T L^-T U^-T B; B is distributed like the columns of A, and the result like the rows."""
        return self._pivoting.left_transposed(self._solver.solve_transposed(B))


class GridEquations(Equations):
    """`refine.Equations` on a grid: X is distributed over one dimension of the grid, and B over the other.

    Systems on a grid are refined without scaling. Row-wise errors are computed, not bounded, which requires the
    residual of every column.
    """

    def __init__(self, factors: GridFactors, *, scaled: bool, transposed: bool = False):
        self._factors, self._transposed, self.n, self.u = factors, transposed, factors.n, U
        A, scales, product, inverse = factors.matrix.A, factors.balance, factors.matrix.A.multiply, factors.solve
        self.unknowns, self.equations = factors.over_columns, factors.over_rows
        self.A_inf = factors.A_inf if scaled else factors.norms[int(transposed)]
        if transposed:
            product, inverse = A.multiply_transposed, factors.solve_transposed
            self.unknowns, self.equations = self.equations, self.unknowns
            scales = None if scales is None else Balance(scales.C, scales.R)
        super().__init__(factors.xp, scales, product, inverse, scaled=scaled)

    def column(self, V: Matrix, j: int) -> Vector:
        """Return column j as a vector."""
        return columns_of(self.xp, V, [j])[:, 0]

    def row_errors(self, X: Matrix, R: Matrix, B: Matrix) -> list[float]:
        """Return the row-wise error of each column of the user's system, in n·u; this takes one product with |A|."""
        _, sizes, moduli = self._factors.matrix
        x, r, b = (moduli(V) for V in (X, R, B))
        D = (sizes.multiply_transposed if self._transposed else sizes.multiply)(x) + b
        errors = self.xp.max(row_errors(self.xp, r, D, sizes.n), axis=0).tolist() if len(r) else [0.0] * r.shape[1]
        worst = allreduce_scalars(sizes.grid.all, errors, "max", self.xp)
        return [error / (sizes.n * U) if isfinite(error) else inf for error in worst]

    def random_signs(self, columns: int) -> tuple[Vector, Matrix]:
        """Return random signs over the unknowns, as one column, and over the equations, as a block."""
        A = self._factors.matrix.A
        of_unknowns, of_equations = (A.rows, A.cols) if self._transposed else (A.cols, A.rows)
        s, signs = self.xp.zeros(of_unknowns.local_size), self.xp.zeros((of_equations.local_size, columns))
        self._factors.kernels.signs(s, of_unknowns, PROBE_SEED)
        column = self.xp.zeros(of_equations.local_size)
        for k in range(columns):
            self._factors.kernels.signs(column, of_equations, PROBE_SEED + 1 + k)
            signs[:, k] = column
        return s[:, None], signs
