"""Locate and read the blocks of entries of norm kernels, and convert batches to launch arguments.

A block of entries is [BL, U, K, BP]: lines u·BL + b, positions k·BP + p. The lanes of a warp are along BP and load
vectors; warps are along BL. Sums along a line therefore stay in a warp, and sums over U and K in a thread.
`tile_table` describes the table.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from mxpeak.kernels.torch.engine import tile_table
from mxpeak.kernels.torch.engine.tile_table import Batch, Block, block_of
from mxpeak.kernels.torch.triton.arguments import Form, Integer, form_of

Tensor = Any

#: The columns of the table, in the order of `LinePiece.row`.
(
    ADDRESS, LINES, LENGTH, LINE_STRIDE, STRIDE, LINE0, POSITION0, LINE_SLOT, POSITION_SLOT,
    LINE_FIRST, LINE_NB, LINE_JUMP, FIRST, NB, JUMP, BACK, AHEAD,
) = (tl.constexpr(column) for column in range(tile_table.COLUMNS))  # fmt: skip
COLUMNS = tl.constexpr(tile_table.COLUMNS)
#: The real types of entries.
TYPES = {
    torch.float64: tl.float64, torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16,
}  # fmt: skip


class Programs(NamedTuple):
    """The division of a batch among programs: lines per program, programs across a piece, and slots per position."""

    strip: Integer
    wide: Integer
    deep: Integer


class PartialSums(NamedTuple):
    """Partial sums, [slots, size] or [folds, slots, size], initially zero.

    origin   the line or position of the first number of a slot
    fold     the distance between two folds
    """

    sums: Tensor
    size: Integer
    origin: Integer
    fold: Integer


class EntryForm(NamedTuple):
    """Compile-time properties of the entries of a batch, and of the blocks in which they are read.

    WIDE   whether the squares of entries can leave fp64's range, because entries are fp64 or complex128
    """

    BANDED: bool
    COMPLEX: bool
    WIDE: bool
    UNIT: bool
    ALIGNED: bool
    U: int
    K: int
    BL: int
    BP: int


@triton.jit
def _global(il, first, nb, jump):
    """Return the global index of local index il (`layout.index_map`)."""
    return first + il // nb * jump + il % nb


@triton.jit
def _before(ig, size, first, nb, jump):
    """Return the number of local indices before the global index ig."""
    at = tl.maximum(ig - first, 0)
    return tl.minimum(at // jump * nb + tl.minimum(at % jump, nb), size)


@triton.jit
def region(row, programs, ENTRIES: tl.constexpr):
    """Return the region of a program: first line, end line, first position, strip, block, and `inside`.

    `inside` is true if the positions need no mask. If a program has no work, the end line equals the first line.
    """
    C: tl.constexpr = ENTRIES.K * ENTRIES.BP
    strip, wide = programs.strip, programs.wide
    d, w = (tl.program_id(0) // wide).to(tl.int64), (tl.program_id(0) % wide).to(tl.int64)
    lines, length = tl.load(row + LINES), tl.load(row + LENGTH)
    line0, position0 = d * strip, w * C
    end = tl.minimum(line0 + strip, lines)
    inside = True
    if ENTRIES.BANDED:
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
    """Return the address of a tile's first entry, and the strides of its lines and positions."""
    return tl.load(row + ADDRESS).to(tl.pointer_type(TYPE)), tl.load(row + LINE_STRIDE), tl.load(row + STRIDE)


@triton.jit
def _in_band(row, lines, positions):
    """Return a mask of the entries in the band, for these lines and positions."""
    i = _global(lines, tl.load(row + LINE_FIRST), tl.load(row + LINE_NB), tl.load(row + LINE_JUMP))
    j = _global(positions, tl.load(row + FIRST), tl.load(row + NB), tl.load(row + JUMP))
    return (j - i <= tl.load(row + AHEAD)) & (j - i >= -tl.load(row + BACK))


@triton.jit
def lines_of(ENTRIES: tl.constexpr):
    """Return the line offsets of a block, with shape [BL, U]."""
    return tl.arange(0, ENTRIES.BL)[:, None] + tl.arange(0, ENTRIES.U)[None, :] * ENTRIES.BL


@triton.jit
def positions_of(K: tl.constexpr, BP: tl.constexpr):
    """Return the position offsets of a block, with shape [K, BP]."""
    return tl.arange(0, K)[:, None] * BP + tl.arange(0, BP)[None, :]


@triton.jit
def _narrow(x):
    """Convert a 16-bit x to fp32.

    The bits of a bf16 number become the upper half of the fp32 number, which preserves subnormal numbers.
    """
    if x.dtype == tl.bfloat16:
        return (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        return x.to(tl.float32)


@triton.jit
def block(row, memory, line, end, position0, inside, ENTRIES: tl.constexpr):
    """Return the real and the imaginary parts of a block of lines.

    The parts are in fp64, or in fp32 if the entries are real and have 16 or 32 bits. The real and the imaginary part
    of an entry are adjacent in memory, so lanes read them together.
    """
    PARTS: tl.constexpr = 2 if ENTRIES.COMPLEX else 1
    BLOCK: tl.constexpr = (ENTRIES.BL, ENTRIES.U, ENTRIES.K, ENTRIES.BP, 2)
    base, line_stride, stride = memory
    lines = (line + lines_of(ENTRIES))[:, :, None, None]
    reals = (position0 * PARTS + positions_of(ENTRIES.K, ENTRIES.BP * PARTS))[None, None, :, :]
    positions = reals // PARTS
    if ENTRIES.UNIT:
        at = base + lines * line_stride + reals
    else:
        at = base + lines * line_stride + positions * stride + reals % PARTS
    if ENTRIES.ALIGNED:
        at = tl.multiple_of(at, [1, 1, 1, 16])
    mask = lines < end
    if inside:
        x = tl.load(at, mask=mask, other=0.0)
    else:
        some = mask & (positions < tl.load(row + LENGTH))
        if ENTRIES.BANDED:
            some = some & _in_band(row, lines, positions)
        x = tl.load(at, mask=some, other=0.0)
    if ENTRIES.COMPLEX:
        re, im = tl.split(tl.reshape(x, BLOCK))
        return re.to(tl.float64), im.to(tl.float64)
    elif x.dtype == tl.float64:
        return x, x
    else:
        return _narrow(x), x


def grid(batch: Batch) -> tuple[int, int]:
    """Return the grid of a launch: programs across and down the largest piece, times pieces."""
    return batch.wide * batch.strips, len(batch.pieces)


def programs_of(batch: Batch) -> Programs:
    """Return the division of a batch as a kernel argument."""
    return Programs(batch.strip, batch.wide, batch.deep)


def slots_of(sums: Tensor, span: tuple[int, int, int]) -> PartialSums:
    """Return the slots of partial sums along or across lines as a kernel argument."""
    return PartialSums(sums, sums.shape[-1], span[0], sums.stride(0) if sums.ndim == 3 else 0)


def constants_of(batch: Batch) -> dict[str, Any]:
    """Return the compile-time constants of a batch: the type of the entries, and their `EntryForm`."""
    return _constants(batch.pieces[0].A, batch.block, banded=batch.banded, unit=batch.unit, aligned=batch.aligned)


def _constants(A: Tensor, block: Block, *, banded: bool, unit: bool, aligned: bool) -> dict[str, Any]:
    wide = A.dtype in (torch.float64, torch.complex128)
    entries = EntryForm(banded, A.is_complex(), wide, unit, aligned, block.U, block.K, block.BL, block.BP)
    return {"TYPE": TYPES[A.real.dtype if A.is_complex() else A.dtype], "ENTRIES": entries}


def forms(kernel: Any, loads: int, first: int, *types: Any, size: int = 4096, **constants: Any) -> list[Form]:
    """Return specializations of a kernel, one per type of entries, alternating between three layouts.

    The layouts are contiguous, banded with arbitrary lines, and strided. Blocks are those of a square matrix of this
    size. `first` selects the first layout, so that several calls combine each type with each layout.
    """
    kernels = []
    for k, dtype in enumerate((*TYPES, torch.complex128, torch.complex64)):
        layout = ("aligned", "banded", "apart")[(first + k) % 3]
        unit, aligned, A = layout != "apart", layout == "aligned", torch.empty(0, dtype=dtype)
        block = block_of(A, size, size, aligned, loads)
        entries = _constants(A, block, banded=layout == "banded", unit=unit, aligned=aligned)
        kernels.append(form_of(kernel, *types, **entries, **constants))
    return kernels[first:] + kernels[:first]


#: The types of arguments of the kernels.
PROGRAMS, SLOTS = Programs("i32", "i32", "i32"), PartialSums("*fp64", "i32", "i32", "i32")
