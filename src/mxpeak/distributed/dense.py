"""Dense matrices distributed block-cyclically over a process grid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mxpeak.comm.base import Communicator
from mxpeak.comm.grid import Grid
from mxpeak.kernels.contract import Kernels, Matrix, Vector
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.lu_schedule import LuStep, lu_steps


@dataclass(frozen=True, slots=True)
class DistMatrix:
    """An m×n matrix in NB×NB blocks on a P×Q grid; `local` is this rank's part, row-major in `precision`."""

    grid: Grid
    rows: BlockCyclic
    cols: BlockCyclic
    local: Matrix
    precision: str = "fp64"

    @property
    def nb(self) -> int:
        """Return the block size."""
        return self.rows.nb

    def __getitem__(self, block: tuple[slice, slice]) -> Any:
        """Return a view of this rank's part of the global rows i0:i1 and columns j0:j1, which may be empty."""
        i, j = block
        rows = self.rows.local_range(i.start or 0, self.rows.n if i.stop is None else i.stop)
        cols = self.cols.local_range(j.start or 0, self.cols.n if j.stop is None else j.stop)
        return self.local[rows, cols]

    def partition(self, step: LuStep) -> tuple[Any, Any, Any]:
        """Return the local parts of A11, A21 and A12 in a step of an LU."""
        block, rest = slice(step.j0, step.j1), slice(step.j1, None)
        return self[block, block], self[rest, block], self[block, rest]

    def diagonal_blocks(self) -> Iterator[tuple[LuStep, Matrix]]:
        """Yield the diagonal blocks that this rank owns, with their steps."""
        for step in lu_steps(self.rows.n, self.nb, self.grid.P, self.grid.Q):
            if (self.grid.p, self.grid.q) == (step.p, step.q):
                yield step, self[step.j0 : step.j1, step.j0 : step.j1]


def dist_matrix(grid: Grid, m: int, n: int, nb: int, kernels: Kernels, precision: str = "fp64") -> DistMatrix:
    """Return an uninitialized m×n matrix on the grid."""
    rows = BlockCyclic(m, nb, grid.p, grid.P)
    cols = BlockCyclic(n, nb, grid.q, grid.Q)
    return DistMatrix(grid, rows, cols, kernels.matrix(rows.local_size, cols.local_size, precision), precision)


def gathered(x: Vector, along: BlockCyclic, ranks: Communicator, xp: Any) -> Vector:
    """Return the global vector, or block of vectors, whose entries are distributed over `ranks`. Collective."""
    whole = xp.zeros((along.n, *x.shape[1:]))
    for local, everywhere in along.blocks():
        whole[everywhere] = x[local]
    ranks.allreduce(whole, "sum")
    return whole


def part_of(x: Vector, along: BlockCyclic, xp: Any) -> Vector:
    """Return the entries of a global vector, or block of vectors, that this rank owns in a distribution."""
    return xp.take(x, along.to_global(xp.arange(along.local_size)), axis=0)
