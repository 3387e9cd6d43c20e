"""Generate the rows of the 27-point problem and order rows on a device with torch operations, exactly as on the host.

Rows are compressed (indptr, indices, data); column n + h is entry h of the halo. Orders depend only on the pattern. On
a GPU, `triton.sparse_rows` generates rows in one pass, and computes colors and levels without waiting for each front.
During a rehearsal, Triton kernels compute nothing. torch operations then generate the rows, because later kernels
depend on the contents of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from mxpeak.kernels.contract.sparse import Order, Rows
from mxpeak.kernels.torch.engine import compile_ahead
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.sparse.matrix import Tensor
from mxpeak.layout.stencil import STENCIL, Box

#: Number of rows whose entries are processed together; for a stencil, at most as many as `chunk_format` packs
#: together.
PIECE = 2**17


def stencil_rows(device: Device, box: Box, weights: Sequence[float]) -> Rows:
    """Generate the rows of the 27-point problem in a box, with the entries of a row ordered by global column.

    The host does not wait, because the number of entries follows from the box.
    """
    n, nnz = box.rows, 1
    around = []
    for size, first, end in zip(box.shape, box.origin, box.global_shape):
        x = first + torch.arange(size, device=device.where)
        around.append(1 + (x > 0).long() + (x + 1 < end).long())  # how many of x-1, x, x+1 exist
        nnz *= 3 * size - (first == 0) - (first + size == end)
    lengths = around[2][:, None, None] * around[1][:, None] * around[0]
    indptr = torch.zeros(n + 1, dtype=torch.int64, device=device.where)
    torch.cumsum(lengths.view(-1), 0, out=indptr[1:])
    halo, stencil = device.tensor(halo_of(box)), device.tensor(np.array(weights, float))
    nowhere = nnz  # the place of points outside the domain
    indices = torch.empty(nnz + 1, dtype=torch.int32, device=device.where)
    data = torch.empty(nnz + 1, dtype=torch.float64, device=device.where)
    generated = Rows(n, box.halo, indptr, indices[:nnz], data[:nnz])
    if device.is_gpu and device.triton:
        from mxpeak.kernels.torch.triton.sparse_rows import make_rows

        make_rows(indptr, halo, stencil, indices, data, box)
        if not compile_ahead.is_rehearsing():
            return generated
    for i in torch.arange(n, device=device.where).split(PIECE):
        columns, present = _neighbors_in_box(device, box, halo, i)
        at = torch.where(present, indptr[i, None] + present.cumsum(1) - 1, nowhere)
        indices[at] = columns.to(torch.int32)
        data[at] = stencil.expand(at.shape)
    return generated


def halo_of(box: Box) -> np.ndarray:
    """Return the geometry of the halo, one row per direction (dx+1) + 3(dy+1) + 9(dz+1).

    A row contains the offset in the halo, the first point x, y, z, the width and the height.
    """
    halo = np.zeros((STENCIL, 6), np.int64)
    for neighbor in box.neighbors():
        dx, dy, dz = neighbor.direction
        width, height, _ = neighbor.shape
        halo[dx + 1 + 3 * (dy + 1) + 9 * (dz + 1)] = (neighbor.recv_offset, *neighbor.first_received, width, height)
    return halo


def _neighbors_in_box(device: Device, box: Box, halo: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
    """Return the columns of the 27 neighbors of each row, and a mask of the neighbors in the domain."""
    d = torch.arange(STENCIL, device=device.where)
    steps = (d % 3 - 1, d // 3 % 3 - 1, d // 9 - 1)
    points = (i % box.nx, i // box.nx % box.ny, i // (box.nx * box.ny))
    x, y, z = (point[:, None] + step for point, step in zip(points, steps))
    present, side, power = torch.ones_like(x, dtype=torch.bool), torch.zeros_like(x), 1
    for at, size, first, end in zip((x, y, z), box.shape, box.origin, box.global_shape):
        present &= (at >= -first) & (at < end - first)
        side += power * (1 + (at >= size).long() - (at < 0).long())  # the direction in which the point is outside
        power *= 3
    offset, x0, y0, z0, width, height = halo[side].unbind(-1)
    outside = box.rows + offset + ((z - z0) * height + y - y0) * width + x - x0
    return torch.where(side == STENCIL // 2, (z * box.ny + y) * box.nx + x, outside), present


def ranges(first: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the concatenated ranges first_k … first_k + counts_k - 1, and the index k of each number.

    The host waits for the total count.
    """
    ends = counts.cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    of = torch.repeat_interleave(torch.arange(len(first), device=first.device), counts, output_size=total)
    return torch.arange(total, device=first.device) + (first - (ends - counts))[of], of


def totals(counts: Tensor) -> Tensor:
    """Return the exclusive prefix sums of the counts, with their total at the end."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def surface_of(rows: Rows) -> Tensor:
    """Return a mask of the rows that have entries in the halo."""
    met = torch.zeros(len(rows.indices) + 1, dtype=torch.int32, device=rows.indices.device)
    torch.cumsum(rows.indices >= rows.n, 0, dtype=torch.int32, out=met[1:])
    at = met[rows.indptr]
    return at[1:] > at[:-1]


class RowNeighbors:
    """The local neighbors of rows, as a matrix with one line of columns per row."""

    def __init__(self, rows: Rows):
        self.n, self._rows = rows.n, rows
        self._lengths = rows.indptr.diff()
        self.width = int(self._lengths.max()) if rows.n else 0
        self._along = torch.arange(self.width, device=rows.indptr.device)

    def __call__(self, i: Tensor) -> Tensor:
        """Return the columns of the neighbors of each of these rows, padded with -1."""
        k = self._rows.indptr[i, None] + self._along
        columns = self._rows.indices[k.clamp_(max=len(self._rows.indices) - 1)]
        there = (self._along < self._lengths[i, None]) & (columns < self.n) & (columns != i[:, None])
        return torch.where(there, columns.long(), -1)


def order(device: Device, rows: Rows, kind: str) -> Order:
    """Return the order of the rows: `natural`, `surface_last`, `levels`, `greedy` or `jpl`.

    The pattern must be symmetric.
    """
    natural = torch.arange(rows.n, dtype=torch.int32, device=rows.indptr.device)
    if kind == "natural":
        return Order(natural, natural, np.arange(rows.n + 1), kind)
    if kind == "surface_last":
        return _sorted_by(surface_of(rows).to(torch.int32), np.arange(rows.n + 1), kind)
    group = _jpl_colors(rows) if kind == "jpl" else _by_earlier_neighbors_in_box(device, rows, kind)
    groups = int(group.max()) + 1 if rows.n else 0
    counts = torch.zeros(groups + 1, dtype=torch.int64, device=group.device)
    counts.index_add_(0, group + 1, torch.ones_like(group))
    return _sorted_by(group, counts.cumsum(0).cpu().numpy(), kind)


def _sorted_by(group: Tensor, starts: np.ndarray, kind: str) -> Order:
    """Return the order that sorts the rows stably by group; `starts` contains the bounds of its groups."""
    new_to_old = torch.sort(group, stable=True).indices
    old_to_new = torch.empty_like(new_to_old)
    old_to_new[new_to_old] = torch.arange(len(group), device=group.device)
    return Order(new_to_old.to(torch.int32), old_to_new.to(torch.int32), starts, kind)


def _by_earlier_neighbors_in_box(device: Device, rows: Rows, kind: str) -> Tensor:
    """Return the greedy color or the level of each row, which depends on its neighbors with smaller numbers."""
    if device.is_gpu and device.triton and rows.n:
        from mxpeak.kernels.torch.triton.sparse_rows import MAX_COLOUR_ENTRIES, MAX_LEVEL_ENTRIES, groups

        longest = int(rows.indptr.diff().max())
        if longest <= (MAX_LEVEL_ENTRIES if kind == "levels" else MAX_COLOUR_ENTRIES):
            group = groups(rows.indptr, rows.indices, longest, levels=kind == "levels")
            if not compile_ahead.is_rehearsing():
                return group
    return _levels(rows) if kind == "levels" else _greedy_colors(rows)


def _fronts(rows: Rows) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield successive fronts of rows, each with the neighbors of its rows.

    The neighbors of a row with smaller numbers are in earlier fronts. The host waits for the size of each front.
    """
    neighbors, n = RowNeighbors(rows), rows.n
    waiting = torch.full((n + 1,), -1, device=rows.indptr.device)  # neighbors left; the last is for missing ones
    for i in torch.arange(n, device=waiting.device).split(PIECE):
        j = neighbors(i)
        waiting[i] = ((j >= 0) & (j < i[:, None])).sum(1)
    front = (waiting == 0).nonzero().view(-1)
    while len(front):
        j = neighbors(front)
        yield front, j
        later = torch.where(j > front[:, None], j, n).view(-1)
        waiting.index_add_(0, later, torch.full_like(later, -1))
        front = later[waiting[later] == 0].unique()


def _greedy_colors(rows: Rows) -> Tensor:
    """Return the greedy color of each row: the least color that no neighbor with a smaller number has.

    The algorithm is from Saad, section 3.3.3.
    """
    color = torch.full((rows.n + 1,), -1, device=rows.indptr.device)  # the last for missing neighbors
    for i, j in _fronts(rows):
        color[i] = _least_free(torch.where(j < i[:, None], color[j], -1))
    return color[: rows.n]


def _levels(rows: Rows) -> Tensor:
    """Return the level of each row, which is the number of its front."""
    level = torch.empty(rows.n, dtype=torch.int64, device=rows.indptr.device)
    for number, (i, _) in enumerate(_fronts(rows)):
        level[i] = number
    return level


def _least_free(taken: Tensor) -> Tensor:
    """Return, for each line of `taken`, the least nonnegative number that is missing; -1 is ignored."""
    used = torch.zeros(len(taken), taken.shape[1] + 2, dtype=torch.int64, device=taken.device)
    used.scatter_(1, taken + 1, 1)  # a line has no more numbers than entries, so its least free one is no larger
    return used[:, 1:].cumprod(1).sum(1)


def _jpl_colors(rows: Rows) -> Tensor:
    """Return the colors of the rows by the algorithm of Jones, Plassmann and Luby.

    In each round, the rows with a larger weight than all of their uncolored neighbors get the least free color. The
    host waits once per round, for the number of uncolored rows.
    """
    neighbors, every = RowNeighbors(rows), torch.arange(rows.n, device=rows.indptr.device)
    weight = _weights(every)
    color = torch.full((rows.n + 1,), -1, device=every.device)  # the last for missing neighbors
    uncolored = every
    while len(uncolored):
        chosen = []
        for i in uncolored.split(PIECE):  # based on the colors before this round
            j = neighbors(i)
            heavier = (j >= 0) & (color[j] < 0) & (weight[j] > weight[i, None])
            chosen.append(torch.where(heavier.any(1), -1, _least_free(color[j])))
        color[uncolored] = torch.cat(chosen)
        uncolored = uncolored[color[uncolored] < 0]
    return color[: rows.n]


def _weights(i: Tensor) -> Tensor:
    """Return a pseudo-random weight of each row (splitmix64).

    The weights are signed numbers with the order of the unsigned 64-bit words.
    """
    z = (i + 1) * _signed(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ _shifted(z, shift)) * _signed(factor)
    return (z ^ _shifted(z, 31)) ^ _signed(2**63)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Return the logical shift z >> bits of unsigned 64-bit words that are stored as int64."""
    return (z >> bits) & (2 ** (64 - bits) - 1)


def _signed(word: int) -> int:
    """Return the int64 number that has the same bits as an unsigned 64-bit word."""
    return word - 2**64 if word >= 2**63 else word
