"""Test that scans of invented nodes under mpiexec compare nodes, groups of nodes and links."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mxpeak.verbs.scan.units import AGREES
from tests.support.ranks import MPIEXEC, needs_mpi

pytestmark = needs_mpi


def scan(tmp_path: Path, nodes: str, *flags: str) -> tuple[int, dict[str, Any], str]:
    """Run a scan of one rank per letter of `nodes`; equal letters are ranks of one invented node."""
    file = tmp_path / "scan.json"
    command: list[str] = []
    for node in nodes:
        each = ["-n", "1", "env", f"MXPEAK_NODE=node{node}", sys.executable, "-m", "mxpeak", "scan", "--threads", "1"]
        command += [":"] * bool(command) + [*each, "-N", "96", "--nb", "16", "--json", str(file), *flags]
    done = subprocess.run(
        [str(MPIEXEC), *command], capture_output=True, text=True, timeout=300, env={**os.environ}, check=False
    )
    body = json.loads(file.read_text()) if file.exists() else {}
    return done.returncode, body, done.stdout + done.stderr


def test_nodes_are_compared_under_mpi(tmp_path: Path) -> None:
    code, body, text = scan(tmp_path, "aabb", "--unit", "node", "--rounds", "2", "--tolerance", "99%")
    assert code in (0, 3), text  # ranks that share cores may have different rates
    assert body["wrong"] == []
    assert (body["unit"], body["problem"]["benchmark"], body["problem"]["precision"]) == ("node", "hpl", "fp64")
    assert all(0.0 < residual < 16.0 for rank in body["ranks"] for residual in rank["residuals"]["hpl"])
    assert [(rank["host"], rank["unit_ranks"], rank["leads_unit"]) for rank in body["ranks"]] == [
        ("nodea", "0-1", True), ("nodea", "0-1", False), ("nodeb", "2-3", True), ("nodeb", "2-3", False)
    ]  # fmt: skip
    assert [group["ranks"] for group in body["groups"]] == [[0, 2]]
    assert body["ranks"][0]["bits"] == body["ranks"][2]["bits"], "both nodes factor the same matrix"


@pytest.mark.parametrize(
    ("benchmark", "own", "of_nodes"), [("hpl", "hpl", "HPL of 2 nodes"), ("hpl-mxp", "lu", "LU of 2 nodes")]
)
def test_groups_are_compared_under_mpi(tmp_path: Path, benchmark: str, own: str, of_nodes: str) -> None:
    flags = ("--unit", "group", "--rounds", "3", "--tolerance", "99%")
    chosen = () if benchmark == "hpl" else ("--benchmark", benchmark)
    code, body, text = scan(tmp_path, "abcd", *flags, *chosen)
    assert code in (0, 3), text  # ranks that share cores may have different rates
    assert body["wrong"] == []
    assert body["problem"]["benchmark"] == benchmark
    assert all(rank["bits"][of_nodes] == [AGREES] for rank in body["ranks"])
    assert all(len(rank["rates"][of_nodes]) == 1 for rank in body["ranks"])
    assert all(set(rank.get("residuals", {})) == ({own, of_nodes} if own == "hpl" else set()) for rank in body["ranks"])
    assert of_nodes in text


def test_too_few_nodes_for_groups(tmp_path: Path) -> None:
    code, body, text = scan(tmp_path, "ab", "--unit", "group", "--rounds", "1")
    assert (code, body) == (2, {})
    assert "--group 2 needs at least 4 nodes" in text


def test_links_between_nodes_under_mpi(tmp_path: Path) -> None:
    code, body, text = scan(
        tmp_path, "aabb", "--links", "--rounds", "2", "--tolerance", "99%", "--link-tolerance", "99%"
    )
    assert code in (0, 3), text  # ranks that share cores may have different rates
    ends = {(link["source"], link["dest"]): link["kind"] for link in body["links"]}
    inside, between = "within a node", "between nodes"
    assert ends == {
        (0, 1): inside, (1, 0): inside, (2, 3): inside, (3, 2): inside,
        (0, 2): between, (2, 0): between, (1, 3): between, (3, 1): between,
    }  # fmt: skip
    assert all(link["bandwidth"] > 0 and link["latency"] > 0 for link in body["links"])
    assert (body["slow_links"], body["wrong_links"], body["wrong"]) == ([], [], [])
    of_rates = {"spread", "scatter", "faster"}
    assert {each["reason"] for each in body["undecided"]} <= of_rates, "the bits of all ranks are decided"
    assert (code == 3) == bool(body["slow"] or body["undecided"]), text
    assert code == 3 or "all 8 links agree" in text


def test_links_below_an_absolute_limit(tmp_path: Path) -> None:
    code, body, text = scan(
        tmp_path,
        "ab",
        "--links",
        "--rounds",
        "1",
        "--tolerance",
        "99%",
        "--link-tolerance",
        "99%",
        "--min-link",
        "900TB/s",
    )
    assert code == 3, text
    assert {(link["source"], link["dest"], link["measure"]) for link in body["slow_links"]} == {
        (0, 1, "bandwidth"), (1, 0, "bandwidth")
    }  # fmt: skip
    assert body["exclude"]["hosts"] == [], "with two nodes, either may be the slow one"
    assert "of 2 links, 2 are slow" in text
    assert "and below --min-link 900000 GB/s" in " ".join(text.split())
