"""The kernels that calls share: their threads, whose turn it is, and compilation at first use."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from mxpeak.comm.solo import Solo
from mxpeak.errors import UsageError
from mxpeak.kernels.host.sparse import HostSparse
from mxpeak.kernels.host.team import Team
from mxpeak.perf.host import allowed_cores, one_core_each
from mxpeak.runtime.compile import compile_in_turn

#: Entries from which on more than one thread is quicker: waking a team costs some ten microseconds a kernel.
MANY = 200_000
#: One solve at a time: the kernels' threads work in step, and a sum has one place for each of them.  A solve that a
#: user's preconditioner starts comes in the same thread, between two kernels.
TURN = threading.RLock()

_ready: set[tuple[object, ...]] = set()


def kernels(threads: int | None, nnz: int) -> HostSparse:
    """The kernels with so many threads; None: as many as there are cores, one where A is small."""
    if threads is None:
        return _kernels(_cores() if nnz >= MANY else 1)
    if isinstance(threads, bool) or not isinstance(threads, int | np.integer) or threads < 1:
        raise UsageError(f"threads={threads!r}: give a whole number from 1 on, or None for one a core")
    most = len(allowed_cores())
    if threads > most:
        raise UsageError(
            f"threads={threads}, but there are {most} cores for this process, and threads that work in step need one "
            f"each; give at most {most}, or None for one a core"
        )
    return _kernels(int(threads))


@cache
def _kernels(threads: int) -> HostSparse:
    return HostSparse(Team(threads))


@cache
def _cores() -> int:
    return max(1, len(one_core_each()))


def make_ready(what: str, key: tuple[object, ...], use: Callable[[], Any]) -> None:
    """Use kernels once on something tiny, so that they are compiled; it says so if that takes more than a second."""
    if key not in _ready:
        _ready.add(key)
        compile_in_turn(Solo(), f"mxpeak.gmres, first use of {what}", use)
