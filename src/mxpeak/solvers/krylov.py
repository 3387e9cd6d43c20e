"""GMRES: one cycle, one loop of restarts, and M on either side of A.

A cycle finds d such that B d is near z, in the notation of Kashi et al., algorithm 3 (Saad and Schultz 1986 use V, y
for Q, t):

    q_1 = z / rho                      rho = ||z||
    w = B q_k
    w = w - Q h, h = Q^H w, twice      then q_{k+1} = w / ||w||, so that B Q_k = Q_{k+1} H, H upper Hessenberg
    min || rho e_1 - H t ||            by Givens rotations
    d = Q t

Every cycle starts with a new residual r = b - A x in the working precision. The cycle itself may use a lower
precision, which makes GMRES an iterative refinement. In fp64 throughout, it is restarted GMRES. M is on one of two
sides:

                          B         z         x = x + …    stops on
    left   `refine`       M^-1 A    M^-1 r    d            ||r|| / ((||A||·||x|| + ||b||)·n·u), infinity norm
    right  `gmres_ir`     A M^-1    r         M^-1 d       ||r|| / ||b||, 2-norm

For a dense A, the cost of a vector is negligible compared with a product, and the backward error is the criterion.
GMRES with M on the left minimizes M^-1 r, which is nearly the error of x, so it also works if A is almost singular
(Carson and Higham 2017). This norm does not determine ||r||. Therefore, the products A q_k are kept, and r - (A Q) t
predicts the residual. For a sparse A, every vector adds to the cost. GMRES with M on the right minimizes r itself and
computes ||r|| without another vector; the rules of HPG-MxP and `mxpeak.gmres` stop on ||r|| / ||b||.
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

#: A solve has stalled if the residual has not fallen by this factor over this number of cycles.
STALL, STALL_CYCLES = 0.999, 10


class Basis(Protocol):
    """Orthonormal vectors q_1 … q_k of one space. All methods are collective."""

    @property
    def last(self) -> Vector:
        """Return q_k, the vector that was appended last."""

    def append(self, w: Vector, factor: float) -> None:
        """Append q_{k+1} = factor · w."""

    def orthogonalize(self, w: Vector) -> tuple[list[Scalar], float]:
        """Compute w = w - Q h with h = Q^H w twice, and append w / ||w||; return the sum of both h, and ||w||.

        Two passes are enough: Q is orthonormal to working precision (Giraud et al. 2005). w is overwritten.
        """

    def combine(self, t: list[Scalar]) -> Vector:
        """Return Σ t_k q_k over the first len(t) vectors."""


class Space(Protocol):
    """Vectors of one length and distribution. Norms are collective."""

    def basis(self, count: int) -> Basis:
        """Return an empty basis with memory for `count` vectors."""

    def norm(self, w: Vector) -> float:
        """Return ||w||_2."""

    def max_abs(self, w: Vector) -> float:
        """Return ||w||_inf, or NaN if w contains NaN."""


class LeastSquares:
    """The least-squares problem min || rho e_1 - H t || of a GMRES cycle.

    Each step appends a column to the upper Hessenberg matrix H. Givens rotations reduce H to an upper triangular R and
    rho e_1 to g, so that the solution is t = R^-1 g.
    """

    def __init__(self, rho: float):
        self.R: list[list[Scalar]] = []  # the columns of R
        self.g: list[Scalar] = [rho]
        self._rotations: list[tuple[float, Scalar]] = []

    @property
    def residual(self) -> float:
        """Return the minimum, ||z - B Q t||."""
        return float(abs(self.g[-1]))

    def append(self, h: list[Scalar], below: float) -> None:
        """Append the column h, followed by the entry `below`, to H.

        All previous rotations are applied to the column, and then a new rotation that maps (h_k, below) to (r_kk, 0).
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
        """Return t = R^-1 g; t_k is 0 if r_kk = 0, which occurs for a singular B with an exhausted Krylov space."""
        t: list[Scalar] = []
        for k in reversed(range(len(self.R))):
            above = sum(self.R[k + 1 + i][k] * t_i for i, t_i in enumerate(t))
            pivot = self.R[k][k]
            t.insert(0, (self.g[k] - above) / pivot if pivot else 0.0)
        return t


def _rotation(a: Scalar, b: float) -> tuple[float, Scalar, Scalar]:
    """Return (c, s, r) with c·a + s·b = r and -conj(s)·a + c·b = 0, for real b >= 0."""
    if abs(a) == 0.0:  # b is also zero: no t changes this row or the residual
        return 0.0, 1.0, b
    size, phase = hypot(abs(a), b), a / abs(a)
    return abs(a) / size, phase * b / size, phase * size


def started(space: Space, z: Vector, steps: int) -> tuple[Basis, float]:
    """Return a basis with q_1 = z / rho and memory for `steps` more vectors, and rho = ||z||. Collective."""
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
    """Return d = Q t after at most `steps` steps from q_1 = z / rho, and the estimate of each step. Collective.

    B           the function q -> B q, which may overwrite its result in the next call
    estimate    the expected residual after the correction by d; a cycle ends if it is at most `enough`
    """
    H, estimates = LeastSquares(rho), list[float]()
    while len(estimates) < steps:
        h, norm = Q.orthogonalize(B(Q.last))
        H.append(h, norm)
        estimates.append(estimate(H))
        if not norm > 0.0 or not estimates[-1] > enough:  # exhausted, good enough, or NaN
            break
    return Q.combine(H.solve()), estimates


@dataclass(slots=True)
class Solve:
    """The history of a solve; all residuals except `initial` are relative to the unit of the stopping criterion.

    cycles      the number of steps of each cycle
    history     the residual at the start and after each cycle
    estimates   the expected residual after each step
    """

    outcome: Outcome = Outcome.UNREACHED
    steps: int = 0
    initial: float = 0.0
    residual: float = 0.0
    cycles: list[int] = field(default_factory=list)
    history: list[float] = field(default_factory=list)
    estimates: list[float] = field(default_factory=list)

    def by_step(self) -> list[float]:
        """Return the residuals at the start and after each step, computed after each cycle and estimated within it."""
        residuals, first = self.history[:1], 0
        for steps, residual in zip(self.cycles, self.history[1:]):
            residuals += [*self.estimates[first : first + steps - 1], residual]
            first += steps
        return residuals


def run_cycles(
    residual: Callable[[], float],
    correct: Callable[[int], list[float]],
    *,
    restart: int,
    max_steps: int,
    tolerance: float,
    unit: float = 1.0,
    may_stall: bool = False,
    watch: Callable[[Solve], None] = lambda done: None,
) -> Solve:
    """Correct x until its residual is at most tolerance·unit, for at most `max_steps`. Collective.

    residual    computes r = b - A x and returns its norm
    correct     corrects x by at most the given number of steps and returns their estimates
    may_stall   whether to stop after cycles without progress, or after an overflow

    `watch` is called after each cycle. The outcome reports NaN and stagnation.
    """
    done = Solve(initial=residual())
    done.residual = done.initial / unit
    done.history.append(done.residual)
    while isfinite(done.residual) and done.residual > tolerance and done.steps < max_steps:
        if may_stall and (stalled(done.history) or overflowed(done)):
            break
        estimates = correct(min(restart, max_steps - done.steps))
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
    """Return whether the last STALL_CYCLES cycles made almost no progress."""
    return len(history) > STALL_CYCLES and history[-1] > STALL * history[-1 - STALL_CYCLES]


def overflowed(done: Solve) -> bool:
    """Return whether the last cycle overflowed and gained nothing, so that another cycle would do the same."""
    return bool(done.estimates) and not isfinite(done.estimates[-1]) and not done.history[-1] < done.history[-2]


class SystemForGmres(Protocol):
    """A system A x = b with M on the right; all methods are collective.

    x and r are in fp64, and all other vectors are in the inner precision.
    """

    def residual(self) -> float:
        """Compute and store r = b - A x; return ||r||."""

    def basis(self) -> tuple[Basis, float]:
        """Return the basis of q_1 = r / ||r||, and ||r||."""

    def step(self, q: Vector) -> Vector:
        """Return A M^-1 q."""

    def update(self, d: Vector) -> None:
        """Add M^-1 d to x, or d if the basis combines M^-1 q_k."""


def gmres_ir(
    system: SystemForGmres,
    b_norm: float,
    *,
    restart: int,
    max_steps: int,
    tolerance: float,
    reduction: float = 0.0,
    watch: Callable[[Solve], None] = lambda done: None,
) -> Solve:
    """Solve A x = b by GMRES-IR with M on the right, until ||b - A x|| <= tolerance·||b||, or r = 0 if b = 0.

    A cycle also ends when it has reduced the estimate of ||r|| by the factor `reduction`. If vectors are stored with
    the unit roundoff u, r differs from its estimate by up to about u·||r||, so that further steps would have no effect.

    The solve ends after `max_steps`, or if it stalls. With a tolerance of 0, all steps run. Collective.
    """
    unit = b_norm if b_norm > 0 else 1.0

    def correct(steps: int) -> list[float]:
        Q, rho = system.basis()
        d, estimates = cycle(system.step, Q, rho, steps, max(tolerance * unit, reduction * rho))
        system.update(d)
        return estimates

    return run_cycles(
        system.residual,
        correct,
        restart=restart,
        max_steps=max_steps,
        tolerance=tolerance if b_norm > 0 else 0.0,
        unit=unit,
        may_stall=tolerance > 0,
        watch=watch,
    )
