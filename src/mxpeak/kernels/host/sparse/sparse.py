"""The host's sparse kernels: `kernels.contract.sparse` on NumPy arrays and the threads of a team."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from mxpeak.kernels import arrays
from mxpeak.kernels.contract.norms import Tile
from mxpeak.kernels.host.engine.team import Team
from mxpeak.kernels.host.engine.vector_ir import SYNC, sched_yield_address
from mxpeak.kernels.host.norms.norms import HostNorms
from mxpeak.kernels.host.sparse import gs_colored as sweep
from mxpeak.kernels.host.sparse import vectors
from mxpeak.kernels.host.sparse.by_row import ByRow
from mxpeak.kernels.host.sparse.chunk_format import ROW
from mxpeak.kernels.host.sparse.coarse_residual import STEP
from mxpeak.kernels.host.sparse.matrix import VECTORS, Array, Coarse, HostMatrix, Pattern, RowPattern, aligned
from mxpeak.kernels.host.sparse.setup import SparseSetup
from mxpeak.kernels.host.sparse.slot_sums import LANES, SUCCESSIVE
from mxpeak.layout.index_map import consecutive
from mxpeak.spans import HOST

#: Numbers that one thread goes through by itself in the time that waking another takes.
ALONE = 2**18
#: Numbers of a line as the values are read for nothing.
READ = 4096


class HostSparse(SparseSetup):
    """Compiled loops over chunks of rows, on the threads of a team; one caller at a time, for its sums are its own."""

    xp = arrays.xp
    stopwatch = HOST
    device = None
    chunk_rows = LANES

    def __init__(self, team: Team, rows_at_a_time: int | None = None):
        super().__init__(team, rows_at_a_time)
        self._norms = HostNorms(team)
        self._sync, self._yield = np.zeros(SYNC, np.int64), sched_yield_address()
        self._by_row = ByRow(self._run_on, team.threads, self._yield)
        self._sums = np.zeros((team.threads, 1024))
        self._scratch = {dtype: aligned(team.threads * LANES, dtype) for dtype in VECTORS.values()}
        self._nothing = {dtype: np.empty(0, dtype) for dtype in VECTORS.values()}

    def computing(self) -> nullcontext[None]:
        return nullcontext()

    def _run_on(self, numbers: int, function: Any, *args: Any) -> int:
        """Run on all threads, or on this one alone where there is too little to wake the others for; on how many."""
        if numbers < ALONE:
            function(0, 1, *args)
            return 1
        self._team.run(function, self.threads, *args)
        return self.threads

    # --- vectors

    def halo_vector(self, A: HostMatrix) -> Array:
        # vectors of lanes read beyond the last number: of every x, or of every second one
        return aligned(A.n + A.halo + max(LANES, SUCCESSIVE * STEP), VECTORS[A.vectors])

    def gather(self, x: Array, rows: Array, out: Array) -> None:
        self._run_on(rows.size, sweep.gather, rows, x, out)

    def scatter_add(self, x: Array, rows: Array, y: Array) -> None:
        self._run_on(rows.size, sweep.scatter_add, rows, y, x)

    def dot(self, x: Array, y: Array) -> float:
        used = self._run_on(x.size, vectors.dot, x, y, self._sums)
        return float(self._sums[:used, 0].sum())

    def scale(self, y: Array, factor: float, x: Array) -> None:
        self._run_on(x.size, vectors.scale, y, np.result_type(x, y).type(factor), x)

    def add_scaled(self, y: Array, factor: float, x: Array) -> None:
        self._run_on(y.size, vectors.add_scaled, y, y.dtype.type(factor), x)

    def scale_and_add(self, y: Array, factor: float, x: Array) -> None:
        self._run_on(y.size, vectors.scale_and_add, y, y.dtype.type(factor), x)

    def subtract_from(self, y: Array, b: Array) -> float:
        used = self._run_on(b.size, vectors.subtract_from, y, b, self._sums)
        return float(self._sums[:used, 0].sum())

    # --- bases

    def basis(self, n: int, most: int, precision: str) -> Array:
        apart = -(-n // 16) * 16 + 16  # whole cache lines, and rarely a multiple of 4 KiB
        return np.zeros((most, apart), VECTORS[precision])[:, :n]

    def project(self, Q: Array, k: int, w: Array) -> Array:
        used = self._run_on(k * w.size, vectors.project, Q, k, w, self._sums_of(k))
        return self._sums[:used, :k].sum(axis=0)

    def subtract_and_project(self, Q: Array, k: int, w: Array, h: Array) -> Array:
        used = self._run_on(k * w.size, vectors.subtract_and_project, Q, k, w, h.astype(w.dtype), self._sums_of(k))
        return self._sums[:used, :k].sum(axis=0)

    def subtract_and_square(self, Q: Array, k: int, w: Array, h: Array) -> float:
        used = self._run_on(k * w.size, vectors.subtract_and_square, Q, k, w, h.astype(w.dtype), self._sums)
        return float(self._sums[:used, 0].sum())

    def combine(self, Q: Array, y: Sequence[float], out: Array) -> None:
        self._run_on(len(y) * out.size, vectors.combine, Q, len(y), np.array(y, Q.dtype), out)

    def _sums_of(self, k: int) -> Array:
        """Space for k sums a thread."""
        if self._sums.shape[1] < k:
            self._sums = np.zeros((self.threads, k))
        return self._sums

    # --- the matrix

    def relax(
        self,
        A: HostMatrix,
        b: Array,
        x: Array,
        *,
        halo: bool | None = None,
        from_zero: bool = False,
        backward: bool = False,
        keep: Array | None = None,
    ) -> None:
        pattern, kept_for_b = A.pattern, backward and keep is not None
        beside = pattern.halo_rows.size > 0
        halves = sweep.parts_of_sweep(pattern, halo, beside=beside, from_zero=from_zero, backward=backward, keep=keep)
        for part, meets_halo in halves:
            if kept_for_b:
                self._sweep(A, part, keep, x, None, sweep.UPPER, backward=True)
                continue
            before = self._nothing[b.dtype]
            if meets_halo:
                before = np.empty(pattern.halo_rows.size, b.dtype)
                self._subtract_halo(A, x, pattern.halo_rows, b, before)  # b - H x, for as long as the sweep takes
            try:
                self._sweep(A, part, b, x, keep, sweep.LOWER if from_zero else sweep.BOTH, backward=backward)
            finally:
                if meets_halo:
                    self._run_on(before.size, sweep.scatter, pattern.halo_rows, before, b)

    def _sweep(
        self, A: HostMatrix, part: tuple[Any, Any], b: Any, x: Array, keep: Array | None, parts: int, *, backward: bool
    ) -> None:
        """Units of rows, or steps of chunks, one after the other."""
        if not isinstance(A.pattern, Pattern):
            self._by_row.sweep(A, A.pattern, part, b, x, keep, parts, backward=backward)
            return
        numbers, first = part
        if not numbers.size:
            return
        steps = np.arange(first.size - 1)
        self._run_on(
            A.entries.size,
            sweep.relax,
            self._sync,
            self._yield,
            steps[::-1].copy() if backward else steps,
            first,
            numbers,
            *A.pattern.arrays,
            A.entries,
            A.diagonal,
            b,
            x,
            self._nothing[x.dtype] if keep is None else keep,
            parts,
            self._scratch[x.dtype],
        )

    def _subtract_halo(self, A: HostMatrix, x: Array, targets: Array, y: Array, kept: Array) -> None:
        """y[targets_s] -= (H x)_s; what was there before is kept, where there is memory for it."""
        H = A.pattern.halo_arrays
        self._run_on(A.halo_nnz, sweep.subtract_halo, *H, A.halo_entries, x[A.n : A.n + A.halo], targets, y, kept)

    def matvec(self, y: Array, A: HostMatrix, x: Array, *, halo: bool | None = None) -> None:
        pattern = A.pattern
        if halo is not True and not isinstance(pattern, Pattern):
            self._by_row.multiply(y, A, pattern, x)
        elif halo is not True and isinstance(pattern, Pattern):
            self._run_on(
                A.entries.size,
                sweep.multiply,
                pattern.rows_in_turn,
                *pattern.arrays,
                A.entries,
                A.diagonal,
                x,
                y,
                self._scratch[x.dtype],
            )
        if halo is not False and pattern.halo_rows.size:
            H = pattern.halo_arrays
            self._run_on(A.halo_nnz, sweep.add_halo, *H, A.halo_entries, x[A.n : A.n + A.halo], y)

    def residual_at(
        self,
        A: HostMatrix,
        b: Array,
        x: Array,
        rows: Array,
        r: Array,
        *,
        halo: bool | None = None,
        swept: bool = False,
        keep: Array | None = None,
    ) -> None:
        parts = sweep.LOWER if keep is not None else sweep.UPPER if swept else sweep.BOTH
        kept = b if keep is None else keep  # read with LOWER alone
        known, pattern = self._coarse(A, rows), A.pattern
        if halo is not True and not isinstance(pattern, Pattern):
            self._by_row.residual(A, pattern, b, x, kept, known, r, parts)
        elif halo is not True and isinstance(pattern, Pattern):
            targets, chunks = known.where
            self._run_on(
                27 * rows.size,
                sweep.residual,
                chunks,
                targets,
                *pattern.arrays,
                A.entries,
                A.diagonal,
                b,
                x,
                kept,
                r,
                parts,
                self._scratch[x.dtype],
            )
        if halo is not False and pattern.halo_rows.size:
            self._subtract_halo(A, x, known.halo_targets, r, self._nothing[x.dtype])

    def _coarse(self, A: HostMatrix, rows: Array) -> Coarse:
        """What is known of some rows, found once: of those in chunks where their residuals go (-1: nowhere), and which
        chunks have any; of those stored one by one where the entries of each begin.
        """
        for known in A.coarse:
            if known.rows is rows:
                return known
        targets, pattern = np.full(A.n, -1, np.int32), A.pattern
        targets[rows] = np.arange(rows.size, dtype=np.int32)
        where: tuple[Array, Array]
        if isinstance(pattern, RowPattern):
            where = self._by_row.begins(pattern, rows)
        else:
            starts = pattern.table[:, ROW]  # where both kinds of chunks say it
            chunks = np.flatnonzero(np.maximum.reduceat(targets, starts) >= 0) if A.n else np.empty(0, np.int64)
            where = targets, chunks
        A.coarse.append(Coarse(rows, targets[pattern.halo_rows], where))
        return A.coarse[-1]

    def read_values(self, A: HostMatrix) -> int:
        lines = A.entries.view(np.float64).reshape(-1, LANES // 8)  # a slot of the narrowest values is that long
        if not lines.size:
            return 0
        width = lines.size if lines.size % READ else READ
        lines = lines.reshape(-1, width)
        self._norms.read_all([Tile(lines, consecutive(lines.shape[0]), consecutive(width), 0, 0)])
        return int(lines.nbytes)
