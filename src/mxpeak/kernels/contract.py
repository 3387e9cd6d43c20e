"""What every backend provides: signature, what is overwritten, error bound, flops.

Matrices are row-major blocks of a backend's own arrays, cut by slicing (`A[i0:i1, j0:j1]` is a view): pivoting moves
rows, and a row-major row is one contiguous piece.  Panels are column-major: the factorization goes down their columns.
Vectors are contiguous.  Solvers hold them, cut them and hand them back, and know nothing else about them: so the same
solver runs on NumPy arrays and on a device's tensors.  u is the unit roundoff of the type; bounds are to first order
and normwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mxpeak.errors import ResourceError, UsageError
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.panel_plan import PanelOp

Matrix = Any
Vector = Any
Indices = Any


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel to be factored, as a rank of its process column sees it.

    A         this rank's rows of the panel from the block row down; overwritten by L21 (rows of the block row: dead)
    L1        jb×jb; overwritten by L11 and U11, the same on every rank of the process column
    pivots    jb integers; overwritten by the global row that each column's pivot came from
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
    """How a panel went: 1 + the first column without a non-zero pivot (0: none), and where its time went."""

    singular: int
    leaf_s: float
    swap_s: float


#: Combines the candidate in the given vector over the process column (see `Kernels.better_candidate`), in place.
Exchange = Callable[[Vector], None]


class Kernels(Protocol):
    """The operations of HPL.  All are local to the rank."""

    name: str
    threads: int

    def matrix(self, rows: int, columns: int) -> Matrix:
        """An uninitialised row-major fp64 matrix whose leading dimension suits the caches."""

    def vector(self, size: int) -> Vector:
        """An uninitialised contiguous fp64 vector."""

    def zeros(self, size: int) -> Vector:
        """A contiguous fp64 vector of zeros."""

    def shaped(self, vector: Vector, rows: int, columns: int) -> Matrix:
        """The first rows·columns entries of a vector as a row-major matrix: a view."""

    def panel(self, vector: Vector, rows: int, columns: int) -> Matrix:
        """The first `panel_size` entries of a vector as a column-major matrix: a view, its columns padded.

        Unpadded, columns of a multiple of 4 KiB would put all entries of a row into one set of the cache.
        """

    def panel_size(self, rows: int, columns: int) -> int:
        """How many entries of a vector a panel of this shape takes."""

    def indices(self, values: Sequence[int]) -> Indices:
        """Row numbers in the form that the row-moving kernels take."""

    def integers(self, vector: Vector) -> list[int]:
        """A vector of whole numbers as Python integers."""

    def assign(self, target: Vector, values: Sequence[float]) -> None:
        """target[:] = values, few of them."""

    def floats(self, vector: Vector) -> list[float]:
        """A short vector as Python floats."""

    def copy(self, source: Matrix, target: Matrix) -> None:
        """target = source, in whatever orders they lie."""

    def generate_lcg(self, A: Matrix, rows: BlockCyclic, cols: BlockCyclic, seed: int) -> None:
        """A = this rank's part of HPL's matrix, exactly: a_ij = 1/2 - X(1 + i + j·rows.n)/2^64."""

    def factor_panel(self, panel: Panel, exchange: Exchange | None) -> PanelOutcome:
        """P A = L U for one panel, by its plan; |PA - LU| <= jb·u·|L||U|; m·jb² - jb³/3 flops over all ranks.

        `exchange` is called once a column where the process column has more than one rank.
        """

    def candidate(self, jb: int) -> Vector:
        """Room for one pivot candidate: 4 + 2·jb numbers."""

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

    def solve_unit_lower(self, L: Matrix, B: Matrix) -> None:
        """B = L^-1 B in place, L the unit lower triangle of a panel's block; |ΔL| <= m·u·|L|; m²·n flops."""

    def subtract_product(self, C: Matrix, A: Matrix, B: Matrix) -> None:
        """C -= A B in place, A and B matrices or panels; error <= (k+1)·u·|A||B| + u·|C|; 2·m·n·k flops."""

    def solve_upper(self, U: Matrix, x: Vector) -> None:
        """x = U^-1 x in place, U the upper triangle; |ΔU| <= n·u·|U|; n² flops."""

    def add_matvec(self, y: Vector, A: Matrix, x: Vector) -> None:
        """y += A x in place; error <= (n+1)·u·|A||x|; 2·m·n flops."""

    def subtract(self, y: Vector, x: Vector) -> None:
        """y -= x in place."""

    def abs_sums(self, A: Matrix, by_row: Vector, by_column: Vector) -> None:
        """by_row = Σ_j |a_ij| and by_column = Σ_i |a_ij|, overwritten, in one pass over A."""

    def max_abs(self, x: Vector) -> float:
        """max |x_i|, NaN if there is one, 0 for an empty vector."""

    def sum_abs(self, x: Vector) -> float:
        """Σ |x_i|."""

    def gemm_probe(self, m: int, n: int, k: int) -> Callable[[], None]:
        """One subtract_product on blocks of this shape, to be called and timed: the limit of an LU's update."""

    def facts(self) -> dict[str, Any]:
        """Libraries and versions that compute, for the result."""


def choose(name: str, device: str, threads: int, cores: Sequence[int] = ()) -> Kernels:
    """The backend `name` (auto, host, reference) for `device`; decided before any timing.

    `threads` of them compute, thread t on core cores[t] if cores are given.
    """
    if device not in ("auto", "cpu"):
        raise ResourceError(f"--device {device}: there are no kernels for GPUs yet; type: --device cpu")
    if name == "reference":
        from mxpeak.kernels.reference.backend import ReferenceKernels

        return ReferenceKernels()
    if name in ("auto", "host"):
        from mxpeak.kernels.host.backend import HostKernels

        return HostKernels(threads, cores)
    raise UsageError(f"unknown kernels {name!r}; choose one of auto, host, reference")
