"""Test HPG-MxP's results as text, on the page, and by their schema."""

from __future__ import annotations

import json
import math
from typing import Any

import jsonschema
import pytest

from mxpeak.records import Result, document
from mxpeak.report.hpgmp_text import hpgmp_report
from mxpeak.report.html import html_report
from mxpeak.report.scoreboard import scoreboard, sweep
from mxpeak.report.sparse_text import precision_text, rows_text, sparse_case_text
from mxpeak.report.text import headline, phase_table, verdict
from tests.support.hpgmp_reports import (
    BROKEN,
    FAILED,
    NOW,
    VIOLATION,
    check_of,
    emptied,
    figures_of,
    problem_of,
    result_of,
)
from tests.support.result_file import VALIDATOR

# --- text -------------------------------------------------------------------------------------------------------


def test_the_verdict_says_accuracy_size_both_countings_and_speed_up_and_on_request_the_plain_figure():
    lines = verdict(result_of()).splitlines()
    assert lines == [
        "PASSED  hpg-mxp  48.6 GFLOP/s  (71.2 % of read bandwidth at 20.5 GB/s)  ADMISSIBLE",
        "  rate by the flop count of the reference code 48.6 GFLOP/s (raw 50.2 GFLOP/s), of ORNL 37.4 GFLOP/s "
        "(raw 38.7 GFLOP/s)",
        "  mixed 2382 iterations to 9.90e-10, double 2305: penalty 0.968; max |x - 1| 3.00e-09 "
        "(standard validation on 2 ranks)",
        "  104x104x104 per rank, 1x1x2 ranks, 2.25 million rows, multigrid values fp16/fp32, Krylov values fp32, "
        "vectors fp32, packed, time 60.0 s",
        "  1.65 times the double-precision rate of 29.5 GFLOP/s, from precision and compression together "
        "(--precision fp32: from precision alone)",
    ]
    assert verdict(result_of(), verbose=True).splitlines()[:7] == [
        *lines[:4],
        "  memory 1.25 GiB; in the same memory, double precision alone holds 88x88x88 per rank",
        *lines[4:],
        "  also measured, official, ell/fp32: 39.0 GFLOP/s (raw 40.3 GFLOP/s)",
    ]


def test_a_solver_that_missed_the_threshold_says_how_far_it_came():
    lines = verdict(FAILED).splitlines()
    assert lines[0].startswith("FAILED  hpg-mxp")
    assert lines[0].endswith("NOT ADMISSIBLE")
    assert lines[2].startswith("  mixed 10000 iterations to 2.00e-04, not 1.00e-09, double 2305: penalty 0.231")
    assert lines[-1] == f"  broken rule indices: {VIOLATION['text']}"
    neither = verdict(result_of(validation=check_of(double_residual=3e-7, double_iterations=10000)))
    assert "double 10000 iterations to 3.00e-07, not 1.00e-09: penalty" in neither


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
    assert motifs[0].split() == ["mixed", "s/solve", "double", "s/solve", "speedup"]
    assert motifs[1].split() == ["gs", "2.52", "4.00", "1.54"]


def test_a_matrix_of_ones_own_is_named_instead_of_its_mesh():
    mesh = dict.fromkeys(["nx", "ny", "nz", "npx", "npy", "npz", "gnx", "gny", "gnz", "larger_mesh"])
    own = result_of(problem=problem_of(matrix="bone.mtx", rows=986_703, **mesh), validation=check_of(max_error=None))
    VALIDATOR.validate(document([own]))
    assert sparse_case_text(own.problem) == "bone.mtx fp16/fp32 packed"
    assert "\n  bone.mtx, 986703 rows, multigrid values fp16" in verdict(own)
    assert "max |x - 1|" not in verdict(own)
    assert "Global nx" not in hpgmp_report(own, NOW)
    assert "Linear System Information::Number of Equations=986703\n" in hpgmp_report(own, NOW)


@pytest.mark.parametrize(
    ("storage", "smoother", "text"),
    [
        ("rows", "natural", "rows"),
        ("rows", "coloured", "rows colored sweeps"),
        ("rows", "reference", "rows sweeps in the reference order"),
        ("sell", "coloured", "sell"),
        ("sell", "natural", "sell natural sweeps"),
        ("packed", "natural", "packed"),
    ],
)
def test_a_case_names_the_order_of_the_sweeps_if_it_is_not_the_default(storage: str, smoother: str, text: str) -> None:
    assert sparse_case_text({"storage": storage, "smoother": smoother}) == text


def test_the_scoreboard_has_mixed_and_double_rates_and_a_sweep_names_its_settings():
    row = scoreboard([result_of()]).splitlines()[3]
    assert row == "hpg-mxp  48.6 GFLOP/s  71 of 20.5 GB/s  memory  PASSED  1.6 × double"
    row = sweep([result_of()]).splitlines()[1]
    assert "  104x104x104 1x1x2 fp16/fp32 packed  " in row
    assert row.split()[-2:] == ["PASSED", "ADMISSIBLE"]


def test_the_scoreboard_names_both_countings_and_the_precisions():
    compressed = {"mg": ["bf16"] * 4, "krylov": "bf16", "vectors": "fp32"}
    _, _, _, _, _, verdict, *notes, limits, compared = scoreboard(
        [result_of(problem=problem_of(precision=compressed))]
    ).splitlines()
    assert verdict == "The result is valid."
    assert notes == [
        "hpg-mxp: rate by the flop count of the reference code 48.6 GFLOP/s, of ORNL",
        "  37.4 GFLOP/s.",
        "hpg-mxp: values bf16, vectors fp32; the speed-up over double comes from",
        "  precision and compression together.",
    ]
    assert f"{limits}{compared}" == (
        "The limits were measured in this run: reading memory. To compare a rate in"
        "  GFLOP/s with GB/s, mxpeak counts the bytes that must be moved."
    )


def test_one_format_of_all_is_said_to_be_that_of_values_and_vectors():
    same = problem_of(precision={"mg": ["fp32"] * 4, "krylov": "fp32", "vectors": "fp32"})
    assert scoreboard([result_of(problem=same)]).count("\nhpg-mxp: values and vectors fp32.\n") == 1


@pytest.mark.parametrize("values", ["bf16", "fp32", "fp64"])
def test_a_speed_up_is_called_one_of_compression_unless_a_run_with_fp32_values_tells_them_apart(values: str):
    problem = problem_of(precision={"mg": [values], "krylov": values, "vectors": "fp32"})
    between = {"fp32": {"rate_flops": 4e10, "over_double": 1.4, "speedup": 1.2, "time_s": 15.0, "solves": 3}}
    for measured, together in (({}, values == "bf16"), (between, False)):
        one = result_of(problem=problem, result=figures_of(between=measured))
        for text in (verdict(one), scoreboard([one]).replace("\n  ", " "), html_report(document([one]))):
            assert ("from precision and compression together" in text) == together


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
        ({"mg": ["bf16", "fp32"], "krylov": "fp32", "vectors": None}, "multigrid values bf16/fp32, Krylov values fp32"),
        ({"mg": ["bf16", "bf16"], "krylov": "bf16", "vectors": "fp32"}, "values bf16, vectors fp32"),
        ({}, ""),
    ],
)
def test_equal_formats_are_shown_once(precision: Any, text: str):
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
    assert "rate by the flop count of the reference code 48.6 GFLOP/s (raw 50.2 GFLOP/s), of ORNL 37.4 GFLOP/s" in page
    assert "<p>precisions: multigrid values fp16/fp32, Krylov values fp32, vectors fp32</p>" in page
    assert "<p>mesh 104×104×104 · ranks 1×1×2 · fp16/fp32 · storage packed; memory 1.25 GiB" in page
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
        ("validation", {"type": "other"}),
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
