"""The sparse operations of HPG-MxP, HPCG and `mxpeak.gmres` that every backend provides.

Each rank has n rows. A matrix multiplies a halo vector x. Its first part x[:n] contains the rank's own unknowns, and
x[n : n + h] is its halo, the h entries that other ranks send. The rest is padding that is always zero. Other vectors
have n entries. All vectors are fp64 or fp32; those of a basis may also be bf16 or fp16. Kernels for complex systems
have complex numbers whose real and imaginary parts are in these formats. A real matrix in chunks may have x, b, r and
`keep` in bf16 or fp16; D, H and all sums are then fp32, and y of a product is fp32. A matrix is stored in its own
order, group after group. A group is a set of rows without entries between them: a color, a level of the natural order,
or a single row. A sweep visits the groups in sequence. All vectors are in that order, and an `Order` converts between
this order and the original one.

L and U are the entries in columns of earlier and later groups, D is the diagonal, and H contains the columns of other
ranks. The values of L and U have their own format; those of D and H have the format of the vectors. Row numbers are
32-bit integers in arrays of the backend. u is the unit roundoff of the vectors' type. Every entry of a vector that a
matrix multiplies must be finite, even if no row refers to it, because stored zeros multiply it.

The operations on a matrix accept a `Part`, so that a rank can compute while its halo is in transit.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from mxpeak.layout.stencil import Box
from mxpeak.spans import Stopwatch

Vector = Any
Indices = Any
#: Vectors q_0, q_1, …; Q[k] is a view.
Basis = Any
#: A matrix in the storage of its backend: a `Stored`.
Matrix = Any


class Part(IntEnum):
    """The part of an operation on a matrix that one call computes.

    ALL        the complete operation
    INTERIOR   the part that needs no halo entries
    BOUNDARY   the remaining part
    """

    ALL = 0
    INTERIOR = 1
    BOUNDARY = 2


class Rows(NamedTuple):
    """The compressed rows of one rank: columns below n are local, and column n + h is halo entry h.

    Row i has the entries indptr[i] … indptr[i+1]-1. Its local columns are in ascending order; columns of the halo may
    be at any position.
    """

    n: int
    halo: int
    indptr: Indices
    indices: Indices
    data: Vector


def natural_kind(storage: str, *, on_device: bool) -> str:
    """Return the `Order` type that gives the same sweep as the natural order of the rows.

    The type is `levels` for devices and ELLPACK, which store chunks of independent rows, and otherwise `natural`.
    """
    return "levels" if on_device or storage == "ell" else "natural"


@dataclass(frozen=True, slots=True)
class Order:
    """A permutation of the rows: new_to_old[new] = old, old_to_new[old] = new.

    Group g has the new rows starts[g] … starts[g+1]-1, a NumPy array. Rows of one group keep their relative order.
    """

    new_to_old: Indices
    old_to_new: Indices
    starts: Indices
    kind: str

    @property
    def groups(self) -> int:
        """Return the number of groups."""
        return len(self.starts) - 1

    @property
    def row_by_row(self) -> bool:
        """Return whether every group is a single row."""
        return self.kind in ("natural", "surface_last")

    @property
    def colors(self) -> int | None:
        """Return the number of groups (colors), or None if every group is a single row."""
        return None if self.row_by_row else self.groups


class Stored(Protocol):
    """A matrix in the storage of its backend.

    bytes            size of all its arrays
    index_bytes      size of the arrays that encode the columns
    rows_at_a_time   number of rows whose entries are interleaved
    lower, upper     stored values of L and of U, including the zeros that pad slots
    nnz              entries of L, D, U and H
    halo_nnz         entries of H
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
        """Return the bytes that this matrix needs in addition to `other`, a copy of the matrix in another format.

        The two matrices may share arrays.
        """


class SparseKernels(Protocol):
    """The operations of sparse solvers, which are all local to the rank.

    device       a `kernels.torch.engine.device.Device`, or None for NumPy arrays
    parts        real values per number: 1 for real, or 2 for complex matrices and vectors
    chunk_rows   number of rows per chunk, all padded to the length of the longest of these rows
    """

    threads: int
    device: Any
    parts: int
    chunk_rows: int

    @property
    def xp(self) -> Any:
        """Return the array namespace of the vectors."""

    @property
    def stopwatch(self) -> Stopwatch:
        """Return the stopwatch that measures the operations of this backend."""

    def computing(self) -> AbstractContextManager[None]:
        """Return a context that selects the vectors' device and computes fp32 products in full precision.

        The context raises a ResourceError if the device runs out of memory.
        """

    # The rows and orders of the stencil are arrays of the backend; those of a user's matrix are NumPy arrays.

    def stencil_rows(self, box: Box, weights: Sequence[float]) -> Rows:
        """Return the rows of the 27-point problem; weights[(dx+1) + 3(dy+1) + 9(dz+1)] is the entry at (dx, dy, dz)."""

    def rows_of(self, indptr: Any, indices: Any, data: Any, n: int, halo: int) -> Rows:
        """Return fp64 rows made from compressed arrays of any types; columns may be in any order."""

    def on_host(self, rows: Rows) -> Rows:
        """Return the rows with NumPy arrays in host memory."""

    def is_symmetric_pattern(self, rows: Rows) -> bool:
        """Return whether every local entry (i, j) has a counterpart (j, i), which may be a stored zero."""

    def with_symmetric_pattern(self, rows: Rows) -> Rows:
        """Return the rows with a stored zero for each missing counterpart (j, i), as `order` requires."""

    def order(self, rows: Rows, kind: str) -> Order:
        """Return an order of the rows: `greedy` or `jpl` colors, `natural`, its `levels`, or `surface_last`.

        A sweep over the levels gives the same result as a sweep in natural order. `surface_last` is the natural order
        with the rows that have entries in the halo at the end, so that a sweep can overlap with the halo exchange.
        """

    def rounding(self, rows: Rows, precision: str) -> float:
        """Return max |fl(a) - a| / |a| over all entries a: 0 if the precision represents all a, inf on overflow."""

    def store(
        self, rows: Rows, order: Order, values: str, vectors: str, storage: str, like: Matrix | None = None
    ) -> Matrix:
        """Return the matrix in a storage, with values in one format, for vectors of another format.

        The storage `rows` stores one row after the other, for the natural order on the host. The other storages
        interleave the rows of a chunk:

        ell      32-bit columns, with the same number of slots for all chunks of a group
        sell     32-bit columns, with as many slots as each chunk needs
        packed   columns in as few bytes as possible

        `like` is the same matrix in the same storage; the new matrix shares its arrays if they are equal. Every value
        must be in the range of the format (`rounding` is finite).
        """

    def row_sums(self, rows: Rows, order: Order) -> Vector:
        """Return the row sums A·1 in fp64, in the new order of the rows."""

    def halo_vector(self, A: Matrix) -> Vector:
        """Return a zero vector with room for the rank's entries, the halo and the padding of A."""

    def gather(self, x: Vector, rows: Indices, out: Vector) -> None:
        """Compute out_k = x[rows_k]."""

    def scatter_add(self, x: Vector, rows: Indices, y: Vector) -> None:
        """Compute x[rows_k] += y_k for distinct rows."""

    def dot(self, x: Vector, y: Vector) -> float:
        """Return Σ x_i y_i, summed in blocks in fp64; the error is at most (512·u + n·2^-53)·Σ|x_i y_i|.

        For complex numbers, return the real part of Σ conj(x_i) y_i, with blocks of 4096 numbers.
        """

    def scale(self, y: Vector, factor: float, x: Vector) -> None:
        """Compute y = factor · x, rounded to the type of y; y may be x, and both may be vectors of a basis."""

    def add_scaled(self, y: Vector, factor: float, x: Vector) -> None:
        """Compute y += factor · x; the type of x may be narrower than that of y, and may have 16 bits."""

    def scale_and_add(self, y: Vector, factor: float, x: Vector) -> None:
        """Compute y = x + factor · y in place."""

    def subtract_from(self, y: Vector, b: Vector) -> float:
        """Compute y = b - y in place, and return Σ y_i² of the new y."""

    def basis(self, n: int, count: int, precision: str) -> Basis:
        """Return `count` zero vectors of n entries; the entries of a vector are contiguous.

        Products with vectors in bf16 or fp16 are computed and added in the type of w, or in fp32 by `combine`.
        """

    def project(self, Q: Basis, k: int, w: Vector) -> Vector:
        """Return the products q_j · w with the first k vectors of Q, in fp64; 2·n·k flops.

        For complex numbers, q_j is conjugated.
        """

    def subtract_and_project(self, Q: Basis, k: int, w: Vector, h: Vector) -> Vector:
        """Compute w -= Σ h_j q_j over the first k vectors of Q, and return the products q_j · w of the new w.

        The operation reads Q once and takes 4·n·k flops.
        """

    def subtract_and_square(self, Q: Basis, k: int, w: Vector, h: Vector) -> float:
        """Compute w -= Σ h_j q_j over the first k vectors of Q, and return Σ w_i² of the new w.

        The operation takes 2·n·(k + 1) flops.
        """

    def combine(self, Q: Basis, y: Sequence[float], out: Vector) -> None:
        """Compute out = Σ y_k q_k for the vectors q_k of Q."""

    def sweep_from_zero(
        self, A: Matrix, b: Vector, x: Vector, *, keep: Vector | None = None, part: Part = Part.ALL
    ) -> None:
        """Solve (D + L) x = b by a forward Gauss–Seidel sweep from x = 0, which reads neither x nor the halo.

        Store keep_i = b_i - (L x)_i if `keep` is given. Call BOUNDARY before INTERIOR. BOUNDARY computes the rows next
        to other ranks, and the rows on which these depend, so that boundary values can be sent during INTERIOR.
        """

    def sweep_forward(
        self, A: Matrix, b: Vector, x: Vector, *, keep: Vector | None = None, part: Part = Part.ALL
    ) -> None:
        """Sweep from the first group to the last: x_i = (b_i - Σ_{j≠i} a_ij x_j) / a_ii, in 2·nnz flops.

        Store keep_i = b_i - (L x + H x)_i if `keep` is given. Call INTERIOR before BOUNDARY, which needs the halo. The
        host subtracts H x from b during the sweep and then restores b, so b must be writable, and b - H x is rounded to
        the type of b.
        """

    def sweep_backward(self, A: Matrix, keep: Vector, x: Vector, *, part: Part = Part.ALL) -> None:
        """Solve (D + U) x = keep from the last group to the first, with `keep` from the preceding forward sweep.

        The two sweeps together are a symmetric Gauss–Seidel sweep. The backward sweep reads no halo, because H x is
        part of `keep`. Call BOUNDARY before INTERIOR, as for a sweep from zero.
        """

    def matvec(self, y: Vector, A: Matrix, x: Vector, *, part: Part = Part.ALL) -> None:
        """Compute y = A x, or only the part of A x that `part` selects.

        For rows of m entries, the error is at most (m+1)·u·|A||x|. The operation takes 2·nnz flops. INTERIOR computes
        y = (L + D + U) x, and BOUNDARY adds H x.
        """

    def residual_at(
        self,
        A: Matrix,
        b: Vector,
        x: Vector,
        rows: Indices,
        r: Vector,
        *,
        swept: bool = False,
        keep: Vector | None = None,
        part: Part = Part.ALL,
    ) -> None:
        """Compute r_k = (b - A x)[rows_k], with less work directly after a sweep; BOUNDARY only subtracts H x.

        swept   x is (D + L)^-1 b, from a sweep from zero: r = -U x - H x
        keep    the vector of a backward sweep, after which (D + U) x = keep and r = b - keep - L x - H x

        The set-up for the array `rows` is computed once and cached under the identity of the array.
        """

    def read_values(self, A: Matrix) -> int:
        """Read all stored values and return their size in bytes; the read time is a lower bound of a product's time."""
