"""A sparse matrix on a device: the host's chunks, and its values in other formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mxpeak.kernels.host.sparse.slot_sums import LANES
from mxpeak.kernels.torch.engine.cuda_graphs import Replay
from mxpeak.kernels.torch.engine.device import TYPES

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
    first_from_zero      those that rows beside other ranks need in a sweep from zero, with their own
    rest_from_zero       the others
    in_turn              the chunks by their rows' natural order, for a product, which then reads x once
    kinds                which kinds of slots there are: RUNS, NEARS, FARS
    columns              every slot's columns, where no Triton kernel makes them out of bases, near and far
    """

    storage: str
    bases: Tensor
    near: Tensor
    far: Tensor
    every: Steps
    in_turn: Tensor
    early: Steps
    late: Steps
    first_from_zero: Steps
    rest_from_zero: Steps
    lower: int
    upper: int
    kinds: int
    columns: Tensor | None
    surface: Surface
    halo_first: Tensor
    halo_columns: Tensor

    @property
    def index_bytes(self) -> int:
        """Of what a product reads to tell columns."""
        return sum(bytes_of(one) for one in (self.every.table, self.bases, self.near, self.far))

    @property
    def bytes(self) -> int:
        """Of everything."""
        halves = 0
        if self.early is not self.every:
            halves = sum(
                bytes_of(one.table) for one in (self.early, self.late, self.first_from_zero, self.rest_from_zero)
            )
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


def bytes_of(tensor: Tensor) -> int:
    """Of a tensor's own entries."""
    return int(tensor.numel() * tensor.element_size())


def _both(surface: Surface) -> tuple[Tensor, Tensor]:
    return surface.numbers, surface.targets


# --- values -----------------------------------------------------------------------------------------------------


def narrowed(entries: Tensor, precision: str) -> Tensor:
    """fp64 numbers in another format, rounded to nearest even, once."""
    dtype = TYPES[precision]
    if dtype == entries.dtype:
        return entries
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
