"""What compiled code needs beyond Numba: BLAS by address, atomics, a spin barrier, a call back into Python.

Addresses are run-time arguments, never constants in the code: so what Numba compiled can be cached on disk and loaded
by another process, in which the libraries lie elsewhere.
"""

from __future__ import annotations

import ctypes
from platform import machine

import numba
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from mxpeak.kernels.host.engine.jit import inner

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)

#: Failed looks at the barrier before a thread gives its core away: about a microsecond of polling.
SPINS = 2000


def _reference(builder, value):
    """The address of a stack slot that contains `value`: Fortran takes everything by reference."""
    return cgutils.alloca_once_value(builder, value)


def _letter(builder, char):
    return _reference(builder, ir.Constant(_I8, ord(char)))


def _call(builder, address, arguments):
    """Call the void function at `address`."""
    function_type = ir.FunctionType(ir.VoidType(), [a.type for a in arguments])
    builder.call(builder.inttoptr(address, function_type.as_pointer()), arguments)


@intrinsic
def gemm_at(typingctx, address, m, n, k, alpha, a, lda, b, ldb, c, ldc):
    """C[m×n] += alpha · A[m×k] · B[k×n] by the xGEMM at `address`; a, b, c are addresses of column-major blocks."""
    signature, alpha_type = types.void(types.int64, *[types.int64] * 3, alpha, *[types.int64] * 6), alpha

    def codegen(context, builder, signature, args):
        address, m, n, k, alpha, a, lda, b, ldb, c, ldc = args
        number = alpha.type
        count = [_reference(builder, builder.trunc(value, _I32)) for value in (m, n, k, lda, ldb, ldc)]
        block = [builder.inttoptr(value, number.as_pointer()) for value in (a, b, c)]
        one = _reference(builder, context.get_constant_generic(builder, alpha_type, 1.0))
        no = _letter(builder, "N")
        _call(
            builder,
            address,
            [
                no,
                no,
                *count[:3],
                _reference(builder, alpha),
                block[0],
                count[3],
                block[1],
                count[4],
                one,
                block[2],
                count[5],
            ],
        )
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def trsm_at(typingctx, address, m, n, one, a, lda, b, ldb):
    """B[m×n] = L^-1 · B, with L the unit lower triangle of A[m×m], by the xTRSM at `address`."""
    signature = types.void(types.int64, types.int64, types.int64, one, *[types.int64] * 4)

    def codegen(context, builder, signature, args):
        address, m, n, one, a, lda, b, ldb = args
        count = [_reference(builder, builder.trunc(value, _I32)) for value in (m, n, lda, ldb)]
        block = [builder.inttoptr(value, one.type.as_pointer()) for value in (a, b)]
        left, lower, no, unit = (_letter(builder, char) for char in "LLNU")
        _call(
            builder,
            address,
            [
                left,
                lower,
                no,
                unit,
                count[0],
                count[1],
                _reference(builder, one),
                block[0],
                count[2],
                block[1],
                count[3],
            ],
        )
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def call_at(typingctx, address):
    """Call the function at `address`: nothing in, an int32 out (sched_yield, or a callback into Python)."""

    def codegen(context, builder, signature, args):
        function_type = ir.FunctionType(_I32, [])
        return builder.call(builder.inttoptr(args[0], function_type.as_pointer()), [])

    return types.int32(types.int64), codegen


def _vector(context, builder, array_type, data, count):
    """The `count` numbers from a pointer on as a contiguous array, whose references nobody counts."""
    vector = context.make_array(array_type)(context, builder)
    size = _I64(context.get_abi_sizeof(context.get_data_type(array_type.dtype)))
    populate_array(vector, data=data, shape=[count], strides=[size], itemsize=size, meminfo=None)
    return vector._getvalue()


def _address(context, builder, array_type, array, i, j):
    """The address of A[i, j]."""
    A = context.make_array(array_type)(context, builder, array)
    down, right = cgutils.unpack_tuple(builder, A.strides, 2)
    first = builder.ptrtoint(A.data, _I64)
    return builder.add(first, builder.add(builder.mul(i, down), builder.mul(j, right)))


def _line(A, first):
    """What an intrinsic returns that takes (A, line, begin, end): the entries from A[first(line, begin)] on."""
    result = types.Array(A.dtype, 1, "C")

    def codegen(context, builder, signature, args):
        array, line, begin, end = args
        address = _address(context, builder, signature.args[0], array, *first(line, begin))
        data = builder.inttoptr(address, context.get_data_type(A.dtype).as_pointer())
        return _vector(context, builder, result, data, builder.sub(end, begin))

    return result(A, *[types.int64] * 3), codegen


@intrinsic
def vector_at(typingctx, address, count, of):
    """The `count` numbers at an address as a contiguous array of `of`'s type."""
    result = types.Array(of.dtype, 1, "C")

    def codegen(context, builder, signature, args):
        data = builder.inttoptr(args[0], context.get_data_type(result.dtype).as_pointer())
        return _vector(context, builder, result, data, args[1])

    return result(types.int64, types.int64, of), codegen


@intrinsic
def address_of(typingctx, A, i, j):
    """The address of A[i, j], also where i or j is one past the end."""

    def codegen(context, builder, signature, args):
        return _address(context, builder, signature.args[0], *args)

    return types.int64(A, types.int64, types.int64), codegen


@intrinsic
def column(typingctx, A, j, r0, r1):
    """A[r0:r1, j] of a column-major block as an array that the compiler knows to be contiguous: so it vectorizes."""
    return _line(A, lambda j, r0: (r0, j))


@intrinsic
def row(typingctx, A, i, c0, c1):
    """A[i, c0:c1] of a row-major block as an array that the compiler knows to be contiguous."""
    return _line(A, lambda i, c0: (i, c0))


@intrinsic
def piece(typingctx, a, first, count):
    """a[first : first+count] of a contiguous vector, without the counting of references that a slice costs."""
    result = types.Array(a.dtype, 1, "C")

    def codegen(context, builder, signature, args):
        whole = context.make_array(signature.args[0])(context, builder, args[0])
        return _vector(context, builder, result, builder.gep(whole.data, [args[1]]), args[2])

    return result(a, types.int64, types.int64), codegen


def ask(builder, address, write):
    """Ask for the cache line at `address`, to be read soon, or written too."""
    function_type = ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32])
    function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
    write, keep, data = (ir.Constant(_I32, value) for value in (write, 3, 1))
    builder.call(function, [builder.inttoptr(address, _I8.as_pointer()), write, keep, data])


@intrinsic
def prefetch(typingctx, address):
    """Ask for the cache line at `address`, to be read and written soon."""

    def codegen(context, builder, signature, args):
        ask(builder, args[0], 1)
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def prefetch_read(typingctx, address):
    """Ask for the cache line at `address`, to be read soon."""

    def codegen(context, builder, signature, args):
        ask(builder, args[0], 0)
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def cycles(typingctx):
    """The processor's time stamp counter."""

    def codegen(context, builder, signature, args):
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_I64, []), "llvm.readcyclecounter")
        return builder.call(function, [])

    return types.int64(), codegen


def _slot(context, builder, array_type, array, index):
    """The address of array[index] of a one-dimensional int64 array."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [index])


@intrinsic
def atomic_add(typingctx, array, index, value):
    """array[index] += value as one indivisible step; the value before."""

    def codegen(context, builder, signature, args):
        slot = _slot(context, builder, signature.args[0], args[0], args[1])
        return builder.atomic_rmw("add", slot, args[2], "seq_cst")

    return types.int64(array, types.int64, types.int64), codegen


@intrinsic
def atomic_load(typingctx, array, index):
    """array[index] as other threads left it."""

    def codegen(context, builder, signature, args):
        slot = _slot(context, builder, signature.args[0], args[0], args[1])
        return builder.load_atomic(slot, "seq_cst", 8)

    return types.int64(array, types.int64), codegen


@intrinsic
def atomic_store(typingctx, array, index, value):
    """array[index] = value, seen by other threads after all that this one has written before: no barrier on x86."""

    def codegen(context, builder, signature, args):
        slot = _slot(context, builder, signature.args[0], args[0], args[1])
        builder.store_atomic(args[2], slot, "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), codegen


@intrinsic
def bits_of(typingctx, value):
    """The bits of a float32 or float64 as an unsigned integer of its width."""
    word = types.uint32 if value == types.float32 else types.uint64

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(word))

    return word(value), codegen


@intrinsic
def float_of(typingctx, bits):
    """The float32 or float64 of these bits."""
    real = types.float32 if bits == types.uint32 else types.float64

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(real))

    return real(bits), codegen


#: Whether the processor that Numba compiles for, this one unless it was told otherwise, widens fp16 by itself.
HAS_FP16 = not numba.config.CPU_NAME and (
    machine() in ("aarch64", "arm64") or bool(get_host_cpu_features().get("f16c", False))
)


#: Whether it has registers of 64 bytes.
HAS_AVX512 = not numba.config.CPU_NAME and bool(get_host_cpu_features().get("avx512f", False))


@intrinsic
def widened_fp16(typingctx, bits):
    """The fp16 number of these 16 bits as fp32; only where HAS_FP16."""

    def codegen(context, builder, signature, args):
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), codegen


@inner()
def barrier(sync, threads, yield_address):
    """Return once all threads have come here.  sync[0] counts arrivals, sync[8] the barriers passed."""
    if threads == 1:
        return
    passed = atomic_load(sync, 8)
    if atomic_add(sync, 0, 1) == threads - 1:
        atomic_add(sync, 0, -threads)
        atomic_add(sync, 8, 1)
        return
    spins = 0
    while atomic_load(sync, 8) == passed:
        spins += 1
        if spins > SPINS:
            call_at(yield_address)


#: Length of the array that a barrier works on: two cache lines, so that arrivals do not disturb those who wait.
SYNC = 16


def sched_yield_address() -> int:
    """The address of the C library's sched_yield."""
    return ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value or 0
