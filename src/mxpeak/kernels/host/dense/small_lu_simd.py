"""Vector instructions for elimination in blocks of eight columns: row elimination, triangular solves and updates.

Numba itself would split the loops over eight numbers. It would also check the loops that add eight products to two
rows for overlapping memory.
"""

from __future__ import annotations

from typing import NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mxpeak.kernels.host.engine.jit import inner
from mxpeak.kernels.host.engine.vector_ir import HAS_AVX512, Vectors, constant

#: Columns of a panel, and the number of products that an update adds to each entry in one pass.
RANK = 8
#: Bytes of a cache line and of a vector register.
LINE, VECTOR = 64, 64 if HAS_AVX512 else 32


class RegisterTile(NamedTuple):
    """The shape of the block of sums that an update keeps in registers.

    rows       rows of real numbers; complex tiles have half as many (at least 2), with two sums per number
    vectors    vectors per row
    held       whether the multipliers of the rows also stay in registers; otherwise they are loaded for each tile
    """

    rows: int
    vectors: int
    held: bool


#: With 32 registers, 16 contain the multipliers of two rows. With 16 registers, 12 contain sums, and a product needs
#: 7/12 of a load. A tile of two rows by one vector with reloaded multipliers would need 1.6 loads per product.
TILE = RegisterTile(2, 1, True) if HAS_AVX512 else RegisterTile(4, 3, False)

_I64 = ir.IntType(64)


class _Largest:
    """Emit a running search for the number of largest absolute value, ignoring NaN. The first one wins ties.

    Complex numbers are compared by |Re z| + |Im z|.
    """

    def __init__(self, vectors):
        self.vectors, builder = vectors, vectors.builder
        self._best = cgutils.alloca_once_value(builder, ir.Constant(vectors.real, 0.0))
        self._place = cgutils.alloca_once_value(builder, _I64(0))

    def compare(self, address, place):
        """Emit a comparison of number `place`, at `address`, with the largest number found so far."""
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
        """Return the index of the largest number found so far."""
        return self.vectors.builder.load(self._place)


@intrinsic
def place_of_largest(typingctx, of, first, step, count):
    """Return the index of the first number of largest absolute value among `count` numbers, ignoring NaN.

    The numbers start at the address `first`, `step` bytes apart. `of` gives their type.
    """
    signature = types.int64(of, *[types.int64] * 3)

    def codegen(context, builder, signature, args):
        _, first, step, count = args
        largest = _Largest(Vectors(context, builder, of, RANK))
        with cgutils.for_range(builder, count) as loop:
            largest.compare(builder.add(first, builder.mul(loop.index, step)), loop.index)
        return largest.place

    return signature, codegen


@intrinsic
def eliminate_lines(typingctx, of, line, step, count, top, place, reciprocal):
    """Eliminate column `place` in `count` rows of an eight-column panel, and return the next pivot's index.

    The rows start at the address `line`, `step` bytes apart. In each row, entry `place` is multiplied by `reciprocal`,
    and entry·top is subtracted from the entries to its right. To the left of `place`, `top` is treated as zero, so
    these entries do not change. The result is the index of the row with the largest entry at place + 1, as in
    `place_of_largest`. The search is fused because the rows are in registers and its comparisons overlap with the
    arithmetic.
    """
    signature = types.int64(of, *[types.int64] * 5, of.dtype)

    def codegen(context, builder, signature, args):
        _, line, step, count, top, place, reciprocal = args
        vectors = Vectors(context, builder, of, RANK)
        places = constant(_I64, [lane // vectors.parts for lane in range(vectors.lanes)])
        right = builder.icmp_signed(">", places, vectors.all(place))
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
            largest.compare(builder.add(entry, _I64(vectors.size)), loop.index)
        return largest.place

    return signature, codegen


def _solving(upper):
    """Return an intrinsic that solves with an 8×8 upper or unit lower triangle T.

    Upper: X_p = (X_p - Σ_q T_pq X_q) d_p with q > p. Lower: X_p = X_p - Σ_q T_pq X_q with q < p.
    """

    @intrinsic
    def solve(typingctx, of, t, d, c, step, count):
        """Multiply eight rows of `count` numbers, which start at address c, by T^-1 in place.

        T is the triangle at address t, d is the address of its inverse diagonal, and `step` is the distance in bytes
        of the rows of both. `count` is a multiple of 8. A lower triangle is unit, and its d is not read.
        """
        signature = types.void(of, *[types.int64] * 5)

        def codegen(context, builder, signature, args):
            _, t, d, c, step, count = args
            vectors = Vectors.of_registers(context, builder, of, RANK, VECTOR)
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
    """Return an intrinsic that subtracts Σ_p L_ip U_p, p < depth, from the rows C_i."""

    @intrinsic
    def subtract(typingctx, of, c, l, u, rows, count):
        """Subtract Σ_p L_ip U_p from `rows` rows C_i of `count` numbers, a multiple of the SIMD vector length.

        c    the address of C_0, and the stride to C_1
        l    the address of L_00, the stride to L_10, and the stride to L_01
        u    the address of U_0, and the stride to U_1

        If fewer rows remain than are processed together, the last row is repeated. This is safe because all rows are
        read before any is written. A complex sum is Σ_p Re L_ip U_p + i Σ_p Im L_ip U_p.
        """
        pair, three = (types.UniTuple(types.int64, size) for size in (2, 3))
        signature = types.void(of, pair, three, pair, types.int64, types.int64)

        def codegen(context, builder, signature, args):
            _, c, l, u, rows, count = args
            vectors = Vectors.of_registers(context, builder, of, RANK, VECTOR)
            (c, c_step), (l, l_step, l_next), (u, u_step) = (
                cgutils.unpack_tuple(builder, given) for given in (c, l, u)
            )
            together = max(TILE.rows // vectors.parts, 2)
            last = builder.sub(rows, _I64(1))
            U = [builder.add(u, builder.mul(u_step, _I64(p))) for p in range(depth)]
            with cgutils.for_range_slice(builder, _I64(0), rows, _I64(together), _I64) as (i, _):
                at_once = [builder.add(i, _I64(q)) for q in range(together)]
                at_once = [builder.select(builder.icmp_signed("<", row, last), row, last) for row in at_once]
                C = [builder.add(c, builder.mul(row, c_step)) for row in at_once]
                L = [builder.add(l, builder.mul(row, l_step)) for row in at_once]
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
    """Subtract the product of L and U from the rows of C by `subtract_products`.

    This function exists so that all callers share the machine code of the intrinsic.
    """
    subtract_products(of, c, l, u, rows, count)
