"""Emulate fp64 products by exact products of INT8 residues in the tiles of a matrix engine.

`contract.emulation` describes the method. All threads compute a block of C together, in four phases:

    scale       the rows of A and columns of B, to a largest absolute value in [1/2, 1)
    estimate    the extremes of G = |A||B| by products of bf16 numbers; G itself is not stored
    pack        the residues of A' and B' modulo all moduli, in the layout of the tiles
    multiply    for each piece of C: the residues of A'B' modulo all moduli, which are restored and subtracted from C

Each residue of an operand is computed once per block. The sums of a tile are reduced while the engine computes the next
tile.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import log2, prod
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mxpeak.kernels.contract.emulation import (
    BITS,
    DEPTH,
    HOST_BLOCK,
    LEAST,
    MODULI,
    NATIVE,
    SLACK,
    TINY,
    USUAL,
    WORD,
    Emulation,
    emulated_with,
    moduli_for,
    residues,
)
from mxpeak.kernels.host.engine.jit import FLAG, INT, INTEGERS, MATRIX, VECTOR, inner, jit
from mxpeak.kernels.host.engine.matrix_engines import (
    COLUMNS,
    PACKED,
    ROWS,
    STEP_BYTES,
    TILE_CONFIG,
    add_steps_int8,
    begin,
    begin_sums,
    end,
    packed_tile_bf16,
    store_sums,
)
from mxpeak.kernels.host.engine.team import Team
from mxpeak.kernels.host.engine.vector_ir import (
    address_of,
    atomic_add,
    constant,
    nearest,
    prefetch_far,
    row,
    vector_at,
    weighted_sums,
)
from mxpeak.kernels.host.lu.emulation import NOT_FINITE, power_of_two, scale_line, times_power
from mxpeak.kernels.host.lu.operands import STRIPS, aligned, rounded_bf16
from mxpeak.kernels.host.lu.row_moves import copy_block, part_of

Array = np.ndarray[Any, np.dtype[Any]]

#: Steps of a tile, after which the next tile begins. 32 columns of B with 16·64 entries fit into the first-level cache.
STEPS = 16
#: Steps between which some rows of the previous tile are reduced.
BETWEEN, REDUCED = 2, 4
#: Largest number of rows and columns of a piece of C, and the size of its rows of A in bytes. These rows stay in the
#: second-level cache.
PIECE_ROWS, PIECE_COLUMNS, PIECE_BYTES = 512, 512, 1 << 20
#: Strips of B that are multiplied by a block of rows at a time, to estimate G.
GROUP = 8
#: The bytes for the residues of the operands of a block with USUAL moduli.
BLOCK_MEMORY = 1 << 29
#: Bits of a digit, and numbers of digits. Integers are divided into digits to compute their residues, because sums of
#: four products of a digit and a residue are exact in fp32. FEW_DIGITS suffice for lines without large spans.
DIGIT, FEW_DIGITS, DIGITS = 15, 4, 8
#: Numbers in a vector.
LANES = 16
#: Columns of B that are packed together, so that complete cache lines are written.
SIDE_BY_SIDE = 16
#: Adding it to a number below 2^22 rounds the number to an integer, which its lowest bits then contain.
ROUND = np.float32(1.5 * 2.0**23)
#: The bits by which a sum of a tile is divided in two, so that its residues are computed exactly in fp32.
HALF = 12
#: Exponents for which sums are scaled by one multiplication per row and one per column.
USUAL_EXPONENT = 300

CONFIG, WEIGHTS, LEFT, SUMS = types.uint8[::1], types.float32[::1], types.int8[:, :, ::1], types.int32[:, :, ::1]
TABLE32, WORDS = types.float32[:, ::1], types.float64[:, ::1]


class Memory:
    """Arrays that successive products reuse, because the operating system takes long to provide new memory."""

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an uninitialized array on cache lines. The previous array of this name becomes invalid."""
        size = prod(shape) * np.dtype(dtype).itemsize
        if name not in self._arrays or self._arrays[name].size < size:
            self._arrays[name] = aligned(size, np.dtype(np.int8))
        return self._arrays[name][:size].view(dtype).reshape(shape)


class Lines(NamedTuple):
    """The rows of A or the columns of B, scaled by powers of two.

    entries     each line with its largest absolute value in [1/2, 1)
    exponents   the binary logarithms of the scales
    sums        the sums of the absolute values
    squares     the sums of the squares
    """

    entries: Array
    exponents: Array
    sums: Array
    squares: Array

    @staticmethod
    def of(memory: Memory, name: str, count: int, k: int) -> Lines:
        """Return memory for `count` lines of length k."""
        entries = memory.array(name, (count, k), np.float64)
        return Lines(entries, np.empty(count, np.int64), np.empty(count), np.empty(count))


class Operands(NamedTuple):
    """Packed operands in the layout of `add_steps_int8`, for a number of moduli, or one pair of bf16 operands.

    left     left[t·blocks + b, ROWS·step + r] has the bytes of row ROWS·b + r in a step
    right    right[t·strips + s, p, c] has four bytes of column COLUMNS·s + c

    Both are padded with zeros.
    """

    left: Array
    right: Array

    @staticmethod
    def of(memory: Memory, count: int, m: int, n: int, k_bytes: int) -> Operands:
        """Return memory for `count` pairs of operands with m rows, n columns and `k_bytes` bytes along k."""
        blocks, strips, steps = -(-m // ROWS), -(-n // COLUMNS), -(-k_bytes // STEP_BYTES)
        left = memory.array("left", (count * blocks, steps * ROWS, STEP_BYTES), np.int8)
        right = memory.array("right", (count * strips, steps * PACKED // 4 // COLUMNS, COLUMNS), np.int32)
        left[blocks - 1 :: blocks] = 0
        right[strips - 1 :: strips] = 0
        return Operands(left, right)


def subtract_product(
    team: Team, engine: int, memory: Memory, C: Array, A: Array, B: Array, native: Callable[[Array, Array, Array], None]
) -> Emulation:
    """Compute C -= A B by all threads of the team, and return how. C is stored by rows."""
    (m, k), n, counts = A.shape, B.shape[1], Emulation()
    side = block_side(k)
    for i, j, k0 in product(range(0, m, side), range(0, n, side), range(0, k, DEPTH)):
        rows, columns, depth = slice(i, i + side), slice(j, j + side), slice(k0, k0 + DEPTH)
        block = _Block(team, engine, memory, C[rows, columns], A[rows, depth], B[depth, columns])
        moduli = block.subtract()
        if moduli:
            counts += emulated_with(moduli)
        else:
            native(block.C, block.A, block.B)
            counts += NATIVE
    return counts


def block_side(k: int) -> int:
    """Return the number of rows and columns of a block for a product with k terms."""
    return max(1024, min(HOST_BLOCK, BLOCK_MEMORY // (2 * USUAL * max(min(k, DEPTH), 1)) // 256 * 256))


class _Block:
    """One block of C and its operands."""

    def __init__(self, team: Team, engine: int, memory: Memory, C: Array, A: Array, B: Array):
        self.run, self.threads, self.engine, self.memory = team.run, team.threads, engine, memory
        self.C, self.A, self.B = C, A, B
        (m, self.k), n = A.shape, B.shape[1]
        self.left, self.right = Lines.of(memory, "rows", m, self.k), Lines.of(memory, "columns", n, self.k)

    def subtract(self) -> int:
        """Compute C -= A B, and return the number of moduli; or return 0 and change nothing."""
        self.run(self._scale)
        left, right = self.left, self.right
        if max(left.exponents.max(), right.exponents.max()) >= NOT_FINITE:
            return 0
        p, q, moduli = self._choose()
        if moduli:
            operands = Operands.of(self.memory, moduli, len(p), len(q), self.k)
            digits = FEW_DIGITS if max(p.max(), q.max()) < FEW_DIGITS * DIGIT - 1 else DIGITS
            table = np.array([_digit_residues(m) for m in MODULI[:moduli]], np.float32)
            self.run(_pack, self.threads, left.entries, right.entries, p, q, digits, table, *operands)
            self._multiply(operands, left.exponents - p, right.exponents - q, moduli)
        return moduli

    def _scale(self, tid: int) -> None:
        """Scale this thread's part of both operands."""
        for source, lines in ((self.A, self.left), (self.B.T, self.right)):
            part = slice(len(source) * tid // self.threads, len(source) * (tid + 1) // self.threads)
            copy_block(0, 1, source[part], lines.entries[part])
            scale_lines(*(member[part] for member in lines))

    def _choose(self) -> tuple[Array, Array, int]:
        """Return the bits of the rows of A' and of the columns of B', and the number of moduli, or 0.

        By Cauchy and Schwarz, the norms of a row and of a column bound an entry of A'B'. If this bound needs more than
        USUAL moduli, the largest entry is estimated.
        """
        left, right = self.left, self.right
        bounds = Operands.of(self.memory, 1, len(left.sums), len(right.sums), 2 * self.k)
        self.run(_pack_bounds, self.threads, left.entries, right.entries, *bounds)
        by_row, by_column, smallest, _ = self._estimate(bounds, _inverse(left.sums), _inverse(right.sums))
        p, q = (BITS + np.frexp(SLACK * _inverse(ratio))[1].astype(np.int64) for ratio in (by_row, by_column))
        if smallest < self.k * LEAST:
            return p, q, 0
        terms = (_log2_of_largest(lines.squares, bits) for lines, bits in ((left, p), (right, q)))
        moduli = moduli_for(max(sum(terms), 0.0))
        if 0 < moduli <= USUAL:
            return p, q, moduli
        powers = (np.exp2(np.maximum(bits - bits.max(), -126)).astype(np.float32) for bits in (p, q))
        largest = self._estimate(bounds, *powers)[3]
        return p, q, moduli_for(log2(largest) + p.max() + q.max() if largest > 0 else 0.0)

    def _estimate(self, bounds: Operands, x: Array, y: Array) -> tuple[Array, Array, float, float]:
        """Return min_l G_il y_l, min_i G_il x_i, min G_il and max G_il x_i y_l, over positive G_il."""
        threads, columns = self.threads, -(-len(y) // COLUMNS) * COLUMNS
        by_row = np.full((len(x), LANES), np.inf, np.float32)
        by_column = np.full((threads, columns), np.inf, np.float32)
        extremes = np.zeros((threads, 2, LANES), np.float32)
        extremes[:, 0] = np.inf
        tiles = self.memory.array("tiles", (threads, ROWS * COLUMNS), np.float32)
        arguments = (
            *bounds,
            x,
            np.pad(y, (0, columns - len(y))),
            tiles,
            by_row,
            by_column,
            extremes.reshape(threads, -1),
        )
        self.run(_estimate_extremes, threads, self.engine, TILE_CONFIG, *arguments)
        by_column = by_column.min(axis=0)[: len(y)]
        return by_row.min(axis=1), by_column, float(extremes[:, 0].min()), float(extremes[:, 1].max())

    def _multiply(self, operands: Operands, by_row: Array, by_column: Array, moduli: int) -> None:
        """Subtract the product of the packed operands, scaled by 2^(by_row_i + by_column_l), from C."""
        constants = np.array([_tile_constants(m) for m in MODULI[:moduli]], np.float32)
        words, M = fraction_words(moduli)
        sums = self.memory.array("sums", (self.threads, 2 * PIECE_ROWS // ROWS, ROWS * COLUMNS), np.int32)
        R = self.memory.array("R", (self.threads * moduli, PIECE_ROWS, PIECE_COLUMNS), np.int8)
        usual = max(np.abs(by_row).max(), np.abs(by_column).max()) <= USUAL_EXPONENT
        self.run(
            _multiply, self.threads, self.engine, TILE_CONFIG, self.C, *operands, constants, sums, R, words, M,
            by_row, by_column, usual, np.zeros(1, np.int64),
        )  # fmt: skip


def _inverse(x: Array) -> Array:
    """Return 1/x in fp32, or 0 where x is zero or infinite."""
    with np.errstate(divide="ignore"):
        inverse = np.where(np.isfinite(x), 1.0 / x, 0.0)
    return np.where(np.isfinite(inverse), inverse, 0.0).astype(np.float32)


def _log2_of_largest(squares: Array, bits: Array) -> float:
    """Return the binary logarithm of the largest norm of a line, scaled by 2^bits."""
    with np.errstate(divide="ignore"):
        return float((0.5 * np.log2(squares) + bits).max())


def _centred(x: int, modulus: int) -> int:
    """Return the residue of x with the smallest absolute value."""
    return (x + modulus // 2) % modulus - modulus // 2


def _digit_residues(modulus: int) -> list[float]:
    """Return -m, 1/m and the residues of the powers of 2^DIGIT."""
    return [-modulus, 1 / modulus, *(_centred(pow(2, DIGIT * d, modulus), modulus) for d in range(DIGITS))]


def _tile_constants(modulus: int) -> tuple[float, float, float]:
    """Return -m, 1/m and the residue of 2^HALF."""
    return -modulus, 1 / modulus, _centred(pow(2, HALF, modulus), modulus)


def fraction_words(count: int) -> tuple[Array, float]:
    """Return words_wt and M with X/M = Σ_w Σ_t words_wt r_t, up to an integer, for an X with the residues r_t.

    The first e words are multiples of 2^(-WORD·(w+1)), so that their sums are exact. The next word contains all other
    bits, rounded to fp64. The error of its sum is below 2^(-WORD·e - 39), which is at most an eighth of u·|A'||B'|/M,
    where |A'||B'| >= 2^(2·BITS-1). A row of zeros makes the number of rows even.
    """
    constants = residues(count)
    M, exact = constants.product, 1
    while log2(M) > WORD * exact + 2 * BITS - 1 - 53 - 3 + 39:
        exact += 1
    words = np.zeros((exact + 1 + (exact + 1) % 2, count))
    for t, modulus in enumerate(constants.moduli):
        whole = pow(M // modulus, -1, modulus)
        numerator = whole << (WORD * exact)
        quotient, remainder = divmod(numerator, modulus)
        for w in range(exact):
            word = quotient >> WORD * (exact - 1 - w) & ((1 << WORD) - 1)
            words[w, t] = float(word) * 2.0 ** (-WORD * (w + 1))
        words[exact, t] = remainder / modulus * 2.0 ** (-WORD * exact)
    return words, float(M)


@jit(MATRIX, INTEGERS, VECTOR, VECTOR, later=True)
def scale_lines(entries, exponents, sums, squares):
    """Scale row-major lines in place, and compute the other members of `Lines`."""
    for i in range(entries.shape[0]):
        a = row(entries, i, 0, entries.shape[1])
        e = scale_line(a)
        exponents[i], total, square = e, 0.0, 0.0
        if e == NOT_FINITE:
            continue
        for j in range(a.shape[0]):
            total += abs(a[j])
            square += a[j] * a[j]
        sums[i], squares[i] = total, square


@inner(inline=True)
def _bound(x):
    """Return |x| as the bits of a bf16 number, at least TINY if x is not zero."""
    return rounded_bf16(max(np.float32(abs(x)), np.float32(TINY)) if x != 0.0 else np.float32(0.0))


@inner()
def aligned_part(tid, threads, count):
    """Return thread tid's contiguous part (begin, end) of the range 0:count, in multiples of SIDE_BY_SIDE."""
    begin, end = part_of(tid, threads, (count + SIDE_BY_SIDE - 1) // SIDE_BY_SIDE)
    return begin * SIDE_BY_SIDE, min(end * SIDE_BY_SIDE, count)


@inner()
def _store_row(line, left, first, i):
    """Store the bytes at address `line` as row i of the blocks that begin at `first`."""
    for step in range(left.shape[1] // ROWS):
        source, r = vector_at(line + step * STEP_BYTES, STEP_BYTES, np.int8), step * ROWS + i % ROWS
        target = vector_at(address_of(left[first + i // ROWS], r, 0), STEP_BYTES, np.int8)
        for j in range(STEP_BYTES):
            target[j] = source[j]


@inner()
def _store_columns(lines, count, right, first, j):
    """Store the words of `count` lines as adjacent columns, from j, of the strips that begin at `first`."""
    strip, c0 = first + j // COLUMNS, j % COLUMNS
    words = vector_at(address_of(lines, 0, 0), SIDE_BY_SIDE * right.shape[1], np.int32)
    for group in range(right.shape[1]):
        out = vector_at(address_of(right[strip], group, c0), count, np.int32)
        for c in range(count):
            out[c] = words[c * right.shape[1] + group]


@inner()
def _bounds_of(a, line):
    """Write the bounds of a line to the numbers at address `line`."""
    b = vector_at(line, a.shape[0], np.uint16)
    for j in range(a.shape[0]):
        b[j] = _bound(a[j])


@jit(INT, INT, MATRIX, MATRIX, LEFT, STRIPS, allocates=True, later=True)
def _pack_bounds(tid, threads, rows, columns, left, right):
    """Pack the bounds of this thread's part of both operands as bf16 numbers."""
    lines = np.zeros((SIDE_BY_SIDE, 4 * right.shape[1]), np.int8)
    line = address_of(lines, 0, 0)
    i0, i1 = part_of(tid, threads, rows.shape[0])
    for i in range(i0, i1):
        _bounds_of(row(rows, i, 0, rows.shape[1]), line)
        _store_row(line, left, 0, i)
    j0, j1 = aligned_part(tid, threads, columns.shape[0])
    for j in range(j0, j1, SIDE_BY_SIDE):
        count = min(SIDE_BY_SIDE, j1 - j)
        for c in range(count):
            _bounds_of(row(columns, j + c, 0, columns.shape[1]), address_of(lines, c, 0))
        _store_columns(lines, count, right, 0, j)


@intrinsic
def _update_extremes(typingctx, g, x_i, y, by_row, by_column, extremes):
    """Update the extremes of `_Block._estimate` for LANES numbers g_l of row i.

    All arguments but x_i are addresses. by_row has LANES minima of the row, and `extremes` LANES minima and LANES
    maxima.
    """

    def codegen(context, builder, signature, args):
        g, x_i, y, by_row, by_column, extremes = args
        lanes = _Lanes(builder)
        infinite, zero = (ir.Constant(lanes.numbers, [value] * LANES) for value in (float("inf"), 0.0))
        values, x, y = lanes.load(g, lanes.numbers), lanes.spread(x_i), lanes.load(y, lanes.numbers)
        positive = builder.fcmp_ordered(">", values, zero)
        G = builder.select(positive, values, infinite)
        by_maximum = builder.add(extremes, ir.IntType(64)(4 * LANES))
        weighted = builder.fmul(builder.fmul(values, x), y)
        for address, value, order in (
            (by_row, builder.fmul(G, y), "<"),
            (by_column, builder.fmul(G, x), "<"),
            (extremes, G, "<"),
            (by_maximum, weighted, ">"),
        ):
            before = lanes.load(address, lanes.numbers)
            after = builder.select(builder.fcmp_ordered(order, value, before), value, before)
            builder.store(after, builder.inttoptr(address, lanes.numbers.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32, *[types.int64] * 4), codegen


@jit(INT, INT, INT, CONFIG, LEFT, STRIPS, WEIGHTS, WEIGHTS, TABLE32, TABLE32, TABLE32, TABLE32, later=True)
def _estimate_extremes(tid, threads, engine, config, left, right, x, y, tiles, by_row, by_column, extremes):
    """Compute the extremes of `_Block._estimate` for this thread's rows of G, as LANES extremes each."""
    b0, b1 = part_of(tid, threads, left.shape[0])
    begin(engine, np.int64(config.ctypes.data))
    T, steps, weights = address_of(tiles, tid, 0), left.shape[1] // ROWS, np.int64(y.ctypes.data)
    for s0 in range(0, right.shape[0], GROUP):
        for b in range(b0, b1):
            A, rows = address_of(left[b], 0, 0), min(ROWS, x.shape[0] - b * ROWS)
            for s in range(s0, min(s0 + GROUP, right.shape[0])):
                packed_tile_bf16(engine, T, A, address_of(right[s], 0, 0), steps)
                for r in range(rows):
                    i = b * ROWS + r
                    for j in range(s * COLUMNS, (s + 1) * COLUMNS, LANES):
                        g = T + (r * COLUMNS + j % COLUMNS) * 4
                        _update_extremes(
                            g, x[i], weights + 4 * j, address_of(by_row, i, 0), address_of(by_column, tid, j),
                            address_of(extremes, tid, 0),
                        )  # fmt: skip
    end(engine)


@inner()
def _digits_of(a, scale, digits, parts):
    """Divide the integers nearest to scale·a_j into digits: Σ_d 2^(DIGIT·d) parts_d. The vector `a` is overwritten."""
    for j in range(a.shape[0]):
        a[j] = nearest(a[j] * scale)
    for d in range(digits - 1, -1, -1):
        part, unit, inverse = row(parts, d, 0, a.shape[0]), power_of_two(DIGIT * d), power_of_two(-DIGIT * d)
        for j in range(a.shape[0]):
            digit = nearest(a[j] * inverse)
            part[j] = np.float32(digit)
            a[j] -= digit * unit


class _Lanes:
    """Emits instructions on LANES fp32 numbers."""

    def __init__(self, builder):
        self.builder = builder
        self.numbers, self.words, self.bytes = (
            ir.VectorType(element, LANES) for element in (ir.FloatType(), ir.IntType(32), ir.IntType(8))
        )
        function_type = ir.FunctionType(self.numbers, [self.numbers] * 3)
        self._fma = cgutils.get_or_insert_function(builder.module, function_type, f"llvm.fma.v{LANES}f32")
        self.round = ir.Constant(self.numbers, [float(ROUND)] * LANES)

    def load(self, address, vector):
        """Load LANES numbers of a vector type."""
        return self.builder.load(self.builder.inttoptr(address, vector.as_pointer()), align=4)

    def spread(self, number):
        """Return a vector of equal fp32 numbers."""
        builder, index = self.builder, ir.IntType(32)
        lane = builder.insert_element(ir.Constant(self.numbers, ir.Undefined), number, index(0))
        return builder.shuffle_vector(lane, lane, constant(index, [0] * LANES))

    def fused(self, a, b, c):
        """Return a·b + c with one rounding."""
        return self.builder.call(self._fma, [a, b, c])

    def reduced(self, y, modulus):
        """Return the residues of integers |y| < 2^23; `modulus` is (-m, 1/m)."""
        quotient = self.builder.fsub(self.fused(y, modulus[1], self.round), self.round)
        return self.fused(quotient, modulus[0], y)

    def store(self, r, address):
        """Store integers as bytes: the lowest bits of r + ROUND."""
        bits = self.builder.bitcast(self.builder.fadd(r, self.round), self.words)
        self.builder.store(
            self.builder.trunc(bits, self.bytes), self.builder.inttoptr(address, self.bytes.as_pointer()), align=1
        )


@intrinsic
def _store_residues_of_sums(typingctx, sums, out, constants):
    """Store the residues of LANES sums at address `out`; `constants` is the address of those of `_tile_constants`.

    A sum is divided in two: sum = low + 2^HALF·high.
    """

    def codegen(context, builder, signature, args):
        sums, out, constants = args
        lanes = _Lanes(builder)
        minus_m, inverse, c = (lanes.spread(number) for number in _numbers_at(builder, constants, 3))
        words = lanes.load(sums, lanes.words)
        word = ir.IntType(32)
        low = builder.and_(words, constant(word, [(1 << HALF) - 1] * LANES))
        high = builder.ashr(words, constant(word, [HALF] * LANES))
        low, high = (builder.sitofp(part, lanes.numbers) for part in (low, high))
        lanes.store(lanes.reduced(lanes.fused(high, c, low), (minus_m, inverse)), out)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def _store_residues_of_digits(typingctx, digits, row_bytes, wide, out, constants):
    """Store the residues of LANES integers at address `out`, whose digits begin at the address `digits`.

    The d-th digits are d·row_bytes further on. `wide` is whether there are DIGITS digits instead of FEW_DIGITS.
    `constants` is the address of those of `_digit_residues`.
    """

    def codegen(context, builder, signature, args):
        digits, row_bytes, wide, out, constants = args
        lanes = _Lanes(builder)

        def combined(first, count):
            """Return the residues of the sum of some digits times the residues of their powers."""
            minus_m, inverse, *powers = map(lanes.spread, _numbers_at(builder, constants, 2 + first + count))
            total = ir.Constant(lanes.numbers, [0.0] * LANES)
            for d in range(first, first + count):
                address = builder.add(digits, builder.mul(row_bytes, ir.IntType(64)(d)))
                total = lanes.fused(lanes.load(address, lanes.numbers), powers[d], total)
            return lanes.reduced(total, (minus_m, inverse)), (minus_m, inverse)

        low, modulus = combined(0, FEW_DIGITS)
        with builder.if_else(wide) as (many, few):
            with many:
                high, _ = combined(FEW_DIGITS, DIGITS - FEW_DIGITS)
                lanes.store(lanes.reduced(builder.fadd(low, high), modulus), out)
            with few:
                lanes.store(low, out)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.boolean, types.int64, types.int64), codegen


def _numbers_at(builder, address, count):
    """Return the first fp32 numbers at an address."""
    first = builder.inttoptr(address, ir.FloatType().as_pointer())
    return [builder.load(builder.gep(first, [ir.IntType(64)(index)])) for index in range(count)]


@inner()
def _residues_of(parts, k, wide, constants, out):
    """Write the residues of k integers with these digits to the bytes at address `out`; k is padded."""
    row_bytes = np.int64(parts.strides[0])
    for j in range(0, k, LANES):
        _store_residues_of_digits(address_of(parts, 0, j), row_bytes, wide, out + j, constants)


@jit(INT, INT, MATRIX, MATRIX, INTEGERS, INTEGERS, INT, TABLE32, LEFT, STRIPS, allocates=True, later=True)
def _pack(tid, threads, rows, columns, p, q, digits, table, left, right):
    """Pack the residues of this thread's part of both operands; rows of `table` are those of `_digit_residues`."""
    k, moduli, padded = rows.shape[1], table.shape[0], 4 * right.shape[1]
    parts = np.zeros((SIDE_BY_SIDE * DIGITS, padded), np.float32)
    lines, wide = np.empty((SIDE_BY_SIDE, padded), np.int8), digits == DIGITS
    blocks, strips = left.shape[0] // moduli, right.shape[0] // moduli
    i0, i1 = part_of(tid, threads, rows.shape[0])
    for i in range(i0, i1):
        _digits_of(row(rows, i, 0, k), power_of_two(p[i]), digits, parts)
        for t in range(moduli):
            _residues_of(parts, padded, wide, address_of(table, t, 0), address_of(lines, 0, 0))
            _store_row(address_of(lines, 0, 0), left, t * blocks, i)
    j0, j1 = aligned_part(tid, threads, columns.shape[0])
    for j in range(j0, j1, SIDE_BY_SIDE):
        count = min(SIDE_BY_SIDE, j1 - j)
        for c in range(count):
            _digits_of(row(columns, j + c, 0, k), power_of_two(q[j + c]), digits, parts[c * DIGITS : (c + 1) * DIGITS])
        for t in range(moduli):
            for c in range(count):
                of_column = parts[c * DIGITS : (c + 1) * DIGITS]
                _residues_of(of_column, padded, wide, address_of(table, t, 0), address_of(lines, c, 0))
            _store_columns(lines, count, right, t * strips, j)


@inner()
def _reduce_rows(T, r0, r1, constants, out):
    """Write the residues of rows r0:r1 of the tile at address T to rows of bytes at address `out`."""
    for r in range(r0, r1):
        for j in range(0, COLUMNS, LANES):
            _store_residues_of_sums(T + (r * COLUMNS + j) * 4, out + r * PIECE_COLUMNS + j, constants)


@inner()
def _prefetch(address, size):
    """Prefetch `size` bytes to the second-level cache, and return the address behind them."""
    for byte in range(0, size, 64):
        prefetch_far(address + byte)
    return address + size


@inner()
def _residues_of_piece(engine, left, right, next_left, steps, shape, constants, sums, out):
    """Write the residues of a piece of A'B' to `out`. The operands are addresses; `shape` is in tiles.

    Sums over more than STEPS steps are stored between the parts. The rows of a tile are reduced between the steps of
    the next one, which the engine computes at the same time. The next strip of B and the rows of A modulo the next
    modulus, at the address `next_left`, are prefetched.
    """
    down, across = shape
    R, last, reduced, ahead = address_of(out, 0, 0), np.int64(0), np.int64(0), next_left
    of_left, of_right = PACKED * BETWEEN // across // 64 * 64, PACKED * BETWEEN // down // 64 * 64
    for s in range(across):
        B = right + s * steps * PACKED
        next_right = B + steps * PACKED
        for first in range(0, steps, STEPS):
            last_step = min(first + STEPS, steps)
            for i in range(down):
                slot = s % 2 * down + i if steps > STEPS else (s * down + i) % 2
                T, A, r = address_of(sums, slot, 0), left + i * steps * PACKED, 0
                begin_sums(engine, T, first > 0)
                for step in range(first, last_step, BETWEEN):
                    ahead, next_right = _prefetch(ahead, of_left), _prefetch(next_right, of_right)
                    add_steps_int8(engine, T, A + step * PACKED, B + step * PACKED, min(BETWEEN, last_step - step))
                    if last != 0 and r < ROWS:
                        _reduce_rows(last, r, r + REDUCED, constants, reduced)
                        r += REDUCED
                if last != 0:
                    _reduce_rows(last, r, ROWS, constants, reduced)
                store_sums(engine, T)
                last = T if last_step == steps else np.int64(0)
                reduced = R + i * ROWS * PIECE_COLUMNS + s * COLUMNS
    _reduce_rows(last, 0, ROWS, constants, reduced)


@inner()
def _subtract_row(c, R, moduli, words, M, e_i, by_column, power, powers, usual, sums):
    """Subtract a row of the piece, whose residues begin at address R, from c."""
    n = c.shape[0]
    fraction = row(sums, 0, 0, n)
    for w in range(0, words.shape[0], 2):
        W = address_of(words, w, 0)
        for j in range(0, n, 16):
            weighted_sums(R + j, PIECE_ROWS * PIECE_COLUMNS, moduli, W, address_of(sums, 1 + w, j), PIECE_COLUMNS * 8)
    first, second = row(sums, 1, 0, n), row(sums, 2, 0, n)
    for j in range(n):
        fraction[j] = first[j] - nearest(first[j]) + second[j]
    for w in range(2, words.shape[0]):
        following = row(sums, 1 + w, 0, n)
        for j in range(n):
            fraction[j] += following[j]
    if usual:
        for j in range(n):
            c[j] -= fraction[j] * M * power * powers[j]
    else:
        for j in range(n):
            c[j] -= times_power(fraction[j] * M, e_i + by_column[j])


@jit(
    INT, INT, INT, CONFIG, MATRIX, LEFT, STRIPS, TABLE32, SUMS, LEFT, WORDS,
    types.float64, INTEGERS, INTEGERS, FLAG, INTEGERS, allocates=True, later=True,
)  # fmt: skip
def _multiply(
    tid, threads, engine, config, C, left, right, constants, sums, R, words, M, by_row, by_column, usual, taken
):
    """Compute pieces of C until all are taken; `taken` counts the pieces that threads have begun."""
    (m, n), moduli = C.shape, constants.shape[0]
    blocks, strips, steps = left.shape[0] // moduli, right.shape[0] // moduli, left.shape[1] // ROWS
    rows = max(ROWS, min(PIECE_ROWS, PIECE_BYTES // (steps * PACKED) * ROWS))
    down, across = (m + rows - 1) // rows, (n + PIECE_COLUMNS - 1) // PIECE_COLUMNS
    workspace, powers = np.empty((1 + words.shape[0], PIECE_COLUMNS)), np.empty(n)
    for j in range(n):
        powers[j] = power_of_two(max(min(by_column[j], 1000), -1000))
    begin(engine, np.int64(config.ctypes.data))
    while True:  # a thread takes the next piece, because cores may have different speeds
        piece = atomic_add(taken, 0, 1)
        if piece >= down * across:
            break
        i0, j0 = piece % down * rows, piece // down * PIECE_COLUMNS
        i1, j1 = min(i0 + rows, m), min(j0 + PIECE_COLUMNS, n)
        shape = (i1 - i0 + ROWS - 1) // ROWS, (j1 - j0 + COLUMNS - 1) // COLUMNS
        for t in range(moduli):
            A = address_of(left[t * blocks + i0 // ROWS], 0, 0)
            B = address_of(right[t * strips + j0 // COLUMNS], 0, 0)
            _residues_of_piece(
                engine,
                A,
                B,
                address_of(left[min(t + 1, moduli - 1) * blocks + i0 // ROWS], 0, 0),
                steps,
                shape,
                address_of(constants, t, 0),
                sums[tid],
                R[tid * moduli + t],
            )
        for i in range(i0, i1):
            power = power_of_two(max(min(by_row[i], 1000), -1000))
            _subtract_row(
                row(C, i, j0, j1), address_of(R[tid * moduli], i - i0, 0), moduli, words, M, by_row[i],
                by_column[j0:j1], power, powers[j0:j1], usual, workspace,
            )  # fmt: skip
    end(engine)


#: The entry points of emulated products by a matrix engine.
BY_TILES = (scale_lines, _pack_bounds, _estimate_extremes, _pack, _multiply)
