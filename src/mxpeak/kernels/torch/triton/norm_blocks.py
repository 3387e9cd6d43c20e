"""Blocks of entries that kernels of norms go through: where a program is, what it reads there, how it is launched.

A block of entries is [BL, U, K, BP]: lines u·BL + b, positions k·BP + p.  Lanes go along BP and load vectors, warps go
along BL, so that sums along a line stay in a warp and those over U and K in a thread.  See `norm_table` for the rest.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from mxpeak.kernels.torch.engine import tile_table
from mxpeak.kernels.torch.engine.tile_table import Batch, Block, block_of

Tensor = Any

#: The columns of the table, in the order of `Piece.row`.
(
    ADDRESS, LINES, LENGTH, LINE_STRIDE, STRIDE, LINE0, POSITION0, LINE_SLOT, POSITION_SLOT,
    LINE_FIRST, LINE_NB, LINE_JUMP, FIRST, NB, JUMP, BACK, AHEAD,
) = (tl.constexpr(column) for column in range(tile_table.COLUMNS))  # fmt: skip
COLUMNS = tl.constexpr(tile_table.COLUMNS)
#: The types of the real numbers that entries consist of.
TYPES = {
    torch.float64: tl.float64, torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16,
}  # fmt: skip


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
def region(row, strip, wide, C: tl.constexpr, BANDED: tl.constexpr):
    """Its first line, line to stop before and first position; its strip and block of that; whether all is inside.

    A program with nothing to do has no line.
    """
    d, w = (tl.program_id(0) // wide).to(tl.int64), (tl.program_id(0) % wide).to(tl.int64)
    lines, length = tl.load(row + LINES), tl.load(row + LENGTH)
    line0, position0 = d * strip, w * C
    end = tl.minimum(line0 + strip, lines)
    inside = True
    if BANDED:
        line_first, line_nb, line_jump = tl.load(row + LINE_FIRST), tl.load(row + LINE_NB), tl.load(row + LINE_JUMP)
        first, nb, jump = tl.load(row + FIRST), tl.load(row + NB), tl.load(row + JUMP)
        back, ahead = tl.load(row + BACK), tl.load(row + AHEAD)
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
def memory(row, TYPE: tl.constexpr):
    """Where the first entry lies; how far apart lines are, and positions."""
    return tl.load(row + ADDRESS).to(tl.pointer_type(TYPE)), tl.load(row + LINE_STRIDE), tl.load(row + STRIDE)


@triton.jit
def _in_band(row, lines, positions):
    """Which of these lines and positions meet in the band."""
    i = _global(lines, tl.load(row + LINE_FIRST), tl.load(row + LINE_NB), tl.load(row + LINE_JUMP))
    j = _global(positions, tl.load(row + FIRST), tl.load(row + NB), tl.load(row + JUMP))
    return (j - i <= tl.load(row + AHEAD)) & (j - i >= -tl.load(row + BACK))


@triton.jit
def lines_of(U: tl.constexpr, BL: tl.constexpr):
    """The lines of a block, [BL, U]."""
    return tl.arange(0, BL)[:, None] + tl.arange(0, U)[None, :] * BL


@triton.jit
def positions_of(K: tl.constexpr, BP: tl.constexpr):
    """The positions of a block, [K, BP]."""
    return tl.arange(0, K)[:, None] * BP + tl.arange(0, BP)[None, :]


# --- what it reads ----------------------------------------------------------------------------------------------


@triton.jit
def _narrow(x):
    """A narrow x in fp32; bf16 is its upper half, with which no denormal is lost."""
    if x.dtype == tl.bfloat16:
        return (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        return x.to(tl.float32)


@triton.jit
def block(
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
    UNIT: tl.constexpr,
    ALIGNED: tl.constexpr,
    U: tl.constexpr,
    K: tl.constexpr,
    BL: tl.constexpr,
    BP: tl.constexpr,
):
    """Real and imaginary parts of the block at a line: fp64, but fp32 of entries that are real and narrow.

    Both parts of complex entries lie in one line of real numbers, so that lanes go along it.
    """
    PARTS: tl.constexpr = 2 if COMPLEX else 1
    lines = (line + lines_of(U, BL))[:, :, None, None]
    reals = (position0 * PARTS + positions_of(K, BP * PARTS))[None, None, :, :]
    positions = reals // PARTS
    if UNIT:
        at = base + lines * line_stride + reals
    else:
        at = base + lines * line_stride + positions * stride + reals % PARTS
    if ALIGNED:
        at = tl.multiple_of(at, [1, 1, 1, 16])
    mask = lines < end
    if inside:
        x = tl.load(at, mask=mask, other=0.0)
    else:
        some = mask & (positions < tl.load(row + LENGTH))
        if BANDED:
            some = some & _in_band(row, lines, positions)
        x = tl.load(at, mask=some, other=0.0)
    if COMPLEX:
        re, im = tl.split(tl.reshape(x, [BL, U, K, BP, 2]))
        return re.to(tl.float64), im.to(tl.float64)
    elif x.dtype == tl.float64:
        return x, x
    else:
        return _narrow(x), x


# --- how it is launched -----------------------------------------------------------------------------------------


def grid(batch: Batch) -> tuple[int, int]:
    """The programs of a launch: across and down the largest piece, for each piece."""
    return batch.wide * batch.strips, len(batch.pieces)


def span(slots: Tensor, of: tuple[int, int, int]) -> tuple[int, int]:
    """The length of a slot, and to which line or position its first number belongs."""
    return slots.shape[-1], of[0]


def wide(A: Tensor) -> bool:
    """Whether squares of entries can leave fp64's range."""
    return A.dtype in (torch.float64, torch.complex128)


def form_of(batch: Batch) -> dict[str, Any]:
    """What kernels are compiled for, of a batch."""
    return _form(batch.pieces[0].A, batch.block, banded=batch.banded, unit=batch.unit, aligned=batch.aligned)


def _form(A: Tensor, block: Block, *, banded: bool, unit: bool, aligned: bool) -> dict[str, Any]:
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


def samples(kernel: Any, loads: int, first: int, size: int = 4096, **options: Any) -> list[Any]:
    """A kernel for every type, in the three layouts in turn: in one piece, banded with lines anywhere, entries apart.

    Blocks are those of a square of this size.  Samples that begin with another layout go through the types beside other
    layouts, and begin with another type.
    """
    found = []
    for k, dtype in enumerate((*TYPES, torch.complex128, torch.complex64)):
        layout = ("aligned", "banded", "apart")[(first + k) % 3]
        unit, aligned, A = layout != "apart", layout == "aligned", torch.empty(0, dtype=dtype)
        block = block_of(A, size, size, aligned, loads)
        form = _form(A, block, banded=layout == "banded", unit=unit, aligned=aligned) | options
        if "WIDE" in kernel.arg_names:
            form["WIDE"] = wide(A)
        types = {name: "constexpr" if name in form else ARGUMENTS.get(name, "i32") for name in kernel.arg_names}
        found.append((kernel, types, form))
    return found[first:] + found[:first]


#: The types of arguments; those of others are integers.
ARGUMENTS = {"table": "*i64", "tops": "*i64"} | dict.fromkeys(
    ("squares", "by_line", "by_position", "sigmas", "line_factors", "position_factors"), "*fp64"
)
