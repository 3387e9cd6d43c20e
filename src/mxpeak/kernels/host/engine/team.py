"""The threads of a rank: they run compiled code that has let go of the interpreter lock, all in step."""

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

#: Looks at what another thread says before this one goes to sleep: some 0.3 ms.
LOOKS = 600_000
#: And between hearing of work and asking for the interpreter lock, which the caller holds until it computes: 4 us.
LOOKS_BEFORE = 8_000
#: Numbers from one thread's count to the next one's: each has a cache line.
APART = 8


@jit(INTEGERS, INT, INT, INT)
def await_work(counts, tid, done, looks):
    """Say that so many pieces of work are done, and return soon after the next one is there, or after so many looks."""
    atomic_store(counts, tid * APART, done)
    while atomic_load(counts, 0) <= done:
        looks -= 1
        if looks < 0:
            return
    for _ in range(LOOKS_BEFORE):
        atomic_load(counts, 0)


@jit(INTEGERS, INT, INT, INT)
def await_done(counts, threads, given, looks):
    """Return when all threads have done so many pieces of work, or after so many looks."""
    for tid in range(1, threads):
        while atomic_load(counts, tid * APART) < given:
            looks -= 1
            if looks < 0:
                return


def _serve(tid: int, work: SimpleQueue[Any], cores: Sequence[int], counts: np.ndarray, looks: int) -> None:
    """One thread's life: pieces of work until it is sent home.  It does not know the team, so this can be dropped."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(threading.get_native_id(), [cores[tid % len(cores)]])
    while (given := work.get()) is not None:
        piece, function, args, done = given
        try:
            function(tid, *args)
            done.put(None)
        except BaseException as error:
            done.put(error)
        del given, function, args, done  # what they refer to would otherwise live until the next piece of work
        if looks:
            await_work(counts, tid, piece, looks)


def _send_home(queues: Sequence[SimpleQueue[Any]]) -> None:
    """End the threads of a team that is gone."""
    for work in queues:
        work.put(None)


class Team:
    """T threads: the caller is thread 0, the others wait for work, each on its own core where `cores` names them.

    alone    whether no other rank computes on these cores

    Threads that are alone look out for work, and the caller for its end, for a while before they sleep: to wake a core
    that sleeps takes longer than many a piece of work, 24 us a piece on a virtual machine where this takes 6.  They do
    so in compiled code, without the interpreter lock; so nobody finds it taken, which would be to sleep, too.

    Numba's own parallel loops are not used: two of them at once (virtual ranks) abort the process, and a barrier inside
    a loop, which FACT needs once per column, is impossible there.

    The threads end with the team.
    """

    def __init__(self, threads: int, cores: Sequence[int] = (), *, alone: bool = False):
        self.threads = threads
        self._cores = list(cores)
        self._work: list[SimpleQueue[Any]] = [SimpleQueue() for _ in range(threads - 1)]
        self._pid = 0
        self._looks = LOOKS if alone and len(set(self._cores)) >= threads > 1 else 0
        self._counts = np.zeros(threads * APART, np.int64)  # pieces of work given, and done by each other thread
        weakref.finalize(self, _send_home, self._work).atexit = False  # Python's end takes the threads with it

    def shape(self, m: int, n: int) -> tuple[int, int]:
        """How to cut an m×n block for all threads, (down, across): each thread's part as square as possible."""
        cuts = [(down, self.threads // down) for down in range(1, self.threads + 1) if self.threads % down == 0]
        return min(cuts, key=lambda cut: m / cut[0] + n / cut[1])

    def _start(self) -> None:
        """Start the threads on first use, in this process: a fork has none of them."""
        if self._pid != os.getpid():
            self._counts = np.zeros(self._counts.size, np.int64)
            for tid, work in enumerate(self._work, start=1):
                args = tid, work, self._cores, self._counts, self._looks
                threading.Thread(target=_serve, args=args, daemon=True, name=f"team {tid}").start()
            self._pid = os.getpid()  # once all of them are there

    def run(self, function: Callable[..., None], *args: Any) -> None:
        """Run function(tid, *args) on every thread; return when all have; raise what any of them raised."""
        if not self._work:
            function(0, *args)
            return
        self._start()
        done: SimpleQueue[BaseException | None] = SimpleQueue()  # of this run: an interrupted one leaves nothing behind
        self._counts[0] += 1  # first, so that an interrupt leaves no piece that the threads wait for in vain
        for work in self._work:
            work.put((self._counts[0], function, args, done))
        failures: list[BaseException | None] = [None]
        try:
            function(0, *args)
        except Exception as error:
            failures[0] = error  # an interrupt is not waited with: the threads may wait for this one
        if self._looks:
            await_done(self._counts, self.threads, self._counts[0], self._looks)
        failures += [done.get() for _ in self._work]
        for failure in failures:
            if failure is not None:
                raise failure
