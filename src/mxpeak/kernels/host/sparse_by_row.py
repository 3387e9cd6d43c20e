"""Work on a matrix whose rows are swept one after the other: `sparse_natural` or `sparse_successive` on a team."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mxpeak.kernels.host import sparse_natural as natural
from mxpeak.kernels.host import sparse_successive as successive
from mxpeak.kernels.host.sparse_matrix import VECTORS, Array, HostMatrix, RowPattern, SuccessivePattern, aligned
from mxpeak.kernels.host.sparse_native import SUCCESSIVE
from mxpeak.kernels.host.sparse_sweep import LOWER

Rowwise = RowPattern | SuccessivePattern


class ByRow:
    """Sweeps, products and residuals; `run_on` runs a function on as many threads as so many numbers are worth."""

    def __init__(self, run_on: Callable[..., int], threads: int, yield_address: int):
        self._run_on, self._threads, self._yield = run_on, threads, yield_address
        self._scratch = {dtype: aligned(threads * 4 * SUCCESSIVE, dtype) for dtype in VECTORS.values()}

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
        passed = pattern.owner.size - end if backward else first
        by_row = isinstance(pattern, RowPattern)
        of = natural if by_row else successive
        self._run_on(
            A.entries.size,
            of.sweep_backward if backward else of.sweep_forward,
            np.full(self._threads * natural.APART, passed, np.int64),
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
            *(() if backward else (np.empty(0, x.dtype) if keep is None else keep,)),
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
        self, A: HostMatrix, pattern: Rowwise, b: Array, x: Array, keep: Array, rows: Array,
        where: tuple[Array, Array], r: Array, parts: int,
    ) -> None:  # fmt: skip
        """r_k = (b - (L + D + U) x)[rows_k], or what is the same after a sweep; `where` tells where the rows stand."""
        vectors = (b, x, keep, r, parts)
        if isinstance(pattern, RowPattern):
            _, *arrays = pattern.arrays
            kernel, known, extra = natural.residual, (rows, *where), ()
        else:
            targets, chunks = where
            arrays, kernel, known = list(pattern.arrays), successive.residual, (chunks, targets)
            extra = (self._scratch[x.dtype],)
        self._run_on(27 * rows.size, kernel, *known, *arrays, A.entries, A.diagonal, *vectors, *extra)


def shares(threads: int, cost: Array, first: Array, edges: Array) -> tuple[Array, Array, Array]:
    """Whose units are whose, so that a sweep is over soonest, and what each has to wait for.

    Units cost so much, and each needs the earlier ones edges[first[u]:first[u+1]].  They are dealt out in turn, in
    blocks: of one size, or cut where a unit does not need the one before, as at the planes of a mesh.  Every way is
    tried by reckoning.
    """
    count = cost.size
    owner = np.zeros(count, np.int32)
    if threads == 1 or count < threads:
        return owner, np.zeros((count, threads), np.int32), np.zeros((count, threads), np.int32)
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
