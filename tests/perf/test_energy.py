"""Energy of timed regions, on invented counters and system trees."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mxpeak.perf.energy import AmdCounter, EnergyMeter, EnergyUsed, NvmlCounter, energy, processors, why_unknown

RANGE = 262_143_328_850


def package(root: Path, number: int, microjoules: int, *, dram: int | None = None, name: str = "package-0") -> Path:
    """A package of RAPL's tree, with the memory at it."""
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


class Counter:
    """A counter that is told what it counts."""

    name = "told"

    def __init__(self, *joules: float | None):
        self._joules = list(joules)
        self.looks = 0

    def joules(self) -> float | None:
        self.looks += 1
        return self._joules.pop(0)


def test_packages_and_their_memory_are_counted_once(tmp_path: Path) -> None:
    """Cores are part of their package, and psys of everything."""
    first, _ = package(tmp_path, 0, 1_000_000, dram=500_000), package(tmp_path, 1, 7, name="psys")
    counters = processors(tmp_path)
    assert [one.name for one in counters] == ["intel-rapl:0", "intel-rapl:0:1"]
    (first / "energy_uj").write_text("3000000\n")
    (first / "intel-rapl:0:1/energy_uj").write_text("750000\n")
    assert [one.joules() for one in counters] == pytest.approx([2.0, 0.25], rel=1e-12)


def test_a_counter_that_begins_anew_goes_on(tmp_path: Path) -> None:
    folder = package(tmp_path, 0, RANGE - 999_999)
    (counter,) = processors(tmp_path)
    for now, joules in ((0, 1.0), (2_000_000, 3.0), (1_999_999, 3.0 + (RANGE) * 1e-6)):
        (folder / "energy_uj").write_text(f"{now}\n")
        assert counter.joules() == pytest.approx(joules, rel=1e-12)


def test_what_may_not_be_read_is_not_known(tmp_path: Path) -> None:
    folder = package(tmp_path, 0, 5)
    (folder / "energy_uj").unlink()
    (counter,) = processors(tmp_path)
    assert counter.joules() is None
    assert processors(tmp_path / "elsewhere") == []
    meter = EnergyMeter([counter], None)
    meter.begin()
    meter.end(2.0)
    assert meter.used == EnergyUsed(2.0)


def test_a_meter_adds_up_regions_and_nothing_between() -> None:
    meter = EnergyMeter([Counter(1.0, 4.0, 10.0, 12.0), Counter(0.0, 1.0, 1.0, 1.0)], Counter(5.0, 25.0, 25.0, 40.0))
    for seconds in (2.0, 1.0):
        meter.begin()
        meter.end(seconds)
    assert meter.used == EnergyUsed(3.0, 6.0, "told", 35.0, {"other": 41.0})
    meter.clear()
    assert meter.used == EnergyUsed(0.0, 0.0, "told", 0.0)


def test_one_look_that_fails_leaves_all_unknown() -> None:
    meter = EnergyMeter([Counter(1.0, None, 2.0, 3.0)], None)
    for _ in range(2):
        meter.begin()
        meter.end(1.0)
    assert meter.used == EnergyUsed(2.0, None)


def test_counters_are_looked_at_while_the_region_lasts() -> None:
    class Endless(Counter):
        def joules(self) -> float | None:
            self.looks += 1
            if self.looks == 5:
                seen.set()
            return 1.0

    seen, counter = threading.Event(), Endless()
    meter = EnergyMeter([counter], None, look_s=0.001)
    meter.begin()
    assert seen.wait(timeout=60.0)
    meter.end(1.0)
    assert counter.looks >= 6


def test_what_was_used_since_the_last_look_goes_to_the_phase_under_way() -> None:
    """A counter of one joule a look; the look that begins is booked nowhere."""

    class Rising(Counter):
        def joules(self) -> float | None:
            self.looks += 1
            if self.looks > 6:
                seen.set()
            return float(self.looks)

    for fails in (False, True):
        seen, places = threading.Event(), iter(["panel", "gemm", "gemm", "gemm", "", *["swap"] * 10**6])
        counter = Rising()
        meter = EnergyMeter([counter], None, look_s=1e-4, doing=lambda places=places: next(places))
        meter.begin()
        assert seen.wait(timeout=60.0)
        meter.end(None if fails else 1.0)
        if fails:
            assert meter.used == EnergyUsed(0.0, 0.0), "a region that failed does not count"
            continue
        phases = dict(meter.used.phases)
        assert (phases["panel"], phases["gemm"], phases["other"]) == (1.0, 3.0, 1.0)
        assert sum(phases.values()) == meter.used.processors == counter.looks - 1


def test_hosts_are_summed_and_a_gpu_that_ranks_share_counts_once() -> None:
    found = energy(
        [
            ("a", EnergyUsed(2.0, 100.0, "gpu 0", 300.0, {"gemm": 390.0, "swap": 10.0})),
            ("a", EnergyUsed(2.0, None, "gpu 0", 300.0, {"gemm": 300.0})),
            ("b", EnergyUsed(2.5, 150.0, "gpu 0", 450.0, {"swap": 600.0})),
        ],
        4e12,
    )
    assert found == {
        "seconds": 2.5,
        "processor_joules": 250.0,
        "gpu_joules": 750.0,
        "joules": 1000.0,
        "watts": 400.0,
        "gflops_per_watt": 10.0,
        "phases": {"swap": 610.0, "gemm": 390.0},
    }
    assert list(found["phases"]) == ["swap", "gemm"]


@pytest.mark.parametrize(
    ("everybody", "known"),
    [
        ([("a", EnergyUsed(1.0, 5.0)), ("b", EnergyUsed(1.0))], None),
        ([("a", EnergyUsed(1.0))], None),
        ([("a", EnergyUsed(0.0, 5.0))], None),
        ([("a", EnergyUsed(1.0, 5.0, "gpu", None))], (5.0, None, None)),
        ([("a", EnergyUsed(1.0, None, "gpu", 7.0))], (None, 7.0, None)),
        ([("a", EnergyUsed(1.0, 5.0))], (5.0, None, 5.0)),
    ],
)
def test_a_sum_is_known_where_all_of_its_parts_are(everybody: list[tuple[str, EnergyUsed]], known: Any) -> None:
    found = energy(everybody, None)
    if known is None:
        assert found is None
    else:
        assert found is not None
        assert (found["processor_joules"], found["gpu_joules"], found["joules"]) == known
        assert found["gflops_per_watt"] is None


def test_a_gpu_tells_its_energy_through_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    class NVMLError(Exception):
        pass

    millijoules = iter([5_000, 12_500])
    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByPciBusId=lambda bus: bus,
        nvmlDeviceGetUUID=lambda gpu: f"GPU-{gpu}",
        nvmlDeviceGetTotalEnergyConsumption=lambda gpu: next(millijoules),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    gpu = NvmlCounter("0000:01:00.0")
    assert gpu.name == "GPU-0000:01:00.0"
    assert gpu.joules() == 7.5


def test_without_nvml_a_gpu_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # type: ignore[arg-type]
    assert NvmlCounter("0000:01:00.0").joules() is None


class Silent:
    """A counter that cannot be read."""

    name = "silent"

    def joules(self) -> float | None:
        return None


def test_the_reason_for_an_unknown_energy_names_what_is_missing() -> None:
    known = Counter(*range(9))
    assert "no RAPL counters" in why_unknown([], None)
    assert "only root can" in why_unknown([known, Silent()], None)
    assert why_unknown([known], None) == ""
    assert why_unknown(None, None) == "", "another rank of the host reads them"
    assert "nvidia-ml-py" in why_unknown([known], Silent())
    assert why_unknown(None, Silent(), amd=True).startswith("amdsmi reports no energy")
    assert why_unknown([], Silent()).count("; ") == 1


def test_this_machine_can_be_asked() -> None:
    meter = EnergyMeter(processors(), None)
    meter.begin()
    os.getpid()
    meter.end(1.0)
    assert meter.used.processors is None or meter.used.processors >= 0.0


def test_a_region_that_fails_does_not_count_and_is_looked_at_no_longer() -> None:
    counter = Counter(1.0, 5.0, 7.0)
    meter = EnergyMeter([counter], None)
    meter.begin()
    meter.end(None)
    assert "energy" not in [thread.name for thread in threading.enumerate()]
    meter.begin()
    meter.end(3.0)
    assert meter.used == EnergyUsed(3.0, 2.0, phases={"other": 2.0})
    assert counter.looks == 3


def test_a_cray_node_has_counters_of_its_processors_and_memory(tmp_path: Path) -> None:
    folder = tmp_path / "sys/cray/pm_counters"
    folder.mkdir(parents=True)
    for name, text in (("cpu_energy", "1000 J 17 us"), ("memory_energy", "50 J 17 us"), ("energy", "9 J 17 us")):
        (folder / name).write_text(f"{text}\n")
    cpu, memory = processors(tmp_path)
    (folder / "cpu_energy").write_text("1250 J 18 us\n")
    assert (cpu.joules(), memory.joules()) == (250.0, 0.0)
    (folder / "cpu_energy").write_text("NOTAVAIL\n")
    assert cpu.joules() is None
    package(tmp_path, 0, 5)
    assert [one.name for one in processors(tmp_path)] == ["intel-rapl:0"], "RAPL is preferred"


@pytest.mark.parametrize("key", ["energy_accumulator", "power"])
def test_amdsmi_counts_in_units_of_its_resolution(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class AmdSmiException(Exception):  # noqa: N818
        pass

    counts = [1_000_000, 3_000_000]

    def count(gpu: str) -> dict[str, float]:
        if not counts:
            raise AmdSmiException
        return {key: counts.pop(0), "counter_resolution": 15.3}

    fake = SimpleNamespace(
        AmdSmiException=AmdSmiException,
        amdsmi_init=lambda: None,
        amdsmi_get_processor_handle_from_bdf=lambda bus: bus,
        amdsmi_get_energy_count=count,
    )
    monkeypatch.setitem(sys.modules, "amdsmi", fake)
    counter = AmdCounter("0000:c1:00.0")
    assert counter.joules() == pytest.approx(2_000_000 * 15.3e-6)
    assert counter.joules() is None
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    assert AmdCounter("0000:c1:00.0").joules() is None
