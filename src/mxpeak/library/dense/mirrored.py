"""Compute all entries of a symmetric or Hermitian distributed matrix from one triangle, for an LU."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.library.dense.distributed import DistributedMatrix
from mxpeak.library.dense.matrix_source import InMemory, Source
from mxpeak.library.dense.memory import check_memory
from mxpeak.library.dense.redistribution import pieces_of, redistributed
from mxpeak.library.dense.symmetric import SymmetricKind
from mxpeak.library.types import Array


class MirroredSource(Source):
    """Source of a symmetric or Hermitian matrix that reads only one triangle of another source."""

    def __init__(self, source: Source, structure: SymmetricKind):
        super().__init__(source.what, source.dtype)
        self._half = source.triangle(lower=structure.lower, hermitian=structure.hermitian)
        self._lower, self._hermitian = structure.lower, structure.hermitian

    def _entries(self, i: Array, j: Array) -> Any:
        """Return the entries of the triangle, and the transposes of entries for those in the other one.

        Each entry is read once, except next to the diagonal.
        """
        inside, outside = (j <= i[-1], j >= i[0]) if self._lower else (j >= i[0], j <= i[-1])
        A, own, across = np.empty((len(i), len(j)), self.dtype), j[inside], j[outside]
        if len(own):
            A[:, inside] = self._half.checked_entries(i, own)
        if len(across):
            T = self._half.checked_entries(across, i).T
            mirrored = across > i[:, None] if self._lower else across < i[:, None]
            A[:, outside] = np.where(mirrored, np.conj(T) if self._hermitian else T, A[:, outside])
        return A


def mirrored(A: DistributedMatrix, structure: SymmetricKind) -> Source:
    """Return a source of all entries of A, of which one triangle is read. Collective.

    If the ranks store A, they exchange blocks, and store the whole matrix in addition.
    """
    if not isinstance(A.source, InMemory):
        return MirroredSource(A.source, structure)
    grid, part, pieces = A.grid, A.source.part, dict[tuple[int, int], Array]()
    check_memory(A.comm, A.n, A.nb, (grid.P, grid.Q), held=True, parts=A.parts)
    rows, columns = BlockCyclic(A.n, A.nb, grid.p, grid.P), BlockCyclic(A.n, A.nb, grid.q, grid.Q)
    for (i, of_A), (j, across) in product(rows.blocks(), columns.blocks()):
        first, other = of_A.start, across.start
        if first == other:
            pieces[first, first] = _both_triangles(part[i, j], structure)
        elif (first > other) == structure.lower:
            pieces[first, other] = part[i, j]
            pieces[other, first] = np.conj(part[i, j].T) if structure.hermitian else part[i, j].T
    all_pieces = pieces_of(A.comm, A.n, pieces)
    return InMemory(redistributed(grid, A.n, A.nb, list(pieces.values()), all_pieces, A.dtype), A.dtype)


def _both_triangles(block: Array, structure: SymmetricKind) -> Array:
    """Return a diagonal block with both triangles, computed from one."""
    half, strict = (np.tril(block), np.tril(block, -1)) if structure.lower else (np.triu(block), np.triu(block, 1))
    across = np.conj(strict.T) if structure.hermitian else strict.T
    if structure.hermitian and block.dtype.kind == "c":
        np.fill_diagonal(half, half.diagonal().real)
    return half + across
