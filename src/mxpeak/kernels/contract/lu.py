"""What every backend provides for HPL and HPL-MxP: panels, row swaps, products, triangular solves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

from mxpeak.kernels.contract.backend import Backend, Indices, Matrix, Vector
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.panel_plan import PanelOp


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel to be factored, as one rank of its process column sees it.

    A         this rank's rows of the panel from the block row down; overwritten by L21 (rows of the block row: dead)
    L1        jb×jb; overwritten by L11 and U11, the same on every rank of the process column
    pivots    jb + 1 numbers; overwritten by the global row that each column's pivot came from, and by 1 + the first
              column without a non-zero pivot (0: none)
    rows      the distribution of the matrix's rows, with this rank's process row
    il0       local row of A's first row
    top       how many rows of A belong to the block row: jb on the process row that owns it, else 0
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
    """Where a panel's time went, as far as that is known once it has been begun.

    pivots    those of a device's panel that was factored on the host, where they are before it is back; else None
    """

    leaf_s: float
    swap_s: float
    pivots: Vector | None = None


#: Methods of a `PanelSolve`: a triangular solve by substitution, or products and inverses of the diagonal's blocks.
LIBRARY, BLOCKED_INVERSE = "library", "blocked-inverse"


@dataclass(frozen=True, slots=True)
class PanelSolve:
    """How a solve with a panel's block was done: the precision of its products' operands, and its method."""

    operands: str
    method: str


class BlockSolver(Protocol):
    """A triangle that is ready for many solves."""

    def __call__(self, x: Vector, *, transposed: bool = False) -> None:
        """x = T^-1 x (T^-T x) in place, x fp64: a vector, or a matrix by rows with a right-hand side a column."""


#: Exchange(mine, theirs): overwrites the candidate `mine` by the best of the process column, by `better_candidate`;
#: `theirs` is workspace of the same size.  Both lie in the host's memory.
Exchange = Callable[[Vector, Vector], None]

#: A pivot candidate is 4 + 2·jb numbers: at VALUE |pivot|, at ROW its global row (-1: none), at HAS_TOP 1 if the block
#: row's own row follows; from HEAD on the pivot's row, then that row.
VALUE, ROW, HAS_TOP, HEAD = 0, 1, 2, 4


def digest(parts: Iterable[bytes]) -> str:
    """128 bits, in hexadecimal, that tell these bytes from others."""
    return blake2b(b"".join(parts), digest_size=16).hexdigest()


def better_candidate(mine: Vector, theirs: Vector) -> None:
    """Leave in `mine` the better pivot of two candidates, and the block row's own row from whoever has it.

    The larger |pivot| wins; on ties the upper row, so that the grid does not change the choice.
    """
    top = HEAD + (len(mine) - HEAD) // 2
    if theirs[VALUE] > mine[VALUE] or (theirs[VALUE] == mine[VALUE] and 0 <= theirs[ROW] < mine[ROW]):
        mine[:HAS_TOP], mine[HEAD:top] = theirs[:HAS_TOP], theirs[HEAD:top]
    if theirs[HAS_TOP]:
        mine[HAS_TOP], mine[top:] = 1.0, theirs[top:]


class LuKernels(Backend, Protocol):
    """The operations of HPL and HPL-MxP.  All are local to the rank.

    What is said of fp64 matrices holds for fp32 ones with their u, unless the type is named.
    """

    def matrix(self, rows: int, columns: int, precision: str = "fp64") -> Matrix:
        """An uninitialised row-major matrix, fp64 or fp32, whose leading dimension suits the caches."""

    def buffer(self, size: int, precision: str = "fp64") -> Vector:
        """An uninitialised contiguous vector, fp64 or fp32, to be viewed as panels or sent as a message."""

    def operand_buffer(self, rows: int, columns: int, precision: str, side: str) -> Vector:
        """An uninitialised vector for the `left` (the `right`) operand of a product in a precision."""

    def operand_size(self, rows: int, columns: int, precision: str, side: str) -> int:
        """How many entries of such a vector an operand takes."""

    def operand_matrix(self, buffer: Vector, rows: int, columns: int, precision: str, side: str) -> Matrix:
        """The first `operand_size` entries of such a vector as A (B) of A B: a view, as products like it best.

        Of what `cast` has written there some rows of A, and some columns of B, are an operand as well.
        """

    def emulates(self, precision: str) -> bool:
        """Whether operands of this precision are rounded to it but multiplied in a wider one."""

    def cuts_show(self, precision: str) -> bool:
        """Whether a column of `subtract_product` may depend, in its last bits, on the columns beside it.

        The tiles that a library's inner loops take may add up in different orders.
        """

    def panel(self, buffer: Vector, rows: int, columns: int) -> Matrix:
        """The first `panel_size` entries of a buffer as a column-major matrix: a view, its columns padded.

        Unpadded, columns of a multiple of 4 KiB would put all entries of a row into one set of the cache.
        """

    def panel_size(self, rows: int, columns: int, precision: str = "fp64") -> int:
        """How many entries of a buffer of this precision a panel of this shape takes."""

    def indices(self, values: Sequence[int]) -> Indices:
        """Row numbers in the form that the row-moving kernels take."""

    def fetch(self, vector: Vector) -> Callable[[], list[float]]:
        """Begin to copy a short vector to the host; calling what is returned waits for it."""

    def host_numbers(self, count: int) -> Vector:
        """So many fp64 numbers that the host writes and sends itself, zero."""

    def copy(self, source: Matrix, target: Matrix) -> None:
        """target = source, in whatever orders they lie."""

    def digest(self, A: Matrix) -> str:
        """What tells the bits of A, fp64 or fp32, from others: the `digest` of their sums by row, then by column.

        Bit patterns are added as signed integers modulo 2^64.  Every change of one entry shows, and all but one in
        billions of larger ones; no gap between rows is read.
        """

    def cast(self, source: Matrix, target: Matrix, precision: str) -> None:
        """target = source, which lies by rows, rounded to nearest even; beyond the largest number: inf (fp8: NaN)."""

    def bring_panel(self, panel: Panel) -> Panel:
        """The same panel for `factor_panel`, on its way from now on to where it is factored."""

    def factor_panel(self, panel: Panel, exchange: Exchange | None) -> PanelOutcome:
        """P A = L U for one panel, by its plan; |PA - LU| <= jb·u·|L||U|; m·jb² - jb³/3 flops over all ranks.

        `exchange` is called once a column where the process column has more than one rank.
        """

    def panel_library(self, ranks: int) -> str | None:
        """The library whose own LU factors panels of so many ranks, whatever their plan says; None: plans are kept."""

    def permute_rows(self, A: Matrix, block: int, sources: Indices, targets: Indices, block_rows: Indices) -> None:
        """A[block+i] = A[sources[i]] and A[targets[t]] = A[block+block_rows[t]], all from the rows as they were."""

    def gather_rows(self, A: Matrix, rows: Indices, out: Matrix) -> None:
        """out[k] = A[rows[k]]."""

    def scatter_rows(self, source: Matrix, rows: Indices, A: Matrix) -> None:
        """A[rows[k]] = source[k]."""

    def factor_block(self, D: Matrix, singular: Vector) -> None:
        """D = L U without pivoting, in place, D a square panel; |ΔD| <= n·u·|L||U|; 2/3·n³ flops.

        `singular`, one fp64 number, is overwritten by 0, or by 1 + the first column whose pivot is zero.
        """

    def solve_unit_lower(self, L: Matrix, B: Matrix, precision: str) -> PanelSolve:
        """B = L^-1 B in place, L the unit lower triangle of a panel's block; |ΔL| <= m·u·|L|; m²·n flops.

        Returns how the solve was done.

        Where a precision lower than B's is named, operands of the products that a solve is made of may be rounded to
        it, as in the updates of an LU with smaller blocks: |ΔL| <= (2·u_low + m·u)·|L|.  In fp32 blocks L_jj of the
        diagonal may be inverted where |L_jj^-1||L_jj|, which then is a factor of their part, is a few units.
        """

    def solve_right_upper(self, B: Matrix, U: Matrix, precision: str) -> PanelSolve:
        """B = B U^-1 in place, U the upper triangle of a panel's block; |ΔU| <= n·u·|U|; m·n² flops.

        Precision, inverses and the returned value as for `solve_unit_lower`.
        """

    def subtract_product(self, C: Matrix, A: Matrix, B: Matrix) -> None:
        """C -= A B in place, A and B matrices or panels; error <= (k+1)·u·|A||B| + u·|C|; 2·m·n·k flops.

        Where A and B are operands that were cast to less than fp32, C lies by rows.
        Matrix units that add products of fp8 numbers in about 14 bits have that u for them.
        """

    def solve_upper(self, U: Matrix, x: Vector) -> None:
        """x = U^-1 x in place, U the upper triangle of an fp32 or fp64 matrix, x fp64; |ΔU| <= n·u·|U|.

        u is that of fp64 in this and the next three, whatever the matrix is stored in; n² flops.
        """

    def block_solver(self, T: Matrix, part: str) -> BlockSolver:
        """What solves with the `lower` (unit) or `upper` triangle of a block of the diagonal, many times.

        Where solves have no parallelism to speak of it keeps the inverse, in fp64:
        |x - T^-1 b| <= 2n·u·|T^-1||T||T^-1||b|.
        """

    def add_matvec(self, y: Vector, A: Matrix, x: Vector, *, transposed: bool = False) -> None:
        """y += A x (A^T x) in place, A fp32 or fp64, x and y fp64; error <= (n+1)·u·|A||x|; 2·m·n flops.

        x and y may be matrices by rows, with a vector a column.
        """

    def add_two_matvecs(self, y: Vector, z: Vector, A: Matrix, u: Vector, v: Vector) -> None:
        """y += A u and z += A v, as `add_matvec` does it for each; the host reads A once."""

    def add_operand_sums(self, sums: Matrix, A: Matrix, precision: str, vectors: Matrix, part: str = "all") -> None:
        """The rows of `sums` += Ã u + A v, A w and (A∘A) q, with Ã = `cast` of A; u, v, w and q are rows of `vectors`.

        One row w stands for w, 0, w and 1, and takes the host less time in bf16.  Sums and vectors are fp64; the host
        reads A once; 9·m·n flops.  For a precision lower than A's, vectors may be rounded to fp32, and numbers added up
        in it: errors <= (2n+3)·u_32·(|A||u| + |A||v|), and so on; squares that fp32 does not hold may be lost.  Columns
        whose u is 0 are not rounded: what lies beyond the format does no harm there.

        part: A m×n begins with a diagonal block of m columns (`upper`), of which only the upper triangle is read, and
        whose sums are three more rows of `sums`; or it ends with one (`lower`), which is read below its diagonal only.
        """

    def add_triangle_matvec(
        self, y: Vector, A: Matrix, x: Vector, rows: BlockCyclic, cols: BlockCyclic, part: str, form: str = "plain"
    ) -> None:
        """y += T x (`plain`), |T| x (`absolute`) or (T∘T) x (`squared`).

        T is the strictly `lower` (global j < i) or the `upper` (j >= i) part of A, fp32 or fp64; m·n flops on
        average.
        """

    def max_abs_upper(self, A: Matrix, rows: BlockCyclic, cols: BlockCyclic) -> float:
        """max |a_ij| over global j >= i, NaN if there is one, 0 where there are none."""

    def row_max(self, A: Matrix, by_row: Vector) -> None:
        """by_row_i = max_j |a_ij|, NaN if there is one; by_row fp64."""

    def column_max(self, A: Matrix, by_column: Vector) -> None:
        """by_column_j = max_i |a_ij|, NaN if there is one; by_column fp64."""

    def reciprocal_powers(self, powers: Vector, x: Vector) -> None:
        """powers_i = 2^-k with 2^(k-1) < x_i <= 2^k: x_i · powers_i lies in (1/2, 1]; 1 where x_i is 0, inf or NaN."""

    def scale_rows_columns(self, A: Matrix, by_row: Vector, by_column: Vector) -> None:
        """a_ij = by_row_i · a_ij · by_column_j in place; the factors are fp64, and powers of two make it exact."""

    def add_scaled(self, y: Vector, factor: float, x: Vector) -> None:
        """y += factor · x in place."""

    def sum_squares(self, x: Vector) -> float:
        """Σ x_i²."""

    def abs_sums(self, A: Matrix, by_row: Vector, by_column: Vector) -> None:
        """by_row = Σ_j |a_ij| and by_column = Σ_i |a_ij|, overwritten, in one pass over A."""
