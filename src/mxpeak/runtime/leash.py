"""A process that was started by another ends with it: nobody would look at what it computes.

Whoever starts a run on local ranks says who it is in a variable, which launchers hand on.  A thread of each rank waits
for the end of that process: a signal that nobody can catch leaves no other trace.
"""

from __future__ import annotations

import os
import select
import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import sleep
from typing import TextIO

#: HOST:PID of the process that this one shall not outlive.
VARIABLE = "MXPEAK_STARTED_BY"
#: The file in which ranks leave their exit code, if it is not 0: launchers do not always pass it on.
LAST_WORD = "MXPEAK_LAST_WORD"
#: How wide the terminal is behind a launcher, which gives ranks pipes; nothing where there is none.
COLUMNS = "MXPEAK_COLUMNS"
#: How often a system is asked that cannot tell when a process has ended.
LOOK_S = 1.0


def leashed(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a process that shall end with this one, and write for the same terminal."""
    width = terminal_width(sys.stdout) if sys.stderr.isatty() else None
    columns = {} if width is None else {COLUMNS: str(width)}
    return {**environ, VARIABLE: f"{os.uname().nodename}:{os.getpid()}", **columns}


def terminal_width(stream: TextIO, environ: Mapping[str, str] = os.environ) -> int | None:
    """The columns of the terminal where `stream` ends, here or behind a launcher; None: it ends elsewhere."""
    if stream.isatty():
        return shutil.get_terminal_size().columns
    told = environ.get(COLUMNS, "")
    return int(told) if told.isdecimal() else None


def holder(environ: Mapping[str, str] = os.environ) -> int | None:
    """Who shall not be outlived: on this host, as the variable says, or torchrun, which ends without a word too."""
    host, _, pid = environ.get(VARIABLE, "").rpartition(":")
    if host == os.uname().nodename and pid.isdecimal():
        return int(pid)
    return os.getppid() if "TORCHELASTIC_RUN_ID" in environ else None


def leave_word(code: int) -> None:
    """Tell who started these ranks with what code this one ends, or ends them all."""
    path = os.environ.get(LAST_WORD)
    if path and holder() is not None:  # of this host: elsewhere the path is another's
        with suppress(OSError), open(path, "a") as word:  # /proc, which other systems have not, or of another host
            word.write(f"{code}\n")


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
