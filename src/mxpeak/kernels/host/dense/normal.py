"""Compute normal numbers from random bits by series, which the compiler can vectorize.

    ln(m·2^e) = e·ln 2 + 2·artanh(s),  s = (m-1)/(m+1),  |s| <= 0.1716 for m in [sqrt(1/2), sqrt(2))
    cos(2 pi v): subtract the nearest quarter turn; cos or sin of the remainder, at most pi/4, is a Taylor series

Eleven terms of artanh and nine of cos and sin leave an error below 2^-53. The compiler cannot vectorize calls of a
library's log and cos.
"""

from __future__ import annotations

from math import factorial, log, pi

import numpy as np

from mxpeak.kernels.host.engine.jit import inner
from mxpeak.kernels.host.engine.vector_ir import bits_of, float_of
from mxpeak.layout.entries import MIX

_MIX = np.uint64(MIX)
_LOW, _1, _29, _32, _52 = (np.uint64(word) for word in (0xFFFFFFFF, 1, 29, 32, 52))
_SIGNIFICAND, _ONE = np.uint64(2**52 - 1), np.uint64(1023 << 52)
_LN2, _SQRT2, _TURN = log(2.0), 2.0**0.5, 2.0 * pi
_ARTANH = tuple(1.0 / (2 * k + 1) for k in range(11))
_COS = tuple((-1.0) ** k / factorial(2 * k) for k in range(9))
_SIN = tuple((-1.0) ** k / factorial(2 * k + 1) for k in range(9))


@inner(inline=True)
def _horner(c, x):
    """Return the polynomial Σ c_k x^k by Horner's rule."""
    total = c[len(c) - 1]
    for k in range(len(c) - 2, -1, -1):
        total = total * x + c[k]
    return total


@inner(inline=True)
def normal(x):
    """Return the standard normal number that belongs to state x of the generator.

    The result approximates `layout.entries.normal` of the mixed bits of x.
    """
    z = (x ^ (x >> _32)) * _MIX
    z = z ^ (z >> _29)
    odd = np.float64(((z >> _32) << _1) | _1)  # u = odd / 2^33
    bits = bits_of(odd)
    e, m = np.float64(np.int64(bits >> _52) - 1023 - 33), float_of((bits & _SIGNIFICAND) | _ONE)
    high = m > _SQRT2
    m, e = (0.5 * m if high else m), (e + 1.0 if high else e)
    s = (m - 1.0) / (m + 1.0)
    log_u = e * _LN2 + 2.0 * s * _horner(_ARTANH, s * s)

    v = (np.float64(z & _LOW) + 0.5) * 2.0**-32
    quarters = np.floor(4.0 * v + 0.5)
    angle = _TURN * (v - 0.25 * quarters)
    turn = np.int64(quarters) & 3
    cosine, sine = _horner(_COS, angle * angle), angle * _horner(_SIN, angle * angle)
    part = sine if turn & 1 else cosine
    return np.sqrt(-2.0 * log_u) * (-part if turn == 1 or turn == 2 else part)
