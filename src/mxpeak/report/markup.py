"""Build HTML elements (escaped text, tables and bars), and read sections of results."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mxpeak.records import Result
from mxpeak.report.text import share_text

Body = Mapping[str, Any]

#: Smallest share that is shown as above 100 %, because it is rounded to 101 %.
ABOVE = 1.005


def text(value: Any) -> str:
    """Return a value as text with HTML escapes, or a dash for None."""
    if value is None:
        return "–"
    return html.escape(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


def part(result: Body, name: str) -> Body:
    """Return a section of a result, or an empty dict if it has none."""
    return result.get(name) or {}


def read(result: Body) -> Result:
    """Convert the dictionary of a result, possibly of an older version, to a Result."""
    return Result.from_dict(result)


def status(result: Body) -> str:
    """Return HTML with the status of a result, whose style sets the color."""
    word = read(result).mark
    return f'<span class="{word}">{word}</span>'


def share(result: Body) -> str:
    """Return the share of the limit in percent, or a dash if it is unknown; a star marks an uncertain share."""
    return share_text(read(result)) or "–"


def rate_of(result: Body) -> float:
    """Return the rate of a result in flop/s or bytes/s, or 0 if the result has no rate."""
    figures = part(result, "result")
    return float(figures.get("rate_flops") or figures.get("rate_bytes") or 0.0)


def meter(fraction: float | None, tooltip: str = "") -> str:
    """Return an HTML bar that shows a share. A line at the end of the bar marks a share above 100 %."""
    if fraction is None:
        return ""
    width = 100 * min(1.0, max(0.0, fraction))
    look = "meter over" if fraction >= ABOVE else "meter"
    return f'<span class="{look}" title="{text(tooltip)}"><i style="width: {width:.1f}%"></i></span>'


def titled(title: str, content: str) -> str:
    """Return the content below a heading, or an empty string if there is no content."""
    return f"<h3>{text(title)}</h3>{content}" if content else ""


def folded(title: str, content: str) -> str:
    """Return content that a click on the title expands, or an empty string if there is no content."""
    return f"<details><summary>{text(title)}</summary>{content}</details>" if content else ""


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], wide: int | None = None) -> str:
    """Return an HTML table. Lines in the column `wide` may break at any character."""
    look = ' class="value"'
    lines = ["".join(f"<td{look * (k == wide)}>{text(cell)}</td>" for k, cell in enumerate(row)) for row in rows]
    titles = ["".join(f"<th>{text(cell)}</th>" for cell in head)] if any(head) else []
    body = "".join(f"<tr>{line}</tr>" for line in titles + lines)
    return f"<table>{body}</table>" if lines else ""
