"""Show the progress of a run: completed share, current and average rate, and remaining time.

On a terminal, a live line appears after two seconds. Plain lines appear instead, one per 5 % or 60 s, if the terminal
has no colors, with --progress always, or if --ranks was started on the terminal. If `stream` is not a terminal,
nothing is written unless --progress is `always`. The name of work before and after a computation, such as generating
and checking, appears after one second. --progress-interval sets the time between two lines or updates.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from threading import Timer
from typing import TYPE_CHECKING, TextIO

from mxpeak.records import rate_text, three_digits
from mxpeak.runtime.parent_watch import terminal_width
from mxpeak.spans import Step
from mxpeak.watch.forecast import ProgressForecast

if TYPE_CHECKING:
    from rich.live import Live

MAX_SAMPLES = 200
QUIET_S = 2.0
LINE_S, LINE_SHARE = 60.0, 0.05
LONG_S = 1.0
LIVE_S = 0.25


def is_terminal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Return whether `stream` is a terminal that can redraw a line; False if NO_COLOR is set or TERM is dumb."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


class Progress:
    """Shows progress on `stream`, and stores at most 200 samples (elapsed_s, done_flops) per computation.

    interval_s    time between two lines, or between two updates of the live line; None for the defaults
    """

    def __init__(self, stream: TextIO, environ: Mapping[str, str], mode: str = "auto", interval_s: float | None = None):
        self.forecast: ProgressForecast | None = None
        self.samples: list[tuple[float, float]] = []
        self._by_label: dict[str, list[tuple[float, float]]] = {}
        self._stream = stream
        if mode == "auto" and terminal_width(stream, environ) is None:  # rich also detects the terminal of --ranks
            mode = "never"
        self._mode, self._interval_s = mode, interval_s
        self._show_live = mode != "never" and is_terminal(stream, environ)
        self._live: Live | None = None
        self._soon: Timer | None = None
        self._reset()
        if self._show_live:
            import rich.live  # noqa: F401  (its import must not fall into a timed run)

    def start(self, label: str, total_flops: float) -> None:
        """Reset the samples for a computation of `total_flops` flops, and show its label on a live line."""
        self._done()
        self._reset()
        self._by_label[label] = self.samples
        if self._show_live:
            self._draw(label)

    def announce(self, text: str) -> None:
        """Show the name of work outside of computations.

        In plain output, the name appears only if the work takes longer than LONG_S or with --progress always.
        """
        self._done()
        if self._show_live:
            self._draw(text)
        elif self._mode == "always":
            self._print(text)
        elif self._mode != "never":
            self._soon = Timer(LONG_S, self._print, [text])
            self._soon.daemon = True
            self._soon.start()

    def _done(self) -> None:
        """Cancel the delayed output of `announce`."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None

    def _print(self, text: str) -> None:
        with suppress(OSError):  # a broken stderr must not end a run
            print(text, file=self._stream, flush=True)

    def samples_of(self, label: str | None) -> list[tuple[float, float]]:
        """Return the samples of the last computation, or of the last computation with this label."""
        return list(self.samples if label is None else self._by_label.get(label, []))

    def step(self, step: Step) -> None:
        """Store a sample of the step, and update the progress output if a line is due."""
        self._last = (step.elapsed_s, step.done_flops)
        self._sample()
        if self._mode != "never" and self._due(step):
            text = self._line(step)
            self._mark = self._last
            if self._show_live:
                self._draw(text)
            else:
                self._print(text)

    def finish(self, label: str, elapsed_s: float) -> None:
        """Remove the live line, and store the last sample."""
        if self._last[0] and (not self.samples or self.samples[-1] != self._last):
            self.samples.append(self._last)
        self.close()

    def close(self) -> None:
        """Remove the live line and restore the cursor."""
        self._done()
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _reset(self) -> None:
        self.samples = []
        self._stride = 1
        self._count = 0
        self._mark = (0.0, 0.0)
        self._last = (0.0, 0.0)

    def _sample(self) -> None:
        """Store every stride-th step as a sample. If there are too many, drop half of them and double the stride."""
        if self._count % self._stride == 0:
            self.samples.append(self._last)
        self._count += 1
        if len(self.samples) >= MAX_SAMPLES:
            del self.samples[1::2]
            self._stride *= 2

    def _due(self, step: Step) -> bool:
        elapsed_s, done_flops = self._mark
        if self._interval_s is not None:
            return step.elapsed_s - elapsed_s >= self._interval_s
        if self._mode == "auto" and step.elapsed_s < QUIET_S:
            return False
        if self._show_live:
            return step.elapsed_s - elapsed_s >= LIVE_S
        share = (step.done_flops - done_flops) / step.total_flops if step.total_flops else 0.0
        return share >= LINE_SHARE or step.elapsed_s - elapsed_s >= LINE_S

    def _line(self, step: Step) -> str:
        """Return the progress line. On a terminal, the line is cut after the last part that fits."""
        label, share, remaining, *others = filter(None, self._parts(step))
        if not self._show_live:
            return "  ".join([label, share, remaining, *others])
        width = shutil.get_terminal_size().columns - 1
        line = f"{_cut(label, width - len(share) - len(remaining) - 4)}  {share}  {remaining}"
        for part in others:
            if len(line) + 2 + len(part) > width:
                break
            line += f"  {part}"
        return line

    def _parts(self, step: Step) -> list[str]:
        """Return label, completed share, remaining time, difference from forecast, rates and elapsed time as texts."""
        elapsed_s, done_flops = self._mark
        mean = step.done_flops / step.elapsed_s if step.elapsed_s else 0.0
        now = (step.done_flops - done_flops) / max(step.elapsed_s - elapsed_s, 1e-9)
        difference = self.forecast.compared(step.elapsed_s, step.done_flops) if self.forecast else ""
        return [*how_far(step), difference, f"now {rate_text(now)}", f"mean {rate_text(mean)}", since(step)]

    def _draw(self, text: str) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            console = Console(file=self._stream, force_terminal=True)
            # A refresh thread would take time from the computing cores. stdout is not redirected, because it may be a
            # file that must receive all output.
            self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)
            self._live.start()
        self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"


def how_far(step: Step) -> list[str]:
    """Return three texts: the label, the completed share, and the remaining time at the average rate."""
    share = step.done_flops / step.total_flops if step.total_flops else 0.0
    left_s = step.elapsed_s * (1.0 / share - 1.0) if share else 0.0
    return [step.label, f"{100 * share:3.0f} %", f"{duration(left_s)} left"]


def since(step: Step) -> str:
    """Return text with the elapsed time and the expected total time, such as "20 s of ~3 min 20 s"."""
    share = step.done_flops / step.total_flops if step.total_flops else 0.0
    return f"{duration(step.elapsed_s)} of ~{duration(step.elapsed_s / share)}" if share else duration(step.elapsed_s)


def duration(seconds: float) -> str:
    """Format a duration, such as 8.25 s, 3 min 20 s or 5 h 02 min."""
    if seconds < 60:
        return f"{three_digits(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
