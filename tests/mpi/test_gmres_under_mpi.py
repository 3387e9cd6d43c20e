"""Compare `mxpeak.gmres` on rows of MPI ranks with one process, and test that one mistake is one error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mxpeak as mx
from mxpeak.errors import UsageError
from tests.support.ranks import StandingRanks, needs_mpi
from tests.support.sparse_ranks import cut, even
from tests.support.sparse_systems import flow, reached, vector

pytestmark = needs_mpi


def on_rank() -> None:
    """Run the part of one rank: MPI's communicator and `world` contain the same ranks."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    A, b, starts = flow(24), vector(576), even(576, world.size)
    for comm, preconditioner in ((world, "auto"), ("world", "sgs")):
        x, info = solve(A, b, starts, world.rank, comm, preconditioner)
        assert info.ranks == world.size
        assert info.preconditioner == ("lu" if preconditioner == "auto" else preconditioner)
        assert info.converged
        assert reached(A, np.concatenate(world.allgather(x)), b, 1e-10)
    wrong = b.copy()
    wrong[-1] = np.nan
    with pytest.raises(UsageError, match=f"rank {world.size - 1}: b"):
        solve(A, wrong, starts, world.rank, world)


def solve(A: Any, b: Any, starts: list[int], rank: int, comm: Any, preconditioner: str = "auto") -> Any:
    mine = cut(A, starts, rank), cut(b, starts, rank)
    return mx.gmres(*mine, rtol=1e-10, comm=comm, preconditioner=preconditioner, threads=1)


def test_real_ranks_solve_and_refuse_as_one(standing: dict[int, StandingRanks]) -> None:
    standing[2].call("tests.mpi.test_gmres_under_mpi", "on_rank")
