"""Serialize the library calls of one process, choose their number of threads, and compile kernels at first use."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from numbers import Integral
from typing import Any

from mxpeak.comm.base import Communicator
from mxpeak.comm.transports.solo import Solo
from mxpeak.errors import UsageError
from mxpeak.perf.host import allowed_cores, one_core_each
from mxpeak.runtime.compile import compile_in_turn


class Turn:
    """A reentrant lock that its owner can leave to other threads for the time of a function call."""

    def __init__(self) -> None:
        self._lock, self._own = threading.RLock(), threading.local()

    def __enter__(self) -> None:
        self._lock.acquire()
        self._own.depth = self._depth + 1

    def __exit__(self, *exception: object) -> None:
        if self._depth:  # otherwise, an interrupt ended `leave_during` before it acquired the lock again
            self._own.depth = self._depth - 1
            self._lock.release()

    @property
    def _depth(self) -> int:
        """Return how often this thread has acquired the lock."""
        return getattr(self._own, "depth", 0)

    def leave_during(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return function(*arguments), and let other threads acquire the lock until the function returns."""
        depth = self._depth
        for _ in range(depth):
            self.__exit__()
        try:
            return function(*arguments)
        finally:
            for _ in range(depth):
                self.__enter__()


#: Only one call runs at a time, because the threads of the kernels run in step and a sum has one slot per thread. A
#: call from a user's function runs between two kernels of the outer call, also if it runs in another thread.
TURN = Turn()

#: A communicator that contains only the calling process.
SINGLE_PROCESS: Communicator = Solo()

_ready: set[tuple[object, ...]] = set()


def threads_for(requested: Any, *, default: int | None = None) -> int:
    """Return the requested number of threads. For None, return `default` or the number of physical cores.

    Raise a UsageError if the number is not a positive integer or exceeds the number of cores.
    """
    if requested is None:
        return default or _cores()
    if isinstance(requested, bool) or not isinstance(requested, Integral) or int(requested) < 1:
        raise UsageError(
            f"threads={requested!r} is not valid; use an integer of at least 1, or None for one thread per core"
        )
    cores = len(allowed_cores())
    if int(requested) > cores:
        raise UsageError(
            f"threads={requested} is too large, because this process has {cores} cores and each thread needs its "
            f"own core; use at most {cores}, or None for one thread per core"
        )
    return int(requested)


@cache
def _cores() -> int:
    """Return the number of physical cores that this process may use."""
    return max(1, len(one_core_each()))


def outside_turn(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a user's function, which may call the library in other threads and wait for them."""
    return TURN.leave_during(function, *arguments)


def compile_once(
    what: str, key: tuple[object, ...], use: Callable[[], Any], comm: Communicator = SINGLE_PROCESS, name: str = ""
) -> None:
    """Run `use` on tiny data to compile the kernels that it calls. Collective over comm.

    If an earlier call with the same key has done so on every rank, do nothing. `what` names the kernels in the line
    that is printed to stderr if the compilation takes more than a second. `name` identifies a set of declared entry
    points that several processes can compile in parallel. It is empty if no set is declared for these kernels.
    """
    if not comm.agree(key in _ready):
        _ready.add(key)
        compile_in_turn(comm, what, use, name)
