"""HPL: solve A x = b in FP64 by LU with partial pivoting; the rules in one screen.

generated   [A | b], N×(N+1), Netlib HPL's own random matrix (seed 100), before the clock
timed       factorization and back substitution, from a barrier to the slowest rank's end
counted     2/3 N³ + 3/2 N² flops, whatever was executed
verified    on a regenerated [A | b]: ||Ax-b|| / (u·(||x||·||A|| + ||b||)·N) < 16 in the infinity norm, u = 2^-53
limit       DGEMM with inner dimension NB on all ranks at once, in the same process
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mxpeak.bench.harness import peak_rss, phase_table
from mxpeak.bench.hpl.config import HplCase, HplConfig
from mxpeak.bench.hpl.result import Solve, hpl_result
from mxpeak.bench.lu import LuBench, Problem, dry_run_text, run_cases, slowest
from mxpeak.comm.base import Communicator
from mxpeak.comm.grid import Grid
from mxpeak.distributed.matrix import DistMatrix, dist_matrix
from mxpeak.kernels.contract import Kernels
from mxpeak.layout.generators import generator
from mxpeak.options import Setting
from mxpeak.perf.counts import hpl_flops, hpl_memory_bytes
from mxpeak.precision import precision
from mxpeak.records import Result
from mxpeak.runtime.placement import on_device
from mxpeak.solvers.panel import PanelOptions
from mxpeak.solvers.pivoted_lu import PivotedLuOptions, factorize
from mxpeak.solvers.residual import residual_norms
from mxpeak.solvers.row_swap import SwapOptions
from mxpeak.solvers.triangular import solve_augmented
from mxpeak.spans import Observer, Spans

#: The phases that make up a run; "other" is what they leave: Python, and whatever has no name.
PARTS = ("rfact", "copy", "bcast", "laswp", "trsm", "gemm", "ptrsv")


def run(
    config: HplConfig,
    comm: Communicator,
    *,
    settings: dict[str, Setting] | None = None,
    observers: Sequence[Observer] = (),
    on_case: Callable[[HplCase, Result | None], None] = lambda case, result: None,
    argv: Sequence[str] = (),
) -> list[Result]:
    """Run every case of the config; `on_case` hears of each on rank 0 (None: it did not fit, and was skipped).

    Mistakes raise on every rank before anything runs.  Collective over comm.
    """
    config, settings = on_device(config, settings or {})
    return run_cases(config, _problem(config, comm), comm, settings, observers, on_case, argv)


def dry_run(config: HplConfig, comm: Communicator, settings: dict[str, Setting] | None = None) -> str:
    """What a run would do: grid, sizes and memory of each case, nothing run.  Collective over comm."""
    config, settings = on_device(config, settings or {})
    return dry_run_text(config, _problem(config, comm), comm, settings)


def _problem(config: HplConfig, comm: Communicator) -> Problem[HplCase]:
    return Problem(
        cases=lambda sizes: config.cases(comm.size, sizes),
        footprint=lambda case: hpl_memory_bytes,
        precision=lambda case: "fp64",
        run=run_case,
    )


def run_case(bench: LuBench, case: HplCase, grid: Grid) -> Result | None:
    """Generate, factor, solve, check; `--repeat` times, of which the best counts and all must pass.

    Collective over the grid; the result is whole on its rank 0.
    """
    kernels, config, forwards = bench.kernels, bench.config, bench.forwards(case)
    runs: list[Solve] = []

    def solve_all() -> float:
        if n := bench.warm_up_n(case):
            _solve(replace(case, n=n), grid, kernels, Spans((), kernels.stopwatch), forwards)
        for _ in range(config.repeat):
            spans = Spans(bench.observers if grid.all.rank == 0 else (), kernels.stopwatch)
            runs.append(_solve(case, grid, kernels, spans, forwards))
        return min(one.time_s for one in runs)

    limit = bench.limits(case, "fp64", solve_all)
    best = min(runs, key=lambda one: one.time_s)
    phases = phase_table(grid.all, best.spans)
    rss = peak_rss(grid.all)
    return hpl_result(case, runs, best, limit, phases, rss, bench.facts) if grid.all.rank == 0 else None


def _solve(case: HplCase, grid: Grid, kernels: Kernels, spans: Spans, forwards: bool) -> Solve:
    """Generate [A | b], time its solution, regenerate it and check.  Collective over the grid."""
    A = dist_matrix(grid, case.n, case.n + 1, case.nb, kernels)
    fill(A, case, kernels)
    options = PivotedLuOptions(
        PanelOptions(case.pfact, case.rfact, case.nbmin, case.ndiv, case.bcast),
        SwapOptions(case.swap, case.swap_threshold),
        min(case.depth, 1),
        case.split,
        forwards,
    )

    solution: list[Any] = []

    def solve() -> None:
        solution.append(factorize(A, options, kernels, spans))
        with spans("ptrsv", flops=float(case.n) ** 2):
            solution.append(solve_augmented(A, kernels))
        spans.finish()
        spans.add("other", max(0.0, spans.active_s - sum(map(spans.time_of, PARTS))))

    kernels.wait()
    grid.all.barrier()
    start = time.time()
    spans.start(f"HPL N={case.n}", hpl_flops(case.n))
    elapsed_s = slowest(grid, kernels, solve)
    end = time.time()
    singular, x = solution

    fill(A, case, kernels)
    norms = residual_norms(A, x, kernels)
    return Solve(elapsed_s, start, end, norms, norms.scaled(case.n, precision("fp64").u), singular, spans)


def fill(A: DistMatrix, case: HplCase, kernels: Kernels) -> None:
    """[A | b] of Netlib HPL: its right-hand side is one more column of the same sequence."""
    entries = generator("hpl", case.n, seed=case.seed).entries
    kernels.generate(A.local, A.rows, A.cols, entries)
