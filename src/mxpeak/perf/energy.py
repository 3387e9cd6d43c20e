"""Measure the energy of timed regions with the counters of processors and GPUs.

Processors: RAPL, or pm_counters of HPE Cray nodes. GPUs: NVML on NVIDIA, and amdsmi on AMD.

A thread reads the counters at both ends of each timed region and 20 times per second in between. The energy since the
last reading is added to the current phase. RAPL counters wrap at about 260 kJ, which a busy processor uses in twenty
minutes. Unreadable values are None; on many systems only root can read RAPL.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mxpeak.perf.health import amd_energy, gpu_energy
from mxpeak.perf.host import number_in, text_in

#: Joules per count of RAPL, and seconds between two readings.
MICRO, LOOK_S = 1e-6, 0.05
#: Name of the phase for energy outside of all phases.
OTHER = "other"


class Counter(Protocol):
    """A counter of the energy that a device consumes."""

    name: str

    def joules(self) -> float | None:
        """Return the joules since the creation of the counter, or None if it cannot be read."""


class Rapl:
    """The counter of a RAPL domain: a processor package or its memory."""

    def __init__(self, folder: Path):
        self.name = folder.name
        self._file, self._range = folder / "energy_uj", number_in(folder / "max_energy_range_uj")
        self._last, self._total = number_in(self._file), 0

    def joules(self) -> float | None:
        """Return the joules since the creation of the counter, which must be read at least once per wrap."""
        now = number_in(self._file)
        if now is None or self._last is None:
            return None
        grown = now - self._last
        if grown < 0:
            if self._range is None:
                return None
            grown += self._range + 1
        self._last, self._total = now, self._total + grown
        return MICRO * self._total


class NvmlCounter:
    """The energy counter of an NVIDIA GPU, read through NVML."""

    def __init__(self, pci_bus_id: str):
        self.name, self._read = gpu_energy(pci_bus_id)
        self._first = self._read()

    def joules(self) -> float | None:
        """Return the joules since the creation of the counter, or None if NVML cannot read them."""
        now = self._read()
        return None if now is None or self._first is None else now - self._first


class PmCounter:
    """A counter of HPE Cray's pm_counters, which the node's controller updates ten times per second."""

    def __init__(self, file: Path):
        self.name, self._file = file.name, file
        self._first = self._read()

    def joules(self) -> float | None:
        """Return the joules since the creation of the counter, or None if it cannot be read."""
        now = self._read()
        return None if now is None or self._first is None else now - self._first

    def _read(self) -> float | None:
        words = (text_in(self._file) or "").split()  # such as 123456 J 1712345678 us
        return float(words[0]) if len(words) >= 2 and words[0].isdecimal() and words[1] == "J" else None


class AmdCounter:
    """The energy counter of an AMD GPU, read through amdsmi."""

    def __init__(self, pci_bus_id: str):
        self.name, self._read = amd_energy(pci_bus_id)
        self._first = self._read()

    def joules(self) -> float | None:
        """Return the joules since the creation of the counter, or None if amdsmi cannot read them."""
        now = self._read()
        return None if now is None or self._first is None else now - self._first


def gpu_counter(pci_bus_id: str, *, amd: bool) -> Counter:
    """Return the energy counter of the GPU with this PCI address."""
    return AmdCounter(pci_bus_id) if amd else NvmlCounter(pci_bus_id)


def processors(root: str | Path = "/") -> list[Counter]:
    """Return the counters of this host's processor packages, and of their memory if it has a separate counter.

    If RAPL is missing or unreadable, the counters are those of Cray's pm_counters, if the host has them.
    """
    counters: list[Counter] = []
    for package in sorted((Path(root) / "sys/class/powercap").glob("intel-rapl:[0-9]*")):
        if package.name.count(":") == 1 and (text_in(package / "name") or "").startswith("package"):
            counters.append(Rapl(package))
            parts = sorted(package.glob(f"{package.name}:[0-9]*"))
            counters += [Rapl(part) for part in parts if text_in(part / "name") == "dram"]
    if any(counter.joules() is not None for counter in counters):
        return counters
    files = [Path(root) / f"sys/cray/pm_counters/{part}_energy" for part in ("cpu", "memory")]
    return [PmCounter(file) for file in files if file.exists()] or counters


@dataclass(frozen=True, slots=True)
class EnergyUsed:
    """Joules used in all timed regions by a rank's GPU and, if the rank reads them, by the processors of its host.

    seconds    duration of the regions
    gpu        identifier of the GPU, because ranks may share a GPU
    phases     joules of processors and GPU together, by phase of this rank
    """

    seconds: float
    processors: float | None = None
    gpu: str | None = None
    gpu_joules: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)


class EnergyMeter:
    """Measures the energy of consecutive timed regions.

    cpu      counters of this host's processors; empty on all ranks of a host except one
    gpu      counter of this rank's GPU, or None
    doing    function that returns the name of the current phase
    """

    def __init__(
        self,
        cpu: Sequence[Counter],
        gpu: Counter | None,
        look_s: float = LOOK_S,
        doing: Callable[[], str] = lambda: OTHER,
    ):
        self._cpu, self._gpu, self._look_s, self._doing = cpu, gpu, look_s, doing
        self.clear()

    def clear(self) -> None:
        """Discard the energy of all regions so far."""
        self._seconds, self._joules, self._gpu_joules = 0.0, _Sum(), _Sum()
        self._phases: dict[str, float] = defaultdict(float)

    def begin(self) -> None:
        """Read the counters at the start of a region, and start the thread that reads them regularly."""
        self._ended, self._before = threading.Event(), self._read()
        self._last = self._both(self._before)
        self._region: dict[str, float] = defaultdict(float)
        counts = bool(self._cpu) or self._gpu is not None
        self._looking = threading.Thread(target=self._look, name="energy", daemon=True) if counts else None
        if self._looking is not None:
            self._looking.start()

    def end(self, seconds: float | None) -> None:
        """End a region that took `seconds`, and add its energy.

        If `seconds` is None, the region failed, and its energy is discarded.
        """
        self._ended.set()
        if self._looking is not None:
            self._looking.join()  # only one thread at a time may read a counter
        if seconds is None:
            return
        now, (cpu_before, gpu_before) = self._read(), self._before
        self._book(now)
        self._seconds += seconds
        self._joules.add(now[0], cpu_before)
        self._gpu_joules.add(now[1], gpu_before)
        _add(self._phases, self._region)

    @property
    def used(self) -> EnergyUsed:
        """Return the energy of all regions so far. It is divided by phase only if all counters were readable."""
        cpu = self._joules.total if self._cpu else None
        gpu = None if self._gpu is None else self._gpu_joules.total
        readable = (cpu is not None or not self._cpu) and (gpu is not None or self._gpu is None)
        phases = dict(self._phases) if readable else {}
        return EnergyUsed(self._seconds, cpu, None if self._gpu is None else self._gpu.name, gpu, phases)

    def _look(self) -> None:
        while not self._ended.wait(self._look_s):
            self._book(self._read())

    def _book(self, now: tuple[float | None, float | None]) -> None:
        """Add the energy since the last successful read to the current phase."""
        both = self._both(now)
        if both is None or self._last is None:
            return
        if both > self._last:
            self._region[self._doing() or OTHER] += both - self._last
        self._last = both

    def _both(self, read: tuple[float | None, float | None]) -> float | None:
        counted = bool(self._cpu), self._gpu is not None
        return total(joules for joules, valid in zip(read, counted) if valid)

    def _read(self) -> tuple[float | None, float | None]:
        cpu = total(counter.joules() for counter in self._cpu)
        return cpu, None if self._gpu is None else self._gpu.joules()


class _Sum:
    """A sum of joules that becomes None if a value is unreadable."""

    def __init__(self) -> None:
        self.total: float | None = 0.0

    def add(self, after: float | None, before: float | None) -> None:
        unread = self.total is None or after is None or before is None
        self.total = None if unread else (self.total or 0.0) + (after or 0.0) - (before or 0.0)


def _add(sums: dict[str, float], more: Mapping[str, float]) -> None:
    for name, joules in more.items():
        sums[name] += joules


def total(parts: Iterable[float | None]) -> float | None:
    """Return the sum of the parts, or None if a part is None or there are no parts."""
    values = list(parts)
    return None if not values or None in values else sum(part for part in values if part is not None)


def why_unknown(packages: Sequence[Counter] | None, gpu: Counter | None, *, amd: bool = False) -> str:
    """Return the reasons why the energy of this host or of this rank's GPU is unknown; empty if the energy is known.

    packages   counters of the host's processors; None if another rank of the host reads them
    gpu        counter of this rank's GPU, or None without a GPU
    amd        whether the GPU is from AMD
    """
    reasons = []
    if packages is not None and not packages:
        reasons.append("this system has no RAPL counters in /sys/class/powercap and no Cray pm_counters")
    elif packages and total(counter.joules() for counter in packages) is None:
        reasons.append("this user cannot read the RAPL counters in /sys/class/powercap (on many systems only root can)")
    if gpu is not None and gpu.joules() is None:
        nvidia = "NVML reports no energy of the GPU (it needs nvidia-ml-py and a GPU with an energy counter)"
        reasons.append("amdsmi reports no energy of the GPU (it needs ROCm's amdsmi package)" if amd else nvidia)
    return "; ".join(reasons)


def energy(ranks: Sequence[tuple[str, EnergyUsed]], rate_flops: float | None) -> dict[str, Any] | None:
    """Return the energy of all hosts over the timed regions as a section of a result; None if no counter is readable.

    `ranks` contains a pair of host and energy per rank. With GPUs, the total is known only if the energy of both
    processors and GPUs is known.
    """
    hosts = {host for host, _ in ranks}
    cpu_of = {host: used.processors for host, used in ranks if used.processors is not None}
    cpu = total(cpu_of.get(host) for host in hosts)
    gpu_of = {(host, used.gpu): used.gpu_joules for host, used in ranks if used.gpu is not None}
    gpu, seconds = total(gpu_of.values()), max((used.seconds for _, used in ranks), default=0.0)
    if (cpu is None and gpu is None) or not seconds:
        return None
    joules = cpu if not gpu_of else total([cpu, gpu])
    watts = None if joules is None else joules / seconds
    phases: dict[str, float] = defaultdict(float)
    seen: set[tuple[str, str | None]] = set()
    for host, used in ranks:
        if used.gpu is None or (host, used.gpu) not in seen:  # ranks that share a GPU read the same counter
            _add(phases, used.phases)
        seen.add((host, used.gpu))
    return {
        "seconds": seconds,
        "processor_joules": cpu,
        "gpu_joules": gpu,
        "joules": joules,
        "watts": watts,
        "gflops_per_watt": rate_flops / 1e9 / watts if watts and rate_flops else None,
        "phases": dict(sorted(phases.items(), key=lambda phase: -phase[1])),
    }
