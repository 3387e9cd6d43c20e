"""A generated system A x = b on a process grid: of A only the diagonal is kept, all else is made anew when needed."""

from __future__ import annotations

from collections.abc import Iterator

from mxpeak.comm.grid import Grid
from mxpeak.distributed.matrix import DistMatrix
from mxpeak.kernels.contract import Kernels, Vector
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.generators import Generator


class GeneratedSystem:
    """A and b of a generator, dealt in NB×NB blocks.  Making it is collective over the grid: a row-sum diagonal is
    built here, once, by everybody.

    Vectors over the rows are the same along every process row, those over the columns along every process column.
    """

    def __init__(self, grid: Grid, n: int, nb: int, generator: Generator, kernels: Kernels):
        self.grid, self.n = grid, n
        self.rows, self.cols = BlockCyclic(n, nb, grid.p, grid.P), BlockCyclic(n, nb, grid.q, grid.Q)
        self._generator, self._kernels = generator, kernels
        self._diagonal = self._make_diagonal()
        b = kernels.matrix(self.rows.local_size, 1)
        kernels.generate(b, self.rows, BlockCyclic(1, 1, 0, 1), generator.right_side, kernels.zeros(0))
        self.b = kernels.copied(b[:, 0])

    @property
    def random(self) -> bool:
        """Whether the entries off the diagonal are random numbers."""
        return self._generator.entries.kind != "unit-factors"

    def _make_diagonal(self) -> Vector:
        """The diagonal over the rows: constant, theta · Σ_{j≠i} |a_ij|, or none (as drawn)."""
        kernels, m, given = self._kernels, self.rows.local_size, self._generator
        if given.row_sum is not None:
            d = kernels.zeros(m)
            kernels.add_scaled(d, given.row_sum, self._row_sums(kernels.zeros(m)))
            return d
        if given.diagonal is None:
            return kernels.zeros(0)
        d = kernels.vector(m)
        kernels.assign(d, given.diagonal)
        return d

    def store(self, A: DistMatrix) -> None:
        """A = the generated matrix, rounded once to what A is stored in."""
        self._kernels.generate(A.local, self.rows, self.cols, self._generator.entries, self._diagonal)

    def multiply(self, x: Vector) -> Vector:
        """A x over the rows, for x over the columns; in fp64, one reduction.  Collective over the grid."""
        y = self._kernels.zeros(self.rows.local_size)
        self._kernels.generated_matvec(y, self.rows, self.cols, self._generator.entries, self._diagonal, x)
        self.grid.row.allreduce(y, "sum")
        return y

    def row_sums(self) -> Vector:
        """Σ_j |a_ij| over the rows.  Collective over the grid."""
        return self._row_sums(self._diagonal)

    def _row_sums(self, diagonal: Vector) -> Vector:
        sums, squares = (self._kernels.zeros(self.rows.local_size) for _ in range(2))
        self._kernels.generated_row_sums(sums, squares, self.rows, self.cols, self._generator.entries, diagonal)
        self.grid.row.allreduce(sums, "sum")
        return sums

    def on_columns(self, r: Vector) -> Vector:
        """A vector over the rows as one over the columns: through the whole vector, so for what is not timed.

        Collective over the grid; 8·N bytes a rank.
        """
        kernels = self._kernels
        whole, x = kernels.zeros(self.n), kernels.zeros(self.cols.local_size)
        if self.grid.q == 0:
            for mine, all_ in _blocks(self.rows):
                kernels.add_scaled(whole[all_], 1.0, r[mine])
        self.grid.all.allreduce(whole, "sum")
        for mine, all_ in _blocks(self.cols):
            kernels.add_scaled(x[mine], 1.0, whole[all_])
        return x


def _blocks(layout: BlockCyclic) -> Iterator[tuple[slice, slice]]:
    """(Local range, global range) of each block that this process owns."""
    for begin in range(0, layout.local_size, layout.nb):
        end = min(begin + layout.nb, layout.local_size)
        first = layout.to_global(begin)
        yield slice(begin, end), slice(first, first + end - begin)
