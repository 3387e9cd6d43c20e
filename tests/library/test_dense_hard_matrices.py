"""Test `mxpeak.solve` with ill-conditioned, growing, badly scaled and nearly singular matrices.

The backward error eta is in units of n·u·(||A||·||x|| + ||b||). A system counts as solved if it is at most
max(4/n, 2^-7), about the error of plain LU.  Tests allow three times that, since they sum the residual otherwise.
"""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import numpy as np
import pytest

import mxpeak as mx
from mxpeak.kernels.contract import DenseKernels
from mxpeak.library import policy
from mxpeak.solvers import deflation
from mxpeak.solvers.krylov import Solve
from tests.support.systems import (
    KERNELS,
    U,
    dense_kernels,
    enough,
    eta,
    hilbert,
    kahan,
    lu_factor_on,
    random,
    solve_on,
    spectrum,
    wilkinson,
)
from tests.support.turns import for_each


@pytest.fixture(params=KERNELS)
def kernels(request: pytest.FixtureRequest) -> DenseKernels:
    return dense_kernels(request.param)


def forward_bound(A: Any, n: int, y: Any) -> float:
    """Return the bound of the difference of two solutions: the condition number times their backward errors."""
    return float(abs(np.linalg.cond(A, np.inf)) * 2 * enough(n) * n * U * np.abs(y).max())


@for_each("precision", ["auto", "fp64", "fp32", "bf16"])
def test_a_numerically_singular_matrix_is_solved_with_a_warning(precision: str) -> None:
    for name, n in product(KERNELS, (13, 20)):
        A = hilbert(n)
        b = A.sum(axis=1)
        x, info = solve_on(dense_kernels(name, width=5), A, b, precision)
        assert info.precision == "fp64"
        assert "numerically singular" in info.message
        assert "x may have no correct digit" in info.message
        assert info.condition >= 1 / U
        assert eta(A, x, b) <= enough(n)


@for_each("precision", ["auto", "fp32"])
def test_fp32_does_not_hide_that_a_matrix_is_singular_from_a_b_that_fits(kernels: DenseKernels, precision: str) -> None:
    for seed in range(3):
        n = policy.FP32_FROM["small_lu", "real"].single
        A = np.random.default_rng(seed).standard_normal((n, n))
        A[-1] = A[:-1].sum(axis=0) / 20
        _, info = solve_on(kernels, A, A @ np.ones(n), precision)
        assert (info.precision, info.fallback, info.ill_conditioned) == ("fp64", True, True)


@for_each("precision", ["auto", "fp32", "tf32", "bf16", "fp16", "fp8"])
def test_the_residual_does_not_depend_on_the_condition(precision: str) -> None:
    """Coarse factors suffice or do not, on every backend; in between, host and device may differ by rounding."""
    u = {"fp8": 2.0**-4, "bf16": 2.0**-8, "fp16": 2.0**-11, "tf32": 2.0**-11}.get(precision, 2.0**-24)
    for condition, n in ((1e3, 260), (1e5, 260), (1e8, 131), (1e11, 131), (1e14, 131)):
        A, b = spectrum(n, condition), random(n)
        y = np.linalg.solve(A, b)
        for name in KERNELS:
            x, info = solve_on(dense_kernels(name, width=48), A, b, precision)
            assert info.solved
            assert eta(A, x, b) <= enough(n)
            assert np.abs(x - y).max() <= forward_bound(A, n, y)
            if condition * u <= 1:
                assert not info.fallback
            elif condition * u >= 2.0**14 and (precision, name, n) != ("auto", "host", 131):  # it starts with fp64
                assert info.fallback
                assert info.precision == "fp64"
                assert "factored again in fp64" in info.message


@for_each("precision", ["auto", "fp32", "fp16"])
def test_kahans_matrix_is_solved(kernels: DenseKernels, precision: str) -> None:
    for n, order in product((30, 90), "CF"):
        A, b = np.array(kahan(n), order=order), random(n)  # type: ignore[call-overload]
        x, info = solve_on(kernels, A, b, precision)
        assert info.solved
        assert eta(A, x, b) <= enough(n)


@for_each("precision", ["auto", "fp32", "fp16"])
def test_growth_of_the_factors_is_corrected(kernels: DenseKernels, precision: str) -> None:
    """The noise prevents exact elimination; at n = 60 plain LU loses every digit of some components."""
    for n, order in product((25, 60), "CF"):
        noise = 1e-3 * np.tril(random((n, n)), -1)
        A, b = np.array(wilkinson(n) - np.abs(noise) * 1e-3, order=order), random(n)  # type: ignore[call-overload]
        x, info = solve_on(kernels, A, b, precision)
        assert info.solved, str(info)
        assert eta(A, x, b) <= enough(n)
        exact = np.linalg.lstsq(A, b, rcond=None)[0]  # by singular values, without growth
        assert np.abs(x - exact).max() <= 100 * n * U * np.linalg.cond(A) * np.abs(exact).max()


@pytest.mark.parametrize(("n", "size"), [(100, "by a factor of 6.3e+29"), (1100, "beyond the range of fp64")])
@pytest.mark.parametrize("precision", ["auto", "fp64"])
def test_the_note_of_too_much_growth_recommends_lstsq(precision: str, n: int, size: str) -> None:
    A, b = np.asfortranarray(wilkinson(n)), random(n)
    with pytest.warns(mx.NotSolvedWarning, match=f"the pivots grew {re.escape(size)}.*use mxpeak.lstsq"):
        _, info = mx.solve(A, b, precision=precision)
    assert not info.solved
    assert "singular: condition" not in info.message  # the condition number is n
    x, info = mx.lstsq(A, b)
    assert info.solved
    assert eta(A, x, b) <= enough(n)


def test_gmres_replaces_no_better_solution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Factors of another matrix give an inaccurate x, and GMRES could increase its error, as for a singular A."""
    A, calls = random((40, 40)), []

    def refine_to_a_worse_solution(system: Any, **options: Any) -> tuple[Any, Solve]:
        calls.append(options)
        done = Solve(initial=1e30)
        done.residual, done.steps, done.cycles = 1e30, 3, [3]
        done.history, done.estimates = [1e30, 1e30], [1e30] * 3
        return np.full_like(system.b, 7.0), done

    monkeypatch.setattr("mxpeak.solvers.refine.refine_solution", refine_to_a_worse_solution)
    factors = mx.lu_factor(A, precision="fp64")
    A += 0.1 * random((40, 40), seed=2)
    with pytest.warns(mx.NotSolvedWarning):
        x, info = factors.solve(np.ones(40))
    assert calls
    assert not np.array_equal(x, np.full(40, 7.0))
    assert info.backward_error == pytest.approx(eta(A, x, np.ones(40)), rel=0.1)
    assert info.history[-1] == info.backward_error
    assert info.iterations == 3


def test_the_message_of_an_unsolved_system_is_its_outcome_if_the_cause_is_unknown() -> None:
    A = random((40, 40))
    factors = mx.lu_factor(A)
    A += random((40, 40), seed=2)
    with pytest.warns(mx.NotSolvedWarning, match="refinement did not reach the requested accuracy"):
        _, info = factors.solve(np.ones(40))
    assert info.message == info.outcome
    assert str(info).count(info.message) == 1


@for_each("precision", ["fp16", "bf16", "fp32"])
def test_factors_that_overflow_are_replaced_in_fp64(kernels: DenseKernels, precision: str) -> None:
    """Growth 2^139 is beyond fp32's range, and far beyond fp16's; in fp64 the factors of the transpose do not grow."""
    n = 140
    # Slightly smaller below the diagonal: a device's library may choose any of equal pivots, and others grow less.
    A, b = wilkinson(n) + 2.0**-20 * np.tri(n, k=-1), random(n)
    grows_by_columns = kernels.device is None or precision == "fp32"
    x, info = solve_on(kernels, np.asfortranarray(A) if grows_by_columns else A, b, precision)
    assert info.fallback
    assert info.precision == "fp64"
    if not grows_by_columns:  # otherwise the fp64 factors eliminate the same columns
        assert info.solved
        assert eta(A, x, b) <= enough(n)


@for_each("precision", ["auto", "fp32", "fp16"])
def test_bad_scaling_costs_no_digits(kernels: DenseKernels, precision: str) -> None:
    """The scaled system D_r A D_c has the solution of A with scaled components, so that both can be compared."""
    n = 80
    A, b = random((n, n)) + 2 * np.sqrt(n) * np.eye(n), random(n)
    y, condition = np.linalg.solve(A, b), np.linalg.cond(A)
    for which, decades, order in product(("rows", "columns", "both"), (3, 30, 200), "CF"):
        most = min(decades, 100) if which == "both" else decades  # products of 1e200 would overflow
        D = 2.0 ** np.round(np.linspace(-most, most, n)[np.random.default_rng(5).permutation(n)] * np.log2(10))
        rows, columns = (D if which != "columns" else np.ones(n)), (D if which != "rows" else np.ones(n))
        scaled = np.array(rows[:, None] * A * columns, order=order)  # type: ignore[call-overload]
        x, info = solve_on(kernels, scaled, rows * b, precision)
        assert info.solved
        assert info.scaled
        assert not info.fallback
        assert np.abs(columns * x - y).max() <= 10 * n * U * condition * np.abs(y).max()
        if decades < 30:  # the condition number is that of the matrix before scaling
            exact = np.linalg.cond(scaled, 1)
            assert exact / 3 <= info.condition <= 1.2 * exact
        else:
            assert info.condition >= 1.0 / U


@for_each("precision", ["auto", "fp32", "bf16"])
def test_the_range_of_the_factors_does_not_matter(kernels: DenseKernels, precision: str) -> None:
    n = 40
    A, b = random((n, n)) + 2 * np.sqrt(n) * np.eye(n), random(n)
    y, condition = np.linalg.solve(A, b), np.linalg.cond(A)
    for power in (-300, -45, 45, 150, 300):
        for of_A, of_b in ((power, power), (power, 0), (0, power)):
            a, c = 2.0 ** int(of_A * np.log2(10)), 2.0 ** int(of_b * np.log2(10))
            x, info = solve_on(kernels, A * a, b * c, precision)
            assert info.solved
            assert not info.fallback
            assert np.abs(x * (a / c) - y).max() <= 10 * n * U * condition * np.abs(y).max()


@for_each("precision", ["fp64", "fp32", "tf32"])
def test_a_hermitian_system_of_many_sides_is_solved(kernels: DenseKernels, precision: str) -> None:
    n, k = 130, 12
    G = random((n, n), np.complex128)
    A, B = G + G.conj().T, random((n, k), np.complex128)
    X, info = solve_on(kernels, A, B, precision)
    assert info.solved
    assert max(eta(A, X[:, j], B[:, j]) for j in range(k)) <= enough(n)
    Y = np.linalg.solve(A, B)
    assert np.abs(X - Y).max() <= 50 * n * U * np.linalg.cond(A) * np.abs(Y).max()


@for_each(("precision", "shift"), [("fp32", 0), ("fp16", 20), ("bf16", 20)])
def test_coarse_factors_are_refined_to_a_residual_of_one_roundoff(
    kernels: DenseKernels, precision: str, shift: float
) -> None:
    for seed, n in product((1, 2, 3), (200, 450) if not shift else (200,)):
        A, b = random((n, n), seed=seed) + shift * np.eye(n), random(n, seed=seed + 10)
        x, info = solve_on(kernels, A, b, precision)
        assert not info.fallback
        assert info.backward_error <= 1 / n
        assert eta(A, x, b) <= 2 / n  # the residual, summed in another order
        if not shift:  # and plain LU is no better
            assert eta(A, x, b) <= eta(A, np.linalg.solve(A, b), b)


def test_a_matrix_that_is_singular_in_fp32_only_is_solved(kernels: DenseKernels) -> None:
    A = np.array([[1.0, 1.0], [1.0, 1.0 + 2.0**-40]])
    x, info = solve_on(kernels, A, np.array([2.0, 2.0 + 2.0**-40]), "fp32")
    assert info.fallback
    assert "pivot 2 is zero" in info.message
    np.testing.assert_allclose(x, [1, 1], rtol=2.0**-10)  # condition 2^42, u = 2^-53


def test_fp64_factors_do_not_hide_that_an_fp32_matrix_is_singular(kernels: DenseKernels) -> None:
    """fp64 factors solve such systems for any condition; `auto` uses them because fp32 finds a zero pivot."""
    third = np.array([[3.0, 1.0], [1.0, 1 / 3]], np.float32)
    sums = random((60, 60), np.float32)
    sums[:, -1] = sums[:, :5].sum(axis=1)
    for A, precision in ((third, "auto"), (sums, "fp64")):
        _, info = solve_on(kernels, A, A @ np.ones(len(A), np.float32), precision)
        assert (info.precision, info.solved) == ("fp64", True)
        assert info.ill_conditioned
        assert "numerically singular" in info.message
    _, info = solve_on(kernels, random((60, 60), np.float32), np.ones(60, np.float32), "fp64")
    assert not info.ill_conditioned


def test_fp32_input_falls_back_to_fp64_where_it_must(kernels: DenseKernels) -> None:
    n = 200
    A, b = spectrum(n, 1e7).astype(np.float32), random(n, np.float32)
    x, info = solve_on(kernels, A, b, "bf16")
    assert x.dtype == np.float32
    assert (info.fallback, info.precision) == (True, "fp64")
    assert eta(A, x, b) <= enough(n)


# --- the ends of the range ---------------------------------------------------------------------------------------


@for_each(("dtype", "size"), [(np.float64, 1e-310), (np.float32, 1e-40), (np.complex128, 1e-310)])
@for_each("name", KERNELS)
def test_a_matrix_of_subnormal_numbers_is_solved(name: str, dtype: Any, size: float) -> None:
    """The numbers have few digits; x is compared with that of the same system times 2^k."""
    A, b = (size * random(shape, dtype) for shape in ((60, 60), 60))
    A, b = A.astype(dtype), b.astype(dtype)
    kept = A.copy()
    x, info = solve_on(dense_kernels(name), A, b)
    k = 2.0**1000 if np.finfo(dtype).maxexp > 128 else 2.0**120
    assert info.solved
    assert eta(A * A.dtype.type(k), x, b * A.dtype.type(k)) <= 3 * enough(60)
    assert np.array_equal(A, kept)


@for_each("dtype", [np.float64, np.complex128])
@for_each("name", KERNELS)
def test_right_hand_sides_near_the_largest_number_are_solved(name: str, dtype: Any) -> None:
    A, b = 1e3 * random((60, 60)), random(60, dtype)
    b *= 1.5e308 / np.abs([b.real, b.imag]).max()
    x, info = solve_on(dense_kernels(name), A, b)
    assert info.solved
    assert eta(A.astype(dtype), x / 2**40, b / 2**40) <= 3 * enough(60)


@for_each("name", KERNELS)
def test_a_solution_beyond_the_range_is_called_so(name: str) -> None:
    for b in (np.ones(9), np.full(9, 1.0 + 1.0j)):  # any other warning is an error
        x, info = solve_on(dense_kernels(name), 1e-310 * random((9, 9)), b)
        assert not info.solved
        assert "x is beyond the range of float64" in info.message
        assert "NaN" not in str(info)  # the general text of the outcome does not apply, because A and b are finite
        assert not np.isfinite(x).all()


@pytest.mark.parametrize("assume_a", ["gen", "pos"])
def test_columns_of_x_below_the_range_are_not_reported_as_solved(assume_a: str) -> None:
    """||r|| / ||A|| underflows for such columns, and few of many columns are checked individually."""
    A = 1e305 * (np.eye(5) + 0.1)
    B = np.ones((5, 9)) * 10.0 ** np.array([27, -64, -43, -39, 14, -53, -49, 41, 8])
    with pytest.warns((mx.NotSolvedWarning, mx.IllConditionedWarning)):
        X, info = mx.solve(A, B, assume_a=assume_a)
    assert not X[:, 1].any()
    assert not info.solved or info.ill_conditioned
    assert info.backward_error > 1e10


@pytest.mark.parametrize("assume_a", ["gen", "pos", "sym"])
def test_sums_of_rows_may_exceed_the_range_of_fp32(assume_a: str) -> None:
    A = np.full((6, 6), 8e37, np.float32) + np.diag(np.full(6, 2e38, np.float32))
    _, info = mx.solve(A, np.ones(6, np.float32), assume_a=assume_a)
    assert info.solved
    assert info.condition == pytest.approx(np.linalg.cond(A.astype(float), 1), rel=0.5)
    assert info.error_bound.normwise < 1e-4
    with pytest.warns(mx.IllConditionedWarning, match="x underflows"):
        _, info = mx.solve(A, np.full(6, 1e-30, np.float32), assume_a=assume_a)
    assert not np.isnan([info.condition, *info.error_bound]).any()


def near_the_largest(n: int, dtype: Any, seed: int = 1) -> Any:
    """Return a matrix with real and imaginary parts up to 2^1023 (fp64): row sums and complex moduli overflow."""
    A = random((n, n), dtype, seed)
    parts = [np.clip(part / 2.0, -1.0, 1.0) for part in (A.real, A.imag)]
    largest = np.finfo(dtype).max
    A = (parts[0] * largest + 1j * (parts[1] * largest)) if A.dtype.kind == "c" else parts[0] * largest
    return A.astype(dtype)


@for_each("dtype", [np.float64, np.complex128, np.complex64])
@for_each("name", KERNELS)
def test_matrices_whose_sums_and_moduli_overflow_are_solved(name: str, dtype: Any) -> None:
    n = 61
    A, small = near_the_largest(n, dtype), np.finfo(dtype).dtype.type(2.0**-20)
    with np.errstate(over="ignore"):
        assert np.abs(A).sum(axis=1).min() == np.inf or dtype is np.complex64
    for b, precision in product((A[:, 3] / 2 + A[:, 7] * small, random(n, dtype)), ("auto", "fp64", "fp32")):
        x, info = solve_on(dense_kernels(name), A, b, precision)
        assert info.solved
        assert info.message == ""
        assert eta(A * small, x, b * small) <= 3 * enough(n)
        assert 0.0 < info.componentwise_error <= 10.0  # infinite moduli would make it 0
        assert info.condition == pytest.approx(np.linalg.cond((A * small).astype(complex), 1), rel=0.7)


def test_factors_of_a_matrix_near_the_largest_number_serve_any_call() -> None:
    n = 40
    for dtype in (np.float64, np.complex128):
        A, b = near_the_largest(n, dtype), random(n, dtype)
        F = mx.lu_factor(A)
        x, info = F.solve(b, transposed=True)
        assert info.solved
        assert eta(A.T * 2.0**-20, x, b * 2.0**-20) <= 3 * enough(n)
        x, info = mx.refine(A, b, np.zeros_like(b), F)
        assert info.solved
        assert eta(A * 2.0**-20, x, b * 2.0**-20) <= 3 * enough(n)


@pytest.mark.parametrize("assume_a", ["sym", "her", "pos"])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_symmetric_matrices_near_the_largest_number_are_solved(assume_a: str, dtype: Any) -> None:
    n = 40
    S = near_the_largest(n, dtype)
    other = np.tril(S, -1).T if assume_a == "sym" else np.tril(S, -1).conj().T
    A = np.tril(S) + other
    if assume_a != "sym":
        np.fill_diagonal(A, A.diagonal().real)
    if assume_a == "pos":
        A /= 64.0
        np.fill_diagonal(A, 1.7e308)
    garbage = np.where(np.tri(n, dtype=bool), A, np.nan)  # the other triangle is not read
    for precision in ("auto", "fp32"):
        x, info = mx.solve(garbage, np.ones(n), assume_a=assume_a, lower=True, precision=precision)
        assert info.solved
        assert info.message == ""
        assert eta(A * 2.0**-20, x, np.full(n, 2.0**-20, dtype)) <= 3 * enough(n)


def test_a_matrix_that_scaling_would_round_is_not_scaled_down() -> None:
    A = near_the_largest(30, np.float64)
    A[4, :5] = 5e-324
    x, info = mx.solve(A, np.ones(30))
    assert eta(A * 2.0**-20, x, np.full(30, 2.0**-20)) <= 3 * enough(30)
    assert info.componentwise_error <= 1.0


def test_factors_of_a_tiny_matrix_serve_any_right_hand_side() -> None:
    A = 1e-310 * random((30, 30))
    factors = mx.lu_factor(A)
    big, small = factors.solve(np.full(30, 1e-300)), factors.solve(np.full(30, 1e-315))
    assert big[1].solved
    assert small[1].solved
    assert small[1].message == ""
    assert np.allclose(big[0] * 1e-15, small[0], rtol=1e-6)
    transposed, info = factors.solve(A.T @ np.ones(30), transposed=True)
    assert info.solved
    np.testing.assert_allclose(transposed, np.ones(30), rtol=1e-9)


def with_small_values(n: int, values: list[float], dtype: str = "float64") -> Any:
    """Return a matrix with singular values 1 and a few small ones."""
    Q, R = (np.linalg.qr(random((n, n), dtype, seed))[0] for seed in (5, 6))
    return np.asarray((Q * np.r_[np.ones(n - len(values)), values]) @ R)


@for_each("dtype", ["float64", "complex128"])
@for_each("size", [1e-8, 1e-10, 1e-12])
def test_a_single_small_singular_value_is_taken_out_of_fp32_factors(
    kernels: DenseKernels, size: float, dtype: str
) -> None:
    n = 131
    A = with_small_values(n, [size], dtype)
    B = np.stack([random(n, dtype), A @ np.ones(n)], axis=1)  # for the second b, x is not large
    for each in (A, np.asfortranarray(A)):
        F = lu_factor_on(kernels, each, "fp32")
        for transposed, M in ((False, each), (True, each.T)):
            X, info = F.solve(B, transposed=transposed)
            assert (info.precision, info.solved, info.fallback, info.ill_conditioned) == ("fp32", True, False, False)
            for x, b in zip(X.T, B.T):
                assert eta(M, x, b) <= enough(n)
                y = np.linalg.solve(M, b)
                assert np.abs(x - y).max() <= forward_bound(M, n, y)
            # Higham's estimate is a lower bound up to rounding, and rarely 3 times too small.
            exact = np.linalg.cond(M, 1)
            assert exact / 3 <= info.condition <= 1.2 * exact


def test_a_transpose_whose_own_correction_is_not_accurate_goes_to_fp64(
    kernels: DenseKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 131
    A, b = with_small_values(n, [1e-10]), random(n)
    F = lu_factor_on(kernels, A, "fp32")
    assert F.precision == "fp32"
    monkeypatch.setattr(deflation, "plain_lu", lambda n, *, is_complex: 0.0)
    y, info = F.solve(b, transposed=True)
    assert (info.precision, info.fallback, info.solved) == ("fp64", True, True)
    assert "the LU in fp32 indicates that the condition of A is" in info.message
    assert eta(A.T, y, b) <= enough(n)
    assert F.precision == "fp64"


def test_fp64_is_used_if_deflation_is_not_sufficient(kernels: DenseKernels) -> None:
    """There is more than one small singular value, or one of which only fp64 shows whether it is zero."""
    n = 131
    for values, singular in (([1e-10, 1e-10], False), ([1e-9] * 5, False), ([1e-14], False), ([1e-18], True)):
        A = with_small_values(n, values)
        for b in (random(n), A @ np.ones(n)):
            x, info = solve_on(kernels, A, b, "fp32")
            assert (info.precision, info.fallback, info.solved) == ("fp64", True, True)
            assert info.ill_conditioned == singular
            assert eta(A, x, b) <= enough(n)
