"""Test that the result of a finished run is written first, and is never lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mxpeak.cli import main as cli
from mxpeak.cli.run_history import results_in
from mxpeak.records import Result, document, to_json
from tests.support.cli import Bench, hpl_result, only_folder

#: A Latin-1 name as Python decodes it from the command line.
ODD = os.fsdecode(b"r\xe9sultat")


def test_paths_that_are_not_utf8_end_no_run(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    def outcome(case: Any) -> Result:
        result: Result = hpl_result(case)
        result.run["argv"] = ["run", "hpl", "--out", ODD]
        return result

    bench.outcome = outcome
    argv = ["run", "hpl", "-N", "1000", "--out", ODD, "--json", f"{ODD}.json", "--trace", f"{ODD}.trace"]
    assert cli.main([*argv, "--events", f"{ODD}.events", "--prometheus", f"{ODD}.prom"]) == 0
    assert "results in r\\xe9sultat/" in capsys.readouterr().err
    for path in (Path(ODD, "result.json"), Path(f"{ODD}.json")):
        body = json.loads(path.read_text(encoding="utf-8"))
        assert ODD in body["results"][0]["run"]["argv"], "JSON's escape stands for the same name"
    assert "r\\xe9sultat" in Path(ODD, "report.html").read_text(encoding="utf-8")
    assert results_in(Path(ODD, "result.json"))[0]["status"] == "valid"
    assert cli.main(["report", ODD, "--out", f"{ODD}.html"]) == 0
    assert cli.main(["compare", ODD, ODD]) == 0


def test_a_command_whose_streams_and_paths_are_not_utf8_ends_well(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mxpeak", "report", os.fsencode(ODD), b"--out", os.fsencode(f"{ODD}.html")]
    body = document([Result(benchmark="hpl", status="valid", machine={"hostname": "µ"})])
    (tmp_path / ODD).write_text(to_json(body), encoding="utf-8")
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert b"r\\xe9sultat.html: 1 run" in ended.stdout


@pytest.mark.parametrize(
    "where", ["mxpeak.report.html.html_report", "mxpeak.cli.run.Execution._overview", "mxpeak.cli.run.Execution._study"]
)
def test_the_result_is_written_before_anything_that_can_fail(
    where: str, bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*args: Any) -> Any:
        raise LookupError("a bug in a report")

    monkeypatch.setattr(where, broken)
    assert cli.main(["run", "hpl", "-N", "1000,2000"]) == 1
    assert "a bug in a report" in capsys.readouterr().err
    assert len(results_in(only_folder() / "result.json")) == 2


def test_figures_that_json_cannot_hold_lose_no_result(bench: Bench) -> None:
    class Unknown:
        def __str__(self) -> str:
            return "unknown"

    odd = {"n": np.int64(3), "rate": np.float32(0.5), "many": np.arange(2), "yes": np.bool_(True), 7: {1, 2}.copy()}

    def outcome(case: Any) -> Result:
        result: Result = hpl_result(case)
        result.result |= {"added": odd, "unknown": Unknown()}
        return result

    bench.outcome = outcome
    assert cli.main(["run", "hpl", "-N", "1000"]) == 0
    (entry,) = results_in(only_folder() / "result.json")
    added = entry["result"]["added"]
    assert {name: added[name] for name in ("n", "rate", "many", "yes")} == {
        "n": 3,
        "rate": 0.5,
        "many": [0, 1],
        "yes": True,
    }
    assert entry["result"]["unknown"] == "unknown"
    said = [w["text"] for w in entry["warnings"] if w["code"] == "not-json"]
    assert said == [
        "result.added.7 is of type set; written as text",
        "result.unknown is of type Unknown; written as text",
    ]
