"""A matrix of somebody's own on a process grid: its entries are made, read or looked up whenever they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from mxpeak.comm.grid import Grid
from mxpeak.distributed.matrix import DistMatrix
from mxpeak.kernels.contract import Kernels, Matrix, Vector
from mxpeak.layout.block_cyclic import BlockCyclic

#: Entries that are made or read together: whole rows of blocks, so that no second matrix is needed.
STRIP = 1 << 20


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
