"""Gauss–Seidel sweeps, products and residuals over chunks of independent rows (`chunk_format`), in compiled code.

The stored formats are float64, float32, int16 (bf16), uint16 (fp16) and uint8 (fp8). Sums have the vectors' type, or
fp32 if the vectors are in bf16 or fp16, whose numbers are widened as they are read and rounded as they are written.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mxpeak.kernels.host.engine.half import narrowed, widened
from mxpeak.kernels.host.engine.jit import FALSE, ONE, TRUE, inner, jit
from mxpeak.kernels.host.engine.vector_ir import barrier, piece
from mxpeak.kernels.host.sparse.chunk_format import BOTH, FAR, L_PART, LOWER, NEAR, ROW, ROWS, SLOT, U_PART, UPPER
from mxpeak.kernels.host.sparse.slot_sums import LANES, SlotSpan, sum_runs, widened_value


class StepList(NamedTuple):
    """The chunks in the order of a forward sweep. Step s has the independent chunks[first[s] : first[s+1]]."""

    chunks: Any
    first: Any


@inner(fastmath={"contract"}, inline=True)
def _add_part(row, rows, slots, counts, A, x, out, fresh):
    """Compute the product of one part of a chunk and x, and add it to `out`, or store it in `out` if `fresh`.

    The part is described by its first slots and by its numbers of runs, near slots and far slots.
    """
    (slot, near0, far0), (runs, nears, fars) = slots, counts
    sum_runs(SlotSpan(A.values, slot * LANES, A.bases, slot, runs), x, row, out, fresh, None, None)
    for s in range(nears):
        value = piece(A.values, (slot + runs + s) * LANES, LANES)
        column = piece(A.near, (near0 + s) * LANES, LANES)
        base = np.int64(A.bases[slot + runs + s])
        for lane in range(rows):
            out[lane] += widened_value(value[lane], out[0]) * widened(x[base + np.int64(column[lane])])
    for s in range(fars):
        value = piece(A.values, (slot + runs + nears + s) * LANES, LANES)
        column = piece(A.far, (far0 + s) * LANES, LANES)
        for lane in range(rows):
            out[lane] += widened_value(value[lane], out[0]) * widened(x[np.uint32(column[lane])])


@inner(inline=True)
def _add_lower(A, c, wanted, x, out):
    """Store L x for the rows of chunk c in `out` if wanted = 1, or zeros if wanted = 0.

    The counts of slots are multiplied by `wanted`, which is faster than a branch.
    """
    table = A.table
    slots = np.int64(table[c, SLOT]), np.int64(table[c, NEAR]), np.int64(table[c, FAR])
    counts = wanted * table[c, L_PART], wanted * table[c, L_PART + 1], wanted * table[c, L_PART + 2]
    _add_part(np.int64(table[c, ROW]), np.int64(table[c, ROWS]), slots, counts, A, x, out, TRUE)


@inner(inline=True)
def _add_upper(A, c, wanted, x, out):
    """Add U x for the rows of chunk c to `out` if wanted = 1. If wanted = 0, leave `out` unchanged."""
    table = A.table
    slot = np.int64(table[c, SLOT]) + table[c, L_PART] + table[c, L_PART + 1] + table[c, L_PART + 2]
    slots = slot, np.int64(table[c, NEAR]) + table[c, L_PART + 1], np.int64(table[c, FAR]) + table[c, L_PART + 2]
    counts = wanted * table[c, U_PART], wanted * table[c, U_PART + 1], wanted * table[c, U_PART + 2]
    _add_part(np.int64(table[c, ROW]), np.int64(table[c, ROWS]), slots, counts, A, x, out, FALSE)


@jit(fastmath={"contract"})
def sweep(tid, threads, synchronization, steps, A, b, x, keep, parts):
    """Compute x_i = (b_i - Σ_L a_ij x_j - Σ_U a_ij x_j) / a_ii step by step, and store keep_i = b_i - Σ_L a_ij x_j.

    `parts` selects the sweep. BOTH is a forward sweep, LOWER a forward sweep from x = 0, and UPPER a backward sweep. A
    backward sweep receives the vector `keep` of a forward sweep as b. An empty `keep` is not written.
    `synchronization` is the pair (array of a barrier, address of sched_yield).
    """
    sync, yield_address = synchronization
    out, count, backward = piece(A.scratch, tid * LANES, LANES), steps.first.shape[0] - 1, parts == UPPER
    for turn in range(count):
        step = count - 1 - turn if backward else turn
        first, end = steps.first[step], steps.first[step + 1]
        for k in range(first + (end - first) * tid // threads, first + (end - first) * (tid + 1) // threads):
            c = steps.chunks[k]
            row, rows = np.int64(A.table[c, ROW]), np.int64(A.table[c, ROWS])
            b_c, x_c, d_c = piece(b, row, rows), piece(x, row, rows), piece(A.diagonal, row, rows)
            _add_lower(A, c, parts & LOWER, x, out)
            if keep.shape[0] > 0:
                keep_c = piece(keep, row, rows)
                for lane in range(rows):
                    keep_c[lane] = narrowed(widened(b_c[lane]) - out[lane], keep_c[lane])
            _add_upper(A, c, parts >> 1, x, out)
            for lane in range(rows):
                x_c[lane] = narrowed((widened(b_c[lane]) - out[lane]) / d_c[lane], x_c[lane])
        barrier(sync, threads, yield_address)


@jit(fastmath={"contract"})
def multiply(tid, threads, A, x, y):
    """Compute y = (L + D + U) x for this thread's chunks."""
    count, out = A.by_window.shape[0], piece(A.scratch, tid * LANES, LANES)
    for k in range(count * tid // threads, count * (tid + 1) // threads):
        c = A.by_window[k]
        row, rows = np.int64(A.table[c, ROW]), np.int64(A.table[c, ROWS])
        y_c, x_c, d_c = piece(y, row, rows), piece(x, row, rows), piece(A.diagonal, row, rows)
        _add_lower(A, c, ONE, x, out)
        _add_upper(A, c, ONE, x, out)
        for lane in range(rows):
            y_c[lane] = out[lane] + d_c[lane] * widened(x_c[lane])


@jit(fastmath={"contract"})
def residual(tid, threads, at, A, b, x, keep, r, parts):
    """Compute the residual r of this thread's share of the given chunks. `at` is the pair (chunks, targets).

    The residual of row i is stored in r[targets_i]. Rows with targets_i < 0 are omitted. `parts` selects the formula:

    BOTH    r = b - (L + D + U) x
    UPPER   r = -U x              after a sweep from zero, (D + L) x = b
    LOWER   r = b - keep - L x    after a backward sweep, (D + U) x = keep
    """
    (chunks, targets), out = at, piece(A.scratch, tid * LANES, LANES)
    for k in range(chunks.shape[0] * tid // threads, chunks.shape[0] * (tid + 1) // threads):
        c = chunks[k]
        row, rows = np.int64(A.table[c, ROW]), np.int64(A.table[c, ROWS])
        b_c, x_c, d_c = piece(b, row, rows), piece(x, row, rows), piece(A.diagonal, row, rows)
        to, keep_c = piece(targets, row, rows), piece(keep, row, rows)
        _add_lower(A, c, parts & LOWER, x, out)
        _add_upper(A, c, parts >> 1, x, out)
        for lane in range(rows):
            if to[lane] >= 0 and parts == BOTH:
                total = widened(b_c[lane]) - d_c[lane] * widened(x_c[lane]) - out[lane]
                r[to[lane]] = narrowed(total, r[to[lane]])
            elif to[lane] >= 0 and parts == LOWER:
                r[to[lane]] = narrowed(widened(b_c[lane]) - widened(keep_c[lane]) - out[lane], r[to[lane]])
            elif to[lane] >= 0:
                r[to[lane]] = narrowed(-out[lane], r[to[lane]])
