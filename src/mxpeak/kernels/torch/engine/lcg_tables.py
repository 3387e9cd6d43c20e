"""Tabulate jumps of the random number generator, so that an entry (i, j) costs one multiply-add.

    X(i, j) = a_j·X(i, 0) + c_j mod 2^64       a_j, c_j: the jump from the rank's first column to column j

Therefore, tiles can be generated in any order. `layout.entries` defines the conversion of X to an entry. 64-bit words
are stored as int64, because int64 arithmetic also wraps modulo 2^64.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from mxpeak.kernels.torch.engine.device import Device
from mxpeak.layout import lcg
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.entries import Entries

Tensor = Any

LCG, GAUSSIAN, UNIT_FACTORS = range(3)
KINDS = {"lcg": LCG, "gaussian": GAUSSIAN, "unit-factors": UNIT_FACTORS}


@dataclass(frozen=True, slots=True)
class LcgTables:
    """The rule of `Entries` as kernel arguments, for the rows and columns of one rank.

    reals       scale, shift, alpha, beta
    starts      X of the rank's first entry in each local row
    a, c        the jump from the rank's first column to each local column
    i, j        the global indices of local rows and columns
    """

    kind: int
    reals: Tensor
    starts: Tensor
    a: Tensor
    c: Tensor
    i: Tensor
    j: Tensor


@lru_cache(maxsize=16)
def lcg_tables(rows: BlockCyclic, cols: BlockCyclic, entries: Entries, device: Device) -> LcgTables:
    """Return the tables for these rows and columns from a cache, because a solve uses the same tables repeatedly."""
    draw = entries.first + rows.to_global(0) + cols.to_global(0) * entries.n
    a, c = jumps(rows, 1)
    starts = a * np.uint64(lcg.state(entries.seed, draw)) + c
    words = (device.tensor(table.view(np.int64)) for table in (starts, *jumps(cols, entries.n)))
    reals = device.tensor([entries.scale, entries.shift, entries.alpha, entries.beta], torch.float64)
    return LcgTables(KINDS[entries.kind], reals, *words, *(global_indices(part, device) for part in (rows, cols)))


def jumps(part: BlockCyclic, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Return A and C of the jumps x → A x + C from a rank's first index to each of its indices.

    The generator draws `stride` numbers per index. All blocks share the jumps within a block. Each further block adds
    one jump: a(A x + C) + c = (a A) x + (a C + c).
    """
    within = [lcg.jump(k * stride) for k in range(min(part.nb, part.local_size))]
    across, step = [lcg.jump(0)], lcg.jump(part.P * part.nb * stride)
    for _ in range(1, -(-part.local_size // part.nb)):
        A, C = across[-1]
        across.append((step[0] * A & lcg.MASK, (step[0] * C + step[1]) & lcg.MASK))
    (a, c), (far_a, far_c) = (np.array(steps or [(0, 0)], dtype=np.uint64).T for steps in (within, across))
    A, C = np.multiply.outer(far_a, a), np.multiply.outer(far_c, a) + c
    return A.ravel()[: part.local_size], C.ravel()[: part.local_size]


def global_indices(part: BlockCyclic, device: Device) -> Tensor:
    """Return the global index of each of this rank's indices, as a tensor on the device."""
    il = torch.arange(part.local_size, device=device.where)
    return (il // part.nb * part.P + part.p) * part.nb + il % part.nb
