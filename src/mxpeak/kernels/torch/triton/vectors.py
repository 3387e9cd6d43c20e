"""Compute operations on vectors and bases of Krylov methods in one pass over memory.

Programs process the vectors block by block in steps of the grid's width. Each program stores one sum of each kind, and
torch adds these sums, so the totals are reproducible. The terms are fp64 numbers, in which products of fp32 numbers
are exact. Vectors of a basis may be in bf16 or fp16. Up to K of them are in registers at the same time and are read
once. Kernels are compiled separately for lengths that are multiples of 16, because only then masked loads have their
full width.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from mxpeak.kernels.torch.engine import compile_ahead
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.triton.arguments import Form, Matrix, form_of, matrix
from mxpeak.kernels.torch.triton.cast import rounded_to

Tensor = Any
#: Numbers that a program reads at a time, and its warps.
BLOCK, WARPS = 2048, 4
#: Programs per unit of a GPU by bytes per number: as many as registers permit, so that all run at the same time.
PROGRAMS = {4: 5, 8: 4}
#: Programs per unit for a basis, and their warps. On an H200, compared with 4 warps and PROGRAMS, passes over 6 to 24
#: vectors reach 83 % of a copy's rate in fp32 instead of 64 %, and 97 % in fp64 instead of 83 %.
BASIS_PROGRAMS, BASIS_WARPS = 16, 2
#: Minimum and maximum number of vectors of a basis in registers.
MIN_VECTORS, MAX_VECTORS = 8, 64


class BasisTask(NamedTuple):
    """The operations of a pass over a basis q_j: w -= Σ h_j q_j, then all q_j · w, or Σ w_i²."""

    SUBTRACT: bool = False
    PROJECT: bool = False
    SQUARE: bool = False


@triton.jit
def dot_kernel(x, y, n, sums, BLOCK: tl.constexpr):
    """Store each program's part of Σ x_i y_i."""
    lane = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float64)
    for at in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        i = at + lane
        a = tl.load(x + i, mask=i < n, other=0.0).to(tl.float64)
        total += a * tl.load(y + i, mask=i < n, other=0.0).to(tl.float64)
    tl.store(sums + tl.program_id(0), tl.sum(total, axis=0))


@triton.jit
def subtract_kernel(b, y, n, sums, BLOCK: tl.constexpr):
    """Compute y = b - y, and store each program's part of Σ y_i² of the new y."""
    lane = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float64)
    for at in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        i = at + lane
        new = tl.load(b + i, mask=i < n, other=0.0) - tl.load(y + i, mask=i < n, other=0.0)
        tl.store(y + i, new, mask=i < n)
        total += new.to(tl.float64) * new.to(tl.float64)
    tl.store(sums + tl.program_id(0), tl.sum(total, axis=0))


@triton.jit
def scatter_add_kernel(x, rows, y, n, BLOCK: tl.constexpr):
    """Compute x[rows_k] += y_k."""
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    to = x + tl.load(rows + k, mask=k < n, other=0)
    real: tl.constexpr = tl.float64 if x.dtype.element_ty == tl.float64 else tl.float32
    total = tl.load(to, mask=k < n, other=0.0).to(real) + tl.load(y + k, mask=k < n, other=0.0).to(real)
    tl.store(to, rounded_to(total, x.dtype.element_ty), mask=k < n)


@triton.jit(do_not_specialize=["k"])
def basis_kernel(Q, k, w, h, n, sums, TASK: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr):
    """Compute w -= Σ_{j<k} h_j q_j if SUBTRACT, and store each program's part of all q_j · w or of Σ w_i²."""
    j = tl.arange(0, K)
    lane = tl.arange(0, BLOCK)
    rows = Q.entries + (j.to(tl.int64) * Q.ld)[:, None]
    real: tl.constexpr = w.dtype.element_ty
    projections = tl.zeros([K, BLOCK], tl.float64)
    squares = tl.zeros([BLOCK], tl.float64)
    if TASK.SUBTRACT:
        factors = tl.load(h + j, mask=j < k, other=0.0).to(real)[:, None]
    for at in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        i = at + lane
        q = tl.load(rows + i[None, :], mask=(j < k)[:, None] & (i < n)[None, :], other=0.0).to(real)
        new = tl.load(w + i, mask=i < n, other=0.0)
        if TASK.SUBTRACT:
            new -= tl.sum(q * factors, axis=0)
            tl.store(w + i, new, mask=i < n)
        wide = new.to(tl.float64)
        if TASK.PROJECT:
            projections += q.to(tl.float64) * wide[None, :]
        if TASK.SQUARE:
            squares += wide * wide
    if TASK.PROJECT:
        tl.store(sums + tl.program_id(0) * K + j, tl.sum(projections, axis=1))
    if TASK.SQUARE:
        tl.store(sums + tl.program_id(0), tl.sum(squares, axis=0))


@cache
def units(where: torch.device) -> int:
    """Return the number of multiprocessors or compute units of a device, or 2 for the interpreter."""
    return int(torch.cuda.get_device_properties(where).multi_processor_count) if where.type == "cuda" else 2


def _programs(device: Device, x: Tensor, block: int, each: int | None = None) -> int:
    """Return the number of programs for a vector, at most `each` per multiprocessor of the GPU."""
    limit = (each or PROGRAMS[x.element_size()]) * units(device.where) if device.is_gpu else 3
    return max(1, min(-(-int(x.numel()) // block), limit))


def dot(device: Device, x: Tensor, y: Tensor) -> Tensor:
    programs = _programs(device, x, BLOCK)
    sums = device.empty(programs)
    compile_ahead.launch(dot_kernel, (programs,), x, y, x.numel(), sums, BLOCK=BLOCK, num_warps=WARPS)
    return sums.sum()


def subtract_from(device: Device, y: Tensor, b: Tensor) -> Tensor:
    programs = _programs(device, y, BLOCK)
    sums = device.empty(programs)
    compile_ahead.launch(subtract_kernel, (programs,), b, y, y.numel(), sums, BLOCK=BLOCK, num_warps=WARPS)
    return sums.sum()


def scatter_add(device: Device, x: Tensor, rows: Tensor, y: Tensor) -> None:
    if n := rows.numel():
        compile_ahead.launch(scatter_add_kernel, (-(-n // BLOCK),), x, rows, y, n, BLOCK=BLOCK, num_warps=WARPS)


def project(device: Device, Q: Tensor, w: Tensor) -> Tensor:
    parts = [_pass(device, Q[k : k + MAX_VECTORS], w, None, PROJECT=True) for k in range(0, len(Q), MAX_VECTORS)]
    return torch.cat(parts) if len(parts) > 1 else parts[0] if parts else device.zeros(0)


def subtract_and_project(device: Device, Q: Tensor, w: Tensor, h: Tensor) -> Tensor:
    if 0 < len(Q) <= MAX_VECTORS:
        return _pass(device, Q, w, h, PROJECT=True)
    subtract(device, Q, w, h)
    return project(device, Q, w)


def subtract_and_square(device: Device, Q: Tensor, w: Tensor, h: Tensor) -> Tensor:
    last = max(0, len(Q) - 1) // MAX_VECTORS * MAX_VECTORS
    subtract(device, Q[:last], w, h)
    return _pass(device, Q[last:], w, h[last:], SQUARE=True)[0]


def subtract(device: Device, Q: Tensor, w: Tensor, h: Tensor) -> None:
    for k in range(0, len(Q), MAX_VECTORS):
        _pass(device, Q[k : k + MAX_VECTORS], w, h[k : k + MAX_VECTORS])


def _pass(device: Device, Q: Tensor, w: Tensor, h: Tensor | None, **results: bool) -> Tensor:
    """Run `basis_kernel` on up to MAX_VECTORS vectors, and return the products q_j · w or the sum of squares of w."""
    k, n = len(Q), w.numel()
    height = max(MIN_VECTORS, triton.next_power_of_2(k))
    block = BLOCK // height
    programs = _programs(device, w, block, BASIS_PROGRAMS)
    task = BasisTask(SUBTRACT=h is not None, **results)
    sums = device.empty(programs, height if task.PROJECT else 1)
    compile_ahead.launch(
        basis_kernel,
        (programs,),
        matrix(Q),
        k,
        w,
        sums if h is None else h,
        n,
        sums,
        TASK=task,
        K=height,
        BLOCK=block,
        num_warps=BASIS_WARPS,
    )
    return sums[:, :k].sum(0) if task.PROJECT else sums.sum(0)


def _basis(real: str, height: int, stored: str = "", **task: bool) -> Form:
    """Return a specialization of the kernel for up to `height` vectors, which may be `stored` in another type."""
    types = Matrix(stored or real, "i32"), "i32", real, "*fp64", "i32", "*fp64"
    return form_of(basis_kernel, *types, TASK=BasisTask(**task), K=height, BLOCK=BLOCK // height)


COMPILED = [
    form_of(dot_kernel, "*fp32", "*fp32", "i32", "*fp64", BLOCK=BLOCK),
    form_of(subtract_kernel, "*fp64", "*fp64", "i32", "*fp64", BLOCK=BLOCK),
    form_of(scatter_add_kernel, "*fp32", "*i32", "*fp32", "i32", BLOCK=BLOCK),
    form_of(scatter_add_kernel, "*bf16", "*i32", "*bf16", "i32", BLOCK=BLOCK),
    _basis("*fp32", MIN_VECTORS, PROJECT=True),
    _basis("*fp32", 32, SUBTRACT=True, PROJECT=True),
    _basis("*fp64", MAX_VECTORS, SUBTRACT=True, PROJECT=True),
    _basis("*fp32", MAX_VECTORS, SUBTRACT=True, SQUARE=True),
    _basis("*fp32", 32, "*bf16", SUBTRACT=True, PROJECT=True),
    _basis("*fp32", 32, "*fp16", SUBTRACT=True, SQUARE=True),
]
