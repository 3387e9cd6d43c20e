"""The energy of a run's timed work, on an invented counter of 100 W."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import pytest

from mxpeak.bench import harness
from mxpeak.bench.hpl import run as hpl
from mxpeak.bench.hpl.config import HplConfig
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.records import document, three_digits
from mxpeak.report.html import html_report
from mxpeak.report.text import verdict
from tests.support.result_file import VALIDATOR


class FaultTolerantStream:
    """Energy that grows with time."""

    name = "invented"

    def joules(self) -> float | None:
        return 100.0 * perf_counter()


class Unreadable:
    """A counter that only root may read."""

    name = "closed"

    def joules(self) -> float | None:
        return None


def test_one_rank_of_a_host_counts_and_every_joule_is_of_a_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "processors", lambda: [FaultTolerantStream()])

    def body(comm: Any) -> Any:
        config = HplConfig(n=(640,), nb=(32,), grid=((1, 2),), warmup="none", repeat=2)
        return hpl.run(config, comm)[0]

    result = run_ranks(2, body)[0]
    energy = result.telemetry["energy"]
    assert energy["joules"] >= 100.0 * energy["seconds"], "the counter is read before the clock begins, and after it"
    assert sum(energy["phases"].values()) == pytest.approx(energy["joules"])
    most = next(iter(energy["phases"]))
    assert f" W, {three_digits(energy['gflops_per_watt'])} GFLOP/s/W; {most} " in verdict(result)
    assert "energy_unknown" not in result.telemetry
    assert f"<p>energy {three_digits(energy['joules'])} J in " in html_report(document([result]))


@pytest.mark.parametrize("counters", [[], [Unreadable()]])
def test_the_page_says_that_energy_was_not_measured_and_why(
    monkeypatch: pytest.MonkeyPatch, counters: list[Any]
) -> None:
    monkeypatch.setattr(harness, "processors", lambda: counters)
    config = HplConfig(n=(64,), nb=(16,), warmup="none", threads=1)
    result = run_ranks(2, lambda comm: hpl.run(config, comm)[0])[0]
    assert result.telemetry["energy"] is None
    why = result.telemetry["energy_unknown"]
    assert why.startswith("this user cannot read" if counters else "this system has no RAPL")
    page = html_report(document([result]))
    assert f"<p>energy: not measured on this machine, because {why}</p>" in page
    VALIDATOR.validate(document([result]))
    del result.telemetry["energy_unknown"]
    assert "<p>energy: not measured on this machine</p>" in html_report(document([result])), "an older file"
