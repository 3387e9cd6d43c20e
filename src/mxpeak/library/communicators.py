"""Convert the `comm` and `grid` arguments of public functions to a communicator and a process grid."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from mxpeak.comm.base import Communicator
from mxpeak.comm.grid import Grid, make_grid
from mxpeak.comm.transports.solo import Solo
from mxpeak.distributed.tiles import CyclicMatrix
from mxpeak.errors import UsageError
from mxpeak.layout.grid import ProcessGrid
from mxpeak.runtime import launch


def communicator(comm: Any) -> Communicator:
    """Return the communicator that a `comm` argument selects; raise a UsageError for other values.

    `comm` is an mpi4py communicator, a communicator of mxpeak, "world" (all started ranks) or None (this process).
    """
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
    """Return the communicator of all started ranks.

    It is created once, because MPI limits the number of communicators.
    """
    comm = launch.start()
    if comm.name == "mpi":
        from mxpeak.comm.transports import mpi

        mpi.end_all_after_uncaught_errors(comm)  # type: ignore[arg-type]
    elif comm.name == "torch":
        from mxpeak.comm.transports import torchdist

        torchdist.end_all_after_uncaught_errors(comm)  # type: ignore[arg-type]
    return comm


_grids: WeakKeyDictionary[Any, dict[ProcessGrid, Grid]] = WeakKeyDictionary()


class BlockDistributed(ABC):
    """A user's matrix that is distributed in blocks over a process grid."""

    n: int

    @property
    @abstractmethod
    def dtype(self) -> Any:
        """Return the data type of the entries."""

    @property
    @abstractmethod
    def comm(self) -> Communicator:
        """Return the communicator of all ranks in the process grid."""

    @property
    @abstractmethod
    def starts(self) -> Sequence[int]:
        """Return the first own row of each rank, and n."""

    @abstractmethod
    def blocks(self) -> CyclicMatrix:
        """Return the matrix as a `CyclicMatrix`, with this rank's entries in memory. Collective."""

    @abstractmethod
    def multiply(self, x: Any) -> Any:
        """Return this rank's own rows of A x, for its own rows of x. Collective."""


def grid_of(shape: ProcessGrid, comm: Communicator) -> Grid:
    """Return the process grid of this shape over all ranks of comm. Collective.

    Each grid is created once, because MPI limits the number of communicators.
    """
    grids = _grids.setdefault(comm, {})
    if shape not in grids:
        grid = make_grid(shape, comm)
        assert grid is not None, "the grid takes all ranks"
        grids[shape] = grid
    return grids[shape]
