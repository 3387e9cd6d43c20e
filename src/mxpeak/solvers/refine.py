"""Refinement to FP64: an approximate inverse M^-1 = U^-1 L^-1 from low-precision factors, residuals in FP64.

    gmres       left-preconditioned GMRES on M^-1 A d = M^-1 r     (Carson and Higham 2017; the benchmark's rules)
    classical   d = M^-1 r, x = x + d                              (Wilkinson; OLCF Algorithm 1, lines 33-49)

Both start from x_0 = M^-1 b, and stop on the true scaled backward error of a freshly computed residual:

    eta = ||b - A x|| / ((||A||·||x|| + ||b||)·n·u)       in the infinity norm, u = 2^-53
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Protocol

from mxpeak.errors import Outcome
from mxpeak.solvers.krylov import Arnoldi, Space

Vector = Any

#: Steps that the benchmark's rules allow.
MOST_STEPS = 50
#: The backward error that refinement aims at: a sixteenth of the benchmark's threshold, so well under it.
TARGET = 1.0
#: How far under the target a residual that GMRES only predicts must lie before the true one is computed.
SAFETY = 0.5
#: Unit roundoff of fp64.
U = 2.0**-53


class System(Protocol):
    """A x = b as refinement sees it.  Vectors over the unknowns and over the equations may be dealt differently."""

    n: int
    A_inf: float
    b_inf: float
    b: Vector

    @property
    def unknowns(self) -> Space:
        """The space of x."""

    @property
    def equations(self) -> Space:
        """The space of b."""

    def residual(self, x: Vector) -> Vector:
        """b - A x in fp64, over the equations."""

    def multiply(self, v: Vector) -> Vector:
        """A v in fp64, over the equations."""

    def precondition(self, r: Vector) -> Vector:
        """M^-1 r over the unknowns; r is kept."""

    def add(self, x: Vector, d: Vector) -> None:
        """x += d in place."""

    def subtract(self, r: Vector, d: Vector) -> Vector:
        """r - d as a new vector over the equations."""


@dataclass(slots=True)
class Refinement:
    """How refinement went; `history` holds eta of x_0 and after each step (of GMRES: predicted, the last computed)."""

    x: Vector
    eta: float
    outcome: Outcome
    steps: int = 0
    history: list[float] = field(default_factory=list)


def backward_error(system: System, residual_inf: float, x: Vector) -> float:
    """eta of a residual of this norm; 0 for a system of zeros.  Collective."""
    scale = system.A_inf * system.unknowns.max_abs(x) + system.b_inf
    return residual_inf / (scale * max(system.n, 1) * U) if scale else residual_inf


def refine(
    system: System, method: str = "gmres", *, restart: int = MOST_STEPS, most: int = MOST_STEPS, target: float = TARGET
) -> Refinement:
    """Solve A x = b to a scaled backward error of `target`; never raises on what the numbers do.  Collective."""
    x = system.precondition(system.b)
    r = system.residual(x)
    eta = backward_error(system, system.equations.max_abs(r), x)
    done = Refinement(x, eta, Outcome.NOT_CONVERGED, 0, [eta])
    while isfinite(done.eta) and done.eta > target and done.steps < most:
        if method == "gmres":
            _gmres_cycle(system, done, r, min(restart, most - done.steps), target)
            done.history.pop()  # a prediction, for which the true value follows
        else:
            system.add(done.x, system.precondition(r))
            done.steps += 1
        r = system.residual(done.x)
        done.eta = backward_error(system, system.equations.max_abs(r), done.x)
        done.history.append(done.eta)
    if not isfinite(done.eta):
        done.outcome = Outcome.NOT_FINITE
    elif done.eta <= target:
        done.outcome = Outcome.SOLVED
    return done


def _gmres_cycle(system: System, done: Refinement, r: Vector, steps: int, target: float) -> None:
    """x += V y with V, y from up to so many steps of GMRES on M^-1 A d = M^-1 r.

    The products A v_k are kept: r - (A V) y predicts the true residual, unpreconditioned, without another pass over A.
    """
    krylov = Arnoldi(system.unknowns, system.precondition(r), steps)
    AV = system.equations.basis(steps)
    for _ in range(steps):
        w = system.multiply(krylov.v)
        AV.append(w, 1.0)
        more = krylov.step(system.precondition(w))
        predicted = system.subtract(r, AV.combine(krylov.coefficients()))
        done.steps += 1
        done.history.append(backward_error(system, system.equations.max_abs(predicted), done.x))
        if not more or not done.history[-1] > SAFETY * target:  # a NaN ends the cycle too
            break
    system.add(done.x, krylov.solution())
