"""Test the page of results: one card, one row per result, figures with values, and changed settings in sight."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mxpeak.report.html import html_report
from mxpeak.report.rank_map import rank_map
from mxpeak.report.roofline import Roofs, roofline_figure, roofs_of
from mxpeak.report.run_plots import repeats_figure
from mxpeak.report.scaling import ranks_figures, sizes_figure
from mxpeak.report.style import STYLE
from tests.support.pages import everything, mixed, phases, result, sparse


def page_of(*results: dict[str, Any], runs: tuple[str, ...] = ()) -> str:
    return html_report({"schema": "mxpeak.results/1", "results": list(results)}, runs)


def titles(figure: str) -> list[str]:
    """Return the texts that a figure shows on hovering."""
    return re.findall(r"<title>([^<]*)</title>", figure)


def test_machine_date_command_and_versions_stand_once_however_many_results_there_are() -> None:
    page = html_report(everything())
    for text in ("AMD EPYC 7A53", ">2026-11-23 11:04:22 UTC<", "openblas 0.3.30"):
        assert page.split("<table")[0].count(text) == 1, text
    command = r"srun -n \d+ mxpeak run hpl-mxp -N 100000 --out /lustre/orion/project/scratch/user/acceptance/november"
    assert re.search(f'<code class="command">{command}</code> <button type="button" data-copies', page)


def test_runs_are_named_and_common_facts_are_shown_once() -> None:
    page = page_of(result("hpl", 1e12), result("hpl", 2e12), runs=("monday", "tuesday"))
    assert page.count('data-name="run">monday</td>') == page.count('data-name="run">tuesday</td>') == 1
    assert page.count("<dt>machine</dt>") == 1
    other = page_of(result("hpl", 1e12), result("hpl", 1e12, machine={"cpu_model": "Xeon"}), runs=("a", "b"))
    assert other.count("<dt>machine</dt>") == 2


def test_only_settings_that_are_not_the_default_are_in_sight() -> None:
    page = page_of(result("hpl", 1e12))
    shown, collapsed = page.split("<summary>1 setting at its default</summary>")
    assert '<td>n</td><td class="value">100000</td><td>flag</td>' in shown
    assert "quick" not in shown
    assert '<td>quick</td><td class="value">no</td>' in collapsed


def test_of_many_results_of_a_benchmark_only_the_fastest_is_expanded() -> None:
    page = page_of(*(result("hpl", rate) for rate in (1e12, 3e12, 2e12)))
    assert re.findall(r"<section><h2>hpl.*?</h2><p class=\"big\">([^<]*)</p>", page) == ["3.00 TFLOP/s"]
    assert page.count("<details><summary><h2>") == 2
    assert "<details><summary><h2>" not in page_of(result("hpl", 1e12), result("hpl", 3e12))


def test_the_roofline_has_every_motif_in_both_precisions_under_the_measured_roofs() -> None:
    figure = roofline_figure({"mixed": phases({"gs": 2.0, "spmv": 1.0})}, Roofs(("memory", 9e9), {"DGEMM": 3e9}))
    # gs does 2e9 flop/s at 2/9 flop per byte, spmv 4e9 at 4/9: memory allows 2e9 and 4e9
    assert "gs mixed: 2.00 GFLOP/s at 0.222 flops per byte" in titles(figure)
    assert "spmv mixed: 4.00 GFLOP/s at 0.444 flops per byte" in titles(figure)
    assert "gs 100 %, spmv 100 %" in figure
    assert {"memory 9.00 GB/s", "DGEMM 3.00 GFLOP/s"} <= set(titles(figure))
    both = page_of(sparse())
    for motif in ("gs", "spmv", "ortho", "restriction", "prolongation", "update"):
        assert f"</span> {motif} mixed</li>" in both
        assert f"</span> {motif} double</li>" in both


def test_no_roof_is_drawn_that_was_not_measured() -> None:
    dense, elsewhere = result("hpl", 1e12), result("hpl", 9e12, machine={"hostname": "another"})
    assert roofs_of([dense, elsewhere, result("hpl", 9e12, 16)], dense) == Roofs(None, {"DGEMM": 2e12})
    assert roofline_figure({"": phases({"gs": 1.0})}, Roofs(None, {"DGEMM": 2e12})) == ""
    assert roofline_figure({"": {"gs": {"time_s": 1.0, "flops": 1e9}}}, Roofs(("memory", 9e9), {})) == ""
    assert "DGEMM" not in roofline_figure({"": phases({"gs": 1.0})}, Roofs(("memory", 9e9), {"DGEMM": 1e15}))


def test_the_roof_is_the_memory_of_the_run_though_another_read_its_caches() -> None:
    in_memory, in_cache = sparse(), sparse()
    in_cache["result"] = {"limit": {"name": "read bandwidth in cache", "rate_bytes": 400e9}}
    for results in ([in_memory, in_cache], [in_cache, in_memory]):
        assert roofs_of(results, in_memory).bandwidth == ("read bandwidth", 80e9)
        assert roofs_of(results, in_cache).bandwidth == ("read bandwidth in cache", 400e9)


def test_precisions_converge_in_one_figure() -> None:
    page = page_of(mixed("fp32", 1e12), mixed("bf16", 2e12))
    together = page.split("<section>")[0]
    assert re.findall(r"</span> (\w+) [^<]* after step (\d+)</li>", together) == [("fp32", "2"), ("bf16", "3")]
    assert "</span> threshold 16.0</li>" in together


def test_the_spread_of_runs_is_drawn_and_summarized() -> None:
    figure = repeats_figure([1.0, 1.2, 1.1])
    assert titles(figure)[-3:] == ["run 1: 1.00 s", "run 2: 1.20 s", "run 3: 1.10 s"]
    assert "3 runs: best 1.00 s, median 1.10 s, spread 18.2 %" in figure
    assert repeats_figure([1.0]) == ""
    assert len(re.findall("<circle", repeats_figure([1.0] * 10_000))) <= 202


def test_several_runs_show_how_the_rate_grows_with_the_ranks() -> None:
    runs = [result("hpl", 10e12, 8), result("hpl", 9e12, 8), result("hpl", 15e12, 16)]
    figure = ranks_figures("hpl", runs)
    assert [text.split(": ")[1] for text in titles(figure)] == [
        "10.0 TFLOP/s, 100.0 % of linear scaling",
        "15.0 TFLOP/s, 75.0 % of linear scaling",
    ]
    assert ranks_figures("hpl", runs[:2]) == "", "all on as many ranks"
    assert ranks_figures("hpl", [runs[0], result("hpl", 15e12, 16, machine={"cpu_model": "another"})]) == ""
    assert ranks_figures("hpl", [runs[0], result("hpl", 15e12, 16, status="invalid")]) == ""


@pytest.mark.parametrize(("order", "rows"), [("row", [["0", "1"], ["2", "3"]]), ("column", [["0", "2"], ["1", "3"]])])
def test_the_map_of_ranks_is_that_of_the_grid(order: str, rows: list[list[str]]) -> None:
    bound = [{"rank": k, "host": f"node{k // 2}", "cores": "0-3", "threads": 4} for k in range(4)]
    drawn = rank_map({"P": 2, "Q": 2, "order": order}, {"binding": bound})
    assert [re.findall(r">(\d+)</td>", row) for row in drawn.split("<tr>")[1:]] == rows
    assert 'title="rank 2 on node1: 4 threads on cores 0-3">2</td>' in drawn
    assert rank_map({"P": 1, "Q": 1}, {"binding": bound[:1]}) == "", "there is nothing to show of one"


def test_a_box_of_ranks_is_drawn_layer_by_layer() -> None:
    bound = [{"rank": k, "host": "one", "cores": "0", "threads": 1} for k in range(8)]
    drawn = rank_map({"npx": 2, "npy": 2, "npz": 2}, {"binding": bound})
    assert drawn.count("<caption>layer") == 2
    assert re.search(r"\.ranks caption {[^}]*white-space: nowrap", STYLE), "a caption is wider than a column of ranks"
    assert [re.findall(r">(\d+)</td>", row) for row in drawn.split("<tr>")[1:]] == [
        ["0", "1"],
        ["2", "3"],
        ["4", "5"],
        ["6", "7"],
    ]


def test_the_page_begins_with_its_conclusion() -> None:
    page = page_of(result("hpl", 1e12), result("hpl", 3e12), mixed("fp32", 9e12), result("hpl", 9e12, status="invalid"))
    lead = (
        '<p class="lead">3 of 4 results are valid. HPL at best: 3.00 TFLOP/s (50 % of this machine&#x27;s DGEMM).</p>'
    )
    assert f"</h1>\n{lead}\n" in page
    alone = "The result is valid. HPG-MxP: 40.0 GFLOP/s (50 % of this machine&#x27;s read bandwidth)."
    assert f">{alone}<" in page_of(sparse())
    assert '<p class="lead">The result is not valid.</p>' in page_of(result("hpl", 1e12, status="invalid"))
    assert 'class="lead"' not in page_of()


def test_columns_and_problems_are_named_in_full() -> None:
    page = page_of(mixed("bf16", 1e12), sparse())
    titles = re.findall(r"<th[^>]*>([^<]*)</th>", page.split('<tr class="head">')[1].split("</tr>")[0])
    assert titles == ["benchmark", "problem", "rate", "of limit", "", "time", "check", "list status", "speedup"]
    problems = [text.replace("\xa0", " ") for text in re.findall(r'data-name="problem">([^<]*)<', page)]
    assert problems == [
        "N 100000 · NB 512 · grid 2×4 · bf16 · generator sqrt-n",
        "mesh 104×104×104 · ranks 2×2×2 · storage rows",
    ]


def test_a_share_above_100_percent_fills_its_bar_and_is_marked_and_explained_once() -> None:
    above = result("hpl", 1e12)
    above["result"]["fraction_of_limit"] = 1.11
    page = page_of(above, result("hpl", 1e12))
    assert page.count('<span class="meter over"') == 2, "in the table and in its section"
    assert page.count("A share above 100 % means") == 1
    assert "width: 111" not in page
    assert "meter over" not in page_of(result("hpl", 1e12)).split("</style>")[1]
    assert "A share above" not in page_of(result("hpl", 1e12))


def test_a_changed_speed_is_noted_under_the_table_of_all_results() -> None:
    drifted = result("hpl", 1e12)
    drifted["result"]["limit"] |= {"drift": 0.25, "drifted": True}
    note = "* The machine&#x27;s speed changed by up to 25.0 % between the measurements of the limit"
    assert page_of(drifted, result("hpl", 2e12)).split("<section>")[0].count(note) == 1
    assert note not in page_of(result("hpl", 1e12))


def test_formulas_and_long_digits_are_folded_and_a_norm_without_error_is_exact() -> None:
    norm = result("norms", 1e9)
    norm["problem"] = {"kind": "max", "structure": "general", "m": 100, "n": 100, "dtype": "float64"}
    check = {"passed": True, "residual": 0.0, "threshold": 0.0, "formula": "| norm - reference |"}
    norm["validation"] = {**check, "value": 0.4999999979551809, "expected": 0.4999999979551809}
    page = page_of(norm, result("hpl", 1e12))
    assert "<p>exact</p>" in page
    assert "threshold 0" not in page
    folded = "".join(re.findall(r"<details><summary>How the result was checked</summary>.*?</details>", page))
    for text in ("| norm - reference |", "found 0.4999999979551809, expected 0.4999999979551809", "( eps * N )"):
        embedded = page.split('<script type="application/json"')[0]
        assert folded.count(text) == embedded.count(text) == 1, text


def test_the_one_thread_of_blas_is_explained() -> None:
    blas = {"library": "openblas", "version": "0.3.30", "architecture": "SkylakeX", "threads": 1}
    page = page_of(result("hpl", 1e12, software={"blas": blas}))
    assert "openblas 0.3.30 SkylakeX; 1 thread per call, because mxpeak&#x27;s own threads call it<" in page
    assert "4 threads per call<" in page_of(result("hpl", 1e12, software={"blas": {**blas, "threads": 4}}))


def test_the_rate_over_n_is_a_figure_with_a_curve_per_other_setting() -> None:
    def result(n: int, kind: str, rate: float, status: str = "valid") -> dict[str, Any]:
        problem = {"n": n, "m": n, "kind": kind, "structure": "general", "dtype": "float64", "layout": "C"}
        return {"benchmark": "norms", "status": status, "problem": problem, "result": {"rate_bytes": rate}}

    many = [result(n, kind, 1e9 * n / 1000) for kind in ("one", "fro") for n in (1000, 2000, 4000)]
    figure = sizes_figure("norms", many)
    assert "Rate of norms by N" in figure
    assert figure.count("<polyline") == 2
    assert "4000x4000: 4.00 GB/s" in figure
    assert sizes_figure("norms", many[:1]) == ""
    spoiled = [result(n, "max", 1e12, "invalid") for n in (1000, 2000)]
    assert sizes_figure("norms", spoiled) == ""
    assert sizes_figure("norms", [*many, *spoiled]) == figure
