"""Test HPL-MxP with random butterflies and with partial pivoting: solution, check, reports, and every grid."""

from __future__ import annotations

import io
import os
import re
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from mxpeak.bench.hpl_mxp import run as hpl_mxp
from mxpeak.bench.hpl_mxp.config import PIVOTING, HplMxpConfig
from mxpeak.bench.hpl_mxp.rules import remarks, violations
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.errors import UsageError
from mxpeak.records import Result, document
from mxpeak.report.html import html_report
from mxpeak.report.mxp_text import MxpText
from mxpeak.report.submission import submission
from mxpeak.report.text import verdict
from tests.support.result_file import VALIDATOR

SMALL: dict[str, Any] = {"warmup": "none", "threads": 1, "kernels": "host"}
GRIDS = [(1, 1), (2, 1), (1, 3), (2, 3)]


def solved(shape: tuple[int, int] = (1, 1), n: int = 97, nb: int = 8, **settings: Any) -> Result:
    config = HplMxpConfig(n=(n,), nb=(nb,), P=(shape[0],), Q=(shape[1],), **SMALL, **settings)
    results: list[list[Result]] = run_ranks(shape[0] * shape[1], lambda comm: hpl_mxp.run(config, comm, origins={}))
    return results[0][0]


@pytest.mark.parametrize("pivoting", ["butterfly", "partial"])
@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16", "fp16"])
def test_every_grid_solves_and_proves_the_same_factors(pivoting: str, precision: str) -> None:
    results = [solved(shape, pivoting=pivoting, precision=(precision,)) for shape in GRIDS]
    for result in results:
        VALIDATOR.validate(document([result]))
        assert result.status == "valid"
        assert result.validation["lu_proof"]["passed"]
        assert abs(result.validation["iterations"] - results[0].validation["iterations"]) <= 1
        # the factors differ by the rounding of fp32 sums, which the growth shows in its largest entry
        assert result.problem["growth"] == pytest.approx(results[0].problem["growth"], rel=97 * 2.0**-24)
        assert result.rules["admissible"]


@pytest.mark.parametrize(("n", "nb"), [(2, 4), (3, 1), (37, 64), (83, 16), (128, 32)])
@pytest.mark.parametrize("pivoting", ["butterfly", "partial"])
def test_ragged_and_prime_orders_are_solved(n: int, nb: int, pivoting: str) -> None:
    depth = {"butterfly_depth": 1} if n < 4 and pivoting == "butterfly" else {}
    for shape in ((1, 1), (2, 3)):
        found = solved(shape, n, nb, pivoting=pivoting, scaling="auto", **depth)
        assert found.validation["passed"]
        assert found.validation["residual"] <= 1.0


def test_partial_pivoting_solves_the_matrix_that_needs_it() -> None:
    """Its entries grow without row swaps; with them, the factors are those of HPL."""
    grown = {name: solved((2, 2), 197, pivoting=name, generator=("hpl",), mode="explore") for name in PIVOTING}
    growth = {name: result.problem["growth"] for name, result in grown.items()}
    # about N^(2/3) with row swaps; without them, the smallest of N random pivots is about 1/N
    assert growth["partial"] < 197 ** (2 / 3) < 197 < min(growth["none"], growth["butterfly"])
    assert grown["partial"].validation["passed"]
    steps = {name: result.validation["iterations"] for name, result in grown.items()}
    assert steps["partial"] <= min(steps.values())
    broken = {each["rule"]: each["source"] for each in grown["partial"].rules["violations"]}
    assert broken == {"generator": "published", "mode": "published", "stability": "mxpeak"}, "the matrix breaks rules"


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("pivoting", ["butterfly", "partial"])
def test_the_kernels_of_devices_solve_the_same_system(ranks: int, pivoting: str) -> None:
    if not os.environ.get("CI"):  # there, a missing torch is a failure
        pytest.importorskip("torch", reason="PyTorch is not installed")
    wanted: dict[str, Any] = {
        **SMALL,
        "kernels": "torch",
        "device": "cpu",
        "precision": ("bf16",),
        "pivoting": pivoting,
    }
    config = HplMxpConfig(n=(97,), nb=(8,), P=(ranks,), Q=(1,), **wanted)
    results: list[list[Result]] = run_ranks(ranks, lambda comm: hpl_mxp.run(config, comm, origins={}))
    result, host = results[0][0], solved((ranks, 1), pivoting=pivoting, precision=("bf16",))
    assert result.status == "valid"
    assert result.problem["growth"] == pytest.approx(host.problem["growth"], rel=97 * 2.0**-24)
    assert abs(result.validation["iterations"] - host.validation["iterations"]) <= 1


def test_a_missing_proof_is_found_after_a_wrong_transformation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Factors of A without the butterflies are not those of U^T A V, though they solve the system."""
    from mxpeak.solvers.butterfly import ButterflyPair

    monkeypatch.setattr(ButterflyPair, "transform", lambda pair, A: None)
    found = solved((2, 2), pivoting="butterfly")
    assert not found.validation["lu_proof"]["passed"]
    assert not found.rules["admissible"]


@pytest.mark.parametrize("pivoting", ["butterfly", "partial"])
def test_the_report_states_the_pivoting_its_time_and_the_rules(pivoting: str) -> None:
    result = solved((1, 2), pivoting=pivoting)
    assert result.problem["pivoting"] == pivoting
    assert result.problem["butterfly_depth"] == (2 if pivoting == "butterfly" else None)
    names = ("butterfly",) if pivoting == "butterfly" else ("rfact", "laswp")
    assert result.result["pivoting_time_s"] == sum(result.phases[name]["max_s"] for name in names) > 0.0
    assert result.result["pivoting_time_s"] < result.result["lu_time_s"], "it is part of the timed factorization"
    (remark,) = result.rules["remarks"]
    assert remark["covered"] == (pivoting == "partial")
    method = {"butterfly": "random butterflies of depth 2", "partial": "partial pivoting"}[pivoting]
    own = io.StringIO()
    MxpText(own, {}, datetime.now(UTC)).case(result)
    page, algorithm = html_report(document([result])), submission(result, [], "HPL-MxP.out")["algorithm"]
    for text in (verdict(result), own.getvalue(), algorithm):
        assert method in text
    for text in (verdict(result), own.getvalue(), page):
        assert remark["text"] in text
    assert ("without pivoting" in algorithm) == (pivoting == "butterfly")


def test_without_pivoting_nothing_is_added() -> None:
    result = solved()
    assert (result.problem["pivoting"], result.problem["butterfly_depth"]) == ("none", None)
    assert result.result["pivoting_time_s"] == 0.0
    assert "remarks" not in result.rules
    assert "without pivoting" in submission(result, [], "HPL-MxP.out")["algorithm"]


def test_a_small_diagonal_is_stable_only_with_row_swaps() -> None:
    config = HplMxpConfig(n=(400,), diagonal_scale=(0.3,))
    for pivoting, names in (("none", {"stability"}), ("butterfly", {"stability"}), ("partial", set())):
        case = next(iter(HplMxpConfig(n=config.n, diagonal_scale=config.diagonal_scale, pivoting=pivoting).cases(1)))
        found = violations(case, iterations=3, residual=0.1, passed=True, proof_passed=True, growth=2.0)
        assert {each.rule for each in found} == names
    assert remarks(next(iter(config.cases(1)))) == {}


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"n": (7,), "pivoting": "butterfly", "butterfly_depth": 3}, "2^3 = 8, but N = 7; use --butterfly-depth 2"),
        ({"n": (1,), "pivoting": "butterfly"}, "N = 1; use --pivoting none"),
        ({"n": (64,), "butterfly_depth": 3}, "not to none; remove --butterfly-depth, or use --pivoting butterfly"),
        ({"n": (2**24,), "pivoting": "partial"}, r"2^24 = 16777216, but N = 16777216; use a smaller N"),
        ({"n": (64,), "pivoting": "partial", "abft": True}, "remove --abft, or use --pivoting none or butterfly"),
    ],
)
def test_impossible_settings_are_refused_with_advice(settings: dict[str, Any], text: str) -> None:
    def body(comm: Any) -> str:
        with pytest.raises(UsageError) as error:
            hpl_mxp.run(HplMxpConfig(nb=(8,), **SMALL, **settings), comm, origins={})
        return str(error.value)

    (found,) = run_ranks(1, body)
    assert text in found


def test_checksums_watch_the_transformed_matrix() -> None:
    result = solved((2, 2), 211, 8, pivoting="butterfly", abft=True)
    assert result.status == "valid"
    assert result.telemetry["abft"]["checks"] > 0
    assert result.telemetry["abft"]["found"] == 0
    assert re.search(
        rf"\n  abft: {result.telemetry['abft']['checks']} checks in .* s, no faults found\n", verdict(result)
    )
    result.telemetry["abft"] |= {"found": 1, "corrected": 1}
    assert " s, 1 fault found, 1 corrected\n" in verdict(result)


def test_the_text_names_a_scaling_and_a_refinement_that_are_not_the_defaults() -> None:
    result = solved((1, 1), 60, 16, scaling="auto", refine="classical")
    assert "\n  rows and columns scaled before the LU, classical refinement\n" in verdict(result)
    assert "classical" not in verdict(solved((1, 1), 60, 16))


def test_the_solution_is_that_of_the_untransformed_system() -> None:
    norms = [solved((2, 2), 83, 8, pivoting=name).validation["norms"]["x_inf"] for name in PIVOTING]
    # backward errors below N·u, times the condition number of about 200
    assert np.ptp(norms) <= 83 * 2.0**-53 * 1e4 * norms[0]
