"""Test positive definite systems of moderate order by the compiled Cholesky factorization.

The triangle that is not read contains NaN.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import mxpeak as mx
from mxpeak.kernels.contract.dense import Triangle
from mxpeak.library import policy
from mxpeak.library.dense.lapack_solver import CholeskySolution, solve_by_cholesky
from mxpeak.library.dense.small_cholesky import solve_by_small_cholesky, suits_small_cholesky
from tests.support.systems import TYPES, definite, enough, eta, layouts, one_triangle, random


def solved(A: Any, b: Any, *, lower: bool = False) -> CholeskySolution | None:
    return solve_by_small_cholesky(Triangle(A, lower, True), b)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", [1, 7, 8, 33, 64, 131])
def test_every_order_triangle_and_number_of_sides_is_solved_and_reported_truly(n: int, dtype: Any) -> None:
    A = definite(n, dtype)
    for k, lower in product((0, 1, 3, 8), (True, False)):
        b = random((n, k) if k else n, dtype, 2)
        for name, given in layouts(one_triangle(A, lower=lower)).items():
            solution = solved(np.asarray(given, dtype), b, lower=lower)
            assert solution is not None
            assert solution.enough, name
            assert solution.X.shape == b.shape
            worst = max(eta(A, x, y) for x, y in zip(solution.X.reshape(n, -1).T, b.reshape(n, -1).T))
            assert worst <= enough(n), name
            assert solution.history[-1] == pytest.approx(worst, rel=0.5, abs=1 / n)
            exact = np.linalg.cond(A.astype(np.complex128), 1)
            assert exact / 3 <= solution.condition() <= 1.2 * exact
            assert solution.norm == pytest.approx(np.abs(A).sum(1).max(), rel=1e-4)


@pytest.mark.parametrize("dtype", TYPES)
def test_the_factor_is_that_of_lapack(dtype: Any) -> None:
    """Both factors have backward errors of at most (n + 1)·u·||A||, which the condition number of 100 magnifies."""
    n, b = 61, np.ones(61, dtype)
    A = definite(n, dtype)
    solution = solved(one_triangle(A, lower=False), b)
    assert solution is not None
    C, expected = np.tril(solution.C()), scipy.linalg.cholesky(np.conj(A), lower=True)
    assert np.abs(C - expected).max() <= 200 * n * np.finfo(dtype).eps * np.abs(expected).max()
    assert solution.growth() == pytest.approx(
        np.abs(expected.diagonal()).max() ** 2 / A.diagonal().real.max(), rel=1e-4
    )


@pytest.mark.parametrize("dtype", TYPES)
def test_bounds_and_condition_are_those_of_lapack(dtype: Any) -> None:
    A, b = definite(50, dtype, condition=1e4), random(50, dtype, 3)
    for lower, order in product((True, False), "CF"):
        triangle = Triangle(np.array(A, order=order), lower, True)  # type: ignore[call-overload]
        small, other = solve_by_small_cholesky(triangle, b), solve_by_cholesky(triangle, b)
        assert small is not None
        assert other is not None
        assert small.condition() == pytest.approx(other.condition(), rel=0.1)
        assert small.error_bound(triangle, b).normwise == pytest.approx(
            other.error_bound(triangle, b).normwise, rel=1.0
        )


def test_imaginary_parts_of_a_diagonal_are_not_read() -> None:
    A = definite(40, np.complex128)
    b = random(40, np.complex128, 2)
    given = A.copy()
    given.imag[np.arange(40), np.arange(40)] = np.nan
    for lower in (True, False):
        solution = solved(given, b, lower=lower)
        assert solution is not None
        assert solution.enough
        assert eta(A, solution.X, b) <= enough(40)


@pytest.mark.parametrize("minor", [1, 8, 9, 40])
def test_a_minor_that_is_not_positive_is_left_to_the_general_path(minor: int) -> None:
    A = definite(40)
    A[minor - 1, minor - 1] = -1.0
    assert solved(A, np.ones(40)) is None
    with pytest.raises(mx.NotPositiveDefiniteError, match=f"leading minor of order {minor} of 40"):
        mx.solve(A, np.ones(40), assume_a="pos")


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("place", [(0, 0), (3, 30), (39, 39)])
def test_a_matrix_that_is_not_finite_is_not_solved(value: float, place: tuple[int, int]) -> None:
    A = definite(40)
    A[place] = value
    assert (found := solved(A, np.ones(40))) is None or not found.enough
    with pytest.raises(mx.UsageError, match="not finite"):
        mx.solve(A, np.ones(40), assume_a="pos")


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e-320, 1e308])
def test_a_right_hand_side_at_the_limits_of_the_range_is_not_judged(value: float) -> None:
    A, b = definite(40), np.zeros(40)
    b[7] = value
    found = solved(A, b)
    assert found is not None
    assert not found.enough


def test_a_zero_right_hand_side_has_the_solution_zero() -> None:
    solution = solved(definite(40), np.zeros((40, 2)))
    assert solution is not None
    assert solution.enough
    assert not solution.X.any()


def test_an_inaccurate_solution_is_corrected() -> None:
    """A small multiplier bound makes every solution inaccurate, so that one correction follows."""
    A, b = definite(40, np.complex64), random((40, 2), np.complex64, 2)
    from mxpeak.library.dense import small_cholesky

    plan = small_cholesky.plan_small_cholesky(40, 2, np.dtype(np.complex64))
    space, facts, X = np.empty(plan.memory[0], np.complex64), np.empty(plan.memory[1]), np.empty((40, 2), np.complex64)
    plan.solve((False, False, 0.0), A, b, plan.s, X, space, facts)
    assert 0.0 < facts[11] <= 2.0 * facts[6]
    assert max(eta(A, x, y) for x, y in zip(X.T, b.T)) <= enough(40)


def test_its_limits() -> None:
    A = np.eye(policy.SMALL_LU_FROM)
    assert suits_small_cholesky(A, np.ones(len(A)))
    assert not suits_small_cholesky(A, np.ones((len(A), 9)))
    assert not suits_small_cholesky(np.eye(policy.SMALL_LU_FROM - 1), np.ones(policy.SMALL_LU_FROM - 1))
    above = policy.SMALL_CHOLESKY_ORDER + 1
    assert not suits_small_cholesky(np.broadcast_to(1.0, (above, above)), np.ones(above))
