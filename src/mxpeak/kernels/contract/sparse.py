"""What every backend provides for sparse matrices: the operations of HPG-MxP, HPCG and `mxpeak.gmres`.

A rank has n rows.  A vector that a matrix multiplies is a halo vector x: x[:n] are the rank's own unknowns,
x[n : n + h] its halo, the h entries that other ranks send, and the rest is padding that stays zero.  Other vectors have
n entries; all are fp64 or fp32.  Matrices are stored in an order of their own, group after group: groups are sets of
rows without entries between them (colours, levels of the natural order, or single rows), and a sweep takes them one
after the other.  All vectors are in that order; an `Order` leads there and back.

L and U are the entries in columns of earlier and later groups, D the diagonal, H the columns of other ranks.  Values of
L and U are stored in a format of their own, those of D and H in the vectors'.  Row numbers are arrays of the backend,
32-bit integers.  u is the unit roundoff of the vectors' type.  Every number of a vector that a matrix multiplies has to
be finite, also where this rank has no entry: stored zeros meet them.

The operations on a matrix come in two parts, so that a rank computes while its halo is on the way.  halo=False: what
needs nothing of other ranks; halo=True: the rest, after the halo has arrived; halo=None: both.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from mxpeak.layout.stencil import Box
from mxpeak.spans import Stopwatch

Vector = Any
Indices = Any
#: Vectors q_0, q_1 …, indexed so: Q[k] is a view.
Basis = Any
#: A matrix as its backend stores it: a `Stored`.
Matrix = Any


@dataclass(frozen=True, slots=True)
class Rows:
    """A rank's compressed rows of a matrix: columns below n are local, n + h is halo entry h.

    Entries of row i are indptr[i] … indptr[i+1]-1; local columns ascend, those of the halo follow or stand between.
    """

    n: int
    halo: int
    indptr: Indices
    indices: Indices
    data: Vector


def natural_kind(storage: str, *, on_device: bool) -> str:
    """The kind of `Order` that takes one row after the other.

    Chunks of independent rows, as devices and ELLPACK have them, take this order level by level.
    """
    return "levels" if on_device or storage == "ell" else "natural"


@dataclass(frozen=True, slots=True)
class Order:
    """A permutation of the rows: new_to_old[new] = old, old_to_new[old] = new.

    Group g is new rows starts[g] … starts[g+1]-1, NumPy's numbers; inside a group rows stand as they stood before.
    """

    new_to_old: Indices
    old_to_new: Indices
    starts: Indices
    kind: str

    @property
    def groups(self) -> int:
        """How many there are."""
        return len(self.starts) - 1

    @property
    def row_by_row(self) -> bool:
        """Whether each row is a group of its own."""
        return self.kind in ("natural", "surface_last")

    @property
    def colours(self) -> int | None:
        """How many groups of rows are taken one after the other; None where rows are."""
        return None if self.row_by_row else self.groups


class Stored(Protocol):
    """A matrix as a backend stores it.

    bytes           of everything
    index_bytes     of what tells the columns
    rows_at_a_time  whose entries stand side by side
    lower, upper    values stored of L and of U, zeros that fill slots included
    nnz             entries of all parts
    halo_nnz        entries of H
    """

    n: int
    halo: int
    values: str
    vectors: str
    storage: str
    rows_at_a_time: int
    bytes: int
    index_bytes: int
    lower: int
    upper: int
    nnz: int
    halo_nnz: int

    def extra_bytes(self, other: Any) -> int:
        """What it takes in addition to another form of the same matrix, with which it may share arrays."""


class SparseKernels(Protocol):
    """The operations of sparse solvers.  All are local to the rank.

    device       a `kernels.torch.device.Device`, or None for NumPy's memory
    chunk_rows   how many rows are stored side by side, each with as many entries as the longest of them
    """

    threads: int
    device: Any
    chunk_rows: int

    @property
    def xp(self) -> Any:
        """The array namespace of the vectors."""

    @property
    def stopwatch(self) -> Stopwatch:
        """The clock of the work that these operations begin."""

    def computing(self) -> AbstractContextManager[None]:
        """Compute with these vectors inside, whatever device is current and however FP32 products are set.

        A device that runs out of memory raises ResourceError.
        """

    # --- set-up: the stencil's rows and their orders are arrays of the backend, a user's rows and theirs NumPy's

    def stencil_rows(self, box: Box, weights: Sequence[float]) -> Rows:
        """The 27-point problem's rows on a box; weights[(dx+1) + 3(dy+1) + 9(dz+1)] is the entry at (dx, dy, dz)."""

    def rows_of(self, indptr: Any, indices: Any, data: Any, n: int, halo: int) -> Rows:
        """Rows from compressed arrays of any integer and real types, columns in any sequence; values become fp64."""

    def on_host(self, rows: Rows) -> Rows:
        """The same rows in NumPy's arrays."""

    def is_symmetric_pattern(self, rows: Rows) -> bool:
        """Whether with every local (i, j) there is a (j, i)."""

    def with_symmetric_pattern(self, rows: Rows) -> Rows:
        """The same matrix, with zeros stored where an entry has no partner: orders need one."""

    def order(self, rows: Rows, kind: str) -> Order:
        """`greedy` or `jpl` colours; the rows as they stand, `natural`, or the `levels` of that order.

        A sweep over the levels gives what one row after row gives.  `surface_last` takes the rows as they stand too,
        but those with entries in the halo at the end: so a sweep computes while its halo is on the way.
        """

    def rounding(self, rows: Rows, precision: str) -> float:
        """max |fl(a) - a| / |a| over all entries; inf where one overflows.  0: the format holds the matrix exactly."""

    def store(
        self, rows: Rows, order: Order, values: str, vectors: str, storage: str, like: Matrix | None = None
    ) -> Matrix:
        """The matrix with its values in one precision, for vectors of another.

        storage     `rows`: one after the other, which suits the natural order; else chunks of rows of one group, side
                    by side: with 32-bit columns and as many slots for all chunks of a group (`ell`) or for each
                    (`sell`), or with columns in as few bytes as they allow (`packed`).  Devices have no `rows`.

        `like` is the same matrix in the same storage: what is equal in both is kept once.  No value may be beyond the
        format (`rounding` finite).
        """

    def row_sums(self, rows: Rows, order: Order) -> Vector:
        """b = A·1, in fp64."""

    # --- vectors

    def halo_vector(self, A: Matrix) -> Vector:
        """A halo vector for A, zero."""

    def gather(self, x: Vector, rows: Indices, out: Vector) -> None:
        """out_k = x[rows_k]."""

    def scatter_add(self, x: Vector, rows: Indices, y: Vector) -> None:
        """x[rows_k] += y_k; no row twice."""

    def dot(self, x: Vector, y: Vector) -> float:
        """Σ x_i y_i, blocked, summed in fp64; error <= (512·u + n·2^-53)·Σ|x_i y_i|."""

    def scale(self, y: Vector, factor: float, x: Vector) -> None:
        """y = factor · x, rounded to y's type; y may be x."""

    def add_scaled(self, y: Vector, factor: float, x: Vector) -> None:
        """y += factor · x; x may be narrower."""

    def scale_and_add(self, y: Vector, factor: float, x: Vector) -> None:
        """y = x + factor · y."""

    def subtract_from(self, y: Vector, b: Vector) -> float:
        """y = b - y; returns Σ y_i²."""

    # --- bases

    def basis(self, n: int, most: int, precision: str) -> Basis:
        """So many vectors of n entries, zero; each is contiguous."""

    def project(self, Q: Basis, k: int, w: Vector) -> Vector:
        """Q^T w of the first k vectors, fp64; 2·n·k flops."""

    def subtract_and_project(self, Q: Basis, k: int, w: Vector, h: Vector) -> Vector:
        """w -= Q h, then Q^T w; Q is read once; 4·n·k flops."""

    def subtract_and_square(self, Q: Basis, k: int, w: Vector, h: Vector) -> float:
        """w -= Q h, then w^T w; 2·n·(k + 1) flops."""

    def combine(self, Q: Basis, y: Sequence[float], out: Vector) -> None:
        """out = Σ y_k q_k."""

    # --- the matrix

    def relax(
        self,
        A: Matrix,
        b: Vector,
        x: Vector,
        *,
        halo: bool | None = None,
        from_zero: bool = False,
        backward: bool = False,
        keep: Vector | None = None,
    ) -> None:
        """One Gauss-Seidel sweep, x_i = (b_i - Σ_{j≠i} a_ij x_j) / a_ii, group after group, in 2·nnz flops.

        b has to be writable: H x is subtracted from it for as long as a sweep lasts.
        halo        None: all rows; False: those that need nothing from other ranks; True: the rest.
                    A sweep that reads no halo, from zero or backward with `keep`, is called in the other sequence:
                    True takes the rows that have entries in columns of other ranks, and what these need first, so
                    that x is final there and can be sent; False then takes the others.
        from_zero   x is zero by definition and not read: only L is read; D x + L x = b afterwards
        backward    from the last group to the first
        keep        a forward sweep stores keep_i = b_i - (L x + H x)_i; a backward one then reads it instead of b, and
                    of A only U, since L x stays as it is until a row is reached
        """

    def matvec(self, y: Vector, A: Matrix, x: Vector, *, halo: bool | None = None) -> None:
        """y = A x; without H (halo=False), then y += H x (halo=True); 2·nnz flops; error <= (m+1)·u·|A||x|.

        m is the number of entries of a row.
        """

    def residual_at(
        self,
        A: Matrix,
        b: Vector,
        x: Vector,
        rows: Indices,
        r: Vector,
        *,
        halo: bool | None = None,
        swept: bool = False,
        keep: Vector | None = None,
    ) -> None:
        """r_k = (b - A x)[rows_k], in two parts as `matvec`, of which sweeps just before leave less to compute.

        swept    x is (D + L)^-1 b, from a forward sweep from zero: r = -U x - H x
        keep     a backward sweep has read it, so (D + U) x is keep: r = b - keep - L x - H x

        `rows` is known again by identity: what is found out about it is found once.
        """

    def read_values(self, A: Matrix) -> int:
        """Read the stored values and do nothing else with them; returns how many bytes: a product's lower limit."""
