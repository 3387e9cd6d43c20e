"""CG, MINRES and BiCGStab for one matrix and several right-hand sides, with a check of each recurrence.

Vectors, products and residuals are in fp64, and the preconditioner may be in a lower precision. A round is one run of
the recurrence. At its end, b - A x is computed. If b - A x is larger than the recurrence claims and not small enough,
another round starts from x. If rounds stop converging, the preconditioner continues in fp64.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, isfinite, isinf, isnan, ldexp, sqrt

from mxpeak.distributed.csr import Csr
from mxpeak.distributed.rank_group import RankGroup
from mxpeak.distributed.recurrence_system import CgVectors, RecurrenceSystem
from mxpeak.errors import UsageError
from mxpeak.kernels.arrays import is_in_fp32, probe_vector, without_warnings
from mxpeak.kernels.contract.sparse import SparseKernels, Vector
from mxpeak.precision import PRECISIONS
from mxpeak.solvers.bicgstab import solve_by_bicgstab
from mxpeak.solvers.cg import conjugate_gradients
from mxpeak.solvers.gmres_driver import (
    LEAST,
    Ending,
    GmresDriver,
    GmresOptions,
    SolveResult,
    is_least,
    products_in_fp32,
    use_one_of,
)
from mxpeak.solvers.krylov import Solve
from mxpeak.solvers.minres import NULL, solve_by_minres
from mxpeak.solvers.operator_driver import Operator, OperatorDriver
from mxpeak.solvers.precond.equilibration import Equilibration, symmetrized
from mxpeak.solvers.precond.formats import Formats
from mxpeak.solvers.precond.setup import Choice
from mxpeak.solvers.recurrence import Recurrence

#: A round has failed if it leaves more than this part of the residual.
PROGRESS = 0.5
#: Largest difference of uᴴ A w and (A u)ᴴ w for random u and w, relative to the norms of their factors, if A u and A w
#: are in fp64 or in fp32: half of the digits. Rounding changes the products by a few n·u.
SYMMETRIC, SYMMETRIC_FP32 = 2.0**-26, 2.0**-12


def _cg(system: RecurrenceSystem, *, max_steps: int, enough: float) -> Recurrence:
    """Improve x by CG until ||r|| <= enough, or for `max_steps`. Collective."""
    vectors = CgVectors(system)
    initial = vectors.residual()
    done = conjugate_gradients(vectors, max_steps=max_steps, tolerance=enough / initial if initial else 0.0)
    return Recurrence([rho * done.initial for rho in done.history[1:]], done.broken, done.product)


@dataclass(frozen=True, slots=True)
class Method:
    """A short recurrence: its name as a function, its name in messages, and the algorithm.

    hermitian    whether A must be symmetric or Hermitian, and M positive definite
    definite     whether A must also be positive definite
    """

    name: str
    title: str
    run: Callable[..., Recurrence]
    hermitian: bool = False
    definite: bool = False


METHODS = {
    method.name: method
    for method in (
        Method("cg", "CG", _cg, hermitian=True, definite=True),
        Method("minres", "MINRES", solve_by_minres, hermitian=True),
        Method("bicgstab", "BiCGStab", solve_by_bicgstab),
    )
}


class RecurrenceRounds(GmresDriver):
    """The rounds of a short recurrence, in place of those of GMRES. All methods are collective.

    shown           the function that returns the user's x, given earlier results and the current x
    least_squares   the solver for least squares in messages
    """

    shown: Callable[[Sequence[SolveResult], Vector], Vector] = staticmethod(lambda finished, x: x)
    least_squares = "scipy.sparse.linalg.lsqr"
    _broken, _size, _u_of_products = ("", 0.0), 0.0, PRECISIONS["fp64"].u

    @property
    def title(self) -> str:  # type: ignore[override]
        """Return the name of the method for messages."""
        return self.method.title

    @property
    def method(self) -> Method:
        """Return the method that the options name."""
        return METHODS[self._options.method]

    def _scaling_of(self, A: Csr) -> Equilibration:
        """Return the scaling of A, with equal factors for rows and columns if A must remain symmetric. Collective."""
        scaling = super()._scaling_of(A)
        return symmetrized(scaling) if self.method.hermitian else scaling

    def _formats_for(self, A: Csr, choice: Choice) -> Formats:
        """Return the formats of the preconditioner; without one, r is not rounded."""
        return Formats("fp64", "fp64", True) if choice.name == "none" else super()._formats_for(A, choice)

    def _restart(self, choice: Choice) -> int:
        """Return 1, because a short recurrence stores no basis."""
        return 1

    def _longer_cycles(self, result: SolveResult) -> list[str]:
        """Return an empty list, because a short recurrence has no restart."""
        return []

    def check_symmetry(self) -> Vector | None:
        """Raise a UsageError if the method needs a symmetric A, and A is not symmetric. Collective.

        Returns the product of A and a random vector, or None without a check.
        """
        if not self.method.hermitian:
            return None
        xp, group, system = self._kernels.xp, self.group, self._recurrence(lambda: None)
        first, own = group.first, self.problem.system.matrix.n
        s = probe_vector(2 * self.n)
        u, w = (xp.asarray(part[first : first + own]) for part in (s[: self.n], s[self.n :]))
        Au, Aw = system.multiply(u), system.multiply(w)
        product = Au
        in_fp32 = group.all(all(is_in_fp32(v, xp) for v in (Au, Aw)))
        if not group.all(not xp.any(Au != 0.0)):  # squares of tiny or huge products would underflow or overflow
            both, _ = Equilibration(xp=xp, group=group).right_hand_side(xp.concat([Au, Aw]))
            Au, Aw = both[:own], both[own:]
        difference = abs(system.dot(u + 0.0 * Aw, Aw) - system.dot(Au, w + 0.0 * Au))
        size = system.norm(u) * system.norm(Aw) + system.norm(Au) * system.norm(w)
        self._u_of_products = PRECISIONS["fp32" if in_fp32 else "fp64"].u
        if difference > (SYMMETRIC_FP32 if in_fp32 else SYMMETRIC) * size:
            kind = "Hermitian" if self._kernels.parts == 2 else "symmetric"
            raise UsageError(
                f"A is not {kind}, as {self._options.method} requires: for random u and w, uᴴAw and (Au)ᴴw differ by "
                f"{difference / size:.1e} of ||u||·||Aw|| + ||Au||·||w||; use mxpeak.gmres or mxpeak.bicgstab"
            )
        return product

    def _recurrence(self, watch: Callable[[], None]) -> RecurrenceSystem:
        problem = self.problem
        return RecurrenceSystem(self._kernels, self.group.comm, problem.system, problem.preconditioner, watch)

    def _rounds(self, result: SolveResult, b: Vector, tol: float) -> Ending:
        """Run recurrences from the current x until the solve converges or needs another method; return the reason.

        The residuals of BiCGStab may grow by orders of magnitude. Without convergence, the residual of the best x is
        therefore also computed.
        """
        unwatched = self.group.all(self._options.callback is None)
        recurrence = self._recurrence((lambda: None) if unwatched else partial(self._call_back, b))
        ending = self._runs(recurrence, result, b, tol)
        if ending is not Ending.CONVERGED:
            recurrence.go_back()
            self.problem.system.residual()
        return ending

    def _runs(self, recurrence: RecurrenceSystem, result: SolveResult, b: Vector, tol: float) -> Ending:
        """Run the recurrence from the current x until the solve converges or needs another method."""
        system, low, run = self.problem.system, self._formats.vectors != "fp64", self.method.run
        b_norm, target, best_unscaled, again = system.norm_of_b(), tol, inf, True
        recurrence.size, self._broken = self._size, ("", 0.0)
        while result.steps < self._options.maxiter:
            before = self._residual_at_start(result, b) / b_norm
            with without_warnings():
                done = run(recurrence, max_steps=self._options.maxiter - result.steps, enough=target * b_norm)
            after, self._size = system.residual() / b_norm, recurrence.size
            estimates = [estimate / b_norm for estimate in done.estimates]
            history = [before, *estimates[:-1], after][: done.steps + 1]
            result.add(Solve(steps=done.steps, cycles=[done.steps], history=history))
            if not isfinite(after):
                return Ending.STALLED_IN_LOW_PRECISION if low else Ending.NOT_FINITE
            result.claimed = estimates[-1] if estimates else after
            unscaled = self._relative(system.residual_vector, b)
            if unscaled <= tol:
                return Ending.CONVERGED
            gained = after <= PROGRESS * before
            if done.broken or gained:
                self._broken = done.broken, done.product
            if after <= target:  # rows that are large in the units of A may be small in the scaled system
                if target <= LEAST or not (isinf(best_unscaled) or unscaled <= PROGRESS * best_unscaled):
                    return Ending.DIFFERENT_SCALES
                best_unscaled, target = unscaled, max(LEAST, 0.5 * after * min(1.0, tol / unscaled))
            elif gained and not self._is_null():
                again = True
            elif done.broken and done.steps and again and not self._is_null():
                again = False  # the run from the new x is another recurrence, which may not break down
            elif result.steps < self._options.maxiter:
                of_A = done.broken == "pᵀA p"  # a property of A, which no preconditioner changes
                return Ending.STALLED_IN_LOW_PRECISION if low and not of_A else Ending.STALLED
        return Ending.OUT_OF_STEPS

    def _is_null(self) -> bool:
        """Return whether r is a null vector of A up to rounding errors, along which another run would increase x."""
        formula, product = self._broken
        return formula == "AM⁻¹r" and product <= NULL

    def _least_norm(self, b: Vector) -> float:
        """Return a lower bound of ||x|| for every solution of A x = b with a symmetric A. Collective.

        zᴴb = (A z)ᴴ x for every solution x and every z, so that ||x|| >= |zᴴb| / ||A z||. The bound uses z = M^-1 r.
        For a null vector z, the computed A z is small or zero only up to rounding errors. The bound therefore divides
        by the computed ||A z|| plus a bound of its error, and subtracts the error of zᴴb, at most 2·n·u·||z||·||b||.
        """
        system, scaling = self._recurrence(lambda: None), self.plan.scaling
        z = system.precondition(system.residual_vector())
        Az = scaling.start(self._matrix.unordered(system.multiply(z)), 0)
        b = self._matrix.ordered(b)
        product = abs(system.dot(z, b)) - 2.0 * self.n * PRECISIONS["fp64"].u * system.norm(z) * system.norm(b)
        size = self.group.norm(Az, self._kernels.xp) + self._error_of_product(z) + UNDERFLOW
        try:
            return min(ldexp(max(product, 0.0) / size, -self._exponent), sys.float_info.max)
        except OverflowError:
            return sys.float_info.max

    def _error_of_product(self, z: Vector) -> float:
        """Return a bound of the norm of the rounding errors of A z without scaling of the rows. Collective."""
        return self.plan.scaling.error_of_product(self._matrix.A, self._matrix.unordered(z))

    def _call_back(self, b: Vector) -> None:
        """Call this rank's function, if it has one, with the current x, in the user's order and without scaling."""
        y = self._matrix.unordered(self.problem.system.solution)
        callback, x = self._options.callback or (lambda x: None), self.plan.scaling.solution(y, self._exponent)
        self.group.collectively(partial(callback, self.shown(self._finished, x)))

    def _advice(self, result: SolveResult, ending: Ending, y: Vector, b: Vector) -> str:
        """Return a text that explains why the residual is not smaller, and suggests a remedy."""
        formula, product = self._broken
        if ending is Ending.STALLED and formula == "rᵀz" and self.plan.choice.name == "lu":
            return f"A is not positive definite: with its factors, rᴴA^-1 r = {product:.1e}; {OF_INDEFINITE}"
        if ending is Ending.STALLED and isnan(product):
            return f"{self.title} exceeded the range of fp64: scale A and b down"
        if formula == "AM⁻¹r" and is_least(result.residual, self._terms(y, b)):
            return super()._advice(result, ending, y, b)
        if ending is Ending.STALLED and formula == "AM⁻¹r":
            cause = BREAKDOWNS[formula].format(value=f"{product:.1e}")
            size = self.group.norm(result.x, self._kernels.xp)
            return cause + _of_solutions(self._least_norm(b), size, self.least_squares)
        if ending is Ending.STALLED and formula:
            return BREAKDOWNS[formula].format(value=f"{product:.1e}")
        if ending is Ending.STALLED and self._is_limited_by_fp32(result):
            return products_in_fp32(result.residual)
        if ending is Ending.STALLED:
            of_scaled = " of the scaled system" if self.plan.scaling.active else ""
            return (
                f"the recurrence claims a residual{of_scaled} of {result.claimed:.1e}, but b - A x does not become "
                f"smaller{use_one_of('mxpeak.gmres', *self.remedies)}"
            )
        return super()._advice(result, ending, y, b)


OF_INDEFINITE = "use mxpeak.minres or mxpeak.gmres"
#: The texts for a product that must not be zero, or must be positive.
BREAKDOWNS = {
    "pᵀA p": "A is not positive definite: pᴴA p = {value}; " + OF_INDEFINITE,
    "rᵀz": "M is not positive definite: rᴴM^-1 r = {value}; use another preconditioner, or mxpeak.gmres",
    "zᴴv": "M is not positive definite: vᴴM^-1 v = {value}; use another preconditioner, or mxpeak.gmres",
    "AM⁻¹r": "MINRES cannot reduce this residual r, because ||A M^-1 r|| is {value} of ||A M^-1||·||r||: ",
    "r̂ᴴr": "BiCGStab broke down: |r̂ᴴr| = {value} for the first residual r̂; use mxpeak.gmres",
    "r̂ᴴv": "BiCGStab broke down: |r̂ᴴA M^-1 p| = {value} for the first residual r̂; use mxpeak.gmres",
    "tᴴs": "BiCGStab broke down: |tᴴs| = {value}; use mxpeak.gmres",
    "tᴴt": "BiCGStab exceeded the range of fp64: tᴴt = {value} for t = A M^-1 s; scale A and b down",
}


#: Rounding to two digits increases a number by at most 5 %. Lower bounds are multiplied by this factor before they are
#: printed, so that the printed numbers are also lower bounds.
PRINTED_BELOW = 0.95
#: Larger than the errors of products below the normal range of fp64.
UNDERFLOW = sys.float_info.min


def _of_solutions(least: float, size: float, least_squares: str) -> str:
    """Return a text about the solutions of A x = b, whose norms are at least `least`; `size` is the norm of x.

    `least_squares` is the solver for least squares.
    """
    if least <= size:
        return (
            f"A is singular or ill-conditioned, and the x with a norm of {size:.1e} has large rounding errors; use "
            "mxpeak.gmres"
        )
    shown = PRINTED_BELOW * least
    return (
        f"A x = b is inconsistent, or A is so ill-conditioned that every solution has a norm of at least {shown:.1e}; "
        f"use {least_squares} for least squares, or mxpeak.gmres for such a solution"
    )


class RecurrenceDriver(RecurrenceRounds):
    """A short recurrence for a sparse matrix. All methods are collective."""

    def __init__(self, kernels: SparseKernels, A: Csr, choice: Choice, options: GmresOptions, group: RankGroup):
        super().__init__(kernels, A, choice, options, group)
        self._may_factor = self._may_factor and not self.method.hermitian
        self.check_symmetry()

    @property
    def remedies(self) -> list[str]:
        """Return the arguments of preconditioners that the method supports; that of MINRES must be definite."""
        name = self.plan.choice.name
        if not self.method.hermitian:
            return super().remedies
        if not self.method.definite:
            return ["another positive definite preconditioner"]
        factors = ['preconditioner="lu" (complete factors)'] if name != "lu" else []
        multigrid = name not in ("lu", "amg") and self.group.is_serial and self._supports_multigrid()
        return [*factors, *['preconditioner="amg"'] * multigrid]


class RecurrenceOperatorDriver(RecurrenceRounds, OperatorDriver):
    """A short recurrence for an operator. All methods are collective."""

    least_squares = "scipy.sparse.linalg.lsqr with a LinearOperator whose rmatvec is equal to its matvec"

    def __init__(self, kernels: SparseKernels, A: Operator, choice: Choice, options: GmresOptions, group: RankGroup):
        OperatorDriver.__init__(self, kernels, A, choice, options, group)
        if (product := self.check_symmetry()) is not None:
            self._scaled_to_one(product)

    def _error_of_product(self, z: Vector) -> float:
        """Return an estimate of a bound of the norm of the rounding errors of A z. Collective.

        The errors of a dense product are at most n·u times || |A||z| ||, and || |A| || <= ||A||_F. For a random w,
        ||A w|| / ||w|| is about n^-½ ||A||_F. The factor 2 is for w.
        """
        xp, group, system = self._kernels.xp, self.group, self._recurrence(lambda: None)
        own = self.problem.system.matrix.n
        w = xp.asarray(probe_vector(self.n)[group.first : group.first + own]) + 0.0 * z
        norm_of_A = 2.0 * sqrt(self.n) * system.norm(system.multiply(w)) / system.norm(w)
        return self.n * self._u_of_products * norm_of_A * system.norm(z)
