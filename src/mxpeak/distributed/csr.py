"""Helpers for SciPy matrices in compressed sparse row format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sparse

from mxpeak.distributed.rows import Array

#: A scipy.sparse.csr_array of fp64, real or complex.
Csr = Any
#: The type of the entries by the number of real values per entry.
FP64 = {1: np.float64, 2: np.complex128}


def rows_of_entries(A: Csr) -> Array:
    """Return the row index of each stored entry."""
    return np.repeat(np.arange(A.shape[0], dtype=A.indices.dtype), np.diff(A.indptr))


def with_diagonal(A: Csr) -> Csr:
    """Return the matrix with explicit zeros in place of missing diagonal entries."""
    i = rows_of_entries(A)
    present = np.zeros(A.shape[0], bool)
    present[A.indices[A.indices == i]] = True
    missing = np.flatnonzero(~present)
    if not missing.size:
        return A
    i, j = np.concatenate([i, missing]), np.concatenate([A.indices, missing])
    return sparse.coo_array((np.concatenate([A.data, np.zeros(missing.size)]), (i, j)), shape=A.shape).tocsr()


def kept_entries(A: Csr, kept: Array) -> Csr:
    """Return the matrix with only the entries that the mask `kept` selects."""
    indptr = np.concatenate([[0], np.cumsum(kept)])[A.indptr]
    return sparse.csr_array((A.data[kept], A.indices[kept], indptr), shape=A.shape)


def pattern(A: Csr) -> Csr:
    """Return the pattern of A with one-byte values, which takes 5 bytes per entry instead of 12."""
    return sparse.csr_array((np.ones(A.nnz, np.int8), A.indices, A.indptr), shape=A.shape)


def stacked(parts: Sequence[Csr]) -> Csr:
    """Return the parts joined to one square matrix with ascending 32-bit column indices, or a single part unchanged."""
    if len(parts) == 1:
        return parts[0]
    indptr = np.concatenate([[0], np.cumsum(np.concatenate([np.diff(part.indptr) for part in parts]))])
    columns = np.concatenate([part.indices for part in parts])
    n = indptr.size - 1
    A = sparse.csr_array((np.concatenate([part.data for part in parts]), columns, indptr), shape=(n, n))
    A.indices, A.indptr = A.indices.astype(np.int32, copy=False), A.indptr.astype(np.int32, copy=False)
    A.sort_indices()
    return A
