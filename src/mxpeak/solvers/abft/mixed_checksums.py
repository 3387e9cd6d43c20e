"""HPL-MxP with checksums: compare the sums of the matrix with sums that are predicted from the factors in memory.

The sums s of the rows at the last check are updated with the operands of the update. These operands, L_row = CAST(L21)
and U_col = CAST(U12), are computed again from L and U. Here s is either sum, and w is either weight:

    rows below a step's block      s -= L_row (U_col w) + L21 (U11 w)       the panel has become L21 U11 = A21
    rows of its block              s  = L11 (U11 w + U12 w)
    remaining rows                 s  = A22 w                               is checked, and begins the next sums

L and U are read once for this purpose and rounded at the same time. Therefore, the rounding of operands causes no
difference between s and A22. The limit of the difference is, for every row,

    limit_i = 8·sqrt( u_low²/3·Σ_k l_ik² t'_k + (N + EVERY)/3·u_32²·(s_i² + Σ_k l_ik² t_k) )        t_k = Σ_j u_kj²

The weights are random signs, independent of all errors. The sum of the errors e_ij in a row is therefore about as
large as the Euclidean norm of the row of errors. It exceeds eight times this norm with a probability of 10^-14. The
expression under the root contains:

- Solves, whose products may have operands of the low precision. Each of the two operands is rounded with a variance of
  u_low²/6. t' is the part of t from the columns that were solved for: U11 for the rows below, and U12 for the rows of
  the block.
- Sums in fp32. NB products that are added sequentially have a variance of NB/6·u_32²·l²t. The sums of the check run
  over at most N columns with two products each. They contribute at most N/6 if the compiler adds in four lanes or more
  (up to N/2 in rows of a few columns, which the factor 8 covers). Each of EVERY steps rounds the remaining matrix once,
  with a variance of u_32²/3 times s_i² and Σ l²t. Together this is at most (N + EVERY)/3. s_i² represents the squares
  in a row; it is at least the mean over the rows, because a sum with random signs may be near zero by chance.

l_ik² t_k is computed together with the sums, because after a small pivot the terms are much larger than the entries
that remain. If the entries of A are not random, equal operands have equal errors, and Σ l²t' counts NB times: the
errors of NB products add up, and (Σ |x_k|)² <= NB·Σ x_k².

The operands on a rank may be wrong because of a cast, a message, or a flip in their buffers. They then differ from the
operands that the check computes, and the difference appears in A22 of that rank. The row sums of L and U at the time
of the check are kept and compared at the end. The limit is sqrt((N + EVERY)/3)·8·u_32 times the norms of the rows.
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

#: Limit in standard deviations. Sums with random signs exceed it with a probability of 10^-14 (Hoeffding 1963).
SIGMAS = 8.0


class USums(NamedTuple):
    """Sums over the rows of U, of which U11 is the diagonal block of a step and U12 is the rest of the row.

    These are the products of U_col = CAST(U12), U12 and U11 with w, and the sums of squares in U12 and U11.
    """

    U_col_w: Vector
    U12_w: Vector
    U12_squared: Vector
    U11_w: Vector
    U11_squared: Vector

    @classmethod
    def of(cls, sums: Matrix) -> USums:
        """Create the sums from an array with three rows for U12 and three for U11; the first row for U11 is unused."""
        return cls(sums[0], sums[1], sums[2], sums[4], sums[5])


class MixedChecks(Checks):
    """Checks a factorization by `lu.factorize` with update operands of a given precision."""

    def __init__(
        self,
        A: DistMatrix,
        system: GeneratedSystem,
        precision: str,
        kernels: Kernels,
        spans: Spans,
        checkpointer: Checkpointer,
    ):
        super().__init__(A, kernels, spans, checkpointer)
        self._system, self._low, self._at = system, precision, self.first_step
        self._lower, self._upper = self.zeros(), self.zeros()
        self._first_sums: Matrix | None = None
        stored, low, n = format_of(A.precision), format_of(precision), A.rows.n
        self._stored_variance = (n + EVERY) / 3.0 * stored.u**2
        rounds = low.u > stored.u and not kernels.emulates(precision)
        equal_errors = 1 if system.random else A.nb
        self._solved_variance = equal_errors * low.u**2 / 3.0 if rounds else 0.0
        # Compile the kernel before the time measurement starts.
        empty = kernels.xp.zeros((4, 0))
        kernels.add_operand_sums(empty[:3], kernels.matrix(0, 0, A.precision), precision, empty)

    def make(self) -> None:
        """Generate A together with the first sums of its rows, which saves a pass over A."""
        self._first_sums = self._system.store_with_sums(self.A, self.kernels.xp.stack(self.weights))

    def baseline(self, done: int) -> None:
        """Compute the sums of the trailing matrix, and those of the factors if the run continues from a checkpoint."""
        j, first_sums = self.column_after(done), self._first_sums
        if first_sums is None or done:
            self._sums, self._sums_at_first = self.both_sums_from(j)
        else:
            self._sums, self._sums_at_first = self.along_row(first_sums[0]), self.along_row(first_sums[1])
        self._largest_size = root_mean_square(self.kernels.xp, self._sums) / format_of(self.A.precision).u ** 2
        if done:
            self._lower, self._upper = self.triangle("lower"), self.triangle("upper")
            below, end = slice(self.A.rows.local_start(j), None), self.A.cols.local_start(j)
            before = self.zeros()  # the row sums over all columns before j
            self.kernels.add_matvec(before, self.A.local[:, :end], self.weights[0][:end])
            self._lower[below] = self.along_row(before)[below]

    def check(self, done: int) -> None:
        """Check the trailing matrix after the steps since the last check. Collective over the grid."""
        steps, j = self.steps[self._at : done], self.column_after(done)
        if not steps:
            return
        (subtracted, _, variance), actual = self._subtracted(steps, 0), self.sums_from(j)
        want = self._from(steps[0], self.kernels.xp.subtract(self._sums, subtracted))
        size = self._from(steps[0], self.kernels.xp.abs(self._sums))
        limit = self._limit(self.no_less_than_typical(size), variance)

        def others() -> tuple[Vector, Vector]:
            since = self.steps[self.first_step : done]
            return self._from(
                steps[0], self.kernels.xp.subtract(self._sums_at_first, self._subtracted(since, 1)[0])
            ), self._from(steps[0], self.sums_from(j, 1))

        for row in self.judge(done, (want, actual), limit, self._sums, others, (j, j)):
            actual[row] = want[row]
        self._sums, self._at = actual, done

    def check_end(self) -> None:
        """Check the rows of the last steps. Collective over the grid."""
        self.check(len(self.steps))

    def look_back(self) -> None:
        """Compare the sums of L and U with their values at the last check, after refinement has read the factors."""
        for kept, part in ((self._lower, "lower"), (self._upper, "upper")):
            sums, limit = (kept, self.triangle(part)), self._limit(self._norms(part))
            self.judge(len(self.steps), sums, limit, kept, partial(_the_same, sums))

    def _norms(self, part: str) -> Vector:
        """Return the Euclidean norms of the rows of L or U. Collective over the process row."""
        A, squares, ones = self.A, self.zeros(), self.kernels.xp.ones(self.A.cols.local_size)
        self.kernels.add_triangle_matvec(squares, A.local, ones, A.rows, A.cols, part, "squared")
        return self.kernels.xp.sqrt(self.along_row(squares))

    def _from(self, step: LuStep, sums: Vector) -> Vector:
        """Set the sums of the rows above a step's block to 0 in place, and return the sums."""
        sums[: self.A.rows.local_start(step.j0)] = 0.0
        return sums

    def _limit(self, size: Vector, variance: Vector | None = None) -> Vector:
        """Return the largest difference that rounding may cause between the predicted and the actual sum of each row.

        `size` is the norm of each row or an estimate of it. `variance` is the rounding variance of the amounts that
        were subtracted from the sums.
        """
        xp = self.kernels.xp
        squares = xp.multiply(xp.square(size), self._stored_variance)
        if variance is not None:  # a variance above 1/u² is the result of a flipped exponent in L and then in U
            largest = self._stored_variance * self._largest_size**2
            squares = xp.add(squares, xp.clip(variance, max=largest))
        return xp.add(xp.multiply(xp.sqrt(squares), SIGMAS), format_of(self.A.precision).smallest)

    def _subtracted(self, steps: list[LuStep], k: int) -> Matrix:
        """Return three values per local row for the given steps, as three vectors. Collective over the grid.

        1. the amount that the steps subtract from the row sum
        2. Σ_j l_ij w_j over the columns j of the steps
        3. the rounding variance of the amount

        `k` selects the weights w. For the first weights (k = 0), also record the row sums of L and U for the check at
        the end.
        """
        A, xp, j0 = self.A, self.kernels.xp, steps[0].j0
        of_U, own_steps = self._u_sums(steps, k), [step for step in steps if A.grid.q == step.q]
        if k == 0:
            u = self._whole(USums.of(of_U))
            for step in (step for step in steps if A.grid.p == step.p):
                self._upper[self._block(step)] = u[step.j0 - j0 : step.j1 - j0]
        sums = xp.zeros((3, A.rows.local_size))
        if own_steps:
            of_own = xp.concat([of_U[:, step.j0 - j0 : step.j1 - j0] for step in own_steps], axis=1)
            self._add_own_amounts(own_steps, USums.of(of_own), sums, k)
        for sums_of_rows in sums:
            self.along_row(sums_of_rows)
        if k == 0:
            self.kernels.add_scaled(self._lower, 1.0, sums[1])
        return sums

    def _block(self, step: LuStep) -> slice:
        """Return the local rows of a step's block row."""
        return self.A.rows.local_range(step.j0, step.j1)

    def _add_own_amounts(self, steps: list[LuStep], U: USums, sums: Matrix, k: int) -> None:
        """Add the terms of this rank's columns to the three vectors of `_subtracted`, which are the rows of `sums`.

        The subtracted amount is L_row (U_col w) + L21 (U11 w) in rows below a step's block, and L11 (U11 w + U12 w) in
        the rows of the block.

        The columns of all steps are read together, row by row. Reading each step separately takes three times as long,
        because a step has only a short piece of each row, and these pieces are in different memory pages.
        """
        A, kernels, xp, low = self.A, self.kernels, self.kernels.xp, self._low
        columns = A.cols.local_range(steps[0].j0, steps[-1].j1)
        L, w, u = A.local[:, columns], self.weights[k][columns], self._whole(U)
        below = xp.stack([U.U_col_w, U.U11_w, w, self._variance(U, U.U11_squared)])
        # The columns use `vectors` in their own block, and `below` after it.
        vectors = xp.stack([xp.zeros_like(w), u, w, self._variance(U, U.U12_squared)])
        first, n = A.rows.local_start(steps[0].j0), 0
        for step in steps:
            block, own, n = self._block(step), slice(n, n + step.jb), n + step.jb
            above = slice(first, block.start)  # rows of blocks whose columns belong to other ranks
            if above.start < above.stop:
                kernels.add_operand_sums(sums[:, above], L[above, : own.start], low, vectors[:, : own.start])
            if A.grid.p == step.p:
                kernels.add_operand_sums(sums[:, block], L[block, :n], low, vectors[:, :n], "lower")
                for total, vector in ((sums[0], vectors[1]), (sums[2], vectors[3])):  # L11 has a unit diagonal
                    kernels.add_scaled(total[block], 1.0, vector[own])
            vectors[:, own], first = below[:, own], block.stop
        kernels.add_operand_sums(sums[:, first:], L[first:], low, vectors)

    def _whole(self, U: USums) -> Vector:
        """Return the weighted sums U w of the complete rows of U, as the sum of U11 w and U12 w."""
        return self.kernels.xp.add(U.U11_w, U.U12_w)

    def _variance(self, U: USums, solved: Vector) -> Vector:
        """Return one value v_k per row of U: a product with l_ik adds l_ik² v_k to the rounding variance of row sum i.

        `solved` contains the sums of squares in the columns that were computed by a solve.
        """
        xp = self.kernels.xp
        stored = xp.multiply(xp.add(U.U11_squared, U.U12_squared), self._stored_variance)
        return xp.add(stored, xp.multiply(solved, self._solved_variance))

    def _u_sums(self, steps: list[LuStep], k: int) -> Matrix:
        """Return sums over the rows of U, three of U12 and three of U11, on all ranks. Collective over the grid.

        The first sum of U11 is sent with the others but is not used.
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
    """Return the sums weighted by w in place of those weighted by w', which are not recorded for L and U."""
    return sums
