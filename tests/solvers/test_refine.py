"""Test the accuracy, the predictions and the endings of refinement by an inexact inverse."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxpeak.distributed.spaces import ArraySpace
from mxpeak.errors import Outcome
from mxpeak.solvers.refine import MAX_STEPS, SAFETY, backward_error, refine_solution

Array = np.ndarray[Any, np.dtype[Any]]
TYPES = [np.float32, np.float64, np.complex64, np.complex128]


class Dense:
    """A `refine.SystemForRefinement` of one rank, M^-1 a matrix; it counts its products with A."""

    def __init__(self, A: Array, b: Array, inverse: Array):
        self.A, self.b, self.inverse, self.n, self.products = A, b, inverse, len(b), 0
        self.unknowns = self.equations = ArraySpace(np, b)
        self.A_inf, self.b_inf = float(np.abs(A).sum(axis=1).max()), float(np.abs(b).max())

    def residual(self, x: Array) -> Array:
        return self.b - self.multiply(x)

    def multiply(self, v: Array) -> Array:
        self.products += 1
        return self.A @ v

    def precondition(self, r: Array) -> Array:
        return self.inverse @ r


def system(rng: Any, n: int, dtype: Any = np.float64, error: float = 1e-3) -> Dense:
    """Return a random A of condition about 10, its inverse with relative errors of this size, and b."""

    def random(*shape: int) -> Array:
        numbers = rng.standard_normal(shape)
        return numbers + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else numbers

    A = np.eye(n) + 0.3 * random(n, n) / math.sqrt(n)
    inverse = np.linalg.inv(A) @ (np.eye(n) + error * random(n, n) / math.sqrt(n))
    return Dense(A.astype(dtype), random(n).astype(dtype), inverse.astype(dtype))


def eta(system: Dense, x: Array, u: float) -> float:
    """Return the backward error by its definition, in fp64."""
    A, b, x = (v.astype(np.complex128) for v in (system.A, system.b, x))
    return float(np.abs(b - A @ x).max() / ((system.A_inf * np.abs(x).max() + system.b_inf) * system.n * u))


@given(
    st.sampled_from(TYPES),
    st.sampled_from(["gmres", "classical"]),
    st.integers(1, 30),
    st.integers(0, 2**32 - 1),
    st.sampled_from([3, 50]),
)
def test_both_methods_reach_the_target_in_the_units_of_the_type(
    dtype: Any, method: str, n: int, seed: int, restart: int
) -> None:
    equations, u = system(np.random.default_rng(seed), n, dtype), float(np.finfo(dtype).eps) / 2
    # A residual of n products, each rounded, and of its sums: up to (n + 2)·u·(||A||·||x|| + ||b||).
    x, done = refine_solution(equations, method, restart=restart, target=4.0, u=u)
    assert done.outcome == Outcome.SOLVED
    assert done.residual == backward_error(equations, float(np.abs(equations.residual(x)).max()), x, u) <= 4.0
    assert eta(equations, x, u) <= 4.0 + 1.0 + 2.0 / n, "the computed residual has errors of its own"
    assert done.by_step()[0] == done.history[0]
    assert done.by_step()[-1] == done.history[-1] == done.residual
    assert len(done.by_step()) == done.steps + 1 == sum(done.cycles) + 1


@pytest.mark.parametrize("dtype", TYPES)
def test_what_a_step_of_gmres_predicts_is_what_its_x_has(rng: Any, dtype: Any) -> None:
    equations, u = system(rng, 23, dtype, error=0.3), float(np.finfo(dtype).eps) / 2
    _, done = refine_solution(equations, restart=5, max_steps=5, u=u)
    predicted = done.by_step()[1:-1]
    for k, value in enumerate(predicted, start=1):
        found = refine_solution(equations, restart=k, max_steps=k, u=u)[1].residual
        assert found == pytest.approx(value, abs=4.0, rel=0.2), "up to roundings, and to the change of ||x||"
    assert done.residual < 0.1 * predicted[0]


def test_a_product_a_step_and_one_a_cycle_are_all_that_gmres_takes(rng: Any) -> None:
    equations = system(rng, 31, error=0.2)
    _, done = refine_solution(equations, restart=4)
    assert done.outcome == Outcome.SOLVED
    assert equations.products == 1 + done.steps + len(done.cycles)
    assert max(done.cycles) == 4


def test_a_cycle_ends_once_the_prediction_is_safely_under_the_target(rng: Any) -> None:
    _, done = refine_solution(system(rng, 31, error=0.05), target=8.0)
    last = done.estimates[sum(done.cycles) - 1]
    assert last <= SAFETY * 8.0 < done.estimates[-2]


@pytest.mark.parametrize("method", ["gmres", "classical"])
def test_an_inverse_that_is_useless_ends_with_the_last_step(rng: Any, method: str) -> None:
    one = system(rng, 60)
    one.inverse = np.roll(np.eye(60), 1, axis=0) @ one.inverse
    x, done = refine_solution(one, method)
    assert (done.outcome, done.steps) == (Outcome.NOT_CONVERGED, MAX_STEPS)
    assert np.isfinite(x).all()


@pytest.mark.parametrize("method", ["gmres", "classical"])
def test_zero_and_what_is_not_finite_are_outcomes(rng: Any, method: str) -> None:
    zero = system(rng, 7)
    zero.b[:] = zero.b_inf = 0.0
    x, done = refine_solution(zero, method)
    assert (done.outcome, done.steps, x.any()) == (Outcome.SOLVED, 0, False)
    nothing = Dense(np.zeros((5, 5)), np.zeros(5), np.eye(5))
    assert refine_solution(nothing, method)[1].outcome == Outcome.SOLVED, "0 of 0 is no NaN"
    for bad in (math.nan, math.inf):
        for part in ("A", "b", "inverse"):
            spoiled = system(rng, 7)
            getattr(spoiled, part).flat[3] = bad
            with np.errstate(invalid="ignore"):
                _, done = refine_solution(spoiled, method)
            assert (done.outcome, done.steps) == (Outcome.NOT_FINITE, 0)
