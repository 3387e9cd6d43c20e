"""End a process when its parent process ends.

The process that starts local ranks stores its process number in an environment variable, which launchers pass to the
ranks. A thread of each rank waits for the end of the parent, because a parent that is killed cannot notify its ranks.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import select
import shutil
import signal
import stat
import struct
import sys
import termios
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic, sleep
from typing import NoReturn, TextIO

from mxpeak.comm.shutdown import torchrun_ends_all

#: HOST:PID of the parent process. This process ends when the parent ends.
VARIABLE = "MXPEAK_STARTED_BY"
#: The file to which ranks write a nonzero exit code, because launchers do not always forward exit codes.
EXIT_CODE_FILE = "MXPEAK_EXIT_CODE_FILE"
#: The file with the signal that the starting process received; launchers send SIGTERM instead.
SIGNAL_FILE = "MXPEAK_SIGNAL_FILE"
#: The width of the terminal behind a launcher, which gives pipes to ranks; unset without a terminal.
COLUMNS = "MXPEAK_COLUMNS"
#: Signals by which a user, a closed terminal, or a batch system requests the end of a run.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: The names of crashes in Python's fault handler, with the signal of each crash.
CRASHES = {
    "Segmentation fault": signal.SIGSEGV,
    "Bus error": signal.SIGBUS,
    "Floating point exception": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
    "Aborted": signal.SIGABRT,
}
#: Seconds between two checks on a system that does not report the end of a process.
POLL_S = 1.0
#: Seconds in which a reader must read a rank's last output, and seconds between two checks.
READ_S, READ_POLL_S = 1.0, 0.001
#: stdout and stderr.
OUTPUT = (1, 2)


def child_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment for a child process that ends with this process and writes to the same terminal."""
    width = terminal_width(sys.stdout) if sys.stderr is not None and sys.stderr.isatty() else None
    columns = {} if width is None else {COLUMNS: str(width)}
    return {**environ, VARIABLE: f"{os.uname().nodename}:{os.getpid()}", **columns}


def terminal_width(stream: TextIO | None, environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the number of columns of a stream's terminal, even if a launcher uses a pipe.

    Return None if there is no terminal.
    """
    if stream is not None and stream.isatty():
        return shutil.get_terminal_size().columns
    columns = environ.get(COLUMNS, "")
    return int(columns) if columns.isdecimal() else None


def parent_pid(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the parent's process number on this host, from the variable or from torchrun, or None without a parent."""
    host, _, pid = environ.get(VARIABLE, "").rpartition(":")
    if host == os.uname().nodename and pid.isdecimal():
        return int(pid)
    return os.getppid() if torchrun_ends_all(environ) else None


def pass_on(number: int) -> None:
    """Forward the signal that ended this rank to the process of this host that started all ranks.

    This rank ignores the signal from then on. torchrun itself ends the other ranks, and a second signal would
    interrupt its wait for the ranks.
    """
    started_by = parent_pid({VARIABLE: os.environ.get(VARIABLE, "")})
    if started_by is None or torchrun_ends_all():
        return
    for ending in ENDING:
        signal.signal(ending, signal.SIG_IGN)
    with suppress(OSError):
        os.kill(started_by, number)


def first_signal(number: int) -> int:
    """Return the signal that ended the run: the signal of the starting process if it is known, otherwise `number`.

    `number` is the signal that this process received.
    """
    path = os.environ.get(SIGNAL_FILE)
    if path and parent_pid({VARIABLE: os.environ.get(VARIABLE, "")}) is not None:  # a process of this host
        with suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            return int(file.read())
    return number


def write_exit_code(code: int) -> None:
    """Append the exit code of this rank to the file that the starting process reads."""
    path = os.environ.get(EXIT_CODE_FILE)
    if path and parent_pid() is not None:  # on another host, the path would belong to another process
        with suppress(OSError), open(path, "a") as word:
            word.write(f"{code}\n")


def record_crashes() -> None:
    """Make Python's fault handler write the signal of a crash to the file of exit codes.

    MPICH's mpiexec combines the codes of all ranks, and it ends the other ranks by SIGKILL. A bus error therefore
    becomes 7 | 9 = 15, the number of SIGTERM.
    """
    path = os.environ.get(EXIT_CODE_FILE)
    if path and parent_pid() is not None:  # see `write_exit_code`
        with suppress(OSError):
            word = open(path, "a")  # noqa: SIM115  for as long as this process lasts
            faulthandler.enable(word, all_threads=False)
            faulthandler.register(signal.SIGQUIT, word, all_threads=False, chain=True)


def first_exit_code(text: str) -> int | None:
    """Return the first exit code that a rank has written, or 128 plus the number of the signal if the rank crashed."""
    line = text.partition("\n")[0].strip()
    if line.isdecimal():
        return int(line)
    if not line.startswith("Fatal Python error"):
        return 128 + signal.SIGQUIT if line else None  # SIGQUIT writes only a traceback
    line = line.replace("-", " ")  # newer Pythons write Floating-point
    return next((128 + number for name, number in CRASHES.items() if name in line), None)


def handled_signals() -> list[signal.Signals]:
    """Return the signals of ENDING that this process handles, which exclude SIGHUP under nohup."""
    return [number for number in ENDING if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]


def mpiexec_socket(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the file descriptor of the socket to MPICH's mpiexec.

    Return None if there is no such socket, or if it belongs to a parent process that is itself a rank.
    """
    import socket

    fd, peer = environ.get("PMI_FD", ""), getattr(socket, "SO_PEERCRED", None)
    if not fd.isdecimal() or peer is None:
        return None
    with suppress(OSError), socket.socket(fileno=os.dup(int(fd))) as ours:  # no socket, or closed
        maker, _, _ = struct.unpack("3i", ours.getsockopt(socket.SOL_SOCKET, peer, struct.calcsize("3i")))
        return int(fd) if maker == os.getppid() else None
    return None


def abort_mpiexec(code: int, environ: Mapping[str, str] = os.environ) -> None:
    """Make MPICH's mpiexec end all ranks with `code`, by sending the message of MPI_Abort.

    Before MPI has started, mpiexec ignores the exit code of a rank, and the other ranks would wait for this rank.
    """
    fd = mpiexec_socket(environ)
    if fd is not None:
        await_readers()
        with suppress(OSError):
            os.write(fd, f"cmd=abort exitcode={code}\n".encode())


def await_readers() -> None:
    """Wait up to READ_S until the readers of stdout and stderr have read all output.

    MPICH's mpiexec ends all ranks before it reads their pipes again. Without the wait, 4 % of the runs lost their last
    output.
    """
    until = monotonic() + READ_S
    while any(_unread(file) for file in OUTPUT) and monotonic() < until:
        sleep(READ_POLL_S)


def _unread(file: int) -> int:
    """Return the number of unread bytes in a pipe as reported by Linux, or 0 for other files."""
    with suppress(OSError):
        if stat.S_ISFIFO(os.fstat(file).st_mode):
            return int.from_bytes(fcntl.ioctl(file, termios.FIONREAD, bytes(4)), sys.byteorder)
    return 0


def show_traceback(prefix: str) -> None:
    """Print the traceback of the current error, with the name of the rank in front of each line."""
    import traceback

    lines = traceback.format_exc().splitlines()
    print("".join(f"{prefix}{line}\n" for line in lines), end="", file=sys.stderr, flush=True)


def exit_on_load_error() -> NoReturn:
    """Print the reason why this process cannot load the program, and end all ranks."""
    rank = os.environ.get("PMI_RANK")
    prefix = "" if rank is None else f"[rank {rank} {os.uname().nodename}] "
    show_traceback(prefix)
    write_exit_code(1)
    abort_mpiexec(1)
    sys.exit(1)


def end_by(number: int) -> None:
    """End this process by a signal, after writing its exit code.

    If SIGINT ends a rank, MPICH's mpiexec returns 2 | 9 = 11, the number of SIGSEGV. mpiexec therefore receives the
    exit code as a message.
    """
    write_exit_code(128 + number)
    abort_mpiexec(128 + number)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def open_streams() -> None:
    """Open the standard streams that a daemon or a shell has closed.

    Otherwise another file would get the number of a standard stream, and the output of libraries would go to that
    file. Without standard streams, MPICH's mpiexec ends with 255.
    """
    for file in (0, *OUTPUT):
        try:
            os.fstat(file)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # `open` returns the lowest free number, which is this one
            os.set_inheritable(file, True)


def end_on_signals() -> None:
    """Install handlers that end the process without a traceback until the command line handles signals."""
    for number in handled_signals():
        signal.signal(number, lambda number, frame: end_by(number))


def restore_signals() -> None:
    """Restore the default action of signals, which also ends a process that is executing C code."""
    for number in handled_signals():
        signal.signal(number, signal.SIG_DFL)


def call_at_end(pid: int, ended: Callable[[], None]) -> None:
    """Start a thread that calls `ended` when a process has ended, or immediately if the process does not exist."""
    threading.Thread(target=_wait, args=(pid, ended), name="parent watch", daemon=True).start()


def _wait(pid: int, ended: Callable[[], None]) -> None:
    try:
        handle = os.pidfd_open(pid)
    except (AttributeError, OSError) as error:  # the system does not have this call, or the process does not exist
        while not isinstance(error, ProcessLookupError) and _exists(pid):
            sleep(POLL_S)
    else:
        look = select.poll()
        look.register(handle, select.POLLIN)
        with suppress(OSError):
            look.poll()
    ended()


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
