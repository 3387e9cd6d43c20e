"""Generate matrices on a device with Triton, or in panels of columns with torch operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.engine.lcg_tables import GAUSSIAN, UNIT_FACTORS, LcgTables, jumps, lcg_tables
from mxpeak.kernels.torch.engine.tensors import strips
from mxpeak.layout import lcg
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.entries import MIX, Entries

Tensor = Any

#: Entries per panel with torch operations.
STRIP = 1 << 21


class TorchGenerated:
    """The `GeneratedKernels` of a torch device."""

    device: Device
    add_matvec: Any

    def generate(
        self, A: Tensor, rows: BlockCyclic, cols: BlockCyclic, entries: Entries, diagonal: Tensor | None = None
    ) -> None:
        if A.numel() == 0:
            return
        tables = lcg_tables(rows, cols, entries, self.device)
        if self.device.triton:
            from mxpeak.kernels.torch.triton.generated import launch_generate

            launch_generate(A, tables, diagonal)
            return
        for columns in strips(A.T.shape, STRIP):
            A[:, columns] = _values(tables, columns, diagonal)

    def generate_with_sums(
        self,
        A: Tensor,
        rows: BlockCyclic,
        cols: BlockCyclic,
        entries: Entries,
        diagonal: Tensor | None,
        sums: Tensor,
        W: Tensor,
    ) -> None:
        self.generate(A, rows, cols, entries, diagonal)
        sums.zero_()
        for y, w in zip(sums, W):
            self.add_matvec(y, A, w)

    def generated_matvec(
        self, y: Tensor, rows: BlockCyclic, cols: BlockCyclic, entries: Entries, diagonal: Tensor | None, x: Tensor
    ) -> None:
        y.zero_()
        if not (len(y) and len(x)):
            return
        tables = lcg_tables(rows, cols, entries, self.device)
        if self.device.triton:
            from mxpeak.kernels.torch.triton.generated import launch_matvec

            launch_matvec(self.device, y, tables, diagonal, x)
            return
        for columns in strips((len(x), len(y)), STRIP):
            y.addmv_(_values(tables, columns, diagonal), x[columns])

    def generated_row_sums(
        self, sums: Tensor, rows: BlockCyclic, cols: BlockCyclic, entries: Entries, diagonal: Tensor | None
    ) -> None:
        sums.zero_()
        if not (len(sums) and cols.local_size):
            return
        tables = lcg_tables(rows, cols, entries, self.device)
        if self.device.triton:
            from mxpeak.kernels.torch.triton.generated import launch_row_sums

            launch_row_sums(self.device, sums, tables, diagonal)
            return
        for columns in strips((cols.local_size, len(sums)), STRIP):
            sums += _values(tables, columns, diagonal).abs().sum(dim=1)

    def signs(self, v: Tensor, cols: BlockCyclic, seed: int) -> None:
        a, c = jumps(cols, 1)
        x = a * np.uint64(lcg.state(seed, 1 + cols.to_global(0))) + c
        words = self.device.tensor(x.view(np.int64))  # the highest bit of X is the sign of the word
        v.copy_(torch.where(words < 0, -1.0, 1.0))


def _values(tables: LcgTables, columns: slice, diagonal: Tensor | None) -> Tensor:
    """Return the selected columns of the generated matrix in fp64, with all local rows."""
    i, j = tables.i[:, None], tables.j[columns]
    scale, shift, alpha, beta = tables.reals
    if tables.kind == UNIT_FACTORS:
        A = torch.minimum(i, j).to(torch.float64) * alpha * beta + torch.where(i < j, -beta, -alpha).where(i != j, 1.0)
    else:
        # An unsigned word is converted with one rounding, because both halves are exact.
        x = tables.a[columns] * tables.starts[:, None] + tables.c[columns]
        A = (
            scale * _normal(x)
            if tables.kind == GAUSSIAN
            else shift + scale * ((_high(x) * 2.0**32 + _low(x)) * 2.0**-64)
        )
    return A if diagonal is None else torch.where(i == j, diagonal[:, None], A)


def _high(x: Tensor) -> Tensor:
    return ((x >> 32) & 0xFFFFFFFF).to(torch.float64)


def _low(x: Tensor) -> Tensor:
    return (x & 0xFFFFFFFF).to(torch.float64)


def _normal(x: Tensor) -> Tensor:
    """Return standard normal numbers from generator states, as `layout.entries.normal(mixed(x))` does on the host.

    A right shift of a signed word inserts copies of the sign bit, which masks remove.
    """
    z = (x ^ ((x >> 32) & 0xFFFFFFFF)) * (MIX - 2**64)
    z = z ^ ((z >> 29) & (2**35 - 1))
    u, v = (_high(z) + 0.5) * 2.0**-32, (_low(z) + 0.5) * 2.0**-32
    return torch.sqrt(-2.0 * torch.log(u)) * torch.cos(2.0 * torch.pi * v)
