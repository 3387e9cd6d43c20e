"""Apply a panel's row swaps to a section of columns and assemble U there (RS; rocHPL §II, fig. 2c).

With one process row, the rows move in place, and U is the block row itself. Otherwise, the owner of the block row
scatters the rows that leave the block row, and all ranks gather the rows that become U. These are different rows, so
scatterv and allgatherv run at the same time. Gathering and scattering rows in memory are separate from the
communication, so that an update can hide the communication (§III-C).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mxpeak.comm.base import Task, behind, together
from mxpeak.comm.exchange import gather_everywhere_binary, gather_everywhere_ring, scatter
from mxpeak.distributed.dense import DistMatrix
from mxpeak.kernels.contract import Kernels, Matrix
from mxpeak.solvers.lu.panel import FactoredPanel
from mxpeak.spans import Spans

TAG = 7200


@dataclass(frozen=True, slots=True)
class SwapOptions:
    """The algorithm of the row swaps, as HPL's SWAP parameter selects it.

    bin    binary exchange
    long   spread and roll
    mix    binary exchange for sections of at most `threshold` columns, otherwise spread and roll
    """

    swap: str = "mix"
    threshold: int = 64

    def binary(self, columns: int) -> bool:
        """Return whether a section of `columns` local columns is swapped by binary exchange."""
        return self.swap == "bin" or (self.swap == "mix" and columns <= self.threshold)


@dataclass(frozen=True, slots=True)
class SwapBuffers:
    """The message tag and the buffers for the row swaps of one section of columns.

    U        the new content of the block row
    into_u   the rows that become U, grouped by the process row that sends them
    out      the rows that leave the block row, grouped by the process row that receives them

    Two sections whose messages are sent at the same time need separate tags and buffers.
    """

    tag: int
    U: Any
    into_u: Any
    out: Any


def swap_buffers(A: DistMatrix, columns: int, section: int, kernels: Kernels) -> SwapBuffers | None:
    """Return the buffers of a section with at most `columns` local columns, or None if rows move in place."""
    if A.grid.P == 1:
        return None
    size = A.nb * columns
    U, into_u, out = (kernels.buffer(size, A.precision) for _ in range(3))
    return SwapBuffers(TAG + 3 * section, U, into_u, out)


class RowSwap:
    """The row swaps of one panel in local columns c0:c1; call gather, start and finish in this order.

    Afterwards, `U` is the new content of the block row on every rank of the process column. On the owner of the block
    row, U is stored in A.

    gathered   the event that marks the end of `gather` on the device
    updated    the number of columns, from c0, that UPDATE has finished; None until U12 is computed
    """

    def __init__(
        self, A: DistMatrix, panel: FactoredPanel, c0: int, c1: int, buffers: SwapBuffers | None, kernels: Kernels
    ):
        self.c0, self.columns = c0, c1 - c0
        self.updated: int | None = None
        self._section = A.local[:, c0:c1]
        self._column, self._p = A.grid.column, panel.step.p
        self._moves = panel.moves
        self._kernels, self._buffers = kernels, buffers
        self._jb = panel.step.jb
        self._task: Task | None = None
        self.gathered: Any = None
        if buffers is None or self._column.rank == self._p:
            self.U: Matrix = self._section[self._moves.block]
        else:
            self.U = self._shaped(buffers.U, self._jb)

    def _shaped(self, buffer: Any, rows: int) -> Matrix:
        return self._kernels.xp.reshape(buffer[: rows * self.columns], (rows, self.columns))

    def gather(self, spans: Spans) -> None:
        """Copy the rows that will be sent from A to the buffers, or permute the rows in place without buffers.

        Afterwards, other operations may change this section of A.
        """
        moves, kernels = self._moves, self._kernels
        with spans("laswp"), spans("moves"):
            if self._buffers is None:
                kernels.permute_rows(
                    self._section,
                    moves.block.start,
                    kernels.indices(moves.my_sources),
                    kernels.indices(moves.my_targets),
                    kernels.indices(moves.out_rows[0]),
                )
                return
            self._pieces = self._cut(self._buffers.into_u, moves.u_rows)
            self._out = self._cut(self._buffers.out, moves.out_rows)
            me = self._column.rank
            self._gather(self._section, moves.my_sources, self._pieces[me])
            if me == self._p:
                block = self._section[moves.block]
                for rows, piece in zip(moves.out_rows, self._out):
                    self._gather(block, rows, piece)
        self.gathered = kernels.stopwatch.mark()

    def _cut(self, buffer: Any, rows: list[list[int]]) -> list[Any]:
        """Divide a buffer into one contiguous piece per process row."""
        pieces, begin = [], 0
        for part in rows:
            end = begin + len(part) * self.columns
            pieces.append(buffer[begin:end])
            begin = end
        return pieces

    def _gather(self, source: Matrix, rows: list[int], piece: Any) -> None:
        if rows:
            self._kernels.gather_rows(source, self._kernels.indices(rows), self._shaped(piece, len(rows)))

    def start(self, options: SwapOptions, before: RowSwap | None = None) -> None:
        """Begin to send the rows, after the rows of `before` have arrived. Collective over the process column.

        If a device's stream waits for the rows of `before`, send immediately, because the stream already orders the
        messages.
        """
        if self._buffers is None or self.columns == 0:
            return
        gather = gather_everywhere_binary if options.binary(self.columns) else gather_everywhere_ring
        column, out, tag = self._column, self._out, self._buffers.tag
        steps = together(scatter(column, out, out[column.rank], self._p, tag), gather(column, self._pieces, tag))
        first = None if before is None else before._task
        self._task = Task(steps if first is None or first.in_stream else behind(first, steps))

    def progress(self) -> bool:
        """Continue the communication without waiting; return whether it is complete on this rank."""
        return self._task is None or self._task.test()

    def ready(self) -> bool:
        """Continue the communication; return whether the host can continue without waiting for the rows."""
        return self._task is None or self._task.test() or self._task.in_stream

    def finish(self, spans: Spans) -> None:
        """Wait for the rows, write the moved rows to A, and assemble U."""
        if self._buffers is None or self.columns == 0:
            return
        with spans("laswp"):
            assert self._task is not None
            self._task.wait()
            me, moves = self._column.rank, self._moves
            with spans("moves"):
                self._scatter(self._out[me], moves.my_targets, self._section)
                for piece, rows in zip(self._pieces, moves.u_rows):
                    self._scatter(piece, rows, self.U)

    def _scatter(self, piece: Any, rows: list[int], target: Matrix) -> None:
        if rows:
            self._kernels.scatter_rows(self._shaped(piece, len(rows)), self._kernels.indices(rows), target)
