"""Create fake sensors: system trees of RAPL, pm_counters and amdgpu, and substitutes for NVML and amdsmi."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

from mxpeak.perf.sensors.contract import MissingValue, Sensors
from tests.support.machine import put

CPU = "sys/devices/system/cpu/cpu{}/"
MEMORY = "sys/devices/system/edac/mc/mc{}/"
GPU = "sys/bus/pci/devices/0000:c1:00.0/"
PM = "sys/cray/pm_counters/"
RANGE = 262_143_328_850


def package(root: Path, number: int, microjoules: int, *, dram: int | None = None, name: str = "package-0") -> Path:
    """Add a package and its memory to RAPL's tree."""
    folder = root / f"sys/class/powercap/intel-rapl:{number}"
    folder.mkdir(parents=True)
    for path, text in (("name", name), ("energy_uj", str(microjoules)), ("max_energy_range_uj", str(RANGE))):
        (folder / path).write_text(f"{text}\n")
    for part, (kind, count) in enumerate((("core", 5), ("dram", dram))):
        if count is not None:
            below = folder / f"{folder.name}:{part}"
            below.mkdir()
            for path, text in (("name", kind), ("energy_uj", str(count)), ("max_energy_range_uj", str(RANGE))):
                (below / path).write_text(f"{text}\n")
    return folder


def two_cores(root: Path) -> Path:
    """Create one package with a slow, throttled first core, two memory controllers, and a temperature per core."""
    files = {
        "sys/class/hwmon/hwmon0/name": "nvme\n",
        "sys/class/hwmon/hwmon0/temp1_input": "99000\n",
        "sys/class/hwmon/hwmon1/name": "coretemp\n",
    }
    for core, (clock, count) in enumerate([(1_200_000, 7), (3_400_000, 0)]):
        files |= {
            CPU.format(core) + "cpufreq/scaling_cur_freq": f"{clock}\n",
            CPU.format(core) + "cpufreq/cpuinfo_max_freq": "3500000\n",
            CPU.format(core) + "thermal_throttle/core_throttle_count": f"{count}\n",
            CPU.format(core) + "thermal_throttle/package_throttle_count": "2\n",
            MEMORY.format(core) + "ce_count": f"{core + 3}\n",
            MEMORY.format(core) + "ue_count": f"{core}\n",
            f"sys/class/hwmon/hwmon1/temp{core + 1}_input": f"{61_500 + 1000 * core}\n",
        }
    return put(root, files)


def cray_node(root: Path) -> Path:
    """Create the counters of a node with one accelerator, without the power of its memory."""
    files = {
        "cpu_energy": "1000 J 17 us",
        "cpu_power": "80 W 17 us",
        "memory_energy": "50 J 17 us",
        "memory_power": "NOTAVAIL",
        "accel0_energy": "7000 J 17 us",
        "accel0_power": "410 W 17 us",
        "energy": "9000 J 17 us",
        "power": "600 W 17 us",
        "raw_scan_hz": "10",
        "version": "3",
    }
    return put(root, {PM + name: f"{text}\n" for name, text in files.items()})


def amd_gpu(root: Path) -> Path:
    """Create the files of an MI250X with its memory errors."""
    return put(
        root,
        {
            GPU + "hwmon/hwmon5/power1_average": "305000000\n",
            GPU + "hwmon/hwmon5/temp1_input": "48000\n",
            GPU + "hwmon/hwmon5/temp2_input": "57000\n",
            GPU + "hwmon/hwmon5/freq1_input": "1430000000\n",
            GPU + "hwmon/hwmon5/freq2_input": "1600000000\n",
            GPU + "pp_dpm_sclk": "0: 500Mhz\n1: 800Mhz *\n2: 1700Mhz\n",
            GPU + "ras/umc_err_count": "ue: 1\nce: 12\n",
        },
    )


def amd_dies(root: Path, *addresses: str, model: str = "0x7408") -> Path:
    """Create MI250X GPUs in the tree of PCI devices, next to a network adapter."""
    pci = {address: ("0x1002", model) for address in addresses} | {"0000:c4:00.0": ("0x17db", "0x0501")}
    return put(
        root,
        {
            f"sys/bus/pci/devices/{address}/{name}": f"{text}\n"
            for address, identity in pci.items()
            for name, text in zip(("vendor", "device"), identity)
        },
    )


class NVMLError(Exception):
    """An error of NVML: a value is not available."""


#: Answers of an H100 under load.
H100: dict[tuple[Any, ...], Any] = {
    ("nvmlDeviceGetUUID",): "GPU-1234",
    ("nvmlDeviceGetClockInfo", 1): 1410,
    ("nvmlDeviceGetClockInfo", 2): 2619,
    ("nvmlDeviceGetMaxClockInfo", 1): 1980,
    ("nvmlDeviceGetCurrentClocksThrottleReasons",): 0x001 | 0x004 | 0x040,
    ("nvmlDeviceGetTotalEccErrors", 0, 0): 3,
    ("nvmlDeviceGetPowerUsage",): 698_123,
    ("nvmlDeviceGetTemperature", 0): 66,
}


def nvml(answers: dict[tuple[Any, ...], Any]) -> SimpleNamespace:
    """Return a substitute with one GPU at 0000:1b:00.0; queries without an answer raise "not supported".

    If an answer is a function, the query calls it.
    """

    def handle(bus: str) -> str:
        if bus != "0000:1b:00.0":
            raise NVMLError("Not Found")
        return "gpu"

    def ask(name: str) -> Callable[..., Any]:
        def answer(gpu: str, *about: int) -> Any:
            assert gpu == "gpu"
            if (name, *about) not in answers:
                raise NVMLError("Not Supported")
            value = answers[name, *about]
            return value() if callable(value) else value

        return answer

    names = (
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetClockInfo",
        "nvmlDeviceGetMaxClockInfo",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        "nvmlDeviceGetTotalEccErrors",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetTotalEnergyConsumption",
    )
    questions = {name: ask(name) for name in names}
    return SimpleNamespace(
        NVMLError=NVMLError, nvmlInit=lambda: None, nvmlDeviceGetHandleByPciBusId=handle, **questions
    )


class AmdSmiException(Exception):  # noqa: N818
    """An error of amdsmi."""


def amdsmi(
    answers_of_first: dict[str, Any], others: Mapping[str, dict[str, Any]] = MappingProxyType({})
) -> SimpleNamespace:
    """Return a substitute with a GPU at 0000:c1:00.0 and others; queries without an answer raise "not supported"."""
    gpus = {"0000:c1:00.0": answers_of_first, **others}

    def handle(bus: str) -> str:
        if bus not in gpus:
            raise AmdSmiException("AMDSMI_STATUS_NOT_FOUND")
        return bus

    def ask(name: str) -> Callable[..., Any]:
        def answer(gpu: str, *about: Any) -> Any:
            answers = gpus[gpu]
            if (key := " ".join([name, *about])) not in answers:
                raise AmdSmiException("AMDSMI_STATUS_NOT_SUPPORTED")
            return answers[key]() if callable(answers[key]) else answers[key]

        return answer

    names = ("power_info", "clock_info", "gpu_total_ecc_count", "violation_status", "temp_metric", "energy_count")
    return SimpleNamespace(
        AmdSmiException=AmdSmiException,
        AmdSmiClkType=SimpleNamespace(GFX="GFX", MEM="MEM"),
        AmdSmiTemperatureType=SimpleNamespace(HOTSPOT="HOTSPOT"),
        AmdSmiTemperatureMetric=SimpleNamespace(CURRENT="CURRENT"),
        amdsmi_init=lambda: None,
        amdsmi_get_processor_handle_from_bdf=handle,
        **{f"amdsmi_get_{name}": ask(name) for name in names},
    )


#: Answers of an MI300X under load; amdsmi reports unknown values as N/A.
MI300X: dict[str, Any] = {
    "power_info": {"socket_power": "N/A", "current_socket_power": 731, "average_socket_power": "N/A"},
    "clock_info GFX": {"clk": 1325, "max_clk": 2100},
    "clock_info MEM": {"clk": 1300, "max_clk": 1300},
    "gpu_total_ecc_count": {"correctable_count": 5, "uncorrectable_count": 0},
    "violation_status": {"active_ppt_pwr": True, "active_socket_thrm": False, "active_hbm_thrm": "N/A"},
    "temp_metric HOTSPOT CURRENT": 71,
}


class Told(Sensors):
    """Sensors with values from a test; `joules` has one value per call."""

    kind, source = "cpu", "told"

    def __init__(self, *joules: float | None, device: str = "told", lag_s: float = 0.0):
        self._joules, self.device, self.lag_s, self.looks = list(joules), device, lag_s, 0

    def joules(self) -> float | None:
        self.looks += 1
        return self._joules.pop(0)


class Grows(Told):
    """An energy counter that grows with a clock at constant power."""

    def __init__(self, clock: Callable[[], float], power_w: float = 100.0, **about: Any):
        super().__init__(**about)
        self._clock, self._power_w = clock, power_w

    def joules(self) -> float | None:
        self.looks += 1
        return self._power_w * self._clock()


class Closed(Told):
    """A counter that only root can read."""

    def joules(self) -> float | None:
        return None

    def missing(self) -> list[MissingValue]:
        return [MissingValue("energy and power", "/sys/energy_uj: Permission denied")]
