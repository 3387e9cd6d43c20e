"""What every backend provides: signature, what is overwritten, error bound, flops.

Matrices are row-major blocks of a backend's own arrays, cut by slicing (`A[i0:i1, j0:j1]` is a view): pivoting moves
rows, and a row-major row is one contiguous piece.  Panels are column-major: the factorization goes down their columns.
Vectors are contiguous.  A precision is that in which an array is stored, fp64 unless said; an operand is what products
take: stored in its precision where products of it exist, else rounded to it and stored in a wider one.
Solvers hold arrays, cut them and hand them back, and know nothing else about them: so the same solver runs on NumPy
arrays and on a device's tensors.  On a device operations are begun in order and go on in the background; one that
returns Python numbers waits for what these depend on.  u is the unit roundoff of the type; bounds are to first order
and normwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from mxpeak.errors import ResourceError, UsageError
from mxpeak.kernels.sparse_contract import SparseKernels
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.entries import Entries
from mxpeak.layout.panel_plan import PanelOp
from mxpeak.layout.places import Places
from mxpeak.layout.structure import Band
from mxpeak.spans import Stopwatch

Matrix = Any
Vector = Any
Indices = Any

#: What --kernels may name.
BACKENDS = ("auto", "reference", "host", "torch")
#: Where drivers of NVIDIA's and AMD's GPUs show themselves.
DRIVERS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd", "/proc/driver/nvidia")


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel to be factored, as a rank of its process column sees it.

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
    """Where a panel's time went, as far as that is known once it has been begun."""

    leaf_s: float
    swap_s: float


@dataclass(frozen=True, slots=True)
class Tile:
    """A piece of a matrix, anywhere in memory, of any strides: A[a, b] is its entry (rows, cols) at (a, b).

    What is summed up of it by rows is added at row0 + a, by columns at col0 + b.
    """

    A: Matrix = field(repr=False)  # of a band it shows memory that is not the matrix's
    rows: Places
    cols: Places
    row0: int
    col0: int


@dataclass(frozen=True, slots=True)
class NormParts:
    """What one pass over tiles gives; what was not asked for is 0 or empty.

    top         max |a_ij|, NaN if there is one
    squares     Σ |a_ij|² in three sums: as they are, of large numbers scaled by 2^-538, of small ones by 2^600
    by_row      Σ_j |a_ij|
    by_column   Σ_i |a_ij|
    """

    top: float
    squares: Vector
    by_row: Vector
    by_column: Vector


@dataclass(frozen=True, slots=True)
class ExtendedParts:
    """What norms are checked against: sums as matrices of two rows, high and low, whose sum they are.

    top         max |a_ij|
    squares     Σ |a_ij|², two rows of one column
    by_row      Σ_j |a_ij|
    by_column   Σ_i |a_ij|
    entries     how many entries were read
    """

    top: float
    squares: Matrix
    by_row: Matrix
    by_column: Matrix
    entries: int


class BlockSolver(Protocol):
    """A triangle that is ready for many solves."""

    def __call__(self, x: Vector, *, transposed: bool = False) -> None:
        """x = T^-1 x (T^-T x) in place, x fp64."""


#: Combines the candidate in the given vector over the process column (see `Kernels.better_candidate`), in place.
Exchange = Callable[[Vector], None]


class Kernels(Protocol):
    """The operations of HPL and HPL-MxP.  All are local to the rank.

    What is said of fp64 matrices holds for fp32 ones with their u, unless the type is named.
    """

    name: str
    threads: int

    @property
    def stopwatch(self) -> Stopwatch:
        """The clock of the work that these operations begin."""

    def wait(self) -> None:
        """Return once everything that was begun has ended."""

    def beside(self) -> AbstractContextManager[None]:
        """What is begun inside begins after all that was begun before, and may run beside what is begun afterwards."""

    def join(self) -> None:
        """What is begun from here on begins after all that was begun beside."""

    @property
    def norms(self) -> NormKernels:
        """The operations of norms, on the same threads."""

    @property
    def sparse(self) -> SparseKernels:
        """The operations of sparse solvers, on the same threads."""

    def matrix(self, rows: int, columns: int, precision: str = "fp64") -> Matrix:
        """An uninitialised row-major matrix, fp64 or fp32, whose leading dimension suits the caches."""

    def vector(self, size: int, precision: str = "fp64") -> Vector:
        """An uninitialised contiguous vector, fp64 or fp32."""

    def operand(self, size: int, precision: str) -> Vector:
        """An uninitialised vector of entries in the form in which `subtract_product` takes operands of a precision."""

    def operand_size(self, rows: int, columns: int, precision: str, side: str) -> int:
        """How many entries of such a vector the `left` (or the `right`) operand of a product takes."""

    def left_operand(self, vector: Vector, rows: int, columns: int) -> Matrix:
        """The first `operand_size` entries of an operand's vector as the A of A B: a view, as products like it best."""

    def right_operand(self, vector: Vector, rows: int, columns: int) -> Matrix:
        """The same as the B of A B."""

    def emulates(self, precision: str) -> bool:
        """Whether operands of this precision are rounded to it but multiplied in a wider one."""

    def zeros(self, size: int) -> Vector:
        """A contiguous fp64 vector of zeros."""

    def shaped(self, vector: Vector, rows: int, columns: int) -> Matrix:
        """The first rows·columns entries of a vector as a row-major matrix: a view."""

    def panel(self, vector: Vector, rows: int, columns: int) -> Matrix:
        """The first `panel_size` entries of a vector as a column-major matrix: a view, its columns padded.

        Unpadded, columns of a multiple of 4 KiB would put all entries of a row into one set of the cache.
        """

    def panel_size(self, rows: int, columns: int, precision: str = "fp64") -> int:
        """How many entries of a vector of this precision a panel of this shape takes."""

    def indices(self, values: Sequence[int]) -> Indices:
        """Row numbers in the form that the row-moving kernels take."""

    def fetch(self, vector: Vector) -> Callable[[], list[float]]:
        """Begin to bring a short vector to the host; calling what comes back waits for it."""

    def assign(self, target: Vector, values: Sequence[float] | float) -> None:
        """target[:] = values, few of them; one number: all entries."""

    def floats(self, vector: Vector) -> list[float]:
        """A short vector as Python floats."""

    def copy(self, source: Matrix, target: Matrix) -> None:
        """target = source, in whatever orders they lie."""

    def generate(self, A: Matrix, rows: BlockCyclic, cols: BlockCyclic, entries: Entries, diagonal: Vector) -> None:
        """A = this rank's part of a generated matrix, rounded once to A's type: a_ij = entries.value(i, j).

        Where `diagonal` (fp64, an entry a local row) is not empty, a_ii is the one of row i instead.
        """

    def generated_matvec(
        self, y: Vector, rows: BlockCyclic, cols: BlockCyclic, entries: Entries, diagonal: Vector, x: Vector
    ) -> None:
        """y = A x in fp64, A as `generate` would make it, never stored; error <= n·u·|A||x|; 2·m·n flops."""

    def generated_row_sums(
        self, sums: Vector, squares: Vector, rows: BlockCyclic, cols: BlockCyclic, entries: Entries, diagonal: Vector
    ) -> None:
        """sums = Σ_j |a_ij| and squares = Σ_j a_ij², A as `generate` would make it in fp64, never stored."""

    def signs(self, v: Vector, cols: BlockCyclic, seed: int) -> None:
        """v_j = +1 or -1, by the highest bit of X(1 + j): a pure function of (seed, global j)."""

    def cast(self, source: Matrix, target: Matrix, precision: str) -> None:
        """target = source rounded to nearest even in a precision; beyond its largest number: inf (fp8: NaN)."""

    def factor_panel(self, panel: Panel, exchange: Exchange | None) -> PanelOutcome:
        """P A = L U for one panel, by its plan; |PA - LU| <= jb·u·|L||U|; m·jb² - jb³/3 flops over all ranks.

        `exchange` is called once a column where the process column has more than one rank.
        """

    def candidate(self, jb: int) -> Vector:
        """Room for one pivot candidate, in the host's memory: 4 + 2·jb numbers."""

    def better_candidate(self, mine: Vector, theirs: Vector) -> None:
        """Leave in `mine` the better pivot of two candidates, and the block row's own row from whoever has it.

        A candidate is (|pivot|, its global row, 1 if the block row's row follows, 0; the pivot's row; that row).
        The larger |pivot| wins; on ties the upper row, so that the grid does not change the choice.
        """

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

    def solve_unit_lower(self, L: Matrix, B: Matrix) -> None:
        """B = L^-1 B in place, L the unit lower triangle of a panel's block; |ΔL| <= m·u·|L|; m²·n flops."""

    def solve_right_upper(self, B: Matrix, U: Matrix) -> None:
        """B = B U^-1 in place, U the upper triangle of a panel's block; |ΔU| <= n·u·|U|; m·n² flops."""

    def subtract_product(self, C: Matrix, A: Matrix, B: Matrix) -> None:
        """C -= A B in place, A and B matrices or panels; error <= (k+1)·u·|A||B| + u·|C|; 2·m·n·k flops.

        Matrix units that add products of fp8 numbers in about 14 bits have that u for them.
        """

    def solve_upper(self, U: Matrix, x: Vector, *, transposed: bool = False) -> None:
        """x = U^-1 x (U^-T x) in place, U the upper triangle of an fp32 or fp64 matrix, x fp64; |ΔU| <= n·u·|U|.

        u is that of fp64 in this and the next three, whatever the matrix is stored in; n² flops.
        """

    def solve_lower(self, L: Matrix, x: Vector, *, transposed: bool = False) -> None:
        """x = L^-1 x (L^-T x) in place, L the unit lower triangle of an fp32 or fp64 matrix, x fp64; n² flops."""

    def block_solver(self, T: Matrix, part: str) -> BlockSolver:
        """What solves with the `lower` (unit) or `upper` triangle of a block of the diagonal again and again.

        Where solves have no parallelism to speak of it keeps the inverse, in fp64:
        |x - T^-1 b| <= 2n·u·|T^-1||T||T^-1||b|.
        """

    def add_matvec(self, y: Vector, A: Matrix, x: Vector, *, transposed: bool = False) -> None:
        """y += A x (A^T x) in place, A fp32 or fp64, x and y fp64; error <= (n+1)·u·|A||x|; 2·m·n flops."""

    def add_triangle_matvec(
        self, y: Vector, A: Matrix, x: Vector, rows: BlockCyclic, cols: BlockCyclic, part: str, form: str = "plain"
    ) -> None:
        """y += T x (`plain`), |T| x (`absolute`) or (T∘T) x (`squared`).

        T is the strictly `lower` (global j < i) or the `upper` (j >= i) part of A.

        A is fp32 or fp64; m·n flops on average.
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

    def copied(self, x: Vector) -> Vector:
        """A contiguous copy of an fp64 vector, which may be a column of a matrix."""

    def add_scaled(self, y: Vector, factor: float, x: Vector) -> None:
        """y += factor · x in place."""

    def multiply(self, y: Vector, x: Vector) -> None:
        """y_i = x_i · y_i in place."""

    def power(self, x: Vector, exponent: float) -> None:
        """x_i = x_i^exponent in place; zeros become inf where the exponent is negative."""

    def sum_squares(self, x: Vector) -> float:
        """Σ x_i²."""

    def abs_sums(self, A: Matrix, by_row: Vector, by_column: Vector) -> None:
        """by_row = Σ_j |a_ij| and by_column = Σ_i |a_ij|, overwritten, in one pass over A."""

    def max_abs(self, x: Vector) -> float:
        """max |x_i|, NaN if there is one, 0 for an empty vector."""

    def sum_abs(self, x: Vector) -> float:
        """Σ |x_i|."""

    def gemm_probe(self, m: int, n: int, k: int, precision: str = "fp64") -> Callable[[], None]:
        """One subtract_product on blocks of this shape, to be called and timed: the limit of an LU's update.

        Operands of the given precision; C is fp64 for fp64 operands, else fp32.
        """

    def facts(self) -> dict[str, Any]:
        """Libraries and versions that compute, for the result."""

    def place(self) -> dict[str, Any]:
        """The device that computes, for the result; empty for the host."""

    @property
    def carrier(self) -> Any:
        """How arrays of these kernels become messages: a `comm.base.Carrier`; None: as they are."""


class NormKernels(Protocol):
    """The operations of norms.  `rows` and `columns` are the lengths of what is given by row and by column.

    Tiles hold fp64, fp32, fp16 or bf16, real or complex, all of one type; sums are fp64.
    """

    def norm_pass(
        self, tiles: Sequence[Tile], band: Band, wants: Collection[str], rows: int, columns: int
    ) -> NormParts:
        """The wanted of `max`, `squares`, `rows` and `columns`, of the entries in the band, in one pass over memory.

        Sums are blocked: error <= (b + n/b)·u·Σ|a_ij| with b in the hundreds; the largest is exact if A is real.
        """

    def row_column_max(
        self, tiles: Sequence[Tile], band: Band, wants: Collection[str], rows: int, columns: int
    ) -> tuple[Vector, Vector]:
        """max_j |a_ij| and max_i |a_ij|, where `rows` and `columns` want them; the same bits however A is cut."""

    def folded_sums(
        self, tiles: Sequence[Tile], band: Band, wants: Collection[str], squared: bool, sigmas: Sequence[float],
        row_factors: Vector, column_factors: Vector,
    ) -> tuple[Matrix, Matrix]:  # fmt: skip
        """Σ_j |f_i·f_i·a_ij| and Σ_i |f_j·f_j·a_ij|, or of the squares, cut into folds that add up without rounding.

        Fold k is the sum of what is rounded to multiples of the spacing at sigmas[k]; the rest goes to fold k + 1.
        """

    def read_all(self, tiles: Sequence[Tile]) -> None:
        """Read every byte of the tiles and do nothing else with it: the limit of what a norm can be."""

    def half_powers(self, maxima: Vector) -> Vector:
        """f = 2^-(e/2), e the least even number with maximum <= 2^e: f·f·x <= 1; 1 where it is 0, inf or NaN."""

    def real_part(self, tile: Tile) -> Tile:
        """The tile without its imaginary parts: a view."""

    def places(self, places: Places) -> Indices:
        """Where a line of local indices lies globally."""

    def spread(self, values: Vector, places: Indices, size: int) -> Vector:
        """A vector (or a matrix of such rows) of `size` zeros in which values stand at their places."""

    def taken(self, values: Vector, places: Indices) -> Vector:
        """values[places]."""

    def below(self, places: Indices, end: int) -> Vector:
        """1 where a place is before `end`, else 0."""

    def meeting(self, by_row: Vector, row_places: Indices, by_column: Vector, column_places: Indices) -> Vector:
        """The sums of those entries of both vectors that have the same place."""

    def larger(self, x: Vector, y: Vector) -> Vector:
        """max(x_i, y_i), NaN if one of them is."""

    def largest(self, x: Vector) -> float:
        """max x_i, NaN if there is one, 0 for an empty vector."""

    def vector_of(self, values: Sequence[float]) -> Vector:
        """A short fp64 vector."""

    def floats(self, vector: Vector) -> list[float]:
        """A vector as Python floats."""

    def unfolded(self, folds: Matrix, factors: Vector, maxima: Vector, squared: bool) -> Vector:
        """Σ_k folds_k / f², or sqrt(Σ_k folds_k) / f²; where the maximum is 0, inf or NaN: that."""

    def hypot(self, x: Vector, y: Vector) -> Vector:
        """sqrt(x_i² + y_i²), without overflow on the way."""

    def empty(self, rows: int, columns: int, dtype: str, order: str) -> Matrix:
        """An uninitialised matrix of a type of `configs.DTYPES`, without gaps, by rows (C) or by columns (F)."""

    def put(self, target: Matrix, real: Matrix, imaginary: Matrix | None) -> None:
        """target = real + i·imaginary, fp64 matrices rounded to the target's type."""

    def extended_pass(self, tiles: Sequence[Tile], band: Band, rows: int, columns: int) -> ExtendedParts:
        """The sums of `norm_pass` in doubled precision, by other means; squares within fp64's range, no NaN."""

    def paired_sum(self, terms: Sequence[Matrix]) -> Matrix:
        """The sum of all rows of matrices as two rows, high and low, in doubled precision; high is it rounded once."""


def settled(name: str, device: str) -> tuple[str, str]:
    """The kernels and the device that are meant where either is `auto`; decided before any timing.

    The device is a GPU where there is one that torch can use; the kernels are those that are fastest there.
    """
    if name not in BACKENDS:
        raise UsageError(f"unknown kernels {name!r}; choose one of {', '.join(BACKENDS)}")
    if device == "auto":
        device = "cuda" if name in ("auto", "torch") and has_gpu() else "cpu"
    if name == "auto":
        name = "host" if device == "cpu" else "torch"
    if name != "torch" and device != "cpu":
        raise UsageError(f"--kernels {name} compute on the CPU, not on --device {device}; type: --kernels torch")
    return name, device


def gpu_driver() -> bool:
    """Whether a GPU's driver is there."""
    return any(Path(path).exists() for path in DRIVERS)


@cache
def has_gpu() -> bool:
    """Whether there is a GPU that torch can use; where no driver is, torch is not even imported."""
    if not gpu_driver() or find_spec("torch") is None:
        return False
    from mxpeak.kernels.torch.device import count

    return count() > 0


def open_device(device: str, local_rank: int = 0) -> Any:
    """The torch device called cpu, cuda or cuda:N; of several GPUs each rank of a node takes its own."""
    if find_spec("torch") is None:
        what, instead = (
            (f"device {device}", "--device cpu") if device != "cpu" else ("--kernels torch", "--kernels host")
        )
        raise ResourceError(
            f"{what} needs torch, which is not installed; type: pip install 'mxpeak[gpu]', or {instead}"
        )
    from mxpeak.kernels.torch import device as devices

    return devices.open_device(device, local_rank)


def choose(name: str, device: str, threads: int, cores: Sequence[int] = (), local_rank: int = 0) -> Kernels:
    """The backend `name` on `device`, both as `settled`.

    `threads` of the host compute, thread t on core cores[t] if cores are given.
    """
    if name == "reference":
        from mxpeak.kernels.reference.backend import ReferenceKernels

        return ReferenceKernels()
    from mxpeak.kernels.host.backend import HostKernels

    host = HostKernels(threads, cores)
    if name == "host":
        return host
    where = open_device(device, local_rank)
    from mxpeak.kernels.torch.backend import TorchKernels

    return TorchKernels(where, host)


def device_failure(error: BaseException) -> str | None:
    """What happened to a device, if that is what an error tells: it ran out of memory, or is gone."""
    text = " ".join(str(error).split())
    if type(error).__name__ == "OutOfMemoryError":
        return f"the device ran out of memory: {text}; give a smaller problem, or a smaller --mem"
    if isinstance(error, RuntimeError) and re.search(r"\b(CUDA|HIP|NCCL|RCCL|CUBLAS|cuBLAS|CUSOLVER|cusolver)\b", text):
        return f"the device failed: {text}; see the system's log (dmesg) and nvidia-smi or rocm-smi, and run again"
    return None
