"""Compilation at first use: one rank a cache folder compiles, the others load what it made."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from mxpeak.comm.base import Communicator
from mxpeak.runtime.nodes import leads

#: Seconds after which a first use that compiles says so.
SILENT_S = 1.0


def compile_in_turn(comm: Communicator, what: str, use: Callable[[], None]) -> None:
    """Use kernels that compile when first used: one rank a cache folder first, the others load what it made.

    Says so on rank 0 where it does not end at once.  Collective over comm.
    """
    from mxpeak.kernels.host.compiled import token

    leader = leads(comm, token())
    text = f"{what}: compiling its kernels (once, up to a minute)"
    timer = threading.Timer(SILENT_S, lambda: print(text, file=sys.stderr, flush=True))
    if comm.rank == 0:
        timer.start()
    try:
        for turn in (True, False):
            if leader == turn:
                use()
            comm.barrier()
    finally:
        timer.cancel()
