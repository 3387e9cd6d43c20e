"""Vectors for Krylov methods: a basis, and the spaces of its vectors.

    DistSpace    over the rows or the columns of a distributed matrix: HPL-MxP
    ArraySpace   arrays of one rank, real or complex: `solve` and `study`

For a dense matrix, the cost of the basis is negligible compared with a product, so the basis uses `project` and
`add_product` of its space. In a step with a sparse matrix, the basis causes most of the reads. Therefore,
`system.SparseBasis` has kernels that read the basis three times instead of four.
"""

from __future__ import annotations

from math import sqrt
from typing import Any, Protocol

from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import allreduce_scalar, allreduce_scalars
from mxpeak.kernels.contract import Kernels, Matrix, SparseKernels, Vector


def max_abs(kernels: Kernels, w: Vector) -> float:
    """Return the largest |w_i| on this rank: NaN if w contains NaN, and 0 for an empty vector."""
    return float(kernels.xp.max(kernels.xp.abs(w))) if len(w) else 0.0


def vector_type(kernels: SparseKernels, precision: str) -> Any:
    """Return the array type for a precision: a complex type if numbers have two parts."""
    if kernels.parts == 2:
        return {"fp64": kernels.xp.complex128, "fp32": kernels.xp.complex64}[precision]
    return {"fp64": kernels.xp.float64, "fp32": kernels.xp.float32}[precision]


def zeros(kernels: SparseKernels, n: int, precision: str) -> Vector:
    """Return a vector of n zeros in a precision."""
    if precision in ("bf16", "fp16"):  # types that not every array namespace has
        return kernels.basis(n, 1, precision)[0]
    return kernels.xp.zeros(n, dtype=vector_type(kernels, precision))


class VectorSpace(Protocol):
    """Interface for vectors of one length and distribution, and for matrices Q whose rows are these vectors."""

    xp: Any

    def basis(self, count: int) -> Basis:
        """Return an empty basis with memory for `count` vectors."""
        return Basis(self, count)

    def zeros(self) -> Vector:
        """Return a vector of zeros."""

    def rows(self, count: int) -> Matrix:
        """Return an uninitialized matrix Q for `count` vectors."""

    def norm(self, w: Vector) -> float:
        """Return ||w||_2. Collective."""

    def project(self, Q: Matrix, w: Vector) -> Vector:
        """Return Q^H w on every rank, with one reduction. Collective."""

    def add_product(self, w: Vector, Q: Matrix, t: Vector) -> None:
        """Compute w += Σ t_i q_i, where q_i is row i of Q."""


class Basis:
    """Orthonormal vectors q_1 … q_k of a space: a `krylov.Basis`."""

    def __init__(self, space: VectorSpace, count: int):
        self._space, self._Q, self._k = space, space.rows(count), 0

    @property
    def last(self) -> Vector:
        """Return q_k, the vector that was appended last."""
        return self._Q[self._k - 1]

    def append(self, w: Vector, factor: float) -> None:
        """Append q_{k+1} = factor · w."""
        self._Q[self._k] = w * factor
        self._k += 1

    def orthogonalize(self, w: Vector) -> tuple[list[Any], float]:
        """Orthogonalize w against the basis by CGS2, append w / ||w||, and return the coefficients and ||w||.

        A zero w is not appended. The orthogonalization takes three reductions and four reads of Q.
        """
        space, Q = self._space, self._Q[: self._k]
        h = space.project(Q, w)
        space.add_product(w, Q, -h)
        correction = space.project(Q, w)
        space.add_product(w, Q, -correction)
        norm = space.norm(w)
        if norm > 0:
            self.append(w, 1.0 / norm)
        return list((h + correction).tolist()), norm

    def combine(self, t: list[Any]) -> Vector:
        """Return Q t, the sum of t_k q_k over the first len(t) vectors."""
        Q, d = self._Q[: len(t)], self._space.zeros()
        self._space.add_product(d, Q, self._space.xp.asarray(t, dtype=Q.dtype))
        return d


class DistSpace(VectorSpace):
    """Vectors distributed like the rows or the columns of a matrix on a grid, with `size` entries on this rank.

    A vector over the columns is replicated along a process column but must be counted once in sums: `counts` is True
    on the rank whose copy is counted. Sums and maxima run over the whole grid, so that every rank takes the same
    branches.
    """

    def __init__(self, kernels: Kernels, ranks: Communicator, size: int, *, counts: bool):
        self.kernels, self.ranks, self.size, self.counts = kernels, ranks, size, counts
        self.xp = kernels.xp

    def zeros(self) -> Vector:
        """Return a vector of zeros."""
        return self.xp.zeros(self.size)

    def rows(self, count: int) -> Matrix:
        """Return an uninitialized matrix Q for `count` vectors."""
        return self.kernels.matrix(count, self.size)

    def norm(self, w: Vector) -> float:
        """Return ||w||_2. Collective."""
        return sqrt(self.sum_of([self.kernels.sum_squares(w)])[0])

    def max_abs(self, w: Vector) -> float:
        """Return ||w||_inf, or NaN if w contains NaN. Collective."""
        return allreduce_scalar(self.ranks, max_abs(self.kernels, w), "max", self.kernels.xp)

    def max_abs_of_each(self, W: Matrix) -> list[float]:
        """Return ||w_j||_inf of each column w_j, or NaN if the column contains NaN. Collective."""
        xp = self.xp
        largest = xp.max(xp.abs(W), axis=0).tolist() if len(W) else [0.0] * W.shape[1]
        return allreduce_scalars(self.ranks, largest, "max", self.kernels.xp)

    def sum_of(self, parts: list[float]) -> list[float]:
        """Return the sum of each number in `parts` over the ranks whose copies are counted. Collective."""
        total = self.xp.asarray(parts if self.counts else [0.0] * len(parts), dtype=self.xp.float64)
        self.ranks.allreduce(total, "sum")
        return list(total.tolist())

    def project(self, Q: Matrix, w: Vector) -> Vector:
        """Return Q^T w. Collective."""
        h = self.xp.zeros(len(Q))
        if self.counts:
            self.kernels.add_matvec(h, Q, w)
        self.ranks.allreduce(h, "sum")
        return h

    def add_product(self, w: Vector, Q: Matrix, t: Vector) -> None:
        """Compute w += Σ t_i q_i, where q_i is row i of Q."""
        self.kernels.add_matvec(w, Q, t, transposed=True)


class ArraySpace(VectorSpace):
    """Arrays of the shape and type of `like`: vectors, or blocks of one column."""

    def __init__(self, xp: Any, like: Vector):
        self.xp, self._like = xp, like

    def zeros(self) -> Vector:
        """Return a vector of zeros."""
        return self.xp.zeros_like(self._like)

    def rows(self, count: int) -> Matrix:
        """Return an uninitialized matrix Q for `count` vectors."""
        return self.xp.empty((count, *self._like.shape), dtype=self._like.dtype)

    def norm(self, w: Vector) -> float:
        """Return ||w||_2."""
        return float(self.xp.linalg.norm(w))

    def max_abs(self, w: Vector) -> float:
        """Return ||w||_inf, or NaN if w contains NaN."""
        return float(self.xp.max(self.xp.abs(w)))

    def max_abs_of_each(self, W: Matrix) -> list[float]:
        """Return ||w_j||_inf of each column w_j, or NaN if the column contains NaN."""
        return list(self.xp.max(self.xp.abs(W), axis=0).tolist())

    def project(self, Q: Matrix, w: Vector) -> Vector:
        """Return Q^H w."""
        xp = self.xp
        return xp.conj(xp.reshape(Q, (len(Q), -1)) @ xp.conj(xp.reshape(w, (-1,))))

    def add_product(self, w: Vector, Q: Matrix, t: Vector) -> None:
        """Compute w += Σ t_i q_i, where q_i is row i of Q."""
        w += self.xp.reshape(self.xp.reshape(Q, (len(Q), -1)).T @ t, w.shape)
