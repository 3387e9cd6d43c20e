"""Vectors over the rows or the columns of a distributed matrix, as Krylov methods use them.

A vector over the columns is the same on all ranks of a process column; in sums it must count once.  Sums and maxima run
over the whole grid, so that every rank gets the same numbers and takes the same branch.
"""

from __future__ import annotations

from math import sqrt

from mxpeak.comm.base import Communicator
from mxpeak.kernels.contract import Kernels, Vector


def largest(kernels: Kernels, everybody: Communicator, values: list[float]) -> list[float]:
    """The largest of everybody's values, entry by entry, NaN if there is one.  Collective."""
    found = kernels.zeros(len(values))
    kernels.assign(found, values)
    everybody.allreduce(found, "max")
    return kernels.floats(found)


class DistSpace:
    """Vectors of which this rank holds `size` entries; `counts`: whether it is this rank's copy that enters sums."""

    def __init__(self, kernels: Kernels, everybody: Communicator, size: int, *, counts: bool):
        self.kernels, self.everybody, self.size, self.counts = kernels, everybody, size, counts

    def basis(self, most: int) -> DistBasis:
        """Room for as many vectors as are appended, whatever `most` is.  Not collective."""
        return DistBasis(self)

    def norm(self, w: Vector) -> float:
        """||w||_2.  Collective."""
        return sqrt(self.sum_of([self.kernels.sum_squares(w)])[0])

    def max_abs(self, w: Vector) -> float:
        """||w||_inf, NaN if there is one.  Collective."""
        return largest(self.kernels, self.everybody, [self.kernels.max_abs(w)])[0]

    def sum_of(self, parts: list[float]) -> list[float]:
        """Sums over the ranks whose copies count.  Collective."""
        total = self.kernels.zeros(len(parts))
        if self.counts:
            self.kernels.assign(total, parts)
        self.everybody.allreduce(total, "sum")
        return self.kernels.floats(total)


class DistBasis:
    """Vectors v_1 … v_k of a space, each a row of one local matrix."""

    #: Rows that are allocated at a time: a solve that ends after three steps shall not hold fifty vectors.
    CHUNK = 8

    def __init__(self, space: DistSpace):
        self._space = space
        self._chunks: list[Vector] = []
        self._used = 0

    def append(self, w: Vector, factor: float) -> Vector:
        """v_{k+1} = factor · w."""
        if self._used % self.CHUNK == 0:
            self._chunks.append(self._space.kernels.matrix(self.CHUNK, self._space.size))
        v = self._chunks[-1][self._used % self.CHUNK]
        self._space.kernels.assign(v, 0.0)
        self._space.kernels.add_scaled(v, factor, w)
        self._used += 1
        return v

    def project(self, w: Vector) -> list[float]:
        """h = V^T w and w -= V h.  Collective, one reduction."""
        kernels = self._space.kernels
        h = kernels.zeros(self._used)
        if self._space.counts:
            for k, V in self._parts(self._used):
                kernels.add_matvec(h[k : k + V.shape[0]], V, w)
        self._space.everybody.allreduce(h, "sum")
        found = kernels.floats(h)
        self._add(w, [-value for value in found])
        return found

    def combine(self, y: list[float]) -> Vector:
        """Σ y_k v_k of the first so many vectors."""
        x = self._space.kernels.zeros(self._space.size)
        self._add(x, y)
        return x

    def _add(self, x: Vector, y: list[float]) -> None:
        kernels = self._space.kernels
        coefficients = kernels.zeros(len(y))
        kernels.assign(coefficients, y)
        for k, V in self._parts(len(y)):
            kernels.add_matvec(x, V, coefficients[k : k + V.shape[0]], transposed=True)

    def _parts(self, count: int) -> list[tuple[int, Vector]]:
        """The first `count` vectors, as (number of the first, matrix) a chunk."""
        return [
            (k * self.CHUNK, V[: min(self.CHUNK, count - k * self.CHUNK)])
            for k, V in enumerate(self._chunks)
            if count > k * self.CHUNK
        ]
