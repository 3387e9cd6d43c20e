"""Plot the residual by step, with one curve per solver or precision, and the threshold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mxpeak.records import three_digits
from mxpeak.report.plots import Axis, PlotCurve, curves, drawable

#: Number of colors of curves, and the color of the threshold.
COLOURS, THRESHOLD = 6, 7


def convergence_figure(name: str, of: str, runs: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Plot the residual histories of labeled validations; return "" if there is none."""
    histories = {
        " ".join(filter(None, (label, solver))): history
        for label, validation in runs
        for solver, history in _histories(validation).items()
    }
    given = (validation.get("threshold") for _, validation in runs)
    thresholds = {threshold for threshold in given if threshold and threshold > 0.0 and drawable([threshold])}
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
    line = PlotCurve(f"threshold {three_digits(bound)}", [(0, bound), (last, bound)], colour=THRESHOLD, dashed=True)
    x, y = Axis.from_zero(last, whole=True), Axis.decades(values)
    return curves(f"{name} by step of {of}", "step", name.lower(), x, y, [line, *series])


def _histories(validation: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the residual histories by solver, or under "" for a single solver; histories that are too short are
    omitted.
    """
    history = validation.get("history") or []
    named = history if isinstance(history, Mapping) else {"": history}
    kept = {name: [eta for eta in etas or [] if eta and eta > 0.0 and drawable([eta])] for name, etas in named.items()}
    return {name: etas for name, etas in kept.items() if len(etas) >= 2}
