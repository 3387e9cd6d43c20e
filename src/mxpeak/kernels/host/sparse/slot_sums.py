"""Emit sums over slots of a sparse matrix as vector instructions, because Numba's loops would not stay in registers.

A slot is one stored entry of each of the LANES rows of a chunk.  Its values are contiguous, in any of these formats,
and are widened to the vectors' type when they are loaded:

    float64, float32     unchanged
    int16                bf16: the upper half of an fp32
    uint16               fp16
    uint8                fp8 (E4M3): 2^120 · (the seven bits as exponent and fraction of an fp32), also for subnormals
"""

from __future__ import annotations

import numba
from llvmlite import ir
from llvmlite.binding import get_host_cpu_name
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mxpeak.kernels.host.engine.vector_ir import HAS_AVX512, HAS_FP16, emit_prefetch

#: Bits of the kinds of slots that a matrix has (`chunk_format`).
RUNS, NEARS, FARS = 1, 2, 4
#: Rows of a chunk of independent rows, and of a chunk with rows that depend on each other.
LANES = 64
SUCCESSIVE = 32
#: Successive rows whose recurrence is solved together, from the last x before the block.
RECURRENCE_BLOCK = 8
#: Rows of a group that contains every second row; each group of a chunk may begin at any row.
EVERY_SECOND = 8
#: Bytes of sums that are in registers at a time: eight of AVX-512's 32 registers, or 16 narrower registers. All lanes
#: of a slot are processed at once, because prefetchers lose values that are read in pieces: otherwise fp64 on a Zen 4
#: reaches 35 % of the bandwidth instead of 60 %.
WIDTH = 512 if HAS_AVX512 else 256
_AMD = (numba.config.CPU_NAME or get_host_cpu_name()).startswith("znver")
#: Whether a gather is slower than scalar loads.  LLVM assumes so on AMD, but moves the columns to vectors first.
SLOW_GATHERS = _AMD
#: Whether to prefetch in software, which is slower on a Zen 3.
PREFETCHES = HAS_AVX512 or not _AMD

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F32, F64 = ir.FloatType(), ir.DoubleType()


def splat(element, count, value):
    """Return a constant vector of equal numbers."""
    return ir.Constant(ir.VectorType(element, count), [value] * count)


def widened(builder, format_, real, bits, count):
    """Convert a vector of stored values to the type of the sums."""
    if format_ in (types.float64, types.float32):
        value = bits
    elif format_ == types.int16:
        words = builder.zext(bits, ir.VectorType(I32, count))
        value = builder.bitcast(builder.shl(words, splat(I32, count, 16)), ir.VectorType(F32, count))
    elif format_ == types.uint16:
        value = _from_fp16(builder, bits, count)
    else:
        value = _from_fp8(builder, bits, count)
    stored = value.type.element
    if stored == real:
        return value
    wide = ir.VectorType(real, count)
    return builder.fpext(value, wide) if real == F64 else builder.fptrunc(value, wide)


def _from_fp16(builder, bits, count):
    """Convert fp16 bits to fp32."""
    if HAS_FP16:
        halves = builder.bitcast(bits, ir.VectorType(ir.HalfType(), count))
        return builder.fpext(halves, ir.VectorType(F32, count))
    return _rebias(builder, bits, count, sign=0x8000, rest=0x7FFF, to_sign=16, to_rest=13, factor=2.0**112)


def _from_fp8(builder, bits, count):
    """Convert fp8 bits to fp32."""
    return _rebias(builder, bits, count, sign=0x80, rest=0x7F, to_sign=24, to_rest=20, factor=2.0**120)


def _rebias(builder, bits, count, *, sign, rest, to_sign, to_rest, factor):
    """Convert finite numbers to fp32: shift exponent and fraction, then multiply by 2^(difference of the biases)."""
    words = builder.zext(bits, ir.VectorType(I32, count))
    size = builder.shl(builder.and_(words, splat(I32, count, rest)), splat(I32, count, to_rest))
    minus = builder.shl(builder.and_(words, splat(I32, count, sign)), splat(I32, count, to_sign))
    fp32 = ir.VectorType(F32, count)
    value = builder.fmul(builder.bitcast(size, fp32), splat(F32, count, factor))
    return builder.bitcast(builder.or_(builder.bitcast(value, ir.VectorType(I32, count)), minus), fp32)


#: The LLVM type and the bytes of a stored format.
STORED = {types.float64: F64, types.float32: F32, types.int16: I16, types.uint16: I16, types.uint8: I8}
STORED_BYTES = {types.float64: 8, types.float32: 4, types.int16: 2, types.uint16: 2, types.uint8: 1}


def fma(builder, wide, real, count):
    """Return the LLVM function a·b + c on vectors, rounded once."""
    name = f"llvm.fma.v{count}{'f64' if real == F64 else 'f32'}"
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(wide, [wide] * 3), name)


@intrinsic
def widened_value(typingctx, value, like):
    """Convert one stored value to the type of `like`."""

    def codegen(context, builder, signature, args):
        format_, real = signature.args[0], context.get_value_type(signature.args[1])
        element = STORED[format_]
        lane = builder.insert_element(ir.Constant(ir.VectorType(element, 1), [ir.Undefined]), args[0], I32(0))
        return builder.extract_element(widened(builder, format_, real, lane, 1), I32(0))

    return like(value, like), codegen


@intrinsic
def sum_runs(typingctx, values, value0, bases, base0, slots, x, row, out, fresh):
    """Compute out[lane] = Σ_s values[value0 + s·LANES + lane] · x[bases[base0 + s] + row + lane]; += if not fresh.

    All arrays are contiguous. The sums of as many lanes as fit into WIDTH bytes stay in registers.
    """
    signature = types.void(values, types.int64, bases, types.int64, types.int64, x, types.int64, out, types.boolean)

    def codegen(context, builder, signature, args):
        _sum_slots(context, builder, signature, args, LANES, _run)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def sum_successive_runs(typingctx, values, value0, bases, base0, slots, x, row, out, fresh, ahead, down):
    """Compute the sums of `sum_runs` for SUCCESSIVE lanes, prefetching `ahead`; `down` starts at the last slot."""
    numbers, flag = types.int64, types.boolean
    signature = types.void(values, numbers, bases, numbers, numbers, x, numbers, out, flag, numbers, flag)

    def codegen(context, builder, signature, args):
        _sum_slots(context, builder, signature, args[:-2], SUCCESSIVE, _run, *args[-2:])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def sum_successive_columns(typingctx, values, value0, columns, column0, slots, x, row, out, fresh, ahead, down):
    """Compute out[lane] = Σ_s values[value0 + s·SUCCESSIVE + lane] · x[columns[column0 + s·SUCCESSIVE + lane]].

    Columns are 32-bit numbers and are prefetched like the values. If the columns of a slot are consecutive, x is
    loaded as vectors, otherwise gathered.
    """
    numbers, flag = types.int64, types.boolean
    signature = types.void(values, numbers, columns, numbers, numbers, x, numbers, out, flag, numbers, flag)

    def codegen(context, builder, signature, args):
        _sum_slots(context, builder, signature, args[:-2], SUCCESSIVE, _columns, *args[-2:])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def sum_block_runs(typingctx, values, value0, bases, base0, slots, x, row, out):
    """Add the sums over runs of the RECURRENCE_BLOCK lanes of a chunk from values[value0] on to `out`."""
    numbers = types.int64
    signature = types.void(values, numbers, bases, numbers, numbers, x, numbers, out)

    def codegen(context, builder, signature, args):
        _sum_slots(context, builder, signature, (*args, cgutils.false_byte), SUCCESSIVE, _run, of_them=RECURRENCE_BLOCK)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def sum_block_columns(typingctx, values, value0, columns, column0, slots, x, out):
    """Add the sums over slots with columns of RECURRENCE_BLOCK lanes to `out`."""
    numbers = types.int64
    signature = types.void(values, numbers, columns, numbers, numbers, x, out)

    def codegen(context, builder, signature, args):
        of_slots = types.void(*signature.args[:6], numbers, signature.args[6])
        with_row = (*args[:-1], I64(0), args[-1], cgutils.false_byte)
        _sum_slots(context, builder, of_slots, with_row, SUCCESSIVE, _columns, of_them=RECURRENCE_BLOCK)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def sum_every_second(typingctx, values, value0, bases, base0, slots, x, starts, start0, out, ahead):
    """Compute out[lane] = Σ_s values[value0 + s·SUCCESSIVE + lane] · x[bases[base0 + s] + starts[start0 + g] + 2·k].

    lane = g·EVERY_SECOND + k: each group of lanes has its own first row.
    """
    numbers = types.int64
    signature = types.void(values, numbers, bases, numbers, numbers, x, starts, numbers, out, numbers)

    def codegen(context, builder, signature, args):
        *matrix, starts, start0, out, ahead = args
        starts = context.make_array(signature.args[6])(context, builder, starts).data
        groups = range(SUCCESSIVE // EVERY_SECOND)
        rows = [builder.load(builder.gep(starts, [builder.add(start0, I64(g))])) for g in groups]
        of_slots = types.void(*signature.args[:7], signature.args[8])
        with_zero = (*matrix, rows, out, cgutils.true_byte)
        _sum_slots(context, builder, of_slots, with_zero, SUCCESSIVE, _every_second, ahead)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def sum_every_second_columns(typingctx, values, value0, columns, column0, slots, x, out, fresh, ahead):
    """Compute the sums of `sum_successive_columns` for columns that are mostly two apart in each group of lanes."""
    numbers, flag = types.int64, types.boolean
    signature = types.void(values, numbers, columns, numbers, numbers, x, out, flag, numbers)

    def codegen(context, builder, signature, args):
        *matrix, out, fresh, ahead = args
        of_slots = types.void(*signature.args[:6], numbers, *signature.args[6:8])
        with_row = (*matrix, I64(0), out, fresh)
        _sum_slots(context, builder, of_slots, with_row, SUCCESSIVE, _columns_of_every_second, ahead)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def add_overflow(typingctx, values, value0, columns, column0, lane0, first, end, x, out):
    """Add values[value0 + k] · x[columns[column0 + k]] to out[columns[lane0 + k]] for k = first … end-1."""
    numbers = types.int64
    signature = types.void(values, numbers, columns, numbers, numbers, numbers, numbers, x, out)

    def codegen(context, builder, signature, args):
        values, columns, x, out = (
            context.make_array(signature.args[k])(context, builder, args[k]).data for k in (0, 2, 7, 8)
        )
        _, value0, _, column0, lane0, first, end, _, _ = args
        real, format_ = context.get_value_type(signature.args[7].dtype), signature.args[0].dtype
        with cgutils.for_range_slice(builder, first, end, I64(1), inc=True) as (k, _):
            column, lane = (
                builder.zext(builder.load(builder.gep(columns, [builder.add(at, k)])), I64) for at in (column0, lane0)
            )
            bits = builder.load(
                builder.bitcast(
                    builder.gep(values, [builder.add(value0, k)]), ir.VectorType(STORED[format_], 1).as_pointer()
                ),
                align=STORED_BYTES[format_],
            )
            a = builder.extract_element(widened(builder, format_, real, bits, 1), I32(0))
            to = builder.gep(out, [lane])
            product = builder.fmul(a, builder.load(builder.gep(x, [column])))
            builder.store(builder.fadd(builder.load(to), product), to)
        return context.get_dummy_value()

    return signature, codegen


def _sum_slots(context, builder, signature, args, lanes, terms_of, ahead=None, down=None, of_them=None):
    """Emit sums over slots of `lanes` lanes, or of the first `of_them` lanes; terms_of adds the products with x."""
    values, value0, columns, column0, slots, x, row, out, fresh = args
    format_, real = signature.args[0].dtype, context.get_value_type(signature.args[5].dtype)
    of_them = of_them or lanes
    count = min(of_them, WIDTH // (8 if real == F64 else 4))

    def data(position, value):
        return context.make_array(signature.args[position])(context, builder, value).data

    values_p = builder.gep(data(0, values), [value0])
    columns_p = builder.gep(data(2, columns), [column0])
    x_p, out_p = data(5, x), data(7, out)
    is_fresh = builder.trunc(fresh, ir.IntType(1))
    first, step = I64(0), I64(1)
    if down is not None:
        goes_down = builder.trunc(down, ir.IntType(1))
        first = builder.select(goes_down, builder.sub(slots, step), first)
        step = builder.select(goes_down, I64(-1), step)
    for lane0 in range(0, of_them, count):

        def terms(s, add, lane0=lane0):
            return terms_of(builder, lanes, lane0, ir.VectorType(real, count), columns_p, s, x_p, row, ahead, add)

        pointers = builder.gep(values_p, [I64(lane0)]), builder.gep(out_p, [I64(lane0)])
        _sum_lanes(builder, lanes, format_, real, count, *pointers, terms, slots, first, step, is_fresh, ahead)


def _load_from(builder, wide, x_p, first):
    """Load the vector x[first …]."""
    size = 8 if wide.element == F64 else 4
    return builder.load(builder.bitcast(builder.gep(x_p, [first]), wide.as_pointer()), align=size)


def _based(builder, lane0, wide, bases_p, s, x_p, row):
    """Load the vector x[bases[s] + row + lane0 …]."""
    base = builder.sext(builder.load(builder.gep(bases_p, [s])), I64)
    return _load_from(builder, wide, x_p, builder.add(builder.add(base, row), I64(lane0)))


def _run(builder, lanes, lane0, wide, bases_p, s, x_p, row, ahead, add):
    """Add the products of a run of columns base + row."""
    return add(_based(builder, lane0, wide, bases_p, s, x_p, row))


def _every_second(builder, lanes, lane0, wide, bases_p, s, x_p, rows, ahead, add):
    """Add the products with x[bases[s] + rows[g] + 2·k] of the groups from lane0 on."""
    base = builder.sext(builder.load(builder.gep(bases_p, [s])), I64)
    return add(_of_groups(builder, wide, x_p, [builder.add(base, row) for row in rows[lane0 // EVERY_SECOND :]]))


def _of_groups(builder, wide, x_p, firsts):
    """Load x[firsts[g] + 2·k] for all groups g, two groups at a time."""
    twice = ir.VectorType(wide.element, 2 * EVERY_SECOND)
    even = ir.Constant(ir.VectorType(I32, twice.count), list(range(0, 2 * twice.count, 2)))
    both = [_load_from(builder, twice, x_p, first) for first in firsts]
    vectors = [builder.shuffle_vector(first, second, even) for first, second in zip(both[::2], both[1::2])]
    while vectors[0].type.count < wide.count:
        every = ir.Constant(ir.VectorType(I32, 2 * vectors[0].type.count), list(range(2 * vectors[0].type.count)))
        vectors = [builder.shuffle_vector(first, second, every) for first, second in zip(vectors[::2], vectors[1::2])]
    return vectors[0]


def _columns(builder, lanes, lane0, wide, columns_p, s, x_p, row, ahead, add):
    """Add the products with x[columns[s·lanes + lane0 …]], loaded as one vector if the columns are consecutive."""

    def load(firsts):
        return _load_from(builder, wide, x_p, firsts[0])

    return _checked_columns(builder, lanes, lane0, wide, columns_p, s, x_p, ahead, add, wide.count, 1, load)


def _columns_of_every_second(builder, lanes, lane0, wide, columns_p, s, x_p, row, ahead, add):
    """Add the products with x[columns[s·lanes + lane0 …]], loaded by group if the columns of a group are two apart."""

    def load(firsts):
        return _of_groups(builder, wide, x_p, firsts)

    return _checked_columns(builder, lanes, lane0, wide, columns_p, s, x_p, ahead, add, EVERY_SECOND, 2, load)


def _checked_columns(builder, lanes, lane0, wide, columns_p, s, x_p, ahead, add, group, apart, load):
    """Add the products with x[columns[s·lanes + lane0 …]].

    If the columns of each group are `apart`, load(firsts) loads x; otherwise x is loaded individually or gathered.
    """
    count = wide.count
    at = builder.gep(columns_p, [builder.add(builder.mul(s, I64(lanes)), I64(lane0))])
    _prefetch_ahead(builder, at, ahead, 4 * count)
    numbers = ir.VectorType(I32, count)
    columns = builder.load(builder.bitcast(at, numbers.as_pointer()), align=4)
    firsts = [builder.load(builder.gep(at, [I64(lane)])) for lane in range(0, count, group)]
    of_groups = ir.Constant(numbers, [lane // group * group for lane in range(count)])
    steps = ir.Constant(numbers, [lane % group * apart for lane in range(count)])
    others = builder.xor(columns, builder.add(builder.shuffle_vector(columns, columns, of_groups), steps))
    any_bit = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(I32, [numbers]), f"llvm.vector.reduce.or.v{count}i32"
    )
    with builder.if_else(builder.icmp_signed("==", builder.call(any_bit, [others]), I32(0))) as (run, scattered):
        with run:
            of_run, run_block = add(load([builder.zext(first, I64) for first in firsts])), builder.block
        with scattered:
            loaded = _scalar_loads(builder, wide, x_p, at) if SLOW_GATHERS else _gathered(builder, wide, x_p, columns)
            of_others, others_block = add(loaded), builder.block
    total = builder.phi(wide)
    total.add_incoming(of_run, run_block)
    total.add_incoming(of_others, others_block)
    return total


def _scalar_loads(builder, wide, x_p, columns_p):
    """Load x[columns[0]], x[columns[1]] … individually."""
    x = ir.Constant(wide, ir.Undefined)
    for lane in range(wide.count):
        column = builder.zext(builder.load(builder.gep(columns_p, [I64(lane)])), I64)
        x = builder.insert_element(x, builder.load(builder.gep(x_p, [column])), I32(lane))
    return x


def _gathered(builder, wide, x_p, columns):
    """Gather x[columns]."""
    count, size = wide.count, 8 if wide.element == F64 else 4
    # llvmlite's builder has no vectors of addresses
    pointers = ir.instructions.GEPInstr(builder.block, x_p, [columns], True, "", source_etype=wide.element)
    pointers.type = ir.VectorType(ir.PointerType(), count)
    builder._insert(pointers)
    mask = ir.VectorType(ir.IntType(1), count)
    name = f"llvm.masked.gather.v{count}{'f64' if size == 8 else 'f32'}.v{count}p0"
    gather = ir.FunctionType(wide, [pointers.type, I32, mask, wide])
    function = cgutils.get_or_insert_function(builder.module, gather, name)
    every, nothing = ir.Constant(mask, [1] * count), ir.Constant(wide, ir.Undefined)
    return builder.call(function, [pointers, I32(size), every, nothing])


def _prefetch_ahead(builder, at, ahead, length):
    """Prefetch `length` bytes at a distance of `ahead` numbers after an address."""
    if ahead is None or not PREFETCHES:
        return
    first = builder.ptrtoint(builder.gep(at, [ahead]), I64)
    for line in range(0, length, 64):
        emit_prefetch(builder, builder.add(first, I64(line)), 0)


def _sum_lanes(builder, lanes, format_, real, count, values_p, out_p, terms, slots, first, step, is_fresh, ahead):
    """Emit the loop over slots that sums `count` lanes; values_p and out_p point to the numbers of the first lane."""
    wide, stored = ir.VectorType(real, count), ir.VectorType(STORED[format_], count)
    size = 8 if real == F64 else 4
    out_p = builder.bitcast(out_p, wide.as_pointer())
    with builder.if_else(is_fresh) as (clean, dirty):
        with clean:
            clean_block = builder.block
        with dirty:
            loaded = builder.load(out_p, align=size)
            dirty_block = builder.block
    before = builder.phi(wide)
    before.add_incoming(splat(real, count, 0.0), clean_block)
    before.add_incoming(loaded, dirty_block)
    entry, loop, done = builder.block, builder.append_basic_block("slots"), builder.append_basic_block("summed")
    builder.cbranch(builder.icmp_signed(">", slots, I64(0)), loop, done)
    builder.position_at_end(loop)
    s, remaining, total = builder.phi(I64), builder.phi(I64), builder.phi(wide)
    s.add_incoming(first, entry)
    remaining.add_incoming(slots, entry)
    total.add_incoming(before, entry)
    value_p = builder.gep(values_p, [builder.mul(s, I64(lanes))])
    _prefetch_ahead(builder, value_p, ahead, STORED_BYTES[format_] * count)

    def add(x):
        bits = builder.load(builder.bitcast(value_p, stored.as_pointer()), align=STORED_BYTES[format_])
        value = widened(builder, format_, real, bits, count)
        return builder.call(fma(builder, wide, real, count), [value, x, total])

    next_total = terms(s, add)
    next_remaining = builder.sub(remaining, I64(1))
    again = builder.block
    s.add_incoming(builder.add(s, step), again)
    remaining.add_incoming(next_remaining, again)
    total.add_incoming(next_total, again)
    builder.cbranch(builder.icmp_signed(">", next_remaining, I64(0)), loop, done)
    builder.position_at_end(done)
    result = builder.phi(wide)
    result.add_incoming(before, entry)
    result.add_incoming(next_total, again)
    builder.store(result, out_p, align=size)
