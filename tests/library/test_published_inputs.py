"""Test `mxpeak.gmres` and `mxpeak.norm` with the inputs of SciPy's and NumPy's tests.

Matrices that SciPy passes dense are passed sparse here.  Not applicable to mxpeak: complex matrices and LinearOperators
as A of gmres, x0="Mb", callbacks of x or of each step, norms of sparse matrices and of higher dimensions, and the
orders 2, -2, -1, -inf, 0, p and "nuc", all of which are refused.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse
from scipy.sparse.linalg import LinearOperator

import mxpeak as mx
from mxpeak.errors import UsageError
from tests.support.published_inputs import CASES, POISSON, bands, right_hand_side

Array = np.ndarray[Any, np.dtype[Any]]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", CASES)
def test_gmres_converges_on_scipys_cases_and_leaves_x0_alone(name: str, dtype: str) -> None:
    A = CASES[name].astype(dtype)
    b = right_hand_side(name, A.shape[0])
    for rtol in (1e-2, 1e-8, 1e-12):
        for x0 in (None, np.zeros_like(b), 1.5 * b):
            before = None if x0 is None else x0.copy()
            for M in (None, LinearOperator(A.shape, lambda r: r, dtype=float)):
                x, info = mx.gmres(A, b, x0, rtol=rtol, M=M)
                assert info.converged, (M, str(info))
                assert np.linalg.norm(A.astype(float) @ x - b) <= (1 + 1e-3) * rtol * np.linalg.norm(b)
            assert x0 is None or np.array_equal(x0, before)


@pytest.mark.parametrize("name", CASES)
def test_one_step_is_counted_as_one(name: str) -> None:
    heard: list[float] = []
    A = CASES[name]
    _, info = mx.gmres(
        A, right_hand_side(name, A.shape[0]), rtol=1e-12, maxiter=1, preconditioner="none", callback=heard.append
    )
    assert info.iterations == len(heard) == 1
    assert not info.converged


@pytest.mark.parametrize("name", ["Poisson in one dimension", "Poisson in two dimensions"])
def test_the_inverse_as_preconditioner_takes_three_steps_at_most(name: str) -> None:
    A = CASES[name]
    dense = A.toarray()
    b = right_hand_side(name, A.shape[0])
    M = LinearOperator(A.shape, lambda r: np.linalg.solve(dense, r), dtype=float)
    x, info = mx.gmres(A, b, M=M, rtol=1e-8)
    assert info.converged
    assert info.iterations <= 3
    assert np.linalg.norm(A @ x - b) <= 1e-8 * np.linalg.norm(b)


def test_tolerances_from_zero_to_infinity_are_met_with_badly_scaled_preconditioners() -> None:
    rng = np.random.default_rng(168441431005389)
    A = rng.uniform(size=(10, 10))
    A = A @ A.T + 10 * np.eye(10)
    b = 1e3 * rng.uniform(size=10)
    M = rng.standard_normal((10, 10))
    M = M @ M.T
    tolerances = [0.0, *np.logspace(-9, 2, 7), np.inf]
    for scale, rtol, atol in itertools.product((None, 1e-6, 1e6), tolerances, tolerances):
        if rtol == atol == 0.0:
            continue
        x, info = mx.gmres(sparse.csr_array(A), b, M=None if scale is None else scale * M, rtol=rtol, atol=atol)
        assert info.converged, (scale, rtol, atol, str(info))
        assert np.linalg.norm(A @ x - b) <= 1.00025 * max(atol, rtol * np.linalg.norm(b))


def test_a_right_hand_side_of_zeros_gives_zeros() -> None:
    rng = np.random.default_rng(1684414984100503)
    A = rng.random((10, 10))
    A = sparse.csr_array(A @ A.T + 10 * np.eye(10))
    for tol in np.logspace(-10, 2, 7):
        for x0, atol in itertools.product((None, np.ones(10)), (0.0, tol)):
            x, info = mx.gmres(A, np.zeros(10), x0, rtol=tol, atol=atol)
            assert info.converged
            assert not x.any()


def test_starts_are_used_and_exact_ones_returned() -> None:
    rng = np.random.default_rng(1685363802304750)
    A = rng.random((10, 10))
    A, b, x0 = sparse.csr_array(A @ A.T), rng.random(10), rng.random(10)
    for start in (None, x0):
        x, info = mx.gmres(A, b, start, rtol=1e-6)
        assert info.converged
        assert np.linalg.norm(A @ x - b) <= 1e-6 * np.linalg.norm(b)
    x, info = mx.gmres(sparse.eye_array(2), [-1.0, -1.0], [-1.0, -1.0])
    assert info.iterations == 0
    assert np.array_equal(x, [-1.0, -1.0])


@pytest.mark.parametrize("atol", ["legacy", None, -1])
def test_odd_tolerances_and_positional_ones_are_refused(atol: Any) -> None:
    with pytest.raises(ValueError, match="atol"):
        mx.gmres(POISSON, np.ones(40), atol=atol)
    with pytest.raises(TypeError):
        mx.gmres(POISSON, np.ones(40), np.ones(40), 1e-5)  # type: ignore[misc]


def test_a_vandermonde_matrix_after_one_cycle_of_five_steps() -> None:
    A = np.vander(np.arange(10) + 1)[:, ::-1]
    x, info = mx.gmres(
        sparse.csr_array(A), np.eye(10)[0], restart=5, maxiter=5, preconditioner="none", precision="fp64"
    )
    assert info.iterations == 5
    assert info.residual <= 1.0  # that of x = 0: GMRES makes that of the scaled system smaller
    assert np.linalg.norm(np.eye(10)[0] - A @ x) == pytest.approx(info.residual)
    assert mx.gmres(sparse.csr_array(A), np.eye(10)[0])[1].converged


def test_the_callback_gets_the_residual_of_a_step() -> None:
    heard: list[float] = []
    A = -bands(6, -1, 0, 1)
    mx.gmres(A, np.ones(6), rtol=1e-16, maxiter=1, preconditioner="none", precision="fp64", callback=heard.append)
    assert heard == [pytest.approx(0.81649658092772603, rel=1e-10)]


def test_a_defective_preconditioner_ends_without_false_success() -> None:
    A, M = np.diag([2.0, 3, 4]), np.diag([1.0, 1, 0])
    b = np.array([0.0, 1, 1])
    x, info = mx.gmres(sparse.csr_array(A), b, [1.0, 0, 0], M=M, rtol=1e-15)
    assert np.isfinite(x).all()
    assert not info.converged
    np.testing.assert_allclose(M @ (A @ x), M @ b, atol=1e-12)


def test_a_defective_matrix_is_singular() -> None:
    A = sparse.csr_array(np.array([[0.0, 1, 0], [1, 0, 0], [0, 0, 0]]))
    with pytest.raises(np.linalg.LinAlgError, match="row 2 contains only zeros"):
        mx.gmres(A, [1.0, 0, 1])


def test_small_right_hand_sides_are_solved_relatively() -> None:
    rndm = np.random.RandomState(12345)
    for A, b in ((np.eye(2), np.ones(2)), (rndm.rand(30, 30), 1e-6 * np.ones(30)), (np.eye(2), 1e-10 * np.ones(2))):
        x, info = mx.gmres(sparse.csr_array(A), b, rtol=1e-8)
        assert info.converged
        assert np.linalg.norm(A @ x - b) <= 1e-8 * np.linalg.norm(b)


def test_the_start_mb_is_refused() -> None:
    with pytest.raises(UsageError, match="x0='Mb'"):
        mx.gmres(sparse.eye_array(2), np.ones(2), "Mb")


# --- norms ----------------------------------------------------------------------------------------------------------

ORDERS = ("fro", 1, np.inf)
SHAPES = ((1, 1), (1, 3), (3, 1), (4, 4), (4, 5), (5, 4))


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16", "i8", "i1", "u1", "i4"])
def test_norms_are_numpys_for_all_shapes_and_types(dtype: str) -> None:
    rng = np.random.default_rng(1234)
    for shape in SHAPES:
        A = (10 * np.abs(rng.standard_normal(shape)) * (1j if dtype.startswith("c") else 1)).astype(dtype)
        wide = A.astype("c16" if dtype.startswith("c") else "f8")
        for order in ORDERS:
            np.testing.assert_allclose(mx.norm(A, order), np.linalg.norm(wide, order), rtol=1e-13)
        for found, axis in ((mx.column_norms, 0), (mx.row_norms, 1)):
            for kind, order in (("fro", None), ("one", 1), ("inf", np.inf)):
                np.testing.assert_allclose(found(A, kind), np.linalg.norm(wide, order, axis=axis), rtol=1e-13)


def test_matrices_of_known_norms() -> None:
    A = np.array([[1.0, 3], [5, 7]])
    assert (mx.norm(A, np.inf), mx.norm(A, 1)) == (12.0, 10.0)
    assert mx.norm(A) == pytest.approx(84**0.5, rel=1e-15)
    tenth = np.array([[1.0, 0, 1], [0, 1, 0]]) * 0.1 + np.array([[0, 0.6, 0], [0, 0, 0]])
    np.testing.assert_allclose([mx.norm(tenth, 1), mx.norm(tenth, np.inf)], [0.7, 0.8], rtol=1e-14)
    B = (np.arange(9) - 4).reshape(3, 3)
    assert (mx.norm(B, 1), mx.norm(B, np.inf)) == (7.0, 9.0)
    assert mx.norm(B) == pytest.approx(7.745966692414834, rel=1e-15)
    np.testing.assert_allclose(mx.column_norms(B, 1), [7, 6, 7])
    np.testing.assert_allclose(mx.column_norms(B), [4.5825756949558398, 4.2426406871192848, 4.5825756949558398])
    C = np.array([[1, 0, 3], [-1, 1, 4j]])
    for order in ORDERS:
        np.testing.assert_allclose(mx.norm(C, order), np.linalg.norm(C, order), rtol=1e-15)


@pytest.mark.parametrize("v", [[1, 2, 3, 4], [-1, -2, -3, -4], [-1, 2, -3, 4]])
def test_vectors_are_columns(v: list[int]) -> None:
    for numbers in (v, np.array(v, "f4"), np.array(v, "f8"), np.array(v, "i8")):
        assert mx.norm(numbers) == pytest.approx(30**0.5, rel=1e-7)
        assert mx.norm(numbers, "one") == 10.0
        assert mx.norm(numbers, "max") == mx.norm(numbers, np.inf) == 4.0


def test_large_and_small_numbers_neither_overflow_nor_vanish() -> None:
    assert mx.norm(np.array([1e20], "f4")) == pytest.approx(1e20, rel=1e-7)
    assert mx.norm(np.array([1e4] + [1] * 10_000, "f4")) - 1e4 == pytest.approx(0.5, abs=1e-2)
    assert mx.norm(np.array([3e-320, 4e-320])) == pytest.approx(5e-320, rel=1e-3)  # 5e-324 is the least number


def test_empty_lists_have_norm_zero() -> None:
    for empty in ([], np.array([], "f4"), [[]], np.atleast_2d(np.array([]))):
        for kind in ("max", *ORDERS):
            assert mx.norm(empty, kind) == 0.0


@pytest.mark.parametrize("kind", [2, -2, -1, -np.inf, 0, 3, 0.5, "nuc", "nofro", "plate_of_shrimp", None, True])
def test_other_orders_are_refused(kind: Any) -> None:
    for call in (mx.norm, mx.column_norms, mx.row_norms):
        with pytest.raises(ValueError, match="unknown kind"):
            call(np.ones((3, 3)), kind)


def test_what_is_no_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match="3 dimensions"):
        mx.norm(np.ones((2, 3, 4)))
    with pytest.raises(ValueError, match=r"scipy\.sparse\.linalg\.norm"):
        mx.norm(sparse.eye_array(3))
