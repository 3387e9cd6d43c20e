"""Dense systems over ranks: virtual ones, against NumPy's solutions and by the residual in plain arrays."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mxpeak as mx
from mxpeak.comm.threads import run_ranks
from mxpeak.errors import ResourceError, UsageError
from mxpeak.library.outcomes import IllConditionedWarning, SingularMatrixError
from tests.support.roundoff import U

Array = Any
#: Grids with orders and block sizes: prime, ragged, fewer blocks than ranks.
CASES = [((1, 1), 97, 8), ((1, 2), 97, None), ((2, 1), 64, 16), ((2, 2), 101, 12), ((3, 2), 5, 4), ((2, 3), 1, 3)]


def random(n: int, *more: int) -> Array:
    return np.random.default_rng(n).standard_normal((n, *(more or (n,))))


def entries(A: Array) -> Callable[[Array, Array], Array]:
    return lambda i, j: A[i, j]


def eta(A: Array, x: Array, b: Array) -> float:
    """The backward error in units of n·u; each residual computed here adds up to one such unit."""
    scale = np.abs(A).sum(axis=1).max() * np.abs(x).max() + np.abs(b).max()
    return float(np.abs(b - A @ x).max() / (scale * len(A) * U))


def solved(A: Array, b: Any, shape: tuple[int, int], nb: int | None = None) -> list[tuple[Array, Any]]:
    """What every rank of a grid gets."""

    def body(comm: Any) -> tuple[Array, Any]:
        M = mx.DistributedMatrix.from_function(entries(A), len(A), nb=nb, comm=comm, grid=shape)
        return mx.solve(M, b)

    return run_ranks(shape[0] * shape[1], body)


def raised(ranks: int, body: Callable[[Any], Any]) -> list[str]:
    """What is raised on every rank."""

    def caught(comm: Any) -> str:
        with pytest.raises(mx.MxpeakError) as error:
            body(comm)
        return f"{type(error.value).__name__}: {error.value}"

    return run_ranks(ranks, caught)


@pytest.mark.parametrize(("shape", "n", "nb"), CASES)
def test_all_ranks_get_the_solution(shape: tuple[int, int], n: int, nb: int | None) -> None:
    A, b = random(n), random(n, 2)
    answers = solved(A, b, shape, nb)
    x, info = answers[0]
    assert info.solved
    assert eta(A, x, b) <= 2
    assert np.abs(x - np.linalg.solve(A, b)).max() <= 50 * n * U * np.linalg.cond(A) * np.abs(x).max()
    assert all(np.array_equal(x, other) for other, _ in answers)
    assert (info.grid, info.n, info.rhs, info.precision) == (shape, n, 2, "fp64")
    assert f"{shape[0]}x{shape[1]} ranks" in str(info)


def test_factors_serve_many_right_hand_sides_and_tell_the_condition() -> None:
    n, (P, Q) = 83, (2, 2)
    A, b = random(n), random(n, 1)[:, 0]

    def body(comm: Any) -> tuple[Array, Array, float]:
        F = mx.lu_factor(mx.DistributedMatrix.from_function(entries(A), n, nb=7, comm=comm, grid=(P, Q)))
        first, second = F.solve(b)[0], F.solve(lambda i: 2.0 * b[i])[0]
        return first, second, F.condition()

    for first, second, condition in run_ranks(P * Q, body):
        assert first.shape == (n,)
        assert eta(A, first, b) <= 2
        assert np.array_equal(second, 2 * first)
        exact = np.linalg.cond(A, 1)
        assert exact / 3 <= condition <= exact * (1 + n * U * exact)


def test_rows_and_columns_of_any_scale_are_solved() -> None:
    n = 61
    A = random(n) * np.ldexp(1.0, np.arange(n) * 8 - 240)[:, None] * np.ldexp(1.0, 100 - np.arange(n) * 5)
    x, info = solved(A, A @ np.ones(n), (2, 2), 8)[0]
    assert info.scaled
    assert eta(A, x, A @ np.ones(n)) <= 2


def test_growth_of_the_elimination_is_made_up_for_by_refinement() -> None:
    n = 55  # Wilkinson's matrix: pivoting lets the last column grow to 2^(n-1)
    A = np.eye(n) - np.tril(np.ones((n, n)), -1)
    A[:, -1] = 1.0
    b = random(n, 1)[:, 0]
    x, info = solved(A, b, (1, 2), 8)[0]
    assert info.growth == 2.0 ** (n - 1)
    assert info.iterations > 0
    assert info.solved
    assert eta(A, x, b) <= 2


def test_a_matrix_singular_to_working_precision_is_told_of() -> None:
    n = 40
    A = random(n)
    A[:, 7] = A[:, 3] + 2.0**-52 * A[:, 7]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        _, info = solved(A, np.ones(n), (1, 1), 8)[0]
    assert info.ill_conditioned
    assert info.condition * U >= 1
    assert [one.category for one in told] == [IllConditionedWarning]


def test_a_zero_pivot_is_one_error_on_all_ranks() -> None:
    def body(comm: Any) -> None:
        A = mx.DistributedMatrix.from_function(lambda i, j: (i * j % 5) * 1.0, 12, nb=3, comm=comm)
        mx.solve(A, np.ones(12))

    texts = raised(4, body)
    assert len(set(texts)) == 1
    assert texts[0].startswith(SingularMatrixError.__name__)
    assert "pivot" in texts[0]


def test_what_does_not_fit_is_refused_with_the_ranks_that_would_do() -> None:
    A = mx.DistributedMatrix.from_function(lambda i, j: i + j, 90_000_000)
    with pytest.raises(ResourceError, match=r"8\*90000000\*90000000 bytes.*mpiexec -n \d+ python"):
        mx.lu_factor(A)


@pytest.mark.parametrize(
    ("asked", "told"),
    [({"precision": "fp32"}, "fp64"), ({"device": "cuda"}, 'device="cpu"'), ({"transposed": True}, r"fn\(j, i\)")],
)
def test_what_is_for_arrays_only_is_refused(asked: dict[str, Any], told: str) -> None:
    A = mx.DistributedMatrix.from_function(lambda i, j: 1.0 * (i == j), 3)
    with pytest.raises(UsageError, match=told):
        mx.solve(A, np.ones(3), **asked)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"n": 0}, "n = 0: give an integer of 1 or more"),
        ({"n": 4.0}, "n = 4.0"),
        ({"nb": -1}, "nb = -1"),
        ({"grid": (2, 2)}, r"2\*2 = 4 ranks, but there are 1; give grid=\(1, 1\)"),
        ({"fn": np.eye(4)}, "not a function"),
        ({"comm": 7}, "not a communicator"),
    ],
)
def test_a_matrix_that_cannot_be_made_is_refused(arguments: dict[str, Any], told: str) -> None:
    asked: dict[str, Any] = {"fn": lambda i, j: i + j, "n": 4, **arguments}
    with pytest.raises(UsageError, match=told):
        mx.DistributedMatrix.from_function(asked.pop("fn"), asked.pop("n"), **asked)
