"""Compilation at first use: one rank a cache folder compiles, on all its cores; the others load what it made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import is_leader
from mxpeak.kernels.contract.backend import Backend
from mxpeak.perf.host import available_memory_bytes, one_core_each

#: Seconds after which a first use that compiles prints a line, and between two looks whether it does.
SILENT_S = 1.0
#: Processes that compile at once: more would wait for the longest entry point.
MOST = 8
#: Free memory for each of them: LLVM, Numba and the largest function.
PROCESS_BYTES = 2**29
#: Seconds in which a process has to end when there is nothing left to compile: an entry point takes five.
PATIENCE_S = 60.0

#: What such a process runs, a fresh interpreter with this one's path: a fork would inherit MPI, and locks.
_WORKER = """
import json, os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
told = json.loads(sys.argv[1])
sys.path[:] = told["path"]
from mxpeak.runtime.compile import help_to_compile
help_to_compile(told["use"], told["cores"], told["parent"])
"""


def compile_in_turn(
    comm: Communicator,
    what: str,
    use: Callable[[], None],
    name: str = "",
    cores: Sequence[int] | None = None,
    kernels: Backend | None = None,
) -> None:
    """Use kernels that compile when first used: one rank a cache folder first, the others load what it made.

    `name`: of the use, where what it takes may be listed; `cores` that may be used for that, those of this process
    where it has not been bound to others; `kernels` that can rehearse the use. Rank 0 prints a line if it compiles and
    that takes more than a moment. Collective over comm.
    """
    from mxpeak.kernels.host.engine.cache import token

    leader = is_leader(comm, token())
    text = f"{what}: compiling its kernels (once, up to a minute)"
    with _announced(text) if comm.rank == 0 else nullcontext(threading.Event()) as compiles:
        for turn in (True, False):
            if leader == turn:
                if leader:
                    if cold_entries(name):
                        compiles.set()
                    compile_side_by_side(name, cores)
                    if kernels is not None:
                        kernels.rehearse(use, one_core_each(affinity=cores))
                use()
            comm.barrier()


@contextmanager
def _announced(text: str) -> Iterator[threading.Event]:
    """Print a line after a moment if the event is set, or once new machine code appears: loading alone is no news."""
    compiles, ended, before = threading.Event(), threading.Event(), _machine_code()

    def watch() -> None:
        while not ended.wait(SILENT_S):
            if compiles.is_set() or _machine_code() > before:
                print(text, file=sys.stderr, flush=True)
                return

    thread = threading.Thread(target=watch, name="first use", daemon=True)
    thread.start()
    try:
        yield compiles
    finally:
        ended.set()
        thread.join()


def _machine_code() -> int:
    """Return how many files of machine code the caches hold: Numba's, and Triton's where it compiles."""
    from mxpeak.kernels.host.engine.cache import cache_directory

    folders = [cache_directory()]
    if "triton" in sys.modules:
        folders.append(Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache"))
    return sum(len(names) for folder in folders for _, _, names in os.walk(folder))


def cold_entries(name: str) -> list[int]:
    """Return the numbers of the entry points of a use that are not in the cache, as far as they are known."""
    from mxpeak.kernels.host.engine.first_use import entries

    return [number for number, entry in enumerate(entries(name)) if _is_cold(entry)]


def compile_side_by_side(name: str, cores: Sequence[int] | None = None) -> None:
    """Compile what a use is known to take and the cache has not: here, and in a process on each of the other cores.

    With one core it is left to the use itself, and so is all that fails here.
    """
    from mxpeak.kernels.host.engine.first_use import compile_from

    cold = cold_entries(name)
    if len(cold) < 2 or "python" not in Path(sys.executable or "").name:  # another program that has Python in it
        return
    free = available_memory_bytes()
    room = min(len(one_core_each(affinity=cores)), MOST, MOST if free is None else free // PROCESS_BYTES)
    if room <= 1:
        return
    queue, end = os.pipe()
    os.write(end, bytes(cold))
    os.close(end)
    os.set_blocking(queue, False)
    helpers: list[subprocess.Popen[bytes]] = []
    try:
        with suppress(OSError):  # no memory, or too many processes: with fewer
            for _ in range(min(room, len(cold)) - 1):
                helpers.append(_helper(queue, name, cores))
        compile_from(queue, name)
        for helper in helpers:
            with suppress(subprocess.TimeoutExpired):
                helper.wait(PATIENCE_S)
    finally:
        os.close(queue)
        for helper in helpers:
            helper.kill()
            helper.wait()


def _is_cold(entry: Any) -> bool:
    """Whether it is not in the cache; what cannot be told is left to the use itself."""
    try:
        return bool(entry.is_cold())
    except Exception:
        return False


def _helper(queue: int, name: str, cores: Sequence[int] | None) -> subprocess.Popen[bytes]:
    path = [place for place in sys.path if isinstance(place, str)]  # Python itself takes no other
    told = {"use": name, "cores": cores, "path": path, "parent": os.getpid()}
    command = [sys.executable, "-c", _WORKER, json.dumps(told)]
    return subprocess.Popen(command, stdin=queue, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def help_to_compile(name: str, cores: Sequence[int] | None, parent: int) -> None:
    """Compile what is read from stdin, on any of the cores, as long as the process that waits for it is there."""
    from mxpeak.kernels.host.engine.first_use import compile_from
    from mxpeak.runtime.parent_watch import on_end

    if cores is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    on_end(parent, lambda: os._exit(0))
    compile_from(0, name)
