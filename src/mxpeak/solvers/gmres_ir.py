"""GMRES-IR: restarted GMRES, preconditioned from the right, as iterative refinement (Kashi et al., algorithm 3).

    r = b - A x                          in fp64
    q_1 = r / ||r||                      rounded to the vectors' precision, like all up to the update
    w = A M^-1 q_k                       and CGS2: w orthogonal to q_1 … q_k
    min || ||r|| e_1 - H t ||            by Givens rotations
    x = x + M^-1 (Q t)                   added in fp64

With everything in fp64 it is restarted GMRES.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Protocol

from mxpeak.errors import Outcome
from mxpeak.solvers.krylov import LeastSquares, Scalar

Vector = Any

#: A solve has stalled once the true residual has not fallen by this factor over so many restart cycles.
STALL, STALL_CYCLES = 0.999, 10


class Basis(Protocol):
    """Krylov vectors q_1 … q_k, dealt over the ranks."""

    @property
    def last(self) -> Vector:
        """q_k."""

    def orthogonalize(self, w: Vector) -> tuple[list[Scalar], float]:
        """Q^T w, ||w|| after w = w - Q Q^T w, done twice; then q_{k+1} = w / ||w||, unless that is zero."""

    def combine(self, t: list[Scalar]) -> Vector:
        """Q t."""


class System(Protocol):
    """A x = b with a preconditioner M, x = 0 at first.  All methods are collective."""

    def residual(self) -> float:
        """||b - A x||, and the residual kept for the next two; in fp64."""

    def basis(self, rho: float) -> Basis:
        """The basis of q_1 = r / rho alone."""

    def step(self, q: Vector) -> Vector:
        """A M^-1 q in the inner precision."""

    def update(self, Qt: Vector) -> None:
        """x = x + M^-1 Qt in fp64."""


@dataclass(slots=True)
class Solve:
    """How a solve went: residuals relative to ||b||, true ones after each cycle in `history`."""

    outcome: Outcome = Outcome.NOT_CONVERGED
    steps: int = 0
    initial: float = 0.0
    residual: float = 0.0
    cycles: list[int] = field(default_factory=list)
    history: list[float] = field(default_factory=list)
    estimates: list[float] = field(default_factory=list)


def gmres_ir(
    system: System, b_norm: float, *, restart: int, most: int, tolerance: float,
    watch: Callable[[Solve], None] = lambda done: None,
) -> Solve:  # fmt: skip
    """Solve A x = b until ||b - A x|| <= tolerance·||b||, or for `most` steps; `watch` sees every cycle.  Collective.

    Never raises on what the numbers do; a tolerance of 0 takes all steps.
    """
    done = Solve()
    rho = done.initial = system.residual()
    scale = b_norm if b_norm > 0 else 1.0
    done.residual = rho / scale
    done.history.append(done.residual)
    while isfinite(rho) and rho > tolerance * b_norm and done.steps < most and not _stalled(done, tolerance):
        steps = _cycle(system, done, rho, scale, min(restart, most - done.steps), tolerance)
        done.cycles.append(steps)
        done.steps += steps
        rho = system.residual()
        done.residual = rho / scale
        done.history.append(done.residual)
        watch(done)
    if not isfinite(rho):
        done.outcome = Outcome.NOT_FINITE
    elif rho <= tolerance * b_norm:
        done.outcome = Outcome.SOLVED
    return done


def _cycle(system: System, done: Solve, rho: float, scale: float, steps: int, tolerance: float) -> int:
    """x += M^-1 Q t from up to so many steps; returns how many were taken."""
    Q, least = system.basis(rho), LeastSquares(rho)
    taken = 0
    while taken < steps:
        w = system.step(Q.last)
        h, norm = Q.orthogonalize(w)
        least.append(h, norm)
        taken += 1
        done.estimates.append(least.residual / scale)
        if not norm > 0 or not least.residual > tolerance * scale:  # the space is exhausted, or a NaN, or it will do
            break
    system.update(Q.combine(least.solve()))
    return taken


def _stalled(done: Solve, tolerance: float) -> bool:
    """Whether the last cycles gained nothing; where all steps are asked for they are taken."""
    history = done.history
    return tolerance > 0 and len(history) > STALL_CYCLES and history[-1] > STALL * history[-1 - STALL_CYCLES]
