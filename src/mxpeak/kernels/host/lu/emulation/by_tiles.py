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
from math import log2, prod
from typing import Any, NamedTuple

import numpy as np

from mxpeak.kernels.contract.emulation import (
    BITS,
    DEPTH,
    HOST_BLOCK,
    LEAST,
    MODULI,
    NATIVE,
    USUAL,
    WORD,
    Emulation,
    blocks,
    emulated_with,
    moduli_for,
    residues,
)
from mxpeak.kernels.host.engine.matrix_engines import COLUMNS, PACKED, ROWS, STEP_BYTES, TILE_CONFIG
from mxpeak.kernels.host.engine.team import Team
from mxpeak.kernels.host.lu.emulation.packing import pack, pack_bounds, scale_lines
from mxpeak.kernels.host.lu.emulation.residue_ir import DIGIT, DIGITS, FEW_DIGITS, HALF, LANES
from mxpeak.kernels.host.lu.emulation.scaling import NOT_FINITE, significant_bits
from mxpeak.kernels.host.lu.emulation.tile_products import PIECE_COLUMNS, PIECE_ROWS, estimate_extremes, multiply
from mxpeak.kernels.host.lu.operands import aligned
from mxpeak.kernels.host.lu.row_moves import copy_block

Array = np.ndarray[Any, np.dtype[Any]]

#: The bytes for the residues of the operands of a block with USUAL moduli.
BLOCK_MEMORY = 1 << 29
#: Exponents for which sums are scaled by one multiplication per row and one per column.
USUAL_EXPONENT = 300


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


class TileLines(NamedTuple):
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
    def of(memory: Memory, name: str, count: int, k: int) -> TileLines:
        """Return memory for `count` lines of length k."""
        entries = memory.array(name, (count, k), np.float64)
        return TileLines(entries, np.empty(count, np.int64), np.empty(count), np.empty(count))


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
    for rows, columns, depths in blocks(m, n, k, block_side(k)):
        for depth in depths:
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
        self.left, self.right = TileLines.of(memory, "rows", m, self.k), TileLines.of(memory, "columns", n, self.k)

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
            table = np.array([digit_residues(m) for m in MODULI[:moduli]], np.float32)
            self.run(pack, self.threads, left.entries, right.entries, p, q, digits, table, *operands)
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
        self.run(pack_bounds, self.threads, left.entries, right.entries, *bounds)
        by_row, by_column, smallest, _ = self._estimate(bounds, _inverse(left.sums), _inverse(right.sums))
        p, q = (significant_bits(_inverse(ratio)) for ratio in (by_row, by_column))
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
        self.run(estimate_extremes, threads, self.engine, TILE_CONFIG, *arguments)
        by_column = by_column.min(axis=0)[: len(y)]
        return by_row.min(axis=1), by_column, float(extremes[:, 0].min()), float(extremes[:, 1].max())

    def _multiply(self, operands: Operands, by_row: Array, by_column: Array, moduli: int) -> None:
        """Subtract the product of the packed operands, scaled by 2^(by_row_i + by_column_l), from C."""
        constants = np.array([tile_constants(m) for m in MODULI[:moduli]], np.float32)
        words, M = fraction_words(moduli)
        sums = self.memory.array("sums", (self.threads, 2 * PIECE_ROWS // ROWS, ROWS * COLUMNS), np.int32)
        R = self.memory.array("R", (self.threads * moduli, PIECE_ROWS, PIECE_COLUMNS), np.int8)
        usual = max(np.abs(by_row).max(), np.abs(by_column).max()) <= USUAL_EXPONENT
        self.run(
            multiply, self.threads, self.engine, TILE_CONFIG, self.C, *operands, constants, sums, R, words, M,
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


def digit_residues(modulus: int) -> list[float]:
    """Return -m, 1/m and the residues of the powers of 2^DIGIT."""
    return [-modulus, 1 / modulus, *(_centred(pow(2, DIGIT * d, modulus), modulus) for d in range(DIGITS))]


def tile_constants(modulus: int) -> tuple[float, float, float]:
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


#: The entry points of emulated products by a matrix engine.
BY_TILES = (scale_lines, pack_bounds, estimate_extremes, pack, multiply)
