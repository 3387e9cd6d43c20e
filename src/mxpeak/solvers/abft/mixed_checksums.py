"""HPL-MxP with checksums: the sums that the last steps should have left behind, from the factors that lie in memory.

Sums s of the rows before some steps, with the operands that the update was given, L_row = CAST(L21) and U_col =
CAST(U12), made once more from L and U (s stands for both sums, w for both weights):

    rows below a step's block      s -= L_row (U_col w) + L21 (U11 w)       the panel leaves with L21 U11 = A21
    rows of its block              s  = L11 (U11 w + U12 w)
    rows that are left             s  = A22 w                               what is checked, and begins the next sums

L and U are read once for all of that, rounded on the way.  No rounding of operands comes between s and A22.  What
differs is, for every row,

    limit_i = 8·sqrt( u_low²/3·Σ_k l_ik² t'_k + (N + EVERY)/3·u_32²·(s_i² + Σ_k l_ik² t_k) )        t_k = Σ_j u_kj²

The weights are random signs, of which no error knows: so what errors e_ij add up to is as large as the Euclidean norm
of a row of them, and eight times that is exceeded once in 10^14.  Under the root stands its square:

- Solves, whose own products may have operands of the low precision, each of the two rounded by a variance of u_low²/6:
  t' is the part of t from the columns that were solved for, U11 for the rows below and U12 for the block's own.
- Sums in FP32.  Of NB products added up one after the other they have a variance of NB/6·u_32²·l²t; the check's own,
  of at most N columns with two products each, of at most N/6 where the compiler adds up in four lanes or more (up to
  N/2 of them in rows of a few columns, which 8 sigmas cover); and each of EVERY steps rounds once what is left, which
  is s_i² and Σ l²t in square: u_32²/3.  Together that is no more than (N + EVERY)/3.  s_i² stands for the squares in a
  row; it is no less than the mean over rows, for a sum of random signs may be near zero by chance.

l_ik² t_k is what was met, read beside the sums: where entries grow, after a small pivot, terms are much larger than
what is left of them.  Where the entries of A are not random, equal operands err alike, and Σ l²t' counts NB times:
errors of NB products add up, and (Σ |x_k|)² <= NB·Σ x_k².

Operands that were wrong on some rank, by a cast, by a message, by a flip in their buffers, are not those made here, and
show in its A22.  What L and U were when they were checked is kept as their rows' sums, and compared at the end: to
sqrt((N + EVERY)/3)·8·u_32 times the norms of their rows.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from mxpeak.distributed.dense import DistMatrix
from mxpeak.distributed.sources import GeneratedSystem
from mxpeak.kernels.contract import Kernels, Matrix, Vector
from mxpeak.layout.lu_schedule import LuStep
from mxpeak.precision import precision as format_of
from mxpeak.solvers.abft.checksums import EVERY, Checks, root_mean_square
from mxpeak.solvers.checkpointing import Checkpointer
from mxpeak.spans import Spans

#: How many standard deviations the sum of a row may be off: random signs exceed them once in 10^14 (Hoeffding 1963).
SIGMAS = 8.0


class USums(NamedTuple):
    """Sums over rows of U: U_col w, U12 w and U11 w, and those of squares in U12 and U11."""

    U_col_w: Vector
    U12_w: Vector
    U12_squared: Vector
    U11_w: Vector
    U11_squared: Vector

    @classmethod
    def of(cls, sums: Matrix) -> USums:
        """Three sums of U12's rows, and three of U11's, of which the first, with rounded entries, is of no use."""
        return cls(sums[0], sums[1], sums[2], sums[4], sums[5])


class Taken(NamedTuple):
    """What steps take from the rows' sums, the sums of L, and the variance of what rounding does to the first."""

    taken: Vector
    lower: Vector
    variance: Vector


class MixedChecks(Checks):
    """The checks of `lu.factorize`, with operands of a precision."""

    def __init__(
        self,
        A: DistMatrix,
        system: GeneratedSystem,
        precision: str,
        kernels: Kernels,
        spans: Spans,
        keeper: Checkpointer,
    ):
        super().__init__(A, kernels, spans, keeper)
        self._system, self._low, self._at = system, precision, self.first
        self._lower, self._upper = self.zeros(), self.zeros()
        self._made: Matrix | None = None
        stored, low, n = format_of(A.precision), format_of(precision), A.rows.n
        self._stored_variance = (n + EVERY) / 3.0 * stored.u**2
        rounds = low.u > stored.u and not kernels.emulates(precision)
        alike = 1 if system.random else A.nb
        self._solved_variance = alike * low.u**2 / 3.0 if rounds else 0.0
        # What has to be compiled is, before a clock runs.
        empty = kernels.xp.zeros((4, 0))
        kernels.add_operand_sums(empty[:3], kernels.matrix(0, 0, A.precision), precision, empty)

    def make(self) -> None:
        """Make A, with its rows' first sums: it is not read for them."""
        self._made = self._system.store_with_sums(self.A, self.kernels.xp.stack(self.weights))

    def baseline(self, done: int) -> None:
        """Of what is left, and of the factors that are there: a run may go on from a checkpoint."""
        j, made = self.column_after(done), self._made
        if made is None or done:
            self._left, self._first_left = self.both_sums_from(j)
        else:
            self._left, self._first_left = self.along_row(made[0]), self.along_row(made[1])
        self._most = root_mean_square(self.kernels.xp, self._left) / format_of(self.A.precision).u ** 2
        if done:
            self._lower, self._upper = self.triangle("lower"), self.triangle("upper")
            below = slice(self.A.rows.local_start(j), None)
            self._lower[below] = (self._all_before(j))[below]

    def _all_before(self, j: int) -> Vector:
        """Sums over all columns before j.  Collective over the process row."""
        sums, end = self.zeros(), self.A.cols.local_start(j)
        self.kernels.add_matvec(sums, self.A.local[:, :end], self.weights[0][:end])
        return self.along_row(sums)

    def check(self, done: int) -> None:
        """What the steps since the last check have left."""
        steps, j = self.steps[self._at : done], self.column_after(done)
        if not steps:
            return
        sums, found = self._taken(steps, 0), self.sums_from(j)
        want = self._from(steps[0], self.kernels.xp.subtract(self._left, sums.taken))
        size = self._from(steps[0], self.kernels.xp.abs(self._left))
        limit = self._limit(self.no_less_than_typical(size), sums.variance)

        def others() -> tuple[Vector, Vector]:
            since = self.steps[self.first : done]
            return self._from(
                steps[0], self.kernels.xp.subtract(self._first_left, self._taken(since, 1).taken)
            ), self._from(steps[0], self.sums_from(j, 1))

        for row in self.judge(done, (want, found), limit, self._left, others, (j, j)):
            found[row] = want[row]
        self._left, self._at = found, done

    def check_end(self) -> None:
        """The last steps."""
        self.check(len(self.steps))

    def look_back(self) -> None:
        """L and U as they were when they were checked: after the clock, like the proof of LU; refinement read them."""
        for kept, part in ((self._lower, "lower"), (self._upper, "upper")):
            sums, limit = (kept, self.triangle(part)), self._limit(self._norms(part))
            self.judge(len(self.steps), sums, limit, kept, partial(_the_same, sums))

    def _norms(self, part: str) -> Vector:
        """Euclidean norms of L's or U's rows.  Collective over the process row."""
        A, squares, ones = self.A, self.zeros(), self.kernels.xp.ones(self.A.cols.local_size)
        self.kernels.add_triangle_matvec(squares, A.local, ones, A.rows, A.cols, part, "squared")
        return self.kernels.xp.sqrt(self.along_row(squares))

    def _from(self, step: LuStep, sums: Vector) -> Vector:
        """Sums of the rows from a step's on; 0 above."""
        sums[: self.A.rows.local_start(step.j0)] = 0.0
        return sums

    def _limit(self, size: Vector, variance: Vector | None = None) -> Vector:
        """What rounding explains, of rows of such a size, and of what steps took from them."""
        xp = self.kernels.xp
        squares = xp.multiply(xp.square(size), self._stored_variance)
        if variance is not None:  # beyond 1/u² it is taken for an exponent that was hit, in L and then in U
            most = self._stored_variance * self._most**2
            squares = xp.add(squares, xp.clip(variance, max=most))
        return xp.add(xp.multiply(xp.sqrt(squares), SIGMAS), format_of(self.A.precision).smallest)

    # --- what steps take from the rows' sums

    def _taken(self, steps: list[LuStep], k: int) -> Taken:
        """What steps take; L's and U's sums are noted.  Collective over the grid."""
        A, xp, j0 = self.A, self.kernels.xp, steps[0].j0
        of_U, mine = self._u_sums(steps, k), [step for step in steps if A.grid.q == step.q]
        if k == 0:
            u = self._whole(USums.of(of_U))
            for step in (step for step in steps if A.grid.p == step.p):
                self._upper[self._block(step)] = u[step.j0 - j0 : step.j1 - j0]
        sums = xp.zeros((3, A.rows.local_size))
        taken = Taken(sums[0], sums[1], sums[2])
        if mine:
            of_mine = xp.concat([of_U[:, step.j0 - j0 : step.j1 - j0] for step in mine], axis=1)
            self._take(mine, USums.of(of_mine), sums, k)
        for one in taken:
            self.along_row(one)
        if k == 0:
            self.kernels.add_scaled(self._lower, 1.0, taken.lower)
        return taken

    def _block(self, step: LuStep) -> slice:
        """The local rows of a step's block row."""
        return self.A.rows.local_range(step.j0, step.j1)

    def _take(self, steps: list[LuStep], U: USums, sums: Matrix, k: int) -> None:
        """What this rank's panels take from the rows: below a step's block L_row (U_col w) + L21 (U11 w), in it L11 u.

        All steps' columns are read row by row together: by themselves they are short pieces, a page apart, which take
        three times as long.
        """
        A, kernels, xp, low = self.A, self.kernels, self.kernels.xp, self._low
        columns = A.cols.local_range(steps[0].j0, steps[-1].j1)
        L, w, u = A.local[:, columns], self.weights[k][columns], self._whole(U)
        below = xp.stack([U.U_col_w, U.U11_w, w, self._variance(U, U.U11_squared)])
        # What the columns take: in their own block as `vectors` begins, and once that is done as `below` has it.
        vectors = xp.stack([xp.zeros_like(w), u, w, self._variance(U, U.U12_squared)])
        first, n = A.rows.local_start(steps[0].j0), 0
        for step in steps:
            block, own, n = self._block(step), slice(n, n + step.jb), n + step.jb
            above = slice(first, block.start)  # rows of blocks whose columns other ranks have
            if above.start < above.stop:
                kernels.add_operand_sums(sums[:, above], L[above, : own.start], low, vectors[:, : own.start])
            if A.grid.p == step.p:
                kernels.add_operand_sums(sums[:, block], L[block, :n], low, vectors[:, :n], "lower")
                for total, one in ((sums[0], vectors[1]), (sums[2], vectors[3])):  # L11 has ones on its diagonal
                    kernels.add_scaled(total[block], 1.0, one[own])
            vectors[:, own], first = below[:, own], block.stop
        kernels.add_operand_sums(sums[:, first:], L[first:], low, vectors)

    def _whole(self, U: USums) -> Vector:
        """u = U11 w + U12 w."""
        return self.kernels.xp.add(U.U11_w, U.U12_w)

    def _variance(self, U: USums, solved: Vector) -> Vector:
        """The variance of what rounding does to sums, for an entry 1 of L beside each row of U."""
        xp = self.kernels.xp
        stored = xp.multiply(xp.add(U.U11_squared, U.U12_squared), self._stored_variance)
        return xp.add(stored, xp.multiply(solved, self._solved_variance))

    def _u_sums(self, steps: list[LuStep], k: int) -> Matrix:
        """Sums over rows of U, three of U12 and three of U11, on all ranks.  Collective over the grid.

        The first of U11 is sent along and not looked at.
        """
        A, w, j0 = self.A, self.weights[k], steps[0].j0
        sums = self.kernels.xp.zeros((6, steps[-1].j1 - j0))
        for step in (step for step in steps if A.grid.p == step.p):
            part, first = sums[:, step.j0 - j0 : step.j1 - j0], A.cols.local_start(step.j0)
            which = "upper" if A.grid.q == step.q else "all"
            self.kernels.add_operand_sums(part, A.local[self._block(step), first:], self._low, w[None, first:], which)
        self.A.grid.all.allreduce(self.kernels.xp.reshape(sums, (-1,)), "sum")
        return sums


def _the_same(sums: tuple[Vector, Vector]) -> tuple[Vector, Vector]:
    """Of L and U only sums weighted by w are kept: they tell the row."""
    return sums
