"""The system A x = b in the form in which it is solved: row order, storage of the values, and preconditioner.

If several ranks share a system, each rank orders its own rows independently.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
from scipy.sparse import csr_array, diags_array

from mxpeak.distributed.csr import FP64, Csr
from mxpeak.distributed.rank_group import RankGroup
from mxpeak.distributed.spaces import zeros
from mxpeak.distributed.system import InnerIteration, MixedSystem
from mxpeak.kernels.contract.sparse import Rows, SparseKernels, Vector
from mxpeak.layout.stencil import Box
from mxpeak.precision import PRECISIONS
from mxpeak.runtime.calls import compile_once
from mxpeak.solvers.krylov import gmres_ir
from mxpeak.solvers.precond.amg import amg_multigrid
from mxpeak.solvers.precond.equilibration import Equilibration
from mxpeak.solvers.precond.factors import CompleteFactors, SparseFactors, factored
from mxpeak.solvers.precond.formats import Formats
from mxpeak.solvers.precond.geometric import Multigrid, stencil_multigrid
from mxpeak.solvers.precond.levels import LevelMatrices
from mxpeak.solvers.precond.matrix_builder import MatrixBuilder, one_group
from mxpeak.solvers.precond.ruge_stuben import ruge_stuben_of_all_rows
from mxpeak.solvers.precond.schwarz import Overlap, SchwarzSweep
from mxpeak.solvers.precond.setup import OVERLAPPING, STORED, SWEEPING, Choice
from mxpeak.solvers.precond.sweeps import Identity, Sweep, SymmetricSweep, UserPreconditioner
from mxpeak.spans import Spans

#: Number of rows of the one-dimensional system that compiles all kernels, and of its coarsest level.
TINY, TINY_COARSEST = 24, 6
#: Start of the line on stderr that announces the compilation of kernels.
FIRST_USE = "mxpeak, first use of"


@dataclass(frozen=True, slots=True)
class SolvePlan:
    """All decisions about a solve, and the components of the preconditioner.

    levels    the levels of algebraic multigrid below the scaled matrix
    factors   the factors of the scaled matrix
    overlap   the rows of this rank and its halo for overlapping sweeps
    """

    choice: Choice
    smoother: str
    storage: str
    restart: int
    scaling: Equilibration
    levels: tuple[LevelMatrices, ...] = ()
    factors: SparseFactors | None = None
    overlap: Overlap | None = None

    @property
    def group(self) -> RankGroup:
        """Return the ranks of the system."""
        return self.scaling.group


def rows_of(kernels: SparseKernels, A: Csr) -> Rows:
    """Return the rows of a matrix with local column numbers, in the format of the kernels."""
    return kernels.rows_of(A.indptr, A.indices, A.data, A.shape[0], A.shape[1] - A.shape[0])


class MatrixForms:
    """The scaled matrix A in one order of its rows, stored for the inner iteration and for residuals in fp64."""

    def __init__(self, kernels: SparseKernels, A: Csr, plan: SolvePlan, formats: Formats, spans: Spans):
        self.kernels, self.A, self.formats, self.spans = kernels, A, formats, spans
        self.builder = MatrixBuilder(kernels, plan.smoother, plan.storage, spans)
        self.preconditioner = plan.choice.name
        rows, group, brief = rows_of(kernels, A), plan.group, plan.choice.name == "lu"  # factors need few products
        basis = kernels.parts * basis_bytes(plan, formats, rows.n)
        value_bytes = [kernels.parts * PRECISIONS[formats.values].bytes]
        if not formats.exact:
            value_bytes.append(kernels.parts * PRECISIONS["fp64"].bytes)  # the outer matrix shares no values
        self.builder.check_memory(rows, None, value_bytes, basis, brief=brief)
        with spans("order"):
            self.order = one_group(rows.n)
            overlaps = plan.choice.name in OVERLAPPING and not plan.choice.symmetric
            if plan.choice.name in SWEEPING and (group.is_serial or not overlaps):
                rows, self.order = self.builder.ordered(rows)
            self._new_to_old = kernels.xp.asarray(self.order.new_to_old)
            self._old_to_new = kernels.xp.asarray(self.order.old_to_new)
        with spans("store"):
            self.builder.check_memory(rows, self.order, value_bytes, basis, brief=brief)
            self.inner = self.outer = self.builder.store(
                rows, self.order, formats.values, formats.vectors, brief=brief, group=group
            )
            if formats.vectors != "fp64":
                values = formats.values if formats.exact else "fp64"
                self.outer = self.builder.store(rows, self.order, values, "fp64", like=self.inner.A, group=group)

    def promote_to_fp64(self) -> None:
        """Use the outer matrix also for the inner iteration."""
        self.inner, self.formats = self.outer, Formats(self.outer.A.values, "fp64", True)

    def ordered(self, x: Vector) -> Vector:
        """Return a vector, given in the user's order, in the order of the matrix."""
        return self.kernels.xp.take(x, self._new_to_old)

    def unordered(self, x: Vector) -> Vector:
        """Return a vector, given in the order of the matrix, in the user's order."""
        return self.kernels.xp.take(x, self._old_to_new)

    @property
    def bytes(self) -> int:
        """Return the memory of all forms of the matrix in bytes."""
        outer = 0 if self.outer is self.inner else self.outer.A.extra_bytes(self.inner.A)
        return int(self.inner.A.bytes + outer)


def fp64_products(plan: SolvePlan, formats: Formats) -> bool:
    """Return whether products are in fp64, because with factors close to A^-1 fp32 would round away the result."""
    return plan.choice.name == "lu" and formats.exact and formats.vectors != "fp64"


def basis_bytes(plan: SolvePlan, formats: Formats, n: int) -> int:
    """Return the size, in bytes, of the real Krylov basis and of the vectors for products in fp64."""
    vectors = plan.restart + 1 + (plan.restart if plan.choice.name in STORED else 0)
    products = 2 * n * PRECISIONS["fp64"].bytes if fp64_products(plan, formats) else 0
    return vectors * n * PRECISIONS[formats.vectors].bytes + products


class PreconditionedProblem:
    """A matrix with its preconditioner, and the system for GMRES.

    `matrix` is a `MatrixForms`, or an object with the same methods for an operator.
    """

    def __init__(self, matrix: Any, plan: SolvePlan):
        self.matrix, self._plan = matrix, plan
        with matrix.spans("preconditioner set-up"):
            self._preconditioner = _preconditioner(matrix, plan)
            n, formats, flexible = matrix.inner.n, matrix.formats, plan.choice.name in STORED
            inner = InnerIteration(
                matrix.inner,
                self._preconditioner,
                plan.restart,
                flexible=flexible,
                fp64_products=fp64_products(plan, formats),
            )
            b = zeros(matrix.kernels, n, "fp64")
            self.system = RestartableSystem(matrix, b, inner, plan)

    @property
    def preconditioner(self) -> Any:
        """Return the function r -> M^-1 r in the inner precision, which returns a halo vector of the inner matrix."""
        return self._preconditioner

    @property
    def factors(self) -> SparseFactors | None:
        """Return the factors, or None if the preconditioner does not use any."""
        return self._preconditioner.factors if isinstance(self._preconditioner, CompleteFactors) else None

    @property
    def colours(self) -> int | None:
        """Return the number of row groups that sweeps process sequentially: 1 without sweeps, None for single rows."""
        own = self._preconditioner.order if isinstance(self._preconditioner, Multigrid | SchwarzSweep) else None
        return (own or self.matrix.order).colors

    @property
    def levels(self) -> int:
        """Return the number of multigrid levels, or 1 for other preconditioners."""
        return self._preconditioner.levels if isinstance(self._preconditioner, Multigrid) else 1

    @property
    def bytes(self) -> int:
        """Return the memory of matrices, preconditioner and basis in bytes."""
        basis = self.matrix.kernels.parts * basis_bytes(self._plan, self.matrix.formats, self.matrix.inner.n)
        return int(self.matrix.bytes + self._preconditioner.bytes + basis)


def _preconditioner(matrix: Any, plan: SolvePlan) -> Any:
    """Return the preconditioner M^-1 for the inner matrix."""
    kernels, A, choice, group = matrix.kernels, matrix.inner, plan.choice, plan.group
    if choice.user is not None:
        return UserPreconditioner(kernels, A, choice.user, plan.scaling, matrix.spans)
    if choice.name == "none":
        return Identity(A)
    if plan.overlap is not None:
        return SchwarzSweep(matrix.builder, plan.overlap, group, A)
    if choice.name == "sgs":
        return SymmetricSweep(kernels, A)
    if choice.name == "amg":
        return amg_multigrid(matrix.builder, A, matrix.order, plan.levels, symmetric=choice.symmetric)
    if plan.factors is not None:
        factors = plan.factors
        if factors.vectors not in (A.A.vectors, "fp64"):  # the vectors have changed to fp64
            factors = factored(matrix.A, A.A.vectors, group)[0] or factors
        return CompleteFactors(kernels, A, factors, group, matrix.spans)
    if choice.box is not None:
        return stencil_multigrid(
            matrix.builder, A, matrix.order, choice.box, choice.stencil, symmetric=choice.symmetric
        )
    return Sweep(A)


class RestartableSystem(MixedSystem):
    """A system for many right-hand sides that keeps the best x by the scaled and by the unscaled residual."""

    def __init__(self, matrix: Any, b: Vector, inner: InnerIteration, plan: SolvePlan):
        super().__init__(matrix.kernels, plan.group.comm, matrix.outer, b, inner, matrix.spans)
        self._matrix, self._scaling = matrix, plan.scaling
        self._best, self._best_x = inf, zeros(self._kernels, self._A.n, "fp64")
        self._best_unscaled, self._best_unscaled_x = inf, self._best_x
        if self._scaling.active:
            self._best_unscaled_x = zeros(self._kernels, self._A.n, "fp64")
        self._norm: float | None = None

    def begin(self, b: Vector, x: Vector) -> None:
        """Start a solve for another right-hand side b from the initial guess x; both are in the order of the matrix."""
        self._b[:] = b
        self.solution[:] = x
        self._best = self._best_unscaled = inf
        self._norm = None
        self._best_x[:] = x  # the x to return if no residual is finite
        self._best_unscaled_x[:] = x

    @property
    def best_unscaled(self) -> tuple[Vector, float]:
        """Return a copy of the x with the smallest unscaled residual so far, and this relative residual."""
        return self._kernels.xp.asarray(self._best_unscaled_x, copy=True), self._best_unscaled

    def remember(self, x: Vector | float, unscaled: float) -> None:
        """Return to this x, which has this unscaled relative residual, unless another x has a smaller one."""
        if self._scaling.active:
            if unscaled < self._best_unscaled:
                self._best_unscaled, self._best_unscaled_x[:] = unscaled, x
        elif (size := unscaled * self.norm_of_b()) < self._best:
            self._best, self._best_x[:] = size, x

    def residual(self) -> float:
        """Return ||b - A x||, computed once for each x."""
        if self._norm is None:
            self._norm = super().residual()
            if self._norm < self._best:
                self._best = self._norm
                self._best_x[:] = self.solution
            if self._scaling.active:
                unordered = self._matrix.unordered
                unscaled = self._scaling.relative(unordered(self._r), unordered(self._b))
                if unscaled < self._best_unscaled:
                    self._best_unscaled = unscaled
                    self._best_unscaled_x[:] = self.solution
        return self._norm

    def update(self, d: Vector) -> None:
        """Add the correction of a cycle to x."""
        super().update(d)
        self._norm = None

    def new_residual(self) -> Vector:
        """Return b - A x as a new vector."""
        self.residual()
        return self._kernels.xp.asarray(self._r, copy=True)

    def add(self, d: Vector) -> None:
        """Compute x = x + d for a correction in fp64."""
        self._kernels.add_scaled(self.solution, 1.0, d)
        self._norm = None

    def replace(self, x: Vector) -> None:
        """Continue with this x."""
        self.solution[:] = x
        self._norm = None

    def go_back(self, *, unscaled: bool = False) -> Vector:
        """Restore and return the x with the smallest residual so far, or smallest unscaled residual if `unscaled`."""
        best = self._best_unscaled_x if unscaled else self._best_x
        self.solution[:] = best
        self._norm = None
        self.residual()
        return best

    @property
    def residual_vector(self) -> Vector:
        """Return b - A x as computed by the last call of `residual`."""
        return self._r


def compile_for(kernels: SparseKernels, plan: SolvePlan, formats: Formats) -> None:
    """Solve a tiny system with every kernel of a plan in these formats to compile the kernels. Collective."""
    comm = plan.group.comm
    shares_levels = plan.choice.name == "amg" and comm.size > 1
    key = (
        kernels.device,
        kernels.parts,
        plan.choice.name,
        plan.smoother,
        formats.values,
        formats.vectors,
        formats.exact,
        shares_levels,
        *(("symmetric",) if plan.choice.symmetric else ()),
    )

    def use() -> None:
        A, choice, levels = _tiny(kernels, plan.choice)
        factors = factored(A, formats.vectors)[0] if choice.name == "lu" else None
        tiny = replace(plan, choice=choice, levels=levels, factors=factors, restart=2, scaling=Equilibration())
        tiny = replace(tiny, overlap=plan.overlap and Overlap(A, 0))
        system = PreconditionedProblem(MatrixForms(kernels, A, tiny, formats, Spans()), tiny).system
        if shares_levels:  # the part of a rank is not always symmetric
            kernels.with_symmetric_pattern(rows_of(kernels, A))
        system.begin(1.0, 0.0)
        gmres_ir(system, 1.0, restart=2, max_steps=3, tolerance=1e-15)

    what = f"{plan.choice.name} with {formats.values} values and {formats.vectors} vectors"
    what = f"{what} of complex numbers" if kernels.parts == 2 else what
    name = " ".join(["gmres,", *map(str, key[2:])]) if (kernels.device, kernels.parts) == (None, 1) else ""
    compile_once(f"{FIRST_USE} {what}", key, use, comm, name)


def _tiny(kernels: SparseKernels, choice: Choice) -> tuple[Csr, Choice, tuple[LevelMatrices, ...]]:
    """Return a tiny system for the chosen preconditioner, the same choice for this system, and its AMG levels."""
    if choice.box is not None:
        box = Box(4, 4, 4)
        rows = kernels.on_host(kernels.stencil_rows(box, choice.stencil))
        return csr_array((rows.data, rows.indices, rows.indptr)), replace(choice, box=box), ()
    off, n = -np.ones(TINY - 1), TINY
    A = csr_array(diags_array([off, np.full(n, 2.0), off], offsets=[-1, 0, 1])).astype(FP64[kernels.parts])
    if choice.user is not None:
        return A, replace(choice, user=lambda r: r), ()
    if choice.name != "amg":
        return A, choice, ()
    return A, choice, tuple(ruge_stuben_of_all_rows(A, A, Equilibration(), TINY_COARSEST)[0])
