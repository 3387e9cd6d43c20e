"""The communicator over MPI does what the one over threads does; the same checks run on both."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mxpeak.comm.base import Task
from mxpeak.comm.broadcast import BROADCASTS
from mxpeak.comm.exchange import allreduce_by, gather_everywhere_binary, gather_everywhere_ring, scatter
from mxpeak.comm.threads import run_ranks
from tests.mpi.test_hpl_under_mpi import MPIEXEC


def check(comm: Any) -> None:
    """Every operation of a communicator, with its result known in advance."""
    rank, size = comm.rank, comm.size
    total = np.array([1.0, float(rank)])
    comm.allreduce(total, "sum")
    assert total.tolist() == [size, size * (size - 1) / 2]
    for odd_one in range(size):
        largest = np.array([float(rank), np.nan if rank == odd_one else 1.0])
        comm.allreduce(largest, "max")
        assert largest[0] == size - 1
        assert np.isnan(largest[1]), "a NaN on one rank must reach all"
    assert comm.agree(True)
    assert not comm.agree(rank != size - 1)
    assert comm.bcast_object({"from": rank}, root=size - 1) == {"from": size - 1}
    assert comm.gather_objects(rank * 2) == ([2 * r for r in range(size)] if rank == 0 else None)

    part = comm.split(rank % 2, -rank)
    assert part.size == len(range(rank % 2, size, 2))
    assert part.rank == sum(1 for other in range(rank % 2, size, 2) if other > rank)
    assert (comm.split(0 if rank == 0 else None, 0) is None) == (rank != 0)

    for root in range(size):
        for algorithm in BROADCASTS.values():
            message = np.arange(37.0) + root if rank == root else np.full(37, np.nan)
            task = Task(algorithm(comm, message, root))
            task.test()
            task.wait()
            assert message.tolist() == (np.arange(37.0) + root).tolist()

    mine, theirs = np.array([float(rank)]), np.empty(1)
    allreduce_by(comm, mine, theirs, lambda a, b: np.add(a, b, out=a))
    assert mine[0] == size * (size - 1) / 2

    for gather in (gather_everywhere_ring, gather_everywhere_binary):
        pieces = [np.full(r, float(r) if r == rank else np.nan) for r in range(size)]  # rank 0 has nothing to give
        Task(gather(comm, pieces, 50)).wait()
        assert all((piece == r).all() for r, piece in enumerate(pieces))
    parts = [np.full(r + 1, r + 0.5) if rank == 0 else np.full(r + 1, np.nan) for r in range(size)]
    Task(scatter(comm, parts, parts[rank], 0, 60)).wait()
    assert (parts[rank] == rank + 0.5).all()
    comm.barrier()


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7])
def test_thread_ranks_communicate(size: int) -> None:
    run_ranks(size, check)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_mpi_ranks_communicate(size: int) -> None:
    code = "from tests.mpi.test_communicator import check; from mxpeak.comm.mpi import world; check(world())"
    command = [str(MPIEXEC), "-n", str(size), sys.executable, "-c", code]
    root = Path(__file__).parents[2]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr


def test_doctor_under_a_launcher_waits_for_nobody(tmp_path: Path) -> None:
    command = [str(MPIEXEC), "-n", "2", sys.executable, "-m", "mxpeak", "doctor"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("a run on the CPU is possible") == 1
