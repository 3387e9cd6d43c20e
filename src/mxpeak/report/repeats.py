"""Plot the times of the repeated runs of a case, and their median."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from mxpeak.records import three_digits
from mxpeak.report.plots import Axis, PlotCurve, curves, drawable

#: Maximum number of runs that are drawn individually.
MOST_RUNS = 200


def repeats_figure(recorded_s: Sequence[float | None]) -> str:
    """Plot the time of each run on an axis from zero; return "" for a single run."""
    samples_s = [time_s for time_s in recorded_s if time_s is not None]
    if len(samples_s) < 2 or not drawable(samples_s) or min(samples_s) < 0.0:
        return ""
    middle, best, worst = median(samples_s), min(samples_s), max(samples_s)
    if middle <= 0.0:
        return ""
    count, stride = len(samples_s), -(-len(samples_s) // MOST_RUNS)
    scale, unit = (1e3, "ms") if worst < 0.1 else (1.0, "s")
    shown = list(enumerate(samples_s, 1))[::stride]
    runs = PlotCurve(
        "each run",
        [(k, scale * time_s) for k, time_s in shown],
        [f"run {k}: {three_digits(scale * time_s)} {unit}" for k, time_s in shown],
        mark="circle",
        joined=False,
    )
    label = f"median {three_digits(scale * middle)} {unit}"
    line = PlotCurve(label, [(1, scale * middle), (count, scale * middle)], [label] * 2, colour=7, dashed=True)
    ticks = sorted({1, count, *(1 + (count - 1) * k // 4 for k in range(1, 4))})
    x, y = Axis.through([(float(k), str(k)) for k in ticks]), Axis.from_zero(scale * worst)
    spread = f"{count} runs: best {three_digits(scale * best)} {unit}, {label}, spread "
    spread += f"{three_digits(100 * (worst - best) / middle)} % (slowest minus fastest, divided by the median)."
    return curves("Spread of the runs", "run", f"time in {unit}", x, y, [line, runs], spread)
