"""Sensors of AMD GPUs, read through ROCm's Python package amdsmi if it is installed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from mxpeak.perf.devices import bus_address
from mxpeak.perf.host import text_in
from mxpeak.perf.sensors.contract import ALL_VALUES, Growth, MissingValue, SensorReading, Sensors

#: Joules per microjoule.
MICRO = 1e-6
#: Keys of amdsmi for the limits that are active now.
REASONS = {
    "active_prochot_thrm": "processor hot",
    "active_ppt_pwr": "power limit",
    "active_socket_thrm": "socket thermal limit",
    "active_vr_thrm": "voltage regulator thermal limit",
    "active_hbm_thrm": "memory thermal limit",
}
#: Keys of the power by version of amdsmi, newest first.
POWER = ("socket_power", "current_socket_power", "average_socket_power")
#: PCI vendor of AMD, and PCI models of modules with two dies: MI250X and MI250.
VENDOR, TWO_DIES = "0x1002", ("0x7408", "0x740c")


class AmdSmiSensors(Sensors):
    """Sensors of the AMD GPU with a PCI address.

    The GPU updates its energy counter every few milliseconds (McDaniel et al., arXiv 2604.06056). A module of an MI250X
    has two dies, each of which is a GPU. Its first die measures the power and the energy of both, and the values of the
    second die are 0. The two dies are neighbors in the order of PCI addresses.
    """

    kind, source = "gpu", "amdsmi"
    reasons = tuple(REASONS.values())
    lag_s = 0.01

    def __init__(self, pci_bus_id: str, root: str | Path = "/"):
        self.device = pci_bus_id
        self._errors: dict[str, str] = {}
        self._smi, self._gpu, self._why = _open(pci_bus_id)
        self._joules = Growth(self._energy)
        self.first_die = self._first_die(root) if self._joules.first == 0.0 else None

    def joules(self) -> float | None:
        """Return the joules since the creation, or None if amdsmi cannot read them or if the counter was 0."""
        return self._joules() if self._joules.first else None

    @property
    def available(self) -> bool:
        """Return whether amdsmi is installed and has found the GPU."""
        return self._gpu is not None

    def read(self) -> SensorReading:
        """Read power, temperature, clocks, throttling reasons and memory errors through amdsmi."""
        if not self.available:
            return SensorReading()
        smi = self._smi
        clock = self._ask("clock", "amdsmi_get_clock_info", smi.AmdSmiClkType.GFX)
        memory = self._ask("memory clock", "amdsmi_get_clock_info", smi.AmdSmiClkType.MEM)
        errors = self._ask("memory errors", "amdsmi_get_gpu_total_ecc_count")
        limits = self._ask("throttle reasons", "amdsmi_get_violation_status")
        hot, now = smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
        reported = [limits[key] for key in REASONS if isinstance(limits.get(key), bool)]
        return SensorReading(
            clock_mhz=_first(clock, "clk", "cur_clk"),
            max_clock_mhz=_first(clock, "max_clk"),
            reasons=tuple(name for key, name in REASONS.items() if limits.get(key) is True) if reported else None,
            ecc_corrected=_first(errors, "correctable_count"),
            ecc_uncorrected=_first(errors, "uncorrectable_count"),
            memory_clock_mhz=_first(memory, "clk", "cur_clk"),
            power_w=self._power(),
            temperature_c=_number(self._ask("temperature", "amdsmi_get_temp_metric", hot, now)),
        )

    def missing(self) -> list[MissingValue]:
        """Return the values that amdsmi has not reported since the creation."""
        if not self.available:
            return [MissingValue(ALL_VALUES, self._why)]
        errors = [MissingValue(name, f"amdsmi: {error}") for name, error in self._errors.items()]
        unread = [*self._joules.missing(), *errors]
        if self.first_die is not None:
            reason = f"the first die of the module, {self.first_die}, measures both dies"
            return [MissingValue("energy and power", reason), *unread]
        return [MissingValue("energy", "amdsmi: the counter is 0"), *unread] if self._joules.first == 0.0 else unread

    def _energy(self) -> float | None:
        return _joules(self._ask("energy", "amdsmi_get_energy_count")) if self.available else None

    def _power(self) -> float | None:
        return _first(self._ask("power", "amdsmi_get_power_info"), *POWER) or None

    def _first_die(self, root: str | Path) -> str | None:
        """Return the PCI address of the other die if it counts the energy of this one, whose counter is 0, or None."""
        other = _other_die(bus_address(self.device), Path(root))
        if other is None or self._power() is not None:
            return None
        smi, gpu, _ = _open(other)
        try:
            counted = None if gpu is None else _joules(smi.amdsmi_get_energy_count(gpu))
        except smi.AmdSmiException:
            counted = None  # a batch system may hide the other die from this process
        return None if counted == 0.0 else other

    def _ask(self, name: str, question: str, *about: Any) -> Any:
        """Call a function of amdsmi for this GPU and return its result; an empty result if it is not supported."""
        try:
            return getattr(self._smi, question)(self._gpu, *about)
        except (self._smi.AmdSmiException, AttributeError) as error:  # versions differ in their functions
            self._errors[name] = str(error)
            return {}


def _open(pci_bus_id: str) -> tuple[Any, Any, str]:
    """Return the amdsmi module, the handle of the GPU, and the reason why there is no handle."""
    try:
        smi = import_module("amdsmi")
    except (ImportError, KeyError, OSError):  # the package raises the last two if its library is missing
        return None, None, "it needs the Python package amdsmi of ROCm"
    try:
        smi.amdsmi_init()
        return smi, smi.amdsmi_get_processor_handle_from_bdf(pci_bus_id), ""
    except smi.AmdSmiException as error:
        return smi, None, f"amdsmi: {error}"


def _other_die(pci_bus_id: str, root: Path) -> str | None:
    """Return the PCI address of the other die of the module, or None if modules of this model have one die."""
    folder = root / "sys/bus/pci/devices"
    model = text_in(folder / pci_bus_id / "device")
    if model not in TWO_DIES:
        return None
    identities = {gpu.name: (text_in(gpu / "vendor"), text_in(gpu / "device")) for gpu in folder.glob("*")}
    dies = sorted(address for address, identity in identities.items() if identity == (VENDOR, model))
    other = dies.index(pci_bus_id) ^ 1 if pci_bus_id in dies else len(dies)
    return dies[other] if other < len(dies) else None


def _joules(count: Mapping[str, Any]) -> float | None:
    """Return the joules that a result of amdsmi_get_energy_count contains."""
    counted, resolution = _first(count, "energy_accumulator", "power"), _first(count, "counter_resolution")
    return None if counted is None or resolution is None else float(MICRO * counted * resolution)


def _first(values: Mapping[str, Any], *keys: str) -> Any:
    """Return the first value that is a number; amdsmi reports unknown values as `N/A`."""
    return next((values[key] for key in keys if _number(values.get(key)) is not None), None)


def _number(value: Any) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
