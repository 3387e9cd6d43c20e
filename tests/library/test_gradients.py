"""Compare gradients of solutions with differences by torch.autograd.gradcheck and jax.test_util.check_grads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse

import mxpeak as mx
from mxpeak.library.dense.factors import LUFactors

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
RNG = np.random.default_rng(7)


def numbers(*shape: int, dtype: str = "float64") -> np.ndarray:
    values = RNG.standard_normal(shape)
    return (values + 1j * RNG.standard_normal(shape) if dtype.startswith("complex") else values).astype(dtype)


#: Shapes of A and b.
SHAPES = [((5, 5), (5,)), ((5, 5), (5, 3)), ((3, 4, 4), (3, 4, 2)), ((3, 4, 4), (4,)), ((2, 1, 4, 4), (3, 4, 1))]


@pytest.mark.parametrize("form", ["N", "T", "H"])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize(("of_A", "of_b"), SHAPES)
def test_torch_of_dense_systems(of_A: tuple[int, ...], of_b: tuple[int, ...], dtype: str, form: str) -> None:
    torch = pytest.importorskip("torch")
    A, b = (torch.from_numpy(numbers(*shape, dtype=dtype)).requires_grad_() for shape in (of_A, of_b))
    assert torch.autograd.gradcheck(lambda A, b: mx.solve(A, b, transposed=form)[0], (A, b))
    x, info = mx.solve(A, b, transposed=form)
    expected, _ = mx.solve(A.detach(), b.detach(), transposed=form)
    assert torch.allclose(x, expected, rtol=1e-10)
    assert info.solved


#: Structures of symmetric matrices, and the triangle that is read.
STRUCTURES = [
    ("pos", False, "float64"),
    ("pos", True, "complex128"),
    ("sym", True, "complex128"),
    ("her", False, "complex128"),
]


def triangle(structure: str, lower: bool, dtype: str) -> np.ndarray:
    """Return a matrix of order 5 with this structure in one triangle, and other numbers in the other one."""
    A = numbers(5, 5, dtype=dtype)
    A = A @ A.conj().T + 2 * np.eye(5) if structure == "pos" else A + 4 * np.eye(5)
    return np.tril(A) + 9 * np.triu(A, 1) if lower else np.triu(A) + 9 * np.tril(A, -1)


@pytest.mark.parametrize(("structure", "lower", "dtype"), STRUCTURES)
def test_torch_of_symmetric_systems(structure: str, lower: bool, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    A = torch.from_numpy(triangle(structure, lower, dtype)).requires_grad_()
    b = torch.from_numpy(numbers(5, 2, dtype=dtype)).requires_grad_()

    def x_of(A: Any, b: Any, form: str = "N") -> Any:
        return mx.solve(A, b, assume_a=structure, lower=lower, transposed=form)[0]

    for form in ("N", "T"):
        assert torch.autograd.gradcheck(lambda A, b, form=form: x_of(A, b, form), (A, b))
        assert torch.allclose(x_of(A, b, form), x_of(A.detach(), b.detach(), form), rtol=1e-9)
    x_of(A, b).abs().sum().backward()
    assert A.grad is not None
    assert not (torch.triu(A.grad, 1) if lower else torch.tril(A.grad, -1)).any()


@pytest.mark.parametrize(("structure", "lower", "dtype"), STRUCTURES)
def test_jax_of_symmetric_systems(jax: Any, structure: str, lower: bool, dtype: str) -> None:
    from jax.test_util import check_grads

    A, b = (jax.numpy.asarray(values) for values in (triangle(structure, lower, dtype), numbers(5, dtype=dtype)))
    solve = lambda A, b: mx.solve(A, b, assume_a=structure, lower=lower)[0]  # noqa: E731
    check_grads(solve, (A, b), order=1, modes=["rev"], rtol=1e-4, atol=1e-4)
    assert np.allclose(jax.jit(solve)(A, b), solve(A, b))


def test_torch_of_mixed_types_and_of_one_operand() -> None:
    torch = pytest.importorskip("torch")
    A, b = torch.from_numpy(numbers(4, 4)).requires_grad_(), torch.from_numpy(numbers(4, dtype="complex128"))
    assert torch.autograd.gradcheck(lambda A: mx.solve(A, b)[0], A)
    assert torch.autograd.gradcheck(lambda b: mx.solve(A.detach().numpy(), b)[0], b.requires_grad_())
    A32 = A.detach().float().requires_grad_()
    x, _ = mx.solve(A32, torch.ones(4))
    assert x.dtype == torch.float32
    x.sum().backward()
    assert A32.grad is not None
    assert A32.grad.dtype == torch.float32
    half = torch.eye(4, dtype=torch.bfloat16, requires_grad=True)
    mx.solve(half, torch.ones(4))[0].sum().backward()
    assert half.grad is not None
    assert torch.equal(half.grad, -torch.ones(4, 4, dtype=torch.bfloat16))


def test_torch_of_second_order() -> None:
    torch = pytest.importorskip("torch")
    A, b = torch.from_numpy(numbers(3, 3)).requires_grad_(), torch.from_numpy(numbers(3)).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda A, b: mx.solve(A, b)[0], (A, b))


def test_the_backward_pass_reuses_the_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    forms = []
    solve = LUFactors.solve
    monkeypatch.setattr(
        LUFactors,
        "solve",
        lambda F, b, transposed=False: forms.append((id(F), transposed)) or solve(F, b, transposed=transposed),
    )
    A, b = torch.from_numpy(numbers(50, 50)).requires_grad_(), torch.from_numpy(numbers(50)).requires_grad_()
    x, _ = mx.solve(A, b)
    x.square().sum().backward()
    assert [form for _, form in forms] == ["N", "H"]
    assert len({factors for factors, _ in forms}) == 1
    y = torch.linalg.solve(A.detach().T, 2 * x.detach())
    assert torch.allclose(b.grad, y)
    assert torch.allclose(A.grad, -torch.outer(y, x.detach()))


def laplace(n: int) -> Any:
    A = scipy.sparse.diags_array([-1.0, 4.0, -1.5], offsets=[-1, 0, 1], shape=(n, n), format="csr")
    A.data *= RNG.uniform(0.9, 1.1, A.nnz)
    return A


#: torch converts complex tensors to other layouts without a gradient.
SPARSE = [
    ("csr", 0, "float64"),
    ("csr", 2, "float64"),
    ("csc", 0, "float64"),
    ("coo", 2, "float64"),
    ("coo", 0, "complex128"),
]


@pytest.mark.parametrize(("layout", "k", "dtype"), SPARSE)
def test_torch_of_sparse_systems(layout: str, k: int, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    A = laplace(12) * (1.0 if dtype == "float64" else 1.0 + 0.3j)
    dense = torch.from_numpy(A.toarray())
    b = torch.from_numpy(numbers(12, k, dtype=dtype) if k else numbers(12, dtype=dtype)).requires_grad_()
    at = dense.nonzero(as_tuple=True)

    def x_of(values: Any, b: Any) -> Any:
        M = torch.sparse_coo_tensor(torch.stack(at), values, (12, 12), check_invariants=False)
        M = M.coalesce() if layout == "coo" else M.to_sparse_csr() if layout == "csr" else M.to_sparse_csc()
        return mx.gmres(M, b, rtol=1e-13)[0]

    assert torch.autograd.gradcheck(x_of, (dense[at].clone().requires_grad_(), b), fast_mode=False)
    assert torch.autograd.gradcheck(lambda b: mx.gmres(laplace_of(dense), b, rtol=1e-13)[0], b)


def laplace_of(dense: Any) -> Any:
    return scipy.sparse.csr_array(dense.numpy())


def test_a_sparse_tensor_receives_a_sparse_gradient() -> None:
    torch = pytest.importorskip("torch")
    A = torch.from_numpy(laplace(9).toarray()).to_sparse_csr().requires_grad_()
    b = torch.ones(9, dtype=torch.float64, requires_grad=True)
    x, info = mx.gmres(A, b, rtol=1e-13)
    assert info.converged
    x.square().sum().backward()
    y = torch.linalg.solve(A.detach().to_dense().T, 2 * x.detach())
    expected = -torch.outer(y, x.detach()) * (A.detach().to_dense() != 0)
    assert A.grad is not None
    assert torch.allclose(A.grad.to_dense(), expected)


def test_a_gradient_that_does_not_converge_issues_a_warning() -> None:
    torch = pytest.importorskip("torch")
    b = torch.from_numpy(numbers(400)).requires_grad_()
    A = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(400, 400), format="csr")
    x, info = mx.gmres(A, b, maxiter=2, preconditioner="none")
    assert not info.converged
    with pytest.warns(mx.NotSolvedWarning, match="a gradient of gmres is inaccurate"):
        x.sum().backward()


@pytest.fixture
def jax() -> Any:
    """Use JAX on the CPU, in its 64-bit mode."""
    jax = pytest.importorskip("jax")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield jax
    jax.config.update("jax_enable_x64", before)


@pytest.mark.parametrize("form", ["N", "T", "H"])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize(("of_A", "of_b"), SHAPES)
def test_jax_of_dense_systems(jax: Any, of_A: tuple[int, ...], of_b: tuple[int, ...], dtype: str, form: str) -> None:
    from jax.test_util import check_grads

    A, b = numbers(*of_A, dtype=dtype), numbers(*of_b, dtype=dtype)
    A = A + 3 * np.eye(of_A[-1])  # differences of a better conditioned system are more accurate
    A, b = jax.numpy.asarray(A), jax.numpy.asarray(b)
    check_grads(lambda A, b: mx.solve(A, b, transposed=form)[0], (A, b), order=2, modes=["rev"], rtol=1e-4, atol=1e-4)
    x = jax.jit(lambda A, b: mx.solve(A, b, transposed=form)[0])(A, b)
    assert np.allclose(x, mx.solve(A, b, transposed=form)[0], rtol=1e-9)


def test_jax_knows_the_diagnostics_unless_it_computes_later(jax: Any) -> None:
    A, b = jax.numpy.asarray(numbers(6, 6)), jax.numpy.ones(6)
    seen = []

    def loss(A: Any) -> Any:
        x, info = mx.solve(A, b)
        seen.append(info)
        return x.sum()

    jax.grad(loss)(A)
    assert seen[0].solved
    jax.jit(loss)(A)
    assert seen[1] is None


def test_jax_maps_over_matrices_and_right_hand_sides(jax: Any) -> None:
    A, B = numbers(7, 5, 5), numbers(7, 5)
    solve = lambda A, b: mx.solve(A, b)[0]  # noqa: E731
    expected = np.linalg.solve(A, B[..., None])[..., 0]
    assert np.allclose(jax.vmap(solve)(A, B), expected)
    assert np.allclose(jax.jit(jax.vmap(solve, (None, 0)))(A[0], B), np.linalg.solve(A[0], B.T).T)
    assert np.allclose(jax.vmap(solve, (0, None))(A, B[0]), np.linalg.solve(A, B[0][:, None])[..., 0])
    J = jax.jacrev(solve, argnums=1)(jax.numpy.asarray(A[0]), jax.numpy.asarray(B[0]))
    assert np.allclose(J, np.linalg.inv(A[0]))
    nested = jax.vmap(jax.vmap(solve, (None, 0)), (0, None))(A, B)
    assert np.allclose(nested, np.linalg.solve(A[:, None], B[None, ..., None])[..., 0])


def test_jax_reuses_the_factors(jax: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    forms = []
    solve = LUFactors.solve
    monkeypatch.setattr(
        LUFactors,
        "solve",
        lambda F, b, transposed=False: forms.append((id(F), transposed)) or solve(F, b, transposed=transposed),
    )
    A, b = jax.numpy.asarray(numbers(50, 50)), jax.numpy.asarray(numbers(50))
    of_A, of_b = jax.grad(lambda A, b: (mx.solve(A, b)[0] ** 2).sum(), argnums=(0, 1))(A, b)
    assert [form for _, form in forms] == ["N", "H"]
    assert len({factors for factors, _ in forms}) == 1
    x = np.linalg.solve(A, b)
    assert np.allclose(of_b, np.linalg.solve(A.T, 2 * x))
    assert np.allclose(of_A, -np.outer(of_b, x))


def test_jax_raises_the_errors_of_solve(jax: Any) -> None:
    with pytest.raises(mx.UsageError, match="b has shape"):
        jax.jit(lambda A, b: mx.solve(A, b)[0])(jax.numpy.eye(3), jax.numpy.ones(4))
    with pytest.raises(mx.SingularMatrixError):
        jax.grad(lambda A: mx.solve(A, jax.numpy.ones(3))[0].sum())(jax.numpy.zeros((3, 3)))


def test_jax_of_padded_bcsr_matrices_in_jit(jax: Any) -> None:
    from jax.experimental import sparse

    dense = jax.numpy.asarray(laplace(10).toarray())
    M, b = sparse.BCSR.fromdense(dense, nse=40), jax.numpy.asarray(numbers(10))
    assert M.data.size == 40 > np.count_nonzero(dense)

    def total(data: Any) -> Any:
        return mx.gmres(sparse.BCSR((data, M.indices, M.indptr), shape=M.shape), b, rtol=1e-13)[0].sum()

    y, x = np.linalg.solve(dense.T, np.ones(10)), np.linalg.solve(dense, b)
    rows, columns = np.nonzero(dense)
    expected = np.concatenate([-y[rows] * x[columns], np.zeros(40 - len(rows))])
    assert np.allclose(jax.jit(jax.grad(total))(M.data), expected)
    assert np.allclose(mx.gmres(M, b, rtol=1e-13)[0], x)


def test_jax_placeholders_without_numbers_are_refused(jax: Any) -> None:
    from jax.experimental import sparse

    dense, b = jax.numpy.asarray(laplace(10).toarray()), jax.numpy.ones(10)
    for kind in (sparse.BCOO, sparse.BCSR):
        A = kind.fromdense(dense)
        with pytest.raises(mx.UsageError, match="the indices of A are placeholders"):
            jax.jit(lambda A: mx.gmres(A, b)[0])(A)
        for solve in (mx.cg, mx.minres, mx.bicgstab):
            with pytest.raises(mx.UsageError, match="b is a placeholder"):
                jax.jit(lambda b, A=A, solve=solve: solve(A, b)[0])(b)
        with pytest.raises(mx.UsageError, match="x0 is a placeholder"):
            jax.jit(lambda x0, A=A: mx.gmres(A, b, x0)[0])(b)
    with pytest.raises(mx.UsageError, match="b is a placeholder"):
        jax.grad(lambda b: mx.gmres(lambda x: dense @ x, b)[0].sum())(b)


def test_jax_of_sparse_systems(jax: Any) -> None:
    from jax.experimental import sparse
    from jax.test_util import check_grads

    dense = jax.numpy.asarray(laplace(10).toarray())
    for M, k in ((sparse.BCOO.fromdense(dense), 0), (sparse.BCOO.fromdense(dense, nse=60), 2)):
        b = jax.numpy.asarray(numbers(10, k) if k else numbers(10))

        def x_of(data: Any, b: Any, M: Any = M) -> Any:
            return mx.gmres(sparse.BCOO((data, M.indices), shape=M.shape), b, rtol=1e-13)[0]

        check_grads(x_of, (M.data, b), order=1, modes=["rev"], rtol=1e-5, atol=1e-6)
        expected = np.linalg.solve(dense, b)
        assert np.allclose(jax.jit(x_of)(M.data, b), expected)
        assert np.allclose(jax.vmap(x_of, (None, 0))(M.data, b[None]), expected[None])
