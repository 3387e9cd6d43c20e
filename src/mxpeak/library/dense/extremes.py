"""Numbers near the ends of a type's range: powers of two bring them to its middle, and the solution back.

    A x = b,    A' = s A,    b' = b p,    A' y = b',    x = y s / p

Below the least normal number there are fewer digits the smaller a number is, and products of such numbers have none;
sums of the largest numbers overflow.  Powers of two round nothing.
"""

from __future__ import annotations

from math import frexp
from typing import Any

import numpy as np

from mxpeak.kernels.contract import DenseKernels, Matrix
from mxpeak.kernels.contract.dense import Block
from mxpeak.solvers.scaling import powers


def least(dtype: np.dtype[Any]) -> float:
    """Products of numbers below this with numbers of size u may lose digits; above its reciprocal they may overflow."""
    known = np.finfo(dtype)
    return float(known.tiny) / float(known.eps) ** 2


def raised(kernels: DenseKernels, A: Matrix, dtype: np.dtype[Any]) -> tuple[Matrix, int]:
    """(2^k A, k) where all entries of A are tiny, else (A, 0).  Most often one look at the first row tells."""
    low = least(dtype)
    if not (_largest(kernels, A[:1]) < low and 0.0 < (found := _largest(kernels, A)) < low):
        return A, 0
    exponent = _exponent(float(powers(kernels.xp.asarray([found], dtype=kernels.xp.float64), kernels.xp)[0]))
    return _times(kernels, A, exponent), exponent


def centred(kernels: DenseKernels, B: Block, dtype: np.dtype[Any], exponent: int) -> tuple[Block, int]:
    """(2^k B, k) where A was raised by 2^exponent, B is huge, or so tiny that its residual may vanish; else (B, 0)."""
    found = _largest(kernels, B)
    if found == 0.0 or (not exponent and least(dtype) < found < 1 / least(dtype)):
        return B, 0
    k = _exponent(float(powers(kernels.xp.asarray([found], dtype=kernels.xp.float64), kernels.xp)[0]))
    return _times(kernels, B, k), k


def restored(kernels: DenseKernels, Y: Block, exponent: int) -> Block:
    """2^exponent Y."""
    return _times(kernels, Y, exponent) if exponent else Y


def _largest(kernels: DenseKernels, X: Matrix) -> float:
    """max |x| over real and imaginary parts, which of a number near the end of the range may be finite alone."""
    xp = kernels.xp
    if not xp.isdtype(X.dtype, "complex floating"):
        return float(xp.max(xp.abs(X)))
    return max(float(xp.max(xp.abs(part(X)))) for part in (xp.real, xp.imag))


def _exponent(power: float) -> int:
    return frexp(power)[1] - 1


def _times(kernels: DenseKernels, X: Matrix, exponent: int) -> Matrix:
    """2^exponent X in X's type, in two halves: a power of two may be beyond the range where the product is not."""
    half = exponent // 2
    with kernels.computing():
        return kernels.xp.astype((X * 2.0**half) * 2.0 ** (exponent - half), X.dtype, copy=False)
