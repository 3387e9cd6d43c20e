"""Vectors as Krylov methods use them: a basis, and the spaces that its vectors are of.

    DistSpace    over the rows or the columns of a distributed matrix: HPL-MxP
    ArraySpace   arrays of one rank, real or complex: `solve` and `study`

To a product with a dense matrix, a basis adds next to nothing: a space's own two products do.  Of a step with a sparse
matrix it is most of what is read: so `system.SparseBasis` has kernels that read it three times instead of four.
"""

from __future__ import annotations

from math import sqrt
from typing import Any, Protocol

from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import allreduce_scalar, allreduce_scalars
from mxpeak.kernels.contract import Kernels, Matrix, SparseKernels, Vector


def max_abs(kernels: Kernels, w: Vector) -> float:
    """The largest |w_i| on this rank, NaN if there is one, 0 if it has no entry."""
    return float(kernels.xp.max(kernels.xp.abs(w))) if len(w) else 0.0


def vector_type(kernels: SparseKernels, precision: str) -> Any:
    """The type of vectors in a precision."""
    return {"fp64": kernels.xp.float64, "fp32": kernels.xp.float32}[precision]


def zeros(kernels: SparseKernels, n: int, precision: str) -> Vector:
    """A vector of zeros."""
    return kernels.xp.zeros(n, dtype=vector_type(kernels, precision))


class Space(Protocol):
    """Vectors of one length and distribution; a matrix Q has such vectors for rows."""

    @property
    def xp(self) -> Any:
        """The namespace of these arrays."""

    def zeros(self) -> Vector:
        """A vector of zeros."""

    def rows(self, most: int) -> Matrix:
        """An uninitialised Q of so many vectors, each Q[k]."""

    def norm(self, w: Vector) -> float:
        """||w||_2.  Collective."""

    def project(self, Q: Matrix, w: Vector) -> Vector:
        """Q^H w, the same on every rank.  Collective, one reduction."""

    def add_product(self, w: Vector, Q: Matrix, t: Vector) -> None:
        """w += Q t."""


class Basis:
    """Vectors q_1 … q_k of a space: a `krylov.Basis`."""

    def __init__(self, space: Space, most: int):
        self._space, self._Q, self._k = space, space.rows(most), 0

    @property
    def last(self) -> Vector:
        """q_k."""
        return self._Q[self._k - 1]

    def append(self, w: Vector, factor: float) -> None:
        """q_{k+1} = factor · w."""
        self._Q[self._k] = w * factor
        self._k += 1

    def orthogonalize(self, w: Vector) -> tuple[list[Any], float]:
        """CGS2 of w: three reductions, and Q read four times."""
        space, Q = self._space, self._Q[: self._k]
        h = space.project(Q, w)
        space.add_product(w, Q, -h)
        again = space.project(Q, w)
        space.add_product(w, Q, -again)
        norm = space.norm(w)
        if norm > 0:
            self.append(w, 1.0 / norm)
        return list((h + again).tolist()), norm

    def combine(self, t: list[Any]) -> Vector:
        """Q t, of the first so many vectors."""
        Q, d = self._Q[: len(t)], self._space.zeros()
        self._space.add_product(d, Q, self._space.xp.asarray(t, dtype=Q.dtype))
        return d


class DistSpace:
    """Vectors over the rows or over the columns, `size` entries on this rank.

    A vector over the columns is the same on all ranks of a process column; in sums it must count once: `counts` says
    whether this rank's copy does.  Sums and maxima run over the whole grid: every rank gets the same numbers and takes
    the same branch.
    """

    def __init__(self, kernels: Kernels, everybody: Communicator, size: int, *, counts: bool):
        self.kernels, self.everybody, self.size, self.counts = kernels, everybody, size, counts
        self.xp = kernels.xp

    def basis(self, most: int) -> Basis:
        """A basis without vectors, with memory for so many."""
        return Basis(self, most)

    def zeros(self) -> Vector:
        """A vector of zeros."""
        return self.xp.zeros(self.size)

    def rows(self, most: int) -> Matrix:
        """Q, uninitialised."""
        return self.kernels.matrix(most, self.size)

    def norm(self, w: Vector) -> float:
        """||w||_2.  Collective."""
        return sqrt(self.sum_of([self.kernels.sum_squares(w)])[0])

    def max_abs(self, w: Vector) -> float:
        """||w||_inf, NaN if there is one.  Collective."""
        return allreduce_scalar(self.everybody, max_abs(self.kernels, w), "max", self.kernels.xp)

    def max_abs_of_each(self, W: Matrix) -> list[float]:
        """||w_j||_inf of each column w_j, NaN where it has one.  Collective."""
        xp = self.xp
        mine = xp.max(xp.abs(W), axis=0).tolist() if len(W) else [0.0] * W.shape[1]
        return allreduce_scalars(self.everybody, mine, "max", self.kernels.xp)

    def sum_of(self, parts: list[float]) -> list[float]:
        """Sums over the ranks whose copies count.  Collective."""
        total = self.xp.asarray(parts if self.counts else [0.0] * len(parts), dtype=self.xp.float64)
        self.everybody.allreduce(total, "sum")
        return list(total.tolist())

    def project(self, Q: Matrix, w: Vector) -> Vector:
        """h = Q^T w.  Collective."""
        h = self.xp.zeros(len(Q))
        if self.counts:
            self.kernels.add_matvec(h, Q, w)
        self.everybody.allreduce(h, "sum")
        return h

    def add_product(self, w: Vector, Q: Matrix, t: Vector) -> None:
        """w += Q t."""
        self.kernels.add_matvec(w, Q, t, transposed=True)


class ArraySpace:
    """Arrays like one of an array namespace: vectors, or blocks of one column."""

    def __init__(self, xp: Any, like: Vector):
        self.xp, self._like = xp, like

    def basis(self, most: int) -> Basis:
        """A basis without vectors, with memory for so many."""
        return Basis(self, most)

    def zeros(self) -> Vector:
        """A vector of zeros."""
        return self.xp.zeros_like(self._like)

    def rows(self, most: int) -> Matrix:
        """Q, uninitialised."""
        return self.xp.empty((most, *self._like.shape), dtype=self._like.dtype)

    def norm(self, w: Vector) -> float:
        """||w||_2."""
        return float(self.xp.linalg.norm(w))

    def max_abs(self, w: Vector) -> float:
        """||w||_inf, NaN if w has one."""
        return float(self.xp.max(self.xp.abs(w)))

    def project(self, Q: Matrix, w: Vector) -> Vector:
        """h = Q^H w."""
        xp = self.xp
        return xp.conj(xp.reshape(Q, (len(Q), -1)) @ xp.conj(xp.reshape(w, (-1,))))

    def add_product(self, w: Vector, Q: Matrix, t: Vector) -> None:
        """w += Q t."""
        w += self.xp.reshape(self.xp.reshape(Q, (len(Q), -1)).T @ t, w.shape)
