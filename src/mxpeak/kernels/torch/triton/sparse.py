"""Compute sums over chunks of a sparse matrix in one pass, in which every stored value is read once.

A program is one warp, which processes several successive chunks, because their tables, bases and much of their x share
cache lines. The warp processes the 64 lanes of a slot together. Each thread has two adjacent lanes, so its loads of x,
which need not be aligned, are adjacent to those of its neighbors. fp8 values are passed as integers, because few
devices support the format. Interpreted as fp16, their bits are 2^-8 times the value. Sums have the type of the
diagonal, which is fp32 for vectors in 16 bits, and each lane adds its slots in a fixed order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from mxpeak.kernels.host.sparse import chunk_format as pack
from mxpeak.kernels.host.sparse import slot_sums
from mxpeak.kernels.torch.engine import compile_ahead
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.triton.arguments import Form, form_of
from mxpeak.kernels.torch.triton.cast import rounded_to
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
SweepTask = Any
ResidualTask = Any
Surface = Any

#: Number of slots that are loaded together (a kilobyte of 16-bit values per warp), and the number under the
#: interpreter.
SLOTS, INTERPRETED = 8, 2
#: Maximum number of chunks per program, and number of programs that one unit of a GPU runs at a time.
MAX_CHUNKS, HELD = 4, 32
#: Warps per program.
WARPS = 1
#: Rows of H per program, and entries per row that are read at a time.
SURFACE, WIDTH = tl.constexpr(32), tl.constexpr(8)


class StoredArrays(NamedTuple):
    """The columns, values and diagonal of a matrix."""

    bases: Tensor
    near: Tensor
    far: Tensor
    entries: Tensor
    diagonal: Tensor


class Csr(NamedTuple):
    """The rows of H: the index of each row's first entry, the columns, and the values."""

    first: Tensor
    columns: Tensor
    entries: Tensor


class SumTask(NamedTuple):
    """The compile-time constants of a launch.

    KINDS   the kinds of slots that occur
    E4M3    whether the device converts fp8
    SLOTS   the number of slots that are loaded together
    PARTS   whether L, U or both are read
    HALO    whether H x is subtracted
    KEEP    whether the terms without U are stored
    """

    KINDS: int
    E4M3: bool
    SLOTS: int
    PARTS: int
    HALO: bool
    KEEP: bool


@triton.jit
def _widened(a, REAL: tl.constexpr, E4M3: tl.constexpr):
    """Convert stored values, which may be fp8 in bytes, to the vectors' type."""
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
    """Add the products of values and x in N slots to `total`.

    All columns are loaded first, then all values, then all entries of x.
    """
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
        total += _widened(a[k], total.dtype, E4M3) * y[k].to(total.dtype)
    return total


@triton.jit
def _add(total, x, row, values, bases, columns, count, KIND: tl.constexpr, TASK: tl.constexpr):
    """Add the products of values and x in `count` slots of one kind to `total`.

    SLOTS slots are added at a time, and the remaining slots by powers of two.
    """
    E4M3: tl.constexpr = TASK.E4M3
    SLOTS: tl.constexpr = TASK.SLOTS
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
    for power in tl.static_range(2, -1, -1):
        if (1 << power) < SLOTS:
            if count & (1 << power):
                total = _batch(total, x, values, bases, columns, KIND, E4M3, 1 << power)
                values += (1 << power) * LANES
                columns += (1 << power) * LANES
                bases += 1 << power
    return total


@triton.jit
def _add_part(total, chunk, x, A, PART: tl.constexpr, TASK: tl.constexpr):
    """Add L x or U x of a chunk's rows to `total`."""
    row = tl.load(chunk + ROW)
    slot = tl.load(chunk + SLOT).to(tl.int64)
    near0, far0 = tl.load(chunk + NEAR).to(tl.int64), tl.load(chunk + FAR).to(tl.int64)
    runs, nears, fars = tl.load(chunk + L_PART), tl.load(chunk + L_PART + 1), tl.load(chunk + L_PART + 2)
    if PART == UPPER:
        slot, near0, far0 = slot + (runs + nears + fars), near0 + nears, far0 + fars
        runs, nears, fars = tl.load(chunk + U_PART), tl.load(chunk + U_PART + 1), tl.load(chunk + U_PART + 2)
    if RUNS & TASK.KINDS:
        total = _add(total, x, row, A.entries + slot * LANES, A.bases + slot, A.bases, runs, RUNS, TASK)
    slot += runs
    if NEARS & TASK.KINDS:
        columns = A.near + near0 * LANES
        total = _add(total, x, row, A.entries + slot * LANES, A.bases + slot, columns, nears, NEARS, TASK)
    slot += nears
    if FARS & TASK.KINDS:
        columns = A.far + far0 * LANES
        total = _add(total, x, row, A.entries + slot * LANES, A.bases + slot, columns, fars, FARS, TASK)
    return total


@triton.jit
def _range_of(first, end, each):
    """Return the first chunk of a program and the end of its chunks."""
    begin = first + tl.program_id(0) * each
    return begin, tl.minimum(begin + each, end)


@triton.jit(do_not_specialize=["first", "end", "each"])
def sweep_kernel(table, first, end, each, A, b, Hx, x, keep, TASK: tl.constexpr):
    """Compute x_i = (b_i - (H x)_i - Σ_L a_ij x_j - Σ_U a_ij x_j) / a_ii in independent chunks.

    PARTS may omit L or U. With KEEP, also store keep_i = b_i - (H x)_i - Σ_L a_ij x_j.
    """
    real: tl.constexpr = A.diagonal.dtype.element_ty
    lane = tl.arange(0, LANES)
    begin, stop = _range_of(first, end, each)
    for c in range(begin, stop):
        chunk = table + c * TABLE
        rows = tl.load(chunk + ROW) + lane
        there = lane < tl.load(chunk + ROWS)
        rest = tl.load(b + rows, mask=there, other=0.0).to(real)
        d = tl.load(A.diagonal + rows, mask=there, other=1.0)
        if TASK.HALO:
            rest -= tl.load(Hx + rows, mask=there, other=0.0)
        total = tl.zeros([LANES], real)
        if LOWER & TASK.PARTS:
            total = _add_part(total, chunk, x, A, LOWER, TASK)
        if TASK.KEEP:
            rest -= total
            total = tl.zeros([LANES], real)
            tl.store(keep + rows, rounded_to(rest, keep.dtype.element_ty), mask=there)
        if UPPER & TASK.PARTS:
            total = _add_part(total, chunk, x, A, UPPER, TASK)
        tl.store(x + rows, rounded_to((rest - total) / d, x.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["first", "end", "each"])
def multiply_kernel(table, first, end, each, A, x, y, TASK: tl.constexpr):
    """Compute y = (L + D + U) x for the rows of a program's chunks; `halo_kernel` adds H x."""
    real: tl.constexpr = A.diagonal.dtype.element_ty
    lane = tl.arange(0, LANES)
    begin, stop = _range_of(first, end, each)
    for c in range(begin, stop):
        chunk = table + c * TABLE
        rows = tl.load(chunk + ROW) + lane
        there = lane < tl.load(chunk + ROWS)
        own = tl.load(A.diagonal + rows, mask=there, other=0.0) * tl.load(x + rows, mask=there, other=0.0).to(real)
        total = tl.zeros([LANES], real)
        total = _add_part(total, chunk, x, A, LOWER, TASK)
        total = _add_part(total, chunk, x, A, UPPER, TASK)
        tl.store(y + rows, total + own, mask=there)


@triton.jit(do_not_specialize=["first", "end", "each"])
def residual_kernel(table, first, end, each, A, b, x, keep, targets, r, TASK: tl.constexpr):
    """Compute r[targets_i] = b_i - ((L + D + U) x)_i if targets_i >= 0.

    If PARTS is only UPPER, the result is -U x. If PARTS is only LOWER, the result is b - keep - L x.
    """
    real: tl.constexpr = A.diagonal.dtype.element_ty
    lane = tl.arange(0, LANES)
    begin, stop = _range_of(first, end, each)
    for c in range(begin, stop):
        chunk = table + c * TABLE
        rows = tl.load(chunk + ROW) + lane
        target = tl.load(targets + rows, mask=lane < tl.load(chunk + ROWS), other=-1)
        there = target >= 0
        rest = tl.zeros([LANES], real)
        total = tl.zeros([LANES], real)
        if LOWER & TASK.PARTS:
            if UPPER & TASK.PARTS:
                own = tl.load(A.diagonal + rows, mask=there, other=0.0) * tl.load(x + rows, mask=there, other=0.0).to(
                    real
                )
            else:
                own = tl.load(keep + rows, mask=there, other=0.0).to(real)
            rest = tl.load(b + rows, mask=there, other=0.0).to(real) - own
            total = _add_part(total, chunk, x, A, LOWER, TASK)
        if UPPER & TASK.PARTS:
            total = _add_part(total, chunk, x, A, UPPER, TASK)
        tl.store(r + target, rounded_to(rest - total, r.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["count"])
def halo_kernel(numbers, targets, count, H, halo, y, FACTOR: tl.constexpr, KEEP: tl.constexpr):
    """Compute y[targets_k] = FACTOR·Σ_h a_sh halo_h with s = numbers_k; with KEEP, add the sum to y."""
    k = tl.program_id(0) * SURFACE + tl.arange(0, SURFACE)
    there = k < count
    s = tl.load(numbers + k, mask=there, other=0)
    first = tl.load(H.first + s, mask=there, other=0)
    entries = (tl.load(H.first + s + 1, mask=there, other=0) - first).to(tl.int32)
    lane = tl.arange(0, WIDTH)[None, :]
    real: tl.constexpr = H.entries.dtype.element_ty
    total = tl.zeros([SURFACE, WIDTH], real)
    for at in range(0, tl.max(entries, axis=0), WIDTH):
        inside = at + lane < entries[:, None]
        entry = first[:, None] + (at + lane)
        column = tl.load(H.columns + entry, mask=inside, other=0)
        a = tl.load(H.entries + entry, mask=inside, other=0.0)
        total += a * tl.load(halo + column, mask=inside, other=0.0).to(real)
    to = y + tl.load(targets + k, mask=there, other=0)
    result = FACTOR * tl.sum(total, axis=1)
    if KEEP:
        result += tl.load(to, mask=there, other=0.0).to(real)
    tl.store(to, rounded_to(result, y.dtype.element_ty), mask=there)


def e4m3(device: Device) -> bool:
    """Return whether the device converts fp8 in hardware."""
    return device.is_gpu and not torch.version.hip and torch.cuda.get_device_capability(device.where) >= (8, 9)


def _launch(
    kernel: Any,
    device: Device,
    A: TorchMatrix,
    table: Tensor,
    bounds: tuple[int, int],
    *vectors: Tensor,
    parts: int = LOWER.value | UPPER.value,
    halo: bool = False,
    keep: bool = False,
) -> None:
    """Launch a kernel on the chunks bounds[0] … bounds[1]-1 of a table.

    A program processes up to MAX_CHUNKS chunks, or fewer if the table has too few chunks to keep the GPU busy.
    """
    first, end = bounds
    each = max(1, min(MAX_CHUNKS, (end - first) // (HELD * units(device.where)))) if device.is_gpu else 2
    pattern, entries = A.pattern, A.entries.view(torch.uint8) if A.values == "fp8" else A.entries
    compile_ahead.launch(
        kernel,
        (-(-(end - first) // each),),
        table,
        first,
        end,
        each,
        StoredArrays(pattern.bases, pattern.near, pattern.far, entries, A.diagonal),
        *vectors,
        TASK=SumTask(pattern.kinds, e4m3(device), SLOTS if device.is_gpu else INTERPRETED, parts, halo, keep),
        num_warps=WARPS,
    )


def sweep(device: Device, A: TorchMatrix, task: SweepTask, Hx: Tensor | None) -> None:
    steps, b, x, keep, parts = task
    vectors = b, x if Hx is None else Hx, x, x if keep is None else keep
    options: dict[str, Any] = {"parts": parts, "halo": Hx is not None, "keep": keep is not None}
    for step in steps.sequence(parts):
        _launch(sweep_kernel, device, A, steps.table, steps.bounds[step : step + 2], *vectors, **options)


def multiply(device: Device, A: TorchMatrix, x: Tensor, y: Tensor) -> None:
    table = A.pattern.in_turn
    _launch(multiply_kernel, device, A, table, (0, len(table)), x, y)


def residual(device: Device, A: TorchMatrix, task: ResidualTask) -> None:
    coarse, b, x, keep, r, parts = task
    table = coarse.steps.table
    vectors = b, x, b if keep is None else keep, coarse.targets, r
    _launch(residual_kernel, device, A, table, (0, len(table)), *vectors, parts=parts)


def halo_product(
    device: Device, A: TorchMatrix, halo: Tensor, surface: Surface, y: Tensor, *, keep: bool, factor: float
) -> None:
    count, pattern = surface.numbers.numel(), A.pattern
    compile_ahead.launch(
        halo_kernel,
        (-(-count // SURFACE.value),),
        surface.numbers,
        surface.targets,
        count,
        Csr(pattern.halo_first, pattern.halo_columns, A.halo_entries),
        halo,
        y,
        FACTOR=factor,
        KEEP=keep,
        num_warps=WARPS,
    )


#: All kinds of slots, and the types of arguments.
EVERY = RUNS.value | NEARS.value | FARS.value
CHUNKS = ("i32", "i32", "i32")


def _form(kernel: Any, values: str, real: str, *others: str, kinds: int, e4m3: bool = False, parts: int = 3) -> Form:
    """Return a specialization of a kernel; `others` are the types of its arguments after the matrix."""
    sweeps = kernel is sweep_kernel
    task = SumTask(kinds, e4m3, SLOTS, parts, HALO=sweeps, KEEP=sweeps)
    return form_of(kernel, "*i32", *CHUNKS, StoredArrays("*i32", "*i16", "*i32", values, real), *others, TASK=task)


def _sweep(values: str, real: str, kinds: int, e4m3: bool = False) -> Form:
    """Return a specialization of the sweep kernel."""
    return _form(sweep_kernel, values, real, real, real, real, real, kinds=kinds, e4m3=e4m3)


def _residual(real: str, kinds: int, parts: int) -> Form:
    """Return a specialization of the residual kernel."""
    return _form(residual_kernel, real, real, real, real, real, "*i32", real, kinds=kinds, parts=parts)


#: All kernels and types add slots of a kind with the same code. Therefore, the samples contain all kinds together
#: once, and each kind once with a different type and kernel.
COMPILED = [
    _sweep("*bf16", "*fp32", EVERY),
    _sweep("*u8", "*fp32", FARS.value),
    _sweep("*fp16", "*fp64", NEARS.value),
    _sweep("*fp64", "*fp64", RUNS.value),
    _form(multiply_kernel, "*bf16", "*fp64", "*fp64", "*fp64", kinds=NEARS.value),
    _residual("*fp32", RUNS.value, 3),
    _residual("*fp32", FARS.value, LOWER.value),
    _form(sweep_kernel, "*bf16", "*fp32", "*bf16", "*fp32", "*bf16", "*bf16", kinds=RUNS.value),
    _form(multiply_kernel, "*fp16", "*fp32", "*fp16", "*fp32", kinds=NEARS.value),
    _form(residual_kernel, "*bf16", "*fp32", "*bf16", "*bf16", "*bf16", "*i32", "*bf16", kinds=RUNS.value, parts=2),
    *(
        form_of(halo_kernel, "*i32", "*i32", "i32", Csr("*i64", "*i32", real), real, real, FACTOR=-1.0, KEEP=True)
        for real in ("*fp32", "*fp64")
    ),
    form_of(halo_kernel, "*i32", "*i32", "i32", Csr("*i64", "*i32", "*fp32"), "*fp16", "*fp16", FACTOR=-1.0, KEEP=True),
]
#: fp8 on chips with and without hardware support for the format.
COMPILED_FOR = {"sm_90": [_sweep("*u8", "*fp64", RUNS.value, e4m3=True)], "sm_80": [_sweep("*u8", "*fp64", RUNS.value)]}
