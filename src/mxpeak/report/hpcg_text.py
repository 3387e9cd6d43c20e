"""Write HPCG-Benchmark_3.1_<date>.txt: lines of Section::Sub::Key=value with the names of the reference.

Values that mxpeak does not measure have no line. Numbers have all their digits; G is 10^9. An additional last section
names the author of the file, and the rules that the run breaks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from mxpeak.configs.sparse import OFFICIAL_S
from mxpeak.records import Result
from mxpeak.report.native_report import OwnReport
from mxpeak.report.text import own_test, rules_text

SYMMETRY = "Departure from Symmetry |x'Ay-y'Ax|/(2*||x||*||A||*||y||)/epsilon"

Section = Mapping[str, Any]
Rows = Iterable[tuple[str, Any]]


class HpcgText(OwnReport):
    """HPCG's report, which is written with its single result."""

    def case(self, result: Result) -> None:
        """Write HPCG's report of a result."""
        self._write(hpcg_report(result, self._begun))


def hpcg_report(result: Result, now: datetime) -> str:
    """Return HPCG's report of one result."""
    return "".join(
        [
            opening("HPCG-Benchmark", "3.1", result.problem),
            _tests(result.validation),
            _iterations(result),
            _times(result),
            _flops(result),
            _bandwidths(result),
            _rates(result),
            overheads(result.problem),
            _allreduces(result.result),
            _final(result),
            written_by(result, now),
        ]
    )


def section(name: str, rows: Rows) -> str:
    """Return the lines of one section; unknown values have no line."""
    return "".join(f"{name}::{key}={value}\n" for key, value in rows if value is not None)


def opening(name: str, version: str, problem: Section) -> str:
    """Return the first part of both reports: machine, dimensions, system, multigrid and memory."""
    machine = (("Distributed Processes", problem.get("ranks")), ("Threads per processes", problem.get("threads")))
    return "".join(
        [
            f"{name}\nversion={version}\n",
            section("Machine Summary", machine),
            _dimensions(problem),
            section("Setup Information", [("Setup Time", problem.get("setup_s"))]),
            section("Linear System Information", _system(problem)),
            _multigrid(problem),
            _memory(problem),
        ]
    )


def _dimensions(problem: Section) -> str:
    """Return the mesh of all ranks, the grid of ranks, and the box of each rank; all boxes have the same height."""
    highest = None if problem.get("npz") is None else problem["npz"] - 1
    local = (
        ("nx", problem.get("nx")),
        ("ny", problem.get("ny")),
        ("Lower ipz", None if highest is None else 0),
        ("Upper ipz", highest),
        ("nz", problem.get("nz")),
    )
    return (
        section("Global Problem Dimensions", [(f"Global n{axis}", problem.get(f"gn{axis}")) for axis in "xyz"])
        + section("Processor Dimensions", [(f"np{axis}", problem.get(f"np{axis}")) for axis in "xyz"])
        + section("Local Domain Dimensions", local)
    )


def _system(of: Section) -> Rows:
    return [("Number of Equations", of.get("rows")), ("Number of Nonzero Terms", of.get("nnz"))]


def _multigrid(problem: Section) -> str:
    """Return the coarse levels, each smoothed once before and once after the correction."""
    if not problem.get("levels"):
        return ""
    coarse = problem["levels"][1:]
    steps = [("Number of Presmoother Steps", 1), ("Number of Postsmoother Steps", 1)]
    return section("Multigrid Information", [("Number of coarse grid levels", len(coarse))]) + "".join(
        section("Multigrid Information::Coarse Grids", [("Grid Level", k), *_system(level), *steps])
        for k, level in enumerate(coarse, 1)
    )


def _memory(problem: Section) -> str:
    """Return the memory by the reference's formula, which counts every number as fp64."""
    total, rows = (problem.get("memory_bytes") or {}).get("reference_formula"), problem.get("rows")
    return section(
        "Memory Use Information",
        [
            ("Total memory used for data (Gbytes)", giga(total)),
            ("Bytes per equation (Total memory / Number of Equations)", ratio(total, rows)),
        ],
    )


#: The rules line of a run that is only too short or too small; scripts parse this line.
SHORT = {"time": "too short for the list", "memory": "too small for the list"}


def overheads(problem: Section) -> str:
    """Return the time of the optimization phase."""
    return section("User Optimization Overheads", [("Optimization phase time (sec)", problem.get("optimize_s"))])


def final_summary(name: str, result: Result, ratings: Rows) -> str:
    """Return VALID with ratings, or INVALID, and a remark if the run is too short for an official result."""
    if not result.passed:
        return section("Final Summary", [(f"{name} result is", "INVALID.")])
    time_s = result.result.get("time_s")
    short = time_s is not None and time_s < OFFICIAL_S
    remarks = [
        ("Results are valid but execution time (sec) is", time_s),
        ("Official results execution time (sec) must be at least", OFFICIAL_S),
    ]
    return section("Final Summary", [*ratings, *(remarks if short else [])])


def written_by(result: Result, now: datetime) -> str:
    """Return the author and the date of the file, and the rules that the run breaks."""
    broken = result.rules.get("violations") or []
    return section(
        "Written by mxpeak",
        [
            ("Version", result.software.get("mxpeak")),
            ("Date", f"{now:%Y-%m-%d %H:%M:%S}"),
            ("Rules", rules_text(result, SHORT) or None),
            *(("Own test" if own_test(one) else "Broken rule", f"{one['rule']}: {one['text']}") for one in broken),
        ],
    )


def time_of(phases: Mapping[str, Section], *names: str) -> float | None:
    """Return the total seconds of some phases, mean over the ranks; None if none of them was measured."""
    times = [time_s for name in names if (time_s := (phases.get(name) or {}).get("time_s")) is not None]
    return sum(times) if times else None


def giga(amount: float | None) -> float | None:
    """Return an amount in units of 10^9."""
    return None if amount is None else amount / 1e9


def ratio(amount: float | None, of: float | None) -> float | None:
    """Return the quotient of two numbers; None if one of them is unknown."""
    return amount / of if amount is not None and of else None


def _word(passed: bool | None) -> str | None:
    return None if passed is None else "PASSED" if passed else "FAILED"


def _tests(check: Section) -> str:
    """Return the section on the spectral tests, and on the symmetry of product and preconditioner."""
    cg, symmetry = check.get("cg") or {}, check.get("symmetry") or {}
    text = section("Spectral Convergence Tests", [("Result", _word(cg.get("passed")))])
    for name in ("unpreconditioned", "preconditioned"):
        way = cg.get(name) or {}
        counts = (("Maximum iteration count", way.get("iterations")), ("Expected iteration count", way.get("expected")))
        text += section(f"Spectral Convergence Tests::{name.capitalize()}", counts)
    return text + section(
        SYMMETRY,
        [
            ("Result", _word(symmetry.get("passed"))),
            ("Departure for SpMV", symmetry.get("spmv")),
            ("Departure for MG", symmetry.get("mg")),
        ],
    )


def _iterations(result: Result) -> str:
    """Return the section on the iterations per set for the reference's accuracy, and the reproducibility of the
    sets.
    """
    figures, check = result.result, result.validation
    norms, residual, threshold = check.get("norms") or {}, check.get("residual"), check.get("threshold")
    reached = None if residual is None or threshold is None else residual <= threshold
    return section(
        "Iteration Count Information",
        [
            ("Result", _word(reached)),
            ("Reference CG iterations per set", figures.get("reference_iterations_per_set")),
            ("Optimized CG iterations per set", figures.get("optimized_iterations_per_set")),
            ("Total number of reference iterations", figures.get("total_reference_iterations")),
            ("Total number of optimized iterations", figures.get("total_optimized_iterations")),
        ],
    ) + section(
        "Reproducibility Information",
        [
            ("Result", _word(norms.get("passed"))),
            ("Scaled residual mean", norms.get("mean")),
            ("Scaled residual variance", norms.get("variance")),
        ],
    )


MOTIFS = (("DDOT", "ddot"), ("WAXPBY", "waxpby"), ("SpMV", "spmv"), ("MG", "mg"))


def _times(result: Result) -> str:
    motifs = [(name, time_of(result.phases, phase)) for name, phase in MOTIFS]
    return section(
        "Benchmark Time Summary",
        [("Optimization phase", result.problem.get("optimize_s")), *motifs, ("Total", result.result.get("time_s"))],
    )


def _flops(result: Result) -> str:
    """Return the section on the executed flops, and the credited flops without additional iterations."""
    raw, figures = result.result.get("raw") or {}, result.result
    credited = ratio(figures.get("reference_iterations_per_set"), figures.get("optimized_iterations_per_set"))
    total = raw.get("total")
    return section(
        "Floating Point Operations Summary",
        [
            *((f"Raw {name}", raw.get(phase)) for name, phase in MOTIFS),
            ("Total", total),
            ("Total with convergence overhead", None if total is None or credited is None else total * credited),
        ],
    )


def _bandwidths(result: Result) -> str:
    """Return the nominal bytes per second of the reference's algorithm, also scaled by the ratio of rating to raw rate.

    These rates can exceed the memory bandwidth, because the code moves fewer bytes.
    """
    figures, moved = result.result, result.result.get("bytes") or {}
    time_s, read, write = figures.get("time_s"), giga(moved.get("read")), giga(moved.get("write"))
    total = None if read is None or write is None else ratio(read + write, time_s)
    share = ratio(figures.get("rate_flops"), figures.get("raw_rate_flops"))
    return section(
        "GB/s Summary",
        [
            ("Raw Read B/W", ratio(read, time_s)),
            ("Raw Write B/W", ratio(write, time_s)),
            ("Raw Total B/W", total),
            (
                "Total with convergence and optimization phase overhead",
                None if total is None or share is None else total * share,
            ),
        ],
    )


def _rates(result: Result) -> str:
    raw, figures = result.result.get("raw") or {}, result.result
    motifs = [(f"Raw {name}", ratio(giga(raw.get(key)), time_of(result.phases, key))) for name, key in MOTIFS]
    return section(
        "GFLOP/s Summary",
        [
            *motifs,
            ("Raw Total", giga(figures.get("raw_rate_flops"))),
            ("Total with convergence overhead", giga(figures.get("rate_flops_with_convergence"))),
            ("Total with convergence and optimization phase overhead", giga(figures.get("rate_flops"))),
        ],
    )


def _allreduces(figures: Section) -> str:
    waits = figures.get("dot_allreduce_s") or {}
    names = (("Min", "min"), ("Max", "max"), ("Avg", "mean"))
    return section("DDOT Timing Variations", [(f"{n} DDOT MPI_Allreduce time", waits.get(key)) for n, key in names])


def _final(result: Result) -> str:
    return final_summary(
        "HPCG",
        result,
        [
            ("HPCG result is VALID with a GFLOP/s rating of", giga(result.result.get("rate_flops"))),
            ("HPCG 2.4 rating for historical reasons is", giga(result.result.get("rate_flops_2_4"))),
        ],
    )
