"""How hard a generated system is: the condition of A, and how well GMRES does without the factors.

Neither is part of a benchmark's time; both go with its result, so that a reader sees what was solved.
"""

from __future__ import annotations

from mxpeak.distributed.generate import GeneratedSystem
from mxpeak.distributed.vectors import largest
from mxpeak.kernels.contract import Kernels, Vector
from mxpeak.solvers.krylov import cycle, started
from mxpeak.solvers.mxp_system import MxpSystem

#: Steps of unpreconditioned GMRES over which its factor is measured, after the first ones, which differ.
FIRST, STEPS = 2, 8
#: Pairs of solves that the condition estimator may take; two or three are usual.
MOST_PAIRS = 5


def unpreconditioned_factor(system: GeneratedSystem, mxp: MxpSystem) -> float | None:
    """What GMRES without a preconditioner gains a step: (||r_8|| / ||r_2||)^(1/6).  None where it ends earlier.

    8 products with A.  Collective over the grid.
    """
    if system.n <= STEPS:
        return None
    Q, rho = started(mxp.unknowns, system.on_columns(system.b), STEPS)
    _, norms = cycle(lambda q: system.on_columns(system.multiply(q)), Q, rho, STEPS, 0.0)
    if len(norms) < STEPS or not norms[-1] > 0.0:
        return None
    return float((norms[-1] / norms[FIRST - 1]) ** (1.0 / (STEPS - FIRST)))


def condition_estimate(mxp: MxpSystem, kernels: Kernels) -> float:
    """||A||_inf · ||A^-1||_inf, the second by Hager's estimator with the factors for A: a lower bound, rarely far off.

    ||A^-1||_inf = ||B||_1 with B = A^-T: climb from vertex to vertex of the unit ball, x = e_j (Higham 1988).
    2·N² flops a solve, two a pair.  Collective over the grid.
    """
    n = mxp.n
    xp = kernels.xp
    x = xp.full(mxp.unknowns.size, 1.0 / n)
    best, vertex = 0.0, -1
    for _ in range(MOST_PAIRS):
        y = mxp.precondition_transposed(x)
        size = mxp.equations.sum_of([float(xp.sum(xp.abs(y)))])[0]
        if not size > best:  # also where it is not a number
            return mxp.A_inf * (best if size == size else size)
        best = size
        z = mxp.precondition(xp.where(y >= 0.0, xp.ones(y.shape), -xp.ones(y.shape)))
        z_inf, place = _largest(mxp, z, kernels)
        if place == vertex or not z_inf > mxp.unknowns.sum_of([_dot(z, x)])[0]:
            break
        vertex = place
        x[:] = 0.0
        local = mxp.local_column(place)
        if local is not None:
            x[local] = 1.0
    return mxp.A_inf * best


def _dot(z: Vector, x: Vector) -> float:
    return float(sum(a * b for a, b in zip(z.tolist(), x.tolist())))


def _largest(mxp: MxpSystem, z: Vector, kernels: Kernels) -> tuple[float, int]:
    """max |z_j|, and the first global j that has it; the same on every rank."""
    z_inf = mxp.unknowns.max_abs(z)
    mine = [mxp.global_column(jl) for jl, value in enumerate(z.tolist()) if abs(value) == z_inf]
    first = largest(kernels, mxp.unknowns.everybody, [-float(min(mine, default=mxp.n))])
    return z_inf, -int(first[0])
