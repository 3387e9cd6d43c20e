"""Test that factors of an earlier matrix precondition the solves of `mx.Solver` with a later one."""

from __future__ import annotations

import pickle
import threading
import warnings
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

import mxpeak as mx
from mxpeak.errors import UsageError
from mxpeak.kernels.contract import DenseKernels
from mxpeak.library.dense import solver as dense_solver
from mxpeak.library.dense.solver import DenseSolver
from mxpeak.library.policy import max_lagged_steps
from tests.support.systems import KERNELS, TYPES, dense_kernels, enough, eta, random


@pytest.fixture(params=KERNELS)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> DenseKernels:
    """Set the kernels that `Solver` uses."""
    chosen = dense_kernels(request.param)
    monkeypatch.setattr(dense_solver, "kernels_for", lambda device, *inputs, structure: chosen)
    return chosen


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small matrices keep factors for as many steps as large ones."""
    monkeypatch.setattr(dense_solver, "max_lagged_steps", lambda n: 1000)


def matrix(n: int, dtype: Any = np.float64) -> Any:
    """Return a random matrix with a condition number below 10."""
    return (np.eye(n) + random((n, n), dtype) / (4 * np.sqrt(n))).astype(dtype)


def definite(n: int, dtype: Any = np.float64) -> Any:
    X = random((n, n), dtype)
    return (np.eye(n) + X @ np.conj(X.T) / n).astype(dtype)


def change(n: int, dtype: Any, size: float, *, symmetric: bool = False) -> Any:
    X = random((n, n), dtype, 7)
    X = X + np.conj(X.T) if symmetric else X
    return (size * X / np.linalg.norm(X, 2)).astype(dtype)


# --- dense matrices ------------------------------------------------------------------------------------------------


def test_close_matrices_are_solved_with_the_same_factors(kernels: DenseKernels) -> None:
    for dtype, assume_a in product(TYPES, ("gen", "pos", "her")):
        n = 150
        A = matrix(n, dtype) if assume_a == "gen" else definite(n, dtype)
        b = random((n, 2), dtype, 2)
        solver = mx.Solver(A, assume_a=assume_a)
        x, info = solver.solve(b)
        assert not info.lagged
        for step in range(1, 4):
            A = A + change(n, dtype, 0.01, symmetric=assume_a != "gen")
            solver.update(A)
            for form in ("N", "T", "H"):
                x, info = solver.solve(b, transposed=form)
                of = {"N": A, "T": A.T, "H": np.conj(A.T)}[form]
                assert info.solved
                assert x.dtype == dtype
                assert max(eta(of, x[:, j], b[:, j]) for j in range(2)) <= enough(n)
                if form == "N":
                    assert info.lagged, (step, info)
                    assert info.condition == pytest.approx(np.linalg.cond(A, 1), rel=0.9)
                    assert info.growth is None
                    assert "of an earlier matrix" in str(info)
                    assert info.componentwise_error <= 1.0


def test_a_different_matrix_is_factored_again(kernels: DenseKernels) -> None:
    n = 140
    for dtype in (np.float64, np.complex64):
        A, b = matrix(n, dtype), random(n, dtype)
        solver = mx.Solver(A)
        solver.solve(b)
        other = random((n, n), dtype, 9)
        solver.update(other)
        x, info = solver.solve(b)
        assert not info.lagged
        assert eta(other, x, b) <= enough(n)
        assert info.condition == pytest.approx(np.linalg.cond(other, 1), rel=2.0)


def test_a_singular_matrix_is_found_although_it_is_close(kernels: DenseKernels) -> None:
    """b is in the range of A, so that the residual does not show that x is arbitrary."""
    n = 160
    A = definite(n)
    w, V = np.linalg.eigh(A)
    solver = mx.Solver(A, assume_a="sym")
    solver.solve(np.ones(n))
    w[0] = 0.0
    singular = (V * w) @ V.T
    solver.update((singular + singular.T) / 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, info = solver.solve(singular @ random(n))
    assert not info.lagged
    assert info.ill_conditioned


def test_an_exactly_singular_matrix_raises() -> None:
    A = np.eye(70)
    solver = mx.Solver(A)
    solver.solve(np.ones(70))
    B = A.copy()
    B[3, 3] = 0.0
    solver.update(B)
    with pytest.raises(mx.SingularMatrixError, match="pivot 4 of 70"):
        solver.solve(np.ones(70))
    solver.update(A)
    assert solver.solve(np.ones(70))[1].solved
    positive = mx.Solver(A, assume_a="pos")
    positive.solve(np.ones(70))
    B[3, 3] = -1.0
    positive.update(B)
    with pytest.raises(mx.NotPositiveDefiniteError, match="order 4 of 70"):
        positive.solve(np.ones(70))


def test_many_steps_lead_to_new_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 200
    monkeypatch.setattr(dense_solver, "max_lagged_steps", lambda n: 10)
    A, b = matrix(n), random(n)
    solver = mx.Solver(A, precision="fp32")
    solver.solve(b)
    assert max_lagged_steps(1280) == 10
    lagged = 0
    solver.update(A + change(n, np.float64, 0.001))
    for _ in range(12):
        lagged += solver.solve(b)[1].lagged
    assert 0 < lagged < 12
    assert max_lagged_steps(640) == 5
    assert "earlier" not in repr(solver)


def test_badly_scaled_matrices(kernels: DenseKernels) -> None:
    n = 150
    d = np.logspace(-30, 30, n)
    A = matrix(n)
    solver = mx.Solver(d[:, None] * A * d, precision="fp32")
    assert solver.solve(d * (A @ np.ones(n)))[1].scaled
    B = A + change(n, np.float64, 0.01)
    solver.update(d[:, None] * B * d)
    for form in ("N", "T"):
        x, info = solver.solve(d * ((B if form == "N" else B.T) @ np.ones(n)), transposed=form)
        assert info.solved
        np.testing.assert_allclose(x * d, 1.0, rtol=1e-10)
    assert info.lagged


def test_imaginary_parts_of_a_diagonal_are_not_read(kernels: DenseKernels) -> None:
    n = 80
    A, b = definite(n, np.complex128), random(n, np.complex128, 3)
    for assume_a, imaginary in product(("pos", "her"), (1e20, np.nan)):
        garbage = A.copy()
        garbage.imag[np.arange(n), np.arange(n)] = imaginary
        solver = mx.Solver(garbage, assume_a=assume_a)
        solver.solve(b)
        D = change(n, np.complex128, 1e-6, symmetric=True)
        solver.update(garbage + D)
        x, info = solver.solve(b)
        assert info.lagged
        assert eta(A + D, x, b) <= enough(n)


def test_entries_that_are_not_finite(kernels: DenseKernels) -> None:
    A, b = matrix(40), np.ones(40)
    solver = mx.Solver(A)
    solver.solve(b)
    B = A.copy()
    B[2, 5] = np.nan
    for _ in range(2):
        solver.update(B)
        with pytest.raises(UsageError, match=r"A\[2, 5\] is nan"):
            solver.solve(b)
    solver.update(A)
    x, _ = solver.solve(b)
    assert eta(A, x, b) <= enough(40)
    half = np.triu(definite(40))
    half[np.tril_indices(40, -1)] = np.nan
    solver = mx.Solver(half, assume_a="pos")
    solver.solve(b)
    solver.update(half + np.diag(np.full(40, 0.01)))
    assert solver.solve(b)[1].lagged


def test_the_same_array_may_be_changed_in_place() -> None:
    A, b = matrix(100), np.ones(100)
    solver = mx.Solver(A)
    for _ in range(3):
        A += change(100, np.float64, 0.01)
        solver.update(A)
        x, _ = solver.solve(b)
        assert eta(A, x, b) <= enough(100)


def test_other_shapes_types_and_options_are_refused() -> None:
    solver = mx.Solver(np.eye(4))
    for other in (np.eye(5), np.eye(4, dtype=np.float32), np.eye(4, dtype=complex)):
        with pytest.raises(UsageError, match=r"the new A has shape .* use a new Solver"):
            solver.update(other)
    assert solver.solve(np.ones(4))[0].tolist() == [1.0] * 4
    with pytest.raises(UsageError, match="rtol is not an option of a Solver for a dense matrix; use one of assume_a"):
        mx.Solver(np.eye(4), rtol=1e-3)
    with pytest.raises(UsageError, match="unknown precision"):
        mx.Solver(np.eye(4), precision="fp65")
    with pytest.raises(UsageError, match="square"):
        mx.Solver(np.ones((3, 4)))
    with pytest.raises(UsageError, match="transposed"):
        solver.solve(np.ones(4), transposed="X")


def test_a_solver_is_a_context_manager_picklable_and_printable() -> None:
    n = 90
    A, b = matrix(n), random(n)
    with mx.Solver(A) as solver:
        assert repr(solver) == f"Solver({n}x{n}, not factored)"
        solver.solve(b)
        assert repr(solver) == f"Solver({n}x{n}, factors in fp64)"
        solver.update(A + change(n, np.float64, 0.01))
        assert repr(solver) == f"Solver({n}x{n}, factors in fp64 of an earlier matrix)"
        twin = pickle.loads(pickle.dumps(solver))
        x, info = twin.solve(b)
        assert info.lagged
        assert np.array_equal(x, solver.solve(b)[0])
    assert repr(solver) == f"Solver({n}x{n}, not factored)"
    assert solver.solve(b)[1].solved


def test_threads_share_a_solver() -> None:
    n = 120
    matrices = [matrix(n) + change(n, np.float64, 0.01 * i) for i in range(4)]
    solver, b, errors = mx.Solver(matrices[0]), random(n), []

    def work(i: int) -> None:
        for _ in range(5):
            solver.update(matrices[i])
            x, info = solver.solve(b)
            if not info.solved or min(eta(M, x, b) for M in matrices) > enough(n):
                errors.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_tensors_empty_matrices_and_auto() -> None:
    A = torch.tensor(definite(60))
    solver = mx.Solver(A, assume_a="auto")
    x, info = solver.solve(torch.ones(60, dtype=torch.float64))
    assert isinstance(x, torch.Tensor)
    assert info.factorization == "Cholesky"
    solver.update(A + 0.01 * torch.eye(60, dtype=torch.float64))
    x, info = solver.solve(torch.ones(60, dtype=torch.float64))
    assert info.lagged
    for assume_a in ("gen", "pos", "sym"):
        empty = mx.Solver(np.empty((0, 0)), assume_a=assume_a)
        empty.update(np.empty((0, 0)))
        assert empty.solve(np.empty((0, 2)))[0].shape == (0, 2)


def test_the_warning_points_at_the_caller() -> None:
    from tests.support.systems import hilbert

    solver = mx.Solver(hilbert(14))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        solver.solve(np.ones(14))
    assert [one.filename for one in seen] == [__file__]


def test_a_newton_method_converges_to_the_solution() -> None:
    """x + x³/3 coupled by A: the Jacobian changes with x, and factors are computed less often than it changes."""
    n = 200
    A, c, x, solver = definite(n), random(n), np.zeros(n), None
    lagged = 0
    for _ in range(30):
        r, J = A @ x + x**3 / 3 - c, A + np.diag(x**2)
        if np.abs(r).max() < 1e-12:
            break
        if solver is None:
            solver = mx.Solver(J, assume_a="pos")
        else:
            solver.update(J)
        step, info = solver.solve(r)
        lagged += info.lagged
        x = x - step
    assert np.abs(A @ x + x**3 / 3 - c).max() < 1e-12
    assert lagged >= 2


# --- sparse matrices -----------------------------------------------------------------------------------------------


def convection(n: int, speed: float, dtype: Any = np.float64) -> Any:
    """Return a convection-diffusion matrix in two dimensions, of order n²."""
    D = sparse.diags_array([-1.0 - speed, 2.0, -1.0 + speed], offsets=[-1, 0, 1], shape=(n, n))
    I = sparse.eye_array(n)
    return sparse.csr_array(sparse.kron(D, I) + sparse.kron(I, D) + 0.1 * sparse.eye_array(n * n)).astype(dtype)


def relative_residual(A: Any, x: Any, b: Any) -> float:
    return float(np.linalg.norm(b - A @ x) / np.linalg.norm(b))


@pytest.mark.parametrize("preconditioner", ["auto", "lu", "amg", "gs", "sgs", "jacobi", "none"])
def test_the_preconditioner_of_a_sparse_matrix_is_kept(preconditioner: str) -> None:
    n = 20
    solver = mx.Solver(convection(n, 0.1), preconditioner=preconditioner)
    b = random(n * n)
    for step in range(4):
        A = convection(n, 0.1 + 0.01 * step)
        if step:
            solver.update(A)
        x, info = solver.solve(b)
        assert info.converged
        earlier = step > 0 and info.preconditioner in ("lu", "amg")  # sweeps use the current matrix
        assert info.lagged == earlier
        assert relative_residual(A, x, b) <= 2e-9
        assert ("of an earlier matrix" in str(info)) == earlier
        assert ("of an earlier matrix" in repr(solver)) == earlier
    X, info = solver.solve(random((n * n, 3)))
    assert info.converged
    assert X.shape == (n * n, 3)


def test_a_sparse_preconditioner_is_computed_again_if_iterations_grow() -> None:
    n = 20
    A, b = convection(n, 0.1), random(n * n)
    solver = mx.Solver(A, preconditioner="lu")
    first = solver.solve(b)[1].iterations
    other = convection(n, 0.9) + sparse.diags_array(np.linspace(0.0, 30.0, n * n))
    solver.update(other)
    x, info = solver.solve(b)
    assert info.lagged
    assert info.iterations > 2 * first
    assert relative_residual(other, x, b) <= 2e-9
    solver.update(other)
    x, info = solver.solve(b)
    assert not info.lagged
    assert info.iterations <= first + 1


def test_a_sparse_solver_that_fails_is_set_up_again() -> None:
    n = 16
    A, b = convection(n, 0.1), random(n * n)
    solver = mx.Solver(A, preconditioner="lu", maxiter=6)
    solver.solve(b)
    other = convection(n, 0.9) + sparse.diags_array(np.linspace(0.0, 300.0, n * n))
    solver.update(other)
    x, info = solver.solve(b)
    assert info.converged
    assert not info.lagged
    assert relative_residual(other, x, b) <= 2e-9


def test_sparse_matrices_of_other_kinds() -> None:
    n = 12
    for A in (convection(n, 0.1, np.complex128) + 0.1j * sparse.eye_array(n * n), convection(n, 0.1, np.float32)):
        solver = mx.Solver(A, preconditioner="lu")
        for scale in (1.0, 1.001):
            b = np.ones(n * n)
            solver.update(A * scale)
            x, info = solver.solve(b)
            assert info.converged
            assert relative_residual(A * scale, x, b) <= 1e-8
    permuted = convection(n, 0.1)[np.roll(np.arange(n * n), 7)]  # zeros on the diagonal
    solver = mx.Solver(permuted)
    for scale in (1.0, 1.01):
        solver.update(permuted * scale)
        x, info = solver.solve(np.ones(n * n))
        assert info.converged
        assert relative_residual(permuted * scale, x, np.ones(n * n)) <= 2e-9
    scaled = sparse.diags_array(np.logspace(-8, 8, n * n)) @ convection(n, 0.1)
    solver = mx.Solver(scaled, preconditioner="lu")
    for factor in (1.0, 1.01):
        solver.update(scaled * factor)
        b = scaled @ np.ones(n * n)
        x, info = solver.solve(b)
        assert info.converged
        assert info.scaled


def test_a_sparse_solver_is_picklable_and_refuses_bad_arguments() -> None:
    A = convection(8, 0.1)
    with mx.Solver(A, rtol=1e-6) as solver:
        assert repr(solver) == "Solver(64x64, no preconditioner)"
        _, info = solver.solve(np.ones(64))
        solver.update(A)
        assert "of an earlier matrix" in repr(solver)
        twin = pickle.loads(pickle.dumps(solver))
        assert relative_residual(A, twin.solve(np.ones(64))[0], np.ones(64)) <= 2e-6
    assert info.tol == 1e-6
    with pytest.raises(UsageError, match="assume_a is not an option of a Solver for a sparse matrix; use one of rtol"):
        mx.Solver(A, assume_a="pos")
    with pytest.raises(UsageError, match="the new A has shape"):
        solver.update(convection(9, 0.1))
    with pytest.raises(UsageError, match=r"use a Solver for A\.T"):
        solver.solve(np.ones(64), transposed="T")
    with pytest.raises(UsageError, match="rows"):
        solver.solve(np.ones(63))
    with pytest.raises(UsageError, match="unknown precision"):
        mx.Solver(A, precision="fp63")
    broken = A.copy()
    broken.data[3] = np.nan
    with pytest.raises(UsageError, match="not finite"):
        solver.update(broken)
    assert solver.solve(np.ones(64))[1].converged


def test_the_solver_class_of_dense_matrices_reports_its_shape() -> None:
    assert DenseSolver(np.eye(3)).shape == (3, 3)
