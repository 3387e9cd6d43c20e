"""HPL-MxP's factorization: blocked LU without pivoting, in mixed precision, on a P×Q grid (OLCF Algorithm 1).

A is stored in FP32.  Step k, with A11 the diagonal block (lines 7-29 of the algorithm):

    A11 = L11 U11                                       factored where it lies, sent along its process row and column
    L21 = A21 U11^-1,   L_row = CAST(L21)               sent along the process rows
    U12 = L11^-1 A12,   U_col = CAST(U12)               sent along the process columns
    A22 = A22 - L_row U_col                             operands in the low precision, sums in FP32

L and U themselves stay in FP32 where A was.  The operands of the update are rounded to the low precision.  Where a
backend solves for L21 and U12 by products, the operands of these products are rounded as well, unless `panel_solves` is
"fp32"; `PanelSolves` collects how each solve was done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mxpeak.comm.base import Steps, Task, all_of, together
from mxpeak.comm.broadcast import broadcast
from mxpeak.comm.collectives import allreduce_scalar
from mxpeak.distributed.dense import DistMatrix
from mxpeak.errors import StoppedError
from mxpeak.kernels.contract import Kernels, Matrix
from mxpeak.kernels.contract.lu import PanelSolve
from mxpeak.layout.schedule import LuStep, looks_ahead, lu_steps
from mxpeak.perf.counts import lu_flops_done
from mxpeak.precision import precision, stored_as
from mxpeak.solvers.checkpointing import NO_CHECKPOINTS, Checkpointer
from mxpeak.solvers.growth_monitor import DiagonalBlocks
from mxpeak.solvers.lu.trailing_update import column_chunks
from mxpeak.spans import Spans


@dataclass(frozen=True, slots=True)
class MixedLuOptions:
    """The precision of the update's operands; and what does not change the result beyond rounding.

    forwards: whether this broadcast makes ranks pass panels on.  Then messages are looked for between pieces of the
    update until both panels are here; otherwise until this rank has made its own part of them.
    panel_solves: "low" lets backends round the operands of products in the solves for L21 and U12 to the precision of
    the update; "fp32" keeps them in the precision that A is stored in.
    """

    precision: str = "fp32"
    bcast: str = "1ringM"
    lookahead: int = 1
    forwards: bool = True
    panel_solves: str = "low"

    @property
    def solve_precision(self) -> str:
        """The lowest precision that backends may use in the solves for L21 and U12."""
        return self.precision if self.panel_solves == "low" else stored_as(self.precision)


class PanelSolves:
    """How the solves for L21 and U12 were done: the flops of each way, as the backend reports it."""

    def __init__(self) -> None:
        self.flops: Counter[PanelSolve] = Counter()

    def note(self, how: PanelSolve, flops: float) -> None:
        """Add a solve."""
        self.flops[how] += int(flops)


def panel_solve_facts(parts: Iterable[PanelSolves]) -> dict[str, Any] | None:
    """Return the way of all ranks' solves that has the lowest precision, and its share of their flops.

    None if no rank had a solve to do.  The lowest precision counts, not the most frequent one: a statement that all
    operands were in fp32 must hold for every solve.
    """
    flops: Counter[PanelSolve] = Counter()
    for part in parts:
        flops.update(part.flops)
    total = flops.total()
    if not total:
        return None
    way = max(flops, key=lambda one: (precision(one.operands).u if flops[one] else 0.0, flops[one]))
    return {"operands": way.operands, "method": way.method, "share": flops[way] / total}


def factorize(
    A: DistMatrix,
    options: MixedLuOptions,
    kernels: Kernels,
    spans: Spans,
    blocks: DiagonalBlocks | None = None,
    keeper: Checkpointer = NO_CHECKPOINTS,
    solves: PanelSolves | None = None,
) -> int:
    """Overwrite A by L (unit, below the diagonal) and U.  Returns 0, or 1 + the first column with a zero pivot.

    `blocks` notes the diagonal blocks; `keeper` may copy A between steps, and says with which one to begin; `solves`
    notes how this rank's panels were solved.
    |ΔA| <= 2·u_low·|L||U| + N·u_32·|L||U|; 2/3 N³ flops.  Collective over the grid.
    """
    lu = _MixedLu(A, options, kernels, spans, blocks, keeper, PanelSolves() if solves is None else solves)
    lu.run()
    # The first column is the largest of the negatives.
    first = -int(allreduce_scalar(A.grid.all, -float(lu.singular() or A.rows.n + 1), "max", kernels.xp))
    return first if first <= A.rows.n else 0


class _MixedLu:
    """One factorization under way: its buffers, and the order of its work."""

    def __init__(
        self,
        A: DistMatrix,
        options: MixedLuOptions,
        kernels: Kernels,
        spans: Spans,
        blocks: DiagonalBlocks | None,
        keeper: Checkpointer,
        solves: PanelSolves,
    ):
        self.A, self.options, self.kernels, self.spans, self.blocks = A, options, kernels, spans, blocks
        self.keeper, self.solves = keeper, solves
        self.steps = lu_steps(A.rows.n, A.nb, A.grid.P, A.grid.Q)
        self.zero_pivots = kernels.xp.zeros(len(self.steps))  # looked at when all is done: until then nobody waits
        if "zero_pivots" in keeper.notes:
            self.zero_pivots[:] = kernels.xp.asarray(keeper.notes["zero_pivots"], dtype=kernels.xp.float64)
        self.cuts_show = A.grid.P * A.grid.Q > 1 and kernels.cuts_show(options.precision)
        self.ahead = looks_ahead(options.lookahead, A.grid.P * A.grid.Q, background=kernels.background)
        self.buffers = [_Buffers(A, options.precision, kernels) for _ in range(1 + self.ahead)]

    def run(self) -> None:
        """All steps; with look-ahead the next one's panels are made and sent while this one's update goes on."""
        self.spans.step(0, len(self.steps), 0.0)  # what came before belongs to none of them
        steps = self.steps[self.keeper.first :]
        panels = self.begin(steps[0]) if steps else None
        for step, following in zip(steps, [*steps[1:], None]):
            assert panels is not None
            self.wait(panels)
            kept = following is not None and self.keeper.due(step.k, len(self.steps))
            if following and self.ahead and not kept:
                self.update_ahead(panels, following)
                upcoming: Panels | None = self.begin(following)
                self.update(panels, following.j1, upcoming)
            else:
                self.update(panels, step.j1)
                if kept:  # all of A is up to date, and nothing is under way
                    self.keep(step)
                upcoming = self.begin(following) if following else None
            n = self.A.rows.n
            try:
                self.spans.step(step.k + 1, len(self.steps), lu_flops_done(n, n - step.j1))
            except StoppedError:
                if upcoming:
                    self.wait(upcoming)  # nothing may be under way when all ranks leave
                raise
            panels = upcoming

    def keep(self, step: LuStep) -> None:
        """Have A kept as it is after a step."""
        blocks = {} if self.blocks is None else {"blocks": self.blocks.noted()}
        self.kernels.wait()
        self.keeper.keep(step.k + 1, {"zero_pivots": list(self.zero_pivots.tolist()), **blocks})

    # --- lines 7-28: the panels

    def make(self, step: LuStep, to: Panels) -> Steps:
        """L_row and U_col of a step, made here or received from the ranks that make them.  Collective over the grid.

        Receives are posted from the start, for a rank may have to pass panels on while it waits for A11; A11 comes
        first, since all ranks of a communicator begin its broadcasts in one order.
        """
        A, grid, kernels, spans, bcast = self.A, self.A.grid, self.kernels, self.spans, self.options.bcast
        block, rest = slice(step.j0, step.j1), slice(step.j1, None)
        A11, A21, A12 = A[block, block], A[rest, block], A[block, rest]

        # A11 = L11 U11, along its process row and column
        if to.in_row and to.in_column:
            with spans("factor", flops=2.0 / 3.0 * step.jb**3):
                kernels.copy(A11, to.D)
                kernels.factor_block(to.D, self.zero_pivots[step.k : step.k + 1])
                kernels.copy(to.D, A11)
                if self.blocks is not None:
                    self.blocks.note(step.k, A11)
        ways = [(grid.row, step.q)] * to.in_row + [(grid.column, step.p)] * to.in_column
        to.block = Task(together(*(broadcast("ilib", comm, to.D_message, root) for comm, root in ways)))

        def L_panel() -> Steps:
            if to.in_column:
                if not to.in_row:
                    yield to.block
                # L21 = A21 U11^-1
                flops = float(A21.shape[0] * step.jb**2)
                with spans("trsm", flops=flops):
                    self.solves.note(kernels.solve_right_upper(A21, to.D, self.options.solve_precision), flops)
                # L_row = CAST(L21), along the process rows
                if to.casts_L:
                    with spans("cast"):
                        kernels.cast(A21, to.L_row, self.options.precision)
            yield from broadcast(bcast, grid.row, to.L_message, step.q)

        def U_panel() -> Steps:
            if to.in_row:
                if not to.in_column:
                    yield to.block
                # U12 = L11^-1 A12
                flops = float(A12.shape[1] * step.jb**2)
                with spans("trsm", flops=flops):
                    self.solves.note(kernels.solve_unit_lower(to.D, A12, self.options.solve_precision), flops)
                # U_col = CAST(U12), along the process columns
                if to.casts_U:
                    with spans("cast"):
                        kernels.cast(A12, to.U_col, self.options.precision)
            yield from broadcast(bcast, grid.column, to.U_message, step.p)

        yield from together(L_panel(), U_panel(), all_of([to.block]))

    def begin(self, step: LuStep) -> Panels:
        """Make and send a step's panels as far as is possible without waiting."""
        panels = Panels(self.A, step, self.buffers[step.k % len(self.buffers)], self.options.precision, self.kernels)
        with self.kernels.side_stream():
            panels.under_way = Task(self.make(step, panels))
        return panels

    def progress(self, panels: Panels) -> bool:
        """Make and send a little more, on a device at the same time as the update; whether both panels are here."""
        if not panels.under_way.done:
            with self.kernels.side_stream():
                panels.under_way.test()
        return panels.under_way.done

    def wait(self, panels: Panels) -> None:
        """Have both panels here."""
        with self.kernels.side_stream():
            panels.under_way.wait(lambda: self.spans("bcast"))
        self.kernels.join()

    def singular(self) -> int:
        """1 + the first column for which this rank found a zero pivot; 0 if there is none."""
        found = self.zero_pivots.tolist()
        return next((step.j0 + int(column) for step, column in zip(self.steps, found) if column), 0)

    # --- line 29: the update

    def update_ahead(self, panels: Panels, following: LuStep) -> None:
        """The next step's block column, on its process column, and the rest of its block row, on its process row."""
        grid, rows, cols = self.A.grid, self.A.rows, self.A.cols
        if grid.q == following.q:
            self.subtract(panels, rows.local_range(following.j0, rows.n), cols.local_range(following.j0, following.j1))
        if grid.p == following.p:
            self.subtract(panels, rows.local_range(following.j0, following.j1), cols.local_range(following.j1, cols.n))

    def update(self, panels: Panels, j: int, upcoming: Panels | None = None) -> None:
        """A22 on rows and columns from j.  A rank that waits for the diagonal block makes its part of the upcoming
        panels when it comes, between two pieces, and others may wait for it.
        """

        def arrived() -> bool:
            if upcoming is None or self.progress(upcoming):
                return True
            return upcoming.made and not self.options.forwards

        rows = self.A.rows.local_range(j, self.A.rows.n)
        first, end = self.A.cols.local_start(j), self.A.cols.local_size
        fixed = self.cuts_show and upcoming is not None
        for c0, c1 in column_chunks(end - first, self.A.nb, arrived, fixed=fixed):
            self.subtract(panels, rows, slice(first + c0, first + c1))

    def subtract(self, panels: Panels, rows: slice, cols: slice) -> None:
        """A22 = A22 - L_row U_col on these local rows and columns."""
        A22, L_row, U_col = self.A.local[rows, cols], panels.L_row_at(rows), panels.U_col_at(cols)
        with self.spans("gemm", flops=2.0 * A22.shape[0] * A22.shape[1] * panels.step.jb):
            self.kernels.subtract_product(A22, L_row, U_col)


def _casts(A: DistMatrix, low: str, kernels: Kernels) -> tuple[bool, bool]:
    """Whether L_row, and U_col, are more than L21 and U12 where they lie, which no step changes any more."""
    stays = low == stored_as(low) and not kernels.background
    return A.grid.Q > 1 or not stays, A.grid.P > 1 or not stays


class _Buffers:
    """Memory for what one step sends: the diagonal block, L_row and U_col."""

    def __init__(self, A: DistMatrix, low: str, kernels: Kernels):
        jb, stored = min(A.nb, A.rows.n), stored_as(low)
        casts_L, casts_U = _casts(A, low, kernels)
        self.D: Any = kernels.buffer(kernels.panel_size(jb, jb, stored), stored)
        self.L: Any = kernels.operand_buffer(A.rows.local_size if casts_L else 0, jb, low, "left")
        self.U: Any = kernels.operand_buffer(jb, A.cols.local_size if casts_U else 0, low, "right")


class Panels:
    """A step's diagonal block D and panels L_row, U_col: each as a matrix and as the message that brings it.

    in_row, in_column    whether this rank is in the process row, and column, that makes U_col, and L_row
    casts_L, casts_U     whether L_row, and U_col, are copies
    block                D on its way along that row and column
    under_way            all of it
    """

    block: Task
    under_way: Task

    def __init__(self, A: DistMatrix, step: LuStep, buffers: _Buffers, low: str, kernels: Kernels):
        self.step, jb = step, step.jb
        self.in_row, self.in_column = A.grid.p == step.p, A.grid.q == step.q
        self.casts_L, self.casts_U = _casts(A, low, kernels)
        self._first_row, self._first_column = A.rows.local_start(step.j1), A.cols.local_start(step.j1)
        m, n = A.rows.local_size - self._first_row, A.cols.local_size - self._first_column
        self.D: Matrix = kernels.panel(buffers.D, jb, jb)
        self.D_message = buffers.D[: kernels.panel_size(jb, jb, stored_as(low))]
        if self.casts_L:
            self.L_row: Matrix = kernels.operand_matrix(buffers.L, m, jb, low, "left")
        else:
            self.L_row = A[step.j1 :, step.j0 : step.j1]
        if self.casts_U:
            self.U_col: Matrix = kernels.operand_matrix(buffers.U, jb, n, low, "right")
        else:
            self.U_col = A[step.j0 : step.j1, step.j1 :]
        self.L_message = buffers.L[: kernels.operand_size(m if self.casts_L else 0, jb, low, "left")]
        self.U_message = buffers.U[: kernels.operand_size(jb, n if self.casts_U else 0, low, "right")]

    @property
    def made(self) -> bool:
        """Whether this rank's part is made: by the owner of the diagonal block at once, by others when it has come."""
        return self.block.done or (self.in_row and self.in_column)

    def L_row_at(self, rows: slice) -> Matrix:
        """The rows of L_row that belong to these local rows of A."""
        return self.L_row[rows.start - self._first_row : rows.stop - self._first_row]

    def U_col_at(self, cols: slice) -> Matrix:
        """The columns of U_col that belong to these local columns of A."""
        return self.U_col[:, cols.start - self._first_column : cols.stop - self._first_column]
