"""Test A as a LinearOperator, a function or a distributed matrix, and preconditioners that change between steps."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse
from scipy.sparse.linalg import LinearOperator, aslinearoperator

import mxpeak as mx
from mxpeak.comm.base import Communicator
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.errors import MxpeakError, UsageError
from tests.support.distributed_systems import raised
from tests.support.sparse_systems import flow, line, poisson, reached, residual, vector

A = flow(9)
Z = sparse.csr_array(A + 0.5j * sparse.eye_array(81))
B = vector(81)


def kinds(M: Any) -> list[Any]:
    return [aslinearoperator(M), lambda x: M @ x]


@pytest.mark.parametrize("solve", [mx.gmres, mx.bicgstab])
@pytest.mark.parametrize("M", [A, Z], ids=["real", "complex"])
@pytest.mark.parametrize("b", [B, B + 1j * vector(81, seed=9), np.stack([B, 2 * B], axis=1)])
def test_products_are_enough(solve: Callable[..., Any], M: Any, b: Any) -> None:
    for operator in kinds(M):
        x, info = solve(operator, b)
        assert info.converged, info
        assert info.storage in str(info)
        assert x.shape == b.shape
        assert x.dtype == np.result_type(M.dtype, b.dtype)
        for j in range(1 if b.ndim == 1 else 2):
            x_j, b_j = (v if b.ndim == 1 else v[:, j] for v in (x, b))
            assert reached(M, x_j, b_j, 1e-9)


@pytest.mark.parametrize("solve", [mx.cg, mx.minres])
def test_symmetric_operators_have_short_recurrences(solve: Callable[..., Any]) -> None:
    S = poisson(9, 9)
    H = sparse.csr_array(S + 0.1 * sparse.diags_array([1j * np.ones(80), -1j * np.ones(80)], offsets=(1, -1)))
    for M in (S, H):
        for operator in kinds(M):
            x, info = solve(operator, B)
            assert info.converged
            assert reached(M, x, B, 1e-9)
    with pytest.raises(UsageError, match="A is not symmetric"):
        solve(lambda x: A @ x, B)


def test_a_function_is_called_as_often_as_there_are_steps_and_residuals() -> None:
    count = 0

    def multiply(x: Any) -> Any:
        nonlocal count
        count += 1
        return A @ x

    operator = LinearOperator(A.shape, multiply, dtype=float)
    _, info = mx.gmres(operator, B, restart=100)
    assert count == info.iterations + 2  # b - A x at both ends
    count = 0
    _, info = mx.gmres(multiply, B, restart=100)
    assert count == info.iterations + 3  # the first call shows the type


def test_functions_may_reuse_their_memory_and_overwrite_their_argument() -> None:
    out = np.empty(81)

    def multiply(x: Any) -> Any:
        out[:] = A @ x
        x[:] = np.nan
        return out

    x, info = mx.gmres(multiply, B)
    assert info.converged
    assert reached(A, x, B, 1e-9)


@pytest.mark.parametrize("solve", [mx.gmres, mx.cg, mx.minres, mx.bicgstab])
@pytest.mark.parametrize("size", [1e200, 1e300, 1e-200, 1e-300])
def test_operators_of_any_size_have_the_solution_of_their_matrix(solve: Callable[..., Any], size: float) -> None:
    S = poisson(9, 9)
    H = sparse.csr_array(S + 0.1 * sparse.diags_array([1j * np.ones(80), -1j * np.ones(80)], offsets=(1, -1)))
    for M in (S, H):
        for options in ({}, {"M": lambda r: r / (4.0 * size)}, {"x0": np.ones(81) / 3.0}, {"precision": "fp32"}):
            x, info = solve(aslinearoperator(M * size), B * size, **options)
            assert info.converged, info
            assert reached(M, x, B, 1e-9)
    x, info = solve(aslinearoperator(S * size), np.stack([B, 3.0 * B], axis=1))
    assert info.converged
    for j in range(2):
        assert reached(S, x[:, j] * size, B * (1.0, 3.0)[j], 1e-9)


@pytest.mark.parametrize("size", [1e160, 1e200, 1e300])
def test_a_huge_operator_is_scaled_after_its_first_step(size: float) -> None:
    for M in (A, Z):
        _, usual = mx.gmres(aslinearoperator(M), B)
        _, info = mx.gmres(aslinearoperator(M * size), B)
        assert info.scaled
        assert (info.iterations, info.cycles) == (usual.iterations + 1, usual.cycles + 1)


def test_an_overflow_that_no_scaling_of_a_prevents_ends_the_solve() -> None:
    _, info = mx.gmres(aslinearoperator(A), B, M=lambda r: 1e200 * r)
    assert (info.iterations, info.scaled, info.converged) == (1, False, False)
    assert info.message == "the computation exceeded the range of fp64"


def test_huge_operators_over_ranks_are_scaled_alike() -> None:
    S = poisson(40) * 1e200

    def body(comm: Communicator) -> Any:
        rows = slice(0, 40) if comm.rank == 0 else slice(0, 0)

        def multiply(x: Any) -> Any:
            return S @ x if len(x) else x

        return [solve(multiply, vector(40)[rows], comm=comm) for solve in (mx.gmres, mx.minres)]

    for x, info in run_ranks(2, body)[0]:
        assert info.converged
        assert info.scaled
        assert reached(poisson(40), x * 1e200, vector(40), 1e-9)


def test_the_text_names_the_scaling_of_an_operator_and_of_a_matrix() -> None:
    diagonal = mx.DistributedMatrix.from_function(lambda i, j: 1e200 * (1.0 + i) * (i == j), 4, comm=None)
    infos = [mx.gmres(diagonal, np.ones(4))[1], *(mx.gmres(operator, B)[1] for operator in kinds(A * 1e200))]
    assert [info.storage for info in infos] == ["distributed matrix", "linear operator", "function"]
    for info in infos:
        assert str(info).endswith("\n  A was scaled by a power of two")
    assert str(mx.gmres(A * 1e200, B)[1]).endswith("\n  rows and columns were scaled by powers of two")
    assert "scaled" not in str(mx.gmres(kinds(A)[0], B)[1])


def test_vectors_in_fp32_are_refined_to_fp64() -> None:
    x, info = mx.gmres(aslinearoperator(A), B, precision="fp32", rtol=1e-12)
    assert info.converged
    assert info.vectors == "fp32" or info.fallback
    assert residual(A, x, B) <= 1.1e-12


def test_the_advice_after_stagnation_is_a_sentence() -> None:
    _, info = mx.gmres(lambda x: np.around(A @ x, 6), B, restart=len(B))
    assert not info.converged
    assert "cycles gained less than 0.1%; use a preconditioner M" in info.message


@pytest.mark.parametrize(
    ("solve", "options", "advice"),
    [
        (mx.gmres, {}, "a larger maxiter or a preconditioner M"),
        (mx.gmres, {"restart": 2}, "a larger maxiter, a restart larger than 2 or a preconditioner M"),
        (mx.gmres, {"precision": "fp32"}, 'a larger maxiter, a preconditioner M or precision="fp64"'),
        (mx.gmres, {"M": lambda r: 0.5 * r}, "a larger maxiter or another preconditioner M"),
        (mx.bicgstab, {}, "a larger maxiter or a preconditioner M"),
        (mx.cg, {}, "a larger maxiter or a preconditioner M"),
        (mx.minres, {}, "a larger maxiter or a preconditioner M"),
    ],
)
def test_the_advice_for_an_operator_needs_no_entries(
    solve: Callable[..., Any], options: dict[str, Any], advice: str
) -> None:
    for operator in kinds(poisson(9, 9)):
        _, info = solve(operator, B, maxiter=4, **options)
        assert info.message == f"maxiter=4 steps were used; use {advice}"
        assert str(info).endswith(
            f"  the solver did not reach the tolerance; x is the best that it found\n  {info.message}"
        )
        for needs_entries in ("spsolve", "spilu", "amg", '"lu"'):
            assert needs_entries not in str(info)


def test_preconditioners_may_change_from_step_to_step() -> None:
    """Flexible GMRES: each step solves with a different number of inner steps."""
    steps = 0

    def inner(r: Any) -> Any:
        nonlocal steps
        steps += 1
        return sparse.linalg.gmres(A, r, rtol=1e-30, restart=1 + steps % 5, maxiter=1)[0]

    for operator in (A, *kinds(A)):
        x, info = mx.gmres(operator, B, M=inner)
        assert info.converged, info
        assert info.preconditioner == "user"
        assert reached(A, x, B, 1e-9)


@pytest.mark.parametrize("dtype", [float, complex])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_distributed_matrix_is_multiplied_where_its_blocks_are(ranks: int, dtype: Any) -> None:
    n = 61
    i, j = np.arange(n)[:, None], np.arange(n)[None, :]

    def entries(i: Any, j: Any) -> Any:
        return 4.0 * (i == j) + 1.0 / (1.0 + np.abs(i - 2 * j)) + (0.25j * (i == j + 1) if dtype is complex else 0.0)

    D, b = entries(i, j), np.arange(n) + 1.0

    def body(comm: Communicator) -> Any:
        M = mx.DistributedMatrix.from_function(entries, n, comm=comm, nb=8)
        own = slice(M.own_rows.start, M.own_rows.stop)
        d = np.diag(D)[own]
        return [mx.gmres(M, b[own], M=P) for P in (None, lambda r: r / d)]

    done = run_ranks(ranks, body)
    for k in range(2):
        x, info = np.concatenate([of_rank[k][0] for of_rank in done]), done[0][k][1]
        assert info.converged
        assert (info.ranks, info.nnz, info.storage) == (ranks, n * n, "distributed matrix")
        assert reached(D, x, b, 1e-9)


def test_ranks_share_a_function() -> None:
    S = poisson(40)

    def body(comm: Communicator) -> Any:
        rows = slice(20 * comm.rank, 20 * comm.rank + 20)

        def multiply(x: Any) -> Any:
            parts = comm.bcast_object(comm.gather_objects(x))
            return S[rows] @ np.concatenate(parts)

        return mx.cg(multiply, vector(40)[rows], comm=comm), mx.gmres(multiply, vector(40)[rows], comm=comm)

    done = run_ranks(2, body)
    for k in range(2):
        assert done[0][k][1].converged
        assert reached(S, np.concatenate([of_rank[k][0] for of_rank in done]), vector(40), 1e-9)


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "shape": (lambda: mx.gmres(lambda x: x[:-1], B), r"the function A returned float64 of shape \(80,\)"),
    "type": (lambda: mx.gmres(lambda x: "no", B), "the function A returned"),
    "NaN": (lambda: mx.gmres(lambda x: x * np.nan, B), r"the function A returned nan at \[0\] for a finite vector"),
    "complex": (
        lambda: mx.gmres(LinearOperator((81, 81), lambda x: 1j * x, dtype=float), B),
        "which has 81 real numbers",
    ),
    "not square": (
        lambda: mx.cg(LinearOperator((3, 4), lambda x: x, dtype=float), B),
        "needs a square A; use .*lsqr, which also needs rmatvec",
    ),
    "rows of b": (lambda: mx.gmres(aslinearoperator(A), B[:-1]), "use 81 rows"),
    "name": (lambda: mx.gmres(aslinearoperator(A), B, preconditioner="gs"), "needs the entries of A"),
    "storage": (lambda: mx.gmres(aslinearoperator(A), B, storage="ell"), 'use storage="auto"'),
    "precision": (lambda: mx.gmres(aslinearoperator(A), B, precision="bf16"), 'use precision="mixed"'),
    "shape of M": (lambda: mx.gmres(A, B, M=np.eye(80)), r"M has shape \(80, 80\)"),
    "comm": (
        lambda: mx.gmres(mx.DistributedMatrix.from_function(lambda i, j: 1.0 * (i == j), 4), np.ones(4), comm="world"),
        "comm conflicts with A",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name: str) -> None:
    call, said = MISTAKES[name]
    with pytest.raises(UsageError, match=said):
        call()


def test_an_error_on_one_rank_is_raised_on_all() -> None:
    def body(comm: Communicator) -> Any:
        def multiply(x: Any) -> Any:
            return x[:-1] if comm.rank else x

        with pytest.raises(MxpeakError, match="rank 1: the function A returned"):
            mx.gmres(multiply, np.ones(5), comm=comm)

    run_ranks(2, body)


@pytest.mark.parametrize(
    ("wrong", "x0", "message"),
    [
        (sparse.eye_array(10, format="csr"), None, "rank 1: this rank uses A as a matrix, but rank 0 uses A as a func"),
        (LinearOperator((3, 4), lambda x: x, dtype=float), None, "rank 1: A is an operator of shape"),
        (lambda x: x, "fp32", "rank 1: x0='fp32' is not a vector"),
    ],
)
def test_arguments_of_one_rank_are_an_error_on_all(wrong: Any, x0: Any, message: str) -> None:
    def body(comm: Communicator) -> Any:
        with pytest.raises(UsageError, match=message):
            mx.gmres(wrong if comm.rank else lambda x: x, np.ones(5), x0 if comm.rank else None, comm=comm)

    run_ranks(2, body)


def test_b_and_x0_of_one_rank_have_the_rows_of_this_rank() -> None:
    def body(comm: Communicator) -> Any:
        mine = aslinearoperator(sparse.eye_array(5 + comm.rank))
        for b, x0 in ((4, None), (5 + comm.rank, 4)):
            name = "b" if x0 is None else "x0"
            with pytest.raises(UsageError, match=f"rank 0: this rank has 5 rows of A, but {name} has shape"):
                mx.gmres(mine, np.ones(b), x0 and np.ones(x0), comm=comm)

    run_ranks(2, body)


def test_a_function_without_unknowns_is_real() -> None:
    x, info = mx.gmres(lambda x: x, np.zeros(0))
    assert x.shape == (0,)
    assert x.dtype == np.float64
    assert info.converged


def test_errors_of_the_function_reach_the_caller() -> None:
    def broken(x: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        mx.gmres(broken, B)


@pytest.mark.parametrize("wrong", ["x0", "A x"])
def test_ragged_numbers_on_one_rank_are_an_error_on_all(wrong: str) -> None:
    ragged = [[1.0], [2.0, 3.0]]

    def solve(comm: Any) -> Any:
        x0 = ragged if wrong == "x0" and comm.rank == comm.size - 1 else np.ones(2)
        return mx.gmres(
            lambda x: ragged if wrong == "A x" and comm.rank == comm.size - 1 else 2.0 * x, np.ones(2), x0=x0, comm=comm
        )

    for ranks in (1, 2):
        texts = raised(ranks, solve)
        assert len(set(texts)) == 1
        assert texts[0].startswith("UsageError: " + "rank 1: " * (ranks > 1) + f"{wrong} is not a numeric array")


@pytest.mark.parametrize("solve", [mx.gmres, mx.cg, mx.minres, mx.bicgstab])
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_products_in_fp32_are_named_as_the_limit_of_the_residual(solve: Any, dtype: Any) -> None:
    A, b = line(60, -1.0, 2.5).astype(dtype), vector(60)
    _, info = solve(lambda v: A @ v.astype(dtype), b)
    assert not info.converged
    assert "the products A x have only the digits of fp32" in info.message
    assert f"use rtol={2 * info.residual:.0e}" in info.message
    assert "digits of fp32" not in solve(lambda v: A.astype(np.complex128) @ v, b, maxiter=5)[1].message


@pytest.mark.parametrize("solve", [mx.gmres, mx.cg, mx.minres, mx.bicgstab])
def test_functions_may_wait_for_solves_in_other_threads(solve: Any) -> None:
    """The functions of two threads call the library in a pool of threads, and each solve gives its own result."""
    A, parts = line(80, -1.0, 2.5), (slice(0, 40), slice(40, 80))
    expected = [np.linalg.solve(A.toarray(), vector(80, seed)) for seed in range(4)]
    with ThreadPoolExecutor(2) as pool, ThreadPoolExecutor(2) as callers:

        def block(part: slice, r: Any) -> Any:
            return mx.gmres(A[part][:, part], r[part], rtol=1e-14)[0]

        def M(r: Any) -> Any:
            return np.concatenate([task.result() for task in [pool.submit(block, part, r) for part in parts]])

        def shown(_: Any) -> None:
            pool.submit(mx.cg, A, vector(80)).result()

        for given in (A, lambda v: pool.submit(lambda: A @ v).result()):
            tasks = [callers.submit(solve, given, vector(80, seed), M=M, callback=shown) for seed in range(4)]
            for task, y in zip(tasks, expected):
                x, info = task.result(timeout=60)
                assert info.converged, str(info)
                np.testing.assert_allclose(x, y, rtol=1e-7)
