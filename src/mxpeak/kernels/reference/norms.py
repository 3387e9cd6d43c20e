"""The reference kernels of norms: each operation of `kernels.contract.norms` written as its definition."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from decimal import Decimal, localcontext

import ml_dtypes
import numpy as np

from mxpeak.kernels import arrays
from mxpeak.kernels.contract.norms import DOWN, LARGE, SMALL, UP, ExtendedParts, NormParts, Tile
from mxpeak.kernels.reference.rounding import Array, quiet
from mxpeak.layout.structure import Band

#: Number of decimal digits of the reference results.
DIGITS = 60


def entries(tile: Tile, band: Band) -> Array:
    """Return the entries of a tile in fp64 or complex128, with zeros outside the band."""
    values = np.zeros(tile.A.shape, np.complex128 if tile.A.dtype.kind == "c" else np.float64)
    columns = [tile.cols.to_global(b) for b in range(values.shape[1])]
    for a in range(values.shape[0]):
        i = tile.rows.to_global(a)
        inside = np.array([band.contains(i, j) for j in columns], bool)
        values[a, inside] = tile.A[a, inside]
    return values


def magnitude(x: Array) -> Array:
    """Return |x|, or NaN if one part of x is NaN, even if the other part is Inf."""
    with quiet():
        return np.where(np.isnan(x), np.nan, np.hypot(x.real, x.imag) if x.dtype.kind == "c" else np.abs(x))


def total(sizes: Array) -> float:
    """Return the correctly rounded sum of the magnitudes: inf if it overflows, NaN if a magnitude is NaN."""
    try:
        return math.fsum(sizes)
    except OverflowError:  # the sum of the numbers overflows, but NaN may follow
        return math.nan if np.isnan(sizes).any() else math.inf


def squares(x: Array) -> list[float]:
    """Return Blue's three sums of squares: of medium numbers, and of large and small numbers after scaling."""
    parts = np.abs(np.concatenate([x.real, x.imag]) if x.dtype.kind == "c" else x)
    large, small = parts > LARGE, parts < SMALL
    return [total(part**2) for part in (parts[~large & ~small], parts[large] * DOWN, parts[small] * UP)]


def lines(tiles: Sequence[Tile], values: Sequence[Array], by: str, size: int) -> list[Array]:
    """Return all entries of each row or column (`by`) of a matrix, collected from the tiles.

    values   the entries of each tile
    size     number of rows or columns
    """
    parts: list[list[Array]] = [[np.zeros(0)] for _ in range(size)]
    for tile, A in zip(tiles, values):
        first, A = (tile.row0, A) if by == "rows" else (tile.col0, A.T)
        for line, x in enumerate(A):
            parts[first + line].append(x)
    return [np.concatenate(of_line) for of_line in parts]


def terms(line: Array, f: float, squared: bool) -> Array:
    """Return |f·f·x| for each entry x of a row or column, or its square; every operation is rounded."""
    with quiet():
        re, im = line.real * f * f, line.imag * f * f
        square = re * re + im * im
        return square if squared else np.sqrt(square) if line.dtype.kind == "c" else np.abs(re)


def folded(x: Array, sigmas: Sequence[float]) -> list[float]:
    """Return one sum per sigma, of the terms x rounded to multiples of the spacing of fp64 numbers at sigma.

    The remainders of the terms are added to the sum of the next sigma.
    """
    sums = []
    with quiet():
        for spacing in map(np.spacing, sigmas):
            nearest = np.rint(x / spacing) * spacing
            sums.append(float(nearest.sum()))
            x = x - nearest
    return sums


def exact(line: Array) -> list[Decimal]:
    """Return the magnitudes of the numbers of a row or column, with DIGITS decimal digits."""
    with localcontext(prec=DIGITS):
        return [(Decimal(x.real) ** 2 + Decimal(x.imag) ** 2).sqrt() for x in line.tolist()]


def pairs(values: Sequence[Decimal]) -> Array:
    """Return two rows: the fp64 numbers nearest to the given numbers, and the remainders in fp64."""
    with localcontext(prec=DIGITS):
        return np.array([(float(x), float(x - Decimal(float(x)))) for x in values], np.float64).reshape(-1, 2).T


class ReferenceNorms:
    """Reference implementation of `NormKernels`: every sum is correctly rounded."""

    xp = arrays.xp
    transport = None

    def small_norm(self, A: Array, want: str) -> None:
        return None  # every norm takes a pass over the matrix

    def norm_pass(
        self, tiles: Sequence[Tile], band: Band, wants: Collection[str], rows: int, columns: int
    ) -> NormParts:
        values = [entries(tile, band) for tile in tiles]
        sizes = [magnitude(x) for x in values]
        everything = np.concatenate([np.zeros(0), *(x.ravel() for x in values)])
        by_row, by_column = (
            [total(line) for line in lines(tiles, sizes, by, size)] if by in wants else []
            for by, size in (("rows", rows), ("columns", columns))
        )
        return NormParts(
            top=float(magnitude(everything).max(initial=0.0)) if "max" in wants else 0.0,
            squares=np.array(squares(everything) if "squares" in wants else [0.0, 0.0, 0.0]),
            by_row=np.array(by_row, np.float64),
            by_column=np.array(by_column, np.float64),
        )

    def row_column_max(
        self, tiles: Sequence[Tile], band: Band, wants: Collection[str], rows: int, columns: int
    ) -> tuple[Array, Array]:
        sizes = [magnitude(entries(tile, band)) for tile in tiles]
        by_row, by_column = (
            [line.max(initial=0.0) for line in lines(tiles, sizes, by, size)] if by in wants else []
            for by, size in (("rows", rows), ("columns", columns))
        )
        return np.array(by_row, np.float64), np.array(by_column, np.float64)

    def folded_sums(
        self,
        tiles: Sequence[Tile],
        band: Band,
        wants: Collection[str],
        squared: bool,
        sigmas: Sequence[float],
        row_factors: Array,
        column_factors: Array,
    ) -> tuple[Array, Array]:
        values = [entries(tile, band) for tile in tiles]
        by_row, by_column = (np.zeros((len(sigmas), len(factors))) for factors in (row_factors, column_factors))
        for by, folds, factors in (("rows", by_row, row_factors), ("columns", by_column, column_factors)):
            if by in wants:
                for at, line in enumerate(lines(tiles, values, by, len(factors))):
                    folds[:, at] = folded(terms(line, factors[at], squared), sigmas)
        return by_row, by_column

    def read_all(self, tiles: Sequence[Tile]) -> None:
        for tile in tiles:
            tile.A.copy()

    def half_powers(self, maxima: Array) -> Array:
        return np.array([_half_power(float(maximum)) for maximum in maxima])

    def unfolded(self, folds: Array, factors: Array, maxima: Array, squared: bool) -> Array:
        sums = maxima.copy()
        with quiet():
            for at in np.flatnonzero((maxima > 0) & (maxima < np.inf)):
                value = math.fsum(folds[:, at])
                sums[at] = np.float64(math.sqrt(value) if squared else value) / factors[at] / factors[at]
        return sums

    def empty(self, rows: int, columns: int, dtype: str, order: str) -> Array:
        return np.empty((rows, columns), getattr(ml_dtypes, dtype, dtype), "F" if order == "F" else "C")

    def set_parts(self, target: Array, real: Array, imaginary: Array | None) -> None:
        target[:] = (real if imaginary is None else real + 1j * imaginary).astype(target.dtype)

    def extended_pass(self, tiles: Sequence[Tile], band: Band, rows: int, columns: int) -> ExtendedParts:
        values = [entries(tile, band) for tile in tiles]
        by_row, by_column = (
            [exact(x) for x in lines(tiles, values, by, size)] for by, size in (("rows", rows), ("columns", columns))
        )
        with localcontext(prec=DIGITS):
            squares = [sum((x * x for x in line), Decimal(0)) for line in by_row]
            sums = [[sum(line, Decimal(0)) for line in by] for by in (by_row, by_column)]
            total = sum(squares, Decimal(0))
        inside = [
            band.contains(t.rows.to_global(a), t.cols.to_global(b)) for t in tiles for a, b in np.ndindex(t.A.shape)
        ]
        top = max((float(x) for line in by_row for x in line), default=0.0)
        return ExtendedParts(top, pairs([total]), pairs(sums[0]), pairs(sums[1]), sum(inside))

    def paired_sum(self, terms: Sequence[Array]) -> Array:
        columns = zip(*(row.tolist() for term in terms for row in term))
        with localcontext(prec=DIGITS):
            return pairs([sum(map(Decimal, column), Decimal(0)) for column in columns])


def _half_power(maximum: float) -> float:
    """Return 2^-(e/2), where e is the least even number with maximum <= 2^e; return 1 for 0, inf and NaN."""
    if not 0.0 < maximum < math.inf:
        return 1.0
    fraction, e = math.frexp(maximum)  # maximum = fraction·2^e, fraction in [1/2, 1)
    if fraction == 0.5:
        e -= 1
    return math.ldexp(1.0, -(e + e % 2) // 2)
