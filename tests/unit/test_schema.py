"""The result file: its schema is in the package, takes what a run gives, and refuses what lacks a promised key."""

from __future__ import annotations

import copy
import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import jsonschema
import pytest

from mxpeak.records import Caution, Result, document
from mxpeak.report.html import html_report
from mxpeak.report.text import cautions, phase_table, scoreboard, verdict

SCHEMA = json.loads((files("mxpeak") / "schema" / "result-1.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def hpl_result(**values: Any) -> Result:
    sections: dict[str, Any] = {
        "benchmark": "hpl", "status": "valid",
        "run": {"start_unix": 1.7e9, "end_unix": 1.7e9 + 32.5, "argv": ["run", "hpl"]},
        "problem": {"n": 20000, "nb": 256, "P": 2, "Q": 2},
        "result": {"rate_flops": 71.2e9, "time_s": 75.0, "fraction_of_limit": 0.891,
                   "limit": {"name": "DGEMM", "rate_flops": 79.9e9}, "emulated": False},
        "validation": {"passed": True, "residual": 3.21e-3, "threshold": 16.0, "formula": "||Ax-b||/…",
                       "iterations": None},
        "samples_s": [75.0],
        "phases": {"update": {"time_s": 70.0, "max_s": 71.0, "min_s": 69.0, "flops": 5e12, "bytes": 0, "calls": 79},
                   "rfact": {"time_s": 4.0, "max_s": 5.0, "min_s": 3.0, "flops": 1e11, "bytes": 0, "calls": 79}},
        "config": {"nb": {"value": [256], "origin": "flag"}},
        "telemetry": {"progress": [(1.0, 7e10), (40.0, 2.9e12), (75.0, 5.33e12)]},
        "warnings": [Caution("noisy", "other load <on> this host", "stop it")],
    }  # fmt: skip
    return Result(**{**sections, **values})


def test_the_schema_itself_is_valid():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_one_result_and_several_and_none_are_accepted():
    VALIDATOR.validate(document([hpl_result()]))
    VALIDATOR.validate(document([hpl_result(), hpl_result(status="invalid")]))
    VALIDATOR.validate(document([]))


def test_keys_may_be_added_to_sections():
    body = document([hpl_result()])
    body["telemetry"]["power_w"] = [100.0]
    body["result"]["rate_per_core"] = 1.0
    VALIDATOR.validate(body)


@pytest.mark.parametrize(
    "path",
    [
        "schema", "status", "benchmark", "warnings", "config", "result.rate_flops", "result.time_s",
        "result.fraction_of_limit", "result.limit", "result.limit.name", "result.limit.rate_flops", "result.emulated",
        "validation.passed", "validation.residual", "validation.threshold", "validation.formula",
        "validation.iterations", "config.nb.origin", "config.nb.value",
    ],
)  # fmt: skip
def test_a_promised_key_must_be_there(path: str):
    body = copy.deepcopy(document([hpl_result()]))
    *way, last = path.split(".")
    section = body
    for name in way:
        section = section[name]
    del section[last]
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(body)


@pytest.mark.parametrize(
    ("section", "values"),
    [("status", "fine"), ("result", {"rate_flops": -1.0}), ("validation", {"iterations": -1}), ("benchmark", "hpx")],
)
def test_values_out_of_their_range_are_refused(section: str, values: Any):
    body = document([hpl_result()])
    body[section] = {**body[section], **values} if isinstance(values, dict) else values
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(body)


# --- the same result for people ---------------------------------------------------------------------------------


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


def test_a_result_survives_its_own_json():
    result = hpl_result()
    assert Result.from_dict(json.loads(json.dumps(result.as_dict()))).as_dict() == result.as_dict()


def test_without_a_limit_no_share_is_shown():
    bare = hpl_result(result={"rate_flops": 1e9, "time_s": 1.0, "fraction_of_limit": None, "limit": None})
    assert verdict(bare).splitlines()[0] == "PASSED  hpl  1.00 GFLOP/s"


def test_verbose_adds_the_phases_the_longest_first():
    table = phase_table(hpl_result())
    assert [line.split()[0] for line in table.splitlines()] == ["phase", "update", "rfact"]
    assert "93.3 %" in table
    assert verdict(hpl_result(), verbose=True).endswith(table)


def test_the_scoreboard_has_a_row_a_result():
    rows = scoreboard([hpl_result(), hpl_result(status="invalid")]).splitlines()
    assert len(rows) == 3
    assert rows[1].endswith("PASSED")
    assert rows[2].endswith("FAILED")
    assert "\x1b[" in scoreboard([hpl_result()], color=True)


def test_warnings_come_with_their_hint():
    assert cautions(hpl_result().warnings) == "warning: other load <on> this host [noisy]\n    hint: stop it\n"


def test_the_page_is_one_file_that_asks_the_network_for_nothing():
    page = html_report(document([hpl_result()]))
    assert not re.search(r"\b(src|href)=|https?:|url\(|@import", page)
    assert page.count("<svg") == 2
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

    Checker().feed(html_report(document([hpl_result(), hpl_result(status="invalid")])))
    assert open_tags == []


def test_nothing_in_a_result_can_break_out_of_the_page():
    evil = "</script><script>alert(1)</script>"
    result = hpl_result(machine={evil: evil}, warnings=[Caution(evil, evil, evil)], problem={evil: 1})
    result.phases[evil] = {"time_s": 1.0}
    result.config[evil] = {"value": evil, "origin": evil}
    page = html_report(document([result]))
    assert "<script>alert" not in page
    assert page.count("<script") == page.count("</script>") == 1


def test_the_json_in_the_page_is_the_document():
    body = document([hpl_result(), hpl_result(machine={"name": "<&>"})])
    text = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', html_report(body), re.DOTALL)
    assert text
    assert json.loads(text[1]) == json.loads(json.dumps(body))


def test_a_page_can_be_made_of_no_result_or_a_bare_one():
    assert "no results" in html_report(document([]))
    assert "ABORTED" in html_report(document([Result(benchmark="hpl", status="aborted")]))
