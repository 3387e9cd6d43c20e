"""Forecast the progress of a run from a recorded or simulated run of the same problem."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

#: Maximum number of points of a forecast in a result.
MAX_POINTS = 200


class ProgressForecast:
    """Elapsed seconds over completed flops of another run, with linear interpolation.

    simulated    whether the other run was simulated and not measured
    """

    def __init__(self, elapsed_s: Sequence[float], done_flops: Sequence[float], *, simulated: bool = False):
        self.simulated = simulated
        points = sorted({0.0: 0.0, **dict(zip(done_flops, elapsed_s))}.items())
        self._done = [done for done, _ in points]
        self._elapsed = [seconds for _, seconds in points]

    @classmethod
    def of(cls, result: Mapping[str, Any]) -> ProgressForecast | None:
        """Return the forecast from a recorded result, or None if no recorded step before the last one has flops.

        The last row is omitted, because it includes the refinement, which is not part of the steps of the new run.
        """
        steps = (result.get("telemetry") or {}).get("steps") or {}
        elapsed_s, done_flops = steps.get("elapsed_s") or [], steps.get("done_flops") or []
        return cls(elapsed_s[:-1], done_flops[:-1]) if len(elapsed_s) > 1 and any(done_flops[:-1]) else None

    def seconds(self, done_flops: float) -> float:
        """Return the time in seconds at which the other run had completed `done_flops` flops."""
        k = min(max(1, bisect_left(self._done, done_flops)), len(self._done) - 1)
        (d0, d1), (s0, s1) = self._done[k - 1 : k + 1], self._elapsed[k - 1 : k + 1]
        return s0 + (s1 - s0) * (done_flops - d0) / (d1 - d0)

    def remaining_s(self, done_flops: float) -> float:
        """Return the time in seconds that the other run needed after it had completed `done_flops` flops."""
        return max(0.0, self._elapsed[-1] - self.seconds(done_flops))

    def compared(self, elapsed_s: float, done_flops: float) -> str:
        """Return text such as "3 % slower than forecast", or "" if no work was completed."""
        expected = self.seconds(done_flops)
        if done_flops <= 0.0 or expected <= 0.0:
            return ""
        percent, word = round(100 * (elapsed_s / expected - 1.0)), "simulated" if self.simulated else "forecast"
        if percent == 0:
            return f"as {word}"
        return f"{abs(percent)} % {'slower' if percent > 0 else 'faster'} than {word}"

    def section(self) -> dict[str, Any]:
        """Return at most MAX_POINTS points of the forecast as a section of a result."""
        stride = -(-len(self._done) // MAX_POINTS)
        kept = sorted({*range(0, len(self._done), stride), len(self._done) - 1})[-MAX_POINTS:]
        return {
            "source": "simulated" if self.simulated else "baseline",
            "elapsed_s": [self._elapsed[k] for k in kept],
            "done_flops": [self._done[k] for k in kept],
        }
