"""Triangles that are made ready once and solved with again and again, on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from mxpeak.kernels.contract import Kernels
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.kernels.reference.kernels import ReferenceKernels
from mxpeak.kernels.torch.device import Device
from mxpeak.kernels.torch.kernels import TorchKernels
from tests.conftest import U


@pytest.fixture(scope="module", params=["host", "reference", "torch"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    if request.param == "torch":
        return TorchKernels(Device(torch.device("cpu"), triton=False, poison=True), HostKernels(1))
    return HostKernels(1, poison=True) if request.param == "host" else ReferenceKernels()


def given(kernels: Kernels, values: Any) -> Any:
    """Values as the backend has them."""
    if kernels.name != "torch":
        return values.copy()
    return torch.from_numpy(values.copy())


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("part", ["lower", "upper"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 2, 7, 33, 97])
def test_repeated_solves_have_the_error_of_fp64(
    kernels: Kernels, rng: Any, n: int, dtype: Any, part: str, transposed: bool
) -> None:
    square = (rng.random((n, n)) - 0.5 + np.diag(1.0 + rng.random(n))).astype(dtype)
    other = np.tril(np.ones((n, n), bool)) if part == "lower" else np.triu(np.ones((n, n), bool))
    solve = kernels.block_solver(given(kernels, np.where(other, square, dtype(np.nan))), part)
    T = np.tril(square, -1) + np.eye(n) if part == "lower" else np.triu(square)
    T = T.astype(np.float64).T if transposed else T.astype(np.float64)
    for _ in range(2):
        b = rng.random(n) - 0.5
        x = given(kernels, b)
        solve(x, transposed=transposed)
        exact = np.linalg.solve(T, b)
        inverse = np.abs(np.linalg.inv(T))
        # The contract's 2n·u for the inverse and its product; as much again for the exact solution, which is not.
        bound = 4 * (n + 1) * U * (inverse @ (np.abs(T) @ (inverse @ np.abs(b))))
        assert (np.abs(np.asarray(x) - exact) <= bound).all()
