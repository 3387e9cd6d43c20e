"""Compile Triton kernels in parallel before their first use.

Triton compiles a kernel serially when it is launched, and again for each specialization. During a rehearsal, `launch`
only requests the specialization, and threads compile all specializations in parallel (Triton's compiler releases the
interpreter lock). Results of a rehearsal are not used, and solver vectors are filled with ones so that no loop stops
early. If a rehearsal fails, each kernel is compiled at its first launch instead.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from typing import Any

#: Maximum number of characters of an error that are printed.
MAX_ERROR_LENGTH = 200
#: Kernels launched in the current rehearsal; None outside of a rehearsal.
_met: ContextVar[dict[Any, None] | None] = ContextVar("met", default=None)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """Launch a kernel, or request its compilation during a rehearsal."""
    met = _met.get()
    if met is None:
        kernel[grid](*args, **constants)
    else:
        met[kernel] = None
        kernel.warmup(*args, grid=grid, **constants)


def is_rehearsing() -> bool:
    """Return whether a rehearsal is in progress, during which launches only request compilation."""
    return _met.get() is not None


@contextmanager
def rehearsal() -> Iterator[dict[Any, None]]:
    """Turn launches into compilation requests within the context, and yield the kernels to be compiled."""
    met: dict[Any, None] = {}
    token = _met.set(met)
    try:
        yield met
    finally:
        _met.reset(token)


def rehearse(use: Callable[[], None], cores: Sequence[int]) -> None:
    """Call `use` in a rehearsal, and compile the kernels that it launches in parallel, with one thread per core.

    If the rehearsal fails, print the reason to stderr. Each kernel is then compiled at its first launch.
    """
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
            copy_context().run(
                go_through
            )  # after a failed compilation, Triton 3.6 does not leave its asynchronous mode
    except Exception as error:  # Triton may have changed, or `use` may reject meaningless numbers
        for kernel in met:
            with suppress(Exception):
                kernel.device_caches.clear()  # otherwise the failed specialization would fail again at its launch
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:MAX_ERROR_LENGTH]}"
        print(f"kernels are compiled one after the other, not in parallel: {why}", file=sys.stderr, flush=True)


def _to(cores: Sequence[int]) -> None:
    """Allow the current thread to run on these cores, regardless of the affinity that it inherited from its parent."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
