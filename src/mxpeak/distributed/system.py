"""A x = b as GMRES-IR and CG see it: vectors distributed over the ranks as the rows of A are."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import sqrt
from typing import Any

from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import allreduce_scalar
from mxpeak.distributed.spaces import zeros
from mxpeak.distributed.sparse import SparseMatrix
from mxpeak.kernels.contract.sparse import SparseKernels, Vector
from mxpeak.perf import sparse_counts as counts
from mxpeak.precision import PRECISIONS
from mxpeak.spans import Spans

#: M^-1 r, as a vector that the matrix it stands before multiplies.
Preconditioner = Callable[[Vector], Vector]


def max_error(kernels: SparseKernels, comm: Communicator, x: Vector, value: float) -> float:
    """max |x_i - value|, NaN if there is one.  Collective."""
    return allreduce_scalar(comm, float(kernels.xp.max(kernels.xp.abs(x - value))), "max", kernels.xp)


class SparseBasis:
    """Krylov vectors q_1 … q_k, each contiguous, in one piece of memory."""

    def __init__(self, kernels: SparseKernels, comm: Communicator, n: int, most: int, precision: str, spans: Spans):
        self._kernels, self._comm, self._n, self._spans = kernels, comm, n, spans
        self._Q, self._bytes = kernels.basis(n, most, precision), PRECISIONS[precision].bytes
        self._combined = zeros(kernels, n, precision)
        self._k = 0

    def clear(self) -> None:
        """Forget all vectors."""
        self._k = 0

    @property
    def last(self) -> Vector:
        """q_k."""
        return self._Q[self._k - 1]

    @property
    def next(self) -> Vector:
        """Where q_{k+1} will be."""
        return self._Q[self._k]

    def append(self, w: Vector, factor: float) -> None:
        """q_{k+1} = factor · w."""
        self._kernels.scale(self.next, factor, w)
        self._k += 1

    def orthogonalize(self, w: Vector) -> tuple[list[Any], float]:
        """CGS2 of w, which is `next`: three reductions, and the basis read three times."""
        kernels, k = self._kernels, self._k
        flops = self._n * (8.0 * k + 3.0)
        with self._spans("ortho", flops=flops, bytes=counts.cgs2_bytes(self._n, k, self._bytes)):
            h = self._summed(kernels.project(self._Q, k, w))
            again = self._summed(kernels.subtract_and_project(self._Q, k, w, h))
            norm = sqrt(self._sum(kernels.subtract_and_square(self._Q, k, w, again)))
            if norm > 0:
                kernels.scale(w, 1.0 / norm, w)
        self._k += 1
        return [a + b for a, b in zip(h.tolist(), again.tolist())], norm

    def combine(self, t: list[Any]) -> Vector:
        """Q t, in a vector that the next call overwrites."""
        return self._combination(self._Q, t)

    def _combination(self, Q: Any, t: list[Any]) -> Vector:
        flops = 2.0 * self._n * len(t)
        with self._spans("update", flops=flops, bytes=float(self._n * self._bytes * (len(t) + 1))):
            self._kernels.combine(Q, t, self._combined)
        return self._combined

    def _summed(self, h: Vector) -> Vector:
        self._comm.allreduce(h, "sum")
        return h

    def _sum(self, value: float) -> float:
        return allreduce_scalar(self._comm, value, "sum", self._kernels.xp)


@dataclass(frozen=True, slots=True)
class InnerIteration:
    """What GMRES-IR does between two residuals, in the precision of this matrix's vectors.

    A          the matrix of the system, or one near to it
    restart    steps of a cycle, at most
    rounding   how far, relatively, A's values may be from the system's
    """

    A: SparseMatrix
    precondition: Preconditioner
    restart: int
    rounding: float = 0.0


class MixedSystem:
    """A x = b with residuals and x in fp64, A being for fp64 vectors, and everything between by an inner iteration."""

    def __init__(
        self,
        kernels: SparseKernels,
        comm: Communicator,
        A: SparseMatrix,
        b: Vector,
        inner: InnerIteration,
        spans: Spans,
    ):
        self._kernels, self._comm, self._A, self._b, self._spans = kernels, comm, A, b, spans
        self._inner, self._precondition = inner.A, inner.precondition
        self._bytes = PRECISIONS[inner.A.A.vectors].bytes
        self._basis = self._empty_basis(inner.restart)
        self._r, self._rho = zeros(kernels, A.n, "fp64"), 0.0
        self.x = A.halo_vector()

    def _empty_basis(self, restart: int) -> SparseBasis:
        """Memory for the vectors of a cycle."""
        return SparseBasis(self._kernels, self._comm, self._A.n, restart + 1, self._inner.A.vectors, self._spans)

    @property
    def solution(self) -> Vector:
        """The rank's own part of x."""
        return self._A.own(self.x)

    def restart_from_zero(self) -> None:
        """x = 0."""
        self.x[:] = 0.0

    def ended(self) -> None:
        """A solve is over: nothing is left to be done."""

    def norm_of_b(self) -> float:
        """||b||."""
        return sqrt(self._sum(self._kernels.dot(self._b, self._b)))

    def residual(self) -> float:
        """||b - A x||, the residual kept."""
        self._A.multiply(self.x, self._r)
        with self._spans("update", flops=3.0 * self._A.n, bytes=24.0 * self._A.n):
            self._rho = sqrt(self._sum(self._kernels.subtract_from(self._r, self._b)))
        return self._rho

    def basis(self) -> tuple[SparseBasis, float]:
        """q_1 = r / ||r|| in memory that every cycle uses, and ||r||."""
        with self._spans("update", flops=float(self._A.n), bytes=float(self._A.n * (8 + self._bytes))):
            self._basis.clear()
            self._basis.append(self._r, 1.0 / self._rho)
        return self._basis, self._rho

    def step(self, q: Vector) -> Vector:
        """A M^-1 q, in the memory of the basis's next vector."""
        w = self._basis.next
        self._inner.multiply(self._precondition(q), w)
        return w

    def update(self, d: Vector) -> None:
        """x += M^-1 d."""
        self._add(self._inner.own(self._precondition(d)))

    def _add(self, z: Vector) -> None:
        with self._spans("update", flops=2.0 * self._A.n, bytes=float(self._A.n * (16 + self._bytes))):
            self._kernels.add_scaled(self.solution, 1.0, z)

    def max_error(self, value: float) -> float:
        """max |x_i - value|.  Collective."""
        return max_error(self._kernels, self._comm, self.solution, value)

    def _sum(self, value: float) -> float:
        return allreduce_scalar(self._comm, value, "sum", self._kernels.xp)


class CgSystem:
    """A x = b as conjugate gradients see it, all of it in fp64: every operation is one that HPCG counts.

    Timed as ddot, waxpby, spmv and mg; what the sweeps book is in mg once more, and reductions in ddot.
    """

    def __init__(
        self,
        kernels: SparseKernels,
        comm: Communicator,
        A: SparseMatrix,
        b: Vector,
        precondition: Preconditioner | None,
        spans: Spans,
    ):
        self._kernels, self._comm, self._A, self._spans = kernels, comm, A, spans
        self._b, self._precondition = b, precondition
        self._r, self._Ap = zeros(kernels, A.n, "fp64"), zeros(kernels, A.n, "fp64")
        self._z, self._p = self._r, A.halo_vector()
        self.x = A.halo_vector()

    @property
    def solution(self) -> Vector:
        """The rank's own part of x."""
        return self._A.own(self.x)

    @property
    def direction(self) -> Vector:
        """The rank's own part of p."""
        return self._A.own(self._p)

    def restart_from_zero(self) -> None:
        """x = 0."""
        self.x[:] = 0.0

    def ended(self) -> None:
        """A solve is over: nothing is left to be done."""

    def residual(self) -> float:
        """r = b - A x; ||r||, which takes no pass of its own."""
        self._A.multiply(self.x, self._r)
        with self._waxpby(also=2.0 * self._A.n):
            square = self._kernels.subtract_from(self._r, self._b)
        return sqrt(self._sum(square))

    def precondition(self) -> float:
        """z = M^-1 r, or r where there is no M; rᵀz."""
        if self._precondition is not None:
            with self._spans("mg"):
                self._z = self._A.own(self._precondition(self._r))
        return self._dot(self._r, self._z)

    def turn(self, beta: float) -> None:
        """p = z + β p; with β = 0 a copy."""
        with self._waxpby():
            if beta == 0.0:
                self._kernels.scale(self.direction, 1.0, self._z)
            else:
                self._kernels.scale_and_add(self.direction, beta, self._z)

    def curvature(self) -> float:
        """A p; pᵀA p."""
        self._A.multiply(self._p, self._Ap)
        return self._dot(self.direction, self._Ap)

    def advance(self, alpha: float) -> float:
        """x += α p, r -= α A p; ||r||."""
        with self._waxpby():
            self._kernels.add_scaled(self.solution, alpha, self.direction)
        with self._waxpby():
            self._kernels.add_scaled(self._r, -alpha, self._Ap)
        return sqrt(self._dot(self._r, self._r))

    def max_error(self, value: float) -> float:
        """max |x_i - value|.  Collective."""
        return max_error(self._kernels, self._comm, self.solution, value)

    def _waxpby(self, also: float = 0.0) -> AbstractContextManager[None]:
        return self._spans("waxpby", flops=2.0 * self._A.n + also, bytes=float(counts.waxpby_bytes(self._A.n)))

    def _dot(self, x: Vector, y: Vector) -> float:
        vectors = 1 if x is y else 2
        with self._spans("ddot", flops=2.0 * self._A.n, bytes=float(counts.dot_bytes(self._A.n, vectors))):
            return self._sum(self._kernels.dot(x, y))

    def _sum(self, value: float) -> float:
        with self._spans("allreduce"):
            return allreduce_scalar(self._comm, value, "sum", self._kernels.xp)
