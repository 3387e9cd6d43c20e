"""Test GMRES on small dense systems: the minimized residual, and when a solve ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxpeak.distributed.spaces import ArraySpace
from mxpeak.errors import Outcome
from mxpeak.solvers.krylov import STALL, STALL_CYCLES, Basis, LeastSquares, Solve, cycle, gmres_ir, started
from tests.support.roundoff import U

Array = np.ndarray[Any, np.dtype[Any]]
#: Unit roundoff of fp32.
U32 = 2.0**-24


class DenseSystem:
    """A x = b with M^-1 from the right; products and basis in `inner`, residuals and x in fp64."""

    def __init__(self, A: Array, b: Array, inverse: Array | None = None, inner: Any = np.float64, restart: int = 50):
        self.A, self.b, self.x, self.restart = A, b, np.zeros(b.size), restart
        self.B, self.inverse = A.astype(inner), (np.eye(b.size) if inverse is None else inverse).astype(inner)
        self.r, self.rho = b, 0.0

    def residual(self) -> float:
        self.r = self.b - self.A @ self.x
        self.rho = float(np.linalg.norm(self.r))
        return self.rho

    def basis(self) -> tuple[Basis, float]:
        q = (self.r / self.rho).astype(self.B.dtype)
        Q = ArraySpace(np, q).basis(self.restart + 1)
        Q.append(q, 1.0)
        return Q, self.rho

    def step(self, q: Array) -> Array:
        return self.B @ (self.inverse @ q)

    def update(self, d: Array) -> None:
        self.x = self.x + (self.inverse @ d).astype(np.float64)

    def solve(self, **options: Any) -> Solve:
        return gmres_ir(
            self,
            float(np.linalg.norm(self.b)),
            **{"restart": self.restart, "max_steps": 200, "tolerance": 0.0, **options},
        )


class ScriptedSystem:
    """Returns the given residuals, then the last one repeatedly; steps compute nothing."""

    def __init__(self, residuals: Sequence[float]):
        self._left, self._k = list(residuals), 0

    def residual(self) -> float:
        return self._left.pop(0) if len(self._left) > 1 else self._left[0]

    def basis(self) -> tuple[Any, float]:
        self._k = 0
        return self, 1.0

    last = None

    def step(self, q: None) -> None:
        pass

    def orthogonalize(self, w: None) -> tuple[list[float], float]:
        self._k += 1
        return [0.5] * self._k, 1.0

    def combine(self, t: list[float]) -> None:
        pass

    def update(self, d: None) -> None:
        pass


def well_conditioned(rng: Any, n: int) -> tuple[Array, Array]:
    """Return A and b: A = I + a random matrix of norm about 0.6, non-symmetric with a condition below 10."""
    return np.eye(n) + 0.3 * rng.standard_normal((n, n)) / math.sqrt(n), rng.standard_normal(n)


def best_residual(A: Array, r: Array, k: int) -> float:
    """Return min ||r - A v|| over v in span(r, A r, …, A^(k-1) r), the definition of GMRES."""
    vectors = [r / np.linalg.norm(r)]
    for _ in range(k):
        w = A @ vectors[-1]
        for _ in range(2):
            for v in vectors:
                w = w - (v @ w) * v
        vectors.append(w / np.linalg.norm(w))
    K = np.array(vectors[:k]).T
    return float(np.linalg.norm(r - A @ K @ np.linalg.lstsq(A @ K, r, rcond=None)[0]))


def cyclic(n: int) -> tuple[Array, Array]:
    """Return the shift e_1 → e_2 → … → e_n → e_1 and b = e_1: GMRES makes no progress before its n-th step."""
    b = np.zeros(n)
    b[0] = 1.0
    return np.roll(np.eye(n), 1, axis=0), b


# --- one cycle --------------------------------------------------------------------------------------------------


@st.composite
def operators(draw: Any) -> tuple[Array, Array]:
    """Draw B and z of up to 12 unknowns: real or complex, fp32 or fp64, of any rank, at any scale, z possibly zero."""
    n, seed = draw(st.integers(1, 12)), draw(st.integers(0, 2**32 - 1))
    dtype = draw(st.sampled_from([np.float32, np.float64, np.complex64, np.complex128]))
    rank, scale = draw(st.integers(0, n)), 2.0 ** draw(st.integers(-20, 20))
    rng = np.random.default_rng(seed)

    def random(*shape: int) -> Array:
        numbers = rng.standard_normal(shape)
        return numbers + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else numbers

    B = np.eye(n) + random(n, n) / (2 * n) if rank == n else random(n, rank) @ random(rank, n)
    z = random(n) if draw(st.integers(0, 9)) else np.zeros(n)
    return (scale * B).astype(dtype), z.astype(dtype)


@given(operators(), st.integers(1, 14))
def test_the_estimate_is_the_residual_and_the_basis_is_orthonormal(operator: tuple[Array, Array], steps: int) -> None:
    B, z = operator
    n, u = len(z), float(np.finfo(z.dtype).eps) / 2
    norms: list[float] = []
    problem: list[LeastSquares] = []

    def watched(w: Array) -> tuple[list[Any], float]:
        h, norm = orthogonalize(w)
        norms.append(norm)
        return h, norm

    Q, rho = started(ArraySpace(np, z), z, steps)
    orthogonalize, Q.orthogonalize = Q.orthogonalize, watched
    d, estimates = cycle(lambda q: B @ q, Q, rho, steps, 0.0, lambda H: (problem.append(H), H.residual)[1])
    assert len(estimates) == len(norms) <= steps
    assert rho == pytest.approx(float(np.linalg.norm(z)), rel=4 * n * u)
    assert all(after <= before * (1 + 4 * u) for before, after in zip([rho, *estimates], estimates))
    if not rho:
        assert (estimates, d.any()) == ([0.0], False), "zero is the best"
        return
    # Below a few n·u·||B|| the new vector is rounding, and the space exhausted.
    new = [norm > 100 * n * u * float(np.linalg.norm(B, 2)) for norm in norms]
    whole = new.index(False) if False in new else len(new)
    V = np.array([Q.combine([0.0] * k + [1.0]) for k in range(min(whole + 1, len(norms)))])
    # Twice a sum of n products, of vectors that the first projection has shortened by no more than a hundredth … n·u.
    assert np.abs(V.conj() @ V.T - np.eye(len(V))).max() <= 10 * n * u
    if whole >= len(norms) - 1:
        # Products, projections and Q t err by a few n·u of what they add up.
        size = rho + float(np.linalg.norm(B, 2) * np.abs(problem[0].solve()).sum())
        assert abs(float(np.linalg.norm(z - B @ d)) - estimates[-1]) <= 10 * n * u * size


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_cycle_ends_with_the_first_number_that_is_not_finite(rng: Any, bad: float) -> None:
    A, b = well_conditioned(rng, 11)
    products: list[Array] = []

    def B(q: Array) -> Array:
        products.append(q)
        return A @ q if len(products) < 4 else np.full(11, bad)

    with np.errstate(invalid="ignore"):
        Q, rho = started(ArraySpace(np, b), b, 10)
        _, estimates = cycle(B, Q, rho, 10, 0.0)
    assert len(products) == len(estimates) == 4
    assert np.isfinite(estimates[:3]).all()
    assert not estimates[3] > 0.0


# --- iterates ---------------------------------------------------------------------------------------------------


def test_every_step_has_the_smallest_residual_of_its_krylov_space(rng: Any) -> None:
    n = 23
    A, b = well_conditioned(rng, n)
    done = DenseSystem(A, b).solve(max_steps=n - 3)
    scale = float(np.linalg.norm(b))
    for k, estimate in enumerate(done.estimates, start=1):
        # Products, bases and least squares of both sides are good to about n·u·||A||·||x|| each: 10 covers them.
        assert estimate == pytest.approx(best_residual(A, b, k) / scale, abs=10 * n * U)
    assert done.residual == pytest.approx(done.estimates[-1], abs=10 * n * U)


def test_a_system_of_n_unknowns_is_solved_in_n_steps(rng: Any) -> None:
    n = 23
    A, b = well_conditioned(rng, n)
    system = DenseSystem(A, b)
    done = system.solve(tolerance=100 * n * U)
    assert (done.outcome, done.cycles) == (Outcome.SOLVED, [done.steps])
    assert done.steps <= n
    # ||x - x*|| <= ||A^-1||·||r||, and lstsq's own error is of the order of cond·n·u, cond < 10.
    error = np.linalg.norm(system.x - np.linalg.solve(A, b)) / np.linalg.norm(b)
    assert error < np.linalg.norm(np.linalg.inv(A), 2) * (done.residual + 100 * n * U)


def test_restarts_begin_with_the_residual_that_is_left(rng: Any) -> None:
    n, m = 31, 4
    A, b = well_conditioned(rng, n)
    done = DenseSystem(A, b, restart=m).solve(restart=m, max_steps=5 * m)
    assert done.cycles == [m] * 5
    x = np.zeros(n)
    for k in range(5):
        r = b - A @ x
        K = np.array([np.linalg.matrix_power(A, j) @ r for j in range(m)]).T
        x = x + K @ np.linalg.lstsq(A @ K, r, rcond=None)[0]
        # Powers of A, whose condition is below 10, lose at most 10^m of n·u before the least-squares problem.
        wanted = np.linalg.norm(b - A @ x) / np.linalg.norm(b)
        assert done.history[k + 1] == pytest.approx(wanted, abs=10**m * n * U)


def test_the_preconditioner_is_applied_from_the_right(rng: Any) -> None:
    """The residuals are those of A x = b itself; with M = A one step solves it."""
    n = 17
    A, b = well_conditioned(rng, n)
    rough = np.linalg.inv(np.triu(A))
    done = DenseSystem(A, b, inverse=rough).solve(max_steps=6)
    # x = M^-1 Q t, and A M^-1 is the operator whose Krylov space is searched.
    wanted = best_residual(A @ rough, b, 6) / np.linalg.norm(b)
    assert done.residual == pytest.approx(wanted, abs=100 * n * U)
    exact = DenseSystem(A, b, inverse=np.linalg.inv(A)).solve(tolerance=100 * n * U)
    assert (exact.outcome, exact.steps) == (Outcome.SOLVED, 1)


def test_an_fp32_inner_iteration_reaches_fp64s_accuracy(rng: Any) -> None:
    n = 29
    A, b = well_conditioned(rng, n)  # whose entries are no fp32 numbers
    tolerance = (
        20 * n * U
    )  # a product of A and its difference from b: n·u·(||A||·||x|| + ||b||), ||A||·||x|| < 10·||b||
    done = DenseSystem(A, b, inner=np.float32).solve(tolerance=tolerance)
    assert done.outcome == Outcome.SOLVED
    assert len(done.cycles) >= 2, "the first cycle ends where fp32 does"
    assert tolerance < done.history[1] < 100 * n * U32


def test_a_cycle_ends_with_the_first_estimate_that_will_do(rng: Any) -> None:
    A, b = well_conditioned(rng, 31)
    tolerance = 1e-6
    done = DenseSystem(A, b).solve(tolerance=tolerance)
    assert done.outcome == Outcome.SOLVED
    assert done.estimates[-1] <= tolerance < done.estimates[-2]
    assert done.residual <= tolerance
    assert len(done.estimates) == done.steps == sum(done.cycles)


# --- when it stops ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("restart", "max_steps", "cycles"),
    [(30, 300, [30] * 10), (40, 300, [40] * 7 + [20]), (30, 31, [30, 1]), (30, 7, [7]), (1, 5, [1] * 5), (30, 0, [])],
)
def test_the_most_steps_are_taken_and_not_one_more(restart: int, max_steps: int, cycles: list[int]) -> None:
    done = gmres_ir(ScriptedSystem([1.0]), 1.0, restart=restart, max_steps=max_steps, tolerance=0.0)
    assert done.cycles == cycles
    assert done.steps == sum(cycles) == max_steps
    assert done.outcome == Outcome.UNREACHED
    assert len(done.history) == len(cycles) + 1


@pytest.mark.parametrize(("last", "solved"), [(1e-9, True), (1.001e-9, False)])
def test_a_true_residual_of_the_tolerance_will_do_and_no_larger_one(last: float, solved: bool) -> None:
    done = gmres_ir(ScriptedSystem([1.0, 2e-9, last]), 1.0, restart=3, max_steps=6, tolerance=1e-9)
    assert done.cycles == [3, 3]
    assert (done.outcome == Outcome.SOLVED) == solved


@pytest.mark.parametrize("tolerance", [0.0, 1e-9])
def test_a_right_hand_side_of_zeros_is_solved_by_x_equal_to_zero(tolerance: float) -> None:
    system = DenseSystem(np.eye(5), np.zeros(5))
    done = system.solve(tolerance=tolerance)
    assert done == Solve(outcome=Outcome.SOLVED, history=[0.0])
    assert not system.x.any()


def test_zero_is_the_only_solution_that_will_do_where_b_is_zero() -> None:
    system = DenseSystem(2.0 * np.eye(4), np.zeros(4))
    system.x[:] = 8.0
    done = system.solve(tolerance=1e-9)
    assert (done.outcome, done.steps, done.residual) == (Outcome.SOLVED, 1, 0.0)
    assert done.initial == done.history[0] == 32.0, "not divided by ||b||"


def test_what_was_solved_before_takes_no_step(rng: Any) -> None:
    A, b = well_conditioned(rng, 9)
    system = DenseSystem(A, b)
    system.x = np.linalg.solve(A, b)
    done = system.solve(tolerance=100 * 9 * U)
    assert (done.outcome, done.steps, done.cycles, done.estimates) == (Outcome.SOLVED, 0, [], [])


def test_a_space_that_is_exhausted_ends_the_cycle_with_the_solution_in_it() -> None:
    """b is in the span of three eigenvectors of A, all numbers powers of two: the fourth vector is exactly zero."""
    A, b = np.diag([1.0, 2.0, 4.0, 2.0, 1.0, 4.0, 8.0]), np.zeros(7)
    b[1] = 2.0
    system = DenseSystem(A, b)
    done = system.solve()
    assert (done.steps, done.residual, done.outcome) == (1, 0.0, Outcome.SOLVED)
    assert system.x.tolist() == [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    b[:] = [1, 1, 1, 1, 1, 1, 0]
    three = DenseSystem(A, b)
    done = three.solve(tolerance=10 * 7 * U)
    assert (done.steps, done.outcome) == (3, Outcome.SOLVED)


def test_only_the_last_of_n_steps_gains_anything_on_a_cycle_of_unit_vectors() -> None:
    A, b = cyclic(8)
    done = DenseSystem(A, b).solve(max_steps=8)
    assert done.estimates[:-1] == [1.0] * 7
    assert done.estimates[-1] == done.residual == 0.0
    assert done.outcome == Outcome.SOLVED


def test_a_solve_that_gains_nothing_over_ten_cycles_is_given_up() -> None:
    A, b = cyclic(8)
    done = DenseSystem(A, b).solve(restart=3, max_steps=10_000, tolerance=1e-9)
    assert done.outcome == Outcome.UNREACHED
    assert done.cycles == [3] * STALL_CYCLES
    assert done.history == [1.0] * (STALL_CYCLES + 1)


def test_a_solve_that_shall_take_all_steps_is_not_given_up() -> None:
    A, b = cyclic(8)
    done = DenseSystem(A, b).solve(restart=3, max_steps=100)
    assert done.steps == 100
    assert done.outcome == Outcome.UNREACHED


@pytest.mark.parametrize(("factor", "cycles"), [(STALL**0.08, STALL_CYCLES), (STALL**0.12, 100)])
def test_ten_cycles_have_to_gain_a_thousandth(factor: float, cycles: int) -> None:
    system = ScriptedSystem([factor**k for k in range(200)])
    done = gmres_ir(system, 1.0, restart=2, max_steps=200, tolerance=1e-9)
    assert len(done.cycles) == cycles


def test_a_singular_matrix_ends_and_leaves_x_finite() -> None:
    A, b = np.zeros((4, 4)), np.ones(4)
    system = DenseSystem(A, b)
    done = system.solve(tolerance=1e-9)
    assert (done.outcome, done.cycles) == (Outcome.UNREACHED, [1] * STALL_CYCLES)
    assert not system.x.any()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_infinity_and_nan_end_the_solve_at_once(bad: float) -> None:
    at_first = gmres_ir(ScriptedSystem([bad]), 1.0, restart=3, max_steps=300, tolerance=1e-9)
    assert (at_first.outcome, at_first.steps) == (Outcome.NOT_FINITE, 0)
    later = gmres_ir(ScriptedSystem([1.0, 0.5, bad]), 1.0, restart=3, max_steps=300, tolerance=0.0)
    assert (later.outcome, later.cycles) == (Outcome.NOT_FINITE, [3, 3])
    assert later.history[:2] == [1.0, 0.5]


@pytest.mark.parametrize("where", ["A", "inverse", "b"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_nan_or_inf_in_the_system_is_an_outcome_and_no_error(rng: Any, where: str, bad: float) -> None:
    A, b = well_conditioned(rng, 9)
    parts = {"A": A, "b": b, "inverse": np.eye(9)}
    parts[where].flat[3] = bad
    with np.errstate(invalid="ignore"):
        system = DenseSystem(**parts)
        done = gmres_ir(system, 3.0, restart=5, max_steps=300, tolerance=1e-9)
    assert done.outcome == Outcome.NOT_FINITE
    assert done.steps <= 5


# --- history and callbacks --------------------------------------------------------------------------------------


def test_the_callback_gets_every_cycle(rng: Any) -> None:
    A, b = well_conditioned(rng, 31)
    seen: list[tuple[int, float]] = []
    done = DenseSystem(A, b, restart=4).solve(
        restart=4, max_steps=18, watch=lambda solve: seen.append((solve.steps, solve.residual))
    )
    assert [steps for steps, _ in seen] == [4, 8, 12, 16, 18]
    assert [residual for _, residual in seen] == done.history[1:]


def test_residuals_are_relative_to_b_except_the_initial_one(rng: Any) -> None:
    A, b = well_conditioned(rng, 11)
    done = DenseSystem(A, 1024.0 * b).solve(tolerance=1e-9)
    same = DenseSystem(A, b).solve(tolerance=1e-9)
    assert done.initial == 1024.0 * same.initial, "powers of two change no rounding"
    assert done.history == same.history
    assert done.estimates == same.estimates
    assert done.history[0] == 1.0
