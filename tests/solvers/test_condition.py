"""Test the estimate of ||A^-1||_1."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest

from mxpeak.comm.transports.threads import run_ranks
from mxpeak.kernels.arrays import xp
from mxpeak.solvers.condition import MAX_POINTS, Reductions, inverse_one_norm


def estimate(B: Any) -> float:
    """Return the estimate for an explicit matrix."""
    n = len(B)
    return inverse_one_norm(lambda x: B @ x, lambda y: B.conj().T @ y, np.arange(n), n, B.dtype, xp)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_it_is_a_lower_bound_and_rarely_3_times_too_small(dtype: Any) -> None:
    rng, ratios = np.random.default_rng(3), []
    for n in (1, 2, 3, 17, 40):
        for _ in range(40):
            B = rng.standard_normal((n, n)) * 10.0 ** rng.uniform(-2, 2, (n, 1))
            if dtype == np.complex128:
                B = B + 1j * rng.standard_normal((n, n))
            ratios.append(estimate(B) / np.linalg.norm(B, 1))
    assert max(ratios) <= 1 + 40 * 2.0**-52  # sums of at most 40 terms
    assert min(ratios) >= 0.2
    assert np.mean(np.array(ratios) >= 1 / 3) >= 0.99


def test_zeros_and_a_diagonal_are_exact() -> None:
    assert estimate(np.zeros((4, 4))) == 0.0
    assert estimate(np.diag([1.0, -7.0, 3.0, 0.0])) == 7.0


def test_alternating_signs_find_a_norm_that_the_first_gradient_misses() -> None:
    """B (1, …, 1) = (1, …, 1) = B^T (1, …, 1) for any theta, so the gradient shows no larger value."""
    n, theta = 8, 1e6
    w = (-1.0) ** np.arange(n)
    B = np.ones((n, n)) / n + theta * np.outer(w, w)
    assert np.linalg.norm(B, 1) / 3 <= estimate(B) <= np.linalg.norm(B, 1)


def test_what_overflows_is_infinite_and_a_nan_ends_it() -> None:
    for bad in (inf, np.nan):
        B = np.eye(5)
        B[2, 3] = bad
        with np.errstate(invalid="ignore"):
            assert estimate(B) == inf


def test_few_products_are_made() -> None:
    rng, calls = np.random.default_rng(0), [0, 0]
    B = rng.standard_normal((60, 60))

    def times(x: Any) -> Any:
        calls[0] += 1
        return B @ x

    def adjoint(y: Any) -> Any:
        calls[1] += 1
        return B.T @ y

    inverse_one_norm(times, adjoint, np.arange(60), 60, B.dtype, xp)
    assert calls[1] < calls[0] <= MAX_POINTS + 1


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_ranks_with_parts_of_the_vectors_agree_with_one(size: int) -> None:
    n = 5  # also fewer entries than ranks
    B = np.random.default_rng(2).standard_normal((n, n))
    alone = estimate(B)

    def body(comm: Any) -> float:
        own = np.arange(comm.rank, n, size)

        def reduced(op: str) -> Any:
            def over(value: float) -> float:
                found = np.array([value])
                comm.allreduce(found, op)
                return float(found[0])

            return over

        def whole(part: Any) -> Any:
            full = np.zeros(n)
            full[own] = part
            comm.allreduce(full, "sum")
            return full

        ranks = Reductions(reduced("sum"), reduced("max"))
        return inverse_one_norm(
            lambda x: (B @ whole(x))[own], lambda y: (B.T @ whole(y))[own], own, n, B.dtype, xp, X=ranks, Y=ranks
        )

    assert run_ranks(size, body) == pytest.approx([alone] * size, rel=1e-12)
