"""Build the result of a standalone solver of HPG-MxP, which has no validation, penalty, speed-up or rating."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Any, ClassVar

from mxpeak.bench.hpg_mxp.config import HpgMxpConfig
from mxpeak.bench.hpg_mxp.problem import HpgMxpProblem
from mxpeak.bench.hpg_mxp.result import FORMULA, cycles_of, problem_section, raised, wider
from mxpeak.bench.hpg_mxp.rules import foreseen
from mxpeak.bench.rules import ruling
from mxpeak.bench.sparse import SparseBench, memory_violations
from mxpeak.bench.sparse_result import MeasuredStorage
from mxpeak.perf.sparse_counts import HPG_MXP_MOTIFS, hpg_mxp_flops
from mxpeak.records import Caution
from mxpeak.solvers.krylov import Solve


@dataclass(frozen=True, slots=True, kw_only=True)
class Standalone(MeasuredStorage[Solve]):
    """The timed solves of one solver, "mixed" or "double", with one storage format and one format of the basis."""

    motifs: ClassVar[Sequence[str]] = HPG_MXP_MOTIFS
    solves_name: ClassVar[str] = "solves"

    solver: str
    basis: str
    flexible: bool = False

    @property
    def residual(self) -> float:
        """Return the largest relative residual at the end of a solve, or NaN if one is not finite."""
        return max(solve.residual for solve in self.timed.solves) if self.timed.finite else nan

    @property
    def passed(self) -> bool:
        """Return whether every solve has reduced its residual."""
        return self.residual < 1.0


def standalone_result(
    bench: SparseBench[HpgMxpConfig], problem: HpgMxpProblem, measured: Sequence[Standalone], rss: int
) -> dict[str, Any]:
    """Build the sections of the result. The keys of the validation, the rating and the other solver are None."""
    config, first = bench.config, measured[0]
    held = {first.solver: first.held_bytes}
    broken = foreseen(config, bench.rt, first.storage) + memory_violations(first.held_bytes, bench.facts.machine)
    solver = f"only the {first.solver} solver ran"
    return {
        "benchmark": "hpg-mxp",
        "status": "valid" if first.passed else "invalid",
        "problem": {**problem_section(bench, problem, first, held, first.basis), "peak_rss_bytes": rss},
        "result": {**_figures(problem, first), "beside": [_other_storage(problem, other) for other in measured[1:]]},
        "validation": _validation(config, first),
        "rules": ruling(broken),
        "samples_s": first.timed.samples_s,
        "phases": first.table(*HPG_MXP_MOTIFS, *first.timed.phases),
        "telemetry": first.telemetry(),
        "warnings": [
            *bench.facts.cautions,
            *bench.cautions,
            Caution(
                "standalone",
                f"{solver}: no validation, and therefore no penalty, speed-up or rating",
                "use --run-type benchmark for a rating",
            ),
            *([*raised(config, first.levels), *wider(config, first.basis)] if first.solver == "mixed" else []),
            *first.limit.cautions(),
        ],
    }


def _rates(problem: HpgMxpProblem, measured: Standalone) -> dict[str, float | None]:
    """Return the raw rates by both flop counts; those of the solver that did not run, and all ratings, are None."""
    name = {"mixed": "raw", "double": "double"}
    keys = [f"{kind}_rate_flops{suffix}" for kind in name.values() for suffix in ("", "_ornl")]
    rates = dict.fromkeys(("rate_flops", "rate_flops_reference", "rate_flops_ornl", *keys, "speedup"), None)
    for counting, suffix in (("reference", ""), ("ornl", "_ornl")):
        flops = hpg_mxp_flops(problem.levels, cycles_of(measured.timed), counting, flexible=measured.flexible)["total"]
        rates[f"{name[measured.solver]}_rate_flops{suffix}"] = flops / measured.timed.time_s
    return rates


def _figures(problem: HpgMxpProblem, measured: Standalone) -> dict[str, Any]:
    timed, double = measured.timed, measured.solver == "double"
    flops = hpg_mxp_flops(problem.levels, cycles_of(timed), flexible=measured.flexible)
    return {
        **_rates(problem, measured),
        "time_s": timed.time_s,
        "double_time_s": timed.time_s if double else None,
        "solves": None if double else timed.count,
        "double_solves": timed.count if double else None,
        "iterations": sum(cycles_of(timed)),
        **measured.limit_section(),
        "emulated": False,
        "flops": None if double else flops,
        "double_flops": flops if double else None,
        "double_phases": timed.phases if double else None,
        "speedup_by_motif": None,
        "between": {},
    }


def _validation(config: HpgMxpConfig, measured: Standalone) -> dict[str, Any]:
    """Return the section of the only check: every solve must reduce its residual."""
    solvers = (f"{solver}_{name}" for solver in ("double", "mixed") for name in ("iterations", "residual", "initial"))
    last = measured.timed.solves[-1]
    return {
        **dict.fromkeys((*solvers, "ratio", "penalty", "ranks", "max_error", "fullscale"), None),
        "passed": measured.passed,
        "residual": measured.residual,
        "threshold": 1.0,
        "formula": FORMULA,
        "iterations": last.steps,
        "type": "none",
        f"{measured.solver}_initial": last.initial,
        f"{measured.solver}_residual": last.residual,
        "history": {"double": [], "mixed": [], measured.solver: last.history},
        **({} if measured.passed else {"outcome": {measured.solver: str(last.outcome)}}),
    }


def _other_storage(problem: HpgMxpProblem, other: Standalone) -> dict[str, Any]:
    """Return the raw rate and the phases of an additional storage format."""
    return {
        "label": "explore",
        "storage": other.storage,
        "precision": other.levels[0]["value_precision"],
        **_rates(problem, other),
        "penalty": None,
        "double_iterations": None,
        "mixed_iterations": None,
        "time_s": other.timed.time_s,
        "solves": other.timed.count,
        "speedup_by_motif": None,
        "phases": other.timed.phases,
        "double_phases": None,
        "limit": other.limit.section(),
    }
