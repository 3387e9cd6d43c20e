"""Tables of plain text, and lines that fold between words."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from mxpeak.foreign import one_line


def table(rows: Sequence[Sequence[str]], *, width: int | None = None, least: Sequence[int] = ()) -> str:
    """Columns as wide as their widest cell; the first to the left, the others to the right.

    Where that is wider than `width`, columns are left out: those of `least`, the first of them first.
    """
    drop: list[int] = []
    rows = [[one_line(cell) for cell in row] for row in rows]
    while True:
        kept = [[cell for k, cell in enumerate(row) if k not in drop] for row in rows]
        lines = _lines(kept)
        if width is None or len(drop) == len(least) or max(map(len, lines)) <= width:
            return "\n".join(lines) + "\n"
        drop.append(least[len(drop)])


def _lines(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  " + "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:]))]).rstrip()
        for row in rows
    ]


def folded(text: str, width: int | None) -> str:
    """Lines that are longer than `width` go on below, deeper by four; words stay whole, and so do tables' rows."""
    if width is None:
        return text
    return "".join(
        line if len(line) <= width + 1 or "   " in line.strip() else _folded(line, width)
        for line in text.splitlines(keepends=True)
    )


def _folded(line: str, width: int) -> str:
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    parts = textwrap.wrap(
        line.rstrip("\n"),
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
        replace_whitespace=False,
    )
    return "\n".join(parts) + "\n"
