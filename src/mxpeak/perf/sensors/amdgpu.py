"""Sensors of AMD GPUs in /sys, which the amdgpu driver writes: hwmon, clocks and memory errors, without energy."""

from __future__ import annotations

import re
from pathlib import Path

from mxpeak.perf.devices import bus_address
from mxpeak.perf.host import text_in
from mxpeak.perf.sensors.contract import MissingValue, SensorReading, Sensors, scaled, why_unreadable

#: Watts, degrees Celsius and MHz per unit of hwmon.
MICRO, MILLI, HERTZ = 1e-6, 1e-3, 1e-6


class AmdgpuSensors(Sensors):
    """Sensors of the AMD GPU with a PCI address. The files contain its power, but no energy counter."""

    kind, source = "gpu", "amdgpu"

    def __init__(self, pci_bus_id: str, root: str | Path = "/"):
        self.device = pci_bus_id
        self._folder = Path(root) / "sys/bus/pci/devices" / bus_address(pci_bus_id)
        self._monitor = next(iter(sorted(self._folder.glob("hwmon/hwmon[0-9]*"))), self._folder / "hwmon/hwmon0")

    def read(self) -> SensorReading:
        """Read the power, the highest temperature, the clocks and the memory errors."""
        monitor = self._monitor
        power = scaled(monitor / "power1_input", MICRO)
        hot = [degrees for file in monitor.glob("temp*_input") if (degrees := scaled(file, MILLI)) is not None]
        errors = dict(re.findall(r"(\w+): (\d+)", text_in(self._folder / "ras/umc_err_count") or ""))
        states = re.findall(r"(\d+)Mhz", text_in(self._folder / "pp_dpm_sclk") or "")
        return SensorReading(
            clock_mhz=scaled(monitor / "freq1_input", HERTZ),
            max_clock_mhz=max(map(float, states), default=None),
            ecc_corrected=int(errors["ce"]) if "ce" in errors else None,
            ecc_uncorrected=int(errors["ue"]) if "ue" in errors else None,
            memory_clock_mhz=scaled(monitor / "freq2_input", HERTZ),
            power_w=power or scaled(monitor / "power1_average", MICRO) or None,  # 0 for the second die of a module
            temperature_c=max(hot, default=None),
        )

    def missing(self) -> list[MissingValue]:
        """Return the values that the files do not contain."""
        now, monitor = self.read(), self._monitor
        values = (
            ("power", now.power_w, monitor / "power1_average"),
            ("temperature", now.temperature_c, monitor / "temp1_input"),
            ("clock", now.clock_mhz, monitor / "freq1_input"),
            ("memory errors", now.ecc_corrected, self._folder / "ras/umc_err_count"),
        )
        unread = [MissingValue(name, why_unreadable(file)) for name, value, file in values if value is None]
        only_amdsmi = "only the Python package amdsmi of ROCm reports them"
        return [MissingValue("energy and throttle reasons", only_amdsmi), *unread]
