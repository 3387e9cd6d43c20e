"""Energy of a node while something is timed: RAPL's counters of its processors, NVML's of its GPUs.

Counters are read at both ends of each timed region, and 20 times a second between: what was used since the last look
goes to the phase that is under way.  RAPL's counters begin anew at some 260 kJ, twenty minutes of a busy processor.
What cannot be read is None; on many systems root alone may read RAPL.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mxpeak.perf.health import gpu_energy
from mxpeak.perf.host import number_in, text_in

#: RAPL counts microjoules; seconds between two looks.
MICRO, LOOK_S = 1e-6, 0.05
#: Where no phase is under way.
OTHER = "other"


class Counter(Protocol):
    """Something whose energy grows."""

    name: str

    def joules(self) -> float | None:
        """Since the counter was made."""


class Rapl:
    """One of RAPL's domains: a package, or the memory at it."""

    def __init__(self, folder: Path):
        self.name = folder.name
        self._file, self._range = folder / "energy_uj", number_in(folder / "max_energy_range_uj")
        self._last, self._total = number_in(self._file), 0

    def joules(self) -> float | None:
        """What was counted since, around the end of the counter too, if somebody looks once a round."""
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


class Gpu:
    """One of NVIDIA's GPUs, through NVML."""

    def __init__(self, pci_bus_id: str):
        self.name, self._read = gpu_energy(pci_bus_id)
        self._first = self._read()

    def joules(self) -> float | None:
        """What was counted since."""
        now = self._read()
        return None if now is None or self._first is None else now - self._first


def processors(root: str | Path = "/") -> list[Counter]:
    """The packages of this host, and their memory where it is counted apart."""
    found: list[Counter] = []
    for package in sorted((Path(root) / "sys/class/powercap").glob("intel-rapl:[0-9]*")):
        if package.name.count(":") == 1 and (text_in(package / "name") or "").startswith("package"):
            found.append(Rapl(package))
            parts = sorted(package.glob(f"{package.name}:[0-9]*"))
            found += [Rapl(part) for part in parts if text_in(part / "name") == "dram"]
    return found


@dataclass(frozen=True, slots=True)
class Used:
    """What one rank has read over all timed regions: joules of its host's processors, and of its GPU.

    seconds    that the regions took
    gpu        whose joules: ranks may share a GPU
    phases     all these joules by the phase that this rank was in
    """

    seconds: float
    processors: float | None = None
    gpu: str | None = None
    gpu_joules: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)


class Meter:
    """The energy of timed regions, one after the other.

    cpu      counters of this host's processors; empty on all ranks of a host but one
    gpu      that of this rank's GPU
    doing    tells the phase that is under way
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
        """Forget all regions."""
        self._seconds, self._joules, self._gpu_joules = 0.0, _Sum(), _Sum()
        self._phases: dict[str, float] = defaultdict(float)

    def begin(self) -> None:
        """A region begins."""
        self._ended, self._before = threading.Event(), self._read()
        self._last = self._both(self._before)
        self._region: dict[str, float] = defaultdict(float)
        counts = bool(self._cpu) or self._gpu is not None
        self._looking = threading.Thread(target=self._look, name="energy", daemon=True) if counts else None
        if self._looking is not None:
            self._looking.start()

    def end(self, seconds: float | None) -> None:
        """It ended, and took so long; None: it failed, and does not count."""
        self._ended.set()
        if self._looking is not None:
            self._looking.join()  # a counter is read by one thread at a time
        if seconds is None:
            return
        now, (cpu_before, gpu_before) = self._read(), self._before
        self._book(now)
        self._seconds += seconds
        self._joules.add(now[0], cpu_before)
        self._gpu_joules.add(now[1], gpu_before)
        _add(self._phases, self._region)

    @property
    def used(self) -> Used:
        """Over all regions; by phase where the sum is known."""
        cpu = self._joules.total if self._cpu else None
        gpu = None if self._gpu is None else self._gpu_joules.total
        known = (cpu is not None or not self._cpu) and (gpu is not None or self._gpu is None)
        phases = dict(self._phases) if known else {}
        return Used(self._seconds, cpu, None if self._gpu is None else self._gpu.name, gpu, phases)

    def _look(self) -> None:
        while not self._ended.wait(self._look_s):
            self._book(self._read())

    def _book(self, now: tuple[float | None, float | None]) -> None:
        """What was used since the last look that succeeded goes to the phase that is under way."""
        both = self._both(now)
        if both is None or self._last is None:
            return
        if both > self._last:
            self._region[self._doing() or OTHER] += both - self._last
        self._last = both

    def _both(self, read: tuple[float | None, float | None]) -> float | None:
        counted = bool(self._cpu), self._gpu is not None
        return total(joules for joules, one in zip(read, counted) if one)

    def _read(self) -> tuple[float | None, float | None]:
        cpu = total(counter.joules() for counter in self._cpu)
        return cpu, None if self._gpu is None else self._gpu.joules()


class _Sum:
    """Joules of regions; None once one could not be read."""

    def __init__(self) -> None:
        self.total: float | None = 0.0

    def add(self, after: float | None, before: float | None) -> None:
        unread = self.total is None or after is None or before is None
        self.total = None if unread else (self.total or 0.0) + (after or 0.0) - (before or 0.0)


def _add(sums: dict[str, float], more: Mapping[str, float]) -> None:
    for name, joules in more.items():
        sums[name] += joules


def total(parts: Iterable[float | None]) -> float | None:
    """Their sum; None if one is, or there are none."""
    known = list(parts)
    return None if not known or None in known else sum(part for part in known if part is not None)


def why_unknown(packages: Sequence[Counter] | None, gpu: Counter | None, *, amd: bool = False) -> str:
    """Return why the energy of this host, or of this rank's GPU, is not known; empty if all of it is.

    packages   counters of the host's processors; None on ranks that another rank of the host reads them for
    gpu        that of this rank's GPU, None if it has none; `amd`: it is one of AMD's
    """
    reasons = []
    if packages is not None and not packages:
        reasons.append("this system has no RAPL counters in /sys/class/powercap")
    elif packages and total(counter.joules() for counter in packages) is None:
        reasons.append("this user cannot read the RAPL counters in /sys/class/powercap (on many systems only root can)")
    if gpu is not None and gpu.joules() is None:
        nvidia = "NVML reports no energy of the GPU (it needs nvidia-ml-py and a GPU with an energy counter)"
        reasons.append("mxpeak does not read the energy of AMD GPUs" if amd else nvidia)
    return "; ".join(reasons)


def energy(everybody: Sequence[tuple[str, Used]], rate_flops: float | None) -> dict[str, Any] | None:
    """All hosts' energy of the timed regions, as results have it; `everybody` is each rank's host and what it has read.

    None where nothing can be read.  Where GPUs compute, processors and GPUs have to be known for a sum.
    """
    hosts = {host for host, _ in everybody}
    cpu_of = {host: used.processors for host, used in everybody if used.processors is not None}
    cpu = total(cpu_of.get(host) for host in hosts)
    gpu_of = {(host, used.gpu): used.gpu_joules for host, used in everybody if used.gpu is not None}
    gpu, seconds = total(gpu_of.values()), max((used.seconds for _, used in everybody), default=0.0)
    if (cpu is None and gpu is None) or not seconds:
        return None
    joules = cpu if not gpu_of else total([cpu, gpu])
    watts = None if joules is None else joules / seconds
    phases: dict[str, float] = defaultdict(float)
    seen: set[tuple[str, str | None]] = set()
    for host, used in everybody:
        if used.gpu is None or (host, used.gpu) not in seen:  # ranks that share a GPU read the same
            _add(phases, used.phases)
        seen.add((host, used.gpu))
    return {
        "seconds": seconds,
        "processor_joules": cpu,
        "gpu_joules": gpu,
        "joules": joules,
        "watts": watts,
        "gflops_per_watt": rate_flops / 1e9 / watts if watts and rate_flops else None,
        "phases": dict(sorted(phases.items(), key=lambda one: -one[1])),
    }
