"""Measure the difficulty of a system: the condition number of A, and the convergence of GMRES without factors.

Both are part of the result of a benchmark but are not included in its time.
"""

from __future__ import annotations

import math

from mxpeak.distributed.sources import GeneratedSystem
from mxpeak.kernels.contract import Vector
from mxpeak.solvers.condition import inverse_one_norm, reductions_over
from mxpeak.solvers.krylov import LeastSquares, cycle, started
from mxpeak.solvers.mxp_system import MxpSystem
from mxpeak.solvers.refine import backward_error

#: Steps between which the convergence factor of unpreconditioned GMRES is measured; the first steps differ.
FIRST, STEPS = 2, 8


def unpreconditioned_factor(system: GeneratedSystem, mxp: MxpSystem) -> float | None:
    """Return the residual reduction per step of GMRES without a preconditioner, (||r_8|| / ||r_2||)^(1/6).

    Return None if GMRES ends earlier. The computation takes 8 products with A. Collective over the grid.
    """
    if system.n <= STEPS:
        return None
    Q, rho = started(mxp.unknowns, system.on_columns(system.b), STEPS)
    _, norms = cycle(lambda q: system.on_columns(system.multiply(q)), Q, rho, STEPS, 0.0)
    if len(norms) < STEPS or not norms[-1] > 0.0:
        return None
    return float((norms[-1] / norms[FIRST - 1]) ** (1.0 / (STEPS - FIRST)))


def unpreconditioned_steps(system: GeneratedSystem, mxp: MxpSystem, max_steps: int, threshold: float) -> int | None:
    """Return the number of steps of GMRES without a preconditioner, from x = 0, until eta is below `threshold`.

    Return None if more than `max_steps` are necessary. Each step takes one product with A, because the residual is
    computed as r = b - (A Q) t. Collective over the grid.
    """
    Q, rho = started(mxp.unknowns, system.on_columns(system.b), max_steps)
    AQ = mxp.equations.basis(max_steps)

    def A(q: Vector) -> Vector:
        w = system.multiply(q)
        AQ.append(w, 1.0)
        return system.on_columns(w)

    def eta(H: LeastSquares) -> float:
        t = H.solve()
        return backward_error(mxp, mxp.equations.max_abs(mxp.b - AQ.combine(t)), Q.combine(t))

    _, etas = cycle(A, Q, rho, max_steps, math.nextafter(threshold, 0.0), eta)
    return len(etas) if etas[-1] < threshold else None


def condition_estimate(mxp: MxpSystem) -> float:
    """Return an estimate of ||A||_inf · ||A^-1||_inf, computed from the factors of A by ||A^-1||_inf = ||A^-T||_1.

    The estimate takes four to six solves of 2·N² flops each. Collective over the grid.
    """
    xp, indices = mxp.unknowns.kernels.xp, mxp.indices()
    X, Y = reductions_over(mxp.unknowns), reductions_over(mxp.equations)
    solve_transposed, solve = mxp.precondition_transposed, mxp.precondition
    return mxp.A_inf * inverse_one_norm(solve_transposed, solve, indices, mxp.n, xp.float64, xp, X=X, Y=Y)
