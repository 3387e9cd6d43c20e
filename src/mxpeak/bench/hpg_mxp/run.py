"""HPG-MxP: GMRES-IR with multigrid on the 27-point problem, mixed against double; the rules in one screen.

problem     27 points a row, 26 and -1 (--nonsymmetric: -1.5 below and -0.5 above in z), b = A·1, x = 0 at first;
            four levels made by the same stencil; one forward Gauss-Seidel sweep before, after and on the coarsest;
            --matrix: the rows of a file instead, with one level, so one sweep as preconditioner
validation  double GMRES to 1e-9 in n_d iterations, GMRES-IR to the same in n_ir; penalty = min(1, n_d/n_ir)
            standard: on up to 8 ranks; fullscale: on all, and IR has to reach what double did in 10,000 iterations
mixed       solves of 300 iterations from x = 0 until --rt is over, after a restart cycle that does not count
double      the same in fp64, as the reference
beside      double with the mixed solver's stored values, and mixed with fp32 values: what of the speed-up is precision,
            and what is values stored in fewer bits without loss; not with --quick
counted     flops by the reference's formula, whatever was skipped; also by ORNL's; a motif's own flops and least bytes
figure      (flops of the mixed solves / their time) · penalty
limit       read bandwidth: the values of the matrix read by all ranks at once, in the same process, before and after
            the solves

Source: Yamazaki et al. 2022; Kashi et al. 2025 (arXiv 2507.11512); the benchmark's reference code and its slides.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, log
from typing import Any, Unpack

from mxpeak.bench.abft import about_solves
from mxpeak.bench.dry_run import DryRun
from mxpeak.bench.harness import RunHooks, peak_rss, phase_table, run_cases
from mxpeak.bench.hpg_mxp.config import HpgMxpConfig
from mxpeak.bench.hpg_mxp.input import MatrixFile, read_file
from mxpeak.bench.hpg_mxp.problem import problem_of, size_lines
from mxpeak.bench.hpg_mxp.result import Measured, Solves, Validated, Validation, hpg_mxp_result
from mxpeak.bench.hpg_mxp.rules import between, check, foreseen, forms, storages
from mxpeak.bench.partial_result import Partial
from mxpeak.bench.sparse import SparseBench, seconds_for, sparse_outlook, without_admission
from mxpeak.bench.stencil_sizes import box_of
from mxpeak.bench.timeline import step_table
from mxpeak.comm.base import Communicator, meet_asleep
from mxpeak.comm.transports.solo import Solo
from mxpeak.distributed.spaces import zeros
from mxpeak.distributed.sparse import SparseMatrix
from mxpeak.distributed.stencil import Hierarchy, StencilProblem
from mxpeak.distributed.system import InnerIteration, MixedSystem
from mxpeak.layout.stencil import Box
from mxpeak.options import Setting
from mxpeak.perf.sparse_counts import hpg_mxp_flops, stencil_levels
from mxpeak.records import Result, three_digits
from mxpeak.runtime.memory import memory_budget
from mxpeak.runtime.placement import on_device
from mxpeak.solvers.abft.residual_checks import CheckedMixed
from mxpeak.solvers.krylov import Solve, gmres_ir
from mxpeak.solvers.multigrid import cycle
from mxpeak.spans import Spans

#: Ranks of the standard validation, iterations that a validation may take, and those that IR may take at full scale.
FEW, MOST, MOST_IR = 8, 10_000, 100_000
#: What is done with each storage, one after the other.
PARTS = ("double to the threshold", "mixed to the threshold", "mixed", "double")
#: Steps that a solve to the threshold is guessed to take, until its residual tells more.
GUESSED = 100
#: Share of the time that the figure beside the first one gets.
BESIDE = 0.25


def run(config: HpgMxpConfig, comm: Communicator, **told: Unpack[RunHooks]) -> list[Result]:
    """Run the benchmark.  Mistakes raise on every rank before anything is measured.  Collective over comm."""
    return run_cases(SparseBench[HpgMxpConfig], _check, _results, config, comm, **told)


def _check(config: HpgMxpConfig, comm: Communicator) -> None:
    check(config, comm.rank, comm.size)


def _results(bench: SparseBench[HpgMxpConfig]) -> Iterator[tuple[HpgMxpConfig, Result | None]]:
    file = None if bench.config.matrix is None else read_file(bench.config.matrix, bench.comm)
    bench.begin(bench.config)
    yield bench.config, HpgMxp(bench, file).result()


def dry_run(config: HpgMxpConfig, comm: Communicator, settings: dict[str, Setting] | None = None) -> DryRun:
    """What a run would do: boxes, grid and memory, nothing run.  Collective over comm."""
    config, settings = on_device(config, settings or {})
    _check(config, comm)
    budget = memory_budget(config, settings, comm)
    box = None if config.matrix is not None else box_of(config, comm.rank, comm.size)
    lines, fits = size_lines(config, comm, budget)
    lines += [least_work(config, box), *forewarnings(config, comm)]
    return sparse_outlook(config, comm, settings, box, lines, fits=fits)


def least_work(config: HpgMxpConfig, box: Box | None) -> str:
    """What a run does however short --rt is: solves are never cut."""
    solvers, m = 2 * len(storages(config)), config.iterations
    measured = solvers + len(_between_expected(config))
    text = f"least work, for any --rt: {solvers} solves to {config.threshold:g} and {measured} of {m} iterations"
    if box is None:
        return text
    cycles = [min(config.restart, m - done) for done in range(0, m, config.restart)]
    return f"{text}, the latter {three_digits(hpg_mxp_flops(stencil_levels(box), cycles)['total'] / 1e9)} GFLOP each"


def _between_expected(config: HpgMxpConfig) -> list[str]:
    """The forms between double and mixed that a run measures, if all values can be stored as they are meant to be."""
    if config.quick or not seconds_for(config):
        return []
    first = storages(config)[0]
    return [*between(config, first, [{"value_precision": values} for values in forms(config, first)[1].values])]


def forewarnings(config: HpgMxpConfig, comm: Communicator) -> list[str]:
    """Return a note for each flag without effect and each rule that breaks; raise if the run would be refused."""
    _check(config, comm)
    ignored = []
    if config.mg_precision is not None and config.precision != "auto":
        ignored.append(f"--precision {config.precision} has no effect: --mg-precision sets all formats")
    broken = foreseen(config, seconds_for(config), storages(config)[0])
    return [*ignored, *without_admission(config, broken)]


@dataclass(slots=True)
class Watch:
    """Shows the cycles of solves as steps.

    before   what earlier solves have done
    aim      the relative residual at which the solve ends; steps are then guessed from how it falls
    """

    spans: Spans
    label: str
    most: int
    flops_a_step: float
    before: int = 0
    aim: float = 0.0

    def start(self) -> None:
        """The first solve begins."""
        self.spans.start(self.label, self.most * self.flops_a_step)

    def __call__(self, done: Solve) -> None:
        """A cycle is done."""
        steps = self.before + done.steps
        if 0.0 < self.aim < done.residual < 1.0:
            self.most = int(steps * log(self.aim) / log(done.residual))
        self.most = max(self.most, steps)
        self.spans.expect(self.most * self.flops_a_step)
        self.spans.step(steps, self.most, steps * self.flops_a_step)


class HpgMxp:
    """One run: the problem in its forms, and the three phases on them."""

    def __init__(self, bench: SparseBench[HpgMxpConfig], file: MatrixFile | None):
        config = bench.config
        self._bench, self._config, self._comm = bench, config, bench.comm
        self._problem = problem_of(bench, file)
        self._flops_a_step = hpg_mxp_flops(self._problem.levels, [config.restart])["total"] / config.restart
        self._few = bench.comm.split(0 if bench.comm.rank < FEW else None, bench.comm.rank)  # for the validation

    def result(self) -> Result | None:
        """The result on rank 0, None elsewhere.  Collective."""
        start = time.time()
        first, *beside = storages(self._config)
        self._bench.parts = [f"{storage}: {part}" for storage in (first, *beside) for part in PARTS]
        self._bench.parts += [f"{first}: {name}" for name in _between_expected(self._config)]
        for storage in (first, *beside):
            self._problem.make_ready(self._problem.forms(storage), self._use)
        found = [self._measured(first, self._bench.rt)]
        found += [self._measured(storage, BESIDE * self._bench.rt) for storage in beside]
        between = self._between(first, found[0])
        rss = peak_rss(self._comm)
        if self._comm.rank:
            return None
        result = hpg_mxp_result(self._bench, self._problem, found, between, rss, start, time.time())
        result.telemetry["computation"] = self._bench.label(f"{first}: mixed")
        about_solves(result, self._bench.checks)
        return result

    def _between(self, storage: str, one: Measured) -> dict[str, Solves]:
        """Solves in the forms between double and mixed, each made by itself for a share of the time.  Collective."""
        rt, found = BESIDE * self._bench.rt, dict[str, Solves]()
        if self._config.quick or not rt:
            return found
        for name, form in between(self._config, storage, one.levels).items():
            self._problem.make_ready([form], self._use)
            made = self._problem.make([form], self._comm)
            self._bench.solving(name, made)
            found[name] = self._solves(made, made.hierarchies[0], f"{storage}: {name}", rt)
        return found

    def _use(self, made: StencilProblem) -> None:
        """Everything that happens to a problem, so that nothing is compiled while a clock runs."""
        for hierarchy in made.hierarchies:
            system = self._system(made, hierarchy, Solo(), 3)
            self._solve(system, system.norm_of_b(), restart=3, most=4, tolerance=0.0)
            system.max_error(1.0)
            self._bench.kernels.sparse.read_values(hierarchy.outer.A)
            self._use_bases(hierarchy.top.A)

    def _use_bases(self, A: SparseMatrix) -> None:
        """Bases of all sizes: a device has a form for each power of two."""
        kernels, most = self._bench.kernels.sparse, self._config.restart
        Q, w = kernels.basis(A.n, most, A.A.vectors), zeros(kernels, A.n, A.A.vectors)
        for size in {min(2**k, most) for k in range(most.bit_length() + 1)}:
            h = kernels.subtract_and_project(Q, size, w, kernels.project(Q, size, w))
            kernels.subtract_and_square(Q, size, w, h)

    def _measured(self, storage: str, rt: float) -> Measured:
        """All three phases with one storage.  Collective."""
        bench, config = self._bench, self._config
        few = config.validation == "standard" and self._comm.size > FEW
        validation = self._validate_on_few(storage) if few else None  # before: both problems at once may not fit
        begin = time.perf_counter()
        made = self._problem.make(self._problem.forms(storage), self._comm)
        setup_s = time.perf_counter() - begin
        bench.solving(storage, made)
        double, mixed = made.hierarchies
        held_bytes = [bench.bytes_of(made, k, config.restart + 1) for k in range(2)]
        before = bench.bandwidth(double.outer, held_bytes[1])
        validation = validation or self._solve_both(made, self._comm, storage)
        figure = validation if storage == storages(config)[0] else None
        least = 1 if figure is None else config.repeat
        timed = self._solves(made, mixed, f"{storage}: mixed", rt, figure, least)
        reference = self._solves(made, double, f"{storage}: double", rt, least=least)
        after = bench.bandwidth(double.outer, held_bytes[1])
        wanted = config.trace is not None and storage == storages(config)[0]
        trace = self._trace(made, mixed) if wanted else None
        return Measured(
            storage,
            self._problem.described(made, 1),
            validation,
            timed,
            reference,
            bench.limit(before, after, held_bytes[1]),
            setup_s,
            made.optimize_s,
            held_bytes,
            int(bench.total(made.setup_bytes)),
            trace,
        )

    def _trace(self, made: StencilProblem, hierarchy: Hierarchy) -> list[dict[str, Any]]:
        """Every span of one restart cycle (paper, fig. 9).  Collective."""
        restart, system = self._config.restart, self._system(made, hierarchy, self._comm, self._config.restart)
        b_norm = system.norm_of_b()
        return self._bench.traced(lambda: gmres_ir(system, b_norm, restart=restart, most=restart, tolerance=0.0))

    def _validate_on_few(self, storage: str) -> Validation:
        """Both solvers to the same residual, on the first few ranks.  Collective."""
        found = None
        if self._few is not None:
            made = self._problem.make(self._problem.forms(storage), self._few)
            self._bench.solving(storage, made)
            found = self._solve_both(made, self._few, storage)
        meet_asleep(self._comm)  # it may take longer than any message should
        return self._comm.bcast_object(found)  # type: ignore[no-any-return]

    def _solve_both(self, made: StencilProblem, comm: Communicator, storage: str) -> Validation:
        config, parts = self._config, [f"{storage}: {part}" for part in PARTS]
        fullscale = config.validation == "fullscale" and self._problem.may_fall_short
        double = self._validated(made, made.hierarchies[0], comm, MOST, config.threshold, parts[0])
        reach = max(config.threshold, double.solve.residual) if fullscale else config.threshold
        most = MOST_IR if fullscale else MOST
        mixed = self._validated(made, made.hierarchies[1], comm, most, reach, parts[1])
        return Validation(double, mixed, reach, config.validation, comm.size)

    def _validated(
        self, made: StencilProblem, hierarchy: Hierarchy, comm: Communicator, most: int, tolerance: float, label: str
    ) -> Validated:
        """One solver, to the tolerance.  Collective over comm."""
        restart, system = self._config.restart, self._system(made, hierarchy, comm, self._config.restart)
        self._bench.solving(label)
        watch = Watch(self._bench.spans, self._bench.label(label), GUESSED, self._flops_a_step, aim=tolerance)
        watch.start()
        done = self._solve(system, system.norm_of_b(), restart=restart, most=most, tolerance=tolerance, watch=watch)
        self._bench.spans.finish()
        return Validated(done, system.max_error(1.0))

    def _solves(
        self,
        made: StencilProblem,
        hierarchy: Hierarchy,
        label: str,
        rt: float,
        figure: Validation | None = None,
        least: int = 1,
    ) -> Solves:
        """Solve from zero, all iterations, until `rt` seconds are over and at least `least` times, after a first cycle.

        `figure`: the figure is made of these, so validated.  Collective.
        """
        config, bench = self._config, self._bench
        system = self._system(made, hierarchy, self._comm, config.restart)
        b_norm, done = system.norm_of_b(), list[Solve]()

        def solve(most: int, watch: Watch) -> None:
            system.restart_from_zero()
            done.append(self._solve(system, b_norm, restart=config.restart, most=most, tolerance=0.0, watch=watch))

        bench.solving(label)
        first = min(config.restart, config.iterations)
        label = bench.label(label)
        watch = Watch(bench.spans, f"{label}, not counted yet", first, self._flops_a_step)
        watch.start()
        expected = bench.slowest(partial(solve, first, watch)) * config.iterations / first
        watch = replace(watch, label=label, most=config.iterations * max(least, ceil(rt / expected)))
        watch.start()
        done.clear()
        samples: list[float] = []
        timed = bench.slowest if figure is None else bench.metered
        while sum(samples) < rt or len(samples) < least:
            solves = ceil(rt * len(samples) / sum(samples)) if samples else watch.most // config.iterations
            watch = replace(watch, before=config.iterations * len(samples), most=config.iterations * max(least, solves))
            samples.append(timed(partial(solve, config.iterations, watch)))
            if figure is not None:
                bench.sampled(samples[-1], self._so_far(label, Solves(samples, done), figure))
        bench.spans.finish()
        by_step = step_table(bench.kernels, bench.comm, bench.spans)
        return Solves(samples, done, phase_table(bench.comm, bench.spans), by_step)

    def _so_far(self, label: str, mixed: Solves, validation: Validation) -> Partial:
        """(flops of the mixed solves / their time) · penalty, of those that are over."""
        flops = hpg_mxp_flops(self._problem.levels, mixed.cycles)["total"]
        return Partial(label, flops / mixed.time_s * validation.penalty, validation.passed and mixed.finite)

    def _solve(self, system: MixedSystem, b_norm: float, **how: Any) -> Solve:
        """One solve, and what is checked at its end.  Collective."""
        done = gmres_ir(system, b_norm, **how)
        system.ended()
        return done

    def _system(self, made: StencilProblem, hierarchy: Hierarchy, comm: Communicator, restart: int) -> MixedSystem:
        top, bench = hierarchy.top, self._bench
        hierarchy.clear()
        rounding = 0.0 if top.A.A.values == "fp64" else self._problem.forms(top.A.A.storage)[1].tolerance
        inner = InnerIteration(top.A, partial(cycle, top), restart, rounding)
        shared = (bench.kernels.sparse, comm, hierarchy.outer, made.b, inner, bench.spans)
        return MixedSystem(*shared) if bench.checks is None else CheckedMixed(*shared, bench.checks)
