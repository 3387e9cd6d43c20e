"""Manage the session of a process: print on rank 0, raise an error of one rank on all ranks, and handle signals."""

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
    abort_mpiexec,
    await_readers,
    end_by,
    first_signal,
    handled_signals,
    mpiexec_socket,
    pass_on,
    show_traceback,
    terminal_width,
    write_exit_code,
)

if TYPE_CHECKING:
    from mxpeak.comm.base import Communicator
    from mxpeak.watch.watchdog import Watchdog

T = TypeVar("T")
#: Seconds that rank 0 has to write the results after an interruption, and seconds until a rank is forced to end.
LEAVE_S, LAST_S = 5.0, 10.0
#: Seconds that a final checkpoint may take: batch systems grant half a minute between SIGTERM and SIGKILL.
GRACE_S = 12.0
#: Seconds after which a signal is sent again because Python has dropped its exception.
AGAIN_S = 0.05


class Interrupted(BaseException):
    """A signal that ends this process. The base class is BaseException, so that no handler treats it as an error."""

    def __init__(self, number: int):
        super().__init__(f"ended by signal {number}")
        self.number, self.code = number, 128 + number


class StalledError(Interrupted):
    """Ends this rank because the watchdog found that it makes no progress."""

    def __init__(self, text: str):
        BaseException.__init__(self, text)
        self.number, self.code = signal.SIGTERM, int(ExitCode.GUARD)


@contextmanager
def interruptible(session: Session) -> Iterator[None]:
    """Raise Interrupted in the block when a signal arrives, so that `finally` blocks run.

    A main thread that waits inside a library does not notice a signal. Another thread therefore ends the process after
    LAST_S. Python drops an exception that is raised in a destructor; the signal is then sent again. Inside an import
    or __set_name__, Python or a library may replace the exception with another one. Therefore, every exception that
    leaves the block after a signal counts as that signal.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        if session.grace_s and number == signal.SIGTERM and not session.ending and session.stalled is None:
            session.ending = True  # write a final checkpoint before the run ends
            return
        raised.append(Interrupted(first_signal(number)) if session.stalled is None else StalledError(session.stalled))
        raise raised[-1]

    def dropped(what: sys.UnraisableHookArgs) -> None:
        if isinstance(what.exc_value, Interrupted):
            main, number = threading.main_thread().ident or 0, what.exc_value.number
            timer = threading.Timer(AGAIN_S, signal.pthread_kill, (main, number))
            again.append((timer, number))
            timer.start()
        else:
            default_hook(what)

    raised: list[Interrupted] = []
    again: list[tuple[threading.Timer, int]] = []
    default_hook, sys.unraisablehook = sys.unraisablehook, dropped
    before = {number: signal.signal(number, stop) for number in handled_signals()}
    signals, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    others = signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    threading.Thread(target=_enforce_end, args=(session, signals), name="last resort", daemon=True).start()
    try:
        yield
        for timer, number in again:
            if timer.is_alive():  # the block has ended normally after a signal, so end now
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
        os.close(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = default_hook


def _enforce_end(session: Session, signals: int) -> None:
    """Read signal numbers from the pipe `signals`, and end the process LAST_S after a signal if it is still running."""
    while number := os.read(signals, 1):
        if number[0] not in ENDING:
            continue
        if session.ending and session.grace_s and not session.exiting.wait(session.grace_s):
            session.grace_s = 0.0
            os.kill(os.getpid(), signal.SIGTERM)
        if not session.exiting.wait(LAST_S):
            code = 128 + number[0] if session.stalled is None else int(ExitCode.GUARD)
            write_exit_code(code)
            os._exit(code)
    os.close(signals)


def flush() -> None:
    """Flush stdout and stderr; ignore closed streams."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()


class Session:
    """The session of this process, before and after it has a communicator.

    stalled   message of the watchdog
    ending    whether a signal has requested the end; a final checkpoint may still be written
    grace_s   seconds that the final checkpoint may take
    exiting   event that is set when the process is about to end
    failed    error from the time before the ranks were connected, which this rank still has to print
    orphaned  whether the parent process has ended; its process ID may then belong to another process
    watchdog  watchdog of a run that has ended without an error, or None
    leaving   whether the run has ended, and MPI ends
    """

    def __init__(self) -> None:
        self.comm: Communicator | None = None
        self.stalled: str | None = None
        self.watchdog: Watchdog | None = None
        self.ending = self.orphaned = self.leaving = False
        self.grace_s = 0.0
        self.exiting = threading.Event()
        self.failed: str | None = None

    @property
    def rank(self) -> int:
        """Return the rank in the communicator, or the launcher's rank if there is no communicator yet."""
        if self.comm is not None:
            return self.comm.rank
        from mxpeak.runtime.launcher import launcher

        launched = launcher()
        return 0 if launched is None else launched[1]

    @property
    def name(self) -> str:
        """Return the prefix of this rank's lines on stderr."""
        return f"[rank {self.rank} {os.uname().nodename}] "

    def log(self, text: str) -> None:
        """Print a line on stderr, on rank 0 only."""
        if self.rank == 0:
            with suppress(OSError):  # a broken stderr must not end a run
                print(folded(printable(text), terminal_width(sys.stderr)).rstrip("\n"), file=sys.stderr, flush=True)

    def on_root(self, action: Callable[[], T]) -> T:
        """Run an action on rank 0, and return its result or raise its error on all ranks. Collective."""
        from mxpeak.comm.collectives import run_on_root

        assert self.comm is not None
        return run_on_root(self.comm, action)

    def end(self, code: int) -> int:
        """Abort all ranks with this exit code.

        The other ranks may be anywhere in the program, so they might never receive a message.
        """
        flush()
        if self.comm is None:
            self.failed = self.failed or ""
        elif self.comm.size > 1:
            write_exit_code(code)
            await_readers()
            self.comm.abort(code)
        return code

    def refuse(self, text: str, code: int) -> int:
        """Print an error that all ranks raise, on rank 0 only, and return the exit code.

        Before the ranks are connected, the other ranks store the error, and `abort_unjoined` prints it.
        """
        self.log(text)
        if self.comm is None:
            self.failed = text if self.rank else ""
        return code

    def abort_unjoined(self, code: int) -> None:
        """End the other ranks if this rank has failed before the ranks were connected.

        Usually all ranks fail with the same error, which rank 0 prints. Another rank waits before it prints its own
        error, so that the launcher can end it first.
        """
        if self.failed is None or mpiexec_socket() is None:
            return
        if self.failed:
            sleep(LEAVE_S)
            print(printable(f"{self.name}{self.failed}"), file=sys.stderr)
        flush()
        write_exit_code(code)
        abort_mpiexec(code)

    def end_with_grace(self, code: int) -> int:
        """Abort all ranks, after a pause in which rank 0 writes results and stalled ranks print messages.

        Before MPI has started, the launcher notices the end of a rank only if a signal ended that rank.
        """
        from mxpeak.runtime.launcher import launched

        if self.comm is None and code > 128 and launched():
            flush()
            end_by(code - 128)
        if self.comm is not None and self.comm.size > 1 and (self.rank != 0 or self.stalled is not None):
            if self.stalled is None and not self.orphaned:
                pass_on(code - 128)
            if self.stalled is not None or not torchrun_ends_all():
                sleep(LEAVE_S)  # the first process that ends makes the launcher end all ranks
        try:
            return self.end(code)
        finally:  # until this event is set, another thread may end a rank that hangs
            self.exiting.set()

    def abort_stalled(self, text: str) -> None:
        """Print the reason of a stall and interrupt the main thread of this rank. The watchdog calls this method.

        During MPI_Finalize, the main thread handles no signals, and has nothing left to write.
        """
        with suppress(OSError):
            print(printable(f"{self.name}mxpeak: error: {text}"), file=sys.stderr, flush=True)
        self.stalled = f"{self.name}{text}"
        if not self.leaving:
            interrupt_main(signal.SIGTERM)
            if self.exiting.wait(LAST_S):
                return  # otherwise, the main thread hangs in a call that blocks signals
        write_exit_code(ExitCode.GUARD)
        if self.leaving:
            abort_mpiexec(ExitCode.GUARD)
        os._exit(ExitCode.GUARD)

    def watch_exit(self) -> None:
        """Let the watchdog of the run, if there is one, watch the ranks until this process exits."""
        if self.watchdog is not None:
            self.leaving = True
            self.watchdog.watch_exit()

    def parent_died(self, pid: int) -> None:
        """Send SIGTERM to this rank because its parent process has ended. The parent watch calls this method."""
        self.orphaned = True
        self.log(f"mxpeak: parent process {pid} has ended; stopping the run")
        os.kill(os.getpid(), signal.SIGTERM)

    def fail(self, text: str, code: int) -> int:
        """Print an error of this rank and end all ranks."""
        who = "" if self.comm is None or self.comm.size == 1 else self.name
        print(printable(f"{who}mxpeak: error: {text}"), file=sys.stderr, flush=True)
        return self.end(code)

    def crash(self) -> int:
        """Print the traceback of the current exception and abort all ranks.

        An MPI error usually means that another rank has ended. After such an error, this rank waits first, so that the
        launcher can end it.
        """
        if type(sys.exception()).__module__.startswith("mpi4py"):
            sleep(LEAVE_S)
        show_traceback(self.name)
        return self.end(ExitCode.BUG)
