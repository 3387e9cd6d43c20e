"""Moving rows of a row-major matrix (phase RS): contiguous pieces, which the library's gathers read as fast as copies.

In strips of columns: the rows on their way need memory, of which a matrix of a benchmark leaves little.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

Tensor = Any

#: Columns of a strip: long enough for launches not to count, short enough for two panels' rows to be little.
STRIP = 16384


def permute_rows(A: Tensor, block: int, sources: Tensor, targets: Tensor, block_rows: Tensor) -> None:
    """A[block+i] = A[sources[i]] and A[targets[t]] = A[block+block_rows[t]], as the rows were before."""
    for part in _strips(A):
        incoming = part.index_select(0, sources)
        outgoing = part[block:].index_select(0, block_rows)
        part[block : block + len(sources)] = incoming
        part.index_copy_(0, targets, outgoing)


def gather_rows(A: Tensor, rows: Tensor, out: Tensor) -> None:
    """out[k] = A[rows[k]]."""
    torch.index_select(A, 0, rows, out=out)


def scatter_rows(source: Tensor, rows: Tensor, A: Tensor) -> None:
    """A[rows[k]] = source[k]."""
    A.index_copy_(0, rows, source)


def _strips(A: Tensor) -> Iterator[Tensor]:
    for begin in range(0, A.shape[1], STRIP):
        yield A[:, begin : begin + STRIP]
