"""Compute sums over chunks of a sparse matrix in one pass, in which every stored value is read once.

A program is one warp, which processes several successive chunks, because their tables, bases and much of their x share
cache lines. The warp processes the 64 lanes of a slot together. Each thread has two adjacent lanes, so its loads of x,
which need not be aligned, are adjacent to those of its neighbors. fp8 values are passed as integers, because few
devices support the format. Interpreted as fp16, their bits are 2^-8 times the value. Sums have the vectors' type, and
each lane adds its slots in a fixed order.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from mxpeak.kernels.host.sparse import chunk_format as pack
from mxpeak.kernels.host.sparse import slot_sums
from mxpeak.kernels.torch.engine import compile_ahead
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.triton.vectors import units

LANES = tl.constexpr(slot_sums.LANES)
TABLE, ROW, ROWS = tl.constexpr(pack.TABLE), tl.constexpr(pack.ROW), tl.constexpr(pack.ROWS)
SLOT, NEAR, FAR = tl.constexpr(pack.SLOT), tl.constexpr(pack.NEAR), tl.constexpr(pack.FAR)
L_PART, U_PART = tl.constexpr(pack.L_PART), tl.constexpr(pack.U_PART)
LOWER, UPPER = tl.constexpr(pack.LOWER), tl.constexpr(pack.UPPER)
RUNS, NEARS, FARS = (tl.constexpr(kind) for kind in (slot_sums.RUNS, slot_sums.NEARS, slot_sums.FARS))

Tensor = Any
#: Classes of `kernels.torch.sparse.matrix`, which is imported after this module.
TorchMatrix = Any
Steps = Any
Coarse = Any
Surface = Any

#: Number of slots that are loaded together (a kilobyte of 16-bit values per warp), and the number under the
#: interpreter.
SLOTS, INTERPRETED = 8, 2
#: Maximum number of chunks per program, and number of programs that one unit of a GPU runs at a time.
MOST, HELD = 4, 32
#: Warps per program.
WARPS = 1
#: Rows of H per program, and entries per row that are read at a time.
SURFACE, WIDTH = 32, 8


@triton.jit
def _widened(a, REAL: tl.constexpr, E4M3: tl.constexpr):
    """Convert stored values to the vectors' type."""
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
    """Add values · x of N slots to `total`. Load all columns first, then all values, then all entries of x."""
    base, column, a, y = (), (), (), ()
    if KIND != FARS:
        for k in tl.static_range(N):
            base = base + (tl.load(bases + k),)
    if KIND != RUNS:
        for k in tl.static_range(N):
            column = column + (tl.load(columns + k * LANES, eviction_policy="evict_first"),)
    for k in tl.static_range(N):
        a = a + (tl.load(values + k * LANES, eviction_policy="evict_first"),)  # it is read once
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
    """Add values · x of `count` slots of one kind to `total`: SLOTS at a time, then the remaining slots by powers of
    two.
    """
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
    """Add L x or U x of a chunk's rows to `total`."""
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
    """Compute x_i = (b_i - (H x)_i - Σ_L a_ij x_j - Σ_U a_ij x_j) / a_ii in the independent chunks first … end-1.

    Each program processes `each` chunks. PARTS may omit L or U. With KEEP, also store keep_i = b_i - (H x)_i - Σ_L
    a_ij x_j.
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
    """Compute y = (L + D + U) x in chunks 0 … end-1, with `each` chunks per program."""
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
    """Compute r[targets_i] = b_i - (L + D + U) x where targets_i >= 0, in chunks 0 … end-1.

    If PARTS is only UPPER, the result is -U x. If PARTS is only LOWER, the result is b - keep - L x.
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
    """Compute y[targets_k] = FACTOR·Σ_h a_sh halo_h with s = numbers_k; with KEEP, add the sum to y."""
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
    result = FACTOR * tl.sum(total, axis=1)
    if KEEP:
        result += tl.load(to, mask=there, other=0.0)
    tl.store(to, result, mask=there)


def _shares(device: Device, chunks: int) -> tuple[int, tuple[int]]:
    """Return the number of chunks per program and the launch grid, chosen so that few chunks run at the same time."""
    each = max(1, min(MOST, chunks // (HELD * units(device.where)))) if device.is_gpu else 2
    return each, (-(-chunks // each),)


def _arrays(A: TorchMatrix) -> tuple[Tensor, ...]:
    """Return columns, values and diagonal as the kernels receive them."""
    entries = A.entries.view(torch.uint8) if A.values == "fp8" else A.entries
    return A.pattern.bases, A.pattern.near, A.pattern.far, entries, A.diagonal


def e4m3(device: Device) -> bool:
    """Return whether the device converts fp8 in hardware."""
    return device.is_gpu and not torch.version.hip and torch.cuda.get_device_capability(device.where) >= (8, 9)


def _options(device: Device, A: TorchMatrix) -> dict[str, Any]:
    """Return the compile-time constants of the kernels for a matrix."""
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
) -> None:
    for step in steps.sequence(parts):
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


#: All kinds of slots.
EVERY = RUNS.value | NEARS.value | FARS.value


def _sample(
    kernel: Any, types: tuple[str, str], ints: str, kinds: int = EVERY, e4m3: int = 0, **constants: int
) -> tuple[Any, dict[str, str], Any]:
    """Return a kernel, its signature and constants; `types` are those of values and vectors, `ints` its integers."""
    values, real = types
    constants |= {"KINDS": kinds, "E4M3": e4m3, "SLOTS": SLOTS}
    fixed = {"table": "*i32", "bases": "*i32", "near": "*i16", "far": "*i32", "values": values, "targets": "*i32"}
    fixed |= dict.fromkeys(ints.split(), "i32") | dict.fromkeys(constants, "constexpr")
    return kernel, {name: fixed.get(name, real) for name in kernel.arg_names}, constants


def _sweep(values: str, real: str, kinds: int, e4m3: int = 0) -> tuple[Any, dict[str, str], Any]:
    """Return the sweep kernel for these types."""
    return _sample(sweep_kernel, (values, real), "first end each", kinds, e4m3, PARTS=3, HALO=1, KEEP=1)


#: All kernels and types add slots of a kind with the same code. The samples therefore have all kinds together once,
#: and each kind with one other type and kernel.
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
#: fp8 on chips with and without hardware support for the format.
COMPILED_FOR = {"sm_90": [_sweep("*u8", "*fp64", RUNS.value, e4m3=1)], "sm_80": [_sweep("*u8", "*fp64", RUNS.value)]}
