"""Run the checks of the communicator over threads with the one over MPI."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mxpeak.comm.base import about
from mxpeak.comm.transports.threads import run_ranks
from tests.support.communicator_checks import check
from tests.support.ranks import StandingRanks, mpiexec, needs_mpi


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7])
def test_thread_ranks_communicate(size: int) -> None:
    run_ranks(size, check)


def check_mpi(size: str) -> None:
    """Check the communicator of all ranks, or of the first ones."""
    from mxpeak.comm.transports.mpi import world

    comm, some = world(), int(size)
    group = comm if comm.size == some else comm.split(0 if comm.rank < some else None, comm.rank)
    if group is not None:
        check(group)


@needs_mpi
@pytest.mark.parametrize("size", [2, 3, 4])
def test_mpi_ranks_communicate(standing: dict[int, StandingRanks], size: int) -> None:
    standing[size + size % 2].call(__name__, "check_mpi", str(size))


def check_repeated() -> None:
    from mxpeak.comm.transports.mpi import world

    comm = world()
    ranks = [rank for rank in range(comm.size) if rank != comm.rank]
    out = {rank: np.zeros(rank) for rank in ranks}  # rank 0 gets messages of length 0
    into = {rank: np.zeros(comm.rank) for rank in ranks}
    messages = comm.repeated([(out[rank], rank) for rank in ranks], [(into[rank], rank) for rank in ranks])
    assert messages is not None
    for turn in range(3):
        for rank in ranks:
            out[rank][:] = 100 * turn + 10 * comm.rank + rank
            into[rank][:] = -1
        messages.start()
        messages.wait()
        assert messages.test()
        for rank in ranks:
            assert (into[rank] == 100 * turn + 10 * rank + comm.rank).all()


def check_what_is_waited_for() -> None:
    from mxpeak.comm.transports.mpi import world

    comm = world()
    other, number, ready = comm.rank ^ 1, np.zeros(1), np.zeros(1)
    messages = comm.repeated([(number, other)] if comm.rank else [], [] if comm.rank else [(number, other)])
    assert messages is not None
    if comm.rank == 0:  # the other rank sends only after this rank has tested without success
        messages.start()
        assert not messages.test()
        assert about(messages) == "a message from rank 1"
        comm.isend(ready, other, 3).wait()
    else:
        comm.irecv(ready, other, 3).wait()
        number[:] = 7
        messages.start()
    messages.wait()
    assert number[0] == 7
    assert about(messages) == ""


@needs_mpi
@pytest.mark.parametrize("size", [2, 4])
def test_messages_are_sent_again_and_again(standing: dict[int, StandingRanks], size: int) -> None:
    standing[size].call(__name__, "check_repeated")


@needs_mpi
def test_repeated_messages_say_whom_they_wait_for(standing: dict[int, StandingRanks]) -> None:
    standing[2].call(__name__, "check_what_is_waited_for")


@needs_mpi
def test_doctor_under_a_launcher_does_not_wait_for_other_ranks(tmp_path: Path) -> None:
    run = mpiexec(2, "doctor", cwd=tmp_path, timeout=60)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("ready: mxpeak runs on the CPU") == 1
