"""Transformations of a distributed system before its factorization: scaling, random butterflies, and pivoting.

    S A T y = S b,    x = T y

If LU are the factors of S A T, then M^-1 = T U^-1 L^-1 S preconditions A x = b. S acts on vectors over the rows of A,
and T on vectors over its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from mxpeak.comm.base import Communicator
from mxpeak.distributed.dense import gathered
from mxpeak.kernels.contract import Vector
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.row_moves import RowOrder


class Transformation(Protocol):
    """The matrices S and T of one transformation; all methods are collective and leave their argument unchanged.

    rounding_variance   the variance of the rounding errors in a row of S A T, in u²·||A||_F²/N with u of A's type
    """

    rounding_variance: float = 0.0

    def left(self, r: Vector) -> Vector:
        """Return S r."""

    def left_transposed(self, r: Vector) -> Vector:
        """Return S^T r."""

    def right(self, y: Vector) -> Vector:
        """Return T y."""

    def right_transposed(self, c: Vector) -> Vector:
        """Return T^T c."""


class Pivoting(Transformation):
    """The row permutation S = P of an LU with partial pivoting, P A = L U; T = I."""

    def __init__(self, order: RowOrder, rows: BlockCyclic, column: Communicator, xp: Any):
        own_rows = rows.to_global(xp.arange(rows.local_size))
        self._to, self._back = (xp.take(xp.asarray(to), own_rows) for to in (order.rows, order.inverse))
        self._rows, self._column, self._xp = rows, column, xp

    def left(self, r: Vector) -> Vector:
        """Return P r; every rank gathers r, which takes 8·N bytes per column."""
        return self._xp.take(gathered(r, self._rows, self._column, self._xp), self._to, axis=0)

    def left_transposed(self, r: Vector) -> Vector:
        """Return P^T r."""
        return self._xp.take(gathered(r, self._rows, self._column, self._xp), self._back, axis=0)

    def right(self, y: Vector) -> Vector:
        """Return y."""
        return y

    def right_transposed(self, c: Vector) -> Vector:
        """Return c."""
        return c


def preconditioned(solve: Callable[[Vector], Any], r: Vector, transformations: Sequence[Transformation]) -> Any:
    """Return T U^-1 L^-1 S r, in which `solve` applies the factors and S = S_k … S_1."""
    for transformation in transformations:
        r = transformation.left(r)
    y = solve(r)
    for transformation in reversed(transformations):
        y = transformation.right(y)
    return y


def preconditioned_transposed(
    solve: Callable[[Vector], Any], c: Vector, transformations: Sequence[Transformation]
) -> Any:
    """Return S^T L^-T U^-T T^T c, in which `solve` applies the transposed factors."""
    for transformation in transformations:
        c = transformation.right_transposed(c)
    r = solve(c)
    for transformation in reversed(transformations):
        r = transformation.left_transposed(r)
    return r


def transformed_product(multiply: Callable[[Vector], Any], v: Vector, transformations: Sequence[Transformation]) -> Any:
    """Return S A T v, in which `multiply` returns the product with A."""
    for transformation in reversed(transformations):
        v = transformation.right(v)
    r = multiply(v)
    for transformation in transformations:
        r = transformation.left(r)
    return r
