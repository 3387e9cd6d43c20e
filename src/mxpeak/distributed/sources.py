"""Sources of a dense matrix on a process grid that regenerate or read the entries whenever they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from mxpeak.comm.grid import Grid
from mxpeak.distributed.dense import DistMatrix
from mxpeak.kernels.contract import Kernels, Matrix, Vector
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.generators import Generator

#: Entries that are made or read together: whole rows of blocks, so that no second matrix is needed.
STRIP = 1 << 20


class GeneratedSystem:
    """A and b of a generator, distributed in NB×NB blocks.  Constructing it is collective over the grid: a row-sum
    diagonal is built here, once, by everybody.

    Vectors over the rows are the same along every process row, those over the columns along every process column.
    """

    def __init__(self, grid: Grid, n: int, nb: int, generator: Generator, kernels: Kernels):
        self.grid, self.n = grid, n
        self.rows, self.cols = BlockCyclic(n, nb, grid.p, grid.P), BlockCyclic(n, nb, grid.q, grid.Q)
        self._generator, self._kernels = generator, kernels
        self._diagonal = self._make_diagonal()
        b = kernels.matrix(self.rows.local_size, 1)
        kernels.generate(b, self.rows, BlockCyclic(1, 1, 0, 1), generator.right_side)
        self.b = kernels.xp.asarray(b[:, 0], copy=True)

    @property
    def random(self) -> bool:
        """Whether the entries off the diagonal are random numbers."""
        return self._generator.entries.kind != "unit-factors"

    def _make_diagonal(self) -> Vector | None:
        """The diagonal over the rows: constant, theta · Σ_{j≠i} |a_ij|, or none (as drawn)."""
        xp, m, generator = self._kernels.xp, self.rows.local_size, self._generator
        if generator.row_sum is not None:
            return xp.multiply(self._row_sums(xp.zeros(m)), generator.row_sum)
        return None if generator.diagonal is None else xp.full(m, generator.diagonal)

    def store(self, A: DistMatrix) -> None:
        """A = the generated matrix, rounded once to what A is stored in."""
        self._kernels.generate(A.local, self.rows, self.cols, self._generator.entries, self._diagonal)

    def store_with_sums(self, A: DistMatrix, W: Matrix) -> Matrix:
        """The same; and A w over this rank's columns, for two vectors w that are W's rows: A is not read for it."""
        sums = self._kernels.xp.zeros((2, self.rows.local_size))
        entries, diagonal = self._generator.entries, self._diagonal
        self._kernels.generate_with_sums(A.local, self.rows, self.cols, entries, diagonal, sums, W)
        return sums

    def multiply(self, x: Vector) -> Vector:
        """A x over the rows, for x over the columns; in fp64, one reduction.  Collective over the grid."""
        y = self._kernels.xp.zeros(self.rows.local_size)
        self._kernels.generated_matvec(y, self.rows, self.cols, self._generator.entries, self._diagonal, x)
        self.grid.row.allreduce(y, "sum")
        return y

    def row_sums(self) -> Vector:
        """Σ_j |a_ij| over the rows.  Collective over the grid."""
        return self._row_sums(self._diagonal)

    def _row_sums(self, diagonal: Vector | None) -> Vector:
        sums = self._kernels.xp.zeros(self.rows.local_size)
        self._kernels.generated_row_sums(sums, self.rows, self.cols, self._generator.entries, diagonal)
        self.grid.row.allreduce(sums, "sum")
        return sums

    def on_columns(self, r: Vector) -> Vector:
        """A vector over the rows as one over the columns: through the whole vector, so for what is not timed.

        Collective over the grid; 8·N bytes a rank.
        """
        xp = self._kernels.xp
        whole, x = xp.zeros(self.n), xp.zeros(self.cols.local_size)
        if self.grid.q == 0:
            for mine, everywhere in self.rows.blocks():
                whole[everywhere] = r[mine]
        self.grid.all.allreduce(whole, "sum")
        for mine, everywhere in self.cols.blocks():
            x[mine] = whole[everywhere]
        return x


class Strips(Protocol):
    """This rank's part of a matrix, some rows of it at a time."""

    def __call__(self, rows: BlockCyclic, cols: BlockCyclic, local: slice) -> Matrix:
        """These local rows, in fp64, row- or column-major; they begin with a block.

        Never raises: what it cannot give is NaN.
        """


class UserMatrix:
    """An n×n matrix in NB×NB blocks on a grid, of which nothing is held here."""

    def __init__(self, grid: Grid, n: int, nb: int, strips: Strips, kernels: Kernels):
        self.grid, self.n, self.nb = grid, n, nb
        self.rows, self.cols = BlockCyclic(n, nb, grid.p, grid.P), BlockCyclic(n, nb, grid.q, grid.Q)
        self._strips, self._kernels = strips, kernels

    def store(self, A: DistMatrix) -> None:
        """A = the matrix."""
        for local in self._parts():
            A.local[local] = self._strips(self.rows, self.cols, local)

    def multiply(self, x: Vector) -> Vector:
        """A x over the rows, for x over the columns: a vector, or several, a column each; in fp64.

        Every entry is made once.  Collective over the grid.
        """
        y = self._kernels.xp.zeros((self.rows.local_size, *x.shape[1:]))
        for local in self._parts():
            self._add_product(y[local], self._strips(self.rows, self.cols, local), x)
        self.grid.row.allreduce(y, "sum")
        return y

    def multiply_transposed(self, x: Vector) -> Vector:
        """A^T x over the columns, for x over the rows, as `multiply`."""
        y = self._kernels.xp.zeros((self.cols.local_size, *x.shape[1:]))
        for local in self._parts():
            self._add_product(y, self._strips(self.rows, self.cols, local), x[local], transposed=True)
        self.grid.column.allreduce(y, "sum")
        return y

    def _add_product(self, y: Vector, strip: Matrix, x: Vector, *, transposed: bool = False) -> None:
        """y += S x, or S^T x; a column-major S is a row-major S^T."""
        down, right = strip.strides
        if down < right:
            strip, transposed = strip.T, not transposed
        self._kernels.add_matvec(y, strip, x, transposed=transposed)

    def _parts(self) -> Iterator[slice]:
        """Local rows, whole blocks of them."""
        m, k = self.rows.local_size, self.cols.local_size
        if k:
            height = self.nb * max(1, STRIP // (self.nb * k))
            yield from (slice(begin, min(begin + height, m)) for begin in range(0, m, height))
