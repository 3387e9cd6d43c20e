"""Sums over chunks of a sparse matrix in one pass: every stored value is read once, a slot's 64 lanes by one warp.

A program is one warp with some successive chunks: their tables, bases and much of their x share cache lines.  A thread
has two neighbouring lanes, so its loads of x, which may begin anywhere, lie next to those of its neighbours.  fp8 comes
as integers, since few devices know the format: put into an fp16's bits they are 2^-8 times what they mean.
Sums are of the vectors' type, each lane's over its slots in an order that never changes.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from mxpeak.kernels.host.sparse import chunk_format as pack
from mxpeak.kernels.host.sparse import gs_colored, slot_sums
from mxpeak.kernels.torch.engine import compile_ahead
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.sparse import matrix
from mxpeak.kernels.torch.sparse.matrix import Coarse, Steps, Surface, Tensor, TorchMatrix, parts_of
from mxpeak.kernels.torch.triton.vectors import units

LANES = tl.constexpr(slot_sums.LANES)
TABLE, ROW, ROWS = tl.constexpr(pack.TABLE), tl.constexpr(pack.ROW), tl.constexpr(pack.ROWS)
SLOT, NEAR, FAR = tl.constexpr(pack.SLOT), tl.constexpr(pack.NEAR), tl.constexpr(pack.FAR)
L_PART, U_PART = tl.constexpr(pack.L_PART), tl.constexpr(pack.U_PART)
LOWER, UPPER = tl.constexpr(gs_colored.LOWER), tl.constexpr(gs_colored.UPPER)
RUNS, NEARS, FARS = (tl.constexpr(kind) for kind in (matrix.RUNS, matrix.NEARS, matrix.FARS))

#: Slots that are on their way at a time: a kilobyte of 16-bit values for each warp; interpreted, it gains nothing.
SLOTS, INTERPRETED = 8, 2
#: Chunks that a program takes at the most, and programs that one of a GPU's units holds at a time.
MOST, HELD = 4, 32
#: Warps of a program.
WARPS = 1
#: Entries from other ranks that are read at a time: of so many rows, so many of each.
SURFACE, WIDTH = 32, 8


@triton.jit
def _widened(a, REAL: tl.constexpr, E4M3: tl.constexpr):
    """Stored values in the vectors' type."""
    if a.dtype == tl.uint8:
        if E4M3:
            wide = a.to(tl.float8e4nv, bitcast=True).to(tl.float32).to(REAL)
        else:
            bits = a.to(tl.uint16)
            half = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
            wide = (half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0).to(REAL)
    elif a.dtype == tl.float64:
        wide = a.to(REAL)
    else:
        wide = a.to(tl.float32).to(REAL)
    return wide


@triton.jit
def _batch(total, x, values, bases, columns, KIND: tl.constexpr, E4M3: tl.constexpr, N: tl.constexpr):
    """total += values · x of N slots: all that tells columns is asked for first, then all values, then all of x."""
    base, column, a, y = (), (), (), ()
    if KIND != FARS:
        for k in tl.static_range(N):
            base = base + (tl.load(bases + k),)
    if KIND != RUNS:
        for k in tl.static_range(N):
            column = column + (tl.load(columns + k * LANES, eviction_policy="evict_first"),)
    for k in tl.static_range(N):
        a = a + (tl.load(values + k * LANES, eviction_policy="evict_first"),)  # nobody reads it again
    for k in tl.static_range(N):
        if KIND == RUNS:
            y = y + (tl.load(x + base[k]),)
        elif KIND == NEARS:
            y = y + (tl.load(x + (base[k] + (column[k].to(tl.int32) & 0xFFFF))),)
        else:
            y = y + (tl.load(x + column[k]),)
    for k in tl.static_range(N):
        total += _widened(a[k], total.dtype, E4M3) * y[k]
    return total


@triton.jit
def _add(total, x, row, values, bases, columns, count, KIND: tl.constexpr, E4M3: tl.constexpr, SLOTS: tl.constexpr):
    """total += values · x of `count` slots of one kind: SLOTS at a time, then the rest by powers of two."""
    lane = tl.arange(0, LANES)
    values += lane
    columns += lane
    if KIND == RUNS:
        x += row + lane
    for _ in range(0, count // SLOTS):
        total = _batch(total, x, values, bases, columns, KIND, E4M3, SLOTS)
        values += SLOTS * LANES
        columns += SLOTS * LANES
        bases += SLOTS
    if SLOTS > 4:
        if count & 4:
            total = _batch(total, x, values, bases, columns, KIND, E4M3, 4)
            values += 4 * LANES
            columns += 4 * LANES
            bases += 4
    if SLOTS > 2:
        if count & 2:
            total = _batch(total, x, values, bases, columns, KIND, E4M3, 2)
            values += 2 * LANES
            columns += 2 * LANES
            bases += 2
    if count & 1:
        total = _batch(total, x, values, bases, columns, KIND, E4M3, 1)
    return total


@triton.jit
def _add_part(
    total,
    chunk,
    x,
    bases,
    near,
    far,
    values,
    PART: tl.constexpr,
    KINDS: tl.constexpr,
    E4M3: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """total += L x or U x of a chunk's rows."""
    row = tl.load(chunk + ROW)
    slot = tl.load(chunk + SLOT).to(tl.int64)
    near0, far0 = tl.load(chunk + NEAR).to(tl.int64), tl.load(chunk + FAR).to(tl.int64)
    runs, nears, fars = tl.load(chunk + L_PART), tl.load(chunk + L_PART + 1), tl.load(chunk + L_PART + 2)
    if PART == UPPER:
        slot, near0, far0 = slot + (runs + nears + fars), near0 + nears, far0 + fars
        runs, nears, fars = tl.load(chunk + U_PART), tl.load(chunk + U_PART + 1), tl.load(chunk + U_PART + 2)
    if RUNS & KINDS:
        total = _add(total, x, row, values + slot * LANES, bases + slot, bases, runs, RUNS, E4M3, SLOTS)
    slot += runs
    if NEARS & KINDS:
        total = _add(
            total, x, row, values + slot * LANES, bases + slot, near + near0 * LANES, nears, NEARS, E4M3, SLOTS
        )
    slot += nears
    if FARS & KINDS:
        total = _add(total, x, row, values + slot * LANES, bases + slot, far + far0 * LANES, fars, FARS, E4M3, SLOTS)
    return total


@triton.jit(do_not_specialize=["first", "end", "each"])
def sweep_kernel(
    table,
    first,
    end,
    each,
    bases,
    near,
    far,
    values,
    diagonal,
    b,
    Hx,
    x,
    keep,
    PARTS: tl.constexpr,
    HALO: tl.constexpr,
    KEEP: tl.constexpr,
    KINDS: tl.constexpr,
    E4M3: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """x_i = (b_i - (H x)_i - Σ_L a_ij x_j - Σ_U a_ij x_j) / a_ii of chunks first … end-1, which are independent.

    `each` of them for a program.  PARTS leaves out L or U.  KEEP: keep_i = b_i - (H x)_i - Σ_L a_ij x_j.
    """
    real: tl.constexpr = x.dtype.element_ty
    lane = tl.arange(0, LANES)
    begin = first + tl.program_id(0) * each
    for c in range(begin, tl.minimum(begin + each, end)):
        chunk = table + c * TABLE
        rows = tl.load(chunk + ROW) + lane
        there = lane < tl.load(chunk + ROWS)
        left = tl.load(b + rows, mask=there, other=0.0)
        d = tl.load(diagonal + rows, mask=there, other=1.0)
        if HALO:
            left -= tl.load(Hx + rows, mask=there, other=0.0)
        total = tl.zeros([LANES], real)
        if LOWER & PARTS:
            total = _add_part(total, chunk, x, bases, near, far, values, LOWER, KINDS, E4M3, SLOTS)
        if KEEP:
            left -= total
            total = tl.zeros([LANES], real)
            tl.store(keep + rows, left, mask=there)
        if UPPER & PARTS:
            total = _add_part(total, chunk, x, bases, near, far, values, UPPER, KINDS, E4M3, SLOTS)
        tl.store(x + rows, (left - total) / d, mask=there)


@triton.jit(do_not_specialize=["end", "each"])
def multiply_kernel(
    table,
    end,
    each,
    bases,
    near,
    far,
    values,
    diagonal,
    x,
    y,
    KINDS: tl.constexpr,
    E4M3: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """y = (L + D + U) x of chunks 0 … end-1, `each` of them for a program."""
    lane = tl.arange(0, LANES)
    begin = tl.program_id(0) * each
    for c in range(begin, tl.minimum(begin + each, end)):
        chunk = table + c * TABLE
        rows = tl.load(chunk + ROW) + lane
        there = lane < tl.load(chunk + ROWS)
        own = tl.load(diagonal + rows, mask=there, other=0.0) * tl.load(x + rows, mask=there, other=0.0)
        total = tl.zeros([LANES], x.dtype.element_ty)
        total = _add_part(total, chunk, x, bases, near, far, values, LOWER, KINDS, E4M3, SLOTS)
        total = _add_part(total, chunk, x, bases, near, far, values, UPPER, KINDS, E4M3, SLOTS)
        tl.store(y + rows, total + own, mask=there)


@triton.jit(do_not_specialize=["end", "each"])
def residual_kernel(
    table,
    end,
    each,
    bases,
    near,
    far,
    values,
    diagonal,
    b,
    x,
    keep,
    targets,
    r,
    PARTS: tl.constexpr,
    KINDS: tl.constexpr,
    E4M3: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """r[targets_i] = b_i - (L + D + U) x where targets_i >= 0, of chunks 0 … end-1.

    With UPPER alone -U x, with LOWER alone b - keep - L x.
    """
    lane = tl.arange(0, LANES)
    begin = tl.program_id(0) * each
    for c in range(begin, tl.minimum(begin + each, end)):
        chunk = table + c * TABLE
        rows = tl.load(chunk + ROW) + lane
        target = tl.load(targets + rows, mask=lane < tl.load(chunk + ROWS), other=-1)
        there = target >= 0
        left = tl.zeros([LANES], x.dtype.element_ty)
        total = tl.zeros([LANES], x.dtype.element_ty)
        if LOWER & PARTS:
            if UPPER & PARTS:
                own = tl.load(diagonal + rows, mask=there, other=0.0) * tl.load(x + rows, mask=there, other=0.0)
            else:
                own = tl.load(keep + rows, mask=there, other=0.0)
            left = tl.load(b + rows, mask=there, other=0.0) - own
            total = _add_part(total, chunk, x, bases, near, far, values, LOWER, KINDS, E4M3, SLOTS)
        if UPPER & PARTS:
            total = _add_part(total, chunk, x, bases, near, far, values, UPPER, KINDS, E4M3, SLOTS)
        tl.store(r + target, left - total, mask=there)


@triton.jit(do_not_specialize=["count"])
def halo_kernel(
    numbers,
    targets,
    count,
    pointer,
    columns,
    values,
    halo,
    y,
    FACTOR: tl.constexpr,
    KEEP: tl.constexpr,
    ROWS_AT_ONCE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """y[targets_k] = FACTOR·Σ_h a_sh halo_h, s = numbers_k; added to what is there with KEEP."""
    k = tl.program_id(0) * ROWS_AT_ONCE + tl.arange(0, ROWS_AT_ONCE)
    there = k < count
    s = tl.load(numbers + k, mask=there, other=0)
    first = tl.load(pointer + s, mask=there, other=0)
    entries = (tl.load(pointer + s + 1, mask=there, other=0) - first).to(tl.int32)
    lane = tl.arange(0, WIDTH)[None, :]
    total = tl.zeros([ROWS_AT_ONCE, WIDTH], y.dtype.element_ty)
    for at in range(0, tl.max(entries, axis=0), WIDTH):
        inside = at + lane < entries[:, None]
        entry = first[:, None] + (at + lane)
        column = tl.load(columns + entry, mask=inside, other=0)
        a = tl.load(values + entry, mask=inside, other=0.0)
        total += a * tl.load(halo + column, mask=inside, other=0.0)
    to = y + tl.load(targets + k, mask=there, other=0)
    found = FACTOR * tl.sum(total, axis=1)
    if KEEP:
        found += tl.load(to, mask=there, other=0.0)
    tl.store(to, found, mask=there)


# --- launches ---------------------------------------------------------------------------------------------------


def _shares(device: Device, chunks: int) -> tuple[int, tuple[int]]:
    """How many chunks a program takes, and the grid: all programs at once where there are few chunks."""
    each = max(1, min(MOST, chunks // (HELD * units(device.where)))) if device.is_gpu else 2
    return each, (-(-chunks // each),)


def _arrays(A: TorchMatrix) -> tuple[Tensor, ...]:
    """Columns, values and diagonal as the kernels take them."""
    entries = A.entries.view(torch.uint8) if A.values == "fp8" else A.entries
    return A.pattern.bases, A.pattern.near, A.pattern.far, entries, A.diagonal


def e4m3(device: Device) -> bool:
    """Whether the device itself widens fp8."""
    return device.is_gpu and not torch.version.hip and torch.cuda.get_device_capability(device.where) >= (8, 9)


def _options(device: Device, A: TorchMatrix) -> dict[str, Any]:
    return {
        "KINDS": A.pattern.kinds,
        "E4M3": e4m3(device),
        "SLOTS": SLOTS if device.is_gpu else INTERPRETED,
        "num_warps": WARPS,
    }


def sweep(
    device: Device,
    A: TorchMatrix,
    steps: Steps,
    b: Tensor,
    Hx: Tensor | None,
    x: Tensor,
    keep: Tensor | None,
    parts: int,
    *,
    backward: bool,
) -> None:
    for step in parts_of(steps, backward=backward):
        first, end = steps.bounds[step : step + 2]
        each, grid = _shares(device, end - first)
        compile_ahead.launch(
            sweep_kernel,
            grid,
            steps.table,
            first,
            end,
            each,
            *_arrays(A),
            b,
            x if Hx is None else Hx,
            x,
            x if keep is None else keep,
            PARTS=parts,
            HALO=Hx is not None,
            KEEP=keep is not None,
            **_options(device, A),
        )


def multiply(device: Device, A: TorchMatrix, x: Tensor, y: Tensor) -> None:
    table = A.pattern.in_turn
    each, grid = _shares(device, len(table))
    compile_ahead.launch(multiply_kernel, grid, table, len(table), each, *_arrays(A), x, y, **_options(device, A))


def residual(
    device: Device, A: TorchMatrix, coarse: Coarse, b: Tensor, x: Tensor, keep: Tensor | None, r: Tensor, parts: int
) -> None:
    kept = b if keep is None else keep  # read with LOWER alone
    table = coarse.steps.table
    each, grid = _shares(device, len(table))
    compile_ahead.launch(
        residual_kernel,
        grid,
        table,
        len(table),
        each,
        *_arrays(A),
        b,
        x,
        kept,
        coarse.targets,
        r,
        PARTS=parts,
        **_options(device, A),
    )


def halo_product(
    device: Device, A: TorchMatrix, halo: Tensor, surface: Surface, y: Tensor, *, keep: bool, factor: float
) -> None:
    count, pattern = surface.numbers.numel(), A.pattern
    compile_ahead.launch(
        halo_kernel,
        (-(-count // SURFACE),),
        surface.numbers,
        surface.targets,
        count,
        pattern.halo_first,
        pattern.halo_columns,
        A.halo_entries,
        halo,
        y,
        FACTOR=factor,
        KEEP=keep,
        ROWS_AT_ONCE=SURFACE,
        WIDTH=WIDTH,
        num_warps=WARPS,
    )


# --- what is compiled without a device, to see that it can be -----------------------------------------------------


#: Slots of all kinds, as matrices of any pattern have them.
EVERY = RUNS.value | NEARS.value | FARS.value


def _sample(
    kernel: Any, types: tuple[str, str], ints: str, kinds: int = EVERY, e4m3: int = 0, **constants: int
) -> tuple[Any, dict[str, str], Any]:
    """One kernel for a format of values and a type of vectors; `ints` are those of its arguments that are no arrays."""
    values, real = types
    constants |= {"KINDS": kinds, "E4M3": e4m3, "SLOTS": SLOTS}
    known = {"table": "*i32", "bases": "*i32", "near": "*i16", "far": "*i32", "values": values, "targets": "*i32"}
    known |= dict.fromkeys(ints.split(), "i32") | dict.fromkeys(constants, "constexpr")
    return kernel, {name: known.get(name, real) for name in kernel.arg_names}, constants


def _sweep(values: str, real: str, kinds: int, e4m3: int = 0) -> tuple[Any, dict[str, str], Any]:
    return _sample(sweep_kernel, (values, real), "first end each", kinds, e4m3, PARTS=3, HALO=1, KEEP=1)


#: Slots of a kind are added up by the same lines in every kernel and for every type: all kinds together once, then
#: each kind beside another type and another kernel.
COMPILED = [
    _sweep("*bf16", "*fp32", EVERY),
    _sweep("*u8", "*fp32", FARS.value),
    _sweep("*fp16", "*fp64", NEARS.value),
    _sweep("*fp64", "*fp64", RUNS.value),
    _sample(multiply_kernel, ("*bf16", "*fp64"), "end each", NEARS.value),
    *(
        _sample(residual_kernel, ("*fp32", "*fp32"), "end each", kinds, PARTS=parts)
        for parts, kinds in ((3, RUNS.value), (LOWER.value, FARS.value))
    ),
    *(
        (
            halo_kernel,
            {
                "numbers": "*i32",
                "targets": "*i32",
                "count": "i32",
                "pointer": "*i64",
                "columns": "*i32",
                "values": real,
                "halo": real,
                "y": real,
                "FACTOR": "constexpr",
                "KEEP": "constexpr",
                "ROWS_AT_ONCE": "constexpr",
                "WIDTH": "constexpr",
            },
            {"FACTOR": -1.0, "KEEP": True, "ROWS_AT_ONCE": SURFACE, "WIDTH": WIDTH},
        )
        for real in ("*fp32", "*fp64")
    ),
]
#: fp8 as chips read it that know the format, and as others do.
COMPILED_FOR = {"sm_90": [_sweep("*u8", "*fp64", RUNS.value, e4m3=1)], "sm_80": [_sweep("*u8", "*fp64", RUNS.value)]}
