"""Estimate the condition number of a matrix with a few solves (Hager 1984; Higham 1988).

||B||_1 is the maximum of ||B x||_1 over the unit ball of the one-norm, whose vertices are ±e_j. The iteration starts
at x = (1, ..., 1)/n. Each step computes the gradient z = B^H sign(B x), and moves to the vertex e_j of the largest
|z_j| if this |z_j| exceeds ||B x||_1 = z^H x. A vector of alternating signs is also tried, because it is effective for
the matrices that were constructed as counterexamples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

from mxpeak.comm.collectives import allreduce_scalar
from mxpeak.distributed.spaces import DistSpace
from mxpeak.kernels.arrays import PROBE_SEED as PROBE_SEED
from mxpeak.kernels.arrays import is_complex_array

Vector = Any

#: Estimate the condition number if a solve for a random right-hand side indicates that condition·u exceeds this value.
PROBED = 2.0**-10
#: Largest number of points x of the iteration; two or three are usual.
MAX_POINTS = 5


def _identity(value: float) -> float:
    return value


@dataclass(frozen=True, slots=True)
class Reductions:
    """The sum and the maximum of a number over the ranks that share a vector.

    If several ranks store the same entries, these entries are counted once.
    """

    total: Callable[[float], float] = _identity
    maximum: Callable[[float], float] = _identity


SERIAL = Reductions()


def reductions_over(space: DistSpace) -> Reductions:
    """Return the sum and the maximum over the ranks of a distributed space."""
    xp = space.kernels.xp
    return Reductions(
        lambda value: space.sum_of([value])[0], lambda value: allreduce_scalar(space.ranks, value, "max", xp)
    )


def inverse_one_norm(
    B: Callable[[Vector], Vector],
    B_H: Callable[[Vector], Vector],
    indices: Vector,
    n: int,
    dtype: Any,
    xp: Any,
    *,
    X: Reductions = SERIAL,
    Y: Reductions = SERIAL,
) -> float:
    """Return a lower bound of ||B||_1 for B = A^-1 that is rarely too small by a factor of 3, or inf on overflow.

    `B` and `B_H` return B x and B^H y as new vectors. `indices` are the indices of this rank's entries of x; X and Y
    reduce over the ranks of x and y. The estimate usually takes two or three products with each. Collective.
    """
    best, vertex = 0.0, inf
    x = xp.full(indices.shape, 1.0 / n, dtype=dtype)
    for _ in range(MAX_POINTS):
        y = B(x)
        size = Y.total(_one_norm(y, xp))
        if not isfinite(size):
            return inf
        if size <= best:
            break
        best = size
        z = B_H(_signs(y, xp))
        z_inf, j = _largest_entry(z, indices, xp, X)
        if not z_inf > size or j == vertex:
            break
        vertex = j
        x = xp.astype(indices == j, dtype)
    alternating = (1 - 2 * (indices % 2)) * (1 + indices / max(n - 1, 1))
    size = 2 * Y.total(_one_norm(B(xp.astype(alternating, dtype)), xp)) / (3 * n)
    return max(best, size) if isfinite(size) else inf


def _one_norm(y: Vector, xp: Any) -> float:
    """Return Σ |y_i| in fp64."""
    return float(xp.sum(xp.abs(y), dtype=xp.float64))


def _signs(y: Vector, xp: Any) -> Vector:
    """Return y_i / |y_i|, or 1 if y_i is zero."""
    if not is_complex_array(y, xp):
        return xp.astype(xp.where(y < 0, -1.0, 1.0), y.dtype, copy=False)
    size = xp.abs(y)
    return xp.astype(xp.where(size == 0, 1.0, y / xp.where(size == 0, 1.0, size)), y.dtype, copy=False)


def _largest_entry(z: Vector, indices: Vector, xp: Any, X: Reductions) -> tuple[float, float]:
    """Return max |z_j| and the first j with this value, or inf for NaN; the result is the same on every rank."""
    largest, first = 0.0, inf
    if z.shape[0]:
        size = xp.abs(z)
        at = int(xp.argmax(size))
        largest, first = float(size[at]), float(indices[at])
    z_inf = X.maximum(largest)
    return z_inf, -X.maximum(-first if largest == z_inf else -inf)
