"""Test stacks of systems and small ones: NumPy's shapes, checks that NumPy lacks, and messages."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mxpeak as mx
from mxpeak.library.dense.stack import solve_together
from tests.support.roundoff import U

RNG = np.random.default_rng(16)


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    values = RNG.standard_normal(shape)
    return (values + 1j * RNG.standard_normal(shape) if dtype.startswith("complex") else values).astype(dtype)


def eta(A: np.ndarray, x: np.ndarray, b: np.ndarray) -> float:
    """Return the worst backward error of a stack, by its definition."""
    u = np.finfo(A.dtype).eps / 2
    norms = np.abs(A).sum(-1).max(-1)[..., None] * np.abs(x).max(-2) + np.abs(b).max(-2)
    return float((np.abs(b - A @ x).max(-2) / norms / (A.shape[-1] * u)).max())


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "complex64"])
def test_stacks_have_the_shapes_of_numpy_and_the_accuracy_of_a_stable_solver(dtype: str) -> None:
    for of_A, of_b in (
        ((7, 5, 5), (5,)),
        ((7, 5, 5), (7, 5, 3)),
        ((2, 3, 17, 17), (17, 1)),
        ((1, 4, 4), (6, 4, 2)),
        ((2, 40, 40), (2, 40, 20)),
        ((9, 1, 1), (9, 1, 1)),
    ):
        A, b = numbers(of_A, dtype), numbers(of_b, dtype)
        for transposed in (False, True):
            M = A.swapaxes(-1, -2) if transposed else A
            x, info = mx.solve(A, b, transposed=transposed)
            assert x.shape == (M @ b).shape
            assert x.dtype == dtype
            side = b[:, None] if b.ndim == 1 else b
            error = eta(M, x[..., None] if b.ndim == 1 else x, side)
            assert info.solved
            assert info.n == of_A[-1]
            assert info.systems == x.size // (side.shape[-1] * of_A[-1])
            assert error <= 1.0
            if side.shape[-1] <= 8 and not info.individual:
                assert error == pytest.approx(info.backward_error, rel=0.5, abs=0.05)


def test_systems_that_numpy_does_not_solve_are_solved_individually() -> None:
    n = 40
    good = numbers((n, n), "float64")
    scaled = np.geomspace(1e-120, 1e120, n)[:, None] * good
    hilbert = 1.0 / (np.arange(n)[:, None] + np.arange(n) + 1.0)
    growth = np.tril(-np.ones((n, n)), -1) + np.eye(n)
    growth[:, -1] = 1.0
    A = np.stack([good, scaled, good, hilbert, growth])
    b = np.stack([M @ np.ones((n, 1)) for M in A])
    with pytest.warns(mx.IllConditionedWarning, match=r"^A\[3\]: .*numerically singular"):
        x, info = mx.solve(A, b)
    assert info.solved
    assert info.ill_conditioned
    assert info.scaled
    assert {(1,), (3,)} <= set(info.individual)
    assert not {(0,), (2,)} & set(info.individual)
    assert info.individual[1,].scaled
    assert info.individual[3,].ill_conditioned
    assert np.abs(x[[0, 1, 2, 4]] - 1.0).max() < 1e-6
    assert "some x may have no correct digit" in str(info)
    assert "5 systems" in str(info)


def test_a_singular_one_is_named_and_nothing_is_returned() -> None:
    A = np.stack([np.eye(3), np.ones((3, 3)), np.eye(3)])
    with pytest.raises(mx.SingularMatrixError, match=r"in the stack, A\[1\]: .*pivot 2 of 3"):
        mx.solve(A, np.ones(3))


def test_another_precision_is_used_for_each_system() -> None:
    A, b = numbers((3, 70, 70), "float64") + 20.0 * np.eye(70), numbers((3, 70, 1), "float64")
    x, info = mx.solve(A, b, precision="bf16")
    assert {one.precision for one in info.individual.values()} == {"bf16"}
    assert len(info.individual) == 3
    assert (info.precision, info.fallback) == ("bf16", False)
    assert info.emulated == info.individual[0,].emulated
    assert eta(A, x, b) <= 1.0


def test_a_fallback_in_one_system_is_reported() -> None:
    A = numbers((3, 5, 5), "float64")
    A[1, 0] = A[1, 1] + 1e-10 * A[1, 0]
    _, info = mx.solve(A, np.ones(5), precision="fp32")
    assert [one.precision for one in info.individual.values()] == ["fp32", "fp64", "fp32"]
    assert (info.precision, info.fallback) == ("fp32", True)


@pytest.mark.parametrize(
    ("A", "b", "said"),
    [
        (np.zeros((2, 3, 4)), np.ones(3), r"\(2, 3, 4\).*square.*\(\.\.\., n, n\)"),
        (np.zeros((2, 3, 3)), np.ones(4), r"stack of 3x3 matrices, but b has shape \(4,\)"),
        (np.zeros((2, 3, 3)), np.ones((5, 3, 1)), r"\(2,\) of A and \(5,\) of b do not match"),
        (np.zeros((4, 3, 3)), np.ones((4, 3)), r"b has shape \(4, 3\)"),
        (np.full((2, 3, 3), np.nan), np.ones(3), r"A\[0, 0, 0\] is nan: 18 of 18"),
        (np.ones((2, 3, 3)), np.array([1.0, np.inf, 0.0]), r"b\[1\] is inf: 1 of 3"),
    ],
)
def test_bad_stacks_are_refused(A: np.ndarray, b: np.ndarray, said: str) -> None:
    with pytest.raises(mx.UsageError, match=said):
        mx.solve(A, b)


@pytest.mark.parametrize(
    "factor", [mx.lu_factor, mx.cho_factor, mx.Solver, lambda A: mx.refine(A, np.ones(3), np.ones(3))]
)
def test_functions_for_one_matrix_refuse_a_stack_by_name(factor: Callable[[np.ndarray], Any]) -> None:
    with pytest.raises(mx.UsageError, match=r"stack of matrices of shape \(5, 3, 3\).*use mxpeak\.solve\(A, b\)"):
        factor(np.ones((5, 3, 3)))
    with pytest.raises(mx.UsageError, match=r"shape \(5, 3, 4\), but solve needs a square matrix"):
        factor(np.ones((5, 3, 4)))


def test_tensors_and_nested_lists_are_stacks_too() -> None:
    torch = pytest.importorskip("torch")
    A = numbers((3, 6, 6), "float64")
    x, _ = mx.solve(torch.from_numpy(A), torch.ones(6, dtype=torch.float64))
    assert isinstance(x, torch.Tensor)
    assert eta(A, x.numpy()[..., None], np.ones((6, 1))) <= 1.0
    x, _ = mx.solve([[[2.0]], [[4.0]]], [1.0])
    assert x.tolist() == [[0.5], [0.25]]


def test_small_systems_are_solved_at_once_and_their_condition_is_known_when_asked() -> None:
    for n in (1, 2, 9, 120):
        A, b = numbers((n, n), "float64"), numbers((n, 2), "float64")
        x, info = mx.solve(A, b)
        kept, A[:] = A.copy(), 0.0  # later computations of info use the A of the solve
        assert list(info.times) == ["solve"]
        assert info.iterations == 0
        assert info.precision == "fp64"
        # Two sums of n products: their rounding errors are about sqrt(n)·u of an entry, in units of n·u·n.
        assert eta(kept, x, b) == pytest.approx(info.backward_error, rel=1e-6, abs=4 * n**-1.5)
        assert info.condition == pytest.approx(np.linalg.cond(kept, 1), rel=0.7)


def test_the_sign_of_the_condition_is_seldom_far_below_it() -> None:
    """If the check accepts a system, its condition is below 1/u, and NumPy's x has correct digits."""
    n, hidden = 12, 0
    for decade in np.arange(8.0, 18.0, 0.5):
        Q, _ = np.linalg.qr(numbers((n, n), "float64"))
        V, _ = np.linalg.qr(numbers((n, n), "float64"))
        A = (Q * np.geomspace(1.0, 10.0**-decade, n)) @ V
        solved = solve_together(A, A @ np.ones((n, 1)))
        if solved is not None and solved[2]:
            assert np.linalg.cond(A, 1) * U < 0.5
            hidden += decade > 13
    assert hidden <= 2


def test_zeros_and_numbers_near_the_ends_of_the_range() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        A = numbers((2, 5, 5), "float64")
        x, info = mx.solve(A, np.zeros(5))
        assert not x.any()
        assert info.solved
        assert info.backward_error == 0.0
        for size in (1e-305, 1e300):
            x, info = mx.solve(A * size, np.ones(5) * size)
            assert info.solved
            assert np.allclose(x, np.linalg.solve(A, np.ones((2, 5, 1)))[..., 0])


def test_a_subnormal_right_hand_side_keeps_the_digits_that_it_has() -> None:
    """The residual would underflow among subnormal numbers; test one system, a stack, and factors."""
    A = numbers((24, 24), "float64") @ np.diag(np.geomspace(1.0, 1e-6, 24))
    b = np.ldexp(np.round(1e3 * RNG.standard_normal(24)), -1074)
    assert 0 < np.abs(b).max() < np.finfo(float).tiny
    expected = np.ldexp(np.linalg.solve(A, np.ldexp(b, 1000)), -1000)
    for x, info in (mx.solve(A, b), mx.solve(A[None], b), mx.lu_factor(A).solve(b)):
        assert info.solved
        assert np.abs(x - expected).max() <= 1e-6 * np.abs(expected).max() + 5e-324


def test_the_info_of_a_stack_has_the_attributes_of_one_system() -> None:
    _, info = mx.solve(np.stack([np.eye(3), np.diag([1.0, 1e-200, 1.0])]), np.ones(3))
    assert info.condition == pytest.approx(1e200)
    assert info.iterations >= 0
    _, plain = mx.solve(np.stack([np.eye(3)] * 2), np.ones(3))
    assert plain.condition == 1.0
    assert plain.growth is None
    assert plain.iterations == 0
