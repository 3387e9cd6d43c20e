"""Test the commands, the results and the refusals of runs that are resumed from checkpoints."""

from __future__ import annotations

import argparse
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mxpeak.bench import checkpointing, run_record
from mxpeak.bench.checkpointing import FolderCheckpointer
from mxpeak.cli import main as cli
from mxpeak.cli.request import requests
from mxpeak.records import Result
from mxpeak.report.text import phase_table
from mxpeak.runtime import checkpoint
from mxpeak.runtime.checkpoint import PAGE, SLOTS, Writer, read_part
from mxpeak.runtime.folder_lock import LOCK, FolderLock
from tests.support.result_file import VALIDATOR


@pytest.fixture(autouse=True)
def empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("MXPEAK_") and name != "MXPEAK_CACHE_DIR"]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def every_checkpoint_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the run wait for the disk, so that the number of checkpoints is known."""
    usual = Writer.write

    def written(writer: Writer, *part: Any) -> None:
        usual(writer, *part)
        writer.wait()

    monkeypatch.setattr(Writer, "write", written)


KEPT = ["-N", "420", "--nb", "32", "--ranks", "1", "--threads", "1", "--warmup", "none"]
KEPT += ["--checkpoint", "kept", "--every", "0.000001s"]


def newest_part() -> Path:
    """Return the part of process (0, 0) in the newest checkpoint."""
    parts = {read_part(Path("kept", slot), 0, 0, whole=True)[0].number: Path("kept", slot, "0-0") for slot in SLOTS}
    return parts[max(parts)]


def other_slot(part: Path) -> Path:
    """Return the slot that does not contain this part."""
    return Path("kept") / ("b" if part.parent.name == "a" else "a")


def flip(part: Path, at: int) -> Path:
    """Flip one bit of a file."""
    content = bytearray(part.read_bytes())
    content[at] ^= 4
    part.write_bytes(content)
    return part


def small_run() -> None:
    """Run HPL with two checkpoints in the folder `kept`."""
    assert cli.main(["run", "hpl", *KEPT[2:], "-N", "96", "--watchdog", "off", "--seed", "7", "--out", "first"]) == 0


def result(folder: str) -> dict[str, Any]:
    found = json.loads((Path(folder) / "result.json").read_text())
    VALIDATOR.validate(found)
    return dict(found)


@pytest.mark.parametrize("benchmark", ["hpl", "hpl-mxp", "hpl-mxp --pivoting butterfly", "hpl-mxp --pivoting partial"])
def test_a_run_goes_on_from_its_last_checkpoint(benchmark: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", *benchmark.split(), *KEPT, "--out", "first"]) == 0
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
    origins = {name: again["config"][name]["origin"] for name in ("n", "nb", "ranks", "seed")}
    assert set(origins.values()) == {"checkpoint"}
    (repeated,) = requests(argparse.Namespace(benchmark=again["benchmark"], config="second/result.json"), {})
    assert repeated.config.nb == tuple(again["config"]["nb"]["value"])
    steps = again["telemetry"]["steps"]  # the first row contains the steps before the checkpoint
    assert steps["index"][0] == about["steps"]
    assert steps["elapsed_s"][0] >= about["before_s"]
    assert about["before_s"] < steps["elapsed_s"][-1] <= again["result"]["time_s"] + 1e-6
    said = capsys.readouterr()
    assert "the phases contain only the time after" in " ".join(said.err.split())
    assert f"\n  resumed after step {about['steps']}, " in said.out
    if benchmark == "hpl":
        assert f"\nHPL_pdgesv() resumed after step {about['steps']}, " in Path("second/HPL.out").read_text()
    if benchmark != "hpl":
        assert not again["rules"]["admissible"]
        assert "resumed" in [entry["rule"] for entry in again["rules"]["violations"]]
        assert again["validation"]["lu_proof"]["passed"]

    # The newest checkpoint is damaged: the previous one is used, and the result records this.
    damaged = flip(newest_part(), PAGE + 4242)
    steps = read_part(other_slot(damaged), 0, 0, whole=True)[0].steps
    assert cli.main(["resume", "kept", "--out", "third"]) == 0
    third = result("third")
    (text,) = [entry["text"] for entry in third["warnings"] if entry["code"] == "checkpoint-damaged"]
    assert text == f"a damaged checkpoint was not used: {damaged}: its numbers are damaged: the digest differs"
    assert third["result"]["resumed"]["steps"] == steps
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith(f"note: {text}")  # at the first use
    assert f"warning: {text}" in said  # and at the end


def test_the_shares_of_the_phases_of_a_resumed_run_are_those_of_the_time_after_the_checkpoint() -> None:
    figures = {"time_s": 10.0, "resumed": {"before_s": 8.0, "after_s": 2.0}}
    resumed = Result.from_dict(
        {"benchmark": "hpl", "status": "valid", "result": figures, "phases": {"update": {"time_s": 1.0}}}
    )
    assert "50.0 %" in phase_table(resumed)


def run_that_is_ended(monkeypatch: pytest.MonkeyPatch, out: str) -> None:
    """Run HPL with checkpoints, and end it with SIGTERM at step 4."""
    usual = FolderCheckpointer.is_due

    def is_due(checkpointing: FolderCheckpointer, step: int, count: int) -> bool:
        if step == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return usual(checkpointing, step, count)

    with monkeypatch.context() as patch:
        patch.setattr(FolderCheckpointer, "is_due", is_due)
        assert cli.main(["run", "hpl", *KEPT[:-1], "10m", "--out", out]) == 143


def test_the_resume_of_a_finished_run_reports_that_it_has_finished(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_that_is_ended(monkeypatch, "killed")
    assert cli.main(["resume", "kept", "--out", "first"]) == 0
    assert "finished" not in [warning["code"] for warning in result("first")["warnings"]]
    capsys.readouterr()
    assert cli.main(["resume", "kept", "--out", "second"]) == 0
    again = result("second")
    (text,) = [warning["text"] for warning in again["warnings"] if warning["code"] == "finished"]
    steps = again["result"]["resumed"]["steps"]
    assert text == f"the run in kept has already finished; mxpeak repeats the steps after step {steps}"
    assert f"note: {text}" in " ".join(capsys.readouterr().err.split()), "at once, and not only in the result"


def test_the_resume_of_a_run_that_finished_without_a_checkpoint_names_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["run", "hpl", *KEPT[:-1], "10m", "--out", "first"]) == 0
    capsys.readouterr()
    assert cli.main(["resume", "kept", "--out", "second"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "kept contains no checkpoint, because its run finished before the first one was due; use the result" in said
    assert not Path("second").exists()


@pytest.mark.parametrize("benchmark", ["hpl", "hpl-mxp"])
def test_a_device_matrix_is_kept_in_pieces_and_comes_back_bitwise(
    benchmark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use torch on the CPU: the matrix is no NumPy array, so it is written without a copy and read row by row."""
    monkeypatch.setattr(checkpoint, "AT_ONCE", 4 * PAGE)  # pieces end within rows
    kept, loaded = dict[int, str](), list[str]()
    save, load = FolderCheckpointer.save, FolderCheckpointer.load

    def digest(checkpointer: FolderCheckpointer) -> str:
        return str(checkpointer._kernels.digest(checkpointer._A.local))

    def kept_as(checkpointer: FolderCheckpointer, *arguments: Any) -> None:
        save(checkpointer, *arguments)
        kept[checkpointer._number] = digest(checkpointer)

    def loaded_as(checkpointer: FolderCheckpointer, *arguments: Any) -> None:
        load(checkpointer, *arguments)
        loaded.append(digest(checkpointer))

    monkeypatch.setattr(FolderCheckpointer, "save", kept_as)
    monkeypatch.setattr(FolderCheckpointer, "load", loaded_as)
    assert cli.main(["run", benchmark, *KEPT, "--kernels", "torch", "--device", "cpu", "--out", "first"]) == 0
    newest, _ = read_part(newest_part().parent, 0, 0, whole=True)
    wanted, here = kept[newest.number], len(loaded)
    assert cli.main(["resume", "kept", "--out", "second"]) == 0
    assert loaded[here:] == [wanted]
    again = result("second")
    assert again["software"]["kernels"] == "torch"
    assert again["validation"]["passed"]
    assert 0 < again["result"]["resumed"]["steps"] < 14
    assert not [warning for warning in again["warnings"] if warning["code"] == "panel"], "the user has set no panels"


def test_a_killed_run_on_a_device_is_resumed(tmp_path: Path) -> None:
    run = ["-N", "900", "--nb", "32", "--threads", "1", "--kernels", "torch", "--device", "cpu", "--warmup", "none"]
    command = [sys.executable, "-m", "mxpeak", "run", "hpl", *run, "--ranks", "1", "--checkpoint", "kept"]
    process = subprocess.Popen([*command, "--every", "0.000001s", "--quiet"], stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 120.0
        while not (tmp_path / "kept/b/0-0").exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.001)
    finally:
        process.kill()
        process.wait()
    assert cli.main(["resume", "kept", "--out", "second"]) == 0
    again = result("second")
    assert again["result"]["resumed"]["steps"] > 0
    assert again["validation"]["passed"]
    assert again["software"]["kernels"] == "torch"


def test_a_run_that_is_ended_by_a_signal_writes_one_more_checkpoint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_that_is_ended(monkeypatch, "first")
    assert result("first")["status"] == "aborted"
    assert "ended by signal 15" in capsys.readouterr().err
    assert cli.main(["resume", "kept", "--out", "second"]) == 0
    assert result("second")["result"]["resumed"]["steps"] == 5


def test_the_folder_of_another_person_sets_no_path_and_no_variable_sets_the_problem(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Add paths to run.json, also with a valid digest, and to the headers of parts that replace it."""
    small_run()
    before = sorted(Path().iterdir())
    about = json.loads(Path("kept/run.json").read_text())
    assert about["settings"]["seed"] == "7"
    paths = ("prometheus", "json", "events", "trace", "out", "submit", "checkpoint", "baseline", "dat", "config")
    more = {name: str(Path(name).absolute()) for name in (*paths, "benchmark", "tuned", "study", "ranks")}
    Path("kept/run.json").write_text(json.dumps({**about, "settings": {**about["settings"], **more}}))
    monkeypatch.setenv("MXPEAK_SEED", "8")
    monkeypatch.setenv("MXPEAK_THRESHOLD", "1e-9")
    monkeypatch.setenv("MXPEAK_SOAK", "1s")
    monkeypatch.setenv("MXPEAK_MEM", "70%")  # a setting of the machine, not of the problem
    capsys.readouterr()
    assert cli.main(["resume", "kept", "--json", "mine.json"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "note: run.json sets 'prometheus', 'json', 'events', which only the command line may set; ignored" in said
    made = sorted(set(Path().iterdir()) - set(before))
    assert [str(one) for one in made] == ["mine.json", "mxpeak-out"]
    config = json.loads(Path("mine.json").read_text())["config"]
    assert (config["seed"]["value"], config["mem"]["value"]) == (7, "70%")
    assert json.loads(Path("kept/run.json").read_text())["settings"] == {**about["settings"], **more}


def test_the_paths_of_a_resumed_run_come_from_its_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "hpl-mxp", *KEPT, "--out", "first", "--trace", "one.json", "--submit", "form"]) == 0
    assert not {"trace", "submit", "checkpoint"} & set(json.loads(Path("kept/run.json").read_text())["settings"])
    shutil.rmtree("form")
    Path("one.json").unlink()
    assert cli.main(["resume", "kept", "--out", "second"]) == 0
    assert not Path("form").exists()
    assert not Path("one.json").exists()
    assert cli.main(["resume", "kept", "--out", "third", "--trace", "two.json", "--submit", "other"]) == 0
    assert Path("two.json").exists()
    assert Path("other").is_dir()


def test_a_checkpoint_of_hpl_has_no_form(capsys: pytest.CaptureFixture[str]) -> None:
    small_run()
    assert cli.main(["resume", "kept", "--submit", "form"]) == 2
    assert "kept contains a run of hpl, which does not have the flag --submit" in capsys.readouterr().err


def changed(folder: str, **values: Any) -> str:
    """Return a copy of the folder of a small run whose run.json has other values and a valid digest."""
    shutil.copytree("kept", folder)
    about = json.loads(Path("kept/run.json").read_text())
    digest = about.pop("digest")
    assert run_record._digest({key: about[key] for key in ("run", "benchmark", "version", "settings")}) == digest
    for name, value in values.items():
        (about["settings"] if name in about["settings"] else about)[name] = value
    fits = run_record._digest({key: about[key] for key in ("run", "benchmark", "version", "settings")})
    Path(folder, "run.json").write_text(json.dumps({**about, "digest": fits}))
    return folder


def test_another_version_seed_or_problem_is_refused_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    small_run()
    for name, values, says in [
        (
            "format",
            {"schema": "mxpeak.checkpoint/1"},
            "the format 'mxpeak.checkpoint/1', but this version of mxpeak reads",
        ),
        ("version", {"version": "0.0.9"}, "mxpeak '0.0.9' wrote version, but this is mxpeak"),
        ("seed", {"seed": "8"}, "it belongs to another problem ('seed' is '7', but '8' in run.json)"),
        ("order", {"n": "128"}, "'n' is '96', but '128' in run.json"),
        ("benchmark", {"benchmark": "hpl-mxp"}, "'benchmark' is 'hpl', but 'hpl-mxp' in run.json"),
        ("run", {"run": "other"}, "it belongs to another run ('run' is"),
    ]:
        capsys.readouterr()
        code = cli.main(["resume", changed(name, **values), "--out", f"out-{name}"])
        assert code == 2, name
        assert says in " ".join(capsys.readouterr().err.split())
        assert not Path(f"out-{name}").exists()


def test_a_run_json_that_was_changed_is_refused_and_parts_describe_the_run_without_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    small_run()
    path = Path("kept/run.json")
    whole = path.read_bytes()
    for at, says in [
        (whole.index(b'"seed": "7"') + 9, "belongs to another problem ('seed' is '7', but '3' in run.json)"),
        (
            whole.index(b'"digest"') + 12,
            "damaged: its digest differs; remove run.json to continue with the settings in a/0-0",
        ),
    ]:
        path.write_bytes(whole)
        flip(path, at)
        assert cli.main(["resume", "kept", "--out", "none"]) == 2
        assert says in " ".join(capsys.readouterr().err.split())
        assert not Path("none").exists()
    for k, damage in enumerate((path.unlink, lambda: path.write_text(whole.decode()[:100]))):
        path.write_bytes(whole)
        damage()
        assert cli.main(["resume", "kept", "--out", f"out{k}"]) == 0
        found = result(f"out{k}")
        assert found["config"]["seed"]["value"] == 7
        assert [one["code"] for one in found["warnings"] if one["code"].startswith("checkpoint")] == ["checkpoint-run"]
    path.write_bytes(whole)
    flip(path, whole.index(b'"seed": "7"') + 9)
    shutil.rmtree("kept/a")
    shutil.rmtree("kept/b")
    capsys.readouterr()
    assert cli.main(["resume", "kept", "--out", "none"]) == 2
    assert "has been changed or damaged: its digest differs; use another --checkpoint folder" in capsys.readouterr().err


def test_a_folder_in_use_is_refused_by_run_and_by_resume(capsys: pytest.CaptureFixture[str]) -> None:
    small_run()
    lock = FolderLock(Path("kept"))
    for line in ("resume kept --out second", "run hpl -N 96 --checkpoint kept --out third"):
        assert cli.main(line.split()) == 2
        assert "kept is in use by another run (process" in capsys.readouterr().err
    lock.release()
    assert cli.main(["resume", "kept", "--out", "second"]) == 0
    assert cli.main(["resume", "kept", "--out", "third"]) == 0  # the previous run has released it
    assert cli.main(["run", "hpl", "-N", "96", "--checkpoint", "kept"]) == 2
    assert "kept is not empty; run mxpeak resume kept to continue its run" in capsys.readouterr().err


def test_a_run_that_begins_at_the_same_time_in_the_same_folder_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both runs found the folder empty; the lock decides."""
    usual, locks = checkpointing.FolderLock, []

    def late(folder: Path) -> FolderLock:
        locks.append(usual(folder))
        return usual(folder)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(checkpointing, "FolderLock", late)
        assert cli.main(["run", "hpl", *KEPT, "--out", "first"]) == 2
    assert "kept is in use by another run" in capsys.readouterr().err
    assert [one.name for one in Path("kept").iterdir()] == [LOCK]
    locks[0].release()
    assert cli.main(["run", "hpl", *KEPT, "--out", "second"]) == 0


def test_a_checkpoint_that_changes_while_it_is_read_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small_run()

    def failing(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(checkpointing, "load", failing)
        assert cli.main(["resume", "kept", "--out", "second"]) == 2
    assert "a checkpoint changed while mxpeak read it: kept/a: Input/output error" in capsys.readouterr().err
    assert cli.main(["resume", "kept", "--out", "third"]) == 0


def test_a_checkpoint_of_another_type_of_matrix_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small_run()
    usual = checkpointing.newest

    def other(*of: Any) -> Any:
        found, wrong = usual(*of)
        return replace(found, first=replace(found.first, dtype="float32")), wrong

    monkeypatch.setattr(checkpointing, "newest", other)
    assert cli.main(["resume", "kept", "--out", "second"]) == 2
    assert "belongs to the matrix (96, 97, 32, 'float32'), but this run has (96, 97, 32, 'float64')" in " ".join(
        capsys.readouterr().err.split()
    )


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, 5), (errno.EROFS, 2)])
def test_a_checkpoint_folder_that_cannot_be_written_ends_the_run(
    number: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*about: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(checkpointing, "_begin", fail)
    assert cli.main(["run", "hpl", *KEPT]) == code
    assert f"cannot write to --checkpoint kept: {os.strerror(number)}; use another folder" in capsys.readouterr().err


def test_a_folder_that_cannot_be_locked_is_stated_in_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = checkpointing.FolderLock

    def unsupported(folder: Path) -> FolderLock:
        lock = usual(folder)
        lock.missing = "No locks available"
        return lock

    monkeypatch.setattr(checkpointing, "FolderLock", unsupported)
    assert cli.main(["run", "hpl", *KEPT, "--out", "first"]) == 0
    (text,) = [one["text"] for one in result("first")["warnings"] if one["code"] == "checkpoint-lock"]
    assert text == "kept could not be locked (No locks available), so a second run in it is not refused"


def test_what_cannot_be_kept_or_resumed_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("full").mkdir()
    Path("full/file").touch()
    Path("odd").mkdir()
    Path("odd/run.json").write_text('{"schema": 7}')
    Path("pipe").mkdir()
    os.mkfifo("pipe/run.json")
    Path("endless").mkdir()
    Path("endless/run.json").symlink_to("/dev/zero")
    Path("large").mkdir()
    with open("large/run.json", "wb") as large:
        large.truncate(1 << 40)
    Path("old").mkdir()
    about = {"run": "x", "benchmark": "hpl", "version": "0.1.0", "settings": {"n": "9", "nb": "9", "grid": "1x1"}}
    Path("old/run.json").write_text(json.dumps({"schema": "mxpeak.checkpoint/1", **about}))
    Path("none").mkdir()
    record = run_record.RunRecord("x", "hpl", run_record.__version__, about["settings"])  # type: ignore[arg-type]
    run_record.write_run(Path("none"), record)
    Path("other").mkdir()
    Path("other/run.json").write_text(json.dumps({"schema": run_record.SCHEMA, **about, "benchmark": "hpx"}))
    for line, says in [
        ("resume nowhere", "nowhere contains no checkpoints, because it has no run.json"),
        ("resume odd", "odd/run.json is not usable (its schema is not"),
        ("resume pipe", "pipe/run.json is not usable (it is not a regular file)"),
        ("resume endless", "it is not a regular file"),
        ("resume large", "it has more than 1048576 bytes"),
        ("resume old", "old contains checkpoints in the format 'mxpeak.checkpoint/1'"),
        ("resume none", "none contains no intact checkpoint: no checkpoint has been written yet"),
        ("resume other", "its benchmark is 'hpx', not hpl or hpl-mxp"),
        (
            "run hpl -N 99 --checkpoint full",
            "--checkpoint full is not empty; run mxpeak resume full to continue its run",
        ),
        ("run hpl -N 99 --checkpoint new --every soon", "'soon' is not a time"),
        ("run hpl -N 99 --every 5m", "--every writes no checkpoints without a folder; add --checkpoint DIR"),
        ("run hpl -N 98,99 --ranks 1 --checkpoint new", "--checkpoint supports only one run of one case, not 2 cases"),
        ("run hpl -N 99 --ranks 1 --repeat 2 --checkpoint new", "one case, not --repeat 2"),
    ]:
        assert cli.main(line.split()) == 2, line
        assert says in " ".join(capsys.readouterr().err.split()), line
    assert not Path("new").exists()
    assert not Path("mxpeak-out").exists()
