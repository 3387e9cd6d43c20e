"""Build the result of a norms case: rate, limit, check and warnings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mxpeak.bench.harness import grid_text, sortable_residual
from mxpeak.bench.limits import Limit
from mxpeak.bench.norms.check import Reference, scaled_error, threshold
from mxpeak.bench.norms.config import NormsCase
from mxpeak.configs.norms import KINDS
from mxpeak.layout.structure import Structure
from mxpeak.records import Caution, Result
from mxpeak.runtime.facts import Facts

#: The settings of a case that its result records as the problem.
PROBLEM = (
    "kind", "structure", "dtype", "layout", "m", "n", "nb", "P", "Q", "order", "node_grid", "uplo", "diag", "kl", "ku",
    "seed",
)  # fmt: skip


def error_formula(kind: str) -> str:
    """Return the formula of the scaled error of a kind of norm, or of all kinds."""
    scales = {name: f"sqrt( {' * '.join(each.terms)} )" if each.terms else "" for name, each in KINDS.items()}
    if kind == "all":
        of_kinds = ", ".join(f"{name}: s = {scale or 1}" for name, scale in scales.items())
        return f"the largest of | norm - reference | / ( reference * s * eps ); {of_kinds}"
    return f"| norm - reference | / ( reference * {scales[kind] + ' * ' * bool(scales[kind])}eps )"


@dataclass(frozen=True, slots=True)
class TimedNorms:
    """The seconds and the values of each timed run of one case."""

    samples_s: list[float]
    values: list[dict[str, float]]
    start_unix: float
    end_unix: float

    @property
    def best(self) -> int:
        """Return the index of the fastest run."""
        return self.samples_s.index(min(self.samples_s))


@dataclass(frozen=True, slots=True)
class NormCheck:
    """The largest error of each norm over all runs, and its threshold."""

    errors: dict[str, float]
    thresholds: dict[str, float]
    counted: bool  # whether the check read every entry of the structure exactly once

    @property
    def worst(self) -> str:
        """Return the kind of norm with the largest error, among the failed norms if any norm failed."""

        def order(kind: str) -> tuple[bool, float, float]:
            return not self._passes(kind), sortable_residual(self.errors[kind]), self.thresholds[kind]

        return max(self.errors, key=order)

    @property
    def passed(self) -> bool:
        """Return whether every norm is within its threshold and the check read every entry exactly once."""
        return self.counted and all(map(self._passes, self.errors))

    def _passes(self, kind: str) -> bool:
        return self.errors[kind] <= self.thresholds[kind]


def check_runs(case: NormsCase, S: Structure, runs: TimedNorms, reference: Reference) -> NormCheck:
    """Compare every norm of every run with the reference, and return the largest error per norm."""
    errors = {
        kind: max(scaled_error(case, kind, values[kind], reference.values[kind]) for values in runs.values)
        for kind in case.kinds
    }
    return NormCheck(errors, {kind: threshold(case, kind) for kind in case.kinds}, reference.entries == S.entries)


def norms_result(
    case: NormsCase,
    S: Structure,
    runs: TimedNorms,
    reference: Reference,
    limit: Limit,
    phases: dict[str, Any],
    memory: dict[str, int],
    facts: Facts,
) -> Result:
    """Build the result of one case, with the time of the fastest run and the errors of the worst run."""
    check, time_s = check_runs(case, S, runs, reference), min(runs.samples_s)
    read_bytes = S.entries * case.itemsize
    rate = read_bytes / time_s if time_s > 0 else 0.0
    values, expected = runs.values[runs.best], {kind: float(reference.values[kind]) for kind in case.kinds}
    whole = case.kind == "all"
    shown = {"values": values} if whole else {"value": values[case.kind]}
    return Result(
        benchmark="norms",
        status="valid" if check.passed else "invalid",
        **facts.sections(runs.start_unix, runs.end_unix, grid_text(case)),
        problem={
            **{name: getattr(case, name) for name in PROBLEM},
            "entries": S.entries,
            "bytes": read_bytes,
            "deterministic": case.deterministic,
            "memory_bytes": memory,
        },
        result={
            "rate_bytes": rate,
            "time_s": time_s,
            "fraction_of_limit": limit.share(rate),
            "limit": limit.section(),
            "emulated": False,
            **shown,
        },
        validation={
            "passed": check.passed,
            "residual": check.errors[check.worst],
            "threshold": check.thresholds[check.worst],
            "formula": error_formula(case.kind),
            "iterations": None,
            **shown,
            "expected": expected if whole else expected[case.kind],
            "errors": check.errors,
            "entries": reference.entries,
        },
        samples_s=runs.samples_s,
        phases=phases,
        warnings=[*facts.cautions, *_idle(case), *limit.cautions()],
    )


def _idle(case: NormsCase) -> list[Caution]:
    down, across = -(-case.m // case.nb), -(-case.n // case.nb)
    if down >= case.P and across >= case.Q:
        return []
    blocks = f"{case.m}x{case.n} in blocks of {case.nb} is {down}x{across} blocks"
    text = f"{blocks} for {case.P}x{case.Q} ranks: some ranks have none"
    return [Caution("idle", text, f"use --nb {max(1, min(case.m // case.P, case.n // case.Q))} or less")]
