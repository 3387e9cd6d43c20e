"""Slots of chunks of successive rows: what tells a matrix's entries to `sparse_successive`, found from its rows.

A chunk is up to LANES successive rows.  A slot is one entry of each of them, values side by side, as in `sparse_pack`:

    run       columns base + row: one number for the slot; rows without such an entry hold a zero
    columns   a 32-bit column for each row; rows without such an entry hold a zero, and some column

With packed storage.  Otherwise columns are stored of all slots, but entries that most rows have at the same distance
from the diagonal share a slot all the same: a slot's columns then follow each other, and whoever reads them loads their
x as vectors instead of gathering it.

Slots stand in four parts: entries in columns before the chunk; in earlier columns of the chunk itself; in later ones of
it; after the chunk.  The first two, L, of all chunks stand before the last two, U, of all chunks: a sweep that needs
one of them reads memory without gaps, which prefetchers would fill.  Where few rows have entries that no run takes,
before the chunk or after it, these stand by themselves behind U's slots, each with its column and its lane: strays.
"""

from __future__ import annotations

import numpy as np

from mxpeak.kernels.host.engine.jit import inner, jit
from mxpeak.kernels.host.engine.vector_ir import piece
from mxpeak.kernels.host.sparse.chunk_format import MOST, SHARE, find
from mxpeak.kernels.host.sparse.slot_sums import STRETCH
from mxpeak.kernels.host.sparse.slot_sums import SUCCESSIVE as LANES

#: The parts: before the chunk, in it before the row, in it after the row, after the chunk.
BEFORE, EARLIER, LATER, AFTER, PARTS = (np.int64(part) for part in range(5))
#: Columns of the table of chunks: first row, rows, first slot and first slot of columns of L, those of U, then runs and
#: columns by part, then strays before the chunk and after it, then what `_next_slot` says of the two parts inside it.
ROW, ROWS, SLOT, FAR, U_SLOT, U_FAR, COUNTS = range(7)
STRAYS, NEXT = 2 * PARTS, 2 * PARTS + 2
TABLE = COUNTS + NEXT + 2
#: Entries of a slot, at most, that had better stand by themselves.
FEW = LANES // 4
#: Chunks of a unit, which one thread sweeps without looking at the others; rows from which on a mesh's plane begins a
#: new one.
UNIT, LEAST = 5, LANES // 4
#: Columns of the table of sorts of rows: first entry, entries, rows, the same two of all that such a row has, and how
#: many of its entries are in no run.
FIRST, SIZE, OF_IT, FIRST_OF_ALL, ALL, APART, SORT = range(7)
#: What stands for an entry that is in no slot, on the diagonal or from the halo: no key is zero.
NOWHERE = np.int64(0)


@inner(inline=True)
def slots_before(table, c, part):
    """The first slot and the first slot of columns of a part."""
    upper = np.int64(part >= LATER)
    slot, far = np.int64(table[c, SLOT + 2 * upper]), np.int64(table[c, FAR + 2 * upper])
    for p in range(LATER * upper, part):
        slot += table[c, COUNTS + 2 * p] + table[c, COUNTS + 2 * p + 1]
        far += table[c, COUNTS + 2 * p + 1]
    return slot, far


@jit()
def cut_chunks(youngest, chunk_row, units):
    """The first rows of chunks, and the first chunks of units; returns how many there are of each.

    A row whose youngest[r], the last row before it that it needs, is farther back than a unit is long begins a unit,
    unless that is so of the row before too: so do the planes of a mesh, which threads can take side by side.
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
    """What finding the slots of a chunk of so many entries takes: its sorts of rows, its runs, how often by part."""
    sorts, sort_of = np.empty((LANES, SORT), np.int64), np.empty(LANES, np.int64)
    key, slot, counts = np.empty(longest, np.int64), np.empty(longest, np.int64), np.empty(NEXT + 2, np.int64)
    keys = np.empty(longest, np.int64)
    known, hits, part_of = np.empty(2 * MOST, np.int64), np.empty(2 * MOST, np.int64), np.empty(2 * MOST, np.int64)
    taken, often = np.empty(PARTS, np.int64), np.empty((PARTS, longest), np.int64)
    return (sorts, sort_of, key, slot, keys), (known, hits, part_of), (taken, often, counts)


@inner(inline=True)
def _part(difference, lane, rows):
    """The part of an entry so far from the diagonal, without a branch: BEFORE to AFTER are 0 to 3."""
    to, after = lane + difference, np.int64(difference > 0)
    return np.int64(to >= 0) + after + after * np.int64(to >= rows)


@inner(inline=True)
def _key(old_to_new, i, j, r, lane, rows):
    """PARTS·difference + part of an entry in column j of row r, once row i, difference being column - row."""
    inside = np.uint32(j) < np.uint32(old_to_new.shape[0])
    difference = np.int64(old_to_new[np.uint32(j if inside else i)]) - r  # of the halo as of the diagonal: zero
    return PARTS * difference + _part(difference, lane, rows) if difference else NOWHERE


@inner()
def _is_of(keys, columns, old_to_new, i, r, lane, rows):
    """Whether a row's entries have these keys.  Nothing is written meanwhile, so that it can be done in vectors."""
    differ = np.int64(0)
    for k in range(columns.shape[0]):
        differ |= _key(old_to_new, i, columns[k], r, lane, rows) ^ keys[k]
    return differ == 0


@inner()
def _find_sorts(row0, rows, where, sorts_known):
    """Rows of a chunk whose entries have the same keys are of one sort; how many sorts."""
    new_to_old, old_to_new, indptr, indices = where
    sorts, sort_of, key, _, keys = sorts_known
    count, used, used_of_all, s = 0, 0, 0, 0
    for lane in range(rows):
        r = row0 + lane
        i = new_to_old[r]
        columns = piece(indices, indptr[i], indptr[i + 1] - indptr[i])
        size = columns.shape[0]
        for back in range(count):  # most rows are of the sort of the row before
            found = s - back if s >= back else s - back + count
            if sorts[found, ALL] != size:
                continue
            if _is_of(piece(keys, sorts[found, FIRST_OF_ALL], size), columns, old_to_new, i, r, lane, rows):
                s = found
                break
        else:
            s = count
            count += 1
            sorts[s, FIRST], sorts[s, OF_IT] = used, 0
            sorts[s, FIRST_OF_ALL], sorts[s, ALL] = used_of_all, size
            for k in range(size):
                one = _key(old_to_new, i, columns[k], r, lane, rows)
                keys[used_of_all + k] = one
                if one != NOWHERE:
                    key[used] = one
                    used += 1
            sorts[s, SIZE] = used - sorts[s, FIRST]
            used_of_all += size
        sort_of[lane] = s
        sorts[s, OF_IT] += 1
    return count


@inner(inline=True)
def _set_strays_apart(counts, often):
    """Let slots that few rows have be strays, where that takes less than half of the room."""
    before, after, strays_before, strays_after = counts[2 * BEFORE + 1], counts[2 * AFTER + 1], 0, 0
    while before and often[BEFORE, before - 1] <= FEW:
        before -= 1
        strays_before += often[BEFORE, before]
    while after and often[AFTER, after - 1] <= FEW:
        after -= 1
        strays_after += often[AFTER, after]
    slots = (strays_before + strays_after + LANES - 1) // LANES
    if counts[2 * BEFORE + 1] - before + counts[2 * AFTER + 1] - after >= 2 * slots:
        counts[2 * BEFORE + 1], counts[2 * AFTER + 1] = before, after
        counts[STRAYS], counts[STRAYS + 1] = strays_before, strays_after


@inner(inline=True)
def rows_of_a_run(rows, packed):
    """How many of a chunk's rows have to have a difference column - row for a slot of its own.

    A zero costs less than columns would; where columns are stored all the same, it costs as much as an entry.
    """
    return (rows + SHARE - 1) // SHARE if packed else rows - rows // SHARE


@inner()
def _next_slot(p, rows, count, runs, sorts_known, known, part_of, counts):
    """The slot of a part inside a chunk that has the rows next to each and no others, or -1.

    All others of the part have entries in other blocks of STRETCH rows.
    """
    sorts, sort_of, key, slot, _ = sorts_known
    apart, index, found = -1 if p == EARLIER else 1, 0, -1
    for k in range(runs):
        if part_of[k] == p:
            found = index if known[k] == apart else found
            index += 1
    for s in range(counts[2 * p + 1] if found < 0 else 0):
        alone = found < 0
        for of in range(count):
            for e in range(sorts[of, FIRST], sorts[of, FIRST] + sorts[of, SIZE]):
                alone = alone and (key[e] % PARTS != p or slot[e] != -1 - s or key[e] // PARTS == apart)
        found = index + s if alone else found
    if found < 0 or index + counts[2 * p + 1] == 1:
        return found
    for lane in range(rows):
        first = sorts[sort_of[lane], FIRST]
        for e in range(first, first + sorts[sort_of[lane], SIZE]):
            to = lane + key[e] // PARTS
            if key[e] % PARTS == p and to // STRETCH == lane // STRETCH:
                next_to = known[slot[e]] == apart if slot[e] >= 0 else index - slot[e] - 1 == found
                if not next_to:
                    return -1
    return found


@inner()
def _slots_of(row0, rows, where, columns, packed, sorts_known, runs_known, counted):
    """Which slots a chunk has: counts becomes runs and columns by part, then strays; returns (sorts, runs).

    known lists the runs, part_of their parts: that of the entry farthest inside, so that no entry is in a vector sum
    too early.  slot tells the run of each entry of a sort, or -1 - s for the s-th of its part without one; often[part,
    s] rows have such.
    """
    sorts, _, key, slot, _ = sorts_known
    known, hits, part_of = runs_known
    taken, often, counts = counted
    count, size, runs, least = _find_sorts(row0, rows, where, sorts_known), 0, 0, rows_of_a_run(rows, packed)
    for s in range(count):
        hint = 0
        for e in range(sorts[s, FIRST], sorts[s, FIRST] + sorts[s, SIZE]):
            at = find(known, size, key[e] // PARTS, hint)
            if at < 0 and size < known.shape[0]:
                at = size
                known[size], hits[size] = key[e] // PARTS, 0
                size += 1
            if at >= 0:
                hits[at] += sorts[s, OF_IT]
            hint = at + 1
    for k in range(size):
        # rows without the entry read there all the same, so it must exist; x has LANES numbers beyond its last
        if hits[k] >= least and row0 + known[k] >= 0 and row0 + known[k] <= columns:
            known[runs], part_of[runs] = known[k], BEFORE if known[k] < 0 else AFTER
            runs += 1
    counts[:] = 0
    for s in range(count):
        hint, taken[:] = 0, 0
        for e in range(sorts[s, FIRST], sorts[s, FIRST] + sorts[s, SIZE]):
            p, at = key[e] % PARTS, find(known, runs, key[e] // PARTS, hint)
            if at >= 0:
                slot[e], hint = at, at + 1
                if EARLIER <= p <= LATER:
                    part_of[at] = p
                continue
            slot[e] = -1 - taken[p]
            if taken[p] == counts[2 * p + 1]:
                counts[2 * p + 1] += 1
                often[p, taken[p]] = 0
            often[p, taken[p]] += sorts[s, OF_IT]
            taken[p] += 1
    _set_strays_apart(counts, often)
    for k in range(runs):
        counts[2 * part_of[k]] += 1
    for p in (EARLIER, LATER):
        at = _next_slot(p, rows, count, runs, sorts_known, known, part_of, counts)
        counts[NEXT + (p == LATER)] = at
    return count, runs


@jit(allocates=True)
def count_slots(
    tid, threads, new_to_old, old_to_new, indptr, indices, chunk_row, chunk_end, columns, packed, longest, table
):
    """Rows and counts of every chunk; none has more than `longest` entries.  A share of them for each thread."""
    chunks, where = chunk_row.shape[0], (new_to_old, old_to_new, indptr, indices)
    sorts_known, runs_known, counted = _scratch(longest)
    for c in range(chunks * tid // threads, chunks * (tid + 1) // threads):
        row0, rows = chunk_row[c], chunk_end[c] - chunk_row[c]
        _slots_of(row0, rows, where, columns, packed, sorts_known, runs_known, counted)
        table[c, ROW], table[c, ROWS] = row0, rows
        counts = counted[2]
        for p in range(0 if packed else PARTS):  # their columns are stored, too
            counts[2 * p], counts[2 * p + 1] = 0, counts[2 * p] + counts[2 * p + 1]
        for k in range(NEXT + 2):
            table[c, COUNTS + k] = counts[k]


@jit(allocates=True)
def fill_slots(
    tid, threads, new_to_old, old_to_new, indptr, indices, data, columns, packed, longest, table, bases, far, values
):
    """Bases, columns and values of every slot; a share of the chunks for each thread.  Values come as zeros."""
    n, chunks, where = new_to_old.shape[0], table.shape[0], (new_to_old, old_to_new, indptr, indices)
    sorts_known, runs_known, counted = _scratch(longest)
    (sorts, sort_of, key, slot, keys), (known, _, part_of), (_, often, counts) = sorts_known, runs_known, counted
    run_slot, far_to = np.empty(2 * MOST, np.int64), np.empty(longest, np.int64)
    for c in range(chunks * tid // threads, chunks * (tid + 1) // threads):
        row0, rows = np.int64(table[c, ROW]), np.int64(table[c, ROWS])
        count, runs = _slots_of(row0, rows, where, columns, packed, sorts_known, runs_known, counted)
        for p in range(PARTS):
            slot0, far0 = slots_before(table, c, p)
            for k in range(runs):
                if part_of[k] == p:
                    bases[slot0], run_slot[k] = known[k], slot0
                    slot0 += 1
                    for lane in range(0 if packed else LANES):
                        far[far0 * LANES + lane] = row0 + lane + known[k]
                    far0 += 0 if packed else 1
            apart = -1 if p == EARLIER else 1 if p == LATER else 0
            for s in range(counts[2 * p + 1]):
                own = piece(far, (far0 + s) * LANES, LANES)
                for lane in range(LANES if often[p, s] < LANES else 0):
                    own[lane] = min(max(row0 + lane + apart, 0), columns)
        # From here on slot tells where the values of a slot begin, -1 for strays, and far_to where its columns do; keys
        # tells slot of all that a row has, -1 also of what is nowhere.
        for s in range(count):
            sorts[s, APART] = 0
            for e in range(sorts[s, FIRST], sorts[s, FIRST] + sorts[s, SIZE]):
                if slot[e] >= 0:
                    slot[e], far_to[e] = run_slot[slot[e]] * LANES, -1
                    continue
                p, at = key[e] % PARTS, -1 - slot[e]
                slot0, far0 = slots_before(table, c, p)
                stays = at < counts[2 * p + 1]
                slot[e] = (slot0 + counts[2 * p] + at) * LANES if stays else -1
                far_to[e] = (far0 + at + (0 if packed else counts[2 * p])) * LANES if stays else -1
                sorts[s, APART] += 1
            e = sorts[s, FIRST]
            for k in range(sorts[s, FIRST_OF_ALL], sorts[s, FIRST_OF_ALL] + sorts[s, ALL]):
                somewhere = keys[k] != NOWHERE
                keys[k] = slot[e] if somewhere else -1
                e += somewhere
        stray_slot, stray_far = slots_before(table, c, PARTS)
        stray_lane = stray_far + (counts[STRAYS] + counts[STRAYS + 1] + LANES - 1) // LANES
        before, after = 0, counts[STRAYS]
        for lane in range(rows):
            i, s = new_to_old[row0 + lane], sort_of[lane]
            row = piece(data, indptr[i], sorts[s, ALL])
            to = piece(keys, sorts[s, FIRST_OF_ALL], sorts[s, ALL])
            for k in range(row.shape[0]):
                if to[k] >= 0:
                    values[np.uint64(to[k] + lane)] = row[k]
            if sorts[s, APART] == 0:
                continue
            e = sorts[s, FIRST]
            for k in range(indptr[i], indptr[i + 1]):
                if indices[k] >= n or indices[k] == i:
                    continue
                if far_to[e] >= 0:
                    far[np.uint64(far_to[e] + lane)] = row0 + lane + key[e] // PARTS
                elif slot[e] < 0:
                    in_front = key[e] % PARTS == BEFORE
                    at = before if in_front else after
                    before, after = before + in_front, after + (not in_front)
                    values[stray_slot * LANES + at] = data[k]
                    far[stray_far * LANES + at] = row0 + lane + key[e] // PARTS
                    far[stray_lane * LANES + at] = lane
                e += 1
