"""Compute one norm of a small general matrix, without the tables, copies and threads of `norm_pass`.

For a small matrix, the tables, copies and threads take more time than the norm. Segments are processed by the same
code as in `norm_pass`. If the result is NEEDS_FULL_PASS, the caller calls `norm_pass`.
"""

from __future__ import annotations

import math

import numpy as np

from mxpeak.kernels.host.engine.jit import inner, jit
from mxpeak.kernels.host.engine.vector_ir import float_of, vector_at
from mxpeak.kernels.host.norms.magnitude import ordered
from mxpeak.kernels.host.norms.segments import (
    ACROSS,
    ALONG,
    COLUMNS,
    MAX,
    ROWS,
    SEGMENT,
    SQUARES,
    Accumulators,
    four_lines,
    one_line,
)

#: The result for a matrix without contiguous lines, with many short lines, or with squares outside the range of fp64.
NEEDS_FULL_PASS = -1.0
#: With more than MANY lines of fewer than SHORT entries, this code takes longer than waking the threads.
SHORT, MANY = 64, 1024


@jit(allocates=True)
def small_norm(A, want):
    """Return a norm of A, or NEEDS_FULL_PASS if this function cannot compute the norm quickly or accurately.

    `want` is MAX (max norm), ROWS (inf norm), COLUMNS (one norm) or SQUARES (Frobenius norm).
    """
    m, n = A.shape
    if m == 0 or n == 0:
        return 0.0
    turned = A.strides[1] != A.itemsize or (m > n and A.strides[0] == A.itemsize)
    if turned and A.strides[0] != A.itemsize:
        return NEEDS_FULL_PASS
    lines, length, stride = (n, m, A.strides[1]) if turned else (m, n, A.strides[0])
    if length < SHORT and lines > MANY and want & (ROWS | COLUMNS):
        return NEEDS_FULL_PASS
    by_line = want
    if want & (MAX | SQUARES) and stride == length * A.itemsize:
        lines, length = 1, lines * length  # an array without gaps is processed as one line
    if want & (ROWS | COLUMNS):
        by_line = ALONG if (want == COLUMNS) == turned else ACROSS
    address, results = np.int64(A.ctypes.data), Accumulators(np.zeros(1, np.int64), np.zeros(3), np.empty(SEGMENT))
    if by_line == ACROSS:
        return _across(A, address, lines, length, stride, results)
    for line in range(lines):
        total = 0.0
        for s in range(0, length, SEGMENT):
            a = vector_at(address + line * stride + s * A.itemsize, min(SEGMENT, length - s), A)
            total += one_line(by_line, a, results)
        if by_line == ALONG:
            results.tops[0] = max(results.tops[0], ordered(total))
    if by_line != SQUARES:
        return float_of(np.uint64(results.tops[0]))
    squares = results.squares
    return math.sqrt(squares[0]) if squares[1] == 0.0 and squares[2] == 0.0 else NEEDS_FULL_PASS


@inner(allocates=True)
def _across(A, address, lines, length, stride, results):
    """Return the largest sum of absolute values across lines, in one pass over A."""
    sums, zeros = np.zeros(length), np.zeros(min(length, SEGMENT), A.dtype)
    for line in range(0, lines, 4):
        for s in range(0, length, SEGMENT):
            size, at = min(SEGMENT, length - s), address + line * stride + s * A.itemsize
            a = vector_at(at, size, A)
            b = vector_at(at + stride, size, A) if line + 1 < lines else zeros[:size]
            c = vector_at(at + 2 * stride, size, A) if line + 2 < lines else zeros[:size]
            d = vector_at(at + 3 * stride, size, A) if line + 3 < lines else zeros[:size]
            four_lines(ACROSS, a, b, c, d, sums[s : s + size], results)
    top = np.int64(0)
    for j in range(length):
        top = max(top, ordered(sums[j]))
    return float_of(np.uint64(top))
