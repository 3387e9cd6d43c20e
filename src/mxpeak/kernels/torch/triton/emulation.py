"""Emulate fp64 products in three fused passes: residues of both factors, INT8 products, and C -= A B.

The first pass rounds a scaled factor to integers and stores the residues modulo all moduli. The second pass multiplies
residues, and reduces the sums before it stores them as INT8 numbers. The third pass restores the integers and subtracts
them from C. `contract.emulation` describes the method.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from mxpeak.kernels.contract.emulation import PART, WORD, part_residues, residues
from mxpeak.kernels.torch.engine import compile_ahead
from mxpeak.kernels.torch.triton.arguments import Form, Matrix, form_of, matrix
from mxpeak.kernels.torch.triton.gemm import GROUP, LARGE, SMALL, tile_of, tile_place, tile_product

Tensor = Any

WARPS = 8
#: Rows and columns of a tile of the passes that read each entry once.
ROWS, COLUMNS = 16, 64
#: Rows, columns and k of a tile of a product, and its stages, for tests on the CPU.
INTERPRETED = (32, 32, 64, 1)
#: 2^52: larger fp64 numbers are integers, and adding and subtracting it rounds smaller positive numbers to integers.
EDGE = tl.constexpr(2.0**52)
ONE_PART, TWO_PARTS = tl.constexpr(2.0**PART), tl.constexpr(2.0 ** (2 * PART))
ONE_DOWN, TWO_DOWN, UNIT = tl.constexpr(2.0**-PART), tl.constexpr(2.0 ** (-2 * PART)), tl.constexpr(2.0**-WORD)


@triton.jit
def _nearest(x):
    """Return the integer nearest to an fp64 x, ties to even."""
    size = tl.abs(x)
    size = tl.where(size < EDGE, (size + EDGE) - EDGE, size)
    return tl.where(x < 0, -size, size)


@triton.jit
def _power(e):
    """Return 2^e in fp64; exponents below -1022 give 2^-1022."""
    return ((tl.maximum(e, -1022) + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def residues_kernel(lines, bits, out, plane, table, count, shape, padded, BM: tl.constexpr, BN: tl.constexpr):
    """Round 2^bits_i x_ij to an integer, and store its residues modulo all moduli, one plane of `out` per modulus.

    The table contains m and its `part_residues`. Columns of `out` beyond those of x become zero.
    """
    m, k = shape
    i = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    j = (tl.program_id(1) * BN + tl.arange(0, BN)).to(tl.int64)
    inside = (i < m)[:, None] & (j < k)[None, :]
    x = tl.load(lines.entries + i[:, None] * lines.ld + j[None, :], inside, other=0.0)
    x = _nearest(x * _power(tl.load(bits + i, i < m, other=0))[:, None])
    high = _nearest(x * TWO_DOWN)
    x -= high * TWO_PARTS
    middle = _nearest(x * ONE_DOWN)
    x -= middle * ONE_PART
    at = out.entries + i[:, None] * out.ld + j[None, :]
    to = (i < m)[:, None] & (j < padded)[None, :]
    for t in range(count):
        modulus, power, second_power = tl.load(table + 3 * t), tl.load(table + 3 * t + 1), tl.load(table + 3 * t + 2)
        y = x + middle * power + high * second_power
        r = y - _nearest(y / modulus) * modulus
        tl.store(at + t * plane, r.to(tl.int32).to(tl.int8), to)


@triton.jit
def product_kernel(
    R, A, B, planes, moduli, shape, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr
):
    """Store the residues of one tile of A B^T modulo one modulus; k is a multiple of BK."""
    m, n, _ = shape
    t = tl.program_id(1).to(tl.int64)
    row, column = tile_place(m, n, BM, BN, GROUP)
    i, j = row * BM + tl.arange(0, BM), column * BN + tl.arange(0, BN)
    left, right = (A.entries + t * planes[1], A.ld), (B.entries + t * planes[2], 1, B.ld)
    total = tile_product(left, right, i, j, shape, tl.int32, True, BM, BN, BK)
    modulus = tl.load(moduli + t)
    r = total % modulus  # the sign is that of the sum
    r += tl.where(2 * r < -modulus, modulus, 0) - tl.where(2 * r >= modulus, modulus, 0)
    r_at = R.entries + t * planes[0] + i.to(tl.int64)[:, None] * R.ld + j[None, :]
    tl.store(r_at, r.to(tl.int8), (i < m)[:, None] & (j < n)[None, :])


@triton.jit
def restore_kernel(
    C, R, plane, words, M, by_row, by_column, shape, count, LENGTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    """Subtract X_il · 2^(by_row_i + by_column_l) from C_il, where the integer X has the residues R modulo all moduli.

    X/M is the fraction of Σ_w 2^(-WORD·(w+1)) Σ_t words_wt R_t. The inner sums are exact.
    """
    m, n = shape
    i = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    j = (tl.program_id(1) * BN + tl.arange(0, BN)).to(tl.int64)
    inside = (i < m)[:, None] & (j < n)[None, :]
    r_at = R.entries + i[:, None] * R.ld + j[None, :]
    fraction = tl.zeros((BM, BN), tl.float64)
    unit = tl.full((), 1.0, tl.float64)
    for w in tl.static_range(LENGTH):
        total = tl.zeros((BM, BN), tl.float64)
        for t in range(count):
            r = tl.load(r_at + t * plane, inside, other=0).to(tl.float64)
            total += tl.load(words + w * count + t) * r
        unit *= UNIT
        if w == 0:
            total *= unit
            fraction = total - _nearest(total)
        else:
            fraction += total * unit
    e = tl.load(by_row + i, i < m, other=0)[:, None] + tl.load(by_column + j, j < n, other=0)[None, :]
    half = e >> 1
    product = fraction * tl.load(M) * _power(half) * _power(e - half)
    c_at = C.entries + i[:, None] * C.ld + j[None, :]
    tl.store(c_at, tl.load(c_at, inside, other=0.0) - product, inside)


def launch_subtract(
    C: Tensor, A: Tensor, B: Tensor, bits: tuple[Tensor, Tensor], shift: tuple[Tensor, Tensor], count: int
) -> None:
    """Compute C -= A B for a row-major C, the scaled rows of A and the scaled columns of B.

    bits    the numbers of bits to which the rows and columns are rounded
    shift   the binary logarithms of the units of the integers
    count   the number of moduli
    """
    (m, k), n, where = A.shape, len(B), {"device": C.device}
    BM, BN, BK, stages = tile_of(torch.empty(0, dtype=torch.int8, **where)) if C.is_cuda else INTERPRETED
    constants, depth = residues(count), -(-k // BK) * BK
    table = torch.tensor([[p, *part_residues(p)] for p in constants.moduli], dtype=torch.float64, **where)
    planes = []
    for lines, line_bits in ((A, bits[0]), (B, bits[1])):
        planes.append(torch.empty((count, len(lines), depth), dtype=torch.int8, **where))
        compile_ahead.launch(
            residues_kernel,
            (triton.cdiv(len(lines), ROWS), triton.cdiv(depth, COLUMNS)),
            matrix(lines),
            line_bits,
            Matrix(planes[-1], depth),
            planes[-1].stride(0),
            table,
            count,
            tuple(lines.shape),
            depth,
            BM=ROWS,
            BN=COLUMNS,
            num_warps=WARPS,
        )
    R = torch.empty((count, m, n), dtype=torch.int8, **where)
    compile_ahead.launch(
        product_kernel,
        (triton.cdiv(m, BM) * triton.cdiv(n, BN), count),
        Matrix(R, n),
        *(Matrix(plane, depth) for plane in planes),
        (R.stride(0), planes[0].stride(0), planes[1].stride(0)),
        torch.tensor(constants.moduli, dtype=torch.int32, **where),
        (m, n, depth),
        BM=BM,
        BN=BN,
        BK=BK,
        GROUP=GROUP,
        num_warps=WARPS,
        num_stages=stages,
    )
    compile_ahead.launch(
        restore_kernel,
        (triton.cdiv(m, ROWS), triton.cdiv(n, COLUMNS)),
        matrix(C),
        Matrix(R, n),
        R.stride(0),
        torch.tensor(constants.words, dtype=torch.float64, **where),
        torch.tensor(float(constants.product), dtype=torch.float64, **where),
        *shift,
        (m, n),
        count,
        LENGTH=len(constants.words),
        BM=ROWS,
        BN=COLUMNS,
        num_warps=WARPS,
    )


def _product_form(tile: tuple[int, int, int], depth: int) -> Form:
    """Return the specialization of the INT8 product for a tile."""
    factors = Matrix("*i8", "i32"), Matrix("*i8", "i32"), Matrix("*i8", "i32")
    types = *factors, ("i64",) * 3, "*i32", ("i32",) * 3
    return form_of(product_kernel, *types, BM=tile[0], BN=tile[1], BK=depth, GROUP=GROUP)


def _residues_form() -> Form:
    """Return the specialization of the pass that computes residues."""
    types = Matrix("*fp64", "i32"), "*i64", Matrix("*i8", "i32"), "i64", "*fp64", "i32", ("i32",) * 2, "i32"
    return form_of(residues_kernel, *types, BM=ROWS, BN=COLUMNS)


def _restore_form() -> Form:
    """Return the specialization of the pass that restores integers and subtracts them."""
    types = Matrix("*fp64", "i32"), Matrix("*i8", "i32"), "i64", "*fp64", "*fp64", "*i64", "*i64", ("i32",) * 2, "i32"
    return form_of(restore_kernel, *types, LENGTH=3, BM=ROWS, BN=COLUMNS)


COMPILED = [_residues_form(), _product_form(SMALL, 64), _restore_form()]
#: The forms of the INT8 products of Hopper, Blackwell and CDNA 3.
COMPILED_FOR = {
    "sm_90": [_product_form(LARGE, 128)],
    "sm_100": [_product_form(LARGE, 128)],
    "gfx942": [_product_form(SMALL, 64)],
}
