"""Test the timeline of a run: the times of its steps from all ranks, in bounded size."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from mxpeak.bench import timeline
from mxpeak.bench.harness import phase_table
from mxpeak.bench.hpcg import run as hpcg
from mxpeak.bench.hpcg.config import HpcgConfig
from mxpeak.bench.hpl import run as hpl
from mxpeak.bench.hpl.config import HplConfig
from mxpeak.bench.hpl_mxp import run as hpl_mxp
from mxpeak.bench.hpl_mxp.config import HplMxpConfig
from mxpeak.bench.norms import run as norms
from mxpeak.bench.norms.config import NormsConfig
from mxpeak.cli.main import main
from mxpeak.comm.transports.solo import Solo
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.records import Result, document
from mxpeak.report.html import html_report
from mxpeak.report.run_plots import device_figure
from mxpeak.report.trace import GAP_S, chrome_trace
from mxpeak.spans import MAX_ROWS, Spans
from mxpeak.watch import step_table
from tests.support.result_file import VALIDATOR

STEPS = 7


def on_ranks(ranks: int, bench: Any, config: Any) -> Result:
    """Return the only result of rank 0."""
    if ranks == 1:
        return bench.run(config, Solo())[0]  # type: ignore[no-any-return]
    return run_ranks(ranks, lambda comm: bench.run(config, comm))[0][0]  # type: ignore[no-any-return]


def hpl_config(**values: Any) -> HplConfig:
    return HplConfig(**{"n": (53,), "nb": (8,), "warmup": "none", "threads": 1, "device": "cpu", **values})


# --- steps ------------------------------------------------------------------------------------------------------


class Ticks:
    """A clock that advances by one second per read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.mark.parametrize("steps", [0, 1, MAX_ROWS - 1, MAX_ROWS, 5 * MAX_ROWS + 3])
def test_rows_are_few_and_lose_no_time(steps: int) -> None:
    spans = Spans(clock=Ticks())
    spans.start("many", float(steps))
    for k in range(1, steps + 1):
        spans.add("work", 2.0)
        spans.step(k, steps, float(k))
    spans.add("after", 3.0)
    spans.finish()
    rows = spans.rows
    assert 1 <= len(rows) <= MAX_ROWS
    assert len(rows) > min(steps, MAX_ROWS // 2 - 1)
    assert [row.index for row in rows] == sorted(row.index for row in rows)
    assert rows[-1].index == steps
    assert rows[-1].phases.get("work", 0.0) == 2.0 * steps
    assert rows[-1].phases["after"] == 3.0
    assert all(row.phases["work"] == 2.0 * row.index for row in rows[:-1]), "a row holds all that came before it"


def test_each_computation_begins_its_rows_anew() -> None:
    spans = Spans()
    for count in (5, 2):
        spans.start("one of two", 1.0)
        for k in range(count):
            spans.step(k + 1, count, 0.0)
        spans.finish()
    assert [row.index for row in spans.rows] == [1, 2, 2]


class Background:
    """A clock of delayed work: its marks count the reads."""

    lag = 2

    def __init__(self) -> None:
        self.marks = 0

    def mark(self) -> int:
        self.marks += 1
        return self.marks

    def seconds(self, begin: int, end: int) -> float:
        return float(end - begin)


def test_work_in_the_background_is_booked_with_the_step_that_it_belongs_to() -> None:
    spans = Spans(stopwatch=Background())
    spans.start("behind", 4.0)
    for k in range(1, 5):
        for _ in range(k):
            with spans("work"):  # two consecutive marks: one second
                pass
        spans.step(k, 4, float(k))
    spans.finish()
    assert [row.phases["work"] for row in spans.rows] == [1.0, 3.0, 6.0, 10.0, 10.0]


class Marks:
    """A clock of a device with given times of its marks."""

    lag = 2

    def mark(self) -> float:
        return 0.0

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


def test_the_time_of_a_device_counts_overlapping_spans_once() -> None:
    spans = Spans(stopwatch=Marks(), on_device=frozenset(("gemm", "trsm")))
    spans.start("two streams", 2.0)
    for name, begin, end in (("gemm", 1.0, 4.0), ("trsm", 3.0, 5.0), ("gemm", 3.5, 4.5), ("rfact", 0.0, 9.0)):
        spans.between(name, begin, end)
    spans.step(1, 2, 1.0)
    for name, begin, end in (("gemm", 4.5, 6.0), ("gemm", 8.0, 8.5)):
        spans.between(name, begin, end)
    spans.step(2, 2, 2.0)
    spans.finish()
    assert [row.phases["device"] for row in spans.rows] == [4.0, 5.5, 5.5]  # 1 to 6 and 8 to 8.5
    assert spans.phases["gemm"].time_s == 6.0
    assert spans.phases["gemm"].calls == 4
    spans.start("again", 1.0)
    spans.between("gemm", 0.0, 1.0)
    spans.finish()
    assert spans.times == {"gemm": 1.0, "device": 1.0}


def test_a_host_has_no_time_of_a_device() -> None:
    spans = Spans()
    spans.start("host", 1.0)
    with spans("gemm"):
        pass
    spans.finish()
    assert set(spans.times) == {"gemm"}
    found = on_ranks(1, hpl, hpl_config(kernels="host"))
    assert {"device", "transfer"}.isdisjoint(found.phases)
    assert device_figure(found.telemetry["steps"], 100) == ""


@pytest.mark.parametrize("library", [True, False])
def test_a_device_has_times_of_copies_and_of_computation(monkeypatch: pytest.MonkeyPatch, library: bool) -> None:
    """Use torch on the CPU; without the library, the host factors panels, and each copy back takes 0.1 s."""
    steps, back_s = 7, 0.1
    if not library:
        from mxpeak.kernels.torch.lu import panel
        from mxpeak.kernels.torch.lu.lu import TorchLu

        def factored(*arguments: Any) -> Any:
            begin = perf_counter()
            return replace(panel_on_host(*arguments), copied=(begin, begin + back_s))

        panel_on_host = panel.factor_on_host
        monkeypatch.setattr(TorchLu, "panel_library", lambda kernels, ranks: None)
        monkeypatch.setattr(panel, "factor_on_host", factored)
    result = on_ranks(1, hpl, hpl_config(kernels="torch"))
    assert result.passed
    assert 0.0 < result.phases["device"]["time_s"] <= result.result["time_s"]
    moved = [result.phases[name]["time_s"] for name in ("laswp", "moves")]
    assert moved[0] >= moved[1] > 0.0
    assert ("transfer" in result.phases) != library
    columns = result.telemetry["steps"]["phases"]
    assert len(columns["device"]["time_s"]) == len(result.telemetry["steps"]["index"])
    assert sum(columns["device"]["time_s"]) == pytest.approx(result.phases["device"]["time_s"], abs=1e-5)
    figure = device_figure(result.telemetry["steps"], 100)
    assert "Device, host and messages by step" in figure
    if not library:
        assert result.phases["transfer"]["time_s"] == pytest.approx(steps * back_s, abs=0.05)
        assert "copies between host and device" in figure
    VALIDATOR.validate(document([result]))


def test_the_device_of_hpl_mxp_has_a_time_too() -> None:
    config = HplMxpConfig(n=(53,), nb=(8,), warmup="none", threads=1, device="cpu", kernels="torch")
    found = on_ranks(1, hpl_mxp, config)
    assert 0.0 < found.phases["device"]["time_s"] <= found.result["time_s"]
    assert "Device, host and messages by step" in html_report(document([found]))


def test_the_table_of_steps_shows_the_times_of_a_device(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(step_table, "ROW_S", 0.0)
    run = ["run", "hpl", "-N", "53", "--nb", "8", "--warmup", "none", "--threads", "1", "--ranks", "1"]
    assert main([*run, "--device", "cpu", "--kernels", "torch", "--progress", "table"]) == 0
    shown = capsys.readouterr().err
    assert re.search(r"step +done .* device", shown)
    assert not re.search(r"step +done .* moves", shown)
    assert main([*run, "--device", "cpu", "--kernels", "host", "--progress", "table"]) == 0
    shown = capsys.readouterr().err
    assert re.search(r"step +done .* copy", shown)
    assert "device" not in shown


@pytest.mark.parametrize(("ranks", "grid"), [(1, (1, 1)), (6, (2, 3))])
def test_the_steps_of_hpl_add_up_to_its_phases(ranks: int, grid: tuple[int, int]) -> None:
    result = on_ranks(ranks, hpl, hpl_config(grid=(grid,)))
    steps = result.telemetry["steps"]
    VALIDATOR.validate(json.loads(json.dumps(result.as_dict())))
    assert steps["index"] == [*range(1, STEPS + 1), STEPS]
    assert steps["elapsed_s"] == sorted(steps["elapsed_s"])
    assert {"rfact", "laswp", "gemm", "ptrsv"} <= set(steps["phases"])
    for name, phase in steps["phases"].items():
        whole = result.phases[name]
        assert sum(phase["time_s"]) == pytest.approx(whole["time_s"], abs=1e-5), name
        assert sum(phase["max_s"]) >= whole["max_s"] - 1e-5, name
        assert len(phase["time_s"]) == len(phase["max_s"]) == STEPS + 1


def test_a_phase_names_the_ranks_with_its_largest_and_smallest_time() -> None:
    def spent(comm: Any) -> Any:
        spans = Spans()
        spans.start("hpl", 1.0)
        spans.add("gemm", (2.0, 5.0, 1.0)[comm.rank])
        if comm.rank == 2:
            spans.add("ptrsv", 0.5)
        return phase_table(comm, spans)

    table = run_ranks(3, spent)[0]
    assert [table["gemm"][key] for key in ("max_s", "max_rank", "min_s", "min_rank")] == [5.0, 1, 1.0, 2]
    assert [table["ptrsv"][key] for key in ("max_s", "max_rank", "min_s", "min_rank")] == [0.5, 2, 0.0, 0]


def test_refinement_is_what_comes_after_the_steps_of_hpl_mxp() -> None:
    config = HplMxpConfig(n=(53,), nb=(8,), precision=("fp32",), warmup="none", threads=1, device="cpu")
    steps = on_ranks(1, hpl_mxp, config).telemetry["steps"]
    assert steps["index"] == [*range(STEPS + 1), STEPS]
    time_of = {name: phase["time_s"] for name, phase in steps["phases"].items()}
    assert time_of["store"][0] > 0
    assert not any(time_of["store"][1:]), "A is made before the first step"
    assert time_of["ptrsv"][-1] > 0
    assert not any(time_of["ptrsv"][:-1])


def test_the_iterations_of_hpcg_are_steps_and_one_more_set_is_its_timeline() -> None:
    config = HpcgConfig(nx=16, rt=0.0, quick=True, warmup="none", threads=1, device="cpu", trace="unused")
    result = on_ranks(1, hpcg, config)
    steps = result.telemetry["steps"]
    assert steps["index"][-1] == result.result["total_optimized_iterations"]
    assert {"spmv", "gs", "ddot"} <= set(steps["phases"])
    assert sum(event["name"] == "ddot" for event in result.telemetry["trace"]) >= 50


# --- the timeline -----------------------------------------------------------------------------------------------


def test_a_timeline_has_every_span_of_every_rank() -> None:
    result = on_ranks(6, hpl, hpl_config(grid=((2, 3),), trace="unused"))
    events = result.telemetry["trace"]
    assert {event["rank"] for event in events} == set(range(6))
    for name in ("gemm", "trsm", "bcast", "laswp", "rfact"):
        assert sum(event["name"] == name for event in events) == result.phases[name]["calls"], name
    assert not {event["name"] for event in events} & {"pfact", "mxswp", "other"}, "they are in many pieces"
    assert all(event["begin_s"] >= 0 and event["time_s"] >= 0 for event in events)


def test_without_trace_no_span_is_kept() -> None:
    assert "trace" not in on_ranks(1, hpl, hpl_config()).telemetry


def test_a_timeline_that_is_full_says_that_it_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MAX_EVENTS", 40)
    result = on_ranks(2, hpl, hpl_config(grid=((1, 2),), trace="unused"))
    assert len(result.telemetry["trace"]) == 40
    (caution,) = [caution for caution in result.warnings if caution.code == "trace"]
    assert "at most 40 spans, 20 per rank" in caution.text


def test_norms_have_a_timeline_of_what_is_taken() -> None:
    config = NormsConfig(n=(40,), kind=("one",), threads=1, device="cpu", trace="unused")
    names = [event["name"] for event in on_ranks(1, norms, config).telemetry["trace"]]
    assert names[:2] == ["generate", "check"]
    assert {"limit", "norm"} == set(names[2:])


def test_cases_stand_one_after_the_other_in_the_file() -> None:
    one = {"name": "gemm", "rank": 1, "lane": "compute", "begin_s": 0.25, "time_s": 0.5}
    trace = json.loads(chrome_trace([("first", [one]), ("second", [one, {**one, "rank": 0}])]))
    events = trace["traceEvents"]
    assert [e["args"]["name"] for e in events if e["ph"] == "M"] == ["rank 0", "rank 1", "compute", "compute"]
    assert [(e["name"], e["ts"]) for e in events if e["ph"] == "i"] == [
        ("first", 0.0),
        ("second", 1e6 * (0.75 + GAP_S)),
    ]
    spans = [(e["pid"], e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    second = pytest.approx(1e6 * (1.0 + GAP_S))
    assert spans == [(1, 0, 2.5e5, 5e5), (1, 0, second, 5e5), (0, 0, second, 5e5)]
