"""Pack a sparse matrix into slots over chunks of successive rows, for `gs_simd`.

A chunk is up to LANES successive rows. A slot is one entry of each row of the chunk, with contiguous values, as in
`chunk_format`:

    run       columns base + row: one number for the slot; rows without such an entry store a zero
    columns   a 32-bit column for each row; rows without such an entry store a zero and some column

Runs exist in packed storage only. In the other storages, all slots store columns, but entries that most rows have at
the same distance from the diagonal still share a slot. The columns of such a slot are consecutive, so x is loaded as
vectors instead of gathered.

Slots form four parts: entries in columns before the chunk, in earlier columns of the chunk, in later columns of the
chunk, and after the chunk. The first two parts (L) of all chunks precede the last two parts (U) of all chunks. A sweep
that needs only L or U therefore reads memory without gaps, which hardware prefetchers would load. If few rows have
entries without a run before or after the chunk, these overflow entries are stored after U's slots, each with its
column and its lane.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mxpeak.kernels.host.engine.jit import inner, jit
from mxpeak.kernels.host.engine.vector_ir import piece
from mxpeak.kernels.host.sparse.chunk_format import MAX_DIFFERENCES, SHARE, find
from mxpeak.kernels.host.sparse.slot_sums import RECURRENCE_BLOCK
from mxpeak.kernels.host.sparse.slot_sums import SUCCESSIVE as LANES

#: The parts: before the chunk, in the chunk before the row, in the chunk after the row, and after the chunk.
BEFORE, EARLIER, LATER, AFTER, PARTS = (np.int64(part) for part in range(5))
#: Columns of the table of chunks: first row, rows, first slot and first slot with columns of L, the same two of U, the
#: numbers of runs and of slots with columns by part, the numbers of overflow entries before and after the chunk, and
#: `_next_slot` of the two parts inside the chunk.
ROW, ROWS, SLOT, FAR, U_SLOT, U_FAR, COUNTS = range(7)
OVERFLOW, NEXT = 2 * PARTS, 2 * PARTS + 2
TABLE = COUNTS + NEXT + 2
#: The largest number of entries of a slot that can be converted to overflow entries.
FEW = LANES // 4
#: Chunks of a unit, which one thread sweeps without synchronization, and the smallest number of rows of a chunk before
#: a plane of a mesh begins a new unit.
UNIT, LEAST = 5, LANES // 4
#: Columns of the table of row patterns: first key, number of keys, rows with this pattern, first key and number of
#: keys for all entries of such a row, and the number of its entries without a run.
FIRST, SIZE, USES, FIRST_OF_ALL, ALL, APART, PATTERN = range(7)
#: The key of an entry without a slot, which is on the diagonal or in the halo. No other key is zero.
NO_SLOT = np.int64(0)


class SlotColumns(NamedTuple):
    """The first chunk of each unit, the table of chunks, and the columns of all slots."""

    units: Any
    table: Any
    bases: Any
    far: Any

    @property
    def lower(self) -> int:
        """Return the number of stored values of L, including padding zeros."""
        return LANES * self._slots(BEFORE, LATER) + int(self._overflow[:, 0].sum())

    @property
    def upper(self) -> int:
        """Return the number of stored values of U, including padding zeros and the slots for overflow entries."""
        overflow_slots = int((-(-self._overflow.sum(axis=1) // LANES)).sum())
        return LANES * (self._slots(LATER, PARTS) + overflow_slots) - int(self._overflow[:, 0].sum())

    def _slots(self, first: np.int64, end: np.int64) -> int:
        """Return the number of slots in the parts first … end-1."""
        return int(self.table[:, COUNTS + 2 * first : COUNTS + 2 * end].sum(dtype=np.int64))

    @property
    def _overflow(self) -> Any:
        """Return the numbers of overflow entries before and after each chunk."""
        return self.table[:, COUNTS + OVERFLOW : COUNTS + NEXT].astype(np.int64)


class SlotMatrix(NamedTuple):
    """A matrix in slots, as compiled code receives it.

    The fields are those of `SlotColumns`, the values, the diagonal, and memory for 4·LANES sums per thread.
    """

    units: Any
    table: Any
    bases: Any
    far: Any
    values: Any
    diagonal: Any
    scratch: Any


class ChunkCuts(NamedTuple):
    """The rows first … end-1 of each chunk, and the largest number of entries of a chunk."""

    first: Any
    end: Any
    longest: int


class _Patterns(NamedTuple):
    """The row patterns of a chunk: rows whose entries have the same differences column - row share a pattern.

    table      the columns FIRST … of each pattern
    of_row     the pattern of each row
    key, slot  the key and the slot of each entry that has a slot
    all_keys   the keys of all entries
    """

    table: Any
    of_row: Any
    key: Any
    slot: Any
    all_keys: Any


class _Runs(NamedTuple):
    """The differences column - row of a chunk, the number of entries with each difference, and the part of each."""

    difference: Any
    hits: Any
    part: Any


class _Counts(NamedTuple):
    """Numbers of slots by part.

    taken   the number of slots that one row uses
    rows    the number of rows with an entry in slot s
    table   the columns COUNTS … of the table of chunks
    """

    taken: Any
    rows: Any
    table: Any


@inner(inline=True)
def slots_before(table, c, part):
    """Return the index of the first slot of a part of chunk c, and of the part's first slot with columns."""
    upper = np.int64(part >= LATER)
    slot, far = np.int64(table[c, SLOT + 2 * upper]), np.int64(table[c, FAR + 2 * upper])
    for p in range(LATER * upper, part):
        slot += table[c, COUNTS + 2 * p] + table[c, COUNTS + 2 * p + 1]
        far += table[c, COUNTS + 2 * p + 1]
    return slot, far


@jit()
def cut_chunks(youngest, chunk_row, units):
    """Divide rows into chunks and chunks into units, and return the numbers of chunks and of units.

    The function stores the first row of each chunk and the first chunk of each unit. youngest[r] is the last row
    before r that row r needs. A row begins a unit if it does not need any row within a unit's length, unless the same
    is true of the previous row. Units therefore begin at the planes of a mesh, and threads can sweep the planes in
    parallel.
    """
    chunks, count, rows, was_alone = 0, 0, 0, True
    for r in range(youngest.shape[0]):
        alone = youngest[r] < r - UNIT * LANES
        begins = alone and not was_alone and rows >= LEAST
        if r == 0 or rows == LANES or begins:
            if r == 0 or begins or chunks - units[count - 1] == UNIT:
                units[count] = chunks
                count += 1
            chunk_row[chunks] = r
            chunks += 1
            rows = 0
        rows += 1
        was_alone = alone
    units[count] = chunks
    return chunks, count


@inner(allocates=True)
def _scratch(longest):
    """Allocate the work arrays for finding the slots of a chunk with up to `longest` entries."""
    table, of_row = np.empty((LANES, PATTERN), np.int64), np.empty(LANES, np.int64)
    key, slot, counts = np.empty(longest, np.int64), np.empty(longest, np.int64), np.empty(NEXT + 2, np.int64)
    patterns = _Patterns(table, of_row, key, slot, np.empty(longest, np.int64))
    runs = _Runs(
        np.empty(2 * MAX_DIFFERENCES, np.int64),
        np.empty(2 * MAX_DIFFERENCES, np.int64),
        np.empty(2 * MAX_DIFFERENCES, np.int64),
    )
    return patterns, runs, _Counts(np.empty(PARTS, np.int64), np.empty((PARTS, longest), np.int64), counts)


@inner(inline=True)
def _part(difference, lane, rows):
    """Return the part, BEFORE = 0 to AFTER = 3, of an entry at `difference` from the diagonal, without a branch.

    `lane` is the index of the row in its chunk of `rows` rows.
    """
    to, after = lane + difference, np.int64(difference > 0)
    return np.int64(to >= 0) + after + after * np.int64(to >= rows)


@inner(inline=True)
def _key(old_to_new, i, j, r, lane, rows):
    """Return the key PARTS·(column - row) + part of an entry in old column j of row r, which is old row i.

    The key is NO_SLOT on the diagonal and in the halo.
    """
    inside = np.uint32(j) < np.uint32(old_to_new.shape[0])
    difference = np.int64(old_to_new[np.uint32(j if inside else i)]) - r  # zero in the halo and on the diagonal
    return PARTS * difference + _part(difference, lane, rows) if difference else NO_SLOT


@inner()
def _has_keys(keys, columns, old_to_new, i, r, lane, rows):
    """Return whether the entries of a row have the keys `keys`. The loop contains no writes, so that it vectorizes."""
    differ = np.int64(0)
    for k in range(columns.shape[0]):
        differ |= _key(old_to_new, i, columns[k], r, lane, rows) ^ keys[k]
    return differ == 0


@inner()
def _find_patterns(row0, height, rows, patterns):
    """Assign one pattern to all rows of a chunk whose entries have the same keys, and return the number of patterns."""
    new_to_old, old_to_new, indptr, indices = rows
    table, of_row, key, _, all_keys = patterns
    count, used, used_of_all, s = 0, 0, 0, 0
    for lane in range(height):
        r = row0 + lane
        i = new_to_old[r]
        columns = piece(indices, indptr[i], indptr[i + 1] - indptr[i])
        size = columns.shape[0]
        for back in range(count):  # most rows have the pattern of the previous row
            at = s - back if s >= back else s - back + count
            if table[at, ALL] != size:
                continue
            if _has_keys(piece(all_keys, table[at, FIRST_OF_ALL], size), columns, old_to_new, i, r, lane, height):
                s = at
                break
        else:
            s = count
            count += 1
            table[s, FIRST], table[s, USES] = used, 0
            table[s, FIRST_OF_ALL], table[s, ALL] = used_of_all, size
            for k in range(size):
                entry_key = _key(old_to_new, i, columns[k], r, lane, height)
                all_keys[used_of_all + k] = entry_key
                if entry_key != NO_SLOT:
                    key[used] = entry_key
                    used += 1
            table[s, SIZE] = used - table[s, FIRST]
            used_of_all += size
        of_row[lane] = s
        table[s, USES] += 1
    return count


@inner(inline=True)
def _move_to_overflow(counts):
    """Convert slots with few rows to overflow entries, if overflow entries need less than half of the memory."""
    table, rows = counts.table, counts.rows
    before, after, overflow_before, overflow_after = table[2 * BEFORE + 1], table[2 * AFTER + 1], 0, 0
    while before and rows[BEFORE, before - 1] <= FEW:
        before -= 1
        overflow_before += rows[BEFORE, before]
    while after and rows[AFTER, after - 1] <= FEW:
        after -= 1
        overflow_after += rows[AFTER, after]
    slots = (overflow_before + overflow_after + LANES - 1) // LANES
    if table[2 * BEFORE + 1] - before + table[2 * AFTER + 1] - after >= 2 * slots:
        table[2 * BEFORE + 1], table[2 * AFTER + 1] = before, after
        table[OVERFLOW], table[OVERFLOW + 1] = overflow_before, overflow_after


@inner(inline=True)
def rows_of_a_run(rows, packed):
    """Return the smallest number of rows for which entries with the same difference column - row get a slot.

    `rows` is the number of rows of the chunk. In packed storage, a padding zero of a run costs less memory than the
    columns of a slot without a run. In the other storages, a padding zero costs as much as an entry.
    """
    return (rows + SHARE - 1) // SHARE if packed else rows - rows // SHARE


@inner()
def _next_slot(p, height, count, run_count, patterns, runs, table):
    """Return the slot of part p whose entries are all next to the diagonal, or -1 if there is no such slot.

    The part is inside the chunk. The result is also -1 unless all other entries of the part connect rows in different
    blocks of RECURRENCE_BLOCK rows.
    """
    apart, index, slot = -1 if p == EARLIER else 1, 0, -1
    for k in range(run_count):
        if runs.part[k] == p:
            slot = index if runs.difference[k] == apart else slot
            index += 1
    for s in range(table[2 * p + 1] if slot < 0 else 0):
        alone = slot < 0
        for of in range(count):
            for e in range(patterns.table[of, FIRST], patterns.table[of, FIRST] + patterns.table[of, SIZE]):
                key = patterns.key[e]
                alone = alone and (key % PARTS != p or patterns.slot[e] != -1 - s or key // PARTS == apart)
        slot = index + s if alone else slot
    if slot < 0 or index + table[2 * p + 1] == 1:
        return slot
    for lane in range(height):
        s = patterns.of_row[lane]
        for e in range(patterns.table[s, FIRST], patterns.table[s, FIRST] + patterns.table[s, SIZE]):
            to, own = lane + patterns.key[e] // PARTS, patterns.slot[e]
            if patterns.key[e] % PARTS == p and to // RECURRENCE_BLOCK == lane // RECURRENCE_BLOCK:
                adjacent = runs.difference[own] == apart if own >= 0 else index - own - 1 == slot
                if not adjacent:
                    return -1
    return slot


@inner()
def _find_slots(row0, height, rows, columns, packed, scratch):
    """Find the slots of a chunk, and return the number of row patterns and the number of runs.

    counts.table receives the numbers of runs and of slots with columns by part, and then the numbers of overflow
    entries. `runs` lists the runs. A run belongs to the part of its innermost entry, so that no entry is included in a
    vector sum before its x is known. Entries that are not in a run are numbered s = 0, 1, … within their row and part.

    patterns.slot[e]        the run of entry e of a pattern, or -1 - s if it is not in a run
    counts.rows[part, s]    the number of rows with an entry of the number s
    """
    patterns, runs, counts = scratch
    count, size, run_count, least = _find_patterns(row0, height, rows, patterns), 0, 0, rows_of_a_run(height, packed)
    for s in range(count):
        hint = 0
        for e in range(patterns.table[s, FIRST], patterns.table[s, FIRST] + patterns.table[s, SIZE]):
            at = find(runs.difference, size, patterns.key[e] // PARTS, hint)
            if at < 0 and size < runs.difference.shape[0]:
                at = size
                runs.difference[size], runs.hits[size] = patterns.key[e] // PARTS, 0
                size += 1
            if at >= 0:
                runs.hits[at] += patterns.table[s, USES]
            hint = at + 1
    for k in range(size):
        # Lanes of rows without the entry also read x at this column, so it must exist. x has LANES numbers beyond its
        # last entry.
        difference = runs.difference[k]
        if runs.hits[k] >= least and row0 + difference >= 0 and row0 + difference <= columns:
            runs.difference[run_count], runs.part[run_count] = difference, BEFORE if difference < 0 else AFTER
            run_count += 1
    counts.table[:] = 0
    for s in range(count):
        hint, counts.taken[:] = 0, 0
        for e in range(patterns.table[s, FIRST], patterns.table[s, FIRST] + patterns.table[s, SIZE]):
            p, at = patterns.key[e] % PARTS, find(runs.difference, run_count, patterns.key[e] // PARTS, hint)
            if at >= 0:
                patterns.slot[e], hint = at, at + 1
                if EARLIER <= p <= LATER:
                    runs.part[at] = p
                continue
            own = counts.taken[p]
            patterns.slot[e] = -1 - own
            if own == counts.table[2 * p + 1]:
                counts.table[2 * p + 1] += 1
                counts.rows[p, own] = 0
            counts.rows[p, own] += patterns.table[s, USES]
            counts.taken[p] += 1
    _move_to_overflow(counts)
    for k in range(run_count):
        counts.table[2 * runs.part[k]] += 1
    for p in (EARLIER, LATER):
        counts.table[NEXT + (p == LATER)] = _next_slot(p, height, count, run_count, patterns, runs, counts.table)
    return count, run_count


@jit(allocates=True)
def count_slots(tid, threads, rows, cuts, columns, packed, table):
    """Store the rows and the numbers of slots of each of this thread's chunks in `table`."""
    chunks, scratch = cuts.first.shape[0], _scratch(cuts.longest)
    counts = scratch[2].table
    for c in range(chunks * tid // threads, chunks * (tid + 1) // threads):
        row0, height = cuts.first[c], cuts.end[c] - cuts.first[c]
        _find_slots(row0, height, rows, columns, packed, scratch)
        table[c, ROW], table[c, ROWS] = row0, height
        for p in range(0 if packed else PARTS):  # the columns of these runs are also stored
            counts[2 * p], counts[2 * p + 1] = 0, counts[2 * p] + counts[2 * p + 1]
        for k in range(NEXT + 2):
            table[c, COUNTS + k] = counts[k]


@jit(allocates=True)
def fill_slots(tid, threads, rows, data, longest, columns, packed, matrix, values):
    """Store the bases, columns and values of all slots in this thread's chunks. Values must be zero before."""
    table, bases, far, scratch = matrix.table, matrix.bases, matrix.far, _scratch(longest)
    patterns, runs, counts = scratch
    run_slot, far_to = np.empty(2 * MAX_DIFFERENCES, np.int64), np.empty(longest, np.int64)
    for c in range(table.shape[0] * tid // threads, table.shape[0] * (tid + 1) // threads):
        row0, height = np.int64(table[c, ROW]), np.int64(table[c, ROWS])
        count, run_count = _find_slots(row0, height, rows, columns, packed, scratch)
        for p in range(PARTS):
            slot0, far0 = slots_before(table, c, p)
            for k in range(run_count):
                if runs.part[k] == p:
                    bases[slot0], run_slot[k] = runs.difference[k], slot0
                    slot0 += 1
                    for lane in range(0 if packed else LANES):
                        far[far0 * LANES + lane] = row0 + lane + runs.difference[k]
                    far0 += 0 if packed else 1
            apart = -1 if p == EARLIER else 1 if p == LATER else 0
            for s in range(counts.table[2 * p + 1]):
                own = piece(far, (far0 + s) * LANES, LANES)
                for lane in range(LANES if counts.rows[p, s] < LANES else 0):
                    own[lane] = min(max(row0 + lane + apart, 0), columns)
        _place_patterns(table, c, count, packed, patterns, counts.table, run_slot, far_to)
        before = counts.table[OVERFLOW]
        slot0, far0 = slots_before(table, c, PARTS)
        overflow = before, slot0, far0, far0 + (before + counts.table[OVERFLOW + 1] + LANES - 1) // LANES
        _fill_rows(row0, height, rows, data, patterns, far_to, overflow, far, values)


@inner()
def _place_patterns(table, c, count, packed, patterns, counts, run_slot, far_to):
    """Replace patterns.slot and all_keys with offsets of values, and store the offsets of columns in far_to.

    The offsets are those of the entry's slot. An offset is -1 if the entry has no slot because it is on the diagonal,
    in the halo, or an overflow entry.
    """
    for s in range(count):
        first = patterns.table[s, FIRST]
        patterns.table[s, APART] = 0
        for e in range(first, first + patterns.table[s, SIZE]):
            if patterns.slot[e] >= 0:
                patterns.slot[e], far_to[e] = run_slot[patterns.slot[e]] * LANES, -1
                continue
            p, at = patterns.key[e] % PARTS, -1 - patterns.slot[e]
            slot0, far0 = slots_before(table, c, p)
            stays = at < counts[2 * p + 1]
            patterns.slot[e] = (slot0 + counts[2 * p] + at) * LANES if stays else -1
            far_to[e] = (far0 + at + (0 if packed else counts[2 * p])) * LANES if stays else -1
            patterns.table[s, APART] += 1
        e, first = first, patterns.table[s, FIRST_OF_ALL]
        for k in range(first, first + patterns.table[s, ALL]):
            has_slot = patterns.all_keys[k] != NO_SLOT
            patterns.all_keys[k] = patterns.slot[e] if has_slot else -1
            e += has_slot


@inner()
def _fill_rows(row0, height, rows, data, patterns, far_to, overflow, far, values):
    """Store the values of a chunk's rows, and the columns of the entries that are not in runs.

    `overflow` contains the number of overflow entries in columns before the chunk. It also contains the first slots
    for the values, columns and lanes of all overflow entries of the chunk.
    """
    new_to_old, old_to_new, indptr, indices = rows
    after, overflow_slot, overflow_far, overflow_lane = overflow
    before = np.int64(0)
    for lane in range(height):
        i, s = new_to_old[row0 + lane], patterns.of_row[lane]
        row = piece(data, indptr[i], patterns.table[s, ALL])
        to = piece(patterns.all_keys, patterns.table[s, FIRST_OF_ALL], patterns.table[s, ALL])
        for k in range(row.shape[0]):
            if to[k] >= 0:
                values[np.uint64(to[k] + lane)] = row[k]
        if patterns.table[s, APART] == 0:
            continue
        e = patterns.table[s, FIRST]
        for k in range(indptr[i], indptr[i + 1]):
            if indices[k] >= old_to_new.shape[0] or indices[k] == i:
                continue
            column = row0 + lane + patterns.key[e] // PARTS
            if far_to[e] >= 0:
                far[np.uint64(far_to[e] + lane)] = column
            elif patterns.slot[e] < 0:
                in_front = patterns.key[e] % PARTS == BEFORE
                at = before if in_front else after
                before, after = before + in_front, after + (not in_front)
                values[overflow_slot * LANES + at] = data[k]
                far[overflow_far * LANES + at] = column
                far[overflow_lane * LANES + at] = lane
            e += 1
