"""Move rows of a row-major matrix (phase RS), in strips of columns that stay in the cache.

In a row-major matrix, each piece of a row is contiguous in memory.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mxpeak.kernels.host.engine.jit import INT, INTEGERS, MATRIX, MATRIX32, inner, jit
from mxpeak.kernels.host.engine.vector_ir import Vectors, address_of, column, row

#: Columns of a strip: the rows of two panels, restricted to a strip, fit into half a megabyte.
STRIP = 128
#: Rows and columns of a tile of a transposing copy: one cache line of fp64 entries.
TILE = 8

_I64 = ir.IntType(64)


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


@intrinsic
def _transpose_tile(typingctx, of, source, target):
    """Copy the TILE contiguous lines of a tile to the lines of the transposed tile, in vector registers.

    `source` and `target` are pairs of the first line's address and the distance in bytes of the lines.
    """
    pair = types.UniTuple(types.int64, 2)

    def codegen(context, builder, signature, args):
        vectors = Vectors(context, builder, of, TILE)
        (source, down), (target, across) = (cgutils.unpack_tuple(builder, given) for given in args[1:])
        places = [(builder.mul(down, _I64(i)), builder.mul(across, _I64(i))) for i in range(TILE)]
        lines = vectors.transposed([vectors.load(builder.add(source, place)) for place, _ in places])
        for line, (_, place) in zip(lines, places):
            vectors.store(line, builder.add(target, place))
        return context.get_dummy_value()

    return types.void(of, pair, pair), codegen


@inner()
def _copy_entries(source, target, r0, r1, c0, c1):
    """Copy the entries in rows r0:r1 and columns c0:c1."""
    for j in range(c0, c1):
        for i in range(r0, r1):
            target[i, j] = source[i, j]


@jit(INT, INT, MATRIX, MATRIX, also=(INT, INT, MATRIX32, MATRIX32), later=True)
def copy_block(tid, threads, source, target):
    """Copy this thread's rows of `source` to `target`, each row-major or column-major.

    Matrices of the same order are copied line by line. Otherwise, tiles are transposed in registers, which takes a
    third of the time of a copy by entries.
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
    by_rows = source.strides[1] == each and target.strides[0] == each
    if not by_rows and not (source.strides[0] == each and target.strides[1] == each):
        _copy_entries(source, target, r0, r1, 0, columns)
        return
    down, across = (source.strides[0], target.strides[1]) if by_rows else (source.strides[1], target.strides[0])
    inner_rows, inner_columns = r1 - (r1 - r0) % TILE, columns - columns % TILE
    for i in range(r0, inner_rows, TILE):
        for j in range(0, inner_columns, TILE):
            _transpose_tile(source, (address_of(source, i, j), down), (address_of(target, i, j), across))
        _copy_entries(source, target, i, i + TILE, inner_columns, columns)
    _copy_entries(source, target, inner_rows, r1, 0, columns)
