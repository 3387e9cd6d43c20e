"""Test the energy of a run's timed work with an invented counter of 100 W."""

from __future__ import annotations

import json
import re
import time
from importlib import import_module
from time import perf_counter
from typing import Any

import pytest

from mxpeak.bench import harness
from mxpeak.bench.hpg_mxp import run as hpg_mxp
from mxpeak.bench.hpg_mxp.config import HpgMxpConfig
from mxpeak.bench.hpl import run as hpl
from mxpeak.bench.hpl.config import HplConfig
from mxpeak.comm.transports.solo import Solo
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.records import document, three_digits
from mxpeak.report.html import html_report
from mxpeak.report.scoreboard import scoreboard
from mxpeak.report.text import verdict
from tests.support.result_file import VALIDATOR
from tests.support.sensors import Closed, Grows


def test_one_rank_of_a_host_counts_and_no_joule_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The phases are shorter than two readings, so that they have no energy of their own."""
    monkeypatch.setattr(harness, "processors", lambda: [Grows(perf_counter)])

    def body(comm: Any) -> Any:
        config = HplConfig(n=(640,), nb=(32,), grid=((1, 2),), warmup="none", repeat=2)
        return hpl.run(config, comm)[0]

    result = run_ranks(2, body)[0]
    energy = result.telemetry["energy"]
    assert energy["joules"] >= 100.0 * energy["seconds"], "the counter is read before the clock begins, and after it"
    rest = energy["not_attributable"]
    assert sum(energy["phases"].values()) + rest["joules"] == pytest.approx(energy["joules"])
    assert {"gemm", "rfact"} <= {*rest["phases"], *energy["phases"]}
    assert rest["window_s"] == 0.1
    shown = verdict(result)
    assert f" W, {three_digits(energy['gflops_per_watt'])} GFLOP/s/W; " in shown
    assert "% not attributable (phases shorter than 0.100 s, or overlapping)" in shown
    VALIDATOR.validate(document([result]))
    assert "energy_unknown" not in result.telemetry
    assert f"<p>energy {three_digits(energy['joules'])} J in " in html_report(document([result]))


@pytest.mark.parametrize("kernels", ["host", "torch"])
def test_a_long_phase_has_its_energy_and_power(monkeypatch: pytest.MonkeyPatch, kernels: str) -> None:
    """A product that takes half a second, in the first step only; torch records its spans later than it runs them."""
    monkeypatch.setattr(harness, "processors", lambda: [Grows(perf_counter)])
    waited = []

    def slow(self: Any, *args: Any, **more: Any) -> Any:
        if not waited and args[0].shape[0] == 192:  # the probe of fp64 multiplies smaller matrices before
            waited.append(time.sleep(0.5))
        return product(self, *args, **more)

    module = import_module(f"mxpeak.kernels.{kernels}.lu.lu")
    classes = [one for one in vars(module).values() if getattr(one, "__module__", "") == module.__name__]
    owner: Any = next(one for one in classes if "subtract_product" in vars(one))
    product = owner.subtract_product
    monkeypatch.setattr(owner, "subtract_product", slow)
    config = HplConfig(n=(256,), nb=(64,), warmup="none", threads=1, kernels=kernels, device="cpu")
    result = hpl.run(config, Solo())[0]
    energy = result.telemetry["energy"]
    assert 100.0 * 0.3 <= energy["phases"]["gemm"] <= energy["joules"]
    assert energy["phase_watts"]["gemm"] == pytest.approx(100.0, rel=0.05)
    assert "gemm" not in energy["not_attributable"]["phases"]
    assert "; gemm " in verdict(result)


@pytest.mark.parametrize("lag_s", [10.0, 0.0])
def test_a_run_that_is_too_short_for_its_counter_has_no_energy(monkeypatch: pytest.MonkeyPatch, lag_s: float) -> None:
    monkeypatch.setattr(harness, "processors", lambda: [Grows(perf_counter, lag_s=lag_s)])
    result = hpl.run(HplConfig(n=(64,), nb=(16,), warmup="none", threads=1), Solo())[0]
    page, shown = html_report(document([result])), verdict(result)
    VALIDATOR.validate(document([result]))
    if not lag_s:
        assert result.telemetry["energy"]["joules"] > 0.0
        return
    assert result.telemetry["energy"] is None
    why = result.telemetry["energy_unknown"]
    assert re.match(r"not attributable: a timed part takes \S+ s, but told needs 1e\+02 s for an error below 10 %", why)
    assert f"energy {why}" in shown
    assert f"<p>energy {why}</p>" in page


def test_only_phases_of_the_timed_work_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans exist before the timed work, which adds calls to them or begins a computation; new ones may follow."""
    monkeypatch.setattr(harness, "processors", lambda: [Grows(perf_counter)])
    config = HplConfig(n=(64,), nb=(16,), threads=1)
    with harness.open_bench(harness.Bench[HplConfig], lambda *_: None, config, Solo(), {}) as bench:
        bench.begin(None)
        warm, same, again = (bench.new_spans() for _ in range(3))
        for spans in (warm, same, again):
            spans.start("generate", 0.0)
            with spans("generate"), spans("gemm"):
                pass

        def work() -> None:
            with same("swap"), same("gemm"):
                pass
            again.start("solve", 0.0)
            with again("ptrsv"), bench.new_spans()("bcast"):
                pass

        bench.metered(work)
        found = bench.energies(None)["energy"]["not_attributable"]["phases"]
    assert found == ["bcast", "gemm", "ptrsv", "swap"]


@pytest.mark.parametrize("counters", [[], [Closed()]])
def test_the_page_says_that_energy_was_not_measured_and_why(
    monkeypatch: pytest.MonkeyPatch, counters: list[Any]
) -> None:
    monkeypatch.setattr(harness, "processors", lambda: counters)
    config = HplConfig(n=(64,), nb=(16,), warmup="none", threads=1)
    result = run_ranks(2, lambda comm: hpl.run(config, comm)[0])[0]
    assert result.telemetry["energy"] is None
    why = result.telemetry["energy_unknown"]
    assert why.startswith("this user cannot read the counters of the" if counters else "this system has no RAPL")
    page = html_report(document([result]))
    assert f"<p>energy: not measured on this machine, because {why}</p>" in page
    VALIDATOR.validate(document([result]))
    del result.telemetry["energy_unknown"]
    assert "<p>energy: not measured on this machine</p>" in html_report(document([result])), "an older file"


def test_a_second_die_without_its_first_die_is_the_reason_for_no_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    class SecondDie(Closed):
        device, first_die = "0000:c6:00.0", "0000:c1:00.0"

    monkeypatch.setattr(harness, "processors", lambda: [Grows(perf_counter)])
    monkeypatch.setattr(harness.Bench, "gpu_bus", "0000:c6:00.0")
    monkeypatch.setattr(harness, "gpu_sensors", lambda bus, amd: SecondDie(device=bus))
    result = hpl.run(HplConfig(n=(64,), nb=(16,), warmup="none", threads=1), Solo())[0]
    energy = result.telemetry["energy"]
    assert energy["processor_joules"] > 0.0
    assert (energy["gpu_joules"], energy["joules"]) == (None, None)
    why = result.telemetry["energy_unknown"]
    assert why.startswith("GPU 0000:c6:00.0 of ")
    assert why.endswith("no rank uses the first die, 0000:c1:00.0, which counts the energy of both; use both dies")
    VALIDATOR.validate(document([result]))


# --- HPG-MxP ----------------------------------------------------------------------------------------------------


def sparse_run(**settings: Any) -> Any:
    config = HpgMxpConfig(
        nx=16, ny=16, nz=16, rt=0.2, iterations=20, restart=10, warmup="none", threads=1, kernels="host", **settings
    )
    partial_results: list[Any] = []
    result = hpg_mxp.run(
        config, Solo(), benchmark="hpg-mxp", on_sample=lambda so_far: partial_results.append(so_far())
    )[0]
    VALIDATOR.validate(json.loads(json.dumps(document([result]), allow_nan=False)))
    return result, partial_results


def test_the_energies_of_mixed_and_double_solves_are_compared_per_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a constant power, the ratio of the energies is that of the times."""
    monkeypatch.setattr(harness, "processors", lambda: [Grows(perf_counter)])
    result, _ = sparse_run()
    mixed, double, figures = result.telemetry["energy"], result.telemetry["double_energy"], result.result
    assert mixed["seconds"] == pytest.approx(figures["time_s"])
    assert double["seconds"] == pytest.approx(figures["double_time_s"])
    for part in (mixed, double):
        assert {"gs", "ortho", "spmv"} <= {*part["phases"], *part["not_attributable"]["phases"]}
    per_watt = (figures["rate_flops"] / mixed["watts"], figures["double_rate_flops"] / double["watts"])
    assert (mixed["gflops_per_watt"], double["gflops_per_watt"]) == pytest.approx([x / 1e9 for x in per_watt])
    ratio = mixed["joules"] / figures["solves"] / (double["joules"] / figures["double_solves"])
    text = f"J(mixed)/J(double) of HPG-MxP: {three_digits(ratio)} per iteration"
    assert text in verdict(result)
    assert text in scoreboard([result])
    assert f"<p>{text}" in html_report(document([result]))


@pytest.mark.parametrize("solver", ["mixed", "double"])
def test_a_standalone_solver_records_its_samples_and_its_energy(monkeypatch: pytest.MonkeyPatch, solver: str) -> None:
    monkeypatch.setattr(harness, "processors", lambda: [Grows(perf_counter)])
    result, partial_results = sparse_run(run_type=solver, repeat=2)
    energy, figures = result.telemetry["energy"], result.result
    assert "double_energy" not in result.telemetry
    assert energy["seconds"] == pytest.approx(figures["time_s"])
    rate = figures["raw_rate_flops" if solver == "mixed" else "double_rate_flops"]
    assert energy["gflops_per_watt"] == pytest.approx(rate / energy["watts"] / 1e9)
    assert len(partial_results) == len(result.samples_s) >= 2
    last = partial_results[-1]
    assert last.samples_s == result.samples_s
    finished = last.telemetry["aborted"]["finished"]
    assert (finished["solves"], finished["passed"]) == (len(result.samples_s), None)
    assert finished["rate_flops"] == pytest.approx(rate)
    assert verdict(last).rstrip().endswith("; no validation")
    VALIDATOR.validate(json.loads(json.dumps(document([last]), allow_nan=False)))
