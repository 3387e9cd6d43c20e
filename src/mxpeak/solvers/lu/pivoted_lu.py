"""HPL's factorization: blocked LU with partial pivoting on a P×Q grid (Chalmers et al., rocHPL, §II-III).

Each step factors a panel (FACT), broadcasts it along the process rows (LBCAST), swaps rows and gathers U within the
process columns (RS), and updates the trailing matrix (UPDATE):

    P1 [A11; A21] = [L11; L21] U11        U12 = L11^-1 (P1 A)12        A22 = (P1 A)22 - L21 U12

The matrix is augmented, [A | b], so its last column becomes b̂ = L^-1 P b. If right-hand sides are solved later, L is
stored below the diagonal of A, and its rows are swapped with those of all later panels. P is recorded, so that P A = L
U.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mxpeak.distributed.dense import DistMatrix
from mxpeak.kernels.contract import Kernels, Matrix
from mxpeak.layout.lu_schedule import (
    ALL,
    FACTOR,
    FIRST,
    LEFT,
    NEXT,
    REST,
    RIGHT,
    SWAP,
    LuEvent,
    LuOverlap,
    split_columns,
    split_steps,
)
from mxpeak.layout.row_moves import RowOrder
from mxpeak.solvers.checkpointing import NO_CHECKPOINTS, Checkpointer
from mxpeak.solvers.growth_monitor import DiagonalBlocks
from mxpeak.solvers.lu.panel import FactoredPanel, PanelOptions
from mxpeak.solvers.lu.panel_solves import PanelSolves
from mxpeak.solvers.lu.pipeline import Pipeline, column_chunks
from mxpeak.solvers.lu.row_swap import RowSwap, SwapBuffers, SwapOptions, swap_buffers
from mxpeak.spans import Spans


@dataclass(frozen=True, slots=True)
class PivotedLuOptions:
    """HPL's variants, look-ahead (0 or 1) and the split update's fraction, which change the result only by rounding.

    forwards   whether ranks forward panels to others; if so, an update that overlaps a broadcast is cut into pieces;
               the broadcast continues before each piece, as row swaps always do
    operands   the format to which the operands L21 and U12 of an update are rounded, if it is not A's
    """

    panel: PanelOptions = field(default_factory=PanelOptions)
    swap: SwapOptions = field(default_factory=SwapOptions)
    lookahead: int = 1
    split: float = 0.0
    forwards: bool = True
    operands: str | None = None


def factorize(
    A: DistMatrix,
    options: PivotedLuOptions,
    kernels: Kernels,
    spans: Spans,
    blocks: DiagonalBlocks | None = None,
    checkpointer: Checkpointer = NO_CHECKPOINTS,
    order: RowOrder | None = None,
    solves: PanelSolves | None = None,
) -> int:
    r"""Factor the N×(N+1) matrix [A | b] in place, with U on and above the diagonal and b̂ in the last column.

    The entries below the diagonal then do not contain L. If `order` is given, it records P, and L is stored below the
    diagonal. An N×N matrix becomes [L\U], for any number of later solves.

    Return 0, or 1 + the first column without a nonzero pivot. `blocks` records the diagonal blocks, and `solves`
    records the method of this rank's solves for U12. `checkpointer` may save A between steps, and determines the
    first step.

    The backward error satisfies |ΔA| <= N·u·|L||U| with u of A's type, fp64 or fp32 (N < 2^24). If the operands of
    updates are rounded, 2·u·|L||U| with the u of their format is added. The factorization takes 2/3 N³ flops.
    Collective over the grid.
    """
    return PivotedLu(
        options, order, PanelSolves() if solves is None else solves, A, kernels, spans, blocks, checkpointer
    ).factorize()


class PivotedLu(Pipeline):
    """Implements the four phases of the factorization with partial pivoting, and owns their buffers."""

    def __init__(self, options: PivotedLuOptions, order: RowOrder | None, solves: PanelSolves, *pipeline: Any):
        super().__init__(*pipeline)
        A, kernels, checkpointer = self.A, self.kernels, self.checkpointer
        self.options, self.order, self.solves = options, order, solves
        self.singular = int(*checkpointer.notes.get("singular", [0]))
        if order is not None and "order" in checkpointer.notes:
            order.rows[:] = map(int, checkpointer.notes["order"])
        low, P = options.operands or A.precision, A.grid.P
        self.operands = None if low == A.precision else _Operands(A, low, kernels)
        self.forwards = options.forwards and A.grid.Q > 1
        self.cuts_show = P * A.grid.Q > 1 and kernels.cuts_show(low)
        # A device runs the update while the host factors the panel, so the update is started first. If the host
        # computes everything, this order would delay the broadcast until the end of the update.
        update_first = kernels.stopwatch.lag > 0 and kernels.panel_library(P) is None
        end = self.sections.end
        n2 = split_columns(end, options.split, A.nb) if options.lookahead > 0 and P > 1 else 0
        self.sections = self.sections._replace(split=end - n2)
        splits = split_steps(self.steps, A.cols, end - n2) if n2 else 0
        self.overlap = LuOverlap(options.lookahead > 0, splits, update_first)
        # While FACT overlaps the left section's UPDATE, which still reads its own panel, three panels are in use.
        self._panel_buffers = [
            kernels.buffer(FactoredPanel.buffer_size(A, kernels), A.precision)
            for _ in range(3 if update_first and n2 else min(2, options.lookahead + 1))
        ]
        rest = max(end - n2, min(end, n2 + A.nb + end - A.cols.local_size))
        sizes = (min(A.nb, end), rest, n2, end if order is not None else 0)
        following, rest, right, self._finished = (swap_buffers(A, size, k, kernels) for k, size in enumerate(sizes))
        self._swap_buffers = {NEXT: following, ALL: rest, REST: rest, LEFT: rest, RIGHT: right}
        self._panels: dict[int, FactoredPanel] = {}
        self._marks: dict[int, Any] = {}  # by panel: the event in the device's work that the side stream waits for

    def touch_buffers(self) -> None:
        """Write to the panel buffers, so that the operating system provides their memory before the clock starts."""
        A, kernels = self.A, self.kernels
        jb = min(A.nb, *A.local.shape)
        for buffer in self._panel_buffers:
            rows = kernels.panel(buffer, A.rows.local_size, jb)
            kernels.copy(A.local[:, :jb], rows)  # the threads touch the rows that they copy later

    def factorize(self) -> int:
        """Execute all steps, and return 0, or 1 + the first column without a nonzero pivot. Collective."""
        self.run(self.overlap)
        return self.singular

    def prepare(self, event: LuEvent) -> None:
        """Copy a panel's columns to its message buffer, and apply the update of the previous step to the copy.

        A itself is not changed, because only the panel needs these columns. If operands are rounded, the update
        changes A instead, because products of rounded operands need a row-major C.
        """
        right = self._swap(event.k - 1, RIGHT)
        if right is not None:
            right.progress()  # if the host computes everything, FACT follows and hides the pending swaps
        self._marks[event.k] = begun = self.kernels.stopwatch.mark() if right is None else right.gathered
        with self.kernels.side_stream(begun):
            panel = self._new_panel(event.k)
            if self.A.grid.q != panel.step.q:
                return
            before = self._panels[event.k - 1]
            c0, c1 = self.sections.columns(event.k - 1, NEXT)
            swap = self._swap(event.k - 1, NEXT) or self.swap_rows(before, c0, c1, self._swap_buffers[NEXT])
            self.in_flight.pop((SWAP, event.k - 1, NEXT), None)
            self.solve_for_u(before, swap)
            if self.operands is not None:
                self.subtract(self.below(before, c0, c1), before, swap.U)
            panel.load(self.spans)
            if self.operands is None:
                self.subtract(panel.rows, before, swap.U)
            panel.bring(self.options.panel, self.spans)

    def factor(self, event: LuEvent) -> None:
        """Factor a panel and begin its broadcast; begin the overlapping update as soon as its rows have arrived."""
        if event.k not in self._marks:  # the panel's columns of A are up to date
            panel = self._new_panel(event.k)
            if self.A.grid.q == panel.step.q:
                panel.load(self.spans)
                panel.bring(self.options.panel, self.spans)
            self.factor_and_send(panel)
            return
        with self.kernels.side_stream(self._marks.pop(event.k)):
            poll = partial(self.update_if_ready, *event.overlaps) if event.overlaps else None
            if poll is not None:
                poll()
            self.factor_and_send(self._panels[event.k], poll)

    def factor_and_send(self, panel: FactoredPanel, poll: Callable[[], None] | None = None) -> None:
        """Factor a panel that has been copied (FACT), and begin its broadcast (LBCAST); call `poll` during FACT."""
        step = panel.step
        if self.A.grid.q == step.q:
            panel.factor(self.spans, poll)
            if self.blocks is not None and self.A.grid.p == step.p:
                self.blocks.record(step.k, panel.L11)
            if self.order is not None:
                panel.store_l(self.spans)
            panel.fetch_pivots()
        panel.start_broadcast(self.options.panel)

    def await_panel(self, event: LuEvent) -> None:
        """Wait for a panel on both streams; the side stream does not wait for the update of the previous step."""
        panel, right = self._panels[event.k], self._swap(event.k, RIGHT)
        if right is not None and self.overlap.update_first:
            with self.kernels.side_stream(right.gathered):
                panel.wait(self.spans, right.progress)
            self.kernels.join()
        else:
            self.kernels.join()
            panel.wait(self.spans)
        del self.in_flight[FACTOR, event.k, ALL]

    def await_pivots(self, event: LuEvent) -> None:
        """Wait for a panel's pivots, which determine its row swaps."""
        self._panels[event.k].wait_for_pivots(self.spans)

    def _new_panel(self, k: int) -> FactoredPanel:
        """Return the panel of a step, in a buffer that no other panel uses."""
        buffer = self._panel_buffers[k % len(self._panel_buffers)]
        panel = FactoredPanel(self.A, self.steps[k], buffer, self.kernels, ahead=self.overlap.update_first)
        self._panels[k] = self.in_flight[FACTOR, k, ALL] = panel
        return panel

    def begin_swap(self, event: LuEvent) -> None:
        """Begin the row swaps of a section; if they overlap the row swaps of NEXT, send the rows of NEXT first."""
        c0, c1 = self.sections.columns(event.k, event.section)
        if c0 < c1:
            before = self._swap(event.k, NEXT) if event.overlaps else None
            swap = self.swap_rows(self._panels[event.k], c0, c1, self._swap_buffers[event.section], before)
            self.in_flight[event.key] = swap

    def swap_rows(
        self, panel: FactoredPanel, c0: int, c1: int, buffers: SwapBuffers | None, before: RowSwap | None = None
    ) -> RowSwap:
        """Gather the rows that a panel moves in local columns c0:c1, and start to send these rows.

        Sending starts after the rows of `before` have arrived.
        """
        with self.spans("update"):
            swap = RowSwap(self.A, panel, c0, c1, buffers, self.kernels)
            swap.gather(self.spans)
            swap.start(self.options.swap, before)
        return swap

    def _swap(self, k: int, section: int) -> RowSwap | None:
        """Return the pending row swaps of a section, or None."""
        swap = self.in_flight.get((SWAP, k, section))
        return swap if isinstance(swap, RowSwap) else None

    def swap_finished(self, panel: FactoredPanel, order: RowOrder) -> None:
        """Apply a panel's row swaps to P and to the columns of L left of the panel."""
        order.exchange(panel.step.j0, panel.pivots[:-1])
        finished = self.A.cols.local_start(panel.step.j0)
        if finished:
            self.swap_rows(panel, 0, finished, self._finished).finish(self.spans)

    def update(self, event: LuEvent) -> None:
        """Compute U12 = L11^-1 (P A)12 and A22 -= L21 U12 in a section, once its rows have arrived.

        A section that is empty or whose update began during FACT has no pending row swaps.
        """
        swap = self._swap(event.k, LEFT if event.section == FIRST else event.section)
        if swap is None:
            return
        panel = self._panels[event.k]
        if event.section != FIRST:
            del self.in_flight[SWAP, event.k, event.section]
        if swap.updated is None:
            self.solve_for_u(panel, swap)
            swap.updated = 0
        _, c1 = self.sections.columns(event.k, event.section)
        U = swap.U[:, swap.updated : c1 - swap.c0]
        A22 = self.below(panel, swap.c0 + swap.updated, c1)
        swap.updated = c1 - swap.c0
        operations = self.overlapping(event)
        driven = [operation for operation in operations if self.forwards or isinstance(operation, RowSwap)]

        def arrived() -> bool:
            return all([operation.progress() or operation not in driven for operation in operations])

        fixed = self.cuts_show and bool(driven)  # otherwise the update is one piece
        for j0, j1 in column_chunks(U.shape[1], self.A.nb, arrived, fixed=fixed):
            self.subtract(A22[:, j0:j1], panel, U[:, j0:j1])

    def update_if_ready(self, event: LuEvent) -> None:
        """Begin an update from a side stream if it has not begun and does not have to wait for its rows."""
        swap = self._swap(event.k, event.section)
        if swap is not None:
            with self.kernels.main_stream():
                if swap.ready():
                    self.update(event)

    def below(self, panel: FactoredPanel, c0: int, c1: int) -> Matrix:
        """Return the rows of local columns c0:c1 below a panel's block row."""
        return self.A.local[self.A.rows.local_start(panel.step.j1) :, c0:c1]

    def solve_for_u(self, panel: FactoredPanel, swap: RowSwap) -> None:
        """Compute U12 = L11^-1 (P A)12 once the rows have arrived; the owner of the block row computes it in A."""
        with self.spans("update"):
            swap.finish(self.spans)
            flops = float(panel.step.jb**2 * swap.columns)
            with self.spans("trsm", flops=flops):
                how = self.kernels.solve_unit_lower(panel.L11, swap.U, self.A.precision)
            self.solves[how] += int(flops)

    def subtract(self, C: Matrix, panel: FactoredPanel, U: Matrix) -> None:
        """Compute C -= L21 U."""
        (m, jb), n = panel.L21_row.shape, U.shape[1]
        with self.spans("update"):
            L21_row = panel.L21_row
            if self.operands is not None:
                with self.spans("cast"):
                    L21_row, U = self.operands.of(panel, U)
            with self.spans("gemm", flops=2.0 * m * n * jb):
                self.kernels.subtract_product(C, L21_row, U)

    def end_step(self, event: LuEvent) -> None:
        """Record a singular column, report the end of the step and release its panel."""
        panel = self._panels.pop(event.k)
        self.singular = self.singular or panel.singular
        if self.order is not None:
            self.swap_finished(panel, self.order)
        super().end_step(event)

    def notes(self) -> Mapping[str, Sequence[float]]:
        """Return the first singular column, and P if it is recorded, as the notes of a checkpoint."""
        order = {} if self.order is None else {"order": [float(row) for row in self.order.rows]}
        return {"singular": [float(self.singular)], **order}


class _Operands:
    """L21 and U rounded to a format for products: L21 once per panel, and U for each product."""

    def __init__(self, A: DistMatrix, precision: str, kernels: Kernels):
        jb = min(A.nb, A.rows.n)
        self._precision, self._kernels = precision, kernels
        self._by_rows = kernels.matrix(A.rows.local_size, jb, A.precision)
        self._L = kernels.operand_buffer(A.rows.local_size, jb, precision, "left")
        self._U = kernels.operand_buffer(jb, A.local.shape[1], precision, "right")
        self._L_row: Matrix = None
        self._step = -1  # the step whose L21 is in L_row

    def of(self, panel: FactoredPanel, U: Matrix) -> tuple[Matrix, Matrix]:
        """Return L_row = CAST(L21) and U_col = CAST(U)."""
        kernels, precision = self._kernels, self._precision
        (m, jb), n = panel.L21_row.shape, U.shape[1]
        if self._step != panel.step.k:
            L21_row = self._by_rows[:m, :jb]  # panels are stored by columns and cast by rows
            kernels.copy(panel.L21_row, L21_row)
            self._L_row = kernels.operand_matrix(self._L, m, jb, precision, "left")
            kernels.cast(L21_row, self._L_row, precision)
            self._step = panel.step.k
        U_col = kernels.operand_matrix(self._U, jb, n, precision, "right")
        kernels.cast(U, U_col, precision)
        return self._L_row, U_col
