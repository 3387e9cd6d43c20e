"""Dense systems over ranks: virtual ones, against NumPy's solutions and by the residual in plain arrays."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mxpeak as mx
from mxpeak.comm.solo import Solo
from mxpeak.comm.threads import run_ranks
from mxpeak.errors import ResourceError, UsageError
from mxpeak.layout.grid import ProcessGrid
from mxpeak.library.dense.sources import owned
from mxpeak.library.outcomes import IllConditionedWarning, SingularMatrixError
from tests.support.norm_ranks import scalapack_array, scalapack_part
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


def solved(
    A: Array, b: Any, shape: tuple[int, int], nb: int | None = None, precision: str = "auto"
) -> list[tuple[Array, Any]]:
    """What every rank of a grid gets."""

    def body(comm: Any) -> tuple[Array, Any]:
        M = mx.DistributedMatrix.from_function(entries(A), len(A), nb=nb, comm=comm, grid=shape)
        return mx.solve(M, b, precision=precision)

    return run_ranks(shape[0] * shape[1], body)


def held(comm: Any, A: Array) -> Any:
    """A matrix of two ranks."""
    return mx.DistributedMatrix.from_function(entries(A), len(A), nb=8, comm=comm, grid=(1, 2))


def raised(ranks: int, body: Callable[[Any], Any]) -> list[str]:
    """What is raised on every rank."""

    def caught(comm: Any) -> str:
        with pytest.raises(mx.MxpeakError) as error:
            body(comm)
        return f"{type(error.value).__name__}: {error.value}"

    return run_ranks(ranks, caught)


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize(("shape", "n", "nb"), CASES)
def test_all_ranks_get_the_solution(shape: tuple[int, int], n: int, nb: int | None, precision: str) -> None:
    A, b = random(n), random(n, 2)
    answers = solved(A, b, shape, nb, precision)
    x, info = answers[0]
    assert info.solved
    assert eta(A, x, b) <= 1 + max(4 / n, 1)  # the second is what is promised
    assert np.abs(x - np.linalg.solve(A, b)).max() <= 50 * n * U * np.linalg.cond(A) * np.abs(x).max()
    assert all(np.array_equal(x, other) for other, _ in answers)
    assert (info.grid, info.n, info.rhs, info.precision) == (shape, n, 2, precision)
    assert not info.fallback
    assert f"{shape[0]}x{shape[1]} ranks" in str(info)


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize(("shape", "n", "nb"), CASES)
def test_the_same_factors_solve_with_the_transpose(
    shape: tuple[int, int], n: int, nb: int | None, precision: str
) -> None:
    A, b = random(n), random(n, 2)
    A = A * np.exp2(np.arange(n) % 15)[:, None]  # so that rows are scaled, and ||A||_1 is not ||A||_inf

    def body(comm: Any) -> tuple[Array, Any]:
        M = mx.DistributedMatrix.from_function(entries(A), n, nb=nb, comm=comm, grid=shape)
        F = mx.lu_factor(M, precision=precision)
        return F.solve(b, transposed=True), F.solve(b)

    answers = run_ranks(shape[0] * shape[1], body)
    for (x, info), (y, other) in answers:
        assert info.solved
        assert other.solved
        assert info.scaled == other.scaled == (n > 11)
        assert eta(A.T, x, b) <= 1 + max(4 / n, 1)
        assert eta(A, y, b) <= 1 + max(4 / n, 1)
        assert np.array_equal(x, answers[0][0][0])


#: The rows that each rank of two calls with, by how the matrix was made.
SHARES: dict[str, tuple[Callable[[Any, Array], Any], list[int]]] = {
    "rows": (lambda comm, A: mx.DistributedMatrix.from_rows(A[:9] if comm.rank == 0 else A[9:], comm=comm), [0, 9, 31]),
    "function": (lambda comm, A: mx.DistributedMatrix.from_function(entries(A), 31, comm=comm), [0, 15, 31]),
    "root": (lambda comm, A: mx.DistributedMatrix.from_root(None if comm.rank else A, comm=comm), [0, 31, 31]),
}


@pytest.mark.parametrize("made", SHARES)
@pytest.mark.parametrize("sides", [(), (3,)])
def test_each_rank_gives_its_rows_of_b_and_gets_those_of_x(made: str, sides: tuple[int, ...]) -> None:
    make, starts = SHARES[made]
    A, b = random(31), np.random.default_rng(2).standard_normal((31, *sides))

    def body(comm: Any) -> Any:
        M, mine = make(comm, A), slice(*starts[comm.rank :][:2])
        assert M.own_rows == range(mine.start, mine.stop)
        x, info = mx.solve(M, b[mine], local=True)
        assert info.solved
        assert x.shape == b[mine].shape
        return x, mx.solve(M, b)[0]

    answers = run_ranks(2, body)
    x = np.concatenate([part for part, _ in answers])
    assert np.array_equal(x, answers[0][1])
    assert eta(A, x, b) <= 2


def test_factors_in_fp32_that_do_not_do_are_made_again_in_fp64() -> None:
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
    assert "by its LU in fp32 the condition of A is" in info.message


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
        return first, second, F.condition()

    for first, second, condition in run_ranks(P * Q, body):
        assert first.shape == (n,)
        assert eta(A, first, b) <= 2
        assert np.array_equal(second, 2 * first)
        exact = np.linalg.cond(A, 1)
        assert exact / 3 <= condition <= exact * (1 + n * U * exact)


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
    assert sum(calls) == n * n


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


def test_a_matrix_singular_to_working_precision_is_told_of() -> None:
    n = 40
    A = random(n)
    A[:, 7] = A[:, 3] + 2.0**-52 * A[:, 7]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        _, info = solved(A, np.ones(n), (1, 1), 8)[0]
        mx.lu_factor(mx.DistributedMatrix.from_root(A)).solve(np.ones(n))
    assert info.ill_conditioned
    assert info.condition * U >= 1
    assert [one.category for one in told] == [IllConditionedWarning] * 2
    assert {one.filename for one in told} == {__file__}


def test_a_zero_pivot_is_one_error_on_all_ranks() -> None:
    def body(comm: Any) -> None:
        A = mx.DistributedMatrix.from_function(lambda i, j: (i * j % 5) * 1.0, 12, nb=3, comm=comm)
        mx.solve(A, np.ones(12))

    texts = raised(4, body)
    assert len(set(texts)) == 1
    assert texts[0].startswith(SingularMatrixError.__name__)
    assert "pivot" in texts[0]


def test_rows_of_one_rank_alone_are_for_distributed_matrices() -> None:
    with pytest.raises(UsageError, match="local=True is for rows of a DistributedMatrix"):
        mx.solve(np.eye(3), np.ones(3), local=True)


def test_what_does_not_fit_is_refused_with_the_ranks_that_would_do() -> None:
    A = mx.DistributedMatrix.from_function(lambda i, j: i + j, 90_000_000)
    with pytest.raises(ResourceError, match=r"8\*90000000\*90000000 bytes.*mpiexec -n \d+ python"):
        mx.lu_factor(A)


@pytest.mark.parametrize(("asked", "told"), [({"precision": "bf16"}, "fp32"), ({"device": "cuda"}, 'device="cpu"')])
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


@pytest.mark.parametrize(("ranks", "split"), [(1, [23]), (3, [5, 0, 18]), (4, [1, 2, 17, 3])])
def test_rows_wherever_they_lie_and_files_make_the_same_system(ranks: int, split: list[int], tmp_path: Path) -> None:
    n = sum(split)
    A, b = random(n), random(n, 3)
    np.save(tmp_path / "A.npy", np.asfortranarray(A))
    ends = np.cumsum(split)

    def body(comm: Any) -> tuple[list[Array], Any]:
        rows = A[ends[comm.rank] - split[comm.rank] : ends[comm.rank]]
        made = [
            mx.DistributedMatrix.from_function(lambda i, j: np.asfortranarray(A[i, j]), n, nb=4, comm=comm),
            mx.DistributedMatrix.from_rows(rows, nb=4, comm=comm),
            mx.DistributedMatrix.from_root(A if comm.rank == 0 else None, nb=4, comm=comm),
            mx.DistributedMatrix.from_file(tmp_path / "A.npy", nb=4, comm=comm),
        ]
        answers = [mx.solve(M, b) for M in made]
        assert all(info.solved for _, info in answers)
        return [x for x, _ in answers], answers[1][1]

    for (x, *others), info in run_ranks(ranks, body):
        assert eta(A, x[:, 1], b[:, 1]) <= 2
        assert all(np.array_equal(x, other) for other in others)
        assert info.bytes_a_rank > 2 * 8 * n * n / ranks


@pytest.mark.parametrize(("dtype", "writable"), [(np.float64, True), (np.float64, False), (np.float32, True)])
def test_scalapacks_arrays_are_used_where_they_lie_and_are_not_written_to(dtype: type, writable: bool) -> None:
    n, nb, (P, Q) = 21, 4, (1, 2)
    A, b, desc = np.round(8 * random(n)), random(n, 2), [1, 0, n, n, nb, nb, 0, 0, 23]

    def body(comm: Any) -> list[Array]:
        at = ProcessGrid(P, Q).coords(comm.rank)
        local = np.nan_to_num(scalapack_array(scalapack_part(A, desc, (P, Q), *at), 23, flat=False)).astype(dtype, "F")
        before = local.copy()
        local.flags.writeable = writable
        M = mx.DistributedMatrix.from_blocks(mx.from_scalapack(local, desc, grid=(P, Q), comm=comm))
        assert np.shares_memory(M.source.part, local)
        assert np.shares_memory(M.blocks().local, local) == (dtype is np.float64)
        F = mx.lu_factor(M, precision="fp32")
        found = [F.solve(b)[0], F.solve(b, transposed=True)[0]]
        assert np.array_equal(local, before)
        return found

    for x, y in run_ranks(P * Q, body):
        assert eta(A, x, b) <= 2
        assert eta(A.T, y, b) <= 2


def test_blocks_may_lie_in_any_direction() -> None:
    n, desc = 24, [1, 0, 24, 24, 4, 4, 0, 0, 24]
    A, b = random(n), random(n)
    for view in (A[::-1], A[:, ::-1], A.T[::-1], A.T[:, ::-1], A[::-1, ::-1]):
        M = mx.DistributedMatrix.from_blocks(mx.from_scalapack(view, desc, grid=(1, 1)))
        assert eta(view, mx.solve(M, b)[0], b) <= 2


@pytest.mark.parametrize("order", ["row", "column"])
def test_blocks_go_to_norms_and_come_from_scalapack(order: str) -> None:
    n, nb, (P, Q) = 21, 4, (2, 2)
    A, b = random(n), random(n, 2)
    desc = [1, 0, n, n, nb, nb, 0, 0, 13]

    def body(comm: Any) -> tuple[float, Array]:
        at = ProcessGrid(P, Q, order).coords(comm.rank)
        local = scalapack_array(scalapack_part(A, desc, (P, Q), *at), 13, flat=False)
        M = mx.from_scalapack(local, desc, grid=(P, Q), comm=comm, order=order)
        made = mx.DistributedMatrix.from_function(entries(A), n, nb=30, comm=comm)
        return mx.norm(made.blocks(), "max"), mx.solve(mx.DistributedMatrix.from_blocks(M), b)[0]

    for largest, x in run_ranks(P * Q, body):
        assert largest == np.abs(A).max()
        assert eta(A, x[:, 0], b[:, 0]) <= 2


def test_blocks_that_lu_does_not_take_are_refused() -> None:
    for desc, told in (([1, 0, 4, 4, 2, 3, 0, 0, 4], "2x3"), ([1, 0, 4, 3, 2, 2, 0, 0, 4], r"\(4, 3\)")):
        with pytest.raises(UsageError, match=told):
            mx.DistributedMatrix.from_blocks(mx.from_scalapack(np.ones((4, desc[3]), order="F"), desc))
    with pytest.raises(UsageError, match="not ndarray"):
        mx.DistributedMatrix.from_blocks(np.eye(3))


def test_integers_and_narrow_numbers_become_fp64() -> None:
    A = np.array([[2, 1], [1, 3]])
    for dtype in (np.int8, np.float16, np.float32):
        x, _ = mx.solve(mx.DistributedMatrix.from_root(A.astype(dtype)), [3, 4])
        np.testing.assert_allclose(x, [1, 1], rtol=8 * U)


MISTAKES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "an order of its own": (
        lambda comm: mx.DistributedMatrix.from_function(entries(np.eye(9)), 4 + comm.rank // 2, nb=2, comm=comm),
        "UsageError: rank 2: this rank calls with n = 5, nb = 2, grid = 2x2, but rank 0 with n = 4",
    ),
    "no function": (
        lambda comm: mx.DistributedMatrix.from_function(None if comm.rank == 1 else min, 4, comm=comm),
        "UsageError: rank 1: fn = None is not a function",
    ),
    "rows that are too few": (
        lambda comm: mx.DistributedMatrix.from_rows(np.ones((comm.rank, 7)), comm=comm),
        "UsageError: the ranks have 0 + 1 + 2 + 3 = 6 rows of 7 entries",
    ),
    "rows of another length": (
        lambda comm: mx.DistributedMatrix.from_rows(np.ones((1, 4 + comm.rank // 3)), comm=comm),
        "UsageError: rank 3: this rank calls with rows of 5 entries, but rank 0 with rows of 4 entries",
    ),
    "NaN in the rows of one": (
        lambda comm: mx.DistributedMatrix.from_rows(np.full((1, 4), np.nan if comm.rank == 2 else 1.0), comm=comm),
        "UsageError: rank 2: local_rows[0, 0] is nan",
    ),
    "complex rows": (
        lambda comm: mx.DistributedMatrix.from_rows(np.ones((1, 4), complex), comm=comm),
        "UsageError: rank 0: local_rows has dtype complex128",
    ),
    "an array where none belongs": (
        lambda comm: mx.DistributedMatrix.from_root(np.eye(4), comm=comm),
        "UsageError: rank 1: from_root takes A from rank 0",
    ),
    "no file": (
        lambda comm: mx.DistributedMatrix.from_file("nowhere.npy", comm=comm),
        "UsageError: rank 0: nowhere.npy: No such file or directory",
    ),
    "NaN of the function": (
        lambda comm: mx.lu_factor(
            mx.DistributedMatrix.from_function(
                lambda i, j: np.where((i == 5) & (j == 2), np.nan, i + j), 8, nb=2, comm=comm
            )
        ),
        "UsageError: rank 1: A[5, 2] is nan",
    ),
    "a function that fails": (
        lambda comm: mx.lu_factor(
            mx.DistributedMatrix.from_function(lambda i, j: (i + j) * (1 // (comm.rank - 3)), 8, nb=2, comm=comm)
        ),
        "UsageError: rank 3: fn(i, j) raised ZeroDivisionError",
    ),
    "a function of single numbers": (
        lambda comm: mx.lu_factor(mx.DistributedMatrix.from_function(lambda i, j: 1.0, 8, nb=2, comm=comm)),
        "UsageError: rank 0: fn(i, j) gave shape () for i of shape (4, 1) and j of shape (1, 4)",
    ),
    "a b of its own": (
        lambda comm: mx.solve(
            mx.DistributedMatrix.from_function(lambda i, j: 1.0 * (i == j), 8, comm=comm), np.full(8, comm.rank // 3)
        ),
        "UsageError: rank 3: this rank calls with b of shape (8,), checksum",
    ),
    "all of b where its rows belong": (
        lambda comm: mx.solve(
            mx.DistributedMatrix.from_function(lambda i, j: 1.0 * (i == j), 8, comm=comm),
            np.ones(8 if comm.rank == 2 else 2),
            local=True,
        ),
        "UsageError: rank 2: this rank has rows 4 to 6 of A, but b has shape (8,): with local=True give",
    ),
    "the transpose on one rank": (
        lambda comm: mx.solve(
            mx.DistributedMatrix.from_function(lambda i, j: 1.0 * (i == j), 8, comm=comm),
            np.ones(8),
            transposed=comm.rank == 1,
        ),
        "UsageError: rank 1: this rank calls with transposed=True, local=False, but rank 0 with transposed=False",
    ),
    "a precision of its own": (
        lambda comm: mx.solve(
            mx.DistributedMatrix.from_function(lambda i, j: 1.0 * (i == j), 8, comm=comm),
            np.ones(8),
            precision="fp32" if comm.rank == 1 else "auto",
        ),
        "UsageError: rank 1: this rank calls with precision='fp32', fp32, but rank 0 with precision='auto', fp64",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_of_one_rank_is_raised_on_all(name: str) -> None:
    body, told = MISTAKES[name]
    texts = raised(4, body)
    assert len(set(texts)) == 1
    assert texts[0].startswith(told)


def test_a_function_that_fails_in_the_refinement_is_told_of_on_all_ranks() -> None:
    def body(comm: Any) -> None:
        calls: list[int] = []

        def fn(i: Array, j: Array) -> Array:
            calls.append(1)
            if comm.rank == 1 and len(calls) > 1:
                raise KeyError("lost")
            return 1.0 * (i == j)

        F = mx.lu_factor(mx.DistributedMatrix.from_function(fn, 8, nb=2, comm=comm))
        F.solve(np.ones(8))

    texts = raised(2, body)
    assert texts == ["UsageError: rank 1: fn(i, j) raised KeyError: 'lost'"] * 2


def stored(folder: Path, name: str, **arrays: Array) -> Path:
    """A file of HDF5 or Zarr."""
    library = pytest.importorskip("zarr" if name.endswith(".zarr") else "h5py")
    path = folder / name
    store = library.open_group(str(path), mode="w") if name.endswith(".zarr") else library.File(path, "w")
    for key, array in arrays.items():
        made = store.create_array if name.endswith(".zarr") else store.create_dataset
        made(key, data=array, chunks=tuple(max(1, side // 3) for side in array.shape))
    if not name.endswith(".zarr"):
        store.close()
    return path


@pytest.mark.parametrize("name", ["A.h5", "A.hdf5", "A.zarr"])
def test_datasets_are_read_block_by_block(name: str, tmp_path: Path) -> None:
    A, b = random(41).astype(np.float32), random(41, 1)[:, 0]
    path = stored(tmp_path, name, A=A, b=b)

    def body(comm: Any) -> Array:
        M = mx.DistributedMatrix.from_file(path, dataset="A", nb=6, comm=comm)
        assert np.array_equal(M.blocks().local, A[np.ix_(owned(M.blocks().rows), owned(M.blocks().cols))])
        return mx.solve(M, b)[0]

    for x in run_ranks(4, body):
        assert eta(A.astype(np.float64), x, b) <= 2


@pytest.mark.parametrize("name", ["A.h5", "A.zarr"])
def test_datasets_that_are_not_there_are_refused(name: str, tmp_path: Path) -> None:
    path = stored(tmp_path, name, A=np.eye(3), B=np.eye(4))
    for asked, told in (({}, "has 2 datasets, A, B"), ({"dataset": "C"}, "has no dataset 'C'; there are A, B")):
        with pytest.raises(UsageError, match=told):
            mx.DistributedMatrix.from_file(path, **asked)
    with pytest.raises(UsageError, match="No such file"):
        mx.DistributedMatrix.from_file(tmp_path / f"none{name}")


def test_a_file_whose_library_is_missing_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "A.h5").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(UsageError, match="type: pip install h5py"):
        mx.DistributedMatrix.from_file(tmp_path / "A.h5")
    np.save(tmp_path / "A.npy", np.eye(2))
    with pytest.raises(UsageError, match="dataset='A' is for files of several arrays"):
        mx.DistributedMatrix.from_file(tmp_path / "A.npy", dataset="A")


def test_files_that_hold_no_system_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "flat.npy", np.ones((2, 3)))
    np.savez(tmp_path / "two.npz", a=np.ones(1))
    (tmp_path / "text.npy").write_text("1 2 3")
    for name, told in (("flat.npy", r"shape \(2, 3\)"), ("two.npz", "magic string"), ("text.npy", "numpy.save")):
        with pytest.raises(UsageError, match=told):
            mx.DistributedMatrix.from_file(tmp_path / name)


def test_pieces_of_any_shape_make_the_matrix_and_every_entry_is_given_once() -> None:
    A, b = random(23), random(23, 1)[:, 0]
    places = [(0, 0, 9, 11), (0, 11, 9, 12), (9, 0, 14, 4), (9, 4, 5, 19), (14, 4, 9, 19)]

    def body(comm: Any, given: list[tuple[int, int, int, int]] = places) -> Array:
        mine = {(i, j): np.resize(A[i : i + m, j : j + k], (m, k)) for i, j, m, k in given[comm.rank :: comm.size]}
        return mx.solve(mx.DistributedMatrix.from_pieces(mine, 23, nb=4, comm=comm), b)[0]

    for ranks in (1, 3, 4):
        assert eta(A, run_ranks(ranks, body)[0], b) <= 2
    for given, told in (
        (places[:-1], r"A\[14, 4\] is in 0 pieces"),
        ([*places, (3, 3, 2, 2)], r"A\[3, 3\] is in 2 pieces"),
        ([*places, (23, 0, 1, 1)], r"row 0 to 24"),
    ):
        with pytest.raises(UsageError, match=told):
            run_ranks(1, lambda comm, given=given: body(comm, given))
