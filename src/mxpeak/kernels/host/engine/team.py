"""The threads of a rank, which execute compiled code in parallel without the GIL."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np

from mxpeak.kernels.host.engine.jit import INT, INTEGERS, jit
from mxpeak.kernels.host.engine.vector_ir import atomic_load, atomic_store

#: Polls of another thread's counter before this thread sleeps: about 0.3 ms.
LOOKS = 600_000
#: Polls after new work has arrived and before this thread requests the GIL: about 4 µs. The caller holds the GIL until
#: it starts to compute.
LOOKS_BEFORE = 8_000
#: Distance of the threads' counters in the array, so that each counter has its own cache line.
APART = 8


@jit(INTEGERS, INT, INT, INT)
def await_work(counts, tid, done, looks):
    """Publish that thread `tid` has finished `done` pieces of work, then poll at most `looks` times for more."""
    atomic_store(counts, tid * APART, done)
    while atomic_load(counts, 0) <= done:
        looks -= 1
        if looks < 0:
            return
    for _ in range(LOOKS_BEFORE):
        atomic_load(counts, 0)


@jit(INTEGERS, INT, INT, INT)
def await_done(counts, threads, given, looks):
    """Wait until all other threads have finished `given` pieces of work, or for at most `looks` polls."""
    for tid in range(1, threads):
        while atomic_load(counts, tid * APART) < given:
            looks -= 1
            if looks < 0:
                return


def _serve(tid: int, work: SimpleQueue[Any], cores: Sequence[int], counts: np.ndarray, looks: int) -> None:
    """Execute the work in a thread's queue until the queue returns None.

    The function has no reference to the team, so an unused team can be garbage-collected.
    """
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(threading.get_native_id(), [cores[tid % len(cores)]])
    while (given := work.get()) is not None:
        piece, function, args, done = given
        try:
            function(tid, *args)
            done.put(None)
        except BaseException as error:
            done.put(error)
        del given, function, args, done  # otherwise their objects would live until the next piece of work
        if looks:
            await_work(counts, tid, piece, looks)


def _send_home(queues: Sequence[SimpleQueue[Any]]) -> None:
    """End the threads of a garbage-collected team."""
    for work in queues:
        work.put(None)


class Team:
    """A team of T threads: the caller is thread 0, and each other thread waits for work on its own core.

    alone    whether no other rank computes on these cores

    If the team is alone, its threads poll for new work before they sleep, and the caller polls for completion. Waking
    a sleeping core takes longer than many pieces of work: 24 µs per piece on a virtual machine, compared with 6 µs
    with polling. The polling loops are compiled code that runs without the GIL, so no thread sleeps while it waits for
    the GIL.

    Numba's parallel loops are not used, because two loops at the same time (virtual ranks) abort the process. They
    also allow no barrier inside a loop, which FACT needs once per column.

    The threads end when the team is garbage-collected.
    """

    def __init__(self, threads: int, cores: Sequence[int] = (), *, alone: bool = False):
        self.threads = threads
        self._cores = list(cores)
        self._work: list[SimpleQueue[Any]] = [SimpleQueue() for _ in range(threads - 1)]
        self._pid = 0
        self._looks = LOOKS if alone and len(set(self._cores)) >= threads > 1 else 0
        self._counts = np.zeros(threads * APART, np.int64)  # counts[0]: pieces given; others: pieces finished
        weakref.finalize(self, _send_home, self._work).atexit = False  # at exit, Python ends these daemon threads

    def shape(self, m: int, n: int) -> tuple[int, int]:
        """Return the numbers of parts, down and across, into which the threads divide an m×n block.

        There is one part per thread. Square parts need the fewest reads of a product's factors, but long rows are
        faster than short rows. Therefore, the height of a part has twice the weight of its width.
        """
        cuts = [(down, self.threads // down) for down in range(1, self.threads + 1) if self.threads % down == 0]
        return min(cuts, key=lambda cut: 2 * m / cut[0] + n / cut[1])

    def _start(self) -> None:
        """Start the threads unless this process has started them. A forked process starts its own threads."""
        if self._pid != os.getpid():
            self._counts = np.zeros(self._counts.size, np.int64)
            for tid, work in enumerate(self._work, start=1):
                args = tid, work, self._cores, self._counts, self._looks
                threading.Thread(target=_serve, args=args, daemon=True, name=f"team {tid}").start()
            self._pid = os.getpid()  # after all threads have started

    def run(self, function: Callable[..., None], *args: Any) -> None:
        """Run function(tid, *args) on every thread, wait for all of them, and raise the first exception."""
        if not self._work:
            function(0, *args)
            return
        self._start()
        # One queue per run, so that an interrupted run leaves no results behind.
        done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._counts[0] += 1  # first, so that threads never wait for a piece that an interrupt has canceled
        for work in self._work:
            work.put((self._counts[0], function, args, done))
        failures: list[BaseException | None] = [None]
        try:
            function(0, *args)
        except Exception as error:  # an interrupt propagates at once, because the other threads may wait for this one
            failures[0] = error
        if self._looks:
            await_done(self._counts, self.threads, self._counts[0], self._looks)
        failures += [done.get() for _ in self._work]
        for failure in failures:
            if failure is not None:
                raise failure
