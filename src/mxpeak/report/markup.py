"""The pieces that pages are made of: escaped text, tables, bars, and what a result says under a name."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mxpeak.records import Result, drifted, mark, three_digits

Body = Mapping[str, Any]

#: A share from which it is shown as above 100 %: it rounds to 101 %.
ABOVE = 1.005


def text(value: Any) -> str:
    """Anything as escaped text; what is not known is a dash."""
    if value is None:
        return "–"
    return html.escape(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


def part(result: Body, name: str) -> Body:
    """A section of a result; empty where it has none."""
    return result.get(name) or {}


def read(result: Body) -> Result:
    """A result as it was written, whatever an old file left out."""
    return Result.from_dict(result)


def status(result: Body) -> str:
    """Whether a result passed, in its colour."""
    word = mark(str(result.get("status")))
    return f'<span class="{word}">{word}</span>'


def share(result: Body) -> str:
    """Return the share of the limit, with a star if the machine's speed changed."""
    figures = part(result, "result")
    fraction, star = figures.get("fraction_of_limit"), "*" * drifted(figures)
    return "–" if fraction is None else f"{three_digits(100 * fraction)} %{star}"


def meter(fraction: float | None, said: str = "") -> str:
    """A bar that is filled to a share of its width; one that is above 100 % is full, and has a mark at its end."""
    if fraction is None:
        return ""
    width = 100 * min(1.0, max(0.0, fraction))
    look = "meter over" if fraction >= ABOVE else "meter"
    return f'<span class="{look}" title="{text(said)}"><i style="width: {width:.1f}%"></i></span>'


def titled(title: str, content: str) -> str:
    """Content under its title; nothing without content."""
    return f"<h3>{text(title)}</h3>{content}" if content else ""


def folded(title: str, content: str) -> str:
    """Content that shows when its title is clicked on; nothing without content."""
    return f"<details><summary>{text(title)}</summary>{content}</details>" if content else ""


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], wide: int | None = None) -> str:
    """Rows of plain values; those of the column `wide` may break anywhere."""
    lines = []
    for row in rows:
        cells = (f'<td class="value">{text(c)}</td>' if k == wide else f"<td>{text(c)}</td>" for k, c in enumerate(row))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    if not lines:
        return ""
    titles = "<tr>" + "".join(f"<th>{text(cell)}</th>" for cell in head) + "</tr>" if any(head) else ""
    return f"<table>{titles}{''.join(lines)}</table>"
