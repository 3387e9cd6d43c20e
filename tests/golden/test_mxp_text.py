"""Test that HPL-MxP's result block contains the lines that existing scripts search for, and no misleading ones."""

from __future__ import annotations

import io
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from mxpeak.records import Result
from mxpeak.report.mxp_text import MxpText

HERE = Path(__file__).parent

#: Lines of a published log of NVIDIA's benchmark, with the EPS of the rules instead of the log's 2.000000E-16.
PUBLISHED = """\
 ****** HPL MxP Result    ****** 
    EPS           . . . . . . . . . . . . . . . . .          =    1.110223E-16
    Threshold     . . . . . . . . . . . . . . . . .          =    1.600000E+01
  ||Ax-b||_oo     . . . . . . . . . . . . . . . . .          =    8.737455E-14
  ||A   ||_oo     . . . . . . . . . . . . . . . . .          =    2.594294E+05
  ||x   ||_oo     . . . . . . . . . . . . . . . . .          =    7.799867E-06
  ||b   ||_oo     . . . . . . . . . . . . . . . . .          =    9.999990E-01
  ||Ax-b||_oo / (EPS * (||A||_oo * ||x||_oo + ||b||_oo) * N) =    5.599413E-04 ...... PASSED
    N = 258048, NB = 1024, NPROW = 4, NPCOL = 2, SLOPPY-TYPE = 2
       GFLOPS = 4.3468e+05, per GPU =   54335.00 ------ The HPL-MxP performance to report
    LU GFLOPS = 2.4940e+06, per GPU =  311750.00 ------ The performance excluding the iterative solver part
 ****** HPL MxP Result    ****** 
"""  # noqa: W291  (the banner ends with a space)


PROBLEM = {
    "n": 258048, "nb": 1024, "P": 4, "Q": 2, "precision": "fp16", "generator": "sqrt-n", "refine": "gmres", "seed": 100,
    "variant": "WR1 sqrt-n fp16", "generate_time_s": 1.75,
}  # fmt: skip


def result_of(*, passed: bool = True, **sections: Any) -> Result:
    violations = [] if passed else [{"rule": "backward-error", "text": "the scaled backward error 17 is not below 16"}]
    values: dict[str, Any] = {
        "benchmark": "hpl-mxp",
        "status": "valid" if passed else "invalid",
        "result": {
            "rate_flops": 4.3468e14,
            "lu_rate_flops": 2.494e15,
            "time_s": 26.353,
            "lu_time_s": 4.593,
            "refine_time_s": 21.7,
            "emulated": False,
        },
        "validation": {
            "passed": passed,
            "residual": 5.599413e-4 if passed else 17.0,
            "threshold": 16.0,
            "iterations": 2,
            "norms": {"residual": 8.737455e-14, "A_inf": 2.594294e5, "x_inf": 7.799867e-6, "b_inf": 0.999999},
            "history": [4.9e5, 0.86, 5.599413e-4],
        },
        "rules": {"mode": "official", "admissible": passed, "violations": violations},
        "problem": PROBLEM,
    }
    return Result(**{**values, **sections})


def report(*results: Result | None) -> str:
    stream = io.StringIO()
    text = MxpText(stream, {}, datetime.now())
    text.header()
    for result in results:
        if result is None:
            text.skipped()
        else:
            text.case(result)
    ran = [result for result in results if result is not None]
    passed = sum(result.passed for result in ran)
    text.footer(passed, len(ran) - passed, len(results) - len(ran))
    return stream.getvalue()


def test_the_report_is_the_golden_one():
    assert report(result_of(), result_of(passed=False), None) == (HERE / "mxp.txt").read_text()


def test_the_block_is_the_published_one_but_for_its_eps():
    assert PUBLISHED in report(result_of())


def test_the_first_gflops_is_the_rate_to_report():
    found = re.search(r"\bGFLOPS\s*=\s*([+-]?[0-9][0-9,]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)", report(result_of()))
    assert found
    assert float(found[1]) == 4.3468e5


@pytest.mark.parametrize("unit", [r"(?:peta)?flop/s", r"pflops?", r"tflops?"])
def test_no_other_number_has_a_unit_that_scripts_would_take_for_the_rate(unit: str):
    assert not re.search(rf"[0-9]\s*{unit}", report(result_of(), result_of(passed=False), None), re.IGNORECASE)


def verdicts(text: str) -> list[str]:
    """Return how an existing script reads each case: it searches for words of failure up to the next test."""
    blocks = re.split(r"test\s+\d+", text)[1:]
    outcomes = []
    for block in blocks:
        if match := re.search(r"HPL MxP Result(.+?)(?:test loop|test\s+\d+|\Z)", block, re.IGNORECASE | re.DOTALL):
            bad = re.search(r"\b(fail|failed|incorrect|wrong)\b", match[1], re.IGNORECASE)
            outcomes.append("failed" if bad else "passed")
    return outcomes


def test_each_case_reads_as_passed_or_failed_in_any_context():
    inadmissible = {"mode": "explore", "admissible": False, "violations": [{"rule": "mode", "text": "exploring"}]}
    text = report(result_of(passed=False), result_of(), result_of(rules=inadmissible), None)
    assert verdicts(text) == ["failed", "passed", "passed"]


def test_broken_rules_follow_the_block():
    text = report(result_of(passed=False))
    assert text.split(" ****** HPL MxP Result    ****** \n")[2].startswith(
        "NOT ADMISSIBLE\n  backward-error: the scaled backward error 17 is not below 16\n"
    )


def test_an_own_test_follows_an_admissible_verdict_and_reads_as_passed():
    violations = [{"rule": "lu-needed", "text": "passes after about 43 steps", "source": "mxpeak"}]
    rules = {"mode": "official", "admissible": True, "meaningful": False, "violations": violations}
    text = report(result_of(rules=rules))
    assert "\nADMISSIBLE\n  own test lu-needed: passes after about 43 steps\n" in text
    assert verdicts(text) == ["passed"]


def test_a_matrix_of_ddd_is_defined_next_to_its_name():
    text = report(result_of(problem={**PROBLEM, "generator": "ddd", "diagonal_scale": 0.0125}))
    assert "\nddd is a_ii = 0.0125 * sum of |a_ij|, j != i: mxpeak's definition of" in text


@pytest.mark.parametrize(("precision", "sloppy"), [("fp8", 1), ("fp16", 2), ("bf16", 2), ("fp32", 4), ("fp64", 8)])
def test_the_sloppy_type_is_the_size_of_the_format(precision: str, sloppy: int):
    assert f"SLOPPY-TYPE = {sloppy}\n" in report(result_of(problem={**PROBLEM, "precision": precision}))


def test_an_emulated_rate_says_whose_it_is():
    emulated = {"rate_flops": 1e9, "emulated": True}
    assert "fp16 (rounded in software: the rate is FP32's)" in report(result_of(result=emulated))


def test_what_was_not_measured_has_no_line_and_what_is_not_finite_is_nan():
    unmade = {key: value for key, value in PROBLEM.items() if key != "generate_time_s"}
    bare = result_of(result={"rate_flops": 1e9}, problem=unmade, validation={"passed": False, "residual": None})
    text = report(bare)
    assert "seconds" not in text
    assert "LU GFLOPS" not in text
    assert re.search(r"\* N\) = +NAN \.{6} FAILED", text)
