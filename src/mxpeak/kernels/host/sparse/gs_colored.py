"""Gauss-Seidel sweeps, products and residuals over a packed matrix (`sparse_pack`), in compiled code.

The stored formats are float64, float32, int16 (bf16), uint16 (fp16) and uint8 (fp8); sums are of the vectors' type.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mxpeak.kernels.host.engine.jit import FALSE, ONE, TRUE, inner, jit
from mxpeak.kernels.host.engine.vector_ir import barrier, piece
from mxpeak.kernels.host.sparse.chunk_format import FAR, L_PART, NEAR, ROW, ROWS, SLOT, U_PART
from mxpeak.kernels.host.sparse.slot_sums import LANES, sum_runs, widened_value

#: The parts that a sum takes.
LOWER, UPPER, BOTH = 1, 2, 3


def parts_of_sweep(
    pattern: Any, halo: bool | None, *, beside: bool, from_zero: bool, backward: bool, keep: Any
) -> list[tuple[Any, bool]]:
    """What of a pattern a call of `relax` sweeps, each part with whether it meets H x; `beside`: there are H's rows."""
    if not beside:
        return [] if halo else [(pattern.every, False)]
    if from_zero or (backward and keep is not None):  # no halo is read: H x is zero, or in what was kept
        first, rest = pattern.late, pattern.early
        if from_zero:
            first, rest = pattern.first_from_zero, pattern.rest_from_zero
        return [(pattern.every if halo is None else first if halo else rest, False)]
    if backward:  # no row can be early: its late neighbours come first
        return [] if halo is False else [(pattern.every, True)]
    both = [(pattern.early, False), (pattern.late, True)]
    return both if halo is None else [both[halo]]


@inner(fastmath={"contract"}, inline=True)
def _add_part(row, rows, slot, near0, far0, runs, nears, fars, bases, near, far, values, x, out, fresh):
    """out += the entries of one part of a chunk times x; out = them where it is fresh."""
    sum_runs(values, slot * LANES, bases, slot, runs, x, row, out, fresh)
    for s in range(nears):
        value = piece(values, (slot + runs + s) * LANES, LANES)
        column = piece(near, (near0 + s) * LANES, LANES)
        base = np.int64(bases[slot + runs + s])
        for lane in range(rows):
            out[lane] += widened_value(value[lane], out[0]) * x[base + np.int64(column[lane])]
    for s in range(fars):
        value = piece(values, (slot + runs + nears + s) * LANES, LANES)
        column = piece(far, (far0 + s) * LANES, LANES)
        for lane in range(rows):
            out[lane] += widened_value(value[lane], out[0]) * x[np.uint32(column[lane])]


@inner(inline=True)
def _add_lower(table, c, wanted, bases, near, far, values, x, out):
    """out = L x of a chunk's rows; 0 if it is not wanted: then all counts are 0, which is quicker than a branch."""
    row, rows, slot = np.int64(table[c, ROW]), np.int64(table[c, ROWS]), np.int64(table[c, SLOT])
    runs, nears, fars = wanted * table[c, L_PART], wanted * table[c, L_PART + 1], wanted * table[c, L_PART + 2]
    _add_part(
        row,
        rows,
        slot,
        np.int64(table[c, NEAR]),
        np.int64(table[c, FAR]),
        runs,
        nears,
        fars,
        bases,
        near,
        far,
        values,
        x,
        out,
        TRUE,
    )


@inner(inline=True)
def _add_upper(table, c, wanted, bases, near, far, values, x, out):
    """out += U x of a chunk's rows, if it is wanted."""
    row, rows = np.int64(table[c, ROW]), np.int64(table[c, ROWS])
    slot = np.int64(table[c, SLOT]) + table[c, L_PART] + table[c, L_PART + 1] + table[c, L_PART + 2]
    near0, far0 = np.int64(table[c, NEAR]) + table[c, L_PART + 1], np.int64(table[c, FAR]) + table[c, L_PART + 2]
    runs, nears, fars = wanted * table[c, U_PART], wanted * table[c, U_PART + 1], wanted * table[c, U_PART + 2]
    _add_part(row, rows, slot, near0, far0, runs, nears, fars, bases, near, far, values, x, out, FALSE)


@jit(fastmath={"contract"})
def relax(
    tid,
    threads,
    sync,
    yield_address,
    order,
    step_first,
    chunks,
    table,
    bases,
    near,
    far,
    values,
    diagonal,
    b,
    x,
    keep,
    parts,
    scratch,
):
    """x_i = (b_i - Σ_L a_ij x_j - Σ_U a_ij x_j) / a_ii, step after step in this order.

    `parts` leaves out L or U; the chunks of step s are chunks[step_first[s] : step_first[s+1]], and independent.  Where
    keep is not empty, keep_i = b_i - Σ_L a_ij x_j.
    """
    out = piece(scratch, tid * LANES, LANES)
    for step in range(order.shape[0]):
        first, end = step_first[order[step]], step_first[order[step] + 1]
        for k in range(first + (end - first) * tid // threads, first + (end - first) * (tid + 1) // threads):
            c = chunks[k]
            row, rows = np.int64(table[c, ROW]), np.int64(table[c, ROWS])
            b_c, x_c, d_c = piece(b, row, rows), piece(x, row, rows), piece(diagonal, row, rows)
            _add_lower(table, c, parts & LOWER, bases, near, far, values, x, out)
            if keep.shape[0] > 0:
                kept = piece(keep, row, rows)
                for lane in range(rows):
                    kept[lane] = b_c[lane] - out[lane]
            _add_upper(table, c, parts >> 1, bases, near, far, values, x, out)
            for lane in range(rows):
                x_c[lane] = (b_c[lane] - out[lane]) / d_c[lane]
        barrier(sync, threads, yield_address)


@jit(fastmath={"contract"})
def multiply(tid, threads, chunks, table, bases, near, far, values, diagonal, x, y, scratch):
    """y = (L + D + U) x, chunk by chunk in this order."""
    count, out = chunks.shape[0], piece(scratch, tid * LANES, LANES)
    for k in range(count * tid // threads, count * (tid + 1) // threads):
        c = chunks[k]
        row, rows = np.int64(table[c, ROW]), np.int64(table[c, ROWS])
        y_c, x_c, d_c = piece(y, row, rows), piece(x, row, rows), piece(diagonal, row, rows)
        _add_lower(table, c, ONE, bases, near, far, values, x, out)
        _add_upper(table, c, ONE, bases, near, far, values, x, out)
        for lane in range(rows):
            y_c[lane] = out[lane] + d_c[lane] * x_c[lane]


@jit(fastmath={"contract"})
def residual(tid, threads, chunks, targets, table, bases, near, far, values, diagonal, b, x, keep, r, parts, scratch):
    """r[targets_i] = b_i - (L + D + U) x of the rows of some chunks, where targets_i >= 0.

    With UPPER alone -U x, which is the same after a sweep from zero, x = (D + L)^-1 b; with LOWER alone b - keep - L x,
    the same after a backward sweep, (D + U) x = keep.
    """
    out = piece(scratch, tid * LANES, LANES)
    for k in range(chunks.shape[0] * tid // threads, chunks.shape[0] * (tid + 1) // threads):
        c = chunks[k]
        row, rows = np.int64(table[c, ROW]), np.int64(table[c, ROWS])
        b_c, x_c, d_c = piece(b, row, rows), piece(x, row, rows), piece(diagonal, row, rows)
        to, kept = piece(targets, row, rows), piece(keep, row, rows)
        _add_lower(table, c, parts & LOWER, bases, near, far, values, x, out)
        _add_upper(table, c, parts >> 1, bases, near, far, values, x, out)
        for lane in range(rows):
            if to[lane] >= 0 and parts == BOTH:
                r[to[lane]] = b_c[lane] - d_c[lane] * x_c[lane] - out[lane]
            elif to[lane] >= 0 and parts == LOWER:
                r[to[lane]] = b_c[lane] - kept[lane] - out[lane]
            elif to[lane] >= 0:
                r[to[lane]] = -out[lane]


@jit(fastmath={"contract"})
def subtract_halo(tid, threads, rows, pointer, columns, values, halo, targets, y, kept):
    """y[targets_s] -= Σ a_sh halo_h for the rows that have entries from other ranks, where targets_s >= 0.

    Where kept is not empty, kept_s = y[targets_s] before.
    """
    count = rows.shape[0]
    for s in range(count * tid // threads, count * (tid + 1) // threads):
        if targets[s] >= 0:
            total = y[targets[s]]
            if kept.shape[0] > 0:
                kept[s] = total
            for k in range(pointer[s], pointer[s + 1]):
                total -= values[k] * halo[columns[k]]
            y[targets[s]] = total


@jit(fastmath={"contract"})
def add_halo(tid, threads, rows, pointer, columns, values, halo, y):
    """y_i += Σ a_ih halo_h for the rows that have entries from other ranks."""
    count = rows.shape[0]
    for s in range(count * tid // threads, count * (tid + 1) // threads):
        total = y[rows[s]]
        for k in range(pointer[s], pointer[s + 1]):
            total += values[k] * halo[columns[k]]
        y[rows[s]] = total


@jit()
def scatter_add(tid, threads, rows, y, x):
    """x[rows_k] += y_k."""
    count = rows.shape[0]
    for k in range(count * tid // threads, count * (tid + 1) // threads):
        x[rows[k]] += y[k]


@jit()
def scatter(tid, threads, rows, y, x):
    """x[rows_k] = y_k."""
    count = rows.shape[0]
    for k in range(count * tid // threads, count * (tid + 1) // threads):
        x[rows[k]] = y[k]


@jit()
def gather(tid, threads, rows, x, out):
    """out_k = x[rows_k]."""
    count = rows.shape[0]
    for k in range(count * tid // threads, count * (tid + 1) // threads):
        out[k] = x[rows[k]]
