"""HPL: solve A x = b in FP64 by LU with partial pivoting; the rules in one screen.

generated   [A | b], N×(N+1), Netlib HPL's own random matrix (seed 100), before the clock
timed       factorization and back substitution, from a barrier to the slowest rank's end
counted     2/3 N³ + 3/2 N² flops, whatever was executed
verified    on a regenerated [A | b]: ||Ax-b|| / (u·(||x||·||A|| + ||b||)·N) < 16 in the infinity norm, u = 2^-53
limit       DGEMM with inner dimension NB on all ranks at once, in the same process
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from mxpeak.bench.hpl_result import Facts, Solve, hpl_result, phase_table
from mxpeak.bench.memory import memory_budget
from mxpeak.bench.placement import Placement, launch_facts, load_kernels, place
from mxpeak.comm.base import Communicator
from mxpeak.comm.grid import Grid, make_grid
from mxpeak.comm.launch import hosts, ranks_a_node
from mxpeak.configs import HplCase, HplConfig
from mxpeak.dist.matrix import dist_matrix
from mxpeak.errors import ResourceError
from mxpeak.kernels.contract import Kernels
from mxpeak.layout.grid import ProcessGrid
from mxpeak.options import Setting
from mxpeak.perf.counts import hpl_flops, hpl_memory_bytes
from mxpeak.perf.host import environment, host_facts, software_facts
from mxpeak.precision import precision
from mxpeak.records import Result
from mxpeak.solvers.lu_pivot import LuOptions, factorize
from mxpeak.solvers.panel import PanelOptions
from mxpeak.solvers.residual import residual_norms
from mxpeak.solvers.row_swap import SwapOptions
from mxpeak.solvers.triangular import solve_upper
from mxpeak.spans import Observer, Spans

#: --quick: seconds that one run should take, and the orders between which it is chosen.
QUICK_S, QUICK_LEAST, QUICK_MOST = 8.0, 1000, 20000
#: Pieces of an update that hides communication, with a look at the communication before each.
LOOKS = 8
#: The phases that make up a run; "other" is what they leave: Python, and whatever has no name.
PARTS = ("rfact", "copy", "bcast", "laswp", "trsm", "gemm", "ptrsv")
#: Largest block whose DGEMM rate is measured; beyond it the rate no longer changes.
GEMM_BLOCK = 4096
#: Seconds over which the limit is looked for.
LIMIT_S = 0.3
#: Seconds of a run after which the limit is measured once more.
LIMIT_AGAIN_S = 1.0


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
    grids = _check_grids(config, comm)
    placement = place(comm, config.threads)
    try:
        kernels = load_kernels(config.kernels, config.device, placement, comm)
        bench = _Bench(config, comm, placement, kernels, settings or {}, observers, list(argv))
        sizes = config.n if config.n is not None else (bench.default_n(*grids[0]),)
        cases = list(config.cases(comm.size, sizes))
        if not any(bench.budget.fits(case) for case in cases):
            raise ResourceError(bench.budget.too_large(cases[0]))
        results = []
        for case in cases:
            result = bench.run_case(case) if bench.budget.fits(case) else None
            if result is not None:
                results.append(result)
            if comm.rank == 0:
                on_case(case, result)
        return results
    finally:
        placement.release()


def dry_run(config: HplConfig, comm: Communicator, settings: dict[str, Setting] | None = None) -> str:
    """What a run would do: grid, sizes and memory of each case, nothing run.  Collective over comm."""
    grids = _check_grids(config, comm)
    lines = [ProcessGrid(*shape, config.order, config.node_grid).render() for shape in dict.fromkeys(grids)]
    budget = memory_budget(config, settings or {}, comm, ranks_a_node(hosts(comm)))
    sizes = config.n
    if sizes is None:
        sizes = (budget.default_n(max(config.nb), *grids[0]),)
        if config.quick:
            lines.append(
                f"--quick: DGEMM is measured, then N is chosen between {QUICK_LEAST} and {QUICK_MOST}; at most:"
            )
    for case in config.cases(comm.size, sizes):
        need = hpl_memory_bytes(case.n, case.nb, case.P, case.Q)
        if not budget.fits(case):
            lines.append(f"does NOT fit, a node can give {budget.most / 2**30:.3g} GiB:")
        lines.append(
            f"{case.tag}  N {case.n}  NB {case.nb}  grid {case.P}x{case.Q}: matrix {need['matrix'] / 2**30:.3g} GiB "
            f"and buffers {need['buffers'] / 2**30:.3g} GiB, "
            f"{need['total'] / case.P / case.Q / 2**30:.3g} GiB a rank; {hpl_flops(case.n):.3g} flops"
        )
    return "\n".join(lines)


def _check_grids(config: HplConfig, comm: Communicator) -> tuple[tuple[int, int], ...]:
    """Every grid, checked against the number of ranks; a mistake raises here, on every rank alike."""
    grids = config.grids(comm.size)
    for P, Q in grids:
        ProcessGrid(P, Q, config.order, config.node_grid)  # checks the node grid
    return grids


class _Bench:
    """What all cases of one run share."""

    def __init__(
        self,
        config: HplConfig,
        comm: Communicator,
        placement: Placement,
        kernels: Kernels,
        settings: dict[str, Setting],
        observers: Sequence[Observer],
        argv: list[str],
    ):
        self.config, self.comm, self.placement, self.kernels = config, comm, placement, kernels
        self.observers = observers
        self.facts = Facts(
            argv=argv,
            config={name: {"value": s.value, "origin": s.origin} for name, s in settings.items()},
            machine={**host_facts(affinity=placement.before), "nodes": placement.nodes},
            software={**software_facts(), **kernels.facts(), "environment": environment()},
            launch=launch_facts(comm, placement),
            cautions=placement.cautions,
        )
        self.budget = memory_budget(config, settings, comm, placement.ranks_a_node)
        self.grid = lru_cache(maxsize=None)(self._grid)
        self.limit = lru_cache(maxsize=None)(self._limit)

    def default_n(self, P: int, Q: int) -> int:
        """The order where none was asked for: what fills --mem, or, with --quick, what takes a few seconds."""
        nb = max(self.config.nb)
        n = self.budget.default_n(nb, P, Q)
        if self.config.quick:
            rate = 0.7 * self.limit(P, Q, nb, QUICK_LEAST)
            n = min(n, max(QUICK_LEAST, min(QUICK_MOST, int((1.5 * rate * QUICK_S) ** (1 / 3)))))
            n = max(1, n // nb) * nb if n >= nb else n
        return int(self.comm.bcast_object(n))

    def _grid(self, P: int, Q: int) -> Grid | None:
        return make_grid(ProcessGrid(P, Q, self.config.order, self.config.node_grid), self.comm)

    def _limit(self, P: int, Q: int, nb: int, n: int) -> float:
        """The best rate of DGEMM on all ranks of the grid at once: their flops over the slowest one's time.

        `n` only bounds the blocks: where it is small, so are they.  Collective over the grid; 0 on idle ranks.
        """
        grid = self.grid(P, Q)
        if grid is None:
            return 0.0
        m, k = (max(64, min(GEMM_BLOCK, n // side)) for side in (P, Q))
        probe = self.kernels.gemm_probe(m, k, nb)

        def multiply() -> None:
            probe()
            grid.all.barrier()  # ranks that share a core work one after the other: wait for the last

        best, spent, repeats = 0.0, 0.0, 0
        while repeats < 3 or (spent < LIMIT_S and repeats < 100):
            grid.all.barrier()
            elapsed = _slowest(grid, self.kernels, multiply)
            best = max(best, P * Q * 2.0 * m * k * nb / elapsed)
            spent, repeats = spent + elapsed, repeats + 1
        return best

    def run_case(self, case: HplCase) -> Result:
        """Generate, factor, solve, check; `--repeat` times, of which the best counts and all must pass."""
        grid = self.grid(case.P, case.Q)
        # Cases of like size share one measurement.
        probed = case.P, case.Q, case.nb, min(1 << case.n.bit_length(), GEMM_BLOCK * max(case.P, case.Q))
        limit = self.limit(*probed) if self.config.warmup != "none" else None
        if grid is None:
            return self.comm.bcast_object(None)  # type: ignore[no-any-return]
        # On one node with Q <= 2 nobody forwards and memory carries the message: no look is worth a cut.
        looks = LOOKS if self.placement.nodes > 1 or case.Q > 2 or case.P > 1 else 1
        if self.config.warmup == "full":
            _solve(replace(case, n=min(case.n, 4 * case.nb * max(case.P, case.Q))), grid, self.kernels, Spans(), looks)
        runs = [
            _solve(case, grid, self.kernels, Spans(self.observers if grid.all.rank == 0 else ()), looks)
            for _ in range(self.config.repeat)
        ]
        best = min(runs, key=lambda one: one.time_s)
        if limit is not None and best.time_s > LIMIT_AGAIN_S:
            limit = max(limit, self._limit(*probed))  # machines drift: the better of before and after
        phases = phase_table(grid, best.spans)
        unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss
        rss = grid.all.gather_objects(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
        result = None
        if grid.all.rank == 0:
            result = hpl_result(case, runs, best, limit, phases, sum(rss or []), self.facts)
        return self.comm.bcast_object(result)  # type: ignore[no-any-return]


def _solve(case: HplCase, grid: Grid, kernels: Kernels, spans: Spans, looks: int) -> Solve:
    """Generate [A | b], time its solution, regenerate it and check.  Collective over the grid."""
    A = dist_matrix(grid, case.n, case.n + 1, case.nb, kernels)
    kernels.generate_lcg(A.local, A.rows, A.cols, case.seed)
    options = LuOptions(
        PanelOptions(case.pfact, case.rfact, case.nbmin, case.ndiv, case.bcast),
        SwapOptions(case.swap, case.swap_threshold),
        min(case.depth, 1),
        case.split,
        looks,
    )

    solution: list[Any] = []

    def solve() -> None:
        solution.append(factorize(A, options, kernels, spans))
        with spans("ptrsv", flops=float(case.n) ** 2):
            solution.append(solve_upper(A, kernels))
        spans.finish()
        spans.add("other", spans.active_s - sum(spans.phases[p].time_s for p in PARTS if p in spans.phases))

    grid.all.barrier()
    start = time.time()
    spans.start(f"HPL N={case.n}", hpl_flops(case.n))
    elapsed_s = _slowest(grid, kernels, solve)
    end = time.time()
    singular, x = solution

    kernels.generate_lcg(A.local, A.rows, A.cols, case.seed)
    norms = residual_norms(A, x, kernels)
    return Solve(elapsed_s, start, end, norms, norms.scaled(case.n, precision("fp64").u), singular, spans)


def _slowest(grid: Grid, kernels: Kernels, work: Callable[[], None]) -> float:
    """Do the work and return the seconds that the slowest rank took.  Collective over the grid."""
    begin = time.perf_counter()
    work()
    elapsed = kernels.zeros(1)
    kernels.assign(elapsed, [time.perf_counter() - begin])
    grid.all.allreduce(elapsed, "max")
    return kernels.floats(elapsed)[0]
