"""Lines for people about norms: how far from their reference, of which matrix, and the norm itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mxpeak.records import Result, three_digits
from mxpeak.report.lines import Lines, problem_line


class NormsLines(Lines):
    """What `run norms` says of a result."""

    def name(self, result: Result) -> str:
        """Its name in a scoreboard: the norm's kind tells results apart."""
        return f"norms {result.problem.get('kind', '')}".strip()

    def case(self, problem: Mapping[str, Any]) -> str:
        """See `norms_case_text`."""
        return norms_case_text(problem)

    def about(self, result: Result, *, verbose: bool) -> list[str]:
        """The error, the norm, the matrix."""
        return [_norm_error(result), problem_line(self, result)]

    def found(self, result: Result) -> list[str]:
        """What the validation found, with its formula."""
        check = result.validation
        residual, threshold = three_digits(check.get("residual")), three_digits(check.get("threshold"))
        norm = check.get("value", check.get("values"))
        found = f"; found {norm}, expected {check.get('expected')}" if norm is not None else ""
        return [f"scaled residual {residual}, threshold {threshold}: {check.get('formula')}{found}"]


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
    return f"{'; '.join([error, *([', '.join(shown)] if shown else [])])}"


def norms_case_text(problem: Mapping[str, Any]) -> str:
    """A case of norms, such as: one general float64 C 10240x10240; the grid and its blocks where there are several."""
    names = ["kind", "structure", "uplo", "diag", "kl", "ku", "dtype", "layout"]
    known = {name: problem[name] for name in names if problem.get(name) not in (None, "nonunit")}
    parts = [f"{name}={value}" if name in ("kl", "ku") else str(value) for name, value in known.items()]
    parts += [f"{problem['m']}x{problem['n']}"] if "m" in problem and "n" in problem else []
    if problem.get("P", 1) * problem.get("Q", 1) > 1 or problem.get("layout") == "tiles":
        parts.append(f"NB={problem.get('nb')} {problem.get('P')}x{problem.get('Q')}")
    return " ".join([*parts, *(["deterministic"] if problem.get("deterministic") else [])])
