"""The parts of a run that all benchmarks share: placement, kernels, clock, phases, cautions and results.

A benchmark defines `check`, which rejects impossible configurations, and yields each case with its result.
"""

from __future__ import annotations

import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypedDict, TypeVar, Unpack

from mxpeak.bench.fp64 import restored_variable, with_fp64
from mxpeak.bench.partial_result import CaseInProgress, Partial, aborted, stop_together
from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import allreduce_scalar
from mxpeak.configs.grid import GridCase, GridConfig
from mxpeak.configs.run import PlaceConfig
from mxpeak.kernels.contract import Kernels
from mxpeak.layout.grid import ProcessGrid, best_node_grid
from mxpeak.layout.nodes import check_node_grid, fitting_node_grids
from mxpeak.options import Run
from mxpeak.perf.energy import EnergyMeter, energy, lone_second_die, why_unknown
from mxpeak.perf.host import one_core_each
from mxpeak.perf.sensors.choose import gpu_sensors, processors
from mxpeak.precision import PRECISIONS
from mxpeak.records import Caution, Result
from mxpeak.runtime.facts import facts_of
from mxpeak.runtime.memory import memory_budget
from mxpeak.runtime.nodes import blocks_a_node, node_name, nodes_of
from mxpeak.runtime.placement import (
    Placement,
    bind_to_cores,
    cores_near,
    device_number,
    load_kernels,
    on_device,
    on_processor,
)
from mxpeak.spans import DEVICE, LongSpan, Observer, Spans

#: The number of computations of a case whose phases are kept. It covers both solvers with all parts, and bounds the
#: memory of a soak test.
MAX_SPANS = 8
#: The reason that a file of partial results contains until the run replaces it.
CUT_SHORT = "the run ended without a message, or is still running"

#: Parts of the measured work whose energies a result contains: the work that determines the rate, and the same work in
#: double precision.
ENERGIES = MAIN, DOUBLE = "energy", "double_energy"
#: Rates of a result that correspond to the main energy; solvers of HPG-MxP that run alone have no rating.
RATES = ("rate_flops", "raw_rate_flops", "double_rate_flops")

AnyConfig = TypeVar("AnyConfig", bound=PlaceConfig)


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """The cores and the PCI addresses of the GPUs that the ranks of a node use; `amd` if the GPUs are from AMD."""

    node: str
    cores: list[int]
    gpus: list[str]
    amd: bool


class RunHooks(TypedDict, total=False):
    """Callbacks and facts that the caller of a run provides.

    benchmark   name of the benchmark, for the result of an aborted case
    origins     origin of each value of the configuration
    observers   observers of the spans, on rank 0
    on_begin    called with each case when it begins, on rank 0
    on_case     called with each case and its result, on rank 0; the result is None if the case did not fit into memory
    on_note     prints a note about a case immediately, on rank 0
    on_sample   called after each measurement, on rank 0, with a function that returns the result so far
    follow      called with the spans of each observed computation, on every rank
    stop        returns the reason to stop, or None; called on rank 0
    ending      returns whether a signal has requested the end; a last checkpoint may still be written
    on_devices  called with the cores and GPUs of the ranks of each node, on the first rank of the node
    argv        command line, for the result file
    """

    benchmark: str
    origins: Mapping[str, str]
    observers: Sequence[Observer]
    on_begin: Callable[[Any], None]
    on_case: Callable[[Any, Result | None], None]
    on_note: Callable[[str], None]
    on_sample: Callable[[Callable[[], Result]], None]
    follow: Callable[[Spans], None]
    stop: Callable[[], str | None]
    ending: Callable[[], bool]
    on_devices: Callable[[NodeDevices], None]
    argv: Sequence[str]


class Bench(Generic[AnyConfig]):
    """The resources that all cases of a run share: ranks, kernels, memory, and facts for the result file."""

    def __init__(
        self, run: Run[AnyConfig], comm: Communicator, placement: Placement, kernels: Kernels, hooks: RunHooks
    ):
        self.config, self.comm, self.placement, self.kernels = run.config, comm, placement, kernels
        self.observers = hooks.get("observers", ()) if comm.rank == 0 else ()
        self._hooks = hooks
        self.name = hooks.get("benchmark", "")
        self._current: CaseInProgress | None = None
        self.facts = facts_of(hooks.get("argv", ()), run, comm, placement, kernels)
        self.budget = memory_budget(run, comm, placement.device)
        self._spans: deque[Spans] = deque(maxlen=MAX_SPANS)
        self._packages = processors() if placement.local_rank == 0 else None
        self._gpu = gpu_sensors(self.gpu_bus, amd=self.on_amd) if self.gpu_bus else None
        self._long_spans: list[LongSpan] = []
        self._meters = {part: EnergyMeter(self._packages or [], self._gpu, self._long_spans) for part in ENERGIES}
        if (on_devices := hooks.get("on_devices")) is not None:
            self._report_devices(on_devices)

    @property
    def gpu_bus(self) -> str | None:
        """Return the PCI address of this rank's GPU, or None without a GPU."""
        return self.kernels.device_facts().get("device_bus")

    @property
    def on_amd(self) -> bool:
        """Return whether this rank's GPU is from AMD."""
        return str(self.kernels.device_facts().get("device_architecture", "")).startswith("gfx")

    def _report_devices(self, on_devices: Callable[[NodeDevices], None]) -> None:
        """Call the on_devices hook with the devices of each node on its first rank. Collective over comm."""
        node = nodes_of(self.comm, (self.placement.cores, self.gpu_bus))
        if node.rank == 0:
            cores = sorted({core for cores, _ in node.values for core in cores})
            gpus = [bus for _, bus in node.values if bus is not None]
            on_devices(NodeDevices(node_name(), cores, list(dict.fromkeys(gpus)), self.on_amd))

    def begin(self, case: Any) -> None:
        """Start a case: clear the spans and the energy of the previous case, and call the on_begin hook on rank 0."""
        self._current = CaseInProgress(case)
        self._spans.clear()
        for meter in self._meters.values():
            meter.clear()
        if self.comm.rank == 0 and (on_begin := self._hooks.get("on_begin")):
            on_begin(case)

    def end(self) -> None:
        """Record the end of a case, so that a later error is not attributed to it."""
        self._current = None

    def new_spans(self, *, watched: bool = True) -> Spans:
        """Create new spans, and attach the observers if `watched`."""
        spans = Spans(self.observers if watched else (), self.kernels.stopwatch)
        spans.long_s, spans.long_spans = self._meters[MAIN].least_s, self._long_spans
        self._spans.append(spans)
        if watched and self._current is not None:
            self._current.spans = spans
        if watched and (follow := self._hooks.get("follow")):
            follow(spans)
        return spans

    def announce(self, text: str) -> None:
        """Inform the observers about an activity outside the observed computations."""
        for observer in self.observers:
            if (announce := getattr(observer, "announce", None)) is not None:
                announce(text)

    def note(self, text: str) -> None:
        """Print a note about a case immediately, on rank 0."""
        if self.comm.rank == 0 and (on_note := self._hooks.get("on_note")):
            on_note(text)

    @property
    def ending(self) -> Callable[[], bool]:
        """Return a function that tests whether a signal has requested the end; a last checkpoint may still follow."""
        return self._hooks.get("ending", lambda: False)

    def stoppable(self, spans: Spans, comm: Communicator) -> Spans:
        """Let the `stop` hook of rank 0 stop all ranks of comm at the same step of the spans, and return the spans."""
        spans.look = stop_together(comm, self._hooks.get("stop", lambda: None))
        return spans

    def sampled(self, time_s: float, so_far: Partial | None = None) -> None:
        """Record a measured time in seconds and the partial result so far, and call the on_sample hook on rank 0."""
        if (case := self._current) is None:
            return
        case.samples_s.append(time_s)
        case.so_far = so_far
        if self.comm.rank == 0 and (on_sample := self._hooks.get("on_sample")):
            on_sample(lambda: aborted(self.name, case, self.facts, CUT_SHORT))

    def aborted(self, why: str) -> tuple[Any, Result] | None:
        """Return the current case and its aborted result without communication, or None between cases."""
        if self._current is None:
            return None
        return self._current.case, aborted(self.name, self._current, self.facts, why)

    def slowest(self, work: Callable[[], object], comm: Communicator | None = None) -> float:
        """Run `work` after a barrier and return the time of the slowest rank, in seconds.

        Collective over comm, or over all ranks if comm is None.
        """
        comm = comm or self.comm
        self.kernels.wait()
        comm.barrier()
        begin = time.perf_counter()
        work()
        self.kernels.wait()
        return allreduce_scalar(comm, time.perf_counter() - begin, "max", self.kernels.xp)

    def metered(self, work: Callable[[], object], comm: Communicator | None = None, part: str = MAIN) -> float:
        """Time `work` like `slowest`, and add its energy to a part of ENERGIES. Collective over comm, or all ranks."""
        elapsed_s, meter = None, self._meters[part]
        before = [(spans, spans.computations, _calls(spans)) for spans in self._spans]
        meter.begin()
        try:
            elapsed_s = self.slowest(work, comm)
        finally:
            meter.end(elapsed_s, set() if elapsed_s is None else self._phases_since(before))
        return elapsed_s

    def _phases_since(self, before: Sequence[tuple[Spans, int, Mapping[str, int]]]) -> set[str]:
        """Return the phases with new calls since `before`: spans, their computations, and the calls of each phase.

        A new computation starts the calls at 0.
        """
        phases = set[str]()
        for spans in self._spans:
            calls = next((old for one, count, old in before if one is spans and count == spans.computations), {})
            phases |= {name for name, number in _calls(spans).items() if number > calls.get(name, 0)}
        return phases - {DEVICE}

    def energies(self, result: Result | None) -> dict[str, Any]:
        """Return the energy of the measured work of a case, or the reason why it is unknown, on rank 0.

        `result` is complete on rank 0. Its rates determine the flops per joule. Collective over all ranks.
        """
        figures = {} if result is None else result.result
        section = self._energy(MAIN, next((figures[key] for key in RATES if figures.get(key)), None))
        if self._meters[DOUBLE].regions:  # true on all ranks or on none
            section |= self._energy(DOUBLE, figures.get("double_rate_flops"))
        return section

    def _energy(self, part: str, rate_flops: float | None) -> dict[str, Any]:
        used = self._meters[part].used
        ranks = self.comm.gather_objects((node_name(), used, used.why_short or why_unknown(self._packages, self._gpu)))
        if not ranks:
            return {}
        used_by = [(host, used) for host, used, _ in ranks]
        section = energy(used_by, rate_flops)
        if section is not None and section["joules"] is not None:
            return {part: section}
        why = next((why for *_, why in ranks if why), lone_second_die(used_by) or "no energy was measured")
        return {part: section, f"{part}_unknown": why}


def _calls(spans: Spans) -> dict[str, int]:
    """Return the number of calls of each phase so far."""
    return {name: phase.calls for name, phase in spans.known_phases.items()}


def threads_per_rank(config: PlaceConfig, comm: Communicator) -> int:
    """Return the number of threads per rank: --threads, or an equal share of the node's cores. Collective."""
    return config.threads or max(1, len(one_core_each()) // nodes_of(comm, None).max_ranks)


def panel_row(config: PlaceConfig, comm: Communicator) -> int | None:
    """Return the process row of this rank if CPUs factor the panels of devices.

    Ranks of different process rows then share cores. Returns None if the library factors panels on the device (P = 1),
    or if the run has several grids.
    """
    if not (isinstance(config, GridConfig) and config.panels_on_host and config.on_gpu):
        return None
    shapes = set(config.grids(comm.size))
    P, Q = min(shapes)
    if len(shapes) > 1 or P == 1 or comm.size > P * Q:
        return None
    return ProcessGrid(P, Q, config.order, config.node_grid).coords(comm.rank)[0]


AnyBench = TypeVar("AnyBench", bound=Bench[Any])


def _blas_hint(run: Run[Any], hooks: RunHooks) -> str:
    """Return the end of the error message for a BLAS library that `mxpeak tune` has stored, otherwise ""."""
    if run.origins.get("blas") != "tuned":
        return ""
    again = f"mxpeak tune {hooks.get('benchmark', 'hpl')} --fresh"
    return f"this library was stored by mxpeak tune; use --tuned no, or measure again with {again}"


@contextmanager
def open_bench(
    make: Callable[[Run[AnyConfig], Communicator, Placement, Kernels, RunHooks], AnyBench],
    check: Callable[[AnyConfig, Communicator], object],
    config: AnyConfig,
    comm: Communicator,
    hooks: RunHooks,
) -> Iterator[AnyBench]:
    """Bind the cores, load the kernels, and yield the resources that all cases of a run share.

    `check` raises usage errors on every rank, before any other step. `make` returns the shared bench. Collective.
    """
    with restored_variable():
        run = with_fp64(on_device(Run(config, hooks.get("origins", {}))), comm)
        config = run.config
        check(config, comm)
        run = with_node_grid(run, comm)
        config = run.config
        number = device_number(config, comm)
        near, row = cores_near(config, number), panel_row(config, comm)
        placement = bind_to_cores(comm, config.threads, near, row, number)
        try:
            kernels, comm = load_kernels(config, placement, comm, blas_hint=_blas_hint(run, hooks))
            if not config.on_gpu:
                native = [
                    name for name, format_ in PRECISIONS.items() if format_.bytes < 4 and not kernels.emulates(name)
                ]
                run = on_processor(run, native)
            yield make(run, comm, placement, kernels, hooks)
        finally:
            placement.release()


def run_cases(
    make: Callable[[Run[AnyConfig], Communicator, Placement, Kernels, RunHooks], AnyBench],
    check: Callable[[AnyConfig, Communicator], object],
    results: Callable[[AnyBench], Iterable[tuple[Any, Result | None]]],
    config: AnyConfig,
    comm: Communicator,
    **hooks: Unpack[RunHooks],
) -> list[Result]:
    """Run a benchmark and return the results of its cases on every rank.

    `check` and `make` are those of `open_bench`. `results` yields each case with its result, which is complete on rank
    0. Cases that do not fit into memory have no result. Collective over comm.
    """
    on_case = hooks.get("on_case")
    with open_bench(make, check, config, comm, hooks) as bench:
        complete = []
        try:
            for case, local in results(bench):
                used = bench.energies(local)
                if local is not None:
                    local.telemetry.update(used)
                result: Result | None = bench.comm.bcast_object(local)
                bench.end()
                if comm.rank == 0 and on_case:
                    on_case(case, result)
                if result is not None:
                    complete.append(result)
        except BaseException as ending:  # a signal or an error: keep the results so far, with the reason
            partial = bench.aborted(str(ending) or type(ending).__name__) if comm.rank == 0 else None
            # an error before the first measurement leaves no result
            if on_case and partial and (complete or partial[1].samples_s or not isinstance(ending, Exception)):
                on_case(*partial)
            raise
        return complete


def repeated(timed: Callable[[], float], *, min_runs: int, max_runs: int, seconds: float) -> list[float]:
    """Repeat a measurement at least `min_runs` times and until `seconds` have passed, but at most `max_runs` times.

    Returns the measured times. `timed` returns the same seconds on every rank, so that all ranks stop together.
    """
    samples: list[float] = []
    while len(samples) < min_runs or (sum(samples) < seconds and len(samples) < max_runs):
        samples.append(timed())
    return samples


def peak_rss(comm: Communicator) -> int:
    """Return the sum of the peak resident set sizes of all ranks in bytes. Collective over comm."""
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss
    return int(allreduce_scalar(comm, float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit), "sum"))


def phase_table(comm: Communicator, spans: Spans) -> dict[str, dict[str, Any]]:
    """Return the mean, largest and smallest time of each phase over the ranks, with the total flops, bytes and calls.

    `max_rank` and `min_rank` are the ranks with these times. The table is complete on rank 0. Collective over comm.
    """
    ranks = comm.gather_objects({name: (p.time_s, p.flops, p.bytes, p.calls) for name, p in spans.phases.items()})
    table: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(name for phases in ranks or [] for name in phases):
        parts = [phases.get(name, (0.0, 0.0, 0.0, 0)) for phases in ranks or []]
        times, flops, moved, calls = zip(*parts)
        seconds = {"time_s": sum(times) / len(times), "max_s": max(times), "min_s": min(times)}
        ranks_of = {"max_rank": times.index(max(times)), "min_rank": times.index(min(times))}
        table[name] = {**seconds, **ranks_of, "flops": sum(flops), "bytes": sum(moved), "calls": sum(calls)}
    return table


def check_grids(config: GridConfig, comm: Communicator) -> tuple[tuple[int, int], ...]:
    """Return every process grid of the configuration; raise an error on every rank if a grid is not possible.

    Each grid is checked against the number of ranks and the nodes. Collective over comm.
    """
    grids = config.grids(comm.size)
    for P, Q in grids:
        shape = ProcessGrid(P, Q, config.order, config.node_grid)  # checks that the node grid tiles the grid
        if config.node_grid is not None:
            _node_grids_per_node(shape, comm)
    return grids


def with_node_grid(run: Run[AnyConfig], comm: Communicator) -> Run[AnyConfig]:
    """Return the run with the best node grid, unless --node-grid or --order is set. Collective over comm.

    Nothing changes on one node, with several process grids, or if the ranks are not numbered node by node with equally
    many per node. The device in the configuration must be resolved.
    """
    config = run.config
    if not (isinstance(config, GridConfig) and config.places_nodes and config.node_grid is None):
        return run
    shapes = set(config.grids(comm.size))
    P, Q = min(shapes)
    nodes = nodes_of(comm, None)
    fills_nodes = nodes.count * nodes.max_ranks == comm.size == P * Q and nodes.count > 1 and len(shapes) == 1
    if not (fills_nodes and run.is_default("order") and run.is_default("node_grid")):
        return run
    on_host = config.panels_on_host and config.on_gpu
    part = best_node_grid(P, Q, nodes.max_ranks, shares_cores=on_host, panels=config.pivots)
    if part is None or blocks_a_node(comm, node_name(), nodes.max_ranks, comm.size) != 1:
        return run
    return run.with_choices({"node_grid": part})


def _node_grids_per_node(grid: ProcessGrid, comm: Communicator) -> int:
    """Return the largest number of node grids per node; raise a UsageError if a node grid spans nodes. Collective."""
    p, q = grid.node_grid or (grid.P, grid.Q)
    count = blocks_a_node(comm, node_name(), p * q, grid.size)
    if count == 0:
        check_node_grid(grid, comm.bcast_object(comm.gather_objects(node_name())))
    return count


def node_cautions(config: GridConfig, comm: Communicator) -> list[Caution]:
    """Return the cautions about nodes that contain several node grids. Collective."""
    if config.node_grid is None:
        return []
    p, q = config.node_grid
    cautions = []
    for P, Q in config.grids(comm.size):
        shape = ProcessGrid(P, Q, config.order, config.node_grid)
        if (count := _node_grids_per_node(shape, comm)) > 1:
            ranks = count * p * q
            means = f"--node-grid {p}x{q} means {p}*{q} = {p * q} ranks per node"
            others = " or ".join(fitting_node_grids(shape, ranks)[:2])
            text, advice = f"{means}, but a node has {ranks} ranks of the grid", f"start {p * q} ranks per node"
            cautions.append(Caution("node-grid", text, f"{advice}, or use {others}"))
    return cautions


def grid_text(case: GridCase) -> str:
    """Return a table of the ranks in the process grid."""
    return ProcessGrid(case.P, case.Q, case.order, case.node_grid).render()


#: The record of a phase that did not occur.
NO_PHASE: dict[str, Any] = {"time_s": 0.0, "max_s": 0.0, "min_s": 0.0, "flops": 0.0, "bytes": 0.0, "calls": 0}


def with_share(phase: dict[str, Any], limit: float | None) -> dict[str, Any]:
    """Return the record of a phase, with its share of the read bandwidth if the phase moves bytes."""
    if not limit or not phase["time_s"] or not phase["bytes"]:
        return phase
    return {**phase, "share_of_limit": phase["bytes"] / phase["time_s"] / limit}


def sortable_residual(scaled: float) -> float:
    """Return the residual as a sort key; NaN becomes the largest value."""
    return scaled if scaled == scaled else sys.float_info.max


def depth_caution(depth: int, ran: int) -> Caution:
    """Return the caution that a look-ahead depth larger than 1 was reduced."""
    text = f"look-ahead depth {depth} was requested, but {ran} was used"
    return Caution("depth", text, "a deeper look-ahead has no effect; use --depth 1")
