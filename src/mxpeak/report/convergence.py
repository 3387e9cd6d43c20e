"""How a residual falls, step by step: a curve a solver or a precision, down to the threshold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mxpeak.records import three_digits
from mxpeak.report.axes import Axis, drawable
from mxpeak.report.chart import Curve, curves

#: Colours of curves; the threshold has the last.
COLOURS, THRESHOLD = 6, 7


def convergence_figure(name: str, of: str, runs: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """The histories in the validations of some runs, each under its run's label; "" where there is none to draw."""
    histories = {
        " ".join(filter(None, (label, solver))): history
        for label, validation in runs
        for solver, history in _histories(validation).items()
    }
    found = (validation.get("threshold") for _, validation in runs)
    thresholds = {threshold for threshold in found if threshold and threshold > 0.0 and drawable([threshold])}
    values = [*(value for history in histories.values() for value in history), *thresholds]
    if not histories or not thresholds or min(values) == max(values):
        return ""
    most = max(map(len, histories.values())) - 1
    series = [
        Curve(
            f"{solver} {three_digits(history[-1])} after step {len(history) - 1}".strip(),
            list(enumerate(history)),
            [f"{solver} after step {step}: {three_digits(value)}".strip() for step, value in enumerate(history)],
            colour=k % COLOURS,
            dashed=k % 2 == 1,
            mark="circle" if most <= 20 else "",
        )
        for k, (solver, history) in enumerate(histories.items())
    ]
    bound = min(thresholds)
    line = Curve(f"threshold {three_digits(bound)}", [(0, bound), (most, bound)], colour=THRESHOLD, dashed=True)
    x, y = Axis.from_zero(most, whole=True), Axis.decades(values)
    return curves(f"{name} by step of {of}", "step", name.lower(), x, y, [line, *series])


def _histories(validation: Mapping[str, Any]) -> dict[str, list[float]]:
    """The residuals by solver; of a solver that stands alone, under no name.  What makes no curve is left out."""
    found = validation.get("history") or []
    named = found if isinstance(found, Mapping) else {"": found}
    kept = {name: [eta for eta in etas or [] if eta and eta > 0.0 and drawable([eta])] for name, etas in named.items()}
    return {name: etas for name, etas in kept.items() if len(etas) >= 2}
