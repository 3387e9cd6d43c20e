"""What the LU benchmarks share: sizes, grids, limits, and the loop over cases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

from mxpeak.comm.base import Communicator
from mxpeak.comm.grid import Grid, make_grid
from mxpeak.configs.lu import LuCase, LuConfig
from mxpeak.distributed.vectors import largest
from mxpeak.errors import ResourceError
from mxpeak.kernels.contract import Kernels, Matrix
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.entries import Entries
from mxpeak.layout.grid import ProcessGrid
from mxpeak.options import Setting
from mxpeak.perf.counts import Footprint, hpl_flops
from mxpeak.records import Result
from mxpeak.runtime.facts import facts_of
from mxpeak.runtime.memory import memory_budget
from mxpeak.runtime.placement import Placement, load_kernels, place
from mxpeak.solvers.lu import storage
from mxpeak.spans import Observer

#: --quick: seconds that one run should take, and the orders between which it is chosen.
QUICK_S, QUICK_LEAST, QUICK_MOST, GPU_QUICK_MOST = 8.0, 1000, 20000, 80000
#: Largest block whose GEMM rate is measured; beyond it the rate no longer changes.
GEMM_BLOCK, GPU_GEMM_BLOCK = 4096, 16384
#: Products that a GPU makes between two looks at the clock: a single one is hardly longer than the look.
GPU_PROBES = 8
#: The order of a run before the clock on a GPU, at least: kernels have other forms for few rows.
GPU_WARM_N = 24 * 1024
#: Seconds over which the limit is looked for.
LIMIT_S = 0.3
#: Seconds of a run after which the limit is measured once more.
LIMIT_AGAIN_S = 1.0


AnyCase = TypeVar("AnyCase", bound=LuCase)


@dataclass(frozen=True, slots=True)
class Problem(Generic[AnyCase]):
    """What tells one LU benchmark from the other.

    cases        every case of the configuration, for orders that stand in where it leaves N open
    footprint    the bytes of a case
    precision    in which its products are made: that of the limit
    run          one case on its grid
    """

    cases: Callable[[Sequence[int] | None], Iterator[AnyCase]]
    footprint: Callable[[AnyCase], Footprint]
    precision: Callable[[AnyCase], str]
    run: Callable[[LuBench, AnyCase, Grid], Result | None]


class LuBench:
    """What all cases of one run share."""

    def __init__(
        self,
        config: LuConfig,
        comm: Communicator,
        placement: Placement,
        kernels: Kernels,
        settings: dict[str, Setting],
        observers: Sequence[Observer],
        argv: Sequence[str],
    ):
        self.config, self.comm, self.placement, self.kernels = config, comm, placement, kernels
        self.observers = observers
        self.facts = facts_of(argv, settings, comm, placement, kernels)
        self.budget = memory_budget(config, settings, comm)
        self.gemm_block = GPU_GEMM_BLOCK if config.on_gpu else GEMM_BLOCK
        self.grid = lru_cache(maxsize=None)(self._grid)
        self.limit = lru_cache(maxsize=None)(self.measure_limit)

    def default_n(self, footprint: Footprint, nb: int, P: int, Q: int, precision: str) -> int:
        """The order where none was asked for: what fills --mem, or, with --quick, what takes a few seconds."""
        n = self.budget.default_n(footprint, nb, P, Q)
        if self.config.quick:
            rate = 0.7 * self.limit(P, Q, nb, QUICK_LEAST, precision)
            most = GPU_QUICK_MOST if self.config.on_gpu else QUICK_MOST
            n = min(n, max(QUICK_LEAST, min(most, int((1.5 * rate * QUICK_S) ** (1 / 3)))))
            n = max(1, n // nb) * nb if n >= nb else n
        return int(self.comm.bcast_object(n))

    def forwards(self, case: LuCase) -> bool:
        """Whether ranks pass panels on, or networks want to be driven: then an update looks at what it hides.

        On one node with Q <= 2 nobody forwards and memory carries the message: no look is worth a cut.
        """
        return self.placement.nodes > 1 or case.Q > 2 or case.P > 1

    def warm_up_n(self, case: LuCase) -> int:
        """The order of the run that comes before the clock; 0: none.

        On a device always one, for libraries begin and kernels compile when first used, unless --warmup none.  It ends
        with a block of the same size as the case itself: kernels are compiled for what divides their sizes.
        """
        if self.config.warmup != "full" and (not self.config.on_gpu or self.config.warmup == "none"):
            return 0
        least = max(4 * case.nb * max(case.P, case.Q), GPU_WARM_N if self.config.on_gpu else 0)
        return case.n if case.n <= least else least + (case.n - least) % case.nb

    def _grid(self, P: int, Q: int) -> Grid | None:
        return make_grid(ProcessGrid(P, Q, self.config.order, self.config.node_grid), self.comm)

    def measure_limit(self, P: int, Q: int, nb: int, n: int, precision: str) -> float:
        """The best rate of GEMM on all ranks of the grid at once: their flops over the slowest one's time.

        `n` only bounds the blocks: where it is small, so are they.  Collective over the grid; 0 on idle ranks.
        """
        grid = self.grid(P, Q)
        if grid is None:
            return 0.0
        m, k = (max(64, min(self.gemm_block, n // side)) for side in (P, Q))
        probe, times = gemm_probe(self.kernels, m, k, nb, precision), GPU_PROBES if self.config.on_gpu else 1

        def multiply() -> None:
            for _ in range(times):
                probe()
            self.kernels.wait()
            grid.all.barrier()  # ranks that share a core work one after the other: wait for the last

        best, spent, repeats = 0.0, 0.0, 0
        while repeats < 3 or (spent < LIMIT_S and repeats < 100):
            grid.all.barrier()
            elapsed = slowest(grid, self.kernels, multiply)
            best = max(best, times * P * Q * 2.0 * m * k * nb / elapsed)
            spent, repeats = spent + elapsed, repeats + 1
        return best

    def limits(self, case: LuCase, precision: str, run: Callable[[], float]) -> float | None:
        """The limit of a case measured before `run`, which returns its seconds, and after it if it was long.

        Machines drift: the better of both counts.  Cases of like size share the first measurement.
        """
        size = min(1 << case.n.bit_length(), self.gemm_block * max(case.P, case.Q))
        probed = case.P, case.Q, case.nb, size, precision
        limit = self.limit(*probed) if self.config.warmup != "none" else None
        elapsed = run()
        if limit is not None and elapsed > LIMIT_AGAIN_S:
            limit = max(limit, self.measure_limit(*probed))
        return limit


def run_cases(
    config: LuConfig,
    problem: Problem[AnyCase],
    comm: Communicator,
    settings: dict[str, Setting],
    observers: Sequence[Observer],
    on_case: Callable[[AnyCase, Result | None], None],
    argv: Sequence[str],
) -> list[Result]:
    """Run every case; `on_case` hears of each on rank 0 (None: it did not fit, and was skipped).

    Mistakes raise on every rank before anything runs.  Collective over comm.
    """
    check_grids(config, comm)
    placement = place(comm, config.threads)
    try:
        kernels, comm = load_kernels(config, placement, comm)
        bench = LuBench(config, comm, placement, kernels, settings, observers, argv)
        cases = list(problem.cases(_sizes(problem, bench)))

        def fits(case: AnyCase) -> bool:
            return bench.budget.fits(problem.footprint(case), case.n, case.nb, case.P, case.Q)

        if not any(map(fits, cases)):
            first = cases[0]
            raise ResourceError(bench.budget.too_large(problem.footprint(first), first.n, first.nb, first.P, first.Q))
        results = []
        for case in cases:
            result = _run_case(problem, bench, case) if fits(case) else None
            if result is not None:
                results.append(result)
            if comm.rank == 0:
                on_case(case, result)
        return results
    finally:
        placement.release()


def _sizes(problem: Problem[AnyCase], bench: LuBench) -> Sequence[int] | None:
    """Orders for a configuration that leaves them open: one that suits its largest case."""
    if bench.config.n is not None:
        return None
    models = list(problem.cases([1]))
    largest = max(models, key=lambda model: problem.footprint(model)(10**4, model.nb, model.P, model.Q)["total"])
    nb = max(bench.config.nb)
    return [bench.default_n(problem.footprint(largest), nb, largest.P, largest.Q, problem.precision(largest))]


def _run_case(problem: Problem[AnyCase], bench: LuBench, case: AnyCase) -> Result:
    grid = bench.grid(case.P, case.Q)
    result = problem.run(bench, case, grid) if grid is not None else None
    return bench.comm.bcast_object(result)  # type: ignore[no-any-return]


def dry_run_text(
    config: LuConfig, problem: Problem[AnyCase], comm: Communicator, settings: dict[str, Setting] | None
) -> str:
    """What a run would do: grid, sizes and memory of each case, nothing run.  Collective over comm."""
    grids = check_grids(config, comm)
    lines = [ProcessGrid(*shape, config.order, config.node_grid).render() for shape in dict.fromkeys(grids)]
    budget = memory_budget(config, settings or {}, comm)
    sizes = config.n
    if sizes is None:
        first = next(problem.cases([1]))
        sizes = (budget.default_n(problem.footprint(first), max(config.nb), first.P, first.Q),)
        if config.quick:
            most = GPU_QUICK_MOST if config.on_gpu else QUICK_MOST
            lines.append(f"--quick: N is chosen after GEMM is measured, {QUICK_LEAST} to {most}; at most:")
    for case in problem.cases(sizes):
        footprint = problem.footprint(case)
        need = footprint(case.n, case.nb, case.P, case.Q)
        if not budget.fits(footprint, case.n, case.nb, case.P, case.Q):
            lines.append(f"does NOT fit, a node can give {budget.most / 2**30:.3g} GiB:")
        lines.append(
            f"{case.tag}  N {case.n}  NB {case.nb}  grid {case.P}x{case.Q}: matrix {need['matrix'] / 2**30:.3g} GiB "
            f"and buffers {need['buffers'] / 2**30:.3g} GiB, "
            f"{need['total'] / case.P / case.Q / 2**30:.3g} GiB a rank; {hpl_flops(case.n):.3g} flops"
        )
    return "\n".join(lines)


def check_grids(config: LuConfig, comm: Communicator) -> tuple[tuple[int, int], ...]:
    """Every grid, checked against the number of ranks; a mistake raises here, on every rank alike."""
    grids = config.grids(comm.size)
    for P, Q in grids:
        ProcessGrid(P, Q, config.order, config.node_grid)  # checks the node grid
    return grids


def slowest(grid: Grid, kernels: Kernels, work: Callable[[], None]) -> float:
    """Do the work and return the seconds that the slowest rank took.  Collective over the grid."""
    begin = time.perf_counter()
    work()
    kernels.wait()
    return largest(kernels, grid.all, [time.perf_counter() - begin])[0]


def gemm_probe(kernels: Kernels, m: int, n: int, k: int, precision: str) -> Callable[[], None]:
    """C = C - A B, C m×n and k columns in A, operands in a precision: to be called and timed.

    A and B are random numbers: products of equal ones draw less power, and are faster than those of an LU.
    """
    stored = storage(precision)
    C = kernels.matrix(m, n, stored)
    C[:] = 0.0

    def random(rows: int, columns: int, side: str, seed: int) -> Matrix:
        uniform = kernels.matrix(rows, columns, stored)
        entries = Entries("lcg", rows, seed=seed, scale=-1.0, shift=0.5)
        kernels.generate(uniform, BlockCyclic(rows, 64, 0, 1), BlockCyclic(columns, 64, 0, 1), entries)
        operand = kernels.operand_matrix(kernels.operand_buffer(rows, columns, precision, side), rows, columns, side)
        kernels.cast(uniform, operand, precision)
        return operand

    A, B = random(m, k, "left", 1), random(k, n, "right", 2)
    return lambda: kernels.subtract_product(C, A, B)
