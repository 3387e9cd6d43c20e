"""Compute |x|, |x|² and integers that order |x|, for every entry type, from one source compiled per type.

Numba supports neither bfloat16 nor float16. Such numbers are passed as int16 and uint16, and their bits are converted.
All results are computed in fp64, in which no square of a narrower type overflows or underflows.

Absolute values are compared as integers. The bits of a non-negative float, read as an integer, increase with the
float. The bits of Inf are larger than those of any number, and the bits of NaN are larger still. Therefore the integer
maximum gives the norm, and NaN prevails over Inf.
"""

from __future__ import annotations

import math

import numpy as np
from numba import types

from mxpeak.kernels.host.engine.jit import by_type, inner
from mxpeak.kernels.host.engine.vector_ir import HAS_FP16, bits_of, float_of, widened_fp16

#: The integer types that represent bfloat16 and float16 in compiled code.
BF16, FP16 = types.int16, types.uint16

_SIGN32, _SIGN64 = np.uint32(0x7FFFFFFF), np.uint64(0x7FFFFFFFFFFFFFFF)
_INF64 = np.uint64(0x7FF0000000000000)


@inner(inline=True)
def ordered(x):
    """Return the bits of |x| as an integer, for an fp64 x. NaN of either sign gives a larger integer than Inf."""
    return np.int64(bits_of(x) & _SIGN64)


@by_type
def widened(x):
    """Return |x| as fp32 for a bfloat16 or float16 number x, given by its bits."""
    if x == BF16:  # the upper half of an fp32
        return lambda x: float_of(np.uint32(np.uint32(x & np.int16(0x7FFF)) << np.uint32(16)))

    if HAS_FP16:
        return lambda x: widened_fp16(x & np.uint16(0x7FFF))

    def from_fp16(x):  # placed in fp32, fp16's exponent is too small by 127 - 15; Inf and NaN give 2^16 or more
        bits = np.uint32(np.uint32(x & np.uint16(0x7FFF)) << np.uint32(13))
        value = float_of(bits) * np.float32(2.0**112)
        return value if bits < np.uint32(0x7C00 << 13) else float_of(np.uint32(bits | np.uint32(0x7F800000)))

    return from_fp16


@by_type
def square(x):
    """Return |x|² in fp64. If x is fp64 or complex128, the square may overflow or underflow."""
    if x in (types.complex64, types.complex128):

        def of_complex(x):
            re, im = np.float64(x.real), np.float64(x.imag)
            return re * re + im * im

        return of_complex

    def of_real(x):
        value = magnitude(x)
        return value * value

    return of_real


@by_type
def magnitude(x):
    """Return |x| in fp64. For complex x, it is the square root of |x|²."""
    if x in (types.complex64, types.complex128):
        return lambda x: math.sqrt(square(x))
    if x in (BF16, FP16):
        return lambda x: np.float64(widened(x))
    return lambda x: np.float64(abs(x))


@by_type
def safe_magnitude(x):
    """Return |x| in fp64 without overflow or underflow of a square. NaN prevails over Inf."""
    if x != types.complex128:

        def of_narrow(x):
            value = magnitude(x)
            return value if value == value else np.nan

        return of_narrow

    def scaled(x):
        re, im = np.uint64(bits_of(x.real) & _SIGN64), np.uint64(bits_of(x.imag) & _SIGN64)
        larger = max(re, im)
        if larger >= _INF64:
            return float_of(larger)
        # Scale by a power of two from the exponent of the larger part. A part that underflows is negligible.
        exponent = min(max(larger >> np.uint64(52), np.uint64(1)), np.uint64(2045))
        down = float_of(np.uint64((np.uint64(2046) - exponent) << np.uint64(52)))
        up = float_of(exponent << np.uint64(52))
        a, b = x.real * down, x.imag * down
        return math.sqrt(a * a + b * b) * up

    return scaled


@by_type
def key(x):
    """Return an integer that increases with |x|; the integer of NaN is larger than that of Inf."""
    if x == types.float64:
        return lambda x: ordered(x)
    if x == types.float32:
        return lambda x: np.int32(bits_of(x) & _SIGN32)
    if x == BF16:
        return lambda x: np.int16(x & np.int16(0x7FFF))
    if x == FP16:
        return lambda x: np.int16(x & np.uint16(0x7FFF))
    return lambda x: ordered(square(x))


@by_type
def least_key(x):
    """Return the key of zero for the type of x, which is the smallest key."""
    if x == types.float32:
        return lambda x: np.int32(0)
    if x in (BF16, FP16):
        return lambda x: np.int16(0)
    return lambda x: np.int64(0)


@by_type
def of_key(k, x):
    """Return the absolute value with the key k as fp64; x is any number of the entry type."""
    if x == types.float64:
        return lambda k, x: float_of(np.uint64(k))
    if x == types.float32:
        return lambda k, x: np.float64(float_of(np.uint32(k)))
    if x == BF16:
        return lambda k, x: np.float64(widened(np.int16(k)))
    if x == FP16:
        return lambda k, x: np.float64(widened(np.uint16(k)))
    return lambda k, x: math.sqrt(float_of(np.uint64(k)))


@by_type
def scaled(x, s):
    """Return |s·s·x| in fp64 for a power of two s, applied twice because s·s may exceed the range of fp64."""
    if x in (types.complex64, types.complex128):
        return lambda x, s: math.sqrt(scaled_square(x, s))
    return lambda x, s: magnitude(x) * s * s


@by_type
def scaled_square(x, s):
    """Return |s·s·x|² in fp64 for a power of two s."""
    if x in (types.complex64, types.complex128):

        def of_complex(x, s):
            re, im = np.float64(x.real) * s * s, np.float64(x.imag) * s * s
            return re * re + im * im

        return of_complex

    def of_real(x, s):
        value = scaled(x, s)
        return value * value

    return of_real


@by_type
def largest_part(x):
    """Return the bits of the larger of |Re x| and |Im x|, as fp64, in an integer."""
    if x == types.complex128:

        def of_complex(x):
            return np.int64(max(bits_of(x.real) & _SIGN64, bits_of(x.imag) & _SIGN64))

        return of_complex
    return lambda x: ordered(magnitude(x))


@by_type
def square_may_overflow(x):
    """Return whether |x|² can overflow or underflow in fp64, which depends only on the type of x."""
    may = x in (types.float64, types.complex128)
    return (lambda x: True) if may else (lambda x: False)


@by_type
def magnitude_may_overflow(x):
    """Return whether |x| can overflow or underflow because |x| is computed from |x|².

    The result depends only on the type of x.
    """
    return (lambda x: True) if x == types.complex128 else (lambda x: False)
