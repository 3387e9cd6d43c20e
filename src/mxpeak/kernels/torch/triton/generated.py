"""Generate entries of matrices, and store, multiply or sum them.

The kernels are compiled without FMA contraction, so that entries are bitwise identical on all backends.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from mxpeak.kernels.torch.engine import compile_ahead
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.engine.lcg_tables import Recipe

Tensor = Any

#: A tile; 16 entries per thread, or 8 if an entry needs many registers.
ROWS, COLUMNS, WARPS, MANY_WARPS = 16, 128, 4, 8
#: Programs that keep a device busy; short matrices are also divided by columns.
PROGRAMS = 2048

LCG, GAUSSIAN, UNIT_FACTORS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
MULTIPLY, SUM = tl.constexpr(0), tl.constexpr(1)


@triton.jit
def _logarithm(odd):
    """Return ln(odd / 2^33) for integers below 2^33: e·ln 2 + 2·artanh((m-1)/(m+1)), m in [sqrt(1/2), sqrt(2))."""
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
    """Return the standard normal number of state x (`layout.entries.normal` of its mix)."""
    z = (x ^ (x >> 32)) * 0x94D049BB133111EB
    z = z ^ (z >> 29)
    radius = -2.0 * _logarithm((((z >> 32) << 1) | 1).to(tl.float64))
    return tl.sqrt(radius) * _cosine(((z & 0xFFFFFFFF).to(tl.float64) + 0.5) * 2.3283064365386963e-10)


@triton.jit
def _entries(
    rows,
    cols,
    in_rows,
    in_cols,
    reals,
    starts,
    a,
    c,
    i_at,
    j_at,
    diagonal,
    KIND: tl.constexpr,
    HAS_DIAGONAL: tl.constexpr,
):
    """Return a tile of entries in fp64."""
    scale, shift = tl.load(reals), tl.load(reals + 1)
    alpha, beta = tl.load(reals + 2), tl.load(reals + 3)
    if KIND == UNIT_FACTORS or HAS_DIAGONAL:
        i = tl.load(i_at + rows, in_rows, other=-1)[:, None]
        j = tl.load(j_at + cols, in_cols, other=-2)[None, :]
    if KIND == UNIT_FACTORS:
        off = tl.where(i < j, -beta, -alpha)
        A = tl.minimum(i, j).to(tl.float64) * alpha * beta + tl.where(i == j, 1.0, off)
    else:
        start = tl.load(starts + rows, in_rows, other=0).to(tl.uint64, bitcast=True)
        jump = tl.load(a + cols, in_cols, other=0).to(tl.uint64, bitcast=True)
        step = tl.load(c + cols, in_cols, other=0).to(tl.uint64, bitcast=True)
        x = jump[None, :] * start[:, None] + step[None, :]
        if KIND == GAUSSIAN:
            A = scale * _normal(x)
        else:
            A = shift + scale * (x.to(tl.float64) * 5.421010862427522e-20)  # 2^-64
    if HAS_DIAGONAL:
        A = tl.where(i == j, tl.load(diagonal + rows, in_rows, other=0.0)[:, None], A)
    return A


@triton.jit
def generate_kernel(
    A,
    ld,
    m,
    n,
    reals,
    starts,
    a,
    c,
    i_at,
    j_at,
    diagonal,
    KIND: tl.constexpr,
    HAS_DIAGONAL: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """Generate and store one tile of the matrix."""
    rows, cols = tl.program_id(1) * BM + tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN)
    in_rows, in_cols = rows < m, cols < n
    value = _entries(rows, cols, in_rows, in_cols, reals, starts, a, c, i_at, j_at, diagonal, KIND, HAS_DIAGONAL)
    target = A + rows.to(tl.int64)[:, None] * ld + cols[None, :]
    tl.store(target, value.to(A.dtype.element_ty), in_rows[:, None] & in_cols[None, :])


@triton.jit
def fold_kernel(
    sums,
    m,
    n,
    span,
    reals,
    starts,
    a,
    c,
    i_at,
    j_at,
    diagonal,
    x,
    KIND: tl.constexpr,
    HAS_DIAGONAL: tl.constexpr,
    TASK: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """Compute Σ a_ij x_j (MULTIPLY) or Σ |a_ij| (SUM) over the columns of one part."""
    part = tl.program_id(1)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    in_rows, begin, end = rows < m, part * span, tl.minimum((part + 1) * span, n)
    total = tl.zeros((BM, BN), tl.float64)
    for j in range(begin, end, BN):
        cols = j + tl.arange(0, BN)
        in_cols = cols < n  # a part ends with a full tile
        A = _entries(rows, cols, in_rows, in_cols, reals, starts, a, c, i_at, j_at, diagonal, KIND, HAS_DIAGONAL)
        if TASK == MULTIPLY:
            total = tl.fma(A, tl.load(x + cols, in_cols, other=0.0)[None, :], total)
        else:
            total += tl.where(in_cols[None, :], tl.abs(A), 0.0)
    tl.store(sums + part * m + rows, tl.sum(total, axis=1), in_rows)


def launch_generate(A: Tensor, tables: Recipe, diagonal: Tensor | None) -> None:
    """Set A to the generated matrix, rounded once to A's type."""
    m, n = A.shape
    compile_ahead.launch(
        generate_kernel,
        (triton.cdiv(n, COLUMNS), triton.cdiv(m, ROWS)),
        A,
        A.stride(0),
        m,
        n,
        *_tables(tables, diagonal),
        KIND=tables.kind,
        HAS_DIAGONAL=diagonal is not None,
        BM=ROWS,
        BN=COLUMNS,
        num_warps=_warps(tables),
        enable_fp_fusion=False,
    )


def launch_matvec(device: Device, y: Tensor, tables: Recipe, diagonal: Tensor | None, x: Tensor) -> None:
    """Compute y = A x."""
    _fold(device, y, tables, diagonal, x, MULTIPLY)


def launch_row_sums(device: Device, sums: Tensor, tables: Recipe, diagonal: Tensor | None) -> None:
    """Compute sums = Σ_j |a_ij|."""
    _fold(device, sums, tables, diagonal, tables.reals, SUM)


def _fold(device: Device, sums: Tensor, tables: Recipe, diagonal: Tensor | None, x: Tensor, task: Any) -> None:
    """Sum each part of the columns, then add the parts in a fixed order, so that sums are reproducible."""
    m, n = len(tables.starts), len(tables.a)
    blocks, tiles = triton.cdiv(m, ROWS), triton.cdiv(n, COLUMNS)
    span = triton.cdiv(tiles, min(tiles, triton.cdiv(PROGRAMS, blocks))) * COLUMNS
    parts = triton.cdiv(n, span)
    partial = device.empty(parts, m)
    compile_ahead.launch(
        fold_kernel,
        (blocks, parts),
        partial,
        m,
        n,
        span,
        *_tables(tables, diagonal),
        x,
        KIND=tables.kind,
        HAS_DIAGONAL=diagonal is not None,
        TASK=task,
        BM=ROWS,
        BN=COLUMNS,
        num_warps=_warps(tables),
        enable_fp_fusion=False,
    )
    torch.sum(partial, dim=0, out=sums)


def _warps(tables: Recipe) -> int:
    return MANY_WARPS if tables.kind == GAUSSIAN.value else WARPS


def _tables(tables: Recipe, diagonal: Tensor | None) -> tuple[Tensor, ...]:
    unused = tables.reals
    return tables.reals, tables.starts, tables.a, tables.c, tables.i, tables.j, unused if diagonal is None else diagonal


_TABLES = {"reals": "*fp64", "starts": "*i64", "a": "*i64", "c": "*i64", "i_at": "*i64", "j_at": "*i64",
           "diagonal": "*fp64"}  # fmt: skip
_TILE = {"BM": ROWS, "BN": COLUMNS}


def _generate(matrix: str, kind: int, diagonal: bool) -> tuple[Any, dict[str, str], dict[str, Any]]:
    constants = {"KIND": kind, "HAS_DIAGONAL": diagonal, **_TILE}
    signature = {"A": matrix, "ld": "i64", "m": "i32", "n": "i32", **_TABLES}
    return generate_kernel, signature | dict.fromkeys(constants, "constexpr"), constants


def _folds(kind: int, diagonal: bool, task: int) -> tuple[Any, dict[str, str], dict[str, Any]]:
    constants = {"KIND": kind, "HAS_DIAGONAL": diagonal, "TASK": task, **_TILE}
    signature = {"sums": "*fp64", "m": "i32", "n": "i32", "span": "i32", **_TABLES, "x": "*fp64"}
    return fold_kernel, signature | dict.fromkeys(constants, "constexpr"), constants


COMPILED = [
    *(_generate(matrix, kind, kind != 0) for matrix in ("*fp32", "*fp64") for kind in range(3)),
    *(_folds(kind, kind != 0, task) for task in range(2) for kind in range(3)),
]
