"""The vectors of CG, MINRES and BiCGStab in fp64, with a preconditioner that may use lower precision."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite, sqrt
from typing import Any, Protocol

from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import allreduce_scalars
from mxpeak.distributed.spaces import vector_type, zeros
from mxpeak.distributed.sparse import SparseMatrix
from mxpeak.distributed.system import Preconditioner
from mxpeak.kernels.contract.sparse import SparseKernels, Vector
from mxpeak.precision import PRECISIONS


class OuterSystem(Protocol):
    """A system A x = b in fp64 with its x, and the matrix of the preconditioner. All methods are collective."""

    @property
    def matrix(self) -> SparseMatrix:
        """Return A in fp64."""

    @property
    def inner(self) -> SparseMatrix:
        """Return the matrix that the preconditioner uses."""

    def new_residual(self) -> Vector:
        """Return b - A x as a new vector."""

    @property
    def solution(self) -> Vector:
        """Return this rank's entries of x."""

    def add(self, d: Vector) -> None:
        """Compute x = x + d."""

    def replace(self, x: Vector) -> None:
        """Continue with this x."""


class RecurrenceSystem:
    """A `solvers.recurrence.SystemForRecurrences` for an `OuterSystem` and a preconditioner.

    watch   called after each step
    u       the unit roundoff of M^-1
    size    a lower bound of ||A M^-1||
    """

    def __init__(
        self,
        kernels: SparseKernels,
        comm: Communicator,
        system: OuterSystem,
        precondition: Preconditioner,
        watch: Callable[[], None],
    ):
        self._kernels, self._comm, self._watch = kernels, comm, watch
        self._system, self._precondition = system, precondition
        self._A, self._inner = system.matrix, system.inner
        self.u, self.size = PRECISIONS[self._inner.A.vectors].u, 0.0
        self._v = self._A.halo_vector()
        self._r_low = zeros(kernels, self._inner.n, self._inner.A.vectors)
        self._least, self._best_x = inf, None

    def residual_vector(self) -> Vector:
        """Return r = b - A x as a new vector."""
        return self._system.new_residual()

    def multiply(self, v: Vector) -> Vector:
        """Return A v as a new vector."""
        self._A.own(self._v)[:] = v
        product = zeros(self._kernels, self._A.n, "fp64")
        self._A.multiply(self._v, product)
        return product

    def precondition(self, r: Vector) -> Vector:
        """Return M^-1 r as a new vector; M^-1 is applied to r in the precision of the inner matrix."""
        self._kernels.scale(self._r_low, 1.0, r)
        z = self._inner.own(self._precondition(self._r_low))
        return self._kernels.xp.asarray(z, dtype=vector_type(self._kernels, "fp64"), copy=True)

    def dot(self, u: Vector, v: Vector) -> Any:
        """Return uᴴv."""
        if self._kernels.parts == 1:
            return self._sum([self._kernels.dot(u, v)])[0]
        own = complex(self._kernels.xp.vdot(u, v))
        return complex(*self._sum([own.real, own.imag]))

    def norm(self, u: Vector) -> float:
        """Return ||u||_2, or infinity or NaN if u is not finite."""
        square = self._sum([self._kernels.dot(u, u)])[0]
        return sqrt(square) if isfinite(square) else square if square != square else inf

    def advance(self, d: Vector, estimate: float | None = None) -> None:
        """Compute x = x + d, and keep the x with the smallest estimate of the new ||r||, if there are estimates."""
        if estimate is not None:
            if estimate < self._least:
                self._least, self._best_x = estimate, None
            elif self._best_x is None:
                self._best_x = self._kernels.xp.asarray(self._system.solution, copy=True)
        self._system.add(d)
        self._watch()

    def go_back(self) -> None:
        """Return to the x with the smallest estimate of ||r||."""
        if self._best_x is not None:
            self._system.replace(self._best_x)

    def _sum(self, values: list[float]) -> list[float]:
        return allreduce_scalars(self._comm, values, "sum", self._kernels.xp)


class CgVectors:
    """A `solvers.cg.SystemForCg` over the vectors of a `RecurrenceSystem`."""

    def __init__(self, system: RecurrenceSystem):
        self._system = system
        self._p: Vector = None

    def residual(self) -> float:
        """Compute r = b - A x; return ||r||."""
        self._r = self._system.residual_vector()
        return self._system.norm(self._r)

    def precondition(self) -> float:
        """Compute z = M^-1 r; return rᴴz, which is real for a Hermitian M."""
        self._z = self._system.precondition(self._r)
        return float(self._system.dot(self._r, self._z).real)

    def update_direction(self, beta: float) -> None:
        """Compute p = z + β p."""
        self._p = self._z + beta * self._p if beta else self._z

    def pAp(self) -> float:
        """Compute A p; return pᴴA p, which is real for a Hermitian A."""
        self._Ap = self._system.multiply(self._p)
        return float(self._system.dot(self._p, self._Ap).real)

    def step(self, alpha: float) -> float:
        """Compute x = x + α p and r = r - α A p; return ||r||."""
        self._system.advance(alpha * self._p)
        self._r = self._r - alpha * self._Ap
        return self._system.norm(self._r)
