"""Several results at one glance: the scoreboard of all benchmarks, and the table of a sweep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from mxpeak import __version__
from mxpeak.foreign import one_line
from mxpeak.records import Result, drifted, figure_text, three_digits
from mxpeak.report.columns import table
from mxpeak.report.command import OPTIONS, repeat, told, values_of
from mxpeak.report.lines import case_text, lines_of
from mxpeak.report.text import failed_tests, own_test, painted, percent, rules_text, share_text, too_short

# --- all benchmarks ---------------------------------------------------------------------------------------------


def scoreboard(
    results: Sequence[Result], *, color: bool = False, page: str = "", sizes: str = "", lost: Sequence[str] = ()
) -> str:
    """One row a result: its rate, its share of what it could be, its check; what keeps it off a list; the page.

    `lost` are the benchmarks that did not come to a result.
    """
    rates = {r.benchmark: float(r.result.get("rate_flops") or 0.0) for r in results if r.passed}
    head = f"{'':<10} {'rate':>13}  of what it could be"
    stars = any(drifted(r.result) for r in results)
    rows = [_row(r, rates, stars=stars) for r in results]
    width = max([len(head) + 2, *(len(row) for row, _, _ in rows)])
    lines = [one_line(_machine(results, sizes)), f"{head:<{width}}  check"]
    lines += [f"{row:<{width}}  {painted(mark, color)}  {beside}".rstrip() for row, mark, beside in rows]
    lines.append(one_line(_verdict(results, lost)))
    lines += [one_line(text) for text in _drift(results)]
    lines += [one_line(f"{r.benchmark}: {note}.") for r in results for note in lines_of(r.benchmark).notes(r)]
    lines += [one_line(f"{', '.join(names)}: {why}.") for why, names in _off_the_lists(results)]
    return "\n".join(lines) + "\n" + (f"Page to share: {one_line(page)}\n" if page else "")


def _row(result: Result, rates: Mapping[str, float], *, stars: bool) -> tuple[str, str, str]:
    lines, figures = lines_of(result.benchmark), result.result
    limit, share = figures.get("limit") or {}, figures.get("fraction_of_limit")
    row = f"{lines.name(result):<10} {figure_text(figures):>13}"
    if share is not None:
        known = str(limit.get("name", "")).split(",")[0]
        name = {"read bandwidth": "memory", "read bandwidth in cache": "cache"}.get(known, known)
        rounded = three_digits(100 * share) if share < 0.1 else f"{100 * share:.0f}"
        star = ("*" if drifted(figures) else " ") * stars  # a column of its own, if any row has one
        row += f"  {rounded:>4} %{star} of {name:<9} {figure_text(limit):>12}"
    beside = [lines.beside(result, rates), "emulated" if figures.get("emulated") else ""]
    return one_line(row), result.mark, one_line(", ".join(filter(None, beside)))


def _drift(results: Sequence[Result]) -> list[str]:
    """Return the note about the rows with a star: by how much the machine's speed changed."""
    changes = [
        f"{lines_of(r.benchmark).name(r)} by {percent(r.result['limit']['drift'])}"
        for r in results
        if drifted(r.result)
    ]
    if not changes:
        return []
    return [
        f"* The machine's speed changed while the limit and the rate were measured: {', '.join(changes)}. "
        "Stop other programs, and run again."
    ]


def _machine(results: Sequence[Result], sizes: str) -> str:
    """Processor, cores, memory, version, sizes and the time that all took."""
    machine: Mapping[str, Any] = results[0].machine if results else {}
    facts = [short_name(str(machine["cpu_model"]))] if machine.get("cpu_model") else []
    nodes = machine.get("nodes") or 1
    facts = [f"{nodes} nodes of {facts[0]}"] if facts and nodes > 1 else facts
    facts += [f"{machine['logical_cores_allowed']} cores"] if machine.get("logical_cores_allowed") else []
    facts += [f"{three_digits(machine['memory_total_bytes'] / 2**30)} GiB"] if machine.get("memory_total_bytes") else []
    return " · ".join(part for part in (", ".join(facts), f"mxpeak {__version__}", sizes) if part)


def short_name(model: str) -> str:
    """A processor's name without its marks."""
    for mark in ("(R)", "(TM)", "(tm)", " CPU", " Processor"):
        model = model.replace(mark, "")
    return " ".join(model.split("@")[0].split())


def _verdict(results: Sequence[Result], lost: Sequence[str]) -> str:
    bad = [r for r in results if r.status != "valid"]
    if not bad and not lost:
        return "All valid."
    named = [f"{r.mark}: {lines_of(r.benchmark).name(r)}" for r in bad]
    named += [f"no result: {', '.join(lost)}"] if lost else []
    count = f"{len(results) - len(bad)} of {len(results)}" if bad else str(len(results))
    return f"{count} valid; {'; '.join(named)}."


def _off_the_lists(results: Iterable[Result]) -> list[tuple[str, list[str]]]:
    """Why a list would not take results, with whose; those that are only too short are told together."""
    named = [(too_short(r) or _why_off(r), r.benchmark) for r in results if _off(r)]
    return [(why, [name for _, name in found]) for why, found in groupby(sorted(named), key=lambda one: one[0])]


def _off(result: Result) -> bool:
    rules = result.rules
    return result.passed and bool(rules) and not (rules.get("admissible") and rules.get("meaningful", True))


def _why_off(result: Result) -> str:
    """Return the published rules that a result breaks, and mxpeak's own tests that it fails."""
    violations = [one for one in result.rules.get("violations") or () if not own_test(one)]
    broken, own = list(dict.fromkeys(str(one.get("rule")) for one in violations)), failed_tests(result)
    parts = [f"not for the list: {', '.join(broken)}"] if broken or not own else []
    return "; ".join([*parts, *([f"fails mxpeak's own test: {', '.join(own)}"] if own else [])])


# --- a sweep ----------------------------------------------------------------------------------------------------


def sweep(results: Sequence[Result], *, color: bool = False, width: int | None = None) -> str:
    """One row a case, a column for each option that was swept; the best is marked, with the command that repeats it."""
    cases = [values_of(r) for r in results]
    names = [name for name in OPTIONS if len({str(case.get(name)) for case in cases}) > 1]
    if "m" in names and all(case.get("m") in (None, case.get("n")) for case in cases):
        names.remove("m")
    best = _best(results)
    shown = names or ["case"]
    rows = [
        [*shown, "rate", "of limit", "time", "residual", "check", *(["rules"] if any(r.rules for r in results) else [])]
    ]
    for case, r in zip(cases, results):
        own = [told(case.get(name)) for name in names] or [case_text(r)]
        time_s, residual = r.result.get("time_s"), three_digits(r.validation.get("residual"))
        figures = [figure_text(r.result), share_text(r), "" if time_s is None else f"{three_digits(time_s)} s"]
        word = r.mark + (" *" if r is best else "")
        rows.append([*own, *figures, residual, word, *([rules_text(r)] if any(one.rules for one in results) else [])])
    k = len(shown)
    text = table(rows, width=width, least=(k + 3, k + 2, k + 5)[: 3 if len(rows[0]) > k + 5 else 2])
    for mark in {r.mark for r in results}:
        text = text.replace(mark, painted(mark, color))
    return text + (f"  * best: {repeat(best, names)}\n" if best is not None and names else "")


def _best(results: Sequence[Result]) -> Result | None:
    """The fastest valid result, where rates are of the same work: in flops."""
    rated = [r for r in results if r.status == "valid" and r.result.get("rate_flops")]
    alike = len(rated) > 1 and len({r.benchmark for r in results}) == 1
    return max(rated, key=lambda r: float(r.result["rate_flops"])) if alike else None
