"""Test MINRES and BiCGStab on small dense systems: steps, breakdown, and the residual of the recurrence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mxpeak.solvers.bicgstab import solve_by_bicgstab
from mxpeak.solvers.minres import solve_by_minres
from mxpeak.solvers.recurrence import Recurrence
from tests.support.roundoff import U

N = 30


class Dense:
    """A x = b with dense A and M^-1."""

    u, size = U, 0.0

    def __init__(self, A: Any, b: Any, M_inverse: Any = None):
        self.A, self.b = A, b
        self.M_inverse = np.eye(len(b)) if M_inverse is None else M_inverse
        self.x = np.zeros(len(b), np.result_type(A, b))

    def residual_vector(self) -> Any:
        return self.b - self.A @ self.x

    def multiply(self, v: Any) -> Any:
        return self.A @ v

    def precondition(self, r: Any) -> Any:
        return self.M_inverse @ r

    def dot(self, u: Any, v: Any) -> Any:
        return np.vdot(u, v)

    def norm(self, u: Any) -> float:
        return float(np.linalg.norm(u))

    def advance(self, d: Any, estimate: float | None = None) -> None:
        self.x = self.x + d


def with_eigenvalues(rng: np.random.Generator, values: Any, *, hermitian: bool = False) -> Any:
    X = rng.standard_normal((len(values), len(values)))
    if hermitian:
        X = X + 1j * rng.standard_normal(X.shape)
    Q, _ = np.linalg.qr(X)
    return (Q * values) @ Q.conj().T


def check(system: Dense, done: Recurrence, tol: float) -> None:
    """Check that the residuals of the recurrence and of x are small, up to rounding: a few u·||A||·||x|| per step."""
    b, size = np.linalg.norm(system.b), np.linalg.norm(system.A, 2) * np.linalg.norm(system.x)
    assert not done.broken
    assert done.estimates[-1] <= tol * b
    true = float(np.linalg.norm(system.residual_vector()))
    assert abs(true - done.estimates[-1]) <= 8 * done.steps * (N + 2) * U * (size + b)


@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.parametrize("preconditioned", [False, True])
def test_minres_solves_indefinite_systems(hermitian: bool, preconditioned: bool, rng: np.random.Generator) -> None:
    values = np.concatenate([np.linspace(-5, -1, N // 2), np.linspace(1, 9, N - N // 2)])
    A, b = with_eigenvalues(rng, values, hermitian=hermitian), rng.standard_normal(N)
    M = with_eigenvalues(rng, np.linspace(1, 3, N), hermitian=hermitian) if preconditioned else None
    system = Dense(A, b, M)
    check(system, solve_by_minres(system, max_steps=10 * N, enough=1e-10 * np.linalg.norm(b)), 1e-10)


def test_minres_residuals_never_grow_and_distinct_eigenvalues_count_the_steps(rng: np.random.Generator) -> None:
    values = np.resize([-3.0, -1.0, 2.0, 4.0], N)
    system = Dense(with_eigenvalues(rng, values), rng.standard_normal(N))
    done = solve_by_minres(system, max_steps=N, enough=1e-12 * np.linalg.norm(system.b))
    assert done.steps == 4
    assert all(b <= a * (1 + 1e-12) for a, b in zip(done.estimates, done.estimates[1:]))


@pytest.mark.parametrize("is_complex", [False, True])
def test_bicgstab_solves_nonsymmetric_systems(is_complex: bool, rng: np.random.Generator) -> None:
    A = 4 * np.eye(N) + rng.standard_normal((N, N)) / N**0.5
    A = A + 1j * rng.standard_normal((N, N)) / N**0.5 if is_complex else A
    for M in (None, np.linalg.inv(A + 0.2 * np.eye(N))):
        system = Dense(A, rng.standard_normal(N), M)
        check(system, solve_by_bicgstab(system, max_steps=10 * N, enough=1e-11 * np.linalg.norm(system.b)), 1e-11)


def test_the_inverse_takes_one_step(rng: np.random.Generator) -> None:
    A = with_eigenvalues(rng, np.linspace(1, 50, N))
    for method in (solve_by_minres, solve_by_bicgstab):
        system = Dense(A, rng.standard_normal(N), np.linalg.inv(A))
        assert method(system, max_steps=N, enough=1e-10 * np.linalg.norm(system.b)).steps == 1


@pytest.mark.parametrize("method", [solve_by_minres, solve_by_bicgstab])
def test_no_more_steps_than_allowed(method: Callable[..., Recurrence], rng: np.random.Generator) -> None:
    system = Dense(with_eigenvalues(rng, np.linspace(1, 1e4, N)), rng.standard_normal(N))
    assert method(system, max_steps=3, enough=0.0).steps == 3


@pytest.mark.parametrize("negative", [1, 4])
def test_minres_detects_a_preconditioner_that_turns_out_indefinite_later(negative: int) -> None:
    """zᴴv is positive at first: M^-1 has few negative entries."""
    A, m = 2 * np.eye(64) - np.eye(64, k=1) - np.eye(64, k=-1), np.ones(64)
    m[1 : 1 + negative] = -0.7
    system = Dense(A, np.ones(64), np.diag(m))
    done = solve_by_minres(system, max_steps=640, enough=1e-9 * 8)
    assert done.broken == "zᴴv"
    assert done.product < 0
    true = float(np.linalg.norm(system.residual_vector()))
    assert (done.estimates or [8.0])[-1] == pytest.approx(true, rel=1e-12)


def test_minres_ends_at_a_least_squares_solution_of_an_inconsistent_system(rng: np.random.Generator) -> None:
    neumann = 2 * np.eye(64) - np.eye(64, k=1) - np.eye(64, k=-1)
    neumann[0, 0] = neumann[-1, -1] = 1
    for A in (neumann, np.diag(np.arange(64.0)), with_eigenvalues(rng, np.resize([-3.0, 0.0, 2.0, 4.0], N))):
        system = Dense(A, rng.standard_normal(len(A)))
        least = system.b - A @ np.linalg.lstsq(A, system.b)[0]
        done = solve_by_minres(system, max_steps=640, enough=0.0)
        r = system.residual_vector()
        assert done.broken == "AM⁻¹r"
        assert done.steps <= 64
        assert done.product <= U**0.5
        # the part of r in the range of A is at most ||A r|| over the smallest nonzero singular value
        sigma = min(s for s in np.linalg.svd(A, compute_uv=False) if s > 1e-8)
        assert np.linalg.norm(r - least) <= 2 * U**0.5 * np.linalg.norm(A, 2) * np.linalg.norm(r) / sigma
        assert np.linalg.norm(system.x) <= 1e4 * np.linalg.norm(system.b)


def test_breakdowns_are_named(rng: np.random.Generator) -> None:
    A, b = with_eigenvalues(rng, np.linspace(1, 50, N)), rng.standard_normal(N)
    done = solve_by_minres(Dense(A, b, -np.eye(N)), max_steps=N, enough=0.0)
    assert (done.broken, done.steps) == ("zᴴv", 0)
    assert done.product < 0
    skew = np.array([[0.0, 1.0], [-1.0, 0.0]])
    done = solve_by_bicgstab(Dense(skew, np.array([1.0, 0.0])), max_steps=5, enough=1e-12)
    assert (done.broken, done.steps) == ("r̂ᴴv", 0)
    nan = solve_by_bicgstab(Dense(A, b, np.full((N, N), np.nan)), max_steps=5, enough=1e-12)
    assert nan.broken == "r̂ᴴv"
