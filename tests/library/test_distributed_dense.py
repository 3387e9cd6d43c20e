"""Compare dense systems over virtual ranks with NumPy's solutions, and by residuals in plain arrays."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mxpeak as mx
from mxpeak.comm.transports.solo import Solo
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.errors import ResourceError, UsageError
from mxpeak.library.outcomes import IllConditionedWarning, SingularMatrixError
from tests.support.distributed_systems import entries, eta, held, raised, random, solved
from tests.support.roundoff import U

Array = Any
#: Grids with orders and block sizes: prime, ragged, fewer blocks than ranks.
CASES = [((1, 1), 97, 8), ((1, 2), 97, None), ((2, 1), 64, 16), ((2, 2), 101, 12), ((3, 2), 5, 4), ((2, 3), 1, 3)]
#: More right-hand sides than are solved individually.
SIDES = 7


def in_two_of(*precisions: str) -> Any:
    """Parametrize a test: each case has two of the precisions."""
    every = [(*case, precisions[(at + k) % 3]) for at, case in enumerate(CASES) for k in range(2)]
    return pytest.mark.parametrize(("shape", "n", "nb", "precision"), every)


@in_two_of("bf16", "fp32", "fp64")
def test_all_ranks_get_the_solution(shape: tuple[int, int], n: int, nb: int | None, precision: str) -> None:
    A, b = random(n), random(n, SIDES)
    answers = solved(A, b, shape, nb, precision)
    x, info = answers[0]
    assert info.solved
    assert eta(A, x, b) <= 1 + max(4 / n, 1)  # the second value is the documented bound
    assert np.abs(x - np.linalg.solve(A, b)).max() <= 50 * n * U * np.linalg.cond(A) * np.abs(x).max()
    assert all(np.array_equal(x, other) for other, _ in answers)
    assert (info.grid, info.n, info.rhs, info.precision) == (shape, n, SIDES, precision)
    assert not info.fallback
    assert f"{shape[0]}x{shape[1]} ranks" in str(info)


@in_two_of("fp64", "fp16", "fp32")
def test_the_same_factors_solve_with_the_transpose(
    shape: tuple[int, int], n: int, nb: int | None, precision: str
) -> None:
    A, b = random(n), random(n, SIDES)
    A = A * np.exp2(np.arange(n) % 15)[:, None]  # so that rows are scaled, and ||A||_1 is not ||A||_inf

    def body(comm: Any) -> tuple[Array, Any]:
        M = mx.DistributedMatrix.from_function(entries(A), n, nb=nb, comm=comm, grid=shape)
        F = mx.lu_factor(M, precision=precision)
        return F.solve(b, transposed=True), F.solve(b)

    answers = run_ranks(shape[0] * shape[1], body)
    for (x, info), (y, other) in answers:
        assert info.solved
        assert other.solved
        assert info.scaled == other.scaled == (n > 11 or precision == "fp16")
        assert eta(A.T, x, b) <= 1 + max(4 / n, 1)
        assert eta(A, y, b) <= 1 + max(4 / n, 1)
        assert np.array_equal(x, answers[0][0][0])


#: The first rows of the shares of two ranks, by the source of the matrix.
SHARES: dict[str, tuple[Callable[[Any, Array], Any], list[int]]] = {
    "rows": (lambda comm, A: mx.DistributedMatrix.from_rows(A[:9] if comm.rank == 0 else A[9:], comm=comm), [0, 9, 31]),
    "function": (lambda comm, A: mx.DistributedMatrix.from_function(entries(A), 31, comm=comm), [0, 15, 31]),
    "root": (lambda comm, A: mx.DistributedMatrix.from_root(None if comm.rank else A, comm=comm), [0, 31, 31]),
}


@pytest.mark.parametrize("source", SHARES)
@pytest.mark.parametrize("sides", [(), (3,)])
def test_each_rank_gives_its_rows_of_b_and_gets_those_of_x(source: str, sides: tuple[int, ...]) -> None:
    make, starts = SHARES[source]
    A, b = random(31), np.random.default_rng(2).standard_normal((31, *sides))

    def body(comm: Any) -> Any:
        M, own_rows = make(comm, A), slice(*starts[comm.rank :][:2])
        assert M.own_rows == range(own_rows.start, own_rows.stop)
        x, info = mx.solve(M, b[own_rows], local=True)
        assert info.solved
        assert x.shape == b[own_rows].shape
        return x, mx.solve(M, b)[0]

    answers = run_ranks(2, body)
    x = np.concatenate([part for part, _ in answers])
    assert np.array_equal(x, answers[0][1])
    assert eta(A, x, b) <= 2


def test_insufficient_fp32_factors_are_recomputed_in_fp64() -> None:
    n = 60
    rng = np.random.default_rng(1)
    left, right = (np.linalg.qr(rng.standard_normal((n, n)))[0] for _ in range(2))
    singular32 = np.diag(rng.uniform(1.0, 2.0, n))
    singular32[7, 7] = 1e-50
    cases = {
        "too coarse": (left * np.logspace(0, -11, n)) @ right,
        "zero": singular32,
        "||A||_inf is inf": 1e40 * random(n),
        "broke down": 1e-40 * random(n),
    }
    for why, A in cases.items():
        b = A @ np.ones(n)
        answers = solved(A, b, (2, 1), 8, "fp32")
        for x, info in answers:
            assert (info.solved, info.precision, info.fallback) == (True, "fp64", True), why
            assert why in info.message
            assert "again in fp64" in info.message
            assert eta(A, x, b) <= 2, why


def test_fp32_does_not_hide_that_a_matrix_is_singular() -> None:
    n = 1000
    A = random(n)
    A[-1] = A[:-1].sum(axis=0) / 30
    with pytest.warns(IllConditionedWarning, match="numerically singular"):
        _, info = solved(A, A @ np.ones(n), (1, 1))[0]
    assert (info.precision, info.fallback, info.ill_conditioned) == ("fp64", True, True)
    assert "the LU in fp32 indicates that the condition of A is" in info.message


def test_sums_beyond_the_largest_number_are_refused() -> None:
    A = np.full((60, 60), 1e307) + np.diag(np.full(60, 1e307))
    for precision in ("fp32", "fp64"):
        told = raised(2, lambda comm, how=precision: mx.solve(held(comm, A), np.ones(60), precision=how))
        assert len(set(told)) == 1
        assert "divide A and b" in told[0]


def test_factors_that_could_not_be_made_again_say_why() -> None:
    n = 40
    A, calls = random(n), []

    def fn(i: Array, j: Array) -> Array:
        calls.append(len(calls))
        if broken:
            raise OSError("the table is gone")
        return A[i, j]

    broken: list[bool] = []
    F = mx.lu_factor(mx.DistributedMatrix.from_function(fn, n, nb=8, comm=Solo()), precision="fp32")
    broken.append(True)
    for _ in range(2):
        with pytest.raises(mx.MxpeakError, match="the table is gone"):
            F.solve(np.ones(n))
    assert F.precision == "fp32"
    assert "fp32" in repr(F)


def test_fp32_is_chosen_where_its_lu_saves_more_than_refinement_costs() -> None:
    n = 1000
    A = random(n) + n * np.eye(n)
    for sides, precision in ((1, "fp32"), (n // 128, "fp32"), (n // 128 + 1, "fp64")):
        b = random(n, sides)
        x, info = solved(A, b, (1, 2), 96)[0]
        assert (info.solved, info.precision, info.rhs) == (True, precision, sides)
        assert eta(A, x, b) <= 2


def test_factors_serve_many_right_hand_sides_and_tell_the_condition() -> None:
    n, (P, Q) = 83, (2, 2)
    A, b = random(n), random(n, 1)[:, 0]

    def body(comm: Any) -> tuple[Array, Array, float]:
        F = mx.lu_factor(mx.DistributedMatrix.from_function(entries(A), n, nb=7, comm=comm, grid=(P, Q)))
        first, second = F.solve(b)[0], F.solve(lambda i: 2.0 * b[i])[0]
        return first, second, F.condition

    for first, second, condition in run_ranks(P * Q, body):
        assert first.shape == (n,)
        assert eta(A, first, b) <= 2
        assert np.array_equal(second, 2 * first)
        exact = np.linalg.cond(A, 1)
        assert exact / 3 <= condition <= exact * (1 + n * U * exact)


def test_each_right_hand_side_is_refined_as_long_as_it_needs() -> None:
    n, rng = 120, np.random.default_rng(3)
    left, right = (np.linalg.qr(rng.standard_normal((n, n)))[0] for _ in range(2))
    A = left * np.geomspace(1.0, 1e-6, n) @ right  # condition·u of fp32 is 0.06: GAIN is missed now and then
    b = rng.standard_normal((n, 9))
    b[:, 0], b[:, 4], b[:, 7] = 0.0, 1e200 * b[:, 4], A @ rng.standard_normal(n)
    for shape in ((1, 1), (2, 2)):
        answers = solved(A, b, shape, 16, "fp32")
        x, info = answers[0]
        _, alone = solved(A, b[:, 1], shape, 16, "fp32")[0]
        assert 2 <= alone.iterations <= info.iterations + 1  # sums of products of matrices have another order
        assert not x[:, 0].any()
        for j in range(1, b.shape[1]):
            assert eta(A, x[:, j], b[:, j]) <= 1.0
        assert all(np.array_equal(x, other) for other, _ in answers)


def test_entries_are_made_once_for_the_residuals_of_all_right_hand_sides() -> None:
    n, calls = 33, []
    A = random(n)

    def fn(i: Array, j: Array) -> Array:
        calls.append(i.size * j.size)
        return A[i, j]

    F = mx.lu_factor(mx.DistributedMatrix.from_function(fn, n, nb=8))
    calls.clear()
    _, info = F.solve(random(n, 5))
    assert info.iterations == 0
    assert sum(calls) == 2 * n * n, "once for all residuals, and once for all row-wise errors"


def test_rows_and_columns_of_any_scale_are_solved() -> None:
    n = 61
    A = random(n) * np.ldexp(1.0, np.arange(n) * 8 - 240)[:, None] * np.ldexp(1.0, 100 - np.arange(n) * 5)
    with pytest.warns(IllConditionedWarning, match="columns of A differ so much"):
        x, info = solved(A, A @ np.ones(n), (2, 2), 8)[0]
    assert info.scaled
    assert info.solved
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


def test_a_matrix_singular_to_working_precision_is_reported() -> None:
    n = 40
    A = random(n)
    A[:, 7] = A[:, 3] + 2.0**-52 * A[:, 7]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, info = solved(A, np.ones(n), (1, 1), 8)[0]
        mx.lu_factor(mx.DistributedMatrix.from_root(A)).solve(np.ones(n))
    assert info.ill_conditioned
    assert info.condition * U >= 1
    assert [one.category for one in caught] == [IllConditionedWarning] * 2
    assert [one.filename for one in caught] == [solved.__code__.co_filename, __file__]


def test_a_zero_pivot_is_one_error_on_all_ranks() -> None:
    def body(comm: Any) -> None:
        A = mx.DistributedMatrix.from_function(lambda i, j: (i * j % 5) * 1.0, 12, nb=3, comm=comm)
        mx.solve(A, np.ones(12))

    texts = raised(4, body)
    assert len(set(texts)) == 1
    assert texts[0].startswith(SingularMatrixError.__name__)
    assert "pivot" in texts[0]


def test_rows_of_one_rank_alone_are_for_distributed_matrices() -> None:
    with pytest.raises(UsageError, match="local=True applies only to a DistributedMatrix"):
        mx.solve(np.eye(3), np.ones(3), local=True)


def test_what_does_not_fit_is_refused_with_the_ranks_that_would_do() -> None:
    A = mx.DistributedMatrix.from_function(lambda i, j: i + j, 90_000_000)
    with pytest.raises(ResourceError, match=r"8\*90000000\*90000000 bytes.*mpiexec -n \d+ python"):
        mx.lu_factor(A)


@pytest.mark.parametrize(
    ("options", "message"), [({"precision": "fp17"}, "fp16"), ({"device": "cuda"}, 'device="cpu"')]
)
def test_what_is_unknown_or_for_arrays_only_is_refused(options: dict[str, Any], message: str) -> None:
    A = mx.DistributedMatrix.from_function(lambda i, j: 1.0 * (i == j), 3)
    with pytest.raises(UsageError, match=message):
        mx.solve(A, np.ones(3), **options)


def test_factors_of_16_bits_hide_no_singular_matrix() -> None:
    """b fits to it, so GMRES with such factors finds an x; scaled columns alone are no reason to doubt."""
    n = 60
    for A, doubtful in ((random(n), True), (random(n) * 10.0 ** np.linspace(-6, 6, n), False)):
        A[:, -1] = A[:, 0] + A[:, 1] if doubtful else A[:, -1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IllConditionedWarning)
            answers = [solved(A, A @ np.ones(n), (2, 1), 8, "fp16")[0], mx.solve(A, A @ np.ones(n), precision="fp16")]
        for _, info in answers:
            assert info.solved
            assert (info.ill_conditioned, info.fallback, info.precision) == (
                (True, True, "fp64") if doubtful else (False, False, "fp16")
            )
            assert ("may be singular" in info.message) == doubtful
