"""Round and copy in one pass, tile by tile; a tile is transposed if the target is column-major."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from mxpeak.kernels.torch.engine import compile_ahead
from mxpeak.kernels.torch.triton.arguments import Form, Matrix, form_of, matrix

Tensor = Any

VERSION: str = triton.__version__
#: A tile: lines of at least 128 bytes in both directions, 16 numbers per thread.
ROWS, COLUMNS, WARPS = 64, 64, 8
BM, BN = tl.constexpr(ROWS), tl.constexpr(COLUMNS)

KEEP, FP8, BF16, AS_TF32 = (tl.constexpr(k) for k in range(4))


@triton.jit
def _fp8_bits(x):
    """Return the bits of an fp32 x as an e4m3 number: 1 sign bit, 4 exponent bits (bias 7), 3 fraction bits.

    Integer arithmetic is used because only some devices convert to e4m3, and because these conversions saturate. At
    and above 2^-6, 20 bits of the fraction are rounded off and the bias is changed. Below 2^-6, e4m3 numbers are
    multiples of 2^-9, and adding 1.5·2^23 rounds to these multiples.
    """
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - 960
    magic = size.to(tl.float32, bitcast=True) * 512.0 + 12582912.0
    small = magic.to(tl.int32, bitcast=True) - 0x4B400000
    code = tl.where(size < 0x3C800000, small, normal)
    code = tl.where(size > 0x43E80000, 0x7F, code)  # above 464, inf and NaN
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def bf16_bits(x):
    """Return the bits of an fp32 x rounded to bf16.

    Integer arithmetic is used because Triton's interpreter does not round.
    """
    bits = x.to(tl.int32, bitcast=True)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where(x == x, nearest, 0x7FC0).to(tl.int16)


@triton.jit
def rounded_to(x, kind: tl.constexpr):
    """Return x rounded to nearest even to the type of a vector."""
    if kind == tl.bfloat16:
        near = bf16_bits(x.to(tl.float32)).to(tl.bfloat16, bitcast=True)
    else:
        near = x.to(kind)
    return near


@triton.jit
def _tf32(x):
    """Return an fp32 x rounded to nearest even to TF32, with 13 bits rounded off."""
    bits = x.to(tl.int32, bitcast=True)
    nearest = (bits + 0x0FFF + ((bits >> 13) & 1)) & -8192
    return tl.where(x == x, nearest.to(tl.float32, bitcast=True), x)


@triton.jit
def cast_kernel(source, target, shape, HOW: tl.constexpr, TURNED: tl.constexpr):
    """Set target[i, j] = source[i, j], one tile per program; HOW selects the rounding.

    TURNED means that the target is column-major.
    """
    m, n = shape
    i = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    j = (tl.program_id(1) * BN + tl.arange(0, BN)).to(tl.int64)
    inside = (i < m)[:, None] & (j < n)[None, :]
    x = tl.load(source.entries + i[:, None] * source.ld + j[None, :], inside, other=0.0)
    if HOW == FP8:
        value = _fp8_bits(x.to(tl.float32))
    elif HOW == BF16:
        value = bf16_bits(x.to(tl.float32))
    elif HOW == AS_TF32:
        value = _tf32(x.to(tl.float32))
    else:
        value = x.to(target.entries.dtype.element_ty)
    if TURNED:
        turned = target.entries + j[:, None] * target.ld + i[None, :]
        tl.store(turned, tl.trans(value), (j < n)[:, None] & (i < m)[None, :])
    else:
        tl.store(target.entries + i[:, None] * target.ld + j[None, :], value, inside)


def launch_cast(source: Tensor, target: Tensor, precision: str) -> None:
    """Set target = source, rounded to a precision; the source is row-major."""
    how, stored = {"fp8": (FP8, torch.uint8), "bf16": (BF16, torch.int16), "tf32": (AS_TF32, torch.float32)}.get(
        precision, (KEEP, target.dtype)
    )
    _launch(source, target.view(stored), how)


def launch_copy(source: Tensor, target: Tensor) -> None:
    """Set target = source for one row-major and one column-major tensor."""
    if source.stride(1) == 1:
        _launch(source, target, KEEP)
    else:
        _launch(source.T, target.T, KEEP)


def _launch(source: Tensor, target: Tensor, how: tl.constexpr) -> None:
    m, n = source.shape
    turned = target.stride(1) != 1 and n > 1
    grid = (triton.cdiv(m, ROWS), triton.cdiv(n, COLUMNS))
    by_lines = Matrix(target, target.stride(1) if turned else target.stride(0))
    compile_ahead.launch(cast_kernel, grid, matrix(source), by_lines, (m, n), HOW=how, TURNED=turned, num_warps=WARPS)


def _form(source: str, target: str, how: int, turned: bool) -> Form:
    """Return the specialization of the kernel for these types."""
    return form_of(cast_kernel, Matrix(source, "i64"), Matrix(target, "i64"), ("i32", "i32"), HOW=how, TURNED=turned)


COMPILED = [
    _form(source, target, how, turned)
    for turned in (False, True)
    for source, target, how in (
        ("*fp32", "*fp16", 0),
        ("*fp32", "*u8", 1),
        ("*fp32", "*i16", 2),
        ("*fp32", "*fp32", 3),
        ("*fp64", "*fp64", 0),
    )
]
