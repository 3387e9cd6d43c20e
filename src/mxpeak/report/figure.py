"""Points and curves on two logarithmic axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from mxpeak.report.axes import Axis
from mxpeak.report.chart import MARKS, Curve, curves


@dataclass(frozen=True, slots=True)
class Series:
    """One set of points, drawn as marks or joined to a curve; what is not finite or not above 0 is left out."""

    label: str
    points: Sequence[tuple[float, float | None]]
    joined: bool = False

    def visible(self) -> list[tuple[float, float]]:
        """The points that have a place on logarithmic axes."""
        return [(x, y) for x, y in self.points if y is not None and isfinite(x) and isfinite(y) and x > 0 and y > 0]


def loglog(
    title: str, x_label: str, y_label: str, series: Sequence[Series], y_values: Sequence[float] = (), caption: str = ""
) -> str:
    """One figure with its legend; `y_values` shall be in sight too, so that two figures can share an axis."""
    shown = [
        Curve(one.label, one.visible(), colour=k % 8, dashed=k % 2 == 1, joined=one.joined, mark=_mark(k, one))
        for k, one in enumerate(series)
    ]
    points = [point for one in shown for point in one.points]
    if not points:
        return ""
    x_axis = Axis.decades([x for x, _ in points])
    y_axis = Axis.decades([*(y for _, y in points), *y_values])
    return curves(title, x_label, y_label, x_axis, y_axis, shown, caption)


def _mark(k: int, one: Series) -> str:
    return "" if one.joined else MARKS[k % len(MARKS)]
