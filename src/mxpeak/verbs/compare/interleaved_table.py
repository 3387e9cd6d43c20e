"""Compare the medians of two commands that ran alternately."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from mxpeak.errors import UsageError
from mxpeak.records import PASSED
from mxpeak.report.compare import Body, Change, judged, pairs, rate_of
from mxpeak.report.phase_changes import phase_changes
from mxpeak.verbs.compare.paired_comparison import PairedRates

#: Keys of the rates whose medians are compared.
RATES = ("rate_flops", "rate_bytes", "rate")
#: Results of one command by round; each round contains its cases in order.
Rounds = Sequence[Sequence[Body]]


def compared_in_turns(before: Rounds, after: Rounds, tolerance: float) -> tuple[list[Change], list[dict[str, Any]]]:
    """Compare the median rates of each case, and return the changes and the rates by round."""
    firsts, seconds = by_case(before, "A"), by_case(after, "B")
    changes, rates = [], []
    for pair in pairs([case[0] for case in firsts], [case[0] for case in seconds]):
        first = next(case for case in firsts if case[0] is pair[0])
        second = next(case for case in seconds if case[0] is pair[1])
        turns = PairedRates(*(tuple(rate_of(body) or 0.0 for body in case) for case in (first, second)))
        timed = all(turns.before) and all(turns.after)
        change = judged(middle(first), middle(second), tolerance, turns.noise if timed else None)
        changes.append(replace(change, phases=phase_changes(typical(first), typical(second))))
        rates.append({"name": changes[-1].name, "before": list(turns.before), "after": list(turns.after)})
    return changes, rates


def by_case(rounds: Rounds, command: str) -> list[list[Body]]:
    """Group the results by case, with one result per round for each case."""
    counts = [len(results) for results in rounds]
    if len(set(counts)) > 1:
        different = f"{command} produced a different number of results in each round ({', '.join(map(str, counts))})"
        raise UsageError(f"{different}; use a command whose cases all finish")
    return [list(case) for case in zip(*rounds)]


def typical(case: Sequence[Body]) -> Body:
    """Return the result of the round whose rate is closest to the median."""
    rates = [rate_of(body) or 0.0 for body in case]
    return min(case, key=lambda body: abs((rate_of(body) or 0.0) - median(rates)))


def middle(case: Sequence[Body]) -> dict[str, Any]:
    """Return the last result of a case with its rates replaced by medians over the rounds.

    The status is that of the first round that did not pass.
    """
    last = case[-1]
    figures = _with_medians([body.get("result") or {} for body in case])
    limits = [(body.get("result") or {}).get("limit") or {} for body in case]
    if all(limits):
        figures["limit"] = _with_medians(limits)
    status = next((body.get("status") for body in case if body.get("status") not in PASSED), last.get("status"))
    return {**last, "status": status, "result": figures}


def _with_medians(figures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the last dictionary, with each rate that all dictionaries contain replaced by its median."""
    shared = [name for name in RATES if all(figure.get(name) for figure in figures)]
    return {**figures[-1], **{name: median(float(figure[name]) for figure in figures) for name in shared}}
