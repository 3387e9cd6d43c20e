"""What every backend provides for dense solves: a scaled copy of A, its LU with partial pivoting, residuals."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from mxpeak.kernels.contract.backend import Indices, Matrix, Vector
from mxpeak.spans import Stopwatch

#: A few vectors as the columns of a matrix.
Block = Any
#: The type of a matrix, as NumPy names it.
DType = Any
#: An LU may be asked about after so many of its n steps: 2 % of its flops.
PART = 1 / 8


@dataclass(frozen=True, slots=True)
class PivotedLU:
    """The factors of W, or of W^T where that is how a library reads W: overwritten by L without its diagonal, and U.

    rows         how rows were interchanged, as its backend says it
    transposed   these are the factors of W^T
    singular     the first zero pivot, from 1; 0 if there is none
    """

    LU: Matrix
    rows: Indices
    transposed: bool
    singular: int


class DenseKernels(Protocol):
    """The operations of dense solves, on matrices of fp32 and fp64, real or complex.

    A matrix may lie by rows or by columns; blocks and matrices that are new lie as the backend's products read them.
    """

    #: A `kernels.torch.device.Device`, or None for NumPy's memory.
    device: Any

    @property
    def xp(self) -> Any:
        """The array namespace of these arrays."""

    @property
    def stopwatch(self) -> Stopwatch:
        """The clock of this work."""

    def computing(self) -> AbstractContextManager[Any]:
        """Compute with these arrays inside: no warning where numbers overflow, and FP32 products in full."""

    def emulates(self, precision: str, dtype: DType) -> bool:
        """Whether operands of a precision are rounded in software, in the LU of a matrix of a type."""

    def check_memory(self, n: int, dtype: DType, precision: str, *, copied: bool) -> None:
        """ResourceError where the factors of an n×n matrix, and a copy of it in a type, do not fit into a device."""

    def factor_storage(self, n: int, dtype: DType) -> Matrix:
        """An n×n matrix W, uninitialised, by rows without gaps: the factors will overwrite it."""

    def scaled_copy(self, A: Matrix, scales: tuple[Vector, Vector] | None, W: Matrix) -> tuple[Vector, Vector, float]:
        """W = D_r A D_c, rounded to W's type; Σ_j |w_ij|, Σ_i |w_ij| and max |w_ij|.

        One pass over A, of which the sums are the sums of what was stored; they are as good as W's type.
        """

    def largest_entries(self, A: Matrix, by_row: Vector, by_column: Vector) -> tuple[Vector, Vector]:
        """max_j and max_i of |d_i·a_ij·e_j|, in fp64; one pass over A."""

    def abs_sums(self, A: Matrix, by_row: Vector, by_column: Vector) -> None:
        """by_row_i = Σ_j |a_ij| and by_column_j = Σ_i |a_ij|, fp64 vectors; one pass over A."""

    def factor(self, W: Matrix, precision: str) -> PivotedLU:
        """The factors of W or W^T with partial pivoting, in W's memory; 2/3·n³ flops, four times that if complex.

        fp64 and fp32 are those of W's type.  With another precision W is fp32: it is cut into panels, which are
        factored in fp32, and the operands of each update are rounded to that precision, real and imaginary parts one
        by one; sums are fp32.  |L U - P W| <= (2 u + n·u_32)·|L||U| to first order, u the precision's.
        """

    def factor_with_early_exit(self, should_stop: Callable[[Vector], bool], W: Matrix) -> PivotedLU | None:
        """Return `factor` of W in its own type, or None if `should_stop(|u_kk|)` is true of the first n·PART pivots.

        The host calls `should_stop` as soon as these pivots are known; other backends call it after the LU.
        """

    def solve(self, F: PivotedLU, B: Block, *, transposed: bool = False) -> Block:
        """W^-1 B or W^-T B as a new block; B has the factors' type; 2·n²·k flops."""

    def last_row(self, F: PivotedLU) -> int:
        """The row of what was factored, W or W^T, that the interchanges have brought last."""

    def residual(self, B: Block, A: Matrix, X: Block) -> Block:
        """B - A X as a new block, all of one type; 2·n²·k flops, one pass over A."""
