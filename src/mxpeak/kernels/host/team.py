"""The threads of a rank: they run compiled code that has let go of the interpreter lock, all in step."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class Team:
    """T threads: the caller is thread 0, the others wait for work.

    Numba's own parallel loops are not used: two of them at once (virtual ranks) abort the process, and a barrier inside
    a loop, which FACT needs once per column, has no place there.
    """

    def __init__(self, threads: int):
        self.threads = threads
        self._work: list[SimpleQueue[Any]] = [SimpleQueue() for _ in range(threads - 1)]
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._pid = 0

    def _start(self) -> None:
        """Start the threads on first use, so that a rank's core binding, made before, is inherited."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            for tid, work in enumerate(self._work, start=1):
                threading.Thread(target=self._serve, args=(tid, work), daemon=True, name=f"team {tid}").start()

    def _serve(self, tid: int, work: SimpleQueue[Any]) -> None:
        while True:
            function, args = work.get()
            try:
                function(tid, *args)
                self._done.put(None)
            except BaseException as error:
                self._done.put(error)

    def run(self, function: Callable[..., None], *args: Any) -> None:
        """Run function(tid, *args) on every thread; return when all have; raise what any of them raised."""
        self._start()
        for work in self._work:
            work.put((function, args))
        errors: list[BaseException] = []
        try:
            function(0, *args)
        except BaseException as error:
            errors.append(error)
        errors += [error for _ in self._work if (error := self._done.get()) is not None]
        if errors:
            raise errors[0]
