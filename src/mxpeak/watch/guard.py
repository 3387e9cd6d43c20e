"""Stop a run if the best rate that it can still reach is below its target.

The best reachable rate is the total work divided by the sum of the elapsed time and the minimum time for the remaining
work. The minimum time assumes the best rate measured over any fiftieth of the work, or the pace of a recorded run,
whichever is faster. The rate of an LU decreases towards its end, so this assumption overestimates the remaining rate.
Therefore, a run that can reach the target is never stopped.
"""

from __future__ import annotations

from mxpeak.records import rate_text, three_digits
from mxpeak.spans import Step
from mxpeak.watch.forecast import ProgressForecast

#: Share of the work over which a rate is measured, share of the work before which a run is never stopped, and number
#: of measured rates that a decision needs. The first rates are not representative, because the machine is cold.
WINDOW, UNDECIDED, MIN_WINDOWS = 0.02, 0.1, 3
#: Factor by which the remaining work may be faster than the best measured rate.
MARGIN = 1.02


class Guard:
    """Observes the steps of a computation, and decides whether the target rate can still be reached."""

    def __init__(self, target_flops: float):
        self.forecast: ProgressForecast | None = None
        self._target = target_flops
        self.start("", 0.0)

    def start(self, label: str, total_flops: float) -> None:
        """Reset the measured rates for a new computation."""
        self._mark, self._best, self._windows = (0.0, 0.0), 0.0, 0
        self._reason: str | None = None

    def step(self, step: Step) -> None:
        """Update the best measured rate, and decide whether the run can still reach the target."""
        elapsed_s, done_flops = self._mark
        if step.done_flops == 0.0:  # exclude the work before the first step
            self._mark = (step.elapsed_s, 0.0)
        elif step.done_flops - done_flops >= WINDOW * step.total_flops and step.elapsed_s > elapsed_s:
            self._best = max(self._best, (step.done_flops - done_flops) / (step.elapsed_s - elapsed_s))
            self._mark = (step.elapsed_s, step.done_flops)
            self._windows += 1
        self._reason = self._judged(step)

    def finish(self, label: str, elapsed_s: float) -> None:
        """Clear the reason to stop, because the computation has ended."""
        self._reason = None

    def reason(self) -> str | None:
        """Return the reason to stop the computation, or None if the computation may continue."""
        return self._reason

    def _judged(self, step: Step) -> str | None:
        if self._windows < MIN_WINDOWS or step.done_flops < UNDECIDED * step.total_flops:
            return None
        left_s = (step.total_flops - step.done_flops) / (MARGIN * self._best)
        how = f"at {three_digits(100 * MARGIN)} % of the best rate so far ({rate_text(self._best)})"
        if self.forecast is not None and (recorded_s := self.forecast.remaining_s(step.done_flops)) < left_s:
            left_s, how = recorded_s, "as in the baseline run"
        reachable = step.total_flops / (step.elapsed_s + left_s)
        if reachable >= self._target:
            return None
        share = three_digits(100 * step.done_flops / step.total_flops)
        return (
            f"{share} % of the work took {three_digits(step.elapsed_s)} s, and the rest needs {three_digits(left_s)} s "
            f"{how}, so the run reaches at most {rate_text(reachable)}, but --target is {rate_text(self._target)}; "
            "use a lower --target to complete the run"
        )
