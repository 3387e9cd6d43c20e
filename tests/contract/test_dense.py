"""Test the kernels of dense solves on every backend: copies, sums, LU, solves and residuals."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mxpeak.errors import ResourceError
from mxpeak.kernels.contract.dense import PivotedLU
from mxpeak.kernels.host.dense import dense as host_dense
from mxpeak.kernels.host.engine import blas, lapack
from mxpeak.kernels.host.engine.matrix_engines import chosen
from mxpeak.kernels.reference import dense as reference_dense
from mxpeak.kernels.reference.rounding import rounded
from mxpeak.precision import PRECISIONS
from mxpeak.solvers.condition import inverse_one_norm
from tests.support.backends import BACKENDS, Backend, backend_named, narrow
from tests.support.systems import TYPES, layouts, random
from tests.support.turns import for_each

#: Columns of a panel of the rounded LU, so that small matrices have several.
WIDTH = 16
U32 = 2.0**-24
ROUNDED = ("tf32", "bf16", "fp16", "fp8")


@pytest.fixture(scope="module", params=[name for name in BACKENDS if "threads" not in name])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Provide each backend with different dense kernels, with narrow panels and passes in small pieces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference_dense, "WIDTH", WIDTH)
        patch.setattr(lapack, "NB", WIDTH)
        patch.setattr(host_dense, "CACHED", 40)
        backend = backend_named(request.param)
        if backend.on_torch:
            from mxpeak.kernels.torch.dense import dense
            from mxpeak.kernels.torch.lu import pivoted_lu

            patch.setattr(pivoted_lu, "WIDTH", WIDTH)
            patch.setattr(dense.TorchDense, "__init__", narrow(dense.TorchDense.__init__, WIDTH))
            patch.setattr(dense, "STRIP", 40)
        yield backend


def rows_of(backend: Backend, F: PivotedLU) -> Any:
    """Return the rows of the factored matrix in the order of the rows of L U."""
    rows = backend.numpy(F.rows)
    if backend.name != "host":
        return rows
    moved = np.arange(len(rows))
    for i, p in enumerate(rows - 1):
        moved[[i, p]] = moved[[p, i]]
    return moved


def triangles(backend: Backend, F: PivotedLU) -> tuple[Any, Any]:
    """Return L and U."""
    LU = backend.numpy(F.LU).astype(np.complex128)
    return np.tril(LU, -1) + np.eye(len(LU)), np.triu(LU)


def factored(backend: Backend, A: Any, precision: str) -> PivotedLU:
    """Copy A to separate storage and factor it."""
    dense = backend.kernels.dense
    W = dense.factor_storage(len(A), A.dtype)
    dense.scaled_copy(backend.array(A), None, W)
    with dense.computing():
        return dense.factor(W, precision)


# --- the LU


@for_each("dtype", TYPES)
def test_the_lu_lies_where_the_matrix_was(backend: Backend, dtype: Any) -> None:
    precision = "fp64" if np.finfo(dtype).eps < 1e-10 else "fp32"
    for n in (1, 2, 2 * WIDTH + 5):
        A = random((n, n), dtype)
        F = factored(backend, A, precision)
        L, U = triangles(backend, F)
        # n·u of each entry of |L||U|, and √8 times that for complex products.
        bound = 3 * n * np.finfo(dtype).eps / 2 * (np.abs(L) @ np.abs(U))
        assert (np.abs(L @ U - (A.T if F.transposed else A)[rows_of(backend, F)]) <= bound).all()
        assert F.singular == 0
        assert backend.kernels.dense.last_row(F) == rows_of(backend, F)[-1]
        # Pivots are the largest, of complex numbers by |Re| + |Im|.
        assert (np.abs(L) <= (np.sqrt(2) if A.dtype.kind == "c" else 1) + 4 * np.finfo(dtype).eps).all()


@for_each("precision", ROUNDED)
def test_the_rounded_lu_errs_by_its_operands_roundoff(backend: Backend, precision: str) -> None:
    for dtype, n in product((np.float32, np.complex64), (1, WIDTH, 2 * WIDTH + 5)):
        A = random((n, n), dtype) / 8
        F = factored(backend, A, precision)
        L, U = triangles(backend, F)
        rows = rows_of(backend, F)
        assert F.singular == 0
        assert sorted(rows) == list(range(n))
        errors, size = np.abs(L @ U - (A.T if F.transposed else A)[rows]), np.abs(L) @ np.abs(U)
        # 2u and u² from the operands, |L||U| in all, √2 for two parts; underflow adds at most half a spacing of each
        # operand, times the other operand.
        u, lost = PRECISIONS[precision].u, PRECISIONS[precision].spacing
        flushed = lost * 2 * (np.abs(L).sum(axis=1).max() + np.abs(U).sum(axis=0).max() + 2)
        assert (errors <= 2.2 * u * size * np.sqrt(2) + 3 * n * U32 * size + flushed).all()
        # The arithmetic of panels is not so coarse: the first panel is an fp32 LU.
        assert (errors[:, :WIDTH] <= 3 * n * U32 * size[:, :WIDTH]).all()
        if n > WIDTH:  # the other columns are no more accurate than their operands
            assert (errors > u / 8 * size).any()


def test_the_first_zero_pivot_is_found_in_any_panel(backend: Backend) -> None:
    for n, zero in ((1, 0), (3 * WIDTH - 2, 0), (3 * WIDTH - 2, 2 * WIDTH + 3)):
        A = np.eye(n, dtype=np.float32)
        A[zero, zero] = 0
        for precision in ("fp32", "bf16"):
            assert factored(backend, A, precision).singular == zero + 1


@for_each("dtype", TYPES)
def test_an_lu_goes_on_unless_its_first_pivots_make_it_vain(backend: Backend, dtype: Any) -> None:
    dense = backend.kernels.dense
    for n, zero in ((1, 1), (2, 2), (3 * WIDTH - 1, 3 * WIDTH - 1), (3 * WIDTH - 1, 2), (3 * WIDTH - 1, 2 * WIDTH)):
        A = random((n, n), dtype)
        A[zero:] = A[:, zero:] = 0  # a pivot is exactly zero there
        seen: list[Any] = []
        for stops in (True, False):

            def look(pivots: Any, stops: bool = stops) -> bool:
                seen.append(backend.numpy(pivots))  # noqa: B023
                return stops

            W = dense.factor_storage(n, A.dtype)
            dense.scaled_copy(backend.array(A), None, W)
            with dense.computing():
                F = dense.factor_with_early_exit(look, W)
            assert (F is None) == stops
        assert F is not None
        L, U = triangles(backend, F)
        bound = 3 * n * np.finfo(dtype).eps / 2 * (np.abs(L) @ np.abs(U))  # as above
        assert (np.abs(L @ U - (A.T if F.transposed else A)[rows_of(backend, F)]) <= bound).all()
        assert F.singular == (zero + 1 if zero < n else 0)
        assert np.allclose(seen, [abs(U.diagonal()[: n // 8])] * 2, rtol=4 * np.finfo(dtype).eps, atol=0)  # by hypot


# --- use of the factors ----------


@for_each("precision", ["fp64", "fp32", "tf32"])
def test_solves_invert_the_matrix_and_its_transpose(backend: Backend, precision: str) -> None:
    n = 2 * WIDTH + 13
    for is_complex, k in product((False, True), (1, 3)):
        dtype = np.dtype(("c" if is_complex else "f") + str((8 if precision == "fp64" else 4) * (1 + is_complex)))
        A, B = random((n, n), dtype), random((n, k), dtype, 2)
        F = factored(backend, A, precision)
        for transposed in (False, True):
            before = backend.array(np.array(B))
            X = backend.numpy(backend.kernels.dense.solve(F, before, transposed=transposed))
            exact = np.linalg.solve((A.T if transposed else A).astype(np.complex128), B)
            bound = 20 * n * PRECISIONS[precision].u * np.linalg.cond(A.astype(np.complex128))
            assert np.abs(X - exact).max() <= bound * np.abs(exact).max()
            assert X.dtype == dtype
            assert np.array_equal(backend.numpy(before), B)


@for_each("dtype", TYPES)
def test_the_norm_of_the_inverse_is_estimated_from_below(backend: Backend, dtype: Any) -> None:
    n, dense = 50, backend.kernels.dense
    xp = dense.xp
    A = random((n, n), dtype)
    F = factored(backend, A, "fp64" if np.finfo(dtype).eps < 1e-10 else "fp32")
    dtype_of_x = backend.array(A).dtype

    def inverse(x: Any) -> Any:
        return dense.solve(F, x[:, None])[:, 0]

    def adjoint(x: Any) -> Any:
        return xp.conj(dense.solve(F, xp.conj(x[:, None]), transposed=True)[:, 0])

    exact = np.linalg.norm(np.linalg.inv(A.astype(np.complex128)), 1)
    rounding = 1 + 100 * n * np.finfo(dtype).eps * np.linalg.cond(A)
    found = inverse_one_norm(inverse, adjoint, xp.arange(n), n, dtype_of_x, xp)
    assert exact / 3 <= found * rounding <= exact * rounding**2


# --- least squares


@for_each("dtype", TYPES)
def test_the_triangle_of_a_qr_is_that_of_a_scaled_matrix(backend: Backend, dtype: Any) -> None:
    dense, u = backend.kernels.dense, np.finfo(dtype).eps / 2
    for m, n in ((1, 1), (7, 1), (12, 12), (60, 21)):
        wide_type = np.complex128 if np.dtype(dtype).kind == "c" else np.float64
        A, D = random((m, n), wide_type), 2.0 ** np.arange(-3.0, n - 3.0)
        for order in (np.ascontiguousarray, np.asfortranarray):
            kept = backend.array(order(A))
            R = backend.numpy(dense.triangle_of_qr(kept, backend.array(D), np.dtype(dtype)))
            assert R.dtype == dtype
            assert np.array_equal(R, np.triu(R))
            C = A * D
            sizes = np.linalg.norm(C, axis=0)  # R^H R = (C + E)^H (C + E), with E of a few sqrt(m n) roundings
            errors = np.abs(R.conj().T.astype(wide_type) @ R - C.conj().T @ C)
            assert (errors <= 20 * np.sqrt(m * n) * u * np.outer(sizes, sizes)).all()
            assert np.array_equal(backend.numpy(kept), A)


@for_each("dtype", TYPES)
def test_triangles_are_solved_and_so_are_their_adjoints(backend: Backend, dtype: Any) -> None:
    dense, u = backend.kernels.dense, np.finfo(dtype).eps / 2
    for n, k in ((1, 1), (13, 1), (13, 4)):
        R, B = np.triu(random((n, n), dtype) + 5 * np.eye(n, dtype=dtype)), random((n, k), dtype, 2)
        for adjoint in (False, True):
            T = R.conj().T if adjoint else R
            before = backend.array(np.array(B))
            X = backend.numpy(dense.solve_triangle(backend.array(np.asfortranarray(R)), before, adjoint=adjoint))
            assert X.dtype == dtype
            assert (np.abs(B - T.astype(np.complex128) @ X) <= 4 * n * u * (np.abs(T) @ np.abs(X))).all()
            assert np.array_equal(backend.numpy(before), B)


@for_each("dtype", [np.float64, np.complex128])
def test_singular_values_give_the_solution_of_minimum_norm(backend: Backend, dtype: Any) -> None:
    dense = backend.kernels.dense
    for m, n, rank in ((9, 5, 5), (5, 9, 5), (9, 5, 3), (5, 9, 2), (4, 4, 0)):
        A, B = random((m, rank), dtype) @ random((rank, n), dtype, 2), random((m, 2), dtype, 3)
        X, found, values = dense.solve_by_svd(backend.array(A), backend.array(B), 1e-12)
        assert found == rank
        assert np.abs(backend.numpy(X) - np.linalg.pinv(A, rcond=1e-12) @ B).max() <= 1e-12
        assert np.abs(backend.numpy(values) - np.linalg.svd(A, compute_uv=False)).max() <= 1e-13


# --- passes over A


def test_a_scaled_copy_is_rounded_and_summed_up(backend: Backend) -> None:
    n, dense = 23, backend.kernels.dense
    by_row, by_column = 2.0 ** np.arange(-11.0, 12.0), 2.0 ** np.arange(40.0, 17.0, -1.0)
    scales = backend.array(by_row), backend.array(by_column)
    for wide, narrow_type in ((np.float64, np.float64), (np.float64, np.float32), (np.complex128, np.complex64)):
        A = random((n, n), wide)
        for name in ("C", "F", "padded rows", "padded columns"):
            laid_out = layouts(A)[name]
            for scaled in (False, True):
                W = dense.factor_storage(n, np.dtype(narrow_type))
                row_sums, column_sums, largest = dense.scaled_copy(
                    backend.array(laid_out), scales if scaled else None, W
                )
                expected = (A * by_row[:, None] * by_column if scaled else A).astype(narrow_type)
                assert np.array_equal(backend.numpy(W), expected), name
                sizes, u = np.abs(expected).astype(np.float64), float(np.finfo(narrow_type).eps) / 2
                np.testing.assert_allclose(backend.numpy(row_sums), sizes.sum(axis=1), rtol=2 * n * u)
                np.testing.assert_allclose(backend.numpy(column_sums), sizes.sum(axis=0), rtol=2 * n * u)
                # Absolute values of complex numbers are rounded in many ways.
                assert largest == pytest.approx(sizes.max(), rel=4 * u)
    assert np.array_equal(backend.numpy(scales[0]), by_row)


def test_sizes_are_those_of_the_matrix(backend: Backend) -> None:
    n, dense = 23, backend.kernels.dense
    by_row, by_column = 2.0 ** np.arange(-11.0, 12.0), 2.0 ** np.arange(40.0, 17.0, -1.0)
    for dtype in TYPES:
        A = random((n, n), dtype)
        for name in ("C", "F", "padded rows"):
            laid_out = backend.array(layouts(A)[name])
            maxima = dense.largest_entries(laid_out, backend.array(by_row), backend.array(by_column))
            scaled, u = np.abs(A) * by_row[:, None] * by_column, np.finfo(dtype).eps / 2
            np.testing.assert_allclose(backend.numpy(maxima[0]), scaled.max(axis=1), rtol=8 * u)
            np.testing.assert_allclose(backend.numpy(maxima[1]), scaled.max(axis=0), rtol=8 * u)
            rows, columns = (backend.array(np.full(n, np.nan)) for _ in range(2))
            dense.abs_sums(laid_out, rows, columns)
            sizes = np.abs(A.astype(np.complex128))
            np.testing.assert_allclose(backend.numpy(rows), sizes.sum(axis=1), rtol=8 * u)
            np.testing.assert_allclose(backend.numpy(columns), sizes.sum(axis=0), rtol=8 * u)


def test_what_overflows_is_seen_in_the_sums(backend: Backend) -> None:
    dense = backend.kernels.dense
    for bad in (1e60, np.nan, np.inf):
        A = np.ones((9, 9))
        A[4, 7] = bad
        W = dense.factor_storage(9, np.dtype(np.float32))
        with dense.computing():
            row_sums, column_sums, _ = dense.scaled_copy(backend.array(A), None, W)
        assert np.isfinite(backend.numpy(row_sums)).tolist() == [i != 4 for i in range(9)]
        assert np.isfinite(backend.numpy(column_sums)).tolist() == [j != 7 for j in range(9)]


@for_each("dtype", TYPES)
def test_residuals_are_new_blocks(backend: Backend, dtype: Any) -> None:
    for m, n, k in ((1, 1, 1), (23, 23, 1), (23, 23, 3), (23, 4, 1), (23, 4, 2)):
        A, X, B = random((m, n), dtype), random((n, k), dtype, 2), random((m, k), dtype, 3)
        expected = B - A.astype(np.complex128) @ X
        bound = 4 * n * np.finfo(dtype).eps * (np.abs(A) @ np.abs(X) + np.abs(B))
        for orders in product((np.ascontiguousarray, np.asfortranarray), repeat=3):
            parts = [backend.array(order(part)) for order, part in zip(orders, (B, A, X))]
            R = backend.numpy(backend.kernels.dense.residual(*parts))
            assert (np.abs(R - expected) <= bound).all()
            assert R.dtype == dtype
            assert all(np.array_equal(backend.numpy(one), part) for one, part in zip(parts, (B, A, X)))


def test_factor_storage_is_row_major_and_emulated_formats_are_reported(backend: Backend) -> None:
    dense = backend.kernels.dense
    for dtype in TYPES:
        W = backend.numpy(dense.factor_storage(7, np.dtype(dtype)))
        assert (W.shape, W.dtype, W.flags.c_contiguous) == ((7, 7), dtype, True)
        for precision in ("fp64", "fp32"):
            assert not dense.emulates(precision, np.dtype(dtype))
    assert dense.emulates("fp16", np.dtype(np.complex128))
    if isinstance(dense, host_dense.HostDense):
        native = {name for name in ROUNDED if not dense.emulates(name, np.dtype(np.float64))}
        assert native == {engine.precision for engine in chosen()}
    assert (dense.device is None) == (not backend.on_torch)
    dense.check_memory(100, np.dtype(np.float64), "bf16", copied=True)


# --- host only


@for_each("precision", ROUNDED)
def test_the_host_rounds_as_the_reference_does(precision: str) -> None:
    p, smallest = PRECISIONS[precision].p, PRECISIONS[precision].smallest
    halves = [1 + 2.0**-p, 1 + 3 * 2.0**-p, -1 - 2.0**-p, smallest * 1.5, smallest / 4, np.inf, 0.0]
    A = np.concatenate([random(60, np.float32), np.array(halves, np.float32)]).reshape(-1, 1)
    expected = rounded(A.astype(np.float64), precision).astype(np.float32)
    if precision != "tf32":
        np.testing.assert_array_equal(lapack.rounded(A, precision), expected)
    else:  # tf32 has the range of fp32: below its smallest normal number, bits are cut where those of fp32 are
        normal = np.abs(A) >= smallest
        np.testing.assert_array_equal(lapack.rounded(A, precision)[normal], expected[normal])
    C = random((4, 3), np.complex64)
    for part in ("real", "imag"):
        alone = lapack.rounded(np.ascontiguousarray(getattr(C, part)), precision)
        assert np.array_equal(getattr(lapack.rounded(C, precision), part), alone)


@for_each("scaled", [False, True])
def test_large_matrices_have_pages_and_threads_of_their_own(scaled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    n, dense = 33, host_dense.HostDense()
    A, scales = random((n, n)), (2.0 ** np.arange(n), 2.0 ** np.arange(0.0, -n, -1.0)) if scaled else None
    small = dense.factor_storage(n, np.dtype(np.float32))
    expected = dense.scaled_copy(A, scales, small)
    monkeypatch.setattr(host_dense, "LARGE", 1)
    monkeypatch.setattr(blas, "blas_facts", lambda: {"threads": 3})
    large = dense.factor_storage(n, np.dtype(np.float32))
    assert large.base is not None, "an anonymous map"
    copied = dense.scaled_copy(A, scales, large)
    assert np.array_equal(large, small)
    assert np.array_equal(copied[0], expected[0])
    np.testing.assert_allclose(copied[1], expected[1], rtol=n * U32)  # summed in another order
    assert copied[2] == expected[2]


def test_a_library_whose_integers_have_64_bits_is_refused() -> None:
    """mxpeak uses 32-bit integers: such a library would read beyond each of them."""
    name = b"void (char *, blas_int *, double *, blas_int *, blas_int *)"
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    capsule = new(blas.address("dgemm"), name, None)
    with pytest.raises(
        ResourceError, match=r"dgetrf in this SciPy does not accept 32-bit integers: void \(char \*, blas_int"
    ):
        blas.address("dgetrf", SimpleNamespace(__pyx_capi__={"dgetrf": capsule}))
