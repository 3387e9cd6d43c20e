"""Build the result of HPCG: the rating and its parts, the tests, and the rates of other storage formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mxpeak.bench.harness import NO_PHASE
from mxpeak.bench.hpcg.check import EXPECTED, EXPECTED_PRECONDITIONED, SetResiduals, Spectral, Symmetry
from mxpeak.bench.hpcg.config import HpcgConfig
from mxpeak.bench.hpcg.rules import foreseen
from mxpeak.bench.rules import ruling
from mxpeak.bench.sparse import PLAIN, SparseBench, memory_violations
from mxpeak.bench.sparse_result import MG_PARTS, MeasuredStorage, TimedSolves, mesh_section
from mxpeak.errors import Outcome
from mxpeak.layout.stencil import Box
from mxpeak.perf.sparse_counts import HPCG_MOTIFS, hpcg_bytes, hpcg_flops, memory_bytes, stencil_levels
from mxpeak.records import Caution
from mxpeak.solvers.cg import CgSolve

FORMULA = "|| r ||_2 / || b ||_2, r by CG's recurrence"

#: Iterations of the reference, the maximum to reach its residual, and the relative tolerance of that residual.
REFERENCE_STEPS, MAX_STEPS, SLACK = 50, 500, 1.0 + 1e-6
#: Each set bears a tenth of the set-up and optimization time.
SHARED_BY = 10

Sets = TimedSolves[CgSolve]


def iterations_of(sets: Sets) -> int:
    """Return the number of iterations of all sets."""
    return sum(solve.steps for solve in sets.solves)


def rating(box: Box, sets: Sets, steps: int, before_s: float = 0.0) -> float:
    """Return the credited flop/s of the sets, with 50 of the `steps` iterations per set credited.

    A tenth of `before_s` is added to the time of each set.
    """
    credited = hpcg_flops(stencil_levels(box), iterations_of(sets), sets.count)["total"] * REFERENCE_STEPS / steps
    return credited / (sets.time_s + sets.count * before_s / SHARED_BY)


@dataclass(frozen=True, slots=True, kw_only=True)
class HpcgMeasured(MeasuredStorage[CgSolve]):
    """The measurements and test results of HPCG with one storage format."""

    motifs: ClassVar[Sequence[str]] = HPCG_MOTIFS
    solves_name: ClassVar[str] = "sets"

    aim: float
    converged: CgSolve
    steps: int
    spectral: Spectral
    symmetry: Symmetry
    norms: SetResiduals
    max_error: float

    @property
    def passed(self) -> bool:
        """Return whether CG reached the residual of the reference, and all tests passed."""
        tests = (self.spectral.passed, self.symmetry.passed, self.norms.passed)
        return self.converged.outcome == Outcome.SOLVED and all(tests)

    def rates(self, box: Box) -> dict[str, Any]:
        """Return the rating and the rates with less set-up time in flop/s, the iteration counts and the limit."""
        sets, iterations = self.timed, iterations_of(self.timed)
        raw = hpcg_flops(stencil_levels(box), iterations, sets.count)
        return {
            "rate_flops": rating(box, sets, self.steps, self.optimize_s + self.setup_s),
            "raw_rate_flops": raw["total"] / sets.time_s,
            "raw": raw,
            "rate_flops_2_4": rating(box, sets, self.steps, self.optimize_s),
            "rate_flops_with_convergence": rating(box, sets, self.steps),
            "time_s": sets.time_s,
            "sets": sets.count,
            "reference_iterations_per_set": REFERENCE_STEPS,
            "optimized_iterations_per_set": self.steps,
            "total_reference_iterations": REFERENCE_STEPS * sets.count,
            "total_optimized_iterations": iterations,
            **self.limit_section(),
        }


def hpcg_result(
    bench: SparseBench[HpcgConfig], box: Box, reference: CgSolve, measured: Sequence[HpcgMeasured], rss: int
) -> dict[str, Any]:
    """Build the sections of the HPCG result.

    The first element of `measured` is official. The rates of the other storage formats are listed for comparison.
    """
    config, (official, *others) = bench.config, measured
    sets = official.timed
    broken = foreseen(config, sets.time_s, official.storage)
    broken += memory_violations(official.held_bytes, bench.facts.machine)
    waits = sets.phases.get("allreduce", NO_PHASE)
    return {
        "benchmark": "hpcg",
        "status": "valid" if official.passed else "invalid",
        "problem": {
            **mesh_section(box),
            **bench.storage_section(official),
            "rt_s": bench.rt,
            "precision": "fp64",
            "memory_bytes": {
                "double": official.held_bytes,
                "setup": official.setup_bytes,
                "reference_formula": sum(memory_bytes(box)),
            },
            "peak_rss_bytes": rss,
        },
        "result": {
            **official.rates(box),
            "emulated": False,
            "bytes": hpcg_bytes(stencil_levels(box), iterations_of(sets), sets.count),
            "dot_allreduce_s": {"min": waits["min_s"], "max": waits["max_s"], "mean": waits["time_s"]},
            "mg_phases": official.table(*MG_PARTS),
            "beside": [_other_storage(other, box) for other in others],
        },
        "validation": _validation(official, reference),
        "rules": {"mode": config.mode, **ruling(broken)},
        "samples_s": sets.samples_s,
        "telemetry": official.telemetry(),
        "phases": official.table(*HPCG_MOTIFS, "halo", *(("abft",) if config.abft else ())),
        "warnings": [*bench.facts.cautions, *bench.cautions, *_failed(others), *official.limit.cautions()],
    }


def _validation(measured: HpcgMeasured, reference: CgSolve) -> dict[str, Any]:
    """Return the validation section: the residual of the convergence solve, and the outcomes of HPCG's tests."""
    spectral, symmetry, norms = measured.spectral, measured.symmetry, measured.norms
    return {
        "passed": measured.passed,
        "residual": measured.converged.residual,
        "threshold": measured.aim,
        "formula": FORMULA,
        "iterations": measured.converged.steps,
        "reference_residual": reference.residual,
        "outcome": str(measured.converged.outcome),
        "cg": {
            "passed": spectral.passed,
            "unpreconditioned": {"iterations": spectral.unpreconditioned, "expected": EXPECTED},
            "preconditioned": {"iterations": spectral.preconditioned, "expected": EXPECTED_PRECONDITIONED},
        },
        "symmetry": {"passed": symmetry.passed, "spmv": symmetry.spmv, "mg": symmetry.mg},
        "norms": {"passed": norms.passed, "mean": norms.mean, "variance": norms.variance, "samples": norms.samples},
        "max_error": measured.max_error,
        "history": {"reference": reference.history, "optimized": measured.converged.history},
    }


def _other_storage(other: HpcgMeasured, box: Box) -> dict[str, Any]:
    """Return the rates, the iterations and the phases of an additional storage format."""
    return {
        "label": "official" if other.storage in PLAIN else "explore",
        "storage": other.storage,
        "precision": "fp64",
        **other.rates(box),
        "passed": other.passed,
        "iterations": other.converged.steps,
        "setup_s": other.setup_s,
        "optimize_s": other.optimize_s,
        "phases": other.table(*HPCG_MOTIFS, "halo"),
    }


def _failed(others: Sequence[HpcgMeasured]) -> list[Caution]:
    """Return a warning for each additional storage format whose tests failed."""
    return [
        Caution(
            "beside",
            f"with {other.storage} storage the tests failed, so its rate is not valid",
            f"use --storage {other.storage} --mode explore to see which",
        )
        for other in others
        if not other.passed
    ]
