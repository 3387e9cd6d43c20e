"""A given system as refinement sees it: residuals with A itself, M^-1 from an LU with partial pivoting of it.

    P (R A C) = L U,    M^-1 = C U^-1 L^-1 P R

R and C are powers of two, and there only where range or spread of A's rows and columns ask for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, Protocol

from mxpeak.comm.collectives import allreduce_scalar, allreduce_scalars
from mxpeak.distributed.dense import DistMatrix
from mxpeak.distributed.sources import UserMatrix
from mxpeak.distributed.spaces import DistSpace, max_abs
from mxpeak.errors import Outcome
from mxpeak.kernels.contract import Kernels, Matrix, Vector
from mxpeak.layout.lu_schedule import lu_steps
from mxpeak.layout.row_moves import RowOrder
from mxpeak.precision import PRECISIONS
from mxpeak.solvers import residual
from mxpeak.solvers.condition import PROBE_SEED, inverse_one_norm, ranks_over
from mxpeak.solvers.krylov import Solve
from mxpeak.solvers.lu.pivoted_lu import PivotedLuOptions, factorize
from mxpeak.solvers.lu.triangular import Factored
from mxpeak.solvers.refine import U, growth, refine
from mxpeak.solvers.scaling import Balance, balance, balanced
from mxpeak.spans import Spans

#: Matrices of a smaller norm lose digits when they are stored in fp32, whose least normal number is 2^-126.
LEAST32 = 2.0**-60
#: What tells the sizes of the numbers with which factors are probed.
GOLDEN = 0.6180339887498949
#: With how many patterns of signs roundings are tried.
PATTERNS = 8


class PivotedFactors:
    """The factors of a given matrix.  Constructing it is collective over the grid, and so are all methods.

    A_inf       ||A||_inf; A_one: ||A||_1
    singular    1 + the first column without a non-zero pivot; 0: all have one
    scaled      whether R and C are there; always before products of less than 32 bits
    precision   of products in the factorization
    growth      max |u_ij| / max |a_ij|, as scaled
    """

    def __init__(
        self,
        A: UserMatrix,
        LU: DistMatrix,
        options: PivotedLuOptions,
        kernels: Kernels,
        spans: Spans,
        *,
        scale: bool = True,
    ):
        """LU contains a copy of A, which its factors overwrite; it is scaled only if `scale` is given."""
        self.given, self.LU, self._kernels = A, LU, kernels
        self.precision = options.operands or LU.precision
        grid, xp = A.grid, kernels.xp
        self.unknowns = DistSpace(kernels, grid.all, A.cols.local_size, counts=grid.p == 0)
        self.equations = DistSpace(kernels, grid.all, A.rows.local_size, counts=grid.q == 0)
        with spans("equilibrate"):
            self.A_inf = self._balance_if_needed(scale)
        by_row = xp.zeros(A.rows.local_size)
        kernels.row_max(LU.local, by_row)
        A_max = allreduce_scalar(grid.all, max_abs(kernels, by_row), "max", kernels.xp)
        order = RowOrder(A.n)
        with spans("factor"):
            self.singular = factorize(LU, options, kernels, spans, order=order)
        mine = A.rows.to_global(xp.arange(A.rows.local_size))
        self._to, self._back = (xp.take(xp.asarray(rows), mine) for rows in (order.rows, order.inverse))
        self._solver = Factored(LU, kernels)
        self.growth = self._growth(A_max)
        self._condition: float | None = None
        self._probed: float | None = None
        self._seen: float | None = None

    def _balance_if_needed(self, scale: bool) -> float:
        """||A||_inf; LU is scaled if it must be, and may be."""
        by_row, by_column = self._sums()
        A_inf, self.A_one = self._A_s_inf, self._A_s_one = self._largest(by_row, by_column)
        self._balance: Balance | None = None
        if scale and (PRECISIONS[self.precision].bytes < 4 or not self._well_balanced(by_row, by_column)):
            self._balance = balance(self.LU, self._kernels)
            self._A_s_inf, self._A_s_one = self._largest(*self._sums())
        return A_inf

    def _largest(self, *sums: Vector) -> list[float]:
        return allreduce_scalars(
            self.given.grid.all, [max_abs(self._kernels, one) for one in sums], "max", self._kernels.xp
        )

    def _sums(self) -> tuple[Vector, Vector]:
        """Σ_j |a_ij| over the rows, Σ_i |a_ij| over the columns."""
        xp, A = self._kernels.xp, self.given
        by_row, by_column = xp.zeros(A.rows.local_size), xp.zeros(A.cols.local_size)
        self._kernels.abs_sums(self.LU.local, by_row, by_column)
        A.grid.row.allreduce(by_row, "sum")
        A.grid.column.allreduce(by_column, "sum")
        return by_row, by_column

    def _well_balanced(self, by_row: Vector, by_column: Vector) -> bool:
        """What `balanced` says of the sums of all ranks."""
        ends: list[float] = []
        for sums in (by_row, by_column):
            least = -float(self._kernels.xp.min(sums)) if len(sums) else -float("inf")
            ends += [least, max_abs(self._kernels, sums)]
        low_row, high_row, low_column, high_column = allreduce_scalars(
            self.given.grid.all, ends, "max", self._kernels.xp
        )
        return bool(balanced((-low_row, high_row), (-low_column, high_column)))

    @property
    def usable(self) -> bool:
        """Whether all columns have a pivot, and A lies well within the range of what the factors are stored in."""
        return not self.singular and isfinite(self.A_inf) and (self.LU.precision == "fp64" or self.A_inf > LEAST32)

    @property
    def scaled(self) -> bool:
        """Whether rows and columns were scaled."""
        return self._balance is not None

    def scales(self, *, transposed: bool) -> Vector | None:
        """The whole of R, or of C, which scales the rows of A^T; None where A is not scaled.  Collective."""
        if self._balance is None:
            return None
        return self.gathered(self._balance.C if transposed else self._balance.R, over_rows=not transposed)

    def least_size(self) -> float:
        """The smallest |lu_ij| that is not zero; 1 if none is smaller.  Collective over the grid."""
        xp, least = self._kernels.xp, 1.0
        for row in self.LU.local:
            sizes = xp.abs(row)
            if len(sizes):
                least = min(least, float(xp.min(xp.where(sizes > 0.0, sizes, 1.0))))
        minus = allreduce_scalar(self.given.grid.all, -least, "max", self._kernels.xp)
        return -minus

    def _growth(self, A_max: float) -> float:
        mine = self._kernels.max_abs_upper(self.LU.local, self.given.rows, self.given.cols)
        found = allreduce_scalar(self.given.grid.all, mine, "max", self._kernels.xp)
        return found / A_max if A_max else 1.0

    def condition(self) -> float:
        """||A_s||_1·||A_s^-1||_1, A_s = R A C, the latter estimated by four to six solves; kept."""
        if self._condition is None:
            xp, X, Y = self._kernels.xp, ranks_over(self.equations), ranks_over(self.unknowns)
            indices = self.given.rows.to_global(xp.arange(self.given.rows.local_size))
            solve, back = self._solve_scaled, self._solve_scaled_transposed
            found = inverse_one_norm(solve, back, indices, self.given.n, xp.float64, xp, X=X, Y=Y)
            self._condition = self._A_s_one * found
        return self._condition

    def probed(self) -> float:
        """||A||_inf·||M^-1 z||_inf, z random: seldom far below the condition, whatever b is.  One solve; kept."""
        if self._probed is None:
            self._probed = self.A_inf * self.unknowns.max_abs(self.solve(self._random()))
        return self._probed

    def seen_by_gmres(self, restart: int, most: int) -> float:
        """||A_s||·||z|| / ||s||, A_s z = s solved by GMRES for random s; inf where it does not get there; kept."""
        if self._seen is None:
            self._seen = growth(PivotedSystem(_Scaled(self), self._random()), restart=restart, most=most)
        return self._seen

    def _random(self) -> Vector:
        """Numbers over the rows, ±(1 + frac(i·φ)).

        Signs alone are at a right angle to (1, …, 1), a Laplacian's null vector, wherever as many are positive as
        negative.
        """
        xp, rows = self._kernels.xp, self.given.rows
        z = xp.zeros(rows.local_size)
        self._kernels.signs(z, rows, PROBE_SEED)
        turns = xp.astype(rows.to_global(xp.arange(rows.local_size)), xp.float64) * GOLDEN
        return z * (1.0 + turns - xp.floor(turns))

    def pivots_from(self, least: float) -> bool:
        """Whether the smallest entry on U's diagonal is at least this part of the largest."""
        A, xp, ends = self.given, self._kernels.xp, [-float("inf"), 0.0]
        for step in lu_steps(A.n, A.nb, A.grid.P, A.grid.Q):
            if (A.grid.p, A.grid.q) == (step.p, step.q):
                size = xp.abs(xp.linalg.diagonal(self.LU[step.j0 : step.j1, step.j0 : step.j1]))
                ends = [max(ends[0], -float(xp.min(size))), max(ends[1], float(xp.max(size)))]
        minus, most = allreduce_scalars(A.grid.all, ends, "max", self._kernels.xp)
        return -minus >= least * most

    def solve(self, r: Vector) -> Vector:
        """M^-1 r over the columns, for r over the rows."""
        if self._balance is None:
            return self._solve_scaled(r)
        return _times(self._balance.C, self._solve_scaled(_times(self._balance.R, r)))

    def solve_transposed(self, c: Vector) -> Vector:
        """M^-T c over the rows, for c over the columns."""
        if self._balance is None:
            return self._solve_scaled_transposed(c)
        return _times(self._balance.R, self._solve_scaled_transposed(_times(self._balance.C, c)))

    def multiply(self, x: Vector) -> Vector:
        """A x over the rows, for x over the columns."""
        return self.given.multiply(x)

    def _solve_scaled(self, r: Vector) -> Vector:
        """U^-1 L^-1 P r."""
        return self._solver.solve(self._moved(r, self._to))

    def _solve_scaled_transposed(self, c: Vector) -> Vector:
        """P^T L^-T U^-T c."""
        return self._moved(self._solver.solve_transposed(c), self._back)

    def _moved(self, r: Vector, sources: Vector) -> Vector:
        """r with entry sources[i] as its i-th, through the whole vector: 8·N bytes a rank for each right-hand side."""
        return self._kernels.xp.take(self.gathered(r, over_rows=True), sources, axis=0)

    def gathered(self, x: Vector, *, over_rows: bool = False) -> Vector:
        """The whole of a vector over the columns, or over the rows."""
        A, whole = self.given, self._kernels.xp.zeros((self.given.n, *x.shape[1:]))
        layout, along = (A.rows, A.grid.column) if over_rows else (A.cols, A.grid.row)
        for mine, everywhere in layout.blocks():
            whole[everywhere] = x[mine]
        along.allreduce(whole, "sum")
        return whole


class Operator(Protocol):
    """A or A^T with its factors, between unknowns over one dimension of the grid and equations over the other.

    A_inf   its norm: ||A||_inf, or ||A^T||_inf
    """

    given: UserMatrix
    A_inf: float
    unknowns: DistSpace
    equations: DistSpace

    def multiply(self, x: Vector) -> Vector:
        """A x, of one x or of several, a column each."""

    def solve(self, r: Vector) -> Vector:
        """M^-1 r, of one r or of several."""


class Transposed:
    """A^T with the factors of A: unknowns over the rows, equations over the columns."""

    def __init__(self, factors: PivotedFactors):
        self.given, self.A_inf = factors.given, factors.A_one
        self.unknowns, self.equations = factors.equations, factors.unknowns
        self.multiply, self.solve = factors.given.multiply_transposed, factors.solve_transposed


class _Scaled:
    """A_s = R A C with its factors, an `Operator`."""

    def __init__(self, factors: PivotedFactors):
        self.given, self.A_inf, self.solve = factors.given, factors._A_s_inf, factors._solve_scaled
        self.unknowns, self.equations = factors.unknowns, factors.equations
        self._factors, self._balance = factors, factors._balance

    def multiply(self, x: Vector) -> Vector:
        """R A C x."""
        if self._balance is None:
            return self._factors.multiply(x)
        return _times(self._balance.R, self._factors.multiply(_times(self._balance.C, x)))


class PivotedSystem:
    """`refine.System` for one right-hand side, over the equations."""

    def __init__(self, factors: Operator, b: Vector):
        self._factors, self.b = factors, b
        self.n, self.A_inf = factors.given.n, factors.A_inf
        self.unknowns, self.equations = factors.unknowns, factors.equations
        self.b_inf = self.equations.max_abs(b)
        self.r = b  # the last residual

    def multiply(self, v: Vector) -> Vector:
        """A v over the equations."""
        return self._factors.multiply(v)

    def residual(self, x: Vector) -> Vector:
        """b - A x over the equations."""
        self.r = self.b - self.multiply(x)
        return self.r

    def precondition(self, r: Vector) -> Vector:
        """M^-1 r over the unknowns."""
        return self._factors.solve(r)


#: Steps of classical refinement of single rows.
MOST_ROW_STEPS = 10
#: A step of classical refinement must divide the backward error by this, or GMRES takes over.
GAIN = 4.0


@dataclass(frozen=True, slots=True)
class Solutions:
    """X over the unknowns, with its residual R over the equations, a right-hand side a column; how each went."""

    X: Matrix
    R: Matrix
    done: list[Solve]


def solve_all(system: Operator, B: Matrix, target: float, restart: int, most: int) -> Solutions:
    """Solve A X = B, over the equations, to a backward error of `target` in each column.

    X = M^-1 B, then X = X + M^-1 (B - A X), of the columns that have not got there, as long as a step gains a factor
    of GAIN.  GMRES is for those that it leaves.  Collective over the grid.
    """
    xp, n, columns = system.unknowns.xp, system.given.n, range(B.shape[1])
    b_inf = system.equations.max_abs_of_each(B)
    history: list[list[float]] = [[] for _ in columns]
    X, R, left, stuck = system.solve(B), B, list(columns), []
    while left:
        X_left = _columns(xp, X, left)
        R_left = _columns(xp, B, left) - system.multiply(X_left)
        if len(left) == len(columns):
            R = R_left
        else:
            R[:, left] = R_left
        norms = zip(left, system.equations.max_abs_of_each(R_left), system.unknowns.max_abs_of_each(X_left))
        again = []
        for k, (j, r_inf, x_inf) in enumerate(norms):
            eta = residual.backward_error(r_inf, system.A_inf, x_inf, b_inf[j], n, U)
            before = history[j][-1] if history[j] else inf
            history[j].append(eta)
            if target < eta <= before / GAIN:
                again.append(k)
            elif not eta <= target:
                stuck.append(j)
        left = [left[k] for k in again]
        if left:
            step = system.solve(_columns(xp, R_left, again))
            if len(left) == len(columns):  # without a copy of X
                X += step
            else:
                X[:, left] += step
    done = [Solve(Outcome.SOLVED, steps=len(etas) - 1, residual=etas[-1], history=etas) for etas in history]
    for j in stuck:
        one = PivotedSystem(system, _columns(xp, B, [j])[:, 0])
        X[:, j], done[j] = refine(one, restart=restart, most=most, target=target)
        R[:, j] = one.r
    return Solutions(X, R, done)


def refine_rows(
    system: Operator,
    B: Matrix,
    X: Matrix,
    R: Matrix,
    omegas: Any,
    enough: float,
    errors: Callable[[Matrix, Matrix, Any], Any],
) -> int:
    """Correct columns of X, with R = B - A X, until the row-wise errors are `enough`, while a step halves them.

    `errors` gives those of some columns, and omegas those of all; X, R and omegas are overwritten.  Return the number
    of steps.  Collective over the grid.  (Skeel 1980.)
    """
    xp, steps = system.unknowns.xp, 0
    left = [j for j in range(B.shape[1]) if not omegas[j] <= enough]
    while left and steps < MOST_ROW_STEPS:
        x = _columns(xp, X, left) + system.solve(_columns(xp, R, left))
        r = _columns(xp, B, left) - system.multiply(x)
        found = errors(x, r, left)
        again = []
        for k, j in enumerate(left):
            before = omegas[j]
            if found[k] < before:
                X[:, j], R[:, j], omegas[j] = x[:, k], r[:, k], found[k]
            if enough < found[k] <= before / 2.0:
                again.append(j)
        left, steps = again, steps + 1
    return steps


def rounded(system: Operator, b: Vector, x: Vector, r: Vector, transposed: bool) -> Matrix:
    """A residual and one roundoff of what it is the difference of: r + s'∘u·(|A (s∘x)| + |b|), with signs s and s'.

    By chance a residual is small now and then, however far off x is.  PATTERNS columns, with other random s' each.
    Collective over the grid.
    """
    given, kernels, xp = system.given, system.unknowns.kernels, system.unknowns.xp
    over_unknowns, over_equations = (given.rows, given.cols) if transposed else (given.cols, given.rows)
    s, of_rows = xp.zeros(len(x)), xp.zeros(len(b))
    kernels.signs(s, over_unknowns, PROBE_SEED)
    rounding = U * (xp.abs(system.multiply(s * x)) + xp.abs(b))
    found = xp.zeros((len(b), PATTERNS))
    for pattern in range(PATTERNS):
        kernels.signs(of_rows, over_equations, PROBE_SEED + 1 + pattern)
        found[:, pattern] = r + of_rows * rounding
    return found


def _times(diagonal: Vector, x: Vector) -> Vector:
    """D x, of one x or of several."""
    return (diagonal if x.ndim == 1 else diagonal[:, None]) * x


def _columns(xp: Any, V: Matrix, which: list[int]) -> Matrix:
    """Some columns, by rows."""
    return V if len(which) == V.shape[1] else xp.take(V, xp.asarray(which), axis=1)
