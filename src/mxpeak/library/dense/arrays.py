"""What solving needs of arrays, be they NumPy's or a device's tensors; and the types that both have.

Blocks hold one right-hand side a column.  A number for each row or column (sizes, scales, errors) comes as a NumPy
array: decisions are made on the host.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from mxpeak.spans import Stopwatch

Array = np.ndarray[Any, np.dtype[Any]]
#: Matrices and blocks of the place where they are.
Matrix = Any
Block = Any


class LU(Protocol):
    """The factors of A, or of A^T; singular: the first zero pivot, from 1."""

    @property
    def dtype(self) -> Any:
        """The type of the factors."""

    @property
    def singular(self) -> int:
        """The first zero pivot, from 1; 0 if there is none."""

    @property
    def diagonal(self) -> Array:
        """|u_ii|."""

    def largest_of_upper(self) -> float:
        """max |u_ij|, inf if one is not finite."""

    def apply(self, R: Block) -> Block:
        """A^-1 R in the factors' precision, each column brought near 1 for their range; a new block of R's type."""

    def inverse_one_norm(self) -> float:
        """An estimate of ||A^-1||_1 by a few solves, rarely 3 times too small."""


class Arrays(Protocol):
    """Matrices and blocks on the host, or on a device."""

    on_device: bool

    @property
    def xp(self) -> Any:
        """The namespace of these arrays."""

    @property
    def stopwatch(self) -> Stopwatch:
        """The clock of this work."""

    def careful(self) -> AbstractContextManager[Any]:
        """Numbers may overflow in silence: who solves looks at what comes out."""

    def emulates(self, precision: str, dtype: np.dtype[Any]) -> bool:
        """Whether operands of a precision are rounded in software, for products of a wider one."""

    # --- what comes in, what goes out

    def take(self, values: Any, dtype: np.dtype[Any], precision: str = "") -> Any:
        """The values here and in a type, copied only where they must be; a matrix if they are to be factored."""

    def block(self, b: Any, dtype: np.dtype[Any]) -> Block:
        """b as a block of A's type; for a real A, real and imaginary parts are columns of their own."""

    def not_finite(self, A: Any) -> tuple[tuple[int, ...], int] | None:
        """Where the first entry is that is not finite, and how many there are."""

    # --- the factorization

    def by_rows(self, A: Matrix) -> bool:
        """Whether A's rows are contiguous; else its columns are."""

    def room(self, n: int, dtype: np.dtype[Any], precision: str) -> Matrix:
        """An n×n matrix, uninitialised, in which an LU in a precision fits."""

    def fill(self, W: Matrix, R: Matrix, scales: tuple[Array, Array] | None) -> tuple[Array, Array, float]:
        """W = R, scaled and cast; the sums of |w_ij| along rows and columns, and the largest."""

    def largest_entries(self, R: Matrix, by_row: Array, by_column: Array) -> tuple[Array, Array]:
        """The largest entries of the rows and of the columns of |R|, scaled."""

    def inf_norm(self, R: Matrix, by_rows: bool) -> float:
        """||R||_inf, or that of R^T."""

    def lu(self, W: Matrix, precision: str, by_rows: bool) -> LU:
        """The factors of A in W's place, W = A if A lies by rows, else A^T; 2/3·n³ flops."""

    # --- blocks

    def largest(self, V: Block) -> Array:
        """max_i |v_ij| of each column."""

    def product(self, A: Matrix, Y: Block) -> Block:
        """A Y; 2·n²·k flops."""

    def minus_product(self, B: Block, A: Matrix, Y: Block) -> Block:
        """B - A Y as a new block."""

    def scaled(self, diagonal: Array, X: Block) -> Block:
        """D X as a new block."""

    def combined(self, V: Block, w: Array) -> Block:
        """V w as a block of one column."""

    def columns(self, V: Block, which: Array) -> Block:
        """Some columns, as a block."""

    def put(self, Y: Block, columns: Array, new: Block, which: Array) -> None:
        """Y's columns become some of the new ones."""


def type_of(values: Any) -> np.dtype[Any]:
    """The type of an array or a tensor, as NumPy calls it."""
    dtype = values.dtype
    return dtype if isinstance(dtype, np.dtype) else np.dtype(str(dtype).removeprefix("torch."))


def with_precision_of(dtype: np.dtype[Any], other: np.dtype[Any]) -> np.dtype[Any]:
    """dtype's field, real or complex, in the other's precision."""
    return typed(dtype.kind == "c", wide=roundoff(other) < 2.0**-24)


def typed(is_complex: bool, *, wide: bool) -> np.dtype[Any]:
    """The type of this field, of 64-bit parts if wide, else of 32-bit ones."""
    if is_complex:
        return np.dtype(np.complex128 if wide else np.complex64)
    return np.dtype(np.float64 if wide else np.float32)


def roundoff(dtype: np.dtype[Any]) -> float:
    """Unit roundoff of a type."""
    return float(np.finfo(dtype).eps) / 2
