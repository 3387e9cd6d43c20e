"""Move rows of a row-major matrix (phase RS) with the library's gathers, which read rows as fast as copies.

Rows move in strips of columns, because a benchmark's matrix leaves little memory for copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

Tensor = Any

#: Columns of a strip: wide enough to hide launch overhead, and small compared with the matrix.
STRIP = 16384


def permute_rows(A: Tensor, block: int, sources: Tensor, targets: Tensor, block_rows: Tensor) -> None:
    """Set A[block+i] = A[sources[i]] and A[targets[t]] = A[block+block_rows[t]], from the rows before the move."""
    for part in _strips(A):
        incoming = part.index_select(0, sources)
        outgoing = part[block:].index_select(0, block_rows)
        part[block : block + len(sources)] = incoming
        part.index_copy_(0, targets, outgoing)


def gather_rows(A: Tensor, rows: Tensor, out: Tensor) -> None:
    """Set out[k] = A[rows[k]]."""
    torch.index_select(A, 0, rows, out=out)


def scatter_rows(source: Tensor, rows: Tensor, A: Tensor) -> None:
    """Set A[rows[k]] = source[k]."""
    A.index_copy_(0, rows, source)


def _strips(A: Tensor) -> Iterator[Tensor]:
    for begin in range(0, A.shape[1], STRIP):
        yield A[:, begin : begin + STRIP]
