"""What each benchmark says of its own results to people; those that say nothing of their own are told in general words.

No text asks for a benchmark's name: it asks `lines_of`, and a benchmark of one's own registers its own lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mxpeak.bench.registry import BENCHMARKS, load
from mxpeak.records import Result, three_digits

#: Parts of a case in the order in which they are told.
PARTS = {"n": "N=", "nb": "NB="}
#: Options that tell one case of a sweep from the other, where they have several values.
SWEPT = ("bcast", "depth", "pfact", "rfact", "nbmin", "ndiv", "split")


class Lines:
    """What a benchmark says of a result.

    nested    phases that are part of other phases
    undrawn   phases that the figure of the steps omits: parts of other phases, and phases whose parts it draws
    history   what the validation's history is of, and whose steps it is by
    together  whether the scoreboard shows all its results in one row
    """

    nested: ClassVar[Mapping[str, str]] = {}
    undrawn: ClassVar[tuple[str, ...]] = ()
    history: ClassVar[tuple[str, str]] = ("Residual", "the validation")
    together: ClassVar[bool] = False

    def name(self, result: Result) -> str:
        """What a row of a scoreboard begins with."""
        return result.benchmark

    def case(self, problem: Mapping[str, Any]) -> str:
        """The size of a case, such as N=1000 NB=192 2x2, and where there is a choice its precision and generator."""
        parts = [f"{shown}{problem[name]}" for name, shown in PARTS.items() if name in problem]
        parts += [f"{problem['P']}x{problem['Q']}"] if {"P", "Q"} <= set(problem) else []
        return " ".join([*parts, *(str(problem[name]) for name in ("precision", "generator") if name in problem)])

    def parts(self, problem: Mapping[str, Any]) -> list[str]:
        """Return the size of a case in parts, as a page shows them: N 9408, NB 192, grid 2×2."""
        parts = [f"{name} {problem[key]}" for key, name in (("n", "N"), ("nb", "NB")) if key in problem]
        parts += [f"grid {problem['P']}×{problem['Q']}"] if {"P", "Q"} <= set(problem) else []
        parts += [str(problem["precision"])] if "precision" in problem else []
        return [*parts, *([f"generator {problem['generator']}"] if "generator" in problem else [])]

    def about(self, result: Result, *, verbose: bool) -> list[str]:
        """What stands under the headline: how accurate, how large."""
        check = result.validation
        residual, threshold = check.get("residual"), check.get("threshold")
        if residual is None and threshold is None:
            return [problem_line(self, result)]
        shown = f"residual {three_digits(residual)}, threshold {three_digits(threshold)}"
        return [shown, problem_line(self, result)]

    def found(self, result: Result) -> list[str]:
        """What the page says of the validation, and of other rates."""
        check = result.validation
        return [f"residual {three_digits(check.get('residual'))}, threshold {three_digits(check.get('threshold'))}"]

    def details(self, result: Result) -> list[str]:
        """Return how the validation was computed, for a part of the page that is closed at first."""
        formula = result.validation.get("formula")
        return [f"residual = {formula}"] if formula else []

    def beside(self, result: Result, others: Mapping[str, float]) -> str:
        """What the rate is beside another one: of this result, or of other benchmarks' `others`; may be empty."""
        return ""

    def notes(self, result: Result) -> list[str]:
        """Return what a reader of the scoreboard must know about the figure, a line each; may be empty."""
        return []

    def motifs(self, result: Result) -> list[tuple[str, ...]]:
        """Rows of a comparison by motif, the first of them its head; there may be none."""
        return []

    def memory(self, problem: Mapping[str, Any]) -> str:
        """What a case takes; may be empty."""
        return ""


def title_of(benchmark: str) -> str:
    """Return the name of a benchmark as its authors write it."""
    return (BENCHMARKS[benchmark].title if benchmark in BENCHMARKS else "") or benchmark


def lines_of(benchmark: str) -> Lines:
    """Return the texts of a benchmark, or general ones if it has none or is not registered."""
    name = BENCHMARKS[benchmark].lines if benchmark in BENCHMARKS else ""
    return load(name)() if name else Lines()


def case_text(result: Result) -> str:
    """The size of a case in a few words, with what tells it from the other cases of its sweep."""
    problem = result.problem
    several = [name for name in SWEPT if len(_asked(result, name)) > 1 and name in problem]
    return " ".join([lines_of(result.benchmark).case(problem), *(f"{name}={problem[name]}" for name in several)])


def problem_parts(result: Result) -> list[str]:
    """Return the parts of a case, with the options that distinguish it from the other cases of its sweep."""
    problem = result.problem
    several = [name for name in SWEPT if len(_asked(result, name)) > 1 and name in problem]
    return [*lines_of(result.benchmark).parts(problem), *(f"{name} {problem[name]}" for name in several)]


def _asked(result: Result, name: str) -> list[Any]:
    """The values of an option that were asked for."""
    setting = result.config.get(name)
    value = setting.get("value") if isinstance(setting, Mapping) else None
    return list(value) if isinstance(value, list | tuple) else [value]


def problem_line(lines: Lines, result: Result) -> str:
    """The case, and the time that was measured."""
    time_s = result.result.get("time_s")
    parts = [case_text(result).replace("=", " "), "" if time_s is None else f"time {three_digits(time_s)} s"]
    return ", ".join(part for part in parts if part)
