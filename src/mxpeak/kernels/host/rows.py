"""Moving rows of a column-major matrix: column by column, each column's moves at once (phase RS of rocHPL §II)."""

from __future__ import annotations

import numpy as np

from mxpeak.kernels.host.jit import INT, INTEGERS, MATRIX, jit
from mxpeak.kernels.host.native import column


@jit()
def _part(tid, threads, columns):
    """The columns of thread tid: a contiguous share."""
    return columns * tid // threads, columns * (tid + 1) // threads


@jit(INT, INT, MATRIX, INTEGERS, MATRIX)
def gather_rows(tid, threads, A, rows, out):
    """out[k, :] = A[rows[k], :]."""
    c0, c1 = _part(tid, threads, out.shape[1])
    m, count = A.shape[0], rows.shape[0]
    for c in range(c0, c1):
        a, o = column(A, c, 0, m), column(out, c, 0, count)
        for k in range(count):
            o[k] = a[rows[k]]


@jit(INT, INT, MATRIX, INTEGERS, MATRIX)
def scatter_rows(tid, threads, source, rows, A):
    """A[rows[k], :] = source[k, :]."""
    c0, c1 = _part(tid, threads, source.shape[1])
    m, count = A.shape[0], rows.shape[0]
    for c in range(c0, c1):
        a, s = column(A, c, 0, m), column(source, c, 0, count)
        for k in range(count):
            a[rows[k]] = s[k]


@jit(INT, INT, MATRIX, INT, INTEGERS, INTEGERS, INTEGERS)
def permute_rows(tid, threads, A, block, sources, targets, block_rows):
    """A[block+i, :] = A[sources[i], :] and A[targets[t], :] = A[block+block_rows[t], :], as the rows were before."""
    c0, c1 = _part(tid, threads, A.shape[1])
    m, jb, outs = A.shape[0], sources.shape[0], targets.shape[0]
    incoming, outgoing = np.empty(jb, A.dtype), np.empty(outs, A.dtype)
    for c in range(c0, c1):
        a = column(A, c, 0, m)
        for i in range(jb):
            incoming[i] = a[sources[i]]
        for t in range(outs):
            outgoing[t] = a[block + block_rows[t]]
        for i in range(jb):
            a[block + i] = incoming[i]
        for t in range(outs):
            a[targets[t]] = outgoing[t]


@jit(INT, INT, MATRIX, MATRIX)
def copy_block(tid, threads, source, target):
    """target = source, both column-major blocks."""
    c0, c1 = _part(tid, threads, source.shape[1])
    m = source.shape[0]
    for c in range(c0, c1):
        s, t = column(source, c, 0, m), column(target, c, 0, m)
        for i in range(m):
            t[i] = s[i]
