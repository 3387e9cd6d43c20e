"""Test that results are on stdout and notes on stderr, and that files are never overwritten."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from mxpeak.cli import main as cli
from mxpeak.cli.output import OUT_LOCK, FaultTolerantStream, Folder, new_folder, show, write_new, write_result
from mxpeak.cli.run_history import result_files, run_file
from mxpeak.errors import ResourceError, UsageError
from tests.support.cli import DAT, Bench, hpl_result, only_folder

# --- output -----------------------------------------------------------------------------------------------------


def test_the_verdict_is_on_stdout_and_notes_are_on_stderr(bench: Bench, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", "hpl", "-N", "1000"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("PASSED  hpl  2.00 GFLOP/s")
    assert err == f"warning: other load [busy]\n    hint: stop it\nresults in {only_folder()}/\n"


def test_what_is_known_outlives_a_run_that_is_cut_short(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mxpeak.cli.partial_results.EVERY_S", 0.0)
    seen: list[dict[str, Any]] = []

    def look(case: Any) -> Any:
        seen.append(json.loads((only_folder() / "so-far.json").read_text()) if case.n > 1000 else {})
        return hpl_result(case)

    bench.outcome = look
    assert cli.main(["run", "hpl", "-N", "1000,2000"]) == 0
    assert [one["problem"]["n"] for one in seen[1]["results"]] == [1000]
    assert not (only_folder() / "so-far.json").exists(), "the result file has all of it"


def test_a_run_that_was_cut_short_is_found_like_any_other(bench: Bench, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", "hpl", "-N", "1000"]) == 0
    (only_folder() / "result.json").rename(only_folder() / "so-far.json")
    capsys.readouterr()
    assert cli.main(["report", "last"]) == 0
    assert "1 run" in capsys.readouterr().out


def test_last_is_a_run_that_has_ended_where_there_is_one(bench: Bench, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", "hpl", "-N", "1000"]) == 0
    ended = only_folder()
    under_way = ended.with_name("29990101T000000Z-hpl-0")
    under_way.mkdir()
    (under_way / "so-far.json").write_text((ended / "result.json").read_text())
    assert [file.parent.name for file in result_files()] == [under_way.name, ended.name]
    assert run_file("last") == ended / "result.json"


def test_quiet_is_one_line_a_result(bench: Bench, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", "hpl", "-N", "1000,2000", "--quiet"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert [line.split("  N=")[0] for line in lines] == ["PASSED  hpl  2.00 GFLOP/s"] * 2
    assert ["N=1000" in lines[0], "N=2000" in lines[1]] == [True, True], "each line says which case it is"
    assert err == ""


def test_several_results_end_in_a_scoreboard(bench: Bench, capsys: pytest.CaptureFixture[str]):
    bench.outcome = lambda case: hpl_result(case, rate_flops=1e6 * case.n)
    assert cli.main(["run", "hpl", "-N", "1000,2000", "--nb", "64"]) == 0
    rows = capsys.readouterr().out.split("\n\n")[1].splitlines()
    assert [row.split()[0] for row in rows] == ["n", "1000", "2000", "*"]
    assert rows[2].endswith("PASSED *")
    assert rows[3].startswith("  * best: mxpeak run hpl") or rows[3].startswith("  * best: mxpeak ")


def test_json_on_stdout_is_alone_there(bench: Bench, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", "hpl", "--json", "-", "-N", "1000"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["schema"] == "mxpeak.results/1"
    (result,) = body["results"]
    assert result["schema"] == "mxpeak.result/1"
    assert len(result["telemetry"]["progress"]) == 1
    assert all(body[name] == result[name] for name in result if name != "schema"), "for one release"


@pytest.mark.parametrize("quiet", [[], ["--quiet"]])
def test_json_on_stdout_needs_no_folder_that_can_be_written(
    quiet: list[str], bench: Bench, capsys: pytest.CaptureFixture[str]
):
    Path("mxpeak-out").touch()  # a file, so that no folder can be made there, not even by root
    assert cli.main(["run", "hpl", "-N", "1000", "--json", "-", *quiet]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["results"][0]["problem"]["n"] == 1000
    assert ("the results are on stdout only" in err) == (not quiet)
    assert [path.name for path in Path().iterdir()] == ["mxpeak-out"]


def test_without_a_folder_results_are_in_the_file_of_json_and_nowhere_else(
    bench: Bench, capsys: pytest.CaptureFixture[str]
):
    Path("mxpeak-out").touch()
    assert cli.main(["run", "hpl", "-N", "1000,2000", "--json", "result.json"]) == 0
    assert len(json.loads(Path("result.json").read_text())["results"]) == 2
    out, err = capsys.readouterr()
    assert "the results are in result.json only" in err
    assert "report.html" not in out
    assert sorted(path.name for path in Path().iterdir()) == ["mxpeak-out", "result.json"]


@pytest.mark.parametrize("argv", [[], ["--json", "-", "--out", "mxpeak-out/a"]])
def test_a_folder_that_is_asked_for_or_needed_must_be_writable(
    argv: list[str], bench: Bench, capsys: pytest.CaptureFixture[str]
):
    Path("mxpeak-out").touch()
    assert cli.main(["run", "hpl", "-N", "1000", *argv]) == 2
    assert "cannot write to the folder mxpeak-out/" in capsys.readouterr().err
    assert bench.calls == []


def test_json_on_stdout_excludes_another_format_there(bench: Bench, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", "hpl", "--json", "-", "--format", "hpl"]) == 2
    assert "both write to stdout" in capsys.readouterr().err


def test_color_is_there_when_asked_for_and_not_in_a_pipe(bench: Bench, capsys: pytest.CaptureFixture[str]):
    cli.main(["run", "hpl"])
    assert "\x1b" not in capsys.readouterr().out
    cli.main(["run", "hpl", "--color", "always"])
    assert "\x1b[32mPASSED" in capsys.readouterr().out


@pytest.mark.parametrize("device", [6, 7, 8])
def test_hpls_report_goes_where_line_four_of_the_dat_says(
    bench: Bench, capsys: pytest.CaptureFixture[str], device: int
):
    lines = DAT.splitlines()
    lines[3] = str(device)
    Path("HPL.dat").write_text("\n".join(lines))
    Path("lists.out").write_text("an older report")
    assert cli.main(["run", "hpl", "--dat", "HPL.dat", "-N", "10", "--grid", "1x1", "--out", "new"]) == 0
    out, err = capsys.readouterr()
    report = Path("new", "lists.out" if device == 8 else "HPL.out").read_text()
    assert report.endswith("End of Tests.\n" + "=" * 80 + "\n")
    assert (out == report) == (device == 6)
    assert (report.splitlines()[1] in err) == (device == 7)
    assert ("PASSED  hpl" in out) == (device != 6)
    assert Path("lists.out").read_text() == "an older report"


@pytest.mark.usefixtures("other_rank")
def test_only_rank_zero_speaks(bench: Bench, capsys: pytest.CaptureFixture[str]):
    bench.outcome = lambda case: UsageError("wrong")
    assert cli.main(["run", "hpl"]) == 2
    assert cli.main(["run", "hpl", "--nonsense"]) == 2
    assert cli.main(["run", "hpl", "--help"]) == 0
    assert capsys.readouterr() == ("", "")


# --- files ------------------------------------------------------------------------------------------------------


def test_a_run_writes_result_report_and_page_into_a_new_folder(bench: Bench):
    assert cli.main(["run", "hpl"]) == 0
    assert sorted(p.name for p in only_folder().iterdir()) == ["HPL.out", "report.html", "result.json"]
    assert cli.main(["run", "hpl"]) == 0
    assert len(list(Path("mxpeak-out").iterdir())) == 2


@pytest.mark.parametrize("name", ["result.json", "HPL.out", "report.html"])
def test_an_existing_result_is_refused_before_the_run(bench: Bench, capsys: pytest.CaptureFixture[str], name: str):
    Path("out").mkdir()
    Path("out", name).write_text("old")
    assert cli.main(["run", "hpl", "--out", "out"]) == 2
    assert "never overwrites results; use another --out DIR" in capsys.readouterr().err
    assert cli.main(["run", "hpl", "--trace", f"out/{name}"]) == 2
    assert "never overwrites results; use another --trace FILE" in capsys.readouterr().err
    assert bench.calls == []
    assert Path("out", name).read_text() == "old"


def test_other_files_in_the_folder_are_no_obstacle(bench: Bench):
    Path("out").mkdir()
    Path("out", "notes.txt").touch()
    assert cli.main(["run", "hpl", "--out", "out", "--json", "copy.json"]) == 0
    assert Path("copy.json").read_text() == Path("out", "result.json").read_text()


@pytest.mark.parametrize("flags", [["--out", "file/out"], ["--json", "file/x.json"], ["--json", "old.json"]])
def test_a_place_that_cannot_be_written_is_refused_before_the_run(
    bench: Bench, capsys: pytest.CaptureFixture[str], flags: list[str]
):
    Path("file").touch()
    Path("old.json").touch()
    assert cli.main(["run", "hpl", *flags]) == 2
    assert flags[1] in capsys.readouterr().err
    assert bench.calls == []


@pytest.mark.parametrize("argv", [["hpl", "--checkpoint", "kept"], ["hpl-mxp", "--submit", "kept"]])
def test_a_folder_that_cannot_be_listed_is_refused_before_the_run(
    bench: Bench, argv: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def refused(path: Any) -> list[str]:
        raise PermissionError(13, "Permission denied", path)

    Path("kept").mkdir()
    monkeypatch.setattr(os, "listdir", refused)
    assert cli.main(["run", *argv]) == 2
    assert f"cannot read the folder kept: Permission denied; use another {argv[1]} DIR" in capsys.readouterr().err
    assert bench.calls == []


def test_a_run_without_results_leaves_no_folder(bench: Bench):
    bench.outcome = lambda case: UsageError("wrong")
    assert cli.main(["run", "hpl"]) == 2
    assert not Path("mxpeak-out").exists()


def test_a_full_disk_is_reported_and_the_result_is_on_stdout(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert cli.main(["run", "hpl", "--out", "out"]) == 5
    out, err = capsys.readouterr()
    assert out.startswith("PASSED")
    assert "No space left on device" in err
    assert list(Path().iterdir()) == []


def test_a_folder_that_is_removed_during_a_run_costs_no_copy_of_the_result(
    bench: Bench, capsys: pytest.CaptureFixture[str]
):
    def removed(case: Any) -> Any:
        shutil.rmtree("out")
        return hpl_result(case)

    bench.outcome = removed
    assert cli.main(["run", "hpl", "--out", "out", "--json", "copy.json"]) == 5
    assert json.loads(Path("copy.json").read_text())["results"][0]["status"] == "valid"
    err = capsys.readouterr().err
    assert err.endswith(
        "mxpeak: error: cannot write out/result.json: No such file or directory; the result is in copy.json\n"
    )


def test_a_report_that_cannot_be_written_is_not_a_lost_result(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    fsync = os.fsync

    def nearly_full(descriptor: int) -> None:
        fsync(descriptor)
        if any(Path("out").glob("result.json")):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", nearly_full)
    assert cli.main(["run", "hpl", "--out", "out"]) == 5
    assert [file.name for file in Path("out").iterdir()] == ["result.json"]
    assert "error: cannot write out/HPL.out: No space left on device; the result is in out/result.json" in (
        capsys.readouterr().err
    )


def test_partial_results_are_kept_where_the_result_cannot_be_written(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mxpeak.cli.partial_results.EVERY_S", 0.0)

    def full(path: Path, text: str) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mxpeak.cli.output.write_new", full)
    assert cli.main(["run", "hpl", "--out", "out"]) == 5
    assert [file.name for file in Path("out").iterdir()] == ["so-far.json"]


def test_a_text_is_printed_even_if_its_file_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(ResourceError, match=r"cannot write --json .*: No such file or directory"):
        show({}, "measured", str(tmp_path / "removed" / "file"), checked=True)
    assert capsys.readouterr().out == "measured"


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_another_run_wrote_meanwhile_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], links: bool
):
    path = tmp_path / "result.json"
    path.write_text("theirs")
    if not links:
        monkeypatch.setattr(os, "link", _refused)
    write_new(path, "ours")
    write_new(path, "ours, too")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        "result.json": "theirs",
        "result-2.json": "ours",
        "result-3.json": "ours, too",
    }
    assert (
        f"{path} was created during the run; the result is in {tmp_path / 'result-2.json'}" in capsys.readouterr().err
    )


def _refused(*paths: Path) -> None:
    raise OSError(1, "Operation not permitted")


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["run", "hpl", "-N", "100"], "result.json"),
        (["study", "pivots", "-N", "20", "--seeds", "1"], "study.json"),
        (["tune", "hpl"], "tune.json"),
        (["scan", "--ranks", "1"], "scan.json"),
    ],
)
def test_two_runs_do_not_share_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], argv: list[str], name: str
):
    monkeypatch.chdir(tmp_path)
    other = new_folder("out", "hpl", [name])
    try:
        assert cli.main([*argv, "--out", "out"]) == 2
        text = f"out is in use by another run (process {os.getpid()} on {os.uname().nodename}); wait until it has ended"
        assert text in " ".join(capsys.readouterr().err.split())
        assert [path.name for path in Path("out").iterdir()] == [OUT_LOCK]
        other.write(name, "{}")
    finally:
        other.close()
    assert [path.name for path in Path("out").iterdir()] == [name]


def test_the_folder_of_a_run_is_free_after_the_run(bench: Bench):
    bench.outcome = hpl_result
    for name in ("first.json", "second.json"):  # the second run is refused only because of the files of the first
        assert cli.main(["run", "hpl", "-N", "100", "--out", "out", "--json", name]) == (0 if name[0] == "f" else 2)
    assert OUT_LOCK not in os.listdir("out")


def test_only_folders_that_were_made_are_taken_away_again(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    new_folder(str(tmp_path / "mine"), "hpl", []).close()
    new_folder(str(tmp_path / "mine" / "a" / "b"), "hpl", []).close()
    assert list((tmp_path / "mine").iterdir()) == []


class Broken(io.StringIO):
    """A stream that accepts no text."""

    def __init__(self, error: OSError):
        super().__init__()
        self._error = error

    def write(self, text: str) -> int:
        raise self._error


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [(BrokenPipeError(32, "Broken pipe"), 0, ""), (OSError(28, "No space left"), 5, "cannot write to stdout")],
)
def test_a_broken_stdout_does_not_end_the_run(
    bench: Bench,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: OSError,
    code: int,
    says: str,
):
    monkeypatch.setattr(sys, "stdout", Broken(error))
    assert cli.main(["run", "hpl", "-N", "10,20"]) == code
    assert says in capsys.readouterr().err
    assert len(json.loads((only_folder() / "result.json").read_text())["results"]) == 2


@pytest.mark.parametrize(
    ("missing", "json", "code"), [("", "-", 0), ("", None, 0), ("no folder", "copy.json", 0), ("no folder", "-", 5)]
)
def test_a_closed_pipe_is_an_error_only_if_no_file_has_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, json: str | None, code: int
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdout", Broken(BrokenPipeError(32, "Broken pipe")))
    logged: list[str] = []
    folder = Folder(tmp_path, (), missing)
    assert write_result({"result.json": "{}"}, "a table", json, folder, logged.append) == code
    assert [path.name for path in tmp_path.iterdir()] == ([] if code else [json if missing else "result.json"])
    assert ("cannot write to stdout: Broken pipe, and no file contains the result" in logged[-1]) == (code == 5)


def test_a_stream_keeps_its_first_error():
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(28, "No space left on device")

    stream = FaultTolerantStream(Full())
    stream.say("a")
    stream.say("b")
    assert stream.error is not None
    assert stream.error.errno == 28
