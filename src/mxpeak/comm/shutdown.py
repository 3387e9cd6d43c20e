"""End all ranks together without a launcher, through a key in the store that connected them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic, sleep
from typing import Any, NoReturn

#: Interval in seconds at which a rank checks whether another rank has ended the program.
POLL_S = 0.5
#: Seconds that a rank waits for the other ranks: to detect the end of the program, and before its own exit.
NOTICE_S, END_S = 2.0, 5.0
#: Seconds that a rank waits for its own signal after it detects another rank's signal, so that rank 0 can report
#: first.
SIGNAL_S = 5.0
#: Keys of the store.
ABORTED, NOTICED, FAILED, ENDED = "mxpeak/aborted", "mxpeak/noticed", "mxpeak/failed", "mxpeak/ended"
#: Seconds within which all ranks must raise an uncaught error, so that no rank aborts the others.
LEAVE_S = 5.0
#: Set when this process has found the key that ends the program.
ABORT_SEEN = threading.Event()


def torchrun_ends_all(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether torchrun started this rank, according to the environment.

    If one rank ends, torchrun sends SIGTERM to the other ranks and waits for them.
    """
    return "TORCHELASTIC_RUN_ID" in environ


def exit_now(code: int) -> NoReturn:
    """Flush the output of this process and exit with `code`."""
    _flush()
    os._exit(code)


def abort(store: Any, code: int) -> NoReturn:
    """Write the exit code to the store, so that the `Watch` of each rank finds it, and exit.

    If another rank has already written a code, this rank exits with that code. If a signal ends a rank under torchrun,
    the rank does not wait, because torchrun signals the other ranks of this host and keeps the store.
    """
    with suppress(RuntimeError):  # the store ended with its rank, so all ranks will notice
        code = int(store.compare_set(ABORTED, "", str(code)))
        if code <= 128 or not torchrun_ends_all():
            sleep(2 * POLL_S + NOTICE_S)
    exit_now(code)


def _meet(store: Any, size: int, key: str, limit_s: float) -> bool:
    """Wait until `size` ranks have called this function with the same key, for at most `limit_s` seconds.

    Return whether they have, or whether the rank with the store has ended.
    """
    until = monotonic() + limit_s
    with suppress(RuntimeError):  # the rank with the store has left, because all had arrived or after its own wait
        store.add(key, 1)
        while store.add(key, 0) < size:
            if monotonic() > until:
                return False
            sleep(0.01)
    return True


def all_fail_within(store: Any, size: int, limit_s: float) -> bool:
    """Return whether all ranks call this function within the limit."""
    return _meet(store, size, FAILED, limit_s)


def end_all_after_uncaught_errors(fails_alone: Callable[[], bool], abort: Callable[[int], None]) -> None:
    """Make an uncaught exception on this rank end all ranks, unless this process is interactive.

    Otherwise, the other ranks would wait for this rank. `fails_alone` returns whether other ranks continue, and `abort`
    ends all ranks with an exit code.
    """
    if hasattr(sys, "ps1") or sys.flags.interactive or getattr(sys.excepthook, "ends_all_ranks", False):
        return
    show = sys.excepthook

    def end_all(*error: Any) -> None:
        show(*error)
        sys.stderr.flush()
        if fails_alone():
            abort(1)

    end_all.ends_all_ranks = True  # type: ignore[attr-defined]
    sys.excepthook = end_all


class Watch:
    """A thread that ends this process when another rank has ended the program."""

    def __init__(self, store: Any, size: int):
        self._store, self._size = store, size  # a separate store, because the others may block
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        with suppress(RuntimeError):  # the rank with the store has ended, so messages will fail
            while not self._stopped.wait(POLL_S):
                if self._store.check([ABORTED]):
                    code = int(self._store.get(ABORTED))
                    ABORT_SEEN.set()
                    if code > 128 and torchrun_ends_all():
                        sleep(SIGNAL_S)
                    _meet(self._store, self._size, NOTICED, NOTICE_S)  # this rank may own the store
                    exit_now(code)

    def stop(self) -> None:
        """Stop the thread of the watch before Python exits.

        A thread that returns from the library during the exit of Python would cause a signal.
        """
        self._stopped.set()
        self._thread.join()


def leave(store: Any, size: int, watch: Watch) -> None:
    """Flush the output, wait briefly for the other ranks, and stop the watch, before this rank exits.

    torchrun ends all ranks as soon as one of them ends with a code other than 0.
    """
    _flush()
    _meet(store, size, ENDED, END_S)
    watch.stop()


def _flush() -> None:
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
