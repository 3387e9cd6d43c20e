"""Write HPCG-Benchmark_3.1_<date>.txt: lines of Section::Sub::Key=value with the names of the reference code.

A template names each value by its path in a result, or below `own` if the report derives the value. Values that mxpeak
does not measure have no line. Numbers have all their digits; G is 10^9. An additional last section names the author of
the file and the rules that the run breaks.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from mxpeak.configs.sparse import OFFICIAL_S
from mxpeak.records import Result
from mxpeak.report.native_report import OwnReport
from mxpeak.report.text import own_test, rules_text

Section = Mapping[str, Any]

#: The first part of the reports of HPCG and HPG-MxP, before the coarse levels. All boxes have the same height.
OPENING = """\
Machine Summary::Distributed Processes={problem.ranks}
Machine Summary::Threads per processes={problem.threads}
Global Problem Dimensions::Global nx={problem.gnx}
Global Problem Dimensions::Global ny={problem.gny}
Global Problem Dimensions::Global nz={problem.gnz}
Processor Dimensions::npx={problem.npx}
Processor Dimensions::npy={problem.npy}
Processor Dimensions::npz={problem.npz}
Local Domain Dimensions::nx={problem.nx}
Local Domain Dimensions::ny={problem.ny}
Local Domain Dimensions::Lower ipz={own.lower_ipz}
Local Domain Dimensions::Upper ipz={own.upper_ipz}
Local Domain Dimensions::nz={problem.nz}
Setup Information::Setup Time={problem.setup_s}
Linear System Information::Number of Equations={problem.rows}
Linear System Information::Number of Nonzero Terms={problem.nnz}
Multigrid Information::Number of coarse grid levels={own.coarse_levels}
"""
#: The lines of a coarse level, which has one smoother step before and one after the correction.
COARSE_LEVEL = """\
Multigrid Information::Coarse Grids::Grid Level={level}
Multigrid Information::Coarse Grids::Number of Equations={rows}
Multigrid Information::Coarse Grids::Number of Nonzero Terms={nnz}
Multigrid Information::Coarse Grids::Number of Presmoother Steps={smoother_steps}
Multigrid Information::Coarse Grids::Number of Postsmoother Steps={smoother_steps}
"""
#: The lines about memory. The formula of the reference code counts every number as fp64.
MEMORY = """\
Memory Use Information::Total memory used for data (Gbytes)={own.memory}
Memory Use Information::Bytes per equation (Total memory / Number of Equations)={own.bytes_per_row}
"""
REPORT = """\
Spectral Convergence Tests::Result={own.spectral}
Spectral Convergence Tests::Unpreconditioned::Maximum iteration count={validation.cg.unpreconditioned.iterations}
Spectral Convergence Tests::Unpreconditioned::Expected iteration count={validation.cg.unpreconditioned.expected}
Spectral Convergence Tests::Preconditioned::Maximum iteration count={validation.cg.preconditioned.iterations}
Spectral Convergence Tests::Preconditioned::Expected iteration count={validation.cg.preconditioned.expected}
Departure from Symmetry |x'Ay-y'Ax|/(2*||x||*||A||*||y||)/epsilon::Result={own.symmetry}
Departure from Symmetry |x'Ay-y'Ax|/(2*||x||*||A||*||y||)/epsilon::Departure for SpMV={validation.symmetry.spmv}
Departure from Symmetry |x'Ay-y'Ax|/(2*||x||*||A||*||y||)/epsilon::Departure for MG={validation.symmetry.mg}
Iteration Count Information::Result={own.reached}
Iteration Count Information::Reference CG iterations per set={result.reference_iterations_per_set}
Iteration Count Information::Optimized CG iterations per set={result.optimized_iterations_per_set}
Iteration Count Information::Total number of reference iterations={result.total_reference_iterations}
Iteration Count Information::Total number of optimized iterations={result.total_optimized_iterations}
Reproducibility Information::Result={own.norms}
Reproducibility Information::Scaled residual mean={validation.norms.mean}
Reproducibility Information::Scaled residual variance={validation.norms.variance}
Benchmark Time Summary::Optimization phase={problem.optimize_s}
Benchmark Time Summary::DDOT={own.ddot_s}
Benchmark Time Summary::WAXPBY={own.waxpby_s}
Benchmark Time Summary::SpMV={own.spmv_s}
Benchmark Time Summary::MG={own.mg_s}
Benchmark Time Summary::Total={result.time_s}
Floating Point Operations Summary::Raw DDOT={result.raw.ddot}
Floating Point Operations Summary::Raw WAXPBY={result.raw.waxpby}
Floating Point Operations Summary::Raw SpMV={result.raw.spmv}
Floating Point Operations Summary::Raw MG={result.raw.mg}
Floating Point Operations Summary::Total={result.raw.total}
Floating Point Operations Summary::Total with convergence overhead={own.credited}
GB/s Summary::Raw Read B/W={own.read}
GB/s Summary::Raw Write B/W={own.write}
GB/s Summary::Raw Total B/W={own.moved}
GB/s Summary::Total with convergence and optimization phase overhead={own.credited_moved}
GFLOP/s Summary::Raw DDOT={own.ddot}
GFLOP/s Summary::Raw WAXPBY={own.waxpby}
GFLOP/s Summary::Raw SpMV={own.spmv}
GFLOP/s Summary::Raw MG={own.mg}
GFLOP/s Summary::Raw Total={own.raw}
GFLOP/s Summary::Total with convergence overhead={own.with_convergence}
GFLOP/s Summary::Total with convergence and optimization phase overhead={own.rate}
User Optimization Overheads::Optimization phase time (sec)={problem.optimize_s}
DDOT Timing Variations::Min DDOT MPI_Allreduce time={result.dot_allreduce_s.min}
DDOT Timing Variations::Max DDOT MPI_Allreduce time={result.dot_allreduce_s.max}
DDOT Timing Variations::Avg DDOT MPI_Allreduce time={result.dot_allreduce_s.mean}
Final Summary::HPCG result is={own.invalid}
Final Summary::HPCG result is VALID with a GFLOP/s rating of={own.rating}
Final Summary::HPCG 2.4 rating for historical reasons is={own.rating_2_4}
Final Summary::Results are valid but execution time (sec) is={own.short_s}
Final Summary::Official results execution time (sec) must be at least={own.official_s}
"""
#: Text after `Rules=` for a run that is only too short or too small; scripts parse this line.
SHORT = {"time": "too short for the list", "memory": "too small for the list"}


class HpcgText(OwnReport):
    """Writes HPCG's report after its single result."""

    def case(self, result: Result) -> None:
        """Write the complete report of a result."""
        self._write(hpcg_report(result, self._begun))


def hpcg_report(result: Result, now: datetime) -> str:
    """Return the text of HPCG's report for one result."""
    opening = opening_part("HPCG-Benchmark", "3.1", result.problem)
    return f"{opening}{filled(REPORT, values_of(result, _derived(result)))}{written_by(result, now)}"


def filled(template: str, values: Section) -> str:
    """Fill the values into a template, and omit the lines of unknown values."""
    lines = []
    for line in template.splitlines():
        key, _, path = line.rstrip("}").rpartition("={")
        value: Any = values
        for name in path.split("."):
            value = (value or {}).get(name)
        lines += [] if value is None else [f"{key}={value}\n"]
    return "".join(lines)


def values_of(result: Result, own: Section) -> dict[str, Section]:
    """Return the values that a template can contain, by section. The section `own` contains derived values."""
    time_s, passed = result.result.get("time_s"), result.passed
    short = passed and result.validation.get("type") != "none" and time_s is not None and time_s < OFFICIAL_S
    ending = {
        "invalid": None if passed else "INVALID.",
        "rating": giga(result.result.get("rate_flops")) if passed else None,
        "short_s": time_s if short else None,
        "official_s": OFFICIAL_S if short else None,
    }
    sections = {"problem": result.problem, "result": result.result, "validation": result.validation}
    return {**sections, "own": {**own, **ending}}


def opening_part(name: str, version: str, problem: Section) -> str:
    """Return the first part of both reports: version, machine, dimensions, linear system, multigrid and memory."""
    npz, levels = problem.get("npz"), problem.get("levels") or []
    memory = (problem.get("memory_bytes") or {}).get("reference_formula")
    own = {
        "lower_ipz": None if npz is None else 0,
        "upper_ipz": None if npz is None else npz - 1,
        "coarse_levels": len(levels) - 1 if levels else None,
        "memory": giga(memory),
        "bytes_per_row": ratio(memory, problem.get("rows")),
    }
    values = {"problem": problem, "own": own}
    coarse = [filled(COARSE_LEVEL, {**level, "level": k, "smoother_steps": 1}) for k, level in enumerate(levels) if k]
    return f"{name}\nversion={version}\n{filled(OPENING, values)}{''.join(coarse)}{filled(MEMORY, values)}"


def written_by(result: Result, now: datetime) -> str:
    """Return the last section of both reports: version, date, list status, and the rules that the run breaks."""
    broken = [
        f"{'Own test' if own_test(violation) else 'Broken rule'}={violation['rule']}: {violation['text']}"
        for violation in result.rules.get("violations") or []
    ]
    version, rules = result.software.get("mxpeak"), rules_text(result, SHORT)
    lines = [] if version is None else [f"Version={version}"]
    lines += [f"Date={now:%Y-%m-%d %H:%M:%S}", *([f"Rules={rules}"] if rules else []), *broken]
    return "".join(f"Written by mxpeak::{line}\n" for line in lines)


def time_of(phases: Mapping[str, Section], *names: str) -> float | None:
    """Return the sum of the times of some phases in seconds, each averaged over the ranks.

    Return None if none of the phases was measured.
    """
    times = [time_s for name in names if (time_s := (phases.get(name) or {}).get("time_s")) is not None]
    return sum(times) if times else None


def giga(amount: float | None) -> float | None:
    """Divide an amount by 10^9; return None if the amount is unknown."""
    return None if amount is None else amount / 1e9


def ratio(amount: float | None, of: float | None) -> float | None:
    """Return the quotient of two numbers, or None if one of them is unknown."""
    return amount / of if amount is not None and of else None


def _derived(result: Result) -> dict[str, Any]:
    """Compute the values of HPCG's report that the result does not contain.

    The byte rates are those of the reference algorithm. `credited_moved` is scaled by the ratio of rating to raw rate.
    Byte rates can exceed the memory bandwidth, because mxpeak moves fewer bytes.
    """
    figures, check = result.result, result.validation
    raw, moved, time_s = figures.get("raw") or {}, figures.get("bytes") or {}, figures.get("time_s")
    residual, threshold = check.get("residual"), check.get("threshold")
    tests = {
        "spectral": (check.get("cg") or {}).get("passed"),
        "symmetry": (check.get("symmetry") or {}).get("passed"),
        "reached": None if residual is None or threshold is None else residual <= threshold,
        "norms": (check.get("norms") or {}).get("passed"),
    }
    seconds = {name: time_of(result.phases, name) for name in ("ddot", "waxpby", "spmv", "mg")}
    read, write = giga(moved.get("read")), giga(moved.get("write"))
    total = None if read is None or write is None else ratio(read + write, time_s)
    share = ratio(figures.get("rate_flops"), figures.get("raw_rate_flops"))
    kept = ratio(figures.get("reference_iterations_per_set"), figures.get("optimized_iterations_per_set"))
    return {
        **{name: None if passed is None else "PASSED" if passed else "FAILED" for name, passed in tests.items()},
        **{f"{name}_s": time_s for name, time_s in seconds.items()},
        **{name: ratio(giga(raw.get(name)), time_s) for name, time_s in seconds.items()},
        "credited": product(raw.get("total"), kept),
        "read": ratio(read, time_s),
        "write": ratio(write, time_s),
        "moved": total,
        "credited_moved": product(total, share),
        "raw": giga(figures.get("raw_rate_flops")),
        "with_convergence": giga(figures.get("rate_flops_with_convergence")),
        "rate": giga(figures.get("rate_flops")),
        "rating_2_4": giga(figures.get("rate_flops_2_4")) if result.passed else None,
    }


def product(amount: float | None, factor: float | None) -> float | None:
    """Return the product of two numbers, or None if one of them is unknown."""
    return None if amount is None or factor is None else amount * factor
