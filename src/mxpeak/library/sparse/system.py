"""A x = b in the forms in which it is solved: the order of its rows, how values are stored, and the preconditioner.

Of ranks that share a system each has its rows, in an order of its own; the preconditioner stays within them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
from scipy.sparse import csr_array, diags_array

from mxpeak.comm.base import Communicator
from mxpeak.distributed.spaces import zeros
from mxpeak.distributed.system import InnerIteration, MixedSystem, SparseBasis
from mxpeak.kernels.contract.sparse import SparseKernels, Vector
from mxpeak.layout.stencil import Box
from mxpeak.library.sparse.amg import Grid, amg_multigrid, hierarchy
from mxpeak.library.sparse.auto_preconditioner import FIRST_USE, Choice
from mxpeak.library.sparse.distributed_amg import Overlap, SharedGrid
from mxpeak.library.sparse.factors import Factors, Solved, factored
from mxpeak.library.sparse.formats import Formats
from mxpeak.library.sparse.gathered_lu import SharedSolved, shared_factors
from mxpeak.library.sparse.inputs import Csr
from mxpeak.library.sparse.preconditioners import (
    Identity,
    MatrixBuilder,
    Multigrid,
    Sweep,
    SymmetricSweep,
    UserPreconditioner,
    one_group,
    stencil_multigrid,
)
from mxpeak.library.sparse.scaling import Scaling
from mxpeak.library.sparse.schwarz import SharedSweep, shared_multigrid
from mxpeak.precision import PRECISIONS
from mxpeak.runtime.calls import compile_once
from mxpeak.solvers.krylov import gmres_ir
from mxpeak.spans import Spans

#: Points of the one-dimensional system on which everything is used once, and rows of its coarsest level.
TINY, TINY_COARSEST = 24, 6
#: Preconditioners that sweep over the matrix's rows, those that take rows of the halo with them where there are other
#: ranks, and those that take longer than to keep what they return.
SWEEPING, OVERLAPPING, KEPT = ("gs", "sgs", "stencil", "amg"), ("sgs", "amg"), ("lu", "amg")


@dataclass(frozen=True, slots=True)
class Plan:
    """All that was decided before anything is stored, and what the preconditioner consists of, once that is made.

    grids     algebraic multigrid's levels, below the matrix as scaled
    factors   of the matrix as scaled
    overlap   its rows of this rank and of the halo, for sweeps of ranks
    """

    choice: Choice
    smoother: str
    storage: str
    restart: int
    scaling: Scaling
    grids: tuple[SharedGrid | Grid, ...] = ()
    factors: Factors | None = None
    overlap: Overlap | None = None


class Problem:
    """The scaled matrix in one order, and the system that is being iterated on: low at first, in fp64 once widened."""

    def __init__(self, kernels: SparseKernels, A: Csr, plan: Plan, formats: Formats, spans: Spans):
        everybody = self._everybody = plan.scaling.everybody
        self._kernels, self._A, self._plan, self._spans = kernels, A, plan, spans
        self._workshop = MatrixBuilder(kernels, plan.smoother, plan.storage, spans)
        rows = kernels.rows_of(A.indptr, A.indices, A.data, A.shape[0], A.shape[1] - A.shape[0])
        brief = plan.choice.name == "lu"  # few products will be taken
        self._formats = formats
        basis = self._basis_bytes(rows.n)
        value_bytes = [PRECISIONS[formats.values].bytes]
        if not formats.exact:
            value_bytes.append(PRECISIONS["fp64"].bytes)  # the outer matrix shares nothing
        self._workshop.check_memory(rows, None, value_bytes, basis, brief=brief)
        with spans("order"):
            self.order = one_group(rows.n)
            if plan.choice.name in SWEEPING and (everybody.alone or plan.choice.name not in OVERLAPPING):
                rows, self.order = self._workshop.ordered(rows)
            self._new_to_old = kernels.xp.asarray(self.order.new_to_old)
            self._old_to_new = kernels.xp.asarray(self.order.old_to_new)
        with spans("store"):
            self._workshop.check_memory(rows, self.order, value_bytes, basis, brief=brief)
            self.inner = self.outer = self._workshop.store(
                rows, self.order, formats.values, formats.vectors, brief=brief, everybody=everybody
            )
            if formats.vectors != "fp64":
                values = formats.values if formats.exact else "fp64"
                self.outer = self._workshop.store(
                    rows, self.order, values, "fp64", like=self.inner.A, everybody=everybody
                )

    def complete(self, plan: Plan) -> None:
        """Put the preconditioner before the matrix, now that the plan has what it consists of."""
        self._plan = plan
        self.start_over()

    @property
    def A(self) -> Csr:
        """The scaled matrix in the user's order of rows."""
        return self._A

    @property
    def factors(self) -> Factors | None:
        """The factors that precondition, if any do."""
        return self._preconditioner.factors if isinstance(self._preconditioner, Solved | SharedSolved) else None

    @property
    def preconditioner(self) -> str:
        """Its name: what the order of the rows is for."""
        return self._plan.choice.name

    def ordered(self, x: Vector) -> Vector:
        """A vector of the user's order in the matrix's."""
        return self._kernels.xp.take(x, self._new_to_old)

    def unordered(self, x: Vector) -> Vector:
        """And back."""
        return self._kernels.xp.take(x, self._old_to_new)

    @property
    def colours(self) -> int | None:
        """Groups of rows that sweeps take in turn; 1 where none sweeps, None where they take single rows."""
        own = self._preconditioner.order if isinstance(self._preconditioner, Multigrid | SharedSweep) else None
        return (own or self.order).colours

    @property
    def levels(self) -> int:
        """Of multigrid; 1 of what has no others."""
        return self._preconditioner.levels if isinstance(self._preconditioner, Multigrid) else 1

    @property
    def bytes(self) -> int:
        """Of matrices, preconditioner and basis."""
        outer = 0 if self.outer is self.inner else self.outer.A.extra_bytes(self.inner.A)
        basis = self._basis_bytes(self.inner.n)
        return int(self.inner.A.bytes + outer + self._preconditioner.bytes + basis)

    def _basis_bytes(self, n: int) -> int:
        kept = self._plan.restart if self._plan.choice.name in KEPT else 0
        basis = (self._plan.restart + 1 + kept) * n * PRECISIONS[self._formats.vectors].bytes
        return basis + (2 * n * PRECISIONS["fp64"].bytes if self._refines else 0)

    @property
    def _refines(self) -> bool:
        return self._plan.choice.name == "lu" and self._formats.exact and self._formats.vectors != "fp64"

    def widen(self) -> None:
        """From now on everything in fp64."""
        self.inner, self._formats = self.outer, Formats(self.outer.A.values, "fp64", True)
        self.start_over()

    def start_over(self) -> None:
        """Make preconditioner and system, all of whose vectors are new: none holds what is not finite."""
        with self._spans("preconditioner set-up"):
            self._preconditioner = self._made()
            kind = (
                FP64ProductSystem
                if self._refines
                else FlexibleSystem
                if self._plan.choice.name in KEPT
                else RestartableSystem
            )
            self.system = kind(
                self._kernels,
                self._everybody.comm,
                self.outer,
                zeros(self._kernels, self.inner.n, "fp64"),
                InnerIteration(self.inner, self._preconditioner, self._plan.restart),
                self._spans,
            )
            if self._plan.scaling.active:
                self.system.measure_unscaled(self._unscaled)

    def _unscaled(self, r: Vector, b: Vector) -> float:
        """Return ||b - A x|| / ||b|| of the unscaled system, from vectors in the order of the rows.  Collective."""
        return self._plan.scaling.relative(self.unordered(r), self.unordered(b))

    def _made(self) -> Any:
        kernels, A, choice = self._kernels, self.inner, self._plan.choice
        if choice.user is not None:
            return UserPreconditioner(self._workshop, A, choice.user, self._plan.scaling)
        if choice.name == "none":
            return Identity(kernels, A)
        if self._plan.overlap is not None:
            return SharedSweep(self._workshop, self._plan.overlap, self._everybody, A)
        if choice.name == "sgs":
            return SymmetricSweep(kernels, A)
        if choice.name == "amg":
            if not self._everybody.alone:
                return shared_multigrid(self._workshop, A, self._plan.grids)
            whole = [grid for grid in self._plan.grids if isinstance(grid, Grid)]
            return amg_multigrid(self._workshop, A, self.order, whole)
        if self._plan.factors is not None:
            factors = self._factors(self._plan.factors)
            if not self._everybody.alone:
                return SharedSolved(kernels, A, factors, self._everybody, self._spans)
            return Solved(kernels, A, factors, self._spans)
        if choice.box is not None:
            return stencil_multigrid(self._workshop, A, self.order, choice.box, choice.stencil)
        return Sweep(A)

    def _factors(self, made: Factors) -> Factors:
        """Return factors in the format of the vectors or in fp64; the given ones if memory does not suffice for others.

        Collective where the format has changed.
        """
        if made.vectors in (self.inner.A.vectors, "fp64"):
            return made
        again, _ = shared_factors(self._A, self.inner.A.vectors, self._everybody)
        return again or made


class RestartableSystem(MixedSystem):
    """A system whose solution goes on from where it was, and that keeps the best one, also in the unscaled system."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._best, self._best_x = inf, zeros(self._kernels, self._A.n, "fp64")
        self._known: float | None = None
        self._unscaled: Callable[[Vector, Vector], float] | None = None

    def measure_unscaled(self, unscaled: Callable[[Vector, Vector], float]) -> None:
        """Keep the x of the least unscaled residual as well, which is computed from r and b."""
        self._unscaled, self._least_x = unscaled, zeros(self._kernels, self._A.n, "fp64")

    def begin(self, b: Vector, x: Vector) -> None:
        """Another right-hand side, and the x to begin with."""
        self._b[:] = b
        self.solution[:] = x
        self._best, self._known = inf, None
        self._best_x[:] = x  # to go back to where no residual is a finite number
        if self._unscaled is not None:
            self._least, self._least_x[:] = inf, x

    def residual(self) -> float:
        """||b - A x||, computed once for every x."""
        if self._known is None:
            self._known = super().residual()
            if self._known < self._best:
                self._best = self._known
                self._best_x[:] = self.solution
            if self._unscaled is not None:
                least = self._unscaled(self._r, self._b)
                if least < self._least:
                    self._least = least
                    self._least_x[:] = self.solution
        return self._known

    def update(self, d: Vector) -> None:
        """x += M^-1 d."""
        super().update(d)
        self._known = None

    def go_back(self) -> Vector:
        """Return to the x of the least residual so far, which the next one overwrites."""
        self.solution[:] = self._best_x
        self._known = None
        self.residual()
        return self._best_x

    def go_back_unscaled(self) -> None:
        """Return to the x of the least residual of the unscaled system, with its residual."""
        if self._unscaled is None:
            self.go_back()
            return
        self.solution[:] = self._least_x
        self._known = None
        self.residual()

    @property
    def residual_vector(self) -> Vector:
        """b - A x as `residual` last computed it."""
        return self._r


class KeepingBasis(SparseBasis):
    """q_1 … q_k, and what M^-1 made of them, which is what it combines."""

    def __init__(self, kernels: SparseKernels, comm: Communicator, n: int, restart: int, precision: str, spans: Spans):
        super().__init__(kernels, comm, n, restart + 1, precision, spans)
        self._Z = kernels.basis(n, restart, precision)

    def keep(self, z: Vector) -> None:
        """z = M^-1 q_k."""
        self._kernels.scale(self._Z[self._k - 1], 1.0, z)

    def combine(self, t: list[Any]) -> Vector:
        """M^-1 Q t = Z t, in a vector that the next call overwrites."""
        return self._combination(self._Z, t)


class FlexibleSystem(RestartableSystem):
    """A system that keeps M^-1 q of every step, so that a correction takes no M^-1 of its own (Saad 1993)."""

    _basis: KeepingBasis

    def _empty_basis(self, restart: int) -> KeepingBasis:
        return KeepingBasis(self._kernels, self._comm, self._A.n, restart, self._inner.A.vectors, self._spans)

    def step(self, q: Vector) -> Vector:
        """A M^-1 q, in the memory of the basis's next vector."""
        w = self._basis.next
        self._inner.multiply(self._kept(q), w)
        return w

    def _kept(self, q: Vector) -> Vector:
        """M^-1 q, now kept."""
        z = self._precondition(q)
        with self._spans("update", bytes=float(2 * self._A.n * self._bytes)):
            self._basis.keep(self._inner.own(z))
        return z

    def update(self, d: Vector) -> None:
        """x += d: M^-1 is in it."""
        self._add(d)
        self._known = None


class FP64ProductSystem(FlexibleSystem):
    """A system whose M^-1 is nearly A^-1: its products are taken in fp64 (Carson and Higham 2017).

    A M^-1 q may be much less than |A||M^-1 q|, of which fp32 would round every term.
    """

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._z, self._w = self._A.halo_vector(), zeros(self._kernels, self._A.n, "fp64")

    def step(self, q: Vector) -> Vector:
        """A M^-1 q, rounded once."""
        w = self._basis.next
        self._convert(self._A.own(self._z), self._inner.own(self._kept(q)))
        self._A.multiply(self._z, self._w)
        self._convert(w, self._w)
        return w

    def _convert(self, y: Vector, x: Vector) -> None:
        with self._spans("update", bytes=float(self._A.n * (8 + self._bytes))):
            self._kernels.scale(y, 1.0, x)


def compile_for(kernels: SparseKernels, plan: Plan, formats: Formats) -> None:
    """Use on a tiny system all that this plan will use in these formats, so that it is compiled.  Collective."""
    comm = plan.scaling.everybody.comm
    shares_levels = plan.choice.name == "amg" and comm.size > 1
    key = (
        kernels.device,
        plan.choice.name,
        plan.smoother,
        formats.values,
        formats.vectors,
        formats.exact,
        shares_levels,
    )

    def use() -> None:
        A, choice, grids = _tiny(kernels, plan.choice)
        factors = factored(A, formats.vectors)[0] if choice.name == "lu" else None
        small = replace(plan, choice=choice, grids=grids, factors=factors, restart=2, scaling=Scaling())
        small = replace(small, overlap=plan.overlap and Overlap(A, 0))
        problem = Problem(kernels, A, small, formats, Spans())
        problem.complete(small)
        if shares_levels:  # of which a rank's part is not always symmetric
            kernels.with_symmetric_pattern(kernels.rows_of(A.indptr, A.indices, A.data, A.shape[0], 0))
        problem.system.begin(1.0, 0.0)
        gmres_ir(problem.system, 1.0, restart=2, most=3, tolerance=1e-15)

    what = f"{plan.choice.name} with {formats.values} values and {formats.vectors} vectors"
    name = " ".join(["gmres,", *map(str, key[1:])]) if kernels.device is None else ""
    compile_once(f"{FIRST_USE} {what}", key, use, comm, name)


def _tiny(kernels: SparseKernels, choice: Choice) -> tuple[Csr, Choice, tuple[Grid, ...]]:
    """A system of the kind, and its preconditioner."""
    if choice.box is not None:
        box = Box(4, 4, 4)
        rows = kernels.on_host(kernels.stencil_rows(box, choice.stencil))
        return csr_array((rows.data, rows.indices, rows.indptr)), replace(choice, box=box), ()
    off, n = -np.ones(TINY - 1), TINY
    A = csr_array(diags_array([off, np.full(n, 2.0), off], offsets=[-1, 0, 1]))
    if choice.user is not None:
        return A, replace(choice, user=lambda r: r), ()
    return A, choice, tuple(hierarchy(A, A, Scaling(), TINY_COARSEST)[0]) if choice.name == "amg" else ()
