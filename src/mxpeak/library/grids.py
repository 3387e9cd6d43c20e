"""Process grids over the ranks of a communicator, and the base class of matrices that are distributed over a grid."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any
from weakref import WeakKeyDictionary

from mxpeak.comm.base import Communicator
from mxpeak.comm.grid import Grid, make_grid
from mxpeak.distributed.tiles import CyclicMatrix
from mxpeak.layout.grid import ProcessGrid

_grids: WeakKeyDictionary[Any, dict[ProcessGrid, Grid]] = WeakKeyDictionary()


class BlockDistributed(ABC):
    """A user's matrix that is distributed in blocks over a process grid."""

    @abstractmethod
    def blocks(self) -> CyclicMatrix:
        """Return the matrix with its entries in memory. Collective."""


def grid_of(shape: ProcessGrid, comm: Communicator) -> Grid:
    """Return the grid of all ranks, created once because MPI limits the number of communicators. Collective."""
    grids = _grids.setdefault(comm, {})
    if shape not in grids:
        grid = make_grid(shape, comm)
        assert grid is not None, "the grid takes all ranks"
        grids[shape] = grid
    return grids[shape]
