"""Move rows of a row-major matrix (phase RS), in strips of columns that stay in the cache.

In a row-major matrix, each piece of a row is contiguous in memory.
"""

from __future__ import annotations

import numpy as np

from mxpeak.kernels.host.engine.jit import INT, INTEGERS, MATRIX, MATRIX32, inner, jit
from mxpeak.kernels.host.engine.vector_ir import column, row

#: Columns of a strip: the rows of two panels, restricted to a strip, fit into half a megabyte.
STRIP = 128


@inner()
def part_of(tid, threads, count):
    """Return thread tid's contiguous part (begin, end) of the range 0:count."""
    return count * tid // threads, count * (tid + 1) // threads


@inner()
def _move(source, target):
    """Copy the vector `source` to `target`."""
    for c in range(target.shape[0]):
        target[c] = source[c]


@jit(INT, INT, MATRIX, INTEGERS, MATRIX, also=(INT, INT, MATRIX32, INTEGERS, MATRIX32))
def gather_rows(tid, threads, A, rows, out):
    """Copy A[rows[k], :] to out[k, :] for all k, in this thread's columns."""
    c0, c1 = part_of(tid, threads, out.shape[1])
    for k in range(rows.shape[0]):
        _move(row(A, rows[k], c0, c1), row(out, k, c0, c1))


@jit(INT, INT, MATRIX, INTEGERS, MATRIX, also=(INT, INT, MATRIX32, INTEGERS, MATRIX32))
def scatter_rows(tid, threads, source, rows, A):
    """Copy source[k, :] to A[rows[k], :] for all k, in this thread's columns."""
    c0, c1 = part_of(tid, threads, source.shape[1])
    for k in range(rows.shape[0]):
        _move(row(source, k, c0, c1), row(A, rows[k], c0, c1))


_MOVES = (INT, INTEGERS, INTEGERS, INTEGERS)


@jit(INT, INT, MATRIX, *_MOVES, also=(INT, INT, MATRIX32, *_MOVES), allocates=True)
def permute_rows(tid, threads, A, block, sources, targets, block_rows):
    """Exchange rows between the block row and other rows of A, in this thread's columns.

    Row sources[i] is copied to row block + i, and row block + block_rows[t] to row targets[t]. All rows are read
    before any is written.
    """
    begin, end = part_of(tid, threads, A.shape[1])
    jb, outs = sources.shape[0], targets.shape[0]
    incoming, outgoing = np.empty((jb, STRIP), A.dtype), np.empty((outs, STRIP), A.dtype)
    for c0 in range(begin, end, STRIP):
        c1 = min(c0 + STRIP, end)
        for i in range(jb):
            _move(row(A, sources[i], c0, c1), row(incoming, i, 0, c1 - c0))
        for t in range(outs):
            _move(row(A, block + block_rows[t], c0, c1), row(outgoing, t, 0, c1 - c0))
        for i in range(jb):
            _move(row(incoming, i, 0, c1 - c0), row(A, block + i, c0, c1))
        for t in range(outs):
            _move(row(outgoing, t, 0, c1 - c0), row(A, targets[t], c0, c1))


@jit(INT, INT, MATRIX, MATRIX, also=(INT, INT, MATRIX32, MATRIX32))
def copy_block(tid, threads, source, target):
    """Copy this thread's rows of `source` to `target`, each row-major or column-major.

    Matrices of the same order are copied line by line. Otherwise, the copy proceeds tile by tile, so that cache lines
    are reused.
    """
    r0, r1 = part_of(tid, threads, source.shape[0])
    columns, each = source.shape[1], source.itemsize
    if source.strides[1] == each and target.strides[1] == each:
        for i in range(r0, r1):
            _move(row(source, i, 0, columns), row(target, i, 0, columns))
        return
    if source.strides[0] == each and target.strides[0] == each:
        for j in range(columns):
            _move(column(source, j, r0, r1), column(target, j, r0, r1))
        return
    tile = 8
    for i0 in range(r0, r1, tile):
        for j0 in range(0, columns, tile):
            for j in range(j0, min(j0 + tile, columns)):
                for i in range(i0, min(i0 + tile, r1)):
                    target[i, j] = source[i, j]
