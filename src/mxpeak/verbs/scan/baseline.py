"""Compute the expected rates of a device model from the scans of many nodes, and read them from a file.

All scans are pooled. For each rank i of a model, x_i is the median of its rates over the rounds of all scans. A node is
excluded if a scan found one of its ranks slow or wrong, or if the rule of `decide` finds one in the pool. Of the other
ranks, the baseline contains

    m = median_i x_i,     s = 1.4826 median_i |x_i - m|

and the bits of each result. The pool tolerates defects in fewer than half of the ranks, as the median does.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from mxpeak.errors import UsageError
from mxpeak.foreign import read_text
from mxpeak.options import count_text
from mxpeak.records import read_json
from mxpeak.report.scan_text import measure_title
from mxpeak.schema import check
from mxpeak.verbs.scan.decide import ENOUGH, SIGMA, Expected, RankRates, deviation, odd_bits, slow_ranks, spread

SCHEMA = "mxpeak.scan-baseline/1"
#: Settings that determine the work of a scan.
PROBLEM = ("benchmark", "n", "nb", "precision", "unit_ranks")
#: Measures of each unit; measures of groups of nodes also depend on the other nodes.
MEASURES = ("hpl", "lu", "gemm", "read", "d2h", "h2d")
CALLED = {
    "benchmark": "--benchmark",
    "n": "N",
    "nb": "NB",
    "precision": "the precision",
    "unit_ranks": "the number of ranks per unit",
}
#: The values of settings that older scans do not contain.
ADDED = {"benchmark": "hpl-mxp", "unit_ranks": 1}

Body = Mapping[str, Any]
#: A place in the fleet: host, device, cores and UUID of the device.
Place = tuple[str, str, str, str | None]


def place_of(rank: Body) -> Place:
    """Return the place of a rank, which identifies it in scans of different days."""
    return rank["host"], rank["device"], rank["cores"], rank.get("uuid")


def check_hosts(scan: Body, name: str) -> None:
    """Raise a UsageError if two nodes of a scan have the same host name.

    Nodes differ in the identifier of their boot. In a scan without these identifiers, two ranks at the same place also
    count as two nodes.
    """
    boots: dict[str, set[str]] = {}
    places: set[Place] = set()
    for rank in scan["ranks"]:
        host, boot = rank["host"], rank.get("boot")
        if boot is not None:
            boots.setdefault(host, set()).add(boot)
        elif (place := place_of(rank)) in places:
            raise UsageError(
                f"{name}: two ranks have the host name {host} and the same cores and device, so the nodes are not "
                "distinguishable; use unique host names and one rank per device, and scan again"
            )
        else:
            places.add(place)
    for host, starts in boots.items():
        if len(starts) > 1:
            raise UsageError(
                f"{name}: {len(starts)} nodes have the host name {host}, so their ranks are not distinguishable; use "
                "unique host names, and scan again"
            )


def unit_of(body: Body) -> str:
    """Return the unit of a scan or a baseline; `device` is another name of `rank`."""
    unit = str(body.get("unit", "rank"))
    return "rank" if unit == "device" else unit


def differing_problem(first: Body, second: Body) -> str:
    """Return the settings in which the problems of two scans differ as text, or an empty string if they are equal."""
    this, that = ({**ADDED, **body["problem"]} for body in (first, second))
    if (units := (unit_of(first), unit_of(second))) and units[0] != units[1]:
        return f"--unit differs ({units[0]} and {units[1]})"
    return ", ".join(f"{CALLED[k]} differs ({this[k]} and {that[k]})" for k in PROBLEM if this[k] != that[k])


def baseline_of(scans: Sequence[tuple[str, Body]], tolerance: float) -> dict[str, Any]:
    """Return the baseline of scans, which are pairs of name and content; raise a UsageError if they give none."""
    (first_name, first), *others = scans
    for name, scan in scans:
        check_hosts(scan, name)
    for name, scan in others:
        if different := differing_problem(first, scan):
            raise UsageError(
                f"{first_name} and {name}: {different}; use scans of the same --unit, --benchmark, -N, "
                "--nb and --precision"
            )
    bad = {scan["ranks"][finding["rank"]]["host"] for _, scan in scans for finding in (*scan["slow"], *scan["wrong"])}
    models: dict[tuple[str, int], dict[tuple[Place, int], list[Body]]] = {}
    for _, scan in scans:
        seen: Counter[Place] = Counter()  # ranks of a node may share cores or a device
        for rank in (each for each in scan["ranks"] if each.get("leads_unit", True)):
            place = place_of(rank)
            places = models.setdefault((rank["model"], rank["threads"]), {})
            places.setdefault((place, seen[place]), []).append(rank)
            seen[place] += 1
    return {
        "schema": SCHEMA,
        "of": [name for name, _ in scans],
        "unit": unit_of(first),
        "problem": {name: {**ADDED, **first["problem"]}[name] for name in PROBLEM},
        "models": [_model(*key, list(places.values()), bad, tolerance) for key, places in models.items()],
    }


def _model(model: str, threads: int, places: Sequence[Sequence[Body]], bad: set[str], tolerance: float) -> Body:
    """Return the expected measurements of one model; `places` contains the records of each rank in all scans."""
    every = [record["rates"] for records in places for record in records]
    measured = [name for name in MEASURES if all(name in rates for rates in every)]
    pool = [_pooled(k, records, measured) for k, records in enumerate(places)]
    outliers = {finding.rank for name in pool[0].rates for finding in _slow(pool, name, tolerance)}
    kinds = {member.kind: [other for other in pool if other.kind == member.kind] for member in pool}
    for members in kinds.values():
        outliers |= {finding.rank for result in members[0].bits for finding in odd_bits(members, result)[0]}
    hosts = [records[0]["host"] for records in places]
    excluded = {hosts[k] for k in outliers} | (bad & set(hosts))
    healthy = [member for member in pool if hosts[member.rank] not in excluded]
    if len(healthy) < ENOUGH:
        raise UsageError(
            f"the baseline of {model} would be empty or too small: {len(healthy)} of {len(pool)} ranks are on healthy "
            f"nodes, and at least {ENOUGH} are necessary; use scans of more nodes"
        )
    rates = {name: _expected([median(member.rates[name]) for member in healthy]) for name in healthy[0].rates}
    for name, rate in rates.items():
        if rate["sigma"] > tolerance * rate["expected"]:
            spread_percent = 100 * rate["sigma"] / rate["expected"]
            raise UsageError(
                f"the {measure_title(name)} rates of {model} spread by {spread_percent:.1f} %, more than "
                f"--tolerance {100 * tolerance:g} %, so none of them is typical; scan idle nodes, or use a "
                "larger --tolerance"
            )
    return {
        "model": model,
        "threads": threads,
        "nodes": len({hosts[member.rank] for member in healthy}),
        "ranks": len(healthy),
        "excluded": sorted(excluded),
        "rates": rates,
        "bits": {kind: _bits([m for m in members if hosts[m.rank] not in excluded]) for kind, members in kinds.items()},
    }


def _pooled(number: int, records: Sequence[Body], measured: Sequence[str]) -> RankRates:
    """Return the measurements of one rank in all scans, but only the bits that were measured with its newest kind."""
    kind = records[-1]["kind"]
    rates = {name: [rate for record in records for rate in record["rates"][name]] for name in measured}
    bits = {
        name: [digest for record in records if record["kind"] == kind for digest in record["bits"].get(name, ())]
        for name in records[-1]["bits"]
        if name in measured
    }
    return RankRates(number, kind, rates, bits)


def _slow(pool: Sequence[RankRates], name: str, tolerance: float) -> Iterable[Any]:
    return slow_ranks(pool, name, spread([member.rates[name] for member in pool], tolerance))


def _expected(rates: Sequence[float]) -> dict[str, float]:
    return {"expected": median(rates), "sigma": SIGMA * deviation(rates)}


def _bits(members: Sequence[RankRates]) -> dict[str, str]:
    """Return the digest of each result if all members agree; a result on which they do not agree is omitted."""
    digests = {
        name: {digest for m in members for digest in m.bits[name]} for name in (members[0].bits if members else ())
    }
    return {name: next(iter(variants)) for name, variants in digests.items() if len(variants) == 1}


def read_baseline(name: str) -> Body:
    """Read a baseline from a file; raise a UsageError if the file is not a baseline or contains no model."""
    schema = json.loads(Path(check.__file__).with_name("scan-baseline-1.json").read_text(encoding="utf-8"))
    advice = "use a file that mxpeak baseline from SCAN wrote"
    try:
        body = read_json(read_text(name))
        wrong = "" if isinstance(body, Mapping) and body.get("schema") == SCHEMA else f"its schema is not {SCHEMA}"
        wrong = wrong or check.mismatch(body, schema)
    except OSError as error:
        raise UsageError(f"mxpeak cannot read --against {name}: {error.strerror}; {advice}") from None
    except ValueError as error:
        wrong = str(error)
    if wrong:
        raise UsageError(f"--against {name} is not a baseline of scans: {wrong}; {advice}")
    if not all(rate["expected"] for entry in body["models"] for rate in entry["rates"].values()):
        raise UsageError(f"--against {name} is not a baseline of scans: an expected rate is 0; {advice}")
    if not body["models"]:
        raise UsageError(f"--against {name} is an empty baseline, because it contains no model; {advice}")
    baseline: Body = body
    return baseline


def expected_of(baseline: Body, model: str, threads: int, kind: str) -> Expected | None:
    """Return the expected measurements of a rank, or None if the baseline does not contain its model."""
    for entry in baseline["models"]:
        if (entry["model"], entry["threads"]) == (model, threads):
            rates = {name: (float(each["expected"]), float(each["sigma"])) for name, each in entry["rates"].items()}
            return Expected(rates, entry["bits"].get(kind, {}))
    return None


def models_text(baseline: Body) -> str:
    """Return the models of a baseline with their numbers of threads."""
    return ", ".join(f"{entry['model']} with {count_text(entry['threads'], 'thread')}" for entry in baseline["models"])
