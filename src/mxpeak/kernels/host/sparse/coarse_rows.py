"""Prepare residuals at a subset of rows: find these rows in a matrix, or copy their entries."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mxpeak.kernels.host.sparse.chunk_format import LOWER, ROW, UPPER
from mxpeak.kernels.host.sparse.matrix import Array, CoarseRows, HostMatrix, aligned, as_bits
from mxpeak.kernels.host.sparse.natural import coarse_residual, slot_format
from mxpeak.kernels.host.sparse.natural.coarse_residual import GROUPS, ChunkCopies, Groups, RowCopies
from mxpeak.kernels.host.sparse.natural.gs_csr import CsrColumns, RowStarts
from mxpeak.kernels.host.sparse.natural.slot_format import SlotColumns
from mxpeak.kernels.host.sparse.slot_sums import SUCCESSIVE

#: The type of a function that runs a compiled function on a number of threads that suits the amount of work.
Run = Callable[..., int]


def coarse_rows(A: HostMatrix, rows: Array) -> CoarseRows:
    """Return the positions of `rows` in the matrix and the positions of their residuals.

    The result is cached for each array of rows.
    """
    for coarse in A.coarse:
        if coarse.rows is rows:
            return coarse
    targets, columns = np.full(A.n, -1, np.int32), A.pattern.columns
    targets[rows] = np.arange(rows.size, dtype=np.int32)
    at: tuple[Array, ...]
    if isinstance(columns, CsrColumns):
        parts = ((columns.in_lower, 0), (columns.in_upper, columns.lower))
        at = RowStarts(rows, *(first + np.append(0, np.cumsum(size, dtype=np.int64))[rows] for size, first in parts))
    else:
        starts = columns.table[:, ROW]  # the column with this index has the same meaning in both formats
        chunks = np.flatnonzero(np.maximum.reduceat(targets, starts) >= 0) if A.n else np.empty(0, np.int64)
        at = chunks, targets
    A.coarse.append(CoarseRows(rows, targets[A.pattern.halo.rows], at))
    return A.coarse[-1]


def copied_rows(run: Run, A: HostMatrix, coarse: CoarseRows, parts: int) -> RowCopies | ChunkCopies:
    """Return a copy of the entries of the coarse rows, for a matrix that is swept in natural order.

    `parts` selects entries of L, of U or of both. The copy is made at the first call.
    """
    if parts not in coarse.copies:
        columns = A.pattern.columns
        if isinstance(columns, CsrColumns):
            coarse.copies[parts] = _copies_of_rows(A, columns, coarse, parts)
        elif isinstance(columns, SlotColumns):
            coarse.copies[parts] = _copies_of_chunks(run, A, columns, coarse.rows, parts)
    return coarse.copies[parts]


def _copies_of_rows(A: HostMatrix, columns: CsrColumns, coarse: CoarseRows, parts: int) -> RowCopies:
    """Copy the entries of the coarse rows from a matrix in compressed rows.

    `parts` selects entries of L, of U or of both.
    """
    _, *starts = coarse.at
    counts = (columns.in_lower if parts & LOWER else None, columns.in_upper if parts & UPPER else None)
    chosen = [(begins, count[coarse.rows]) for begins, count in zip(starts, counts) if count is not None]
    begins, sizes = (np.stack(part, axis=1).ravel() for part in zip(*chosen))  # the entries of L and U alternate
    ends = np.cumsum(sizes, dtype=np.int64)
    at = np.repeat(begins - (ends - sizes), sizes) + np.arange(ends[-1] if ends.size else 0)
    first = np.append(0, ends)[:: len(chosen)]
    return RowCopies(coarse.rows, first, columns.columns[at], A.entries[at])


def _copies_of_chunks(run: Run, A: HostMatrix, columns: SlotColumns, rows: Array, parts: int) -> ChunkCopies:
    """Copy the entries of `rows` from a matrix in slots, and store them in new slots that contain only these rows.

    `parts` selects entries of L, of U or of both.
    """
    packed, last, nnz = A.storage == "packed", A.n + A.halo, 27 * rows.size
    begins = np.empty(rows.size, np.int64)
    in_lines = np.count_nonzero(np.diff(rows) == coarse_residual.STEP) > rows.size // 2
    begins = begins[: coarse_residual.cut_groups(rows, in_lines, begins)]
    chunks = -(-begins.size // GROUPS)
    begins = np.append(begins, [rows.size] * (chunks * GROUPS + 1 - begins.size))
    starts = rows[np.minimum(begins[:-1], rows.size - 1)].astype(
        np.int64
    )  # empty groups also need the index of an existing row
    chunk_of = np.searchsorted(columns.table[:, slot_format.ROW], rows, side="right") - 1
    first = np.zeros(rows.size + 1, np.int64)
    groups, at = Groups(rows, begins, starts, first, np.empty(0, np.int32)), np.empty(0, np.int64)
    run(nnz, coarse_residual.find_entries, groups, chunk_of, parts, columns, as_bits(A.entries), at)
    np.cumsum(first, out=first)
    groups, at = groups._replace(columns=np.empty(first[-1], np.int32)), np.empty(first[-1], np.int64)
    run(nnz, coarse_residual.find_entries, groups, chunk_of, parts, columns, as_bits(A.entries), at)
    table = np.zeros((chunks, coarse_residual.TABLE), np.int32)
    run(first[-1], coarse_residual.count_slots, groups, packed, last, table)
    slots = table[:, [coarse_residual.RUNS, coarse_residual.COLUMNS]].sum(axis=1)
    fars = table[:, coarse_residual.COLUMNS]
    table[:, coarse_residual.SLOT], table[:, coarse_residual.FAR] = np.cumsum(slots) - slots, np.cumsum(fars) - fars
    bases, far = np.zeros(int(slots.sum()), np.int32), aligned(int(fars.sum()) * SUCCESSIVE, np.int32)
    values = aligned(bases.size * SUCCESSIVE, A.entries.dtype)
    filled = ((table, bases, far), as_bits(values), as_bits(A.entries))
    run(first[-1], coarse_residual.fill_slots, groups, packed, last, at, *filled)
    return ChunkCopies(rows, begins, starts, table, bases, far, values)
