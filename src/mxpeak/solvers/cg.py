"""Conjugate gradients with a preconditioner (Kashi et al., algorithm 1), in the steps that HPCG counts.

    r = b - A x
    z = M^-1 r
    p = z + β p                    β = rᵀz / (rᵀz of the step before), 0 in the first
    α = rᵀz / pᵀA p
    x = x + α p,  r = r - α A p

Residuals are those of the last line: what rounding lets them differ from b - A x by, HPCG's tests do not see.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite
from typing import Protocol

from mxpeak.errors import Outcome


class System(Protocol):
    """A x = b with a preconditioner M, and the vectors r, z, p and A p.  All methods are collective."""

    def residual(self) -> float:
        """r = b - A x; ||r||."""

    def precondition(self) -> float:
        """z = M^-1 r; rᵀz."""

    def turn(self, beta: float) -> None:
        """p = z + β p; with β = 0 p is not read."""

    def curvature(self) -> float:
        """A p; pᵀA p."""

    def advance(self, alpha: float) -> float:
        """x = x + α p and r = r - α A p; ||r||."""


@dataclass(slots=True)
class Solve:
    """How a solve went: `residual` and `history` relative to the first residual, `initial`."""

    outcome: Outcome = Outcome.NOT_CONVERGED
    steps: int = 0
    initial: float = 0.0
    residual: float = 1.0
    history: list[float] = field(default_factory=lambda: [1.0])


def conjugate_gradients(
    system: System, *, most: int, tolerance: float, watch: Callable[[int], None] = lambda steps: None
) -> Solve:
    """Solve A x = b until ||r|| <= tolerance·||r_0||, or for `most` steps; `watch` sees every step.  Collective.

    Never raises on what the numbers do.  A tolerance of 0 takes all steps; A or M that are not positive end it early.
    """
    done = Solve()
    rho = done.initial = system.residual()
    rz = 0.0
    while isfinite(rho) and rho > tolerance * done.initial and done.steps < most:
        before, rz = rz, system.precondition()
        if not rz > 0.0:
            break
        system.turn(rz / before if done.steps else 0.0)
        pAp = system.curvature()
        if not pAp > 0.0:
            break
        rho = system.advance(rz / pAp)
        done.steps += 1
        done.residual = rho / done.initial
        done.history.append(done.residual)
        watch(done.steps)
    if not isfinite(rho):
        done.outcome = Outcome.NOT_FINITE
    elif rho <= tolerance * done.initial:
        done.outcome = Outcome.SOLVED
    return done
