"""HPG-MxP's report by the reference's key names, and the same result for people, on the page and by its schema."""

from __future__ import annotations

import json
import math
import re
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mxpeak.bench.registry import BENCHMARKS
from mxpeak.records import Result, document
from mxpeak.report.hpgmp_text import hpgmp_report
from mxpeak.report.html import html_report
from mxpeak.report.scoreboard import scoreboard, sweep
from mxpeak.report.sparse_text import precision_text, rows_text, sparse_case_text
from mxpeak.report.text import headline, phase_table, verdict

HERE = Path(__file__).parent
NOW = datetime(2025, 3, 7, 14, 5, 9)
SCHEMA = json.loads((files("mxpeak") / "schema" / "result-1.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

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
    "Written by mxpeak": ["Version", "Date", "Rules"],
}  # fmt: skip
#: Those of which nothing is measured here.
UNMEASURED = {
    "Memory used for OptimizeProblem data (Gbytes)", "Memory used for linear system and CG (Gbytes)",
    "Num MGs", "Num MGs (reference)", "  DDOT", "WAXPBY", "SpMV (copy)", "SpMV (halo)",
    "Optimization phase time vs reference SpMV+MG time",
}  # fmt: skip

#: Seconds of 12 mixed and of 10 double solves, and the flops of a solve in the reference's counting.
MIXED_S = {"gs": 30.25, "spmv": 8.5, "ortho": 16.0, "restriction": 3.125, "prolongation": 0.25, "update": 0.75}
DOUBLE_S = {"gs": 40.0, "spmv": 11.0, "ortho": 26.5, "restriction": 4.25, "prolongation": 0.375, "update": 1.125}
FLOPS = {"gs": 1.2e11, "spmv": 3.7e10, "ortho": 8.9e10, "restriction": 4e9, "prolongation": 0.0, "update": 1e9}
TOTAL = sum(FLOPS.values())


def phases(seconds: dict[str, float], solves: int) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "time_s": time_s,
            "max_s": 1.01 * time_s,
            "min_s": 0.99 * time_s,
            "flops": solves * FLOPS[name],
            "bytes": 4.0 * solves * FLOPS[name],
            "calls": 2 * 310 * solves,
            "share_of_limit": 0.75,
        }
        for name, time_s in seconds.items()
    }


def level(k: int) -> dict[str, Any]:
    n = 104 >> k
    return {
        "nx": n,
        "ny": n,
        "nz": n,
        "rows": 2 * n**3,
        "nnz": (3 * n - 2) ** 2 * (6 * n - 2),
        "colours": 8,
        "value_precision": "fp16" if k < 2 else "fp32",
        "vector_precision": "fp32",
        "storage": "packed",
        "bytes": 200 * n**3,
        "index_bytes": 100 * n**3,
    }


def problem_of(**values: Any) -> dict[str, Any]:
    return {
        "nx": 104,
        "ny": 104,
        "nz": 104,
        "npx": 1,
        "npy": 1,
        "npz": 2,
        "gnx": 104,
        "gny": 104,
        "gnz": 208,
        "rows": level(0)["rows"],
        "nnz": level(0)["nnz"],
        "nonsymmetric": False,
        "matrix": None,
        "restart": 30,
        "max_iterations": 300,
        "levels": [level(k) for k in range(4)],
        "storage": "packed",
        "smoother": "coloured",
        "colouring": "octants",
        "ranks": 2,
        "threads": 4,
        "setup_s": 0.3125,
        "optimize_s": 0.1875,
        "memory_bytes": {"mixed": 5 * 2**28, "double": 2**31, "setup": 2**29, "reference_formula": 1_700_000_000},
        "rt_s": 60.0,
        "larger_mesh": 88,
        "precision": {"mg": ["fp16", "fp16", "fp32", "fp32"], "krylov": "fp32", "vectors": "fp32"},
        **values,
    }


def figures_of(**values: Any) -> dict[str, Any]:
    penalty = 2305 / 2382
    raw, double = 12 * TOTAL / 60.0, 10 * TOTAL / 85.0
    return {
        "rate_flops": raw * penalty,
        "raw_rate_flops": raw,
        "double_rate_flops": double,
        "speedup": raw * penalty / double,
        "rate_flops_reference": raw * penalty,
        "rate_flops_ornl": 0.77 * raw * penalty,
        "raw_rate_flops_ornl": 0.77 * raw,
        "double_rate_flops_ornl": 0.77 * double,
        "time_s": 60.0,
        "double_time_s": 85.0,
        "solves": 12,
        "double_solves": 10,
        "iterations": 3600,
        "fraction_of_limit": 0.7125,
        "limit": {"name": "read bandwidth", "rate_bytes": 2.05e10},
        "emulated": False,
        "flops": {**{name: 12 * count for name, count in FLOPS.items()}, "total": 12 * TOTAL},
        "double_flops": {**{name: 10 * count for name, count in FLOPS.items()}, "total": 10 * TOTAL},
        "double_phases": phases(DOUBLE_S, 10),
        "speedup_by_motif": {
            **{name: penalty * 1.2 * DOUBLE_S[name] / MIXED_S[name] for name in MIXED_S},
            "total": raw * penalty / double,
        },
        "beside": [
            {
                "label": "official",
                "storage": "ell",
                "precision": "fp32",
                "rate_flops": 3.9e10,
                "raw_rate_flops": 4.03e10,
            }
        ],
        "dot_allreduce_s": {"min": 0.5, "max": 0.75, "mean": 0.625},
        **values,
    }


def check_of(**values: Any) -> dict[str, Any]:
    return {
        "passed": True,
        "residual": 9.9e-10,
        "threshold": 1e-9,
        "formula": "||b - A x|| / ||b||",
        "iterations": 2382,
        "double_iterations": 2305,
        "mixed_iterations": 2382,
        "penalty": 2305 / 2382,
        "type": "standard",
        "ranks": 2,
        "double_residual": 9.75e-10,
        "mixed_residual": 9.9e-10,
        "double_initial": 512.0,
        "mixed_initial": 512.0,
        "max_error": 3e-9,
        "history": {"double": [1.0, 1e-5, 9.75e-10], "mixed": [1.0, 2e-4, 3e-8, 9.9e-10]},
        **values,
    }


def result_of(**sections: Any) -> Result:
    made: dict[str, Any] = {
        "benchmark": "hpg-mxp",
        "status": "valid",
        "problem": problem_of(),
        "result": figures_of(),
        "validation": check_of(),
        "rules": {"mode": "official", "admissible": True, "violations": []},
        "phases": phases(MIXED_S, 12),
        "samples_s": 12 * [5.0],
        "software": {"mxpeak": "0.1.0"},
    }
    return Result(**{**made, **sections})


VIOLATION = {"rule": "indices", "text": "indices of two bytes <in --storage packed> are not cleared"}
BROKEN = {"mode": "explore", "admissible": False, "violations": [VIOLATION]}
FAILED = result_of(
    status="invalid",
    rules=BROKEN,
    validation=check_of(passed=False, residual=2e-4, mixed_residual=2e-4, mixed_iterations=10000, penalty=0.2305),
)


def keys(report: str) -> dict[str, list[str]]:
    """The keys by section, in the order of the file."""
    found: dict[str, list[str]] = {}
    for line in report.splitlines()[2:]:
        name, key = line.split("=", 1)[0].rsplit("::", 1)
        found.setdefault(name, []).append(key)
    return found


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


def test_multigrid_is_smoothing_restriction_and_prolongation_together():
    found = values(hpgmp_report(result_of(), NOW))
    assert float(found["Benchmark Time Summary::MG"]) == 30.25 + 3.125 + 0.25
    assert float(found["Floating Point Operations Summary::Raw MG"]) == 12 * (1.2e11 + 4e9)


def test_the_products_of_all_ranks_are_told_as_those_of_one():
    assert values(hpgmp_report(result_of(), NOW))["Benchmark Time Summary::Num SpMVs"] == str(310 * 12)


@pytest.mark.parametrize(("time_s", "short"), [(60.0, True), (1799.9, True), (1800.0, False), (7200.0, False)])
def test_a_run_below_half_an_hour_is_valid_but_told_to_be_too_short(time_s: float, short: bool):
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


def test_a_run_that_breaks_a_rule_says_so_after_the_references_sections():
    report = hpgmp_report(result_of(rules=BROKEN), NOW)
    assert "HPGMP result is VALID" in report
    assert report.endswith(f"Rules=NOT ADMISSIBLE\nWritten by mxpeak::Broken rule=indices: {VIOLATION['text']}\n")


def test_without_double_there_are_no_keys_of_the_reference():
    alone = figures_of(double_time_s=None, double_solves=None, double_phases={})
    assert "(reference)=" not in hpgmp_report(result_of(result=alone), NOW)


# --- what is not known or not a number --------------------------------------------------------------------------


BARE = Result(benchmark="hpg-mxp", status="aborted")


def emptied(fill: float | None) -> Result:
    """A result whose numbers are all `fill`."""

    def empty(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: empty(item) for key, item in value.items()}
        if isinstance(value, list):
            return [empty(item) for item in value]
        return fill if isinstance(value, float) else value

    body = result_of()
    return result_of(
        status="invalid",
        problem=empty(body.problem),
        result=empty(body.result),
        validation=empty(body.validation),
        phases=empty(body.phases),
        samples_s=[],
    )


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


# --- for people -------------------------------------------------------------------------------------------------


def test_the_verdict_says_accuracy_size_and_speed_up_and_on_request_both_countings_and_the_plain_figure():
    lines = verdict(result_of()).splitlines()
    assert lines == [
        "PASSED  hpg-mxp  48.6 GFLOP/s  (71.2 % of read bandwidth at 20.5 GB/s)  ADMISSIBLE",
        "  mixed 2382 iterations to 9.90e-10, double 2305: penalty 0.968; max |x - 1| 3.00e-09 "
        "(standard validation on 2 ranks)",
        "  104x104x104 a rank, 1x1x2 ranks, 2.25 million rows, mg fp16/fp32 krylov fp32 vectors fp32, packed, "
        "time 60.0 s",
        "  1.65 times double's 29.5 GFLOP/s",
    ]
    assert verdict(result_of(), verbose=True).splitlines()[:7] == [
        *lines[:3],
        "  memory 1.25 GiB, in which double alone could hold 88x88x88 a rank",
        lines[3],
        "  in the counting of the reference code 48.6 GFLOP/s (raw 50.2 GFLOP/s), of ORNL 37.4 GFLOP/s "
        "(raw 38.7 GFLOP/s)",
        "  beside it, official, ell/fp32: 39.0 GFLOP/s (raw 40.3 GFLOP/s)",
    ]


def test_a_solver_that_missed_the_threshold_says_how_far_it_came():
    lines = verdict(FAILED).splitlines()
    assert lines[0].startswith("FAILED  hpg-mxp")
    assert lines[0].endswith("NOT ADMISSIBLE")
    assert lines[1].startswith("  mixed 10000 iterations only to 2.00e-04, not to 1.00e-09, double 2305: penalty 0.231")
    assert lines[-1] == f"  broken rule indices: {VIOLATION['text']}"
    neither = verdict(result_of(validation=check_of(double_residual=3e-7, double_iterations=10000)))
    assert "double 10000 iterations only to 3.00e-07, not to 1.00e-09: penalty" in neither


def test_where_nothing_but_the_rate_is_known_no_line_is_empty():
    bare = {"rate_flops": 1e9, "time_s": 2.0}
    text = verdict(result_of(result=bare, problem={}, validation={}, phases={}))
    assert text.splitlines()[0] == "PASSED  hpg-mxp  1.00 GFLOP/s  ADMISSIBLE"
    assert text.splitlines()[2:] == ["  time 2.00 s"]


def test_verbose_tells_motifs_with_their_share_of_the_limit_and_mixed_against_double():
    table = phase_table(result_of()).splitlines()
    assert table[0].split() == ["phase", "mean", "s", "max", "s", "share", "rate", "calls", "of", "limit"]
    assert [line.split()[0] for line in table[1:4]] == ["gs", "ortho", "spmv"]
    assert all(line.endswith("75.0 %") for line in table[1:])
    motifs = verdict(result_of(), verbose=True).split("motif")[1].splitlines()
    assert motifs[0].split() == ["mixed", "s", "a", "solve", "double", "s", "a", "solve", "speed-up"]
    assert motifs[1].split() == ["gs", "2.52", "4.00", "1.54"]


def test_a_matrix_of_ones_own_is_named_instead_of_its_mesh():
    mesh = dict.fromkeys(["nx", "ny", "nz", "npx", "npy", "npz", "gnx", "gny", "gnz", "larger_mesh"])
    own = result_of(problem=problem_of(matrix="bone.mtx", rows=986_703, **mesh), validation=check_of(max_error=None))
    VALIDATOR.validate(document([own]))
    assert sparse_case_text(own.problem) == "bone.mtx fp16/fp32 packed"
    assert "\n  bone.mtx, 986703 rows, mg fp16" in verdict(own)
    assert "max |x - 1|" not in verdict(own)
    assert "Global nx" not in hpgmp_report(own, NOW)
    assert "Linear System Information::Number of Equations=986703\n" in hpgmp_report(own, NOW)


def test_the_scoreboard_sets_mixed_beside_double_and_a_sweep_names_mesh_grid_precision_and_storage():
    row = scoreboard([result_of()]).splitlines()[2]
    assert row == "hpg-mxp     48.6 GFLOP/s    71 % of memory       20.5 GB/s  PASSED  1.6 × double"
    row = sweep([result_of()]).splitlines()[1]
    assert "  104x104x104 1x1x2 fp16/fp32 packed  " in row
    assert row.endswith("PASSED  ADMISSIBLE")


def test_the_repr_is_one_line_of_plain_values():
    assert repr(result_of()) == (
        "Result(hpg-mxp, valid, 48.6 GFLOP/s, nx=104, ny=104, nz=104, npx=1, npy=1, npz=2, storage=packed)"
    )


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (2197, "2197 rows"),
        (999_499, "999499 rows"),
        (2_249_728, "2.25 million rows"),
        (3 * 10**9, "3.00 billion rows"),
        (1_233_125_376_000, "1.23 trillion rows"),
    ],
)
def test_rows_are_counted_in_words(rows: int, text: str):
    assert rows_text(rows) == text


@pytest.mark.parametrize(
    ("precision", "text"),
    [
        ("fp32", "fp32"),
        (None, ""),
        ({"mg": ["fp32", "fp32"], "krylov": "fp32"}, "fp32"),
        ({"mg": ["bf16", "fp32"], "krylov": "fp32", "vectors": None}, "mg bf16/fp32 krylov fp32"),
        ({}, ""),
    ],
)
def test_formats_are_told_once_where_all_are_the_same(precision: Any, text: str):
    assert precision_text(precision) == text


def test_the_limit_may_be_missing():
    bare = result_of(result=figures_of(fraction_of_limit=None, limit=None, beside=[]))
    VALIDATOR.validate(document([bare]))
    assert headline(bare) == "PASSED  hpg-mxp  48.6 GFLOP/s  ADMISSIBLE"
    assert "beside it" not in verdict(bare, verbose=True)


# --- the page and the schema ------------------------------------------------------------------------------------


def test_the_page_draws_both_histories_and_compares_motifs():
    page = html_report(document([result_of(rules=BROKEN)]))
    assert 'aria-label="Residual by step of the validation"' in page
    assert "double 9.75e-10 after step 2</li>" in page
    assert "mixed 9.90e-10 after step 3</li>" in page
    assert "<th>motif</th>" in page
    assert "<td>ortho</td><td>1.33</td><td>2.65</td><td>1.92</td>" in page
    assert "max |x - 1| 3.00e-09" in page
    assert "in the counting of the reference code 48.6 GFLOP/s" in page
    assert "<p>104x104x104 1x1x2 fp16/fp32 packed; memory 1.25 GiB" in page
    assert "indices of two bytes &lt;in --storage packed&gt;" in page


def test_nothing_in_a_history_can_break_out_of_the_page():
    evil = "</text><script>alert(1)</script>"
    page = html_report(document([result_of(validation=check_of(history={evil: [1.0, 1e-9], "mixed": None}))]))
    assert "<script>alert" not in page
    assert "&lt;/text&gt;&lt;script&gt;" in page


def test_the_schema_takes_results_that_passed_and_that_failed():
    VALIDATOR.validate(document([result_of(), FAILED]))
    lost = json.loads(json.dumps(emptied(math.nan).as_dict()))
    lost["validation"]["history"] = {"double": [None], "mixed": []}
    VALIDATOR.validate(lost)
    assert Result.from_dict(lost).as_dict() == lost


def without(body: dict[str, Any], path: str) -> dict[str, Any]:
    *way, last = path.split(".")
    section = body = json.loads(json.dumps(body))
    for name in way:
        section = section[int(name)] if isinstance(section, list) else section[name]
    del section[last]
    return body


@pytest.mark.parametrize(
    "path",
    [
        "rules",
        "rules.admissible",
        "result.raw_rate_flops",
        "result.double_rate_flops",
        "result.speedup",
        "result.rate_flops_reference",
        "result.rate_flops_ornl",
        "result.limit",
        "result.flops.gs",
        "result.double_phases.gs.time_s",
        "validation.double_iterations",
        "validation.mixed_iterations",
        "validation.penalty",
        "validation.type",
        "validation.double_residual",
        "validation.mixed_residual",
        "validation.max_error",
        "validation.history.mixed",
        "phases.gs",
        "phases.update.bytes",
        "problem.npz",
        "problem.levels",
        "problem.levels.3.nnz",
        "problem.precision",
        "problem.restart",
    ],
)
def test_a_promised_key_must_be_there(path: str):
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(without(result_of(rules=BROKEN).as_dict(), path))


@pytest.mark.parametrize(
    ("section", "changed"),
    [
        ("validation", {"penalty": 1.5}),
        ("validation", {"type": "none"}),
        ("validation", {"history": [1.0, 1e-9]}),
        ("validation", {"mixed_iterations": 2.5}),
        ("problem", {"levels": []}),
        ("problem", {"rows": -1}),
        ("result", {"solves": -1}),
        ("result", {"beside": [{}]}),
    ],
)
def test_values_out_of_their_range_are_refused(section: str, changed: dict[str, Any]):
    body = result_of().as_dict()
    body[section] = {**body[section], **changed}
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(body)


def test_no_two_lines_of_the_report_are_the_same_key_but_for_those_of_the_coarse_grids():
    lines = [line.split("=")[0] for line in hpgmp_report(result_of(), NOW).splitlines()[1:]]
    repeated = {line for line in lines if lines.count(line) > 1}
    assert all(re.match("Multigrid Information::Coarse Grids::", line) for line in repeated)
    assert len(repeated) == 5
