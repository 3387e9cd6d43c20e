"""Compare gradients of `lstsq` and of `Solver.solve` with differences."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import mxpeak as mx
from mxpeak.library.dense import solver as dense_solver
from tests.support.systems import random

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
gradcheck, gradgradcheck = torch.autograd.gradcheck, torch.autograd.gradgradcheck
PROBLEMS = [((7, 3), (7,)), ((7, 3), (7, 2)), ((3, 7), (3,)), ((3, 7), (3, 2)), ((4, 4), (4,))]


def tensors(*shapes: Any, dtype: Any = np.float64) -> list[Any]:
    return [torch.from_numpy(random(shape, dtype, seed)).requires_grad_() for seed, shape in enumerate(shapes, 1)]


def definite(n: int, dtype: Any = np.float64, seed: int = 1) -> Any:
    X = random((n, n), dtype, seed)
    return X @ X.conj().T + 2 * np.eye(n)


@pytest.fixture
def jax() -> Any:
    """Use JAX on the CPU, in its 64-bit mode."""
    jax = pytest.importorskip("jax")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield jax
    jax.config.update("jax_enable_x64", before)


# --- least squares ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize(("of_A", "of_b"), PROBLEMS)
def test_torch_of_least_squares(of_A: Any, of_b: Any, dtype: Any) -> None:
    A, b = tensors(of_A, of_b, dtype=dtype)
    assert gradcheck(lambda A, b: mx.lstsq(A, b)[0], (A, b))
    x, info = mx.lstsq(A, b)
    expected, of_constants = mx.lstsq(A.detach(), b.detach())
    assert torch.allclose(x, expected, rtol=1e-10)
    assert info.solved
    assert info.residual.shape == of_b
    assert torch.allclose(info.residual, of_constants.residual)


@pytest.mark.parametrize(("of_A", "of_b"), PROBLEMS)
def test_torch_of_second_order(of_A: Any, of_b: Any) -> None:
    A, b = tensors(of_A, of_b)
    assert gradgradcheck(lambda A, b: mx.lstsq(A, b)[0], (A, b))


def test_gradients_of_lstsq_are_those_of_torch() -> None:
    (A, b), (C, d) = tensors((40, 9), (40, 2)), tensors((40, 9), (40, 2))
    (mx.lstsq(A, b)[0] ** 2).sum().backward()
    (torch.linalg.lstsq(C, d).solution ** 2).sum().backward()
    assert torch.allclose(A.grad, C.grad, rtol=1e-9)
    assert torch.allclose(b.grad, d.grad, rtol=1e-9)


def test_lstsq_of_one_differentiated_operand_and_of_fp32() -> None:
    A, b = tensors((6, 3), (6,))
    mx.lstsq(A.detach(), b)[0].sum().backward()
    assert torch.allclose(b.grad, torch.linalg.pinv(A.detach()).T @ torch.ones(3, dtype=torch.float64))
    assert gradcheck(lambda A: mx.lstsq(A, b.detach().numpy())[0], A)
    A32 = A.detach().float().requires_grad_()
    x, _ = mx.lstsq(A32, torch.ones(6))
    x.sum().backward()
    assert (x.dtype, A32.grad.dtype) == (torch.float32, torch.float32)


def test_a_gradient_for_a_matrix_without_full_rank_issues_a_warning() -> None:
    A, b = tensors((6, 3), (6,))
    M = A.detach().clone()
    M[:, 1] = M[:, 0]
    mx.lstsq(M, b)[0].sum().backward()  # x is linear in b
    assert torch.allclose(b.grad, torch.linalg.pinv(M).T @ torch.ones(3, dtype=torch.float64))
    x, info = mx.lstsq(M.requires_grad_(), b)
    assert info.rank == 2
    with pytest.warns(mx.NotSolvedWarning, match="A has rank 2, less than 3, so x has no derivative"):
        x.sum().backward()


def test_errors_of_differentiated_problems() -> None:
    A, b = tensors((6, 3), (6,))
    with pytest.raises(mx.UsageError, match="A is 6x3, but b has shape"):
        mx.lstsq(A, b[:5])
    with pytest.raises(mx.UsageError, match="lstsq needs a matrix"):
        mx.lstsq(A[0], b)
    with pytest.raises(mx.UsageError, match="precision"):
        mx.lstsq(A, b, precision="bf16")


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize(("of_A", "of_b"), PROBLEMS)
def test_jax_of_least_squares(jax: Any, of_A: Any, of_b: Any, dtype: Any) -> None:
    from jax.test_util import check_grads

    A, b = (jax.numpy.asarray(random(shape, dtype, seed)) for seed, shape in enumerate((of_A, of_b), 1))
    lstsq = lambda A, b: mx.lstsq(A, b)[0]  # noqa: E731
    order = 2 if of_b == (7,) and dtype is np.float64 else 1
    check_grads(lstsq, (A, b), order=order, modes=["rev"], rtol=1e-4, atol=1e-4)
    if order == 1:
        return
    assert np.allclose(jax.jit(lstsq)(A, b), lstsq(A, b))
    assert np.allclose(
        jax.jit(jax.grad(lambda A: abs(lstsq(A, b)).sum()))(A), jax.grad(lambda A: abs(lstsq(A, b)).sum())(A)
    )


def test_jax_maps_over_problems(jax: Any) -> None:
    A, b = random((5, 7, 3)), random((5, 7), seed=2)
    lstsq = lambda A, b: mx.lstsq(A, b)[0]  # noqa: E731
    expected = np.stack([np.linalg.lstsq(M, c)[0] for M, c in zip(A, b)])
    assert np.allclose(jax.vmap(lstsq)(A, b), expected)
    assert np.allclose(jax.vmap(lstsq, (None, 0))(A[0], b), np.linalg.lstsq(A[0], b.T)[0].T)
    assert np.allclose(jax.vmap(lstsq, (0, None))(A, b[0]), [np.linalg.lstsq(M, b[0])[0] for M in A])


# --- Solver, dense ------------------------------------------------------------------------------------------------

STRUCTURES = [("gen", np.float64), ("gen", np.complex128), ("pos", np.float64), ("her", np.complex128)]


@pytest.mark.parametrize("form", ["N", "T", "H"])
@pytest.mark.parametrize(("assume_a", "dtype"), STRUCTURES)
def test_torch_of_a_solver(assume_a: str, dtype: Any, form: str) -> None:
    A = torch.from_numpy(definite(5, dtype)).requires_grad_()
    for b in tensors((5,), (5, 2), dtype=dtype):

        def x_of(A: Any, b: Any) -> Any:
            with mx.Solver(A, assume_a=assume_a) as solver:
                return solver.solve(b, transposed=form)[0]

        assert gradcheck(x_of, (A, b))
        x, info = mx.Solver(A, assume_a=assume_a).solve(b, transposed=form)
        assert torch.allclose(x, mx.solve(A.detach(), b.detach(), assume_a=assume_a, transposed=form)[0], rtol=1e-9)
        assert info.solved


def test_second_order_and_one_operand() -> None:
    A, b = torch.from_numpy(definite(4)).requires_grad_(), tensors((4,))[0]
    assert gradgradcheck(lambda A, b: mx.Solver(A).solve(b)[0], (A, b))
    solver = mx.Solver(A.detach().numpy())
    assert gradcheck(lambda b: solver.solve(b)[0], b)
    assert gradcheck(lambda A: mx.Solver(A).solve(b.detach().numpy())[0], A)
    with torch.no_grad():
        x, _ = mx.Solver(A).solve(b)
    assert not x.requires_grad


def steps(p: Any) -> Any:
    """Return the sum of the solutions of a sequence of systems with one solver."""
    n = 6
    A, b = torch.from_numpy(definite(n)), torch.ones(n, dtype=torch.float64)
    solver, total = mx.Solver(A + torch.diag(p)), 0.0
    for _ in range(3):
        x, _ = solver.solve(b)
        total = total + (x**2).sum()
        b = b + x
        p = p * 1.01
        solver.update(A + torch.diag(p))
    return total


def test_gradients_of_a_sequence_use_the_matrix_of_each_solve() -> None:
    assert gradcheck(steps, tensors((6,)))


def test_the_backward_pass_reuses_the_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    factored = []
    factor = dense_solver.factor_by_structure
    monkeypatch.setattr(
        dense_solver, "factor_by_structure", lambda *arguments: factored.append(1) or factor(*arguments)
    )
    A, b = tensors((60, 60), (60,))
    solver = mx.Solver(A)
    for _ in range(2):
        x, info = solver.solve(b)
        (x**2).sum().backward()
        assert not info.lagged
    assert len(factored) == 1
    y = torch.linalg.solve(A.detach().T, 2 * x.detach())
    assert torch.allclose(b.grad, 2 * y)
    assert torch.allclose(A.grad, -2 * torch.outer(y, x.detach()))
    x, info = solver.solve(b.detach().numpy())
    assert len(factored) == 1
    assert not info.lagged


def test_after_an_update_the_earlier_matrix_is_solved_again() -> None:
    A, b = torch.from_numpy(definite(90)).requires_grad_(), tensors((90,))[0]
    solver = mx.Solver(A)
    x, _ = solver.solve(b)
    other = A.detach() * 1.001 + 0.01 * torch.eye(90, dtype=torch.float64)
    solver.update(other)
    y, info = solver.solve(b.detach())
    x.sum().backward()
    exact = torch.linalg.solve(A.detach().T, torch.ones(90, dtype=torch.float64))
    assert torch.allclose(b.grad, exact, rtol=1e-10)
    z, info = solver.solve(b.detach())
    assert info.solved
    assert torch.allclose(z, y, rtol=1e-10)  # the solver stores the matrix of the update again


def test_mixed_types_of_a_solver() -> None:
    A, b = torch.from_numpy(definite(5)).float().requires_grad_(), tensors((5,))[0]
    x, info = mx.Solver(A).solve(b)
    x.sum().backward()
    assert info.solved
    assert A.grad.dtype == torch.float32
    z = torch.ones(5, dtype=torch.complex128, requires_grad=True)
    x, _ = mx.Solver(A.detach().double()).solve(z)
    x.abs().sum().backward()
    assert z.grad.dtype == torch.complex128
    assert torch.allclose(x.detach().real, torch.linalg.solve(A.detach().double(), torch.ones(5).double()))


def test_factors_refuse_gradients_and_name_the_solver(jax: Any) -> None:
    A = torch.from_numpy(definite(3)).requires_grad_()
    for factor in (mx.lu_factor, mx.cho_factor):
        with pytest.raises(mx.UsageError, match=r"use mxpeak\.Solver\(A\), which keeps factors and has gradients"):
            factor(A)
        assert factor(A.detach()).solve(torch.ones(3))[1].solved
        with pytest.raises(mx.UsageError, match=r"use mxpeak\.Solver\(A\)"):
            jax.jit(lambda A, factor=factor: factor(A).solve(np.ones(3))[0])(jax.numpy.eye(3))


FORMS = [("gen", np.float64, "N"), ("gen", np.complex128, "T"), ("gen", np.complex128, "H"), ("pos", np.float64, "T")]


@pytest.mark.parametrize(("assume_a", "dtype", "form"), [*FORMS, ("her", np.complex128, "T")])
def test_jax_of_a_solver(jax: Any, assume_a: str, dtype: Any, form: str) -> None:
    from jax.test_util import check_grads

    A, b = jax.numpy.asarray(definite(5, dtype)), jax.numpy.asarray(random((5, 2), dtype, 3))
    solve = lambda A, b: mx.Solver(A, assume_a=assume_a).solve(b, transposed=form)[0]  # noqa: E731
    check_grads(solve, (A, b), order=2 if form == "N" else 1, modes=["rev"], rtol=1e-4, atol=1e-4)
    expected = mx.solve(A, b, assume_a=assume_a, transposed=form)[0]
    for x in (solve(A, b), jax.jit(solve)(A, b), jax.vmap(solve)(A[None], b[None])[0]):
        assert np.allclose(x, expected, rtol=1e-9)


def test_jax_updates_a_solver(jax: Any) -> None:
    A, b = jax.numpy.asarray(definite(6)), jax.numpy.ones(6)

    def total(p: Any) -> Any:
        solver = mx.Solver(A + jax.numpy.diag(p))
        x, _ = solver.solve(b)
        solver.update(A + jax.numpy.diag(1.1 * p))
        y, _ = solver.solve(b + x)
        return (x * y).sum()

    def by_jax(p: Any) -> Any:
        x = jax.numpy.linalg.solve(A + jax.numpy.diag(p), b)
        return (x * jax.numpy.linalg.solve(A + jax.numpy.diag(1.1 * p), b + x)).sum()

    p = jax.numpy.arange(1.0, 7.0)
    expected = jax.grad(by_jax)(p)
    assert np.allclose(jax.grad(total)(p), expected)
    compiled = jax.jit(jax.grad(total))
    for _ in range(2):
        assert np.allclose(compiled(p), expected)
    assert np.allclose(compiled(2 * p), jax.grad(by_jax)(2 * p))


def test_a_solver_outside_of_jax_maps_over_right_hand_sides(jax: Any) -> None:
    A, B = definite(6), random((4, 6))
    solver = mx.Solver(A)
    assert np.allclose(jax.vmap(lambda b: solver.solve(b)[0])(B), np.linalg.solve(A, B.T).T)
    assert solver.solve(B[0])[1].solved


# --- Solver, sparse -----------------------------------------------------------------------------------------------


def laplace(n: int) -> Any:
    A = scipy.sparse.diags_array([-1.0, 4.0, -1.5], offsets=[-1, 0, 1], shape=(n, n), format="csr")
    A.data *= np.random.default_rng(7).uniform(0.9, 1.1, A.nnz)
    return A


def test_torch_of_a_sparse_solver() -> None:
    dense = torch.from_numpy(laplace(10).toarray())
    at = dense.nonzero(as_tuple=True)
    b = tensors((10,))[0]

    def x_of(values: Any, b: Any) -> Any:
        A = torch.sparse_coo_tensor(torch.stack(at), values, (10, 10), check_invariants=False).coalesce()
        return mx.Solver(A, rtol=1e-13).solve(b)[0]

    assert gradcheck(x_of, (dense[at].clone().requires_grad_(), b))
    solver = mx.Solver(laplace(10), rtol=1e-13)
    assert gradcheck(lambda b: solver.solve(b)[0], b)
    x, info = solver.solve(b)
    assert info.converged
    assert torch.allclose(x, torch.linalg.solve(dense, b))


def test_a_sparse_sequence() -> None:
    A = laplace(12)
    dense, b = torch.from_numpy(A.toarray()), torch.ones(12, dtype=torch.float64)
    at = dense.nonzero(as_tuple=True)

    def total(p: Any) -> Any:
        def matrix(factor: float) -> Any:
            entries = dense[at] + factor * p
            return torch.sparse_coo_tensor(torch.stack(at), entries, (12, 12), check_invariants=False).coalesce()

        solver = mx.Solver(matrix(1.0), rtol=1e-13)
        x, _ = solver.solve(b)
        solver.update(matrix(1.1))
        y, info = solver.solve(b + x)
        assert info.lagged
        return (x * y).sum()

    assert gradcheck(total, torch.full((len(at[0]),), 0.01, dtype=torch.float64, requires_grad=True))


def test_jax_of_a_sparse_solver(jax: Any) -> None:
    from jax.experimental import sparse

    A = laplace(10)
    solver = mx.Solver(sparse.BCOO.fromdense(jax.numpy.asarray(A.toarray())), rtol=1e-13)
    gradient = jax.grad(lambda b: solver.solve(b)[0].sum())(jax.numpy.ones(10))
    assert np.allclose(gradient, np.linalg.solve(A.toarray().T, np.ones(10)))
    with pytest.raises(mx.UsageError, match="Solver needs numbers"):
        jax.jit(lambda data: mx.Solver(sparse.BCOO((data, np.zeros((1, 2), int)), shape=(1, 1))).solve(np.ones(1))[0])(
            np.ones(1)
        )


def test_no_other_warnings() -> None:
    A, b = tensors((50, 50), (50,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mx.Solver(A).solve(b)[0].sum().backward()
        mx.lstsq(A, b)[0].sum().backward()
