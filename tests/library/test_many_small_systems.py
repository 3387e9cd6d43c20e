"""Test stacks of many small systems: the compiled LU, its checks, and its errors."""

from __future__ import annotations

import numpy as np
import pytest

import mxpeak as mx
from mxpeak.library.dense.stack import solve_together
from mxpeak.library.dense.stacked_lu import solve_by_stacked_lu, suits_stacked_lu
from mxpeak.library.policy import STACKED_LU_FROM_SYSTEMS as MANY

RNG = np.random.default_rng(8)
#: Not a multiple of the SIMD lanes of any type.
SYSTEMS = MANY + 3


def worst_error(A: np.ndarray, x: np.ndarray, b: np.ndarray) -> float:
    """Return the largest normwise backward error of all systems in n·u, with residuals in long double."""
    r = b - A.astype(np.longdouble) @ x.astype(np.longdouble)
    norms = np.abs(A).sum(-1).max(-1)[..., None] * np.abs(x).max(-2) + np.abs(b).max(-2)
    return float((np.abs(r).max(-2) / norms).max() / (A.shape[-1] * np.finfo(A.dtype).eps / 2))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    ("n", "k"), [(1, 1), (2, 3), (3, 1), (4, 4), (5, 1), (8, 9), (13, 2), (31, 1), (64, 1), (64, 64)]
)
def test_solutions_and_errors_are_those_of_the_definition(dtype: str, n: int, k: int) -> None:
    A, b = (RNG.standard_normal((SYSTEMS, n, columns)).astype(dtype) for columns in (n, k))
    for M in (A, A.swapaxes(-1, -2), np.asfortranarray(A)):
        assert suits_stacked_lu(M, b)
        x, info = mx.solve(M, b)
        assert x.dtype == dtype
        assert x.shape == b.shape
        assert info.solved
        assert info.systems == SYSTEMS
        error = worst_error(M, x, b)
        assert error <= max(4.0 / n, 2.0**-7) * (2.0 if k > 8 else 1.0)
        # the residual in working precision differs from the exact one by up to n + 1 roundings
        assert error == pytest.approx(info.backward_error, rel=0.5, abs=2.0 / n + 0.01)


def test_leading_dimensions_broadcast_as_in_numpy() -> None:
    A, b = RNG.standard_normal((2, MANY, 5, 5)), RNG.standard_normal((MANY, 5, 2))
    for of_A, of_b in ((A, b), (A[0, 0][None], b), (A, b[:1]), (A[:, :1], b[None])):
        assert suits_stacked_lu(of_A, of_b)
        x, _ = mx.solve(of_A, of_b)
        expected = np.linalg.solve(of_A, of_b)
        assert x.shape == expected.shape
        assert np.allclose(x, expected, rtol=1e-7)
    x, _ = mx.solve(A, np.arange(5.0))
    assert np.allclose((A @ x[..., None])[..., 0], np.arange(5.0))


@pytest.mark.parametrize("at", [0, 7, 8, SYSTEMS - 1])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_singular_matrix_names_its_index(at: int, dtype: str) -> None:
    A = RNG.standard_normal((SYSTEMS, 6, 6)).astype(dtype)
    A[at, 3] = 0.0
    with pytest.raises(mx.SingularMatrixError, match=rf"in the stack, A\[{at}\]: "):
        mx.solve(A, np.ones(6, dtype))
    A[at] = 1.0
    with pytest.raises(mx.SingularMatrixError, match=rf"in the stack, A\[{at}\]: .*pivot 2 of 6"):
        mx.solve(A, np.ones(6, dtype))


def test_systems_that_fail_the_check_are_solved_again() -> None:
    n = 12
    A = RNG.standard_normal((SYSTEMS, n, n))
    A[5] = 1.0 / (np.arange(n)[:, None] + np.arange(n) + 1.0)  # Hilbert
    A[9] *= np.geomspace(1e-120, 1e120, n)[:, None]
    A[11] = np.tril(-np.ones((n, n)), -1) + np.eye(n)
    A[13] *= 1e-320
    b = A @ np.ones((n, 1))
    with pytest.warns(mx.IllConditionedWarning, match=r"^A\[5\]"):
        x, info = mx.solve(A, b)
    assert {(5,), (9,), (13,)} <= set(info.individual)
    assert len(info.individual) < 8
    assert info.individual[9,].scaled
    others = np.delete(np.arange(SYSTEMS), [5, 13])
    assert np.abs(x[others] - 1.0).max() < 1e-6


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_entries_that_are_not_finite_are_named(value: float) -> None:
    A, b = RNG.standard_normal((SYSTEMS, 4, 4)), RNG.standard_normal((SYSTEMS, 4, 1))
    for name, V, index in (("A", A, (SYSTEMS - 1, 2, 1)), ("b", b, (17, 3, 0))):
        before, V[index] = V[index], value
        with pytest.raises(mx.UsageError, match=rf"{name}\[{', '.join(map(str, index))}\] is {value}: 1 of {V.size}"):
            mx.solve(A, b)
        V[index] = before


def test_right_hand_sides_at_the_ends_of_the_range() -> None:
    A = RNG.standard_normal((SYSTEMS, 5, 5))
    x, info = mx.solve(A, np.zeros(5))
    assert not x.any()
    assert info.backward_error == 0.0
    assert not info.individual
    expected = np.linalg.solve(A, np.ones((5, 1)))[..., 0]
    for size in (1e-305, 1e300):
        x, info = mx.solve(A * size, np.ones(5) * size)
        assert info.solved
        assert np.allclose(x, expected)
    b = np.zeros((SYSTEMS, 5, 2))
    b[3, :, 1] = 1e-312  # subnormal
    x, info = mx.solve(A, b)
    assert list(info.individual) == [(3,)]


def test_pivots_are_those_of_partial_pivoting() -> None:
    """The growth of Wilkinson's matrix, 2^(n-1), occurs only with partial pivoting in this order of rows."""
    n = 30
    growth = np.tril(-np.ones((n, n)), -1) + np.eye(n)
    growth[:, -1] = 1.0
    A = np.broadcast_to(growth, (SYSTEMS, n, n)).copy()
    b = RNG.standard_normal((SYSTEMS, n, 1))
    x, eta, good = solve_by_stacked_lu(A, b)
    expected = np.linalg.solve(A, b)
    assert np.abs(x - expected).max() <= 2.0**n * 2.0**-53 * np.abs(expected).max() * n
    assert eta == pytest.approx([worst_error(M[None], v[None], s[None]) for M, v, s in zip(A, x, b)], rel=0.3, abs=1)
    assert not good.all()


def test_other_stacks_are_solved_by_numpy() -> None:
    for shape, dtype in (((MANY - 1, 4, 4), "float64"), ((MANY, 65, 65), "float64"), ((MANY, 4, 4), "complex128")):
        A = RNG.standard_normal(shape).astype(dtype)
        assert not suits_stacked_lu(A, A[..., :1])
        solved = solve_together(A, A[..., :1])
        assert solved is not None
        assert np.allclose(solved[0], np.linalg.solve(A, A[..., :1]))
