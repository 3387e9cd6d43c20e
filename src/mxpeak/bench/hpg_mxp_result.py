"""What HPG-MxP's phases become: the figure, the same in both countings, by motif, and what stands beside it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mxpeak.bench.hpg_mxp_rules import foreseen, of_memory
from mxpeak.bench.sparse_bench import SparseBench
from mxpeak.configs import HpgMxpConfig
from mxpeak.errors import Outcome
from mxpeak.layout.stencil import Box
from mxpeak.perf.sparse_counts import HPG_MXP_MOTIFS, hpg_mxp_flops, memory_bytes, stencil_levels
from mxpeak.records import Caution, Result
from mxpeak.solvers.gmres_ir import Solve

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
        """Whether the mixed solver came as far as it had to, and with `standard` the double one, too."""
        double = self.type == "fullscale" or self.double.solve.outcome == Outcome.SOLVED
        return double and self.mixed.solve.outcome == Outcome.SOLVED

    @property
    def penalty(self) -> float:
        """min(1, n_d / n_ir)."""
        return min(1.0, self.double.solve.steps / max(self.mixed.solve.steps, 1))


@dataclass(frozen=True, slots=True)
class Solves:
    """Timed solves: seconds of each, the restart cycles of one, the phases of all."""

    samples_s: list[float]
    cycles: list[int]
    phases: dict[str, Any]
    residual: float

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
    limit: float | None
    setup_s: float
    optimize_s: float
    held_bytes: list[int]
    setup_bytes: int
    trace: list[dict[str, Any]]

    def rates(self, box: Box) -> dict[str, Any]:
        """The figure and what it is made of, in both countings."""
        levels, penalty = stencil_levels(box), self.validation.penalty
        found: dict[str, Any] = {}
        for counting in ("reference", "ornl"):
            flops = hpg_mxp_flops(levels, self.mixed.cycles, counting)["total"]
            double = hpg_mxp_flops(levels, self.double.cycles, counting)["total"]
            raw = flops * len(self.mixed.samples_s) / self.mixed.time_s
            suffix = "" if counting == "reference" else "_ornl"
            found[f"rate_flops_{counting}"] = raw * penalty
            found[f"raw_rate_flops{suffix}"] = raw
            found[f"double_rate_flops{suffix}"] = double * len(self.double.samples_s) / self.double.time_s
        found["rate_flops"] = found["rate_flops_reference"]
        found["speedup"] = found["rate_flops"] / found["double_rate_flops"]
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
    config: HpgMxpConfig, bench: SparseBench, box: Box, found: list[Measured], rss: int, start: float, end: float
) -> Result:
    """The result of the first of `found`, the others beside it."""
    one, *beside = found
    check, rates = one.validation, one.rates(box)
    broken = foreseen(config, bench.rt, one.storage)
    broken += of_memory(one.held_bytes[1], bench.facts.machine)
    passed = check.passed and all(other.validation.passed for other in beside)
    limit, motion = one.limit, one.mixed.least_bytes / one.mixed.time_s
    phases = {**{motif: EMPTY for motif in HPG_MXP_MOTIFS}, **one.mixed.phases}
    return Result(
        benchmark="hpg-mxp",
        status="valid" if passed else "invalid",
        run=bench.facts.run_section(start, end),
        problem={**_problem(config, bench, box, one), "peak_rss_bytes": rss},
        result={
            **rates,
            "time_s": one.mixed.time_s,
            "double_time_s": one.double.time_s,
            "solves": len(one.mixed.samples_s),
            "double_solves": len(one.double.samples_s),
            "iterations": sum(one.mixed.cycles) * len(one.mixed.samples_s),
            "fraction_of_limit": motion / limit if limit else None,
            "limit": {"name": "read bandwidth", "rate_bytes": limit} if limit else None,
            "emulated": False,
            "flops": hpg_mxp_flops(stencil_levels(box), one.mixed.cycles),
            "double_flops": hpg_mxp_flops(stencil_levels(box), one.double.cycles),
            "double_phases": one.double.phases,
            "speedup_by_motif": one.speedup_by_motif(),
            "beside": [_beside(other, box) for other in beside],
        },
        validation=_validation(config, check, passed=passed),
        rules={"admissible": not broken, "violations": [asdict(violation) for violation in broken]},
        samples_s=one.mixed.samples_s,
        phases={name: _with_share(phase, limit) for name, phase in phases.items()},
        config=bench.facts.config,
        machine=bench.facts.machine,
        software=bench.facts.software,
        launch=bench.facts.launch,
        telemetry={"trace": one.trace} if one.trace else {},
        warnings=[*bench.facts.cautions, *bench.cautions, *_raised(config, one)],
    )


#: A motif that did not occur.
EMPTY = {"time_s": 0.0, "max_s": 0.0, "min_s": 0.0, "flops": 0.0, "bytes": 0.0, "calls": 0}


def _with_share(phase: dict[str, Any], limit: float | None) -> dict[str, Any]:
    if not limit or not phase["time_s"] or not phase["bytes"]:
        return phase
    return {**phase, "share_of_limit": phase["bytes"] / phase["time_s"] / limit}


def _problem(config: HpgMxpConfig, bench: SparseBench, box: Box, one: Measured) -> dict[str, Any]:
    values = [level["value_precision"] for level in one.levels]
    mixed, double = one.held_bytes[1], one.held_bytes[0]
    return {
        "nx": box.nx, "ny": box.ny, "nz": box.nz, "npx": box.npx, "npy": box.npy, "npz": box.npz,
        "gnx": box.gnx, "gny": box.gny, "gnz": box.gnz, "rows": box.global_rows, "nnz": box.global_nnz,
        "nonsymmetric": config.nonsymmetric, "matrix": config.matrix, "restart": config.restart,
        "max_iterations": config.iterations, "levels": one.levels, "storage": one.storage,
        "smoother": config.smoother, "colouring": config.colouring, "ranks": bench.comm.size,
        "threads": bench.placement.threads, "setup_s": one.setup_s, "optimize_s": one.optimize_s,
        "memory_bytes": {
            "mixed": mixed, "double": double, "setup": one.setup_bytes,
            "reference_formula": sum(memory_bytes(box, config.restart)),
        },
        "rt_s": bench.rt,
        "larger_mesh": int(box.nx * (mixed / double) ** (1 / 3)) // 8 * 8,
        "precision": {"mg": values, "krylov": values[0], "vectors": one.levels[0]["vector_precision"]},
    }  # fmt: skip


def _validation(config: HpgMxpConfig, check: Validation, *, passed: bool) -> dict[str, Any]:
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


def _beside(other: Measured, box: Box) -> dict[str, Any]:
    """A second figure, with another storage."""
    check = other.validation
    plain = other.storage != "packed"
    return {
        "label": "official" if plain else "explore",
        "storage": other.storage,
        "precision": other.levels[0]["value_precision"],
        **other.rates(box),
        "penalty": check.penalty,
        "double_iterations": check.double.solve.steps,
        "mixed_iterations": check.mixed.solve.steps,
        "time_s": other.mixed.time_s,
        "solves": len(other.mixed.samples_s),
        "speedup_by_motif": other.speedup_by_motif(),
        "phases": other.mixed.phases,
        "double_phases": other.double.phases,
        "limit": {"name": "read bandwidth", "rate_bytes": other.limit} if other.limit else None,
    }


def _raised(config: HpgMxpConfig, one: Measured) -> list[Caution]:
    """Where a format was asked for that does not hold the values."""
    asked = config.mg_precisions(len(one.levels))
    return [
        Caution("raised", f"level {k}: {name} does not hold every value, so {level['value_precision']} was taken",
                "with --mode explore and --value-tolerance X values may be rounded")
        for k, (name, level) in enumerate(zip(asked, one.levels))
        if name not in ("auto", level["value_precision"])
    ]  # fmt: skip
