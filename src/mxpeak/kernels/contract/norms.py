"""The operations of every backend for norms: passes over the tiles of a matrix, and the arithmetic of exact sums."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mxpeak.kernels.contract.backend import Matrix, Vector
from mxpeak.layout.index_map import IndexMap
from mxpeak.layout.structure import Band

#: Three sums of squares (Blue 1978): numbers above LARGE are scaled by DOWN before they are squared, and numbers below
#: SMALL by UP, so that none of the squares overflows or loses digits.
LARGE, SMALL = 2.0**480, 2.0**-450
DOWN, UP = 2.0**-538, 2.0**600


@dataclass(frozen=True, slots=True)
class Tile:
    """A piece of a matrix with any strides: A[a, b] is the matrix entry (rows.to_global(a), cols.to_global(b)).

    The row sums of the tile are added to those of the matrix from index row0 on, and the column sums from col0 on.
    """

    A: Matrix = field(repr=False)  # for band storage, A includes memory outside the matrix
    rows: IndexMap
    cols: IndexMap
    row0: int
    col0: int

    @property
    def T(self) -> Tile:
        """Return the transposed tile as a view."""
        return Tile(self.A.T, self.cols, self.rows, self.col0, self.row0)


@dataclass(frozen=True, slots=True)
class NormParts:
    """The results of one pass over tiles; results that were not requested are 0 or empty.

    top         max |a_ij|, NaN if an entry is NaN
    squares     Σ |a_ij|² in three sums: unscaled, of large numbers scaled by DOWN, of small ones scaled by UP
    by_row      Σ_j |a_ij|
    by_column   Σ_i |a_ij|
    """

    top: float
    squares: Vector
    by_row: Vector
    by_column: Vector


@dataclass(frozen=True, slots=True)
class ExtendedParts:
    """Reference results for norms in double-double arithmetic; a sum is high + low, in two rows of a matrix.

    top         max |a_ij|
    squares     Σ |a_ij|², two rows of one column
    by_row      Σ_j |a_ij|
    by_column   Σ_i |a_ij|
    entries     the number of entries read
    """

    top: float
    squares: Matrix
    by_row: Matrix
    by_column: Matrix
    entries: int


class NormKernels(Protocol):
    """The operations of norms; `rows` and `columns` are the lengths of the results by row and by column.

    Tiles contain fp64, fp32, fp16 or bf16, real or complex, all of one type; sums are fp64. If an entry is NaN, every
    norm is NaN, even if another entry is Inf. Kernels propagate NaN in `top` and in sums, as do `maximum` and `max` of
    `xp`.
    """

    @property
    def xp(self) -> Any:
        """Return the array namespace of vectors and tiles."""

    @property
    def transport(self) -> Any:
        """Return the `comm.base.Transport` that converts vectors to messages, or None if no conversion is needed."""

    def small_norm(self, A: Matrix, want: str) -> float | None:
        """Return one norm of a small general matrix with little overhead, or None if it requires `norm_pass`.

        `want` is the largest entry (`max`), the largest row or column sum (`rows`, `columns`), or the root of the sum
        of squares (`squares`).
        """

    def norm_pass(
        self, tiles: Sequence[Tile], band: Band, wants: Collection[str], rows: int, columns: int
    ) -> NormParts:
        """Return the requested results (`max`, `squares`, `rows`, `columns`), computed in one pass over the band.

        Sums are blocked: error <= (b + n/b)·u·Σ|a_ij| with b in the hundreds. The maximum is exact if A is real.
        """

    def row_column_max(
        self, tiles: Sequence[Tile], band: Band, wants: Collection[str], rows: int, columns: int
    ) -> tuple[Vector, Vector]:
        """Return max_j |a_ij| and max_i |a_ij|, each if requested; the results do not depend on the tiling of A."""

    def folded_sums(
        self,
        tiles: Sequence[Tile],
        band: Band,
        wants: Collection[str],
        squared: bool,
        sigmas: Sequence[float],
        row_factors: Vector,
        column_factors: Vector,
    ) -> tuple[Matrix, Matrix]:
        """Return Σ_j |f_i·f_i·a_ij| and Σ_i |f_j·f_j·a_ij|, or sums of squares, in folds that add exactly.

        f contains the row and column factors. Fold k sums the terms rounded to multiples of the spacing at sigmas[k];
        the remainders are added to fold k + 1.
        """

    def half_powers(self, maxima: Vector) -> Vector:
        """Return f = 2^-(e/2) per maximum, where e is the least even number with maximum <= 2^e (so f·f·maximum <= 1).

        f is 1 if the maximum is 0, inf or NaN.
        """

    def unfolded(self, folds: Matrix, factors: Vector, maxima: Vector, squared: bool) -> Vector:
        """Return Σ_k folds_k / f², or sqrt(Σ_k folds_k) / f² if `squared`, where f contains the factors.

        The result is the maximum if the maximum is 0, inf or NaN.
        """

    def read_all(self, tiles: Sequence[Tile]) -> None:
        """Read every byte of the tiles; the read rate is an upper bound of the rate of a norm."""

    def empty(self, rows: int, columns: int, dtype: str, order: str) -> Matrix:
        """Return an uninitialized matrix of a type in `configs.DTYPES`, contiguous in row (C) or column (F) order."""

    def set_parts(self, target: Matrix, real: Matrix, imaginary: Matrix | None) -> None:
        """Set target = real + i·imaginary from fp64 matrices, rounded to the type of the target."""

    def extended_pass(self, tiles: Sequence[Tile], band: Band, rows: int, columns: int) -> ExtendedParts:
        """Return the sums of `norm_pass` in double-double arithmetic; squares must be in the range of fp64."""

    def paired_sum(self, terms: Sequence[Matrix]) -> Matrix:
        """Return the sum of all rows of the terms in double-double arithmetic, as two rows: high and low.

        The high row is the sum rounded once.
        """
