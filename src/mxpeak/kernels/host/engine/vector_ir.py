"""Intrinsics that Numba lacks: vector instructions, BLAS by address, atomics, a spin barrier and calls into Python.

`Vectors` emits vector instructions for the kernels that need a fixed register layout. Addresses are run-time
arguments, never constants in the code. Therefore compiled code can be cached on disk and loaded by another process, in
which the libraries have other addresses.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from platform import machine

import numba
import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from mxpeak.kernels.host.engine.jit import inner

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)

#: Polls of the barrier before a thread yields its core: about 1 µs.
SPINS = 2000


def _reference(builder, value):
    """Store `value` in a stack slot and return the slot's address, because Fortran passes arguments by reference."""
    return cgutils.alloca_once_value(builder, value)


def _letter(builder, char):
    """Store a character in a stack slot and return the slot's address."""
    return _reference(builder, ir.Constant(_I8, ord(char)))


def _integer(builder, value):
    """Store an integer as 32 bits in a stack slot and return the slot's address."""
    return _reference(builder, builder.trunc(value, _I32))


def _block(builder, block, number):
    """Return a pointer to a matrix block, and a reference to its leading dimension, as arguments for Fortran.

    `block` is a pair (address, leading dimension).
    """
    address, leading = block
    return builder.inttoptr(address, number.as_pointer()), _integer(builder, leading)


def _call(builder, address, arguments):
    """Emit a call of the void function at `address`."""
    function_type = ir.FunctionType(ir.VoidType(), [a.type for a in arguments])
    builder.call(builder.inttoptr(address, function_type.as_pointer()), arguments)


@intrinsic
def gemm_at(typingctx, address, alpha, sizes, a, b, c):
    """Compute C[m×n] += alpha · A[m×k] · B[k×n] by the xGEMM at `address`.

    `sizes` is (m, n, k); a, b and c are pairs (address, leading dimension) of column-major blocks.
    """
    pair, triple = types.UniTuple(types.int64, 2), types.UniTuple(types.int64, 3)
    signature, alpha_type = types.void(types.int64, alpha, triple, pair, pair, pair), alpha

    def codegen(context, builder, signature, args):
        address, alpha, *blocks = args
        sizes, *blocks = (cgutils.unpack_tuple(builder, block) for block in blocks)
        m, n, k = (_integer(builder, size) for size in sizes)
        (a, lda), (b, ldb), (c, ldc) = (_block(builder, block, alpha.type) for block in blocks)
        beta = _reference(builder, context.get_constant_generic(builder, alpha_type, 1.0))
        no, alpha = _letter(builder, "N"), _reference(builder, alpha)
        _call(builder, address, [no, no, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def trsm_at(typingctx, address, alpha, sizes, a, b):
    """Compute B[m×n] = alpha · L^-1 · B by the xTRSM at `address`, where L is the unit lower triangle of A[m×m].

    `sizes` is (m, n); a and b are pairs (address, leading dimension) of column-major blocks.
    """
    pair = types.UniTuple(types.int64, 2)
    signature = types.void(types.int64, alpha, pair, pair, pair)

    def codegen(context, builder, signature, args):
        address, alpha, *blocks = args
        sizes, *blocks = (cgutils.unpack_tuple(builder, block) for block in blocks)
        m, n = (_integer(builder, size) for size in sizes)
        (a, lda), (b, ldb) = (_block(builder, block, alpha.type) for block in blocks)
        left, lower, no, unit = (_letter(builder, char) for char in "LLNU")
        _call(builder, address, [left, lower, no, unit, m, n, _reference(builder, alpha), a, lda, b, ldb])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def call_at(typingctx, address):
    """Call the function at `address` (sched_yield or a callback into Python), and return its int32 result."""

    def codegen(context, builder, signature, args):
        function_type = ir.FunctionType(_I32, [])
        return builder.call(builder.inttoptr(args[0], function_type.as_pointer()), [])

    return types.int32(types.int64), codegen


def data_of(context, builder, array_type, array):
    """Return the pointer to the first number of an array."""
    return context.make_array(array_type)(context, builder, array).data


def _vector(context, builder, array_type, data, count):
    """Return a contiguous array of `count` numbers that starts at the pointer `data`, without reference counting."""
    vector = context.make_array(array_type)(context, builder)
    size = _I64(context.get_abi_sizeof(context.get_data_type(array_type.dtype)))
    populate_array(vector, data=data, shape=[count], strides=[size], itemsize=size, meminfo=None)
    return vector._getvalue()


def _address(context, builder, array_type, array, i, j):
    """Return the address of element A[i, j] of `array`."""
    A = context.make_array(array_type)(context, builder, array)
    down, right = cgutils.unpack_tuple(builder, A.strides, 2)
    first = builder.ptrtoint(A.data, _I64)
    return builder.add(first, builder.add(builder.mul(i, down), builder.mul(j, right)))


def _line(A, first):
    """Return the signature and code of an intrinsic (A, line, begin, end) that views a row or column as an array.

    The array has end - begin numbers and starts at A[first(line, begin)].
    """
    result = types.Array(A.dtype, 1, "C")

    def codegen(context, builder, signature, args):
        array, line, begin, end = args
        address = _address(context, builder, signature.args[0], array, *first(line, begin))
        data = builder.inttoptr(address, context.get_data_type(A.dtype).as_pointer())
        return _vector(context, builder, result, data, builder.sub(end, begin))

    return result(A, *[types.int64] * 3), codegen


@intrinsic
def vector_at(typingctx, address, count, of):
    """Return the `count` numbers at `address` as a contiguous array with the element type of `of`."""
    result = types.Array(of.dtype, 1, "C")

    def codegen(context, builder, signature, args):
        data = builder.inttoptr(args[0], context.get_data_type(result.dtype).as_pointer())
        return _vector(context, builder, result, data, args[1])

    return result(types.int64, types.int64, of), codegen


@intrinsic
def address_of(typingctx, A, i, j):
    """Return the address of A[i, j]. Both i and j may be one past the end."""

    def codegen(context, builder, signature, args):
        return _address(context, builder, signature.args[0], *args)

    return types.int64(A, types.int64, types.int64), codegen


@inner(inline=True)
def column_block(A, i, j):
    """Return the address of A[i, j] of a column-major matrix, and its leading dimension."""
    return address_of(A, i, j), np.int64(A.strides[1] // A.itemsize)


@inner(inline=True)
def row_block(A, i, j):
    """Return the address of A[i, j] of a row-major matrix, and its leading dimension."""
    return address_of(A, i, j), np.int64(A.strides[0] // A.itemsize)


@intrinsic
def column(typingctx, A, j, r0, r1):
    """Return A[r0:r1, j] of a column-major block as a contiguous array.

    Numba vectorizes loops over contiguous arrays.
    """
    return _line(A, lambda j, r0: (r0, j))


@intrinsic
def row(typingctx, A, i, c0, c1):
    """Return A[i, c0:c1] of a row-major block as a contiguous array.

    Numba vectorizes loops over contiguous arrays.
    """
    return _line(A, lambda i, c0: (i, c0))


@intrinsic
def piece(typingctx, a, first, count):
    """Return a[first : first+count] of a contiguous vector, without the reference counting of a slice."""
    result = types.Array(a.dtype, 1, "C")

    def codegen(context, builder, signature, args):
        whole = context.make_array(signature.args[0])(context, builder, args[0])
        return _vector(context, builder, result, builder.gep(whole.data, [args[1]]), args[2])

    return result(a, types.int64, types.int64), codegen


def emit_prefetch(builder, address, write, keep=3):
    """Emit a prefetch of the cache line at `address`, for reading if write = 0, for writing also if write = 1.

    keep = 3 stands for the first-level cache, keep = 2 for the second-level cache.
    """
    function_type = ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32])
    function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
    write, keep, data = (ir.Constant(_I32, value) for value in (write, keep, 1))
    builder.call(function, [builder.inttoptr(address, _I8.as_pointer()), write, keep, data])


def _prefetching(write, keep=3):
    """Return an intrinsic that prefetches a cache line; the arguments are those of `emit_prefetch`."""

    @intrinsic
    def prefetch(typingctx, address):
        """Prefetch the cache line at `address`."""

        def codegen(context, builder, signature, args):
            emit_prefetch(builder, args[0], write, keep)
            return context.get_dummy_value()

        return types.void(types.int64), codegen

    return prefetch


#: Prefetch a cache line for reading and writing, only for reading, or only for reading to the second-level cache.
prefetch, prefetch_read, prefetch_far = _prefetching(1), _prefetching(0), _prefetching(0, 2)


@intrinsic
def cycles(typingctx):
    """Read the processor's time stamp counter and return its value."""

    def codegen(context, builder, signature, args):
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_I64, []), "llvm.readcyclecounter")
        return builder.call(function, [])

    return types.int64(), codegen


def _slot(context, builder, array_type, array, index):
    """Return the address of array[index] of a one-dimensional int64 array."""
    return builder.gep(data_of(context, builder, array_type, array), [index])


@intrinsic
def atomic_add(typingctx, array, index, value):
    """Add a value to array[index] atomically, and return the previous value."""

    def codegen(context, builder, signature, args):
        slot = _slot(context, builder, signature.args[0], args[0], args[1])
        return builder.atomic_rmw("add", slot, args[2], "seq_cst")

    return types.int64(array, types.int64, types.int64), codegen


@intrinsic
def atomic_load(typingctx, array, index):
    """Load array[index] atomically."""

    def codegen(context, builder, signature, args):
        slot = _slot(context, builder, signature.args[0], args[0], args[1])
        return builder.load_atomic(slot, "seq_cst", 8)

    return types.int64(array, types.int64), codegen


@intrinsic
def atomic_store(typingctx, array, index, value):
    """Store `value` in array[index] with release semantics, which need no barrier instruction on x86."""

    def codegen(context, builder, signature, args):
        slot = _slot(context, builder, signature.args[0], args[0], args[1])
        builder.store_atomic(args[2], slot, "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), codegen


@intrinsic
def bits_of(typingctx, value):
    """Return the bits of a float32 or float64 as an unsigned integer of the same width."""
    word = types.uint32 if value == types.float32 else types.uint64

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(word))

    return word(value), codegen


@intrinsic
def float_of(typingctx, bits):
    """Return the float32 or float64 that has the bits of an unsigned integer of the same width."""
    real = types.float32 if bits == types.uint32 else types.float64

    def codegen(context, builder, signature, args):
        return builder.bitcast(args[0], context.get_value_type(real))

    return real(bits), codegen


@intrinsic
def nearest(typingctx, x):
    """Return the integer nearest to a float64, ties to even, as a float64."""

    def codegen(context, builder, signature, args):
        function_type = ir.FunctionType(ir.DoubleType(), [ir.DoubleType()])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.rint.f64")
        return builder.call(function, args)

    return types.float64(types.float64), codegen


#: The number of sums that `weighted_sums` computes.
SUMS = 16


@intrinsic
def weighted_sums(typingctx, R, stride, count, words, out, row_bytes):
    """Compute out_wj = Σ_t words_wt R_tj for w = 0, 1 and SUMS numbers j.

    R, `words` and `out` are addresses. R has rows of int8 numbers, `stride` bytes apart; `words` has two rows of
    `count` fp64 numbers; `out` has two rows of fp64 numbers, `row_bytes` apart.
    """

    def codegen(context, builder, signature, args):
        R, stride, count, words, out, row_bytes = args
        double, eight = ir.DoubleType(), ir.IntType(8)
        wide, narrow = ir.VectorType(double, SUMS), ir.VectorType(eight, SUMS)
        totals = [cgutils.alloca_once(builder, wide) for _ in range(2)]
        for total in totals:
            builder.store(constant(double, [0.0] * SUMS), total)
        multiply_add = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(wide, [wide] * 3), f"llvm.fma.v{SUMS}f64"
        )
        with cgutils.for_range(builder, count) as loop:
            at = builder.inttoptr(builder.add(R, builder.mul(loop.index, stride)), narrow.as_pointer())
            r = builder.sitofp(builder.load(at, align=1), wide)
            for w, total in enumerate(totals):
                index = builder.add(loop.index, builder.mul(count, _I64(w)))
                address = builder.inttoptr(builder.add(words, builder.shl(index, _I64(3))), double.as_pointer())
                lane = builder.insert_element(ir.Constant(wide, ir.Undefined), builder.load(address), _I32(0))
                word = builder.shuffle_vector(lane, lane, constant(_I32, [0] * SUMS))
                builder.store(builder.call(multiply_add, [r, word, builder.load(total)]), total)
        for w, total in enumerate(totals):
            address = builder.add(out, builder.mul(row_bytes, _I64(w)))
            builder.store(builder.load(total), builder.inttoptr(address, wide.as_pointer()), align=8)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), codegen


#: Whether the target processor has instructions that convert fp16 to fp32. False if Numba compiles for a different
#: processor.
HAS_FP16 = not numba.config.CPU_NAME and (
    machine() in ("aarch64", "arm64") or bool(get_host_cpu_features().get("f16c", False))
)


#: Whether the target processor has AVX-512, with registers of 64 bytes.
HAS_AVX512 = not numba.config.CPU_NAME and bool(get_host_cpu_features().get("avx512f", False))


@intrinsic
def widened_fp16(typingctx, bits):
    """Convert an fp16 number, given by its bits, to fp32; requires HAS_FP16."""

    def codegen(context, builder, signature, args):
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), codegen


@intrinsic
def widened_bf16(typingctx, bits):
    """Convert a bf16 number, given by its bits, to fp32: its bits are the upper half."""

    def codegen(context, builder, signature, args):
        word = builder.shl(builder.zext(args[0], _I32), _I32(16))
        return builder.bitcast(word, ir.FloatType())

    return types.float32(types.int16), codegen


@inner()
def barrier(sync, threads, yield_address):
    """Wait until all threads have called the barrier.

    sync[0] counts arrivals, and sync[8] counts the barriers passed.
    """
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


#: Length of a barrier's `sync` array: two cache lines, so that arrivals do not disturb the waiting threads.
SYNC = 16


def sched_yield_address() -> int:
    """Return the address of sched_yield in the C library."""
    return ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value or 0


def constant(element, values):
    """Return an LLVM vector constant with elements of the type `element`."""
    return ir.Constant(ir.VectorType(element, len(values)), list(values))


class Vectors:
    """Emit instructions on vectors of `numbers` numbers of an array's type, at unaligned addresses.

    A complex number is stored as two adjacent reals, in memory and in a vector.

    parts    reals per number: 1, or 2 for complex types
    size     bytes per number
    lanes    reals per vector
    """

    def __init__(self, context, builder, array, numbers):
        self.builder = builder
        self.complex = isinstance(array.dtype, types.Complex)
        real = array.dtype.underlying_float if self.complex else array.dtype
        self.real = context.get_data_type(real)
        self.bits = real.bitwidth
        self.parts = 2 if self.complex else 1
        self.size = self.parts * real.bitwidth // 8
        self.lanes = self.parts * numbers
        self.type = ir.VectorType(self.real, self.lanes)
        self.zero = constant(self.real, [0.0] * self.lanes)

    @classmethod
    def of_registers(cls, context, builder, array, numbers, register):
        """Return `Vectors` that fit into a register of `register` bytes and have at most `numbers` numbers."""
        return cls(context, builder, array, min(numbers, register // cls(context, builder, array, numbers).size))

    def load(self, address, kind=None):
        """Load the vector at `address`, or a value of the LLVM type `kind` if given."""
        kind = kind or self.type
        return self.builder.load(self._pointer(address, kind), align=self.bits // 8)

    def store(self, value, address):
        """Store a vector or a scalar at `address`."""
        self.builder.store(value, self._pointer(address, value.type), align=self.bits // 8)

    def _pointer(self, address, kind):
        """Convert `address`, an integer or a pointer, to a pointer to the LLVM type `kind`."""
        cast = self.builder.inttoptr if address.type == _I64 else self.builder.bitcast
        return cast(address, kind.as_pointer())

    def number(self, address):
        """Load the number at `address`, and return [real part, imaginary part], or [number] if it is real."""
        return [
            self.load(self.builder.add(address, _I64(part * self.bits // 8)), self.real) for part in range(self.parts)
        ]

    def all(self, value):
        """Return a vector with the scalar `value` in all lanes."""
        nothing = ir.Constant(ir.VectorType(value.type, self.lanes), ir.Undefined)
        first = self.builder.insert_element(nothing, value, _I32(0))
        return self.builder.shuffle_vector(first, nothing, constant(_I32, [0] * self.lanes))

    def alternating(self, even, odd):
        """Return a vector with `even` in the even lanes and `odd` in the odd lanes."""
        places = constant(_I32, [0, self.lanes] * (self.lanes // 2))
        return self.builder.shuffle_vector(self.all(even), self.all(odd), places)

    def times_i(self, value):
        """Multiply the complex numbers in a vector by i: (a, b) becomes (-b, a)."""
        return self.builder.fmul(self._i(), self._exchanged(value))

    def whole(self, parts):
        """Return the sum of numbers whose real and imaginary factors were accumulated separately.

        For complex numbers, the total is parts[0] + i · parts[1]. For real numbers, it is parts[0].
        """
        return self.add_product(self._i(), self._exchanged(parts[1]), parts[0]) if self.complex else parts[0]

    def _i(self):
        """Return the vector (-1, 1, -1, 1, ...), by which `times_i` multiplies the exchanged parts."""
        return self.alternating(ir.Constant(self.real, -1.0), ir.Constant(self.real, 1.0))

    def _exchanged(self, value):
        """Exchange the real and imaginary parts of the complex numbers in a vector."""
        places = constant(_I32, [lane ^ 1 for lane in range(self.lanes)])
        return self.builder.shuffle_vector(value, value, places)

    def turned(self, value):
        """Return the list [value, i · value] for complex numbers, or [value] for real ones.

        `add_products` multiplies these vectors by the real and imaginary parts of a number.
        """
        return [value, self.times_i(value)] if self.complex else [value]

    def everywhere(self, address):
        """Load the number at `address`, and broadcast its real and imaginary parts to one vector per part."""
        return [self.all(part) for part in self.number(address)]

    def minus(self, address):
        """Load the number at `address`, negate its real and imaginary parts, and broadcast each to a vector."""
        return [self.builder.fneg(self.all(part)) for part in self.number(address)]

    def across(self, count, together):
        """Emit loops over a row of `count` numbers, and yield lists of byte offsets of the vectors in the row.

        The first loop yields `together` offsets per iteration, and the second loop yields one.
        """
        size, begin, length = self.lanes * self.bits // 8, _I64(0), self.builder.mul(count, _I64(self.size))
        for width in (together, 1) if together > 1 else (1,):
            step = _I64(width * size)
            rest = self.builder.sub(length, begin)
            end = self.builder.add(begin, self.builder.mul(self.builder.udiv(rest, step), step))
            with cgutils.for_range_slice(self.builder, begin, end, step, _I64) as (at, _):
                yield [self.builder.add(at, _I64(size * i)) for i in range(width)]
            begin = end

    @contextmanager
    def along(self, count):
        """Emit a loop over a row of `count` numbers, and yield the byte offset of each vector in the row."""
        end, width = self.builder.mul(count, _I64(self.size)), _I64(self.lanes * self.bits // 8)
        with cgutils.for_range_slice(self.builder, _I64(0), end, width, _I64) as (at, _):
            yield at

    def add_products(self, parts, turned, c):
        """Return A b + c for a vector A and a number b.

        `parts` are the real and imaginary parts of b, each in all lanes. `turned` are the vectors that `turned`
        returns for A.
        """
        for part, value in zip(parts, turned):
            c = self.add_product(part, value, c)
        return c

    def add_product(self, a, b, c):
        """Return a · b + c for vectors, with one rounding if the processor has a fused multiply-add."""
        return self.builder.call(self.function("fmuladd", 3), [a, b, c])

    def function(self, name, arguments):
        """Return LLVM's function `name` of this number of vectors."""
        kind = ir.FunctionType(self.type, [self.type] * arguments)
        full_name = f"llvm.{name}.v{self.lanes}{self.real.intrinsic_name}"
        return cgutils.get_or_insert_function(self.builder.module, kind, full_name)

    def transposed(self, lines):
        """Transpose a square tile, given by one vector per line; the number of lanes is a power of two.

        Step b exchanges the entries (i, j + b) and (i + b, j) of all 2b×2b blocks.
        """
        lanes, lines = range(self.lanes), list(lines)
        for b in (1 << e for e in range(self.lanes.bit_length() - 1)):
            upper = [lane if not lane & b else self.lanes + (lane ^ b) for lane in lanes]
            lower = [lane | b if not lane & b else self.lanes + lane for lane in lanes]
            for i in (lane for lane in lanes if not lane & b):
                pair = lines[i], lines[i | b]
                lines[i], lines[i | b] = (
                    self.builder.shuffle_vector(*pair, constant(_I32, places)) for places in (upper, lower)
                )
        return lines
