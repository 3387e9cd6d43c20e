"""Write results as one self-contained HTML page with style, plots and JSON.

The input is the content of a result file, so that the page can also be made from an old result.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mxpeak.perf.published import published_rates
from mxpeak.records import PASSED, figure_text, fp64_scheme, results_of, three_digits
from mxpeak.report.energy import energy_ratios, energy_text
from mxpeak.report.markup import Body, folded, meter, part, rate_of, read, share, status, table, text, titled
from mxpeak.report.overview import conclusion, overview
from mxpeak.report.rank_map import rank_map
from mxpeak.report.roofline import Roofs, measured_on, roofline_figure, roofs_of
from mxpeak.report.run_card import card
from mxpeak.report.run_plots import convergence_figure, device_figure, rate_figure, repeats_figure, steps_figure
from mxpeak.report.scaling import ranks_figures, sizes_figure, study_figures
from mxpeak.report.settings import facts, settings, shared_facts
from mxpeak.report.style import page
from mxpeak.report.summaries import lines_of, problem_parts
from mxpeak.report.text import nested_phases, own_test, phase_rate, rules_text

#: Approximate total number of bars in all step plots of a page, and maximum and minimum per plot. A page with many
#: results must remain small.
BARS, MAX_BARS, MIN_BARS = 600, 100, 10
#: Maximum number of expanded results per benchmark. With more results, only the fastest result is expanded.
MAX_OPEN = 2


def html_report(document: Body, runs: Sequence[str] = ()) -> str:
    """Return the HTML page of a result file; `runs` contains the name of the run of each result."""
    results = results_of(document)
    runs = runs or [""] * len(results)
    names = list(dict.fromkeys(str(result.get("benchmark")) for result in results))
    title = text("mxpeak: " + (", ".join(names) or "no results"))
    show = _Sections(results, study=bool(document.get("study")))
    body = [
        f"<h1>{title}</h1>",
        conclusion(results),
        card(results, runs),
        overview(results, runs),
        *(f"<p>{text(ratio)}</p>" for ratio in energy_ratios([read(result) for result in results])),
        _published(results),
        _study(document.get("study") or {}),
        *(show.benchmark(name, [each for each in results if str(each.get("benchmark")) == name]) for name in names),
        _embedded(document),
    ]
    return page(title, "\n".join(filter(None, body)), script=True)


def _published(results: Sequence[Body]) -> str:
    """Return collapsed HTML with the published rates of each device model; empty if no model is known."""
    models = dict.fromkeys(str(part(result, "machine").get("device_name")) for result in results)
    rates_of = {model: published_rates(model) for model in models}
    return "".join(
        folded(
            f"Published rates of one {model}",
            table(("", "rate", "source"), [(r.name, figure_text(r.as_dict()), r.source) for r in rates], wide=2),
        )
        for model, rates in rates_of.items()
        if rates
    )


def _study(study: Body) -> str:
    """Return the HTML plots of a scaling study, or an empty string if there is no study."""
    if not study:
        return ""
    expected = f'<p class="faint">expected: {text(study["expected"]["text"])}</p>'
    return f"<h2>{text(study['kind'].capitalize())} scaling</h2>{_figures(study_figures(study))}{expected}"


def _figures(*drawn: str) -> str:
    figures = "".join(drawn)
    return f'<div class="figures">{figures}</div>' if figures else ""


class _Sections:
    """Builds the HTML sections of a page, and stores the facts that all results share."""

    def __init__(self, results: Sequence[Body], *, study: bool):
        self.results, self.study = results, study
        self.bars = max(MIN_BARS, min(MAX_BARS, BARS // max(1, len(results))))
        self.shared = shared_facts(results) if results else {}
        self._roofs: dict[Any, Roofs] = {}

    def roofs(self, result: Body) -> Roofs:
        """Return the measured limits of the machine that produced a result. The limits are cached."""
        where = str(measured_on(result))
        return self._roofs.get(where) or self._roofs.setdefault(where, roofs_of(self.results, result))

    def benchmark(self, name: str, group: Sequence[Body]) -> str:
        """Return the HTML of a benchmark: plots over all of its results, and a section per result."""
        over_ranks = "" if self.study else ranks_figures(name, group)  # a study has its own plot
        runs = {str(part(result, "problem").get("precision")): part(result, "validation") for result in group}
        history = convergence_figure(*lines_of(name).history, list(runs.items())) if len(runs) > 1 else ""
        together = _figures(over_ranks, sizes_figure(name, group), history)
        if len(group) <= MAX_OPEN:
            return together + "".join(map(self.open, group))
        best = max(group, key=lambda result: (result.get("status") in PASSED, rate_of(result)))
        others = "".join(self.closed(result) for result in group if result is not best)
        return f"{together}{self.open(best)}{others}"

    def open(self, result: Body) -> str:
        """Return the HTML section of a result, expanded."""
        return f"<section><h2>{_name(result)}</h2>{self.body(result)}</section>"

    def closed(self, result: Body) -> str:
        """Return the HTML section of a result, collapsed under its name and rate."""
        rate = text(figure_text(part(result, "result")))
        return f"<details><summary><h2>{_name(result)}</h2> {rate}</summary>{self.body(result)}</details>"

    def body(self, result: Body) -> str:
        """Return the HTML content of the section of a result."""
        benchmark, telemetry = str(result.get("benchmark")), part(result, "telemetry")
        lines, resumed = lines_of(benchmark), int(part(part(result, "result"), "resumed").get("steps") or 0)
        history, of = lines.history
        head, *motifs = lines.motifs(read(result)) or [()]
        parts = [
            _headline(result),
            *(f"<p>{text(line)}</p>" for line in lines.check_lines(read(result))),
            _rules(result),
            f"<p>{text(' · '.join(problem_parts(read(result))))}{text(_memory(result))}</p>",
            folded(
                "How the result was checked", "".join(f"<p>{text(line)}</p>" for line in lines.details(read(result)))
            ),
            _energy(telemetry),
            _warnings(result.get("warnings") or []),
            _scan(result),
            titled("Time by phase", _phases(result)),
            _figures(
                steps_figure(benchmark, part(telemetry, "steps"), self.bars, resumed),
                device_figure(part(telemetry, "steps"), self.bars, resumed),
                rate_figure(telemetry, _bound(result)),
                roofline_figure(_computations(result), self.roofs(result)),
                convergence_figure(history, of, [("", part(result, "validation"))]),
                repeats_figure(result.get("samples_s") or []),
            ),
            titled("Mixed and double precision by motif", table(head, motifs)),
            titled("Ranks", rank_map(part(result, "problem"), part(result, "launch"))),
            titled("Settings", settings(result)),
            facts(result, self.shared),
        ]
        return "\n".join(filter(None, parts))


def _name(result: Body) -> str:
    return f"{text(lines_of(str(result.get('benchmark'))).name(read(result)))} {status(result)}"


def _headline(result: Body) -> str:
    """Return HTML with the rate of a result, its share of the limit as a bar, and its time."""
    figures = part(result, "result")
    limit = figures.get("limit")
    limit_text = "no limit was measured"
    if limit:
        measured = f"measured at {figure_text(limit)} in this process{_readings(limit)}"
        limit_text = f"{share(result)} of {limit.get('name')}, {measured}"
    time_s = figures.get("time_s")
    took = "" if time_s is None else f"; time {three_digits(time_s)} s"
    bar = meter(figures.get("fraction_of_limit"), limit_text)
    emulated = f"  FP64 EMULATED ({scheme})" if (scheme := fp64_scheme(figures)) else ""
    return (
        f'<p class="big">{text(figure_text(figures) + emulated)}</p>{bar}<p class="faint">{text(limit_text + took)}</p>'
    )


def _readings(limit: Body) -> str:
    """Return the limit before and after the run as text, or an empty string if an old file has no such values."""
    unit = "rate_bytes" if "rate_bytes" in limit else "rate_flops"
    parts = [f"{when} {figure_text({unit: limit[when]})}" for when in ("before", "after") if limit.get(when)]
    return f" ({', '.join(parts)})" if parts else ""


def _memory(result: Body) -> str:
    problem = part(result, "problem")
    memory = problem.get("memory_bytes") or {}
    matrix, total = (memory.get(key) if isinstance(memory, Mapping) else None for key in ("matrix", "total"))
    if matrix is None or total is None:
        lines = lines_of(str(result.get("benchmark"))).memory(problem) if isinstance(memory, Mapping) else ""
        return f"; {lines}" if lines else ""
    return f"; matrix {three_digits(matrix / 2**30)} GiB of {three_digits(total / 2**30)} GiB in total"


def _rules(result: Body) -> str:
    rules = part(result, "rules")
    if not rules:
        return ""
    violations = rules.get("violations") or ()
    remarks = "".join(f"<li>{text(remark.get('text'))}</li>" for remark in rules.get("remarks") or ())
    if rules.get("admissible") and not violations:
        return f"<p>ADMISSIBLE: the run breaks no published rule</p>{f'<ul>{remarks}</ul>' if remarks else ''}"
    items = remarks + "".join(
        f"<li>{'own test ' if own_test(each) else ''}{text(each.get('rule'))}: {text(each.get('text'))}</li>"
        for each in violations
    )
    return f"<p>{text(rules_text(read(result)))}</p><ul>{items}</ul>"


def _energy(telemetry: Body) -> str:
    """Return HTML with the energy of the timed work, or with the reason why it is unknown; empty for an aborted run."""
    if "energy" not in telemetry:
        return ""
    why = telemetry.get("energy_unknown")
    unknown = f"energy: not measured on this machine{f', because {why}' if why else ''}"
    return f"<p>{text(energy_text(telemetry) or unknown)}</p>"


def _scan(result: Body) -> str:
    """Return HTML with the report of a scan: spread, ranks and findings; empty for other results."""
    if "scan" not in part(result, "telemetry"):
        return ""
    from mxpeak.report.scan_text import scan_text
    from mxpeak.report.scans import scan_of_result

    return titled("Ranks of the scan", f"<pre>{text(scan_text(scan_of_result(result)))}</pre>")


def _warnings(warnings: Sequence[Body]) -> str:
    hints = [f'; <span class="faint">{text(each["hint"])}</span>' if each.get("hint") else "" for each in warnings]
    items = "".join(f"<li>{text(each.get('text'))}{hint}</li>" for each, hint in zip(warnings, hints))
    return titled("Warnings", f"<ul>{items}</ul>" if items else "")


def _phases(result: Body) -> str:
    """Return the HTML table of phases, sorted by time, with the parts of a phase below the phase."""
    phases = {name: phase for name, phase in part(result, "phases").items() if phase}
    longest = max((phase.get("time_s") or 0.0 for phase in phases.values()), default=0.0)
    if not longest:
        return ""
    several = part(result, "launch").get("ranks", 1) != 1
    rows = []
    for name, depth in nested_phases(phases, lines_of(str(result.get("benchmark"))).nested):
        phase = phases[name]
        time_s = phase.get("time_s") or 0.0
        slowest = f'<td class="number">{three_digits(phase.get("max_s"))} s</td>' if several else ""
        rows.append(
            f"<tr><td>{'&nbsp;' * 3 * depth}{text(name)}</td><td>{meter(time_s / longest)}</td>"
            f'<td class="number">{three_digits(time_s)} s</td>{slowest}'
            f'<td class="number second">{text(phase_rate(phase))}</td></tr>'
        )
    titles = ("phase", "", "mean of ranks", "slowest rank") if several else ("phase", "", "time")
    number = ' class="number"'
    head = "".join(f"<th{number * (k > 1)}>{name}</th>" for k, name in enumerate(titles))
    return f'<table><tr>{head}<th class="number second">rate</th></tr>{"".join(rows)}</table>'


def _computations(result: Body) -> dict[str, Mapping[str, Any]]:
    """Return the phases of the timed solves and, if they were measured, of the solves in double precision."""
    double = part(part(result, "result"), "double_phases")
    return {"mixed" if double else "": part(result, "phases")} | ({"double": double} if double else {})


def _bound(result: Body) -> float | None:
    """Return the limit of the rate in flop/s (rate / fraction of the limit), or None if it is unknown."""
    figures = part(result, "result")
    rate, fraction = figures.get("rate_flops"), figures.get("fraction_of_limit")
    return rate / fraction if rate and fraction and "rate_flops" in (figures.get("limit") or {}) else None


def _embedded(document: Body) -> str:
    r"""Return the results as JSON in a script element. The characters < > & are \u escapes, so they cannot end it."""
    embedded = json.dumps(document, allow_nan=False, ensure_ascii=True)
    for character in "<>&":
        embedded = embedded.replace(character, f"\\u{ord(character):04x}")
    return (
        f'<script type="application/json" id="mxpeak-result">{embedded}</script>'
        '<p class="screen" hidden><a id="as-file" download="result.json">Download result.json</a></p>'
    )
