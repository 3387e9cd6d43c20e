"""Test the scoreboard: one row per benchmark in 80 columns, its limits, and the next steps."""

from __future__ import annotations

from typing import Any

import pytest

from mxpeak.records import Result
from mxpeak.report.scoreboard import scoreboard, sweep


def norm(kind: str, rate: float, limit: float, **more: Any) -> Result:
    return Result(
        benchmark="norms",
        status=more.pop("status", "valid"),
        problem={"kind": kind, "structure": "general", "dtype": "float64", "m": 100, "n": 100},
        result={
            "rate_bytes": rate,
            "fraction_of_limit": rate / limit,
            "limit": {"name": "read bandwidth", "rate_bytes": limit, **more},
        },
    )


def hpl(share: float, **more: Any) -> Result:
    limit = {"name": "DGEMM, inner dimension 192", "rate_flops": 100e9}
    figures = {"rate_flops": share * 100e9, "fraction_of_limit": share, "limit": limit}
    return Result(benchmark="hpl", status="valid", result=figures, **more)


NORMS = [norm("max", 21.3e9, 25e9), norm("one", 26.04e9, 26.04e9), norm("all", 22e9, 23e9)]


def rows_of(text: str) -> list[str]:
    """Return the rows of the table, below its titles and above the empty line."""
    return text.split("\n\n")[1].splitlines()[1:]


def test_all_norms_share_one_row_from_worst_to_best() -> None:
    (row,) = rows_of(scoreboard(NORMS))
    assert row == "norms  21–26 GB/s  85–100 of 23–26 GB/s  memory  PASSED  3 of 3"
    assert [line.split()[1] for line in rows_of(scoreboard(NORMS, verbose=True))] == ["max", "one", "all"]
    assert "All 3 results are valid." in scoreboard(NORMS)


def test_a_norm_that_failed_is_named_under_the_row_of_all() -> None:
    text = scoreboard([*NORMS, norm("fro", 20e9, 25e9, status="invalid")])
    assert rows_of(text)[0].endswith("FAILED  3 of 4")
    assert "\n3 of 4 results are valid. FAILED: norms fro.\n" in text


def test_a_star_on_the_row_of_all_norms_has_one_note_that_names_the_norm() -> None:
    text = scoreboard([*NORMS, norm("fro", 20e9, 25e9, drift=0.25, drifted=True)])
    assert "80–100* of" in rows_of(text)[0]
    assert text.count("*") == 2
    assert "norms fro by 25.0 %" in " ".join(text.split())


@pytest.mark.parametrize(
    ("results", "said"),
    [
        ([hpl(0.8)], "matrix products (GEMM)."),
        (NORMS, "reading memory."),
        ([hpl(0.8), *NORMS], "matrix products (GEMM) and reading memory."),
    ],
)
def test_the_limits_are_explained_as_far_as_they_are_in_the_rows(results: list[Result], said: str) -> None:
    assert f"The limits were measured in this run: {said}\n" in scoreboard(results)


def test_a_limit_of_caches_is_called_so() -> None:
    cached = norm("max", 21e9, 25e9)
    cached.result["limit"]["name"] = "read bandwidth in cache"
    assert "of 25.0 GB/s  cache  PASSED" in scoreboard([cached])
    assert "this run: reading caches." in scoreboard([cached])
    assert "memory/cache  PASSED" in rows_of(scoreboard([*NORMS, cached]))[0]


def test_a_low_share_of_hpl_is_explained_at_quick_sizes_only() -> None:
    hint = "HPL reaches 57.0 % of its limit: N is small at quick sizes"
    assert hint in scoreboard([hpl(0.57)], quick=True)
    assert hint not in scoreboard([hpl(0.57)])
    assert "HPL reaches" not in scoreboard([hpl(0.71)], quick=True)


def test_the_last_lines_are_the_page_and_at_quick_sizes_the_next_commands() -> None:
    assert scoreboard([hpl(0.8)], page="out/report.html").endswith("\nReport: out/report.html\n")
    following = "Next: mxpeak run hpl (full size), mxpeak help submit (list submissions)\n"
    assert scoreboard([hpl(0.8)], page="out/report.html", quick=True).endswith(f"Report: out/report.html\n{following}")


def test_a_note_names_the_flag_for_runs_that_can_be_submitted() -> None:
    rules = {"admissible": False, "violations": [{"rule": "time", "text": "1 s"}]}
    short = [Result(benchmark=name, status="valid", rules=rules) for name in ("hpg-mxp", "hpcg")]
    said = "HPCG and HPG-MxP results can be submitted only from runs of 30 minutes (--rt 30m)."
    assert said in " ".join(scoreboard(short).split())


def test_no_line_of_rows_and_notes_is_wider_than_80_columns() -> None:
    own = Result(
        benchmark="a-benchmark-of-ones-own",
        status="slow",
        result={"rate_flops": 1.25e18, "fraction_of_limit": 0.001, "emulated": True,
                "limit": {"name": "FP16 GEMM with a long name, k 512", "rate_flops": 9.99e17}},
    )  # fmt: skip
    mixed = Result(
        benchmark="hpl-mxp",
        status="slow",
        result={**own.result, "limit": {"name": "FP16 GEMM", "rate_flops": 9.99e17}},
        machine={"cpu_model": "AMD EPYC 7A53 Optimized 3rd Generation 64-Core Processor", "nodes": 9408},
    )
    text = scoreboard(
        [mixed, hpl(0.5), own, *NORMS, norm("fro", 9.99e9, 25e9, drift=9.99, drifted=True)],
        sizes=["quick sizes", "1 h 02 min"],
        quick=True,
    )
    assert max(map(len, text.splitlines())) <= 80
    assert "25000000.0 × hpl" in text, "if a row has no room for it, it is a note"
    assert "hpl-mxp: the precision is rounded in software, so the rate is that of fp32.\n" in text


def test_the_energy_of_hpl_mxp_is_compared_with_that_of_hpl() -> None:
    mixed = Result(benchmark="hpl-mxp", status="valid", result={"rate_flops": 4e11})
    first = hpl(0.8, telemetry={"energy": {"gflops_per_watt": 2.0}})
    assert "J(HPL-MxP)" not in scoreboard([first, mixed])
    mixed.telemetry = {"energy": {"gflops_per_watt": 8.0}}
    assert "J(HPL-MxP)/J(HPL): 0.250, in joules per flop." in scoreboard([first, mixed])
    mixed.status = "invalid"
    assert "J(HPL-MxP)" not in scoreboard([first, mixed])


def hpg_mxp(solves: int | None, double_solves: int | None, penalty: float | None = None, **joules: float) -> Result:
    return Result(
        benchmark="hpg-mxp",
        status="valid",
        problem={"rows": 4096, "ranks": 2, "max_iterations": 300, "restart": 30},
        result={"rate_flops": 1e9 if penalty else None, "solves": solves, "double_solves": double_solves},
        validation={"passed": True, "penalty": penalty},
        telemetry={part: {"joules": value} for part, value in joules.items()},
    )


@pytest.mark.parametrize(
    ("penalty", "shown"), [(1.0, "0.600 per iteration."), (0.75, "0.600 per iteration, 0.800 to the same residual.")]
)
def test_the_energies_of_mixed_and_double_solves_are_compared(penalty: float, shown: str) -> None:
    """Three mixed solves of 60 J, and two double solves of 100 J."""
    both = hpg_mxp(3, 2, penalty, energy=180.0, double_energy=200.0)
    assert f"J(mixed)/J(double) of HPG-MxP: {shown}" in " ".join(scoreboard([both]).split())
    del both.telemetry["double_energy"]
    assert "J(mixed)" not in scoreboard([both])


def test_solvers_that_ran_alone_are_compared_if_their_problems_are_equal() -> None:
    mixed, double = hpg_mxp(3, None, energy=180.0), hpg_mxp(None, 2, energy=200.0)
    assert "J(mixed)/J(double) of HPG-MxP: 0.600 per iteration." in scoreboard([double, mixed])
    assert "J(mixed)" not in scoreboard([mixed])
    double.problem["rows"] = 4097
    assert "J(mixed)" not in scoreboard([double, mixed])


def test_no_case_is_marked_as_the_best_of_equal_ones() -> None:
    problem = {"n": 1000, "nb": 64, "P": 1, "Q": 1}
    figures = [{"rate_flops": rate, "time_s": 1.0, "limit": None} for rate in (1e9, 2e9)]
    cases = [Result(benchmark="hpl", status="valid", problem=problem, result=each) for each in figures]
    assert "*" not in sweep(cases)
    other = Result(benchmark="hpl", status="valid", problem={**problem, "nb": 32}, result=figures[1])
    assert "PASSED *" in sweep([cases[0], other])
