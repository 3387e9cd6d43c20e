"""Scale lines by powers of two, and choose the bits of their integers, for emulated fp64 products."""

from __future__ import annotations

from typing import Any

import numpy as np

from mxpeak.kernels.contract.emulation import BITS, SLACK, SUBNORMAL
from mxpeak.kernels.host.engine.jit import inner
from mxpeak.kernels.host.engine.vector_ir import bits_of, float_of

Array = np.ndarray[Any, np.dtype[Any]]

#: The exponent of a line that contains NaN or infinity.
NOT_FINITE = 1 << 20


def significant_bits(ratios: Array) -> Array:
    """Return the bits of the integers of each line, from the largest ratio of a sum to its estimate in each line."""
    return BITS + np.frexp(SLACK * ratios)[1].astype(np.int64)


@inner(inline=True)
def power_of_two(e):
    """Return 2^e for -1022 <= e <= 1023."""
    return float_of(np.uint64(e + 1023) << np.uint64(52))


@inner(inline=True)
def times_power(x, e):
    """Return x · 2^e for |x| < 2^900 and e <= 2046. Two factors are needed, because 2^e may be outside the range."""
    half = e >> 1
    return x * power_of_two(max(half, -1022)) * power_of_two(max(e - half, -1022))


@inner()
def _exponent(a):
    """Return e with max |a_j| in [2^(e-1), 2^e): 0 if all numbers are zero, and NOT_FINITE for NaN or infinity."""
    largest = np.uint64(0)
    for j in range(a.shape[0]):
        largest = max(largest, bits_of(a[j]) & np.uint64(0x7FFFFFFFFFFFFFFF))
    if largest == np.uint64(0):
        return np.int64(0)
    exponent = np.int64(largest >> np.uint64(52))
    if exponent == 2047:
        return np.int64(NOT_FINITE)
    if exponent == 0:  # a subnormal number
        return np.int64(bits_of(np.float64(largest)) >> np.uint64(52)) - 1022 - 1074
    return exponent - 1022


@inner()
def scale_line(a):
    """Scale a line in place, and return the binary logarithm of its scale, or NOT_FINITE for NaN or infinity.

    Entries other than zero remain different from zero.
    """
    e = _exponent(a)
    if e != NOT_FINITE:
        for j in range(a.shape[0]):
            x = a[j]
            scaled = times_power(x, -e)
            least = SUBNORMAL if x > 0.0 else -SUBNORMAL
            a[j] = least if scaled == 0.0 and x != 0.0 else scaled
    return e
