"""Compare the keys of HPG-MxP's report with the reference's."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from mxpeak.bench.registry import BENCHMARKS
from mxpeak.cli.run_history import checked
from mxpeak.records import Result, document
from mxpeak.report.compare import compared, rate_of
from mxpeak.report.hpgmp_text import hpgmp_report
from mxpeak.report.html import html_report
from mxpeak.report.importers import results_of_log
from mxpeak.report.scoreboard import scoreboard
from mxpeak.report.text import verdict
from tests.support.hpgmp_reports import BARE, BROKEN, FAILED, NOW, VIOLATION, emptied, figures_of, result_of

HERE = Path(__file__).parent

#: The keys of the reference's file in its order, with those that ORNL's code adds to the validation.
KEYS = {
    "Machine Summary": ["Distributed Processes", "Threads per processes"],
    "Global Problem Dimensions": ["Global nx", "Global ny", "Global nz"],
    "Processor Dimensions": ["npx", "npy", "npz"],
    "Local Domain Dimensions": ["nx", "ny", "Lower ipz", "Upper ipz", "nz"],
    "Setup Information": ["Setup Time"],
    "Linear System Information": ["Number of Equations", "Number of Nonzero Terms"],
    "Multigrid Information": ["Number of coarse grid levels"],
    "Multigrid Information::Coarse Grids": 3 * [
        "Grid Level", "Number of Equations", "Number of Nonzero Terms", "Number of Presmoother Steps",
        "Number of Postsmoother Steps",
    ],
    "Memory Use Information": [
        "Total memory used for data (Gbytes)", "Memory used for OptimizeProblem data (Gbytes)",
        "Bytes per equation (Total memory / Number of Equations)", "Memory used for linear system and CG (Gbytes)",
    ],
    "Memory Use Information::Coarse Grids": ["Grid Level", "Memory used"],
    "Iteration Count Information": [
        "Number of processes (validation)", "Restart length (validation)", "Convergence tolerance (validation)",
        "Number of reference iterations (validation)", "Initial residual norm of reference iterations (validation)",
        "Final residual norm of reference iterations (validation)", "Number of optimized iterations (validation)",
        "Initial residual norm of optimized iterations (validation)",
        "Final residual norm of optimized iterations (validation)", "Validation type", "Penalty factor (validation)",
    ],
    "Benchmark Time Summary": [
        "Run time requested (benchmark)", "Min run time required (benchmark)", "Number of GMRES calls (benchmark)",
        "Mximum number of iterations (benchmark)", "Optimization phase", "Num SpMVs", "Num MGs", "Ortho", "  DDOT",
        "WAXPBY", "SpMV", "SpMV (copy)", "SpMV (halo)", "MG", "SpTRSV", "Restic", "Prlong", "VecUpdate", "Total",
        "Number of GMRES calls (reference)", "Mximum number of iterations (reference)", "Num SpMVs (reference)",
        "Num MGs (reference)", "Ortho (reference)", "SpMV (reference)", "MG (reference)", "SpTRSV (reference)",
        "Restic (reference)", "Prlong (reference)", "VecUpdate (reference)", "Total (reference)",
    ],
    "Floating Point Operations Summary": ["Raw Ortho", "Raw SpMV", "Raw MG", "Total"],
    "GFLOP/s Summary": ["Raw Orho", "Raw SpMV", "Raw MG", "Raw Total", "Total for benchmark"],
    "User Optimization Overheads": [
        "Optimization phase time (sec)", "Optimization phase time vs reference SpMV+MG time",
    ],
    "Final Summary": [
        "HPGMP result is VALID with a GFLOP/s rating of", "Results are valid but execution time (sec) is",
        "Official results execution time (sec) must be at least",
    ],
    "Precision (mxpeak)": [
        "Matrix values of multigrid by level (benchmark)", "Matrix values of the Krylov iteration (benchmark)",
        "Vectors of the Krylov iteration and multigrid (benchmark)", "Residual and solution (benchmark)",
        "Matrix values and vectors (reference)",
    ],
    "Counting (mxpeak)": [
        "Total for benchmark in the counting of the reference code", "Total for benchmark in the counting of ORNL",
        "Raw Total in the counting of the reference code", "Raw Total in the counting of ORNL",
        "Raw Total in the counting of the reference code (reference)",
        "Raw Total in the counting of ORNL (reference)",
    ],
    "Written by mxpeak": ["Version", "Date", "Rules"],
}  # fmt: skip
#: Keys whose values are not measured here.
UNMEASURED = {
    "Memory used for OptimizeProblem data (Gbytes)", "Memory used for linear system and CG (Gbytes)",
    "Num MGs", "Num MGs (reference)", "  DDOT", "WAXPBY", "SpMV (copy)", "SpMV (halo)",
    "Optimization phase time vs reference SpMV+MG time",
}  # fmt: skip


def keys(report: str) -> dict[str, list[str]]:
    """Return the keys by section in the order of the file."""
    keys_of: dict[str, list[str]] = {}
    for line in report.splitlines()[2:]:
        name, key = line.split("=", 1)[0].rsplit("::", 1)
        keys_of.setdefault(name, []).append(key)
    return keys_of


def values(report: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in report.splitlines()[1:])


# --- the file ---------------------------------------------------------------------------------------------------


def test_the_report_is_the_golden_one():
    assert hpgmp_report(result_of(), NOW) == (HERE / "hpgmp.txt").read_text()


def test_the_report_of_a_failed_run_is_the_golden_one():
    assert hpgmp_report(FAILED, NOW) == (HERE / "hpgmp_failed.txt").read_text()


def test_the_keys_are_the_references_in_its_order_but_for_what_is_not_measured():
    measured = {name: [key for key in names if key not in UNMEASURED] for name, names in KEYS.items()}
    del measured["Memory Use Information::Coarse Grids"]
    found = keys(hpgmp_report(result_of(), NOW))
    assert list(found) == list(measured)
    assert found == measured


def test_the_file_is_named_by_version_and_time():
    form = BENCHMARKS["hpg-mxp"].report
    assert form
    assert form.file.format(NOW) == "HPGMP-Benchmark_0.1_2025-03-07_14-05-09.txt"


def test_numbers_have_all_their_digits():
    rating = values(hpgmp_report(result_of(), NOW))["Final Summary::HPGMP result is VALID with a GFLOP/s rating of"]
    assert float(rating) == figures_of()["rate_flops"] / 1e9


def test_the_final_residual_is_the_initial_one_times_the_relative():
    found = values(hpgmp_report(result_of(), NOW))
    name = "Iteration Count Information::Final residual norm of optimized iterations (validation)"
    assert float(found[name]) == 512.0 * 9.9e-10


def test_the_file_has_both_countings_and_the_formats_of_values_and_vectors():
    value_of = values(hpgmp_report(result_of(), NOW))
    for name, key in (("the reference code", "rate_flops_reference"), ("ORNL", "rate_flops_ornl")):
        shown = value_of[f"Counting (mxpeak)::Total for benchmark in the counting of {name}"]
        assert float(shown) == figures_of()[key] / 1e9
    assert value_of["Precision (mxpeak)::Matrix values of multigrid by level (benchmark)"] == "fp16, fp16, fp32, fp32"
    assert value_of["Precision (mxpeak)::Matrix values of the Krylov iteration (benchmark)"] == "fp32"
    assert value_of["Precision (mxpeak)::Vectors of the Krylov iteration and multigrid (benchmark)"] == "fp32"
    formats = {**result_of().problem["precision"], "basis": "bf16"}
    narrow = values(hpgmp_report(result_of(problem={**result_of().problem, "precision": formats}), NOW))
    name = "Precision (mxpeak)::Vectors of the Krylov iteration and multigrid (benchmark)"
    assert narrow[name] == "fp32, Krylov basis stored in bf16"
    narrow = values(
        hpgmp_report(result_of(problem={**result_of().problem, "precision": {**formats, "mg_vectors": "fp16"}}), NOW)
    )
    assert narrow[name] == "fp32, Krylov basis stored in bf16, multigrid vectors in fp16"
    old = result_of(problem={**result_of().problem, "precision": "fp32"})
    assert "Precision (mxpeak)" not in hpgmp_report(old, NOW)


def test_multigrid_is_smoothing_restriction_and_prolongation_together():
    found = values(hpgmp_report(result_of(), NOW))
    assert float(found["Benchmark Time Summary::MG"]) == 30.25 + 3.125 + 0.25
    assert float(found["Floating Point Operations Summary::Raw MG"]) == 12 * (1.2e11 + 4e9)


def test_the_products_of_all_ranks_are_reported_like_those_of_one():
    assert values(hpgmp_report(result_of(), NOW))["Benchmark Time Summary::Num SpMVs"] == str(310 * 12)


@pytest.mark.parametrize(("time_s", "short"), [(60.0, True), (1799.9, True), (1800.0, False), (7200.0, False)])
def test_a_run_below_half_an_hour_is_valid_but_reported_as_too_short(time_s: float, short: bool):
    report = hpgmp_report(result_of(result=figures_of(time_s=time_s)), NOW)
    assert "HPGMP result is VALID with a GFLOP/s rating of=" in report
    assert (f"Final Summary::Results are valid but execution time (sec) is={time_s}\n" in report) is short
    assert ("Final Summary::Official results execution time (sec) must be at least=1800\n" in report) is short


@pytest.mark.parametrize("status", ["invalid", "aborted"])
def test_what_did_not_pass_is_invalid_and_has_no_rating(status: str):
    report = hpgmp_report(result_of(status=status), NOW)
    assert [line for line in report.splitlines() if line.startswith("Final")] == [
        "Final Summary::HPGMP result is=INVALID."
    ]


@pytest.mark.parametrize(("solver", "kind"), [("mixed", "raw"), ("double", "double")])
@pytest.mark.parametrize("status", ["valid", "invalid"])
def test_the_report_of_a_standalone_solver_is_imported_with_its_raw_rate(solver: str, kind: str, status: str) -> None:
    problem = {**result_of().problem, "run_type": solver}
    figures = figures_of(rate_flops=None, double_time_s=85.0 if solver == "double" else None)
    figures |= {"raw_rate_flops": None} if solver == "double" else {}
    alone = result_of(status=status, problem=problem, result=figures, validation={"type": "none"})
    (found,) = results_of_log(hpgmp_report(alone, NOW))
    assert (found["status"], found["problem"]["run_type"]) == (status, solver)
    assert found["result"]["rate_flops"] is None
    for name in (f"{kind}_rate_flops", f"{kind}_rate_flops_ornl"):
        assert found["result"][name] == pytest.approx(figures[name])
    (benchmark,) = results_of_log(hpgmp_report(result_of(), NOW))
    assert benchmark["problem"]["run_type"] == "benchmark"
    assert [body["problem"]["run_type"] for body in checked([found, benchmark])] == [solver, "benchmark"]
    assert [change.after for change in compared([found], [found], 0.05)] == [pytest.approx(rate_of(alone.as_dict()))]
    assert compared([found], [benchmark], 0.05) == []


def test_a_run_that_breaks_a_rule_says_so_after_the_references_sections():
    report = hpgmp_report(result_of(rules=BROKEN), NOW)
    assert "HPGMP result is VALID" in report
    assert report.endswith(f"Rules=NOT ADMISSIBLE\nWritten by mxpeak::Broken rule=indices: {VIOLATION['text']}\n")


def test_without_double_there_are_no_keys_of_the_reference():
    alone = figures_of(double_time_s=None, double_solves=None, double_phases={})
    assert "(reference)=" not in hpgmp_report(result_of(result=alone), NOW)


def test_no_two_lines_of_the_report_are_the_same_key_but_for_those_of_the_coarse_grids():
    lines = [line.split("=")[0] for line in hpgmp_report(result_of(), NOW).splitlines()[1:]]
    repeated = {line for line in lines if lines.count(line) > 1}
    assert all(re.match("Multigrid Information::Coarse Grids::", line) for line in repeated)
    assert len(repeated) == 5


# --- unknown values and NaN -------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", [BARE, emptied(None), emptied(math.nan)], ids=["bare", "none", "nan"])
def test_nothing_crashes_on_what_is_not_known_or_not_a_number(result: Result):
    assert "HPGMP result is=INVALID." in hpgmp_report(result, NOW)
    assert verdict(result, verbose=True).split("\n")[0].startswith(result.mark)
    assert len(scoreboard([result]).splitlines()) >= 4
    assert "hpg-mxp" in html_report(document([result]))
    assert repr(result).startswith(f"Result(hpg-mxp, {result.status}, ")


def test_what_is_not_known_has_no_line_and_what_is_not_a_number_is_nan():
    assert keys(hpgmp_report(BARE, NOW))["Final Summary"] == ["HPGMP result is"]
    assert "Setup Time" not in hpgmp_report(emptied(None), NOW)
    assert "Setup Information::Setup Time=nan\n" in hpgmp_report(emptied(math.nan), NOW)
