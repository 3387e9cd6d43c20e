"""Calls of the library in one process: whose turn it is, on how many threads, and compilation at first use."""

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

#: One call at a time: the kernels' threads work in step, and a sum has one slot for each of them. A call that a user's
#: function starts comes in the same thread, between two kernels.
TURN = threading.RLock()

#: The calling process.
ALONE: Communicator = Solo()

_ready: set[tuple[object, ...]] = set()


def threads_for(asked: Any, *, default: int | None = None) -> int:
    """As many threads as asked for, if there are cores for them; where `asked` is None, `default` or one a core."""
    if asked is None:
        return default or _cores()
    if isinstance(asked, bool) or not isinstance(asked, Integral) or int(asked) < 1:
        raise UsageError(
            f"threads={asked!r} is not valid; use an integer of at least 1, or None for one thread per core"
        )
    most = len(allowed_cores())
    if int(asked) > most:
        raise UsageError(
            f"threads={asked} is too large, because this process has {most} cores and each thread needs its "
            f"own core; use at most {most}, or None for one thread per core"
        )
    return int(asked)


@cache
def _cores() -> int:
    return max(1, len(one_core_each()))


def compile_once(
    what: str, key: tuple[object, ...], use: Callable[[], Any], comm: Communicator = ALONE, name: str = ""
) -> None:
    """Use kernels on something tiny at the first call with this key on one of the ranks, so that they are compiled.

    `name`: of the use, where what it takes may be listed. Says so on stderr if that takes more than a second.
    Collective over comm.
    """
    if not comm.agree(key in _ready):
        _ready.add(key)
        compile_in_turn(comm, what, use, name)
