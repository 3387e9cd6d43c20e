"""Test 500 random and structured systems for each solver that other files do not cover, in extended precision.

Reported errors and residuals are true, and an x that may have no correct digit is never returned without a warning. A
few systems of each kind run by default. `-m exhaustive -rP` solves 500 per solver and prints the counts.

test_500_systems.py does the same for `solve` of real systems, test_500_sparse_systems.py for `gmres` of real systems,
test_refine.py for `refine`, and test_least_squares.py for `lstsq`.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sparse
from scipy.sparse.linalg import LinearOperator

import mxpeak as mx
from mxpeak.comm.transports.threads import run_ranks
from tests.support import hard_systems
from tests.support.extended import solved
from tests.support.hard_systems import orthogonal
from tests.support.roundoff import U
from tests.support.scattered_systems import scattered
from tests.support.scattered_systems import systems as scattered_systems

Array = np.ndarray[Any, np.dtype[Any]]
Long = np.longdouble
TOL = 1e-12
COUNTS = [pytest.param(28, id="few"), pytest.param(500, marks=pytest.mark.exhaustive, id="500")]

pytestmark = pytest.mark.skipif(np.finfo(Long).nmant < 63, reason="long double has no more digits than fp64 here")


# --- in extended precision ----------------------------------------------------------------------------------------


def wide(V: Array) -> Array:
    return V.astype(np.clongdouble if V.dtype.kind == "c" else Long)


def scales(sizes: Array) -> Array:
    """Return powers of two that scale positive numbers close to 1."""
    return np.exp2(-np.round(np.log2(np.where(sizes > 0.0, sizes, 1.0))))


def exactly(A: Array, b: Array) -> Array:
    """Return A^-1 b in long double; complex systems become real ones of twice the order, with scaled rows."""
    if A.dtype.kind != "c":
        return solved(A, b)
    rows = scales(np.abs(A).max(axis=1))
    columns = scales((np.abs(A) * rows[:, None]).max(axis=0))
    again = scales((np.abs(A) * rows[:, None] * columns).max(axis=1))
    A, b = A * rows[:, None] * columns * again[:, None], b * rows * again
    x = solved(np.block([[A.real, -A.imag], [A.imag, A.real]]), np.concatenate([b.real, b.imag]))
    z = np.empty(len(A), np.clongdouble)
    z.real, z.imag = x[: len(A)], x[len(A) :]
    with np.errstate(invalid="ignore"):  # infinite numbers of a singular system
        result: Array = z * columns
    return result


def true_eta(A: Array, x: Array, b: Array) -> float:
    """Return the backward error in units of n·u."""
    A, x, b = wide(A), wide(x), wide(b)
    size = np.abs(A).sum(1).max() * np.abs(x).max() + np.abs(b).max()
    return float(np.abs(b - A @ x).max() / size / (len(A) * U))


def lost_digits(A: Array, x: Array, b: Array) -> bool:
    """Return whether the largest entry of x has no correct digit."""
    y = exactly(A, b)
    if not np.isfinite(y).all():
        return True
    return not np.abs(x - y).max() < 0.5 * np.abs(y).max()


# --- dense systems ------------------------------------------------------------------------------------------------


def symmetric_systems(
    count: int, *, definite: bool, is_complex: bool, symmetric: bool = False
) -> Iterator[tuple[str, Array, Array]]:
    """Yield names, Hermitian (or complex symmetric) matrices and right-hand sides; half of these are A times ones."""
    rng = np.random.default_rng(90 + 2 * definite + is_complex)

    def normal(*shape: int) -> Array:
        values = rng.standard_normal(shape)
        return values + 1j * rng.standard_normal(shape) if is_complex else values

    def spectrum(values: Array) -> Array:
        Q = np.linalg.qr(normal(len(values), len(values)))[0]
        return hermitian((Q * values) @ Q.conj().T)

    def hermitian(M: Array) -> Array:
        return (M + M.conj().T) / 2

    for number in range(count):
        n = int(rng.integers(2, 41))
        signs = np.ones(n) if definite else rng.choice([-1.0, 1.0], n)
        kind, X = number % 7, normal(n, n)
        gram = hermitian(X @ X.conj().T)
        if kind == 0:
            name, A = "random", gram + np.eye(n) if definite else hermitian(X)
        elif kind == 1:
            d = 2.0 ** rng.integers(-40, 41, n)
            name, A = "graded", (gram + np.eye(n) if definite else hermitian(X)) * d[:, None] * d
        elif kind == 2:
            name, A = "nearly singular", spectrum(signs * np.geomspace(1.0, 10.0 ** -rng.uniform(6, 20), n))
        elif kind == 3:
            c = np.sinc(rng.uniform(0.02, 0.9) * np.arange(n))
            name, A = "Toeplitz", scipy.linalg.toeplitz(c) * (1.0 + 0j if is_complex else 1.0)
        elif kind == 4:
            name, A = "Hilbert", scipy.linalg.hilbert(min(n, 20)) * (1.0 + 0j if is_complex else 1.0)
        elif kind == 5:
            name, A = "clustered", spectrum(signs * rng.choice([1.0, 1e-3, 1e3], n))
        else:
            name, A = "short by an ulp", hermitian(X[:, :-1] @ X[:, :-1].conj().T) if n > 1 else gram
            A = A + np.diag((number % 4) * np.spacing(np.abs(A.diagonal())))
        if symmetric:  # D A D with phases D, of the real part of A
            phases = np.exp(1j * rng.uniform(0, 2 * np.pi, len(A)))
            A = np.tril(A.real * phases[:, None] * phases)
            A = A + np.tril(A, -1).T
        b = A @ np.ones(len(A)) if number % 2 else normal(len(A))
        yield name, A, b


Solver = Callable[[int, Array, Array], tuple[Any, Any, Array]]


def by_solve(assume_a: str, number: int, A: Array, b: Array) -> tuple[Any, Any, Array]:
    """Solve from one triangle, in several precisions; the other triangle contains other numbers."""
    lower = bool(number % 2)
    half = one_triangle(A, lower=lower)
    coarse = ("fp32", "auto", "bf16", "fp16") if assume_a == "pos" else ("fp32", "auto", "fp64")
    form = ("N", "N", "T", "H")[number % 4]
    x, info = mx.solve(half, b, assume_a=assume_a, lower=lower, precision=coarse[number % len(coarse)], transposed=form)
    return x, info, {"N": A, "T": A.T, "H": A.conj().T}[form]


def one_triangle(A: Array, *, lower: bool) -> Array:
    """Return one triangle of A, and other numbers in the other one."""
    return np.tril(A) + 7 * np.triu(np.ones_like(A), 1) if lower else np.triu(A) + 7 * np.tril(np.ones_like(A), -1)


def by_plain_solve(number: int, A: Array, b: Array) -> tuple[Any, Any, Array]:
    precision, form = ("auto", "fp32", "bf16", "fp16", "fp64")[number % 5], ("N", "T", "H")[number % 3]
    return *mx.solve(A, b, precision=precision, transposed=form), {"N": A, "T": A.T, "H": A.conj().T}[form]


def by_refine(number: int, A: Array, b: Array) -> tuple[Any, Any, Array]:
    """Refine a solution in fp32, in part with factors of a matrix near A."""
    rng, narrow = np.random.default_rng(number), A.astype(np.complex64 if A.dtype.kind == "c" else np.float32)
    with np.errstate(all="ignore"):
        start = np.nan_to_num(np.linalg.solve(narrow, b.astype(narrow.dtype)), posinf=0.0, neginf=0.0)
    F = mx.lu_factor(A * (1 + 1e-9 * rng.standard_normal(A.shape)), precision="fp32") if number % 2 else None
    return *mx.refine(A, b, start, F), A


def over_ranks(assume_a: str, number: int, A: Array, b: Array) -> tuple[Any, Any, Array]:
    """Solve on two thread ranks, from one triangle if A is symmetric."""
    form, lower = ("N", "T", "H")[number % 3], bool(number // 2 % 2)
    how = {"assume_a": assume_a, "lower": lower, "transposed": form, "precision": ("auto", "fp32")[number % 2]}
    M = A if assume_a == "gen" else one_triangle(A, lower=lower)

    def body(comm: Any) -> Any:
        return mx.solve(mx.DistributedMatrix.from_function(lambda i, j: M[i, j], len(M), nb=5, comm=comm), b, **how)

    return *run_ranks(2, body)[0], {"N": A, "T": A.T, "H": A.conj().T}[form]


def by_cho_factor(number: int, A: Array, b: Array) -> tuple[Any, Any, Array]:
    F = mx.cho_factor(A, lower=bool(number % 2), precision=("auto", "fp32", "bf16")[number % 3])
    form = ("N", "T", "H")[number % 3]
    return *F.solve(b, transposed=form), {"N": A, "T": A.T, "H": A.conj().T}[form]


def by_lu_factor(number: int, A: Array, b: Array) -> tuple[Any, Any, Array]:
    F = mx.lu_factor(A, precision=("auto", "fp32", "bf16", "fp16", "fp64")[number % 5])
    form = ("N", "T", "H")[number % 3]
    return *F.solve(b, transposed=form), {"N": A, "T": A.T, "H": A.conj().T}[form]


def by_solver(assume_a: str, number: int, A: Array, b: Array) -> tuple[Any, Any, Array]:
    """Factor a matrix near A, then update and solve."""
    rng = np.random.default_rng(number)
    change = 10.0 ** -rng.uniform(1, 14) * rng.standard_normal(A.shape)
    near = A * (1 + (change + change.T) / 2)
    solver = mx.Solver(near, assume_a=assume_a, precision=("auto", "fp32")[number % 2])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            solver.solve(b)
    except np.linalg.LinAlgError:
        pass
    solver.update(A)
    form = ("N", "T", "H")[number % 3]
    return *solver.solve(b, transposed=form), {"N": A, "T": A.T, "H": A.conj().T}[form]


def general_systems(count: int, *, is_complex: bool = False) -> Iterator[tuple[str, Array, Array]]:
    """Yield the matrices of test_500_systems.py, real or with imaginary parts of the same kind."""
    rng = np.random.default_rng(77)
    for number, (name, A) in enumerate(islice(hard_systems.systems(), count)):
        M = A * np.exp(2j * np.pi * rng.random(A.shape[1])) if is_complex else A  # the same singular values
        yield name, M, M @ np.ones(len(M)) if number % 2 else rng.standard_normal(len(M)) * (1j if is_complex else 1.0)


DENSE: dict[str, tuple[Solver, Callable[[int], Iterator[tuple[str, Array, Array]]]]] = {
    "solve pos": (partial(by_solve, "pos"), partial(symmetric_systems, definite=True, is_complex=False)),
    "solve pos complex": (partial(by_solve, "pos"), partial(symmetric_systems, definite=True, is_complex=True)),
    "solve complex": (by_plain_solve, partial(general_systems, is_complex=True)),
    "solve sym complex": (
        partial(by_solve, "sym"),
        partial(symmetric_systems, definite=False, is_complex=True, symmetric=True),
    ),
    "refine complex": (by_refine, partial(general_systems, is_complex=True)),
    "ranks gen complex": (partial(over_ranks, "gen"), partial(general_systems, is_complex=True)),
    "ranks pos": (partial(over_ranks, "pos"), partial(symmetric_systems, definite=True, is_complex=False)),
    "ranks her": (partial(over_ranks, "her"), partial(symmetric_systems, definite=False, is_complex=True)),
    "ranks sym": (partial(over_ranks, "sym"), partial(symmetric_systems, definite=False, is_complex=False)),
    "ranks sym complex": (
        partial(over_ranks, "sym"),
        partial(symmetric_systems, definite=False, is_complex=True, symmetric=True),
    ),
    "Solver gen complex": (partial(by_solver, "gen"), partial(general_systems, is_complex=True)),
    "Solver pos complex": (partial(by_solver, "pos"), partial(symmetric_systems, definite=True, is_complex=True)),
    "Solver sym": (partial(by_solver, "sym"), partial(symmetric_systems, definite=False, is_complex=False)),
    "solve sym": (partial(by_solve, "sym"), partial(symmetric_systems, definite=False, is_complex=False)),
    "solve her": (partial(by_solve, "her"), partial(symmetric_systems, definite=False, is_complex=True)),
    "cho_factor": (by_cho_factor, partial(symmetric_systems, definite=True, is_complex=False)),
    "cho_factor complex": (by_cho_factor, partial(symmetric_systems, definite=True, is_complex=True)),
    "lu_factor": (by_lu_factor, general_systems),
    "lu_factor complex": (by_lu_factor, partial(general_systems, is_complex=True)),
    "Solver gen": (partial(by_solver, "gen"), general_systems),
    "Solver pos": (partial(by_solver, "pos"), partial(symmetric_systems, definite=True, is_complex=False)),
    "Solver her": (partial(by_solver, "her"), partial(symmetric_systems, definite=False, is_complex=True)),
}
#: Kinds of matrices that are never ill-conditioned, so that a warning would be wrong.
EASY = ("clustered",)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", DENSE)
def test_dense_solvers_report_the_truth(name: str, count: int) -> None:
    solver, systems = DENSE[name]
    counted = Counter[str]()
    for number, (kind, A, b) in enumerate(systems(count)):
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", mx.IllConditionedWarning)
            try:
                x, info, M = solver(number, A, b)
            except np.linalg.LinAlgError:  # singular, or not positive definite
                assert kind not in EASY, (number, kind)
                counted["refused"] += 1
                continue
        error = true_eta(M, x, b)
        # As in test_500_systems.py: the residual in fp64 is off by the rounding of n + 1 terms, of complex numbers by
        # 2·sqrt(2) times that. After scaling, `info` has the larger of the errors of both systems.
        rounding = 1.5 if M.dtype.kind == "c" else 0.5
        off = error - info.backward_error if info.scaled else abs(error - info.backward_error)
        assert off <= max(rounding, info.backward_error / 2), (number, kind, error, info)
        lost = lost_digits(M, x, b)
        assert not (lost and info.solved and not info.ill_conditioned), (number, kind, info)
        assert not (kind in EASY and info.ill_conditioned), (number, kind, info)
        assert info.solved or kind != "random", (number, kind, info)
        counted["warned" if info.ill_conditioned else "solved" if info.solved else "not solved"] += 1
    assert counted.total() == count
    assert counted["solved"] > count / 3, counted
    print(f"{name}: {dict(counted)}")


# --- iterative solvers --------------------------------------------------------------------------------------------


def sparse_systems(count: int, *, definite: bool) -> Iterator[tuple[str, Array]]:
    """Yield names and symmetric matrices with few entries per row, of 2 to 40 rows."""
    rng = np.random.default_rng(61 + definite)
    for number in range(count):
        n = int(rng.integers(2, 41))
        S = scattered(rng, n)
        S = S + S.T
        dominant = S + np.diag(1.0 + np.abs(S).sum(axis=1))
        kind = number % 7
        if kind == 0:
            yield "dominant", dominant
        elif kind == 1:
            d = 2.0 ** rng.integers(-100, 101, n)
            yield "graded", dominant * d[:, None] * d
        elif kind == 2:
            yield "Laplacian", scipy.linalg.toeplitz(np.where(np.arange(n) == 0, 2.0, -1.0 * (np.arange(n) == 1)))
        elif kind == 3:
            Q = orthogonal(rng, n)
            A = (Q * np.geomspace(1.0, 10.0 ** -rng.uniform(2, 16), n)) @ Q.T
            yield "nearly singular", (A + A.T) / 2
        elif kind == 4:
            free = scipy.linalg.toeplitz(np.where(np.arange(n) == 0, 2.0, -1.0 * (np.arange(n) == 1)))
            free[0, 0] = free[-1, -1] = 1.0
            yield "singular", free
        elif definite:
            M = scattered(rng, n) + np.eye(n)
            yield "product", M @ M.T
        else:
            half = max(1, n // 3)
            B = scattered(rng, n)[:half] + np.eye(n)[:half]
            yield "saddle", np.block([[dominant, B.T], [B, np.zeros((half, half))]])


def unsymmetric(count: int) -> Iterator[tuple[str, Array]]:
    return islice(scattered_systems(), count)


def with_phases(
    systems: Callable[[int], Iterator[tuple[str, Array]]], count: int, *, hermitian: bool
) -> Iterator[tuple[str, Array]]:
    """Return the matrices with complex phases for rows and columns, which keep the singular values."""
    rng = np.random.default_rng(63)
    for name, A in systems(count):
        rows, columns = np.exp(1j * rng.uniform(0, 2 * np.pi, (2, len(A))))
        M = A * rows[:, None] * (rows.conj() if hermitian else columns)
        yield name, np.tril(M, -1) + np.tril(M, -1).conj().T + np.diag(M.diagonal().real) if hermitian else M


Iterative = Callable[..., tuple[Any, Any]]


def by_operator(A: Any, b: Array, **options: Any) -> tuple[Any, Any]:
    """Solve with products of A only."""
    return mx.gmres(LinearOperator(A.shape, matvec=lambda v: A @ v, dtype=A.dtype), b, maxiter=200, **options)


def by_sparse_solver(A: Any, b: Array, **options: Any) -> tuple[Any, Any]:
    """Solve with a matrix near A, then update and solve."""
    rng = np.random.default_rng(A.nnz)
    near = A.copy()
    near.data = near.data * (1 + 10.0 ** -rng.uniform(1, 14) * rng.standard_normal(A.nnz))
    solver = mx.Solver(near, **options)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            solver.solve(b)
    except np.linalg.LinAlgError:
        pass
    solver.update(A)
    return solver.solve(b)


hermitian_definite = partial(with_phases, partial(sparse_systems, definite=True), hermitian=True)
hermitian = partial(with_phases, partial(sparse_systems, definite=False), hermitian=True)
unsymmetric_complex = partial(with_phases, unsymmetric, hermitian=False)
ITERATIVE: dict[str, tuple[Iterative, Callable[[int], Iterator[tuple[str, Array]]]]] = {
    "cg": (mx.cg, partial(sparse_systems, definite=True)),
    "cg complex": (mx.cg, hermitian_definite),
    "minres": (mx.minres, partial(sparse_systems, definite=False)),
    "minres complex": (mx.minres, hermitian),
    "bicgstab": (mx.bicgstab, unsymmetric),
    "bicgstab complex": (mx.bicgstab, unsymmetric_complex),
    "gmres complex": (mx.gmres, unsymmetric_complex),
    "gmres operator": (by_operator, unsymmetric),
    "Solver sparse": (by_sparse_solver, unsymmetric),
    "Solver sparse complex": (by_sparse_solver, unsymmetric_complex),
}


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", ITERATIVE)
def test_iterative_solvers_report_the_truth(name: str, count: int) -> None:
    solver, systems = ITERATIVE[name]
    rng, counted = np.random.default_rng(62), Counter[str]()
    for number, (kind, A) in enumerate(systems(count)):
        n, is_complex = len(A), A.dtype.kind == "c"
        b = A @ np.arange(1.0, n + 1.0) if (number // 7) % 2 else rng.standard_normal(n) * (1j if is_complex else 1.0)
        formats = ("mixed", "fp64", "fp32", *(() if is_complex or solver is by_operator else ("bf16",)))
        precision = formats[number % len(formats)]
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", mx.IllConditionedWarning)
            try:
                x, info = solver(sparse.csr_array(A), b, precision=precision, rtol=TOL)
            except (np.linalg.LinAlgError, mx.UsageError):  # singular, or not definite
                counted["refused"] += 1
                assert kind not in ("dominant", "graded", "Laplacian", "product"), number
                continue
        A_, x_, b_ = (wide(V) for V in (A, x, b))
        r, b_norm = np.abs(b_ - A_ @ x_), np.sqrt((np.abs(b_) ** 2).sum()) or Long(1)
        terms = np.abs(A_) @ np.abs(x_) + np.abs(b_)
        # Rounding of the residual in fp64; of complex numbers 2·sqrt(2) times that.
        off = (n + 1) * U * np.sqrt((terms * terms).sum()) / b_norm * (2.83 if is_complex else 1.0)
        found = float(np.sqrt((r * r).sum()) / b_norm)
        assert abs(found - info.residual) <= off + info.residual / 2, (number, kind, found, info)
        if info.converged:
            assert (r <= (TOL + off) * b_norm).all(), (number, kind, info)
        lost = lost_digits(A, x, b)
        small = kind not in ("graded", "nearly singular", "singular", "structurally singular") and (
            np.linalg.cond(A) * TOL < 0.1
        )
        assert not (lost and info.converged and not info.ill_conditioned and small), (number, kind, info)
        assert not (info.ill_conditioned and kind in ("dominant", "Laplacian")), (number, kind, info)
        assert info.converged or kind not in ("dominant", "Laplacian"), (number, kind, info)
        counted["warned" if info.ill_conditioned else "converged" if info.converged else "unreached"] += 1
    assert counted.total() == count
    assert counted["converged"] > count / 3, counted
    print(f"{name}: {dict(counted)}")
