"""Describe the results of the norms benchmark: error, norm and matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mxpeak.records import Result, three_digits
from mxpeak.report.summaries import Lines, problem_line


class NormsLines(Lines):
    """The text lines of the norms benchmark."""

    together = True

    def name(self, result: Result) -> str:
        """Return the name of a result in the scoreboard, such as "norms one"."""
        return f"norms {result.problem.get('kind', '')}".strip()

    def case(self, problem: Mapping[str, Any]) -> str:
        """Return a case as text, such as "one general float64 C 10240x10240".

        For several ranks or a layout of tiles, the text includes NB and the grid.
        """
        return " ".join(_parts(problem, "x"))

    def parts(self, problem: Mapping[str, Any]) -> list[str]:
        """Return the parts of a case: norm, structure, data type, layout and size."""
        return _parts(problem, "×")

    def about(self, result: Result, *, verbose: bool) -> list[str]:
        """Return two lines: the scaled error with the norms, and the matrix with the time."""
        shown = [f"{name} {value:.10g}" for name, value in _values(result).items()]
        return ["; ".join(filter(None, (_norm_error(result), ", ".join(shown)))), problem_line(self, result)]

    def found(self, result: Result) -> list[str]:
        """Return one line about the scaled error."""
        return [_norm_error(result)]

    def details(self, result: Result) -> list[str]:
        """Return lines with the formula of the scaled error, and the computed and expected norms with all digits."""
        check = result.validation
        expected, values = check.get("expected"), check.get("values", {"": check.get("value")})
        wanted = expected if isinstance(expected, Mapping) else {"": expected}
        formula = [f"scaled error = {check.get('formula')}"] if check.get("formula") else []
        shown = [(name, value) for name, value in (values or {}).items() if value is not None]
        return [*formula, *(f"{name} found {value}, expected {wanted.get(name)}".strip() for name, value in shown)]


def _norm_error(result: Result) -> str:
    """Return the scaled error and its threshold as text, with a note if the number of read entries is wrong."""
    check = result.validation
    residual, threshold = check.get("residual"), check.get("threshold")
    passes = residual is not None and threshold is not None and residual <= threshold
    error = f"scaled error {three_digits(residual)} {'<=' if passes else 'is not within'} {three_digits(threshold)} eps"
    if threshold == 0.0:
        error = "exact" if passes else f"off by {three_digits(residual)} eps: the max of real entries must be exact"
    if check.get("entries") != result.problem.get("entries"):
        error += f"; {check.get('entries')} entries were read instead of {result.problem.get('entries')}"
    return error


def _values(result: Result) -> dict[str, float]:
    """Return the computed norms by kind."""
    values = result.result.get("values") or {result.problem.get("kind"): result.result.get("value")}
    return {name: value for name, value in values.items() if value is not None}


def _parts(problem: Mapping[str, Any], times: str) -> list[str]:
    names = ["kind", "structure", "uplo", "diag", "kl", "ku", "dtype", "layout"]
    settings = {name: problem[name] for name in names if problem.get(name) not in (None, "nonunit")}
    parts = [f"{name}={value}" if name in ("kl", "ku") else str(value) for name, value in settings.items()]
    parts += [f"{problem['m']}{times}{problem['n']}"] if "m" in problem and "n" in problem else []
    if problem.get("P", 1) * problem.get("Q", 1) > 1 or problem.get("layout") == "tiles":
        parts.append(f"NB={problem.get('nb')} {problem.get('P')}{times}{problem.get('Q')}")
    return [*parts, *(["deterministic"] if problem.get("deterministic") else [])]
