"""Triangles that are made ready once and solved with again and again, on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.backends import Backend
from tests.support.roundoff import U


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("part", ["lower", "upper"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 2, 7, 33, 97])
def test_repeated_solves_have_the_error_of_fp64(
    backend: Backend, rng: Any, n: int, dtype: Any, part: str, transposed: bool
) -> None:
    square = (rng.random((n, n)) - 0.5 + np.diag(1.0 + rng.random(n))).astype(dtype)
    other = np.tril(np.ones((n, n), bool)) if part == "lower" else np.triu(np.ones((n, n), bool))
    solve = backend.kernels.block_solver(backend.array(np.where(other, square, dtype(np.nan))), part)
    T = np.tril(square, -1) + np.eye(n) if part == "lower" else np.triu(square)
    T = T.astype(np.float64).T if transposed else T.astype(np.float64)
    for _ in range(2):
        b = rng.random(n) - 0.5
        x = backend.array(b.copy())
        solve(x, transposed=transposed)
        exact = np.linalg.solve(T, b)
        inverse = np.abs(np.linalg.inv(T))
        # The contract's 2n·u for the inverse and its product; as much again for the exact solution, which is not.
        bound = 4 * (n + 1) * U * (inverse @ (np.abs(T) @ (inverse @ np.abs(b))))
        assert (np.abs(backend.numpy(x) - exact) <= bound).all()
