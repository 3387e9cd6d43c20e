"""HPL with checksums: LU carries two more columns of [A | b] (Huang and Abraham 1984).

    P [A  s] = L [U  U w]      s = A w

Row swaps, solves and updates treat these columns in the same way as all others. Every process column has a copy of the
checksum columns, with sums over whole rows. Therefore, s_i is the sum over the remaining part of row i, and the sum
over U after the row is finished. If L21 is wrong on one rank (because of its panel, a message, or a flip in its
buffer), the sums differ from the rows on this rank.

Sums and entries are rounded in the same way, with an error of u·size for each of the N eliminated columns, and L^-1
transfers the differences to the remaining rows. The summation of the rows adds sqrt(N)·u·size. The limit is c·u·size
with c = TOLERANCE·(N + FEW); FEW is added because the few roundings of a small N do not average out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mxpeak.comm.grid import Grid
from mxpeak.distributed.dense import DistMatrix
from mxpeak.kernels.contract import Kernels, Vector
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.precision import precision
from mxpeak.solvers.abft.checksums import Checks
from mxpeak.solvers.checkpointing import Checkpointer
from mxpeak.spans import Spans

#: Constants of the limit, which is several times the largest value of a thousand runs without faults.
TOLERANCE, FEW = 16.0, 10


def with_checksums(grid: Grid, m: int, n: int, nb: int, kernels: Kernels) -> tuple[DistMatrix, DistMatrix]:
    """Return an uninitialized m×n matrix on the grid, and the same matrix with two more columns on every rank."""
    rows, cols = BlockCyclic(m, nb, grid.p, grid.P), BlockCyclic(n, nb, grid.q, grid.Q)
    wide = DistMatrix(grid, rows, cols, kernels.matrix(rows.local_size, cols.local_size + 2))
    return replace(wide, local=wide.local[:, : cols.local_size]), wide


class PivotedChecks(Checks):
    """Checks a factorization by `pivoted_lu.factorize`, in which the matrix has two checksum columns."""

    def __init__(self, A: DistMatrix, wide: DistMatrix, kernels: Kernels, spans: Spans, checkpointer: Checkpointer):
        super().__init__(A, kernels, spans, checkpointer)
        self._carried = [wide.local[:, A.cols.local_size + k] for k in range(2)]

    def baseline(self, done: int) -> None:
        """Compute the sums over U for finished rows, and over the trailing matrix for the other rows."""
        j = self.column_after(done)
        first = self.A.rows.local_start(j)
        for k, (carried, sums) in enumerate(zip(self._carried, self.both_sums_from(j))):
            carried[first:] = sums[first:]
            if done:
                carried[:first] = self.triangle("upper", k)[:first]

    def check(self, done: int) -> None:
        """Check the trailing matrix. Collective over the grid."""
        j = self.column_after(done)
        self._compare(done, lambda k: self.sums_from(j, k), self.A.rows.local_start(j), (j, j))

    def check_end(self) -> None:
        """Check all rows of U. Collective over the grid."""
        self._compare(len(self.steps), lambda k: self.triangle("upper", k), 0, None)

    def look_back(self) -> None:
        """Do nothing, because x is computed from U immediately, and L is not needed again."""

    def _compare(
        self, done: int, sums_by: Callable[[int], Vector], first: int, correctable: tuple[int, int] | None
    ) -> None:
        """Compare the checksums of the local rows from `first` on with the matrix.

        If rows were corrected, compute their checksums again.
        """
        xp, f, n = self.kernels.xp, precision(self.A.precision), self.A.rows.n
        actual: dict[int, Vector] = {}

        def both(k: int) -> tuple[Vector, Vector]:
            actual[k] = sums_by(k)
            want = xp.asarray(self._carried[k], copy=True)
            want[:first] = actual[k][:first]
            return want, actual[k]

        sums = both(0)
        size = xp.abs(sums[0])
        size[:first] = 0.0
        limit = xp.full_like(size, f.smallest)
        self.kernels.add_scaled(limit, TOLERANCE * (n + FEW) * f.u, self.no_less_than_typical(size))
        corrected_rows = self.judge(done, sums, limit, sums[0], lambda: both(1), correctable)
        if 1 in actual:
            for k, carried in enumerate(self._carried):
                for row in corrected_rows:
                    actual[k][row] = carried[row]
                carried[first:] = actual[k][first:]
