"""Test that the page shows recorded results with absent keys and extreme numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mxpeak.report import html, roofline, settings
from mxpeak.report.html import html_report
from mxpeak.schema.check import mismatch
from tests.support.pages import mixed, result, sparse

STEPS = {"index": [1, 2, 3], "elapsed_s": [1.0, 2.0, 3.0], "phases": {"gemm": {"time_s": [1.0, 1.0, 1.0]}}}


def page_of(record: dict[str, Any], section: str, values: Any) -> str:
    body = json.loads(json.dumps(record))  # as it is in a file
    body[section] = {**body.get(section, {}), **values} if isinstance(values, dict) else values
    assert mismatch(body, "result", complete=False) == "", "a reader takes it"
    return html_report({"schema": "mxpeak.results/1", "results": [body, result("hpl", 1e12, 4)]})


@pytest.mark.parametrize(
    "steps",
    [
        {**STEPS, "phases": {"gemm": {"time_s": [1.0, 1.0]}}},
        {**STEPS, "phases": {"gemm": {"time_s": [1.0, None, 1.0]}}},
        {**STEPS, "elapsed_s": [1.0, 2.0]},
        {**STEPS, "elapsed_s": [None, 2.0, 3.0]},
        {**STEPS, "elapsed_s": [1e-320, 2e-320, 3e-320]},
        {**STEPS, "elapsed_s": [1e307, 1.2e308, 1.7e308]},
        {**STEPS, "index": [0, 0, 0]},
        {"index": [1, 2, 3]},
    ],
)
def test_steps_that_make_no_figure_are_left_out(steps: Any) -> None:
    page = page_of(result("hpl", 1e12), "telemetry", {"steps": steps})
    assert page.count("<figcaption>Time per step") == 1, "that of the other result"


def test_a_phase_without_times_leaves_the_others_drawn() -> None:
    phases = {"gemm": {"max_s": [1.0, 1.0, 1.0]}, "bcast": {"time_s": [0.5, 0.5, 0.5]}}
    page = page_of(result("hpl", 1e12), "telemetry", {"steps": {**STEPS, "phases": phases}})
    assert page.count("<figcaption>Time per step") == 2


@pytest.mark.parametrize(
    "telemetry",
    [
        {"progress": [[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]]},
        {"progress": [[2.0, 1.0], [1.0, 2.0], [2.0, 3.0]]},
        {"progress": [[1e-323, 1.0], [1e308, 1e308]]},
        {"progress": [[1.0, 1.0], [2.0, 2.0]], "forecast": {"elapsed_s": [None, 1.0], "done_flops": [1.0, None]}},
        {"progress": [[1.0, 1.0], [2.0, 2.0]], "forecast": {"source": "baseline"}},
    ],
)
def test_progress_of_any_kind_is_drawn_or_left_out(telemetry: Any) -> None:
    assert "PASSED" in page_of(result("hpl", 1e12), "telemetry", telemetry)


def test_results_without_a_benchmark_or_a_status_are_shown() -> None:
    several = [json.loads(json.dumps(result("hpl", 1e12, ranks))) for ranks in (4, 8)]
    for one in several:
        del one["benchmark"]
    assert "Rate of None by number of ranks" in html_report({"schema": "mxpeak.results/1", "results": several})
    del several[0]["status"]
    assert "ABORTED" in html_report({"schema": "mxpeak.results/1", "results": several})


@pytest.mark.parametrize("samples", [[None, None], [None, 1.0], [0.0, 0.0, 1.0], [1e-323, 1e308], [-1.0, 1.0]])
def test_repeats_of_any_time_are_drawn_or_left_out(samples: Any) -> None:
    assert "PASSED" in page_of(result("hpl", 1e12), "samples_s", samples)


@pytest.mark.parametrize("history", [[1e-323, 1e-300], [1e308, 1e-308], [None, 1.0], [0.0, 0.0]])
@pytest.mark.parametrize("threshold", [16.0, 1e308, 1e-323, -1.0, 0.0])
def test_a_history_of_any_size_is_drawn_or_left_out(history: Any, threshold: float) -> None:
    assert "PASSED" in page_of(mixed("fp32", 1e12), "validation", {"history": history, "threshold": threshold})


@pytest.mark.parametrize("value", [0, 1e-323, 1e-300, 1e300, 1.7e308, None])
@pytest.mark.parametrize("name", ["rate_flops", "time_s", "fraction_of_limit"])
def test_figures_of_any_size_are_shown(name: str, value: Any) -> None:
    assert "PASSED" in page_of(result("hpl", 1e12), "result", {name: value})
    limit = {"name": "read bandwidth", "rate_bytes": value}
    assert "PASSED" in page_of(sparse(), "result", {"limit": limit, name: value})
    phases = {name: {**phase, "flops": value} for name, phase in sparse()["phases"].items()}
    assert "PASSED" in page_of(sparse(), "phases", phases)


@pytest.mark.parametrize(
    ("section", "values"),
    [
        ("problem", {"memory_bytes": {"matrix": 1}}),
        ("problem", {"memory_bytes": {"matrix": None, "total": 1}}),
        ("problem", {"P": 0, "Q": 2**64 - 1}),
        ("launch", {"ranks": 2**64 - 1}),
        ("launch", {"ranks": None, "binding": [{}, {}]}),
        ("rules", {"admissible": False, "violations": [{}]}),
        ("result", {"limit": {}}),
        ("result", {"limit": None}),
        ("machine", {"memory_total_bytes": 1e308, "nodes": 2**64 - 1}),
    ],
)
def test_sections_of_any_extent_are_shown(section: str, values: Any) -> None:
    assert "PASSED" in page_of(mixed("fp16", 1e12), section, values)


def test_the_work_for_a_page_grows_with_its_results_and_not_with_their_square(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    for module in (html, roofline, settings):
        for name in ("part", "measured_on"):
            if (original := getattr(module, name, None)) is not None:
                monkeypatch.setattr(module, name, counted(original, calls))
    counts = []
    for several in (20, 40):
        calls.clear()
        html_report({"schema": "mxpeak.results/1", "results": [result("hpl", 1e12 + k) for k in range(several)]})
        counts.append(len(calls))
    assert counts[1] < 2.5 * counts[0]


def counted(original: Any, calls: list[int]) -> Any:
    """Wrap a function so that each call is counted."""

    def called(*arguments: Any) -> Any:
        calls.append(1)
        return original(*arguments)

    return called
