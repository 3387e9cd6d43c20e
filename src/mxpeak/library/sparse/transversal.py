"""Row permutations that bring large entries to the diagonal: a maximum transversal (Duff and Koster 2001).

Rows and columns are equilibrated and then scaled to a largest entry of 1 first.  Rows are matched with columns by
entries of size 1; if that does not match all, by entries down to a smaller and smaller size.  Rows whose diagonal entry
is large enough keep it if the others match without them, so that a symmetric pattern is not lost needlessly.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sparse
from scipy.sparse import csgraph

from mxpeak.library.inputs import Array
from mxpeak.library.outcomes import SingularMatrixError
from mxpeak.library.sparse.inputs import Csr, rows_of_entries
from mxpeak.library.sparse.scaling import balanced, equilibration

#: A diagonal entry is weak below this share of the largest entry of its column: elimination then takes another pivot.
WEAK = 0.01
#: Entries of at least 2^-bits, once scaled, are matched in the first attempt, the second, and so on.
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
    """Return a permutation of the rows with a nonzero diagonal; raise if A is structurally singular."""
    n, bits = A.shape[0], _bits(A)
    lines = rows_of_entries(bits)
    diagonal = lines == bits.indices
    for most in BITS:
        allowed = bits.data <= most
        keeps = np.zeros(n, bool)
        keeps[lines[allowed & diagonal]] = True
        matched = np.where(keeps, np.arange(n), _match(_only(bits, allowed & ~keeps[lines] & ~keeps[bits.indices])))
        if (matched < 0).any():
            matched = _match(_only(bits, allowed))
        if (matched >= 0).all():
            return matched
    rank = int(np.count_nonzero(matched >= 0))
    raise SingularMatrixError(
        f"A is structurally singular: at most {rank} of {n} rows can be matched with different columns, "
        "so A is singular for any values of its entries; check how A was built"
    )


def _bits(A: Csr) -> Csr:
    """Return -log2 |a_ij| of all entries but zeros, columns and then rows scaled to a largest entry of 1."""
    bits = _only(A if balanced(A) else equilibration(A).matrix(A), A.data != 0)
    bits.data = -np.log2(np.abs(bits.data))
    for lines, n in ((bits.indices, A.shape[1]), (rows_of_entries(bits), A.shape[0])):
        least = np.full(n, np.inf)
        np.minimum.at(least, lines, bits.data)
        bits.data -= least[lines]
    return bits


def _only(A: Csr, kept: Array) -> Csr:
    """Return the same matrix with some of its entries."""
    indptr = np.concatenate([[0], np.cumsum(kept)])[A.indptr]
    return sparse.csr_array((A.data[kept], A.indices[kept], indptr), shape=A.shape)


def _match(graph: Csr) -> Array:
    """Return the row matched with each column, -1 where there is none, for as many as possible.

    Dinic's algorithm for maximum flows: SciPy's maximum_bipartite_matching takes minutes for permuted meshes.
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
    """Return a matching that no entry can be added to: rows and columns with few free partners are matched first."""
    n = graph.shape[0]
    matched, free = np.full(n, -1), np.ones(n, bool)
    i, j = rows_of_entries(graph).astype(np.intp), graph.indices.astype(np.intp)
    while i.size:
        i_chosen, j_chosen = _one_each(i, j, np.bincount(j, minlength=n)[j])
        j_matched, i_matched = _one_each(j_chosen, i_chosen, np.bincount(i, minlength=n)[i_chosen])
        matched[j_matched] = i_matched
        free[i_matched] = False
        left = free[i] & (matched[j] < 0)
        i, j = i[left], j[left]
    return matched


def _one_each(lines: Array, partners: Array, size: Array) -> tuple[Array, Array]:
    """Return each line that occurs once, with its partner of the least size."""
    order = np.lexsort((size, lines))
    lines, partners = lines[order], partners[order]
    first = np.flatnonzero(np.diff(lines, prepend=-1))
    return lines[first], partners[first]
