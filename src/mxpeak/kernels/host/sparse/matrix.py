"""A sparse matrix as the host stores it, and its values in other formats."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from mxpeak.kernels.host.sparse import chunk_format as pack
from mxpeak.kernels.host.sparse import gs_csr as natural
from mxpeak.kernels.host.sparse.slot_format import BEFORE, COUNTS, LATER, NEXT, PARTS, STRAYS
from mxpeak.kernels.host.sparse.slot_sums import LANES, SUCCESSIVE

Array = np.ndarray[Any, np.dtype[Any]]

#: The type of each format, and as what compiled code gets it.
FORMATS: dict[str, tuple[Any, Any]] = {
    "fp64": (np.dtype(np.float64), np.dtype(np.float64)),
    "fp32": (np.dtype(np.float32), np.dtype(np.float32)),
    "bf16": (np.dtype(ml_dtypes.bfloat16), np.dtype(np.int16)),
    "fp16": (np.dtype(np.float16), np.dtype(np.uint16)),
    "fp8": (np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(np.uint8)),
}
VECTORS: dict[str, np.dtype[Any]] = {"fp64": np.dtype(np.float64), "fp32": np.dtype(np.float32)}
#: Entries that are rounded at a time, so that no second array as large as the matrix comes to be.
PIECE = 2**22
#: Bytes of a cache line.
LINE = 64


@dataclass(frozen=True, slots=True)
class Pattern:
    """Where a matrix has entries, as `sparse_pack` tells it, and in which order sweeps go through the chunks.

    every              the chunks in the order of a sweep, and where its steps begin, which threads take together
    early, late        the same of those that need nothing of other ranks, and of the others
    first_from_zero    the same of those that rows beside other ranks need in a sweep from zero, with their own
    rest_from_zero     the same of the others
    rows_in_turn       the chunks by window, for whatever may take them in any order
    """

    storage: str
    table: Array
    bases: Array
    near: Array
    far: Array
    every: tuple[Array, Array]
    early: tuple[Array, Array]
    late: tuple[Array, Array]
    first_from_zero: tuple[Array, Array]
    rest_from_zero: tuple[Array, Array]
    rows_in_turn: Array
    halo_rows: Array
    halo_first: Array
    halo_columns: Array

    @property
    def bytes(self) -> int:
        """Of all that tells columns."""
        return int(sum(array.nbytes for array in (self.table, self.bases, self.near, self.far)))

    @property
    def lower(self) -> int:
        """Values stored of L."""
        return LANES * int(self.table[:, pack.L_PART : pack.L_PART + 3].sum(dtype=np.int64))

    @property
    def upper(self) -> int:
        """Values stored of U."""
        return LANES * int(self.table[:, pack.U_PART : pack.U_PART + 3].sum(dtype=np.int64))

    @property
    def arrays(self) -> tuple[Array, ...]:
        """As the sweeps take them."""
        return self.table, self.bases, self.near, self.far

    @property
    def halo_arrays(self) -> tuple[Array, ...]:
        """Rows, where their entries begin, and columns of H."""
        return self.halo_rows, self.halo_first, self.halo_columns


@dataclass(frozen=True, slots=True)
class InTurn:
    """Units of successive rows, which are swept one after the other: whose they are, and what meets other ranks.

    owner                the thread of each unit in a sweep
    forward, backward    how far the others have to be before it
    every                the units of a sweep, first and end
    early, late          the same of those that need nothing of other ranks, and of the others
    """

    owner: Array
    forward: Array
    backward: Array
    every: tuple[int, int]
    early: tuple[int, int]
    late: tuple[int, int]
    halo_rows: Array
    halo_first: Array
    halo_columns: Array

    @property
    def first_from_zero(self) -> tuple[int, int]:
        """All: rows beside other ranks come last, and in a sweep from zero nearly all others are needed there."""
        return self.every

    @property
    def rest_from_zero(self) -> tuple[int, int]:
        """None."""
        return self.every[1], self.every[1]

    @property
    def halo_arrays(self) -> tuple[Array, ...]:
        """Rows, where their entries begin, and columns of H."""
        return self.halo_rows, self.halo_first, self.halo_columns


@dataclass(frozen=True, slots=True)
class RowPattern(InTurn):
    """Where a matrix stored by rows has entries, as `sparse_natural` tells it.

    units                where units of successive rows begin, and all ends
    in_lower, in_upper   entries of L and of U in each row
    """

    units: Array
    in_lower: Array
    in_upper: Array
    columns: Array
    storage: str = "rows"

    @property
    def bytes(self) -> int:
        """Of all that tells columns."""
        return int(sum(array.nbytes for array in self.arrays))

    @property
    def lower(self) -> int:
        """Values stored of L."""
        return int(self.units[-1, natural.LOWER])

    @property
    def upper(self) -> int:
        """Values stored of U."""
        return int(self.units[-1, natural.UPPER]) - self.lower

    @property
    def arrays(self) -> tuple[Array, ...]:
        """As the sweeps take them."""
        return self.units, self.in_lower, self.in_upper, self.columns


@dataclass(frozen=True, slots=True)
class SuccessivePattern(InTurn):
    """Where a matrix has entries, as `sparse_slots` tells it; units are those of successive chunks."""

    storage: str
    units: Array
    table: Array
    bases: Array
    far: Array

    @property
    def bytes(self) -> int:
        """Of all that tells columns."""
        return int(sum(array.nbytes for array in (self.units, *self.arrays)))

    @property
    def lower(self) -> int:
        """Values stored of L."""
        return SUCCESSIVE * self._slots(BEFORE, LATER) + int(self._strays[:, 0].sum())

    @property
    def upper(self) -> int:
        """Values stored of U."""
        slots = self._slots(LATER, PARTS)
        apart = int((-(-self._strays.sum(axis=1) // SUCCESSIVE)).sum())  # strays of L and U share a chunk's slots
        return SUCCESSIVE * (slots + apart) - int(self._strays[:, 0].sum())

    def _slots(self, first: np.int64, end: np.int64) -> int:
        """Of L or U: parts first … end-1."""
        return int(self.table[:, COUNTS + 2 * first : COUNTS + 2 * end].sum(dtype=np.int64))

    @property
    def _strays(self) -> Array:
        """Of each chunk, before it and after it."""
        return self.table[:, COUNTS + STRAYS : COUNTS + NEXT].astype(np.int64)

    @property
    def arrays(self) -> tuple[Array, ...]:
        """As the sweeps take them."""
        return self.table, self.bases, self.far


@dataclass(frozen=True, slots=True)
class Points:
    """The entries of some rows in some parts once more, as `sparse_points` has them: its arrays, and the values."""

    arrays: tuple[Array, ...]
    values: Array

    @property
    def bytes(self) -> int:
        """Of everything."""
        return int(sum(array.nbytes for array in (*self.arrays, self.values)))


@dataclass(frozen=True, slots=True)
class Coarse:
    """Some rows at which residuals are asked for, and what is found out about them once.

    halo_targets    where the residuals of the halo's rows go, -1: nowhere
    where           where they stand in the matrix
    points          their entries by the parts that were asked for; of few rows, swept in the natural order
    """

    rows: Array
    halo_targets: Array
    where: tuple[Array, Array]
    points: dict[int, Points] = field(default_factory=dict)


@dataclass(slots=True, repr=False)
class HostMatrix:
    """A matrix of this rank, stored: see `kernels.contract.sparse.Stored`."""

    n: int
    halo: int
    nnz: int
    values: str
    vectors: str
    pattern: Pattern | RowPattern | SuccessivePattern
    entries: Array
    diagonal: Array
    halo_entries: Array
    coarse: list[Coarse] = field(default_factory=list)

    @property
    def storage(self) -> str:
        """How its columns are told."""
        return self.pattern.storage

    @property
    def rows_at_a_time(self) -> int:
        """Rows whose entries stand side by side."""
        return {RowPattern: 1, SuccessivePattern: SUCCESSIVE, Pattern: LANES}[type(self.pattern)]

    @property
    def bytes(self) -> int:
        """Of everything."""
        pattern = self.pattern
        others = (self.entries, self.diagonal, self.halo_entries, pattern.halo_columns, pattern.halo_first)
        points = sum(points.bytes for known in self.coarse for points in known.points.values())
        return pattern.bytes + int(sum(array.nbytes for array in others)) + points

    @property
    def index_bytes(self) -> int:
        """Of what tells the columns."""
        return self.pattern.bytes

    def extra_bytes(self, other: HostMatrix) -> int:
        """What it takes in addition to another form, with which it may share columns and values."""
        shared = other.pattern.bytes + other.entries.nbytes if self.entries is other.entries else 0
        return self.bytes - shared

    @property
    def halo_nnz(self) -> int:
        """Entries of H."""
        return int(self.halo_entries.size)

    @property
    def lower(self) -> int:
        """Values stored of L."""
        return self.pattern.lower

    @property
    def upper(self) -> int:
        """Values stored of U."""
        return self.pattern.upper


def aligned(size: int, dtype: Any) -> Array:
    """Zeros that begin with a cache line: vector loads then touch no second one."""
    itemsize = np.dtype(dtype).itemsize
    raw = np.zeros(size * itemsize + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start : start + size * itemsize].view(dtype)


def as_bits(values: Array) -> Array:
    """Values as compiled code takes those that it only moves: one form of it for all types of a width."""
    return values.view(f"u{values.itemsize}")


def rounded(data: Array, dtype: Any) -> Array:
    """Values in a format, rounded to nearest even, once."""
    if data.dtype == dtype:
        return data
    out = np.empty(data.size, dtype)
    with np.errstate(all="ignore"):
        for k in range(0, data.size, PIECE):
            part = data[k : k + PIECE]
            out[k : k + PIECE] = _odd(part) if dtype.kind == "V" else part
    return out


def _odd(a: Array) -> Array:
    """fp64 numbers cut off to fp32, the last bit set where something was lost: rounded once more, they are right.

    ml_dtypes' formats are made of fp32, and two roundings to nearest are not one.
    """
    near = a.astype(np.float32)
    bits = near.view(np.int32)
    bits -= np.abs(near.astype(np.float64)) > np.abs(a)  # towards zero
    bits |= (near.astype(np.float64) != a) & np.isfinite(near)
    return near
