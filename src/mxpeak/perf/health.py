"""Read clocks, throttling and memory errors of cores and GPUs during a computation.

Values of cores are read from /sys, and those of NVIDIA GPUs through NVML if nvidia-ml-py is installed. Unknown values
are None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from mxpeak.perf.host import number_in

#: kHz per MHz for cpufreq, joules per millijoule for NVML, and joules per microjoule for amdsmi.
KHZ_A_MHZ, MILLI, MICRO = 1e3, 1e-3, 1e-6
#: NVML's reasons for clocks below the maximum, by bit. Bit 0, an idle GPU, is not throttling.
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
#: NVML's constants: the clock of the multiprocessors, corrected and uncorrected errors, and counts since the last
#: reset.
SM_CLOCK, CORRECTED, UNCORRECTED, VOLATILE = 1, 0, 1, 0


@dataclass(frozen=True, slots=True)
class SensorReading:
    """One reading of the sensors of cores or of a GPU.

    clock_mhz, max_clock_mhz     clock of the slowest core or of the GPU, and the highest possible clock
    throttled                    number of throttling events since the processor was started
    reasons                      reasons for the current clock limit of a GPU
    ecc_corrected, _uncorrected  memory errors since the host or the GPU's driver was started
    """

    clock_mhz: float | None = None
    max_clock_mhz: float | None = None
    throttled: int | None = None
    reasons: tuple[str, ...] | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None


class Sensors(Protocol):
    """Sensors of cores or of a GPU."""

    uuid: str | None

    def read(self) -> SensorReading:
        """Read the sensors and return the reading."""


def sensors(cores: Sequence[int], pci_bus_id: str | None, root: str | Path = "/") -> Sensors:
    """Return the sensors of the GPU with this PCI address, or of the cores if there is no GPU."""
    return CoreSensors(cores, root) if pci_bus_id is None else GpuSensors(pci_bus_id)


class CoreSensors:
    """Sensors of the cores of a rank and of the host's memory."""

    uuid: str | None = None

    def __init__(self, cores: Sequence[int], root: str | Path = "/"):
        system = Path(root) / "sys/devices/system"
        self._cores = [system / f"cpu/cpu{core}" for core in cores]
        self._memory = system / "edac/mc"

    def read(self) -> SensorReading:
        """Read clocks from cpufreq, throttling of cores and packages, and memory errors from EDAC."""
        return SensorReading(
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
        numbers = [number_in(path) for path in sorted(self._memory.glob(f"mc[0-9]*/{name}"))]
        counts = [number for number in numbers if number is not None]
        return sum(counts) if counts else None


class GpuSensors:
    """Sensors of an NVIDIA GPU, read through NVML."""

    def __init__(self, pci_bus_id: str):
        self._nvml, self._gpu = _open(pci_bus_id)
        uuid = self.ask("nvmlDeviceGetUUID")
        self.uuid: str | None = uuid.decode() if isinstance(uuid, bytes) else uuid

    def read(self) -> SensorReading:
        """Read clocks, throttling reasons and memory errors through NVML."""
        bits = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return SensorReading(
            clock_mhz=self.ask("nvmlDeviceGetClockInfo", SM_CLOCK),
            max_clock_mhz=self.ask("nvmlDeviceGetMaxClockInfo", SM_CLOCK),
            reasons=None if bits is None else tuple(name for bit, name in REASONS.items() if bits & bit),
            ecc_corrected=self.ask("nvmlDeviceGetTotalEccErrors", CORRECTED, VOLATILE),
            ecc_uncorrected=self.ask("nvmlDeviceGetTotalEccErrors", UNCORRECTED, VOLATILE),
        )

    def ask(self, question: str, *about: int) -> Any:
        """Call an NVML function for this GPU and return its result; None if GPU or driver do not support it."""
        if self._gpu is None:
            return None
        try:
            return getattr(self._nvml, question)(self._gpu, *about)
        except self._nvml.NVMLError:
            return None


def _open(pci_bus_id: str) -> tuple[Any, Any]:
    """Return the NVML module and the handle of the GPU.

    Without nvidia-ml-py, both are None. If NVML does not find the GPU, the handle is None.
    """
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
    """Return the UUID of a GPU, and a function that returns the joules since the GPU's driver was loaded."""
    sensors = GpuSensors(pci_bus_id)

    def joules() -> float | None:
        energy = sensors.ask("nvmlDeviceGetTotalEnergyConsumption")
        return None if energy is None else MILLI * energy

    return sensors.uuid or pci_bus_id, joules


def amd_energy(pci_bus_id: str) -> tuple[str, Callable[[], float | None]]:
    """Return the name of an AMD GPU, and a function that returns the joules since the driver was loaded.

    The function returns None without amdsmi, or if amdsmi does not find the GPU.
    """
    try:
        amdsmi = import_module("amdsmi")
    except (ImportError, KeyError, OSError):  # the package raises the last two if its library is missing
        return pci_bus_id, lambda: None
    try:
        amdsmi.amdsmi_init()
        gpu = amdsmi.amdsmi_get_processor_handle_from_bdf(pci_bus_id)
    except amdsmi.AmdSmiException:
        return pci_bus_id, lambda: None

    def joules() -> float | None:
        try:
            count = amdsmi.amdsmi_get_energy_count(gpu)
        except amdsmi.AmdSmiException:
            return None
        accumulator = count.get("energy_accumulator", count.get("power"))  # older versions call it power
        resolution = count.get("counter_resolution")
        return None if accumulator is None or resolution is None else float(MICRO * accumulator * resolution)

    return pci_bus_id, joules


def summary(readings: Sequence[SensorReading]) -> dict[str, Any]:
    """Summarize several readings: lowest clock, all throttling reasons, error counts, and increases of the counts."""
    first, last = readings[0], readings[-1]
    clocks = [reading.clock_mhz for reading in readings if reading.clock_mhz is not None]
    reasons = [reading.reasons for reading in readings if reading.reasons is not None]
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
