"""The two steps of an elimination by blocks of eight columns, as vector instructions: lines of a panel, and updates.

Numba's own loops over eight numbers, or eight products into two rows, would be taken apart or checked for overlaps.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mxpeak.kernels.host.native import HAS_AVX512

#: Columns of a panel, and so the products that an update adds to each entry at once.
RANK = 8
#: Bytes of a cache line, and those of the processor's vectors.
LINE, VECTOR = 64, 64 if HAS_AVX512 else 32

_I32, _I64 = ir.IntType(32), ir.IntType(64)


class _Vectors:
    """Vectors of up to 8 numbers of an array's type, in memory that need not be aligned to them."""

    def __init__(self, context, builder, array, lanes=RANK):
        self.builder = builder
        self.real = context.get_data_type(array.dtype)
        self.size = array.dtype.bitwidth // 8
        self.lanes = lanes
        self.type = ir.VectorType(self.real, self.lanes)

    def load(self, address, kind=None):
        kind = kind or self.type
        found = self.builder.load(self.builder.inttoptr(address, kind.as_pointer()))
        found.align = self.size
        return found

    def store(self, value, address):
        self.builder.store(value, self.builder.inttoptr(address, value.type.as_pointer())).align = self.size

    def all(self, value):
        """The number in all places."""
        kind = ir.VectorType(value.type, self.lanes)
        nothing, places = (
            ir.Constant(kind, ir.Undefined),
            ir.Constant(ir.VectorType(_I32, self.lanes), [0] * self.lanes),
        )
        return self.builder.shuffle_vector(self.builder.insert_element(nothing, value, _I32(0)), nothing, places)

    def add_product(self, a, b, c):
        """A b + c, rounded once where the processor can."""
        name = f"llvm.fmuladd.v{self.lanes}f{8 * self.size}"
        kind = ir.FunctionType(self.type, [self.type] * 3)
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), [a, b, c])


@intrinsic
def eliminate_line(typingctx, of, line, top, place, reciprocal):
    """Of 8 numbers at `line` and 8 at `top`: line[place] *= reciprocal, and line -= line[place]·top right of it."""
    signature = types.void(of, types.int64, types.int64, types.int64, of.dtype)

    def codegen(context, builder, signature, args):
        _, line, top, place, reciprocal = args
        vectors = _Vectors(context, builder, of)
        entry = builder.add(line, builder.mul(place, _I64(vectors.size)))
        factor = builder.fmul(vectors.load(entry, vectors.real), reciprocal)
        before = vectors.load(line)
        after = vectors.add_product(vectors.all(builder.fneg(factor)), vectors.load(top), before)
        here, places = vectors.all(place), ir.Constant(ir.VectorType(_I64, RANK), list(range(RANK)))
        after = builder.select(builder.icmp_signed(">", places, here), after, before)
        after = builder.select(builder.icmp_signed("==", places, here), vectors.all(factor), after)
        vectors.store(after, line)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def subtract_products(typingctx, of, c, l, u, step, count):
    """Two rows C_i -= Σ_p L_ip U_p, p < 8, of `count` numbers, a multiple of 8.

    c and l are the addresses of either row, u that of the first U_p, which lie at a step.  Both rows may be the same:
    it is read before it is written.
    """
    signature = types.void(of, *[types.UniTuple(types.int64, 2)] * 2, *[types.int64] * 3)

    def codegen(context, builder, signature, args):
        _, c, l, u, step, count = args
        vectors = _Vectors(context, builder, of, min(RANK, VECTOR // (of.dtype.bitwidth // 8)))
        width = _I64(vectors.lanes * vectors.size)
        starts, factors = (cgutils.unpack_tuple(builder, pair, 2) for pair in (c, l))
        factors = [
            [
                vectors.all(builder.fneg(vectors.load(builder.add(row, _I64(vectors.size * p)), vectors.real)))
                for p in range(RANK)
            ]
            for row in factors
        ]
        end = builder.mul(count, _I64(vectors.size))
        rows = [builder.add(u, builder.mul(step, _I64(p))) for p in range(RANK)]
        with cgutils.for_range_slice(builder, _I64(0), end, width, _I64) as (at, _):
            places = [builder.add(start, at) for start in starts]
            sums = [vectors.load(place) for place in places]
            for p, row in enumerate(rows):
                U = vectors.load(builder.add(row, at))
                sums = [vectors.add_product(of_row[p], U, total) for of_row, total in zip(factors, sums)]
            for total, place in zip(sums, places):
                vectors.store(total, place)
        return context.get_dummy_value()

    return signature, codegen
