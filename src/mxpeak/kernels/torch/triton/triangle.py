"""Compute sums and maxima of rows or columns of a matrix or triangle, reading each entry once in its own type.

Sums are fp64. Maxima compare magnitudes as integers: the bits are ordered like the numbers, and NaN is above infinity
and therefore wins. Each partial result has its own element, so runs are reproducible.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from mxpeak.kernels.torch.engine import compile_ahead
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.triton.arguments import Form, Matrix, form_of, matrix

Tensor = Any

#: A tile; 16 entries per thread.
ROWS, COLUMNS, WARPS = 16, 128, 4
BM, BN = tl.constexpr(ROWS), tl.constexpr(COLUMNS)
#: Programs that keep a device busy; if there are too few rows (or columns), the other direction is also divided.
PROGRAMS = 2048

#: Operations: sum entries, magnitudes or squares, or find the largest magnitude.
FORMS = {"plain": 0, "absolute": 1, "squared": 2, "largest": 3}
ABSOLUTE, SQUARED, LARGEST = (tl.constexpr(FORMS[form]) for form in ("absolute", "squared", "largest"))
PARTS = {"whole": 0, "lower": 1, "upper": 2}
WHOLE, LOWER, UPPER = (tl.constexpr(part) for part in PARTS.values())


class FoldTask(NamedTuple):
    """The task of a kernel: the operation, the part of the matrix, and whether to multiply by x and to add to `out`."""

    FORM: int
    PART: int
    WEIGHTED: bool
    ADD: bool


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
def _folded(total, a, x, inside, TASK: tl.constexpr):
    """Return `total` updated with a tile: entries are added, or the maximum of magnitudes is taken."""
    if TASK.FORM == LARGEST:
        return tl.maximum(total, _bits(a))
    else:
        value = a.to(tl.float64)
        if TASK.FORM == ABSOLUTE:
            value = tl.abs(value)
        if TASK.FORM == SQUARED:
            value = value * value
        if TASK.WEIGHTED:
            value = tl.where(inside, value * x, 0.0)
        return total + value


@triton.jit
def _store(out, first, at, there, total, AXIS: tl.constexpr, TASK: tl.constexpr):
    """Reduce `total` along AXIS, and store the sums or maxima at out[first + at]; with ADD, add out[at] to the sums."""
    if TASK.FORM == LARGEST:
        tl.store(out + first + at, tl.max(total, axis=AXIS), there)
    else:
        result = tl.sum(total, axis=AXIS)
        if TASK.ADD:
            result += tl.load(out + at, there, other=0.0)
        tl.store(out + first + at, result, there)


@triton.jit
def row_kernel(A, x, out, shape, span, distribution, TASK: tl.constexpr):
    """Set out[part, i] to the sum or maximum of row i over the columns of one part, or add the sum to out[i].

    distribution   block size, process coordinate and number of processes, of the rows and of the columns
    """
    PART: tl.constexpr = TASK.PART
    m, n = shape
    nb, p, P, cnb, q, Q = distribution
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
    at = A.entries + rows.to(tl.int64)[:, None] * A.ld
    total = tl.zeros((BM, BN), tl.int64 if TASK.FORM == LARGEST else tl.float64)
    for j in range(begin, end, BN):
        cols = j + tl.arange(0, BN)
        inside = in_rows[:, None] & (cols < n)[None, :]  # a part ends with a full tile
        if PART == UPPER:
            inside = inside & (cols[None, :] >= split[:, None])
        if PART == LOWER:
            inside = inside & (cols[None, :] < split[:, None])
        a = tl.load(at + cols[None, :], inside, other=0.0)
        weight = tl.load(x + cols, cols < n, other=0.0)[None, :] if TASK.WEIGHTED else 0.0
        total = _folded(total, a, weight, inside, TASK)
    _store(out, part * m, rows, in_rows, total, 1, TASK)


@triton.jit
def column_kernel(A, x, out, shape, span, TASK: tl.constexpr):
    """Set out[part, j] to the sum or maximum of column j over the rows of one part, or add the sum to out[j]."""
    m, n = shape
    part = tl.program_id(1)
    cols = tl.program_id(0) * BN + tl.arange(0, BN)
    in_cols, begin, end = cols < n, part * span, tl.minimum((part + 1) * span, m)
    total = tl.zeros((BM, BN), tl.int64 if TASK.FORM == LARGEST else tl.float64)
    for i in range(begin, end, BM):
        rows = i + tl.arange(0, BM)
        inside = (rows < m)[:, None] & in_cols[None, :]  # a part ends with a full tile
        a = tl.load(A.entries + rows.to(tl.int64)[:, None] * A.ld + cols[None, :], inside, other=0.0)
        weight = tl.load(x + rows, rows < m, other=0.0)[:, None] if TASK.WEIGHTED else 0.0
        total = _folded(total, a, weight, inside, TASK)
    _store(out, part * n, cols, in_cols, total, 0, TASK)


@triton.jit
def scale_kernel(A, by_row, by_column, shape):
    """Set a_ij = by_row_i · a_ij · by_column_j."""
    m, n = shape
    rows, cols = tl.program_id(1) * BM + tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN)
    inside = (rows < m)[:, None] & (cols < n)[None, :]
    entry = A.entries + rows.to(tl.int64)[:, None] * A.ld + cols[None, :]
    r = tl.load(by_row + rows, rows < m, other=0.0)[:, None]
    c = tl.load(by_column + cols, cols < n, other=0.0)[None, :]
    value = tl.load(entry, inside, other=0.0).to(tl.float64) * r * c
    tl.store(entry, value.to(A.entries.dtype.element_ty), inside)


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
    """Set `out` to the sums or maxima of A's rows or, if `add`, add the sums to `out`.

    `distribution` is NB, p, P of the rows and of the columns; only triangles need it.
    """
    task = FoldTask(FORMS[form], PARTS[part], x is not None, add)
    _launch(device, row_kernel, A, x, out, task, distribution)


def launch_columns(device: Device, A: Tensor, x: Tensor | None, out: Tensor, form: str, *, add: bool = False) -> None:
    """Set `out` to the sums or maxima of A's columns or, if `add`, add the sums to `out`."""
    _launch(device, column_kernel, A, x, out, FoldTask(FORMS[form], PARTS["whole"], x is not None, add))


def launch_scale(A: Tensor, by_row: Tensor, by_column: Tensor) -> None:
    """Set a_ij = by_row_i · a_ij · by_column_j in place."""
    m, n = A.shape
    grid = (triton.cdiv(n, COLUMNS), triton.cdiv(m, ROWS))
    compile_ahead.launch(scale_kernel, grid, matrix(A), by_row, by_column, (m, n), num_warps=WARPS)


def _launch(
    device: Device, kernel: Any, A: Tensor, x: Tensor | None, out: Tensor, task: FoldTask, *others: Any
) -> None:
    """Run a row or column kernel on parts, and combine the parts in `out`; a single part is added directly to `out`."""
    shape = tuple(A.shape)
    sides = (shape[0], ROWS), (shape[1], COLUMNS)
    (size, tile), (length, step) = sides if kernel is row_kernel else sides[::-1]
    span, parts = _cut(size, tile, length, step)
    direct, is_maximum = task.ADD and parts == 1, FORMS["largest"] == task.FORM
    dtype = torch.int64 if is_maximum else torch.float64
    results = out if direct else device.empty(parts, len(out), dtype=dtype)
    compile_ahead.launch(
        kernel,
        (triton.cdiv(size, tile), parts),
        matrix(A),
        A if x is None else x,
        results,
        shape,
        span,
        *others,
        TASK=task._replace(ADD=direct),
        num_warps=WARPS,
    )
    if direct:
        return
    if is_maximum:
        bits = results.amax(dim=0)
        folded = bits.view(torch.float64) if A.dtype == torch.float64 else bits.to(torch.int32).view(torch.float32)
    else:
        folded = results.sum(dim=0)
    if task.ADD:
        out += folded
    else:
        out.copy_(folded)


def _cut(size: int, tile: int, length: int, step: int) -> tuple[int, int]:
    """Return the length and the number of the parts into which the summed dimension is divided."""
    tiles = triton.cdiv(length, step)
    wanted = max(1, min(tiles, PROGRAMS // triton.cdiv(size, tile)))
    span = triton.cdiv(tiles, wanted) * step
    return span, triton.cdiv(length, span)


def _form(kernel: Any, entries: str, FORM: int, PART: int, weighted: bool) -> Form:
    """Return a specialization of the row or column kernel."""
    distribution = [("i32",) * 6] if kernel is row_kernel else []
    types = Matrix(entries, "i64"), "*fp64", "*i64" if FORM == 3 else "*fp64", ("i32", "i32"), "i32", *distribution
    return form_of(kernel, *types, TASK=FoldTask(FORM, PART, weighted, FORM != 3))


COMPILED = [
    entry
    for entries in ("*fp32", "*fp64")
    for entry in (
        _form(row_kernel, entries, 0, 0, True),
        _form(row_kernel, entries, 1, 1, True),
        _form(row_kernel, entries, 2, 2, True),
        _form(row_kernel, entries, 3, 2, False),
        _form(row_kernel, entries, 1, 0, False),
        _form(column_kernel, entries, 0, 0, True),
        _form(column_kernel, entries, 1, 0, False),
        _form(column_kernel, entries, 3, 0, False),
        form_of(scale_kernel, Matrix(entries, "i64"), "*fp64", "*fp64", ("i32", "i32")),
    )
]
