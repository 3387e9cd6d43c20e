"""Test that the schema in the package accepts the results of runs, and refuses results without a required key."""

from __future__ import annotations

import copy
import json
import re
from html.parser import HTMLParser
from typing import Any

import jsonschema
import pytest

from mxpeak.records import Caution, Result, document
from mxpeak.report.columns import folded
from mxpeak.report.html import html_report
from mxpeak.report.scoreboard import scoreboard, sweep
from mxpeak.report.text import cautions, phase_table, verdict
from tests.support.result_file import SCHEMA, VALIDATOR
from tests.support.turns import for_each


def hpl_result(**values: Any) -> Result:
    sections: dict[str, Any] = {
        "benchmark": "hpl",
        "status": "valid",
        "run": {"start_unix": 1.7e9, "end_unix": 1.7e9 + 32.5, "argv": ["run", "hpl"]},
        "problem": {"n": 20000, "nb": 256, "P": 2, "Q": 2},
        "result": {
            "rate_flops": 71.2e9,
            "time_s": 75.0,
            "fraction_of_limit": 0.891,
            "limit": {"name": "DGEMM", "rate_flops": 79.9e9},
            "emulated": False,
        },
        "validation": {
            "passed": True,
            "residual": 3.21e-3,
            "threshold": 16.0,
            "formula": "||Ax-b||/…",
            "iterations": None,
        },
        "samples_s": [75.0],
        "phases": {
            "update": {"time_s": 70.0, "max_s": 71.0, "min_s": 69.0, "flops": 5e12, "bytes": 0, "calls": 79},
            "rfact": {"time_s": 4.0, "max_s": 5.0, "min_s": 3.0, "flops": 1e11, "bytes": 0, "calls": 79},
        },
        "config": {"nb": {"value": [256], "origin": "flag"}},
        "telemetry": {"progress": [(1.0, 7e10), (40.0, 2.9e12), (75.0, 5.33e12)]},
        "warnings": [Caution("noisy", "other load <on> this host", "stop it")],
    }
    return Result(**{**sections, **values})


def mxp_result(**values: Any) -> Result:
    sections: dict[str, Any] = {
        "benchmark": "hpl-mxp",
        "status": "valid",
        "problem": {
            "n": 20000,
            "nb": 256,
            "P": 2,
            "Q": 2,
            "precision": "fp16",
            "generator": "sqrt-n",
            "unpreconditioned_factor": 0.9238,
            "predicted_unpreconditioned_steps": 198,
            "growth": 1.5,
            "condition": 120.0,
        },
        "result": {
            "rate_flops": 142.4e9,
            "time_s": 37.5,
            "lu_rate_flops": 152e9,
            "lu_time_s": 35.1,
            "refine_time_s": 2.25,
            "fraction_of_limit": 0.9,
            "limit": {"name": "SGEMM", "rate_flops": 158.2e9},
            "emulated": False,
        },
        "validation": {
            "passed": True,
            "residual": 0.0321,
            "threshold": 16.0,
            "formula": "||Ax-b||/…",
            "iterations": 2,
            "history": [4.1e6, 310.0, 0.0321],
            "lu_proof": {"passed": True, "error": 1.2e-4, "bound": 9.8e-3, "probes": 4, "worst": 3},
        },
        "rules": {"mode": "official", "admissible": True, "violations": []},
        "samples_s": [37.5],
    }
    return Result(**{**sections, **values})


VIOLATION = {"rule": "lu-needed", "text": "about 43 <steps> & no more"}
BROKEN = {"mode": "official", "admissible": False, "violations": [VIOLATION]}


def test_the_schema_itself_is_valid():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_one_result_and_several_and_none_are_accepted():
    VALIDATOR.validate(document([hpl_result()]))
    VALIDATOR.validate(document([hpl_result(), hpl_result(status="invalid")]))
    VALIDATOR.validate(document([]))
    VALIDATOR.validate(document([hpl_result(), mxp_result(), mxp_result(rules=BROKEN, status="invalid")]))


def test_keys_may_be_added_to_sections():
    body = document([hpl_result()])
    body["telemetry"]["power_w"] = [100.0]
    body["result"]["rate_per_core"] = 1.0
    VALIDATOR.validate(body)


@for_each(
    "path",
    [
        "schema",
        "status",
        "benchmark",
        "warnings",
        "config",
        "result.rate_flops",
        "result.time_s",
        "result.fraction_of_limit",
        "result.limit",
        "result.limit.name",
        "result.limit.rate_flops",
        "result.emulated",
        "validation.passed",
        "validation.residual",
        "validation.threshold",
        "validation.formula",
        "validation.iterations",
        "config.nb.origin",
        "config.nb.value",
    ],
)
def test_a_promised_key_must_be_there(path: str):
    body = copy.deepcopy(document([hpl_result()]))
    *way, last = path.split(".")
    section = body["results"][0]
    for name in way:
        section = section[name]
    del section[last]
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(body)


@for_each(
    "path",
    [
        "rules",
        "rules.admissible",
        "rules.violations",
        "rules.violations.0.rule",
        "rules.violations.0.text",
        "result.lu_rate_flops",
        "result.refine_time_s",
        "result.emulated",
        "validation.history",
        "validation.lu_proof",
        "validation.lu_proof.passed",
        "validation.lu_proof.error",
        "validation.lu_proof.bound",
        "validation.iterations",
    ],
)
def test_a_promised_key_of_hpl_mxp_must_be_there(path: str):
    body = json.loads(json.dumps(mxp_result(rules=BROKEN).as_dict()))
    *way, last = path.split(".")
    section = body
    for name in way:
        section = section[int(name) if name.isdecimal() else name]
    VALIDATOR.validate(body)
    del section[last]
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(body)


def test_hpl_has_no_rules_of_a_list():
    assert hpl_result().as_dict()["rules"] == {}


@for_each(
    ("section", "values"),
    [("status", "fine"), ("result", {"rate_flops": -1.0}), ("validation", {"iterations": -1}), ("benchmark", "h p")],
)
def test_values_out_of_their_range_are_refused(section: str, values: Any):
    body = document([hpl_result()])
    (result,) = body["results"]
    result[section] = {**result[section], **values} if isinstance(values, dict) else values
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(body)


# --- the same result as text ------------------------------------------------------------------------------------


def test_the_verdict_says_validity_and_rate_in_one_breath():
    assert verdict(hpl_result()).splitlines() == [
        "PASSED  hpl  71.2 GFLOP/s  (89.1 % of DGEMM at 79.9 GFLOP/s)",
        "  scaled residual 0.00321 < threshold 16.0",
        "  N 20000 NB 256 2x2, time 75.0 s",
    ]


def test_the_verdict_of_a_failed_run_says_so_first():
    failed = hpl_result(status="invalid", validation={"residual": 4.5e8, "threshold": 16.0})
    assert verdict(failed).startswith("FAILED  hpl")
    assert "4.50e+08 is not below threshold 16.0" in verdict(failed)


def test_the_verdict_of_a_mixed_run_says_rules_proof_and_how_hard_the_system_was():
    assert verdict(mxp_result()).splitlines() == [
        "PASSED  hpl-mxp  142 GFLOP/s  (90.0 % of SGEMM at 158 GFLOP/s)  ADMISSIBLE",
        "  scaled backward error 0.0321 < threshold 16.0 after 2 steps of refinement",
        "  the LU is proven: error 1.20e-04 within its bound 0.00980",
        "  N 20000 NB 256 2x2 fp16 sqrt-n, time 37.5 s",
        "  LU 35.1 s at 152 GFLOP/s, refinement 2.25 s",
        "  the system: without the LU, a GMRES step leaves 0.924 of the residual, and about 198 steps are needed, "
        "growth 1.50, condition 120",
    ]


def test_each_broken_rule_is_listed_below_the_verdict_not_admissible():
    lines = verdict(mxp_result(rules=BROKEN)).splitlines()
    assert lines[0].endswith("  NOT ADMISSIBLE")
    assert lines[-1] == f"  broken rule lu-needed: {VIOLATION['text']}"


OWN = {**VIOLATION, "source": "mxpeak"}
EASY = {"mode": "official", "admissible": True, "meaningful": False, "violations": [OWN]}


def test_an_own_test_that_failed_is_named_everywhere_and_leaves_the_result_admissible():
    easy = mxp_result(rules=EASY)
    lines = verdict(easy).splitlines()
    assert lines[0].endswith("  ADMISSIBLE, fails mxpeak's own test: lu-needed")
    assert lines[-1] == f"  own test lu-needed: {VIOLATION['text']}"
    page = html_report(document([easy]))
    assert "<p>ADMISSIBLE, fails mxpeak&#x27;s own test: lu-needed</p>" in page
    assert "<li>own test lu-needed: about 43" in page
    assert scoreboard([easy]).splitlines()[-2] == "hpl-mxp: fails mxpeak's own test: lu-needed."
    both = {
        **EASY,
        "admissible": False,
        "violations": [{"rule": "mode", "text": "exploring", "source": "published"}, OWN],
    }
    last = scoreboard([mxp_result(rules=both)]).splitlines()[-2]
    assert last == "hpl-mxp: breaks published rules: mode; fails mxpeak's own test: lu-needed."
    jsonschema.validate(document([easy]), SCHEMA)


def test_how_ddd_was_derived_is_stated_where_its_result_is():
    text = "ddd is a_ii = 0.0198 * sum of |a_ij|, j != i: mxpeak's definition of departure from diagonal dominance"
    ddd = mxp_result(problem={**mxp_result().problem, "generator": "ddd", "diagonal_scale": 0.01976})
    assert text in verdict(ddd)
    assert text in html_report(document([ddd])).replace("&#x27;", "'")
    assert text not in verdict(mxp_result())


def test_an_emulated_rate_is_labelled_in_the_same_line_and_explained_under_it():
    emulated = mxp_result(result={**mxp_result().result, "emulated": True})
    lines = verdict(emulated).splitlines()
    assert lines[0].endswith("  emulated")
    assert lines[1] == "  fp16 is rounded in software: the convergence is that of fp16, the rate is that of fp32"


def test_an_lu_that_is_not_proven_says_so_with_its_bound():
    proof = {"passed": False, "error": 0.5, "bound": 0.01, "worst": 0.5, "spread": 0.5}
    for changed, says in (
        ({}, "error 0.500 beyond its bound 0.0100"),
        ({"worst": 3.0}, "an entry of (A - LU) v is 3.00 times what rounding explains"),
        ({"spread": 2.0}, "the mean square of (A - LU) v over 64 rows is 2.00 times"),
        ({"bound": 1.5}, "too wide to prove anything"),
        ({"error": None}, "not finite"),
    ):
        check = {**mxp_result().validation, "lu_proof": {**proof, **changed}}
        text = verdict(mxp_result(validation=check))
        assert "  the LU is NOT proven: " in text
        assert says in text
    assert "the LU is NOT proven" in html_report(document([mxp_result(validation=check)]))


def test_a_run_that_is_invalid_for_another_reason_does_not_call_a_small_residual_large():
    assert "0.0321 < threshold 16.0" in verdict(mxp_result(status="invalid"))


def test_a_sweep_shows_rules_where_a_benchmark_has_some():
    rows = sweep([hpl_result(), mxp_result(), mxp_result(rules=BROKEN)]).splitlines()
    assert [row.split("PASSED")[-1].strip() for row in rows[1:]] == ["", "ADMISSIBLE", "NOT ADMISSIBLE"]
    assert "list status" in rows[0]
    assert "list status" not in sweep([hpl_result()])


def test_the_page_draws_the_history_and_names_the_broken_rules():
    page = html_report(document([mxp_result(rules=BROKEN)]))
    assert 'aria-label="Backward error by step of refinement"' in page
    assert "NOT ADMISSIBLE" in page
    assert "lu-needed: about 43 &lt;steps&gt; &amp; no more" in page
    assert "2 steps of refinement" in page


@for_each("history", [[], [0.5], [0.0, 0.0], [16.0, 16.0], [None, 3.0]])
def test_a_history_that_makes_no_curve_has_none(history: list[float | None]):
    check = {**mxp_result().validation, "history": history}
    assert "Backward error by step" not in html_report(document([mxp_result(validation=check)]))


def test_a_result_survives_its_own_json():
    for result in (hpl_result(), mxp_result(rules=BROKEN)):
        assert Result.from_dict(json.loads(json.dumps(result.as_dict()))).as_dict() == result.as_dict()


def test_without_a_limit_no_share_is_shown():
    bare = hpl_result(result={"rate_flops": 1e9, "time_s": 1.0, "fraction_of_limit": None, "limit": None})
    assert verdict(bare).splitlines()[0] == "PASSED  hpl  1.00 GFLOP/s"


def test_verbose_adds_the_phases_the_longest_first():
    table = phase_table(hpl_result())
    assert [line.split()[0] for line in table.splitlines()] == ["phase", "update", "rfact"]
    assert "93.3 %" in table
    assert verdict(hpl_result(), verbose=True).endswith(table)


SHORT = {"admissible": False, "violations": [{"rule": "time", "text": "1 s"}, {"rule": "memory", "text": "1 %"}]}


def test_the_scoreboard_has_a_row_a_result_and_says_what_is_wrong_with_which():
    results = [hpl_result(), mxp_result(status="invalid"), mxp_result(rules=SHORT), mxp_result(rules=BROKEN)]
    results[0].result["rate_flops"] = 71.2e9
    _, _, head, *rows, _, verdict, of_lists, short, quarter, limits, page = scoreboard(
        results, page="out/report.html"
    ).splitlines()
    assert head.split() == ["rate", "%", "of", "limit", "check"]
    assert [row[head.index("check") :].split()[0] for row in rows] == ["PASSED", "FAILED", "PASSED", "PASSED"]
    assert rows[2].endswith("PASSED  2.0 × hpl")
    assert verdict == "3 of 4 results are valid. FAILED: hpl-mxp."
    assert of_lists == "hpl-mxp: breaks published rules: lu-needed."
    assert short == "HPL-MxP results can be submitted only from runs of 30 minutes (--rt 30m) that"
    assert quarter == "  use a quarter of the memory."
    assert limits == "The limits were measured in this run: matrix products (GEMM)."
    assert page == "Report: out/report.html"
    assert "\x1b[31mFAILED" in scoreboard(results, color=True)
    assert "\nThe result is valid. No result: hpcg, norms.\n" in scoreboard([hpl_result()], lost=["hpcg", "norms"])
    assert "\nThe result is not valid. FAILED: hpl-mxp. No result: hpl.\n" in scoreboard(results[1:2], lost=["hpl"])


def test_what_is_only_too_short_is_no_fault():
    page = html_report(document([mxp_result(rules=SHORT)]))
    assert "too short to submit" in page
    assert "NOT ADMISSIBLE" not in page
    assert verdict(mxp_result(rules=SHORT)).splitlines()[0].endswith("  too short to submit")
    assert "NOT" not in verdict(mxp_result(rules=SHORT)).splitlines()[0]


def case(nb: int, bcast: str, rate: float, status: str = "valid") -> Result:
    problem = {"n": 400, "nb": nb, "P": 1, "Q": 1, "bcast": bcast}
    argv = ["run", "hpl", "-N", "400", "--nb", "64,128", "--bcast=1ringM,long", "--json", "x", "-v"]
    return hpl_result(problem=problem, status=status, run={"argv": argv}, result={"rate_flops": rate, "time_s": 1.0})


def test_a_sweep_has_a_column_an_option_marks_the_best_and_says_how_to_repeat_it():
    cases = [
        case(64, "1ringM", 1e9),
        case(64, "long", 3e9),
        case(128, "1ringM", 2e9),
        case(128, "long", 9e9, "invalid"),
    ]
    head, *rows, best = sweep(cases).splitlines()
    assert head.split()[:2] == ["nb", "bcast"]
    assert [row.split()[:2] for row in rows] == [["64", "1ringM"], ["64", "long"], ["128", "1ringM"], ["128", "long"]]
    assert [row.endswith("*") for row in rows] == [False, True, False, False]
    assert best == "  * best: mxpeak run hpl -N 400 -v --nb 64 --bcast long"
    narrow = sweep(cases, width=50)
    assert "residual" not in narrow
    assert max(map(len, narrow.splitlines()[:-1])) <= 50


def test_phases_stand_under_those_that_they_are_part_of():
    phases = {name: {"time_s": t} for name, t in (("rfact", 1.0), ("gemm", 3.0), ("update", 4.0), ("pfact", 0.5))}
    rows = phase_table(hpl_result(phases=phases)).splitlines()[1:]
    assert [row.rstrip()[: len(row) - len(row.lstrip()) + 6].rstrip() for row in rows] == [
        "  update",
        "    gemm",
        "  rfact",
        "    pfact",
    ]


def test_repeats_are_summarized_by_best_median_and_spread():
    repeated = hpl_result(samples_s=[1.0, 1.2, 1.1], config={"repeat": {"value": 3, "origin": "flag"}})
    assert "  3 runs: best 1.00 s, median 1.10 s, spread 18.2 %" in verdict(repeated)
    assert "runs: best" not in verdict(hpl_result())


def test_long_lines_go_on_below_between_words():
    text = folded("  mixed 2382 iterations to 9.90e-10, double 2305: penalty 0.968; max |x - 1| 3.00e-09\n", 40)
    assert max(map(len, text.splitlines())) <= 40
    assert (
        " ".join(text.split()) == "mixed 2382 iterations to 9.90e-10, double 2305: penalty 0.968; max |x - 1| 3.00e-09"
    )
    row = "  phase     mean s     max s    share           rate  calls  of limit\n"
    assert folded(row, 40) == row, "a table's row has columns"


def test_warnings_come_with_their_hint():
    assert cautions(hpl_result().warnings) == "warning: other load <on> this host [noisy]\n    hint: stop it\n"


def test_the_page_is_one_file_that_asks_the_network_for_nothing():
    page = html_report(document([hpl_result()]))
    assert not re.search(r"\b(src|href)=|https?:|url\(|@import", page)
    assert "default-src 'none'" in page
    assert page.count("<svg") == 1
    assert "71.2 GFLOP/s" in page
    assert "PASSED" in page
    assert "prefers-color-scheme: dark" in page


def test_every_element_of_the_page_is_closed():
    open_tags: list[str] = []

    class Checker(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag != "meta":
                open_tags.append(tag)

        def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            pass

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

    Checker().feed(html_report(document([hpl_result(), mxp_result(), mxp_result(status="invalid", rules=BROKEN)])))
    assert open_tags == []


def test_nothing_in_a_result_can_break_out_of_the_page():
    evil = "</script><script>alert(1)</script>"
    result = hpl_result(machine={evil: evil}, warnings=[Caution(evil, evil, evil)], problem={evil: 1})
    result.phases[evil] = {"time_s": 1.0}
    result.config[evil] = {"value": evil, "origin": evil}
    page = html_report(document([result]))
    assert "<script>alert" not in page
    assert page.count("<script") == page.count("</script>") == 2, "the JSON, and the script of the page"


def test_the_json_in_the_page_is_the_document():
    body = document([hpl_result(), hpl_result(machine={"name": "<&>"})])
    text = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', html_report(body), re.DOTALL)
    assert text
    assert json.loads(text[1]) == json.loads(json.dumps(body))


def test_a_page_can_be_made_of_no_result_or_a_bare_one():
    assert "no results" in html_report(document([]))
    assert "ABORTED" in html_report(document([Result(benchmark="hpl", status="aborted")]))
