"""Sensors of a host's cores and memory in /sys: cpufreq, thermal_throttle, EDAC and hwmon."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mxpeak.perf.host import number_in, text_in
from mxpeak.perf.sensors.contract import MissingValue, SensorReading, Sensors, scaled, why_unreadable

#: MHz per kHz of cpufreq, and °C per unit of hwmon.
KHZ, MILLI = 1e-3, 1e-3
#: Drivers of hwmon for the temperatures of processors.
PROCESSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "scpi_sensors")


class CoreSensors(Sensors):
    """Sensors of some cores, of their processors and of the host's memory, without energy."""

    device, kind, source = "cores", "cpu", "/sys"

    def __init__(self, cores: Sequence[int], root: str | Path = "/"):
        self._root, system = Path(root), Path(root) / "sys/devices/system"
        self._cores = [system / f"cpu/cpu{core}" for core in cores]
        self._memory = system / "edac/mc"

    @property
    def key(self) -> tuple[object, ...]:
        """Return the key of `Sensors`, extended by the cores."""
        return *super().key, *self._cores

    def read(self) -> SensorReading:
        """Read clocks, throttling of cores and packages, memory errors and the highest temperature."""
        return SensorReading(
            clock_mhz=_lowest(self._numbers("cpufreq/scaling_cur_freq")),
            max_clock_mhz=_lowest(self._numbers("cpufreq/cpuinfo_max_freq")),
            throttled=self._throttled(),
            ecc_corrected=self._errors("ce_count"),
            ecc_uncorrected=self._errors("ue_count"),
            temperature_c=max(self._temperatures(), default=None),
        )

    def missing(self) -> list[MissingValue]:
        """Return each of clock, temperature, throttling and memory errors that cannot be read."""
        now, first = self.read(), self._cores[0] if self._cores else self._root
        hwmon = f"no driver of {', '.join(PROCESSORS)} in {self._root / 'sys/class/hwmon'}"
        values = (
            ("clock", now.clock_mhz, why_unreadable(first / "cpufreq/scaling_cur_freq")),
            ("temperature", now.temperature_c, hwmon),
            ("throttling", now.throttled, why_unreadable(first / "thermal_throttle/core_throttle_count")),
            ("memory errors", now.ecc_corrected, f"no memory controller with counts in {self._memory}"),
        )
        return [MissingValue(name, why) for name, value, why in values if value is None]

    def _numbers(self, name: str) -> list[int]:
        return [number for core in self._cores if (number := number_in(core / name)) is not None]

    def _throttled(self) -> int | None:
        cores = self._numbers("thermal_throttle/core_throttle_count")
        package = self._numbers("thermal_throttle/package_throttle_count")
        return int(sum(cores) + max(package, default=0)) if cores or package else None

    def _errors(self, name: str) -> int | None:
        numbers = [number_in(path) for path in sorted(self._memory.glob(f"mc[0-9]*/{name}"))]
        counts = [number for number in numbers if number is not None]
        return sum(counts) if counts else None

    def _temperatures(self) -> list[float]:
        monitors = sorted((self._root / "sys/class/hwmon").glob("hwmon[0-9]*"))
        files = [
            file
            for monitor in monitors
            if text_in(monitor / "name") in PROCESSORS
            for file in monitor.glob("temp[0-9]*_input")
        ]
        return [degrees for file in files if (degrees := scaled(file, MILLI)) is not None]


def _lowest(kilohertz: Sequence[int]) -> float | None:
    return min(kilohertz) * KHZ if kilohertz else None
