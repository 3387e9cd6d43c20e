"""Preconditioned MINRES for symmetric or Hermitian systems (Paige and Saunders 1975; Elman, Silvester and Wathen).

    z_j   = z_j / γ_j                                        Lanczos, with M^-1: γ_j² = z_jᴴ v_j
    δ_j   = z_jᴴ A z_j
    v_j+1 = A z_j - (δ_j/γ_j) v_j - (γ_j/γ_j-1) v_j-1,       z_j+1 = M^-1 v_j+1
    α_0   = c_j δ_j - c_j-1 s_j γ_j,   α_1 = (α_0² + γ_j+1²)^½
    α_2   = s_j δ_j + c_j-1 c_j γ_j,   α_3 = s_j-1 γ_j       QR of the tridiagonal matrix by Givens rotations
    c_j+1 = α_0 / α_1,   s_j+1 = γ_j+1 / α_1
    w_j+1 = (z_j - α_3 w_j-1 - α_2 w_j) / α_1
    x     = x + c_j+1 η w_j+1,   η = -s_j+1 η
    r     = s_j+1² r + (c_j+1 η / γ_j+1) v_j+1

A may be indefinite, but M must be positive definite: then z_j+1ᴴ v_j+1 is 0 only if v_j+1 = 0, and x is exact. |η| is
the norm of r in M^-1, which the method minimizes. The last line computes r itself, because users stop on ||r||_2.

If A is singular and A x = b has no solution, r converges to a vector of the null space of A. With norms in M^-1 and
the largest column T of the tridiagonal, ||A M^-1 r_j|| = ||r_j|| (α_0² + (c_j γ_j+1)²)^½ and ||A M^-1|| >= ||T||. The
step divides by α_1, which is then small, and x would grow along the null space. Rounding errors grow with the square of
the condition number ||T|| ||r|| / ||A M^-1 r||, so the run ends at u^-½ for the unit roundoff u of M^-1. For the same
reason, v_j+1 counts as zero if half of the digits of A z_j cancel.
"""

from __future__ import annotations

from math import hypot, inf, sqrt

from mxpeak.precision import PRECISIONS
from mxpeak.solvers.recurrence import Recurrence, SystemForRecurrences

#: Largest ||A M^-1 r|| / (||A M^-1|| ||r||) at which r is a null vector up to the rounding errors of A z and of zᴴA z.
NULL = 512 * PRECISIONS["fp64"].u
#: Rounding errors may keep ||A M^-1 r|| above the limit. If it falls to NEARLY times the limit and then grows by
#: GROWTH, and ||r|| is at least SAME of its earlier value, x grows along the null space, and the run ends.
NEARLY, GROWTH, SAME = 16.0, 4.0, 0.99


def solve_by_minres(system: SystemForRecurrences, *, max_steps: int, enough: float) -> Recurrence:
    """Improve x by MINRES until ||r|| <= enough, or for `max_steps`; the result reports breakdown. Collective."""
    done = Recurrence()
    r = v = system.residual_vector()
    r_norm = system.norm(r)
    z = system.precondition(v)
    zv = system.dot(z, v).real
    v_old = w_old = w = 0.0 * r
    γ_old, γ, η = 1.0, sqrt(max(zv, 0.0)), sqrt(max(zv, 0.0))
    s_old, s, c_old, c = 0.0, 0.0, 1.0, 1.0
    T, half = 0.0, sqrt(system.u)
    least, r_at_least, may_grow = inf, r_norm, True  # a run that starts near a null vector may leave it
    while r_norm > enough and done.steps < max_steps:
        if not zv > 0.0:
            done.broken, done.product = "zᴴv", zv
            break
        z = z / γ
        Az = system.multiply(z)
        δ = system.dot(z, Az).real
        v_old, v = v, Az - (δ / γ) * v - (γ / γ_old) * v_old
        z_new = system.precondition(v)
        zv = system.dot(z_new, v).real
        if not zv > 0.0 and not system.norm(v) <= half * system.norm(Az):
            done.broken, done.product = "zᴴv", zv
            break
        γ_old, γ = γ, sqrt(max(zv, 0.0))
        α_0, α_2, α_3 = c * δ - c_old * s * γ_old, s * δ + c_old * c * γ_old, s_old * γ_old
        α_1, Ar = hypot(α_0, γ), hypot(α_0, c * γ)
        T = max(T, hypot(γ_old if done.steps else 0.0, δ, γ))
        system.size = max(system.size, T)
        may_grow = may_grow if done.steps else Ar <= NEARLY * half * system.size
        least, r_at_least = (Ar, r_norm) if Ar < least else (least, r_at_least)
        grows = GROWTH * least < min(Ar, NEARLY * half * T) and r_norm > SAME * r_at_least and not may_grow
        if grows or not Ar > max(half * T, NULL * system.size):
            done.broken, done.product = "AM⁻¹r", Ar / system.size if system.size else 0.0
            break
        c_old, c, s_old, s = c, α_0 / α_1, s, γ / α_1
        w_old, w = w, (z - α_3 * w_old - α_2 * w) / α_1
        system.advance((c * η) * w)
        η = -s * η
        r = s**2 * r + (c * η / γ if γ else 0.0) * v
        z, r_norm = z_new, system.norm(r)
        done.estimates.append(r_norm)
    return done
