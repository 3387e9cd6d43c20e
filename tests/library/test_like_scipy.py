"""Compare arguments, errors and warnings of the library with SciPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sparse

import mxpeak as mx
from mxpeak.errors import SingularError, UsageError

T = sparse.diags_array([-1.0, 3.0, -1.5], offsets=(-1, 0, 1), shape=(60, 60)).tocsr()
ONES = np.ones(60)
RNG = np.random.default_rng(7)


def random(n: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal((n, n)) + 4 * np.eye(n)


# --- numerically singular ---------------------------------------------------------------------------------------


def test_a_hilbert_matrix_is_solved_with_a_warning_that_says_what_may_be_wrong() -> None:
    A = scipy.linalg.hilbert(12)
    with pytest.warns(mx.IllConditionedWarning, match=r"numerically singular: condition .* may have no correct digit"):
        _, info = mx.solve(A, A @ np.ones(12))
    assert info.solved
    assert info.ill_conditioned
    assert str(info).startswith("solved, but numerically singular: n = 12")
    with pytest.warns(mx.IllConditionedWarning):
        mx.lu_factor(A).solve(np.ones(12))


def test_the_backward_error_is_reported_as_a_number_and_in_roundings() -> None:
    _, info = mx.solve(random(20), np.ones(20))
    plain = info.backward_error * 20 * 2.0**-53
    assert f"backward error  {plain:.1e}  ({info.backward_error:.1e} n·u)" in str(info)
    assert not info.ill_conditioned


def test_warnings_are_caught_as_those_of_scipy() -> None:
    A = scipy.linalg.hilbert(12)
    with pytest.warns(scipy.linalg.LinAlgWarning):
        mx.solve(A, A @ np.ones(12))
    for warning in (mx.IllConditionedWarning, mx.NotSolvedWarning):
        assert issubclass(warning, scipy.linalg.LinAlgWarning)


# --- errors -----------------------------------------------------------------------------------------------------


def test_errors_are_caught_as_those_of_numpy() -> None:
    with pytest.raises(np.linalg.LinAlgError, match="exactly zero") as caught:
        mx.solve(np.zeros((2, 2)), [1, 1])
    assert isinstance(caught.value, mx.SingularMatrixError | SingularError)
    with pytest.raises(np.linalg.LinAlgError):
        mx.gmres(sparse.csr_array((2, 2)), [1.0, 1.0])
    with pytest.raises(ValueError, match="shape"):
        mx.solve(np.ones((2, 3)), [1, 1])
    with pytest.raises(TypeError, match="dtype"):
        mx.solve(np.array([["a"]]), [1])
    with pytest.raises(ValueError, match=r"mxpeak\.gmres\(A, b\)"):
        mx.solve(T, ONES)


def test_an_info_is_no_truth_value() -> None:
    infos = [mx.solve(random(3), np.ones(3))[1], mx.gmres(T, ONES)[1]]
    for info in infos:
        assert info.converged
        with pytest.raises(TypeError, match=r"info\.converged"):
            bool(info)
        assert info._repr_html_().startswith("<pre>")


# --- gmres ------------------------------------------------------------------------------------------------------


def test_gmres_takes_the_arguments_of_scipy() -> None:
    heard: list[float] = []
    A, exact = T, np.arange(60.0)
    x, info = mx.gmres(A, A @ exact, np.zeros(60), rtol=1e-12, atol=0.0, restart=20, maxiter=500, callback=heard.append)
    np.testing.assert_allclose(x, exact, atol=1e-9)
    assert heard == list(info.history[1:])


def test_atol_is_a_norm_of_the_residual() -> None:
    b = 1e6 * ONES
    x, info = mx.gmres(T, b, rtol=1e-14, atol=1.0, preconditioner="none")
    assert info.tol == pytest.approx(1.0 / np.linalg.norm(b))
    assert np.linalg.norm(b - T @ x) <= 1.0
    assert info.iterations < mx.gmres(T, b, rtol=1e-14, preconditioner="none")[1].iterations


@pytest.mark.parametrize(
    "inverse",
    [
        sparse.diags_array(1 / T.diagonal()),
        sparse.linalg.LinearOperator((60, 60), matvec=lambda r: r / T.diagonal(), dtype=float),
        lambda r: r / T.diagonal(),
    ],
    ids=["matrix", "operator", "function"],
)
def test_m_is_the_inverse(inverse: Any) -> None:
    _, info = mx.gmres(T, ONES, M=inverse)
    assert info.converged
    assert info.preconditioner == "user"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"x0": "fp64"}, "precision='fp64'"),
        ({"atol": -1.0}, "atol=-1.0"),
        ({"callback": 3}, "callback=3"),
        ({"M": T, "preconditioner": "gs"}, "use only one of them"),
        ({"M": "ilu"}, 'M is str "ilu", but M must be .* use the argument preconditioner with one of auto, '),
        ({"M": "none"}, 'use the argument preconditioner="none"$'),
        ({"M": sparse.linalg.spilu(T.tocsc())}, "M is SuperLU, which is a factorization; use its solve method"),
    ],
)
def test_mistakes_are_named(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        mx.gmres(T, ONES, **asked)


# --- transposed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("precision", ["auto", "fp32", "fp16"])
@pytest.mark.parametrize("scale", [1.0, 1e9])
def test_the_transposed_system_is_solved_with_the_same_factors(order: Any, precision: str, scale: float) -> None:
    A = np.asarray(random(30), order=order)
    A[3] *= scale
    b = RNG.standard_normal((30, 2))
    expected = np.linalg.solve(A.T, b)
    F = mx.lu_factor(A, precision=precision)
    for x, info in (mx.solve(A, b, transposed=True, precision=precision), F.solve(b, transposed=True)):
        assert info.solved
        np.testing.assert_allclose(x, expected, rtol=0, atol=1e-9 * np.abs(expected).max())
    np.testing.assert_allclose(F.solve(b)[0], np.linalg.solve(A, b), rtol=1e-7)


def test_a_complex_system_is_transposed_and_not_conjugated() -> None:
    A = random(9) + 1j * random(9)
    x, _ = mx.lu_factor(A).solve(np.ones(9), transposed=True)
    np.testing.assert_allclose(A.T @ x, np.ones(9), atol=1e-12)


# --- public names -----------------------------------------------------------------------------------------------


def test_dir_shows_what_is_public() -> None:
    assert dir(mx) == sorted(mx.__all__)
    assert dir(mx.run) == ["hpcg", "hpg_mxp", "hpl", "hpl_mxp", "norms"]
    assert all(getattr(mx, name) is not None for name in mx.__all__)
