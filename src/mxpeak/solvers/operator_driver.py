"""GMRES for a matrix that is given only by its products A x: no scaling, no entries, and a preconditioner of the user.

Each product may take much longer than the other operations of a step. Therefore, all vectors are in fp64 unless the
user requests fp32: cycles in fp32 gain at most six digits and then restart, which takes additional products.

Squares of numbers far from 1 overflow or underflow. If a solve fails, one more product shows the size of A. If it is
far from 1, the solve starts again with A times a power of two, which is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from mxpeak.distributed.operator import OperatorFormat, OperatorMatrix
from mxpeak.distributed.rank_group import RankGroup
from mxpeak.distributed.spaces import zeros
from mxpeak.kernels.arrays import is_in_fp32, probe_vector
from mxpeak.kernels.contract.sparse import SparseKernels, Vector
from mxpeak.runtime.calls import compile_once
from mxpeak.solvers.gmres_driver import GmresDriver, GmresOptions, SolveResult
from mxpeak.solvers.krylov import gmres_ir
from mxpeak.solvers.precond.equilibration import Equilibration, largest_exponent
from mxpeak.solvers.precond.formats import Formats
from mxpeak.solvers.precond.matrix_builder import one_group
from mxpeak.solvers.precond.problem import FIRST_USE, PreconditionedProblem, SolvePlan
from mxpeak.solvers.precond.setup import Choice
from mxpeak.spans import Spans

#: A is scaled if its product with a random vector has a binary exponent e with |e| > FAR. The power of two is at most
#: 2^FARTHEST.
FAR, FARTHEST = 60, 1000
#: Largest residual that the rounding of products to fp32 explains.
LARGEST_OF_FP32 = 2.0**-12


@dataclass(frozen=True, slots=True)
class Operator:
    """The products A x of an operator of order n.

    own        the number of rows of this rank
    multiply   the function x -> A x for this rank's rows, which is collective
    kind       the name for `info.storage`
    nnz        the number of entries, or 0 if it is unknown
    """

    n: int
    own: int
    multiply: Callable[[Vector], Vector]
    kind: str
    nnz: int = 0


class OperatorForms:
    """An operator for the inner iteration and for residuals in fp64, in place of a stored `MatrixForms`."""

    def __init__(self, kernels: SparseKernels, A: Operator, formats: Formats, group: RankGroup, spans: Spans):
        self.kernels, self.A, self.formats, self.spans, self.preconditioner = kernels, A, formats, spans, "none"
        self.order, self.bytes = one_group(A.own), 0
        shared = A.multiply, group, spans
        self.inner = OperatorMatrix(kernels, OperatorFormat(A.own, formats.vectors, A.kind), *shared)
        self.outer = OperatorMatrix(kernels, OperatorFormat(A.own, "fp64", A.kind), *shared)

    def promote_to_fp64(self) -> None:
        """Use vectors in fp64 also for the inner iteration."""
        self.inner, self.formats = self.outer, Formats("fp64", "fp64", True)

    def ordered(self, x: Vector) -> Vector:
        """Return the vector itself."""
        return x

    def unordered(self, x: Vector) -> Vector:
        """Return the vector itself."""
        return x


class OperatorDriver(GmresDriver):
    """A GMRES solver for one operator and many right-hand sides. All methods are collective."""

    _may_not_scale = False

    def __init__(self, kernels: SparseKernels, A: Operator, choice: Choice, options: GmresOptions, group: RankGroup):
        self._begin_set_up(kernels, options, group, A.n)
        self.nnz = A.nnz
        vectors = "fp32" if options.precision == "fp32" else "fp64"
        self._formats = Formats("fp64", vectors, True)
        scaling = Equilibration(xp=kernels.xp, group=group)
        self.plan = SolvePlan(choice, "natural", "auto", self._restart(choice), scaling)
        self._compile()
        self._matrix = OperatorForms(kernels, A, self._formats, group, self.spans)
        self.problem = PreconditionedProblem(self._matrix, self.plan)

    @property
    def remedies(self) -> list[str]:
        """Return the arguments that may help without the entries of A: a preconditioner M, and vectors in fp64."""
        M = "another preconditioner M" if self.plan.choice.name == "user" else "a preconditioner M"
        return [M] if self._formats.vectors == "fp64" else [M, 'precision="fp64"']

    def _compile(self) -> None:
        """Solve a tiny system to compile the operations on vectors. Collective."""
        kernels, formats = self._kernels, self._formats

        def use() -> None:
            tiny = Operator(2, 2, lambda x: 2.0 * x, "tiny")
            plan = SolvePlan(Choice("none", ""), "natural", "auto", 2, Equilibration(xp=kernels.xp))
            forms = OperatorForms(kernels, tiny, formats, plan.group, Spans())
            system = PreconditionedProblem(forms, plan).system
            system.begin(1.0, 0.0)
            gmres_ir(system, 1.0, restart=2, max_steps=2, tolerance=1e-15)

        key = "operator", kernels.device, kernels.parts, formats.vectors
        compile_once(f"{FIRST_USE} operators with {formats.vectors} vectors", key, use, self.group.comm)

    def solve(self, b: Vector, x0: Vector, tol: float, steps: int = 0) -> SolveResult:
        """Solve for one right-hand side, and solve again if A must be scaled; `steps` have led to x0."""
        result = super().solve(b, x0, tol, steps)
        if result.residual <= tol or self._may_not_scale or not self._scaled_by_product():
            return result
        again = super().solve(b, x0, tol, result.steps)
        again.cycles += result.cycles - result.steps
        return again

    def _scaled_by_product(self) -> bool:
        """Scale A by the size of its product with a random vector, and return whether A needed it. Collective."""
        return self._scaled_to_one(self._probe())

    def _scaled_to_one(self, product: Vector) -> bool:
        """Scale A so that this product has entries near 1, and return whether A needed it. Collective."""
        xp, group, self._may_not_scale = self._kernels.xp, self.group, True
        if group.all(not xp.any(product != 0.0)):
            return False
        exponent = int(group.largest(largest_exponent(product, 0, xp)))
        if abs(exponent) <= FAR:
            return False
        exponent, own = max(-FARTHEST, min(-exponent, FARTHEST)), self._matrix.A.own
        rows, columns = xp.full(own, exponent), xp.full(own, 0)
        self.plan = replace(self.plan, scaling=Equilibration(rows, columns, xp, group))
        self._matrix.inner.exponent = self._matrix.outer.exponent = exponent
        self._restart_problem()
        return True

    def _is_limited_by_fp32(self, result: SolveResult) -> bool:
        """Return whether the product with a random vector has only the digits of fp32. Collective."""
        return result.residual <= LARGEST_OF_FP32 and self.group.all(is_in_fp32(self._probe(), self._kernels.xp))

    def _probe(self) -> Vector:
        """Return the product of A and a random vector. Collective."""
        xp, first, own = self._kernels.xp, self.group.first, self._matrix.A.own
        w, Aw = xp.asarray(probe_vector(self.n)[first : first + own] / self.n), zeros(self._kernels, own, "fp64")
        self._matrix.outer.multiply(w, Aw)
        return Aw

    def _terms(self, y: Vector, b: Vector) -> float:
        """Return infinity, because |A| is unknown."""
        return inf

    def _row_error(self, y: Vector, b: Vector) -> float:
        """Return infinity, because |A| is unknown."""
        return inf
