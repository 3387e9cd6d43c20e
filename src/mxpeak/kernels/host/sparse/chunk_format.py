"""A sparse matrix cut into chunks of rows whose columns are told in as few bytes as they allow, in compiled code.

A chunk is up to LANES successive rows of one group; groups are sets of rows without entries between them.  It has two
parts, the entries in columns of earlier groups (L) and those of later ones (U); the diagonal is kept apart, and so is
what belongs to other ranks.  A part is a list of slots, each one entry of every row, with values one after the other:

    run    columns base + row:  one number for the slot; rows without such an entry hold a zero
    near   columns base + a 16-bit number for each row
    far    a 32-bit column for each row

Which a slot is follows from the columns alone.  A stencil's rows of one colour have nothing but runs.
"""

from __future__ import annotations

import numpy as np

from mxpeak.kernels.host.engine.jit import inner, jit
from mxpeak.kernels.host.sparse.slot_sums import LANES

#: Columns of the table of chunks: first row, rows, first slot, first near and far slot, then the counts of L and of U.
ROW, ROWS, SLOT, NEAR, FAR, L_PART, U_PART = 0, 1, 2, 3, 4, 5, 8
TABLE = 11
#: Ways to tell columns: 32-bit numbers, as many slots for all chunks of a group (ELLPACK), or for each (sliced); any.
ELL, SELL, PACKED = 0, 1, 2
STORAGES = {"ell": ELL, "sell": SELL, "packed": PACKED}
#: Differences column - row that are looked at in one part of a chunk; more of them are no runs.
MOST = 64
#: A difference is a run from this share of a chunk's rows on: then its zeros cost less than columns would.
SHARE = 4
#: Rows from which on a chunk ends where the differences change.
LEAST = LANES // 4
#: How far apart the columns of a near slot may be.
NEAR_SPAN = 2**16


@jit(allocates=True)
def cut_rows(
    tid, threads, starts, new_to_old, old_to_new, indptr, indices, adaptive, longest, chunk_row, counts, alike
):
    """The first rows of the chunks of each group g, at chunk_row[starts[g]] and on; counts[g] = how many there are.

    A chunk ends after LANES rows, or, from LEAST on, at a row most of whose differences column - row are new.  alike[r]
    = whether row r has those of the row before, one for one, and nothing of the halo; no row has more than `longest`.
    """
    n, known, mine = old_to_new.shape[0], np.empty(2 * MOST, np.int64), np.empty(longest, np.int64)
    for g in range(tid, counts.shape[0], threads):
        count, size, rows, entries = 0, 0, 0, 0
        for r in range(starts[g], starts[g + 1]):
            i = new_to_old[r]
            if adaptive:
                same = r > starts[g] and entries == indptr[i + 1] - indptr[i]
                entries = indptr[i + 1] - indptr[i]
                for k in range(entries):
                    j = indices[indptr[i] + k]
                    difference = old_to_new[j] - r if j < n else n  # no column is so far away
                    same = same and difference == mine[k] and j < n
                    mine[k] = difference
                alike[r] = same
            # a row like the one before goes where that went, unless not all differences of that one found a place
            if adaptive and LEAST <= rows < LANES and not (alike[r] and size < known.shape[0]):
                old, others = 0, 0
                for k in range(entries):
                    if mine[k] != 0 and mine[k] != n:
                        old += 1 if find(known, size, mine[k], others) >= 0 else 0
                        others += 1
                if 4 * old < 3 * min(others, size):
                    rows = LANES
            if rows == LANES or rows == 0:
                chunk_row[starts[g] + count] = r
                count += 1
                rows, size = 0, 0
            rows += 1
            if adaptive and rows <= LEAST and (rows == 1 or not alike[r]):
                hint = 0
                for k in range(entries):
                    if mine[k] != 0 and mine[k] != n:
                        at = find(known, size, mine[k], hint)
                        if at < 0 and size < known.shape[0]:
                            at = size
                            known[size] = mine[k]
                            size += 1
                        hint = at + 1
        counts[g] = count


@inner(inline=True)
def find(known, size, value, hint):
    """The index of a value among the first `size`; the hint is looked at first.  -1 if it is not there."""
    if 0 <= hint < size and known[hint] == value:
        return hint
    for k in range(size):
        if known[k] == value:
            return k
    return -1


@inner()
def _gather(row0, rows, upper, where, start, alike, column, lane, entry, times):
    """One part of a chunk, row after row: column (new number), lane, index into `indices`; returns how many entries.

    Rows like the one before are not listed: the first of them has its entries so many times.
    """
    new_to_old, old_to_new, indptr, indices = where
    n, count, r = old_to_new.shape[0], 0, row0
    while r < row0 + rows:
        again = 1
        while r + again < row0 + rows and alike[r + again]:
            again += 1
        i = new_to_old[r]
        for k in range(indptr[i], indptr[i + 1]):
            j = indices[k]
            if j < n and j != i and (old_to_new[j] >= start) == upper:
                column[count], lane[count], entry[count], times[count] = old_to_new[j], r - row0, k, again
                count += 1
        r += again
    return count


@inner()
def _differences(row0, rows, entries, column, lane, times, known, count, columns, storage):
    """The differences of one part of a chunk that become runs: known[:size], in order of first sight; returns size."""
    size, hint = 0, 0
    if storage != PACKED:
        return 0
    for e in range(entries):
        if e and lane[e] != lane[e - 1]:
            hint = 0
        difference = column[e] - row0 - lane[e]
        at = find(known, size, difference, hint)
        if at < 0 and size < MOST:
            at = size
            known[at], count[at] = difference, 0
            size += 1
        if at >= 0:
            count[at] += times[e]
        hint = at + 1
    kept = 0
    for k in range(size):
        # rows without the entry read there all the same, so it must exist; x has LANES numbers beyond its last
        if SHARE * count[k] >= rows and row0 + known[k] >= 0 and row0 + known[k] <= columns:
            known[kept] = known[k]
            kept += 1
    return kept


@inner()
def _assign_slots(row0, entries, column, lane, times, known, runs, low, high, slot):
    """slot[e] = the run of an entry, or -1 - s for the s-th of its row that is in none; returns how many such slots.

    low[s] and high[s] bound the columns of such a slot, as far as they are long.
    """
    slots, s, hint = 0, 0, 0
    for e in range(entries):
        if e and lane[e] != lane[e - 1]:
            s, hint = 0, 0
        at = find(known, runs, column[e] - row0 - lane[e], hint)
        slot[e] = at
        if at >= 0:
            hint = at + 1
            continue
        slot[e] = -1 - s
        if s < low.shape[0]:
            if s >= slots:
                low[s] = high[s] = column[e]
            low[s], high[s] = min(low[s], column[e]), max(high[s], column[e] + times[e] - 1)
        s += 1
        slots = max(slots, s)
    return slots


@jit(allocates=True)
def count_slots(
    tid,
    threads,
    new_to_old,
    old_to_new,
    indptr,
    indices,
    chunk_row,
    chunk_end,
    chunk_start,
    alike,
    columns,
    storage,
    longest,
    table,
):
    """Rows and counts of every chunk; none has more than `longest` entries.  A share of them for each thread."""
    chunks = chunk_row.shape[0]
    known, count = np.empty(MOST, np.int64), np.empty(MOST, np.int64)
    low, high = np.empty(4 * MOST, np.int64), np.empty(4 * MOST, np.int64)
    column, lane, slot = np.empty(longest, np.int32), np.empty(longest, np.int32), np.empty(longest, np.int32)
    entry, times = np.empty(longest, np.int64), np.empty(longest, np.int64)
    where = (new_to_old, old_to_new, indptr, indices)
    for c in range(chunks * tid // threads, chunks * (tid + 1) // threads):
        row0, rows = chunk_row[c], chunk_end[c] - chunk_row[c]
        table[c, ROW], table[c, ROWS] = row0, rows
        for upper in (False, True):
            part = U_PART if upper else L_PART
            entries = _gather(row0, rows, upper, where, chunk_start[c], alike, column, lane, entry, times)
            runs = _differences(row0, rows, entries, column, lane, times, known, count, columns, storage)
            slots = _assign_slots(row0, entries, column, lane, times, known, runs, low, high, slot)
            near = 0
            if storage == PACKED:
                for s in range(min(slots, low.shape[0])):
                    near += 1 if high[s] - low[s] < NEAR_SPAN else 0
            table[c, part], table[c, part + 1], table[c, part + 2] = runs, near, slots - near


@jit(allocates=True)
def fill_slots(
    tid,
    threads,
    new_to_old,
    old_to_new,
    indptr,
    indices,
    data,
    chunk_start,
    alike,
    columns,
    storage,
    longest,
    table,
    bases,
    near,
    far,
    values,
):
    """Bases, columns and values of every slot; a share of the chunks for each thread.  All arrays come as zeros."""
    chunks = table.shape[0]
    known, count, begins = np.empty(MOST, np.int64), np.empty(MOST, np.int64), np.empty(LANES, np.int64)
    low, high, to = np.empty(4 * MOST, np.int64), np.empty(4 * MOST, np.int64), np.empty(4 * MOST, np.int64)
    column, lane, slot = np.empty(longest, np.int32), np.empty(longest, np.int32), np.empty(longest, np.int32)
    entry, times = np.empty(longest, np.int64), np.empty(longest, np.int64)
    where = (new_to_old, old_to_new, indptr, indices)
    for c in range(chunks * tid // threads, chunks * (tid + 1) // threads):
        row0, rows = np.int64(table[c, ROW]), np.int64(table[c, ROWS])
        for k in range(rows):
            begins[k] = indptr[new_to_old[row0 + k]]
        slot0, near0, far0 = np.int64(table[c, SLOT]), np.int64(table[c, NEAR]), np.int64(table[c, FAR])
        for upper in (False, True):
            part = U_PART if upper else L_PART
            entries = _gather(row0, rows, upper, where, chunk_start[c], alike, column, lane, entry, times)
            runs = _differences(row0, rows, entries, column, lane, times, known, count, columns, storage)
            slots = _assign_slots(row0, entries, column, lane, times, known, runs, low, high, slot)
            for k in range(runs):
                bases[slot0 + k] = known[k]
            nears, fars = 0, 0
            for s in range(min(slots, to.shape[0])):
                if storage == PACKED and high[s] - low[s] < NEAR_SPAN:
                    to[s] = nears
                    bases[slot0 + runs + nears] = low[s]
                    nears += 1
            for s in range(min(slots, to.shape[0])):
                if storage != PACKED or high[s] - low[s] >= NEAR_SPAN:
                    to[s] = nears + fars
                    fars += 1
            for e in range(entries):
                at, of_row = slot[e], entry[e] - begins[lane[e]]
                if at < 0:
                    at = runs + (to[-1 - at] if -1 - at < to.shape[0] else -1 - at)
                for k in range(lane[e], lane[e] + times[e]):
                    values[(slot0 + at) * LANES + k] = data[begins[k] + of_row]
                if at < runs:
                    continue
                for k in range(times[e]):
                    if at < runs + nears:
                        near[(near0 + at - runs) * LANES + lane[e] + k] = column[e] + k - bases[slot0 + at]
                    else:
                        far[(far0 + at - runs - nears) * LANES + lane[e] + k] = column[e] + k
            slot0 += runs + table[c, part + 1] + table[c, part + 2]
            near0 += table[c, part + 1]
            far0 += table[c, part + 2]


@jit()
def halo_entries(new_to_old, indptr, indices, data, n, rows, pointer, columns, values):
    """The entries of H, for the rows (new numbers, ascending) that have some; columns from 0 on."""
    at = 0
    for s in range(rows.shape[0]):
        i = new_to_old[rows[s]]
        pointer[s] = at
        for k in range(indptr[i], indptr[i + 1]):
            if indices[k] >= n:
                columns[at], values[at] = indices[k] - n, data[k]
                at += 1
    pointer[rows.shape[0]] = at


@jit()
def count_halo(new_to_old, surface, indptr, indices, n, rows):
    """rows = the new numbers of rows with entries of H; returns (how many rows, how many entries)."""
    found, entries = 0, 0
    for r in range(n):
        if surface[new_to_old[r]]:
            rows[found] = r
            found += 1
            for k in range(indptr[new_to_old[r]], indptr[new_to_old[r] + 1]):
                entries += 1 if indices[k] >= n else 0
    return found, entries


@jit()
def mark(new_to_old, old_to_new, surface, indptr, indices, chunk_row, chunk_end, chunk_of, backward, marked):
    """marked[c]: chunk c has a row beside other ranks, or a neighbour that is marked in an earlier or a later group.

    forward     in an earlier group: the chunk must wait for other ranks in a sweep.  A neighbour that is marked comes
                after all that are not; with a symmetric pattern the neighbours before which it comes are marked too.
    backward    in a later group: the chunk is needed there in a sweep from zero, which reads earlier groups alone
    """
    n, chunks = old_to_new.shape[0], chunk_row.shape[0]
    for turn in range(chunks):
        c = chunks - 1 - turn if backward else turn
        for r in range(chunk_row[c], chunk_end[c]):
            if surface[new_to_old[r]]:
                marked[c] = True
        if marked[c]:
            for r in range(chunk_row[c], chunk_end[c]):
                i = new_to_old[r]
                for k in range(indptr[i], indptr[i + 1]):
                    j = indices[k]
                    if j < n and (old_to_new[j] < r if backward else old_to_new[j] > r):
                        marked[chunk_of[old_to_new[j]]] = True


@jit()
def diagonal_of(tid, threads, new_to_old, indptr, indices, data, diagonal):
    """diagonal = a_ii, in the order of the chunks."""
    n = new_to_old.shape[0]
    for r in range(n * tid // threads, n * (tid + 1) // threads):
        i = new_to_old[r]
        k = (indptr[i] + indptr[i + 1]) // 2  # where a stencil has it
        if k < indptr[i + 1] and indices[k] == i:
            diagonal[r] = data[k]
            continue
        for k in range(indptr[i], indptr[i + 1]):
            if indices[k] == i:
                diagonal[r] = data[k]
                break


@jit()
def row_sums(tid, threads, new_to_old, indptr, data, sums):
    """sums = Σ_j a_ij, in the order of the chunks."""
    n = new_to_old.shape[0]
    for r in range(n * tid // threads, n * (tid + 1) // threads):
        total = 0.0
        for k in range(indptr[new_to_old[r]], indptr[new_to_old[r] + 1]):
            total += data[k]
        sums[r] = total
