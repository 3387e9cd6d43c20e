"""Test the input file, formats, files and submission of `mxpeak run hpl-mxp` and `run all`, with a fake benchmark."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mxpeak as mx
from mxpeak.cli import main as cli
from mxpeak.errors import UsageError
from mxpeak.records import Result
from tests.support.cli import Bench, Comm, hpl_result, only_folder, use_fakes

DAT = (Path(__file__).parents[1] / "golden" / "mxp.dat").read_text()
BANNER = " ****** HPL MxP Result    ****** \n"


def mxp_result(case: Any, status: str = "valid") -> Result:
    return Result(
        benchmark="hpl-mxp",
        status=status,
        run={"id": "abc"},
        problem={
            "n": case.n,
            "nb": case.nb,
            "P": case.P,
            "Q": case.Q,
            "precision": case.precision,
            "generator": case.generator,
            "refine": case.refine,
            "seed": case.seed,
            "variant": case.tag,
        },
        result={
            "rate_flops": 2e9,
            "time_s": 0.5,
            "lu_rate_flops": 3e9,
            "lu_time_s": 0.3,
            "refine_time_s": 0.1,
            "fraction_of_limit": None,
            "limit": None,
            "emulated": False,
        },
        validation={
            "passed": status == "valid",
            "residual": 1e-3,
            "threshold": 16.0,
            "formula": "f",
            "iterations": 2,
            "history": [1e4, 1e-3],
            "lu_proof": {"passed": True, "error": 1e-4, "bound": 1e-2},
        },
        rules={"mode": case.mode, "admissible": case.mode == "official", "violations": []},
    )


@pytest.fixture
def hpl() -> Bench:
    return Bench()


@pytest.fixture
def mxp(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hpl: Bench) -> Bench:
    """Provide a command line in an empty folder whose benchmarks and launcher are fakes."""
    fake = Bench(mxp_result)
    use_fakes(monkeypatch, tmp_path, Comm(), SimpleNamespace(run=lambda *wish, **others: []), hpl=hpl, hpl_mxp=fake)
    return fake


# --- runs -------------------------------------------------------------------------------------------------------


def test_run_all_runs_both_and_ends_in_one_scoreboard(mxp: Bench, hpl: Bench, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", "all", "--quick"]) == 0
    assert (len(hpl.calls), len(mxp.calls)) == (1, 1)
    machine, _, head, *rows, _, verdict, page, following = capsys.readouterr().out.splitlines()
    assert machine.startswith("mxpeak")
    assert head.split() == ["rate", "%", "of", "limit", "check"]
    assert [row.split()[0] for row in rows] == ["hpl", "hpl-mxp"]
    assert verdict == "All 2 results are valid. No result: hpg-mxp, hpcg, norms."
    assert page == f"Report: {only_folder()}/report.html"
    assert following == "Next: mxpeak run hpl (full size), mxpeak help submit (list submissions)"
    body = json.loads((only_folder() / "result.json").read_text())
    assert [r["benchmark"] for r in body["results"]] == ["hpl", "hpl-mxp"]
    assert sorted(p.name for p in only_folder().iterdir()) == ["HPL-MxP.out", "HPL.out", "report.html", "result.json"]


def test_run_all_quietly_is_a_line_each_and_verbosely_a_verdict_each(
    mxp: Bench, hpl: Bench, capsys: pytest.CaptureFixture[str]
):
    assert cli.main(["run", "all", "--quick", "--quiet"]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [
        ["PASSED", "hpl"],
        ["PASSED", "hpl-mxp"],
    ]
    assert cli.main(["run", "all", "--quick", "-v"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("PASSED  hpl  ")
    assert "All 2 results are valid. No result: hpg-mxp, hpcg, norms." in out


def test_the_input_file_is_rochpl_mxps_and_its_values_say_where_they_are_from(mxp: Bench):
    Path("mine.dat").write_text(DAT)
    assert cli.main(["run", "hpl-mxp", "--dat", "mine.dat", "--nb", "32", "--grid", "1x1"]) == 0
    call = mxp.calls[0]
    assert (call.config.nb, call.origins["nb"]) == ((32,), "flag")
    assert (call.config.n, call.origins["n"]) == ((1000, 2000), "HPL-MxP.dat")
    assert mxp.calls[0].config.bcast == ("1ring", "1ringM", "longM")
    body = json.loads((only_folder() / "result.json").read_text())
    assert len(body["results"]) == 6


def test_the_input_file_may_be_named_by_a_variable(mxp: Bench, monkeypatch: pytest.MonkeyPatch):
    Path("mine.dat").write_text(DAT)
    monkeypatch.setenv("MXPEAK_DAT", "mine.dat")
    assert cli.main(["run", "hpl-mxp", "--grid", "1x1"]) == 0
    assert mxp.calls[0].config.order == "column"


# --- output -----------------------------------------------------------------------------------------------------


def test_the_verdict_has_rate_validity_and_rules_in_its_first_line(mxp: Bench, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", "hpl-mxp", "-N", "1000", "--mode", "explore"]) == 0
    assert capsys.readouterr().out.startswith("PASSED  hpl-mxp  2.00 GFLOP/s  NOT ADMISSIBLE\n")


def test_format_mxp_prints_the_report_of_its_file(mxp: Bench, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", "hpl-mxp", "-N", "1000,2000", "--format", "mxp"]) == 0
    out = capsys.readouterr().out
    assert out == (only_folder() / "HPL-MxP.out").read_text()
    assert out.count(BANNER) == 4


@pytest.mark.parametrize("device", [6, 7, 8])
def test_the_report_goes_where_line_four_of_the_dat_says(mxp: Bench, capsys: pytest.CaptureFixture[str], device: int):
    lines = DAT.splitlines()
    lines[3] = str(device)
    Path("mine.dat").write_text("\n".join(lines))
    assert cli.main(["run", "hpl-mxp", "--dat", "mine.dat", "-N", "10", "--grid", "1x1", "--out", "new"]) == 0
    out, err = capsys.readouterr()
    report = Path("new", "mixed.out" if device == 8 else "HPL-MxP.out").read_text()
    assert (out == report) == (device == 6)
    assert (BANNER in err) == (device == 7)
    assert ("PASSED  hpl-mxp" in out) == (device != 6)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["run", "hpl-mxp", "--format", "hpl"], "mxpeak run hpl-mxp does not support --format hpl; use text or mxp"),
        (["run", "hpl", "--format", "mxp"], "mxpeak run hpl does not support --format mxp; use text or hpl"),
        (["run", "all", "--format", "mxp"], "mxpeak run all does not support --format mxp; use text"),
        (["run", "hpl-mxp", "--precision", "fp12"], "--precision: 'fp12' is unknown; use one of fp64"),
        (["run", "hpl-mxp", "--pfact", "left"], "mxpeak run hpl-mxp does not accept --pfact left"),
        (
            ["run", "hpl-mxp", "--dat", "cut.dat"],
            "cut.dat line 3 (output file name): the file ends after line 2, but it needs 14 lines",
        ),
        (["run", "hpl-mxp", "--dat", "taken.dat"], "HPL-MxP.dat names result.json as the report file"),
    ],
)
def test_a_mistake_is_named_and_exits_with_two(
    mxp: Bench, hpl: Bench, capsys: pytest.CaptureFixture[str], argv: list[str], message: str
):
    Path("cut.dat").write_text("a\nb\n")
    Path("taken.dat").write_text(DAT.replace("mixed.out", "result.json").replace("\n6 ", "\n0 "))
    assert cli.main(argv) == 2
    assert message in capsys.readouterr().err
    assert mxp.calls == hpl.calls == []


def test_help_shows_every_flag_in_plain_ascii_and_is_fast():
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "mxpeak", "run", "hpl-mxp", "--help"], capture_output=True, text=True, check=True
    )
    elapsed = time.perf_counter() - begin
    assert done.stdout.isascii()
    for flag in ("--generator", "--diagonal-scale", "--precision", "--refine", "--scaling", "--mode", "--submit"):
        assert flag in done.stdout
    assert elapsed < 3.0  # 0.3 s on an idle machine; ten times as much means that a large module is imported


# --- submission -------------------------------------------------------------------------------------------------


def test_a_submission_has_the_form_and_the_runs_own_files(mxp: Bench, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", "hpl-mxp", "-N", "1000", "--out", "out", "--submit", "deep/down"]) == 0
    names = ["HPL-MxP.out", "report.html", "result.json", "submission.json", "submission.txt"]
    assert sorted(p.name for p in Path("deep", "down").iterdir()) == names
    assert Path("deep/down/HPL-MxP.out").read_text() == Path("out/HPL-MxP.out").read_text()
    body = json.loads(Path("deep/down/submission.json").read_text())
    assert body["admissible"] is True
    assert body["fields"]["outputFile"] == "HPL-MxP.out"
    assert "submission in deep/down/" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("full", "--submit full is not empty, and mxpeak never overwrites files; use another --submit DIR"),
        ("out", "--submit out is also the folder of the result files; use another --submit DIR"),
        ("file/x", "cannot write to the folder file/x: Not a directory; use another --submit DIR"),
    ],
)
def test_a_submission_that_cannot_be_written_is_refused_before_the_run(
    mxp: Bench, capsys: pytest.CaptureFixture[str], folder: str, message: str
):
    Path("full").mkdir()
    Path("full", "old.txt").touch()
    Path("file").touch()
    assert cli.main(["run", "hpl-mxp", "-N", "1000", "--out", "out", "--submit", folder]) == 2
    assert message in capsys.readouterr().err
    assert mxp.calls == []
    assert sorted(p.name for p in Path().iterdir()) == ["file", "full"], "what was made for the run is gone again"


def test_a_run_without_results_leaves_no_submission(mxp: Bench):
    mxp.outcome = lambda case: None
    assert cli.main(["run", "hpl-mxp", "-N", "1000", "--submit", "here"]) == 5
    assert not Path("here").exists()


def test_a_submission_of_everything_takes_hpls_score_too(mxp: Bench):
    Path("my.toml").write_text('[hpl-mxp]\nsubmit = "here"\n')
    assert cli.main(["run", "all", "--config", "my.toml"]) == 0
    assert json.loads(Path("here/submission.json").read_text())["fields"]["hplgflops"] == 2.0


def test_a_run_that_was_ended_fills_no_form(mxp: Bench):
    mxp.outcome = lambda case: mxp_result(case, "aborted")
    assert cli.main(["run", "hpl-mxp", "-N", "1000", "--out", "out", "--submit", "here"]) == 6
    assert Path("out/result.json").exists()
    assert not Path("here").exists()


def test_a_failed_run_is_submitted_as_what_it_is_and_exits_with_three(mxp: Bench, hpl: Bench):
    mxp.outcome = lambda case: mxp_result(case, "invalid")
    hpl.outcome = hpl_result
    assert cli.main(["run", "hpl-mxp", "-N", "1000", "--submit", "here"]) == 3
    assert Path("here/submission.txt").read_text().startswith("FAILED, NOT ADMISSIBLE")


# --- mx.run -----------------------------------------------------------------------------------------------------


def test_a_value_out_of_range_is_reported_with_the_name_of_the_argument():
    with pytest.raises(UsageError, match=r"^n: -5 is out of range; use an integer from 1 to 100000000$"):
        mx.run.hpl_mxp(n=-5)


def test_a_setting_that_hpl_mxp_does_not_have_is_named():
    with pytest.raises(UsageError, match="hpl-mxp has no setting 'pfact'; see mxpeak run hpl-mxp --help"):
        mx.run.hpl_mxp(pfact="left")


def test_the_function_runs_the_benchmark_and_returns_its_rules():
    result = mx.run.hpl_mxp(n=100, nb=16, threads=1, warmup="none", mode="explore", kernels="reference")
    assert result.passed
    assert result.problem["n"] == 100
    assert [one["rule"] for one in result.rules["violations"]] == ["mode"]
