"""Sources of a dense matrix on a process grid, which generate or read its entries on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from mxpeak.comm.grid import Grid
from mxpeak.distributed.dense import DistMatrix
from mxpeak.kernels.contract import Kernels, Matrix, Vector
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.generators import Generator

#: Number of entries that are generated or read together, in whole rows of blocks, which avoids a second matrix.
STRIP = 1 << 20


class GeneratedSystem:
    """A and b of a generator, distributed in NB×NB blocks; only the diagonal of A is stored.

    The constructor is collective, because it computes the row sums of the diagonal. Vectors over the rows are
    replicated along each process row, and vectors over the columns along each process column.
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
        """Return whether the off-diagonal entries are random numbers."""
        return self._generator.entries.kind != "unit-factors"

    def _make_diagonal(self) -> Vector | None:
        """Return the diagonal entries of this rank's rows, or None if they are random.

        The entries are a constant, or theta · Σ_{j≠i} |a_ij|.
        """
        xp, m, generator = self._kernels.xp, self.rows.local_size, self._generator
        if generator.row_sum is not None:
            return xp.multiply(self._row_sums(xp.zeros(m)), generator.row_sum)
        return None if generator.diagonal is None else xp.full(m, generator.diagonal)

    def store(self, A: DistMatrix) -> None:
        """Store the generated matrix in A, rounded once to the format of A."""
        self._kernels.generate(A.local, self.rows, self.cols, self._generator.entries, self._diagonal)

    def store_with_sums(self, A: DistMatrix, W: Matrix) -> Matrix:
        """Store the generated matrix in A, and return this rank's part of the products A w for the two rows w of W."""
        sums = self._kernels.xp.zeros((2, self.rows.local_size))
        entries, diagonal = self._generator.entries, self._diagonal
        self._kernels.generate_with_sums(A.local, self.rows, self.cols, entries, diagonal, sums, W)
        return sums

    def multiply(self, x: Vector) -> Vector:
        """Return A x in fp64, distributed like the rows of A, for x distributed like the columns. Collective.

        The product takes one reduction.
        """
        y = self._kernels.xp.zeros(self.rows.local_size)
        self._kernels.generated_matvec(y, self.rows, self.cols, self._generator.entries, self._diagonal, x)
        self.grid.row.allreduce(y, "sum")
        return y

    def row_sums(self) -> Vector:
        """Return Σ_j |a_ij| for each of this rank's rows. Collective."""
        return self._row_sums(self._diagonal)

    def _row_sums(self, diagonal: Vector | None) -> Vector:
        sums = self._kernels.xp.zeros(self.rows.local_size)
        self._kernels.generated_row_sums(sums, self.rows, self.cols, self._generator.entries, diagonal)
        self.grid.row.allreduce(sums, "sum")
        return sums

    def on_columns(self, r: Vector) -> Vector:
        """Redistribute r from the rows to the columns of A, using 8·N bytes per rank, and return the result.
        Collective.
        """
        xp = self._kernels.xp
        whole, x = xp.zeros(self.n), xp.zeros(self.cols.local_size)
        if self.grid.q == 0:
            for local, everywhere in self.rows.blocks():
                whole[everywhere] = r[local]
        self.grid.all.allreduce(whole, "sum")
        for local, everywhere in self.cols.blocks():
            x[local] = whole[everywhere]
        return x


class Strips(Protocol):
    """Interface of a function that returns local rows of a matrix."""

    def __call__(self, rows: BlockCyclic, cols: BlockCyclic, local: slice) -> Matrix:
        """Return the rows `local` in fp64, row-major or column-major; the first of these rows begins a block.

        The function never raises an error: missing entries are NaN.
        """


class UserMatrix:
    """An n×n matrix in NB×NB blocks on a grid, with entries from a `Strips` function."""

    def __init__(self, grid: Grid, n: int, nb: int, strips: Strips, kernels: Kernels):
        self.grid, self.n, self.nb = grid, n, nb
        self.rows, self.cols = BlockCyclic(n, nb, grid.p, grid.P), BlockCyclic(n, nb, grid.q, grid.Q)
        self._strips, self._kernels = strips, kernels

    def store(self, A: DistMatrix) -> None:
        """Store the matrix in A."""
        for local in self._parts():
            A.local[local] = self._strips(self.rows, self.cols, local)

    def multiply(self, x: Vector) -> Vector:
        """Return A x in fp64, distributed like the rows of A, for x distributed like the columns. Collective.

        x is one vector, or several vectors as columns. Every entry of A is computed or read once.
        """
        y = self._kernels.xp.zeros((self.rows.local_size, *x.shape[1:]))
        for local in self._parts():
            add_product(self._kernels, y[local], self._strips(self.rows, self.cols, local), x)
        self.grid.row.allreduce(y, "sum")
        return y

    def multiply_transposed(self, x: Vector) -> Vector:
        """Return A^T x, distributed like the columns of A, for x distributed like the rows. Collective.

        x is one vector, or several vectors as columns. Every entry of A is computed or read once.
        """
        y = self._kernels.xp.zeros((self.cols.local_size, *x.shape[1:]))
        for local in self._parts():
            add_product(self._kernels, y, self._strips(self.rows, self.cols, local), x[local], transposed=True)
        self.grid.column.allreduce(y, "sum")
        return y

    def _parts(self) -> Iterator[slice]:
        return whole_blocks(self.rows, self.cols)


def add_product(kernels: Kernels, y: Vector, S: Matrix, x: Vector, *, transposed: bool = False) -> None:
    """Compute y += S x or y += S^T x for a part S of a matrix; a column-major S is treated as a row-major S^T."""
    down, right = S.strides
    if down < right:
        S, transposed = S.T, not transposed
    kernels.add_matvec(y, S, x, transposed=transposed)


class OwnRowsProduct:
    """The products of a matrix with vectors of which each rank has consecutive rows, its own rows.

    The matrix is real or complex, and its entries are from a `Strips` function. `starts` contains the first own row of
    each rank, and n.
    """

    def __init__(
        self, grid: Grid, cut: tuple[BlockCyclic, BlockCyclic], strips: Strips, starts: Sequence[int], xp: Any
    ):
        self._grid, (self._rows, self._cols), self._strips, self._xp = grid, cut, strips, xp
        self._own = slice(*starts[grid.all.rank : grid.all.rank + 2])

    def __call__(self, x: Vector) -> Vector:
        """Return the own rows of A x for the own rows of x. Every rank adds its blocks to the whole A x. Collective."""
        xp, n = self._xp, self._rows.n
        whole, product = xp.zeros(n, dtype=x.dtype), xp.zeros(n, dtype=x.dtype)
        whole[self._own] = x
        self._grid.all.allreduce(whole, "sum")
        over_columns, over_rows = (
            xp.zeros(size, dtype=x.dtype) for size in (self._cols.local_size, self._rows.local_size)
        )
        for local, everywhere in self._cols.blocks():
            over_columns[local] = whole[everywhere]
        for local in whole_blocks(self._rows, self._cols):
            over_rows[local] = self._strips(self._rows, self._cols, local) @ over_columns
        for local, everywhere in self._rows.blocks():
            product[everywhere] = over_rows[local]
        self._grid.all.allreduce(product, "sum")
        return product[self._own]


def whole_blocks(rows: BlockCyclic, cols: BlockCyclic) -> Iterator[slice]:
    """Yield slices of local rows that consist of whole blocks."""
    m, k = rows.local_size, cols.local_size
    if k:
        height = rows.nb * max(1, STRIP // (rows.nb * k))
        yield from (slice(begin, min(begin + height, m)) for begin in range(0, m, height))
