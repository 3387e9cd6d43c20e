"""Factor a panel in its process column (FACT), and broadcast it along process rows (LBCAST; rocHPL §II, fig. 2)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from mxpeak.comm.base import Task
from mxpeak.comm.broadcast import AHEAD, broadcast, one_ring_modified
from mxpeak.comm.exchange import allreduce_by
from mxpeak.distributed.dense import DistMatrix
from mxpeak.kernels.contract import Kernels
from mxpeak.kernels.contract.lu import Panel, better_candidate
from mxpeak.layout.lu_schedule import LuStep
from mxpeak.layout.panel_plan import panel_plan
from mxpeak.layout.row_moves import LocalMoves, local_moves, row_moves
from mxpeak.spans import Spans


@dataclass(frozen=True, slots=True)
class PanelOptions:
    """HPL's parameters for factoring and broadcasting panels: PFACT, RFACT, NBMIN, NDIV and BCAST."""

    pfact: str = "left"
    rfact: str = "right"
    nbmin: int = 16
    ndiv: int = 2
    bcast: str = "1ringM"


#: Number of entries in a cache line.
_LINE = {"fp64": 8, "fp32": 16}


def _whole_lines(size: int, precision: str) -> int:
    """Return a size rounded up to whole cache lines, so that the data after it starts on a cache line."""
    return -(-size // _LINE[precision]) * _LINE[precision]


class FactoredPanel:
    """A panel that is broadcast to this rank and contains L11 (with U11), L21_row and the row moves.

    One message contains the whole panel: the jb×jb block L1, the pivots, a flag for a singular column, and the panel's
    rows of this process row, in column-major order. On the owner of the block row, the first jb of these rows are
    unused, and L21 follows them. Pivots are row numbers in A's type: fp32 represents row numbers below 2^24.

    ahead   whether the host factors the panel for a device; it then sends the pivots first, so that row swaps can begin
    """

    def __init__(self, A: DistMatrix, step: LuStep, buffer: Any, kernels: Kernels, *, ahead: bool = False):
        self.step, self._ahead = step, ahead
        self._A, self._kernels = A, kernels
        jb, m = step.jb, A.rows.local_size - A.rows.local_start(step.j0)
        square = kernels.panel_size(jb, jb, A.precision)
        head = square + _whole_lines(jb + 1, A.precision)
        self._top = jb if A.grid.p == step.p else 0
        self.L11 = kernels.panel(buffer, jb, jb)
        self._tail = buffer[square : square + jb + 1]
        self.rows = kernels.panel(buffer[head:], m, jb)
        self.L21_row = self.rows[self._top :]
        self._message = buffer[: head + kernels.panel_size(m, jb, A.precision)]
        self._broadcast: Task | None = None
        self._numbers = kernels.host_numbers(jb + 1)
        self._messenger: Task | None = None  # the broadcast of the pivots, before that of the panel
        self._pivots: Callable[[], list[float]] | None = None
        self._rows: list[int] | None = None  # the numbers that `_pivots` returns
        self._moves: LocalMoves | None = None
        self._work: Panel | None = None

    @staticmethod
    def buffer_size(A: DistMatrix, kernels: Kernels) -> int:
        """Return the size of this rank's longest message: L1, pivots, flag, and the rows of the first step."""
        jb, stored = min(A.nb, A.rows.n), A.precision
        square, rows = (kernels.panel_size(m, jb, stored) for m in (jb, A.rows.local_size))
        return square + _whole_lines(jb + 1, stored) + rows

    def load(self, spans: Spans) -> None:
        """Copy the panel's columns of A to the message buffer on the ranks that factor the panel."""
        with spans("copy"):
            self._kernels.copy(self._A[self.step.j0 :, self.step.j0 : self.step.j1], self.rows)

    def bring(self, options: PanelOptions, spans: Spans) -> None:
        """Begin to copy the loaded panel to the processor that factors the panel."""
        A, step = self._A, self.step
        plan = panel_plan(step.jb, options.nbmin, options.ndiv, options.rfact)
        il0 = A.rows.local_start(step.j0)
        work = Panel(self.rows, self.L11, self._tail, A.rows, il0, self._top, plan, options.pfact)
        with spans("rfact"), spans("transfer") if self._ahead else nullcontext():
            self._work = self._kernels.bring_panel(work)

    def factor(self, spans: Spans, look: Callable[[], object] | None = None) -> None:
        """Factor the loaded panel in the message buffer. Collective over the process column that owns the panel.

        Call `look` at every column, during the exchange of the pivot. Overwrite the block row in A with L11 and U11;
        L21 in A is not needed afterwards.
        """
        A, step, kernels = self._A, self.step, self._kernels
        column = A.grid.column

        def exchange(candidate: Any, received: Any) -> None:
            if look is not None:
                look()
            allreduce_by(column, candidate, received, better_candidate)

        assert self._work is not None, "the panel is loaded"
        with spans("rfact"):
            outcome = kernels.factor_panel(self._work, exchange if column.size > 1 else None)
        self._work = None
        if outcome.pivots is not None:
            self._numbers[:] = outcome.pivots
        spans.add("pfact", outcome.leaf_s, scattered=True)
        spans.add("mxswp", outcome.swap_s, scattered=True)
        if outcome.copied is not None:
            spans.between("transfer", *outcome.copied)

        if self._top:
            kernels.copy(self.L11, A[step.j0 : step.j1, step.j0 : step.j1])

    def store_l(self, spans: Spans) -> None:
        """Copy L21 of the factored panel to A, for right-hand sides that are solved later."""
        A, step = self._A, self.step
        with spans("copy"):
            self._kernels.copy(self.L21_row, A[step.j1 :, step.j0 : step.j1])

    def start_broadcast(self, options: PanelOptions) -> None:
        """Begin to broadcast the panel along the process rows. Collective over all ranks."""
        row, q = self._A.grid.row, self.step.q
        if row.size > 1:
            if self._ahead:
                self._messenger = Task(one_ring_modified(row, self._numbers, q, AHEAD))
            self._broadcast = Task(broadcast(options.bcast, row, self._message, q))

    def progress(self) -> bool:
        """Continue the broadcast without waiting; return whether it is complete on this rank."""
        return all([task is None or task.test() for task in (self._messenger, self._broadcast)])

    def wait(self, spans: Spans, look: Callable[[], object] | None = None) -> None:
        """Wait for the panel, and call `look` repeatedly during the wait."""
        self.wait_for_pivots(spans, look)
        self._wait_for(self._broadcast, spans, look)

    def wait_for_pivots(self, spans: Spans, look: Callable[[], object] | None = None) -> None:
        """Wait for the pivots, which arrive before the panel or with it, and call `look` repeatedly during the wait."""
        self._wait_for(self._messenger if self._ahead else self._broadcast, spans, look)
        if self._pivots is None:
            self.fetch_pivots()

    @staticmethod
    def _wait_for(task: Task | None, spans: Spans, look: Callable[[], object] | None) -> None:
        if task is not None and not task.done:
            with spans("bcast"):
                if look is None:
                    task.wait()
                else:
                    task.wait_polling(look)

    def fetch_pivots(self) -> None:
        """Begin to copy the pivots to the host, which processes them while the device continues with other work."""
        self._pivots = self._numbers.tolist if self._ahead else self._kernels.fetch(self._tail)

    @property
    def pivots(self) -> list[int]:
        """Return the source rows of the pivots, followed by 1 + the first column of the panel without a pivot, or 0."""
        if self._rows is None:
            assert self._pivots is not None, "the panel is here"
            self._rows = [int(row) for row in self._pivots()]
        return self._rows

    @property
    def singular(self) -> int:
        """Return 1 + the global column without a nonzero pivot, or 0 if all columns have a pivot."""
        column = self.pivots[-1]
        return self.step.j0 + column if column else 0

    @property
    def moves(self) -> LocalMoves:
        """Return the panel's row swaps for this process row, computed on first use."""
        if self._moves is None:
            self._moves = local_moves(row_moves(self.step.j0, self.pivots[:-1]), self.step.j0, self._A.rows)
        return self._moves
