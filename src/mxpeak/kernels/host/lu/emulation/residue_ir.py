"""Vector instructions for residues of INT8 products, which Numba does not emit by itself.

The sums of a tile and the digits of integers are reduced LANES at a time, exactly in fp32.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mxpeak.kernels.host.engine.vector_ir import constant

#: Bits of a digit, and numbers of digits. Integers are divided into digits to compute their residues, because sums of
#: four products of a digit and a residue are exact in fp32. FEW_DIGITS suffice for lines without large spans.
DIGIT, FEW_DIGITS, DIGITS = 15, 4, 8
#: Numbers in a vector.
LANES = 16
#: Adding it to a number below 2^22 rounds the number to an integer, which its lowest bits then contain.
ROUND = np.float32(1.5 * 2.0**23)
#: The bits by which a sum of a tile is divided in two, so that its residues are computed exactly in fp32.
HALF = 12


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


def _numbers_at(builder, address, count):
    """Return the first fp32 numbers at an address."""
    first = builder.inttoptr(address, ir.FloatType().as_pointer())
    return [builder.load(builder.gep(first, [ir.IntType(64)(index)])) for index in range(count)]


@intrinsic
def store_residues_of_sums(typingctx, sums, out, constants):
    """Store the residues of LANES sums at address `out`; `constants` is the address of those of `tile_constants`.

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
def store_residues_of_digits(typingctx, digits, row_bytes, wide, out, constants):
    """Store the residues of LANES integers at address `out`, whose digits begin at the address `digits`.

    The d-th digits are d·row_bytes further on. `wide` is whether there are DIGITS digits instead of FEW_DIGITS.
    `constants` is the address of those of `digit_residues`.
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


@intrinsic
def update_extremes(typingctx, g, x_i, y, by_row, by_column, extremes):
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
