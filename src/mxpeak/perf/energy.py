"""Measure the energy of timed regions with the counters of processors and GPUs.

Processors: RAPL, or pm_counters of HPE Cray nodes. GPUs: NVML on NVIDIA, and amdsmi on AMD.

A thread reads the counters at both ends of each timed region and 20 times per second in between. RAPL counters wrap at
about 260 kJ, which a busy processor uses in twenty minutes. Unreadable values are None; on many systems only root can
read RAPL.

A value that is read at time t is at most lag_s old: the counter is updated at intervals, and its sensor has a delay. A
difference of two readings therefore belongs to a phase only if the first reading is at least lag_s after the phase has
begun, and the second one is before the phase has ended. This is the confidence window of McDaniel et al.
(arXiv 2604.06056). The energy outside of the windows is not attributable to a phase. In the same way, the energy of a
region has an error of up to lag_s times the power, so the energy of short regions is not attributable.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from time import perf_counter
from typing import Any

from mxpeak.perf.devices import bus_address
from mxpeak.perf.sensors.contract import Counter, MissingValue, Sensors
from mxpeak.spans import LongSpan

#: Seconds between two readings, and the maximum number of readings that a region keeps.
LOOK_S, MAX_READINGS = 0.05, 50_000
#: Largest error of the energy of regions, relative to the energy, that the lag of a counter may cause.
MAX_ERROR = 0.1
#: Start of the reason for an unknown energy if the counters were read, but the regions are too short.
NOT_ATTRIBUTABLE = "not attributable"
#: The owner of the energy between two readings that is in the windows of several phases at the same time.
OVERLAP = LongSpan("overlap", "", 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class PhaseEnergy:
    """Joules in the confidence windows of a phase, and the length of the windows in seconds."""

    joules: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class EnergyUsed:
    """Joules used in all timed regions by a rank's GPU and, if the rank reads them, by the processors of its host.

    seconds    duration of the regions
    gpu        identifier of the GPU, because ranks may share a GPU
    phases     energy of processors and GPU together, by phase of this rank
    too_short  phases without attributable energy
    window_s   shortest phase that always has attributable energy
    why_short  reason why the energy of these regions is not attributable; empty if it is
    first_die  GPU of the same module that counts the energy of this rank's GPU, so that gpu_joules is 0, or None
    """

    seconds: float
    processors: float | None = None
    gpu: str | None = None
    gpu_joules: float | None = None
    phases: Mapping[str, PhaseEnergy] = field(default_factory=dict)
    too_short: frozenset[str] = frozenset()
    window_s: float = 0.0
    why_short: str = ""
    first_die: str | None = None


@dataclass(frozen=True, slots=True)
class CounterReading:
    """The times before and after the counters were read, and the sum of the joules."""

    before: float
    after: float
    joules: float


class EnergyMeter:
    """Measures the energy of consecutive timed regions.

    cpu         counters of this host's processors; empty on all ranks of a host except one
    gpu         counter of this rank's GPU, or None
    long_spans  list to which the spans of this rank append each span of at least least_s; cleared for each region
    """

    def __init__(self, cpu: Sequence[Counter], gpu: Sensors | None, long_spans: list[LongSpan], look_s: float = LOOK_S):
        self._cpu, self._gpu, self._long_spans, self._look_s = cpu, gpu, long_spans, look_s
        counters = [*cpu, *([gpu] if gpu else [])]  # a GPU may have no energy counter, and then no lag
        self._lags = {counter.source: counter.lag_s for counter in counters if counter.lag_s < inf}
        self.clear()

    @property
    def least_s(self) -> float:
        """Return the length of the shortest span that can contain two readings in its confidence window."""
        return self._lag_s + self._look_s if self._lags else inf

    @property
    def _lag_s(self) -> float:
        return max(self._lags.values(), default=0.0)

    def clear(self) -> None:
        """Discard the energy of all regions so far."""
        self.regions, self._seconds, self._joules, self._gpu_joules = 0, 0.0, _Sum(), _Sum()
        self._phases: dict[str, PhaseEnergy] = {}
        self._seen: set[str] = set()
        self._window_s = self._lag_s + 2 * self._look_s

    def begin(self) -> None:
        """Read the counters at the start of a region, and start the thread that reads them regularly."""
        self._long_spans.clear()
        self._readings: list[CounterReading] = []
        self._ended, self._first = threading.Event(), self._read()
        self._looking = threading.Thread(target=self._look, name="energy", daemon=True) if self._lags else None
        if self._looking is not None:
            self._looking.start()

    def end(self, seconds: float | None, phases: Collection[str] = ()) -> None:
        """End a region that took `seconds` and had these phases, and add its energy.

        If `seconds` is None, the region failed, and its energy is discarded.
        """
        self._ended.set()
        if self._looking is not None:
            self._looking.join()  # only one thread at a time may read a counter
        if seconds is None:
            return
        (cpu, gpu), (cpu_first, gpu_first) = self._read(), self._first
        self.regions += 1
        self._seconds += seconds
        self._joules.add(cpu, cpu_first)
        self._gpu_joules.add(gpu, gpu_first)
        self._seen.update(phases)
        for name, energy in attributed(self._readings, self._long_spans, self._lag_s).items():
            before = self._phases.get(name, PhaseEnergy())
            self._phases[name] = PhaseEnergy(before.joules + energy.joules, before.seconds + energy.seconds)

    @property
    def used(self) -> EnergyUsed:
        """Return the energy of all regions so far. It is divided by phase only if all counters were readable."""
        cpu = self._joules.total if self._cpu else None
        gpu = None if self._gpu is None else self._gpu_joules.total
        readable = (cpu is not None or not self._cpu) and (gpu is not None or self._gpu is None)
        why = _why_short(self._seconds, self.regions, self._lags if readable else {})
        phases = self._phases if readable and not why else {}
        return EnergyUsed(
            seconds=self._seconds,
            processors=None if why else cpu,
            gpu=None if self._gpu is None else self._gpu.uuid or bus_address(self._gpu.device),
            gpu_joules=None if why else gpu,
            phases=dict(phases),
            too_short=frozenset(self._seen - set(phases)),
            window_s=self._window_s,
            why_short=why,
            first_die=None if self._gpu is None else self._gpu.first_die,
        )

    def _look(self) -> None:
        look_s = self._look_s
        while not self._ended.wait(look_s):
            before = perf_counter()
            cpu, gpu = self._read()
            joules = total([*([cpu] if self._cpu else []), *([gpu] if self._gpu else [])])
            if joules is not None:
                self._readings.append(CounterReading(before, perf_counter(), joules))
            if len(self._readings) >= MAX_READINGS:  # an hour: half as many readings bound the memory
                del self._readings[1::2]
                look_s *= 2
                self._window_s = max(self._window_s, self._lag_s + 2 * look_s)

    def _read(self) -> tuple[float | None, float | None]:
        cpu, gpu = total(counter.joules() for counter in self._cpu), self._gpu
        return cpu, None if gpu is None else 0.0 if gpu.first_die else gpu.joules()


def attributed(readings: Sequence[CounterReading], spans: Iterable[LongSpan], lag_s: float) -> dict[str, PhaseEnergy]:
    """Return the energy between the readings in the confidence windows of the spans, by phase.

    A span inside another one owns the energy of its window. The energy in the windows of spans that run at the same
    time, on a device and on the host, has no owner.
    """
    before, after = [reading.before for reading in readings], [reading.after for reading in readings]
    owners: list[LongSpan | None] = [None] * max(0, len(readings) - 1)
    for span in sorted(spans, key=lambda span: span.begin - span.end):  # the longest first
        for k in range(bisect_left(before, span.begin + lag_s), bisect_right(after, span.end) - 1):
            around = owners[k]
            inside = around is None or (around is not OVERLAP and around.name == span.outer)
            owners[k] = span if inside else OVERLAP
    joules, seconds = defaultdict[str, float](float), defaultdict[str, float](float)
    for k, owner in enumerate(owners):
        if owner is not None and owner is not OVERLAP:
            joules[owner.name] += readings[k + 1].joules - readings[k].joules
            seconds[owner.name] += before[k + 1] - before[k]
    return {name: PhaseEnergy(joules[name], seconds[name]) for name in joules}


def _why_short(seconds: float, regions: int, lags: Mapping[str, float]) -> str:
    """Return the reason why the energy of regions has too large an error; empty if the error is small enough."""
    source = max(lags, key=lambda name: lags[name], default="")
    if not source or regions * lags[source] <= MAX_ERROR * seconds:
        return ""
    return (
        f"{NOT_ATTRIBUTABLE}: a timed part takes {seconds / regions:.2g} s, but {source} needs "
        f"{lags[source] / MAX_ERROR:.2g} s for an error below {100 * MAX_ERROR:.0f} %; use a larger problem"
    )


class _Sum:
    """A sum of joules that becomes None if a value is unreadable."""

    def __init__(self) -> None:
        self.total: float | None = 0.0

    def add(self, after: float | None, before: float | None) -> None:
        unread = self.total is None or after is None or before is None
        self.total = None if unread else (self.total or 0.0) + (after or 0.0) - (before or 0.0)


def total(parts: Iterable[float | None]) -> float | None:
    """Return the sum of the parts, or None if a part is None or there are no parts."""
    values = list(parts)
    return None if not values or None in values else sum(part for part in values if part is not None)


def why_unknown(packages: Sequence[Sensors] | None, gpu: Sensors | None) -> str:
    """Return the reasons why the energy of this host or of this rank's GPU is unknown; empty if the energy is known.

    packages   counters of the host's processors; None if another rank of the host reads them
    gpu        counter of this rank's GPU, or None without a GPU
    """
    reasons = []
    if packages is not None and not packages:
        reasons.append("this system has no RAPL counters in /sys/class/powercap and no Cray pm_counters")
    elif packages and total(counter.joules() for counter in packages) is None:
        files = _names_and_reasons([value for counter in packages for value in counter.missing()])
        root = "on many systems, only root can read RAPL"
        reasons.append(f"this user cannot read the counters of the processors: {files}; {root}")
    if gpu is not None and gpu.joules() is None and gpu.first_die is None:
        reasons.append(f"the GPU reports no energy: {_names_and_reasons(gpu.missing())}")
    return "; ".join(reasons)


def _names_and_reasons(missing: Sequence[MissingValue]) -> str:
    """Return a text such as "energy (NVML: Not Supported); power (NVML: Not Supported)"."""
    return "; ".join(f"{value.name} ({value.reason})" for value in missing)


def energy(ranks: Sequence[tuple[str, EnergyUsed]], rate_flops: float | None) -> dict[str, Any] | None:
    """Return the energy of all hosts over the timed regions as a section of a result; None if no counter is readable.

    `ranks` contains a pair of host and energy per rank. With GPUs, the total is known only if the energy of both
    processors and GPUs is known.
    """
    hosts = {host for host, _ in ranks}
    cpu_of = {host: used.processors for host, used in ranks if used.processors is not None}
    cpu = total(cpu_of.get(host) for host in hosts)
    gpu_of = {(host, used.gpu): used.gpu_joules for host, used in ranks if used.gpu is not None}
    gpu = None if lone_second_die(ranks) else total(gpu_of.values())
    seconds = max((used.seconds for _, used in ranks), default=0.0)
    if (cpu is None and gpu is None) or not seconds:
        return None
    joules = (cpu if not gpu_of else total([cpu, gpu])) or None  # no measurement if the counters did not change
    watts = None if joules is None else joules / seconds
    return {
        "seconds": seconds,
        "processor_joules": cpu,
        "gpu_joules": gpu,
        "joules": joules,
        "watts": watts,
        "gflops_per_watt": rate_flops / 1e9 / watts if watts and rate_flops else None,
        **_by_phase(ranks, joules),
    }


def lone_second_die(ranks: Sequence[tuple[str, EnergyUsed]]) -> str:
    """Return the reason why the energy of a second die of a GPU module is not counted; empty if there is none."""
    counting = {(host, used.gpu) for host, used in ranks if used.first_die is None}
    for host, used in ranks:
        if used.first_die is not None and (host, used.first_die) not in counting:
            return (
                f"GPU {used.gpu} of {host} is the second die of a module, and no rank uses the first die, "
                f"{used.first_die}, which counts the energy of both; use both dies"
            )
    return ""


def _by_phase(ranks: Sequence[tuple[str, EnergyUsed]], joules: float | None) -> dict[str, Any]:
    """Return the energy and the power of each phase, and the energy that is not attributable to a phase."""
    phases, watts = defaultdict[str, float](float), defaultdict[str, float](float)
    seen: set[tuple[str, str | None]] = set()
    for host, used in ranks:
        if used.gpu is None or (host, used.gpu) not in seen:  # ranks that share a GPU read the same counter
            for name, energy in used.phases.items():
                phases[name] += energy.joules
                watts[name] += energy.joules / energy.seconds
        seen.add((host, used.gpu))
    order = sorted(phases, key=lambda name: -phases[name])
    return {
        "phases": {name: phases[name] for name in order},
        "phase_watts": {name: watts[name] for name in order},
        "not_attributable": {
            "joules": None if joules is None else max(0.0, joules - sum(phases.values())),
            "phases": sorted({name for _, used in ranks for name in used.too_short} - set(phases)),
            "window_s": max(used.window_s for _, used in ranks),
        },
    }
