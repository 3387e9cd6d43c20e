"""Test the accuracy of `mxpeak.gmres` with matrices from applications and hard ones, and the unsolved systems.

The error of x is at most ||A^-1||·tol·||b||.  Relative errors are compared with condition·tol, where the condition is
computed from all of A.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse
import scipy.sparse.linalg as linalg

import mxpeak as mx
from mxpeak.errors import Outcome
from mxpeak.solvers.krylov import STALL_CYCLES
from tests.support.roundoff import U
from tests.support.sparse_systems import (
    PRECISIONS,
    SWEEPS,
    jumps,
    line,
    needs_pyamg,
    poisson,
    random,
    reached,
    stencil,
    vector,
)
from tests.support.turns import for_each


def convection(n: int, speed: float, *, central: bool = False) -> Any:
    """Return a convection-diffusion matrix on an n×n grid, upwind or central, with the mesh Péclet number `speed`."""
    below, above = (-1 - speed / 2, -1 + speed / 2) if central else (-1 - speed, -1.0)
    T = sparse.diags_array(
        [np.full(n - 1, below), np.full(n, -below - above), np.full(n - 1, above)], offsets=[-1, 0, 1], shape=(n, n)
    )
    one = sparse.eye_array(n)
    return sparse.csr_array(sparse.kron(T, one) + sparse.kron(one, line(n)))


def graph(n: int, seed: int = 1) -> Any:
    """Return I plus the Laplacian of a random graph with a few nodes of many neighbors and many nodes of few."""
    rng = np.random.default_rng(seed)
    j = np.concatenate([rng.integers(0, i, min(i, 2)) for i in range(1, n)])  # preferential attachment
    j = np.where(rng.random(j.size) < 0.5, j // 8, j)
    i = np.concatenate([np.full(min(i, 2), i) for i in range(1, n)])
    W = sparse.coo_array((np.ones(i.size), (i, j)), shape=(n, n)).tocsr()
    W = W + W.T
    return sparse.csr_array(sparse.diags_array(W.sum(axis=1) + 1.0) - W)


SYSTEMS: dict[str, Any] = {
    "27-point stencil": stencil(12, 12, 12),
    "27-point stencil, non-symmetric": stencil(12, 12, 12, nonsymmetric=True),
    "2-D Poisson": poisson(40, 40),
    "3-D Poisson": poisson(13, 13, 13),
    "1-D Poisson": line(200),
    "convection, upwind": convection(40, 5.0),
    "convection, central": convection(40, 1.5, central=True),
    "random, dominant": random(1500),
    "graph": graph(1500),
    "diagonal": sparse.csr_array(sparse.diags_array(np.linspace(1, 100, 500))),
    "triangular": sparse.csr_array(sparse.tril(random(400))),
}


@for_each("tol", [1e-9, 1e-12])
@for_each("name", SYSTEMS)
def test_usual_systems_are_solved_to_the_tolerance_as_a_direct_solver_solves_them(name: str, tol: float) -> None:
    A = SYSTEMS[name]
    b = vector(A.shape[0])
    x, info = mx.gmres(A, b, rtol=tol)
    y = linalg.spsolve(A.tocsc(), b)
    assert info.converged, str(info)
    assert not info.fallback
    assert reached(A, x, b, tol)
    lu = linalg.splu(A.tocsc())
    inverse = linalg.LinearOperator(A.shape, lu.solve, rmatvec=lambda v: lu.solve(v, "T"), dtype=float)
    norm_of_inverse = linalg.svds(inverse, k=1, return_singular_vectors=False, random_state=1)[0]
    # A factor of 2: svds itself has only a few correct digits, and spsolve has an error of its own.
    assert np.linalg.norm(x - y) <= 2 * norm_of_inverse * tol * np.linalg.norm(b) + 100 * U * np.linalg.norm(y)


@for_each("precision", PRECISIONS)
@for_each("name", ["27-point stencil, non-symmetric", "convection, upwind", "random, dominant"])
@for_each("preconditioner", SWEEPS)
def test_every_precision_and_preconditioner_gets_there(name: str, precision: str, preconditioner: str) -> None:
    A = SYSTEMS[name]
    b = A @ np.ones(A.shape[0])
    x, info = mx.gmres(A, b, precision=precision, preconditioner=preconditioner, rtol=1e-10)
    assert info.converged, str(info)
    assert reached(A, x, b, 1e-10)


def test_rounding_to_a_low_precision_costs_few_steps() -> None:
    A = stencil(12, 12, 12)
    b = vector(A.shape[0])
    steps = {name: mx.gmres(A, b, precision=name, rtol=1e-12)[1].iterations for name in PRECISIONS}
    assert max(steps.values()) <= 1.5 * steps["fp64"]


def test_values_that_are_rounded_cost_cycles_and_no_accuracy() -> None:
    A = SYSTEMS["random, dominant"]
    b = vector(A.shape[0])
    cycles = []
    for name in ("fp64", "fp32", "fp16", "bf16"):
        x, info = mx.gmres(A, b, precision=name, rtol=1e-12)
        assert info.converged
        assert info.values == name
        assert reached(A, x, b, 1e-12)
        cycles.append(info.cycles)
    assert cycles == sorted(cycles)
    assert cycles[-1] <= 2 * 12  # each gains at least one digit


@needs_pyamg
@for_each("contrast", [1e2, 1e5])
def test_jumps_in_the_coefficients_are_for_multigrid(contrast: float) -> None:
    A = jumps(40, contrast)
    b = vector(A.shape[0])
    x, info = mx.gmres(A, b, preconditioner="amg")
    assert info.converged, str(info)
    assert info.iterations <= 60
    assert reached(A, x, b, 1e-9)
    assert info.iterations < mx.gmres(A, b, preconditioner="gs", maxiter=1000)[1].iterations


@needs_pyamg
@for_each("name", ["2-D Poisson", "3-D Poisson", "convection, upwind", "graph"])
@for_each("precision", ["mixed", "fp64", "bf16"])
def test_algebraic_multigrid_solves_what_it_is_made_for(name: str, precision: str) -> None:
    A = SYSTEMS[name]
    b = vector(A.shape[0])
    x, info = mx.gmres(A, b, precision=precision, preconditioner="amg")
    assert info.converged, str(info)
    assert info.iterations <= 40
    assert reached(A, x, b, 1e-9)


@needs_pyamg
def test_a_singular_neumann_problem_with_a_solution_is_solved() -> None:
    A = poisson(20, 20)
    A = sparse.csr_array(A - sparse.diags_array(A.sum(axis=1)))  # no row sum remains: constants are in the null space
    b = vector(400)
    b -= b.mean()
    for preconditioner in ("amg", "gs"):
        x, info = mx.gmres(A, b, preconditioner=preconditioner)
        assert info.converged, str(info)
        assert reached(A, x, b, 1e-9)
    with pytest.warns(mx.IllConditionedWarning, match="numerically singular"):
        x, info = mx.gmres(A, b)
    assert info.converged, str(info)
    assert reached(A, x, b, 1e-9)


# --- bad scaling ---------------------------------------------------------------------------------------------------


@for_each("precision", PRECISIONS)
@for_each("power", [40, 100, 300])
@for_each("side", ["rows", "columns", "both"])
def test_bad_scaling_by_powers_of_two_costs_no_digits(precision: str, power: int, side: str) -> None:
    """The rescaled x is as accurate as that of the matrix before scaling; a direct solver loses half of the digits."""
    L = poisson(14, 14)
    rng = np.random.default_rng(1)
    r, c = (np.ldexp(1.0, rng.integers(-power, power + 1, 196)) for _ in range(2))
    r, c = (r if side != "columns" else r / r), (c if side != "rows" else c / c)
    A = sparse.csr_array(sparse.diags_array(r) @ L @ sparse.diags_array(c))
    y = linalg.spsolve(L.tocsc(), np.ones(196))
    x, info = mx.gmres(A, r, precision=precision, rtol=1e-12)
    assert info.converged, str(info)
    assert info.scaled
    # The condition of L is 90, and scaling to near 1 leaves entries within a factor of 8 of L's: 90·8·tol at most.
    assert np.abs(c * x - y).max() <= 1e-9 * np.abs(y).max()


@for_each("factor", [1e-250, 1e-40, 1e40, 1e250])
@for_each("precision", PRECISIONS)
def test_matrices_of_any_size_are_solved(factor: float, precision: str) -> None:
    A, b = poisson(12, 12) * factor, vector(144)
    x, info = mx.gmres(A, b, precision=precision, rtol=1e-11)
    assert info.converged, str(info)
    y = linalg.spsolve(poisson(12, 12).tocsc(), b) / factor
    assert np.abs(x - y).max() <= 1e-8 * np.abs(y).max()  # condition 70, and norms of 144 entries


@for_each("size", [1e-300, 1e-30, 1e30, 1e300])
def test_right_hand_sides_of_any_size_are_solved(size: float) -> None:
    A, b = poisson(12, 12), vector(144)
    x, info = mx.gmres(A, b * size, rtol=1e-11)
    assert info.converged, str(info)
    y = linalg.spsolve(A.tocsc(), b)
    assert np.abs(x / size - y).max() <= 1e-8 * np.abs(y).max()


# --- unsolved systems ----------------------------------------------------------------------------------------------


@for_each("precision", PRECISIONS)
def test_a_matrix_on_which_restarted_gmres_stagnates_ends_with_an_outcome(precision: str) -> None:
    """The cyclic shift: GMRES makes no step at all before the n-th (Greenbaum, Pták, Strakoš 1996)."""
    n = 30
    A = sparse.csr_array((np.ones(n), (np.arange(n), (np.arange(n) + 1) % n)), shape=(n, n))
    b = np.eye(n)[0]
    x, info = mx.gmres(A, b, precision=precision, restart=n - 1, preconditioner="none")
    assert info.outcome is Outcome.UNREACHED
    assert not info.converged
    assert info.residual == pytest.approx(1.0)
    assert np.isfinite(x).all()
    assert f"{STALL_CYCLES} cycles gained less than 0.1%" in info.message
    assert len(info.history) == info.cycles + 1
    assert info.iterations <= 2 * (STALL_CYCLES + 1) * n
    y, whole = mx.gmres(A, b, precision=precision, restart=n, preconditioner="none")
    assert whole.converged
    assert reached(A, y, b, 1e-9)


def test_an_indefinite_matrix_with_a_short_restart_ends_with_its_best_solution() -> None:
    A = sparse.csr_array(poisson(25, 25) - 2.1 * sparse.eye_array(625))
    b = vector(625)
    x, info = mx.gmres(A, b, restart=5, maxiter=1000, preconditioner="gs")
    assert info.outcome is Outcome.UNREACHED
    assert info.residual <= min(info.history) * (1 + 1e-6)  # sums in another order
    assert info.residual == pytest.approx(np.linalg.norm(b - A @ x) / np.linalg.norm(b), rel=1e-6)
    y, better = mx.gmres(A, b, restart=400, preconditioner=linalg.spilu(A.tocsc(), drop_tol=1e-4).solve)
    assert better.converged, str(better)
    assert reached(A, y, b, 1e-9)


def test_a_singular_system_without_a_solution_ends_with_a_finite_vector() -> None:
    A = poisson(20, 20)
    A = sparse.csr_array(A - sparse.diags_array(A.sum(axis=1)))
    b = 1 + vector(400)
    with pytest.warns(mx.IllConditionedWarning, match="numerically singular"):
        x, info = mx.gmres(A, b, maxiter=2000)
    assert info.outcome is Outcome.UNREACHED
    assert np.isfinite(x).all()
    least = abs(b.sum()) / np.sqrt(400) / np.linalg.norm(b)  # b's component outside of the range of A
    assert info.residual >= least * (1 - 1e-6)


@for_each("condition", [1e6, 1e12])
def test_an_ill_conditioned_system_is_solved_with_a_good_preconditioner(condition: float) -> None:
    """The preconditioner is in fp64 and vectors are in fp32: above a condition of 10^7, fp64 must be used."""
    L = poisson(16, 16)
    least = linalg.eigsh(L, k=1, sigma=0, return_eigenvectors=False)[0]
    A = sparse.csr_array(L - (least - 8 / condition) * sparse.eye_array(256))
    b = A @ vector(256)
    lu = linalg.splu(sparse.csc_array(A + 1e-6 * sparse.eye_array(256)))
    x, info = mx.gmres(A, b, preconditioner=lambda r: lu.solve(r.astype(np.float64)), rtol=1e-12)
    assert info.converged, str(info)
    assert reached(A, x, b, 1e-12)
