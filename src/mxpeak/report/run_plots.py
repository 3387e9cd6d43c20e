"""Plot a run: the time of each step, the rate with its forecast, the residual by step, and the repeated runs.

The step plot shows the time by component, as in figure 7 of the rocHPL paper and figure 10 of the OLCF paper. Early
steps are limited by computation, and late steps by communication.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import mul
from statistics import median
from typing import Any

from mxpeak.records import rate_text, three_digits
from mxpeak.report.plots import Axis, PlotCurve, curves, drawable, stacked, unit_of
from mxpeak.report.summaries import lines_of
from mxpeak.spans import DEVICE

#: The remaining time of a step: waiting for other ranks, Python, and unnamed work.
REST = "other"
#: Maximum number of layers in a plot; smaller layers are added to REST.
MAX_LAYERS = 8
#: Minimum share of the total time of a layer.
MIN_SHARE = 0.002
#: Minimum interval between two samples of a rate, as a share of the total time.
MIN_INTERVAL = 0.01
#: Number of colors of the residual curves, and the color of a threshold or median line.
COLOURS, BOUND = 6, 7
#: Maximum number of repeated runs that are drawn individually.
MAX_RUNS = 200

Columns = Mapping[str, Any]


def steps_figure(benchmark: str, steps: Columns, bars: int, resumed: int = 0) -> str:
    """Return the HTML figure of the time per step by component, in at most `bars` bars; "" for fewer than two bars.

    The components of the first `resumed` steps, which another process computed before a checkpoint, are unknown.
    """
    index, elapsed_s = list(steps.get("index") or []), list(steps.get("elapsed_s") or [])
    undrawn = lines_of(benchmark).undrawn
    phases = {
        name: column["time_s"]
        for name, column in (steps.get("phases") or {}).items()
        if name not in undrawn and "time_s" in column
    }
    if any(len(column) != len(index) or not drawable(column) for column in (index, elapsed_s, *phases.values())):
        return ""
    rows = _bars(index, bars, resumed)
    if len(rows) < 2:
        return ""
    edges = [float(index[rows[0][0] - 1] if rows[0][0] else 0), *(float(index[last]) for _, last in rows)]
    spent = {name: [sum(column[first : last + 1]) for first, last in rows] for name, column in phases.items()}
    whole = [elapsed_s[last] - (elapsed_s[first - 1] if first else 0.0) for first, last in rows]
    layers = _layers(spent, whole)
    longest_s = max(time_s / (b - a) for time_s, a, b in zip(whole, edges, edges[1:]))
    scale, unit = (1e3, "ms") if longest_s < 0.1 else (1.0, "s")
    heights = [
        (name, [scale * time_s / (b - a) for time_s, a, b in zip(column, edges, edges[1:])]) for name, column in layers
    ]
    ranks = steps.get("ranks", 1)
    note = "" if ranks == 1 else f"Mean of {ranks} ranks. "
    note += _outside(rows, phases)
    ticks = Axis.from_zero(edges[-1], whole=True).ticks
    x = Axis(edges[0], edges[-1], [tick for tick in ticks if edges[0] <= tick[0] <= edges[-1]])
    return stacked("Time per step by component", "step", f"{unit} per step", x, edges, heights, note.strip())


def device_figure(steps: Columns, bars: int, resumed: int = 0) -> str:
    """Return the HTML figure of the times per step of a device, its host and the messages (rocHPL, fig. 7).

    The figure begins after the first `resumed` steps. The result is empty for a run on the host.
    """
    index, elapsed_s = list(steps.get("index") or []), list(steps.get("elapsed_s") or [])
    columns = {name: column.get("time_s") or [] for name, column in (steps.get("phases") or {}).items()}
    if DEVICE not in columns or any(
        len(column) != len(index) or not drawable(column) for column in (index, elapsed_s, *columns.values())
    ):
        return ""
    rows = _bars(index, bars, resumed)
    if len(rows) < 2:
        return ""
    counts = [index[last] - (index[first - 1] if first else 0) for first, last in rows]

    def per_step(name: str) -> list[float]:
        column = columns.get(name) or [0.0] * len(index)
        return [sum(column[first : last + 1]) / count for (first, last), count in zip(rows, counts)]

    whole = [(elapsed_s[last] - (elapsed_s[first - 1] if first else 0.0)) / k for (first, last), k in zip(rows, counts)]
    waits = [max(0.0, a + b - c) for a, b, c in zip(per_step("bcast"), per_step("laswp"), per_step("moves"))]
    fact = [max(0.0, a - b) for a, b in zip(per_step("rfact"), per_step("transfer"))]
    named = [
        ("step", whole), ("device active", per_step(DEVICE)), ("panel factorization", fact),
        ("messages of panels and rows", waits), ("copies between host and device", per_step("transfer")),
    ]  # fmt: skip
    drawn = [(name, times) for name, times in named if any(times)]
    longest_s = max(max(times) for _, times in drawn)
    scale, unit = (1e3, "ms") if longest_s < 0.1 else (1.0, "s")
    series = [
        PlotCurve(
            name,
            [(float(index[last]), scale * time_s) for (_, last), time_s in zip(rows, times)],
            [f"step {index[last]}: {name} {scale * time_s:.3g} {unit}" for (_, last), time_s in zip(rows, times)],
            colour=k,
        )
        for k, (name, times) in enumerate(drawn)
    ]
    spent, busy = (sum(map(mul, times, counts)) for times in (whole, per_step(DEVICE)))
    share = f"The device computes for {100 * busy / spent:.0f} % of the steps' time. " if spent > 0.0 else ""
    caption = f"{share}The times of a step overlap."
    x, y = Axis.from_zero(float(index[rows[-1][1]]), whole=True), Axis.from_zero(scale * longest_s)
    return curves("Device, host and messages by step", "step", f"{unit} per step", x, y, series, caption)


def _bars(index: Sequence[int], bars: int, resumed: int) -> list[tuple[int, int]]:
    """Return the first and the last row of each bar after the first `resumed` steps.

    All bars except the last have the same number of steps.
    """
    rows = [k for k in range(len(index)) if index[k] > max(resumed, index[k - 1] if k else 0)]
    stride = -(-len(rows) // bars)
    parts = [rows[k : k + stride] for k in range(0, len(rows), stride or 1)]
    return [(part[0], part[-1]) for part in parts]


def _layers(spent: Mapping[str, list[float]], whole: Sequence[float]) -> list[tuple[str, list[float]]]:
    """Return the times per bar of the largest components and, as REST, of the remaining time."""
    total = sum(whole)
    kept = sorted((name for name in spent if sum(spent[name]) > MIN_SHARE * total), key=lambda n: -sum(spent[n]))
    layers = [(name, spent[name]) for name in kept[: MAX_LAYERS - 1]]
    rest = [max(0.0, time_s - sum(column[k] for _, column in layers)) for k, time_s in enumerate(whole)]
    return [*layers, (REST, rest)]


def _outside(rows: Sequence[tuple[int, int]], phases: Mapping[str, Sequence[float]]) -> str:
    """Return a caption with the time that each phase spent after the last step."""
    last = rows[-1][1]
    after = {name: sum(column[last + 1 :]) for name, column in phases.items()}
    parts = [f"{name} {three_digits(time_s)} s" for name, time_s in after.items() if time_s > 0.0]
    return f"After the last step: {', '.join(parts)}." if parts else ""


def rate_figure(telemetry: Mapping[str, Any], limit: float | None) -> str:
    """Return the HTML figure of the current and the average rate over the share of the work done.

    The figure includes the forecast and the limit of the rate, if they are known.
    """
    samples = [(float(s), float(done)) for s, done in telemetry.get("progress") or [] if _positive(s, done)]
    if len(samples) < 2:
        return ""
    total = samples[-1][1]
    forecast = telemetry.get("forecast") or {}
    expected = [
        (s, done)
        for s, done in zip(forecast.get("elapsed_s") or (), forecast.get("done_flops") or ())
        if _positive(s, done)
    ]
    thinned = [(0.0, 0.0), *_apart(samples)]
    now = [(b[1], (b[1] - a[1]) / (b[0] - a[0])) for a, b in pairwise(thinned) if b[0] > a[0]]
    overall, likely = ([(done, done / s) for s, done in points] for points in (samples, expected))
    bound = [(0.0, limit), (total, limit)] if limit and drawable([limit]) else []
    scale, unit = unit_of([rate for _, rate in (*bound, *now, *overall, *likely)], "flop/s")
    source = {"baseline": "baseline", "simulated": "simulated"}.get(str(forecast.get("source")), "forecast")
    named = [("limit", bound), (f"average ({source})", likely), ("current", now), ("average", overall)]
    series = [
        PlotCurve(
            name,
            [(100 * done / total, scale * rate) for done, rate in points],
            [f"{100 * done / total:.0f} % of the work: {name} {rate_text(rate)}" for done, rate in points],
            colour=colour,
            dashed=colour in (1, 3),
        )
        for colour, (name, points) in zip((3, 1, 5, 0), named)
        if points
    ]
    x = Axis(0.0, 100.0, [(float(at), f"{at}") for at in range(0, 101, 20)])
    y = Axis.from_zero(max(value for curve in series for _, value in curve.points))
    return curves("Rate over the run", "work done in %", unit, x, y, series)


def _positive(*values: float | None) -> bool:
    """Return whether all values are positive and in the range of numbers that plots support."""
    return drawable(values) and all(value is not None and value > 0 for value in values)


def _apart(samples: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the samples that are at least MIN_INTERVAL of the total time apart, and the last sample.

    The last two samples are often too close to compute a rate from their difference.
    """
    least_s, kept = MIN_INTERVAL * samples[-1][0], [(0.0, 0.0)]
    for sample in samples:
        if sample[0] - kept[-1][0] >= least_s:
            kept.append(sample)
    return [*kept[1:-1], samples[-1]]


def convergence_figure(name: str, of: str, runs: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Return the HTML figure of the residual histories of labeled validations; "" if there is no history."""
    histories = {
        " ".join(filter(None, (label, solver))): history
        for label, validation in runs
        for solver, history in _histories(validation).items()
    }
    thresholds = {bound for _, check in runs if (bound := check.get("threshold")) and _positive(bound)}
    values = [*(value for history in histories.values() for value in history), *thresholds]
    if not histories or not thresholds or min(values) == max(values):
        return ""
    last = max(map(len, histories.values())) - 1
    series = [
        PlotCurve(
            f"{solver} {three_digits(history[-1])} after step {len(history) - 1}".strip(),
            list(enumerate(history)),
            [f"{solver} after step {step}: {three_digits(value)}".strip() for step, value in enumerate(history)],
            colour=k % COLOURS,
            dashed=k % 2 == 1,
            mark="circle" if last <= 20 else "",
        )
        for k, (solver, history) in enumerate(histories.items())
    ]
    bound = min(thresholds)
    line = PlotCurve(f"threshold {three_digits(bound)}", [(0, bound), (last, bound)], colour=BOUND, dashed=True)
    x, y = Axis.from_zero(last, whole=True), Axis.decades(values)
    return curves(f"{name} by step of {of}", "step", name.lower(), x, y, [line, *series])


def _histories(validation: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the residual histories with at least two values, by solver. A single solver has the name ""."""
    history = validation.get("history") or []
    named = history if isinstance(history, Mapping) else {"": history}
    kept = {name: [eta for eta in etas or [] if _positive(eta)] for name, etas in named.items()}
    return {name: etas for name, etas in kept.items() if len(etas) >= 2}


def repeats_figure(recorded_s: Sequence[float | None]) -> str:
    """Return the HTML figure of the time of each repeated run; "" for fewer than two runs."""
    samples_s = [time_s for time_s in recorded_s if time_s is not None]
    if len(samples_s) < 2 or not drawable(samples_s) or min(samples_s) < 0.0:
        return ""
    middle, best, worst = median(samples_s), min(samples_s), max(samples_s)
    if middle <= 0.0:
        return ""
    count, stride = len(samples_s), -(-len(samples_s) // MAX_RUNS)
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
    line = PlotCurve(label, [(1, scale * middle), (count, scale * middle)], [label] * 2, colour=BOUND, dashed=True)
    ticks = sorted({1, count, *(1 + (count - 1) * k // 4 for k in range(1, 4))})
    x, y = Axis.through([(float(k), str(k)) for k in ticks]), Axis.from_zero(scale * worst)
    spread = f"{count} runs: best {three_digits(scale * best)} {unit}, {label}, spread "
    spread += f"{three_digits(100 * (worst - best) / middle)} % (slowest minus fastest, divided by the median)."
    return curves("Spread of the runs", "run", f"time in {unit}", x, y, [line, runs], spread)
