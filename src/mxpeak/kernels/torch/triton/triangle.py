"""Compute sums and maxima of rows or columns of a matrix or triangle, reading each entry once in its own type.

Sums are fp64. Maxima compare magnitudes as integers: the bits are ordered like the numbers, and NaN is above infinity
and therefore wins. Each partial result has its own element, so runs are reproducible.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from mxpeak.kernels.torch.engine import compile_ahead
from mxpeak.kernels.torch.engine.device import Device

Tensor = Any

#: A tile; 16 entries per thread.
ROWS, COLUMNS, WARPS = 16, 128, 4
#: Programs that keep a device busy; if there are too few rows (or columns), the other direction is also divided.
PROGRAMS = 2048

#: Operations: sum entries, magnitudes or squares, or find the largest magnitude.
PLAIN, ABSOLUTE, SQUARED, LARGEST = (tl.constexpr(k) for k in range(4))
FORMS = {"plain": PLAIN, "absolute": ABSOLUTE, "squared": SQUARED, "largest": LARGEST}
WHOLE, LOWER, UPPER = (tl.constexpr(k) for k in range(3))
PARTS = {"whole": WHOLE, "lower": LOWER, "upper": UPPER}


@triton.jit
def _columns_before(i, nb, q, Q):
    """Return how many of process q's columns are before global column i."""
    block = i // nb
    rounds, extra = block // Q, block % Q
    return rounds * nb + tl.where(q < extra, nb, tl.where(q == extra, i % nb, 0))


@triton.jit
def _bits(a):
    """Return the bits of |a| as an integer."""
    if a.dtype == tl.float64:
        return a.to(tl.int64, bitcast=True) & 0x7FFFFFFFFFFFFFFF
    else:
        return (a.to(tl.int32, bitcast=True) & 0x7FFFFFFF).to(tl.int64)


@triton.jit
def _folded(total, a, x, inside, FORM: tl.constexpr, WEIGHTED: tl.constexpr):
    """Return `total` combined with the sums or maxima of a tile."""
    if FORM == LARGEST:
        return tl.maximum(total, _bits(a))
    else:
        value = a.to(tl.float64)
        if FORM == ABSOLUTE:
            value = tl.abs(value)
        if FORM == SQUARED:
            value = value * value
        if WEIGHTED:
            value = tl.where(inside, value * x, 0.0)
        return total + value


@triton.jit
def row_kernel(
    A,
    ld,
    x,
    out,
    m,
    n,
    span,
    nb,
    p,
    P,
    cnb,
    q,
    Q,
    FORM: tl.constexpr,
    PART: tl.constexpr,
    WEIGHTED: tl.constexpr,
    ADD: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """Set out[part, i] to the sum or maximum of row i over the columns of one part, or add the sum to out[i]."""
    part = tl.program_id(1)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    in_rows, begin, end = rows < m, part * span, tl.minimum((part + 1) * span, n)
    split = rows * 0
    if PART != WHOLE:  # skip tiles that are entirely beyond the diagonal
        split = _columns_before((rows // nb * P + p) * nb + rows % nb, cnb, q, Q)
        if PART == UPPER:
            begin += tl.maximum(tl.min(split, axis=0) - begin, 0) // BN * BN
        else:
            end = tl.minimum(end, tl.max(split, axis=0))
    at = A + rows.to(tl.int64)[:, None] * ld
    total = tl.zeros((BM, BN), tl.int64 if FORM == LARGEST else tl.float64)
    for j in range(begin, end, BN):
        cols = j + tl.arange(0, BN)
        inside = in_rows[:, None] & (cols < n)[None, :]  # a part ends with a full tile
        if PART == UPPER:
            inside = inside & (cols[None, :] >= split[:, None])
        if PART == LOWER:
            inside = inside & (cols[None, :] < split[:, None])
        a = tl.load(at + cols[None, :], inside, other=0.0)
        weight = tl.load(x + cols, cols < n, other=0.0)[None, :] if WEIGHTED else 0.0
        total = _folded(total, a, weight, inside, FORM, WEIGHTED)
    if FORM == LARGEST:
        tl.store(out + part * m + rows, tl.max(total, axis=1), in_rows)
    else:
        result = tl.sum(total, axis=1)
        if ADD:
            result += tl.load(out + rows, in_rows, other=0.0)
        tl.store(out + part * m + rows, result, in_rows)


@triton.jit
def column_kernel(
    A,
    ld,
    x,
    out,
    m,
    n,
    span,
    FORM: tl.constexpr,
    WEIGHTED: tl.constexpr,
    ADD: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """Set out[part, j] to the sum or maximum of column j over the rows of one part, or add the sum to out[j]."""
    part = tl.program_id(1)
    cols = tl.program_id(0) * BN + tl.arange(0, BN)
    in_cols, begin, end = cols < n, part * span, tl.minimum((part + 1) * span, m)
    total = tl.zeros((BM, BN), tl.int64 if FORM == LARGEST else tl.float64)
    for i in range(begin, end, BM):
        rows = i + tl.arange(0, BM)
        inside = (rows < m)[:, None] & in_cols[None, :]  # a part ends with a full tile
        a = tl.load(A + rows.to(tl.int64)[:, None] * ld + cols[None, :], inside, other=0.0)
        weight = tl.load(x + rows, rows < m, other=0.0)[:, None] if WEIGHTED else 0.0
        total = _folded(total, a, weight, inside, FORM, WEIGHTED)
    if FORM == LARGEST:
        tl.store(out + part * n + cols, tl.max(total, axis=0), in_cols)
    else:
        result = tl.sum(total, axis=0)
        if ADD:
            result += tl.load(out + cols, in_cols, other=0.0)
        tl.store(out + part * n + cols, result, in_cols)


@triton.jit
def scale_kernel(A, ld, by_row, by_column, m, n, BM: tl.constexpr, BN: tl.constexpr):
    """Set a_ij = by_row_i · a_ij · by_column_j."""
    rows, cols = tl.program_id(1) * BM + tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN)
    inside = (rows < m)[:, None] & (cols < n)[None, :]
    entry = A + rows.to(tl.int64)[:, None] * ld + cols[None, :]
    r = tl.load(by_row + rows, rows < m, other=0.0)[:, None]
    c = tl.load(by_column + cols, cols < n, other=0.0)[None, :]
    value = tl.load(entry, inside, other=0.0).to(tl.float64) * r * c
    tl.store(entry, value.to(A.dtype.element_ty), inside)


def launch_rows(
    device: Device,
    A: Tensor,
    x: Tensor | None,
    out: Tensor,
    form: str,
    part: str = "whole",
    distribution: tuple[int, ...] = (1, 0, 1, 1, 0, 1),
    *,
    add: bool = False,
) -> None:
    """Compute the sum or maximum of each row; for a triangle, `distribution` is NB, p, P of the rows and of the
    columns.
    """
    m, n = A.shape
    span, parts = _cut(m, ROWS, n, COLUMNS)
    results, direct = _results(device, out, form, parts, add)
    compile_ahead.launch(
        row_kernel,
        (triton.cdiv(m, ROWS), parts),
        A,
        A.stride(0),
        A if x is None else x,
        results,
        m,
        n,
        span,
        *distribution,
        FORM=FORMS[form],
        PART=PARTS[part],
        WEIGHTED=x is not None,
        ADD=direct,
        BM=ROWS,
        BN=COLUMNS,
        num_warps=WARPS,
    )
    if not direct:
        _finish(A, results, out, form, add)


def launch_columns(device: Device, A: Tensor, x: Tensor | None, out: Tensor, form: str, *, add: bool = False) -> None:
    """Compute the sum or maximum of each column."""
    m, n = A.shape
    span, parts = _cut(n, COLUMNS, m, ROWS)
    results, direct = _results(device, out, form, parts, add)
    compile_ahead.launch(
        column_kernel,
        (triton.cdiv(n, COLUMNS), parts),
        A,
        A.stride(0),
        A if x is None else x,
        results,
        m,
        n,
        span,
        FORM=FORMS[form],
        WEIGHTED=x is not None,
        ADD=direct,
        BM=ROWS,
        BN=COLUMNS,
        num_warps=WARPS,
    )
    if not direct:
        _finish(A, results, out, form, add)


def launch_scale(A: Tensor, by_row: Tensor, by_column: Tensor) -> None:
    """Set a_ij = by_row_i · a_ij · by_column_j in place."""
    m, n = A.shape
    grid = (triton.cdiv(n, COLUMNS), triton.cdiv(m, ROWS))
    compile_ahead.launch(
        scale_kernel, grid, A, A.stride(0), by_row, by_column, m, n, BM=ROWS, BN=COLUMNS, num_warps=WARPS
    )


def _cut(kept: int, kept_tile: int, folded: int, folded_tile: int) -> tuple[int, int]:
    """Return the length and the number of the parts into which the summed direction is divided."""
    tiles = triton.cdiv(folded, folded_tile)
    wanted = max(1, min(tiles, PROGRAMS // triton.cdiv(kept, kept_tile)))
    span = triton.cdiv(tiles, wanted) * folded_tile
    return span, triton.cdiv(folded, span)


def _results(device: Device, out: Tensor, form: str, parts: int, add: bool) -> tuple[Tensor, bool]:
    """Return the array that the kernel writes, and whether this array is `out` and the kernel adds to it."""
    if parts == 1 and add:
        return out, True
    return device.empty(parts, len(out), dtype=torch.int64 if form == "largest" else torch.float64), False


def _finish(A: Tensor, results: Tensor, out: Tensor, form: str, add: bool) -> None:
    """Combine the results of the parts into `out`, converting the bits of maxima to numbers."""
    if form == "largest":
        bits = results.amax(dim=0)
        folded = bits.view(torch.float64) if A.dtype == torch.float64 else bits.to(torch.int32).view(torch.float32)
    else:
        folded = results.sum(dim=0)
    if add:
        out += folded
    else:
        out.copy_(folded)


_TILE = {"BM": ROWS, "BN": COLUMNS}


def _rows(matrix: str, form: int, part: int, weighted: bool) -> tuple[Any, dict[str, str], dict[str, Any]]:
    constants = {"FORM": form, "PART": part, "WEIGHTED": weighted, "ADD": form != 3, **_TILE}
    signature = {
        "A": matrix,
        "ld": "i64",
        "x": "*fp64",
        "out": "*i64" if form == 3 else "*fp64",
        **dict.fromkeys(("m", "n", "span", "nb", "p", "P", "cnb", "q", "Q"), "i32"),
    }
    return row_kernel, signature | dict.fromkeys(constants, "constexpr"), constants


def _columns(matrix: str, form: int, weighted: bool) -> tuple[Any, dict[str, str], dict[str, Any]]:
    constants = {"FORM": form, "WEIGHTED": weighted, "ADD": form != 3, **_TILE}
    signature = {
        "A": matrix,
        "ld": "i64",
        "x": "*fp64",
        "out": "*i64" if form == 3 else "*fp64",
        "m": "i32",
        "n": "i32",
        "span": "i32",
    }
    return column_kernel, signature | dict.fromkeys(constants, "constexpr"), constants


def _scale(matrix: str) -> tuple[Any, dict[str, str], dict[str, Any]]:
    signature = {"A": matrix, "ld": "i64", "by_row": "*fp64", "by_column": "*fp64", "m": "i32", "n": "i32"}
    return scale_kernel, signature | dict.fromkeys(_TILE, "constexpr"), dict(_TILE)


COMPILED = [
    entry
    for matrix in ("*fp32", "*fp64")
    for entry in (
        _rows(matrix, 0, 0, True),
        _rows(matrix, 1, 1, True),
        _rows(matrix, 2, 2, True),
        _rows(matrix, 3, 2, False),
        _rows(matrix, 1, 0, False),
        _columns(matrix, 0, True),
        _columns(matrix, 1, False),
        _columns(matrix, 3, False),
        _scale(matrix),
    )
]
