"""HPL's factorization: blocked LU with partial pivoting on a P×Q grid (Chalmers et al., rocHPL, §II-III).

Each step factors a panel (FACT), broadcasts it along the process rows (LBCAST), swaps rows and gathers U within the
process columns (RS), and updates the trailing matrix (UPDATE):

    P1 [A11; A21] = [L11; L21] U11        U12 = L11^-1 (P1 A)12        A22 = (P1 A)22 - L21 U12

The matrix is augmented, [A | b], so its last column ends as b̂ = L^-1 P b.  Where right-hand sides are to come later, L
is kept below the diagonal of A, its rows swapped with those of all later panels, and P is noted: P A = L U.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from os import sched_yield
from typing import Any, Protocol

from mxpeak.distributed.dense import DistMatrix
from mxpeak.errors import StoppedError
from mxpeak.kernels.contract import Kernels, Matrix
from mxpeak.layout.row_moves import RowOrder
from mxpeak.layout.schedule import LuStep, lu_steps, split_columns
from mxpeak.perf.counts import lu_flops_done
from mxpeak.solvers.checkpointing import NO_CHECKPOINTS, Checkpointer
from mxpeak.solvers.growth_monitor import DiagonalBlocks
from mxpeak.solvers.lu.panel import FactoredPanel, PanelOptions
from mxpeak.solvers.lu.row_swap import RowSwap, SwapBuffers, SwapOptions, swap_buffers
from mxpeak.solvers.lu.trailing_update import column_chunks
from mxpeak.spans import Spans


class PanelInFlight(Protocol):
    """Communication that goes on during an update: a broadcast, or row swaps."""

    def progress(self) -> bool:
        """Drive it a little; whether it has ended here."""


@dataclass(frozen=True, slots=True)
class PivotedLuOptions:
    """What does not change the result beyond rounding: variants, look-ahead (0 or 1), the split update's fraction.

    operands: the format to which the operands L21 and U12 of an update are rounded; None: to none but A's.
    forwards: whether ranks pass panels on to others: then an update is cut into pieces while one is under way, to drive
    it before each, as it always is for row swaps.
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
    keeper: Checkpointer = NO_CHECKPOINTS,
    order: RowOrder | None = None,
) -> int:
    r"""Overwrite [A | b] (N×(N+1)) by U above the diagonal and b̂ in the last column; what is below U is not L.

    With `order`, which notes P, L is kept there: of an N×N matrix [L\U] is left, for as many solves as one likes.

    Returns 0, or 1 + the first column for which no non-zero pivot was left.  Collective over the grid.  `blocks` notes
    the diagonal blocks; `keeper` may copy A between steps, and says with which one to begin.
    |ΔA| <= N·u·|L||U|, u that of A's type, fp64 or fp32 (N < 2^24); 2/3 N³ flops.  Operands that are rounded add
    2·u·|L||U| of their format's u.
    """
    lu = _PivotedLu(A, options, kernels, spans, blocks, keeper, order)
    if options.lookahead == 0:
        lu.plain()
    else:
        lu.look_ahead()
    return lu.singular


class _PivotedLu:
    """One factorization under way: its buffers, and the order of its phases.

    Sections of local columns, from left to right: finished | ahead (the next panel, where it is ours) | left | right.
    """

    def __init__(
        self,
        A: DistMatrix,
        options: PivotedLuOptions,
        kernels: Kernels,
        spans: Spans,
        blocks: DiagonalBlocks | None,
        keeper: Checkpointer,
        order: RowOrder | None,
    ):
        self.A, self.options, self.kernels, self.spans, self.blocks = A, options, kernels, spans, blocks
        self.keeper, self.order = keeper, order
        self.singular = int(*keeper.notes.get("singular", [0]))
        self.steps = lu_steps(A.rows.n, A.nb, A.grid.P, A.grid.Q)
        low = options.operands or A.precision
        self.operands = None if low == A.precision else _Operands(A, low, kernels)
        self.passed_on = options.forwards and A.grid.Q > 1
        self.cuts_show = A.grid.P * A.grid.Q > 1 and kernels.cuts_show(low)
        self.end = A.local.shape[1]  # columns that are carried along lie behind those of A
        carried = self.end - A.cols.local_size
        # n2 of §III-C: the columns of the right section, fixed for the whole run.
        hides = options.lookahead > 0 and A.grid.P > 1
        n2 = split_columns(self.end, options.split, A.nb) if hides else 0
        # A device updates while the host factors: so its update is begun first.  Where the host computes all, it could
        # not begin the broadcast before the update had ended.
        self.updates_first = kernels.stopwatch.lag > 0 and kernels.panel_library(A.grid.P) is None
        self.split_at = self.end - n2
        # Where FACT begins beside UPDATE1, whose panel is still read, the next one is here, too.
        self._panels = [
            kernels.buffer(FactoredPanel.buffer_size(A, kernels), A.precision)
            for _ in range(3 if self.updates_first and n2 else min(2, options.lookahead + 1))
        ]
        self._ahead = swap_buffers(A, min(A.nb, self.end), 0, kernels)
        self._left = swap_buffers(A, max(self.split_at, min(self.end, n2 + A.nb + carried)), 1, kernels)
        self._right = swap_buffers(A, n2, 2, kernels)
        self._finished = swap_buffers(A, self.end, 3, kernels) if order is not None else None
        self._early: RowSwap | None = None  # of the next panel's columns, on its way since the last step

    def plain(self) -> None:
        """Fig. 2: FACT, LBCAST, RS, UPDATE, one after the other."""
        for step in self.steps[self.keeper.first :]:
            panel = self.next_panel(step)
            panel.wait(self.spans)
            kept = self.due(step)
            self.swap_and_update(panel, self.trailing(step), self.end, self._left)
            self.report(panel)
            if kept:
                self.keep(step)

    def look_ahead(self) -> None:
        """Fig. 3: the next panel is factored and broadcast while this one's update goes on; fig. 6 while it applies."""
        steps = self.steps[self.keeper.first :]
        panel, right = self.next_panel(steps[0]) if steps else None, None
        for step, following in zip(steps, [*steps[1:], None]):
            assert panel is not None
            self.have(panel, right)
            if following and self.due(step):
                self.whole_update(panel, right)
                self.report(panel)
                self.keep(step)
                panel, right = self.next_panel(following), None
            elif following and self.splits(step):
                panel, right = self.split_update(panel, right, following)
            else:
                panel = self.single_update(panel, following)

    def have(self, panel: FactoredPanel, right: RowSwap | None) -> None:
        """The panel here, for both streams; the side stream waits for it alone, and not for UPDATE1 under way."""
        if right is not None and self.updates_first:
            with self.kernels.side_stream(right.gathered):
                panel.wait(self.spans, right.progress)
            self.kernels.join()
        else:
            self.kernels.join()
            panel.wait(self.spans)

    def single_update(self, panel: FactoredPanel, following: LuStep | None) -> FactoredPanel | None:
        """Fig. 3: UPDATE hides FACT and LBCAST."""
        now = self.kernels.stopwatch.mark()
        upcoming = self.begin_panel(following, panel, now) if following else None
        self.swap_and_update(panel, self.trailing(following or panel.step), self.end, self._left, upcoming)
        if upcoming:
            self.end_panel(upcoming, now)
        self.report(panel, upcoming)
        return upcoming

    def splits(self, step: LuStep) -> bool:
        """Whether the split update applies: the next panel, if ours, still lies in the left section (§III-C)."""
        following = self.steps[step.k + 1] if step.k + 1 < len(self.steps) else None
        return following is not None and self.trailing(following) <= self.split_at < self.end

    def split_update(
        self, panel: FactoredPanel, right: RowSwap | None, following: LuStep
    ) -> tuple[FactoredPanel, RowSwap | None]:
        """Fig. 6: the left section's rows travel while the right is updated, and the right's while the left is.

        So do those of the panel after the next, whose columns are the first of the left section to be updated: UPDATE1
        hides the beginning of its FACT, too, which goes on behind UPDATE2 of the next step.

        `right`: this panel's row swap of the right section, on its way since the last step (None: not begun).
        """
        if right is None:
            right = self.begin_swap(panel, self.split_at, self.end, self._right)
        right.progress()  # where the host computes all, FACT comes next, and hides what is begun by now
        ahead = self.trailing(following)
        upcoming = self.begin_panel(following, panel, right.gathered)
        left = self.begin_swap(panel, ahead, self.split_at, self._left)
        # UPDATE2 hides FACT, LBCAST and RS1; it begins when its rows are here, be it during FACT
        update2 = _Begun(right, lambda: self.update(panel, right, self.split_at, upcoming, left), self.kernels)
        self.end_panel(upcoming, right.gathered, update2.look)
        update2.begin()
        done = self.begin_update1(panel, left, ahead, following)
        upcoming.wait_for_pivots(self.spans, left.progress)
        later = self.update1(panel, left, ahead, done, upcoming)  # UPDATE1 hides RS2 of the next step
        self.report(panel, later, self._early, upcoming)
        return upcoming, later

    def begin_update1(self, panel: FactoredPanel, left: RowSwap, c0: int, following: LuStep) -> int:
        """The first columns of UPDATE1, and how many they are: those of the panel after the next, where it is ours."""
        self.solve_for_u(panel, left)
        after = self.steps[following.k + 1] if self.splits(following) else None
        if after is None or self.A.grid.q != after.q:
            return 0
        done = self.A.cols.local_start(after.j1) - c0
        self.subtract(self.below(panel, c0, c0 + done), panel, left.U[:, :done])
        return done

    def update1(
        self, panel: FactoredPanel, left: RowSwap, c0: int, done: int, upcoming: FactoredPanel
    ) -> RowSwap | None:
        """The rest of UPDATE1, and the next step's row swaps begun: of the columns that are done, and behind it RS2."""
        later = None
        if done:
            self._early = self.begin_swap(upcoming, c0, c0 + done, self._ahead)
        if self.splits(upcoming.step):
            before = self._early if self.updates_first else None  # where FACT is to begin soon
            later = self.begin_swap(upcoming, self.split_at, self.end, self._right, before)
        self.subtract_rest(panel, left, c0, done, self._early, later, upcoming)
        return later

    def begin_panel(self, step: LuStep, before: FactoredPanel, begun: Any) -> FactoredPanel:
        """The next panel brought up to date, and on its way to FACT: beside all that comes after the mark `begun`.

        Where an update cannot be under way during FACT, the panel is factored and its broadcast is begun.
        """
        with self.kernels.side_stream(begun):
            panel = self.load_panel(step, before)
            if not self.updates_first:
                self.finish_panel(panel)
        return panel

    def end_panel(self, panel: FactoredPanel, begun: Any, look: Callable[[], object] = lambda: None) -> None:
        """FACT and LBCAST beside an update that is under way, or begins by a look."""
        if self.updates_first:
            with self.kernels.side_stream(begun):
                look()
                self.finish_panel(panel, look)

    def due(self, step: LuStep) -> bool:
        """Whether A shall be kept after this step; never after the last."""
        return step.k + 1 < len(self.steps) and self.keeper.due(step.k, len(self.steps))

    def keep(self, step: LuStep) -> None:
        """Have A kept as it is after a step."""
        blocks = {} if self.blocks is None else {"blocks": self.blocks.noted()}
        self.kernels.wait()
        self.keeper.keep(step.k + 1, {"singular": [float(self.singular)], **blocks})

    def whole_update(self, panel: FactoredPanel, right: RowSwap | None) -> None:
        """RS and UPDATE of all columns behind the panel: A is up to date then, and nothing is under way.

        `right`: this panel's row swap of the right section, on its way since the last step (None: not begun).
        """
        first, end = self.trailing(panel.step), self.end
        if self._early is not None:
            self.update(panel, self._early, first)
            first, self._early = first + self._early.columns, None
        if first <= self.split_at < end:
            if right is None:
                right = self.begin_swap(panel, self.split_at, end, self._right)
            self.update(panel, right, self.split_at)
            end = self.split_at
        self.swap_and_update(panel, first, end, self._left)

    # --- the phases

    def trailing(self, step: LuStep) -> int:
        """Where the columns behind a step's panel begin locally."""
        return self.A.cols.local_start(step.j1)

    def next_panel(self, step: LuStep) -> FactoredPanel:
        """FACT in the process column that owns the panel, and LBCAST begun along every process row."""
        panel = self.load_panel(step)
        self.finish_panel(panel)
        return panel

    def load_panel(self, step: LuStep, before: FactoredPanel | None = None) -> FactoredPanel:
        """A panel's columns in its message, in the process column that owns it.

        With `before`, the panel of the step before, they are brought up to date first, on their way there: A is not
        written, for only the panel needs them.  It is where operands are rounded, whose products want C by rows.
        """
        buffer = self._panels[step.k % len(self._panels)]
        panel = FactoredPanel(self.A, step, buffer, self.kernels, ahead=self.updates_first)
        if self.A.grid.q == step.q:
            columns = self.A.cols.local_range(step.j0, step.j1)
            if before is not None:
                swap = self._early or self.begin_swap(before, columns.start, columns.stop, self._ahead)
                self._early = None
                self.solve_for_u(before, swap)
                if self.operands is not None:
                    self.subtract(self.below(before, columns.start, columns.stop), before, swap.U)
            panel.load(self.spans)
            if before is not None and self.operands is None:
                self.subtract(panel.rows, before, swap.U)
            panel.bring(self.options.panel, self.spans)
        return panel

    def finish_panel(self, panel: FactoredPanel, look: Callable[[], object] = lambda: None) -> None:
        """FACT of a loaded panel, during which one looks after something else, and LBCAST begun."""
        step = panel.step
        if self.A.grid.q == step.q:
            panel.factor(self.spans, look)
            if self.blocks is not None and self.A.grid.p == step.p:
                self.blocks.note(step.k, panel.L11)
            if self.order is not None:
                panel.keep_l(self.spans)
            panel.fetch_pivots()
        panel.start_broadcast(self.options.panel)

    def begin_swap(
        self, panel: FactoredPanel, c0: int, c1: int, buffers: SwapBuffers | None, before: RowSwap | None = None
    ) -> RowSwap:
        """RS on local columns c0:c1, as far as the rows being on their way, or next after those of `before`."""
        with self.spans("update"):
            swap = RowSwap(self.A, panel, c0, c1, buffers, self.kernels)
            swap.gather(self.spans)
            swap.start(self.options.swap, before)
        return swap

    def swap_and_update(
        self, panel: FactoredPanel, c0: int, c1: int, buffers: SwapBuffers | None, *under_way: PanelInFlight | None
    ) -> None:
        """RS and UPDATE of local columns c0:c1."""
        if c0 < c1:
            self.update(panel, self.begin_swap(panel, c0, c1, buffers), c0, *under_way)

    def update(self, panel: FactoredPanel, swap: RowSwap, c0: int, *under_way: PanelInFlight | None) -> None:
        """UPDATE of the swapped columns from c0 on, driving whatever communication is under way.

        U12 = L11^-1 (P A)12,   A22 -= L21 U12
        """
        self.solve_for_u(panel, swap)
        self.subtract_rest(panel, swap, c0, 0, *under_way)

    def subtract_rest(
        self, panel: FactoredPanel, swap: RowSwap, c0: int, done: int, *under_way: PanelInFlight | None
    ) -> None:
        """A22 -= L21 U on the swapped columns but for the first, which are done."""
        A22, U = self.below(panel, c0, c0 + swap.columns), swap.U
        tasks = [task for task in under_way if task is not None]
        driven = [task for task in tasks if self.passed_on or isinstance(task, RowSwap)]

        def arrived() -> bool:
            return all([task.progress() or task not in driven for task in tasks])

        fixed = self.cuts_show and bool(driven)  # else it is one piece
        for j0, j1 in column_chunks(swap.columns - done, self.A.nb, arrived, fixed=fixed):
            self.subtract(A22[:, done + j0 : done + j1], panel, U[:, done + j0 : done + j1])

    def below(self, panel: FactoredPanel, c0: int, c1: int) -> Matrix:
        """The rows of local columns c0:c1 below a panel's block row."""
        return self.A.local[self.A.rows.local_start(panel.step.j1) :, c0:c1]

    def solve_for_u(self, panel: FactoredPanel, swap: RowSwap) -> None:
        """U12 = L11^-1 (P A)12, once the rows are here: in A where the block row lies."""
        with self.spans("update"):
            swap.finish(self.spans)
            with self.spans("trsm", flops=float(panel.step.jb**2 * swap.columns)):
                self.kernels.solve_unit_lower(panel.L11, swap.U, self.A.precision)

    def subtract(self, C: Matrix, panel: FactoredPanel, U: Matrix) -> None:
        """C -= L21 U."""
        (m, jb), n = panel.L21_row.shape, U.shape[1]
        with self.spans("update"):
            L21_row = panel.L21_row
            if self.operands is not None:
                with self.spans("cast"):
                    L21_row, U = self.operands.of(panel, U)
            with self.spans("gemm", flops=2.0 * m * n * jb):
                self.kernels.subtract_product(C, L21_row, U)

    def swap_finished(self, panel: FactoredPanel, order: RowOrder) -> None:
        """A panel's row swaps on the columns before it, where L is kept, and in P."""
        order.exchange(panel.step.j0, panel.pivots[:-1])
        finished = self.A.cols.local_start(panel.step.j0)
        if finished:
            swap = self.begin_swap(panel, 0, finished, self._finished)
            swap.finish(self.spans)

    def report(self, panel: FactoredPanel, *under_way: PanelInFlight | None) -> None:
        """Note a singular column, and tell the observers how far we are."""
        self.singular = self.singular or panel.singular
        if self.order is not None:
            self.swap_finished(panel, self.order)
        n = self.A.rows.n
        try:
            self.spans.step(panel.step.k + 1, len(self.steps), lu_flops_done(n, n - panel.step.j1))
        except StoppedError:
            for task in filter(None, under_way):  # nothing may be under way when all ranks leave
                while not task.progress():
                    sched_yield()
            raise


class _Begun:
    """An update that begins once, when its rows are here: by a look from a side stream, or at the latest by `begin`."""

    def __init__(self, swap: RowSwap, update: Callable[[], None], kernels: Kernels):
        self._swap, self._kernels = swap, kernels
        self._update: Callable[[], None] | None = update

    def look(self) -> None:
        """Begin it if it need not wait."""
        if self._update is not None:
            with self._kernels.main_stream():
                if self._swap.ready():
                    self.begin()

    def begin(self) -> None:
        """Begin it, unless a look has."""
        update, self._update = self._update, None
        if update is not None:
            update()


class _Operands:
    """L21 and U rounded to a format, as products take them: L21 once a panel, U whenever some of it is multiplied."""

    def __init__(self, A: DistMatrix, precision: str, kernels: Kernels):
        jb = min(A.nb, A.rows.n)
        self._precision, self._kernels = precision, kernels
        self._by_rows = kernels.matrix(A.rows.local_size, jb, A.precision)
        self._L = kernels.operand_buffer(A.rows.local_size, jb, precision, "left")
        self._U = kernels.operand_buffer(jb, A.local.shape[1], precision, "right")
        self._L_row: Matrix = None
        self._step = -1  # whose L21 is in L_row

    def of(self, panel: FactoredPanel, U: Matrix) -> tuple[Matrix, Matrix]:
        """L_row = CAST(L21), U_col = CAST(U)."""
        kernels, precision = self._kernels, self._precision
        (m, jb), n = panel.L21_row.shape, U.shape[1]
        if self._step != panel.step.k:
            L21_row = self._by_rows[:m, :jb]  # panels lie by columns, and are cast by rows
            kernels.copy(panel.L21_row, L21_row)
            self._L_row = kernels.operand_matrix(self._L, m, jb, precision, "left")
            kernels.cast(L21_row, self._L_row, precision)
            self._step = panel.step.k
        U_col = kernels.operand_matrix(self._U, jb, n, precision, "right")
        kernels.cast(U, U_col, precision)
        return self._L_row, U_col
