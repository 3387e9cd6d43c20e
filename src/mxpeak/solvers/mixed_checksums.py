"""HPL-MxP with checksums: the sums that the last steps should have left behind, from the factors that lie in memory.

Sums s of the rows before some steps, with the operands that the update was given, L_row = CAST(L21) and U_col =
CAST(U12), made once more from L and U (s stands for both sums, w for both weights):

    rows below a step's block      s -= L_row (U_col w) + L21 (U11 w)       the panel leaves with L21 U11 = A21
    rows of its block              s  = L11 (U11 w + U12 w)
    rows that are left             s  = A22 w                               what is checked, and begins the next sums

L and U are read once for all of that, rounded on the way.  No rounding of operands comes between s and A22.  What
differs is, for every row,

    limit_i = 8·sqrt( u_low²/3·Σ_k l_ik² t'_k + (N + 8)/3·u_32²·(s_i² + Σ_k l_ik² t_k) )        t_k = Σ_j u_kj²

The weights are random signs, of which no error knows: so what errors e_ij add up to is as large as the Euclidean norm
of a row of them, and eight times that is exceeded once in 10^14.  Under the root stands its square:

- Solves, whose own products may have operands of the low precision, each of the two rounded by a variance of u_low²/6:
  t' is the part of t from the columns that were solved for, U11 for the rows below and U12 for the block's own.
- Sums in FP32.  Of NB products added up one after the other they have a variance of NB/6·u_32²·l²t; the check's own,
  of at most 512 columns with two products each, of at most N/6; and each of EVERY steps rounds once what is left,
  which is s_i² and Σ l²t in square: u_32²/3.  Together that is no more than (N + EVERY)/3.  s_i² stands for the squares
  in a row; it is no less than the mean over rows, for a sum of random signs may be near zero by chance.

l_ik² t_k is what was met, read beside the sums: where entries grow, after a small pivot, terms are much larger than
what is left of them.  Where the entries of A are not random, equal operands err alike, and Σ l²t' counts NB times:
errors of NB products add up, and (Σ |x_k|)² <= NB·Σ x_k².

Operands that were wrong on some rank, by a cast, by a message, by a flip in their buffers, are not those made here, and
show in its A22.  What L and U were when they were checked is kept as their rows' sums, and compared at the end: to
sqrt((N + 8)/3)·8·u_32 times the norms of their rows.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import NamedTuple

from mxpeak.distributed.generate import GeneratedSystem
from mxpeak.distributed.matrix import DistMatrix
from mxpeak.kernels.contract import Kernels, Matrix, Vector
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.schedule import LuStep
from mxpeak.precision import precision as format_of
from mxpeak.solvers.checksums import EVERY, Checks, root_mean_square
from mxpeak.solvers.keeping import Keeper
from mxpeak.spans import Spans

#: How many standard deviations the sum of a row may be off: random signs exceed them once in 10^14 (Hoeffding 1963).
SIGMAS = 8.0


class USums(NamedTuple):
    """Sums over a step's rows of U: U_col w, U12 w and U11 w, and those of squares in U12 and U11."""

    U_col_w: Vector
    U12_w: Vector
    U12_squared: Vector
    U11_w: Vector
    U11_squared: Vector


class Taken(NamedTuple):
    """What steps take from the rows' sums, the sums of L, and the variance of what rounding does to the first."""

    taken: Vector
    lower: Vector
    variance: Vector


class MixedChecks(Checks):
    """The checks of `lu.factorize`, with operands of a precision."""

    def __init__(
        self, A: DistMatrix, system: GeneratedSystem, precision: str, kernels: Kernels, spans: Spans, keeper: Keeper
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
        if variance is not None:  # beyond 1/u² it is no growth, but an exponent that was hit, in L and then in U
            most = self._stored_variance * self._most**2
            squares = xp.add(squares, xp.clip(variance, max=most))
        return xp.add(xp.multiply(xp.sqrt(squares), SIGMAS), format_of(self.A.precision).smallest)

    # --- what steps take from the rows' sums

    def _taken(self, steps: list[LuStep], k: int) -> Taken:
        """What steps take; L's and U's sums are noted.  Collective over the grid."""
        A, found = self.A, self._u_sums(steps, k)
        sums = self.kernels.xp.zeros((3, A.rows.local_size))
        taken = Taken(sums[0], sums[1], sums[2])
        for step, own in zip(steps, found):
            if A.grid.p == step.p:
                self._take_block(step, own, taken, k)
        mine = [one for one in zip(steps, found) if A.grid.q == one[0].q]
        if mine:
            self._take_below(mine, sums, k)
        for one in taken:
            self.along_row(one)
        if k == 0:
            self.kernels.add_scaled(self._lower, 1.0, taken.lower)
        return taken

    def _rows(self, step: LuStep) -> tuple[slice, slice]:
        """The local rows of a step's block row, and those below."""
        rows = self.A.rows
        return rows.local_range(step.j0, step.j1), slice(rows.local_start(step.j1), None)

    def _take_block(self, step: LuStep, own: USums, sums: Taken, k: int) -> None:
        """What becomes of the rows of a diagonal block: L11 u, u = U11 w + U12 w."""
        A, kernels, (rows, _) = self.A, self.kernels, self._rows(step)
        upper = kernels.xp.add(own.U11_w, own.U12_w)
        if k == 0:
            self._upper[rows] = upper
        if A.grid.q != step.q:
            return
        columns, alone = A.cols.local_range(step.j0, step.j1), BlockCyclic(step.jb, step.jb, 0, 1)
        L11, variance = A.local[rows, columns], self._variance(own, own.U12_squared)
        for total, diagonal, x, form in (
            (sums.taken, 1.0, upper, "plain"),
            (sums.lower, 0.0, self.weights[k][columns], "plain"),
            (sums.variance, 1.0, variance, "squared"),
        ):
            kernels.add_scaled(total[rows], diagonal, x)
            kernels.add_triangle_matvec(total[rows], L11, x, alone, alone, "lower", form)

    def _take_below(self, mine: list[tuple[LuStep, USums]], sums: Matrix, k: int) -> None:
        """What this rank's panels take from the rows below their blocks: L_row (U_col w) + L21 (U11 w).

        All steps' columns are read row by row together: by themselves they are short pieces, a page apart, which take
        three times as long.
        """
        A, xp = self.A, self.kernels.xp
        tops, columns = [A.rows.local_start(step.j1) for step, _ in mine], [mine[0][0].j0, mine[-1][0].j1]
        own = A.cols.local_range(*columns)
        U_col_w, U11_w = (xp.concat([getattr(found, name) for _, found in mine]) for name in ("U_col_w", "U11_w"))
        variance = xp.concat([self._variance(found, found.U11_squared) for _, found in mine])
        vectors = xp.stack([U_col_w, U11_w, self.weights[k][own], variance])
        L = A.local[:, own]
        for count, (first, end) in enumerate(pairwise([*tops, L.shape[0]]), start=1):  # of rows with so many steps' L21
            n = min(count * A.nb, L.shape[1])
            self.kernels.add_operand_sums(sums[:, first:end], L[first:end, :n], self._low, vectors[:, :n])

    def _variance(self, own: USums, solved: Vector) -> Vector:
        """The variance of what rounding does to sums, for an entry 1 of L beside each row of U."""
        xp = self.kernels.xp
        stored = xp.multiply(xp.add(own.U11_squared, own.U12_squared), self._stored_variance)
        return xp.add(stored, xp.multiply(solved, self._solved_variance))

    def _u_sums(self, steps: list[LuStep], k: int) -> list[USums]:
        """Sums over the rows of each step's U, on all ranks.  Collective over the grid."""
        first, found = steps[0].j0, []
        sums = self.kernels.xp.zeros((5, steps[-1].j1 - first))
        for step in steps:
            part = sums[:, step.j0 - first : step.j1 - first]
            found.append(USums(*(part[kind] for kind in range(5))))
            if self.A.grid.p == step.p:
                self._add_u(step, part, self.weights[k])
        self.A.grid.all.allreduce(self.kernels.xp.reshape(sums, (-1,)), "sum")
        return found

    def _add_u(self, step: LuStep, sums: Matrix, w: Vector) -> None:
        """This rank's part of a step's sums, from its part of the block row."""
        A, kernels, xp, (block, _) = self.A, self.kernels, self.kernels.xp, self._rows(step)
        own, behind = A.cols.local_range(step.j0, step.j1), slice(A.cols.local_start(step.j1), None)
        right, ones = w[behind], xp.ones(step.jb)
        vectors = xp.stack([right, xp.zeros_like(right), right, xp.ones_like(right)])
        kernels.add_operand_sums(sums[:3], A.local[block, behind], self._low, vectors)
        if A.grid.q == step.q:
            alone = BlockCyclic(step.jb, step.jb, 0, 1)
            for total, x, form in ((sums[3], w[own], "plain"), (sums[4], ones, "squared")):
                kernels.add_triangle_matvec(total, A.local[block, own], x, alone, alone, "upper", form)


def _the_same(sums: tuple[Vector, Vector]) -> tuple[Vector, Vector]:
    """Of L and U only sums weighted by w are kept: they tell the row."""
    return sums
