"""Test systems by compiled elimination: any memory order and remainder of eight, and the limits of its check."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mxpeak as mx
from mxpeak.errors import Outcome
from mxpeak.library.dense import small_lu
from mxpeak.library.dense.small_lu import solve_by_small_lu, suits_small_lu
from mxpeak.library.policy import SMALL_LU_COLUMNS as MAX_COLUMNS
from mxpeak.library.policy import SMALL_LU_COLUMNS_COMPLEX128 as MAX_COLUMNS_COMPLEX128
from mxpeak.library.policy import SMALL_LU_FROM as FROM
from tests.support.systems import enough, eta, layouts, random


@pytest.fixture(params=["own", "blas"])
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Select the code for products of any order: the elimination itself, or BLAS with blocks."""
    monkeypatch.setattr(small_lu, "BY_BLAS_FROM", 0 if request.param == "blas" else 1 << 62)
    small_lu.plan_small_lu.cache_clear()
    yield request.param
    small_lu.plan_small_lu.cache_clear()


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "complex64"])
@pytest.mark.parametrize("n", [1, 7, 8, 33, 64, 127, 131])
def test_any_memory_order_and_number_of_right_hand_sides_is_solved_and_reported_correctly(n: int, dtype: str) -> None:
    A = random((n, n), dtype)
    for sides, (name, laid_out) in zip((0, 1, 3, 20, 40) * 3, layouts(A).items()):
        b = random((n, sides) if sides else n, dtype, 2)
        given = np.asarray(laid_out, dtype)
        for array in (given, b):
            array.flags.writeable = False
        solution = solve_by_small_lu(given, b)
        assert solution is not None, name
        assert solution.X.shape == b.shape
        columns = b.reshape(n, -1)
        worst = max(eta(A, x, y) for x, y in zip(solution.X.reshape(n, -1).T, columns.T))
        assert worst <= enough(n) * (2 if sides > 8 else 1), name
        assert solution.enough, name
        if sides <= 8:
            assert solution.history[-1] == pytest.approx(worst, rel=0.5, abs=1 / n)
        exact = np.linalg.cond(A.astype(np.complex128), 1)
        assert exact / 3 <= solution.condition() <= 1.2 * exact
        sums = np.abs(A).sum(1).max(), np.abs(A).sum(0).max(), np.abs(A).max()
        assert solution.norms == pytest.approx(sums, rel=1e-4)


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("n", [61, 128, 133])
def test_its_factors_are_those_of_lapack(n: int, dtype: str) -> None:
    from scipy.linalg import lu_factor

    A = random((n, n), dtype)
    solution = solve_by_small_lu(A, np.ones(n, dtype))
    assert solution is not None
    LU, pivots = lu_factor(A)
    assert np.array_equal(solution.pivots, pivots)
    assert np.allclose(solution.LU(), LU, rtol=1e-9, atol=1e-11)


@pytest.mark.usefixtures("products")
def test_growth_is_mended_by_one_correction_where_that_does_and_refined_where_not() -> None:
    n = 60
    growth = np.tril(-np.ones((n, n)), -1) + np.eye(n)
    growth[:, -1] = 1.0
    for sides in (1, 8, 9):
        _, info = mx.solve(growth, random((n, sides)))
        assert info.solved
        assert info.backward_error <= enough(n)
    for n, first in ((60, 0), (150, 50)):  # the second one crosses from one block to the next
        milder, grown = np.eye(n), slice(first, first + 30)
        milder[grown, grown] = np.tril(growth[:30, :30])
        milder[grown, first + 29] = 1.0  # grows to 2^29
        milder[[40, n - 1]] = milder[[n - 1, 40]]  # also an interchange
        solution = solve_by_small_lu(milder, random((n, 3)))
        assert solution is not None
        assert len(solution.history) == 2, n
        assert solution.history[1] < solution.history[0], n
        assert solution.enough, n


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize("sides", [1, 9])
@pytest.mark.parametrize("order", ["C", "F"])
def test_undecided_systems_are_left_to_other_solvers(order: Any, sides: int) -> None:
    n = 75
    b = np.ones((n, sides))
    for (i, j), value in (((3, 3), 0.0), ((70, 70), 0.0), ((5, 5), 1e-9), ((3, 5), np.nan), ((74, 2), np.inf)):
        A = np.eye(n, order=order)
        A[i, j] = value
        assert solve_by_small_lu(A, b) is None, value
    for value in (np.nan, np.inf):
        b[7, -1] = value
        found = solve_by_small_lu(random((n, n)), b)
        assert found is not None
        assert not found.enough, value
    A = random((n, n))
    A[3, 5] = np.nan
    with pytest.raises(mx.UsageError, match="finite"):
        mx.solve(A, np.ones(n))


@pytest.mark.parametrize("sides", [1, 3])
def test_complex_numbers_whose_squares_leave_the_range_are_judged_as_others(sides: int) -> None:
    n = 37
    A, b = random((n, n), "complex128"), random((n, sides), "complex128", 2)
    reference = solve_by_small_lu(A, b)
    for factor in (2.0**-600, 2.0**600):
        solution = solve_by_small_lu(A, factor * b)
        assert solution is not None
        assert reference is not None
        assert solution.enough
        assert np.array_equal(solution.X, factor * reference.X)
        # Moduli are computed from squares or from quotients, with four roundings in each case.
        assert solution.history == pytest.approx(reference.history, rel=8 * 2.0**-53)


@pytest.mark.parametrize("sides", [1, 8, 9])
def test_an_x_beyond_the_range_is_not_solved(sides: int) -> None:
    n = 40
    A = (2.0**-58 * np.eye(n)).astype("float32")
    for j in {0, sides - 1}:
        b = np.ones((n, sides), "float32")
        b[:, j] = 1e23
        found = solve_by_small_lu(A, b)
        assert found is not None
        assert not found.enough, j
        with pytest.warns(mx.NotSolvedWarning, match="x is beyond the range of float32"):
            _, info = mx.solve(A, b)
        assert info.outcome is Outcome.NOT_FINITE, j


@pytest.mark.parametrize("sides", [1, 9])
def test_a_singular_matrix_is_reported_also_for_a_consistent_b(sides: int) -> None:
    n = 150
    A = random((n, n))
    A[-1] = A[:-1].sum(axis=0) / 20
    with pytest.warns(mx.IllConditionedWarning, match="numerically singular"):
        _, info = mx.solve(A, np.repeat(A @ np.ones((n, 1)), sides, axis=1))
    assert info.solved
    assert info.condition >= 2.0**53


def test_which_systems_it_is_for() -> None:
    for dtype, limit in (
        ("float32", MAX_COLUMNS),
        ("float64", MAX_COLUMNS),
        ("complex64", MAX_COLUMNS),
        ("complex128", MAX_COLUMNS_COMPLEX128),
    ):
        A = random((FROM, FROM), dtype)
        assert suits_small_lu(A, np.ones(FROM, dtype))
        assert not suits_small_lu(A[1:, 1:], np.ones(FROM - 1, dtype))
        for sides, suits in ((limit - 2 * FROM, True), (limit - 2 * FROM + 1, False)):
            assert suits_small_lu(A, np.ones((FROM, sides), dtype)) is suits
    packed = np.zeros(FROM * FROM, [("byte", "u1"), ("a", "f8")])["a"].reshape(FROM, FROM)
    assert not suits_small_lu(packed, np.ones(FROM))


def test_blas_takes_the_products_of_what_outgrows_the_caches() -> None:
    for dtype, orders in (("float64", (300, 400)), ("complex128", (200, 256)), ("float32", (400, 600))):
        own, by_blas = (small_lu.plan_small_lu(n, 1, np.dtype(dtype)).gemm for n in orders)
        assert own == 0 != by_blas, dtype
