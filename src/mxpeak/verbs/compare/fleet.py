"""Compare two scans of a fleet node by node.

The rate r(i, t) of node i in round t is that of its slowest rank, because a run over all ranks proceeds at this rate.
For each measure, x_i = median_t r(i, t) is the rate of the node, and

    c_i = x_i(after) / x_i(before) - 1        change of the node
    e_i = 3 sqrt(v_i(before)^2 + v_i(after)^2) own noise: three standard errors of c_i, from the rounds
    s   = min(MAD_i c_i, sqrt(2) MAD_i x_i(before) / m)        spread of the fleet

v_i is the relative standard error of a median of K rounds, and MAD is 1.4826 times the median absolute deviation. Both
estimates of s contain the change of a healthy node between two scans. In addition, the first one contains the changes
that the comparison looks for, and the second one contains permanent differences between nodes. Therefore, s is the
smaller one. With fewer than four nodes, s is unknown.

    same        |c_i| <= tolerance
    ambiguous   |c_i| exceeds the tolerance, but not max(e_i, 3 s)
    faster      c_i > max(tolerance, e_i, 3 s)
    slower      c_i < -max(tolerance, e_i, 3 s)
    failed      the node has wrong results only in the second scan

The verdict of a node is the worst verdict of its measures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from mxpeak.errors import UsageError
from mxpeak.options import count_text
from mxpeak.report.scans import node_rates
from mxpeak.verbs.scan.baseline import check_hosts, differing_problem
from mxpeak.verbs.scan.decide import ENOUGH, ERROR, FACTOR, SIGMA, deviation

#: Verdicts, the worst first.
VERDICTS = ("failed", "slower", "ambiguous", "faster", "same")

Body = Mapping[str, Any]
#: Rates by measure and round.
Rates = Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class MeasureChange:
    """The change of one measure of a node or of the median node.

    noise    e_i, or None if one of the scans has only one round
    spread   s, or None with fewer than four nodes
    """

    before: float
    after: float
    change: float
    noise: float | None
    spread: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class NodeChange:
    """The changes of a node by measure; `measure` is the one that decides the verdict."""

    host: str
    model: str
    measures: Mapping[str, MeasureChange]
    measure: str
    verdict: str

    @property
    def decisive(self) -> MeasureChange:
        """Return the change that decides the verdict."""
        return self.measures[self.measure]

    @property
    def regressed(self) -> bool:
        """Return whether the node became slower or computes wrong results."""
        return self.verdict in ("slower", "failed")


@dataclass(frozen=True, slots=True)
class FleetChange:
    """The changes of all nodes in both scans, the nodes in only one scan, and the change of the median node."""

    nodes: Sequence[NodeChange]
    missing: Sequence[str]
    new: Sequence[str]
    fleet: Mapping[str, MeasureChange]


def compared_fleets(names: Sequence[str], before: Body, after: Body, tolerance: float) -> FleetChange:
    """Return the changes between two scans; raise a UsageError if the scans are not comparable."""
    if different := differing_problem(before, after):
        raise UsageError(
            f"not comparable: {different} in {names[0]} and {names[1]}; use scans of the same --unit, --benchmark, -N, "
            "--nb and --precision"
        )
    for name, scan in zip(names, (before, after)):
        check_hosts(scan, name)
    first, second = node_rates(before["ranks"]), node_rates(after["ranks"])
    both = [host for host in first if host in second]
    if not both:
        raise UsageError(
            f"not comparable: {names[0]} and {names[1]} have no node in common; use scans of the same nodes"
        )
    models, others = _models(before), _models(after)
    if different := next((host for host in both if models[host] != others[host]), ""):
        raise UsageError(
            f"not comparable: {different} has {models[different]} in {names[0]} and {others[different]} in {names[1]}; "
            "use scans of the same devices"
        )
    failed = set(_wrong(after)) - set(_wrong(before))
    measures = {
        measure: _changes({host: (first[host][measure], second[host][measure]) for host in both}, tolerance)
        for measure in first[both[0]]
        if all(measure in rates[host] for rates in (first, second) for host in both)
    }
    nodes = [
        _node(host, models[host], {measure: changes[host] for measure, changes in measures.items()}, host in failed)
        for host in both
    ]
    return FleetChange(
        sorted(nodes, key=lambda node: (VERDICTS.index(node.verdict), node.decisive.change)),
        [host for host in first if host not in second],
        [host for host in second if host not in first],
        {measure: _of_median(list(changes.values()), tolerance) for measure, changes in measures.items()},
    )


def _models(scan: Body) -> dict[str, str]:
    """Return the ranks of each node as text, such as 8 ranks of NVIDIA H200."""
    ranks: dict[str, list[str]] = {}
    for rank in scan["ranks"]:
        ranks.setdefault(rank["host"], []).append(f"{rank['model']} with {count_text(rank['threads'], 'thread')}")
    return {host: f"{count_text(len(each), 'rank')} of {', '.join(sorted(set(each)))}" for host, each in ranks.items()}


def _wrong(scan: Body) -> Iterator[str]:
    """Yield the nodes with wrong results."""
    return (scan["ranks"][finding["rank"]]["host"] for finding in scan["wrong"])


def _changes(
    rates: Mapping[str, tuple[Sequence[float], Sequence[float]]], tolerance: float
) -> dict[str, MeasureChange]:
    """Return the change of one measure by node."""
    before = {host: median(pair[0]) for host, pair in rates.items()}
    after = {host: median(pair[1]) for host, pair in rates.items()}
    changes = {host: after[host] / before[host] - 1.0 for host in rates}
    spread = spread_of(list(changes.values()), list(before.values()))
    measures = {}
    for host, pair in rates.items():
        noise = noise_of(*pair)
        verdict = judged(changes[host], tolerance, noise, spread)
        measures[host] = MeasureChange(before[host], after[host], changes[host], noise, spread, verdict)
    return measures


def spread_of(changes: Sequence[float], before: Sequence[float]) -> float | None:
    """Return the spread s of the fleet, or None if there are too few nodes."""
    if len(changes) < ENOUGH:
        return None
    return SIGMA * min(deviation(changes), math.sqrt(2.0) * deviation(before) / median(before))


def noise_of(before: Sequence[float], after: Sequence[float]) -> float | None:
    """Return three standard errors of the change of a node, or None if one of the scans has only one round."""
    if min(len(before), len(after)) < 2:
        return None
    return FACTOR * math.hypot(_error(before), _error(after))


def _error(rounds: Sequence[float]) -> float:
    """Return the relative standard error of the median of the rounds."""
    return ERROR / math.sqrt(2.0 * len(rounds)) * SIGMA * deviation(rounds) / median(rounds)


def judged(change: float, tolerance: float, noise: float | None, spread: float | None) -> str:
    """Return the verdict for a change; without noise and spread, a change beyond the tolerance is ambiguous."""
    if abs(change) <= tolerance:
        return "same"
    known = [value for value in (noise, None if spread is None else FACTOR * spread) if value is not None]
    if not known or abs(change) <= max(known):
        return "ambiguous"
    return "faster" if change > 0 else "slower"


def _node(host: str, model: str, measures: Mapping[str, MeasureChange], failed: bool) -> NodeChange:
    """Return the change of a node, whose verdict is the worst of its measures, or `failed`."""
    worst = min(measures, key=lambda name: (VERDICTS.index(measures[name].verdict), -abs(measures[name].change)))
    return NodeChange(host, model, measures, worst, "failed" if failed else measures[worst].verdict)


def _of_median(changes: Sequence[MeasureChange], tolerance: float) -> MeasureChange:
    """Return the change of the median node; its noise is three standard errors of the median change."""
    before, after = median(each.before for each in changes), median(each.after for each in changes)
    middle, spread = median(each.change for each in changes), changes[0].spread
    noise = None if spread is None else FACTOR * ERROR / math.sqrt(2.0 * len(changes)) * spread
    return MeasureChange(before, after, middle, noise, spread, judged(middle, tolerance, noise, None))
