"""Test `mxpeak compare --rounds`: two commands alternately, their medians, and the confidence in the change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mxpeak.cli.main import main
from mxpeak.verbs.compare.interleaved_table import compared_in_turns
from mxpeak.verbs.compare.paired_comparison import PairedRates, around_median

#: A command that writes a result like `mxpeak run`: its rate grows with every run of either command.
FAKE = """\
while [ "$1" != --out ]; do [ "$1" = run ] && share=$2; shift; done
echo $share >> order
mkdir "$2"
printf '{"schema": "mxpeak.results/1", "results": [{"benchmark": "hpl", "status": "valid", "problem": {"n": 100},
"result": {"rate_flops": %se9}}]}' $(( share * $(wc -l < order) )) > "$2/result.json"
"""


def result(rate: float, **more: Any) -> Any:
    limit = {"name": "DGEMM", "rate_flops": 200e9}
    figures = {"rate_flops": 1e9 * rate, "limit": limit}
    return {"benchmark": "hpl", "status": "valid", "problem": {"n": 100}, "result": figures, **more}


@pytest.fixture(autouse=True)
def empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fake").write_text(FAKE)


@pytest.mark.parametrize(("n", "cut"), [(2, 0), (5, 0), (7, 0), (8, 1), (20, 5)])
def test_the_interval_of_the_median_holds_nine_cases_of_ten(n: int, cut: int) -> None:
    assert around_median([float(k) for k in reversed(range(n))]) == (cut, n - 1 - cut)


def test_a_machine_that_drifts_is_no_noise() -> None:
    drifting = PairedRates((100.0, 80.0, 60.0), (110.0, 88.0, 66.0))
    assert drifting.medians == (80.0, 88.0)
    assert drifting.change == pytest.approx(0.1)
    assert drifting.noise == pytest.approx(0.0)
    assert PairedRates((100.0, 100.0), (100.0, 130.0)).noise == pytest.approx(0.15)


def test_cases_are_compared_by_their_medians_and_one_that_failed_once_has_failed() -> None:
    before = [[result(100.0)], [result(102.0)], [result(500.0)]]
    (change,), (rates,) = compared_in_turns(before, [[result(50.0)], [result(51.0)], [result(250.0)]], 0.01)
    assert (change.before, change.after, change.verdict) == (102e9, 51e9, "slower")
    assert change.noise == pytest.approx(0.0)
    assert rates["before"] == [100e9, 102e9, 500e9]
    assert "DGEMM is the same" in change.why
    broken = [[result(100.0)], [result(102.0, status="invalid")], [result(500.0)]]
    ((change,), _) = compared_in_turns(before, broken, 0.01)
    assert change.verdict == "failed"
    with pytest.raises(ValueError, match=r"B produced a different number of results in each round \(1, 0, 1\)"):
        compared_in_turns(before, [[result(1.0)], [], [result(1.0)]], 0.01)


def test_both_commands_alternate_and_the_first_runs_do_not_count(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--rounds", "2", "sh fake run 4", "sh fake run 2", "--json", "file.json"]) == 4
    assert Path("order").read_text().split() == ["4", "2", "2", "4", "4", "2"]
    output = capsys.readouterr()
    assert "hpl N=100  18.0 GFLOP/s  9.00 GFLOP/s  -50.0 %" in output.out
    assert "before: sh fake run 4\n" in output.out
    assert output.err.splitlines()[:3] == [
        "not counted: A  4.00 GFLOP/s",
        "not counted: B  4.00 GFLOP/s",
        "round 1 of 2: B  6.00 GFLOP/s",
    ]
    body = json.loads(Path("file.json").read_text())
    assert body["rounds"] == [{"name": "hpl N=100", "before": [16e9, 20e9], "after": [6e9, 12e9]}]
    assert len(list(Path(body["folder"]).glob("*/result.json"))) == 6
    assert main(["history"]) == 0
    assert "no results" in capsys.readouterr().out, "the runs of a comparison are in its own folder"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("last", "A: --rounds needs commands that run a benchmark, but 'last' does not"),
        ("mxpeak run 'hpl", "No closing quotation"),
        ("mxpeak run hpl --out=there", "remove --out=there"),
        ("OMP_NUM_THREADS=1 mxpeak run hpl", "use 'env OMP_NUM_THREADS=1 mxpeak run hpl'"),
        ("none-of-these run hpl", "A: mxpeak cannot start none-of-these: No such file"),
        ("sh -c 'echo so it is >&2; exit 3' run", "ended with exit code 3 and without a result:\nso it is"),
    ],
)
def test_a_command_without_a_result_is_reported(command: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--rounds", "2", command, "sh fake run 1"]) == 2
    assert message in capsys.readouterr().err
    assert not Path("mxpeak-out").exists()


def test_a_working_folder_without_permission_has_no_flag_as_a_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mxpeak-out").touch()
    assert main(["compare", "--rounds", "2", "sh fake run 1", "sh fake run 2"]) == 2
    assert "use another working folder" in (said := capsys.readouterr().err)
    assert "--out" not in said


def test_commands_without_a_common_case_end_after_their_first_runs(capsys: pytest.CaptureFixture[str]) -> None:
    Path("other").write_text(FAKE.replace('"hpl"', '"hpcg"'))
    assert main(["compare", "--rounds", "2", "sh fake run 1", "sh other run 1"]) == 2
    assert "A has 1 result (hpl), B has 1 result (hpcg): no case is in both" in capsys.readouterr().err
    assert Path("order").read_text().split() == ["1", "1"]


def test_a_signal_that_ends_a_run_ends_the_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--rounds", "2", "sh fake run 1", "sh -c 'kill $$' run"]) == 128 + 15
    assert "B was ended by signal 15; the finished runs are in" in capsys.readouterr().err


def test_a_launcher_belongs_into_the_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mxpeak.runtime.launcher.launcher", lambda: ("mpiexec", 0, 2))
    assert main(["compare", "--rounds", "2", "sh fake run 1", "sh fake run 1"]) == 2
    assert "use the launcher inside A and B" in capsys.readouterr().err


def test_a_file_that_appears_during_the_runs_costs_no_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    Path("busy").write_text(f"echo theirs > file.json\n{FAKE}")
    assert main(["compare", "--rounds", "2", "sh busy run 4", "sh busy run 2", "--json", "file.json"]) == 4
    assert "hpl N=100  18.0 GFLOP/s  9.00 GFLOP/s" in capsys.readouterr().out
    assert Path("file.json").read_text() == "theirs\n"
    assert json.loads(Path("file-2.json").read_text())["regressed"]
