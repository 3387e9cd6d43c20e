"""Write HPGMP-Benchmark_0.1_<date>.txt with the names of the reference, including misspelled ones.

`(benchmark)` is the rated mixed solver, `(reference)` the double solver. The flops are those of the reference's
counting; additional sections contain both countings and the precisions. The type and the penalty of the validation are
written as in ORNL's code. The rest is as in `hpcg_text`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from mxpeak.configs.sparse import OFFICIAL_S
from mxpeak.records import Result
from mxpeak.report.hpcg_text import final_summary, giga, opening, overheads, ratio, section, time_of, written_by
from mxpeak.report.native_report import OwnReport

Section = Mapping[str, Any]

#: The phases of a multigrid cycle.
MULTIGRID = ("gs", "restriction", "prolongation")


class HpgMpText(OwnReport):
    """HPG-MxP's report, which is written with its single result."""

    def case(self, result: Result) -> None:
        """Write HPG-MxP's report of a result."""
        self._write(hpgmp_report(result, self._begun))


def hpgmp_report(result: Result, now: datetime) -> str:
    """Return HPG-MxP's report of one result."""
    return "".join(
        [
            opening("HPGMP-Benchmark", "0.1", result.problem),
            _iterations(result),
            _times(result),
            _flops(result),
            _rates(result),
            overheads(result.problem),
            _final(result),
            _precisions(result),
            _countings(result.result),
            written_by(result, now),
        ]
    )


def _iterations(result: Result) -> str:
    """Return the validation: both solvers from x = 0, with their residual norms before and after."""
    check = result.validation
    return section(
        "Iteration Count Information",
        [
            ("Number of processes (validation)", check.get("ranks")),
            ("Restart length (validation)", result.problem.get("restart")),
            ("Convergence tolerance (validation)", check.get("threshold")),
            *_solver("reference", "double", check),
            *_solver("optimized", "mixed", check),
            ("Validation type", check.get("type")),
            ("Penalty factor (validation)", check.get("penalty")),
        ],
    )


def _solver(name: str, key: str, check: Section) -> list[tuple[str, Any]]:
    """Return the iterations and norms of one solver; its recorded residual is relative to the initial one."""
    first, residual = check.get(f"{key}_initial"), check.get(f"{key}_residual")
    return [
        (f"Number of {name} iterations (validation)", check.get(f"{key}_iterations")),
        (f"Initial residual norm of {name} iterations (validation)", first),
        (
            f"Final residual norm of {name} iterations (validation)",
            None if first is None or residual is None else first * residual,
        ),
    ]


def _times(result: Result) -> str:
    """Return the seconds by motif of the mixed and of the double solver."""
    problem, figures = result.problem, result.result
    mixed = [
        ("Run time requested (benchmark)", problem.get("rt_s")),
        ("Min run time required (benchmark)", OFFICIAL_S),
        ("Number of GMRES calls (benchmark)", figures.get("solves")),
        ("Mximum number of iterations (benchmark)", problem.get("max_iterations")),
        ("Optimization phase", problem.get("optimize_s")),
        *_motif_times(result.phases, problem.get("ranks")),
        ("Total", figures.get("time_s")),
    ]
    double = [
        ("Number of GMRES calls", figures.get("double_solves")),
        ("Mximum number of iterations", problem.get("max_iterations")),
        *_motif_times(figures.get("double_phases") or {}, problem.get("ranks")),
        ("Total", figures.get("double_time_s")),
    ]
    measured = figures.get("double_time_s") is not None
    reference = [(f"{key} (reference)", value) for key, value in double] if measured else []
    return section("Benchmark Time Summary", [*mixed, *reference])


def _motif_times(phases: Mapping[str, Section], ranks: int | None) -> list[tuple[str, Any]]:
    calls = (phases.get("spmv") or {}).get("calls")  # of all ranks; the reference counts those of one rank
    return [
        ("Num SpMVs", None if calls is None or not ranks else calls // ranks),
        ("Ortho", time_of(phases, "ortho")),
        ("SpMV", time_of(phases, "spmv")),
        ("MG", time_of(phases, *MULTIGRID)),
        ("SpTRSV", time_of(phases, "gs")),
        ("Restic", time_of(phases, "restriction")),
        ("Prlong", time_of(phases, "prolongation")),
        ("VecUpdate", time_of(phases, "update")),
    ]


def _motif_flops(result: Result) -> dict[str, float | None]:
    """Return the flops of orthogonalization, SpMV and multigrid; multigrid includes all of its phases."""
    flops = result.result.get("flops") or {}
    multigrid = [flops[name] for name in MULTIGRID if flops.get(name) is not None]
    return {"ortho": flops.get("ortho"), "spmv": flops.get("spmv"), "mg": sum(multigrid) if multigrid else None}


def _flops(result: Result) -> str:
    flops = _motif_flops(result)
    return section(
        "Floating Point Operations Summary",
        [
            ("Raw Ortho", flops["ortho"]),
            ("Raw SpMV", flops["spmv"]),
            ("Raw MG", flops["mg"]),
            ("Total", (result.result.get("flops") or {}).get("total")),
        ],
    )


def _rates(result: Result) -> str:
    flops, phases = _motif_flops(result), result.phases
    return section(
        "GFLOP/s Summary",
        [
            ("Raw Orho", ratio(giga(flops["ortho"]), time_of(phases, "ortho"))),
            ("Raw SpMV", ratio(giga(flops["spmv"]), time_of(phases, "spmv"))),
            ("Raw MG", ratio(giga(flops["mg"]), time_of(phases, *MULTIGRID))),
            ("Raw Total", giga(result.result.get("raw_rate_flops"))),
            ("Total for benchmark", giga(result.result.get("rate_flops"))),
        ],
    )


def _precisions(result: Result) -> str:
    """Return an additional section with the formats of both solvers, for which the reference has no keys."""
    precision, measured = result.problem.get("precision"), result.result.get("double_time_s") is not None
    if not isinstance(precision, Mapping):
        return ""
    levels = precision.get("mg")
    return section(
        "Precision (mxpeak)",
        [
            ("Matrix values of multigrid by level (benchmark)", ", ".join(levels) if levels else None),
            ("Matrix values of the Krylov iteration (benchmark)", precision.get("krylov")),
            ("Vectors of the Krylov iteration and multigrid (benchmark)", precision.get("vectors")),
            ("Residual and solution (benchmark)", "fp64"),
            ("Matrix values and vectors (reference)", "fp64" if measured else None),
        ],
    )


def _countings(figures: Section) -> str:
    """Return an additional section with the rate in both countings; other sections use that of the reference code."""
    return section(
        "Counting (mxpeak)",
        [
            ("Total for benchmark in the counting of the reference code", giga(figures.get("rate_flops_reference"))),
            ("Total for benchmark in the counting of ORNL", giga(figures.get("rate_flops_ornl"))),
            ("Raw Total in the counting of the reference code", giga(figures.get("raw_rate_flops"))),
            ("Raw Total in the counting of ORNL", giga(figures.get("raw_rate_flops_ornl"))),
        ],
    )


def _final(result: Result) -> str:
    rating = ("HPGMP result is VALID with a GFLOP/s rating of", giga(result.result.get("rate_flops")))
    return final_summary("HPGMP", result, [rating])
