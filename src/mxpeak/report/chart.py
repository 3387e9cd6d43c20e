"""Figures on two linear axes as SVG inside a page: curves, and times stacked step by step; values show on hovering."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import floor, log10

from mxpeak.report.figure import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, number

#: Colours of layers beyond those of curves, which they use first.
CHART_STYLE = """
:root { --c6: #c77; --c7: #bbb; } @media (prefers-color-scheme: dark) { :root { --c6: #a55; --c7: #555; } }
.plot .layer { stroke: none; } .plot .layer:hover { fill-opacity: .7; }
.plot .unseen { fill: transparent; stroke: none; }
""" + "".join(f".plot .l{k} {{ fill: var(--c{k}); }}\n" for k in range(8))

#: How many ticks an axis from zero has, about.
TICKS = 5


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear axis: its ends, and its ticks with what stands at them."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]

    @classmethod
    def through(cls, ticks: Sequence[tuple[float, str]]) -> Axis:
        """An axis with these ticks, and a little air around them."""
        low, high = min(at for at, _ in ticks), max(at for at, _ in ticks)
        air = 0.05 * (high - low) or 0.5
        return cls(low - air, high + air, ticks)

    def place(self, value: float, begin: float, end: float) -> float:
        """Where a value stands between two coordinates of the drawing."""
        return begin + (value - self.low) / (self.high - self.low) * (end - begin)


def nice(high: float) -> Axis:
    """An axis from zero to a little above `high`, with round numbers at its ticks."""
    high = high if high > 0 else 1.0
    decade = 10.0 ** floor(log10(high / TICKS))
    step = next(m * decade for m in (1, 2, 5, 10) if m * decade * TICKS >= high)
    count = floor(high / step) + 1
    return Axis(0.0, 1.04 * high, [(k * step, number(float(f"{k * step:.6g}")) if k else "0") for k in range(count)])


def unit_of(rates: Sequence[float], unit: str) -> tuple[float, str]:
    """A factor for rates, and the unit that they then have: that of the largest."""
    name = "FLOP/s" if unit == "flop/s" else "B/s"
    for prefix, size in (("E", 1e18), ("P", 1e15), ("T", 1e12)):
        if max(rates) >= size:
            return 1 / size, f"{prefix}{name}"
    return 1e-9, f"G{name}"


@dataclass(frozen=True, slots=True)
class Curve:
    """Points joined to a curve, what each of them says, and how it looks."""

    label: str
    points: Sequence[tuple[float, float]]
    said: Sequence[str] = field(default=())
    colour: int = 0
    dashed: bool = False
    marked: bool = False


def curves(title: str, x_label: str, y_label: str, x: Axis, y: Axis, series: Sequence[Curve]) -> str:
    """Curves over one another, the first behind, with a legend."""
    drawing = [*_frame(x, y, x_label, y_label)]
    for k, one in enumerate(series):
        drawing += _drawn(one, [(x.place(at, LEFT, RIGHT), y.place(value, BOTTOM, TOP)) for at, value in one.points])
        at = TOP + 14 + 21 * k
        drawing += _drawn(Curve("", [], [], one.colour, one.dashed), [(RIGHT + 16.0, at), (RIGHT + 44.0, at)])
        drawing.append(f'<text x="{RIGHT + 52}" y="{at + 4}">{html.escape(one.label)}</text>')
    return _figure(title, drawing)


def _drawn(one: Curve, places: Sequence[tuple[float, float]]) -> Iterator[str]:
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dashes = ' stroke-dasharray="7 4"' if one.dashed else ""
    yield f'<polyline class="trace c{one.colour}"{dashes} points="{line}"/>'
    for (x, y), said in zip(places, one.said):
        look, radius = (f"dot c{one.colour}", 3.5) if one.marked else ("unseen", 6.0)
        circle = f'<circle class="{look}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}">'
        yield f"{circle}<title>{html.escape(said)}</title></circle>"


def stacked(
    title: str,
    x_label: str,
    y_label: str,
    x: Axis,
    edges: Sequence[float],
    layers: Sequence[tuple[str, Sequence[float]]],
) -> str:
    """Times on top of one another: layer by layer its height between every two edges, of which there is one more."""
    tops = [list(accumulate(column)) for column in zip(*(values for _, values in layers))]
    y = nice(max((column[-1] for column in tops), default=1.0))
    drawing = [*_frame(x, y, x_label, y_label)]
    for j, column in enumerate(tops):
        left, right = (x.place(edge, LEFT, RIGHT) for edge in edges[j : j + 2])
        below = float(BOTTOM)
        for k, ((name, values), top) in enumerate(zip(layers, column)):
            above = y.place(top, BOTTOM, TOP)
            if below - above >= 0.05:
                said = html.escape(f"{x_label} {edges[j]:g} to {edges[j + 1]:g}: {name} {values[j]:.3g} {y_label}")
                shape = f'x="{left:.2f}" y="{above:.2f}" width="{right - left:.2f}" height="{below - above:.2f}"'
                drawing.append(f'<rect class="layer l{k % 8}" {shape}><title>{said}</title></rect>')
            below = above
    for k, (name, _) in enumerate(layers):
        at = TOP + 6 + 21 * (len(layers) - 1 - k)
        drawing.append(f'<rect class="layer l{k % 8}" x="{RIGHT + 22}" y="{at}" width="14" height="14"/>')
        drawing.append(f'<text x="{RIGHT + 44}" y="{at + 12}">{html.escape(name)}</text>')
    return _figure(title, drawing)


def _figure(title: str, drawing: Sequence[str]) -> str:
    name = html.escape(title, quote=True)
    return (
        f'<figure><svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}">'
        f"{''.join(drawing)}</svg><figcaption>{name}</figcaption></figure>"
    )


def _frame(x: Axis, y: Axis, x_label: str, y_label: str) -> Iterator[str]:
    for at, text in x.ticks:
        place = x.place(at, LEFT, RIGHT)
        yield f'<line class="grid" x1="{place:.1f}" y1="{TOP}" x2="{place:.1f}" y2="{BOTTOM}"/>'
        yield f'<text x="{place:.1f}" y="{BOTTOM + 17}" text-anchor="middle">{html.escape(text)}</text>'
    for at, text in y.ticks:
        place = y.place(at, BOTTOM, TOP)
        yield f'<line class="grid" x1="{LEFT}" y1="{place:.1f}" x2="{RIGHT}" y2="{place:.1f}"/>'
        yield f'<text x="{LEFT - 7}" y="{place + 4:.1f}" text-anchor="end">{html.escape(text)}</text>'
    yield f'<rect class="frame" x="{LEFT}" y="{TOP}" width="{RIGHT - LEFT}" height="{BOTTOM - TOP}"/>'
    yield f'<text x="{(LEFT + RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">{html.escape(x_label)}</text>'
    middle = (TOP + BOTTOM) / 2
    turned = f'transform="rotate(-90 16 {middle})"'
    yield f'<text x="16" y="{middle}" text-anchor="middle" {turned}>{html.escape(y_label)}</text>'
