"""Norms as Triton kernels: one pass over the blocks that meet the band; partial sums in slots, no atomics.

A block of entries is [BL, U, K, BP]: lines u·BL + b, positions k·BP + p.  Lanes go along BP and load vectors, warps go
along BL, so that sums along a line stay in a warp and those over U and K in a thread.  See `norm_table` for the rest.

Absolute values are compared as integers: the bits of a non-negative number grow with it, those of Inf are above all
numbers', and those of NaN above Inf's.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from mxpeak.kernels.contract import norms
from mxpeak.kernels.torch.norm_table import COLUMNS as _COLUMNS
from mxpeak.kernels.torch.norm_table import FEW, MANY, WARPS, Batch, Block, block_of

Tensor = Any

COLUMNS = tl.constexpr(_COLUMNS)
LARGE, SMALL, DOWN, UP = (tl.constexpr(limit) for limit in (norms.LARGE, norms.SMALL, norms.DOWN, norms.UP))
POSITIVE, INFINITE = tl.constexpr(2**63 - 1), tl.constexpr(0x7FF << 52)
#: Folds of one launch: the registers of a thread suffice for no more.
FOLDS = 4
#: The types of the real numbers that entries consist of.
TYPES = {
    torch.float64: tl.float64, torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16,
}  # fmt: skip


# --- entries ----------------------------------------------------------------------------------------------------


@triton.jit
def _bits(x):
    """The bits of |x| for x in fp64."""
    return x.to(tl.int64, bitcast=True) & POSITIVE


@triton.jit
def _narrow(x):
    """A narrow x in fp32; bf16 is its upper half, with which no denormal is lost."""
    if x.dtype == tl.bfloat16:
        return (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        return x.to(tl.float32)


@triton.jit
def _modulus(re, im, WIDE: tl.constexpr):
    """|z| in fp64: scaled by a power of two made from the larger part's exponent, where squares leave fp64's range."""
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
    """An integer that orders entries as their absolute values do: of narrow types one of 32 bits, or of the square."""
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
    """The bits of the fp64 |x| that a key stands for."""
    if WIDE:
        return k
    elif COMPLEX:
        return _bits(tl.sqrt(k.to(tl.float64, bitcast=True)))
    else:
        return _bits(k.to(tl.float32, bitcast=True).to(tl.float64))


@triton.jit
def _add_squares(x, plain, large, small, WIDE: tl.constexpr):
    """Blue's three sums, or where squares stay in fp64's range the first of them."""
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


# --- where a program is -----------------------------------------------------------------------------------------


@triton.jit
def _global(il, first, nb, jump):
    """Where local index il lies: `layout.index_map`."""
    return first + il // nb * jump + il % nb


@triton.jit
def _before(ig, size, first, nb, jump):
    """How many local indices lie before ig."""
    at = tl.maximum(ig - first, 0)
    return tl.minimum(at // jump * nb + tl.minimum(at % jump, nb), size)


@triton.jit
def _region(row, strip, wide, C: tl.constexpr, BANDED: tl.constexpr):
    """Its first line, line to stop before and first position; its strip and block of that; whether all is inside.

    A program with nothing to do has no line.
    """
    d, w = (tl.program_id(0) // wide).to(tl.int64), (tl.program_id(0) % wide).to(tl.int64)
    lines, length = tl.load(row + 1), tl.load(row + 2)
    line0, position0 = d * strip, w * C
    end = tl.minimum(line0 + strip, lines)
    inside = True
    if BANDED:
        line_first, line_nb, line_jump = tl.load(row + 9), tl.load(row + 10), tl.load(row + 11)
        first, nb, jump = tl.load(row + 12), tl.load(row + 13), tl.load(row + 14)
        back, ahead = tl.load(row + 15), tl.load(row + 16)
        top = _global(line0, line_first, line_nb, line_jump)
        bottom = _global(tl.maximum(end - 1, 0), line_first, line_nb, line_jump)
        low = _before(top - back, length, first, nb, jump)
        high = _before(bottom + ahead + 1, length, first, nb, jump)
        position0 += low // C * C
        if tl.maximum(low, position0) >= high:
            end = line0
        left = _global(position0, first, nb, jump)
        right = _global(tl.minimum(position0 + C, length) - 1, first, nb, jump)
        inside = (right - top <= ahead) & (left - bottom >= -back)
    if position0 >= length:
        end = line0
    return line0, end, position0, d, w, inside & (position0 + C <= length)


@triton.jit
def _memory(row, COMPLEX: tl.constexpr, TYPE: tl.constexpr, UNIT: tl.constexpr):
    """Where the first entry lies; how far apart lines are, and positions."""
    step: tl.constexpr = 2 if COMPLEX else 1
    return tl.load(row).to(tl.pointer_type(TYPE)), tl.load(row + 3), step if UNIT else tl.load(row + 4)


@triton.jit
def _in_band(row, lines, positions):
    """Which of these lines and positions meet in the band."""
    i = _global(lines, tl.load(row + 9), tl.load(row + 10), tl.load(row + 11))
    j = _global(positions, tl.load(row + 12), tl.load(row + 13), tl.load(row + 14))
    return (j - i <= tl.load(row + 16)) & (j - i >= -tl.load(row + 15))


@triton.jit
def _lines_of(U: tl.constexpr, BL: tl.constexpr):
    """The lines of a block, [BL, U]."""
    return tl.arange(0, BL)[:, None] + tl.arange(0, U)[None, :] * BL


@triton.jit
def _positions_of(K: tl.constexpr, BP: tl.constexpr):
    """The positions of a block, [K, BP]."""
    return tl.arange(0, K)[:, None] * BP + tl.arange(0, BP)[None, :]


@triton.jit
def _read(at, mask, COMPLEX: tl.constexpr):
    """What is masked is not read, and 0; of complex entries both parts."""
    if COMPLEX:
        return tl.load(at, mask=mask[:, :, :, :, None], other=0.0)
    else:
        return tl.load(at, mask=mask, other=0.0)


@triton.jit
def _block(
    row,
    base,
    line_stride,
    stride,
    line,
    end,
    position0,
    inside,
    BANDED: tl.constexpr,
    COMPLEX: tl.constexpr,
    ALIGNED: tl.constexpr,
    U: tl.constexpr,
    K: tl.constexpr,
    BL: tl.constexpr,
    BP: tl.constexpr,
):
    """Real and imaginary parts of the block at a line: fp64, but fp32 of entries that are real and narrow."""
    lines = (line + _lines_of(U, BL))[:, :, None, None]
    positions = (position0 + _positions_of(K, BP))[None, None, :, :]
    at = base + lines * line_stride + positions * stride
    mask = lines < end
    if COMPLEX:
        at = at[:, :, :, :, None] + tl.arange(0, 2)
        if ALIGNED:
            at = tl.multiple_of(at, [1, 1, 1, 1, 16])
    elif ALIGNED:
        at = tl.multiple_of(at, [1, 1, 1, 16])
    if inside:
        x = _read(at, mask, COMPLEX)
    else:
        some = mask & (positions < tl.load(row + 2))
        if BANDED:
            some = some & _in_band(row, lines, positions)
        x = _read(at, some, COMPLEX)
    if COMPLEX:
        re, im = tl.split(x)
        return re.to(tl.float64), im.to(tl.float64)
    elif x.dtype == tl.float64:
        return x, x
    else:
        return _narrow(x), x


# --- the passes -------------------------------------------------------------------------------------------------


@triton.jit
def pass_kernel(
    table,
    strip,
    wide,
    deep,
    tops,
    squares,
    by_line,
    line_size,
    line_origin,
    by_position,
    position_size,
    position_origin,
    BANDED: tl.constexpr,
    COMPLEX: tl.constexpr,
    TYPE: tl.constexpr,
    UNIT: tl.constexpr,
    ALIGNED: tl.constexpr,
    U: tl.constexpr,
    K: tl.constexpr,
    BL: tl.constexpr,
    BP: tl.constexpr,
    WIDE: tl.constexpr,
    MAX: tl.constexpr,
    SQUARES: tl.constexpr,
    ALONG: tl.constexpr,
    ACROSS: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """A program's largest |a_ij| and squares; along its lines and across them sums of |a_ij|, or the largest as bits.

    tops, squares       one, and three, of each program
    by_line, by_position   [slots, size], zero: sums of the lines (positions) from line_origin (position_origin) on
    WIDE                whether squares can leave fp64's range: entries are fp64 or complex128
    """
    SIZES: tl.constexpr = ALONG or ACROSS or (MAX and COMPLEX and WIDE)
    KEY: tl.constexpr = tl.int64 if COMPLEX or WIDE else tl.int32
    SUM: tl.constexpr = tl.int64 if LARGEST else tl.float64
    row = table + tl.program_id(1).to(tl.int64) * COLUMNS
    program = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    line0, end, position0, d, w, inside = _region(row, strip, wide, K * BP, BANDED)
    base, line_stride, stride = _memory(row, COMPLEX, TYPE, UNIT)
    line_sums = by_line + (tl.load(row + 7) + w) * line_size + (tl.load(row + 5) - line_origin)
    top = tl.zeros([BL, K, BP], KEY)
    across = tl.zeros([BL, K, BP], SUM)
    plain = tl.zeros([BL, K, BP], tl.float64)
    large = tl.zeros([BL, K, BP], tl.float64)
    small = tl.zeros([BL, K, BP], tl.float64)

    for line in range(line0, end, U * BL):
        re, im = _block(
            row, base, line_stride, stride, line, end, position0, inside, BANDED, COMPLEX, ALIGNED, U, K, BL, BP
        )
        x = re
        if SIZES:
            x = _modulus(re, im, WIDE) if COMPLEX else tl.abs(re.to(tl.float64))
        if MAX:
            top = tl.maximum(top, tl.max(_key(x, re, im, COMPLEX, WIDE), axis=1))
        if SQUARES:
            plain, large, small = _add_squares(tl.abs(re.to(tl.float64)), plain, large, small, WIDE)
            if COMPLEX:
                plain, large, small = _add_squares(tl.abs(im), plain, large, small, WIDE)
        if ACROSS:
            across = tl.maximum(across, tl.max(_bits(x), axis=1)) if LARGEST else across + tl.sum(x, axis=1)
        if ALONG:
            along = tl.max(tl.max(_bits(x), axis=2), axis=2) if LARGEST else tl.sum(tl.sum(x, axis=2), axis=2)
            lines = line + _lines_of(U, BL)
            tl.store(line_sums + lines, along, mask=lines < end)

    if MAX:
        tl.store(tops + program, _size(tl.max(top), COMPLEX, WIDE))
    if SQUARES:
        tl.store(squares + 3 * program, tl.sum(plain))
        if WIDE:
            tl.store(squares + 3 * program + 1, tl.sum(large))
            tl.store(squares + 3 * program + 2, tl.sum(small))
    if ACROSS:
        if end > line0:
            positions = position0 + _positions_of(K, BP)
            slot = by_position + (tl.load(row + 8) + d % deep) * position_size
            total = tl.max(across, axis=0) if LARGEST else tl.sum(across, axis=0)
            tl.store(slot + (tl.load(row + 6) - position_origin) + positions, total, mask=positions < tl.load(row + 2))


@triton.jit
def _term(re, im, f, SQUARED: tl.constexpr, COMPLEX: tl.constexpr):
    """|f·f·x| or its square, rounded once an operation."""
    a = re.to(tl.float64) * f * f
    if COMPLEX:
        b = im * f * f
        square = a * a + b * b
        return square if SQUARED else tl.sqrt(square)
    else:
        return a * a if SQUARED else tl.abs(a)


@triton.jit
def fold_kernel(
    table,
    strip,
    wide,
    deep,
    sigmas,
    line_factors,
    position_factors,
    by_line,
    fold_of_lines,
    line_size,
    line_origin,
    by_position,
    fold_of_positions,
    position_size,
    position_origin,
    BANDED: tl.constexpr,
    COMPLEX: tl.constexpr,
    TYPE: tl.constexpr,
    UNIT: tl.constexpr,
    ALIGNED: tl.constexpr,
    U: tl.constexpr,
    K: tl.constexpr,
    BL: tl.constexpr,
    BP: tl.constexpr,
    ALONG: tl.constexpr,
    ACROSS: tl.constexpr,
    SQUARED: tl.constexpr,
    SKIP: tl.constexpr,
    FOLDED: tl.constexpr,
):
    """Folds SKIP … SKIP+FOLDED-1, at most four, of the sums along lines and across them: q = (σ + x) - σ, x -= q.

    by_line, by_position   [folds, slots, size], zero: as in `pass_kernel`; a fold of them is so many numbers

    Launched without contraction of products and sums: every operation is rounded.
    """
    row = table + tl.program_id(1).to(tl.int64) * COLUMNS
    line0, end, position0, d, w, inside = _region(row, strip, wide, K * BP, BANDED)
    base, line_stride, stride = _memory(row, COMPLEX, TYPE, UNIT)
    first_line, first_position = tl.load(row + 5), tl.load(row + 6)
    line_sums = by_line + (tl.load(row + 7) + w) * line_size + (first_line - line_origin)
    positions = position0 + _positions_of(K, BP)
    known = positions < tl.load(row + 2)
    f_position = tl.zeros([K, BP], tl.float64)
    if ACROSS:
        f_position = tl.load(position_factors + first_position + positions, mask=known, other=0.0)
    sums0 = tl.zeros([BL, K, BP], tl.float64)
    sums1 = tl.zeros([BL, K, BP], tl.float64)
    sums2 = tl.zeros([BL, K, BP], tl.float64)
    sums3 = tl.zeros([BL, K, BP], tl.float64)

    for line in range(line0, end, U * BL):
        re, im = _block(
            row, base, line_stride, stride, line, end, position0, inside, BANDED, COMPLEX, ALIGNED, U, K, BL, BP
        )
        if ACROSS:
            x = _term(re, im, f_position[None, None, :, :], SQUARED, COMPLEX)
            for k in tl.static_range(SKIP + FOLDED):
                sigma = tl.load(sigmas + k)
                q = (sigma + x) - sigma
                x -= q
                if k == SKIP:
                    sums0 += tl.sum(q, axis=1)
                if k == SKIP + 1:
                    sums1 += tl.sum(q, axis=1)
                if k == SKIP + 2:
                    sums2 += tl.sum(q, axis=1)
                if k == SKIP + 3:
                    sums3 += tl.sum(q, axis=1)
        if ALONG:
            lines = line + _lines_of(U, BL)
            f = tl.load(line_factors + first_line + lines, mask=lines < end, other=0.0)
            x = _term(re, im, f[:, :, None, None], SQUARED, COMPLEX)
            for k in tl.static_range(SKIP + FOLDED):
                sigma = tl.load(sigmas + k)
                q = (sigma + x) - sigma
                x -= q
                if k >= SKIP:
                    along = tl.sum(tl.sum(q, axis=2), axis=2)
                    at = line_sums + (k - SKIP) * fold_of_lines + lines
                    tl.store(at, along, mask=lines < end)

    if ACROSS:
        if end > line0:
            slot = by_position + (tl.load(row + 8) + d % deep) * position_size + (first_position - position_origin)
            tl.store(slot + positions, tl.sum(sums0, axis=0), mask=known)
            if FOLDED > 1:
                tl.store(slot + fold_of_positions + positions, tl.sum(sums1, axis=0), mask=known)
            if FOLDED > 2:
                tl.store(slot + 2 * fold_of_positions + positions, tl.sum(sums2, axis=0), mask=known)
            if FOLDED > 3:
                tl.store(slot + 3 * fold_of_positions + positions, tl.sum(sums3, axis=0), mask=known)


# --- launches ---------------------------------------------------------------------------------------------------


def launch_pass(
    batch: Batch,
    table: Tensor,
    tops: Tensor,
    squares: Tensor,
    by_line: Tensor,
    by_position: Tensor,
    *,
    top: bool,
    square: bool,
    along: bool,
    across: bool,
    largest: bool,
) -> None:
    """`pass_kernel` on a batch."""
    line_span, position_span = _span(by_line, batch.by_line), _span(by_position, batch.by_position)
    with torch.cuda.device_of(table):
        pass_kernel[_grid(batch)](
            table,
            batch.strip,
            batch.wide,
            batch.deep,
            tops,
            squares,
            by_line,
            *line_span,
            by_position,
            *position_span,
            **_form_of(batch),
            WIDE=wide(batch.pieces[0].A),
            MAX=top,
            SQUARES=square,
            ALONG=along,
            ACROSS=across,
            LARGEST=largest,
            num_warps=WARPS,
        )


def launch_folds(
    batch: Batch,
    table: Tensor,
    sigmas: Tensor,
    line_factors: Tensor,
    position_factors: Tensor,
    by_line: Tensor,
    by_position: Tensor,
    *,
    squared: bool,
    along: bool,
    across: bool,
) -> None:
    """`fold_kernel` on a batch, so many folds at a time as it takes."""
    line_span, position_span = _span(by_line, batch.by_line), _span(by_position, batch.by_position)
    for skip in range(0, len(sigmas), FOLDS):
        options = {"SQUARED": squared, "SKIP": skip, "FOLDED": min(FOLDS, len(sigmas) - skip)}
        with torch.cuda.device_of(table):
            fold_kernel[_grid(batch)](
                table,
                batch.strip,
                batch.wide,
                batch.deep,
                sigmas,
                line_factors,
                position_factors,
                by_line[skip:],
                by_line.stride(0),
                *line_span,
                by_position[skip:],
                by_position.stride(0),
                *position_span,
                **_form_of(batch),
                ALONG=along,
                ACROSS=across,
                **options,
                num_warps=WARPS,
                enable_fp_fusion=False,
            )


def wide(A: Tensor) -> bool:
    """Whether squares of entries can leave fp64's range."""
    return A.dtype in (torch.float64, torch.complex128)


def _grid(batch: Batch) -> tuple[int, int]:
    return batch.wide * batch.strips, len(batch.pieces)


def _span(slots: Tensor, span: tuple[int, int, int]) -> tuple[int, int]:
    """The length of a slot, and to which line or position its first number belongs."""
    return slots.shape[-1], span[0]


def _form_of(batch: Batch) -> dict[str, Any]:
    return _form(batch.pieces[0].A, batch.block, banded=batch.banded, unit=batch.unit, aligned=batch.aligned)


def _form(A: Tensor, block: Block, *, banded: bool, unit: bool, aligned: bool) -> dict[str, Any]:
    """What kernels are compiled for."""
    return {
        "BANDED": banded,
        "COMPLEX": A.is_complex(),
        "TYPE": TYPES[A.real.dtype if A.is_complex() else A.dtype],
        "UNIT": unit,
        "ALIGNED": aligned,
        "U": block.U,
        "K": block.K,
        "BL": block.BL,
        "BP": block.BP,
    }


# --- what compile checks compile --------------------------------------------------------------------------------


def _samples(kernel: Any, loads: int, first: int, **options: Any) -> list[Any]:
    """A kernel for every type, in the three layouts in turn: in one piece, banded with lines anywhere, entries apart.

    Samples that begin with another layout go through the types beside other layouts, and begin with another type.
    """
    found = []
    for k, dtype in enumerate((*TYPES, torch.complex128, torch.complex64)):
        layout = ("aligned", "banded", "apart")[(first + k) % 3]
        unit, aligned, A = layout != "apart", layout == "aligned", torch.empty(0, dtype=dtype)
        block = block_of(A, 4096, 4096, aligned, loads)
        form = _form(A, block, banded=layout == "banded", unit=unit, aligned=aligned) | options
        if kernel is pass_kernel:
            form["WIDE"] = wide(A)
        types = {name: "constexpr" if name in form else ARGUMENTS.get(name, "i32") for name in kernel.arg_names}
        found.append((kernel, types, form))
    return found[first:] + found[:first]


#: The types of arguments; those of others are integers.
ARGUMENTS = {"table": "*i64", "tops": "*i64"} | dict.fromkeys(
    ("squares", "by_line", "by_position", "sigmas", "line_factors", "position_factors"), "*fp64"
)
ALL = {"MAX": True, "SQUARES": True, "ALONG": True, "ACROSS": True, "LARGEST": False}
COMPILED = [
    *_samples(pass_kernel, MANY, 0, **ALL),
    *_samples(pass_kernel, MANY, 1, **dict.fromkeys(ALL, False) | {"MAX": True}),
    *_samples(fold_kernel, FEW, 2, ALONG=True, ACROSS=True, SQUARED=False, SKIP=0, FOLDED=3),
]
