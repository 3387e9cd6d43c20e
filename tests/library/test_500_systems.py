"""Test that no answer for 500 systems is wrong without a warning, in comparison with extended precision.

The backward error in `info` is correct, and an x that may have no correct digit is never called solved without a
warning: random and graded matrices, nearly singular ones, Toeplitz, Vandermonde, and rank-deficient up to an ulp.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mxpeak as mx
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.library.dense import stack
from mxpeak.solvers.accuracy import plain_lu_by_rows
from tests.support.hard_systems import Long, exactly, row_error, systems, true_eta
from tests.support.roundoff import U

Array = np.ndarray[Any, np.dtype[Any]]

pytestmark = pytest.mark.skipif(np.finfo(Long).nmant < 63, reason="long double has no more digits than fp64 here")


def test_reports_of_500_systems_are_correct() -> None:
    rng = np.random.default_rng(20)
    counted = {"solved": 0, "warned": 0, "refused": 0}
    for number, (name, A) in enumerate(systems()):
        b = A @ np.ones(len(A)) if number % 2 else rng.standard_normal(len(A))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mx.IllConditionedWarning)
            try:
                x, info = mx.solve(A, b, precision=("fp32", "auto", "bf16", "auto", "fp16")[number % 5])
            except mx.SingularMatrixError:
                counted["refused"] += 1
                continue
        eta_exact = true_eta(A, x, b)
        # The fp64 residual in info is off by the rounding of n + 1 terms: half a unit at most here.
        # For a scaled system, info has the larger of its own error and that of A.
        off = eta_exact - info.backward_error if info.scaled else abs(eta_exact - info.backward_error)
        assert off <= max(0.5, info.backward_error / 2), (number, name, eta_exact, info)
        y = exactly(A, b)
        error = float(np.abs(x - y).max() / np.abs(y).max()) if np.isfinite(y).all() else np.inf
        lost = not error < 0.5
        assert not (lost and info.solved and not info.ill_conditioned), (number, name, error, info)
        assert not (name == "random" and info.ill_conditioned), (number, error, info)
        counted["warned" if info.ill_conditioned else "solved"] += 1
    assert sum(counted.values()) == 504
    assert counted["solved"] > 250, counted
    assert counted["warned"] > 50, counted


def laplacian(i: Any, j: Any, n: int) -> Any:
    """Return the Laplacian of a path with free ends: rows and columns sum to zero, which sums of signs may hide."""
    diagonal = 2.0 - (i == 0) - (i == n - 1)
    return np.where(i == j, diagonal, -1.0 * (abs(i - j) == 1))


@pytest.mark.parametrize("precision", ["auto", "fp32", "bf16"])
def test_a_singular_laplacian_is_reported_also_for_a_consistent_b(precision: str) -> None:
    for n in (6, 24, 40, 120, 300):
        i, j = np.mgrid[:n, :n]
        L = laplacian(i, j, n)
        for turn in (1.0, 0.7):  # so that its entries are rounded, too
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", mx.IllConditionedWarning)
                try:
                    _, info = mx.solve(turn * L, turn * L @ np.cos(np.arange(n)), precision=precision)
                except mx.SingularMatrixError:
                    continue
            assert info.ill_conditioned, (n, turn, info)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_all_ranks_report_a_singular_laplacian(precision: str) -> None:
    def body(comm: Any) -> bool:
        A = mx.DistributedMatrix.from_function(lambda i, j: laplacian(i, j, 48), 48, nb=8, comm=comm)
        try:
            _, info = mx.solve(A, lambda i: np.cos(i + 1.0) - np.cos(i), precision=precision)
        except mx.SingularMatrixError:
            return True
        return bool(info.ill_conditioned or not info.solved)

    with warnings.catch_warnings():  # not in each rank: filters are the process's
        warnings.simplefilter("ignore", mx.IllConditionedWarning)
        assert all(run_ranks(2, body))


def test_many_equal_right_hand_sides_do_not_hide_an_error() -> None:
    """One linear combination checks them, and its weights must not cancel: here each x has a relative error of 1e-6."""
    rng = np.random.default_rng(21)
    for k in (9, 10, 64):
        A, b = rng.standard_normal((30, 30)), rng.standard_normal((30, 1))
        X, B = np.repeat(np.linalg.solve(A, b) * (1 + 1e-6), k, axis=1), np.repeat(b, k, axis=1)
        A_inf = np.abs(A).sum(axis=1).max()
        assert stack._worst_backward_error(A, A_inf, X, B, U) > 1e3
        one = np.linalg.solve(A, b)
        assert stack._worst_backward_error(A, A_inf, np.repeat(one, k, axis=1), B, U) < 1.0


def test_ranks_warn_of_columns_that_leave_no_digit_as_one_process_does() -> None:
    rng = np.random.default_rng(22)
    A = rng.standard_normal((40, 40)) * np.geomspace(1e-14, 1e14, 40)
    b = A @ np.ones(40)

    def body(comm: Any) -> bool:
        M = mx.DistributedMatrix.from_function(lambda i, j: A[i, j], 40, nb=8, comm=comm)
        _, info = mx.solve(M, b)
        return bool(info.solved and info.ill_conditioned and "but x may have no correct digit" in str(info))

    with pytest.warns(mx.IllConditionedWarning, match="columns of A differ"):
        x, info = mx.solve(A, b)
    y = exactly(A, b)
    assert np.abs(x - y).max() > 0.1 * np.abs(y).max()
    assert "but x may have no correct digit" in str(info)
    with pytest.warns(mx.IllConditionedWarning, match="columns of A differ"):
        assert all(run_ranks(2, body))


def test_a_scaled_system_is_refined_until_the_norms_of_a_itself_are_met() -> None:
    """Sometimes the scaled system passes its check, and A slightly fails: then one more correction follows."""
    rng, n = np.random.default_rng(0), 40
    for _ in range(150):
        A = rng.standard_normal((n, n)) * np.geomspace(1e-120, 1e120, n)[:, None]
        _, info = mx.solve(A, A @ rng.standard_normal(n))
        assert info.solved, info


# --- row by row ---------------------------------------------------------------------------------------------------


def ordinary_systems(count: int, *, is_complex: bool) -> Iterator[tuple[Array, Array]]:
    """Yield dense, sparse, dominant, blocked and row-graded matrices of order 2 to 60; every second b is graded."""
    rng = np.random.default_rng(23)

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if is_complex else 0.0)

    for number in range(count):
        n = int(rng.integers(2, 61))
        A, kind = normal(n, n), number % 5
        if kind == 1:
            A = A * (rng.random((n, n)) < 0.2) + np.diag(normal(n))
        elif kind == 2:
            A += n * np.eye(n)
        elif kind == 3:
            A[n // 2 :, : n // 2] = A[: n // 2, n // 2 :] = 0.0
        elif kind == 4:
            A *= np.exp2(rng.integers(-30, 31, n))[:, None]
        b = normal(n)
        if number % 2:
            b *= 10.0 ** (-14.0 * (np.arange(n) < n // 2))
        yield A, b


@pytest.mark.parametrize("function", ["solve", "fp32", "factors", "transposed", "stack", "complex", "hermitian"])
def test_500_systems_are_solved_row_by_row_as_well_as_by_plain_lu(function: str) -> None:
    """Plain LU is NumPy's. Errors of single systems vary by a factor of 16; the mean of their logarithms does not."""
    is_complex = function in ("complex", "hermitian")
    ours, plain = [], []
    for A, b in ordinary_systems(500, is_complex=is_complex):
        M, n = {"transposed": A.T, "hermitian": A.conj().T}.get(function, A), len(A)
        if function == "stack":
            x, info = mx.solve(np.stack([A, A]), b[:, None])
            x = x[1]
        elif function == "factors":
            x, info = mx.lu_factor(A, precision="fp32" if n % 2 else "auto").solve(b)
        elif function == "fp32":
            x, info = mx.solve(A, b, precision="fp32")
        else:
            x, info = mx.solve(A, b, transposed={"transposed": "T", "hermitian": "H"}.get(function, "N"))
        omega, of_plain = row_error(M, x, b), row_error(M, np.linalg.solve(M, b), b)
        # A residual of n + 1 terms is off by up to n + 1 roundings, of complex numbers by 2·sqrt(2) times that.
        assert abs(info.componentwise_error - omega) <= (2.83 if is_complex else 1.0) * (n + 1) / n
        assert omega <= max(16 * of_plain, plain_lu_by_rows(n, is_complex=is_complex)), (n, omega, of_plain, info)
        ours.append(max(omega, 2**-10))
        plain.append(max(of_plain, 2**-10))
    assert np.mean(np.log2(ours)) <= np.mean(np.log2(plain)) + 0.5


def test_100_systems_over_ranks_are_too() -> None:
    systems = list(ordinary_systems(100, is_complex=False))

    def body(comm: Any) -> list[Any]:
        of = mx.DistributedMatrix.from_function
        factors = [
            mx.lu_factor(of(lambda i, j, A=A: A[i, j], len(A), nb=8, comm=comm), precision=("fp64", "fp32")[k % 2])
            for k, (A, _) in enumerate(systems)
        ]
        return [F.solve(b, transposed=k % 4 > 1) for k, (F, (_, b)) in enumerate(zip(factors, systems))]

    for k, ((A, b), (x, info)) in enumerate(zip(systems, run_ranks(2, body)[0])):
        M, n = A.T if k % 4 > 1 else A, len(A)
        omega, of_plain = row_error(M, x, b), row_error(M, np.linalg.solve(M, b), b)
        assert abs(info.componentwise_error - omega) <= (n + 1) / n
        assert omega <= max(16 * of_plain, plain_lu_by_rows(n, is_complex=False)), (k, omega, of_plain, info)
