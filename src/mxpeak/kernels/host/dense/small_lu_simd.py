"""The steps of an elimination by blocks of eight columns, as vector instructions: lines, triangles and updates.

Numba's own loops over eight numbers, or eight products into two rows, would be taken apart or checked for overlaps.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mxpeak.kernels.host.engine.jit import inner
from mxpeak.kernels.host.engine.vector_ir import HAS_AVX512

#: Columns of a panel, and so the products that an update adds to each entry at once.
RANK = 8
#: Bytes of a cache line, and those of the processor's vectors.
LINE, VECTOR = 64, 64 if HAS_AVX512 else 32


class Tile(NamedTuple):
    """What an update keeps in registers: sums of so many rows by so many vectors.

    rows   of real numbers; of complex ones, which take two sums each, half as many, but at least 2
    held   whether the rows' factors stay there too; else each is loaded for each tile
    """

    rows: int
    vectors: int
    held: bool


#: Of 32 registers 16 hold the factors of two rows.  Of 16 registers 12 hold sums: a product takes 7/12 of a load then,
#: where two rows by one vector, whose factors do not stay, take 1.6.
TILE = Tile(2, 1, True) if HAS_AVX512 else Tile(4, 3, False)

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
        return self.builder.fmul(self._i(), self._exchanged(value))

    def whole(self, parts):
        """The sum of parts: of complex numbers the first plus i times the second."""
        return self.add_product(self._i(), self._exchanged(parts[1]), parts[0]) if self.complex else parts[0]

    def _i(self):
        return self.alternating(ir.Constant(self.real, -1.0), ir.Constant(self.real, 1.0))

    def _exchanged(self, value):
        places = ir.Constant(ir.VectorType(_I32, self.lanes), [lane ^ 1 for lane in range(self.lanes)])
        return self.builder.shuffle_vector(value, value, places)

    def turned(self, value):
        """The value and, of complex numbers, i times it: by these a number's parts are multiplied."""
        return [value, self.times_i(value)] if self.complex else [value]

    def everywhere(self, address):
        """The parts of the number there, each in all places."""
        return [self.all(part) for part in self.number(address)]

    def minus(self, address):
        """The same of its negative."""
        return [self.builder.fneg(self.all(part)) for part in self.number(address)]

    def across(self, count, most):
        """Loops over the offsets of the vectors of a row of `count` numbers, `most` together, then one by one."""
        size, begin, length = self.lanes * self.bits // 8, _I64(0), self.builder.mul(count, _I64(self.size))
        for width in (most, 1) if most > 1 else (1,):
            step = _I64(width * size)
            left = self.builder.sub(length, begin)
            end = self.builder.add(begin, self.builder.mul(self.builder.udiv(left, step), step))
            with cgutils.for_range_slice(self.builder, begin, end, step, _I64) as (at, _):
                yield [self.builder.add(at, _I64(size * i)) for i in range(width)]
            begin = end

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


class _Largest:
    """The largest of numbers that are looked at one by one, the first of equals; NaN is none.

    A complex number's size is |Re z| + |Im z|.
    """

    def __init__(self, vectors):
        self.vectors, builder = vectors, vectors.builder
        self._best = cgutils.alloca_once_value(builder, ir.Constant(vectors.real, 0.0))
        self._place = cgutils.alloca_once_value(builder, _I64(0))

    def look(self, address, place):
        """At the number there."""
        vectors, builder = self.vectors, self.vectors.builder
        kind = ir.FunctionType(vectors.real, [vectors.real])
        absolute = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fabs.f{vectors.bits}")
        sizes = [builder.call(absolute, [part]) for part in vectors.number(address)]
        size = builder.fadd(*sizes) if vectors.complex else sizes[0]
        larger = builder.fcmp_ordered(">", size, builder.load(self._best))
        builder.store(builder.select(larger, place, builder.load(self._place)), self._place)
        builder.store(builder.select(larger, size, builder.load(self._best)), self._best)

    @property
    def place(self):
        """Where the largest is."""
        return self.vectors.builder.load(self._place)


@intrinsic
def place_of_largest(typingctx, of, first, step, count):
    """Which of `count` numbers at a step from an address on is the largest, the first of equals; NaN is none."""
    signature = types.int64(of, *[types.int64] * 3)

    def codegen(context, builder, signature, args):
        _, first, step, count = args
        largest = _Largest(_Vectors(context, builder, of))
        with cgutils.for_range(builder, count) as loop:
            largest.look(builder.add(first, builder.mul(loop.index, step)), loop.index)
        return largest.place

    return signature, codegen


@intrinsic
def eliminate_lines(typingctx, of, line, step, count, top, place, reciprocal):
    """`count` lines of 8 numbers at a step: line[place] *= reciprocal, and line -= line[place]·top right of it.

    Left of it top is taken for zero, which changes nothing there.  Returns which line is the largest in the next place,
    as `place_of_largest` would: that waits for no memory, and its comparisons go beside the arithmetic.
    """
    signature = types.int64(of, *[types.int64] * 5, of.dtype)

    def codegen(context, builder, signature, args):
        _, line, step, count, top, place, reciprocal = args
        vectors = _Vectors(context, builder, of)
        kind = ir.VectorType(_I64, vectors.lanes)
        right = builder.icmp_signed(
            ">", ir.Constant(kind, [lane // vectors.parts for lane in range(vectors.lanes)]), vectors.all(place)
        )
        turned = vectors.turned(builder.select(right, vectors.load(top), vectors.zero))
        before = builder.mul(place, _I64(vectors.size))
        largest = _Largest(vectors)
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
            largest.look(builder.add(entry, _I64(vectors.size)), loop.index)
        return largest.place

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


def _subtracting(depth):
    """Rows C_i -= Σ_p L_ip U_p, p < depth."""

    @intrinsic
    def subtract(typingctx, of, c, l, u, rows, count):
        """So many rows of `count` numbers, a multiple of a vector's.

        c    the address of C_0, and the step to C_1
        l    that of L_00, the step to L_10, and that to L_01
        u    that of U_0, and the step to U_1
        Where the last rows are fewer than are taken at once, the last one is taken again: all are read before they are
        written.  Complex: Σ_p Re L_ip U_p + i Σ_p Im L_ip U_p.
        """
        pair, three = (types.UniTuple(types.int64, size) for size in (2, 3))
        signature = types.void(of, pair, three, pair, types.int64, types.int64)

        def codegen(context, builder, signature, args):
            _, c, l, u, rows, count = args
            vectors = _Vectors.of_registers(context, builder, of)
            (c, c_step), (l, l_step, l_next), (u, u_step) = (
                cgutils.unpack_tuple(builder, given) for given in (c, l, u)
            )
            together = max(TILE.rows // vectors.parts, 2)
            last = builder.sub(rows, _I64(1))
            U = [builder.add(u, builder.mul(u_step, _I64(p))) for p in range(depth)]
            with cgutils.for_range_slice(builder, _I64(0), rows, _I64(together), _I64) as (i, _):
                taken = [builder.add(i, _I64(q)) for q in range(together)]
                taken = [builder.select(builder.icmp_signed("<", row, last), row, last) for row in taken]
                C = [builder.add(c, builder.mul(row, c_step)) for row in taken]
                L = [builder.add(l, builder.mul(row, l_step)) for row in taken]
                places = [[builder.add(row, builder.mul(l_next, _I64(p))) for row in L] for p in range(depth)]
                held = [[vectors.minus(place) for place in of_p] for of_p in places] if TILE.held else None
                for at in vectors.across(count, TILE.vectors):
                    spots = [[builder.add(row, offset) for offset in at] for row in C]
                    nothing = [vectors.zero] * (vectors.parts - 1)
                    sums = [[[vectors.load(spot), *nothing] for spot in row] for row in spots]
                    for p in range(depth):
                        line = [vectors.load(builder.add(U[p], offset)) for offset in at]
                        for q, row in enumerate(sums):
                            factors = held[p][q] if held else vectors.minus(places[p][q])
                            for value, parts in zip(line, row):
                                parts[:] = [vectors.add_product(f, value, total) for f, total in zip(factors, parts)]
                    for of_row, row in zip(sums, spots):
                        for total, spot in zip(of_row, row):
                            vectors.store(vectors.whole(total), spot)
            return context.get_dummy_value()

        return signature, codegen

    return subtract


subtract_products, subtract_product = _subtracting(RANK), _subtracting(1)


@inner()
def products(of, c, l, u, rows, count):
    """`subtract_products`, made machine code once for all who take products."""
    subtract_products(of, c, l, u, rows, count)
