"""Sums of absolute values by row and by column, in one pass over the matrix."""

from __future__ import annotations

from mxpeak.kernels.host.jit import INT, MATRIX, VECTOR, jit
from mxpeak.kernels.host.native import row


@jit(fastmath={"contract", "reassoc"})
def _abs_sum(a):
    """Σ |a_i|; reassociation lets it vectorize, and only tightens the bound n·u."""
    total = 0.0
    for i in range(a.shape[0]):
        total += abs(a[i])
    return total


@jit(INT, INT, MATRIX, VECTOR, MATRIX)
def abs_sums(tid, threads, A, by_row, by_column):
    """by_row[i] = Σ_j |a_ij|, and by_column[tid, j] the part of Σ_i |a_ij| that thread tid's rows make."""
    m, n = A.shape
    mine = row(by_column, tid, 0, n)
    for j in range(n):
        mine[j] = 0.0
    for i in range(m * tid // threads, m * (tid + 1) // threads):
        a = row(A, i, 0, n)
        by_row[i] = _abs_sum(a)
        for j in range(n):
            mine[j] += abs(a[j])
