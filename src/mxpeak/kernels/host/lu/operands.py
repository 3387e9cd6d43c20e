"""Pack 16-bit operands in the layout of the processor's matrix engines, and compute C -= A B with sums in fp32.

A (L_row of HPL-MxP) is stored by rows: its entries along k are adjacent, as in the fp32 matrix. B (U_col) is stored in
strips of 32 columns. Each strip is a table of pairs along k: strip, p, column -> (b_2p,j, b_2p+1,j). Both operands are
padded with zeros along k to a multiple of 32. Rounding therefore packs an operand completely, and an operand is sent
to other ranks without further packing. Any subset of the rows of A or columns of B is also an operand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

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

#: A pair of numbers that are NaN in bf16 and in fp16.
NAN_PAIR = 0x7FFF7FFF
#: Bytes of a group of strips of B. The group stays in the second-level cache while all rows of A are multiplied by it.
GROUP_BYTES = 1 << 19
#: Strips that are packed together, so that several consecutive cache lines of each row of B are read.
SIDE_BY_SIDE = 8

#: Numbers in the two tiles of a thread, with padding to align the tiles to a cache line.
TILES = 2 * ROWS * COLUMNS + 16

PAIRS, STRIPS = types.Array(types.int32, 2, "A"), types.Array(types.int32, 3, "C")


class EngineTiles(NamedTuple):
    """The constants and workspace of a matrix engine, as compiled code uses them.

    code      `MatrixEngine.code`
    rows      the rows of A in one tile
    scratch   TILES numbers per thread
    config    `TILE_CONFIG`
    """

    code: int
    rows: int
    scratch: Array
    config: Array


ENGINE = types.NamedTuple((INT, INT, types.float32[:, ::1], types.uint8[::1]), EngineTiles)


def aligned(size: int, dtype: np.dtype[Any]) -> Array:
    """Return an uninitialized vector that begins on a cache line.

    Loads across two cache lines take twice as long.
    """
    line = 64 // dtype.itemsize
    memory = np.empty(size + line, dtype)
    skipped = -memory.ctypes.data % 64 // dtype.itemsize
    return memory[skipped : skipped + size]


def pairs_along(k: int) -> int:
    """Return the number of pairs that store k padded entries of a row or column of an operand."""
    return -(-k // DEPTH) * DEPTH // 2


def left_stride(k: int) -> int:
    """Return the distance of the rows of A, in pairs: an odd number of cache lines.

    With an odd number, the rows use different cache sets.
    """
    lines = 2 * pairs_along(k) * 2 // 64
    return (lines | 1) * 16


def size(rows: int, columns: int, side: str) -> int:
    """Return the number of pairs in the buffer of a left or right operand with this number of rows and columns."""
    return rows * left_stride(columns) if side == "left" else -(-columns // COLUMNS) * COLUMNS * pairs_along(rows)


def padding(k: int) -> int:
    """Return the number of pairs that a tile may read beyond the last row of a left operand."""
    return ROWS * left_stride(k)


def _numbers(halves: Array, precision: str) -> Array:
    """Convert an array of bf16 or fp16 bits to fp32."""
    if precision == "fp16":
        return halves.view(np.float16).astype(np.float32)
    return (halves.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


@dataclass(frozen=True, slots=True)
class LeftOperand:
    """The left operand A of a product A B, stored as pairs[i, p] = (a_i,2p, a_i,2p+1)."""

    pairs: Array
    k: int
    engine: MatrixEngine

    @staticmethod
    def over(buffer: Array, rows: int, k: int, engine: MatrixEngine) -> LeftOperand:
        """Return the operand of `rows` rows and `k` columns that is stored in a buffer, without a copy."""
        pairs = buffer[: size(rows, k, "left")].reshape(rows, left_stride(k))
        return LeftOperand(pairs[:, : pairs_along(k)], k, engine)

    @property
    def shape(self) -> tuple[int, int]:
        return self.pairs.shape[0], self.k

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.pairs.dtype

    def __getitem__(self, rows: slice) -> LeftOperand:
        return replace(self, pairs=self.pairs[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Convert the operand to an fp32 matrix, for checks."""
        return _numbers(np.ascontiguousarray(self.pairs).view(np.int16), self.engine.precision)[:, : self.k]


@dataclass(frozen=True, slots=True)
class RightOperand:
    """The right operand B of a product A B, stored in strips of 32 columns.

    strips[s, p, c] = (b_2p,j, b_2p+1,j) for column j = 32 s + c - first.
    """

    strips: Array
    k: int
    first: int
    columns: int
    engine: MatrixEngine

    @staticmethod
    def over(buffer: Array, k: int, columns: int, engine: MatrixEngine) -> RightOperand:
        """Return the operand of `k` rows and `columns` columns that is stored in a buffer, without a copy."""
        strips = buffer[: size(k, columns, "right")].reshape(-(-columns // COLUMNS), pairs_along(k), COLUMNS)
        return RightOperand(strips, k, 0, columns, engine)

    @property
    def shape(self) -> tuple[int, int]:
        return self.k, self.columns

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.strips.dtype

    def __getitem__(self, rows_columns: tuple[slice, slice]) -> RightOperand:
        """Return a view of the operand with all rows and a range of columns. The row slice is ignored."""
        c0, c1, _ = rows_columns[1].indices(self.columns)
        return replace(self, first=self.first + c0, columns=max(c1 - c0, 0))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Convert the operand to an fp32 matrix, for checks."""
        halves = self.strips.view(np.int16).reshape(*self.strips.shape, 2)
        strips, pairs, columns = self.strips.shape
        table = np.ascontiguousarray(halves.transpose(1, 3, 0, 2)).reshape(2 * pairs, strips * columns)
        return _numbers(table, self.engine.precision)[: self.k, self.first : self.first + self.columns]


@intrinsic
def _narrowed_fp16(typingctx, value):
    """Round an fp32 number to fp16 and return its bits.

    On processors without the conversion instruction, the code returns 0 and is never called.
    """

    def codegen(context, builder, signature, args):
        if not HAS_FP16:
            return ir.Constant(ir.IntType(16), 0)
        return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), codegen


@inner(inline=True)
def rounded_bf16(x):
    """Round an fp32 number to bf16, ties to even, and return its bits. NaN stays NaN.

    The function adds half of the part to be cut off (minus one bit if the last kept bit is 0), and then cuts.
    """
    bits = bits_of(x)
    up = np.uint32(bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    return np.uint16((up if x == x else np.uint32(bits | np.uint32(0x400000))) >> np.uint32(16))


@inner()
def round_rows(source, target, r0, r1, fp16):
    """Round rows r0:r1 of `source` to bf16 or fp16 in `target`, and pad these rows with zeros."""
    k = source.shape[1]
    for i in range(r0, r1):
        a = row(source, i, 0, k)
        out = vector_at(
            address_of(target, i, 0), 2 * target.shape[1], np.uint16
        )  # access to single numbers instead of pairs
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
    """Round this thread's rows of `source` to bf16 or fp16 pairs of a left operand, `target`."""
    r0, r1 = part_of(tid, threads, source.shape[0])
    round_rows(source, target, r0, r1, fp16)


@inner(inline=True)
def _pair(low, high):
    """Return two 16-bit numbers as one 32-bit word, with `low` in the lower half."""
    return np.uint32(np.uint32(low) | (np.uint32(high) << np.uint32(16)))


@inner(allocates=True)
def round_strips(source, strips, first_pair, s0, s1, fp16):
    """Round `source` to bf16 or fp16 in strips s0:s1 of a right operand, and pad the strips with zeros.

    Row 2p of `source` is stored in pair first_pair + p.
    """
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
    """Round `source` to bf16 or fp16 in this thread's strips of a right operand."""
    s0, s1 = part_of(tid, threads, strips.shape[0])
    round_strips(source, strips, ZERO, s0, s1, fp16)


@inner()
def _subtract(C, i, rows, c0, c1, t):
    """Subtract the tile at address t, with COLUMNS numbers per row, from C[i : i+rows, c0:c1]."""
    for r in range(rows):
        c_r, t_r = address_of(C, i + r, c0), t + r * COLUMNS * 4
        if c1 - c0 == COLUMNS:
            subtract_lanes(c_r, t_r)
        else:
            c, sums = row(C, i + r, c0, c1), vector_at(t_r, c1 - c0, np.float32)
            for j in range(c1 - c0):
                c[j] -= sums[j]


@inner()
def _subtract_at_edge(C, i, rows, c0, c1, skipped, tile_product):
    """Compute C[i : i+rows, c0:c1] -= A B by AVX-512 for a tile that extends beyond the edge of C.

    The function computes in a copy of this part of C, because a complete tile would write outside C.

    skipped        bytes of a tile's row before column c0
    tile_product   the address of the copy, the bytes per row of A, the addresses of A and B, and the depths
    """
    T, lda, A, B, depths = tile_product
    for r in range(rows):
        c, copy = row(C, i + r, c0, c1), vector_at(T + skipped + r * COLUMNS * 4, c1 - c0, np.float32)
        for j in range(c1 - c0):
            copy[j] = c[j]
    subtract_by_avx512(T, np.int64(COLUMNS * 4), lda, A, B, depths)
    for r in range(rows):
        c, copy = row(C, i + r, c0, c1), vector_at(T + skipped + r * COLUMNS * 4, c1 - c0, np.float32)
        for j in range(c1 - c0):
            c[j] = copy[j]


@inner()
def subtract_tiles(engine, C, A, strips, first, depths, rows, strip_range, T):
    """Compute C -= A B on a range of rows and a range of strips of B; each tile is summed over all k = 32·depths.

    The first column of C is column `first` of B. AVX-512 subtracts in place. An AMX tile is subtracted while the next
    tile is computed. At that time, its part of C has arrived from memory, and the engine's results have reached the
    cache. T is the address of two tiles, of which AVX-512 uses one. The caller has started the engine with `begin`.
    """
    (r0, r1), (s0, s1), n = rows, strip_range, C.shape[1]
    ldc, lda, strip_bytes = np.int64(C.strides[0]), np.int64(A.strides[0]), np.int64(strips.strides[0])
    group = 1 + GROUP_BYTES // (strip_bytes + 1)
    other = T + ROWS * COLUMNS * 4
    last_i, last_rows, last_c0, last_c1, last = ZERO, ZERO, ZERO, ZERO, T
    for g in range(s0, s1, group):
        for i in range(r0, r1, engine.rows):
            height, A_i = min(engine.rows, r1 - i), address_of(A, i, 0)
            for s in range(g, min(g + group, s1)):
                c0, c1 = max(s * COLUMNS - first, 0), min((s + 1) * COLUMNS - first, n)
                B, skipped = np.int64(strips.ctypes.data) + s * strip_bytes, (c0 + first - s * COLUMNS) * 4
                if engine.code == AVX512_BF16 and height == engine.rows and c1 - c0 == COLUMNS:
                    subtract_by_avx512(address_of(C, i, c0), ldc, lda, A_i, B, depths)
                elif engine.code == AVX512_BF16:
                    _subtract_at_edge(C, i, height, c0, c1, skipped, (T, lda, A_i, B, depths))
                else:
                    for r in range(height):
                        prefetch(address_of(C, i + r, c0))
                        prefetch(address_of(C, i + r, c1 - 1))
                    _subtract(C, last_i, last_rows, last_c0, last_c1, last)
                    tile(engine.code, T, A_i, lda, B, depths)
                    last_i, last_rows, last_c0, last_c1 = i, height, c0, c1
                    last = T + skipped
                    T, other = other, T
    _subtract(C, last_i, last_rows, last_c0, last_c1, last)


@inner(inline=True)
def tiles_of(engine, tid):
    """Return the address of thread tid's two tiles in `engine.scratch`, aligned to a cache line."""
    return (address_of(engine.scratch, tid, 0) + 63) // 64 * 64


@jit(INT, INT, ENGINE, MATRIX32, PAIRS, STRIPS, INT, later=True)
def subtract_product(tid, threads, engine, C, A, strips, first):
    """Compute this thread's part of C -= A B, where the first column of C is column `first` of B.

    Threads divide the strips of B, or the rows of A if there are few strips.
    """
    m, n = C.shape
    depths = A.shape[1] * 2 // DEPTH
    if m == 0 or n == 0 or depths == 0:
        return
    s0, s1, r0, r1 = first // COLUMNS, -(-(first + n) // COLUMNS), ZERO, m
    if s1 - s0 >= 4 * threads:
        before, after = part_of(tid, threads, s1 - s0)
        s0, s1 = s0 + before, s0 + after
    else:
        before, after = part_of(tid, threads, -(-m // engine.rows))
        r0, r1 = before * engine.rows, min(after * engine.rows, m)
    begin(engine.code, np.int64(engine.config.ctypes.data))
    subtract_tiles(engine, C, A, strips, first, depths, (r0, r1), (s0, s1), tiles_of(engine, tid))
    end(engine.code)


#: The entry points that are called if a matrix engine computes products.
BY_ENGINES = (round_left, round_right, subtract_product)
