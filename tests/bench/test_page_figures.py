"""Test the figures of a page: the time of each step by component, and the rate before its forecast."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from mxpeak.records import SCHEMA_RESULTS
from mxpeak.report.html import html_report
from mxpeak.report.plots import Axis, heat_map
from mxpeak.report.run_plots import rate_figure, steps_figure


def steps(**more: Any) -> dict[str, Any]:
    phases = {
        "gemm": [0.0, 3.0, 1.0, 0.0],
        "update": [0.0, 3.5, 1.5, 0.0],
        "bcast": [0.0, 0.5, 2.0, 0.0],
        "ptrsv": [0.0, 0.0, 0.0, 0.25],
    }
    return {
        "ranks": 2,
        "index": [0, 1, 2, 2],
        "elapsed_s": [1.0, 5.0, 9.0, 9.5],
        "done_flops": [0.0, 60.0, 100.0, 100.0],
        "phases": {name: {"time_s": column, "max_s": column} for name, column in phases.items()},
        **more,
    }


def drawn(figure: str) -> ElementTree.Element:
    return ElementTree.fromstring(figure.replace("<svg ", '<svg xmlns="" ', 1))


def test_every_component_of_a_step_is_a_layer_and_the_rest_is_named() -> None:
    figure = steps_figure("hpl", steps(), 60)
    said = re.findall(r"<title>(step[^<]*)</title>", figure)
    assert said == [
        "step 0 to 1: gemm 3 s per step",
        "step 0 to 1: bcast 0.5 s per step",
        "step 0 to 1: other 0.5 s per step",
        "step 1 to 2: gemm 1 s per step",
        "step 1 to 2: bcast 2 s per step",
        "step 1 to 2: other 1 s per step",
    ]
    assert "Mean of 2 ranks. After the last step: ptrsv 0.250 s." in figure
    heights = [float(box.get("height", "0")) for box in drawn(figure).iter("rect") if box.find("title") is not None]
    assert heights[0] / heights[1] == pytest.approx(6.0, rel=1e-3)
    assert sum(heights[:3]) == pytest.approx(sum(heights[3:]), abs=0.02), "both steps took 4 s"


def test_the_parts_of_a_phase_of_hpcg_are_not_drawn_again() -> None:
    seconds = {"spmv": 1.0, "mg": 2.5, "gs": 2.0, "restriction": 0.25, "prolongation": 0.25, "ddot": 0.5}
    phases = {name: {"time_s": [s] * 4, "max_s": [s] * 4} for name, s in {**seconds, "allreduce": 0.25}.items()}
    figure = steps_figure("hpcg", {"index": [1, 2, 3, 4], "elapsed_s": [4.0, 8.0, 12.0, 16.0], "phases": phases}, 60)
    said = re.findall(r"<title>step 0 to 1: ([^<]*) per step</title>", figure)
    assert sorted(said) == ["ddot 0.5 s", "mg 2.5 s", "spmv 1 s"]


@pytest.mark.parametrize("bars", [10, 60, 200])
def test_bars_are_few_and_lose_no_time(bars: int) -> None:
    count = 150
    many = {
        "index": [*range(1, count + 1), count],
        "elapsed_s": [0.5 * k for k in range(1, count + 2)],
        "phases": {"gemm": {"time_s": [0.5] * count + [0.0]}},
    }
    figure = steps_figure("hpl", many, bars)
    ranges = re.findall(r"step (\d+) to (\d+): gemm 0\.5 s", figure)
    assert len(ranges) <= bars
    assert [int(a) for a, _ in ranges] == [0, *(int(b) for _, b in ranges[:-1])]
    assert int(ranges[-1][1]) == count


def test_the_steps_before_a_checkpoint_are_not_drawn() -> None:
    resumed = {
        "index": [4, 5, 6, 6],
        "elapsed_s": [8.0, 9.0, 10.0, 10.5],
        "phases": {"gemm": {"time_s": [0.0, 1.0, 1.0, 0.0]}},
    }
    figure = steps_figure("hpl", resumed, 60, resumed=4)
    assert re.findall(r"<title>(step[^<]*)</title>", figure) == [
        "step 4 to 5: gemm 1 s per step",
        "step 5 to 6: gemm 1 s per step",
    ]


def test_the_labels_of_a_heat_map_are_inside_of_the_drawing() -> None:
    figure = heat_map("GEMM", "k", "m x n", ["256"], ["16384x16384"], [[1.0]])
    (place,) = re.findall(r'x="([\d.]+)"[^>]*text-anchor="end">16384x16384<', figure)
    assert float(place) >= 10 * len("16384x16384")  # a digit of the largest font is at most 10 wide
    (left,) = re.findall(r'<rect class="frame" x="([\d.]+)"', figure)
    (cell,) = re.findall(r'<rect class="heat c0" x="([\d.]+)"', figure)
    assert float(cell) == float(left)


def test_a_run_of_one_step_is_not_drawn() -> None:
    assert steps_figure("hpl", {}, 60) == ""
    assert steps_figure("hpl", {"index": [1, 1], "elapsed_s": [1.0, 1.5], "phases": {}}, 60) == ""


def test_the_figure_has_the_measured_rate_and_the_forecast() -> None:
    progress = [(1.0, 60e9), (2.0, 100e9)]
    forecast = {"source": "simulated", "elapsed_s": [0.0, 0.5, 1.0], "done_flops": [0.0, 60e9, 100e9]}
    figure = rate_figure({"progress": progress, "forecast": forecast}, 200e9)
    assert "100 % of the work: limit 200 GFLOP/s" in figure
    assert "100 % of the work: average 50.0 GFLOP/s" in figure
    assert "100 % of the work: current 40.0 GFLOP/s" in figure
    assert "60 % of the work: average (simulated) 120 GFLOP/s" in figure
    plain = rate_figure({"progress": progress}, None)
    assert "simulated" not in plain
    assert "limit" not in plain
    assert rate_figure({"progress": progress[:1]}, None) == ""


@pytest.mark.parametrize("high", [3e-7, 0.9, 1.0, 4.2, 17.0, 99.9, 5e14])
def test_axes_have_a_handful_of_round_ticks(high: float) -> None:
    axis = Axis.from_zero(high)
    assert 3 <= len(axis.ticks) <= 6
    assert axis.ticks[0] == (0.0, "0")
    assert axis.ticks[-1][0] <= high < axis.high


def test_a_page_of_many_results_stays_small() -> None:
    one = {"benchmark": "hpl", "status": "valid", "telemetry": {"steps": steps(index=[1, 2, 3, 3])}}
    assert html_report({"schema": SCHEMA_RESULTS, "results": [one]}).count("<title>step") == 7
    many = {**one, "telemetry": {"steps": {"index": [*range(1, 200)], "elapsed_s": [*range(1, 200)], "phases": {}}}}
    assert html_report({"schema": SCHEMA_RESULTS, "results": [many] * 100}).count("<title>step") == 100 * 10
