"""GMRES: one cycle, one loop of restarts, and M on either side of A.

A cycle finds d with B d near z, in the letters of Kashi et al., algorithm 3 (Saad and Schultz 1986: V, y for Q, t):

    q_1 = z / rho                      rho = ||z||
    w = B q_k
    w = w - Q h, h = Q^H w, twice      then q_{k+1} = w / ||w||, so that B Q_k = Q_{k+1} H, H upper Hessenberg
    min || rho e_1 - H t ||            by Givens rotations
    d = Q t

Every cycle starts with a new residual r = b - A x in the working precision, and may itself run in a lower one: GMRES as
iterative refinement.  In fp64 throughout it is restarted GMRES.  M stands on one of two sides:

                          B         z         x = x + …    stops on
    left   `refine`       M^-1 A    M^-1 r    d            ||r|| / ((||A||·||x|| + ||b||)·n·u), infinity norm
    right  `gmres_ir`     A M^-1    r         M^-1 d       ||r|| / ||b||, 2-norm

Why two?  With a dense A a vector costs nothing compared with a product, and what counts is the backward error.  From
the left GMRES minimizes M^-1 r, nearly the error of x, so it works where A is almost singular (Carson and Higham 2017);
but that norm says nothing about r: so the products A q_k are kept, and r - (A Q) t predicts the residual.  With a
sparse A every vector counts.  From the right GMRES minimizes r itself and knows ||r|| without another vector; and
HPG-MxP's rules and `mxpeak.gmres` stop on ||r|| / ||b||.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import hypot, isfinite
from typing import Any, Protocol

from mxpeak.errors import Outcome

Vector = Any
#: A real or complex number.
Scalar = Any

#: A solve has stalled once the residual has not fallen by this factor over so many cycles.
STALL, STALL_CYCLES = 0.999, 10


class Basis(Protocol):
    """Vectors q_1 … q_k of one space, distributed over the ranks as its vectors are.  All methods are collective."""

    @property
    def last(self) -> Vector:
        """q_k."""

    def append(self, w: Vector, factor: float) -> None:
        """q_{k+1} = factor · w."""

    def orthogonalize(self, w: Vector) -> tuple[list[Scalar], float]:
        """w = w - Q h with h = Q^H w, twice, then q_{k+1} = w / ||w|| unless that is zero; the sum of both h; ||w||.

        Twice is enough: Q is orthonormal to working precision (Giraud et al. 2005).  w is overwritten.
        """

    def combine(self, t: list[Scalar]) -> Vector:
        """Σ t_k q_k, of the first so many vectors."""


class Space(Protocol):
    """Vectors of one length and distribution.  Norms are collective."""

    def basis(self, most: int) -> Basis:
        """A basis without vectors, with memory for so many."""

    def norm(self, w: Vector) -> float:
        """||w||_2."""

    def max_abs(self, w: Vector) -> float:
        """||w||_inf, NaN if w has one."""


class LeastSquares:
    """min || rho e_1 - H t ||, H growing by a column a step; R t = g once all rotations are applied."""

    def __init__(self, rho: float):
        self.R: list[list[Scalar]] = []  # its columns
        self.g: list[Scalar] = [rho]
        self._rotations: list[tuple[float, Scalar]] = []

    @property
    def residual(self) -> float:
        """The minimum, ||z - B Q t||."""
        return float(abs(self.g[-1]))

    def append(self, h: list[Scalar], below: float) -> None:
        """Append a column to H: h, and `below` under it.

        All rotations so far are applied to it, then one more that turns (h_k, below) to (r_kk, 0).
        """
        column = list(h)
        for k, (c, s) in enumerate(self._rotations):
            upper, lower = column[k], column[k + 1]
            column[k], column[k + 1] = c * upper + s * lower, -s.conjugate() * upper + c * lower
        c, s, column[-1] = _rotation(column[-1], below)
        self._rotations.append((c, s))
        self.R.append(column)
        last = self.g[-1]
        self.g[-1:] = [c * last, -s.conjugate() * last]

    def solve(self) -> list[Scalar]:
        """t = R^-1 g; t_k = 0 where r_kk is zero, as for a singular B whose Krylov space is exhausted."""
        t: list[Scalar] = []
        for k in reversed(range(len(self.R))):
            above = sum(self.R[k + 1 + i][k] * t_i for i, t_i in enumerate(t))
            pivot = self.R[k][k]
            t.insert(0, (self.g[k] - above) / pivot if pivot else 0.0)
        return t


def _rotation(a: Scalar, b: float) -> tuple[float, Scalar, Scalar]:
    """(c, s, r) with c·a + s·b = r and -conj(s)·a + c·b = 0, b real and not negative."""
    if abs(a) == 0.0:  # with a zero b too: no t changes this row, and the residual stays what it was
        return 0.0, 1.0, b
    size, phase = hypot(abs(a), b), a / abs(a)
    return abs(a) / size, phase * b / size, phase * size


def started(space: Space, z: Vector, steps: int) -> tuple[Basis, float]:
    """A basis of q_1 = z / rho alone, with memory for so many more, and rho = ||z||.  Collective."""
    rho = space.norm(z)
    Q = space.basis(steps + 1)
    Q.append(z, 1.0 / rho if rho else 0.0)
    return Q, rho


def cycle(
    B: Callable[[Vector], Vector],
    Q: Basis,
    rho: float,
    steps: int,
    enough: float,
    estimate: Callable[[LeastSquares], float] = lambda H: H.residual,
) -> tuple[Vector, list[float]]:
    """d = Q t after up to so many steps from q_1 = z / rho, and each step's estimate.  Collective.

    B           q -> B q, which is overwritten
    estimate    the residual to expect after the correction by d; a cycle ends once it is `enough`
    """
    H, estimates = LeastSquares(rho), list[float]()
    while len(estimates) < steps:
        h, norm = Q.orthogonalize(B(Q.last))
        H.append(h, norm)
        estimates.append(estimate(H))
        if not norm > 0.0 or not estimates[-1] > enough:  # the space is exhausted, it will do, or there is a NaN
            break
    return Q.combine(H.solve()), estimates


@dataclass(slots=True)
class Solve:
    """How a solve went; residuals are relative to the unit of the stop, all but `initial`.

    cycles      the steps of each cycle
    history     the residual at the start and after each cycle
    estimates   the residual that was to be expected after each step
    """

    outcome: Outcome = Outcome.NOT_CONVERGED
    steps: int = 0
    initial: float = 0.0
    residual: float = 0.0
    cycles: list[int] = field(default_factory=list)
    history: list[float] = field(default_factory=list)
    estimates: list[float] = field(default_factory=list)

    def by_step(self) -> list[float]:
        """The residual at the start and after each step: computed at the end of a cycle, estimated within it."""
        found, first = self.history[:1], 0
        for steps, residual in zip(self.cycles, self.history[1:]):
            found += [*self.estimates[first : first + steps - 1], residual]
            first += steps
        return found


def restarted(
    residual: Callable[[], float],
    correct: Callable[[int], list[float]],
    *,
    restart: int,
    most: int,
    tolerance: float,
    unit: float = 1.0,
    may_stall: bool = False,
    watch: Callable[[Solve], None] = lambda done: None,
) -> Solve:
    """Correct x until its residual is at most tolerance·unit, for up to `most` steps; `watch` sees every cycle.

    residual    computes r = b - A x; its norm
    correct     x = x + … by up to so many steps; the estimates of those made
    may_stall   whether steps that gain nothing are the last

    Never raises on what the numbers do.  Collective.
    """
    done = Solve(initial=residual())
    done.residual = done.initial / unit
    done.history.append(done.residual)
    while isfinite(done.residual) and done.residual > tolerance and done.steps < most:
        if may_stall and stalled(done.history):
            break
        estimates = correct(min(restart, most - done.steps))
        done.estimates += [estimate / unit for estimate in estimates]
        done.cycles.append(len(estimates))
        done.steps += len(estimates)
        done.residual = residual() / unit
        done.history.append(done.residual)
        watch(done)
    if not isfinite(done.residual):
        done.outcome = Outcome.NOT_FINITE
    elif done.residual <= tolerance:
        done.outcome = Outcome.SOLVED
    return done


def stalled(history: list[float]) -> bool:
    """Whether the last cycles gained nothing."""
    return len(history) > STALL_CYCLES and history[-1] > STALL * history[-1 - STALL_CYCLES]


class System(Protocol):
    """A x = b with M on the right: x and r in fp64, all else in the inner precision.  All methods are collective."""

    def residual(self) -> float:
        """r = b - A x, which is kept; ||r||."""

    def basis(self) -> tuple[Basis, float]:
        """The basis of q_1 = r / ||r|| alone, and ||r||."""

    def step(self, q: Vector) -> Vector:
        """A M^-1 q."""

    def update(self, d: Vector) -> None:
        """x = x + M^-1 d; or x + d, where the basis combines M^-1 q_k."""


def gmres_ir(
    system: System,
    b_norm: float,
    *,
    restart: int,
    most: int,
    tolerance: float,
    watch: Callable[[Solve], None] = lambda done: None,
) -> Solve:
    """GMRES-IR, M on the right: A x = b to ||b - A x|| <= tolerance·||b||, to zero where b is.  Collective.

    Ends after `most` steps, or where it stalls; a tolerance of 0 takes all steps.
    """
    unit = b_norm if b_norm > 0 else 1.0

    def correct(steps: int) -> list[float]:
        Q, rho = system.basis()
        d, estimates = cycle(system.step, Q, rho, steps, tolerance * unit)
        system.update(d)
        return estimates

    return restarted(
        system.residual,
        correct,
        restart=restart,
        most=most,
        tolerance=tolerance if b_norm > 0 else 0.0,
        unit=unit,
        may_stall=tolerance > 0,
        watch=watch,
    )
