"""The condition of a matrix, estimated by a few solves with its factors (Hager 1984; Higham 1988).

||B||_1 = max ||B x||_1 over the unit ball of the one-norm, whose vertices are ±e_j.  From x = (1, …, 1)/n climb from
vertex to vertex along the gradient z = B^H sign(B x): to the e_j of the largest |z_j|, while that is more than
||B x||_1 = z^H x.  A vector of alternating signs covers the matrices that are made to deceive this.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

from mxpeak.comm.collectives import allreduce_scalar
from mxpeak.distributed.spaces import DistSpace

Vector = Any

#: Of the random numbers with which factors are probed: one solve that may show that a condition is large.  Beyond
#: PROBED, condition·u as they show it, it is estimated.
PROBE_SEED, PROBED = 1961, 2.0**-10
#: Points x that are visited; two or three are usual.
MOST_POINTS = 5


def _itself(value: float) -> float:
    return value


@dataclass(frozen=True, slots=True)
class Ranks:
    """The sum, and the largest, of a number of each rank that has entries of a vector; copies of entries count once."""

    total: Callable[[float], float] = _itself
    most: Callable[[float], float] = _itself


ALONE = Ranks()


def ranks_over(space: DistSpace) -> Ranks:
    """How ranks add up over a distributed space."""

    def total(value: float) -> float:
        return space.sum_of([value])[0]

    def most(value: float) -> float:
        return allreduce_scalar(space.ranks, value, "max", space.kernels.xp)

    return Ranks(total, most)


def inverse_one_norm(
    B: Callable[[Vector], Vector],
    B_H: Callable[[Vector], Vector],
    indices: Vector,
    n: int,
    dtype: Any,
    xp: Any,
    *,
    X: Ranks = ALONE,
    Y: Ranks = ALONE,
) -> float:
    """||B||_1, B = A^-1: a lower bound that is rarely 3 times too small; inf where it overflows.

    B takes x to a new vector y, and B_H = B^H goes back.  `indices` are those of this rank's entries of x, vectors of n
    entries of a type; X and Y say how ranks add up over x, and over y.  Two or three products with each are usual.
    Collective over the ranks.
    """
    best, vertex = 0.0, inf
    x = xp.full(indices.shape, 1.0 / n, dtype=dtype)
    for _ in range(MOST_POINTS):
        y = B(x)
        size = Y.total(_size(y, xp))
        if not isfinite(size):
            return inf
        if size <= best:
            break
        best = size
        z = B_H(_signs(y, xp))
        z_inf, j = _largest(z, indices, xp, X)
        if not z_inf > size or j == vertex:
            break
        vertex = j
        x = xp.astype(indices == j, dtype)
    alternating = (1 - 2 * (indices % 2)) * (1 + indices / max(n - 1, 1))
    size = 2 * Y.total(_size(B(xp.astype(alternating, dtype)), xp)) / (3 * n)
    return max(best, size) if isfinite(size) else inf


def _size(y: Vector, xp: Any) -> float:
    """Σ |y_i|, in fp64."""
    return float(xp.sum(xp.abs(y), dtype=xp.float64))


def _signs(y: Vector, xp: Any) -> Vector:
    """y_i / |y_i|, 1 for a zero."""
    if not xp.isdtype(y.dtype, "complex floating"):
        return xp.astype(xp.where(y < 0, -1.0, 1.0), y.dtype, copy=False)
    size = xp.abs(y)
    return xp.astype(xp.where(size == 0, 1.0, y / xp.where(size == 0, 1.0, size)), y.dtype, copy=False)


def _largest(z: Vector, indices: Vector, xp: Any, X: Ranks) -> tuple[float, float]:
    """max |z_j|, and the first j that has it, inf for a NaN; the same on every rank."""
    mine, first = 0.0, inf
    if z.shape[0]:
        size = xp.abs(z)
        at = int(xp.argmax(size))
        mine, first = float(size[at]), float(indices[at])
    z_inf = X.most(mine)
    return z_inf, -X.most(-first if mine == z_inf else -inf)
