"""Describe the results of each benchmark in text lines, with defaults for benchmarks without their own lines.

Reports call `lines_of` and do not test the name of a benchmark. A plug-in benchmark can therefore register its lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mxpeak.bench.registry import BENCHMARKS, load
from mxpeak.records import Result, three_digits

#: Lines of results that are not those of a benchmark.
OTHERS = {"scan": "mxpeak.report.scans:ScanLines"}
#: Parts of a case in the order in which they are printed.
PARTS = {"n": "N=", "nb": "NB="}
#: Options that distinguish the cases of a sweep if the run has several values.
SWEPT = ("bcast", "depth", "pfact", "rfact", "nbmin", "ndiv", "split")


class Lines:
    """The text lines that describe a benchmark's results.

    nested    phases that are part of another phase, with the name of this phase
    undrawn   phases that the step plot omits: parts of other phases, and phases whose parts are drawn
    timers    phases of `undrawn` that the table of steps shows: times of a device that overlap other phases
    waits     phases in which a rank waits for the others, so that the last rank has the shortest time
    history   names of the quantity and of the iteration in the validation's history
    together  whether the scoreboard shows all results of the benchmark in one row
    """

    nested: ClassVar[Mapping[str, str]] = {}
    undrawn: ClassVar[tuple[str, ...]] = ()
    timers: ClassVar[tuple[str, ...]] = ()
    waits: ClassVar[tuple[str, ...]] = ()
    history: ClassVar[tuple[str, str]] = ("Residual", "the validation")
    together: ClassVar[bool] = False

    def name(self, result: Result) -> str:
        """Return the name of a result in the scoreboard."""
        return result.benchmark

    def case(self, problem: Mapping[str, Any]) -> str:
        """Return a case as text, such as N=1000 NB=192 2x2, with its precision and generator."""
        parts = [f"{shown}{problem[name]}" for name, shown in PARTS.items() if name in problem]
        parts += [f"{problem['P']}x{problem['Q']}"] if {"P", "Q"} <= set(problem) else []
        return " ".join([*parts, *(str(problem[name]) for name in ("precision", "generator") if name in problem)])

    def parts(self, problem: Mapping[str, Any]) -> list[str]:
        """Return the parts of a case for a page, such as N 9408, NB 192, grid 2×2."""
        parts = [f"{name} {problem[key]}" for key, name in (("n", "N"), ("nb", "NB")) if key in problem]
        parts += [f"grid {problem['P']}×{problem['Q']}"] if {"P", "Q"} <= set(problem) else []
        parts += [str(problem["precision"])] if "precision" in problem else []
        return [*parts, *([f"generator {problem['generator']}"] if "generator" in problem else [])]

    def about(self, result: Result, *, verbose: bool) -> list[str]:
        """Return the lines below the headline of a result: accuracy and size."""
        check = result.validation
        residual, threshold = check.get("residual"), check.get("threshold")
        if residual is None and threshold is None:
            return [problem_line(self, result)]
        shown = f"residual {three_digits(residual)}, threshold {three_digits(threshold)}"
        return [shown, problem_line(self, result)]

    def check_lines(self, result: Result) -> list[str]:
        """Return the lines of a page about the validation and other rates."""
        check = result.validation
        return [f"residual {three_digits(check.get('residual'))}, threshold {three_digits(check.get('threshold'))}"]

    def details(self, result: Result) -> list[str]:
        """Return the lines of a page that are collapsed, such as the formula of the residual."""
        formula = result.validation.get("formula")
        return [f"residual = {formula}"] if formula else []

    def beside(self, result: Result, others: Mapping[str, float]) -> str:
        """Return the ratio of the rate to another rate as text, such as "2.1 × double"; empty without another rate.

        The other rate is in the result or in `others`, which contains rates by benchmark.
        """
        return ""

    def notes(self, result: Result) -> list[str]:
        """Return notes about the rate for the scoreboard, one per line; empty by default."""
        return []

    def motifs(self, result: Result) -> list[tuple[str, ...]]:
        """Return the header and the rows of a table that compares precisions by motif; empty by default."""
        return []

    def memory(self, problem: Mapping[str, Any]) -> str:
        """Return text about the memory of a case; empty by default."""
        return ""


def title_of(benchmark: str) -> str:
    """Return the official title of a benchmark, or its name if it has no title."""
    return (BENCHMARKS[benchmark].title if benchmark in BENCHMARKS else "") or benchmark


def lines_of(benchmark: str) -> Lines:
    """Return the Lines object of a benchmark, or the default if the benchmark has none or is not registered."""
    name = BENCHMARKS[benchmark].lines if benchmark in BENCHMARKS else OTHERS.get(benchmark, "")
    return load(name)() if name else Lines()


def case_text(result: Result) -> str:
    """Return a case as text, with the options that distinguish it from the other cases of its sweep."""
    swept = (f"{name}={result.problem[name]}" for name in _swept(result))
    return " ".join([lines_of(result.benchmark).case(result.problem), *swept])


def problem_parts(result: Result) -> list[str]:
    """Return the parts of a case, with the options that distinguish it from the other cases of its sweep."""
    swept = (f"{name} {result.problem[name]}" for name in _swept(result))
    return [*lines_of(result.benchmark).parts(result.problem), *swept]


def _swept(result: Result) -> list[str]:
    """Return the names of the SWEPT options that have several values in the run of a result."""
    settings = ((name, result.config.get(name)) for name in SWEPT if name in result.problem)
    values = {name: each.get("value") for name, each in settings if isinstance(each, Mapping)}
    return [name for name, value in values.items() if isinstance(value, list | tuple) and len(value) > 1]


def problem_line(lines: Lines, result: Result) -> str:
    """Return the case and the measured time of a result as a line of text."""
    time_s = result.result.get("time_s")
    parts = [case_text(result).replace("=", " "), "" if time_s is None else f"time {three_digits(time_s)} s"]
    return ", ".join(part for part in parts if part)
