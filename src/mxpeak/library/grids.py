"""Process grids over the ranks that call together."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from mxpeak.comm.base import Communicator
from mxpeak.comm.grid import Grid, make_grid
from mxpeak.layout.grid import ProcessGrid

_grids: WeakKeyDictionary[Any, dict[ProcessGrid, Grid]] = WeakKeyDictionary()


def grid_of(shape: ProcessGrid, comm: Communicator) -> Grid:
    """The grid of all ranks, made once: MPI has a limited number of communicators.  Collective."""
    made = _grids.setdefault(comm, {})
    if shape not in made:
        grid = make_grid(shape, comm)
        assert grid is not None, "the grid takes all ranks"
        made[shape] = grid
    return made[shape]
