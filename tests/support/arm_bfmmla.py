"""Two models of BFMMLA: one in NumPy with the instruction's roundings, and one in LLVM's fp32 operations for tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from mxpeak.kernels.host.engine.bfmmla import lanes_of, tile_by

_SUMS, _WORDS = ir.VectorType(ir.FloatType(), 4), ir.VectorType(ir.IntType(32), 4)


def rounded_to_odd(a: Any, b: Any) -> Any:
    """Return a + b in fp32: the sum itself, or the one of its two neighbors whose last bit is 1.

    The operands are fp32 numbers, stored in fp64, and the sum is a normal number of fp32.
    """
    total = a + b
    virtual = total - a
    error = (a - (total - virtual)) + (b - virtual)  # Knuth's exact error of a + b in fp64
    cut = np.trunc(np.ldexp(total, 24 - np.frexp(total)[1]))
    below = np.ldexp(cut, np.frexp(total)[1] - 24)
    # An error of the other sign moves the exact sum below a total that is itself an fp32 number.
    inward = (below == total) & (np.sign(error) == -np.sign(total))
    low = np.where(inward, np.nextafter(below.astype(np.float32), np.float32(0)), below).astype(np.float32)
    exact = (below == total) & (error == 0)
    odd = (low.view(np.uint32) | np.uint32(1)).view(np.float32)
    return np.where(exact, low, odd).astype(np.float64)


def product_by_bfmmla(A: Any, B: Any) -> Any:
    """Return A B in fp32 with the order of sums and the roundings of BFMMLA (Arm ARM, BFDotAdd with EBF = 0)."""
    A, B = A.astype(np.float64), B.astype(np.float64)
    S = np.zeros((A.shape[0], B.shape[1]))
    for k in range(0, A.shape[1], 2):
        even, odd = np.outer(A[:, k], B[k]), np.outer(A[:, k + 1], B[k + 1])
        S = rounded_to_odd(S, rounded_to_odd(even, odd))
    return S.astype(np.float32)


def _by_software(builder: Any, S: Any, X: Any, Y: Any) -> Any:
    """Emit fp32 operations on any processor and return S + X Y^T, with the instruction's order of sums."""
    words = [builder.bitcast(block, _WORDS) for block in (X, Y)]
    shift, upper = (ir.Constant(_WORDS, [ir.IntType(32)(value)] * 4) for value in (16, 0xFFFF0000))
    even = [builder.shl(word, shift) for word in words]
    odd = [builder.and_(word, upper) for word in words]
    for pair in range(2):
        products = []
        for x, y in (even, odd):
            left = lanes_of(builder, x, x, [pair, pair, 2 + pair, 2 + pair])
            right = lanes_of(builder, y, y, [pair, 2 + pair, pair, 2 + pair])
            products.append(builder.fmul(builder.bitcast(left, _SUMS), builder.bitcast(right, _SUMS)))
        S = builder.fadd(S, builder.fadd(*products))
    return S


@intrinsic
def software_tile(typingctx: Any, T: Any, A: Any, lda: Any, B: Any, depths: Any) -> Any:
    """Compute the tile of `tile_bfmmla` without BFMMLA."""
    return tile_by(_by_software)
