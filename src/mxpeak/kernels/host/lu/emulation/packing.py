"""Scale the operands of emulated products, and pack their bounds and residues in the layout of the tiles."""

from __future__ import annotations

import numpy as np
from numba import types

from mxpeak.kernels.contract.emulation import TINY
from mxpeak.kernels.host.engine.jit import INT, INTEGERS, MATRIX, VECTOR, inner, jit
from mxpeak.kernels.host.engine.matrix_engines import COLUMNS, ROWS, STEP_BYTES
from mxpeak.kernels.host.engine.vector_ir import address_of, nearest, row, vector_at
from mxpeak.kernels.host.lu.emulation.residue_ir import DIGIT, DIGITS, LANES, store_residues_of_digits
from mxpeak.kernels.host.lu.emulation.scaling import NOT_FINITE, power_of_two, scale_line
from mxpeak.kernels.host.lu.operands import STRIPS, rounded_bf16
from mxpeak.kernels.host.lu.row_moves import part_of

#: Columns of B that are packed together, so that complete cache lines are written.
SIDE_BY_SIDE = 16

LEFT, TABLE32 = types.int8[:, :, ::1], types.float32[:, ::1]


@jit(MATRIX, INTEGERS, VECTOR, VECTOR, later=True)
def scale_lines(entries, exponents, sums, squares):
    """Scale row-major lines in place, and compute the other members of `Lines`."""
    for i in range(entries.shape[0]):
        a = row(entries, i, 0, entries.shape[1])
        e = scale_line(a)
        exponents[i], total, square = e, 0.0, 0.0
        if e == NOT_FINITE:
            continue
        for j in range(a.shape[0]):
            total += abs(a[j])
            square += a[j] * a[j]
        sums[i], squares[i] = total, square


@inner(inline=True)
def _bound(x):
    """Return |x| as the bits of a bf16 number, at least TINY if x is not zero."""
    return rounded_bf16(max(np.float32(abs(x)), np.float32(TINY)) if x != 0.0 else np.float32(0.0))


@inner()
def aligned_part(tid, threads, count):
    """Return thread tid's contiguous part (begin, end) of the range 0:count, in multiples of SIDE_BY_SIDE."""
    begin, end = part_of(tid, threads, (count + SIDE_BY_SIDE - 1) // SIDE_BY_SIDE)
    return begin * SIDE_BY_SIDE, min(end * SIDE_BY_SIDE, count)


@inner()
def _store_row(line, left, first, i):
    """Store the bytes at address `line` as row i of the blocks that begin at `first`."""
    for step in range(left.shape[1] // ROWS):
        source, r = vector_at(line + step * STEP_BYTES, STEP_BYTES, np.int8), step * ROWS + i % ROWS
        target = vector_at(address_of(left[first + i // ROWS], r, 0), STEP_BYTES, np.int8)
        for j in range(STEP_BYTES):
            target[j] = source[j]


@inner()
def _store_columns(lines, count, right, first, j):
    """Store the words of `count` lines as adjacent columns, from j, of the strips that begin at `first`."""
    strip, c0 = first + j // COLUMNS, j % COLUMNS
    words = vector_at(address_of(lines, 0, 0), SIDE_BY_SIDE * right.shape[1], np.int32)
    for group in range(right.shape[1]):
        out = vector_at(address_of(right[strip], group, c0), count, np.int32)
        for c in range(count):
            out[c] = words[c * right.shape[1] + group]


@inner()
def _bounds_of(a, line):
    """Write the bounds of a line to the numbers at address `line`."""
    b = vector_at(line, a.shape[0], np.uint16)
    for j in range(a.shape[0]):
        b[j] = _bound(a[j])


@jit(INT, INT, MATRIX, MATRIX, LEFT, STRIPS, allocates=True, later=True)
def pack_bounds(tid, threads, rows, columns, left, right):
    """Pack the bounds of this thread's part of both operands as bf16 numbers."""
    lines = np.zeros((SIDE_BY_SIDE, 4 * right.shape[1]), np.int8)
    line = address_of(lines, 0, 0)
    i0, i1 = part_of(tid, threads, rows.shape[0])
    for i in range(i0, i1):
        _bounds_of(row(rows, i, 0, rows.shape[1]), line)
        _store_row(line, left, 0, i)
    j0, j1 = aligned_part(tid, threads, columns.shape[0])
    for j in range(j0, j1, SIDE_BY_SIDE):
        count = min(SIDE_BY_SIDE, j1 - j)
        for c in range(count):
            _bounds_of(row(columns, j + c, 0, columns.shape[1]), address_of(lines, c, 0))
        _store_columns(lines, count, right, 0, j)


@inner()
def _digits_of(a, scale, digits, parts):
    """Divide the integers nearest to scale·a_j into digits: Σ_d 2^(DIGIT·d) parts_d. The vector `a` is overwritten."""
    for j in range(a.shape[0]):
        a[j] = nearest(a[j] * scale)
    for d in range(digits - 1, -1, -1):
        part, unit, inverse = row(parts, d, 0, a.shape[0]), power_of_two(DIGIT * d), power_of_two(-DIGIT * d)
        for j in range(a.shape[0]):
            digit = nearest(a[j] * inverse)
            part[j] = np.float32(digit)
            a[j] -= digit * unit


@inner()
def _residues_of(parts, k, wide, constants, out):
    """Write the residues of k integers with these digits to the bytes at address `out`; k is padded."""
    row_bytes = np.int64(parts.strides[0])
    for j in range(0, k, LANES):
        store_residues_of_digits(address_of(parts, 0, j), row_bytes, wide, out + j, constants)


@jit(INT, INT, MATRIX, MATRIX, INTEGERS, INTEGERS, INT, TABLE32, LEFT, STRIPS, allocates=True, later=True)
def pack(tid, threads, rows, columns, p, q, digits, table, left, right):
    """Pack the residues of this thread's part of both operands; rows of `table` are those of `digit_residues`."""
    k, moduli, padded = rows.shape[1], table.shape[0], 4 * right.shape[1]
    parts = np.zeros((SIDE_BY_SIDE * DIGITS, padded), np.float32)
    lines, wide = np.empty((SIDE_BY_SIDE, padded), np.int8), digits == DIGITS
    blocks, strips = left.shape[0] // moduli, right.shape[0] // moduli
    i0, i1 = part_of(tid, threads, rows.shape[0])
    for i in range(i0, i1):
        _digits_of(row(rows, i, 0, k), power_of_two(p[i]), digits, parts)
        for t in range(moduli):
            _residues_of(parts, padded, wide, address_of(table, t, 0), address_of(lines, 0, 0))
            _store_row(address_of(lines, 0, 0), left, t * blocks, i)
    j0, j1 = aligned_part(tid, threads, columns.shape[0])
    for j in range(j0, j1, SIDE_BY_SIDE):
        count = min(SIDE_BY_SIDE, j1 - j)
        for c in range(count):
            _digits_of(row(columns, j + c, 0, k), power_of_two(q[j + c]), digits, parts[c * DIGITS : (c + 1) * DIGITS])
        for t in range(moduli):
            for c in range(count):
                of_column = parts[c * DIGITS : (c + 1) * DIGITS]
                _residues_of(of_column, padded, wide, address_of(table, t, 0), address_of(lines, c, 0))
            _store_columns(lines, count, right, t * strips, j)
