"""A process that was started by another ends with it: nobody would look at what it computes.

Whoever starts a run on local ranks says who it is in a variable, which launchers hand on.  A thread of each rank waits
for the end of that process: a signal that nobody can catch leaves no other trace.
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
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic, sleep
from typing import NoReturn, TextIO

from mxpeak.comm.shutdown import torchrun_ends_all

#: HOST:PID of the process that this one shall not outlive.
VARIABLE = "MXPEAK_STARTED_BY"
#: The file in which ranks leave their exit code, if it is not 0: launchers do not always pass it on.
LAST_WORD = "MXPEAK_LAST_WORD"
#: The file that names the signal by which whoever started these ranks was asked to end; launchers make it SIGTERM.
TOLD = "MXPEAK_TOLD"
#: How wide the terminal is behind a launcher, which gives ranks pipes; nothing where there is none.
COLUMNS = "MXPEAK_COLUMNS"
#: Signals by which a user, a terminal that is closed, or a batch system asks a run to end.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: What Python's fault handler calls the signals of a crash.
CRASHES = {
    "Segmentation fault": signal.SIGSEGV,
    "Bus error": signal.SIGBUS,
    "Floating point exception": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
    "Aborted": signal.SIGABRT,
}
#: How often a system is asked that cannot tell when a process has ended.
LOOK_S = 1.0
#: How long a reader is given to take a rank's last output, and the pause between two looks, in seconds.
READ_S, READ_LOOK_S = 1.0, 0.001
#: stdout and stderr.
OUTPUT = (1, 2)


def child_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a process that shall end with this one, and write for the same terminal."""
    width = terminal_width(sys.stdout) if sys.stderr is not None and sys.stderr.isatty() else None
    columns = {} if width is None else {COLUMNS: str(width)}
    return {**environ, VARIABLE: f"{os.uname().nodename}:{os.getpid()}", **columns}


def terminal_width(stream: TextIO | None, environ: Mapping[str, str] = os.environ) -> int | None:
    """The columns of the terminal where `stream` ends, here or behind a launcher; None: not there."""
    if stream is not None and stream.isatty():
        return shutil.get_terminal_size().columns
    told = environ.get(COLUMNS, "")
    return int(told) if told.isdecimal() else None


def parent_pid(environ: Mapping[str, str] = os.environ) -> int | None:
    """Who shall not be outlived: on this host, as the variable says, or torchrun, which ends without a word too."""
    host, _, pid = environ.get(VARIABLE, "").rpartition(":")
    if host == os.uname().nodename and pid.isdecimal():
        return int(pid)
    return os.getppid() if torchrun_ends_all(environ) else None


def pass_on(number: int) -> None:
    """Have all ranks hear of a signal that this one was ended by, if one process of this host has started them.

    This one has heard: it shall not hear once more, when it is everybody's turn.  torchrun ends the other ranks when
    one has ended, and one more signal would break off its wait for them.
    """
    started_by = parent_pid({VARIABLE: os.environ.get(VARIABLE, "")})
    if started_by is None or torchrun_ends_all():
        return
    for one in ENDING:
        signal.signal(one, signal.SIG_IGN)
    with suppress(OSError):
        os.kill(started_by, number)


def asked_by(number: int) -> int:
    """The signal that asked for the end: the one that the starter was told by, else `number`, which came here."""
    path = os.environ.get(TOLD)
    if path and parent_pid({VARIABLE: os.environ.get(VARIABLE, "")}) is not None:  # of this host
        with suppress(OSError, ValueError), open(path, encoding="ascii") as told:
            return int(told.read())
    return number


def write_exit_code(code: int) -> None:
    """Tell who started these ranks with what code this one ends, or ends them all."""
    path = os.environ.get(LAST_WORD)
    if path and parent_pid() is not None:  # of this host: elsewhere the path is another's
        with suppress(OSError), open(path, "a") as word:  # /proc, which other systems have not, or of another host
            word.write(f"{code}\n")


def leave_crashes() -> None:
    """Have the signal of a crash left there, too: MPICH's mpiexec returns those of all ranks in one number.

    It ends the others by SIGKILL, so where one had a bus error that number is 7 | 9 = 15, which is SIGTERM's.
    """
    path = os.environ.get(LAST_WORD)
    if path and parent_pid() is not None:  # as in `write_exit_code`
        with suppress(OSError):
            word = open(path, "a")  # noqa: SIM115  for as long as this process lasts
            faulthandler.enable(word, all_threads=False)
            faulthandler.register(signal.SIGQUIT, word, all_threads=False, chain=True)


def last_word(text: str) -> int | None:
    """The exit code that the first rank to leave one has left; 128 plus the signal's number for a crash."""
    line = text.partition("\n")[0].strip()
    if line.isdecimal():
        return int(line)
    if not line.startswith("Fatal Python error"):
        return 128 + signal.SIGQUIT if line else None  # a traceback alone is what SIGQUIT leaves
    line = line.replace("-", " ")  # newer Pythons write Floating-point
    return next((128 + number for name, number in CRASHES.items() if name in line), None)


def heard_of() -> list[signal.Signals]:
    """Those of ENDING that this process shall hear: under nohup SIGHUP is none of them."""
    return [one for one in ENDING if one != signal.SIGHUP or signal.getsignal(one) != signal.SIG_IGN]


def launchers_socket(environ: Mapping[str, str] = os.environ) -> int | None:
    """Where MPICH's mpiexec hears this process: a socket that its parent has made, so none for a child of a rank."""
    import socket

    fd, peer = environ.get("PMI_FD", ""), getattr(socket, "SO_PEERCRED", None)
    if not fd.isdecimal() or peer is None:
        return None
    with suppress(OSError), socket.socket(fileno=os.dup(int(fd))) as ours:  # no socket, or closed
        maker, _, _ = struct.unpack("3i", ours.getsockopt(socket.SOL_SOCKET, peer, struct.calcsize("3i")))
        return int(fd) if maker == os.getppid() else None
    return None


def end_launched(code: int, environ: Mapping[str, str] = os.environ) -> None:
    """Have MPICH's mpiexec end all ranks with `code`, by what MPI_Abort would write to it.

    For a rank that has not begun with MPI: of its end by a code mpiexec takes no notice, and the others wait for it.
    """
    fd = launchers_socket(environ)
    if fd is not None:
        until_read()
        with suppress(OSError):
            os.write(fd, f"cmd=abort exitcode={code}\n".encode())


def until_read() -> None:
    """Wait until pipes behind stdout and stderr have been read, at most READ_S: then all ranks may be ended.

    MPICH's mpiexec ends them before it looks into their pipes again: it lost the last output of some 4 in 100 runs.
    """
    until = monotonic() + READ_S
    while any(_unread(file) for file in OUTPUT) and monotonic() < until:
        sleep(READ_LOOK_S)


def _unread(file: int) -> int:
    """Bytes in a pipe that its reader has not taken, as Linux counts them; 0 of what is not a pipe."""
    with suppress(OSError):
        if stat.S_ISFIFO(os.fstat(file).st_mode):
            return int.from_bytes(fcntl.ioctl(file, termios.FIONREAD, bytes(4)), sys.byteorder)
    return 0


def show_traceback(prefix: str) -> None:
    """The traceback of the error under way, each of its lines behind a rank's name."""
    lines = traceback.format_exc().splitlines()
    print("".join(f"{prefix}{line}\n" for line in lines), end="", file=sys.stderr, flush=True)


def cannot_begin() -> NoReturn:
    """Show why this process cannot load the program, under its rank's name, and end all ranks."""
    rank = os.environ.get("PMI_RANK")
    prefix = "" if rank is None else f"[rank {rank} {os.uname().nodename}] "
    show_traceback(prefix)
    write_exit_code(1)
    end_launched(1)
    sys.exit(1)


def end_by(number: int) -> None:
    """End this process by a signal, whose code is left as ever, while the command line does not hear it.

    Of a rank that SIGINT ended MPICH's mpiexec would return 2 | 9 = 11, which is SIGSEGV's: it is told the code.
    """
    write_exit_code(128 + number)
    end_launched(128 + number)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def open_streams() -> None:
    """Open the standard streams that a daemon or a shell has closed: another file would get their numbers.

    MPICH's mpiexec ends with 255 without them, and what libraries print would get into that file.
    """
    for file in (0, *OUTPUT):
        try:
            os.fstat(file)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free is this one
            os.set_inheritable(file, True)


def end_at_once() -> None:
    """Until the command line hears signals itself: those that ask for the end do so, without a traceback."""
    for number in heard_of():
        signal.signal(number, lambda number, frame: end_by(number))


def end_in_libraries_too() -> None:
    """From now on such signals end the process as they do any: also while it is inside C, where no Python is heard."""
    for number in heard_of():
        signal.signal(number, signal.SIG_DFL)


def on_end(pid: int, ended: Callable[[], None]) -> None:
    """Have a thread call `ended` once the process is no more; at once, if it is not there."""
    threading.Thread(target=_wait, args=(pid, ended), name="leash", daemon=True).start()


def _wait(pid: int, ended: Callable[[], None]) -> None:
    try:
        handle = os.pidfd_open(pid)
    except (AttributeError, OSError) as error:  # a system that has no such call, or no such process
        while not isinstance(error, ProcessLookupError) and _there(pid):
            sleep(LOOK_S)
    else:
        look = select.poll()
        look.register(handle, select.POLLIN)
        with suppress(OSError):
            look.poll()
    ended()


def _there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
