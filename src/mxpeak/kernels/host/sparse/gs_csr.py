"""Gauss-Seidel row after row over compressed rows with 32-bit columns, on several threads, in compiled code.

L and U lie one after the other in one array of values and one of columns, each by rows: first what L has, lower[i]
entries of row i, then what U has, upper[i] of them.  A unit is some successive rows, where the rows of it and of each
part begin is known.  A unit belongs to one thread, which takes its units in the order of the sweep and says how far it
has come; before a unit it waits for the units of others that this one has entries in (Park et al., Sparsifying
Synchronization for High-Performance Shared-Memory Sparse Triangular Solver, ISC 2014).  The pattern has to be
symmetric: so nobody overwrites what is still to be read.  Whoever computes a row, its sums are the same.
"""

from __future__ import annotations

import numpy as np

from mxpeak.kernels.host.engine.jit import inner, jit
from mxpeak.kernels.host.engine.vector_ir import SPINS, atomic_load, atomic_store, call_at, piece, prefetch_read
from mxpeak.kernels.host.sparse import gs_colored as sweep
from mxpeak.kernels.host.sparse.slot_sums import widened_value

#: Columns of the table of units: first row, where its entries of L begin, and those of U.
ROW, LOWER, UPPER = 0, 1, 2
#: Numbers from one thread's progress to the next one's: each has a cache line.
APART = 8
#: Rows of a unit.  It ends before a row that needs none of it (the first one of a mesh's plane), if it has FEW; before
#: one that does not need the row before (the first one of a line), if it has LEAST; and at MOST anyhow.
FEW, LEAST, MOST = 12, 48, 160
#: How many entries ahead columns and values are asked for.  A product of 64^3 rows on a core of an Intel Xeon: in fp64
#: 1.6 GFLOP/s without, 2.7 with 256 or 512, in bf16 1.3 to 1.8 without, 4.0 to 4.4 with 256, 4.5 to 4.7 with more.
AHEAD = 512
#: And how many rows ahead, where only some rows are read.
ROWS_AHEAD = 6
#: After how many units a thread says how far it has come, which others have to fetch from its core.  On a Xeon 1 and 2
#: are equal over packed values of 64^3 and 104^3, with 1 sweeps over fp32 of 32^3 take 7 to 11 % longer.
EVERY = 2
#: What it costs to read the x of another thread's unit, which is in its core's cache, as a share of that unit's time.
#: On a Xeon two threads that share every plane, instead of taking planes in turn, sweep over packed bf16 of 192^3 in
#: 0.71 of the time, over fp32 of 64^3 in 0.9; at 32^3, where a plane has 7 units, in 1.1 of it.
ELSEWHERE = 1 / 32


@inner(fastmath={"contract"}, inline=True)
def sum_of(first, end, columns, values, x):
    """Σ a_ij x_j over some entries, in four sums: one would wait for itself."""
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
def _forward(i, l0, l1, u0, u1, columns, values, diagonal, b, x, keep, from_zero):
    """x_i = (b_i - Σ_L a_ij x_j - Σ_U a_ij x_j) / a_ii, the last entry of L at the end: its x_j is the youngest."""
    one = x.dtype.type(1)
    reciprocal = one / diagonal[i]  # while the sums are on their way
    known = max(l0, l1 - 1)
    left = b[i] - sum_of(l0, known, columns, values, x)
    after = x.dtype.type(0) if from_zero else sum_of(u0, u1, columns, values, x)
    a, youngest = x.dtype.type(0), x.dtype.type(0)
    if known < l1:
        a, youngest = widened_value(values[np.uint64(known)], a), x[np.uint32(columns[np.uint64(known)])]
    if keep.shape[0] > 0:
        keep[i] = left - a * youngest
    x[i] = (left - after - a * youngest) * reciprocal


@inner(fastmath={"contract"}, inline=True)
def _backward(i, l0, l1, u0, u1, columns, values, diagonal, b, x, kept):
    """The same from the last row on, the first entry of U at the end; what was kept has L x subtracted already."""
    one = x.dtype.type(1)
    reciprocal = one / diagonal[i]
    known = min(u1, u0 + 1)
    left = b[i] - sum_of(known, u1, columns, values, x)
    if not kept:
        left -= sum_of(l0, l1, columns, values, x)
    if u0 < known:
        left -= widened_value(values[np.uint64(u0)], one) * x[np.uint32(columns[np.uint64(u0)])]
    x[i] = left * reciprocal


@inner(inline=True)
def ask_for(a, first, end):
    """Ask for the cache lines of a[first:end], which may lie outside of a."""
    at, end_at = np.int64(a.ctypes.data) + a.itemsize * first, np.int64(a.ctypes.data) + a.itemsize * end
    while at < end_at:
        prefetch_read(at)
        at += 64


@inner()
def wait(tid, threads, progress, needs, u, done, yield_address):
    """Return once every other thread has come as far as unit u needs; say first what this one has done by then."""
    for s in range(threads):
        need, spins = np.int64(needs[u, s]), 0
        while s != tid and need > 0 and atomic_load(progress, s * APART) < need:
            if spins == 0:
                say(progress, tid, done)
            spins += 1
            if spins > SPINS:
                call_at(yield_address)


@inner(inline=True)
def say(progress, tid, done):
    """Tell the others how far this thread has come."""
    atomic_store(progress, tid * APART, done)


@inner(inline=True)
def say_in_turn(progress, tid, done, last):
    """The same after EVERY units, and after the last one before another thread's."""
    if last or done % EVERY == 0:
        say(progress, tid, done)


@jit(fastmath={"contract"})
def sweep_forward(
    tid,
    threads,
    progress,
    yield_address,
    first,
    end,
    owner,
    needs,
    units,
    lower,
    upper,
    columns,
    values,
    diagonal,
    b,
    x,
    keep,
    from_zero,
):
    """Units first … end-1 of a sweep; progress is the number of the unit that comes next, needs likewise.

    Where keep is not empty, keep_i = b_i - Σ_L a_ij x_j.
    """
    for u in range(first, end):
        if threads > 1:
            if owner[u] != tid:
                continue
            wait(tid, threads, progress, needs, u, u, yield_address)
        l, h = units[u, LOWER], units[u, UPPER]
        for i in range(np.uint64(units[u, ROW]), np.uint64(units[u + 1, ROW])):
            l1, h1 = l + np.int64(lower[i]), h + np.int64(upper[i])
            ask_for(columns, l + AHEAD, l1 + AHEAD)
            ask_for(values, l + AHEAD, l1 + AHEAD)
            if not from_zero:
                ask_for(columns, h + AHEAD, h1 + AHEAD)
                ask_for(values, h + AHEAD, h1 + AHEAD)
            _forward(i, l, l1, h, h1, columns, values, diagonal, b, x, keep, from_zero)
            l, h = l1, h1
        if threads > 1:
            say_in_turn(progress, tid, u + 1, u + 1 == end or owner[u + 1] != tid)


@jit(fastmath={"contract"})
def sweep_backward(
    tid,
    threads,
    progress,
    yield_address,
    first,
    end,
    owner,
    needs,
    units,
    lower,
    upper,
    columns,
    values,
    diagonal,
    b,
    x,
    kept,
):
    """Units end-1 … first; progress is how many units from the last one on are behind this thread, needs likewise."""
    count = owner.shape[0]
    for v in range(count - end, count - first):
        u = count - 1 - v
        if threads > 1:
            if owner[u] != tid:
                continue
            wait(tid, threads, progress, needs, u, v, yield_address)
        l, h = units[u + 1, LOWER], units[u + 1, UPPER]
        row0, row1 = units[u, ROW], units[u + 1, ROW]
        for back in range(row1 - row0):
            i = np.uint64(row1 - 1 - back)
            l0, h0 = l - np.int64(lower[i]), h - np.int64(upper[i])
            ask_for(columns, h0 - AHEAD, h - AHEAD)
            ask_for(values, h0 - AHEAD, h - AHEAD)
            if not kept:
                ask_for(columns, l0 - AHEAD, l - AHEAD)
                ask_for(values, l0 - AHEAD, l - AHEAD)
            _backward(i, l0, l, h0, h, columns, values, diagonal, b, x, kept)
            l, h = l0, h0
        if threads > 1:
            say_in_turn(progress, tid, v + 1, u == first or owner[u - 1] != tid)


@jit(fastmath={"contract"})
def multiply(tid, threads, units, lower, upper, columns, values, diagonal, x, y):
    """y = (L + D + U) x."""
    count = units.shape[0] - 1
    for u in range(count * tid // threads, count * (tid + 1) // threads):
        l, h = units[u, LOWER], units[u, UPPER]
        for i in range(np.uint64(units[u, ROW]), np.uint64(units[u + 1, ROW])):
            l1, h1 = l + np.int64(lower[i]), h + np.int64(upper[i])
            ask_for(columns, l + AHEAD, l1 + AHEAD)
            ask_for(values, l + AHEAD, l1 + AHEAD)
            ask_for(columns, h + AHEAD, h1 + AHEAD)
            ask_for(values, h + AHEAD, h1 + AHEAD)
            y[i] = sum_of(l, l1, columns, values, x) + sum_of(h, h1, columns, values, x) + diagonal[i] * x[i]
            l, h = l1, h1


@jit(fastmath={"contract"})
def residual(
    tid, threads, rows, lower_first, upper_first, in_lower, in_upper, columns, values, diagonal, b, x, keep, r, parts
):
    """r_k = (b - (L + D + U) x)[rows_k]; with UPPER alone -U x, with LOWER alone b - keep - L x: see `sparse_sweep`."""
    count = rows.shape[0]
    for k in range(count * tid // threads, count * (tid + 1) // threads):
        i = np.uint64(rows[k])
        l, h = lower_first[k], upper_first[k]
        if k + ROWS_AHEAD < count:
            soon = np.uint64(rows[k + ROWS_AHEAD])
            if parts & sweep.LOWER:
                l1, l2 = lower_first[k + ROWS_AHEAD], lower_first[k + ROWS_AHEAD] + np.int64(in_lower[soon])
                ask_for(columns, l1, l2)
                ask_for(values, l1, l2)
            if parts & sweep.UPPER:
                h1, h2 = upper_first[k + ROWS_AHEAD], upper_first[k + ROWS_AHEAD] + np.int64(in_upper[soon])
                ask_for(columns, h1, h2)
                ask_for(values, h1, h2)
        before = after = x.dtype.type(0)
        if parts & sweep.LOWER:
            before = sum_of(l, l + np.int64(in_lower[i]), columns, values, x)
        if parts & sweep.UPPER:
            after = sum_of(h, h + np.int64(in_upper[i]), columns, values, x)
        if parts == sweep.UPPER:
            r[k] = -after
        elif parts == sweep.LOWER:
            r[k] = b[i] - keep[i] - before
        else:
            r[k] = b[i] - diagonal[i] * x[i] - before - after


# --- set-up -----------------------------------------------------------------------------------------------------


@jit()
def count_parts(tid, threads, new_to_old, old_to_new, indptr, indices, lower, upper, youngest):
    """lower[r], upper[r] = entries of L and of U in row r of the new order; youngest[r] = the last row that L has."""
    n = new_to_old.shape[0]
    for r in range(n * tid // threads, n * (tid + 1) // threads):
        i, before, after, last = new_to_old[r], 0, 0, np.int32(-1)
        row = piece(indices, indptr[i], indptr[i + 1] - indptr[i])
        for k in range(row.shape[0]):  # without branches, so in vector instructions
            column = old_to_new[np.uint32(row[k])] if row[k] < n else np.int32(r)
            before += column < r
            after += column > r
            last = max(last, column if column < r else np.int32(-1))
        lower[r], upper[r], youngest[r] = before, after, last


@jit()
def fill_parts(tid, threads, new_to_old, old_to_new, indptr, indices, data, units, lower, upper, columns, values):
    """Columns, in the new order, and values of L and U."""
    n, count = new_to_old.shape[0], units.shape[0] - 1
    for u in range(count * tid // threads, count * (tid + 1) // threads):
        l, h = units[u, LOWER], units[u, UPPER]
        for r in range(units[u, ROW], units[u + 1, ROW]):
            i = new_to_old[r]
            for k in range(indptr[i], indptr[i + 1]):
                j = indices[k]
                if j < n and old_to_new[j] < r:
                    columns[l], values[l] = old_to_new[j], data[k]
                    l += 1
                elif j < n and old_to_new[j] > r:
                    columns[h], values[h] = old_to_new[j], data[k]
                    h += 1


@jit()
def cut_units(lower, upper, youngest, units):
    """The table of units, its last row where all ends; returns how many units there are.  `units` is long enough."""
    n, count, rows, l, h = lower.shape[0], 0, 0, 0, 0
    for r in range(n):
        alone, new_line = youngest[r] < r - rows, youngest[r] != r - 1
        if r == 0 or rows == MOST or (rows >= LEAST and new_line) or (rows >= FEW and alone):
            units[count, ROW], units[count, LOWER], units[count, UPPER] = r, l, h
            count += 1
            rows = 0
        rows += 1
        l += lower[r]
        h += upper[r]
    units[count, ROW], units[count, LOWER], units[count, UPPER] = n, l, h
    return count


@jit(allocates=True)
def unit_edges(tid, threads, new_to_old, old_to_new, indptr, indices, begins, unit_of, room, count, edges):
    """The earlier units that each has entries in, count[u] of them; those of a thread's units from edges[room[tid]] on.

    Units begin at these rows.
    """
    n, units = new_to_old.shape[0], count.shape[0]
    seen, at = np.full(units, -1, np.int64), room[tid]
    for u in range(units * tid // threads, units * (tid + 1) // threads):
        begin, row0, last = at, begins[u], -1
        for r in range(row0, begins[u + 1]):
            i = new_to_old[r]
            row = piece(indices, indptr[i], indptr[i + 1] - indptr[i])
            for k in range(row.shape[0]):
                if row[k] < n:
                    column = np.uint32(old_to_new[np.uint32(row[k])])
                    if column < row0:
                        v = np.int64(unit_of[column])
                        if v != last and seen[v] != u:
                            seen[v] = u
                            edges[at] = v
                            at += 1
                        last = v
        count[u] = at - begin


@jit(allocates=True)
def find_needs(first, edges, owner, forward, backward):
    """How far each thread has to be for a unit, counted from the first one on, and from the last: see the sweeps.

    What a thread has waited for before is not asked again, since to look takes the line from the other's cache.
    """
    count = owner.shape[0]
    for u in range(count):
        for e in range(first[u], first[u + 1]):
            v = edges[e]
            forward[u, owner[v]] = max(forward[u, owner[v]], v + 1)
            backward[v, owner[u]] = max(backward[v, owner[u]], count - u)
    threads = forward.shape[1]
    known, known_back = np.zeros((threads, threads), np.int32), np.zeros((threads, threads), np.int32)
    for u in range(count):
        _drop_known(forward[u], known[owner[u]])
        _drop_known(backward[count - 1 - u], known_back[owner[count - 1 - u]])


@inner()
def _drop_known(needs, known):
    """Needs of a unit, 0 where its thread knows that others have come as far."""
    for s in range(needs.shape[0]):
        if needs[s] <= known[s]:
            needs[s] = 0
        known[s] = max(known[s], needs[s])


@jit(allocates=True)
def makespan(first, edges, owner, cost, threads):
    """When the last thread is through, if a unit takes as long as it costs, and a little for what others have made."""
    count, free, done = owner.shape[0], np.zeros(threads), np.zeros(owner.shape[0])
    for u in range(count):
        begin, extra = free[owner[u]], 0.0
        for e in range(first[u], first[u + 1]):
            v = edges[e]
            begin = max(begin, done[v])
            extra += cost[v] * ELSEWHERE if owner[v] != owner[u] else 0.0
        done[u] = begin + cost[u] + extra
        free[owner[u]] = done[u]
    return free.max() if count else 0.0
