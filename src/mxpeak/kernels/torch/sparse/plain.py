"""Compute sums over chunks of a sparse matrix with torch operations: gathers, products, and sums of segments.

These functions pass over the data several times; the functions of `triton.sparse` read each stored value once.
"""

from __future__ import annotations

import torch

from mxpeak.kernels.contract.sparse import Part
from mxpeak.kernels.host.sparse.chunk_format import LOWER, UPPER
from mxpeak.kernels.host.sparse.slot_sums import LANES
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.sparse.matrix import (
    BITS,
    PartSlots,
    ResidualTask,
    StepChunks,
    Surface,
    SweepTask,
    Tensor,
    TorchMatrix,
)


def _sum(A: TorchMatrix, slots: PartSlots, x: Tensor) -> Tensor:
    """Return Σ_s a_s x_s over the slots s of each chunk, with shape [chunks, LANES]."""
    assert A.pattern.columns is not None
    bits = A.entries.view(BITS[A.entries.element_size()]).view(-1, LANES)  # torch does not gather all formats
    a = bits.index_select(0, slots.numbers).view(A.entries.dtype).to(A.diagonal.dtype)
    columns = A.pattern.columns.index_select(0, slots.numbers)
    products = a * x.index_select(0, columns.view(-1)).view(-1, LANES).to(a.dtype)
    return torch.segment_reduce(products, "sum", lengths=slots.counts, axis=0, unsafe=True)


def _times(A: TorchMatrix, chunks: StepChunks, x: Tensor, parts: int) -> Tensor:
    """Return L x, U x or (L + U) x for the chunks' rows, depending on `parts`."""
    slots = [slots for part, slots in ((LOWER, chunks.lower), (UPPER, chunks.upper)) if parts & part]
    total = _sum(A, slots[0], x)
    if len(slots) > 1:
        total += _sum(A, slots[1], x)
    return total.view(-1)[chunks.lanes]


def sweep(device: Device, A: TorchMatrix, task: SweepTask, Hx: Tensor | None) -> None:
    """Run all steps of a sweep, which update task.x; without `Hx`, the sweep omits H x."""
    steps, b, x, keep, parts = task
    for step in steps.sequence(parts):
        chunks = steps.chunks[step]
        rows = chunks.rows
        rest = b[rows].to(A.diagonal.dtype) if Hx is None else b[rows] - Hx[rows]
        if parts & LOWER:
            rest = rest - _times(A, chunks, x, LOWER)
        if keep is not None:
            keep[rows] = rest.to(keep.dtype)
        if parts & UPPER:
            rest = rest - _times(A, chunks, x, UPPER)
        x[rows] = (rest / A.diagonal[rows]).to(x.dtype)


def multiply(device: Device, A: TorchMatrix, x: Tensor, y: Tensor) -> None:
    """Compute y = (L + D + U) x; the caller adds H x."""
    for chunks in A.pattern.steps[Part.ALL].chunks:
        rows = chunks.rows
        y[rows] = _times(A, chunks, x, LOWER | UPPER) + A.diagonal[rows] * x[rows]


def residual(device: Device, A: TorchMatrix, task: ResidualTask) -> None:
    """Compute a residual at the task's rows, without H x, and store it in task.r."""
    coarse, b, x, keep, r, parts = task
    for chunks in coarse.steps.chunks:
        rows = chunks.rows
        rest = -_times(A, chunks, x, parts)
        if parts & LOWER:
            rest += b[rows] - (A.diagonal[rows] * x[rows] if keep is None else keep[rows].to(rest.dtype))
        r[coarse.targets[rows]] = rest.to(r.dtype)


def halo_product(
    device: Device, A: TorchMatrix, halo: Tensor, surface: Surface, y: Tensor, *, keep: bool, factor: float
) -> None:
    """Set y[targets] to factor·H x at selected rows of H; if `keep`, add the product to y[targets] instead."""
    pattern = A.pattern
    products = A.halo_entries * halo.index_select(0, pattern.halo_columns).to(A.halo_entries.dtype)
    totals = torch.segment_reduce(products, "sum", lengths=pattern.halo_first.diff(), axis=0, unsafe=True)
    products = factor * totals[surface.numbers]
    y[surface.targets] = (y[surface.targets] + products if keep else products).to(y.dtype)
