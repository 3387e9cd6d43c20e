"""All results of a page at one glance: a row each, which on a narrow screen becomes a small block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mxpeak.records import PASSED, figure_text, three_digits
from mxpeak.report.lines import case_text, lines_of
from mxpeak.report.markup import Body, meter, part, read, share, status, text
from mxpeak.report.roofline import measured_on
from mxpeak.report.text import rules_text

#: Columns, in the order in which they are shown; one that is empty in all rows is left out.
COLUMNS = ("benchmark", "case", "rate", "share of limit", "", "time", "validation", "rules", "beside", "run")
NUMBERS = ("rate", "share of limit", "time")


def overview(results: Sequence[Body], runs: Sequence[str]) -> str:
    """Of each result its rate, its share of the limit as a bar too, its time, its check; and whose it is."""
    rates: dict[Any, dict[str, float]] = {}  # of runs that passed, by the machine that they ran on
    for one in results:
        if one.get("status") in PASSED:
            rate = float(part(one, "result").get("rate_flops") or 0.0)
            rates.setdefault(measured_on(one), {})[str(one.get("benchmark"))] = rate
    several = len(set(runs)) > 1
    rows = [_row(one, rates.get(measured_on(one), {}), run if several else "") for one, run in zip(results, runs)]
    used = [k for k in range(len(COLUMNS)) if any(row[k] for row in rows)]
    titles = "".join(_title(COLUMNS[k]) for k in used)
    lines = ("".join(_cell(COLUMNS[k], row[k], first=k == used[0]) for k in used) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<table class="rows"><tr class="head">{titles}</tr>{body}</table>' if rows else ""


def _cell(name: str, content: str, *, first: bool) -> str:
    look = "first" if first else "number" if name in NUMBERS else ""
    label = f' data-name="{name}"' if name and content else ""
    return f'<td class="{look}"{label}>{content}</td>'


def _title(name: str) -> str:
    return f'<th class="number">{name}</th>' if name in NUMBERS else f"<th>{name}</th>"


def _row(one: Body, rates: dict[str, float], run: str) -> list[str]:
    figures, result = part(one, "result"), read(one)
    fraction, limit = figures.get("fraction_of_limit"), figures.get("limit") or {}
    time_s = figures.get("time_s")
    said = f"{share(one)} of {limit.get('name')}, {figure_text(limit)}" if limit else ""
    return [
        text(lines_of(result.benchmark).name(result)),
        text(case_text(result)),
        text(figure_text(figures)),
        "" if fraction is None else share(one),
        meter(fraction, said),
        "" if time_s is None else f"{three_digits(time_s)} s",
        status(one),
        text(rules_text(result)),
        text(lines_of(result.benchmark).beside(result, rates)),
        text(run),
    ]
