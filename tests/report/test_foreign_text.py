"""Test that text from other machines, files and people cannot control a terminal, a page, a table or a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from mxpeak.cli.main import main
from mxpeak.cli.session import Session
from mxpeak.foreign import UNSAFE, one_line, printable
from mxpeak.records import Caution, Result, document, to_json
from mxpeak.report.html import html_report
from mxpeak.report.scoreboard import scoreboard, sweep
from mxpeak.report.tables import comma_separated, markdown
from mxpeak.report.text import cautions, phase_table

#: Clears the screen, sets the window title, reverses the text direction, erases a line; and half a surrogate pair.
EVIL = "\x1b[2J\x1b]0;mine\x07\u202egnp.exe\u2028\r\x9b31m\udcff"


def result(**more: Any) -> Result:
    sections: dict[str, Any] = {
        "problem": {"n": 100, "precision": EVIL, "matrix": EVIL},
        "result": {"rate_flops": 1e9, "time_s": 1.0, "limit": {"name": EVIL, "rate_flops": 2e9}},
        "phases": {EVIL: {"time_s": 1.0}},
        "machine": {"hostname": EVIL, "cpu_model": EVIL},
        "launch": {"ranks": 2, "binding": [{"rank": k, "host": EVIL + str(k), "cores": "0"} for k in (0, 1)]},
        "run": {"argv": ["run", "hpl", "--out", EVIL]},
        "warnings": [Caution(EVIL, EVIL, EVIL)],
    }
    return Result(benchmark="hpl", status="valid", **{**sections, **more})


def test_what_acts_on_a_terminal_is_shown_as_its_code_and_other_text_as_it_is() -> None:
    assert printable("\x1b[31mé ≤ 3\tµs\n") == "\\x1b[31mé ≤ 3\tµs\n"
    assert printable("\x9b\u202e\udcff") == "\\x9b\\u202e\\xff"
    assert one_line("a\nb\tc") == "a\\nb\\tc"


@pytest.mark.parametrize(
    "shown",
    [
        lambda record: scoreboard([record], page=EVIL),
        lambda record: sweep([record, result(problem={"n": 200, "precision": EVIL * 2})]),
        lambda record: phase_table(record),
        lambda record: cautions(record.warnings),
        lambda record: html_report(document([record])),
        lambda record: markdown([(EVIL, record.as_dict())]),
        lambda record: comma_separated([(EVIL, record.as_dict())]),
        lambda record: to_json(document([record])),
    ],
)
def test_no_output_of_a_result_acts_on_a_terminal(shown: Any) -> None:
    text = shown(result())
    assert not UNSAFE.search(text)
    assert "x1b" in text or "u001b" in text, "what was there is still to be seen"


def test_json_with_such_text_means_the_same() -> None:
    body = document([result()])
    assert json.loads(to_json(body)) == json.loads(json.dumps(body))


def test_errors_that_name_such_files_are_harmless(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", "\x1b[2J"]) == 2
    assert main(["run", "hpl", "--config", "\x1b[2J"]) == 2
    Session().log("\x1b[2J")
    assert not UNSAFE.search(capsys.readouterr().err)


def test_a_recorded_result_is_shown_without_effects_by_every_verb(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("a", "b\x1b[2J"):
        path = Path("mxpeak-out", folder, "result.json")
        path.parent.mkdir(parents=True)
        path.write_text(to_json(document([result(machine={"hostname": EVIL + folder})])))
    both = [f"mxpeak-out/{folder}" for folder in ("a", "b\x1b[2J")]
    for argv in (
        ["history"],
        ["history", "--json", "-"],
        ["compare", *both],
        ["compare", *both, "--json", "-"],
        ["report", *both, "--out", "-"],
        ["report", *both, "--format", "csv"],
        ["report", *both, "--format", "markdown"],
        ["baseline", "set", both[1]],
    ):
        assert main(argv) == 0, argv
        out, err = capsys.readouterr()
        assert not UNSAFE.search(out + err), argv


@pytest.mark.parametrize("cell", ["=HYPERLINK(1)", "+1", "-1+1", "@SUM(A1)", "\t=1", "＝1"])
def test_no_text_of_a_csv_file_begins_as_a_formula(cell: str) -> None:
    body = {**result(machine={"hostname": cell}).as_dict(), "status": "valid"}
    (row,) = csv.DictReader(io.StringIO(comma_separated([(cell, body)])))
    assert row["hostname"] == row["run"] == "'" + cell
    body["result"]["time_s"] = -1.5
    (row,) = csv.DictReader(io.StringIO(comma_separated([("a", body)])))
    assert float(row["time_s"]) == -1.5, "numbers stay numbers"


def test_no_text_of_a_markdown_table_is_markup() -> None:
    evil = "![x](http://a/b.png) <img src=x> **b** `c` a|b\n| forged | row |"
    *_, row = lines = markdown([(evil, result(problem={"n": 1}).as_dict())]).splitlines()
    assert len(lines) == 3
    assert row.count("|") - row.count("\\|") == 8, "seven cells"
    assert not re.search(r"(?<!\\)[\[\]<>*`]", row), "every mark is escaped"
