"""HPCG: conjugate gradients with multigrid on the 27-point problem, in double; the rules in one screen.

problem      27 points a row, 26 and -1, b = A·1, x = 0 at first; four levels made by the same stencil; a symmetric
             Gauss-Seidel sweep before, after and on the coarsest
reference    50 iterations in the natural order, row after row on each rank: the residual that they come to is the aim
tests        spectral, symmetry, norms: check.py
convergence  iterations to the aim·(1 + 1e-6), up to 500: n = max(50, those)
sets         solves of n iterations from x = 0: one more than fill --rt by the time that convergence took, or until
             --rt is over
counted      flops by HPCG's formula; of n iterations 50 are credited.  A motif's own flops and least bytes in `phases`
figure       credited flops / (time of the sets + sets·(set-up + optimisation)/10); optimisation: orders and storage
limit        read bandwidth: the values of the matrix read by all ranks at once, in the same process, before and after
             the sets

Source: Dongarra, Heroux, Luszczek 2016; HPCG 3.1, main.cpp and ReportResults.cpp; its FAQ.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Any, Unpack

from mxpeak.bench.abft import about_solves
from mxpeak.bench.dry_run import DryRun
from mxpeak.bench.harness import RunHooks, peak_rss, phase_table, run_cases
from mxpeak.bench.hpcg.check import Norms, spectral_test, symmetry_test
from mxpeak.bench.hpcg.config import HpcgConfig
from mxpeak.bench.hpcg.result import MOST, REFERENCE_STEPS, SLACK, Measured, Sets, hpcg_result, rating
from mxpeak.bench.hpcg.rules import foreseen, form, forms, storages
from mxpeak.bench.partial_result import Partial
from mxpeak.bench.sparse import (
    TINY,
    SparseBench,
    check_storage,
    hierarchies_of,
    natural_order,
    order_of,
    plain_storage,
    seconds_for,
    sparse_outlook,
    without_admission,
)
from mxpeak.bench.stencil_sizes import box_of, fits_in, line
from mxpeak.bench.timeline import step_table
from mxpeak.comm.base import Communicator
from mxpeak.comm.transports.solo import Solo
from mxpeak.distributed.stencil import StencilProblem, make_stencil, weights
from mxpeak.distributed.system import CgSystem
from mxpeak.errors import Outcome
from mxpeak.layout.stencil import LEVELS, Box
from mxpeak.options import Setting
from mxpeak.perf.sparse_counts import hpcg_flops, stencil_levels
from mxpeak.records import Result
from mxpeak.runtime.memory import memory_budget
from mxpeak.runtime.placement import on_device
from mxpeak.solvers.abft.residual_checks import CheckedCg
from mxpeak.solvers.cg import Solve, conjugate_gradients
from mxpeak.solvers.multigrid import cycle
from mxpeak.spans import Spans

#: Share of the time that the figure beside the first one gets.
BESIDE = 0.25
#: Iterations that convergence is guessed to take, while it is watched: colours cost about a fifth.
GUESSED = 60


def run(config: HpcgConfig, comm: Communicator, **told: Unpack[RunHooks]) -> list[Result]:
    """Run the benchmark.  Mistakes raise on every rank before anything runs.  Collective over comm."""
    return run_cases(SparseBench[HpcgConfig], _check, _results, config, comm, **told)


def _check(config: HpcgConfig, comm: Communicator) -> Box:
    check_storage(config)
    return box_of(config, comm.rank, comm.size)


def _results(bench: SparseBench[HpcgConfig]) -> Iterator[tuple[HpcgConfig, Result | None]]:
    bench.begin(bench.config)
    yield bench.config, Hpcg(bench).result()


def dry_run(config: HpcgConfig, comm: Communicator, settings: dict[str, Setting] | None = None) -> DryRun:
    """What a run would do: boxes, grid and memory, nothing run.  Collective over comm."""
    config, settings = on_device(config, settings or {})
    box = _check(config, comm)
    budget = memory_budget(config, settings, comm)
    need = {
        storage: hierarchies_of(forms(storage), 0, order_of(config, storage), on_gpu=config.on_gpu)
        for storage in storages(config)
    }
    lines = [f"{storage}: {line(box, hierarchies, budget)}" for storage, hierarchies in need.items()]
    fits = all(fits_in(box, hierarchies, budget) for hierarchies in need.values())
    return sparse_outlook(config, comm, settings, box, [*lines, *forewarnings(config, comm)], fits=fits)


def forewarnings(config: HpcgConfig, comm: Communicator) -> list[str]:
    """Return a note for each rule that the run will break; raise if the run would be refused."""
    _check(config, comm)
    return without_admission(config, foreseen(config, seconds_for(config), storages(config)[0]))


@dataclass(slots=True)
class Watch:
    """Shows a part of the run, told how many of its `most` steps are done; if they were more, so were they."""

    spans: Spans
    flops_a_step: float
    most: int

    def __call__(self, steps: int) -> None:
        """So many steps are done."""
        self.most = max(self.most, steps)
        self.spans.expect(self.most * self.flops_a_step)
        self.spans.step(steps, self.most, steps * self.flops_a_step)


class Hpcg:
    """One run: the reference's 50 iterations, then tests, convergence and sets with each storage."""

    def __init__(self, bench: SparseBench[HpcgConfig]):
        config = bench.config
        self._bench, self._config, self._comm = bench, config, bench.comm
        self._kernels = bench.kernels.sparse
        self._plain = plain_storage(config)
        orders = [(self._plain, natural_order(config, self._plain))]  # the reference's, whatever was asked for
        orders += [(storage, order_of(config, storage)) for storage in storages(config)]
        self._box = bench.box(
            [hierarchies_of(forms(storage), 0, order, on_gpu=config.on_gpu) for storage, order in orders]
        )
        self._flops_a_step = hpcg_flops(stencil_levels(self._box), REFERENCE_STEPS)["total"] / REFERENCE_STEPS

    def result(self) -> Result | None:
        """The result on rank 0, None elsewhere.  Collective."""
        start = time.time()
        first, *beside = storages(self._config)
        parts = (f"{storage}: {part}" for storage in (first, *beside) for part in ("convergence", "sets"))
        self._bench.parts = ("reference", *parts)
        for storage in dict.fromkeys((self._plain, first, *beside)):
            self._bench.make_ready([form(storage)], weights(), self._use)
        reference = self._reference()
        aim = reference.residual * SLACK
        found = [self._measured(first, aim, self._bench.rt)]
        found += [self._measured(storage, aim, BESIDE * self._bench.rt) for storage in beside]
        rss = peak_rss(self._comm)
        if self._comm.rank:
            return None
        result = hpcg_result(self._bench, self._box, reference, found, rss, start, time.time())
        result.telemetry["computation"] = self._bench.label(f"{first}: sets")
        about_solves(result, self._bench.checks)
        return result

    def _use(self, made: StencilProblem) -> None:
        """Everything that happens to a problem, so that nothing is compiled while a clock runs."""
        tiny, spans = Box(TINY, TINY, TINY), Spans()
        for one in (self._in_natural_order(tiny, Solo()), made):
            self._solve(self._system(one, Solo()), most=2, tolerance=0.0)
        top = made.hierarchies[0].top
        spectral_test(self._kernels, Solo(), top, tiny, order_of(self._config, top.A.A.storage), spans)
        symmetry_test(self._kernels, Solo(), top.A, partial(cycle, top))
        self._system(made, Solo()).max_error(1.0)
        self._kernels.read_values(top.A.A)

    def _reference(self) -> Solve:
        """The iterations that set the aim.  Collective."""
        made = self._in_natural_order(self._box, self._comm)
        self._bench.solving("reference", made)
        watch = self._watch("reference", REFERENCE_STEPS)
        done = self._solve(self._system(made, self._comm), most=REFERENCE_STEPS, tolerance=0.0, watch=watch)
        self._bench.spans.finish()
        return done

    def _in_natural_order(self, box: Box, comm: Communicator) -> StencilProblem:
        """The problem as the reference sweeps over it.  Collective over comm."""
        self._bench.forget()
        order, forms = natural_order(self._config, self._plain), [form(self._plain)]
        return make_stencil(self._kernels, comm, box.levels(LEVELS), forms, order, weights(), self._bench.spans)

    def _measured(self, storage: str, aim: float, rt: float) -> Measured:
        """Tests, convergence and sets with one storage.  Collective."""
        bench, kernels, comm = self._bench, self._kernels, self._comm
        made = bench.make(self._box, [form(storage)], weights(), comm)
        top = made.hierarchies[0].top
        held = bench.bytes_of(made, 0, 0)
        before = bench.bandwidth(top.A, held)
        spectral = spectral_test(kernels, comm, top, self._box, order_of(self._config, storage), bench.spans)
        symmetry = symmetry_test(kernels, comm, top.A, partial(cycle, top))
        bench.solving(f"{storage}: convergence", made)
        system = self._system(made, comm)
        converged, slowest_s = self._converged(system, storage, aim)
        if converged.outcome != Outcome.SOLVED:
            rt = 0.0  # one set will do for a run that failed
        setup_s, optimize_s = self._longest(made.generate_s), self._longest(made.optimize_s)
        valid = converged.outcome == Outcome.SOLVED and spectral.passed and symmetry.passed

        def so_far(sets: Sets) -> Partial:
            label = bench.label(f"{storage}: sets")
            return Partial(label, rating(self._box, sets, setup_s + optimize_s), valid and sets.norms.passed)

        least = self._config.repeat if storage == storages(self._config)[0] and valid else 1
        steps, count = max(REFERENCE_STEPS, converged.steps), max(least, int(rt / slowest_s) + 1)
        sets = self._sets(system, storage, steps, count, rt, so_far)
        after = bench.bandwidth(top.A, held)
        trace = self._trace(system, sets.steps) if storage == storages(self._config)[0] else None
        return Measured(
            storage,
            made.described(self._box, 0),
            aim,
            converged,
            spectral,
            symmetry,
            sets,
            system.max_error(1.0),
            bench.limit(before, after, held),
            setup_s,
            optimize_s,
            held,
            int(bench.total(made.setup_bytes)),
            trace,
        )

    def _trace(self, system: CgSystem, steps: int) -> list[dict[str, Any]] | None:
        """Every span of one more set, where --trace asks for it.  Collective."""
        if self._config.trace is None:
            return None
        system.restart_from_zero()
        return self._bench.traced(lambda: conjugate_gradients(system, most=steps, tolerance=0.0))

    def _converged(self, system: CgSystem, storage: str, aim: float) -> tuple[Solve, float]:
        """A solve to the aim, and the seconds of the slowest rank.  Collective."""
        done = Solve()

        def solve() -> None:
            nonlocal done
            done = self._solve(system, most=MOST, tolerance=aim, watch=watch)

        watch = self._watch(f"{storage}: convergence", GUESSED)
        elapsed_s = self._bench.slowest(solve)
        self._bench.spans.finish()
        return done, elapsed_s

    def _sets(
        self, system: CgSystem, storage: str, steps: int, count: int, rt: float, so_far: Callable[[Sets], Partial]
    ) -> Sets:
        """So many solves of so many steps from zero, and more until `rt` seconds are over.  Collective."""
        samples: list[float] = []
        solves: list[Solve] = []

        def solve() -> None:
            solves.append(self._solve(system, most=steps, tolerance=0.0, watch=one_more))

        def one_more(done: int) -> None:
            watch(steps * len(solves) + done)

        self._bench.solving(f"{storage}: sets")
        watch = self._watch(f"{storage}: sets", steps * count)
        figure = storage == storages(self._config)[0]
        timed = self._bench.metered if figure else self._bench.slowest
        while len(samples) < count or sum(samples) < rt:
            system.restart_from_zero()
            samples.append(timed(solve))
            watch.most = steps * max(count, ceil(rt * len(samples) / sum(samples)))  # quicker than convergence was?
            sets = Sets(samples, sum(one.steps for one in solves), steps, Norms([one.residual for one in solves]))
            if figure:
                self._bench.sampled(samples[-1], so_far(sets))
        self._bench.spans.finish()
        spans = self._bench.spans
        phases, by_step = phase_table(self._comm, spans), step_table(self._bench.kernels, self._comm, spans)
        return replace(sets, phases=phases, by_step=by_step)

    def _watch(self, part: str, most: int) -> Watch:
        """Begin to show a part of the run, of about so many steps."""
        spans = self._bench.spans
        spans.start(self._bench.label(part), most * self._flops_a_step)
        return Watch(spans, self._flops_a_step, most)

    def _solve(self, system: CgSystem, **how: Any) -> Solve:
        """One solve, and what is checked at its end.  Collective."""
        done = conjugate_gradients(system, **how)
        system.ended()
        return done

    def _system(self, made: StencilProblem, comm: Communicator) -> CgSystem:
        top, checks = made.hierarchies[0].top, self._bench.checks
        shared = (self._kernels, comm, top.A, made.b, partial(cycle, top), self._bench.spans)
        return CgSystem(*shared) if checks is None else CheckedCg(*shared, checks)

    def _longest(self, seconds: float) -> float:
        """The slowest rank's, on rank 0."""
        return float(max(self._comm.gather_objects(seconds) or [0.0]))
