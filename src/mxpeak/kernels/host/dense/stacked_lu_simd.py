"""Vector instructions for many small systems, one system per lane: every operation acts on whole vectors.

A column of n numbers of each system is n adjacent vectors. All arguments are addresses of vectors, `of` gives the type
of the numbers, and `rows` counts vectors. Numba itself would unroll the loops over the lanes and then not vectorize
them.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mxpeak.kernels.host.dense.small_lu_simd import VECTOR
from mxpeak.kernels.host.engine.vector_ir import Vectors, constant

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_INT = types.int64


def _vectors(context, builder, of):
    """Return the `Vectors` that fill a register with real numbers of the type of the array `of`."""
    return Vectors(context, builder, of, VECTOR * 8 // of.dtype.bitwidth)


def _at(builder, address, index):
    """Return the address of vector number `index` of the column at `address`."""
    return builder.add(address, builder.mul(index, _I64(VECTOR)))


def _size(vectors, value):
    """Return the absolute values of a vector."""
    name = f"llvm.fabs.v{vectors.lanes}{vectors.real.intrinsic_name}"
    kind = ir.FunctionType(vectors.type, [vectors.type])
    return vectors.builder.call(cgutils.get_or_insert_function(vectors.builder.module, kind, name), [value])


def _subtracting(depth, together):
    """Return an intrinsic that subtracts multiples of `depth` columns from `together` columns."""

    @intrinsic
    def subtract(typingctx, of, columns, factors, targets, steps, rows):
        """Subtract Σ_p u_pq l_p from column q at `targets`, q < `together`, p < `depth`.

        Column l_p is at `columns` + p·steps[0], and column q is at `targets` + q·steps[1]. The vector u_pq is at
        `factors` + p vectors + q·steps[1].
        """
        pair = types.UniTuple(_INT, 2)
        signature = types.void(of, _INT, _INT, _INT, pair, _INT)

        def codegen(context, builder, signature, args):
            _, columns, factors, targets, steps, rows = args
            vectors = _vectors(context, builder, of)
            next_column, next_target = cgutils.unpack_tuple(builder, steps, 2)
            L = [builder.add(columns, builder.mul(next_column, _I64(p))) for p in range(depth)]
            starts = [builder.mul(next_target, _I64(q)) for q in range(together)]
            minus = [
                [builder.fneg(vectors.load(_at(builder, builder.add(factors, start), _I64(p)))) for p in range(depth)]
                for start in starts
            ]
            places = [builder.add(targets, start) for start in starts]
            with cgutils.for_range(builder, rows) as loop:
                values = [vectors.load(_at(builder, column, loop.index)) for column in L]
                for of_q, place in zip(minus, places):
                    here = _at(builder, place, loop.index)
                    total = vectors.load(here)
                    for factor, value in zip(of_q, values):
                        total = vectors.add_product(factor, value, total)
                    vectors.store(total, here)
            return context.get_dummy_value()

        return signature, codegen

    return subtract


#: Number of columns of a panel, and of the columns that an update reads and writes together.
PANEL = 4
subtract_panel_from_all, subtract_panel_from_one = _subtracting(PANEL, PANEL), _subtracting(PANEL, 1)
subtract_from_one = _subtracting(1, 1)


def _lane_addresses(builder, first, step, count, lanes):
    """Return the addresses first + min(lane, count - 1)·step of all lanes."""
    last = builder.sub(count, _I64(1))
    numbers = [builder.select(builder.icmp_signed("<", _I64(lane), last), _I64(lane), last) for lane in range(lanes)]
    return [builder.add(first, builder.mul(number, step)) for number in numbers]


def _gathered(vectors, addresses):
    """Load one number per lane and return the vector."""
    value = ir.Constant(vectors.type, ir.Undefined)
    for lane, address in enumerate(addresses):
        value = vectors.builder.insert_element(value, vectors.load(address, vectors.real), _I32(lane))
    return value


@intrinsic
def load_columns(typingctx, of, first, strides, count, shape, targets, step):
    """Load a rows×columns matrix of each lane, and store the vectors of its columns at both addresses `targets`.

    Number (i, j) of lane l < `count` is at `first` + l·strides[0] + i·strides[1] + j·strides[2]; the other lanes repeat
    the last one. `step` is the distance of the target columns in bytes.
    """
    pair, three = (types.UniTuple(_INT, size) for size in (2, 3))
    signature = types.void(of, _INT, three, _INT, pair, pair, _INT)

    def codegen(context, builder, signature, args):
        _, first, strides, count, shape, targets, step = args
        vectors = _vectors(context, builder, of)
        across, down, right = cgutils.unpack_tuple(builder, strides, 3)
        rows, columns = cgutils.unpack_tuple(builder, shape, 2)
        lanes = _lane_addresses(builder, first, across, count, vectors.lanes)
        with cgutils.for_range(builder, rows) as row:
            of_row = [builder.add(lane, builder.mul(row.index, down)) for lane in lanes]
            with cgutils.for_range(builder, columns) as column:
                offset = builder.mul(column.index, right)
                value = _gathered(vectors, [builder.add(lane, offset) for lane in of_row])
                place = builder.add(_at(builder, builder.mul(column.index, step), row.index), _I64(0))
                for target in cgutils.unpack_tuple(builder, targets, 2):
                    vectors.store(value, builder.add(target, place))
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def swap_rows(typingctx, of, row, places, step, columns):
    """Exchange the vector at `row` with one number per lane, in `columns` columns that are `step` bytes apart.

    The number of a lane is in its vector as many rows below as the int32 vector at `places` contains.
    """
    signature = types.void(of, *[_INT] * 4)

    def codegen(context, builder, signature, args):
        _, row, places, step, columns = args
        vectors = _vectors(context, builder, of)
        size = vectors.size
        below = [
            builder.sext(vectors.load(builder.add(places, _I64(4 * lane)), _I32), _I64) for lane in range(vectors.lanes)
        ]
        below = [builder.add(_at(builder, row, place), _I64(size * lane)) for lane, place in enumerate(below)]
        with cgutils.for_range(builder, columns) as loop:
            offset = builder.mul(loop.index, step)
            here, there = builder.add(row, offset), [builder.add(address, offset) for address in below]
            upper, lower = vectors.load(here), _gathered(vectors, there)
            vectors.store(lower, here)  # first, because a lane without a swap writes to the same place again
            for lane, address in enumerate(there):
                vectors.store(builder.extract_element(upper, _I32(lane)), address)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def places_of_largest(typingctx, of, column, rows, places):
    """Store in each lane of the int32 vector at `places` the index of the largest |value|, ignoring NaN.

    The first one wins ties.
    """
    signature = types.void(of, *[_INT] * 3)

    def codegen(context, builder, signature, args):
        _, column, rows, places = args
        vectors = _vectors(context, builder, of)
        best = cgutils.alloca_once_value(builder, _size(vectors, vectors.load(column)))
        place = cgutils.alloca_once_value(builder, constant(_I32, [0] * vectors.lanes))
        with cgutils.for_range(builder, rows) as loop:
            size = _size(vectors, vectors.load(_at(builder, column, loop.index)))
            larger = builder.fcmp_ordered(">", size, builder.load(best))
            here = vectors.all(builder.trunc(loop.index, _I32))
            builder.store(builder.select(larger, here, builder.load(place)), place)
            builder.store(builder.select(larger, size, builder.load(best)), best)
        vectors.store(builder.load(place), places)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def invert(typingctx, of, value, inverse):
    """Store 1 / value at the address `inverse`."""
    signature = types.void(of, _INT, _INT)

    def codegen(context, builder, signature, args):
        _, value, inverse = args
        vectors = _vectors(context, builder, of)
        ones = constant(vectors.real, [1.0] * vectors.lanes)
        vectors.store(builder.fdiv(ones, vectors.load(value)), inverse)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def multiply(typingctx, of, column, factor, rows):
    """Multiply each vector of a column by the vector at the address `factor`."""
    signature = types.void(of, *[_INT] * 3)

    def codegen(context, builder, signature, args):
        _, column, factor, rows = args
        vectors = _vectors(context, builder, of)
        value = vectors.load(factor)
        with cgutils.for_range(builder, rows) as loop:
            here = _at(builder, column, loop.index)
            vectors.store(builder.fmul(vectors.load(here), value), here)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def add_sizes(typingctx, of, column, sums, total, rows):
    """Add the absolute values of a column to the vectors at `sums`, and store their sum over the rows at `total`."""
    signature = types.void(of, *[_INT] * 4)

    def codegen(context, builder, signature, args):
        _, column, sums, total, rows = args
        vectors = _vectors(context, builder, of)
        whole = cgutils.alloca_once_value(builder, vectors.zero)
        with cgutils.for_range(builder, rows) as loop:
            size, here = _size(vectors, vectors.load(_at(builder, column, loop.index))), _at(builder, sums, loop.index)
            vectors.store(builder.fadd(vectors.load(here), size), here)
            builder.store(builder.fadd(builder.load(whole), size), whole)
        vectors.store(builder.load(whole), total)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def ends(typingctx, of, column, smallest, largest, rows):
    """Store the smallest and the largest absolute value of a column, or NaN for lanes that contain NaN or Inf."""
    signature = types.void(of, *[_INT] * 4)

    def codegen(context, builder, signature, args):
        _, column, smallest, largest, rows = args
        vectors = _vectors(context, builder, of)
        first = _size(vectors, vectors.load(column))
        low, high = cgutils.alloca_once_value(builder, first), cgutils.alloca_once_value(builder, first)
        spoiled = cgutils.alloca_once_value(builder, vectors.zero)  # a sum of 0·value: NaN after a NaN or Inf
        with cgutils.for_range(builder, rows) as loop:
            size = _size(vectors, vectors.load(_at(builder, column, loop.index)))
            for end, sign in ((low, "<"), (high, ">")):
                before = builder.load(end)
                builder.store(builder.select(builder.fcmp_ordered(sign, size, before), size, before), end)
            builder.store(vectors.add_product(size, vectors.zero, builder.load(spoiled)), spoiled)
        for end, address in ((low, smallest), (high, largest)):
            vectors.store(builder.fadd(builder.load(end), builder.load(spoiled)), address)
        return context.get_dummy_value()

    return signature, codegen
