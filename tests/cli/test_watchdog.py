"""Test that a rank that hangs is reported and ends all ranks, and that a slow rank does not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mxpeak.cli import main as cli
from mxpeak.cli import ranks
from mxpeak.cli import session as sessions
from mxpeak.cli.observers import HostsOfRanks, stopped
from mxpeak.comm import base
from mxpeak.configs.run import PlaceConfig
from mxpeak.errors import UsageError
from mxpeak.options import stall_limits
from mxpeak.spans import Spans
from mxpeak.watch.watchdog import FIRST, OUTSIDE_S, WRITING, Watchdog
from tests.support.cli import Bench, Comm, use_fakes
from tests.support.result_file import VALIDATOR

FACTOR, MIN_S = 10.0, 60.0


class Scene:
    """A rank and its watchdog, with a clock that the test advances."""

    def __init__(self, waiting: str = "") -> None:
        self.now = 0.0
        self.dog = Watchdog(FACTOR, MIN_S, lambda text: None, lambda: waiting, clock=lambda: self.now)
        self.spans = Spans(clock=lambda: self.now)
        self.dog.follow(self.spans)

    def passes(self, seconds: float) -> str | None:
        """Advance the clock by so many seconds, check as often as the watchdog does, and return its first message."""
        for _ in range(round(seconds / self.dog.look_s)):
            self.now += self.dog.look_s
            if (said := self.dog.look()) is not None:
                return said
        return None

    def steps(self, count: int, seconds: float) -> None:
        self.spans.start("HPL N=9", 1.0)
        for k in range(1, count + 1):
            assert self.passes(seconds) is None
            self.spans.step(k, 100, 0.0)


def test_a_stall_names_step_phase_and_whom_the_rank_waits_for() -> None:
    scene = Scene(waiting="a message from rank 3")
    scene.steps(17, 2.0)
    with scene.spans("update"), scene.spans("bcast"):
        assert scene.passes(MIN_S) is None
        said = scene.passes(3.0)
    assert said == (
        "HPL N=9: no progress for 60.0 s (the longest step took 2.00 s); after step 17, in bcast, this rank "
        "waits for a message from rank 3"
    )


def test_a_rank_that_waits_for_no_message_reports_so() -> None:
    scene = Scene()
    scene.steps(1, 2.0)
    assert "between its phases, this rank waits for no message" in str(scene.passes(2 * MIN_S))


def test_the_host_of_the_stalled_rank_is_named() -> None:
    names = ["node1", "node1", "node2", "node1", "node3", "node3"]

    class Gathered(Comm):
        def gather_objects(self, obj: Any) -> list[Any]:
            return names

    session = sessions.Session()
    session.comm = Gathered(size=6)  # type: ignore[assignment]
    hosts = HostsOfRanks(session)
    for rank, name in enumerate(names):
        assert hosts.named(f"a message from rank {rank}") == f"a message from rank {rank} on {name}"
    assert hosts.named("a message from rank 1, a message to be received by rank 4") == (
        "a message from rank 1 on node1, a message to be received by rank 4 on node3"
    )
    assert hosts.named("this rank's device") == "this rank's device"


@pytest.mark.parametrize("longest", [7.0, 20.0])
def test_steps_that_take_long_are_granted_a_multiple_of_the_longest(longest: float) -> None:
    scene = Scene()
    scene.steps(3, longest)
    assert scene.passes(FACTOR * longest) is None
    assert scene.passes(3.0) is not None


def test_the_first_step_is_granted_longer() -> None:
    scene = Scene()
    scene.spans.start("HPL N=9", 1.0)
    assert scene.passes(FIRST * MIN_S) is None
    assert "in the first step" in str(scene.passes(3.0))


def test_spans_that_begin_and_end_are_no_stall_however_long_a_step_takes() -> None:
    scene = Scene()
    scene.steps(1, 1.0)
    for _ in range(20):
        with scene.spans("matvec"):
            assert scene.passes(MIN_S / 2) is None
        assert scene.passes(MIN_S / 2) is None


def test_nothing_is_watched_before_and_after_a_computation() -> None:
    scene = Scene()
    assert scene.passes(100 * MIN_S) is None
    scene.steps(1, 1.0)
    scene.spans.finish()
    assert scene.passes(100 * MIN_S) is None


def test_a_wait_for_one_message_before_a_computation_is_a_stall() -> None:
    scene, message = Scene(waiting="a message from rank 3"), object()
    awaited = [message]
    scene.dog = Watchdog(FACTOR, MIN_S, print, lambda: "rank 3", clock=lambda: scene.now, message=lambda: awaited[0])
    assert scene.passes(0.9 * OUTSIDE_S) is None
    awaited[0] = object()  # one message has arrived, and the rank waits for another one
    assert scene.passes(OUTSIDE_S) is None
    assert "set-up: this rank has waited for 60" in str(scene.passes(3.0))


def test_over_several_nodes_the_limit_of_a_first_step_holds_in_set_up_and_checks() -> None:
    scene, message = Scene(), object()
    waits: Any = {"message": lambda: message, "on_node": False, "clock": lambda: scene.now}
    scene.dog = Watchdog(FACTOR, 3.0, print, lambda: "rank 3", **waits)
    assert scene.passes(0.9 * FIRST * 3.0) is None
    assert scene.passes(0.2 * FIRST * 3.0) == "set-up: this rank has waited for 30.0 s for rank 3"


def test_a_computation_between_two_looks_is_followed_by_the_checks() -> None:
    scene, still = Scene(), ["rank 1 on here"]
    scene.dog = Watchdog(FACTOR, MIN_S, print, lambda: "", clock=lambda: scene.now, stopped=lambda: list(still))
    scene.dog.follow(scene.spans)
    scene.spans.start("HPL N=9", 1.0)
    scene.spans.finish()
    assert str(scene.passes(MIN_S + 2.0)).startswith("checks: rank 1 on here has been stopped")


def test_a_rank_that_is_stopped_is_named_with_its_phase_in_every_phase() -> None:
    scene, still = Scene(), list[str]()
    scene.dog = Watchdog(
        FACTOR, MIN_S, print, lambda: "rank 3", clock=lambda: scene.now, stopped=lambda: list(still)
    )  # fmt: skip
    for phase in ("set-up", "HPL N=9, after step 2", "checks", "writing"):
        if phase == "HPL N=9, after step 2":
            scene.dog.follow(scene.spans)
            scene.steps(2, 1.0)
        elif phase == "checks":
            scene.spans.finish()
            assert scene.passes(1.0) is None
        elif phase == "writing":
            scene.dog.phase = WRITING
        still[:] = ["rank 1 on here"]
        assert scene.passes(0.9 * MIN_S) is None
        still[:] = []
        assert scene.passes(2.0) is None, "it goes on"
        still[:] = ["rank 1 on here", "rank 2 on here"]
        if phase.startswith("HPL"):
            with scene.spans("bcast"):  # a span has begun
                message = scene.passes(MIN_S + 2.0)
        else:
            message = scene.passes(MIN_S + 2.0)
        assert str(message).startswith(f"{phase}: rank 1 on here has been stopped for 6"), message
        assert str(message).endswith("this rank waits for rank 3")
        scene.dog._still.clear()
        still[:] = []


def test_linux_shows_which_processes_are_stopped() -> None:
    with subprocess.Popen(["sleep", "100"]) as sleeper:
        processes = {"rank 1": sleeper.pid, "rank 2": os.getpid(), "rank 3": 2**22 + 1}
        assert stopped(processes) == []
        os.kill(sleeper.pid, signal.SIGSTOP)
        until = time.monotonic() + 10.0
        while not (found := stopped(processes)) and time.monotonic() < until:
            time.sleep(0.01)
        assert found == ["rank 1"]
        sleeper.kill()


def test_time_in_which_the_whole_process_stood_still_does_not_count() -> None:
    scene = Scene()
    scene.steps(1, 1.0)
    for _ in range(10):
        scene.now += 3600.0
        assert scene.dog.look() is None


@pytest.mark.parametrize(("text", "limits"), [("off", None), ("10", (10, 60)), ("2.5,0.5", (2.5, 0.5))])
def test_limits_are_a_factor_and_seconds(text: str, limits: Any) -> None:
    assert stall_limits(text) == limits


@pytest.mark.parametrize("text", ["", "1", "0.5,60", "10,0", "10,", "on", "-3"])
def test_limits_that_would_end_every_run_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="use a factor above 1"):
        stall_limits(text)


# --- messages that a rank waits for -----------------------------------------------------------------------------


class Asked:
    """A request that completes after some tests; each test stores the operation that this process waits for."""

    def __init__(self, name: str, tests: int, heard: list[str]):
        self.name, self.tests, self.heard = name, tests, heard

    def test(self) -> bool:
        self.heard.append(base.waits_for())
        self.tests -= 1
        return self.tests < 0

    def wait(self) -> None:
        while not self.test():
            pass

    def about(self) -> str:
        return f"a message from {self.name}"


def test_a_process_says_what_it_waits_for_while_it_does() -> None:
    heard: list[str] = []
    requests = [Asked("rank 1", 3, heard), Asked("rank 2", 3, heard)]
    base.Task(base.together(*(base.all_of([one]) for one in requests))).wait()
    assert "a message from rank 1, a message from rank 2" in heard
    assert base.waits_for() == ""
    assert base.WAITED_FOR == []


def test_requests_that_know_nothing_of_their_peer_are_left_out() -> None:
    assert base.about(None) == ""
    assert base.about(object()) == ""  # type: ignore[arg-type]


# --- the command line -------------------------------------------------------------------------------------------


@pytest.fixture
def comm() -> Comm:
    return Comm()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, comm: Comm) -> Bench:
    """Provide a command line in an empty folder whose HPL and launcher are fakes."""
    fake = Bench()
    use_fakes(monkeypatch, tmp_path, comm, fake)
    monkeypatch.setattr(sessions, "LEAVE_S", 0.1)
    return fake


class Hangs(Bench):
    """A benchmark that waits forever in a phase of its first step."""

    def run(self, config: Any, comm: Any, **hooks: Any) -> Any:
        spans = Spans()
        hooks["follow"](spans)
        spans.start("HPL N=9", 1.0)
        with spans("bcast"):
            while True:
                time.sleep(0.01)


def test_a_stall_ends_all_ranks_with_six(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, comm: Comm, bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    use_fakes(monkeypatch, tmp_path, comm, Hangs())
    comm.size = 2
    before = signal.getsignal(signal.SIGTERM)
    assert cli.main(["run", "hpl", "--watchdog", "2,0.05", "--events", "events"]) == 6
    assert comm.aborted == [6]
    said = capsys.readouterr().err
    assert said.startswith("[rank 0 ")
    assert "HPL N=9: no progress for 0.500 s (in the first step); after step 0, in bcast" in said
    assert json.loads(Path("events").read_text().splitlines()[-1])["exit_code"] == 6
    assert signal.getsignal(signal.SIGTERM) == before


class Hit(Bench):
    """A benchmark that a signal ends before its first case."""

    def run(self, config: Any, comm: Any, **hooks: Any) -> Any:
        hit_by(signal.SIGTERM)


@pytest.mark.parametrize("benchmark", ["hpl", "hpl-mxp", "hpg-mxp", "hpcg", "norms"])
@pytest.mark.parametrize("quiet", [[], ["--quiet"]])
def test_a_signal_before_the_first_case_leaves_an_aborted_result(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    comm: Comm,
    capsys: pytest.CaptureFixture[str],
    benchmark: str,
    quiet: list[str],
) -> None:
    use_fakes(monkeypatch, tmp_path, comm, Hit())
    assert cli.main(["run", benchmark, "--out", "out", *quiet]) == 143
    body = json.loads(Path("out/result.json").read_text())
    VALIDATOR.validate(body)
    (result,) = body["results"]
    assert (result["benchmark"], result["status"]) == (benchmark, "aborted")
    assert result["telemetry"]["aborted"]["reason"] == "ended by signal 15"
    assert "ABORTED" in Path("out/report.html").read_text()
    assert "ABORTED" in capsys.readouterr().out


def test_a_signal_before_the_first_case_of_a_later_benchmark_keeps_the_earlier_results(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, comm: Comm
) -> None:
    use_fakes(monkeypatch, tmp_path, comm, Hit(), hpl=Bench())
    assert cli.main(["run", "all", "--quick", "--out", "out"]) == 143
    statuses = [each["status"] for each in json.loads(Path("out/result.json").read_text())["results"]]
    assert statuses == ["valid", "aborted"]


def test_a_run_without_a_watchdog_follows_no_spans(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mxpeak.cli.observers.Watchdog", None)
    assert cli.main(["run", "hpl", "--watchdog", "off"]) == 0


# --- signals that the main thread does not handle ---------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_main_thread_that_handles_no_signal_is_ended_by_another(
    monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    """Here the main thread gets the exception but continues, like a library that never returns."""
    ended: list[int] = []
    gone = threading.Event()

    def leave(code: int) -> None:
        ended.append(code)
        gone.set()

    monkeypatch.setattr(sessions, "LAST_S", 0.01)
    monkeypatch.setattr(sessions.os, "_exit", leave)
    with sessions.interruptible(sessions.Session()):
        with pytest.raises(sessions.Interrupted):
            hit_by(number)
        assert gone.wait(60)
    assert ended == [code]


def hit_by(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)


class Deleted:
    """An object that gets a signal in its `__del__`, where Python drops all exceptions."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def hit_while_deleting() -> None:
    Deleted()
    time.sleep(60)


@pytest.mark.parametrize("stalled", [None, "it stalls"])
def test_a_signal_that_comes_while_an_object_is_deleted_is_not_lost(stalled: str | None) -> None:
    session = sessions.Session()
    session.exiting.set()
    session.stalled = stalled
    with pytest.raises(sessions.Interrupted) as caught, sessions.interruptible(session):
        hit_while_deleting()
    assert caught.value.code == (6 if stalled else 143)


def test_nor_is_one_that_comes_so_at_the_very_end() -> None:
    session = sessions.Session()
    session.exiting.set()
    with pytest.raises(sessions.Interrupted), sessions.interruptible(session):
        Deleted()


def test_a_rank_whose_starter_is_gone_ends_as_by_a_signal(capsys: pytest.CaptureFixture[str]) -> None:
    session = sessions.Session()
    session.exiting.set()
    with sessions.interruptible(session), pytest.raises(sessions.Interrupted) as caught:
        session.parent_died(77)
    assert caught.value.code == 143
    assert "parent process 77 has ended; stopping the run" in capsys.readouterr().err


@pytest.mark.parametrize(("gone", "passed"), [(False, [signal.SIGTERM]), (True, [])])
def test_a_signal_is_passed_on_to_a_starter_that_is_still_there(
    monkeypatch: pytest.MonkeyPatch, gone: bool, passed: list[int]
) -> None:
    """The process ID of a parent that has ended may belong to another process."""
    signals: list[int] = []
    monkeypatch.setattr(sessions, "pass_on", signals.append)
    monkeypatch.setattr(sessions, "sleep", lambda seconds: None)
    monkeypatch.setattr(sessions.os, "kill", lambda *call: None)
    session, comm = sessions.Session(), Comm(rank=1, size=2)
    fake: Any = comm
    session.comm = fake
    if gone:
        session.parent_died(77)
    assert session.end_with_grace(128 + signal.SIGTERM) == 128 + signal.SIGTERM
    assert signals == passed
    assert comm.aborted == [128 + signal.SIGTERM]


@pytest.mark.parametrize(
    ("rank", "met", "launched", "codes", "waits"),
    [
        (0, False, True, [2], []),
        (1, False, True, [2], [sessions.LEAVE_S]),
        (1, False, False, [], []),
        (1, True, True, [], []),
    ],
)
def test_a_rank_that_fails_before_it_has_met_the_others_has_all_ended(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rank: int,
    met: bool,
    launched: bool,
    codes: list[int],
    waits: list[float],
) -> None:
    """Rank 0 ends all ranks; another rank does so after a delay, in case rank 0 has not."""
    ended: list[int] = []
    waited: list[float] = []
    monkeypatch.setattr(sessions, "abort_mpiexec", ended.append)
    monkeypatch.setattr(sessions, "sleep", waited.append)
    monkeypatch.setattr(sessions, "mpiexec_socket", lambda: 7 if launched else None)
    monkeypatch.setattr("mxpeak.runtime.launcher.launcher", lambda: ("mpiexec (PMI)", rank, 2))
    session = sessions.Session()
    if met:
        fake: Any = Comm(rank=rank, size=2)
        session.comm = fake
    session.abort_unjoined(session.refuse("mxpeak: error: no", 2))
    assert (ended, waited) == (codes, waits)
    name = f"[rank {rank} {os.uname().nodename}] " if rank else ""
    assert capsys.readouterr().err == (f"{name}mxpeak: error: no\n" if codes or not rank else "")


def test_an_outcome_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(sessions, "abort_mpiexec", ended.append)
    monkeypatch.setattr(sessions, "mpiexec_socket", lambda: 7)
    sessions.Session().abort_unjoined(4)
    assert ended == []


@pytest.mark.parametrize(("by_torchrun", "waits"), [(True, []), (False, [sessions.LEAVE_S])])
def test_a_rank_waits_for_rank_0_only_if_its_own_end_kills_all_ranks(
    monkeypatch: pytest.MonkeyPatch, by_torchrun: bool, waits: list[float]
) -> None:
    """torchrun sends SIGTERM to the other ranks, and gives them 30 seconds."""
    waited: list[float] = []
    monkeypatch.setattr(sessions, "torchrun_ends_all", lambda: by_torchrun)
    monkeypatch.setattr(sessions, "pass_on", lambda number: None)
    monkeypatch.setattr(sessions, "sleep", waited.append)
    session = sessions.Session()
    fake: Any = Comm(rank=1, size=2)
    session.comm = fake
    session.end_with_grace(128 + signal.SIGTERM)
    assert waited == waits


def test_a_run_with_checkpoints_is_granted_one_more_and_then_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    session = sessions.Session()
    session.grace_s = 60.0
    with sessions.interruptible(session):
        os.kill(os.getpid(), signal.SIGTERM)  # is recorded, and does not end it
        assert session.ending
        with pytest.raises(sessions.Interrupted):
            hit_by(signal.SIGTERM)
        session.exiting.set()


def test_a_run_that_reaches_no_checkpoint_in_time_ends_all_the_same() -> None:
    session = sessions.Session()
    session.grace_s = 0.05
    with sessions.interruptible(session), pytest.raises(sessions.Interrupted):
        hit_twice(signal.SIGTERM)
    session.exiting.set()


def hit_twice(number: int) -> None:
    """Send a signal; the second one comes from the watching thread."""
    os.kill(os.getpid(), number)
    time.sleep(60)
    time.sleep(60)


@pytest.mark.parametrize(("code", "name"), [(137, "SIGKILL"), (141, "SIGPIPE"), (254, "signal 126")])
def test_the_signal_that_ended_a_rank_is_named(
    code: int, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mxpeak.runtime.launch.respawn", lambda *_: code)
    assert ranks._start(2, [], PlaceConfig(), sessions.Session()) == code
    err = capsys.readouterr().err
    assert f"ended by {name}" in err
    assert ("dmesg" in err) == (code != 141)
