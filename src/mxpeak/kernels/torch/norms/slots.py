"""Compute norms with Triton: one launch per batch of tiles, then sums over the slots of the partial sums."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

from mxpeak.kernels.contract.norms import NormParts, Tile
from mxpeak.kernels.torch.engine.tile_table import FEW, MANY, Batch, batches
from mxpeak.layout.index_map import consecutive
from mxpeak.layout.structure import WHOLE, Band

Tensor = Any
#: Values by row and by column, or by line and by position.
Pair = tuple[Any, Any]


def norm_pass(tiles: Sequence[Tile], band: Band, wants: Collection[str], parts: NormParts) -> None:
    """Update the wanted sums and the maximum in `parts` with the magnitudes of the tiles' entries."""
    from mxpeak.kernels.torch.triton.norms import Wants, launch_pass

    where = parts.squares.device
    for batch in batches(tiles, band, MANY):
        selected = Wants("max" in wants, "squares" in wants, *_wanted(batch, wants))
        tops = torch.empty(_programs(batch), dtype=torch.int64, device=where)
        squares = torch.zeros(len(tops) if selected.SQUARES else 1, 3, dtype=torch.float64, device=where)
        slots = _slots(batch, wants, (), torch.float64, where)
        launch_pass(batch, _table(batch, where), tops, squares, *slots, selected)
        if selected.MAX:
            torch.maximum(parts.top, tops.max().view(torch.float64), out=parts.top)
        if selected.SQUARES:
            parts.squares.add_(squares.sum(dim=0))
        for sums, partial in _targets(batch, wants, slots, (parts.by_row, parts.by_column)):
            sums.add_(partial.sum(dim=0))


def row_column_max(tiles: Sequence[Tile], band: Band, wants: Collection[str], tops: Pair) -> None:
    """Update the wanted maxima by row and by column with the magnitudes of the tiles' entries."""
    from mxpeak.kernels.torch.triton.norms import Wants, launch_pass

    where = tops[0].device
    for batch in batches(tiles, band, MANY):
        along, across = _wanted(batch, wants)
        slots = _slots(batch, wants, (), torch.int64, where)
        unused = slots[0], tops[0]
        launch_pass(batch, _table(batch, where), *unused, *slots, Wants(ALONG=along, ACROSS=across, LARGEST=True))
        for top, partial in _targets(batch, wants, slots, tops):
            torch.maximum(top, partial.amax(dim=0).view(torch.float64), out=top)


def folded_sums(
    tiles: Sequence[Tile],
    band: Band,
    wants: Collection[str],
    squared: bool,
    sigmas: Sequence[float],
    factors: Pair,
    sums: Pair,
) -> None:
    """Add the tiles' entries to the wanted folds of deterministic sums."""
    from mxpeak.kernels.torch.triton.norm_folds import FoldWants, launch_folds

    where = sums[0].device
    constants = torch.tensor(sigmas, dtype=torch.float64).to(where, non_blocking=True)
    for batch in batches(tiles, band, FEW):
        slots = _slots(batch, wants, (len(sigmas),), torch.float64, where)
        selected = FoldWants(*_wanted(batch, wants), squared)
        launch_folds(batch, _table(batch, where), constants, _by_lines(batch, factors), *slots, selected)
        for total, partial in _targets(batch, wants, slots, sums):
            total.add_(partial.sum(dim=1))


def read_all(tiles: Sequence[Tile]) -> None:
    """Read all entries of the tiles, and discard the results; complex entries are read as pairs of real numbers."""
    from mxpeak.kernels.torch.triton.norms import Wants, launch_pass

    for batch in batches([part for tile in tiles for part in _real_parts(tile)], WHOLE, MANY):
        where = batch.pieces[0].A.device
        tops = torch.empty(_programs(batch), dtype=torch.int64, device=where)
        unused = torch.empty(1, 1, dtype=torch.float64, device=where)
        launch_pass(batch, _table(batch, where), tops, unused, unused, unused, Wants(MAX=True))


def _real_parts(tile: Tile) -> list[Tile]:
    """Return a complex tile as one real tile, or as two if neither its rows nor its columns are contiguous.

    A real tile is returned unchanged.
    """
    if not tile.A.is_complex():
        return [tile]
    A = torch.view_as_real(tile.A)
    if A.stride(1) == 2:
        parts = [A.flatten(1)]
    elif A.stride(0) == 2:
        parts = [A.transpose(0, 1).flatten(1)]
    else:
        parts = [*A.unbind(2)]
    return [Tile(part, consecutive(part.shape[0]), consecutive(part.shape[1]), 0, 0) for part in parts]


def _table(batch: Batch, where: torch.device) -> Tensor:
    return torch.tensor(batch.rows, dtype=torch.int64).to(where, non_blocking=True)


def _programs(batch: Batch) -> int:
    """Return the number of programs that process a batch."""
    return batch.wide * batch.strips * len(batch.pieces)


def _by_lines(batch: Batch, values: Pair) -> Pair:
    """Convert a pair (by row, by column) to (by line, by position); the lines of a turned batch are columns."""
    return values[::-1] if batch.turned else values


def _wanted(batch: Batch, wants: Collection[str]) -> tuple[bool, bool]:
    """Return whether sums along lines are wanted, and whether sums across lines are wanted."""
    return _by_lines(batch, ("rows" in wants, "columns" in wants))


def _slots(
    batch: Batch, wants: Collection[str], folds: tuple[int, ...], dtype: torch.dtype, where: torch.device
) -> Pair:
    """Return zeroed slots for the partial sums along lines and across lines.

    The shape is [slots, size], or [folds, slots, size] if `folds` is (folds,).
    """
    shapes = (
        (count, end - first) if wanted else (1, 1)
        for wanted, (first, end, count) in zip(_wanted(batch, wants), (batch.by_line, batch.by_position))
    )
    by_line, by_position = (torch.zeros(*folds, *shape, dtype=dtype, device=where) for shape in shapes)
    return by_line, by_position


def _targets(batch: Batch, wants: Collection[str], slots: Pair, sums: Pair) -> Iterator[Pair]:
    """Yield, for each wanted sum, the slice to which a batch contributes and the batch's partial sums."""
    spans = batch.by_line, batch.by_position
    for wanted, total, partial, (first, end, _) in zip(_wanted(batch, wants), _by_lines(batch, sums), slots, spans):
        if wanted:
            yield total[..., first:end], partial
