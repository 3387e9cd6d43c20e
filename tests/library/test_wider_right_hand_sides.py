"""Test that factors of an fp32 matrix solve for a b in fp64 to the accuracy of fp64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mxpeak as mx
from tests.support.roundoff import U

Array = np.ndarray[Any, np.dtype[Any]]
RNG = np.random.default_rng(12)
MAKERS: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "lu": (mx.lu_factor, False),
    "bf16": (lambda A: mx.lu_factor(A, precision="bf16"), False),
    "fp64": (lambda A: mx.lu_factor(A, precision="fp64"), False),
    "cholesky": (lambda A: mx.cho_factor(A, lower=True), True),
    "solver": (mx.Solver, False),
    "ldl": (lambda A: mx.Solver(A, assume_a="her", lower=True), True),
}


def true_eta(A: Array, x: Array, b: Array) -> float:
    """Return the backward error in units of n·u."""
    A, x, b = (V.astype(np.clongdouble) for V in (A, x, b))
    size = np.abs(A).sum(1).max() * np.abs(x).max() + np.abs(b).max()
    return float(np.abs(b - A @ x).max() / size / (len(A) * U))


@pytest.mark.parametrize("n", [1, 4, 60, 130])
@pytest.mark.parametrize("name", MAKERS)
def test_a_b_in_fp64_gives_an_x_in_fp64(name: str, n: int) -> None:
    make, symmetric = MAKERS[name]
    for is_complex in (False, True):
        X = RNG.standard_normal((n, n)) + (1j * RNG.standard_normal((n, n)) if is_complex else 0.0)
        A = (X @ X.conj().T + n * np.eye(n) if symmetric else X + 3 * np.eye(n)).astype("F" if is_complex else "f")
        given = np.tril(A) + np.triu(np.ones_like(A), 1) if symmetric else A
        F = make(given)
        wide = A.astype(complex if is_complex else float)
        if symmetric:
            wide = np.tril(wide, -1) + np.tril(wide, -1).conj().T + np.diag(wide.diagonal().real)
        for form, M in (("N", wide), ("T", wide.T), ("H", wide.conj().T)):
            for b in (RNG.standard_normal(n), np.arange(n) + 1, RNG.standard_normal((n, 2))):
                x, info = F.solve(b, transposed=form)
                assert x.dtype == wide.dtype
                assert info.solved
                assert info.u == 2.0**-53
                assert true_eta(M, x.reshape(n, -1)[:, -1], b.reshape(n, -1)[:, -1]) <= 2.0
            x, info = F.solve(RNG.standard_normal(n).astype("f"), transposed=form)
            assert x.dtype == A.dtype
            assert info.u == 2.0**-24


def test_a_b_in_complex128_gives_an_x_in_complex128() -> None:
    A, b = RNG.standard_normal((20, 20)).astype("f"), RNG.standard_normal(20) + 1j * RNG.standard_normal(20)
    x, info = mx.lu_factor(A).solve(b)
    assert x.dtype == np.complex128
    assert info.solved
    assert np.abs(A.astype(float) @ x - b).max() <= 1e-12
    assert mx.lu_factor(A).solve(b.astype("F"))[0].dtype == np.complex64
    assert mx.lu_factor(np.zeros((0, 0), "f")).solve(np.zeros(0))[0].dtype == np.float64


def test_lagged_factors_keep_the_accuracy_of_b() -> None:
    A, b = (RNG.standard_normal((150, 150)) + 3 * np.eye(150)).astype("f"), RNG.standard_normal(150)
    solver = mx.Solver(A)
    solver.solve(b)
    changed = (A * (1 + 1e-6 * RNG.standard_normal(A.shape))).astype("f")
    solver.update(changed)
    x, info = solver.solve(b)
    assert info.lagged
    assert x.dtype == np.float64
    assert true_eta(changed.astype(float), x, b) <= 1.0
    x, info = solver.solve(b.astype("f"))
    assert x.dtype == np.float32


def test_fp64_factors_replace_those_that_do_not_show_whether_a_is_singular() -> None:
    i = np.arange(12)
    H = (1.0 / (1.0 + i + i[:, None])).astype("f")
    b = H.astype(float) @ np.ones(12)
    x, info = mx.lu_factor(H).solve(b)
    assert (info.precision, info.fallback, info.ill_conditioned) == ("fp64", True, False)
    assert np.abs(x - 1.0).max() < 1e-5


def test_tensors() -> None:
    torch = pytest.importorskip("torch")
    A, b = torch.randn(40, 40, generator=torch.Generator().manual_seed(1)), torch.ones(40, dtype=torch.float64)
    x, info = mx.lu_factor(A).solve(b)
    assert x.dtype == torch.float64
    assert info.solved
    assert (A.double() @ x - b).abs().max() < 1e-11
