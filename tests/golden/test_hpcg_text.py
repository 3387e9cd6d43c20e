"""Compare the keys of HPCG's report with the reference's, and test the page and the schema of the same result."""

from __future__ import annotations

import json
import math
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mxpeak.bench.registry import BENCHMARKS
from mxpeak.records import Result, document
from mxpeak.report.hpcg_text import hpcg_report
from mxpeak.report.html import html_report
from mxpeak.report.scoreboard import scoreboard, sweep
from mxpeak.report.text import phase_table, verdict

HERE = Path(__file__).parent
NOW = datetime(2025, 3, 7, 14, 5, 9)
SCHEMA = json.loads((files("mxpeak") / "schema" / "result-1.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

DEPARTURE = "Departure from Symmetry |x'Ay-y'Ax|/(2*||x||*||A||*||y||)/epsilon"
#: The keys of the reference's file in its order.
KEYS = {
    "Machine Summary": ["Distributed Processes", "Threads per processes"],
    "Global Problem Dimensions": ["Global nx", "Global ny", "Global nz"],
    "Processor Dimensions": ["npx", "npy", "npz"],
    "Local Domain Dimensions": ["nx", "ny", "Lower ipz", "Upper ipz", "nz"],
    "Setup Information": ["Setup Time"],
    "Linear System Information": ["Number of Equations", "Number of Nonzero Terms"],
    "Multigrid Information": ["Number of coarse grid levels"],
    "Multigrid Information::Coarse Grids": 3 * [
        "Grid Level", "Number of Equations", "Number of Nonzero Terms", "Number of Presmoother Steps",
        "Number of Postsmoother Steps",
    ],
    "Memory Use Information": [
        "Total memory used for data (Gbytes)", "Memory used for OptimizeProblem data (Gbytes)",
        "Bytes per equation (Total memory / Number of Equations)", "Memory used for linear system and CG (Gbytes)",
    ],
    "Spectral Convergence Tests": ["Result"],
    "Spectral Convergence Tests::Unpreconditioned": ["Maximum iteration count", "Expected iteration count"],
    "Spectral Convergence Tests::Preconditioned": ["Maximum iteration count", "Expected iteration count"],
    DEPARTURE: ["Result", "Departure for SpMV", "Departure for MG"],
    "Iteration Count Information": [
        "Result", "Reference CG iterations per set", "Optimized CG iterations per set",
        "Total number of reference iterations", "Total number of optimized iterations",
    ],
    "Reproducibility Information": ["Result", "Scaled residual mean", "Scaled residual variance"],
    "Benchmark Time Summary": ["Optimization phase", "DDOT", "WAXPBY", "SpMV", "MG", "Total"],
    "Floating Point Operations Summary": [
        "Raw DDOT", "Raw WAXPBY", "Raw SpMV", "Raw MG", "Total", "Total with convergence overhead",
    ],
    "GB/s Summary": [
        "Raw Read B/W", "Raw Write B/W", "Raw Total B/W", "Total with convergence and optimization phase overhead",
    ],
    "GFLOP/s Summary": [
        "Raw DDOT", "Raw WAXPBY", "Raw SpMV", "Raw MG", "Raw Total", "Total with convergence overhead",
        "Total with convergence and optimization phase overhead",
    ],
    "User Optimization Overheads": [
        "Optimization phase time (sec)", "Optimization phase time vs reference SpMV+MG time",
    ],
    "DDOT Timing Variations": [
        "Min DDOT MPI_Allreduce time", "Max DDOT MPI_Allreduce time", "Avg DDOT MPI_Allreduce time",
    ],
    "Final Summary": [
        "HPCG result is VALID with a GFLOP/s rating of", "HPCG 2.4 rating for historical reasons is",
        "Results are valid but execution time (sec) is", "Official results execution time (sec) must be at least",
    ],
    "Written by mxpeak": ["Version", "Date", "Rules"],
}  # fmt: skip
#: Keys whose values are not measured here.
UNMEASURED = {
    "Memory used for OptimizeProblem data (Gbytes)", "Memory used for linear system and CG (Gbytes)",
    "Optimization phase time vs reference SpMV+MG time",
}  # fmt: skip

SECONDS = {"ddot": 2.0, "waxpby": 1.5, "spmv": 9.0, "mg": 47.0}
RAW = {"ddot": 4e9, "waxpby": 4e9, "spmv": 3.2e10, "mg": 1.7e11}
TOTAL = sum(RAW.values())


def level(k: int) -> dict[str, Any]:
    n = 104 >> k
    return {
        "nx": n,
        "ny": n,
        "nz": n,
        "rows": n**3,
        "nnz": (3 * n - 2) ** 3,
        "colours": 8,
        "value_precision": "fp64",
        "vector_precision": "fp64",
        "storage": "ell",
        "bytes": 216 * n**3,
        "index_bytes": 108 * n**3,
    }


def problem_of(**values: Any) -> dict[str, Any]:
    return {
        "nx": 104,
        "ny": 104,
        "nz": 104,
        "npx": 1,
        "npy": 1,
        "npz": 1,
        "gnx": 104,
        "gny": 104,
        "gnz": 104,
        "rows": level(0)["rows"],
        "nnz": level(0)["nnz"],
        "levels": [level(k) for k in range(4)],
        "storage": "ell",
        "smoother": "coloured",
        "colouring": "octants",
        "ranks": 1,
        "threads": 4,
        "setup_s": 0.3125,
        "optimize_s": 0.1875,
        "memory_bytes": {"double": 2**30, "reference_formula": 800_000_000},
        "rt_s": 60.0,
        **values,
    }


def figures_of(**values: Any) -> dict[str, Any]:
    raw = TOTAL / 60.0
    return {
        "rate_flops": 0.9 * raw,
        "raw_rate_flops": raw,
        "raw": {**RAW, "total": TOTAL},
        "rate_flops_2_4": 0.905 * raw,
        "rate_flops_with_convergence": raw * 50 / 55,
        "time_s": 60.0,
        "sets": 6,
        "reference_iterations_per_set": 50,
        "optimized_iterations_per_set": 55,
        "total_reference_iterations": 300,
        "total_optimized_iterations": 330,
        "fraction_of_limit": 0.6125,
        "limit": {"name": "read bandwidth", "rate_bytes": 2.05e10},
        "bytes": {"read": 1.2e12, "write": 9e10},
        "dot_allreduce_s": {"min": 0.5, "max": 0.75, "mean": 0.625},
        "beside": [],
        "emulated": False,
        **values,
    }


def check_of(**values: Any) -> dict[str, Any]:
    return {
        "passed": True,
        "residual": 3.25e-4,
        "threshold": 3.5e-4,
        "formula": "||b - A x|| / ||b||",
        "iterations": 55,
        "cg": {
            "passed": True,
            "unpreconditioned": {"iterations": 11, "expected": 12},
            "preconditioned": {"iterations": 2, "expected": 2},
        },
        "symmetry": {"passed": True, "spmv": 1.25e-7, "mg": 3.5e-8},
        "norms": {"passed": True, "mean": 3.25e-4, "variance": 0.0, "samples": 6},
        **values,
    }


def result_of(**sections: Any) -> Result:
    values: dict[str, Any] = {
        "benchmark": "hpcg",
        "status": "valid",
        "problem": problem_of(),
        "result": figures_of(),
        "validation": check_of(),
        "rules": {"mode": "official", "admissible": True, "violations": []},
        "phases": {
            name: {
                "time_s": time_s,
                "max_s": time_s,
                "min_s": time_s,
                "flops": RAW[name],
                "bytes": 6 * RAW[name],
                "calls": 330,
            }
            for name, time_s in SECONDS.items()
        },
        "samples_s": 6 * [10.0],
        "software": {"mxpeak": "0.1.0"},
    }
    return Result(**{**values, **sections})


FAILED = result_of(
    status="invalid",
    validation=check_of(
        passed=False,
        residual=4e-3,
        cg={
            "passed": False,
            "unpreconditioned": {"iterations": 14, "expected": 12},
            "preconditioned": {"iterations": 2, "expected": 2},
        },
        symmetry={"passed": False, "spmv": 1.25e-7, "mg": 2.5e6},
        norms={"passed": False, "mean": 4e-3, "variance": 1e-5, "samples": [4e-3, 5e-3]},
    ),
)


def keys(report: str) -> dict[str, list[str]]:
    """Return the keys by section in the order of the file; the name of a section may contain :: and =."""
    keys_of: dict[str, list[str]] = {}
    for line in report.splitlines()[2:]:
        name, key = line.rsplit("=", 1)[0].rsplit("::", 1)
        keys_of.setdefault(name, []).append(key)
    return keys_of


def values(report: str) -> dict[str, str]:
    return dict(line.rsplit("=", 1) for line in report.splitlines()[1:])


# --- the file ---------------------------------------------------------------------------------------------------


def test_the_report_is_the_golden_one():
    assert hpcg_report(result_of(), NOW) == (HERE / "hpcg.txt").read_text()


def test_the_report_of_a_failed_run_is_the_golden_one():
    assert hpcg_report(FAILED, NOW) == (HERE / "hpcg_failed.txt").read_text()


def test_the_keys_are_the_references_in_its_order_but_for_what_is_not_measured():
    measured = {name: [key for key in names if key not in UNMEASURED] for name, names in KEYS.items()}
    found = keys(hpcg_report(result_of(), NOW))
    assert list(found) == list(measured)
    assert found == measured


def test_the_file_is_named_by_version_and_time():
    form = BENCHMARKS["hpcg"].report
    assert form
    assert form.file.format(NOW) == "HPCG-Benchmark_3.1_2025-03-07_14-05-09.txt"


def test_the_rating_has_all_digits_and_is_next_to_that_of_2_4():
    found, raw = values(hpcg_report(result_of(), NOW)), TOTAL / 60.0
    assert float(found["Final Summary::HPCG result is VALID with a GFLOP/s rating of"]) == 0.9 * raw / 1e9
    assert float(found["Final Summary::HPCG 2.4 rating for historical reasons is"]) == 0.905 * raw / 1e9


def test_bandwidth_is_nominal_bytes_over_time_and_its_last_line_is_credited_as_the_rating_is():
    value_of = values(hpcg_report(result_of(), NOW))
    total = (1200.0 + 90.0) / 60.0
    assert float(value_of["GB/s Summary::Raw Total B/W"]) == total
    credited = float(value_of["GB/s Summary::Total with convergence and optimization phase overhead"])
    assert credited == pytest.approx(0.9 * total, rel=1e-15)  # two roundings


def test_flops_of_iterations_beyond_the_references_are_not_credited():
    found = values(hpcg_report(result_of(), NOW))
    credited = float(found["Floating Point Operations Summary::Total with convergence overhead"])
    assert credited == pytest.approx(TOTAL * 50 / 55, rel=1e-15)  # two roundings


@pytest.mark.parametrize(("time_s", "short"), [(60.0, True), (1799.9, True), (1800.0, False), (7200.0, False)])
def test_a_run_below_half_an_hour_is_valid_but_reported_as_too_short(time_s: float, short: bool):
    report = hpcg_report(result_of(result=figures_of(time_s=time_s)), NOW)
    assert "HPCG result is VALID with a GFLOP/s rating of=" in report
    assert (f"Final Summary::Results are valid but execution time (sec) is={time_s}\n" in report) is short
    assert ("Final Summary::Official results execution time (sec) must be at least=1800\n" in report) is short


def test_each_test_that_failed_says_so_and_the_result_is_invalid():
    value_of = values(hpcg_report(FAILED, NOW))
    sections = ["Spectral Convergence Tests", DEPARTURE, "Iteration Count Information", "Reproducibility Information"]
    assert [value_of[f"{name}::Result"] for name in sections] == 4 * ["FAILED"]
    assert keys(hpcg_report(FAILED, NOW))["Final Summary"] == ["HPCG result is"]
    assert value_of["Final Summary::HPCG result is"] == "INVALID."


def test_without_counted_bytes_and_reductions_their_sections_are_left_out():
    found = keys(hpcg_report(result_of(result=figures_of(bytes=None, dot_allreduce_s=None)), NOW))
    assert not {"GB/s Summary", "DDOT Timing Variations"} & set(found)


# --- unknown values and NaN -------------------------------------------------------------------------------------


BARE = Result(benchmark="hpcg", status="aborted")


def emptied(fill: float | None) -> Result:
    """Return a result whose numbers are all `fill`."""

    def empty(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: empty(item) for key, item in value.items()}
        return fill if isinstance(value, float) else value

    body = result_of()
    return result_of(
        status="invalid",
        problem=empty(body.problem),
        result=empty(body.result),
        validation=empty(body.validation),
        phases=empty(body.phases),
        samples_s=[],
    )


@pytest.mark.parametrize("result", [BARE, emptied(None), emptied(math.nan)], ids=["bare", "none", "nan"])
def test_nothing_crashes_on_what_is_not_known_or_not_a_number(result: Result):
    assert "HPCG result is=INVALID." in hpcg_report(result, NOW)
    assert verdict(result, verbose=True).split("\n")[0].startswith(result.mark)
    assert len(scoreboard([result]).splitlines()) >= 4
    assert "hpcg" in html_report(document([result]))
    assert repr(result).startswith(f"Result(hpcg, {result.status}, ")


def test_what_is_not_known_has_no_line():
    assert keys(hpcg_report(BARE, NOW)) == {"Final Summary": ["HPCG result is"], "Written by mxpeak": ["Date"]}


# --- text -------------------------------------------------------------------------------------------------------


def test_the_verdict_says_accuracy_tests_and_size_and_on_request_ratings():
    lines = verdict(result_of()).splitlines()
    assert lines == [
        "PASSED  hpcg  3.15 GFLOP/s  (61.3 % of read bandwidth at 20.5 GB/s)  ADMISSIBLE",
        "  scaled residual 3.25e-04 <= threshold 3.50e-04 after 55 iterations",
        "  tests: CG PASSED (11 of 12 steps, preconditioned 2 of 2), symmetry PASSED (spmv 1.25e-07, mg 3.50e-08), "
        "norms PASSED (variance 0)",
        "  104x104x104 per rank, 1x1x1 ranks, 1.12 million rows, ell, time 60.0 s",
    ]
    assert verdict(result_of(), verbose=True).splitlines()[:5] == [
        *lines,
        "  raw 3.50 GFLOP/s, with convergence overhead 3.18 GFLOP/s, HPCG 2.4 rating 3.17 GFLOP/s",
    ]


def test_the_verdict_of_a_failed_run_names_the_tests_that_failed():
    lines = verdict(FAILED).splitlines()
    assert lines[0].startswith("FAILED  hpcg")
    assert lines[1] == "  scaled residual 0.00400 is not within threshold 3.50e-04 after 55 iterations"
    assert lines[2].count("FAILED") == 3


def test_tests_that_did_not_run_are_not_called_failed():
    assert verdict(BARE).count("not run") == 3
    assert "FAILED" not in verdict(BARE)


def test_a_plain_figure_is_next_to_that_of_another_storage():
    plain = {"label": "official", "storage": "ell", "precision": "fp64", "rate_flops": 2.5e9, "raw_rate_flops": 2.7e9}
    packed = result_of(result=figures_of(beside=[plain]))
    VALIDATOR.validate(document([packed]))
    assert (
        verdict(packed, verbose=True).splitlines()[5]
        == "  also measured, official, ell/fp64: 2.50 GFLOP/s (raw 2.70 GFLOP/s)"
    )


def test_phases_have_no_column_for_a_limit_that_no_phase_was_measured_against():
    table = phase_table(result_of()).splitlines()
    assert "of limit" not in table[0]
    assert [line.split()[0] for line in table] == ["phase", "mg", "spmv", "ddot", "waxpby"]


def test_the_scoreboard_and_the_page_show_the_case_and_the_tests():
    assert "  104x104x104 1x1x1 ell  " in sweep([result_of()]).splitlines()[1]
    page = html_report(document([result_of()]))
    assert "<p>mesh 104×104×104 · ranks 1×1×1 · storage ell</p>" in page
    assert "tests: CG PASSED" in page
    assert "HPCG 2.4 rating 3.17 GFLOP/s" in page
    assert "by motif" not in page


# --- the schema -------------------------------------------------------------------------------------------------


def test_the_schema_takes_results_that_passed_and_that_failed():
    VALIDATOR.validate(document([result_of(), FAILED, result_of(rules={})]))
    lost = json.loads(json.dumps(emptied(math.nan).as_dict()))
    VALIDATOR.validate(lost)
    assert Result.from_dict(lost).as_dict() == lost


@pytest.mark.parametrize(
    "path",
    [
        "result.rate_flops",
        "result.raw_rate_flops",
        "result.raw.mg",
        "result.rate_flops_2_4",
        "result.time_s",
        "result.optimized_iterations_per_set",
        "result.beside",
        "validation.residual",
        "validation.cg.passed",
        "validation.cg.preconditioned.expected",
        "validation.symmetry.mg",
        "validation.norms.variance",
        "phases.mg",
        "problem.gnz",
        "problem.levels.0.rows",
        "problem.optimize_s",
    ],
)
def test_a_promised_key_must_be_there(path: str):
    *way, last = path.split(".")
    section = body = json.loads(json.dumps(result_of().as_dict()))
    for name in way:
        section = section[int(name)] if isinstance(section, list) else section[name]
    del section[last]
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(body)
