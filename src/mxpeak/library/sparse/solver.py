"""One matrix set up, and rounds of GMRES for one right-hand side after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, isfinite, isinf, log, sqrt
from typing import Any

import numpy as np

from mxpeak.errors import UsageError
from mxpeak.kernels.contract.sparse import SparseKernels, Vector
from mxpeak.library.inputs import on_host
from mxpeak.library.sparse import auto_preconditioner
from mxpeak.library.sparse.aggregation import aggregated
from mxpeak.library.sparse.amg import COMPLEXITY, MOST_RANGE, Grid, complexity, hierarchy
from mxpeak.library.sparse.auto_preconditioner import Choice
from mxpeak.library.sparse.condition import estimated, largest_row, probe, probed_by, suspicious
from mxpeak.library.sparse.distributed_amg import SharedGrid, overlapping, shared_hierarchy, unwanted
from mxpeak.library.sparse.factors import ENTRY_BYTES, Factors, work_of
from mxpeak.library.sparse.formats import Formats, formats, out_of_range
from mxpeak.library.sparse.gathered_lu import shared_factors, shared_fill
from mxpeak.library.sparse.inputs import Csr, with_diagonal
from mxpeak.library.sparse.rank_group import SERIAL, RankGroup
from mxpeak.library.sparse.scaling import Scaling, balanced, equilibration
from mxpeak.library.sparse.system import Plan, Problem, compile_for
from mxpeak.precision import PRECISIONS
from mxpeak.records import size_text
from mxpeak.solvers.krylov import STALL, STALL_CYCLES, Solve, gmres_ir, stalled
from mxpeak.spans import Spans

#: Steps before a restart, and where many are needed and each M^-1 takes about as long as its part of the basis: how
#: many are lost by restarts depends on chance, and so on the number of ranks.
RESTART, RESTARTS = 30, {"sgs": 50}
#: A round of steps in a low precision must gain this share of the digits that it promised, else fp64 takes over.
WORTHWHILE = 0.25
#: No residual is asked for below this, relative to the right-hand side as scaled.
LEAST = 2.0**-52
#: `auto` switches to a factorization after LEAST_STEPS steps or more, when the steps have taken about as long as the
#: factorization would. A step counts as 4 operations per entry and 90 per row, each as slow as two of SuperLU's.
LEAST_STEPS, STEP_OF_ENTRY, STEP_OF_ROW = 150, 8.0, 180.0
#: The residual, times sqrt(n), to which GMRES solves for random numbers: well below one null vector's part of them.
PROBE_RESIDUAL = 2.0**-6
#: A residual of so many roundings of the largest terms in b - A x is as small as fp64 makes it.
ROUNDINGS = 8.0


@dataclass(slots=True)
class SolveResult:
    """One right-hand side's solution; `note` says why it is not better, `finite` whether x is."""

    x: Vector
    residual: float = 0.0
    steps: int = 0
    cycles: int = 0
    history: list[float] = field(default_factory=list)
    note: str = ""
    finite: bool = True

    def add(self, done: Solve) -> None:
        """Take in a round."""
        self.history += done.history[1:] if self.history else done.history
        self.steps += done.steps
        self.cycles += len(done.cycles)


@dataclass(frozen=True, slots=True)
class PreconditionerSetup:
    """What was made of the matrix before it was stored, under the name of a phase; `choice` says what came of it."""

    choice: Choice
    grids: Sequence[SharedGrid | Grid] = ()
    factors: Factors | None = None
    name: str = ""
    time_s: float = 0.0


class Solver:
    """One matrix, or a rank's rows of one, set up for any number of right-hand sides.  All of it is collective."""

    def __init__(
        self,
        kernels: SparseKernels,
        A: Csr,
        precision: str,
        preconditioner: Any,
        storage: str,
        smoother: str,
        restart: int | None,
        everybody: RankGroup = SERIAL,
    ):
        begin = time.perf_counter()
        self.spans, self.notes, self.fallback = Spans(stopwatch=kernels.stopwatch), list[str](), False
        self.everybody, self._kernels, self._restart = everybody, kernels, restart
        self.n, self.nnz = int(everybody.sum(A.shape[0])), int(everybody.sum(A.nnz))
        choice = auto_preconditioner.preconditioner(kernels, A, preconditioner, everybody)
        self._rows = None if choice.rows is None else kernels.xp.asarray(choice.rows)
        A = A if choice.rows is None else type(A)(A[choice.rows])
        with self.spans("scale"):
            scaling = _scaling(kernels, A, precision, everybody)
            A_s = scaling.matrix(A)
        if choice.name not in auto_preconditioner.DIVIDING:
            A_s = with_diagonal(A_s)
        self._precision, self._formats = precision, self._suited(A_s, precision, choice)
        self.notes += [self._formats.note] if self._formats.note else []
        self._smoother = smoother
        self.plan = Plan(choice, self._sweeps(choice), storage, self._longest_cycle(choice), scaling.on(kernels.xp))
        automatic = isinstance(preconditioner, str) and preconditioner == "auto"
        self._spent, self._may_factor = 0, automatic
        self._filled: tuple[float, str] | None = None
        make = partial(_parts, kernels, A, A_s, choice, scaling, self._formats.vectors, automatic)
        on_host_alone = everybody.alone and kernels.device is None
        self._complete(A_s, self._beside(make, A_s) if on_host_alone else self._before(make, A_s))
        self.setup_s = time.perf_counter() - begin

    def _suited(self, A: Csr, precision: str, choice: Choice) -> Formats:
        """The formats of the precision; factors are so near to A that rounding A would show, and products so few."""
        rows = _rows(self._kernels, A)
        return formats(self._kernels, rows, precision, self.everybody, whole=choice.name == "lu")

    def _sweeps(self, choice: Choice) -> str:
        """The sequence of rows in sweeps: the natural one suits those that end at the borders of ranks."""
        if self._smoother != "auto":
            return self._smoother
        return "coloured" if self.everybody.alone or choice.name == "amg" else "natural"

    def _longest_cycle(self, choice: Choice) -> int:
        """Steps before a restart, where the user has no say."""
        return min(self._restart or RESTARTS.get(choice.name, RESTART), self.n)

    def _beside(self, make: Callable[[], PreconditionerSetup], A: Csr) -> PreconditionerSetup:
        """Make factors and levels while another thread stores the matrix.

        Factors are made on this one, which will drop them: on any other SciPy gives back nothing of what SuperLU took.
        """
        compile_for(self._kernels, self.plan, self._formats)
        with ThreadPoolExecutor(1) as beside:
            problem = beside.submit(self._stored, A)
            parts = make()
        self.problem = problem.result()
        return parts

    def _before(self, make: Callable[[], PreconditionerSetup], A: Csr) -> PreconditionerSetup:
        """Make levels and then store the matrix: of ranks both communicate, and a device is this thread's."""
        parts = make()
        compile_for(self._kernels, self.plan, self._formats)
        self.problem = self._stored(A)
        return parts

    def _complete(self, A: Csr, parts: PreconditionerSetup) -> None:
        """Put the preconditioner before the matrix, stored once more if it has become another one."""
        if parts.name:
            self.spans.add(parts.name, parts.time_s)
        choice, grids = parts.choice, tuple(parts.grids)
        self.plan = replace(
            self.plan,
            choice=choice,
            smoother=self._sweeps(choice),
            restart=self._longest_cycle(choice),
            grids=grids,
            factors=parts.factors,
            overlap=None,
        )
        if choice.name == "sgs" and not self.everybody.alone:
            with self.spans("overlap"):
                self.plan = replace(self.plan, overlap=overlapping(A, self.everybody))
        if parts.choice.name != self.problem.preconditioner:
            del self.problem
            if not self.fallback:
                self._formats = self._suited(A, self._precision, choice)
            compile_for(self._kernels, self.plan, self._formats)
            self.problem = self._stored(A)
        self.everybody.alike(lambda: self.problem.complete(self.plan))

    def _stored(self, A: Csr) -> Problem:
        """The matrix in the forms of the plan."""
        return self.everybody.alike(lambda: Problem(self._kernels, A, self.plan, self._formats, self.spans))

    @property
    def device(self) -> str:
        """Where it solves, as torch says it: cpu, cuda:0 …"""
        return "cpu" if self._kernels.device is None else str(self._kernels.device.where)

    def solve(
        self, b: Vector, x0: Vector, tol: float, most: int, heard: Callable[[float], object] = lambda residual: None
    ) -> SolveResult:
        """x for one right-hand side, or the best x so far; `heard` is told the relative residual after each cycle."""
        xp, everybody = self._kernels.xp, self.everybody
        if everybody.all(not xp.any(b != 0)):
            return SolveResult(xp.zeros_like(b), history=[0.0])
        b = b if self._rows is None else xp.take(b, self._rows)
        scaling = self.plan.scaling
        b_s, k = scaling.right_hand_side(b)
        done = SolveResult(x0)
        self._begin(b_s, scaling.start(x0, k))
        ended = self._rounds(done, b_s, tol, most, heard)
        while (ended == "coarse" and self._widen(done, b_s)) or (
            ended in ("stalled", "costly", "not finite") and self._turn_to_factors(b_s, ended)
        ):
            ended = self._rounds(done, b_s, tol, most, heard)
        system = self.problem.system
        if ended != "converged":
            system.go_back_unscaled()
        done.residual = self._relative(system.residual_vector, b_s)
        y = self.problem.unordered(system.solution)
        with np.errstate(over="ignore"):
            done.x = scaling.solution(y, k)
        if not everybody.all(xp.all(xp.isfinite(done.x))):
            done.residual, done.finite = inf, False
            done.note = "x is beyond the range of fp64: scale A up, or b down"
        else:
            returned = scaling.start(done.x, k)
            if not everybody.all(xp.all(returned == y)):
                done.residual, ended = self._residual_of(returned, b_s), "rounded"
            if not done.residual <= tol:
                done.note = self._why(done, ended, y, b_s, most)
        if ended == "not finite":
            self.problem.start_over()
        return done

    def _begin(self, b: Vector, y: Vector) -> None:
        """Let the system be that of another right-hand side, from y on, both in the sequence of the user's rows."""
        self.problem.system.begin(self.problem.ordered(b), self.problem.ordered(y))

    def _residual_of(self, y: Vector, b: Vector) -> float:
        """Return ||b - A x|| / ||b|| of the unscaled system for one y.  Collective."""
        self._begin(b, y)
        self.problem.system.residual()
        return self._relative(self.problem.system.residual_vector, b)

    def _rounds(self, done: SolveResult, b: Vector, tol: float, most: int, heard: Callable[[float], object]) -> str:
        """Continue from the system's x; return how it ended.

        That is: converged, steps, stalled, scales, coarse, costly or not finite.
        """
        system, low, restart = self.problem.system, self._formats.vectors != "fp64", self.plan.restart
        b_norm, target, first, least = system.norm_of_b(), tol, len(done.history), inf
        while done.steps < most:
            before = system.residual() / b_norm
            aim = max(target if isinf(least) else 0.0, self._formats.gain * before)
            made = gmres_ir(system, b_norm, restart=restart, most=min(restart, most - done.steps), tolerance=aim)
            done.add(made)
            self._spent += made.steps
            self.everybody.alike(partial(heard, made.residual))
            if not isfinite(made.residual):
                return "coarse" if low else "not finite"
            if made.residual <= target or isfinite(least):
                unscaled = self._relative(system.residual_vector, b)
                if unscaled <= tol:
                    return "converged"
                if target <= LEAST:  # rows that count in A's own units may be small in the scaled system
                    if isinf(unscaled) or not unscaled <= 0.5 * least:
                        return "scales"
                    least = unscaled
                target = max(LEAST, 0.5 * target * min(1.0, tol / unscaled))
            elif low and not _worthwhile(before, made):
                return "coarse"
            elif stalled(done.history[first:]):
                return "coarse" if low else "stalled"
            elif self._costly():
                return "costly"
        return "steps"

    def _costly(self) -> bool:
        """Return whether the steps so far have taken about as long as factors would.  Collective."""
        if not self._may_factor or self.plan.choice.name == "lu" or self._spent < LEAST_STEPS:
            return False
        step = (STEP_OF_ENTRY * self.nnz + STEP_OF_ROW * self.n) / self.everybody.comm.size
        entries, _ = self._fill()
        return self._spent * step >= work_of(self.n, self.nnz, entries)

    def _fill(self) -> tuple[float, str]:
        """Return about how many entries factors have, and why that is not known, if it is not.  Collective."""
        if self._filled is None:
            self._filled = shared_fill(self.problem.A, self.everybody)
        return self._filled

    def _relative(self, r: Vector, b: Vector) -> float:
        """Return ||b - A x|| / ||b|| of the unscaled system, from a residual in the order of the problem's rows."""
        return self.plan.scaling.relative(self.problem.unordered(r), b)

    def _widen(self, done: SolveResult, b: Vector) -> bool:
        """Continue in fp64 from the best x so far, and stay there for the right-hand sides to come."""
        y = self.problem.unordered(self.problem.system.go_back())
        self.notes.append(
            f"with values in {self._formats.values} and vectors in {self._formats.vectors} GMRES stagnated: after "
            f"{done.steps} iterations the residual was {min(done.history):.1e}; it continued in fp64"
        )
        self._formats = Formats(self.problem.outer.A.values, "fp64", True)
        self.fallback = True
        compile_for(self._kernels, self.plan, self._formats)
        self.problem.widen()
        self._begin(b, y)
        return True

    def _turn_to_factors(self, b: Vector, ended: str) -> bool:
        """Continue with complete factors, the last resort of `auto`; return False if it is not possible.  Collective.

        Not where the residual is as small as fp64 makes it, which factors cannot change.
        """
        name, A = self.plan.choice.name, self.problem.A
        if not self._may_factor or name == "lu":
            return False
        y = self.problem.unordered(self.problem.system.go_back())
        if ended == "stalled" and self._least(self._residual_of(y, b), self._terms(y, b)):
            return False
        self._may_factor, begin = False, time.perf_counter()
        entries, problem = self._fill()
        factors = None
        if not problem:
            factors, problem = shared_factors(A, self._formats.vectors, self.everybody, entries)
        if factors is None:
            self.notes.append(f"complete factors, the last resort, are not possible: {problem}")
            return ended == "costly"
        how = {"costly": "was slow", "stalled": "stagnated"}.get(ended, "overflowed")
        room = size_text(int(ENTRY_BYTES * entries))
        reason = f"the last resort, of at most {room}: after {self._spent} steps GMRES with {name} {how}"
        self._complete(A, PreconditionerSetup(Choice("lu", reason), (), factors, "factor", time.perf_counter() - begin))
        self._begin(b, y)
        return True

    def _terms(self, y: Vector, b: Vector) -> float:
        """Return how many times larger than b the terms of b - A x are: || |A||x| + |b| || / ||b||.  Collective."""
        size = np.abs(on_host(y))
        with np.errstate(all="ignore"):
            sizes = abs(self.problem.A) @ self.everybody.with_halo(size) + np.abs(on_host(b))
        return self.plan.scaling.relative(self._kernels.xp.asarray(sizes), b)

    @staticmethod
    def _least(residual: float, terms: float) -> bool:
        """Return whether a residual is as small as fp64 makes it."""
        return isfinite(terms) and residual <= ROUNDINGS * PRECISIONS["fp64"].u * terms

    def condition(self) -> float | None:
        """Return an estimate of the scaled matrix's condition, if its factors show that it is large.  Collective."""
        factors, A = self.problem.factors, self.problem.A
        if factors is None:
            return None
        with self.spans("estimate"):
            if not suspicious(probed_by(factors, A, self.everybody), factors.vectors):
                return None
            if factors.vectors != "fp64":
                if self._solves_for_probe(A):
                    return None
                wide, problem = shared_factors(A, "fp64", self.everybody)
                if wide is None:
                    self.notes.append(f"A may be numerically singular, but there are no factors in fp64: {problem}")
                    return None
                factors = wide
            return estimated(factors, A, self.everybody)

    def _solves_for_probe(self, A: Csr) -> bool:
        """Return whether GMRES solves for random numbers, so that the condition is far from 1/u.  Collective."""
        xp, everybody, first = self._kernels.xp, self.everybody, self.everybody.first
        s = xp.asarray(probe(self.n)[first : first + A.shape[0]])
        self._begin(s, xp.zeros_like(s))
        system, restart = self.problem.system, self.plan.restart
        tol = PROBE_RESIDUAL / sqrt(self.n)
        made = gmres_ir(system, system.norm_of_b(), restart=restart, most=2 * restart, tolerance=tol)
        size = everybody.max_abs(system.solution, xp)
        return made.residual <= tol and not suspicious(0.5 * largest_row(A, everybody) * size, "fp64")

    def _why(self, done: SolveResult, ended: str, y: Vector, b: Vector, most: int) -> str:
        terms = self._terms(y, b)
        if ended != "rounded" and self._least(done.residual, terms):
            least = f"use rtol={2 * done.residual:.0e} or more, or " if 2 * done.residual < 1.0 else ""
            return (
                f"the residual is as small as fp64 makes it for this x: |A||x| + |b| is {terms:.1e} times b; {least}"
                f"scale the rows of A and b to similar sizes"
            )
        return {
            "steps": f"maxiter={most} steps were used; use a larger maxiter{self._instead()}",
            "scales": "the rows of A and b differ so much in scale that no residual is small in all of them",
            "stalled": f"{STALL_CYCLES} cycles gained less than {1 - STALL:.1%}{self._longer()}{self._instead()}",
            "coarse": f"GMRES stagnated in fp32{self._instead()}",
            "rounded": "x is below the range in which fp64 has all its digits: scale A down, or b up",
            "not finite": "the computation exceeded the range of fp64",
        }[ended]

    def _longer(self) -> str:
        """Return the advice to restart later, if that is possible."""
        return f"; use a restart larger than {self.plan.restart}" if self.plan.restart < self.n else ""

    def _instead(self) -> str:
        """Return the advice to use another preconditioner, if it is not complete factors already."""
        if self.plan.choice.name == "lu":
            return ""
        return ', or preconditioner="lu", complete factors'


def _worthwhile(before: float, made: Solve) -> bool:
    """Whether a round gained enough of what it promised, in digits."""
    promised = made.estimates[-1]
    if not promised > 0:
        return made.residual < before
    return log(before / made.residual) >= WORTHWHILE * log(before / promised)


def _rows(kernels: SparseKernels, A: Csr) -> Any:
    return kernels.rows_of(A.indptr, A.indices, A.data, A.shape[0], A.shape[1] - A.shape[0])


def _scaling(kernels: SparseKernels, A: Csr, precision: str, everybody: RankGroup) -> Scaling:
    """Powers of two where sums of rows or columns ask for them, or a 16-bit format."""
    if balanced(A, everybody) and not out_of_range(kernels, _rows(kernels, A), precision, everybody):
        return Scaling(everybody=everybody)
    return equilibration(A, everybody)


def _parts(
    kernels: SparseKernels, A: Csr, A_s: Csr, choice: Choice, scaling: Scaling, vectors: str, automatic: bool
) -> PreconditionerSetup:
    """Factors or levels of A and of A_s = D_r A D_c, if that is what was chosen."""
    begin = time.perf_counter()
    if choice.name == "lu":
        choice, factors = _factors(A_s, choice, vectors, automatic, scaling.everybody)
        return PreconditionerSetup(choice, (), factors, "factor", time.perf_counter() - begin)
    if choice.name == "amg":
        choice, grids = _hierarchy(kernels, A, A_s, choice, scaling, automatic)
        return PreconditionerSetup(choice, grids, None, "hierarchy", time.perf_counter() - begin)
    return PreconditionerSetup(choice)


def _factors(
    A: Csr, choice: Choice, vectors: str, automatic: bool, everybody: RankGroup
) -> tuple[Choice, Factors | None]:
    """SuperLU's factors; where there are none, `auto` takes Gauss-Seidel, or nothing before zeros on the diagonal."""
    factors, problem = shared_factors(A, vectors, everybody, choice.entries)
    if factors is not None:
        return choice, factors
    if not automatic:
        raise UsageError(f'preconditioner="lu" is not possible for this matrix: {problem}; use preconditioner="auto"')
    full = everybody.all(A.diagonal().all())
    return replace(choice, name=auto_preconditioner.sweeping(everybody) if full else "none", reason=problem), None


def _hierarchy(
    kernels: SparseKernels, A: Csr, A_s: Csr, choice: Choice, scaling: Scaling, automatic: bool
) -> tuple[Choice, Sequence[SharedGrid | Grid]]:
    """PyAMG's levels; where they will not do, `auto` takes Gauss-Seidel."""
    grids: Sequence[SharedGrid | Grid] = []
    if scaling.active and scaling.range > MOST_RANGE:
        problem = f"the scales of its rows or columns spread over 2^{scaling.range}, too far for algebraic multigrid"
    elif not scaling.everybody.alone:
        grids, problem = shared_hierarchy(kernels, A, A_s, scaling)
        if problem:
            grids, problem = aggregated(A, A_s, scaling, scaling.everybody)
    else:
        whole, problem = _levels(A, A_s, scaling)
        grids = whole
        if automatic and whole and complexity(whole) > COMPLEXITY:
            problem = f"PyAMG's levels have {complexity(whole):.1f} times the entries of A"
    if not problem:
        return choice, grids
    if not automatic:
        raise UsageError(f'preconditioner="amg" is not possible for this matrix: {problem}; use preconditioner="gs"')
    return replace(choice, name=auto_preconditioner.sweeping(scaling.everybody), reason=problem), []


def _levels(A: Csr, A_s: Csr, scaling: Scaling) -> tuple[list[Grid], str]:
    """One process's: by aggregation where that takes less time and does, else Ruge and Stüben's."""
    if unwanted(A, scaling):
        grids, problem = aggregated(A, A_s, scaling, scaling.everybody)
        if not problem:
            return [grid for grid in grids if isinstance(grid, Grid)], ""
    return hierarchy(A, A_s, scaling)
