"""HPL-MxP's factorization: blocked LU without pivoting, in mixed precision, on a P×Q grid (OLCF Algorithm 1).

A is stored in fp32. Step k has the diagonal block A11 (lines 7-29 of the algorithm):

    A11 = L11 U11                                       factored in place, sent along its process row and column
    L21 = A21 U11^-1,   L_row = CAST(L21)               sent along the process rows
    U12 = L11^-1 A12,   U_col = CAST(U12)               sent along the process columns
    A22 = A22 - L_row U_col                             operands in the low precision, sums in fp32

L and U replace A and stay in fp32. The operands of the update are rounded to the low precision. If a backend solves
for L21 and U12 by products, it also rounds the operands of these products, unless `panel_solves` is "fp32".
`PanelSolves` records the method and precision of each solve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mxpeak.comm.base import Steps, Task, all_of, together
from mxpeak.comm.broadcast import broadcast
from mxpeak.comm.collectives import allreduce_scalar
from mxpeak.distributed.dense import DistMatrix
from mxpeak.kernels.contract import Kernels, Matrix
from mxpeak.layout.lu_schedule import ALL, LuEvent, LuOverlap, LuStep, looks_ahead
from mxpeak.precision import stored_as
from mxpeak.solvers.checkpointing import NO_CHECKPOINTS, Checkpointer
from mxpeak.solvers.growth_monitor import DiagonalBlocks
from mxpeak.solvers.lu.panel_solves import PanelSolves
from mxpeak.solvers.lu.pipeline import Pipeline, StepPanels, column_chunks
from mxpeak.spans import Spans


@dataclass(frozen=True, slots=True)
class MixedLuOptions:
    """The precision of the update's operands, and options that change the result only by rounding.

    forwards       whether ranks forward panels in this broadcast; if so, updates poll for messages until both panels
                   have arrived, and otherwise until this rank has computed its own part of the panels
    panel_solves   "low" lets backends round the operands of products in the solves for L21 and U12 to the precision of
                   the update; "fp32" keeps them in the precision in which A is stored
    """

    precision: str = "fp32"
    bcast: str = "1ringM"
    lookahead: int = 1
    forwards: bool = True
    panel_solves: str = "low"

    @property
    def solve_precision(self) -> str:
        """Return the lowest precision that backends may use in the solves for L21 and U12."""
        return self.precision if self.panel_solves == "low" else stored_as(self.precision)


def factorize(
    A: DistMatrix,
    options: MixedLuOptions,
    kernels: Kernels,
    spans: Spans,
    blocks: DiagonalBlocks | None = None,
    checkpointer: Checkpointer = NO_CHECKPOINTS,
    solves: PanelSolves | None = None,
) -> int:
    """Factor A in place into L (unit, below the diagonal) and U; return 0, or 1 + the first column with a zero pivot.

    `blocks` records the diagonal blocks, and `solves` records the method of this rank's panel solves. `checkpointer`
    may save A between steps, and determines the first step. The backward error satisfies |ΔA| <= 2·u_low·|L||U| +
    N·u_32·|L||U|. The factorization takes 2/3 N³ flops. Collective over the grid.
    """
    lu = _MixedLu(options, PanelSolves() if solves is None else solves, A, kernels, spans, blocks, checkpointer)
    if checkpointer.first_step == 0:
        spans.step(0, len(lu.steps), 0.0)  # work before the factorization belongs to no step
    lu.run(LuOverlap(lu.lookahead))
    # The negatives are reduced by "max", so the result is the first column.
    first = -int(allreduce_scalar(A.grid.all, -float(lu.singular() or A.rows.n + 1), "max", kernels.xp))
    return first if first <= A.rows.n else 0


class _MixedLu(Pipeline):
    """Implements the operations of the factorization without pivoting, and owns its buffers."""

    def __init__(self, options: MixedLuOptions, solves: PanelSolves, *pipeline: Any):
        super().__init__(*pipeline)
        A, kernels, checkpointer = self.A, self.kernels, self.checkpointer
        self.options, self.solves = options, solves
        self.zero_pivots = kernels.xp.zeros(len(self.steps))  # read only at the end, so that no step waits for it
        if "zero_pivots" in checkpointer.notes:
            self.zero_pivots[:] = kernels.xp.asarray(checkpointer.notes["zero_pivots"], dtype=kernels.xp.float64)
        self.cuts_show = A.grid.P * A.grid.Q > 1 and kernels.cuts_show(options.precision)
        self.lookahead = looks_ahead(options.lookahead, A.grid.P * A.grid.Q, background=kernels.background)
        self.buffers = [_StepMessages(A, options.precision, kernels) for _ in range(1 + self.lookahead)]
        self.panels: dict[int, Panels] = {}

    def make_panels(self, step: LuStep, to: Panels) -> Steps:
        """Compute L_row and U_col of a step, or receive them from the ranks that compute them.

        Receives are posted immediately, because a rank may have to forward panels while it waits for A11. A11 is the
        first message, because all ranks of a communicator must start its broadcasts in the same order. Collective over
        the grid.
        """
        A11, A21, A12 = self.A.partition(step)
        if to.in_row and to.in_column:
            self.factor_block(step, A11, to.D)  # A11 = L11 U11
        to.block = Task(together(*to.send_D()))
        yield from together(self.make_L_row(step, A21, to), self.make_U_col(step, A12, to), all_of([to.block]))

    def factor_block(self, step: LuStep, A11: Matrix, D: Matrix) -> None:
        """Factor the diagonal block in place and copy it to its message buffer."""
        with self.spans("factor", flops=2.0 / 3.0 * step.jb**3):
            self.kernels.copy(A11, D)
            self.kernels.factor_block(D, self.zero_pivots[step.k : step.k + 1])
            self.kernels.copy(D, A11)
            if self.blocks is not None:
                self.blocks.record(step.k, A11)

    def make_L_row(self, step: LuStep, A21: Matrix, to: Panels) -> Steps:
        """Solve for L21 in the process column that owns it, and send L_row along the process rows."""
        if to.in_column:
            if not to.in_row:
                yield to.block
            flops = float(A21.shape[0] * step.jb**2)
            with self.spans("trsm", flops=flops):  # L21 = A21 U11^-1
                self.solves[self.kernels.solve_right_upper(A21, to.D, self.options.solve_precision)] += int(flops)
            if to.casts_L:
                with self.spans("cast"):  # L_row = CAST(L21)
                    self.kernels.cast(A21, to.L_row, self.options.precision)
        yield from broadcast(self.options.bcast, self.A.grid.row, to.L_message, step.q)

    def make_U_col(self, step: LuStep, A12: Matrix, to: Panels) -> Steps:
        """Solve for U12 in the process row that owns it, and send U_col along the process columns."""
        if to.in_row:
            if not to.in_column:
                yield to.block
            flops = float(A12.shape[1] * step.jb**2)
            with self.spans("trsm", flops=flops):  # U12 = L11^-1 A12
                self.solves[self.kernels.solve_unit_lower(to.D, A12, self.options.solve_precision)] += int(flops)
            if to.casts_U:
                with self.spans("cast"):  # U_col = CAST(U12)
                    self.kernels.cast(A12, to.U_col, self.options.precision)
        yield from broadcast(self.options.bcast, self.A.grid.column, to.U_message, step.p)

    def factor(self, event: LuEvent) -> None:
        """Compute and send the panels of a step as far as possible without waiting."""
        step = self.steps[event.k]
        panels = Panels(self.A, step, self.buffers[event.k % len(self.buffers)], self.options.precision, self.kernels)
        panels.start(self.make_panels(step, panels))
        self.panels[event.k] = self.in_flight[event.key] = panels

    def await_panel(self, event: LuEvent) -> None:
        """Wait for both panels of a step."""
        self.panels[event.k].wait(self.spans)
        self.in_flight.clear()

    def singular(self) -> int:
        """Return 1 + the first column in which this rank found a zero pivot, or 0."""
        pivots = self.zero_pivots.tolist()
        return next((step.j0 + int(column) for step, column in zip(self.steps, pivots) if column), 0)

    def prepare(self, event: LuEvent) -> None:
        """Update the step's block column on its process column, and its block row on its process row."""
        step, panels = self.steps[event.k], self.panels[event.k - 1]
        grid, rows, cols = self.A.grid, self.A.rows, self.A.cols
        if grid.q == step.q:
            panels.update(rows.local_range(step.j0, rows.n), cols.local_range(step.j0, step.j1), self.spans)
        if grid.p == step.p:
            panels.update(rows.local_range(step.j0, step.j1), cols.local_range(step.j1, cols.n), self.spans)

    def update(self, event: LuEvent) -> None:
        """Update all rows and columns that `prepare` did not update.

        A rank may wait for the next diagonal block. Between two pieces, it then checks whether the block has arrived.
        If so, it computes its part of the next panels, because other ranks may wait for this part.
        """
        upcoming = next((self.panels[other.k] for other in event.overlaps), None)

        def arrived() -> bool:
            if upcoming is None or upcoming.progress():
                return True
            return upcoming.computed and not self.options.forwards

        trailing = self.steps[event.k + (event.section != ALL)].j1
        rows = self.A.rows.local_range(trailing, self.A.rows.n)
        first, end = self.sections.columns(event.k, event.section)
        for c0, c1 in column_chunks(end - first, self.A.nb, arrived, fixed=self.cuts_show and upcoming is not None):
            self.panels[event.k].update(rows, slice(first + c0, first + c1), self.spans)

    def end_step(self, event: LuEvent) -> None:
        """Report the end of a step and release its panels."""
        super().end_step(event)
        del self.panels[event.k]

    def notes(self) -> Mapping[str, Sequence[float]]:
        """Return the zero pivots by step, as the notes of a checkpoint."""
        return {"zero_pivots": list(self.zero_pivots.tolist())}


def _casts(A: DistMatrix, low: str, kernels: Kernels) -> tuple[bool, bool]:
    """Return whether L_row and U_col are copies of L21 and U12.

    Otherwise, they are L21 and U12 themselves, which no later step changes.
    """
    in_place = low == stored_as(low) and not kernels.background
    return A.grid.Q > 1 or not in_place, A.grid.P > 1 or not in_place


class _StepMessages:
    """Memory for the messages of one step: the diagonal block, L_row and U_col."""

    def __init__(self, A: DistMatrix, low: str, kernels: Kernels):
        jb, stored = min(A.nb, A.rows.n), stored_as(low)
        casts_L, casts_U = _casts(A, low, kernels)
        self.D: Any = kernels.buffer(kernels.panel_size(jb, jb, stored), stored)
        self.L: Any = kernels.operand_buffer(A.rows.local_size if casts_L else 0, jb, low, "left")
        self.U: Any = kernels.operand_buffer(jb, A.cols.local_size if casts_U else 0, low, "right")


class Panels(StepPanels):
    """A step's diagonal block D and panels L_row and U_col, each as a matrix and as the message that contains it.

    in_row, in_column    whether this rank is in the process row (column) that computes U_col (L_row)
    casts_L, casts_U     whether L_row and U_col are copies
    block                the broadcasts of D along that row and column
    """

    block: Task

    def __init__(self, A: DistMatrix, step: LuStep, buffers: _StepMessages, low: str, kernels: Kernels):
        super().__init__(A, step, kernels)
        jb = step.jb
        self.in_row, self.in_column = A.grid.p == step.p, A.grid.q == step.q
        self.casts_L, self.casts_U = _casts(A, low, kernels)
        m, n = A.rows.local_size - self._first_row, A.cols.local_size - self._first_column
        self.D: Matrix = kernels.panel(buffers.D, jb, jb)
        self.D_message = buffers.D[: kernels.panel_size(jb, jb, stored_as(low))]
        if self.casts_L:
            self.L_row = kernels.operand_matrix(buffers.L, m, jb, low, "left")
        else:
            self.L_row = A[step.j1 :, step.j0 : step.j1]
        if self.casts_U:
            self.U_col = kernels.operand_matrix(buffers.U, jb, n, low, "right")
        else:
            self.U_col = A[step.j0 : step.j1, step.j1 :]
        self.L_message = buffers.L[: kernels.operand_size(m if self.casts_L else 0, jb, low, "left")]
        self.U_message = buffers.U[: kernels.operand_size(jb, n if self.casts_U else 0, low, "right")]

    def send_D(self) -> list[Steps]:
        """Return the broadcasts of D in which this rank takes part, along D's process row and column."""
        grid, step = self._A.grid, self.step
        lines = [(grid.row, step.q)] * self.in_row + [(grid.column, step.p)] * self.in_column
        return [broadcast("ilib", comm, self.D_message, root) for comm, root in lines]

    @property
    def computed(self) -> bool:
        """Return whether this rank has computed its part of the panels.

        All ranks except the owner of D must first receive D.
        """
        return self.block.done or (self.in_row and self.in_column)
