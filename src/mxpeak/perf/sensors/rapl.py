"""Energy counters of processor packages and of their memory: RAPL, in /sys/class/powercap."""

from __future__ import annotations

from pathlib import Path

from mxpeak.perf.host import number_in, text_in
from mxpeak.perf.sensors.contract import MissingValue, Sensors, why_unreadable

#: Joules per count.
MICRO = 1e-6


class Rapl(Sensors):
    """The counter of a RAPL domain: a processor package or its memory.

    Processors update the counter about every millisecond (Intel's manual, volume 3, section on power management).
    """

    source = "RAPL"
    lag_s = 0.002

    def __init__(self, folder: Path):
        name = text_in(folder / "name") or folder.name
        package = text_in(folder.parent / "name") if name == "dram" else None
        self.device = f"{name} of {package}" if package else name
        self.kind = "memory" if name == "dram" else "cpu"
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

    def missing(self) -> list[MissingValue]:
        """Return energy and power if they cannot be read."""
        return [] if self._last is not None else [MissingValue("energy and power", why_unreadable(self._file))]


def rapl(root: str | Path = "/") -> list[Rapl]:
    """Return the counters of all processor packages, and of their memory if it has a separate counter."""
    counters: list[Rapl] = []
    for package in sorted((Path(root) / "sys/class/powercap").glob("intel-rapl:[0-9]*")):
        if package.name.count(":") == 1 and (text_in(package / "name") or "").startswith("package"):
            counters.append(Rapl(package))
            parts = sorted(package.glob(f"{package.name}:[0-9]*"))
            counters += [Rapl(part) for part in parts if text_in(part / "name") == "dram"]
    return counters
