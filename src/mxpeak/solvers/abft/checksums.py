"""Checksums of an LU factorization, which detect flipped bits and correct single errors (Huang and Abraham 1984).

Two sums, the checksums, are kept for every row of the trailing matrix. Each sum runs over the whole row, on all ranks
that store parts of it:

    s_i = Σ_j a_ij w_j        s'_i = Σ_j a_ij w'_j        w_j = ±1,   w'_j = w_j·(1 + (j+1)/N)

A step of LU is linear in the rows, so it transforms the old sums to the new sums. Every EVERY steps, and at the end,
the checksums are compared with newly computed sums of the matrix in memory. s' is compared only if s differs. If a_ij
is wrong by δ, the differences are δ·w_j and δ·w'_j in row i. Their quotient gives column j, and the sum of the row
gives the correct a_ij. If a wrong entry has been used between two checks, the error has spread; it is detected but
cannot be corrected.

A difference is a fault if it exceeds the effect of rounding on a sum of that size. The size is at least the root mean
square of all rows so far. A sum with random signs may be near zero by chance, and the trailing matrix may be small by
cancellation. The two subclasses define the effect of rounding.
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
from mxpeak.solvers.abft.lu_faults import Differing, Fault, FaultSummary
from mxpeak.solvers.checkpointing import Checkpointer, Notes
from mxpeak.spans import Spans

#: Number of steps between two checks. A check reads the trailing matrix once, which is a small part of the work of a
#: step.
EVERY = 10
#: Seed of the random signs of the weights.
SEED = 1984
#: Ratio of the two differences below which one is negligible. The differences of a wrong entry are within a factor of
#: two.
APART = 1e-3
#: Largest number of faults per rank in the result; faults that could not be corrected come first.
MAX_LISTED = 8


class Checks(ABC):
    """A checkpointer that checks the factorization between steps, and calls another checkpointer to write checkpoints.

    Call `begin` when the matrix exists, `finish` after the factorization, and `checked` while the factors still exist.
    """

    def __init__(self, A: DistMatrix, kernels: Kernels, spans: Spans, checkpointer: Checkpointer):
        self.A, self.kernels, self.spans = A, kernels, spans
        self.first_step, self.notes = checkpointer.first_step, checkpointer.notes
        self.steps = lu_steps(A.rows.n, A.nb, A.grid.P, A.grid.Q)
        self.weights = self._weights()
        self._checkpointer, self._saves = checkpointer, False
        self._checks, self._faults = 0, list[Fault]()
        # The largest size of the sums so far, because the trailing matrix may be small by cancellation.
        self._typical = self._seen = 0.0

    def is_due(self, step: int, count: int) -> bool:
        """Return whether a check or a checkpoint is due after this step."""
        self._saves = self._checkpointer.is_due(step, count)
        return self._saves or (step + 1) % EVERY == 0

    def save(self, done: int, notes: Notes) -> None:
        """Check the matrix after `done` steps, and write a checkpoint if all faults were corrected. Collective."""
        with self.spans("abft"):
            self.check(done)
            self._checks += 1
            # Sums are recomputed after a fault, so a fault in a checkpoint could not be detected later.
            saves = (
                self._saves
                and allreduce_scalar(self.A.grid.all, float(self._uncorrected()), "sum", self.kernels.xp) == 0.0
            )
        if saves:
            self._checkpointer.save(done, notes)

    def begin(self) -> None:
        """Compute the row sums before the first step. Collective over the grid."""
        with self.spans("abft"):
            self.baseline(self.first_step)

    def finish(self) -> None:
        """Check the result of the steps since the last check. Collective over the grid."""
        with self.spans("abft"):
            self.kernels.wait()
            self.check_end()
            self._checks += 1

    def checked(self) -> FaultSummary:
        """Check the factors again, and return the result of all checks.

        The list of faults is complete only on rank 0 of the grid. The time of this check is not part of the
        factorization. Collective over the grid.
        """
        begin = perf_counter()
        self.look_back()
        after_s = perf_counter() - begin
        worst = sorted(self._faults, key=lambda fault: fault.corrected)[:MAX_LISTED]
        own = len(self._faults), self._uncorrected(), worst
        parts = self.A.grid.all.gather_objects(own) or [own]
        faults = sorted((fault for *_, part in parts for fault in part), key=lambda fault: fault.step)
        count, uncorrected = (sum(part[k] for part in parts) for k in range(2))
        return FaultSummary(self._checks, count, count - uncorrected, faults, self.spans.time_of("abft"), after_s)

    def _uncorrected(self) -> int:
        """Return the number of faults on this rank that were not corrected."""
        return sum(not fault.corrected for fault in self._faults)

    @abstractmethod
    def baseline(self, done: int) -> None:
        """Compute the row sums of the matrix after `done` steps. Collective over the grid."""

    @abstractmethod
    def check(self, done: int) -> None:
        """Compare the checksums with the row sums of the matrix after `done` steps. Collective over the grid."""

    @abstractmethod
    def check_end(self) -> None:
        """Compare the checksums with the row sums of the factors after the last step. Collective over the grid."""

    @abstractmethod
    def look_back(self) -> None:
        """Compare the factors with the sums that were computed at the last check. Collective over the grid."""

    def column_after(self, done: int) -> int:
        """Return the first column of the trailing matrix after `done` steps."""
        return self.steps[done].j0 if done < len(self.steps) else self.A.rows.n

    def _weights(self) -> list[Vector]:
        """Return the weights w and w' of this rank's columns."""
        kernels, xp, cols, n = self.kernels, self.kernels.xp, self.A.cols, self.A.rows.n
        w = xp.zeros(cols.local_size)
        kernels.signs(w, cols, SEED)
        positions = xp.asarray([1.0 + (cols.to_global(j) + 1.0) / n for j in range(cols.local_size)], dtype=xp.float64)
        return [w, xp.multiply(w, positions)]

    def zeros(self) -> Vector:
        """Return a vector of zeros over this rank's rows."""
        return self.kernels.xp.zeros(self.A.rows.local_size)

    def sums_from(self, j: int, k: int = 0) -> Vector:
        """Return the row sums over the submatrix A[j:, j:], weighted by w or w'. Collective over the process row."""
        A, sums = self.A, self.zeros()
        rows, cols = (slice(part.local_start(j), None) for part in (A.rows, A.cols))
        self.kernels.add_matvec(sums[rows], A.local[rows, cols], self.weights[k][cols])
        return self.along_row(sums)

    def both_sums_from(self, j: int) -> tuple[Vector, Vector]:
        """Return the row sums of A[j:, j:] weighted by w and by w', reading A once. Collective over the process row."""
        A, (sums, others), (w, w2) = self.A, (self.zeros(), self.zeros()), self.weights
        rows, cols = (slice(part.local_start(j), None) for part in (A.rows, A.cols))
        self.kernels.add_two_matvecs(sums[rows], others[rows], A.local[rows, cols], w[cols], w2[cols])
        return self.along_row(sums), self.along_row(others)

    def triangle(self, part: str, k: int = 0) -> Vector:
        """Return the weighted row sums of A's strict lower or upper triangle. Collective over the process row."""
        A, sums = self.A, self.zeros()
        self.kernels.add_triangle_matvec(sums, A.local, self.weights[k], A.rows, A.cols, part)
        return self.along_row(sums)

    def along_row(self, sums: Vector) -> Vector:
        """Add the sums in place over the ranks of the process row, and return the totals. Collective over the row."""
        self.A.grid.row.allreduce(sums, "sum")
        return sums

    def no_less_than_typical(self, size: Vector) -> Vector:
        """Return the sizes of the row sums, each raised to at least the typical size.

        The typical size is the largest root mean square of all rows in any check without faults.
        """
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
        correctable: tuple[int, int] | None = None,
    ) -> list[int]:
        """Compare the checksums with sums of the matrix, record large differences, and correct single errors.

        sums          two vectors: the expected row sums, computed from `carried`, and the row sums of the matrix
        limit         the largest difference of each row that rounding may cause
        carried       the checksums, which were updated since the last check
        others        a function that returns both vectors for w'; all ranks call it, and only if the sums differ
        correctable   the first row and column of the submatrix in which a single wrong entry has not spread;
                      None if no entry can be corrected

        Return the local rows that were corrected. Collective over the grid.
        """
        xp, row = self.kernels.xp, self.A.grid.row
        right = xp.logical_and(xp.abs(xp.subtract(*sums)) <= limit, xp.isfinite(limit))
        wrong = xp.astype(xp.logical_not(right), xp.float64)
        if allreduce_scalar(self.A.grid.all, float(xp.sum(wrong)), "sum", self.kernels.xp) == 0.0:
            self._typical = self._seen
            return []
        (want, actual), (want2, actual2) = sums, others()
        off, off2 = xp.abs(xp.subtract(want, actual)), xp.abs(xp.subtract(want2, actual2))
        # If the other difference is negligible, the sum is wrong and the matrix is correct.
        apart = xp.logical_and(off2 < xp.multiply(off, APART), xp.isfinite(xp.add(off, off2)))
        lost = xp.logical_and(xp.isfinite(xp.add(actual, actual2)), xp.logical_not(xp.isfinite(carried)))
        sum_only = xp.logical_or(apart, lost)
        rows = xp.multiply(wrong, xp.astype(xp.logical_not(sum_only), xp.float64))
        row.allreduce(rows, "max")  # if a rank's copy of the sums is wrong, the sums differ only on this rank
        hit = xp.multiply(wrong, xp.astype(sum_only, xp.float64)) - rows
        row.allreduce(hit, "max")
        hit_rows = [i for i, value in enumerate(hit.tolist()) if value > 0]
        return self._note(
            done, Differing([want, want2], [actual, actual2], limit, _marked(rows), hit_rows), correctable
        )

    def _note(self, done: int, differing: Differing, correctable: tuple[int, int] | None) -> list[int]:
        """Record the rows with wrong sums as a fault, and correct the entry if only one is wrong.

        Return the corrected local rows. Collective over the grid.
        """
        A, rows = self.A, differing.rows
        alone = allreduce_scalar(A.grid.column, float(len(rows)), "sum", self.kernels.xp) == 1.0
        column = self._column(rows[0], differing) if rows else None
        is_corrected = False
        if rows and alone and column is not None and correctable is not None:
            inside = A.rows.to_global(rows[0]) >= correctable[0] and column >= correctable[1]
            is_corrected = inside and self._correct(rows[0], column, differing, correctable[1])
        for part, which in (("matrix", rows), ("checksum", differing.sums)):
            if which and A.grid.q == 0:  # all ranks of the process row find the same fault
                at = column if part == "matrix" else None
                process = A.grid.p, None if at is None else A.cols.owner(at)
                first, corrected = A.rows.to_global(which[0]), is_corrected or part == "checksum"
                self._faults.append(Fault(done, process, len(which), first, at, part, corrected))
        return [rows[0]] if is_corrected else []

    def _column(self, row: int, differing: Differing) -> int | None:
        """Return the global column of the only wrong entry in a local row, or None if the column cannot be determined.

        Collective over the process row.
        """
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
        """Return the column of the only wrong entry in a local row, or None if the differences do not determine it.

        The column follows from the quotient of the row's two differences, computed with this rank's checksums.
        """
        n = self.A.rows.n
        off = [float(s[row]) - float(z[row]) for s, z in zip(differing.expected, differing.actual)]
        limit = float(differing.limit[row])
        if not all(map(isfinite, off)) or not n * limit <= 0.25 * abs(off[0]):  # true for NaN
            return None  # adjacent columns cannot be distinguished
        column = (off[1] / off[0] - 1.0) * n - 1.0
        return round(column) if -0.5 < column < self.A.cols.n - 0.5 else None

    def _agreed(self, column: int | None) -> int | None:
        """Return `column` if it is the same on all ranks of the process row, otherwise None.

        A wrong L21 in one rank's panel also changes the checksums on this rank, so its column differs from that of the
        other ranks. Collective over the process row.
        """
        xp = self.kernels.xp
        ends = xp.asarray([-1.0, 1.0] if column is None else [float(column), -float(column)], dtype=xp.float64)
        self.A.grid.row.allreduce(ends, "max")
        largest, smallest = float(ends[0]), -float(ends[1])
        return int(largest) if largest == smallest >= 0.0 else None

    def _correct(self, row: int, column: int, differing: Differing, first: int) -> bool:
        """Set a_ij = (s_i - the sum of the other entries) / w_j, and return whether this corrects both sums.

        If it does not, restore a_ij. Collective over the process row.
        """
        A, (w, _) = self.A, self.weights
        owner, jl = A.grid.q == A.cols.owner(column), A.cols.to_local(column)
        before = float(A.local[row, jl]) if owner else 0.0
        if owner:
            A.local[row, jl] = 0.0
        others = self._row_sums(row, first)
        if owner:
            A.local[row, jl] = (float(differing.expected[0][row]) - others[0]) * float(w[jl])  # 1/w = w
        off = [abs(float(want[row]) - now) for want, now in zip(differing.expected, self._row_sums(row, first))]
        right = all(difference <= 2.0 * float(differing.limit[row]) for difference in off)
        if allreduce_scalar(A.grid.row, float(not right), "sum", self.kernels.xp) == 0.0:  # right on all ranks
            return True
        if owner:
            A.local[row, jl] = before
        return False

    def _row_sums(self, row: int, first: int) -> list[float]:
        """Return both sums over a local row, starting at column `first`. Collective over the process row."""
        part, c0 = self.A.local[slice(row, row + 1)], self.A.cols.local_start(first)
        sums = [self.kernels.xp.zeros(1) for _ in range(2)]
        for y, w in zip(sums, self.weights):
            self.kernels.add_matvec(y, part[:, c0:], w[c0:])
        return [float(self.along_row(y)[0]) for y in sums]


@contextmanager
def checking(checks: Checks | None) -> Iterator[None]:
    """Check the factorization that runs in this context, unless `checks` is None. Collective over the grid."""
    if checks is not None:
        checks.begin()
    yield
    if checks is not None:
        checks.finish()


def root_mean_square(xp: Any, size: Vector) -> float:
    """Return the root mean square of a vector's finite entries, or 0 if no entry is finite or the result overflows."""
    finite = size[xp.isfinite(size)]
    root = float(xp.sqrt(xp.mean(xp.square(finite)))) if len(finite) else 0.0
    return root if isfinite(root) else 0.0


def _marked(mask: Vector) -> list[int]:
    """Return the local indices at which the mask is nonzero."""
    return [i for i, value in enumerate(mask.tolist()) if value]
