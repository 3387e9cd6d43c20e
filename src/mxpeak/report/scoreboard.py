"""Write the scoreboard of all benchmarks, and the table of a sweep."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mxpeak import __version__
from mxpeak.foreign import one_line
from mxpeak.records import Result, drifted, figure_text, fp64_scheme, is_native_hpl, three_digits
from mxpeak.report.columns import table
from mxpeak.report.command import OPTIONS, flag_value, repeat, values_of
from mxpeak.report.energy import energy_ratios
from mxpeak.report.summaries import case_text, lines_of, title_of
from mxpeak.report.text import failed_tests, own_test, painted, percent, rules_text, share_text, too_short

#: Maximum width of the scoreboard, and of the names in it.
WIDTH, MAX_NAME = 80, 12
#: Share of the limit below which the scoreboard explains HPL's rate at quick sizes.
LOW = 0.70
#: Spaces at which lines must not break.
BOUND = re.compile(r"(?<=\d) (?=[A-Z]+/s|%)|(?<=--rt) ")
#: Short names of limits in the scoreboard.
LIMITS = {"read bandwidth": "memory", "read bandwidth in cache": "cache"}


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """The cells of one row of the scoreboard; `star` is "*" if the share is uncertain."""

    name: str
    rate: str = ""
    share: str = ""
    star: str = ""
    limit: str = ""
    limit_name: str = ""
    mark: str = ""
    extra: str = ""


def scoreboard(
    results: Sequence[Result],
    *,
    color: bool = False,
    page: str = "",
    sizes: Sequence[str] = (),
    lost: Sequence[str] = (),
    quick: bool = False,
    verbose: bool = False,
) -> str:
    """Return the scoreboard: a row per benchmark, followed by verdict, notes and next steps.

    A row contains the rate, the share of the limit and the check. `lost` contains the benchmarks without a result. If
    `verbose`, each norm has its own row.
    """
    compared = [r for r in results if r.passed and (r.benchmark != "hpl" or is_native_hpl(r))]
    rates = {r.benchmark: float(r.result.get("rate_flops") or 0.0) for r in compared}
    groups = _groups(results, verbose=verbose)
    lines, moved = _laid_out([_row(group, rates) for group in groups], color=color)
    notes = [
        _verdict(results, lost),
        *_drift(results),
        *(f"{ratio}." for ratio in energy_ratios(results)),
        *_hint(results, quick=quick),
        *moved,
        *(f"{r.benchmark}: {note}." for r in results for note in (*lines_of(r.benchmark).notes(r), *_emulation(r))),
        *_off_the_lists(results),
        *_limits(results),
    ]
    head = _folded(_machine(results, sizes))
    ending = [f"Report: {one_line(page)}"] if page else []
    ending += ["Next: mxpeak run hpl (full size), mxpeak help submit (list submissions)"] if quick else []
    return "\n".join([*head, "", *lines, "", *(line for note in notes for line in _folded(note)), *ending]) + "\n"


def _folded(text: str) -> list[str]:
    """Wrap text at 80 columns, but not between a number and its unit or a flag and its value, and return the lines."""
    bound = BOUND.sub("\N{NO-BREAK SPACE}", one_line(text))
    lines = textwrap.wrap(bound, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _groups(results: Sequence[Result], *, verbose: bool) -> list[list[Result]]:
    """Group the results by row of the scoreboard.

    A benchmark whose lines have `together` set has one row for all of its results, unless `verbose`. Other results
    have one row each.
    """
    rows: dict[object, list[Result]] = {}
    for k, result in enumerate(results):
        together = lines_of(result.benchmark).together and not verbose
        rows.setdefault(result.benchmark if together else k, []).append(result)
    return list(rows.values())


def _row(group: Sequence[Result], rates: Mapping[str, float]) -> ScoreRow:
    first, lines = group[0], lines_of(group[0].benchmark)
    figures, limits = [r.result for r in group], [r.result.get("limit") or {} for r in group]
    shares = [100 * f["fraction_of_limit"] for f in figures if f.get("fraction_of_limit") is not None]
    names = dict.fromkeys(LIMITS.get(name, name) for name in (str(x.get("name", "")).split(",")[0] for x in limits))
    return ScoreRow(
        name=lines.name(first) if len(group) == 1 else first.benchmark,
        rate=_range_text(figures),
        share=_span([three_digits(share) if share < 10 else f"{share:.0f}" for share in sorted(shares)]),
        star="*" * any(drifted(f) for f in figures),
        limit=_range_text(limits) if shares else "",
        limit_name="/".join(filter(None, names)) if shares else "",
        mark=next((r.mark for r in group if r.status != "valid"), first.mark),
        extra=lines.beside(first, rates) if len(group) == 1 else f"{sum(r.passed for r in group)} of {len(group)}",
    )


def _span(texts: Sequence[str]) -> str:
    """Return the first and the last of sorted texts joined by a dash, or one text if they are equal."""
    return "–".join(dict.fromkeys((texts[0], texts[-1]))) if texts else ""


def _range_text(figures: Sequence[Mapping[str, Any]]) -> str:
    """Return one rate as text, or the lowest and the highest of several rates in the same unit."""
    key = "rate_bytes" if any("rate_bytes" in each for each in figures) else "rate_flops"
    rates = sorted(float(each[key]) for each in figures if each.get(key))
    texts = [figure_text({key: rate}) for rate in (rates[0], rates[-1])] if rates else [figure_text(figures[0])]
    if texts[0] == texts[-1]:
        return texts[0]
    number, unit = texts[-1].split()
    ends = [float(number) / rates[-1] * rate for rate in (rates[0], rates[-1])]
    return f"{_span([f'{end:.0f}' if end >= 10 else f'{end:.2g}' for end in ends])} {unit}"


def _laid_out(rows: Sequence[ScoreRow], *, color: bool) -> tuple[list[str], list[str]]:
    """Return the lines of the table, and a note for each last cell that does not fit into its line."""
    cells = [[_cut(one_line(row.name)), row.rate, row.share, row.star, row.limit, _cut(one_line(row.limit_name))]
             for row in rows]  # fmt: skip
    name, rate, share, star, limit, limit_name = (max(map(len, column), default=0) for column in zip(*cells))
    lines, moved = [], []
    share_end = name + 2 + max(rate, 4) + 2 + share
    width = max(share_end + star + (4 + limit + 2 + limit_name if limit else 0), share_end - share + len("% of limit"))
    head = f"{'':<{name}}  {'rate':>{max(rate, 4)}}  % of limit"
    lines.append(f"{head:<{width}}  check")
    for row, (shown, figure, part, mark, of, what) in zip(rows, cells):
        text = f"{shown:<{name}}  {figure:>{max(rate, 4)}}  {part:>{share}}{mark:<{star}}"
        text += f" of {of:>{limit}}  {what}" if of else ""
        text, extra = f"{text:<{width}}  ", one_line(row.extra)
        if extra and len(text) + len(row.mark) + 2 + len(extra) > WIDTH:
            moved.append(f"{row.name}: {extra}.")
            extra = ""
        lines.append(f"{text}{painted(row.mark, color)}  {extra}".rstrip())
    return lines, moved


def _cut(name: str) -> str:
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"


def _drift(results: Sequence[Result]) -> list[str]:
    """Return the note that explains the star by the change of the machine's speed; empty if no row has a star."""
    changes = []
    for result in results:
        if drifted(result.result):
            drift = result.result["limit"]["drift"]
            change = percent(drift) if drift < 1.0 else f"a factor of {three_digits(1.0 + drift)}"
            changes.append(f"{lines_of(result.benchmark).name(result)} by {change}")
    text = f"* The machine's speed changed between the measurements of the limit: {', '.join(changes)}. "
    return [f"{text}Stop other programs, and run again."] if changes else []


def _hint(results: Sequence[Result], *, quick: bool) -> list[str]:
    """Return a note that explains a low share of HPL at a quick size; empty if the share is not low."""
    shares = [r.result.get("fraction_of_limit") for r in results if r.benchmark == "hpl" and r.passed]
    measured = [share for share in shares if share is not None]
    if not quick or not measured or min(measured) >= LOW:
        return []
    reason = "N is small at quick sizes, or other programs are running. A larger N usually reaches more."
    return [f"HPL reaches {percent(min(measured))} of its limit: {reason}"]


def _emulation(result: Result) -> list[str]:
    """Return notes about a low precision that software rounds, and about emulated fp64 products."""
    rounded = ["the precision is rounded in software, so the rate is that of fp32"]
    scheme = fp64_scheme(result.result)
    emulated = [f"products of fp64 matrices are emulated ({scheme}), so the rate is not one of fp64 operations"]
    return [*(rounded if result.result.get("emulated") else []), *(emulated if scheme else [])]


def _limits(results: Sequence[Result]) -> list[str]:
    """Return a sentence that names the measured limits; empty if no limit was measured."""
    limits = [r.result.get("limit") or {} for r in results]
    names = [str(limit.get("name", "")) for limit in limits]
    parts = ["matrix products (GEMM)"] * any("GEMM" in name for name in names)
    parts += ["reading memory"] * any(name == "read bandwidth" for name in names)
    parts += ["reading caches"] * any(name == "read bandwidth in cache" for name in names)
    if not parts:
        return []
    bytes_too = any("rate_bytes" in limit and "rate_flops" in r.result for r, limit in zip(results, limits))
    how = " To compare a rate in GFLOP/s with GB/s, mxpeak counts the bytes that must be moved." * bytes_too
    return [f"The limits were measured in this run: {' and '.join(parts)}.{how}"]


def _machine(results: Sequence[Result], sizes: Sequence[str]) -> str:
    """Return a line with version, processor, cores, memory, sizes and total time."""
    machine: Mapping[str, Any] = results[0].machine if results else {}
    facts = [short_name(str(machine["cpu_model"]))] if machine.get("cpu_model") else []
    nodes = machine.get("nodes") or 1
    facts = [f"{nodes} nodes of {facts[0]}"] if facts and nodes > 1 else facts
    facts += [f"{machine['logical_cores_allowed']} cores"] if machine.get("logical_cores_allowed") else []
    facts += [f"{three_digits(machine['memory_total_bytes'] / 2**30)} GiB"] if machine.get("memory_total_bytes") else []
    return " · ".join(part for part in (f"mxpeak {__version__}", ", ".join(facts), *sizes) if part)


def short_name(model: str) -> str:
    """Return the name of a processor without trademark signs and clock rate."""
    for mark in ("(R)", "(TM)", "(tm)", " CPU", " Processor"):
        model = model.replace(mark, "")
    return " ".join(model.split("@")[0].split())


def _verdict(results: Sequence[Result], lost: Sequence[str]) -> str:
    bad = [r for r in results if r.mark != "PASSED"]
    marks = dict.fromkeys(r.mark for r in bad)
    named = [f"{mark}: {', '.join(lines_of(r.benchmark).name(r) for r in bad if r.mark == mark)}." for mark in marks]
    named += [f"No result: {', '.join(lost)}."] if lost else []
    if marks == {"UNRATED": None} and len(bad) == len(results):
        return "A standalone solver has no rating."
    return " ".join([count_text(len(results) - len(bad), len(results)), *named])


def count_text(valid: int, count: int) -> str:
    """Return a sentence with the number of valid results."""
    if count == 1:
        return "The result is valid." if valid else "The result is not valid."
    return f"All {count} results are valid." if valid == count else f"{valid} of {count} results are valid."


def _off_the_lists(results: Iterable[Result]) -> list[str]:
    """Return lines about the results that the official lists reject, with the reasons.

    Benchmarks whose only reason is a short or small run share one line.
    """
    lines: list[str] = []
    small: dict[str, list[str]] = {}
    for result in results:
        rules = result.rules
        if not result.passed or not rules or (rules.get("admissible") and rules.get("meaningful", True)):
            continue
        if too_short(result):
            small.setdefault(_required(result), []).append(result.benchmark)
        else:
            lines.append(f"{result.benchmark}: {_why_off(result)}.")
    return lines + [f"{_listed(names)} results can be submitted only from runs {of}." for of, names in small.items()]


def _required(result: Result) -> str:
    """Return the requirements of the list on time and memory that a run does not meet, as text."""
    broken = {str(each.get("rule")) for each in result.rules.get("violations") or ()}
    parts = ["of 30 minutes (--rt 30m)"] * ("time" in broken)
    return " ".join([*parts, *(["that use a quarter of the memory"] * ("memory" in broken))])


def _listed(names: Sequence[str]) -> str:
    """Return the titles of benchmarks as a phrase, such as "HPCG and HPG-MxP"."""
    shown = sorted({title_of(name) for name in names})
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def _why_off(result: Result) -> str:
    """Return text that names the published rules that a result breaks, and mxpeak's own tests that it fails."""
    violations = [each for each in result.rules.get("violations") or () if not own_test(each)]
    broken, own = list(dict.fromkeys(str(each.get("rule")) for each in violations)), failed_tests(result)
    parts = [f"breaks published rules: {', '.join(broken)}"] if broken or not own else []
    return "; ".join([*parts, *([f"fails mxpeak's own test: {', '.join(own)}"] if own else [])])


def sweep(results: Sequence[Result], *, color: bool = False, width: int | None = None) -> str:
    """Return a table with a row per case and a column per swept option.

    The best case is marked, and its command is below the table, unless all cases have the same options. Columns are
    omitted if the table is wider than `width`.
    """
    cases = [values_of(r) for r in results]
    names = [name for name in OPTIONS if len({str(case.get(name)) for case in cases}) > 1]
    if "m" in names and all(case.get("m") in (None, case.get("n")) for case in cases):
        names.remove("m")
    best = _best(results) if names else None
    shown = names or ["problem"]
    has_rules = any(r.rules for r in results)
    rows = [[*shown, "rate", "of limit", "time", "residual", "check", *(["list status"] if has_rules else [])]]
    for case, r in zip(cases, results):
        own = [flag_value(case.get(name)) for name in names] or [case_text(r)]
        time_s, residual = r.result.get("time_s"), three_digits(r.validation.get("residual"))
        figures = [figure_text(r.result), share_text(r), "" if time_s is None else f"{three_digits(time_s)} s"]
        word = r.mark + (" *" if r is best else "")
        rows.append([*own, *figures, residual, word, *([rules_text(r)] if has_rules else [])])
    k = len(shown)
    text = table(rows, width=width, least=(k + 3, k + 2, k + 5)[: 3 if len(rows[0]) > k + 5 else 2])
    for mark in {r.mark for r in results}:
        text = text.replace(mark, painted(mark, color))
    return text + (f"  * best: {repeat(best, names)}\n" if best is not None else "")


def _best(results: Sequence[Result]) -> Result | None:
    """Return the fastest valid result if all results have the same benchmark and at least two have a rate in flop/s."""
    rated = [r for r in results if r.status == "valid" and r.result.get("rate_flops")]
    comparable = len(rated) > 1 and len({r.benchmark for r in results}) == 1
    return max(rated, key=lambda r: float(r.result["rate_flops"])) if comparable else None
