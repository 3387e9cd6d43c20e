"""Figures as SVG inside a page: points and curves on two logarithmic axes, legible in light and in dark."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10

#: Six colours that people with colour blindness can tell apart, on white and on black; dashes and marks differ too.
FIGURE_STYLE = """
:root { --c0: #0b62a4; --c1: #b0440c; --c2: #157a5b; --c3: #8b3a8f; --c4: #7a6000; --c5: #555; }
@media (prefers-color-scheme: dark) { :root { --c0: #6cb6ff; --c1: #ff9e64; --c2: #5fd3a5; --c3: #e0a3e6;
  --c4: #e3c34a; --c5: #aaa; } }
figure { margin: 1.5rem 0; } figcaption { color: var(--faint); max-width: 46rem; } pre { overflow-x: auto; }
.plot { max-width: 46rem; width: 100%; height: auto; } .plot .grid { stroke: var(--line); }
.plot .frame { fill: none; stroke: var(--faint); } .plot .trace { fill: none; stroke-width: 1.8; }
""" + "".join(
    f".plot .c{k} {{ stroke: var(--c{k}); }} .plot .dot.c{k} {{ fill: var(--c{k}); fill-opacity: .35; }}\n"
    for k in range(6)
)

WIDTH, HEIGHT = 760, 420
LEFT, TOP, RIGHT, BOTTOM = 74, 14, 560, 368
DASHES = ("", "7 4", "2 3", "9 3 2 3", "4 2", "1 4")


@dataclass(frozen=True, slots=True)
class Series:
    """One set of points, drawn as marks or joined to a curve; what is not finite or not above 0 is left out."""

    label: str
    points: Sequence[tuple[float, float | None]]
    joined: bool = False

    def visible(self) -> list[tuple[float, float]]:
        """The points that have a place on logarithmic axes."""
        return [(x, y) for x, y in self.points if y is not None and isfinite(x) and isfinite(y) and x > 0 and y > 0]


@dataclass(frozen=True, slots=True)
class Axis:
    """A logarithmic axis from low to high, between two coordinates of the drawing."""

    low: float
    high: float
    begin: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], begin: float, end: float) -> Axis:
        """An axis with a little air around all values."""
        low, high = log10(min(values)), log10(max(values))
        air = 0.04 * (high - low) or 0.2
        return cls(10 ** (low - air), 10 ** (high + air), begin, end)

    def position(self, value: float) -> float:
        """Where a value stands."""
        share = (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
        return self.begin + share * (self.end - self.begin)

    def ticks(self) -> list[float]:
        """Powers of ten; where there are fewer than three, also their multiples by 2 and 5, or by 1 to 9."""
        for digits in ((1,), (1, 2, 5), tuple(range(1, 10))):
            found = [t for t in self._multiples(digits) if self.low <= t <= self.high]
            if len(found) >= 3:
                break
        stride = ceil(len(found) / 10)
        return found[::stride]

    def _multiples(self, digits: Sequence[int]) -> Iterator[float]:
        for decade in range(floor(log10(self.low)), ceil(log10(self.high)) + 1):
            for digit in digits:
                yield float(f"{digit}e{decade}")


def loglog(
    title: str, x_label: str, y_label: str, series: Sequence[Series], y_values: Sequence[float] = (), caption: str = ""
) -> str:
    """One figure with its legend; `y_values` shall be in sight too, so that two figures can share an axis."""
    shown = [(k, s, s.visible()) for k, s in enumerate(series)]
    points = [point for _, _, visible in shown for point in visible]
    if not points:
        return ""
    x_axis = Axis.over([x for x, _ in points], LEFT, RIGHT)
    y_axis = Axis.over([*(y for _, y in points), *y_values], BOTTOM, TOP)
    drawing = [*_frame(x_axis, y_axis, x_label, y_label)]
    for k, one, visible in shown:
        drawing += _trace(k, one, [(x_axis.position(x), y_axis.position(y)) for x, y in visible])
        drawing += _legend(k, one)
    name = html.escape(title, quote=True)
    note = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    return (
        f'<figure><svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}">'
        f"<title>{name}</title>{''.join(drawing)}</svg>{note}</figure>"
    )


def _frame(x_axis: Axis, y_axis: Axis, x_label: str, y_label: str) -> Iterator[str]:
    for tick in x_axis.ticks():
        x = x_axis.position(tick)
        yield f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{BOTTOM}"/>'
        yield f'<text x="{x:.1f}" y="{BOTTOM + 17}" text-anchor="middle">{number(tick)}</text>'
    for tick in y_axis.ticks():
        y = y_axis.position(tick)
        yield f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{RIGHT}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{number(tick)}</text>'
    yield f'<rect class="frame" x="{LEFT}" y="{TOP}" width="{RIGHT - LEFT}" height="{BOTTOM - TOP}"/>'
    middle = (TOP + BOTTOM) / 2
    yield f'<text x="{(LEFT + RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">{html.escape(x_label)}</text>'
    yield (
        f'<text x="16" y="{middle}" text-anchor="middle" transform="rotate(-90 16 {middle})">'
        f"{html.escape(y_label)}</text>"
    )


def _trace(k: int, one: Series, places: Sequence[tuple[float, float]]) -> list[str]:
    if not one.joined:
        return [_mark(k, x, y) for x, y in places]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return [f'<polyline class="trace c{k % 6}" stroke-dasharray="{DASHES[k % 6]}" points="{line}"/>']


def _mark(k: int, x: float, y: float) -> str:
    """A circle, a square, a triangle or a diamond, so that marks differ without colour."""
    shape = k % 4
    if shape == 0:
        return f'<circle class="dot c{k % 6}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>'
    if shape == 1:
        return f'<rect class="dot c{k % 6}" x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6"/>'
    corners = ((0, -4), (4, 3), (-4, 3)) if shape == 2 else ((0, -4), (4, 0), (0, 4), (-4, 0))
    at = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon class="dot c{k % 6}" points="{at}"/>'


def _legend(k: int, one: Series) -> list[str]:
    y = TOP + 14 + 21 * k
    places = [(RIGHT + 16.0, float(y)), (RIGHT + 44.0, float(y))] if one.joined else [(RIGHT + 30.0, float(y))]
    return [*_trace(k, one, places), f'<text x="{RIGHT + 52}" y="{y + 4}">{html.escape(one.label)}</text>']


def number(value: float) -> str:
    """A tick's value: plain between a thousandth and a million, else as a power of ten."""
    if 1e-3 <= value < 1e6:
        return f"{value:g}"
    digit, exponent = f"{value:.0e}".split("e")
    power = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{power}" if digit == "1" else f"{digit}·10{power}"
