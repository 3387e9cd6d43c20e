"""Convert scans to results, so that the commands for past runs also accept scans.

A result file of `mxpeak scan` contains one body with the schema mxpeak.scan/1. As a result, its benchmark is `scan`,
its rate is the median rate of HPL or LU of a unit, and `telemetry.scan` contains the ranks and the findings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from mxpeak.options import count_text
from mxpeak.records import SCHEMA_RESULT, Result
from mxpeak.report.scan_text import verdict
from mxpeak.report.summaries import Lines
from mxpeak.schema import check

SCAN = "scan"
SCHEMA_SCAN = "mxpeak.scan/1"
#: Keys of a scan in `telemetry.scan`.
OWN = (
    "status", "unit", "slow", "wrong", "undecided", "median", "groups", "actions", "exclude", "against", "ranks",
    "links", "link_count", "link_spreads", "link_measures", "link_hosts", "slow_links", "wrong_links", "adapters",
)  # fmt: skip
#: Keys of lists of links.
LINKS = ("links", "slow_links", "wrong_links")
#: Sections that scans share with results.
SHARED = ("run", "config", "machine", "software", "launch", "warnings")

Body = Mapping[str, Any]


def is_scan(body: Any) -> bool:
    """Return whether the content of a file is a scan."""
    return isinstance(body, Mapping) and body.get("schema") == SCHEMA_SCAN


@cache
def _schema() -> Mapping[str, Any]:
    schema: Mapping[str, Any] = json.loads(Path(check.__file__).with_name("scan-1.json").read_text(encoding="utf-8"))
    return schema


def scan_mismatch(body: Body) -> str:
    """Return the first mismatch of a scan with its schema as text, or an empty string if the scan matches."""
    if wrong := check.mismatch(body, _schema()):
        return wrong
    rates = (rate for rank in body["ranks"] for rounds in rank["rates"].values() for rate in rounds)
    if not all(rates):
        return "a rate in ranks is 0"
    count = len(body["ranks"])
    named = [finding["rank"] for finding in (*body["slow"], *body["wrong"])]
    named += [rank for finding in body["wrong"] for rank in finding.get("ranks", ())]
    named += [link[end] for name in LINKS for link in body.get(name, ()) for end in ("source", "dest")]
    named += [rank for finding in (*body["groups"], *body["undecided"]) for rank in finding["ranks"]]
    outside = [rank for rank in named if rank >= count]
    return f"a finding names rank {outside[0]}, but there are {count} ranks" if outside else ""


def result_of_scan(body: Body) -> dict[str, Any]:
    """Return a scan as a result; raise a ValueError if the scan does not match its schema."""
    if wrong := scan_mismatch(body):
        raise ValueError(wrong)
    hosts = len({rank["host"] for rank in body["ranks"]})
    passed = body["status"] == "alike"
    return {
        "schema": SCHEMA_RESULT,
        "benchmark": SCAN,
        "status": "valid" if passed else "invalid",
        "problem": {**body["problem"], "ranks": len(body["ranks"]), "hosts": hosts},
        "result": {"rate_flops": body["median"]["hpl" if "hpl" in body["median"] else "lu"]},
        "validation": {"passed": passed},
        **{name: body[name] for name in SHARED if name in body},
        "telemetry": {"scan": {name: body[name] for name in OWN if name in body}},
        "samples_s": [],
        "phases": {},
    }


def stored_scan_mismatch(result: Body) -> str:
    """Return the first mismatch of the scan in a result as text, or an empty string if the scan matches."""
    if "scan" not in (result.get("telemetry") or {}):
        return "it is a scan, but it has no telemetry.scan"
    return scan_mismatch(scan_of_result(result))


def scan_of_result(result: Body) -> dict[str, Any]:
    """Return the scan from which a result was made, without the shared sections that hold no measurements."""
    scan: Body = result["telemetry"]["scan"]
    return {"schema": SCHEMA_SCAN, **scan, "problem": result["problem"], "software": result.get("software") or {}}


def node_rates(ranks: Sequence[Body]) -> dict[str, dict[str, list[float]]]:
    """Return the rates of each node of a scan by measure and round: the rate of the slowest unit in this round."""
    nodes: dict[str, dict[str, list[float]]] = {}
    for rank in (each for each in ranks if each.get("leads_unit", True)):
        node = nodes.setdefault(rank["host"], {})
        for measure, rounds in rank["rates"].items():
            node[measure] = [min(pair) for pair in zip(node.get(measure, rounds), rounds)]
    return nodes


class ScanLines(Lines):
    """The text lines that describe a scan."""

    def case(self, problem: Mapping[str, Any]) -> str:
        """Return the size of a scan, its number of ranks and its number of hosts."""
        ranks, hosts = problem.get("ranks", 0), problem.get("hosts", 0)
        return f"{super().case(problem)}, {count_text(ranks, 'rank')} on {count_text(hosts, 'host')}"

    def check_lines(self, result: Result) -> list[str]:
        """Return the verdict of a scan, one line per sentence."""
        return verdict(scan_of_result(result.as_dict())).splitlines()
