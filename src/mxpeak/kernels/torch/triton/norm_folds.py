"""Compute the folds of deterministic sums along and across lines, up to four folds per pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from mxpeak.kernels.torch.engine import compile_ahead
from mxpeak.kernels.torch.engine.tile_table import FEW, WARPS, Batch
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

#: Folds per launch, limited by the registers of a thread.
FOLDS = 4


class FoldWants(NamedTuple):
    """The compile-time options of a launch of `fold_kernel`.

    ALONG     compute the sums along lines
    ACROSS    compute the sums across lines
    SQUARED   add squares of magnitudes instead of magnitudes
    SKIP      the number of folds that earlier launches stored
    FOLDED    the number of folds that this launch stores
    """

    ALONG: bool
    ACROSS: bool
    SQUARED: bool
    SKIP: int = 0
    FOLDED: int = FOLDS


@triton.jit
def _term(re, im, f, SQUARED: tl.constexpr, COMPLEX: tl.constexpr):
    """Return |f·f·x| for x = re + i·im, or its square if SQUARED, rounding after each operation."""
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
    programs,
    sigmas,
    factors,
    by_line,
    by_position,
    TYPE: tl.constexpr,
    ENTRIES: tl.constexpr,
    WANTS: tl.constexpr,
):
    """Compute folds SKIP … SKIP+FOLDED-1 of the sums along and across lines.

    `factors` contains the factors of lines and of positions that scale the magnitudes x. Fold k has the constant σ_k
    and is the sum of q = (σ_k + x) - σ_k over all x. The remainder x - q is passed to fold k+1. The kernel is launched
    without FMA contraction, so that every operation is rounded.
    """
    COMPLEX: tl.constexpr = ENTRIES.COMPLEX
    SQUARED: tl.constexpr = WANTS.SQUARED
    SKIP: tl.constexpr = WANTS.SKIP
    FOLDED: tl.constexpr = WANTS.FOLDED
    BLOCK: tl.constexpr = (ENTRIES.BL, ENTRIES.K, ENTRIES.BP)
    POSITIONS: tl.constexpr = (ENTRIES.K, ENTRIES.BP)
    row = table + tl.program_id(1).to(tl.int64) * COLUMNS
    line0, end, position0, d, w, inside = region(row, programs, ENTRIES)
    entries = memory(row, TYPE)
    first_line, first_position = tl.load(row + LINE0), tl.load(row + POSITION0)
    line_sums = by_line.sums + (tl.load(row + LINE_SLOT) + w) * by_line.size + (first_line - by_line.origin)
    positions = position0 + positions_of(ENTRIES.K, ENTRIES.BP)
    in_positions = positions < tl.load(row + LENGTH)
    f_position = tl.zeros(POSITIONS, tl.float64)
    if WANTS.ACROSS:
        f_position = tl.load(factors[1] + first_position + positions, mask=in_positions, other=0.0)
    sums0 = tl.zeros(BLOCK, tl.float64)
    sums1 = tl.zeros(BLOCK, tl.float64)
    sums2 = tl.zeros(BLOCK, tl.float64)
    sums3 = tl.zeros(BLOCK, tl.float64)

    for line in range(line0, end, ENTRIES.U * ENTRIES.BL):
        re, im = block(row, entries, line, end, position0, inside, ENTRIES)
        if WANTS.ACROSS:
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
        if WANTS.ALONG:
            lines = line + lines_of(ENTRIES)
            f = tl.load(factors[0] + first_line + lines, mask=lines < end, other=0.0)
            x = _term(re, im, f[:, :, None, None], SQUARED, COMPLEX)
            for k in tl.static_range(SKIP + FOLDED):
                sigma = tl.load(sigmas + k)
                q = (sigma + x) - sigma
                x -= q
                if k >= SKIP:
                    along = tl.sum(tl.sum(q, axis=2), axis=2)
                    at = line_sums + (k - SKIP) * by_line.fold + lines
                    tl.store(at, along, mask=lines < end)

    if WANTS.ACROSS:
        if end > line0:
            slot = by_position.sums + (tl.load(row + POSITION_SLOT) + d % programs.deep) * by_position.size
            slot += first_position - by_position.origin
            tl.store(slot + positions, tl.sum(sums0, axis=0), mask=in_positions)
            if FOLDED > 1:
                tl.store(slot + by_position.fold + positions, tl.sum(sums1, axis=0), mask=in_positions)
            if FOLDED > 2:
                tl.store(slot + 2 * by_position.fold + positions, tl.sum(sums2, axis=0), mask=in_positions)
            if FOLDED > 3:
                tl.store(slot + 3 * by_position.fold + positions, tl.sum(sums3, axis=0), mask=in_positions)


def launch_folds(
    batch: Batch,
    table: Tensor,
    sigmas: Tensor,
    factors: tuple[Tensor, Tensor],
    by_line: Tensor,
    by_position: Tensor,
    wants: FoldWants,
) -> None:
    """Launch `fold_kernel` on a batch, with up to FOLDS folds per launch."""
    for skip in range(0, len(sigmas), FOLDS):
        slots = slots_of(by_line[skip:], batch.by_line), slots_of(by_position[skip:], batch.by_position)
        folds = wants._replace(SKIP=skip, FOLDED=min(FOLDS, len(sigmas) - skip))
        with torch.cuda.device_of(table):
            compile_ahead.launch(
                fold_kernel,
                grid(batch),
                table,
                programs_of(batch),
                sigmas,
                factors,
                *slots,
                **constants_of(batch),
                WANTS=folds,
                num_warps=WARPS,
                enable_fp_fusion=False,
            )


COMPILED = forms(
    fold_kernel,
    FEW,
    2,
    *("*i64", PROGRAMS, "*fp64", ("*fp64", "*fp64"), SLOTS, SLOTS),
    WANTS=FoldWants(ALONG=True, ACROSS=True, SQUARED=False, FOLDED=3),
)
