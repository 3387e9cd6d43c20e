"""Compute C -= A B in place for 8-bit and 16-bit operands and an fp32 C, because not all libraries have this product.

Tiles of C are numbered in groups of adjacent rows, so that programs that run at the same time share operands in L2.
Hopper's tensor cores accumulate products of fp8 numbers in about 14 bits. The resulting error is 2^-9 times the
rounding error of the operands. Accumulation in fp32 would need twice the registers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from mxpeak.kernels.torch.engine import compile_ahead
from mxpeak.kernels.torch.triton.arguments import Form, Integer, Matrix, form_of, matrix

Tensor = Any

#: Rows and columns of a tile of C, and the number of stages of its operands in shared memory. Hopper and later GPUs
#: have enough shared memory for three stages of a large tile; other GPUs use two stages of a small tile.
LARGE, SMALL = (128, 256, 3), (128, 128, 2)
#: Bytes of K per stage: 64 numbers of 16 bits or 128 numbers of 8 bits, or half of that with less shared memory.
STAGE_BYTES = 128
#: Rows of tiles per group, and warps per tile.
GROUP, WARPS = 8, 8
#: A tile for tests on the CPU. There, the masked part of a full tile would take minutes.
TINY = 16


class Operand(NamedTuple):
    """The operand B, with the strides of its rows and columns, one of which is 1."""

    entries: Tensor
    row: Integer
    column: Integer


@triton.jit
def tile_place(m, n, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """Return the row and the column of this program's tile, counted in tiles."""
    across, down = tl.cdiv(n, BN), tl.cdiv(m, BM)
    group = tl.program_id(0) // (GROUP * across)
    height = tl.minimum(down - group * GROUP, GROUP)
    member = tl.program_id(0) % (GROUP * across)
    return group * GROUP + member % height, member // height


@triton.jit
def tile_product(
    A, B, i, j, shape, SUMS: tl.constexpr, EVEN_K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """Return rows i and columns j of A B, summed in the type SUMS; A and B are entries with strides.

    The stride of the columns of A is 1. If EVEN_K, k is a multiple of BK.
    """
    (a, a_row), (b, b_row, b_column), (m, n, k) = A, B, shape
    inner = tl.arange(0, BK)
    # Beyond the edge, the first rows are read again. This needs no mask, and the products of these rows are not
    # stored.
    a_at = a + (i % m).to(tl.int64)[:, None] * a_row + inner[None, :]
    b_at = b + (j % n).to(tl.int64)[None, :] * b_column + inner[:, None] * b_row
    total = tl.zeros((BM, BN), SUMS)
    for k0 in range(0, k, BK):
        if EVEN_K:
            x, y = tl.load(a_at), tl.load(b_at)
        else:
            x = tl.load(a_at, (inner < k - k0)[None, :], other=0.0)
            y = tl.load(b_at, (inner < k - k0)[:, None], other=0.0)
        total = tl.dot(x, y, total, out_dtype=SUMS)
        a_at += BK
        b_at += BK * b_row
    return total


@triton.jit
def gemm_kernel(
    C, A, B, shape, EVEN_K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr
):
    """Compute one tile of C -= A B."""
    m, n, _ = shape
    row, column = tile_place(m, n, BM, BN, GROUP)
    i, j = tl.arange(0, BM), tl.arange(0, BN)
    total = tile_product(A, B, row * BM + i, column * BN + j, shape, tl.float32, EVEN_K, BM, BN, BK)
    corner = C.entries + (row * BM).to(tl.int64) * C.ld + column * BN
    c_at = corner + i[:, None] * C.ld + j[None, :]
    inside = (row * BM + i < m)[:, None] & (column * BN + j < n)[None, :]
    tl.store(c_at, tl.load(c_at, inside, other=0.0) - total, inside)


def launch_subtract_product(C: Tensor, A: Tensor, B: Tensor) -> None:
    """Compute C -= A B for row-major C and A."""
    (m, k), n = A.shape, B.shape[1]
    BM, BN, BK, stages = tile_of(A)
    grid = (triton.cdiv(m, BM) * triton.cdiv(n, BN),)
    compile_ahead.launch(
        gemm_kernel,
        grid,
        matrix(C),
        matrix(A),
        Operand(B, *B.stride()),
        (m, n, k),
        EVEN_K=k % BK == 0,
        BM=BM,
        BN=BN,
        BK=BK,
        GROUP=GROUP,
        num_warps=WARPS,
        num_stages=stages,
    )


def tile_of(A: Tensor) -> tuple[int, int, int, int]:
    """Return BM, BN and BK of a tile, and the number of stages, for the type and the device of A."""
    if not A.is_cuda:
        return TINY, TINY, TINY, 1
    depth = STAGE_BYTES // A.element_size()
    if torch.version.hip is None and torch.cuda.get_device_capability(A.device)[0] >= 9:
        return LARGE[0], LARGE[1], depth, LARGE[2]
    return SMALL[0], SMALL[1], depth // 2, SMALL[2]


def _form(operand: str, tile: tuple[int, int, int], depth: int) -> Form:
    """Return the specialization of the kernel for a row-major B^T."""
    types = Matrix("*fp32", "i32"), Matrix(operand, "i32"), Operand(operand, "constexpr", "i32"), ("i32",) * 3
    kernel, signature, constants = form_of(
        gemm_kernel, *types, EVEN_K=True, BM=tile[0], BN=tile[1], BK=depth, GROUP=GROUP
    )
    return kernel, signature, constants | {(2, 1): 1}


COMPILED = [_form(*entry) for entry in (("*fp16", SMALL, 32), ("*bf16", SMALL, 32))]
#: GPUs with FP8 (NVIDIA from sm_89), with the tile that fits into Hopper's shared memory.
COMPILED_FOR = {
    "sm_90": [_form(*entry) for entry in (("*fp8e4nv", LARGE, 128), ("*bf16", LARGE, 64))],
    "gfx942": [_form("*fp8e4nv", SMALL, 64)],
}
