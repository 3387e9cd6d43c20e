"""Compute the residual b - C y with about twice as many digits as its operands have.

A product of matrices in fp32 is computed in fp64. In fp64, C and y are cut into slices of β bits, with
2·β + log2(n) <= 53 for sums of n terms (Ozaki, Ogita, Oishi and Rump 2012). The products of slices are then exact in
any order of summation. They are subtracted from b with the rounding errors of each subtraction (Knuth's TwoSum).
"""

from __future__ import annotations

from typing import Any

from mxpeak.kernels.arrays import is_complex_array
from mxpeak.kernels.contract import Matrix, Vector
from mxpeak.kernels.contract.dense import Block
from mxpeak.solvers.scaling import powers

#: Number of slices, which contain all bits of numbers in fp64 for sums of up to 2^17 terms.
SLICES = 3
#: Number of entries of C that are cut at a time, so that they stay in the second-level cache.
ENTRIES = 1 << 16


def extended_residual(xp: Any, B: Block, A: Matrix, D: Vector, Y: Block) -> Block:
    """Return B - A D Y in the type of A, for powers of two D; its error is that of one rounding of each entry.

    The products of slices have errors of about 2^-54·max_j |a_ij d_j|·max_j |y_j| in addition.
    """
    m, n = A.shape
    is_complex = is_complex_array(A, xp)
    wide = xp.complex128 if is_complex else xp.float64
    B, Y = (xp.astype(V, wide, copy=False) for V in (B, Y))
    if xp.finfo(A.dtype).bits == 32:
        subtract = _subtracted
    else:
        subtract = _Slices(n, is_complex).subtracted
    rows, R = max(1, ENTRIES // n), xp.empty_like(B)
    for first in range(0, m, rows):
        part = slice(first, first + rows)
        R[part] = subtract(xp, B[part], xp.astype(A[part], wide, copy=False) * D, Y)
    return xp.astype(R, A.dtype, copy=False)


def _subtracted(xp: Any, B: Block, C: Block, Y: Block) -> Block:
    return B - C @ Y


class _Slices:
    """The slices of C and Y for products of n terms without rounding."""

    def __init__(self, n: int, is_complex: bool):
        terms = 2 * n if is_complex else n
        self._bits, self._is_complex = (53 - (terms - 1).bit_length()) // 2, is_complex

    def subtracted(self, xp: Any, B: Block, C: Block, Y: Block) -> Block:
        """Return B - C Y, rounded once."""
        P, Q = powers(self._largest(xp, C, 1), xp)[:, None], powers(self._largest(xp, Y, 0), xp)
        of_C, of_Y = self._slices(C * P), self._slices(Y * Q)
        high, k = P * B * Q, Y.shape[1]
        low, all_Y = xp.zeros_like(high), xp.concat(of_Y, axis=1)
        products = [C_i @ all_Y for C_i in of_C]
        for total in range(2 * SLICES - 1):  # from the largest products to the smallest
            for i in range(max(0, total - SLICES + 1), min(total, SLICES - 1) + 1):
                product = products[i][:, (total - i) * k : (total - i + 1) * k]
                before, high = high, high - product
                virtual = high - before
                low = low + ((before - (high - virtual)) - (product + virtual))
        return (high + low) / P / Q

    def _largest(self, xp: Any, V: Block, axis: int) -> Vector:
        if self._is_complex:
            return xp.max(xp.maximum(xp.abs(xp.real(V)), xp.abs(xp.imag(V))), axis=axis)
        return xp.max(xp.abs(V), axis=axis)

    def _slices(self, V: Block) -> list[Block]:
        """Return slices with the sum V for |V| <= 1; slice i has the bits from 2^(-β·i) to 2^(-β·(i+1))."""
        slices, one = [], 1.0 + 1.0j if self._is_complex else 1.0
        for i in range(1, SLICES):
            σ = 1.5 * 2.0 ** (52 - self._bits * i) * one
            cut = (V + σ) - σ
            slices.append(cut)
            V = V - cut
        return [*slices, V]
