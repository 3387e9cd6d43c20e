"""Test the sensors of each source with invented system trees and recorded answers of NVML and amdsmi."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from mxpeak.perf.energy import why_unknown
from mxpeak.perf.health import summary
from mxpeak.perf.sensors.amd_smi import AmdSmiSensors
from mxpeak.perf.sensors.amdgpu import AmdgpuSensors
from mxpeak.perf.sensors.choose import gpu_sensors, node_sensors, processors, sensors
from mxpeak.perf.sensors.contract import ALL_VALUES, SensorReading
from mxpeak.perf.sensors.cores import CoreSensors
from mxpeak.perf.sensors.nvml import NvmlSensors
from mxpeak.perf.sensors.pm_counters import pm_counters
from tests.support.machine import put
from tests.support.sensors import (
    CPU,
    GPU,
    H100,
    MEMORY,
    MI300X,
    PM,
    RANGE,
    amd_dies,
    amd_gpu,
    amdsmi,
    cray_node,
    nvml,
    package,
    two_cores,
)

NVIDIA, AMD = "0000:1b:00.0", "0000:c1:00.0"

# --- cores ------------------------------------------------------------------------------------------------------


def test_the_slowest_core_speaks_for_a_rank_and_counts_add_up(tmp_path: Path) -> None:
    """The temperature is that of the hottest sensor of the processor, and not of a disk."""
    both = CoreSensors([0, 1], two_cores(tmp_path)).read()
    assert both == SensorReading(1200.0, 3500.0, 7 + 0 + 2, None, 3 + 4, 0 + 1, temperature_c=62.5)
    one = sensors([1], None, root=tmp_path)
    assert one.read() == SensorReading(3400.0, 3500.0, 2, None, 7, 1, temperature_c=62.5)
    assert (one.uuid, one.joules(), one.missing()) == (None, None, [])


def test_what_cannot_be_read_is_none_and_has_a_reason(tmp_path: Path) -> None:
    cores = CoreSensors([0], tmp_path)
    assert cores.read() == SensorReading()
    clock, temperature, throttling, errors = cores.missing()
    assert clock == ("clock", f"{tmp_path}/{CPU.format(0)}cpufreq/scaling_cur_freq: No such file or directory")
    assert temperature.name == "temperature"
    assert temperature.reason.startswith("no driver of coretemp, k10temp")
    assert throttling.name == "throttling"
    assert errors == ("memory errors", f"no memory controller with counts in {tmp_path}/sys/devices/system/edac/mc")
    put(tmp_path, {CPU.format(0) + "cpufreq/scaling_cur_freq": "<unknown>\n", MEMORY.format(0) + "ce_count": ""})
    assert cores.read() == SensorReading()
    assert cores.missing()[0].reason.endswith("scaling_cur_freq contains '<unknown>'")
    assert set(summary([SensorReading(), SensorReading()]).values()) == {None}


def test_readings_become_the_lowest_clock_all_reasons_and_what_was_new() -> None:
    readings = [
        SensorReading(1700.0, 1980.0, 5, ("sync boost",), 10, 0),
        SensorReading(1200.0, 1980.0, 6, (), 12, 0, temperature_c=71.0, power_w=640.0),
        SensorReading(
            1500.0, 1980.0, 9, ("application clocks", "sync boost"), 12, 1, temperature_c=68.0, power_w=690.0
        ),
    ]
    assert summary(readings) == {
        "clock_mhz": 1200.0,
        "max_clock_mhz": 1980.0,
        "max_temperature_c": 71.0,
        "max_power_w": 690.0,
        "throttle_events": 4,
        "throttle_reasons": ["application clocks", "sync boost"],
        "ecc_corrected": 12,
        "ecc_uncorrected": 1,
        "ecc_corrected_new": 2,
        "ecc_uncorrected_new": 1,
    }


# --- RAPL -------------------------------------------------------------------------------------------------------


def test_packages_and_their_memory_are_counted_once(tmp_path: Path) -> None:
    """Cores are part of their package, and psys of everything."""
    first, _ = package(tmp_path, 0, 1_000_000, dram=500_000), package(tmp_path, 1, 7, name="psys")
    counters = processors(tmp_path)
    assert [(counter.device, counter.kind) for counter in counters] == [
        ("package-0", "cpu"),
        ("dram of package-0", "memory"),
    ]
    (first / "energy_uj").write_text("3000000\n")
    (first / "intel-rapl:0:1/energy_uj").write_text("750000\n")
    assert [counter.joules() for counter in counters] == pytest.approx([2.0, 0.25], rel=1e-12)
    assert [counter.missing() for counter in counters] == [[], []]


def test_a_counter_that_begins_anew_goes_on(tmp_path: Path) -> None:
    folder = package(tmp_path, 0, RANGE - 999_999)
    (counter,) = processors(tmp_path)
    for now, joules in ((0, 1.0), (2_000_000, 3.0), (1_999_999, 3.0 + (RANGE) * 1e-6)):
        (folder / "energy_uj").write_text(f"{now}\n")
        assert counter.joules() == pytest.approx(joules, rel=1e-12)


def test_a_counter_that_only_root_can_read_is_unknown_with_the_path(tmp_path: Path) -> None:
    folder = package(tmp_path, 0, 5)
    (folder / "energy_uj").unlink()
    (folder / "energy_uj").mkdir()  # also root cannot read it
    (counter,) = processors(tmp_path)
    assert counter.joules() is None
    assert counter.missing() == [("energy and power", f"{folder}/energy_uj: Is a directory")]
    assert processors(tmp_path / "elsewhere") == []


# --- Cray -------------------------------------------------------------------------------------------------------


def test_a_cray_node_has_counters_of_its_processors_and_memory(tmp_path: Path) -> None:
    cpu, memory = processors(cray_node(tmp_path))
    put(tmp_path, {PM + "cpu_energy": "1250 J 18 us\n"})
    assert (cpu.joules(), memory.joules()) == (250.0, 0.0)
    assert (cpu.read(), memory.read()) == (SensorReading(power_w=80.0), SensorReading())
    assert memory.missing() == [("power", f"{tmp_path}/{PM}memory_power contains 'NOTAVAIL'")]
    put(tmp_path, {PM + "cpu_energy": "NOTAVAIL\n"})
    assert cpu.joules() is None
    package(tmp_path, 0, 5)
    assert [one.device for one in processors(tmp_path)] == ["package-0"], "RAPL is preferred"


@pytest.mark.parametrize(("hertz", "lag_s"), [("10\n", 0.2), ("1\n", 2.0), (None, 0.2), ("soon\n", 0.2)])
def test_the_age_of_a_cray_counter_follows_from_its_updates(tmp_path: Path, hertz: str | None, lag_s: float) -> None:
    cray_node(tmp_path)
    (tmp_path / PM / "raw_scan_hz").unlink()
    if hertz:
        put(tmp_path, {PM + "raw_scan_hz": hertz})
    accelerator, node = pm_counters(r"accel\d+|node", tmp_path)
    assert (accelerator.device, accelerator.kind, node.device, node.kind) == ("accel0", "gpu", "node", "node")
    assert accelerator.lag_s == node.lag_s == lag_s
    assert (accelerator.read().power_w, node.read().power_w) == (410.0, 600.0)


# --- resets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["NVML", "amdsmi", "pm_counters"])
def test_the_energy_is_unknown_after_a_counter_was_reset(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str
) -> None:
    """A driver that is loaded again starts at 0; later values exceed the first one, but some joules are lost."""
    count = 1000

    def energy() -> dict[str, float]:
        return {"energy_accumulator": count, "counter_resolution": 1e6}

    monkeypatch.setitem(sys.modules, "amdsmi", amdsmi({"energy_count": energy}))
    millijoules = {("nvmlDeviceGetTotalEnergyConsumption",): lambda: 1000 * count}
    monkeypatch.setitem(sys.modules, "pynvml", nvml(millijoules))
    cray_node(tmp_path)
    gpus = {"NVML": lambda: NvmlSensors(NVIDIA), "amdsmi": lambda: AmdSmiSensors(AMD, tmp_path)}
    counter = gpus.get(source, lambda: pm_counters("cpu", tmp_path)[0])()
    for now, joules in ((1000, 0.0), (1500, 500.0), (1200, None), (1300, None), (9000, None)):
        count = now
        put(tmp_path, {PM + "cpu_energy": f"{count} J 18 us\n"})
        assert counter.joules() == joules
    assert ("energy", "the counter has been reset since the start") in counter.missing()
    assert "the counter has been reset" in why_unknown([counter], None)


# --- NVIDIA -----------------------------------------------------------------------------------------------------


def test_a_gpu_is_read_through_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    millijoules = iter([5_000, 12_500])
    known = {**H100, ("nvmlDeviceGetTotalEnergyConsumption",): lambda: next(millijoules)}
    monkeypatch.setitem(sys.modules, "pynvml", nvml(known))
    gpu = sensors([0], NVIDIA)
    assert (gpu.uuid, gpu.device, gpu.joules()) == ("GPU-1234", NVIDIA, 7.5)
    assert gpu.read() == SensorReading(
        clock_mhz=1410,
        max_clock_mhz=1980,
        reasons=("software power cap", "hardware thermal slowdown"),
        ecc_corrected=3,
        memory_clock_mhz=2619,
        power_w=pytest.approx(698.123),
        temperature_c=66,
    )
    assert gpu.missing() == [("memory errors", "NVML: Not Supported")], "the uncorrected ones"


def test_without_nvml_or_if_it_does_not_know_the_gpu_all_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # type: ignore[arg-type]
    alone = NvmlSensors(NVIDIA)
    monkeypatch.setitem(sys.modules, "pynvml", nvml({}))
    for gpu in (alone, NvmlSensors("0000:2c:00.0"), NvmlSensors(NVIDIA)):
        assert (gpu.uuid, gpu.joules()) == (None, None)
        assert gpu.read() == SensorReading()
    assert alone.missing() == [(ALL_VALUES, "NVML needs the Python package nvidia-ml-py: pip install nvidia-ml-py")]
    assert NvmlSensors("0000:2c:00.0").missing() == [(ALL_VALUES, "NVML: Not Found")]


def test_a_function_that_a_version_of_nvml_lacks_is_an_unknown_value(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nvml(H100)
    del module.nvmlDeviceGetTemperature
    monkeypatch.setitem(sys.modules, "pynvml", module)
    gpu = NvmlSensors(NVIDIA)
    assert gpu.read().temperature_c is None
    assert "temperature" in [value.name for value in gpu.missing()]


# --- AMD --------------------------------------------------------------------------------------------------------


def test_a_gpu_is_read_through_amdsmi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", amdsmi(MI300X))
    gpu = gpu_sensors(AMD, amd=True, root=amd_gpu(tmp_path))
    assert gpu.source == "amdsmi"
    assert gpu.read() == SensorReading(1325, 2100, None, ("power limit",), 5, 0, 1300, 731, 71)
    assert gpu.missing() == [("energy", "amdsmi: AMDSMI_STATUS_NOT_SUPPORTED")]


def test_values_that_amdsmi_does_not_know_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"violation_status": {"active_ppt_pwr": "N/A"}, "clock_info GFX": {"cur_clk": 900}}
    monkeypatch.setitem(sys.modules, "amdsmi", amdsmi(known))
    gpu = AmdSmiSensors(AMD)
    assert gpu.read() == SensorReading(clock_mhz=900)
    assert ("power", "amdsmi: AMDSMI_STATUS_NOT_SUPPORTED") in gpu.missing()
    assert AmdSmiSensors("0000:99:00.0").missing() == [(ALL_VALUES, "amdsmi: AMDSMI_STATUS_NOT_FOUND")]
    assert AmdSmiSensors("0000:99:00.0").read() == SensorReading()


@pytest.mark.parametrize("key", ["energy_accumulator", "power"])
def test_amdsmi_counts_in_units_of_its_resolution(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([{key: 1_000_000, "counter_resolution": 15.3}, {key: 3_000_000, "counter_resolution": 15.3}, {}])
    monkeypatch.setitem(sys.modules, "amdsmi", amdsmi({"energy_count": lambda: next(counts)}))
    counter = AmdSmiSensors(AMD)
    assert counter.joules() == pytest.approx(2_000_000 * 15.3e-6)
    assert counter.joules() is None
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    assert AmdSmiSensors(AMD).joules() is None


@pytest.mark.parametrize("missing", [None, "not found"])
def test_without_amdsmi_the_files_of_the_driver_are_read(
    missing: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bus = AMD if missing is None else "0000:c1:00"  # torch's form, which the stand-in does not find
    monkeypatch.setitem(sys.modules, "amdsmi", None if missing is None else amdsmi({}))  # type: ignore[arg-type]
    gpu = gpu_sensors(bus, amd=True, root=amd_gpu(tmp_path))
    assert gpu.source == "amdgpu"
    assert gpu.read() == SensorReading(1430.0, 1700.0, None, None, 12, 1, 1600.0, 305.0, 57.0)
    assert gpu.joules() is None
    (energy,) = gpu.missing()
    assert energy == ("energy and throttle reasons", "only the Python package amdsmi of ROCm reports them")


def test_files_of_the_driver_that_are_missing_have_reasons(tmp_path: Path) -> None:
    put(tmp_path, {GPU + "hwmon/hwmon5/power1_input": "250000000\n", GPU + "hwmon/hwmon5/temp1_input": "N/A\n"})
    gpu = AmdgpuSensors(AMD, tmp_path)
    assert gpu.read() == SensorReading(power_w=250.0)
    _, temperature, clock, errors = gpu.missing()
    assert temperature == ("temperature", f"{tmp_path}/{GPU}hwmon/hwmon5/temp1_input contains 'N/A'")
    assert clock == ("clock", f"{tmp_path}/{GPU}hwmon/hwmon5/freq1_input: No such file or directory")
    assert errors.name == "memory errors"


# --- nodes ------------------------------------------------------------------------------------------------------


def test_the_devices_of_a_node_are_its_cores_processors_and_gpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)  # type: ignore[arg-type]
    root = amd_gpu(cray_node(two_cores(tmp_path)))
    devices = node_sensors([0, 1], [AMD, AMD], amd=True, root=root)
    assert [one.device for one in devices] == ["cores", "cpu", "memory", "accel0", "node", AMD], "ranks share the GPU"


#: Answers of the dies of an MI250X: the first one counts for both.
FIRST = {"energy_count": {"energy_accumulator": 9, "counter_resolution": 15.3}, "power_info": {"socket_power": 300}}
SECOND = {"energy_count": {"energy_accumulator": 0, "counter_resolution": 15.3}, "power_info": {"socket_power": 0}}
MI250X, MI210, ONE = "0x7408", "0x740f", "0000:c6:00.0"


def test_the_second_die_of_a_module_has_no_power_and_no_energy_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An MI250X reports 0 for it; a zero would be taken for a measurement."""
    root, first = amd_dies(tmp_path, "0000:c6:00.0", AMD, "0000:d1:00.0", "0000:d6:00.0"), "0000:c6:00.0"
    monkeypatch.setitem(sys.modules, "amdsmi", amdsmi(SECOND, {first: FIRST}))
    gpu = AmdSmiSensors(AMD, root)
    assert (gpu.first_die, gpu.joules(), gpu.read().power_w) == (first, None, None)
    assert gpu.missing()[0] == ("energy and power", f"the first die of the module, {first}, measures both dies")
    assert AmdSmiSensors(first, root).first_die is None
    monkeypatch.setitem(sys.modules, "amdsmi", amdsmi(SECOND))
    assert AmdSmiSensors(AMD, root).first_die == first, "also if a batch system hides the other die"
    put(tmp_path, {GPU + "hwmon/hwmon5/power1_average": "0\n"})
    assert AmdgpuSensors(AMD, tmp_path).read().power_w is None


@pytest.mark.parametrize(
    ("model", "dies", "answers", "other"),
    [
        (MI210, [AMD, ONE], SECOND, FIRST),  # a module with one die
        (MI250X, [AMD], SECOND, FIRST),  # a virtual machine with one die
        (MI250X, [AMD, ONE], SECOND, SECOND),  # a driver that does not count
        (MI250X, [AMD, ONE], {**SECOND, "power_info": FIRST["power_info"]}, FIRST),
    ],
)
def test_a_counter_of_zero_without_a_first_die_is_unknown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: str, dies: list[str], answers: Any, other: Any
) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", amdsmi(answers, {ONE: other}))
    gpu = AmdSmiSensors(AMD, amd_dies(tmp_path, *dies, model=model))
    assert (gpu.first_die, gpu.joules()) == (None, None)
    assert gpu.missing()[0] == ("energy", "amdsmi: the counter is 0")
    assert "the counter is 0" in why_unknown(None, gpu)
