"""The interface of all sensors: the energy counter and the other readings of one device. Unknown values are None."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import NamedTuple, Protocol

from mxpeak.perf.host import number_in

#: Name of a missing value if no value of the device can be read.
ALL_VALUES = "all values"


@dataclass(frozen=True, slots=True)
class SensorReading:
    """One reading of the sensors of a device.

    clock_mhz, max_clock_mhz     clock of the slowest core or of the GPU, and the highest possible clock
    throttled                    number of throttling events since the processor was started
    reasons                      reasons for the current clock limit of a GPU
    ecc_corrected, _uncorrected  memory errors since the host or the GPU's driver was started
    memory_clock_mhz             clock of the GPU's memory
    power_w                      power as the device reports it
    temperature_c                temperature of the processors or of the GPU; the highest if there are several sensors
    """

    clock_mhz: float | None = None
    max_clock_mhz: float | None = None
    throttled: int | None = None
    reasons: tuple[str, ...] | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    memory_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None


class MissingValue(NamedTuple):
    """A value that a device should have but that cannot be read.

    name    name of the value, or `ALL_VALUES`
    reason  reason why it cannot be read
    """

    name: str
    reason: str


class Counter(Protocol):
    """A counter of the energy that a device consumes.

    device   name of the device on its node
    source   interface that reads the counter
    lag_s    largest age in seconds of a value when it is read: the update interval, and the delay of the sensor
    """

    device: str
    source: str
    lag_s: float

    def joules(self) -> float | None:
        """Return the joules since the creation of the counter, or None if it cannot be read."""


class Sensors:
    """The sensors of a device, including its energy counter if it has one.

    Each source overrides the methods for the values that it can read.

    device, source, lag_s  as in `Counter`
    kind                   cpu, memory, gpu or node
    uuid                   identifier of a GPU
    reasons                all reasons for a clock limit that the source can report
    first_die              PCI address of the GPU of the same module that counts the energy of this one, or None
    """

    device: str
    source: str
    kind: str
    uuid: str | None = None
    reasons: tuple[str, ...] = ()
    lag_s: float = inf
    first_die: str | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """Return a key that only the sensors of the same device and source have."""
        return self.source, self.device

    def joules(self) -> float | None:
        """Return the joules since the creation, or None if they cannot be read."""
        return None

    def read(self) -> SensorReading:
        """Read the sensors and return the reading."""
        return SensorReading()

    def missing(self) -> list[MissingValue]:
        """Return the values that the device should have but that cannot be read."""
        return []


class Growth:
    """The growth of a counter in joules since its `first` value, at the creation of this object.

    A driver that is loaded again resets its counter. The joules until the reset are lost, so the growth stays unknown.
    """

    def __init__(self, read: Callable[[], float | None]):
        self._read, self.first = read, read()
        self._last, self._reset = self.first, False

    def __call__(self) -> float | None:
        """Return the joules since the creation, or None if the counter cannot be read or has been reset."""
        now = self._read()
        if now is None or self.first is None or self._last is None:
            return None
        self._reset |= now < self._last
        self._last = now
        return None if self._reset else now - self.first

    def missing(self) -> list[MissingValue]:
        """Return the energy if the counter has been reset, otherwise an empty list."""
        return [MissingValue("energy", "the counter has been reset since the start")] if self._reset else []


def scaled(path: Path, unit: float) -> float | None:
    """Return the number in a file times `unit`, or None if the file does not contain a nonnegative integer."""
    number = number_in(path)
    return None if number is None else number * unit


def why_unreadable(path: Path) -> str:
    """Return the reason why a file of a sensor has no value."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        return f"{path}: {error.strerror}"
    return f"{path} contains {text[:40]!r}"
