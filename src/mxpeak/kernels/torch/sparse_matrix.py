"""A sparse matrix on a device: the host's chunks (`kernels/host/sparse_pack.py`), each colour's launch after the other.

A launch takes all chunks of a group, which are independent; windows, by which the host keeps x in its cache, would only
make launches shorter.  What a launch goes through stands in a table of its own, so that no chunk is looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from mxpeak.kernels.contract.sparse import Order
from mxpeak.kernels.host import sparse_pack as pack
from mxpeak.kernels.host.sparse_matrix import HostMatrix, Pattern
from mxpeak.kernels.host.sparse_native import LANES
from mxpeak.kernels.torch.device import TYPES, Device
from mxpeak.kernels.torch.replay import Replay

Array = np.ndarray[Any, np.dtype[Any]]
Tensor = Any

#: Integers as wide as a stored value, and bits of the kinds of slots that a matrix has.
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
RUNS, NEARS, FARS = 1, 2, 4
#: Entries that are rounded at a time.
PIECE = 2**24


@dataclass(frozen=True, slots=True)
class Slots:
    """One part, L or U, of some chunks: the numbers of its slots, and how many each chunk has of them."""

    numbers: Tensor
    counts: Tensor


@dataclass(frozen=True, slots=True)
class Chunks:
    """Some chunks as torch's own operations take them: their rows, where these stand among all lanes; L and U."""

    rows: Tensor
    lanes: Tensor
    lower: Slots
    upper: Slots


@dataclass(frozen=True, slots=True)
class Steps:
    """Chunks in the order of a sweep: step s takes rows bounds[s] … bounds[s+1]-1 of the table.

    `chunks` has every step's, where no Triton kernel reads the table.
    """

    table: Tensor
    bounds: list[int]
    chunks: list[Chunks]

    @property
    def count(self) -> int:
        """How many steps there are."""
        return len(self.bounds) - 1


@dataclass(frozen=True, slots=True)
class TorchPattern:
    """Where a matrix has entries.

    every, early, late   the chunks, those that need nothing of other ranks, the others
    in_turn              the chunks by their rows' natural order, for a product, which then reads x once
    kinds                which kinds of slots there are: RUNS, NEARS, FARS
    columns              every slot's columns, where no Triton kernel makes them out of bases, near and far
    host                 what the host has to know of the pattern to store other values in it
    """

    storage: str
    bases: Tensor
    near: Tensor
    far: Tensor
    every: Steps
    in_turn: Tensor
    early: Steps
    late: Steps
    lower: int
    upper: int
    kinds: int
    columns: Tensor | None
    surface: Surface
    halo_first: Tensor
    halo_columns: Tensor
    host_table: Array
    host: Pattern

    @property
    def index_bytes(self) -> int:
        """Of what a product reads to tell columns."""
        return sum(bytes_of(one) for one in (self.every.table, self.bases, self.near, self.far))

    @property
    def bytes(self) -> int:
        """Of everything."""
        halves = 0 if self.early is self.every else bytes_of(self.early.table) + bytes_of(self.late.table)
        parts = (*_both(self.surface), self.halo_first, self.halo_columns, self.columns)
        return self.index_bytes + halves + sum(bytes_of(one) for one in parts if one is not None)


@dataclass(frozen=True, slots=True)
class Surface:
    """Some of the rows that have entries from other ranks: which of them, and where what they meet there goes."""

    numbers: Tensor
    targets: Tensor


@dataclass(frozen=True, slots=True)
class Coarse:
    """Some rows of a matrix: where each row's residual goes (-1: nowhere), and the chunks that have any."""

    rows: Tensor
    targets: Tensor
    steps: Steps
    surface: Surface


@dataclass(slots=True, repr=False, eq=False)
class TorchMatrix:
    """A matrix of this rank on a device: see `kernels.contract.sparse.Stored`.

    replay   its operations as graphs
    Hx       memory for H x, zero in the rows that have no H
    """

    n: int
    halo: int
    nnz: int
    values: str
    vectors: str
    pattern: TorchPattern
    entries: Tensor
    diagonal: Tensor
    halo_entries: Tensor
    replay: Replay
    Hx: Tensor | None = None
    coarse: list[Coarse] = field(default_factory=list)

    @property
    def storage(self) -> str:
        """How its columns are told."""
        return self.pattern.storage

    @property
    def rows_at_a_time(self) -> int:
        """Rows whose entries stand side by side."""
        return LANES

    @property
    def halo_nnz(self) -> int:
        """Entries of H."""
        return int(self.halo_entries.numel())

    @property
    def lower(self) -> int:
        """Values stored of L."""
        return self.pattern.lower

    @property
    def upper(self) -> int:
        """Values stored of U."""
        return self.pattern.upper

    @property
    def index_bytes(self) -> int:
        """Of what tells the columns."""
        return self.pattern.index_bytes

    @property
    def bytes(self) -> int:
        """Of everything."""
        found = [self.entries, self.diagonal, self.halo_entries]
        for one in self.coarse:
            found += [one.targets, one.steps.table, *_both(one.surface)]
        if self.Hx is not None:
            found.append(self.Hx)
        return self.pattern.bytes + sum(map(bytes_of, found))

    def extra_bytes(self, other: TorchMatrix) -> int:
        """What it takes in addition to another form, with which it may share columns and values."""
        shared = self.pattern.bytes if self.pattern is other.pattern else 0
        return self.bytes - shared - (bytes_of(self.entries) if self.entries is other.entries else 0)

    def for_host(self, values: str) -> HostMatrix:
        """This matrix without its entries, as if of other values: the host then makes D and H, and nothing else."""
        nothing = np.empty(0)
        return HostMatrix(
            self.n, self.halo, self.nnz, values, self.vectors, self.pattern.host, nothing, nothing, nothing
        )


def bytes_of(tensor: Tensor) -> int:
    """Of a tensor's own entries."""
    return int(tensor.numel() * tensor.element_size())


def _both(surface: Surface) -> tuple[Tensor, Tensor]:
    return surface.numbers, surface.targets


# --- making them ------------------------------------------------------------------------------------------------


def pattern_of(device: Device, pattern: Pattern, order: Order) -> TorchPattern:
    """The host's pattern on the device."""
    table = pattern.table
    group = np.searchsorted(order.starts, table[:, pack.ROW], side="right") - 1
    every = steps_of(device, table, group)
    early = late = every
    in_turn = device.tensor(table[np.argsort(order.new_to_old[table[:, pack.ROW]])])
    if pattern.halo_rows.size:
        early, late = (
            steps_of(device, table[chunks], group[chunks])
            for chunks in (np.sort(pattern.early[0]), np.sort(pattern.late[0]))
        )
    counts = table[:, pack.L_PART : pack.L_PART + 6].sum(axis=0, dtype=np.int64).tolist()
    kinds = sum(kind for kind, k in ((RUNS, 0), (NEARS, 1), (FARS, 2)) if counts[k] + counts[k + 3])
    return TorchPattern(
        pattern.storage,
        device.tensor(pattern.bases),
        device.tensor(pattern.near.view(np.int16)),
        device.tensor(pattern.far),
        every,
        in_turn,
        early,
        late,
        LANES * sum(counts[:3]),
        LANES * sum(counts[3:]),
        kinds,
        None if device.triton else device.tensor(columns_of(pattern)),
        surface_of(device, pattern.halo_rows),
        device.tensor(pattern.halo_first),
        device.tensor(pattern.halo_columns),
        table,
        _without_columns(pattern),
    )


def surface_of(device: Device, targets: Array) -> Surface:
    """The rows with entries from other ranks whose targets are not -1."""
    numbers = np.flatnonzero(targets >= 0).astype(np.int32)
    return Surface(device.tensor(numbers), device.tensor(targets[numbers]))


def _without_columns(pattern: Pattern) -> Pattern:
    """What is left of a pattern for D and H of other values."""
    nothing = np.empty(0, np.int32)
    steps = (nothing, nothing)
    return replace(
        pattern,
        table=nothing,
        bases=nothing,
        near=nothing,
        far=nothing,
        every=steps,
        early=steps,
        late=steps,
        rows_in_turn=nothing,
    )


def steps_of(device: Device, table: Array, group: Array, targets: Array | None = None) -> Steps:
    """Chunks, one step for each of the ascending groups that they are of; of some rows where there are targets.

    Every other group goes backwards through its rows: what the group before it met last is still in the cache.
    """
    turn = np.arange(len(table))
    table = table[np.lexsort((np.where(group % 2, -turn, turn), group))]
    bounds = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(table)] if len(table) else [0]
    pairs = [] if device.triton else list(pairwise(bounds))
    return Steps(device.tensor(table), bounds, [chunks_of(device, table[first:end], targets) for first, end in pairs])


def chunks_of(device: Device, table: Array, targets: Array | None) -> Chunks:
    """Rows of the table as torch's own operations take them; without rows whose target is -1."""
    lane = np.arange(LANES)
    rows = table[:, pack.ROW, None].astype(np.int64) + lane
    lanes = np.flatnonzero(lane < table[:, pack.ROWS, None])
    if targets is not None:
        lanes = lanes[targets[rows.ravel()[lanes]] >= 0]
    first = table[:, pack.SLOT].astype(np.int64)
    lower, upper = (table[:, k : k + 3].sum(axis=1, dtype=np.int64) for k in (pack.L_PART, pack.U_PART))
    parts = [
        Slots(device.tensor(ranges(at, count)), device.tensor(count))
        for at, count in ((first, lower), (first + lower, upper))
    ]
    return Chunks(device.tensor(rows.ravel()[lanes]), device.tensor(lanes), *parts)


def ranges(first: Array, counts: Array) -> Array:
    """first_0, first_0 + 1, … counts_0 of them; then those of the next."""
    ends = np.cumsum(counts)
    numbers: Array = np.arange(ends[-1] if ends.size else 0) + np.repeat(first - (ends - counts), counts)
    return numbers


def columns_of(pattern: Pattern) -> Array:
    """The columns of every slot's lanes, by slot."""
    table = pattern.table
    counts = table[:, pack.L_PART : pack.L_PART + 6]
    kind = np.repeat(np.tile(np.arange(6) % 3, len(table)), counts.ravel())
    row = np.repeat(table[:, pack.ROW], counts.sum(axis=1))
    columns = np.repeat(pattern.bases[:, None], LANES, axis=1)
    columns[kind == 0] += row[kind == 0, None] + np.arange(LANES, dtype=np.int32)
    columns[kind == 1] += pattern.near.reshape(-1, LANES)
    columns[kind == 2] = pattern.far.reshape(-1, LANES)
    return columns


def coarse_of(device: Device, A: TorchMatrix, rows: Tensor) -> Coarse:
    """For some rows of a matrix what its residual there takes: found once."""
    for known in A.coarse:
        if known.rows is rows:
            return known
    table, count = A.pattern.host_table, rows.numel()
    targets = np.full(A.n, -1, np.int32)
    targets[rows.cpu().numpy()] = np.arange(count, dtype=np.int32)
    starts = table[:, pack.ROW]
    chunks = np.flatnonzero(np.maximum.reduceat(targets, starts) >= 0) if A.n else np.empty(0, np.int64)
    steps = steps_of(device, table[chunks], np.zeros(len(chunks)), targets)
    surface = surface_of(device, targets[A.pattern.host.halo_rows])
    A.coarse.append(Coarse(rows, device.tensor(targets), steps, surface))
    return A.coarse[-1]


# --- values -----------------------------------------------------------------------------------------------------


def entries_of(device: Device, stored: HostMatrix) -> Tensor:
    """The host's values, which it has as integers where NumPy lacks their format."""
    bits = torch.as_tensor(stored.entries.view(_SIGNED.get(stored.entries.dtype.str, stored.entries.dtype)))
    return bits.view(TYPES[stored.values]).to(device.where, copy=True)


#: torch knows few unsigned integers.
_SIGNED = {np.dtype(np.uint16).str: np.int16}


def narrowed(entries: Tensor, precision: str) -> Tensor:
    """fp64 numbers in another format, rounded to nearest even, once."""
    dtype = TYPES[precision]
    out = torch.empty(entries.shape, dtype=dtype, device=entries.device)
    for k in range(0, entries.numel(), PIECE):
        part = entries[k : k + PIECE]
        out[k : k + PIECE] = (part if dtype == torch.float32 else _odd(part)).to(dtype)
    return out


def _odd(a: Tensor) -> Tensor:
    """fp64 numbers cut off to fp32, the last bit set where something was lost: rounded once more, they are right."""
    near = a.to(torch.float32)
    bits = near.view(torch.int32)
    bits -= (near.to(torch.float64).abs() > a.abs()).to(torch.int32)  # towards zero
    bits |= ((near.to(torch.float64) != a) & near.isfinite()).to(torch.int32)
    return near


def parts_of(steps: Steps, *, backward: bool) -> Sequence[int]:
    """The steps of a sweep in its direction."""
    return range(steps.count)[::-1] if backward else range(steps.count)
