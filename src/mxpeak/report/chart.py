"""Figures as SVG inside a page: curves and marks on two axes, and times stacked step by step.

Every figure says what its axes are and their units, has its legend under it as text, and shows values on hovering.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from mxpeak.report.axes import Axis

WIDTH, HEIGHT = 560, 314
LEFT, TOP, RIGHT, BOTTOM = 66, 32, 538, 264
#: Marks that differ without colour, in the drawing and in the legend.
MARKS = ("circle", "square", "triangle", "diamond")
GLYPHS = {"circle": "●", "square": "■", "triangle": "▲", "diamond": "◆"}


@dataclass(frozen=True, slots=True)
class Curve:
    """Points, what each of them says, and how they look: joined to a line, marked, or both."""

    label: str
    points: Sequence[tuple[float, float]]
    said: Sequence[str] = field(default=())
    colour: int = 0
    dashed: bool = False
    mark: str = ""
    joined: bool = True


def curves(title: str, x_label: str, y_label: str, x: Axis, y: Axis, series: Sequence[Curve], caption: str = "") -> str:
    """Curves over one another, the first behind, with a legend."""
    drawing = [*_frame(x, y, x_label, y_label)]
    for one in series:
        drawing += _drawn(one, [(x.place(at, LEFT, RIGHT), y.place(value, BOTTOM, TOP)) for at, value in one.points])
    return _figure(title, drawing, [(_key(one), one.label) for one in series], caption)


def _key(one: Curve) -> str:
    """How a curve looks, for the legend."""
    if one.joined:
        return f'<span class="key line c{one.colour}{" dashed" if one.dashed else ""}"></span>'
    return f'<span class="key c{one.colour}">{GLYPHS[one.mark]}</span>'


def _drawn(one: Curve, places: Sequence[tuple[float, float]]) -> Iterator[str]:
    if one.joined:
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dashes = ' stroke-dasharray="7 4"' if one.dashed else ""
        yield f'<polyline class="trace c{one.colour}"{dashes} points="{line}"/>'
    for k, (x, y) in enumerate(places):
        said = one.said[k] if k < len(one.said) else ""
        if one.mark or said:
            title = f"<title>{html.escape(said)}</title>" if said else ""
            yield _mark(one.mark, f"dot c{one.colour}" if one.mark else "unseen", x, y, title)


def _mark(kind: str, look: str, x: float, y: float, title: str) -> str:
    """A circle, a square, a triangle or a diamond; where nothing is to be seen, a circle that is hovered on."""
    if kind in ("triangle", "diamond"):
        corners = ((0, -5), (5, 4), (-5, 4)) if kind == "triangle" else ((0, -5), (5, 0), (0, 5), (-5, 0))
        at = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
        return f'<polygon class="{look}" points="{at}">{title}</polygon>'
    if kind == "square":
        return f'<rect class="{look}" x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8">{title}</rect>'
    return f'<circle class="{look}" cx="{x:.1f}" cy="{y:.1f}" r="{4 if kind else 7}">{title}</circle>'


def stacked(
    title: str,
    x_label: str,
    y_label: str,
    x: Axis,
    edges: Sequence[float],
    layers: Sequence[tuple[str, Sequence[float]]],
    caption: str = "",
) -> str:
    """Times on top of one another: layer by layer its height between every two edges, of which there is one more."""
    tops = [list(accumulate(column)) for column in zip(*(values for _, values in layers))]
    y = Axis.from_zero(max((column[-1] for column in tops), default=1.0))
    drawing = [*_frame(x, y, x_label, y_label)]
    for j, column in enumerate(tops):
        left, right = (x.place(edge, LEFT, RIGHT) for edge in edges[j : j + 2])
        below = float(BOTTOM)
        for k, ((name, values), top) in enumerate(zip(layers, column)):
            above = y.place(top, BOTTOM, TOP)
            if below - above >= 0.05:
                said = html.escape(f"{x_label} {edges[j]:g} to {edges[j + 1]:g}: {name} {values[j]:.3g} {y_label}")
                shape = f'x="{left:.2f}" y="{above:.2f}" width="{right - left:.2f}" height="{below - above:.2f}"'
                drawing.append(f'<rect class="layer c{k % 8}" {shape}><title>{said}</title></rect>')
            below = above
    keys = [(f'<span class="key c{k % 8}">■</span>', name) for k, (name, _) in enumerate(layers)]
    return _figure(title, drawing, keys[::-1], caption)


def _figure(title: str, drawing: Iterable[str], legend: Sequence[tuple[str, str]], caption: str) -> str:
    """A drawing with its title over it, and its legend and what else is to be said under it."""
    name = html.escape(title, quote=True)
    items = "".join(f"<li>{key} {html.escape(label)}</li>" for key, label in legend)
    note = f'<p class="note">{html.escape(caption)}</p>' if caption else ""
    return (
        f'<figure><figcaption>{name}</figcaption><svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{name}">{"".join(drawing)}</svg><ul class="legend">{items}</ul>{note}</figure>'
    )


def _frame(x: Axis, y: Axis, x_label: str, y_label: str) -> Iterator[str]:
    for at, text in x.ticks:
        place = x.place(at, LEFT, RIGHT)
        yield f'<line class="grid" x1="{place:.1f}" y1="{TOP}" x2="{place:.1f}" y2="{BOTTOM}"/>'
        yield f'<text class="tick" x="{place:.1f}" y="{BOTTOM + 20}" text-anchor="middle">{html.escape(text)}</text>'
    for at, text in y.ticks:
        place = y.place(at, BOTTOM, TOP)
        yield f'<line class="grid" x1="{LEFT}" y1="{place:.1f}" x2="{RIGHT}" y2="{place:.1f}"/>'
        yield f'<text class="tick" x="{LEFT - 7}" y="{place + 5:.1f}" text-anchor="end">{html.escape(text)}</text>'
    yield f'<rect class="frame" x="{LEFT}" y="{TOP}" width="{RIGHT - LEFT}" height="{BOTTOM - TOP}"/>'
    middle = (LEFT + RIGHT) / 2
    yield f'<text class="label" x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{html.escape(x_label)}</text>'
    yield f'<text class="label" x="{LEFT - 7}" y="18">{html.escape(y_label)}</text>'
