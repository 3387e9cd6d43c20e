"""HPL-MxP with checksums: the sums that the last steps should have left behind, from the factors that lie in memory.

Sums s of the rows before some steps, with the operands that the update was given, L_row = CAST(L21) and U_col =
CAST(U12), made once more from L and U (s stands for both sums, w for both weights):

    rows below a step's block      s -= L_row (U_col w) + L21 (U11 w)       the panel leaves with L21 U11 = A21
    rows of its block              s  = L11 (U11 w + U12 w)
    rows that are left             s  = A22 w                               what is checked, and begins the next sums

L and U are read once for all of that, rounded on the way, and added up in FP32 over blocks of columns.  No rounding of
operands comes between s and A22: what differs is that of FP32 sums, c = TOLERANCE·sqrt(N), and in the first two lines
that of solves, whose own products may have operands of the low precision: SOLVES·u_low for them.
Operands that were wrong on some rank, by a cast, by a message, by a flip in their buffers, are not those made here, and
show in its A22.  What L and U were when they were checked is kept as their rows' sums, and compared at the end.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from math import isfinite
from typing import Any, NamedTuple

from mxpeak.distributed.generate import GeneratedSystem
from mxpeak.distributed.matrix import DistMatrix
from mxpeak.distributed.vectors import summed
from mxpeak.kernels.contract import Kernels, Matrix, Vector
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.schedule import LuStep
from mxpeak.precision import precision as format_of
from mxpeak.solvers.checksums import Checks, root_mean_square
from mxpeak.solvers.keeping import Keeper
from mxpeak.spans import Spans

#: Three times the largest of 1500 clean runs.
TOLERANCE, SOLVES = 4.0, 4.0

#: U_col w, U12 w and U11 w of a step.
USums = tuple[Vector, Vector, Vector]


class Taken(NamedTuple):
    """What steps take from the rows' sums, its size, that of what was solved for, and the sums of L."""

    taken: Vector
    size: Vector
    solved: Vector
    lower: Vector


class MixedChecks(Checks):
    """The checks of `lu.factorize`, with operands of a precision."""

    def __init__(self, A: DistMatrix, precision: str, kernels: Kernels, spans: Spans, keeper: Keeper):
        super().__init__(A, kernels, spans, keeper)
        self._low, self._at = precision, self.first
        self._lower, self._upper = self.zeros(), self.zeros()
        self._made: Matrix | None = None
        self._as_stored = precision in ("fp64", "fp32")  # L_row = L21, U_col = U12
        if not self._as_stored:  # what has to be compiled is, before a clock runs
            none, empty, block = kernels.xp.zeros(0), kernels.xp.zeros((0, 0)), kernels.matrix(0, 0, A.precision)
            kernels.add_operand_products(empty, empty, empty, block, precision, none, none, none, 1)

    def make(self, system: GeneratedSystem) -> None:
        """Make A, with its rows' first sums: it is not read for them."""
        self._made = system.store_with_sums(self.A, self.kernels.xp.stack(self.weights))

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
        size = self._from(steps[0], self.kernels.xp.add(sums.size, self.kernels.xp.abs(self._left)))
        limit = self._limit(self.no_less_than_typical(size), sums.solved)

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
            sums, limit = (kept, self.triangle(part)), self._limit(self._no_less_than_its_own(kept))
            self.judge(len(self.steps), sums, limit, kept, partial(_the_same, sums))

    def _no_less_than_its_own(self, kept: Vector) -> Vector:
        """Sizes of L's or U's sums, and no less than their root mean square: L is smaller than A by far."""
        xp, size = self.kernels.xp, self.kernels.xp.abs(kept)
        finite = size[xp.isfinite(size)]
        mine = [float(xp.sum(xp.square(finite))), float(len(finite))]
        total, count = summed(self.kernels, self.A.grid.column, mine)
        usual = (total / max(count, 1.0)) ** 0.5
        return xp.maximum(size, xp.full_like(size, usual)) if isfinite(usual) else size

    def _from(self, step: LuStep, sums: Vector) -> Vector:
        """Sums of the rows from a step's on; 0 above."""
        sums[: self.A.rows.local_start(step.j0)] = 0.0
        return sums

    def _limit(self, size: Vector, solved: Vector | None = None) -> Vector:
        """What rounding explains, of sums of such sizes, and of what was solved for."""
        f, low, n = format_of(self.A.precision), format_of(self._low), self.A.rows.n
        xp, add = self.kernels.xp, self.kernels.add_scaled
        limit = xp.full_like(size, f.smallest)
        add(limit, TOLERANCE * n**0.5 * f.u, size)
        if solved is not None and not self.kernels.emulates(self._low) and low.u > f.u:
            add(limit, SOLVES * low.u, solved)
            add(limit, SOLVES * low.u, xp.full_like(solved, root_mean_square(xp, solved)))
        return limit

    # --- what steps take from the rows' sums

    def _taken(self, steps: list[LuStep], k: int) -> Taken:
        """What steps take; L's and U's sums are noted.  Collective over the grid."""
        A, found, sums = self.A, self._u_sums(steps, k), Taken(*(self.zeros() for _ in range(4)))
        self._take_blocks([one for one in zip(steps, found) if A.grid.p == one[0].p], sums, k)
        mine = [one for one in zip(steps, found) if A.grid.q == one[0].q]
        if mine:
            self._take_below(mine, sums, k)
        for one in sums:
            self.along_row(one)
        if k == 0:
            self.kernels.add_scaled(self._lower, 1.0, sums.lower)
        return sums

    def _rows(self, step: LuStep) -> tuple[slice, slice]:
        """The local rows of a step's block row, and those below."""
        rows = self.A.rows
        return rows.local_range(step.j0, step.j1), slice(rows.local_start(step.j1), None)

    def _take_blocks(self, own: list[tuple[LuStep, USums]], sums: Taken, k: int) -> None:
        """What becomes of the rows of this rank's diagonal blocks: L11 u, u = U11 w + U12 w."""
        A, kernels, xp, (u, part, l_sums, usual) = (
            self.A,
            self.kernels,
            self.kernels.xp,
            (self.zeros() for _ in range(4)),
        )
        for step, (_, U12_w, U11_w) in own:
            rows, _ = self._rows(step)
            upper = xp.add(U11_w, U12_w)
            if k == 0:
                self._upper[rows] = upper
            if A.grid.q == step.q:
                columns, alone = A.cols.local_range(step.j0, step.j1), BlockCyclic(step.jb, step.jb, 0, 1)
                L11, w = A.local[rows, columns], self.weights[k][columns]
                u[rows], usual[rows] = upper, root_mean_square(xp, upper)
                kernels.add_triangle_matvec(part[rows], L11, upper, alone, alone, "lower")
                kernels.add_triangle_matvec(l_sums[rows], L11, w, alone, alone, "lower")
        for total, terms in (
            (sums.taken, (u, part)),
            (sums.size, (xp.abs(u), xp.abs(part), self._terms(xp.abs(l_sums), usual))),
            (sums.solved, (xp.abs(part),)),
            (sums.lower, (l_sums,)),
        ):
            for term in terms:
                kernels.add_scaled(total, 1.0, term)

    def _take_below(self, mine: list[tuple[LuStep, USums]], sums: Taken, k: int) -> None:
        """What this rank's panels take from the rows below their blocks: L_row (U_col w) + L21 (U11 w).

        All steps' columns are read row by row together: by themselves they are short pieces, a page apart, which take
        three times as long.
        """
        A, kernels, xp = self.A, self.kernels, self.kernels.xp
        tops, own = [A.rows.local_start(step.j1) for step, _ in mine], A.cols.local_range(mine[0][0].j0, mine[-1][0].j1)
        L, w = A.local[:, own], self.weights[k][own]
        U_col_w, U11_w = (xp.concat([found[kind] for _, found in mine]) for kind in (0, 2))
        if self._as_stored:  # L_row = L21: both are one product
            U_col_w, U11_w = xp.add(U_col_w, U11_w), xp.zeros_like(U11_w)
        updated, panel, l_sums = (xp.zeros((len(mine), L.shape[0] - tops[0])) for _ in range(3))
        for count, (first, end) in enumerate(pairwise([*tops, L.shape[0]]), start=1):  # of rows with so many steps' L21
            at, n = slice(first - tops[0], end - tops[0]), min(count * A.nb, L.shape[1])
            part, l_part = L[first:end, :n], l_sums[:count, at]
            if self._as_stored:
                kernels.add_block_products(updated[:count, at], l_part, part, U_col_w[:n], w[:n], A.nb)
            else:
                both, vectors = (updated[:count, at], panel[:count, at]), (U_col_w[:n], U11_w[:n], w[:n])
                kernels.add_operand_products(*both, l_part, part, self._low, *vectors, A.nb)
        taken, size, solved, lower = (one[tops[0] :] for one in sums)
        l_sizes, panel_sizes = xp.abs(l_sums), xp.abs(panel)
        for products, sizes, u in ((updated, xp.abs(updated), U_col_w), (panel, panel_sizes, U11_w)):
            usual = [[root_mean_square(xp, u[j : j + A.nb])] for j in range(0, len(u), A.nb)]
            kernels.add_scaled(taken, 1.0, xp.sum(products, axis=0))
            kernels.add_scaled(size, 1.0, xp.sum(sizes, axis=0))
            terms = self._terms(l_sizes, xp.asarray(usual, dtype=xp.float64))
            kernels.add_scaled(size, 1.0, xp.sum(terms, axis=0))
        kernels.add_scaled(solved, 1.0, xp.sum(panel_sizes, axis=0))
        kernels.add_scaled(lower, 1.0, xp.sum(l_sums, axis=0))

    def _terms(self, l_sizes: Any, usual: Any) -> Any:
        """What was added up for L u, in size: after a small pivot single terms may be much larger than their sum.

        Sums of L's rows by random signs are as large as their Euclidean norms; `usual` is the root mean square of u.
        Beyond 1/u² it is no growth, but an exponent that was hit, in L and then in U: that must not excuse itself.
        """
        return self.kernels.xp.clip(self.kernels.xp.multiply(l_sizes, usual), max=self._most)

    def _u_sums(self, steps: list[LuStep], k: int) -> list[USums]:
        """U_col w, U12 w and U11 w of each step, on all ranks.  Collective over the grid."""
        first, length, found = steps[0].j0, steps[-1].j1 - steps[0].j0, []
        sums = self.kernels.xp.zeros(3 * length)
        for step in steps:
            parts = [slice(kind * length + step.j0 - first, kind * length + step.j1 - first) for kind in range(3)]
            found.append((sums[parts[0]], sums[parts[1]], sums[parts[2]]))
            if self.A.grid.p == step.p:
                self._add_u(step, *found[-1], self.weights[k])
        self.A.grid.all.allreduce(sums, "sum")
        return found

    def _add_u(self, step: LuStep, U_col_w: Vector, U12_w: Vector, U11_w: Vector, w: Vector) -> None:
        """This rank's part of a step's sums, from its part of the block row."""
        A, kernels, (block, _) = self.A, self.kernels, self._rows(step)
        own, behind = A.cols.local_range(step.j0, step.j1), slice(A.cols.local_start(step.j1), None)
        U12, right = A.local[block, behind], w[behind]
        if self._as_stored:
            kernels.add_matvec(U12_w, U12, right)
            U_col_w[:] = U12_w
        else:
            xp, n = kernels.xp, max(1, U12.shape[1])
            rounded, exact, unused = (xp.reshape(y, (1, step.jb)) for y in (U_col_w, U12_w, xp.zeros(step.jb)))
            kernels.add_operand_products(rounded, exact, unused, U12, self._low, right, right, right, n)
        if A.grid.q == step.q:
            alone = BlockCyclic(step.jb, step.jb, 0, 1)
            kernels.add_triangle_matvec(U11_w, A.local[block, own], w[own], alone, alone, "upper")


def _the_same(sums: tuple[Vector, Vector]) -> tuple[Vector, Vector]:
    """Of L and U only sums weighted by w are kept: they tell the row."""
    return sums
