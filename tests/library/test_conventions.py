"""Test conventions of NumPy and SciPy: forms of A, empty systems, and pickled infos and factors."""

from __future__ import annotations

import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest

import mxpeak as mx
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.library.dense.info import SolveInfo
from tests.support.systems import random

# --- forms of A ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.complex128, np.float32, np.complex64])
@pytest.mark.parametrize("of_b", [np.float64, np.complex128])
def test_transposed_is_a_boolean_or_a_letter_of_lapack(dtype: Any, of_b: Any) -> None:
    n = 12
    A, b = random((n, n), dtype), random((n, 2), of_b, seed=2)
    meanings = {False: A, np.False_: A, "N": A, True: A.T, np.True_: A.T, "T": A.T, "H": A.conj().T}

    def over_ranks(comm: Any) -> list[Any]:
        F = mx.lu_factor(mx.DistributedMatrix.from_function(lambda i, j: A[i, j], n, nb=4, comm=comm))
        return [F.solve(b, transposed=form)[0] for form in meanings]

    F, ranks = mx.lu_factor(A), run_ranks(2, over_ranks)[1]
    for (form, M), of_ranks in zip(meanings.items(), ranks):
        expected = np.linalg.solve(M.astype(complex), b)
        stack = mx.solve(np.stack([A, A]), b, transposed=form)[0][1]
        for x in (mx.solve(A, b, transposed=form)[0], F.solve(b, transposed=form)[0], stack, of_ranks):
            assert np.abs(x - expected).max() <= 1e3 * np.finfo(dtype).eps * np.abs(expected).max()


@pytest.mark.parametrize("form", [2, 1, 0, "C", "n", "t", "", None, "transposed", ["T"], 1.0, np.int64(1)])
def test_other_forms_are_refused(form: Any) -> None:
    A, b = np.eye(3), np.ones(3)

    def over_ranks(comm: Any) -> None:
        mx.solve(mx.DistributedMatrix.from_function(lambda i, j: 1.0 * (i == j), 3, comm=comm), b, transposed=form)

    for call in (
        lambda: mx.solve(A, b, transposed=form),
        lambda: mx.lu_factor(A).solve(b, transposed=form),
        lambda: mx.solve(A[None], b, transposed=form),
        lambda: mx.lu_factor(np.empty((0, 0))).solve([], transposed=form),
        lambda: run_ranks(2, over_ranks),
    ):
        with pytest.raises(mx.UsageError, match=r"transposed = .*use False or \"N\""):
            call()


def test_tensors_are_conjugated_too() -> None:
    torch = pytest.importorskip("torch")
    A, b = random((9, 9), complex), random(9, complex, seed=2)
    x, _ = mx.solve(torch.from_numpy(A), torch.from_numpy(b), transposed="H")
    assert not x.is_conj()
    np.testing.assert_allclose(x.numpy(), np.linalg.solve(A.conj().T, b), rtol=1e-11)


# --- empty systems ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.complex128])
@pytest.mark.parametrize(
    ("of_A", "of_b"),
    [
        ((0, 0), (0,)),
        ((0, 0), (0, 3)),
        ((0, 0), (0, 0)),
        ((4, 4), (4, 0)),
        ((50, 50), (50, 0)),
        ((0, 3, 3), (3,)),
        ((2, 0, 0), (2, 0, 1)),
        ((2, 3, 3), (2, 3, 0)),
        ((2, 3, 3), (3, 0)),
    ],
)
def test_empty_systems_have_the_empty_solutions_of_numpy(of_A: Any, of_b: Any, dtype: Any) -> None:
    A, b = np.zeros(of_A, dtype), np.zeros(of_b, dtype)
    A[..., range(of_A[-1]), range(of_A[-1])] = 1.0
    expected = np.linalg.solve(A, b)
    solutions = [mx.solve(A, b)]
    if A.ndim == 2:
        solutions += [mx.lu_factor(A).solve(b), mx.solve(A, b, precision="fp32", transposed="H")]
    for x, info in solutions:
        assert (x.shape, x.dtype) == (expected.shape, expected.dtype)
        assert info.solved
        assert (info.backward_error, info.componentwise_error) == (0.0, 0.0)
        assert str(info).startswith("solved")


def test_errors_of_empty_systems_are_raised() -> None:
    with pytest.raises(mx.UsageError, match="use a b with 0 rows"):
        mx.solve(np.empty((0, 0)), np.ones(2))
    with pytest.raises(mx.UsageError, match=r"A\[0, 0\] is nan"):
        mx.solve(np.full((2, 2), np.nan), np.empty((2, 0)))
    with pytest.raises(mx.SingularMatrixError):
        mx.solve(np.zeros((2, 2)), np.empty((2, 0)))
    with pytest.raises(mx.UsageError, match="unknown precision"):
        mx.lu_factor(np.empty((0, 0)), precision="fp7")
    assert mx.lu_factor(np.empty((0, 0))).condition == 0.0


def test_ranks_return_no_columns_for_none() -> None:
    def body(comm: Any) -> Any:
        A = mx.DistributedMatrix.from_function(lambda i, j: 1.0 * (i == j), 6, nb=2, comm=comm)
        return mx.solve(A, np.empty((6, 0))), mx.solve(A, np.empty((len(A.own_rows), 0)), local=True)

    for (x, info), (y, _) in run_ranks(2, body):
        assert x.shape == (6, 0)
        assert y.shape == (3, 0)
        assert info.solved
        assert info.rhs == 0


# --- attributes, pickles ------------------------------------------------------------------------------------------


def test_the_condition_is_an_attribute_everywhere() -> None:
    A, b = random((20, 20)), np.ones(20)

    def body(comm: Any) -> float:
        condition: float = mx.lu_factor(
            mx.DistributedMatrix.from_function(lambda i, j: A[i, j], 20, comm=comm)
        ).condition
        return condition

    exact = np.linalg.cond(A, 1)
    for found in (mx.solve(A, b)[1].condition, mx.lu_factor(A).condition, run_ranks(2, body)[0]):
        assert exact / 3 <= found <= exact * 1.01


def solved(seed: int) -> tuple[Any, Any]:
    """Return the results of one process of a pool."""
    A = random((40, 40), seed=seed)
    return mx.solve(A, A @ np.ones(40), precision=("auto", "fp32")[seed % 2])


def test_infos_come_back_from_process_pools() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for seed, (x, info) in enumerate(pool.map(solved, range(1, 3)), 1):
            assert np.abs(x - 1.0).max() < 1e-10
            exact = np.linalg.cond(random((40, 40), seed=seed), 1)
            assert exact / 3 <= info.condition <= exact * 1.01
            assert 0 < info.componentwise_error < 1
            assert "estimate" in str(info)


@pytest.mark.parametrize("precision", ["auto", "fp64", "fp32", "bf16"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_infos_and_factors_are_pickled_with_what_they_estimate(precision: str, order: Any) -> None:
    A, b = np.asarray(random((70, 70)) + 9 * np.eye(70), order=order), np.ones(70)
    A[3] *= 1e7  # so that it is scaled
    F = mx.lu_factor(A, precision=precision)
    for x, info in (mx.solve(A, b, precision=precision), F.solve(b), mx.solve(A[None], b)):
        again = pickle.loads(pickle.dumps(info))
        assert again == info
        assert again.componentwise_error == info.componentwise_error
        if isinstance(info, SolveInfo):
            assert (again.condition, again.growth) == (info.condition, info.growth)
        G = pickle.loads(pickle.dumps(F))
        assert np.abs(G.solve(b)[0] - F.solve(b)[0]).max() <= 1e-13 * np.abs(x).max()
        assert np.abs(G.solve(b, transposed=True)[0] - np.linalg.solve(A.T, b)).max() < 1e-9
        assert (G.precision, G.condition) == (F.precision, F.condition)


def test_the_infos_of_ranks_are_pickled() -> None:
    def body(comm: Any) -> Any:
        return mx.solve(mx.DistributedMatrix.from_function(lambda i, j: 1.0 * (i == j), 6, comm=comm), np.ones(6))[1]

    info = run_ranks(2, body)[1]
    assert pickle.loads(pickle.dumps(info)) == info


def test_a_dask_task_returns_what_solve_returns() -> None:
    dask = pytest.importorskip("dask")
    x, info = dask.compute(dask.delayed(solved)(1), scheduler="processes", num_workers=1)[0]
    assert np.abs(x - 1.0).max() < 1e-10
    assert info.condition > 1
