"""Connect a run on rank 0 to its event file, its metrics file, its progress display and its --target guard."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxpeak import __version__
from mxpeak.cli.request import RunRequest
from mxpeak.cli.session import Interrupted, Session
from mxpeak.comm.base import awaited, waits_for
from mxpeak.configs.lu import LuConfig
from mxpeak.configs.run import OutputConfig
from mxpeak.errors import ExitCode, MxpeakError
from mxpeak.perf.sensors.choose import node_sensors
from mxpeak.records import Result
from mxpeak.report.summaries import case_text
from mxpeak.runtime.nodes import node_name, nodes_of
from mxpeak.spans import Observer
from mxpeak.watch.events import SCHEMA, EventLog
from mxpeak.watch.forecast import ProgressForecast
from mxpeak.watch.guard import Guard
from mxpeak.watch.live_sensors import LiveSensors
from mxpeak.watch.progress import Progress
from mxpeak.watch.prometheus import Metrics, MetricsFile
from mxpeak.watch.watchdog import Watchdog

if TYPE_CHECKING:
    from mxpeak.bench.harness import NodeDevices

#: A function that forecasts a case by a simulation; it returns None if a simulation is not possible.
Simulated = Callable[[Any], ProgressForecast | None]


#: Variables of batch systems that name the cluster and the job.
VARIABLES = {"cluster": ("SLURM_CLUSTER_NAME",), "job": ("PBS_JOBID", "FLUX_JOB_ID", "SLURM_JOB_ID")}


class RunObservers:
    """Writes the event file and the metrics file of a run on rank 0. Other ranks have no files."""

    def __init__(self, output: OutputConfig, benchmark: str, argv: Sequence[str], session: Session):
        self.forecasts: Mapping[str, Mapping[Any, ProgressForecast]] = {}
        self._quiet, self._session = output.quiet, session
        self._reported = set[str]()
        speaks, ranks = session.rank == 0, session.comm.size if session.comm else 1
        host = os.uname().nodename
        self.log = EventLog(Path(output.events)) if speaks and output.events else None
        about = _about(benchmark, ranks)
        self.metrics = Metrics(Path(output.prometheus), about) if speaks and output.prometheus else None
        self.devices = DeviceMetrics(Path(output.prometheus), about, self.metrics) if output.prometheus else None
        if self.log:
            run = {"schema": SCHEMA, "benchmark": benchmark, "argv": list(argv), "ranks": ranks}
            self.log.write("run started", **run, version=__version__, host=host, pid=os.getpid())

    def of_benchmark(self, request: RunRequest, progress: Progress, simulated: Simulated) -> Watched:
        """Return the observers of one benchmark; `simulated` forecasts a case that has no forecast from --baseline."""
        # The sparse benchmarks compare --target with the rates of whole solves.
        target = request.config.target if isinstance(request.config, LuConfig) else None
        guard = None if target is None else Guard(1e9 * target)
        return Watched(self, request.benchmark.name, progress, guard, simulated)

    def end(self, result: Result | None) -> None:
        """Record the end of a case; `result` is None if the case did not fit into memory."""
        if self.log:
            event, about = ("case skipped", {}) if result is None else ("case finished", _finished_event(result))
            self.log.write(event, **about)
        if self.metrics and result is not None:
            self.metrics.case(result, case_text(result))

    def trouble(self) -> int:
        """Print the write errors of the event and metrics files, and return the exit code."""
        code = self._write_errors()
        if self.devices and not self._quiet:
            self.devices.log_missing(self._session)
        return code

    def close(self, code: int) -> int:
        """Record the end of the run with its exit code, and return the code for write errors that are new."""
        if self.log:
            self.log.write("run ended", status=status_of(code), exit_code=code)
            self.log.close()
        if self.devices:
            self.devices.close()
        if self.metrics:
            self.metrics.ended(code)
        return self._write_errors()

    def _write_errors(self) -> int:
        """Print each write error that has not been printed yet, and return the exit code."""
        code = ExitCode.VALID
        for flag, file in (("--events", self.log), ("--prometheus", self.metrics)):
            if file and file.error is not None and flag not in self._reported:
                self._session.log(f"mxpeak: error: cannot write {flag} {file.path}: {file.error.strerror}")
                self._reported.add(flag)
                code = ExitCode.RESOURCE
        return code


class DeviceMetrics:
    """Writes the values of a node's devices to a metrics file during a run.

    The devices of rank 0's node are in its file. Each other node has its own file, with the name of the node before
    the suffix, because the nodes may share the folder.
    """

    def __init__(self, path: Path, about: Mapping[str, str], metrics: Metrics | None):
        self._path, self._about, self._leads = path, about, metrics is not None
        self._file: MetricsFile | None = metrics
        self._live: LiveSensors | None = None
        self._missing: Sequence[str] = ()

    def watch(self, devices: NodeDevices) -> None:
        """Start to write the values of these devices, instead of those of earlier devices."""
        if self._file is None:
            path = self._path.with_name(f"{self._path.stem}.{devices.node}{self._path.suffix}")
            self._file = MetricsFile(path, {**self._about, "host": devices.node})
        find = partial(node_sensors, devices.cores, devices.gpus, amd=devices.amd)
        if self._live is None:
            self._live = LiveSensors(find, self._file.devices, self._note)
        else:
            self._live.watch(find)

    def close(self) -> None:
        """End the readings. On a node without rank 0, also remove the values from the node's own file."""
        if self._live is not None:
            self._live.stop()
        if self._file is None or self._leads:
            return
        self._file.note([])
        self._file.devices([])
        if self._file.error is not None:  # rank 0 does not have this error
            error = f"cannot write --prometheus {self._file.path} on {self._about['host']}"
            print(f"mxpeak: error: {error}: {self._file.error.strerror}", file=sys.stderr, flush=True)

    def log_missing(self, session: Session) -> None:
        """Print the values that could not be read, with the reasons, unless the file could not be written."""
        if self._missing and (self._file is None or self._file.error is None):
            session.log(
                "\n  ".join([f"note: {self._path} does not contain all values of the devices:", *self._missing])
            )

    def _note(self, missing: Sequence[str]) -> None:
        self._missing = missing
        if self._file is not None:
            self._file.note(missing)


@dataclass(frozen=True, slots=True)
class Watched:
    """The progress display, guard and files that observe one benchmark."""

    files: RunObservers
    benchmark: str
    progress: Progress
    guard: Guard | None
    simulated: Simulated

    @property
    def observers(self) -> list[Observer]:
        """Return the observers that are called at each step. The guard is last, so the others record the last step."""
        candidates: tuple[Observer | None, ...] = (self.progress, self.files.log, self.files.metrics, self.guard)
        return [observer for observer in candidates if observer is not None]

    def begin(self, case: Any) -> None:
        """Set the forecast of a case, and write the start of the case to the event file."""
        recorded = self.files.forecasts.get(self.benchmark, {}).get(case)
        self.progress.forecast = recorded or self.simulated(case)
        if self.guard:
            self.guard.forecast = recorded  # a simulation does not prove that the remaining steps can be as fast
        if self.files.log:
            about = dataclasses.asdict(case) if dataclasses.is_dataclass(case) and not isinstance(case, type) else {}
            self.files.log.write("case started", benchmark=self.benchmark, case=about)

    def reason(self) -> str | None:
        """Return the reason to stop the case, or None if the case should continue."""
        return self.guard.reason() if self.guard else None


@contextmanager
def stalls_noticed(limits: tuple[float, float] | None, session: Session) -> Iterator[Watchdog | None]:
    """Run a watchdog that ends the run if this rank stalls or another rank of the node is stopped. Collective."""
    if limits is None:
        yield None
        return
    others, on_node = ranks_of_this_node(session)
    waiting = waits_for if on_node else HostsOfRanks(session).waits_for
    watchdog = Watchdog(
        *limits, session.abort_stalled, waiting, message=awaited, stopped=partial(stopped, others), on_node=on_node
    )
    watchdog.start()
    try:
        yield watchdog
    finally:
        watchdog.stop()
    session.watchdog = watchdog  # for the exit of the ranks


class HostsOfRanks:
    """The hosts of all ranks, stored as the first rank of each sequence of ranks on one host. Collective."""

    def __init__(self, session: Session):
        comm = session.comm
        assert comm is not None
        names = comm.gather_objects(node_name())
        starts = [k for k, name in enumerate(names or ()) if k == 0 or name != (names or ())[k - 1]]
        self._starts, self._names = comm.bcast_object((starts, [(names or ())[k] for k in starts]))

    def waits_for(self) -> str:
        """Return the description of the request that this process waits for, with the host of each rank in it."""
        return self.named(waits_for())

    def named(self, text: str) -> str:
        """Return a text in which the name of a host follows each rank."""
        return re.sub(r"\brank (\d+)", lambda match: f"{match[0]} on {self._of(int(match[1]))}", text)

    def _of(self, rank: int) -> str:
        return str(self._names[bisect_right(self._starts, rank) - 1])


def ranks_of_this_node(session: Session) -> tuple[dict[str, int], bool]:
    """Return the process ID of each other rank on this node, and whether all ranks are on this node. Collective."""
    comm = session.comm
    if comm is None or comm.size == 1:
        return {}, True
    nodes = nodes_of(comm, (comm.rank, os.getpid()))
    others = {f"rank {rank} on {node_name()}": pid for rank, pid in nodes.values if rank != comm.rank}
    return others, nodes.count == 1


def stopped(processes: Mapping[str, int], root: str = "/proc") -> list[str]:
    """Return the names of the processes that a signal or a debugger has stopped, according to /proc."""
    names = []
    for name, pid in processes.items():
        with suppress(OSError), open(f"{root}/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            if stat.read().rpartition(")")[2].split()[0] in ("T", "t"):
                names.append(name)
    return names


@contextmanager
def observing(output: OutputConfig, benchmark: str, argv: Sequence[str], session: Session) -> Iterator[RunObservers]:
    """Yield the observers of a run. If an exception or a signal ends the run, record the exit code in their files."""
    observers = RunObservers(output, benchmark, argv, session)
    try:
        yield observers
    except BaseException as error:
        observers.close(_code_of(error))
        raise


@contextmanager
def metrics_of(
    file: str | None, benchmark: str, session: Session
) -> Iterator[tuple[Metrics | None, DeviceMetrics | None]]:
    """Yield the metrics of a command on rank 0, and those of the devices on every rank, or None.

    If an exception ends the command, record the exit code.
    """
    if file is None:
        yield None, None
        return
    about = _about(benchmark, session.comm.size if session.comm else 1)
    metrics = Metrics(Path(file), about) if session.rank == 0 else None
    devices = DeviceMetrics(Path(file), about, metrics)
    try:
        yield metrics, devices
        devices.close()
    except BaseException as error:
        devices.close()
        if metrics is not None:
            metrics.ended(_code_of(error))
        raise


def _about(benchmark: str, ranks: int) -> dict[str, str]:
    """Return the labels that identify a run."""
    labels = {"benchmark": benchmark, "version": __version__, "host": node_name(), "ranks": str(ranks)}
    set_ones = {label: next(filter(None, map(os.environ.get, names)), "") for label, names in VARIABLES.items()}
    return {**labels, **{label: value for label, value in set_ones.items() if value}}


def _code_of(error: BaseException) -> int:
    """Return the exit code of a run that an exception ends."""
    code = error.code if isinstance(error, Interrupted) else ExitCode.BUG
    return int(error.exit_code if isinstance(error, MxpeakError) else code)


def status_of(code: int) -> str:
    """Return the status of a run for an exit code; the status is `error` if there is no result."""
    if code > 128 or code == ExitCode.GUARD:
        return "aborted"
    statuses = {int(ExitCode.VALID): "valid", int(ExitCode.FAILED): "invalid", int(ExitCode.BELOW_TARGET): "slow"}
    return statuses.get(code, "error")


def _finished_event(result: Result) -> dict[str, Any]:
    """Return the measurements and the validation of a result as the event `case finished`."""
    figures = ("rate_flops", "rate_bytes", "time_s", "fraction_of_limit")
    checks = ("passed", "residual", "threshold", "iterations")
    return {
        "benchmark": result.benchmark,
        "case": case_text(result),
        "status": result.status,
        "result": {key: result.result[key] for key in figures if key in result.result},
        "validation": {key: result.validation.get(key) for key in checks},
        "samples_s": result.samples_s,
    }
