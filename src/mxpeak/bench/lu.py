"""The code that the LU benchmarks share: orders that fill the memory, limits, warm-ups and repeated solves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Generic, Protocol, TypeVar, Unpack, cast

from mxpeak.bench import quick
from mxpeak.bench.abft import check_abft, record_faults
from mxpeak.bench.checkpointing import OF_THE_NODES, CheckpointedRun, FolderCheckpointer, open_checkpoints
from mxpeak.bench.dry_run import DryRun, with_open_values
from mxpeak.bench.fp64 import Arithmetic, arithmetic_of, check_request, fewest_bits
from mxpeak.bench.harness import (
    Bench,
    RunHooks,
    check_grids,
    node_cautions,
    peak_rss,
    phase_table,
    run_cases,
    threads_per_rank,
    with_node_grid,
)
from mxpeak.bench.limits import MIN_S, Limit, Reading, Readings, reading
from mxpeak.bench.soak import Soak
from mxpeak.bench.timeline import cut_off, events_per_rank, step_table, timeline
from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import allreduce_scalars
from mxpeak.comm.grid import Grid, make_grid
from mxpeak.configs.lu import LuCase, LuConfig
from mxpeak.distributed.dense import DistMatrix
from mxpeak.errors import MxpeakError, ResourceError, StoppedError
from mxpeak.kernels.contract import Kernels, Matrix
from mxpeak.kernels.contract.emulation import cublas_workspace_bytes, host_workspace_bytes
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.entries import Entries
from mxpeak.layout.grid import ProcessGrid
from mxpeak.options import Run
from mxpeak.perf.counts import Footprint, hpl_flops
from mxpeak.precision import PRECISIONS, stored_as
from mxpeak.records import Caution, Result, size_text
from mxpeak.runtime.memory import Budget, memory_budget
from mxpeak.runtime.placement import has_slow_fp64, native_precisions, on_device, on_processor
from mxpeak.solvers.abft.lu_faults import FaultSummary
from mxpeak.solvers.fp64_probe import probe_products, sampled_steps
from mxpeak.solvers.growth_monitor import GrowthReport
from mxpeak.spans import Phase, Spans

#: The largest block whose GEMM rate is measured; larger blocks have the same rate.
GEMM_BLOCK, GPU_GEMM_BLOCK = 4096, 16384
#: Products per timing on a GPU, because a single product takes hardly longer than the timing call.
GPU_PROBES = 8
#: The smallest order of a warm-up run on a GPU: for few rows, libraries use other kernels.
GPU_WARM_N = 24 * 1024
#: The side of the products on the host that determine the arithmetic of fp64. Larger ones would take seconds.
PROBE_SIDE = 128

#: Phases that a device executes. `rfact` is another one if the device's library factors the panels.
DEVICE_PHASES = frozenset(("copy", "moves", "trsm", "gemm", "cast", "factor"))

AnyCase = TypeVar("AnyCase", bound=LuCase)
#: A product whose rate is a limit: P, Q, NB, the order that bounds its blocks, and the precision.
Probed = tuple[int, int, int, int, str]


class LuSolve(Protocol):
    """The attributes that the solves of HPL and HPL-MxP have in common: time, spans and diagnostics."""

    @property
    def time_s(self) -> float:
        """Return the time of the slowest rank in seconds."""

    @property
    def spans(self) -> Spans:
        """Return the timed spans of the solve."""

    @property
    def growth_report(self) -> GrowthReport:
        """Return the growth of the diagonal blocks of the LU."""

    @property
    def bits(self) -> str:
        """Return the digest of this rank's factors and solution if --soak is given."""

    @property
    def checked(self) -> FaultSummary | None:
        """Return the result of the checksums if --abft is given."""


AnySolve = TypeVar("AnySolve", bound=LuSolve)


@dataclass(frozen=True, slots=True)
class Measured:
    """The GEMM rates that determine the limit of a case.

    before, after   readings before and after the solves
    phase           the rate of the fastest GEMM phase of the solves
    """

    before: Reading | None
    after: Reading | None
    phase: float | None

    def limit(self, name: str, rate: float) -> Limit:
        """Return the limit of a case: the highest of the readings, `rate` and the rate of the fastest GEMM phase.

        The case therefore never exceeds its limit. `name` describes the limit, and `rate` is the rate of the case.
        """
        limit = Limit(name, "rate_flops", self.before, self.after).including("run", rate)
        return limit if self.phase is None else limit.including("gemm", self.phase)


@dataclass(frozen=True, slots=True)
class CaseSolves(Generic[AnySolve]):
    """The solves of one case, and the measurements for its result.

    measured   the GEMM rates that determine the limit
    phases     the phases of the fastest solve
    memory     the estimated bytes of the matrix, the buffers and both, over all ranks
    peak_rss   the sum of the peak resident set sizes of all ranks in bytes
    fp64       the arithmetic of fp64 products; None if the products of the case are in another precision
    """

    solves: list[AnySolve]
    measured: Measured
    phases: dict[str, Any]
    memory: dict[str, int]
    peak_rss: int
    fp64: Arithmetic | None = None

    @property
    def best(self) -> AnySolve:
        """Return the fastest solve."""
        return min(self.solves, key=lambda solve: solve.time_s)


@dataclass(frozen=True, slots=True)
class Problem(Generic[AnyCase, AnySolve]):
    """The functions in which the LU benchmarks differ.

    check        raises an error for configurations that cannot be run
    footprint    returns the bytes of a case, on a GPU or not
    precision    returns the precision of the products of a case, and of its limit
    solve        runs one timed solve of a case on its grid, with the given spans
    result       builds a result from the solves of a case, on rank 0 of the grid
    """

    check: Callable[[Any, Communicator], object]
    footprint: Callable[[AnyCase, bool], Footprint]
    precision: Callable[[AnyCase], str]
    solve: Callable[[LuBench, AnyCase, Grid, Spans], AnySolve]
    result: Callable[[LuBench, AnyCase, CaseSolves[AnySolve]], Result]


class LuBench(Bench[LuConfig]):
    """The state that all cases of an LU run share."""

    def __init__(self, *shared: Any):
        super().__init__(*shared)
        self.facts.cautions.extend(node_cautions(self.config, self.comm))
        self.gemm_block = GPU_GEMM_BLOCK if self.config.on_gpu else GEMM_BLOCK
        self.grid = lru_cache(maxsize=None)(self._grid)
        self._readings = Readings()
        self.checkpoints: CheckpointedRun | None = None  # while a run with --checkpoint is timed
        self.fp64: Arithmetic | None = None  # the arithmetic of the current case, if its products are in fp64
        self._probed = lru_cache(maxsize=None)(partial(probe_products, self.kernels))

    def default_n(self, footprint: Footprint, case: LuCase, nb: int, precision: str) -> int:
        """Return the default order: the largest that --mem allows, or the order of --quick. Collective."""
        if not self.config.quick:
            return int(self.comm.bcast_object(self.budget.default_n(footprint, nb, case.P, case.Q)))
        native = not self.kernels.emulates(precision)
        machine = _quick_machine(self.config, self.comm, case, precision, self.placement.threads, native)
        n, caution = _quick_n(machine, self.budget, footprint, nb, case)
        self.facts.cautions.extend(caution)
        return int(self.comm.bcast_object(n))

    def checkpointer(self, A: DistMatrix, spans: Spans) -> FolderCheckpointer | None:
        """Create a checkpointer for this matrix, or return None without --checkpoint. Collective over the grid."""
        if self.checkpoints is None:
            return None
        return FolderCheckpointer(self.checkpoints, A, self.kernels, spans, self.ending)

    @property
    def before_s(self) -> float:
        """Return the timed seconds of a resumed run before its checkpoint, or 0."""
        return 0.0 if self.checkpoints is None else self.checkpoints.before_s

    def on_device(self, P: int) -> frozenset[str]:
        """Return the phases that a device executes with P process rows; empty for the host kernels."""
        if not self.kernels.stopwatch.lag:
            return frozenset()
        return DEVICE_PHASES | ({"rfact"} if self.kernels.panel_library(P) is not None else set())

    def is_chosen(self, name: str) -> bool:
        """Return whether the user or `mxpeak tune` chose the value of a setting.

        Checkpoints do not record origins. In a resumed run, a value that differs from the default counts as chosen.
        """
        if not self.config.resumed:
            return _is_chosen(self.facts.config.get(name, {}).get("origin"))
        of_gpu = self.config.GPU_DEFAULTS if self.config.on_gpu else {}
        return bool(getattr(self.config, name) != of_gpu.get(name, getattr(type(self.config), name)))

    def begin_fp64(self, case: LuCase, grid: Grid | None) -> None:
        """Determine the arithmetic of a case's fp64 products: on a GPU, at the shape of its limit.

        All ranks raise an error if it is not the requested one, also those that are not in the grid. Collective.
        """
        mistake: MxpeakError | None = None
        if grid is not None:
            m, n = self._gemm_shape(case.n, case.P, case.Q) if self.config.on_gpu else (PROBE_SIDE, PROBE_SIDE)
            self.fp64 = arithmetic_of(self._probed(m, n, case.nb), self.kernels, grid.all)
            origin = self.facts.config.get("fp64", {}).get("origin", "default")
            try:
                check_request(self.fp64, self.config.fp64_products, explicit=origin not in ("default", "auto"))
            except MxpeakError as error:
                mistake = error
        if mistake := self.comm.bcast_object(mistake):  # rank 0 is in every grid
            raise mistake

    def check_fp64(self, A: DistMatrix) -> None:
        """Count the products of a solve that were not emulated, if any may be emulated. Collective over the grid.

        The emulation of mxpeak records its products. Otherwise, products of the factored matrix are repeated, which
        overwrites it.
        """
        if self.fp64 is not None and self.fp64.suspected:
            own = self.kernels.fp64_emulation()
            counts = sampled_steps(A, self.kernels) if own is None else (own.products, own.native)
            products, native = map(int, allreduce_scalars(A.grid.all, list(map(float, counts)), "sum"))
            self.fp64 = self.fp64.checked(products, native, fewest_bits(A.grid.all, None if own is None else own.bits))

    def forwards(self, case: LuCase) -> bool:
        """Return whether updates must poll for messages.

        Polling is necessary if ranks forward panels, or if messages arrive over a network or from a device. On one
        node with Q <= 2, no rank forwards panels, and messages are copied in memory. Polling is then not worth an
        interruption of the update. Messages from a device begin only when they are polled.
        """
        return self.placement.nodes > 1 or case.Q > 2 or (self.config.on_gpu and case.P > 1)

    def warm_up_n(self, case: LuCase) -> int:
        """Return the order of the warm-up run, or 0 if there is none.

        A device always needs a warm-up, unless --warmup is none, because libraries start and kernels compile at their
        first use. The warm-up run ends with a block of the same size as the case itself, because kernels are compiled
        for divisors of their sizes.
        """
        if self.config.warmup != "full" and (not self.config.on_gpu or self.config.warmup == "none"):
            return 0
        least = max(4 * case.nb * max(case.P, case.Q), GPU_WARM_N if self.config.on_gpu else 0)
        return case.n if case.n <= least else least + (case.n - least) % case.nb

    def _grid(self, P: int, Q: int) -> Grid | None:
        return make_grid(ProcessGrid(P, Q, self.config.order, self.config.node_grid), self.comm)

    def _gemm_shape(self, n: int, P: int, Q: int) -> tuple[int, int]:
        """Return the rows and columns of the product on each rank that represents the updates of order n."""
        m, columns = (max(64, min(self.gemm_block, n // side)) for side in (P, Q))
        return m, columns

    def _gemm_reading(self, grid: Grid, probed: Probed, run_s: Callable[[float], float]) -> Reading:
        """Measure the GEMM rate of all ranks of the grid. Collective over the grid.

        All ranks multiply at the same time, and the slowest rank determines the time. The blocks are not larger than
        those of the case's order, so a small case is measured with small blocks.
        """
        P, Q, nb, n, precision = probed
        m, k = self._gemm_shape(n, P, Q)
        probe, times = gemm_probe(self.kernels, m, k, nb, precision), GPU_PROBES if self.config.on_gpu else 1

        def multiply() -> None:
            for _ in range(times):
                probe()
            self.kernels.wait()
            grid.all.barrier()  # wait for the last rank: ranks that share a core run one after the other

        return reading(lambda: self.slowest(multiply, grid.all), times * P * Q * 2.0 * m * k * nb, run_s, MIN_S)

    def limits(
        self, case: LuCase, precision: str, grid: Grid, run: Callable[[], object], *, last: bool
    ) -> tuple[Reading | None, Reading | None]:
        """Call `run`, and return the readings of the limit before and after it. Collective over the grid.

        Within a series, a reading also serves the following cases for a limited time. The last case is always followed
        by a reading.
        """
        if self.config.warmup == "none":
            run()
            return None, None
        largest = min(1 << case.n.bit_length(), self.gemm_block * max(case.P, case.Q))
        probed = (case.P, case.Q, case.nb, largest, precision)  # cases of similar size have equal keys

        def measure() -> Reading:
            return self._gemm_reading(grid, probed, lambda rate: self.config.repeat * hpl_flops(case.n) / rate)

        before = self._readings.before(probed, grid.all, measure)
        run()
        return before, self._readings.after(probed, grid.all, measure, last=last)


def run_lu(problem: Problem[Any, Any], config: LuConfig, comm: Communicator, **hooks: Unpack[RunHooks]) -> list[Result]:
    """Run every case of an LU benchmark and return the results. Collective over comm.

    Usage errors are raised on every rank before any case.
    """
    return run_cases(LuBench, problem.check, partial(_results, problem), config, comm, **hooks)


def _results(problem: Problem[AnyCase, Any], bench: LuBench) -> Iterator[tuple[AnyCase, Result | None]]:
    """Run the cases and yield each case with its result, or with None if it does not fit into memory. Collective."""
    cases = list(bench.config.cases(bench.comm.size, _sizes(problem, bench)))
    bench.config.check_checkpoint(len(cases))
    check_abft(bench)

    needs = [(footprint_of(problem, bench.config, case), case.n, case.nb, case.P, case.Q) for case in cases]
    fitting = [bench.budget.fits(*need) for need in needs]
    if not any(fitting):
        raise ResourceError(bench.budget.too_large(*needs[0]))
    for k, case in enumerate(cases):
        grid = bench.grid(case.P, case.Q) if fitting[k] else None
        last = not any(fitting[k + 1 :])
        bench.fp64 = None
        if fitting[k] and problem.precision(case) == "fp64":
            bench.begin_fp64(case, grid)
        yield case, None if grid is None else _checkpointed(problem, bench, case, grid, last=last)


def footprint_of(problem: Problem[Any, Any], config: LuConfig, case: LuCase) -> Footprint:
    """Return the footprint of a case, including the copy of the matrix that --checkpoint writes.

    Emulated products need workspace. The matrix of a GPU is written without a copy.
    """
    need = problem.footprint(case, config.on_gpu)
    if config.fp64_products == "emulated":
        need = _with_workspace(need, config.on_gpu)
    if config.checkpoint is None or config.on_gpu:
        return need

    def with_copy(n: int, nb: int, P: int, Q: int) -> dict[str, int]:
        parts = need(n, nb, P, Q)
        return {**parts, **{name: parts[name] + parts["matrix"] for name in ("buffers", "total")}}

    return with_copy


def _with_workspace(need: Footprint, on_gpu: bool) -> Footprint:
    """Return the footprint with the workspace of emulated products: of cuBLAS on each GPU, or of the host's kernels."""

    def with_workspace(n: int, nb: int, P: int, Q: int) -> dict[str, int]:
        rows, columns = -(-n // P), -(-n // Q)
        if on_gpu:
            of_rank = cublas_workspace_bytes(min(GPU_GEMM_BLOCK, rows), min(GPU_GEMM_BLOCK, columns), nb)
        else:
            of_rank = host_workspace_bytes(rows, columns, nb)
        parts, workspace = need(n, nb, P, Q), P * Q * of_rank
        return {**parts, **{name: parts[name] + workspace for name in ("buffers", "total")}}

    return with_workspace


def _sizes(problem: Problem[Any, Any], bench: LuBench) -> Sequence[int] | None:
    """Return a list with the default order, computed for the largest case, or None if the configuration sets orders."""
    if bench.config.n is not None:
        return None
    largest = _largest_case(problem, bench.config, bench.comm.size)
    footprint, nb = footprint_of(problem, bench.config, largest), max(bench.config.nb)
    return [bench.default_n(footprint, largest, nb, problem.precision(largest))]


def _largest_case(problem: Problem[Any, Any], config: LuConfig, ranks: int) -> LuCase:
    """Return the case that takes the most memory if all cases have the same order."""

    def total(case: LuCase) -> int:
        return footprint_of(problem, config, case)(10**4, case.nb, case.P, case.Q)["total"]

    cases: list[LuCase] = list(config.cases(ranks, [1]))
    return max(cases, key=total)


def _quick_machine(
    config: LuConfig, comm: Communicator, case: LuCase, precision: str, threads: int, native: bool
) -> quick.MachineClass:
    """Return the class of the machine for --quick. Collective over comm."""
    slow_fp64 = precision == "fp64" and has_slow_fp64(config, comm)
    speed = 1.0 if precision == "fp64" else 4.0 if native and PRECISIONS[precision].bytes == 2 else 2.0
    return quick.MachineClass(case.P * case.Q * threads, speed, config.on_gpu, slow_fp64, config.kernels == "reference")


def _quick_n(
    machine: quick.MachineClass, budget: Budget, footprint: Footprint, nb: int, case: LuCase
) -> tuple[int, list[Caution]]:
    """Return the order of a --quick run.

    If it does not fit into the free memory, return a smaller order and a warning.
    """
    n = machine.order(budget.share_n(machine.share, footprint, nb, case.P, case.Q))
    largest = budget.default_n(footprint, nb, case.P, case.Q)
    if n <= largest:
        return n, []
    smaller = largest // machine.step * machine.step or largest
    need = size_text(budget.need(footprint, n, nb, case.P, case.Q))
    text = (
        f"--quick uses N = {n} here, which takes {need} {budget.of}, but {size_text(budget.default)} can be used; "
        f"N = {smaller} runs instead, and cannot be compared with other quick runs here"
    )
    return smaller, [Caution("size", text, "free memory, or use -N or a larger --mem")]


def _checkpointed(
    problem: Problem[AnyCase, AnySolve], bench: LuBench, case: AnyCase, grid: Grid, *, last: bool
) -> Result | None:
    """Run a case. With --checkpoint, lock its folder during the run. Collective over the grid."""
    origins = {name: bench.facts.config.get(name, {}).get("origin", "default") for name in OF_THE_NODES}
    chosen = [name for name, origin in origins.items() if origin in ("default", "auto")]
    checkpoints = open_checkpoints(bench.config, case, grid.all, bench.name, chosen)
    try:
        for caution in () if checkpoints is None else checkpoints.cautions:
            bench.note(caution.text)
        return _result(problem, bench, case, grid, checkpoints, last=last)
    finally:
        if checkpoints is not None:
            checkpoints.close()


def _result(
    problem: Problem[AnyCase, AnySolve],
    bench: LuBench,
    case: AnyCase,
    grid: Grid,
    checkpoints: CheckpointedRun | None,
    *,
    last: bool,
) -> Result | None:
    """Run the warm-up and the repeated solves of a case, and build the result. Collective over the grid.

    The fastest solve determines the rate, and all solves must pass. The result is complete on rank 0 of the grid.
    """
    solves: list[AnySolve] = []
    own_gemm: list[Phase] = []
    soak = Soak(bench.config.soak, grid.all) if bench.config.soak is not None else None
    bench.begin(case)

    def solve_all() -> None:
        if n := bench.warm_up_n(case):
            problem.solve(bench, replace(case, n=n), grid, bench.new_spans(watched=False))
        bench.checkpoints = checkpoints
        for solve, gemm in _repeated_solves(problem, bench, case, grid, soak):
            solves.append(_without_spans(solve, solves))
            own_gemm.append(gemm)

    try:
        bench.announce(f"N={case.n}: measuring the limit, generating the matrix")
        readings = bench.limits(case, problem.precision(case), grid, solve_all, last=last)
    except StoppedError as stop:
        stopped = bench.aborted(str(stop))
        return stopped[1] if stopped and grid.all.rank == 0 else None
    best = min(solves, key=lambda solve: solve.time_s)
    measured = Measured(*readings, _gemm_rate(grid.all, own_gemm))
    phases, rss = phase_table(grid.all, best.spans), peak_rss(grid.all)
    steps = step_table(bench.kernels, grid.all, best.spans)
    trace = None if bench.config.trace is None else timeline(grid.all, best.spans)
    result = None
    if grid.all.rank == 0:
        memory = footprint_of(problem, bench.config, case)(case.n, case.nb, case.P, case.Q)
        result = problem.result(bench, case, CaseSolves(solves, measured, phases, memory, rss, bench.fp64))
        result.telemetry["steps"] = steps
        _add_diagnostics(result, bench, case, solves)
        if checkpoints is not None:
            checkpoints.record_in(result)
            checkpoints.mark_finished()
    if soak is not None:
        soak.record_in(result)
    if result is not None:
        record_faults(result, case, [solve.checked for solve in solves])
    if result is not None and trace is not None:
        result.telemetry["trace"] = trace
        result.warnings += cut_off(grid.all, trace)
    return result


def _repeated_solves(
    problem: Problem[AnyCase, AnySolve], bench: LuBench, case: AnyCase, grid: Grid, soak: Soak | None
) -> Iterator[tuple[AnySolve, Phase]]:
    """Solve a case --repeat times, or until --soak ends; yield each solve with this rank's GEMM phase.

    Collective over the grid.
    """
    count, continues = 0, True
    while continues or count < bench.config.repeat:
        spans = bench.new_spans()
        if bench.config.target is not None:
            bench.stoppable(spans, grid.all)
        if bench.config.trace is not None:
            spans.record(events_per_rank(grid.all))
        solve = problem.solve(bench, case, grid, spans)
        yield solve, replace(spans.phases.get("gemm", Phase()))
        bench.sampled(solve.time_s)
        count, continues = count + 1, soak is not None and soak.continues_after(solve.bits)


def _add_diagnostics(result: Result, bench: LuBench, case: LuCase, solves: Sequence[LuSolve]) -> None:
    """Add the growth of the fastest solve, and the warnings about all solves and their settings, to a result."""
    growth = min(solves, key=lambda solve: solve.time_s).growth_report
    result.telemetry["growth"] = {"largest": growth.largest, "block": [growth.block] * 2}
    result.warnings += not_finite([solve.growth_report for solve in solves], case)
    result.warnings += one_block(case) if bench.is_chosen("nb") else []
    result.warnings += without_effect(result.problem.get("not_used", ()), bench.facts.config)


def _gemm_rate(comm: Communicator, own: Sequence[Phase]) -> float | None:
    """Return the rate of the fastest GEMM phase, or None if no phase took any time. Collective.

    The rate of a phase is the flops of all ranks divided by the time of the slowest rank.
    """
    flops = allreduce_scalars(comm, [phase.flops for phase in own], "sum")
    slowest = allreduce_scalars(comm, [phase.time_s for phase in own], "max")
    return max((total / time_s for total, time_s in zip(flops, slowest) if time_s > 0.0), default=None)


def _without_spans(solve: AnySolve, before: Sequence[AnySolve]) -> AnySolve:
    """Return `solve`. If an earlier solve is faster, use the spans of the fastest solve, to save memory."""
    best = min(before, key=lambda other: other.time_s, default=solve)
    return solve if solve.time_s <= best.time_s else cast(AnySolve, replace(cast(Any, solve), spans=best.spans))


def not_finite(reports: Sequence[GrowthReport], case: LuCase) -> list[Caution]:
    """Return a caution if the LU has non-finite entries, otherwise an empty list.

    The caution names the first block with such entries, its rows and columns, and the process that owns it.
    """
    report = next((report for report in reports if report.not_finite is not None), None)
    if report is None or report.not_finite is None:
        return []
    i, j = report.not_finite
    rows, columns = (f"{b * case.nb} to {min((b + 1) * case.nb, case.n) - 1}" for b in (i, j))
    text = (
        f"not finite: block ({i}, {j}), rows {rows}, columns {columns}, on process ({i % case.P}, {j % case.Q}) of the "
        f"grid, detected in step {report.step}"
    )
    return [Caution("not-finite-block", text, "if the matrix is finite, test that process's node or device")]


#: The reasons why flags have no effect on small grids.
ONE_ROW = "there is one process row, whose rows move without messages"
REASONS = {"bcast": "this grid broadcasts no panels", "swap": ONE_ROW, "swap_threshold": ONE_ROW}


def without_effect(unused: Sequence[str], settings: Mapping[str, Mapping[str, Any]]) -> list[Caution]:
    """Return a caution for each setting in `unused` that the command line, a variable or a file sets."""
    cautions = []
    for name in filter(REASONS.__contains__, unused):
        if settings.get(name, {}).get("origin") in ("flag", "variable", "file"):
            flag = f"--{name.replace('_', '-')}"
            cautions.append(Caution("unused", f"{flag} had no effect: {REASONS[name]}", f"remove {flag}"))
    return cautions


def one_block(case: LuCase) -> list[Caution]:
    """Return a caution if NB exceeds N, otherwise an empty list. An empty matrix has no block."""
    if case.nb <= case.n or case.n == 0:
        return []
    place = f" on one of {case.P * case.Q} ranks" if case.P * case.Q > 1 else ""
    text = f"NB = {case.nb} exceeds N = {case.n}, so the matrix is a single block of order {case.n}{place}"
    return [Caution("one-block", text, f"use --nb {case.n} or less, or -N {case.nb} or more")]


def _is_chosen(origin: str | None) -> bool:
    """Return whether the user or `mxpeak tune` chose the value with this origin."""
    return origin not in (None, "default", "auto")


def dry_run_lu(problem: Problem[Any, Any], run: Run[Any], comm: Communicator) -> DryRun:
    """Describe the grid, the sizes and the memory of each case without running it. Collective over comm."""
    run = on_device(run)
    run = on_processor(run, native_precisions(run.config))
    config: LuConfig = run.config
    problem.check(config, comm)
    run = with_node_grid(run, comm)
    config = run.config
    grids = check_grids(config, comm)
    lines = [ProcessGrid(*shape, config.order, config.node_grid).render() for shape in dict.fromkeys(grids)]
    budget = memory_budget(run, comm)
    sizes = config.n
    if sizes is None:
        n, cautions = _dry_run_n(problem, config, comm, budget)
        sizes = (n,)
        lines += [caution.text for caution in cautions]
    fits, cases = True, list(config.cases(comm.size, sizes))
    for case in cases:
        footprint = footprint_of(problem, config, case)
        need = footprint(case.n, case.nb, case.P, case.Q)
        if not budget.fits(footprint, case.n, case.nb, case.P, case.Q):
            lines.append(f"does not fit ({budget.available}):")
            fits = False
        lines.append(
            f"{case.tag}  N {case.n}  NB {case.nb}  grid {case.P}x{case.Q}: matrix {size_text(need['matrix'])} "
            f"and buffers {size_text(need['buffers'])}, "
            f"{size_text(need['total'] / case.P / case.Q)} per rank; {hpl_flops(case.n):.3g} flops"
        )
        if _is_chosen(run.origins.get("nb")):
            lines += [f"  {caution.text}; {caution.hint}" for caution in one_block(case)]
    threads, (P, Q) = threads_per_rank(config, comm), zip(*grids)
    settled = with_open_values(run, n=tuple(sizes), P=P, Q=Q, ranks=comm.size, threads=threads, comm=comm.name)
    return DryRun("\n".join(lines), fits, settled, config.repeat * sum(hpl_flops(case.n) for case in cases))


def _dry_run_n(
    problem: Problem[Any, Any], config: LuConfig, comm: Communicator, budget: Budget
) -> tuple[int, list[Caution]]:
    """Return the default order of a run, and a warning if it is smaller than that of --quick. Collective over comm."""
    largest = _largest_case(problem, config, comm.size)
    footprint, nb, precision = footprint_of(problem, config, largest), max(config.nb), problem.precision(largest)
    if not config.quick:
        return budget.default_n(footprint, nb, largest.P, largest.Q), []
    native = precision in native_precisions(config)
    machine = _quick_machine(config, comm, largest, precision, threads_per_rank(config, comm), native)
    return _quick_n(machine, budget, footprint, nb, largest)


@dataclass(frozen=True, slots=True)
class GemmProbe:
    """A product C = C - A B whose rate is measured."""

    kernels: Kernels
    C: Matrix
    A: Matrix
    B: Matrix

    def __call__(self) -> None:
        """Compute the product once."""
        self.kernels.subtract_product(self.C, self.A, self.B)


def gemm_probe(kernels: Kernels, m: int, n: int, k: int, precision: str, ld: int | None = None) -> GemmProbe:
    """Return a product C = C - A B for timing, in which C is a zero m×n matrix and A has k columns.

    A and B are stored in `precision`. Their entries are random, because products of equal numbers need less power and
    are faster than those of an LU.
    """
    stored = stored_as(precision)
    C = kernels.matrix(m, n, stored) if ld is None else kernels.buffer(m * ld, stored).reshape((m, ld))[:, :n]
    C[:] = 0.0

    def random(rows: int, columns: int, side: str, seed: int) -> Matrix:
        uniform = kernels.matrix(rows, columns, stored)
        entries = Entries("lcg", rows, seed=seed, scale=-1.0, shift=0.5)
        kernels.generate(uniform, BlockCyclic(rows, 64, 0, 1), BlockCyclic(columns, 64, 0, 1), entries)
        buffer = kernels.operand_buffer(rows, columns, precision, side)
        operand = kernels.operand_matrix(buffer, rows, columns, precision, side)
        kernels.cast(uniform, operand, precision)
        return operand

    return GemmProbe(kernels, C, random(m, k, "left", 1), random(k, n, "right", 2))
