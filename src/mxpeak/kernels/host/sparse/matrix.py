"""Store a sparse matrix on the host, and convert its values to other formats."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from mxpeak.kernels.host.sparse import gs_colored
from mxpeak.kernels.host.sparse.chunk_format import ChunkColumns, ChunkMatrix
from mxpeak.kernels.host.sparse.gs_colored import StepList
from mxpeak.kernels.host.sparse.natural import gs_csr, gs_simd
from mxpeak.kernels.host.sparse.natural.coarse_residual import ChunkCopies, RowCopies
from mxpeak.kernels.host.sparse.natural.gs_csr import CsrColumns, CsrMatrix
from mxpeak.kernels.host.sparse.natural.slot_format import SlotColumns, SlotMatrix
from mxpeak.kernels.host.sparse.rows import Halo
from mxpeak.kernels.host.sparse.slot_sums import LANES, SUCCESSIVE

Array = np.ndarray[Any, np.dtype[Any]]

#: The NumPy type of each format, and the NumPy type of the arrays that compiled code receives.
FORMATS: dict[str, tuple[Any, Any]] = {
    "fp64": (np.dtype(np.float64), np.dtype(np.float64)),
    "fp32": (np.dtype(np.float32), np.dtype(np.float32)),
    "bf16": (np.dtype(ml_dtypes.bfloat16), np.dtype(np.int16)),
    "fp16": (np.dtype(np.float16), np.dtype(np.uint16)),
    "fp8": (np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(np.uint8)),
}
VECTORS: dict[str, np.dtype[Any]] = {"fp64": np.dtype(np.float64), "fp32": np.dtype(np.float32)}
#: Entries that are rounded at a time, so that no second array of the matrix's size exists.
PIECE = 2**22
#: Bytes of a cache line.
LINE = 64


@dataclass(frozen=True, slots=True)
class ChunkPattern:
    """The columns of a matrix in chunks of independent rows, and the steps of its sweeps.

    steps       the steps of a sweep, by `Part`
    from_zero   the steps of a sweep from zero, by `Part`; BOUNDARY contains the chunks with rows next to other ranks,
                and the earlier chunks that these need
    by_window   the chunks in a cache-friendly order
    """

    storage: str
    columns: ChunkColumns
    steps: tuple[StepList, StepList, StepList]
    from_zero: tuple[StepList, StepList, StepList]
    by_window: Array
    halo: Halo

    @property
    def kernels(self) -> ModuleType:
        """Return the module with the compiled sweeps, products and residuals for this pattern."""
        return gs_colored

    @property
    def rows_at_a_time(self) -> int:
        """Return the number of rows whose entries are interleaved in memory."""
        return LANES


@dataclass(frozen=True, slots=True)
class NaturalPattern:
    """The columns of a matrix that is swept in the natural order, and the schedule of its sweeps.

    owner               the thread of each unit
    forward, backward   the progress of the other threads that each unit needs
    spans               first and end of the units of a sweep, by `Part`
    from_zero           first and end of the units of a sweep from zero. Rows next to other ranks come last and need
                        nearly all other rows, so BOUNDARY has all units if the halo is not empty.
    """

    storage: str
    columns: CsrColumns | SlotColumns
    owner: Array
    forward: Array
    backward: Array
    spans: tuple[tuple[int, int], ...]
    from_zero: tuple[tuple[int, int], ...]
    halo: Halo

    @property
    def kernels(self) -> ModuleType:
        """Return the module with the compiled sweeps, products and residuals for this pattern."""
        return gs_csr if isinstance(self.columns, CsrColumns) else gs_simd

    @property
    def rows_at_a_time(self) -> int:
        """Return the number of rows whose entries are interleaved in memory: 1 for compressed rows."""
        return 1 if isinstance(self.columns, CsrColumns) else SUCCESSIVE


@dataclass(frozen=True, slots=True)
class CoarseRows:
    """A subset of a matrix's rows, their positions in the matrix, and the positions of their residuals.

    halo_targets   the position of the residual of each row of H, or -1
    at             the rows' positions in the matrix, in the form that `kernels.residual` receives
    copies         by parts, a copy of the entries of the rows; only for few rows of a matrix swept in the natural order
    """

    rows: Array
    halo_targets: Array
    at: tuple[Array, ...]
    copies: dict[int, RowCopies | ChunkCopies] = field(default_factory=dict)


@dataclass(repr=False)
class HostMatrix:
    """A sparse matrix of this rank. See `kernels.contract.sparse.Stored` for the other fields.

    entries   the stored values of L and U
    arrays    the matrix as compiled code receives it; not a field, because checks exclude scratch memory
    """

    n: int
    halo: int
    nnz: int
    values: str
    vectors: str
    pattern: ChunkPattern | NaturalPattern
    entries: Array
    diagonal: Array
    halo_entries: Array
    scratch: InitVar[Array]
    coarse: list[CoarseRows] = field(default_factory=list)

    def __post_init__(self, scratch: Array) -> None:
        numbers = (*self.pattern.columns, self.entries, self.diagonal)
        self.arrays: ChunkMatrix | CsrMatrix | SlotMatrix
        if isinstance(self.pattern, ChunkPattern):
            self.arrays = ChunkMatrix._make((*numbers, self.pattern.by_window, scratch))
        elif isinstance(self.pattern.columns, CsrColumns):
            self.arrays = CsrMatrix._make(numbers)
        else:
            self.arrays = SlotMatrix._make((*numbers, scratch))

    @property
    def storage(self) -> str:
        """Return the name of the storage format, which determines how columns are encoded."""
        return self.pattern.storage

    @property
    def rows_at_a_time(self) -> int:
        """Return the number of rows whose entries are interleaved in memory."""
        return self.pattern.rows_at_a_time

    @property
    def bytes(self) -> int:
        """Return the size in bytes of all arrays of the matrix, including copies of coarse rows."""
        halo = self.pattern.halo
        others = (self.entries, self.diagonal, self.halo_entries, halo.columns, halo.first)
        copies = sum(copy.bytes for rows in self.coarse for copy in rows.copies.values())
        return self.index_bytes + sum(int(array.nbytes) for array in others) + copies

    @property
    def index_bytes(self) -> int:
        """Return the size in bytes of the arrays that encode the columns."""
        return sum(int(array.nbytes) for array in self.pattern.columns)

    def extra_bytes(self, other: HostMatrix) -> int:
        """Return the number of bytes that this matrix needs in addition to `other`.

        The two matrices may share columns and values.
        """
        shared = other.index_bytes + other.entries.nbytes if self.entries is other.entries else 0
        return self.bytes - shared

    @property
    def halo_nnz(self) -> int:
        """Return the number of entries of H, the part in columns of other ranks."""
        return int(self.halo_entries.size)

    @property
    def lower(self) -> int:
        """Return the number of stored values of L, including padding zeros."""
        return self.pattern.columns.lower

    @property
    def upper(self) -> int:
        """Return the number of stored values of U, including padding zeros."""
        return self.pattern.columns.upper


def aligned(size: int, dtype: Any) -> Array:
    """Return an array of zeros that begins at a cache line, so that vector loads do not cross a cache line."""
    itemsize = np.dtype(dtype).itemsize
    raw = np.zeros(size * itemsize + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start : start + size * itemsize].view(dtype)


def as_bits(values: Array) -> Array:
    """Return a view of values as unsigned integers, so that code that only copies is compiled once per width."""
    return values.view(f"u{values.itemsize}")


def rounded(data: Array, dtype: Any) -> Array:
    """Round fp64 or fp32 values to a NumPy type, to nearest even, with a single rounding."""
    if data.dtype == dtype:
        return data
    out = np.empty(data.size, dtype)
    with np.errstate(all="ignore"):
        for k in range(0, data.size, PIECE):
            part = data[k : k + PIECE]
            out[k : k + PIECE] = _rounded_to_odd(part) if dtype.kind == "V" else part
    return out


def _rounded_to_odd(a: Array) -> Array:
    """Round fp64 numbers to fp32 by rounding to odd: truncate, and set the last bit if the result is inexact.

    ml_dtypes rounds fp32 numbers to the narrow format. After rounding to odd, this second rounding gives the correctly
    rounded result. After rounding to nearest, it may not.
    """
    near = a.astype(np.float32)
    bits = near.view(np.int32)
    bits -= np.abs(near.astype(np.float64)) > np.abs(a)  # toward zero
    bits |= (near.astype(np.float64) != a) & np.isfinite(near)
    return near
