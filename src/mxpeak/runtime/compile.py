"""Compile kernels at first use.

One rank per cache folder compiles on all its cores. The other ranks then load the machine code.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import is_leader
from mxpeak.kernels.contract.backend import Backend
from mxpeak.perf.host import available_memory_bytes, one_core_each
from mxpeak.runtime.parent_watch import terminal_width

#: Seconds after which a first use that compiles prints a line, and seconds between two checks.
SILENT_S = 1.0
#: Erases the line of a terminal, and moves the cursor to its beginning.
ERASE = "\r\x1b[K"
#: The largest number of processes that compile. Additional processes would only wait for the slowest entry point.
MAX_PROCESSES = 8
#: Free memory in bytes that each compiling process needs for LLVM, Numba and the largest function.
PROCESS_BYTES = 2**29
#: Seconds in which a process must end when no entry point remains; compiling an entry point takes five seconds.
PATIENCE_S = 60.0

#: The program of a compiling process. It is a new interpreter with the same path, because a fork would inherit MPI and
#: locks.
_WORKER = """
import json, os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
options = json.loads(sys.argv[1])
sys.path[:] = options["path"]
from mxpeak.runtime.compile import help_to_compile
help_to_compile(options["use"], options["cores"], options["parent"])
"""


def compile_in_turn(
    comm: Communicator,
    what: str,
    use: Callable[[], None],
    name: str = "",
    cores: Sequence[int] | None = None,
    kernels: Backend | None = None,
) -> None:
    """Compile kernels at their first use on one rank per cache folder. The other ranks then load the machine code.

    `use` runs the kernels. `name` identifies a set of declared entry points that several processes can compile in
    parallel. It is empty if no set is declared for these kernels. `cores` are the cores on which the kernels are
    compiled, by default those of this process. `kernels` is a backend that can compile the kernels of `use` without
    running them. Rank 0 prints a line with the text `what` if the compilation takes more than a second. Collective
    over comm.
    """
    from mxpeak.kernels.host.engine.cache import token

    leader = is_leader(comm, token())
    text = f"{what}: compiling its kernels (once, a minute or more)"
    with announced(text, name) if comm.rank == 0 else nullcontext(threading.Event()) as compiles:
        for turn in (True, False):
            if leader == turn:
                if leader:
                    if cold_shares(name):
                        compiles.set()
                    compile_side_by_side(name, cores)
                    if kernels is not None:
                        kernels.rehearse(use, one_core_each(affinity=cores))
                use()
            comm.barrier()


@contextmanager
def announced(text: str, name: str) -> Iterator[threading.Event]:
    """Yield an event, and print a line after a second if the event is set or the caches contain new machine code.

    Loading kernels from a cache prints no line. On a terminal, a second line shows the progress of the set `name`.
    """
    compiles, ended, before = threading.Event(), threading.Event(), _machine_code()

    def watch() -> None:
        while not ended.wait(SILENT_S):
            if compiles.is_set() or _machine_code() > before:
                print(text, file=sys.stderr, flush=True)
                if terminal_width(sys.stderr, {}) is not None:
                    _show_progress(name, ended)
                return

    thread = threading.Thread(target=watch, name="first use", daemon=True)
    thread.start()
    try:
        yield compiles
    finally:
        ended.set()
        thread.join()


def _show_progress(name: str, ended: threading.Event) -> None:
    """Show on the terminal how many shares of the set `name` are compiled, and about how long the others take.

    The estimate is the time per compiled share, multiplied by the number of the others. It does not include kernels
    that are compiled later, at their first use.
    """
    begin, total = time.monotonic(), len(cold_shares(name))
    while not ended.wait(SILENT_S) and (left := len(cold_shares(name))):
        if (done := total - left) > 1:  # the first share alone does not allow an estimate
            seconds = (time.monotonic() - begin) * left / done
            text = f"compiled {done} of {total} groups of kernels, about {seconds:.0f} s left"
            print(ERASE + text, end="", file=sys.stderr, flush=True)
    print(ERASE, end="", file=sys.stderr, flush=True)


def _machine_code() -> int:
    """Return the number of files in Numba's cache of machine code, and in Triton's cache if Triton is loaded."""
    from mxpeak.kernels.host.engine.cache import cache_directory

    folders = [cache_directory()]
    if "triton" in sys.modules:
        # A user without a home has no folder of this name, for which Path.home would raise an error.
        folders.append(Path(os.environ.get("TRITON_CACHE_DIR") or os.path.expanduser("~/.triton/cache")))
    return sum(len(names) for folder in folders for _, _, names in os.walk(folder))


def cold_shares(name: str) -> list[int]:
    """Return the numbers of the shares of the set `name` with entry points that are not in the cache."""
    from mxpeak.kernels.host.engine.first_use import shares

    return [number for number, share in enumerate(shares(name)) if any(map(_is_cold, share))]


def compile_side_by_side(name: str, cores: Sequence[int] | None = None) -> None:
    """Compile the entry points of the set `name` that are not cached, in this process and on every other core.

    Each other core has its own process. With one core, or after a failure here, each entry point is compiled at its
    first use.
    """
    from mxpeak.kernels.host.engine.first_use import compile_from

    cold = cold_shares(name)
    if len(cold) < 2 or "python" not in Path(sys.executable or "").name:  # another program that embeds Python
        return
    free = available_memory_bytes()
    fit = MAX_PROCESSES if free is None else free // PROCESS_BYTES
    room = min(len(one_core_each(affinity=cores)), MAX_PROCESSES, fit)
    if room <= 1:
        return
    queue, end = os.pipe()
    os.write(end, bytes(cold))
    os.close(end)
    os.set_blocking(queue, False)
    helpers: list[subprocess.Popen[bytes]] = []
    try:
        with suppress(OSError):  # out of memory, or too many processes: continue with fewer
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
    """Return whether an entry point is known to be missing from the cache.

    If the answer is False although the entry point is missing, its first use compiles it.
    """
    try:
        return bool(entry.is_cold())
    except Exception:
        return False


def _helper(queue: int, name: str, cores: Sequence[int] | None) -> subprocess.Popen[bytes]:
    """Start a process that compiles the shares of entry points whose numbers it reads from the queue."""
    path = [place for place in sys.path if isinstance(place, str)]  # Python itself accepts only strings
    options = {"use": name, "cores": cores, "path": path, "parent": os.getpid()}
    command = [sys.executable, "-c", _WORKER, json.dumps(options)]
    return subprocess.Popen(command, stdin=queue, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def help_to_compile(name: str, cores: Sequence[int] | None, parent: int) -> None:
    """Compile the shares of entry points whose numbers arrive on stdin, on the given cores, until the parent ends."""
    from mxpeak.kernels.host.engine.first_use import compile_from
    from mxpeak.runtime.parent_watch import call_at_end

    if cores is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    call_at_end(parent, lambda: os._exit(0))
    compile_from(0, name)
