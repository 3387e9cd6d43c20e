"""Run the test cases of jax.numpy.linalg, jax.scipy.linalg and jax.scipy.sparse.linalg that mxpeak shares.

The shapes, types and options are those of JAX's tests. As in these tests, each function is called twice: with arrays,
and in `jax.jit` if mxpeak's function works there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

import mxpeak as mx
from tests.support.peer_cases import (
    Check,
    Peer,
    cases,
    check_solution,
    csr,
    meant,
    raises,
    random,
    residual_norm,
    rounding,
)
from tests.support.systems import TYPES

SOLVE = Peer("jax.numpy.linalg.solve", "mx.solve")
STRUCTURED = Peer("jax.scipy.linalg.solve", "mx.solve")
CHO = Peer("jax.scipy.linalg.cho_solve", "mx.cho_factor")
LU = Peer("jax.scipy.linalg.lu_factor, lu_solve", "mx.lu_factor")
LSTSQ = Peer("jax.numpy.linalg.lstsq", "mx.lstsq")
ITERATIVE = {name: Peer(f"jax.scipy.sparse.linalg.{name}", f"mx.{name}") for name in ("cg", "bicgstab", "gmres")}
PEERS = [SOLVE, STRUCTURED, CHO, LU, LSTSQ, *ITERATIVE.values()]
WIDE = (np.float64, np.complex128)


def arrays(seed: int, dtype: Any, *shapes: tuple[int, ...]) -> list[Any]:
    """Return JAX arrays with normally distributed entries."""
    import jax

    rng = np.random.default_rng(seed)
    return [jax.numpy.asarray(random(rng, shape, dtype)) for shape in shapes]


def solves(A: Any, b: Any, solver: Any = None, *, jit: bool = True, **options: Any) -> Check:
    """Return the check that a system is solved, and that `jax.jit` returns the same x."""
    solver = solver or partial(mx.solve, **options)

    def check() -> None:
        import jax

        x = solver(A, b)[0]
        assert isinstance(x, jax.Array)
        assert x.dtype == np.result_type(A.dtype, b.dtype)
        M, c = meant(A, **options), np.asarray(b)
        if not x.size:
            assert x.shape == np.linalg.solve(M, c).shape
            return
        check_solution(M, np.asarray(x), c)
        if jit:
            again = jax.jit(lambda A, b: solver(A, b)[0])(A, b)
            assert (again.shape, again.dtype) == (x.shape, x.dtype)
            check_solution(M, np.asarray(again), c)

    return check


# --- dense systems ------------------------------------------------------------------------------------------------


@SOLVE.test("testSolve")
def shapes_and_types() -> Iterator[Check]:
    shapes = [
        ((1, 1), (1, 1)),
        ((4, 4), (4,)),
        ((8, 8), (8, 4)),
        ((2, 2), (3, 2, 2)),
        ((2, 1, 3, 3), (1, 4, 3, 4)),
        ((1, 0, 0), (1, 0, 2)),
    ]
    for (of_A, of_b), dtype in product(shapes, TYPES):
        yield solves(*arrays(1, dtype, of_A, of_b))


@SOLVE.test("testSolveBroadcasting")
def broadcasting() -> Iterator[Check]:
    for i, j in product(range(4), range(4)):
        yield solves(*arrays(2, np.float32, (2,) * (i + 2), (2,) * (j + 1)))


@SOLVE.test("testIssue1151")
def jacobians_of_a_stack() -> Iterator[Check]:
    def check(number: int | None) -> None:
        import jax

        A, b = arrays(3, np.float64, (100, 3, 3), (100, 3, 1))
        if number is not None:
            A, b = A[number], b[number]
        else:
            A, b = A[:4], b[:4]  # one row of the Jacobian per entry of x
        of_A, of_b = jax.jacobian(lambda A, b: mx.solve(A, b)[0], argnums=(0, 1))(A, b)
        expected = jax.jacobian(jax.numpy.linalg.solve, argnums=(0, 1))(A, b)
        for mine, theirs in zip((of_A, of_b), expected):
            assert np.allclose(mine, theirs, rtol=1e-8, atol=1e-8 * np.abs(theirs).max())

    yield partial(check, None)
    yield partial(check, 0)


SHAPES = [((1, 1), (1, 1)), ((4, 4), (4,)), ((8, 8), (8, 4))]


@STRUCTURED.test("testSolve")
def structures() -> Iterator[Check]:
    options = ({"assume_a": "gen"}, {"assume_a": "pos"}, {"assume_a": "pos", "lower": True})
    for (of_A, of_b), chosen, dtype in product(SHAPES, options, TYPES):
        A, b = arrays(4, dtype, of_A, of_b)
        if chosen["assume_a"] == "pos":
            import jax

            A = A @ A.T.conj()
            A = jax.numpy.tril(A) if chosen.get("lower") else jax.numpy.triu(A)
        yield solves(A, b, **chosen)


@CHO.test("testChoSolve", "the matrix of the triangle is factored again")
def cholesky() -> Iterator[Check]:
    shapes = [((1, 1), (1,)), ((4, 4), (4,)), ((4, 4), (4, 4))]
    for (of_A, of_b), dtype, lower in product(shapes, TYPES[:2], (True, False)):
        L, b = arrays(5, dtype, of_A, of_b)
        L = np.tril(L) if lower else np.triu(L).T
        import jax

        A = jax.numpy.asarray(L @ L.T)
        solver = lambda A, b, lower=lower: mx.cho_factor(A, lower=lower).solve(b)  # noqa: E731
        yield solves(A, b, solver, jit=False)


CHO.reasons["testChoSolveBroadcast"] = "`mx.cho_factor` factors one matrix; stacks are solved by `mx.solve`"


@LU.test("testLuFactor", "the solution is compared instead of the entries of the factors")
def lu_factors() -> Iterator[Check]:
    for n, dtype in product((1, 4, 5, 200), TYPES):
        yield solves(*arrays(6, dtype, (n, n), (n,)), lambda A, b: mx.lu_factor(A).solve(b), jit=False)


@LU.test("testLuSolve", "JAX skips this test on CPUs; `transposed` is True or `H`")
def forms_of_lu() -> Iterator[Check]:
    for (of_A, of_b), form, dtype in product(SHAPES, ("N", "T", "H"), TYPES):
        A, b = arrays(7, dtype, of_A, of_b)

        def check(A: Any = A, b: Any = b, form: str = form) -> None:
            x, info = mx.lu_factor(A).solve(b, transposed=form)
            assert info.solved
            check_solution(meant(A, transposed=form), np.asarray(x), np.asarray(b))

        yield check


LU.reasons |= {
    "testLuSolveBroadcast": "`mx.lu_factor` factors one matrix; stacks are solved by `mx.solve`",
    "testLu, testLuBatching, testLuGrad": "test `jax.scipy.linalg.lu`, which returns the entries of the factors",
}


# --- least squares ------------------------------------------------------------------------------------------------


@LSTSQ.test("testLstsq", "no argument `rcond`")
def least_squares_problems() -> Iterator[Check]:
    from tests.support.peer_cases import least_squares

    shapes = [((1, 1), (1, 1)), ((4, 6), (4,)), ((6, 6), (6, 1)), ((8, 6), (8, 4)), ((0, 3), (0,)), ((3, 0), (3,))]
    for (of_A, of_b), dtype in product([*shapes, ((3, 1), (3, 0))], TYPES):
        A, b = arrays(8, dtype, of_A, of_b)
        yield least_squares(A, b, min(of_A))


@LSTSQ.test("testLstsqZeroMatrix")
def zero_matrices() -> Iterator[Check]:
    def check(shape: tuple[int, int]) -> None:
        x, info = mx.lstsq(np.zeros(shape), np.ones(shape))
        assert info.rank == 0
        assert x.shape == (shape[1], shape[1])
        assert not x.any()

    for shape in ((2, 1), (2, 2), (1, 2)):
        yield partial(check, shape)


# --- iterative solvers --------------------------------------------------------------------------------------------

SOLVERS: dict[str, Any] = {"cg": mx.cg, "bicgstab": mx.bicgstab, "gmres": mx.gmres}


def definite(seed: int, n: int, dtype: Any) -> Any:
    M = np.eye(n) + np.asarray(arrays(seed, dtype, (n, n))[0])
    return M @ M.T.conj()


def preconditioner(name: str | None, A: Any) -> Any:
    """Return JAX's preconditioners of a matrix."""
    n = len(A)
    inverse_of_random = np.linalg.inv(definite(99, n, A.dtype))
    return {None: None, "identity": np.eye(n, dtype=A.dtype), "random": inverse_of_random, "exact": np.linalg.inv(A)}[
        name
    ]


def converges(solver: Any, A: Any, b: Any, x: Any = None, atol: float = 0.0, **options: Any) -> Check:
    """Return the check that a solver converges, to x if x is given."""

    def check() -> None:
        y, info = solver(csr(A), b, **options)
        assert info.converged, info
        assert residual_norm(A, y, b) <= options["rtol"] * np.linalg.norm(b) + rounding(A, y, b)
        if x is not None:
            assert np.abs(y - x).max() <= atol

    return check


def against_scipy(name: str) -> Iterator[Check]:
    """Return SciPy's solution after few iterations, and NumPy's solution."""
    solver = SOLVERS[name]
    for n, dtype, which in product(
        {"cg": (4, 7), "bicgstab": (5,), "gmres": (3,)}[name], WIDE, (None, "identity", "exact", "random")
    ):
        b = np.asarray(arrays(10, dtype, (n,))[0])
        A = definite(11, n, dtype) if name == "cg" else np.asarray(arrays(11, dtype, (n, n))[0])
        M = preconditioner(which, A)
        more = {"M": M} if M is not None else {"preconditioner": "none"}
        x = np.linalg.solve(A, b)
        yield converges(solver, A, b, x, 1e-6 * np.abs(x).max() * np.linalg.cond(A), rtol=1e-10, **more)
        if name == "cg":
            for maxiter in (1, 3):
                yield partial(same_iterates, A, b, M, maxiter)


def same_iterates(A: Any, b: Any, M: Any, maxiter: int) -> None:
    """Compare x after few iterations of `cg` with SciPy's."""
    from scipy.sparse.linalg import cg

    with np.errstate(all="ignore"):
        expected, _ = cg(A, b, rtol=0.0, maxiter=maxiter, M=M)
    more = {"M": M} if M is not None else {"preconditioner": "none"}
    x, info = mx.cg(csr(A), b, rtol=1e-15, maxiter=maxiter, precision="fp64", **more)
    if info.iterations == maxiter:
        assert np.abs(x - expected).max() <= 1e-10 * max(1.0, np.abs(expected).max())
    else:  # fewer iterations reached the tolerance
        assert info.converged


def identity_and_random_systems(name: str, *, eye: bool) -> Iterator[Check]:
    for n, dtype, which in product((2, 7) if eye else (2, 4), TYPES, (None, "identity", "exact")):
        A = np.eye(n, dtype=dtype) if eye else np.asarray(arrays(12, dtype, (n, n))[0])
        x = np.ones(n, dtype) if eye else np.asarray(arrays(13, dtype, (n,))[0])
        wide = A.astype(np.complex128 if A.dtype.kind == "c" else float)
        M = preconditioner(which, wide)
        more = {"M": M} if M is not None else {}
        yield converges(SOLVERS[name], wide, wide @ x, x, 1e-8 * np.linalg.cond(wide), rtol=1e-12, **more)


def functions_and_blocks(name: str) -> Iterator[Check]:
    """A as an object with products, and three right-hand sides."""

    def check(A: Any) -> None:
        b = np.arange(9.0).reshape(3, 3)
        x, info = SOLVERS[name](A, b, rtol=1e-12)
        assert info.converged
        assert np.abs(x - b / 2).max() <= 1e-12 * 9

    yield partial(check, lambda x: 2 * x)
    yield partial(check, csr(2 * np.eye(3)))


for name, peer in ITERATIVE.items():
    peer.test(f"test_{name}_against_scipy", "" if name == "cg" else "iterates are not compared, only solutions")(
        partial(against_scipy, name)
    )
    peer.test(f"test_{name}_matmul")(partial(functions_and_blocks, name))
    peer.reasons[f"test_{name}_pytree"] = "A is a function of a vector; pytrees are not supported"
    peer.reasons[f"test_{name}_weak_types"] = "scalars and weak types are not supported"
    if name != "cg":
        peer.test(f"test_{name}_on_identity_system")(partial(identity_and_random_systems, name, eye=True))
        peer.test(f"test_{name}_on_random_system")(partial(identity_and_random_systems, name, eye=False))

CG, BICGSTAB, GMRES = (ITERATIVE[name] for name in ("cg", "bicgstab", "gmres"))
CG.test("test_cg_ndarray")(partial(functions_and_blocks, "cg"))


@CG.test("test_cg_as_solve", "gradients are those of `mx.gmres`")
def cg_solves_and_gradients_exist() -> Iterator[Check]:
    def gradients(dtype: Any) -> None:
        import jax
        from jax.experimental import sparse
        from jax.test_util import check_grads

        A, b = definite(14, 2, dtype), arrays(15, dtype, (2,))[0]
        M = sparse.BCOO.fromdense(jax.numpy.asarray(A))
        solve = lambda data, b: mx.gmres(sparse.BCOO((data, M.indices), shape=M.shape), b, rtol=1e-13)[0]  # noqa: E731
        check_grads(solve, (M.data, b), order=2, modes=["rev"], rtol=1e-4, atol=1e-4)

    for dtype in WIDE:
        A, b = definite(14, 2, dtype), np.asarray(arrays(15, dtype, (2,))[0])
        yield converges(mx.cg, A, b, np.linalg.solve(A, b), 1e-8 * np.linalg.cond(A), rtol=1e-12)
        yield partial(gradients, dtype)


@CG.test("test_cg_errors", "a nested list is refused as a matrix that is not sparse")
def errors_of_cg() -> Iterator[Check]:
    yield raises(ValueError, "x0 has shape", lambda: mx.cg(lambda x: x, np.zeros(2), np.zeros((2, 1))))
    yield raises(ValueError, "square", lambda: mx.cg(csr(np.ones((3, 2))), np.zeros(2)))
    yield raises(ValueError, "not a SciPy sparse matrix", lambda: mx.cg([[1]], np.zeros(1)))


CG.reasons["test_cg_without_pytree_equality"] = CG.reasons["test_cg_pytree"]


@CG.test("test_linear_solve_batching_via_jacrev", "`mx.gmres` is differentiated")
def jacobian_of_a_sparse_solve() -> Iterator[Check]:
    def check() -> None:
        import jax
        from jax.experimental import sparse

        M = np.random.RandomState(0).standard_normal((5, 5))
        A = sparse.BCOO.fromdense(jax.numpy.asarray(M @ M.T))
        b = jax.numpy.asarray(np.random.RandomState(1).standard_normal(5))
        J = jax.jacrev(lambda b: mx.gmres(A, b, rtol=1e-13)[0])(b)
        expected = np.linalg.inv(M @ M.T)
        assert np.abs(J - expected).max() <= 1e-8 * np.abs(expected).max()

    yield check


@BICGSTAB.test("test_bicgstab_numerical_stability_regression")
def bicgstab_of_a_definite_matrix() -> Iterator[Check]:
    A = np.asarray(arrays(16, np.float64, (50, 50))[0])
    A = A @ A.T + 0.1 * np.eye(50)
    x = np.arange(1.0, 51.0)
    yield converges(mx.bicgstab, A, A @ x, x, 1e-5 * 50, rtol=1e-10, maxiter=200)


GMRES.reasons["test_gmres_arnoldi_step"] = "tests an internal function"


@pytest.fixture(autouse=True)
def wide_jax() -> Any:
    """Use JAX in its 64-bit mode."""
    jax = pytest.importorskip("jax")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.mark.parametrize("checks", cases(PEERS))
def test_inputs_of_jax(checks: Callable[[], Iterator[Check]]) -> None:
    for check in checks():
        check()
