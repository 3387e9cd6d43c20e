"""Process grids over the ranks that call together, and matrices that are on them."""

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
    """A user's matrix in blocks on a process grid."""

    @abstractmethod
    def blocks(self) -> CyclicMatrix:
        """Its entries in memory.  Collective."""


def grid_of(shape: ProcessGrid, comm: Communicator) -> Grid:
    """The grid of all ranks, made once: MPI has a limited number of communicators.  Collective."""
    made = _grids.setdefault(comm, {})
    if shape not in made:
        grid = make_grid(shape, comm)
        assert grid is not None, "the grid takes all ranks"
        made[shape] = grid
    return made[shape]
