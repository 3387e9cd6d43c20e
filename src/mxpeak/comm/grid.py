"""Build process grids: this rank's coordinates, and the communicators of its process row and process column.

row      the Q ranks of this rank's process row, numbered by process column
column   the P ranks of this rank's process column, numbered by process row
"""

from __future__ import annotations

from dataclasses import dataclass

from mxpeak.comm.base import Communicator
from mxpeak.layout.grid import ProcessGrid


@dataclass(frozen=True, slots=True)
class Grid:
    """The position (p, q) of this rank in a P×Q grid, with the communicators of its process row and process column."""

    P: int
    Q: int
    p: int
    q: int
    all: Communicator
    row: Communicator
    column: Communicator

    @property
    def transposed(self) -> Grid:
        """Return the grid with process rows and process columns exchanged."""
        return Grid(self.Q, self.P, self.q, self.p, self.all, self.column, self.row)


def make_grid(shape: ProcessGrid, comm: Communicator) -> Grid | None:
    """Return the grid of the first P·Q ranks, or None on the other ranks. Collective over comm."""
    inside = comm.rank < shape.size
    group = comm.split(0 if inside else None, comm.rank)
    p, q = shape.coords(comm.rank) if inside else (-1, -1)
    row = comm.split(p if inside else None, q)
    column = comm.split(q if inside else None, p)
    if group is None or row is None or column is None:
        return None
    return Grid(shape.P, shape.Q, p, q, group, row, column)
