"""Divide rows into chunks and pack their entries on a device, like `kernels.host.sparse.chunk_format` on the host.

The chunks, slots and values are identical to those of the host. The host processes entries serially; the device
processes all entries of a piece of the rows together. Sorting groups equal differences column - row, and the first
appearance of a difference is its smallest index. The host waits only for the numbers of entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from mxpeak.kernels.contract.sparse import Order, Rows
from mxpeak.kernels.host.sparse import chunk_format as pack
from mxpeak.kernels.host.sparse.slot_sums import LANES
from mxpeak.kernels.torch.engine.device import TYPES
from mxpeak.kernels.torch.sparse.matrix import Tensor, narrowed
from mxpeak.kernels.torch.sparse.rows import ranges, surface_of, totals

#: Approximate number of entries that are processed together.
PIECE = 2**22
#: Maximum number of near entries in a row; further entries that belong to no run are far.
MAX_NEAR = 4 * pack.MAX_DIFFERENCES
#: Upper bound of differences column - row and of indices in a piece. A sort key is i·SPAN + k with k below SPAN.
SPAN = 2**32


@dataclass(frozen=True, slots=True)
class PackedChunks:
    """A matrix in chunks.

    table                        one line per chunk in row order, with the columns of `kernels.host.sparse.chunk_format`
    group                        the group of each chunk
    bases, near, far, entries    the columns and the values of all slots of L and U
    """

    table: Tensor
    group: Tensor
    bases: Tensor
    near: Tensor
    far: Tensor
    entries: Tensor


class DeviceRows:
    """The rows of a matrix in a new order: new row r is old row old[r]."""

    def __init__(self, rows: Rows, order: Order):
        self.n, self.halo, self._rows = rows.n, rows.halo, rows
        self.old, self._new = order.new_to_old, order.old_to_new
        self.groups, self.starts = order.groups, torch.as_tensor(order.starts, device=rows.indptr.device)
        self._first = rows.indptr[:-1][self.old]
        self.lengths = rows.indptr.diff()[self.old]
        self.ends = totals(self.lengths)  # row r: ends[r] … ends[r+1]-1

    def entries(self, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return, for each entry of rows r, the position of its row in r, its old column, and its index in the data."""
        k, of = ranges(self._first[r], self.lengths[r])
        return of, self._rows.indices[k].long(), k

    def off_diagonal(self, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the same three arrays as `entries` for the local off-diagonal entries, with new columns."""
        of, j, k = self.entries(r)
        of, j, k = (part[(j < self.n) & (j != self.old[r][of])] for part in (of, j, k))
        return of, self._new[j].long(), k

    def group_of(self, r: Tensor) -> Tensor:
        """Return the group of each of the rows r."""
        return torch.searchsorted(self.starts, r, right=True) - 1

    def end_of_group(self, r: Tensor) -> Tensor:
        """Return, for each of the rows r, the first row after its group."""
        return self.starts[self.group_of(r) + 1]

    def data(self, k: Tensor) -> Tensor:
        """Return the matrix values at the indices k."""
        return self._rows.data[k]

    def surface(self) -> Tensor:
        """Return the new numbers of the rows that have entries in the halo (the rows of H), in ascending order."""
        return surface_of(self._rows)[self.old].nonzero().view(-1)


def diagonal_of(rows: DeviceRows, dtype: torch.dtype) -> Tensor:
    """Return the diagonal of the matrix in the new order of its rows."""
    diagonal = torch.zeros(rows.n, dtype=dtype, device=rows.old.device)
    for r in _pieces(rows):
        of, j, k = rows.entries(r)
        here = j == rows.old[r][of]
        diagonal[r[of[here]]] = rows.data(k[here]).to(dtype)
    return diagonal


def halo_of(rows: DeviceRows, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the rows of H, the index of each row's first entry, and the columns and values of all entries of H.

    Columns count from the first halo entry.
    """
    halo_rows = rows.surface()
    of, j, k = rows.entries(halo_rows)
    there = j >= rows.n
    of, j, k = of[there], j[there], k[there]
    first = torch.searchsorted(of, torch.arange(len(halo_rows) + 1, device=of.device))
    return halo_rows.to(torch.int32), first, (j - rows.n).to(torch.int32), rows.data(k).to(dtype)


def _pieces(rows: DeviceRows) -> Sequence[Tensor]:
    """Divide all rows into ranges with about PIECE entries per range."""
    pieces: Sequence[Tensor] = torch.arange(rows.n, device=rows.old.device).tensor_split(_cut(rows.ends[1:]))
    return pieces


def _cut(ends: Tensor) -> list[int]:
    """Return the boundaries of ranges with about PIECE entries; `ends` contains the cumulative numbers of entries."""
    total = int(ends[-1]) if len(ends) else 0
    every = PIECE * torch.arange(1, max(1, -(-total // PIECE)), device=ends.device)
    bounds: list[int] = torch.searchsorted(ends, every).unique().tolist()
    return bounds


def chunks_of(rows: DeviceRows, starts: np.ndarray, storage: str) -> Tensor:
    """Return the first row of every chunk; chunks have LANES rows unless the storage is `packed`."""
    if pack.STORAGES[storage] == pack.PACKED:
        return _adaptive_chunks(rows)
    parts = [np.arange(first, end, LANES) for first, end in pairwise(starts.tolist())]
    return torch.as_tensor(np.concatenate([*parts, np.empty(0, np.int64)]).astype(np.int64), device=rows.old.device)


def _adaptive_chunks(rows: DeviceRows) -> Tensor:
    """Return the first row of every chunk in `packed` storage.

    A chunk ends after LANES rows or at the end of its group. If it has at least LEAST rows, it also ends before a row
    with mostly new differences column - row. The end depends on the chunk's first row, and therefore on all earlier
    chunks. Ends are therefore computed for all rows at which a chunk may begin. These are at first every LANES-th row
    of a group. The computed ends and every LANES-th row after them are added until no new row appears. The chunks are
    those that can be reached from the first rows of the groups.
    """
    first, end = rows.starts[:-1], rows.starts[1:]
    k, of = ranges(torch.zeros_like(first), (end - first + LANES - 1).div(LANES, rounding_mode="floor"))
    follower = torch.full((rows.n + 1,), -1, device=first.device)  # the end of the chunk that begins at a row, or -1
    follower[rows.n] = rows.n
    fresh, ahead = first[of] + LANES * k, 1
    while len(fresh):
        lengths = rows.ends[torch.minimum(fresh + LANES, rows.end_of_group(fresh))] - rows.ends[fresh]
        follower[fresh] = torch.cat([_chunk_end(rows, c) for c in fresh.tensor_split(_cut(lengths.cumsum(0)))])
        met = follower[fresh].unique()
        met = met[follower[met] < 0]
        ahead = max(1, min(2 * ahead, rows.n // (LANES * max(1, len(met)))))
        further = met[:, None] + LANES * torch.arange(ahead, device=met.device)
        fresh = further[further < rows.end_of_group(met)[:, None]].unique()
        fresh = fresh[follower[fresh] < 0]
    return _reached(first, follower)


def _chunk_end(rows: DeviceRows, c: Tensor) -> Tensor:
    """Return the ends of chunks that begin at rows c, as the host's `cut_rows` computes them."""
    end = torch.minimum(c + LANES, rows.end_of_group(c))
    head = torch.minimum(c + pack.LEAST, end)
    # the differences of the first LEAST rows, up to the number that the host keeps
    r, of = ranges(c, head - c)
    e, j, _ = rows.off_diagonal(r)
    differences, first, _, _ = _distinct(of[e] * SPAN + j - r[e] + SPAN // 2)
    kept = _rank(differences // SPAN, first, len(c)) < 2 * pack.MAX_DIFFERENCES
    differences = differences[kept]
    size = _counts(differences // SPAN, len(c))
    # the later rows, and the number of their differences that also occur in the first LEAST rows
    r, of = ranges(head, end - head)
    e, j, _ = rows.off_diagonal(r)
    same = _counts(e[torch.isin(of[e] * SPAN + j - r[e] + SPAN // 2, differences)], len(r))
    new = 4 * same < 3 * torch.minimum(_counts(e, len(r)), size[of])
    return end.scatter_reduce(0, of[new], r[new], "amin")


def _reached(begin: Tensor, follower: Tensor) -> Tensor:
    """Return the rows that can be reached from the rows `begin` by following `follower`, with pointer doubling."""
    starts = (follower >= 0).nonzero().view(-1)
    jump, last = torch.searchsorted(starts, follower[starts]), len(starts) - 1
    reached = torch.zeros(len(starts), dtype=torch.bool, device=starts.device)
    reached[torch.searchsorted(starts, begin)] = True
    for _ in range(last.bit_length()):
        reached[torch.where(reached, jump, last)] = True
        jump = jump[jump]
    return starts[:-1][reached[:-1]]


def _counts(of: Tensor, size: int) -> Tensor:
    """Return, for each number below `size`, how often it occurs in `of`."""
    return torch.zeros(size, dtype=torch.int64, device=of.device).index_add_(0, of, torch.ones_like(of))


def _before(counts: Tensor) -> Tensor:
    """Return the exclusive prefix sums of the counts."""
    return counts.cumsum(0) - counts


def _distinct(key: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the distinct keys in ascending order, the first position and the count of each, and the inverse index.

    The inverse index contains, for each element of `key`, the index of its distinct key.
    """
    ordered, places = torch.sort(key, stable=True)
    kinds, inverse, counts = torch.unique_consecutive(ordered, return_inverse=True, return_counts=True)
    which = torch.empty_like(inverse)
    which[places] = inverse
    return kinds, places[_before(counts)], counts, which


def _rank(part: Tensor, place: Tensor, parts: int) -> Tensor:
    """Return for each item the number of items of the same part with a smaller place; each place is below SPAN."""
    sequence = torch.sort(part * SPAN + place).indices
    rank = torch.empty_like(place)
    rank[sequence] = torch.arange(len(place), device=place.device)
    return rank - _before(_counts(part, parts))[part]


@dataclass(frozen=True, slots=True)
class RunSlots:
    """The slots for runs in the chunks of a piece. A run is a difference column - row that many rows of a part have.

    part         the part of each run: 2c for L of chunk c, 2c + 1 for U
    number       the index of each run among the runs of its part
    difference   column - row
    counts       the number of runs in each part
    """

    part: Tensor
    number: Tensor
    difference: Tensor
    counts: Tensor


@dataclass(frozen=True, slots=True)
class OtherSlots:
    """The slots for entries that belong to no run.

    Near slots store 16-bit offsets of columns, and far slots store 32-bit columns.

    part     the part of each slot: 2c for L of chunk c, 2c + 1 for U
    low      the smallest column in each slot, from which near slots store offsets
    near     whether each slot is near
    number   the index of each slot among these slots of its part; near slots come first
    counts   the number of these slots in each part
    nears    the number of near slots in each part
    """

    part: Tensor
    low: Tensor
    near: Tensor
    number: Tensor
    counts: Tensor
    nears: Tensor


def packed(rows: DeviceRows, starts: np.ndarray, storage: str, values: str) -> PackedChunks:
    """Divide the rows into chunks, and return the packed entries with values rounded to a precision."""
    begins = chunks_of(rows, starts, storage)
    ends = torch.cat([begins, begins.new_full((1,), rows.n)])[1:]
    group = rows.group_of(begins)
    widest = _widest(rows, len(starts) - 1)[group] if pack.STORAGES[storage] == pack.ELL else None
    counts, pieces = [], []
    for a, b in pairwise([0, *_cut(rows.ends[ends]), len(begins)]):
        slots = None if widest is None else widest[a:b].view(-1)
        piece = _piece(rows, begins[a:b], ends[a:b], slots, adaptive=pack.STORAGES[storage] == pack.PACKED)
        counts.append(piece[0])
        pieces.append((*piece[1:4], narrowed(piece[4], values).view(torch.uint8)))  # torch does not join all formats
    runs, nears, fars = torch.cat(counts).view(-1, 2, 3).unbind(2)
    numbers = [_before(slots.sum(1)) for slots in (runs + nears + fars, nears, fars)]
    table = torch.cat([torch.stack([begins, ends - begins, *numbers], 1), torch.cat(counts)], 1).to(torch.int32)
    bases, near, far, entries = (torch.cat(parts) for parts in zip(*pieces))
    return PackedChunks(table, group, bases, near, far, entries.view(TYPES[values]))


def _widest(rows: DeviceRows, groups: int) -> Tensor:
    """Return the numbers of ELLPACK slots per group, one for L and one for U.

    These are the largest numbers of entries that any row of the group has in L and in U.
    """
    widest = torch.zeros(groups, 2, dtype=torch.int64, device=rows.old.device)
    for r in _pieces(rows):
        e, j, _ = rows.off_diagonal(r)
        g = rows.group_of(r)
        counts = _counts(2 * e + (j >= rows.starts[g][e]).long(), 2 * len(r)).view(-1, 2)
        widest.scatter_reduce_(0, g[:, None].expand(-1, 2), counts, "amax")
    return widest


def _piece(
    rows: DeviceRows, begins: Tensor, ends: Tensor, slots: Tensor | None, *, adaptive: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Pack successive chunks: return slot counts of L and U, bases, near and far columns, and values in fp64.

    Part 2c is L of chunk c, and part 2c + 1 is U. Within a part, runs precede near slots, and near slots precede far
    slots. If `slots` is given, it is the number of far slots in each part.
    """
    r, chunk = ranges(begins, ends - begins)
    e, column, k = rows.off_diagonal(r)
    row, chunk = r[e], chunk[e]
    part = 2 * chunk + (column >= rows.starts[rows.group_of(begins)][chunk]).long()
    lane, parts = row - begins[chunk], 2 * len(begins)

    run, runs = _runs(part, column - row, begins, ends, rows.n + rows.halo, adaptive=adaptive)
    rest = (run < 0).nonzero().view(-1)
    slot, others = _others(part[rest], e[rest], column[rest], parts, adaptive=adaptive)
    fars = others.counts - others.nears if slots is None else slots

    counts = torch.stack([runs.counts, others.nears, fars], 1)
    first, first_near, first_far = _before(counts.sum(1)), _before(others.nears), _before(fars)
    size, nears, far_slots = torch.stack([counts.sum(), others.nears.sum(), fars.sum()]).tolist()
    bases = torch.zeros(size, dtype=torch.int32, device=row.device)
    near = torch.zeros(nears * LANES, dtype=torch.int16, device=row.device)
    far = torch.zeros(far_slots * LANES, dtype=torch.int32, device=row.device)
    entries = torch.zeros(size * LANES, dtype=torch.float64, device=row.device)

    bases[first[runs.part] + runs.number] = runs.difference.to(torch.int32)
    p, number = others.part, others.number
    bases[(first[p] + runs.counts[p] + number)[others.near]] = others.low[others.near].to(torch.int32)
    run[rest] = runs.counts[part[rest]] + number[slot]
    entries[(first[part] + run) * LANES + lane] = rows.data(k)
    place, column, is_near = lane[rest], column[rest], others.near[slot]
    of_near = (first_near[p] + number)[slot] * LANES + place
    of_far = (first_far[p] + number - others.nears[p])[slot] * LANES + place
    apart = column - others.low[slot]  # unsigned numbers in a signed type
    near[of_near[is_near]] = ((apart ^ 2**15) - 2**15)[is_near].to(torch.int16)
    far[of_far[~is_near]] = column[~is_near].to(torch.int32)
    return counts.view(-1, 6), bases, near, far, entries


def _runs(
    part: Tensor, difference: Tensor, begins: Tensor, ends: Tensor, columns: int, *, adaptive: bool
) -> tuple[Tensor, RunSlots]:
    """Return the run index of each entry (-1 for an entry outside of runs), and the runs in order of appearance."""
    parts = 2 * len(begins)
    if not adaptive:
        none = difference.new_empty(0)
        return torch.full_like(difference, -1), RunSlots(none, none, none, difference.new_zeros(parts))
    kinds, place, count, which = _distinct(part * SPAN + difference + SPAN // 2)
    p, d = kinds // SPAN, kinds % SPAN - SPAN // 2
    c = p // 2
    # Lanes of rows without the entry also read x at this column, so it must exist. x has LANES numbers beyond its last
    # entry.
    exists = (begins[c] + d >= 0) & (begins[c] + d <= columns)
    kept = (_rank(p, place, parts) < pack.MAX_DIFFERENCES) & (pack.SHARE * count >= (ends - begins)[c]) & exists
    number = torch.full_like(kinds, -1)
    number[kept] = _rank(p[kept], place[kept], parts)
    return number[which], RunSlots(p[kept], number[kept], d[kept], _counts(p[kept], parts))


def _others(part: Tensor, row: Tensor, column: Tensor, parts: int, *, adaptive: bool) -> tuple[Tensor, OtherSlots]:
    """Assign the entries outside of runs to slots. Return the slot of each entry, and a description of the slots.

    Slot s of a part contains the s-th of these entries of every row.
    """
    places = torch.arange(len(part), device=part.device)
    rows = int(row[-1]) + 1 if len(row) else 0
    s = _rank(2 * row + part % 2, places, 2 * rows)
    counts = torch.zeros(parts, dtype=torch.int64, device=part.device).scatter_reduce_(0, part, s + 1, "amax")
    slot = _before(counts)[part] + s
    s, p = ranges(torch.zeros_like(counts), counts)
    low = torch.full_like(s, SPAN).scatter_reduce_(0, slot, column, "amin")
    high = torch.zeros_like(s).scatter_reduce_(0, slot, column, "amax")
    near = (high - low < pack.NEAR_SPAN) & (s < MAX_NEAR)
    if not adaptive:
        near.fill_(False)
    nears = _counts(p[near], parts)
    before = _before(near.long()) - _before(nears)[p]  # near slots before it in its part
    number = torch.where(near, before, nears[p] + s - before)
    return slot, OtherSlots(p, low, near, number, counts, nears)
