"""Test complex sparse systems: kernels, preconditioners, precisions, ranks, and real matrices with a complex b."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse

import mxpeak as mx
from mxpeak.errors import UsageError
from mxpeak.kernels.choose import sparse as sparse_kernels
from mxpeak.kernels.contract.sparse import Part, Rows
from mxpeak.solvers import gmres_driver
from tests.support.roundoff import U
from tests.support.sparse_ranks import even, gmres_on
from tests.support.sparse_systems import flow, line, mixed_units, poisson, reached, residual, saddle

U32 = 2.0**-24
KERNELS = sparse_kernels(None, 1, parts=2)


def vector(n: int, *shape: int, seed: int = 3) -> Any:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, *shape)) + 1j * rng.standard_normal((n, *shape))


def damped(m: int, shift: complex = 0.3 - 0.4j) -> Any:
    """Return a Helmholtz matrix with absorption: complex symmetric, and not Hermitian."""
    return sparse.csr_array(poisson(m, m) - shift * sparse.eye_array(m * m))


def random(n: int, seed: int = 1) -> Any:
    """Return a random diagonally dominant matrix without symmetry."""
    rng = np.random.default_rng(seed)
    A = np.where(rng.random((n, n)) < 5 / n, vector(n, n, seed=seed), 0.0)
    np.fill_diagonal(A, np.abs(A).sum(axis=1) * np.exp(2j * rng.random(n)) + 1)
    return sparse.csr_array(A)


# --- kernels ----------------------------------------------------------------------------------------------------


def stored(n: int, halo: int, values: str, vectors: str) -> tuple[Any, Any, Any]:
    """Return a matrix of n rows and n + halo columns: dense, as rows, and stored."""
    rng = np.random.default_rng(n)
    D = np.where(rng.random((n, n + halo)) < 0.3, vector(n, n + halo), 0.0)
    D[np.arange(n), np.arange(n)] = 4.0 + 1j
    A = sparse.csr_array(D)
    rows = KERNELS.rows_of(A.indptr, A.indices, A.data, n, halo)
    return D, rows, KERNELS.store(rows, KERNELS.order(rows, "natural"), values, vectors, "rows")


@pytest.mark.parametrize("vectors", ["fp64", "fp32"])
@pytest.mark.parametrize(("n", "halo"), [(1, 0), (7, 0), (41, 5), (97, 13)])
def test_products_and_sweeps_are_those_of_dense_matrices(n: int, halo: int, vectors: str) -> None:
    D, _, A = stored(n, halo, vectors, vectors)
    u = U if vectors == "fp64" else U32
    x = KERNELS.halo_vector(A)
    x[:] = vector(n + halo)
    b, y = vector(n).astype(x.dtype), np.zeros(n, x.dtype)
    L, diagonal, W = np.tril(D[:, :n], -1), np.diag(D[:, :n]), np.triu(D[:, :n], 1)
    # a row of m complex products is off by (m + 2)·sqrt(8)·u of its terms, and rounding the values adds one u each
    bound = 4 * (n + halo + 4) * u * (np.abs(D) @ np.abs(x) + np.abs(b))
    KERNELS.matvec(y, A, x)
    assert (np.abs(y - D @ x) <= bound).all()
    KERNELS.matvec(y, A, x, part=Part.INTERIOR)
    assert (np.abs(y - D[:, :n] @ x[:n]) <= bound).all()
    KERNELS.matvec(y, A, x, part=Part.BOUNDARY)
    assert (np.abs(y - D @ x) <= bound).all()
    before, keep, halo_part = x.copy(), np.zeros_like(b), D[:, n:] @ x[n:]
    KERNELS.sweep_forward(A, b, x, keep=keep)
    assert (np.abs((L + np.diag(diagonal)) @ x[:n] - (b - W @ before[:n] - halo_part)) <= 8 * bound).all()
    assert (np.abs(keep - (b - L @ x[:n] - halo_part)) <= 8 * bound).all()
    KERNELS.sweep_backward(A, keep, x)
    assert (np.abs((W + np.diag(diagonal)) @ x[:n] - keep) <= 8 * bound).all()
    KERNELS.sweep_from_zero(A, b, x, keep=keep)
    assert (np.abs((L + np.diag(diagonal)) @ x[:n] - b) <= 8 * bound).all()
    r = np.zeros(n, x.dtype)
    KERNELS.residual_at(A, b, x, np.arange(n, dtype=np.int32), r)
    assert (np.abs(r - (b - D @ x)) <= 8 * bound).all()


@pytest.mark.parametrize("vectors", ["fp64", "fp32"])
@pytest.mark.parametrize("n", [0, 1, 5, 4095, 4097, 9000])
def test_bases_are_projected_as_their_definitions_say(n: int, vectors: str) -> None:
    k, u = 5, U if vectors == "fp64" else U32
    Q = KERNELS.basis(n, k + 1, vectors)
    Q[:k] = vector(k, n) / max(n, 1) ** 0.5
    w = vector(n).astype(Q.dtype)
    exact, terms = Q[:k].conj() @ w.astype(complex), np.abs(Q[:k]) @ np.abs(w)
    h = KERNELS.project(Q, k, w)
    limit = 4 * (4096 * u + n * U) * terms  # pieces of 4096 numbers in the vectors' type
    assert (np.abs(h - exact) <= limit).all()
    v = w.copy()
    again = KERNELS.subtract_and_project(Q, k, v, h)
    left = w - Q[:k].T @ h.astype(Q.dtype)
    near = 8 * k * u * (np.abs(w) + np.abs(Q[:k]).T @ np.abs(h))
    assert (np.abs(v - left) <= near).all()
    assert (
        np.abs(again - Q[:k].conj() @ v.astype(complex)) <= 4 * (4096 * u + n * U) * np.abs(Q[:k]) @ np.abs(v)
    ).all()
    square = KERNELS.subtract_and_square(Q, k, v, again)
    assert square == pytest.approx(np.linalg.norm(v) ** 2, rel=4 * (4096 * u + n * U))
    KERNELS.combine(Q, list(h), v)
    assert (np.abs(v - Q[:k].T @ h) <= near).all()


def test_a_pattern_is_completed_without_changing_values() -> None:
    A = sparse.csr_array(np.array([[1, 2j, 0], [0, 3, 0], [4j, 0, 5]]))
    rows = KERNELS.rows_of(A.indptr, A.indices, A.data, 3, 0)
    assert not KERNELS.is_symmetric_pattern(rows)
    full = KERNELS.with_symmetric_pattern(rows)
    assert KERNELS.is_symmetric_pattern(full)
    completed = sparse.csr_array((full.data, full.indices, full.indptr), shape=(3, 3))
    assert (completed.toarray() == A.toarray()).all()
    unsorted = KERNELS.rows_of([0, 2], [1, 0], [2j, 1.0], 1, 1)
    assert isinstance(unsorted, Rows)
    assert unsorted.data.tolist() == [1.0, 2j]


# --- solves -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preconditioner", ["auto", "lu", "gs", "sgs", "jacobi", "none"])
@pytest.mark.parametrize("precision", ["mixed", "fp64", "fp32"])
def test_every_preconditioner_solves_complex_systems(preconditioner: str, precision: str) -> None:
    for A in (damped(12), random(211), sparse.csr_array(flow(10) + 0.5j * sparse.eye_array(100))):
        b = vector(A.shape[0])
        x, info = mx.gmres(A, b, preconditioner=preconditioner, precision=precision)
        assert info.converged, info
        assert x.dtype == np.complex128
        assert reached(A, x, b, 1e-9)
        assert info.residual == pytest.approx(residual(A, x, b), rel=1e-3)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_types_and_layouts(dtype: Any) -> None:
    A, B = damped(9).astype(dtype), vector(81, 3)
    for matrix in (A.tocsc(), A.tocoo(), sparse.csr_matrix(A)):
        x, info = mx.gmres(matrix, B)
        assert info.converged
        assert x.shape == B.shape
        assert all(reached(A.astype(complex), x[:, j], B[:, j], 1e-9) for j in range(3))
    x, _ = mx.gmres(A, np.ones(81), rtol=1e-12)
    assert residual(A.astype(complex), x, np.ones(81)) <= 1e-11


@pytest.mark.parametrize("of_x0", [float, complex])
@pytest.mark.parametrize(("rtol", "atol"), [(1e-9, 0.0), (0.0, 1e-6)])
def test_a_real_matrix_takes_a_complex_right_hand_side(of_x0: Any, rtol: float, atol: float) -> None:
    A, b = poisson(11, 11), vector(121)
    x0 = vector(121, seed=8).astype(complex) if of_x0 is complex else np.ones(121)
    x, info = mx.gmres(A, b, x0, rtol=rtol, atol=atol)
    assert info.converged
    assert info.rhs == 1
    assert np.linalg.norm(b - A @ x) <= max(rtol * np.linalg.norm(b), atol) * (1 + 1e-6)
    assert info.residual == pytest.approx(residual(A, x, b), rel=1e-3)
    x, info = mx.gmres(A, b.imag * 1j)
    assert (x.real == 0).all()
    assert reached(A, x, b.imag * 1j, 1e-9)


@pytest.mark.parametrize("A", [poisson(15, 15), damped(15), mixed_units(damped(15))], ids=["real", "complex", "scaled"])
def test_right_hand_sides_are_refined_together_with_factors(A: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """70 columns are two groups; a column of zeros, a start and a column of another scale do not disturb the others."""
    B = A @ (vector(225, 70) if A.dtype.kind == "c" else vector(225, 70).real)
    B[:, 3], B[:, 7] = 0.0, 1e-120 * B[:, 7]
    X0 = np.zeros_like(B)
    X0[:, 11] = 1.0
    X, info = mx.gmres(A, B, X0, preconditioner="lu")
    assert info.converged
    assert "together" in info.times
    assert not X[:, 3].any()
    assert all(reached(A, X[:, j], B[:, j], 1e-9) for j in range(70) if j != 3)
    monkeypatch.setattr(gmres_driver, "TOGETHER", 1)
    _, of_each = mx.gmres(A, B, X0, preconditioner="lu")
    assert "together" not in of_each.times
    assert info.iterations <= of_each.iterations + 1
    _, info = mx.gmres(A, B, preconditioner="lu", maxiter=2)
    assert info.iterations <= 2


def test_scales_do_not_matter() -> None:
    A = mixed_units(damped(10))
    b = A @ vector(100)
    x, info = mx.gmres(A, b)
    assert info.converged
    assert info.scaled
    assert reached(A, x, b, 1e-9)
    tiny = sparse.csr_array(1e-200 * damped(6))
    x, info = mx.gmres(tiny, vector(36))
    assert info.converged
    assert reached(damped(6), 1e-200 * x, vector(36), 1e-9)


def test_zeros_on_the_diagonal_are_permuted_away() -> None:
    A = sparse.csr_array(saddle(8) * (1 + 0.25j))
    x, info = mx.gmres(A, vector(A.shape[0]))
    assert info.converged, info
    assert reached(A, x, vector(A.shape[0]), 1e-9)


def test_hard_systems_fall_back_to_fp64_or_to_factors() -> None:
    A = sparse.csr_array(line(300) @ line(300) + 1e-7j * sparse.eye_array(300))
    x, info = mx.gmres(A, vector(300), rtol=1e-12)
    assert info.converged or "as small as fp64" in info.message
    assert info.preconditioner == "lu"
    waves = damped(30, 0.35 - 0.001j)
    x, info = mx.gmres(waves, vector(900), preconditioner="auto")
    assert info.converged
    assert reached(waves, x, vector(900), 1e-9)


def test_singular_systems_are_named() -> None:
    A = damped(5).tolil()
    A[3] = 0.0
    with pytest.raises(mx.SingularMatrixError, match="row 3 contains only zeros"):
        mx.gmres(A.tocsr(), vector(25))
    A = sparse.csr_array(poisson(6, 6) * 1j)
    null = sparse.csr_array(sparse.diags_array(A.toarray().sum(axis=1)))
    with pytest.warns(mx.IllConditionedWarning, match="numerically singular"):
        mx.gmres(A - null, vector(36), preconditioner="lu", maxiter=40)


def test_user_preconditioners_are_complex() -> None:
    A = damped(12)
    ilu = sparse.linalg.spilu(A.tocsc())
    for M in (ilu.solve, sparse.linalg.LinearOperator(A.shape, ilu.solve, dtype=complex), lambda r: r / A.diagonal()):
        x, info = mx.gmres(A, vector(144), M=M)
        assert info.converged
        assert reached(A, x, vector(144), 1e-9)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("preconditioner", ["auto", "lu", "gs", "sgs", "jacobi", "none"])
def test_ranks_share_complex_systems(ranks: int, preconditioner: str) -> None:
    A, b = damped(11), vector(121)
    x, infos = gmres_on(even(121, ranks), A, b, preconditioner=preconditioner)
    assert all(info.converged for info in infos), infos[0]
    assert reached(A, x, b, 1e-9)
    x, infos = gmres_on([0, 0, 121], A, b)  # a rank without rows
    assert infos[0].converged
    assert reached(A, x, b, 1e-9)
    real = poisson(11, 11)
    x, infos = gmres_on(even(121, ranks), real, b, preconditioner=preconditioner)
    assert infos[0].converged
    assert reached(real, x, b, 1e-9)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"preconditioner": "amg"}, "supports only real matrices"),
        ({"preconditioner": "stencil"}, "use one of auto, lu"),
        ({"precision": "bf16"}, 'precision="bf16" supports only real matrices'),
        ({"storage": "packed"}, 'use storage="auto"'),
        ({"smoother": "coloured"}, 'use smoother="auto"'),
        ({"M": lambda r: r[:-1]}, "which has 81 real or complex numbers"),
        ({"M": lambda r: r * np.nan}, "for a finite vector"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        mx.gmres(damped(9), vector(81), **options)


def test_entries_that_are_not_finite_are_named() -> None:
    A = damped(4)
    A.data[5] = complex(1.0, np.nan)
    with pytest.raises(UsageError, match=r"A\[1, .\] is .*nan"):
        mx.gmres(A, vector(16))
    b = vector(16)
    b[7] = 1j * np.inf
    with pytest.raises(UsageError, match=r"b\[7\] is"):
        mx.gmres(damped(4), b)
    with pytest.raises(UsageError, match="float16 to float64, complex64"):
        mx.gmres(damped(4).astype(np.clongdouble), b)


def test_an_empty_complex_system() -> None:
    x, info = mx.gmres(sparse.csr_array((0, 0), dtype=complex), np.zeros(0))
    assert x.dtype == complex
    assert info.converged
