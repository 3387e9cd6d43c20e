"""Convert numbers between bf16 or fp16, which compiled code receives as bits, and fp32 or fp64.

Both directions are branch-free, so that loops vectorize on every processor. Only the conversion from fp16 uses an
instruction (F16C on x86), because it is the only one that a Krylov method repeats for every stored vector.
"""

from __future__ import annotations

import numpy as np
from numba import types

from mxpeak.kernels.host.engine.jit import by_type
from mxpeak.kernels.host.engine.vector_ir import HAS_FP16, bits_of, float_of, widened_bf16, widened_fp16

#: The types of the bits of bf16 and of fp16.
BF16, FP16 = types.int16, types.uint16
_SIGN = np.uint32(0x7FFFFFFF)


@by_type
def widened(x):
    """Return the number with the bits x in fp32, or x itself if it is fp32 or fp64."""
    if x == BF16:
        return lambda x: widened_bf16(x)
    if x != FP16:
        return lambda x: x
    if HAS_FP16:
        return lambda x: widened_fp16(x)

    def from_fp16(x):
        size, sign = np.uint32(x & np.uint16(0x7FFF)), np.uint32(np.uint32(x & np.uint16(0x8000)) << np.uint32(16))
        normal = np.uint32((size << np.uint32(13)) + np.uint32((127 - 15) << 23))  # the bias of the exponent differs
        normal = normal if size < np.uint32(0x7C00) else np.uint32(normal | np.uint32(0x7F800000))  # Inf or NaN
        small = bits_of(np.float32(np.int32(size)) * np.float32(2.0**-24))
        return float_of(np.uint32((normal if size >= np.uint32(0x0400) else small) | sign))

    return from_fp16


@by_type
def narrowed(x, to):
    """Return x in the type of `to`: rounded to nearest even and as bits, if `to` has the bits of bf16 or fp16."""
    if to == BF16:

        def to_bf16(x, to):
            near = np.float32(x)
            bits = bits_of(near)
            up = np.uint32(np.uint32(0x7FFF) + (np.uint32(bits >> np.uint32(16)) & np.uint32(1)))
            return np.int16(np.uint32(bits + (up if near == near else np.uint32(0))) >> np.uint32(16))

        return to_bf16
    if to == FP16:

        def to_fp16(x, to):
            near = np.float32(x)
            size = np.uint32(bits_of(near) & _SIGN)
            sign = np.uint32(np.uint32(bits_of(near) >> np.uint32(16)) & np.uint32(0x8000))
            odd = np.uint32(np.uint32(size >> np.uint32(13)) & np.uint32(1))
            normal = np.uint32(np.uint32(size - np.uint32((127 - 15) << 23)) + np.uint32(np.uint32(0xFFF) + odd))
            normal = min(np.uint32(normal >> np.uint32(13)), np.uint32(0x7C00))
            # The spacing of fp32 numbers just above 1/2 is that of fp16's subnormal numbers.
            small = np.uint32(bits_of(np.float32(float_of(size) + np.float32(0.5))) - np.uint32(0x3F000000))
            bits = normal if size >= np.uint32(0x38800000) else small
            bits = bits if size <= np.uint32(0x7F800000) else np.uint32(0x7E00)  # NaN
            return np.uint16(bits | sign)

        return to_fp16
    return lambda x, to: x
