"""The recurrence along a chunk of successive rows, in vector instructions."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mxpeak.kernels.host.sparse.slot_sums import (
    F64,
    I32,
    I64,
    STORED,
    STORED_BYTES,
    STRETCH,
    SUCCESSIVE,
    fma,
    splat,
    widened,
)


@intrinsic
def recurrence(typingctx, b, first, second, a, slot, d, p, q):
    """p = (b - first - second) / d and q = a[slot …] / d of SUCCESSIVE lanes: all that a recurrence is made of."""
    signature = types.void(b, first, second, a, types.int64, d, p, q)

    def codegen(context, builder, signature, args):
        real, format_ = context.get_value_type(signature.args[0].dtype), signature.args[3].dtype
        size, count = (8, SUCCESSIVE // 4) if real == F64 else (4, SUCCESSIVE // 2)
        wide, stored = ir.VectorType(real, count), ir.VectorType(STORED[format_], count)
        data = [
            context.make_array(of)(context, builder, value).data
            for of, value in zip(signature.args, args)
            if of != types.int64
        ]
        b, first, second, a, d, p, q = data
        a = builder.gep(a, [args[4]])
        for lane in range(0, SUCCESSIVE, count):

            def at(pointer, vector=wide, lane=lane):
                return builder.bitcast(builder.gep(pointer, [I64(lane)]), vector.as_pointer())

            left = builder.fsub(builder.load(at(b), align=size), builder.load(at(first), align=size))
            left = builder.fsub(left, builder.load(at(second), align=size))
            reciprocal = builder.fdiv(splat(real, count, 1.0), builder.load(at(d), align=size))
            bits = builder.load(at(a, stored), align=STORED_BYTES[format_])
            builder.store(builder.fmul(left, reciprocal), at(p), align=size)
            value = widened(builder, format_, real, bits, count)
            builder.store(builder.fmul(value, reciprocal), at(q), align=size)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def run_forward(typingctx, p, q, young, x):
    """x_k = p_k - q_k x_{k-1} of SUCCESSIVE lanes, from x_{-1} = young on, if no |q_k| is above 1; whether it did."""
    signature = types.boolean(p, q, young, x)

    def codegen(context, builder, signature, args):
        return _run_through(context, builder, signature, args, back=False)

    return signature, codegen


@intrinsic
def run_backward(typingctx, p, q, young, x):
    """The same from the last lane on, x_k = p_k - q_k x_{k+1}."""
    signature = types.boolean(p, q, young, x)

    def codegen(context, builder, signature, args):
        return _run_through(context, builder, signature, args, back=True)

    return signature, codegen


def _run_through(context, builder, signature, args, *, back):
    """The recurrence, STRETCH lanes at a time.

    x_k = P_k + R_k x_{k-s} is made of itself for twice the distance, P_k + R_k P_{k-s} and R_k R_{k-s}, until all
    lanes of a stretch hang on the last x before it: four multiplications wait for each other instead of SUCCESSIVE.
    Where a |q_k| is above 1 products could overflow though x does not.
    """
    real = context.get_value_type(signature.args[2])
    size, wide = (8 if real == F64 else 4), ir.VectorType(real, SUCCESSIVE)
    p_p, q_p, x_p = (context.make_array(signature.args[k])(context, builder, args[k]).data for k in (0, 1, 3))
    q = builder.load(builder.bitcast(q_p, wide.as_pointer()), align=size)
    absolute = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(wide, [wide]), f"llvm.fabs.v{SUCCESSIVE}f{8 * size}"
    )
    small = builder.fcmp_ordered("<=", builder.call(absolute, [q]), splat(real, SUCCESSIVE, 1.0))
    every = builder.icmp_signed("==", builder.bitcast(small, ir.IntType(SUCCESSIVE)), ir.IntType(SUCCESSIVE)(-1))
    with builder.if_then(every):
        P, R = builder.load(builder.bitcast(p_p, wide.as_pointer()), align=size), builder.fneg(q)
        multiply_add = fma(builder, wide, real, SUCCESSIVE)
        for apart in (1, 2, 4):
            before, with_ = (_earlier(builder, of, apart, back, other) for of, other in ((P, 0.0), (R, 1.0)))
            P, R = builder.call(multiply_add, [R, before, P]), builder.fmul(R, with_)
        young, piece = args[2], ir.VectorType(real, STRETCH)
        multiply_add = fma(builder, piece, real, STRETCH)
        firsts = range(0, SUCCESSIVE, STRETCH)
        for first in reversed(firsts) if back else firsts:
            lanes = ir.Constant(ir.VectorType(I32, STRETCH), list(range(first, first + STRETCH)))
            mine, hangs = (builder.shuffle_vector(of, of, lanes) for of in (P, R))
            one = builder.insert_element(ir.Constant(piece, ir.Undefined), young, I32(0))
            same = builder.shuffle_vector(one, one, ir.Constant(lanes.type, [0] * STRETCH))
            x = builder.call(multiply_add, [hangs, same, mine])
            builder.store(x, builder.bitcast(builder.gep(x_p, [I64(first)]), piece.as_pointer()), align=size)
            young = builder.extract_element(x, I32(0 if back else STRETCH - 1))
    return builder.zext(every, context.get_value_type(types.boolean))


def _earlier(builder, vector, apart, back, other):
    """The lanes so far before each in its stretch (after it, going back); `other` where there are none."""
    from_ = []
    for lane in range(SUCCESSIVE):
        at = lane + apart if back else lane - apart
        from_.append(at if at // STRETCH == lane // STRETCH else SUCCESSIVE + lane)
    others = splat(vector.type.element, SUCCESSIVE, other)
    return builder.shuffle_vector(vector, others, ir.Constant(ir.VectorType(I32, SUCCESSIVE), from_))
