"""Sensors of HPE Cray nodes in /sys/cray/pm_counters: energy and power of processors, memory, GPUs and the node."""

from __future__ import annotations

import re
from pathlib import Path

from mxpeak.perf.host import number_in, text_in
from mxpeak.perf.sensors.contract import Growth, MissingValue, SensorReading, Sensors, why_unreadable

#: The folder of the counters, and the updates per second if the file raw_scan_hz does not contain them.
FOLDER, UPDATES_HZ = "sys/cray/pm_counters", 10
#: Kinds of the devices; accelerators have numbers.
KINDS = {"cpu": "cpu", "memory": "memory", "node": "node"}


class PmCounter(Sensors):
    """The counter and the power of a part of a node, which the node's controller updates ten times per second.

    A value can be one update interval old, and the controller needs up to one more to publish it.
    """

    source = "pm_counters"

    def __init__(self, folder: Path, device: str):
        part = "" if device == "node" else f"{device}_"
        self.device, self.kind = device, KINDS.get(device, "gpu")
        self.lag_s = 2.0 / (number_in(folder / "raw_scan_hz") or UPDATES_HZ)
        self._energy, self._power = folder / f"{part}energy", folder / f"{part}power"
        self._joules = Growth(lambda: _value(self._energy, "J"))

    def joules(self) -> float | None:
        """Return the joules since the creation, or None if the counter cannot be read."""
        return self._joules()

    def read(self) -> SensorReading:
        """Read the power."""
        return SensorReading(power_w=_value(self._power, "W"))

    def missing(self) -> list[MissingValue]:
        """Return each of energy and power that cannot be read."""
        values = (("energy", self._energy, "J"), ("power", self._power, "W"))
        unread = [MissingValue(name, why_unreadable(file)) for name, file, unit in values if _value(file, unit) is None]
        return [*self._joules.missing(), *unread]


def pm_counters(devices: str, root: str | Path = "/") -> list[PmCounter]:
    """Return the counters of the devices whose names match a regular expression: cpu, memory, accel0, … and node."""
    folder = Path(root) / FOLDER
    matches = [re.fullmatch(r"(?:(cpu|memory|accel\d+)_)?energy", file.name) for file in sorted(folder.glob("*energy"))]
    names = [match[1] or "node" for match in matches if match]
    return [PmCounter(folder, name) for name in names if re.fullmatch(devices, name)]


def _value(file: Path, unit: str) -> float | None:
    """Return the value in a file such as `123456 J 1712345678 us`, or None if it has another form or another unit."""
    words = (text_in(file) or "").split()
    return float(words[0]) if len(words) >= 2 and words[0].isdecimal() and words[1] == unit else None
