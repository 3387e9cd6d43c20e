"""The operations of every backend for dense solves: scaled copies of A, LU with partial pivoting, and residuals."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from mxpeak.kernels.contract.backend import Indices, Matrix, Vector
from mxpeak.kernels.contract.lu import Fp64Emulation
from mxpeak.spans import Stopwatch

#: A small number of vectors, as the columns of a matrix.
Block = Any
#: The NumPy type of a matrix.
DType = Any
#: Fraction of the columns that an LU factors before it may exit early; factoring these takes 2 % of the flops.
PART = 1 / 8
#: Largest number of columns for which one xTRSV per column is faster than xPOTRS. On Cascade Lake in fp32, xTRSV and
#: xPOTRS take 0.4 and 1.5 ms for one column of order 1200, and 7.8 and 44 ms for one of order 4000. xPOTRS takes 45 ms
#: for two columns of order 4000.
FEW_COLUMNS = 4


@dataclass(frozen=True, slots=True)
class PivotedLU:
    """The LU factors of W, or of W^T if the library reads W transposed; W is overwritten with L and U.

    rows         the row interchanges, in the form of the backend
    transposed   whether these are the factors of W^T
    singular     the first zero pivot, counted from 1; 0 if there is none
    """

    LU: Matrix
    rows: Indices
    transposed: bool
    singular: int


@dataclass(frozen=True, slots=True)
class Triangle:
    """A symmetric or Hermitian matrix of which only one triangle is read; imaginary parts of its diagonal are zero.

    array        an n×n array whose other triangle may contain anything
    lower        whether the lower triangle is read, otherwise the upper one
    hermitian    whether a_ji is the conjugate of a_ij; for real matrices, both values mean the same
    """

    array: Matrix
    lower: bool
    hermitian: bool

    @property
    def shape(self) -> tuple[int, int]:
        """Return the shape of the matrix."""
        return tuple(self.array.shape)

    @property
    def dtype(self) -> DType:
        """Return the type of the entries."""
        return self.array.dtype

    @property
    def T(self) -> Triangle:
        """Return the transpose, which shares the memory of this matrix."""
        return Triangle(self.array.T, not self.lower, self.hermitian)

    def __len__(self) -> int:
        """Return the order of the matrix."""
        return int(self.array.shape[0])


@dataclass(frozen=True, slots=True)
class SymmetricFactor:
    """The Cholesky factor of a symmetric or Hermitian W, or its factors L D L^T or L D L^H (Bunch, Kaufman 1977).

    W           the triangle that contains the factor; the other triangle is undefined
    rows        the interchanges and the sizes of the diagonal blocks, in the form of the backend; None for Cholesky
    transposed  whether these are the factors of W^T
    breakdown   the order of the first leading minor that is not positive (Cholesky), or the first zero pivot, counted
                from 1; 0 if the factorization is complete
    """

    W: Triangle
    rows: Indices | None
    transposed: bool
    breakdown: int


class DenseKernels(Protocol):
    """The operations of dense solves, on fp32 and fp64 matrices, real or complex.

    A matrix may be row-major or column-major. New blocks and matrices have the order that the backend's products read.
    """

    #: A `kernels.torch.engine.device.Device`, or None for NumPy's memory.
    device: Any

    @property
    def xp(self) -> Any:
        """Return the array namespace of the backend's arrays."""

    @property
    def stopwatch(self) -> Stopwatch:
        """Return the stopwatch that measures the operations of this backend."""

    def computing(self) -> AbstractContextManager[Any]:
        """Return a context without overflow warnings and with fp32 products in full precision."""

    def emulates(self, precision: str, dtype: DType) -> bool:
        """Return whether the LU of a matrix of this type rounds its operands to this precision in software."""

    def fp64_emulation(self) -> Fp64Emulation | None:
        """Return a record of the emulated fp64 products since the last call, or None if products are not emulated."""

    def check_memory(self, n: int, dtype: DType, precision: str, *, copied: bool) -> None:
        """Raise a ResourceError if the device has too little memory for n×n factors and, if `copied`, a copy of A."""

    def factor_storage(self, n: int, dtype: DType) -> Matrix:
        """Return an uninitialized row-major n×n matrix W without gaps, as memory for the factors."""

    def scaled_copy(self, A: Matrix, scales: tuple[Vector, Vector] | None, W: Matrix) -> tuple[Vector, Vector, float]:
        """Compute W = D_r A D_c, rounded to the type of W, and return Σ_j |w_ij|, Σ_i |w_ij| and max |w_ij|.

        The diagonal matrices D_r and D_c are `scales`. The operation takes one pass over A. The sums are those of the
        stored entries, in the precision of W.
        """

    def largest_entries(self, A: Matrix, by_row: Vector, by_column: Vector) -> tuple[Vector, Vector]:
        """Return max_j and max_i of |d_i·a_ij·e_j| in fp64, with d = `by_row` and e = `by_column`; A is read once."""

    def abs_sums(self, A: Matrix, by_row: Vector, by_column: Vector) -> None:
        """Compute the fp64 vectors by_row_i = Σ_j |a_ij| and by_column_j = Σ_i |a_ij| with one pass over A."""

    def factor(self, W: Matrix, precision: str) -> PivotedLU:
        """Factor W or W^T with partial pivoting, in place, and return the factors.

        The operation takes 2/3·n³ flops, or four times as many for a complex W. For fp64 and fp32, W has this type.
        For any other precision, W is fp32: panels are factored in fp32, and the operands of each update are rounded to
        that precision, real and imaginary parts separately. Sums are fp32. To first order and with the u of the
        precision,

            |L U - P W| <= (2 u + n·u_32)·|L||U|.
        """

    def factor_with_early_exit(self, should_stop: Callable[[Vector], bool], W: Matrix) -> PivotedLU | None:
        """Return the LU factors of W in its type, or None if `should_stop` is true for the first n·PART |u_kk|.

        On the host, `should_stop` is called as soon as these pivots have been computed. Other backends call it after
        the LU.
        """

    def solve(self, F: PivotedLU, B: Block, *, transposed: bool = False) -> Block:
        """Return W^-1 B, or W^-T B if `transposed`, as a new block; B has the type of the factors.

        For k right-hand sides, the operation takes 2·n²·k flops.
        """

    def last_row(self, F: PivotedLU) -> int:
        """Return the row of the factored matrix, W or W^T, that the row interchanges moved to the end."""

    def residual(self, B: Block, A: Matrix | Triangle, X: Block) -> Block:
        """Return B - A X as a new block, with one pass over A; all matrices have the same type.

        For k right-hand sides, the operation takes 2·n²·k flops.
        """

    def copy_triangle(self, A: Triangle, scales: Vector | None, W: Matrix) -> tuple[Vector, float]:
        """Compute the triangle of D A D in W, rounded to the type of W, and return Σ_j |w_ij| and max |w_ij|.

        The diagonal matrix D is `scales`. The sums include the entries of both triangles, in the precision of W.
        """

    def cholesky(self, W: Triangle, precision: str, shift: float = 0.0) -> SymmetricFactor:
        """Factor W + shift·diag(W) = L L^H in place, and return the factor.

        The operation takes n³/3 flops, or four times as many for a complex W. For precisions other than fp64 and fp32,
        the operands of the updates are rounded as in `factor`.
        """

    def ldl(self, W: Triangle) -> SymmetricFactor:
        """Factor W = L D L^T, or L D L^H for a Hermitian W, with symmetric pivoting, in place; n³/3 flops."""

    def solve_symmetric(self, F: SymmetricFactor, B: Block) -> Block:
        """Return W^-1 B as a new block; 2·n²·k flops."""

    def largest_pivot(self, F: SymmetricFactor) -> float:
        """Return max |d_ij| of the diagonal blocks D, or max |l_ii|² of a Cholesky factor."""

    def triangle_of_qr(self, A: Matrix, by_column: Vector, dtype: DType) -> Matrix:
        """Return the upper triangle R of A D = Q R for A with m >= n rows and a diagonal matrix D of powers of two.

        A D is rounded to `dtype`, the type of R, in which Householder transformations compute R. Entries below the
        diagonal are zero. For real numbers, the operation takes 2·n²·(m - n/3) flops. R is the exact triangle of
        A D + E with ||e_j|| <= c·m·n·u·||a_j d_j|| for each column and a small c (Higham 2002, theorem 19.4).
        """

    def solve_triangle(self, R: Matrix, B: Block, *, adjoint: bool = False) -> Block:
        """Return R^-1 B, or R^-H B if `adjoint`, as a new block, for an upper triangle R in the type of B.

        For k right-hand sides, the operation takes n²·k flops.
        """

    def solve_by_svd(self, A: Matrix, B: Block, rcond: float) -> tuple[Block, int, Vector]:
        """Return the X of minimum norm that minimizes ||B - A X||, the rank of A and its singular values.

        Singular values of at most `rcond` times the largest one count as zero. A may have any shape.
        """
