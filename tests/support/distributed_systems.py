"""Solve dense systems on virtual ranks, and return the results or errors of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mxpeak as mx
from mxpeak.comm.transports.threads import run_ranks
from tests.support.roundoff import U

Array = Any


def random(n: int, *more: int) -> Array:
    return np.random.default_rng(n).standard_normal((n, *(more or (n,))))


def entries(A: Array) -> Callable[[Array, Array], Array]:
    return lambda i, j: A[i, j]


def eta(A: Array, x: Array, b: Array) -> float:
    """Return the backward error in units of n·u; computing the residual adds at most one unit."""
    scale = np.abs(A).sum(axis=1).max() * np.abs(x).max() + np.abs(b).max()
    return float(np.abs(b - A @ x).max() / (scale * len(A) * U))


def solved(
    A: Array, b: Any, shape: tuple[int, int], nb: int | None = None, precision: str = "auto"
) -> list[tuple[Array, Any]]:
    """Return the result of every rank of a grid."""

    def body(comm: Any) -> tuple[Array, Any]:
        M = mx.DistributedMatrix.from_function(entries(A), len(A), nb=nb, comm=comm, grid=shape)
        return mx.solve(M, b, precision=precision)

    return run_ranks(shape[0] * shape[1], body)


def held(comm: Any, A: Array) -> Any:
    """Return a matrix on two ranks."""
    return mx.DistributedMatrix.from_function(entries(A), len(A), nb=8, comm=comm, grid=(1, 2))


def raised(ranks: int, body: Callable[[Any], Any]) -> list[str]:
    """Return the error that every rank raises."""

    def caught(comm: Any) -> str:
        with pytest.raises(mx.MxpeakError) as error:
            body(comm)
        return f"{type(error.value).__name__}: {error.value}"

    return run_ranks(ranks, caught)
