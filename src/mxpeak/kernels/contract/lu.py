"""The operations of every backend for HPL and HPL-MxP: panels, row swaps, products, triangular solves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol

from mxpeak.kernels.contract.backend import Backend, Indices, Matrix, Vector
from mxpeak.kernels.contract.emulation import Emulation
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.panel_plan import PanelOp


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel to be factored, on one rank of its process column.

    A         this rank's rows of the panel, from the block row down; L21 overwrites the rows below the block row;
              the block row contains no result
    L1        jb×jb; overwritten with L11 and U11, the same on every rank of the process column
    pivots    jb + 1 numbers; overwritten with the global row that each column's pivot came from, and 1 + the first
              column without a nonzero pivot (0: none)
    rows      the distribution of the matrix's rows, with this rank's process row
    il0       local row of A's first row
    top       number of rows of A that belong to the block row: jb on the process row that owns it, otherwise 0
    """

    A: Matrix
    L1: Matrix
    pivots: Vector
    rows: BlockCyclic
    il0: int
    top: int
    plan: tuple[PanelOp, ...]
    pfact: str


@dataclass(frozen=True, slots=True)
class PanelOutcome:
    """The times that a panel factorization measures, and its pivots if they are available early.

    pivots    the pivots if the host factored a device's panel, available before the panel is copied back; or None
    copied    the marks of the stopwatch before and after the panel is copied back to a device; or None
    """

    leaf_s: float
    swap_s: float
    pivots: Vector | None = None
    copied: tuple[Any, Any] | None = None


#: Methods of a `PanelSolve`: substitution, or products with inverses of diagonal blocks.
LIBRARY, BLOCKED_INVERSE = "library", "blocked-inverse"


@dataclass(frozen=True, slots=True)
class PanelSolve:
    """The method of a triangular solve in a panel, and the precision of its products.

    operands   the precision of the products' operands
    method     LIBRARY or BLOCKED_INVERSE
    """

    operands: str
    method: str


def by_substitution(B: Matrix) -> PanelSolve:
    """Return the `PanelSolve` of substitution in the precision of the right-hand sides B."""
    return PanelSolve("fp64" if B.dtype.itemsize == 8 else "fp32", LIBRARY)


@dataclass(frozen=True, slots=True)
class Fp64Emulation:
    """Emulated products of fp64 matrices.

    scheme     the scheme and the library, such as "Ozaki I of cuBLAS"
    bits       the fewest bits of an emulated product; None if there was none, or if the bits are unknown
    products   the number of products, or of their blocks
    native     the number of products or blocks that were computed natively
    """

    scheme: str
    bits: int | None
    products: int
    native: int


class EmulatedProducts(Protocol):
    """A method that emulates products of fp64 matrices, and a record of its products."""

    def subtract_product(self, C: Matrix, A: Matrix, B: Matrix) -> None:
        """Compute C -= A B in place."""

    def record(self) -> Fp64Emulation:
        """Return a record of the products since the last call, after waiting for them."""


class BlockSolver(Protocol):
    """A solver for many systems with the same triangular matrix T."""

    def __call__(self, x: Vector, *, transposed: bool = False) -> None:
        """Solve T x = b (T^T x = b if `transposed`) in place; x is an fp64 vector, or a row-major matrix of columns."""


#: Exchange(candidate, other): overwrites the candidate by the best candidate of the process column, according to
#: `better_candidate`; `other` is workspace of the same size. Both are in host memory.
Exchange = Callable[[Vector, Vector], None]

#: A pivot candidate consists of 4 + 2·jb numbers: |pivot| at VALUE, its global row at ROW (-1: none), and 1 at HAS_TOP
#: if the candidate contains the diagonal row of the column. The pivot row starts at HEAD, followed by the diagonal
#: row.
VALUE, ROW, HAS_TOP, HEAD = 0, 1, 2, 4


def digest(parts: Iterable[bytes]) -> str:
    """Return a 128-bit hash of the concatenated parts as a hexadecimal string."""
    return blake2b(b"".join(parts), digest_size=16).hexdigest()


def better_candidate(candidate: Vector, other: Vector) -> None:
    """Replace the candidate's pivot by the other one if that is better, and copy the other's diagonal row.

    A candidate may have no diagonal row. The larger |pivot| wins. For equal pivots, the upper row wins, so that the
    choice does not depend on the grid.
    """
    top = HEAD + (len(candidate) - HEAD) // 2
    larger = other[VALUE] > candidate[VALUE]
    if larger or (other[VALUE] == candidate[VALUE] and 0 <= other[ROW] < candidate[ROW]):
        candidate[:HAS_TOP], candidate[HEAD:top] = other[:HAS_TOP], other[HEAD:top]
    if other[HAS_TOP]:
        candidate[HAS_TOP], candidate[top:] = 1.0, other[top:]


class LuKernels(Backend, Protocol):
    """The operations of HPL and HPL-MxP. All operations are local to the rank.

    Statements about fp64 matrices also hold for fp32 matrices with their u, unless a type is named.
    """

    def matrix(self, rows: int, columns: int, precision: str = "fp64") -> Matrix:
        """Return an uninitialized row-major matrix, fp64 or fp32, whose leading dimension avoids cache conflicts."""

    def buffer(self, size: int, precision: str = "fp64") -> Vector:
        """Return an uninitialized contiguous vector, fp64 or fp32, for panels or messages."""

    def operand_buffer(self, rows: int, columns: int, precision: str, side: str) -> Vector:
        """Return an uninitialized vector for the `left` or the `right` operand of a product in a precision."""

    def operand_size(self, rows: int, columns: int, precision: str, side: str) -> int:
        """Return the number of entries that an operand of this shape occupies in an `operand_buffer`."""

    def operand_matrix(self, buffer: Vector, rows: int, columns: int, precision: str, side: str) -> Matrix:
        """Return a view of the first `operand_size` entries of a buffer, as the left (A) or right (B) operand of A B.

        The buffer is an `operand_buffer`. After `cast` has written to the view, some rows of A, or some columns of B,
        are also valid operands.
        """

    def emulates(self, precision: str) -> bool:
        """Return whether operands are rounded to this precision but multiplied in a wider one."""

    def fp64_emulation(self) -> Fp64Emulation | None:
        """Return a record of the emulated fp64 products since the last call, after waiting for them.

        The result is None if `subtract_product` uses the product of the library, which may itself be an emulation.
        """

    def cuts_show(self, precision: str) -> bool:
        """Return whether the last bits of a column of `subtract_product` may depend on the adjacent columns.

        The inner loops of a library may add the terms of different tiles in different orders.
        """

    def panel(self, buffer: Vector, rows: int, columns: int) -> Matrix:
        """Return the first `panel_size` entries of a buffer as a column-major matrix, a view with padded columns.

        Padding prevents columns whose size is a multiple of 4 KiB, because all entries of a row would then map to one
        cache set.
        """

    def panel_size(self, rows: int, columns: int, precision: str = "fp64") -> int:
        """Return the number of buffer entries, including padding, that a panel of this shape occupies."""

    def indices(self, values: Sequence[int]) -> Indices:
        """Return row numbers as an array for the kernels that move rows."""

    def fetch(self, vector: Vector) -> Callable[[], list[float]]:
        """Start to copy a short vector to the host, and return a function that waits and returns the numbers."""

    def host_array(self, A: Matrix) -> Matrix:
        """Return the entries of A as a NumPy array in host memory, after waiting for A.

        The array may share the memory of A.
        """

    def host_numbers(self, count: int) -> Vector:
        """Return a vector of fp64 zeros in host memory, which the host writes and sends."""

    def copy(self, source: Matrix, target: Matrix) -> None:
        """Copy the source matrix to the target matrix; each may be row-major or column-major."""

    def digest(self, A: Matrix) -> str:
        """Return the `digest` of the sums of the bits of A (fp64 or fp32) by row and by column.

        Bit patterns are added as signed integers modulo 2^64. A change of one entry always changes the digest. A
        change of several entries leaves the digest unchanged with a probability of less than 10^-9. Gaps between rows
        are not read.
        """

    def cast(self, source: Matrix, target: Matrix, precision: str) -> None:
        """Set target = source, rounded to nearest even to a precision, for a row-major source.

        Overflow gives inf, or NaN for fp8.
        """

    def bring_panel(self, panel: Panel) -> Panel:
        """Start to copy a panel to the memory in which it is factored, and return the copy for `factor_panel`."""

    def factor_panel(self, panel: Panel, exchange: Exchange | None) -> PanelOutcome:
        """Factor P A = L U for one panel as panel.plan prescribes, and return the measured times.

        The operation takes m·jb² - jb³/3 flops over all ranks. The backward error satisfies |PA - LU| <= jb·u·|L||U|.
        `exchange` is called once per column if the process column has more than one rank.
        """

    def panel_library(self, ranks: int) -> str | None:
        """Return the name of the library that factors a panel on `ranks` ranks, or None if kernels execute the plan."""

    def permute_rows(self, A: Matrix, block: int, sources: Indices, targets: Indices, block_rows: Indices) -> None:
        """Copy A[sources[i]] to A[block+i] and A[block+block_rows[t]] to A[targets[t]], reading all rows first."""

    def gather_rows(self, A: Matrix, rows: Indices, out: Matrix) -> None:
        """Copy A[rows[k]] to out[k]."""

    def scatter_rows(self, source: Matrix, rows: Indices, A: Matrix) -> None:
        """Copy source[k] to A[rows[k]]."""

    def factor_block(self, D: Matrix, singular: Vector) -> None:
        """Factor a square panel D = L U in place, without pivoting.

        The backward error satisfies |ΔD| <= n·u·|L||U|, and the operation takes 2/3·n³ flops. `singular`, one fp64
        number, is set to 0, or to 1 + the first column whose pivot is zero.
        """

    def solve_unit_lower(self, L: Matrix, B: Matrix, precision: str) -> PanelSolve:
        """Compute B = L^-1 B in place, with the unit lower triangle L of a panel's block, and return the method.

        The backward error satisfies |ΔL| <= m·u·|L|, and the operation takes m²·n flops. If `precision` is lower than
        that of B, operands of products inside the solve may be rounded to `precision`, as in an LU with smaller
        blocks. The backward error then satisfies |ΔL| <= (2·u_low + m·u)·|L|. In fp32, a diagonal block L_jj may be
        inverted if |L_jj^-1||L_jj| is small, because this product multiplies the block's part of the error.
        """

    def solve_right_upper(self, B: Matrix, U: Matrix, precision: str) -> PanelSolve:
        """Compute B = B U^-1 in place, with the upper triangle U of a panel's block, and return the method.

        The backward error satisfies |ΔU| <= n·u·|U|, and the operation takes m·n² flops. The precision of the operands
        and the inversion of diagonal blocks follow the rules of `solve_unit_lower`.
        """

    def subtract_product(self, C: Matrix, A: Matrix, B: Matrix) -> None:
        """Compute C -= A B in place; A and B may be matrices or panels.

        The error is at most (k+1)·u·|A||B| + u·|C|, and the operation takes 2·m·n·k flops. If A and B are operands
        with a precision below fp32, C is row-major. For matrix engines that add products of fp8 numbers in about 14
        bits, u is that of 14 bits.
        """

    def subtract_emulated_product(self, C: Matrix, A: Matrix, B: Matrix) -> Emulation:
        """Compute C -= A B in place for fp64 matrices or panels by INT8 products, and count the blocks by method.

        With p = ⌈k/2^14⌉ parts of the product, the error is at most (8+p)·u·|A||B| + p·u·|C| componentwise, for any
        spans of exponents. A block with NaN or infinity, or with spans that need too many moduli, is computed in native
        fp64 and has the error of `subtract_product`. The operation counts as 2·m·n·k flops. Raises ResourceError if the
        device has no INT8 products.
        """

    def solve_upper(self, U: Matrix, x: Vector) -> None:
        """Compute x = U^-1 x in place, with the upper triangle U of an fp32 or fp64 matrix and an fp64 vector x.

        The backward error satisfies |ΔU| <= n·u·|U|, and the operation takes n² flops. In this and the next three
        operations, u is that of fp64, even if the matrix is stored in fp32.
        """

    def block_solver(self, T: Matrix, part: str) -> BlockSolver:
        """Return a solver for many systems with the unit `lower` or the `upper` triangle T of a diagonal block.

        If solves have little parallelism, the solver stores the inverse in fp64. The forward error of x then satisfies
        |x - T^-1 b| <= 2n·u·|T^-1||T||T^-1||b|.
        """

    def add_matvec(self, y: Vector, A: Matrix, x: Vector, *, transposed: bool = False) -> None:
        """Compute y += A x, or y += A^T x if `transposed`, in place; A is fp32 or fp64, and x and y are fp64.

        The error is at most (n+1)·u·|A||x|, and the operation takes 2·m·n flops. x and y may be row-major matrices
        with vectors as columns.
        """

    def add_two_matvecs(self, y: Vector, z: Vector, A: Matrix, u: Vector, v: Vector) -> None:
        """Compute y += A u and z += A v in place, with the error bounds of `add_matvec`; the host reads A only once."""

    def add_operand_sums(self, sums: Matrix, A: Matrix, precision: str, vectors: Matrix, part: str = "all") -> None:
        """Add Ã u + A v, A w and (A∘A) q to the rows of `sums`, where Ã is A after `cast`.

        The rows of `vectors` are u, v, w and q. If `vectors` has a single row w, the four vectors are w, 0, w and 1;
        this takes less time in bf16. Sums and vectors are fp64. The operation takes 9·m·n flops, and the host reads A
        once. If the precision is lower than that of A, vectors may be rounded to fp32, and sums computed in fp32. The
        errors are then at most (2n+3)·u_32 times the same sums of absolute values, such as |A||u| + |A||v|; squares
        outside the range of fp32 may be lost. Columns whose u is 0 are not rounded, so that entries beyond the range
        of the format are harmless there.

        part: A is m×n. With `upper`, A begins with a diagonal block of m columns, of which only the upper triangle is
        read. The sums of this block are three more rows of `sums`. With `lower`, A ends with a diagonal block, of
        which only the part below the diagonal is read.
        """

    def add_triangle_matvec(
        self, y: Vector, A: Matrix, x: Vector, rows: BlockCyclic, cols: BlockCyclic, part: str, form: str = "plain"
    ) -> None:
        """Compute y += T x (`plain`), |T| x (`absolute`) or (T∘T) x (`squared`) in place, for a triangle T of A.

        T is the strictly `lower` (global j < i) or the `upper` (j >= i) part of A, fp32 or fp64. The operation takes
        m·n flops on average.
        """

    def max_abs_upper(self, A: Matrix, rows: BlockCyclic, cols: BlockCyclic) -> float:
        """Return max |a_ij| over global j >= i: NaN if one of these entries is NaN, and 0 if there are none."""

    def row_max(self, A: Matrix, by_row: Vector) -> None:
        """Compute the fp64 vector by_row_i = max_j |a_ij|, which is NaN if row i contains NaN."""

    def column_max(self, A: Matrix, by_column: Vector) -> None:
        """Compute the fp64 vector by_column_j = max_i |a_ij|, which is NaN if column j contains NaN."""

    def reciprocal_powers(self, powers: Vector, x: Vector) -> None:
        """Set powers_i to the power of two with x_i · powers_i in (1/2, 1], or to 1 if x_i is 0, inf or NaN."""

    def scale_rows_columns(self, A: Matrix, by_row: Vector, by_column: Vector) -> None:
        """Compute a_ij = by_row_i · a_ij · by_column_j in place, with fp64 factors; powers of two cause no rounding."""

    def combine_rows(self, X: Matrix, Y: Matrix, r: Vector, s: Vector) -> None:
        """Compute x_ij, y_ij = r_i·(x_ij + y_ij), s_i·(x_ij - y_ij) in place, with fp64 factors.

        The computation is in fp64, and each result is rounded once to the type of X and Y. 4·m·n flops.
        """

    def combine_columns(self, X: Matrix, Y: Matrix, r: Vector, s: Vector) -> None:
        """Compute x_ij, y_ij = r_j·(x_ij + y_ij), s_j·(x_ij - y_ij) in place, with fp64 factors, as `combine_rows`."""

    def add_scaled(self, y: Vector, factor: float, x: Vector) -> None:
        """Compute y += factor · x in place."""

    def sum_squares(self, x: Vector) -> float:
        """Return Σ x_i²."""

    def abs_sums(self, A: Matrix, by_row: Vector, by_column: Vector) -> None:
        """Compute by_row_i = Σ_j |a_ij| and by_column_j = Σ_i |a_ij|; the host reads A only once."""
