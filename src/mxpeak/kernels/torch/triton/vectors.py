"""Vectors and bases of Krylov methods in one pass over memory.

A program goes over the vectors in steps of the whole grid's width and leaves one sum of each kind; these are added by
torch.  So a sum is the same every time, and its terms are fp64 numbers, products of which are exact where those of the
vectors are fp32.  All vectors of a basis (up to K) are on hand at once: what is done with them reads them once.
Kernels are compiled apart for lengths that 16 divides: only then may masked loads be as wide as they can be.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

from mxpeak.kernels.torch.engine import compile_ahead
from mxpeak.kernels.torch.engine.device import Device

Tensor = Any
#: Numbers that a program reads at a time, and its warps.
BLOCK, WARPS = 2048, 4
#: Programs for each of a GPU's units, by the bytes of a number: as many as registers hold, so that all run at once.
PROGRAMS = {4: 5, 8: 4}
#: Programs for each unit that go over a basis, and their warps.  On an H200, against 4 warps and the programs above,
#: passes over 6 to 24 vectors reach 0.83 of a copy with fp32 instead of 0.64, and 0.97 with fp64 instead of 0.83.
BASIS_PROGRAMS, BASIS_WARPS = 16, 2
#: Vectors of a basis that are on hand at a time, at least and at most.
FEWEST, MOST = 8, 64


@triton.jit
def dot_kernel(x, y, n, sums, BLOCK: tl.constexpr):
    """sums[program] = its part of Σ x_i y_i."""
    lane = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float64)
    for at in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        i = at + lane
        a = tl.load(x + i, mask=i < n, other=0.0).to(tl.float64)
        total += a * tl.load(y + i, mask=i < n, other=0.0).to(tl.float64)
    tl.store(sums + tl.program_id(0), tl.sum(total, axis=0))


@triton.jit
def subtract_kernel(b, y, n, sums, BLOCK: tl.constexpr):
    """y = b - y, and sums[program] = its part of Σ y_i² of the new y."""
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
    """x[rows_k] += y_k."""
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    to = x + tl.load(rows + k, mask=k < n, other=0)
    tl.store(to, tl.load(to, mask=k < n, other=0.0) + tl.load(y + k, mask=k < n, other=0.0), mask=k < n)


@triton.jit(do_not_specialize=["k"])
def basis_kernel(
    Q,
    ld,
    k,
    w,
    h,
    n,
    sums,
    SUBTRACT: tl.constexpr,
    PROJECT: tl.constexpr,
    SQUARE: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """w -= Σ_{j<k} h_j q_j; its part of all q_j · w into sums[program, j], or of Σ w_i² into sums[program]."""
    j = tl.arange(0, K)
    lane = tl.arange(0, BLOCK)
    rows = Q + (j.to(tl.int64) * ld)[:, None]
    real: tl.constexpr = w.dtype.element_ty
    projections = tl.zeros([K, BLOCK], tl.float64)
    squares = tl.zeros([BLOCK], tl.float64)
    if SUBTRACT:
        factors = tl.load(h + j, mask=j < k, other=0.0).to(real)[:, None]
    for at in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        i = at + lane
        q = tl.load(rows + i[None, :], mask=(j < k)[:, None] & (i < n)[None, :], other=0.0)
        new = tl.load(w + i, mask=i < n, other=0.0)
        if SUBTRACT:
            new -= tl.sum(q * factors, axis=0)
            tl.store(w + i, new, mask=i < n)
        wide = new.to(tl.float64)
        if PROJECT:
            projections += q.to(tl.float64) * wide[None, :]
        if SQUARE:
            squares += wide * wide
    if PROJECT:
        tl.store(sums + tl.program_id(0) * K + j, tl.sum(projections, axis=1))
    if SQUARE:
        tl.store(sums + tl.program_id(0), tl.sum(squares, axis=0))


# --- launches ---------------------------------------------------------------------------------------------------


@cache
def units(where: torch.device) -> int:
    """Multiprocessors, or compute units, of a device; of the interpreter a few."""
    return int(torch.cuda.get_device_properties(where).multi_processor_count) if where.type == "cuda" else 2


def _programs(device: Device, x: Tensor, block: int, each: int | None = None) -> int:
    """How many programs go over a vector, at most `each` a unit."""
    most = (each or PROGRAMS[x.element_size()]) * units(device.where) if device.is_gpu else 3
    return max(1, min(-(-int(x.numel()) // block), most))


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
    parts = [_pass(device, Q[k : k + MOST], w, None, project=True) for k in range(0, len(Q), MOST)]
    return torch.cat(parts) if len(parts) > 1 else parts[0] if parts else device.zeros(0)


def subtract_and_project(device: Device, Q: Tensor, w: Tensor, h: Tensor) -> Tensor:
    if 0 < len(Q) <= MOST:
        return _pass(device, Q, w, h, project=True)
    _subtract(device, Q, w, h)
    return project(device, Q, w)


def subtract_and_square(device: Device, Q: Tensor, w: Tensor, h: Tensor) -> Tensor:
    last = max(0, len(Q) - 1) // MOST * MOST
    _subtract(device, Q[:last], w, h)
    return _pass(device, Q[last:], w, h[last:], square=True)[0]


def _subtract(device: Device, Q: Tensor, w: Tensor, h: Tensor) -> None:
    for k in range(0, len(Q), MOST):
        _pass(device, Q[k : k + MOST], w, h[k : k + MOST])


def _pass(
    device: Device, Q: Tensor, w: Tensor, h: Tensor | None, *, project: bool = False, square: bool = False
) -> Tensor:
    """One pass over up to MOST vectors: their sums, or the one of w."""
    k, n = len(Q), w.numel()
    height = max(FEWEST, triton.next_power_of_2(k))
    block = BLOCK // height
    programs = _programs(device, w, block, BASIS_PROGRAMS)
    sums = device.empty(programs, height if project else 1)
    compile_ahead.launch(
        basis_kernel,
        (programs,),
        Q,
        Q.stride(0),
        k,
        w,
        sums if h is None else h,
        n,
        sums,
        SUBTRACT=h is not None,
        PROJECT=project,
        SQUARE=square,
        K=height,
        BLOCK=block,
        num_warps=BASIS_WARPS,
    )
    return sums[:, :k].sum(0) if project else sums.sum(0)


# --- what is compiled without a device, to see that it can be -----------------------------------------------------


def _sample(kernel: Any, types: str, **constants: int) -> tuple[Any, dict[str, str], dict[str, int]]:
    """One kernel for arguments of these types."""
    return kernel, dict(zip(kernel.arg_names, types.split())) | dict.fromkeys(constants, "constexpr"), constants


def _basis(real: str, height: int, **what: int) -> tuple[Any, dict[str, str], dict[str, int]]:
    """The pass over a basis of up to `height` vectors that does this and nothing else."""
    flags = {"SUBTRACT": 0, "PROJECT": 0, "SQUARE": 0, **what}
    return _sample(basis_kernel, f"{real} i32 i32 {real} *fp64 i32 *fp64", **flags, K=height, BLOCK=BLOCK // height)


COMPILED = [
    _sample(dot_kernel, "*fp32 *fp32 i32 *fp64", BLOCK=BLOCK),
    _sample(subtract_kernel, "*fp64 *fp64 i32 *fp64", BLOCK=BLOCK),
    _sample(scatter_add_kernel, "*fp32 *i32 *fp32 i32", BLOCK=BLOCK),
    _basis("*fp32", FEWEST, PROJECT=1),
    _basis("*fp32", 32, SUBTRACT=1, PROJECT=1),
    _basis("*fp64", MOST, SUBTRACT=1, PROJECT=1),
    _basis("*fp32", MOST, SUBTRACT=1, SQUARE=1),
]
