"""Define the order in which a device's sweeps visit the chunks of a matrix: one launch per color.

A launch processes all chunks of a group, which are independent. The host divides groups into windows, to keep x in the
cache. On a device, windows would only make launches smaller. Each launch has a separate table of its chunks, so that
kernels do not look up chunks.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

import torch

from mxpeak.kernels.contract.sparse import Part
from mxpeak.kernels.host.sparse import chunk_format as pack
from mxpeak.kernels.host.sparse.slot_sums import FARS, LANES, NEARS, RUNS
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.sparse.chunk_format import DeviceRows, PackedChunks
from mxpeak.kernels.torch.sparse.matrix import (
    Coarse,
    PartSlots,
    StepChunks,
    Surface,
    SweepSteps,
    Tensor,
    TorchMatrix,
    TorchPattern,
)
from mxpeak.kernels.torch.sparse.rows import ranges, totals


def pattern_of(
    device: Device,
    storage: str,
    rows: DeviceRows,
    packed: PackedChunks,
    halo_rows: Tensor,
    halo_first: Tensor,
    halo: Tensor,
) -> TorchPattern:
    """Return the pattern of packed chunks, with the steps of its sweeps and the rows of H."""
    table, group = packed.table, packed.group
    every = steps_of(device, table, group)
    steps = from_zero = every, every, SweepSteps(table[:0], [0], [])
    if len(halo_rows):
        waits, needed = (marked(rows, table, group, halo_rows, backward=backward) for backward in (False, True))
        early, late, rest, first = (
            steps_of(device, table[chosen], group[chosen]) for chosen in (~waits, waits, ~needed, needed)
        )
        steps, from_zero = (every, early, late), (every, rest, first)
    counts = table[:, pack.L_PART : pack.L_PART + 6].sum(0).tolist()
    kinds = sum(kind for kind, k in ((RUNS, 0), (NEARS, 1), (FARS, 2)) if counts[k] + counts[k + 3])
    return TorchPattern(
        storage,
        packed.bases,
        packed.near,
        packed.far,
        steps,
        from_zero,
        table[rows.old[table[:, pack.ROW].long()].argsort()],
        LANES * sum(counts[:3]),
        LANES * sum(counts[3:]),
        kinds,
        None if device.triton else columns_of(packed),
        surface_of(halo_rows),
        halo_first,
        halo,
    )


def marked(rows: DeviceRows, table: Tensor, group: Tensor, halo_rows: Tensor, *, backward: bool) -> Tensor:
    """Return a mask of the chunks with entries of H and of all chunks that depend on these, like the host's `mark`.

    A chunk is marked if it has entries of H or if it has a marked neighbor in an earlier group (`backward`: later
    group).
    """
    begins, ends = table[:, pack.ROW].long(), (table[:, pack.ROW] + table[:, pack.ROWS]).long()
    marks = torch.zeros(len(table), dtype=torch.bool, device=table.device)
    marks[_chunk_at(begins, halo_rows.long())] = True
    counts = torch.zeros(rows.groups, dtype=torch.int64, device=table.device)
    counts.index_add_(0, group, torch.ones_like(group))
    groups = list(pairwise([0, *accumulate(counts.tolist())]))
    for first, end in reversed(groups) if backward else groups:
        chosen = first + marks[first:end].nonzero().view(-1)
        r, _ = ranges(begins[chosen], (ends - begins)[chosen])
        e, column, _ = rows.off_diagonal(r)
        marks[_chunk_at(begins, column[column < r[e] if backward else column > r[e]])] = True
    return marks


def _chunk_at(begins: Tensor, row: Tensor) -> Tensor:
    """Return the index of the chunk that contains each row; `begins` contains the first rows of the chunks."""
    return torch.searchsorted(begins, row, right=True) - 1


def surface_of(targets: Tensor) -> Surface:
    """Return the rows of H whose targets are not -1."""
    numbers = (targets >= 0).nonzero().view(-1)
    return Surface(numbers.to(torch.int32), targets[numbers])


def steps_of(device: Device, table: Tensor, group: Tensor, targets: Tensor | None = None) -> SweepSteps:
    """Return the chunks in one step per group; if `targets` are given, include only the rows with a target.

    Every second group is in reverse order, because the last data of the previous group is still in the cache.
    """
    turn = torch.arange(len(table), device=table.device)
    table = table[(2 * len(table) * group + torch.where(group % 2 == 1, len(table) - turn, turn)).argsort()]
    _, counts = torch.unique_consecutive(group, return_counts=True)
    bounds = [0, *accumulate(counts.tolist())]
    return SweepSteps(table, bounds, [] if device.triton else chunks_of(table, bounds, targets))


def chunks_of(table: Tensor, bounds: list[int], targets: Tensor | None) -> list[StepChunks]:
    """Return the chunks of each step for torch operations, without the rows whose target is -1."""
    table = table.long()
    lane = torch.arange(LANES, device=table.device)
    rows = (table[:, pack.ROW, None] + lane).view(-1)
    lanes = (lane < table[:, pack.ROWS, None]).view(-1).nonzero().view(-1)
    if targets is not None:
        lanes = lanes[targets[rows[lanes]] >= 0]
    lower, upper = (table[:, k : k + 3].sum(1) for k in (pack.L_PART, pack.U_PART))
    first = table[:, pack.SLOT]
    at = torch.tensor(bounds, device=table.device)
    ends = [torch.searchsorted(lanes, LANES * at), *(totals(counts)[at] for counts in (lower, upper))]
    sizes = torch.stack(ends).diff().tolist()
    parts = zip(
        rows[lanes].split(sizes[0]),
        lanes.split(sizes[0]),
        _slots(first, lower, bounds, sizes[1]),
        _slots(first + lower, upper, bounds, sizes[2]),
    )
    return [StepChunks(r, of - LANES * begin, *slots) for begin, (r, of, *slots) in zip(bounds, parts)]


def _slots(first: Tensor, counts: Tensor, bounds: list[int], sizes: list[int]) -> list[PartSlots]:
    """Return the slots of each step.

    Chunk c has counts[c] slots, beginning at slot first[c].
    """
    steps = [end - begin for begin, end in pairwise(bounds)]
    return [PartSlots(*parts) for parts in zip(ranges(first, counts)[0].split(sizes), counts.split(steps))]


def columns_of(packed: PackedChunks) -> Tensor:
    """Return the columns of all lanes, with shape [slots, LANES]."""
    table = packed.table.long()
    counts = table[:, pack.L_PART : pack.L_PART + 6]
    _, at = ranges(torch.zeros_like(counts).view(-1), counts.reshape(-1))
    kind, row = at % 6 % 3, table[:, pack.ROW].to(torch.int32)[at // 6]
    columns = packed.bases[:, None].repeat(1, LANES)
    columns[kind == 0] += row[kind == 0, None] + torch.arange(LANES, dtype=torch.int32, device=row.device)
    columns[kind == 1] += packed.near.view(-1, LANES).to(torch.int32) & (pack.NEAR_SPAN - 1)
    columns[kind == 2] = packed.far.view(-1, LANES)
    return columns


def coarse_of(device: Device, A: TorchMatrix, rows: Tensor) -> Coarse:
    """Return the data for residuals at these rows.

    The first call for an array of rows computes the data and caches them.
    """
    for coarse in A.coarse:
        if coarse.rows is rows:
            return coarse
    targets = torch.full((A.n,), -1, dtype=torch.int32, device=rows.device)
    targets[rows.long()] = torch.arange(len(rows), dtype=torch.int32, device=rows.device)
    table = A.pattern.steps[Part.ALL].table
    table = table[table[:, pack.ROW].argsort()]
    chosen = torch.zeros(len(table), dtype=torch.bool, device=rows.device)
    chosen[_chunk_at(table[:, pack.ROW].long(), rows.long())] = True
    table = table[chosen]
    steps = steps_of(device, table, torch.zeros(len(table), dtype=torch.int64, device=rows.device), targets)
    surface = surface_of(targets[A.pattern.surface.targets.long()])
    A.coarse.append(Coarse(rows, targets, steps, surface))
    return A.coarse[-1]
