"""What cores and GPUs say of themselves while they compute: clocks, throttling, errors of memory.

Cores are read from /sys, NVIDIA's GPUs through NVML where nvidia-ml-py is installed; what nobody says is None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from mxpeak.perf.host import number_in

#: cpufreq counts in kHz, NVML in mJ.
KHZ_A_MHZ, MILLI = 1e3, 1e-3
#: NVML's reasons for clocks below the highest, by their bits; an idle GPU (bit 0) is not held back.
REASONS = {
    0x002: "application clocks",
    0x004: "software power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "hardware power brake",
    0x100: "display clocks",
}
#: NVML's numbers for the clock of the multiprocessors, errors that were corrected or not, counts since the last reset.
SM_CLOCK, CORRECTED, UNCORRECTED, VOLATILE = 1, 0, 1, 0


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at cores or a GPU.

    clock_mhz, max_clock_mhz     the slowest core's clock now, and the highest that it is allowed
    throttled                    how often the processor throttled since it started
    reasons                      why a GPU's clock is held back now
    ecc_corrected, _uncorrected  errors of memory since the host, or the GPU's driver, started
    """

    clock_mhz: float | None = None
    max_clock_mhz: float | None = None
    throttled: int | None = None
    reasons: tuple[str, ...] | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None


class Sensors(Protocol):
    """Whatever can be looked at again and again."""

    uuid: str | None

    def read(self) -> Reading:
        """Look now."""


def sensors(cores: Sequence[int], pci_bus_id: str | None, root: str | Path = "/") -> Sensors:
    """Those of the GPU at a PCI address, or of cores where there is none."""
    return CoreSensors(cores, root) if pci_bus_id is None else GpuSensors(pci_bus_id)


class CoreSensors:
    """Cores, and the memory of their host."""

    uuid: str | None = None

    def __init__(self, cores: Sequence[int], root: str | Path = "/"):
        system = Path(root) / "sys/devices/system"
        self._cores = [system / f"cpu/cpu{core}" for core in cores]
        self._memory = system / "edac/mc"

    def read(self) -> Reading:
        """Clocks from cpufreq, counts of throttling from the cores and their package, memory errors from EDAC."""
        return Reading(
            clock_mhz=_lowest(self._numbers("cpufreq/scaling_cur_freq"), KHZ_A_MHZ),
            max_clock_mhz=_lowest(self._numbers("cpufreq/cpuinfo_max_freq"), KHZ_A_MHZ),
            throttled=self._throttled(),
            ecc_corrected=self._errors("ce_count"),
            ecc_uncorrected=self._errors("ue_count"),
        )

    def _numbers(self, name: str) -> list[int]:
        return [number for core in self._cores if (number := number_in(core / name)) is not None]

    def _throttled(self) -> int | None:
        cores = self._numbers("thermal_throttle/core_throttle_count")
        package = self._numbers("thermal_throttle/package_throttle_count")
        return int(sum(cores) + max(package, default=0)) if cores or package else None

    def _errors(self, name: str) -> int | None:
        found = [number_in(path) for path in sorted(self._memory.glob(f"mc[0-9]*/{name}"))]
        counts = [number for number in found if number is not None]
        return sum(counts) if counts else None


class GpuSensors:
    """One of NVIDIA's GPUs, through NVML."""

    def __init__(self, pci_bus_id: str):
        self._nvml, self._gpu = _open(pci_bus_id)
        found = self.ask("nvmlDeviceGetUUID")
        self.uuid: str | None = found.decode() if isinstance(found, bytes) else found

    def read(self) -> Reading:
        """Clocks, why they are held back, errors of memory."""
        bits = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return Reading(
            clock_mhz=self.ask("nvmlDeviceGetClockInfo", SM_CLOCK),
            max_clock_mhz=self.ask("nvmlDeviceGetMaxClockInfo", SM_CLOCK),
            reasons=None if bits is None else tuple(name for bit, name in REASONS.items() if bits & bit),
            ecc_corrected=self.ask("nvmlDeviceGetTotalEccErrors", CORRECTED, VOLATILE),
            ecc_uncorrected=self.ask("nvmlDeviceGetTotalEccErrors", UNCORRECTED, VOLATILE),
        )

    def ask(self, question: str, *about: int) -> Any:
        """The answer; None where this GPU or its driver has none."""
        if self._gpu is None:
            return None
        try:
            return getattr(self._nvml, question)(self._gpu, *about)
        except self._nvml.NVMLError:
            return None


def _open(pci_bus_id: str) -> tuple[Any, Any]:
    """NVML and its handle of the GPU; None where there is none: nvidia-ml-py is missing, or the GPU is AMD's."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return None, None
    try:
        nvml.nvmlInit()
        return nvml, nvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id)
    except nvml.NVMLError:
        return nvml, None


def gpu_energy(pci_bus_id: str) -> tuple[str, Callable[[], float | None]]:
    """The UUID of the GPU at a PCI address, and what reads the joules since its driver was loaded."""
    sensors = GpuSensors(pci_bus_id)

    def joules() -> float | None:
        found = sensors.ask("nvmlDeviceGetTotalEnergyConsumption")
        return None if found is None else MILLI * found

    return sensors.uuid or pci_bus_id, joules


def summary(readings: Sequence[Reading]) -> dict[str, Any]:
    """Several looks as one: the lowest clock, every reason, and how far the counts have come since the first."""
    first, last = readings[0], readings[-1]
    clocks = [one.clock_mhz for one in readings if one.clock_mhz is not None]
    reasons = [one.reasons for one in readings if one.reasons is not None]
    return {
        "clock_mhz": _lowest(clocks),
        "max_clock_mhz": last.max_clock_mhz,
        "throttle_events": _since(first.throttled, last.throttled),
        "throttle_reasons": sorted({name for names in reasons for name in names}) if reasons else None,
        "ecc_corrected": last.ecc_corrected,
        "ecc_uncorrected": last.ecc_uncorrected,
        "ecc_corrected_new": _since(first.ecc_corrected, last.ecc_corrected),
        "ecc_uncorrected_new": _since(first.ecc_uncorrected, last.ecc_uncorrected),
    }


def _since(first: int | None, last: int | None) -> int | None:
    return None if first is None or last is None else last - first


def _lowest(values: Sequence[float], unit: float = 1.0) -> float | None:
    return min(values) / unit if values else None
