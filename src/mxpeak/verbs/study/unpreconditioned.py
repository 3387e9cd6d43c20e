"""Run GMRES without a preconditioner until HPL's check passes, on arrays or on vectors distributed over ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import nextafter, sqrt
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from mxpeak.kernels.contract import Vector
from mxpeak.precision import precision
from mxpeak.solvers.krylov import Basis, LeastSquares, Space, cycle, started
from mxpeak.solvers.residual import backward_error

THRESHOLD = 16.0


@dataclass(frozen=True, slots=True)
class UnpreconditionedSystem:
    """A x = b of order n; `multiply` returns the product with A, distributed like b, and A_inf is ||A||_inf."""

    n: int
    b: Vector
    multiply: Callable[[Vector], Vector]
    space: Space
    A_inf: float


@dataclass(frozen=True, slots=True)
class Krylov:
    """Outcome of GMRES: number of steps, scaled residual of x, and ||r||_2 / ||b||_2.

    `steps` is None if HPL's check did not pass.
    """

    steps: int | None
    scaled_residual: float
    reduction: float

    def figures(self, n: int) -> dict[str, float | None]:
        """Return the outcome by name, with the reduction of the residual per step; values are None if not finite."""
        values = {
            "scaled_residual": self.scaled_residual,
            "reduction": self.reduction,
            "factor": self.reduction ** (1.0 / (self.steps or n)),
        }
        return {"steps": self.steps, **{name: x if np.isfinite(x) else None for name, x in values.items()}}


def full_gmres(system: UnpreconditionedSystem) -> Krylov:
    """Run GMRES without restarts from x = 0, at most n steps, until HPL's check passes. Collective."""
    Q, rho = started(system.space, system.b, system.n)
    check = _Check(system, Q, rho)
    _, history = cycle(system.multiply, Q, rho, system.n, nextafter(THRESHOLD, 0.0), check.scaled_residual)
    return Krylov(len(history) if check.scaled < THRESHOLD else None, check.scaled, check.reduction)


class _Check:
    """The stopping criterion of `full_gmres`: HPL's scaled residual of the iterate x = Q t, computed after each step.

    scaled      the latest scaled residual that was computed
    reduction   ||r||_2 / ||b||_2 of the latest step
    """

    def __init__(self, system: UnpreconditionedSystem, Q: Basis, norm_b: float):
        self._system, self._Q, self._norm_b = system, Q, norm_b
        self._b_inf = system.space.max_abs(system.b)
        self._R: Any = np.zeros((system.n, system.n), order="F")
        self.scaled, self.reduction = float("inf"), 1.0

    def scaled_residual(self, H: LeastSquares) -> float:
        """Compute x from the least-squares problem of the latest step, and return HPL's scaled residual of x.

        Return infinity without computing r if A is singular, or if ||r||_2 proves that HPL's check fails.
        """
        system, n, k = self._system, self._system.n, len(H.R)
        self.reduction = H.residual / self._norm_b
        if H.R[-1][-1] == 0.0:  # A is singular, and the Krylov space cannot grow
            return float("inf")
        self._R[:k, k - 1] = H.R[-1]
        # LAPACK solves the triangular system, because n solves in Python would take longer than the products with A.
        x = self._Q.combine(solve_triangular(self._R[:k, :k], H.g[:k], check_finite=False))
        u, x_inf = precision("fp64").u, system.space.max_abs(x)
        if H.residual > sqrt(n) * THRESHOLD * n * u * (system.A_inf * x_inf + self._b_inf):
            return float("inf")  # the infinity norm of r is at least ||r||_2 / √n
        r = system.b - system.multiply(x)
        self.scaled = backward_error(system.space.max_abs(r), system.A_inf, x_inf, self._b_inf, n, u)
        if self.scaled < THRESHOLD:
            self.reduction = system.space.norm(r) / self._norm_b
        return self.scaled
