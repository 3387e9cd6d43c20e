"""Several results at one glance: the scoreboard of all benchmarks, and the table of a sweep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from mxpeak import __version__
from mxpeak.foreign import one_line
from mxpeak.records import Result, figure_text, three_digits
from mxpeak.report.columns import table
from mxpeak.report.lines import case_text, lines_of
from mxpeak.report.text import painted, rules_text, share_text, too_short

#: What one case of a sweep may have otherwise than another, and the flag that says it.
OPTIONS = {
    "m": "-m", "n": "-N", "nb": "--nb", "grid": "--grid", "precision": "--precision", "generator": "--generator",
    "diagonal_scale": "--diagonal-scale", "bcast": "--bcast", "depth": "--depth", "pfact": "--pfact",
    "rfact": "--rfact", "nbmin": "--nbmin", "ndiv": "--ndiv", "kind": "--kind", "structure": "--structure",
    "uplo": "--uplo", "diag": "--diag", "kl": "--kl", "ku": "--ku", "dtype": "--dtype", "layout": "--layout",
    "seed": "--seed",
}  # fmt: skip


# --- all benchmarks ---------------------------------------------------------------------------------------------


def scoreboard(
    results: Sequence[Result], *, color: bool = False, page: str = "", sizes: str = "", lost: Sequence[str] = ()
) -> str:
    """One row a result: its rate, its share of what it could be, its check; what keeps it off a list; the page.

    `lost` are the benchmarks that did not come to a result.
    """
    rates = {r.benchmark: float(r.result.get("rate_flops") or 0.0) for r in results if r.passed}
    head = f"{'':<10} {'rate':>13}  of what it could be"
    rows = [_row(r, rates) for r in results]
    width = max([len(head) + 2, *(len(row) for row, _, _ in rows)])
    lines = [one_line(_machine(results, sizes)), f"{head:<{width}}  check"]
    lines += [f"{row:<{width}}  {painted(mark, color)}  {beside}".rstrip() for row, mark, beside in rows]
    lines.append(one_line(_verdict(results, lost)))
    lines += [one_line(f"{', '.join(names)}: {why}.") for why, names in _off_the_lists(results)]
    return "\n".join(lines) + "\n" + (f"Page to share: {one_line(page)}\n" if page else "")


def _row(result: Result, rates: Mapping[str, float]) -> tuple[str, str, str]:
    lines, figures = lines_of(result.benchmark), result.result
    limit, share = figures.get("limit") or {}, figures.get("fraction_of_limit")
    row = f"{lines.name(result):<10} {figure_text(figures):>13}"
    if share is not None:
        name = str(limit.get("name", "")).split(",")[0].replace("read bandwidth", "memory")
        percent = three_digits(100 * share) if share < 0.1 else f"{100 * share:.0f}"
        row += f"  {percent:>4} % of {name:<9} {figure_text(limit):>12}"
    beside = [lines.beside(result, rates), "emulated" if figures.get("emulated") else ""]
    return one_line(row), result.mark, one_line(", ".join(filter(None, beside)))


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
    named = [(too_short(r) or "not for the list: " + _broken(r), r.benchmark) for r in results if _off(r)]
    return [(why, [name for _, name in found]) for why, found in groupby(sorted(named), key=lambda one: one[0])]


def _off(result: Result) -> bool:
    return result.passed and bool(result.rules) and not result.rules.get("admissible")


def _broken(result: Result) -> str:
    return ", ".join(dict.fromkeys(str(one.get("rule")) for one in result.rules.get("violations") or ()))


# --- a sweep ----------------------------------------------------------------------------------------------------


def sweep(results: Sequence[Result], *, color: bool = False, width: int | None = None) -> str:
    """One row a case, a column for each option that was swept; the best is marked, with the command that repeats it."""
    cases = [_values(r) for r in results]
    names = [name for name in OPTIONS if len({str(case.get(name)) for case in cases}) > 1]
    if "m" in names and all(case.get("m") in (None, case.get("n")) for case in cases):
        names.remove("m")
    best = _best(results)
    shown = names or ["case"]
    rows = [
        [*shown, "rate", "of limit", "time", "residual", "check", *(["rules"] if any(r.rules for r in results) else [])]
    ]
    for case, r in zip(cases, results):
        own = [_told(case.get(name)) for name in names] or [case_text(r)]
        time_s, residual = r.result.get("time_s"), three_digits(r.validation.get("residual"))
        figures = [figure_text(r.result), share_text(r), "" if time_s is None else f"{three_digits(time_s)} s"]
        word = r.mark + (" *" if r is best else "")
        rows.append([*own, *figures, residual, word, *([rules_text(r)] if any(one.rules for one in results) else [])])
    k = len(shown)
    text = table(rows, width=width, least=(k + 3, k + 2, k + 5)[: 3 if len(rows[0]) > k + 5 else 2])
    for mark in {r.mark for r in results}:
        text = text.replace(mark, painted(mark, color))
    return text + (f"  * best: {repeat(best, names)}\n" if best is not None and names else "")


def _values(result: Result) -> dict[str, Any]:
    """What tells a case from others."""
    problem = dict(result.problem)
    if {"P", "Q"} <= set(problem):
        problem["grid"] = f"{problem['P']}x{problem['Q']}"
    return problem


def _best(results: Sequence[Result]) -> Result | None:
    """The fastest valid result, where rates are of the same work: in flops."""
    rated = [r for r in results if r.status == "valid" and r.result.get("rate_flops")]
    alike = len(rated) > 1 and len({r.benchmark for r in results}) == 1
    return max(rated, key=lambda r: float(r.result["rate_flops"])) if alike else None


def repeat(result: Result, names: Iterable[str]) -> str:
    """The command that runs one case of a sweep alone."""
    values = _values(result)
    swept = {name: OPTIONS[name] for name in names}
    gone = {
        *swept.values(),
        *(["--n"] if "n" in swept else []),
        *(["-P", "-Q"] if "grid" in swept else []),
        "--out",
        "--json",
    }
    kept, words = [], iter(result.run.get("argv") or ["run", result.benchmark])
    for word in words:
        if word in gone:
            next(words, None)
        elif word.split("=")[0] not in gone:
            kept.append(word)
    own = [f"{flag} {_told(values[name])}" for name, flag in swept.items() if values.get(name) is not None]
    return one_line(" ".join(["mxpeak", *kept, *own]))


def _told(value: Any) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
