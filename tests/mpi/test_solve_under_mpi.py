"""Test distributed systems on MPI ranks: the script of the documentation, rows and mistakes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import mxpeak as mx
from mxpeak.errors import UsageError
from tests.support.ranks import ROOT, StandingRanks, needs_mpi
from tests.support.roundoff import U

pytestmark = needs_mpi


def check_page() -> None:
    """Run the example and the page with fewer points; Love's u(0) is known, and the midpoint error is about h²."""
    love = (ROOT / "examples" / "distributed" / "love.py").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "howto" / "distributed-dense.md").read_text(encoding="utf-8")
    fragments = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(fragments) == 4
    names: dict[str, Any] = {"__name__": "love"}
    for script in (love, *fragments):
        exec(compile(script.replace("20_000", "500"), "love.py", "exec"), names)
        if "love" in script:
            assert names["info"].grid == (1, 2)
            assert abs(names["x"][250] - 1.9190320) < 10 * names["h"] ** 2
    assert len(names["x_rows"]) == 250
    assert names["info"].solved


def check_rows_and_mistakes() -> None:
    """Check that rows of both ranks form one system, NaN on one rank is one error, and the next call works."""
    from mpi4py import MPI

    comm, n = MPI.COMM_WORLD, 45
    rng = np.random.default_rng(3)
    A, b = rng.standard_normal((n, n)), rng.standard_normal((n, 2))
    rows = A[:31] if comm.rank == 0 else A[31:].copy()
    if comm.rank == 1:
        rows[2, 3] = np.nan
    with pytest.raises(UsageError, match=r"^rank 1: local_rows\[2, 3\] is nan"):
        mx.DistributedMatrix.from_rows(rows, comm=comm)
    if comm.rank == 1:
        rows[2, 3] = A[33, 3]
    x, info = mx.solve(mx.DistributedMatrix.from_rows(rows, nb=4, comm=comm), b)
    assert info.solved
    assert np.abs(b - A @ x).max() <= 2 * n * U * np.abs(A).sum(axis=1).max() * np.abs(x).max()


def check_complex_rows() -> None:
    """Check complex rows of all ranks, in both types, and with the transpose."""
    from mpi4py import MPI

    comm, n = MPI.COMM_WORLD, 53
    rng = np.random.default_rng(5)
    A, b = (rng.standard_normal((n, k)) + 1j * rng.standard_normal((n, k)) for k in (n, 2))
    ends = [0, 31, n] if comm.size == 2 else [0, 31, 31, 52, n]
    for M in (A.astype(np.complex64), A):
        rows = M[ends[comm.rank] : ends[comm.rank + 1]]
        F = mx.lu_factor(mx.DistributedMatrix.from_rows(rows, nb=4, comm=comm), precision="fp32")
        for transposed in (False, True):
            x, info = F.solve(b, transposed=transposed)
            C = M.T.astype(complex) if transposed else M.astype(complex)
            assert info.solved
            assert x.dtype == np.complex128
            assert np.abs(b - C @ x).max() <= 3 * n * U * np.abs(C).sum(axis=1).max() * np.abs(x).max()


def check_cholesky() -> None:
    """Check one triangle of a definite matrix in both types, and the same error on all ranks if it is not definite."""
    from mpi4py import MPI

    comm, n = MPI.COMM_WORLD, 67
    for is_complex in (False, True):
        rng = np.random.default_rng(9)
        X = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if is_complex else 0.0)
        A, B = X @ np.conj(X.T) + n * np.eye(n), rng.standard_normal((n, 3))
        for lower, precision in ((True, "fp64"), (False, "fp32"), (True, "bf16")):
            read = np.tri(n, dtype=bool) if lower else np.tri(n, dtype=bool).T
            half = np.where(read, A, np.nan)
            for shape in {(1, comm.size), (comm.size, 1), (2, comm.size // 2)}:
                M = mx.DistributedMatrix.from_function(lambda i, j, A=half: A[i, j], n, nb=5, comm=comm, grid=shape)
                x, info = mx.cho_factor(M, lower=lower, precision=precision).solve(B)
                assert (info.solved, info.factorization, info.precision) == (True, "Cholesky", precision)
                assert np.abs(B - A @ x).max() <= 4 * n * U * np.abs(A).sum(axis=1).max() * np.abs(x).max()
                assert all(np.array_equal(x, other) for other in comm.allgather(x))
        M = mx.DistributedMatrix.from_function(lambda i, j, A=A: A[i, j] - (i == j) * (i == 31) * 9.0 * n, n, comm=comm)
        with pytest.raises(mx.NotPositiveDefiniteError, match=rf"^A is not .*minor of order 32 of {n} ") as error:
            mx.cho_factor(M, lower=True)
        assert len(set(comm.allgather(str(error.value)))) == 1
        x, info = mx.solve(M, B, assume_a="auto")
        assert (info.solved, info.factorization) == (True, "LU")


def check_ldl() -> None:
    """Check one triangle of all kinds of indefinite matrices, LU after a breakdown, and one error if A is singular."""
    from mpi4py import MPI

    comm, n = MPI.COMM_WORLD, 67
    shapes = {(1, comm.size), (comm.size, 1), (2, comm.size // 2)}
    for name, is_complex in (("sym", False), ("her", True), ("sym", True)):
        rng = np.random.default_rng(9)
        X = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if is_complex else 0.0)
        A, B = X + (np.conj(X.T) if name == "her" else X.T), rng.standard_normal((n, 3))
        for lower, precision in ((True, "fp64"), (False, "fp32")):
            read = np.tri(n, dtype=bool) if lower else np.tri(n, dtype=bool).T
            half = np.where(read, A, np.nan)
            for shape in shapes:
                M = mx.DistributedMatrix.from_function(lambda i, j, A=half: A[i, j], n, nb=5, comm=comm, grid=shape)
                x, info = mx.solve(M, B, assume_a=name, lower=lower, precision=precision)
                assert (info.solved, info.factorization, info.precision) == (True, "LDL^T", precision)
                assert np.abs(B - A @ x).max() <= 4 * n * U * np.abs(A).sum(axis=1).max() * np.abs(x).max()
                assert all(np.array_equal(x, other) for other in comm.allgather(x))
    for shape in shapes:
        reverse = mx.DistributedMatrix.from_function(lambda i, j: 1.0 * (i + j == 63), 64, nb=8, comm=comm, grid=shape)
        x, info = mx.solve(reverse, np.arange(64.0), assume_a="sym", precision="fp32")
        assert (info.solved, info.factorization, info.fallback) == (True, "LU", True)
        assert np.abs(x - np.arange(64.0)[::-1]).max() <= 1e-13
        ones = mx.DistributedMatrix.from_function(lambda i, j: 1.0 + 0 * i * j, 40, nb=8, comm=comm, grid=shape)
        with pytest.raises(mx.SingularMatrixError) as error:
            mx.solve(ones, np.ones(40), assume_a="sym")
        assert len(set(comm.allgather(str(error.value)))) == 1


@pytest.mark.parametrize("ranks", [2, 4])
def test_one_triangle_of_an_indefinite_matrix_is_factored_on_all_ranks(
    standing: dict[int, StandingRanks], ranks: int
) -> None:
    standing[ranks].call(__name__, "check_ldl")


@pytest.mark.parametrize("ranks", [2, 4])
def test_one_triangle_is_factored_on_all_ranks(standing: dict[int, StandingRanks], ranks: int) -> None:
    standing[ranks].call(__name__, "check_cholesky")


@pytest.mark.parametrize("ranks", [2, 4])
def test_complex_rows_are_one_system(standing: dict[int, StandingRanks], ranks: int) -> None:
    standing[ranks].call(__name__, "check_complex_rows")


def test_the_script_of_the_page_solves_on_two_ranks(standing: dict[int, StandingRanks]) -> None:
    standing[2].call(__name__, "check_page")


def test_rows_of_two_ranks_are_one_system_and_mistakes_reach_both(standing: dict[int, StandingRanks]) -> None:
    standing[2].call(__name__, "check_rows_and_mistakes")
