"""Generated matrices: entry (i, j) of a rank from one multiply-add of the row's state and the column's jump.

    X(i, j) = a_j·X(i, 0) + c_j mod 2^64       a_j, c_j: the jump from the rank's first column to column j

So tiles are made in any order; `layout.entries` says what becomes of X.  Words of 64 bits are held as int64, which
wraps as they do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from mxpeak.kernels.torch.device import Device
from mxpeak.layout import lcg
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.entries import MIX, Entries

Tensor = Any

LCG, GAUSSIAN, UNIT_FACTORS = range(3)
KINDS = {"lcg": LCG, "gaussian": GAUSSIAN, "unit-factors": UNIT_FACTORS}
#: Entries made at a time where torch's operations make them.
STRIP = 1 << 21


@dataclass(frozen=True, slots=True)
class Recipe:
    """`Entries` as kernels take them, for one rank's rows and columns.

    reals       scale, shift, alpha, beta
    starts      X of the rank's first entry in each local row
    a, c        the jump from there to each local column
    i, j        where local rows and columns lie globally
    """

    kind: int
    reals: Tensor
    starts: Tensor
    a: Tensor
    c: Tensor
    i: Tensor
    j: Tensor


@lru_cache(maxsize=16)
def recipe(rows: BlockCyclic, cols: BlockCyclic, entries: Entries, device: Device) -> Recipe:
    """The tables for these rows and columns; kept, for a solve asks for them again and again."""
    draw = entries.first + rows.to_global(0) + cols.to_global(0) * entries.n
    a, c = jumps(rows, 1)
    starts = a * np.uint64(lcg.state(entries.seed, draw)) + c
    words = (device.tensor(table.view(np.int64)) for table in (starts, *jumps(cols, entries.n)))
    reals = device.tensor([entries.scale, entries.shift, entries.alpha, entries.beta], torch.float64)
    return Recipe(KINDS[entries.kind], reals, *words, *(places(part, device) for part in (rows, cols)))


def jumps(part: BlockCyclic, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """(A, C) of the jumps from a rank's first index to each of its own, `stride` draws an index.

    Within a block all have the same; from block to block one jump more: a(A x + C) + c = (a A) x + (a C + c).
    """
    within = [lcg.jump(k * stride) for k in range(min(part.nb, part.local_size))]
    across, step = [lcg.jump(0)], lcg.jump(part.P * part.nb * stride)
    for _ in range(1, -(-part.local_size // part.nb)):
        A, C = across[-1]
        across.append((step[0] * A & lcg.MASK, (step[0] * C + step[1]) & lcg.MASK))
    (a, c), (far_a, far_c) = (np.array(steps or [(0, 0)], dtype=np.uint64).T for steps in (within, across))
    A, C = np.multiply.outer(far_a, a), np.multiply.outer(far_c, a) + c
    return A.ravel()[: part.local_size], C.ravel()[: part.local_size]


def places(part: BlockCyclic, device: Device) -> Tensor:
    """The global index of each of a rank's local ones."""
    il = torch.arange(part.local_size, device=device.where)
    return (il // part.nb * part.P + part.p) * part.nb + il % part.nb


def generate(
    device: Device, A: Tensor, rows: BlockCyclic, cols: BlockCyclic, entries: Entries, diagonal: Tensor
) -> None:
    """A = this rank's part of the matrix."""
    if A.numel() == 0:
        return
    made = recipe(rows, cols, entries, device)
    if device.triton:
        from mxpeak.kernels.torch.triton.generate import launch_generate

        launch_generate(A, made, diagonal)
        return
    for columns in _panels(*A.shape):
        A[:, columns] = _values(made, columns, diagonal)


def generated_matvec(
    device: Device, y: Tensor, rows: BlockCyclic, cols: BlockCyclic, entries: Entries, diagonal: Tensor, x: Tensor
) -> None:
    """y = A x, A made on the way."""
    y.zero_()
    if not (len(y) and len(x)):
        return
    made = recipe(rows, cols, entries, device)
    if device.triton:
        from mxpeak.kernels.torch.triton.generate import launch_matvec

        launch_matvec(device, y, made, diagonal, x)
        return
    for columns in _panels(len(y), len(x)):
        y.addmv_(_values(made, columns, diagonal), x[columns])


def generated_row_sums(
    device: Device, sums: Tensor, squares: Tensor, rows: BlockCyclic, cols: BlockCyclic, entries: Entries,
    diagonal: Tensor,
) -> None:  # fmt: skip
    """sums = Σ_j |a_ij| and squares = Σ_j a_ij², A made on the way."""
    sums.zero_()
    squares.zero_()
    if not (len(sums) and cols.local_size):
        return
    made = recipe(rows, cols, entries, device)
    if device.triton:
        from mxpeak.kernels.torch.triton.generate import launch_row_sums

        launch_row_sums(device, sums, squares, made, diagonal)
        return
    for columns in _panels(len(sums), cols.local_size):
        A = _values(made, columns, diagonal)
        sums += A.abs().sum(dim=1)
        squares += A.square().sum(dim=1)


def signs(device: Device, v: Tensor, cols: BlockCyclic, seed: int) -> None:
    """+1 or -1 by the highest bit of X: the sign of the word."""
    a, c = jumps(cols, 1)
    x = a * np.uint64(lcg.state(seed, 1 + cols.to_global(0))) + c
    words = device.tensor(x.view(np.int64))
    v.copy_(torch.where(words < 0, -1.0, 1.0))


def _panels(rows: int, columns: int) -> Iterator[slice]:
    """Columns in panels of STRIP entries."""
    width = max(1, STRIP // max(rows, 1))
    for begin in range(0, columns, width):
        yield slice(begin, min(begin + width, columns))


def _values(made: Recipe, columns: slice, diagonal: Tensor) -> Tensor:
    """All rows of some columns, in fp64."""
    i, j = made.i[:, None], made.j[columns]
    scale, shift, alpha, beta = made.reals
    if made.kind == UNIT_FACTORS:
        A = torch.minimum(i, j).to(torch.float64) * alpha * beta + torch.where(i < j, -beta, -alpha).where(i != j, 1.0)
    else:
        x = made.a[columns] * made.starts[:, None] + made.c[columns]
        A = scale * _normal(x) if made.kind == GAUSSIAN else shift + scale * (_as_real(x) * 2.0**-64)
    return torch.where(i == j, diagonal[:, None], A) if len(diagonal) else A


def _as_real(x: Tensor) -> Tensor:
    """Unsigned words as fp64, rounded once: both halves are exact."""
    return _high(x) * 2.0**32 + _low(x)


def _high(x: Tensor) -> Tensor:
    return ((x >> 32) & 0xFFFFFFFF).to(torch.float64)


def _low(x: Tensor) -> Tensor:
    return (x & 0xFFFFFFFF).to(torch.float64)


def _normal(x: Tensor) -> Tensor:
    """`layout.entries.normal` of the mixed words; a shift of signed words brings in ones, which are masked off."""
    z = (x ^ ((x >> 32) & 0xFFFFFFFF)) * (MIX - 2**64)
    z = z ^ ((z >> 29) & (2**35 - 1))
    u, v = (_high(z) + 0.5) * 2.0**-32, (_low(z) + 0.5) * 2.0**-32
    return torch.sqrt(-2.0 * torch.log(u)) * torch.cos(2.0 * torch.pi * v)
