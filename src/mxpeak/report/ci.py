"""Write results, scans and comparisons as JUnit XML, or in the Bencher Metric Format (BMF).

JUnit has one test per case or node, which fails if the check failed, or if the case or node is slow. BMF has the rates
of the cases and nodes that passed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any
from xml.sax.saxutils import quoteattr

from mxpeak.records import Result, figure_text
from mxpeak.report.scan_text import measure_title, verdict
from mxpeak.report.scans import node_rates, scan_of_result
from mxpeak.report.summaries import case_text

Body = Mapping[str, Any]
#: Characters that XML 1.0 excludes.
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class CheckedCase:
    """A case or a node with its measures.

    failure    the reason why it failed; empty if it passed
    measures   values by name
    """

    suite: str
    name: str
    failure: str = ""
    time_s: float | None = None
    measures: Mapping[str, float] = field(default_factory=dict)


def formatted(form: str, cases: Sequence[CheckedCase]) -> str:
    """Return the cases in the format `junit` or `bencher`."""
    return {"junit": junit, "bencher": bencher}[form](cases)


def cases_of_results(results: Sequence[Body]) -> list[CheckedCase]:
    """Return one case per result, or one per node for a scan."""
    return [case for body in results for case in (_nodes(body) if body.get("benchmark") == "scan" else [_case(body)])]


def case_without_result(benchmark: str, skipped: int) -> CheckedCase:
    """Return the failed test of a benchmark that skipped cases or ended with an error."""
    why = f"cases that do not fit into memory: {skipped}" if skipped else "see the error on stderr"
    return CheckedCase(benchmark, "cases without a result", f"NO RESULT: {why}")


def _case(body: Body) -> CheckedCase:
    result = Result.from_dict({"benchmark": "", "status": "", **body})
    figures = {name: result.result.get(name) for name in ("rate_flops", "rate_bytes", "time_s", "fraction_of_limit")}
    measures = {name: float(value) for name, value in figures.items() if isinstance(value, int | float)}
    reasons = [warning.text for warning in result.warnings if warning.code == "slow"]
    failure = "" if result.status == "valid" else f"{result.mark}: {'; '.join(reasons) or figure_text(result.result)}"
    return CheckedCase(
        result.benchmark, case_text(result) or result.benchmark, failure, measures.get("time_s"), measures
    )


def _nodes(body: Body) -> Iterator[CheckedCase]:
    """Yield a case per node of a scan; a node fails if it is to be drained or replaced."""
    scan = scan_of_result(body)
    failures = {
        action["host"]: f"{action['severity']}: {'; '.join(action['reasons'])}"
        for action in scan.get("actions") or ()
        if action["severity"] != "monitor"
    }
    for host, rates in node_rates(scan["ranks"]).items():
        yield CheckedCase("scan", host, failures.get(host, ""), None, {k: median(r) for k, r in rates.items()})
    if scan["status"] != "alike" and not failures:  # for example, it is undecided, or a slow link has two ends
        yield CheckedCase("scan", "all nodes", " ".join(verdict(scan).split()), None, {})


def cases_of_comparison(body: Body) -> list[CheckedCase]:
    """Return one case per change of a comparison of runs, or one per node of a comparison of scans."""
    cases = []
    for change in body.get("nodes") or body["changes"]:
        failed = change["verdict"] in ("slower", "failed")
        percent = "" if change["change"] is None else f": {_measure(change)}{100 * change['change']:+.1f} %"
        name = change.get("name") or change["host"]
        failure = f"{change['verdict'].upper()}{percent}" * failed
        cases.append(CheckedCase("compare", name, failure, None, _values_of_change(change)))
    return cases


def _measure(change: Body) -> str:
    """Return the title of the measure that decides the verdict of a node, or an empty text for a run."""
    return f"{measure_title(change['measure'])} " if "measure" in change else ""


def _values_of_change(change: Body) -> dict[str, float]:
    """Return the values before and after a change, and the change; for a node, of each measure, such as gemm_change."""
    parts = change["measures"].items() if "measures" in change else [("", change)]
    return {
        f"{measure}_{key}".removeprefix("_"): values[key]
        for measure, values in parts
        for key in ("before", "after", "change")
        if values[key] is not None
    }


def junit(cases: Sequence[CheckedCase]) -> str:
    """Return the cases as JUnit XML, with a test suite per benchmark."""
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f"<testsuites{_counts(cases)}>"]
    for suite in dict.fromkeys(case.suite for case in cases):
        members = [case for case in cases if case.suite == suite]
        lines.append(f"  <testsuite name={_quoted(f'mxpeak.{suite}')}{_counts(members)}>")
        lines += [line for case in members for line in _test(case)]
        lines.append("  </testsuite>")
    return "\n".join([*lines, "</testsuites>", ""])


def _test(case: CheckedCase) -> Iterator[str]:
    seconds = "" if case.time_s is None else f' time="{case.time_s:.6f}"'
    yield f"    <testcase classname={_quoted(f'mxpeak.{case.suite}')} name={_quoted(case.name)}{seconds}>"
    if case.measures:
        yield "      <properties>"
        yield from (f'        <property name={_quoted(k)} value="{v!r}"/>' for k, v in case.measures.items())
        yield "      </properties>"
    if case.failure:
        yield f"      <failure message={_quoted(case.failure)}/>"
    yield "    </testcase>"


def _counts(cases: Sequence[CheckedCase]) -> str:
    return f' tests="{len(cases)}" failures="{sum(bool(case.failure) for case in cases)}"'


def _quoted(text: str) -> str:
    return quoteattr(NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text))


def bencher(cases: Sequence[CheckedCase]) -> str:
    """Return the measures of the cases that passed in the Bencher Metric Format."""
    passed = [case for case in cases if not case.failure]
    body: dict[str, dict[str, dict[str, float]]] = {}
    for case in passed:
        values = body.setdefault(f"{case.suite} {case.name}", {})
        values |= {name: {"value": value} for name, value in case.measures.items()}
    return json.dumps(body, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
