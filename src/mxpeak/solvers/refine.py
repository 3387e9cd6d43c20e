"""Refinement: an approximate inverse M^-1 = U^-1 L^-1 from low-precision factors, residuals in the working precision.

    gmres       left-preconditioned GMRES on M^-1 A d = M^-1 r     (Carson and Higham 2017; the benchmark's rules)
    classical   d = M^-1 r, x = x + d                              (Wilkinson; OLCF Algorithm 1, lines 33-49)

Both start from x_0 = M^-1 b, and stop on the scaled backward error of a freshly computed residual:

    eta = ||b - A x|| / ((||A||·||x|| + ||b||)·n·u)       in the infinity norm
"""

from __future__ import annotations

from math import inf
from typing import Any, Protocol

from mxpeak.errors import Outcome
from mxpeak.solvers import residual
from mxpeak.solvers.krylov import LeastSquares, Solve, Space, cycle, restarted, started

Vector = Any

#: Steps that the benchmark's rules allow.
MOST_STEPS = 50
#: The backward error that refinement aims at: a sixteenth of the benchmark's threshold, so well under it.
TARGET = 1.0
#: How far under the target a residual that GMRES only predicts must lie before the true one is computed.
SAFETY = 0.5
#: The part of a right-hand side that GMRES may leave where only the size of a solution is asked for: this, or the cube
#: root of u, if that is more.  Of random numbers the null vector of a singular matrix of order n has a part of about
#: 1/sqrt(n), which must not be among what is left; condition·u, as residuals are rounded, is left in any case.
SEEN = 2.0**-14
#: Unit roundoff of fp64.
U = 2.0**-53


class System(Protocol):
    """A x = b with an M^-1.  Vectors over the unknowns and over the equations may be distributed differently."""

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
        """b - A x in the working precision, over the equations."""

    def multiply(self, v: Vector) -> Vector:
        """A v in the working precision, over the equations."""

    def precondition(self, r: Vector) -> Vector:
        """M^-1 r over the unknowns; r is kept."""


def backward_error(system: System, residual_inf: float, x: Vector, u: float = U) -> float:
    """eta of a residual of this norm; 0 for a system of zeros.  Collective."""
    x_inf = system.unknowns.max_abs(x)
    return residual.backward_error(residual_inf, system.A_inf, x_inf, system.b_inf, system.n, u)


def refine(
    system: System,
    method: str = "gmres",
    *,
    restart: int = MOST_STEPS,
    most: int = MOST_STEPS,
    target: float = TARGET,
    u: float = U,
) -> tuple[Vector, Solve]:
    """Solve A x = b to an eta of `target`, u the unit roundoff of the working precision; x, and how it went.

    Never raises on what the numbers do.  Collective.
    """
    refinement = _Refinement(system, SAFETY * target, u)
    correct = refinement.by_gmres if method == "gmres" else refinement.by_one_solve
    done = restarted(refinement.residual, correct, restart=restart, most=most, tolerance=target)
    return refinement.x, done


def growth(system: System, *, restart: int = MOST_STEPS, most: int = MOST_STEPS, u: float = U) -> float:
    """||A||·||x|| / ||b|| by GMRES: for random b seldom far below A's condition; inf where GMRES does not find x.

    Factors in 16 bits cannot tell a condition of 10^5 from an infinite one.  Nor can an eta of A x = b: where A is
    singular and b fits to it, GMRES gets there, and x may be anything; where b does not, x grows until ||A||·||x||
    hides what is left of b.  So here the residual counts against ||b|| alone.  Collective.
    """
    left = max(SEEN, u ** (1.0 / 3.0))
    solution = _Growing(system, SAFETY * left, u)
    done = restarted(solution.residual, solution.by_gmres, restart=restart, most=most, tolerance=left)
    if done.outcome is not Outcome.SOLVED:
        return inf
    return system.A_inf * system.unknowns.max_abs(solution.x) / system.b_inf


class _Refinement:
    """x, its residual r, and two ways to correct x."""

    def __init__(self, system: System, enough: float, u: float):
        self._system, self._enough, self._u = system, enough, u
        self.x = system.precondition(system.b)

    def residual(self) -> float:
        """r = b - A x; eta."""
        self._r = self._system.residual(self.x)
        return self._eta(self._r)

    def _eta(self, r: Vector) -> float:
        return backward_error(self._system, self._system.equations.max_abs(r), self.x, self._u)

    def by_gmres(self, steps: int) -> list[float]:
        """x = x + Q t; r - (A Q) t predicts the next residual without another product with A."""
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

    def by_one_solve(self, steps: int) -> list[float]:
        """x = x + M^-1 r: one step, which expects to leave nothing."""
        self.x += self._system.precondition(self._r)
        return [0.0]


class _Growing(_Refinement):
    """The same, the residual counted against ||b||, however large x is."""

    def _eta(self, r: Vector) -> float:
        return self._system.equations.max_abs(r) / self._system.b_inf
