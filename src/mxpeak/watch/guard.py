"""Whether a run is worth going on: not once the best that it can still reach is below its target.

The best that it can still reach is the whole work over the time so far and the least time that the rest can take: at
the best rate seen over any fiftieth of the work, or as a recorded run took it, whichever is shorter.  The rate of an LU
falls towards its end, so the best rate seen flatters the rest; a run is never ended that could have made it by its own
best.
"""

from __future__ import annotations

from mxpeak.records import rate_text, three_digits
from mxpeak.spans import Step
from mxpeak.watch.forecast import Forecast

#: Shares of the work: over which a rate is taken, and before which nothing is decided; and how many rates it takes: a
#: cold start is no verdict.
WINDOW, UNDECIDED, LEAST_WINDOWS = 0.02, 0.1, 3
#: By how much the rest may yet be faster than the best seen.
MARGIN = 1.02


class Guard:
    """Looks at each step of a computation, as an observer; `reason` says why to stop it, or None."""

    def __init__(self, target_flops: float):
        self.forecast: Forecast | None = None
        self._target = target_flops
        self.start("", 0.0)

    def start(self, label: str, total_flops: float) -> None:
        """A computation begins."""
        self._mark, self._best, self._windows = (0.0, 0.0), 0.0, 0
        self._reason: str | None = None

    def step(self, step: Step) -> None:
        """One more step is done."""
        elapsed_s, done_flops = self._mark
        if step.done_flops == 0.0:  # what came before the first step is over
            self._mark = (step.elapsed_s, 0.0)
        elif step.done_flops - done_flops >= WINDOW * step.total_flops and step.elapsed_s > elapsed_s:
            self._best = max(self._best, (step.done_flops - done_flops) / (step.elapsed_s - elapsed_s))
            self._mark = (step.elapsed_s, step.done_flops)
            self._windows += 1
        self._reason = self._judged(step)

    def finish(self, label: str, elapsed_s: float) -> None:
        """The computation ended; it can no longer be stopped."""
        self._reason = None

    def reason(self) -> str | None:
        """Why the computation should be stopped; None: it should go on."""
        return self._reason

    def _judged(self, step: Step) -> str | None:
        if self._windows < LEAST_WINDOWS or step.done_flops < UNDECIDED * step.total_flops:
            return None
        left_s = (step.total_flops - step.done_flops) / (MARGIN * self._best)
        how = f"at {three_digits(100 * MARGIN)} % of the best rate so far ({rate_text(self._best)})"
        if self.forecast is not None and (recorded_s := self.forecast.left(step.done_flops)) < left_s:
            left_s, how = recorded_s, "as in the baseline run"
        reachable = step.total_flops / (step.elapsed_s + left_s)
        if reachable >= self._target:
            return None
        share = three_digits(100 * step.done_flops / step.total_flops)
        return (
            f"{share} % of the work took {three_digits(step.elapsed_s)} s, and the rest needs {three_digits(left_s)} s "
            f"{how}, so the run reaches at most {rate_text(reachable)}, but --target is {rate_text(self._target)}"
        )
