"""Vectors as Krylov methods use them: over the rows or the columns of a distributed matrix, and arrays of one rank.

A vector over the columns is the same on all ranks of a process column; in sums it must count once.  Sums and maxima run
over the whole grid, so that every rank gets the same numbers and takes the same branch.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

from mxpeak.comm.base import Communicator
from mxpeak.kernels.contract import Kernels, Vector


def largest(kernels: Kernels, everybody: Communicator, values: list[float]) -> list[float]:
    """The largest of everybody's values, entry by entry, NaN if there is one.  Collective."""
    found = kernels.xp.asarray(values, dtype=kernels.xp.float64)
    everybody.allreduce(found, "max")
    return list(found.tolist())


def max_abs(kernels: Kernels, w: Vector) -> float:
    """The largest |w_i| on this rank, NaN if there is one, 0 if it has no entry."""
    return float(kernels.xp.max(kernels.xp.abs(w))) if len(w) else 0.0


class DistSpace:
    """Vectors of which this rank has `size` entries; `counts`: whether it is this rank's copy that enters sums."""

    def __init__(self, kernels: Kernels, everybody: Communicator, size: int, *, counts: bool):
        self.kernels, self.everybody, self.size, self.counts = kernels, everybody, size, counts

    def basis(self, most: int) -> DistBasis:
        """A basis for as many vectors as are appended, whatever `most` is.  Not collective."""
        return DistBasis(self)

    def norm(self, w: Vector) -> float:
        """||w||_2.  Collective."""
        return sqrt(self.sum_of([self.kernels.sum_squares(w)])[0])

    def max_abs(self, w: Vector) -> float:
        """||w||_inf, NaN if there is one.  Collective."""
        return largest(self.kernels, self.everybody, [max_abs(self.kernels, w)])[0]

    def sum_of(self, parts: list[float]) -> list[float]:
        """Sums over the ranks whose copies count.  Collective."""
        xp = self.kernels.xp
        total = xp.asarray(parts if self.counts else [0.0] * len(parts), dtype=xp.float64)
        self.everybody.allreduce(total, "sum")
        return list(total.tolist())


class DistBasis:
    """Vectors q_1 … q_k of a space, each a row of one local matrix."""

    #: Rows that are allocated at a time: a solve that ends after three steps does not allocate fifty vectors.
    CHUNK = 8

    def __init__(self, space: DistSpace):
        self._space = space
        self._chunks: list[Vector] = []
        self._used = 0

    @property
    def last(self) -> Vector:
        """q_k."""
        return self._chunks[-1][(self._used - 1) % self.CHUNK]

    def append(self, w: Vector, factor: float) -> None:
        """q_{k+1} = factor · w."""
        if self._used % self.CHUNK == 0:
            self._chunks.append(self._space.kernels.matrix(self.CHUNK, self._space.size))
        self._used += 1
        self.last[:] = self._space.kernels.xp.multiply(w, factor)

    def orthogonalize(self, w: Vector) -> tuple[list[float], float]:
        """CGS2 of w.  Collective, three reductions."""
        first, again = self._project(w), self._project(w)
        norm = self._space.norm(w)
        if norm > 0:
            self.append(w, 1.0 / norm)
        return [a + b for a, b in zip(first, again)], norm

    def _project(self, w: Vector) -> list[float]:
        """h = Q^T w and w -= Q h."""
        kernels = self._space.kernels
        h = kernels.xp.zeros(self._used)
        if self._space.counts:
            for k, Q in self._parts(self._used):
                kernels.add_matvec(h[k : k + Q.shape[0]], Q, w)
        self._space.everybody.allreduce(h, "sum")
        self._add(w, -h)
        return list(h.tolist())

    def combine(self, t: list[float]) -> Vector:
        """Q t."""
        xp = self._space.kernels.xp
        x = xp.zeros(self._space.size)
        self._add(x, xp.asarray(t, dtype=xp.float64))
        return x

    def _add(self, x: Vector, t: Vector) -> None:
        """x += Q t."""
        for k, Q in self._parts(len(t)):
            self._space.kernels.add_matvec(x, Q, t[k : k + Q.shape[0]], transposed=True)

    def _parts(self, count: int) -> list[tuple[int, Vector]]:
        """The first `count` vectors, as (number of the first, matrix) a chunk."""
        return [
            (k * self.CHUNK, Q[: min(self.CHUNK, count - k * self.CHUNK)])
            for k, Q in enumerate(self._chunks)
            if count > k * self.CHUNK
        ]


class ArraySpace:
    """Arrays of an array namespace, real or complex, vectors or blocks of one column; all of them on this rank."""

    def __init__(self, xp: Any):
        self._xp = xp

    def basis(self, most: int) -> ArrayBasis:
        """A basis without vectors, with memory for so many."""
        return ArrayBasis(self._xp, most)

    def norm(self, w: Vector) -> float:
        """||w||_2."""
        return float(self._xp.linalg.vector_norm(w))

    def max_abs(self, w: Vector) -> float:
        """||w||_inf, NaN if w has one."""
        return float(self._xp.max(self._xp.abs(w)))


class ArrayBasis:
    """Vectors q_1 … q_k, each a row of one array."""

    def __init__(self, xp: Any, most: int):
        self._xp, self._most, self._k = xp, most, 0
        self._Q: Any = None

    @property
    def last(self) -> Vector:
        """q_k."""
        return self._xp.reshape(self._Q[self._k - 1], self._shape)

    def append(self, w: Vector, factor: float) -> None:
        """q_{k+1} = factor · w."""
        if self._Q is None:
            self._shape, self._Q = w.shape, self._xp.empty((self._most, len(w)), dtype=w.dtype)
        self._Q[self._k] = self._xp.reshape(w * factor, (-1,))
        self._k += 1

    def orthogonalize(self, w: Vector) -> tuple[list[Any], float]:
        """CGS2 of w."""
        first, again = self._project(w), self._project(w)
        norm = float(self._xp.linalg.vector_norm(w))
        if norm > 0:
            self.append(w, 1.0 / norm)
        return [a + b for a, b in zip(first, again)], norm

    def combine(self, t: list[Any]) -> Vector:
        """Q t."""
        factors = self._xp.asarray(t, dtype=self._Q.dtype)
        return self._Q[: len(t)].T @ self._xp.reshape(factors, (-1, *self._shape[1:]))

    def _project(self, w: Vector) -> list[Any]:
        """h = Q^H w and w -= Q h."""
        Q = self._Q[: self._k]
        h = self._xp.conj(Q @ self._xp.conj(w))
        w -= Q.T @ h
        return list(self._xp.reshape(h, (-1,)).tolist())
