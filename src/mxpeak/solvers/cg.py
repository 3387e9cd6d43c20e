"""Preconditioned conjugate gradients (Kashi et al., algorithm 1), with the operations that HPCG counts.

    r = b - A x
    z = M^-1 r
    p = z + β p                    β = rᵀz / (rᵀz of the previous step), 0 in the first step
    α = rᵀz / pᵀA p
    x = x + α p,  r = r - α A p

The residual is that of the recurrence in the last line. Because of rounding, it differs from b - A x; the tests of
HPCG do not detect this difference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite
from typing import Protocol

from mxpeak.errors import Outcome


class SystemForCg(Protocol):
    """A system A x = b with a preconditioner M, and the vectors r, z, p and A p. All methods are collective."""

    def residual(self) -> float:
        """Compute r = b - A x; return ||r||."""

    def precondition(self) -> float:
        """Compute z = M^-1 r; return rᵀz."""

    def update_direction(self, beta: float) -> None:
        """Compute p = z + β p; p is not read if β = 0."""

    def pAp(self) -> float:
        """Compute A p; return pᵀA p."""

    def step(self, alpha: float) -> float:
        """Compute x = x + α p and r = r - α A p; return ||r||."""


@dataclass(slots=True)
class CgSolve:
    """The history of a CG solve.

    `residual` and `history` are relative to the first residual, `initial`. If a product that must be positive is not,
    `broken` is its formula, and `product` its value.
    """

    outcome: Outcome = Outcome.UNREACHED
    steps: int = 0
    initial: float = 0.0
    residual: float = 1.0
    history: list[float] = field(default_factory=lambda: [1.0])
    broken: str = ""
    product: float = 0.0


def conjugate_gradients(
    system: SystemForCg, *, max_steps: int, tolerance: float, watch: Callable[[int], None] = lambda steps: None
) -> CgSolve:
    """Solve A x = b by preconditioned CG until ||r|| <= tolerance·||r_0||, or for `max_steps`. Collective.

    `watch` is called after each step. The outcome reports breakdown and NaN. With a tolerance of 0, all steps run,
    unless A or M is not positive definite, which ends the solve early.
    """
    solve = CgSolve()
    rho = solve.initial = system.residual()
    rz = 0.0
    while isfinite(rho) and rho > tolerance * solve.initial and solve.steps < max_steps:
        before, rz = rz, system.precondition()
        if not rz > 0.0:
            solve.broken, solve.product = "rᵀz", rz
            break
        system.update_direction(rz / before if solve.steps else 0.0)
        pAp = system.pAp()
        if not pAp > 0.0:
            solve.broken, solve.product = "pᵀA p", pAp
            break
        rho = system.step(rz / pAp)
        solve.steps += 1
        solve.residual = rho / solve.initial
        solve.history.append(solve.residual)
        watch(solve.steps)
    if not isfinite(rho):
        solve.outcome = Outcome.NOT_FINITE
    elif rho <= tolerance * solve.initial:
        solve.outcome = Outcome.SOLVED
    return solve
