"""Compare least-squares and minimum-norm solutions of `lstsq` with extended precision and NumPy."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from math import inf
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import mxpeak as mx
from mxpeak.errors import Outcome
from mxpeak.kernels.choose import dense
from mxpeak.kernels.host.engine import blas
from mxpeak.library.dense import least_squares
from mxpeak.solvers.extended_residual import extended_residual
from mxpeak.solvers.least_squares import QrFactors
from tests.support.roundoff import U
from tests.support.systems import KERNELS, TYPES, dense_kernels, layouts, random

Array = np.ndarray[Any, np.dtype[Any]]
Long = np.longdouble
wide = pytest.mark.skipif(np.finfo(Long).nmant < 63, reason="long double has no more digits than fp64 here")


def exactly(A: Array, b: Array) -> Array:
    """Return the least-squares or minimum-norm solution in long double, by Householder's QR, refined once."""
    C = (A if len(A) >= A.shape[1] else A.T).astype(Long)
    m, n = C.shape
    R, vectors = C.copy(), []
    for k in range(n):
        v = R[k:, k].copy()
        v[0] += np.copysign(np.sqrt((v * v).sum()), v[0])
        v /= np.sqrt((v * v).sum()) or 1
        R[k:, k:] -= 2 * np.multiply.outer(v, v @ R[k:, k:])
        vectors.append(v)

    def q(z: Array, order: Any) -> Array:
        for k in order:
            z[k:] -= 2 * vectors[k] * (vectors[k] @ z[k:])
        return z

    def back(z: Array) -> Array:
        for k in reversed(range(n)):
            z[k] /= R[k, k]
            z[:k] -= R[:k, k] * z[k]
        return z[:n]

    def forward(z: Array) -> Array:
        z = z.copy()
        for k in range(n):
            z[k] /= R[k, k]
            z[k + 1 :] -= R[k, k + 1 :] * z[k]
        return z

    with np.errstate(all="ignore"):
        if m == len(A):
            return back(q(b.astype(Long), range(n)))
        return q(np.concatenate([forward(b.astype(Long)), np.zeros(m - n, Long)]), reversed(range(n)))


def true_eta(A: Array, x: Array, r: Array, b: Array) -> float:
    """Return the backward error of x and r in units of max(m, n)·u, in long double."""
    m, n = A.shape
    A, x, r, b = (v.astype(Long) for v in (A, x, r, b))
    norms = np.sqrt((A * A).sum(0))
    if m >= n:
        size = norms @ np.abs(x) + np.linalg.norm(r) + np.linalg.norm(b)
        first = np.linalg.norm(b - r - A @ x) / size
        second = np.max(np.abs(A.T @ r) / (norms * np.linalg.norm(r))) if r.any() else 0.0
        return float(max(first, min(second, np.linalg.norm(r) / size)) / (m * U))
    rows = np.sqrt((A * A).sum(1))
    return float(np.max(np.abs(b - A @ x) / (rows * np.linalg.norm(x) + np.abs(b))) / (n * U))


def problems() -> Iterator[tuple[str, Array, Array]]:
    """Return the names, matrices and right-hand sides of 504 problems; half of them are nearly consistent."""
    rng = np.random.default_rng(40)
    for k in range(84):
        n = int(rng.integers(1, 13))
        m = n + int(rng.integers(0, 20))

        def spectrum(m: int, n: int, decades: float) -> Array:
            Q, V = (np.linalg.qr(rng.standard_normal((size, n)))[0] for size in (m, n))
            return (Q * np.geomspace(1.0, 10.0**-decades, n)) @ V

        graded = rng.standard_normal((m, n)) * 10.0 ** rng.uniform(-12, 12, n)
        matrices = {
            "random": rng.standard_normal((m, n)),
            "graded": graded,
            "ill-conditioned": spectrum(m, n, rng.uniform(2, 11)),
            "nearly singular": spectrum(m, n, rng.uniform(12, 20)),
            "polynomial": np.vander(np.linspace(0, 1, m), min(n, 10)),
            "wide": spectrum(m, n, rng.uniform(0, 9)).T,
        }
        for name, A in matrices.items():
            b = A @ rng.standard_normal(A.shape[1])
            if k % 2:
                b = b + 10.0 ** rng.uniform(-12, 1) * np.abs(b).max() * rng.standard_normal(len(A))
            yield name, A, b


def exactly_complex(A: Array, b: Array) -> Array:
    M, _, _, of_b = as_real(A, b, b, b)
    x = exactly(M, of_b)
    return x[: A.shape[1]] + 1j * x[A.shape[1] :]


def as_real(A: Array, x: Array, r: Array, b: Array) -> tuple[Array, Array, Array, Array]:
    """Return the real problem of twice the size whose solution is that of a complex problem."""
    M = np.block([[A.real, -A.imag], [A.imag, A.real]])
    return M, *(np.concatenate([v.real, v.imag]) for v in (x, r, b))


@wide
@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("precision", ["auto", "fp32"])
def test_500_problems_are_reported_truly(precision: str, is_complex: bool) -> None:
    """Check backward errors, forward bounds, and warnings if x may have no correct digit."""
    counted, rng = {"qr": 0, "svd": 0, "warned": 0}, np.random.default_rng(41)
    for number, (name, A, b) in enumerate(problems()):
        if is_complex:  # the same singular values
            rows, columns = (np.exp(1j * rng.uniform(0, 2 * np.pi, size)) for size in A.shape)
            A, b = A * rows[:, None] * columns, b * rows
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mx.IllConditionedWarning)
            x, info = mx.lstsq(A, b, precision=precision)
        assert info.solved, (number, name, info)
        counted[info.method] += 1
        counted["warned"] += info.ill_conditioned
        if info.method == "qr":
            problem = as_real(A, x, info.residual, b) if is_complex else (A, x, info.residual, b)
            eta_exact, reported = (1 + is_complex) * true_eta(*problem), info.backward_error  # in units of A's order
            # Rounding of x = D y and of the check itself: about one unit of a sum of max(m, n) + 1 terms.
            assert abs(eta_exact - reported) <= max(1.0, reported / 2), (number, name, eta_exact, info)
            assert eta_exact <= 2.0, (number, name, eta_exact, info)
        exact = exactly_complex(A, b) if is_complex else exactly(A, b)
        with np.errstate(all="ignore"):
            error = float(np.abs(x - exact).max() / np.abs(x).max()) if x.any() else float(np.abs(exact).max())
        if info.method == "qr":
            bound = info.error_bound
            assert bound.normwise <= bound.componentwise
            assert error <= bound.normwise + 1e-3 * (bound.normwise > 1e-3), (number, name, error, info)
        if info.rank == min(A.shape):
            assert error < 0.5 or info.ill_conditioned, (number, name, error, info)
        assert not (name == "random" and len(A) > 2 * A.shape[1] and info.ill_conditioned), (number, info)
    assert sum(counted.values()) - counted["warned"] == 504
    assert counted["qr"] > 300, counted
    assert counted["svd"] > 50, counted


# --- types, shapes, kernels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("precision", ["auto", "fp32", "fp64"])
def test_every_type_and_shape_on_every_backend(kernels: str, dtype: Any, precision: str) -> None:
    for (m, n), k in product([(30, 7), (7, 30), (12, 12), (5, 1), (1, 5)], (None, 3)):
        A, b = random((m, n), dtype), random((m,) if k is None else (m, k), dtype, 2)
        of_A, of_b = (least_squares.read(V, name) for V, name in ((A, "A"), (b, "b")))
        x, info = least_squares.lstsq_by(dense_kernels(kernels), of_A, of_b, precision)
        expected = np.linalg.pinv(A.astype(np.complex128)) @ b
        u, condition = np.finfo(dtype).eps / 2, np.linalg.cond(A.astype(np.complex128))
        assert info.solved
        assert info.rank == min(m, n)
        assert x.shape == (n, *b.shape[1:])
        assert x.dtype == dtype
        assert np.abs(x - expected).max() <= 20 * max(m, n) * u * condition**2 * np.abs(b).max()
        assert info.residual.shape == b.shape
        assert np.abs(info.residual - (b - A @ x)).max() <= 20 * max(m, n) * u * condition * np.abs(b).max()
        exact = np.linalg.norm(A, 1) * np.linalg.norm(np.linalg.pinv(A), 1)
        assert exact / 3 <= info.condition <= 1.1 * exact


def test_memory_orders_and_read_only_arrays() -> None:
    A, b = random((20, 20)), random((20, 2), seed=2)
    for each in layouts(A).values():
        part, whole = each[:, :9], np.asarray(each[:, :9], dtype=np.float64)
        x, info = mx.lstsq(part, b)
        assert info.solved
        assert np.abs(x - np.linalg.lstsq(whole, b, rcond=None)[0]).max() < 1e-12
        x, _ = mx.lstsq(part.T, b[:9])
        assert np.abs(x - np.linalg.lstsq(whole.T, b[:9], rcond=None)[0]).max() < 1e-12


def test_real_matrices_with_complex_right_hand_sides_and_integers() -> None:
    A, b = random((20, 6)), random((20, 2), np.complex128)
    x, info = mx.lstsq(A, b)
    assert np.abs(x - np.linalg.lstsq(A, b, rcond=None)[0]).max() < 1e-13
    assert info.residual.dtype == np.complex128
    x, _ = mx.lstsq([[1, 0], [0, 1], [0, 1]], [1, 2, 4])
    assert np.allclose(x, [1, 3], atol=1e-14)


def test_tensors_return_as_tensors() -> None:
    torch = pytest.importorskip("torch")
    A, b = random((20, 6)), random(20)
    x, info = mx.lstsq(torch.from_numpy(A), torch.from_numpy(b))
    assert isinstance(x, torch.Tensor)
    assert isinstance(info.residual, torch.Tensor)
    assert np.abs(x.numpy() - np.linalg.lstsq(A, b, rcond=None)[0]).max() < 1e-13


# --- rank ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("precision", ["auto", "fp32"])
def test_matrices_without_full_rank_have_solutions_of_minimum_norm(kernels: str, precision: str) -> None:
    rng = np.random.default_rng(5)
    for m, n, rank, is_complex in product((30, 9), (9, 30), (1, 5), (False, True)):
        factors = [rng.integers(-3, 4, shape) * 1.0 for shape in ((m, rank), (rank, n))]
        A = factors[0] @ factors[1] * (1 + 1j if is_complex else 1.0)
        b = rng.standard_normal((m, 2)) + 0 * A[0, 0]
        of_A, of_b = (least_squares.read(V, name) for V, name in ((A, "A"), (b, "b")))
        x, info = least_squares.lstsq_by(dense_kernels(kernels), of_A, of_b, precision)
        expected = np.linalg.pinv(A, rcond=1e-10) @ b
        assert (info.rank, info.method, info.solved, info.fallback) == (rank, "svd", True, True)
        assert "SVD in fp64, after QR failed, " in str(info)
        assert f"A has rank {rank}, less than {min(m, n)}; x has minimum norm" in info.message
        assert not info.ill_conditioned
        assert info.condition == np.inf
        assert info.error_bound is None
        assert len(info.singular_values) == min(m, n)
        assert np.abs(x - expected).max() <= 1e-12


@pytest.mark.parametrize("is_complex", [False, True])
def test_singular_values_give_the_condition_of_the_same_meaning(is_complex: bool) -> None:
    dtype = np.complex128 if is_complex else np.float64
    Q, V = (np.linalg.qr(random((size, 8), dtype, size))[0] for size in (20, 8))
    for A in ((Q * np.geomspace(1.0, 1e-11, 8)) @ V, ((Q * np.geomspace(1.0, 1e-11, 8)) @ V).T):
        _, info = mx.lstsq(A, A @ np.ones(A.shape[1]))
        _, again = mx.lstsq(A, A @ np.ones(A.shape[1]))
        assert (info.method, info.rank) == ("svd", 8)
        exact = np.linalg.norm(A, 1) * np.linalg.norm(np.linalg.pinv(A), 1)
        assert info.condition == pytest.approx(exact, rel=1e-3)
        A[0] *= 2
        assert np.isnan(again.condition)


def test_zero_matrices_and_zero_right_hand_sides() -> None:
    x, info = mx.lstsq(np.zeros((4, 2)), np.ones(4))
    assert (x.tolist(), info.rank, info.residual.tolist()) == ([0.0, 0.0], 0, [1.0] * 4)
    assert info.message == "all entries of A are zero, so x = 0 is the solution of minimum norm"
    x, info = mx.lstsq(random((4, 2)), np.zeros(4))
    assert (x.tolist(), info.rank, info.backward_error) == ([0.0, 0.0], 2, 0.0)
    A = random((6, 3))
    A[:, 1] = 0.0
    x, info = mx.lstsq(A, np.ones(6))
    assert (x[1], info.rank) == (0.0, 2)
    assert info.message.splitlines() == [
        "the QR in fp64 was too coarse: the condition of A is infinite, or too large to estimate",
        "A has rank 2, less than 3; x has minimum norm",
    ]


@pytest.mark.parametrize("shape_of_b", [(0,), (0, 0), (0, 3)])
@pytest.mark.parametrize("n", [0, 2])
def test_empty_matrices_and_right_hand_sides(shape_of_b: tuple[int, ...], n: int) -> None:
    x, info = mx.lstsq(np.ones((0, n)), np.ones(shape_of_b))
    assert x.shape == (n, *shape_of_b[1:])
    assert not x.any()
    assert (info.rank, info.solved, info.residual.shape) == (0, True, shape_of_b)
    assert "time" not in str(info)
    x, info = mx.lstsq(np.ones((2, 0)), np.ones((2, 1)))
    assert x.shape == (0, 1)
    assert info.residual.tolist() == [[1.0], [1.0]]
    x, info = mx.lstsq(np.eye(3), np.ones((3, 0)))
    assert (x.shape, info.rank) == ((3, 0), 3)


def test_equal_columns_share_the_solution() -> None:
    A = np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    x, info = mx.lstsq(A, [1.0, 2.0, 3.0])
    assert info.rank == 1
    assert np.allclose(x, [0.5, 0.5], atol=1e-15)


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("decades", [0, 5, 12])
def test_the_inverse_of_r_bounds_its_condition(is_complex: bool, decades: int) -> None:
    rng, n = np.random.default_rng(3), 30
    A = (
        rng.standard_normal((50, n))
        @ np.diag(np.logspace(0, -decades, n))
        @ np.linalg.qr(rng.standard_normal((n, n)))[0]
    )
    factors = QrFactors(dense(None), A * (1 + 1j) if is_complex else A, np.dtype(complex if is_complex else float))
    condition = np.linalg.cond(factors.R)
    assert (1 - 1e-3) * condition <= factors.condition_bound() <= 1.001 * n * condition
    factors.R[3, 3] = 0.0
    assert factors.condition_bound() == inf


@pytest.mark.parametrize(("m", "decades", "noise"), [(40, 3, 1.0), (40, 7, 1e6), (40, 7, 1e-9), (400, 7, 1e4)])
def test_a_bound_of_the_condition_changes_no_warning(
    m: int, decades: int, noise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, n = np.random.default_rng(5), 30
    A = (
        rng.standard_normal((m, n))
        @ np.diag(np.logspace(0, -decades, n))
        @ np.linalg.qr(rng.standard_normal((n, n)))[0]
    )
    b = A @ np.ones(n) + noise * rng.standard_normal(m)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        info = mx.lstsq(A, b)[1]
        monkeypatch.setattr("mxpeak.solvers.least_squares.INVERTED", 0)
        other = mx.lstsq(A, b)[1]
    assert (info.method, info.precision, info.ill_conditioned) == (other.method, other.precision, other.ill_conditioned)


@pytest.mark.parametrize(
    ("m", "n", "rhs", "dtype", "threads"),
    [
        (300, 20, 1, np.float64, 1),
        (20, 300, 1, np.float64, 1),
        (3000, 200, 1, np.float64, 2),
        (100, 100, 10_000, np.float64, 2),
        (300, 300, 1, np.float64, 1),
        (300, 300, 1, np.complex128, 2),
    ],
)
def test_small_problems_use_one_thread_of_blas(
    m: int, n: int, rhs: int, dtype: Any, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[Any] = []

    def observed(function: Any) -> Any:
        def counted(*arguments: Any) -> Any:
            counts.append(max(controller.num_threads for controller in blas._controllers()))
            return function(*arguments)

        return counted

    monkeypatch.setattr(QrFactors, "condition_bound", observed(QrFactors.condition_bound))
    monkeypatch.setattr(least_squares, "solve_small", observed(least_squares.solve_small))
    with threadpool_limits(2):
        mx.lstsq(random((m, n)).astype(dtype), random((m, rhs)))
    assert counts == [threads]


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("noise", [1.0, 1e-6, 0.0])
def test_small_problems_have_the_diagnostics_of_the_general_method(dtype: Any, noise: float) -> None:
    for (m, n, rhs), order in product([(20, 5, 1), (100, 20, 3), (7, 7, 2), (300, 100, 1)], "CF"):
        A = np.asarray(random((m, n)) * np.exp2(np.arange(n) % 7), dtype, order=order)
        B = A @ random((n, rhs)) + noise * random((m, rhs), seed=5)
        small = least_squares._solve_small(A, B)
        assert small is not None
        (x, info), (y, other) = small, mx.lstsq(A, B, precision="fp64")
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(info.residual, other.residual, atol=1e-12 * np.abs(B).max())
        assert (info.solved, info.rank, info.method, info.precision) == (True, n, "qr", "fp64")
        assert (info.why, info.u, info.shape, info.rhs) == ("fastest at this size", U, (m, n), rhs)
        assert info.backward_error == info.history[-1] <= 4 / m
        assert len(info.history) == info.iterations + 1
        assert info.condition == pytest.approx(other.condition, rel=0.5)
        assert info.error_bound.normwise <= 10 * other.error_bound.normwise
        x, info = least_squares._solve_small(A, B[:, 0]) or (None, None)
        assert x.shape == (n,)
        assert info.residual.shape == (m,)
        A[0] += 1.0
        assert np.isnan([info.condition, *info.error_bound]).all()


def test_an_unclear_rank_is_warned_of() -> None:
    Q, V = (np.linalg.qr(random((size, 8), seed=size))[0] for size in (20, 8))
    A = (Q * [1.0, 0.5, 0.2, 0.1, 1e-2, 1e-2, 6e-15, 3e-15]) @ V  # no gap at the threshold, 20·eps = 4.4e-15
    with pytest.warns(mx.IllConditionedWarning, match="x may have no correct digit"):
        _, info = mx.lstsq(A, random(20))
    assert info.ill_conditioned


# --- accuracy -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool", ">f8", ">c16", "longdouble"])
def test_small_problems_of_other_types_have_the_result_of_fp64(dtype: str) -> None:
    A, b = np.array([[1, 0], [0, 1], [1, 1], [1, 0]]), np.array([1, 0, 1, 1])
    if dtype == "longdouble":
        with pytest.raises(mx.UnknownTypeError, match="use float64"):
            mx.lstsq(A.astype(dtype), b.astype(dtype))
        return
    x, _ = mx.lstsq(A.astype(dtype), b.astype(dtype))
    np.testing.assert_allclose(x, np.linalg.lstsq(A.astype(float), b.astype(float), rcond=None)[0], atol=1e-15)


def test_a_small_problem_with_a_zero_solution_causes_no_warning_of_numpy() -> None:
    A, b = np.eye(3, 2), np.array([0.0, 0.0, 1.0])
    with pytest.warns(mx.IllConditionedWarning, match="by more than its size: A x.* is tiny relative to b") as caught:
        x, info = mx.lstsq(A, b)
    assert len(caught) == 1
    assert not x.any()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert info.error_bound == (np.inf, np.inf)
        assert info.condition == pytest.approx(1.0)


@pytest.mark.parametrize("rank", [5, 4])
def test_the_note_of_a_sensitive_solution_states_the_cause(rank: int) -> None:
    A, b = random((50, 5)), random(50, seed=2)
    A[:, rank:] = A[:, : 5 - rank]
    _, info = mx.lstsq(A, b)
    with pytest.warns(mx.IllConditionedWarning, match=r"up to \d+ times its size: A x.* is tiny relative to b"):
        mx.lstsq(A, info.residual)  # orthogonal to the columns of A, so that x is zero up to roundings
    A = random((50, 5)) * [1.0, 1.0, 1.0, 1.0, 1e-30]
    with pytest.warns(mx.IllConditionedWarning, match="its term with the largest entry of x, is tiny relative to b"):
        mx.lstsq(A, A @ np.ones(5))


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_small_problems_in_strided_arrays_have_all_diagnostics(dtype: Any) -> None:
    wide, sides = random((80, 12), dtype, 3), random((80, 4), dtype, 4)
    for A in (wide[:, ::2], wide[::2, ::2], np.asfortranarray(wide)[::2], wide[::-1, ::-1], wide.T[::2].T):
        for b in (sides[: len(A), 0], sides[: len(A), ::2], np.asfortranarray(sides)[: len(A)]):
            x, info = mx.lstsq(A, b)
            y, other = mx.lstsq(A.copy(), b.copy())
            np.testing.assert_allclose(x, y, atol=1e-13)
            assert info.condition == pytest.approx(other.condition, rel=1e-6)
            assert np.max(info.error_bound) <= 2.0 * np.max(other.error_bound)
            assert str(info)


def test_small_residuals_have_correct_digits() -> None:
    """A residual computed as b - A x contains only roundings of b; the refined one has correct digits."""
    A, y = random((60, 10)), random(10, seed=3)
    noise = random(60, seed=4)
    noise -= A @ np.linalg.lstsq(A, noise, rcond=None)[0]
    noise -= A @ np.linalg.lstsq(A, noise, rcond=None)[0]
    b = A @ y + 1e-13 * noise
    exact = b.astype(Long) - A.astype(Long) @ exactly(A, b)
    for precision in ("fp64", "fp32"):
        _, info = mx.lstsq(A, b, precision=precision)
        assert np.abs(info.residual - exact).max() <= 1e-6 * np.abs(exact).max() + 20 * U * np.abs(b).max()
        assert np.abs(A.T @ info.residual).max() <= 1e-12 * np.abs(exact).max() * 60


def exact_residual(A: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the residual b - A x of the exact x, from the normal equations in rational numbers."""
    if A.dtype.kind == "c":
        A = np.block([[A.real, -A.imag], [A.imag, A.real]])
        b = np.concatenate([b.real, b.imag])
    (m, n), rows, side = A.shape, *([[Fraction(float(v)) for v in row] for row in part] for part in (A, b[None]))
    system = [[sum(rows[i][p] * rows[i][q] for i in range(m)) for q in range(n)] for p in range(n)]
    x = [sum(rows[i][p] * side[0][i] for i in range(m)) for p in range(n)]
    for p in range(n):
        for q in range(p + 1, n):
            factor = system[q][p] / system[p][p]
            system[q] = [v - factor * w for v, w in zip(system[q], system[p])]
            x[q] -= factor * x[p]
    for p in reversed(range(n)):
        x[p] = (x[p] - sum(system[p][q] * x[q] for q in range(p + 1, n))) / system[p][p]
    r = [float(side[0][i] - sum(a * v for a, v in zip(rows[i], x))) for i in range(m)]
    return np.array(r)


@pytest.mark.parametrize("precision", ["auto", "fp64", "fp32"])
@pytest.mark.parametrize(("dtype", "digits"), [("f8", 3), ("f8", 9), ("f8", 12), ("f8", 16), ("c16", 12), ("c16", 16)])
def test_the_residual_of_the_exact_solution_has_correct_digits(precision: str, dtype: str, digits: int) -> None:
    check_digits_of_residual(dtype, digits, precision, 12, 4, 1.0)
    check_digits_of_residual(dtype, digits, precision, 12, 4, 1e4)


@pytest.mark.parametrize("digits", [2, 4, 6, 7])
@pytest.mark.parametrize("dtype", ["f4", "c8"])
def test_the_residual_in_fp32_has_correct_digits(dtype: str, digits: int) -> None:
    check_digits_of_residual(dtype, digits, "auto", 12, 4, 1.0)
    check_digits_of_residual(dtype, digits, "auto", 31, 3, 1e2)


def check_digits_of_residual(dtype: str, digits: int, precision: str, m: int, n: int, graded: float) -> None:
    A = (random((m, n), dtype, 5) * np.geomspace(1.0, graded, n)).astype(dtype)
    widest = np.result_type(dtype, "f8")
    b = (A.astype(widest) @ np.ones(n) + random(m, widest, 6) * 10.0**-digits).astype(dtype)
    sides = np.stack([b, random(m, dtype, 7)], axis=1)  # the other right-hand side has a large residual
    exact, u = exact_residual(A, b), np.finfo(dtype).eps / 2
    for B in (b, sides):
        x, info = mx.lstsq(A, B, precision=precision)
        r = info.residual if B.ndim == 1 else info.residual[:, 0]
        r = np.concatenate([r.real, r.imag]) if A.dtype.kind == "c" else r
        assert info.solved
        assert np.linalg.norm(r - exact) <= 100 * np.sqrt(u) * np.linalg.norm(exact)
        if np.linalg.norm(exact) < 0.1 * np.sqrt(u) * np.linalg.norm(b):
            assert np.linalg.norm(r - exact) <= 100 * u * np.linalg.norm(exact)
        assert np.abs(B - A @ x).max() <= 100 * graded * m * u * np.abs(B).max() + np.abs(info.residual).max()


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", TYPES)
def test_extended_residuals_are_rounded_once(kernels: str, dtype: Any) -> None:
    """C has columns of very different sizes, and more rows than one slice."""
    xp, (m, n) = dense_kernels(kernels).xp, (300, 701)
    D = np.ldexp(1.0, np.random.default_rng(3).integers(-60, 60, n))
    A, Y = (random((m, n), dtype, 1) / D).astype(dtype), random((n, 2), dtype, 2)
    B = ((A * D) @ Y).astype(dtype)  # cancels nearly all digits
    R = np.asarray(extended_residual(xp, *map(xp.asarray, (B, A, D, Y))))
    assert R.dtype == dtype
    for i, j in ((0, 0), (92, 1), (93, 0), (299, 1)):
        exact = rational(B[i, j])
        for d, a, y in zip(D, A[i], Y[:, j]):
            (p, q), (s, t), scale = rational(a), rational(y), Fraction(float(d))
            exact = exact[0] - scale * (p * s - q * t), exact[1] - scale * (p * t + q * s)
        error = max(
            abs(Fraction(float(part)) - of_exact) for part, of_exact in zip((R[i, j].real, R[i, j].imag), exact)
        )
        u = np.finfo(dtype).eps / 2
        terms = np.sum(np.abs(A[i] * D).astype("f8") * np.abs(Y[:, j]))
        assert error <= 4 * u * np.abs(R[i, j]) + 4 * u**2 * terms


def rational(value: Any) -> tuple[Fraction, Fraction]:
    return Fraction(float(value.real)), Fraction(float(value.imag))


def test_the_residual_of_a_consistent_system_is_zero() -> None:
    A = np.random.default_rng(0).integers(-9, 9, (20, 5)).astype(float)
    for dtype in ("f8", "f4"):
        _, info = mx.lstsq(A.astype(dtype), A.sum(axis=1).astype(dtype))
        assert np.abs(info.residual).max() <= np.finfo(dtype).eps ** 2 * 100 * np.abs(A).sum(axis=1).max()


def test_columns_of_any_size_are_solved_without_loss() -> None:
    for decades in (20, 100):
        D = 10.0 ** np.linspace(-decades, decades, 6)
        A, b = random((20, 6)), random(20, seed=2)
        expected = np.linalg.lstsq(A, b, rcond=None)[0]
        x, info = mx.lstsq(A * D, b, precision="fp32")
        assert info.precision == "fp32"
        assert info.rank == 6
        assert np.abs(x * D - expected).max() <= 1e-13 * np.abs(expected).max()
        x, info = mx.lstsq((A * D).T, D * random(6))
        assert info.solved


def test_tiny_and_huge_numbers() -> None:
    A, b = random((20, 6)), random(20, seed=2)
    expected = np.linalg.lstsq(A, b, rcond=None)[0]
    for size in (1e-300, 1e300):
        for of_A, of_b in ((size, size), (1.0, size), (size, 1.0)):
            with np.errstate(all="ignore"):
                exact = expected * (of_b / of_A)
            if np.isfinite(exact).all() and np.abs(exact).min() > 1e-290:
                x, info = mx.lstsq(A * of_A, b * of_b)
                assert info.solved
                assert np.abs(x - exact).max() <= 1e-12 * np.abs(exact).max()


@pytest.mark.parametrize("dtype", [np.float64, np.complex128, np.float32])
@pytest.mark.parametrize("rank", [6, 5])
@pytest.mark.parametrize("transposed", [False, True])
def test_solutions_outside_the_range_are_reported(dtype: Any, rank: int, transposed: bool) -> None:
    A = random((20, 6)).astype(dtype)
    A[:, rank:] = A[:, : 6 - rank]
    A = A.T if transposed else A
    b = A @ np.ones(A.shape[1], dtype)
    end = dtype(1e30 if dtype == np.float32 else 1e300)
    with pytest.warns(mx.NotSolvedWarning, match="x is beyond the range of"):
        x, info = mx.lstsq(A / end, b * end)
    assert not np.isfinite(x).all()
    assert (info.outcome, info.backward_error) == (Outcome.NOT_FINITE, np.inf)
    assert "NaN" not in str(info)  # the general text of the outcome does not apply, because A and b are finite
    with pytest.warns(mx.IllConditionedWarning, match="x underflows"):
        x, info = mx.lstsq(A * end, b / end)
    assert info.ill_conditioned
    assert info.backward_error > 1.0
    assert info.error_bound is None or info.error_bound.normwise == np.inf


@pytest.mark.parametrize("size", [1e-300, 1e-200, 1e-160, 1e160, 1e200, 1e300])
def test_singular_values_and_errors_of_tiny_and_huge_matrices(size: float) -> None:
    A, b = random((20, 6)), random(20, seed=2)
    A[:, 5] = A[:, 0]
    x, info = mx.lstsq(A, b)
    y, of_scaled = mx.lstsq(A * size, b)
    assert np.abs(y * size - x).max() <= 1e-13 * np.abs(x).max()
    assert (of_scaled.rank, of_scaled.method, of_scaled.solved) == (5, "svd", True)
    assert 0.0 < of_scaled.backward_error < 4.0
    assert str(of_scaled).count("A was scaled by a power of two") == of_scaled.scaled
    assert "rows and columns" not in str(of_scaled)
    assert np.allclose(of_scaled.singular_values / size, info.singular_values, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("shape", [(8, 3), (3, 8), (5, 1), (1, 5)])
@pytest.mark.parametrize("dtype", TYPES)
def test_diagnostics_do_not_depend_on_the_size_of_the_matrix(shape: tuple[int, int], dtype: Any) -> None:
    A, b = random(shape, dtype), random(shape[0], dtype, 2)
    _, info = mx.lstsq(A, b)
    largest = 120 if info.u > 1e-10 else 1000
    for exponent in (-largest, -largest // 2 - 20, largest // 2 + 20, largest):
        _, scaled = mx.lstsq(A * A.real.dtype.type(2.0**exponent), b)
        assert (scaled.method, scaled.rank, scaled.solved) == ("qr", min(shape), True)
        assert scaled.error_bound.normwise == pytest.approx(info.error_bound.normwise, rel=0.5)
        assert scaled.condition == pytest.approx(info.condition, rel=0.1)
        assert scaled.backward_error <= 1.0


def test_errors_of_fp32_numbers_that_fp64_factors_solve() -> None:
    A = ((np.linalg.qr(random((40, 8)))[0] * np.geomspace(1.0, 1e-5, 8)) @ np.linalg.qr(random((8, 8)))[0]).astype("f")
    b = A @ np.ones(8, "f")
    with pytest.warns(mx.IllConditionedWarning, match="roundings of A and b"):
        x, info = mx.lstsq(A, b)
    assert (x.dtype, info.precision, info.fallback) == (np.float32, "fp64", True)
    assert "QR in fp64, after a coarser one failed, " in str(info)
    exact = exactly(A.astype(float), b.astype(float))
    error = np.abs(x - exact)
    assert 0.0 < error.max() <= info.error_bound.normwise * np.abs(x).max()
    assert (error / np.abs(x)).max() <= info.error_bound.componentwise
    assert info.backward_error * len(A) * info.u >= 0.1 * error.max() / np.abs(exact).max()
    assert info.backward_error <= 1.0


def test_gmres_refines_where_classical_refinement_stalls() -> None:
    Q, V = (np.linalg.qr(random((size, 80), seed=size))[0] for size in (200, 80))
    A = (Q * np.geomspace(1.0, 1e-6, 80)) @ V
    b = random(200)
    x, info = mx.lstsq(A, b, precision="fp32")
    assert (info.precision, info.method, info.solved) == ("fp32", "qr", True)
    assert info.iterations > 3
    y = exactly(A, b)
    assert np.abs(x - y).max() <= info.error_bound.normwise * np.abs(y).max()


# --- info ---------------------------------------------------------------------------------------------------------


def test_the_info_has_a_text_form_and_pickles_and_detects_changes() -> None:
    A, b = random((30, 8)), random(30)
    first, second = (mx.lstsq(A, b)[1] for _ in range(2))
    again = pickle.loads(pickle.dumps(first))
    assert again == first
    assert (again.condition, again.error_bound) == (first.condition, first.error_bound)
    assert str(first).startswith("solved: 30 x 8, rank 8, QR in fp64 (fastest at this size), 0 refinement steps")
    assert "forward error   <=" in str(first)
    with pytest.raises(TypeError, match=r"info\.converged"):
        bool(first)
    A[3] *= 2
    assert np.isnan(second.condition)
    assert np.isnan(second.error_bound).all()


WRONG = {
    "vector": (np.ones(3), np.ones(3), {}, r"A has shape \(3,\), but lstsq needs a matrix"),
    "rows": (np.ones((3, 2)), np.ones(2), {}, r"A is 3x2, but b has shape \(2,\); use a b with 3 rows"),
    "NaN": (np.diag([1.0, np.nan]), np.ones(2), {}, r"A\[1, 1\] is nan"),
    "infinite b": (np.eye(2), [1.0, np.inf], {}, r"b\[1\] is inf"),
    "precision": (np.eye(2), np.ones(2), {"precision": "bf16"}, r"lstsq does not support precision 'bf16'"),
    "text": (np.array([["a"]]), np.ones(1), {}, "dtype"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_refused(case: str) -> None:
    A, b, options, message = WRONG[case]
    with pytest.raises(mx.UsageError, match=message):
        mx.lstsq(A, b, **options)


def test_distributed_matrices_are_refused() -> None:
    with pytest.raises(mx.UsageError, match=r"A is distributed, .* use mxpeak\.solve\(A, b\)"):
        mx.lstsq(mx.DistributedMatrix.from_rows(np.eye(3)), np.ones(3))
