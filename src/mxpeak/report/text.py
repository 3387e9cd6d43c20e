"""What a person reads: the verdict of one result, the scoreboard of several, warnings with their fixes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mxpeak.records import Caution, Result, bytes_rate_text, figure_text, rate_text, three_digits
from mxpeak.report.sparse_text import (
    SPARSE,
    check_lines,
    figure_lines,
    memory_text,
    motif_rows,
    problem_text,
    sparse_case_text,
)

GREEN, RED, BOLD, PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[1m", "\x1b[0m"


def verdict(result: Result, *, verbose: bool = False, color: bool = False) -> str:
    """Did it pass, how fast, what share of the limit, how accurate; if `verbose`, where the time went, and who ran."""
    if "aborted" in result.telemetry:
        return f"{headline(result, color=color)}\n{_how_far(result)}"
    about = _sparse_lines(result, verbose=verbose) if result.benchmark in SPARSE else _dense_lines(result)
    lines = [
        headline(result, color=color),
        _emulation(result),
        *about,
        _energy(result),
        _tuned(result),
        *_broken_rules(result),
    ]
    text = "\n".join(line for line in lines if line) + "\n"
    return text + phase_table(result) + motif_table(result) + placement(result) if verbose else text


def _energy(result: Result) -> str:
    """What the timed work took, where the machine can tell."""
    known = result.telemetry.get("energy")
    if not known or known["joules"] is None:
        return ""
    per_watt = known["gflops_per_watt"]
    joules, seconds, watts = (three_digits(known[name]) for name in ("joules", "seconds", "watts"))
    rate = "" if per_watt is None else f", {three_digits(per_watt)} GFLOP/s/W"
    return f"  energy {joules} J in {seconds} s, {watts} W{rate}"


def _tuned(result: Result) -> str:
    """What of the settings nobody said, and mxpeak tune had stored."""
    found = {
        name: one["value"]
        for name, one in result.config.items()
        if isinstance(one, dict) and one.get("origin") == "tuned"
    }
    return (
        f"  from mxpeak tune: {', '.join(f'{name} {_told(value)}' for name, value in found.items())}" if found else ""
    )


def _told(value: Any) -> str:
    """A setting's value; a list of one as that one, a grid as PxQ."""
    if isinstance(value, list | tuple):
        pairs = [v if isinstance(v, list | tuple) else (v,) for v in value]
        return ",".join("x".join(map(str, pair)) for pair in pairs)
    return str(value)


def _how_far(result: Result) -> str:
    """Why a run did not come to its end, and how far it had come."""
    known = result.telemetry["aborted"]
    if not known["step"]:
        return f"  before its first step: {known['reason']}\n"
    return f"  {known['computation']}, after step {known['step']}: {known['reason']}\n"


def headline(result: Result, *, color: bool = False) -> str:
    """One line: validity, rate, and what a list's rules say of them in the same breath."""
    words = [_painted(result.mark, color), result.benchmark, figure_text(result.result)]
    words += [f"({share} of {_limit_text(result)})"] if (share := share_text(result)) else []
    words += [rules] if (rules := rules_text(result)) else []
    return "  ".join([*words, "emulated"] if result.result.get("emulated") else words)


def rules_text(result: Result) -> str:
    """Whether a list would take the result; empty where the benchmark has no list's rules."""
    if not result.rules:
        return ""
    return "ADMISSIBLE" if result.rules.get("admissible") else "NOT ADMISSIBLE"


def share_text(result: Result) -> str:
    """The share of the limit that was measured in the same process; empty where none was."""
    return percent(result.result.get("fraction_of_limit"))


def phase_table(result: Result) -> str:
    """Time by phase, the longest first: mean over the ranks, slowest rank, share of the whole, rate.

    The whole is the time that was measured; of a norm, which is taken many times, it is that of all phases together.
    """
    total = result.result.get("time_s") or 0.0
    if "rate_bytes" in result.result:
        total = sum(phase.get("time_s") or 0.0 for phase in result.phases.values())
    phases = sorted(result.phases.items(), key=lambda item: -(item[1].get("time_s") or 0.0))
    rows = [["phase", "mean s", "max s", "share", "rate", "calls"]]
    for name, phase in phases:
        time_s = phase.get("time_s") or 0.0
        rows.append(
            [
                name,
                three_digits(time_s),
                three_digits(phase.get("max_s")),
                percent(time_s / total) if total else "",
                _phase_rate(phase),
                str(phase.get("calls", "")),
            ]
        )
    if any(phase.get("share_of_limit") is not None for _, phase in phases):
        for row, cell in zip(rows, ["of limit", *(percent(phase.get("share_of_limit")) for _, phase in phases)]):
            row.append(cell)
    return _table(rows) if phases else ""


def motif_table(result: Result) -> str:
    """Mixed against double by motif; empty where double was not measured."""
    rows = motif_rows(result.result, result.phases)
    return _table(rows) if rows else ""


def percent(share: float | None) -> str:
    """A share as people read it; empty where it is not known."""
    return "" if share is None else f"{three_digits(100 * share)} %"


def _phase_rate(phase: Mapping[str, Any]) -> str:
    """The rate of a phase: in flops where some were counted, else in bytes."""
    time_s, flops, moved = (phase.get(key) or 0.0 for key in ("time_s", "flops", "bytes"))
    if not time_s or not (flops or moved):
        return ""
    return rate_text(flops / time_s) if flops else bytes_rate_text(moved / time_s)


def placement(result: Result) -> str:
    """The map of ranks to the process grid, and of ranks to hosts, cores and threads."""
    lines = str(result.launch.get("grid") or "").splitlines()
    for rank in result.launch.get("binding") or ():
        threads = f"{rank['threads']} thread{'s' if rank['threads'] > 1 else ''}"
        lines.append(f"rank {rank['rank']:>4} on {rank['host']}: {threads} on cores {rank['cores']}")
    return "".join(f"  {line}\n" for line in lines)


def scoreboard(results: Sequence[Result], *, color: bool = False) -> str:
    """One row a result: rate, share of the measured limit, validity, and the rules where one of them has some."""
    rows = [["benchmark", "rate", "of limit", "residual", "case", "validation"]]
    for r in results:
        residual = three_digits(r.validation.get("residual"))
        rows.append([r.benchmark, figure_text(r.result), share_text(r), residual, size_text(r), r.mark])
    if any(r.rules for r in results):
        for row, cell in zip(rows, ["rules", *map(rules_text, results)]):
            row.append(cell)
    table = _table(rows)
    for mark in {r.mark for r in results}:
        table = table.replace(mark, _painted(mark, color))
    return table


def cautions(warnings: Iterable[Caution]) -> str:
    """Each warning on a line of its own, and under it how to fix it."""
    lines = []
    for warning in warnings:
        lines.append(f"warning: {warning.text} [{warning.code}]")
        if warning.hint:
            lines.append(f"    hint: {warning.hint}")
    return "".join(f"{line}\n" for line in lines)


def _painted(mark: str, color: bool) -> str:
    return f"{BOLD}{GREEN if mark == 'PASSED' else RED}{mark}{PLAIN}" if color else mark


def _limit_text(result: Result) -> str:
    limit = result.result.get("limit") or {}
    return f"{limit.get('name', 'the limit')} at {figure_text(limit)}"


def _dense_lines(result: Result) -> list[str]:
    """How accurate, how large, and of a mixed LU where its time went and how hard the system was."""
    about = [_accuracy(result), _proof(result), _problem(result), *_what_ran(result)]
    return [*about, _stages(result), _difficulty(result)]


def _sparse_lines(result: Result, *, verbose: bool) -> list[str]:
    """How accurate, how large, what mixed gains; if `verbose`, memory, and the rate in other countings and forms."""
    lines = [
        *check_lines(result.benchmark, result.validation),
        problem_text(result.problem, result.result.get("time_s")),
        memory_text(result.problem) if verbose else "",
        *figure_lines(result.benchmark, result.result, verbose=verbose),
    ]
    return [f"  {line}" for line in lines if line]


def _accuracy(result: Result) -> str:
    check = result.validation
    if result.benchmark == "norms":
        return _norm_error(result)
    residual, threshold, steps = check.get("residual"), check.get("threshold"), check.get("iterations")
    below = residual is not None and threshold is not None and residual < threshold
    what = "scaled residual" if steps is None else "scaled backward error"
    after = "" if steps is None else f" after {steps} {'step' if steps == 1 else 'steps'} of refinement"
    return (
        f"  {what} {three_digits(residual)} {'<' if below else 'is not below'} threshold "
        f"{three_digits(threshold)}{after}"
    )


def _norm_error(result: Result) -> str:
    """How far a norm is from its reference, and the norm itself, where it is one."""
    check, kind = result.validation, result.problem.get("kind")
    residual, threshold = check.get("residual"), check.get("threshold")
    passes = residual is not None and threshold is not None and residual <= threshold
    error = f"scaled error {three_digits(residual)} {'<=' if passes else 'is not within'} {three_digits(threshold)} eps"
    if threshold == 0.0:
        error = "exact" if passes else f"off by {three_digits(residual)} eps: the max of real entries must be exact"
    if check.get("entries") != result.problem.get("entries"):
        error += f"; {check.get('entries')} entries were read of {result.problem.get('entries')}"
    values = result.result.get("values") or {kind: result.result.get("value")}
    shown = [f"{name} {value:.10g}" for name, value in values.items() if value is not None]
    return f"  {'; '.join([error, *([', '.join(shown)] if shown else [])])}"


def _emulation(result: Result) -> str:
    if not result.result.get("emulated"):
        return ""
    low = result.problem.get("precision", "low precision")
    return f"  {low} rounded in software: convergence counts, the rate is FP32's"


def _proof(result: Result) -> str:
    """Whether the factors are those of an LU: the largest error of (A - LU) v against what rounding allows."""
    proof = result.validation.get("lu_proof")
    if not proof:
        return ""
    error, bound = three_digits(proof.get("error")), three_digits(proof.get("bound"))
    if proof.get("passed"):
        return f"  the LU is proven: error {error} within its bound {bound}"
    return f"  the LU is NOT proven: {_why_unproven(proof)}"


def _why_unproven(proof: Mapping[str, Any]) -> str:
    """The first of the proof's conditions that is broken."""
    error, bound, worst, spread = (proof.get(key) for key in ("error", "bound", "worst", "spread"))
    if error is None or bound is None or worst is None or spread is None:
        return "(A - LU) v is not finite"
    if bound >= 1.0:
        return f"its bound, {three_digits(bound)} of ||Av||, is too wide to prove anything; use a wider --precision"
    if worst > 1.0:
        return f"an entry of (A - LU) v is {three_digits(worst)} times what rounding explains"
    if spread > 1.0:
        return f"in some 64 rows the mean square of (A - LU) v is {three_digits(spread)} times what rounding explains"
    return f"error {three_digits(error)} beyond its bound {three_digits(bound)}"


def depth_text(problem: Mapping[str, Any]) -> str:
    """The look-ahead that ran, where another was requested."""
    depth, ran = problem.get("depth"), problem.get("lookahead")
    return "" if depth == ran else f"look-ahead of depth {ran} ({depth} was requested)"


def _what_ran(result: Result) -> list[str]:
    """What ran otherwise than its options say: the look-ahead, and panels that a library factored."""
    library = result.problem.get("panel_library")
    panels = f"panels factored by {library}: pfact, rfact, nbmin and ndiv are not used" if library else ""
    return [f"  {line}" for line in (depth_text(result.problem), panels) if line]


def _stages(result: Result) -> str:
    lu_s, refine_s = result.result.get("lu_time_s"), result.result.get("refine_time_s")
    if lu_s is None:
        return ""
    lu = f"  LU {three_digits(lu_s)} s at {rate_text(result.result.get('lu_rate_flops'))}"
    return lu if refine_s is None else f"{lu}, refinement {three_digits(refine_s)} s"


def _difficulty(result: Result) -> str:
    """How hard the system was: GMRES without the factors, growth of the LU, condition."""
    problem = result.problem
    parts = []
    if (factor := problem.get("unpreconditioned_factor")) is not None:
        parts.append(f"without the LU a GMRES step leaves {three_digits(factor)} of the residual{_predicted(problem)}")
    for name in ("growth", "condition"):
        if problem.get(name) is not None:
            parts.append(f"{name} {three_digits(problem[name])}")
    return f"  the system: {', '.join(parts)}" if parts else ""


def _predicted(problem: Mapping[str, Any]) -> str:
    steps = problem.get("predicted_unpreconditioned_steps")
    return "" if steps is None else f" and about {steps:.0f} are needed"


def _broken_rules(result: Result) -> list[str]:
    return [f"  broken rule {one['rule']}: {one['text']}" for one in result.rules.get("violations") or ()]


def size_text(result: Result) -> str:
    """The size of a case, such as N=1000 NB=192 2x2, and where there is a choice its precision and generator."""
    problem = result.problem
    if result.benchmark == "norms":
        return norms_case_text(problem)
    if result.benchmark in SPARSE:
        return sparse_case_text(problem)
    parts = [f"N={problem['n']}"] if "n" in problem else []
    parts += [f"NB={problem['nb']}"] if "nb" in problem else []
    if "P" in problem and "Q" in problem:
        parts.append(f"{problem['P']}x{problem['Q']}")
    parts += [str(problem[name]) for name in ("precision", "generator") if name in problem]
    return " ".join(parts)


def norms_case_text(problem: Mapping[str, Any]) -> str:
    """A case of norms, such as: one general float64 C 10240x10240; the grid and its blocks where there are several."""
    names = ["kind", "structure", "uplo", "diag", "kl", "ku", "dtype", "layout"]
    known = {name: problem[name] for name in names if problem.get(name) not in (None, "nonunit")}
    parts = [f"{name}={value}" if name in ("kl", "ku") else str(value) for name, value in known.items()]
    parts += [f"{problem['m']}x{problem['n']}"] if "m" in problem and "n" in problem else []
    if problem.get("P", 1) * problem.get("Q", 1) > 1 or problem.get("layout") == "tiles":
        parts.append(f"NB={problem.get('nb')} {problem.get('P')}x{problem.get('Q')}")
    return " ".join([*parts, *(["deterministic"] if problem.get("deterministic") else [])])


def _problem(result: Result) -> str:
    time_s = result.result.get("time_s")
    parts = [size_text(result).replace("=", " "), "" if time_s is None else f"time {three_digits(time_s)} s"]
    text = ", ".join(part for part in parts if part)
    return f"  {text}" if text else ""


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:]))]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"
