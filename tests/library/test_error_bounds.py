"""Compare forward error bounds and condition numbers with extended precision, on every path."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest

import mxpeak as mx
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.library.dense import ErrorBound
from tests.support.hard_systems import exactly, systems
from tests.support.roundoff import U
from tests.support.systems import random, spectrum

wide = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="long double has no more digits than fp64 here")


def errors(x: Any, exact: Any) -> tuple[float, float]:
    """Return the normwise and the componentwise relative error."""
    e = np.abs(x - exact)
    with np.errstate(all="ignore"):
        by_component = np.where(e == 0, 0, e / np.abs(x))
    return float(e.max() / np.abs(x).max()), float(by_component.max())


@wide
def test_the_bounds_of_500_systems_are_not_below_the_errors() -> None:
    """Every bound contains n + 1 worst-case roundings, which covers the estimate of a norm that is too small by 3."""
    rng, bounded, of_random = np.random.default_rng(20), 0, 0
    for number, (name, A) in enumerate(systems()):
        b = A @ np.ones(len(A)) if number % 2 else rng.standard_normal(len(A))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mx.IllConditionedWarning)
            try:
                x, info = mx.solve(A, b, precision=("fp32", "auto", "bf16", "auto", "fp16")[number % 5])
            except mx.SingularMatrixError:
                continue
        exact = exactly(A, b)
        if not np.isfinite(exact).all():
            assert info.error_bound == (np.inf, np.inf)
            continue
        normwise, componentwise = info.error_bound
        for error, bound in zip(errors(x, exact), (normwise, componentwise)):
            assert error <= bound, (number, name, error, info)
        assert normwise <= componentwise
        bounded += normwise < 1
        of_random += name == "random" and normwise < 1e-6
    assert bounded > 300
    assert of_random > 80


@wide
def test_bounds_hold_for_many_right_hand_sides_complex_numbers_and_fp32() -> None:
    rng = np.random.default_rng(4)
    for dtype in (np.float32, np.complex64, np.complex128):
        for n in (1, 2, 7, 40):
            A, B = random((n, n), dtype, n), random((n, 5), dtype, 2)
            B[:, 3] *= 1e-9
            x, info = mx.solve(A, B)
            exact = np.linalg.solve(A.astype(np.complex128), B)
            if dtype == np.complex128:  # by the real form in long double
                M = np.block([[A.real, -A.imag], [A.imag, A.real]])
                exact = np.array([exactly(M, np.concatenate([b.real, b.imag])) for b in B.T]).T
                exact = exact[:n] + 1j * exact[n:]
            errors_of = [errors(x[:, j], exact[:, j]) for j in range(5)]
            for error, bound in zip(np.max(errors_of, axis=0), info.error_bound):
                assert error <= bound <= 1e6 * max(error, np.finfo(dtype).eps) * n, (dtype, n, info)
    stack, b = rng.standard_normal((3, 20, 20)), rng.standard_normal(20)
    x, info = mx.solve(stack, b)
    errors_of = [errors(x[i], exactly(stack[i], b)) for i in range(3)]
    worst = [mx.solve(M, b)[1].error_bound for M in stack]
    for error, bound, single in zip(np.max(errors_of, axis=0), info.error_bound, np.max(worst, axis=0)):
        assert error <= bound
        assert single / 3 <= bound <= 3 * single  # the inverse instead of an estimate


def test_bounds_of_zeros_of_singular_matrices_and_of_empty_systems() -> None:
    A = np.diag([1.0, 2.0, 4.0])
    assert mx.solve(A, np.zeros(3))[1].error_bound == (0.0, 0.0)
    assert mx.solve(A, np.empty((3, 0)))[1].error_bound == (0.0, 0.0)
    assert mx.solve(np.empty((0, 0)), np.empty(0))[1].error_bound == (0.0, 0.0)
    stack = np.stack([A, 2.0 * A])
    for M in (A, stack):  # a zero column has no error
        normwise, componentwise = mx.solve(M, np.array([[1.0, 0.0]] * 3))[1].error_bound
        assert 0.0 < normwise <= componentwise < 10 * U
    bound = mx.solve(A, [1.0, 0.0, 1.0])[1].error_bound
    assert isinstance(bound, ErrorBound)
    assert bound.normwise < 10 * U
    assert bound.componentwise == np.inf  # relative to an entry that is zero
    with pytest.warns(mx.IllConditionedWarning):
        _, info = mx.solve(spectrum(30, 1e18), np.ones(30))
    assert info.error_bound == (np.inf, np.inf)
    assert "forward error   unbounded" in str(info)


def test_bounds_are_computed_later_and_are_nan_if_the_system_changed() -> None:
    for n, precision in ((30, "auto"), (90, "fp32"), (90, "bf16")):
        A, b = random((n, n)), random(n)
        first, second = (mx.solve(A, b, precision=precision)[1] for _ in range(2))
        stack = mx.solve(A[None], b)[1]
        again = pickle.loads(pickle.dumps(first))
        assert again.error_bound == first.error_bound
        assert "forward error   <=" in str(first)
        A[3] *= 2.0
        assert np.isnan(second.error_bound).all()
        assert np.isnan(stack.error_bound).all()
        assert "forward error   unknown, because A, b or x was changed" in str(second)
        assert again.error_bound == first.error_bound  # computed before the change
        assert precision == "auto" or np.isnan(second.condition)  # estimated by refinement with A


def test_real_and_imaginary_parts_have_one_bound() -> None:
    A, b = random((90, 90)), random(90)
    for precision in ("auto", "fp32"):
        bound = mx.solve(A, b + 0j, precision=precision)[1].error_bound
        real = mx.solve(A, b, precision=precision)[1].error_bound
        assert bound.componentwise < np.inf
        for mine, expected in zip(bound, real):
            assert expected / 3 <= mine <= 6 * expected


@pytest.mark.parametrize("decades", [2, 5, 7])
def test_the_condition_is_that_of_a_on_every_path(decades: int) -> None:
    """Neither scaling nor coarse factors change its meaning: numpy.linalg.cond(A, 1), estimated from below."""
    n = 70
    A, b = spectrum(n, 10.0**decades), np.ones(n)
    A = A * np.exp2(np.random.default_rng(3).integers(-4, 5, n))[:, None]  # these rows are scaled for 16-bit formats
    exact = np.linalg.cond(A, 1)

    def body(comm: Any) -> float:
        M = mx.DistributedMatrix.from_function(lambda i, j: A[i, j], n, nb=8, comm=comm)
        condition: float = mx.lu_factor(M, precision="fp64").condition
        return condition

    conditions = {"ranks": run_ranks(2, body)[0], "stack": mx.solve(A[None], b)[1].condition}
    for precision in ("auto", "fp64", "fp32", "bf16", "fp16"):
        _, info = mx.solve(A, b, precision=precision)
        conditions[f"solve {precision} {info.precision} {info.scaled}"] = info.condition
        conditions[f"factors {precision}"] = mx.lu_factor(A, precision=precision).condition
        conditions[f"F order {precision}"] = mx.solve(np.asfortranarray(A), b, precision=precision)[1].condition
        transposed = mx.lu_factor(A, precision=precision).solve(b, transposed=True)[1].condition
        assert np.linalg.cond(A.T, 1) / 3 <= transposed <= 1.01 * np.linalg.cond(A.T, 1)
    conditions["refine"] = mx.refine(A, b, np.linalg.solve(A, b))[1].condition
    for path, value in conditions.items():
        if value == np.inf:  # factors before a solve, too coarse for refinement with them to converge
            assert decades == 7
            assert path in ("factors bf16", "factors fp16")
            continue
        assert exact / 3 <= value <= 1.01 * exact, (path, value, exact)


@pytest.mark.parametrize(("n", "largest"), [(5, 1.7e308), (40, 1e307)])
def test_the_condition_is_finite_if_a_row_sum_overflows(n: int, largest: float) -> None:
    """It is that of A / 1e308 by singular values, up to the accuracy of the estimate of ||A^-1||_1."""
    rng, b = np.random.default_rng(6), random(n) * (largest / 100)
    A = rng.uniform(0.3, 1.0, (n, n)) * largest
    S, P = np.triu(A) + np.triu(A, 1).T, np.full((n, n), largest / 4) + np.eye(n) * largest * 0.7
    for name, M, condition in (
        ("solve", A, mx.solve(A, b)[1].condition),
        ("fp32", A, mx.solve(A, b, precision="fp32")[1].condition),
        ("transposed", A.T, mx.solve(A, b, transposed=True)[1].condition),
        ("factors", A, mx.lu_factor(A, precision="fp64").condition),
        ("complex", A * (1 + 1j) / 2, mx.solve(A * (1 + 1j) / 2, b)[1].condition),
        ("refine", A / 4, mx.refine(A / 4, b, np.linalg.solve(A / 4, b))[1].condition),
        ("stack", A, mx.solve(A[None], b)[1].condition),
        ("sym", S, mx.solve(S, b, assume_a="sym")[1].condition),
        ("pos", P, mx.cho_factor(P).condition),
        ("lstsq", A, mx.lstsq(A, b)[1].condition),
    ):
        exact = np.linalg.cond(M / 1e308, 1)
        assert exact / 3 <= condition <= 1.2 * exact, (name, condition, exact)


def test_graded_matrices_have_the_condition_of_numpy_too() -> None:
    rng, n = np.random.default_rng(8), 40
    for _ in range(5):
        spread = 10.0 ** rng.uniform(-4, 4, n)
        A = rng.standard_normal((n, n)) * spread[:, None] * rng.permutation(spread)
        _, info = mx.solve(A, A @ np.ones(n))
        assert info.scaled

        def body(comm: Any, A: Any = A) -> float:
            M = mx.DistributedMatrix.from_function(lambda i, j: A[i, j], n, nb=8, comm=comm)
            condition: float = mx.lu_factor(M, precision="fp64").condition
            return condition

        exact = np.linalg.cond(A, 1)
        for found in (info.condition, *run_ranks(2, body)):
            assert exact / 4 <= found <= 1.01 * exact


def test_distributed_systems_have_no_bound() -> None:
    def body(comm: Any) -> Any:
        return mx.solve(mx.DistributedMatrix.from_function(lambda i, j: 2.0 * (i == j), 6, comm=comm), np.ones(6))[1]

    info = run_ranks(2, body)[0]
    assert info.error_bound is None
    assert "forward error" not in str(info)


@wide
@pytest.mark.parametrize("assume_a", ["pos", "sym", "her"])
def test_bounds_and_conditions_of_one_triangle(assume_a: str) -> None:
    """The factors of a triangle bound the error of x as those of an LU do, in their own and in lower precision."""
    rng = np.random.default_rng(6)
    for n, precision, order in ((5, "auto", "C"), (40, "auto", "F"), (40, "fp32", "C"), (60, "fp64", "F")):
        for is_complex in (False, True):
            M = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if is_complex else 0.0)
            A = (
                M @ M.conj().T + 0.1 * np.eye(n)
                if assume_a == "pos"
                else M + (M.T if assume_a == "sym" else M.conj().T)
            )
            A = np.asarray(A, order=order)  # type: ignore[call-overload]
            b = rng.standard_normal(n) + 0j if is_complex else rng.standard_normal(n)
            x, info = mx.solve(A, b, assume_a=assume_a, precision=precision)
            real = np.block([[A.real, -A.imag], [A.imag, A.real]])
            exact = exactly(real, np.concatenate([b.real, b.imag]))
            exact = exact[:n] + 1j * exact[n:]
            for error, bound in zip(errors(x, exact), info.error_bound):
                assert error <= bound <= 1e8 * U * n**2 * np.linalg.cond(A), (n, precision, info)
            assert np.linalg.cond(A, 1) / 3 <= info.condition <= 1.01 * np.linalg.cond(A, 1)
