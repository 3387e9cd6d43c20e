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

A may be indefinite, but M must be positive definite. |η| is the norm of r in M^-1, which the method minimizes. The last
line computes r itself, because users stop on ||r||_2.
"""

from __future__ import annotations

from math import hypot, sqrt

from mxpeak.solvers.recurrence import Recurrence, System


def minres(system: System, *, most: int, enough: float) -> Recurrence:
    """Improve x by MINRES until ||r|| <= enough, or for `most` steps; the result reports breakdown. Collective."""
    done = Recurrence()
    r = v = system.residual_vector()
    z = system.precondition(v)
    zv = system.dot(z, v).real
    v_old = w_old = w = 0.0 * r
    γ_old, γ, η = 1.0, sqrt(max(zv, 0.0)), sqrt(max(zv, 0.0))
    s_old, s, c_old, c = 0.0, 0.0, 1.0, 1.0
    while done.steps < most:
        if not zv > 0.0:
            done.broken, done.product = "zᴴv", zv
            break
        z = z / γ
        Az = system.multiply(z)
        δ = system.dot(z, Az).real
        v_old, v = v, Az - (δ / γ) * v - (γ / γ_old) * v_old
        z_new = system.precondition(v)
        zv = system.dot(z_new, v).real
        γ_old, γ = γ, sqrt(max(zv, 0.0))
        α_0, α_2, α_3 = c * δ - c_old * s * γ_old, s * δ + c_old * c * γ_old, s_old * γ_old
        α_1 = hypot(α_0, γ)
        if not α_1 > 0.0:
            done.broken, done.product = "α_1", α_1
            break
        c_old, c, s_old, s = c, α_0 / α_1, s, γ / α_1
        w_old, w = w, (z - α_3 * w_old - α_2 * w) / α_1
        system.advance((c * η) * w)
        η = -s * η
        r = s**2 * r + (c * η / γ if γ else 0.0) * v
        z = z_new
        done.estimates.append(system.norm(r))
        if not done.estimates[-1] > enough:
            break
    return done
