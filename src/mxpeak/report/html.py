"""The result as one HTML file that needs no network: style, drawings and the JSON itself are inside.

It takes the content of a result file, so that any result.json, also an old one, can be shown again.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mxpeak.records import Result, figure_text, mark, results_of, three_digits
from mxpeak.report.chart import CHART_STYLE
from mxpeak.report.figure import FIGURE_STYLE
from mxpeak.report.lines import case_text, lines_of
from mxpeak.report.scaling import study_figures
from mxpeak.report.steps import rate_figure, steps_figure
from mxpeak.report.text import rules_text

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --faint: #6a737d; --line: #d8dee4; --bar: #3b7ddd;
  --good: #1a7f37; --bad: #cf222e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --faint: #8b949e; --line: #30363d;
  --bar: #58a6ff; --good: #3fb950; --bad: #f85149; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; border-top: 1px solid var(--line);
  padding-top: 1rem; } h3 { font-size: 1rem; margin-bottom: .3rem; }
table { border-collapse: collapse; } td, th { padding: .15rem .9rem .15rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
th { color: var(--faint); font-weight: 500; } .number { text-align: right; font-variant-numeric: tabular-nums; }
.PASSED { color: var(--good); font-weight: 700; } .FAILED, .ABORTED, .SLOW { color: var(--bad); font-weight: 700; }
.big { font-size: 2rem; margin: .2rem 0; } .faint { color: var(--faint); }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; } svg .bar { fill: var(--bar); }
svg .curve { fill: none; stroke: var(--bar); stroke-width: 2; } svg .k1 { stroke: var(--faint); stroke-dasharray: 7 4; }
svg .axis { stroke: var(--line); }
"""


#: Bars in all figures of steps together, about, and in one: a page of hundreds of results has to stay small.
BARS, MOST_BARS, LEAST_BARS = 600, 100, 10


def html_report(document: Mapping[str, Any]) -> str:
    """The page of a result file's content, of one result or of several."""
    results = results_of(document)
    title = "mxpeak: " + (", ".join(dict.fromkeys(str(r.get("benchmark")) for r in results)) or "no results")
    head = [f"<h1>{_text(title)}</h1>", _scoreboard(results), _study(document.get("study") or {})]
    bars = max(LEAST_BARS, min(MOST_BARS, BARS // max(1, len(results))))
    body = [*head, *(_section(r, bars) for r in results), _embedded(document)]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{STYLE}{FIGURE_STYLE}{CHART_STYLE}</style></head><body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _text(value: Any) -> str:
    """Anything as escaped text; what is not known is a dash."""
    if value is None:
        return "–"
    return html.escape(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


def _part(result: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return result.get(name) or {}


def _mark(result: Mapping[str, Any]) -> str:
    word = mark(str(result.get("status")))
    return f'<span class="{word}">{word}</span>'


def _share(result: Mapping[str, Any]) -> str:
    fraction = _part(result, "result").get("fraction_of_limit")
    return "–" if fraction is None else f"{three_digits(100 * fraction)} %"


def _scoreboard(results: Sequence[Mapping[str, Any]]) -> str:
    head = (
        "<tr><th>benchmark</th><th>case</th><th>rate</th><th>share of limit</th><th>time</th><th>validation</th>"
        "<th>rules</th></tr>"
    )
    runs = [_of_run(r) for r in results]
    if len(set(runs)) == 1:
        runs = [""] * len(runs)
    else:
        head = head.replace("</tr>", "<th>run</th></tr>")
        runs = [f"<td>{_text(run)}</td>" for run in runs]
    rows = [
        f"<tr><td>{_text(r.get('benchmark'))}</td><td>{_text(_size(r))}</td>"
        f'<td class="number">{_text(figure_text(_part(r, "result")))}</td>'
        f'<td class="number">{_share(r)}</td>'
        f'<td class="number">{three_digits(_part(r, "result").get("time_s"))} s</td><td>{_mark(r)}</td>'
        f"<td>{_text(rules_text(_read(r)))}</td>{run}</tr>"
        for r, run in zip(results, runs)
    ]
    return f"<table>{head}{''.join(rows)}</table>"


def _of_run(result: Mapping[str, Any]) -> str:
    """When and where a run began; nothing where it does not say."""
    said = (_part(result, "run").get("start"), _part(result, "machine").get("hostname"))
    return " ".join(str(word) for word in said if word)


def _study(study: Mapping[str, Any]) -> str:
    """Efficiency and rate of a series over counts of ranks."""
    if not study:
        return ""
    said = f'<p class="faint">expected: {_text(study["expected"]["text"])}</p>'
    return _titled(f"{study['kind'].capitalize()} scaling", study_figures(study) + said)


def _section(result: Mapping[str, Any], bars: int) -> str:
    """All about one result; a figure of its steps has at most so many bars."""
    steps = _part(_part(result, "telemetry"), "steps")
    config = [(name, *_setting(value)) for name, value in _part(result, "config").items()]
    parts = [
        f"<h2>{_text(result.get('benchmark'))} {_mark(result)}</h2>",
        f'<p class="big">{_text(figure_text(_part(result, "result")))}</p>',
        f'<p class="faint">{_text(_limit(result))}</p>',
        *(f"<p>{_text(line)}</p>" for line in _found(result)),
        _rules(result),
        f"<p>{_text(_size(result))}{_text(_memory(result))}</p>",
        _warnings(result.get("warnings") or []),
        _titled("Where the time went", _phase_bars(_part(result, "phases"))),
        _titled("Mixed against double, by motif", _motifs(result)),
        _titled("Where each step's time went", steps_figure(str(result.get("benchmark")), steps, bars)),
        _titled("Rate over the run", rate_figure(_part(result, "telemetry"), _bound(result))),
        _history(result),
        _titled("Configuration", _table(("setting", "value", "from"), config)),
        *(
            _titled(name.capitalize(), _table(("", ""), _part(result, name).items()))
            for name in ("machine", "software", "launch", "run")
        ),
    ]
    return "\n".join(part for part in parts if part)


def _read(result: Mapping[str, Any]) -> Result:
    """A result as it was written, whatever an old file left out."""
    return Result.from_dict({"benchmark": "", "status": "", **result})


def _size(result: Mapping[str, Any]) -> str:
    """The size of a case in one line."""
    return case_text(_read(result))


def _memory(result: Mapping[str, Any]) -> str:
    problem = _part(result, "problem")
    memory = problem.get("memory_bytes") or {}
    if not isinstance(memory, Mapping) or "matrix" not in memory:
        text = lines_of(str(result.get("benchmark"))).memory(problem) if isinstance(memory, Mapping) else ""
        return f"; {text}" if text else ""
    return (
        f"; matrix {three_digits(memory['matrix'] / 2**30)} GiB of {three_digits(memory['total'] / 2**30)} GiB in all"
    )


def _setting(value: Any) -> tuple[Any, Any]:
    return (value.get("value"), value.get("origin")) if isinstance(value, Mapping) else (value, None)


def _limit(result: Mapping[str, Any]) -> str:
    limit = _part(result, "result").get("limit")
    if not limit:
        return "no limit was measured"
    return f"{_share(result)} of {limit.get('name')}, measured at {figure_text(limit)} in this process"


def _found(result: Mapping[str, Any]) -> list[str]:
    """What the validation found, and the other rates where a benchmark has some."""
    return lines_of(str(result.get("benchmark"))).found(_read(result))


def _rules(result: Mapping[str, Any]) -> str:
    rules = _part(result, "rules")
    if not rules:
        return ""
    if rules.get("admissible"):
        return "<p>ADMISSIBLE: no rule of the list is broken</p>"
    items = "".join(
        f"<li>{_text(one.get('rule'))}: {_text(one.get('text'))}</li>" for one in rules.get("violations") or ()
    )
    return f"<p>{_text(rules_text(_read(result)))}</p><ul>{items}</ul>"


def _titled(title: str, content: str) -> str:
    return f"<h3>{_text(title)}</h3>{content}" if content else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = ["<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    if not lines:
        return ""
    titles = "<tr>" + "".join(f"<th>{_text(cell)}</th>" for cell in head) + "</tr>" if any(head) else ""
    return f"<table>{titles}{''.join(lines)}</table>"


def _warnings(warnings: Sequence[Mapping[str, Any]]) -> str:
    items = [
        f"<li>{_text(w.get('text'))}"
        + (f' <span class="faint">{_text(w["hint"])}</span>' if w.get("hint") else "")
        + "</li>"
        for w in warnings
    ]
    return _titled("Warnings", f"<ul>{''.join(items)}</ul>" if items else "")


def _phase_bars(phases: Mapping[str, Mapping[str, Any]]) -> str:
    """One bar a phase, the longest first, of its mean time; the slowest rank's time stands beside it."""
    bars = sorted(((p.get("time_s") or 0.0, name, p.get("max_s")) for name, p in phases.items()), reverse=True)
    longest = max((time_s for time_s, _, _ in bars), default=0.0)
    if not longest:
        return ""
    rows = []
    for k, (time_s, name, max_s) in enumerate(bars):
        y, width = 22 * k, 420 * time_s / longest
        label = f"{three_digits(time_s)} s (slowest rank {three_digits(max_s)} s)"
        rows.append(
            f'<text x="110" y="{y + 14}" text-anchor="end">{_text(name)}</text>'
            f'<rect class="bar" x="118" y="{y + 2}" width="{width:.1f}" height="16" rx="2"/>'
            f'<text x="{124 + width:.1f}" y="{y + 14}">{label}</text>'
        )
    return f'<svg viewBox="0 0 760 {22 * len(bars)}" role="img" aria-label="time by phase">{"".join(rows)}</svg>'


def _motifs(result: Mapping[str, Any]) -> str:
    head, *rows = lines_of(str(result.get("benchmark"))).motifs(_read(result)) or [()]
    return _table(head, rows)


def _bound(result: Mapping[str, Any]) -> float | None:
    """The rate that a run could reach at most, where that is known."""
    figures = _part(result, "result")
    rate, share = figures.get("rate_flops"), figures.get("fraction_of_limit")
    return rate / share if rate and share and "rate_flops" in (figures.get("limit") or {}) else None


def _history(result: Mapping[str, Any]) -> str:
    name, of = lines_of(str(result.get("benchmark"))).history
    return _titled(f"{name} by step of {of}", _history_curve(name, _part(result, "validation")))


def _history_curve(name: str, validation: Mapping[str, Any]) -> str:
    """The residual at the start and after each step, on a logarithmic scale, with the threshold: a curve a solver."""
    curves, threshold = _histories(validation), validation.get("threshold")
    values = [eta for history in curves.values() for eta in history]
    if not curves or not threshold:
        return ""
    low, high = (math.log10(pick([*values, threshold])) for pick in (min, max))
    if high == low:
        return ""

    def y(eta: float) -> float:
        return 30 + 150 * (high - math.log10(eta)) / (high - low)

    most = max(map(len, curves.values())) - 1
    lines, ends = "", []
    for k, (solver, history) in enumerate(curves.items()):
        points = " ".join(f"{20 + 700 * step / most:.1f},{y(eta):.1f}" for step, eta in enumerate(history))
        lines += f'<polyline class="curve k{k}" points="{points}"/>'
        ends.append(f"{solver} {three_digits(history[-1])} after step {len(history) - 1}".strip())
    return (
        f'<svg viewBox="0 0 760 210" role="img" aria-label="{name.lower()} by step">'
        f'<line class="axis" x1="20" y1="{y(threshold):.1f}" x2="720" y2="{y(threshold):.1f}"/>'
        f'<text x="720" y="{y(threshold) - 4:.1f}" text-anchor="end">threshold {three_digits(threshold)}</text>'
        f'{lines}<text x="20" y="22">{three_digits(values[0])}</text>'
        f'<text x="720" y="198" text-anchor="end">{_text("; ".join(ends))}</text></svg>'
    )


def _histories(validation: Mapping[str, Any]) -> dict[str, list[float]]:
    """The residuals by solver; of a solver that stands alone, under no name.  What makes no curve is left out."""
    found = validation.get("history") or []
    named = found if isinstance(found, Mapping) else {"": found}
    kept = {name: [eta for eta in etas or [] if eta is not None and eta > 0.0] for name, etas in named.items()}
    return {name: etas for name, etas in kept.items() if len(etas) >= 2}


def _embedded(document: Mapping[str, Any]) -> str:
    """The JSON itself; with < > & as \\u escapes no text in it can end the script element."""
    text = json.dumps(document, allow_nan=False, ensure_ascii=True)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="mxpeak-result">{text}</script>'
