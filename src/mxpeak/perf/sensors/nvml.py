"""Sensors of NVIDIA GPUs, read through NVML if nvidia-ml-py is installed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from mxpeak.perf.sensors.contract import ALL_VALUES, Growth, MissingValue, SensorReading, Sensors

#: Joules per millijoule, and watts per milliwatt.
MILLI = 1e-3
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
#: NVML's constants: the clocks of the multiprocessors and of the memory, the temperature of the GPU, corrected and
#: uncorrected errors, and counts since the last reset.
SM_CLOCK, MEMORY_CLOCK, TEMPERATURE, CORRECTED, UNCORRECTED, VOLATILE = 1, 2, 0, 0, 1, 0
#: The function of NVML that reads each value.
QUESTIONS = {
    "energy": "nvmlDeviceGetTotalEnergyConsumption",
    "power": "nvmlDeviceGetPowerUsage",
    "temperature": "nvmlDeviceGetTemperature",
    "clock": "nvmlDeviceGetClockInfo",
    "throttle reasons": "nvmlDeviceGetCurrentClocksThrottleReasons",
    "memory errors": "nvmlDeviceGetTotalEccErrors",
}


class NvmlSensors(Sensors):
    """Sensors of the NVIDIA GPU with a PCI address.

    A100 and H100 update their values every 100 ms, and average the power over 25 ms (Yang, Adamek and Armour,
    Part-time Power Measurements, SC24).
    """

    kind, source = "gpu", "NVML"
    reasons = tuple(REASONS.values())
    lag_s = 0.125

    def __init__(self, pci_bus_id: str):
        self._errors: dict[str, str] = {}
        self._nvml, self._gpu, self._why = _open(pci_bus_id)
        uuid = self.ask("nvmlDeviceGetUUID")
        self.uuid = uuid.decode() if isinstance(uuid, bytes) else uuid
        self.device = pci_bus_id
        self._joules = Growth(lambda: self._scaled(QUESTIONS["energy"]))

    def joules(self) -> float | None:
        """Return the joules since the creation, or None if NVML cannot read them."""
        return self._joules()

    def read(self) -> SensorReading:
        """Read power, temperature, clocks, throttling reasons and memory errors through NVML."""
        bits = self.ask(QUESTIONS["throttle reasons"])
        return SensorReading(
            clock_mhz=self.ask(QUESTIONS["clock"], SM_CLOCK),
            max_clock_mhz=self.ask("nvmlDeviceGetMaxClockInfo", SM_CLOCK),
            reasons=None if bits is None else tuple(name for bit, name in REASONS.items() if bits & bit),
            ecc_corrected=self.ask(QUESTIONS["memory errors"], CORRECTED, VOLATILE),
            ecc_uncorrected=self.ask(QUESTIONS["memory errors"], UNCORRECTED, VOLATILE),
            memory_clock_mhz=self.ask(QUESTIONS["clock"], MEMORY_CLOCK),
            power_w=self._scaled(QUESTIONS["power"]),
            temperature_c=self.ask(QUESTIONS["temperature"], TEMPERATURE),
        )

    def missing(self) -> list[MissingValue]:
        """Return the values that NVML has not reported since the creation."""
        if self._gpu is None:
            return [MissingValue(ALL_VALUES, self._why)]
        errors = {name: self._errors[ask] for name, ask in QUESTIONS.items() if ask in self._errors}
        return [*self._joules.missing(), *(MissingValue(name, f"NVML: {error}") for name, error in errors.items())]

    def ask(self, question: str, *about: int) -> Any:
        """Call an NVML function for this GPU and return its result; None if GPU or driver do not support it."""
        if self._gpu is None:
            return None
        try:
            return getattr(self._nvml, question)(self._gpu, *about)
        except (self._nvml.NVMLError, AttributeError) as error:  # later versions drop functions
            self._errors[question] = str(error)
            return None

    def _scaled(self, question: str) -> float | None:
        value = self.ask(question)
        return None if value is None else MILLI * value


def _open(pci_bus_id: str) -> tuple[Any, Any, str]:
    """Return the NVML module, the handle of the GPU, and the reason why there is no handle."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return None, None, "NVML needs the Python package nvidia-ml-py: pip install nvidia-ml-py"
    try:
        nvml.nvmlInit()
        return nvml, nvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id), ""
    except nvml.NVMLError as error:
        return nvml, None, f"NVML: {error}"
