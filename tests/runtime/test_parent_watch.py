"""Test that started processes end with their parent, and only with it."""

from __future__ import annotations

import io
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mxpeak.runtime import parent_watch
from mxpeak.runtime.parent_watch import (
    EXIT_CODE_FILE,
    VARIABLE,
    abort_mpiexec,
    call_at_end,
    child_environment,
    first_exit_code,
    handled_signals,
    parent_pid,
    pass_on,
    terminal_width,
)

HOST = os.uname().nodename


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, None),
        ({VARIABLE: f"{HOST}:77"}, 77),
        ({VARIABLE: "elsewhere:77"}, None),  # a process ID of another host
        ({VARIABLE: f"{HOST}:"}, None),
        ({"TORCHELASTIC_RUN_ID": "x"}, os.getppid()),
        ({VARIABLE: f"{HOST}:77", "TORCHELASTIC_RUN_ID": "x"}, 77),
    ],
)
def test_who_shall_not_be_outlived(environ: dict[str, str], found: int | None) -> None:
    assert parent_pid(environ) == found


def test_a_started_process_knows_its_parent() -> None:
    assert parent_pid(child_environment({})) == os.getpid()
    assert child_environment({"A": "b"})["A"] == "b"


class Terminal(io.StringIO):
    """A stream that is connected to a terminal."""

    def isatty(self) -> bool:
        return True


def test_ranks_behind_a_launcher_know_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "77")
    for stdout, stderr, width in (
        (Terminal, Terminal, 77),
        (Terminal, io.StringIO, None),
        (io.StringIO, Terminal, None),
    ):
        monkeypatch.setattr(sys, "stdout", stdout())
        monkeypatch.setattr(sys, "stderr", stderr())
        environ = child_environment({})
        assert terminal_width(io.StringIO(), environ) == width
    assert terminal_width(Terminal(), {}) == 77
    assert terminal_width(io.StringIO(), {}) is None


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("handles", [True, False], ids=["by a handle", "by asking again"])
def test_the_end_of_a_process_is_heard(
    other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, handles: bool
) -> None:
    if not handles:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
        monkeypatch.setattr(parent_watch, "POLL_S", 0.01)
    heard = threading.Event()
    call_at_end(other.pid, heard.set)
    assert not heard.wait(0.05)
    other.kill()
    other.wait()
    assert heard.wait(60)


def test_a_signal_to_one_rank_is_passed_on_to_who_started_all_and_not_heard_again(
    other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, f"{HOST}:{other.pid}")
    before = {number: signal.getsignal(number) for number in parent_watch.ENDING}
    try:
        pass_on(signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert other.wait(60) == -signal.SIGTERM


def test_without_a_starter_of_its_own_a_rank_passes_nothing_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    before = signal.getsignal(signal.SIGTERM)
    pass_on(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("named", [True, False], ids=["mxpeak run --ranks", "torchrun itself"])
def test_no_signal_is_sent_to_torchrun_which_watches_its_ranks(
    other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    """`mxpeak run --ranks --comm torch` is the torchrun agent itself, and also sets the variable."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv(VARIABLE, f"{HOST}:{other.pid if named else ''}")
    signals: list[tuple[int, int]] = []
    monkeypatch.setattr(parent_watch.os, "kill", lambda *call: signals.append(call))
    before = signal.getsignal(signal.SIGTERM)
    pass_on(signal.SIGTERM)
    assert signals == []
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_process_that_has_ended_already_is_heard_at_once(other: subprocess.Popen[bytes]) -> None:
    other.kill()
    other.wait()
    heard = threading.Event()
    call_at_end(other.pid, heard.set)
    assert heard.wait(60)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", None),
        ("5\n137\n", 5),
        ("Fatal Python error: Bus error\n\nCurrent thread 0x1 (most recent call first):\n", 128 + signal.SIGBUS),
        ("Current thread 0x1 (most recent call first):\n", 128 + signal.SIGQUIT),
        ("Fatal Python error: something else\n", None),
    ],
)
def test_the_first_word_counts(text: str, code: int | None) -> None:
    assert first_exit_code(text) == code


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGQUIT"])
def test_a_crash_leaves_its_signal(tmp_path: Path, name: str) -> None:
    word, number = tmp_path / "word", getattr(signal, name)
    heard = f"import os, signal; signal.signal({number}, signal.SIG_DFL)"  # even if the shell ignores it
    crash = (
        f"{heard}; from mxpeak.runtime.parent_watch import record_crashes as go; go(); os.kill(os.getpid(), {number})"
    )
    environ = {**child_environment(), EXIT_CODE_FILE: str(word)}
    ended = subprocess.run([sys.executable, "-c", crash], env=environ, capture_output=True, check=False)
    assert ended.returncode == -number
    assert first_exit_code(word.read_text()) == 128 + number


LOADED = """
import os, runpy, sys
class Hit:
    def find_spec(name, *rest):
        if name == "{module}":
            os.kill(os.getpid(), {number})
sys.meta_path.insert(0, Hit)
sys.argv = ["mxpeak", "run", "hpl", "-N", "10"]
runpy.run_module("mxpeak", run_name="__main__")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("module", ["mxpeak.cli.main", "mxpeak.comm.transports.mpi"])
def test_a_rank_that_is_hit_before_it_is_one_of_mpi_ends_by_the_signal(
    tmp_path: Path, module: str, number: int
) -> None:
    """With an exit code, MPICH's launcher would let the other ranks wait for it."""
    word = tmp_path / "word"
    environ = {**child_environment(), EXIT_CODE_FILE: str(word), "PMI_RANK": "1", "PMI_SIZE": "2"}
    command = [sys.executable, "-c", LOADED.format(module=module, number=int(number))]
    ended = subprocess.run(command, env=environ, capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (-number, b"")
    assert first_exit_code(word.read_text()) == 128 + number


def test_mpiexec_gets_a_request_to_end_all_ranks_if_it_left_a_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = socket.socketpair()
    with server, client, (tmp_path / "file").open("w") as file:
        abort_mpiexec(1, {"PMI_FD": str(client.fileno())})  # the socket is not of this process's parent
        monkeypatch.setattr(os, "getppid", os.getpid)
        abort_mpiexec(2, {"PMI_FD": str(client.fileno())})
        assert server.recv(100) == b"cmd=abort exitcode=2\n"
        for other in (str(file.fileno()), "999999", "x", ""):
            abort_mpiexec(2, {"PMI_FD": other})
    assert (tmp_path / "file").read_text() == ""


@pytest.mark.parametrize("reads", [True, False])
def test_all_ranks_end_after_stderr_was_read_or_without_a_reader(monkeypatch: pytest.MonkeyPatch, reads: bool) -> None:
    reader, writer = os.pipe()
    looks: list[int] = []

    def look(seconds: float) -> None:
        looks.append(parent_watch._unread(writer))
        if reads:
            os.read(reader, 4)

    def now() -> float:
        return float(len(looks) > 5)

    monkeypatch.setattr(parent_watch, "sleep", look)
    monkeypatch.setattr(parent_watch, "monotonic", now)
    monkeypatch.setattr(parent_watch, "OUTPUT", (writer,))
    os.write(writer, b"last words")
    parent_watch.await_readers()
    assert looks == ([10, 6, 2] if reads else [10] * 6)
    os.close(reader)
    os.close(writer)


def test_only_pipes_are_waited_for(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+") as file:
        file.write("last words")
        file.flush()
        assert parent_watch._unread(file.fileno()) == 0
    assert parent_watch._unread(-1) == 0


def test_nohup_keeps_a_run_from_hearing_that_the_terminal_is_closed() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert handled_signals() == [signal.SIGINT, signal.SIGTERM]
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        assert handled_signals() == [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    finally:
        signal.signal(signal.SIGHUP, before)


#: Opens a file after the streams; prints the numbers of the streams and of the file.
STREAMS = """
import os, sys
from mxpeak.runtime.parent_watch import open_streams
open_streams()
number = os.open("file", os.O_CREAT | os.O_RDWR)
print("what a library prints", file=open(1, "w", closefd=False))
sys.exit(10 + number)
"""


@pytest.mark.parametrize("closed", ["", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path, closed: str) -> None:
    command = shlex.join([sys.executable, "-c", STREAMS])
    done = subprocess.run(["sh", "-c", f"exec {command} {closed}"], cwd=tmp_path, capture_output=True)
    assert done.returncode >= 13, done.stderr
    assert (tmp_path / "file").read_bytes() == b""
