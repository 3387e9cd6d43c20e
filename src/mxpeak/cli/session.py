"""One process among its ranks: who speaks, how a mistake of one becomes everybody's, and how all of them end."""

from __future__ import annotations

import os
import signal
import sys
import threading
from _thread import interrupt_main
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import sleep
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from mxpeak.comm.shutdown import torchrun_ends_all
from mxpeak.errors import ExitCode
from mxpeak.foreign import printable
from mxpeak.report.columns import folded
from mxpeak.runtime.parent_watch import (
    ENDING,
    asked_by,
    end_by,
    end_launched,
    heard_of,
    launchers_socket,
    pass_on,
    show_traceback,
    terminal_width,
    until_read,
    write_exit_code,
)

if TYPE_CHECKING:
    from mxpeak.comm.base import Communicator

T = TypeVar("T")
#: Seconds that rank 0 is granted to write what it knows of a run that was ended, and a rank to end at all.
LEAVE_S, LAST_S = 5.0, 10.0
#: Seconds that a last checkpoint may take: batch systems grant half a minute between SIGTERM and SIGKILL.
GRACE_S = 12.0
#: Seconds after which a signal is given once more whose exception Python has dropped.
AGAIN_S = 0.05


class Interrupted(BaseException):
    """A signal asks this process to end; no BaseException handler on the way out may mistake it for an error."""

    def __init__(self, number: int):
        super().__init__(f"ended by signal {number}")
        self.number, self.code = number, 128 + number


class StalledError(Interrupted):
    """The watchdog found that this rank no longer gets on."""

    def __init__(self, text: str):
        BaseException.__init__(self, text)
        self.number, self.code = signal.SIGTERM, int(ExitCode.GUARD)


@contextmanager
def interruptible(session: Session) -> Iterator[None]:
    """Turn the signals that ask for the end into Interrupted, so that whatever is half done is undone on the way out.

    A main thread that waits inside a library hears of no signal: another thread ends the process some time after it.
    Where a signal comes while an object is being deleted, Python drops the exception: then it is given once more.
    Where it comes inside an import or __set_name__, Python or a library may raise an error of its own instead:
    whatever leaves the block after a signal is taken for that signal.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        if session.grace_s and number == signal.SIGTERM and not session.ending and session.stalled is None:
            session.ending = True  # whoever keeps checkpoints keeps one more, and asks again
            return
        raised.append(Interrupted(asked_by(number)) if session.stalled is None else StalledError(session.stalled))
        raise raised[-1]

    def dropped(what: sys.UnraisableHookArgs) -> None:
        if isinstance(what.exc_value, Interrupted):
            main, number = threading.main_thread().ident or 0, what.exc_value.number
            timer = threading.Timer(AGAIN_S, signal.pthread_kill, (main, number))
            again.append((timer, number))
            timer.start()
        else:
            tell(what)

    raised: list[Interrupted] = []
    again: list[tuple[threading.Timer, int]] = []
    tell, sys.unraisablehook = sys.unraisablehook, dropped
    before = {number: signal.signal(number, stop) for number in heard_of()}
    heard, woken = os.pipe()
    os.set_blocking(woken, False)
    others = signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    threading.Thread(target=_insist, args=(session, heard), name="last resort", daemon=True).start()
    try:
        yield
        for timer, number in again:
            if timer.is_alive():  # what ends here was to be ended
                stop(number, None)
    except Interrupted:
        raise
    except BaseException:
        if raised:
            raise raised[-1] from None
        raise
    finally:
        for timer, _ in again:
            timer.cancel()
            timer.join()
        signal.set_wakeup_fd(others)
        os.close(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = tell


def _insist(session: Session, heard: int) -> None:
    """End the process if the main thread has not, once a signal has come that asks for it."""
    while number := os.read(heard, 1):
        if number[0] not in ENDING:
            continue
        if session.ending and session.grace_s and not session.heard.wait(session.grace_s):
            session.grace_s = 0.0
            os.kill(os.getpid(), signal.SIGTERM)
        if not session.heard.wait(LAST_S):
            write_exit_code(128 + number[0])
            os._exit(128 + number[0])
    os.close(heard)


def flush() -> None:
    """Have out what was printed, as far as somebody still takes it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()


class Session:
    """This process, before and after it knows its communicator."""

    def __init__(self) -> None:
        self.comm: Communicator | None = None
        self.stalled: str | None = None
        self.ending = False  # a signal has asked for the end, and a last checkpoint may come first
        self.grace_s = 0.0  # how long it may take
        self.heard = threading.Event()  # that it shall end
        self.failed: str | None = None  # before it has met the others: what is left to be said of it
        self.alone = False  # who started it has ended: its number may be another process's by now

    @property
    def rank(self) -> int:
        """The rank: by the communicator, or as the launcher's variables say while there is none."""
        if self.comm is not None:
            return self.comm.rank
        from mxpeak.runtime.launch import launcher

        found = launcher()
        return 0 if found is None else found[1]

    @property
    def name(self) -> str:
        """What stands before a line of this rank."""
        return f"[rank {self.rank} {os.uname().nodename}] "

    def log(self, text: str) -> None:
        """A line on stderr, from rank 0 only."""
        if self.rank == 0:
            with suppress(OSError):  # a broken stderr must not end a run
                print(folded(printable(text), terminal_width(sys.stderr)).rstrip("\n"), file=sys.stderr, flush=True)

    def on_root(self, action: Callable[[], T]) -> T:
        """What `action` gives on rank 0, told to everybody; its error becomes everybody's.  Collective."""
        from mxpeak.comm.collectives import run_on_root

        assert self.comm is not None
        return run_on_root(self.comm, action)

    def end(self, code: int) -> int:
        """End all ranks with `code`; the others cannot be told, because nobody knows where they are."""
        flush()
        if self.comm is None:
            self.failed = self.failed or ""
        elif self.comm.size > 1:
            write_exit_code(code)
            until_read()
            self.comm.abort(code)
        return code

    def refuse(self, text: str, code: int) -> int:
        """Print an error of all ranks; ranks that have not met yet may each fail alone: see `abort_unjoined`."""
        self.log(text)
        if self.comm is None:
            self.failed = text if self.rank else ""
        return code

    def abort_unjoined(self, code: int) -> None:
        """Where this rank has failed before it has met the others, have them ended, who would wait for it.

        Most likely all have failed alike, and rank 0 says why: only where it does not, another one does.
        """
        if self.failed is None or launchers_socket() is None:
            return
        if self.failed:
            sleep(LEAVE_S)
            print(printable(f"{self.name}{self.failed}"), file=sys.stderr)
        flush()
        end_launched(code)

    def end_with_grace(self, code: int) -> int:
        """`end`, with time for rank 0 to leave what it knows, and for all to say where they stall.

        Of a rank that ends before it is one of MPI's the launcher takes notice only if a signal has ended it.
        """
        from mxpeak.runtime.launch import launched

        if self.comm is None and code > 128 and launched():
            flush()
            end_by(code - 128)
        if self.comm is not None and self.comm.size > 1 and (self.rank != 0 or self.stalled is not None):
            if self.stalled is None and not self.alone:
                pass_on(code - 128)
            if self.stalled is not None or not torchrun_ends_all():
                sleep(LEAVE_S)  # whoever ends first ends all
        try:
            return self.end(code)
        finally:  # until then another thread may end a rank that hangs
            self.heard.set()

    def abort_stalled(self, text: str) -> None:
        """Say why this rank no longer gets on, and end it; called by another thread than the main one."""
        with suppress(OSError):
            print(printable(f"{self.name}mxpeak: error: {text}"), file=sys.stderr, flush=True)
        self.stalled = f"{self.name}{text}"
        interrupt_main(signal.SIGTERM)
        if not self.heard.wait(LAST_S):  # the main thread hangs where it hears no signal
            write_exit_code(ExitCode.GUARD)
            os._exit(ExitCode.GUARD)

    def parent_died(self, pid: int) -> None:
        """End this rank, for whoever started it has ended; called by another thread than the main one."""
        self.alone = True
        self.log(f"mxpeak: parent process {pid} has ended; stopping the run")
        os.kill(os.getpid(), signal.SIGTERM)

    def fail(self, text: str, code: int) -> int:
        """Say what happened to this rank, and end all ranks."""
        who = "" if self.comm is None or self.comm.size == 1 else self.name
        print(printable(f"{who}mxpeak: error: {text}"), file=sys.stderr, flush=True)
        return self.end(code)

    def crash(self) -> int:
        """Show the traceback under the name of this rank, and end all ranks.

        An error of MPI is most likely another rank that has gone: the launcher, which ends all then, is heard first.
        """
        if type(sys.exception()).__module__.startswith("mpi4py"):
            sleep(LEAVE_S)
        show_traceback(self.name)
        return self.end(ExitCode.BUG)
