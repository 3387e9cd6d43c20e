"""Test right-hand sides, matrices and solutions near the limits of the range, and the facts in info."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mxpeak as mx
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.errors import Outcome
from mxpeak.kernels.contract import DenseKernels
from mxpeak.library.dense.factors import raise_singular
from mxpeak.solvers.array_factors import ArrayFactors
from tests.support.systems import KERNELS, dense_kernels, lu_factor_on, solve_on

Array = np.ndarray[Any, np.dtype[Any]]
Long = np.longdouble

A = np.array([[2.0, 1.0], [1.0, 3.0]])
#: A^-1 (1, 1) = (2, 1) / 5.
X = np.array([0.4, 0.2])
#: The factors of two right-hand sides by type: no common power of two brings both into the range.
SIZES = {"float64": (1e-20, 1e305), "float32": (1e-30, 1e30), "complex128": (1e-20, 1e305), "complex64": (1e-30, 1e30)}


@pytest.fixture(params=KERNELS)
def kernels(request: pytest.FixtureRequest) -> DenseKernels:
    return dense_kernels(request.param)


def right(X: Array, sizes: tuple[float, float]) -> None:
    """Check that each column is (2, 1) / 5 times its size, up to a few roundings."""
    for x, size in zip(X.T, sizes):
        np.testing.assert_allclose(x, X_of(x, size), rtol=8 * float(np.finfo(x.dtype).eps))


def X_of(x: Array, size: float) -> Array:
    """Return the exact solution in the type of x."""
    return (X * size).astype(x.dtype)


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize("precision", ["auto", "fp64", "fp32"])
def test_right_hand_sides_share_no_scale(kernels: DenseKernels, dtype: str, precision: str) -> None:
    M, sizes = A.astype(dtype), SIZES[dtype]
    B = np.array([sizes, sizes]).astype(dtype)
    for form in ("N", "T"):
        N = M if form == "N" else M.T
        x, info = solve_on(kernels, N, B, precision)
        right(x, sizes)
        assert info.solved
    right(lu_factor_on(kernels, M, precision).solve(B, transposed="T")[0], sizes)


@pytest.mark.parametrize("dtype", SIZES)
def test_nor_do_they_in_stacks_and_with_the_public_functions(dtype: str) -> None:
    M, sizes = A.astype(dtype), SIZES[dtype]
    B = np.array([sizes, sizes]).astype(dtype)
    for x, info in (
        mx.solve(M, B),
        mx.solve(M, B, transposed=True),
        mx.solve(M, B, transposed="H"),
        mx.lu_factor(M).solve(B),
        mx.lu_factor(M).solve(B, transposed="H"),
    ):
        right(x, sizes)
        assert info.solved
    x, stack = mx.solve(np.stack([M, M]), B)
    assert stack.solved
    right(x[0], sizes)
    right(x[1], sizes)


def test_nor_do_they_over_ranks() -> None:
    sizes, Z = SIZES["float64"], A.astype(complex)

    def body(comm: Any) -> list[Any]:
        B, of = np.array([sizes, sizes]), mx.DistributedMatrix.from_function
        matrices = [of(lambda i, j, M=M: M[i, j], 2, nb=1, comm=comm) for M in (A, Z)]
        return [mx.solve(M, B, transposed=form) for M in matrices for form in ("N", "T", "H")]

    for x, info in run_ranks(2, body)[1]:
        right(x, sizes)
        assert info.solved


def test_real_and_imaginary_parts_of_b_have_separate_scales_with_a_real_a() -> None:
    x, info = mx.solve(A, np.ones(2) * complex(1e-20, 1e305))
    right(np.stack([x.real, x.imag], axis=1), (1e-20, 1e305))
    assert info.solved


def subnormal(n: int) -> tuple[Array, Array]:
    """Return a system whose x has two or three digits, because b consists of subnormal numbers."""
    rng = np.random.default_rng(5)
    M = rng.standard_normal((n, n)) + 5 * np.eye(n)
    return M, np.ldexp(np.round(400 * rng.standard_normal(n)), -1074)


def true_errors(M: Array, x: Array, b: Array) -> tuple[float, float]:
    """Return the normwise and the row-wise backward error in n·u, in long double, which has a larger range."""
    of_A, of_x, of_b = (V.astype(Long) for V in (M, x, b))
    r, n_u = np.abs(of_b - of_A @ of_x), len(b) * 2.0**-53
    norms = np.abs(of_A).sum(1).max() * np.abs(of_x).max() + np.abs(of_b).max()
    sizes = np.abs(of_A) @ np.abs(of_x) + np.abs(of_b)
    return float(r.max() / norms / n_u), float((r / sizes).max() / n_u)


@pytest.mark.skipif(np.finfo(Long).minexp > -1100, reason="long double has fp64's range here")
def test_errors_are_those_of_the_x_that_is_returned_after_its_rounding_to_subnormal_numbers() -> None:
    M, b = subnormal(24)

    def body(comm: Any) -> Any:
        return mx.solve(mx.DistributedMatrix.from_function(lambda i, j: M[i, j], 24, nb=4, comm=comm), b)

    calls = [mx.solve(M, b), mx.solve(M, b, precision="fp32"), mx.lu_factor(M).solve(b), run_ranks(2, body)[0]]
    for x, info in (*calls, mx.solve(M[None], b)):
        eta, omega = true_errors(M, x.reshape(24), b)
        assert eta > 1e9, "two or three digits"
        assert info.solved
        assert info.backward_error == pytest.approx(eta, rel=1e-6)
        assert info.componentwise_error == pytest.approx(omega, rel=1e-6)


def test_an_x_that_underflows_to_nothing_is_warned_of() -> None:
    def body(comm: Any) -> Any:
        of = mx.DistributedMatrix.from_function(lambda i, j: 1e200 * (i == j), 3, nb=1, comm=comm)
        return mx.solve(of, np.full(3, 1e-200))

    calls = [
        lambda: mx.solve(1e200 * np.eye(3), np.full(3, 1e-200)),
        lambda: mx.lu_factor(1e200 * np.eye(3)).solve(np.full(3, 1e-200)),
        lambda: mx.solve(1e200 * np.eye(3)[None], np.full(3, 1e-200)),
        lambda: run_ranks(1, body)[0],
    ]
    for call in calls:
        with pytest.warns(mx.IllConditionedWarning, match="x underflows"):
            x, info = call()
        assert not x.any()
        assert info.ill_conditioned


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("precision", ["auto", "fp64", "fp32"])
def test_a_triangle_whose_scales_multiply_beyond_the_range_is_solved(transposed: bool, precision: str) -> None:
    """Its row scale times its column scale is 2^1328; a pivot of LU without scaling underflows."""
    T = np.array([[1e-200, 1.0], [0.0, 1e-200]])
    T = T.T if transposed else T

    def body(comm: Any) -> Any:
        of = mx.DistributedMatrix.from_function(lambda i, j: T[i, j], 2, nb=1, comm=comm)
        return mx.solve(of, b, precision=precision)

    for b, x in ((T @ [1.0, 0.0], [1.0, 0.0]), (T @ [0.0, 1.0], [0.0, 1.0])):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mx.IllConditionedWarning)  # for the unknown that only 1e-200 determines
            found = [mx.solve(T, b, precision=precision), mx.lu_factor(T, precision=precision).solve(b)]
            found += [mx.solve(T[None], b, precision=precision), run_ranks(2, body)[0]]
        for y, info in found:
            assert info.solved
            y = y.reshape(2)
            assert (np.abs(b - T @ y) <= 4 * 2.0**-53 * (np.abs(T) @ np.abs(y) + np.abs(b))).all()
            assert y.tolist() == x or info.ill_conditioned, info


def test_a_triangle_whose_pivot_would_underflow_by_scaling_is_solved_as_it_is() -> None:
    """Row 2 has 1e150 to the right of its pivot 1e-200, which is 1e-350 of it."""
    T = np.diag(np.full(3, 1e-200)) + np.diag([1e150, 1e150], 1)
    b = np.array([1e-200, 0.0, 0.0])

    def body(comm: Any) -> Any:
        return mx.solve(mx.DistributedMatrix.from_function(lambda i, j: T[i, j], 3, nb=1, comm=comm), b)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mx.IllConditionedWarning)
        found = [mx.solve(T, b), mx.lu_factor(T).solve(b), mx.solve(T[None], b), run_ranks(2, body)[0]]
    for x, _ in found:
        assert x.reshape(3).tolist() == np.linalg.solve(T, b).tolist() == [1.0, 0.0, 0.0]


def test_an_underflowed_pivot_is_not_called_exactly_zero() -> None:
    """Without scaling the second pivot of S would be -1e-400."""
    S = np.array([[1.0, 1e-200], [1e-200, 0.0]])
    with pytest.warns(mx.IllConditionedWarning, match="columns of A differ"):
        x, info = mx.solve(S, np.array([1.0, 1e-200]))
    assert info.solved
    assert x.tolist() == [1.0, 0.0]
    with pytest.raises(mx.SingularMatrixError, match="exactly zero"):
        mx.solve(np.ones((2, 2)), np.ones(2))
    LU = np.array([[1.0, 1e-290], [0.0, 0.0]])
    factors: Any = SimpleNamespace(xp=np, lu=SimpleNamespace(LU=LU), singular=2)
    least = ArrayFactors.least_size(factors)
    with pytest.raises(mx.SingularMatrixError, match=r"exactly or by underflow, because .* as small as 1.0e-290"):
        raise_singular(2, 2, least)


@pytest.mark.parametrize("solve_it", ["solve", "lu_factor", "stack", "ranks"])
def test_an_x_beyond_the_range_is_returned_with_a_warning_and_is_not_solved(solve_it: str) -> None:
    M, b = 1e-200 * np.eye(2), np.array([1e200, 1.0])

    def body(comm: Any) -> Any:
        return mx.solve(mx.DistributedMatrix.from_function(lambda i, j: M[i, j], 2, nb=1, comm=comm), b)

    calls = {
        "solve": lambda: mx.solve(M, b),
        "lu_factor": lambda: mx.lu_factor(M).solve(b),
        "stack": lambda: mx.solve(M[None], b),
        "ranks": lambda: run_ranks(1, body)[0],
    }
    with pytest.warns(mx.NotSolvedWarning, match="not solved"):
        x, info = calls[solve_it]()
    assert info.outcome is Outcome.NOT_FINITE
    assert not info.solved
    assert x.reshape(2).tolist() == [np.inf, 1e200]
    assert info.backward_error == info.componentwise_error == np.inf


def test_an_x_is_found_although_intermediate_numbers_overflow() -> None:
    """x is within the range, but the solution for b with the size of the probe is not."""
    M = np.array([[1.0, 1.0], [1.0, 1.0 + 2.0**-40]]) * 2.0**-59
    b = M @ np.array([1.0, 1.0]) * 1e290
    x, info = mx.solve(M, b)
    assert info.solved
    np.testing.assert_allclose(x, 1e290, rtol=2.0**-10)


def test_scales_of_rows_do_not_make_b_overflow() -> None:
    rng = np.random.default_rng(3)
    M = rng.standard_normal((20, 20)) * np.geomspace(1e-150, 1e150, 20)[:, None]
    for size in (1e-150, 1.0, 1e150):
        b = M @ np.full(20, size)
        x, info = mx.solve(M, b)
        assert info.solved
        assert true_errors(M, x, b)[1] < 3


def test_entries_that_a_huge_right_hand_side_hides_are_not_called_solved_to_all_digits() -> None:
    """No power of two keeps both numbers within the range: info says that a row may be off by 100 %."""
    b = np.array([1.7e308, 1e-305])

    def body(comm: Any) -> Any:
        return mx.solve(mx.DistributedMatrix.from_function(lambda i, j: 1.0 * (i == j), 2, nb=1, comm=comm), b)

    for x, info in (mx.solve(np.eye(2), b), mx.lu_factor(np.eye(2)).solve(b), run_ranks(1, body)[0]):
        assert info.solved
        assert x[0] == b[0]
        assert x[1] == b[1] or info.componentwise_error >= 1 / (2 * 2.0**-53)


def test_an_x_that_is_not_finite_is_warned_of_as_not_solved() -> None:
    with pytest.warns(mx.NotSolvedWarning):
        _, info = mx.solve([[1e-200, 1.0], [0.0, 1e-200]], [1.0, 1.0])
    assert info.outcome is Outcome.NOT_FINITE
