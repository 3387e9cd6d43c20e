"""Test conventions of NumPy and SciPy: empty systems, tolerances, and an info that describes the returned x."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse

import mxpeak as mx
from mxpeak.errors import Outcome, UsageError
from tests.support.sparse_ranks import even, gmres_on
from tests.support.sparse_systems import poisson, reached, vector

T = sparse.diags_array([-1.0, 3.0, -1.5], offsets=(-1, 0, 1), shape=(60, 60)).tocsr()
SMALL = sparse.csr_array([[2.0, 1.0], [1.0, 3.0]])
NOTHING = sparse.csr_array((0, 0))


# --- empty systems --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0,), (0, 0), (0, 3)])
def test_a_system_without_rows_has_a_solution_without_rows(shape: tuple[int, ...]) -> None:
    for x0 in (None, np.zeros(shape)):
        x, info = mx.gmres(NOTHING, np.zeros(shape), x0)
        assert x.shape == shape
        assert x.dtype == np.float64
        assert info.converged
        assert (info.n, info.iterations, info.residual) == (0, 0, 0.0)
        assert str(info).startswith("converged: n = 0")
    with pytest.raises(UsageError, match="b has shape"):
        mx.gmres(NOTHING, np.zeros(1))


def test_no_right_hand_side_gives_no_solution() -> None:
    x, info = mx.gmres(T, np.zeros((60, 0)))
    assert x.shape == (60, 0)
    assert info.converged
    assert (info.n, info.nnz, info.rhs) == (60, T.nnz, 0)
    with pytest.raises(UsageError, match=r"x0 has shape \(60, 1\)"):
        mx.gmres(T, np.zeros((60, 0)), np.zeros((60, 1)))
    with pytest.raises(UsageError, match="rtol=-1"):
        mx.gmres(T, np.zeros((60, 0)), rtol=-1)


def test_ranks_share_empty_systems_too() -> None:
    x, infos = gmres_on([0, 20, 60], T, np.zeros((60, 0)))
    assert x.shape == (60, 0)
    assert {info.converged for info in infos} == {True}
    x, infos = gmres_on([0, 0, 0], NOTHING, np.zeros(0))
    assert x.shape == (0,)
    assert {info.ranks for info in infos} == {2}


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (0,)])
@pytest.mark.parametrize("dtype", ["f4", "f8", "c16", "i4"])
def test_norms_of_empty_matrices_are_zero_as_numpys(shape: tuple[int, ...], dtype: str) -> None:
    """NumPy and SciPy return 0 for all norms that mxpeak has; older NumPy raised if the norm takes a maximum."""
    A = np.zeros(shape, dtype)
    assert mx.norms(A) == (0.0, 0.0, 0.0, 0.0)
    for kind in ("max", "one", "inf", "fro", 1, np.inf):
        for deterministic in (False, True):
            assert mx.norm(A, kind, deterministic=deterministic) == 0.0
        columns = A.reshape(0, 1) if len(shape) == 1 else A
        for found, axis in ((mx.column_norms(A, kind), 0), (mx.row_norms(A, kind), 1)):
            assert found.shape == (columns.shape[1 - axis],)
            assert not found.any()


# --- tolerances -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rtol", "atol"), [(1.0, 0.0), (50.0, 0.0), (0.0, np.inf), (1e-9, np.inf), (np.inf, 0.0)])
def test_a_tolerance_that_x0_meets_takes_no_step(rtol: float, atol: float) -> None:
    x, info = mx.gmres(T, vector(60), rtol=rtol, atol=atol)
    assert info.converged
    assert info.iterations == 0
    assert not x.any()
    assert info.residual == 1.0
    x0 = vector(60, 5)
    x, info = mx.gmres(T, T @ x0, x0 * (1 + 1e-6), rtol=rtol, atol=atol)
    np.testing.assert_allclose(x, x0, rtol=1e-5)


def test_a_relative_tolerance_above_one_holds_for_a_bad_start() -> None:
    b = vector(60)
    x, info = mx.gmres(T, b, 1e6 * np.ones(60), rtol=2.0)
    assert info.converged
    assert np.linalg.norm(b - T @ x) <= 2.0 * np.linalg.norm(b)


def test_a_relative_tolerance_of_zero_leaves_the_absolute_one() -> None:
    b = 1e3 * vector(60)
    x, info = mx.gmres(T, b, rtol=0.0, atol=1e-5, preconditioner="none")
    assert info.converged
    assert info.tol == pytest.approx(1e-5 / np.linalg.norm(b))
    assert np.linalg.norm(b - T @ x) <= 1e-5


def test_no_tolerance_at_all_ends_with_the_best_x() -> None:
    b = vector(60)
    x, info = mx.gmres(T, b, rtol=0.0)
    assert info.converged == (info.residual == 0.0)
    assert reached(T, x, b, 1e-15)
    exact, info = mx.gmres(SMALL, [3.0, 4.0], rtol=0.0)
    assert info.converged
    assert np.array_equal(exact, [1.0, 1.0])


@pytest.mark.parametrize("name", ["rtol", "atol"])
@pytest.mark.parametrize("value", [-1.0, np.nan, "1e-9", None, True])
def test_what_is_no_tolerance_is_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name}=.* is not valid; use a number of at least 0"):
        mx.gmres(T, vector(60), **{name: value})


# --- the residual of the returned x ---------------------------------------------------------------------------------


def true_residual(A: Any, x: Any, b: Any) -> float:
    """Return ||b - A x|| / ||b|| in long double, whose range contains all products of fp64 numbers."""
    long = np.longdouble
    r = np.asarray(b, long) - A.toarray().astype(long) @ np.asarray(x, long)
    return float(np.sqrt((r * r).sum()) / np.sqrt((np.asarray(b, long) ** 2).sum()))


@pytest.mark.parametrize("size", [1e-300, 1e-308, 3e-310, 1e-315, 4e-320, 1e-322, 5e-324])
def test_the_residual_is_that_of_an_x_of_subnormal_numbers(size: float) -> None:
    for A in (SMALL, 1e8 * SMALL):
        b = np.array([size, 3 * size])
        x, info = mx.gmres(A, b, rtol=1e-12)
        found = true_residual(A, x, b)
        assert abs(info.residual - found) <= 1e-15 + 1e-6 * found
        assert info.converged == (info.residual <= 1e-12)
        assert info.converged or "below the range in which fp64 has all its digits" in info.message


def test_an_x_beyond_the_range_is_warned_of_and_not_converged() -> None:
    with pytest.warns(mx.NotSolvedWarning, match="beyond the range of fp64"):
        _, info = mx.gmres(1e-300 * SMALL, [3e100, 4e100])
    assert info.outcome is Outcome.NOT_FINITE
    assert not info.converged
    assert info.residual == np.inf
    with pytest.warns(mx.NotSolvedWarning):
        X, info = mx.gmres(1e-300 * SMALL, [[3.0, 3e100], [4.0, 4e100]])
    assert not info.converged
    np.testing.assert_allclose(X[:, 0], 1e300)
    with pytest.warns(mx.NotSolvedWarning, match="beyond the range of fp64"):  # and no other warning
        mx.gmres(1e-300 * SMALL, [3e100 + 3e100j, 4e100 + 4e100j])
    with pytest.warns(mx.NotSolvedWarning):
        _, infos = gmres_on([0, 1, 2], 1e-300 * SMALL, np.array([3e100, 4e100]))
    assert {info.outcome for info in infos} == {Outcome.NOT_FINITE}


def test_sums_of_rows_beyond_the_range_cause_no_warnings() -> None:
    x, info = mx.gmres(4e307 * SMALL, [3.0, 4.0])
    assert info.converged
    np.testing.assert_allclose(x, 2.5e-308)


@pytest.mark.parametrize("precision", ["mixed", "fp64", "fp32"])
@pytest.mark.parametrize("sizes", [(1e-20, 1e305), (1e-30, 1e30), (1e-290, 1e290), (1.0, 1e-300)])
def test_right_hand_sides_of_different_size_are_solved_alike(precision: str, sizes: tuple[float, float]) -> None:
    A, b = poisson(9, 9), vector(81)
    B = np.stack([size * b for size in sizes], axis=1)
    for X, info in (mx.gmres(A, B, precision=precision), gmres_on(even(81, 2), A, B, precision=precision)):
        infos = info if isinstance(info, list) else [info]
        assert all(one.converged for one in infos)
        for k, size in enumerate(sizes):
            y = np.linalg.solve(A.toarray(), b)
            np.testing.assert_allclose(X[:, k] / size, y, rtol=0, atol=1e-7 * np.abs(y).max())  # condition 50


def test_tiny_systems_that_are_not_solved_are_explained() -> None:
    """||b||_2 is below the range of fp64 if its squares are summed without scaling."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, info = mx.gmres(T, 1e-200 * vector(60), maxiter=1, preconditioner="none", rtol=1e-12)
    assert not info.converged
    assert "maxiter=1 steps were used" in info.message


@pytest.mark.parametrize("maxiter", [10, 100])
def test_an_x_beyond_the_range_ends_after_maxiter(maxiter: int) -> None:
    """The scaled residual is zero at once, but that of A cannot decrease."""
    A = sparse.csr_array([[1e-200, 1.0], [0.0, 1e-200]])
    heard: list[float] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, info = mx.gmres(A, np.ones(2), maxiter=maxiter, callback=heard.append)
    assert not info.converged
    assert len(heard) <= maxiter
