"""Define the data structures of a sparse matrix on a device, and round its values to narrower formats.

The entries are in the same chunks and slots as on the host; see `kernels.host.sparse.chunk_format`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from mxpeak.kernels.contract.sparse import Part
from mxpeak.kernels.host.sparse.chunk_format import UPPER
from mxpeak.kernels.host.sparse.slot_sums import LANES
from mxpeak.kernels.torch.engine.cuda_graphs import Replay
from mxpeak.kernels.torch.engine.device import TYPES

Tensor = Any

#: The integer type with the width of a stored value.
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
#: Entries that are rounded at a time.
PIECE = 2**24


@dataclass(frozen=True, slots=True)
class PartSlots:
    """The slots of L or of U of some chunks: the slot numbers, and the number of slots per chunk."""

    numbers: Tensor
    counts: Tensor


@dataclass(frozen=True, slots=True)
class StepChunks:
    """Chunks for torch operations: their rows, the positions of these rows among all lanes, and their slots."""

    rows: Tensor
    lanes: Tensor
    lower: PartSlots
    upper: PartSlots


@dataclass(frozen=True, slots=True)
class SweepSteps:
    """Chunks in the order of a sweep: step s has the lines bounds[s] … bounds[s+1]-1 of the table.

    `chunks` contains the chunks of every step for torch operations; it is empty if a Triton kernel reads the table.
    """

    table: Tensor
    bounds: list[int]
    chunks: list[StepChunks]

    @property
    def count(self) -> int:
        """Return the number of steps."""
        return len(self.bounds) - 1

    def sequence(self, parts: int) -> Sequence[int]:
        """Return the indices of the steps in execution order, which is reversed for a sweep over only U."""
        return range(self.count)[::-1] if parts == UPPER else range(self.count)


@dataclass(frozen=True, slots=True)
class TorchPattern:
    """The sparsity pattern of a matrix in chunks, and the order of its sweeps.

    steps                the steps of a sweep, by `Part`
    from_zero            the steps of a sweep from zero, by `Part`; BOUNDARY contains the chunks with entries in the
                         halo, and the chunks on which these depend
    in_turn              the chunks in the natural order of their rows, so that a product reads x once
    kinds                the kinds of slots that occur: RUNS, NEARS, FARS
    columns              the columns of every slot, or None if Triton kernels compute them from bases, near and far
    """

    storage: str
    bases: Tensor
    near: Tensor
    far: Tensor
    steps: tuple[SweepSteps, SweepSteps, SweepSteps]
    from_zero: tuple[SweepSteps, SweepSteps, SweepSteps]
    in_turn: Tensor
    lower: int
    upper: int
    kinds: int
    columns: Tensor | None
    surface: Surface
    halo_first: Tensor
    halo_columns: Tensor

    @property
    def index_bytes(self) -> int:
        """Return the size, in bytes, of the arrays from which a product reads columns."""
        return sum(bytes_of(array) for array in (self.steps[Part.ALL].table, self.bases, self.near, self.far))

    @property
    def bytes(self) -> int:
        """Return the size of all arrays of the pattern in bytes."""
        halves = 0
        if self.steps[Part.INTERIOR] is not self.steps[Part.ALL]:
            halves = sum(bytes_of(steps.table) for steps in (*self.steps[1:], *self.from_zero[1:]))
        parts = (*self.surface, self.halo_first, self.halo_columns, self.columns)
        return self.index_bytes + halves + sum(bytes_of(array) for array in parts if array is not None)


class Surface(NamedTuple):
    """Selected rows of H: their numbers in H, and the positions at which their products with the halo are stored."""

    numbers: Tensor
    targets: Tensor


@dataclass(frozen=True, slots=True)
class Coarse:
    """Data for residuals at selected rows: the chunks with these rows, and the index of each row's residual.

    The index is -1 for rows that are not selected.
    """

    rows: Tensor
    targets: Tensor
    steps: SweepSteps
    surface: Surface


class SweepTask(NamedTuple):
    """A sweep x_i = (b_i - (H x)_i - Σ_L a_ij x_j - Σ_U a_ij x_j) / a_ii, step by step.

    In a backward sweep, `parts` omits L, and b is the vector `keep` of the forward sweep. In a sweep from zero,
    `parts` omits U. The vector `keep`, if given, is set to b_i - (H x)_i - Σ_L a_ij x_j.
    """

    steps: SweepSteps
    b: Tensor
    x: Tensor
    keep: Tensor | None
    parts: int


class ResidualTask(NamedTuple):
    """A residual r = b - (L + D + U) x at selected rows. Directly after a sweep, `parts` selects a shorter formula.

    UPPER   r = -U x              after a sweep from zero, (D + L) x = b
    LOWER   r = b - keep - L x    after a backward sweep, (D + U) x = keep
    """

    coarse: Coarse
    b: Tensor
    x: Tensor
    keep: Tensor | None
    r: Tensor
    parts: int


@dataclass(slots=True, repr=False, eq=False)
class TorchMatrix:
    """The sparse matrix of this rank on a device (see `kernels.contract.sparse.Stored`).

    replay   graphs of the matrix's operations
    Hx       memory for H x, zero in rows without entries of H
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
        return self.pattern.storage

    @property
    def rows_at_a_time(self) -> int:
        return LANES

    @property
    def halo_nnz(self) -> int:
        return int(self.halo_entries.numel())

    @property
    def lower(self) -> int:
        return self.pattern.lower

    @property
    def upper(self) -> int:
        return self.pattern.upper

    @property
    def index_bytes(self) -> int:
        return self.pattern.index_bytes

    @property
    def bytes(self) -> int:
        arrays = [self.entries, self.diagonal, self.halo_entries]
        for rows in self.coarse:
            arrays += [rows.targets, rows.steps.table, *rows.surface]
        if self.Hx is not None:
            arrays.append(self.Hx)
        return self.pattern.bytes + sum(map(bytes_of, arrays))

    def extra_bytes(self, other: TorchMatrix) -> int:
        shared = self.pattern.bytes if self.pattern is other.pattern else 0
        return self.bytes - shared - (bytes_of(self.entries) if self.entries is other.entries else 0)


def bytes_of(tensor: Tensor) -> int:
    """Return the size of a tensor's entries in bytes."""
    return int(tensor.numel() * tensor.element_size())


def narrowed(entries: Tensor, precision: str) -> Tensor:
    """Return fp64 numbers rounded once to a precision, to nearest even."""
    dtype = TYPES[precision]
    if dtype == entries.dtype:
        return entries
    out = torch.empty(entries.shape, dtype=dtype, device=entries.device)
    for k in range(0, entries.numel(), PIECE):
        part = entries[k : k + PIECE]
        out[k : k + PIECE] = (part if dtype == torch.float32 else _rounded_to_odd(part)).to(dtype)
    return out


def _rounded_to_odd(a: Tensor) -> Tensor:
    """Return fp64 numbers rounded to odd in fp32; a second rounding to nearest then gives the correct result."""
    near = a.to(torch.float32)
    bits = near.view(torch.int32)
    bits -= (near.to(torch.float64).abs() > a.abs()).to(torch.int32)  # toward zero
    bits |= ((near.to(torch.float64) != a) & near.isfinite()).to(torch.int32)
    return near
