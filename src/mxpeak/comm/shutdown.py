"""End all ranks together without a launcher, through a key in the store that connected them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic, sleep
from typing import Any, NoReturn

#: Interval at which a rank checks whether another one has ended the program.
POLL_S = 0.5
#: Seconds that ranks wait for each other: until all have noticed the end of the program, and at their own end.
NOTICE_S, END_S = 2.0, 5.0
#: Seconds that a rank waits for its own signal after it detects another rank's signal, so that rank 0 can report
#: first.
SIGNAL_S = 5.0
#: Keys of the store.
ABORTED, NOTICED, ENDED = "mxpeak/aborted", "mxpeak/noticed", "mxpeak/ended"
#: Set when this process has found the key that ends the program.
ABORT_SEEN = threading.Event()


def torchrun_ends_all(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether torchrun started this rank.

    If one rank ends, torchrun sends SIGTERM to the other ranks and waits for them.
    """
    return "TORCHELASTIC_RUN_ID" in environ


def exit_now(code: int) -> NoReturn:
    """End this process after flushing its output."""
    _flush()
    os._exit(code)


def abort(store: Any, code: int) -> NoReturn:
    """Store the exit code for all ranks, unless another rank has stored one; the Watch of each rank finds it.

    If a signal ends a rank under torchrun, the rank does not wait, because torchrun signals the other ranks of this
    host and keeps the store.
    """
    with suppress(RuntimeError):  # the store ended with its rank, so all ranks will notice
        code = int(store.compare_set(ABORTED, "", str(code)))
        if code <= 128 or not torchrun_ends_all():
            sleep(2 * POLL_S + NOTICE_S)
    exit_now(code)


def _meet(store: Any, size: int, key: str, limit_s: float) -> None:
    """Wait until all ranks have arrived at a key of the store, for at most `limit_s` seconds."""
    until = monotonic() + limit_s
    with suppress(RuntimeError):  # the rank with the store has left, because all had arrived or after its own wait
        store.add(key, 1)
        while store.add(key, 0) < size and monotonic() < until:
            sleep(0.01)


class Watch:
    """Ends this process when another rank has ended the program."""

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
        """Stop the watch before Python exits.

        A thread that returns from the library during the exit of Python would cause a signal.
        """
        self._stopped.set()
        self._thread.join()


def leave(store: Any, size: int, watch: Watch) -> None:
    """Flush all output, and wait briefly for the other ranks before this rank ends.

    torchrun ends all ranks as soon as one of them ends with a code other than 0.
    """
    _flush()
    _meet(store, size, ENDED, END_S)
    watch.stop()


def _flush() -> None:
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
