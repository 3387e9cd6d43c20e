"""Test the preconditioners of `mxpeak.gmres`: the benchmark's, algebraic multigrid, and the user's."""

from __future__ import annotations

import warnings
from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse
import scipy.sparse.linalg as linalg

import mxpeak as mx
from mxpeak.errors import UsageError
from mxpeak.installation import install_command
from mxpeak.kernels.choose import sparse as sparse_kernels
from mxpeak.library.sparse import auto_preconditioner
from mxpeak.library.sparse.auto_preconditioner import choose_preconditioner
from mxpeak.solvers.gmres_driver import GmresDriver, GmresOptions
from mxpeak.solvers.precond.equilibration import Equilibration
from mxpeak.solvers.precond.problem import PreconditionedProblem
from mxpeak.solvers.precond.ruge_stuben import ruge_stuben_of_all_rows
from tests.support.sparse_systems import PRECISIONS, SWEEPS, needs_pyamg, poisson, random, reached, stencil, vector


def test_the_benchmarks_matrix_is_recognised() -> None:
    for nonsymmetric, precision in product((False, True), ("mixed", "fp64")):
        A = stencil(8, 16, 4, nonsymmetric=nonsymmetric)
        b = vector(A.shape[0])
        x, info = mx.gmres(A, b, precision=precision)
        assert info.preconditioner == "stencil"
        assert "27-point matrix of a 8x16x4 box" in info.reason
        assert info.levels == 3
        assert info.colours == 8
        assert reached(A, x, b, 1e-9)


def test_multigrid_needs_fewer_steps_than_a_sweep() -> None:
    A = stencil(16, 16, 8)
    b = A @ np.ones(A.shape[0])
    steps = {name: mx.gmres(A, b, preconditioner=name)[1].iterations for name in ("stencil", *SWEEPS)}
    assert steps["stencil"] < steps["sgs"] < steps["gs"] < steps["jacobi"]


@pytest.mark.parametrize("change", ["value", "pattern", "odd side", "scaled"])
def test_what_is_almost_the_benchmarks_matrix_is_not_taken_for_it(change: str) -> None:
    A = stencil(4, 4, 5 if change == "odd side" else 4)
    if change == "value":
        A.data[200] = -1.0000001
    elif change == "pattern":
        A = sparse.csr_array(A - sparse.coo_array(([0.5], ([9], [63])), shape=A.shape))
    elif change == "scaled":
        A.data *= 2
    x, info = mx.gmres(A, np.ones(A.shape[0]))
    assert info.preconditioner != "stencil"
    assert reached(A, x, np.ones(A.shape[0]), 1e-9)
    with pytest.raises(UsageError, match='preconditioner="stencil" needs the 27-point matrix'):
        mx.gmres(A, np.ones(A.shape[0]), preconditioner="stencil")


@needs_pyamg
@pytest.mark.parametrize("precision", PRECISIONS)
def test_algebraic_multigrid_solves_poisson_in_a_few_steps(precision: str) -> None:
    A = poisson(24, 25)
    A.data *= np.pi
    b = vector(A.shape[0])
    x, info = mx.gmres(A, b, precision=precision, preconditioner="amg", rtol=1e-11)
    assert info.levels >= 2
    assert info.iterations <= 20  # sweeps alone need about 80
    assert reached(A, x, b, 1e-11)


@needs_pyamg
@pytest.mark.parametrize("size", [1e-310, 1e300])
def test_algebraic_multigrid_solves_matrices_at_both_ends_of_fp64(size: float) -> None:
    A, b = poisson(18, 18) * size, vector(324) * size
    x, info = mx.gmres(A, b, preconditioner="amg")
    assert (info.converged, info.preconditioner) == (True, "amg")
    assert info.iterations <= 20
    _, k = np.frexp(size)
    assert reached(sparse.csr_array((np.ldexp(A.data, -k), A.indices, A.indptr)), x, np.ldexp(b, -k), 1e-9)


@needs_pyamg
def test_what_leads_to_coarser_levels_has_to_be_finite() -> None:
    A = poisson(18, 18)
    n = A.shape[0]
    grids, why = ruge_stuben_of_all_rows(A, A, Equilibration(np.full(n, -1100), np.zeros(n, int)))
    assert (grids, why) == ([], "PyAMG's level 1 has entries that are not finite")


@pytest.mark.parametrize("preconditioner", ["stencil", pytest.param("amg", marks=needs_pyamg)])
def test_a_problem_that_starts_over_adds_no_tables_to_its_matrix(preconditioner: str) -> None:
    A = stencil(8, 8, 8)
    kernels, options = sparse_kernels(None, 1), GmresOptions(smoother="coloured", maxiter=100)
    driver = GmresDriver(kernels, A, choose_preconditioner(kernels, A, preconditioner), options)
    for seed in range(3):
        assert driver.solve(vector(512, seed), np.zeros(512), 1e-9).residual <= 1e-9
        driver.problem = PreconditionedProblem(driver.problem.matrix, driver.plan)
    assert len(driver.problem.matrix.inner.A.coarse) == 1  # type: ignore[attr-defined]


@needs_pyamg
def test_auto_takes_algebraic_multigrid_where_it_suits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_preconditioner, "FACTORED_ROWS", 0)
    assert mx.gmres(poisson(18, 18), np.ones(324))[1].preconditioner == "amg"
    dense_looking = mx.gmres(random(2000), np.ones(2000))[1]
    assert dense_looking.preconditioner == "gs"
    assert "of the off-diagonal sum has the opposite sign" in dense_looking.reason


@needs_pyamg
def test_algebraic_multigrid_says_where_it_cannot_be_had() -> None:
    wild = sparse.csr_array(sparse.diags_array(np.logspace(-30, 30, 324)) @ poisson(18, 18))
    with pytest.raises(UsageError, match='"amg" is not possible for this matrix: the scales of its rows or columns'):
        mx.gmres(wild, np.ones(324), preconditioner="amg")
    diagonal = sparse.csr_array(sparse.diags_array(np.arange(1.0, 400)))
    with pytest.raises(UsageError, match='"amg" is not possible for this matrix'):
        mx.gmres(diagonal, np.ones(399), preconditioner="amg")


def test_without_pyamg_auto_takes_a_sweep_and_says_what_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_preconditioner, "has_pyamg", lambda: False)
    monkeypatch.setattr(auto_preconditioner, "FACTORED_ROWS", 0)
    info = mx.gmres(poisson(9, 9), np.ones(81))[1]
    assert info.preconditioner == "gs"
    assert install_command("amg") in info.reason
    with pytest.raises(UsageError, match="needs PyAMG, which is not installed; run pip install"):
        mx.gmres(poisson(9, 9), np.ones(81), preconditioner="amg")


@pytest.mark.parametrize("precision", ["mixed", "fp64"])
def test_a_function_of_ones_own_is_a_preconditioner(precision: str) -> None:
    A, b = poisson(14, 15), vector(210)
    ilu = linalg.spilu(A.tocsc(), drop_tol=1e-3)
    types = set()

    def apply(r: Any) -> Any:
        types.add(r.dtype.name)
        r *= 1.0  # the function may change the vector
        return ilu.solve(r.astype(np.float64))

    x, info = mx.gmres(A, b, precision=precision, preconditioner=apply)
    assert types == {"float32" if precision == "mixed" else "float64"}
    assert info.preconditioner == "user"
    assert info.times["preconditioner"] > 0
    assert info.iterations <= 12  # far fewer than with a sweep
    assert reached(A, x, b, 1e-9)


def test_a_linear_operator_is_a_preconditioner() -> None:
    A, b = poisson(9, 9), vector(81)
    inverse = linalg.LinearOperator((81, 81), linalg.splu(A.tocsc()).solve, dtype=float)
    x, info = mx.gmres(A, b, precision="fp64", preconditioner=inverse)
    assert info.iterations <= 2
    assert reached(A, x, b, 1e-9)


def test_a_preconditioner_may_itself_solve_with_gmres(solve: Any) -> None:
    A, b = poisson(9, 9), vector(81)
    x, info = solve(A, b, preconditioner=lambda r: solve(A, r, precision="fp32", rtol=1e-4, preconditioner="gs")[0])
    assert info.iterations <= 4
    assert reached(A, x, b, 1e-9)


def test_what_a_preconditioner_returns_is_checked() -> None:
    for function, message in (
        (lambda r: r[:-1], r"returned float32 of shape \(80,\) for a vector of shape \(81,\)"),
        (lambda r: r * 1j, "returned complex64"),
        (lambda r: np.where(np.arange(81) == 5, np.nan, r), r"returned nan at \[5\] for a finite vector"),
        (lambda r: None, "returned object of shape"),
    ):
        with pytest.raises(UsageError, match=message):
            mx.gmres(poisson(9, 9), np.ones(81), preconditioner=function)


@pytest.mark.parametrize("kind", ["real", "complex"])
def test_a_preconditioner_beyond_the_range_of_fp32_is_advised_to_use_fp64(kind: str) -> None:
    A, b = poisson(9, 9) * (1.0 if kind == "real" else 1.0 + 0.5j), vector(81)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # NumPy warns of the overflow
        with pytest.raises(UsageError, match=r'in fp32, whose largest number is 3\.4e\+38; use precision="fp64"'):
            mx.gmres(A, b, M=lambda r: r * 1e100)
    with np.errstate(over="raise", invalid="raise"), pytest.raises(FloatingPointError):
        mx.gmres(A, b, M=lambda r: r * 1e100)
    x, _ = mx.gmres(A, b, M=lambda r: r * 1e100, precision="fp64")
    assert reached(A, x, b, 1e-9)
    with pytest.raises(UsageError, match=r"for a finite vector; use a function that returns finite"):
        mx.gmres(A, b, M=lambda r: np.full_like(r, np.inf), precision="fp64")


def test_a_factorization_object_is_refused_with_the_method_to_pass() -> None:
    with pytest.raises(UsageError, match=r"such as the method preconditioner=ilu\.solve"):
        mx.gmres(poisson(9, 9), np.ones(81), preconditioner=linalg.spilu(poisson(9, 9).tocsc()))


@pytest.mark.parametrize("stored", [False, True])
def test_auto_permutes_rows_where_the_diagonal_has_a_zero(stored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    A = sparse.csr_array(np.array([[0.0, 2, 0], [1, 3, 1], [0, 1, 4]]))
    if stored:
        A = sparse.csr_array((np.append(A.data, 0.0), (np.append(A.nonzero()[0], 0), np.append(A.nonzero()[1], 0))))
    b = np.array([1.0, 2, 3])
    assert mx.gmres(A, b)[1].preconditioner == "lu"
    monkeypatch.setattr(auto_preconditioner, "NARROW_GRAPH", 0.0)
    monkeypatch.setattr(auto_preconditioner, "FEW_ENTRIES", 0.0)
    x, info = mx.gmres(A, b)
    assert info.preconditioner == "gs"
    assert "1 diagonal entries are zero: rows were permuted to a full diagonal" in info.reason
    assert reached(A, x, b, 1e-9)
    for name in ("gs", "sgs", "jacobi", "amg"):
        with pytest.raises(UsageError, match=r"A\[0, 0\] is zero \(one of 1 such entries"):
            mx.gmres(A, b, preconditioner=name)
