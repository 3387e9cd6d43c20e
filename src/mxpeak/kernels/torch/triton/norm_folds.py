"""Compute the folds of deterministic sums along and across lines, up to four folds per pass."""

from __future__ import annotations

from typing import Any

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
    block,
    form_of,
    grid,
    lines_of,
    memory,
    positions_of,
    region,
    samples,
    span,
)

Tensor = Any

#: Folds per launch, limited by the registers of a thread.
FOLDS = 4


@triton.jit
def _term(re, im, f, SQUARED: tl.constexpr, COMPLEX: tl.constexpr):
    """Return |f·f·x| or its square, rounding after each operation."""
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
    """Compute folds SKIP … SKIP+FOLDED-1 of the sums along and across lines: q = (σ + x) - σ, x -= q.

    by_line, by_position   [folds, slots, size], initially zero, as in `pass_kernel`; fold_of_* is the size of a fold

    Launched without FMA contraction, so every operation is rounded.
    """
    row = table + tl.program_id(1).to(tl.int64) * COLUMNS
    line0, end, position0, d, w, inside = region(row, strip, wide, K * BP, BANDED)
    base, line_stride, stride = memory(row, TYPE)
    first_line, first_position = tl.load(row + LINE0), tl.load(row + POSITION0)
    line_sums = by_line + (tl.load(row + LINE_SLOT) + w) * line_size + (first_line - line_origin)
    positions = position0 + positions_of(K, BP)
    in_positions = positions < tl.load(row + LENGTH)
    f_position = tl.zeros([K, BP], tl.float64)
    if ACROSS:
        f_position = tl.load(position_factors + first_position + positions, mask=in_positions, other=0.0)
    sums0 = tl.zeros([BL, K, BP], tl.float64)
    sums1 = tl.zeros([BL, K, BP], tl.float64)
    sums2 = tl.zeros([BL, K, BP], tl.float64)
    sums3 = tl.zeros([BL, K, BP], tl.float64)

    for line in range(line0, end, U * BL):
        re, im = block(
            row, base, line_stride, stride, line, end, position0, inside, BANDED, COMPLEX, UNIT, ALIGNED, U, K, BL, BP
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
            lines = line + lines_of(U, BL)
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
            slot = (
                by_position
                + (tl.load(row + POSITION_SLOT) + d % deep) * position_size
                + (first_position - position_origin)
            )
            tl.store(slot + positions, tl.sum(sums0, axis=0), mask=in_positions)
            if FOLDED > 1:
                tl.store(slot + fold_of_positions + positions, tl.sum(sums1, axis=0), mask=in_positions)
            if FOLDED > 2:
                tl.store(slot + 2 * fold_of_positions + positions, tl.sum(sums2, axis=0), mask=in_positions)
            if FOLDED > 3:
                tl.store(slot + 3 * fold_of_positions + positions, tl.sum(sums3, axis=0), mask=in_positions)


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
    """Launch `fold_kernel` on a batch, with up to FOLDS folds per launch."""
    line_span, position_span = span(by_line, batch.by_line), span(by_position, batch.by_position)
    for skip in range(0, len(sigmas), FOLDS):
        options = {"SQUARED": squared, "SKIP": skip, "FOLDED": min(FOLDS, len(sigmas) - skip)}
        with torch.cuda.device_of(table):
            compile_ahead.launch(
                fold_kernel,
                grid(batch),
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
                **form_of(batch),
                ALONG=along,
                ACROSS=across,
                **options,
                num_warps=WARPS,
                enable_fp_fusion=False,
            )


COMPILED = samples(fold_kernel, FEW, 2, ALONG=True, ACROSS=True, SQUARED=False, SKIP=0, FOLDED=3)
