"""From factors to solutions: classical refinement of all right-hand sides at once, GMRES for those that it leaves."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from mxpeak.dense.factors import DOUBT, Factors
from mxpeak.dense.inputs import (
    Array,
    roundoff,
)
from mxpeak.errors import Outcome
from mxpeak.kernels.host import lapack
from mxpeak.solvers import refine
from mxpeak.solvers.krylov import Basis, Space
from mxpeak.spans import Spans

#: More right-hand sides than these are checked together, where no refinement is expected: a residual each would cost as
#: much as the solves.
SAMPLED = 8
#: Classical refinement goes on while each step gains at least this factor, and for so many steps.
GAIN, CLASSICAL_STEPS = 4.0, 10
#: GMRES starts anew so often: with factors applied in their own precision, it predicts no more digits than they have.
RESTART = 8
#: The backward error eta of plain LU is seldom above this or above 4/n, whichever is larger.
PLAIN_LU = 2.0**-7


@dataclass(slots=True)
class Refined:
    """Solutions X of A X = B; eta: the worst backward error; doubtful: A may be singular to working precision."""

    X: Array
    eta: float
    outcome: Outcome
    steps: int
    history: list[float]
    doubtful: bool


@dataclass(frozen=True, slots=True)
class Equations:
    """A_s Y = B_s, all its right-hand sides at once, in the input's type."""

    A: Array
    factors: Factors
    B: Array

    def of(self, columns: Array) -> Equations:
        """Those of some right-hand sides."""
        if len(columns) == self.B.shape[1]:
            return self
        return Equations(self.A, self.factors, np.asfortranarray(self.B[:, columns]))

    def mixed(self, Y: Array) -> Mixture:
        """One system A_s (Y w) = B_s w for all, w random signs over the columns' own scales: a check of all of them.

        Its backward error is about the root mean square of theirs, for a product with one column instead of many.
        """
        b_inf, y_inf = (np.abs(V).max(axis=0) for V in (self.B, Y))
        scale = y_inf + b_inf / (self.factors.A_inf or 1.0)
        signs = np.random.default_rng(Y.shape[1]).choice((-1.0, 1.0), Y.shape[1])
        w = (signs / np.where(scale > 0, scale, 1.0)).astype(self.B.dtype)[:, None]
        # Not @: NumPy's BLAS has threads of its own, which go on spinning for a while and hinder SciPy's.
        b, y = (_minus_product(np.zeros((V.shape[0], 1), V.dtype, order="F"), V, -w) for V in (self.B, Y))
        return Mixture(self.A, self.factors, b, y, Y.shape[1])

    def times(self, Y: Array) -> Array:
        """A_s Y."""
        return np.asarray(-self._minus(np.zeros_like(Y), Y))

    def residual(self, Y: Array) -> Array:
        """B_s - A_s Y."""
        return self._minus(self.B, Y)

    def _minus(self, B: Array, Y: Array) -> Array:
        scaling = self.factors.scaling
        if scaling is None:
            return _minus_product(B, self.A, Y)
        return B + _by(scaling.rows, _minus_product(np.zeros_like(Y), self.A, _by(scaling.columns, Y)))

    def eta(self, R: Array, Y: Array) -> Array:
        """The backward error of each column."""
        return _eta(R, Y, self.B, self.factors.A_inf)


@dataclass(frozen=True, slots=True)
class Mixture(Equations):
    """A random combination of many systems, and that of their solutions."""

    Y: Array
    count: int

    def eta(self, R: Array, Y: Array) -> Array:
        """||R|| / (||A||·sqrt(count)·n·u): each column entered with ||A||·||y|| + ||b|| = ||A||."""
        per_A = 1.0 / (self.factors.A_inf or 1.0)
        size = np.abs(R).max(axis=0).astype(np.float64) * per_A
        return np.asarray(size / (np.sqrt(self.count) * R.shape[0] * roundoff(R.dtype)))


def _minus_product(B: Array, A: Array, Y: Array) -> Array:
    """B - A Y as a new block."""
    R = B.copy(order="F")
    lapack.subtract_product(R, A, np.asfortranarray(Y))
    return R


def _eta(R: Array, Y: Array, B: Array, A_inf: float) -> Array:
    """||r|| / ((||A||·||y|| + ||b||)·n·u) in the infinity norm, of each column; NaN where that is not finite."""
    residual, y_inf, b_inf = (np.abs(V).max(axis=0).astype(np.float64) for V in (R, Y, B))
    per_A = 1.0 / A_inf if A_inf else 1.0  # divided first: the product of norms may overflow
    scale = (y_inf + b_inf * per_A) * R.shape[0] * roundoff(R.dtype)
    return np.asarray(np.divide(residual * per_A, scale, out=residual, where=scale != 0))


def _by(diagonal: Array, X: Array) -> Array:
    return np.asarray(np.multiply(X, diagonal[:, None], dtype=X.dtype, casting="same_kind"))


def refined(A: Array, factors: Factors, B: Array, spans: Spans, most: int) -> Refined:
    """Solve A X = B: classical refinement of all columns, then GMRES for those that it leaves."""
    with spans("refine"), np.errstate(all="ignore"):
        scaling = factors.scaling
        equations = Equations(A, factors, B if scaling is None else _by(scaling.rows, B))
        # The worst of many right-hand sides scatters more than a single one.
        enough = max(4.0 / A.shape[0], PLAIN_LU) * (2.0 if B.shape[1] > SAMPLED else 1.0)
        Y, etas, history, doubtful = _classical(equations, enough)
        steps = len(history) - 1
        left = np.flatnonzero(~(etas <= enough))
        for j in left if left.size and factors.fit else ():
            done = _gmres(equations, int(j), enough, most)
            steps, history = max(steps, done.steps), [*history, *done.history]
            Y[:, j], etas[j] = done.x[:, 0], done.eta
            if not done.eta <= enough:
                break
        X, eta = Y, _worst(etas)
        if scaling is not None:
            X = _by(scaling.columns, Y)
            eta = max(eta, _worst(_eta(_minus_product(B, A, X), X, B, scaling.A_inf)))
        outcome = Outcome.SOLVED if eta <= enough else Outcome.NOT_CONVERGED
        if not np.isfinite(X).all():
            outcome = Outcome.NOT_FINITE
        return Refined(X, eta, outcome, steps, history, doubtful)


def _classical(equations: Equations, enough: float) -> tuple[Array, Array, list[float], bool]:
    """Y = Y + A_s^-1 (B_s - A_s Y) while that pays; Y, its columns' backward errors, each step's worst, and any doubt.

    Factors in the input's own precision are refined to what plain LU reaches; coarser ones to a residual of one
    roundoff, u·(||A||·||x|| + ||b||), which costs a step more and beats plain LU.  That coarse factors get there proves
    that condition·u is far below 1; for the others, one correction tells.
    """
    same = equations.factors.LU.dtype == equations.A.dtype
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
    doubtful = same and _signs_of_singularity(factors, R, Y)
    pending = np.flatnonzero(~(etas <= aim))
    while pending.size and len(history) <= CLASSICAL_STEPS:
        part = equations.of(pending)
        new = Y[:, pending] + factors.apply(R[:, pending] if len(history) == 1 else R)
        R = part.residual(new)
        found = part.eta(R, new)
        better = found < etas[pending]
        Y[:, pending[better]], etas[pending[better]] = new[:, better], found[better]
        history.append(_worst(etas))
        if not GAIN * history[-1] <= history[-2]:
            break
        left = ~(found <= aim)
        pending, R = pending[left], R[:, left]
    return Y, etas, history, doubtful if same else not history[-1] <= enough


def _signs_of_singularity(factors: Factors, R: Array, Y: Array) -> bool:
    """Whether pivots, or the correction of one column, hint at a condition near 1/u."""
    j = int(np.argmax(np.abs(R).max(axis=0)))
    correction = factors.apply(R[:, j : j + 1])
    return not (factors.even and np.abs(correction).max() <= DOUBT * np.abs(Y[:, j]).max())


def _worst(etas: Array) -> float:
    """The largest, inf for a NaN."""
    worst = float(etas.max())
    return worst if isfinite(worst) else float("inf")


def _gmres(equations: Equations, j: int, enough: float, most: int) -> refine.Refinement:
    """GMRES for one column, from the start: its residual falls faster than that of any classical refinement.

    `refine` counts in fp64's roundoff; other types have their own.
    """
    unit = roundoff(equations.A.dtype) / refine.U
    column = Equations(equations.A, equations.factors, equations.B[:, j : j + 1])
    done = refine.refine(OneColumn(column), restart=RESTART, most=most, target=enough * unit)
    done.eta /= unit
    done.history = [eta / unit for eta in done.history]
    return done


class OneColumn:
    """One right-hand side as `refine` wants it: its vectors are blocks of one column."""

    def __init__(self, equations: Equations):
        self._equations = equations
        self.n = equations.A.shape[0]
        self.A_inf = equations.factors.A_inf
        self.b = equations.B
        self.unknowns: Space = Columns()
        self.equations = self.unknowns
        self.b_inf = self.unknowns.max_abs(self.b)

    def residual(self, x: Array) -> Array:
        """b - A x."""
        return self._equations.residual(x)

    def multiply(self, v: Array) -> Array:
        """A v."""
        return self._equations.times(v)

    def precondition(self, r: Array) -> Array:
        """U^-1 L^-1 r."""
        return self._equations.factors.apply(r)

    def add(self, x: Array, d: Array) -> None:
        """x += d in place."""
        x += d

    def subtract(self, r: Array, d: Array) -> Array:
        """r - d."""
        return r - d


class Columns:
    """The space of blocks of one column."""

    def basis(self, most: int) -> Basis:
        """Room for so many vectors."""
        return ColumnBasis(most)

    def norm(self, w: Array) -> float:
        """||w||_2."""
        return float(np.linalg.norm(w))

    def max_abs(self, w: Array) -> float:
        """||w||_inf."""
        return float(np.abs(w).max())


class ColumnBasis:
    """Vectors v_1 … v_k, kept as rows, each contiguous."""

    def __init__(self, most: int) -> None:
        self._most, self._k = most, 0
        self._room: Array = np.empty((0, 0))

    def append(self, w: Array, factor: float) -> Array:
        """v_{k+1} = factor · w."""
        if not self._k:
            self._room = np.empty((self._most, len(w)), w.dtype)
        v = self._room[self._k, :, None]
        np.multiply(w, factor, out=v)
        self._k += 1
        return v

    def project(self, w: Array) -> list[Any]:
        """h = V^H w and w = w - V h in place."""
        V = self._room[: self._k]
        h = (V @ w.conj()).conj()
        w -= V.T @ h
        return list(h[:, 0].tolist())

    def combine(self, y: list[Any]) -> Array:
        """Σ y_k v_k."""
        return np.asarray(self._room[: len(y)].T @ np.array(y, self._room.dtype)[:, None])
