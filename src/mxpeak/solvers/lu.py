"""HPL-MxP's factorization: blocked LU without pivoting, in mixed precision, on a P×Q grid (OLCF Algorithm 1).

A is stored in FP32.  Step k, with A11 the diagonal block (lines 7-29 of the algorithm):

    A11 = L11 U11                                       factored where it lies, sent along its process row and column
    L21 = A21 U11^-1,   L_row = CAST(L21)               sent along the process rows
    U12 = L11^-1 A12,   U_col = CAST(U12)               sent along the process columns
    A22 = A22 - L_row U_col                             operands in the low precision, sums in FP32

L and U themselves stay in FP32 where A was; only what the update multiplies is rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mxpeak.comm.base import Task, wait_for
from mxpeak.comm.broadcast import library_nonblocking, start_broadcast
from mxpeak.distributed.matrix import DistMatrix
from mxpeak.distributed.vectors import largest
from mxpeak.kernels.contract import Kernels, Matrix, Vector
from mxpeak.layout.schedule import LuStep, lu_steps
from mxpeak.perf.counts import lu_flops_done
from mxpeak.spans import Spans

#: The pieces into which an update is cut while something is under way, and their least width in blocks: each piece
#: packs L_row anew, which narrow ones do not pay for.
LOOKS, PIECE_BLOCKS = 8, 4


@dataclass(frozen=True, slots=True)
class LuOptions:
    """The precision of the update's operands; and what does not change the result beyond rounding.

    forwards: whether ranks pass panels on to others: then the update is cut into pieces until the next panels have
    arrived, so that they are passed on soon; else only until this rank's part of them is made.
    """

    precision: str = "fp32"
    bcast: str = "1ringM"
    lookahead: int = 1
    forwards: bool = True


@dataclass(frozen=True, slots=True)
class StepBuffers:
    """Room for what one step sends: the diagonal block, L_row and U_col."""

    D: Any
    L: Any
    U: Any


def storage(precision: str) -> str:
    """What A, L and U are stored in for operands of a precision."""
    return "fp64" if precision == "fp64" else "fp32"


def factorize(A: DistMatrix, options: LuOptions, kernels: Kernels, spans: Spans) -> int:
    """Overwrite A by L (unit, below the diagonal) and U.  Returns 0, or 1 + the first column with a zero pivot.

    |ΔA| <= 2·u_low·|L||U| + N·u_32·|L||U|; 2/3 N³ flops.  Collective over the grid.
    """
    lu = _Lu(A, options, kernels, spans)
    lu.run()
    # The first column is the largest of the negatives.
    first = -int(largest(kernels, A.grid.all, [-float(lu.singular() or A.rows.n + 1)])[0])
    return first if first <= A.rows.n else 0


class _Lu:
    """One factorization under way."""

    def __init__(self, A: DistMatrix, options: LuOptions, kernels: Kernels, spans: Spans):
        self.A, self.options, self.kernels, self.spans = A, options, kernels, spans
        self.steps = lu_steps(A.rows.n, A.nb, A.grid.P, A.grid.Q)
        self.zero_pivots = kernels.zeros(len(self.steps))  # looked at when all is done: until then nobody waits
        self.buffers = [self._buffers() for _ in range(min(2, options.lookahead + 1))]

    def _buffers(self) -> StepBuffers:
        A, kernels, low = self.A, self.kernels, self.options.precision
        jb = min(A.nb, A.rows.n)
        stored = storage(low)
        return StepBuffers(
            kernels.vector(kernels.panel_size(jb, jb, stored), stored),
            kernels.operand(kernels.operand_size(A.rows.local_size, jb, low, "left"), low),
            kernels.operand(kernels.operand_size(jb, A.cols.local_size, low, "right"), low),
        )

    def run(self) -> None:
        """All steps; with look-ahead the next one's panels are made and sent while this one's update goes on.

        On a device they are made beside it.
        """
        panels = self.begin(self.steps[0]) if self.steps else None
        for step, following in zip(self.steps, [*self.steps[1:], None]):
            assert panels is not None
            panels.wait(self.spans)
            upcoming = None
            if following and self.options.lookahead:
                self.update_ahead(panels, following)
                with self.kernels.side_stream():
                    upcoming = self.begin(following)
                self.update(panels, following.j1, following.j1, upcoming)
            else:
                self.update(panels, step.j1, step.j1)
                upcoming = self.begin(following) if following else None
            n = self.A.rows.n
            self.spans.step(step.k + 1, len(self.steps), lu_flops_done(n, n - step.j1))
            panels = upcoming

    def begin(self, step: LuStep) -> StepPanels:
        """Start step's panels: made at once on the diagonal block's owner, elsewhere as soon as the block is there.

        Collective over the grid.
        """
        buffers, zero_pivot = self.buffers[step.k % len(self.buffers)], self.zero_pivots[step.k : step.k + 1]
        panels = StepPanels(self.A, step, buffers, zero_pivot, self.options, self.kernels)
        panels.start(self.spans)
        return panels

    def singular(self) -> int:
        """1 + the first column for which this rank found a zero pivot; 0 if there is none."""
        found = self.kernels.floats(self.zero_pivots)
        return next((step.j0 + int(column) for step, column in zip(self.steps, found) if column), 0)

    def update_ahead(self, panels: StepPanels, following: LuStep) -> None:
        """The next step's block column, on its process column, and the rest of its block row, on its process row."""
        grid = self.A.grid
        if grid.q == following.q:
            self.subtract(panels, (following.j0, None), (following.j0, following.j1))
        if grid.p == following.p:
            self.subtract(panels, (following.j0, following.j1), (following.j1, None))

    def update(self, panels: StepPanels, i: int, j: int, under_way: StepPanels | None = None) -> None:
        """A22 -= L_row U_col on rows from i and columns from j, with a look at the panels that are under way before
        each piece: a rank that waits for the diagonal block makes its panels when it comes, and others may wait for it.
        """
        rows, cols = self.A.rows, self.A.cols
        begin, end = cols.local_start(j), cols.local_size
        piece = max(-(-(end - begin) // LOOKS), PIECE_BLOCKS * self.A.nb)
        while begin < end:
            arrived = under_way is None or under_way.progress(self.spans)
            alone = arrived or (not self.options.forwards and under_way is not None and under_way.made)
            upto = end if alone else min(end, begin + piece)
            self.subtract_local(panels, rows.local_start(i), rows.local_size, begin, upto)
            begin = upto

    def subtract(self, panels: StepPanels, i: tuple[int, int | None], j: tuple[int, int | None]) -> None:
        """A -= L_row U_col on global rows i and columns j; None: to the end."""
        rows, cols = self.A.rows, self.A.cols
        i1, j1 = (rows.n if i[1] is None else i[1]), (cols.n if j[1] is None else j[1])
        self.subtract_local(
            panels, rows.local_start(i[0]), rows.local_start(i1), cols.local_start(j[0]), cols.local_start(j1)
        )

    def subtract_local(self, panels: StepPanels, r0: int, r1: int, c0: int, c1: int) -> None:
        """The same on local rows r0:r1 and columns c0:c1."""
        first_row, first_column = panels.first_row, panels.first_column
        L_row, U_col = (
            panels.L_row[r0 - first_row : r1 - first_row],
            panels.U_col[:, c0 - first_column : c1 - first_column],
        )
        with self.spans("gemm", flops=2.0 * (r1 - r0) * (c1 - c0) * panels.step.jb):
            self.kernels.subtract_product(self.A.local[r0:r1, c0:c1], L_row, U_col)


class StepPanels:
    """A step's diagonal block and panels: made where they lie, on their way, and once here L_row and U_col."""

    def __init__(
        self, A: DistMatrix, step: LuStep, buffers: StepBuffers, zero_pivot: Vector, options: LuOptions,
        kernels: Kernels,
    ):  # fmt: skip
        self.step, self._zero_pivot = step, zero_pivot
        self._A, self._options, self._kernels = A, options, kernels
        jb = step.jb
        self.first_row, self.first_column = A.rows.local_start(step.j1), A.cols.local_start(step.j1)
        m, n = A.rows.local_size - self.first_row, A.cols.local_size - self.first_column
        self.D: Matrix = kernels.panel(buffers.D, jb, jb)
        self._D_message = buffers.D[: kernels.panel_size(jb, jb, storage(options.precision))]
        low = options.precision
        self._L_message = buffers.L[: kernels.operand_size(m, jb, low, "left")]
        self._U_message = buffers.U[: kernels.operand_size(jb, n, low, "right")]
        self.L_row: Matrix = kernels.left_operand(buffers.L, m, jb)
        self.U_col: Matrix = kernels.right_operand(buffers.U, jb, n)
        self.made = False  # this rank's part of the panels
        self._block: list[Task] = []  # the diagonal block on its way to here
        self._tasks: list[Task] = []

    @property
    def _in_row(self) -> bool:
        return self._A.grid.p == self.step.p

    @property
    def _in_column(self) -> bool:
        return self._A.grid.q == self.step.q

    def start(self, spans: Spans) -> None:
        """Factor the diagonal block where it lies, send or await it, and await the panels that others make."""
        grid, step, low = self._A.grid, self.step, self._options
        owner = self._in_row and self._in_column
        if owner:
            self._factor_diagonal(spans)
        # The block's owner goes on, and looks after the sending later; the others can make nothing before they have it.
        block = self._tasks if owner else self._block
        if self._in_row and grid.Q > 1:
            block.append(Task(library_nonblocking(grid.row, self._D_message, step.q)))
        if self._in_column and grid.P > 1:
            block.append(Task(library_nonblocking(grid.column, self._D_message, step.p)))
        if not self._in_column and grid.Q > 1:
            self._tasks.append(start_broadcast(low.bcast, grid.row, self._L_message, step.q))
        if not self._in_row and grid.P > 1:
            self._tasks.append(start_broadcast(low.bcast, grid.column, self._U_message, step.p))
        self.progress(spans)

    def _factor_diagonal(self, spans: Spans) -> None:
        """A11 = L11 U11 (lines 7-9)."""
        A, step, kernels = self._A, self.step, self._kernels
        A11 = A[step.j0 : step.j1, step.j0 : step.j1]
        with spans("factor", flops=2.0 / 3.0 * step.jb**3):
            kernels.copy(A11, self.D)
            kernels.factor_block(self.D, self._zero_pivot)
            kernels.copy(self.D, A11)

    def _make(self, spans: Spans) -> None:
        """L21 = A21 U11^-1 and U12 = L11^-1 A12, rounded for the update, on their way (lines 11-28)."""
        A, step, kernels, low = self._A, self.step, self._kernels, self._options
        if self._in_column:
            L21 = A[step.j1 :, step.j0 : step.j1]
            with spans("trsm", flops=float(L21.shape[0] * step.jb**2)):
                kernels.solve_right_upper(L21, self.D)
            with spans("cast"):
                kernels.cast(L21, self.L_row, low.precision)
            if A.grid.Q > 1:
                self._tasks.append(start_broadcast(low.bcast, A.grid.row, self._L_message, step.q))
        if self._in_row:
            U12 = A[step.j0 : step.j1, step.j1 :]
            with spans("trsm", flops=float(U12.shape[1] * step.jb**2)):
                kernels.solve_unit_lower(self.D, U12)
            with spans("cast"):
                kernels.cast(U12, self.U_col, low.precision)
            if A.grid.P > 1:
                self._tasks.append(start_broadcast(low.bcast, A.grid.column, self._U_message, step.p))

    def progress(self, spans: Spans) -> bool:
        """Make this rank's part once the diagonal block is here, and drive what is on its way; whether all is here."""
        if not self.made and all([task.progress() for task in self._block]):
            self.made = True
            with self._kernels.side_stream():
                self._make(spans)
        return all([task.progress() for task in self._tasks]) and self.made

    def wait(self, spans: Spans) -> None:
        """Have both panels here."""
        with spans("bcast"):
            wait_for(self._block, self._tasks)
        self.progress(spans)
        with spans("bcast"):
            wait_for(self._tasks)
        self._kernels.join()
