"""How ranks end together where no launcher does it: by a word left at the store that they met at."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic, sleep
from typing import Any, NoReturn

#: How often a rank looks whether another has ended the program.
LOOK_S = 0.5
#: How long ranks wait for each other: until all know that the program was ended, and at its own end.
KNOWN_S, END_S = 2.0, 5.0
#: How long a rank that hears of another's signal only here waits for its own: time for rank 0 to write what it knows.
TOLD_S = 5.0
#: Keys of the store.
ABORTED, KNOWN, ENDED = "mxpeak/aborted", "mxpeak/known", "mxpeak/ended"
#: Whether this process has found the word that ends the program.
LEFT = threading.Event()


def torchrun_ends_all(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether torchrun has started this rank: once one has ended, it sends the others SIGTERM, and waits for them."""
    return "TORCHELASTIC_RUN_ID" in environ


def exit_now(code: int) -> NoReturn:
    """End this process, with what it has printed on its way."""
    _flush()
    os._exit(code)


def abort(store: Any, code: int) -> NoReturn:
    """Leave the code for all ranks, unless another was first; this rank's Watch finds it as theirs do.

    One that a signal ends under torchrun waits for nobody: torchrun tells the others of this host, and keeps the store.
    """
    with suppress(RuntimeError):  # a store that went with its rank: nobody can be told, and all will notice
        code = int(store.compare_set(ABORTED, "", str(code)))
        if code <= 128 or not torchrun_ends_all():
            sleep(2 * LOOK_S + KNOWN_S)
    exit_now(code)


def _meet(store: Any, size: int, key: str, limit_s: float) -> None:
    """Wait until all ranks have come here, or for `limit_s`."""
    until = monotonic() + limit_s
    with suppress(RuntimeError):  # the rank that kept the store has left: all had come, or it waited long enough
        store.add(key, 1)
        while store.add(key, 0) < size and monotonic() < until:
            sleep(0.01)


class Watch:
    """Ends this process when another rank has ended the program, whatever it is doing."""

    def __init__(self, store: Any, size: int):
        self._store, self._size = store, size  # a store of its own: another's may be waiting
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        with suppress(RuntimeError):  # the store is gone, and with it the rank that kept it: messages will fail
            while not self._stopped.wait(LOOK_S):
                if self._store.check([ABORTED]):
                    code = int(self._store.get(ABORTED))
                    LEFT.set()
                    if code > 128 and torchrun_ends_all():
                        sleep(TOLD_S)
                    _meet(self._store, self._size, KNOWN, KNOWN_S)  # this rank may be the one that keeps the store
                    exit_now(code)

    def stop(self) -> None:
        """Before Python ends: a thread that comes back from the library then would end the process by a signal."""
        self._stopped.set()
        self._thread.join()


def leave(store: Any, size: int, watch: Watch) -> None:
    """Wait a while for the others at the end, with everything printed.

    torchrun ends all ranks as soon as one of them has ended with another code than 0.
    """
    _flush()
    _meet(store, size, ENDED, END_S)
    watch.stop()


def _flush() -> None:
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
