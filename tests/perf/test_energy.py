"""Test the energy of timed regions and of their phases with invented counters and clocks."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from mxpeak.perf.energy import (
    NOT_ATTRIBUTABLE,
    CounterReading,
    EnergyMeter,
    EnergyUsed,
    PhaseEnergy,
    attributed,
    energy,
    lone_second_die,
    why_unknown,
)
from mxpeak.perf.sensors.amdgpu import AmdgpuSensors
from mxpeak.perf.sensors.choose import processors
from mxpeak.report.energy import energy_text
from mxpeak.spans import LongSpan
from tests.support.sensors import Closed, Grows, Told


def meter(cpu: list[Any], gpu: Any = None, **how: Any) -> EnergyMeter:
    """Return a meter that does not read during a region, unless the arguments set another interval."""
    return EnergyMeter(cpu, gpu, how.pop("long_spans", []), **{"look_s": 600.0, **how})


def test_a_meter_adds_up_regions_and_nothing_between() -> None:
    measured = meter([Told(1.0, 4.0, 10.0, 12.0), Told(0.0, 1.0, 1.0, 1.0)], Told(5.0, 25.0, 25.0, 40.0))
    for seconds in (2.0, 1.0):
        measured.begin()
        measured.end(seconds, {"gemm"})
    used = measured.used
    assert (used.seconds, used.processors, used.gpu, used.gpu_joules) == (3.0, 6.0, "told", 35.0)
    assert (dict(used.phases), used.too_short) == ({}, {"gemm"})
    measured.clear()
    assert (measured.used.processors, measured.used.gpu_joules, measured.regions) == (0.0, 0.0, 0)


def test_counters_that_stand_still_measure_no_energy() -> None:
    """Counters of some virtual machines are constant."""
    measured = meter([Told(7.0, 7.0)])
    measured.begin()
    measured.end(2.0, {"gemm"})
    total = energy([("a", measured.used)], 1e9)
    assert total is not None
    assert (total["joules"], total["watts"], total["gflops_per_watt"]) == (None, None, None)
    assert energy_text({"energy": total}) == ""
    assert energy_text({"energy": {**total, "joules": 0.0, "phases": {"gemm": 0.0}}}) == "", "of an older version"


def test_one_look_that_fails_leaves_all_unknown() -> None:
    measured = meter([Told(1.0, None, 2.0, 3.0)])
    for _ in range(2):
        measured.begin()
        measured.end(1.0)
    assert measured.used.processors is None
    closed = meter([Closed()])
    closed.begin()
    closed.end(2.0)
    assert (closed.used.processors, closed.used.why_short) == (None, "")


def test_a_gpu_without_a_counter_leaves_the_energy_of_the_processors(tmp_path: Path) -> None:
    """The driver of an AMD GPU may report only its power; all numbers must be finite in JSON."""
    measured = meter([Told(1.0, 4.0)], AmdgpuSensors("0000:c1:00.0", tmp_path))
    measured.begin()
    measured.end(2.0, {"gemm"})
    total = energy([("a", measured.used)], 1e9)
    assert total is not None
    assert (total["processor_joules"], total["gpu_joules"], total["joules"]) == (3.0, None, None)
    assert total["not_attributable"] == {"joules": None, "phases": ["gemm"], "window_s": 1200.0}
    assert "only the Python package amdsmi of ROCm" in why_unknown(None, AmdgpuSensors("0000:c1:00.0", tmp_path))


def test_a_region_that_fails_does_not_count_and_is_looked_at_no_longer() -> None:
    counter = Told(1.0, 7.0, 9.0)
    measured = meter([counter])
    measured.begin()
    measured.end(None)
    assert "energy" not in [thread.name for thread in threading.enumerate()]
    measured.begin()
    measured.end(3.0)
    assert (measured.used.seconds, measured.used.processors) == (3.0, 2.0)
    assert counter.looks == 3


@pytest.mark.parametrize(
    ("lag_s", "seconds", "is_measured"), [(0.1, 1.0, True), (0.1, 0.99, False), (0.002, 0.02, True)]
)
def test_a_region_is_long_enough_if_the_lag_is_a_tenth_of_it(lag_s: float, seconds: float, is_measured: bool) -> None:
    """Both ends of a region may be lag_s late, so the error is at most lag_s of the region's power."""
    measured = meter([Told(0.0, 5.0, 5.0, 10.0, lag_s=lag_s)])
    for _ in range(2):
        measured.begin()
        measured.end(seconds, {"gemm"})
    assert measured.used.processors == (10.0 if is_measured else None)
    if not is_measured:
        why = measured.used.why_short
        assert why.startswith(f"{NOT_ATTRIBUTABLE}: a timed part takes 0.99 s, but told needs 1 s")
        assert energy([("a", measured.used)], 1e9) is None


# --- confidence windows -----------------------------------------------------------------------------------------


def readings(*times: float, power_w: float = 10.0) -> list[CounterReading]:
    return [CounterReading(t, t, power_w * t) for t in times]


TENTHS = readings(*(k / 8 for k in range(81)))  # exact in binary


def test_only_the_energy_inside_the_window_of_a_phase_belongs_to_it() -> None:
    """With a lag of 1/4 s, a phase from 1 s to 3 s owns the readings from 1.25 s to 3 s."""
    assert attributed(TENTHS, [LongSpan("gemm", "", 1.0, 3.0)], 0.25) == {"gemm": PhaseEnergy(17.5, 1.75)}
    assert attributed(TENTHS, [LongSpan("gemm", "", 1.01, 2.99)], 0.25) == {"gemm": PhaseEnergy(15.0, 1.5)}


def test_a_phase_that_is_too_short_for_two_readings_owns_nothing() -> None:
    assert attributed(TENTHS, [LongSpan("gemm", "", 1.0, 1.3)], 0.25) == {}
    assert attributed(TENTHS[:1], [LongSpan("gemm", "", 0.0, 9.0)], 0.0) == {}
    assert attributed([], [LongSpan("gemm", "", 0.0, 9.0)], 0.0) == {}


def test_a_part_owns_its_window_and_the_phase_around_it_the_rest() -> None:
    spans = [LongSpan("gemm", "update", 2.0, 4.0), LongSpan("update", "", 1.0, 5.0)]
    owned = attributed(TENTHS, spans, 0.0)
    assert owned == {"gemm": PhaseEnergy(20.0, 2.0), "update": PhaseEnergy(20.0, 2.0)}


def test_phases_that_run_at_the_same_time_own_nothing_meanwhile() -> None:
    """A product on a device and a panel on the host overlap like this: the counters cannot separate them."""
    spans = [LongSpan("gemm", "update", 1.0, 5.0), LongSpan("rfact", "", 4.0, 6.0), LongSpan("bcast", "", 4.5, 4.75)]
    assert attributed(TENTHS, spans, 0.0) == {"gemm": PhaseEnergy(30.0, 3.0), "rfact": PhaseEnergy(10.0, 1.0)}


def test_a_late_counter_never_gives_a_phase_the_energy_of_another() -> None:
    """100 W until 2 s and 10 W after, read a quarter of a second late: without a lag, `swap` would own 100 W."""

    def late(t: float) -> float:
        return 100.0 * min(t - 0.25, 2.0) + 10.0 * max(0.0, t - 0.25 - 2.0)

    read = [CounterReading(k / 8, k / 8, late(k / 8)) for k in range(2, 33)]
    spans = [LongSpan("gemm", "", 0.25, 2.0), LongSpan("swap", "", 2.0, 4.0)]
    owned = attributed(read, spans, 0.25)
    assert {name: one.joules / one.seconds for name, one in owned.items()} == {"gemm": 100.0, "swap": 10.0}
    wrong = attributed(read, spans, 0.0)["swap"]
    assert wrong.joules / wrong.seconds > 20.0, "the test can fail"


def test_the_counters_are_read_during_a_region_and_long_spans_own_energy() -> None:
    spans: list[LongSpan] = []
    measured = meter([Grows(perf_counter)], long_spans=spans, look_s=0.005)
    assert measured.least_s == 0.005
    measured.begin()
    begin, seen = perf_counter(), threading.Event()
    seen.wait(0.3)
    spans.append(LongSpan("gemm", "", begin, perf_counter()))
    measured.end(perf_counter() - begin, {"gemm", "swap"})
    used = measured.used
    gemm = used.phases["gemm"]
    assert used.processors is not None
    assert 0.0 < gemm.joules <= used.processors
    assert gemm.joules == pytest.approx(100.0 * gemm.seconds, rel=0.05), "100 W"
    assert (used.too_short, used.window_s) == ({"swap"}, 0.01)


def test_a_long_region_keeps_half_of_its_readings_and_reads_half_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mxpeak.perf.energy.MAX_READINGS", 8)
    enough = threading.Event()

    class Watched(Grows):
        def joules(self) -> float | None:
            if self.looks > 20:
                enough.set()
            return super().joules()

    measured = meter([Watched(perf_counter)], look_s=1e-4)
    measured.begin()
    assert enough.wait(60.0)
    measured.end(1.0)
    assert measured.used.window_s >= 4e-4


# --- hosts ------------------------------------------------------------------------------------------------------


def test_hosts_are_summed_and_a_gpu_that_ranks_share_counts_once() -> None:
    gemm, swap = PhaseEnergy(300.0, 1.0), PhaseEnergy(10.0, 0.5)
    total = energy(
        [
            ("a", EnergyUsed(2.0, 100.0, "gpu 0", 300.0, {"gemm": gemm, "swap": swap}, frozenset({"bcast"}), 0.2)),
            ("a", EnergyUsed(2.0, None, "gpu 0", 300.0, {"gemm": gemm}, frozenset({"swap"}), 0.2)),
            ("b", EnergyUsed(2.5, 150.0, "gpu 0", 450.0, {"swap": PhaseEnergy(600.0, 2.0)}, window_s=0.1)),
        ],
        4e12,
    )
    assert total == {
        "seconds": 2.5,
        "processor_joules": 250.0,
        "gpu_joules": 750.0,
        "joules": 1000.0,
        "watts": 400.0,
        "gflops_per_watt": 10.0,
        "phases": {"swap": 610.0, "gemm": 300.0},
        "phase_watts": {"swap": 320.0, "gemm": 300.0},
        "not_attributable": {"joules": 90.0, "phases": ["bcast"], "window_s": 0.2},
    }
    assert list(total["phases"]) == ["swap", "gemm"]


FIRST, LATER = EnergyUsed(1.0, 5.0, "gpu 0", 7.0), EnergyUsed(1.0, 5.0, "gpu 2", 9.0)
SECOND, STRANGER = (EnergyUsed(1.0, 5.0, f"gpu {k}", 0.0, first_die=f"gpu {k - 1}") for k in (1, 5))
MUTUAL = EnergyUsed(1.0, 5.0, "gpu 0", 0.0, first_die="gpu 1")


@pytest.mark.parametrize(
    ("ranks", "joules", "alone"),
    [
        ([("a", FIRST), ("a", SECOND), ("a", LATER)], 16.0, None),
        ([("a", FIRST), ("a", LATER), ("a", STRANGER)], None, STRANGER),
        ([("a", SECOND), ("b", FIRST)], None, SECOND),
        ([("a", MUTUAL), ("a", SECOND)], None, MUTUAL),
    ],
)
def test_a_second_die_counts_only_if_a_rank_of_the_host_uses_its_first_die(
    ranks: list[tuple[str, EnergyUsed]], joules: float | None, alone: EnergyUsed | None
) -> None:
    """More first dies than second dies do not prove that each second die has its own first die."""
    found = energy(ranks, None)
    assert found is not None
    assert (found["gpu_joules"], found["joules"] is None) == (joules, joules is None)
    assert lone_second_die(ranks) == (
        f"GPU {alone.gpu} of a is the second die of a module, and no rank uses the first die, {alone.first_die}, "
        "which counts the energy of both; use both dies"
        if alone
        else ""
    )


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([("a", EnergyUsed(1.0, 5.0)), ("b", EnergyUsed(1.0))], None),
        ([("a", EnergyUsed(1.0))], None),
        ([("a", EnergyUsed(0.0, 5.0))], None),
        ([("a", EnergyUsed(1.0, 5.0, "gpu", None))], (5.0, None, None)),
        ([("a", EnergyUsed(1.0, None, "gpu", 7.0))], (None, 7.0, None)),
        ([("a", EnergyUsed(1.0, 5.0))], (5.0, None, 5.0)),
    ],
)
def test_a_sum_is_known_where_all_of_its_parts_are(parts: list[tuple[str, EnergyUsed]], expected: Any) -> None:
    total = energy(parts, None)
    if expected is None:
        assert total is None
    else:
        assert total is not None
        assert (total["processor_joules"], total["gpu_joules"], total["joules"]) == expected
        assert total["gflops_per_watt"] is None


def test_the_reason_for_an_unknown_energy_names_what_is_missing() -> None:
    complete = Told(*range(9))
    assert "no RAPL counters" in why_unknown([], None)
    closed = why_unknown([complete, Closed()], None)
    assert "/sys/energy_uj: Permission denied" in closed
    assert "only root can" in closed
    assert why_unknown([complete], None) == ""
    assert why_unknown(None, None) == "", "another rank of the host reads them"
    assert why_unknown(None, Closed()).startswith("the GPU reports no energy: energy and power (")
    assert why_unknown([], Closed()).count("; ") == 1


def test_this_machine_can_be_asked() -> None:
    measured = EnergyMeter(processors(), None, [])
    measured.begin()
    os.getpid()
    measured.end(1.0)
    assert measured.used.processors is None or measured.used.processors >= 0.0
