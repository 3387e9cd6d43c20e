"""Write the metrics of a run to a text file for the textfile collector of Prometheus's node_exporter.

The file is valid both in OpenMetrics and in the older text format of Prometheus, which the collector reads. In the
latter, counters have no type, because OpenMetrics names a counter without the suffix `_total` of its samples.

The file is replaced by a rename, so that readers always find a complete file. During a computation, it is replaced at
most every UPDATE_S seconds, and each time that the sensors of the devices have been read.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from errno import EEXIST
from math import isfinite, isnan
from pathlib import Path
from statistics import median
from typing import Any
from zlib import crc32

from mxpeak.foreign import irregular
from mxpeak.perf.sensors.contract import SensorReading, Sensors
from mxpeak.records import SCANNED_BYTES, Result
from mxpeak.spans import Step

#: Minimum number of seconds between two updates during a computation.
UPDATE_S = 5.0
#: Type and description of each metric.
METRICS = {
    "mxpeak_run_info": ("gauge", "always 1; the labels identify the run"),
    "mxpeak_running": ("gauge", "1 during the run, 0 after it has ended"),
    "mxpeak_start_time_seconds": ("gauge", "when the run began, in Unix time"),
    "mxpeak_update_time_seconds": ("gauge", "when the run last reported progress, in Unix time"),
    "mxpeak_phase_elapsed_seconds": ("gauge", "time since the current computation began"),
    "mxpeak_phase_steps_done": ("gauge", "steps of the current computation that are done"),
    "mxpeak_phase_steps": ("gauge", "steps of the current computation"),
    "mxpeak_phase_flops_done": ("gauge", "flops of the current computation that are done"),
    "mxpeak_phase_flops": ("gauge", "flops of the current computation"),
    "mxpeak_phase_rate_flops": ("gauge", "flop/s of the current computation so far"),
    "mxpeak_cases_total": ("counter", "cases that have ended, by status"),
    "mxpeak_result_info": ("gauge", "always 1; the labels identify the place and the problem of a finished case"),
    "mxpeak_result_rate_flops": ("gauge", "figure of merit of a finished case, in flop/s"),
    "mxpeak_result_rate_bytes": ("gauge", "figure of merit of a finished case, in bytes per second"),
    "mxpeak_result_time_seconds": ("gauge", "time of a finished case"),
    "mxpeak_result_residual": ("gauge", "scaled residual of a finished case"),
    "mxpeak_result_passed": ("gauge", "1 if the validation of a finished case passed, otherwise 0"),
    "mxpeak_scan_ranks": ("gauge", "ranks of a scan by finding: all, slow or wrong"),
    "mxpeak_scan_node_rate_flops": ("gauge", "rate of the slowest rank of a node in a scan, in flop/s"),
    "mxpeak_scan_node_rate_bytes": ("gauge", "rate of the slowest rank of a node in a scan, in bytes per second"),
    "mxpeak_scan_node_action": ("gauge", "1 for a node to monitor, drain or replace"),
    "mxpeak_device_info": ("gauge", "always 1; the labels identify a device and the source of its values"),
    "mxpeak_device_power_watts": ("gauge", "power of a device"),
    "mxpeak_device_energy_joules_total": ("counter", "energy of a device since the run first used it"),
    "mxpeak_device_temperature_celsius": ("gauge", "temperature of a device"),
    "mxpeak_device_clock_hertz": ("gauge", "clock of the GPU or of the slowest core"),
    "mxpeak_device_max_clock_hertz": ("gauge", "highest possible clock"),
    "mxpeak_device_memory_clock_hertz": ("gauge", "clock of the GPU's memory"),
    "mxpeak_device_throttled": ("gauge", "1 for each reason that limits the clock of a GPU now, otherwise 0"),
    "mxpeak_device_throttle_events_total": ("counter", "throttling events of cores since the host was started"),
    "mxpeak_device_ecc_errors_total": ("counter", "memory errors since the host or the driver was started"),
    "mxpeak_device_read_time_seconds": ("gauge", "when the sensors of a device were read, in Unix time"),
    "mxpeak_missing_value_info": ("gauge", "always 1; the label states values that mxpeak cannot read, and the reason"),
    "mxpeak_exit_code": ("gauge", "exit code of the run, after it has ended"),
}

#: Units of metrics, which are the end of their names.
UNITS = ("seconds", "watts", "joules", "celsius", "hertz")
#: Labels of a result that identify the place of the run, and the problem.
WHERE = ("cluster", "job", "host")
PROBLEM = (
    "n", "m", "nb", "P", "Q", "nx", "ny", "nz", "kind", "structure", "dtype", "precision", "generator",
)  # fmt: skip
#: Labels of the values of devices. The job is not among them, so that the same series continues from job to job.
STABLE = ("cluster", "host", "benchmark")
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class DeviceValues:
    """The values of a device that were read at a Unix time: sensors, power and joules since the run first used it."""

    sensors: Sensors
    unix: float
    reading: SensorReading
    power_w: float | None
    joules: float | None


class MetricsFile:
    """Writes metrics to a file. The first error is stored in `error` and ends the output.

    Two threads change the metrics: the thread of the run, and the thread that reads the sensors. Each thread holds
    `lock` while it changes the metrics.
    """

    def __init__(self, path: Path, about: Mapping[str, str], clock: Callable[[], float] = time.time):
        self.path, self.lock = path, threading.RLock()
        self.error: OSError | None = None
        self._clock = clock
        self._values: dict[str, dict[Labels, float]] = {name: {} for name in METRICS}
        self._where = {name: about[name] for name in STABLE if name in about}
        self._set("mxpeak_run_info", 1.0, **about)

    def note(self, notes: Sequence[str]) -> None:
        """Write these notes as labels of a metric, with the next update of the file."""
        with self.lock:
            self._clear("mxpeak_missing_")
            for text in notes:
                self._set("mxpeak_missing_value_info", 1.0, **self._where, text=" ".join(text.split()))

    def devices(self, devices: Sequence[DeviceValues]) -> None:
        """Replace the values of all devices, and write the file."""
        with self.lock:
            self._clear("mxpeak_device_")
            for device in devices:
                self._device(device)
            self._write()

    def text(self) -> str:
        """Return all metrics as text."""
        lines: list[str] = []
        for name, (kind, help_text) in METRICS.items():
            if samples := self._values[name]:
                family = name.removesuffix("_total") if kind == "counter" else name
                lines += [f"# HELP {family} {help_text}", f"# TYPE {family} {kind}"]
                lines += [f"# UNIT {family} {unit}" for unit in UNITS if family.endswith(f"_{unit}")]
                lines += [f"{name}{_braces(labels)} {_number(value)}" for labels, value in samples.items()]
        return "\n".join([*lines, "# EOF"]) + "\n"

    def _device(self, values: DeviceValues) -> None:
        sensors, now = values.sensors, values.reading
        about = {**self._where, "device": sensors.device}
        identity = {"kind": sensors.kind, "source": sensors.source, **({"uuid": sensors.uuid} if sensors.uuid else {})}
        self._set("mxpeak_device_info", 1.0, **about, **identity)
        figures = {
            "power_watts": values.power_w,
            "energy_joules_total": values.joules,
            "temperature_celsius": now.temperature_c,
            "clock_hertz": _hertz(now.clock_mhz),
            "max_clock_hertz": _hertz(now.max_clock_mhz),
            "memory_clock_hertz": _hertz(now.memory_clock_mhz),
            "throttle_events_total": now.throttled,
            "read_time_seconds": values.unix,
        }
        for figure, value in figures.items():
            if value is not None:
                self._set(f"mxpeak_device_{figure}", float(value), **about)
        if now.reasons is not None:
            for reason in sensors.reasons:
                self._set("mxpeak_device_throttled", float(reason in now.reasons), **about, reason=reason)
        for kind, count in (("corrected", now.ecc_corrected), ("uncorrected", now.ecc_uncorrected)):
            if count is not None:
                self._set("mxpeak_device_ecc_errors_total", float(count), **about, kind=kind)

    def _set(self, name: str, value: float, **labels: str) -> None:
        self._values[name][tuple(labels.items())] = value

    def _clear(self, prefix: str) -> None:
        for name in METRICS:
            if name.startswith(prefix):
                self._values[name].clear()

    def _write(self) -> None:
        if self.error is not None:
            return
        # The name is short, because file systems limit its length, and differs between nodes that share the folder.
        part = self.path.with_name(f".mxpeak-{os.getpid()}-{crc32(os.fsencode(self.path.name)):x}.prom.part")
        try:
            if (kind := irregular(self.path)) is not None:
                raise FileExistsError(EEXIST, f"it is {kind}")  # which the rename would replace
            part.write_text(self.text(), encoding="utf-8", errors="backslashreplace")
            part.replace(self.path)
        except OSError as error:
            self.error = error
            with suppress(OSError):
                part.unlink(missing_ok=True)


class Metrics(MetricsFile):
    """Observes a run and writes its metrics to a file."""

    def __init__(self, path: Path, about: Mapping[str, str], clock: Callable[[], float] = time.time):
        super().__init__(path, about, clock)
        self._written_s = 0.0
        self._place = {name: about[name] for name in WHERE if name in about}
        self._set("mxpeak_running", 1.0)
        self._set("mxpeak_start_time_seconds", clock())
        self._progressed()

    def start(self, label: str, total_flops: float) -> None:
        """Reset the metrics of the current computation, and write the file."""
        with self.lock:
            self._written_s = 0.0
            self._phase(label, 0, 0, 0.0, 0.0, total_flops)
            self._progressed()

    def step(self, step: Step) -> None:
        """Update the metrics and write the file, if UPDATE_S seconds have passed since the last update."""
        if step.elapsed_s - self._written_s < UPDATE_S:
            return
        with self.lock:
            self._written_s = step.elapsed_s
            self._phase(step.label, step.index, step.count, step.elapsed_s, step.done_flops, step.total_flops)
            self._progressed()

    def finish(self, label: str, elapsed_s: float) -> None:
        """Do nothing: the last metrics of a computation remain in the file."""

    def case(self, result: Result, name: str) -> None:
        """Add the metrics of a completed case, and write the file."""
        about = {"benchmark": result.benchmark, "case": name}
        figures = {
            "rate_flops": result.result.get("rate_flops"),
            "rate_bytes": result.result.get("rate_bytes"),
            "time_seconds": result.result.get("time_s"),
            "residual": result.validation.get("residual"),
        }
        key = (("benchmark", result.benchmark), ("status", result.status))
        with self.lock:
            self._set("mxpeak_result_info", 1.0, **about, **self._place, **problem_labels(result.problem))
            counted = self._values["mxpeak_cases_total"]
            counted[key] = counted.get(key, 0.0) + 1.0
            self._set("mxpeak_result_passed", float(result.passed), **about)
            for figure, value in figures.items():
                if value is not None:
                    self._set(f"mxpeak_result_{figure}", value, **about)
            self._progressed()

    def scan(self, body: Mapping[str, Any], rates: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
        """Add the metrics of a scan: the rates of each node by measure and round, the findings and the actions."""
        findings = {"all": body["ranks"], "slow": body["slow"], "wrong": body["wrong"]}
        about = {"benchmark": "scan", "case": "scan"}
        with self.lock:
            for name, each in findings.items():
                self._set("mxpeak_scan_ranks", float(len({rank["rank"] for rank in each})), finding=name)
            for host, measures in rates.items():
                for measure, rounds in measures.items():
                    unit = "bytes" if measure in SCANNED_BYTES else "flops"
                    self._set(f"mxpeak_scan_node_rate_{unit}", median(rounds), host=host, measure=measure)
            for action in body["actions"]:
                self._set("mxpeak_scan_node_action", 1.0, host=action["host"], severity=action["severity"])
            self._set("mxpeak_result_info", 1.0, **about, **self._place, **problem_labels(body["problem"]))
            self._set("mxpeak_result_passed", float(body["status"] == "alike"), **about)
            self._progressed()

    def ended(self, code: int) -> None:
        """Set the exit code, remove the metrics of the computation and of the devices, and write the file."""
        with self.lock:
            self._clear("mxpeak_phase_")
            self._clear("mxpeak_device_")
            self._clear("mxpeak_missing_")
            self._set("mxpeak_running", 0.0)
            self._set("mxpeak_exit_code", float(code))
            self._progressed()

    def _progressed(self) -> None:
        """Record the time of the progress, which an update of the sensors does not change, and write the file."""
        self._set("mxpeak_update_time_seconds", self._clock())
        self._write()

    def _phase(self, label: str, index: int, count: int, elapsed_s: float, done: float, total: float) -> None:
        figures = {
            "elapsed_seconds": elapsed_s,
            "steps_done": float(index),
            "steps": float(count),
            "flops_done": done,
            "flops": total,
            "rate_flops": done / elapsed_s if elapsed_s else 0.0,
        }
        for figure, value in figures.items():
            self._values[f"mxpeak_phase_{figure}"] = {(("phase", label),): value}


def problem_labels(problem: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that identify a problem as labels."""
    return {name: _label(problem[name]) for name in PROBLEM if problem.get(name) is not None}


def _label(value: Any) -> str:
    """Return the value of a label. The precisions of a solver have one value per level, such as mg=bf16/fp32."""
    if isinstance(value, Mapping):
        return " ".join(f"{name}={_label(one)}" for name, one in value.items())
    return "/".join(dict.fromkeys(map(str, value))) if isinstance(value, list | tuple) else str(value)


def _braces(labels: Labels) -> str:
    escaped = [(key, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for key, value in labels]
    return "{" + ",".join(f'{key}="{value}"' for key, value in escaped) + "}" if labels else ""


def _number(value: float) -> str:
    """Return a number with all digits, with the names of both formats for infinity and NaN."""
    return repr(value) if isfinite(value) else "NaN" if isnan(value) else "+Inf" if value > 0 else "-Inf"


def _hertz(megahertz: float | None) -> float | None:
    return None if megahertz is None else 1e6 * megahertz
