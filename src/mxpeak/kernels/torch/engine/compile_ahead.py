"""Triton's kernels compiled ahead: a use is gone through once without computing, and all that it asks for at a time.

Triton compiles a kernel where it is launched, one after the other, anew for each form of its arguments.  In a rehearsal
launches only ask for their forms, which threads compile side by side: Triton's compiler lets go of the interpreter
lock.  Numbers that come of it mean nothing; vectors of solvers are full of ones, for which none stops early.  It is a
help and no more: what a rehearsal fails at is left to the use itself, which compiles where it launches.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from typing import Any

#: Letters of an error that are told.
MOST = 200
#: The kernels that a rehearsal has met; None outside of one.
_met: ContextVar[dict[Any, None] | None] = ContextVar("met", default=None)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """Launch a kernel; in a rehearsal ask for its form instead."""
    met = _met.get()
    if met is None:
        kernel[grid](*args, **constants)
    else:
        met[kernel] = None
        kernel.warmup(*args, grid=grid, **constants)


def is_rehearsing() -> bool:
    """Whether launches compute nothing."""
    return _met.get() is not None


@contextmanager
def rehearsal() -> Iterator[dict[Any, None]]:
    """Launches compute nothing inside, and are noted."""
    met: dict[Any, None] = {}
    token = _met.set(met)
    try:
        yield met
    finally:
        _met.reset(token)


def rehearse(use: Callable[[], None], cores: Sequence[int]) -> None:
    """Go through a use without computing, and compile all that it launches on these cores."""
    met: dict[Any, None] = {}

    def go_through() -> None:
        import triton

        with (
            ThreadPoolExecutor(max(1, len(cores)), initializer=_to, initargs=(cores,)) as threads,
            triton.AsyncCompileMode(threads),
        ):
            use()

    try:
        with rehearsal() as met:
            copy_context().run(go_through)  # Triton 3.6 stays in its mode once a compilation has failed
    except Exception as error:  # whatever Triton has changed, or a use finds in numbers without meaning
        for kernel in met:
            with suppress(Exception):
                kernel.device_caches.clear()  # what has failed would fail at its launch again
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:MOST]}"
        print(f"kernels are compiled one after the other, not in parallel: {why}", file=sys.stderr, flush=True)


def _to(cores: Sequence[int]) -> None:
    """Let a thread compute on any of these cores, whichever its maker is bound to."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
