"""The threads of a rank: they run compiled code that has let go of the interpreter lock, all in step."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any


class Team:
    """T threads: the caller is thread 0, the others wait for work, each on its own core where `cores` names them.

    Numba's own parallel loops are not used: two of them at once (virtual ranks) abort the process, and a barrier inside
    a loop, which FACT needs once per column, is impossible there.
    """

    def __init__(self, threads: int, cores: Sequence[int] = ()):
        self.threads = threads
        self._cores = list(cores)
        self._work: list[SimpleQueue[Any]] = [SimpleQueue() for _ in range(threads - 1)]
        self._pid = 0

    def shape(self, m: int, n: int) -> tuple[int, int]:
        """How to cut an m×n block for all threads, (down, across): each thread's part as square as possible."""
        cuts = [(down, self.threads // down) for down in range(1, self.threads + 1) if self.threads % down == 0]
        return min(cuts, key=lambda cut: m / cut[0] + n / cut[1])

    def _start(self) -> None:
        """Start the threads on first use, in this process: a fork has none of them."""
        if self._pid != os.getpid():
            for tid, work in enumerate(self._work, start=1):
                threading.Thread(target=self._serve, args=(tid, work), daemon=True, name=f"team {tid}").start()
            self._pid = os.getpid()  # once all of them are there

    def _serve(self, tid: int, work: SimpleQueue[Any]) -> None:
        if self._cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(threading.get_native_id(), [self._cores[tid % len(self._cores)]])
        while True:
            function, args, done = work.get()
            try:
                function(tid, *args)
                done.put(None)
            except BaseException as error:
                done.put(error)
            del function, args, done  # what they refer to would otherwise live until the next piece of work

    def run(self, function: Callable[..., None], *args: Any) -> None:
        """Run function(tid, *args) on every thread; return when all have; raise what any of them raised."""
        self._start()
        done: SimpleQueue[BaseException | None] = SimpleQueue()  # of this run: an interrupted one leaves nothing behind
        for work in self._work:
            work.put((function, args, done))
        failures: list[BaseException | None] = [None]
        try:
            function(0, *args)
        except Exception as error:
            failures[0] = error  # an interrupt is not waited with: the threads may wait for this one
        failures += [done.get() for _ in self._work]
        for failure in failures:
            if failure is not None:
                raise failure
