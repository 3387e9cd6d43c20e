"""Test preconditioners, precisions, checks, ranks and SciPy's cases of `cg`, `minres` and `bicgstab`.

The cases of SciPy's `test_iterative.py` and `test_minres.py` are passed to the functions with the same names. Dense
matrices are passed as LinearOperators. Of SciPy's 84 cases of these three functions, 81 apply. Not applicable: `shift`
and `show` of minres, x0="Mb", and a matrix with a row of zeros, which is not symmetric.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse
from scipy.sparse.linalg import LinearOperator, aslinearoperator, lsqr

import mxpeak as mx
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.errors import Outcome, UsageError
from tests.support.published_inputs import CASES, incidence, right_hand_side
from tests.support.sparse_ranks import cut, even
from tests.support.sparse_systems import (
    beam,
    flow,
    jumps,
    line,
    mixed_units,
    needs_pyamg,
    poisson,
    reached,
    residual,
    saddle,
    stencil,
    vector,
    waves,
)

SOLVERS = {"cg": mx.cg, "minres": mx.minres, "bicgstab": mx.bicgstab}
HERMITIAN = ("cg", "minres")


def checked(name: str, A: Any, b: Any, **options: Any) -> Any:
    """Solve, and check that the residual is small, and reported correctly within a factor of 2."""
    x, info = SOLVERS[name](A, b, **options)
    assert info.converged, str(info)
    assert reached(A, x, b, info.tol)
    assert info.residual <= 2 * residual(A, x, b) + 1e-15
    assert residual(A, x, b) <= 2 * info.residual + 1e-15
    assert info.method == name
    return info


# --- preconditioners --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("preconditioner", ["auto", "sgs", "jacobi", "none"])
@pytest.mark.parametrize("precision", ["mixed", "fp64", "bf16"])
def test_preconditioners_in_every_precision(name: str, preconditioner: str, precision: str) -> None:
    for A in (poisson(9, 7), jumps(8, 50.0)):
        info = checked(name, A, vector(A.shape[0]), preconditioner=preconditioner, precision=precision)
        assert info.vectors == ("fp64" if precision == "fp64" or preconditioner == "none" else info.vectors)


@needs_pyamg
@pytest.mark.parametrize("name", HERMITIAN)
def test_multigrid_is_symmetric(name: str) -> None:
    A, b = poisson(12, 12, 12), vector(1728)
    info = checked(name, A, b, preconditioner="amg")
    assert info.levels > 1
    assert info.iterations <= 12
    box = stencil(8, 8, 8)
    info = checked(name, box, vector(512))
    assert info.preconditioner == "stencil"
    assert info.iterations <= 20


def test_factors_precondition_cg() -> None:
    assert checked("cg", poisson(30, 30), vector(900), preconditioner="lu").iterations <= 3
    assert checked("bicgstab", flow(30), vector(900), preconditioner="lu").iterations <= 2


@pytest.mark.parametrize("name", SOLVERS)
def test_scaled_systems_stay_symmetric(name: str) -> None:
    D = sparse.diags_array(10.0 ** np.random.default_rng(1).uniform(-4, 4, 100))
    A = sparse.csr_array(D @ poisson(10, 10) @ D)
    info = checked(name, A, A @ np.ones(100), rtol=1e-7)
    assert info.scaled
    if name == "bicgstab":
        checked(name, mixed_units(flow(10)), mixed_units(flow(10)) @ np.ones(100), rtol=1e-7)


def test_indefinite_systems_are_for_minres() -> None:
    for A in (waves(15), saddle(8), -poisson(8, 8), sparse.csr_array(incidence())):
        checked("minres", A, vector(A.shape[0]))


def test_complex_hermitian_systems() -> None:
    skew = sparse.diags_array([1j * np.ones(99), -1j * np.ones(99)], offsets=(1, -1))
    H, b = sparse.csr_array(poisson(10, 10) + 0.3 * skew), vector(100) + 1j * vector(100, seed=4)
    for name in SOLVERS:
        for preconditioner in ("auto", "sgs", "jacobi", "none"):
            checked(name, H, b, preconditioner=preconditioner)
    with pytest.raises(UsageError, match="A is not Hermitian"):
        mx.cg(sparse.csr_array(poisson(10, 10) * (1 + 0.5j)), b)


# --- the check of the recurrence --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOLVERS)
def test_the_recurrence_is_checked_and_started_again(name: str) -> None:
    """An operator that rounds to fp32 in its first 40 products makes the recurrence drift from b - A x."""
    A, count = poisson(12, 12), 0

    def drifting(x: Any) -> Any:
        nonlocal count
        count += 1
        return (A @ x).astype(np.float32).astype(float) if 4 < count < 40 else A @ x

    b = vector(144)
    x, info = SOLVERS[name](LinearOperator(A.shape, drifting, dtype=float), b, rtol=1e-11)
    assert info.converged, str(info)
    assert info.cycles > 1
    assert reached(A, x, b, 1e-11)
    runs = f"{info.iterations} iterations in {info.cycles} runs, each from the last x"
    assert str(info).splitlines()[0] == f"{name} converged: n = 144, a linear operator, {runs}"
    assert len(info.history) == info.iterations + 1


@pytest.mark.parametrize("name", SOLVERS)
def test_the_iterations_of_several_parts_are_those_of_the_longest_one(name: str) -> None:
    A, b = poisson(12, 12), vector(144) + 1j * np.ones(144)
    options = {"preconditioner": "none"}
    counts = [SOLVERS[name](A, part, **options)[1].iterations for part in (b.real, b.imag)]
    _, info = SOLVERS[name](A, np.stack([b.real, b.imag], axis=1), **options)
    assert info.iterations == max(counts)
    assert f"2 right-hand sides, at most {max(counts)} iterations" in str(info)
    _, info = SOLVERS[name](A, b, **options)
    assert info.iterations >= max(counts)
    assert info.iterations < sum(counts)


@pytest.mark.parametrize("name", SOLVERS)
def test_a_tolerance_out_of_reach_is_not_claimed(name: str) -> None:
    A = sparse.csr_array(beam(200))
    b = vector(200)
    x, info = SOLVERS[name](A, b, rtol=1e-16, preconditioner="none", maxiter=3000)
    assert not info.converged
    assert info.outcome is Outcome.UNREACHED
    assert info.residual == pytest.approx(residual(A, x, b), rel=0.5)
    assert info.message
    assert "by the recurrence" in str(info)


def test_the_claim_is_that_of_the_last_run_for_the_worst_column() -> None:
    """The parts of a complex b count by their norms, and runs before the last one do not count."""
    A, rng = poisson(8, 8), np.random.default_rng(5)
    info = checked("cg", A, np.ones(64) + 1e-13j * rng.standard_normal(64))
    assert info.claimed == pytest.approx(info.residual, rel=1e-2, abs=1e-15)
    B, count = np.stack([vector(64), np.ones(64)], axis=1), 0

    def drifting(x: Any) -> Any:
        nonlocal count
        count += 1
        return (A @ x).astype(np.float32).astype(float) if 4 < count < 20 else A @ x

    _, info = mx.cg(drifting, B, rtol=1e-11)
    assert info.converged, str(info)
    assert info.claimed <= 1e-11


# --- mistakes ---------------------------------------------------------------------------------------------------


def test_an_indefinite_matrix_is_named_by_cg() -> None:
    with pytest.raises(UsageError, match=r"A\[0, 0\] is -2 \(one of 9 such entries\); use mxpeak\.minres"):
        mx.cg(-line(9), np.ones(9))
    _, info = mx.cg(waves(15), vector(225), preconditioner="sgs")
    assert not info.converged
    assert "A is not positive definite: pᴴA p = -" in info.message
    _, info = mx.cg(waves(15), vector(225), preconditioner="lu")
    assert "A is not positive definite" in info.message


@pytest.mark.parametrize("name", HERMITIAN)
def test_preconditioners_must_be_positive_definite(name: str) -> None:
    _, info = SOLVERS[name](line(9), np.ones(9), M=lambda r: -r)
    assert not info.converged
    assert "M is not positive definite" in info.message
    with pytest.raises(UsageError, match="A is not symmetric, as"):
        SOLVERS[name](flow(8), np.ones(64))
    with pytest.raises(UsageError, match='preconditioner="gs" is not symmetric'):
        SOLVERS[name](line(9), np.ones(9), preconditioner="gs")


def test_minres_reports_a_preconditioner_that_turns_out_indefinite_later() -> None:
    for negative in (1, 4):
        m = np.ones(64)
        m[1 : 1 + negative] = -0.7
        _, info = mx.minres(line(64), np.ones(64), M=lambda r: m * r)  # noqa: B023
        assert not info.converged
        assert "M is not positive definite: vᴴM^-1 v = -" in info.message


@pytest.mark.parametrize("preconditioner", ["auto", "jacobi", "none"])
def test_minres_reports_an_inconsistent_system(preconditioner: str) -> None:
    A, b = line(64).tolil(), vector(64)
    A[0, 0] = A[63, 63] = 0.5 * A[1, 1]  # the null space contains ones
    A = sparse.csr_array(A)
    x, info = mx.minres(A, b, preconditioner=preconditioner)
    assert info.iterations <= 200
    assert "A x = b is inconsistent, or" in info.message
    assert info.residual <= 2 * abs(np.mean(b)) * 8 / np.linalg.norm(b)  # the least possible, in the norm of M
    assert np.linalg.norm(x) <= 1e4 * np.linalg.norm(b)
    checked("minres", A, b - np.mean(b), preconditioner=preconditioner)


def nearly_singular(digits: int) -> tuple[Any, Any, float]:
    """A Laplacian plus 2^-digits, b, and the part of ||x|| in the direction of the vector of ones."""
    n, b = 64, 1.0 + np.random.default_rng(1).standard_normal(64)
    diagonal = 2.0 + 2.0**-digits - np.isin(np.arange(n), (0, n - 1))
    A = sparse.csr_array(sparse.diags_array([diagonal, -np.ones(n - 1), -np.ones(n - 1)], offsets=[0, 1, -1]))
    return A, b, abs(b.sum()) / np.sqrt(n) * 2.0**digits


def least_norm_in(message: str) -> float:
    """The bound of the norm of every solution in a message that also names an inconsistent system."""
    pattern = r"A x = b is inconsistent, or A is so ill-conditioned that every solution has a norm of at least (\S+);"
    found = re.search(pattern, message)
    assert found, message
    return float(found[1])


@pytest.mark.parametrize("as_given", [sparse.csr_array, aslinearoperator])
@pytest.mark.parametrize("m", [25, 40, 60])
def test_minres_ends_near_the_least_residual_of_an_inconsistent_system(as_given: Callable[[Any], Any], m: int) -> None:
    """Rounding errors keep ||A r|| near the limit at which r counts as a null vector, and then x grows to 1e16."""
    A = line(m).tolil()
    A[0, 0] = A[m - 1, m - 1] = 1.0  # the null space of the Laplacian contains ones
    A, b = sparse.csr_array(sparse.kronsum(A, A)), np.random.default_rng(m).standard_normal(m * m)
    x, info = mx.minres(as_given(A), b, preconditioner="none")
    assert info.residual <= 1.001 * m * abs(b.mean()) / np.linalg.norm(b)
    assert np.linalg.norm(x) <= 1e4
    assert info.iterations <= 400
    assert "A x = b is inconsistent, or" in info.message


@pytest.mark.parametrize("decades", [13, 15])
@pytest.mark.parametrize("units", [1.0, 1e-30])
def test_minres_calls_no_regular_system_inconsistent(decades: int, units: float) -> None:
    rng, n = np.random.default_rng(1), 60
    Q = np.linalg.qr(rng.standard_normal((n, n)))[0]
    A = (Q * np.logspace(0, -decades, n) * np.resize([1, -1], n)) @ Q.T
    A, b = (A + A.T) / 2 * units, rng.standard_normal(n)
    _, info = mx.minres(sparse.csr_array(A), b, preconditioner="none", maxiter=3000)
    assert not info.converged
    assert "inconsistent" not in info.message


@pytest.mark.parametrize("as_given", [sparse.csr_array, aslinearoperator])
@pytest.mark.parametrize("digits", [48, 51])
@pytest.mark.parametrize("units", [1.0, 2.0**-100])
def test_minres_bounds_the_norm_of_the_solution(as_given: Callable[[Any], Any], digits: int, units: float) -> None:
    A, b, least = nearly_singular(digits)
    _, info = mx.minres(as_given(A * units), b, preconditioner="none")
    assert 1e9 < least_norm_in(info.message) * units <= least


@pytest.mark.parametrize("as_given", [sparse.csr_array, aslinearoperator])
def test_minres_allows_for_the_rounding_errors_of_a_zero_product(as_given: Callable[[Any], Any]) -> None:
    e = 2.0**-52
    A, b = np.kron(np.eye(2), [[1.0, 1.0 + e], [1.0 + e, 1.0 + 2 * e]]), np.array([1.0 + e, -1.0, 1.0 + e, -1.0])
    assert not np.any(A @ b)  # by rounding, because the determinant of each block is -e²
    _, info = mx.minres(as_given(A), b, preconditioner="none")
    assert 1e10 < least_norm_in(info.message) <= e**-2


def test_minres_allows_for_rounding_errors_if_the_residual_is_a_null_vector() -> None:
    _, info = mx.minres(sparse.csr_array(np.ones((2, 2))), [1.0, -1.0], preconditioner="none")
    assert least_norm_in(info.message) > 1e14


def test_lsqr_solves_the_inconsistent_system_of_an_operator_as_minres_advises() -> None:
    A, b = np.diag([1.0, 2.0, 0.0]), np.ones(3)
    for as_given in (aslinearoperator(A), A.dot):
        _, info = mx.minres(as_given, b)
        assert "use scipy.sparse.linalg.lsqr with a LinearOperator whose rmatvec is equal to its matvec" in info.message
    advised = LinearOperator(A.shape, A.dot, rmatvec=A.dot, dtype=float)
    np.testing.assert_allclose(lsqr(advised, b)[0], [1.0, 0.5, 0.0])
    _, info = mx.minres(sparse.csr_array(np.ones((2, 2))), [1.0, -1.0], preconditioner="none")
    assert "use scipy.sparse.linalg.lsqr for least squares" in info.message


def rows_of_different_scales(seed: int, decades: float) -> tuple[Any, Any]:
    """Rows with entries from 10^-decades to 10^decades, and a b whose entries are close to 1."""
    rng, n = np.random.default_rng(seed), 60
    A = sparse.random_array((n, n), density=4 / n, rng=rng).tocsr()
    A.data = rng.standard_normal(A.nnz)
    A = A + 4 * sparse.eye_array(n)
    b = rng.standard_normal((3, n))[2]
    return sparse.csr_array(sparse.diags_array(10.0 ** np.linspace(-decades, decades, n)) @ A), b


def solution_by_rows(A: Any, b: Any) -> Any:
    """Return the solution of the system with rows of similar sizes."""
    sizes = abs(A).max(axis=1).toarray()
    return np.linalg.solve(A.toarray() / sizes[:, None], b / sizes)


@pytest.mark.parametrize("name", ["bicgstab", "gmres"])
@pytest.mark.parametrize("seed", [4, 5, 16, 23])
def test_x_solves_all_rows_if_rows_differ_in_scale(name: str, seed: int) -> None:
    """The residual of an accurate x is above that of x = 0 for some seeds, because of rounding errors in large rows."""
    A, b = rows_of_different_scales(seed, 10)
    x, info = getattr(mx, name)(A, b, preconditioner="jacobi", maxiter=2000)
    assert not info.converged
    assert np.linalg.norm(x - solution_by_rows(A, b)) <= 1e-12 * np.linalg.norm(x)
    exact = b - A.toarray().astype(np.longdouble) @ x.astype(np.longdouble)
    assert np.all(abs(exact) <= 1e-12 * (abs(A) @ abs(x) + abs(b)))
    rounding = np.linalg.norm(abs(A) @ abs(x) + abs(b)) * 2.0**-53 * 8  # at most 8 terms in a row
    assert abs(float(np.linalg.norm(exact)) - info.residual * np.linalg.norm(b)) <= rounding
    if (name, seed) == ("gmres", 5):
        assert info.residual > 1.0
        assert "x solves all rows" in info.message


def test_solutions_by_complete_factors_beyond_fp64_are_no_given_starts() -> None:
    A, B = poisson(8, 8), vector(64)[:, None] * [1.0, 2.0]  # refined together
    with pytest.warns(mx.NotSolvedWarning, match="x is beyond the range of fp64"):
        _, info = mx.gmres(A * 1e-290, B * 1e250, preconditioner="lu")
    assert info.outcome is Outcome.NOT_FINITE
    assert "x0" not in info.message


@pytest.mark.parametrize("name", ["bicgstab", "gmres"])
def test_ranks_solve_all_rows_if_rows_differ_in_scale(name: str) -> None:
    A, b = rows_of_different_scales(5, 10)
    starts = [0, 20, 20, 60]

    def body(comm: Any) -> Any:
        return getattr(mx, name)(*(cut(whole, starts, comm.rank) for whole in (A, b)), comm=comm, threads=1)

    done = run_ranks(3, body)
    x, exact = np.concatenate([part for part, _ in done]), solution_by_rows(A, b)
    assert np.linalg.norm(x - exact) <= 1e-12 * np.linalg.norm(exact)
    assert {(info.converged, info.residual, info.message) for _, info in done} == {
        (False, done[0][1].residual, done[0][1].message)
    }
    assert "x solves all rows" in done[0][1].message


@pytest.mark.parametrize("name", ["bicgstab", "gmres"])
def test_messages_name_the_residual_of_the_scaled_system(name: str) -> None:
    rng, n = np.random.default_rng(0), 300
    A = sparse.random_array((n, n), density=0.03, rng=rng) + sparse.eye_array(n)
    A = sparse.csr_array(sparse.diags_array(10.0 ** np.linspace(-10, 10, n)) @ A)
    _, info = getattr(mx, name)(A, A @ np.ones(n), preconditioner="gs")
    assert not info.converged
    assert re.search(r"after \d+ iterations the residual of the scaled system was", info.message), info.message


@pytest.mark.parametrize("name", ["bicgstab", "gmres"])
@pytest.mark.parametrize("decades", [20, 150])
def test_columns_of_different_scales_leave_the_residual_of_separate_parts_alone(name: str, decades: int) -> None:
    """The columns of rows that share no unknowns with other rows must not be balanced by scaling these rows."""
    rng, n = np.random.default_rng(2), 30
    A = sparse.random_array((n, n), density=3 / n, rng=rng, format="csr")
    A.data = rng.standard_normal(A.nnz)
    A = sparse.csr_array((A + 4 * sparse.eye_array(n)) @ sparse.diags_array(10.0 ** rng.uniform(-decades, decades, n)))
    b = rng.standard_normal(n)
    for preconditioner in ("lu", "gs", "jacobi"):
        x, info = getattr(mx, name)(A, b, preconditioner=preconditioner)
        assert info.converged, str(info)
        assert residual(A, x, b) <= 1e-9


@pytest.mark.parametrize("name", ["bicgstab", "gmres"])
@pytest.mark.parametrize("seed", [2, 6])
def test_x_has_no_larger_residual_than_the_start_if_it_does_not_solve_all_rows(name: str, seed: int) -> None:
    """The scaled system is solved to all digits, but not in its rows with a tiny right-hand side."""
    A, b = rows_of_different_scales(seed, 100)
    _, info = getattr(mx, name)(A, b, preconditioner="jacobi", maxiter=2000)
    assert not info.converged
    assert info.residual <= 1.0


@pytest.mark.parametrize("precision", ["mixed", "fp64"])
def test_solutions_by_complete_factors_solve_all_rows(precision: str) -> None:
    A, b = rows_of_different_scales(0, 10)
    B = np.stack([b, b[::-1]], axis=1)  # refined together
    X, info = mx.gmres(A, B, preconditioner="lu", precision=precision, maxiter=200)
    assert not info.converged
    exact = np.stack([solution_by_rows(A, b), solution_by_rows(A, b[::-1])], axis=1)
    assert np.all(np.linalg.norm(X - exact, axis=0) <= 1e-12 * np.linalg.norm(exact, axis=0))


@pytest.mark.parametrize("name", ["bicgstab", "gmres"])
def test_huge_residuals_are_reported_as_finite(name: str) -> None:
    A, b = rows_of_different_scales(4, 100)
    x, info = getattr(mx, name)(A, b, preconditioner="jacobi", maxiter=1, x0=np.full(60, 1e80))
    r = b - A @ x
    largest = abs(r).max()
    assert largest > 1e170  # its square overflows
    assert info.residual == pytest.approx(largest * np.linalg.norm(r / largest) / np.linalg.norm(b))


@pytest.mark.parametrize("as_given", [sparse.csr_array, aslinearoperator])
@pytest.mark.parametrize("name", SOLVERS)
def test_a_start_that_meets_the_tolerance_is_returned(name: str, as_given: Callable[[Any], Any]) -> None:
    A, x0, shown = poisson(10, 10), vector(100), []
    x, info = SOLVERS[name](as_given(A), A @ x0 + 1e-12, x0, callback=shown.append)
    assert info.converged
    assert (info.iterations, len(info.history), len(shown)) == (0, 1, 0)
    assert np.array_equal(x, x0)


@pytest.mark.parametrize("as_given", [sparse.csr_array, aslinearoperator])
@pytest.mark.parametrize("steps", [50, 100])
def test_bicgstab_returns_the_best_x_if_the_residuals_grow_again(as_given: Callable[[Any], Any], steps: int) -> None:
    A, b = waves(20), vector(400)
    x, info = mx.bicgstab(as_given(A), b, preconditioner="none", maxiter=steps)
    assert not info.converged
    assert len(info.history) == info.iterations + 1 == steps + 1
    assert info.residual <= 1.01 * min(info.history) < info.history[-1]
    assert residual(A, x, b) == pytest.approx(info.residual)


def test_breakdown_of_bicgstab_is_named() -> None:
    skew = sparse.csr_array([[0.0, 1.0], [-1.0, 0.0]])
    _, info = mx.bicgstab(aslinearoperator(skew), [1.0, 0.0])
    assert not info.converged
    assert "BiCGStab broke down" in info.message
    assert "use mxpeak.gmres" in info.message


@pytest.mark.parametrize(
    ("A", "b"),
    [
        ([[-1.0, -2.0, 0.0], [2.0, -1.0, 2.0], [-1.0, 2.0, -1.0]], [0.0, -1.0, -1.0]),
        ([[1.0, -2.0, -1.0], [1.0, 2.0, -1.0], [0.0, 0.0, 2.0]], [0.0, 0.0, -1.0]),
    ],
)
def test_bicgstab_starts_again_after_a_breakdown(A: Any, b: Any) -> None:
    """The first run breaks down after one step, with more than half of the residual left."""
    x, info = mx.bicgstab(aslinearoperator(np.array(A)), b)
    assert info.converged, str(info)
    assert info.cycles == 2
    np.testing.assert_allclose(np.array(A) @ x, b, atol=1e-8)


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rtol": -1.0}, "rtol=-1.0"),
        ({"maxiter": 0}, "maxiter=0"),
        ({"precision": "fp8"}, "unknown precision"),
        ({"preconditioner": "ilu"}, "is unknown"),
        ({"M": lambda r: r[1:]}, "the preconditioner returned"),
        ({"callback": 3}, "callback=3"),
        ({"x0": np.ones(8)}, "x0"),
    ],
)
def test_mistakes_are_named(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        SOLVERS[name](line(9), np.ones(9), **options)


@pytest.mark.parametrize("name", SOLVERS)
def test_iterations_are_limited_and_counted(name: str) -> None:
    seen: list[Any] = []
    A, b = poisson(8, 8), vector(64)
    x, info = SOLVERS[name](A, b, maxiter=4, preconditioner="none", callback=lambda x: seen.append(x.copy()))
    assert not info.converged
    assert info.iterations == len(seen) == 4
    np.testing.assert_allclose(seen[-1], x, atol=1e-14)
    assert "use a larger maxiter" in info.message
    assert ('preconditioner="lu"' in info.message) == (name != "minres")  # minres does not accept it
    assert ("spilu" in info.message) == (name == "bicgstab"), "incomplete factors of a symmetric A are not symmetric"
    assert len(info.history) == 5
    x, info = SOLVERS[name](A, np.zeros(64))
    assert info.converged
    assert not x.any()
    x, info = SOLVERS[name](sparse.csr_array((0, 0)), np.zeros(0))
    assert info.method == name


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("preconditioner", ["none", "jacobi"])
def test_the_callback_receives_a_complex_x_if_only_b_is_complex(name: str, preconditioner: str) -> None:
    """The real part of each column is solved first, with the imaginary part of x0."""
    seen: list[Any] = []
    A, b, x0 = poisson(8, 8), vector(64) + 1j * vector(64)[::-1], np.full(64, 0.1 + 0.2j)
    options: dict[str, Any] = {"preconditioner": preconditioner, "callback": lambda x: seen.append(x.copy())}
    for right_side, start in ((b, None), (b, x0), (np.stack([b, 1j * b], axis=1), None)):
        seen.clear()
        x, info = SOLVERS[name](A, right_side, start, **options)
        assert info.converged
        assert all(part.dtype == complex for part in seen)
        assert np.all(seen[0].imag == (0.0 if start is None else start.imag))
        np.testing.assert_array_equal(seen[-1], x if x.ndim == 1 else x[:, -1])


@pytest.mark.parametrize("name", ["cg", "bicgstab"])
def test_the_callback_is_called_also_with_complete_factors(name: str) -> None:
    """Without a callback, complete factors first refine all right-hand sides together."""
    seen: list[Any] = []
    A, b = poisson(8, 8), vector(64)
    for right_side in (b, b + 1j * b[::-1], np.stack([b, b[::-1]], axis=1)):
        seen.clear()
        x, info = SOLVERS[name](A, right_side, preconditioner="lu", callback=lambda x: seen.append(x.copy()))
        assert info.converged
        assert seen
        np.testing.assert_allclose(seen[-1], x if x.ndim == 1 else x[:, -1], atol=1e-12)


@pytest.mark.parametrize("scale", [1e100, 1e200, 1e300])
@pytest.mark.parametrize("name", [*SOLVERS, "gmres"])
def test_an_x0_that_hides_b_is_replaced_by_zero(name: str, scale: float) -> None:
    """Without this, the norm of the first residual overflows, or all digits of x0 must be cancelled first."""
    solver: Any = SOLVERS.get(name, mx.gmres)
    A, b = poisson(8, 8) * scale, np.ones(64)
    for preconditioner in ("auto", "none"):
        x, info = solver(A, b, np.ones(64), preconditioner=preconditioner)
        of_zero, from_zero = solver(A, b, preconditioner=preconditioner)
        assert info.converged
        assert info.message.startswith("x0 was replaced by zero")
        assert info.iterations == from_zero.iterations
        np.testing.assert_array_equal(x, of_zero)
    assert "x0" not in solver(A, b, of_zero * 1.5)[1].message


@pytest.mark.parametrize("scale", [1e-300, 1e300])
@pytest.mark.parametrize("name", SOLVERS)
def test_operators_near_the_ends_of_the_range_end_with_a_result(name: str, scale: float) -> None:
    A = poisson(8, 8)
    operator = LinearOperator(A.shape, matvec=lambda v: A @ v * scale, dtype=float)
    x, info = SOLVERS[name](operator, np.ones(64))
    assert info.converged or info.message
    if info.converged:
        assert residual(A, x * scale, np.ones(64)) <= 2e-9
    if name in HERMITIAN:
        skew = sparse.csr_array(A + sparse.triu(A, 1) * 0.5)
        with pytest.raises(UsageError, match="A is not symmetric"):
            SOLVERS[name](LinearOperator(A.shape, matvec=lambda v: skew @ v * scale, dtype=float), np.ones(64))


# --- ranks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("preconditioner", ["auto", "sgs", "jacobi", "none"])
def test_ranks_share_systems(name: str, preconditioner: str) -> None:
    A, b, starts = poisson(9, 11), vector(99), even(99, 3)

    def body(comm: Any) -> Any:
        parts = cut(A, starts, comm.rank), cut(b, starts, comm.rank)
        return SOLVERS[name](*parts, comm=comm, preconditioner=preconditioner, threads=1)

    done = run_ranks(3, body)
    assert all(info.converged for _, info in done), str(done[0][1])
    assert reached(A, np.concatenate([x for x, _ in done]), b, 1e-9)


def on_two_ranks(call: Callable[[Any, Any], Any]) -> list[Any]:
    """Return call(comm, its half of 64 rows) of two ranks; `run_ranks` fails if they wait for each other."""

    return run_ranks(2, lambda comm: call(comm, slice(32 * comm.rank, 32 * comm.rank + 32)))


@pytest.mark.parametrize("name", SOLVERS)
def test_a_callback_on_one_rank_is_enough(name: str) -> None:
    A, b, seen = poisson(8, 8), vector(64), list[int]()

    def call(comm: Any, rows: slice) -> Any:
        callback = None if comm.rank else lambda x: seen.append(len(x))
        return SOLVERS[name](A[rows], b[rows], comm=comm, callback=callback, preconditioner="none", threads=1)

    done = on_two_ranks(call)
    assert seen == [32] * done[0][1].iterations


def test_ranks_bound_the_norm_of_the_solution_together() -> None:
    A, b, least = nearly_singular(48)

    def call(comm: Any, rows: slice) -> Any:
        return mx.minres(A[rows], b[rows], comm=comm, preconditioner="none", threads=1)[1].message

    first, second = on_two_ranks(call)
    assert first == second
    assert 1e9 < least_norm_in(first) <= least


def test_ranks_must_pass_the_same_kind_of_operator_and_the_same_method() -> None:
    def diagonal(x: Any) -> Any:
        return 2.0 * x

    real, cplx = (LinearOperator((32, 32), diagonal, dtype=dtype) for dtype in (float, complex))
    for operators, solvers, text in (
        ((real, diagonal), (mx.cg, mx.cg), "this rank uses A as a function, but rank 0 uses A as a linear operator"),
        ((real, cplx), (mx.cg, mx.cg), "a complex dtype"),
        ((real, real), (mx.cg, mx.minres), "method=minres"),
    ):

        def call(comm: Any, rows: slice, operators: Any = operators, solvers: Any = solvers, text: str = text) -> None:
            with pytest.raises(UsageError, match=text):
                solvers[comm.rank](operators[comm.rank], np.ones(32), comm=comm)

        on_two_ranks(call)


@pytest.mark.parametrize("name", HERMITIAN)
def test_symmetric_operators_in_fp32_are_accepted(name: str) -> None:
    for seed in range(20):
        X = np.random.default_rng(seed).standard_normal((10, 10))
        A = (X @ X.T + 10 * np.eye(10)).astype(np.float32)
        _, info = SOLVERS[name](lambda v, A=A: A @ v.astype(np.float32), np.ones(10), rtol=1e-4)
        assert info.converged, str(info)
        A[0, 1] += 5  # not symmetric
        with pytest.raises(UsageError, match="A is not symmetric"):
            SOLVERS[name](lambda v, A=A: A @ v.astype(np.float32), np.ones(10))


# --- SciPy's cases ----------------------------------------------------------------------------------------------

RNG = np.random.RandomState(1234)
SQUARE = RNG.rand(4, 4) + 1j * np.random.RandomState(1234).rand(4, 4)
TALL = RNG.rand(9, 9) + 1j * RNG.rand(9, 9)
SCIPYS: dict[str, Any] = {
    **CASES,
    "complex": SQUARE,
    "complex Hermitian": SQUARE + SQUARE.T.conj(),
    "complex definite": TALL @ TALL.T.conj(),
}
DEFINITE = ("Poisson in one dimension", "Poisson in two dimensions", "random definite", "complex definite")
SYMMETRIC = (
    *DEFINITE,
    "its negative",
    "a diagonal of both signs",
    "random symmetric",
    "symmetric, not definite",
    "complex Hermitian",
)
APPLY = [("cg", case) for case in DEFINITE] + [("minres", case) for case in SYMMETRIC]
APPLY += [("bicgstab", case) for case in SCIPYS if case != "symmetric, not definite"]


def scipys(case: str) -> tuple[Any, Any]:
    A = SCIPYS[case]
    return A if sparse.issparse(A) else sparse.csr_array(A), right_hand_side(case, A.shape[0])


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize(("name", "case"), APPLY)
def test_scipys_cases_converge(name: str, case: str, single: bool) -> None:
    A, b = scipys(case)
    if single:
        A = A.astype(np.complex64 if A.dtype.kind == "c" else np.float32)
        if case in ("random definite", "complex definite"):  # only nearly Hermitian once it is rounded
            A = A + A.T.conj()
    for rtol, M in itertools.product((1e-2, 1e-8), (None, LinearOperator(A.shape, lambda r: r, dtype=A.dtype))):
        x0 = 0 * b
        for operator in (A, aslinearoperator(A.astype(np.result_type(A.dtype, float)))):
            x, info = SOLVERS[name](operator, b, x0, rtol=rtol, M=M)
            assert info.converged, str(info)
            assert residual(A, x, b) <= rtol * (1 + 1e-3)
        assert not x0.any()


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("case", ["Poisson in one dimension", "Poisson in two dimensions"])
def test_the_inverse_takes_three_products_at_most(name: str, case: str) -> None:
    A, b = scipys(case)
    dense = A.toarray()
    M = LinearOperator(A.shape, lambda r: np.linalg.solve(dense, r), dtype=float)
    assert checked(name, A, b, M=M, rtol=1e-8).iterations <= 2


@pytest.mark.parametrize("name", SOLVERS)
def test_scipys_tolerances(name: str) -> None:
    rng = np.random.default_rng(168441431005389)
    A = rng.uniform(size=(10, 10))
    A, b = A @ A.T + 10 * np.eye(10), 1e3 * rng.uniform(size=10)
    M = rng.standard_normal((10, 10))
    M = M @ M.T
    tolerances = [0.0, 1e-9, 1e-4, 1e2, np.inf]
    for scale, rtol, atol in itertools.product((None, 1e-6, 1e6), tolerances, tolerances):
        if rtol == atol == 0.0:
            continue
        x, info = SOLVERS[name](sparse.csr_array(A), b, M=None if scale is None else scale * M, rtol=rtol, atol=atol)
        assert info.converged, (scale, rtol, atol, str(info))
        assert np.linalg.norm(A @ x - b) <= 1.00025 * max(atol, rtol * np.linalg.norm(b))


@pytest.mark.parametrize("name", SOLVERS)
def test_scipys_starts(name: str) -> None:
    rng = np.random.default_rng(1685363802304750)
    A = rng.random((10, 10))
    A, b, x0 = sparse.csr_array(A @ A.T), rng.random(10), rng.random(10)
    for start in (None, x0):
        checked(name, A, b, x0=start, rtol=1e-6)
    x, info = SOLVERS[name](sparse.eye_array(2), [-1.0, -1.0], [-1.0, -1.0])
    assert info.iterations == 0
    assert np.array_equal(x, [-1.0, -1.0])
    with pytest.raises(TypeError):
        SOLVERS[name](A, b, x0, 1e-5)
    for atol in ("legacy", None, -1):
        with pytest.raises(ValueError, match="atol"):
            SOLVERS[name](A, b, x0, atol=atol)


def test_scipys_cases_of_minres() -> None:
    rng = np.random.RandomState(1234)
    A = rng.rand(10, 10)
    A, b = A + A.T, rng.rand(10)
    traces: list[list[Any]] = [[], []]
    for x0, trace in zip((np.random.RandomState(12345).rand(10), None), traces):
        mx.minres(sparse.csr_array(A), b, x0=x0, callback=trace.append)
    assert not np.array_equal(traces[0][0], traces[1][0])
    A[1, 2], A[2, 1] = 1, 2
    with pytest.raises(ValueError, match="not symmetric"):
        mx.minres(sparse.csr_array(A), b)
    for seed in (1234, 12345):
        rng = np.random.RandomState(seed)
        a = rng.randn(5, 5)
        a, b, c, m = a @ a.T, rng.randn(5), rng.randn(5), rng.randn(5, 5)
        checked("minres", sparse.csr_array(a), b, x0=c, M=m @ m.T, rtol=1e-6)
        checked("minres", sparse.csr_array(a), b, x0=c, rtol=1e-6)
    checked("minres", sparse.csr_array(np.eye(10)), np.ones(10), x0=np.ones(10), rtol=1e-6)


@pytest.mark.parametrize("solve", [mx.gmres, *SOLVERS.values()])
def test_zero_right_hand_sides_give_zeros(solve: Callable[..., Any]) -> None:
    rng = np.random.default_rng(1684414984100503)
    A = rng.random((10, 10))
    A = sparse.csr_array(A @ A.T + 10 * np.eye(10))
    for tol in (1e-10, 1.0, 1e2):
        for x0, atol in itertools.product((None, np.ones(10)), (0.0, tol)):
            x, info = solve(A, np.zeros(10), x0, rtol=tol, atol=atol)
            assert info.converged
            assert not x.any()
