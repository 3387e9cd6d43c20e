"""The energy of a run's timed work, on an invented counter of 100 W."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import pytest

from mxpeak.bench import harness
from mxpeak.bench.hpl import run as hpl
from mxpeak.bench.hpl.config import HplConfig
from mxpeak.comm.threads import run_ranks
from mxpeak.records import three_digits
from mxpeak.report.text import verdict


class Steady:
    """Energy that grows with time."""

    name = "invented"

    def joules(self) -> float | None:
        return 100.0 * perf_counter()


def test_one_rank_of_a_host_counts_and_every_joule_is_of_a_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "processors", lambda: [Steady()])

    def body(comm: Any) -> Any:
        config = HplConfig(n=(640,), nb=(32,), grid=((1, 2),), warmup="none", repeat=2)
        return hpl.run(config, comm)[0]

    result = run_ranks(2, body)[0]
    energy = result.telemetry["energy"]
    assert energy["joules"] >= 100.0 * energy["seconds"], "the counter is read before the clock begins, and after it"
    assert sum(energy["phases"].values()) == pytest.approx(energy["joules"])
    most = next(iter(energy["phases"]))
    assert f" W, {three_digits(energy['gflops_per_watt'])} GFLOP/s/W; {most} " in verdict(result)
