"""From factors to solutions: classical refinement of all right-hand sides at once, GMRES for those that it leaves."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import numpy as np

from mxpeak.distributed.vectors import ArraySpace
from mxpeak.errors import Outcome
from mxpeak.library.dense.arrays import Array, Arrays, Block, Matrix, roundoff, type_of
from mxpeak.library.dense.factoring import DOUBT, Factors
from mxpeak.solvers.krylov import Solve
from mxpeak.solvers.refine import refine
from mxpeak.spans import Spans

#: More right-hand sides than these are checked together, where no refinement is expected: a residual each would cost as
#: much as the solves.
SAMPLED = 8
#: Classical refinement goes on while each step gains at least this factor, and for so many steps.
GAIN, CLASSICAL_STEPS = 4.0, 10
#: GMRES restarts so often: with factors applied in their own precision, it predicts no more digits than they have.
RESTART = 8
#: The backward error eta of plain LU is seldom above this or above 4/n, whichever is larger.
PLAIN_LU = 2.0**-7


@dataclass(slots=True)
class Refined:
    """Solutions X of A X = B; eta: the worst backward error; doubtful: A may be singular to working precision."""

    X: Block
    eta: float
    outcome: Outcome
    steps: int
    history: list[float]
    doubtful: bool


@dataclass(frozen=True, slots=True)
class Equations:
    """A_s Y = B_s, all its right-hand sides at once, in the input's type."""

    arrays: Arrays
    A: Matrix
    factors: Factors
    B: Block

    def of(self, columns: Array) -> Equations:
        """Those of some right-hand sides."""
        return Equations(self.arrays, self.A, self.factors, self.arrays.columns(self.B, columns))

    def mixed(self, Y: Block) -> Mixture:
        """One system A_s (Y w) = B_s w for all, w random signs over the columns' own scales: a check of all of them.

        Its backward error is about the root mean square of theirs, for a product with one column instead of many.
        """
        b_inf, y_inf = (self.arrays.largest(V) for V in (self.B, Y))
        scale = y_inf + b_inf / (self.factors.A_inf or 1.0)
        signs = np.random.default_rng(Y.shape[1]).choice((-1.0, 1.0), Y.shape[1])
        w = signs / np.where(scale > 0, scale, 1.0)
        b, y = (self.arrays.combined(V, w) for V in (self.B, Y))
        return Mixture(self.arrays, self.A, self.factors, b, y, Y.shape[1])

    def times(self, Y: Block) -> Block:
        """A_s Y."""
        scaling = self.factors.scaling
        if scaling is None:
            return self.arrays.product(self.A, Y)
        return self.arrays.scaled(scaling.rows, self.arrays.product(self.A, self.arrays.scaled(scaling.columns, Y)))

    def residual(self, Y: Block) -> Block:
        """B_s - A_s Y."""
        if self.factors.scaling is None:
            return self.arrays.minus_product(self.B, self.A, Y)
        return self.B - self.times(Y)

    def eta(self, R: Block, Y: Block) -> Array:
        """The backward error of each column."""
        return _eta(self.arrays, R, Y, self.B, self.factors.A_inf)


@dataclass(frozen=True, slots=True)
class Mixture(Equations):
    """A random combination of many systems, and that of their solutions."""

    Y: Block
    count: int

    def eta(self, R: Block, Y: Block) -> Array:
        """||R|| / (||A||·sqrt(count)·n·u): each column entered with ||A||·||y|| + ||b|| = ||A||."""
        size = self.arrays.largest(R) / (self.factors.A_inf or 1.0)
        return np.asarray(size / (np.sqrt(self.count) * R.shape[0] * roundoff(type_of(R))))


def _eta(arrays: Arrays, R: Block, Y: Block, B: Block, A_inf: float) -> Array:
    """||r|| / ((||A||·||y|| + ||b||)·n·u) in the infinity norm, of each column; NaN where that is not finite."""
    residual, y_inf, b_inf = (arrays.largest(V) for V in (R, Y, B))
    per_A = 1.0 / A_inf if A_inf else 1.0  # divided first: the product of norms may overflow
    scale = (y_inf + b_inf * per_A) * R.shape[0] * roundoff(type_of(R))
    return np.asarray(np.divide(residual * per_A, scale, out=np.array(residual), where=scale != 0))


def refined(arrays: Arrays, A: Matrix, factors: Factors, B: Block, spans: Spans, most: int) -> Refined:
    """Solve A X = B: classical refinement of all columns, then GMRES for those that it leaves."""
    with spans("refine"), arrays.careful(), np.errstate(all="ignore"):
        scaling = factors.scaling
        equations = Equations(arrays, A, factors, B if scaling is None else arrays.scaled(scaling.rows, B))
        # The worst of many right-hand sides scatters more than a single one.
        enough = max(4.0 / A.shape[0], PLAIN_LU) * (2.0 if B.shape[1] > SAMPLED else 1.0)
        Y, etas, history, doubtful = _classical(equations, enough)
        steps = len(history) - 1
        left = np.flatnonzero(~(etas <= enough))
        for j in left if left.size and factors.fit else ():
            y, done = _gmres(equations, int(j), enough, most)
            steps, history = max(steps, done.steps), [*history, *done.by_step()]
            Y[:, j], etas[j] = y[:, 0], done.residual
            if not done.residual <= enough:
                break
        X, eta = Y, _worst(etas)
        if scaling is not None:
            X = arrays.scaled(scaling.columns, Y)
            eta = max(eta, _worst(_eta(arrays, arrays.minus_product(B, A, X), X, B, scaling.A_inf)))
        outcome = Outcome.SOLVED if eta <= enough else Outcome.NOT_CONVERGED
        if not np.isfinite(arrays.largest(X)).all():
            outcome = Outcome.NOT_FINITE
        return Refined(X, eta, outcome, steps, history, doubtful)


def _classical(equations: Equations, enough: float) -> tuple[Block, Array, list[float], bool]:
    """Y = Y + A_s^-1 (B_s - A_s Y) while that pays; Y, its columns' backward errors, each step's worst, and any doubt.

    Factors in the input's own precision are refined to what plain LU reaches; coarser ones to a residual of one
    roundoff, u·(||A||·||x|| + ||b||), which costs a step more and beats plain LU.  That coarse factors get there proves
    that condition·u is far below 1; for the others, one correction tells.
    """
    arrays, same = equations.arrays, equations.factors.lu.dtype == equations.A.dtype
    aim = enough if same else 1.0 / equations.A.shape[0]
    factors = equations.factors
    Y = factors.apply(equations.B)
    if same and Y.shape[1] > SAMPLED:
        mixture = equations.mixed(Y)
        R = mixture.residual(mixture.Y)
        eta = float(mixture.eta(R, mixture.Y)[0])
        if eta <= enough:
            return Y, np.full(Y.shape[1], eta), [eta], not factors.even
    R = equations.residual(Y)
    etas = equations.eta(R, Y)
    history = [_worst(etas)]
    doubtful = same and _signs_of_singularity(equations, R, Y)
    pending = np.flatnonzero(~(etas <= aim))
    R = arrays.columns(R, pending)
    while pending.size and len(history) <= CLASSICAL_STEPS:
        part = equations.of(pending)
        new = arrays.columns(Y, pending) + factors.apply(R)
        R = part.residual(new)
        found = part.eta(R, new)
        better = np.flatnonzero(found < etas[pending])
        arrays.put(Y, pending[better], new, better)
        etas[pending[better]] = found[better]
        history.append(_worst(etas))
        if not GAIN * history[-1] <= history[-2]:
            break
        left = np.flatnonzero(~(found <= aim))
        pending, R = pending[left], arrays.columns(R, left)
    return Y, etas, history, doubtful if same else not history[-1] <= enough


def _signs_of_singularity(equations: Equations, R: Block, Y: Block) -> bool:
    """Whether pivots, or the correction of one column, hint at a condition near 1/u."""
    arrays, factors = equations.arrays, equations.factors
    j = int(np.argmax(arrays.largest(R)))
    correction, y = (float(arrays.largest(V)[0]) for V in (factors.apply(R[:, j : j + 1]), Y[:, j : j + 1]))
    return not (factors.even and correction <= DOUBT * y)


def _worst(etas: Array) -> float:
    """The largest, inf for a NaN."""
    worst = float(etas.max())
    return worst if isfinite(worst) else float("inf")


def _gmres(equations: Equations, j: int, enough: float, most: int) -> tuple[Block, Solve]:
    """GMRES for one column, from the start: its residual falls faster than that of any classical refinement."""
    column = OneColumn(equations.of(np.array([j])))
    return refine(column, restart=RESTART, most=most, target=enough, u=roundoff(type_of(equations.A)))


class OneColumn:
    """A `refine.System` of one right-hand side: its vectors are blocks of one column."""

    def __init__(self, equations: Equations):
        self._equations = equations
        self.n = equations.A.shape[0]
        self.A_inf = equations.factors.A_inf
        self.b = equations.B
        self.unknowns = self.equations = ArraySpace(equations.arrays.xp)
        self.b_inf = self.unknowns.max_abs(self.b)

    def residual(self, x: Block) -> Block:
        """b - A x."""
        return self._equations.residual(x)

    def multiply(self, v: Block) -> Block:
        """A v."""
        return self._equations.times(v)

    def precondition(self, r: Block) -> Block:
        """U^-1 L^-1 r."""
        return self._equations.factors.apply(r)

    def add(self, x: Block, d: Block) -> None:
        """x += d in place."""
        x += d

    def subtract(self, r: Block, d: Block) -> Block:
        """r - d."""
        return r - d
