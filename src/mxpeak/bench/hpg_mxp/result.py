"""Build the result of HPG-MxP: the rate by both flop counts, its motifs, and the rates of other formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mxpeak.bench.hpg_mxp.config import HpgMxpConfig
from mxpeak.bench.hpg_mxp.problem import HpgMxpProblem
from mxpeak.bench.hpg_mxp.rules import few_ranks, foreseen
from mxpeak.bench.rules import ruling
from mxpeak.bench.sparse import SparseBench, memory_violations
from mxpeak.bench.sparse_result import MeasuredStorage, TimedSolves
from mxpeak.configs.sparse import OFFICIAL_S
from mxpeak.errors import Outcome
from mxpeak.perf.sparse_counts import HPG_MXP_MOTIFS, Levels, hpg_mxp_flops
from mxpeak.precision import PRECISIONS
from mxpeak.records import Caution, three_digits
from mxpeak.solvers.krylov import Solve

#: A larger max |x - 1| causes a warning.
WRONG = 1e-3
FORMULA = "|| b - A x ||_2 / || b ||_2"

Solves = TimedSolves[Solve]


def cycles_of(timed: Solves) -> list[int]:
    """Return the number of steps in each restart cycle of all solves."""
    return [steps for solve in timed.solves for steps in solve.cycles]


@dataclass(frozen=True, slots=True)
class Validated:
    """One validation solve to the tolerance, with max |x - 1| of its solution."""

    solve: Solve
    max_error: float


@dataclass(frozen=True, slots=True)
class Validation:
    """The solves of both solvers on the same problem; `reach` is the residual that the mixed solver had to reach."""

    double: Validated
    mixed: Validated
    reach: float
    type: str
    ranks: int

    @property
    def passed(self) -> bool:
        """Return whether both solvers reached the required residual.

        At full scale, the residual of the double solver may define the requirement.
        """
        double = self.double.solve
        set_aim = self.type == "fullscale" and double.outcome != Outcome.NOT_FINITE and double.residual <= self.reach
        return (double.outcome == Outcome.SOLVED or set_aim) and self.mixed.solve.outcome == Outcome.SOLVED

    @property
    def ratio(self) -> float | None:
        """Return n_d / n_ir, or None if the mixed solver took no step."""
        n_d, n_ir = self.double.solve.steps, self.mixed.solve.steps
        return n_d / n_ir if n_ir else None

    @property
    def penalty(self) -> float:
        """Return the penalty factor min(1, n_d / n_ir) for additional iterations of the mixed solver."""
        return 1.0 if self.ratio is None else min(1.0, self.ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class HpgMxpMeasured(MeasuredStorage[Solve]):
    """All phases of HPG-MxP with one storage format; `timed` and `levels` belong to the mixed solver.

    validation     the validation that determines the penalty
    fullscale      an additional validation on all ranks, or None
    double_bytes   memory of the double solver over all ranks
    basis          format of the mixed solver's stored Krylov basis
    flexible       whether the mixed solver stores M^-1 q of each step, so that an update needs no multigrid call
    """

    motifs: ClassVar[Sequence[str]] = HPG_MXP_MOTIFS
    solves_name: ClassVar[str] = "mixed solves"

    validation: Validation
    fullscale: Validation | None
    double: Solves
    double_bytes: int
    basis: str
    flexible: bool = False

    @property
    def passed(self) -> bool:
        """Return whether all validations passed, and no timed solve broke down."""
        validated = self.validation.passed and (self.fullscale is None or self.fullscale.passed)
        return validated and self.timed.finite and self.double.finite

    def rates(self, levels: Levels) -> dict[str, Any]:
        """Return the rates of the mixed and the double solver in flop/s, and the speed-up of the mixed solver.

        Each rate is computed from the flop counts of the reference code and from those of ORNL's code. The rates of
        the mixed solver include the penalty, except those whose names begin with `raw`. The speed-up is None if the
        double solver took no step.
        """
        penalty = self.validation.penalty
        rates: dict[str, Any] = {}
        for counting in ("reference", "ornl"):
            flops = hpg_mxp_flops(levels, cycles_of(self.timed), counting, flexible=self.flexible)["total"]
            double = hpg_mxp_flops(levels, cycles_of(self.double), counting)["total"]
            raw = flops / self.timed.time_s
            suffix = "" if counting == "reference" else "_ornl"
            rates[f"rate_flops_{counting}"] = raw * penalty
            rates[f"raw_rate_flops{suffix}"] = raw
            rates[f"double_rate_flops{suffix}"] = double / self.double.time_s
        rates["rate_flops"] = rates["rate_flops_reference"]
        double = rates["double_rate_flops"]
        rates["speedup"] = rates["rate_flops"] / double if double else None
        return rates

    def speedup_by_motif(self) -> dict[str, float]:
        """Return the ratio of double to mixed solve time for each motif, times the penalty (paper, fig. 5)."""
        penalty, speedups = self.validation.penalty, {}
        for motif in HPG_MXP_MOTIFS:
            mixed, double = (solves.motif(motif)["time_s"] / solves.count for solves in (self.timed, self.double))
            speedups[motif] = penalty * double / mixed if mixed else 0.0
        mean = [solves.time_s / solves.count for solves in (self.double, self.timed)]
        return {**speedups, "total": penalty * mean[0] / mean[1]}


def hpg_mxp_result(
    bench: SparseBench[HpgMxpConfig],
    problem: HpgMxpProblem,
    measured: Sequence[HpgMxpMeasured],
    between: Mapping[str, Solves],
    rss: int,
) -> dict[str, Any]:
    """Build the sections of the HPG-MxP result.

    `beside` contains the rates with other storage formats, and `between` the rates with intermediate precisions.
    """
    config, (official, *others) = bench.config, measured
    check, rates, mixed = official.validation, official.rates(problem.levels), official.timed
    held = {"mixed": official.held_bytes, "double": official.double_bytes}
    broken = foreseen(config, bench.rt, official.storage)
    broken += [*few_ranks(check.ranks, bench.comm.size), *memory_violations(official.held_bytes, bench.facts.machine)]
    return {
        "benchmark": "hpg-mxp",
        "status": "valid" if official.passed else "invalid",
        "problem": {**problem_section(bench, problem, official, held, official.basis), "peak_rss_bytes": rss},
        "result": {
            **rates,
            "time_s": mixed.time_s,
            "double_time_s": official.double.time_s,
            "solves": mixed.count,
            "double_solves": official.double.count,
            "iterations": sum(cycles_of(mixed)),
            **official.limit_section(),
            "emulated": False,
            "flops": hpg_mxp_flops(problem.levels, cycles_of(mixed), flexible=official.flexible),
            "double_flops": hpg_mxp_flops(problem.levels, cycles_of(official.double)),
            "double_phases": official.double.phases,
            "speedup_by_motif": official.speedup_by_motif(),
            "between": _between(between, rates, check.penalty, problem.levels),
            "beside": [_other_storage(config, other, problem.levels) for other in others],
        },
        "validation": {
            **_validation(check, passed=official.passed),
            "fullscale": official.fullscale and _validation(official.fullscale, passed=official.fullscale.passed),
        },
        "rules": ruling(broken),
        "samples_s": mixed.samples_s,
        "phases": official.table(*HPG_MXP_MOTIFS, *mixed.phases),
        "telemetry": official.telemetry(),
        "warnings": [
            *bench.facts.cautions,
            *bench.cautions,
            *raised(config, official.levels),
            *wider(config, official.basis),
            *_unreached(config, check),
            *_failed(others),
            *official.limit.cautions(),
            *_wrong(check),
        ],
    }


def problem_section(
    bench: SparseBench[HpgMxpConfig],
    problem: HpgMxpProblem,
    measured: MeasuredStorage[Solve],
    held: Mapping[str, int],
    basis: str,
) -> dict[str, Any]:
    """Return the sizes, formats and memory of the problem.

    held    the bytes of each solver that ran
    basis   the format of the stored Krylov basis, which is in the section if it is not that of the vectors; so is the
            format of the multigrid vectors
    """
    config = bench.config
    values, cycles = [level["value_precision"] for level in measured.levels], measured.levels[0]["vector_precision"]
    vectors = PRECISIONS[cycles].accumulate
    stored = {} if basis == vectors else {"basis": basis}
    stored |= {} if cycles == vectors else {"mg_vectors": cycles}
    return {
        **problem.section(),
        "restart": config.restart,
        "max_iterations": config.iterations,
        **bench.storage_section(measured),
        "run_type": config.run_type,
        "memory_bytes": {
            "mixed": held.get("mixed"),
            "double": held.get("double"),
            "setup": measured.setup_bytes,
            "reference_formula": problem.reference_bytes(),
        },
        "rt_s": bench.rt,
        "larger_mesh": None if len(held) < 2 else problem.larger_mesh(held["mixed"] / held["double"]),
        "precision": {"mg": values, "krylov": values[0], "vectors": vectors, **stored},
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
        "ratio": check.ratio,
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
    """Return the rate of each form between double and mixed, and the speed-up of the mixed solver over that form.

    fp32 stores the same numbers as the mixed solver. Therefore, fp32 solves need the same number of steps and have the
    same penalty.
    """
    figures = {}
    for name, solves in between.items():
        raw = hpg_mxp_flops(levels, cycles_of(solves))["total"] / solves.time_s
        rate = raw if name == "compressed double" else raw * penalty
        figures[name] = {
            "rate_flops": rate,
            "speedup": rates["rate_flops"] / rate if rate else None,
            "over_double": rate / rates["double_rate_flops"] if rates["double_rate_flops"] else None,
            "time_s": solves.time_s,
            "solves": solves.count,
        }
    return figures


def _other_storage(config: HpgMxpConfig, other: HpgMxpMeasured, levels: Levels) -> dict[str, Any]:
    """Return the rates, the iterations and the phases of an additional storage format."""
    check = other.validation
    return {
        "label": "explore" if foreseen(config, OFFICIAL_S, other.storage) else "official",
        "storage": other.storage,
        "precision": other.levels[0]["value_precision"],
        **other.rates(levels),
        "penalty": check.penalty,
        "double_iterations": check.double.solve.steps,
        "mixed_iterations": check.mixed.solve.steps,
        "time_s": other.timed.time_s,
        "solves": other.timed.count,
        "speedup_by_motif": other.speedup_by_motif(),
        "phases": other.timed.phases,
        "double_phases": other.double.phases,
        "limit": other.limit.section(),
    }


def raised(config: HpgMxpConfig, levels: Sequence[Mapping[str, Any]]) -> list[Caution]:
    """Return a warning for each level with other formats than requested, which cannot represent its values."""
    requested = config.mg_precisions(len(levels))
    wide = [k for k, level in enumerate(levels) if config.mg_vectors not in (None, level["vector_precision"])]
    text = "level {}: the values need fp64 vectors, so --mg-vectors has no effect"
    hint = "scale the matrix so that fp32 represents its values"
    return [Caution("raised", text.format(k), hint) for k in wide] + [
        Caution(
            "raised",
            f"level {k}: {name} cannot represent every value, so {level['value_precision']} was used",
            "use --mode explore --value-tolerance X to allow rounded values",
        )
        for k, (name, level) in enumerate(zip(requested, levels))
        if name not in ("auto", level["value_precision"])
    ]


def wider(config: HpgMxpConfig, basis: str) -> list[Caution]:
    """Return a warning if the values of the matrix need fp64 vectors, although a basis in 16 bits was requested."""
    if config.basis_precision in (None, basis):
        return []
    text = f"the values of the finest level need fp64 vectors, so the Krylov basis is in {basis}"
    return [Caution("raised", text, "scale the matrix so that fp32 represents its values")]


def _wrong(check: Validation) -> list[Caution]:
    """Return a warning if the residual is small but the solution is inaccurate."""
    if not check.passed or check.mixed.max_error <= WRONG:
        return []
    text = f"the residual is as small as required, but max |x - 1| is {three_digits(check.mixed.max_error)}"
    return [Caution("error", f"{text}: the matrix is badly conditioned or scaled", "scale its rows and columns")]


def _failed(others: Sequence[HpgMxpMeasured]) -> list[Caution]:
    """Return a warning for each additional storage format whose validation failed."""
    text = "{}: the solvers did not reach the required residual, so the rate is not valid"
    return [Caution("beside", text.format(each.storage), "see result.beside") for each in others if not each.passed]


def _unreached(config: HpgMxpConfig, check: Validation) -> list[Caution]:
    """Return a warning with advice if a solver did not reach the required residual for a matrix from a file."""
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
