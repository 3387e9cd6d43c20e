"""Run HPL, which solves A x = b in fp64 by LU with partial pivoting, by the following rules.

generated   [A | b], N×(N+1), Netlib HPL's own random matrix (seed 100), before the clock
timed       factorization and back substitution, from a barrier to the slowest rank's end
counted     2/3 N³ + 3/2 N² flops, independently of the executed flops
verified    on a regenerated [A | b]: ||Ax-b|| / (u·(||x||·||A|| + ||b||)·N) < 16 in the infinity norm, u = 2^-53
limit       DGEMM with inner dimension NB on all ranks at once, in the same process, before and after the run; or the
            rate that the run's own DGEMM reached
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Unpack

from mxpeak.bench.dry_run import DryRun
from mxpeak.bench.harness import RunHooks, check_grids
from mxpeak.bench.hpl.config import HplCase, HplConfig
from mxpeak.bench.hpl.result import HplSolve, hpl_result
from mxpeak.bench.lu import LuBench, Problem, dry_run_lu, run_lu
from mxpeak.bench.soak import bits_of
from mxpeak.comm.base import Communicator
from mxpeak.comm.grid import Grid
from mxpeak.distributed.dense import DistMatrix, dist_matrix
from mxpeak.kernels.contract import Kernels, Vector
from mxpeak.layout.generators import generator
from mxpeak.options import Run
from mxpeak.perf.counts import hpl_flops, hpl_memory_bytes
from mxpeak.precision import precision
from mxpeak.records import Result
from mxpeak.solvers.abft.checksums import checking
from mxpeak.solvers.abft.pivoted_checksums import PivotedChecks, with_checksums
from mxpeak.solvers.checkpointing import NO_CHECKPOINTS
from mxpeak.solvers.growth_monitor import DiagonalBlocks
from mxpeak.solvers.lu.panel import PanelOptions
from mxpeak.solvers.lu.panel_solves import PanelSolves, panel_solve_facts
from mxpeak.solvers.lu.pivoted_lu import PivotedLu, PivotedLuOptions
from mxpeak.solvers.lu.row_swap import SwapOptions
from mxpeak.solvers.lu.triangular import solve_augmented
from mxpeak.solvers.residual import ResidualNorms, residual_norms
from mxpeak.spans import Spans

#: The phases of a run; "other" is the remaining time.
PARTS = ("rfact", "copy", "bcast", "laswp", "trsm", "gemm", "ptrsv", "abft")


def run(config: HplConfig, comm: Communicator, **hooks: Unpack[RunHooks]) -> list[Result]:
    """Run every case and return the results. Usage errors are raised on every rank before any case.

    Collective over comm.
    """
    return run_lu(HPL, config, comm, **hooks)


def dry_run(config: HplConfig, comm: Communicator, origins: Mapping[str, str] | None = None) -> DryRun:
    """Describe the grid, the sizes and the memory of each case without running it. Collective over comm."""
    return dry_run_lu(HPL, Run(config, origins or {}), comm)


def _solve(bench: LuBench, case: HplCase, grid: Grid, spans: Spans) -> HplSolve:
    """Generate [A | b], time the solution, generate [A | b] again and check the solution. Collective over the grid."""
    kernels = bench.kernels
    shape = case.n, case.n + 1, case.nb
    if bench.config.abft:
        A, wide = with_checksums(grid, *shape, kernels)
    else:
        wide = A = dist_matrix(grid, *shape, kernels)
    fill(A, case, kernels)
    options = lu_options(case, forwards=bench.forwards(case))

    solution: list[Any] = []
    solves, spans.on_device = PanelSolves(), bench.on_device(case.P)
    blocks, checkpointer = DiagonalBlocks(A, kernels), bench.checkpointer(A, spans)
    if checkpointer is not None:
        checkpointer.load(blocks)
    checks = PivotedChecks(A, wide, kernels, spans, checkpointer or NO_CHECKPOINTS) if bench.config.abft else None
    lu = PivotedLu(options, None, solves, wide, kernels, spans, blocks, checks or checkpointer or NO_CHECKPOINTS)
    lu.touch_buffers()

    def solve() -> None:
        spans.start(f"HPL N={case.n}", hpl_flops(case.n), bench.before_s)
        with checking(checks):
            solution.append(lu.factorize())
        with spans("ptrsv", flops=float(case.n) ** 2 / grid.all.size):
            solution.append(solve_augmented(A, kernels))
        spans.finish()
        spans.add("other", max(0.0, spans.active_s - sum(map(spans.time_of, PARTS))), scattered=True)

    kernels.fp64_emulation()  # forget the products of the limit and of the warm-up
    start = time.time()
    elapsed_s = bench.before_s + bench.metered(solve, grid.all)
    end = time.time()
    bench.announce(f"N={case.n}: checking the solution")
    if checkpointer is not None:
        bench.facts.cautions.extend(checkpointer.finish())
    checked = None if checks is None else checks.checked()
    singular, x = solution
    growth_report = blocks.report(with_l=False)

    bits = bits_of(kernels, A.local, x) if bench.config.soak else ""
    bench.check_fp64(A)
    norms, scaled = residual_of(A, x, case, kernels)
    facts = panel_solve_facts(grid.all.gather_objects(solves) or [solves])
    return HplSolve(elapsed_s, start, end, norms, scaled, singular, spans, growth_report, bits, checked, facts)


def lu_options(case: HplCase, *, forwards: bool) -> PivotedLuOptions:
    """Return the options of the factorization; `forwards` states whether updates poll for messages."""
    return PivotedLuOptions(
        PanelOptions(case.pfact, case.rfact, case.nbmin, case.ndiv, case.bcast),
        SwapOptions(case.swap, case.swap_threshold),
        case.lookahead,
        case.split,
        forwards,
    )


def residual_of(A: DistMatrix, x: Vector, case: HplCase, kernels: Kernels) -> tuple[ResidualNorms, float]:
    """Generate [A | b] again, and return the norms and the scaled residual of x. Collective over the grid."""
    fill(A, case, kernels)
    norms = residual_norms(A, x, kernels)
    return norms, norms.scaled(case.n, precision("fp64").u)


def fill(A: DistMatrix, case: HplCase, kernels: Kernels) -> None:
    """Fill A with Netlib HPL's random [A | b], in which b continues the random sequence of A."""
    entries = generator("hpl", case.n, seed=case.seed).entries
    kernels.generate(A.local, A.rows, A.cols, entries)


HPL: Problem[HplCase, HplSolve] = Problem(
    check=check_grids,
    footprint=lambda case, on_gpu: partial(hpl_memory_bytes, panels=3 if on_gpu and case.split and case.P > 1 else 2),
    precision=lambda case: "fp64",
    solve=_solve,
    result=hpl_result,
)
