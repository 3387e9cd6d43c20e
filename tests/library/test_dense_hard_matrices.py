"""`mxpeak.solve` on matrices that are hard: ill-conditioned, growing, badly scaled, almost singular.

The backward error eta is in units of n·u·(||A||·||x|| + ||b||); what counts as solved is at most max(4/n, 2^-7), about
what plain LU reaches.  Tests allow three times that, since they compute the residual by another summation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mxpeak as mx
from tests.library.test_dense import U, enough, eta, random


def hilbert(n: int) -> Any:
    i = np.arange(n)
    return 1.0 / (i[:, None] + i + 1)


def kahan(n: int, angle: float = 1.2) -> Any:
    s, c = np.sin(angle), np.cos(angle)
    return np.diag(s ** np.arange(n)) @ (np.eye(n) - c * np.triu(np.ones((n, n)), 1))


def wilkinson(n: int) -> Any:
    """Partial pivoting lets its last column double in each step: growth 2^(n-1)."""
    W = np.tril(-np.ones((n, n)), -1) + np.eye(n)
    W[:, -1] = 1
    return W


def spectrum(n: int, condition: float, seed: int = 1) -> Any:
    Q, _ = np.linalg.qr(random((n, n), seed=seed))
    P, _ = np.linalg.qr(random((n, n), seed=seed + 1))
    return (Q * np.logspace(0, -np.log10(condition), n)) @ P


@pytest.mark.parametrize("precision", ["auto", "fp64", "fp32", "bf16"])
@pytest.mark.parametrize("A", [hilbert(13), hilbert(20)], ids=["13", "20"])
def test_a_numerically_singular_matrix_is_solved_with_a_warning(A: Any, precision: str) -> None:
    b = A.sum(axis=1)
    x, info = mx.solve(A, b, precision=precision)
    assert info.precision == "fp64"
    assert "numerically singular" in info.message
    assert "x may have no correct digit" in info.message
    assert info.condition >= 1 / U
    assert eta(A, x, b) <= enough(len(A))


@pytest.mark.parametrize("precision", ["auto", "fp32", "tf32", "fp16"])
@pytest.mark.parametrize("condition", [1e2, 1e5, 1e8, 1e11, 1e14])
def test_the_residual_does_not_depend_on_the_condition(condition: float, precision: str) -> None:
    n = 260
    A, b = spectrum(n, condition), random(n)
    x, info = mx.solve(A, b, precision=precision)
    y = np.linalg.solve(A, b)
    assert info.solved
    assert eta(A, x, b) <= max(2 * eta(A, y, b), enough(n))
    # Forward errors are condition times backward errors; so are their differences.
    assert np.abs(x - y).max() <= np.linalg.cond(A, np.inf) * 2 * enough(n) * n * U * np.abs(y).max()
    if condition >= 1e11:
        assert info.fallback
        assert info.precision == "fp64"
        assert "factored again in fp64" in info.message
    if condition <= 1e5 and precision in ("auto", "fp32"):
        assert not info.fallback


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("precision", ["auto", "fp32"])
def test_kahans_matrix_is_solved(precision: str, order: Any) -> None:
    for n in (30, 90):
        A, b = np.array(kahan(n), order=order), random(n)
        x, info = mx.solve(A, b, precision=precision)
        assert info.solved
        assert eta(A, x, b) <= enough(n)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("n", [25, 60])
def test_growth_of_the_factors_is_made_good(n: int, order: Any) -> None:
    """The noise keeps the elimination from being exact; at n = 60 plain LU loses every digit of some components."""
    noise = 1e-3 * np.tril(random((n, n)), -1)
    A, b = np.array(wilkinson(n) - np.abs(noise) * 1e-3, order=order), random(n)
    for precision in ("auto", "fp32"):
        x, info = mx.solve(A, b, precision=precision)
        assert info.solved, str(info)
        assert eta(A, x, b) <= enough(n)
        exact = np.linalg.lstsq(A, b)[0]  # by its singular values, where nothing grows
        assert np.abs(x - exact).max() <= 100 * n * U * np.linalg.cond(A) * np.abs(exact).max()


@pytest.mark.parametrize("precision", ["auto", "fp32", "fp16"])
@pytest.mark.parametrize("decades", [3, 30, 200])
@pytest.mark.parametrize("which", ["rows", "columns", "both"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_bad_scaling_costs_no_digits(which: str, decades: int, precision: str, order: Any) -> None:
    """Scaled by powers of two, D_r A D_c, its solution is that of A with each component scaled: compare these."""
    n = 80
    A, b = random((n, n)) + 2 * np.sqrt(n) * np.eye(n), random(n)
    decades = min(decades, 100) if which == "both" else decades  # products of 1e200 would overflow
    D = 2.0 ** np.round(np.linspace(-decades, decades, n)[np.random.default_rng(5).permutation(n)] * np.log2(10))
    rows, columns = (D if which != "columns" else np.ones(n)), (D if which != "rows" else np.ones(n))
    x, info = mx.solve(np.array(rows[:, None] * A * columns, order=order), rows * b, precision=precision)
    y = np.linalg.solve(A, b)
    assert info.solved
    assert info.scaled
    assert not info.fallback
    assert np.abs(columns * x - y).max() <= 10 * n * U * np.linalg.cond(A) * np.abs(y).max()
    if which != "both":  # of both, one large row sets all columns' scales: seldom the best ones
        assert info.condition <= 10 * np.linalg.cond(A, 1)


@pytest.mark.parametrize("power", [-300, -45, 45, 150, 300])
@pytest.mark.parametrize("precision", ["auto", "fp32", "bf16"])
def test_the_range_of_the_factors_does_not_matter(power: int, precision: str) -> None:
    n = 40
    A, b = random((n, n)) + 2 * np.sqrt(n) * np.eye(n), random(n)
    for of_A, of_b in ((power, power), (power, 0), (0, power)):
        a, c = 2.0 ** int(of_A * np.log2(10)), 2.0 ** int(of_b * np.log2(10))
        x, info = mx.solve(A * a, b * c, precision=precision)
        assert info.solved
        assert not info.fallback
        y = np.linalg.solve(A, b)
        assert np.abs(x * (a / c) - y).max() <= 10 * n * U * np.linalg.cond(A) * np.abs(y).max()


def test_a_hermitian_system_is_solved() -> None:
    n = 260
    G = random((n, n), np.complex128)
    A, b = G + G.conj().T, random((n, 2), np.complex128)
    x, info = mx.solve(A, b)
    assert info.precision == "fp32"
    assert info.solved
    assert max(eta(A, x[:, j], b[:, j]) for j in range(2)) <= enough(n)
    y = np.linalg.solve(A, b)
    assert np.abs(x - y).max() <= 50 * n * U * np.linalg.cond(A) * np.abs(y).max()


@pytest.mark.parametrize("n", [200, 450])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_fp32_factors_beat_plain_lu(n: int, seed: int) -> None:
    """Refined to a residual of one roundoff, the backward error is under that of numpy.linalg.solve."""
    A, b = random((n, n), seed=seed), random(n, seed=seed + 10)
    x, info = mx.solve(A, b, precision="fp32")
    assert not info.fallback
    assert eta(A, x, b) <= eta(A, np.linalg.solve(A, b), b)


def test_a_matrix_that_is_singular_in_fp32_only_is_solved() -> None:
    A = np.array([[1.0, 1.0], [1.0, 1.0 + 2.0**-40]])
    x, info = mx.solve(A, np.array([2.0, 2.0 + 2.0**-40]), precision="fp32")
    assert info.fallback
    assert "pivot 2 is zero" in info.message
    np.testing.assert_allclose(x, [1, 1], rtol=2.0**-10)  # condition 2^42, u = 2^-53


def test_fp32_input_falls_back_to_fp64_where_it_must() -> None:
    n = 200
    A, b = spectrum(n, 1e7).astype(np.float32), random(n, np.float32)
    x, info = mx.solve(A, b, precision="bf16")
    assert x.dtype == np.float32
    assert info.fallback
    assert info.precision == "fp64"
    assert eta(A, x, b) <= enough(n)
