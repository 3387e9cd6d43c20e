"""What the measured norms of one case become: the result, with its check, phases and cautions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mxpeak.bench.harness import grid_text, sortable_residual
from mxpeak.bench.limits import Limit
from mxpeak.bench.norms.check import Reference, scaled_error, threshold
from mxpeak.bench.norms.config import NormsCase
from mxpeak.layout.structure import Structure
from mxpeak.records import Caution, Result
from mxpeak.runtime.facts import Facts

FORMULAS = {
    "max": "| norm - reference | / ( reference * eps )",
    "one": "| norm - reference | / ( reference * sqrt( m ) * eps )",
    "inf": "| norm - reference | / ( reference * sqrt( n ) * eps )",
    "fro": "| norm - reference | / ( reference * sqrt( m * n ) * eps )",
    "all": "the largest of | norm - reference | / ( reference * s * eps ); max: s = 1, one: s = sqrt( m ), "
    "inf: s = sqrt( n ), fro: s = sqrt( m * n )",
}


@dataclass(frozen=True, slots=True)
class Runs:
    """The timed runs of one case: the seconds and the norms of each."""

    samples_s: list[float]
    values: list[dict[str, float]]
    start_unix: float
    end_unix: float

    @property
    def best(self) -> int:
        """The fastest one."""
        return self.samples_s.index(min(self.samples_s))


@dataclass(frozen=True, slots=True)
class Check:
    """How far each norm is from its reference, at worst over the runs, and how far it may be."""

    errors: dict[str, float]
    thresholds: dict[str, float]
    counted: bool  # whether as many entries were read as the structure has

    @property
    def worst(self) -> str:
        """The kind that says how it went: one that fails, else the one with the largest error."""

        def order(kind: str) -> tuple[bool, float, float]:
            return not self._passes(kind), sortable_residual(self.errors[kind]), self.thresholds[kind]

        return max(self.errors, key=order)

    @property
    def passed(self) -> bool:
        """Whether every norm is as accurate as it must be."""
        return self.counted and all(map(self._passes, self.errors))

    def _passes(self, kind: str) -> bool:
        return self.errors[kind] <= self.thresholds[kind]


def check_runs(case: NormsCase, S: Structure, runs: Runs, reference: Reference) -> Check:
    """The check of every norm of every run."""
    errors = {
        kind: max(scaled_error(case, kind, values[kind], reference.values[kind]) for values in runs.values)
        for kind in case.kinds
    }
    return Check(errors, {kind: threshold(case, kind) for kind in case.kinds}, reference.entries == S.entries)


def norms_result(
    case: NormsCase,
    S: Structure,
    runs: Runs,
    reference: Reference,
    limit: Limit,
    phases: dict[str, Any],
    memory: dict[str, int],
    facts: Facts,
) -> Result:
    """The result of the runs of one case: the best one's time, the worst one's check."""
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
            "kind": case.kind,
            "structure": case.structure,
            "dtype": case.dtype,
            "layout": case.layout,
            "m": case.m,
            "n": case.n,
            "nb": case.nb,
            "P": case.P,
            "Q": case.Q,
            "order": case.order,
            "node_grid": case.node_grid,
            "uplo": case.uplo,
            "diag": case.diag,
            "kl": case.kl,
            "ku": case.ku,
            "seed": case.seed,
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
            "formula": FORMULAS[case.kind],
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
