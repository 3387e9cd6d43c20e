"""Gauss–Seidel in the natural order over compressed rows with 32-bit columns, on several threads.

L and U share one array of values and one of columns. These arrays contain first the entries of L, row by row with
in_lower[i] entries in row i, and then the entries of U, row by row with in_upper[i] entries. The table of units stores
the first row of each unit and the first entries of the unit in each part. `schedule` assigns the units to threads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mxpeak.kernels.host.engine.jit import inner, jit
from mxpeak.kernels.host.engine.vector_ir import prefetch_read
from mxpeak.kernels.host.sparse import chunk_format
from mxpeak.kernels.host.sparse.natural.schedule import publish_sometimes, wait
from mxpeak.kernels.host.sparse.slot_sums import widened_value

#: Columns of the table of units: first row, first entry of L and first entry of U.
ROW, LOWER, UPPER = 0, 1, 2
#: Rows of a unit. A unit with at least FEW rows ends before a row that needs no row of the unit (the first row of a
#: mesh's plane). A unit with at least MIN_ROWS rows ends before a row that does not need the previous row (the first
#: row of a line). Any unit ends after MAX_ROWS rows.
FEW, MIN_ROWS, MAX_ROWS = 12, 48, 160
#: Prefetch distance in entries. A product of 64^3 rows on a core of an Intel Xeon has these rates in GFLOP/s:
#:
#:     distance   none         256          512
#:     fp64       1.6          2.7          2.7
#:     bf16       1.3 to 1.8   4.0 to 4.4   4.5 to 4.7
AHEAD = 512
#: Prefetch distance in rows if only some rows are read.
ROWS_AHEAD = 6


class CsrColumns(NamedTuple):
    """The table of units, the number of entries of L and of U in each row, and the column of each entry."""

    units: Any
    in_lower: Any
    in_upper: Any
    columns: Any

    @property
    def lower(self) -> int:
        """Return the number of stored values of L."""
        return int(self.units[-1, LOWER])

    @property
    def upper(self) -> int:
        """Return the number of stored values of U."""
        return int(self.units[-1, UPPER]) - self.lower


class CsrMatrix(NamedTuple):
    """A matrix in compressed rows, for compiled code: `CsrColumns`, the values of L and U, and the diagonal."""

    units: Any
    in_lower: Any
    in_upper: Any
    columns: Any
    values: Any
    diagonal: Any


class RowStarts(NamedTuple):
    """A subset of rows, and the index of the first entry of each row in L and in U."""

    rows: Any
    lower: Any
    upper: Any


@inner(fastmath={"contract"}, inline=True)
def sum_of(first, end, columns, values, x):
    """Return Σ a_ij x_j over the entries first … end-1, computed as four sums whose additions overlap."""
    s0 = s1 = s2 = s3 = x.dtype.type(0)
    k, last4 = np.uint64(first), np.uint64(first + (end - first) // 4 * 4)
    while k < last4:
        s0 += widened_value(values[k], s0) * x[np.uint32(columns[k])]
        s1 += widened_value(values[k + np.uint64(1)], s1) * x[np.uint32(columns[k + np.uint64(1)])]
        s2 += widened_value(values[k + np.uint64(2)], s2) * x[np.uint32(columns[k + np.uint64(2)])]
        s3 += widened_value(values[k + np.uint64(3)], s3) * x[np.uint32(columns[k + np.uint64(3)])]
        k += np.uint64(4)
    while k < np.uint64(end):
        s0 += widened_value(values[k], s0) * x[np.uint32(columns[k])]
        k += np.uint64(1)
    return (s0 + s1) + (s2 + s3)


@inner(fastmath={"contract"}, inline=True)
def _forward(i, lower, upper, A, b, x, keep, from_zero):
    """Compute x_i = (b_i - Σ_L a_ij x_j - Σ_U a_ij x_j) / a_ii for one row of a forward sweep.

    The entries are lower[0] … lower[1]-1 and upper[0] … upper[1]-1. The last entry of L is added last, because its x_j
    was computed last. If from_zero, U is omitted. Unless `keep` is empty, the function stores keep_i = b_i - Σ_L a_ij
    x_j.
    """
    (l0, l1), (u0, u1) = lower, upper
    reciprocal = x.dtype.type(1) / A.diagonal[i]  # computed in parallel with the sums
    last = max(l0, l1 - 1)
    remainder = b[i] - sum_of(l0, last, A.columns, A.values, x)
    after = x.dtype.type(0) if from_zero else sum_of(u0, u1, A.columns, A.values, x)
    a, youngest = x.dtype.type(0), x.dtype.type(0)
    if last < l1:
        a, youngest = widened_value(A.values[np.uint64(last)], a), x[np.uint32(A.columns[np.uint64(last)])]
    if keep.shape[0] > 0:
        keep[i] = remainder - a * youngest
    x[i] = (remainder - after - a * youngest) * reciprocal


@inner(fastmath={"contract"}, inline=True)
def _backward(i, u0, u1, A, keep, x):
    """Compute x_i = (keep_i - Σ_U a_ij x_j) / a_ii for one row of a backward sweep.

    The entries of U are u0 … u1-1. The first entry is added last, because its x_j was computed last.
    """
    one = x.dtype.type(1)
    reciprocal = one / A.diagonal[i]
    second = min(u1, u0 + 1)
    remainder = keep[i] - sum_of(second, u1, A.columns, A.values, x)
    if u0 < second:
        remainder -= widened_value(A.values[np.uint64(u0)], one) * x[np.uint32(A.columns[np.uint64(u0)])]
    x[i] = remainder * reciprocal


@inner(inline=True)
def prefetch(a, first, end):
    """Prefetch the cache lines of a[first:end]. The range may be outside the array."""
    at, end_at = np.int64(a.ctypes.data) + a.itemsize * first, np.int64(a.ctypes.data) + a.itemsize * end
    while at < end_at:
        prefetch_read(at)
        at += 64


@inner(inline=True)
def _prefetch_entries(A, first, end):
    """Prefetch the columns and values of the entries first … end-1."""
    prefetch(A.columns, first, end)
    prefetch(A.values, first, end)


@jit(fastmath={"contract"})
def sweep_forward(tid, threads, schedule, A, b, x, keep, from_zero):
    """Solve (D + L) x = b - U x by a forward sweep over this thread's units of a schedule.

    If `from_zero`, U x is omitted. Unless `keep` is empty, the function stores keep_i = b_i - Σ_L a_ij x_j.
    """
    owner = schedule.owner
    for u in range(schedule.first, schedule.end):
        if threads > 1:
            if owner[u] != tid:
                continue
            wait(tid, threads, schedule, u, u)
        l, h = A.units[u, LOWER], A.units[u, UPPER]
        for i in range(np.uint64(A.units[u, ROW]), np.uint64(A.units[u + 1, ROW])):
            l1, h1 = l + np.int64(A.in_lower[i]), h + np.int64(A.in_upper[i])
            _prefetch_entries(A, l + AHEAD, l1 + AHEAD)
            if not from_zero:
                _prefetch_entries(A, h + AHEAD, h1 + AHEAD)
            _forward(i, (l, l1), (h, h1), A, b, x, keep, from_zero)
            l, h = l1, h1
        if threads > 1:
            publish_sometimes(schedule, tid, u + 1, u + 1 == schedule.end or owner[u + 1] != tid)


@jit(fastmath={"contract"})
def sweep_backward(tid, threads, schedule, A, keep, x):
    """Solve (D + U) x = keep by a backward sweep over this thread's units of a schedule.

    The forward sweep has stored keep_i = b_i - Σ_L a_ij x_j.
    """
    owner, count = schedule.owner, schedule.owner.shape[0]
    for v in range(count - schedule.end, count - schedule.first):
        u = count - 1 - v
        if threads > 1:
            if owner[u] != tid:
                continue
            wait(tid, threads, schedule, u, v)
        h, row0, row1 = A.units[u + 1, UPPER], A.units[u, ROW], A.units[u + 1, ROW]
        for back in range(row1 - row0):
            i = np.uint64(row1 - 1 - back)
            h0 = h - np.int64(A.in_upper[i])
            _prefetch_entries(A, h0 - AHEAD, h - AHEAD)
            _backward(i, h0, h, A, keep, x)
            h = h0
        if threads > 1:
            publish_sometimes(schedule, tid, v + 1, u == schedule.first or owner[u - 1] != tid)


@jit(fastmath={"contract"})
def multiply(tid, threads, A, x, y):
    """Compute y = (L + D + U) x for this thread's units."""
    count = A.units.shape[0] - 1
    for u in range(count * tid // threads, count * (tid + 1) // threads):
        l, h = A.units[u, LOWER], A.units[u, UPPER]
        for i in range(np.uint64(A.units[u, ROW]), np.uint64(A.units[u + 1, ROW])):
            l1, h1 = l + np.int64(A.in_lower[i]), h + np.int64(A.in_upper[i])
            _prefetch_entries(A, l + AHEAD, l1 + AHEAD)
            _prefetch_entries(A, h + AHEAD, h1 + AHEAD)
            Lx, Ux = sum_of(l, l1, A.columns, A.values, x), sum_of(h, h1, A.columns, A.values, x)
            y[i] = Lx + Ux + A.diagonal[i] * x[i]
            l, h = l1, h1


@jit(fastmath={"contract"})
def residual(tid, threads, at, A, b, x, keep, r, parts):
    """Compute the residual r at this thread's share of the rows `at.rows`.

    The residual of row at.rows[k] is stored in r[k]. `parts` selects the formula:

    BOTH    r = b - (L + D + U) x
    UPPER   r = -U x              after a sweep from zero, (D + L) x = b
    LOWER   r = b - keep - L x    after a backward sweep, (D + U) x = keep
    """
    count = at.rows.shape[0]
    for k in range(count * tid // threads, count * (tid + 1) // threads):
        i = np.uint64(at.rows[k])
        l, h = at.lower[k], at.upper[k]
        if k + ROWS_AHEAD < count:
            soon = np.uint64(at.rows[k + ROWS_AHEAD])
            if parts & chunk_format.LOWER:
                l1 = at.lower[k + ROWS_AHEAD]
                _prefetch_entries(A, l1, l1 + np.int64(A.in_lower[soon]))
            if parts & chunk_format.UPPER:
                h1 = at.upper[k + ROWS_AHEAD]
                _prefetch_entries(A, h1, h1 + np.int64(A.in_upper[soon]))
        before = after = x.dtype.type(0)
        if parts & chunk_format.LOWER:
            before = sum_of(l, l + np.int64(A.in_lower[i]), A.columns, A.values, x)
        if parts & chunk_format.UPPER:
            after = sum_of(h, h + np.int64(A.in_upper[i]), A.columns, A.values, x)
        if parts == chunk_format.UPPER:
            r[k] = -after
        elif parts == chunk_format.LOWER:
            r[k] = b[i] - keep[i] - before
        else:
            r[k] = b[i] - A.diagonal[i] * x[i] - before - after


@jit()
def fill_parts(tid, threads, rows, data, packed, values):
    """Store the columns, in the new order, and the values of L and U for this thread's units.

    `packed` is a `CsrColumns`.
    """
    new_to_old, old_to_new, indptr, indices = rows
    n, count = new_to_old.shape[0], packed.units.shape[0] - 1
    for u in range(count * tid // threads, count * (tid + 1) // threads):
        l, h = packed.units[u, LOWER], packed.units[u, UPPER]
        for r in range(packed.units[u, ROW], packed.units[u + 1, ROW]):
            i = new_to_old[r]
            for k in range(indptr[i], indptr[i + 1]):
                j = indices[k]
                if j < n and old_to_new[j] < r:
                    packed.columns[l], values[l] = old_to_new[j], data[k]
                    l += 1
                elif j < n and old_to_new[j] > r:
                    packed.columns[h], values[h] = old_to_new[j], data[k]
                    h += 1


@jit()
def cut_units(lower, upper, youngest, units):
    """Divide the rows into units, store the table of units, and return the number of units.

    The last row of the table marks the end of all rows.
    """
    n, count, rows, l, h = lower.shape[0], 0, 0, 0, 0
    for r in range(n):
        alone, new_line = youngest[r] < r - rows, youngest[r] != r - 1
        if r == 0 or rows == MAX_ROWS or (rows >= MIN_ROWS and new_line) or (rows >= FEW and alone):
            units[count, ROW], units[count, LOWER], units[count, UPPER] = r, l, h
            count += 1
            rows = 0
        rows += 1
        l += lower[r]
        h += upper[r]
    units[count, ROW], units[count, LOWER], units[count, UPPER] = n, l, h
    return count
