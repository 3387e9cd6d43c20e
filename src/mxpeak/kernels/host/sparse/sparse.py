"""Implement `kernels.contract.sparse` on NumPy arrays and the threads of a team."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from mxpeak.kernels import arrays
from mxpeak.kernels.contract.norms import Tile
from mxpeak.kernels.contract.sparse import Part
from mxpeak.kernels.host.engine.team import Team
from mxpeak.kernels.host.engine.vector_ir import SYNC, sched_yield_address
from mxpeak.kernels.host.norms.norms import HostNorms
from mxpeak.kernels.host.sparse import gs_colored, vectors
from mxpeak.kernels.host.sparse.chunk_format import BOTH, LOWER, UPPER
from mxpeak.kernels.host.sparse.coarse_rows import coarse_rows, copied_rows
from mxpeak.kernels.host.sparse.gs_colored import StepList
from mxpeak.kernels.host.sparse.matrix import FORMATS, VECTORS, Array, HostMatrix, NaturalPattern, aligned
from mxpeak.kernels.host.sparse.natural import coarse_residual
from mxpeak.kernels.host.sparse.natural.schedule import APART, Schedule
from mxpeak.kernels.host.sparse.setup import HostSparseSetup
from mxpeak.kernels.host.sparse.slot_sums import LANES, SUCCESSIVE
from mxpeak.layout.index_map import consecutive
from mxpeak.spans import HOST

#: Numbers that one thread processes in the time that another thread needs to wake up.
SERIAL_BELOW = 2**18
#: Numbers per row of the matrix that `read_values` reads.
READ = 4096
#: Residuals are computed from a copy of the entries if the rows are at most 1 / COPIED_SHARE of all rows.
COPIED_SHARE = 4


class HostSparse(HostSparseSetup):
    """Sparse kernels of the host, with compiled loops over rows on the threads of a team.

    Only one caller may use the kernels at a time, because all calls share memory for sums.
    """

    xp = arrays.xp
    stopwatch = HOST
    device = None
    parts = 1
    chunk_rows = LANES

    def __init__(self, team: Team, rows_at_a_time: int | None = None):
        super().__init__(team, rows_at_a_time)
        self._norms = HostNorms(team)
        self._yield = sched_yield_address()
        self._synchronization = np.zeros(SYNC, np.int64), self._yield
        self._sums = np.zeros((team.threads, 1024))
        self._empty = {dtype: np.empty(0, dtype) for dtype in VECTORS.values()}
        self._no_progress = np.zeros(APART, np.int64)  # the progress of a single thread is never read

    def computing(self) -> nullcontext[None]:
        return nullcontext()

    def _run_on(self, numbers: int, function: Any, *args: Any) -> int:
        """Run a function on all threads, or on the calling thread if there are few numbers.

        Returns the number of threads used.
        """
        if numbers < SERIAL_BELOW:
            function(0, 1, *args)
            return 1
        self._team.run(function, self.threads, *args)
        return self.threads

    def halo_vector(self, A: HostMatrix) -> Array:
        # vector loads read beyond the last number, either every x or every second one
        padding = max(LANES, SUCCESSIVE * coarse_residual.STEP)
        return aligned(A.n + A.halo + padding, FORMATS[A.vectors][0])

    def gather(self, x: Array, rows: Array, out: Array) -> None:
        self._run_on(rows.size, vectors.gather, rows, _compiled(x), _compiled(out))

    def scatter_add(self, x: Array, rows: Array, y: Array) -> None:
        self._run_on(rows.size, vectors.scatter_add, rows, _compiled(y), _compiled(x))

    def dot(self, x: Array, y: Array) -> float:
        used = self._run_on(x.size, vectors.dot, x, y, self._sums)
        return float(self._sums[:used, 0].sum())

    def scale(self, y: Array, factor: float, x: Array) -> None:
        wider = max(_real(x), _real(y), key=lambda real: real.itemsize)
        self._run_on(x.size, vectors.scale, _compiled(y), wider.type(factor), _compiled(x))

    def add_scaled(self, y: Array, factor: float, x: Array) -> None:
        self._run_on(y.size, vectors.add_scaled, y, y.dtype.type(factor), _compiled(x))

    def scale_and_add(self, y: Array, factor: float, x: Array) -> None:
        self._run_on(y.size, vectors.scale_and_add, y, y.dtype.type(factor), x)

    def subtract_from(self, y: Array, b: Array) -> float:
        used = self._run_on(b.size, vectors.subtract_from, y, b, self._sums)
        return float(self._sums[:used, 0].sum())

    def basis(self, n: int, count: int, precision: str) -> Array:
        stride = -(-n // 16) * 16 + 16  # whole cache lines, and rarely a multiple of 4 KiB
        return np.zeros((count, stride), FORMATS[precision][0])[:, :n]

    def project(self, Q: Array, k: int, w: Array) -> Array:
        used = self._run_on(k * w.size, vectors.project, _compiled(Q), k, w, self._sums_of(k))
        return self._sums[:used, :k].sum(axis=0)

    def subtract_and_project(self, Q: Array, k: int, w: Array, h: Array) -> Array:
        task = _compiled(Q), k, w, h.astype(w.dtype)
        used = self._run_on(k * w.size, vectors.subtract_and_project, *task, self._sums_of(k))
        return self._sums[:used, :k].sum(axis=0)

    def subtract_and_square(self, Q: Array, k: int, w: Array, h: Array) -> float:
        task = _compiled(Q), k, w, h.astype(w.dtype)
        used = self._run_on(k * w.size, vectors.subtract_and_square, *task, self._sums)
        return float(self._sums[:used, 0].sum())

    def combine(self, Q: Array, y: Sequence[float], out: Array) -> None:
        self._run_on(len(y) * out.size, vectors.combine, _compiled(Q), len(y), np.array(y, _real(Q)), out)

    def _sums_of(self, k: int) -> Array:
        """Return the memory for k sums per thread, enlarged if necessary."""
        if self._sums.shape[1] < k:
            self._sums = np.zeros((self.threads, k))
        return self._sums

    def sweep_from_zero(
        self, A: HostMatrix, b: Array, x: Array, *, keep: Array | None = None, part: Part = Part.ALL
    ) -> None:
        if isinstance(A.pattern, NaturalPattern):
            self._sweep_natural(A, A.pattern, A.pattern.from_zero[part], b, x, keep, from_zero=True)
        else:
            self._sweep_steps(A, A.pattern.from_zero[part], b, x, keep, LOWER)

    def sweep_forward(
        self, A: HostMatrix, b: Array, x: Array, *, keep: Array | None = None, part: Part = Part.ALL
    ) -> None:
        halo_rows = A.pattern.halo.rows
        if part != Part.BOUNDARY:
            self._sweep(A, Part.INTERIOR, b, x, keep)
        if part != Part.INTERIOR and halo_rows.size:
            saved = np.empty(halo_rows.size, b.dtype)
            self._subtract_halo(A, x, halo_rows, b, saved)  # b - H x during the sweep
            try:
                self._sweep(A, Part.BOUNDARY, b, x, keep)
            finally:
                self._run_on(saved.size, vectors.scatter, halo_rows, _compiled(saved), _compiled(b))

    def _sweep(self, A: HostMatrix, part: Part, b: Array, x: Array, keep: Array | None) -> None:
        """Sweep forward over one part of the rows, using only entries in columns of this rank."""
        if isinstance(A.pattern, NaturalPattern):
            self._sweep_natural(A, A.pattern, A.pattern.spans[part], b, x, keep)
        else:
            self._sweep_steps(A, A.pattern.steps[part], b, x, keep, BOTH)

    def sweep_backward(self, A: HostMatrix, keep: Array, x: Array, *, part: Part = Part.ALL) -> None:
        pattern = A.pattern
        if not isinstance(pattern, NaturalPattern):
            self._sweep_steps(A, pattern.steps[part], keep, x, None, UPPER)
            return
        first, end = pattern.spans[part]
        if first != end:
            schedule = self._schedule(pattern, pattern.backward, first, end, pattern.owner.size - end)
            self._run_on(A.entries.size, pattern.kernels.sweep_backward, schedule, A.arrays, keep, x)

    def _sweep_natural(
        self,
        A: HostMatrix,
        pattern: NaturalPattern,
        span: tuple[int, int],
        b: Array,
        x: Array,
        keep: Array | None,
        *,
        from_zero: bool = False,
    ) -> None:
        """Sweep forward over a span of units in the natural order."""
        first, end = span
        if first != end:
            schedule = self._schedule(pattern, pattern.forward, first, end, first)
            kept = self._empty[x.dtype] if keep is None else keep
            self._run_on(A.entries.size, pattern.kernels.sweep_forward, schedule, A.arrays, b, x, kept, from_zero)

    def _schedule(self, pattern: NaturalPattern, needs: Array, first: int, end: int, progress: int) -> Schedule:
        """Return the schedule of a sweep over the units first … end-1, in which all threads start at `progress`."""
        published = self._no_progress if self.threads == 1 else np.full(self.threads * APART, progress, np.int64)
        return Schedule(published, pattern.owner, needs, first, end, self._yield)

    def _sweep_steps(self, A: HostMatrix, steps: StepList, b: Array, x: Array, keep: Array | None, parts: int) -> None:
        """Sweep over the chunks of the given steps with the parts L, U or both."""
        if steps.chunks.size:
            b, x = _compiled(b), _compiled(x)
            kept = x[:0] if keep is None else _compiled(keep)
            self._run_on(A.entries.size, gs_colored.sweep, self._synchronization, steps, A.arrays, b, x, kept, parts)

    def _subtract_halo(self, A: HostMatrix, x: Array, targets: Array, y: Array, saved: Array) -> None:
        """Compute y[targets_s] -= (H x)_s for targets_s >= 0. If `saved` is not empty, store the old y there."""
        x, y, saved = _compiled(x), _compiled(y), _compiled(saved)
        halo = x[A.n : A.n + A.halo]
        self._run_on(A.halo_nnz, vectors.subtract_halo, A.pattern.halo, A.halo_entries, halo, targets, y, saved)

    def matvec(self, y: Array, A: HostMatrix, x: Array, *, part: Part = Part.ALL) -> None:
        pattern, x = A.pattern, _compiled(x)
        if part != Part.BOUNDARY:
            self._run_on(A.entries.size, pattern.kernels.multiply, A.arrays, x, y)
        if part != Part.INTERIOR and pattern.halo.rows.size:
            self._run_on(A.halo_nnz, vectors.add_halo, pattern.halo, A.halo_entries, x[A.n : A.n + A.halo], y)

    def residual_at(
        self,
        A: HostMatrix,
        b: Array,
        x: Array,
        rows: Array,
        r: Array,
        *,
        swept: bool = False,
        keep: Array | None = None,
        part: Part = Part.ALL,
    ) -> None:
        parts = LOWER if keep is not None else UPPER if swept else BOTH
        b, x, r = _compiled(b), _compiled(x), _compiled(r)
        kept = b if keep is None else _compiled(keep)  # read only with LOWER alone
        coarse, pattern, numbers = coarse_rows(A, rows), A.pattern, 27 * rows.size
        if part != Part.BOUNDARY and isinstance(pattern, NaturalPattern) and COPIED_SHARE * rows.size <= A.n:
            copies = copied_rows(self._run_on, A, coarse, parts)
            by_row = isinstance(copies, coarse_residual.RowCopies)
            kernel = coarse_residual.residual if by_row else coarse_residual.residual_in_chunks
            self._run_on(numbers, kernel, copies, A.arrays, b, x, kept, r, parts)
        elif part != Part.BOUNDARY:
            self._run_on(numbers, pattern.kernels.residual, coarse.at, A.arrays, b, x, kept, r, parts)
        if part != Part.INTERIOR and pattern.halo.rows.size:
            self._subtract_halo(A, x, coarse.halo_targets, r, x[:0])

    def read_values(self, A: HostMatrix) -> int:
        lines = A.entries.view(np.float64).reshape(
            -1, LANES // 8
        )  # each line has the bytes of a slot of the narrowest values
        if not lines.size:
            return 0
        width = lines.size if lines.size % READ else READ
        lines = lines.reshape(-1, width)
        self._norms.read_all([Tile(lines, consecutive(lines.shape[0]), consecutive(width), 0, 0)])
        return int(lines.nbytes)


#: The types that compiled code receives for the types of 16 bits.
_BITS = {FORMATS[name][0]: FORMATS[name][1] for name in ("bf16", "fp16")}


def _compiled(x: Array) -> Array:
    """Return x as compiled code receives it: the bits of bf16 or fp16 numbers as integers."""
    return x.view(_BITS[x.dtype]) if x.dtype in _BITS else x


def _real(x: Array) -> np.dtype[Any]:
    """Return the type in which numbers of x are added: fp32 for bf16 and fp16."""
    return VECTORS["fp32"] if x.dtype in _BITS else x.dtype
