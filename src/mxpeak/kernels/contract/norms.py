"""What every backend provides for norms: one pass over the tiles of a matrix, and what is done with its sums."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mxpeak.kernels.contract.backend import Indices, Matrix, Vector
from mxpeak.layout.index_map import IndexMap
from mxpeak.layout.structure import Band


@dataclass(frozen=True, slots=True)
class Tile:
    """A piece of a matrix, anywhere in memory, of any strides: A[a, b] is its entry (rows, cols) at (a, b).

    What is summed up of it by rows is added at row0 + a, by columns at col0 + b.
    """

    A: Matrix = field(repr=False)  # of a band it shows memory that is not the matrix's
    rows: IndexMap
    cols: IndexMap
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

    def places(self, places: IndexMap) -> Indices:
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
