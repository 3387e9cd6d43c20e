"""Describe the results of the norms benchmark: error, norm and matrix."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from mxpeak.records import Result, bytes_rate_text, three_digits
from mxpeak.report.summaries import Lines, problem_line

#: Settings that the text omits: one norm of the matrix, not transposed.
USUAL = (("scope", "matrix"), ("trans", "n"))


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
        """Return the scaled error with the norms, the matrix with the time, and the checks of NaN and infinity."""
        shown = [f"{name} {value:.10g}" for name, value in _values(result).items()]
        error = "; ".join(filter(None, (_norm_error(result), ", ".join(shown))))
        return [error, problem_line(self, result), *scalapack_lines(result), *special_lines(result)]

    def check_lines(self, result: Result) -> list[str]:
        """Return a line about the scaled error, and one per check with NaN or infinite entries."""
        return [_norm_error(result), *scalapack_lines(result), *special_lines(result)]

    def details(self, result: Result) -> list[str]:
        """Return lines with the formula of the scaled error, and the computed and expected norms with all digits."""
        check = result.validation
        expected, values = check.get("expected"), check.get("values", {"": check.get("value")})
        wanted = expected if isinstance(expected, Mapping) else {"": expected}
        formula = [f"scaled error = {check.get('formula')}"] if check.get("formula") else []
        shown = [(name, value) for name, value in (values or {}).items() if value is not None]
        return [*formula, *(f"{name} found {value}, expected {wanted.get(name)}".strip() for name, value in shown)]


def scalapack_lines(result: Result) -> list[str]:
    """Return a line that compares the norm with ScaLAPACK's, or states why it was not compared."""
    compared = result.result.get("scalapack")
    if not compared:
        return []
    if "missing" in compared:
        return [f"not compared with ScaLAPACK: {compared['missing']}"]
    times = f"ScaLAPACK {bytes_rate_text(compared['rate_bytes'])}, mxpeak {three_digits(compared['speedup'])} times"
    finite = {kind: error is not None and isfinite(error) for kind, error in compared["errors"].items()}
    errors = [f"{kind} {three_digits(e) if finite[kind] else 'infinite'}" for kind, e in compared["errors"].items()]
    return [f"{times} as fast; ScaLAPACK's scaled error: {', '.join(errors)} eps"]


def special_lines(result: Result) -> list[str]:
    """Return a line per check with NaN or infinite entries."""
    lines = []
    for check in result.validation.get("extended") or ():
        placed = " and ".join(f"{entry['value']} at ({entry['i']}, {entry['j']})" for entry in check["entries"])
        read = "" if check["read"] else " (not read)"
        norms = ", ".join(f"{kind} {norm}" for kind, norm in check["found"].items())
        mark = "PASSED" if check["passed"] else "FAILED"
        lines.append(f"{mark}  {placed}{read}: {norms}, expected {check['expected']}")
    return lines


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
    """Return the computed norms by name; of the norms of all rows or columns, only the largest one."""
    kind, count = result.problem.get("kind"), result.result.get("vectors")
    name = kind if count is None else f"largest {kind} of {count} {result.problem.get('scope')}"
    values = result.result.get("values") or {name: result.result.get("value")}
    return {name: value for name, value in values.items() if value is not None}


def _parts(problem: Mapping[str, Any], times: str) -> list[str]:
    names = ["kind", "scope", "trans", "structure", "uplo", "diag", "kl", "ku", "dtype", "layout"]
    settings = {name: problem[name] for name in names if problem.get(name) not in (None, "nonunit")}
    settings = {name: value for name, value in settings.items() if (name, value) not in USUAL}
    parts = [f"{name}={value}" if name in ("trans", "kl", "ku") else str(value) for name, value in settings.items()]
    parts += [f"{problem['m']}{times}{problem['n']}"] if "m" in problem and "n" in problem else []
    if problem.get("P", 1) * problem.get("Q", 1) > 1 or problem.get("layout") == "tiles":
        blocks = "+".join(map(str, problem.get("tiles") or [problem.get("nb")]))
        parts.append(f"NB={blocks} {problem.get('P')}{times}{problem.get('Q')}")
    devices = problem.get("devices_per_rank") or 1
    parts += [f"{devices} devices per rank"] if devices > 1 else []
    return [*parts, *(["deterministic"] if problem.get("deterministic") else [])]
