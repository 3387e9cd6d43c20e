"""Blocked factorization A = L S L^T on a P×Q grid, right-looking with look-ahead, of the lower triangle of A.

S is a diagonal matrix of signs. Step k has the diagonal block A11:

    A11 = L11 S1 L11^T                  factored in place, sent along its process column
    L21 = A21 L11^-T S1                 sent along the process rows
    A22 = A22 - L21 S1 L21^T            the lower triangle; operands may be rounded, sums in the precision of A

A subclass factors the diagonal blocks: `cholesky.py` without signs, `block_ldl.py` for indefinite matrices.

A rank needs the rows of L21 that belong to its rows of A22 and, as a second operand, those that belong to its columns.
The latter are distributed over the ranks of its process column, which exchange them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mxpeak.comm.base import Steps
from mxpeak.comm.broadcast import broadcast
from mxpeak.comm.exchange import gather_everywhere_ring
from mxpeak.distributed.dense import DistMatrix
from mxpeak.kernels.contract import Kernels, Matrix, Vector
from mxpeak.layout.lu_schedule import ALL, LuEvent, LuOverlap, LuStep, looks_ahead
from mxpeak.solvers.checkpointing import NO_CHECKPOINTS
from mxpeak.solvers.lu.pipeline import GRAIN, Pipeline, StepPanels
from mxpeak.spans import Spans

TAG = 7701  # a multiple of FAMILY
#: Number of pieces of an update. A piece also updates entries above its diagonal, which adds 1/PIECES of the flops.
PIECES = 16


class _BreakdownError(Exception):
    """Ends the factorization on all ranks in the same step; `column` is counted from 1."""

    def __init__(self, column: int):
        super().__init__(column)
        self.column = column


class SymmetricElimination(Pipeline):
    """Implements the operations of the factorization, and owns its buffers.

    signed   whether the factorization has signs, which are sent with the panels
    """

    signed = False

    def __init__(self, A: DistMatrix, precision: str, kernels: Kernels, spans: Spans):
        super().__init__(A, kernels, spans, None, NO_CHECKPOINTS)
        self.lookahead = looks_ahead(1, A.grid.P * A.grid.Q, background=kernels.background)
        pieces = kernels.buffer(min(A.nb, A.rows.n) * A.cols.local_size, A.precision)
        tail = 1 + self.signed * min(A.nb, A.rows.n)
        self.buffers = [_StepBuffers(A, precision, pieces, tail, kernels) for _ in range(1 + self.lookahead)]
        self.panels: dict[int, SymmetricPanel] = {}

    def factorize(self) -> int:
        """Factor A in place; return 0, or the column, counted from 1, in which it broke down. Collective."""
        try:
            self.run(LuOverlap(self.lookahead))
        except _BreakdownError as error:
            return error.column
        return 0

    @abstractmethod
    def factor_block(self, A11: Matrix, to: SymmetricPanel) -> None:
        """Factor the diagonal block in place, and write the message: `to.D`, the signs and the breakdown."""

    @abstractmethod
    def divide(self, A21: Matrix, to: SymmetricPanel) -> None:
        """Compute L21 from A21 and `to.D`, and store it in A21 and in `to.L`."""

    def make_panel(self, step: LuStep, to: SymmetricPanel) -> Steps:
        """Compute L21, or receive it, and exchange the rows that belong to the columns of A22. Collective."""
        A11, A21, _ = self.A.partition(step)
        grid = self.A.grid
        if grid.q == step.q:
            if grid.p == step.p:
                self.factor_block(A11, to)
            yield from broadcast("ilib", grid.column, to.D_message, step.p)
            with self.spans("trsm", flops=float(A21.shape[0] * step.jb**2)):
                self.divide(A21, to)
            to.L_tail[...] = to.D_tail
        yield from broadcast("1ringM", grid.row, to.L_message, step.q)
        to.fill_own_message()
        yield from gather_everywhere_ring(grid.column, to.messages, TAG)
        to.make_operands(self.spans)

    def prepare(self, event: LuEvent) -> None:
        """Update the columns of the next panel on the process column that owns them."""
        step = self.steps[event.k]
        if self.A.grid.q == step.q:
            self.subtract(self.panels[event.k - 1], self.A.cols.local_range(step.j0, step.j1))

    def factor(self, event: LuEvent) -> None:
        """Compute and send a panel as far as possible without waiting."""
        step = self.steps[event.k]
        panel = SymmetricPanel(self.A, step, self.buffers[event.k % len(self.buffers)], self.kernels)
        panel.start(self.make_panel(step, panel))
        self.panels[event.k] = self.in_flight[event.key] = panel

    def await_panel(self, event: LuEvent) -> None:
        """Wait for a panel; end the factorization if its diagonal block broke down."""
        panel = self.panels[event.k]
        panel.wait(self.spans)
        self.in_flight.clear()
        if panel.breakdown:
            raise _BreakdownError(panel.step.j0 + panel.breakdown)

    def update(self, event: LuEvent) -> None:
        """Update the columns that `prepare` did not update, in pieces, between which the next panel makes progress."""
        panel, upcoming = self.panels[event.k], [self.panels[other.k] for other in event.overlaps]
        first = self.A.cols.local_start(self.steps[event.k + (event.section != ALL)].j1)
        end, nb = self.A.cols.local_size, self.A.nb
        width = -(-max((end - first) // PIECES, GRAIN) // nb) * nb
        for c0 in range(first, end, width):
            for following in upcoming:
                following.progress()
            self.subtract(panel, slice(c0, min(c0 + width, end)))

    def subtract(self, panel: SymmetricPanel, columns: slice) -> None:
        """Subtract L21 S1 L21^T from these local columns of A22, in the rows from the first of these columns."""
        if columns.start >= columns.stop:
            return
        rows, first = self.A.rows, self.A.cols.to_global(columns.start)
        panel.update(slice(rows.local_start(first), rows.local_size), columns, self.spans)

    def flops_done(self, columns: int) -> float:
        """Return half of the flops of an LU, because the upper triangle is not updated."""
        return super().flops_done(columns) / 2.0

    def end_step(self, event: LuEvent) -> None:
        """Report the end of a step and release its panel."""
        super().end_step(event)
        del self.panels[event.k]

    def notes(self) -> Mapping[str, Sequence[float]]:
        """Return no notes, because the factorization writes no checkpoints."""
        return {}


class _StepBuffers:
    """Memory for the messages and the operands of one step; `pieces` is only in use until the operands are complete.

    tail   the number of values at the end of the messages: the breakdown and the signs
    """

    def __init__(self, A: DistMatrix, precision: str, pieces: Any, tail: int, kernels: Kernels):
        jb, stored = min(A.nb, A.rows.n), A.precision
        m, n = A.rows.local_size, A.cols.local_size
        self.precision, self.rounds, self.pieces, self.signed = precision, precision != stored, pieces, tail > 1
        self.D: Any = kernels.buffer(kernels.panel_size(jb, jb, stored) + tail, stored)
        self.L: Any = kernels.buffer(kernels.panel_size(m, jb, stored) + tail, stored)
        self.L_T: Matrix = kernels.matrix(jb, n, stored)
        if self.rounds:
            self.by_rows: Matrix = kernels.matrix(m, jb, stored)
            self.left: Any = kernels.operand_buffer(m, jb, precision, "left")
            self.right: Any = kernels.operand_buffer(jb, n, precision, "right")


class SymmetricPanel(StepPanels):
    """The diagonal block and L21 of a step, as matrices and as messages, which end with the signs and the breakdown.

    D           the matrix with which `divide` computes L21
    D_tail      the end of the message: the diagonal of S1 if there are signs, and the breakdown
    L, L_T      the rows of L21 that belong to this rank's rows of A22, and to its columns, transposed
    messages    for each process row, the part of L_T that it sends to its process column
    """

    def __init__(self, A: DistMatrix, step: LuStep, buffers: _StepBuffers, kernels: Kernels):
        super().__init__(A, step, kernels)
        self._buffers, jb = buffers, step.jb
        tail = 1 + buffers.signed * jb
        m, n = A.rows.local_size - self._first_row, A.cols.local_size - self._first_column
        self.D: Matrix = kernels.panel(buffers.D, jb, jb)
        self.D_message = buffers.D[: kernels.panel_size(jb, jb, A.precision) + tail]
        self.D_tail: Vector = self.D_message[-tail:]
        self.L: Matrix = kernels.panel(buffers.L, m, jb)
        self.L_message = buffers.L[: kernels.panel_size(m, jb, A.precision) + tail]
        self.L_tail: Vector = self.L_message[-tail:]
        self.L_T: Matrix = buffers.L_T[:jb, :n]
        self.L_row, self.U_col = self.L, self.L_T
        self._blocks: list[list[tuple[slice, int]]] = [[] for _ in range(A.grid.P)]  # by process row, see `_parts`
        for columns, everywhere in A.cols.blocks():
            if everywhere.start >= step.j1:
                self._blocks[A.rows.owner(everywhere.start)].append((columns, everywhere.start))
        self.messages: list[Any] = []
        begin = 0
        for blocks in self._blocks:
            end = begin + jb * sum(columns.stop - columns.start for columns, _ in blocks)
            self.messages.append(buffers.pieces[begin:end])
            begin = end

    def _parts(self, p: int) -> Iterator[tuple[Matrix, slice, int]]:
        """Yield each block in the message of process row p, with its local columns of A and its first global index."""
        begin, jb = 0, self.step.jb
        for columns, j0 in self._blocks[p]:
            width = columns.stop - columns.start
            yield self.messages[p][begin : begin + jb * width].reshape((jb, width)), columns, j0
            begin += jb * width

    def fill_own_message(self) -> None:
        """Copy the rows of L that belong to columns of this process column to this rank's message."""
        rows = self._A.rows
        for block, _, j0 in self._parts(self._A.grid.p):
            begin = rows.to_local(j0) - self._first_row
            self._kernels.copy(self.L[begin : begin + block.shape[1]].T, block)

    def make_operands(self, spans: Spans) -> None:
        """Assemble S1 L_T from all messages, and round both operands if the update uses another precision than A."""
        kernels, buffers, (m, jb), n = self._kernels, self._buffers, self.L.shape, self.L_T.shape[1]
        for p in range(self._A.grid.P):
            for block, columns, _ in self._parts(p):
                begin = columns.start - self._first_column
                kernels.copy(block, self.L_T[:, begin : begin + block.shape[1]])
        if buffers.signed:
            self.L_T *= self.signs[:, None]
        if buffers.rounds:
            with spans("cast"):
                L = buffers.by_rows[:m, :jb]  # panels are stored by columns and cast by rows
                kernels.copy(self.L, L)
                self.L_row = kernels.operand_matrix(buffers.left, m, jb, buffers.precision, "left")
                self.U_col = kernels.operand_matrix(buffers.right, jb, n, buffers.precision, "right")
                kernels.cast(L, self.L_row, buffers.precision)
                kernels.cast(self.L_T, self.U_col, buffers.precision)

    @property
    def signs(self) -> Vector:
        """Return the diagonal of S1, without waiting for it; empty if the factorization has no signs."""
        return self.L_tail[:-1]

    @property
    def breakdown(self) -> int:
        """Return the column of the diagonal block, counted from 1, in which it broke down, or 0."""
        return int(self.L_tail[-1])
