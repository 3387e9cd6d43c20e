"""Read from the environment which launcher started this process, its rank, and its place on the node.

This module imports no large modules, because every error message and every help text needs the rank.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

TORCHRUN = "torchrun"

#: Variables in which launchers store the rank and the number of ranks, most reliable first.
LAUNCHERS = {
    TORCHRUN: ("RANK", "WORLD_SIZE"),
    "mpiexec (PMI)": ("PMI_RANK", "PMI_SIZE"),
    "mpiexec (Open MPI)": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "mpiexec (PMIx)": ("PMIX_RANK", "PMIX_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
}
#: Variables that torchrun sets in addition to RANK, because RANK alone is ambiguous.
TORCHRUN_MARKS = ("TORCHELASTIC_RUN_ID", "LOCAL_WORLD_SIZE")
#: Variables in which launchers store the rank within the node.
LOCAL_RANKS = {
    TORCHRUN: "LOCAL_RANK",
    "mpiexec (PMI)": "MPI_LOCALRANKID",
    "mpiexec (Open MPI)": "OMPI_COMM_WORLD_LOCAL_RANK",
    "srun": "SLURM_LOCALID",
}
#: Variables in which launchers store the number of ranks of the node.
LOCAL_SIZES = {
    TORCHRUN: "LOCAL_WORLD_SIZE",
    "mpiexec (PMI)": "MPI_LOCALNRANKS",
    "mpiexec (Open MPI)": "OMPI_COMM_WORLD_LOCAL_SIZE",
    "srun": "SLURM_STEP_TASKS_PER_NODE",
}


def launcher(environ: Mapping[str, str] = os.environ) -> tuple[str, int, int] | None:
    """Return the launcher's name, the rank and the number of ranks, or None without a launcher."""
    for name, (rank, size) in LAUNCHERS.items():
        if name == TORCHRUN and not any(mark in environ for mark in TORCHRUN_MARKS):
            continue
        if environ.get(rank, "").isdecimal() and environ.get(size, "").isdecimal():
            return name, int(environ[rank]), int(environ[size])
    return None


def launched() -> bool:
    """Return whether a launcher such as mpiexec, srun or torchrun started this process as one of several ranks."""
    launch = launcher()
    return launch is not None and launch[2] > 1


def local_place(environ: Mapping[str, str] = os.environ) -> tuple[int, int | None] | None:
    """Return this rank's number on its node and the number of ranks of the node, as the launcher reports them.

    Return None if the number of the rank is unknown; the number of ranks alone may be None. With Cray's MPI, srun sets
    the variables of PMI, and those of Slurm contain the numbers on the node.
    """
    launch = launcher(environ)
    if launch is None:
        return None
    name, rank, size = launch
    if not environ.get(LOCAL_RANKS.get(name, ""), "").isdecimal():
        slurm = (environ.get("SLURM_PROCID"), environ.get("SLURM_STEP_NUM_TASKS"))
        name = "srun" if slurm == (str(rank), str(size)) else name
    number = environ.get(LOCAL_RANKS.get(name, ""), "")
    count = re.fullmatch(r"(\d+)(\(x\d+\))?", environ.get(LOCAL_SIZES.get(name, ""), ""))  # Slurm: 8(x4)
    return (int(number), int(count[1]) if count else None) if number.isdecimal() else None
