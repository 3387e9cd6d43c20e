"""Clocks, throttling and memory errors from an invented /sys, and from a stand-in for NVML."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mxpeak.perf.health import CoreSensors, GpuSensors, SensorReading, sensors, summary
from tests.support.machine import put

CPU = "sys/devices/system/cpu/cpu{}/"
MEMORY = "sys/devices/system/edac/mc/mc{}/"


def two_cores(root: Path) -> Path:
    """The first one slow and throttled, of one package; two memory controllers."""
    files = {}
    for core, (clock, count) in enumerate([(1_200_000, 7), (3_400_000, 0)]):
        files |= {
            CPU.format(core) + "cpufreq/scaling_cur_freq": f"{clock}\n",
            CPU.format(core) + "cpufreq/cpuinfo_max_freq": "3500000\n",
            CPU.format(core) + "thermal_throttle/core_throttle_count": f"{count}\n",
            CPU.format(core) + "thermal_throttle/package_throttle_count": "2\n",
            MEMORY.format(core) + "ce_count": f"{core + 3}\n",
            MEMORY.format(core) + "ue_count": f"{core}\n",
        }
    return put(root, files)


def test_the_slowest_core_speaks_for_a_rank_and_counts_add_up(tmp_path: Path) -> None:
    both = CoreSensors([0, 1], two_cores(tmp_path)).read()
    assert both == SensorReading(1200.0, 3500.0, 7 + 0 + 2, None, 3 + 4, 0 + 1)
    one = sensors([1], None, tmp_path)
    assert one.read() == SensorReading(3400.0, 3500.0, 2, None, 7, 1)
    assert one.uuid is None


def test_what_cannot_be_read_is_none(tmp_path: Path) -> None:
    assert CoreSensors([0], tmp_path).read() == SensorReading()
    put(tmp_path, {CPU.format(0) + "cpufreq/scaling_cur_freq": "<unknown>\n", MEMORY.format(0) + "ce_count": ""})
    assert CoreSensors([0], tmp_path).read() == SensorReading()
    assert set(summary([SensorReading(), SensorReading()]).values()) == {None}


def test_looks_become_the_lowest_clock_all_reasons_and_what_was_new() -> None:
    looks = [
        SensorReading(1700.0, 1980.0, 5, ("sync boost",), 10, 0),
        SensorReading(1200.0, 1980.0, 6, (), 12, 0),
        SensorReading(1500.0, 1980.0, 9, ("application clocks", "sync boost"), 12, 1),
    ]
    assert summary(looks) == {
        "clock_mhz": 1200.0,
        "max_clock_mhz": 1980.0,
        "throttle_events": 4,
        "throttle_reasons": ["application clocks", "sync boost"],
        "ecc_corrected": 12,
        "ecc_uncorrected": 1,
        "ecc_corrected_new": 2,
        "ecc_uncorrected_new": 1,
    }


class NVMLError(Exception):
    """As NVML's: what a GPU does not say."""


def nvml(**answers: Any) -> SimpleNamespace:
    """A stand-in that knows one GPU, at 0000:1b:00.0; a question without an answer is not supported."""

    def handle(bus: str) -> str:
        if bus != "0000:1b:00.0":
            raise NVMLError(bus)
        return "gpu"

    def ask(name: str) -> Any:
        def answer(gpu: str, *about: int) -> Any:
            assert gpu == "gpu"
            if (name, *about) not in answers["known"]:
                raise NVMLError(name)
            return answers["known"][name, *about]

        return answer

    names = (
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetClockInfo",
        "nvmlDeviceGetMaxClockInfo",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        "nvmlDeviceGetTotalEccErrors",
    )
    questions = {name: ask(name) for name in names}
    return SimpleNamespace(
        NVMLError=NVMLError, nvmlInit=lambda: None, nvmlDeviceGetHandleByPciBusId=handle, **questions
    )


def test_a_gpu_is_asked_through_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        ("nvmlDeviceGetUUID",): "GPU-1234",
        ("nvmlDeviceGetClockInfo", 1): 1410,
        ("nvmlDeviceGetMaxClockInfo", 1): 1980,
        ("nvmlDeviceGetCurrentClocksThrottleReasons",): 0x001 | 0x004 | 0x040,
        ("nvmlDeviceGetTotalEccErrors", 0, 0): 3,
    }
    monkeypatch.setitem(sys.modules, "pynvml", nvml(known=known))
    gpu = sensors([0], "0000:1b:00.0")
    reasons = ("software power cap", "hardware thermal slowdown")
    assert gpu.uuid == "GPU-1234"
    assert gpu.read() == SensorReading(1410, 1980, None, reasons, 3, None), "uncorrected errors are not told"


def test_without_nvml_or_where_it_does_not_know_the_gpu_all_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # type: ignore[arg-type]
    alone = GpuSensors("0000:1b:00.0")
    monkeypatch.setitem(sys.modules, "pynvml", nvml(known={}))
    for gpu in (alone, GpuSensors("0000:2c:00.0"), GpuSensors("0000:1b:00.0")):
        assert gpu.uuid is None
        assert gpu.read() == SensorReading()
