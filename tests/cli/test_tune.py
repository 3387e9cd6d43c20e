"""Test the errors, the output and the stored settings of `mxpeak tune`, and that `run` names the settings it uses."""

from __future__ import annotations

import json
import signal
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from mxpeak.cli.main import main
from mxpeak.cli.session import Session
from mxpeak.comm.base import Communicator
from mxpeak.comm.transports.solo import Solo
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.errors import ResourceError, UsageError
from mxpeak.kernels.host.engine import blas
from mxpeak.perf.tuned import Winner, Winners
from mxpeak.runtime.tuned import blas_file, this_store
from mxpeak.verbs.tune import command, groups
from mxpeak.verbs.tune import job as jobs
from mxpeak.verbs.tune import probe as probe_module
from mxpeak.verbs.tune.command import budget_seconds
from mxpeak.verbs.tune.groups import LaunchedRanks, StartedRanks, Stopped
from mxpeak.verbs.tune.job import TuneJob, line, perform
from mxpeak.verbs.tune.probe import probes
from tests.support.blas_libraries import library
from tests.support.result_file import VALIDATOR

SMALL = ["tune", "hpl", "--ranks", "1", "--threads", "1", "-N", "256", "--budget", "20m", "--device", "cpu"]


@pytest.fixture(autouse=True)
def tuned_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use an empty folder, and allow runs to use stored settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MXPEAK_TUNED")


@pytest.fixture(autouse=True)
def _scipy_afterwards() -> Iterator[None]:
    yield
    blas.select("scipy")


@pytest.fixture
def small_kernels_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run jobs in this process, with small kernels."""
    monkeypatch.setattr(probe_module, "SECONDS", 0.0)  # three repetitions of each kernel
    monkeypatch.setattr(StartedRanks, "do", lambda self, job: perform(job, Solo(), lambda text: None))
    monkeypatch.setattr(
        jobs, "probes", lambda ranks, low, *, on_gpu, scale: probes(ranks, low, on_gpu=on_gpu, scale=32)
    )


def error_of(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    assert main(list(arguments)) == code
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


# --- mistakes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90.0), ("2m", 120.0), ("1.5h", 5400.0), (" 5m ", 300.0), ("168h", 604800.0)]
)
def test_a_budget_is_a_number_and_its_unit(text: str, seconds: float) -> None:
    assert budget_seconds(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "5", "m", "0s", "0m", "0.5s", "-2m", "2 m", "2min", "1d", "inf s", "nan", "169h", "1e3s"]
)
def test_a_budget_that_is_none_says_how_to_write_it(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError):
        budget_seconds(text)
    said = error_of(capsys, 2, "tune", f"--budget={text}")
    assert "--budget" in said
    assert "m" in said


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["norms"], "use one of hpl, hpl-mxp, hpg-mxp, hpcg"),
        (["hpl", "--ranks", "0"], "--ranks: 0 is out of range"),
        (["hpl", "--threads", "many"], "--threads"),
        (["hpl", "-N", "7"], "-N: 7 is out of range"),
        (["hpl", "-N", "96,7"], "-N"),
        (["hpcg", "-N", "96,128"], "-N does not apply to hpcg"),
        (["hpcg", "--nx", "20"], "--nx 16"),
        (["hpl", "hpl-mxp", "--nx", "16"], "--nx does not apply to hpl and hpl-mxp"),
        (["hpl", "--mode", "fast"], "--mode"),
        (["hpl", "--device", "tpu"], "--device"),
        (["hpl", "--job", "nothing.json"], "--job nothing.json"),
        (["hpl", "--json", "no/such/folder/x.json"], "cannot write"),
        (["hpl", "--nb", "64"], "does not accept --nb"),
        (["hpl", "--blas", "banana"], "--blas: 'banana' is not a BLAS library"),
        (["hpl", "--blas", "scipy"], "--blas: scipy is the default; add another library"),
        (["hpl", "--blas", ""], "--blas: the list is empty"),
        (["hpcg", "hpg-mxp", "--blas", "blis"], "--blas does not apply to hpg-mxp and hpcg; remove --blas"),
        (
            ["hpl", "--kernels", "torch", "--device", "cpu", "--blas", "blis"],
            "--blas does not apply to --kernels torch",
        ),
    ],
)
def test_invalid_arguments_are_reported(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert why in error_of(capsys, 2, "tune", *arguments)


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--help"]) == 0
    said = capsys.readouterr().out
    assert "mxpeak tune hpl --budget 2m" in said
    assert "--job" not in said


# --- whole runs with small sizes --------------------------------------------------------------------------------


def test_a_small_machine_is_tuned_and_its_run_and_its_model_know_it(
    small_kernels_here: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SMALL, "--json", "-"]) == 0
    output = capsys.readouterr()
    body = json.loads(output.out)
    assert body["schema"] == "mxpeak.tune/1"
    assert body["config"] == {
        "benchmarks": ["hpl"],
        "mode": "official",
        "budget_s": 1200.0,
        "device": "cpu",
        "layouts": ["1x1"],
        "n": 256,
    }
    assert {"gemm", "trsm", "fact", "ld", "read"} <= {r["name"] for r in body["curves"]}
    assert body["check"]["hpl"]["verdict"] in ("faster", "equal", "slower")
    (winner,) = body["winners"]
    assert Path(body["store"]).exists()
    assert list(body["machine"]["tables"]) == ["1x1"]
    assert "tuning hpl for 20m on 1x1" in output.err
    (folder,) = Path("mxpeak-out").glob("*-tune-*")
    assert json.loads((folder / "tune.json").read_text()) == body
    assert "GEMM in fp64 over (m, n, k)" in (folder / "tune.html").read_text()

    run = ["run", "hpl", "-N", "300", "--threads", "1", "--ranks", "1", "--device", "cpu", "--quiet", "--json", "-"]
    assert main(run) == 0
    config = json.loads(capsys.readouterr().out)["config"]
    assert {name for name, one in config.items() if one["origin"] == "tuned"} == set(winner["settings"])

    assert main(["simulate", "hpl", "--machine", "tuned", "--ranks", "1", "-N", "4096", "--nb", "64"]) == 0
    assert main(["plan", "hpl", "--machine", "tuned", "--ranks", "1"]) == 0
    assert "this machine, 1 rank of 1 thread" in capsys.readouterr().out
    assert "mxpeak tune --ranks 7" in error_of(capsys, 2, "simulate", "hpl", "--machine", "tuned", "--ranks", "7")

    assert main(SMALL) == 0  # no measurement is left
    shown = capsys.readouterr().out
    for word in ("GEMM fp64", "GETRF, panel", "leading dim", "check of hpl, N = 256", "median", "spread", "stored in"):
        assert word in shown


def test_an_interrupted_tune_says_that_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(self: StartedRanks, job: TuneJob) -> None:
        raise Stopped(130)

    monkeypatch.setattr(StartedRanks, "do", interrupted)
    assert "the next mxpeak tune continues" in error_of(capsys, 130, *SMALL)


def test_fresh_forgets(
    nothing_tuned: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = this_store()
    store.note([{"kind": "kernel", "name": "gemm"}])
    put(settings={"nb": "64"})
    monkeypatch.setattr(probe_module, "SECONDS", 0.0)  # three repetitions of each kernel
    monkeypatch.setattr(StartedRanks, "do", lambda self, job: None)
    assert main([*SMALL, "--fresh", "--quiet"]) == 0
    assert store.journal()[0] == [one for one in store.journal()[0] if one["kind"] == "plan"]
    assert store.book()[0].winners == {}


@pytest.fixture
def own_library(tmp_path: Path) -> Path:
    """A file with the BLAS routines of integers with errors in dgemm, compiled in C."""
    return library(tmp_path, error="1")


def test_a_library_that_cannot_be_used_is_refused_before_anything_is_deleted_or_measured(
    nothing_tuned: Path, own_library: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(StartedRanks, "do", lambda self, job: perform(job, Solo(), lambda text: None))
    put(settings={"nb": "64"})
    for name, why in (("no/such.so", "there is no such file"), (str(own_library), "gives wrong results")):
        said = error_of(capsys, 5, *SMALL, "--fresh", "--quiet", "--blas", name)
        assert str(Path(name).absolute()) in said
        assert why in said
    assert len(this_store().book()[0].winners) == 1
    assert this_store().journal()[0] == []
    assert not list(Path("mxpeak-out").glob("*"))


def test_a_library_that_crashes_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def crashes(self: StartedRanks, job: TuneJob) -> None:
        raise Stopped(128 + signal.SIGILL)

    monkeypatch.setattr(StartedRanks, "do", crashes)
    assert "--blas blis: the library crashes with SIGILL" in error_of(capsys, 5, *SMALL, "--quiet", "--blas", "blis")


def test_a_gpu_has_no_blas_libraries_to_compare(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mxpeak.runtime.tuned.device_of", lambda kernels, device: "cuda")
    assert "--blas does not apply to GPUs" in error_of(capsys, 2, "tune", "hpl", "--blas", "blis")


def test_an_installed_library_is_tuned_and_run(
    small_kernels_here: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        measured = blas_file("blis")
    except ResourceError as error:
        pytest.skip(str(error))
    assert main([*SMALL, "--blas", "scipy,blis", "--json", "-"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["config"]["blas"] == {"blis": measured}
    trials = [r for r in body["trials"] if r["settings"].get("blas") == "blis"]
    assert trials
    assert all(r["passed"] and r["library"] == measured for r in trials)
    assert [r["blas"] for r in body["libraries"]["hpl"]] == ["scipy", "blis"]
    (winner,) = body["winners"]
    assert winner["library"] == (measured if "blas" in winner["settings"] else {})

    put(settings={"blas": "blis"}, library=measured)  # although another candidate may be faster on this machine
    assert main(RUN) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["config"]["blas"] == {"value": measured["file"], "origin": "tuned"}
    assert result["software"]["blas"]["library"] == "blis"
    assert config_of(capsys, "--blas", "scipy")["blas"]["origin"] == "flag"
    put(settings={"blas": "blis"}, library={**measured, "file": "/no/such/libblis.so"})
    assert main([*RUN[: RUN.index("--quiet")], "--json", "gone.json"]) == 0
    assert "which is no longer installed" in capsys.readouterr().err


def test_a_stored_library_that_cannot_be_loaded_is_named_as_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "libown.so"
    file.write_bytes(b"no code")
    own = {"file": str(file), "bytes": 7, "modified_ns": file.stat().st_mtime_ns}
    put(settings={"blas": str(file)}, library=own)
    said = error_of(capsys, 5, *RUN)
    assert f"{file} cannot be loaded" in said
    assert "stored by mxpeak tune; use --tuned no, or measure again with mxpeak tune hpl --fresh" in said
    assert "stored by" not in error_of(capsys, 5, *RUN, "--blas", str(file))
    assert main([*RUN, "--tuned", "no"]) == 0


# --- output of runs ---------------------------------------------------------------------------------------------


def put(**changed: Any) -> None:
    """Store the best settings of HPL on one rank with one thread."""
    store = this_store()
    winner = Winner(
        benchmark="hpl",
        mode="official",
        device="cpu",
        ranks=1,
        threads=1,
        any_layout=False,
        size={"n": 256},
        settings={},
    )
    book = Winners(store.facts)
    book.add(replace(winner, **changed))
    store.write_book(book)


RUN = ["run", "hpl", "-N", "100", "--threads", "1", "--ranks", "1", "--device", "cpu", "--quiet", "--json", "-"]


def config_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*RUN, *arguments]) == 0
    body = json.loads(capsys.readouterr().out)
    VALIDATOR.validate(body)
    found: dict[str, Any] = body["config"]
    return found


def test_a_run_uses_and_names_tuned_settings_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    put(settings={"nb": "24"})
    assert config_of(capsys)["nb"] == {"value": [24], "origin": "tuned"}
    assert config_of(capsys, "--nb", "32")["nb"] == {"value": [32], "origin": "flag"}
    assert config_of(capsys, "--tuned", "no")["nb"] == {"value": [192], "origin": "default"}


def test_the_text_of_a_run_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    put(settings={"nb": "24", "grid": "1x1", "bcast": "long"})
    shown = RUN[: RUN.index("--quiet")]
    assert main(shown) == 0
    assert "  set by mxpeak tune: grid 1x1, nb 24, bcast long\n" in capsys.readouterr().out
    assert main([*shown, "--tuned", "no"]) == 0
    assert "set by mxpeak tune" not in capsys.readouterr().out


def test_a_variable_and_a_file_turn_it_off(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    put(settings={"nb": "24"})
    Path("off.toml").write_text('tuned = "no"\n')
    assert config_of(capsys, "--config", "off.toml")["nb"]["origin"] == "default"
    monkeypatch.setenv("MXPEAK_TUNED", "no")
    assert config_of(capsys)["nb"]["origin"] == "default"
    assert config_of(capsys, "--tuned", "yes")["nb"]["origin"] == "tuned"


def test_a_dry_run_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    put(settings={"nb": "24"})
    assert main([*RUN[:-3], "--dry-run"]) == 0
    assert "tuned" in next(line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["nb"])


def test_a_dry_run_states_why_stored_settings_are_not_used(capsys: pytest.CaptureFixture[str]) -> None:
    put(settings={"nb": "24"}, size={"n": 10**6})
    assert main([*RUN[:-3], "--dry-run"]) == 0
    assert "note: stored settings are not used: tuned at N = 1000000" in capsys.readouterr().out


def test_doctor_lists_stored_settings_and_searches_that_were_cut_short(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    assert "no settings are stored for this machine" in capsys.readouterr().out
    put(settings={"nb": "24"}, runs_left=3)
    assert main(["doctor"]) == 0
    assert "--nb 24 (3 runs missing; repeat the mxpeak tune command to continue the search)" in capsys.readouterr().out


def test_a_corrupted_store_is_a_note_and_no_end(capsys: pytest.CaptureFixture[str]) -> None:
    store = this_store()
    store.write(store.book_file, "{ broken")
    assert main(["run", "hpl", "-N", "64", "--threads", "1", "--device", "cpu"]) == 0
    said = capsys.readouterr().err
    assert "note: " in said
    assert str(store.book_file) in said


# --- ranks of a launcher ----------------------------------------------------------------------------------------


def test_standing_ranks_do_jobs_until_they_are_dismissed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scripted(Solo):
        """A communicator that returns these objects of rank 0, one per broadcast."""

        def __init__(self, words: list[Any]):
            super().__init__()
            self.words = words

        def bcast_object(self, obj: Any, root: int = 0) -> Any:
            return self.words.pop(0)

    job = TuneJob(ranks=2, threads=1, device="cpu", kernels="auto", tasks=[], journal="", until_unix=0.0)
    done: list[TuneJob] = []
    monkeypatch.setattr("mxpeak.verbs.tune.groups.perform", lambda job, comm, say: done.append(job))
    LaunchedRanks(Scripted([job, job, None]), print).serve()
    assert done == [job, job]
    assert TuneJob(**json.loads(json.dumps(asdict(job)))) == job


@pytest.mark.parametrize("on_all", [True, False])
def test_an_error_of_a_job_ends_all_ranks_of_a_launcher_at_the_same_broadcast(
    monkeypatch: pytest.MonkeyPatch, on_all: bool
) -> None:
    """The error occurs on all ranks, such as a missing device, or on rank 0 only, such as a full disk."""
    job = TuneJob(ranks=2, threads=1, device="cuda", kernels="auto", tasks=[], journal="", until_unix=0.0)

    def perform(job: TuneJob, comm: Communicator, say: object) -> None:
        if on_all or comm.rank == 0:
            raise ResourceError("no such device")

    def lead(args: Namespace, session: object, group: LaunchedRanks, layout: object) -> int:
        group.do(job)
        return 0

    monkeypatch.setattr(groups, "perform", perform)
    monkeypatch.setattr(command, "_lead", lead)

    def rank(comm: Communicator) -> tuple[int, str]:
        try:
            code = command._follow(Namespace(comm="auto", ranks=None, threads=1, quiet=True), Session(), comm)
        except ResourceError as error:  # rank 0 reports it
            code = int(error.exit_code) if comm.rank == 0 else -1
        return code, comm.bcast_object("next" if comm.rank == 0 else "")

    assert run_ranks(2, rank) == [(5, "next")] * 2


def test_a_failed_trial_states_its_reason() -> None:
    record = {"kind": "trial", "ranks": 1, "threads": 2, "benchmark": "hpl", "phase": "search", "settings": {}}
    said = line({**record, "passed": False, "rate_flops": 0.0, "failed": "N=9 needs more memory"})
    assert said == "tune 1x2 hpl search  defaults  failed: N=9 needs more memory"
    assert line({**record, "passed": False, "rate_flops": 0.0}) == "tune 1x2 hpl search  defaults  failed"


@pytest.mark.parametrize(
    ("measured", "text"),
    [
        ({"name": "gemm", "rate": 41.6e9}, "41.6 GFLOP/s"),
        ({"name": "read", "rate": 3.23e9}, "3.23 GB/s"),
        ({"name": "generate", "rate": 0.706e9}, "0.706e9 entries/s"),
        ({"name": "rows", "bytes": 1e6, "seconds": 2e-6}, "2 µs"),
    ],
)
def test_a_line_about_a_kernel_has_the_unit_of_its_rate(measured: dict[str, Any], text: str):
    record = {"kind": "kernel", "ranks": 1, "threads": 2, "m": 48, **measured}
    assert line(record).endswith(f"  {text}")
