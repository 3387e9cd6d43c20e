"""A run that is kept, and gone on with: what is typed, what comes out, what is refused."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from mxpeak.bench.keeping import Keeping
from mxpeak.cli import main as cli
from mxpeak.runtime.checkpoint import SLOTS, checkpoints
from tests.support.result_file import VALIDATOR


@pytest.fixture(autouse=True)
def empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("MXPEAK_") and name != "MXPEAK_CACHE_DIR"]:
        monkeypatch.delenv(name)


KEPT = ["-N", "420", "--nb", "32", "--ranks", "1", "--threads", "1", "--warmup", "none"]
KEPT += ["--checkpoint", "kept", "--every", "0.000001s"]


def result(folder: str) -> dict[str, Any]:
    found = json.loads((Path(folder) / "result.json").read_text())
    VALIDATOR.validate(found)
    return dict(found)


@pytest.mark.parametrize("benchmark", ["hpl", "hpl-mxp"])
def test_a_run_goes_on_from_its_last_checkpoint(benchmark: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", benchmark, *KEPT, "--out", "first"]) == 0
    whole = result("first")
    assert "resumed" not in whole["result"]
    assert cli.main(["resume", "kept", "--out", "second"]) == 0
    again = result("second")
    about = again["result"]["resumed"]
    assert 0 < about["steps"] < 14
    assert again["result"]["time_s"] == pytest.approx(about["before_s"] + about["after_s"])
    assert about["before_s"] <= whole["result"]["time_s"]
    assert about["gap_s"] > 0
    assert again["validation"]["passed"]
    assert again["problem"]["n"] == 420
    assert "resumed after step" in capsys.readouterr().err
    if benchmark == "hpl-mxp":
        assert not again["rules"]["admissible"]
        assert "resumed" in [one["rule"] for one in again["rules"]["violations"]]
        assert again["validation"]["lu_proof"]["passed"]

    # The latest is torn: the one before it is taken, and that is said.
    latest = checkpoints(Path("kept"), json.loads(Path("kept/run.json").read_text())["run"])[0][0]
    torn = SLOTS[latest.about.number % 2]
    os.truncate(Path("kept") / torn / "0-0", 70_000)
    assert cli.main(["resume", "kept", "--out", "third"]) == 0
    assert "torn" in [one["code"] for one in result("third")["warnings"]]


def test_a_run_that_is_told_to_end_keeps_one_more_checkpoint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = Keeping.due

    def due(keeping: Keeping, step: int, count: int) -> bool:
        if step == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return usual(keeping, step, count)

    monkeypatch.setattr(Keeping, "due", due)
    assert cli.main(["run", "hpl", *KEPT[:-1], "10m", "--out", "first"]) == 143
    assert result("first")["status"] == "aborted"
    assert "ended by signal 15" in capsys.readouterr().err
    monkeypatch.setattr(Keeping, "due", usual)
    assert cli.main(["resume", "kept", "--out", "second"]) == 0
    assert result("second")["result"]["resumed"]["steps"] == 5


def test_what_cannot_be_kept_or_gone_on_with_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    Path("full").mkdir()
    Path("full/file").touch()
    Path("odd").mkdir()
    Path("odd/run.json").write_text('{"schema": 7}')
    Path("none").mkdir()
    about = {"schema": "mxpeak.checkpoint/1", "run": "x", "benchmark": "hpl", "settings": {"n": "9", "grid": "1x1"}}
    Path("none/run.json").write_text(json.dumps(about))
    Path("other").mkdir()
    Path("other/run.json").write_text(json.dumps({**about, "benchmark": "hpx"}))
    for line, says in [
        ("resume nowhere", "nowhere holds no checkpoints: there is no run.json"),
        ("resume odd", "odd/run.json cannot be read"),
        ("resume none", "none holds no whole checkpoint: nothing has been kept"),
        ("resume other", "is of the benchmark 'hpx', which is not there"),
        (
            "run hpl -N 99 --checkpoint full",
            "--checkpoint full is not empty; to go on with its run, type: mxpeak resume",
        ),
        ("run hpl -N 99 --checkpoint new --every soon", "'soon' is not a time"),
        ("run hpl -N 98,99 --ranks 1 --checkpoint new", "--checkpoint keeps one run, and 2 cases were asked for"),
        ("run hpl -N 99 --ranks 1 --repeat 2 --checkpoint new", "and --repeat 2 were asked for"),
    ]:
        assert cli.main(line.split()) == 2, line
        assert says in capsys.readouterr().err, line
    assert not Path("new").exists()
    assert not Path("mxpeak-out").exists()
