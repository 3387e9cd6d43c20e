"""Test JUnit XML and the Bencher Metric Format of results, scans and comparisons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from mxpeak.cli.main import main
from mxpeak.records import Result, document, to_json
from mxpeak.report.ci import CheckedCase, bencher, cases_of_results, junit
from mxpeak.verbs.scan import run as scan_run
from tests.support.cli import Bench, Comm, hpl_result, use_fakes
from tests.support.pages import result
from tests.support.scans import scan_body

SMALL = ["scan", "--ranks", "1", "--threads", "1", "-N", "40", "--nb", "16", "--rounds", "2"]


def failures_of(text: str) -> dict[str, str | None]:
    """Return the names of the failed tests with the messages."""
    root = ElementTree.fromstring(text)
    tests = {str(case.get("name")): case.find("failure") for case in root.iter("testcase")}
    failed = sum(case is not None for case in tests.values())
    assert (root.get("tests"), root.get("failures")) == (str(len(tests)), str(failed))
    return {name: None if case is None else case.get("message") for name, case in tests.items()}


def test_a_result_is_a_test_and_a_failed_result_has_no_rate() -> None:
    cases = cases_of_results([result("hpl", 1e12), {**result("hpcg", 2e9), "status": "invalid"}])
    first, second = failures_of(junit(cases)).values()
    assert first is None
    assert second == "FAILED: 2.00 GFLOP/s"
    (values,) = json.loads(bencher(cases)).values()
    assert values["rate_flops"] == {"value": 1e12}


def test_a_slow_result_names_the_limit_that_it_misses() -> None:
    why = {"code": "slow", "text": "2.00 GFLOP/s is below --min-gflops 5", "hint": ""}
    other = {"code": "drift", "text": "the speed changed", "hint": ""}
    cases = cases_of_results([{**result("hpl", 2e9), "status": "slow", "warnings": [other, why]}])
    assert list(failures_of(junit(cases)).values()) == ["TOO SLOW: 2.00 GFLOP/s is below --min-gflops 5"]


def test_text_is_escaped() -> None:
    name = 'a "b" <c> & \x1b[1m ü'
    assert list(failures_of(junit([CheckedCase("hpl", name, "x\x00<y>")])).items()) == [
        ('a "b" <c> & \N{REPLACEMENT CHARACTER}[1m ü', "x\N{REPLACEMENT CHARACTER}<y>")
    ]


def test_a_run_prints_only_the_format(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    use_fakes(monkeypatch, tmp_path, Comm(), Bench())
    assert main(["run", "hpl", "-N", "100,200", "--format", "junit"]) == 0
    assert len(failures_of(capsys.readouterr().out)) == 2
    assert main(["run", "hpl", "-N", "100", "--format", "bencher"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1
    assert main(["run", "hpl", "-N", "100", "--format", "xml"]) == 2
    assert "does not support --format xml; use text or hpl, or junit or bencher" in capsys.readouterr().err
    assert main(["run", "hpl", "-N", "100", "--format", "junit", "--json", "-"]) == 2


def test_cases_without_a_result_fail(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = Bench(lambda case: hpl_result(case) if case.n < 2000 else None)
    use_fakes(monkeypatch, tmp_path, Comm(), bench)
    assert main(["run", "hpl", "-N", "1000,2000", "--format", "junit"]) == 5
    found = failures_of(capsys.readouterr().out)
    assert list(found.values()) == [None, "NO RESULT: cases that do not fit into memory: 1"]
    use_fakes(monkeypatch, tmp_path, Comm(), bench)
    assert main(["run", "all", "--format", "junit"]) == 0, "these fakes have no cases of HPCG and HPG-MxP"
    suites = ElementTree.fromstring(capsys.readouterr().out).iter("testsuite")
    assert {"mxpeak.hpcg", "mxpeak.hpg-mxp"} <= {suite.get("name") for suite in suites if suite.get("failures") == "1"}


def test_a_scan_has_a_test_per_node(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    body = scan_body(4, slow={1: 0.5})
    monkeypatch.setattr(scan_run, "run_scan", lambda *_, **told: {**body, "warnings": []})
    assert main([*SMALL, "--format", "junit"]) == 3
    failures = failures_of(capsys.readouterr().out)
    assert list(failures) == ["node000", "node001", "node002", "node003"]
    assert [name for name, failure in failures.items() if failure] == ["node001"]
    assert str(failures["node001"]).startswith("drain: LU at 50 %")
    assert main([*SMALL, "--format", "bencher"]) == 3
    rates = json.loads(capsys.readouterr().out)
    assert set(rates) == {"scan node000", "scan node002", "scan node003"}
    assert set(rates["scan node000"]) == {"lu", "gemm", "read"}


def test_comparisons_have_a_test_per_case_or_node(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def write(name: str, body: dict[str, Any]) -> None:
        Path(name).write_text(to_json(body))

    for name, rate in (("a.json", 1e12), ("b.json", 0.8e12)):
        times = {"samples_s": [1.0, 1.001, 1.002]}
        write(name, document([Result.from_dict({**result("hpl", rate), **times})]))
    assert main(["compare", "a.json", "b.json", "--format", "junit"]) == 4
    (failure,) = failures_of(capsys.readouterr().out).values()
    assert failure == "SLOWER: -20.0 %"
    shared = {"run": {}, "config": {}, "machine": {}, "software": {}, "warnings": []}
    write("c.json", {**scan_body(4), **shared})
    write("d.json", {**scan_body(4, slow={2: 0.5}), **shared})
    assert main(["compare", "c.json", "d.json", "--format", "junit"]) == 4
    found = failures_of(capsys.readouterr().out)
    assert found["node002"] == "SLOWER: LU -50.0 %"
    assert sum(failure is not None for failure in found.values()) == 1
    assert main(["compare", "c.json", "d.json", "--format", "bencher"]) == 4
    values = json.loads(capsys.readouterr().out)["compare node001"]
    assert set(values) == {f"{name}_{key}" for name in ("lu", "gemm", "read") for key in ("before", "after", "change")}
    assert main(["compare", "c.json", "d.json", "--format", "junit", "--json", "-"]) == 2
