"""Sums of absolute values by row and by column, in one pass over the matrix."""

from __future__ import annotations

from mxpeak.kernels.host.jit import INT, MATRIX, VECTOR, jit
from mxpeak.kernels.host.native import column


@jit(fastmath={"contract", "reassoc"})
def _abs_sum(a):
    """Σ |a_i|; reassociation lets it vectorize, and only tightens the bound n·u."""
    total = 0.0
    for i in range(a.shape[0]):
        total += abs(a[i])
    return total


@jit(INT, INT, MATRIX, MATRIX, VECTOR)
def abs_sums(tid, threads, A, by_row, by_column):
    """by_column[j] = Σ_i |a_ij|, and by_row[i, tid] the part of Σ_j |a_ij| that thread tid's columns make."""
    m, n = A.shape
    mine = column(by_row, tid, 0, m)
    for i in range(m):
        mine[i] = 0.0
    for j in range(n * tid // threads, n * (tid + 1) // threads):
        a = column(A, j, 0, m)
        by_column[j] = _abs_sum(a)
        for i in range(m):
            mine[i] += abs(a[i])
