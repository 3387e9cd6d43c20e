"""Start local ranks, return the communicator of all ranks, and bind threads to cores."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from select import select
from tempfile import NamedTemporaryFile, TemporaryFile
from threading import Event, Thread
from typing import IO, Any

from mxpeak.comm.base import Communicator
from mxpeak.comm.transports.solo import Solo
from mxpeak.errors import ExitCode, ResourceError, UsageError
from mxpeak.installation import install_command
from mxpeak.perf.host import allowed_cores, available_memory_bytes
from mxpeak.records import size_text
from mxpeak.runtime.launcher import LOCAL_RANKS, TORCHRUN, launched, launcher, local_place
from mxpeak.runtime.parent_watch import (
    EXIT_CODE_FILE,
    SIGNAL_FILE,
    child_environment,
    first_exit_code,
    first_signal,
    handled_signals,
)

#: The variables with which mxpeak selected the network adapters of this rank.
ADAPTER_VARIABLES: dict[str, str] = {}

#: Minimum memory of each rank without a matrix: the part of Python, NumPy and MPI that is not shared.
RANK_BYTES = 25 * 2**20

#: The open files of a process on Linux.
OPEN_FILES = Path("/proc/self/fd")
#: Seconds without output after which the copy of stdout stops once the command has ended.
COPY_S = 1.0
#: The commands that start several ranks, by communicator.
COMMANDS = {"mpi": "mpiexec -n {ranks} mxpeak ...", "torch": "torchrun --nproc-per-node {ranks} -m mxpeak ..."}


def _mpiexec() -> str:
    """Return the mpiexec next to this Python (installed by the mpich wheel), or the one on the path."""
    installed = Path(sysconfig.get_path("scripts")) / "mpiexec"
    mpiexec = str(installed) if installed.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        raise UsageError(
            "--ranks needs mpiexec, which is neither next to this Python nor on the PATH; "
            f"run {install_command('mpich')}, or load the site's MPI module"
        )
    return mpiexec


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _need_torch(what: str) -> None:
    if not _has("torch"):
        raise UsageError(f"{what} needs PyTorch, which is not installed; run {install_command('gpu')}")


def respawn(ranks: int, argv: list[str], comm: str = "auto") -> int:
    """Start `ranks` local ranks of this command and return their exit code.

    torchrun starts the ranks if torch is requested, or if torch is installed and MPI for Python is not. Otherwise
    mpiexec starts them.
    """
    _check_memory(ranks)
    if comm == "torch" or (comm == "auto" and not _has("mpi4py") and _has("torch")):
        _need_torch(f"--ranks {ranks} --comm torch")
        from mxpeak.comm.transports.torchdist import run_ranks

        os.environ.update(child_environment())
        return run_ranks(ranks, argv)
    return _mpi_ranks(ranks, argv)


def _check_memory(ranks: int) -> None:
    """Raise an error if the processes alone, without matrices, would fill the memory of this host."""
    need, free = ranks * RANK_BYTES, available_memory_bytes()
    if free is not None and need > free:
        max_ranks = max(1, free // RANK_BYTES)
        raise ResourceError(
            f"{ranks} ranks on this host need at least {size_text(need)} ({size_text(RANK_BYTES)} each), "
            f"but only {size_text(free)} of memory is free; use at most {max_ranks} ranks here (--ranks, "
            "--ranks-list), or use mpiexec or srun to start more on several hosts"
        )


def _mpi_ranks(ranks: int, argv: list[str]) -> int:
    if not _has("mpi4py"):
        raise UsageError(
            f"--ranks {ranks} needs MPI for Python, which is not installed; run {install_command('mpich')}"
        )
    with _shared_file() as (word, path):
        command = [_mpiexec(), "-n", str(ranks), sys.executable, "-m", "mxpeak", *argv]
        with copied_stdout() as (streams, errors):
            code = code_of(command, {EXIT_CODE_FILE: path}, **streams)
        text = word.read().decode(errors="replace")
    written = first_exit_code(text)
    if sys.stderr is not None:
        sys.stderr.write("".join(line for line in text.splitlines(keepends=True) if not line.strip().isdecimal()))
    if errors and sys.stderr is not None:
        print(f"mxpeak: error: cannot write to stdout: {errors[0].strerror}", file=sys.stderr)
    if errors and code == 0:
        return ExitCode.RESOURCE
    if written is not None and code < 128:
        return written
    # MPICH's mpiexec returns the number of a signal without adding 128, also for a rank that it killed after another
    # rank called abort. Numbers up to 6 are also mxpeak's codes, but a failing rank leaves its code in the file.
    return 128 + code if code == signal.SIGABRT or max(ExitCode) < code < signal.NSIG else code


@contextmanager
def _shared_file() -> Iterator[tuple[IO[bytes], str]]:
    """Yield a temporary file and a path by which child processes open it.

    With /proc, the file needs no name, which would remain if this process is killed.
    """
    if OPEN_FILES.exists():
        with TemporaryFile() as file:
            yield file, f"/proc/{os.getpid()}/fd/{file.fileno()}"
    else:
        with NamedTemporaryFile(prefix="mxpeak-") as file:
            yield file, file.name


def spawn(ranks: int, argv: list[str], comm: str = "auto") -> int:
    """Run an mxpeak command on `ranks` local ranks, or in one process without a launcher, and return the exit code."""
    return respawn(ranks, argv, comm) if ranks > 1 else code_of([sys.executable, "-m", "mxpeak", *argv])


def can_start_ranks() -> bool:
    """Return whether this host can start several local MPI ranks."""
    try:
        return _has("mpi4py") and bool(_mpiexec())
    except UsageError:
        return False


def code_of(command: list[str], more: Mapping[str, str] | None = None, **streams: Any) -> int:
    """Run a command and return its exit code.

    The first signal that would end this process is forwarded to the command. Later signals are ignored, because a
    launcher signals all its ranks, and each signaled rank also informs its launcher.
    """
    signals: list[int] = []
    unsignaled: list[subprocess.Popen[Any]] = []

    def pass_on() -> None:
        with suppress(IndexError):  # the command has been signaled, or has not started
            unsignaled.pop().terminate()

    def forward(number: int, frame: object) -> None:
        signals.append(first_signal(number))
        with suppress(OSError):  # the disk is full
            os.pwrite(first.fileno(), str(signals[0]).encode(), 0)
        pass_on()

    for name, file in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        if _is_closed(file):  # a program that calls the library may have closed it; mpiexec would then end with 255
            streams.setdefault(name, subprocess.DEVNULL)
    with _shared_file() as (first, path):
        more = {SIGNAL_FILE: path, **(more or {})}
        before = {number: signal.signal(number, forward) for number in handled_signals()}
        try:
            # The command gets its own process group, so that only this process receives Ctrl-C: mpiexec fails if it
            # receives two signals.
            child = subprocess.Popen(command, start_new_session=True, env={**child_environment(), **more}, **streams)
            unsignaled.append(child)
            if signals:  # a signal arrived during the start
                pass_on()
            code = child.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    if signals:
        return 128 + signals[0]
    return code if code >= 0 else 128 - code


@contextmanager
def copied_stdout() -> Iterator[tuple[dict[str, int], list[OSError]]]:
    """Yield the stdout of a command as an argument of Popen, and a list for the first error.

    A thread copies the output of the command to the stdout of this process. MPICH's mpiexec ends all ranks if it cannot
    write to stdout, for example because the disk is full. The thread stores the error, and the ranks finish their run.
    A terminal or a closed stdout needs no thread. The reader of a pipe may end at any time, which is not an error.
    """
    errors: list[OSError] = []
    if _is_closed(1) or os.isatty(1):
        yield {}, errors
        return
    source, target = os.pipe()
    ended = Event()
    thread = Thread(target=_copy, args=(source, ended, errors), name="stdout of the ranks", daemon=True)
    thread.start()
    try:
        yield {"stdout": target}, errors
    finally:
        os.close(target)
        ended.set()
        thread.join()


def _copy(source: int, ended: Event, errors: list[OSError]) -> None:
    """Copy a pipe to stdout until its end, and close it. After an error, read the rest without writing it.

    A process that the command has started may keep the pipe open. After the command has `ended`, the copy therefore
    stops if nothing arrives for COPY_S.
    """
    writable = True
    while True:
        arrived, _, _ = select([source], [], [], COPY_S)
        if not arrived:
            if ended.is_set():
                break
            continue
        if not (data := os.read(source, 1 << 16)):
            break
        while data and writable:
            try:
                data = data[os.write(1, data) :]
            except BlockingIOError:  # stdout is a pipe that does not block, and full
                select([], [1], [])
            except OSError as error:
                writable = False
                errors += [] if isinstance(error, BrokenPipeError) else [error]
    os.close(source)


def _is_closed(file: int) -> bool:
    try:
        os.fstat(file)
    except OSError:
        return True
    return False


def confirm(comm: str, ranks: int | None, group: Communicator) -> None:
    """Raise an error on all ranks if the communicator or the number of ranks differs from the requested one."""
    if comm == "solo" and group.size > 1:
        started = group.name if group.name in COMMANDS else "mpi"
        raise UsageError(
            f"--comm solo supports only one rank, but {group.size} ranks were started; use --comm {started}"
        )
    if comm in COMMANDS and group.name in COMMANDS and comm != group.name:
        raise UsageError(
            f"--comm {comm} conflicts with {group.name}, which started {group.size} ranks; run "
            f"{COMMANDS[comm].format(ranks=group.size)}, or remove --comm"
        )
    if ranks is not None and ranks != group.size:
        raise UsageError(
            f"--ranks {ranks} was requested, but {group.size} rank{'s were' if group.size > 1 else ' was'} "
            f"started; run {COMMANDS.get(group.name, COMMANDS['mpi']).format(ranks=ranks)}, or remove "
            "--ranks under a launcher"
        )


def select_adapters(device: str, root: str | Path = "/") -> None:
    """Set the variables with which MPI and NCCL use the network adapter nearest to the GPU of this rank.

    Call this function before MPI starts. Without a GPU, or if the user has set these variables, nothing changes.
    """
    place = local_place() if device != "cpu" else None
    if place is not None:
        from mxpeak.perf.nearest_adapter import adapter_variables

        ADAPTER_VARIABLES.update(adapter_variables(*place, allowed_cores(), os.environ, root))
        os.environ.update(ADAPTER_VARIABLES)


def start(comm: str = "auto", device: str = "auto") -> Communicator:
    """Return the communicator of all ranks.

    The communicator is of the type that `comm` requests, otherwise torch.distributed under torchrun or MPI under other
    launchers. Without a launcher and without a request, or with a single rank, this process is alone. torchrun always
    ends with code 1 if a rank fails; mxpeak's --ranks returns the code of the rank. Collective.
    """
    launch = launcher()
    if not launched() and comm not in COMMANDS:
        return Solo()
    if launched():
        select_adapters(device)
    if comm == "torch" or (comm != "mpi" and launch is not None and launch[0] == TORCHRUN):
        return _start_torch(launch)
    return _start_mpi(launch)


def _start_torch(launch: tuple[str, int, int] | None) -> Communicator:
    _need_torch("--comm torch")
    name, rank, size = launch or ("shell", 0, 1)
    missing = [variable for variable in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(variable)]
    if size > 1 and missing:
        raise UsageError(
            f"--comm torch needs an address at which the {size} ranks of {name} connect, but "
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set; run "
            f"{COMMANDS['torch'].format(ranks=size)}"
        )
    from mxpeak.comm.transports import torchdist

    return torchdist.world(rank, size)


def _start_mpi(launch: tuple[str, int, int] | None) -> Communicator:
    if launch is not None and launch[0] == TORCHRUN:
        raise UsageError(
            "--comm mpi does not work under torchrun, which does not start MPI; run "
            f"{COMMANDS['mpi'].format(ranks=launch[2])}, or remove --comm"
        )
    if not _has("mpi4py"):
        raise UsageError(f"this run needs MPI for Python, which is not installed; run {install_command('mpich')}")
    os.environ.setdefault("UCX_DEBUG_SIGNO", "0")  # UCX would handle SIGHUP, which a closed terminal sends
    with _mpi_library():
        _refuse_other_launcher(launch)
        from mxpeak.comm.transports import mpi

    group = mpi.world()
    if launch is not None and launch[2] != group.size:
        raise UsageError(
            f"{launch[0]} started {launch[2]} ranks, but MPI for Python finds {group.size}, because it was "
            "built for another MPI; load the MPI of this launcher, and run pip install --force-reinstall "
            "mpi4py"
        )
    return group


@contextmanager
def _mpi_library() -> Iterator[None]:
    """Raise ResourceError with the remedy if MPI for Python finds no MPI library, for which it raises RuntimeError."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise ResourceError(
            f"MPI for Python is installed, but finds no MPI library ({reason}); load the MPI module of your site, name "
            f"the library in MPI4PY_LIBMPI, or run {install_command('mpich')}"
        ) from None


def _refuse_other_launcher(launch: tuple[str, int, int] | None) -> None:
    """Raise an error, before MPI aborts, if Open MPI's launcher started ranks that use another MPI library."""
    if launch is None or launch[0] != "mpiexec (Open MPI)":
        return
    vendor = _mpi_vendor()
    if vendor != "Open MPI":
        installed = Path(sysconfig.get_path("scripts")) / "mpiexec"
        own = str(installed) if installed.exists() else f"{vendor}'s mpiexec"
        raise UsageError(
            f"this mpiexec belongs to Open MPI, but MPI for Python uses the library of {vendor}; use {own} "
            f"-n {launch[2]} mxpeak ..., or run pip install --force-reinstall --no-binary mpi4py mpi4py to "
            "build it for Open MPI"
        )


def _mpi_vendor() -> str:
    """Return the vendor of the MPI library that MPI for Python uses, without starting it."""
    import mpi4py

    mpi4py.rc.initialize, mpi4py.rc.finalize = False, True  # a program that starts MPI later expects it to be finalized
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MPI for Python also warns about the launcher
        from mpi4py import MPI
    return str(MPI.get_vendor()[0])


def local_rank(comm: Communicator, environ: Mapping[str, str] = os.environ) -> int:
    """Return this rank's number among the ranks of its node.

    The number is read from the launcher, or computed by counting the ranks of the node. Collective over comm.
    """
    launch = launcher(environ)
    number = environ.get(LOCAL_RANKS.get(launch[0], ""), "") if launch is not None else ""
    if number.isdecimal():
        return int(number)
    from mxpeak.runtime.nodes import nodes_of

    return nodes_of(comm, None).rank


def bind(cores: list[int]) -> list[int]:
    """Bind the calling thread, and the threads that it starts later, to `cores`; return its previous cores."""
    if not hasattr(os, "sched_setaffinity"):
        return list(range(os.cpu_count() or 1))
    before = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores)
    return before


def library_name(version: str) -> str:
    """Return the first line of an MPI library's version text, with repeated spaces removed."""
    return " ".join(version.splitlines()[0].strip("\0").split())


def mpi_facts() -> dict[str, Any]:
    """Return facts about MPI for `doctor`; raises ImportError or ResourceError if MPI for Python or MPI is missing."""
    import mpi4py

    # Inspection must not start MPI: under a launcher, MPI would wait for the other ranks.
    mpi4py.rc.initialize = False
    with _mpi_library():
        from mpi4py import MPI

    return {
        "library": library_name(MPI.Get_library_version()),
        "standard": ".".join(map(str, MPI.Get_version())),
        "mpiexec": _mpiexec(),
    }
