"""Compare two runs: changes beyond noise, differing settings and machines, and possible reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from mxpeak.records import PASSED, Result, bytes_rate_text, drifted, figure_text, rate_text
from mxpeak.report.columns import table
from mxpeak.report.phase_changes import PhaseChange, phase_changes, phase_text
from mxpeak.report.sparse_text import precision_text
from mxpeak.report.summaries import case_text, lines_of
from mxpeak.report.text import share_text

Body = Mapping[str, Any]

#: Settings that are equal in two cases of the same problem, unless one of the cases does not have the setting.
CASE = (
    "n", "m", "nx", "ny", "nz", "npx", "npy", "npz", "kind", "structure", "dtype", "layout", "uplo", "diag", "kl", "ku",
    "scope", "trans", "tiles", "precision", "generator", "diagonal_scale", "matrix", "nonsymmetric", "run_type",
)  # fmt: skip
#: Names of settings in messages.
CALLED = {"n": "N", "m": "M", "matrix": "the matrix", "run_type": "--run-type"}
#: Settings that may differ between runs of the same problem.
WAY = (
    "nb", "P", "Q", "order", "bcast", "depth", "pfact", "rfact", "nbmin", "ndiv", "seed", "storage", "smoother",
    "restart", "devices_per_rank",
)  # fmt: skip
#: Machine facts that affect a rate.
FACTS = ("cpu_model", "hostname", "physical_cores", "logical_cores_allowed", "memory_total_bytes", "nodes", "governor")
#: Settings that do not change how a case runs: output files, minimum rates, repetitions and the use of --box.
ASIDE = (
    "trace",
    "min_gflops",
    "min_share",
    "baseline",
    "max_slowdown",
    "target",
    "watchdog",
    "repeat",
    "sides_from_box",
)
#: Verdicts of cases whose change the text explains.
CHANGED = ("faster", "slower", "ambiguous")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The change in the rate of one case between two runs.

    before, after   flop/s or bytes/s
    change          after / before - 1
    noise           largest spread of repeats or drift of the machine in either run; None if a run was timed only once
    verdict         faster, slower, same, failed (it no longer passes), ambiguous (it changed, but noise is unknown), or
                    unknown (a rate is missing)
    why             the reason, from the measured limits, settings and software
    phases          changes of the phases, the largest first
    """

    name: str
    unit: str
    before: float | None
    after: float | None
    change: float | None
    noise: float | None
    verdict: str
    why: str = ""
    phases: Sequence[PhaseChange] = ()

    @property
    def regressed(self) -> bool:
        """Return whether the case became slower or no longer passes."""
        return self.verdict in ("slower", "failed")


@dataclass(frozen=True, slots=True)
class Skipped:
    """Two cases of one benchmark that are not compared, because their problems differ."""

    before: str
    after: str
    reason: str

    @property
    def text(self) -> str:
        """Return the reason why the cases are not compared, and the names of both cases."""
        return f"{self.reason}: {self.before} and {self.after}"


def compared(before: Sequence[Body], after: Sequence[Body], tolerance: float) -> list[Change]:
    """Return the change of each case that is in both runs.

    A change that does not exceed `tolerance` or the noise has the verdict `same`.
    """
    return [judged(*pair, tolerance, _noise_of(*pair)) for pair in pairs(before, after)]


def pairs(before: Sequence[Body], after: Sequence[Body]) -> Iterator[tuple[Body, Body]]:
    """Yield the pairs of cases of two runs that solve the same problem.

    A case of the second run is paired with a case of the first run whose other settings also agree. If there is none,
    it is paired with the first unpaired case of the same problem.
    """
    unpaired = list(before)
    for other in after:
        same_size = [body for body in unpaired if _agree(body, other, CASE)]
        if same_size:
            match = next((body for body in same_size if _agree(body, other, WAY)), same_size[0])
            unpaired = [body for body in unpaired if body is not match]
            yield match, other


def alone(before: Sequence[Body], after: Sequence[Body]) -> tuple[list[str], list[str]]:
    """Return two lists of names: cases that are only in the first run, and cases that are only in the second run."""
    paired = list(pairs(before, after))
    return (
        [_name(body) for body in before if not any(body is pair[0] for pair in paired)],
        [_name(body) for body in after if not any(body is pair[1] for pair in paired)],
    )


def not_comparable(before: Sequence[Body], after: Sequence[Body]) -> list[Skipped]:
    """Return the unpaired cases of the second run, each with the unpaired case of the first run that differs least."""
    paired = {id(body) for pair in pairs(before, after) for body in pair}
    unpaired = [body for body in before if id(body) not in paired]
    skipped = []
    for other in (body for body in after if id(body) not in paired):
        same = [body for body in unpaired if body.get("benchmark") == other.get("benchmark")]
        if same:
            nearest = min(same, key=lambda body: len(_differing_names(body, other)))
            unpaired = [body for body in unpaired if body is not nearest]
            skipped.append(Skipped(_name(nearest), _name(other), _reason(nearest, other)))
    return skipped


def nothing_in_common(names: Sequence[str], before: Sequence[Body], after: Sequence[Body]) -> str:
    """Return the error message for two runs without a common case."""
    skipped = not_comparable(before, after)
    if not skipped:
        return f"{names[0]} has {listed(before)}, {names[1]} has {listed(after)}: no case is in both"
    reasons = ", ".join(f"{pair.reason} in {pair.after.split()[0]}" for pair in skipped[:3])
    return (
        f"not comparable: {reasons}, so {names[0]} and {names[1]} have no case in common; run the same problem in "
        "both, with the same sizes or with --config RESULT"
    )


def listed(results: Sequence[Body]) -> str:
    """Return the number of results, and the names of their benchmarks."""
    names = ", ".join(dict.fromkeys(str(body.get("benchmark")) for body in results))
    return f"{len(results)} result{'s' * (len(results) != 1)} ({names})" if results else "no results"


def _differing_names(first: Body, second: Body) -> list[str]:
    return [name for name in CASE if not _agree(first, second, [name])]


def _reason(first: Body, second: Body) -> str:
    """Return the settings in which two problems differ, such as `N differs (9600 and 9408)`."""
    this, that = (body.get("problem") or {} for body in (first, second))
    names = _differing_names(first, second)
    return ", ".join(f"{CALLED.get(n, n)} differs ({_value_text(this[n])} and {_value_text(that[n])})" for n in names)


def _name(body: Body) -> str:
    result = _read(body)
    return f"{result.benchmark} {case_text(result)}".strip()


def _pair_name(before: Body, after: Body) -> str:
    """Return the name of a case that is in both runs.

    A setting that differs appears with both values, such as `NB=128->64`. If the two runs list different numbers of
    settings, return the name from the second run.
    """
    first, second = _name(before).split(), _name(after).split()
    if len(first) != len(second):
        return _name(after)
    return " ".join(a if a == b else f"{a}->{b.rpartition('=')[2]}" for a, b in zip(first, second))


def _agree(first: Body, second: Body, names: Sequence[str]) -> bool:
    """Return whether two results have the same benchmark and agree in the settings `names`.

    Settings that one of the results does not have are ignored.
    """
    this, that = (body.get("problem") or {} for body in (first, second))
    both = [name for name in names if this.get(name) is not None and that.get(name) is not None]
    return first.get("benchmark") == second.get("benchmark") and all(str(this[n]) == str(that[n]) for n in both)


def judged(before: Body, after: Body, tolerance: float, noise: float | None) -> Change:
    """Return the change of one case with a verdict; `noise` is the relative noise of its rates, or None if unknown."""
    first, second = rate_of(before), rate_of(after)
    change = second / first - 1.0 if first and second else None
    least = max(tolerance, noise or 0.0)
    verdict = _verdict(change, noise, least)
    if before.get("status") in PASSED and after.get("status") not in PASSED:
        verdict = "failed"
    unit = "bytes/s" if "rate_bytes" in (after.get("result") or {}) else "flop/s"
    why = _why(before, after, change, least) if verdict in CHANGED else ""
    drift = max(map(_drift, (before, after)))
    if verdict == "same" and change is not None and tolerance < abs(change) <= drift:
        why = f"the speed of the machine changed by {100 * drift:.0f} % during a run; use compare --rounds 5"
    name = _pair_name(before, after)
    rates: dict[str, Any] = {"unit": unit, "before": first, "after": second, "change": change, "noise": noise}
    return Change(name=name, **rates, verdict=verdict, why=why, phases=phase_changes(before, after))


def _verdict(change: float | None, noise: float | None, least: float) -> str:
    if change is None:
        return "unknown"
    if abs(change) <= least:
        return "same"
    if noise is None:
        return "ambiguous"
    return "faster" if change > 0 else "slower"


def _read(body: Body) -> Result:
    return Result.from_dict({"benchmark": "", "status": "", **body})


def rate_of(body: Body) -> float | None:
    """Return the rate of a result in flop/s or bytes/s, or None if it has no rate.

    The rate of a standalone solver of HPG-MxP, which has no rating, is its raw rate.
    """
    figures, standalone = body.get("result") or {}, (body.get("validation") or {}).get("type") == "none"
    rate = figures.get("rate_bytes", figures.get("rate_flops"))
    if rate is None and standalone:
        rate = figures.get("raw_rate_flops") or figures.get("double_rate_flops")
    return float(rate) if isinstance(rate, int | float) and rate else None


def _noise_of(before: Body, after: Body) -> float | None:
    """Return the largest noise or drift of two results, or None if one of them was timed only once."""
    first, second = _noise(before), _noise(after)
    return None if first is None or second is None else max(first, second, _drift(before), _drift(after))


def _drift(body: Body) -> float:
    """Return the relative change of the machine's speed during a run, or 0 if `drifted` is false."""
    figures = body.get("result") or {}
    return float(figures["limit"].get("drift") or 0.0) if drifted(figures) else 0.0


def _noise(body: Body) -> float | None:
    """Return the relative difference between the median and the best time of a case; None for fewer than two times."""
    recorded = body.get("samples_s")
    recorded = recorded if isinstance(recorded, list) else []
    samples = [float(time_s) for time_s in recorded if isinstance(time_s, int | float) and time_s > 0]
    return median(samples) / min(samples) - 1.0 if len(samples) > 1 else None


def _why(before: Body, after: Body, change: float | None, least: float) -> str:
    """Return text that explains a change by the machine, the settings or the software.

    The explanation compares the change of the rate with the change of the measured limit.
    """
    arithmetic = [(body.get("result") or {}).get("fp64") for body in (before, after)]
    if None not in arithmetic and arithmetic[0] != arithmetic[1]:
        return f"fp64 products were {arithmetic[0]} in the first run and {arithmetic[1]} in the second"
    different = differences(before, after)
    changed = [name for name in ("settings", "software", "launch") if name in different]
    own = "neither settings, software nor launch differ"
    if changed:
        names = " and ".join(filter(None, [", ".join(changed[:-1]), changed[-1]]))
        own = f"{names} differ{'s' * (changed in (['software'], ['launch']))}"
    limits = [(body.get("result") or {}).get("limit") or {} for body in (before, after)]
    rates = [rate_of({"result": limit}) for limit in limits]
    if not rates[0] or not rates[1] or change is None:
        return f"the limit was not measured in both runs, so the machine may have changed; {own}"
    name, other = (limit.get("name", "the limit") for limit in limits)
    if name != other:
        return f"the runs have different limits ({name}; {other}), so the machine may have changed; {own}"
    moved = rates[1] / rates[0] - 1.0
    share = (1.0 + change) / (1.0 + moved) - 1.0
    if abs(moved) > least and abs(share) <= least:
        return f"{name} also changed by {100 * moved:+.1f} %: the machine is {'faster' if change > 0 else 'slower'}"
    if abs(moved) <= least:
        return f"{name} is the same ({100 * moved:+.1f} %); {own}"
    shares = f"the share of this limit by {100 * share:+.1f} %"
    return f"{name} changed by {100 * moved:+.1f} %, and {shares}: the machine changed, and {own}"


def differences(before: Body, after: Body) -> dict[str, list[str]]:
    """Return the differences between two results in settings, machine, software and launch, as `name: this -> that`."""
    facts: dict[str, Callable[[Body], dict[str, Any]]] = {
        "settings": _settings,
        "machine": lambda body: {name: (body.get("machine") or {}).get(name) for name in FACTS},
        "software": lambda body: _flat(body.get("software") or {}),
        "launch": lambda body: {name: (body.get("launch") or {}).get(name) for name in ("ranks", "comm", "launcher")},
    }
    return {name: lines for name, facts_of in facts.items() if (lines := _differing(facts_of(before), facts_of(after)))}


def _settings(body: Body) -> dict[str, Any]:
    config = body.get("config") or {}
    values = {name: each.get("value") if isinstance(each, Mapping) else each for name, each in config.items()}
    problem = body.get("problem") or {}
    own = {name: problem[name] for name in (*CASE, *WAY) if name in problem}
    return {**{name: value for name, value in values.items() if name not in (*ASIDE, "ranks", *own)}, **own}


def _flat(section: Body, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in section.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _differing(before: Body, after: Body) -> list[str]:
    both = [name for name in after if before.get(name) is not None and after[name] is not None]
    changed = [name for name in both if before[name] != after[name]]
    return [f"{name}: {_value_text(before[name])} -> {_value_text(after[name])}" for name in changed]


def _value_text(value: Any) -> str:
    """Return a setting as text; only the precision of HPG-MxP has parts."""
    if isinstance(value, list | tuple):
        return ",".join(map(_value_text, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return precision_text(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def body_of(
    changes: Sequence[Change],
    different: Mapping[str, Any],
    names: Sequence[str],
    tolerance: float,
    only: tuple[Sequence[str], Sequence[str]] = ((), ()),
    skipped: Sequence[Skipped] = (),
) -> dict[str, Any]:
    """Return the comparison as a dict for JSON."""
    return {
        "schema": "mxpeak.compare/1",
        "before": names[0],
        "after": names[1],
        "tolerance": tolerance,
        "changes": list(map(asdict, changes)),
        "differences": dict(different),
        "only_before": list(only[0]),
        "only_after": list(only[1]),
        "not_comparable": list(map(asdict, skipped)),
        "regressed": any(change.regressed for change in changes),
    }


def text_of(
    changes: Sequence[Change],
    different: Mapping[str, Sequence[str]],
    only: tuple[Sequence[str], Sequence[str]] = ((), ()),
    skipped: Sequence[Skipped] = (),
) -> str:
    """Return the comparison as a table, with differences, reasons, and the cases that are not compared."""
    rows = [["case", "before", "after", "change", "noise", ""]]
    for change in changes:
        rates = map(bytes_rate_text if change.unit == "bytes/s" else rate_text, (change.before, change.after))
        percent = "" if change.change is None else f"{100 * change.change:+.1f} %"
        noise = "unknown" if change.noise is None else f"{100 * change.noise:.1f} %"
        loud = change.regressed or change.verdict == "ambiguous"
        rows.append([change.name, *rates, percent, noise, change.verdict.upper() if loud else change.verdict])
    lines = []
    for change in changes:
        lines += [f"  {change.name}: {change.why}\n"] if change.why else []
        if change.phases and change.verdict in CHANGED:
            lines.append(phase_text(change.name, change.phases))
    lines += [f"  differs in {name}: {'; '.join(texts)}\n" for name, texts in different.items()]
    if any(change.verdict == "ambiguous" for change in changes):
        lines.append(
            "  AMBIGUOUS: noise is unknown unless both runs are timed at least twice; use --repeat 3 in both, or\n"
            "  compare --rounds 5\n"
        )
    elif any(change.noise is None for change in changes):
        lines.append("  noise is unknown, because a result has fewer than two timed runs; use --repeat 3\n")
    lines += [f"  not comparable: {pair.text}\n" for pair in skipped]
    apart = {pair.before for pair in skipped}, {pair.after for pair in skipped}
    for run, names, named in zip("AB", only, apart):
        if unpaired := [name for name in names if name not in named]:
            lines.append(f"  only in {run}: {'; '.join(unpaired)}\n")
    return table(rows) + "".join(lines)


def row_of(body: Body, when: str, where: str) -> list[str]:
    """Return one result as a row of `mxpeak history`."""
    result = _read(body)
    name, rate = lines_of(result.benchmark).name(result), figure_text(result.result)
    return [when, name, case_text(result), rate, share_text(result), result.status, where]
