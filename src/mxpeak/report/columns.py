"""Format tables of plain text, and wrap lines between words."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from mxpeak.foreign import one_line


def table(
    rows: Sequence[Sequence[str]], *, width: int | None = None, least: Sequence[int] = (), left: bool = True
) -> str:
    """Return rows as a table of plain text.

    The first column is left-aligned if `left`. All other columns are right-aligned. If the table is wider than
    `width`, the columns in `least` are omitted in this order until the table fits.
    """
    drop: list[int] = []
    rows = [[one_line(cell) for cell in row] for row in rows]
    while True:
        kept = [[cell for k, cell in enumerate(row) if k not in drop] for row in rows]
        lines = _lines(kept, left=left)
        if width is None or len(drop) == len(least) or max(map(len, lines)) <= width:
            return "\n".join(lines) + "\n"
        drop.append(least[len(drop)])


def _lines(rows: Sequence[Sequence[str]], *, left: bool) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows)]
    first = str.ljust if left else str.rjust
    return [
        "  " + "  ".join([first(row[0], widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:]))]).rstrip()
        for row in rows
    ]


def folded(text: str, width: int | None) -> str:
    """Wrap lines longer than `width` between words, and indent the continuation lines by four more spaces.

    Table rows, which contain three spaces in sequence, are not wrapped.
    """
    if width is None:
        return text
    return "".join(
        line if len(line) <= width + 1 or "   " in line.strip() else _folded(line, width)
        for line in text.splitlines(keepends=True)
    )


def _folded(line: str, width: int) -> str:
    wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False, replace_whitespace=False)
    wrapper.subsequent_indent = " " * (len(line) - len(line.lstrip()) + 4)
    return wrapper.fill(line.rstrip("\n")) + "\n"
