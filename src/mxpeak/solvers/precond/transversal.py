"""Permute rows to bring large entries to the diagonal: a maximum transversal (Duff and Koster 2001).

Rows and columns are first equilibrated and then scaled to a largest entry of 1. Rows are matched with columns by
entries of size 1, and if that does not match all rows, by successively smaller entries. Rows with a large enough
diagonal entry keep it if the other rows can be matched without them, which preserves a symmetric pattern if possible.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sparse
from scipy.sparse import csgraph

from mxpeak.distributed.csr import Csr, kept_entries, rows_of_entries
from mxpeak.distributed.rows import Array
from mxpeak.errors import SingularError
from mxpeak.solvers.precond.equilibration import balanced, equilibrate

#: A diagonal entry is weak below this fraction of the largest entry of its column; elimination then uses another
#: pivot.
WEAK = 0.01
#: Entries of at least 2^-bits, after scaling, are matched in the first attempt, the second, and so on.
BITS = (0.0, 3.0, 10.0, np.inf)


def weak_diagonal(A: Csr) -> bool:
    """Return whether a diagonal entry is zero, or so small that elimination would choose another pivot."""
    diagonal = np.abs(A.diagonal())
    if not diagonal.all():
        return True
    largest = np.zeros(A.shape[1])
    np.maximum.at(largest, A.indices, np.abs(A.data))
    return bool((diagonal < WEAK * largest).any())


def rows_to_diagonal(A: Csr) -> Array:
    """Return a permutation of the rows with a nonzero diagonal; raise an error if A is structurally singular."""
    n, bits = A.shape[0], _bits(A)
    lines = rows_of_entries(bits)
    diagonal = lines == bits.indices
    for limit in BITS:
        allowed = bits.data <= limit
        keeps = np.zeros(n, bool)
        keeps[lines[allowed & diagonal]] = True
        matched = np.where(
            keeps, np.arange(n), _match(kept_entries(bits, allowed & ~keeps[lines] & ~keeps[bits.indices]))
        )
        if (matched < 0).any():
            matched = _match(kept_entries(bits, allowed))
        if (matched >= 0).all():
            return matched
    rank = int(np.count_nonzero(matched >= 0))
    raise SingularError(
        f"A is structurally singular: at most {rank} of {n} rows can be matched with different columns, "
        "so A is singular for any values of its entries; check how A was built"
    )


def _bits(A: Csr) -> Csr:
    """Return -log2 |a_ij| of all nonzeros after columns and then rows are scaled to a largest entry of 1."""
    bits = kept_entries(A if balanced(A) else equilibrate(A).matrix(A), A.data != 0)
    bits.data = -np.log2(np.abs(bits.data))
    for lines, n in ((bits.indices, A.shape[1]), (rows_of_entries(bits), A.shape[0])):
        least = np.full(n, np.inf)
        np.minimum.at(least, lines, bits.data)
        bits.data -= least[lines]
    return bits


def _match(graph: Csr) -> Array:
    """Return a maximum matching as the row of each column, or -1 for an unmatched column.

    The function uses Dinic's algorithm, because SciPy's maximum_bipartite_matching needs minutes for permuted meshes.
    """
    matched = _maximal(graph)
    n = matched.size
    rows, columns = np.unique(rows_of_entries(graph)), np.unique(graph.indices)
    if np.count_nonzero(matched >= 0) == min(rows.size, columns.size):
        return matched
    source, sink = 2 * n, 2 * n + 1
    tails = np.concatenate([np.full(rows.size, source), rows_of_entries(graph), n + columns])
    heads = np.concatenate([rows, n + graph.indices, np.full(columns.size, sink)])
    network = sparse.csr_array((np.ones(tails.size, np.int32), (tails, heads)), shape=(sink + 1, sink + 1))
    flow = csgraph.maximum_flow(network, source, sink, method="dinic").flow.tocoo()
    used = (flow.data > 0) & (flow.row < n)
    matched[:] = -1
    matched[flow.col[used] - n] = flow.row[used]
    return matched


def _maximal(graph: Csr) -> Array:
    """Return a maximal matching; rows and columns with few free partners are matched first."""
    n = graph.shape[0]
    matched, free = np.full(n, -1), np.ones(n, bool)
    i, j = rows_of_entries(graph).astype(np.intp), graph.indices.astype(np.intp)
    while i.size:
        i_chosen, j_chosen = _smallest_partners(i, j, np.bincount(j, minlength=n)[j])
        j_matched, i_matched = _smallest_partners(j_chosen, i_chosen, np.bincount(i, minlength=n)[i_chosen])
        matched[j_matched] = i_matched
        free[i_matched] = False
        unmatched = free[i] & (matched[j] < 0)
        i, j = i[unmatched], j[unmatched]
    return matched


def _smallest_partners(lines: Array, partners: Array, size: Array) -> tuple[Array, Array]:
    """Return the distinct rows or columns in `lines`, and the partner of each that has the smallest size."""
    order = np.lexsort((size, lines))
    lines, partners = lines[order], partners[order]
    first = np.flatnonzero(np.diff(lines, prepend=-1))
    return lines[first], partners[first]
