"""Who started us, with how many ranks, and how a thread is bound to cores."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mxpeak.comm.base import Communicator
from mxpeak.comm.solo import Solo
from mxpeak.errors import UsageError

#: Variables by which launchers tell a process its rank and the number of ranks, in order of trust.
LAUNCHERS = {
    "mpiexec (PMI)": ("PMI_RANK", "PMI_SIZE"),
    "mpiexec (Open MPI)": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "mpiexec (PMIx)": ("PMIX_RANK", "PMIX_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
}


def launcher(environ: Mapping[str, str] = os.environ) -> tuple[str, int, int] | None:
    """The launcher's name, our rank and the number of ranks; None if nobody but a shell started us."""
    for name, (rank, size) in LAUNCHERS.items():
        if environ.get(rank, "").isdecimal() and environ.get(size, "").isdecimal():
            return name, int(environ[rank]), int(environ[size])
    return None


def launched() -> bool:
    """Whether a launcher such as mpiexec or srun started this process as one of several."""
    found = launcher()
    return found is not None and found[2] > 1


def _mpiexec() -> str:
    """The mpiexec that belongs to this Python (the mpich wheel puts it there), else the one on the path."""
    beside = Path(sysconfig.get_path("scripts")) / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise UsageError(
            "--ranks needs mpiexec, and there is none beside this Python or on the PATH; "
            "type: pip install 'mxpeak[mpich]' (or load the site's MPI module)"
        )
    return found


def respawn(ranks: int, argv: list[str]) -> int:
    """Start `ranks` local ranks of this very command under mpiexec and return their exit code."""
    if importlib.util.find_spec("mpi4py") is None:
        raise UsageError(f"--ranks {ranks} needs MPI for Python; type: pip install 'mxpeak[mpich]'")
    command = [_mpiexec(), "-n", str(ranks), sys.executable, "-m", "mxpeak", *argv]
    # In a group of its own, so that a Ctrl-C comes here alone: mpiexec, told twice, would fall over itself.
    child = subprocess.Popen(command, start_new_session=True)
    told: list[int] = []

    def forward(number: int, frame: object) -> None:
        told.append(number)
        child.terminate()

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, forward) for number in signals}
    try:
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if told:
        return 128 + told[0]
    return code if code >= 0 else 128 - code


def confirm(comm: str, ranks: int | None, group: Communicator) -> None:
    """Raise if what was asked for is not what was started; asked of the same values, it raises on all ranks alike."""
    if comm == "solo" and group.size > 1:
        raise UsageError(f"--comm solo runs one rank, but {group.size} were started; type: --comm mpi")
    if ranks is not None and ranks != group.size:
        raise UsageError(
            f"--ranks {ranks} was asked for, but {group.size} rank{'s were' if group.size > 1 else ' was'} started; "
            f"type: mpiexec -n {ranks} mxpeak ..., or leave --ranks out under a launcher"
        )


def start(comm: str = "auto") -> Communicator:
    """The communicator of all ranks: MPI where a launcher started several, or where it is asked for.  Collective."""
    if not launched() and comm != "mpi":
        return Solo()
    if importlib.util.find_spec("mpi4py") is None:
        raise UsageError("this run needs MPI for Python, which is not installed; type: pip install 'mxpeak[mpich]'")
    from mxpeak.comm import mpi

    group = mpi.world()
    found = launcher()
    if found is not None and found[2] != group.size:
        raise UsageError(
            f"{found[0]} started {found[2]} ranks, but MPI for Python sees {group.size}: it was built for another MPI; "
            "type: pip install --force-reinstall mpi4py, with this launcher's MPI loaded"
        )
    return group


def hosts(comm: Communicator) -> list[str]:
    """The host of every rank.  Collective over comm."""
    return list(comm.bcast_object(comm.gather_objects(os.uname().nodename)))


def ranks_a_node(names: list[str]) -> int:
    """How many ranks the fullest host holds."""
    return max(names.count(name) for name in names)


def bind(cores: list[int]) -> list[int]:
    """Bind the calling thread, and those it starts later, to `cores`; return the cores it had before."""
    if not hasattr(os, "sched_setaffinity"):
        return cores
    before = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores)
    return before


def mpi_facts() -> dict[str, Any]:
    """What `doctor` says about MPI; raises ImportError where MPI for Python or its library is missing."""
    import mpi4py

    # Looking must not start MPI: under a launcher it would wait for ranks that have nothing to look at.
    mpi4py.rc.initialize = False
    from mpi4py import MPI

    return {
        "library": " ".join(MPI.Get_library_version().splitlines()[0].strip("\0").split()),
        "standard": ".".join(map(str, MPI.Get_version())),
        "mpiexec": _mpiexec(),
    }
