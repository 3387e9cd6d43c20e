"""Draw plots as SVG in an HTML page: curves and markers on two axes, and stacked bars of times per step.

Every plot has labels with units on both axes and a text legend. A pointer over a marker shows the value.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import ceil, floor, isfinite, log10

#: Approximate number of ticks on a linear axis, and minimum distance of ticks on a logarithmic axis as a share of its
#: length.
TICKS, APART = 5, 0.1
#: Range of the numbers in plots. Their sums, ratios and logarithms are then in the range of fp64.
DRAWN = (1e-60, 1e60)


def drawable(values: Iterable[float | None]) -> bool:
    """Return whether all values are zero or in the range of numbers that plots support."""
    return all(value is not None and (value == 0 or DRAWN[0] <= abs(value) <= DRAWN[1]) for value in values)


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a plot: its ends, and its ticks with labels."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    logarithmic: bool = False

    @classmethod
    def through(cls, ticks: Sequence[tuple[float, str]]) -> Axis:
        """Return a linear axis with these ticks and a margin at each end."""
        low, high = min(at for at, _ in ticks), max(at for at, _ in ticks)
        margin = 0.05 * (high - low) or 0.5
        return cls(low - margin, high + margin, ticks)

    @classmethod
    def from_zero(cls, high: float, *, whole: bool = False) -> Axis:
        """Return a linear axis from zero to slightly above `high`. If `whole`, all ticks are integers."""
        high = high if high > 0 else 1.0
        decade = 10.0 ** floor(log10(high / TICKS))
        step = next(m * decade for m in (1, 2, 5, 10) if m * decade * TICKS >= high)
        step = max(1.0, step) if whole else step
        count = floor(high / step * (1 + 1e-12)) + 1
        ticks = [(k * step, number(float(f"{k * step:.6g}")) if k else "0") for k in range(count)]
        return cls(0.0, 1.04 * high, ticks)

    @classmethod
    def decades(cls, values: Sequence[float]) -> Axis:
        """Return a logarithmic axis for these values with a margin at each end."""
        low, high = log10(min(values)), log10(max(values))
        margin = 0.04 * (high - low) or 0.2
        ends = 10 ** (low - margin), 10 ** (high + margin)
        return cls(*ends, [(tick, number(tick)) for tick in round_numbers(*ends)], logarithmic=True)

    def place(self, value: float, begin: float, end: float) -> float:
        """Return the coordinate of a value on an axis from `begin` to `end`."""
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = log10(low), log10(high), log10(value)
        return begin + (value - low) / (high - low) * (end - begin)


def round_numbers(low: float, high: float) -> list[float]:
    """Return ticks of a logarithmic axis: powers of ten or, if there are fewer than three, also their multiples.

    The multiples are by 2 and 5 or, if there are still fewer than three ticks, by 2 to 9. Ticks that are too close are
    omitted.
    """
    for digits in ((1,), (1, 2, 5), tuple(range(1, 10))):
        decades = range(floor(log10(low)), ceil(log10(high)) + 1)
        ticks = [t for decade in decades for digit in digits if low <= (t := float(f"{digit}e{decade}")) <= high]
        if len(ticks) >= 3:
            break
    kept: list[float] = []
    for tick in ticks:
        if not kept or log10(tick / kept[-1]) >= APART * log10(high / low):
            kept.append(tick)
    return kept


def number(value: float) -> str:
    """Return a tick label: a decimal number from 0.001 to 100,000, otherwise a power of ten."""
    if 1e-3 <= value < 1e5:
        return f"{value:g}"
    digit, exponent = f"{value:.0e}".split("e")
    power = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{power}" if digit == "1" else f"{digit}·10{power}"


def unit_of(rates: Sequence[float], unit: str) -> tuple[float, str]:
    """Return the factor and the unit (GFLOP/s, TB/s and so on) with which the largest rate is readable."""
    name = "FLOP/s" if unit == "flop/s" else "B/s"
    for prefix, size in (("E", 1e18), ("P", 1e15), ("T", 1e12)):
        if max(rates) >= size:
            return 1 / size, f"{prefix}{name}"
    return 1e-9, f"G{name}"


#: Opacity of the cell with the largest number in a heat map, on which text is still readable.
DARKEST = 0.6
WIDTH, HEIGHT = 560, 314
LEFT, TOP, RIGHT, BOTTOM = 66, 32, 538, 264
#: Maximum width of a digit of a tick; narrow screens use the largest font.
TICK_WIDTH = 10
#: Marker shapes in the drawing, and their symbols in the legend.
MARKS = ("circle", "square", "triangle", "diamond")
GLYPHS = {"circle": "●", "square": "■", "triangle": "▲", "diamond": "◆"}


@dataclass(frozen=True, slots=True)
class PlotCurve:
    """Points with tooltips that are drawn as a line, as markers, or both."""

    label: str
    points: Sequence[tuple[float, float]]
    tooltips: Sequence[str] = field(default=())
    colour: int = 0
    dashed: bool = False
    mark: str = ""
    joined: bool = True


def curves(
    title: str, x_label: str, y_label: str, x: Axis, y: Axis, series: Sequence[PlotCurve], caption: str = ""
) -> str:
    """Return the HTML figure of several curves with a legend. The first curve is in the background."""
    drawing = [*_frame(x, y, x_label, y_label)]
    for curve in series:
        places = [(x.place(at, LEFT, RIGHT), y.place(value, BOTTOM, TOP)) for at, value in curve.points]
        drawing += _drawn(curve, places)
    return _figure(title, drawing, [(_key(curve), curve.label) for curve in series], caption)


def _key(curve: PlotCurve) -> str:
    """Return the HTML of a curve's symbol in the legend."""
    if curve.joined:
        return f'<span class="key line c{curve.colour}{" dashed" if curve.dashed else ""}"></span>'
    return f'<span class="key c{curve.colour}">{GLYPHS[curve.mark]}</span>'


def _drawn(curve: PlotCurve, places: Sequence[tuple[float, float]]) -> Iterator[str]:
    if curve.joined:
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dashes = ' stroke-dasharray="7 4"' if curve.dashed else ""
        yield f'<polyline class="trace c{curve.colour}"{dashes} points="{line}"/>'
    for k, (x, y) in enumerate(places):
        tooltip = curve.tooltips[k] if k < len(curve.tooltips) else ""
        if curve.mark or tooltip:
            title = f"<title>{html.escape(tooltip)}</title>" if tooltip else ""
            yield _mark(curve.mark, f"dot c{curve.colour}" if curve.mark else "unseen", x, y, title)


def _mark(kind: str, look: str, x: float, y: float, title: str) -> str:
    """Return an SVG marker with a tooltip. If `kind` is empty, the marker is an invisible circle."""
    if kind in ("triangle", "diamond"):
        corners = ((0, -5), (5, 4), (-5, 4)) if kind == "triangle" else ((0, -5), (5, 0), (0, 5), (-5, 0))
        at = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
        return f'<polygon class="{look}" points="{at}">{title}</polygon>'
    if kind == "square":
        return f'<rect class="{look}" x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8">{title}</rect>'
    return f'<circle class="{look}" cx="{x:.1f}" cy="{y:.1f}" r="{4 if kind else 7}">{title}</circle>'


@dataclass(frozen=True, slots=True)
class Series:
    """Points on logarithmic axes, drawn as markers or joined to a curve. Points that are not positive are omitted."""

    label: str
    points: Sequence[tuple[float, float | None]]
    joined: bool = False


def loglog(
    title: str, x_label: str, y_label: str, series: Sequence[Series], y_values: Sequence[float] = (), caption: str = ""
) -> str:
    """Return the HTML figure of several series on two logarithmic axes; the y axis also includes `y_values`."""
    shown = []
    for k, each in enumerate(series):
        visible = [(x, y) for x, y in each.points if y is not None and isfinite(x) and isfinite(y) and x > 0 and y > 0]
        mark = "" if each.joined else MARKS[k % len(MARKS)]
        shown.append(PlotCurve(each.label, visible, colour=k % 8, dashed=k % 2 == 1, joined=each.joined, mark=mark))
    points = [point for curve in shown for point in curve.points]
    if not points:
        return ""
    x_axis = Axis.decades([x for x, _ in points])
    y_axis = Axis.decades([*(y for _, y in points), *y_values])
    return curves(title, x_label, y_label, x_axis, y_axis, shown, caption)


def stacked(
    title: str,
    x_label: str,
    y_label: str,
    x: Axis,
    edges: Sequence[float],
    layers: Sequence[tuple[str, Sequence[float]]],
    caption: str = "",
) -> str:
    """Return the HTML figure of stacked bars. Each layer has one height per interval between two edges."""
    tops = [list(accumulate(column)) for column in zip(*(values for _, values in layers))]
    y = Axis.from_zero(max((column[-1] for column in tops), default=1.0))
    drawing = [*_frame(x, y, x_label, y_label)]
    for j, column in enumerate(tops):
        left, right = (x.place(edge, LEFT, RIGHT) for edge in edges[j : j + 2])
        below = float(BOTTOM)
        for k, ((name, values), top) in enumerate(zip(layers, column)):
            above = y.place(top, BOTTOM, TOP)
            if below - above >= 0.05:
                tooltip = html.escape(f"{x_label} {edges[j]:g} to {edges[j + 1]:g}: {name} {values[j]:.3g} {y_label}")
                shape = f'x="{left:.2f}" y="{above:.2f}" width="{right - left:.2f}" height="{below - above:.2f}"'
                drawing.append(f'<rect class="layer c{k % 8}" {shape}><title>{tooltip}</title></rect>')
            below = above
    keys = [(f'<span class="key c{k % 8}">■</span>', name) for k, (name, _) in enumerate(layers)]
    return _figure(title, drawing, keys[::-1], caption)


def heat_map(
    title: str,
    x_label: str,
    y_label: str,
    columns: Sequence[str],
    rows: Sequence[str],
    cells: Sequence[Sequence[float | None]],
    caption: str = "",
) -> str:
    """Return the HTML figure of a table of numbers, in which the color of a cell becomes darker with its number.

    `cells` has a row per label in `rows`, from the top. Unknown numbers are None and have no cell.
    """
    highest = max((value for row in cells for value in row if value is not None), default=0.0)
    if not highest > 0.0 or not drawable([value for row in cells for value in row if value is not None]):
        return ""
    edge = max(LEFT, 12 + TICK_WIDTH * max(map(len, rows)))  # of the cells, right of the labels
    width, height = (RIGHT - edge) / len(columns), (BOTTOM - TOP) / len(rows)
    x = Axis(0.0, len(columns), [(k + 0.5, label) for k, label in enumerate(columns)])
    y = Axis(0.0, len(rows), [(len(rows) - k - 0.5, label) for k, label in enumerate(rows)])
    drawing = []
    for i, row in enumerate(cells):
        for j, value in enumerate(row):
            if value is None:
                continue
            left, top = edge + j * width, TOP + i * height
            tooltip = html.escape(f"{y_label} {rows[i]}, {x_label} {columns[j]}: {value:.3g}")
            shape = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"'
            shade = f'fill-opacity="{DARKEST * value / highest:.2f}"'
            drawing.append(f'<rect class="heat c0" {shape} {shade}><title>{tooltip}</title></rect>')
            middle = f'x="{left + width / 2:.1f}" y="{top + height / 2 + 4:.1f}"'
            drawing.append(f'<text class="value" {middle} text-anchor="middle">{value:.3g}</text>')
    return _figure(title, [*_frame(x, y, x_label, y_label, edge), *drawing], [], caption)


def _figure(title: str, drawing: Iterable[str], legend: Sequence[tuple[str, str]], caption: str) -> str:
    """Return an HTML figure with the title above the drawing, and the legend and the caption below."""
    name = html.escape(title, quote=True)
    items = "".join(f"<li>{key} {html.escape(label)}</li>" for key, label in legend)
    note = f'<p class="note">{html.escape(caption)}</p>' if caption else ""
    return (
        f'<figure><figcaption>{name}</figcaption><svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{name}">{"".join(drawing)}</svg><ul class="legend">{items}</ul>{note}</figure>'
    )


def _frame(x: Axis, y: Axis, x_label: str, y_label: str, edge: int = LEFT) -> Iterator[str]:
    """Yield the grid, the ticks, the frame and the labels of a drawing, whose frame has its left side at `edge`."""
    for at, text in x.ticks:
        place = x.place(at, edge, RIGHT)
        yield f'<line class="grid" x1="{place:.1f}" y1="{TOP}" x2="{place:.1f}" y2="{BOTTOM}"/>'
        yield f'<text class="tick" x="{place:.1f}" y="{BOTTOM + 20}" text-anchor="middle">{html.escape(text)}</text>'
    for at, text in y.ticks:
        place = y.place(at, BOTTOM, TOP)
        yield f'<line class="grid" x1="{edge}" y1="{place:.1f}" x2="{RIGHT}" y2="{place:.1f}"/>'
        yield f'<text class="tick" x="{edge - 7}" y="{place + 5:.1f}" text-anchor="end">{html.escape(text)}</text>'
    yield f'<rect class="frame" x="{edge}" y="{TOP}" width="{RIGHT - edge}" height="{BOTTOM - TOP}"/>'
    middle = (edge + RIGHT) / 2
    yield f'<text class="label" x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{html.escape(x_label)}</text>'
    yield f'<text class="label" x="{edge - 7}" y="18">{html.escape(y_label)}</text>'
