"""GMRES for one matrix and several right-hand sides: scaling, rounds in low precision, fp64 and complete factors.

A round is one cycle of GMRES-IR. If the rounds stall in low precision, the solve continues in fp64. If an
automatically selected preconditioner is slow or stalls, complete factors are the last resort.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from math import inf, isfinite, isinf, log, sqrt
from typing import Any

from mxpeak.distributed.csr import Csr, with_diagonal
from mxpeak.distributed.rank_group import SERIAL, RankGroup
from mxpeak.kernels.arrays import probe_vector
from mxpeak.kernels.contract.sparse import SparseKernels, Vector
from mxpeak.options import alternatives
from mxpeak.precision import PRECISIONS
from mxpeak.records import size_text
from mxpeak.solvers.krylov import STALL, STALL_CYCLES, Solve, gmres_ir, overflowed, stalled
from mxpeak.solvers.precond.amg import MAX_RANGE
from mxpeak.solvers.precond.band import fills_band
from mxpeak.solvers.precond.equilibration import Equilibration, balanced, equilibrate
from mxpeak.solvers.precond.factor_condition import condition_bound, condition_estimate, largest_row, suspicious
from mxpeak.solvers.precond.factors import ENTRY_BYTES, estimated_fill, factored, refined, work_of
from mxpeak.solvers.precond.formats import Formats, formats, out_of_range
from mxpeak.solvers.precond.problem import MatrixForms, PreconditionedProblem, SolvePlan, compile_for, rows_of
from mxpeak.solvers.precond.schwarz import overlapping
from mxpeak.solvers.precond.setup import DIVIDING, Choice, PreconditionerSetup, set_up
from mxpeak.spans import Spans

#: Number of steps before a restart; it is larger for preconditioners that need many cheap steps. The number of
#: additional steps due to restarts varies by chance, and therefore with the number of ranks.
RESTART, RESTARTS = 30, {"sgs": 50}
#: Fraction of the expected digits that a round of steps in a low precision must gain; otherwise, fp64 is used.
WORTHWHILE = 0.25
#: Smallest target of a residual, relative to the scaled right-hand side.
LEAST = 2.0**-52
#: Start from zero if ||b - A x0|| exceeds ||b|| times this value: rounding errors of A x0 are then larger than b.
FARTHEST_START = 2.0**53
#: `auto` switches to a factorization after MIN_STEPS steps or more, when the steps have taken about as long as a
#: factorization takes. A step counts as 4 operations per entry and 90 per row, each as slow as two operations of
#: SuperLU.
MIN_STEPS, STEP_OF_ENTRY, STEP_OF_ROW = 150, 8.0, 180.0
#: Residual, times sqrt(n), to which GMRES solves for a random right-hand side: well below its component along a null
#: vector.
PROBE_RESIDUAL = 2.0**-6
#: Number of right-hand sides that are refined together, and the solves with complete factors that refine them: two for
#: factors in fp32 and a residual of 1e-9. GMRES continues if these are not enough.
TOGETHER, SOLVES = 64, 2
#: Number of roundings of the largest terms in b - A x at which a residual is as small as fp64 permits.
ROUNDINGS = 8.0
#: Largest |b - A x|_i / (|A||x| + |b|)_i at which all rows count as solved. For x = 0, this is 1.
SOLVED_ROWS = 2.0**-40


@dataclass(frozen=True, slots=True)
class GmresOptions:
    """The options of `gmres`, `cg`, `minres` and `bicgstab`, without the system and the device.

    `callback` receives the relative residual after each cycle of GMRES, or x after each step of another method.
    """

    precision: str = "mixed"
    rtol: float = 1e-9
    atol: float = 0.0
    restart: int | None = None
    maxiter: int = 10_000
    preconditioner: Any = "auto"
    storage: str = "auto"
    smoother: str = "auto"
    threads: int | None = None
    callback: Callable[[Any], object] | None = None
    method: str = "gmres"


class Ending(StrEnum):
    """The reason why the rounds ended."""

    CONVERGED = "converged"
    OUT_OF_STEPS = "out of steps"
    STALLED = "stalled"
    DIFFERENT_SCALES = "rows differ in scale"
    STALLED_IN_LOW_PRECISION = "stalled in low precision"
    SLOW = "slow"
    NOT_FINITE = "not finite"
    ROUNDED_X = "x rounded"
    SOLVED_BY_ROWS = "rows solved"


@dataclass(slots=True)
class SolveResult:
    """The solution for one right-hand side.

    `note` contains advice for the user, and `finite` is True if all entries of x are finite. `claimed` is the relative
    residual at the end of the last recurrence.
    """

    x: Vector
    residual: float = 0.0
    steps: int = 0
    cycles: int = 0
    history: list[float] = field(default_factory=list)
    note: str = ""
    finite: bool = True
    claimed: float = 0.0

    def add(self, solve: Solve) -> None:
        """Add the steps and the residuals of a round."""
        self.history += solve.history[1:] if self.history else solve.history
        self.steps += solve.steps
        self.cycles += len(solve.cycles)


class GmresDriver:
    """A GMRES solver for one matrix, or the rows of one rank, and many right-hand sides. All methods are collective.

    title    the name of the method in messages
    """

    nnz: int
    _matrix: Any
    title: str = "GMRES"
    #: The size of |A||x| + |b| relative to b for the best x of the scaled system, if the residual of this x is as small
    #: as fp64 permits, and otherwise 0.
    _rounded_terms = 0.0

    def __init__(
        self, kernels: SparseKernels, A: Csr, choice: Choice, options: GmresOptions, group: RankGroup = SERIAL
    ):
        self._begin_set_up(kernels, options, group, int(group.sum(A.shape[0])))
        self.nnz = int(group.sum(A.nnz))
        self._rows = None if choice.rows is None else kernels.xp.asarray(choice.rows)
        A = A if choice.rows is None else type(A)(A[choice.rows])
        with self.spans("scale"):
            scaling = self._scaling_of(A)
            A_s = scaling.matrix(A)
        if choice.name not in DIVIDING:
            A_s = with_diagonal(A_s)
        self._scaled_by = scaling if group.is_serial and kernels.device is None else None
        self._formats = self._formats_for(A_s, choice)
        self.notes += [self._formats.note] if self._formats.note else []
        vector_scaling = scaling.for_vectors(kernels.xp)
        self.plan = SolvePlan(choice, self._sweep_order(choice), options.storage, self._restart(choice), vector_scaling)
        self._may_factor = choice.automatic
        prepare = partial(set_up, kernels, A, A_s, choice, scaling, self._formats.vectors)
        if group.is_serial and kernels.device is None:
            self._matrix, setup = self._set_up_overlapped(prepare, A_s)
        else:
            setup = prepare()
            self._matrix = self._compiled_and_stored(A_s)
        self._install(setup)

    def _begin_set_up(self, kernels: SparseKernels, options: GmresOptions, group: RankGroup, n: int) -> None:
        """Set the attributes of a solver that has no matrix yet."""
        self.spans, self.notes, self.fallback = Spans(stopwatch=kernels.stopwatch), list[str](), False
        self.group, self._kernels, self._options, self.n = group, kernels, options, n
        self._rows, self._steps, self._may_factor = None, 0, False
        self._estimated_fill: tuple[float, str] | None = None

    def _scaling_of(self, A: Csr) -> Equilibration:
        """Return the scaling of the rows and columns of A. Collective."""
        return _scaling(self._kernels, A, self._options.precision, self.group)

    def _formats_for(self, A: Csr, choice: Choice) -> Formats:
        """Return the formats for the requested precision.

        With complete factors, `mixed` does not round A, because the factors are very close to A^-1. For the factors of
        a band, `mixed` is fp64.
        """
        rows, precision = rows_of(self._kernels, A), self._options.precision
        if choice.name == "lu" and precision == "mixed" and self.group.is_serial and fills_band(A):
            precision = "fp64"
        return formats(self._kernels, rows, precision, self.group, exact=choice.name == "lu")

    def _sweep_order(self, choice: Choice) -> str:
        """Return the order of sweeps; the natural order is best if each rank sweeps only over its own rows.

        Complex kernels have no other order. A Jacobi step needs rows that are stored in groups, and the natural order
        has none.
        """
        if choice.name == "jacobi" and self._kernels.parts == 1:
            return "coloured"
        if self._options.smoother != "auto":
            return self._options.smoother
        if self._kernels.parts == 2:
            return "natural"
        return "coloured" if self.group.is_serial or choice.name == "amg" else "natural"

    def _restart(self, choice: Choice) -> int:
        """Return the number of steps before a restart."""
        return min(self._options.restart or RESTARTS.get(choice.name, RESTART), self.n)

    def _set_up_overlapped(
        self, prepare: Callable[[], PreconditionerSetup], A: Csr
    ) -> tuple[MatrixForms, PreconditionerSetup]:
        """Set up the preconditioner while another thread stores the matrix.

        The calling thread computes the factors and later frees them, because SciPy frees SuperLU's memory only on the
        thread that has allocated it.
        """
        self._compile()
        with ThreadPoolExecutor(1) as executor:
            matrix = executor.submit(self._stored, A)
            setup = prepare()
        return matrix.result(), setup

    def _compiled_and_stored(self, A: Csr) -> MatrixForms:
        """Compile the kernels of the plan, store the matrix, and return the stored matrix."""
        self._compile()
        return self._stored(A)

    def _compile(self) -> None:
        """Compile the kernels of the plan. Collective."""
        compile_for(self._kernels, self.plan, self._formats)

    def _stored(self, A: Csr) -> MatrixForms:
        """Store the matrix in the forms of the plan, and return the stored matrix."""
        return self.group.collectively(lambda: MatrixForms(self._kernels, A, self.plan, self._formats, self.spans))

    def _install(self, setup: PreconditionerSetup) -> None:
        """Create the problem with its preconditioner, and store the matrix again if its order or formats change."""
        if setup.name:
            self.spans.add(setup.name, setup.time_s)
        choice, A = setup.choice, self._matrix.A
        self.plan = replace(
            self.plan,
            choice=choice,
            smoother=self._sweep_order(choice),
            restart=self._restart(choice),
            levels=tuple(setup.levels),
            factors=setup.factors,
            overlap=None,
        )
        if choice.name == "sgs" and not self.group.is_serial and not choice.symmetric:
            with self.spans("overlap"):
                self.plan = replace(self.plan, overlap=overlapping(A, self.group))
        if choice.name != self._matrix.preconditioner:
            del self._matrix
            if not self.fallback:
                self._formats = self._formats_for(A, choice)
            self._matrix = self._compiled_and_stored(A)
        self.problem = self.group.collectively(lambda: PreconditionedProblem(self._matrix, self.plan))

    def update(self, A: Csr) -> bool:
        """Replace the matrix by a similar one on the same process, and keep the preconditioner and the scaling.

        Return False if the preconditioner needs the earlier matrix or its formats; this object is then unusable.
        """
        if self._scaled_by is None or self.fallback or self.plan.choice.box is not None:
            return False
        A = A if self._rows is None else type(A)(A[self._rows])
        A_s, formats = self._scaled_by.matrix(A), self._formats
        A_s = A_s if self.plan.choice.name in DIVIDING else with_diagonal(A_s)
        self.spans, self.notes = Spans(stopwatch=self._kernels.stopwatch), []
        self._estimated_fill, self._steps = None, 0
        self._formats = self._formats_for(A_s, self.plan.choice)
        if self._formats.vectors != formats.vectors:
            return False
        del self.problem, self._matrix
        self._matrix = self._compiled_and_stored(A_s)
        self.problem = PreconditionedProblem(self._matrix, self.plan)
        return True

    def _restart_problem(self) -> None:
        """Create the problem again with new vectors, which contain only finite numbers."""
        del self.problem
        self.problem = PreconditionedProblem(self._matrix, self.plan)

    @property
    def remedies(self) -> list[str]:
        """Return the arguments of preconditioners that may need fewer steps; complete factors need the fewest."""
        name = self.plan.choice.name
        if name == "lu":
            return []
        multigrid = ['preconditioner="amg"'] if name != "amg" and self._supports_multigrid() else []
        on_host = self.group.is_serial and self._kernels.device is None
        incomplete = ["M=scipy.sparse.linalg.spilu(A).solve"] if on_host else []
        return ['preconditioner="lu" (complete factors)', *multigrid, *incomplete]

    def _supports_multigrid(self) -> bool:
        """Return whether the numbers of A are real, and their scales suit algebraic multigrid."""
        scaling = self._scaled_by
        return self._kernels.parts == 1 and (scaling is None or not scaling.active or scaling.range <= MAX_RANGE)

    def _longer_cycles(self, result: SolveResult) -> list[str]:
        """Return advice to use a larger restart if a cycle had the length of a restart, otherwise an empty list."""
        restart = self.plan.restart
        return [f"a restart larger than {restart}"] if restart < min(self.n, result.steps) else []

    @property
    def device(self) -> str:
        """Return the name of the device, such as cpu or cuda:0."""
        return "cpu" if self._kernels.device is None else str(self._kernels.device.where)

    def solve_all(self, systems: Sequence[tuple[Vector, Vector, float]]) -> list[SolveResult]:
        """Solve for all right-hand sides (b, x0, tol), and return their results.

        With complete factors on one process, all right-hand sides are first refined together, unless a callback must be
        called after each iteration.
        """
        self._finished = results = list[SolveResult]()
        for first in range(0, len(systems), TOGETHER):
            group = systems[first : first + TOGETHER]
            for system, x in zip(group, self._refined_together(group)):
                results.append(self.solve(*system) if x is None else self.solve(system[0], x, system[2], SOLVES))
        return results

    def _refined_together(self, systems: Sequence[tuple[Vector, Vector, float]]) -> list[Vector | None]:
        """Return solutions from SOLVES steps of refinement with complete factors, or None to start from x0."""
        xp, factors, options = self._kernels.xp, self.problem.factors, self._options
        columns = [j for j, (b, x0, _) in enumerate(systems) if xp.any(b != 0) and not xp.any(x0 != 0)]
        starts: list[Vector | None] = [None] * len(systems)
        can = self.group.is_serial and self._kernels.device is None and options.maxiter > SOLVES
        if factors is None or not can or len(columns) < 2 or options.callback is not None:
            return starts
        scaling = self.plan.scaling
        scaled = [scaling.right_hand_side(self._permuted(systems[j][0])) for j in columns]
        with self.spans("together"):
            Y = refined(self._matrix.A, factors, xp.stack([b for b, _ in scaled], axis=1), SOLVES)
        for j, y, (_, k) in zip(columns, Y.T, scaled):
            x = scaling.solution(y, k)
            if xp.all(xp.isfinite(x)):
                starts[j] = x
        return starts

    def _permuted(self, b: Vector) -> Vector:
        """Return b in the order of the permuted rows of A."""
        return b if self._rows is None else self._kernels.xp.take(b, self._rows)

    def solve(self, b: Vector, x0: Vector, tol: float, steps: int = 0) -> SolveResult:
        """Solve for one right-hand side and return the result with the best x found.

        `steps` is the number of steps that have led to x0.
        """
        xp, group, scaling = self._kernels.xp, self.group, self.plan.scaling
        if group.all(not xp.any(b != 0)):
            return SolveResult(xp.zeros_like(b), history=[0.0])
        b_s, k = scaling.right_hand_side(self._permuted(b))
        self._exponent = k
        result = SolveResult(x0, steps=steps, cycles=steps)
        self._begin(b_s, scaling.start(x0, k))
        if steps:
            self.problem.system.remember(0.0, 1.0)  # these steps started from zero
        ending = self._rounds(result, b_s, tol)
        while (ending is Ending.STALLED_IN_LOW_PRECISION and self._promote_to_fp64(result, b_s)) or (
            ending in (Ending.STALLED, Ending.SLOW, Ending.NOT_FINITE) and self._change_to_factors(b_s, ending)
        ):
            ending = self._rounds(result, b_s, tol)
        system, self._rounded_terms = self.problem.system, 0.0
        if ending is not Ending.CONVERGED:
            ending = self._go_back(b_s, ending)
        result.residual = self._relative(system.residual_vector, b_s)
        y = self._matrix.unordered(system.solution)
        result.x = scaling.solution(y, k)
        if not group.all(xp.all(xp.isfinite(result.x))):
            result.residual, result.finite = inf, False
            result.note = "x is beyond the range of fp64: scale A up, or b down"
        else:
            returned = scaling.start(result.x, k)
            if not group.all(xp.all(returned == y)):
                result.residual, ending = self._residual_of(returned, b_s), Ending.ROUNDED_X
            if not result.residual <= tol:
                result.note = self._advice(result, ending, y, b_s)
        if ending is Ending.NOT_FINITE:
            self._restart_problem()
        return result

    def _go_back(self, b: Vector, ending: Ending) -> Ending:
        """Restore the x with the smallest residual, or one that solves all rows, and return the ending. Collective.

        If rows differ in scale, an x that solves all rows to rounding errors may have a larger residual than x = 0. If
        the x with the smallest residual does not solve all rows, but the best x of the scaled system does, the latter
        is restored.
        """
        system, solves_rows = self.problem.system, False
        if self.plan.scaling.active:
            y = self._matrix.unordered(system.go_back())
            solves_rows = self._row_error(y, b) <= SOLVED_ROWS
            if ending is Ending.STALLED and is_least(
                self._relative(system.residual_vector, b), terms := self._terms(y, b)
            ):
                self._rounded_terms = terms
        y = self._matrix.unordered(system.go_back(unscaled=True))
        if solves_rows and self._row_error(y, b) > SOLVED_ROWS:
            system.go_back()
            return Ending.SOLVED_BY_ROWS
        return ending

    def _begin(self, b: Vector, y: Vector) -> None:
        """Start a solve for another b from the initial guess y; both vectors are in the user's order of rows."""
        self.problem.system.begin(self._matrix.ordered(b), self._matrix.ordered(y))

    def _continue_from(self, b: Vector, y: Vector, best: tuple[Vector, float]) -> None:
        """Start again from y for the same b; `best` is the x with the smallest unscaled residual and this residual."""
        self._begin(b, y)
        x, unscaled = best
        self.problem.system.remember(self._matrix.ordered(x), unscaled)

    def _best_so_far(self) -> tuple[Vector, float]:
        """Return the x with the smallest unscaled residual so far, in the user's order of rows, and this residual."""
        x, unscaled = self.problem.system.best_unscaled
        return self._matrix.unordered(x), unscaled

    def _residual_at_start(self, result: SolveResult, b: Vector) -> float:
        """Return the norm of the residual of a round; replace x by zero if it is a useless x0. Collective."""
        system = self.problem.system
        size, limit = system.residual(), FARTHEST_START * system.norm_of_b()
        if result.history or size <= limit:
            return size
        self.notes.append(f"x0 was replaced by zero, because ||b - A x0|| exceeds {FARTHEST_START:.0e}·||b||")
        self._begin(b, self._kernels.xp.zeros_like(b))
        return system.residual()

    def _residual_of(self, y: Vector, b: Vector) -> float:
        """Return ||b - A x|| / ||b|| of the unscaled system for a scaled solution y."""
        self._begin(b, y)
        self.problem.system.residual()
        return self._relative(self.problem.system.residual_vector, b)

    def _rounds(self, result: SolveResult, b: Vector, tol: float) -> Ending:
        """Run cycles from the current x until the solve converges or needs another method, and return the reason."""
        system, low, restart = self.problem.system, self._formats.vectors != "fp64", self.plan.restart
        b_norm, target, first, best_unscaled = system.norm_of_b(), tol, len(result.history), inf
        stall = Ending.STALLED_IN_LOW_PRECISION if low else Ending.STALLED
        callback = self._options.callback or (lambda residual: None)
        while result.steps < self._options.maxiter:
            before = self._residual_at_start(result, b) / b_norm
            aim = max(target if isinf(best_unscaled) else 0.0, self._formats.gain * before)
            max_steps = min(restart, self._options.maxiter - result.steps)
            solve = gmres_ir(system, b_norm, restart=restart, max_steps=max_steps, tolerance=aim)
            result.add(solve)
            self._steps += solve.steps
            self.group.collectively(partial(callback, solve.residual))
            if not isfinite(solve.residual) or overflowed(solve):
                return Ending.STALLED_IN_LOW_PRECISION if low else Ending.NOT_FINITE
            if solve.residual <= target or isfinite(best_unscaled):
                unscaled = self._relative(system.residual_vector, b)
                if unscaled <= tol:
                    return Ending.CONVERGED
                if target <= LEAST:  # rows that are large in the units of A may be small in the scaled system
                    if isinf(unscaled) or not unscaled <= 0.5 * best_unscaled:
                        return Ending.DIFFERENT_SCALES
                    best_unscaled = unscaled
                target = max(LEAST, 0.5 * target * min(1.0, tol / unscaled))
            elif (low and not _worthwhile(before, solve)) or stalled(result.history[first:]):
                return stall
            elif self._is_slow():
                return Ending.SLOW
        return Ending.OUT_OF_STEPS

    def _is_slow(self) -> bool:
        """Return whether the steps so far have taken about as long as a factorization takes."""
        if not self._may_factor or self.plan.choice.name == "lu" or self._steps < MIN_STEPS:
            return False
        step = (STEP_OF_ENTRY * self.nnz + STEP_OF_ROW * self.n) / self.group.comm.size
        entries, _ = self._fill()
        return self._steps * step >= work_of(self.n, self.nnz, entries)

    def _fill(self) -> tuple[float, str]:
        """Return an estimate of the number of entries of the factors, or infinity and the reason why it is unknown."""
        if self._estimated_fill is None:
            self._estimated_fill = estimated_fill(self._matrix.A, self.group)
        return self._estimated_fill

    def _relative(self, r: Vector, b: Vector) -> float:
        """Return ||b - A x|| / ||b|| of the unscaled system, given a residual in the order of the matrix."""
        return self.plan.scaling.relative(self._matrix.unordered(r), b)

    def _promote_to_fp64(self, result: SolveResult, b: Vector) -> bool:
        """Continue in fp64 from the best x so far, for this and all later right-hand sides, and return True."""
        y, best = self._matrix.unordered(self.problem.system.go_back()), self._best_so_far()
        of_scaled = " of the scaled system" if self.plan.scaling.active else ""
        self.notes.append(
            f"with values in {self._formats.values} and vectors in {self._formats.vectors} {self.title} stagnated: "
            f"after {result.steps} iterations the residual{of_scaled} was {min(result.history):.1e}; it continued in "
            "fp64"
        )
        self._formats = Formats(self._matrix.outer.A.values, "fp64", True)
        self.fallback = True
        self._compile()
        self._matrix.promote_to_fp64()
        self._restart_problem()
        self._continue_from(b, y, best)
        return True

    def _change_to_factors(self, b: Vector, ending: Ending) -> bool:
        """Continue with complete factors, the last resort of `auto`; return whether the solve can continue.

        Return False if the residual is as small as fp64 permits, because factors would not reduce it.
        """
        name, A = self.plan.choice.name, self._matrix.A
        if not self._may_factor or name == "lu":
            return False
        y, best = self._matrix.unordered(self.problem.system.go_back()), self._best_so_far()
        if ending is Ending.STALLED and is_least(self._residual_of(y, b), self._terms(y, b)):
            self._continue_from(b, y, best)
            return False
        self._may_factor, begin = False, time.perf_counter()
        entries, problem = self._fill()
        factors = None
        if not problem:
            factors, problem = factored(A, self._formats.vectors, self.group, entries)
        if factors is None:
            self.notes.append(f"complete factors, the last resort, are not possible: {problem}")
            self._continue_from(b, y, best)
            return ending is Ending.SLOW
        how = {Ending.SLOW: "was slow", Ending.STALLED: "stagnated"}.get(ending, "overflowed")
        room = size_text(int(ENTRY_BYTES * entries))
        reason = f"the last resort, of at most {room}: after {self._steps} steps {self.title} with {name} {how}"
        del self.problem
        self._install(PreconditionerSetup(Choice("lu", reason), (), factors, "factor", time.perf_counter() - begin))
        self._continue_from(b, y, best)
        return True

    def condition(self) -> float | None:
        """Return an estimate of the condition number of the scaled matrix if its factors indicate that it is large."""
        factors, A = self.problem.factors, self._matrix.A
        if factors is None:
            return None
        with self.spans("estimate"):
            if not suspicious(condition_bound(factors, A, self.group), factors.vectors):
                return None
            if factors.vectors != "fp64":
                if self._solves_for_probe(A):
                    return None
                factors, problem = factored(A, "fp64", self.group)
                if factors is None:
                    self.notes.append(f"A may be numerically singular, but there are no factors in fp64: {problem}")
                    return None
            return condition_estimate(factors, A, self.group)

    def _solves_for_probe(self, A: Csr) -> bool:
        """Solve A z = s for a random s, and return whether the size of z indicates a condition number far below 1/u."""
        xp, group, first = self._kernels.xp, self.group, self.group.first
        s = xp.asarray(probe_vector(self.n)[first : first + A.shape[0]])
        self._begin(s, xp.zeros_like(s))
        system, restart = self.problem.system, self.plan.restart
        tol = PROBE_RESIDUAL / sqrt(self.n)
        solve = gmres_ir(system, system.norm_of_b(), restart=restart, max_steps=2 * restart, tolerance=tol)
        size = group.max_abs(system.solution, xp)
        return solve.residual <= tol and not suspicious(0.5 * largest_row(A, group) * size, "fp64")

    def _is_limited_by_fp32(self, result: SolveResult) -> bool:
        """Return False, because a matrix is multiplied in fp64 in residuals. Collective."""
        return False

    def _terms(self, y: Vector, b: Vector) -> float:
        """Return the size of the terms of b - A y, relative to b."""
        return self.plan.scaling.relative_terms(self._matrix.A, y, b)

    def _row_error(self, y: Vector, b: Vector) -> float:
        """Return the largest |b - A y|_i / (|A||y| + |b|)_i for the y whose residual was computed last. Collective."""
        r = self._matrix.unordered(self.problem.system.residual_vector)
        return self.plan.scaling.row_error(self._matrix.A, y, b, r)

    def _advice(self, result: SolveResult, ending: Ending, y: Vector, b: Vector) -> str:
        """Return a text that explains why the residual is not smaller, and suggests a remedy."""
        if ending is Ending.SOLVED_BY_ROWS:
            return (
                f"x solves all rows: |b - A x| is at most {self._row_error(y, b):.1e} of |A||x| + |b| in each row; but "
                "the rows of A and b differ so much in scale that the norm of b - A x is not small; scale the rows of "
                "A and b to similar sizes"
            )
        terms = self._terms(y, b)
        if ending is not Ending.ROUNDED_X and is_least(result.residual, terms):
            least = f"use rtol={2 * result.residual:.0e} or more, or " if 2 * result.residual < 1.0 else ""
            return (
                f"the residual is as small as fp64 makes it for this x: |A||x| + |b| is {terms:.1e} times b; {least}"
                f"scale the rows of A and b to similar sizes"
            )
        if ending is Ending.STALLED and self._is_limited_by_fp32(result):
            return products_in_fp32(result.residual)
        if ending is Ending.STALLED and self._rounded_terms:
            return (
                "the residual of the best x of the scaled system is as small as fp64 makes it: |A||x| + |b| is "
                f"{self._rounded_terms:.1e} times b, and the returned x has a smaller residual; scale the rows of A "
                "and b to similar sizes"
            )
        remedies = [*self._longer_cycles(result), *self.remedies]
        return {
            Ending.OUT_OF_STEPS: (
                f"maxiter={self._options.maxiter} steps were used{use_one_of('a larger maxiter', *remedies)}"
            ),
            Ending.DIFFERENT_SCALES: (
                "the rows of A and b differ so much in scale that no residual is small in all of them"
            ),
            Ending.STALLED: f"{STALL_CYCLES} cycles gained less than {1 - STALL:.1%}{use_one_of(*remedies)}",
            Ending.STALLED_IN_LOW_PRECISION: f"{self.title} stagnated in fp32{use_one_of(*self.remedies)}",
            Ending.ROUNDED_X: "x is below the range in which fp64 has all its digits: scale A down, or b up",
            Ending.NOT_FINITE: "the computation exceeded the range of fp64",
        }[ending]


def products_in_fp32(residual: float) -> str:
    """Return the text that products in fp32 limit the residual."""
    return (
        f"the products A x have only the digits of fp32, which limits the residual; use rtol={2 * residual:.0e} or "
        "more, or a function that computes A x in fp64"
    )


def use_one_of(*remedies: str) -> str:
    """Return the part of a message that advises to use one of these remedies; empty without remedies."""
    return f"; use {alternatives(remedies)}" if remedies else ""


def is_least(residual: float, terms: float) -> bool:
    """Return whether a residual is as small as fp64 permits."""
    return isfinite(terms) and residual <= ROUNDINGS * PRECISIONS["fp64"].u * terms


def _worthwhile(before: float, solve: Solve) -> bool:
    """Return whether a round gained enough of the expected digits."""
    expected = solve.estimates[-1]
    if not expected > 0:
        return solve.residual < before
    return log(before / solve.residual) >= WORTHWHILE * log(before / expected)


def _scaling(kernels: SparseKernels, A: Csr, precision: str, group: RankGroup) -> Equilibration:
    """Return a scaling by powers of two if row or column sums, or a 16-bit format, require it. Collective."""
    if balanced(A, group) and not out_of_range(kernels, rows_of(kernels, A), precision, group):
        return Equilibration(group=group)
    return equilibrate(A, group)
