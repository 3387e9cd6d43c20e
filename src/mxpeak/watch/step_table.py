"""Show the steps of a run as a table: the rates, and the time of each phase since the previous row.

By default, a row contains the steps of at least ROW_S seconds, so that a run with thousands of short steps remains
readable.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TextIO

from mxpeak.records import rate_text, three_digits
from mxpeak.spans import Step
from mxpeak.watch.progress import Progress

ROW_S = 0.1
#: Widths of the columns before the phases, and the minimum width of a phase column.
WIDTHS, PHASE_WIDTH = (11, 6, 9, 13, 13), 8


class StepTable(Progress):
    """Prints a table of steps on `stream`. Phases in `skipped` contain other phases and have no column."""

    def __init__(
        self, stream: TextIO, environ: Mapping[str, str], skipped: Collection[str] = (), interval_s: float | None = None
    ):
        super().__init__(stream, environ, "always", ROW_S if interval_s is None else interval_s)
        self._show_live, self._skipped = False, skipped
        self._columns: list[str] = []
        self._step: Step | None = None
        self._phases: dict[str, float] = {}
        self._phases_shown: dict[str, float] = {}

    def start(self, label: str, total_flops: float) -> None:
        """Reset the table for a new computation, and print its label."""
        super().start(label, total_flops)
        self._columns, self._step, self._phases, self._phases_shown = [], None, {}, {}
        self._print(f"{label}; rate, and seconds per phase, since the previous row")

    def step(self, step: Step) -> None:
        """Store a sample of the step, and print a row if the interval has passed since the previous row."""
        self._last = (step.elapsed_s, step.done_flops)
        self._sample()
        self._step, self._phases = step, self._seconds(step)
        if self._due(step):
            self._print_row(step)

    def finish(self, label: str, elapsed_s: float) -> None:
        """Print the row of the remaining steps, and of the work after them or of the estimate that was too large.

        After the last step of an LU, the solution is computed, which counts the rest of the flops. The number of steps
        of an iterative solver is an estimate until the solver ends.
        """
        step = self._step
        if step is not None:
            fewer, remaining = step.index < step.count, step.done_flops > self._mark[1]
            if remaining:
                self._print_row(replace(step, count=step.index, total_flops=step.done_flops) if fewer else step)
            elif fewer:
                self._print(f"finished after {step.index} steps; mxpeak expected {step.count}")
            if not fewer and step.total_flops > step.done_flops:
                self._phases = self._seconds(step)
                self._print_row(replace(step, done_flops=step.total_flops, elapsed_s=elapsed_s), "end")
        super().finish(label, elapsed_s)

    def _seconds(self, step: Step) -> dict[str, float]:
        """Return the time of each phase that has a column, until now."""
        return {name: phase.time_s for name, phase in step.phases.items() if name not in self._skipped}

    def _print_row(self, step: Step, index: str = "") -> None:
        """Print the rates and the time per phase since the previous row, below a new header if there is a new phase."""
        phases = self._phases
        spent = {name: time_s - self._phases_shown.get(name, 0.0) for name, time_s in phases.items()}
        new = [name for name, time_s in spent.items() if time_s > 0.0 and name not in self._columns]
        if new or self._mark == (0.0, 0.0):
            self._columns += new
            self._print(self._cells(["step", "done", "time", "rate", "mean"], self._columns))
        seconds, flops = step.elapsed_s - self._mark[0], step.done_flops - self._mark[1]
        share = 100 * step.done_flops / step.total_flops if step.total_flops else 0.0
        cells = [
            index or f"{step.index}/{step.count}",
            f"{share:.0f} %",
            f"{three_digits(step.elapsed_s)} s",
            rate_text(flops / max(seconds, 1e-9)),
            rate_text(step.done_flops / max(step.elapsed_s, 1e-9)),
        ]
        self._print(self._cells(cells, [f"{spent.get(name, 0.0):.4f}" for name in self._columns]))
        self._mark, self._phases_shown = (step.elapsed_s, step.done_flops), phases

    def _cells(self, cells: list[str], phases: list[str]) -> str:
        """Join cells and phase times to one line of the table, with aligned columns."""
        widths = [max(PHASE_WIDTH, len(name)) for name in self._columns]
        return "  ".join(cell.rjust(width) for cell, width in zip([*cells, *phases], [*WIDTHS, *widths]))
