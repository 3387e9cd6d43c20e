"""What HPG-MxP's phases become: the figure, the same in both countings, by motif, and what stands beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from mxpeak.bench.harness import NO_PHASE, with_share
from mxpeak.bench.hpg_mxp.config import HpgMxpConfig
from mxpeak.bench.hpg_mxp.problem import Problem
from mxpeak.bench.hpg_mxp.rules import foreseen
from mxpeak.bench.limits import Limit
from mxpeak.bench.rules import ruling
from mxpeak.bench.sparse import SparseBench, of_memory, smoother_of, with_own_rates
from mxpeak.configs.sparse import OFFICIAL_S
from mxpeak.errors import Outcome
from mxpeak.perf.sparse_counts import HPG_MXP_MOTIFS, Levels, hpg_mxp_flops
from mxpeak.records import Caution, Result, three_digits
from mxpeak.solvers.krylov import Solve

#: The largest max |x - 1| that needs no word.
WRONG = 1e-3
FORMULA = "|| b - A x ||_2 / || b ||_2"


@dataclass(frozen=True, slots=True)
class Validated:
    """One solver's way to the tolerance, and max |x - 1| at its end."""

    solve: Solve
    max_error: float


@dataclass(frozen=True, slots=True)
class Validation:
    """Both solvers on the same problem; `reach` is what the mixed one had to come to."""

    double: Validated
    mixed: Validated
    reach: float
    type: str
    ranks: int

    @property
    def passed(self) -> bool:
        """Whether the mixed solver came as far as it had to, and the double one, too, or it set the aim."""
        double = self.double.solve
        set_aim = self.type == "fullscale" and double.outcome != Outcome.NOT_FINITE and double.residual <= self.reach
        return (double.outcome == Outcome.SOLVED or set_aim) and self.mixed.solve.outcome == Outcome.SOLVED

    @property
    def penalty(self) -> float:
        """min(1, n_d / n_ir)."""
        n_d, n_ir = self.double.solve.steps, self.mixed.solve.steps
        return 1.0 if n_ir <= n_d else n_d / n_ir


@dataclass(frozen=True, slots=True)
class Solves:
    """Timed solves: seconds of each, how each went, the phases of all, their times by step."""

    samples_s: list[float]
    solves: list[Solve]
    phases: dict[str, Any] = field(default_factory=dict)
    by_step: dict[str, Any] = field(default_factory=dict)

    @property
    def cycles(self) -> list[int]:
        """The steps of every restart cycle of all of them."""
        return [steps for solve in self.solves for steps in solve.cycles]

    @property
    def finite(self) -> bool:
        """Whether none of them broke down."""
        return all(isfinite(solve.residual) for solve in self.solves)

    @property
    def time_s(self) -> float:
        """Of all of them."""
        return sum(self.samples_s)

    @property
    def least_bytes(self) -> float:
        """Bytes that the motifs have to move at least."""
        return float(sum(self.phases.get(motif, {}).get("bytes", 0.0) for motif in HPG_MXP_MOTIFS))


@dataclass(frozen=True, slots=True)
class Measured:
    """All phases with one storage; levels as the mixed solver has them; bytes over all ranks."""

    storage: str
    levels: list[dict[str, Any]]
    validation: Validation
    mixed: Solves
    double: Solves
    readings: Limit
    setup_s: float
    optimize_s: float
    held_bytes: list[int]
    setup_bytes: int
    trace: list[dict[str, Any]] | None

    @property
    def passed(self) -> bool:
        """Whether the validation passed, and no timed solve broke down."""
        return self.validation.passed and self.mixed.finite and self.double.finite

    @property
    def least_rate(self) -> float:
        """Bytes that the motifs of the mixed solves have to move at least, per second."""
        return self.mixed.least_bytes / self.mixed.time_s

    @property
    def limit(self) -> Limit:
        """The rate of reading, or that of the mixed solves if it is higher."""
        return with_own_rates(self.readings, "mixed solves", self.least_rate, self.mixed.phases)

    def rates(self, levels: Levels) -> dict[str, Any]:
        """The figure and what it is made of, in both countings; no speed-up where double took no step."""
        penalty = self.validation.penalty
        found: dict[str, Any] = {}
        for counting in ("reference", "ornl"):
            flops = hpg_mxp_flops(levels, self.mixed.cycles, counting)["total"]
            double = hpg_mxp_flops(levels, self.double.cycles, counting)["total"]
            raw = flops / self.mixed.time_s
            suffix = "" if counting == "reference" else "_ornl"
            found[f"rate_flops_{counting}"] = raw * penalty
            found[f"raw_rate_flops{suffix}"] = raw
            found[f"double_rate_flops{suffix}"] = double / self.double.time_s
        found["rate_flops"] = found["rate_flops_reference"]
        double = found["double_rate_flops"]
        found["speedup"] = found["rate_flops"] / double if double else None
        return found

    def speedup_by_motif(self) -> dict[str, float]:
        """Double's time of a solve over the mixed one's, times the penalty (paper, fig. 5)."""
        penalty, found = self.validation.penalty, {}
        for motif in HPG_MXP_MOTIFS:
            mixed, double = (
                solves.phases.get(motif, {}).get("time_s", 0.0) / len(solves.samples_s)
                for solves in (self.mixed, self.double)
            )
            found[motif] = penalty * double / mixed if mixed else 0.0
        mean = [solves.time_s / len(solves.samples_s) for solves in (self.double, self.mixed)]
        return {**found, "total": penalty * mean[0] / mean[1]}


def hpg_mxp_result(
    bench: SparseBench[HpgMxpConfig],
    problem: Problem,
    found: list[Measured],
    between: Mapping[str, Solves],
    rss: int,
    start: float,
    end: float,
) -> Result:
    """The result of the first of `found`, with the others' figures, and those of forms between double and mixed."""
    config, (one, *beside) = bench.config, found
    check, rates = one.validation, one.rates(problem.levels)
    broken = foreseen(config, bench.rt, one.storage)
    broken += of_memory(one.held_bytes[1], bench.facts.machine)
    limit = one.limit
    phases = {**{motif: NO_PHASE for motif in HPG_MXP_MOTIFS}, **one.mixed.phases}
    return Result(
        benchmark="hpg-mxp",
        status="valid" if one.passed else "invalid",
        **bench.facts.sections(start, end),
        problem={**_problem(bench, problem, one), "peak_rss_bytes": rss},
        result={
            **rates,
            "time_s": one.mixed.time_s,
            "double_time_s": one.double.time_s,
            "solves": len(one.mixed.samples_s),
            "double_solves": len(one.double.samples_s),
            "iterations": sum(one.mixed.cycles),
            "fraction_of_limit": limit.share(one.least_rate),
            "limit": limit.section(),
            "emulated": False,
            "flops": hpg_mxp_flops(problem.levels, one.mixed.cycles),
            "double_flops": hpg_mxp_flops(problem.levels, one.double.cycles),
            "double_phases": one.double.phases,
            "speedup_by_motif": one.speedup_by_motif(),
            "between": _between(between, rates, check.penalty, problem.levels),
            "beside": [_beside(config, other, problem.levels) for other in beside],
        },
        validation=_validation(check, passed=one.passed),
        rules=ruling(broken),
        samples_s=one.mixed.samples_s,
        phases={name: with_share(phase, limit.rate) for name, phase in phases.items()},
        telemetry={"steps": one.mixed.by_step, **({} if one.trace is None else {"trace": one.trace})},
        warnings=[
            *bench.facts.cautions,
            *bench.cautions,
            *_raised(config, one),
            *_unreached(config, check),
            *_failed(beside),
            *limit.cautions(),
            *_wrong(check),
        ],
    )


def _problem(bench: SparseBench[HpgMxpConfig], problem: Problem, one: Measured) -> dict[str, Any]:
    config = bench.config
    values = [level["value_precision"] for level in one.levels]
    mixed, double = one.held_bytes[1], one.held_bytes[0]
    return {
        **problem.section(),
        "restart": config.restart,
        "max_iterations": config.iterations,
        "levels": one.levels,
        "storage": one.storage,
        "smoother": smoother_of(config, one.storage),
        "colouring": config.colouring,
        "ranks": bench.comm.size,
        "threads": bench.placement.threads,
        "setup_s": one.setup_s,
        "optimize_s": one.optimize_s,
        "memory_bytes": {
            "mixed": mixed,
            "double": double,
            "setup": one.setup_bytes,
            "reference_formula": problem.reference_bytes(),
        },
        "rt_s": bench.rt,
        "larger_mesh": problem.larger_mesh(mixed / double),
        "precision": {"mg": values, "krylov": values[0], "vectors": one.levels[0]["vector_precision"]},
    }


def _validation(check: Validation, *, passed: bool) -> dict[str, Any]:
    double, mixed = check.double.solve, check.mixed.solve
    return {
        "passed": passed,
        "residual": mixed.residual,
        "threshold": check.reach,
        "formula": FORMULA,
        "iterations": mixed.steps,
        "double_iterations": double.steps,
        "mixed_iterations": mixed.steps,
        "penalty": check.penalty,
        "type": check.type,
        "ranks": check.ranks,
        "double_residual": double.residual,
        "mixed_residual": mixed.residual,
        "double_initial": double.initial,
        "mixed_initial": mixed.initial,
        "max_error": check.mixed.max_error,
        "history": {"double": double.history, "mixed": mixed.history},
        "outcome": {"double": str(double.outcome), "mixed": str(mixed.outcome)},
    }


def _between(between: Mapping[str, Solves], rates: dict[str, Any], penalty: float, levels: Levels) -> dict[str, Any]:
    """How fast the forms between double and mixed are, and by how much mixed is faster than each.

    fp32 has the mixed solver's numbers, so it takes its steps and has its penalty.
    """
    found = {}
    for name, solves in between.items():
        raw = hpg_mxp_flops(levels, solves.cycles)["total"] / solves.time_s
        rate = raw if name == "compressed double" else raw * penalty
        found[name] = {
            "rate_flops": rate,
            "speedup": rates["rate_flops"] / rate if rate else None,
            "over_double": rate / rates["double_rate_flops"] if rates["double_rate_flops"] else None,
            "time_s": solves.time_s,
            "solves": len(solves.samples_s),
        }
    return found


def _beside(config: HpgMxpConfig, other: Measured, levels: Levels) -> dict[str, Any]:
    """A second figure, with another storage."""
    check = other.validation
    return {
        "label": "explore" if foreseen(config, OFFICIAL_S, other.storage) else "official",
        "storage": other.storage,
        "precision": other.levels[0]["value_precision"],
        **other.rates(levels),
        "penalty": check.penalty,
        "double_iterations": check.double.solve.steps,
        "mixed_iterations": check.mixed.solve.steps,
        "time_s": other.mixed.time_s,
        "solves": len(other.mixed.samples_s),
        "speedup_by_motif": other.speedup_by_motif(),
        "phases": other.mixed.phases,
        "double_phases": other.double.phases,
        "limit": other.limit.section(),
    }


def _raised(config: HpgMxpConfig, one: Measured) -> list[Caution]:
    """Where a format was asked for that does not hold the values."""
    asked = config.mg_precisions(len(one.levels))
    return [
        Caution(
            "raised",
            f"level {k}: {name} cannot represent every value, so {level['value_precision']} was used",
            "use --mode explore --value-tolerance X to allow rounded values",
        )
        for k, (name, level) in enumerate(zip(asked, one.levels))
        if name not in ("auto", level["value_precision"])
    ]


def _wrong(check: Validation) -> list[Caution]:
    """Where a small residual does not mean a right solution."""
    if not check.passed or check.mixed.max_error <= WRONG:
        return []
    text = f"the residual is as small as required, but max |x - 1| is {three_digits(check.mixed.max_error)}"
    return [Caution("error", f"{text}: the matrix is badly conditioned or scaled", "scale its rows and columns")]


def _failed(beside: list[Measured]) -> list[Caution]:
    """Figures beside the first that were not validated."""
    text = "{}: the solvers did not reach the required residual, so the rate is not valid"
    return [Caution("beside", text.format(one.storage), "see result.beside") for one in beside if not one.passed]


def _unreached(config: HpgMxpConfig, check: Validation) -> list[Caution]:
    """What to try where a matrix from a file was not solved."""
    if config.matrix is None or check.passed:
        return []
    double, mixed = check.double.solve, check.mixed.solve
    if double.outcome == Outcome.SOLVED:
        name, solve = "mixed", mixed
        hint = "try a wider --precision, --krylov-precision fp64, or a smaller --value-tolerance"
    else:
        name, solve = "double", double
        hint = "raise --restart or --threshold; mxpeak.gmres has stronger preconditioners than one sweep, such as amg"
    text = f"the residual of the {name} solver stopped at {three_digits(solve.residual)} after {solve.steps} iterations"
    return [Caution("unreached", text, hint)]
