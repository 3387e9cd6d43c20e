"""The system A x = b for GMRES-IR and CG; vectors are distributed over the ranks in the same way as the rows of A."""

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

#: A function r -> M^-1 r that returns a halo vector of the matrix that it preconditions.
Preconditioner = Callable[[Vector], Vector]


def max_error(kernels: SparseKernels, comm: Communicator, x: Vector, value: float) -> float:
    """Return max |x_i - value| over all ranks, or NaN if x contains NaN. Collective."""
    return allreduce_scalar(comm, float(kernels.xp.max(kernels.xp.abs(x - value))), "max", kernels.xp)


#: The power of two by which stored vectors are multiplied. Every vector has norm 1, so no number exceeds 2^15, and all
#: numbers from 2^-29 on are normal in fp16. Without a scale, typical numbers of 2^28 rows or more would be subnormal.
STORED_SCALE = {"fp16": 2.0**15}


def is_narrow(vectors: str) -> bool:
    """Return whether products with vectors in this format are added in a format with more bits."""
    return PRECISIONS[vectors].accumulate != vectors


class SparseBasis:
    """Krylov vectors q_1 … q_k in one contiguous array, and M^-1 q_1 … M^-1 q_k if the basis is flexible.

    precision   the format of w, of products and of sums
    corrections the format of M^-1 q_1 … M^-1 q_k of a flexible basis, if it is not `precision`. In fp16, M is applied
                to q_k times STORED_SCALE, so that M^-1 q_k and w = A M^-1 q_k are multiplied by this factor.
    stored      the format of q_1 … q_k of a basis that is not flexible. If it has 16 bits, the last vector is also
                widened to `precision`, so that the next product multiplies the stored numbers. Then B Q = Q H holds up
                to one rounding of each vector.
    """

    def __init__(
        self,
        kernels: SparseKernels,
        comm: Communicator,
        n: int,
        count: int,
        precision: str,
        spans: Spans,
        *,
        stored: str | None = None,
        flexible: bool = False,
        corrections: str | None = None,
    ):
        self._stored = stored = stored or precision
        self._kernels, self._comm, self._n, self._spans = kernels, comm, n, spans
        self._Q, self._bytes = kernels.basis(n, count, stored), PRECISIONS[precision].bytes
        self._stored_bytes, self._scale = PRECISIONS[stored].bytes, STORED_SCALE.get(stored, 1.0)
        self._w = None if stored == precision else zeros(kernels, n, precision)
        self._Z, self._Z_scale, self._Z_bytes = self._Q, self._scale, self._stored_bytes
        if flexible:
            corrections = corrections or precision
            self._Z, self._Z_scale = kernels.basis(n, count - 1, corrections), STORED_SCALE.get(corrections, 1.0)
            self._Z_bytes = PRECISIONS[corrections].bytes
        self.factor = self._Z_scale if flexible else 1.0
        self._combined = zeros(kernels, n, precision)
        self._k = 0

    @property
    def reduction(self) -> float:
        """Return u of vectors that are stored in 16 bits, and otherwise 0."""
        return 0.0 if self._w is None else PRECISIONS[self._stored].u

    @property
    def append_bytes(self) -> int:
        """Return the bytes that storing a vector writes, and reads again to widen it."""
        n, narrower = self._n, self._w is not None
        return n * (2 * self._stored_bytes + self._bytes) if narrower else n * self._bytes

    def clear(self) -> None:
        """Remove all vectors from the basis."""
        self._k = 0

    @property
    def last(self) -> Vector:
        """Return q_k, the vector that was appended last."""
        return self._Q[self._k - 1] if self._w is None else self._w

    @property
    def next(self) -> Vector:
        """Return the memory for q_{k+1}, which may be that of q_k."""
        return self._Q[self._k] if self._w is None else self._w

    def append(self, w: Vector, factor: float) -> None:
        """Append q_{k+1} = factor · w."""
        self._kernels.scale(self._Q[self._k], self._scale * factor, w)
        if self._w is not None:
            self._kernels.scale(self._w, 1.0 / self._scale, self._Q[self._k])
        self._k += 1

    def store_preconditioned(self, z: Vector) -> None:
        """Store z = M^-1 q_k, multiplied by `factor`, of a flexible basis."""
        self._kernels.scale(self._Z[self._k - 1], 1.0, z)

    def orthogonalize(self, w: Vector) -> tuple[list[Any], float]:
        """Orthogonalize w against the basis by CGS2, append w / ||w||, and return the coefficients and ||w||.

        w must be the vector `next`. If w is multiplied by `factor`, the results are those of w / `factor`. The
        orthogonalization takes three reductions and three reads of the basis.
        """
        kernels, k = self._kernels, self._k
        flops, moved = self._n * (8.0 * k + 3.0), counts.cgs2_bytes(self._n, k, self._bytes, self._stored_bytes)
        with self._spans("ortho", flops=flops, bytes=moved):
            h = self._sum_vector(kernels.project(self._Q, k, w))
            correction = self._sum_vector(kernels.subtract_and_project(self._Q, k, w, self._factors(h)))
            norm = sqrt(self._sum(kernels.subtract_and_square(self._Q, k, w, self._factors(correction))))
            if norm > 0:
                self.append(w, 1.0 / norm)
            else:
                self._k += 1
        scale = self._scale * self.factor
        return [(a + b) / scale for a, b in zip(h.tolist(), correction.tolist())], norm / self.factor

    def combine(self, t: list[Any]) -> Vector:
        """Return Q t, or M^-1 Q t if the basis is flexible, in a vector that the next call overwrites."""
        flops = 2.0 * self._n * len(t)
        moved = self._n * (self._Z_bytes * len(t) + self._bytes)
        with self._spans("update", flops=flops, bytes=float(moved)):
            self._sum_stored(self._Z, t, self._Z_scale)
        return self._combined

    def _sum_stored(self, Q: Vector, t: list[Any], scale: float) -> None:
        """Compute Q t for vectors that are stored multiplied by `scale`."""
        self._kernels.combine(Q, [coefficient / scale for coefficient in t], self._combined)

    def _factors(self, h: Vector) -> Vector:
        """Return the factors of the stored vectors in Q Q^T w, for the products h of the stored vectors with w."""
        return h if self._scale == 1.0 else h / self._scale**2

    def _sum_vector(self, h: Vector) -> Vector:
        self._comm.allreduce(h, "sum")
        return h

    def _sum(self, value: float) -> float:
        return allreduce_scalar(self._comm, value, "sum", self._kernels.xp)


@dataclass(frozen=True, slots=True)
class InnerIteration:
    """The iteration of GMRES-IR between two residuals, in the precision of the vectors of A.

    A               the matrix of the system, or an approximation of it
    restart         the maximum number of steps per cycle
    rounding        the largest relative difference between the values of A and those of the system
    basis           the format of the Krylov basis, if it differs from the vectors of A
    flexible        store M^-1 q of each step, so that a correction needs no further M^-1 (Saad 1993). This is always so
                    if the vectors of A have 16 bits: M^-1 is then not linear, but the stored vectors are exact
    fp64_products   compute A M^-1 q in fp64 (Carson and Higham 2017): if M^-1 is nearly A^-1, A M^-1 q may be much
                    smaller than |A||M^-1 q|, and low precision rounds every term; needs `flexible`
    """

    A: SparseMatrix
    precondition: Preconditioner
    restart: int
    rounding: float = 0.0
    basis: str | None = None
    flexible: bool = False
    fp64_products: bool = False


class DistributedSystem:
    """A system A x = b, with x stored in a halo vector."""

    def __init__(self, kernels: SparseKernels, comm: Communicator, A: SparseMatrix, b: Vector, spans: Spans):
        self._kernels, self._comm, self._A, self._b, self._spans = kernels, comm, A, b, spans
        self.x = A.halo_vector()

    @property
    def solution(self) -> Vector:
        """Return this rank's entries of x."""
        return self._A.own(self.x)

    def restart_from_zero(self) -> None:
        """Set x = 0."""
        self.x[:] = 0.0

    def ended(self) -> None:
        """Do nothing; subclasses override this method to finish a solve."""

    def max_error(self, value: float) -> float:
        """Return max |x_i - value| over all ranks. Collective."""
        return max_error(self._kernels, self._comm, self.solution, value)


class MixedSystem(DistributedSystem):
    """A system A x = b with A, x and residuals in fp64, and an inner iteration that may use lower precision."""

    def __init__(
        self,
        kernels: SparseKernels,
        comm: Communicator,
        A: SparseMatrix,
        b: Vector,
        inner: InnerIteration,
        spans: Spans,
    ):
        super().__init__(kernels, comm, A, b, spans)
        vectors, self._narrow_q = inner.A.A.vectors, None
        self._inner, self._precondition = inner.A, inner.precondition
        self._flexible = inner.flexible or is_narrow(vectors)
        if is_narrow(vectors):
            self._narrow_q = zeros(kernels, A.n, vectors)
        self._bytes, self._basis = PRECISIONS[vectors].bytes, self._empty_basis(inner)
        self._r, self._rho = zeros(kernels, A.n, "fp64"), 0.0
        self._fp64_product = (A.halo_vector(), zeros(kernels, A.n, "fp64")) if inner.fp64_products else None

    @property
    def matrix(self) -> SparseMatrix:
        """Return the matrix of the residuals in fp64."""
        return self._A

    @property
    def inner(self) -> SparseMatrix:
        """Return the matrix of the inner iteration."""
        return self._inner

    def _empty_basis(self, inner: InnerIteration) -> SparseBasis:
        """Return a basis with memory for the vectors of one cycle."""
        vectors = inner.A.A.vectors
        working = PRECISIONS[vectors].accumulate
        shared = (self._kernels, self._comm, self._A.n, inner.restart + 1, working, self._spans)
        return SparseBasis(*shared, stored=inner.basis, flexible=self._flexible, corrections=vectors)

    @property
    def reduction(self) -> float:
        """Return the factor by which one cycle can reduce a residual: u of a basis in 16 bits, and otherwise 0."""
        return self._basis.reduction

    def norm_of_b(self) -> float:
        """Return ||b||. Collective."""
        return sqrt(self._sum(self._kernels.dot(self._b, self._b)))

    def residual(self) -> float:
        """Compute and store the residual r = b - A x, and return ||r||."""
        self._A.multiply(self.x, self._r)
        with self._spans("update", flops=3.0 * self._A.n, bytes=24.0 * self._A.n):
            self._rho = sqrt(self._sum(self._kernels.subtract_from(self._r, self._b)))
        return self._rho

    def basis(self) -> tuple[SparseBasis, float]:
        """Start a cycle: clear the basis, append q_1 = r / ||r||, and return the basis and ||r||."""
        moved = float(8 * self._A.n + self._basis.append_bytes)
        with self._spans("update", flops=float(self._A.n), bytes=moved):
            self._basis.clear()
            self._basis.append(self._r, 1.0 / self._rho)
        return self._basis, self._rho

    def step(self, q: Vector) -> Vector:
        """Return A M^-1 q in the memory of the next vector of the basis."""
        w, z = self._basis.next, self._precondition(q if self._narrow_q is None else self._narrowed(q))
        if self._flexible:
            with self._spans("update", bytes=float(2 * self._A.n * self._bytes)):
                self._basis.store_preconditioned(self._inner.own(z))
        if self._fp64_product is None:
            self._inner.multiply(z, w)
        else:
            z_fp64, w_fp64 = self._fp64_product
            self._convert(self._A.own(z_fp64), self._inner.own(z))
            self._A.multiply(z_fp64, w_fp64)
            self._convert(w, w_fp64)
        return w

    def _narrowed(self, q: Vector) -> Vector:
        """Return q in the format of the multigrid vectors, multiplied by a power of two so that small numbers last."""
        with self._spans("update", bytes=float(self._A.n * (q.itemsize + self._bytes))):
            self._kernels.scale(self._narrow_q, self._basis.factor, q)
        return self._narrow_q

    def update(self, d: Vector) -> None:
        """Add the correction to x. The correction is M^-1 d, or d itself if the basis is flexible."""
        z = d if self._flexible else self._inner.own(self._precondition(d))
        with self._spans("update", flops=2.0 * self._A.n, bytes=float(self._A.n * (16 + z.itemsize))):
            self._kernels.add_scaled(self.solution, 1.0, z)

    def _convert(self, y: Vector, x: Vector) -> None:
        """Copy x to y, rounded to the type of y."""
        with self._spans("update", bytes=float(self._A.n * (8 + self._bytes))):
            self._kernels.scale(y, 1.0, x)

    def _sum(self, value: float) -> float:
        return allreduce_scalar(self._comm, value, "sum", self._kernels.xp)


class CgSystem(DistributedSystem):
    """A system A x = b for conjugate gradients in fp64, with the operations that HPCG counts.

    The spans are ddot, waxpby, spmv and mg. The time of the sweeps is also included in mg, and the time of reductions
    in ddot.
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
        super().__init__(kernels, comm, A, b, spans)
        self._precondition = precondition
        self._r, self._Ap = zeros(kernels, A.n, "fp64"), zeros(kernels, A.n, "fp64")
        self._z, self._p = self._r, A.halo_vector()

    @property
    def direction(self) -> Vector:
        """Return this rank's entries of p."""
        return self._A.own(self._p)

    def residual(self) -> float:
        """Compute r = b - A x and return ||r||, without a further pass over r."""
        self._A.multiply(self.x, self._r)
        with self._waxpby(also=2.0 * self._A.n):
            square = self._kernels.subtract_from(self._r, self._b)
        return sqrt(self._sum(square))

    def precondition(self) -> float:
        """Compute z = M^-1 r, or z = r without M; return rᵀz."""
        if self._precondition is not None:
            with self._spans("mg"):
                self._z = self._A.own(self._precondition(self._r))
        return self._dot(self._r, self._z)

    def update_direction(self, beta: float) -> None:
        """Compute p = z + β p; copy z if β = 0."""
        with self._waxpby():
            if beta == 0.0:
                self._kernels.scale(self.direction, 1.0, self._z)
            else:
                self._kernels.scale_and_add(self.direction, beta, self._z)

    def pAp(self) -> float:
        """Compute A p; return pᵀA p."""
        self._A.multiply(self._p, self._Ap)
        return self._dot(self.direction, self._Ap)

    def step(self, alpha: float) -> float:
        """Add α p to x and subtract α A p from r; return ||r||."""
        with self._waxpby():
            self._kernels.add_scaled(self.solution, alpha, self.direction)
        with self._waxpby():
            self._kernels.add_scaled(self._r, -alpha, self._Ap)
        return sqrt(self._dot(self._r, self._r))

    def _waxpby(self, also: float = 0.0) -> AbstractContextManager[None]:
        return self._spans("waxpby", flops=2.0 * self._A.n + also, bytes=float(counts.waxpby_bytes(self._A.n)))

    def _dot(self, x: Vector, y: Vector) -> float:
        vectors = 1 if x is y else 2
        with self._spans("ddot", flops=2.0 * self._A.n, bytes=float(counts.dot_bytes(self._A.n, vectors))):
            return self._sum(self._kernels.dot(x, y))

    def _sum(self, value: float) -> float:
        with self._spans("allreduce"):
            return allreduce_scalar(self._comm, value, "sum", self._kernels.xp)
