"""From factors to solutions: classical refinement of all right-hand sides at once, GMRES for those that it leaves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isfinite, sqrt

import numpy as np

from mxpeak.distributed.spaces import ArraySpace
from mxpeak.errors import Outcome
from mxpeak.kernels.contract import DenseKernels, Matrix, Vector
from mxpeak.kernels.contract.dense import Block
from mxpeak.library.dense.factoring import DOUBT, Factors, Scaling, probe
from mxpeak.library.dense.row_errors import plain_lu_by_rows, row_errors, sizes_of_terms
from mxpeak.library.types import Array
from mxpeak.precision import PRECISIONS
from mxpeak.solvers.condition import PROBE_SEED
from mxpeak.solvers.krylov import Solve
from mxpeak.solvers.refine import growth, refine
from mxpeak.solvers.residual import backward_error
from mxpeak.spans import Spans

#: With how many patterns of signs roundings are tried, over all right-hand sides.
PATTERNS = 8

#: More right-hand sides than these are checked together, where no refinement is expected: a residual each would cost as
#: much as the solves.
SAMPLED = 8
#: Classical refinement goes on while each step gains at least this factor, and for so many steps.
GAIN, CLASSICAL_STEPS = 4.0, 10
#: Parts of the unknowns, the smallest ones, that a lower bound of |A||x| leaves out.
SHARES = (0.0, 1 / 64, 1 / 16, 1 / 4)
#: GMRES restarts so often: with factors applied in their own precision, it predicts no more digits than they have.
RESTART = 8
#: The backward error eta of plain LU is seldom above this or above 4/n, whichever is larger.
PLAIN_LU = 2.0**-7


@dataclass(slots=True)
class Refined:
    """Solutions X of A X = B; eta: the worst backward error; doubtful: A may be singular to working precision.

    moved      by how much of its size one more correction would move an x, where columns were scaled
    rows       the worst row-wise backward error where it was computed, None where a bound of it did
    even_rows  whether that is at the level of plain LU; not looked at with factors in the input's own precision
    underflows whether an x has lost all digits when it was rounded to subnormal numbers
    """

    X: Block
    eta: float
    outcome: Outcome
    steps: int
    history: list[float]
    doubtful: bool
    moved: float = 0.0
    rows: float | None = None
    even_rows: bool = True
    underflows: bool = False


#: How the solve of no right-hand sides went.
NOTHING = Refined(None, 0.0, Outcome.SOLVED, 0, [], False)


@dataclass(frozen=True, slots=True)
class Equations:
    """A_s Y = B_s, all its right-hand sides at once, in the input's type of unit roundoff u."""

    kernels: DenseKernels
    A: Matrix
    factors: Factors
    B: Block
    b_inf: Array
    u: float

    def of(self, columns: Array) -> Equations:
        """Those of some right-hand sides."""
        if len(columns) == self.B.shape[1]:
            return self
        return replace(self, B=columns_of(self.kernels, self.B, columns), b_inf=self.b_inf[columns])

    def mixed(self, Y: Block) -> Mixture:
        """One system A_s (Y w) = B_s w for all, w random numbers over the columns' own scales: a check of all of them.

        Its backward error is about the root mean square of theirs, for a product with one column instead of many.
        """
        kernels, A_inf = self.kernels, self.factors.A_inf
        scale = np.array(largest(kernels, Y)) + self.b_inf / (A_inf or 1.0)
        w = probe(Y.shape[1]) / np.where(scale > 0, scale, 1.0)
        weights = kernels.xp.asarray(w[:, None], dtype=Y.dtype)
        b, y = (product(kernels, V, weights) for V in (self.B, Y))
        return Mixture(kernels, self.A, self.factors, b, self.b_inf, self.u, y, Y.shape[1])

    def times(self, Y: Block) -> Block:
        """A_s Y."""
        kernels, scaling = self.kernels, self.factors.scaling
        if scaling is None:
            return product(kernels, self.A, Y)
        return scaled(kernels, scaling.rows, product(kernels, self.A, scaled(kernels, scaling.columns, Y)))

    def residual(self, Y: Block) -> Block:
        """B_s - A_s Y."""
        if self.factors.scaling is None:
            return self.kernels.residual(self.B, self.A, Y)
        return self.B - self.times(Y)

    def eta(self, R: Block, Y: Block) -> Array:
        """The backward error of each column."""
        return backward_errors(self.kernels, R, Y, self.b_inf, self.factors.A_inf, self.u)


@dataclass(frozen=True, slots=True)
class Mixture(Equations):
    """A random combination of many systems, and that of their solutions."""

    Y: Block
    count: int

    def eta(self, R: Block, Y: Block) -> Array:
        """||R|| / (||A||·1.5·sqrt(count)·n·u): each column entered with ||A||·||y|| + ||b|| = ||A||, times 1 to 2."""
        (r_inf,) = largest(self.kernels, R)
        return np.array([backward_error(r_inf, self.factors.A_inf or 1.0, 1.5 * sqrt(self.count), 0.0, len(R), self.u)])


def plain_lu(n: int, sides: int = 1, *, is_complex: bool) -> float:
    """The backward error eta that plain LU seldom exceeds: max(4/n, 2^-7), of complex systems 2·sqrt(2) times that.

    A product of complex numbers is rounded by up to 2·sqrt(2)·u to first order, one of reals by u (Higham 2002, 3.6).
    Of many right-hand sides it is twice that: the worst scatters more than a single one, and so does their combination.
    """
    of_one = max(4.0 / n, PLAIN_LU) * (2.0 * sqrt(2.0) if is_complex else 1.0)
    return of_one * (2.0 if sides > SAMPLED else 1.0)


def refined(kernels: DenseKernels, A: Matrix, factors: Factors, B: Block, u: float, spans: Spans, most: int) -> Refined:
    """Solve A X = B: classical refinement of all columns, then GMRES for those that it leaves."""
    with spans("refine"), kernels.computing(), np.errstate(all="ignore"):
        scaling = factors.scaling
        B_s = B if scaling is None else scaled(kernels, scaling.rows, B)
        equations = Equations(kernels, A, factors, B_s, np.array(largest(kernels, B_s)), u)
        enough = plain_lu(len(A), B.shape[1], is_complex=kernels.xp.isdtype(A.dtype, "complex floating"))
        Y, R, etas, history, doubtful = classical(equations, enough)
        steps = len(history) - 1
        left = np.flatnonzero(~(etas <= enough))
        for j in left if left.size and factors.fit else ():
            y, done = _gmres(equations, int(j), enough, most)
            steps, history = max(steps, done.steps), [*history, *done.by_step()]
            Y[:, j], etas[j] = y[:, 0], done.residual
            if R is not None:
                R[:, j] = equations.of(np.array([j])).residual(y)[:, 0]
            if not done.residual <= enough:
                break
        X, eta, moved = Y, _worst(etas), 0.0
        if scaling is not None:
            X, R, by_step = _unscaled(equations, scaling, A, B, Y, enough)
            steps, history = steps + len(by_step) - 1, [*history, *by_step[1:]]
            eta = max(eta, by_step[0]) if len(by_step) == 1 else by_step[-1]  # that of A_s is of Y, before corrections
        rows, even_rows = None, True
        if eta <= enough and PRECISIONS[factors.precision].u > u:
            R = kernels.residual(B, A, X) if R is None else R
            rows, even_rows, more = _refined_by_rows(equations, A, B, X, R)
            if more:
                steps, history, eta = steps + len(more), [*history, *more], more[-1]
        if scaling is not None:
            moved = _moved(equations, scaling, R, X, B)
        outcome = Outcome.SOLVED if eta <= enough else Outcome.NOT_CONVERGED
        if not np.isfinite(largest(kernels, X)).all():
            outcome = Outcome.NOT_FINITE
        return Refined(X, eta, outcome, steps, history, doubtful, moved, rows, even_rows)


def _refined_by_rows(
    equations: Equations, A: Matrix, B: Block, X: Block, R: Block
) -> tuple[float | None, bool, list[float]]:
    """Correct X, with R = B - A X, until the row-wise backward error of each column is that of plain LU.

    Most often a lower bound of |A||X| + |B| shows that it is, and nothing else is computed.  Return the worst error
    where it was computed of all columns, whether it is small enough, and the worst eta after each step.  X and R are
    overwritten.  (Skeel 1980, Mathematics of Computation 35, 817; LAPACK's gerfs does the same.)
    """
    kernels, scaling, u = equations.kernels, equations.factors.scaling, equations.u
    enough = plain_lu_by_rows(len(A), is_complex=kernels.xp.isdtype(A.dtype, "complex floating"))
    R_s = R if scaling is None else scaled(kernels, scaling.rows, R)
    omegas = row_errors(kernels.xp, R_s, _least_sizes(equations, X, R_s), len(A), u)
    left = np.flatnonzero(~(omegas <= enough))
    all_known, by_step = left.size == X.shape[1], list[float]()
    A_inf, b_inf = equations.factors.A_inf if scaling is None else scaling.A_inf, np.array(largest(kernels, B))
    if left.size:
        x, b, r = (columns_of(kernels, V, left) for V in (X, B, R))
        omegas[left] = row_errors(kernels.xp, r, sizes_of_terms(kernels, A, x, b), len(A), u)
    while left.size and len(by_step) < CLASSICAL_STEPS:
        left = left[~(omegas[left] <= enough)]
        if not left.size:
            break
        x, b, r = (columns_of(kernels, V, left) for V in (X, B, R))
        step = equations.factors.apply(r) if scaling is None else _correction(equations, scaling, r)
        x = x + step
        r = kernels.residual(b, A, x)
        found = row_errors(kernels.xp, r, sizes_of_terms(kernels, A, x, b), len(A), u)
        better = np.flatnonzero(found < omegas[left])
        gained = 2.0 * found <= omegas[left]
        at = kernels.xp.asarray(left[better])
        X[:, at], R[:, at] = columns_of(kernels, x, better), columns_of(kernels, r, better)
        omegas[left[better]] = found[better]
        by_step.append(_worst(backward_errors(kernels, R, X, b_inf, A_inf, u)))
        left = left[gained]
    worst = _worst(omegas)
    return (worst if all_known or worst > enough else None), worst <= enough, by_step


def _least_sizes(equations: Equations, X: Block, R: Block) -> Block:
    """Return a lower bound of |A_s||Y| + |B_s|, Y = D_c^-1 X, from the sums of A_s's rows and its largest entry alone.

    Of a row, all but m entries meet a |y_j| of at least the m-th smallest, t, and these m are at most max |a_ij|:
    (|A||y|)_i >= t·(Σ_j |a_ij| - m·max |a_ij|).  Nor is it below |A y|_i = |b - r|_i.
    """
    kernels, factors, xp = equations.kernels, equations.factors, equations.kernels.xp
    size, least = xp.abs(equations.B), xp.abs(equations.B - R)
    if factors.sums is None:
        return size + least
    scaling, n = factors.scaling, len(size)
    y = xp.sort(xp.abs(X if scaling is None else scaled(kernels, 1.0 / scaling.columns, X)), axis=0)
    sums = xp.astype(factors.sums[0], y.dtype, copy=False)[:, None]
    for m in sorted({int(share * n) for share in SHARES}):
        least = xp.maximum(least, y[m : m + 1] * (sums - m * factors.A_max))
    return least + size


def classical(equations: Equations, enough: float) -> tuple[Block, Block | None, Array, list[float], bool]:
    """Y = Y + A_s^-1 (B_s - A_s Y) while that pays; Y, its residuals and backward errors, each step's worst, any doubt.

    Many columns that pass together have no residuals of their own: None.

    Factors in the input's own precision are refined to what plain LU reaches; coarser ones to a residual of one
    roundoff, u·(||A||·||x|| + ||b||), which costs a step more and beats plain LU.  That coarse factors get there proves
    that condition·u is far below 1; for those in the input's own precision, one correction tells; finer ones get there
    whatever the condition is, so it has to be looked at.
    """
    kernels, factors = equations.kernels, equations.factors
    same = factors.lu.LU.dtype == equations.A.dtype
    finer = PRECISIONS[factors.precision].u < equations.u
    aim = enough if same else 1.0 / len(equations.A)
    Y = factors.apply(equations.B)
    if same and Y.shape[1] > SAMPLED:
        mixture = equations.mixed(Y)
        R = mixture.residual(mixture.Y)
        eta = float(mixture.eta(R, mixture.Y)[0])
        if eta <= enough:
            return Y, None, np.full(Y.shape[1], eta), [eta], not factors.even
    R = equations.residual(Y)
    etas = equations.eta(R, Y)
    history = [_worst(etas)]
    doubtful = same and _signs_of_singularity(equations, R, Y)
    pending = np.flatnonzero(~(etas <= aim))
    of_all, R = R, columns_of(kernels, R, pending)
    while pending.size and len(history) <= CLASSICAL_STEPS:
        part = equations.of(pending)
        new = columns_of(kernels, Y, pending) + factors.apply(R)
        R = part.residual(new)
        found = part.eta(R, new)
        better = np.flatnonzero(found < etas[pending])
        at = kernels.xp.asarray(pending[better])
        Y[:, at], of_all[:, at] = columns_of(kernels, new, better), columns_of(kernels, R, better)
        etas[pending[better]] = found[better]
        history.append(_worst(etas))
        if not GAIN * history[-1] <= history[-2]:
            break
        left = np.flatnonzero(~(found <= aim))
        pending, R = pending[left], columns_of(kernels, R, left)
    return Y, of_all, etas, history, doubtful if same else finer or not history[-1] <= enough


def _unscaled(
    equations: Equations, scaling: Scaling, A: Matrix, B: Block, Y: Block, enough: float
) -> tuple[Block, Block, list[float]]:
    """X = D_c Y, corrected where A's norms ask for more than those of A_s did; its residual; the worst eta by step."""
    kernels, b_inf = equations.kernels, np.array(largest(equations.kernels, B))

    def looked_at(X: Block) -> tuple[Block, float]:
        R = kernels.residual(B, A, X)
        return R, _worst(backward_errors(kernels, R, X, b_inf, scaling.A_inf, equations.u))

    X = scaled(kernels, scaling.columns, Y)
    R, eta = looked_at(X)
    by_step = [eta]
    while not by_step[-1] <= enough and len(by_step) <= CLASSICAL_STEPS:
        new = X + _correction(equations, scaling, R)
        R_new, eta = looked_at(new)
        if not eta < by_step[-1]:
            break
        X, R = new, R_new
        by_step.append(eta)
    return X, R, by_step


def _correction(equations: Equations, scaling: Scaling, R: Block) -> Block:
    """A^-1 R by the factors of A_s."""
    kernels = equations.kernels
    return scaled(kernels, scaling.columns, equations.factors.apply(scaled(kernels, scaling.rows, R)))


def _moved(equations: Equations, scaling: Scaling, R: Block, X: Block, B: Block) -> float:
    """How far a correction may move an x, compared with its size; the scaled unknowns may be sure where x is not.

    y = D_c^-1 x is known to condition·u of its largest entry, and x has that error times the largest of D_c: more than
    x itself where its large entries belong to small columns of A.  A residual is small by chance now and then, so one
    roundoff of what it is the difference of is added, u·(|A (s∘x)| + |b|), with random signs: s those of a row's terms,
    and PATTERNS others for the rows.
    """
    kernels, (n, k) = equations.kernels, X.shape
    patterns = -(-PATTERNS // k)
    signs = np.random.default_rng(PROBE_SEED).choice((-1.0, 1.0), (n, 1 + k * patterns))
    of_x, of_rows = (kernels.xp.asarray(s.copy(), dtype=X.dtype) for s in (signs[:, :1], signs[:, 1:]))
    rounding = equations.u * (abs(product(kernels, equations.A, of_x * X)) + abs(B))
    R, rounding = (kernels.xp.concat([V] * patterns, axis=1) for V in (R, rounding))
    C = _correction(equations, scaling, R + of_rows * rounding)
    sizes = zip(largest(kernels, C), [*largest(kernels, X)] * patterns)
    return _worst(np.array([c / x if x else 0.0 for c, x in sizes]))


def _signs_of_singularity(equations: Equations, R: Block, Y: Block) -> bool:
    """Whether pivots, or the correction of one column, hint at a condition near 1/u."""
    kernels, factors = equations.kernels, equations.factors
    j = int(np.argmax(largest(kernels, R)))
    (correction,) = largest(kernels, factors.apply(R[:, j : j + 1]))
    (size,) = largest(kernels, Y[:, j : j + 1])
    return not (factors.even and correction <= DOUBT * size)


def _gmres(equations: Equations, j: int, enough: float, most: int) -> tuple[Block, Solve]:
    """GMRES for one column, from the start: its residual falls faster than that of any classical refinement."""
    column = OneColumn(equations.of(np.array([j])))
    return refine(column, restart=RESTART, most=most, target=enough, u=equations.u)


def condition_seen(kernels: DenseKernels, A: Matrix, factors: Factors, u: float, most: int) -> float:
    """||A_s||·||z|| / ||s||, A_s z = s solved by GMRES for random s; inf where it does not get there."""
    with kernels.computing(), np.errstate(all="ignore"):
        s = kernels.xp.asarray(probe(len(A))[:, None], dtype=A.dtype)
        equations = Equations(kernels, A, factors, s, np.array(largest(kernels, s)), u)
        return growth(OneColumn(equations), restart=RESTART, most=most, u=u)


class OneColumn:
    """A `refine.System` of one right-hand side: its vectors are blocks of one column."""

    def __init__(self, equations: Equations):
        self._equations = equations
        self.n = len(equations.A)
        self.A_inf = equations.factors.A_inf
        self.b = equations.B
        self.unknowns = self.equations = ArraySpace(equations.kernels.xp, self.b)
        (self.b_inf,) = equations.b_inf.tolist()

    def residual(self, x: Block) -> Block:
        """b - A x."""
        return self._equations.residual(x)

    def multiply(self, v: Block) -> Block:
        """A v."""
        return self._equations.times(v)

    def precondition(self, r: Block) -> Block:
        """U^-1 L^-1 r."""
        return self._equations.factors.apply(r)


# --- blocks, one right-hand side a column


def largest(kernels: DenseKernels, V: Block) -> list[float]:
    """max_i |v_ij| of each column; NaN where it has one."""
    found: list[float] = kernels.xp.max(abs(V), axis=0).tolist()
    return found


def backward_errors(kernels: DenseKernels, R: Block, Y: Block, b_inf: Array, A_inf: float, u: float) -> Array:
    """eta of each column; NaN where it has one."""
    norms = zip(largest(kernels, R), largest(kernels, Y), b_inf)
    return np.array([backward_error(r, A_inf, y, b, len(R), u) for r, y, b in norms])


def _worst(etas: Array) -> float:
    """The largest, inf for a NaN, which max() of Python may pass over."""
    worst = float(etas.max())
    return worst if isfinite(worst) else inf


def columns_of(kernels: DenseKernels, V: Block, which: Array) -> Block:
    """Some columns, as a block."""
    return V if len(which) == V.shape[1] else kernels.xp.take(V, kernels.xp.asarray(which), axis=1)


def scaled(kernels: DenseKernels, diagonal: Vector, X: Block) -> Block:
    """D X as a new block."""
    return kernels.xp.astype(X * diagonal[:, None], X.dtype, copy=False)


def product(kernels: DenseKernels, A: Matrix, Y: Block) -> Block:
    """A Y."""
    return -kernels.residual(kernels.xp.zeros((A.shape[0], Y.shape[1]), dtype=Y.dtype), A, Y)
