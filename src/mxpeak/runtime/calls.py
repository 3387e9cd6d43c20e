"""Calls of the library in one process: their lock, their number of threads, and compilation at first use."""

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

#: One call at a time: the threads of the kernels run in step, and a sum has one slot per thread. A call from a user's
#: callback comes in the same thread, between two kernels.
TURN = threading.RLock()

#: The calling process.
ALONE: Communicator = Solo()

_ready: set[tuple[object, ...]] = set()


def threads_for(asked: Any, *, default: int | None = None) -> int:
    """Return the number of threads that was requested, after checking it; for None, `default` or one per core."""
    if asked is None:
        return default or _cores()
    if isinstance(asked, bool) or not isinstance(asked, Integral) or int(asked) < 1:
        raise UsageError(
            f"threads={asked!r} is not valid; use an integer of at least 1, or None for one thread per core"
        )
    cores = len(allowed_cores())
    if int(asked) > cores:
        raise UsageError(
            f"threads={asked} is too large, because this process has {cores} cores and each thread needs its "
            f"own core; use at most {cores}, or None for one thread per core"
        )
    return int(asked)


@cache
def _cores() -> int:
    """Return the number of cores for one thread each."""
    return max(1, len(one_core_each()))


def compile_once(
    what: str, key: tuple[object, ...], use: Callable[[], Any], comm: Communicator = ALONE, name: str = ""
) -> None:
    """Use kernels on tiny data at the first call with this key on one of the ranks, so that they are compiled.

    `name`: the use, by which its entry points may be declared. Prints a line to stderr if compilation takes more than a
    second. Collective over comm.
    """
    if not comm.agree(key in _ready):
        _ready.add(key)
        compile_in_turn(comm, what, use, name)
