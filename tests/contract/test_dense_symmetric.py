"""Test the kernels of symmetric matrices on every backend: copies, Cholesky, L D L^T, solves and residuals.

The triangle that is not read contains NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from mxpeak.kernels.contract.dense import SymmetricFactor, Triangle
from mxpeak.kernels.host.dense import dense as host_dense
from mxpeak.kernels.host.engine import blas, lapack
from mxpeak.kernels.reference import dense as reference_dense
from mxpeak.precision import PRECISIONS
from tests.support.backends import BACKENDS, Backend, backend_named
from tests.support.systems import TYPES, layouts, random
from tests.support.turns import for_each

WIDTH = 16
U32 = 2.0**-24
#: Whether the lower triangle is read, and whether the upper one is its conjugate.
FORMS = tuple(product((False, True), repeat=2))


@pytest.fixture(scope="module", params=[name for name in BACKENDS if "threads" not in name])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Provide each backend with different dense kernels, with narrow panels and passes in small pieces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference_dense, "WIDTH", WIDTH)
        patch.setattr(lapack, "NB", WIDTH)
        patch.setattr(host_dense, "CACHED", 100)
        backend = backend_named(request.param)
        if backend.on_torch:
            from mxpeak.kernels.torch.dense import dense, symmetric

            init: Any = dense.TorchDense.__init__
            patch.setattr(dense.TorchDense, "__init__", lambda self, device, **more: init(self, device, WIDTH, **more))
            patch.setattr(dense, "STRIP", 100)
            patch.setattr(symmetric, "HEIGHT", 5)
        yield backend


def symmetric(n: int, dtype: Any, *, hermitian: bool, definite: bool = False) -> Any:
    """Return a random symmetric or Hermitian matrix."""
    X = random((n, n), dtype)
    across = np.conj(X.T) if hermitian else X.T
    A = X @ across / n if definite else (X + across) / 2
    A[np.arange(n), np.arange(n)] += 0.5 if definite else 0.0
    if hermitian:
        np.fill_diagonal(A, A.diagonal().real)
    return A


def one_triangle(A: Any, *, lower: bool) -> Any:
    """Return A with NaN in the triangle that is not read."""
    half = A.copy("K")
    half[np.triu_indices(len(A), 1) if lower else np.tril_indices(len(A), -1)] = np.nan
    return half


def copied(backend: Backend, A: Any, *, lower: bool, hermitian: bool) -> Triangle:
    """Copy the triangle of A to storage for factors."""
    dense = backend.kernels.dense
    W = dense.factor_storage(len(A), A.dtype)
    triangle = Triangle(backend.array(one_triangle(A, lower=lower)), lower, hermitian)
    with dense.computing():
        dense.copy_triangle(triangle, None, W)
    return Triangle(W, lower, hermitian)


def cholesky(backend: Backend, A: Any, precision: str, *, lower: bool, shift: float = 0.0) -> SymmetricFactor:
    W = copied(backend, A, lower=lower, hermitian=True)
    with backend.kernels.dense.computing():
        return backend.kernels.dense.cholesky(W, precision, shift)


def product_of(backend: Backend, F: SymmetricFactor) -> tuple[Any, Any]:
    """Return L L^H and |L||L^H| of a Cholesky factor, in the order of the factored matrix."""
    with np.errstate(invalid="ignore"):  # the other triangle is undefined
        C = backend.numpy(F.W.array).astype(np.complex128)
    L = np.tril(C) if F.W.lower else np.conj(np.triu(C).T)
    both = L @ np.conj(L.T), np.abs(L) @ np.abs(L.T)
    return (both[0].T, both[1].T) if F.transposed else both


@for_each("dtype", TYPES)
def test_a_triangle_is_copied_rounded_and_summed(backend: Backend, dtype: Any) -> None:
    n, dense = 23, backend.kernels.dense
    by_row = 2.0 ** np.arange(-11.0, 12.0)
    low = np.dtype(np.complex64 if np.dtype(dtype).kind == "c" else np.float32)
    for (lower, hermitian), order, scaled in product(FORMS, ("C", "F", "padded rows"), (False, True)):
        A = symmetric(n, dtype, hermitian=hermitian)
        laid_out = layouts(one_triangle(A, lower=lower))[order]
        W = dense.factor_storage(n, low)
        triangle = Triangle(backend.array(laid_out), lower, hermitian)
        with dense.computing():
            sums, largest = dense.copy_triangle(triangle, backend.array(by_row) if scaled else None, W)
        expected = (A * by_row[:, None] * by_row if scaled else A).astype(low)
        read = np.tri(n, dtype=bool) if lower else np.tri(n, dtype=bool).T
        np.testing.assert_array_equal(backend.numpy(W)[read], expected[read])
        sizes = np.abs(expected).astype(np.float64)
        np.testing.assert_allclose(backend.numpy(sums), sizes.sum(axis=1), rtol=2 * n * U32)
        assert largest == pytest.approx(sizes.max(), rel=4 * U32)


def test_imaginary_parts_of_a_hermitian_diagonal_are_not_read(backend: Backend) -> None:
    n, dense = 23, backend.kernels.dense
    A = symmetric(n, np.complex128, hermitian=True, definite=True)
    X, B = random((n, 2), np.complex128, 2), random((n, 2), np.complex128, 3)
    for lower in (False, True):
        odd = one_triangle(A, lower=lower)
        odd[np.arange(n), np.arange(n)] += 7j
        triangle = Triangle(backend.array(odd), lower, True)
        R = backend.numpy(dense.residual(backend.array(B), triangle, backend.array(X)))
        np.testing.assert_allclose(R, B - A @ X, atol=1e-13 * n)
        W = dense.factor_storage(n, np.dtype(np.complex128))
        dense.copy_triangle(triangle, None, W)
        assert not backend.numpy(W).diagonal().imag.any()


@for_each("dtype", TYPES)
def test_a_cholesky_factor_has_small_errors_and_solves(backend: Backend, dtype: Any) -> None:
    dense, u = backend.kernels.dense, float(np.finfo(dtype).eps) / 2
    precision = "fp64" if u < 1e-10 else "fp32"
    for n, lower in product((1, 2, 2 * WIDTH + 5), (False, True)):
        A = symmetric(n, dtype, hermitian=True, definite=True)
        F = cholesky(backend, A, precision, lower=lower)
        assert F.breakdown == 0
        found, sizes = product_of(backend, F)
        # (n + 1)·u of each entry of |L||L^H| (Higham 2002, theorem 10.3), and √8 times that for complex products.
        assert (np.abs(found - A) <= 3 * (n + 1) * u * sizes).all()
        for k in (1, 3):
            B = random((n, k), dtype, 2)
            X = backend.numpy(dense.solve_symmetric(F, backend.array(B)))
            exact = np.linalg.solve(A.astype(np.complex128), B)
            assert np.abs(X - exact).max() <= 20 * n * u * np.linalg.cond(A) * np.abs(exact).max()
            assert X.dtype == dtype
        largest = (np.abs(np.linalg.cholesky(A)).diagonal() ** 2).max()
        assert dense.largest_pivot(F) == pytest.approx(largest, rel=1e-3) or not lower


@for_each("precision", ("tf32", "bf16", "fp16", "fp8"))
def test_a_rounded_cholesky_errs_by_its_operands_roundoff(backend: Backend, precision: str) -> None:
    for dtype, n, lower in product((np.float32, np.complex64), (1, WIDTH, 2 * WIDTH + 5), (False, True)):
        A = symmetric(n, dtype, hermitian=True, definite=True)
        A[np.arange(n), np.arange(n)] += 1.0
        F = cholesky(backend, A, precision, lower=lower)
        assert F.breakdown == 0
        A_factored, sizes = product_of(backend, F)
        # The terms are those of the rounded LU: 2u and u² from the two operands, √2 for two parts, and underflow.
        u, lost = PRECISIONS[precision].u, PRECISIONS[precision].spacing
        flushed = lost * 4 * n
        errors = np.abs(A_factored - A)
        assert (errors <= 2.2 * u * sizes * np.sqrt(2) + 3 * n * U32 * sizes + flushed).all()
        if n <= WIDTH:
            assert (errors <= 3 * (n + 1) * U32 * sizes).all()
        else:
            assert (errors > u / 16 * sizes).any()


def test_the_first_minor_that_is_not_positive_is_found_in_any_panel(backend: Backend) -> None:
    for (n, at), lower, precision in product(
        ((1, 0), (3 * WIDTH - 2, 0), (3 * WIDTH - 2, 2 * WIDTH + 3)), (False, True), ("fp32", "bf16")
    ):
        for value in (0.0, -1.0):
            A = np.eye(n, dtype=np.float32)
            A[at, at] = value
            assert cholesky(backend, A, precision, lower=lower).breakdown == at + 1


def test_a_shift_increases_the_diagonal(backend: Backend) -> None:
    A = symmetric(20, np.float64, hermitian=True, definite=True)
    for lower in (False, True):
        found, _ = product_of(backend, cholesky(backend, A, "fp64", lower=lower, shift=0.25))
        np.testing.assert_allclose(found.real, A + 0.25 * np.diag(A.diagonal()), atol=1e-13)


@for_each("dtype", TYPES)
def test_ldl_factors_solve_indefinite_systems(backend: Backend, dtype: Any) -> None:
    dense, u = backend.kernels.dense, float(np.finfo(dtype).eps) / 2
    for n, (lower, hermitian) in product((1, 2, 2 * WIDTH + 5), FORMS):
        A = symmetric(n, dtype, hermitian=hermitian)
        if n > 1:
            A[np.arange(n), np.arange(n)] = 0.0  # so that blocks of order 2 are necessary
        W = copied(backend, A, lower=lower, hermitian=hermitian)
        F = dense.ldl(W)
        assert F.breakdown == 0
        B = random((n, 3), dtype, 2)
        X = backend.numpy(dense.solve_symmetric(F, backend.array(B)))
        exact = np.linalg.solve(A.astype(np.complex128), B)
        assert np.abs(X - exact).max() <= 40 * n * u * np.linalg.cond(A) * np.abs(exact).max()
        assert np.abs(A).max() / 4 <= dense.largest_pivot(F) <= 2.6 ** min(n, 9) * np.abs(A).max()


def test_the_first_zero_pivot_of_ldl_is_found(backend: Backend) -> None:
    for n, zero in ((1, 0), (9, 0), (9, 5)):
        A = np.eye(n)
        A[zero, zero] = 0.0
        for lower in (False, True):
            F = backend.kernels.dense.ldl(copied(backend, A, lower=lower, hermitian=False))
            assert F.breakdown == zero + 1


@for_each("dtype", TYPES)
def test_residuals_read_one_triangle(backend: Backend, dtype: Any) -> None:
    for n, k, (lower, hermitian) in product((1, 23), (1, 3), FORMS):
        A = symmetric(n, dtype, hermitian=hermitian)
        X, B = random((n, k), dtype, 2), random((n, k), dtype, 3)
        expected = B - A.astype(np.complex128) @ X
        bound = 4 * n * np.finfo(dtype).eps * (np.abs(A) @ np.abs(X) + np.abs(B))
        for order in ("C", "F", "padded rows", "padded columns"):
            half = backend.array(layouts(one_triangle(A, lower=lower))[order])
            R = backend.numpy(
                backend.kernels.dense.residual(backend.array(B), Triangle(half, lower, hermitian), backend.array(X))
            )
            assert (np.abs(R - expected) <= bound).all()
            assert R.dtype == dtype
        T = Triangle(A, lower, hermitian).T
        assert (T.lower, T.shape, T.dtype, len(T)) == (not lower, (n, n), A.dtype, n)


def test_large_triangles_are_copied_by_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    n, dense = 33, host_dense.HostDense()
    triangle = Triangle(one_triangle(symmetric(n, np.float64, hermitian=True), lower=True), True, True)
    small, large = (dense.factor_storage(n, np.dtype(np.float32)) for _ in range(2))
    monkeypatch.setattr(host_dense, "CACHED", 100)
    expected = dense.copy_triangle(triangle, None, small)
    monkeypatch.setattr(host_dense, "LARGE", 1)
    monkeypatch.setattr(blas, "blas_facts", lambda: {"threads": 3})
    copied = dense.copy_triangle(triangle, None, large)
    assert np.array_equal(np.tril(large), np.tril(small))
    np.testing.assert_allclose(copied[0], expected[0], rtol=n * U32)  # summed in another order
    assert copied[1] == expected[1]
