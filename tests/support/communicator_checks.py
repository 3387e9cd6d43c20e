"""Check arrays with any communicator, on thread ranks, under mpiexec and under torchrun."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mxpeak.comm.base import Task
from mxpeak.comm.broadcast import BROADCASTS, PIECE_BYTES, PIECES
from mxpeak.comm.collectives import raise_first_error
from mxpeak.comm.exchange import allreduce_by, gather_everywhere_binary, gather_everywhere_ring, scatter
from mxpeak.errors import ResourceError, UsageError


def check(comm: Any) -> None:
    """Check every operation of a communicator against a known result."""
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
    for root in range(size):
        assert comm.gather_objects(rank * 2, root) == ([2 * r for r in range(size)] if rank == root else None)

    part = comm.split(rank % 2, -rank)
    assert part.size == len(range(rank % 2, size, 2))
    assert part.rank == sum(1 for other in range(rank % 2, size, 2) if other > rank)
    assert (comm.split(0 if rank == 0 else None, 0) is None) == (rank != 0)

    for root in range(size):
        for algorithm in BROADCASTS.values():
            for count in (37, PIECES * PIECE_BYTES // 8 + 3):  # forwarded as a whole, and in pieces of two sizes
                message = np.arange(float(count)) + root if rank == root else np.full(count, np.nan)
                task = Task(algorithm(comm, message, root))
                task.test()
                task.wait()
                assert np.array_equal(message, np.arange(float(count)) + root)

    mine, theirs = np.array([float(rank)]), np.empty(1)
    allreduce_by(comm, mine, theirs, lambda a, b: np.add(a, b, out=a))
    assert mine[0] == size * (size - 1) / 2

    for gather in (gather_everywhere_ring, gather_everywhere_binary):
        pieces = [np.full(r, float(r) if r == rank else np.nan) for r in range(size)]  # rank 0 contributes nothing
        Task(gather(comm, pieces, 50)).wait()
        assert all((piece == r).all() for r, piece in enumerate(pieces))
    parts = [np.full(r + 1, r + 0.5) if rank == 0 else np.full(r + 1, np.nan) for r in range(size)]
    Task(scatter(comm, parts, parts[rank], 0, 60)).wait()
    assert (parts[rank] == rank + 0.5).all()
    own = ResourceError("no room") if rank == 0 else UsageError(f"no file {rank}")
    with pytest.raises(ResourceError, match="^no room$" if size == 1 else "^rank 0: no room$") as raised:
        raise_first_error(comm, own)
    assert raised.value.__cause__ is (own if rank else None), "each rank keeps its own error"
    comm.barrier()
