"""Gauss-Seidel row after row in vector instructions, and products, over the slots of chunks of successive rows.

`sparse_slots` says what they are.  A forward sweep adds up all but the second part of a chunk in vectors: the x of the
others are known, old or new.  What is left is a recurrence along the chunk's rows.  Where it has one term, that of the
row before, it is

    x_i = p_i - q_i x_{i-1},    p = (b - Σ) / d,   q = a_{i,i-1} / d

and takes a multiplication and an addition a row, most of them for several rows at once (`sparse_recurrence`).  Where
lines of a mesh are shorter than a chunk, other terms are of earlier blocks of STRETCH rows: they are added up in
vectors, block by block, each before its recurrence.  Rows of which neither is so are taken one by one.  A backward
sweep is the same from the last row on, with the third part.  Units of chunks go to threads as `sparse_natural` has it.
"""

from __future__ import annotations

import numpy as np

from mxpeak.kernels.host.engine.jit import ZERO, inner, jit
from mxpeak.kernels.host.engine.vector_ir import piece
from mxpeak.kernels.host.sparse import gs_colored as sweep
from mxpeak.kernels.host.sparse.gs_csr import ask_for, say_in_turn, wait
from mxpeak.kernels.host.sparse.recurrence import recurrence, run_backward, run_forward
from mxpeak.kernels.host.sparse.slot_format import (
    AFTER,
    BEFORE,
    COUNTS,
    EARLIER,
    FAR,
    LATER,
    NEXT,
    PARTS,
    ROW,
    ROWS,
    SLOT,
    STRAYS,
    slots_before,
)
from mxpeak.kernels.host.sparse.slot_sums import (
    ASKS,
    STRETCH,
    add_strays,
    sum_block_columns,
    sum_block_runs,
    sum_successive_columns,
    sum_successive_runs,
    widened_value,
)
from mxpeak.kernels.host.sparse.slot_sums import SUCCESSIVE as LANES

#: How far ahead memory is asked for while a chunk is summed, in bytes of a row's slot: the next chunk of fp64 values,
#: the second of fp32's, the fourth of 16 bits'.
BYTES_AHEAD = 8


@inner(inline=True)
def _add(table, c, after, first, end, bases, far, values, x, out):
    """out = the parts first … end-1 of a chunk times x, of all lanes.

    Meanwhile the chunk `after` is asked for, slot for slot; if that one stands before it, so do its slots: values are
    read in one direction, as memory likes it.
    """
    row, down, fresh = np.int64(table[c, ROW]), after < c, True
    for k in range(end - first):
        part = end - 1 - k if down else first + k
        upper = np.int64(part >= LATER)
        ahead = (np.int64(table[after, SLOT + 2 * upper]) - np.int64(table[c, SLOT + 2 * upper])) * LANES
        far_ahead = (np.int64(table[after, FAR + 2 * upper]) - np.int64(table[c, FAR + 2 * upper])) * LANES
        slot, far0 = slots_before(table, c, part)
        runs, columns = np.int64(table[c, COUNTS + 2 * part]), np.int64(table[c, COUNTS + 2 * part + 1])
        sum_successive_runs(values, slot * LANES, bases, slot, runs, x, row, out, fresh, ahead, down)
        fresh = False
        if columns:
            value0, far0 = (slot + runs) * LANES, far0 * LANES
            sum_successive_columns(values, value0, far, far0, columns, x, row, out, False, far_ahead, down)
    before = np.int64(table[c, COUNTS + STRAYS])
    strays = before + np.int64(table[c, COUNTS + STRAYS + 1])
    if strays:
        slot, far0 = slots_before(table, c, PARTS)
        lanes0 = far0 + (strays + LANES - 1) // LANES
        begin, stop = before if first > BEFORE else 0, strays if end == PARTS else before
        add_strays(values, slot * LANES, far, far0 * LANES, lanes0 * LANES, begin, stop, x, out)


@inner(inline=True)
def _ask(table, c, part, values, diagonal, b):
    """Ask for what a recurrence along a chunk takes: its slots of one part, and its rows of b and of the diagonal."""
    if not ASKS:
        return
    row, rows = np.int64(table[c, ROW]), np.int64(table[c, ROWS])
    slot, _ = slots_before(table, c, part)
    slots = np.int64(table[c, COUNTS + 2 * part]) + np.int64(table[c, COUNTS + 2 * part + 1])
    ask_for(values, slot * LANES, (slot + slots) * LANES)
    ask_for(diagonal, row, row + rows)
    ask_for(b, row, row + rows)


@inner(fastmath={"contract"}, inline=True)
def _inner(table, c, part, slot, far0, lane, bases, far, values, x):
    """Σ a_ij x_j over the entries of one row in one part."""
    runs, columns = np.int64(table[c, COUNTS + 2 * part]), np.int64(table[c, COUNTS + 2 * part + 1])
    row, total = np.int64(table[c, ROW]) + lane, x.dtype.type(0)
    for s in range(slot, slot + runs):
        total += widened_value(values[s * LANES + lane], total) * x[row + np.int64(bases[s])]
    for k in range(columns):
        a = widened_value(values[(slot + runs + k) * LANES + lane], total)
        total += a * x[np.uint32(far[(far0 + k) * LANES + lane])]
    return total


@inner()
def _add_block(table, c, part, lane0, slot, far0, bases, far, values, x, out):
    """out += a part of a chunk times x, STRETCH lanes from lane0 on, without the slot of each row's next neighbour."""
    upper = np.int64(part == LATER)
    runs, columns = np.int64(table[c, COUNTS + 2 * part]), np.int64(table[c, COUNTS + 2 * part + 1])
    row, but = np.int64(table[c, ROW]) + lane0, np.int64(table[c, COUNTS + NEXT + upper])
    to = piece(out, lane0, STRETCH)
    for first, end in ((ZERO, but), (but + 1, runs + columns)):
        value0, of_runs = (slot + first) * LANES + lane0, min(end, runs) - first
        sum_block_runs(values, value0, bases, slot + first, of_runs, x, row, to)
        begin = max(first, runs)
        value0, column0 = (slot + begin) * LANES + lane0, (far0 + begin - runs) * LANES + lane0
        sum_block_columns(values, value0, far, column0, end - begin, x, to)


@inner(fastmath={"contract"}, inline=True)
def _terms(row, rows, slot, values, diagonal, b, first, second, p, q):
    """p = (b - first - second) / d and q = a / d of a chunk's rows, with the a_ij of one slot."""
    b_c, d_c, one = piece(b, row, rows), piece(diagonal, row, rows), p.dtype.type(1)
    if rows == LANES:
        recurrence(b_c, first, second, values, slot * LANES, d_c, p, q)
        return
    a = piece(values, slot * LANES, LANES)
    for k in range(rows):
        reciprocal = one / d_c[k]
        p[k] = (b_c[k] - first[k] - second[k]) * reciprocal
        q[k] = widened_value(a[k], one) * reciprocal


@inner(fastmath={"contract"}, inline=True)
def _terms_of_block(lane0, row, rows, slot, values, diagonal, b, first, second, p, q):
    """The same of the STRETCH rows from lane0 on."""
    count = min(STRETCH, rows - lane0)
    b_c, d_c, a = piece(b, row + lane0, count), piece(diagonal, row + lane0, count), slot * LANES + lane0
    for k in range(count):
        reciprocal = p.dtype.type(1) / d_c[k]
        p[lane0 + k] = (b_c[k] - first[lane0 + k] - second[lane0 + k]) * reciprocal
        q[lane0 + k] = widened_value(values[a + k], reciprocal) * reciprocal


@jit(fastmath={"contract"})
def sweep_forward(
    tid, threads, progress, yield_address, first, end, owner, needs,
    units, table, bases, far, values, diagonal, b, x, keep, from_zero, scratch,
):  # fmt: skip
    """Units first … end-1 of x_i = (b_i - Σ_L a_ij x_j - Σ_U a_ij x_j) / a_ii; where keep is not empty, b_i - Σ_L."""
    work = piece(scratch, tid * 4 * LANES, 4 * LANES)
    lower, upper = piece(work, 0, LANES), piece(work, LANES, LANES)
    p, q = piece(work, 2 * LANES, LANES), piece(work, 3 * LANES, LANES)
    ahead = BYTES_AHEAD // values.itemsize
    upper[:] = 0
    for u in range(first, end):
        if threads > 1:
            if owner[u] != tid:
                continue
            wait(tid, threads, progress, needs, u, u, yield_address)
        for c in range(units[u], units[u + 1]):
            after, row, rows = min(c + ahead, table.shape[0] - 1), np.int64(table[c, ROW]), np.int64(table[c, ROWS])
            x_c = piece(x, row, rows)
            _ask(table, after, EARLIER, values, diagonal, b)
            _add(table, c, after, BEFORE, EARLIER, bases, far, values, x, lower)
            if not from_zero:
                _add(table, c, after, LATER, PARTS, bases, far, values, x, upper)
            slot, far0 = slots_before(table, c, EARLIER)
            at, young = np.int64(table[c, COUNTS + NEXT]), x[max(row - 1, 0)]
            if at == 0 and table[c, COUNTS + 2 * EARLIER] + table[c, COUNTS + 2 * EARLIER + 1] == 1:
                _terms(row, rows, slot, values, diagonal, b, lower, upper, p, q)
                if rows < LANES or not run_forward(p, q, young, x_c):
                    for k in range(rows):
                        young = p[k] - q[k] * young
                        x_c[k] = young
            elif at >= 0:
                if from_zero:
                    x_c[:] = 0  # lanes without an entry read it, too
                for lane0 in range(0, rows, STRETCH):
                    _add_block(table, c, EARLIER, lane0, slot, far0, bases, far, values, x, lower)
                    _terms_of_block(lane0, row, rows, slot + at, values, diagonal, b, lower, upper, p, q)
                    for k in range(lane0, min(np.int64(lane0 + STRETCH), rows)):
                        young = p[k] - q[k] * young
                        x_c[k] = young
            if at >= 0:
                if keep.shape[0] > 0:
                    keep_c, d_c = piece(keep, row, rows), piece(diagonal, row, rows)
                    for k in range(rows):  # what is left of b is what x has been made of
                        keep_c[k] = d_c[k] * x_c[k] + upper[k]
                continue
            for k in range(rows):
                left = b[row + k] - lower[k] - _inner(table, c, EARLIER, slot, far0, k, bases, far, values, x)
                if keep.shape[0] > 0:
                    keep[row + k] = left
                x_c[k] = (left - upper[k]) / diagonal[row + k]
        if threads > 1:
            say_in_turn(progress, tid, u + 1, u + 1 == end or owner[u + 1] != tid)


@jit(fastmath={"contract"})
def sweep_backward(
    tid, threads, progress, yield_address, first, end, owner, needs,
    units, table, bases, far, values, diagonal, b, x, kept, scratch,
):  # fmt: skip
    """Units end-1 … first of the same from the last row on; where kept, b has L x subtracted already."""
    work = piece(scratch, tid * 4 * LANES, 4 * LANES)
    lower, upper = piece(work, 0, LANES), piece(work, LANES, LANES)
    p, q = piece(work, 2 * LANES, LANES), piece(work, 3 * LANES, LANES)
    ahead = BYTES_AHEAD // values.itemsize
    lower[:] = 0
    count = owner.shape[0]
    for v in range(count - end, count - first):
        u = count - 1 - v
        if threads > 1:
            if owner[u] != tid:
                continue
            wait(tid, threads, progress, needs, u, v, yield_address)
        for back in range(units[u + 1] - units[u]):
            c = units[u + 1] - 1 - back
            after, row, rows = max(c - ahead, 0), np.int64(table[c, ROW]), np.int64(table[c, ROWS])
            x_c = piece(x, row, rows)
            _ask(table, after, LATER, values, diagonal, b)
            _add(table, c, after, AFTER, PARTS, bases, far, values, x, upper)
            if not kept:
                _add(table, c, after, BEFORE, LATER, bases, far, values, x, lower)
            slot, far0 = slots_before(table, c, LATER)
            at, young = np.int64(table[c, COUNTS + NEXT + 1]), x[row + rows]
            if at == 0 and table[c, COUNTS + 2 * LATER] + table[c, COUNTS + 2 * LATER + 1] == 1:
                _terms(row, rows, slot, values, diagonal, b, lower, upper, p, q)
                if rows < LANES or not run_backward(p, q, young, x_c):
                    for back_k in range(rows):
                        k = rows - 1 - back_k
                        young = p[k] - q[k] * young
                        x_c[k] = young
                continue
            if at >= 0:
                for back_lane in range(0, rows, STRETCH):
                    lane0 = (rows - 1) // STRETCH * STRETCH - back_lane
                    _add_block(table, c, LATER, lane0, slot, far0, bases, far, values, x, upper)
                    _terms_of_block(lane0, row, rows, slot + at, values, diagonal, b, lower, upper, p, q)
                    end_k = min(np.int64(lane0 + STRETCH), rows)
                    for back_k in range(end_k - lane0):
                        k = end_k - 1 - back_k
                        young = p[k] - q[k] * young
                        x_c[k] = young
                continue
            for back_k in range(rows):
                k = rows - 1 - back_k
                inner = _inner(table, c, LATER, slot, far0, k, bases, far, values, x)
                x_c[k] = (b[row + k] - lower[k] - upper[k] - inner) / diagonal[row + k]
        if threads > 1:
            say_in_turn(progress, tid, v + 1, u == first or owner[u - 1] != tid)


@jit(fastmath={"contract"})
def multiply(tid, threads, table, bases, far, values, diagonal, x, y, scratch):
    """y = (L + D + U) x."""
    total, count, ahead = piece(scratch, tid * 4 * LANES, LANES), table.shape[0], BYTES_AHEAD // values.itemsize
    for c in range(count * tid // threads, count * (tid + 1) // threads):
        after, row, rows = min(c + ahead, count - 1), np.int64(table[c, ROW]), np.int64(table[c, ROWS])
        y_c, x_c, d_c = piece(y, row, rows), piece(x, row, rows), piece(diagonal, row, rows)
        _add(table, c, after, BEFORE, PARTS, bases, far, values, x, total)
        for k in range(rows):
            y_c[k] = total[k] + d_c[k] * x_c[k]


@jit(fastmath={"contract"})
def residual(tid, threads, chunks, targets, table, bases, far, values, diagonal, b, x, keep, r, parts, scratch):
    """r[targets_i] = b_i - (L + D + U) x of the rows of some chunks, where targets_i >= 0.

    With UPPER alone -U x, with LOWER alone b - keep - L x: see `sparse_sweep`.
    """
    total, count = piece(scratch, tid * 4 * LANES, LANES), chunks.shape[0]
    first, end = (LATER if parts == sweep.UPPER else BEFORE), (LATER if parts == sweep.LOWER else PARTS)
    for n in range(count * tid // threads, count * (tid + 1) // threads):
        c, after = chunks[n], chunks[min(n + 1, count - 1)]
        row, rows = np.int64(table[c, ROW]), np.int64(table[c, ROWS])
        b_c, x_c, d_c = piece(b, row, rows), piece(x, row, rows), piece(diagonal, row, rows)
        to, kept = piece(targets, row, rows), piece(keep, row, rows)
        _add(table, c, after, first, end, bases, far, values, x, total)
        for k in range(rows):
            if to[k] >= 0 and parts == sweep.BOTH:
                r[to[k]] = b_c[k] - d_c[k] * x_c[k] - total[k]
            elif to[k] >= 0 and parts == sweep.LOWER:
                r[to[k]] = b_c[k] - kept[k] - total[k]
            elif to[k] >= 0:
                r[to[k]] = -total[k]
