"""Generate the rows of the 27-point problem in one pass, and order rows in one launch.

While rows are ordered, each row waits only for its neighbors. The results are identical to those of
`kernels.torch.sparse.rows`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from mxpeak.kernels.torch.engine import compile_ahead
from mxpeak.kernels.torch.triton.arguments import form_of
from mxpeak.layout import stencil

Tensor = Any
STENCIL = tl.constexpr(stencil.STENCIL)
#: Slots per row of the stencil, and entries per program.
SLOTS, ENTRIES = tl.constexpr(32), 1024
#: Warps of a program that generates rows, and of a program that orders rows. Programs that order rows wait for each
#: other.
MAKES, WARPS = 4, 1
#: Rows per ordering program: few, because a program orders its rows serially.
FEW = 8
#: Maximum number of entries per row, for colors and for levels. Colors are bits of a 64-bit number while the least
#: free color is determined. For levels, all entries of a row are in registers.
MAX_COLOUR_ENTRIES, MAX_LEVEL_ENTRIES = 62, 512


@triton.jit
def rows_kernel(indptr, halo, weights, indices, data, box, ROWS: tl.constexpr):
    """Generate ROWS rows of the 27-point problem, and store the columns and values of row i from indptr[i] on.

    box   number of points of the box, its shape, its first point, and the end of the domain; an array, because Triton
          would compile a separate kernel for many combinations of integer arguments
    """
    n, nx, ny, nz = tl.load(box), tl.load(box + 1), tl.load(box + 2), tl.load(box + 3)
    x_first, y_first, z_first = tl.load(box + 4), tl.load(box + 5), tl.load(box + 6)
    x_end, y_end, z_end = tl.load(box + 7), tl.load(box + 8), tl.load(box + 9)
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, SLOTS)[None, :]
    x = (i % nx)[:, None] + d % 3 - 1
    y = (i // nx % ny)[:, None] + d // 3 % 3 - 1
    z = (i // nx // ny)[:, None] + d // 9 - 1
    present = (d < STENCIL) & (i < n)[:, None]
    present &= (x >= -x_first) & (x < x_end - x_first)
    present &= (y >= -y_first) & (y < y_end - y_first)
    present &= (z >= -z_first) & (z < z_end - z_first)
    inside = (x >= 0) & (x < nx) & (y >= 0) & (y < ny) & (z >= 0) & (z < nz)
    side = STENCIL // 2 + (x >= nx).to(tl.int32) - (x < 0).to(tl.int32)
    side += 3 * ((y >= ny).to(tl.int32) - (y < 0).to(tl.int32))
    side += 9 * ((z >= nz).to(tl.int32) - (z < 0).to(tl.int32))
    there = present & (inside == 0)
    offset = tl.load(halo + side * 6, mask=there, other=0)
    x0 = tl.load(halo + side * 6 + 1, mask=there, other=0)
    y0 = tl.load(halo + side * 6 + 2, mask=there, other=0)
    z0 = tl.load(halo + side * 6 + 3, mask=there, other=0)
    width = tl.load(halo + side * 6 + 4, mask=there, other=0)
    height = tl.load(halo + side * 6 + 5, mask=there, other=0)
    outside = n + offset + ((z - z0) * height + y - y0) * width + x - x0
    column = tl.where(inside, (z * ny + y) * nx + x, outside)
    at = tl.load(indptr + i, mask=i < n, other=0)[:, None] + tl.cumsum(present.to(tl.int32), axis=1) - 1
    tl.store(indices + at, column.to(tl.int32), mask=present)
    tl.store(data + at, tl.load(weights + d, mask=d < STENCIL, other=0.0) + tl.zeros_like(at), mask=present)


@triton.jit
def _either(a, b):
    """Return a | b."""
    return a | b


@triton.jit(do_not_specialize=["n"])
def order_kernel(indptr, indices, group, turn, n, LEVELS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Store the group of each row: a greedy color, or a level if LEVELS.

    The color is the least one that no earlier neighbor has. The level is 1 + the largest level of the earlier
    neighbors.

    group   -1 until it is computed; other rows wait for it
    turn    initially 0, then the number of programs that have begun; programs process rows in this order, so that a row
            waits only for rows of running programs
    """
    i = tl.atomic_add(turn, 1, sem="relaxed").to(tl.int64) * ROWS + tl.arange(0, ROWS)
    k = tl.load(indptr + i, mask=i < n, other=0)[:, None] + tl.arange(0, WIDTH)[None, :]
    end = tl.load(indptr + i + 1, mask=i < n, other=0)
    j = tl.load(indices + k, mask=k < end[:, None], other=n)
    waiting = i < n
    unknown = waiting[:, None] & (j < i[:, None])
    seen = tl.full([ROWS, WIDTH], -1, tl.int32)
    while tl.max(waiting.to(tl.int32), axis=0) > 0:
        seen = tl.where(unknown, tl.load(group + j, mask=unknown, other=-1, volatile=True), seen)
        unknown = unknown & (seen < 0)
        ready = waiting & (tl.max(unknown.to(tl.int32), axis=1) == 0)
        if LEVELS:
            own = tl.max(seen, axis=1) + 1
        else:
            bit = tl.full([ROWS, WIDTH], 1, tl.int64)
            used = tl.reduce(tl.where(seen >= 0, bit << tl.maximum(seen, 0).to(tl.int64), 0), 1, _either)
            free = ((used + 1) & (used ^ -1)).to(tl.float64)  # the least bit that is not set: 2^color
            own = ((free.to(tl.int64, bitcast=True) >> 52) - 1023).to(tl.int32)
        tl.atomic_xchg(group + i, own, mask=ready, sem="relaxed")
        waiting = waiting & (ready == 0)
        tl.debug_barrier()


def make_rows(indptr: Tensor, halo: Tensor, weights: Tensor, indices: Tensor, data: Tensor, box: stencil.Box) -> None:
    """Generate the rows of a box, and store their columns in `indices` and their values in `data`."""
    rows = ENTRIES // SLOTS.value
    numbers = [box.rows, *box.shape, *box.origin, *box.global_shape]
    region = torch.tensor(numbers, dtype=torch.int32, device=indptr.device)
    grid = (-(-box.rows // rows),)
    compile_ahead.launch(rows_kernel, grid, indptr, halo, weights, indices, data, region, ROWS=rows, num_warps=MAKES)


def groups(indptr: Tensor, indices: Tensor, longest: int, *, levels: bool) -> Tensor:
    """Return the color or the level of each row; no row may have more than `longest` entries."""
    n = len(indptr) - 1
    group = torch.full((n,), -1, dtype=torch.int32, device=indptr.device)
    turn = torch.zeros(1, dtype=torch.int32, device=indptr.device)
    compile_ahead.launch(
        order_kernel,
        (-(-n // FEW),),
        indptr,
        indices,
        group,
        turn,
        n,
        LEVELS=levels,
        ROWS=FEW,
        WIDTH=max(SLOTS.value, triton.next_power_of_2(longest)),
        num_warps=WARPS,
    )
    return group.long()


COMPILED = [
    form_of(rows_kernel, "*i64", "*i64", "*fp64", "*i32", "*fp64", "*i32", ROWS=ENTRIES // SLOTS.value),
    *(
        form_of(order_kernel, "*i64", "*i32", "*i32", "*i32", "i32", LEVELS=levels, ROWS=FEW, WIDTH=width)
        for levels, width in ((False, 32), (True, 64))
    ),
]
