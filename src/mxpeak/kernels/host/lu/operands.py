"""Operands of 16 bits as the processor's units take them, and their product C -= A B with sums in fp32.

A (L_row of HPL-MxP) lies by rows: its entries along k next to each other, as in the matrix that it is rounded from.
B (U_col) lies in strips of 32 columns, each a table of pairs along k: strip, p, column -> (b_2p,j, b_2p+1,j).  Both are
filled up with zeros along k to a multiple of 32.  So rounding an operand is all the packing that it needs, it is sent
as it lies, and any of its rows, any of its columns are an operand too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from mxpeak.kernels.host.engine.jit import FLAG, INT, MATRIX32, ZERO, inner, jit
from mxpeak.kernels.host.engine.matrix_engines import (
    AVX512_BF16,
    COLUMNS,
    DEPTH,
    ROWS,
    MatrixEngine,
    begin,
    end,
    subtract_by_avx512,
    subtract_lanes,
    tile,
)
from mxpeak.kernels.host.engine.vector_ir import HAS_FP16, address_of, bits_of, prefetch, row, vector_at
from mxpeak.kernels.host.lu.row_moves import part_of

Array = np.ndarray[Any, np.dtype[Any]]

#: A pair of numbers that are NaN both in bf16 and in fp16.
NAN_PAIR = 0x7FFF7FFF
#: What a group of B's strips takes: it stays in the second cache while all rows of A pass by.
GROUP_BYTES = 1 << 19
#: Strips that are packed side by side: of each row of B some cache lines in a row, not one.
SIDE_BY_SIDE = 8

#: What a thread's two tiles take, and some to begin on a cache line.
TILES = 2 * ROWS * COLUMNS + 16

PAIRS, STRIPS = types.Array(types.int32, 2, "A"), types.Array(types.int32, 3, "C")
SCRATCH, CONFIG = types.float32[:, ::1], types.uint8[::1]


def aligned(size: int, dtype: np.dtype[Any]) -> Array:
    """An uninitialised vector that begins on a cache line: what crosses one takes twice as long to load."""
    line = 64 // dtype.itemsize
    memory = np.empty(size + line, dtype)
    skipped = -memory.ctypes.data % 64 // dtype.itemsize
    return memory[skipped : skipped + size]


def pairs_along(k: int) -> int:
    """How many pairs along k an operand has."""
    return -(-k // DEPTH) * DEPTH // 2


def left_stride(k: int) -> int:
    """A row of A in pairs: an odd number of cache lines, so that a tile's rows lie in many sets of the cache."""
    lines = 2 * pairs_along(k) * 2 // 64
    return (lines | 1) * 16


def size(rows: int, columns: int, side: str) -> int:
    """How many pairs an operand takes."""
    return rows * left_stride(columns) if side == "left" else -(-columns // COLUMNS) * COLUMNS * pairs_along(rows)


def behind(k: int) -> int:
    """How many pairs behind A's last row a tile may read, which has more rows than are left."""
    return ROWS * left_stride(k)


def _numbers(halves: Array, precision: str) -> Array:
    """16-bit numbers as fp32."""
    if precision == "fp16":
        return halves.view(np.float16).astype(np.float32)
    return (halves.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


@dataclass(frozen=True, slots=True)
class LeftOperand:
    """A of A B: pairs[i, p] = (a_i,2p, a_i,2p+1)."""

    pairs: Array
    k: int
    unit: MatrixEngine

    @staticmethod
    def over(buffer: Array, rows: int, k: int, unit: MatrixEngine) -> LeftOperand:
        """The operand that lies in a buffer."""
        pairs = buffer[: size(rows, k, "left")].reshape(rows, left_stride(k))
        return LeftOperand(pairs[:, : pairs_along(k)], k, unit)

    @property
    def shape(self) -> tuple[int, int]:
        return self.pairs.shape[0], self.k

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.pairs.dtype

    def __getitem__(self, rows: slice) -> LeftOperand:
        return replace(self, pairs=self.pairs[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Its numbers in fp32, for whoever checks them."""
        return _numbers(np.ascontiguousarray(self.pairs).view(np.int16), self.unit.precision)[:, : self.k]


@dataclass(frozen=True, slots=True)
class RightOperand:
    """B of A B: strips[s, p, c] = (b_2p,j, b_2p+1,j) for column j = 32 s + c - first of `columns` ones."""

    strips: Array
    k: int
    first: int
    columns: int
    unit: MatrixEngine

    @staticmethod
    def over(buffer: Array, k: int, columns: int, unit: MatrixEngine) -> RightOperand:
        """The operand that lies in a buffer."""
        strips = buffer[: size(k, columns, "right")].reshape(-(-columns // COLUMNS), pairs_along(k), COLUMNS)
        return RightOperand(strips, k, 0, columns, unit)

    @property
    def shape(self) -> tuple[int, int]:
        return self.k, self.columns

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.strips.dtype

    def __getitem__(self, rows_columns: tuple[slice, slice]) -> RightOperand:
        """Some columns of it; all rows."""
        c0, c1, _ = rows_columns[1].indices(self.columns)
        return replace(self, first=self.first + c0, columns=max(c1 - c0, 0))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Its numbers in fp32, for whoever checks them."""
        halves = self.strips.view(np.int16).reshape(*self.strips.shape, 2)
        strips, pairs, columns = self.strips.shape
        table = np.ascontiguousarray(halves.transpose(1, 3, 0, 2)).reshape(2 * pairs, strips * columns)
        return _numbers(table, self.unit.precision)[: self.k, self.first : self.first + self.columns]


# --- rounding


@intrinsic
def _narrowed_fp16(typingctx, value):
    """fp32 rounded to fp16, as its bits; 0 where the processor cannot do it, and nobody asks."""

    def codegen(context, builder, signature, args):
        if not HAS_FP16:
            return ir.Constant(ir.IntType(16), 0)
        return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), codegen


@inner(inline=True)
def rounded_bf16(x):
    """The upper half of x's bits: add half of what is cut off, less one where the last kept bit is 0; NaN stays NaN."""
    bits = bits_of(x)
    up = np.uint32(bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    return np.uint16((up if x == x else np.uint32(bits | np.uint32(0x400000))) >> np.uint32(16))


@inner()
def round_rows(source, target, r0, r1, fp16):
    """Rows r0:r1 of target = source rounded, and zeros behind them."""
    k = source.shape[1]
    for i in range(r0, r1):
        a = row(source, i, 0, k)
        out = vector_at(address_of(target, i, 0), 2 * target.shape[1], np.uint16)  # its pairs as single numbers
        if fp16:
            for j in range(k):
                out[j] = _narrowed_fp16(a[j])
        else:
            for j in range(k):
                out[j] = rounded_bf16(a[j])
        for j in range(k, out.shape[0]):
            out[j] = 0


@jit(INT, INT, MATRIX32, PAIRS, FLAG, later=True)
def round_left(tid, threads, source, target, fp16):
    """target = source rounded, a thread some rows."""
    r0, r1 = part_of(tid, threads, source.shape[0])
    round_rows(source, target, r0, r1, fp16)


@inner(inline=True)
def _pair(low, high):
    return np.uint32(np.uint32(low) | (np.uint32(high) << np.uint32(16)))


@inner(allocates=True)
def round_strips(source, strips, first_pair, s0, s1, fp16):
    """Strips s0:s1 = source rounded, in pairs from `first_pair` on, and zeros below it and beside it."""
    k, n = source.shape
    zero = np.zeros(COLUMNS, np.float32)
    for group in range(s0, s1, SIDE_BY_SIDE):
        for p in range((k + DEPTH - 1) // DEPTH * DEPTH // 2):
            for s in range(group, min(group + SIDE_BY_SIDE, s1)):
                c0 = s * COLUMNS
                c1 = min(c0 + COLUMNS, n)
                low = row(source, 2 * p, c0, c1) if 2 * p < k else zero
                high = row(source, 2 * p + 1, c0, c1) if 2 * p + 1 < k else zero
                out = vector_at(address_of(strips[s], first_pair + p, 0), COLUMNS, np.uint32)
                if fp16:
                    for j in range(c1 - c0):
                        out[j] = _pair(_narrowed_fp16(low[j]), _narrowed_fp16(high[j]))
                else:
                    for j in range(c1 - c0):
                        out[j] = _pair(rounded_bf16(low[j]), rounded_bf16(high[j]))
                for j in range(c1 - c0, COLUMNS):
                    out[j] = 0


@jit(INT, INT, MATRIX32, STRIPS, FLAG, later=True)
def round_right(tid, threads, source, strips, fp16):
    """strips = source rounded, a thread some strips."""
    s0, s1 = part_of(tid, threads, strips.shape[0])
    round_strips(source, strips, ZERO, s0, s1, fp16)


# --- the product


@inner()
def _subtract(C, i, rows, c0, c1, t):
    """C[i : i+rows, c0:c1] -= the numbers from address t on, in rows of COLUMNS."""
    for r in range(rows):
        c_r, t_r = address_of(C, i + r, c0), t + r * COLUMNS * 4
        if c1 - c0 == COLUMNS:
            subtract_lanes(c_r, t_r)
        else:
            c, sums = row(C, i + r, c0, c1), vector_at(t_r, c1 - c0, np.float32)
            for j in range(c1 - c0):
                c[j] -= sums[j]


@inner()
def _subtract_at_edge(C, i, rows, c0, c1, T, left_out, lda, A, B, depths):
    """C[i : i+rows, c0:c1] -= A B by AVX-512, in a copy at address T: a whole tile would reach beyond C."""
    for r in range(rows):
        c, copy = row(C, i + r, c0, c1), vector_at(T + left_out + r * COLUMNS * 4, c1 - c0, np.float32)
        for j in range(c1 - c0):
            copy[j] = c[j]
    subtract_by_avx512(T, np.int64(COLUMNS * 4), lda, A, B, depths)
    for r in range(rows):
        c, copy = row(C, i + r, c0, c1), vector_at(T + left_out + r * COLUMNS * 4, c1 - c0, np.float32)
        for j in range(c1 - c0):
            c[j] = copy[j]


@inner()
def subtract_tiles(unit, unit_rows, C, A, strips, first, depths, r0, r1, s0, s1, T):
    """C -= A B on rows r0:r1 and B's strips s0:s1, C's first column being B's `first`; sums of all k = 32·depths first.

    AVX-512 subtracts in place.  AMX's tile is subtracted while the next one is made: its part of C has come from memory
    by then, and what the unit wrote has reached the cache.  T: the address of two tiles, of which AVX-512 uses one; the
    unit has begun.
    """
    n = C.shape[1]
    ldc, lda, strip_bytes = np.int64(C.strides[0]), np.int64(A.strides[0]), np.int64(strips.strides[0])
    group = 1 + GROUP_BYTES // (strip_bytes + 1)
    other = T + ROWS * COLUMNS * 4
    last_i, last_rows, last_c0, last_c1, last = ZERO, ZERO, ZERO, ZERO, T
    for g in range(s0, s1, group):
        for i in range(r0, r1, unit_rows):
            rows, A_i = min(unit_rows, r1 - i), address_of(A, i, 0)
            for s in range(g, min(g + group, s1)):
                c0, c1 = max(s * COLUMNS - first, 0), min((s + 1) * COLUMNS - first, n)
                B, left_out = np.int64(strips.ctypes.data) + s * strip_bytes, (c0 + first - s * COLUMNS) * 4
                if unit == AVX512_BF16 and rows == unit_rows and c1 - c0 == COLUMNS:
                    subtract_by_avx512(address_of(C, i, c0), ldc, lda, A_i, B, depths)
                elif unit == AVX512_BF16:
                    _subtract_at_edge(C, i, rows, c0, c1, T, left_out, lda, A_i, B, depths)
                else:
                    for r in range(rows):
                        prefetch(address_of(C, i + r, c0))
                        prefetch(address_of(C, i + r, c1 - 1))
                    _subtract(C, last_i, last_rows, last_c0, last_c1, last)
                    tile(unit, T, A_i, lda, B, depths)
                    last_i, last_rows, last_c0, last_c1 = i, rows, c0, c1
                    last = T + left_out
                    T, other = other, T
    _subtract(C, last_i, last_rows, last_c0, last_c1, last)


@inner(inline=True)
def tiles_of(scratch, tid):
    """The address of a thread's two tiles, on a cache line."""
    return (address_of(scratch, tid, 0) + 63) // 64 * 64


@jit(INT, INT, INT, INT, MATRIX32, PAIRS, STRIPS, INT, SCRATCH, CONFIG, later=True)
def subtract_product(tid, threads, unit, unit_rows, C, A, strips, first, scratch, config):
    """C -= A B, B's columns from `first` on.  Threads share the strips, or the rows of A where strips are few.

    scratch: TILES numbers a thread
    """
    m, n = C.shape
    depths = A.shape[1] * 2 // DEPTH
    if m == 0 or n == 0 or depths == 0:
        return
    s0, s1, r0, r1 = first // COLUMNS, -(-(first + n) // COLUMNS), 0, m
    if s1 - s0 >= 4 * threads:
        before, after = part_of(tid, threads, s1 - s0)
        s0, s1 = s0 + before, s0 + after
    else:
        before, after = part_of(tid, threads, -(-m // unit_rows))
        r0, r1 = before * unit_rows, min(after * unit_rows, m)
    begin(unit, np.int64(config.ctypes.data))
    subtract_tiles(unit, unit_rows, C, A, strips, first, depths, r0, r1, s0, s1, tiles_of(scratch, tid))
    end(unit)


#: What is called where a unit multiplies.
BY_UNITS = (round_left, round_right, subtract_product)
