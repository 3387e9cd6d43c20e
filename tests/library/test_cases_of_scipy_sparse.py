"""Run the test cases of SciPy 1.17 for gmres, cg, minres and bicgstab that mxpeak shares.

SciPy's solvers accept dense arrays; here, the same matrices are sparse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse
from scipy.sparse.linalg import LinearOperator

import mxpeak as mx
from mxpeak.errors import Outcome
from tests.support.peer_cases import Check, Peer, cases, converges, csr, raises, residual_norm, rounding

PEERS = [Peer(f"scipy.sparse.linalg.{name}", f"mx.{name}") for name in ("gmres", "cg", "minres", "bicgstab")]
GMRES, CG, MINRES, BICGSTAB = PEERS
SOLVERS: dict[str, Any] = {"gmres": mx.gmres, "cg": mx.cg, "minres": mx.minres, "bicgstab": mx.bicgstab}
Cases = dict[str, tuple[Any, Any]]


def poisson(n: int) -> Any:
    return sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n)).tocsr()


def matrices() -> dict[str, tuple[Any, str, Any]]:
    """Yield SciPy's matrices: A, the solvers that suit it, and b or None."""
    everything, indefinite, general = "gmres cg minres bicgstab", "gmres minres bicgstab", "gmres bicgstab"

    def uniform(n: int, *, is_complex: bool = False) -> Any:
        rng = np.random.RandomState(1234)
        A = rng.random_sample((n, n))
        return A + 1j * rng.random_sample((n, n)) if is_complex else A

    line = poisson(40)
    square, hermitian = uniform(9), uniform(9, is_complex=True)
    small, small_complex = uniform(4), uniform(4, is_complex=True)
    bidiagonal = sparse.diags_array([2.0, -1.0], offsets=[0, -1], shape=(10, 10)).tocsr()
    cases: dict[str, tuple[Any, str, Any]] = {
        "poisson1d": (line, everything, None),
        "neg-poisson1d": (-line, indefinite, None),
        "poisson2d": (sparse.kronsum(line, line).tocsr(), everything, None),
        "rand-diag": (sparse.diags_array([6.0, -5, 2, 7, -1, 10, 4, -3, -8, 9]).tocsr(), indefinite, None),
        "rand": (small, general, None),
        "rand-sym": (small + small.T, indefinite, None),
        "rand-sym-pd": (square @ square.T, everything, None),
        "rand-cmplx": (small_complex, general, None),
        "rand-cmplx-herm": (small_complex + small_complex.T.conj(), indefinite, None),
        "rand-cmplx-sym-pd": (hermitian @ hermitian.T.conj(), everything, None),
        "nonsymposdef": (bidiagonal, general, None),
    }
    narrow = {f"{name}-F": (narrower(A), solvers, b) for name, (A, solvers, b) in cases.items()}
    return cases | narrow | {"sym-nonpd": (not_definite(), indefinite, np.eye(11)[5])}


def narrower(A: Any) -> Any:
    return A.astype(np.complex64 if A.dtype.kind == "c" else np.float32)


def not_definite() -> Any:
    """A symmetric matrix that causes breakdowns of BiCGStab."""
    A = np.zeros((11, 11))
    A[:5, 5] = A[5, :5] = [1, 2, 2, 2, 1]
    A[range(5), range(6, 11)] = A[range(6, 11), range(5)] = A[range(6, 11), range(6, 11)] = -1
    return A


MATRICES = matrices()


def systems_of(solver: str) -> Iterator[tuple[str, Any, Any]]:
    for name, (A, solvers, b) in MATRICES.items():
        if solver in solvers.split():
            yield name, csr(A), np.arange(A.shape[0], dtype=float) if b is None else b


def tolerance(A: Any) -> float:
    return 1e-8 if A.dtype.char in "dD" else 1e-2


def register(peer: Peer) -> None:
    """Adapt the tests that all solvers share."""
    name = peer.ours.removeprefix("mx.")
    solver = SOLVERS[name]
    breaks_down = {"sym-nonpd"} if name == "bicgstab" else set[str]()

    @peer.test("test_maxiter", "`maxiter` counts single iterations; no preconditioner")
    def one_iteration() -> Iterator[Check]:
        def check(A: Any, b: Any) -> None:
            heard: list[Any] = []
            x, info = solver(A, b, 0 * b, rtol=1e-12, maxiter=1, callback=heard.append, preconditioner="none")
            assert info.outcome is Outcome.UNREACHED
            assert info.iterations == len(heard) == 1
            assert residual_norm(A, x, b) == pytest.approx(info.residual * np.linalg.norm(b), rel=1e-6)

        for case, A, b in systems_of(name):
            if case not in breaks_down:
                yield partial(check, A, b)

    @peer.test("test_convergence")
    def convergence() -> Iterator[Check]:
        for _, A, b in systems_of(name):
            yield converges(solver, A, b, x0=0 * b, rtol=tolerance(A))

    @peer.test("test_precond_dummy")
    def the_identity_as_preconditioner() -> Iterator[Check]:
        def check(A: Any, b: Any) -> None:
            eye = LinearOperator(A.shape, lambda r: r, dtype=A.dtype)
            operator = sparse.linalg.aslinearoperator(A)
            for x, info in (solver(A, b, M=eye, rtol=1e-8), solver(operator, b, M=eye, rtol=1e-8)):
                assert info.converged, info
                assert residual_norm(A, x, b) <= 1e-8 * np.linalg.norm(b) + rounding(A, x, b)

        for case, A, b in systems_of(name):
            if case not in breaks_down:
                yield partial(check, A, b)

    @peer.test(
        "test_precond_inverse", "iterations are counted instead of products, which include residuals of the check"
    )
    def the_inverse_as_preconditioner() -> Iterator[Check]:
        def check(A: Any, b: Any) -> None:
            inverse = np.linalg.inv(A.toarray())
            operator = LinearOperator(A.shape, lambda v: A @ v, dtype=float)
            x, info = solver(operator, b, 0 * b, M=LinearOperator(A.shape, lambda v: inverse @ v), rtol=1e-8)
            assert info.converged
            assert info.iterations <= 2
            assert residual_norm(A, x, b) <= 1e-8 * np.linalg.norm(b) + rounding(A, x, b)

        for case in ("poisson1d", "poisson2d"):
            A = csr(MATRICES[case][0])
            yield partial(check, A, np.arange(A.shape[0], dtype=float))

    @peer.test("test_atol")
    def absolute_tolerances() -> Iterator[Check]:
        rng = np.random.default_rng(168441431005389)
        A = rng.uniform(size=[10, 10])
        A = A @ A.T + 10 * np.eye(10)
        b = 1e3 * rng.uniform(size=10)
        M = rng.standard_normal(size=(10, 10))
        M = M @ M.T
        tols = [0.0, *np.logspace(-9, 2, 7)[::3], np.inf]  # every third case of SciPy
        for scaled, rtol, atol in product((None, 1e-6 * M, 1e6 * M), tols, tols):
            if rtol or atol:
                yield converges(solver, A, b, M=scaled, rtol=rtol, atol=atol)

    @peer.test("test_zero_rhs")
    def a_right_hand_side_of_zeros() -> Iterator[Check]:
        rng = np.random.default_rng(1684414984100503)
        A = rng.random(size=[10, 10])
        A = csr(A @ A.T + 10 * np.eye(10))

        def check(tol: float, atol: float, x0: Any) -> None:
            x, info = solver(A, np.zeros(10), x0, rtol=tol, atol=atol)
            assert info.converged
            assert np.abs(A @ x).max() <= atol

        for tol in np.logspace(-10, 2, 7):
            for atol, x0 in product((0.0, tol), (None, np.ones(10))):
                yield partial(check, float(tol), float(atol), x0)

    @peer.test("test_x0_working")
    def initial_guesses() -> Iterator[Check]:
        rng = np.random.default_rng(1685363802304750)
        A = rng.random(size=[10, 10])
        A, b, x0 = A @ A.T, rng.random(10), rng.random(10)
        yield converges(solver, A, b, rtol=1e-6)
        yield converges(solver, A, b, rtol=1e-6, x0=x0)

    @peer.test("test_x0_solves_problem_exactly")
    def an_exact_initial_guess() -> Iterator[Check]:
        def check() -> None:
            b = np.array([-1.0, -1.0])
            x, info = solver(csr(np.eye(2)), b, b)
            assert info.converged
            assert info.iterations == 0
            assert np.array_equal(x, b)

        yield check

    @peer.test("test_positional_error")
    def options_have_names() -> Iterator[Check]:
        yield raises(TypeError, "positional", lambda: solver(csr(np.eye(3)), np.ones(3), np.ones(3), 1e-5))

    peer.reasons |= {"test_x0_equals_Mb": 'x0 must be a vector; `"Mb"` is refused', "test_show": "tests `tfqmr`"}


for each in PEERS:
    register(each)

#: The tests in which SciPy skips MINRES, because its `minres` has no argument `atol`.
MINRES.reasons |= {"test_invalid_atol": "SciPy skips its `minres`"}


def invalid_tolerances(solver: Any) -> Iterator[Check]:
    A, b = csr(np.eye(10) + 1.0), np.ones(10)
    for atol in ("legacy", None, -1):
        yield raises(ValueError, "atol=.* is not valid", partial(solver, A, b, atol=atol))


for each in (GMRES, CG, BICGSTAB):
    each.test("test_invalid_atol")(partial(invalid_tolerances, SOLVERS[each.ours.removeprefix("mx.")]))
for each in (CG, MINRES, BICGSTAB):
    each.reasons["test_maxiter_worsening"] = "SciPy skips this solver"


# --- gmres --------------------------------------------------------------------------------------------------------


@GMRES.test("test_maxiter_worsening", "SciPy expects its own test to fail")
def errors_do_not_grow_with_the_iterations() -> Iterator[Check]:
    a = -0.1112795288033378
    A = np.zeros((4, 4), complex)
    A[0, [0, 3]] = [a, 0.16127952880333685]
    A[1, 1] = -0.13627952880333782 + 6.283185307179586j
    A[2, 2] = A[1, 1].conj()
    A[3, [0, 3]] = [0.1112795288033368, -0.16127952880333785]
    M, b = csr(A), np.ones(4)

    def check() -> None:
        best = np.inf
        for maxiter in range(1, 20):
            x, info = mx.gmres(M, b, maxiter=maxiter, rtol=1e-8, preconditioner="none")
            error = residual_norm(M, x, b)
            assert not info.converged or error <= 1e-8 * np.linalg.norm(b)
            best = min(best, error)
            assert error <= 9 * best  # as in SciPy

    yield check


@GMRES.test("TestGMRES.test_callback", "the callback receives the residual of A x = b, without the preconditioner")
def residuals_of_the_callback() -> Iterator[Check]:
    A = csr(sparse.diags_array([1.0, -2.0, 1.0], offsets=[-1, 0, 1], shape=(6, 6)))

    def check(M: Any) -> None:
        heard: list[float] = []
        more = {"preconditioner": "none"} if M is None else {"M": M}
        mx.gmres(A, np.ones(6), np.zeros(6), rtol=1e-16, maxiter=1, callback=heard.append, **more)
        assert heard == [pytest.approx(0.81649658092772603, rel=1e-6)]

    yield partial(check, None)
    yield partial(check, 1e-3 * np.eye(6))


@GMRES.test("TestGMRES.test_abi")
def real_and_complex() -> Iterator[Check]:
    def check() -> None:
        x, info = mx.gmres(csr(np.eye(2)), np.ones(2))
        y, again = mx.gmres(csr(np.eye(2, dtype=complex)), np.ones(2, complex))
        assert np.iscomplexobj(y)
        assert np.abs(x - y).max() <= 4 * 2.0**-53
        assert info.outcome is again.outcome

    yield check


@GMRES.test(
    "TestGMRES.test_atol_legacy", "`mx.gmres` reaches 1e-7 relative to b, with a preconditioner; SciPy does not"
)
def small_right_hand_sides() -> Iterator[Check]:
    yield converges(mx.gmres, np.eye(2), np.ones(2), rtol=1e-5)
    A = np.random.RandomState(12345).random_sample((30, 30))
    yield converges(mx.gmres, A, 1e-6 * np.ones(30), rtol=1e-7, restart=20)
    yield converges(mx.gmres, np.eye(2), 1e-10 * np.ones(2), rtol=1e-8)


def no_false_success(A: Any, b: Any, compared: Any, rtol: float, **options: Any) -> None:
    x, info = mx.gmres(A, b, rtol=rtol, **options)
    product_ = A @ x if hasattr(A, "shape") else A(x)
    assert np.isfinite(x).all()
    assert not info.converged or np.linalg.norm(product_ - b) <= rtol * np.linalg.norm(b) + 1e-15
    assert np.abs(compared @ (product_ - b)).max() <= 1e-7


@GMRES.test("TestGMRES.test_defective_precond_breakdown")
def a_singular_preconditioner() -> Iterator[Check]:
    M, b = np.diag([1.0, 1, 0]), np.array([0.0, 1, 1])
    yield partial(no_false_success, csr(np.diag([2.0, 3, 4])), b, M, 1e-15, x0=np.array([1.0, 0, 0]), M=M)


@GMRES.test(
    "TestGMRES.test_defective_matrix_breakdown", "a matrix with a row of zeros is refused; the operator is solved"
)
def a_singular_matrix() -> Iterator[Check]:
    A, b = np.array([[0.0, 1, 0], [1, 0, 0], [0, 0, 0]]), np.array([1.0, 0, 1])
    yield raises(mx.SingularMatrixError, "row 2 contains only zeros", lambda: mx.gmres(csr(A), b))
    yield partial(no_false_success, LinearOperator(A.shape, lambda v: A @ v, dtype=float), b, A, 1e-8)


@GMRES.test("TestGMRES.test_callback_x_monotonic", "the callback receives residuals")
def residuals_do_not_grow() -> Iterator[Check]:
    rng = np.random.RandomState(1)
    A = rng.random_sample((20, 20)) + np.eye(20)
    b = rng.random_sample(20)

    def check() -> None:
        heard = [1.0]
        options = {"precision": "fp64", "preconditioner": "none", "restart": 10, "maxiter": 200}
        mx.gmres(csr(A), b, rtol=1e-6, callback=heard.append, **options)
        assert len(heard) > 2
        assert all(later <= earlier * (1 + 1e-10) for earlier, later in pairwise(heard))

    yield check


GMRES.reasons |= {
    "TestGMRES.test_basic": "compares an iterate with SciPy's; `mx.gmres` scales this matrix, so its iterates differ",
    "TestGMRES.test_callback_type": "no argument `callback_type`: the callback receives residuals of cycles",
}


# --- minres -------------------------------------------------------------------------------------------------------


def sample() -> tuple[Any, Any]:
    rng = np.random.RandomState(1234)
    A = rng.random_sample((10, 10))
    return A + A.T, rng.random_sample(10)


@MINRES.test("test_singular", "A is an operator, and column 0 is also zero, so that A is symmetric")
def a_consistent_singular_system() -> Iterator[Check]:
    A, b = sample()
    A[0] = A[:, 0] = b[0] = 0.0

    def check() -> None:
        x, info = mx.minres(LinearOperator(A.shape, lambda v: A @ v, dtype=float), b, rtol=1e-5)
        assert info.converged
        assert np.linalg.norm(A @ x - b) <= 1e-5 * np.linalg.norm(b) + rounding(A, x, b)

    yield check


@MINRES.test("test_x0_is_used_by")
def the_initial_guess_is_used() -> Iterator[Check]:
    A, b = sample()

    def check() -> None:
        firsts = []
        for x0 in (np.random.RandomState(12345).random_sample(10), None):
            heard: list[Any] = []
            mx.minres(csr(A), b, x0, callback=lambda x, heard=heard: heard.append(x.copy()))
            firsts.append(heard[0])
        assert not np.array_equal(*firsts)

    yield check


@MINRES.test("test_asymmetric_fail", "A is always checked")
def an_unsymmetric_matrix() -> Iterator[Check]:
    A, b = sample()
    A[1, 2], A[2, 1] = 1, 2
    yield raises(ValueError, "symmetric", lambda: mx.minres(csr(A), b))


def normal(seed: int) -> tuple[Any, ...]:
    rng = np.random.RandomState(seed)
    A = rng.standard_normal((5, 5))
    b, c = rng.standard_normal((2, 5))
    M = rng.standard_normal((5, 5))
    return A @ A.T, b, c, M @ M.T


@MINRES.test("test_minres_non_default_x0")
def random_initial_guess() -> Iterator[Check]:
    A, b, c, _ = normal(1234)
    yield converges(mx.minres, A, b, x0=c, rtol=1e-6)


@MINRES.test("test_minres_precond_non_default_x0")
def random_initial_guess_and_preconditioner() -> Iterator[Check]:
    A, b, c, M = normal(12345)
    yield converges(mx.minres, A, b, x0=c, M=M, rtol=1e-6)


@MINRES.test("test_minres_precond_exact_x0")
def exact_initial_guess_and_preconditioner() -> Iterator[Check]:
    M = np.random.RandomState(1234).standard_normal((10, 10))
    yield converges(mx.minres, np.eye(10), np.ones(10), x0=np.ones(10), M=M @ M.T, rtol=1e-6)


MINRES.reasons |= {"test_shift": "no argument `shift`"}


@pytest.mark.parametrize("checks", cases(PEERS))
def test_inputs_of_scipy_sparse(checks: Callable[[], Iterator[Check]]) -> None:
    for check in checks():
        check()


def test_the_checks_can_fail() -> None:
    A, b = poisson(8), np.ones(8)

    def wrong(*arguments: Any, **options: Any) -> Any:
        x, info = mx.gmres(*arguments, **options)
        return x * (1 + 1e-6), info

    with pytest.raises(AssertionError):
        converges(wrong, A, b, rtol=1e-8)()
