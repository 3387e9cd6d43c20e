"""How ranks end together where no launcher does it: by a word left at the store that they met at."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from time import monotonic, sleep
from typing import Any, NoReturn

#: How often a rank looks whether another has ended the program, and how long ranks wait for each other at its end.
LOOK_S, END_S = 0.5, 5.0
#: Keys of the store.
ABORTED, ENDED = "mxpeak/aborted", "mxpeak/ended"


def exit_now(code: int) -> NoReturn:
    """End this process, with what it has printed on its way."""
    _flush()
    os._exit(code)


def abort(store: Any, code: int) -> NoReturn:
    """Leave the code for the others, unless another was first, and give them time to find it."""
    with suppress(RuntimeError):  # a store that went with its rank: nobody can be told, and all will notice
        code = int(store.compare_set(ABORTED, "", str(code)))
        sleep(2 * LOOK_S)
    exit_now(code)


class Watch:
    """Ends this process when another rank has ended the program, whatever it is doing."""

    def __init__(self, store: Any):
        self._store = store  # of its own: another's may be waiting
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        with suppress(RuntimeError):  # the store is gone, and with it the rank that kept it: messages will fail
            while not self._stopped.wait(LOOK_S):
                if self._store.check([ABORTED]):
                    exit_now(int(self._store.get(ABORTED)))

    def stop(self) -> None:
        """Before Python ends: a thread that comes back from the library then would end the process by a signal."""
        self._stopped.set()
        self._thread.join()


def leave(store: Any, size: int, watch: Watch) -> None:
    """Wait a while for the others at the end, with everything printed.

    torchrun ends all ranks as soon as one of them has ended with another code than 0.
    """
    _flush()
    until = monotonic() + END_S
    with suppress(RuntimeError):  # the rank that kept the store has left: all had come
        store.add(ENDED, 1)
        while store.add(ENDED, 0) < size and monotonic() < until:
            sleep(0.01)
    watch.stop()


def _flush() -> None:
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
