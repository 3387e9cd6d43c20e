"""Pass over tiles with Triton: one launch per batch, then sums over the slots of its partial sums."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from mxpeak.kernels.contract.norms import Tile
from mxpeak.kernels.torch.engine.tile_table import FEW, MANY, Batch, batches
from mxpeak.layout.index_map import consecutive
from mxpeak.layout.structure import WHOLE, Band

Tensor = Any


def norm_pass(
    tiles: Sequence[Tile],
    band: Band,
    wants: Collection[str],
    top: Tensor,
    squares: Tensor,
    by_row: Tensor,
    by_column: Tensor,
) -> None:
    """Add the magnitudes of the tiles' entries to the wanted sums, and update the maximum."""
    from mxpeak.kernels.torch.triton.norms import launch_pass

    for batch in batches(tiles, band, MANY):
        along, across = _wanted(batch, wants)
        programs = batch.wide * batch.strips * len(batch.pieces)
        tops = torch.empty(programs, dtype=torch.int64, device=top.device)
        parts = torch.zeros(programs if "squares" in wants else 1, 3, dtype=torch.float64, device=top.device)
        by_line, by_position = _slots(batch, along, across, (), torch.float64, top.device)
        launch_pass(
            batch,
            _table(batch, top.device),
            tops,
            parts,
            by_line,
            by_position,
            top="max" in wants,
            square="squares" in wants,
            along=along,
            across=across,
            largest=False,
        )
        if "max" in wants:
            torch.maximum(top, tops.max().view(torch.float64), out=top)
        if "squares" in wants:
            squares += parts.sum(dim=0)
        line_sums, position_sums = _targets(batch, by_row, by_column)
        if along:
            _part(line_sums, batch.by_line).add_(by_line.sum(dim=0))
        if across:
            _part(position_sums, batch.by_position).add_(by_position.sum(dim=0))


def row_column_max(
    tiles: Sequence[Tile], band: Band, wants: Collection[str], by_row: Tensor, by_column: Tensor
) -> None:
    """Update the maxima of rows and columns with the tiles' entries."""
    from mxpeak.kernels.torch.triton.norms import launch_pass

    for batch in batches(tiles, band, MANY):
        along, across = _wanted(batch, wants)
        by_line, by_position = _slots(batch, along, across, (), torch.int64, by_row.device)
        launch_pass(
            batch,
            _table(batch, by_row.device),
            by_line,
            by_row,
            by_line,
            by_position,
            top=False,
            square=False,
            along=along,
            across=across,
            largest=True,
        )
        line_tops, position_tops = _targets(batch, by_row, by_column)
        for wanted, tops, partial, span in (
            (along, line_tops, by_line, batch.by_line),
            (across, position_tops, by_position, batch.by_position),
        ):
            if wanted:
                target = _part(tops, span)
                torch.maximum(target, partial.amax(dim=0).view(torch.float64), out=target)


def folded_sums(
    tiles: Sequence[Tile],
    band: Band,
    wants: Collection[str],
    squared: bool,
    sigmas: Sequence[float],
    row_factors: Tensor,
    column_factors: Tensor,
    by_row: Tensor,
    by_column: Tensor,
) -> None:
    """Add the tiles' entries to the folds of deterministic sums."""
    from mxpeak.kernels.torch.triton.norm_folds import launch_folds

    where = by_row.device
    constants = torch.tensor(sigmas, dtype=torch.float64).to(where, non_blocking=True)
    for batch in batches(tiles, band, FEW):
        along, across = _wanted(batch, wants)
        by_line, by_position = _slots(batch, along, across, (len(sigmas),), torch.float64, where)
        factors = _targets(batch, row_factors, column_factors)
        launch_folds(
            batch,
            _table(batch, where),
            constants,
            *factors,
            by_line,
            by_position,
            squared=squared,
            along=along,
            across=across,
        )
        line_sums, position_sums = _targets(batch, by_row, by_column)
        if along:
            _part(line_sums, batch.by_line).add_(by_line.sum(dim=1))
        if across:
            _part(position_sums, batch.by_position).add_(by_position.sum(dim=1))


def read_all(tiles: Sequence[Tile]) -> None:
    """Read all entries, as pairs of real numbers if complex, and store one discarded result per program."""
    from mxpeak.kernels.torch.triton.norms import launch_pass

    for batch in batches([part for tile in tiles for part in _real_parts(tile)], WHOLE, MANY):
        where = batch.pieces[0].A.device
        tops = torch.empty(batch.wide * batch.strips * len(batch.pieces), dtype=torch.int64, device=where)
        none = torch.empty(1, 1, dtype=torch.float64, device=where)
        launch_pass(
            batch,
            _table(batch, where),
            tops,
            none,
            none,
            none,
            top=True,
            square=False,
            along=False,
            across=False,
            largest=False,
        )


def _real_parts(tile: Tile) -> list[Tile]:
    """Return a complex tile as one real tile, or as two if its parts are not interleaved."""
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


def _wanted(batch: Batch, wants: Collection[str]) -> tuple[bool, bool]:
    """Return whether sums along lines and sums across lines are wanted."""
    return ("columns" in wants, "rows" in wants) if batch.turned else ("rows" in wants, "columns" in wants)


def _targets(batch: Batch, by_row: Tensor, by_column: Tensor) -> tuple[Tensor, Tensor]:
    """Return (by_row, by_column), the targets of lines and positions, or (by_column, by_row) for a turned batch."""
    return (by_column, by_row) if batch.turned else (by_row, by_column)


def _slots(
    batch: Batch, along: bool, across: bool, folds: tuple[int, ...], dtype: torch.dtype, where: torch.device
) -> tuple[Tensor, Tensor]:
    """Return zeroed slots for the partial sums along and across lines: [slots, size], or this for each fold."""
    shapes = (
        (count, end - first) if wanted else (1, 1)
        for wanted, (first, end, count) in ((along, batch.by_line), (across, batch.by_position))
    )
    by_line, by_position = (torch.zeros(*folds, *shape, dtype=dtype, device=where) for shape in shapes)
    return by_line, by_position


def _part(sums: Tensor, span: tuple[int, int, int]) -> Tensor:
    """Return the part of `sums` to which a batch adds."""
    return sums[..., span[0] : span[1]]
