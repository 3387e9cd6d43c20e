"""Test the events and metrics that other programs read during a run, also after the run was killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mxpeak.bench.hpl_mxp.config import HplMxpCase
from mxpeak.cli import main as cli
from mxpeak.errors import ResourceError, UsageError
from mxpeak.spans import Step
from mxpeak.watch.events import STEP_S, EventLog
from mxpeak.watch.prometheus import UPDATE_S, Metrics, problem_labels
from tests.support.cli import Bench, Comm, hpl_result, use_fakes
from tests.support.metrics import metrics

EVENTS, METRICS = Path("events.jsonl"), Path("mxpeak.prom")


@pytest.fixture
def comm() -> Comm:
    return Comm()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, comm: Comm) -> Bench:
    """Provide a command line in an empty folder whose HPL and launcher are fakes."""
    fake = Bench()
    use_fakes(monkeypatch, tmp_path, comm, fake)
    return fake


def run(*arguments: str) -> int:
    return cli.main(["run", "hpl", *arguments, "--events", str(EVENTS), "--prometheus", str(METRICS)])


def events(path: Path = EVENTS) -> list[dict[str, Any]]:
    lines = path.read_text().splitlines(keepends=True)
    assert all(line.endswith("\n") for line in lines), "every line is whole"
    return [json.loads(line) for line in lines]


# --- events -----------------------------------------------------------------------------------------------------


def test_a_run_tells_its_events_from_start_to_end(bench: Bench) -> None:
    assert run("-N", "10,20") == 0
    records = events()
    case = ["case started", "phase started", "phase finished", "case finished"]
    assert [record["event"] for record in records] == ["run started", *case, *case, "run ended"]
    assert records[0]["schema"] == "mxpeak.events/1"
    assert records[0]["argv"][:2] == ["run", "hpl"]
    assert records[1]["case"]["n"] == 10
    assert records[4]["result"] == {"rate_flops": 2e9, "time_s": 0.5, "fraction_of_limit": None}
    assert records[4]["validation"] == {"passed": True, "residual": 1e-3, "threshold": 16.0, "iterations": None}
    assert (records[-1]["status"], records[-1]["exit_code"]) == ("valid", 0)
    times = [record["time_unix"] for record in records]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("outcome", "flags", "status", "code"),
    [
        (lambda case: hpl_result(case, "invalid"), [], "invalid", 3),
        (hpl_result, ["--min-gflops", "9"], "slow", 4),
        (lambda case: UsageError("cannot be"), [], "error", 2),
        (lambda case: ResourceError("too large"), [], "error", 5),
        (lambda case: RuntimeError("a bug"), [], "error", 1),
    ],
)
def test_the_last_event_says_how_the_run_ended(bench: Bench, outcome: Any, flags: Any, status: str, code: int) -> None:
    bench.outcome = outcome
    assert run(*flags) == code
    assert {"status": status, "exit_code": code}.items() <= events()[-1].items()
    assert metrics(METRICS.read_text())["mxpeak_exit_code"] == code


def test_a_signal_is_an_end_too(bench: Bench) -> None:
    def interrupt(case: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    bench.outcome = interrupt
    assert run() == 128 + signal.SIGTERM
    assert {"event": "run ended", "status": "aborted", "exit_code": 143}.items() <= events()[-1].items()


def test_events_are_written_at_once(bench: Bench) -> None:
    def look(case: Any) -> Any:
        assert [one["event"] for one in events()] == ["run started", "case started", "phase started", "phase finished"]
        return hpl_result(case)

    bench.outcome = look
    assert run() == 0


def test_samples_of_steps_are_a_second_apart(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events")
    log.start("hpl", 1e3)
    for k in range(1, 1001):
        log.step(Step("hpl", k, 1000, float(k), 1e3, k * STEP_S / 10))
    log.close()
    samples = [one for one in events(log.path) if one["event"] == "step"]
    assert [one["index"] for one in samples] == list(range(10, 1001, 10))
    assert all(one["rate_flops"] == pytest.approx(10 / STEP_S) for one in samples)


def test_numbers_that_json_lacks_are_null(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events")
    log.write("x", residual=float("nan"), deep={"a": [float("inf"), 1.0]})
    log.close()
    assert events(log.path)[0]["residual"] is None
    assert events(log.path)[0]["deep"] == {"a": [None, 1.0]}


def test_an_existing_event_file_is_kept_and_refused(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    EVENTS.write_text("of another run\n")
    assert run() == 2
    assert "events.jsonl already exists" in capsys.readouterr().err
    assert EVENTS.read_text() == "of another run\n"


def test_other_ranks_write_nothing(bench: Bench, comm: Comm, monkeypatch: pytest.MonkeyPatch) -> None:
    comm.rank, comm.size = 2, 4
    monkeypatch.setattr("mxpeak.cli.session.Session.on_root", lambda self, action: action())
    run()
    assert not EVENTS.exists()
    assert not METRICS.exists()


def test_a_disk_that_is_full_ends_the_file_and_not_the_run(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    def lose(case: Any) -> Any:
        EVENTS.unlink()
        METRICS.unlink()
        METRICS.mkdir()
        return hpl_result(case)

    bench.outcome = lose
    assert run() == 5
    said = capsys.readouterr()
    assert "cannot write --prometheus mxpeak.prom" in said.err
    assert "PASSED" in said.out


def test_an_error_of_the_last_write_is_reported(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = EventLog.write

    def full(log: EventLog, event: str, **about: Any) -> None:
        if event == "run ended":
            log.error = OSError(28, "No space left on device")
        else:
            write(log, event, **about)

    monkeypatch.setattr(EventLog, "write", full)
    assert run() == 5
    assert capsys.readouterr().err.count("cannot write --events events.jsonl: No space left on device") == 1


# --- metrics ----------------------------------------------------------------------------------------------------


def test_the_metrics_of_a_run_are_those_of_its_results(bench: Bench) -> None:
    assert run("-N", "10,20") == 0
    values = metrics(METRICS.read_text())
    assert values["mxpeak_running"] == 0
    assert values["mxpeak_exit_code"] == 0
    assert values['mxpeak_cases_total{benchmark="hpl",status="valid"}'] == 2
    for n in (10, 20):
        case = f'{{benchmark="hpl",case="N={n} NB=192 1x1 fp32 sqrt-n"}}'
        assert values[f"mxpeak_result_rate_flops{case}"] == 2e9
        assert values[f"mxpeak_result_passed{case}"] == 1


def test_an_existing_metrics_file_is_replaced_and_no_part_stays(bench: Bench) -> None:
    METRICS.write_text("of another run\n")
    assert run() == 0
    assert "another" not in METRICS.read_text()
    assert not [path for path in Path().iterdir() if path.name.endswith(".part")]


def bind_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (os.mkfifo, "a pipe"),
        (lambda path: path.mkdir(), "a folder"),
        (lambda path: path.symlink_to("target"), "a symbolic link"),
        (bind_socket, "a device or a socket"),
    ],
)
def test_only_a_regular_file_is_replaced_by_the_metrics(
    make: Callable[[Path], object], kind: str, bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("target").write_text("metrics\n")
    make(METRICS)
    before = METRICS.lstat()
    assert cli.main(["run", "hpl", "--prometheus", str(METRICS)]) == 2
    error = f"--prometheus {METRICS} is {kind}, but mxpeak replaces only regular files; use another --prometheus FILE"
    assert error in " ".join(capsys.readouterr().err.split())
    assert (METRICS.lstat().st_ino, METRICS.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert Path("target").read_text() == "metrics\n"
    assert bench.calls == []


@pytest.mark.parametrize("name", ["/", ".", ".."])
def test_a_path_without_a_file_name_is_refused_before_the_run(
    name: str, bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", "hpl", "--prometheus", name]) == 2
    assert f"--prometheus {name} is a folder" in capsys.readouterr().err
    assert bench.calls == []


def test_the_metrics_and_the_timeline_have_different_files(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--trace", str(METRICS)) == 2
    assert f"--trace {METRICS} is one of the run's own result files" in capsys.readouterr().err
    assert not METRICS.exists()


def test_a_pipe_that_is_created_during_the_run_is_kept(tmp_path: Path) -> None:
    file = Metrics(tmp_path / "m.prom", {})
    file.path.unlink()
    os.mkfifo(file.path)
    file.start("lu", 1e9)
    assert file.error is not None
    assert file.error.strerror == "it is a pipe"
    assert file.path.is_fifo()
    assert not list(tmp_path.glob(".*"))


def test_steps_update_the_metrics_every_few_seconds(tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    board = Metrics(path, {"benchmark": "hpl"}, clock=lambda: 1.7e9)
    board.start("HPL N=9", 1e3)
    seen = []
    for k in range(1, 101):
        board.step(Step("HPL N=9", k, 100, 10.0 * k, 1e3, k * UPDATE_S / 10))
        seen.append(metrics(path.read_text())['mxpeak_phase_steps_done{phase="HPL N=9"}'])
    assert sorted(set(seen)) == [0, *range(10, 101, 10)]
    assert metrics(path.read_text())['mxpeak_phase_rate_flops{phase="HPL N=9"}'] == pytest.approx(100 / UPDATE_S)


def test_the_file_is_whole_whenever_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics"
    board = Metrics(path, {"benchmark": "hpl"})
    before = path.read_text()
    looked: list[str] = []
    replace = Path.replace

    def look(self: Path, target: Path) -> Path:
        looked.append(path.read_text())
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", look)
    board.ended(0)
    assert looked == [before]
    assert metrics(path.read_text())["mxpeak_running"] == 0


def test_the_file_is_openmetrics_with_units_and_any_number(tmp_path: Path) -> None:
    board = Metrics(tmp_path / "metrics", {"benchmark": "hpl", "host": "n1"}, clock=lambda: 1.7e9)
    board.case(hpl_result(HplMxpCase(n=10, nb=4, P=1, Q=1)), "N=10")
    diverged = hpl_result(HplMxpCase(n=20, nb=4, P=1, Q=1))
    diverged.validation["residual"] = float("nan")
    diverged.result["time_s"] = float("inf")
    board.case(diverged, "N=20")
    board.note(['no temperature (a "driver"\nis missing) of cores'])
    missing = (
        r'mxpeak_missing_value_info{host="n1",benchmark="hpl",text="no temperature (a \"driver\" is missing) of cores"}'
    )
    assert f"{missing} 1.0\n" in board.text()
    board.ended(3)
    text = board.text()
    assert "# TYPE mxpeak_cases counter\nmxpeak_cases_total{" in text
    assert "# UNIT mxpeak_result_time_seconds seconds\n" in text
    assert "mxpeak_missing" not in text, "only a run has missing values"
    values = metrics(text)
    assert values['mxpeak_result_time_seconds{benchmark="hpl",case="N=20"}'] == float("inf")
    assert 'mxpeak_result_residual{benchmark="hpl",case="N=20"} NaN\n' in text


def test_labels_are_escaped(tmp_path: Path) -> None:
    board = Metrics(tmp_path / "metrics", {"host": 'a"b\\c\nd'})
    assert r'mxpeak_run_info{host="a\"b\\c\nd"} 1.0' in board.text().splitlines()


def test_the_precisions_of_a_solver_are_one_readable_label() -> None:
    precision = {"mg": ["bf16", "bf16", "fp32"], "krylov": "bf16", "vectors": "fp32"}
    assert problem_labels({"nx": 16, "precision": precision, "n": None}) == {
        "nx": "16",
        "precision": "mg=bf16/fp32 krylov=bf16 vectors=fp32",
    }
