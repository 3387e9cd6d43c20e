"""Write the text of one result: headline, verdict, phases, and warnings with hints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from mxpeak.foreign import one_line
from mxpeak.options import count_text
from mxpeak.records import Caution, Result, bytes_rate_text, drifted, figure_text, fp64_scheme, rate_text, three_digits
from mxpeak.report.columns import table
from mxpeak.report.energy import energy_ratios, energy_text
from mxpeak.report.summaries import lines_of

GREEN, RED, BOLD, PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[1m", "\x1b[0m"


def verdict(result: Result, *, verbose: bool = False) -> str:
    """Return the headline of a result, followed by lines about accuracy, size, repetitions, energy and broken rules.

    If `verbose`, the text also contains the phases and the placement. For an aborted run, the text contains the
    progress.
    """
    if "aborted" in result.telemetry:
        return f"{headline(result)}\n{_progress_when_aborted(result)}"
    about = lines_of(result.benchmark).about(result, verbose=verbose)
    runs = [
        _repeats(result),
        _soak(result),
        _abft(result),
        energy_text(result.telemetry),
        *energy_ratios([result]),
        _tuned(result),
    ]
    lines = [line for line in (_emulation(result), *about, *runs, *_broken_rules(result)) if line]
    text = "".join(f"{line}\n" for line in (headline(result), *(f"  {line}" for line in lines)))
    if not verbose:
        return text
    motifs = lines_of(result.benchmark).motifs(result)
    return f"{text}{phase_table(result)}{table(motifs) if motifs else ''}{placement(result)}"


def _repeats(result: Result) -> str:
    """Return text with the best, the median and the spread of the times of a run with --repeat; empty otherwise."""
    repeat, samples = result.config.get("repeat"), result.samples_s
    if not isinstance(repeat, Mapping) or repeat.get("value", 1) < 2 or len(samples) < 2:
        return ""
    best, middle = min(samples), median(samples)
    spread = percent((max(samples) - best) / middle) if middle else "none"
    return f"{len(samples)} runs: best {three_digits(best)} s, median {three_digits(middle)} s, spread {spread}"


def _soak(result: Result) -> str:
    """Return text with the duration of a soak test, and whether all runs were bitwise identical; empty otherwise."""
    soak = result.telemetry.get("soak")
    if not soak:
        return ""
    bits = "results differ on some ranks" if soak["differ"] else "all bitwise identical on every rank"
    return f"soak: {soak['runs']} runs in {three_digits(soak['seconds'])} s, {bits}"


def _abft(result: Result) -> str:
    """Return text with the number of checks of --abft and of the bit flips that they found; empty without --abft."""
    abft = result.telemetry.get("abft")
    if not abft:
        return ""
    found, checks = abft["found"], abft["checks"]
    faults = f"{found} fault{'s' * (found != 1)} found, {abft['corrected']} corrected" if found else "no faults found"
    return f"abft: {checks} check{'s' * (checks != 1)} in {three_digits(abft['seconds'])} s, {faults}"


def _tuned(result: Result) -> str:
    """Return text that lists the settings taken from `mxpeak tune`, or an empty string if there are none."""
    settings = {name: setting for name, setting in result.config.items() if isinstance(setting, dict)}
    tuned = {name: setting["value"] for name, setting in settings.items() if setting.get("origin") == "tuned"}
    named = ", ".join(f"{name} {_setting_text(value)}" for name, value in tuned.items())
    return f"set by mxpeak tune: {named}" if tuned else ""


def _setting_text(value: Any) -> str:
    """Return the value of a setting as text: list items separated by commas, and grids as PxQ."""
    if isinstance(value, list | tuple):
        pairs = [v if isinstance(v, list | tuple) else (v,) for v in value]
        return ",".join("x".join(map(str, pair)) for pair in pairs)
    return str(value)


def _progress_when_aborted(result: Result) -> str:
    """Return lines with the last step and the reason of an aborted run, its finished solves, and how to resume."""
    aborted = result.telemetry["aborted"]
    place = f"{aborted['computation']}, after step {aborted['step']}" if aborted["step"] else "before the first step"
    finished = _finished(aborted["finished"]) if "finished" in aborted else _repetitions(result.samples_s)
    folder = (result.config.get("checkpoint") or {}).get("value")
    resume = f"  if a checkpoint was written, continue with: mxpeak resume {folder}\n" if folder else ""
    return f"  {place}: {aborted['reason']}\n{finished}{resume}"


def _finished(solves: Mapping[str, Any]) -> str:
    """Return a line with the rate and the validation of the solves that finished before an abort."""
    count, seconds = solves["solves"], three_digits(solves["time_s"])
    so_far = f"{count} solve{'s' * (count != 1)} finished in {seconds} s: {rate_text(solves['rate_flops'])}"
    validated = {True: "the validation passed", False: "the validation FAILED", None: "no validation"}[solves["passed"]]
    return f"  {solves['computation']}: {so_far}; {validated}\n"


def _repetitions(samples_s: Sequence[float]) -> str:
    """Return a line with the number of repetitions that finished before an abort; empty if none finished."""
    if not samples_s:
        return ""
    return f"  {count_text(len(samples_s), 'solve')} finished before, the fastest in {three_digits(min(samples_s))} s\n"


def headline(result: Result) -> str:
    """Return a line with the status, the rate, the share of the limit, the list status and emulated arithmetic."""
    words = [result.mark, result.benchmark, figure_text(result.result)]
    if share := share_text(result):
        limit = result.result.get("limit") or {}
        words.append(f"({share} of {limit.get('name', 'the limit')} at {figure_text(limit)})")
    words += [rules] if (rules := rules_text(result)) else []
    words += ["emulated"] if result.result.get("emulated") else []
    words += [f"FP64 EMULATED ({of})"] if (of := fp64_scheme(result.result)) else []
    return "  ".join(words)


#: Rules that a short or small run breaks, and the list status of a run that breaks no other rules.
SHORT = {"time": "too short to submit", "memory": "too small to submit"}


def rules_text(result: Result, short: Mapping[str, str] = SHORT) -> str:
    """Return the list status of a result, such as ADMISSIBLE; empty if the benchmark has no published rules."""
    if not result.rules:
        return ""
    own = (
        "" if result.rules.get("meaningful", True) else f", fails mxpeak's own test: {', '.join(failed_tests(result))}"
    )
    if result.rules.get("admissible"):
        return f"ADMISSIBLE{own}"
    return too_short(result, short) or f"NOT ADMISSIBLE{own}"


def failed_tests(result: Result) -> list[str]:
    """Return the distinct names of mxpeak's own tests that a result fails."""
    return list(dict.fromkeys(str(each["rule"]) for each in result.rules.get("violations") or () if own_test(each)))


def own_test(violation: Mapping[str, Any]) -> bool:
    """Return whether a violation is a failed test of mxpeak and not a broken rule of a list."""
    return violation.get("source") == "mxpeak"


def too_short(result: Result, short: Mapping[str, str] = SHORT) -> str:
    """Return the list status of a valid run that is only too short or too small; otherwise an empty string."""
    broken = [str(each.get("rule")) for each in result.rules.get("violations") or ()]
    if not result.passed or not broken or not set(broken) <= set(short):
        return ""
    return short["time" if "time" in broken else "memory"]


def share_text(result: Result) -> str:
    """Return the share of the limit in percent, or an empty string if no limit was measured.

    A star marks a share that is uncertain because the machine's speed changed.
    """
    share = percent(result.result.get("fraction_of_limit"))
    return f"{share}*" if share and drifted(result.result) else share


def phase_table(result: Result) -> str:
    """Return the table of phases, sorted by time: mean and maximum over the ranks, share of total, rate and calls.

    The total is the measured time, after the checkpoint if the run was resumed. For a norm, which is repeated, the
    total is the sum of all phases.
    """
    total = (result.result.get("resumed") or {}).get("after_s") or result.result.get("time_s") or 0.0
    if "rate_bytes" in result.result:
        total = sum(phase.get("time_s") or 0.0 for phase in result.phases.values())
    phases = nested_phases(result.phases, lines_of(result.benchmark).nested)
    rows = [["phase", "mean s", "max s", "share", "rate", "calls"]]
    for name, depth in phases:
        phase = result.phases[name]
        time_s = phase.get("time_s") or 0.0
        share = percent(time_s / total) if total else ""
        times = three_digits(time_s), three_digits(phase.get("max_s"))
        rows.append(["  " * depth + name, *times, share, phase_rate(phase), str(phase.get("calls", ""))])
    shares = [result.phases[name].get("share_of_limit") for name, _ in phases]
    if any(share is not None for share in shares):
        for row, cell in zip(rows, ["of limit", *map(percent, shares)]):
            row.append(cell)
    return table(rows) if phases else ""


def nested_phases(phases: Mapping[str, Mapping[str, Any]], parents: Mapping[str, str]) -> list[tuple[str, int]]:
    """Return the names and nesting depths of phases, sorted by time, with the parts of a phase after the phase."""

    def under(parent: str | None, depth: int) -> list[tuple[str, int]]:
        here = [name for name in phases if (parents.get(name) if parents.get(name) in phases else None) == parent]
        here.sort(key=lambda name: -(phases[name].get("time_s") or 0.0))
        return [row for name in here for row in ((name, depth), *under(name, depth + 1))]

    return under(None, 0)


def blas_text(blas: Mapping[str, Any]) -> str:
    """Return the name, the version and the architecture of a BLAS library."""
    return " ".join(str(blas[key]) for key in ("library", "version", "architecture") if blas.get(key))


def violation_text(violation: Mapping[str, Any]) -> str:
    """Return a violation as text: the rule and its explanation. The tests of mxpeak have the prefix "own test"."""
    return f"{'own test ' if own_test(violation) else ''}{violation.get('rule')}: {violation.get('text')}"


def percent(share: float | None) -> str:
    """Return a share in percent with three digits; empty if the share is None."""
    return "" if share is None else f"{three_digits(100 * share)} %"


def phase_rate(phase: Mapping[str, Any]) -> str:
    """Return the rate of a phase as text: flop/s if its flops were counted, otherwise bytes/s."""
    time_s, flops, moved = (phase.get(key) or 0.0 for key in ("time_s", "flops", "bytes"))
    if not time_s or not (flops or moved):
        return ""
    return rate_text(flops / time_s) if flops else bytes_rate_text(moved / time_s)


def placement(result: Result) -> str:
    """Return lines with the process grid, and the host, threads and cores of each rank."""
    lines = str(result.launch.get("grid") or "").splitlines()
    for rank in result.launch.get("binding") or ():
        threads = f"{rank['threads']} thread{'s' if rank['threads'] > 1 else ''}"
        gpu = f", GPU {rank['device_bus']}" if rank.get("device_bus") else ""
        adapter = f", adapter {rank['adapter']}" if rank.get("adapter") else ""
        lines.append(f"rank {rank['rank']:>4} on {rank['host']}: {threads} on cores {rank['cores']}{gpu}{adapter}")
    return "".join(f"  {line}\n" for line in lines)


def cautions(warnings: Iterable[Caution]) -> str:
    """Return each warning on a line, followed by a line with its hint."""
    lines = []
    for warning in warnings:
        lines.append(f"warning: {one_line(warning.text)} [{one_line(warning.code)}]")
        if warning.hint:
            lines.append(f"    hint: {one_line(warning.hint)}")
    return "".join(f"{line}\n" for line in lines)


def painted(mark: str, color: bool) -> str:
    """Return a status word, in green or red if `color`."""
    return f"{BOLD}{GREEN if mark == 'PASSED' else RED}{mark}{PLAIN}" if color else mark


def _emulation(result: Result) -> str:
    if not result.result.get("emulated"):
        return ""
    low = result.problem.get("precision", "low precision")
    return f"{low} is rounded in software: the convergence is that of {low}, the rate is that of fp32"


def _broken_rules(result: Result) -> list[str]:
    """Return a line for each broken rule and for each failed test of mxpeak."""
    return [
        f"{'own test' if own_test(each) else 'broken rule'} {each.get('rule')}: {each.get('text')}"
        for each in result.rules.get("violations") or ()
    ]
