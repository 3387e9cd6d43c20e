"""One norm of a small general matrix, without the tables, copies and threads that a large one is worth.

It takes the same segments through the same code as `norm_pass`; what that finds hard goes the long way.
"""

from __future__ import annotations

import math

import numpy as np

from mxpeak.kernels.host.engine.jit import inner, jit
from mxpeak.kernels.host.engine.vector_ir import float_of, vector_at
from mxpeak.kernels.host.norms.magnitude import ordered
from mxpeak.kernels.host.norms.segments import ACROSS, ALONG, COLUMNS, MAX, ROWS, SEGMENT, SQUARES, four_lines, one_line

#: The answer to a matrix that has no contiguous lines, or many short ones, or squares outside fp64's range.
NEEDS_FULL_PASS = -1.0
#: So many lines of so few entries take as long as the way to threads.
SHORT, MANY = 64, 1024


@jit(allocates=True)
def small_norm(A, want):
    """max, inf (ROWS), one (COLUMNS) or fro (SQUARES) of an array; THE_LONG_WAY where it takes more."""
    m, n = A.shape
    if m == 0 or n == 0:
        return 0.0
    turned = A.strides[1] != A.itemsize or (m > n and A.strides[0] == A.itemsize)
    if turned and A.strides[0] != A.itemsize:
        return NEEDS_FULL_PASS
    lines, length, stride = (n, m, A.strides[1]) if turned else (m, n, A.strides[0])
    if length < SHORT and lines > MANY and want & (ROWS | COLUMNS):
        return NEEDS_FULL_PASS
    asked = want
    if want & (MAX | SQUARES) and stride == length * A.itemsize:
        lines, length = 1, lines * length  # what has no gaps is one line
    if want & (ROWS | COLUMNS):
        asked = ALONG if (want == COLUMNS) == turned else ACROSS
    address, tops, squares, waste = np.int64(A.ctypes.data), np.zeros(1, np.int64), np.zeros(3), np.empty(SEGMENT)
    if asked == ACROSS:
        return _across(A, address, lines, length, stride, waste, tops, squares)
    for line in range(lines):
        total = 0.0
        for s in range(0, length, SEGMENT):
            a = vector_at(address + line * stride + s * A.itemsize, min(SEGMENT, length - s), A)
            total += one_line(asked, a, waste, tops, squares)
        if asked == ALONG:
            tops[0] = max(tops[0], ordered(total))
    if asked != SQUARES:
        return float_of(np.uint64(tops[0]))
    return math.sqrt(squares[0]) if squares[1] == 0.0 and squares[2] == 0.0 else NEEDS_FULL_PASS


@inner(allocates=True)
def _across(A, address, lines, length, stride, waste, tops, squares):
    """The largest of the sums across lines."""
    sums, zeros = np.zeros(length), np.zeros(min(length, SEGMENT), A.dtype)
    for line in range(0, lines, 4):
        for s in range(0, length, SEGMENT):
            size, at = min(SEGMENT, length - s), address + line * stride + s * A.itemsize
            a = vector_at(at, size, A)
            b = vector_at(at + stride, size, A) if line + 1 < lines else zeros[:size]
            c = vector_at(at + 2 * stride, size, A) if line + 2 < lines else zeros[:size]
            d = vector_at(at + 3 * stride, size, A) if line + 3 < lines else zeros[:size]
            four_lines(ACROSS, a, b, c, d, sums[s : s + size], waste[:size], tops, squares)
    top = np.int64(0)
    for j in range(length):
        top = max(top, ordered(sums[j]))
    return float_of(np.uint64(top))
