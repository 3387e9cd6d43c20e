"""Compute residuals at a subset of a matrix's rows in natural order, from a copy of their entries of L or U.

The points of a coarser level are every second point of every second line of every second plane. In the full matrix,
half of each cache line with entries of these rows contains entries of other rows. The copy, a sixteenth of the matrix,
contains only the entries of these rows. The rows are stored one after the other (`RowCopies`),

    columns, values     of row k from first[k] on

or, for vector instructions, in chunks of GROUPS groups of up to GROUP rows in slots of LANES values (`ChunkCopies`):

    run       columns base + row, of rows that are STEP apart in each group: one number, with packed storage
    columns   a 32-bit column for each row; those of a run are STEP apart, which the kernels detect

A group ends at the end of a line, and the next group begins with another row, so lines can be shorter than chunks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mxpeak.kernels.host.engine.jit import inner, jit
from mxpeak.kernels.host.engine.vector_ir import piece
from mxpeak.kernels.host.sparse.chunk_format import BOTH, LOWER, MAX_DIFFERENCES, UPPER, find
from mxpeak.kernels.host.sparse.natural import slot_format
from mxpeak.kernels.host.sparse.natural.gs_csr import AHEAD, prefetch, sum_of
from mxpeak.kernels.host.sparse.slot_sums import EVERY_SECOND as GROUP
from mxpeak.kernels.host.sparse.slot_sums import SUCCESSIVE as LANES
from mxpeak.kernels.host.sparse.slot_sums import SlotSpan, sum_every_second, sum_every_second_columns

#: Number of groups per chunk.
GROUPS = LANES // GROUP
#: The distance between successive rows of a group with runs, and the smallest number of rows with which a group ends
#: if the distance changes.
STEP, LEAST = 2, GROUP // 2
#: Prefetch distance in chunks, which are short because they contain only L or U. At 96^3 on a core of an Intel Xeon, 4
#: instead of 1 reduced the residual with L from 1.28 to 0.96 ms in fp64, and from 0.67 to 0.50 ms in fp32.
CHUNKS_AHEAD = 4
#: Columns of the table of chunks: first slot, first slot with columns, number of runs, number of slots with columns.
SLOT, FAR, RUNS, COLUMNS, TABLE = range(5)


class RowCopies(NamedTuple):
    """A copy of the entries of a subset of rows, one row after the other."""

    rows: Any
    first: Any
    columns: Any
    values: Any

    @property
    def bytes(self) -> int:
        """Return the size of the copy in bytes."""
        return int(self.first.nbytes + self.columns.nbytes + self.values.nbytes)


class ChunkCopies(NamedTuple):
    """A copy of the entries of a subset of rows, in chunks of groups.

    begins, starts   the index of each group's first row among the rows, and this row itself
    """

    rows: Any
    begins: Any
    starts: Any
    table: Any
    bases: Any
    far: Any
    values: Any

    @property
    def bytes(self) -> int:
        """Return the size of the copy in bytes."""
        parts = (self.begins, self.starts, self.table, self.bases, self.far, self.values)
        return sum(int(part.nbytes) for part in parts)


class Groups(NamedTuple):
    """A subset of rows in groups, with their columns: those of row k are columns[first[k]] … columns[first[k+1]-1]."""

    rows: Any
    begins: Any
    starts: Any
    first: Any
    columns: Any


@inner(fastmath={"contract"}, inline=True)
def _remainder(i, total, diagonal, b, x, keep, parts):
    """Return the residual of row i from `total`, its sum over some parts, as defined in `gs_colored.residual`."""
    if parts == BOTH:
        return b[i] - diagonal[i] * x[i] - total
    return b[i] - keep[i] - total if parts == LOWER else -total


@jit(fastmath={"contract"})
def residual(tid, threads, copies, A, b, x, keep, r, parts):
    """Compute r_k = (b - (L + D + U) x)[rows_k] for this thread's rows, from `RowCopies`.

    With L or U alone, r is the residual after a sweep, as in `gs_colored.residual`.
    """
    rows, first, columns, values = copies
    count = rows.shape[0]
    for k in range(count * tid // threads, count * (tid + 1) // threads):
        prefetch(columns, first[k] + AHEAD, first[k + 1] + AHEAD)
        prefetch(values, first[k] + AHEAD, first[k + 1] + AHEAD)
        total = sum_of(first[k], first[k + 1], columns, values, x)
        r[k] = _remainder(np.uint64(rows[k]), total, A.diagonal, b, x, keep, parts)


@jit(fastmath={"contract"})
def residual_in_chunks(tid, threads, copies, A, b, x, keep, r, parts):
    """Compute the residuals that `residual` computes, from `ChunkCopies`, for this thread's chunks."""
    rows, begins, starts, table, bases, far, values = copies
    total, chunks = piece(A.scratch, tid * 4 * LANES, LANES), table.shape[0]
    for c in range(chunks * tid // threads, chunks * (tid + 1) // threads):
        after, slot = min(c + CHUNKS_AHEAD, chunks - 1), np.int64(table[c, SLOT])
        runs, columns = np.int64(table[c, RUNS]), np.int64(table[c, COLUMNS])
        ahead = (np.int64(table[after, SLOT]) - slot) * LANES
        of_runs, starts_c = SlotSpan(values, slot * LANES, bases, slot, runs), piece(starts, c * GROUPS, GROUPS)
        sum_every_second(of_runs, x, starts_c, total, True, ahead, None)
        if columns:
            of_columns = SlotSpan(values, (slot + runs) * LANES, far, np.int64(table[c, FAR]) * LANES, columns)
            far_ahead = np.int64(table[after, FAR] - table[c, FAR]) * LANES
            sum_every_second_columns(of_columns, x, None, total, False, far_ahead, None)
        first, full = begins[c * GROUPS], begins[(c + 1) * GROUPS] - begins[c * GROUPS] == LANES
        for g in range(1 if full else GROUPS):  # groups without gaps are processed together
            first, of_group = begins[c * GROUPS + g], piece(total, g * GROUP, LANES - g * GROUP)
            count = LANES if full else begins[c * GROUPS + g + 1] - first
            rows_g, r_g = piece(rows, first, count), piece(r, first, count)
            if parts == UPPER:
                for k in range(count):
                    r_g[k] = -of_group[k]
            else:
                for k in range(count):
                    r_g[k] = _remainder(np.uint64(rows_g[k]), of_group[k], A.diagonal, b, x, keep, parts)


@inner(inline=True)
def _put(columns, at_values, size, at, column, values, a):
    """Append the entry with value values[a] to a row unless it is a padding zero, and return the row's new length.

    The entry is not stored if `columns` is empty.
    """
    sign = np.uint64(1) << np.uint64(8 * values.itemsize - 1)
    if np.uint64(values[a]) & ~sign == 0:  # the bits of 0 or -0
        return size
    if columns.shape[0]:
        columns[at + size], at_values[at + size] = column, a
    return size + 1


@inner()
def _entries_of(matrix, values, c, lane, parts, columns, at_values, at):
    """Store the columns and value indices of a row's entries in some parts, and return the number of entries.

    The row is in lane `lane` of chunk c, and its entries are stored from index `at` on. If `columns` is empty, the
    entries are only counted.
    """
    table, bases, far = matrix.table, matrix.bases, matrix.far
    size, row = 0, np.int64(table[c, slot_format.ROW]) + lane
    for p in range(slot_format.PARTS):
        if not parts & (UPPER if p >= slot_format.LATER else LOWER):
            continue
        slot, far0 = slot_format.slots_before(table, c, p)
        runs = np.int64(table[c, slot_format.COUNTS + 2 * p])
        for s in range(slot, slot + runs):
            a = s * LANES + lane
            size = _put(columns, at_values, size, at, row + np.int64(bases[s]), values, a)
        for s in range(np.int64(table[c, slot_format.COUNTS + 2 * p + 1])):
            a = (slot + runs + s) * LANES + lane
            size = _put(columns, at_values, size, at, np.int64(far[(far0 + s) * LANES + lane]), values, a)
    before = np.int64(table[c, slot_format.COUNTS + slot_format.OVERFLOW])
    overflow = before + np.int64(table[c, slot_format.COUNTS + slot_format.OVERFLOW + 1])
    slot, far0 = slot_format.slots_before(table, c, slot_format.PARTS)
    lane0 = (far0 + (overflow + LANES - 1) // LANES) * LANES
    for k in range(0 if parts & LOWER else before, overflow if parts & UPPER else before):
        if far[lane0 + k] == lane:
            a = slot * LANES + k
            size = _put(columns, at_values, size, at, np.int64(far[far0 * LANES + k]), values, a)
    return size


@jit()
def find_entries(tid, threads, groups, chunk_of, parts, matrix, values, at_values):
    """Count the entries of this thread's rows in first[k + 1], or store them from first[k] on.

    The entries are counted if `columns` is empty. Row k is in chunk chunk_of[k] of the matrix, whose values are given
    as bits.
    """
    rows, first, columns = groups.rows, groups.first, groups.columns
    count = rows.shape[0]
    for k in range(count * tid // threads, count * (tid + 1) // threads):
        c, at = chunk_of[k], first[k] if columns.shape[0] else 0
        lane = np.int64(rows[k]) - np.int64(matrix.table[c, slot_format.ROW])
        size = _entries_of(matrix, values, c, lane, parts, columns, at_values, at)
        if not columns.shape[0]:
            first[k + 1] = size


@jit()
def cut_groups(rows, in_lines, begins):
    """Divide rows into groups, store the index of each group's first row, and return the number of groups.

    If `in_lines`, a group also ends at the end of a line of the mesh.
    """
    groups, size = 0, 0
    for k in range(rows.shape[0]):
        if k == 0 or size == GROUP or (in_lines and size >= LEAST and rows[k] != rows[k - 1] + STEP):
            begins[groups] = k
            groups += 1
            size = 0
        size += 1
    return groups


@inner(inline=True)
def _exists(starts, difference, last):
    """Return whether x exists at this difference column - row for all groups of a chunk.

    x has LANES·STEP numbers after index `last`, so only the first row of each group is checked.
    """
    exists = True
    for g in range(GROUPS):
        exists = exists and 0 <= starts[g] + difference <= last
    return exists


@inner()
def _find_runs(c, groups, packed, last, differences, hits):
    """Find the differences column - row that become runs of chunk c.

    The differences are stored in `differences`. Returns the number of runs and the number of other slots.
    """
    rows, first, columns = groups.rows, groups.first, groups.columns
    begins, starts = piece(groups.begins, c * GROUPS, GROUPS + 1), piece(groups.starts, c * GROUPS, GROUPS)
    size, runs, longest, row0, end, in_steps = 0, 0, 0, begins[0], begins[GROUPS], True
    for g in range(GROUPS):
        for k in range(begins[g] + 1, begins[g + 1]):
            in_steps = in_steps and rows[k] == rows[k - 1] + STEP
    least = slot_format.rows_of_a_run(end - row0, packed)
    for k in range(row0, end if in_steps else row0):
        hint = 0
        for e in range(first[k], first[k + 1]):
            difference = np.int64(columns[e]) - rows[k]
            at = find(differences, size, difference, hint)
            if at < 0 and size < differences.shape[0]:
                at, hits[size], differences[size] = size, 0, difference
                size += 1
            if at >= 0:
                hits[at] += 1
            hint = at + 1
    for k in range(size):
        # Lanes without the entry also read x at this difference, so x must exist there for all lanes.
        if hits[k] >= least and _exists(starts, differences[k], last):
            differences[runs] = differences[k]
            runs += 1
    for k in range(row0, end):
        hint, others = 0, 0
        for e in range(first[k], first[k + 1]):
            at = find(differences, runs, np.int64(columns[e]) - rows[k], hint)
            hint, others = at + 1, others + (at < 0)
        longest = max(longest, others)
    return runs, longest


@jit(allocates=True)
def count_slots(tid, threads, groups, packed, last, table):
    """For this thread's chunks, store the numbers of runs and of slots with columns in `table`.

    `last` is the last existing column.
    """
    chunks = table.shape[0]
    differences, hits = np.empty(MAX_DIFFERENCES, np.int64), np.empty(MAX_DIFFERENCES, np.int64)
    for c in range(chunks * tid // threads, chunks * (tid + 1) // threads):
        runs, others = _find_runs(c, groups, packed, last, differences, hits)
        table[c, RUNS], table[c, COLUMNS] = (runs, others) if packed else (0, runs + others)


@jit(allocates=True)
def fill_slots(tid, threads, groups, packed, last, at_values, slots, values, source):
    """Store the bases, columns and values of all slots in this thread's chunks. Values must be zero before.

    `slots` is (table, bases, far).
    """
    (table, bases, far), (rows, begins, starts, first, columns) = slots, groups
    differences, hits = np.empty(MAX_DIFFERENCES, np.int64), np.empty(MAX_DIFFERENCES, np.int64)
    chunks = table.shape[0]
    for c in range(chunks * tid // threads, chunks * (tid + 1) // threads):
        slot, begins_c = np.int64(table[c, SLOT]), piece(begins, c * GROUPS, GROUPS + 1)
        starts_c = piece(starts, c * GROUPS, GROUPS)
        runs, others = _find_runs(c, groups, packed, last, differences, hits)
        for s in range(runs):
            bases[slot + s] = differences[s]
        far0 = np.int64(table[c, FAR])
        for s in range(0 if packed else runs):
            for lane in range(LANES):
                far[(far0 + s) * LANES + lane] = differences[s] + starts_c[lane // GROUP] + STEP * (lane % GROUP)
        far_c = piece(far, (far0 if packed else far0 + runs) * LANES, others * LANES)
        far_c[:] = starts_c[0]
        for g in range(GROUPS):
            for k in range(begins_c[g], begins_c[g + 1]):
                lane, hint, other = g * GROUP + k - begins_c[g], 0, 0
                for e in range(first[k], first[k + 1]):
                    at = find(differences, runs, np.int64(columns[e]) - rows[k], hint)
                    hint = at + 1
                    if at < 0:
                        far_c[other * LANES + lane] = columns[e]
                        at, other = runs + other, other + 1
                    values[(slot + at) * LANES + lane] = source[at_values[e]]
