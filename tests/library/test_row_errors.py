"""Test that row-wise backward errors are refined to the level of plain LU, and recorded in info."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mxpeak as mx
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.kernels.contract import DenseKernels
from mxpeak.library.dense.factors import backend_of
from mxpeak.solvers import array_factors
from mxpeak.solvers.accuracy import plain_lu_by_rows, row_errors
from mxpeak.solvers.array_factors import _sizes_of_few_terms, factor, least_sizes_of_terms, sizes_of_terms
from mxpeak.spans import Spans
from tests.support.systems import KERNELS, TYPES, U, dense_kernels, layouts, lu_factor_on, random, solve_on

Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(params=KERNELS)
def kernels(request: pytest.FixtureRequest) -> DenseKernels:
    return dense_kernels(request.param)


def omega(A: Array, x: Array, b: Array) -> float:
    """Return the worst row-wise backward error in n·u of the input's type, with residuals in long double."""
    wide: Any = np.clongdouble if A.dtype.kind == "c" else np.longdouble
    X, B = (np.reshape(V, (len(A), -1)).astype(wide) for V in (x, b))
    sizes = np.abs(A).astype(np.longdouble) @ np.abs(X) + np.abs(B)
    residuals = np.abs(B - A.astype(wide) @ X)
    return float((residuals / np.where(sizes > 0, sizes, 1)).max()) / (len(A) * float(np.finfo(A.dtype).eps) / 2)


def small_block(n: int, dtype: Any = np.float64, size: float = 1e-14) -> tuple[Array, Array]:
    """Return an identity matrix with a random leading block, where b is small, so that norms hide its errors."""
    A, b = np.eye(n, dtype=dtype), np.ones(n, dtype)
    A[: n // 2, : n // 2] = random((n // 2, n // 2), dtype, seed=4)
    b[: n // 2] *= size
    return A, b


def off(A: Array, x: Array, b: Array) -> float:
    """Return the error of the block of x, relative to its largest entry."""
    m, y = len(A) // 2, np.linalg.solve(A, b)
    return float(np.abs(x - y)[:m].max() / np.abs(y[:m]).max())


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_small_blocks_of_x_have_all_their_digits_with_fp32_factors(kernels: DenseKernels, dtype: Any) -> None:
    A, b = small_block(160, dtype)
    # Two backward stable solutions differ by cond·(their row-wise errors): 160 roundings each are allowed here.
    bound = 320 * U * np.linalg.cond(A[:80, :80])
    x, info = solve_on(kernels, A, b, "fp32")
    F = lu_factor_on(kernels, A, "fp32")
    y, of_transpose = F.solve(b, transposed=True)
    for M, z, how in ((A, x, info), (A.T, y, of_transpose), (A, *F.solve(b))):
        assert off(M, z, b) <= bound
        assert how.precision == "fp32"
        assert how.componentwise_error == pytest.approx(omega(M, z, b), rel=0.2, abs=4 / 160)
        assert how.componentwise_error <= plain_lu_by_rows(160, is_complex=dtype is np.complex128)


def test_those_of_ranks_have_them_too() -> None:
    for dtype in (np.float64, np.complex128):
        A, b = small_block(60, dtype)

        def body(comm: Any, A: Array = A, b: Array = b) -> Any:
            F = mx.lu_factor(
                mx.DistributedMatrix.from_function(lambda i, j: A[i, j], 60, nb=8, comm=comm), precision="fp32"
            )
            return F.solve(b), F.solve(b, transposed="T")

        for answers in run_ranks(2, body):
            for M, (x, info) in zip((A, A.T), answers):
                assert off(M, x, b) <= 120 * U * np.linalg.cond(A[:30, :30])
                assert info.precision == "fp32"
                assert info.componentwise_error == pytest.approx(omega(M, x, b), rel=0.2, abs=4 / 60)
                assert info.componentwise_error <= plain_lu_by_rows(60, is_complex=dtype is np.complex128)


def test_rows_below_the_range_of_fp32_are_solved_by_fp64_factors() -> None:
    """Residuals of both blocks count, but next to the larger ones, the smaller ones are below the range of fp32."""
    A, b = small_block(80, size=1e-60)
    A[40:, 40:] = random((40, 40), seed=6)

    x, info = mx.solve(A, b, precision="fp32")
    assert info.fallback
    assert "too coarse for some rows: after" in info.message
    assert info.precision == "fp64"
    assert off(A, x, b) <= 160 * U * np.linalg.cond(A[:40, :40])
    assert info.componentwise_error <= plain_lu_by_rows(80, is_complex=False)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", [1, 7, 40, 130])
@pytest.mark.parametrize("k", [1, 3, 12])
def test_info_has_the_row_wise_error_of_every_function(dtype: Any, n: int, k: int) -> None:
    A, b = random((n, n), dtype), random((n, k), dtype, seed=2)
    F = mx.lu_factor(A)
    for M, x, info in (
        (A, *mx.solve(A, b)),
        (A, *mx.solve(A, b, precision="fp16")),
        (A.T, *mx.solve(A, b, transposed="T")),
        (A.conj().T, *mx.solve(A, b, transposed="H")),
        (A, *F.solve(b)),
        (A.conj().T, *F.solve(b, transposed="H")),
        (A, *mx.solve(A[None], b)),
    ):
        # A residual of n + 1 terms is off by up to n + 1 roundings, complex ones by 2·sqrt(2) times that.
        assert abs(info.componentwise_error - omega(M, x.reshape(n, k), b)) <= 2.83 * (n + 1) / n
        assert "row-wise error" in str(info)


def test_the_row_wise_error_is_unknown_where_what_it_is_of_was_changed() -> None:
    A, b = random((40, 40)), random((40, 1))
    calls = [lambda: mx.solve(A, b), lambda: mx.lu_factor(A).solve(b), lambda: mx.solve(A[None], b)]
    for number, call in enumerate(calls):
        _, info = call()
        A *= 1.0 + 1e-9
        assert np.isnan(info.componentwise_error)
        assert "unknown, because A, b or x was changed" in str(info)
        for change_x in (True, False):
            kept = b.copy()
            x, info = call()
            changed = x if change_x else b
            changed *= 1.0 + 1e-9
            # All functions except `solve` itself copy these.
            assert np.isnan(info.componentwise_error) == (number == 0)
            b[:] = kept


def test_no_pass_over_a_is_made_for_the_row_wise_error_of_an_ordinary_system(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    monkeypatch.setattr(array_factors, "sizes_of_terms", lambda *a: passes.append(1) or sizes_of_terms(*a))
    rng = np.random.default_rng(8)
    n = 900
    for A in (random((n, n)), rng.random((n, n)) - 0.5, rng.random((n, n)), random((n, n)) + n * np.eye(n)):
        assert mx.solve(A, rng.standard_normal(n), precision="fp32")[1].iterations > 0
    assert not passes
    mx.solve(*small_block(100), precision="fp32")
    assert passes


def test_the_lower_bound_of_the_sizes_is_one(kernels: DenseKernels) -> None:
    rng = np.random.default_rng(9)
    for n in (1, 5, 33, 100):
        spread = np.exp2(rng.integers(-20, 21, n))
        for A in (random((n, n)), random((n, n)) * spread[:, None] + np.eye(n), np.eye(n) + rng.random((n, n)) ** 9):
            for scaled in (A, A * np.exp2(rng.integers(-9, 9, n))):
                M, X, B = (
                    kernels.xp.asarray(V) for V in (scaled, rng.standard_cauchy((n, 3)), rng.standard_cauchy((n, 3)))
                )
                backend = backend_of(kernels, np.dtype(float))
                factors = factor(backend, M, "fp32", Spans(stopwatch=kernels.stopwatch))
                assert factors is not None
                scaling, sizes = factors.matrix.balance, sizes_of_terms(kernels, M, X, B)
                B_s = B if scaling is None else B * scaling.R[:, None]
                Y = X if scaling is None else X / scaling.C[:, None]
                sizes = sizes if scaling is None else sizes * scaling.R[:, None]
                P_s = kernels.xp.asarray(np.asarray(M) @ np.asarray(X))
                P_s = P_s if scaling is None else P_s * scaling.R[:, None]
                least = least_sizes_of_terms(factors.matrix, Y, B_s - P_s, B_s)
                # Sums of fp32 numbers have n + 1 roundings in fp32.
                assert bool((least <= sizes * (1 + (n + 1) * 2.0**-24)).all())


def test_few_columns_give_a_lower_bound_of_the_sizes(kernels: DenseKernels) -> None:
    rng = np.random.default_rng(10)
    for n in (1, 15, 16, 100):
        A, X, R = rng.standard_normal((n, n)), rng.standard_cauchy((n, 3)), 1e-9 * rng.standard_normal((n, 3))
        for M in (A, A.T):
            arrays = [kernels.xp.asarray(V) for V in (M, X, R, M @ X + R)]
            least = np.asarray(_sizes_of_few_terms(kernels, *arrays))
            sizes = np.abs(M) @ np.abs(X) + np.abs(M @ X + R)
            assert (least <= sizes * (1 + 1e-13)).all()
            assert (least >= np.abs(M @ X) * (1 - 1e-13)).all()


def test_sizes_are_the_same_in_every_memory_order(kernels: DenseKernels) -> None:
    for dtype in TYPES:
        A, X, B = random((37, 37), dtype), random((37, 2), dtype, 2), random((37, 2), dtype, 3)
        exact = np.abs(A) @ np.abs(X) + np.abs(B)
        for name in ("C", "F", "padded rows", "padded columns"):
            M = layouts(A)[name]
            M = M if kernels.device is None else kernels.xp.asarray(M)
            found = sizes_of_terms(kernels, M, kernels.xp.asarray(X), kernels.xp.asarray(B))
            np.testing.assert_allclose(np.asarray(found), exact, rtol=40 * float(np.finfo(dtype).eps))


def test_rows_of_zeros_and_residuals_of_subnormal_numbers_count_as_solved() -> None:
    R, D = np.array([[0.0, 5e-324, 1e-3]]).T, np.array([[0.0, 0.0, 1.0]]).T
    assert row_errors(np, R, D, 3).max() == pytest.approx(1e-3)
    for bad in (np.nan, np.inf):
        assert not np.isfinite(row_errors(np, np.array([[bad], [1.0]]), np.ones((2, 1)), 2)).all()


def spread_system(n: int, decades: int, seed: int) -> tuple[Array, Array]:
    """Return a dense system whose entries differ by 2·`decades` orders of magnitude within each row."""
    rng = np.random.default_rng([n, decades, seed])
    return rng.standard_normal((n, n)) * 10.0 ** rng.uniform(-decades, decades, (n, n)), rng.standard_normal(n)


@pytest.mark.parametrize(("n", "decades"), [(5, 8), (20, 16), (40, 16)])
def test_solutions_with_scaled_fp64_factors_are_refined_by_rows(n: int, decades: int) -> None:
    refined = 0
    for seed in range(20):
        A, b = spread_system(n, decades, seed)
        x, info = mx.solve(A, b)
        y, of_factors = mx.lu_factor(A).solve(b)
        if info.scaled and info.precision == "fp64" and not info.message:
            assert omega(A, x, b) <= plain_lu_by_rows(n, is_complex=False)
            assert of_factors.message or omega(A, y, b) <= plain_lu_by_rows(n, is_complex=False)
            refined += info.iterations > 0
    assert refined > 0


def test_a_row_that_refinement_does_not_reach_is_named() -> None:
    A, b = spread_system(5, 150, 22)
    with pytest.warns(mx.IllConditionedWarning, match="row-wise backward error"):
        _, info = mx.solve(A, b)
    assert info.solved
    assert info.ill_conditioned
    assert info.componentwise_error > plain_lu_by_rows(5, is_complex=False)
