"""Run HPCG with ten iterations instead of fifty, to save time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from mxpeak.bench.hpcg import result, run
from tests.support import ranks

STEPS = 10


@contextmanager
def few_steps() -> Iterator[None]:
    """Use ten iterations in this process inside the block."""
    with patch.object(run, "REFERENCE_STEPS", STEPS), patch.object(result, "REFERENCE_STEPS", STEPS):
        yield


def mpi_rank(folder: str) -> None:
    """Run one rank's part of commands over MPI."""
    with few_steps():
        ranks.mpi_rank(folder)
