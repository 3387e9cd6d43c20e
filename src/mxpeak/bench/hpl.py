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
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isfinite
from typing import Any

from mxpeak.bench.placement import Placement, launch_facts, load_kernels, place
from mxpeak.comm.base import Communicator
from mxpeak.comm.grid import Grid, make_grid
from mxpeak.comm.launch import hosts
from mxpeak.dist.matrix import dist_matrix
from mxpeak.errors import Outcome, ResourceError
from mxpeak.kernels.contract import Kernels
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.grid import ProcessGrid
from mxpeak.layout.schedule import split_columns
from mxpeak.perf.counts import hpl_bytes, hpl_flops, hpl_memory_bytes, largest_n
from mxpeak.perf.host import (
    available_memory_bytes,
    environment,
    host_facts,
    software_facts,
    total_memory_bytes,
)
from mxpeak.precision import precision
from mxpeak.records import Caution, HplCase, HplConfig, Result, Setting, memory_bytes
from mxpeak.solvers.lu_pivot import LuOptions, factorize
from mxpeak.solvers.panel import PanelOptions
from mxpeak.solvers.residual import ResidualNorms, residual_norms
from mxpeak.solvers.row_swap import SwapOptions
from mxpeak.solvers.triangular import solve_upper
from mxpeak.spans import Observer, Spans

FORMULA = "||Ax-b||_oo / ( eps * ( || x ||_oo * || A ||_oo + || b ||_oo ) * N )"
#: HPL's bound on the scaled residual, for files that ask for no check: every rate is checked here.
THRESHOLD = 16.0
#: --quick: seconds that one run should take, and the orders between which it is chosen.
QUICK_S, QUICK_LEAST, QUICK_MOST = 8.0, 1000, 20000
#: Share of the free memory that may be planned for: Python, MPI and the padding of rows come on top.
MARGIN = 0.95
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
        fits = [bench.fits(case) for case in cases]
        if not any(fits):
            raise ResourceError(bench.too_large(cases[0]))
        results = []
        for case, fit in zip(cases, fits):
            result = bench.run_case(case) if fit else None
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
    budget = memory_budget(config, settings or {}, comm)
    names = hosts(comm)
    ranks_a_node = max(names.count(name) for name in names)
    sizes = config.n
    if sizes is None:
        sizes = (default_n(config, budget, ranks_a_node, *grids[0]),)
        if config.quick:
            lines.append(
                f"--quick: DGEMM is measured, then N is chosen between {QUICK_LEAST} and {QUICK_MOST}; at most:"
            )
    for case in config.cases(comm.size, sizes):
        need = hpl_memory_bytes(case.n, case.nb, case.P, case.Q)
        a_node = need["total"] * min(ranks_a_node, case.P * case.Q) // (case.P * case.Q)
        if a_node > budget.most:
            lines.append(f"does NOT fit, a node can give {budget.most / 2**30:.3g} GiB:")
        lines.append(
            f"{case.tag}  N {case.n}  NB {case.nb}  grid {case.P}x{case.Q}: matrix {need['matrix'] / 2**30:.3g} GiB "
            f"and buffers {need['buffers'] / 2**30:.3g} GiB, "
            f"{need['total'] / case.P / case.Q / 2**30:.3g} GiB a rank; {hpl_flops(case.n):.3g} flops"
        )
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes that the poorest node can give: at most, and to a problem whose size was left open."""

    most: int
    default: int


def memory_budget(config: HplConfig, settings: dict[str, Setting], comm: Communicator) -> Budget:
    """What is free now, less a margin for all that is not counted; an explicit --mem caps it.  Collective over comm."""
    total, free = total_memory_bytes() or 2**63, available_memory_bytes() or 2**63
    asked, free = memory_bytes(config.mem, total), int(MARGIN * free)
    explicit = settings.get("mem", Setting("", "default")).origin != "default"
    budgets = comm.bcast_object(comm.gather_objects((min(free, asked) if explicit else free, min(free, asked))))
    return Budget(*(min(column) for column in zip(*budgets)))


def default_n(config: HplConfig, budget: Budget, ranks_a_node: int, P: int, Q: int) -> int:
    """The largest order that the budget of all nodes holds."""
    return largest_n(budget.default * P * Q // min(ranks_a_node, P * Q), max(config.nb), P, Q)


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
        self.observers, self.argv = observers, argv
        self.config_facts = {name: {"value": s.value, "origin": s.origin} for name, s in settings.items()}
        self.launch = launch_facts(comm, placement)
        self.machine = {**host_facts(affinity=placement.before), "nodes": placement.nodes}
        self.software = {**software_facts(), **kernels.facts(), "environment": environment()}
        self.budget = memory_budget(config, settings, comm)
        self.grid = lru_cache(maxsize=None)(self._grid)
        self.limit = lru_cache(maxsize=None)(self._limit)

    # --- sizes

    def default_n(self, P: int, Q: int) -> int:
        """The order where none was asked for: what fills --mem, or, with --quick, what takes a few seconds."""
        nb = max(self.config.nb)
        n = default_n(self.config, self.budget, self.placement.ranks_a_node, P, Q)
        if self.config.quick:
            rate = 0.7 * self.limit(P, Q, nb, QUICK_LEAST)
            n = min(n, max(QUICK_LEAST, min(QUICK_MOST, int((1.5 * rate * QUICK_S) ** (1 / 3)))))
            n = max(1, n // nb) * nb if n >= nb else n
        return int(self.comm.bcast_object(n))

    def need(self, case: HplCase) -> int:
        """Bytes that a case needs on a full node."""
        total = hpl_memory_bytes(case.n, case.nb, case.P, case.Q)["total"]
        return total * min(self.placement.ranks_a_node, case.P * case.Q) // (case.P * case.Q)

    def fits(self, case: HplCase) -> bool:
        """Whether every node has room for a case."""
        return self.comm.agree(self.need(case) <= self.budget.most)

    def too_large(self, case: HplCase) -> str:
        """Why a case does not fit, and what would."""
        ranks = case.P * case.Q
        most = largest_n(self.budget.most * ranks // min(self.placement.ranks_a_node, ranks), case.nb, case.P, case.Q)
        return (
            f"N = {case.n} takes 8*N*(N+1) = {hpl_bytes(case.n) / 2**30:.1f} GiB and buffers, "
            f"{self.need(case) / 2**30:.3g} GiB a node, but {self.budget.most / 2**30:.3g} GiB of a node can be "
            f"planned for (what is free less {1 - MARGIN:.0%}, or --mem); "
            f"the largest N that fits is {most}: type -N {most}"
        )

    # --- one case

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
        phases = _phases(grid, best.spans)
        unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss
        rss = grid.all.gather_objects(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
        result = None
        if grid.all.rank == 0:
            result = self._result(case, runs, best, limit, phases, sum(rss or []))
        return self.comm.bcast_object(result)  # type: ignore[no-any-return]

    def _result(
        self, case: HplCase, runs: list[_Run], best: _Run, limit: float | None, phases: dict[str, Any], rss: int
    ) -> Result:
        worst = max(runs, key=lambda one: _badness(one.scaled))
        threshold = case.threshold if case.threshold > 0 else THRESHOLD
        passed = worst.scaled < threshold  # a NaN is not below anything
        rate = hpl_flops(case.n) / best.time_s if best.time_s > 0 else 0.0
        grid_text = ProcessGrid(case.P, case.Q, case.order, case.node_grid).render()
        return Result(
            benchmark="hpl",
            status="valid" if passed else "invalid",
            run={
                "id": str(uuid.uuid4()),
                "argv": self.argv,
                "start_unix": best.start_unix,
                "end_unix": best.end_unix,
                "start": _utc(best.start_unix),
                "end": _utc(best.end_unix),
            },
            problem={
                "n": case.n,
                "nb": case.nb,
                "P": case.P,
                "Q": case.Q,
                "order": case.order,
                "seed": case.seed,
                "node_grid": case.node_grid,
                "variant": case.tag,
                "split": case.split,
                "memory_bytes": hpl_memory_bytes(case.n, case.nb, case.P, case.Q),
                "process_peak_rss_bytes": rss,
                "flops": hpl_flops(case.n),
            },
            result={
                "rate_flops": rate,
                "time_s": best.time_s,
                "fraction_of_limit": rate / limit if limit else None,
                "limit": {"name": f"DGEMM, inner dimension {case.nb}", "rate_flops": limit},
                "emulated": False,
            },
            validation={
                "passed": passed,
                "residual": worst.scaled,
                "threshold": threshold,
                "formula": FORMULA,
                "iterations": None,
                "outcome": _outcome(worst, passed),
                "norms": {
                    "residual": worst.norms.residual,
                    "A_inf": worst.norms.A_inf,
                    "A_one": worst.norms.A_one,
                    "x_inf": worst.norms.x_inf,
                    "x_one": worst.norms.x_one,
                    "b_inf": worst.norms.b_inf,
                },
                "residual_hex": worst.scaled.hex() if isfinite(worst.scaled) else None,
            },
            samples_s=[one.time_s for one in runs],
            phases=phases,
            config=self.config_facts,
            machine=self.machine,
            software=self.software,
            launch={**self.launch, "grid": grid_text},
            warnings=[*self.placement.cautions, *_cautions(case, rate, limit)],
        )


# --- the timed run ----------------------------------------------------------------------------------------------


class _Run:
    """One timed solve and its check."""

    def __init__(
        self, time_s: float, start: float, end: float, norms: ResidualNorms, n: int, singular: int, spans: Spans
    ):
        self.time_s, self.start_unix, self.end_unix = time_s, start, end
        self.norms, self.singular, self.spans = norms, singular, spans
        self.scaled = norms.scaled(n, precision("fp64").u)


def _solve(case: HplCase, grid: Grid, kernels: Kernels, spans: Spans, looks: int) -> _Run:
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
    return _Run(elapsed_s, start, end, norms, case.n, singular, spans)


def _slowest(grid: Grid, kernels: Kernels, work: Callable[[], None]) -> float:
    """Do the work and return the seconds that the slowest rank took.  Collective over the grid."""
    begin = time.perf_counter()
    work()
    elapsed = kernels.zeros(1)
    kernels.assign(elapsed, [time.perf_counter() - begin])
    grid.all.allreduce(elapsed, "max")
    return kernels.floats(elapsed)[0]


def _phases(grid: Grid, spans: Spans) -> dict[str, dict[str, Any]]:
    """Mean, largest and smallest time of each phase over the ranks; sums of flops, bytes, calls.  Whole on rank 0."""
    everybody = grid.all.gather_objects(
        {name: (p.time_s, p.flops, p.bytes, p.calls) for name, p in spans.phases.items()}
    )
    table: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(name for phases in everybody or [] for name in phases):
        parts = [phases.get(name, (0.0, 0.0, 0.0, 0)) for phases in everybody or []]
        times, flops, moved, calls = zip(*parts)
        table[name] = {
            "time_s": sum(times) / len(times),
            "max_s": max(times),
            "min_s": min(times),
            "flops": sum(flops),
            "bytes": sum(moved),
            "calls": sum(calls),
        }
    return table


def _badness(scaled: float) -> float:
    return scaled if scaled == scaled else sys.float_info.max


def _outcome(run: _Run, passed: bool) -> str:
    if passed:
        return Outcome.SOLVED
    if run.singular:
        return Outcome.SINGULAR
    return Outcome.INACCURATE if isfinite(run.scaled) else Outcome.NOT_FINITE


def _cautions(case: HplCase, rate: float, limit: float | None) -> list[Caution]:
    cautions = []
    if case.depth > 1:
        text = f"look-ahead depth {case.depth} was asked for and ran as 1"
        cautions.append(Caution("depth", text, "a deeper look-ahead gains nothing here; use --depth 1"))
    if case.split > 0 and (case.depth == 0 or case.P == 1):
        reason = "there is one process row, whose rows move without messages" if case.P == 1 else "it needs look-ahead"
        cautions.append(Caution("split", f"--split {case.split:g} had no effect: {reason}", "use P > 1 and --depth 1"))
    elif case.split > 0 and not _ever_splits(case):
        text = f"--split {case.split:g} had no effect: N = {case.n} leaves no left section of NB = {case.nb} columns"
        cautions.append(Caution("split", text, "use a larger N, a smaller --nb, or another --split"))
    if limit is not None and rate > limit:
        text = (
            f"the rate is above the limit ({rate / 1e9:.1f} of {limit / 1e9:.1f} GFLOP/s): the machine's speed changed"
        )
        cautions.append(Caution("drift", text, "run again when nothing else runs, or with --repeat 3"))
    if case.threshold <= 0:
        text = f"threshold {case.threshold:g} asks for no check; the residual was checked against {THRESHOLD:g}"
        cautions.append(Caution("threshold", text, "give the threshold of the rules, 16"))
    return cautions


def _ever_splits(case: HplCase) -> bool:
    """Whether the first step of the process column that owns the first panel has a left and a right section."""
    columns = BlockCyclic(case.n + 1, case.nb, 0, case.Q)
    n2 = split_columns(columns.local_size, case.split, case.nb)
    return 0 < n2 <= columns.local_size - columns.local_start(2 * case.nb)


def _utc(unix: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix))
