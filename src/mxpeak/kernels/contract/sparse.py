"""What every backend provides for sparse matrices: the operations of HPG-MxP, HPCG and `mxpeak.gmres`.

A rank has n rows.  A vector that a matrix multiplies has the n entries of the rank's own unknowns, then those that
come from other ranks (its halo), then room that the kernels need; all is zero when made, and that room stays so.
Other vectors have n entries.  Matrices are stored in an order of their own, group after group: groups are sets of rows
without entries between them (colours, or levels of the natural order), and a sweep takes them one after the other.  All
vectors are in that order; `places` leads back.

L and U are the entries in columns of earlier and later groups, D the diagonal, H the columns of other ranks.  Values of
L and U are stored in a format of their own, those of D and H in the vectors'.  u is the unit roundoff of the vectors'
type.  Every number of a vector that a matrix multiplies has to be finite, also where this rank has no entry: stored
zeros meet them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mxpeak.layout.stencil import Box

Vector = Any
Indices = Any
Basis = Any
#: A matrix as its backend stores it: a `Stored`.
Matrix = Any


@dataclass(frozen=True, slots=True)
class Rows:
    """A rank's rows of a sparse matrix, compressed: columns below n are local, n + h is entry h of the halo.

    Entries of row i are indptr[i] … indptr[i+1]-1; its local columns ascend, those of the halo follow or stand between.
    """

    n: int
    halo: int
    indptr: Indices
    indices: Indices
    data: Vector


@dataclass(frozen=True, slots=True)
class Order:
    """An order of the rows: places[new] = old and inverse[old] = new; group g is new rows starts[g] … starts[g+1]-1.

    Inside a group rows stand as they stood before.
    """

    places: Indices
    inverse: Indices
    starts: Indices
    kind: str

    @property
    def groups(self) -> int:
        """How many there are."""
        return len(self.starts) - 1


class Stored(Protocol):
    """A matrix as a backend stores it.

    bytes         of everything
    index_bytes   of what tells the columns
    lower, upper  values stored of L and of U, zeros that fill slots included
    nnz, foreign  entries of all parts, and of H alone
    """

    n: int
    halo: int
    values: str
    vectors: str
    storage: str
    bytes: int
    index_bytes: int
    lower: int
    upper: int
    nnz: int
    foreign: int

    def bytes_beside(self, other: Any) -> int:
        """What it takes beside another form of the same matrix, with which it may share."""


class SparseKernels(Protocol):
    """The operations of sparse solvers.  All are local to the rank."""

    threads: int

    # --- set-up

    def stencil_rows(self, box: Box, weights: Sequence[float]) -> Rows:
        """The 27-point problem's rows on a box; weights[(dx+1) + 3(dy+1) + 9(dz+1)] is the entry at (dx, dy, dz)."""

    def rows_of(self, indptr: Any, indices: Any, data: Any, n: int, halo: int) -> Rows:
        """Rows from somebody's compressed arrays; values become fp64."""

    def check(self, rows: Rows) -> tuple[str, int]:
        """What is wrong with a matrix, and in which row; ("", -1) if it can be solved with."""

    def is_symmetric_pattern(self, rows: Rows) -> bool:
        """Whether with every local (i, j) there is a (j, i)."""

    def with_symmetric_pattern(self, rows: Rows) -> Rows:
        """The same matrix, with zeros put where an entry has no partner: orders need one."""

    def order(self, rows: Rows, kind: str) -> Order:
        """`greedy` or `jpl` colours, or the levels of the `natural` order."""

    def rounding(self, rows: Rows, precision: str) -> float:
        """max |fl(a) - a| / |a| over all entries; inf where one overflows.  0: the format holds the matrix exactly."""

    def store(
        self, rows: Rows, order: Order, values: str, vectors: str, storage: str, like: Matrix | None = None
    ) -> Matrix:
        """The matrix with its values in one precision, for vectors of another; `ell`, `sell` or `packed`.

        `like` is the same matrix in the same storage: what is equal in both is kept once.  No value may be beyond the
        format (`rounding` finite).
        """

    def row_sums(self, rows: Rows, order: Order) -> Vector:
        """b = A·1, in fp64."""

    def indices(self, values: Sequence[int]) -> Indices:
        """Row numbers as the kernels take them."""

    def reordered(self, order: Order, numbers: Indices) -> Indices:
        """The new numbers of old rows."""

    def coarse_rows(self, order: Order, coarse: Order, box: Box) -> Indices:
        """For each coarse point, in the coarse order, the fine row (2x, 2y, 2z), in the fine order."""

    # --- vectors

    def operand(self, A: Matrix) -> Vector:
        """A vector that A can multiply, zero."""

    def vector(self, n: int, precision: str) -> Vector:
        """A vector of zeros."""

    def own(self, A: Matrix, x: Vector) -> Vector:
        """The rank's own part of a vector that A multiplies: a view."""

    def halo(self, A: Matrix, x: Vector) -> Vector:
        """The part that other ranks send: a view."""

    def assign(self, x: Vector, values: Any) -> None:
        """x = values, a number or as many as x has, rounded to its type."""

    def take(self, x: Vector, places: Indices, out: Vector) -> None:
        """out_k = x[places_k]."""

    def add_at(self, x: Vector, places: Indices, y: Vector) -> None:
        """x[places_k] += y_k; no place twice."""

    def dot(self, x: Vector, y: Vector) -> float:
        """Σ x_i y_i, blocked, summed in fp64."""

    def scaled(self, x: Vector, factor: float, out: Vector) -> None:
        """out = factor · x, rounded to out's type."""

    def add_scaled(self, y: Vector, factor: float, x: Vector) -> None:
        """y += factor · x; x may be narrower."""

    def scale_and_add(self, y: Vector, factor: float, x: Vector) -> None:
        """y = x + factor · y."""

    def subtract_from(self, b: Vector, y: Vector) -> float:
        """y = b - y; returns Σ y_i²."""

    def distance(self, x: Vector, value: float) -> float:
        """max |x_i - value|, NaN if there is one."""

    # --- bases

    def basis(self, n: int, most: int, precision: str) -> Basis:
        """Room for so many vectors; each is contiguous."""

    def member(self, Q: Basis, k: int) -> Vector:
        """Vector k: a view."""

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
        self, A: Matrix, b: Vector, x: Vector, *, late: bool | None = None, from_zero: bool = False,
        backward: bool = False, keep: Vector | None = None,
    ) -> None:  # fmt: skip
        """One Gauss-Seidel sweep, x_i = (b_i - Σ_{j≠i} a_ij x_j) / a_ii, group after group, on 2·nnz flops.

        b has to be writable: H x is taken off it for as long as a sweep lasts.
        late        None: all rows, with H; False: those that need nothing from other ranks; True: the rest, with H
        from_zero   x is taken for zero: only L is read; D x + L x = b afterwards
        backward    from the last group to the first
        keep        with a forward sweep: keep_i = b_i - (L x + H x)_i is stored; a backward one then takes it for b,
                    and reads U alone, since L x stays as it is until a row is reached
        """

    def multiply(self, A: Matrix, x: Vector, y: Vector, *, outside: bool | None = None) -> None:
        """y = A x without H (outside False), y += H x (True), or both (None); 2·nnz flops."""

    def residual_at(
        self, A: Matrix, b: Vector, x: Vector, rows: Indices, r: Vector, *, swept: bool, outside: bool | None = None
    ) -> None:
        """r_k = (b - A x)[rows_k], in two halves as `multiply`; swept: x is (D + L)^-1 b, so b - (D + L) x is zero."""

    def read_all(self, A: Matrix) -> int:
        """Read the values and do nothing else with them; returns how many bytes: the limit of what a product can be."""
