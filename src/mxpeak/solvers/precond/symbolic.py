"""Bound the fill-in of a factorization without its numbers, from the minimum-degree order of SuperLU.

When the first k vertices of a graph have been eliminated, the later neighbors of each connected part of the eliminated
vertices form a clique (Rose, Tarjan and Lueker 1976). This bounds column j < k of L. Below the diagonal, it has at most
one entry per later neighbor of its part, and one per vertex of the part between j and k.
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import scipy.sparse as sparse
from scipy.sparse import csgraph, linalg

from mxpeak.distributed.csr import Csr, rows_of_entries
from mxpeak.distributed.rows import Array

#: Fraction of the vertices that remain after each step of the bound, and the number of vertices that the last step
#: eliminates.
LEFT, LAST = 0.6, 32


def fill_in_order(A: Csr) -> float:
    """Return a bound of the number of entries in L and U for pivots on the diagonal, or infinity without an order."""
    position = _minimum_degree(A)
    return inf if position is None else _bound(A, position)


def _minimum_degree(A: Csr) -> Array | None:
    """Return the position of each column in the minimum-degree order of A + A^T, or None if SuperLU fails.

    An incomplete LU that drops all entries off the diagonal costs little more than its order.
    """
    unit = (rows_of_entries(A) == A.indices).astype(np.float32)
    try:
        ilu = linalg.spilu(
            sparse.csc_array((unit, A.indices, A.indptr), shape=A.shape),
            drop_tol=1.0,
            fill_factor=1.0,
            permc_spec="MMD_AT_PLUS_A",
            diag_pivot_thresh=0.0,
            panel_size=1,
            options={"SymmetricMode": True},
        )
    except (RuntimeError, MemoryError, ValueError):
        return None
    return np.asarray(ilu.perm_c)


def _bound(A: Csr, position: Array) -> float:
    """Return the bound for this position of each column.

    After each step, every connected part of the eliminated vertices is one vertex; these come first.
    """
    n, eliminated, parts, total = A.shape[0], 0, 0, float(A.shape[0])
    i, j = position[rows_of_entries(A)], position[A.indices]
    early, late = np.minimum(i, j), np.maximum(i, j)
    while eliminated < n:
        after = n - int(LEFT * (n - eliminated)) if n - eliminated > LAST else n
        first, inside = parts + after - eliminated, late < parts + after - eliminated
        graph = _pattern(early[inside], late[inside], first)
        count, part = csgraph.connected_components(graph, directed=False)
        columns = np.bincount(part[parts:], minlength=count).astype(np.float64)
        number = np.concatenate([part, np.arange(count, count + n - after, dtype=part.dtype)])
        outer = _pattern(number[early[~inside]], number[late[~inside]], count + n - after)
        neighbors = np.diff(outer.indptr)
        total += 2.0 * float(columns @ (neighbors[:count] + 0.5 * (columns - 1.0)))
        early, late = np.repeat(np.arange(neighbors.size, dtype=np.int32), neighbors), outer.indices
        parts, eliminated = count, after
    return total


def _pattern(i: Array, j: Array, n: int) -> Any:
    """Return the pattern of the edges (i, j) without duplicates."""
    return sparse.coo_array((np.ones(i.size, np.int8), (i, j)), shape=(n, n)).tocsr()
