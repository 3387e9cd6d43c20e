"""The steps of an elimination by blocks of eight columns, as vector instructions: lines, triangles and updates.

Numba's own loops over eight numbers, or eight products into two rows, would be taken apart or checked for overlaps.
"""

from __future__ import annotations

from contextlib import contextmanager

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
    """Vectors of up to 8 numbers of an array's type, in memory that need not be aligned to them.

    A complex number is two reals side by side, and so are its parts in a vector.
    """

    def __init__(self, context, builder, array, numbers=RANK):
        self.builder = builder
        self.complex = isinstance(array.dtype, types.Complex)
        of = array.dtype.underlying_float if self.complex else array.dtype
        self.real = context.get_data_type(of)
        self.bits = of.bitwidth
        self.parts = 2 if self.complex else 1
        self.size = self.parts * of.bitwidth // 8
        self.lanes = self.parts * numbers
        self.type = ir.VectorType(self.real, self.lanes)
        self.zero = ir.Constant(self.type, [0.0] * self.lanes)

    @classmethod
    def of_registers(cls, context, builder, array):
        """As long as the processor's, or shorter."""
        return cls(context, builder, array, min(RANK, VECTOR // cls(context, builder, array).size))

    def load(self, address, kind=None):
        kind = kind or self.type
        found = self.builder.load(self.builder.inttoptr(address, kind.as_pointer()))
        found.align = self.bits // 8
        return found

    def store(self, value, address):
        self.builder.store(value, self.builder.inttoptr(address, value.type.as_pointer())).align = self.bits // 8

    def number(self, address):
        """The parts of the number there."""
        return [
            self.load(self.builder.add(address, _I64(part * self.bits // 8)), self.real) for part in range(self.parts)
        ]

    def all(self, value):
        """The value in all places."""
        kind = ir.VectorType(value.type, self.lanes)
        nothing, places = (
            ir.Constant(kind, ir.Undefined),
            ir.Constant(ir.VectorType(_I32, self.lanes), [0] * self.lanes),
        )
        return self.builder.shuffle_vector(self.builder.insert_element(nothing, value, _I32(0)), nothing, places)

    def alternating(self, even, odd):
        """Two values by turns."""
        places = ir.Constant(ir.VectorType(_I32, self.lanes), [0, self.lanes] * (self.lanes // 2))
        return self.builder.shuffle_vector(self.all(even), self.all(odd), places)

    def times_i(self, value):
        """i times complex numbers: (-b, a) for (a, b)."""
        places = ir.Constant(ir.VectorType(_I32, self.lanes), [lane ^ 1 for lane in range(self.lanes)])
        minus = self.alternating(ir.Constant(self.real, -1.0), ir.Constant(self.real, 1.0))
        return self.builder.fmul(minus, self.builder.shuffle_vector(value, value, places))

    def turned(self, value):
        """The value and, of complex numbers, i times it: by these a number's parts are multiplied."""
        return [value, self.times_i(value)] if self.complex else [value]

    def everywhere(self, address):
        """The parts of the number there, each in all places."""
        return [self.all(part) for part in self.number(address)]

    def minus(self, address):
        """The same of its negative."""
        return [self.all(self.builder.fneg(part)) for part in self.number(address)]

    @contextmanager
    def along(self, count):
        """Loop over the offsets at which vectors of a row of `count` numbers lie."""
        end, width = self.builder.mul(count, _I64(self.size)), _I64(self.lanes * self.bits // 8)
        with cgutils.for_range_slice(self.builder, _I64(0), end, width, _I64) as (at, _):
            yield at

    def add_products(self, parts, turned, c):
        """A b + c for a number's parts, each in all places, and a value that is turned."""
        for part, value in zip(parts, turned):
            c = self.add_product(part, value, c)
        return c

    def add_product(self, a, b, c):
        """A b + c, rounded once where the processor can."""
        name = f"llvm.fmuladd.v{self.lanes}f{self.bits}"
        kind = ir.FunctionType(self.type, [self.type] * 3)
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), [a, b, c])


@intrinsic
def place_of_largest(typingctx, of, first, step, count):
    """Which of `count` numbers at a step from an address on is the largest, the first of equals; NaN is none.

    A complex number's size is |Re z| + |Im z|.
    """
    signature = types.int64(of, *[types.int64] * 3)

    def codegen(context, builder, signature, args):
        _, first, step, count = args
        vectors = _Vectors(context, builder, of)
        absolute = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(vectors.real, [vectors.real]), f"llvm.fabs.f{vectors.bits}"
        )
        best = cgutils.alloca_once_value(builder, ir.Constant(vectors.real, 0.0))
        place = cgutils.alloca_once_value(builder, _I64(0))
        with cgutils.for_range(builder, count) as loop:
            parts = vectors.number(builder.add(first, builder.mul(loop.index, step)))
            sizes = [builder.call(absolute, [part]) for part in parts]
            size = builder.fadd(*sizes) if vectors.complex else sizes[0]
            larger = builder.fcmp_ordered(">", size, builder.load(best))
            builder.store(builder.select(larger, loop.index, builder.load(place)), place)
            builder.store(builder.select(larger, size, builder.load(best)), best)
        return builder.load(place)

    return signature, codegen


@intrinsic
def eliminate_lines(typingctx, of, line, step, count, top, place, reciprocal):
    """`count` lines of 8 numbers at a step: line[place] *= reciprocal, and line -= line[place]·top right of it.

    Left of it top is taken for zero, which changes nothing there.
    """
    signature = types.void(of, *[types.int64] * 5, of.dtype)

    def codegen(context, builder, signature, args):
        _, line, step, count, top, place, reciprocal = args
        vectors = _Vectors(context, builder, of)
        kind = ir.VectorType(_I64, vectors.lanes)
        right = builder.icmp_signed(
            ">", ir.Constant(kind, [lane // vectors.parts for lane in range(vectors.lanes)]), vectors.all(place)
        )
        turned = vectors.turned(builder.select(right, vectors.load(top), vectors.zero))
        before = builder.mul(place, _I64(vectors.size))
        with cgutils.for_range(builder, count) as loop:
            here = builder.add(line, builder.mul(loop.index, step))
            entry = builder.add(here, before)
            if vectors.complex:
                (a, b), (c, d) = vectors.number(entry), cgutils.unpack_tuple(builder, reciprocal, 2)
                real = builder.fsub(builder.fmul(a, c), builder.fmul(b, d))
                factor = [real, builder.fadd(builder.fmul(a, d), builder.fmul(b, c))]
            else:
                factor = [builder.fmul(vectors.number(entry)[0], reciprocal)]
            minus = [vectors.all(builder.fneg(part)) for part in factor]
            vectors.store(vectors.add_products(minus, turned, vectors.load(here)), here)
            for part, value in enumerate(factor):
                vectors.store(value, builder.add(entry, _I64(part * vectors.bits // 8)))
        return context.get_dummy_value()

    return signature, codegen


def _solving(upper):
    """X_p = (X_p - Σ_q T_pq X_q) d_p with q > p, or without d_p and with q < p."""

    @intrinsic
    def solve(typingctx, of, t, d, c, step, count):
        """Eight rows of `count` numbers, a multiple of 8, from address c on, become T^-1 times themselves.

        T is the triangle at t of eight rows at the same step, d the address of its inverse diagonal; if lower, it is
        unit and d is not read.
        """
        signature = types.void(of, *[types.int64] * 5)

        def codegen(context, builder, signature, args):
            _, t, d, c, step, count = args
            vectors = _Vectors.of_registers(context, builder, of)
            order = range(RANK - 1, -1, -1) if upper else range(RANK)
            starts = {p: builder.mul(step, _I64(p)) for p in order}
            factors = {
                (p, q): vectors.minus(builder.add(builder.add(t, starts[p]), _I64(vectors.size * q)))
                for i, p in enumerate(order)
                for q in order[:i]
            }
            inverses = {p: vectors.everywhere(builder.add(d, _I64(vectors.size * p))) for p in order if upper}
            with vectors.along(count) as at:
                X: dict[int, list[ir.Value]] = {}
                for i, p in enumerate(order):
                    place = builder.add(builder.add(c, starts[p]), at)
                    x = vectors.load(place)
                    for q in order[:i]:
                        x = vectors.add_products(factors[p, q], X[q], x)
                    if upper:
                        x = vectors.add_products(inverses[p], vectors.turned(x), vectors.zero)
                    vectors.store(x, place)
                    X[p] = vectors.turned(x)
            return context.get_dummy_value()

        return signature, codegen

    return solve


solve_lower, solve_upper = _solving(upper=False), _solving(upper=True)


@intrinsic
def subtract_products(typingctx, of, c, l, u, step, count):
    """Two rows C_i -= Σ_p L_ip U_p, p < 8, of `count` numbers, a multiple of 8.

    c and l are the addresses of either row, u that of the first U_p, which lie at a step.  Both rows may be the same:
    it is read before it is written.  Complex: Σ_p Re L_ip U_p + i Σ_p Im L_ip U_p.
    """
    signature = types.void(of, *[types.UniTuple(types.int64, 2)] * 2, *[types.int64] * 3)

    def codegen(context, builder, signature, args):
        _, c, l, u, step, count = args
        vectors = _Vectors.of_registers(context, builder, of)
        starts, factors = (cgutils.unpack_tuple(builder, pair, 2) for pair in (c, l))
        factors = [[vectors.minus(builder.add(row, _I64(vectors.size * p))) for p in range(RANK)] for row in factors]
        rows = [builder.add(u, builder.mul(step, _I64(p))) for p in range(RANK)]
        with vectors.along(count) as at:
            places = [builder.add(start, at) for start in starts]
            sums = [[vectors.load(place), vectors.zero][: vectors.parts] for place in places]
            for p, row in enumerate(rows):
                U = vectors.load(builder.add(row, at))
                sums = [
                    [vectors.add_product(factor, U, total) for factor, total in zip(of_row[p], of_parts)]
                    for of_row, of_parts in zip(factors, sums)
                ]
            for total, place in zip(sums, places):
                vectors.store(builder.fadd(total[0], vectors.times_i(total[1])) if vectors.complex else total[0], place)
        return context.get_dummy_value()

    return signature, codegen
