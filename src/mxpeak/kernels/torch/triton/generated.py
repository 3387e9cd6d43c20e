"""Generate entries of matrices, and store, multiply or sum them.

The kernels are compiled without FMA contraction, so that entries are bitwise identical on all backends.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from mxpeak.kernels.torch.engine import compile_ahead
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.engine.lcg_tables import LcgTables
from mxpeak.kernels.torch.triton.arguments import Form, Matrix, form_of, matrix

Tensor = Any

#: Rows, columns and warps of a tile: 16 entries per thread, or 8 if an entry needs many registers.
ROWS, COLUMNS, WARPS, MANY_WARPS = 16, 128, 4, 8
BM, BN = tl.constexpr(ROWS), tl.constexpr(COLUMNS)
#: Programs that keep a device busy; short matrices are also divided by columns.
PROGRAMS = 2048

LCG, GAUSSIAN, UNIT_FACTORS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
MULTIPLY, SUM = tl.constexpr(0), tl.constexpr(1)


class Tables(NamedTuple):
    """The arrays of an `LcgTables` and the diagonal of the matrix, as one kernel argument."""

    reals: Tensor
    starts: Tensor
    a: Tensor
    c: Tensor
    i: Tensor
    j: Tensor
    diagonal: Tensor


@triton.jit
def _logarithm(odd):
    """Return ln(odd / 2^33) for positive integers below 2^33.

    With odd / 2^33 = m·2^e and m between sqrt(1/2) and sqrt(2), the result is e·ln 2 + 2·artanh((m-1)/(m+1)).
    """
    bits = odd.to(tl.int64, bitcast=True)
    e = ((bits >> 52) - (1023 + 33)).to(tl.float64)
    m = ((bits & 0xFFFFFFFFFFFFF) | 0x3FF0000000000000).to(tl.float64, bitcast=True)
    high = m > 1.4142135623730951
    m, e = tl.where(high, 0.5 * m, m), tl.where(high, e + 1.0, e)
    s = (m - 1.0) / (m + 1.0)
    square = s * s
    total = square * 0.0 + 1.0 / 21.0
    for k in tl.static_range(9, -1, -1):
        total = total * square + 1.0 / (2 * k + 1)
    return e * 0.6931471805599453 + 2.0 * s * total


@triton.jit
def _cosine(v):
    """Return cos(2 pi v) for 0 < v < 1, from the series of cos or sin about the nearest quarter turn."""
    quarters = tl.floor(4.0 * v + 0.5)
    angle = 6.283185307179586 * (v - 0.25 * quarters)
    square = angle * angle
    cosine, sine = square * 0.0 + 1.0, square * 0.0 + 1.0
    for k in tl.static_range(8, 0, -1):
        cosine = 1.0 - square * (1.0 / (2 * k * (2 * k - 1))) * cosine
        sine = 1.0 - square * (1.0 / (2 * k * (2 * k + 1))) * sine
    turn = quarters.to(tl.int32) & 3
    part = tl.where((turn & 1) != 0, angle * sine, cosine)
    return tl.where((turn == 1) | (turn == 2), -part, part)


@triton.jit
def _normal(x):
    """Return the standard normal number that belongs to each generator state x.

    The bits of x are mixed as in `layout.entries.mixed` and converted to a normal number as in
    `layout.entries.normal`.
    """
    z = (x ^ (x >> 32)) * 0x94D049BB133111EB
    z = z ^ (z >> 29)
    radius = -2.0 * _logarithm((((z >> 32) << 1) | 1).to(tl.float64))
    return tl.sqrt(radius) * _cosine(((z & 0xFFFFFFFF).to(tl.float64) + 0.5) * 2.3283064365386963e-10)


@triton.jit
def _entries(tables, rows, cols, in_rows, in_cols, KIND: tl.constexpr, HAS_DIAGONAL: tl.constexpr):
    """Return a tile of the generated matrix in fp64."""
    scale, shift = tl.load(tables.reals), tl.load(tables.reals + 1)
    alpha, beta = tl.load(tables.reals + 2), tl.load(tables.reals + 3)
    if KIND == UNIT_FACTORS or HAS_DIAGONAL:
        i = tl.load(tables.i + rows, in_rows, other=-1)[:, None]
        j = tl.load(tables.j + cols, in_cols, other=-2)[None, :]
    if KIND == UNIT_FACTORS:
        off = tl.where(i < j, -beta, -alpha)
        A = tl.minimum(i, j).to(tl.float64) * alpha * beta + tl.where(i == j, 1.0, off)
    else:
        start = tl.load(tables.starts + rows, in_rows, other=0).to(tl.uint64, bitcast=True)
        jump = tl.load(tables.a + cols, in_cols, other=0).to(tl.uint64, bitcast=True)
        step = tl.load(tables.c + cols, in_cols, other=0).to(tl.uint64, bitcast=True)
        x = jump[None, :] * start[:, None] + step[None, :]
        if KIND == GAUSSIAN:
            A = scale * _normal(x)
        else:
            A = shift + scale * (x.to(tl.float64) * 5.421010862427522e-20)  # 2^-64
    if HAS_DIAGONAL:
        A = tl.where(i == j, tl.load(tables.diagonal + rows, in_rows, other=0.0)[:, None], A)
    return A


@triton.jit
def generate_kernel(A, shape, tables, KIND: tl.constexpr, HAS_DIAGONAL: tl.constexpr):
    """Generate and store one tile of the matrix."""
    m, n = shape
    rows, cols = tl.program_id(1) * BM + tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN)
    in_rows, in_cols = rows < m, cols < n
    value = _entries(tables, rows, cols, in_rows, in_cols, KIND, HAS_DIAGONAL)
    target = A.entries + rows.to(tl.int64)[:, None] * A.ld + cols[None, :]
    tl.store(target, value.to(A.entries.dtype.element_ty), in_rows[:, None] & in_cols[None, :])


@triton.jit
def fold_kernel(sums, shape, span, tables, x, KIND: tl.constexpr, HAS_DIAGONAL: tl.constexpr, TASK: tl.constexpr):
    """Compute, for each row, Σ a_ij x_j (MULTIPLY) or Σ |a_ij| (SUM) over the columns of one part."""
    m, n = shape
    part = tl.program_id(1)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    in_rows, begin, end = rows < m, part * span, tl.minimum((part + 1) * span, n)
    total = tl.zeros((BM, BN), tl.float64)
    for j in range(begin, end, BN):
        cols = j + tl.arange(0, BN)
        in_cols = cols < n  # a part ends with a full tile
        A = _entries(tables, rows, cols, in_rows, in_cols, KIND, HAS_DIAGONAL)
        if TASK == MULTIPLY:
            total = tl.fma(A, tl.load(x + cols, in_cols, other=0.0)[None, :], total)
        else:
            total += tl.where(in_cols[None, :], tl.abs(A), 0.0)
    tl.store(sums + part * m + rows, tl.sum(total, axis=1), in_rows)


def launch_generate(A: Tensor, lcg: LcgTables, diagonal: Tensor | None) -> None:
    """Set A to the generated matrix, rounded once to A's type."""
    m, n = A.shape
    _launch(generate_kernel, (triton.cdiv(n, COLUMNS), triton.cdiv(m, ROWS)), lcg, diagonal, matrix(A), (m, n))


def launch_matvec(device: Device, y: Tensor, lcg: LcgTables, diagonal: Tensor | None, x: Tensor) -> None:
    """Compute y = A x for the generated matrix A, without storing A."""
    _fold(device, y, lcg, diagonal, x, MULTIPLY)


def launch_row_sums(device: Device, sums: Tensor, lcg: LcgTables, diagonal: Tensor | None) -> None:
    """Compute the row sums Σ_j |a_ij| of the generated matrix, without storing the matrix."""
    _fold(device, sums, lcg, diagonal, lcg.reals, SUM)


def _fold(device: Device, sums: Tensor, lcg: LcgTables, diagonal: Tensor | None, x: Tensor, task: Any) -> None:
    """Compute A x or row sums.

    Each part of the columns is summed individually. The sums of the parts are then added in a fixed order, so that the
    result is reproducible.
    """
    m, n = len(lcg.starts), len(lcg.a)
    blocks, tiles = triton.cdiv(m, ROWS), triton.cdiv(n, COLUMNS)
    span = triton.cdiv(tiles, min(tiles, triton.cdiv(PROGRAMS, blocks))) * COLUMNS
    parts = triton.cdiv(n, span)
    partial = device.empty(parts, m)
    _launch(fold_kernel, (blocks, parts), lcg, diagonal, partial, (m, n), span, x=x, TASK=task)
    torch.sum(partial, dim=0, out=sums)


def _launch(
    kernel: Any, grid: tuple[int, int], lcg: LcgTables, diagonal: Tensor | None, *args: Any, **others: Any
) -> None:
    """Launch a kernel with the tables of `lcg` after the arguments `args`."""
    unused = lcg.reals
    tables = Tables(*(lcg.reals, lcg.starts, lcg.a, lcg.c, lcg.i, lcg.j), unused if diagonal is None else diagonal)
    compile_ahead.launch(
        kernel,
        grid,
        *args,
        tables,
        **others,
        KIND=lcg.kind,
        HAS_DIAGONAL=diagonal is not None,
        num_warps=MANY_WARPS if lcg.kind == GAUSSIAN.value else WARPS,
        enable_fp_fusion=False,
    )


_TABLES = Tables("*fp64", "*i64", "*i64", "*i64", "*i64", "*i64", "*fp64")


def _generate(entries: str, kind: int) -> Form:
    """Return a specialization of the kernel that stores entries."""
    return form_of(generate_kernel, Matrix(entries, "i64"), ("i32", "i32"), _TABLES, KIND=kind, HAS_DIAGONAL=kind != 0)


def _folds(kind: int, task: int) -> Form:
    """Return a specialization of the kernel that multiplies or sums entries."""
    types = "*fp64", ("i32", "i32"), "i32", _TABLES, "*fp64"
    return form_of(fold_kernel, *types, KIND=kind, HAS_DIAGONAL=kind != 0, TASK=task)


COMPILED = [
    *(_generate(entries, kind) for entries in ("*fp32", "*fp64") for kind in range(3)),
    *(_folds(kind, task) for task in range(2) for kind in range(3)),
]
