"""Work on a matrix whose rows are swept one after the other: `sparse_natural` or `sparse_successive` on a team."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mxpeak.kernels.host.sparse import coarse_residual as by_points
from mxpeak.kernels.host.sparse import gs_csr as natural
from mxpeak.kernels.host.sparse import gs_simd as successive
from mxpeak.kernels.host.sparse.gs_colored import LOWER, UPPER
from mxpeak.kernels.host.sparse.matrix import (
    VECTORS,
    Array,
    Coarse,
    HostMatrix,
    Points,
    RowPattern,
    SuccessivePattern,
    aligned,
    as_bits,
)
from mxpeak.kernels.host.sparse.slot_format import ROW
from mxpeak.kernels.host.sparse.slot_sums import SUCCESSIVE

Rowwise = RowPattern | SuccessivePattern
#: Rows of which there are so many times fewer than of all have their entries once more by themselves.
FEW = 4


class ByRow:
    """Sweeps, products and residuals; `run_on` runs a function on as many threads as so many numbers are worth."""

    def __init__(self, run_on: Callable[..., int], threads: int, yield_address: int):
        self._run_on, self._threads, self._yield = run_on, threads, yield_address
        self._scratch = {dtype: aligned(threads * 4 * SUCCESSIVE, dtype) for dtype in VECTORS.values()}
        self._nothing = {dtype: np.empty(0, dtype) for dtype in VECTORS.values()}
        self._alone = np.zeros(natural.APART, np.int64)  # nobody asks how far the only thread has come

    def sweep(
        self,
        A: HostMatrix,
        pattern: Rowwise,
        part: tuple[int, int],
        b: Array,
        x: Array,
        keep: Array | None,
        parts: int,
        *,
        backward: bool,
    ) -> None:
        """Units of rows, one after the other; a backward sweep over U alone has what was kept for b."""
        first, end = part
        if first == end:
            return
        passed = pattern.owner.size - end if backward else first
        by_row = isinstance(pattern, RowPattern)
        of = natural if by_row else successive
        self._run_on(
            A.entries.size,
            of.sweep_backward if backward else of.sweep_forward,
            self._alone if self._threads == 1 else np.full(self._threads * natural.APART, passed, np.int64),
            self._yield,
            first,
            end,
            pattern.owner,
            pattern.backward if backward else pattern.forward,
            *(() if by_row else (pattern.units,)),
            *pattern.arrays,
            A.entries,
            A.diagonal,
            b,
            x,
            *(() if backward else (self._nothing[x.dtype] if keep is None else keep,)),
            not parts & LOWER if backward else parts == LOWER,
            *(() if by_row else (self._scratch[x.dtype],)),
        )

    def multiply(self, y: Array, A: HostMatrix, pattern: Rowwise, x: Array) -> None:
        """y = (L + D + U) x."""
        arrays = (*pattern.arrays, A.entries, A.diagonal, x, y)
        if isinstance(pattern, RowPattern):
            self._run_on(A.entries.size, natural.multiply, *arrays)
        else:
            self._run_on(A.entries.size, successive.multiply, *arrays, self._scratch[x.dtype])

    def begins(self, pattern: RowPattern, rows: Array) -> tuple[Array, Array]:
        """Where some rows' entries of L begin, and those of U."""
        begins = []
        for count, first in ((pattern.in_lower, 0), (pattern.in_upper, pattern.lower)):
            begins.append(first + np.append(0, np.cumsum(count, dtype=np.int64))[rows])
        return begins[0], begins[1]

    def residual(
        self, A: HostMatrix, pattern: Rowwise, b: Array, x: Array, keep: Array, known: Coarse, r: Array, parts: int
    ) -> None:
        """r_k = (b - (L + D + U) x)[rows_k], or what is the same after a sweep; `known` tells what of the rows."""
        vectors = (A.diagonal, b, x, keep, r, parts)
        scratch = () if isinstance(pattern, RowPattern) else (self._scratch[x.dtype],)
        if FEW * known.rows.size <= A.n:
            if parts not in known.points:
                known.points[parts] = self._points(A, pattern, known, parts)
            points = known.points[parts]
            kernel = by_points.residual_in_chunks if scratch else by_points.residual
            self._run_on(27 * known.rows.size, kernel, known.rows, *points.arrays, points.values, *vectors, *scratch)
        elif isinstance(pattern, RowPattern):
            _, *arrays = pattern.arrays
            where = (known.rows, *known.where)
            self._run_on(27 * known.rows.size, natural.residual, *where, *arrays, A.entries, *vectors)
        else:
            targets, chunks = known.where
            where = (chunks, targets, *pattern.arrays)
            self._run_on(27 * known.rows.size, successive.residual, *where, A.entries, *vectors, *scratch)

    def _points(self, A: HostMatrix, pattern: Rowwise, known: Coarse, parts: int) -> Points:
        """The entries of some rows in some parts, once more."""
        if isinstance(pattern, RowPattern):
            counts = (pattern.in_lower if parts & LOWER else None, pattern.in_upper if parts & UPPER else None)
            found = [(begins, count[known.rows]) for begins, count in zip(known.where, counts) if count is not None]
            begins, sizes = (np.stack(one, axis=1).ravel() for one in zip(*found))  # L's and U's in turn
            ends = np.cumsum(sizes, dtype=np.int64)
            at = np.repeat(begins - (ends - sizes), sizes) + np.arange(ends[-1] if ends.size else 0)
            first = np.append(0, ends)[:: len(found)]
            return Points((first, pattern.columns[at]), A.entries[at])
        return self._points_in_chunks(A, pattern, known.rows, parts)

    def _points_in_chunks(self, A: HostMatrix, pattern: SuccessivePattern, rows: Array, parts: int) -> Points:
        chunk_of = np.searchsorted(pattern.table[:, ROW], rows, side="right") - 1
        first, columns, at = np.zeros(rows.size + 1, np.int64), np.empty(0, np.int32), np.empty(0, np.int64)
        where = (rows, chunk_of, parts, *pattern.arrays, as_bits(A.entries))
        self._run_on(27 * rows.size, by_points.find_entries, *where, first, columns, at)
        np.cumsum(first, out=first)
        columns, at = np.empty(first[-1], np.int32), np.empty(first[-1], np.int64)
        self._run_on(27 * rows.size, by_points.find_entries, *where, first, columns, at)
        begins, packed, most = np.empty(rows.size, np.int64), pattern.storage == "packed", A.n + A.halo
        in_lines = np.count_nonzero(np.diff(rows) == by_points.STEP) > rows.size // 2
        begins = begins[: by_points.cut_groups(rows, in_lines, begins)]
        chunks = -(-begins.size // by_points.GROUPS)
        begins = np.append(begins, [rows.size] * (chunks * by_points.GROUPS + 1 - begins.size))
        starts = rows[np.minimum(begins[:-1], rows.size - 1)].astype(np.int64)  # one that exists, of empty groups too
        table = np.zeros((chunks, by_points.TABLE), np.int32)
        grouped = (rows, begins, starts, packed, first, columns)
        self._run_on(first[-1], by_points.count_slots, *grouped, most, table)
        slots, fars = table[:, [by_points.RUNS, by_points.COLUMNS]].sum(axis=1), table[:, by_points.COLUMNS]
        table[:, by_points.SLOT], table[:, by_points.FAR] = np.cumsum(slots) - slots, np.cumsum(fars) - fars
        bases, far = np.zeros(int(slots.sum()), np.int32), aligned(int(fars.sum()) * SUCCESSIVE, np.int32)
        values = aligned(bases.size * SUCCESSIVE, A.entries.dtype)
        filled = (table, bases, far, as_bits(values), as_bits(A.entries))
        self._run_on(first[-1], by_points.fill_slots, *grouped, at, most, *filled)
        return Points((begins, starts, table, bases, far), values)


def shares(threads: int, cost: Array, first: Array, edges: Array) -> tuple[Array, Array, Array]:
    """Whose units are whose, so that a sweep is over soonest, and what each has to wait for.

    Units cost so much, and each needs the earlier ones edges[first[u]:first[u+1]].  A run ends where a unit does not
    need the one before, as a mesh's planes do.  Every thread takes its share of each run, which leaves it most of what
    it reads; or blocks of units, or of whole runs, are dealt out in turn.  Every way is tried by reckoning.
    """
    count = cost.size
    owner = np.zeros(count, np.int32)
    if threads == 1 or count < threads:
        return owner, np.zeros((count, threads), np.int32), np.zeros((count, threads), np.int32)
    follows = np.zeros(count, bool)
    follows[edges[edges == np.repeat(np.arange(count), np.diff(first)) - 1] + 1] = True
    units, runs, begins = np.arange(count), np.cumsum(~follows) - 1, np.flatnonzero(~follows)
    length, ways, size = np.diff(np.append(begins, count)), [owner], 1
    while size * threads <= count:
        parts = (units - begins[runs]) * threads * size // length[runs]
        ways += [(blocks % threads).astype(np.int32) for blocks in (parts, units // size, runs // size)]
        size *= 2
    best = min(ways, key=lambda way: natural.makespan(first, edges, way, cost, threads))
    forward, backward = np.zeros((count, threads), np.int32), np.zeros((count, threads), np.int32)
    natural.find_needs(first, edges, best, forward, backward)
    return best, forward, backward
