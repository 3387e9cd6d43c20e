"""The ranks that call together, as the user names them."""

from __future__ import annotations

from functools import cache
from typing import Any

from mxpeak.comm.base import Communicator
from mxpeak.comm.transports.solo import Solo
from mxpeak.errors import UsageError
from mxpeak.runtime import launch


def communicator(comm: Any) -> Communicator:
    """Our own view of a communicator of mpi4py, made once; `world`: all ranks that the launcher started."""
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
    """Made once: MPI has a limited number of communicators."""
    return launch.start()
