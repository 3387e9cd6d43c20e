"""Check iterative solves: compare the residual of the recurrence with b - A x.

    CG      Every EVERY steps and at the end, r from the recurrence is compared with b - A x. In every step, the new
            direction p is checked to be conjugate to the previous one. An error in x, r or A p permanently changes
            r - (b - A x). An error in z or p does not, but violates pᵀ(A p of the previous step) = 0, which holds
            for a symmetric M. A pᵀA p that is not positive ends the solve and is therefore computed again.
    GMRES   Every cycle predicts its residual, Q (ρ e_1 - H t), and the next cycle begins with b - A x. An error in
            a vector of the basis, a product or a sweep violates A M^-1 Q = Q H or x = x + M^-1 Q t.

A difference is a fault if it exceeds a few times the effect of rounding: u·|A| times all terms that were multiplied
and added. |A| is the largest entry of A s for some vectors of signs s, and norms are those of the global vectors. The
checks do not change a solve: its numbers, steps and operation counts are those of a solve without checks.
"""

from __future__ import annotations

from math import isfinite, sqrt
from typing import Any

from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import allreduce_scalar, allreduce_scalars
from mxpeak.distributed.spaces import zeros
from mxpeak.distributed.sparse import SparseMatrix
from mxpeak.distributed.system import CgSystem, InnerIteration, MixedSystem, SparseBasis
from mxpeak.kernels.contract.sparse import SparseKernels, Vector
from mxpeak.precision import PRECISIONS
from mxpeak.solvers.abft.solve_faults import SolveChecks
from mxpeak.spans import Spans

#: Number of CG steps between two checks of b - A x. A check needs one product, and a step of HPCG needs about ten.
EVERY = 25
#: Limits relative to the average effect of rounding: for residuals in fp64, and for a cycle in its precision.
LARGE, LARGE_INSIDE = 16.0, 4.0
#: The largest cosine between conjugate directions: half of the digits of fp64.
COSINE = 2.0**-26
#: The size below which a product of two numbers may underflow.
LEAST = 1e-280
U = PRECISIONS["fp64"].u


class CheckedCg(CgSystem):
    """A `CgSystem` that checks the residual and the search directions during each solve."""

    def __init__(self, checks: SolveChecks, *system: Any):
        """Create the system from the arguments of `CgSystem`."""
        super().__init__(*system)
        kernels, comm, A = self._kernels, self._comm, self._A
        self._checks, self._unbooked = checks, A.timed_by(Spans())
        self._true = zeros(kernels, A.n, "fp64")
        self._size, self._b_norm = size_of(kernels, comm, self._unbooked), global_norm(kernels, comm, self._b)
        self._forget()

    def _forget(self) -> None:
        """Discard the step counts and recorded products of the previous solve."""
        self._steps = self._compared = 0
        self._rz = self._next_rz = 0.0
        self._right, self._turned = True, False  # turned: p is new, but x and r are not yet updated
        # p^T A p for each step since the last check and for the step before, and p^T (A p of the previous step).
        self._curvatures, self._across = list[float](), list[float]()

    def residual(self) -> float:
        """Start a new solve: compute r = b - A x and return ||r||."""
        self._forget()
        return super().residual()

    def precondition(self) -> float:
        """Compute z = M^-1 r, and record and return rᵀz."""
        self._next_rz = super().precondition()
        return self._next_rz

    def update_direction(self, beta: float) -> None:
        """Compute p = z + β p, and record pᵀ(A p of the previous step) for the check of conjugacy."""
        super().update_direction(beta)
        self._rz, self._turned = self._next_rz, True
        if self._steps:
            with self._checks.timed():
                self._across.append(self._kernels.dot(self.direction, self._Ap))

    def pAp(self) -> float:
        """Compute A p, and record and return pᵀA p."""
        self._curvatures.append(super().pAp())
        return self._curvatures[-1]

    def step(self, alpha: float) -> float:
        """Compute x = x + α p and r = r - α A p, and return ||r||; check the solve every EVERY steps."""
        rho = super().step(alpha)
        self._steps, self._turned = self._steps + 1, False
        if self._steps % EVERY == 0:
            self._compare()
        return rho

    def ended(self) -> None:
        """Check the residual and the stored matrices at the end of the solve."""
        if self._turned:
            self._look_at_curvature()
        if self._steps > self._compared:
            self._compare()
        self._checks.end(self._comm, self._steps)

    def _look_at_curvature(self) -> None:
        """Compute pᵀA p again after a solve that ended because pᵀA p was not positive. Collective.

        If the two values differ by more than rounding, report a fault. No step was taken in the direction p.
        Therefore, the recorded products of p are discarded, and p is not checked for conjugacy or orthogonality.
        """
        kernels, true, carried = self._kernels, self._true, self._curvatures[-1]
        with self._checks.timed():
            self._checks.checks += 1
            self._unbooked.multiply(self._p, true)
            dots = [kernels.dot(self.direction, true), kernels.dot(self.direction, self.direction)]
            again, p2 = allreduce_scalars(self._comm, dots, "sum", kernels.xp)
            limit = max(LARGE * U * self._size * p2, LEAST)
            self._checks.judge(self._comm, self._steps, "directions", abs(carried - again), limit)
        del self._across[-1:], self._curvatures[-1:]

    def _compare(self) -> None:
        """Compare r with b - A x, and check that the directions since the last check are conjugate. Collective."""
        kernels, true = self._kernels, self._true
        with self._checks.timed():
            self._checks.checks += 1
            self._unbooked.multiply(self.x, true)
            kernels.subtract_from(true, self._b)
            kernels.add_scaled(true, -1.0, self._r)
            share = kernels.dot(true, true)
            others = [kernels.dot(self.solution, self.solution), kernels.dot(self._r, self.direction)]
            square, x2, rp, *across = allreduce_scalars(self._comm, [share, *others, *self._across], "sum", kernels.xp)
            if self._right:  # an error persists for the rest of this solve, so it is reported once
                self._right = self._judge_directions(across, rp) & self._judge_residual(square, x2, share)
        self._compared, self._across, self._curvatures = self._steps, [], self._curvatures[-1:]

    def _judge_residual(self, square: float, x2: float, share: float) -> bool:
        """Return whether |b - A x - r| is within the effect of rounding of the steps so far."""
        limit = LARGE * U * sqrt(self._steps) * (self._size * root(x2) + self._b_norm)
        return self._checks.judge(self._comm, self._steps, "residual", root(square), limit, share)

    def _judge_directions(self, across: list[float], rp: float) -> bool:
        """Return whether successive directions are conjugate, and whether the last direction is orthogonal to r."""
        first = self._steps - len(across)
        for k, (value, lengths) in enumerate(zip(across, zip(self._curvatures, self._curvatures[1:]))):
            limit = COSINE * root(lengths[0]) * root(lengths[1])
            if limit > LEAST and not self._checks.judge(self._comm, first + k + 1, "directions", abs(value), limit):
                return False
        if self._turned:
            return True
        return self._checks.judge(self._comm, self._steps, "directions", abs(rp), max(COSINE * abs(self._rz), LEAST))


class RecordingBasis(SparseBasis):
    """A basis that records the matrix H of its cycle and the coefficients t of its last combination."""

    def __init__(self, *shared: Any, stored: str | None = None):
        super().__init__(*shared, stored=stored)
        self._H, self.t = list[list[float]](), list[float]()

    def clear(self) -> None:
        """Remove all vectors and the recorded H and t."""
        super().clear()
        self._H, self.t = [], []

    def orthogonalize(self, w: Vector) -> tuple[list[Any], float]:
        """Orthogonalize and append w as in `SparseBasis`, and record its coefficients and norm as a column of H."""
        h, below = super().orthogonalize(w)
        self._H.append([*h, below])
        return h, below

    def combine(self, t: list[Any]) -> Vector:
        """Record the coefficients t, and return Q t, or M^-1 Q t if the basis is flexible."""
        self.t = list(t)
        return super().combine(t)

    def predicted_residual(self, rho: float) -> Vector:
        """Return Q (ρ e_1 - H t), which overwrites the last combination."""
        coefficients = [rho, *([0.0] * len(self.t))]
        for t, column in zip(self.t, self._H):
            for i, h in enumerate(column):
                coefficients[i] -= h * t
        self._sum_stored(self._Q, coefficients, self._scale)
        return self._combined


class CheckedMixed(MixedSystem):
    """A `MixedSystem` that compares the residual with the prediction of each cycle."""

    _basis: RecordingBasis

    def __init__(self, checks: SolveChecks, *system: Any):
        """Create the system from the arguments of `MixedSystem`."""
        super().__init__(*system)
        kernels, comm, A, (*_, inner, _) = self._kernels, self._comm, self._A, system
        self._checks, self._true = checks, zeros(kernels, A.n, "fp64")
        self._u = max(PRECISIONS[inner.basis or inner.A.A.vectors].u, inner.rounding)
        self._size, self._b_norm = size_of(kernels, comm, A.timed_by(Spans())), global_norm(kernels, comm, self._b)
        self._steps, self._before, self._squares = 0, 0.0, list[float]()

    def _empty_basis(self, inner: InnerIteration) -> SparseBasis:
        shared = (self._kernels, self._comm, self._A.n, inner.restart + 1, inner.A.A.vectors, self._spans)
        return RecordingBasis(*shared, stored=inner.basis)

    def restart_from_zero(self) -> None:
        """Set x = 0, and discard the recorded cycle."""
        super().restart_from_zero()
        self._steps = 0
        self._basis.clear()

    def residual(self) -> float:
        """Compute and return ||b - A x||, and compare b - A x with the residual that the last cycle predicted."""
        rho = super().residual()
        if self._basis.t:
            self._compare()
        return rho

    def basis(self) -> tuple[SparseBasis, float]:
        """Start a cycle, and return the basis with q_1 = r / ||r||, and ||r||."""
        self._before, self._squares = self._rho, []
        return super().basis()

    def step(self, q: Vector) -> Vector:
        """Return A M^-1 q as in `MixedSystem`, and record this rank's part of ||M^-1 q||².

        This norm determines the effect of rounding.
        """
        w = self._basis.next
        z = self._precondition(q)
        with self._checks.timed():
            self._squares.append(self._kernels.dot(self._inner.own(z), self._inner.own(z)))
        self._inner.multiply(z, w)
        return w

    def ended(self) -> None:
        """Check the stored matrices at the end of the solve."""
        self._checks.end(self._comm, self._steps)
        self._steps = 0

    def _compare(self) -> None:
        """Compare b - A x with the prediction of the cycle. Collective."""
        kernels, true, basis = self._kernels, self._true, self._basis
        with self._checks.timed():
            self._checks.checks += 1
            self._steps += len(basis.t)
            kernels.scale(true, 1.0, self._r)
            kernels.add_scaled(true, -1.0, basis.predicted_residual(self._before))
            share = kernels.dot(true, true)
            sums = [share, kernels.dot(self.solution, self.solution), *self._squares]
            square, x2, *z2 = allreduce_scalars(self._comm, sums, "sum", kernels.xp)
            inner = self._u * (self._size * sum(abs(t) * root(z) for t, z in zip(basis.t, z2)) + self._before)
            limit = LARGE_INSIDE * inner + LARGE * U * (self._size * root(x2) + self._b_norm)
            self._checks.judge(self._comm, self._steps, "residual", root(square), limit, share)
            basis.t = []


def size_of(kernels: SparseKernels, comm: Communicator, A: SparseMatrix) -> float:
    """Return an estimate of |A|: the largest |A s|_i for three vectors s of pseudo-random signs. Collective."""
    xp, x, y, largest = kernels.xp, A.halo_vector(), zeros(kernels, A.n, "fp64"), 0.0
    rows = xp.arange(A.n, dtype=xp.int64)
    for shift in (7, 9, 11):
        A.own(x)[:] = xp.astype(1 - 2 * (((rows + 1) * 2654435761 >> shift) & 1), xp.float64)
        A.multiply(x, y)
        largest = max(largest, allreduce_scalar(comm, float(xp.max(xp.abs(y))), "max", kernels.xp))
    return largest


def global_norm(kernels: SparseKernels, comm: Communicator, x: Vector) -> float:
    """Return ||x||_2 over all ranks. Collective."""
    return sqrt(allreduce_scalar(comm, kernels.dot(x, x), "sum", kernels.xp))


def root(square: float) -> float:
    """Return the square root of a number, or NaN if the number is negative or infinite."""
    return sqrt(square) if square >= 0.0 and isfinite(square) else float("nan")
