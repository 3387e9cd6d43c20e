"""Work on a matrix that is stored by rows: `sparse_natural` on the threads of a team."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mxpeak.kernels.host import sparse_natural as natural
from mxpeak.kernels.host.sparse_matrix import Array, HostMatrix, RowPattern
from mxpeak.kernels.host.sparse_sweep import LOWER


class ByRow:
    """Sweeps, products and residuals; `run_on` runs a function on as many threads as so many numbers are worth."""

    def __init__(self, run_on: Callable[..., int], threads: int, yield_address: int):
        self._run_on, self._threads, self._yield = run_on, threads, yield_address

    def sweep(
        self,
        A: HostMatrix,
        pattern: RowPattern,
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
        passed = pattern.owner.size - end if backward else first
        self._run_on(
            A.entries.size,
            natural.sweep_backward if backward else natural.sweep_forward,
            np.full(self._threads * natural.APART, passed, np.int64),
            self._yield,
            first,
            end,
            pattern.owner,
            pattern.backward if backward else pattern.forward,
            *pattern.arrays,
            A.entries,
            A.diagonal,
            b,
            x,
            *(() if backward else (np.empty(0, x.dtype) if keep is None else keep,)),
            not parts & LOWER if backward else parts == LOWER,
        )

    def multiply(self, y: Array, A: HostMatrix, pattern: RowPattern, x: Array) -> None:
        """y = (L + D + U) x."""
        self._run_on(A.entries.size, natural.multiply, *pattern.arrays, A.entries, A.diagonal, x, y)

    def begins(self, pattern: RowPattern, rows: Array) -> tuple[Array, Array]:
        """Where some rows' entries of L begin, and those of U."""
        begins = []
        for count, first in ((pattern.in_lower, 0), (pattern.in_upper, pattern.lower)):
            begins.append(first + np.append(0, np.cumsum(count, dtype=np.int64))[rows])
        return begins[0], begins[1]

    def residual(
        self,
        A: HostMatrix,
        pattern: RowPattern,
        b: Array,
        x: Array,
        keep: Array,
        rows: Array,
        lower_first: Array,
        upper_first: Array,
        r: Array,
        parts: int,
    ) -> None:
        """r_k = (b - (L + D + U) x)[rows_k], or what is the same after a sweep."""
        _, *arrays = pattern.arrays
        where = (rows, lower_first, upper_first)
        self._run_on(27 * rows.size, natural.residual, *where, *arrays, A.entries, A.diagonal, b, x, keep, r, parts)


def shares(threads: int, units: Array, in_lower: Array, columns: Array) -> tuple[Array, Array, Array]:
    """Whose units are whose, so that a sweep is over soonest if time were entries; and what each has to wait for.

    Units are dealt out in turn, in blocks: of one size, or cut where a unit does not need the one before, as at the
    planes of a mesh.  Every way is tried by reckoning.
    """
    count = units.shape[0] - 1
    owner = np.zeros(count, np.int32)
    if threads == 1 or count < threads:
        return owner, np.zeros((count, threads), np.int32), np.zeros((count, threads), np.int32)
    unit_of = np.repeat(np.arange(count, dtype=np.int32), np.diff(units[:, natural.ROW]))
    first = np.zeros(count + 1, np.int64)
    total = natural.unit_edges(units, count, in_lower, columns, unit_of, first, np.empty(0, np.int32))
    edges = np.empty(total, np.int32)
    natural.unit_edges(units, count, in_lower, columns, unit_of, first, edges)
    cost = np.diff(units[:, natural.LOWER] + units[:, natural.UPPER]) + 8.0 * np.diff(units[:, natural.ROW])
    follows = np.zeros(count, bool)
    follows[edges[edges == np.repeat(np.arange(count), np.diff(first)) - 1] + 1] = True
    runs = np.cumsum(~follows) - 1
    ways = [owner]
    for blocks in (runs, np.arange(count)):
        size = 1
        while size * threads <= blocks[-1] + 1:
            ways.append((blocks // size % threads).astype(np.int32))
            size *= 2
    best = min(ways, key=lambda way: natural.makespan(first, edges, way, cost, threads))
    forward, backward = np.zeros((count, threads), np.int32), np.zeros((count, threads), np.int32)
    natural.find_needs(first, edges, best, forward, backward)
    return best, forward, backward
