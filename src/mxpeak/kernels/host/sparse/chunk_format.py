"""Pack a sparse matrix into chunks of independent rows, with columns in as few bytes as possible.

A chunk is up to LANES successive rows of one group. It has two parts: the entries in columns of earlier groups (L) and
the entries in columns of later groups (U). The diagonal and the entries in columns of other ranks are stored
separately. A part is a list of slots. A slot is one entry of every row, with contiguous values, and has one of three
kinds:

    run    columns base + row:  one number for the slot; rows without such an entry store a zero
    near   columns base + a 16-bit number for each row
    far    a 32-bit column for each row

The columns alone determine the kind. The rows of a stencil with one color consist of runs only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mxpeak.kernels.host.engine.jit import inner, jit
from mxpeak.kernels.host.sparse.slot_sums import LANES

#: The parts of a matrix that a sum includes: L, U or both.
LOWER, UPPER, BOTH = 1, 2, 3
#: Columns of the table of chunks: first row, rows, first slot, first near and far slot, then the counts of L and of U.
ROW, ROWS, SLOT, NEAR, FAR, L_PART, U_PART = 0, 1, 2, 3, 4, 5, 8
TABLE = 11
#: Encodings of columns: 32-bit numbers with the same number of slots in all chunks of a group (ELLPACK), 32-bit
#: numbers with as many slots as each chunk needs (sliced ELLPACK), or any kind of slot.
ELL, SELL, PACKED = 0, 1, 2
STORAGES = {"ell": ELL, "sell": SELL, "packed": PACKED}
#: Number of distinct differences column - row that are examined in one part of a chunk. Entries with further
#: differences do not become runs.
MAX_DIFFERENCES = 64
#: A difference becomes a run if at least 1 / SHARE of a chunk's rows have it. Storing zeros then costs less than
#: storing columns.
SHARE = 4
#: A chunk ends at a change of the differences only if it has at least this number of rows.
LEAST = LANES // 4
#: The columns of a near slot differ by less than this number.
NEAR_SPAN = 2**16


class ChunkColumns(NamedTuple):
    """The table of chunks, and the columns of all slots."""

    table: Any
    bases: Any
    near: Any
    far: Any

    @property
    def lower(self) -> int:
        """Return the number of stored values of L, including padding zeros."""
        return LANES * int(self.table[:, L_PART : L_PART + 3].sum(dtype=np.int64))

    @property
    def upper(self) -> int:
        """Return the number of stored values of U, including padding zeros."""
        return LANES * int(self.table[:, U_PART : U_PART + 3].sum(dtype=np.int64))


class ChunkMatrix(NamedTuple):
    """A matrix in chunks, as compiled code receives it.

    The fields are those of `ChunkColumns`, the values of L and U, the diagonal, and

    by_window   the chunks in a cache-friendly order, for operations that do not depend on the order
    scratch     memory for LANES sums per thread
    """

    table: Any
    bases: Any
    near: Any
    far: Any
    values: Any
    diagonal: Any
    by_window: Any
    scratch: Any


class GroupCuts(NamedTuple):
    """The division of rows into chunks.

    first, end    the rows of each chunk
    group_start   the first row of the group of each chunk
    repeats       whether the differences column - row are the same in a row and the previous row
    longest       the largest number of entries of a chunk
    """

    first: Any
    end: Any
    group_start: Any
    repeats: Any
    longest: int


class _PartEntries(NamedTuple):
    """The entries of one part of a chunk, one array element per entry.

    `column` is the new column, and `entry` the index into the row array `indices`. `times` is the number of successive
    rows that repeat the entry. `slot` is the slot to which the entry is assigned.
    """

    column: Any
    lane: Any
    entry: Any
    times: Any
    slot: Any


class _Differences(NamedTuple):
    """The differences column - row in one part of a chunk, and the number of entries with each difference."""

    value: Any
    count: Any


class _ColumnRange(NamedTuple):
    """The smallest and the largest column of each slot that is not a run."""

    low: Any
    high: Any


@jit(allocates=True)
def cut_rows(tid, threads, starts, rows, adaptive, longest, chunk_row, counts, repeats):
    """Divide the rows of each group into chunks, for this thread's groups.

    The first rows of the chunks of group g are stored from chunk_row[starts[g]] on, and the number of chunks in
    counts[g]. A chunk ends after LANES rows. A chunk of at least LEAST rows also ends before a row with mostly new
    differences (column - row). repeats[r] becomes True if row r has exactly the differences of the previous row and no
    entry in the halo. No row has more than `longest` entries.
    """
    new_to_old, old_to_new, indptr, indices = rows
    n, differences, own = old_to_new.shape[0], np.empty(2 * MAX_DIFFERENCES, np.int64), np.empty(longest, np.int64)
    for g in range(tid, counts.shape[0], threads):
        count, size, height, entries = 0, 0, 0, 0
        for r in range(starts[g], starts[g + 1]):
            i = new_to_old[r]
            if adaptive:
                same = r > starts[g] and entries == indptr[i + 1] - indptr[i]
                entries = indptr[i + 1] - indptr[i]
                for k in range(entries):
                    j = indices[indptr[i] + k]
                    difference = old_to_new[j] - r if j < n else n  # a difference that no column has
                    same = same and difference == own[k] and j < n
                    own[k] = difference
                repeats[r] = same
            # a row that repeats the previous row joins its chunk, unless `differences` was too small for that row
            if adaptive and LEAST <= height < LANES and not (repeats[r] and size < differences.shape[0]):
                old, others = 0, 0
                for k in range(entries):
                    if own[k] != 0 and own[k] != n:
                        old += 1 if find(differences, size, own[k], others) >= 0 else 0
                        others += 1
                if 4 * old < 3 * min(others, size):
                    height = LANES
            if height == LANES or height == 0:
                chunk_row[starts[g] + count] = r
                count += 1
                height, size = 0, 0
            height += 1
            if adaptive and height <= LEAST and (height == 1 or not repeats[r]):
                hint = 0
                for k in range(entries):
                    if own[k] != 0 and own[k] != n:
                        at = find(differences, size, own[k], hint)
                        if at < 0 and size < differences.shape[0]:
                            at = size
                            differences[size] = own[k]
                            size += 1
                        hint = at + 1
        counts[g] = count


@inner(inline=True)
def find(differences, size, value, hint):
    """Return the index of `value` among the first `size` elements of `differences`, or -1 if it is not among them.

    The index `hint` is tried first.
    """
    if 0 <= hint < size and differences[hint] == value:
        return hint
    for k in range(size):
        if differences[k] == value:
            return k
    return -1


@inner()
def _gather(rows, cuts, c, upper, part):
    """List the entries of one part of chunk c in `part`, row by row, and return the number of listed entries.

    A row that repeats the previous row is not listed. Instead, the entries of the first row of such a sequence have
    the length of the sequence as `times`.
    """
    new_to_old, old_to_new, indptr, indices = rows
    first, end, start = cuts.first[c], cuts.end[c], cuts.group_start[c]
    n, count, r = old_to_new.shape[0], 0, first
    while r < end:
        again = 1
        while r + again < end and cuts.repeats[r + again]:
            again += 1
        i = new_to_old[r]
        for k in range(indptr[i], indptr[i + 1]):
            j = indices[k]
            if j < n and j != i and (old_to_new[j] >= start) == upper:
                part.column[count], part.lane[count] = old_to_new[j], r - first
                part.entry[count], part.times[count] = k, again
                count += 1
        r += again
    return count


@inner()
def _find_runs(row0, rows, entries, part, differences, columns, storage):
    """Find the differences in one part of a chunk that become runs, and return the number of runs.

    The differences are stored in `differences`, in order of appearance.
    """
    size, hint = 0, 0
    if storage != PACKED:
        return 0
    for e in range(entries):
        if e and part.lane[e] != part.lane[e - 1]:
            hint = 0
        difference = part.column[e] - row0 - part.lane[e]
        at = find(differences.value, size, difference, hint)
        if at < 0 and size < MAX_DIFFERENCES:
            at = size
            differences.value[at], differences.count[at] = difference, 0
            size += 1
        if at >= 0:
            differences.count[at] += part.times[e]
        hint = at + 1
    kept = 0
    for k in range(size):
        # Lanes of rows without the entry also read x at this column, so it must exist. x has LANES numbers beyond its
        # last entry.
        value = differences.value[k]
        if SHARE * differences.count[k] >= rows and row0 + value >= 0 and row0 + value <= columns:
            differences.value[kept] = value
            kept += 1
    return kept


@inner()
def _assign_slots(row0, entries, part, differences, runs, bounds):
    """Assign each entry of one part of a chunk to a slot, and return the number of slots that are not runs.

    slot[e] becomes the index of the run that contains entry e. If no run contains it, slot[e] becomes -1 - s, where s
    is the number of earlier entries of the same row that are not in a run. bounds.low[s] and bounds.high[s] become the
    smallest and the largest column of slot s, if the arrays have an element s.
    """
    slots, s, hint = 0, 0, 0
    for e in range(entries):
        if e and part.lane[e] != part.lane[e - 1]:
            s, hint = 0, 0
        column = part.column[e]
        at = find(differences.value, runs, column - row0 - part.lane[e], hint)
        part.slot[e] = at
        if at >= 0:
            hint = at + 1
            continue
        part.slot[e] = -1 - s
        if s < bounds.low.shape[0]:
            if s >= slots:
                bounds.low[s] = bounds.high[s] = column
            bounds.low[s] = min(bounds.low[s], column)
            bounds.high[s] = max(bounds.high[s], column + part.times[e] - 1)
        s += 1
        slots = max(slots, s)
    return slots


@inner(allocates=True)
def _scratch(longest):
    """Allocate the work arrays for finding the slots of a chunk with up to `longest` entries."""
    column, lane, slot = np.empty(longest, np.int32), np.empty(longest, np.int32), np.empty(longest, np.int32)
    part = _PartEntries(column, lane, np.empty(longest, np.int64), np.empty(longest, np.int64), slot)
    differences = _Differences(np.empty(MAX_DIFFERENCES, np.int64), np.empty(MAX_DIFFERENCES, np.int64))
    return (
        part,
        differences,
        _ColumnRange(np.empty(4 * MAX_DIFFERENCES, np.int64), np.empty(4 * MAX_DIFFERENCES, np.int64)),
    )


@jit(allocates=True)
def count_slots(tid, threads, rows, cuts, columns, storage, table):
    """Store the rows and the numbers of slots of each of this thread's chunks in `table`."""
    chunks = cuts.first.shape[0]
    part, differences, bounds = _scratch(cuts.longest)
    for c in range(chunks * tid // threads, chunks * (tid + 1) // threads):
        row0, height = cuts.first[c], cuts.end[c] - cuts.first[c]
        table[c, ROW], table[c, ROWS] = row0, height
        for upper in (False, True):
            counts = U_PART if upper else L_PART
            entries = _gather(rows, cuts, c, upper, part)
            runs = _find_runs(row0, height, entries, part, differences, columns, storage)
            slots = _assign_slots(row0, entries, part, differences, runs, bounds)
            near = 0
            if storage == PACKED:
                for s in range(min(slots, bounds.low.shape[0])):
                    near += 1 if bounds.high[s] - bounds.low[s] < NEAR_SPAN else 0
            table[c, counts], table[c, counts + 1], table[c, counts + 2] = runs, near, slots - near


@jit(allocates=True)
def fill_slots(tid, threads, rows, data, cuts, columns, storage, packed, values):
    """Store the bases, columns and values of all slots in this thread's chunks. All arrays must be zero before."""
    table, bases, near, far = packed
    chunks, first_entry, to = table.shape[0], np.empty(LANES, np.int64), np.empty(4 * MAX_DIFFERENCES, np.int64)
    part, differences, bounds = _scratch(cuts.longest)
    column, lane, entry, times, slot = part
    for c in range(chunks * tid // threads, chunks * (tid + 1) // threads):
        row0, height = np.int64(table[c, ROW]), np.int64(table[c, ROWS])
        for k in range(height):
            first_entry[k] = rows.indptr[rows.new_to_old[row0 + k]]
        slot0, near0, far0 = np.int64(table[c, SLOT]), np.int64(table[c, NEAR]), np.int64(table[c, FAR])
        for upper in (False, True):
            counts = U_PART if upper else L_PART
            entries = _gather(rows, cuts, c, upper, part)
            runs = _find_runs(row0, height, entries, part, differences, columns, storage)
            slots = _assign_slots(row0, entries, part, differences, runs, bounds)
            for k in range(runs):
                bases[slot0 + k] = differences.value[k]
            nears, fars = 0, 0
            for s in range(min(slots, to.shape[0])):
                if storage == PACKED and bounds.high[s] - bounds.low[s] < NEAR_SPAN:
                    to[s] = nears
                    bases[slot0 + runs + nears] = bounds.low[s]
                    nears += 1
            for s in range(min(slots, to.shape[0])):
                if storage != PACKED or bounds.high[s] - bounds.low[s] >= NEAR_SPAN:
                    to[s] = nears + fars
                    fars += 1
            for e in range(entries):
                at, of_row = slot[e], entry[e] - first_entry[lane[e]]
                if at < 0:
                    at = runs + (to[-1 - at] if -1 - at < to.shape[0] else -1 - at)
                for k in range(lane[e], lane[e] + times[e]):
                    values[(slot0 + at) * LANES + k] = data[first_entry[k] + of_row]
                if at < runs:
                    continue
                for k in range(times[e]):
                    if at < runs + nears:
                        near[(near0 + at - runs) * LANES + lane[e] + k] = column[e] + k - bases[slot0 + at]
                    else:
                        far[(far0 + at - runs - nears) * LANES + lane[e] + k] = column[e] + k
            slot0 += runs + table[c, counts + 1] + table[c, counts + 2]
            near0 += table[c, counts + 1]
            far0 += table[c, counts + 2]


@jit()
def mark(rows, surface, cuts, chunk_of, backward, marked):
    """Mark the chunks with a row next to other ranks, and propagate the marks to chunks in later groups.

    If `backward`, the marks are propagated to chunks in earlier groups. Chunks are neighbors if an entry connects two
    of their rows.

    forward     A chunk with a marked neighbor in an earlier group must wait for other ranks in a sweep. Marked chunks
                are swept after all unmarked ones. With a symmetric pattern, all later neighbors of a marked chunk are
                also marked, so the result does not change.
    backward    A chunk with a marked neighbor in a later group is needed by this neighbor in a sweep from zero, which
                reads only earlier groups.
    """
    new_to_old, old_to_new, indptr, indices = rows
    n, chunks = old_to_new.shape[0], cuts.first.shape[0]
    for turn in range(chunks):
        c = chunks - 1 - turn if backward else turn
        for r in range(cuts.first[c], cuts.end[c]):
            if surface[new_to_old[r]]:
                marked[c] = True
        if marked[c]:
            for r in range(cuts.first[c], cuts.end[c]):
                i = new_to_old[r]
                for k in range(indptr[i], indptr[i + 1]):
                    j = indices[k]
                    if j < n and (old_to_new[j] < r if backward else old_to_new[j] > r):
                        marked[chunk_of[old_to_new[j]]] = True
