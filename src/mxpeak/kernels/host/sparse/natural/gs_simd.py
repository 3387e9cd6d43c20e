"""Gauss–Seidel in the natural order, and products, by vector instructions over slots (`slot_format`).

In a forward sweep, all entries of a chunk except those of its second part multiply values of x that are already known.
They are added in vectors. The second part is a recurrence along the chunk's rows. If each row needs only the previous
row, the recurrence is

    x_i = p_i - q_i x_{i-1},    p = (b - Σ) / d,   q = a_{i,i-1} / d

and needs one multiplication and one addition per row, most of them for several rows at a time (`run_forward`). If
lines of a mesh are shorter than a chunk, the other terms belong to earlier blocks of RECURRENCE_BLOCK rows. They are
added in vectors, block by block, before the recurrence of each block. All other recurrences are computed row by row. A
backward sweep works in the same way from the last row on, with the third part. `schedule` assigns units of chunks to
threads.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mxpeak.kernels.host.engine.jit import ZERO, inner, jit
from mxpeak.kernels.host.engine.vector_ir import Vectors, constant, data_of, piece
from mxpeak.kernels.host.sparse.chunk_format import BOTH, LOWER, UPPER
from mxpeak.kernels.host.sparse.natural.gs_csr import prefetch
from mxpeak.kernels.host.sparse.natural.schedule import publish_sometimes, wait
from mxpeak.kernels.host.sparse.natural.slot_format import (
    AFTER,
    BEFORE,
    COUNTS,
    EARLIER,
    FAR,
    LATER,
    NEXT,
    OVERFLOW,
    PARTS,
    ROW,
    ROWS,
    SLOT,
    slots_before,
)
from mxpeak.kernels.host.sparse.slot_sums import (
    I32,
    I64,
    PREFETCHES,
    RECURRENCE_BLOCK,
    SlotSpan,
    load_values,
    sum_block_columns,
    sum_block_runs,
    sum_successive_columns,
    sum_successive_runs,
    widened_value,
)
from mxpeak.kernels.host.sparse.slot_sums import SUCCESSIVE as LANES

#: Prefetch distance while a chunk is summed, in bytes of a row's slot. It reaches the next chunk of fp64 values, the
#: second chunk of fp32 values, and the fourth chunk of 16-bit values.
BYTES_AHEAD = 8


@inner(inline=True)
def _sum_parts(A, c, after, first, end, x, out):
    """Store the product of the parts first … end-1 of chunk c and x in `out`, and prefetch the chunk `after`.

    If `after` precedes c, the slots are also read backward, because memory is faster if values are read in one
    direction.
    """
    table, row, down, fresh = A.table, np.int64(A.table[c, ROW]), after < c, True
    for k in range(end - first):
        part = end - 1 - k if down else first + k
        upper = np.int64(part >= LATER)
        ahead = (np.int64(table[after, SLOT + 2 * upper]) - np.int64(table[c, SLOT + 2 * upper])) * LANES
        far_ahead = (np.int64(table[after, FAR + 2 * upper]) - np.int64(table[c, FAR + 2 * upper])) * LANES
        slot, far0 = slots_before(table, c, part)
        runs, columns = np.int64(table[c, COUNTS + 2 * part]), np.int64(table[c, COUNTS + 2 * part + 1])
        sum_successive_runs(SlotSpan(A.values, slot * LANES, A.bases, slot, runs), x, row, out, fresh, ahead, down)
        fresh = False
        if columns:
            of_columns = SlotSpan(A.values, (slot + runs) * LANES, A.far, far0 * LANES, columns)
            sum_successive_columns(of_columns, x, None, out, False, far_ahead, down)
    before = np.int64(table[c, COUNTS + OVERFLOW])
    overflow = before + np.int64(table[c, COUNTS + OVERFLOW + 1])
    if overflow:
        slot, far0 = slots_before(table, c, PARTS)
        lanes0 = far0 + (overflow + LANES - 1) // LANES
        values, columns = piece(A.values, slot * LANES, overflow), piece(A.far, far0 * LANES, overflow)
        lanes = piece(A.far, lanes0 * LANES, overflow)
        for k in range(before if first > BEFORE else 0, overflow if end == PARTS else before):
            a, x_k = widened_value(values[np.uint64(k)], out[0]), x[np.uint32(columns[np.uint64(k)])]
            out[np.uint32(lanes[np.uint64(k)])] += a * x_k


@inner(inline=True)
def _prefetch_recurrence(A, c, part, b):
    """Prefetch the data of the recurrence along chunk c: its slots of one part, and its rows of b and the diagonal."""
    if not PREFETCHES:
        return
    table, row, rows = A.table, np.int64(A.table[c, ROW]), np.int64(A.table[c, ROWS])
    slot, _ = slots_before(table, c, part)
    slots = np.int64(table[c, COUNTS + 2 * part]) + np.int64(table[c, COUNTS + 2 * part + 1])
    prefetch(A.values, slot * LANES, (slot + slots) * LANES)
    prefetch(A.diagonal, row, row + rows)
    prefetch(b, row, row + rows)


@inner(fastmath={"contract"}, inline=True)
def _row_sum(A, c, part, slots, lane, x):
    """Return Σ a_ij x_j over the entries of one row of chunk c in one part.

    `slots` is the pair of the part's first slot and its first slot with stored columns.
    """
    slot, far0 = slots
    runs, columns = np.int64(A.table[c, COUNTS + 2 * part]), np.int64(A.table[c, COUNTS + 2 * part + 1])
    row, total = np.int64(A.table[c, ROW]) + lane, x.dtype.type(0)
    for s in range(slot, slot + runs):
        total += widened_value(A.values[s * LANES + lane], total) * x[row + np.int64(A.bases[s])]
    for k in range(columns):
        a = widened_value(A.values[(slot + runs + k) * LANES + lane], total)
        total += a * x[np.uint32(A.far[(far0 + k) * LANES + lane])]
    return total


@intrinsic
def recurrence_terms(typingctx, b, first, second, a, slot, d, p, q):
    """Compute the terms p = (b - first - second) / d and q = a / d of a recurrence along LANES rows.

    The values of a are a[slot] … a[slot + LANES - 1].
    """
    signature = types.void(b, first, second, a, types.int64, d, p, q)

    def codegen(context, builder, signature, args):
        format_ = signature.args[3].dtype
        vectors = Vectors.of_registers(context, builder, signature.args[0], LANES, 64)
        arrays = [(kind, value) for kind, value in zip(signature.args, args) if kind != types.int64]
        b, first, second, a, d, p, q = (data_of(context, builder, *array) for array in arrays)
        a = builder.gep(a, [args[4]])
        for lane in range(0, LANES, vectors.lanes):
            b_l, first_l, second_l, a_l, d_l, p_l, q_l = (
                builder.gep(data, [I64(lane)]) for data in (b, first, second, a, d, p, q)
            )
            remainder = builder.fsub(builder.fsub(vectors.load(b_l), vectors.load(first_l)), vectors.load(second_l))
            reciprocal = builder.fdiv(constant(vectors.real, [1.0] * vectors.lanes), vectors.load(d_l))
            vectors.store(builder.fmul(remainder, reciprocal), p_l)
            vectors.store(builder.fmul(load_values(vectors, format_, a_l), reciprocal), q_l)
        return context.get_dummy_value()

    return signature, codegen


def _running(back):
    """Return an intrinsic that solves the recurrence of a chunk from the first lane, or from the last if `back`."""

    @intrinsic
    def run(typingctx, p, q, young, x):
        """Compute x_k = p_k - q_k x_{k-1}, or x_k = p_k - q_k x_{k+1} for the backward form, and return True.

        `young` is the known value of x from which the recurrence starts. If some |q_k| exceeds 1, the function
        computes nothing and returns False.
        """

        def codegen(context, builder, signature, args):
            return _solve_recurrence(context, builder, signature, args, back=back)

        return types.boolean(p, q, young, x), codegen

    return run


run_forward, run_backward = _running(back=False), _running(back=True)


def _solve_recurrence(context, builder, signature, args, *, back):
    """Emit the solution of a recurrence along a chunk, RECURRENCE_BLOCK lanes at a time.

    If x_k = P_k + R_k x_{k-s}, then x_k = (P_k + R_k P_{k-s}) + R_k R_{k-s} x_{k-2s}. After a few such doublings of s,
    all lanes of a block depend on the last x before the block. The chain of dependent multiplications then has a
    length of four instead of LANES. If some |q_k| exceeds 1, the products could overflow although x does not. The
    emitted code then returns False.
    """
    chunk, block = (Vectors(context, builder, signature.args[0], lanes) for lanes in (LANES, RECURRENCE_BLOCK))
    p_p, q_p, x_p = (data_of(context, builder, signature.args[k], args[k]) for k in (0, 1, 3))
    q = chunk.load(q_p)
    absolute = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(chunk.type, [chunk.type]), f"llvm.fabs.v{LANES}f{chunk.bits}"
    )
    small = builder.fcmp_ordered("<=", builder.call(absolute, [q]), constant(chunk.real, [1.0] * LANES))
    every = builder.icmp_signed("==", builder.bitcast(small, ir.IntType(LANES)), ir.IntType(LANES)(-1))
    with builder.if_then(every):
        P, R = chunk.load(p_p), builder.fneg(q)
        for apart in (1, 2, 4):
            P_before, R_before = (_earlier(builder, of, apart, back, other) for of, other in ((P, 0.0), (R, 1.0)))
            P, R = chunk.add_product(R, P_before, P), builder.fmul(R, R_before)
        young, firsts = args[2], range(0, LANES, RECURRENCE_BLOCK)
        for first in reversed(firsts) if back else firsts:
            lanes = constant(I32, range(first, first + RECURRENCE_BLOCK))
            P_b, R_b = (builder.shuffle_vector(of, of, lanes) for of in (P, R))
            x = block.add_product(R_b, block.all(young), P_b)
            block.store(x, builder.gep(x_p, [I64(first)]))
            young = builder.extract_element(x, I32(0 if back else RECURRENCE_BLOCK - 1))
    return builder.zext(every, context.get_value_type(types.boolean))


def _earlier(builder, vector, apart, back, other):
    """Shift a vector by `apart` lanes within each block: lane k receives lane k - apart, or k + apart if `back`.

    Lanes without a source lane in their block receive `other`.
    """
    from_ = []
    for lane in range(LANES):
        at = lane + apart if back else lane - apart
        from_.append(at if at // RECURRENCE_BLOCK == lane // RECURRENCE_BLOCK else LANES + lane)
    others = constant(vector.type.element, [other] * LANES)
    return builder.shuffle_vector(vector, others, constant(I32, from_))


@inner()
def _add_block(A, c, part, lane0, x, out):
    """Add the product of one part of a chunk and x to `out` for RECURRENCE_BLOCK lanes, from lane0 on.

    The slot next to the diagonal is omitted.
    """
    table, (slot, far0) = A.table, slots_before(A.table, c, part)
    upper = np.int64(part == LATER)
    runs, columns = np.int64(table[c, COUNTS + 2 * part]), np.int64(table[c, COUNTS + 2 * part + 1])
    row, adjacent = np.int64(table[c, ROW]) + lane0, np.int64(table[c, COUNTS + NEXT + upper])
    to = piece(out, lane0, RECURRENCE_BLOCK)
    for first, end in ((ZERO, adjacent), (adjacent + 1, runs + columns)):
        of_runs = SlotSpan(A.values, (slot + first) * LANES + lane0, A.bases, slot + first, min(end, runs) - first)
        sum_block_runs(of_runs, x, row, to, False, None, None)
        begin = max(first, runs)
        value0, column0 = (slot + begin) * LANES + lane0, (far0 + begin - runs) * LANES + lane0
        sum_block_columns(SlotSpan(A.values, value0, A.far, column0, end - begin), x, None, to, False, None, None)


@inner(fastmath={"contract"}, inline=True)
def _terms(A, row, rows, slot, b, sums, terms):
    """Compute p = (b - Σ) / d and q = a / d for the rows of a chunk, where a are the entries of one slot.

    Σ is the sum of the two arrays in `sums`. `terms` receives p and q.
    """
    (first, second), (p, q) = sums, terms
    b_c, d_c, one = piece(b, row, rows), piece(A.diagonal, row, rows), p.dtype.type(1)
    if rows == LANES:
        recurrence_terms(b_c, first, second, A.values, slot * LANES, d_c, p, q)
        return
    a = piece(A.values, slot * LANES, LANES)
    for k in range(rows):
        reciprocal = one / d_c[k]
        p[k] = (b_c[k] - first[k] - second[k]) * reciprocal
        q[k] = widened_value(a[k], one) * reciprocal


@inner(fastmath={"contract"}, inline=True)
def _terms_of_block(A, lane0, row, rows, slot, b, sums, terms):
    """Compute p and q as in `_terms`, for the RECURRENCE_BLOCK rows from lane0 on."""
    (first, second), (p, q) = sums, terms
    count = min(RECURRENCE_BLOCK, rows - lane0)
    b_c, d_c, a = piece(b, row + lane0, count), piece(A.diagonal, row + lane0, count), slot * LANES + lane0
    for k in range(count):
        reciprocal = p.dtype.type(1) / d_c[k]
        p[lane0 + k] = (b_c[k] - first[lane0 + k] - second[lane0 + k]) * reciprocal
        q[lane0 + k] = widened_value(A.values[a + k], reciprocal) * reciprocal


@inner(inline=True)
def _memory(A, tid):
    """Return this thread's workspace: arrays for the sums of L and U, and for the terms p and q of a chunk."""
    work = piece(A.scratch, tid * 4 * LANES, 4 * LANES)
    sums = piece(work, 0, LANES), piece(work, LANES, LANES)
    return sums, (piece(work, 2 * LANES, LANES), piece(work, 3 * LANES, LANES))


@jit(fastmath={"contract"})
def sweep_forward(tid, threads, schedule, A, b, x, keep, from_zero):
    """Solve (D + L) x = b - U x by a forward sweep over this thread's units of a schedule.

    If `from_zero`, U x is omitted. Unless `keep` is empty, the function stores keep_i = b_i - Σ_L a_ij x_j.
    """
    table, owner, (sums, terms) = A.table, schedule.owner, _memory(A, tid)
    (lower, upper), (p, q) = sums, terms
    ahead = BYTES_AHEAD // A.values.itemsize
    upper[:] = 0
    for u in range(schedule.first, schedule.end):
        if threads > 1:
            if owner[u] != tid:
                continue
            wait(tid, threads, schedule, u, u)
        for c in range(A.units[u], A.units[u + 1]):
            after, row, rows = min(c + ahead, table.shape[0] - 1), np.int64(table[c, ROW]), np.int64(table[c, ROWS])
            x_c = piece(x, row, rows)
            _prefetch_recurrence(A, after, EARLIER, b)
            _sum_parts(A, c, after, BEFORE, EARLIER, x, lower)
            if not from_zero:
                _sum_parts(A, c, after, LATER, PARTS, x, upper)
            slots = slots_before(table, c, EARLIER)
            at, young = np.int64(table[c, COUNTS + NEXT]), x[max(row - 1, 0)]
            if at == 0 and table[c, COUNTS + 2 * EARLIER] + table[c, COUNTS + 2 * EARLIER + 1] == 1:
                _terms(A, row, rows, slots[0], b, sums, terms)
                if rows < LANES or not run_forward(p, q, young, x_c):
                    for k in range(rows):
                        young = p[k] - q[k] * young
                        x_c[k] = young
            elif at >= 0:
                if from_zero:
                    x_c[:] = 0  # lanes without an entry also read x_c
                for lane0 in range(0, rows, RECURRENCE_BLOCK):
                    _add_block(A, c, EARLIER, lane0, x, lower)
                    _terms_of_block(A, lane0, row, rows, slots[0] + at, b, sums, terms)
                    for k in range(lane0, min(np.int64(lane0 + RECURRENCE_BLOCK), rows)):
                        young = p[k] - q[k] * young
                        x_c[k] = young
            if at >= 0:
                if keep.shape[0] > 0:
                    keep_c, d_c = piece(keep, row, rows), piece(A.diagonal, row, rows)
                    for k in range(rows):  # b - Σ_L, expressed by the numbers from which x was computed
                        keep_c[k] = d_c[k] * x_c[k] + upper[k]
                continue
            for k in range(rows):
                remainder = b[row + k] - lower[k] - _row_sum(A, c, EARLIER, slots, k, x)
                if keep.shape[0] > 0:
                    keep[row + k] = remainder
                x_c[k] = (remainder - upper[k]) / A.diagonal[row + k]
        if threads > 1:
            publish_sometimes(schedule, tid, u + 1, u + 1 == schedule.end or owner[u + 1] != tid)


@jit(fastmath={"contract"})
def sweep_backward(tid, threads, schedule, A, keep, x):
    """Solve (D + U) x = keep by a backward sweep over this thread's units of a schedule.

    The forward sweep has stored keep_i = b_i - Σ_L a_ij x_j.
    """
    table, owner, (sums, terms) = A.table, schedule.owner, _memory(A, tid)
    (lower, upper), (p, q) = sums, terms
    ahead = BYTES_AHEAD // A.values.itemsize
    lower[:] = 0
    count = owner.shape[0]
    for v in range(count - schedule.end, count - schedule.first):
        u = count - 1 - v
        if threads > 1:
            if owner[u] != tid:
                continue
            wait(tid, threads, schedule, u, v)
        for back in range(A.units[u + 1] - A.units[u]):
            c = A.units[u + 1] - 1 - back
            after, row, rows = max(c - ahead, 0), np.int64(table[c, ROW]), np.int64(table[c, ROWS])
            x_c = piece(x, row, rows)
            _prefetch_recurrence(A, after, LATER, keep)
            _sum_parts(A, c, after, AFTER, PARTS, x, upper)
            slots = slots_before(table, c, LATER)
            at, young = np.int64(table[c, COUNTS + NEXT + 1]), x[row + rows]
            if at == 0 and table[c, COUNTS + 2 * LATER] + table[c, COUNTS + 2 * LATER + 1] == 1:
                _terms(A, row, rows, slots[0], keep, sums, terms)
                if rows < LANES or not run_backward(p, q, young, x_c):
                    for back_k in range(rows):
                        k = rows - 1 - back_k
                        young = p[k] - q[k] * young
                        x_c[k] = young
                continue
            if at >= 0:
                for back_lane in range(0, rows, RECURRENCE_BLOCK):
                    lane0 = (rows - 1) // RECURRENCE_BLOCK * RECURRENCE_BLOCK - back_lane
                    _add_block(A, c, LATER, lane0, x, upper)
                    _terms_of_block(A, lane0, row, rows, slots[0] + at, keep, sums, terms)
                    end_k = min(np.int64(lane0 + RECURRENCE_BLOCK), rows)
                    for back_k in range(end_k - lane0):
                        k = end_k - 1 - back_k
                        young = p[k] - q[k] * young
                        x_c[k] = young
                continue
            for back_k in range(rows):
                k = rows - 1 - back_k
                x_c[k] = (keep[row + k] - upper[k] - _row_sum(A, c, LATER, slots, k, x)) / A.diagonal[row + k]
        if threads > 1:
            publish_sometimes(schedule, tid, v + 1, u == schedule.first or owner[u - 1] != tid)


@jit(fastmath={"contract"})
def multiply(tid, threads, A, x, y):
    """Compute y = (L + D + U) x for this thread's chunks."""
    table = A.table
    total, count, ahead = piece(A.scratch, tid * 4 * LANES, LANES), table.shape[0], BYTES_AHEAD // A.values.itemsize
    for c in range(count * tid // threads, count * (tid + 1) // threads):
        after, row, rows = min(c + ahead, count - 1), np.int64(table[c, ROW]), np.int64(table[c, ROWS])
        y_c, x_c, d_c = piece(y, row, rows), piece(x, row, rows), piece(A.diagonal, row, rows)
        _sum_parts(A, c, after, BEFORE, PARTS, x, total)
        for k in range(rows):
            y_c[k] = total[k] + d_c[k] * x_c[k]


@jit(fastmath={"contract"})
def residual(tid, threads, at, A, b, x, keep, r, parts):
    """Compute the residual r of this thread's share of the given chunks. `at` is the pair (chunks, targets).

    The residual of row i is stored in r[targets_i]. Rows with targets_i < 0 are omitted. `parts` selects the formula:

    BOTH    r = b - (L + D + U) x
    UPPER   r = -U x              after a sweep from zero, (D + L) x = b
    LOWER   r = b - keep - L x    after a backward sweep, (D + U) x = keep
    """
    (chunks, targets), table, total = at, A.table, piece(A.scratch, tid * 4 * LANES, LANES)
    count = chunks.shape[0]
    first, end = (LATER if parts == UPPER else BEFORE), (LATER if parts == LOWER else PARTS)
    for n in range(count * tid // threads, count * (tid + 1) // threads):
        c, after = chunks[n], chunks[min(n + 1, count - 1)]
        row, rows = np.int64(table[c, ROW]), np.int64(table[c, ROWS])
        b_c, x_c, d_c = piece(b, row, rows), piece(x, row, rows), piece(A.diagonal, row, rows)
        to, keep_c = piece(targets, row, rows), piece(keep, row, rows)
        _sum_parts(A, c, after, first, end, x, total)
        for k in range(rows):
            if to[k] >= 0 and parts == BOTH:
                r[to[k]] = b_c[k] - d_c[k] * x_c[k] - total[k]
            elif to[k] >= 0 and parts == LOWER:
                r[to[k]] = b_c[k] - keep_c[k] - total[k]
            elif to[k] >= 0:
                r[to[k]] = -total[k]
