"""Gauss-Seidel row after row in vector instructions: chunks of successive rows, columns as runs where they are runs.

A chunk is up to LANES successive rows.  A slot is one entry of each of them, values side by side, as in `sparse_pack`:

    run       columns base + row: one number for the slot; rows without such an entry hold a zero
    columns   a 32-bit column for each row; rows without such an entry hold a zero, and some column

With packed storage.  Otherwise columns are stored of all slots, but entries that most rows have at the same distance
from the diagonal share a slot all the same: a slot's columns then follow each other, and whoever reads them loads their
x as vectors instead of gathering it.

Slots stand in four parts: entries in columns before the chunk; in earlier columns of the chunk itself; in later ones of
it; after the chunk.  The first two, L, of all chunks stand before the last two, U, of all chunks: a sweep that needs
one of them reads memory without gaps, which prefetchers would fill.  Where few rows have entries that no run takes,
before the chunk or after it, these stand by themselves behind U's slots, each with its column and its lane: strays.  A
forward sweep adds up all but the second part in vectors: the x of the others are known, old or new.  What is left is a
recurrence along the chunk's rows.  Where it has one term, that of the row before, it is

    x_i = p_i - q_i x_{i-1},    p = (b - Σ) / d,   q = a_{i,i-1} / d

and takes a multiplication and an addition a row, most of them for several rows at once (`sparse_recurrence`).  Where
lines of a mesh are shorter than a chunk, other terms are of earlier blocks of STRETCH rows: they are added up in
vectors, block by block, each before its recurrence.  Rows of which neither is so are taken one by one.  A backward
sweep is the same from the last row on, with the third part.  Units of chunks go to threads as `sparse_natural` has it.
"""

from __future__ import annotations

import numpy as np

from mxpeak.kernels.host import sparse_sweep as sweep
from mxpeak.kernels.host.jit import ZERO, inner, jit
from mxpeak.kernels.host.native import piece
from mxpeak.kernels.host.sparse_native import (
    STRETCH,
    add_strays,
    sum_block_columns,
    sum_block_runs,
    sum_successive_columns,
    sum_successive_runs,
    widened_value,
)
from mxpeak.kernels.host.sparse_native import SUCCESSIVE as LANES
from mxpeak.kernels.host.sparse_natural import say, wait
from mxpeak.kernels.host.sparse_pack import MOST, SHARE, find
from mxpeak.kernels.host.sparse_recurrence import recurrence, run_backward, run_forward

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
#: How far ahead memory is asked for while a chunk is summed, in bytes of a row's slot: the next chunk of fp64 values,
#: the second of fp32's, the fourth of 16 bits'.
BYTES_AHEAD = 8
#: Columns of the table of sorts of rows: first entry, entries, rows.
FIRST, SIZE, OF_IT, SORT = range(4)


@inner(inline=True)
def slots_before(table, c, part):
    """The first slot and the first slot of columns of a part."""
    upper = np.int64(part >= LATER)
    slot, far = np.int64(table[c, SLOT + 2 * upper]), np.int64(table[c, FAR + 2 * upper])
    for p in range(LATER * upper, part):
        slot += table[c, COUNTS + 2 * p] + table[c, COUNTS + 2 * p + 1]
        far += table[c, COUNTS + 2 * p + 1]
    return slot, far


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
            wait(tid, threads, progress, needs, u, yield_address)
        for c in range(units[u], units[u + 1]):
            after, row, rows = min(c + ahead, table.shape[0] - 1), np.int64(table[c, ROW]), np.int64(table[c, ROWS])
            x_c = piece(x, row, rows)
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
            say(progress, tid, u + 1)


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
            wait(tid, threads, progress, needs, u, yield_address)
        for back in range(units[u + 1] - units[u]):
            c = units[u + 1] - 1 - back
            after, row, rows = max(c - ahead, 0), np.int64(table[c, ROW]), np.int64(table[c, ROWS])
            x_c = piece(x, row, rows)
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
            say(progress, tid, v + 1)


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


# --- set-up -----------------------------------------------------------------------------------------------------


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
    known, hits, part_of = np.empty(2 * MOST, np.int64), np.empty(2 * MOST, np.int64), np.empty(2 * MOST, np.int64)
    taken, often = np.empty(PARTS, np.int64), np.empty((PARTS, longest), np.int64)
    return (sorts, sort_of, key, slot), (known, hits, part_of), (taken, often, counts)


@inner(inline=True)
def _part(difference, lane, rows):
    """The part of an entry so far from the diagonal."""
    if difference < 0:
        return EARLIER if lane + difference >= 0 else BEFORE
    return LATER if lane + difference < rows else AFTER


@inner()
def _find_sorts(row0, rows, where, sorts_known):
    """Rows of a chunk with the same entries, told by difference column - row and part, are of one sort; how many sorts.

    key = PARTS·difference + part of each entry of a sort.
    """
    new_to_old, old_to_new, indptr, indices = where
    sorts, sort_of, key, _ = sorts_known
    n, count, used, s = new_to_old.shape[0], 0, 0, 0
    for lane in range(rows):
        r = row0 + lane
        i, size = new_to_old[r], 0
        columns, mine = piece(indices, indptr[i], indptr[i + 1] - indptr[i]), key[used:]
        for k in range(columns.shape[0]):
            j = columns[k]
            if j < n and j != i:
                difference = np.int64(old_to_new[np.uint32(j)]) - r
                mine[np.uint64(size)] = PARTS * difference + _part(difference, lane, rows)
                size += 1
        for back in range(count):  # most rows are of the sort of the row before
            found = s - back if s >= back else s - back + count
            if sorts[found, SIZE] == size:
                others, k = piece(key, sorts[found, FIRST], size), 0
                while k < size and others[k] == mine[k]:
                    k += 1
                if k == size:
                    s = found
                    break
        else:
            s = count
            count += 1
            sorts[s, FIRST], sorts[s, SIZE], sorts[s, OF_IT] = used, size, 0
            used += size
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
    sorts, sort_of, key, slot = sorts_known
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
    sorts, _, key, slot = sorts_known
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
):  # fmt: skip
    """Bases, columns and values of every slot; a share of the chunks for each thread.  Values come as zeros."""
    n, chunks, where = new_to_old.shape[0], table.shape[0], (new_to_old, old_to_new, indptr, indices)
    sorts_known, runs_known, counted = _scratch(longest)
    (sorts, sort_of, key, slot), (known, _, part_of), (_, often, counts) = sorts_known, runs_known, counted
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
        # From here on slot tells where the values of a slot begin, -1 for strays, and far_to where its columns do.
        for s in range(count):
            for e in range(sorts[s, FIRST], sorts[s, FIRST] + sorts[s, SIZE]):
                if slot[e] >= 0:
                    slot[e], far_to[e] = run_slot[slot[e]] * LANES, -1
                    continue
                p, at = key[e] % PARTS, -1 - slot[e]
                slot0, far0 = slots_before(table, c, p)
                stays = at < counts[2 * p + 1]
                slot[e] = (slot0 + counts[2 * p] + at) * LANES if stays else -1
                far_to[e] = (far0 + at + (0 if packed else counts[2 * p])) * LANES if stays else -1
        stray_slot, stray_far = slots_before(table, c, PARTS)
        stray_lane = stray_far + (counts[STRAYS] + counts[STRAYS + 1] + LANES - 1) // LANES
        before, after = 0, counts[STRAYS]
        for lane in range(rows):
            i, e = new_to_old[row0 + lane], np.uint64(sorts[sort_of[lane], FIRST])
            for k in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
                if indices[k] >= n or indices[k] == i:
                    continue
                if slot[e] >= 0:
                    values[np.uint64(slot[e] + lane)] = data[k]
                    if far_to[e] >= 0:
                        far[np.uint64(far_to[e] + lane)] = row0 + lane + key[e] // PARTS
                else:
                    in_front = key[e] % PARTS == BEFORE
                    at = before if in_front else after
                    before, after = before + in_front, after + (not in_front)
                    values[stray_slot * LANES + at] = data[k]
                    far[stray_far * LANES + at] = row0 + lane + key[e] // PARTS
                    far[stray_lane * LANES + at] = lane
                e += np.uint64(1)
