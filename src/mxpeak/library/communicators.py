"""Convert the `comm` argument of public functions to a communicator."""

from __future__ import annotations

from functools import cache
from typing import Any

from mxpeak.comm.base import Communicator
from mxpeak.comm.transports.solo import Solo
from mxpeak.errors import UsageError
from mxpeak.runtime import launch


def communicator(comm: Any) -> Communicator:
    """Return the communicator for an mpi4py communicator, "world" (all started ranks) or None (this process)."""
    if comm is None:
        return Solo()
    if isinstance(comm, str) and comm == "world":
        return _world()
    if hasattr(comm, "Get_rank"):
        from mxpeak.comm.transports.mpi import of_user

        return of_user(comm)
    if not hasattr(comm, "agree"):
        raise UsageError(
            f'comm = {comm!r} is not a communicator; use "world" for all ranks that were started, or an '
            "mpi4py communicator such as MPI.COMM_WORLD"
        )
    return comm  # type: ignore[no-any-return]


@cache
def _world() -> Communicator:
    """Return the communicator of all started ranks, created once because MPI limits the number of communicators."""
    return launch.start()
