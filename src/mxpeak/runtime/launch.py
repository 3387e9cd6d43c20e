"""Who started us, with how many ranks, and how a thread is bound to cores."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from mxpeak.comm.base import Communicator
from mxpeak.comm.transports.solo import Solo
from mxpeak.errors import ExitCode, ResourceError, UsageError
from mxpeak.installation import install_command
from mxpeak.perf.host import available_memory_bytes
from mxpeak.records import size_text
from mxpeak.runtime.parent_watch import LAST_WORD, TOLD, asked_by, child_environment, heard_of, last_word

TORCHRUN = "torchrun"

#: Variables by which launchers tell a process its rank and the number of ranks, in order of trust.
LAUNCHERS = {
    TORCHRUN: ("RANK", "WORLD_SIZE"),
    "mpiexec (PMI)": ("PMI_RANK", "PMI_SIZE"),
    "mpiexec (Open MPI)": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "mpiexec (PMIx)": ("PMIX_RANK", "PMIX_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
}
#: RANK is a name that anything may have; torchrun sets one of these too.
TORCHRUN_MARKS = ("TORCHELASTIC_RUN_ID", "LOCAL_WORLD_SIZE")
#: Variables by which they tell it its number among the ranks of its node.
LOCAL_RANKS = {
    TORCHRUN: "LOCAL_RANK",
    "mpiexec (PMI)": "MPI_LOCALRANKID",
    "mpiexec (Open MPI)": "OMPI_COMM_WORLD_LOCAL_RANK",
    "srun": "SLURM_LOCALID",
}

#: The least that each of many ranks takes before it has a matrix: what Python, NumPy and MPI share with no other.
RANK_BYTES = 25 * 2**20

#: How several ranks of each communicator are started.
COMMANDS = {"mpi": "mpiexec -n {ranks} mxpeak ...", "torch": "torchrun --nproc-per-node {ranks} -m mxpeak ..."}


def launcher(environ: Mapping[str, str] = os.environ) -> tuple[str, int, int] | None:
    """The launcher's name, our rank and the number of ranks; None if nobody but a shell started us."""
    for name, (rank, size) in LAUNCHERS.items():
        if name == TORCHRUN and not any(mark in environ for mark in TORCHRUN_MARKS):
            continue
        if environ.get(rank, "").isdecimal() and environ.get(size, "").isdecimal():
            return name, int(environ[rank]), int(environ[size])
    return None


def launched() -> bool:
    """Whether a launcher such as mpiexec, srun or torchrun started this process as one of several."""
    found = launcher()
    return found is not None and found[2] > 1


def _mpiexec() -> str:
    """The mpiexec that belongs to this Python (the mpich wheel puts it there), else the one on the path."""
    beside = Path(sysconfig.get_path("scripts")) / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise UsageError(
            "--ranks needs mpiexec, which is neither next to this Python nor on the PATH; "
            f"run {install_command('mpich')}, or load the site's MPI module"
        )
    return found


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _need_torch(what: str) -> None:
    if not _has("torch"):
        raise UsageError(f"{what} needs PyTorch, which is not installed; run {install_command('gpu')}")


def respawn(ranks: int, argv: list[str], comm: str = "auto") -> int:
    """Start `ranks` local ranks of this very command and return their exit code.

    By torchrun where torch is asked for, or is all there is; else by mpiexec.
    """
    _check_memory(ranks)
    if comm == "torch" or (comm == "auto" and not _has("mpi4py") and _has("torch")):
        _need_torch(f"--ranks {ranks} --comm torch")
        from mxpeak.comm.transports.torchdist import run_ranks

        os.environ.update(child_environment())
        return run_ranks(ranks, argv)
    return _mpi_ranks(ranks, argv)


def _check_memory(ranks: int) -> None:
    """Start none where the processes alone would fill this host."""
    need, free = ranks * RANK_BYTES, available_memory_bytes()
    if free is not None and need > free:
        most = max(1, free // RANK_BYTES)
        raise ResourceError(
            f"{ranks} ranks on this host need at least {size_text(need)} ({size_text(RANK_BYTES)} each), "
            f"but only {size_text(free)} of memory is free; use at most {most} ranks here (--ranks, "
            "--ranks-list), or use mpiexec or srun to start more on several hosts"
        )


def _mpi_ranks(ranks: int, argv: list[str]) -> int:
    if not _has("mpi4py"):
        raise UsageError(
            f"--ranks {ranks} needs MPI for Python, which is not installed; run {install_command('mpich')}"
        )
    with TemporaryFile() as word:
        command = [_mpiexec(), "-n", str(ranks), sys.executable, "-m", "mxpeak", *argv]
        code = code_of(command, {LAST_WORD: f"/proc/{os.getpid()}/fd/{word.fileno()}"})
        left = word.read().decode(errors="replace")
    said = last_word(left)
    if sys.stderr is not None:
        sys.stderr.write("".join(line for line in left.splitlines(keepends=True) if not line.strip().isdecimal()))
    if said is not None and code < 128:
        return said
    # MPICH's mpiexec returns a signal's number without 128 added, also of a rank that it killed because another one had
    # called abort.  Numbers up to 6 are codes of ours, but a rank that ends with one leaves it, where there is /proc.
    aborted = code == signal.SIGABRT and Path("/proc/self/fd").exists()
    return 128 + code if aborted or max(ExitCode) < code < signal.NSIG else code


def spawn(ranks: int, argv: list[str], comm: str = "auto") -> int:
    """Start `ranks` local ranks of another command, one as a process alone, and return their exit code."""
    return respawn(ranks, argv, comm) if ranks > 1 else code_of([sys.executable, "-m", "mxpeak", *argv])


def can_start_ranks() -> bool:
    """Whether several local ranks of MPI can be started."""
    try:
        return _has("mpi4py") and bool(_mpiexec())
    except UsageError:
        return False


def code_of(command: list[str], more: Mapping[str, str] | None = None, **streams: Any) -> int:
    """Run a command to its end, and return its exit code; a signal that ends us ends it first.

    The first that comes, of any number: whoever starts ranks tells them all, and so does a rank that was told alone.
    """
    told: list[int] = []
    untold: list[subprocess.Popen[Any]] = []

    def pass_on() -> None:
        with suppress(IndexError):  # it has been told, or is not there yet
            untold.pop().terminate()

    def forward(number: int, frame: object) -> None:
        told.append(asked_by(number))
        with suppress(OSError):  # a disk that is full
            os.pwrite(first.fileno(), str(told[0]).encode(), 0)
        pass_on()

    for name, file in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        if _is_closed(file):  # in a program that calls the library: mpiexec ends with 255 without it
            streams.setdefault(name, subprocess.DEVNULL)
    with TemporaryFile() as first:
        more = {TOLD: f"/proc/{os.getpid()}/fd/{first.fileno()}", **(more or {})}
        before = {number: signal.signal(number, forward) for number in heard_of()}
        try:
            # In a group of its own, so that a Ctrl-C comes here alone: mpiexec, told twice, would fall over itself.
            child = subprocess.Popen(command, start_new_session=True, env={**child_environment(), **more}, **streams)
            untold.append(child)
            if told:  # while it was started
                pass_on()
            code = child.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    if told:
        return 128 + told[0]
    return code if code >= 0 else 128 - code


def _is_closed(file: int) -> bool:
    try:
        os.fstat(file)
    except OSError:
        return True
    return False


def confirm(comm: str, ranks: int | None, group: Communicator) -> None:
    """Raise if what was asked for is not what was started; asked of the same values, it raises on all ranks alike."""
    if comm == "solo" and group.size > 1:
        known = group.name if group.name in COMMANDS else "mpi"
        raise UsageError(f"--comm solo supports only one rank, but {group.size} ranks were started; use --comm {known}")
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


def start(comm: str = "auto") -> Communicator:
    """The communicator of all ranks: torch.distributed under torchrun, MPI under other launchers, or what is asked for.

    Without a launcher, or where it started one rank only, and with nothing asked for, this process is alone.
    torchrun ends with code 1 whatever its ranks end with; mxpeak's own --ranks passes their code on.  Collective.
    """
    found = launcher()
    if not launched() and comm not in COMMANDS:
        return Solo()
    if comm == "torch" or (comm != "mpi" and found is not None and found[0] == TORCHRUN):
        return _start_torch(found)
    return _start_mpi(found)


def _start_torch(found: tuple[str, int, int] | None) -> Communicator:
    _need_torch("--comm torch")
    name, rank, size = found or ("shell", 0, 1)
    missing = [variable for variable in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(variable)]
    if size > 1 and missing:
        raise UsageError(
            f"--comm torch needs an address at which the {size} ranks of {name} connect, but "
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set; run "
            f"{COMMANDS['torch'].format(ranks=size)}"
        )
    from mxpeak.comm.transports import torchdist

    return torchdist.world(rank, size)


def _start_mpi(found: tuple[str, int, int] | None) -> Communicator:
    if found is not None and found[0] == TORCHRUN:
        raise UsageError(
            "--comm mpi does not work under torchrun, which does not start MPI; run "
            f"{COMMANDS['mpi'].format(ranks=found[2])}, or remove --comm"
        )
    if not _has("mpi4py"):
        raise UsageError(f"this run needs MPI for Python, which is not installed; run {install_command('mpich')}")
    os.environ.setdefault("UCX_DEBUG_SIGNO", "0")  # UCX would take SIGHUP, by which a terminal says that it is closed
    _refuse_other_launcher(found)
    from mxpeak.comm.transports import mpi

    group = mpi.world()
    if found is not None and found[2] != group.size:
        raise UsageError(
            f"{found[0]} started {found[2]} ranks, but MPI for Python finds {group.size}, because it was "
            "built for another MPI; load the MPI of this launcher, and run pip install --force-reinstall "
            "mpi4py"
        )
    return group


def _refuse_other_launcher(found: tuple[str, int, int] | None) -> None:
    """Stop before MPI starts where Open MPI's launcher started ranks of another library: there they would abort."""
    if found is None or found[0] != "mpiexec (Open MPI)":
        return
    vendor = _mpi_vendor()
    if vendor != "Open MPI":
        beside = Path(sysconfig.get_path("scripts")) / "mpiexec"
        own = str(beside) if beside.exists() else f"{vendor}'s mpiexec"
        raise UsageError(
            f"this mpiexec belongs to Open MPI, but MPI for Python uses the library of {vendor}; use {own} "
            f"-n {found[2]} mxpeak ..., or run pip install --force-reinstall --no-binary mpi4py mpi4py to "
            "build it for Open MPI"
        )


def _mpi_vendor() -> str:
    """Whose MPI library MPI for Python uses, found without starting it."""
    import mpi4py

    mpi4py.rc.initialize, mpi4py.rc.finalize = False, True  # whoever starts MPI later wants it ended
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it suspects the launcher, too
        from mpi4py import MPI
    return str(MPI.get_vendor()[0])


def local_rank(comm: Communicator, environ: Mapping[str, str] = os.environ) -> int:
    """This rank's number among those of its node: as its own launcher says, else counted.  Collective over comm."""
    found = launcher(environ)
    said = environ.get(LOCAL_RANKS.get(found[0], ""), "") if found is not None else ""
    if said.isdecimal():
        return int(said)
    from mxpeak.runtime.nodes import nodes_of

    return nodes_of(comm, None).rank


def bind(cores: list[int]) -> list[int]:
    """Bind the calling thread, and those it starts later, to `cores`; return the cores it had before."""
    if not hasattr(os, "sched_setaffinity"):
        return cores
    before = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores)
    return before


def library_name(version: str) -> str:
    """Return the first line of an MPI library's version text, with single spaces."""
    return " ".join(version.splitlines()[0].strip("\0").split())


def mpi_facts() -> dict[str, Any]:
    """What `doctor` says about MPI; raises ImportError where MPI for Python or its library is missing."""
    import mpi4py

    # Looking must not start MPI: under a launcher it would wait for ranks that have nothing to look at.
    mpi4py.rc.initialize = False
    from mpi4py import MPI

    return {
        "library": library_name(MPI.Get_library_version()),
        "standard": ".".join(map(str, MPI.Get_version())),
        "mpiexec": _mpiexec(),
    }
