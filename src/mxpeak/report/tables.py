"""Write the results of several runs as one table in Markdown or CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mxpeak.foreign import one_line, printable
from mxpeak.records import Result, figure_text, three_digits
from mxpeak.report.sparse_text import precision_text
from mxpeak.report.summaries import case_text, lines_of
from mxpeak.report.text import percent

Body = Mapping[str, Any]

#: The CSV columns by section of a result.
COLUMNS = {
    "run": ("start",),
    "problem": ("n", "nb", "P", "Q", "nx", "ny", "nz", "precision"),
    "launch": ("ranks",),
    "result": ("rate_flops", "rate_bytes", "time_s", "fraction_of_limit"),
    "validation": ("residual", "threshold"),
    "machine": ("hostname", "cpu_model"),
    "software": ("mxpeak",),
}


def markdown(results: Sequence[tuple[str, Body]]) -> str:
    """Return a Markdown table with a row per result and the name of its run."""
    rows = [["benchmark", "case", "rate", "of limit", "residual", "status", "run"], ["---"] * 7]
    for where, body in results:
        result = Result.from_dict(body)
        share, residual = (
            value if isinstance(value, int | float) else None
            for value in (result.result.get("fraction_of_limit"), result.validation.get("residual"))
        )
        name, rate = lines_of(result.benchmark).name(result), figure_text(result.result)
        error = "" if residual is None else three_digits(residual)
        rows.append([name, case_text(result), rate, percent(share), error, result.mark, where])
    escaped = [["---" if cell == "---" else _escaped(str(cell)) for cell in row] for row in rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in escaped)


def _escaped(text: str) -> str:
    """Escape text for a Markdown cell, so that it contains no markup, HTML or links."""
    return re.sub(r"[\\`*_{}\[\]<>|~&$!#]", r"\\\g<0>", one_line(text))


def comma_separated(results: Sequence[tuple[str, Body]]) -> str:
    """Return CSV with a line per result. Numbers have all digits, and unknown values are empty.

    Rates are in flop/s or bytes/s, and times in seconds.
    """
    file = io.StringIO()
    lines = csv.writer(file, lineterminator="\n")
    lines.writerow(["run", "benchmark", "status", *(name for names in COLUMNS.values() for name in names), "case"])
    for where, body in results:
        figures = [(body.get(section) or {}).get(name) for section, names in COLUMNS.items() for name in names]
        case = case_text(Result.from_dict({"benchmark": "", "status": "", **body}))
        lines.writerow(map(_plain, [where, body.get("benchmark"), body.get("status"), *figures, case]))
    return file.getvalue()


#: Characters at the start of a cell that a spreadsheet interprets as a formula.
FORMULA = tuple("=+-@\t\r＝＋－＠")


def _plain(cell: Any) -> Any:
    """Return a cell, with an apostrophe in front of text that a spreadsheet would evaluate as a formula."""
    if isinstance(cell, int | float | None):
        return cell
    text = precision_text(cell) if isinstance(cell, Mapping) else str(cell)
    return printable(f"'{text}" if text.startswith(FORMULA) else text)
