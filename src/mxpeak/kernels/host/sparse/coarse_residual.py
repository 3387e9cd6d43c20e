"""Residuals at some rows of a matrix swept in the natural order, whose entries of L or U stand once more by themselves.

A coarser level's points are every second one of every second line of every second plane, so where all rows stand, a
cache line that holds an entry of such a row holds as much of rows that nobody asks for.  In the copy all that is read
is needed: a sixteenth of the matrix.  It has the rows' entries one row after the other,

    columns, values     of row k from first[k] on

or, where rows are taken in vectors, chunks of GROUPS groups of up to GROUP rows, in slots of LANES values:

    run       columns base + row, of rows that are STEP apart in each group: one number, with packed storage
    columns   a 32-bit column for each row; of what would be a run they are STEP apart, and the kernels see that

A group ends with its line, and the next begins with another row: so lines need not be as long as chunks.
"""

from __future__ import annotations

import numpy as np

from mxpeak.kernels.host.engine.jit import inner, jit
from mxpeak.kernels.host.engine.vector_ir import piece
from mxpeak.kernels.host.sparse import gs_colored as sweep
from mxpeak.kernels.host.sparse import slot_format
from mxpeak.kernels.host.sparse.chunk_format import MOST, find
from mxpeak.kernels.host.sparse.gs_csr import AHEAD, ask_for, sum_of
from mxpeak.kernels.host.sparse.slot_sums import EVERY_SECOND as GROUP
from mxpeak.kernels.host.sparse.slot_sums import SUCCESSIVE as LANES
from mxpeak.kernels.host.sparse.slot_sums import sum_every_second, sum_every_second_columns

#: Groups of a chunk.
GROUPS = LANES // GROUP
#: How far apart the rows of a group with runs are, and from how many rows on a group ends where they are not.
STEP, LEAST = 2, GROUP // 2
#: Which chunk is asked for while one is summed: these have L or U alone, and are read soon.  At 96^3 on a core of an
#: Intel Xeon, 4 instead of 1 took the residual with L from 1.28 to 0.96 ms in fp64, 0.67 to 0.50 in fp32.
ASKED = 4
#: Columns of the table of chunks: first slot, first slot of columns, runs, columns.
SLOT, FAR, RUNS, COLUMNS, TABLE = range(5)


@inner(fastmath={"contract"}, inline=True)
def _left(i, total, diagonal, b, x, keep, parts):
    """What remains of row i, of whose products those of some parts have been summed: see `sparse_sweep.residual`."""
    if parts == sweep.BOTH:
        return b[i] - diagonal[i] * x[i] - total
    return b[i] - keep[i] - total if parts == sweep.LOWER else -total


@jit(fastmath={"contract"})
def residual(tid, threads, rows, first, columns, values, diagonal, b, x, keep, r, parts):
    """r_k = (b - (L + D + U) x)[rows_k], or of these parts, one row after the other."""
    count = rows.shape[0]
    for k in range(count * tid // threads, count * (tid + 1) // threads):
        ask_for(columns, first[k] + AHEAD, first[k + 1] + AHEAD)
        ask_for(values, first[k] + AHEAD, first[k + 1] + AHEAD)
        r[k] = _left(
            np.uint64(rows[k]), sum_of(first[k], first[k + 1], columns, values, x), diagonal, b, x, keep, parts
        )


@jit(fastmath={"contract"})
def residual_in_chunks(
    tid, threads, rows, begins, starts, table, bases, far, values, diagonal, b, x, keep, r, parts, scratch
):
    """The same, chunk after chunk."""
    total, chunks = piece(scratch, tid * 4 * LANES, LANES), table.shape[0]
    for c in range(chunks * tid // threads, chunks * (tid + 1) // threads):
        after, slot = min(c + ASKED, chunks - 1), np.int64(table[c, SLOT])
        runs, columns = np.int64(table[c, RUNS]), np.int64(table[c, COLUMNS])
        ahead = (np.int64(table[after, SLOT]) - slot) * LANES
        sum_every_second(values, slot * LANES, bases, slot, runs, x, starts, c * GROUPS, total, ahead)
        if columns:
            value0, far0 = (slot + runs) * LANES, np.int64(table[c, FAR]) * LANES
            far_ahead = np.int64(table[after, FAR] - table[c, FAR]) * LANES
            sum_every_second_columns(values, value0, far, far0, columns, x, total, False, far_ahead)
        first, full = begins[c * GROUPS], begins[(c + 1) * GROUPS] - begins[c * GROUPS] == LANES
        for g in range(1 if full else GROUPS):  # groups without gaps are as one
            first, of_group = begins[c * GROUPS + g], piece(total, g * GROUP, LANES - g * GROUP)
            count = LANES if full else begins[c * GROUPS + g + 1] - first
            rows_g, r_g = piece(rows, first, count), piece(r, first, count)
            if parts == sweep.UPPER:
                for k in range(count):
                    r_g[k] = -of_group[k]
            else:
                for k in range(count):
                    r_g[k] = _left(np.uint64(rows_g[k]), of_group[k], diagonal, b, x, keep, parts)


# --- set-up: the rows' entries out of chunks of successive rows -------------------------------------------------


@inner(inline=True)
def _put(columns, at_values, size, at, column, values, a):
    """One more entry, if it is not a zero that only fills a slot; returns how many there are."""
    sign = np.uint64(1) << np.uint64(8 * values.itemsize - 1)
    if np.uint64(values[a]) & ~sign == 0:  # 0 or -0, by their bits
        return size
    if columns.shape[0]:
        columns[at + size], at_values[at + size] = column, a
    return size + 1


@inner()
def _entries_of(table, c, lane, parts, bases, far, values, columns, at_values, at):
    """Columns of a row's entries in some parts, and where their values stand, from `at` on; returns how many."""
    size, row = 0, np.int64(table[c, slot_format.ROW]) + lane
    for p in range(slot_format.PARTS):
        if not parts & (sweep.UPPER if p >= slot_format.LATER else sweep.LOWER):
            continue
        slot, far0 = slot_format.slots_before(table, c, p)
        runs = np.int64(table[c, slot_format.COUNTS + 2 * p])
        for s in range(slot, slot + runs):
            a = s * LANES + lane
            size = _put(columns, at_values, size, at, row + np.int64(bases[s]), values, a)
        for s in range(np.int64(table[c, slot_format.COUNTS + 2 * p + 1])):
            a = (slot + runs + s) * LANES + lane
            size = _put(columns, at_values, size, at, np.int64(far[(far0 + s) * LANES + lane]), values, a)
    before = np.int64(table[c, slot_format.COUNTS + slot_format.STRAYS])
    strays = before + np.int64(table[c, slot_format.COUNTS + slot_format.STRAYS + 1])
    slot, far0 = slot_format.slots_before(table, c, slot_format.PARTS)
    lane0 = (far0 + (strays + LANES - 1) // LANES) * LANES
    for k in range(0 if parts & sweep.LOWER else before, strays if parts & sweep.UPPER else before):
        if far[lane0 + k] == lane:
            a = slot * LANES + k
            size = _put(columns, at_values, size, at, np.int64(far[far0 * LANES + k]), values, a)
    return size


@jit()
def find_entries(tid, threads, rows, chunk_of, parts, table, bases, far, values, first, columns, at_values):
    """Of rows_k in chunk chunk_of[k]: how many entries, first[k + 1]; with columns, these from first[k] on.

    `values` are the bits of A's.
    """
    count = rows.shape[0]
    for k in range(count * tid // threads, count * (tid + 1) // threads):
        c, at = chunk_of[k], first[k] if columns.shape[0] else 0
        lane = np.int64(rows[k]) - np.int64(table[c, slot_format.ROW])
        size = _entries_of(table, c, lane, parts, bases, far, values, columns, at_values, at)
        if not columns.shape[0]:
            first[k + 1] = size


# --- set-up: slots out of entries -------------------------------------------------------------------------------


@jit()
def cut_groups(rows, in_lines, begins):
    """Where groups of the rows begin, if in_lines with every line; returns how many."""
    groups, size = 0, 0
    for k in range(rows.shape[0]):
        if k == 0 or size == GROUP or (in_lines and size >= LEAST and rows[k] != rows[k - 1] + STEP):
            begins[groups] = k
            groups += 1
            size = 0
        size += 1
    return groups


@inner(inline=True)
def _exists(starts, difference, most):
    """Whether all groups of a chunk may read so far from their rows; x has LANES·STEP numbers beyond its last."""
    there = True
    for g in range(GROUPS):
        there = there and 0 <= starts[g] + difference <= most
    return there


@inner()
def _runs_of(rows, begins, starts, packed, first, columns, most, known, hits):
    """The differences column - row that become runs of a chunk: known[:runs]; returns (runs, slots of columns)."""
    size, runs, longest, row0, end, in_steps = 0, 0, 0, begins[0], begins[GROUPS], True
    for g in range(GROUPS):
        for k in range(begins[g] + 1, begins[g + 1]):
            in_steps = in_steps and rows[k] == rows[k - 1] + STEP
    least = slot_format.rows_of_a_run(end - row0, packed)
    for k in range(row0, end if in_steps else row0):
        hint = 0
        for e in range(first[k], first[k + 1]):
            difference = np.int64(columns[e]) - rows[k]
            at = find(known, size, difference, hint)
            if at < 0 and size < known.shape[0]:
                at, hits[size], known[size] = size, 0, difference
                size += 1
            if at >= 0:
                hits[at] += 1
            hint = at + 1
    for k in range(size):
        # lanes without the entry read there all the same
        if hits[k] >= least and _exists(starts, known[k], most):
            known[runs] = known[k]
            runs += 1
    for k in range(row0, end):
        hint, others = 0, 0
        for e in range(first[k], first[k + 1]):
            at = find(known, runs, np.int64(columns[e]) - rows[k], hint)
            hint, others = at + 1, others + (at < 0)
        longest = max(longest, others)
    return runs, longest


@jit(allocates=True)
def count_slots(tid, threads, rows, begins, starts, packed, first, columns, most, table):
    """Runs and slots of columns of each chunk; columns of `most` and below exist."""
    chunks = table.shape[0]
    known, hits = np.empty(MOST, np.int64), np.empty(MOST, np.int64)
    for c in range(chunks * tid // threads, chunks * (tid + 1) // threads):
        of_chunk = piece(begins, c * GROUPS, GROUPS + 1), piece(starts, c * GROUPS, GROUPS)
        runs, others = _runs_of(rows, *of_chunk, packed, first, columns, most, known, hits)
        table[c, RUNS], table[c, COLUMNS] = (runs, others) if packed else (0, runs + others)


@jit(allocates=True)
def fill_slots(
    tid, threads, rows, begins, starts, packed, first, columns, at_values, most, table, bases, far, values, source
):
    """Bases, columns and values of every slot.  Values come as zeros."""
    known, hits = np.empty(MOST, np.int64), np.empty(MOST, np.int64)
    chunks = table.shape[0]
    for c in range(chunks * tid // threads, chunks * (tid + 1) // threads):
        slot, of_chunk = np.int64(table[c, SLOT]), piece(begins, c * GROUPS, GROUPS + 1)
        starts_c = piece(starts, c * GROUPS, GROUPS)
        runs, others = _runs_of(rows, of_chunk, starts_c, packed, first, columns, most, known, hits)
        for s in range(runs):
            bases[slot + s] = known[s]
        far0 = np.int64(table[c, FAR])
        for s in range(0 if packed else runs):
            for lane in range(LANES):
                far[(far0 + s) * LANES + lane] = known[s] + starts_c[lane // GROUP] + STEP * (lane % GROUP)
        far_c = piece(far, (far0 if packed else far0 + runs) * LANES, others * LANES)
        far_c[:] = starts_c[0]
        for g in range(GROUPS):
            for k in range(of_chunk[g], of_chunk[g + 1]):
                lane, hint, other = g * GROUP + k - of_chunk[g], 0, 0
                for e in range(first[k], first[k + 1]):
                    at = find(known, runs, np.int64(columns[e]) - rows[k], hint)
                    hint = at + 1
                    if at < 0:
                        far_c[other * LANES + lane] = columns[e]
                        at, other = runs + other, other + 1
                    values[(slot + at) * LANES + lane] = source[at_values[e]]
