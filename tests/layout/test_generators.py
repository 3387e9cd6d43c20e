"""Test that each generator of HPL-MxP creates the matrix of its name, and the condition number of fasi-higham."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import inf, nan, sqrt

import numpy as np
import pytest

from mxpeak.configs.lu import GENERATORS
from mxpeak.errors import UsageError
from mxpeak.layout import lcg
from mxpeak.layout.entries import Entries
from mxpeak.layout.generators import (
    RATIO,
    Generator,
    generator,
    unit_factors_beta,
    unit_factors_condition,
    unit_factors_inverse_norm,
    unit_factors_norm,
)
from tests.support.roundoff import U
from tests.support.turns import for_each


def drawn(entries: Entries, columns: int) -> np.ndarray:
    return np.array([[entries.value(i, j) for j in range(columns)] for i in range(entries.n)])


def dense(system: Generator) -> np.ndarray:
    A = drawn(system.entries, system.entries.n)
    if system.diagonal is not None:
        np.fill_diagonal(A, system.diagonal)
    if system.row_sum is not None:
        np.fill_diagonal(A, 0.0)
        np.fill_diagonal(A, system.row_sum * np.abs(A).sum(axis=1))
    return A


def unit_factors(n: int, beta: float) -> np.ndarray:
    return drawn(Entries("unit-factors", n, alpha=RATIO * beta, beta=beta), n)


def off_diagonal(A: np.ndarray) -> np.ndarray:
    return A[~np.eye(len(A), dtype=bool)]


def test_every_generator_makes_a_system_that_lu_without_pivoting_solves() -> None:
    for name, n in product(GENERATORS, [1, 2, 3, 50]):
        made = generator(name, n)
        A, b = dense(made), drawn(made.right_side, 1)[:, 0]
        LU = A.copy()
        for k in range(n - 1):
            LU[k + 1 :, k] /= LU[k, k]
            LU[k + 1 :, k + 1 :] -= np.outer(LU[k + 1 :, k], LU[k, k + 1 :])
        L, R = np.tril(LU, -1) + np.eye(n), np.triu(LU)
        x = np.linalg.solve(R, np.linalg.solve(L, b))
        # backward error of an LU and two triangular solves: 3·n·u·|L||U|; the residual itself adds n·u·|A||x|,
        # and pivoting in the two solves adds as much
        bound = 5 * n * U * np.abs(L).dot(np.abs(R)).dot(np.abs(x)).max()
        assert np.abs(A @ x - b).max() <= bound + U, (name, n)


@for_each("name", ["sqrt-n", "ddd", "gaussian", "dominant-n", "hpl"])
def test_the_seed_decides_and_b_is_the_column_after_a(name):
    n = 7
    first, other = generator(name, n, seed=5), generator(name, n, seed=6)
    assert not np.array_equal(drawn(first.entries, n), drawn(other.entries, n))
    column_after = [first.entries.value(i, n) for i in range(n)]
    assert [first.right_side.value(i, 0) for i in range(n)] == column_after


def test_hpl_is_netlib_hpls_augmented_matrix():
    n = 6
    system = generator("hpl", n)
    assert (system.diagonal, system.row_sum) == (None, None)
    netlib = [[lcg.value(lcg.state(100, 1 + i + j * n)) for j in range(n + 1)] for i in range(n)]
    assert np.array_equal(np.hstack([dense(system), drawn(system.right_side, 1)]), netlib)


def test_icl_draws_by_columns_from_seeds_1_and_2_and_puts_the_other_entries_sum_on_the_diagonal():
    n = 5
    system = generator("icl", n, seed=77)
    x, numbers = 1, []
    for _ in range(n * n):
        x = (6364136223846793005 * x + 1) % 2**64
        numbers.append(x / 2**64 - 0.5)
    A = np.reshape(numbers, (n, n)).T
    np.fill_diagonal(A, np.abs(A).sum(axis=1) - np.abs(np.diag(A)))
    assert np.allclose(dense(system), A, rtol=4 * n * U, atol=0)
    assert system.right_side.value(0, 0) == (6364136223846793005 * 2 + 1) % 2**64 / 2**64 - 0.5


@for_each("name", ["sqrt-n", "ddd", "dominant-n", "gaussian"])
def test_the_entries_have_mean_0_and_the_variance_of_u_minus_1_1(name):
    n = 100
    entries = off_diagonal(dense(generator(name, n)))
    # 9900 draws: the mean varies by sqrt(1/3/9900) = 0.0058, the variance by at most sqrt(2)/3/99.5 = 0.0047; 5 sigma
    assert abs(entries.mean()) < 5 * 0.0058
    assert abs(entries.var() - 1 / 3) < 5 * 0.0047
    assert (np.abs(entries).max() <= 1.0) == (name != "gaussian")


@for_each(("name", "value"), [("sqrt-n", 6.25), ("gaussian", 6.25), ("dominant-n", 100.0)])
def test_a_constant_diagonal_is_the_one_named(name, value):
    assert generator(name, 100).diagonal == value
    assert set(np.diag(dense(generator(name, 100)))) == {value}


def test_a_scale_replaces_five_eighths():
    assert generator("sqrt-n", 400, scale=1.0).diagonal == 20.0
    assert generator("gaussian", 400, scale=0.7).diagonal == pytest.approx(14.0)
    assert generator("ddd", 400, scale=0.25).row_sum == 0.25


def test_ddd_departs_from_dominance_to_about_five_eighths_of_the_root():
    n = 100
    A = dense(generator("ddd", n))
    others = np.abs(A).sum(axis=1) - np.diag(A)
    assert np.allclose(np.diag(A) / others, 0.125)
    # the mean of 99 magnitudes varies by 0.29/sqrt(99) = 0.029 around 1/2
    assert np.allclose(np.diag(A), 0.625 * sqrt(n), rtol=5 * 0.058)


@for_each("name", ["icl", "ddd"])
def test_a_single_entry_stays_as_drawn_where_a_sum_of_others_would_be_0(name):
    made = generator(name, 1)
    assert (made.row_sum, made.diagonal) == (None, None)
    assert dense(made)[0, 0] != 0.0


def test_icl_is_singular_for_its_seeds_up_to_order_3_and_only_there():
    systems = [generator("icl", n) for n in range(2, 30)]
    assert [m.row_sum for m in systems] == [None, None] + [1.0] * 26
    singular = []
    for m in systems:
        A = dense(replace(m, row_sum=1.0))
        if np.linalg.svd(A, compute_uv=False)[-1] < 10 * len(A) * U * np.abs(A).max():
            singular.append(len(A))
    assert singular == [2, 3]


# --- fasi-higham ------------------------------------------------------------------------------------------------


def test_the_norms_by_formula_are_those_of_the_matrix() -> None:
    for n, beta in product([1, 2, 3, 5, 20, 100, 237, 400], [1e-4, 2.5e-3, 1 / 64, 0.11, 1.0]):
        A = unit_factors(n, beta)
        # a row sum of n terms, each with an error of three roundings: (n+3)·u, and as much again for the formula
        assert unit_factors_norm(n, beta) == pytest.approx(np.linalg.norm(A, np.inf), rel=2 * (n + 3) * U), (n, beta)
        # the inverse from its factors, as products of nonnegative matrices: componentwise accurate
        strictly = np.tril(np.ones((n, n)), -1)
        inverse = np.linalg.inv(np.eye(n) - beta * strictly.T) @ np.linalg.inv(np.eye(n) - RATIO * beta * strictly)
        if unit_factors_inverse_norm(n, beta) < 1e12:
            assert unit_factors_inverse_norm(n, beta) == pytest.approx(np.linalg.norm(inverse, np.inf), rel=1e-11), (
                n,
                beta,
            )


def test_fasi_higham_has_the_condition_number_asked_for() -> None:
    for n, condition in product([100, 150, 250, 400], [1.5, 100.0, 1000.0, 1e6]):
        A = dense(generator("fasi-higham", n, condition=condition))
        # the inverse of a matrix with condition number k is known to about n·u·k
        assert np.linalg.cond(A, np.inf) == pytest.approx(condition, rel=n * U * condition + 1e-12), (n, condition)


@for_each("n", [5, 60, 200])
def test_fasi_higham_needs_no_row_interchange_and_does_not_grow(n):
    system = generator("fasi-higham", n)
    A = dense(system)
    assert system.entries.alpha == RATIO * system.entries.beta <= 1.0
    strictly = np.tril(np.ones((n, n)), -1)
    L, R = np.eye(n) - system.entries.alpha * strictly, np.eye(n) - system.entries.beta * strictly.T
    assert np.allclose(L @ R, A, rtol=0, atol=4 * n * U * np.abs(A).max())
    assert np.abs(R).max() <= np.abs(A).max()


@for_each("n", [2, 100, 10_000, 10**7])
def test_beta_gives_the_condition_back_at_any_order(n):
    for condition in (1.5, 1000.0, 1e15):
        beta = unit_factors_beta(n, condition)
        # one unit in the last place of beta changes (1+beta)^n by about n·beta·u <= 40·u; the formula adds a few more
        assert unit_factors_condition(n, beta) == pytest.approx(condition, rel=1000 * U)


def test_the_row_sums_of_a_million_rows_have_their_maximum_where_the_formula_looks():
    n = 1_000_000
    beta = unit_factors_beta(n, 1000.0)
    alpha, i = RATIO * beta, np.arange(n)
    below = np.concatenate([[0.0], np.cumsum(np.abs(1.0 - i * beta))[:-1]])
    sums = alpha * below + 1.0 + i * alpha * beta + (n - 1 - i) * beta * np.abs(1.0 - i * alpha)
    assert unit_factors_norm(n, beta) == pytest.approx(sums.max(), rel=1e-9)  # n·u of the running sum


# --- invalid arguments --------------------------------------------------------------------------------------------


@for_each("name", ["fasi-higham", "dominant-n", "icl", "hpl"])
def test_a_scale_for_a_generator_without_one_is_refused(name):
    with pytest.raises(UsageError, match=f"{name}, which has no diagonal to scale.*sqrt-n, gaussian or ddd"):
        generator(name, 10, scale=1.0)


@for_each("theta", [0.0, -1.0, 1.0, 2.5, nan])
def test_theta_must_be_a_share(theta):
    with pytest.raises(UsageError, match=r"use 0 < theta < 1 \(about 0.125 for N=100\), or --generator dominant-n"):
        generator("ddd", 100, scale=theta)


@for_each("c", [0.0, -1.0, inf, nan])
def test_a_diagonal_that_gives_no_pivot_is_refused(c):
    with pytest.raises(UsageError, match="the first pivot c"):
        generator("sqrt-n", 100, scale=c)


@for_each("condition", [1.0, 0.5, -3.0, inf, nan])
def test_a_condition_number_that_no_matrix_has_is_refused(condition):
    with pytest.raises(UsageError, match="use a finite number above 1"):
        generator("fasi-higham", 10, condition=condition)


def test_an_unknown_name_error_lists_the_known_names():
    with pytest.raises(UsageError, match="'sqrtn'; use one of sqrt-n, ddd"):
        generator("sqrtn", 10)
