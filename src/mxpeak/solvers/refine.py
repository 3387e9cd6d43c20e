"""Iterative refinement with an approximate inverse M^-1 from LU factors, and residuals in the working precision.

    classical   d = M^-1 r, x = x + d                              (Wilkinson; OLCF Algorithm 1, lines 33-49)
    gmres       left-preconditioned GMRES on M^-1 A d = M^-1 r     (Carson and Higham 2017; the rules of HPL-MxP)

Both start from x_0 = M^-1 b and stop on the scaled backward error of a newly computed residual:

    eta = ||b - A x|| / ((||A||·||x|| + ||b||)·n·u)       in the infinity norm

HPL-MxP refines one vector with `refine_solution`. `solve_equations` solves for all columns of a block. It uses
classical refinement for each column as long as this is effective, and GMRES for the remaining columns. A few more steps
follow for rows with a large residual.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any, Protocol

from mxpeak.errors import Outcome
from mxpeak.kernels.contract.dense import Block
from mxpeak.precision import PRECISIONS
from mxpeak.solvers import krylov
from mxpeak.solvers.accuracy import Accuracy, worst
from mxpeak.solvers.krylov import LeastSquares, Solve, cycle, run_cycles, started
from mxpeak.solvers.residual import backward_error as normwise_error
from mxpeak.solvers.scaling import Balance, centered, loses_digits, scale_rows, shifted

Vector = Any
Transform = Callable[[Block], Block]

#: Number of steps that the rules of HPL-MxP allow.
MAX_STEPS = 50
#: Target of the backward error: a sixteenth of the threshold of HPL-MxP.
TARGET = 1.0
#: Fraction of the target below which the predicted residual ends GMRES.
SAFETY = 0.5
#: If only the size of the solution is needed, GMRES may leave a part of the right-hand side: max(GMRES_REMAINDER,
#: u^(1/3)). If A is singular, a random right-hand side has a component of about 1/sqrt(n) along the null vector, and
#: GMRES must not leave this component. GMRES leaves condition·u in any case, because residuals are rounded.
GMRES_REMAINDER = 2.0**-14
#: Unit roundoff of fp64.
U = 2.0**-53
#: Classical refinement continues while each step divides the error by at least GAIN, for at most CLASSICAL_STEPS steps.
GAIN, CLASSICAL_STEPS = 4.0, 10
#: Restart length of GMRES. Longer cycles are useless, because the predicted residual has no more digits than the
#: factors.
RESTART = 8
#: Number of random sign patterns for the rounding errors, over all right-hand sides.
PATTERNS = 8
#: A column x has no correct digits if a rounding or one more correction changes it by more than this part of its size.
LOST = 2.0**-4


class SystemForRefinement(Protocol):
    """A system A x = b with M^-1; vectors over unknowns and vectors over equations may be distributed differently."""

    n: int
    A_inf: float
    b_inf: float
    b: Vector

    @property
    def unknowns(self) -> krylov.Space:
        """Return the space of x."""

    @property
    def equations(self) -> krylov.Space:
        """Return the space of b."""

    def residual(self, x: Vector) -> Vector:
        """Return b - A x in the working precision."""

    def multiply(self, v: Vector) -> Vector:
        """Return A v in the working precision."""

    def precondition(self, r: Vector) -> Vector:
        """Return M^-1 r as a new vector."""


def backward_error(system: SystemForRefinement, residual_inf: float, x: Vector, u: float = U) -> float:
    """Return eta for a residual with this norm, or 0 if all entries of the system are zero. Collective."""
    x_inf = system.unknowns.max_abs(x)
    return normwise_error(residual_inf, system.A_inf, x_inf, system.b_inf, system.n, u)


def refine_solution(
    system: SystemForRefinement,
    method: str = "gmres",
    *,
    restart: int = MAX_STEPS,
    max_steps: int = MAX_STEPS,
    target: float = TARGET,
    u: float = U,
) -> tuple[Vector, Solve]:
    """Solve A x = b to an eta of `target` and return x and the history; u is the roundoff of the working precision.

    The outcome reports breakdown, stagnation and NaN; the function never raises an error for them. Collective.
    """
    refinement = _Refinement(system, SAFETY * target, u)
    correct = refinement.by_gmres if method == "gmres" else refinement.by_single_solve
    done = run_cycles(refinement.residual, correct, restart=restart, max_steps=max_steps, tolerance=target)
    if done.outcome is Outcome.UNREACHED:
        done.outcome = Outcome.NOT_CONVERGED
    return refinement.x, done


class _Refinement:
    """Stores the current x and its residual r, and corrects x by GMRES or by one solve."""

    def __init__(self, system: SystemForRefinement, enough: float, u: float):
        self._system, self._enough, self._u = system, enough, u
        self.x = system.precondition(system.b)

    def residual(self) -> float:
        """Compute r = b - A x, and return its backward error eta."""
        self._r = self._system.residual(self.x)
        return self._eta(self._r)

    def _eta(self, r: Vector) -> float:
        return backward_error(self._system, self._system.equations.max_abs(r), self.x, self._u)

    def by_gmres(self, steps: int) -> list[float]:
        """Set x = x + Q t by one GMRES cycle of at most `steps` steps, and return the predicted error of each step.

        r - (A Q) t predicts the next residual without another product with A.
        """
        system = self._system
        Q, rho = started(system.unknowns, system.precondition(self._r), steps)
        AQ = system.equations.basis(steps)

        def B(q: Vector) -> Vector:
            w = system.multiply(q)
            AQ.append(w, 1.0)
            return system.precondition(w)

        def predicted(H: LeastSquares) -> float:
            return self._eta(self._r - AQ.combine(H.solve()))

        d, estimates = cycle(B, Q, rho, steps, self._enough, predicted)
        self.x += d
        return estimates

    def by_single_solve(self, steps: int) -> list[float]:
        """Set x = x + M^-1 r, and return 0 as the predicted error."""
        self.x += self._system.precondition(self._r)
        return [0.0]


class _SolutionGrowth(_Refinement):
    """A refinement that measures the residual relative to ||b||, so a large x does not make the error look small."""

    def _eta(self, r: Vector) -> float:
        return self._system.equations.max_abs(r) / self._system.b_inf


class BlockSpace(krylov.Space, Protocol):
    """A vector space for columns of one length and distribution, and for blocks of such columns."""

    def max_abs_of_each(self, W: Block) -> list[float]:
        """Return ||w_j||_inf of each column, or NaN if the column contains NaN. Collective."""


class Equations(ABC):
    """A system of equations with the factors of the scaled matrix A_s = R A C, for refinement in the working precision.

    The system is A X = B. If `scaled` is true, it is A_s Y = B_s instead, with Y = C^-1 X and B_s = R B.

    n, A_inf             order of the matrix, and its infinity norm
    u                    unit roundoff of the working precision
    unknowns, equations  spaces of the columns of X and of B
    """

    n: int
    u: float
    A_inf: float
    unknowns: BlockSpace
    equations: BlockSpace

    def __init__(self, xp: Any, balance: Balance | None, product: Transform, inverse: Transform, *, scaled: bool):
        """Create the system from the functions X -> A X and R -> A_s^-1 R, and the scales R and C of A_s = R A C."""
        self.xp, self._times_A, self._solve_A_s = xp, product, inverse
        self._of_A_s = balance if scaled else None
        self._of_factors = None if scaled else balance

    def multiply(self, X: Block) -> Block:
        """Return A X."""
        return self.scale(self._times_A(self.unscale(X)))

    def residual(self, B: Block, X: Block) -> Block:
        """Return B - A X."""
        return B - self.multiply(X)

    def solve(self, R: Block) -> Block:
        """Return A^-1 R by the factors as a new block in the type of R."""
        if self._of_factors is None:
            return self._solve_A_s(R)
        return scale_rows(self.xp, self._of_factors.C, self._solve_A_s(scale_rows(self.xp, self._of_factors.R, R)))

    def scale(self, B: Block) -> Block:
        """Return B_s = R B."""
        return B if self._of_A_s is None else scale_rows(self.xp, self._of_A_s.R, B)

    def unscale(self, Y: Block) -> Block:
        """Return X = C Y."""
        return Y if self._of_A_s is None else scale_rows(self.xp, self._of_A_s.C, Y)

    def scale_unknowns(self, X: Block) -> Block:
        """Return Y = C^-1 X as a new block."""
        if self._of_A_s is None:
            return self.xp.asarray(X, copy=True)
        return scale_rows(self.xp, 1.0 / self._of_A_s.C, X)

    @abstractmethod
    def column(self, V: Block, j: int) -> Vector:
        """Return column j as a vector of its space."""

    @abstractmethod
    def row_errors(self, X: Block, R: Block, B: Block) -> list[float]:
        """Return the row-wise backward error of each column, in n·u."""

    @abstractmethod
    def random_signs(self, columns: int) -> tuple[Vector, Block]:
        """Return random signs as one vector over the unknowns and as a block over the equations."""

    def sampled_error(self, B: Block, X: Block) -> float | None:
        """Return eta of a random combination of all columns, or None if each column needs its own residual."""
        return None

    def row_error_bounds(self, X: Block, R: Block, B: Block) -> list[float] | None:
        """Return upper bounds of the row-wise errors without a pass over A, or None if no bounds are available."""
        return None


@dataclass(slots=True)
class RefinedColumns:
    """X and R = B - A X, with the backward error, the number of steps and the error after each step of every column.

    R is None if all columns passed one check together.
    """

    X: Block
    R: Block | None
    etas: list[float]
    steps: list[int]
    history: list[list[float]]

    def worst_by_step(self) -> list[float]:
        """Return the worst error at the start and after each step."""
        length = max(map(len, self.history), default=0)
        return [worst([errors[min(step, len(errors) - 1)] for errors in self.history]) for step in range(length)]


class RefinedFactors(Protocol):
    """The part of the `factorization.Factorization` interface that refinement uses."""

    precision: str
    scaled: bool
    lagged: bool
    stable: bool

    @property
    def usable_for_gmres(self) -> bool:
        """Return whether GMRES may converge with these factors."""

    def is_doubtful(self, equations: Equations, columns: RefinedColumns, enough: float) -> bool:
        """Return whether A may be singular to working precision after refinement."""


@dataclass(slots=True)
class Solution:
    """The solution X of A X = B, and the errors of the worst column.

    Y, B          the solution and the right-hand sides in the range in which the system was solved
    eta           worst normwise backward error
    rows          worst row-wise backward error; None if a bound was small enough
    even_rows     whether `rows` is at the level of plain LU; True, unchecked, for a plain LU in the working precision
    doubtful      whether A may be singular to working precision
    moved         largest change of a column, relative to its size, that one more correction may make, if A is scaled
    underflows    whether a column lost all digits when it was rounded to subnormal numbers
    beyond_range  whether X overflows although Y does not
    """

    Y: Block
    B: Block
    R: Block | None
    outcome: Outcome
    eta: float
    steps: int
    history: list[float]
    doubtful: bool = False
    moved: float = 0.0
    rows: float | None = None
    even_rows: bool = True
    underflows: bool = False
    beyond_range: bool = False
    X: Block = None


def solve_in_range(
    equations: Equations,
    B: Block,
    R: Vector | None,
    solve: Callable[[Block, Block | None], Solution],
    *,
    exponent: int = 0,
    lower: bool = False,
    start: Block | None = None,
) -> tuple[Solution, bool]:
    """Scale the right-hand sides to the middle of the range, solve, and return X in the range of B.

    R scales the rows of A, and A was multiplied by 2^exponent. `start` is a first X, which is scaled like B and passed
    to `solve`. If X is not finite, solve again with right-hand sides that are scaled down further (`lower`), and return
    whether that was necessary.
    """
    xp = equations.xp
    while True:
        centered_B, exponents = centered(xp, B, R, lower=lower)
        solution = solve(centered_B, None if start is None else shifted(xp, start, [e - exponent for e in exponents]))
        if lower or solution.outcome is not Outcome.NOT_FINITE:
            break
        lower = True
    solution = _restored(equations, solution, [exponent - e for e in exponents])
    if loses_digits(xp, B, centered_B, exponents):  # an entry of b may have a different value after scaling
        solution.rows = max(solution.rows or 0.0, 1.0 / (equations.n * equations.u))
    return solution, lower


def solve_equations(
    factors: RefinedFactors,
    B: Block,
    accuracy: Accuracy,
    gmres_steps: int,
    *,
    equations: Equations,
    first: Equations,
    start: Block | None = None,
) -> Solution:
    """Solve A X = B by classical refinement, then GMRES for unconverged columns, then corrections of single rows.

    `first` is the scaled system, which is refined before A X = B itself, or `equations` again. Refinement begins with
    `start`, or with the solution by the factors if `start` is None.
    """
    enough, u = accuracy.enough, equations.u
    B_s = B if first is equations else first.scale(B)
    Y = first.solve(B_s) if start is None else first.scale_unknowns(start)
    columns = refine_columns(first, B_s, Y, accuracy.target, sampled=enough if start is None else 0.0)
    # A given start may be so accurate that its corrections show nothing about the condition number.
    own = PRECISIONS[factors.precision].u <= u and not factors.lagged
    doubtful = (own and start is not None) or factors.is_doubtful(first, columns, enough)
    if not worst(columns.etas) <= enough and factors.usable_for_gmres:
        gmres_columns(first, B_s, columns, enough, gmres_steps, all_columns=factors.precision == "fp64")
    history, steps, eta = columns.worst_by_step(), max(columns.steps, default=0), worst(columns.etas)
    if first is not equations:
        columns = refine_columns(equations, B, first.unscale(columns.X), enough, gain=1.0)
        corrections = max(columns.steps, default=0)
        eta = worst(columns.etas) if corrections else max(eta, worst(columns.etas))
        history, steps = history + columns.worst_by_step()[1:], steps + corrections
    X, R, rows, even_rows = columns.X, columns.R, None, True
    plain = factors.stable and not (factors.lagged or factors.scaled) and PRECISIONS[factors.precision].u <= u
    if eta <= enough and (start is not None or not plain):
        R = equations.residual(B, X) if R is None else R
        rows, even_rows, etas = refine_rows(equations, B, X, R, accuracy.rows)
        if etas:
            history, steps, eta = history + etas, steps + len(etas), etas[-1]
    moved = _movement(equations, B, X, R) if factors.scaled or (factors.lagged and start is not None) else 0.0
    outcome = Outcome.SOLVED if eta <= enough else Outcome.NOT_CONVERGED
    if not all(map(isfinite, equations.unknowns.max_abs_of_each(X))):
        outcome = Outcome.NOT_FINITE
    return Solution(X, B, R, outcome, eta, steps, history, doubtful, moved, rows, even_rows)


def refine_columns(
    equations: Equations, B: Block, X: Block, target: float, *, gain: float = GAIN, sampled: float = 0.0
) -> RefinedColumns:
    """Refine each column, X = X + A^-1 (B - A X), to an eta of `target`, while a step divides its eta by `gain`.

    A step that increases the error of a column is discarded. If `sampled` is given and a random combination of many
    columns has a smaller error, no column gets a residual of its own.
    """
    if sampled and (eta := equations.sampled_error(B, X)) is not None and eta <= sampled:
        count = B.shape[1]
        return RefinedColumns(X, None, [eta] * count, [0] * count, [[eta] for _ in range(count)])
    xp, b_infs = equations.xp, equations.equations.max_abs_of_each(B)
    R = equations.residual(B, X)
    etas = _backward_errors(equations, R, X, b_infs)
    columns = RefinedColumns(X, R, etas, [0] * len(etas), [[eta] for eta in etas])
    pending = [j for j, eta in enumerate(etas) if target < eta < inf]
    for _ in range(CLASSICAL_STEPS):
        if not pending:
            break
        x = columns_of(xp, columns.X, pending) + equations.solve(columns_of(xp, columns.R, pending))
        r = equations.residual(columns_of(xp, B, pending), x)
        errors = _backward_errors(equations, r, x, [b_infs[j] for j in pending])
        before = [etas[j] for j in pending]
        better = [k for k in range(len(pending)) if errors[k] < before[k]]
        if len(better) == columns.X.shape[1]:
            columns.X, columns.R = x, r
        else:
            _overwrite(xp, (columns.X, columns.R), (x, r), pending, better)
        for j, eta, old in zip(pending, errors, before):
            etas[j] = min(old, eta)
            columns.steps[j] += 1
            columns.history[j].append(etas[j])
        pending = [j for j, eta, old in zip(pending, errors, before) if target < eta <= old / gain and eta < old]
    return columns


def gmres_columns(
    equations: Equations, B: Block, columns: RefinedColumns, enough: float, steps: int, *, all_columns: bool
) -> None:
    """Solve by GMRES for the columns whose error exceeds `enough`, and overwrite them in `columns`.

    GMRES starts from M^-1 b, because the residual decreases faster from there than from the result of classical
    refinement. A column is kept if GMRES increases its error, for example because A is singular. Stop at the first
    column that GMRES does not solve, unless `all_columns` is given.
    """
    xp, X, R = equations.xp, columns.X, columns.R
    assert R is not None  # if the error of a combination of columns is small, the columns are not refined
    for j in [j for j, eta in enumerate(columns.etas) if not eta <= enough]:
        system = _Column(equations, equations.column(B, j))
        x, done = refine_solution(system, restart=RESTART, max_steps=steps, target=enough, u=equations.u)
        columns.steps[j] = max(columns.steps[j], done.steps)
        if columns.etas[j] <= done.residual < inf:
            columns.history[j] += [columns.etas[j]] * len(done.by_step())
        else:
            X[:, j], R[:, j] = xp.reshape(x, (-1,)), xp.reshape(system.r, (-1,))
            columns.etas[j] = done.residual
            columns.history[j] += done.by_step()
        if not (done.residual <= enough or all_columns):
            break


def refine_rows(
    equations: Equations, B: Block, X: Block, R: Block, enough: float
) -> tuple[float | None, bool, list[float]]:
    """Correct the columns whose row-wise error exceeds `enough`, while a step halves it; overwrite X and R.

    Usually, bounds show that all errors are small, and no error is computed. Return the worst error (None if it was
    not computed for every column), whether the error is small enough, and the worst eta after each step. LAPACK's
    gerfs uses the same method (Skeel 1980, Mathematics of Computation 35, 817).
    """
    xp, etas = equations.xp, list[float]()
    omegas = equations.row_error_bounds(X, R, B) or [inf] * B.shape[1]
    pending = [j for j, omega in enumerate(omegas) if not omega <= enough]
    all_computed = len(pending) == len(omegas)
    if pending:
        exact = equations.row_errors(*(columns_of(xp, V, pending) for V in (X, R, B)))
        for j, omega in zip(pending, exact):
            omegas[j] = omega
        pending = [j for j in pending if not omegas[j] <= enough]
        b_infs = equations.equations.max_abs_of_each(B) if pending else []
    for _ in range(CLASSICAL_STEPS):
        if not pending:
            break
        b = columns_of(xp, B, pending)
        x = columns_of(xp, X, pending) + equations.solve(columns_of(xp, R, pending))
        r = equations.residual(b, x)
        errors, before = equations.row_errors(x, r, b), [omegas[j] for j in pending]
        better = [k for k in range(len(pending)) if errors[k] < before[k]]
        _overwrite(xp, (X, R), (x, r), pending, better)
        for k in better:
            omegas[pending[k]] = errors[k]
        etas.append(worst(_backward_errors(equations, R, X, b_infs)))
        pending = [j for j, omega, old in zip(pending, errors, before) if enough < omega <= old / 2.0]
    omega = worst(omegas)
    return (omega if all_computed or omega > enough else None), omega <= enough, etas


def solution_growth(equations: Equations, s: Vector, steps: int) -> float:
    """Solve A x = s by GMRES and return ||A||·||x|| / ||s||, or inf if GMRES does not solve the system.

    For random s, the result is rarely far below the condition number. Factors in 16 bits cannot distinguish a
    condition number of 10^5 from infinity. The backward error eta cannot either. If A is singular and b is in its
    range, GMRES converges to an arbitrary x. If b is not in its range, x grows until ||A||·||x|| hides the remaining
    part of b. Therefore, the residual is compared with ||s|| alone. Collective.
    """
    system, tolerance = (
        _Column(equations, equations.column(s[:, None], 0)),
        max(GMRES_REMAINDER, equations.u ** (1.0 / 3.0)),
    )
    refinement = _SolutionGrowth(system, SAFETY * tolerance, equations.u)
    done = run_cycles(refinement.residual, refinement.by_gmres, restart=RESTART, max_steps=steps, tolerance=tolerance)
    if done.outcome is not Outcome.SOLVED:
        return inf
    return system.A_inf * system.unknowns.max_abs(refinement.x) / system.b_inf


class _Column:
    """A `SystemForRefinement` for one column."""

    def __init__(self, equations: Equations, b: Vector):
        self.n, self.A_inf, self.b, self.r = equations.n, equations.A_inf, b, b
        self.unknowns, self.equations = equations.unknowns, equations.equations
        self.b_inf = self.equations.max_abs(b)
        self.multiply, self.precondition, self._residual = equations.multiply, equations.solve, equations.residual

    def residual(self, x: Vector) -> Vector:
        """Compute, store and return r = b - A x."""
        self.r = self._residual(self.b, x)
        return self.r


def _restored(equations: Equations, solution: Solution, exponents: Sequence[int]) -> Solution:
    """Set X = 2^e_j y_j and return the solution; if this rounds a column, compute the errors again."""
    solution.X = solution.Y
    if not any(exponents):
        return solution
    xp, unknowns = equations.xp, equations.unknowns
    solution.X = shifted(xp, solution.Y, exponents)
    if solution.outcome is not Outcome.SOLVED:
        return solution
    if not all(map(isfinite, unknowns.max_abs_of_each(solution.X))):
        return replace(solution, outcome=Outcome.NOT_FINITE, eta=inf, rows=inf, beyond_range=True)
    Y = shifted(xp, solution.X, [-e for e in exponents])
    changes = unknowns.max_abs_of_each(Y - solution.Y)
    if not any(changes):
        return solution
    R = equations.residual(solution.B, Y)
    etas = _backward_errors(equations, R, Y, equations.equations.max_abs_of_each(solution.B))
    rows = worst(equations.row_errors(Y, R, solution.B))
    lost = any(change > LOST * size for change, size in zip(changes, unknowns.max_abs_of_each(solution.Y)))
    return replace(solution, Y=Y, R=R, eta=worst(etas), rows=rows, underflows=lost)


def _movement(equations: Equations, B: Block, X: Block, R: Block) -> float:
    """Return the largest change of a column of X, relative to its size, that one more correction may make.

    The scaled unknowns may be accurate although x is not. The error of y = C^-1 x is condition·u times its largest
    entry, and x has this error times the largest entry of C. This error exceeds x itself if the large entries of x
    belong to small columns of A. A residual is sometimes small by chance. Therefore, one roundoff of its terms, u·(|A
    (s∘x)| + |b|), is added with random signs; s are the signs of the terms of a row.
    """
    xp, k = equations.xp, B.shape[1]
    patterns = -(-PATTERNS // k)
    s, signs = equations.random_signs(k * patterns)
    rounding = equations.u * (xp.abs(equations.multiply(s * X)) + xp.abs(B))
    R, rounding = (xp.concat([V] * patterns, axis=1) for V in (R, rounding))
    corrections = equations.unknowns.max_abs_of_each(equations.solve(R + signs * rounding))
    sizes = equations.unknowns.max_abs_of_each(X) * patterns
    return worst([c / x if x else 0.0 for c, x in zip(corrections, sizes)])


def _backward_errors(equations: Equations, R: Block, X: Block, b_infs: Sequence[float]) -> list[float]:
    """Return the normwise backward error eta of each column."""
    r_infs, x_infs = equations.equations.max_abs_of_each(R), equations.unknowns.max_abs_of_each(X)
    norms = zip(r_infs, x_infs, b_infs)
    return [normwise_error(r, equations.A_inf, x, b, equations.n, equations.u) for r, x, b in norms]


def columns_of(xp: Any, V: Block, which: Sequence[int]) -> Block:
    """Return the columns `which` of V as a block, or V itself if all columns are selected."""
    return V if len(which) == V.shape[1] else xp.take(V, xp.asarray(which), axis=1)


def _overwrite(
    xp: Any, blocks: tuple[Block, Block], changed: tuple[Block, Block], which: list[int], better: list[int]
) -> None:
    """Replace columns of both blocks with changed columns.

    Column k of the changed blocks belongs to column which[k]; only the columns k in `better` are used.
    """
    if better:
        at = xp.asarray([which[k] for k in better])
        for V, v in zip(blocks, changed):
            V[:, at] = columns_of(xp, v, better)
