"""Emit sums over slots of a sparse matrix as vector instructions.

Numba's own loops would not keep the sums in registers. A slot is one stored entry of each of the LANES rows of a
chunk. Its values are contiguous and have one of these formats. They are widened to the type of the sums when they are
loaded, as is x if it has 16 bits:

    float64, float32     unchanged
    int16                bf16: the upper half of an fp32
    uint16               fp16
    uint8                fp8 (E4M3): 2^120 · (the seven bits as exponent and fraction of an fp32), also for subnormals
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numba
from llvmlite import ir
from llvmlite.binding import get_host_cpu_name
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mxpeak.kernels.host.engine.vector_ir import HAS_AVX512, HAS_FP16, Vectors, constant, data_of, emit_prefetch

#: Bits for the kinds of slots that a matrix has (`chunk_format`).
RUNS, NEARS, FARS = 1, 2, 4
#: Rows of a chunk of independent rows, and rows of a chunk of successive rows, which depend on each other.
LANES = 64
SUCCESSIVE = 32
#: Successive rows whose recurrence is solved together, from the last x before the block.
RECURRENCE_BLOCK = 8
#: Rows of a group that contains every second row; each group of a chunk may begin at any row.
EVERY_SECOND = 8
#: Bytes of sums that are in registers at a time: eight of AVX-512's 32 registers, or 16 narrower registers. All lanes
#: of a slot are processed together, because hardware prefetchers do not follow values that are read in pieces.
#: Otherwise, fp64 on a Zen 4 would reach 35 % of the bandwidth instead of 60 %.
WIDTH = 512 if HAS_AVX512 else 256
_AMD = (numba.config.CPU_NAME or get_host_cpu_name()).startswith("znver")
#: Whether a gather is slower than scalar loads. On AMD, LLVM also replaces gathers by scalar loads, but first moves
#: the columns to vectors.
SLOW_GATHERS = _AMD
#: Whether to prefetch in software. On a Zen 3, software prefetching is slower.
PREFETCHES = HAS_AVX512 or not _AMD

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F32 = ir.FloatType()
#: The LLVM type of each stored format.
STORED = {types.float64: ir.DoubleType(), types.float32: F32, types.int16: I16, types.uint16: I16, types.uint8: I8}


class SlotSpan(NamedTuple):
    """A range of a chunk's slots, as the intrinsics of this module receive it.

    values, value0      the stored values, and the index of the first value
    columns, column0    the bases of runs or the columns of lanes, and the index of the first
    count               the number of slots
    """

    values: Any
    value0: Any
    columns: Any
    column0: Any
    count: Any


def load_values(vectors, format_, address):
    """Load a vector of stored values from `address`, and convert it to the type of the sums."""
    builder, kind = vectors.builder, ir.VectorType(STORED[format_], vectors.lanes)
    bits = builder.load(builder.bitcast(address, kind.as_pointer()), align=format_.bitwidth // 8)
    return _widened(builder, format_, bits, vectors.real)


def _widened(builder, format_, bits, real):
    """Convert a vector of stored values to the type of the sums."""
    count = bits.type.count
    fp32 = ir.VectorType(F32, count)
    if format_ in (types.float64, types.float32):
        value = bits
    elif format_ == types.int16:
        words = builder.zext(bits, ir.VectorType(I32, count))
        value = builder.bitcast(builder.shl(words, constant(I32, [16] * count)), fp32)
    elif format_ == types.uint16 and HAS_FP16:
        value = builder.fpext(builder.bitcast(bits, ir.VectorType(ir.HalfType(), count)), fp32)
    elif format_ == types.uint16:
        value = _rebias(builder, bits, fraction=10, bias=15)
    else:
        value = _rebias(builder, bits, fraction=3, bias=7)
    if value.type.element == real:
        return value
    wide = ir.VectorType(real, count)
    return builder.fpext(value, wide) if value.type == fp32 else builder.fptrunc(value, wide)


def _rebias(builder, bits, *, fraction, bias):
    """Convert finite numbers with `fraction` fraction bits and the exponent bias `bias` to fp32.

    Exponent and fraction are shifted, and the result is multiplied by 2^(difference of the biases).
    """
    sign, count = 1 << (bits.type.element.width - 1), bits.type.count
    words = builder.zext(bits, ir.VectorType(I32, count))
    size, minus = (
        builder.shl(builder.and_(words, constant(I32, [mask] * count)), constant(I32, [shift] * count))
        for mask, shift in ((sign - 1, 23 - fraction), (sign, 32 - bits.type.element.width))
    )
    fp32 = ir.VectorType(F32, count)
    value = builder.fmul(builder.bitcast(size, fp32), constant(F32, [2.0 ** (127 - bias)] * count))
    return builder.bitcast(builder.or_(builder.bitcast(value, words.type), minus), fp32)


@intrinsic
def widened_value(typingctx, value, like):
    """Convert one stored value to the type of `like`, and return the result."""

    def codegen(context, builder, signature, args):
        format_, real = signature.args[0], context.get_value_type(signature.args[1])
        nothing = ir.Constant(ir.VectorType(STORED[format_], 1), [ir.Undefined])
        lane = builder.insert_element(nothing, args[0], I32(0))
        return builder.extract_element(_widened(builder, format_, lane, real), I32(0))

    return like(value, like), codegen


class _SlotSums:
    """Emit Σ_s a_s x_s over the slots s, for one vector of lanes after the other.

    The method `run` and the methods after it emit the product of slot s for the lanes from lane0 on. They load x and
    call add(x), which emits the multiplication and the addition.
    """

    def __init__(self, context, builder, kinds, args, lanes):
        slots, x, self.rows, out, fresh, self.ahead, down = args
        self.builder, self.lanes, self.format = builder, lanes, kinds[0][0].dtype
        values, value0, columns, column0, self.count = cgutils.unpack_tuple(builder, slots)
        self.values = builder.gep(data_of(context, builder, kinds[0][0], values), [value0])
        self.columns = builder.gep(data_of(context, builder, kinds[0][2], columns), [column0])
        self.x, self.out = data_of(context, builder, kinds[1], x), data_of(context, builder, kinds[3], out)
        self.narrow = None if kinds[1].dtype == kinds[3].dtype else kinds[1].dtype
        if isinstance(kinds[2], types.Array):
            starts = data_of(context, builder, kinds[2], self.rows)
            self.rows = [builder.load(builder.gep(starts, [I64(g)])) for g in range(lanes // EVERY_SECOND)]
        self.is_fresh = builder.trunc(fresh, ir.IntType(1))
        self.prefetches = PREFETCHES and kinds[5] != types.none
        self.first, self.step = I64(0), I64(1)
        if kinds[6] != types.none:
            goes_down = builder.trunc(down, ir.IntType(1))
            self.first = builder.select(goes_down, builder.sub(self.count, self.step), self.first)
            self.step = builder.select(goes_down, I64(-1), self.step)

    def emit(self, vectors, lane0, product):
        """Emit the loop over slots that computes the sums of one vector of lanes, which begins at lane0.

        `product` is the method that emits the product of one slot.
        """
        builder, self.vectors = self.builder, vectors
        values, out = (builder.gep(pointer, [I64(lane0)]) for pointer in (self.values, self.out))
        total = cgutils.alloca_once_value(builder, vectors.zero)
        with builder.if_then(builder.not_(self.is_fresh)):
            builder.store(vectors.load(out), total)
        entry, loop, done = builder.block, builder.append_basic_block("slots"), builder.append_basic_block("summed")
        builder.cbranch(builder.icmp_signed(">", self.count, I64(0)), loop, done)
        builder.position_at_end(loop)
        s, remaining = builder.phi(I64), builder.phi(I64)  # Numba's loops, which count up, keep a third index
        s.add_incoming(self.first, entry)
        remaining.add_incoming(self.count, entry)
        value = builder.gep(values, [builder.mul(s, I64(self.lanes))])
        self._prefetch(value, self.format.bitwidth // 8)

        def add(x):
            return vectors.add_product(load_values(vectors, self.format, value), x, builder.load(total))

        builder.store(product(self, s, lane0, add), total)
        after, last = builder.sub(remaining, I64(1)), builder.block
        s.add_incoming(builder.add(s, self.step), last)
        remaining.add_incoming(after, last)
        builder.cbranch(builder.icmp_signed(">", after, I64(0)), loop, done)
        builder.position_at_end(done)
        vectors.store(builder.load(total), out)

    def run(self, s, lane0, add):
        """Emit the addition of a_s · x[base + row + lane0 …] to the sums for a run s, and return the new sums."""
        return add(self._load_x(self.builder.add(self.builder.add(self._base(s), self.rows), I64(lane0))))

    def every_second(self, s, lane0, add):
        """Emit the addition of a_s · x[base + rows[g] + 2·k] to the sums for a run s, and return the new sums.

        Lane k of each group g contains row rows[g] + 2·k.
        """
        base = self._base(s)
        return add(self._load_groups([self.builder.add(base, row) for row in self.rows[lane0 // EVERY_SECOND :]]))

    def columns_of_lanes(self, s, lane0, add, apart=1):
        """Emit the addition of a_s · x[columns …] to the sums for a slot s with columns, and return the new sums.

        x is loaded as vectors if the columns are consecutive or, for `apart` = 2, two apart in each group. Otherwise,
        each lane is loaded separately.
        """
        builder, lanes = self.builder, self.vectors.lanes
        group = lanes if apart == 1 else EVERY_SECOND
        at = builder.gep(self.columns, [builder.add(builder.mul(s, I64(self.lanes)), I64(lane0))])
        self._prefetch(at, 4)
        numbers = ir.VectorType(I32, lanes)
        columns = builder.load(builder.bitcast(at, numbers.as_pointer()), align=4)
        firsts = [builder.load(builder.gep(at, [I64(lane)])) for lane in range(0, lanes, group)]
        of_groups = constant(I32, [lane // group * group for lane in range(lanes)])
        steps = constant(I32, [lane % group * apart for lane in range(lanes)])
        others = builder.xor(columns, builder.add(builder.shuffle_vector(columns, columns, of_groups), steps))
        any_bit = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(I32, [numbers]), f"llvm.vector.reduce.or.v{lanes}i32"
        )
        with builder.if_else(builder.icmp_signed("==", builder.call(any_bit, [others]), I32(0))) as (run, scattered):
            with run:
                firsts = [builder.zext(first, I64) for first in firsts]
                of_run = add(self._load_x(firsts[0]) if apart == 1 else self._load_groups(firsts))
                run_block = builder.block
            with scattered:
                loaded = self._load_by_lane(at) if SLOW_GATHERS else self._gather(columns)
                of_others, others_block = add(loaded), builder.block
        total = builder.phi(self.vectors.type)
        total.add_incoming(of_run, run_block)
        total.add_incoming(of_others, others_block)
        return total

    def _base(self, s):
        """Load the base of run s as a 64-bit integer."""
        return self.builder.sext(self.builder.load(self.builder.gep(self.columns, [s])), I64)

    def _load_x(self, first, kind=None):
        """Load a vector that starts at x[first], and widen its numbers if x is narrower than the sums."""
        address = self.builder.gep(self.x, [first])
        return (
            self.vectors.load(address, kind) if self.narrow is None else load_values(self.vectors, self.narrow, address)
        )

    def _load_groups(self, firsts):
        """Load x[firsts[g] + 2·k] for all groups g into one vector, two groups at a time."""
        builder = self.builder
        twice = ir.VectorType(self.vectors.real, 2 * EVERY_SECOND)
        even = constant(I32, range(0, 2 * twice.count, 2))
        both = [self._load_x(first, twice) for first in firsts]
        parts = [builder.shuffle_vector(first, second, even) for first, second in zip(both[::2], both[1::2])]
        while parts[0].type.count < self.vectors.lanes:
            every = constant(I32, range(2 * parts[0].type.count))
            parts = [builder.shuffle_vector(first, second, every) for first, second in zip(parts[::2], parts[1::2])]
        return parts[0]

    def _load_by_lane(self, columns):
        """Load x[columns[0]], x[columns[1]] … individually into one vector."""
        builder, x = self.builder, ir.Constant(self.vectors.type, ir.Undefined)
        for lane in range(self.vectors.lanes):
            column = builder.zext(builder.load(builder.gep(columns, [I64(lane)])), I64)
            x = builder.insert_element(x, builder.load(builder.gep(self.x, [column])), I32(lane))
        return x

    def _gather(self, columns):
        """Load x[columns] by one gather instruction."""
        builder, wide, lanes = self.builder, self.vectors.type, self.vectors.lanes
        # llvmlite's builder has no vectors of addresses
        pointers = ir.instructions.GEPInstr(builder.block, self.x, [columns], True, "", source_etype=wide.element)
        pointers.type = ir.VectorType(ir.PointerType(), lanes)
        builder._insert(pointers)
        mask = ir.VectorType(ir.IntType(1), lanes)
        name = f"llvm.masked.gather.v{lanes}f{self.vectors.bits}.v{lanes}p0"
        gather = ir.FunctionType(wide, [pointers.type, I32, mask, wide])
        function = cgutils.get_or_insert_function(builder.module, gather, name)
        every, nothing = constant(mask.element, [1] * lanes), ir.Constant(wide, ir.Undefined)
        return builder.call(function, [pointers, I32(self.vectors.bits // 8), every, nothing])

    def _prefetch(self, address, size):
        """Emit prefetches of one vector of numbers of `size` bytes each, `ahead` numbers after `address`."""
        if self.prefetches:
            first = self.builder.ptrtoint(self.builder.gep(address, [self.ahead]), I64)
            for line in range(0, size * self.vectors.lanes, 64):
                emit_prefetch(self.builder, self.builder.add(first, I64(line)), 0)


def _summing(product, lanes, summed=None):
    """Return an intrinsic that sums over slots with `lanes` lanes, or over only their first `summed` lanes."""

    @intrinsic
    def sum_slots(typingctx, slots, x, rows, out, fresh, ahead, down):
        """Compute out[lane] = Σ_s a_s[lane] · x_s[lane], or add the sum to `out` if not `fresh`.

        a_s[lane] is values[value0 + s·lanes + lane], and x_s contains the entries of x that slot s multiplies.

        rows     the row of lane 0 for runs; the first row of each group for runs of every second row; None for columns
        ahead    the distance at which values and columns are prefetched, in numbers; None: no prefetching
        down     whether to start at the last slot; None: start at the first slot
        """

        def codegen(context, builder, signature, args):
            sums = _SlotSums(context, builder, signature.args, args, lanes)
            vectors = Vectors.of_registers(context, builder, signature.args[3], summed or lanes, WIDTH)
            for lane0 in range(0, summed or lanes, vectors.lanes):
                sums.emit(vectors, lane0, product)
            return context.get_dummy_value()

        return types.void(slots, x, rows, out, fresh, ahead, down), codegen

    return sum_slots


#: x_s[lane] is x[bases[s] + row + lane] for runs, and x[columns[s·lanes + lane]] for columns, counted from column0.
sum_runs = _summing(_SlotSums.run, LANES)
sum_successive_runs = _summing(_SlotSums.run, SUCCESSIVE)
sum_successive_columns = _summing(_SlotSums.columns_of_lanes, SUCCESSIVE)
sum_block_runs = _summing(_SlotSums.run, SUCCESSIVE, RECURRENCE_BLOCK)
sum_block_columns = _summing(_SlotSums.columns_of_lanes, SUCCESSIVE, RECURRENCE_BLOCK)
sum_every_second = _summing(_SlotSums.every_second, SUCCESSIVE)
sum_every_second_columns = _summing(partial(_SlotSums.columns_of_lanes, apart=2), SUCCESSIVE)
