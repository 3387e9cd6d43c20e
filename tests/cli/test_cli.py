"""Test that commands run with the given arguments, that errors name mistakes, and the exit codes."""

from __future__ import annotations

import errno
import json
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mxpeak.bench.limits import Limit, Reading
from mxpeak.cli import main as cli
from mxpeak.cli import session
from mxpeak.cli.display import Display
from mxpeak.cli.run_history import last_rate
from mxpeak.errors import ResourceError, UsageError
from mxpeak.installation import install_command
from tests.support.cli import DAT, Bench, Comm, hpl_result, only_folder

# --- runs -------------------------------------------------------------------------------------------------------


def test_mxpeak_alone_runs_everything_quickly(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", ["mxpeak"])
    assert cli.main() == 0
    assert bench.calls[0].config.quick
    assert bench.calls[0].argv == ["run", "all", "--quick"]
    body = json.loads((only_folder() / "result.json").read_text())
    assert body["schema"] == "mxpeak.results/1"


@pytest.mark.parametrize(("typed", "n"), [("2k", 2000), ("2e3", 2000), ("20_000", 20000), ("1.5k", 1500)])
def test_sizes_are_taken_as_people_write_them(bench: Bench, typed: str, n: int):
    assert cli.main(["run", "hpl", "-N", typed]) == 0
    assert bench.calls[0].config.n == (n,)


def test_a_time_may_have_its_unit(bench: Bench):
    assert cli.main(["run", "hpcg", "--rt", "30m"]) == 0
    assert bench.calls[0].config.rt == 1800.0


def test_flags_alone_are_those_of_the_quick_run_of_everything(bench: Bench):
    assert cli.main(["--json", "-"]) == 0
    assert bench.calls[0].argv == ["run", "all", "--quick", "--json", "-"]


def test_flags_variables_files_and_dat_come_together_with_their_origins(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    Path("HPL.dat").write_text(DAT)
    Path("my.toml").write_text('swap-threshold = 7\nbcast = "lib"\n[hpl]\nndiv = [3]\n')
    monkeypatch.setenv("MXPEAK_BCAST", "ilib")
    flags = "--nb 64 -N 100 --grid 1x1 --pfact left --rfact left --nbmin 4 --depth 0"
    assert cli.main(["run", "hpl", "--dat", "HPL.dat", "--config", "my.toml", *flags.split()]) == 0
    config, origins = bench.calls[0].config, bench.calls[0].origins
    found = {name: (getattr(config, name), origins[name]) for name in ("nb", "bcast", "ndiv", "order", "seed")}
    assert found == {
        "nb": ((64,), "flag"),
        "bcast": (("ilib",), "variable"),
        "ndiv": ((3,), "file"),
        "order": ("column", "HPL.dat"),
        "seed": (100, "default"),
    }
    assert config.swap_threshold == 7
    assert config.u_form == "no-transposed"


def test_ranks_are_started_where_no_launcher_did(bench: Bench):
    assert cli.main(["run", "hpl", "--ranks", "4"]) == 104
    assert bench.calls == []


def test_ranks_are_not_started_again_under_a_launcher(bench: Bench, comm: Comm):
    comm.size = 4
    assert cli.main(["run", "hpl", "--ranks", "4"]) == 0
    assert len(bench.calls) == 1


def test_a_dry_run_shows_configuration_with_origins_and_runs_nothing(bench: Bench, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", "hpl", "--dry-run", "--nb", "96"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["nb", "96", "flag"] in lines
    assert not [line for line in lines if line[-1:] == ["default"]]
    assert ["memory", "8", "MiB", "a", "rank"] in lines
    assert ["0", "-", "0-3"] in lines, "the GPU and the cores of each rank"
    assert bench.calls == []
    assert not Path("mxpeak-out").exists()


def test_a_dry_run_needs_no_mpi_for_the_ranks_that_it_thinks_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mxpeak.runtime.launch.respawn", None)
    assert cli.main(["run", "hpl", "-N", "2000", "--ranks", "4", "--threads", "1", "--dry-run"]) == 0
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert ["ranks", "4", "flag"] in lines
    assert ["P", "2", "auto"] in lines
    assert ["kernels", "host", "auto"] in lines
    assert "grid 2x2: matrix 33 MiB" in out
    ranks = out.partition("ranks of a node:\n")[2].splitlines()
    assert [line.split()[:2] for line in ranks[:5]] == [["rank", "GPU"], *([str(rank), "-"] for rank in range(4))]
    assert "expected time: unknown, because no case of about this size has run here" in out


@pytest.mark.parametrize(
    ("flags", "grid"),
    [
        ("hpl --dat HPL.dat", "grid 2x2"),
        ("hpl -N 100 --grid 2x2,1x4", "grid 1x4"),
        ("hpl -N 100 -P 3", "grid 3x1"),
        ("hpl -N 100 --node-grid 1x2", "grid 1x2"),
        ("hpl -N 100 --comm mpi", "grid 1x1"),
        ("norms -N 100 -Q 2", "grid 1x2"),
        ("hpcg --nx 16 --npx 2 --npz 3", "ranks 2x1x3"),
    ],
)
def test_a_dry_run_plans_for_the_ranks_of_its_grid_and_never_joins_them(
    flags: str, grid: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    for name in ("_start_mpi", "_start_torch", "respawn"):
        monkeypatch.setattr(f"mxpeak.runtime.launch.{name}", None)
    assert cli.main(["run", "hpl", "--grid", "2x2,1x2", "-N", "100", "--print-dat"]) == 0
    text = capsys.readouterr().out
    Path("HPL.dat").write_text(text)
    assert cli.main(["run", *flags.split(), "--threads", "1", "--dry-run"]) == 0
    assert grid in capsys.readouterr().out


def test_a_dry_run_ends_as_the_run_would_where_memory_does_not_suffice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", "hpl", "-N", "100,9_000_000", "--threads", "1", "--dry-run"]) == 5
    assert "does not fit" in capsys.readouterr().out
    assert cli.main(["run", "hpcg", "--nx", "64", "--mem", "100MB", "--threads", "1", "--dry-run"]) == 5


def test_a_dry_run_tells_the_time_by_the_last_run_of_about_the_size(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    past = {"benchmark": "hpl", "status": "valid", "launch": {"ranks": 1}, "result": {"rate_flops": 5.34e9}}
    for name, n in (("old", 1000), ("new", 10)):
        (tmp_path / "mxpeak-out" / name).mkdir(parents=True)
        body = {"schema": "mxpeak.results/1", "results": [{**past, "problem": {"n": n}}]}
        (tmp_path / "mxpeak-out" / name / "result.json").write_text(json.dumps(body))
    assert cli.main(["run", "hpl", "-N", "2000", "--threads", "1", "--dry-run"]) == 0
    assert "expected time: 1.00 s at 5.34 GFLOP/s" in capsys.readouterr().out


def test_a_dry_run_ignores_the_rate_of_an_empty_matrix(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    result = {"benchmark": "hpl", "status": "valid", "launch": {"ranks": 1}, "result": {"rate_flops": 0.0}}
    (tmp_path / "mxpeak-out" / "empty").mkdir(parents=True)
    body = {"schema": "mxpeak.results/1", "results": [{**result, "problem": {"n": 0}}]}
    (tmp_path / "mxpeak-out" / "empty" / "result.json").write_text(json.dumps(body))
    assert cli.main(["run", "hpl", "-N", "77", "--ranks", "1", "--print-dat"]) == 0
    Path("HPL.dat").write_text(capsys.readouterr().out.replace("77 ", "0 "))
    assert cli.main(["run", "hpl", "--dat", "HPL.dat", "--threads", "1", "--dry-run"]) == 0
    assert last_rate("hpl", 1) is None


@pytest.mark.parametrize(("benchmark", "ends"), [("hpl", "memory alignment in doubles\n"), ("hpl-mxp", "BCASTs\n")])
def test_a_sample_input_file_is_printed_and_can_be_run(
    bench: Bench, capsys: pytest.CaptureFixture[str], benchmark: str, ends: str
):
    assert cli.main(["run", benchmark, "--print-dat", "--nb", "96", "-N", "500"]) == 0
    text = capsys.readouterr().out
    assert text.endswith(ends)
    Path("sample.dat").write_text(text)
    assert cli.main(["run", benchmark, "--dat", "sample.dat"]) == 0
    assert (bench.calls[0].config.n, bench.calls[0].config.nb) == ((500,), (96,))


def test_a_sample_of_hpcg_is_printed_and_can_be_run(bench: Bench, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", "hpcg", "--print-dat"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[2:] == ["104 104 104", "60"]
    Path("hpcg.dat").write_text(text)
    assert cli.main(["run", "hpcg", "--dat", "hpcg.dat", "--rt", "1800"]) == 0
    call = bench.calls[0]
    assert (call.config.nx, call.origins["nx"]) == (104, "hpcg.dat")
    assert (call.config.rt, call.origins["rt"]) == (1800.0, "flag")


# --- exit codes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "flags", "code"),
    [
        (hpl_result, [], 0),
        (lambda case: ValueError("a bug"), [], 1),
        (lambda case: UsageError("cannot be"), [], 2),
        (lambda case: hpl_result(case, "invalid"), [], 3),
        (lambda case: hpl_result(case, "invalid"), ["--min-gflops", "9"], 3),
        (hpl_result, ["--min-gflops", "2.1"], 4),
        (hpl_result, ["--min-gflops", "1.9"], 0),
        (lambda case: ResourceError("too large"), [], 5),
        (lambda case: None, [], 5),
    ],
)
def test_exit_codes(bench: Bench, outcome: Any, flags: list[str], code: int):
    bench.outcome = outcome
    assert cli.main(["run", "hpl", *flags]) == code


@pytest.mark.parametrize(
    ("flags", "code", "status", "message"),
    [
        (["--min-gflops", "9"], 4, "slow", "2.00 GFLOP/s is below --min-gflops 9"),
        (["--min-share", "80%"], 4, "slow", "50.0 % of the limit is below --min-share 80%"),
        (["--min-share", "0.4", "--min-gflops", "1"], 0, "valid", ""),
    ],
)
def test_a_floor_that_is_missed_is_in_status_headline_and_json(
    bench: Bench, capsys: pytest.CaptureFixture[str], flags: list[str], code: int, status: str, message: str
):
    def half(case: Any) -> Any:
        result = hpl_result(case)
        result.result |= {"fraction_of_limit": 0.5, "limit": {"name": "DGEMM", "rate_flops": 4e9}}
        return result

    bench.outcome = half
    assert cli.main(["run", "hpl", "-N", "100", *flags]) == code
    out, err = capsys.readouterr()
    assert out.startswith("TOO SLOW  hpl" if code else "PASSED  hpl")
    assert message in err
    body = json.loads((only_folder() / "result.json").read_text())
    assert body["results"][0]["status"] == status
    assert [w["code"] for w in body["results"][0]["warnings"] if w["text"] == message] == ["slow"] * bool(code)


@pytest.mark.parametrize("words", [["hpl", "-N", "100,200"], ["all"]])
def test_a_changed_speed_is_explained_once_for_all_cases(
    bench: Bench, capsys: pytest.CaptureFixture[str], words: list[str]
):
    """A sweep warns once on stderr; the scoreboard of all benchmarks names the rows in a note of its own."""

    def drifting(case: Any) -> Any:
        result = hpl_result(case)
        limit = Limit("DGEMM", "rate_flops", Reading(4e9, 4e9, 1.0, 0.0), Reading(3e9, 3e9, 1.0, 0.0))
        result.result |= {"fraction_of_limit": 0.5, "limit": limit.section()}
        result.warnings += limit.cautions()
        return result

    bench.outcome = drifting
    cli.main(["run", *words])
    out, err = capsys.readouterr()
    assert "50.0 %*" in out if words[0] == "hpl" else "50* of 4.00 GFLOP/s  DGEMM" in out
    assert err.count("[drift]") == (words[0] == "hpl")
    assert out.count("* The machine's speed changed") == (words[0] == "all")


def test_one_case_that_is_fast_enough_will_do(bench: Bench):
    bench.outcome = lambda case: hpl_result(case, rate_flops=1e9 * case.n)
    assert cli.main(["run", "hpl", "-N", "1,3", "--min-gflops", "2"]) == 0
    body = json.loads((only_folder() / "result.json").read_text())
    assert [one["status"] for one in body["results"]] == ["slow", "valid"]


def test_a_share_of_a_limit_that_is_not_measured_is_refused(bench: Bench, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", "hpl", "--min-share", "80%", "--warmup", "none"]) == 2
    assert "--warmup none skips" in capsys.readouterr().err


def test_results_before_an_error_are_kept(bench: Bench):
    bench.outcome = lambda case: hpl_result(case) if case.n == 10 else ResourceError("too large")
    assert cli.main(["run", "hpl", "-N", "10,20", "--out", "out"]) == 5
    assert json.loads(Path("out", "result.json").read_text())["problem"]["n"] == 10


def test_cases_that_do_not_fit_are_counted_and_reported(bench: Bench, capsys: pytest.CaptureFixture[str]):
    bench.outcome = lambda case: hpl_result(case) if case.n == 10 else None
    assert cli.main(["run", "hpl", "-N", "20,10", "--out", "out"]) == 5
    assert "skipped N=20" in capsys.readouterr().err
    assert "      1 tests skipped because" in Path("out", "HPL.out").read_text()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["run", "hpx"], "'hpx' is unknown; use one of "),
        (["fly"], "'fly' is unknown; use one of "),
        (["hpl"], "'hpl' is a benchmark; did you mean: mxpeak run hpl?"),
        (["plann"], "did you mean plan?"),
        (["run", "hpl_mxp"], "did you mean hpl-mxp?"),
        (["run"], "BENCHMARK is missing; use one of hpl, hpl-mxp, "),
        (["baseline", "get", "last"], "'get' is unknown; use one of set, from"),
        (["compare", "last"], "B is missing; use mxpeak compare A B [OPTIONS]; see mxpeak compare --help"),
        (["job", "hpl"], "--for is missing; use --for with one of slurm, pbs, flux, kubernetes; see mxpeak job --help"),
        (["run", "hpl", "HPL.dat"], "did you mean --dat HPL.dat?"),
        (
            ["run", "hpl", "-p", "1", "--NB", "64"],
            "did you mean -P and -Q (rocHPL's -p and -q are --node-grid PxQ), --nb?",
        ),
        (["run", "hpl", "-N", "0"], "-N/--n: 0 is out of range; use an integer from 1 to "),
        (["compare", "a", "b", "--tolerance", "-5%"], "--tolerance: '-5%' is out of range; use a share"),
        (
            ["compare", "a", "b", "--tolerance", "abc"],
            "--tolerance: 'abc' is not a share; use a share such as 5% or 0.05",
        ),
        (
            ["baseline", "from", "a", "--tolerance", "x%"],
            "--tolerance: 'x%' is not a share; use a share such as 5% or 0.05",
        ),
        (
            ["scan", "--nb", "5000", "-N", "500"],
            "--nb 5000 exceeds -N 500, so the matrix has 500/5000 = 0.1 blocks per side; use --nb 500 or less, or "
            "-N 5000 or more",
        ),
        (["scan", "--tolerance", "nan"], "--tolerance: 'nan' is not a share; use a share such as 5% or 0.05"),
        (["run", "hpl", "-N", "-1e3"], "-N/--n: '-1e3' is not an integer"),
        (["run", "hpl", "--nb", "-64,128"], "--nb: -64 is out of range; use an integer from 1 to "),
        (["run", "hpl", "--mem", "-5GiB"], "--mem: '-5GiB' is not a memory budget"),
        (["run", "hpl", "--threshold", "-inf"], "--threshold: '-inf' is not a finite number"),
        (["run", "hpcg", "--rt", "-30s"], "--rt: '-30s' is not a time"),
        (["history", "--last", "-1"], "--last: -1 is out of range; use an integer from 1 to "),
        (["run", "hpl", "-5%"], "mxpeak run hpl does not accept -5%"),
        (["run", "hpl", "-N", "2.5001k"], "-N/--n: '2.5001k' is not an integer"),
        (["run", "hpcg", "--rt", "30x"], "--rt: '30x' is not a time; use seconds, or a number with s, m or h"),
        (["--quik"], "mxpeak run all does not accept --quik; did you mean --quick?"),
        (["run", "hpl", "--nb", "0"], "--nb: 0 is out of range; use an integer from 1 to "),
        (["run", "hpl", "--bcast", "3ring"], "--bcast: '3ring' is unknown; use one of 1ring"),
        (["run", "hpl", "--threshold", "nan"], "--threshold: 'nan' is not a finite number"),
        (
            ["run", "hpl", "--thresh", "3"],
            "does not accept --thresh 3; did you mean --threshold? See mxpeak run hpl --help",
        ),
        (["run", "hpl", "--grid", "2x2"], "grid 2x2 needs 2*2 = 4 ranks, but there is 1; start 4 ranks"),
        (["run", "hpl", "--dat", "none.dat"], "cannot read --dat none.dat: No such file or directory"),
        (["run", "hpl", "--dat", "."], "cannot read --dat .: Is a directory"),
        (["run", "hpl", "--dat", "cut.dat"], "cut.dat line 3 (output file name): the file ends after line 2"),
        (["run", "hpl", "--config", "bad.toml"], "--config bad.toml is not valid TOML"),
        (["run", "hpl", "--config", "digits.toml"], "--config digits.toml is not valid TOML: Exceeds the limit"),
        (["run", "hpl", "--config", "deep.toml"], "--config deep.toml is not valid TOML"),
        (["run", "hpl", "-N", "9" * 4300 + "k"], "is not an integer, or has too many digits"),
        (["run", "hpcg", "--rt", "9" * 400 + "s"], "…' is not a time"),
        (["run", "hpl", "-N", "9" * 5000], "is not an integer, or has too many digits"),
        (["run", "hpl", "--grid", "9" * 5000 + "x1"], "is not a grid"),
        (["run", "hpl", "--mem", "9" * 400 + "TiB"], "is not a memory budget"),
        (["run", "hpl", "--watchdog", "9" * 400], "is not a limit"),
        (["run", "hpl", "--config", "other.toml"], "contains the unknown table [hpx]; use one of hpl"),
        (["run", "hpl", "--config", "number.toml"], "number.toml sets hpl, which must be one table; write the"),
        (["run", "hpl", "--config", "array.toml"], "array.toml sets hpl, which must be one table; write the"),
        (["run", "hpl", "--config", "none.toml"], "cannot read --config none.toml"),
        (["run", "all", "--nb", "64"], "mxpeak run all does not accept --nb 64"),
    ],
)
def test_a_mistake_is_named_and_exits_with_two(
    bench: Bench, capsys: pytest.CaptureFixture[str], argv: list[str], message: str
):
    Path("cut.dat").write_text("a\nb\n")
    Path("bad.toml").write_text("nb =")
    Path("digits.toml").write_text(f"nb = {'9' * 5000}")
    Path("deep.toml").write_text(f"nb = {'[' * 5000}")
    Path("other.toml").write_text("[hpx]\nnb = 1\n")
    Path("number.toml").write_text("hpl = 1000\n")
    Path("array.toml").write_text("[[hpl]]\nnb = 64\n")
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.startswith("mxpeak: error: ")


def test_under_a_launcher_rank_zero_reports_an_error_after_all_ranks_have_started(bench: Bench, comm: Comm):
    comm.size = 4
    assert cli.main(["run", "hpl", "--nb", "0"]) == 2
    assert comm.aborted == []


@pytest.mark.usefixtures("other_rank")
def test_a_crash_shows_its_rank_and_ends_all_ranks(bench: Bench, comm: Comm, capsys: pytest.CaptureFixture[str]):
    bench.outcome = lambda case: ValueError("a bug")
    assert cli.main(["run", "hpl"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith(f"[rank 2 {os.uname().nodename}] ") for line in lines)
    assert lines[-1].endswith("ValueError: a bug")
    assert comm.aborted == [1]


@pytest.mark.usefixtures("other_rank")
def test_an_error_of_mpi_waits_for_the_launcher_to_tell_of_the_rank_that_has_gone(
    bench: Bench, comm: Comm, monkeypatch: pytest.MonkeyPatch
):
    waited: list[float] = []
    monkeypatch.setattr(session, "sleep", waited.append)
    bench.outcome = lambda case: type("Exception", (RuntimeError,), {"__module__": "mpi4py.MPI"})("process_vm_readv")
    assert cli.main(["run", "hpl"]) == 1
    assert (waited, comm.aborted) == ([session.LEAVE_S], [1])


@pytest.mark.usefixtures("other_rank")
def test_a_device_that_disappears_is_named_by_its_rank_and_ends_all_ranks(
    bench: Bench, comm: Comm, capsys: pytest.CaptureFixture[str]
):
    bench.outcome = lambda case: RuntimeError("CUDA error: an illegal memory access was encountered")
    assert cli.main(["run", "hpl"]) == 5
    assert capsys.readouterr().err.startswith(
        f"[rank 2 {os.uname().nodename}] mxpeak: error: the device failed: CUDA error: an illegal memory access"
    )
    assert comm.aborted == [5]


@pytest.mark.parametrize(("stdout", "code"), [(">/dev/full", 5), ("| true", 128 + signal.SIGPIPE)])
@pytest.mark.parametrize("verb", ["help exit-codes", "--version", "completion bash"])
def test_a_stdout_that_takes_nothing_is_noticed_though_it_is_buffered(verb: str, stdout: str, code: int):
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = f"set -o pipefail; {sys.executable} -m mxpeak {verb} {stdout}"
    done = subprocess.run(["bash", "-c", command], env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert done.stderr == ("mxpeak: error: No space left on device: stdout\n" if code == 5 else "")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.EDQUOT, "Disk quota exceeded", "folder/file"), "Disk quota exceeded: folder/file"),
        (OSError("mxpeak cannot write compiled kernels to /a or /b"), "mxpeak cannot write compiled kernels to /a or"),
    ],
)
def test_file_system_errors_are_not_reported_as_bugs(
    bench: Bench, error: OSError, message: str, capsys: pytest.CaptureFixture[str]
):
    bench.outcome = lambda case: error
    assert cli.main(["run", "hpl"]) == 5
    err = capsys.readouterr().err
    assert err.startswith(f"mxpeak: error: {message}")
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_with_128_and_its_number_and_leaves_nothing_half_written(
    bench: Bench, comm: Comm, number: signal.Signals
):
    before = signal.getsignal(number)

    def interrupt(case: Any) -> None:
        os.kill(os.getpid(), number)
        time.sleep(5)

    comm.size = 2
    bench.outcome = interrupt
    assert cli.main(["run", "hpl", "--out", "out"]) == 128 + number
    assert comm.aborted == [128 + number]
    assert sorted(path.name for path in Path("out").iterdir()) == ["report.html", "result.json"]
    assert json.loads(Path("out/result.json").read_text())["status"] == "aborted"
    assert signal.getsignal(number) == before


def test_a_benchmark_that_an_error_has_ended_is_not_aborted_by_a_later_signal(
    bench: Bench, comm: Comm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fail(case: object) -> None:
        raise UsageError("no such grid")

    def close(self: Display) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    comm.size, bench.outcome = 2, fail
    monkeypatch.setattr(Display, "close", close)
    assert cli.main(["run", "hpl", "--out", "out"]) == 128 + signal.SIGTERM
    assert "no such grid" in capsys.readouterr().err
    assert not Path("out/result.json").exists() or json.loads(Path("out/result.json").read_text())["results"] == []


def inside_set_name(number: int) -> None:
    class Hit:
        def __set_name__(self, owner: type, name: str) -> None:
            os.kill(os.getpid(), number)
            time.sleep(5)

    type("Owner", (), {"hit": Hit()})  # from which Python 3.11 raises a RuntimeError


def inside_an_import(number: int) -> None:
    try:
        os.kill(os.getpid(), number)
        time.sleep(5)
    except BaseException:
        raise ImportError("numpy._core.multiarray failed to import") from None  # like C modules


@pytest.fixture
def no_nohup() -> Iterator[None]:
    """Handle SIGHUP as a terminal's process does: under nohup it is ignored, and mxpeak leaves it so."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, previous)


@pytest.mark.usefixtures("no_nohup")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("hit", [inside_set_name, inside_an_import])
def test_a_signal_that_becomes_another_error_is_still_a_signal(
    bench: Bench, comm: Comm, hit: Callable[[int], None], number: signal.Signals, capsys: pytest.CaptureFixture[str]
):
    comm.size = 2
    bench.outcome = lambda case: hit(number)
    assert cli.main(["run", "hpl", "--out", "out"]) == 128 + number
    assert comm.aborted == [128 + number]
    said = capsys.readouterr().err
    assert f"ended by signal {number:d}" in said
    assert "Traceback" not in said


def test_an_error_that_no_signal_has_caused_stays_one(bench: Bench, capsys: pytest.CaptureFixture[str]):
    def failed(case: Any) -> None:
        raise ImportError("numpy._core.multiarray failed to import")

    bench.outcome = failed
    assert cli.main(["run", "hpl", "--out", "out"]) == 1
    assert "failed to import" in capsys.readouterr().err


# --- help and doctor --------------------------------------------------------------------------------------------


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def test_help_imports_nothing_heavy_and_lists_the_exit_codes():
    text = python(
        "import sys\nfrom mxpeak.cli.main import main\nassert main(['--help']) == 0\n"
        "heavy = {'numpy', 'scipy', 'numba', 'torch', 'rich', 'mpi4py', 'threadpoolctl'} & set(sys.modules)\n"
        "heavy |= {f'mxpeak.{name}' for name in ('options', 'records', 'runtime.launch')} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    assert "exit codes:" in text
    assert "128+n" in text


@pytest.mark.parametrize("argv", [["run"], ["run", "hpl"], ["run", "all"], ["doctor"]])
def test_the_help_of_each_verb_shows_an_example(argv: list[str], capsys: pytest.CaptureFixture[str]):
    assert cli.main([*argv, "--help"]) == 0
    assert "  mxpeak " + argv[0] in capsys.readouterr().out.split("example")[1]


def test_help_is_plain_ascii_for_the_oldest_terminals(capsys: pytest.CaptureFixture[str]):
    cli.main(["run", "hpl", "--help"])
    assert capsys.readouterr().out.isascii()


def test_an_empty_home_counts_as_unset():
    """The home of the user's entry in the password database is then used, not the root folder."""
    code = "import atexit, os, sys; from mxpeak.cli.main import entry; sys.argv = ['mxpeak', '--version']\n"
    code += "atexit.register(lambda: print(os.path.expanduser('~/.cache')))\nentry()"
    environ = {**os.environ, "HOME": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == str(Path(pwd.getpwuid(os.getuid()).pw_dir, ".cache"))


def test_the_module_runs_as_the_command_does():
    done = subprocess.run([sys.executable, "-m", "mxpeak", "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout[:7]) == (0, "mxpeak ")


def doctored(monkeypatch: pytest.MonkeyPatch, blas: Any, mpi: Any) -> None:
    def gemm(alpha: float, A: Any, B: Any, C: Any) -> None:
        C += alpha * A @ B

    fake = SimpleNamespace(blas_facts=blas, gemm=gemm)
    monkeypatch.setitem(sys.modules, "mxpeak.kernels.host.engine.blas", fake)
    monkeypatch.setitem(sys.modules, "mxpeak.runtime.launch", SimpleNamespace(mpi_facts=mpi))


def missing() -> dict[str, Any]:
    raise ImportError("No module named 'mpi4py'")


def test_doctor_says_what_is_there_and_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    doctored(monkeypatch, lambda: {"library": "OpenBLAS", "threads": None}, missing)
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("ready: mxpeak runs on the CPU, on one rank")
    assert "✓ BLAS\n  library        OpenBLAS\n  threads        unknown\n  fp64 products  native\n" in out
    assert "– MPI\n  missing: No module named 'mpi4py'" in out
    assert install_command("mpich") in out
    assert "rank 0" in out


def test_doctor_without_blas_says_that_no_run_is_possible(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    doctored(monkeypatch, missing, lambda: {"library": "MPICH"})
    assert cli.main(["doctor"]) == 5
    assert "not ready: mxpeak cannot run yet" in capsys.readouterr().out


def test_doctor_refuses_a_number_of_ranks_that_makes_no_sense(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["doctor", "--ranks", "0"]) == 2
    assert "out of range" in capsys.readouterr().err


def test_a_variable_that_nothing_reads_is_an_error(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MXPEAK_NBB", "3")
    assert cli.main(["run", "hpl", "-N", "10"]) == 2
    assert "the variable MXPEAK_NBB is unknown; did you mean MXPEAK_NB?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        ["plan", "hpl", "--machine", "frontier"],
        ["simulate", "hpl", "--machine", "frontier"],
        ["study", "pivots", "-N", "20"],
        ["tune", "hpl"],
        ["job", "hpl", "--for", "slurm"],
        ["peak"],
        ["history"],
    ],
    ids=lambda argv: argv[0],
)
@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("MXPEAK_BOGUS", "1", "mxpeak: error: the variable MXPEAK_BOGUS is unknown; "),
        ("MXPEAK_NB", "banana", "mxpeak: error: MXPEAK_NB: 'banana' is not an integer; use "),
    ],
)
def test_every_command_rejects_unknown_variables_and_invalid_values(
    argv: list[str],
    name: str,
    value: str,
    error: str,
    bench: Bench,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv(name, value)
    assert cli.main(argv) == 2
    assert error in " ".join(capsys.readouterr().err.split())


def test_a_command_accepts_variables_of_other_commands_and_of_child_processes(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MXPEAK_NB", "128,256")  # a list, which only run accepts
    monkeypatch.setenv("MXPEAK_ROUNDS", "3")  # a setting of scan
    monkeypatch.setenv("MXPEAK_NODE", "node7")
    monkeypatch.setenv("MXPEAK_COLUMNS", "100")
    assert cli.main(["simulate", "hpl", "--machine", "frontier"]) == 0
    assert "NB 128" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv", [["--version"], ["--help"], ["tune", "-h"], ["help", "settings"], ["completion", "bash"]], ids=" ".join
)
def test_help_works_despite_an_unknown_variable(
    argv: list[str], bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MXPEAK_BOGUS", "1")
    assert cli.main(argv) == 0
    assert not capsys.readouterr().err


def test_doctor_warns_of_an_unknown_variable(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MXPEAK_BOGUS", "1")
    assert cli.main(["doctor"]) == 0
    assert "mxpeak: warning: the variable MXPEAK_BOGUS is unknown; " in capsys.readouterr().err


def test_the_configuration_file_may_be_named_by_a_variable(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "mine.toml").write_text("nb = 77\n")
    monkeypatch.setenv("MXPEAK_CONFIG", str(tmp_path / "mine.toml"))
    assert cli.main(["run", "hpl", "-N", "10"]) == 0
    assert bench.calls[0].config.nb == (77,)
