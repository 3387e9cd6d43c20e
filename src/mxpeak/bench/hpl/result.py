"""Build the result of a case of HPL, with its phases, outcome and cautions."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

from mxpeak.bench.harness import depth_caution, grid_text, sortable_residual
from mxpeak.bench.hpl.config import THRESHOLD, UNUSED, HplCase
from mxpeak.bench.lu import CaseSolves, LuBench
from mxpeak.errors import Outcome
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.lu_schedule import split_columns
from mxpeak.perf.counts import hpl_flops
from mxpeak.records import Caution, Result
from mxpeak.solvers.abft.lu_faults import FaultSummary
from mxpeak.solvers.growth_monitor import GrowthReport
from mxpeak.solvers.residual import ResidualNorms
from mxpeak.spans import Spans

FORMULA = "||Ax-b||_oo / ( eps * ( || x ||_oo * || A ||_oo + || b ||_oo ) * N )"

#: Settings of a case that its result records.
RECORDED = (
    *("n", "nb", "P", "Q", "order", "seed", "node_grid"),
    *("split", "bcast", "pfact", "rfact", "nbmin", "ndiv", "depth", "lookahead"),
)
#: Norms that a result records.
NORMS = ("residual", "A_inf", "A_one", "x_inf", "x_one", "b_inf")


@dataclass(frozen=True, slots=True)
class HplSolve:
    """The time, the residual norms and the diagnostics of one timed solve."""

    time_s: float
    start_unix: float
    end_unix: float
    norms: ResidualNorms
    scaled: float
    singular: int
    spans: Spans
    growth_report: GrowthReport
    bits: str = ""
    checked: FaultSummary | None = None
    panel_solves: dict[str, Any] | None = None  # the solves of all ranks, on rank 0


def hpl_result(bench: LuBench, case: HplCase, runs: CaseSolves[HplSolve]) -> Result:
    """Build the result of a case, with the time of its fastest solve and the check of its worst solve."""
    best = runs.best
    worst = max(runs.solves, key=lambda solve: sortable_residual(solve.scaled))
    threshold = case.threshold if case.threshold > 0 else THRESHOLD
    passed = worst.scaled < threshold  # False for NaN
    rate = hpl_flops(case.n) / best.time_s if best.time_s > 0 else 0.0
    limit = runs.measured.limit(f"DGEMM, inner dimension {case.nb}", rate)
    assert runs.fp64 is not None
    return Result(
        benchmark="hpl",
        status="valid" if passed else "invalid",
        **bench.facts.sections(best.start_unix, best.end_unix, grid_text(case)),
        problem={
            **{name: getattr(case, name) for name in RECORDED},
            "variant": case.tag,
            "panel_library": bench.kernels.panel_library(case.P),
            "not_used": not_used(case, bench.kernels.panel_library(case.P)),
            "memory_bytes": runs.memory,
            "process_peak_rss_bytes": runs.peak_rss,
            "flops": hpl_flops(case.n),
        },
        result={
            "rate_flops": rate,
            "time_s": best.time_s,
            "fraction_of_limit": limit.share(rate),
            "limit": runs.fp64.limit(limit.section()),
            "emulated": False,
            **runs.fp64.section(),
            "panel_solves": best.panel_solves,
        },
        validation={
            "passed": passed,
            "residual": worst.scaled,
            "threshold": threshold,
            "formula": FORMULA,
            "iterations": None,
            "outcome": _outcome(worst, passed),
            "norms": {name: getattr(worst.norms, name) for name in NORMS},
            "residual_hex": worst.scaled.hex() if isfinite(worst.scaled) else None,
        },
        rules=runs.fp64.rules("explore" if bench.config.explores else "official"),
        samples_s=[solve.time_s for solve in runs.solves],
        phases=runs.phases,
        warnings=[*bench.facts.cautions, *_cautions(bench, case), *limit.cautions(), *runs.fp64.cautions()],
    )


def _outcome(run: HplSolve, passed: bool) -> str:
    """Return the outcome of a solve from its pivots and its check."""
    if passed:
        return Outcome.SOLVED
    if run.singular:
        return Outcome.SINGULAR
    return Outcome.INACCURATE if isfinite(run.scaled) else Outcome.NOT_FINITE


#: Settings that a library's own panel factorization does not use.
OF_PANELS = ("pfact", "rfact", "nbmin", "ndiv")


def not_used(case: HplCase, panel_library: str | None) -> list[str]:
    """Return the settings that had no effect on a run of this case."""
    names = [*UNUSED]
    if panel_library is not None:
        names += OF_PANELS
    if case.P == 1:  # rows move inside one rank
        names += ["swap", "swap_threshold"]
    if case.Q == 1:  # no other rank receives a panel
        names.append("bcast")
    if not (case.split > 0 and case.lookahead > 0 and case.P > 1 and _ever_splits(case)):
        names.append("split")
    return names


def _cautions(bench: LuBench, case: HplCase) -> list[Caution]:
    cautions = []
    if case.depth > 1:
        cautions.append(depth_caution(case.depth, 1))
    names = [name for name in OF_PANELS if bench.is_chosen(name)]
    if names and (library := bench.kernels.panel_library(case.P)):
        text = f"{', '.join(names)} had no effect: with P = 1 the device's library factors panels ({library})"
        cautions.append(Caution("panel", text, f"remove {', '.join(names)}, or use P > 1"))
    split = case.split if bench.is_chosen("split") else 0.0  # on a GPU, the default is 0.5
    if split > 0 and (case.depth == 0 or case.P == 1):
        reason = "there is one process row, whose rows move without messages" if case.P == 1 else "it needs look-ahead"
        cautions.append(Caution("split", f"--split {case.split:g} had no effect: {reason}", "use P > 1 and --depth 1"))
    elif split > 0 and not _ever_splits(case):
        text = f"--split {case.split:g} had no effect: N = {case.n} leaves no left section of NB = {case.nb} columns"
        cautions.append(Caution("split", text, "use a larger N, a smaller --nb, or another --split"))
    if case.threshold <= 0:
        text = f"threshold {case.threshold:g} means no check; the residual was checked against {THRESHOLD:g}"
        cautions.append(Caution("threshold", text, "use the threshold of the rules, 16"))
    return cautions


def _ever_splits(case: HplCase) -> bool:
    """Return whether `split` leaves columns in both sections of the trailing matrix in the first step."""
    columns = BlockCyclic(case.n + 1, case.nb, 0, case.Q)
    n2 = split_columns(columns.local_size, case.split, case.nb)
    return 0 < n2 <= columns.local_size - columns.local_start(2 * case.nb)
