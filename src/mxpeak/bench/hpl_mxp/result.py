"""Build the result of a case of HPL-MxP, with its rules, LU proof, residual history and cautions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from mxpeak.bench.harness import depth_caution, grid_text, sortable_residual
from mxpeak.bench.hpl_mxp.config import BUTTERFLY, NONE, PARTIAL, HplMxpCase
from mxpeak.bench.hpl_mxp.rules import diagonal_scale, predicted_steps, remarks, violations
from mxpeak.bench.lu import CaseSolves, LuBench
from mxpeak.bench.rules import ruling
from mxpeak.errors import Outcome
from mxpeak.layout.lu_schedule import looks_ahead
from mxpeak.perf.counts import hpl_flops, lu_flops
from mxpeak.records import Caution, Result
from mxpeak.solvers.abft.lu_faults import FaultSummary
from mxpeak.solvers.growth_monitor import GrowthReport
from mxpeak.solvers.lu.proof import Proof
from mxpeak.spans import Spans

FORMULA = "||Ax-b||_oo / ( ( ||A||_oo * ||x||_oo + ||b||_oo ) * N * 2^-53 )"

#: Settings of a case that its result records.
RECORDED = (
    *("n", "nb", "P", "Q", "order", "seed", "node_grid"),
    *("generator", "bcast", "depth", "precision", "refine", "scaling", "pivoting"),
)


@dataclass(frozen=True, slots=True)
class Check:
    """The scaled backward error and its norms, computed after the timed part."""

    scaled: float
    residual: float
    A_inf: float
    x_inf: float
    b_inf: float


@dataclass(frozen=True, slots=True)
class MxpSolve:
    """One timed solve with its backward error, the proof of its LU, and the difficulty of the system."""

    time_s: float
    lu_time_s: float
    refine_time_s: float
    start_unix: float
    end_unix: float
    generate_s: float
    check: Check
    proof: Proof
    iterations: int
    history: list[float]
    singular: int
    growth: float
    condition: float
    unpreconditioned_factor: float | None
    #: GMRES steps without the factors, at most fifty. None if GMRES needs more steps or if the circular law predicts
    #: the number.
    unpreconditioned_steps: int | None
    spans: Spans
    growth_report: GrowthReport
    panel_solves: dict[str, Any] | None = None  # the solves of all ranks, on rank 0
    bits: str = ""
    checked: FaultSummary | None = None

    def passed(self, threshold: float) -> bool:
        """Return whether the scaled backward error is below the threshold and the LU proof passed."""
        return self.check.scaled < threshold and self.proof.passed


def hpl_mxp_result(bench: LuBench, case: HplMxpCase, runs: CaseSolves[MxpSolve]) -> Result:
    """Build the result of a case, with the time of its fastest solve and the check of its worst solve."""
    best, emulated = runs.best, bench.kernels.emulates(case.precision)
    lookahead = int(looks_ahead(case.depth, case.P * case.Q, background=bench.kernels.background))

    def order(solve: MxpSolve) -> tuple[bool, float]:
        return not solve.passed(case.threshold), sortable_residual(solve.check.scaled)

    worst = max(runs.solves, key=order)
    passed = worst.passed(case.threshold)
    rate = hpl_flops(case.n) / best.time_s
    limit, fp64 = runs.measured.limit(_limit_name(case, emulated), rate), runs.fp64
    broken = violations(
        case, iterations=worst.iterations, residual=worst.check.scaled, passed=worst.check.scaled < case.threshold,
        proof_passed=worst.proof.passed, growth=worst.growth, unpreconditioned_steps=worst.unpreconditioned_steps,
    )  # fmt: skip
    return Result(
        benchmark="hpl-mxp",
        status="valid" if passed else "invalid",
        **bench.facts.sections(best.start_unix, best.end_unix, grid_text(case)),
        problem={
            **{name: getattr(case, name) for name in RECORDED},
            "diagonal_scale": diagonal_scale(case) if case.generator in ("sqrt-n", "gaussian", "ddd") else None,
            "butterfly_depth": case.butterfly_depth if case.pivoting == BUTTERFLY else None,
            "lookahead": lookahead,
            "not_used": ["bcast"] if case.P * case.Q == 1 else [],
            "variant": f"{case.tag} {case.generator} {case.precision}",
            "memory_bytes": {key: runs.memory[key] for key in ("matrix", "buffers", "total")},
            "process_peak_rss_bytes": runs.peak_rss,
            "flops": hpl_flops(case.n),
            "generate_time_s": best.generate_s,
            "unpreconditioned_factor": worst.unpreconditioned_factor,
            "unpreconditioned_steps": worst.unpreconditioned_steps,
            "predicted_unpreconditioned_steps": predicted_steps(case),
            "growth": worst.growth,
            "condition": worst.condition,
        },
        result={
            "rate_flops": rate,
            "time_s": best.time_s,
            "lu_rate_flops": lu_flops(case.n) / best.lu_time_s,
            "lu_time_s": best.lu_time_s,
            "refine_time_s": best.refine_time_s,
            "panel_solves": best.panel_solves,
            "pivoting_time_s": pivoting_time_s(case, runs.phases),
            "fraction_of_limit": limit.share(rate),
            "limit": limit.section() if fp64 is None else fp64.limit(limit.section()),
            "emulated": emulated,
            **({} if fp64 is None else fp64.section()),
        },
        validation={
            "passed": passed,
            "residual": worst.check.scaled,
            "threshold": case.threshold,
            "formula": FORMULA,
            "iterations": worst.iterations,
            "outcome": _outcome(worst, case),
            "history": worst.history,
            "lu_proof": asdict(worst.proof),
            "norms": {name: getattr(worst.check, name) for name in ("residual", "A_inf", "x_inf", "b_inf")},
            "residual_hex": worst.check.scaled.hex() if isfinite(worst.check.scaled) else None,
        },
        rules={"mode": case.mode, **ruling(broken), **remarks(case)},
        samples_s=[solve.time_s for solve in runs.solves],
        phases=runs.phases,
        warnings=[
            *bench.facts.cautions,
            *_cautions(case, worst, lookahead, emulated=emulated),
            *limit.cautions(),
            *([] if fp64 is None else fp64.cautions()),
        ],
    )


def pivoting_time_s(case: HplMxpCase, phases: Mapping[str, Any]) -> float:
    """Return the slowest rank's seconds for the butterflies of A, or for panels with pivots and row swaps."""
    names = {BUTTERFLY: ("butterfly",), PARTIAL: ("rfact", "laswp"), NONE: ()}[case.pivoting]
    return float(sum(phases[name]["max_s"] for name in names if name in phases))


def _limit_name(case: HplMxpCase, emulated: bool) -> str:
    name = {"fp64": "DGEMM", "fp32": "SGEMM"}.get(case.precision, case.precision.upper() + " GEMM")
    return f"{'SGEMM' if emulated else name}, inner dimension {case.nb}"


def _outcome(run: MxpSolve, case: HplMxpCase) -> str:
    if run.passed(case.threshold):
        return Outcome.SOLVED
    if run.singular:
        return Outcome.ZERO_PIVOT
    if run.check.scaled < case.threshold:
        return Outcome.UNPROVEN
    return Outcome.NOT_CONVERGED if isfinite(run.check.scaled) else Outcome.NOT_FINITE


def _cautions(case: HplMxpCase, run: MxpSolve, lookahead: int, *, emulated: bool) -> list[Caution]:
    cautions = []
    if emulated:
        low = case.precision
        text = f"{low} was rounded in software: the convergence is that of {low}, the rate is that of fp32"
        cautions.append(Caution("emulated", text, f"for a rate in {low}, use a device that supports it"))
    if case.depth > 1:
        cautions.append(depth_caution(case.depth, lookahead))
    if run.singular:
        text, hint = f"column {run.singular} had a zero pivot", "use --generator sqrt-n, ddd, gaussian or fasi-higham"
        if case.pivoting == BUTTERFLY:
            text, hint = f"{text} in the transformed matrix", "use another --seed, or --pivoting partial"
        elif case.pivoting != PARTIAL:
            text, hint = f"{text}: this matrix has no LU without pivoting", f"{hint}, or --pivoting partial"
        cautions.append(Caution("pivot", text, hint))
    return cautions
