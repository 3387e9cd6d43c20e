"""GMRES from the inside: Arnoldi's basis by classical Gram-Schmidt done twice, and its least-squares problem.

After k steps of Arnoldi with the operator B from v_1 = z/||z||:  B V_k = V_{k+1} H, H upper Hessenberg (k+1)×k.
GMRES takes y = argmin || ||z|| e_1 - H y ||, found by Givens rotations that make H upper triangular (Saad and Schultz
1986).
"""

from __future__ import annotations

from math import hypot
from typing import Any, Protocol

Vector = Any
#: A real or complex number.
Scalar = Any


class Basis(Protocol):
    """Some vectors v_1 … v_k of one space, dealt over the ranks as its vectors are."""

    def append(self, w: Vector, factor: float) -> Vector:
        """v_{k+1} = factor · w; returns it as kept."""

    def project(self, w: Vector) -> list[Scalar]:
        """h = V^H w and w = w - V h in place: classical Gram-Schmidt, one reduction over the ranks."""

    def combine(self, y: list[Scalar]) -> Vector:
        """Σ y_k v_k, of the first so many vectors."""


class Space(Protocol):
    """The vectors over the unknowns, or those over the equations."""

    def basis(self, most: int) -> Basis:
        """Room for so many vectors."""

    def norm(self, w: Vector) -> float:
        """||w||_2."""

    def max_abs(self, w: Vector) -> float:
        """||w||_inf, NaN if w has one."""


class Arnoldi:
    """The Krylov space of one GMRES cycle, begun with z.  Collective over the ranks that hold the vectors."""

    def __init__(self, space: Space, z: Vector, steps: int):
        self._space = space
        self._basis = space.basis(steps + 1)
        norm = space.norm(z)
        self._least = LeastSquares(norm)
        self.v = self._basis.append(z, 1.0 / norm if norm else 0.0)

    @property
    def residual(self) -> float:
        """||z - B V y||_2 with the best y."""
        return self._least.residual

    def step(self, w: Vector) -> bool:
        """Take w = B v in (overwriting it); False once the space is exhausted: the solution lies in it."""
        first = self._basis.project(w)
        again = self._basis.project(w)  # "twice is enough": orthogonal to working precision
        norm = self._space.norm(w)
        self._least.append([a + b for a, b in zip(first, again)], norm)
        if not norm:
            return False
        self.v = self._basis.append(w, 1.0 / norm)
        return True

    def coefficients(self) -> list[Scalar]:
        """y."""
        return self._least.solve()

    def solution(self) -> Vector:
        """V y."""
        return self._basis.combine(self.coefficients())


class LeastSquares:
    """min_y || beta e_1 - H y ||, H growing by a column a step; R y = g once all rotations are applied."""

    def __init__(self, beta: float):
        self._R: list[list[Scalar]] = []  # its columns
        self._g: list[Scalar] = [beta]
        self._rotations: list[tuple[float, Scalar]] = []

    @property
    def residual(self) -> float:
        """The minimum."""
        return float(abs(self._g[-1]))

    def append(self, h: list[Scalar], below: float) -> None:
        """Take in the next column of H: h above, `below` under it.

        All rotations so far are applied to it, then one more that takes (h_k, below) to (rho, 0).
        """
        column = list(h)
        for k, (c, s) in enumerate(self._rotations):
            upper, lower = column[k], column[k + 1]
            column[k], column[k + 1] = c * upper + s * lower, -s.conjugate() * upper + c * lower
        c, s, rho = _rotation(column[-1], below)
        self._rotations.append((c, s))
        column[-1] = rho
        self._R.append(column)
        last = self._g[-1]
        self._g[-1:] = [c * last, -s.conjugate() * last]

    def solve(self) -> list[Scalar]:
        """y = R^-1 g."""
        y: list[Scalar] = []
        for k in reversed(range(len(self._R))):
            above = sum(self._R[k + 1 + i][k] * y_i for i, y_i in enumerate(y))
            pivot = self._R[k][k]
            y.insert(0, (self._g[k] - above) / pivot if pivot else 0.0)
        return y


def _rotation(a: Scalar, b: float) -> tuple[float, Scalar, Scalar]:
    """(c, s, rho) with c·a + s·b = rho and -conj(s)·a + c·b = 0, b real and not negative."""
    size = hypot(abs(a), b)
    if size == 0.0:
        return 1.0, 0.0, 0.0
    if abs(a) == 0.0:
        return 0.0, 1.0, b
    phase = a / abs(a)
    return abs(a) / size, phase * b / size, phase * size
