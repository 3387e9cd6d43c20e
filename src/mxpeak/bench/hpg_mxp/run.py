"""HPG-MxP: GMRES-IR with multigrid on the 27-point problem, in mixed and in double precision.

problem     27 points per row, 26 and -1 (--nonsymmetric: -1.5 below and -0.5 above in z), b = A·1, initial x = 0; four
            levels built by the same stencil; one forward Gauss-Seidel sweep before and after each correction, and on
            the coarsest level; --matrix: the rows of a file, with one level, so one sweep is the preconditioner
validation  double GMRES to 1e-9 in n_d iterations, GMRES-IR to the same in n_ir; penalty = min(1, n_d/n_ir)
            standard: on up to --validation-ranks ranks; fullscale: on all ranks, and GMRES-IR must reach the residual
            that double GMRES reached in 10,000 iterations; both: the standard validation determines the penalty
mixed       solves of 300 iterations from x = 0 until --rt has passed, after an uncounted restart cycle
double      the same in fp64, as the reference
between     double with the stored values of the mixed solver, and mixed with fp32 values: they separate the effect of
            the precision from that of values stored in fewer bits without loss; not with --quick
counted     flops by the reference's formula, and also by ORNL's; `phases` has each motif's own flops and minimum bytes
figure      (flops of the mixed solves / their time) · penalty
standalone  --run-type mixed or double: only the timed solves of one solver, without a rating
limit       read bandwidth: all ranks read the values of the matrix at the same time, in the same process, before and
            after the solves

Source: Yamazaki et al. 2022; Kashi et al. 2025 (arXiv 2507.11512); the benchmark's reference code and its slides.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any, Unpack

from mxpeak.bench.dry_run import DryRun
from mxpeak.bench.harness import DOUBLE, MAIN, RunHooks, run_cases
from mxpeak.bench.hpg_mxp.config import HpgMxpConfig
from mxpeak.bench.hpg_mxp.input import MatrixFile, read_file
from mxpeak.bench.hpg_mxp.problem import problem_of, size_lines
from mxpeak.bench.hpg_mxp.result import HpgMxpMeasured, Solves, Validated, Validation, cycles_of, hpg_mxp_result
from mxpeak.bench.hpg_mxp.rules import between, check, foreseen, forms, solvers_of, storages, without_effect
from mxpeak.bench.hpg_mxp.standalone import Standalone, standalone_result
from mxpeak.bench.partial_result import Partial
from mxpeak.bench.sparse import (
    ADDITIONAL_SHARE,
    SolveProgress,
    SparseBench,
    admission_notes,
    measuring_seconds,
    sparse_dry_run,
)
from mxpeak.comm.base import Communicator, meet_asleep
from mxpeak.comm.transports.solo import Solo
from mxpeak.distributed.spaces import zeros
from mxpeak.distributed.sparse import SparseMatrix
from mxpeak.distributed.stencil import Form, Hierarchy, StencilProblem
from mxpeak.distributed.system import InnerIteration, MixedSystem
from mxpeak.layout.stencil import Box
from mxpeak.options import Run
from mxpeak.perf.sparse_counts import hpg_mxp_flops, stencil_levels
from mxpeak.precision import PRECISIONS
from mxpeak.records import Result, three_digits
from mxpeak.runtime.memory import memory_budget
from mxpeak.runtime.nodes import node_name
from mxpeak.runtime.placement import on_device
from mxpeak.solvers.abft.residual_checks import CheckedMixed
from mxpeak.solvers.krylov import Solve, gmres_ir
from mxpeak.solvers.multigrid import cycle

#: Maximum iterations of a validation, and those of GMRES-IR at full scale.
MAX_STEPS, MAX_FULLSCALE_STEPS = 10_000, 100_000
#: The solves of a validation, those of a second validation on all ranks, and the timed solves, in order.
VALIDATING = ("double to the threshold", "mixed to the threshold")
AT_FULL_SCALE = ("double at full scale", "mixed at full scale")
TIMED = ("mixed", "double")
#: Expected steps of a validation solve, shown to observers until the residual allows an estimate.
GUESSED = 100


def run(config: HpgMxpConfig, comm: Communicator, **hooks: Unpack[RunHooks]) -> list[Result]:
    """Run HPG-MxP and return its result. Usage errors are raised on every rank before any measurement.

    Collective over comm.
    """
    return run_cases(SparseBench[HpgMxpConfig], _check, _results, config, comm, **hooks)


def _check(config: HpgMxpConfig, comm: Communicator) -> None:
    check(config, comm.rank, comm.size)


def _results(bench: SparseBench[HpgMxpConfig]) -> Iterator[tuple[HpgMxpConfig, Result | None]]:
    file = None if bench.config.matrix is None else read_file(bench.config.matrix, bench.comm)
    bench.begin(bench.config)
    yield bench.config, HpgMxp(bench, file).result()


def dry_run(config: HpgMxpConfig, comm: Communicator, origins: Mapping[str, str] | None = None) -> DryRun:
    """Describe the boxes, the grid and the memory of a run without running it. Collective over comm."""
    run = on_device(Run(config, origins or {}))
    config = run.config
    _check(config, comm)
    box, lines, fits = size_lines(config, comm, memory_budget(run, comm))
    twice = _validates_twice(config, comm)
    lines += [minimum_work(config, box, twice=twice), *forewarnings(config, comm)]
    return sparse_dry_run(run, comm, box, lines, fits=fits)


def minimum_work(config: HpgMxpConfig, box: Box | None, *, twice: bool) -> str:
    """Return the dry-run line with the minimum number of solves and their flops.

    No solve is interrupted, so the minimum does not depend on --rt. `twice` is the result of `_validates_twice`.
    """
    m, validating = config.iterations, (4 if twice else 2) * len(storages(config))
    measured = (1 if config.standalone else 2) * len(storages(config)) + len(_between_expected(config))
    validated = "" if config.standalone else f"{validating} solves to {config.threshold:g} and "
    text = f"least work, for any --rt: {validated}{measured} of {m} iterations"
    if box is None:
        return text
    cycles = [min(config.restart, m - done) for done in range(0, m, config.restart)]
    flops = hpg_mxp_flops(stencil_levels(box), cycles, flexible=config.mg_vectors is not None)["total"]
    return f"{text}, the latter {three_digits(flops / 1e9)} GFLOP each"


def _between_expected(config: HpgMxpConfig) -> list[str]:
    """Return the names of the intermediate storage forms that a run measures if no value needs a wider format."""
    if config.quick or config.standalone or not measuring_seconds(config):
        return []
    first = storages(config)[0]
    return [*between(config, first, [{"value_precision": values} for values in forms(config, first)[1].values])]


def forewarnings(config: HpgMxpConfig, comm: Communicator) -> list[str]:
    """Return a note for each flag without effect and each broken rule; raise a UsageError if a rule refuses the run."""
    _check(config, comm)
    broken = foreseen(config, measuring_seconds(config), storages(config)[0])
    return [*without_effect(config), *admission_notes(config, broken)]


def _validates(config: HpgMxpConfig, comm: Communicator) -> bool:
    """Return whether this rank takes part in the standard validation. Collective over comm."""
    if isinstance(config.validation_ranks, int):
        return comm.rank < config.validation_ranks
    return bool(comm.bcast_object(node_name()) == node_name())


def _validates_twice(config: HpgMxpConfig, comm: Communicator) -> bool:
    """Return whether --validation both needs separate solves on a few ranks and on all ranks. Collective over comm."""
    if config.validation != "both" or config.standalone:
        return False
    if isinstance(config.validation_ranks, int):
        return comm.size > config.validation_ranks
    return not comm.agree(_validates(config, comm))


class HpgMxp:
    """Builds the problem in its storage forms and runs the three phases of HPG-MxP."""

    def __init__(self, bench: SparseBench[HpgMxpConfig], file: MatrixFile | None):
        config = bench.config
        self._bench, self._config, self._comm = bench, config, bench.comm
        self._storages = storages(config)
        self._problem = problem_of(bench, file)
        validates = _validates(config, bench.comm)
        self._all_validate = bench.comm.agree(validates)
        self._validation_comm = bench.comm.split(0 if validates else None, bench.comm.rank)

    def result(self) -> Result | None:
        """Run all measurements, and return the result on rank 0 and None on the other ranks. Collective."""
        start, bench, first = time.time(), self._bench, self._storages[0]
        again = AT_FULL_SCALE if _validates_twice(self._config, self._comm) else ()
        parts = [self._config.run_type] if self._config.standalone else [*VALIDATING, *again, *TIMED]
        bench.parts = [f"{storage}: {part}" for storage in self._storages for part in parts]
        bench.parts += [f"{first}: {name}" for name in _between_expected(self._config)]
        for storage in self._storages:
            self._problem.make_ready(self._forms(storage), self._use)
        if self._config.standalone:
            alone = bench.measure_each(self._storages, self._measure_standalone)
            return bench.build_result(bench.parts[0], start, partial(standalone_result, bench, self._problem, alone))
        measured = bench.measure_each(self._storages, self._measure)
        solves_between = self._between(first, measured[0])
        sections = partial(hpg_mxp_result, bench, self._problem, measured, solves_between)
        return bench.build_result(f"{first}: mixed", start, sections)

    def _forms(self, storage: str) -> Sequence[Form]:
        return solvers_of(self._config, self._problem.forms(storage))

    def _between(self, storage: str, measured: HpgMxpMeasured) -> dict[str, Solves]:
        """Time solves in each intermediate storage form, for a share of the measuring time. Collective."""
        rt, timed = ADDITIONAL_SHARE * self._bench.rt, dict[str, Solves]()
        if self._config.quick or not rt:
            return timed
        for name, form in between(self._config, storage, measured.levels).items():
            self._problem.make_ready([form], self._use)
            problem = self._problem.make([form], self._comm)
            self._bench.begin_solves(name, problem)
            timed[name] = self._timed_solves(problem, problem.hierarchies[0], f"{storage}: {name}", rt)
        return timed

    def _use(self, problem: StencilProblem) -> None:
        """Run all kernels on a tiny problem, so that no kernel is compiled during a measurement."""
        for hierarchy in problem.hierarchies:
            system = self._system(problem, hierarchy, Solo(), 3)
            self._solve(system, system.norm_of_b(), restart=3, max_steps=4, tolerance=0.0)
            system.max_error(1.0)
            self._bench.kernels.sparse.read_values(hierarchy.outer.A)
            self._use_bases(hierarchy.top.A, hierarchy.basis)

    def _use_bases(self, A: SparseMatrix, precision: str) -> None:
        """Use Krylov bases of all sizes once, because a device compiles a kernel for each power of two."""
        kernels, restart = self._bench.kernels.sparse, self._config.restart
        Q, w = kernels.basis(A.n, restart, precision), zeros(kernels, A.n, PRECISIONS[A.A.vectors].accumulate)
        for size in {min(2**k, restart) for k in range(restart.bit_length() + 1)}:
            h = kernels.subtract_and_project(Q, size, w, kernels.project(Q, size, w))
            kernels.subtract_and_square(Q, size, w, h)

    def _measure(self, storage: str, rt: float) -> HpgMxpMeasured:
        """Run the validation, the mixed solves and the double solves with one storage format. Collective."""
        bench, config = self._bench, self._config
        standard = None
        if config.validation != "fullscale" and not self._all_validate:
            standard = self._validate_on_few(storage)  # first, because both problems may not fit
        problem, setup_s = self._build(storage)
        double, mixed = problem.hierarchies
        held_double, held_mixed = (bench.bytes_of(problem, k, config.restart + 1) for k in range(2))
        before = bench.bandwidth(double.outer, held_mixed)
        validation, fullscale = self._complete_validations(problem, storage, standard)
        official = storage == self._storages[0]
        least = config.repeat if official else 1
        parts = (MAIN, DOUBLE) if official else (None, None)
        timed = self._timed_solves(problem, mixed, f"{storage}: mixed", rt, parts[0], validation, least)
        reference = self._timed_solves(problem, double, f"{storage}: double", rt, parts[1], least=least)
        after = bench.bandwidth(double.outer, held_mixed)
        trace = self._trace(problem, mixed) if config.trace is not None and official else None
        return HpgMxpMeasured(
            storage=storage, levels=self._problem.described(problem, 1), validation=validation, fullscale=fullscale,
            timed=timed, double=reference, readings=bench.limit(before, after, held_mixed), setup_s=setup_s,
            optimize_s=problem.optimize_s, held_bytes=held_mixed, double_bytes=held_double,
            setup_bytes=int(bench.total(problem.setup_bytes)), trace=trace, basis=mixed.basis, flexible=mixed.narrow,
        )  # fmt: skip

    def _measure_standalone(self, storage: str, rt: float) -> Standalone:
        """Time the solves of the only solver that runs, with one storage format. Collective."""
        bench, config = self._bench, self._config
        problem, setup_s = self._build(storage)
        (hierarchy,) = problem.hierarchies
        held = bench.bytes_of(problem, 0, config.restart + 1)
        before = bench.bandwidth(hierarchy.outer, held)
        first = storage == self._storages[0]
        label, least = f"{storage}: {config.run_type}", config.repeat if first else 1
        timed = self._timed_solves(problem, hierarchy, label, rt, MAIN if first else None, least=least)
        after = bench.bandwidth(hierarchy.outer, held)
        trace = self._trace(problem, hierarchy) if config.trace is not None and first else None
        return Standalone(
            solver=config.run_type, storage=storage, levels=self._problem.described(problem, 0), timed=timed,
            readings=bench.limit(before, after, held), setup_s=setup_s, optimize_s=problem.optimize_s, held_bytes=held,
            setup_bytes=int(bench.total(problem.setup_bytes)), trace=trace, basis=hierarchy.basis,
            flexible=hierarchy.narrow,
        )  # fmt: skip

    def _build(self, storage: str) -> tuple[StencilProblem, float]:
        """Build the problem on all ranks, and return it with the seconds of its set-up. Collective."""
        begin = time.perf_counter()
        problem = self._problem.make(self._forms(storage), self._comm)
        setup_s = time.perf_counter() - begin
        self._bench.begin_solves(storage, problem)
        return problem, setup_s

    def _trace(self, problem: StencilProblem, hierarchy: Hierarchy) -> list[dict[str, Any]]:
        """Run one restart cycle and return its spans (paper, fig. 9). Collective."""
        restart, system = self._config.restart, self._system(problem, hierarchy, self._comm, self._config.restart)
        b_norm = system.norm_of_b()
        solve = partial(gmres_ir, reduction=system.reduction)
        return self._bench.trace(lambda: solve(system, b_norm, restart=restart, max_steps=restart, tolerance=0.0))

    def _validate_on_few(self, storage: str) -> Validation:
        """Run the standard validation on its ranks, and broadcast its outcome to all ranks. Collective."""
        validation = None
        if self._validation_comm is not None:
            problem = self._problem.make(self._problem.forms(storage), self._validation_comm)
            self._bench.begin_solves(storage, problem)
            validation = self._solve_both(problem, self._validation_comm, storage, "standard")
        meet_asleep(self._comm)  # the solves may take longer than a message may wait
        return self._comm.bcast_object(validation)  # type: ignore[no-any-return]

    def _complete_validations(
        self, problem: StencilProblem, storage: str, standard: Validation | None
    ) -> tuple[Validation, Validation | None]:
        """Complete the validations on all ranks, and return the one that determines the penalty, and the other one.

        `standard` is the standard validation if fewer ranks have run it. Collective.
        """
        kind, comm = self._config.validation, self._comm
        if kind == "fullscale":
            return self._solve_both(problem, comm, storage, "fullscale"), None
        everywhere = standard is None
        standard = standard or self._solve_both(problem, comm, storage, "standard")
        if kind == "standard":
            return standard, None
        if everywhere and standard.passed:  # at full scale, the solves would be the same
            return standard, replace(standard, type="fullscale")
        return standard, self._solve_both(problem, comm, storage, "fullscale")

    def _solve_both(self, problem: StencilProblem, comm: Communicator, storage: str, kind: str) -> Validation:
        """Run the validation solves of both solvers, and return their outcome. Collective over comm."""
        config = self._config
        second = kind == "fullscale" and config.validation == "both"
        parts = [f"{storage}: {part}" for part in (AT_FULL_SCALE if second else VALIDATING)]
        fullscale = kind == "fullscale" and self._problem.double_sets_aim
        double = self._validation_solve(problem, problem.hierarchies[0], comm, MAX_STEPS, config.threshold, parts[0])
        reach = max(config.threshold, double.solve.residual) if fullscale else config.threshold
        max_steps = MAX_FULLSCALE_STEPS if fullscale else MAX_STEPS
        mixed = self._validation_solve(problem, problem.hierarchies[1], comm, max_steps, reach, parts[1])
        return Validation(double, mixed, reach, kind, comm.size)

    def _validation_solve(
        self,
        problem: StencilProblem,
        hierarchy: Hierarchy,
        comm: Communicator,
        max_steps: int,
        tolerance: float,
        label: str,
    ) -> Validated:
        """Run one validation solve to the tolerance, and return the solve with its error max |x - 1|.

        Collective over comm.
        """
        restart, system = self._config.restart, self._system(problem, hierarchy, comm, self._config.restart)
        self._bench.begin_solves(label)
        progress = self._bench.progress(
            self._bench.label(label), GUESSED, self._flops_per_step(hierarchy), aim=tolerance
        )
        b_norm = system.norm_of_b()
        solve = self._solve(
            system, b_norm, restart=restart, max_steps=max_steps, tolerance=tolerance, watch=progress.cycle
        )
        self._bench.spans.finish()
        return Validated(solve, system.max_error(1.0))

    def _flops_per_step(self, hierarchy: Hierarchy) -> float:
        """Return the flops of one step in a restart cycle, for the rate that a run shows while it solves."""
        cycle = [self._config.restart]
        return hpg_mxp_flops(self._problem.levels, cycle, flexible=hierarchy.narrow)["total"] / self._config.restart

    def _timed_solves(
        self,
        problem: StencilProblem,
        hierarchy: Hierarchy,
        label: str,
        rt: float,
        part: str | None = None,
        validation: Validation | None = None,
        least: int = 1,
    ) -> Solves:
        """Repeat and time a solve of --iterations iterations from x = 0, after an uncounted restart cycle. Collective.

        rt, least   the solves repeat until `rt` seconds have passed, at least `least` times
        part        the part of the energy to which the solves belong; those of the main part determine the rate
        validation  the validation that determines the penalty; None if the solver runs alone
        """
        config, bench = self._config, self._bench
        system = self._system(problem, hierarchy, self._comm, config.restart)
        b_norm = system.norm_of_b()

        def solve(max_steps: int, progress: SolveProgress) -> Solve:
            system.restart_from_zero()
            watch = progress.cycle
            return self._solve(system, b_norm, restart=config.restart, max_steps=max_steps, tolerance=0.0, watch=watch)

        def so_far(timed: Solves) -> Partial:
            flops = hpg_mxp_flops(self._problem.levels, cycles_of(timed), flexible=hierarchy.narrow)["total"]
            rate = flops / timed.time_s
            if validation is None:
                return Partial(label, rate, None)
            return Partial(label, rate * validation.penalty, validation.passed and timed.finite)

        bench.begin_solves(label)
        first, m = min(config.restart, config.iterations), config.iterations
        label = bench.label(label)
        progress = bench.progress(f"{label}, not counted yet", first, self._flops_per_step(hierarchy))
        expected_s = bench.slowest(partial(solve, first, progress)) * m / first
        bench.spans.finish()
        solves = max(least, ceil(rt / expected_s))
        progress = bench.progress(label, m * solves, self._flops_per_step(hierarchy))
        each = partial(solve, m, progress)
        watch = so_far if part == MAIN else None
        return bench.timed_solves(each, progress, m, least=least, rt=rt, so_far=watch, part=part)

    def _solve(self, system: MixedSystem, b_norm: float, **how: Any) -> Solve:
        """Run one GMRES-IR solve, and then the fault checks. Collective."""
        solve = gmres_ir(system, b_norm, reduction=system.reduction, **how)
        system.ended()
        return solve

    def _system(self, problem: StencilProblem, hierarchy: Hierarchy, comm: Communicator, restart: int) -> MixedSystem:
        top, bench = hierarchy.top, self._bench
        hierarchy.clear()
        rounding = 0.0 if top.A.A.values == "fp64" else self._problem.forms(top.A.A.storage)[1].tolerance
        inner = InnerIteration(top.A, partial(cycle, top), restart, rounding, hierarchy.basis)
        shared = (bench.kernels.sparse, comm, hierarchy.outer, problem.b, inner, bench.spans)
        return MixedSystem(*shared) if bench.checks is None else CheckedMixed(bench.checks, *shared)
