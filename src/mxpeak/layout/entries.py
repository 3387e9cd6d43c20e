"""Entries of generated matrices as functions of (seed, i, j), so that any rank can generate any block.

lcg           a_ij = shift + scale·X(first + i + j·n)/2^64                  uniform (used by Netlib HPL and others)
gaussian      a_ij = scale·sqrt(-2 ln u)·cos(2 pi v), u and v from the two halves of the mixed X    (Box and Muller)
unit-factors  A = L U, L unit lower with -alpha below, U unit upper with -beta above:        (Fasi and Higham 2021)
              a_ij = min(i, j)·alpha·beta + (-beta if i < j; 1 if i = j; -alpha if i > j)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, log, pi, sqrt

from mxpeak.layout import lcg


@dataclass(frozen=True, slots=True)
class Entries:
    """The formula for the entries of a matrix with n rows; entry (0, 0) is draw number `first` of the generator."""

    kind: str
    n: int
    seed: int = 0
    first: int = 1
    scale: float = 1.0
    shift: float = 0.0
    alpha: float = 0.0
    beta: float = 0.0

    def value(self, i: int, j: int) -> float:
        """Return entry (i, j) of the matrix; the kernels of every backend are tested against this definition."""
        if self.kind == "unit-factors":
            return min(i, j) * self.alpha * self.beta + (1.0 if i == j else -self.beta if i < j else -self.alpha)
        x = lcg.state(self.seed, self.first + i + j * self.n)
        if self.kind == "gaussian":
            return self.scale * normal(mixed(x))
        # X is first rounded to a double, as in HPL.
        return self.shift + self.scale * (float(x) * 2.0**-64)


def mixed(x: int) -> int:
    """Return 64 mixed bits of the generator state x (xor-shift-multiply); its low bits have short periods."""
    x ^= x >> 32
    x = x * MIX & lcg.MASK
    return x ^ x >> 29


#: An odd multiplier with about equal numbers of ones and zeros (the second one of splitmix64).
MIX = 0x94D049BB133111EB


def normal(z: int) -> float:
    """Return the standard normal number sqrt(-2 ln u)·cos(2 pi v) for 64 random bits z.

    u is in (0, 1) and is computed from the upper 32 bits; v is in (0, 1) and is computed from the lower 32 bits.
    """
    u, v = ((half + 0.5) * 2.0**-32 for half in (z >> 32, z & 0xFFFFFFFF))
    return sqrt(-2.0 * log(u)) * cos(2.0 * pi * v)
