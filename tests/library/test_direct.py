"""Test LAPACK's solver and its check: every memory order, both ways to call LAPACK, and the limits of the check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest

import mxpeak as mx
from mxpeak.errors import Outcome
from mxpeak.library.dense import lapack_solver
from mxpeak.library.dense.lapack_solver import COPIED_BELOW, routines, solve_by_lapack
from mxpeak.solvers.accuracy import plain_lu
from tests.support.systems import enough, eta, layouts, random

TYPES = ("float64", "float32", "complex128", "complex64")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", [1, 37, COPIED_BELOW + 5])
def test_any_memory_order_and_number_of_right_hand_sides_is_solved_and_reported_correctly(n: int, dtype: str) -> None:
    A = random((n, n), dtype)
    for sides, (name, laid_out) in zip((0, 1, 3, 20) * 3, layouts(A).items()):
        b = random((n, sides) if sides else n, dtype, 2)
        before = b.copy()
        solution = solve_by_lapack(np.asarray(laid_out, dtype), b)
        assert solution is not None, name
        assert solution.X.shape == b.shape
        assert solution.X.flags.c_contiguous
        columns = b.reshape(n, -1)
        worst = max(eta(A, x, y) for x, y in zip(solution.X.reshape(n, -1).T, columns.T))
        assert worst <= enough(n) * (2 if sides > 8 else 1), name
        assert solution.enough, name
        if sides <= 8:
            assert solution.history[-1] == pytest.approx(worst, rel=0.5, abs=1 / n)
        assert np.array_equal(laid_out, A), name
        assert np.array_equal(b, before), name
        exact = np.linalg.cond(A.astype(np.complex128), 1)
        assert exact / 3 <= solution.condition() <= 1.2 * exact
        sums = np.abs(A).sum(1).max(), np.abs(A).sum(0).max(), np.abs(A).max()
        assert solution.norms == pytest.approx(sums, rel=1e-4)


def test_sums_of_a_matrix_that_is_read_in_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    A = np.asfortranarray(random((41, 41)))
    whole = lapack_solver._sums(A, routines(A.dtype))
    monkeypatch.setattr(lapack_solver, "CACHED", 41 * 7)
    across, down, largest = lapack_solver._sums(A, routines(A.dtype))
    assert (*across, *down) == pytest.approx((*whole[0], *whole[1]))
    assert largest == np.abs(A).max()


def test_inaccurate_solutions_are_corrected_or_left_to_other_solvers() -> None:
    n = 60
    growth = np.tril(-np.ones((n, n)), -1) + np.eye(n)
    growth[:, -1] = 1.0
    for A in (growth, growth.T.copy()):  # pivoting by rows does not help: doubles at each step
        b = random(n)
        _, info = mx.solve(A, b)
        assert info.solved
        assert info.backward_error <= enough(n)
    _, info = mx.solve(growth, random((n, 9)))  # refined, because there are too many to correct at once
    assert list(info.times) == ["solve", "refine"]
    _, info = mx.solve(np.diag([1.0, 1e-9, 1.0]), np.ones(3))
    assert list(info.times) == ["solve", "equilibrate", "factor", "refine"]
    assert solve_by_lapack(np.diag([1.0, 0.0, 1.0]), np.ones(3)) is None
    assert solve_by_lapack(np.diag([1.0, 1e-9, 1.0]), np.ones(3)) is None  # needs scaling
    A = random((n, n))
    A[3, 5] = np.nan
    assert solve_by_lapack(A, np.ones(n)) is None
    b = np.ones(n)
    b[7] = np.nan
    found = solve_by_lapack(random((n, n)), b)
    assert found is not None
    assert not found.enough


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("sides", [1, 2, 8, 9])
def test_an_x_beyond_the_range_is_not_solved_whichever_column_it_is(sides: int, dtype: str) -> None:
    """If numbers are complex, each part is within the range, but the absolute value is not."""
    A = (2.0**-58 * np.eye(2)).astype(dtype)
    huge = 1e23 if dtype == "float32" else 1e21 + 1e21j
    for j in {0, sides - 1}:
        b = np.ones((2, sides), dtype)
        b[:, j] = huge
        found = solve_by_lapack(A, b)
        assert found is not None
        assert not found.enough, j
        info: Any
        for a, c in ((A, b), (A[None], b[None])):
            with pytest.warns(mx.NotSolvedWarning, match="x is beyond the range"):
                _, info = mx.solve(a, c)
            assert info.outcome is Outcome.NOT_FINITE, j


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("n", [40, COPIED_BELOW])
def test_the_condition_is_by_the_one_norm_whatever_the_order_of_memory(n: int, order: Literal["C", "F"]) -> None:
    A = random((n, n))
    A[7] *= 60  # ||A||_inf is about 30 ||A||_1
    for each in (A, A.T):
        solution = solve_by_lapack(np.array(each, order=order), np.ones(n))
        assert solution is not None
        exact = np.linalg.cond(each, 1)
        assert exact / 3 <= solution.condition() <= 1.01 * exact


@pytest.mark.parametrize(("n", "precision"), [(500, "fp64"), (700, "fp32"), (900, "fp32")])
@pytest.mark.parametrize("axis", [0, 1])
def test_the_reason_for_the_precision_names_scaling(n: int, precision: str, axis: int) -> None:
    """Elimination, which does not scale A, is faster in fp64 up to larger orders than LAPACK."""
    A, b = random((n, n)), random(n)
    _, info = mx.solve(A, b)
    assert (info.precision, info.scaled, info.why) == ("fp64", False, "fastest at this order")
    scale = np.geomspace(1e-3, 1e3, n)
    scaled = A * (scale if axis else scale[:, None])
    for _, info in (mx.solve(scaled, b), mx.lu_factor(scaled).solve(b)):
        assert (info.precision, info.scaled) == (precision, True)
        assert info.why == "fastest at this order with scaling"
        assert info.solved
    _, info = mx.lu_factor(A).solve(b)
    assert (info.precision, info.scaled, info.why) == (precision, False, "fastest at this order")


@pytest.mark.parametrize("sides", [1, 9])
def test_the_condition_is_estimated_if_the_solution_of_the_probe_is_large(sides: int) -> None:
    """A is reported as singular, although b is in its range and the residual is small."""
    n = 300
    A = random((n, n))
    info: Any
    A[-1] = A[:-1].sum(axis=0) / 20
    with pytest.warns(mx.IllConditionedWarning, match="numerically singular"):
        _, info = mx.solve(A, np.repeat(A @ np.ones((n, 1)), sides, axis=1))
    assert info.solved
    assert info.ill_conditioned
    assert info.condition >= 2.0**53


def test_fp64_is_chosen_at_once_only_if_pivots_decrease(small_lu_up_to: Callable[[int], None]) -> None:
    n = 768
    small_lu_up_to(n)  # as if fp32 were faster
    Q, R = (np.linalg.qr(random((n, n), seed=seed))[0] for seed in (3, 4))
    info: Any
    for decades, sides, precision in ((10, 1, "fp64"), (12, 4, "fp64"), (3, 1, "fp32")):
        A = np.asarray((Q * np.geomspace(1.0, 10.0**-decades, n)) @ R)
        b = random((n, sides))
        for each in (A, np.asfortranarray(A)):
            x, info = mx.solve(each, b)
            assert (info.precision, info.fallback, info.solved) == (precision, False, True), decades
            assert info.why == ("pivots decay" if precision == "fp64" else "fastest at this order")
            assert ("solve" in info.times, "refine" in info.times) == (precision == "fp64", precision != "fp64")
            assert mx.lu_factor(each).precision == (precision if sides == 1 else "fp64")
            assert max(eta(each, y, c) for y, c in zip(x.T, b.T)) <= enough(n)
    graded = random((n, n)) * np.geomspace(1.0, 1e-9, n)[:, None]  # rows are graded, but pivots are not small
    assert mx.solve(graded, random(n))[1].precision == "fp32"
    kernel = 0.9 ** np.abs(np.subtract.outer(np.arange(n), np.arange(n)))  # row sums grow from the border inwards
    assert mx.solve(kernel, random(n))[1].precision == "fp32"


def test_complex_numbers_are_judged_by_the_rounding_of_their_products() -> None:
    assert plain_lu(1000, is_complex=False) == 2.0**-7
    assert plain_lu(8, is_complex=True) == np.sqrt(2.0)
