"""The communicator over MPI does what the one over threads does; the same checks run on both."""

from __future__ import annotations

from pathlib import Path

import pytest

from mxpeak.comm.threads import run_ranks
from tests.support.communicator_checks import check
from tests.support.ranks import StandingRanks, mpiexec, needs_mpi


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7])
def test_thread_ranks_communicate(size: int) -> None:
    run_ranks(size, check)


def check_mpi() -> None:
    from mxpeak.comm.mpi import world

    check(world())


@needs_mpi
@pytest.mark.parametrize("size", [2, 3, 4])
def test_mpi_ranks_communicate(standing: dict[int, StandingRanks], size: int) -> None:
    standing[size].call(__name__, "check_mpi")


@needs_mpi
def test_doctor_under_a_launcher_waits_for_nobody(tmp_path: Path) -> None:
    run = mpiexec(2, "doctor", cwd=tmp_path, timeout=60)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("a run on the CPU is possible") == 1
