"""Write HPGMP-Benchmark_0.1_<date>.txt with the names of the reference code, including misspelled names.

`(benchmark)` is the rated mixed solver, and `(reference)` is the double solver. The flops are counted as in the
reference code; additional sections contain both flop counts and the precisions. The type and the penalty of the
validation are written as in ORNL's code. All other lines follow the rules in `hpcg_text`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from mxpeak.configs.sparse import OFFICIAL_S
from mxpeak.records import Result
from mxpeak.report.hpcg_text import filled, giga, opening_part, product, ratio, time_of, values_of, written_by
from mxpeak.report.native_report import OwnReport
from mxpeak.report.sparse_text import unrated

#: The phases of a multigrid cycle.
MULTIGRID = ("gs", "restriction", "prolongation")
REPORT = """\
Iteration Count Information::Number of processes (validation)={validation.ranks}
Iteration Count Information::Restart length (validation)={problem.restart}
Iteration Count Information::Convergence tolerance (validation)={own.tolerance}
Iteration Count Information::Number of reference iterations (validation)={validation.double_iterations}
Iteration Count Information::Initial residual norm of reference iterations (validation)={validation.double_initial}
Iteration Count Information::Final residual norm of reference iterations (validation)={own.double_final}
Iteration Count Information::Number of optimized iterations (validation)={validation.mixed_iterations}
Iteration Count Information::Initial residual norm of optimized iterations (validation)={validation.mixed_initial}
Iteration Count Information::Final residual norm of optimized iterations (validation)={own.mixed_final}
Iteration Count Information::Validation type={validation.type}
Iteration Count Information::Penalty factor (validation)={validation.penalty}
Benchmark Time Summary::Run time requested (benchmark)={problem.rt_s}
Benchmark Time Summary::Min run time required (benchmark)={own.required_s}
Benchmark Time Summary::Number of GMRES calls (benchmark)={result.solves}
Benchmark Time Summary::Mximum number of iterations (benchmark)={problem.max_iterations}
Benchmark Time Summary::Optimization phase={problem.optimize_s}
Benchmark Time Summary::Num SpMVs={own.mixed.products}
Benchmark Time Summary::Ortho={own.mixed.ortho}
Benchmark Time Summary::SpMV={own.mixed.spmv}
Benchmark Time Summary::MG={own.mixed.mg}
Benchmark Time Summary::SpTRSV={own.mixed.gs}
Benchmark Time Summary::Restic={own.mixed.restriction}
Benchmark Time Summary::Prlong={own.mixed.prolongation}
Benchmark Time Summary::VecUpdate={own.mixed.update}
Benchmark Time Summary::Total={result.time_s}
Benchmark Time Summary::Number of GMRES calls (reference)={own.double.solves}
Benchmark Time Summary::Mximum number of iterations (reference)={own.double.max_iterations}
Benchmark Time Summary::Num SpMVs (reference)={own.double.products}
Benchmark Time Summary::Ortho (reference)={own.double.ortho}
Benchmark Time Summary::SpMV (reference)={own.double.spmv}
Benchmark Time Summary::MG (reference)={own.double.mg}
Benchmark Time Summary::SpTRSV (reference)={own.double.gs}
Benchmark Time Summary::Restic (reference)={own.double.restriction}
Benchmark Time Summary::Prlong (reference)={own.double.prolongation}
Benchmark Time Summary::VecUpdate (reference)={own.double.update}
Benchmark Time Summary::Total (reference)={result.double_time_s}
Floating Point Operations Summary::Raw Ortho={own.flops.ortho}
Floating Point Operations Summary::Raw SpMV={own.flops.spmv}
Floating Point Operations Summary::Raw MG={own.flops.mg}
Floating Point Operations Summary::Total={result.flops.total}
GFLOP/s Summary::Raw Orho={own.rates.ortho}
GFLOP/s Summary::Raw SpMV={own.rates.spmv}
GFLOP/s Summary::Raw MG={own.rates.mg}
GFLOP/s Summary::Raw Total={own.rates.raw_rate_flops}
GFLOP/s Summary::Total for benchmark={own.rates.rate_flops}
User Optimization Overheads::Optimization phase time (sec)={problem.optimize_s}
Final Summary::HPGMP result is={own.invalid}
Final Summary::HPGMP result has no rating={own.unrated}
Final Summary::HPGMP result is VALID with a GFLOP/s rating of={own.rating}
Final Summary::Results are valid but execution time (sec) is={own.short_s}
Final Summary::Official results execution time (sec) must be at least={own.official_s}
Precision (mxpeak)::Matrix values of multigrid by level (benchmark)={own.formats.mg}
Precision (mxpeak)::Matrix values of the Krylov iteration (benchmark)={own.formats.krylov}
Precision (mxpeak)::Vectors of the Krylov iteration and multigrid (benchmark)={own.formats.vectors}
Precision (mxpeak)::Residual and solution (benchmark)={own.formats.outer}
Precision (mxpeak)::Matrix values and vectors (reference)={own.formats.double}
Counting (mxpeak)::Total for benchmark in the counting of the reference code={own.rates.rate_flops_reference}
Counting (mxpeak)::Total for benchmark in the counting of ORNL={own.rates.rate_flops_ornl}
Counting (mxpeak)::Raw Total in the counting of the reference code={own.rates.raw_rate_flops}
Counting (mxpeak)::Raw Total in the counting of ORNL={own.rates.raw_rate_flops_ornl}
Counting (mxpeak)::Raw Total in the counting of the reference code (reference)={own.rates.double_rate_flops}
Counting (mxpeak)::Raw Total in the counting of ORNL (reference)={own.rates.double_rate_flops_ornl}
"""


class HpgMpText(OwnReport):
    """Writes HPG-MxP's report after its single result."""

    def case(self, result: Result) -> None:
        """Write the complete report of a result."""
        self._write(hpgmp_report(result, self._begun))


def hpgmp_report(result: Result, now: datetime) -> str:
    """Return the text of HPG-MxP's report for one result."""
    opening = opening_part("HPGMP-Benchmark", "0.1", result.problem)
    return f"{opening}{filled(REPORT, values_of(result, _derived(result)))}{written_by(result, now)}"


def _derived(result: Result) -> dict[str, Any]:
    """Compute the values of HPG-MxP's report that the result does not contain.

    The final residuals are products, because the recorded residuals are relative to the initial residuals.
    """
    problem, figures, check = result.problem, result.result, result.validation
    mixed, double = _motif_times(result.phases, problem), dict[str, Any]()
    measured = figures.get("double_time_s") is not None
    if measured:
        double = _motif_times(figures.get("double_phases") or {}, problem)
        double |= {"solves": figures.get("double_solves"), "max_iterations": problem.get("max_iterations")}
    counted = figures.get("flops") or {}
    multigrid = [counted[name] for name in MULTIGRID if counted.get(name) is not None]
    flops = {"ortho": counted.get("ortho"), "spmv": counted.get("spmv"), "mg": sum(multigrid) if multigrid else None}
    names = ["raw_rate_flops", "rate_flops", "rate_flops_reference", "rate_flops_ornl", "raw_rate_flops_ornl"]
    names += ["double_rate_flops", "double_rate_flops_ornl"] if measured else []
    rates = {name: ratio(giga(amount), mixed[name]) for name, amount in flops.items()}
    formats, precision = dict[str, Any](), problem.get("precision")
    if isinstance(precision, Mapping):  # the report of the reference code has no keys for formats
        levels = ", ".join(precision.get("mg") or []) or None
        formats = {**precision, "mg": levels, "outer": "fp64", "double": "fp64" if measured else None}
        if precision.get("basis"):
            formats["vectors"] = f"{precision.get('vectors')}, Krylov basis stored in {precision['basis']}"
        if precision.get("mg_vectors"):
            formats["vectors"] += f", multigrid vectors in {precision['mg_vectors']}"
    return {
        "tolerance": None if check.get("type") == "none" else check.get("threshold"),
        "double_final": product(check.get("double_initial"), check.get("double_residual")),
        "mixed_final": product(check.get("mixed_initial"), check.get("mixed_residual")),
        "unrated": unrated(result),
        "required_s": OFFICIAL_S,
        "mixed": mixed,
        "double": double,
        "flops": flops,
        "rates": rates | {name: giga(figures.get(name)) for name in names},
        "formats": formats,
    }


def _motif_times(phases: Mapping[str, Mapping[str, Any]], problem: Mapping[str, Any]) -> dict[str, Any]:
    """Return the time of each motif in seconds, averaged over the ranks, and the number of products per rank."""
    calls, ranks = (phases.get("spmv") or {}).get("calls"), problem.get("ranks")  # number of calls on all ranks
    times = {name: time_of(phases, name) for name in ("ortho", "spmv", *MULTIGRID, "update")}
    return {
        **times,
        "mg": time_of(phases, *MULTIGRID),
        "products": calls // ranks if calls is not None and ranks else None,
    }
