"""Model Arm's matrix instructions in NumPy, and one in LLVM's fp32 operations, and create operands of tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from mxpeak.kernels.host.engine.arm.bfmmla import lanes_of, tile_by
from mxpeak.kernels.host.engine.matrix_engines import COLUMNS, DEPTH, ROWS, MatrixEngine
from mxpeak.kernels.host.lu import operands
from mxpeak.kernels.host.lu.operands import LeftOperand, RightOperand

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


def tile_of(compute: Any, engine: MatrixEngine, A: Any, B: Any) -> Any:
    """Return the tile A B by compiled code, from operands in the layout of a matrix engine."""
    k, fp16 = A.shape[1], engine.precision == "fp16"
    left = LeftOperand.over(np.zeros(operands.size(ROWS, k, "left"), np.int32), ROWS, k, engine)
    right = RightOperand.over(np.zeros(operands.size(k, COLUMNS, "right"), np.int32), k, COLUMNS, engine)
    operands.round_left(0, 1, A.astype(np.float32), left.pairs, fp16)
    operands.round_right(0, 1, B.astype(np.float32), right.strips, fp16)
    around = np.full((ROWS + 2, COLUMNS), np.nan, np.float32)
    T, depths = around[1 : ROWS + 1], operands.pairs_along(k) * 2 // DEPTH
    compute(T.ctypes.data, left.pairs.ctypes.data, left.pairs.strides[0], right.strips.ctypes.data, depths)
    assert np.isnan(around[[0, -1]]).all(), "a tile is stored in its own rows"
    return T.copy()


def product_by_fmopa(A: Any, B: Any) -> Any:
    """Return A B in fp32 with the roundings of FMOPA for fp16 (Arm ARM, FPDotAdd_ZA): two per two products.

    A sum of two products must be exact in fp64.
    """
    A, B = A.astype(np.float64), B.astype(np.float64)
    S = np.zeros((A.shape[0], B.shape[1]), np.float32)
    for k in range(0, A.shape[1], 2):
        S += (A[:, k : k + 2] @ B[k : k + 2]).astype(np.float32)
    return S


def product_by_bfmmla(A: Any, B: Any) -> Any:
    """Return A B in fp32 with the order of sums and the roundings of BFMMLA and BFMOPA.

    The Arm Architecture Reference Manual calls them BFDotAdd, here with EBF = 0.
    """
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
