"""Move rows of a row-major matrix (phase RS), in strips of columns that stay in the cache.

In a row-major matrix, each piece of a row is contiguous in memory.
"""

from __future__ import annotations

import numpy as np

from mxpeak.kernels.host.engine.jit import INT, INTEGERS, MATRIX, MATRIX32, inner, jit
from mxpeak.kernels.host.engine.vector_ir import address_of, column, prefetch, prefetch_read, row

#: Columns of a strip: the rows of two panels, restricted to a strip, fit into half a megabyte.
STRIP = 128
#: Rows and columns of a tile of a transposing copy: one cache line of fp64 entries.
TILE = 8


@inner()
def part_of(tid, threads, count):
    """Return thread tid's contiguous part (begin, end) of the range 0:count."""
    return count * tid // threads, count * (tid + 1) // threads


@inner()
def _move(source, target):
    """Copy the vector `source` to `target`."""
    for c in range(target.shape[0]):
        target[c] = source[c]


@jit(INT, INT, MATRIX, INTEGERS, MATRIX, also=(INT, INT, MATRIX32, INTEGERS, MATRIX32), later=True)
def gather_rows(tid, threads, A, rows, out):
    """Copy A[rows[k], :] to out[k, :] for all k, in this thread's columns."""
    c0, c1 = part_of(tid, threads, out.shape[1])
    for k in range(rows.shape[0]):
        _move(row(A, rows[k], c0, c1), row(out, k, c0, c1))


@jit(INT, INT, MATRIX, INTEGERS, MATRIX, also=(INT, INT, MATRIX32, INTEGERS, MATRIX32), later=True)
def scatter_rows(tid, threads, source, rows, A):
    """Copy source[k, :] to A[rows[k], :] for all k, in this thread's columns."""
    c0, c1 = part_of(tid, threads, source.shape[1])
    for k in range(rows.shape[0]):
        _move(row(source, k, c0, c1), row(A, rows[k], c0, c1))


_MOVES = (INT, INTEGERS, INTEGERS, INTEGERS)


@jit(INT, INT, MATRIX, *_MOVES, also=(INT, INT, MATRIX32, *_MOVES), allocates=True, later=True)
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


@inner()
def _prefetch_tile(source, target, i, j):
    """Prefetch the cache lines of a tile at (i, j), where one matrix is row-major and the other column-major."""
    by_rows = source.strides[1] == source.itemsize
    for k in range(TILE):
        across, down = (i + k, j), (i, j + k)
        s, t = (across, down) if by_rows else (down, across)
        prefetch_read(address_of(source, s[0], s[1]))
        prefetch(address_of(target, t[0], t[1]))


@inner()
def _copy_entries(source, target, r0, r1, c0, c1):
    """Copy the entries in rows r0:r1 and columns c0:c1."""
    for j in range(c0, c1):
        for i in range(r0, r1):
            target[i, j] = source[i, j]


@jit(INT, INT, MATRIX, MATRIX, also=(INT, INT, MATRIX32, MATRIX32), later=True)
def copy_block(tid, threads, source, target):
    """Copy this thread's rows of `source` to `target`, each row-major or column-major.

    Matrices of the same order are copied line by line. Otherwise, the copy proceeds tile by tile, so that cache lines
    are reused, and prefetches the tile below.
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
    inner_rows, inner_columns = r1 - (r1 - r0) % TILE, columns - columns % TILE
    for i0 in range(r0, inner_rows, TILE):
        for j0 in range(0, inner_columns, TILE):
            _prefetch_tile(source, target, min(i0 + TILE, r1 - TILE), j0)
            for j in range(j0, j0 + TILE):
                for i in range(TILE):  # a fixed number of passes, which the compiler unrolls
                    target[i0 + i, j] = source[i0 + i, j]
        _copy_entries(source, target, i0, i0 + TILE, inner_columns, columns)
    _copy_entries(source, target, inner_rows, r1, 0, columns)
