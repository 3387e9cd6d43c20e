"""Test how limits are measured, when a series measures one, and that no rate exceeds its limit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mxpeak.bench import limits, sparse
from mxpeak.bench.hpl import run as hpl
from mxpeak.bench.hpl.config import HplConfig
from mxpeak.bench.hpl_mxp import run as hpl_mxp
from mxpeak.bench.hpl_mxp.config import HplMxpConfig
from mxpeak.bench.limits import DRIFT, Limit, Reading, Readings, in_cache, length, reading, uncached_bytes
from mxpeak.comm.transports.solo import Solo
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.kernels.host.norms import tile_pass
from mxpeak.records import Result, document
from mxpeak.report.html import html_report
from mxpeak.report.scoreboard import scoreboard
from mxpeak.report.text import headline
from tests.support.result_file import VALIDATOR

GFLOP = 1e9


def read(rate: float, *, took_s: float = 1.0) -> Reading:
    return Reading(rate, 1.5 * rate, took_s, 0.0)


def dgemm(before: float, after: float | None, **reached: float) -> Limit:
    limit = Limit("DGEMM, inner dimension 64", "rate_flops", read(before), None if after is None else read(after))
    for name, rate in reached.items():
        limit = limit.including(name, rate)
    return limit


# --- one reading ------------------------------------------------------------------------------------------------


def test_a_burst_at_the_beginning_is_not_the_limit():
    times = iter([0.1] * 4 + [0.2] * 100)  # 0.4 seconds at twice the sustained speed
    found = reading(lambda: next(times), 10.0, lambda rate: 2.0, limits.MIN_S)
    assert (found.rate, found.burst) == (10.0 / 0.2, 10.0 / 0.1)
    assert found.took_s == pytest.approx(1.0)


def test_a_hiccup_does_not_move_a_reading():
    times = iter([0.05] * 12 + [0.2] + [0.05] * 100)
    assert reading(lambda: next(times), 1.0, lambda rate: 2.0, limits.MIN_S).rate == pytest.approx(20.0)


def test_the_first_samples_count_only_if_there_are_no_others():
    times = iter([5.0, 1.0, 1.0])
    assert reading(lambda: next(times), 6.0, lambda rate: 0.0, limits.MIN_S).rate == 6.0


def test_a_reading_lasts_a_few_percent_of_its_run_within_bounds():
    assert length(0.001, 1.0) == pytest.approx(0.01)  # from a run that ends before a burst would
    assert length(1.0, 1.0) == 1.0
    assert length(1.0, limits.READ_MIN_S) == limits.READ_MIN_S
    assert length(100.0, 1.0) == pytest.approx(3.0)
    assert length(3600.0, 1.0) == limits.MAX_S


def test_the_length_of_a_reading_follows_the_rate_that_it_finds():
    found = reading(lambda: 0.1, 50.0, lambda rate: 25e3 / rate, limits.MIN_S)  # 500 per second: a run of 50 seconds
    assert found.took_s == pytest.approx(1.5)


# --- a series ---------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    fake = SimpleNamespace(now=0.0, monotonic=lambda: fake.now)
    monkeypatch.setattr(limits, "time", fake)
    return fake


def test_a_reading_serves_the_next_cases_of_a_series_while_it_is_fresh(clock: SimpleNamespace):
    readings, rates = Readings(), iter([1.0, 2.0, 3.0, 4.0])
    measure: Callable[[], Reading] = lambda: Reading(next(rates), 9.0, 1.0, clock.now)  # noqa: E731
    assert readings.before("a", Solo(), measure).rate == 1.0
    clock.now = limits.FRESH / 2
    assert readings.after("a", Solo(), measure, last=False) is None
    assert readings.before("a", Solo(), measure).rate == 1.0
    assert readings.before("b", Solo(), measure).rate == 2.0, "another limit is measured for itself"
    clock.now = 2 * limits.FRESH
    after = readings.after("a", Solo(), measure, last=False)
    assert after is not None
    assert after.rate == 3.0, "it is too old"
    assert readings.before("a", Solo(), measure) is after, "what was measured after a case is fresh for the next"
    last = readings.after("a", Solo(), measure, last=True)
    assert last is not None
    assert last.rate == 4.0, "after the last case there is always one"


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace the readings of GEMM by readings of one second, and return the list of requests."""
    requests: list[Any] = []

    def measured(self: Any, grid: Any, probed: Any, run_s: Any) -> Reading:
        requests.append(probed)
        return Reading(1e12, 2e12, 1.0, limits.time.monotonic())

    monkeypatch.setattr("mxpeak.bench.lu.LuBench._gemm_reading", measured)
    return requests


def test_a_sweep_does_not_measure_the_limit_for_every_case(monkeypatch: pytest.MonkeyPatch):
    requests = counted(monkeypatch)
    results = hpl.run(HplConfig(n=(32, 33, 34, 35), nb=(8,), bcast=("1ringM", "long"), threads=1), Solo())
    assert len(results) == 8
    assert len(requests) == 2, "before the first case and after the last"
    found = [one.result["limit"] for one in results]
    assert [one["before"] for one in found] == [1e12] * 8
    assert [one["after"] for one in found] == [None] * 7 + [1e12]


def test_block_sizes_have_limits_of_their_own(monkeypatch: pytest.MonkeyPatch):
    asked = counted(monkeypatch)
    hpl.run(HplConfig(n=(32,), nb=(4, 8), threads=1), Solo())
    assert [nb for _, _, nb, _, _ in asked] == [4, 8, 8]


# --- the limit --------------------------------------------------------------------------------------------------


def test_the_limit_is_the_largest_of_both_readings_and_of_what_the_process_reached():
    assert dgemm(100.0, 104.0).rate == 104.0
    assert dgemm(104.0, 100.0).rate == 104.0
    assert dgemm(100.0, 104.0, gemm=106.0, run=90.0).rate == 106.0
    assert dgemm(100.0, None).rate == 100.0
    section = dgemm(100.0, 104.0, gemm=106.0, run=90.0).section()
    assert section == {
        "name": "DGEMM, inner dimension 64",
        "rate_flops": 106.0,
        "rate": 106.0,
        "before": 100.0,
        "after": 104.0,
        "burst": 156.0,
        "reached": {"name": "gemm", "rate": 106.0},
        "drift": pytest.approx(0.06),
        "drifted": False,
    }


def test_without_readings_there_is_no_limit():
    limit = Limit("DGEMM", "rate_flops", None, None).including("gemm", 1.0)
    assert (limit.section(), limit.share(1.0), limit.drift, limit.cautions()) == (None, None, None, [])


def test_a_change_of_speed_marks_the_share():
    assert not dgemm(100.0, 100.0 * (1 + 0.9 * DRIFT)).drifted
    for limit in (dgemm(100.0, 112.0), dgemm(112.0, 100.0), dgemm(100.0, 100.0, gemm=112.0)):
        assert limit.drift == pytest.approx(0.12)
        assert [one.code for one in limit.cautions()] == ["drift"]
    short = Limit("DGEMM", "rate_flops", read(100.0, took_s=1e-3), read(150.0, took_s=1e-3))
    assert not short.drifted, "readings of a millisecond differ by noise"


def test_caches_are_those_of_all_nodes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "core_groups", lambda **asked: [[0], [1]])
    machine = {"nodes": 3, "l3_bytes": 100, "device_count": 2}
    assert in_cache(600, machine, on_gpu=False)
    assert not in_cache(601, machine, on_gpu=False)
    assert in_cache(2**29, machine, on_gpu=True)
    assert not in_cache(2**29 + 1, machine, on_gpu=True)
    large = {"nodes": 1, "l3_bytes": 2**30}
    assert uncached_bytes(large, 1e12, 2, on_gpu=False) == 2 * 2 * 2**30 // 2
    assert uncached_bytes(large, 2**31, 2, on_gpu=False) == 2**31 // 4 // 2, "a quarter of the memory at most"
    assert uncached_bytes({"nodes": 1}, 1e12, 1, on_gpu=False) == limits.MIN_BYTES


# --- runs -------------------------------------------------------------------------------------------------------


def runs(ranks: int, **values: Any) -> Iterator[Result]:
    config = {"n": (96,), "nb": (16,), "threads": 1, "grid": ((1, ranks),), **values}
    for run, made in ((hpl.run, HplConfig), (hpl_mxp.run, HplMxpConfig)):
        yield run_ranks(ranks, lambda comm, run=run, made=made: run(made(**config), comm))[0][0]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_has_both_readings_and_no_share_above_one(ranks: int):
    for result in runs(ranks):
        limit = result.result["limit"]
        assert limit["rate"] == limit["rate_flops"] >= max(limit["before"], limit["after"], limit["reached"]["rate"])
        assert limit["burst"] >= max(limit["before"], limit["after"])
        assert result.result["fraction_of_limit"] == result.result["rate_flops"] / limit["rate"] <= 1.0
        VALIDATOR.validate(json.loads(json.dumps(document([result]))))


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_gemm_phase_of_a_run_is_part_of_its_limit(monkeypatch: pytest.MonkeyPatch, ranks: int):
    monkeypatch.setattr("mxpeak.bench.lu.LuBench._gemm_reading", lambda *asked: Reading(1.0, 1.0, 1.0, 0.0))
    for result in runs(ranks, repeat=3):
        gemm, limit = result.phases["gemm"], result.result["limit"]
        assert limit["rate"] >= gemm["flops"] / gemm["max_s"]
        assert limit["rate"] >= result.result["rate_flops"]
        assert limit["reached"]["name"] in ("gemm", "run")
        assert "drift" in [one.code for one in result.warnings]


def test_without_a_warm_up_there_is_no_limit():
    for found in runs(1, warmup="none"):
        assert (found.result["limit"], found.result["fraction_of_limit"]) == (None, None)


# --- reading memory ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 255, 1000, 1003])
def test_every_word_is_read(count: int):
    """Check each of the four streams, and the remainders at their ends."""
    kernels = HostKernels(1)
    for k in range(count):
        words = np.zeros((1, count), np.uint64)
        words[0, k] = k + 1
        job = _job(words, kernels)
        seen = np.zeros(tile_pass.APART, np.uint64)
        tile_pass.read_all(0, 1, job.tiles[0], seen)
        assert seen[0] == k + 1


def _job(words: Any, kernels: HostKernels) -> Any:
    from mxpeak.kernels.contract.norms import Tile
    from mxpeak.kernels.host.norms.tile_table import PassJob
    from mxpeak.layout.index_map import consecutive
    from mxpeak.layout.structure import WHOLE

    tile = Tile(words.view(np.float64), consecutive(words.shape[0]), consecutive(words.shape[1]), 0, 0)
    return PassJob([tile], WHOLE, ("max",), 1)


@pytest.mark.parametrize(
    ("l3", "values", "held", "reads"),
    [
        (1000, 100, 800, "values"),  # all of the solver stays in the caches
        (1000, 4000, 9000, "values"),  # no cache holds the values
        (1000, 1100, 3000, "array"),  # the values nearly fit, and their rate would be that of the caches
    ],
)
def test_a_solver_in_memory_is_compared_with_memory(
    monkeypatch: pytest.MonkeyPatch, l3: int, values: int, held: int, reads: str
):
    monkeypatch.setattr(limits, "core_groups", lambda **asked: [[0]])
    monkeypatch.setattr(limits, "MIN_BYTES", 0)
    monkeypatch.setattr(sparse, "ROW", 10)
    kernels = HostKernels(1)
    bench = SimpleNamespace(
        config=SimpleNamespace(on_gpu=False),
        kernels=SimpleNamespace(
            sparse=SimpleNamespace(read_values=lambda A: values), norms=kernels.norms, buffer=kernels.buffer
        ),
        facts=SimpleNamespace(machine={"nodes": 1, "l3_bytes": l3}),
        budget=SimpleNamespace(limit=2**30, ranks_a_node=1),
        comm=Solo(),
        total=lambda value: value,
    )
    read = sparse.SparseBench._reader(bench, SimpleNamespace(A=None), held)  # type: ignore[arg-type]
    assert read() == (values if reads == "values" else 2000)


# --- output -----------------------------------------------------------------------------------------------------


def shown(name: str, limit: dict[str, Any] | None) -> Result:
    return Result(
        benchmark=name,
        status="valid",
        problem={"n": 100, "nb": 8, "P": 1, "Q": 1},
        result={"rate_flops": 8 * GFLOP, "time_s": 1.0, "fraction_of_limit": 0.8, "limit": limit, "emulated": False},
        validation={"passed": True, "residual": 0.1, "threshold": 16.0, "formula": "r", "iterations": None},
    )


def test_the_rows_whose_machine_drifted_are_marked_and_explained_once():
    steady = shown("hpl", dgemm(10 * GFLOP, 9.9 * GFLOP).section())
    drifting = shown("hpl-mxp", dgemm(10 * GFLOP, 8 * GFLOP).section())
    text = scoreboard([steady, drifting])
    rows = text.splitlines()
    assert "80  of 10.0 GFLOP/s  DGEMM" in rows[3]
    assert "80* of 10.0 GFLOP/s  DGEMM" in rows[4]
    assert "80 of 10.0 GFLOP/s  DGEMM" in scoreboard([steady])
    assert text.count("* The machine's speed changed") == 1
    assert "hpl-mxp by 25.0 %" in " ".join(text.split())
    assert headline(steady).startswith("PASSED  hpl  8.00 GFLOP/s  (80.0 % of DGEMM")
    assert "(80.0 %* of DGEMM" in headline(drifting)
    assert "*" not in scoreboard([steady])


def test_pages_show_both_readings_and_files_of_older_versions_are_read():
    new = document([shown("hpl", dgemm(10 * GFLOP, 8 * GFLOP).section())])
    page = html_report(new)
    assert "80.0 %*" in page
    assert "(before 10.0 GFLOP/s, after 8.00 GFLOP/s)" in page
    old = document([shown("hpl", {"name": "DGEMM", "rate_flops": 10 * GFLOP})])
    page = html_report(old)
    assert "80.0 % of DGEMM, measured at 10.0 GFLOP/s in this process" in page
    assert "80 of 10.0 GFLOP/s  DGEMM" in scoreboard([shown("hpl", old["results"][0]["result"]["limit"])])
