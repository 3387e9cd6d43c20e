"""Test that broken rules of HPL-MxP are named with their arithmetic, and that predicted GMRES steps are not fitted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from mxpeak.bench.hpl_mxp.config import HplMxpCase
from mxpeak.bench.hpl_mxp.rules import (
    convergence_factor,
    diagonal_scale,
    foreseen,
    predicted_steps,
    refused,
    violations,
)
from mxpeak.bench.rules import Violation, break_rule, ruling
from mxpeak.configs.lu import GENERATORS
from mxpeak.errors import UsageError
from mxpeak.layout.generators import generator
from mxpeak.precision import PRECISIONS

U = 2.0**-53


def case(**values: Any) -> HplMxpCase:
    return HplMxpCase(**{"n": 4000, "nb": 256, "P": 1, "Q": 1, **values})


def broken(wanted: HplMxpCase, **outcome: Any) -> list[str]:
    good: dict[str, Any] = {"iterations": 3, "residual": 0.5, "passed": True, "proof_passed": True}
    return [one.rule for one in violations(wanted, **{**good, **outcome})]


# --- how much the LU is needed ----------------------------------------------------------------------------------


def matrix(name: str, n: int, scale: float) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(7)
    if name == "gaussian":
        A = rng.standard_normal((n, n)) / math.sqrt(3)
    else:
        A = rng.uniform(-1, 1, (n, n)) * (0.5 if name == "icl" else 1.0)
    off_diagonal = np.abs(A).sum(axis=1) - np.abs(np.diag(A))
    diagonals = {"ddd": scale * off_diagonal, "dominant-n": float(n), "icl": off_diagonal}
    np.fill_diagonal(A, diagonals.get(name, scale * math.sqrt(n)))
    return A


def measured_steps(A: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> int:
    """Return the steps of unpreconditioned GMRES with reorthogonalization until the scaled residual is below 16."""
    n = len(b)
    A_inf, beta = np.abs(A).sum(axis=1).max(), np.linalg.norm(b)
    V, H = (b / beta)[None], np.zeros((n + 1, n))
    for k in range(n):
        w = A @ V[k]
        for _ in range(2):
            h = V @ w
            w -= h @ V
            H[: k + 1, k] += h
        H[k + 1, k] = np.linalg.norm(w)
        y = np.linalg.lstsq(H[: k + 2, : k + 1], beta * np.eye(k + 2)[0], rcond=None)[0]
        x = y @ V
        eta = np.abs(b - A @ x).max() / ((A_inf * np.abs(x).max() + np.abs(b).max()) * n * U)
        if eta < 16:
            return k + 1
        V = np.vstack([V, w / H[k + 1, k]])
    return n


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        ("sqrt-n", 2.0),
        ("sqrt-n", 1.0),
        ("sqrt-n", 0.8),
        ("gaussian", 1.0),
        ("ddd", 2 / math.sqrt(400)),
        ("dominant-n", None),
        ("icl", None),
    ],
)
def test_the_predicted_steps_are_those_that_gmres_takes(name: str, scale: float | None):
    """The error is at most two steps or 10 %: the law holds for large n, and matrices of order 400 vary by one step."""
    wanted = case(n=400, generator=name, diagonal_scale=scale)
    b = np.random.default_rng(8).uniform(-1, 1, 400)
    steps = measured_steps(matrix(name, 400, scale or 1.0), b)
    predicted = predicted_steps(wanted)
    assert predicted is not None
    assert abs(predicted - steps) <= max(2, steps / 10)


def test_the_default_system_takes_many_times_what_the_rules_allow_and_at_any_size_more():
    assert predicted_steps(case(n=1000)) == pytest.approx(180, rel=0.03)  # 179 and 180 were measured
    for name in ("sqrt-n", "gaussian", "ddd"):
        for n in (51, 100, 10**4, 10**6, 10**8):
            steps = predicted_steps(case(n=n, generator=name))
            assert steps is not None
            assert steps > 50


@pytest.mark.parametrize("name", ["sqrt-n", "gaussian", "ddd"])
def test_the_diagonal_that_is_judged_is_the_one_that_is_generated(name: str):
    system, wanted = generator(name, 4000), case(generator=name)
    if system.row_sum is not None:
        assert system.row_sum == pytest.approx(diagonal_scale(wanted), rel=1e-3)  # 1/sqrt(n) or 1/sqrt(n-1)
    else:
        assert system.diagonal == pytest.approx(diagonal_scale(wanted) * math.sqrt(4000))


def test_a_larger_matrix_of_the_same_kind_is_easier_because_the_check_is_scaled_by_n():
    steps = [predicted_steps(case(n=n, diagonal_scale=0.75)) for n in (10**4, 10**5, 10**6)]
    assert steps == sorted(steps, reverse=True)  # type: ignore[type-var]
    assert "lu-needed" not in broken(case(n=10**5, diagonal_scale=0.75))
    assert "lu-needed" in broken(case(n=10**6, diagonal_scale=0.75))


def test_theta_and_c_mean_the_same_diagonal_on_average():
    ddd, sqrt_n = case(generator="ddd"), case(generator="sqrt-n")
    assert diagonal_scale(sqrt_n) == 0.625
    assert diagonal_scale(ddd) == pytest.approx(1.25 / math.sqrt(4000))
    assert convergence_factor(ddd) == pytest.approx(convergence_factor(sqrt_n))
    assert convergence_factor(sqrt_n) == pytest.approx(1 / math.sqrt(3) / 0.625)


@pytest.mark.parametrize("name", ["fasi-higham", "hpl"])
def test_where_no_circular_law_holds_nothing_is_predicted(name: str):
    assert convergence_factor(case(generator=name)) is None
    assert predicted_steps(case(generator=name)) is None


def test_a_disc_that_reaches_the_origin_has_a_factor_but_no_number_of_steps():
    wanted = case(diagonal_scale=0.5)
    factor = convergence_factor(wanted)
    assert factor is not None
    assert factor > 1.0
    assert predicted_steps(wanted) is None
    assert broken(wanted) == ["stability"]


def test_no_generator_breaks_the_prediction_at_any_order():
    for name in GENERATORS:
        for n in (1, 2, 49, 10**8):
            for scale in (None, 0.0, 0.625, 1e6):
                steps = predicted_steps(case(n=n, generator=name, diagonal_scale=scale))
                assert steps is None or 0 <= steps <= n


# --- the rules --------------------------------------------------------------------------------------------------


def test_a_run_that_keeps_every_rule_is_admissible():
    assert broken(case()) == []
    assert ruling([]) == {"admissible": True, "meaningful": True, "violations": []}


@pytest.mark.parametrize(
    ("wanted", "outcome", "rules"),
    [
        (case(n=1000, diagonal_scale=1.0), {}, ["lu-needed"]),  # the scaling by sqrt(N) of the paper itself
        (case(n=10**6, diagonal_scale=1.0), {}, ["lu-needed"]),
        (case(generator="fasi-higham"), {"unpreconditioned_steps": 13}, ["lu-needed"]),
        (case(diagonal_scale=0.5), {"growth": 1e3}, ["stability", "stability"]),
        (case(n=40), {}, ["lu-needed"]),
    ],
)
def test_what_only_mxpeak_asks_for_keeps_a_result_admissible_but_not_meaningful(
    wanted: HplMxpCase, outcome: dict[str, Any], rules: list[str]
):
    good: dict[str, Any] = {"iterations": 3, "residual": 0.5, "passed": True, "proof_passed": True}
    section = ruling(violations(wanted, **{**good, **outcome}))
    assert section["admissible"]
    assert not section["meaningful"]
    assert [(one["rule"], one["source"]) for one in section["violations"]] == [(rule, "mxpeak") for rule in rules]


@pytest.mark.parametrize(
    ("wanted", "outcome"),
    [
        (case(precision="fp8", mode="explore"), {}),
        (case(mode="explore"), {}),
        (case(generator="dominant-n"), {}),
        (case(generator="hpl"), {}),
        (case(), {"iterations": 50, "residual": 17.0, "passed": False}),
        (case(), {"residual": 17.0, "passed": False}),
        (case(), {"proof_passed": False}),
    ],
)
def test_a_broken_published_rule_is_never_admissible(wanted: HplMxpCase, outcome: dict[str, Any]):
    good: dict[str, Any] = {"iterations": 3, "residual": 0.5, "passed": True, "proof_passed": True}
    section = ruling(violations(wanted, **{**good, **outcome}))
    assert not section["admissible"]
    assert "published" in [one["source"] for one in section["violations"]]


def test_a_rule_that_is_broken_after_the_run_changes_the_verdict_of_its_source_alone():
    for source, key in (("published", "admissible"), ("mxpeak", "meaningful")):
        rules = ruling([])
        break_rule(rules, Violation("abft", "a fault was left", source))
        assert rules == {
            "admissible": source != "published",
            "meaningful": source != "mxpeak",
            "violations": [{"rule": "abft", "text": "a fault was left", "source": source}],
        }
        assert not rules[key]


@pytest.mark.parametrize("precision", [name for name in PRECISIONS if name != "fp8"])
def test_every_format_of_sixteen_bits_and_more_is_admissible(precision: str):
    assert broken(case(precision=precision)) == []


def test_eight_bits_are_refused_before_an_official_run_and_labelled_in_exploration():
    with pytest.raises(UsageError, match=r"fp8 has 8 bits.* at least 16; use --mode explore"):
        refused(case(precision="fp8"))
    refused(case(precision="fp16"))
    refused(case(precision="fp8", mode="explore"))
    assert broken(case(precision="fp8", mode="explore")) == ["mode", "precision"]


def test_exploration_is_never_admissible():
    assert broken(case(mode="explore")) == ["mode"]


@pytest.mark.parametrize("name", GENERATORS)
def test_the_generators_of_the_rules_are_admissible_and_the_others_name_them(name: str):
    named = [one for one in foreseen(case(generator=name)) if one.rule == "generator"]
    if name in ("sqrt-n", "ddd", "gaussian", "fasi-higham"):
        assert named == []
    else:
        assert named[0].text.startswith(name)
        assert named[0].text.endswith("use --generator sqrt-n, ddd, gaussian or fasi-higham")
        assert named[0].source == "published"


def test_a_system_that_needs_no_lu_says_how_few_steps_and_which_scale_needs_one():
    (violation,) = foreseen(case(n=1000, diagonal_scale=1.0))
    assert violation.rule == "lu-needed"
    assert violation.text == (
        "at N = 1000 GMRES without the factors reduces the residual by rho = 0.577 per step and converges in "
        "about 43; mxpeak requires a system that needs more than 50; with the default --diagonal-scale, 0.625, "
        "it takes about 177"
    )
    assert "lu-needed" in [violation.rule for violation in foreseen(case(generator="icl"))]
    assert "lu-needed" in [violation.rule for violation in foreseen(case(generator="dominant-n"))]


def test_an_lu_that_grew_too_far_is_not_stable_without_pivoting():
    found = violations(case(n=400), iterations=2, residual=0.1, passed=True, proof_passed=True, growth=21.0)
    assert [one.rule for one in found] == ["stability"]
    assert "21" in found[0].text
    assert violations(case(n=400), iterations=2, residual=0.1, passed=True, proof_passed=True, growth=19.0) == []


def test_fasi_higham_needs_no_lu_and_its_run_says_after_how_many_steps():
    wanted = case(generator="fasi-higham")
    (violation,) = foreseen(wanted)
    assert violation.rule == "lu-needed"
    assert "GMRES without the factors passes the check in 12 to 23 steps" in violation.text
    assert violation.text.endswith("use --generator sqrt-n, ddd or gaussian")
    good: dict[str, Any] = {"iterations": 3, "residual": 0.5, "passed": True, "proof_passed": True}
    (found,) = violations(wanted, **good, unpreconditioned_steps=13)
    assert found.rule == "lu-needed"
    assert "passes the check after 13 steps, but mxpeak requires a system that needs more than 50" in found.text
    assert violations(wanted, **good, unpreconditioned_steps=None) == []  # a run with more than fifty measured steps


def test_a_matrix_of_fifty_rows_needs_no_lu_whatever_it_is():
    for name in ("sqrt-n", "fasi-higham"):
        (one,) = foreseen(case(n=50, generator=name))
        assert one.rule == "lu-needed"
        assert one.text.endswith("; use an N above 50")


def test_fifty_steps_are_allowed_if_they_suffice():
    assert broken(case(), iterations=50) == []
    assert broken(case(), iterations=50, residual=17.0, passed=False) == ["iterations", "backward-error"]
    assert broken(case(), iterations=49, residual=17.0, passed=False) == ["backward-error"]


@pytest.mark.parametrize("residual", [16.0, 1e9, math.inf, math.nan])
def test_a_backward_error_that_is_not_below_sixteen_breaks_the_rule(residual: float):
    assert broken(case(), residual=residual, passed=False) == ["backward-error"]


def test_a_looser_threshold_breaks_the_rule_even_where_the_error_is_small():
    assert broken(case(threshold=16.5), residual=0.1) == ["backward-error"]
    assert broken(case(threshold=100.0), residual=50.0) == ["backward-error", "backward-error"]


def test_a_run_that_missed_its_own_tighter_threshold_is_not_admissible():
    assert broken(case(threshold=1.0), residual=1.5, passed=False) == ["backward-error"]
    assert broken(case(threshold=1.0), residual=0.5) == []


def test_factors_that_are_not_shown_to_be_an_lu_break_the_rule():
    assert broken(case(), proof_passed=False) == ["lu-proof"]


def test_every_broken_rule_is_in_the_section():
    wanted = case(generator="icl", precision="fp8", mode="explore", threshold=20.0)
    found = violations(wanted, iterations=50, residual=math.nan, passed=False, proof_passed=False)
    section = ruling(found)
    assert not section["admissible"]
    assert [one["rule"] for one in section["violations"]] == [
        "mode",
        "precision",
        "generator",
        "lu-needed",
        "backward-error",
        "iterations",
        "backward-error",
        "lu-proof",
    ]
