"""What HPCG's phases become: the rating and what it is made of, the tests, and what stands beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mxpeak.bench.harness import NO_PHASE, with_share
from mxpeak.bench.hpcg.check import EXPECTED, EXPECTED_PRECONDITIONED, Norms, Spectral, Symmetry
from mxpeak.bench.hpcg.config import HpcgConfig
from mxpeak.bench.hpcg.rules import foreseen
from mxpeak.bench.limits import Limit
from mxpeak.bench.rules import ruling
from mxpeak.bench.sparse import PLAIN, SparseBench, of_memory, smoother_of, with_own_rates
from mxpeak.errors import Outcome
from mxpeak.layout.stencil import Box
from mxpeak.perf.sparse_counts import HPCG_MOTIFS, hpcg_bytes, hpcg_flops, memory_bytes, stencil_levels
from mxpeak.records import Caution, Result
from mxpeak.solvers.cg import Solve

FORMULA = "|| r ||_2 / || b ||_2, r by CG's recurrence"

#: Iterations of the reference, the most to reach its residual, and by how much that may be missed.
REFERENCE_STEPS, MOST, SLACK = 50, 500, 1.0 + 1e-6
#: Sets that pay for set-up and optimisation, each a tenth of it.
SHARED_BY = 10
#: What multigrid is made of: all of it is in `mg`.
MG_PARTS = ("gs", "restriction", "prolongation")


@dataclass(frozen=True, slots=True)
class Sets:
    """The timed sets: seconds of each, iterations of all, how many each was to take, residuals, phases, times."""

    samples_s: list[float]
    iterations: int
    steps: int
    norms: Norms
    phases: dict[str, Any] = field(default_factory=dict)
    by_step: dict[str, Any] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.samples_s)

    @property
    def time_s(self) -> float:
        """Of all of them."""
        return sum(self.samples_s)

    def motif(self, name: str) -> dict[str, Any]:
        """The phase of a motif; of multigrid with the flops and bytes of its parts."""
        phase: dict[str, Any] = self.phases.get(name, NO_PHASE)
        if name != "mg":
            return phase
        parts = [self.phases.get(part, NO_PHASE) for part in MG_PARTS]
        return {**phase, **{key: sum(part[key] for part in parts) for key in ("flops", "bytes")}}


def rating(box: Box, sets: Sets, before_s: float = 0.0) -> float:
    """Credited flops over the time of the sets and their share of what was done before them."""
    credited = hpcg_flops(stencil_levels(box), sets.iterations, sets.count)["total"] * REFERENCE_STEPS / sets.steps
    return credited / (sets.time_s + sets.count * before_s / SHARED_BY)


@dataclass(frozen=True, slots=True)
class Measured:
    """All that was found with one storage; bytes over all ranks, set-up and optimisation of the slowest rank."""

    storage: str
    levels: list[dict[str, Any]]
    aim: float
    converged: Solve
    spectral: Spectral
    symmetry: Symmetry
    sets: Sets
    max_error: float
    readings: Limit
    setup_s: float
    optimize_s: float
    held_bytes: int
    setup_bytes: int
    trace: list[dict[str, Any]] | None

    @property
    def passed(self) -> bool:
        """Whether the aim was reached, and every test passed."""
        tests = (self.spectral.passed, self.symmetry.passed, self.sets.norms.passed)
        return self.converged.outcome == Outcome.SOLVED and all(tests)

    def rates(self, box: Box) -> dict[str, Any]:
        """The rating, and the others: raw, with the iterations beyond the reference's taken off, without set-up."""
        sets = self.sets
        raw = hpcg_flops(stencil_levels(box), sets.iterations, sets.count)
        return {
            "rate_flops": rating(box, sets, self.optimize_s + self.setup_s),
            "raw_rate_flops": raw["total"] / sets.time_s,
            "raw": raw,
            "rate_flops_2_4": rating(box, sets, self.optimize_s),
            "rate_flops_with_convergence": rating(box, sets),
            "time_s": sets.time_s,
            "sets": sets.count,
            "reference_iterations_per_set": REFERENCE_STEPS,
            "optimized_iterations_per_set": sets.steps,
            "total_reference_iterations": REFERENCE_STEPS * sets.count,
            "total_optimized_iterations": sets.iterations,
            **self._against_the_limit(),
        }

    @property
    def least_rate(self) -> float:
        """Bytes that all motifs have to move at least, a second."""
        return float(sum(self.sets.motif(name)["bytes"] for name in HPCG_MOTIFS)) / self.sets.time_s

    @property
    def limit(self) -> Limit:
        """The rate of reading, or that of the sets if it is higher."""
        return with_own_rates(self.readings, "sets", self.least_rate, self.sets.phases)

    def _against_the_limit(self) -> dict[str, Any]:
        """Return the bytes that all motifs have to move at least, per second, over the rate of reading alone."""
        return {"fraction_of_limit": self.limit.share(self.least_rate), "limit": self.limit.section()}

    def table(self, *names: str) -> dict[str, Any]:
        """Phases, each with its share of the limit."""
        return {name: with_share(self.sets.motif(name), self.limit.rate) for name in names}


def hpcg_result(
    bench: SparseBench[HpcgConfig],
    box: Box,
    reference: Solve,
    found: list[Measured],
    rss: int,
    start: float,
    end: float,
) -> Result:
    """The result of the first of `found`, with the others' figures."""
    config, (one, *beside) = bench.config, found
    machine = bench.facts.machine
    broken = [*foreseen(config, one.sets.time_s, one.storage), *of_memory(one.held_bytes, machine)]
    others = [_beside(other, box) for other in beside]
    waits = one.sets.phases.get("allreduce", NO_PHASE)
    return Result(
        benchmark="hpcg",
        status="valid" if one.passed else "invalid",
        **bench.facts.sections(start, end),
        problem={**_problem(bench, box, one), "peak_rss_bytes": rss},
        result={
            **one.rates(box),
            "emulated": False,
            "bytes": hpcg_bytes(stencil_levels(box), one.sets.iterations, one.sets.count),
            "dot_allreduce_s": {"min": waits["min_s"], "max": waits["max_s"], "mean": waits["time_s"]},
            "mg_phases": one.table(*MG_PARTS),
            "beside": others,
        },
        validation=_validation(one, reference),
        rules={"mode": config.mode, **ruling(broken)},
        samples_s=one.sets.samples_s,
        telemetry={"steps": one.sets.by_step, **({} if one.trace is None else {"trace": one.trace})},
        phases=one.table(*HPCG_MOTIFS, "halo", *(("abft",) if config.abft else ())),
        warnings=[*bench.facts.cautions, *bench.cautions, *_failed(beside), *one.limit.cautions()],
    )


def _problem(bench: SparseBench[HpcgConfig], box: Box, one: Measured) -> dict[str, Any]:
    config = bench.config
    return {
        "nx": box.nx,
        "ny": box.ny,
        "nz": box.nz,
        "npx": box.npx,
        "npy": box.npy,
        "npz": box.npz,
        "gnx": box.gnx,
        "gny": box.gny,
        "gnz": box.gnz,
        "rows": box.global_rows,
        "nnz": box.global_nnz,
        "levels": one.levels,
        "storage": one.storage,
        "smoother": smoother_of(config, one.storage),
        "colouring": config.colouring,
        "ranks": bench.comm.size,
        "threads": bench.placement.threads,
        "setup_s": one.setup_s,
        "optimize_s": one.optimize_s,
        "rt_s": bench.rt,
        "precision": "fp64",
        "memory_bytes": {
            "double": one.held_bytes,
            "setup": one.setup_bytes,
            "reference_formula": sum(memory_bytes(box)),
        },
    }


def _validation(one: Measured, reference: Solve) -> dict[str, Any]:
    """The residual of the solve that was to reach the aim, and HPCG's tests."""
    spectral, symmetry, norms = one.spectral, one.symmetry, one.sets.norms
    return {
        "passed": one.passed,
        "residual": one.converged.residual,
        "threshold": one.aim,
        "formula": FORMULA,
        "iterations": one.converged.steps,
        "reference_residual": reference.residual,
        "outcome": str(one.converged.outcome),
        "cg": {
            "passed": spectral.passed,
            "unpreconditioned": {"iterations": spectral.unpreconditioned, "expected": EXPECTED},
            "preconditioned": {"iterations": spectral.preconditioned, "expected": EXPECTED_PRECONDITIONED},
        },
        "symmetry": {"passed": symmetry.passed, "spmv": symmetry.spmv, "mg": symmetry.mg},
        "norms": {"passed": norms.passed, "mean": norms.mean, "variance": norms.variance, "samples": norms.samples},
        "max_error": one.max_error,
        "history": {"reference": reference.history, "optimized": one.converged.history},
    }


def _beside(other: Measured, box: Box) -> dict[str, Any]:
    """A second figure, with another storage."""
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


def _failed(beside: list[Measured]) -> list[Caution]:
    """Which of the other figures are none, because their tests failed."""
    return [
        Caution(
            "beside",
            f"with {other.storage} storage the tests failed, so its rate is not valid",
            f"use --storage {other.storage} --mode explore to see which",
        )
        for other in beside
        if not other.passed
    ]
