"""Execute the schedule of an LU: look-ahead, updates in pieces, checkpoints, and communication in flight.

`lu.py` and `pivoted_lu.py` implement the operations; `layout/lu_schedule.py` defines their order and their overlaps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import sched_yield
from typing import Protocol

from mxpeak.comm.base import Steps, Task
from mxpeak.distributed.dense import DistMatrix
from mxpeak.errors import StoppedError
from mxpeak.kernels.contract import Kernels, Matrix
from mxpeak.layout.lu_schedule import LuEvent, LuOverlap, LuStep, Sections, execute, lu_schedule, lu_steps
from mxpeak.perf.counts import lu_flops_done
from mxpeak.solvers.checkpointing import Checkpointer
from mxpeak.solvers.growth_monitor import DiagonalBlocks
from mxpeak.spans import Spans

#: Number of pieces of an update that hides communication, and their width in blocks while the update is wide. Each
#: piece packs L21 again, so narrow pieces cost more time than they hide.
LOOKS, PIECE_BLOCKS = 8, 4
#: Pieces end at multiples of this number of columns, which is at least the width of any library's inner loop.
GRAIN = 64


class InFlight(Protocol):
    """Communication that overlaps an update: a panel's broadcast, or row swaps."""

    def progress(self) -> bool:
        """Continue the communication without waiting; return whether it is complete on this rank."""


class StepPanels:
    """The panels of a step, which one task on the side stream computes and communicates, and the update with them.

    L_row, U_col   the operands of the update: a block column for this rank's rows, and a block row for its columns
    under_way      all computation and communication of the panels
    """

    L_row: Matrix
    U_col: Matrix
    under_way: Task

    def __init__(self, A: DistMatrix, step: LuStep, kernels: Kernels):
        self.step, self._A, self._kernels = step, A, kernels
        self._first_row, self._first_column = A.rows.local_start(step.j1), A.cols.local_start(step.j1)

    def start(self, steps: Steps) -> None:
        """Compute and send the panels as far as possible without waiting."""
        with self._kernels.side_stream():
            self.under_way = Task(steps)

    def progress(self) -> bool:
        """Compute and send more of the panels without waiting; return whether they are complete on this rank."""
        if not self.under_way.done:
            with self._kernels.side_stream():
                self.under_way.test()
        return self.under_way.done

    def wait(self, spans: Spans) -> None:
        """Wait until the panels are complete on this rank."""
        with self._kernels.side_stream():
            self.under_way.wait(lambda: spans("bcast"))
        self._kernels.join()

    def update(self, rows: slice, cols: slice, spans: Spans) -> None:
        """Subtract L_row U_col from these local rows and columns of A22."""
        A22 = self._A.local[rows, cols]
        L_row = self.L_row[rows.start - self._first_row : rows.stop - self._first_row]
        U_col = self.U_col[:, cols.start - self._first_column : cols.stop - self._first_column]
        with spans("gemm", flops=2.0 * A22.shape[0] * A22.shape[1] * self.step.jb):
            self._kernels.subtract_product(A22, L_row, U_col)


class Pipeline(ABC):
    """A factorization in progress, which executes the schedule with the operations of a subclass.

    in_flight   the pending operations, by the key of their event
    """

    def __init__(
        self, A: DistMatrix, kernels: Kernels, spans: Spans, blocks: DiagonalBlocks | None, checkpointer: Checkpointer
    ):
        self.A, self.kernels, self.spans, self.blocks, self.checkpointer = A, kernels, spans, blocks, checkpointer
        self.steps = lu_steps(A.rows.n, A.nb, A.grid.P, A.grid.Q)
        end = A.local.shape[1]  # the additional columns, such as checksums, are to the right of A
        self.sections = Sections(self.steps, A.cols.local_start, end, end)
        self.in_flight: dict[tuple[str, int, int], InFlight] = {}

    def run(self, overlap: LuOverlap) -> None:
        """Execute all steps after those of a checkpoint, and report the latter as done. Collective over the grid."""
        count, first = len(self.steps), self.checkpointer.first_step
        if first > 0:
            self.spans.step(first, count, self.flops_done(self.steps[first - 1].j1))
        execute(lu_schedule(count, overlap, first, lambda k: self.checkpointer.is_due(k, count)), self)

    @abstractmethod
    def prepare(self, event: LuEvent) -> None:
        """Apply the update of the previous step to a panel's columns."""

    @abstractmethod
    def factor(self, event: LuEvent) -> None:
        """Factor a panel and begin its broadcast."""

    @abstractmethod
    def await_panel(self, event: LuEvent) -> None:
        """Wait for a panel."""

    @abstractmethod
    def update(self, event: LuEvent) -> None:
        """Update a section of the trailing matrix, and continue the overlapping communication between the pieces."""

    @abstractmethod
    def notes(self) -> Mapping[str, Sequence[float]]:
        """Return the state that a checkpoint needs in addition to A."""

    def overlapping(self, event: LuEvent) -> list[InFlight]:
        """Return the overlapping operations of an event that are in flight."""
        return [self.in_flight[other.key] for other in event.overlaps if other.key in self.in_flight]

    def flops_done(self, columns: int) -> float:
        """Return the flops of the factorization of the first columns and of their updates."""
        n = self.A.rows.n
        return lu_flops_done(n, n - columns)

    def end_step(self, event: LuEvent) -> None:
        """Report the end of a step; if the run is stopped, first complete the pending operations."""
        step = self.steps[event.k]
        try:
            self.spans.step(step.k + 1, len(self.steps), self.flops_done(step.j1))
        except StoppedError:
            for operation in self.in_flight.values():
                while not operation.progress():
                    sched_yield()
            raise

    def save(self, event: LuEvent) -> None:
        """Write a checkpoint of A in its state after a step."""
        blocks = {} if self.blocks is None else {"blocks": self.blocks.values()}
        self.kernels.wait()
        self.checkpointer.save(event.k + 1, {**self.notes(), **blocks})


def column_chunks(columns: int, nb: int, arrived: Callable[[], bool], *, fixed: bool) -> Iterator[tuple[int, int]]:
    """Yield the columns of an update as ranges c0:c1, and call `arrived()` before each until it returns True.

    Once it returns True, no communication is pending, and the remaining columns are one piece. Until then, no piece
    except a single block is more than half of the remaining columns, so that work is left to hide messages that arrive
    late.

    `fixed` makes the pieces independent of arrivals: a half, a quarter and a quarter of the columns. Use it for
    libraries in which the pieces of a product change its rounding; otherwise the results would depend on timing.
    """
    width = columns if fixed else max(-(-columns // LOOKS), PIECE_BLOCKS * nb)
    least = max(nb, columns // 4) if fixed else nb
    c0, here = 0, False
    while c0 < columns:
        here = here or arrived()
        half = max(-(-(columns - c0) // 2), least)
        cut = c0 + max(min(width, half) // GRAIN, 1) * GRAIN
        last = columns - cut < least // 2 if fixed else here
        c1 = columns if last else min(cut, columns)
        yield c0, c1
        c0 = c1
