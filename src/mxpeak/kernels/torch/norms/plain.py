"""Compute norms with torch operations, for devices without Triton.

A tile is read in strips of rows. Each strip is copied to fp64, with zeros outside the band.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mxpeak.kernels.contract.norms import DOWN, LARGE, SMALL, UP, NormParts, Tile
from mxpeak.kernels.torch.engine.tensors import strips as row_strips
from mxpeak.kernels.torch.engine.tile_table import FAR
from mxpeak.layout.structure import WHOLE, Band

#: Entries of a strip.
STRIP = 2**22

#: Vectors, or folds, by row and by column.
Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Strip:
    """A strip of a tile, with entries in fp64.

    re, im          real and imaginary parts of the entries; `im` is None if the entries are real
    inside          mask of the entries in the band; None if all entries are in the band
    rows, columns   indices of the row sums and column sums to which the entries contribute
    """

    re: torch.Tensor
    im: torch.Tensor | None
    inside: torch.Tensor | None
    rows: slice
    columns: slice


def strips(tiles: Sequence[Tile], band: Band, entries: int) -> Iterator[Strip]:
    """Divide the rows of each tile into strips of at most `entries` entries, and yield the strips.

    A strip contains only the range of columns in which at least one of its rows has entries in the band. Strips
    outside the band are omitted.
    """
    for tile in tiles:
        for rows in row_strips(tile.A.shape, entries):
            begin, stop = _reach(tile, band, rows.start, rows.stop)
            if begin < stop:
                yield _strip(tile, band, rows, slice(begin, stop))


def modulus(re: torch.Tensor, im: torch.Tensor | None) -> torch.Tensor:
    """Return |re + i·im|; NaN if a part is NaN, even if the other part is infinite."""
    if im is None:
        return re.abs()
    absolute = torch.hypot(re, im)
    return torch.where(re.isnan() | im.isnan(), torch.nan, absolute)


def root(x: torch.Tensor) -> torch.Tensor:
    """Return sqrt(x), correctly rounded; torch's vectorized CPU version is not correctly rounded."""
    return torch.from_numpy(np.sqrt(x.numpy())) if x.device.type == "cpu" else x.sqrt()


def norm_pass(tiles: Sequence[Tile], band: Band, wants: Collection[str], parts: NormParts) -> None:
    """Update the wanted sums and the maximum in `parts` with the magnitudes of the tiles' entries."""
    for strip in strips(tiles, band, STRIP):
        x = modulus(strip.re, strip.im)
        if "max" in wants:
            torch.maximum(parts.top, x.max(), out=parts.top)
        if "squares" in wants:
            parts.squares.add_(_squares(strip.re.abs()))
            if strip.im is not None:
                parts.squares.add_(_squares(strip.im.abs()))
        if "rows" in wants:
            parts.by_row[strip.rows] += x.sum(dim=1)
        if "columns" in wants:
            parts.by_column[strip.columns] += x.sum(dim=0)


def row_column_max(tiles: Sequence[Tile], band: Band, wants: Collection[str], tops: Pair) -> None:
    """Update the wanted maxima by row and by column with the magnitudes of the tiles' entries."""
    for strip in strips(tiles, band, STRIP):
        x = modulus(strip.re, strip.im)
        for want, top, lines, dim in (("rows", tops[0], strip.rows, 1), ("columns", tops[1], strip.columns, 0)):
            if want in wants:
                torch.maximum(top[lines], x.amax(dim=dim), out=top[lines])


def folded_sums(
    tiles: Sequence[Tile],
    band: Band,
    wants: Collection[str],
    squared: bool,
    sigmas: Sequence[float],
    factors: Pair,
    sums: Pair,
) -> None:
    """Add the scaled magnitude x of each entry to the folds of its row and its column.

    A fold with the constant σ receives q = (σ + x) - σ, and the next fold receives its part of x - q. Every operation
    is rounded.
    """
    for strip in strips(tiles, band, STRIP):
        if "rows" in wants:
            _fold(_terms(strip, factors[0][strip.rows, None], squared), sigmas, sums[0][:, strip.rows], dim=1)
        if "columns" in wants:
            _fold(_terms(strip, factors[1][None, strip.columns], squared), sigmas, sums[1][:, strip.columns], dim=0)


def read_all(tiles: Sequence[Tile]) -> None:
    """Read all entries of the tiles by adding them, and discard the sums."""
    for tile in tiles:
        tile.A.sum()


def _strip(tile: Tile, band: Band, rows: slice, columns: slice) -> Strip:
    A, inside = tile.A[rows, columns], None
    re, im = (A.real, A.imag) if A.is_complex() else (A, None)
    re, im = re.to(torch.float64), None if im is None else im.to(torch.float64)
    if band != WHOLE:
        i, j = (
            index_map.to_global(torch.arange(part.start, part.stop, device=A.device))
            for index_map, part in ((tile.rows, rows), (tile.cols, columns))
        )
        offset = j[None, :] - i[:, None]
        inside = (offset >= -min(band.below, FAR)) & (offset <= min(band.above, FAR))
        re = torch.where(inside, re, 0.0)
        im = None if im is None else torch.where(inside, im, 0.0)
    down = slice(tile.row0 + rows.start, tile.row0 + rows.stop)
    return Strip(re, im, inside, down, slice(tile.col0 + columns.start, tile.col0 + columns.stop))


def _reach(tile: Tile, band: Band, a: int, end: int) -> tuple[int, int]:
    """Return the range of columns (first, end) in which the rows a … end-1 have entries in the band."""
    first, last = tile.rows.to_global(a), tile.rows.to_global(end - 1)
    return tile.cols.before(first - band.below), tile.cols.before(last + band.above + 1)


def _squares(x: torch.Tensor) -> torch.Tensor:
    """Return Blue's three sums of squares: of medium numbers, and of large and small numbers after scaling."""
    large, small = x > LARGE, x < SMALL
    parts = (torch.where(large | small, 0.0, x), torch.where(large, x, 0.0) * DOWN, torch.where(small, x, 0.0) * UP)
    return torch.stack([(part * part).sum() for part in parts])


def _terms(strip: Strip, f: torch.Tensor, squared: bool) -> torch.Tensor:
    """Return |f·f·x| for the entries x of a strip, or its square if `squared`."""
    a = strip.re * f * f
    if strip.im is None:
        return a * a if squared else a.abs()
    b = strip.im * f * f
    square = a * a + b * b
    return square if squared else root(square)


def _fold(x: torch.Tensor, sigmas: Sequence[float], sums: torch.Tensor, dim: int) -> None:
    for k, sigma in enumerate(sigmas):
        q = (x + sigma) - sigma
        sums[k] += q.sum(dim=dim)
        x = x - q
