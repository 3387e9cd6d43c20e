"""BiCGStab for general systems, with M on the right (van der Vorst 1992).

    ρ = r̂ᴴr,   β = (ρ / ρ_old)(α / ω)
    p = r + β (p - ω v)
    v = A M^-1 p,   α = ρ / r̂ᴴv
    s = r - α v
    t = A M^-1 s,   ω = tᴴs / tᴴt
    x = x + α M^-1 p + ω M^-1 s,   r = s - ω t

r̂ is the first residual. One step takes two products with A and two with M^-1. The recurrence breaks down if r̂ᴴr, r̂ᴴv
or tᴴs is zero. The caller can then start again from x, with a new r̂.
"""

from __future__ import annotations

from math import inf

from mxpeak.precision import PRECISIONS
from mxpeak.solvers.recurrence import Recurrence, Scalar, SystemForRecurrences

#: The cosine of two vectors below which they count as orthogonal.
ORTHOGONAL = PRECISIONS["fp64"].u


def solve_by_bicgstab(system: SystemForRecurrences, *, max_steps: int, enough: float) -> Recurrence:
    """Improve x by BiCGStab until ||r|| <= enough, or for `max_steps`; the result reports breakdown. Collective."""
    done = Recurrence()
    r = r_hat = system.residual_vector()
    r_norm = r_hat_norm = system.norm(r)
    ρ: Scalar = 1.0
    α: Scalar = 1.0
    ω: Scalar = 1.0
    p = v = 0.0 * r
    while r_norm > enough and done.steps < max_steps:
        ρ_old, ρ = ρ, system.dot(r_hat, r)
        if not abs(ρ) > ORTHOGONAL * r_hat_norm * r_norm:
            done.broken, done.product = "r̂ᴴr", abs(ρ)
            break
        p = r + (ρ / ρ_old * α / ω) * (p - ω * v)
        Mp = system.precondition(p)
        v = system.multiply(Mp)
        r_hat_v = system.dot(r_hat, v)
        if not abs(r_hat_v) > 0.0:
            done.broken, done.product = "r̂ᴴv", abs(r_hat_v)
            break
        α = ρ / r_hat_v
        s = r - α * v
        s_norm = system.norm(s)
        if s_norm <= enough:
            system.advance(α * Mp, s_norm)
            done.estimates.append(s_norm)
            break
        Ms = system.precondition(s)
        t = system.multiply(Ms)
        tt, ts = system.dot(t, t).real, system.dot(t, s)
        if not (inf > tt > 0.0 and abs(ts) > 0.0):
            system.advance(α * Mp, s_norm)
            done.estimates.append(s_norm)
            done.broken, done.product = ("tᴴs", abs(ts)) if tt < inf else ("tᴴt", tt)
            break
        ω = ts / tt
        r = s - ω * t
        r_norm = system.norm(r)
        system.advance(α * Mp + ω * Ms, r_norm)
        done.estimates.append(r_norm)
    return done
