"""Show the conclusion of a page, and a table with one row per result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mxpeak.records import PASSED, drifted, figure_text, three_digits
from mxpeak.report.markup import ABOVE, Body, meter, part, rate_of, read, share, status, text
from mxpeak.report.roofline import measured_on
from mxpeak.report.scoreboard import count_text
from mxpeak.report.summaries import lines_of, problem_parts, title_of
from mxpeak.report.text import percent, rules_text

#: Columns in the order of printing; columns without content are omitted.
COLUMNS = ("benchmark", "problem", "rate", "of limit", "", "time", "check", "list status", "speedup", "run")
NUMBERS = ("rate", "of limit", "time")


def conclusion(results: Sequence[Body]) -> str:
    """Return HTML with the number of valid results, and the best rate of HPL or else of the first valid benchmark."""
    if not results:
        return ""
    valid = [result for result in results if result.get("status") == "valid"]
    unrated = sum(read(result).mark == "UNRATED" for result in valid)
    sentences = [count_text(len(valid) - unrated, len(results))] if unrated < len(results) else []
    sentences += ["A standalone solver has no rating."] if unrated else []
    of_hpl = [result for result in valid if result.get("benchmark") == "hpl"]
    same = of_hpl or [result for result in valid if result.get("benchmark") == valid[0].get("benchmark")]
    if same:
        best = max(same, key=rate_of)
        figures, name = part(best, "result"), title_of(str(best.get("benchmark")))
        fraction, limit = figures.get("fraction_of_limit"), figures.get("limit") or {}
        limit_name = str(limit.get("name", "")).split(",")[0]
        share_of = "" if fraction is None else f" ({100 * fraction:.0f} % of this machine's {limit_name or 'limit'})"
        sentences.append(f"{name}{' at best' * (len(same) > 1)}: {figure_text(figures)}{share_of}.")
    return f'<p class="lead">{text(" ".join(sentences))}</p>'


def overview(results: Sequence[Body], runs: Sequence[str]) -> str:
    """Return the HTML table of all results; `runs` contains the name of the run of each result."""
    rates: dict[Any, dict[str, float]] = {}  # the rates of runs that passed, by machine
    for result in results:
        is_emulated_hpl = result.get("benchmark") == "hpl" and part(result, "result").get("fp64") == "emulated"
        if result.get("status") in PASSED and not is_emulated_hpl:
            rate = float(part(result, "result").get("rate_flops") or 0.0)
            rates.setdefault(measured_on(result), {})[str(result.get("benchmark"))] = rate
    names = runs if len(set(runs)) > 1 else [""] * len(runs)
    rows = [_row(result, rates.get(measured_on(result), {}), name) for result, name in zip(results, names)]
    used = [k for k in range(len(COLUMNS)) if any(row[k] for row in rows)]
    number = ' class="number"'
    titles = "".join(f"<th{number * (COLUMNS[k] in NUMBERS)}>{COLUMNS[k]}</th>" for k in used)
    lines = ("".join(_cell(COLUMNS[k], row[k], first=k == used[0]) for k in used) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<table class="rows"><tr class="head">{titles}</tr>{body}</table>{_footnotes(results)}' if rows else ""


def _footnotes(results: Sequence[Body]) -> str:
    """Return footnotes that explain the star of an uncertain share and shares above 100 %."""
    figures, notes = [part(result, "result") for result in results], []
    if changes := [float((each["limit"] or {}).get("drift") or 0.0) for each in figures if drifted(each)]:
        notes.append(
            f"* The machine's speed changed by up to {percent(max(changes))} between the measurements of the limit, so "
            "the share is uncertain. Stop other programs, and run again."
        )
    if any((each.get("fraction_of_limit") or 0.0) >= ABOVE for each in figures):
        notes.append(
            "A share above 100 % means that the machine was faster during the run than when the limit was measured. "
            "Its bar ends with a red mark."
        )
    return "".join(f'<p class="note">{text(note)}</p>' for note in notes)


def _cell(name: str, content: str, *, first: bool) -> str:
    look = "first" if first else "number" if name in NUMBERS else ""
    label = f' data-name="{name}"' if name and content else ""
    return f'<td class="{look}"{label}>{content}</td>'


def _row(body: Body, rates: dict[str, float], run: str) -> list[str]:
    figures, result = part(body, "result"), read(body)
    fraction, limit = figures.get("fraction_of_limit"), figures.get("limit") or {}
    time_s = figures.get("time_s")
    tooltip = f"{share(body)} of {limit.get('name')}, {figure_text(limit)}" if limit else ""
    return [
        text(lines_of(result.benchmark).name(result)),
        text("\N{NO-BREAK SPACE}· ".join(problem_parts(result))),
        text(figure_text(figures)),
        "" if fraction is None else share(body),
        meter(fraction, tooltip),
        "" if time_s is None else f"{three_digits(time_s)} s",
        status(body),
        text(rules_text(result)),
        text(lines_of(result.benchmark).beside(result, rates)),
        text(run),
    ]
