"""Test that `refine` makes any solution, with any factors, as accurate as that of `solve`."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import mxpeak as mx
from tests.support.hard_systems import exactly, row_error, systems, true_eta
from tests.support.systems import TYPES, random, spectrum

N = 60


def system(dtype: Any = np.float64, rhs: int = 1) -> tuple[Any, Any, Any]:
    """Return a well-conditioned system and its solution."""
    A = random((N, N), dtype) + np.asarray(3 * np.sqrt(N) * np.eye(N), dtype)
    b = random((N, rhs), dtype, 2)[:, 0] if rhs == 1 else random((N, rhs), dtype, 2)
    return A, b, np.linalg.solve(A, b)


def factors_of(A: Any) -> dict[str, Any]:
    """Return factors of A by every library, in several precisions, and factors of a matrix near A."""
    low = A.astype(np.complex64 if A.dtype.kind == "c" else np.float32)
    near = A * (1 + 1e-3 * np.random.default_rng(5).standard_normal(A.shape))
    of = {f"mxpeak {name}": mx.lu_factor(A, precision=name) for name in ("fp64", "fp32", "bf16")}
    return {
        **of,
        "none": None,
        "scipy": scipy.linalg.lu_factor(A),
        "scipy fp32": scipy.linalg.lu_factor(low),
        "near": mx.lu_factor(near),
        "scipy near": scipy.linalg.lu_factor(near),
    }


@pytest.mark.parametrize("dtype", TYPES)
def test_every_factorization_refines_every_start(dtype: Any) -> None:
    for rhs in (1, 4):
        A, b, exact = system(dtype, rhs)
        u = np.finfo(dtype).eps / 2
        for name, F in factors_of(A).items():
            for start in (exact.astype(A.dtype) * dtype(1 + 1e-3), np.zeros_like(b), random(b.shape, dtype, 7)):
                before = start.copy()
                x, info = mx.refine(A, b, start, F)
                assert info.solved, (name, info)
                assert not info.fallback, (name, info)
                assert x.dtype == A.dtype
                assert np.abs(x - exact).max() <= 100 * N * u * np.abs(exact).max()
                assert info.rhs == rhs
                assert info.iterations > 0
                assert np.array_equal(start, before)


def test_an_accurate_solution_is_returned_as_it_is() -> None:
    A, b, exact = system()
    for F in (None, scipy.linalg.lu_factor(A), mx.lu_factor(A, precision="fp32")):
        x, _ = mx.refine(A, b, exact, F)
        y, info = mx.refine(A, b, x, F)
        assert info.iterations == 0
        assert "of an earlier matrix" not in str(info), "the matrix of the factors is unknown"
        assert np.array_equal(x, y)


def test_useless_factors_are_replaced_and_the_reason_is_in_info() -> None:
    A, b, exact = system()
    x, info = mx.refine(A, b, np.zeros(N), mx.lu_factor(random((N, N), seed=9)))
    assert info.solved
    assert info.fallback
    assert info.precision == "fp64"
    assert info.message == "F is not close enough to A, or too coarse; A was factored again"
    assert np.abs(x - exact).max() <= 1e-12


def test_factors_of_the_matrix_before_a_change_are_a_preconditioner() -> None:
    A, b, _ = system()
    F = mx.lu_factor(A)
    A[:] = A * (1 + 1e-2 * random((N, N), seed=4))  # F.A is this array
    x, info = mx.refine(A, b, np.zeros(N), F)
    assert info.solved
    assert not info.fallback
    assert np.abs(x - np.linalg.solve(A, b)).max() <= 1e-12


def test_a_solution_with_bad_rows_is_corrected_row_by_row() -> None:
    """A small normwise error hides rows of small size; LAPACK's gerfs corrects them, and so does refine."""
    A, _, _ = system()
    A[::2] *= 1e-12
    exact = np.random.default_rng(3).standard_normal(N)
    b = A @ exact
    x = exact + 1e-14 * np.abs(exact).max() * random(N, seed=8)
    x[3] += 1e-3 * 1e-12
    for F in (None, scipy.linalg.lu_factor(A)):
        y, info = mx.refine(A, b, x, F)
        assert row_error(A, y, b) <= 1.0
        assert info.componentwise_error <= 1.0


def test_singular_matrices_are_not_hidden_by_the_factors_of_others() -> None:
    n = 50
    i, j = np.mgrid[:n, :n]
    L = np.where(i == j, 2.0 - (i == 0) - (i == n - 1), -1.0 * (abs(i - j) == 1))
    F = mx.lu_factor(L + 1e-3 * np.eye(n))
    b = L @ np.cos(np.arange(n))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mx.IllConditionedWarning)
        try:
            _, info = mx.refine(L, b, np.cos(np.arange(n)), F)
        except mx.SingularMatrixError:
            return
    assert info.ill_conditioned
    assert info.fallback


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="long double has no more digits than fp64 here")
def test_500_systems_are_refined_and_reported_truly() -> None:
    """Factors are SciPy's in fp64, in fp32, and of a perturbed matrix; x is fp32's or random."""
    rng, counted = np.random.default_rng(31), {"solved": 0, "warned": 0, "refused": 0}
    for number, (name, A) in enumerate(systems()):
        n = len(A)
        b = A @ np.ones(n) if number % 2 else rng.standard_normal(n)
        near = A * (1 + 1e-4 * rng.standard_normal((n, n))) if number % 3 == 2 else A
        start = rng.standard_normal(n) * 10.0 ** rng.uniform(-3, 3)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            lu, piv = scipy.linalg.lu_factor(near.astype(np.float32) if number % 3 == 1 else near)
        usable = np.isfinite(lu).all() and (lu.diagonal() != 0).all()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mx.IllConditionedWarning)
            try:
                x, info = mx.refine(A, b, start, (lu, piv) if usable else None)
            except mx.SingularMatrixError:
                counted["refused"] += 1
                continue
        found = true_eta(A, x, b)
        off = found - info.backward_error if info.scaled else abs(found - info.backward_error)
        assert off <= max(0.5, info.backward_error / 2), (number, name, found, info)
        exact = exactly(A, b)
        error = float(np.abs(x - exact).max() / np.abs(x).max()) if np.isfinite(exact).all() else np.inf
        assert error <= info.error_bound.normwise or not info.solved, (number, name, error, info)
        lost = not error < 0.5
        assert not (lost and info.solved and not info.ill_conditioned), (number, name, error, info)
        assert not (name == "random" and info.ill_conditioned), (number, error, info)
        counted["warned" if info.ill_conditioned else "solved"] += 1
    assert sum(counted.values()) == 504
    assert counted["solved"] > 250, counted


def test_cholesky_factors_of_a_matrix_near_a() -> None:
    A, b, _ = system()
    S = A.T @ A
    F = mx.cho_factor(S)
    M = S + 0.1 * A  # not symmetric
    x, info = mx.refine(M, b, np.zeros(N), F)
    assert info.solved
    assert info.lagged
    assert not info.fallback
    assert np.abs(x - np.linalg.solve(M, b)).max() <= 1e-12


def test_ill_conditioned_systems_are_refined_with_coarse_factors() -> None:
    A = spectrum(N, 1e9)
    b = A @ np.ones(N)
    x, info = mx.refine(A, b, np.zeros(N), scipy.linalg.lu_factor(A.astype(np.float32)))
    assert info.solved
    assert true_eta(A, x, b) < 0.2
    assert info.condition == pytest.approx(np.linalg.cond(A, 1), rel=0.7)


def test_complex_right_hand_sides_of_real_matrices() -> None:
    A, b, _ = system()
    b = b + 1j * random(N, seed=6)
    for start in (np.zeros(N), np.zeros(N, complex)):
        x, info = mx.refine(A, b, start, scipy.linalg.lu_factor(A))
        assert info.solved
        assert np.abs(x - np.linalg.solve(A, b)).max() < 1e-13


def test_tensors_return_as_tensors() -> None:
    torch = pytest.importorskip("torch")
    A, b, exact = system()
    for F in (None, mx.lu_factor(torch.from_numpy(A)), mx.lu_factor(A), scipy.linalg.lu_factor(A)):
        x, info = mx.refine(torch.from_numpy(A), torch.from_numpy(b), torch.zeros(N), F)
        assert isinstance(x, torch.Tensor)
        assert info.solved
        assert np.abs(x.numpy() - exact).max() < 1e-13


def test_tiny_numbers_and_numbers_near_the_end_of_the_range() -> None:
    A, b, exact = system()
    for size in (1e-300, 1e-320, 1e300, 1e306):
        F = mx.lu_factor(A * size)
        with np.errstate(all="ignore"):
            x, info = mx.refine(A * size, b * size, np.ones(N), F)
        assert info.solved, (size, info)
        if size != 1e-320:  # these numbers have two digits
            assert np.abs(x - exact).max() <= 1e-12, size
    assert mx.refine(np.empty((0, 0)), np.empty(0), np.empty(0))[0].shape == (0,)


LU, PIV = scipy.linalg.lu_factor(np.eye(3))
WRONG = {
    "shape of x": (np.eye(3), np.ones(3), np.ones(2), None, r"b has shape \(3,\), but x has shape \(2,\)"),
    "NaN": (np.eye(3), np.ones(3), [1.0, np.nan, 1.0], None, r"x\[1\] is nan"),
    "A is not finite": (np.diag([1.0, np.inf, 1.0]), np.ones(3), np.ones(3), (LU, PIV), r"A\[1, 1\] is inf"),
    "complex x": (np.eye(3), np.ones(3), 1j * np.ones(3), None, r"x is complex, but A and b are real; use x\.real"),
    "order of F": (np.eye(2), np.ones(2), np.ones(2), (LU, PIV), r"A is 2x2, but F has order 3"),
    "type of F": (np.eye(3), np.ones(3), np.ones(3), "LU", r"F is str, which refine does not support"),
    "one array": (np.eye(3), np.ones(3), np.ones(3), LU, r"F is ndarray, which refine does not support"),
    "shape of piv": (np.eye(3), np.ones(3), np.ones(3), (LU, PIV[:2]), r"piv of shape \(2,\)"),
    "entries of piv": (
        np.eye(3),
        np.ones(3),
        np.ones(3),
        (LU, PIV - 1),
        r"piv has an entry piv\[k\] outside k to n - 1",
    ),
    "zero pivot": (np.eye(3), np.ones(3), np.ones(3), (np.zeros((3, 3)), PIV), r"zero on the diagonal of U"),
    "complex F": (np.eye(3), np.ones(3), np.ones(3), (LU * 1j, PIV), r"F has complex factors on cpu, but A is float64"),
    "shape of A": (np.ones((3, 2)), np.ones(3), np.ones(3), None, r"A has shape \(3, 2\)"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_refused(case: str) -> None:
    A, b, x, F, message = WRONG[case]
    with pytest.raises(mx.UsageError, match=message):
        mx.refine(A, b, x, F)
