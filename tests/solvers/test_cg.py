"""Test conjugate gradients on small dense systems: steps, endings, and the residual of the recurrence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mxpeak.errors import Outcome
from mxpeak.solvers.cg import conjugate_gradients
from tests.support.roundoff import U

N = 40


class Dense:
    """A x = b with dense A and M^-1."""

    def __init__(self, A: Any, b: Any, M_inverse: Any = None):
        self.A, self.b = A, b
        self.M_inverse = np.eye(len(b)) if M_inverse is None else M_inverse
        self.x, self.p, self.reads_of_p = np.zeros(len(b)), np.full(len(b), np.nan), 0

    def residual(self) -> float:
        self.r = self.b - self.A @ self.x
        return float(np.linalg.norm(self.r))

    def precondition(self) -> float:
        self.z = self.M_inverse @ self.r
        return float(self.r @ self.z)

    def update_direction(self, beta: float) -> None:
        self.reads_of_p += beta != 0.0
        self.p = self.z + beta * self.p if beta else self.z.copy()

    def pAp(self) -> float:
        self.Ap = self.A @ self.p
        return float(self.p @ self.Ap)

    def step(self, alpha: float) -> float:
        self.x = self.x + alpha * self.p
        self.r = self.r - alpha * self.Ap
        return float(np.linalg.norm(self.r))


def with_eigenvalues(rng: np.random.Generator, values: Any) -> Any:
    Q, _ = np.linalg.qr(rng.standard_normal((len(values), len(values))))
    return (Q * values) @ Q.T


@pytest.fixture
def A(rng: np.random.Generator) -> Any:
    return with_eigenvalues(rng, np.linspace(1.0, 50.0, N))


def test_the_solution_is_found_and_the_residual_of_the_recurrence_is_the_true_one(A: Any) -> None:
    x = np.ones(N)
    system = Dense(A, A @ x)
    done = conjugate_gradients(system, max_steps=10 * N, tolerance=1e-13)
    assert done.outcome == Outcome.SOLVED
    assert done.steps == len(done.history) - 1 < 2 * N
    assert done.history[0] == 1.0
    assert done.residual == done.history[-1] <= 1e-13
    # steps times the rounding of r and x, each of a product with A: n + 2 of u·||A||·||x|| over ||b||
    bound = done.steps * (N + 2) * U * 50.0 * np.linalg.norm(x) / np.linalg.norm(system.b)
    assert abs(np.linalg.norm(system.b - A @ system.x) / np.linalg.norm(system.b) - done.residual) <= bound
    assert np.linalg.norm(system.x - x) <= 1e-13 * 50.0 * np.linalg.norm(x) + bound * np.linalg.norm(system.b)


@pytest.mark.parametrize("different", [1, 2, 5])
def test_it_takes_as_many_steps_as_there_are_different_eigenvalues(rng: np.random.Generator, different: int) -> None:
    values = np.resize(np.arange(1.0, different + 1.0), N)
    done = conjugate_gradients(
        Dense(with_eigenvalues(rng, values), rng.standard_normal(N)), max_steps=N, tolerance=1e-12
    )
    assert (done.outcome, done.steps) == (Outcome.SOLVED, different)


def test_with_the_inverse_as_preconditioner_one_step_does(A: Any, rng: np.random.Generator) -> None:
    done = conjugate_gradients(Dense(A, rng.standard_normal(N), np.linalg.inv(A)), max_steps=N, tolerance=1e-12)
    assert (done.outcome, done.steps) == (Outcome.SOLVED, 1)


def test_a_better_preconditioner_takes_fewer_steps(rng: np.random.Generator) -> None:
    values = np.geomspace(1.0, 1e4, N)
    A = np.diag(values) + with_eigenvalues(rng, np.linspace(0.1, 0.9, N))
    plain, scaled = (
        conjugate_gradients(Dense(A, np.ones(N), M_inverse), max_steps=500, tolerance=1e-10).steps
        for M_inverse in (None, np.diag(1.0 / np.diag(A)))
    )
    assert scaled < plain / 2


def test_a_tolerance_of_zero_takes_all_steps_and_each_is_seen(A: Any, rng: np.random.Generator) -> None:
    seen: list[int] = []
    done = conjugate_gradients(Dense(A, rng.standard_normal(N)), max_steps=17, tolerance=0.0, watch=seen.append)
    assert done.outcome == Outcome.UNREACHED
    assert seen == list(range(1, 18))
    assert done.steps == 17


def test_it_ends_at_the_first_step_that_will_do(A: Any, rng: np.random.Generator) -> None:
    b = rng.standard_normal(N)
    long = conjugate_gradients(Dense(A, b), max_steps=20, tolerance=0.0).history
    aim = long[9]
    done = conjugate_gradients(Dense(A, b), max_steps=20, tolerance=aim)
    assert done.steps == next(k for k, residual in enumerate(long) if residual <= aim)


def test_the_direction_before_the_first_step_is_not_read(A: Any) -> None:
    system = Dense(A, np.ones(N))
    done = conjugate_gradients(system, max_steps=5, tolerance=0.0)
    assert np.isfinite(system.x).all()
    assert system.reads_of_p == done.steps - 1


# --- unsolved systems -------------------------------------------------------------------------------------------


def test_nothing_to_solve_is_solved_without_a_step(A: Any) -> None:
    done = conjugate_gradients(Dense(A, np.zeros(N)), max_steps=5, tolerance=0.0)
    assert (done.outcome, done.steps, done.initial) == (Outcome.SOLVED, 0, 0.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_infinity_and_nan_end_the_solve_with_an_outcome(A: Any, bad: float) -> None:
    b = np.ones(N)
    b[3] = bad
    with np.errstate(invalid="ignore"):
        done = conjugate_gradients(Dense(A, b), max_steps=5, tolerance=1e-10)
    assert (done.outcome, done.steps) == (Outcome.NOT_FINITE, 0)


@pytest.mark.parametrize("what", ["A", "M"])
def test_a_curvature_or_preconditioner_that_is_not_positive_ends_the_solve(A: Any, what: str) -> None:
    system = Dense(-A, np.ones(N)) if what == "A" else Dense(A, np.ones(N), -np.eye(N))
    done = conjugate_gradients(system, max_steps=5, tolerance=1e-10)
    assert (done.outcome, done.steps, done.residual) == (Outcome.UNREACHED, 0, 1.0)


def test_a_residual_of_nothing_ends_it_even_where_all_steps_were_asked_for() -> None:
    done = conjugate_gradients(Dense(2.0 * np.eye(3), np.array([1.0, 2.0, 4.0])), max_steps=5, tolerance=0.0)
    assert (done.outcome, done.steps, done.residual) == (Outcome.SOLVED, 1, 0.0)
