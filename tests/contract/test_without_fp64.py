"""Compare the kernels for an accelerator without fp64, an invented one that refuses fp64, with the reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from mxpeak.kernels.contract.dense import PivotedLU
from mxpeak.kernels.reference.dense import ReferenceDense
from mxpeak.kernels.torch.dense import without_fp64
from mxpeak.kernels.torch.dense.without_fp64 import DenseWithoutFp64
from mxpeak.kernels.torch.engine.device import Device
from tests.support.invented_mps import MPS, InventedMps
from tests.support.roundoff import U
from tests.support.systems import random

Array = np.ndarray[Any, np.dtype[Any]]
Long = np.longdouble


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[DenseWithoutFp64]:
    """Provide kernels with short sums, and passes in small pieces."""
    monkeypatch.setattr(without_fp64, "DEPTH", 8)
    monkeypatch.setattr(without_fp64, "CACHED", 40)
    monkeypatch.setattr(without_fp64, "STRIP", 50)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # several threads would wait for each other on a busy machine
    with InventedMps():
        yield DenseWithoutFp64(Device(torch.device("cpu"), triton=False, poison=True, without_fp64=MPS))
    torch.set_num_threads(before)


def residual(kernels: DenseWithoutFp64, B: Array, A: Array, X: Array) -> Array:
    with kernels.computing():
        result: Array = kernels.residual(*(torch.from_numpy(V) for V in (B, A, X))).numpy()
    return result


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("k", [1, 3])
def test_residuals_are_as_accurate_as_those_of_fp64(kernels: DenseWithoutFp64, order: str, k: int) -> None:
    rng = np.random.default_rng(k)
    for n in (1, 2, 7, 19):
        for scale in (0, 200):
            A = np.asarray(random((n, n), np.float64) * 2.0 ** rng.integers(-scale, scale + 1, n)[:, None], order=order)
            A = A * 2.0 ** rng.integers(-scale, scale + 1, n)
            X = random((n, k), np.float64)
            B = A @ X  # the residual is small
            for M in (A, A.T):
                exact = B.astype(Long) - M.astype(Long) @ X.astype(Long)
                residuals = residual(kernels, B, M, X)
                # Digits are cut at 2^-55 of the largest entry of a scaled row or column.
                columns = np.abs(M).max(axis=0)
                size = n * (np.abs(M) / columns).max(axis=1)[:, None] * (columns[:, None] * np.abs(X)).max(axis=0)
                assert (np.abs(residuals - exact) <= 2 * U * size + 2 * U * np.abs(exact)).all(), (n, scale)
            reference = ReferenceDense().residual(B, A, X)
            assert np.abs(residual(kernels, B, A, X) - reference).max() <= 4 * n * U * (np.abs(A) @ np.abs(X)).max()


def test_residuals_of_fp32_matrices_have_no_error_but_their_own_rounding(kernels: DenseWithoutFp64) -> None:
    A, X = random((30, 30), np.float32), random((30, 2), np.float32)
    B = (A.astype(np.float64) @ X).astype(np.float32)
    exact = B.astype(Long) - A.astype(Long) @ X.astype(Long)
    found = residual(kernels, B, A, X)
    assert found.dtype == np.float32
    assert (np.abs(found - exact) <= 2.0**-24 * np.abs(exact) + 2.0**-50).all()


def test_the_sums_on_the_accelerator_are_exact_in_any_order(
    kernels: DenseWithoutFp64, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it rounds operands to bf16: the digits have at most 7 bits, and sums stay below 2^24."""
    monkeypatch.undo()
    n = without_fp64.DEPTH
    A, X = torch.full((2, n), 64, dtype=torch.int8), torch.full((n, 1), -64, dtype=torch.int8)
    assert without_fp64._multiply(A, X).tolist() == [[-4096.0 * n]] * 2
    assert 4096 * n <= 2**24
    digits = without_fp64._expand(torch.tensor([0.5, -0.5, 1 / 3, 2.0**-56]))
    assert digits.abs().max() <= 64
    weights = 2.0 ** (-7.0 * torch.arange(1, 9, dtype=torch.float64))
    assert torch.equal((digits.double() * weights[:, None]).sum(dim=0), torch.tensor([0.5, -0.5, 1 / 3, 2.0**-56]))


def test_a_matrix_that_changed_between_contexts_is_read_again(kernels: DenseWithoutFp64) -> None:
    A, X = random((9, 9), np.float64), random((9, 1), np.float64)
    B = np.zeros((9, 1))
    before = residual(kernels, B, A, X)
    A *= 2.0
    assert np.array_equal(residual(kernels, B, A, X), 2.0 * before)


def test_other_matrices_of_a_context_and_infinite_numbers_are_multiplied_on_the_cpu(kernels: DenseWithoutFp64) -> None:
    A, B, X = (torch.from_numpy(random((9, m), np.float64)) for m in (9, 1, 1))
    with kernels.computing():
        kernels.residual(B, A, X)
        assert torch.equal(kernels.residual(B, A.abs(), X), torch.addmv(B[:, 0], A.abs(), X[:, 0], alpha=-1)[:, None])
        assert torch.equal(kernels.residual(B, A[:, :4], X[:4]).isfinite(), torch.ones(9, 1, dtype=torch.bool))
        X[3] = torch.inf
        assert not kernels.residual(B, A, X).isfinite().any()


def test_factors_are_those_of_the_reference(kernels: DenseWithoutFp64) -> None:
    for n in (1, 2, 33):
        A, B = random((n, n), np.float32), random((n, 2), np.float32)
        W = kernels.factor_storage(n, A.dtype)
        kernels.scaled_copy(torch.from_numpy(A), None, W)
        F, expected = kernels.factor(W, "fp32"), ReferenceDense().factor(A.copy(), "fp32")
        assert np.array_equal(F.rows.order.numpy(), expected.rows)
        assert kernels.last_row(F) == expected.rows[-1]
        assert F.singular == 0
        bound = 2 * n * 2.0**-24 * (np.abs(np.tril(expected.LU, -1)) + np.eye(n)) @ np.abs(np.triu(expected.LU))
        assert (np.abs(F.LU.numpy() - expected.LU) <= 8 * bound + 1e-6 * np.abs(expected.LU)).all()
        for transposed in (False, True):
            X = kernels.solve(F, torch.from_numpy(B), transposed=transposed).numpy()
            M = A.T if transposed else A
            size = np.abs(M).sum(axis=1).max() * np.abs(X).max() + np.abs(B).max()
            assert np.abs(M @ X - B).max() <= 4 * n * 2.0**-24 * size


def test_a_changed_last_pivot_and_the_first_zero_one_are_found(kernels: DenseWithoutFp64) -> None:
    W = kernels.factor_storage(3, np.dtype(np.float32))
    W.copy_(torch.diag(torch.tensor([2.0, 4.0, 8.0])))
    F = kernels.factor(W, "fp32")
    F.LU[-1, -1] = 16.0
    assert kernels.solve(F, torch.ones(3, 1)).flatten().tolist() == [0.5, 0.25, 0.0625]
    W.copy_(torch.diag(torch.tensor([2.0, 0.0, 8.0])))
    assert kernels.factor(W, "fp32").singular == 2


def test_fp64_factors_are_computed_by_the_cpu(kernels: DenseWithoutFp64) -> None:
    A, B = random((12, 12), np.float64), random((12, 1), np.float64)
    W = kernels.factor_storage(12, A.dtype)
    W.copy_(torch.from_numpy(A))
    F = kernels.factor(W, "fp64")
    assert isinstance(F, PivotedLU)
    assert F.LU.dtype == torch.float64
    X = kernels.solve(F, torch.from_numpy(B)).numpy()
    assert np.abs(A @ X - B).max() <= 100 * U * (np.abs(A).sum(axis=1).max() * np.abs(X).max())
    assert kernels.last_row(F) in range(12)
