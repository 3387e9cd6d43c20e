"""Test that a run with a killed, stopped or missing part ends with a message and without remains.

A few of them by default; `-m exhaustive` selects all others, which take most of an hour. -rP prints how each ended.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults import (
    BY_DATA,
    Job,
    at_work,
    beginning,
    by_itself,
    by_mpiexec,
    by_python,
    by_torchrun,
    by_two_hosts,
    job,
    may_have_hosts,
    may_mount,
    set_up,
    stall,
    with_mounts,
)
from tests.support.ranks import MPIEXEC, PYTHON, needs_mpi
from tests.support.result_file import VALIDATOR

pytestmark = needs_mpi

BENCHMARKS = ("hpl", "hpl-mxp", "hpg-mxp", "hpcg", "norms")
MOMENTS = {"beginning": beginning, "set-up": set_up, "work": at_work}
#: The started command, and the process of it that gets the signal.
STARTED: dict[str, tuple[Callable[..., list[str]], Callable[[Job], int]]] = {
    "rank 0": (by_itself, lambda job: job.rank(0)),
    "rank 1": (by_itself, lambda job: job.rank(1)),
    "mxpeak --ranks": (by_itself, lambda job: job.process.pid),
    "mpiexec": (by_mpiexec, lambda job: job.process.pid),
    "a rank of torchrun": (by_torchrun, lambda job: job.rank(1)),
    "torchrun": (by_torchrun, lambda job: job.process.pid),
    "a program that calls mx.run.hpl": (by_python, lambda job: job.process.pid),
}
SIGNALS = ("SIGKILL", "SIGQUIT", "SIGSEGV", "SIGTERM", "SIGINT", "SIGHUP")
CRASHES = ("SIGBUS", "SIGFPE", "SIGILL", "SIGABRT")
ASKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: Benchmark, process, signal and moment. Further tests kill a rank of HPCG and send a signal to mpiexec of HPG-MxP.
SHORT = [
    ("hpl-mxp", "mxpeak --ranks", "SIGKILL", "work"),
    ("hpl", "a program that calls mx.run.hpl", "SIGKILL", "beginning"),
    ("norms", "a rank of torchrun", "SIGKILL", "set-up"),
    ("hpl", "rank 1", "SIGBUS", "work"),
]
WITHOUT_PROGRAM = [name for name in STARTED if "program" not in name]
WHOLE = [
    *product(BENCHMARKS[:-1], WITHOUT_PROGRAM, ["SIGKILL", "SIGTERM"], ["set-up", "work"]),
    *product(["norms"], WITHOUT_PROGRAM, ["SIGKILL", "SIGTERM"], ["set-up"]),  # norms has no steps
    *product(["hpl", "hpcg"], ["rank 1", "mxpeak --ranks", "mpiexec"], SIGNALS, list(MOMENTS)),
    *product(["hpl"], ["a program that calls mx.run.hpl"], SIGNALS, ["beginning"]),
    *product(["hpl"], ["rank 0", "rank 1"], CRASHES, ["work"]),
]
exhaustive = pytest.mark.exhaustive


def with_all(few: Iterable[Any], whole: Iterable[Any]) -> list[Any]:
    """Return the few cases, and all others with the mark `exhaustive`."""
    few = list(few)
    others = [case for case in dict.fromkeys(whole) if case not in few]
    return few + [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=exhaustive) for case in others]


#: The message of rank 0 if rank 1 no longer answers.
WAITS = {"hpl": r"this rank waits for (a message (from|to be received by) rank 1|.* all 2 ranks of 0 to 1)$"}
#: Small problems with narrow blocks or many repeats: they start fast, and run long enough.
NARROW = ("-N", "5000", "--nb", "8")
SOON = {"hpl": NARROW, "hpl-mxp": NARROW, "norms": ("-N", "3000", "--repeat", "10000")}


def soon(request: pytest.FixtureRequest, benchmark: str) -> tuple[str, ...]:
    """Return the flags of a short run by default, and none for exhaustive tests, which take longer."""
    return () if request.node.get_closest_marker("exhaustive") else SOON[benchmark]


needs_mounts = pytest.mark.skipif(not may_mount(), reason="mounts of one's own: unshare --mount")


@pytest.mark.parametrize(("benchmark", "victim", "name", "moment"), with_all(SHORT, WHOLE))
def test_a_signal_ends_the_whole_run(
    tmp_path: Path, benchmark: str, victim: str, name: str, moment: str, request: pytest.FixtureRequest
) -> None:
    start, hit = STARTED[victim]
    number = getattr(signal, name)
    with job(tmp_path, start(benchmark, *soon(request, benchmark))) as run:
        run.wait_for(MOMENTS[moment], moment)
        os.kill(hit(run), number)
        code, after_s = run.ended()
        message = run.stderr()
    last = " | ".join(message.splitlines()[-4:])[-300:]
    print(f"{benchmark} {victim} {name} {moment}: code {code} after {after_s:.1f} s: {last}")
    codes = ended_by(number, victim, moment)
    assert code in codes, message
    early = moment == "beginning" and "mxpeak/cli" not in message  # the signal came while Python started
    assert "Traceback" not in message or "torchrun" in victim or "program" in victim or early, message
    called = {f"a rank was ended by {signal.Signals(one - 128).name}" for one in codes if one > 128}
    assert victim not in ("rank 0", "rank 1") or number in ASKED or any(one in message for one in called)
    nothing_torn(tmp_path / "results")
    unheard = (victim, name) == ("mpiexec", "SIGHUP")
    if number in ASKED and moment != "beginning" and not unheard:
        assert (tmp_path / "results" / "result.json").exists(), "rank 0 has heard of it"


def ended_by(number: int, victim: str, moment: str) -> tuple[int, ...]:
    """Return the possible exit codes of a command after one of its processes got this signal."""
    if victim in ("rank 0", "rank 1"):  # the code of the rank, or that of the signal that ended it
        # Before mxpeak starts, only the signal counts: MPICH's mpiexec ORs it with 9, because it kills the other rank.
        return (128 + number, 128 + (number | 9)) if moment == "beginning" else (128 + number,)
    if "torchrun" in victim:  # torchrun sometimes aborts at its end, after its ranks have ended
        return (-number, 1, 128 + number, *((-signal.SIGABRT,) if number in ASKED else ()))
    if victim == "mpiexec":  # which forwards it, and returns the numbers of signals that end ranks silently
        silent = moment == "beginning" or number == signal.SIGQUIT
        return (-number, 128 + number, 1, *((number, number | 9) if silent else ()))
    return (-number, 128 + number)


def nothing_torn(results: Path) -> None:
    """Check that results are complete or absent, and that no partial file is left."""
    for path in results.glob("*") if results.exists() else ():
        assert not path.name.endswith(".part"), path
        if path.suffix == ".json":
            result = json.loads(path.read_text())
            VALIDATOR.validate(result)
            assert all(one["status"] == "aborted" for one in result["results"])


#: Every Python process of a run imports this: partial results are written every second instead of every ten.
OFTEN = "from mxpeak.cli import partial_results\npartial_results.EVERY_S = 1.0\n"


@pytest.mark.parametrize(
    ("benchmark", "victim", "name"),
    with_all(
        [("hpcg", "rank 1", "SIGKILL"), ("hpg-mxp", "mpiexec", "SIGTERM")],
        product(["hpcg", "hpg-mxp"], ["rank 1", "mxpeak --ranks", "mpiexec"], ["SIGKILL", "SIGTERM", "SIGINT"]),
    ),
)
def test_finished_solves_are_kept(tmp_path: Path, benchmark: str, victim: str, name: str) -> None:
    """They are in the result if there is time to write one, and otherwise in the partial results."""
    start, hit = STARTED[victim]
    number, results = getattr(signal, name), tmp_path / "results"
    (tmp_path / "sitecustomize.py").write_text(OFTEN)
    places = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with job(tmp_path, start(benchmark, "--nx", "16"), PYTHONPATH=places) as run:
        run.wait_for(lambda _: (results / "so-far.json").exists(), "a finished solve")
        os.kill(hit(run), number)
        code, after_s = run.ended()
        message = run.stderr()
    print(f"{benchmark} {victim} {name}: code {code} after {after_s:.1f} s")
    assert code in ended_by(number, victim, "work"), message
    nothing_torn(results)
    whole = results / "result.json"
    known = json.loads((whole if whole.exists() else results / "so-far.json").read_text())["results"][0]
    finished = known["telemetry"]["aborted"]["finished"]
    assert finished["solves"] == len(known["samples_s"]) > 0
    assert finished["rate_flops"] > 0
    assert finished["passed"]
    assert number == signal.SIGKILL or whole.exists(), "rank 0 has heard of it"


@pytest.mark.parametrize("benchmark", with_all(["hpl"], BENCHMARKS[:-1]))
def test_a_stopped_rank_is_named(tmp_path: Path, benchmark: str, request: pytest.FixtureRequest) -> None:
    with job(tmp_path, by_itself(benchmark, "--watchdog", "5,3", *soon(request, benchmark))) as run:
        run.wait_for(at_work, "work")
        os.kill(run.rank(1), signal.SIGSTOP)
        code, after_s = run.ended()
        message = run.stderr()
    print(f"{benchmark} stopped: code {code} after {after_s:.1f} s")
    assert code == 6, message
    assert "[rank 0 " in message
    assert "[rank 1 " not in message
    waits = WAITS.get(benchmark, "this rank waits for")
    assert re.search(waits, message, re.MULTILINE), message
    nothing_torn(tmp_path / "results")
    result = json.loads((tmp_path / "results" / "result.json").read_text())
    assert re.search(waits, result["telemetry"]["aborted"]["reason"])


#: A script for a rank that stops itself when it calls a function.
STOPS = """
import os, signal
if os.environ.get("PMI_RANK") == "{rank}":
    import {module} as module
    whole = module.{function}
    def stops(*args, **named):
        os.kill(os.getpid(), signal.SIGSTOP)
        return whole(*args, **named)
    module.{function} = stops
"""

#: Rank 0 of a scan gets a signal in its seventh measure, which is in the third round if each round has three.
INTERRUPTS_A_SCAN = """
import os, signal
if os.environ.get("PMI_RANK") == "0":
    import mxpeak.verbs.scan.run as run
    whole, calls = run.timed, []
    def timed(*args):
        calls.append(args)
        if len(calls) == 7:
            os.kill(os.getpid(), signal.SIGTERM)
        return whole(*args)
    run.timed = timed
"""


def ended_by_a_stop(tmp_path: Path, rank: int, function: str, *flags: str) -> tuple[int, float, str]:
    """Run HPL with a rank that is stopped in `function`; return the exit code, the time and the standard error."""
    module, _, name = function.partition(":")
    (tmp_path / "sitecustomize.py").write_text(STOPS.format(rank=rank, module=module, function=name))
    places = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with job(tmp_path, [*small_run(), "--watchdog", "5,1", *flags], PYTHONPATH=places) as run:
        code, after_s = run.ended()
        message = run.stderr()
    return code, after_s, message


@pytest.mark.parametrize(
    ("phase", "rank", "function"),
    [
        ("set-up", 1, "mxpeak.bench.hpl.run:fill"),
        ("checks", 1, "mxpeak.bench.hpl.run:residual_norms"),
        ("writing", 0, "mxpeak.cli.run:Execution._write"),
    ],
)
def test_a_rank_that_is_stopped_outside_of_the_computation_is_named(
    tmp_path: Path, phase: str, rank: int, function: str
) -> None:
    """The rank is reported within the minimum time of --watchdog, although its message may take ten minutes."""
    code, after_s, message = ended_by_a_stop(tmp_path, rank, function)
    print(f"hpl stopped in {phase}: code {code} after {after_s:.1f} s")
    assert code == 6, message
    named = rf"^\[rank {1 - rank} .*error: {phase}: rank {rank} on \S+ has been stopped for [12]"
    assert re.search(named, message, re.MULTILINE), message
    assert after_s < 60.0
    assert "Traceback" not in message


@pytest.mark.parametrize(
    ("rank", "function", "status"),
    [
        (1, "mxpeak.cli.run:most_severe", "valid"),  # before it receives the exit code
        (1, "mxpeak.cli.observers:RunObservers.close", "valid"),  # before MPI_Finalize
        (0, "mxpeak.cli.observers:RunObservers.close", "valid"),
        (1, "mxpeak.cli.observers:RunObservers.close", "invalid"),
    ],
)
def test_a_rank_that_is_stopped_after_the_result_is_named(
    tmp_path: Path, rank: int, function: str, status: str
) -> None:
    flags = ["--threshold", "1e-9"] if status == "invalid" else []
    code, after_s, message = ended_by_a_stop(tmp_path, rank, function, *flags)
    assert code == 6, message
    waits = "this rank waits for (the broadcast of rank 0|(a barrier|MPI_Finalize) of all 2 ranks)"
    named = rf"^\[rank {1 - rank} .*error: exit: rank {rank} on \S+ has been stopped for [12].*; {waits}.*; the results"
    assert re.search(named + " in results/result.json are complete$", message, re.MULTILINE), message
    assert json.loads((tmp_path / "results" / "result.json").read_text())["results"][0]["status"] == status
    assert after_s < 60.0
    assert "Traceback" not in message


#: A script that delays the end of rank 1 after MPI_Finalize.
ENDS_LATE = """
import os, time
if os.environ.get("PMI_RANK") == "1":
    import mxpeak.comm.transports.mpi as mpi
    finalize = mpi.finalize
    def finalize_and_wait():
        finalize()
        time.sleep(2)
    mpi.finalize = finalize_and_wait
"""


@pytest.mark.parametrize(("threshold", "code"), [("16", 0), ("1e-9", 3)])
def test_ranks_end_at_different_times(tmp_path: Path, threshold: str, code: int) -> None:
    """The launcher must not kill a rank because another rank has ended after MPI_Finalize."""
    (tmp_path / "sitecustomize.py").write_text(ENDS_LATE)
    places = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with job(tmp_path, [*small_run(), "--threshold", threshold], PYTHONPATH=places) as run:
        ended, after_s = run.ended()
        message = run.stderr()
    assert (ended, message) == (code, "results in results/\n")
    assert after_s > 2.0


@pytest.mark.parametrize("function", ["mxpeak.cli.observers:ranks_of_this_node", "mxpeak.bench.harness:load_kernels"])
def test_a_signal_during_the_start_leaves_an_aborted_result(tmp_path: Path, function: str) -> None:
    """Rank 1 ends before a collective operation, for which rank 0 waits."""
    module, _, name = function.partition(":")
    hit = STOPS.format(rank=1, module=module, function=name).replace("SIGSTOP", "SIGTERM")
    (tmp_path / "sitecustomize.py").write_text(hit)
    places = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with job(tmp_path, small_run(), PYTHONPATH=places) as run:
        code, _ = run.ended()
        message = run.stderr()
    assert code == 128 + signal.SIGTERM, message
    nothing_torn(tmp_path / "results")
    (result,) = json.loads((tmp_path / "results" / "result.json").read_text())["results"]
    assert (result["status"], result["problem"]) == ("aborted", {"n": 500, "nb": 192})
    assert result["telemetry"]["aborted"]["reason"] == "ended by signal 15"
    assert (tmp_path / "results" / "report.html").exists()
    assert "Traceback" not in message


def test_a_scan_names_a_rank_that_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(STOPS.format(rank=1, module="mxpeak.verbs.scan.run", function="timed"))
    places = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    command = [*PYTHON, "scan", "--ranks", "2", "-N", "64", "--nb", "16", "--watchdog", "5,1"]
    with job(tmp_path, command, PYTHONPATH=places) as run:
        code, after_s = run.ended()
        message = run.stderr()
    assert code == 6, message
    assert re.search(r"^\[rank 0 .*error: .*rank 1 on \S+ has been stopped for [12]", message, re.MULTILINE), message
    assert after_s < 60.0
    assert "Traceback" not in message


def test_a_signal_during_a_scan_leaves_the_complete_rounds(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTS_A_SCAN)
    places = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    flags = ["--rounds", "9", "--warmup", "none", "--links", "--out", "results"]
    with job(tmp_path, [*PYTHON, "scan", "--ranks", "2", "-N", "64", "--nb", "16", *flags], PYTHONPATH=places) as run:
        code, _ = run.ended()
        message = run.stderr()
    assert code == 128 + signal.SIGTERM, message
    said = "the scan ended after 2 of 9 rounds: ended by signal 15; the links have no result"
    assert f"warning: {said} [interrupted]" in message
    body = json.loads((tmp_path / "results" / "result.json").read_text())
    assert (body["problem"]["rounds"], body["warnings"][-1]["text"], "links" in body) == (2, said, False)
    assert [[len(rounds) for rounds in rank["rates"].values()] for rank in body["ranks"]] == [[2, 2, 2]] * 2
    assert (tmp_path / "results" / "report.html").exists()
    assert "Traceback" not in message


@exhaustive
@pytest.mark.parametrize("benchmark", ["hpl", "hpg-mxp"])
def test_a_stalled_link_is_reported_with_the_ranks_that_wait(tmp_path: Path, benchmark: str) -> None:
    """The hosts are network namespaces; the connection of the launcher is not affected."""
    if not may_have_hosts(tmp_path):
        pytest.skip("hosts of one's own: unshare --net --uts, ip link add type veth")
    with job(tmp_path, by_two_hosts(benchmark, "--watchdog", "5,3"), **BY_DATA) as run:
        run.wait_for(at_work, "work")
        stall(run.rank(1))
        code, after_s = run.ended()
        message = run.stderr()
    print(f"{benchmark} stalled: code {code} after {after_s:.1f} s: {message[-300:]}")
    assert code == 6, message
    assert re.search(r"\[rank [01] .*this rank waits for .*rank", message), message
    nothing_torn(tmp_path / "results")


@exhaustive
@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_results_are_on_stdout_where_their_folder_is_gone(tmp_path: Path, benchmark: str) -> None:
    short = {"hpl": ["-N", "6000"], "hpl-mxp": ["-N", "6000"], "norms": ["-N", "3000"]}.get(benchmark, ["--nx", "16"])
    short += ["--rt", "5"] if "hp" in benchmark and "l" not in benchmark else []
    command = [*PYTHON, "run", benchmark, *short, "--ranks", "2", "--events", "events", "--out", "results"]
    with job(tmp_path, command) as run:
        run.wait_for(set_up, "set-up")
        shutil.rmtree(tmp_path / "results")
        code, _ = run.ended()
        message, shown = run.stderr(), (tmp_path / "stdout").read_text()
    assert code == 5, message
    assert "the result is on stdout only" in message
    assert "PASSED" in shown


@exhaustive
@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_an_address_space_that_is_too_small_is_no_bug(tmp_path: Path, benchmark: str) -> None:
    small: Any = (3 << 30, 3 << 30)
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (small[0], before[1]))
    try:
        sizes = {"hpl": ["-N", "30000"], "hpl-mxp": ["-N", "40000"], "norms": ["-N", "30000"]}
        command = [*PYTHON, "run", benchmark, *sizes.get(benchmark, ["--nx", "256", "--rt", "5"]), "--mem", "99%"]
        with job(tmp_path, [*command, "--ranks", "2", "--out", "results"]) as run:
            code, after_s = run.ended()
            message = run.stderr()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    print(f"{benchmark} ulimit -v: code {code} after {after_s:.1f} s: {message[-300:]}")
    assert code == 5, message
    assert "Traceback" not in message
    nothing_torn(tmp_path / "results")


@exhaustive
def test_no_home_and_no_cache_hinder_no_run(tmp_path: Path) -> None:
    runs_without_folders(tmp_path, Path("/proc/none"), small_run())


@exhaustive
@needs_mounts
def test_a_home_and_a_cache_that_are_read_only_hinder_no_run(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    runs_without_folders(tmp_path, home, with_mounts({str(home): "ro"}, small_run()))


def small_run() -> list[str]:
    return [*PYTHON, "run", "hpl", "-N", "500", "--ranks", "2", "--out", "results"]


def runs_without_folders(tmp_path: Path, folder: Path, command: list[str]) -> None:
    """Check that a run is valid if it can write to neither folder of its user."""
    folders = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MXPEAK_CACHE_DIR"), str(folder))
    with job(tmp_path, command, **folders) as run:
        code, after_s = run.ended()
        message = run.stderr()
    print(f"hpl without {folder.name}: code {code} after {after_s:.1f} s: {message[-300:]}")
    assert code == 0, message
    assert "Traceback" not in message


@exhaustive
@needs_mounts
@pytest.mark.parametrize(
    ("flags", "ends", "says"),
    [
        (["--out", "disk/results"], 5, "the result is on stdout only"),
        (
            ["--out", "results", "--checkpoint", "disk/kept", "--every", "0.000001s"],
            0,
            "a checkpoint could not be written",
        ),
    ],
    ids=["results", "checkpoints"],
)
def test_a_disk_that_is_full_costs_no_result(tmp_path: Path, flags: list[str], ends: int, says: str) -> None:
    """A disk of one page holds neither a result nor a part of a checkpoint."""
    (tmp_path / "disk").mkdir()
    command = [*PYTHON, "run", "hpl", "-N", "2000", "--ranks", "2", *flags]
    with job(tmp_path, with_mounts({str(tmp_path / "disk"): "size=4k"}, command)) as run:
        code, after_s = run.ended()
        message, shown = run.stderr(), (tmp_path / "stdout").read_text()
    print(f"hpl, a full disk: code {code} after {after_s:.1f} s: {message[-300:]}")
    assert code == ends, message
    assert says in message + shown
    assert "PASSED" in shown
    assert "Traceback" not in message


#: A script in which rank 1 cannot import this package.
LACKS = """
import os, runpy, sys
class Lacks:
    def find_spec(name, *rest):
        if name == "{package}" and os.environ["PMI_RANK"] == "1":
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Lacks)
sys.argv = ["mxpeak", "run", "hpl", "-N", "500"]
runpy.run_module("mxpeak", run_name="__main__")
"""


@pytest.mark.parametrize("package", with_all(["numpy"], ["mxpeak.comm.transports.mpi"]))
def test_a_rank_that_cannot_begin_ends_all(tmp_path: Path, package: str) -> None:
    """MPICH's mpiexec does not detect its end: the other rank would wait for it forever."""
    with job(tmp_path, [str(MPIEXEC), "-n", "2", sys.executable, "-c", LACKS.format(package=package)]) as run:
        code, after_s = run.ended()
        message = run.stderr()
    print(f"hpl, rank 1 has no {package}: code {code} after {after_s:.1f} s: {message[-300:]}")
    assert code == 1, message
    assert all(line.startswith("[rank 1 ") for line in message.splitlines())
    assert package.split(".")[0] in message


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_cost_no_result(tmp_path: Path, closed: str) -> None:
    """MPICH's mpiexec ends with 255 if a daemon, or a shell, has closed its stdout or stderr."""
    command = shlex.join([*small_run()])
    done = subprocess.run(["sh", "-c", f"exec {command} {closed}"], cwd=tmp_path, timeout=120, capture_output=True)
    assert done.returncode == 0
    result = json.loads((tmp_path / "results" / "result.json").read_text())
    VALIDATOR.validate(result)
    assert result["results"][0]["status"] == "valid"


@pytest.mark.parametrize(("stdout", "code"), [(">/dev/full", 5), ("| true", 0)])
def test_a_stdout_that_takes_nothing_costs_no_result(tmp_path: Path, stdout: str, code: int) -> None:
    """MPICH's mpiexec ends with 255 if it cannot write; a reader may end at any time."""
    command = f"set -o pipefail; {shlex.join(small_run())} {stdout}"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, timeout=240, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert ("cannot write to stdout: No space left on device" in done.stderr) == (code == 5)
    result = json.loads((tmp_path / "results" / "result.json").read_text())
    assert result["results"][0]["status"] == "valid"


#: A daemon that calls the library.
DAEMON = "import mxpeak as mx; result = mx.run.hpl(n=300, ranks=2); open('status', 'w').write(result.status)"


def test_a_program_without_streams_starts_ranks(tmp_path: Path) -> None:
    command = shlex.join([sys.executable, "-c", DAEMON])
    done = subprocess.run(["sh", "-c", f"exec {command} <&- >&- 2>&-"], cwd=tmp_path, timeout=120)
    assert done.returncode == 0
    assert (tmp_path / "status").read_text() == "valid"


@needs_mounts
def test_a_full_dev_shm_is_named(tmp_path: Path) -> None:
    """MPI's messages on a node do not fit there: a rank fails before the first step, without a message of MPI."""
    with job(tmp_path, with_mounts({"/dev/shm": "size=64k"}, small_run())) as run:
        code, after_s = run.ended()
        message = run.stderr()
    print(f"hpl, /dev/shm of 64 KiB: code {code} after {after_s:.1f} s: {message[-300:]}")
    assert code == 128 + signal.SIGBUS, message
    assert "a rank was ended by SIGBUS" in message
    assert "check whether /dev/shm or a disk is full" in message
    nothing_torn(tmp_path / "results")
