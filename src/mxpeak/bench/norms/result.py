"""Build the result of a norms case: rate, limit, check and warnings."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

from mxpeak.bench.harness import grid_text, sortable_residual
from mxpeak.bench.limits import Limit
from mxpeak.bench.norms.check import Reference, scaled_error, threshold
from mxpeak.bench.norms.config import NormsCase
from mxpeak.bench.norms.matrix import cut
from mxpeak.bench.norms.scalapack import Compared
from mxpeak.bench.norms.sizes import not_used
from mxpeak.configs.norms import KINDS
from mxpeak.layout.structure import Structure
from mxpeak.records import Caution, Result
from mxpeak.runtime.facts import Facts

#: The settings of a case that its result records as the problem.
PROBLEM = (
    "kind", "scope", "trans", "structure", "dtype", "layout", "m", "n", "nb", "P", "Q", "order", "node_grid", "uplo",
    "diag", "kl", "ku", "seed", "tiles", "devices_per_rank",
)  # fmt: skip


def error_formula(case: NormsCase) -> str:
    """Return the formula of the scaled error of the case's norm, or of all kinds."""
    kind = case.kind
    if case.vectors:
        length = "" if kind == "max" else f"sqrt( {'m' if case.scope == 'columns' else 'n'} ) * "
        return f"the largest of | norm - reference | / ( reference * {length}eps ) over all {case.scope}"
    scales = {name: f"sqrt( {' * '.join(each.terms)} )" if each.terms else "" for name, each in KINDS.items()}
    if kind == "all":
        of_kinds = ", ".join(f"{name}: s = {scale or 1}" for name, scale in scales.items())
        return f"the largest of | norm - reference | / ( reference * s * eps ); {of_kinds}"
    return f"| norm - reference | / ( reference * {scales[kind] + ' * ' * bool(scales[kind])}eps )"


@dataclass(frozen=True, slots=True)
class TimedNorms:
    """The seconds and the values of each timed run of one case. The values of a vector norm are tuples."""

    samples_s: list[float]
    values: list[dict[str, Any]]
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
        kind: max(
            error_of(case, kind, value, reference) for value in dict.fromkeys(values[kind] for values in runs.values)
        )
        for kind in case.kinds
    }
    return NormCheck(errors, {kind: threshold(case, kind) for kind in case.kinds}, reference.entries == S.entries)


def error_of(case: NormsCase, kind: str, value: Any, reference: Reference) -> float:
    """Return the scaled error of a norm, or the largest one if the value contains a norm of every row or column."""
    if not case.vectors:
        return scaled_error(case, kind, value, reference.expected(case, kind))
    expected = reference.expected_vectors(case, kind)
    if len(value) != len(expected):
        return inf
    return max(scaled_error(case, kind, found, wanted) for found, wanted in zip(value, expected))


@dataclass(frozen=True, slots=True)
class CheckRecords:
    """The reference of a case, the records of its checks with NaN and infinite entries, and ScaLAPACK's norms."""

    reference: Reference
    special: list[dict[str, Any]] | None = None
    compared: Compared | None = None

    @property
    def passed(self) -> bool:
        """Return whether all checks with NaN and infinite entries passed."""
        return all(record["passed"] for record in self.special or ())


def norms_result(
    case: NormsCase,
    S: Structure,
    runs: TimedNorms,
    checked: CheckRecords,
    limit: Limit,
    phases: dict[str, Any],
    memory: dict[str, int],
    facts: Facts,
) -> Result:
    """Build the result of one case, with the time of the fastest run and the errors of the worst run."""
    reference = checked.reference
    check, time_s = check_runs(case, S, runs, reference), min(runs.samples_s)
    passed = check.passed and checked.passed
    read_bytes = S.entries * case.itemsize
    rate = read_bytes / time_s if time_s > 0 else 0.0
    values, expected = runs.values[runs.best], {kind: _expected(case, kind, reference) for kind in case.kinds}
    whole = case.kind == "all"
    shown = {"values": values} if whole else {"value": values[case.kind]}
    if case.vectors:  # the largest one represents all of them
        shown = {"value": max(values[case.kind]), "vectors": len(values[case.kind])}
    return Result(
        benchmark="norms",
        status="valid" if passed else "invalid",
        **facts.sections(runs.start_unix, runs.end_unix, grid_text(case)),
        problem={
            **{name: getattr(case, name) for name in PROBLEM},
            "nb": case.nb if case.tiles is None else None,
            "entries": S.entries,
            "bytes": read_bytes,
            "deterministic": case.reproducible,
            "not_used": not_used(case),
            "memory_bytes": memory,
        },
        result={
            "rate_bytes": rate,
            "time_s": time_s,
            "fraction_of_limit": limit.share(rate),
            "limit": limit.section(),
            "emulated": False,
            **shown,
            **_compared(case, checked, rate, read_bytes),
        },
        validation={
            "passed": passed,
            "residual": check.errors[check.worst],
            "threshold": check.thresholds[check.worst],
            "formula": error_formula(case) + "; m and n are those of op(A)" * case.transposed,
            "iterations": None,
            **shown,
            "expected": expected if whole else expected[case.kind],
            "errors": check.errors,
            "entries": reference.entries,
            **({} if checked.special is None else {"extended": checked.special}),
        },
        samples_s=runs.samples_s,
        phases=phases,
        warnings=[*facts.cautions, *_idle(case), *limit.cautions()],
    )


def _compared(case: NormsCase, checked: CheckRecords, rate: float, read_bytes: int) -> dict[str, Any]:
    """Return the comparison with ScaLAPACK, if there is one, with the scaled errors of its norms."""
    if checked.compared is None:
        return {}
    values = checked.compared.values or {}
    errors = {kind: error_of(case, kind, value, checked.reference) for kind, value in values.items()}
    return {"scalapack": checked.compared.section(case, rate, read_bytes, errors)}


def _expected(case: NormsCase, kind: str, reference: Reference) -> float:
    """Return the reference of a norm, or the largest one of all rows or columns."""
    return float(max(reference.expected_vectors(case, kind)) if case.vectors else reference.expected(case, kind))


def _idle(case: NormsCase) -> list[Caution]:
    sizes = case.tiles or (case.nb,)
    down, across = len(cut(case.m, sizes)), len(cut(case.n, sizes))
    if down >= case.P and across >= case.Q:
        return []
    blocks = f"{case.m}x{case.n} in blocks of {case.blocks} is {down}x{across} blocks"
    text = f"{blocks} for {case.P}x{case.Q} ranks: some ranks have none"
    flag = "--nb" if case.tiles is None else "--tiles"
    return [Caution("idle", text, f"use {flag} {max(1, min(case.m // case.P, case.n // case.Q))} or less")]
