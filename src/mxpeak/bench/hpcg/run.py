"""HPCG: conjugate gradients with multigrid on the 27-point problem in fp64.

problem      27 points per row, 26 and -1, b = A·1, initial x = 0; four levels built by the same stencil; a symmetric
             Gauss-Seidel sweep before and after each correction, and on the coarsest level
reference    50 iterations in the natural order, row by row on each rank; their residual is the required residual
tests        spectral, symmetry, norms: check.py
convergence  iterations to the required residual·(1 + 1e-6), at most 500: n = max(50, iterations)
sets         solves of n iterations from x = 0: one more than fill --rt at the speed of the convergence solve, or until
             --rt has passed
counted      flops by HPCG's formula; 50 of n iterations are credited; `phases` has each motif's own flops and minimum
             number of bytes
rating       credited flops / (time of the sets + sets·(set-up + optimization)/10); optimization: orders and storage
limit        read bandwidth: all ranks read the values of the matrix at the same time, in the same process, before and
             after the sets

Source: Dongarra, Heroux, Luszczek 2016; HPCG 3.1, main.cpp and ReportResults.cpp; its FAQ.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Unpack

from mxpeak.bench.dry_run import DryRun
from mxpeak.bench.harness import MAIN, RunHooks, run_cases
from mxpeak.bench.hpcg.check import SetResiduals, spectral_test, symmetry_test
from mxpeak.bench.hpcg.config import HpcgConfig
from mxpeak.bench.hpcg.result import MAX_STEPS, REFERENCE_STEPS, SLACK, HpcgMeasured, Sets, hpcg_result, rating
from mxpeak.bench.hpcg.rules import foreseen, form, forms, storages
from mxpeak.bench.partial_result import Partial
from mxpeak.bench.sparse import (
    TINY,
    SolveProgress,
    SparseBench,
    admission_notes,
    box_lines,
    check_storage,
    hierarchies_by_storage,
    hierarchies_of,
    measuring_seconds,
    natural_order,
    order_of,
    plain_storage,
    sparse_dry_run,
)
from mxpeak.bench.stencil_sizes import HierarchySize, box_of
from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import allreduce_scalars
from mxpeak.comm.transports.solo import Solo
from mxpeak.distributed.stencil import StencilProblem, make_stencil, weights
from mxpeak.distributed.system import CgSystem
from mxpeak.errors import Outcome
from mxpeak.layout.stencil import LEVELS, Box
from mxpeak.options import Run
from mxpeak.perf.sparse_counts import hpcg_flops, stencil_levels
from mxpeak.records import Result
from mxpeak.runtime.memory import memory_budget
from mxpeak.runtime.placement import on_device
from mxpeak.solvers.abft.residual_checks import CheckedCg
from mxpeak.solvers.cg import CgSolve, conjugate_gradients
from mxpeak.solvers.multigrid import cycle
from mxpeak.spans import Spans

#: Expected iterations of the convergence solve, shown to observers. Colors need about a fifth more than the natural
#: order.
GUESSED = 60


def run(config: HpcgConfig, comm: Communicator, **hooks: Unpack[RunHooks]) -> list[Result]:
    """Run HPCG and return its result. Usage errors are raised on every rank before any measurement.

    Collective over comm.
    """
    return run_cases(SparseBench[HpcgConfig], _check, _results, config, comm, **hooks)


def _check(config: HpcgConfig, comm: Communicator) -> Box:
    check_storage(config)
    return box_of(config, comm.rank, comm.size)


def _results(bench: SparseBench[HpcgConfig]) -> Iterator[tuple[HpcgConfig, Result | None]]:
    bench.begin(bench.config)
    yield bench.config, Hpcg(bench).result()


def dry_run(config: HpcgConfig, comm: Communicator, origins: Mapping[str, str] | None = None) -> DryRun:
    """Describe the boxes, the grid and the memory of a run without running it. Collective over comm."""
    run = on_device(Run(config, origins or {}))
    config = run.config
    box = _check(config, comm)
    need = hierarchies_by_storage(config, {storage: forms(storage) for storage in storages(config)}, 0)
    if plain_storage(config) not in need:
        need = {"reference": _reference_sizes(config), **need}
    box, lines, fits = box_lines(box, config, need, memory_budget(run, comm))
    return sparse_dry_run(run, comm, box, [*lines, *forewarnings(config, comm)], fits=fits)


def forewarnings(config: HpcgConfig, comm: Communicator) -> list[str]:
    """Return a note for each rule that the run will break; raise a UsageError if the run would be refused."""
    _check(config, comm)
    return admission_notes(config, foreseen(config, measuring_seconds(config), storages(config)[0]))


def _reference_sizes(config: HpcgConfig) -> list[HierarchySize]:
    """Return the sizes of the reference, which sweeps in the natural order independently of the options."""
    plain = plain_storage(config)
    return hierarchies_of(forms(plain), 0, natural_order(config, plain), on_gpu=config.on_gpu)


class Hpcg:
    """Runs the 50 reference iterations, then tests, convergence solve and sets with each storage format."""

    def __init__(self, bench: SparseBench[HpcgConfig]):
        config = bench.config
        self._bench, self._config, self._comm = bench, config, bench.comm
        self._kernels = bench.kernels.sparse
        self._plain, self._storages = plain_storage(config), storages(config)
        own = hierarchies_by_storage(config, {storage: forms(storage) for storage in self._storages}, 0)
        self._box = bench.box([_reference_sizes(config), *own.values()])
        self._flops_per_step = hpcg_flops(stencil_levels(self._box), REFERENCE_STEPS)["total"] / REFERENCE_STEPS

    def result(self) -> Result | None:
        """Run all measurements, and return the result on rank 0 and None on the other ranks. Collective."""
        start, bench = time.time(), self._bench
        parts = (f"{storage}: {part}" for storage in self._storages for part in ("convergence", "sets"))
        bench.parts = ("reference", *parts)
        for storage in dict.fromkeys((self._plain, *self._storages)):
            bench.make_ready([form(storage)], weights(), self._use)
        reference = self._reference()
        aim = reference.residual * SLACK
        measured = bench.measure_each(self._storages, partial(self._measure, aim))
        sections = partial(hpcg_result, bench, self._box, reference, measured)
        return bench.build_result(f"{self._storages[0]}: sets", start, sections)

    def _use(self, problem: StencilProblem) -> None:
        """Run all kernels on a tiny problem, so that no kernel is compiled during a measurement."""
        tiny, spans = Box(TINY, TINY, TINY), Spans()
        for each in (self._in_natural_order(tiny, Solo()), problem):
            self._solve(self._system(each, Solo()), max_steps=2, tolerance=0.0)
        top = problem.hierarchies[0].top
        spectral_test(self._kernels, Solo(), top, tiny, order_of(self._config, top.A.A.storage), spans)
        symmetry_test(self._kernels, Solo(), top.A, partial(cycle, top))
        self._system(problem, Solo()).max_error(1.0)
        self._kernels.read_values(top.A.A)

    def _reference(self) -> CgSolve:
        """Run the reference iterations, which determine the required residual. Collective."""
        problem = self._in_natural_order(self._box, self._comm)
        self._bench.begin_solves("reference", problem)
        watch = self._progress("reference", REFERENCE_STEPS).step
        solve = self._solve(self._system(problem, self._comm), max_steps=REFERENCE_STEPS, tolerance=0.0, watch=watch)
        self._bench.spans.finish()
        return solve

    def _in_natural_order(self, box: Box, comm: Communicator) -> StencilProblem:
        """Release the previous problem, and build the problem in the row order of the reference code.

        Collective over comm.
        """
        self._bench.release_problem()
        order, forms = natural_order(self._config, self._plain), [form(self._plain)]
        return make_stencil(self._kernels, comm, box.levels(LEVELS), forms, order, weights(), self._bench.spans)

    def _measure(self, aim: float, storage: str, rt: float) -> HpcgMeasured:
        """Run the tests, the convergence solve and the sets with one storage format, and return the measurements.

        Collective.
        """
        bench, kernels, comm = self._bench, self._kernels, self._comm
        problem = bench.make(self._box, [form(storage)], weights(), comm)
        top = problem.hierarchies[0].top
        held = bench.bytes_of(problem, 0, 0)
        before = bench.bandwidth(top.A, held)
        spectral = spectral_test(kernels, comm, top, self._box, order_of(self._config, storage), bench.spans)
        symmetry = symmetry_test(kernels, comm, top.A, partial(cycle, top))
        bench.begin_solves(f"{storage}: convergence", problem)
        system = self._system(problem, comm)
        converged, slowest_s = self._solve_to_residual(system, storage, aim)
        solved = converged.outcome == Outcome.SOLVED
        rt = rt if solved else 0.0  # one set is enough for an invalid run
        setup_s, optimize_s = self._max_over_ranks(problem.generate_s), self._max_over_ranks(problem.optimize_s)
        valid = solved and spectral.passed and symmetry.passed
        steps, official = max(REFERENCE_STEPS, converged.steps), storage == self._storages[0]

        def so_far(sets: Sets) -> Partial:
            rate = rating(self._box, sets, steps, setup_s + optimize_s)
            return Partial(bench.label(f"{storage}: sets"), rate, valid and _norms(sets).passed)

        least = max(self._config.repeat if official and valid else 1, int(rt / slowest_s) + 1)
        bench.begin_solves(f"{storage}: sets")
        progress = self._progress(f"{storage}: sets", steps * least)
        sets = bench.timed_solves(
            partial(self._solve, system, max_steps=steps, tolerance=0.0, watch=progress.step),
            progress,
            steps,
            least=least,
            rt=rt,
            prepare=system.restart_from_zero,
            so_far=so_far if official else None,
            part=MAIN if official else None,
        )
        after = bench.bandwidth(top.A, held)
        trace = self._trace(system, steps) if official else None
        return HpcgMeasured(
            storage=storage, levels=problem.described(self._box, 0), aim=aim, converged=converged, steps=steps,
            spectral=spectral, symmetry=symmetry, norms=_norms(sets), timed=sets, trace=trace,
            max_error=system.max_error(1.0), readings=bench.limit(before, after, held), setup_s=setup_s,
            optimize_s=optimize_s, held_bytes=held, setup_bytes=int(bench.total(problem.setup_bytes)),
        )  # fmt: skip

    def _trace(self, system: CgSystem, steps: int) -> list[dict[str, Any]] | None:
        """Run one more set and return its spans, or return None without --trace. Collective."""
        if self._config.trace is None:
            return None
        system.restart_from_zero()
        return self._bench.trace(lambda: conjugate_gradients(system, max_steps=steps, tolerance=0.0))

    def _solve_to_residual(self, system: CgSystem, storage: str, aim: float) -> tuple[CgSolve, float]:
        """Solve to the residual of the reference, and return the solve and its time on the slowest rank. Collective."""
        solves: list[CgSolve] = []
        watch = self._progress(f"{storage}: convergence", GUESSED).step
        elapsed_s = self._bench.slowest(
            lambda: solves.append(self._solve(system, max_steps=MAX_STEPS, tolerance=aim, watch=watch))
        )
        self._bench.spans.finish()
        return solves[0], elapsed_s

    def _progress(self, part: str, steps: int) -> SolveProgress:
        """Return a progress reporter for one part of the run, which is expected to take `steps` iterations."""
        return self._bench.progress(self._bench.label(part), steps, self._flops_per_step)

    def _solve(self, system: CgSystem, **how: Any) -> CgSolve:
        """Run one CG solve, and then the fault checks. Collective."""
        solve = conjugate_gradients(system, **how)
        system.ended()
        return solve

    def _system(self, problem: StencilProblem, comm: Communicator) -> CgSystem:
        top, checks = problem.hierarchies[0].top, self._bench.checks
        shared = (self._kernels, comm, top.A, problem.b, partial(cycle, top), self._bench.spans)
        return CgSystem(*shared) if checks is None else CheckedCg(checks, *shared)

    def _max_over_ranks(self, seconds: float) -> float:
        """Return the largest `seconds` of all ranks on every rank: --target must stop all of them. Collective."""
        return allreduce_scalars(self._comm, [seconds], "max")[0]


def _norms(sets: Sets) -> SetResiduals:
    """Return the scaled residuals of all sets."""
    return SetResiduals([solve.residual for solve in sets.solves])
