"""Compute norms in one pass over the blocks in the band, with partial sums in slots instead of atomics.

Absolute values are compared as integers: the bits of non-negative numbers are ordered like the numbers, Inf is above
all numbers, and NaN is above Inf.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from mxpeak.kernels.contract import norms
from mxpeak.kernels.torch.engine import compile_ahead
from mxpeak.kernels.torch.engine.tile_table import MANY, WARPS, Batch
from mxpeak.kernels.torch.triton.norm_blocks import (
    COLUMNS,
    LENGTH,
    LINE0,
    LINE_SLOT,
    POSITION0,
    POSITION_SLOT,
    PROGRAMS,
    SLOTS,
    block,
    constants_of,
    forms,
    grid,
    lines_of,
    memory,
    positions_of,
    programs_of,
    region,
    slots_of,
)

Tensor = Any

LARGE, SMALL, DOWN, UP = (tl.constexpr(limit) for limit in (norms.LARGE, norms.SMALL, norms.DOWN, norms.UP))
POSITIVE, INFINITE = tl.constexpr(2**63 - 1), tl.constexpr(0x7FF << 52)


class Wants(NamedTuple):
    """The results that a pass computes; with LARGEST, the sums along and across lines become maxima."""

    MAX: bool = False
    SQUARES: bool = False
    ALONG: bool = False
    ACROSS: bool = False
    LARGEST: bool = False


@triton.jit
def _bits(x):
    """Return the bits of |x| for an fp64 x."""
    return x.to(tl.int64, bitcast=True) & POSITIVE


@triton.jit
def _modulus(re, im, WIDE: tl.constexpr):
    """Return |z| in fp64, scaled by a power of two of the larger part if squares could leave fp64's range."""
    if WIDE:
        larger = tl.maximum(_bits(re), _bits(im))
        exponent = tl.minimum(tl.maximum(larger >> 52, 1), 2045)
        down = ((2046 - exponent) << 52).to(tl.float64, bitcast=True)
        a, b = re * down, im * down
        size = tl.sqrt(a * a + b * b) * (exponent << 52).to(tl.float64, bitcast=True)
        return tl.where(larger >= INFINITE, larger.to(tl.float64, bitcast=True), size)
    else:
        return tl.sqrt(re * re + im * im)


@triton.jit
def _key(x, re, im, COMPLEX: tl.constexpr, WIDE: tl.constexpr):
    """Return an integer that orders entries by magnitude.

    The integer is the bits of |x| in fp32 for narrow real types, the bits of |x|² in fp64 for narrow complex types, or
    the bits of |x| in fp64 for wide types.
    """
    if COMPLEX and not WIDE:
        return _bits(re * re + im * im)
    elif COMPLEX:
        return _bits(x)
    elif WIDE:
        return _bits(re)
    else:
        return re.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _size(k, COMPLEX: tl.constexpr, WIDE: tl.constexpr):
    """Convert a `_key` to the bits of the fp64 number |x|."""
    if WIDE:
        return k
    elif COMPLEX:
        return _bits(tl.sqrt(k.to(tl.float64, bitcast=True)))
    else:
        return _bits(k.to(tl.float32, bitcast=True).to(tl.float64))


@triton.jit
def _add_squares(x, plain, large, small, WIDE: tl.constexpr):
    """Add the squares of x to Blue's three sums, or only to the first sum if squares stay within fp64's range."""
    if WIDE:
        is_large, is_small = x > LARGE, x < SMALL
        middle = tl.where(is_large | is_small, 0.0, x)
        high, low = tl.where(is_large, x, 0.0) * DOWN, tl.where(is_small, x, 0.0) * UP
        plain += tl.sum(middle * middle, axis=1)
        large += tl.sum(high * high, axis=1)
        small += tl.sum(low * low, axis=1)
    else:
        plain += tl.sum(x * x, axis=1)
    return plain, large, small


@triton.jit
def pass_kernel(
    table, programs, tops, squares, by_line, by_position, TYPE: tl.constexpr, ENTRIES: tl.constexpr, WANTS: tl.constexpr
):
    """Compute a program's largest |a_ij|, its sums of squares, and sums or maxima of |a_ij| along and across lines.

    tops, squares   one maximum and three sums per program
    """
    COMPLEX: tl.constexpr = ENTRIES.COMPLEX
    WIDE: tl.constexpr = ENTRIES.WIDE
    LARGEST: tl.constexpr = WANTS.LARGEST
    SIZES: tl.constexpr = WANTS.ALONG or WANTS.ACROSS or (WANTS.MAX and COMPLEX and WIDE)
    KEY: tl.constexpr = tl.int64 if COMPLEX or WIDE else tl.int32
    SUM: tl.constexpr = tl.int64 if LARGEST else tl.float64
    BLOCK: tl.constexpr = (ENTRIES.BL, ENTRIES.K, ENTRIES.BP)
    row = table + tl.program_id(1).to(tl.int64) * COLUMNS
    program = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    line0, end, position0, d, w, inside = region(row, programs, ENTRIES)
    entries = memory(row, TYPE)
    line_sums = by_line.sums + (tl.load(row + LINE_SLOT) + w) * by_line.size + (tl.load(row + LINE0) - by_line.origin)
    top = tl.zeros(BLOCK, KEY)
    across = tl.zeros(BLOCK, SUM)
    plain = tl.zeros(BLOCK, tl.float64)
    large = tl.zeros(BLOCK, tl.float64)
    small = tl.zeros(BLOCK, tl.float64)

    for line in range(line0, end, ENTRIES.U * ENTRIES.BL):
        re, im = block(row, entries, line, end, position0, inside, ENTRIES)
        x = re
        if SIZES:
            x = _modulus(re, im, WIDE) if COMPLEX else tl.abs(re.to(tl.float64))
        if WANTS.MAX:
            top = tl.maximum(top, tl.max(_key(x, re, im, COMPLEX, WIDE), axis=1))
        if WANTS.SQUARES:
            plain, large, small = _add_squares(tl.abs(re.to(tl.float64)), plain, large, small, WIDE)
            if COMPLEX:
                plain, large, small = _add_squares(tl.abs(im), plain, large, small, WIDE)
        if WANTS.ACROSS:
            across = tl.maximum(across, tl.max(_bits(x), axis=1)) if LARGEST else across + tl.sum(x, axis=1)
        if WANTS.ALONG:
            along = tl.max(tl.max(_bits(x), axis=2), axis=2) if LARGEST else tl.sum(tl.sum(x, axis=2), axis=2)
            lines = line + lines_of(ENTRIES)
            tl.store(line_sums + lines, along, mask=lines < end)

    if WANTS.MAX:
        tl.store(tops + program, _size(tl.max(top), COMPLEX, WIDE))
    if WANTS.SQUARES:
        tl.store(squares + 3 * program, tl.sum(plain))
        if WIDE:
            tl.store(squares + 3 * program + 1, tl.sum(large))
            tl.store(squares + 3 * program + 2, tl.sum(small))
    if WANTS.ACROSS:
        if end > line0:
            positions = position0 + positions_of(ENTRIES.K, ENTRIES.BP)
            slot = by_position.sums + (tl.load(row + POSITION_SLOT) + d % programs.deep) * by_position.size
            total = tl.max(across, axis=0) if LARGEST else tl.sum(across, axis=0)
            first = slot + (tl.load(row + POSITION0) - by_position.origin)
            tl.store(first + positions, total, mask=positions < tl.load(row + LENGTH))


def launch_pass(
    batch: Batch, table: Tensor, tops: Tensor, squares: Tensor, by_line: Tensor, by_position: Tensor, wants: Wants
) -> None:
    """Launch `pass_kernel` on a batch."""
    slots = slots_of(by_line, batch.by_line), slots_of(by_position, batch.by_position)
    constants = constants_of(batch) | {"WANTS": wants}
    with torch.cuda.device_of(table):
        compile_ahead.launch(
            pass_kernel, grid(batch), table, programs_of(batch), tops, squares, *slots, **constants, num_warps=WARPS
        )


_TYPES = ("*i64", PROGRAMS, "*i64", "*fp64", SLOTS, SLOTS)
COMPILED = [
    *forms(pass_kernel, MANY, 0, *_TYPES, WANTS=Wants(MAX=True, SQUARES=True, ALONG=True, ACROSS=True)),
    *forms(pass_kernel, MANY, 1, *_TYPES, WANTS=Wants(MAX=True), size=1),
]
