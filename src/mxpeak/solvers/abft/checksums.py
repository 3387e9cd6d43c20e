"""Checksums of an LU: flipped bits are found while it goes on, and single ones mended (Huang & Abraham 1984).

Every row of the trailing matrix has two sums, weighted by w and by w', over the whole row, whichever ranks have it:

    s_i = Σ_j a_ij w_j        s'_i = Σ_j a_ij w'_j        w_j = ±1,   w'_j = w_j·(1 + (j+1)/N)

A step of LU is linear in the rows, so it takes old sums to new ones.  Every EVERY steps, and at the end, they are
compared with sums of what lies in memory; s' only where s differs.  Where a_ij is off by δ, the differences are δ·w_j
and δ·w'_j: the row is where they are, the column what their quotient says, and a_ij follows from its row's sum.
Between two checks a wrong entry may have been used, and have spread: that is found as well, but cannot be mended.

A difference counts if it exceeds what rounding explains of a sum of that size; of no less than the root mean square of
all rows so far, since a sum of random signs may be near zero by chance, and what is left of a matrix by cancellation.
The two forms say how much that is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isfinite
from time import perf_counter
from typing import Any

from mxpeak.comm.collectives import allreduce_scalar, allreduce_scalars
from mxpeak.distributed.dense import DistMatrix
from mxpeak.kernels.contract import Kernels, Vector
from mxpeak.layout.lu_schedule import lu_steps
from mxpeak.solvers.abft.lu_faults import Checked, Differing, Fault
from mxpeak.solvers.checkpointing import Checkpointer, Notes
from mxpeak.spans import Spans

#: Steps between two checks: each reads the trailing matrix, as a step does that updates it NB times as long.
EVERY = 10
#: Which signs the weights have.
SEED = 1984
#: One difference is nothing beside the other: a wrong entry's are within a factor of two, and a wrong L's arbitrary.
APART = 1e-3
#: How many faults of a rank are told, those first that could not be mended.
MOST_TOLD = 8


class Checks(ABC):
    """A keeper that checks the factorization between steps, and has another keeper keep it.

    Call `begin` once the matrix is there, `finish` once it is factored, and `checked` as long as the factors are there.
    """

    def __init__(self, A: DistMatrix, kernels: Kernels, spans: Spans, keeper: Checkpointer):
        self.A, self.kernels, self.spans = A, kernels, spans
        self.first, self.notes = keeper.first, keeper.notes
        self.steps = lu_steps(A.rows.n, A.nb, A.grid.P, A.grid.Q)
        self.weights = self._weights()
        self._keeper, self._keeps = keeper, False
        self._checks, self._faults = 0, list[Fault]()
        # The largest that sums have been: what is left of the matrix may be small by cancellation.
        self._typical = self._seen = 0.0

    def due(self, step: int, count: int) -> bool:
        """Whether to check, or to keep, after this step."""
        self._keeps = self._keeper.due(step, count)
        return self._keeps or (step + 1) % EVERY == 0

    def keep(self, done: int, notes: Notes) -> None:
        """Check after so many steps, and have the matrix kept if nothing is left wrong.  Collective over the grid."""
        with self.spans("abft"):
            self.check(done)
            self._checks += 1
            # Sums begin anew after a fault: nobody could tell later that a checkpoint holds it.
            keeps = (
                self._keeps
                and allreduce_scalar(self.A.grid.all, float(self._unmended()), "sum", self.kernels.xp) == 0.0
            )
        if keeps:
            self._keeper.keep(done, notes)

    def begin(self) -> None:
        """Add up the rows.  Collective over the grid."""
        with self.spans("abft"):
            self.baseline(self.first)

    def finish(self) -> None:
        """Check what the last steps made.  Collective over the grid."""
        with self.spans("abft"):
            self.kernels.wait()
            self.check_end()
            self._checks += 1

    def checked(self) -> Checked:
        """What was found, also by a look at the factors after the clock; whole on the grid's rank 0.

        Collective over the grid.
        """
        begin = perf_counter()
        self.look_back()
        after_s = perf_counter() - begin
        worst = sorted(self._faults, key=lambda fault: fault.corrected)[:MOST_TOLD]
        mine = len(self._faults), self._unmended(), worst
        found = self.A.grid.all.gather_objects(mine) or [mine]
        faults = sorted((fault for *_, part in found for fault in part), key=lambda fault: fault.step)
        count, left = (sum(part[k] for part in found) for k in range(2))
        return Checked(self._checks, count, count - left, faults, self.spans.time_of("abft"), after_s)

    def _unmended(self) -> int:
        """How many faults of this rank could not be mended."""
        return sum(not fault.corrected for fault in self._faults)

    @abstractmethod
    def baseline(self, done: int) -> None:
        """Sums of the matrix as it is after so many steps.  Collective over the grid."""

    @abstractmethod
    def check(self, done: int) -> None:
        """Compare carried sums with those of the matrix after so many steps.  Collective over the grid."""

    @abstractmethod
    def check_end(self) -> None:
        """The same when all is done.  Collective over the grid."""

    @abstractmethod
    def look_back(self) -> None:
        """Compare the factors with what they were when they were checked.  Collective over the grid."""

    # --- sums

    def column_after(self, done: int) -> int:
        """The first column that is left after so many steps."""
        return self.steps[done].j0 if done < len(self.steps) else self.A.rows.n

    def _weights(self) -> list[Vector]:
        """w and w' over this rank's columns."""
        kernels, xp, cols, n = self.kernels, self.kernels.xp, self.A.cols, self.A.rows.n
        w = xp.zeros(cols.local_size)
        kernels.signs(w, cols, SEED)
        positions = xp.asarray([1.0 + (cols.to_global(j) + 1.0) / n for j in range(cols.local_size)], dtype=xp.float64)
        return [w, xp.multiply(w, positions)]

    def zeros(self) -> Vector:
        """Zeros over this rank's rows."""
        return self.kernels.xp.zeros(self.A.rows.local_size)

    def sums_from(self, j: int, k: int = 0) -> Vector:
        """Sums over rows and columns from j on, weighted by w or w'.  Collective over the process row."""
        A, sums = self.A, self.zeros()
        rows, cols = (slice(part.local_start(j), None) for part in (A.rows, A.cols))
        self.kernels.add_matvec(sums[rows], A.local[rows, cols], self.weights[k][cols])
        return self.along_row(sums)

    def both_sums_from(self, j: int) -> tuple[Vector, Vector]:
        """The same by w and by w', of which the matrix is read once.  Collective over the process row."""
        A, (sums, others), (w, w2) = self.A, (self.zeros(), self.zeros()), self.weights
        rows, cols = (slice(part.local_start(j), None) for part in (A.rows, A.cols))
        self.kernels.add_two_matvecs(sums[rows], others[rows], A.local[rows, cols], w[cols], w2[cols])
        return self.along_row(sums), self.along_row(others)

    def triangle(self, part: str, k: int = 0) -> Vector:
        """Sums over the rows of the strict lower, or of the upper triangle.  Collective over the process row."""
        A, sums = self.A, self.zeros()
        self.kernels.add_triangle_matvec(sums, A.local, self.weights[k], A.rows, A.cols, part)
        return self.along_row(sums)

    def along_row(self, sums: Vector) -> Vector:
        """Everybody's sums of the same rows.  Collective over the process row."""
        self.A.grid.row.allreduce(sums, "sum")
        return sums

    # --- judging

    def no_less_than_typical(self, size: Vector) -> Vector:
        """A row's size, and no less than the root mean square of all rows at any check that found nothing wrong."""
        xp = self.kernels.xp
        self._seen = max(self._typical, root_mean_square(xp, size))
        return xp.maximum(size, xp.full_like(size, self._seen))

    def judge(
        self,
        done: int,
        sums: tuple[Vector, Vector],
        limit: Vector,
        carried: Vector,
        others: Callable[[], tuple[Vector, Vector]],
        mendable: tuple[int, int] | None = None,
    ) -> list[int]:
        """Compare carried sums and those of the matrix; note what differs by more than a limit, and mend what can be.

        carried: the sums that were kept since the last check, of which the first are made
        others: both once more, weighted by w'; asked for, by all ranks, only where something differs
        mendable: the rows from which on, and columns, where one wrong entry has not spread.
        Returns the local rows that were mended.  Collective over the grid.
        """
        xp, row = self.kernels.xp, self.A.grid.row
        right = xp.logical_and(xp.abs(xp.subtract(*sums)) <= limit, xp.isfinite(limit))
        wrong = xp.astype(xp.logical_not(right), xp.float64)
        if allreduce_scalar(self.A.grid.all, float(xp.sum(wrong)), "sum", self.kernels.xp) == 0.0:
            self._typical = self._seen
            return []
        (want, found), (want2, found2) = sums, others()
        off, off2 = xp.abs(xp.subtract(want, found)), xp.abs(xp.subtract(want2, found2))
        # Where the other difference is nothing beside this one, the sum was hit, and not the matrix.
        apart = xp.logical_and(off2 < xp.multiply(off, APART), xp.isfinite(xp.add(off, off2)))
        lost = xp.logical_and(xp.isfinite(xp.add(found, found2)), xp.logical_not(xp.isfinite(carried)))
        sum_only = xp.logical_or(apart, lost)
        rows = xp.multiply(wrong, xp.astype(xp.logical_not(sum_only), xp.float64))
        row.allreduce(rows, "max")  # a rank whose own copy of the sums was hit is alone
        hit = xp.multiply(wrong, xp.astype(sum_only, xp.float64)) - rows
        row.allreduce(hit, "max")
        hit_rows = [i for i, value in enumerate(hit.tolist()) if value > 0]
        return self._note(done, Differing([want, want2], [found, found2], limit, _marked(rows), hit_rows), mendable)

    def _note(self, done: int, differing: Differing, mendable: tuple[int, int] | None) -> list[int]:
        """Rows that are wrong, as a fault; the local row that was mended.  Collective over the grid."""
        A, rows = self.A, differing.rows
        alone = allreduce_scalar(A.grid.column, float(len(rows)), "sum", self.kernels.xp) == 1.0
        column = self._column(rows[0], differing) if rows else None
        mended = False
        if rows and alone and column is not None and mendable is not None:
            inside = A.rows.to_global(rows[0]) >= mendable[0] and column >= mendable[1]
            mended = inside and self._mend(rows[0], column, differing, mendable[1])
        for part, which in (("matrix", rows), ("checksum", differing.sums)):
            if which and A.grid.q == 0:  # the ranks of a process row say the same
                at = column if part == "matrix" else None
                process = A.grid.p, None if at is None else A.cols.owner(at)
                first, corrected = A.rows.to_global(which[0]), mended or part == "checksum"
                self._faults.append(Fault(done, process, len(which), first, at, part, corrected))
        return [rows[0]] if mended else []

    def _column(self, row: int, differing: Differing) -> int | None:
        """The column of the one wrong entry of a local row, if there is just one.  Collective over the process row."""
        A, xp = self.A, self.kernels.xp
        odd = xp.astype(xp.logical_not(xp.isfinite(A.local[row, :])), xp.float64)
        columns = _marked(odd)
        counts = allreduce_scalars(
            A.grid.row, [float(len(columns)), float(sum(map(A.cols.to_global, columns)))], "sum", self.kernels.xp
        )
        if counts[0]:
            return int(counts[1]) if counts[0] == 1.0 else None
        return self._agreed(self._quotient(row, differing))

    def _quotient(self, row: int, differing: Differing) -> int | None:
        """The column that both differences of a local row agree on, by this rank's carried sums."""
        n = self.A.rows.n
        off = [float(s[row]) - float(z[row]) for s, z in zip(differing.want, differing.found)]
        limit = float(differing.limit[row])
        if not all(map(isfinite, off)) or not n * limit <= 0.25 * abs(off[0]):  # or NaN
            return None  # columns side by side could not be told from each other
        column = (off[1] / off[0] - 1.0) * n - 1.0
        return round(column) if -0.5 < column < self.A.cols.n - 0.5 else None

    def _agreed(self, column: int | None) -> int | None:
        """The column that all ranks of the process row found, or None.  Collective over the process row.

        A wrong L21 in one rank's panel changes its carried sums as well: then they are not the same along the row.
        """
        xp = self.kernels.xp
        ends = xp.asarray([-1.0, 1.0] if column is None else [float(column), -float(column)], dtype=xp.float64)
        self.A.grid.row.allreduce(ends, "max")
        largest, smallest = float(ends[0]), -float(ends[1])
        return int(largest) if largest == smallest >= 0.0 else None

    def _mend(self, row: int, column: int, differing: Differing, first: int) -> bool:
        """a_ij = (s_i - the sum of the others) / w_j, if that makes both sums right.  Collective along the row."""
        A, (w, _) = self.A, self.weights
        mine, jl = A.grid.q == A.cols.owner(column), A.cols.to_local(column)
        before = float(A.local[row, jl]) if mine else 0.0
        if mine:
            A.local[row, jl] = 0.0
        others = self._row_sums(row, first)
        if mine:
            A.local[row, jl] = (float(differing.want[0][row]) - others[0]) * float(w[jl])  # 1/w = w
        off = [abs(float(want[row]) - now) for want, now in zip(differing.want, self._row_sums(row, first))]
        right = all(one <= 2.0 * float(differing.limit[row]) for one in off)
        if allreduce_scalar(A.grid.row, float(not right), "sum", self.kernels.xp) == 0.0:  # by the carried sums of all
            return True
        if mine:
            A.local[row, jl] = before
        return False

    def _row_sums(self, row: int, first: int) -> list[float]:
        """Both sums over a local row from a column on.  Collective over the process row."""
        part, c0 = self.A.local[slice(row, row + 1)], self.A.cols.local_start(first)
        sums = [self.kernels.xp.zeros(1) for _ in range(2)]
        for y, w in zip(sums, self.weights):
            self.kernels.add_matvec(y, part[:, c0:], w[c0:])
        return [float(self.along_row(y)[0]) for y in sums]


@contextmanager
def checking(checks: Checks | None) -> Iterator[None]:
    """Check the factorization inside, if it is to be checked.  Collective over the grid."""
    if checks is not None:
        checks.begin()
    yield
    if checks is not None:
        checks.finish()


def root_mean_square(xp: Any, size: Vector) -> float:
    """That of a vector's finite entries; 0 where there are none, or it is too large for a number."""
    finite = size[xp.isfinite(size)]
    found = float(xp.sqrt(xp.mean(xp.square(finite)))) if len(finite) else 0.0
    return found if isfinite(found) else 0.0


def _marked(mask: Vector) -> list[int]:
    """Where a mask is not zero."""
    return [i for i, value in enumerate(mask.tolist()) if value]
